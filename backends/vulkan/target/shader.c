/* shader.c: the text of the module of a command: definitions, prelude, and a file of shaders/. */
#include "backends/vulkan/target/shaders.h"

#include "backends/gpu/emit/emit.h"

#include <string.h>

/* Appends a file of shaders/. */
static void add_text(sbp_text *out, const char *name) {
    for (const sbp_vulkan_text *t = sbp_vulkan_texts; t->name; t++)
        if (strcmp(t->name, name) == 0) {
            sbp_text_add_n(out, t->text, strlen(t->text));
            return;
        }
}

/* Begins a module: version, definitions, rowmath.h and the extensions of cooperative matrices when wanted,
 * prelude. */
static void add_prelude(sbp_text *out, bool use_f64, bool real_f64, bool rowmath, bool matrix) {
    sbp_text_add(out, "#version 460\n#define SBP_ROWMATH_GLSL\n");
    if (matrix)
        sbp_text_add(out, "#define SBP_MATRIX\n");
    if (use_f64)
        sbp_text_add(out, "#define SBP_USE_F64\n");
    if (real_f64)
        sbp_text_add(out, "#define SBP_REAL_F64\n");
    else
        sbp_text_add(out, "#define SBP_ROWMATH_NO_F64\n");
    add_text(out, "prelude.glsl");
    if (rowmath)
        add_text(out, "rowmath.h");
}

static bool any_f64(const sbp_dtype *dtypes, int32_t count) {
    for (int32_t i = 0; i < count; i++)
        if (dtypes[i] == SBP_F64)
            return true;
    return false;
}

/* What shaders want to know of an operand beside its row of definitions. */
static void define_operand(sbp_text *out, const char *role, sbp_dtype dtype) {
    sbp_text_add(out, "#define FOUR_%s four_%s\n", role, sbp_dtype_name(dtype));
    if (dtype == SBP_F32)
        sbp_text_add(out, "#define %s_IS_F32\n", role);
}

static void make_row(sbp_text *out, const sbp_rowkernel *kernel, bool no64) {
    bool f64 = kernel->compute == SBP_F64, use_f64 = f64;
    sbp_rowkernel narrow = *kernel;
    narrow.compute = no64 ? SBP_F32 : kernel->compute;
    for (int32_t i = 0; i < kernel->operand_count; i++)
        use_f64 |= kernel->operands[i].dtype == SBP_F64;
    add_prelude(out, use_f64 && !no64, f64 && !no64, true, false);
    if (no64)
        add_text(out, "pairs.glsl");
    const sbp_gpu_row_shape shape = sbp_gpu_row_shape_plain(&narrow, 0);
    if (shape.mode != SBP_GPU_ROW_FLAT && shape.mode != SBP_GPU_ROW_COLUMNS)
        add_text(out, "group.glsl");
    sbp_gpu_emit_row(out, &narrow, &shape, &sbp_gpu_glsl);
}

static bool sums_in_f64(const sbp_command *command, const sbp_dtype *dtypes) {
    return command->kind == SBP_CMD_ATTN_FWD || command->kind == SBP_CMD_ATTN_BWD
               ? dtypes[sbp_command_attention(command->kind)->q] == SBP_F64
               : sbp_gpu_sums_in_f64(command->kind, dtypes);
}

static void make_attention(sbp_text *out, const sbp_command *command, const char *file) {
    const sbp_attention_attrs *at = &command->u.attention;
    sbp_text_add(out, "#define D_QK %d\n#define D_V %d\n#define TILE %d\n", (int)at->d_qk, (int)at->d_v,
                 SBP_VULKAN_ATTENTION_TILE);
    add_text(out, "attention.glsl");
    if (command->kind == SBP_CMD_ATTN_BWD)
        add_text(out, "attention_bwd.glsl");
    add_text(out, file);
}

static void make_delta(sbp_text *out, const sbp_command *command, int32_t step) {
    const sbp_delta_attrs *a = &command->u.delta;
    bool backward = command->kind == SBP_CMD_DELTA_RULE_BWD || command->kind == SBP_CMD_SSD_BWD;
    bool ssd = command->kind == SBP_CMD_SSD || command->kind == SBP_CMD_SSD_BWD;
    sbp_text_add(
        out, "#define D_K %d\n#define D_V %d\n#define BLOCK %d\n#define STEP %d\n#define KEY_OPERAND %s\n",
        (int)a->d_k, (int)a->d_v, SBP_DELTA_BLOCK, (int)step, ssd ? "b_OPERAND" : "k_OPERAND");
    if (backward)
        add_text(out, "group.glsl");
    add_text(out, "states.glsl");
    add_text(out, ssd ? "ssd.glsl" : "delta.glsl");
    if (ssd)
        add_text(out, backward ? "ssd_bwd.comp" : "ssd.comp");
    else
        add_text(out, backward ? "delta_rule_bwd.comp" : "delta_rule.comp");
}

/* Which slots an expert has, or the product. */
static void make_experts(sbp_text *text, const sbp_command *command, int32_t step, sbp_vulkan_shader *out) {
    bool is_sum = command->kind == SBP_CMD_EXPERT_GEMM_DW;
    sbp_text_add(text, "#define STEP %d\n#define TB %d\n#define PATCH %d\n", (int)step, command->u.experts.tb,
                 SBP_VULKAN_EXPERT_PATCH);
    add_text(text, "experts.glsl");
    if (step == 0) {
        add_text(text, "expert_ranges.comp");
        return;
    }
    out->exact = false;
    add_text(text, is_sum ? "expert_gemm_dw.comp" : "expert_gemm.comp");
}

static void make_gemm(sbp_text *text, const sbp_command *command, const sbp_dtype *dtypes,
                      sbp_vulkan_gemm gemm, sbp_vulkan_shader *out) {
    static const char *const files[SBP_VULKAN_ANY] = {[SBP_VULKAN_DIRECT] = "gemm_direct.comp",
                                                      [SBP_VULKAN_TILED] = "gemm_tiled.comp",
                                                      [SBP_VULKAN_WIDE] = "gemm_wide.comp",
                                                      [SBP_VULKAN_MATRIX] = "gemm_matrix.comp",
                                                      [SBP_VULKAN_MATRIX_WIDE] = "gemm_matrix.comp"};
    out->exact = false;
    out->bf16 = dtypes[SBP_GEMM_A] == SBP_BF16;
    sbp_text_add(text, "#define TA %d\n#define TB %d\n#define TILE %d\n#define MATRIX_DEPTH %d\n",
                 command->u.gemm.ta, command->u.gemm.tb, sbp_vulkan_gemm_side(gemm), SBP_VULKAN_GEMM_DEPTH);
    add_text(text, "gemm.glsl");
    add_text(text, files[gemm]);
}

sbp_status sbp_vulkan_shader_make(sbp_arena *arena, sbp_diag *diag, const sbp_program *program,
                                  const sbp_command *command, const sbp_dtype *dtypes, const sbp_gpu_key *key,
                                  sbp_vulkan_shader *out) {
    sbp_text text;
    sbp_text_init(&text, arena);
    *out = (sbp_vulkan_shader){.key = *key, .exact = true};
    if (command->kind == SBP_CMD_ROW) {
        make_row(&text, program->kernels[command->kernel], key->no64);
        out->text = text.data;
        return SBP_OK;
    }
    bool no64 = key->no64, real_f64 = sums_in_f64(command, dtypes) && !no64;
    bool rowmath = sbp_command_attention(command->kind) || command->kind == SBP_CMD_DELTA_RULE ||
                   command->kind == SBP_CMD_DELTA_RULE_BWD || command->kind == SBP_CMD_SSD ||
                   command->kind == SBP_CMD_SSD_BWD;
    sbp_vulkan_gemm gemm = (sbp_vulkan_gemm)key->variant;
    out->matrix = command->kind == SBP_CMD_GEMM && sbp_vulkan_gemm_is_matrix(gemm);
    add_prelude(&text, real_f64 || (!no64 && any_f64(dtypes, command->view_count)), real_f64, rowmath,
                out->matrix);
    if (dtypes[0] != SBP_DTYPE_COUNT)
        sbp_text_add(&text, "#define BYTES %d\n", (int)sbp_dtype_bytes(dtypes[0]));
    sbp_gpu_define_operands(&text, program, command, dtypes, define_operand);
    switch (command->kind) {
    case SBP_CMD_FILL:
        add_text(&text, "fill.comp");
        break;
    case SBP_CMD_COPY:
    case SBP_CMD_COLLECTIVE:
        add_text(&text, "copy.comp");
        break;
    case SBP_CMD_GEMM:
        make_gemm(&text, command, dtypes, gemm, out);
        break;
    case SBP_CMD_GATHER:
        if (dtypes[SBP_GATHER_DST] == dtypes[SBP_GATHER_TABLE])
            sbp_text_add(&text, "#define SAME\n");
        add_text(&text, "gather.comp");
        break;
    case SBP_CMD_SCATTER_ADD:
        add_text(&text, "sums.glsl");
        add_text(&text, "scatter_add.comp");
        break;
    case SBP_CMD_CONV_ROWS:
    case SBP_CMD_CONV_ROWS_BWD:
        add_text(&text, "conv.glsl");
        add_text(&text, command->kind == SBP_CMD_CONV_ROWS ? "conv_rows.comp" : "conv_rows_bwd.comp");
        break;
    case SBP_CMD_DELTA_RULE:
    case SBP_CMD_DELTA_RULE_BWD:
    case SBP_CMD_SSD:
    case SBP_CMD_SSD_BWD:
        make_delta(&text, command, key->step);
        break;
    case SBP_CMD_ROUTE:
        add_text(&text, "route.comp");
        break;
    case SBP_CMD_EXPERT_ORDER:
        add_text(&text, "expert_order.comp");
        break;
    case SBP_CMD_EXPERT_GEMM:
    case SBP_CMD_EXPERT_GEMM_DW:
        make_experts(&text, command, key->step, out);
        break;
    case SBP_CMD_COLSUM:
        sbp_text_add(&text, "#define COLUMNS %du\n", SBP_VULKAN_COLSUM_COLUMNS);
        add_text(&text, "sums.glsl");
        add_text(&text, "colsum.comp");
        break;
    case SBP_CMD_REDUCE:
        sbp_text_add(&text, "#define OP %d\n#define GROUP group_%s\n", (int)command->u.reduce.op,
                     command->u.reduce.op == SBP_REDUCE_MAX ? "max" : "sum");
        if (no64) {
            sbp_text_add(&text, "%s%s", key->step > 0 ? "#define END\n" : "",
                         dtypes[SBP_REDUCE_SRC] == SBP_F64 ? "#define FROM_F64\n" : "");
            add_text(&text, "pairs.glsl");
            add_text(&text, "reduce_pairs.comp");
            break;
        }
        add_text(&text, "group.glsl");
        add_text(&text, key->step > 0 ? "reduce_end.comp" : "reduce.comp");
        break;
    case SBP_CMD_ATTN_FWD:
        make_attention(&text, command, "attn_fwd.comp");
        break;
    case SBP_CMD_ATTN_BWD:
        make_attention(&text, command, key->step == 0 ? "attn_dq.comp" : "attn_dkv.comp");
        break;
    default:
        return sbp_fail(diag, SBP_MACHINE, "the Vulkan backend has no shader for '%s' yet",
                        sbp_command_name(command->kind));
    }
    out->text = text.data;
    return SBP_OK;
}
