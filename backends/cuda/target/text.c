/* text.c: the text of a kernel: definitions, the prelude, and files of kernels/. */
#include "backends/cuda/cuda_attention.h"
#include "backends/cuda/cuda_delta.h"
#include "backends/cuda/cuda_experts.h"
#include "backends/cuda/target/target.h"
#include "backends/gpu/emit/emit.h"

#include <stdlib.h>
#include <string.h>

static void add_file(sbp_text *out, const char *name) {
    (void)sbp_gpu_add_file(out, sbp_cuda_files, name);
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

static void add_elements(sbp_text *text, const sbp_program *program, const sbp_command *command,
                         const sbp_dtype *dtypes) {
    if (sbp_command_sums_in_f64(command->kind, dtypes))
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

/* Definitions that not every kernel has. */
static void define_more(sbp_text *text, const sbp_command *command, const sbp_dtype *dtypes,
                        const sbp_gpu_key *key) {
    switch (sbp_command_traits_of((sbp_command_kind)key->kind)->items) {
    case SBP_ITEMS_TILES:
        sbp_text_add(text, "#define TA %d\n#define TB %d\n#define TILE %d\n", key->ta, key->tb,
                     SBP_CUDA_GEMM_TILE);
        break;
    case SBP_ITEMS_ELEMENTS:
        sbp_text_add(text, "%s%s", dtypes[0] == dtypes[1] ? "#define SAME\n" : "",
                     key->reduce ? "#define ADDS\n" : "");
        break;
    case SBP_ITEMS_COLUMNS:
        sbp_text_add(text, "#define COLUMNS %d\n", SBP_CUDA_COLSUM_COLUMNS);
        break;
    case SBP_ITEMS_PARTS:
        sbp_text_add(text, "#define OP %d\n#define GROUP group_%s\n", (int)command->u.reduce.op,
                     command->u.reduce.op == SBP_REDUCE_MAX ? "max" : "sum");
        break;
    default:
        break;
    }
}

/* The kernel of a command that has no variants is in the file that is called like it, that of its second step
 * in one whose name ends in _end. */
static bool add_kernel(sbp_text *text, const sbp_gpu_key *key) {
    sbp_text name;
    sbp_text_init(&name, text->arena);
    sbp_text_add(&name, "%s%s", sbp_command_name((sbp_command_kind)key->kind), key->step > 0 ? "_end" : "");
    return sbp_gpu_add_kernel(text, sbp_cuda_files, name.data, "cu", "plain.cuh");
}

sbp_status sbp_cuda_source_make(sbp_arena *arena, sbp_diag *diag, const sbp_program *program,
                                const sbp_command *command, const sbp_dtype *dtypes, const sbp_gpu_key *key,
                                sbp_cuda_arch arch, sbp_cuda_source *out) {
    sbp_text text;
    sbp_dtype own[SBP_MAX_COMMAND_OPERANDS];
    const sbp_command_traits *traits = sbp_command_traits_of((sbp_command_kind)key->kind);
    if (traits->attributes == SBP_ATTRIBUTES_COLLECTIVE) { /* several sums make up one */
        memcpy(own, dtypes, sizeof own);
        own[SBP_COLLECTIVE_DST] = (sbp_dtype)key->dtypes[SBP_COLLECTIVE_DST];
        own[SBP_COLLECTIVE_SRC] = (sbp_dtype)key->dtypes[SBP_COLLECTIVE_SRC];
        dtypes = own;
    }
    sbp_text_init(&text, arena);
    *out = (sbp_cuda_source){.key = *key, .arch = arch, .exact = true};
    add_prelude(&text);
    if (traits->attributes == SBP_ATTRIBUTES_ATTENTION) {
        out->exact = false;
        make_attention(&text, key, arch);
    } else if (traits->attributes == SBP_ATTRIBUTES_ROW) {
        make_row(&text, program->kernels[command->kernel], key);
    } else if (sbp_cuda_has_variants(traits)) {
        bool of_delta = traits->attributes == SBP_ATTRIBUTES_DELTA;
        sbp_cuda_recipe source;
        if (of_delta)
            sbp_cuda_delta_source_of(key, arch, &source);
        else
            sbp_cuda_experts_source_of(key, &source);
        out->exact = key->variant == SBP_CUDA_PLAIN && of_delta;
        add_elements(&text, program, command, dtypes);
        sbp_text_add_n(&text, source.defines, strlen(source.defines));
        add_files(&text, source.files, SBP_COUNT(source.files));
    } else {
        out->exact = traits->items != SBP_ITEMS_TILES;
        add_elements(&text, program, command, dtypes);
        define_more(&text, command, dtypes, key);
        if (!add_kernel(&text, key))
            return sbp_fail(diag, SBP_MACHINE, "the CUDA backend has no kernel for '%s' yet",
                            sbp_command_name(command->kind));
    }
    out->text = text.data;
    out->bytes = text.length;
    return SBP_OK;
}
