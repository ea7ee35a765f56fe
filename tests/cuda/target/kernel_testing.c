/* kernel_testing.c: single commands, and their kernels compiled. */
#include "tests/cuda/target/kernel_testing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/common/dispatch_add.h"

#define NONE SBP_DTYPE_COUNT
#define MOVE(k, d)                                                                                           \
    {                                                                                                        \
        .kind = k, .dtypes = { d, d }                                                                        \
    }
#define GEMM(a, b, ...)                                                                                      \
    { .kind = SBP_CMD_GEMM, .dtypes = {__VA_ARGS__}, .ta = a, .tb = b }
#define SUM(o, d)                                                                                            \
    { .kind = SBP_CMD_REDUCE, .dtypes = {SBP_F64, d}, .op = o }
#define OTHER(k, ...)                                                                                        \
    {                                                                                                        \
        .kind = k, .dtypes = { __VA_ARGS__ }                                                                 \
    }
#define FORWARD(d, lse, columns)                                                                             \
    { .kind = SBP_CMD_ATTN_FWD, .dtypes = {d, lse, d, d, d, SBP_I32, SBP_I32, SBP_I32}, .head = columns }
#define BACKWARD(d, lse, columns)                                                                            \
    {                                                                                                        \
        .kind = SBP_CMD_ATTN_BWD, .dtypes = {d, lse, lse, d, d, d, d, lse, d, SBP_I32, SBP_I32, SBP_I32},    \
        .head = columns                                                                                      \
    }
#define DELTA(d, wide, columns, corrected)                                                                   \
    {                                                                                                        \
        .kind = SBP_CMD_DELTA_RULE, .dtypes = {d, wide, d, d, d, wide, wide, SBP_I32, wide, NONE},           \
        .head = columns, .corrects = corrected                                                               \
    }
#define DELTA_BACKWARD(d, wide, columns, corrected)                                                          \
    {                                                                                                        \
        .kind = SBP_CMD_DELTA_RULE_BWD,                                                                      \
        .dtypes = {d, d, d, wide, wide, wide, d, d, d, d, wide, wide, SBP_I32, wide, wide}, .head = columns, \
        .corrects = corrected                                                                                \
    }

const kernel_case kernel_cases[] = {
    MOVE(SBP_CMD_FILL, SBP_I8),
    MOVE(SBP_CMD_FILL, SBP_BF16),
    MOVE(SBP_CMD_FILL, SBP_F32),
    MOVE(SBP_CMD_FILL, SBP_F64),
    MOVE(SBP_CMD_COPY, SBP_I8),
    MOVE(SBP_CMD_COPY, SBP_BF16),
    MOVE(SBP_CMD_COPY, SBP_F32),
    MOVE(SBP_CMD_COPY, SBP_F64),
    GEMM(false, false, SBP_F32, SBP_F32, SBP_F32, NONE, NONE),
    GEMM(false, true, SBP_BF16, SBP_BF16, SBP_BF16, NONE, SBP_BF16),
    GEMM(true, false, SBP_F32, SBP_BF16, SBP_BF16, SBP_F32, NONE),
    GEMM(true, true, SBP_F64, SBP_F64, SBP_F64, SBP_F64, SBP_F64),
    GEMM(false, true, SBP_F32, SBP_F16, SBP_F32, SBP_BF16, SBP_F16),
    GEMM(false, false, SBP_F64, SBP_F32, SBP_BF16, NONE, NONE),
    OTHER(SBP_CMD_COLSUM, SBP_F32, SBP_BF16),
    OTHER(SBP_CMD_COLSUM, SBP_F32, SBP_F32),
    OTHER(SBP_CMD_COLSUM, SBP_F64, SBP_F64),
    OTHER(SBP_CMD_GATHER, SBP_BF16, SBP_BF16, SBP_I32, NONE, NONE),
    OTHER(SBP_CMD_GATHER, SBP_F32, SBP_BF16, SBP_I32, NONE, NONE),
    OTHER(SBP_CMD_GATHER, SBP_F64, SBP_F16, SBP_I64, NONE, NONE),
    OTHER(SBP_CMD_SCATTER, SBP_BF16, SBP_BF16, SBP_I32, NONE, NONE),
    OTHER(SBP_CMD_SCATTER, SBP_F64, SBP_F64, SBP_I64, NONE, NONE),
    OTHER(SBP_CMD_SCATTER_ADD, SBP_F32, SBP_BF16, SBP_I32, SBP_I32, SBP_I32),
    OTHER(SBP_CMD_SCATTER_ADD, SBP_BF16, SBP_F32, SBP_I32, SBP_I64, SBP_I32),
    OTHER(SBP_CMD_SCATTER_ADD, SBP_F64, SBP_F64, SBP_I64, SBP_I64, SBP_I64),
    OTHER(SBP_CMD_CONV_ROWS, SBP_BF16, SBP_BF16, SBP_BF16, SBP_BF16, SBP_BF16, SBP_I32, SBP_BF16),
    OTHER(SBP_CMD_CONV_ROWS, NONE, SBP_F32, SBP_F32, NONE, NONE, NONE, SBP_F32),
    OTHER(SBP_CMD_CONV_ROWS_BWD, SBP_BF16, SBP_F32, SBP_F32, SBP_BF16, SBP_BF16, SBP_BF16, SBP_I32, SBP_BF16),
    OTHER(SBP_CMD_CONV_ROWS_BWD, SBP_F64, NONE, SBP_F64, SBP_F64, SBP_F64, SBP_F64, SBP_I64, SBP_F64),
    DELTA(SBP_BF16, SBP_F32, 128, true),
    DELTA(SBP_F64, SBP_F64, 64, true),
    DELTA_BACKWARD(SBP_BF16, SBP_F32, 128, true),
    DELTA_BACKWARD(SBP_F64, SBP_F64, 64, true),
    DELTA(SBP_BF16, SBP_F32, 128, false),
    DELTA(SBP_F64, SBP_F64, 64, false),
    DELTA_BACKWARD(SBP_BF16, SBP_F32, 128, false),
    DELTA_BACKWARD(SBP_F64, SBP_F64, 64, false),
    OTHER(SBP_CMD_ROUTE, SBP_I32, SBP_BF16),
    OTHER(SBP_CMD_ROUTE, SBP_I32, SBP_F64),
    OTHER(SBP_CMD_EXPERT_ORDER, SBP_I32, SBP_I32, SBP_I32),
    OTHER(SBP_CMD_EXPERT_GEMM, SBP_BF16, SBP_BF16, SBP_BF16, SBP_BF16, SBP_I32, SBP_I32),
    OTHER(SBP_CMD_EXPERT_GEMM, SBP_F64, SBP_F64, SBP_F64, NONE, SBP_I32, SBP_I32),
    OTHER(SBP_CMD_EXPERT_GEMM_DW, SBP_F32, SBP_BF16, SBP_BF16, SBP_I32, SBP_I32),
    OTHER(SBP_CMD_EXPERT_GEMM_DW, SBP_F64, SBP_F64, SBP_F64, SBP_I32, SBP_I32),
    SUM(SBP_REDUCE_SUM, SBP_F32),
    SUM(SBP_REDUCE_MAX, SBP_BF16),
    SUM(SBP_REDUCE_SUMSQ, SBP_F32),
    SUM(SBP_REDUCE_SUMSQ, SBP_F64),
    FORWARD(SBP_BF16, SBP_F32, 128),
    FORWARD(SBP_F32, SBP_F32, 64),
    BACKWARD(SBP_BF16, SBP_F32, 128),
    BACKWARD(SBP_F64, SBP_F64, 64),
};
const int32_t kernel_case_count = SBP_COUNT(kernel_cases);

static int32_t operand_count(sbp_command_kind kind) {
    switch (kind) {
    case SBP_CMD_FILL:
        return 1;
    case SBP_CMD_GEMM:
    case SBP_CMD_SCATTER_ADD:
        return 5;
    case SBP_CMD_GATHER:
    case SBP_CMD_SCATTER:
    case SBP_CMD_EXPERT_ORDER:
        return 3;
    case SBP_CMD_EXPERT_GEMM:
        return SBP_EXPERT_GEMM_OPERANDS;
    case SBP_CMD_EXPERT_GEMM_DW:
        return SBP_EXPERT_GEMM_DW_OPERANDS;
    case SBP_CMD_CONV_ROWS:
        return SBP_CONV_ROWS_OPERANDS;
    case SBP_CMD_ATTN_FWD:
    case SBP_CMD_CONV_ROWS_BWD:
        return 8;
    case SBP_CMD_ATTN_BWD:
        return 12;
    case SBP_CMD_DELTA_RULE:
        return SBP_DELTA_RULE_OPERANDS;
    case SBP_CMD_DELTA_RULE_BWD:
        return SBP_DELTA_RULE_BWD_OPERANDS;
    default:
        return 2;
    }
}

sbp_program *kernel_program(testing *t, const kernel_case *c) {
    sbp_program *program = sbp_program_create(t->arena, "kernel");
    sbp_command command = {.kind = c->kind, .flushes = -1, .view_count = operand_count(c->kind)};
    sbp_span spans[SBP_MAX_COMMAND_OPERANDS];
    if (c->kind == SBP_CMD_GEMM) {
        command.u.gemm.ta = c->ta;
        command.u.gemm.tb = c->tb;
        command.u.gemm.alpha = 1;
    } else if (c->kind == SBP_CMD_REDUCE) {
        command.u.reduce.op = c->op;
    } else if (c->kind == SBP_CMD_DELTA_RULE || c->kind == SBP_CMD_DELTA_RULE_BWD) {
        command.u.delta = (sbp_delta_attrs){
            .heads = 1, .key_heads = 1, .d_k = c->head, .d_v = c->head, .corrects = c->corrects};
    } else if (c->head > 0) {
        command.u.attention =
            (sbp_attention_attrs){.heads = 1, .kv_heads = 1, .d_qk = c->head, .d_v = c->head, .scale = 1};
    }
    for (int32_t i = 0; i < command.view_count; i++)
        spans[i] = (sbp_span){.space = c->dtypes[i] == NONE ? SBP_SPACE_COUNT : SBP_DEVICE,
                              .dtype = c->dtypes[i],
                              .rows = 1,
                              .cols = 1,
                              .stride = 1};
    const sbp_dispatch dispatch = {.command = &command, .spans = spans, .span_count = command.view_count};
    dispatch_add(t->arena, program, &dispatch);
    return program;
}

bool kernels_can_compile(void) {
    sbp_diag *diag = sbp_diag_create();
    sbp_cuda_nvrtc *nvrtc;
    assert_non_null(diag);
    sbp_status status = sbp_cuda_nvrtc_open(diag, &nvrtc);
    assert_true(status == SBP_OK || status == SBP_MACHINE);
    if (status == SBP_OK)
        sbp_cuda_nvrtc_close(nvrtc);
    else
        printf("skipped: kernels of CUDA: no NVRTC (tests/cuda_tools.sh brings it)\n");
    sbp_diag_destroy(diag);
    return status == SBP_OK;
}

bool kernels_try(testing *t, const sbp_program *program, const char *archs, kernel_set *out) {
    sbp_cuda_arch list[SBP_CUDA_ARCHS];
    int32_t count;
    *out = (kernel_set){0};
    assert_true(sbp_cuda_archs_parse(archs, list, &count));
    testing_check(t, sbp_cuda_sources(t->arena, t->diag, program, list, count, &out->sources, &out->count));
    out->objects = calloc((size_t)out->count + 1, sizeof *out->objects);
    assert_non_null(out->objects);
    sbp_status status = sbp_cuda_compile_all(t->diag, out->sources, out->count, out->objects, &out->compiled);
    for (int32_t i = 0; status == SBP_OK && i < out->count; i++) {
        sbp_cuda_resources r;
        status =
            sbp_cuda_resources_read(t->diag, &out->sources[i], sbp_cuda_object_log(&out->objects[i]), &r);
    }
    return status == SBP_OK;
}

kernel_set kernels_compile(testing *t, const sbp_program *program, const char *archs) {
    kernel_set set;
    if (!kernels_try(t, program, archs, &set))
        fail_msg("%s", sbp_diag_text(t->diag, SBP_NOTE));
    return set;
}

void kernels_free(kernel_set *set) {
    for (int32_t i = 0; i < set->count; i++)
        free(set->objects[i].data);
    free(set->objects);
    *set = (kernel_set){0};
}

void kernel_name(const sbp_cuda_source *source, char text[SBP_GPU_NAME + 16]) {
    char name[SBP_GPU_NAME], arch[16];
    sbp_gpu_key_text(&source->key, sbp_cuda_variant_names[source->key.variant], name);
    sbp_cuda_arch_text(source->arch, arch);
    snprintf(text, SBP_GPU_NAME + 16, "%.95s %s", name, arch);
}

/* ---- the golden table ------------------------------------------------------------------------------- */

void kernels_describe(testing *t, const kernel_set *set, sbp_text *out) {
    for (int32_t k = 0; k < set->count; k++) {
        char name[SBP_GPU_NAME + 16];
        sbp_cuda_resources r;
        testing_check(
            t, sbp_cuda_resources_read(t->diag, &set->sources[k], sbp_cuda_object_log(&set->objects[k]), &r));
        kernel_name(&set->sources[k], name);
        sbp_text_add(out, "%-44s %3d registers %5d B shared %3d B stack\n", name, (int)r.registers,
                     (int)r.shared_bytes, (int)r.stack_bytes);
    }
}

static char *read_text(const char *path) {
    FILE *file = fopen(path, "r");
    char *text = calloc(1, 1 << 16);
    assert_non_null(file);
    assert_non_null(text);
    assert_true(fread(text, 1, (1 << 16) - 1, file) > 0);
    fclose(file);
    return text;
}

void kernels_compare(testing *t, const char *lines, const char *table) {
    char *want = NULL;
    sbp_cuda_nvrtc *nvrtc;
    sbp_text text;
    sbp_text_init(&text, t->arena);
    testing_check(t, sbp_cuda_nvrtc_open(t->diag, &nvrtc));
    sbp_text_add(&text, "%s\n%s", sbp_cuda_nvrtc_name(nvrtc), lines);
    size_t version = strlen(sbp_cuda_nvrtc_name(nvrtc)) + 1;
    sbp_cuda_nvrtc_close(nvrtc);
    if (getenv("SBP_UPDATE_GOLDENS")) {
        FILE *file = fopen(table, "w");
        assert_non_null(file);
        assert_true(fputs(text.data, file) >= 0);
        assert_int_equal(fclose(file), 0);
    }
    want = read_text(table);
    if (strncmp(want, text.data, version) == 0)
        testing_same_text(text.data, want, table);
    else
        printf("skipped: registers of CUDA kernels: the table is of %.*s, here is %.*s",
               (int)strcspn(want, "\n"), want, (int)version, text.data);
    free(want);
}
