/* blas.c: matmuls by cuBLASLt.
 *
 * It counts in columns where the program counts in rows: a row-major matrix is its transpose there, so
 * d = op(a) op(b) is asked for as d' = op(b)' op(a)', with b as its first factor. d' is n x m; the bias, a
 * number per column of d, is then one per row, which is what its epilogue adds.
 *
 * Equal matmuls give equal bits: sums are not split (no scheme of reduction is allowed), the memory that it
 * works in is the stream's own, and the algorithm is a function of shape, strides, types and alignments. It
 * sums in fp32 (f64: fp64); factors in fp32 are rounded to TF32 only where the plan asks for it (--tf32). */
#include "backends/cuda/device/blas.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_ALIGNMENT = 8 /* log2 */ };

static const sbp_cuda_symbol symbols[] = {
#define SYMBOL(name, ...) {#name, offsetof(cublas_calls, name)},
#include "backends/cuda/device/cublaslt.def"
#undef SYMBOL
};

/* ---- opening ---------------------------------------------------------------------------------------- */

static const char *status_text(cublas_status status) {
    switch (status) {
    case CUBLAS_NOT_INITIALIZED:
        return "it cannot be initialised on this device";
    case CUBLAS_ALLOC_FAILED:
        return "out of memory";
    case CUBLAS_INVALID_VALUE:
        return "an invalid value";
    case CUBLAS_ARCH_MISMATCH:
        return "it has no code for this device";
    case CUBLAS_EXECUTION_FAILED:
        return "a kernel of it failed";
    case CUBLAS_NOT_SUPPORTED:
        return "not supported";
    default:
        return "an error of its own";
    }
}

sbp_status cuda_blas_fail(cuda_device *d, cublas_status status, const char *what, sbp_diag *diag) {
    bool ours = status == CUBLAS_INVALID_VALUE;
    d->broken = CUDA_UNKNOWN;
    return sbp_fail(diag, ours ? SBP_INTERNAL : SBP_MACHINE, "cuda: %s: cuBLASLt: %s (%d, in %.*s)",
                    d->physical.name, status_text(status), (int)status, (int)strcspn(what, "("), what);
}

static sbp_status find_matmul(void *user, const sbp_command *command, const sbp_dtype *dtypes) {
    bool *found = user;
    *found |= sbp_command_attributes(command) == SBP_ATTRIBUTES_GEMM && sbp_cuda_blas_has(dtypes);
    return SBP_OK;
}

/* The library. Without it a step takes many times as long, which nobody who rents a GPU wants to find out by
 * waiting: it is an error unless SBP_CUDA_BLAS=off asks for the kernels that a plan has for all matmuls. */
static sbp_status open_library(cuda_device *d, sbp_diag *diag, bool *found) {
    const char *setting = getenv("SBP_CUDA_BLAS");
    *found = false;
    if (setting && strcmp(setting, "off") == 0) {
        sbp_warn(diag, "cuda: SBP_CUDA_BLAS=off: matmuls run on this program's own kernels, which are many "
                       "times slower");
        return SBP_OK;
    }
    sbp_status status = sbp_cuda_library_open(SBP_CUDA_CUBLASLT, diag, &d->blas.library);
    if (status == SBP_OK)
        status =
            sbp_cuda_library_symbols(&d->blas.library, symbols, SBP_COUNT(symbols), &d->blas.calls, diag);
    *found = status == SBP_OK;
    if (!*found) {
        sbp_cuda_library_close(&d->blas.library);
        return sbp_fail(diag, status,
                        "cuda: matmuls need cuBLASLt; SBP_CUDA_BLAS=off in the environment runs them on this "
                        "program's own kernels, which are many times slower");
    }
    return SBP_OK;
}

sbp_status cuda_blas_create(cuda_device *d, sbp_diag *diag) {
    const size_t cache_bytes = CUDA_BLAS_CACHE * sizeof *d->blas.cache;
    bool wanted = false, found;
    SBP_TRY(sbp_gpu_each_command(d->program, find_matmul, &wanted));
    if (!wanted)
        return SBP_OK;
    SBP_TRY(open_library(d, diag, &found));
    if (!found)
        return SBP_OK;
    d->blas.cache = sbp_malloc(cache_bytes);
    if (!d->blas.cache)
        return sbp_fail(diag, SBP_MACHINE, "out of memory for the settings of cuBLASLt");
    memset(d->blas.cache, 0, cache_bytes);
    BLAS_TRY(d, diag, cublasLtCreate(&d->blas.handle));
    d->machine.blas = true;
    return SBP_OK;
}

void cuda_blas_destroy(cuda_device *d) {
    if (d->blas.handle)
        (void)d->blas.calls.cublasLtDestroy(d->blas.handle);
    sbp_cuda_library_close(&d->blas.library);
    free(d->blas.cache);
    free(d->blas.choices);
    d->blas = (cuda_blas){0};
}

/* ---- what is asked for ------------------------------------------------------------------------------ */

static int32_t blas_type(sbp_dtype dtype) {
    switch (dtype) {
    case SBP_F64:
        return CUBLAS_R_64F;
    case SBP_BF16:
        return CUBLAS_R_16BF;
    case SBP_F16:
        return CUBLAS_R_16F;
    default:
        return CUBLAS_R_32F;
    }
}

/* log2 of the bytes that all rows of a matrix begin at multiples of. */
static uint8_t alignment_of(cuda_address address, int64_t stride, int64_t unit) {
    uint64_t bits = address | (uint64_t)(stride * unit);
    uint8_t log = 0;
    while (log < MOST_ALIGNMENT && !(bits >> log & 1))
        log++;
    return log;
}

static cuda_address address_of(const cuda_device *d, const sbp_span *span) {
    return span->space == SBP_SPACE_COUNT ? 0 : d->memory + (uint64_t)span->offset;
}

/* A matrix of one row has no stride, but the library wants one. */
static int64_t stride_of(const sbp_span *span) {
    return span->stride < span->cols || span->rows <= 1 ? span->cols : span->stride;
}

blas_matmul cuda_blas_matmul_of(const cuda_device *dev, const sbp_dispatch *dispatch) {
    const sbp_command *command = dispatch->command;
    const sbp_span *s = dispatch->spans;
    const sbp_span *d = &s[SBP_GEMM_D], *a = &s[SBP_GEMM_A], *b = &s[SBP_GEMM_B], *c = &s[SBP_GEMM_C],
                   *bias = &s[SBP_GEMM_BIAS];
    bool has_c = c->space != SBP_SPACE_COUNT, has_bias = bias->space != SBP_SPACE_COUNT;
    const sbp_span *addend = has_c ? c : d;
    blas_matmul p = {.a = address_of(dev, a),
                     .b = address_of(dev, b),
                     .c = address_of(dev, addend),
                     .d = address_of(dev, d),
                     .bias = address_of(dev, bias),
                     .alpha = command->u.gemm.alpha,
                     .beta = has_c ? command->u.gemm.beta : 0};
    memset(&p.shape, 0, sizeof p.shape);
    p.shape.m = d->rows;
    p.shape.n = d->cols;
    p.shape.k = command->u.gemm.ta ? a->rows : a->cols;
    p.shape.a_stride = stride_of(a);
    p.shape.b_stride = stride_of(b);
    p.shape.c_stride = stride_of(addend);
    p.shape.d_stride = stride_of(d);
    p.shape.ta = command->u.gemm.ta;
    p.shape.tb = command->u.gemm.tb;
    p.shape.in = (uint8_t)a->dtype;
    p.shape.out = (uint8_t)d->dtype;
    p.shape.has_c = has_c;
    p.shape.has_bias = has_bias;
    p.shape.tf32 = dev->blas.tf32 && a->dtype == SBP_F32;
    const int64_t in = sbp_dtype_bytes(a->dtype), out = sbp_dtype_bytes(d->dtype);
    p.shape.alignment[0] = alignment_of(p.a, p.shape.a_stride, in);
    p.shape.alignment[1] = alignment_of(p.b, p.shape.b_stride, in);
    p.shape.alignment[2] = alignment_of(p.c, p.shape.c_stride, out);
    p.shape.alignment[3] = alignment_of(p.d, p.shape.d_stride, out);
    return p;
}

static sbp_status create_layout(cuda_device *d, sbp_dtype dtype, int64_t rows, int64_t cols, int64_t stride,
                                cublas_layout *out, sbp_diag *diag) {
    BLAS_TRY(d, diag,
             cublasLtMatrixLayoutCreate(out, blas_type(dtype), (uint64_t)rows, (uint64_t)cols, stride));
    return SBP_OK;
}

/* Row-major [rows, cols] is a matrix of `cols` rows here. */
static sbp_status create_layouts(cuda_device *d, const cuda_blas_shape *s, blas_description *out,
                                 sbp_diag *diag) {
    const sbp_dtype in = (sbp_dtype)s->in, result = (sbp_dtype)s->out;
    cublas_layout *l = out->layouts;
    SBP_TRY(
        create_layout(d, in, s->tb ? s->k : s->n, s->tb ? s->n : s->k, s->b_stride, &l[BLAS_A_FACTOR], diag));
    SBP_TRY(
        create_layout(d, in, s->ta ? s->m : s->k, s->ta ? s->k : s->m, s->a_stride, &l[BLAS_B_FACTOR], diag));
    SBP_TRY(create_layout(d, result, s->n, s->m, s->c_stride, &l[BLAS_ADDEND], diag));
    return create_layout(d, result, s->n, s->m, s->d_stride, &l[BLAS_RESULT], diag);
}

static sbp_status set_attribute(cuda_device *d, cublas_matmul of, int32_t attribute, const void *value,
                                size_t bytes, sbp_diag *diag) {
    BLAS_TRY(d, diag, cublasLtMatmulDescSetAttribute(of, attribute, value, bytes));
    return SBP_OK;
}

static sbp_status create_matmul(cuda_device *d, const blas_matmul *p, blas_description *out, sbp_diag *diag) {
    const cuda_blas_shape *s = &p->shape;
    const bool wide = s->out == SBP_F64;
    const int32_t first = s->tb ? CUBLAS_TRANSPOSED : CUBLAS_AS_IS,
                  second = s->ta ? CUBLAS_TRANSPOSED : CUBLAS_AS_IS;
    const uint32_t epilogue = CUBLAS_EPILOGUE_BIAS;
    BLAS_TRY(d, diag,
             cublasLtMatmulDescCreate(&out->matmul,
                                      wide      ? CUBLAS_SUM_64F
                                      : s->tf32 ? CUBLAS_SUM_32F_FAST_TF32
                                                : CUBLAS_SUM_32F,
                                      wide ? CUBLAS_R_64F : CUBLAS_R_32F));
    SBP_TRY(set_attribute(d, out->matmul, CUBLAS_MATMUL_TRANSA, &first, sizeof first, diag));
    SBP_TRY(set_attribute(d, out->matmul, CUBLAS_MATMUL_TRANSB, &second, sizeof second, diag));
    if (!s->has_bias)
        return SBP_OK;
    SBP_TRY(set_attribute(d, out->matmul, CUBLAS_MATMUL_EPILOGUE, &epilogue, sizeof epilogue, diag));
    return set_attribute(d, out->matmul, CUBLAS_MATMUL_BIAS_POINTER, &p->bias, sizeof p->bias, diag);
}

static sbp_status prefer(cuda_device *d, cublas_preference of, int32_t attribute, const void *value,
                         size_t bytes, sbp_diag *diag) {
    BLAS_TRY(d, diag, cublasLtMatmulPreferenceSetAttribute(of, attribute, value, bytes));
    return SBP_OK;
}

static sbp_status create_preference(cuda_device *d, const cuda_blas_shape *s, cublas_preference *out,
                                    sbp_diag *diag) {
    static const int32_t attributes[] = {CUBLAS_PREFER_ALIGNMENT_B, CUBLAS_PREFER_ALIGNMENT_A,
                                         CUBLAS_PREFER_ALIGNMENT_C, CUBLAS_PREFER_ALIGNMENT_D};
    const uint64_t workspace = SBP_CUDA_WORKSPACE_BYTES;
    const uint32_t schemes = CUBLAS_REDUCTION_NONE;
    BLAS_TRY(d, diag, cublasLtMatmulPreferenceCreate(out));
    SBP_TRY(prefer(d, *out, CUBLAS_PREFER_WORKSPACE_BYTES, &workspace, sizeof workspace, diag));
    SBP_TRY(prefer(d, *out, CUBLAS_PREFER_REDUCTION_SCHEME_MASK, &schemes, sizeof schemes, diag));
    for (int i = 0; i < SBP_COUNT(attributes); i++) {
        const uint32_t bytes = 1u << s->alignment[i];
        SBP_TRY(prefer(d, *out, attributes[i], &bytes, sizeof bytes, diag));
    }
    return SBP_OK;
}

void cuda_blas_description_destroy(cuda_device *d, blas_description *x) {
    const cublas_calls *calls = &d->blas.calls;
    if (x->preference)
        (void)calls->cublasLtMatmulPreferenceDestroy(x->preference);
    for (int i = 0; i < BLAS_LAYOUTS; i++)
        if (x->layouts[i])
            (void)calls->cublasLtMatrixLayoutDestroy(x->layouts[i]);
    if (x->matmul)
        (void)calls->cublasLtMatmulDescDestroy(x->matmul);
}

sbp_status cuda_blas_describe(cuda_device *d, const blas_matmul *p, blas_description *out, sbp_diag *diag) {
    SBP_TRY(create_matmul(d, p, out, diag));
    return create_layouts(d, &p->shape, out, diag);
}

/* ---- algorithms ------------------------------------------------------------------------------------- */

sbp_status cuda_blas_propose(cuda_device *d, const blas_matmul *p, blas_description *x, int32_t most,
                             cublas_choice *out, int32_t *count, sbp_diag *diag) {
    int32_t found = 0;
    *count = 0;
    memset(out, 0, (size_t)most * sizeof *out);
    SBP_TRY(create_preference(d, &p->shape, &x->preference, diag));
    cublas_status status = d->blas.calls.cublasLtMatmulAlgoGetHeuristic(
        d->blas.handle, x->matmul, x->layouts[BLAS_A_FACTOR], x->layouts[BLAS_B_FACTOR],
        x->layouts[BLAS_ADDEND], x->layouts[BLAS_RESULT], x->preference, most, out, &found);
    if (status != CUBLAS_OK && status != CUBLAS_NOT_SUPPORTED)
        return cuda_blas_fail(d, status, "cublasLtMatmulAlgoGetHeuristic", diag);
    for (int32_t i = 0; status == CUBLAS_OK && i < found && i < most; i++)
        if (out[i].state == CUBLAS_OK && out[i].workspace_bytes <= SBP_CUDA_WORKSPACE_BYTES)
            out[(*count)++] = out[i];
    return SBP_OK;
}

const cuda_blas_choice *cuda_blas_find_choice(const cuda_blas *blas, const cuda_blas_shape *shape) {
    for (int32_t i = 0; i < blas->choice_count; i++)
        if (memcmp(&blas->choices[i].shape, shape, sizeof *shape) == 0)
            return &blas->choices[i];
    return NULL;
}

sbp_status cuda_blas_add_choice(cuda_device *d, const cuda_blas_choice *choice, sbp_diag *diag) {
    cuda_blas *blas = &d->blas;
    if (blas->choice_count == blas->choice_capacity) {
        int32_t capacity = blas->choice_capacity > 0 ? 2 * blas->choice_capacity : 64;
        cuda_blas_choice *more = sbp_realloc(blas->choices, (size_t)capacity * sizeof *more);
        if (!more)
            return sbp_fail(diag, SBP_MACHINE, "out of memory for the settings of cuBLASLt");
        blas->choices = more;
        blas->choice_capacity = capacity;
    }
    blas->choices[blas->choice_count++] = *choice;
    return SBP_OK;
}

/* What was measured; *out is NULL where nothing was, or the library does not take it. */
static sbp_status measured_choice(cuda_device *d, const blas_matmul *p, const blas_description *x,
                                  const cuda_blas_choice **out, sbp_diag *diag) {
    cublas_choice result;
    *out = NULL;
    const cuda_blas_choice *found = cuda_blas_find_choice(&d->blas, &p->shape);
    if (!found)
        return SBP_OK;
    memset(&result, 0, sizeof result);
    cublas_status status = d->blas.calls.cublasLtMatmulAlgoCheck(
        d->blas.handle, x->matmul, x->layouts[BLAS_A_FACTOR], x->layouts[BLAS_B_FACTOR],
        x->layouts[BLAS_ADDEND], x->layouts[BLAS_RESULT], &found->algorithm, &result);
    if (status != CUBLAS_OK && status != CUBLAS_NOT_SUPPORTED && status != CUBLAS_INVALID_VALUE &&
        status != CUBLAS_ARCH_MISMATCH)
        return cuda_blas_fail(d, status, "cublasLtMatmulAlgoCheck", diag);
    if (status == CUBLAS_OK && result.workspace_bytes <= SBP_CUDA_WORKSPACE_BYTES)
        *out = found;
    else
        sbp_warn(diag,
                 "cuda: cuBLASLt does not take the algorithm that was chosen for the matmul %" PRId64
                 " x %" PRId64 " x %" PRId64 " (%d): it takes its own, sums round differently",
                 p->shape.m, p->shape.n, p->shape.k, (int)status);
    return SBP_OK;
}

/* The place of a shape in the cache; one that is free when it is not in it. */
static cuda_blas_choice *find_entry(cuda_blas *blas, const cuda_blas_shape *shape) {
    uint64_t at = sbp_hash_bytes(shape, sizeof *shape, 0);
    if (blas->cached > CUDA_BLAS_CACHE / 2) { /* shapes of tails come and go */
        memset(blas->cache, 0, CUDA_BLAS_CACHE * sizeof *blas->cache);
        blas->cached = 0;
    }
    while (blas->cache[at % CUDA_BLAS_CACHE].used &&
           memcmp(&blas->cache[at % CUDA_BLAS_CACHE].shape, shape, sizeof *shape) != 0)
        at++;
    return &blas->cache[at % CUDA_BLAS_CACHE];
}

/* What was measured, else the library's first proposal; *out is NULL when it has no algorithm for this
 * matmul. */
static sbp_status choose_algorithm(cuda_device *d, const blas_matmul *p, blas_description *x,
                                   const cuda_blas_choice **out, sbp_diag *diag) {
    cuda_blas_choice *entry = find_entry(&d->blas, &p->shape);
    const cuda_blas_choice *measured;
    cublas_choice first;
    int32_t found;
    *out = entry;
    if (entry->used)
        return SBP_OK;
    *out = NULL;
    SBP_TRY(measured_choice(d, p, x, &measured, diag));
    if (measured) {
        *entry = *measured;
    } else {
        SBP_TRY(cuda_blas_propose(d, p, x, 1, &first, &found, diag));
        if (found < 1)
            return SBP_OK;
        *entry = (cuda_blas_choice){
            .shape = p->shape, .algorithm = first.algorithm, .workspace_bytes = first.workspace_bytes};
    }
    entry->used = true;
    d->blas.cached++;
    *out = entry;
    return SBP_OK;
}

sbp_status cuda_blas_run(cuda_device *d, const blas_matmul *p, const blas_description *x,
                         const cublas_algorithm *algorithm, sbp_diag *diag) {
    const float narrow[2] = {(float)p->alpha, (float)p->beta};
    const double wide[2] = {p->alpha, p->beta};
    const bool is_wide = p->shape.out == SBP_F64;
    BLAS_TRY(d, diag,
             cublasLtMatmul(d->blas.handle, x->matmul, is_wide ? (const void *)&wide[0] : &narrow[0], p->b,
                            x->layouts[BLAS_A_FACTOR], p->a, x->layouts[BLAS_B_FACTOR],
                            is_wide ? (const void *)&wide[1] : &narrow[1], p->c, x->layouts[BLAS_ADDEND],
                            p->d, x->layouts[BLAS_RESULT], algorithm, (void *)(uintptr_t)d->workspace,
                            SBP_CUDA_WORKSPACE_BYTES, d->streams[CUDA_COMPUTE]));
    return SBP_OK;
}

/* Once: what follows is right, and many times slower. */
static void note_declined(cuda_device *d, const cuda_blas_shape *s, sbp_diag *diag) {
    if (!d->blas.declined)
        sbp_warn(diag,
                 "cuda: cuBLASLt has no algorithm for a matmul of [%" PRId64 ", %" PRId64 "] by [%" PRId64
                 ", %" PRId64 "] in %s: this program's own kernel computes it, which is much slower",
                 s->m, s->k, s->k, s->n, sbp_dtype_name((sbp_dtype)s->in));
    d->blas.declined = true;
}

static sbp_status multiply(cuda_device *d, const blas_matmul *p, blas_description *x, bool *done,
                           sbp_diag *diag) {
    const cuda_blas_choice *choice;
    SBP_TRY(cuda_blas_describe(d, p, x, diag));
    SBP_TRY(choose_algorithm(d, p, x, &choice, diag));
    *done = choice != NULL;
    if (!choice)
        note_declined(d, &p->shape, diag);
    return choice ? cuda_blas_run(d, p, x, &choice->algorithm, diag) : SBP_OK;
}

bool cuda_blas_takes(const cuda_device *d, const sbp_dispatch *dispatch) {
    sbp_dtype dtypes[SBP_MAX_COMMAND_OPERANDS];
    sbp_gpu_dispatch_dtypes(dispatch, dtypes);
    return d->machine.blas && sbp_cuda_blas_has(dtypes);
}

sbp_status cuda_blas_matmul(cuda_device *d, const sbp_dispatch *dispatch, bool *done, sbp_diag *diag) {
    blas_matmul p = cuda_blas_matmul_of(d, dispatch);
    blas_description x = {0};
    *done = false;
    if (p.shape.k == 0) /* what the library makes of a sum without terms is not said */
        return SBP_OK;
    *done = true;
    if (p.shape.m == 0 || p.shape.n == 0)
        return SBP_OK;
    sbp_status status = multiply(d, &p, &x, done, diag);
    cuda_blas_description_destroy(d, &x);
    return status;
}
