/* delta_count.c: what delta_rule takes of a GPU on CUDA, by execution of its PTX: no clock, no GPU. A
 * program, not a test:
 *
 *     bench_delta_count [--head-dim D] [--arch sm_80] [--variant mma|plain] [--backward no|yes]
 *
 * prints a JSON line: warp instructions of a block of 64 rows of a head, bf16, in the middle of a document
 * (what two blocks more take), mma.sync among them; as many as the matmuls of the block have without splits
 * and repetitions (`matmuls`: the first lines of kernels/delta/delta_mma.cu, delta_bwd_mma.cu,
 * delta_rows_mma.cu); and what follows for the clocks of a quarter of an SM, of which a product takes
 * `clocks` (tests/cuda/attention/test_attention_bounds.c has where from) and any instruction one:
 * `products_times` and `issue_times` as many as the matmuls alone. Backward all that is of the first step;
 * `others`: the instructions of the other steps, and `others_times` as many as their matmuls take. Latencies
 * and memory are not in it.
 */
#include "backends/cuda/target/target.h"
#include "tests/bench/bench.h"
#include "tests/common/dispatch_add.h"
#include "tests/ptx/ptx.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct count {
    double instructions, products, others;
} count;

typedef struct setting {
    int64_t head_dim;
    sbp_cuda_arch arch;
    int32_t variant; /* no better one */
    bool backward;
    sbp_diag *diag;
    const sbp_cuda_nvrtc *nvrtc;
} setting;

static void demand(const setting *s, bool good, const char *what) {
    if (good)
        return;
    fprintf(stderr, "bench_delta_count: %s\n%s", what, s->diag ? sbp_diag_text(s->diag, SBP_NOTE) : "");
    exit(SBP_MACHINE);
}

/* Numbers of about `middle`, in memory of the machine. */
static sbp_span numbers(const setting *s, sbp_ptx_memory *memory, sbp_gpu_operand *operand, sbp_dtype dtype,
                        int64_t rows, int64_t cols, double middle, double width) {
    int64_t bytes = rows * cols * sbp_dtype_bytes(dtype);
    char *data = malloc((size_t)bytes);
    demand(s, data, "no memory");
    for (int64_t i = 0; i < rows * cols; i++)
        sbp_element_set(data, dtype, i, middle + width * ((double)(i * 37 % 101) / 101 - 0.5));
    operand->address = sbp_ptx_memory_alloc(memory, (uint64_t)bytes);
    demand(s, operand->address && sbp_ptx_memory_write(memory, operand->address, data, (uint64_t)bytes),
           "no memory");
    free(data);
    return (sbp_span){
        .space = SBP_DEVICE, .dtype = dtype, .rows = rows, .cols = cols, .stride = cols, .first_row = 64};
}

/* The line of a class: "  mma      1234". */
static double class_of(const setting *s, const sbp_ptx_counts *counts, const char *name) {
    FILE *file = tmpfile();
    char line[256];
    unsigned long long found = 0;
    demand(s, file, "no temporary file");
    sbp_ptx_counts_print(counts, file);
    rewind(file);
    while (fgets(line, sizeof line, file))
        if (strncmp(line, "  ", 2) == 0 && strncmp(line + 2, name, strlen(name)) == 0 &&
            line[2 + strlen(name)] == ' ')
            sscanf(line + 2 + strlen(name), "%llu", &found);
    fclose(file);
    return (double)found;
}

/* Operands of a command whose buffers hold numbers of about `middle`. */
typedef struct operand {
    int32_t place;
    sbp_dtype dtype;
    bool of_rows;
    int64_t cols;
    double middle, width;
} operand;

static void launch(const setting *s, const sbp_dispatch *dispatch, const sbp_cuda_step *step,
                   sbp_gpu_args *args, sbp_ptx_memory *memory, sbp_ptx_counts *counts) {
    static sbp_ptx_report report;
    sbp_arena *arena = sbp_arena_create();
    sbp_program *program = sbp_program_create(arena, "count");
    sbp_dtype dtypes[SBP_MAX_COMMAND_OPERANDS];
    sbp_cuda_source source;
    sbp_cuda_object object;
    dispatch_add(arena, program, dispatch);
    sbp_gpu_dispatch_dtypes(dispatch, dtypes);
    demand(s,
           sbp_cuda_source_make(arena, s->diag, program, program->entries[0].body.nodes[0].u.command, dtypes,
                                &step->key, s->arch, &source) == SBP_OK &&
               sbp_cuda_nvrtc_compile(s->nvrtc, s->diag, &source, &object) == SBP_OK,
           "the kernel does not compile");
    const char *ptx = sbp_cuda_object_ptx(&object);
    sbp_ptx_module *module = sbp_ptx_module_load(memory, ptx, strlen(ptx), &report);
    demand(s, module, report.text);
    void *params[] = {args};
    const sbp_ptx_options options = {.seed = 1, .counts = counts};
    demand(s,
           sbp_ptx_launch(sbp_ptx_module_entry(module, "kernel"), step->grid, step->block, step->shared_bytes,
                          params, &options, &report) == SBP_PTX_OK,
           report.text);
    sbp_ptx_module_unload(module);
    free(object.data);
    sbp_arena_destroy(arena);
}

static count run(const setting *s, int64_t rows) {
    static const uint64_t nowhere[SBP_SPACE_COUNT] = {0};
    const sbp_cuda_machine machine = {.arch = s->arch, .processors = 1, .variant = s->variant};
    int64_t d = s->head_dim;
    const operand forward[] = {{SBP_DELTA_RULE_O, SBP_BF16, true, d, 0, 0},
                               {SBP_DELTA_RULE_NEXT, SBP_F32, false, d * d, 0, 0},
                               {SBP_DELTA_RULE_Q, SBP_BF16, true, d, 0, 0.3},
                               {SBP_DELTA_RULE_K, SBP_BF16, true, d, 0, 0.3},
                               {SBP_DELTA_RULE_V, SBP_BF16, true, d, 0, 1},
                               {SBP_DELTA_RULE_DECAY, SBP_F32, true, 1, -0.1, 0.1},
                               {SBP_DELTA_RULE_BETA, SBP_F32, true, 1, 0.5, 0.5},
                               {SBP_DELTA_RULE_FIRST, SBP_I32, true, 1, 0, 0},
                               {SBP_DELTA_RULE_STATE, SBP_F32, false, d * d, 0, 0.1}};
    const operand backward[] = {{SBP_DELTA_RULE_BWD_DQ, SBP_BF16, true, d, 0, 0},
                                {SBP_DELTA_RULE_BWD_DK, SBP_BF16, true, d, 0, 0},
                                {SBP_DELTA_RULE_BWD_DV, SBP_BF16, true, d, 0, 0},
                                {SBP_DELTA_RULE_BWD_DDECAY, SBP_F32, true, 1, 0, 0},
                                {SBP_DELTA_RULE_BWD_DBETA, SBP_F32, true, 1, 0, 0},
                                {SBP_DELTA_RULE_BWD_DSTATE, SBP_F32, false, d * d, 0, 0.1},
                                {SBP_DELTA_RULE_BWD_DO, SBP_BF16, true, d, 0, 1},
                                {SBP_DELTA_RULE_BWD_Q, SBP_BF16, true, d, 0, 0.3},
                                {SBP_DELTA_RULE_BWD_K, SBP_BF16, true, d, 0, 0.3},
                                {SBP_DELTA_RULE_BWD_V, SBP_BF16, true, d, 0, 1},
                                {SBP_DELTA_RULE_BWD_DECAY, SBP_F32, true, 1, -0.1, 0.1},
                                {SBP_DELTA_RULE_BWD_BETA, SBP_F32, true, 1, 0.5, 0.5},
                                {SBP_DELTA_RULE_BWD_FIRST, SBP_I32, true, 1, 0, 0},
                                {SBP_DELTA_RULE_BWD_STATE, SBP_F32, false, d * d, 0, 0.1}};
    const operand *all = s->backward ? backward : forward;
    int32_t all_count = s->backward ? SBP_COUNT(backward) : SBP_COUNT(forward);
    int32_t work = s->backward ? SBP_DELTA_RULE_BWD_WORK : SBP_DELTA_RULE_WORK;
    sbp_command command = {.kind = s->backward ? SBP_CMD_DELTA_RULE_BWD : SBP_CMD_DELTA_RULE,
                           .flushes = -1,
                           .view_count = work + 1,
                           .u.delta = {.heads = 1, .key_heads = 1, .d_k = d, .d_v = d, .corrects = true}};
    sbp_gpu_operand at[SBP_MAX_COMMAND_OPERANDS] = {{0}};
    sbp_span spans[SBP_MAX_COMMAND_OPERANDS] = {{0}};
    sbp_ptx_memory *memory = sbp_ptx_memory_create(0);
    spans[work] = (sbp_span){.space = SBP_SPACE_COUNT, .dtype = SBP_F32};
    for (int32_t i = 0; i < all_count; i++)
        spans[all[i].place] = numbers(s, memory, &at[all[i].place], all[i].dtype, all[i].of_rows ? rows : 1,
                                      all[i].cols, all[i].middle, all[i].width);
    const sbp_dispatch dispatch = {.command = &command, .spans = spans, .span_count = work + 1};
    sbp_gpu_args args;
    sbp_cuda_step steps[SBP_CUDA_STEPS];
    sbp_gpu_args_fill(&dispatch, nowhere, 0, &args);
    for (int32_t i = 0; i < work; i++)
        args.operands[i].address = at[i].address;
    int64_t scratch = sbp_cuda_scratch_bytes(&dispatch, &machine);
    args.scratch = scratch > 0 ? sbp_ptx_memory_alloc(memory, (uint64_t)scratch) : 0;
    int32_t step_count = sbp_cuda_steps(&dispatch, &machine, &args, steps);
    demand(s, step_count > 0, "no kernel");
    count out = {0};
    for (int32_t i = 0; i < step_count; i++) {
        sbp_ptx_counts *counts = sbp_ptx_counts_create();
        launch(s, &dispatch, &steps[i], &args, memory, counts);
        double instructions = (double)sbp_ptx_counts_instructions(counts);
        if (i == 0)
            out = (count){.instructions = instructions, .products = class_of(s, counts, "mma")};
        else
            out.others += instructions;
        sbp_ptx_counts_destroy(counts);
    }
    sbp_ptx_memory_destroy(memory);
    return out;
}

/* As the first lines of delta_mma.cu, delta_bwd_mma.cu and delta_rows_mma.cu count them, of a
 * block of rows. */
static double matmuls_of(int64_t d, double squares, double scores, double triangles) {
    double l = SBP_DELTA_BLOCK, size = (double)d;
    return l * (squares * size * size + (scores * 0.75 + triangles * 0.625) * l * size) / (16 * 8 * 16);
}

int main(int argc, char **argv) {
    setting s = {.head_dim = 128, .variant = SBP_CUDA_MMA};
    const char *arch = "sm_80";
    for (int i = 1; i + 1 < argc; i += 2)
        if (strcmp(argv[i], "--head-dim") == 0)
            s.head_dim = atoll(argv[i + 1]);
        else if (strcmp(argv[i], "--arch") == 0)
            arch = argv[i + 1];
        else if (strcmp(argv[i], "--variant") == 0)
            s.variant = strcmp(argv[i + 1], "plain") == 0 ? SBP_CUDA_PLAIN : SBP_CUDA_MMA;
        else if (strcmp(argv[i], "--backward") == 0)
            s.backward = strcmp(argv[i + 1], "yes") == 0;
    sbp_cuda_arch archs[SBP_CUDA_ARCHS];
    int32_t arch_count = 0;
    if (!sbp_cuda_archs_parse(arch, archs, &arch_count) || arch_count != 1 || s.head_dim < 1) {
        fputs("usage: bench_delta_count [--head-dim D] [--arch sm_80] [--variant mma|plain] [--backward "
              "no|yes]\n",
              stderr);
        return SBP_USAGE;
    }
    s.arch = archs[0];
    s.diag = sbp_diag_create();
    sbp_cuda_nvrtc *nvrtc;
    if (sbp_cuda_nvrtc_open(s.diag, &nvrtc) != SBP_OK) {
        puts("skipped: instructions of the delta rule: no NVRTC (tests/cuda_tools.sh brings it)");
        return 0;
    }
    s.nvrtc = nvrtc;
    count few = run(&s, 2L * SBP_DELTA_BLOCK), many = run(&s, 4L * SBP_DELTA_BLOCK);
    double instructions = (many.instructions - few.instructions) / 2,
           products = (many.products - few.products) / 2;
    double others = (many.others - few.others) / 2,
           matmuls = s.backward ? matmuls_of(s.head_dim, 5, 3, 3) : matmuls_of(s.head_dim, 3, 2, 2),
           clocks = s.arch.number == 90   ? 6.36
                    : s.arch.number == 80 ? 8
                                          : 16;
    printf("{\"arch\": \"%s\", \"head_dim\": %lld, \"variant\": \"%s\", \"instructions\": %.0f, "
           "\"products\": %.0f, "
           "\"matmuls\": %.0f, \"clocks\": %.2f, \"products_times\": %.2f, \"issue_times\": %.2f, "
           "\"others\": %.0f, \"others_times\": %.2f}\n",
           arch, (long long)s.head_dim, s.variant == SBP_CUDA_PLAIN ? "plain" : "mma", instructions, products,
           matmuls, clocks, products / matmuls, instructions / (matmuls * clocks), others,
           others / (matmuls_of(s.head_dim, 3, 2, 4) * clocks));
    sbp_cuda_nvrtc_close(nvrtc);
    sbp_diag_destroy(s.diag);
    return 0;
}
