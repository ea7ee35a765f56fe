/* text.c: the text of a kernel: definitions, the prelude, and files of kernels/. */
#include "backends/cuda/cuda_attention.h"
#include "backends/cuda/cuda_delta.h"
#include "backends/cuda/cuda_experts.h"
#include "backends/cuda/target/target.h"
#include "backends/gpu/emit/emit.h"

#include <stdlib.h>
#include <string.h>

static void add_file(sbp_text *out, const char *name) {
    for (const sbp_cuda_file *file = sbp_cuda_files; file->name; file++)
        if (strcmp(file->name, name) == 0) {
            sbp_text_add_n(out, file->text, strlen(file->text));
            return;
        }
}

static void add_files(sbp_text *out, const char *const *names, int32_t count) {
    for (int32_t i = 0; i < count && names[i]; i++)
        add_file(out, names[i]);
}

/* What prelude.cuh compares its own record with. */
static void add_prelude(sbp_text *out) {
    sbp_text_add(out, "#define ARGS_BYTES %d\n#define ARGS_INTS %d\n#define ARGS_FLOATS %d\n",
                 (int)sizeof(sbp_gpu_args), (int)offsetof(sbp_gpu_args, ints),
                 (int)offsetof(sbp_gpu_args, floats));
    sbp_text_add(out, "#define ARGS_DOUBLES %d\n#define ARGS_KEYS %d\n#define ARGS_OPERANDS %d\n",
                 (int)offsetof(sbp_gpu_args, doubles), (int)offsetof(sbp_gpu_args, keys),
                 (int)offsetof(sbp_gpu_args, operands));
    sbp_text_add(out, "#define OPERAND_BYTES %d\n", (int)sizeof(sbp_gpu_operand));
    add_file(out, "prelude.cuh");
}

static bool computes_f64(const sbp_command *command, const sbp_dtype *dtypes) {
    return command->kind == SBP_CMD_COLLECTIVE ? dtypes[SBP_COLLECTIVE_SRC] == SBP_F64
                                               : sbp_gpu_sums_in_f64(command->kind, dtypes);
}

static void add_elements(sbp_text *text, const sbp_program *program, const sbp_command *command,
                         const sbp_dtype *dtypes) {
    if (computes_f64(command, dtypes))
        sbp_text_add(text, "#define REAL_F64\n");
    add_file(text, "elements.cuh");
    if (dtypes[0] != SBP_DTYPE_COUNT)
        sbp_text_add(text, "#define BYTES %d\n", (int)sbp_dtype_bytes(dtypes[0]));
    sbp_gpu_define_operands(text, program, command, dtypes, NULL);
}

static void make_attention(sbp_text *text, const sbp_gpu_key *key, sbp_cuda_arch arch) {
    sbp_cuda_attention_source source;
    const char *debug = getenv("SBP_CUDA_DEBUG");
    sbp_cuda_attention_source_of(key, arch, &source);
    if (debug && strcmp(debug, "waits") == 0)
        sbp_text_add(text, "#define BOUNDED_WAITS\n");
    sbp_text_add_n(text, source.defines, strlen(source.defines));
    for (int32_t i = 0; i < SBP_CUDA_ATTENTION_TEXTS && source.files[i]; i++) {
        sbp_text name;
        sbp_text_init(&name, text->arena);
        sbp_text_add(&name, "attention/%s", source.files[i]);
        add_file(text, name.data);
    }
}

/* As sbp_cuda_keys has it: of this variant there is one. */
static void make_row(sbp_text *text, const sbp_rowkernel *kernel, const sbp_gpu_key *key) {
    sbp_gpu_row_shape shape;
    (void)sbp_gpu_row_shape_of(kernel, key->variant == SBP_CUDA_VECTOR, &shape);
    if (kernel->compute == SBP_F64)
        sbp_text_add(text, "#define REAL_F64\n");
    add_file(text, "elements.cuh");
    add_file(text, "rowmath.h");
    add_file(text, "rows.cuh");
    sbp_gpu_emit_row(text, kernel, &shape, &sbp_gpu_cuda);
}

static const sbp_cuda_recipe recipes[SBP_CMD_COUNT] = {
    [SBP_CMD_FILL] = {.files = {"own.cuh", "units.cuh", "fill.cu"}},
    [SBP_CMD_COPY] = {.files = {"own.cuh", "units.cuh", "copy.cu"}},
    [SBP_CMD_COLLECTIVE] = {.files = {"sum_ranks.cu"}}, /* of one rank it is a copy */
    [SBP_CMD_GATHER] = {.files = {"own.cuh", "units.cuh", "gather.cu"}},
    [SBP_CMD_SCATTER_ADD] = {.files = {"own.cuh", "sums.cuh", "scatter_add.cu"}},
    [SBP_CMD_CONV_ROWS] = {.files = {"own.cuh", "conv.cuh", "conv_rows.cu"}},
    [SBP_CMD_CONV_ROWS_BWD] = {.files = {"own.cuh", "conv.cuh", "conv_rows_bwd.cu"}},
    [SBP_CMD_ROUTE] = {.files = {"experts/route.cu"}},
    [SBP_CMD_EXPERT_ORDER] = {.files = {"experts/expert_order.cu"}},
    [SBP_CMD_COLSUM] = {.files = {"sums.cuh", "colsum.cu"}},
    [SBP_CMD_GEMM] = {.files = {"gemm_tile.cuh", "gemm.cu"}},
    [SBP_CMD_REDUCE] = {.files = {"group.cuh"}},
};

/* Definitions that not every kernel has. */
static void define_more(sbp_text *text, const sbp_command *command, const sbp_dtype *dtypes,
                        const sbp_gpu_key *key) {
    switch (command->kind) {
    case SBP_CMD_GEMM:
        sbp_text_add(text, "#define TA %d\n#define TB %d\n#define TILE %d\n", command->u.gemm.ta,
                     command->u.gemm.tb, SBP_CUDA_GEMM_TILE);
        break;
    case SBP_CMD_GATHER:
        sbp_text_add(text, "%s", dtypes[SBP_GATHER_DST] == dtypes[SBP_GATHER_TABLE] ? "#define SAME\n" : "");
        break;
    case SBP_CMD_COLLECTIVE:
        sbp_text_add(text, "%s", key->reduce ? "#define ADDS\n" : "");
        break;
    case SBP_CMD_COLSUM:
        sbp_text_add(text, "#define COLUMNS %d\n", SBP_CUDA_COLSUM_COLUMNS);
        break;
    case SBP_CMD_REDUCE:
        sbp_text_add(text, "#define OP %d\n#define GROUP group_%s\n", (int)command->u.reduce.op,
                     command->u.reduce.op == SBP_REDUCE_MAX ? "max" : "sum");
        break;
    default:
        break;
    }
}

sbp_status sbp_cuda_source_make(sbp_arena *arena, sbp_diag *diag, const sbp_program *program,
                                const sbp_command *command, const sbp_dtype *dtypes, const sbp_gpu_key *key,
                                sbp_cuda_arch arch, sbp_cuda_source *out) {
    sbp_text text;
    sbp_dtype own[SBP_MAX_COMMAND_OPERANDS];
    if (key->kind == SBP_CMD_COLLECTIVE) { /* several sums make up one */
        memcpy(own, dtypes, sizeof own);
        own[SBP_COLLECTIVE_DST] = (sbp_dtype)key->dtypes[SBP_COLLECTIVE_DST];
        own[SBP_COLLECTIVE_SRC] = (sbp_dtype)key->dtypes[SBP_COLLECTIVE_SRC];
        dtypes = own;
    }
    sbp_text_init(&text, arena);
    *out = (sbp_cuda_source){.key = *key, .arch = arch, .exact = true};
    add_prelude(&text);
    if (sbp_command_attention(command->kind)) {
        out->exact = false;
        make_attention(&text, key, arch);
    } else if (command->kind == SBP_CMD_ROW) {
        make_row(&text, program->kernels[command->kernel], key);
    } else if (sbp_cuda_delta_is(command->kind) || sbp_cuda_experts_is(command->kind)) {
        sbp_cuda_recipe source;
        if (sbp_cuda_delta_is(command->kind))
            sbp_cuda_delta_source_of(key, arch, &source);
        else
            sbp_cuda_experts_source_of(key, &source);
        out->exact = key->variant == SBP_CUDA_PLAIN && sbp_cuda_delta_is(command->kind);
        add_elements(&text, program, command, dtypes);
        sbp_text_add_n(&text, source.defines, strlen(source.defines));
        add_files(&text, source.files, SBP_COUNT(source.files));
    } else if (recipes[key->kind].files[0]) {
        out->exact = command->kind != SBP_CMD_GEMM;
        add_elements(&text, program, command, dtypes);
        define_more(&text, command, dtypes, key);
        add_files(&text, recipes[key->kind].files, SBP_COUNT(recipes[key->kind].files));
        if (command->kind == SBP_CMD_REDUCE)
            add_file(&text, key->step > 0 ? "reduce_end.cu" : "reduce.cu");
    } else {
        return sbp_fail(diag, SBP_MACHINE, "the CUDA backend has no kernel for '%s' yet",
                        sbp_command_name(command->kind));
    }
    out->text = text.data;
    out->bytes = text.length;
    return SBP_OK;
}
