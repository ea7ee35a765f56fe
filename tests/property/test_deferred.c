/* test_deferred.c: commands that are put off (backends/cpu/deferred.h) change no bit: random sequences of
 * them and of what uses, changes and replaces their operands, beside the same commands each run at once; and
 * products and gathers beside sums in double of what the host decodes. */
#include "backends/cpu/deferred.h"
#include "backends/cpu/rows.h"
#include "tests/common/testing.h"
#include "tests/tolerance.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PARAMS = 3, SLOTS = 2, MANY = 20, EXPERTS = 3, CHOSEN = 2, STEPS = 60 };

/* The same memory twice: of commands put off, and of those that are not. */
typedef struct world {
    cpu_view parts[PARAMS][SBP_MAX_FORMAT_PARTS];
    cpu_view slots[SLOTS]; /* [n, k], or of experts [n / EXPERTS, k] each */
    cpu_view x, y, index, picked, pairs, bounds;
} world;

typedef struct fixture {
    testing t;
    cpu_core core;
    cpu_deferred deferred;
    world world[2];
    const sbp_format_decoder *decoder;
    float *decoded;       /* [n * k] */
    double *truth[SLOTS]; /* [n * k]: what the slots hold */
    const sbp_format_info *format;
    cpu_row_plan *plan;
    sbp_dtype dtype;
    int64_t n, k;
    sbp_command row, gemm, experts, gather, fill;
} fixture;

static cpu_view matrix(fixture *f, sbp_dtype dtype, int64_t rows, int64_t cols) {
    cpu_view v = {.dtype = dtype, .rows = rows, .cols = cols, .stride = cols};
    v.data = sbp_arena_alloc(f->t.arena, (size_t)(rows * cols * sbp_dtype_bytes(dtype)) + 64);
    v.data += -(uintptr_t)v.data % 64;
    return v;
}

static void fill_part(fixture *f, int param, int32_t part) {
    cpu_view *v = &f->world[0].parts[param][part];
    const bool exponents = f->format == sbp_format_of(SBP_FORMAT_MXFP4) && f->format->parts[part].count == 1;
    for (int64_t i = 0; i < v->rows * v->cols; i++)
        sbp_element_set(v->data, v->dtype, i,
                        exponents            ? 119 + (double)sbp_rng_below(&f->t.rng, 9) /* 2^-8 .. 1 */
                        : v->dtype == SBP_I8 ? (double)sbp_rng_below(&f->t.rng, 256) - 128
                                             : sbp_rng_unit(&f->t.rng) / 100);
    memcpy(f->world[1].parts[param][part].data, v->data,
           (size_t)(v->rows * v->cols * sbp_dtype_bytes(v->dtype)));
}

static void open_worlds(fixture *f) {
    int64_t blocks = f->n * f->k / f->format->block;
    for (int w = 0; w < 2; w++) {
        world *x = &f->world[w];
        for (int p = 0; p < PARAMS; p++)
            for (int32_t k = 0; k < f->format->part_count; k++)
                x->parts[p][k] = matrix(f, f->format->parts[k].dtype, blocks, f->format->parts[k].count);
        for (int s = 0; s < SLOTS; s++)
            x->slots[s] = matrix(f, f->dtype, f->n, f->k);
        x->x = matrix(f, f->dtype, MANY, f->k);
        x->y = matrix(f, SBP_F32, MANY, f->n);
        x->index = matrix(f, SBP_I32, MANY, 1);
        x->picked = matrix(f, f->dtype, MANY, f->k);
        x->pairs = matrix(f, SBP_I32, MANY, CHOSEN);
        x->bounds = matrix(f, SBP_I32, 1, EXPERTS + 1);
    }
    for (int p = 0; p < PARAMS; p++)
        for (int32_t k = 0; k < f->format->part_count; k++)
            fill_part(f, p, k);
    for (int64_t i = 0; i < MANY * f->k; i++) {
        sbp_element_set(f->world[0].x.data, f->dtype, i, sbp_rng_unit(&f->t.rng));
        sbp_element_set(f->world[1].x.data, f->dtype, i, sbp_element_get(f->world[0].x.data, f->dtype, i));
    }
}

static void submit(fixture *f, int w, cpu_command *command) {
    if (w == 0 && cpu_defer(&f->core, &f->deferred, command))
        return;
    if (w == 0)
        cpu_settle(&f->core, &f->deferred, command);
    cpu_core_run(&f->core, &f->core.lane, command);
}

/* What the host makes of a parameter, as the type of slots has it. */
static void decode_truth(fixture *f, int param, int slot) {
    const void *parts[SBP_MAX_FORMAT_PARTS];
    for (int32_t k = 0; k < f->format->part_count; k++)
        parts[k] = f->world[1].parts[param][k].data;
    sbp_format_decode(f->decoder, parts, f->n * f->k / f->format->block, f->decoded);
    for (int64_t i = 0; i < f->n * f->k; i++) {
        char stored[8];
        sbp_element_set(stored, f->dtype, 0, f->decoded[i]);
        f->truth[slot][i] = sbp_element_get(stored, f->dtype, 0);
    }
}

/* [rows, cols] of a view beside as many numbers, by their norms. */
static void near_truth(const fixture *f, const cpu_view *v, int64_t rows, int64_t cols, const double *truth,
                       const char *what) {
    double wrong = 0, norm = 0;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++) {
            double x = sbp_element_get(v->data, v->dtype, r * v->stride + c), y = truth[r * cols + c];
            wrong += (x - y) * (x - y);
            norm += y * y;
        }
    if (!(sqrt(wrong) <= (f->dtype == SBP_BF16 ? SBP_TOLERANCE_BF16 : SBP_TOLERANCE_F32) * sqrt(norm)))
        fail_msg("%s: %s of %s in %s, %lld x %lld: off by %g of %g", f->core.kernels->name, what,
                 f->format->name, sbp_dtype_name(f->dtype), (long long)f->n, (long long)f->k, sqrt(wrong),
                 sqrt(norm));
}

static void decode_into(fixture *f, int param, int slot) {
    decode_truth(f, param, slot);
    for (int w = 0; w < 2; w++) {
        world *x = &f->world[w];
        cpu_command c = {.command = &f->row, .plan = f->plan, .view_count = f->format->part_count + 1};
        c.rows = f->n * f->k / f->format->block;
        for (int32_t k = 0; k < f->format->part_count; k++)
            c.views[k] = x->parts[param][k];
        c.views[f->format->part_count] = x->slots[slot];
        c.views[f->format->part_count].rows = c.rows;
        c.views[f->format->part_count].cols = c.views[f->format->part_count].stride = f->format->block;
        submit(f, w, &c);
    }
}

static void same(const fixture *f, const cpu_view *a, const cpu_view *b, int64_t rows, const char *what) {
    if (memcmp(a->data, b->data, (size_t)(rows * a->stride * sbp_dtype_bytes(a->dtype))) != 0)
        fail_msg("%s: %s of %s in %s, %lld x %lld, %lld rows", f->core.kernels->name, what, f->format->name,
                 sbp_dtype_name(f->dtype), (long long)f->n, (long long)f->k, (long long)rows);
}

/* Some rows of b only, where `cut`. */
static void multiply(fixture *f, int slot, int64_t rows, bool cut) {
    int64_t first = cut ? f->n / 3 : 0, columns = cut ? f->n / 2 : f->n;
    for (int w = 0; w < 2; w++) {
        world *x = &f->world[w];
        cpu_command c = {.command = &f->gemm, .view_count = 5};
        c.views[SBP_GEMM_D] = x->y;
        c.views[SBP_GEMM_A] = x->x;
        c.views[SBP_GEMM_B] = x->slots[slot];
        c.views[SBP_GEMM_B].data += first * f->k * sbp_dtype_bytes(f->dtype);
        c.views[SBP_GEMM_D].rows = c.views[SBP_GEMM_A].rows = rows;
        c.views[SBP_GEMM_D].cols = c.views[SBP_GEMM_B].rows = columns;
        submit(f, w, &c);
    }
    same(f, &f->world[0].y, &f->world[1].y, rows, "a product");
    double *sums = sbp_arena_alloc(f->t.arena, (size_t)(rows * columns) * sizeof *sums);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < columns; c++) {
            sums[r * columns + c] = 0;
            for (int64_t i = 0; i < f->k; i++)
                sums[r * columns + c] += sbp_element_get(f->world[0].x.data, f->dtype, r * f->k + i) *
                                         f->truth[slot][(first + c) * f->k + i];
        }
    near_truth(f, &f->world[0].y, rows, columns, sums, "a product");
}

static void multiply_experts(fixture *f, int slot, int64_t rows) {
    int64_t columns = f->n / EXPERTS / CHOSEN * CHOSEN, first[EXPERTS + 1] = {0, rows * CHOSEN / 2};
    first[2] = first[1] + rows * CHOSEN / 4;
    first[3] = rows * CHOSEN;
    for (int w = 0; w < 2; w++) {
        world *x = &f->world[w];
        cpu_command c = {.command = &f->experts, .view_count = 6};
        for (int e = 0; e <= EXPERTS; e++)
            sbp_element_set(x->bounds.data, SBP_I32, e, (double)first[e]);
        for (int64_t i = 0; i < rows * CHOSEN; i++)
            sbp_element_set(x->pairs.data, SBP_I32, i, (double)(rows * CHOSEN - 1 - i));
        c.views[SBP_EXPERT_GEMM_D] = x->y;
        c.views[SBP_EXPERT_GEMM_D].stride = c.views[SBP_EXPERT_GEMM_D].cols = columns / CHOSEN * CHOSEN;
        c.views[SBP_EXPERT_GEMM_A] = x->x;
        c.views[SBP_EXPERT_GEMM_B] = x->slots[slot];
        c.views[SBP_EXPERT_GEMM_B].rows = EXPERTS;
        c.views[SBP_EXPERT_GEMM_B].cols = columns / CHOSEN * f->k;
        c.views[SBP_EXPERT_GEMM_B].stride = columns / CHOSEN * f->k;
        c.views[SBP_EXPERT_GEMM_PAIRS] = x->pairs;
        c.views[SBP_EXPERT_GEMM_BOUNDS] = x->bounds;
        c.views[SBP_EXPERT_GEMM_D].rows = c.views[SBP_EXPERT_GEMM_A].rows = rows;
        c.views[SBP_EXPERT_GEMM_PAIRS].rows = rows;
        submit(f, w, &c);
    }
    same(f, &f->world[0].y, &f->world[1].y, rows, "a product of experts");
}

static void pick(fixture *f, int slot, int64_t rows) {
    for (int64_t i = 0; i < rows; i++) {
        int64_t row = sbp_rng_below(&f->t.rng, f->n);
        for (int w = 0; w < 2; w++)
            sbp_element_set(f->world[w].index.data, SBP_I32, i, (double)row);
    }
    for (int w = 0; w < 2; w++) {
        world *x = &f->world[w];
        cpu_command c = {.command = &f->gather, .view_count = 3};
        c.views[SBP_GATHER_DST] = x->picked;
        c.views[SBP_GATHER_TABLE] = x->slots[slot];
        c.views[SBP_GATHER_INDEX] = x->index;
        c.views[SBP_GATHER_DST].rows = c.views[SBP_GATHER_INDEX].rows = rows;
        submit(f, w, &c);
    }
    same(f, &f->world[0].picked, &f->world[1].picked, rows, "a gather");
    double *picked = sbp_arena_alloc(f->t.arena, (size_t)(rows * f->k) * sizeof *picked);
    for (int64_t i = 0; i < rows; i++)
        memcpy(picked + i * f->k,
               f->truth[slot] + (int64_t)sbp_element_get(f->world[0].index.data, SBP_I32, i) * f->k,
               (size_t)f->k * sizeof *picked);
    near_truth(f, &f->world[0].picked, rows, f->k, picked, "a gather");
}

/* A part of a parameter changes, by a write of the host. */
static void change(fixture *f, int param) {
    int32_t part = (int32_t)sbp_rng_below(&f->t.rng, f->format->part_count);
    const cpu_view *v = &f->world[0].parts[param][part];
    cpu_settle_bytes(&f->core, &f->deferred, v->data,
                     v->data + v->rows * v->cols * sbp_dtype_bytes(v->dtype));
    fill_part(f, param, part);
}

/* Half of a result is written over by a command that is not put off. */
static void clear(fixture *f, int slot) {
    memset(f->truth[slot], 0, (size_t)(f->n / 2 * f->k) * sizeof **f->truth);
    for (int w = 0; w < 2; w++) {
        cpu_command c = {.command = &f->fill, .view_count = 1};
        c.views[0] = f->world[w].slots[slot];
        c.views[0].rows = f->n / 2;
        submit(f, w, &c);
    }
}

static void step(fixture *f) {
    int slot = (int)sbp_rng_below(&f->t.rng, SLOTS), param = (int)sbp_rng_below(&f->t.rng, PARAMS);
    int64_t rows = 1 + sbp_rng_below(&f->t.rng, MANY);
    switch (sbp_rng_below(&f->t.rng, 10)) {
    case 0:
    case 1:
    case 2:
        decode_into(f, param, slot);
        break;
    case 3:
    case 4:
        multiply(f, slot, rows, false);
        break;
    case 5:
        multiply(f, slot, rows, true);
        break;
    case 6:
        multiply_experts(f, slot, sbp_rng_below(&f->t.rng, 2) ? 1 + rows % 8 : rows);
        break;
    case 7:
        pick(f, slot, rows);
        break;
    case 8:
        change(f, param);
        break;
    default:
        clear(f, slot);
    }
}

static void run(sbp_format format, sbp_dtype dtype, int64_t k) {
    fixture *f = sbp_malloc(sizeof *f);
    assert_non_null(f);
    *f = (fixture){.t = testing_open((uint64_t)(format * 10 + dtype)), .dtype = dtype, .n = 101, .k = k};
    f->format = sbp_format_of(format);
    f->row.kind = SBP_CMD_ROW;
    f->gemm.kind = SBP_CMD_GEMM;
    f->gemm.u.gemm.alpha = 1;
    f->gemm.u.gemm.tb = true;
    f->experts.kind = SBP_CMD_EXPERT_GEMM;
    f->experts.u.experts.tb = true;
    f->gather.kind = SBP_CMD_GATHER;
    f->fill.kind = SBP_CMD_FILL;
    testing_check(&f->t, cpu_core_create(&f->core, NULL, 2, f->t.diag));
    const sbp_rowkernel *kernel = sbp_format_kernel(f->t.arena, f->t.diag, format, dtype);
    assert_non_null(kernel);
    testing_check(&f->t, cpu_row_plan_create(kernel, f->t.diag, &f->plan));
    open_worlds(f);
    f->decoder = sbp_format_decoder_create(f->t.arena, f->t.diag, format);
    assert_non_null(f->decoder);
    f->decoded = sbp_arena_alloc(f->t.arena, (size_t)(f->n * f->k) * sizeof *f->decoded);
    for (int s = 0; s < SLOTS; s++)
        f->truth[s] = sbp_arena_alloc(f->t.arena, (size_t)(f->n * f->k) * sizeof **f->truth);
    for (int s = 0; s < SLOTS; s++)
        decode_into(f, s, s);
    for (int i = 0; i < STEPS; i++)
        step(f);
    for (int s = 0; s < SLOTS; s++) {
        cpu_settle_bytes(&f->core, &f->deferred, f->world[0].slots[s].data, f->world[0].slots[s].data + 1);
        same(f, &f->world[0].slots[s], &f->world[1].slots[s], f->n, "the numbers");
        near_truth(f, &f->world[0].slots[s], f->n, f->k, f->truth[s], "the numbers");
    }
    assert_int_equal(f->deferred.count, 0);
    cpu_row_plan_destroy(f->plan);
    cpu_core_destroy(&f->core);
    testing_close(&f->t);
    free(f);
}

static void run_all(const char *isa) {
    if (isa)
        setenv("SBP_CPU_ISA", isa, 1);
    for (int format = SBP_FORMAT_NONE + 1; format < SBP_FORMAT_COUNT; format++)
        for (int d = 0; d < 2; d++) {
            int64_t block = sbp_format_of((sbp_format)format)->block;
            run((sbp_format)format, d ? SBP_BF16 : SBP_F32, block * (format % 2 ? 3 : 1));
            if (!isa && (format == SBP_FORMAT_Q4_K || format == SBP_FORMAT_Q8_0)) /* in several blocks of k */
                run((sbp_format)format, d ? SBP_BF16 : SBP_F32, 2304);
        }
    unsetenv("SBP_CPU_ISA");
}

static void test_sequences(void **state) {
    (void)state;
    run_all(NULL);
    run_all("v3");
    run_all("base");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_sequences)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
