/* test_rows_run: row kernels of CUDA, both variants, executed by the PTX machine: random ones and those of
 * models against the reference interpreter, and, where no order of a sum is open, the CPU device's bits. */
#include "tests/cuda/rows/row_case.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/common/compile_model.h"

static bool can_compile;

static int look(void **state) {
    (void)state;
    can_compile = kernels_can_compile();
    return 0;
}

enum { MOST_CASES = 400 };

/* Kernels in one program, so that they are compiled at once. */
typedef struct batch {
    testing t;
    sbp_program *program;
    row_case cases[MOST_CASES];
    int32_t count, vectors, plain, same_bits;
    int64_t sectors, least;
    bool small_rows; /* which may begin within a sector */
} batch;

static batch *batch_open(void) {
    testing t = testing_open(1);
    batch *b = SBP_NEW(t.arena, batch);
    b->t = t;
    b->program = sbp_program_create(t.arena, "rows");
    b->program->target = "cuda:sm_80";
    return b;
}

/* Whether the CPU gives the same bits: it adds over elements in another order. */
static bool has_order(const sbp_rowkernel *kernel) {
    for (int32_t i = 0; i < kernel->instr_count; i++)
        if (sbp_rk_is_reduction(&kernel->instrs[i]))
            return false;
    return true;
}

/* Aligned and not. */
static void add_cases(batch *b, int32_t number, int64_t rows, uint64_t seed, double scalar,
                      const int32_t *alias) {
    for (int odd = 0; odd < 2; odd++) {
        assert_true(b->count < MOST_CASES);
        row_case *c = &b->cases[b->count++];
        *c = (row_case){.kernel = b->program->kernels[number],
                        .number = number,
                        .rows = rows,
                        .row0 = (int64_t)(seed % 5) * 1000003,
                        .alias = alias,
                        .odd = odd == 1,
                        .seed = seed};
        c->scalars[0] = c->kernel->scalar_count > 1 ? (double)(seed % (UINT64_C(1) << 50)) : scalar;
        for (int i = 1; i < SBP_ROWKERNEL_MAX_SCALARS; i++)
            c->scalars[i] = scalar;
    }
}

static void run_all(batch *b) {
    kernel_set set = kernels_compile(&b->t, b->program, "sm_80");
    for (int32_t i = 0; i < b->count; i++) {
        const row_case *c = &b->cases[i];
        testing t = testing_open(1);
        char name[64];
        bool vector = false;
        const sbp_ptx_options options = {.seed = 1 + (uint64_t)i, .counts = sbp_ptx_counts_create()};
        snprintf(name, sizeof name, "case %d, %s", (int)i, c->odd ? "odd" : "aligned");
        row_image in = row_image_make(&t, c);
        row_image expected = row_run_reference(&t, c, &in);
        row_image found = row_run_ptx(&t, c, &in, &set, &options, &vector);
        row_compare(c, &expected, &found, name);
        if (has_order(c->kernel)) {
            row_image cpu = row_run_cpu(&t, c, &in, b->program);
            row_same_bits(c, &cpu, &found, name);
            b->same_bits++;
        }
        row_add_sectors(options.counts, true, &b->sectors, &b->least);
        sbp_ptx_counts_destroy(options.counts);
        b->vectors += vector;
        b->plain += !vector;
        testing_close(&t);
    }
    printf("  %d kernels: %d runs plain, %d by vectors; %d with the bits of the CPU\n",
           (int)b->program->kernel_count, (int)b->plain, (int)b->vectors, (int)b->same_bits);
    printf("  vectors touched %lld sectors, the least is %lld\n", (long long)b->sectors, (long long)b->least);
    if (!b->small_rows)
        assert_int_equal(b->sectors, b->least);
    kernels_free(&set);
    testing t = b->t;
    testing_close(&t);
}

/* ---- random kernels --------------------------------------------------------------------------------- */

static void random_kernels(void **state) {
    (void)state;
    static const int64_t rows[] = {1, 7, 63, 64, 65, 130},
                         lengths[] = {1, 6, 8, 64, 96, 256, 258, 600, 1024, 3072};
    if (!can_compile)
        return;
    batch *b = batch_open();
    b->small_rows = true;
    sbp_rng rng = {7};
    for (int i = 0; i < testing_sweep(12, 180); i++) {
        sbp_random_kernel_options options = {.compute = sbp_rng_below(&rng, 3) ? SBP_F32 : SBP_F64,
                                             .heads = sbp_rng_below(&rng, 3) ? 1 : 1 + sbp_rng_below(&rng, 5),
                                             .n = lengths[sbp_rng_below(&rng, SBP_COUNT(lengths))],
                                             .smooth = true,
                                             .rounds = i % 4 == 0};
        sbp_rowkernel *kernel = sbp_random_kernel(&rng, b->t.arena, &options);
        kernel->name = sbp_arena_printf(b->t.arena, "random %d", i);
        add_cases(b, row_add_kernel(&b->t, b->program, kernel), rows[sbp_rng_below(&rng, SBP_COUNT(rows))],
                  sbp_rng_next(&rng), 0.5, NULL);
    }
    run_all(b);
}

/* ---- kernels of models ------------------------------------------------------------------------------ */

/* Outs in place of ins wherever that is allowed; NULL when nowhere. */
static const int32_t *in_place(sbp_arena *arena, const sbp_rowkernel *k) {
    int32_t *alias = SBP_NEW_ARRAY(arena, int32_t, SBP_ROWKERNEL_MAX_OPERANDS);
    bool taken[SBP_ROWKERNEL_MAX_OPERANDS] = {false}, any = false;
    for (int32_t o = 0; o < k->operand_count; o++) {
        alias[o] = -1;
        for (int32_t i = 0; i < o && alias[o] < 0; i++)
            if (!taken[i] && k->operands[i].dtype == k->operands[o].dtype &&
                sbp_rowkernel_may_alias(k, o, i)) {
                alias[o] = i;
                taken[i] = any = true;
            }
    }
    return any ? alias : NULL;
}

static void add_model(batch *b, const char *path, sbp_dtype compute, sbp_dtype states) {
    compile_request request = compile_request_for(path, 64, 16, 8);
    sbp_program *program;
    request.compute = compute;
    request.options.step = true;
    request.options.state_dtype = states;
    if (compute == SBP_F64)
        request.options.grad_dtype = SBP_F64;
    testing_check(&b->t, compile_model(b->t.arena, b->t.diag, &request, &program));
    for (int32_t k = 0; k < program->kernel_count; k++) {
        int32_t number = row_add_kernel(&b->t, b->program, program->kernels[k]);
        int64_t rows = program->kernels[k]->n > 4096 ? 2 : 70;
        const int32_t *alias = in_place(b->t.arena, program->kernels[k]);
        add_cases(b, number, rows, (uint64_t)k + 1, 0.25, NULL);
        if (alias)
            add_cases(b, number, rows, (uint64_t)k + 100, 0.25, alias);
        if (program->kernels[k]->n > 4096) {
            add_cases(b, number, 6, (uint64_t)k + 200, 0.25, NULL);
            b->cases[b->count - 1].special = b->cases[b->count - 2].special = true;
        }
    }
}

static void model_kernels(void **state) {
    (void)state;
    if (!can_compile)
        return;
    static const struct {
        const char *path;
        sbp_dtype compute, states;
    } models[] = {{"tests/data/configs/Qwen3-0.6B.json", SBP_BF16, SBP_F32},
                  {"tests/golden/gemma3_softcap/model", SBP_F64, SBP_F64},
                  {"tests/golden/llama_plain/model", SBP_BF16, SBP_D8},
                  {"tests/golden/llama_plain/model", SBP_F32, SBP_BF16},
                  {"tests/data/configs/SmolLM2-135M.json", SBP_F32, SBP_F32}};
    for (int i = 0; i < testing_sweep(3, SBP_COUNT(models)); i++) {
        batch *b = batch_open();
        b->small_rows = strstr(models[i].path, "golden") != NULL;
        add_model(b, models[i].path, models[i].compute, models[i].states);
        run_all(b);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_kernels), cmocka_unit_test(model_kernels)};
    return cmocka_run_group_tests_name("cuda rows", tests, look, NULL);
}
