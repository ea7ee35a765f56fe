/* tune.c: which algorithm a matmul takes, chosen by measuring, and the text in which that is kept.
 *
 * The library's own first proposal is a model's; on the device another of its proposals may be faster. All of
 * them keep the constraints of blas.c, so any choice gives the same bits from run to run, but two choices may
 * not give those of each other: what was chosen is part of a run.
 *
 * The text has a line for the device and the library that it holds for, one for each matmul, and at the end
 * a checksum:
 *
 *     matmuls 1
 *     device sm_90 NVIDIA H100 80GB HBM3
 *     cublasLt 13.1.0
 *     matmul m n k  a b c d (strides)  ta tb in out has_c has_bias tf32  aligned  workspace  us  first_us of
 *     algorithm-in-hexadecimal
 *     checksum 0123456789abcdef
 *
 * A matmul is a line; of it, us and first_us are the times of the choice and of the library's own, `of` how
 * many were timed. The bytes of an algorithm are the library's, which checks them before it takes them. */
#include "backends/cuda/device/blas.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    PROPOSALS = 16,    /* that are timed */
    LEAST_RUNS = 3,    /* between two events, */
    MOST_RUNS = 20,    /* as many as take ROUND_MS */
    ROUNDS = 3,        /* of which the fastest counts */
    PATTERN = 1 << 20, /* bytes of numbers that operands are filled with */
    MOST_CHOICES = 1 << 16
};
#define ROUND_MS 10.0f
/* Times of one kernel differ by this from run to run: less is no reason to leave the library's choice. */
#define WORTH 0.98f

/* ---- measuring -------------------------------------------------------------------------------------- */

/* Numbers that are finite in every type: halves of 16 bits from 0.5 to 2 (bf16; as f16 1.75 to 2), either
 * sign. What a matmul is of decides how much power it takes, and so how fast it is. */
static void make_pattern(uint16_t *to) {
    uint64_t state = 0x9e3779b97f4a7c15u;
    for (int i = 0; i < PATTERN / 2; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        to[i] = (uint16_t)(0x3f00 | (state >> 40 & 0xff) | (state >> 33 & 1) << 15);
    }
}

static sbp_status fill(cuda_device *d, const sbp_span *span, const void *pattern, sbp_diag *diag) {
    if (span->space == SBP_SPACE_COUNT)
        return SBP_OK;
    const int64_t unit = sbp_dtype_bytes(span->dtype);
    const int64_t bytes = ((span->rows - 1) * span->stride + span->cols) * unit;
    for (int64_t at = 0; at < bytes; at += PATTERN) {
        size_t piece = (size_t)(bytes - at < PATTERN ? bytes - at : PATTERN);
        CUDA_TRY(d, diag,
                 cuMemcpyHtoDAsync(d->memory + (uint64_t)(span->offset + at), pattern, piece,
                                   d->streams[CUDA_COMPUTE]));
    }
    return SBP_OK;
}

static sbp_status fill_operands(cuda_device *d, const sbp_dispatch *dispatch, sbp_diag *diag) {
    uint16_t *pattern = sbp_malloc(PATTERN);
    if (!pattern)
        return sbp_fail(diag, SBP_MACHINE, "out of memory for choosing among algorithms of matmuls");
    make_pattern(pattern);
    sbp_status status = SBP_OK;
    for (int32_t i = 0; i < dispatch->span_count && status == SBP_OK; i++)
        status = fill(d, &dispatch->spans[i], pattern, diag);
    if (status == SBP_OK)
        status = cuda_wait_all(d, diag);
    if (status != SBP_OK)
        cuda_device_idle(d); /* copies before the one that failed may still read the pattern */
    free(pattern);
    return status;
}

/* Milliseconds that `runs` runs of an algorithm take. */
static sbp_status time_runs(cuda_device *d, const blas_matmul *p, const blas_description *x,
                            const cublas_algorithm *algorithm, const cuda_event events[2], int32_t runs,
                            float *ms, sbp_diag *diag) {
    const cuda_stream stream = d->streams[CUDA_COMPUTE];
    CUDA_TRY(d, diag, cuEventRecord(events[0], stream));
    for (int32_t i = 0; i < runs; i++)
        SBP_TRY(cuda_blas_run(d, p, x, algorithm, diag));
    CUDA_TRY(d, diag, cuEventRecord(events[1], stream));
    CUDA_TRY(d, diag, cuStreamSynchronize(stream));
    CUDA_TRY(d, diag, cuEventElapsedTime(ms, events[0], events[1]));
    return SBP_OK;
}

/* Microseconds of one run: the fastest round after one that is not counted. */
static sbp_status time_algorithm(cuda_device *d, const blas_matmul *p, const blas_description *x,
                                 const cublas_algorithm *algorithm, const cuda_event events[2], float *out,
                                 sbp_diag *diag) {
    float ms = 0, best = 0;
    SBP_TRY(time_runs(d, p, x, algorithm, events, 1, &ms, diag));
    SBP_TRY(time_runs(d, p, x, algorithm, events, 1, &ms, diag));
    float wanted = ms > 0 ? ROUND_MS / ms : MOST_RUNS;
    int32_t runs = wanted < LEAST_RUNS ? LEAST_RUNS : wanted > MOST_RUNS ? MOST_RUNS : (int32_t)wanted;
    for (int round = 0; round < ROUNDS; round++) {
        SBP_TRY(time_runs(d, p, x, algorithm, events, runs, &ms, diag));
        best = round == 0 || ms < best ? ms : best;
    }
    *out = best * 1000 / (float)runs;
    return SBP_OK;
}

static sbp_status time_proposals(cuda_device *d, const blas_matmul *p, blas_description *x,
                                 const cuda_event events[2], cuda_blas_choice *out, sbp_diag *diag) {
    cublas_choice proposals[PROPOSALS];
    int32_t count;
    *out = (cuda_blas_choice){.shape = p->shape};
    SBP_TRY(cuda_blas_propose(d, p, x, PROPOSALS, proposals, &count, diag));
    for (int32_t i = 0; i < count; i++) {
        float us;
        SBP_TRY(time_algorithm(d, p, x, &proposals[i].algorithm, events, &us, diag));
        if (i == 0)
            out->first_us = us;
        if (i > 0 && (us >= out->us || us >= WORTH * out->first_us))
            continue;
        out->us = us;
        out->algorithm = proposals[i].algorithm;
        out->workspace_bytes = proposals[i].workspace_bytes;
    }
    out->timed = count;
    return SBP_OK;
}

static sbp_status measure(cuda_device *d, const sbp_dispatch *dispatch, const blas_matmul *p,
                          const cuda_event events[2], sbp_diag *diag) {
    blas_description x = {0};
    cuda_blas_choice choice = {0};
    sbp_status status = cuda_blas_describe(d, p, &x, diag);
    if (status == SBP_OK)
        status = fill_operands(d, dispatch, diag);
    if (status == SBP_OK)
        status = time_proposals(d, p, &x, events, &choice, diag);
    cuda_blas_description_destroy(d, &x);
    if (status == SBP_OK && choice.timed > 0)
        status = cuda_blas_add_choice(d, &choice, diag);
    return status;
}

sbp_status cuda_tune(cuda_device *d, const sbp_dispatch *dispatch, sbp_diag *diag) {
    cuda_event events[2] = {NULL, NULL};
    SBP_TRY(cuda_command_check(d, dispatch, diag));
    if (sbp_command_attributes(dispatch->command) != SBP_ATTRIBUTES_GEMM || !cuda_blas_takes(d, dispatch))
        return SBP_OK;
    blas_matmul p = cuda_blas_matmul_of(d, dispatch);
    if (p.shape.k == 0 || p.shape.m == 0 || p.shape.n == 0 || cuda_blas_find_choice(&d->blas, &p.shape) ||
        d->blas.choice_count >= MOST_CHOICES)
        return SBP_OK;
    sbp_status status = SBP_OK;
    for (int i = 0; i < 2 && status == SBP_OK; i++) {
        cuda_result result = d->api.calls.cuEventCreate(&events[i], 0);
        if (result != CUDA_OK)
            status = cuda_fail(d, result, "cuEventCreate", diag);
    }
    if (status == SBP_OK)
        status = measure(d, dispatch, &p, events, diag);
    for (int i = 0; i < 2; i++)
        if (events[i])
            (void)d->api.calls.cuEventDestroy(events[i]);
    return status;
}

/* ---- as text ---------------------------------------------------------------------------------------- */

enum { MACHINE_TEXT = 320 };

/* The lines that say what the choices hold for. */
static sbp_status describe_machine(cuda_device *d, char out[MACHINE_TEXT], sbp_diag *diag) {
    int32_t version[3];
    for (int32_t i = 0; i < 3; i++)
        BLAS_TRY(d, diag, cublasLtGetProperty(i, &version[i]));
    snprintf(out, MACHINE_TEXT, "matmuls 1\ndevice sm_%d %s\ncublasLt %d.%d.%d\n", d->physical.capability,
             d->physical.name, (int)version[0], (int)version[1], (int)version[2]);
    return SBP_OK;
}

static void add_choice(const cuda_blas_choice *c, sbp_text *out) {
    const cuda_blas_shape *s = &c->shape;
    sbp_text_add(out,
                 "matmul %" PRId64 " %" PRId64 " %" PRId64 "  %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64,
                 s->m, s->n, s->k, s->a_stride, s->b_stride, s->c_stride, s->d_stride);
    sbp_text_add(out, "  %d %d %s %s %d %d %d  %d %d %d %d  %" PRIu64 "  %.3f %.3f %d ", s->ta, s->tb,
                 sbp_dtype_name((sbp_dtype)s->in), sbp_dtype_name((sbp_dtype)s->out), s->has_c, s->has_bias,
                 s->tf32, s->alignment[0], s->alignment[1], s->alignment[2], s->alignment[3],
                 c->workspace_bytes, (double)c->us, (double)c->first_us, (int)c->timed);
    for (int i = 0; i < 8; i++)
        sbp_text_add(out, "%016" PRIx64, c->algorithm.data[i]);
    sbp_text_add(out, "\n");
}

sbp_status cuda_tune_text(cuda_device *d, sbp_text *out, int32_t *count, sbp_diag *diag) {
    char machine[MACHINE_TEXT];
    size_t begin = out->length;
    *count = d->blas.choice_count;
    SBP_TRY(cuda_enter(d, diag));
    if (!d->blas.handle)
        return SBP_OK;
    SBP_TRY(describe_machine(d, machine, diag));
    sbp_text_add(out, "%s", machine);
    for (int32_t i = 0; i < d->blas.choice_count; i++)
        add_choice(&d->blas.choices[i], out);
    sbp_text_add(out, "checksum %016" PRIx64 "\n", sbp_hash_bytes(out->data + begin, out->length - begin, 0));
    return SBP_OK;
}

static bool find_type(const char *name, uint8_t *out) {
    static const sbp_dtype types[] = {SBP_F64, SBP_F32, SBP_BF16, SBP_F16};
    for (int i = 0; i < SBP_COUNT(types); i++)
        if (strcmp(name, sbp_dtype_name(types[i])) == 0) {
            *out = (uint8_t)types[i];
            return true;
        }
    return false;
}

/* False when a line is none. */
static bool read_choice(const char *line, cuda_blas_choice *out) {
    cuda_blas_shape *s = &out->shape;
    char in[8], result[8], hex[130];
    int flags[5], alignment[4], timed, end = 0;
    memset(out, 0, sizeof *out);
    if (sscanf(line,
               "matmul %" SCNd64 " %" SCNd64 " %" SCNd64 " %" SCNd64 " %" SCNd64 " %" SCNd64 " %" SCNd64
               " %d %d %7s %7s %d %d %d %d %d %d %d %" SCNu64 " %f %f %d %129[0-9a-f]%n",
               &s->m, &s->n, &s->k, &s->a_stride, &s->b_stride, &s->c_stride, &s->d_stride, &flags[0],
               &flags[1], in, result, &flags[2], &flags[3], &flags[4], &alignment[0], &alignment[1],
               &alignment[2], &alignment[3], &out->workspace_bytes, &out->us, &out->first_us, &timed, hex,
               &end) != 23 ||
        strlen(hex) != 128 || line[end] != '\n' || !find_type(in, &s->in) || !find_type(result, &s->out))
        return false;
    s->ta = flags[0] != 0;
    s->tb = flags[1] != 0;
    s->has_c = flags[2] != 0;
    s->has_bias = flags[3] != 0;
    s->tf32 = flags[4] != 0;
    for (int i = 0; i < 4; i++)
        s->alignment[i] = (uint8_t)alignment[i];
    for (int i = 0; i < 8; i++) {
        char word[17] = {0};
        memcpy(word, hex + 16 * i, 16);
        out->algorithm.data[i] = strtoull(word, NULL, 16);
    }
    out->timed = timed;
    return true;
}

static sbp_status not_these(const char *name, const char *what, sbp_diag *diag) {
    return sbp_fail(diag, SBP_USAGE, "'%s' %s", name, what);
}

/* A line of each, without its end. */
static sbp_status other_machine(const char *name, const char *there, const char *here, sbp_diag *diag) {
    char was[2][120], is[2][120];
    for (int i = 0; i < 2; i++) {
        there = strchr(there, '\n') + 1;
        here = strchr(here, '\n') + 1;
        snprintf(was[i], sizeof was[i], "%.*s", (int)strcspn(there, "\n"), there);
        snprintf(is[i], sizeof is[i], "%.*s", (int)strcspn(here, "\n"), here);
    }
    return sbp_fail(diag, SBP_USAGE,
                    "'%s' was tuned for %s, %s; this machine has %s, %s: name another file, or remove this "
                    "one to measure matmuls anew",
                    name, was[0], was[1], is[0], is[1]);
}

/* text: of `length` characters, with a zero behind them. */
static sbp_status read_choices(cuda_device *d, const char *name, const char *text, size_t length,
                               sbp_diag *diag) {
    char here[MACHINE_TEXT];
    SBP_TRY(describe_machine(d, here, diag));
    uint64_t checksum = 0;
    int lines = 0, end = 0;
    static const char begins[] = "matmuls 1\n";
    const char *last = length > 1 ? memrchr(text, '\n', length - 1) : NULL;
    for (size_t i = 0; i < length; i++)
        lines += text[i] == '\n';
    if (strlen(text) != length || strncmp(text, begins, sizeof begins - 1) != 0 || lines < 4 || !last ||
        sscanf(last + 1, "checksum %16" SCNx64 "\n%n", &checksum, &end) != 1 || last[1 + end] ||
        checksum != sbp_hash_bytes(text, (size_t)(last + 1 - text), 0))
        return not_these(name, "is not a file of chosen algorithms (--tune), or damaged", diag);
    if (strncmp(text, here, strlen(here)) != 0)
        return other_machine(name, text, here, diag);
    for (const char *at = text + strlen(here); at < last + 1; at = strchr(at, '\n') + 1) {
        cuda_blas_choice choice;
        if (!read_choice(at, &choice) || d->blas.choice_count >= MOST_CHOICES)
            return not_these(name, "has a line that is no matmul", diag);
        if (!cuda_blas_find_choice(&d->blas, &choice.shape))
            SBP_TRY(cuda_blas_add_choice(d, &choice, diag));
    }
    return SBP_OK;
}

sbp_status cuda_tune_open(cuda_device *d, const char *name, const void *text, int64_t bytes, int32_t *count,
                          sbp_diag *diag) {
    *count = 0;
    SBP_TRY(cuda_enter(d, diag));
    if (!d->blas.handle || !text)
        return SBP_OK;
    char *copy = sbp_malloc((size_t)bytes + 1);
    if (!copy)
        return sbp_fail(diag, SBP_MACHINE, "out of memory for choosing among algorithms of matmuls");
    memcpy(copy, text, (size_t)bytes);
    copy[bytes] = 0;
    sbp_status status = read_choices(d, name, copy, (size_t)bytes, diag);
    free(copy);
    if (status != SBP_OK)
        d->blas.choice_count = 0;
    *count = d->blas.choice_count;
    return status;
}
