/* shader.c: the text of the module of a command: definitions, prelude, and a file of shaders/. */
#include "backends/vulkan/target/shaders.h"

#include "backends/gpu/emit/emit.h"

#include <string.h>

/* Appends a file of shaders/; false: there is none. */
static bool add_text(sbp_text *out, const char *name) {
    return sbp_gpu_add_file(out, sbp_vulkan_files, name);
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
    (void)add_text(out, "prelude.glsl");
    if (rowmath)
        (void)add_text(out, "rowmath.h");
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
        (void)add_text(out, "pairs.glsl");
    const sbp_gpu_row_shape shape = sbp_gpu_row_shape_plain(&narrow, 0);
    if (shape.mode != SBP_GPU_ROW_FLAT && shape.mode != SBP_GPU_ROW_COLUMNS)
        (void)add_text(out, "group.glsl");
    sbp_gpu_emit_row(out, &narrow, &shape, &sbp_gpu_glsl);
}

/* Definitions that not every shader has. */
static void define_more(sbp_text *text, const sbp_command *command, const sbp_command_traits *traits,
                        const sbp_dtype *dtypes, const sbp_gpu_key *key) {
    const sbp_attention_attrs *at = &command->u.attention;
    const sbp_delta_attrs *a = &command->u.delta;
    switch (traits->items) {
    case SBP_ITEMS_ELEMENTS:
        if (dtypes[0] == dtypes[1])
            sbp_text_add(text, "#define SAME\n");
        break;
    case SBP_ITEMS_COLUMNS:
        sbp_text_add(text, "#define COLUMNS %du\n", SBP_VULKAN_COLSUM_COLUMNS);
        break;
    case SBP_ITEMS_TILES:
        sbp_text_add(text, "#define TA %d\n#define TB %d\n#define TILE %d\n#define MATRIX_DEPTH %d\n",
                     key->ta, key->tb, sbp_vulkan_gemm_side((sbp_vulkan_gemm)key->variant),
                     SBP_VULKAN_GEMM_DEPTH);
        break;
    case SBP_ITEMS_QUERIES:
        sbp_text_add(text, "#define D_QK %d\n#define D_V %d\n#define TILE %d\n", (int)at->d_qk, (int)at->d_v,
                     SBP_VULKAN_ATTENTION_TILE);
        break;
    case SBP_ITEMS_STATES:
        sbp_text_add(
            text, "#define D_K %d\n#define D_V %d\n#define BLOCK %d\n#define STEP %d\n#define CORRECTS %d\n",
            (int)a->d_k, (int)a->d_v, SBP_DELTA_BLOCK, (int)key->step, (int)a->corrects);
        break;
    case SBP_ITEMS_SLOTS: /* step 0: which slots an expert has; step 1: the product */
        sbp_text_add(text, "#define STEP %d\n#define TB %d\n#define PATCH %d\n", (int)key->step, key->tb,
                     SBP_VULKAN_EXPERT_PATCH);
        break;
    case SBP_ITEMS_PARTS:
        sbp_text_add(text, "#define OP %d\n#define GROUP group_%s\n", (int)command->u.reduce.op,
                     command->u.reduce.op == SBP_REDUCE_MAX ? "max" : "sum");
        if (key->no64)
            sbp_text_add(text, "%s%s", key->step > 0 ? "#define END\n" : "",
                         dtypes[traits->item_operand] == SBP_F64 ? "#define FROM_F64\n" : "");
        break;
    default:
        break;
    }
}

/* The shader of a command is in the file that is called like it, but for those that have several. */
static void add_name(sbp_text *name, const sbp_command_traits *traits, const sbp_gpu_key *key) {
    sbp_vulkan_gemm gemm = (sbp_vulkan_gemm)key->variant;
    const char *own = sbp_command_name((sbp_command_kind)key->kind);
    if (traits->items == SBP_ITEMS_TILES)
        sbp_text_add(name, "gemm_%s",
                     sbp_vulkan_gemm_names[gemm == SBP_VULKAN_MATRIX_WIDE ? SBP_VULKAN_MATRIX : gemm]);
    else if (traits->items == SBP_ITEMS_QUERIES && traits->backward)
        sbp_text_add(name, "%s", key->step == 0 ? "attn_dq" : "attn_dkv");
    else if (traits->items == SBP_ITEMS_SLOTS && key->step == 0)
        sbp_text_add(name, "expert_ranges");
    else if (traits->items == SBP_ITEMS_PARTS)
        sbp_text_add(name, "%s%s", own, key->no64 ? "_pairs" : key->step > 0 ? "_end" : "");
    else
        sbp_text_add(name, "%s", own);
}

sbp_status sbp_vulkan_shader_make(sbp_arena *arena, sbp_diag *diag, const sbp_program *program,
                                  const sbp_command *command, const sbp_dtype *dtypes, const sbp_gpu_key *key,
                                  sbp_vulkan_shader *out) {
    const sbp_command_traits *traits = sbp_command_traits_of(command->kind);
    const sbp_rowkernel *kernel = sbp_command_kernel(program, command);
    sbp_text text, name;
    sbp_text_init(&text, arena);
    sbp_text_init(&name, arena);
    *out = (sbp_vulkan_shader){.key = *key, .exact = true};
    if (kernel) {
        make_row(&text, kernel, key->no64);
        out->text = text.data;
        return SBP_OK;
    }
    bool no64 = key->no64, real_f64 = sbp_command_sums_in_f64(command->kind, dtypes) && !no64;
    bool rowmath = traits->items == SBP_ITEMS_QUERIES || traits->items == SBP_ITEMS_STATES;
    if (traits->items == SBP_ITEMS_TILES) {
        out->matrix = sbp_vulkan_gemm_is_matrix((sbp_vulkan_gemm)key->variant);
        out->bf16 = dtypes[SBP_GEMM_A] == SBP_BF16;
    }
    if (traits->items == SBP_ITEMS_TILES || (traits->items == SBP_ITEMS_SLOTS && key->step > 0))
        out->exact = false;
    add_prelude(&text, real_f64 || (!no64 && any_f64(dtypes, command->view_count)), real_f64, rowmath,
                out->matrix);
    if (dtypes[0] != SBP_DTYPE_COUNT)
        sbp_text_add(&text, "#define BYTES %d\n", (int)sbp_dtype_bytes(dtypes[0]));
    sbp_gpu_define_operands(&text, program, command, dtypes, define_operand);
    define_more(&text, command, traits, dtypes, key);
    add_name(&name, traits, key);
    if (!sbp_gpu_add_kernel(&text, sbp_vulkan_files, name.data, "comp", "plain.glsl"))
        return sbp_fail(diag, SBP_MACHINE, "the Vulkan backend has no shader for '%s' yet",
                        sbp_command_name(command->kind));
    out->text = text.data;
    return SBP_OK;
}
