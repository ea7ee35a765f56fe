/* test_rows_update.c: the end of a step on the PTX machine: optimizers and conversions of every way to keep
 * weights and states have the bits that the CPU gives them, and touch each sector of memory once. So they run
 * at the memory's pace as far as that can be told without a GPU. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/gpu/row.h"
#include "tests/common/compile_model.h"
#include "tests/cuda/rows/row_case.h"

enum { ROWS = 5, WARP = 32, MOST_KERNELS = 64 };

static bool can_compile;

static int look(void **state) {
    (void)state;
    can_compile = kernels_can_compile();
    return 0;
}

typedef struct format {
    const char *name;
    sbp_optimizer optimizer;
    sbp_dtype compute, states;
    bool bf16_weights, master, stochastic, step;
} format;

static const format formats[] = {
    {"fp32", SBP_OPTIMIZER_ADAMW, SBP_F32, SBP_F32, .step = true},
    {"fp32, states bf16", SBP_OPTIMIZER_ADAMW, SBP_F32, SBP_BF16, .step = false},
    {"fp32, states int8", SBP_OPTIMIZER_ADAMW, SBP_F32, SBP_D8, .step = false},
    {"bf16 + low halves", SBP_OPTIMIZER_ADAMW, SBP_BF16, SBP_F32, .bf16_weights = true, .master = true},
    {"bf16 + low halves, states int8", SBP_OPTIMIZER_ADAMW, SBP_BF16, SBP_D8, .bf16_weights = true,
     .master = true, .step = true},
    {"bf16 at random", SBP_OPTIMIZER_ADAMW, SBP_BF16, SBP_BF16, .bf16_weights = true, .stochastic = true},
    {"bf16 at random, states int8", SBP_OPTIMIZER_ADAMW, SBP_BF16, SBP_D8, .bf16_weights = true,
     .stochastic = true, .step = true},
    {"bf16 to nearest", SBP_OPTIMIZER_ADAMW, SBP_BF16, SBP_F32, .bf16_weights = true},
    {"sgd with momentum, bf16 at random", SBP_OPTIMIZER_SGD_MOMENTUM, SBP_BF16, SBP_F32, .bf16_weights = true,
     .stochastic = true},
    {"lion, bf16 + low halves", SBP_OPTIMIZER_LION, SBP_BF16, SBP_F32, .bf16_weights = true, .master = true},
};

/* Whether a kernel is that of a rule, not of a layer. */
static bool is_of_update(const sbp_rowkernel *kernel) {
    static const char *const others[] = {"layer", "head.", "objective"};
    for (int i = 0; i < SBP_COUNT(others); i++)
        if (strncmp(kernel->name, others[i], strlen(others[i])) == 0)
            return false;
    return true;
}

/* Sectors of what lies in rows of numbers; and the most that single numbers, which each warp reads or writes
 * for itself, may add. */
static int64_t ideal_of(const row_case *c, int64_t *single) {
    const sbp_rowkernel *k = c->kernel;
    sbp_gpu_row_shape shape;
    int64_t sum = 0;
    assert_true(sbp_gpu_row_shape_of(k, true, &shape));
    int64_t warps = sbp_gpu_row_groups(k, &shape, c->rows) * shape.threads / WARP;
    *single = 0;
    for (int32_t i = 0; i < k->instr_count; i++) {
        const sbp_rk_instr *instr = &k->instrs[i];
        if (instr->op != SBP_RK_LOAD && instr->op != SBP_RK_STORE)
            continue;
        const sbp_rk_operand *o = &k->operands[instr->index];
        int64_t bytes = instr->length * sbp_dtype_bytes(o->dtype);
        if (instr->vary & SBP_VARY_ELEM)
            sum += (instr->vary & SBP_VARY_ROW ? c->rows : 1) * k->heads * sbp_ceil_div(bytes, 32);
        else
            *single += warps;
    }
    return sum;
}

static void run_kernel(const format *f, const sbp_program *program, int32_t number, const kernel_set *set) {
    testing t = testing_open(1);
    row_case c = {
        .kernel = program->kernels[number], .number = number, .rows = ROWS, .seed = 3 + (uint64_t)number};
    const sbp_ptx_options options = {.seed = 1, .counts = sbp_ptx_counts_create()};
    int64_t sectors = 0, least = 0, single;
    bool vector = false;
    for (int i = 0; i < SBP_ROWKERNEL_MAX_SCALARS; i++)
        c.scalars[i] = 0.25;
    row_image in = row_image_make(&t, &c), found = row_run_ptx(&t, &c, &in, set, &options, &vector);
    row_image cpu = row_run_cpu(&t, &c, &in, program);
    row_same_bits(&c, &cpu, &found, f->name);
    row_add_sectors(options.counts, false, &sectors, &least);
    sbp_ptx_counts_destroy(options.counts);
    int64_t ideal = ideal_of(&c, &single);
    printf("  %-32s %-24s n %5lld: %lld sectors, %lld of rows\n", f->name, c.kernel->name,
           (long long)c.kernel->n, (long long)sectors, (long long)ideal);
    if (!vector || sectors != least || sectors < ideal || sectors > ideal + single)
        fail_msg("%s, kernel '%s': %lld sectors, the least of its requests is %lld, of its operands %lld and "
                 "%lld for single numbers",
                 f->name, c.kernel->name, (long long)sectors, (long long)least, (long long)ideal,
                 (long long)single);
    testing_close(&t);
}

static void updates(void **state) {
    (void)state;
    int kernels = 0;
    for (int i = 0; can_compile && i < SBP_COUNT(formats); i++) {
        const format *f = &formats[i];
        testing t = testing_open(1);
        compile_request request = compile_request_for("tests/data/configs/Qwen3-0.6B.json", 64, 16, 8);
        sbp_program *model, *program = sbp_program_create(t.arena, "update");
        request.compute = f->compute;
        request.bf16_weights = f->bf16_weights;
        request.options.optimizer = f->optimizer;
        request.options.state_dtype = f->states;
        request.options.master = f->master;
        request.options.stochastic = f->stochastic;
        request.options.step = f->step;
        testing_check(&t, compile_model(t.arena, t.diag, &request, &model));
        program->target = "cuda:sm_80";
        for (int32_t k = 0; k < model->kernel_count; k++)
            if (is_of_update(model->kernels[k]) && model->kernels[k]->n > 1)
                (void)row_add_kernel(&t, program, model->kernels[k]);
        assert_true(program->kernel_count > 0 && program->kernel_count < MOST_KERNELS);
        kernel_set set = kernels_compile(&t, program, "sm_80");
        for (int32_t k = 0; k < program->kernel_count; k++, kernels++)
            run_kernel(f, program, k, &set);
        kernels_free(&set);
        testing_close(&t);
    }
    printf("  %d kernels\n", kernels);
    if (can_compile)
        assert_true(kernels > 2 * SBP_COUNT(formats));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(updates)};
    return cmocka_run_group_tests_name("cuda updates", tests, look, NULL);
}
