/* args.c: how many workgroups of its modules a command needs. */
#include "backends/vulkan/abi.h"

#include "backends/gpu/row.h"
#include "ir/base/census.h"

#include <stdlib.h>
#include <string.h>

/* ---- variants of matmuls ---- */

enum { LOCAL = 128, SOFTWARE_LOCAL = 64 }; /* of most commands, sbp_vulkan_local_size */
enum { TILED_LOCAL = 256 };                /* gemm_tile.glsl counts on it */
enum { MATRIX_LOCAL = 128, MATRIX_WIDE_LOCAL = 256, PADDING = 8 };

bool sbp_vulkan_shape_fits(const sbp_vulkan_shape *shape) {
    return (shape->m == 8 || shape->m == 16) && (shape->n == 8 || shape->n == 16) &&
           (shape->k == 8 || shape->k == 16 || shape->k == 32);
}

/* Subgroups share a tile evenly; what one of them computes is square or twice as high as wide. */
static sbp_vulkan_matrix matrix_for(const sbp_vulkan_machine *machine, sbp_vulkan_gemm gemm,
                                    sbp_dtype dtype) {
    const sbp_vulkan_shape shape = dtype == SBP_F16    ? machine->f16
                                   : dtype == SBP_BF16 ? machine->bf16
                                                       : (sbp_vulkan_shape){0};
    uint32_t side = (uint32_t)sbp_vulkan_gemm_side(gemm), rows = 8, lanes = machine->subgroup_size;
    uint32_t local = gemm == SBP_VULKAN_MATRIX_WIDE ? MATRIX_WIDE_LOCAL : MATRIX_LOCAL;
    const sbp_vulkan_matrix none = {0};
    if (!sbp_vulkan_gemm_is_matrix(gemm) || shape.m == 0 || lanes < 8 || lanes > local ||
        (lanes & (lanes - 1)) != 0)
        return none;
    uint32_t area = side * side / (local / lanes);
    while (rows * rows < area)
        rows *= 2;
    /* shared memory: a and b, 2 bytes an element, and a matrix of sums per subgroup */
    uint32_t staged = 2 * 2 * side * (SBP_VULKAN_GEMM_DEPTH + PADDING);
    uint32_t sums = local / lanes * shape.m * shape.n * 4;
    if (rows % shape.m != 0 || area / rows % shape.n != 0 || staged + sums > machine->shared_bytes)
        return none;
    return (sbp_vulkan_matrix){shape.m, shape.n, shape.k, rows, area / rows};
}

/* Invocations of a workgroup; 0: this machine cannot run it. Direct matmuls it always can. */
static uint32_t gemm_local_size(const sbp_vulkan_machine *machine, sbp_vulkan_gemm gemm, sbp_dtype dtype) {
    bool shares = machine->shared_bytes >= 1 << 15;
    uint32_t size = gemm == SBP_VULKAN_MATRIX ? MATRIX_LOCAL : 256;
    if (gemm == SBP_VULKAN_DIRECT)
        return machine->software ? 8 : 64;
    if (sbp_vulkan_gemm_is_matrix(gemm) && matrix_for(machine, gemm, dtype).m == 0)
        return 0;
    return shares && size <= machine->max_local_size ? size : 0;
}

/* A software driver has no use for shared memory: direct, but where tests ask for more. */
static bool always_direct(const sbp_vulkan_machine *machine) {
    return machine->software && machine->gemm == SBP_VULKAN_ANY && !machine->by_size;
}

/* The variant of a matmul of these types; rows, cols: of d. The wide ones have no registers to spare for
 * sums of sums, so long ones, which want them, are not theirs. */
static sbp_vulkan_gemm choose_gemm(const sbp_vulkan_machine *machine, const sbp_dtype *dtypes, int64_t rows,
                                   int64_t cols, int64_t depth) {
    static const sbp_vulkan_gemm order[] = {SBP_VULKAN_MATRIX_WIDE, SBP_VULKAN_MATRIX, SBP_VULKAN_WIDE,
                                            SBP_VULKAN_TILED};
    if (machine->gemm == SBP_VULKAN_DIRECT || always_direct(machine) ||
        gemm_local_size(machine, SBP_VULKAN_TILED, dtypes[1]) == 0)
        return SBP_VULKAN_DIRECT;
    bool large = sbp_ceil_div(rows, SBP_VULKAN_GEMM_WIDE) * sbp_ceil_div(cols, SBP_VULKAN_GEMM_WIDE) >=
                 SBP_VULKAN_GEMM_GROUPS;
    for (int i = 0; i < SBP_COUNT(order); i++) {
        bool wide = sbp_vulkan_gemm_side(order[i]) == SBP_VULKAN_GEMM_WIDE;
        bool wanted = order[i] == machine->gemm || order[i] == SBP_VULKAN_TILED;
        if (machine->gemm == SBP_VULKAN_ANY)
            wanted = large || !wide;
        SBP_CROSS_IF(wanted && wide && depth > SBP_VULKAN_GEMM_CHAIN, vulkan_gemm_too_deep);
        if (wide && depth > SBP_VULKAN_GEMM_CHAIN)
            wanted = false;
        SBP_CROSS_IF(wanted && machine->gemm == SBP_VULKAN_ANY && wide, vulkan_gemm_large);
        SBP_CROSS_IF(wanted && machine->gemm == SBP_VULKAN_ANY && !large, vulkan_gemm_small);
        if (wanted && sbp_vulkan_gemm_exists(order[i], dtypes) &&
            gemm_local_size(machine, order[i], dtypes[SBP_GEMM_A]) > 0)
            return order[i];
    }
    return SBP_VULKAN_TILED;
}

static int64_t gemm_groups(const sbp_vulkan_machine *machine, sbp_vulkan_gemm gemm, int64_t rows,
                           int64_t cols) {
    int64_t side = sbp_vulkan_gemm_side(gemm);
    int64_t tiles = sbp_ceil_div(rows, side) * sbp_ceil_div(cols, side);
    return gemm == SBP_VULKAN_DIRECT ? sbp_ceil_div(tiles, gemm_local_size(machine, gemm, SBP_F32)) : tiles;
}

/* Modules that choose_gemm() can choose; where tests ask for one variant, that and what replaces it. */
static uint32_t module_gemm_size(const sbp_vulkan_machine *machine, const sbp_gpu_key *key) {
    sbp_vulkan_gemm asked = machine->gemm, gemm = (sbp_vulkan_gemm)key->variant;
    sbp_dtype dtype = (sbp_dtype)key->dtypes[SBP_GEMM_A];
    if (dtype == SBP_DTYPE_COUNT)
        return 0;
    if (always_direct(machine))
        asked = SBP_VULKAN_DIRECT;
    bool staged = asked != SBP_VULKAN_DIRECT && gemm_local_size(machine, SBP_VULKAN_TILED, dtype) > 0;
    bool wanted = gemm == SBP_VULKAN_DIRECT  ? !staged
                  : gemm == SBP_VULKAN_TILED ? staged
                                             : staged && (asked == SBP_VULKAN_ANY || gemm == asked);
    return wanted ? gemm_local_size(machine, gemm, dtype) : 0;
}

sbp_vulkan_matrix sbp_vulkan_matrix_of(const sbp_gpu_key *key, const sbp_vulkan_machine *machine) {
    return sbp_command_traits_of((sbp_command_kind)key->kind)->items == SBP_ITEMS_TILES
               ? matrix_for(machine, (sbp_vulkan_gemm)key->variant, (sbp_dtype)key->dtypes[SBP_GEMM_A])
               : (sbp_vulkan_matrix){0};
}

/* ---- how often loops run in one invocation ----
 *
 * llvmpipe (lavapipe) counts the iterations of all loops of an invocation together, and silently leaves every
 * loop after 65535 of them. So workgroups there get as many invocations as it takes, and what cannot be
 * helped is refused (sbp_vulkan_too_long). Estimates are bounds: every store and reduction counts as a loop
 * of its own. */

/* Whether the emitter (backends/gpu/emit) puts both into the same loops. */
static bool share_loops(const sbp_rowkernel *kernel, const int32_t *levels, int32_t one, int32_t other) {
    const sbp_rk_instr *a = &kernel->instrs[one], *b = &kernel->instrs[other];
    if (sbp_rk_is_store(a) ? a->op != b->op : !sbp_rk_is_reduction(b))
        return false;
    const sbp_rk_instr *va = &kernel->instrs[a->a], *vb = &kernel->instrs[b->a];
    if (levels[one] != levels[other] || va->vary != vb->vary)
        return false;
    return sbp_rk_is_store(a) ? a->vary == b->vary && a->length == b->length
                              : a->axes == b->axes && va->length == vb->length;
}

static int64_t loop_iterations(const sbp_rowkernel *kernel, const sbp_rk_instr *instr, int64_t local) {
    const sbp_rk_instr *value = &kernel->instrs[instr->a];
    uint8_t vary = (uint8_t)(value->vary | (sbp_rk_is_store(instr) ? instr->vary : 0));
    int64_t heads = vary & SBP_VARY_HEAD ? kernel->heads : 1;
    int64_t length = value->length > instr->length ? value->length : instr->length;
    int64_t pieces = vary & SBP_VARY_ELEM ? sbp_ceil_div(length, local) : 1;
    return heads * (1 + pieces + (sbp_rk_is_reduction(instr) ? local / 8 : 0)) + pieces;
}

/* Whether a thread has elements or columns to itself. */
static bool is_flat(const sbp_rowkernel *kernel) {
    sbp_gpu_row_mode mode = sbp_gpu_row_mode_of(kernel);
    return mode == SBP_GPU_ROW_FLAT || mode == SBP_GPU_ROW_COLUMNS;
}

static int64_t row_iterations(const sbp_rowkernel *kernel, int64_t local) {
    int64_t total = 1;
    if (sbp_gpu_row_mode_of(kernel) == SBP_GPU_ROW_COLUMNS)
        return SBP_PARTIAL_ROWS * (2 + kernel->heads);
    if (is_flat(kernel))
        return total;
    int32_t levels[SBP_ROWKERNEL_MAX_INSTRS];
    sbp_rowkernel_levels(kernel, levels);
    for (int32_t i = 0; i < kernel->instr_count; i++) {
        bool first = sbp_rk_is_store(&kernel->instrs[i]) || sbp_rk_is_reduction(&kernel->instrs[i]);
        for (int32_t before = 0; first && before < i; before++)
            first = !share_loops(kernel, levels, i, before);
        if (first)
            total += loop_iterations(kernel, &kernel->instrs[i], local);
    }
    return sbp_gpu_row_mode_of(kernel) == SBP_GPU_ROW_BLOCKS ? SBP_PARTIAL_ROWS * total : total;
}

static uint32_t row_local_size(const sbp_rowkernel *kernel, const sbp_vulkan_machine *machine) {
    bool flat = is_flat(kernel);
    uint32_t size = flat ? 64 : 8;
    if (machine->software) {
        for (uint32_t wider = size; !flat && wider <= machine->max_local_size; wider *= 2)
            if (row_iterations(kernel, wider) <= SBP_VULKAN_SOFTWARE_ITERATIONS)
                return wider;
        return size;
    }
    if (flat)
        return 128;
    for (size = 32; size < 256 && size * 4 <= kernel->n;)
        size *= 2;
    return size;
}

/* Iterations per pair of tiles of attention: limits, softmax, then staging and matmuls per piece of 32
 * columns. */
static int64_t attention_tile_iterations(const sbp_attention_attrs *at, bool backward) {
    int64_t pieces_qk = sbp_ceil_div(at->d_qk, 32), pieces_v = sbp_ceil_div(at->d_v, 32);
    return backward ? 110 + 40 * pieces_qk + 48 * pieces_v : 110 + 24 * pieces_qk + 16 * pieces_v;
}

/* Loop iterations of an invocation, at most: per column of a state, all rows, `times` loops over d_k each; or
 * per row, the sums over the value heads of a key head. */
static int64_t delta_iterations(const sbp_delta_attrs *a, int64_t rows, const sbp_vulkan_machine *machine) {
    int64_t local = machine->software ? SOFTWARE_LOCAL : LOCAL, times = a->corrects ? 5 : 3;
    int64_t states = (rows + 1) * (times * a->d_k + 8);
    int64_t sums =
        a->heads / a->key_heads * sbp_ceil_div(a->d_k, local) * (2 * a->d_v + 6 * SBP_DELTA_BLOCK + local);
    return states > sums ? states : sums;
}

/* Rows of pairs of expert_gemm or expert_gemm_dw by columns: slots; and experts. */
static int64_t slots_of(const sbp_span *pairs) {
    return pairs->rows * pairs->cols;
}

/* Loop iterations of an invocation, at most: in the product, where all slots may be one expert's, the depth,
 * what is written and the search for an expert; else the slots that it orders. */
static int64_t expert_iterations(const sbp_span *v, bool is_sum) {
    int64_t slots = slots_of(&v[is_sum ? SBP_EXPERT_GEMM_DW_PAIRS : SBP_EXPERT_GEMM_PAIRS]);
    if (is_sum)
        return slots + 64;
    int64_t depth = v[SBP_EXPERT_GEMM_A].cols, experts = v[SBP_EXPERT_GEMM_BOUNDS].cols - 1;
    int64_t ranges = slots / SOFTWARE_LOCAL + SOFTWARE_LOCAL, product = depth + experts + 64;
    return ranges > product ? ranges : product;
}

/* The direct variant loops by four where a tile fits, and once per block of 256. Of the others the wide one
 * loops most, up to three times a step, and has few steps. */
static int64_t gemm_iterations(const sbp_dispatch *dispatch, const sbp_vulkan_machine *machine) {
    const sbp_span *d = &dispatch->spans[SBP_GEMM_D], *a = &dispatch->spans[SBP_GEMM_A];
    int64_t depth = dispatch->command->u.gemm.ta ? a->rows : a->cols;
    bool thin = d->rows < SBP_VULKAN_GEMM_DIRECT || d->cols < SBP_VULKAN_GEMM_DIRECT;
    if (machine->gemm != SBP_VULKAN_DIRECT && !always_direct(machine))
        return depth / 4 + (depth <= SBP_VULKAN_GEMM_CHAIN ? 3 * depth : 0) + 192;
    return (thin ? depth : depth / 4) + depth / 256 + 192;
}

static int64_t attention_iterations(const sbp_dispatch *dispatch) {
    const sbp_attention_operands *has = sbp_command_attention(dispatch->command->kind);
    const sbp_attention_attrs *at = &dispatch->command->u.attention;
    int64_t k = sbp_ceil_div(dispatch->spans[has->k].rows, SBP_VULKAN_ATTENTION_TILE);
    int64_t q = !has->backward ? 0
                               : sbp_ceil_div(dispatch->spans[has->q].rows, SBP_VULKAN_ATTENTION_TILE) *
                                     (at->heads / at->kv_heads);
    return (q > k ? q : k) * attention_tile_iterations(at, has->backward);
}

int64_t sbp_vulkan_iterations(const sbp_dispatch *dispatch, const sbp_vulkan_machine *machine) {
    const sbp_command *command = dispatch->command;
    const sbp_command_traits *traits = sbp_command_traits_of(command->kind);
    const sbp_span *v = dispatch->spans, *of = &v[traits->item_operand];
    int64_t local = machine->software ? SOFTWARE_LOCAL : LOCAL;
    switch (traits->items) {
    case SBP_ITEMS_KERNEL_ROWS:
        return row_iterations(dispatch->kernel, row_local_size(dispatch->kernel, machine));
    case SBP_ITEMS_TILES:
        return gemm_iterations(dispatch, machine);
    case SBP_ITEMS_COLUMNS:
        return v[SBP_COLSUM_SRC].rows + 64;
    case SBP_ITEMS_RUNS: /* all rows of one index, at worst */
        return of->rows + 64;
    case SBP_ITEMS_PARTS:
        return of->rows * of->cols / (SBP_VULKAN_REDUCE_GROUPS * 8) + SBP_VULKAN_REDUCE_ELEMS / 8 + 64;
    case SBP_ITEMS_QUERIES:
        return attention_iterations(dispatch);
    case SBP_ITEMS_STATES:
        return delta_iterations(&command->u.delta, of->rows, machine);
    case SBP_ITEMS_CHOICES: /* each is the best of those behind the one before it */
        return of->cols * (v[SBP_ROUTE_SCORES].cols + 1);
    case SBP_ITEMS_EXPERTS: /* slots that each invocation goes through twice, and those that go nowhere */
        return 3 * sbp_ceil_div(slots_of(&v[SBP_EXPERT_ORDER_INDEX]), local) + local;
    case SBP_ITEMS_SLOTS:
        return expert_iterations(v, traits->backward);
    case SBP_ITEMS_ELEMENTS:
    case SBP_ITEMS_BLOCKS:
    case SBP_ITEMS_NONE:
        break;
    }
    return 0;
}

bool sbp_vulkan_too_long(const sbp_dispatch *dispatch, const sbp_vulkan_machine *machine) {
    return machine->software && sbp_vulkan_iterations(dispatch, machine) > SBP_VULKAN_SOFTWARE_ITERATIONS;
}

uint32_t sbp_vulkan_local_size(const sbp_program *program, const sbp_gpu_key *key,
                               const sbp_vulkan_machine *machine) {
    uint32_t size = machine->software ? SOFTWARE_LOCAL : LOCAL;
    switch (sbp_command_traits_of((sbp_command_kind)key->kind)->items) {
    case SBP_ITEMS_KERNEL_ROWS:
        if (key->kernel < 0 || key->kernel >= program->kernel_count)
            return 0;
        size = row_local_size(program->kernels[key->kernel], machine);
        break;
    case SBP_ITEMS_TILES:
        size = module_gemm_size(machine, key);
        break;
    case SBP_ITEMS_QUERIES:
        size = 128; /* the shaders count on it */
        break;
    case SBP_ITEMS_COLUMNS:
        size = machine->software ? 32 : 256; /* a multiple of SBP_VULKAN_COLSUM_COLUMNS */
        break;
    case SBP_ITEMS_PARTS:
        size = machine->software ? 8 : 256;
        break;
    case SBP_ITEMS_NONE:
        return 0;
    default:
        break;
    }
    return size <= machine->max_local_size ? size : 0;
}

/* A linear number of workgroups: the shader's number is x + 65535 y; those beyond the last return. */
static void set_groups(sbp_vulkan_step *step, int64_t count) {
    const int64_t most = 65535;
    SBP_CROSS_EITHER(count > most, vulkan_groups_plane, vulkan_groups_line);
    step->groups[0] = (uint32_t)(count < most ? count : most);
    step->groups[1] = (uint32_t)sbp_ceil_div(count, most);
    step->groups[2] = 1;
}

/* Groups for an invocation per channel and SBP_PARTIAL_ROWS rows. With no rows, too, there is a state. */
static int64_t conv_groups(const sbp_span *x, int64_t local) {
    int64_t blocks = sbp_ceil_div(x->rows, SBP_PARTIAL_ROWS);
    return sbp_ceil_div((blocks > 1 ? blocks : 1) * x->cols, local);
}

/* Steps of delta_rule_bwd.comp; there is a dstate, of no rows, too. */
static void delta_groups(const sbp_delta_attrs *a, int64_t rows, int64_t local,
                         int64_t groups[SBP_VULKAN_STEPS]) {
    int64_t sums = rows * a->heads, state = a->heads * a->d_k * a->d_v;
    groups[0] = sbp_ceil_div(a->heads * a->d_v, local);
    groups[1] = sbp_ceil_div(rows * a->heads * SBP_DELTA_BLOCK, local);
    groups[2] = rows * a->key_heads;
    groups[3] = sbp_ceil_div(sums > state ? sums : state, local);
}

/* A workgroup per expert, then an invocation per patch: of the rows of experts, of which each has one that is
 * not full, or of the matrices of experts. */
static void expert_groups(const sbp_dispatch *dispatch, bool is_sum, int64_t local,
                          int64_t groups[SBP_VULKAN_STEPS], int64_t *scratch_bytes) {
    const sbp_span *v = dispatch->spans;
    const int64_t side = SBP_VULKAN_EXPERT_PATCH;
    const sbp_span *pairs = &v[is_sum ? SBP_EXPERT_GEMM_DW_PAIRS : SBP_EXPERT_GEMM_PAIRS];
    int64_t experts = v[is_sum ? SBP_EXPERT_GEMM_DW_BOUNDS : SBP_EXPERT_GEMM_BOUNDS].cols - 1;
    int64_t slots = slots_of(pairs), tiles = slots / side + experts, patches;
    if (is_sum) {
        int64_t n = v[SBP_EXPERT_GEMM_DW_A].cols / (dispatch->command->u.experts.a_by_slot ? pairs->cols : 1);
        int64_t m = v[SBP_EXPERT_GEMM_DW_B].cols / (dispatch->command->u.experts.b_by_slot ? pairs->cols : 1);
        patches = experts * sbp_ceil_div(n, side) * sbp_ceil_div(m, side);
    } else {
        patches =
            (tiles < slots ? tiles : slots) * sbp_ceil_div(v[SBP_EXPERT_GEMM_D].cols / pairs->cols, side);
    }
    groups[0] = patches > 0 ? experts : 0;
    groups[1] = sbp_ceil_div(patches, local);
    *scratch_bytes = sbp_gpu_expert_scratch(experts);
}

static int64_t row_groups(const sbp_dispatch *dispatch, const sbp_vulkan_machine *machine) {
    int32_t local = (int32_t)row_local_size(dispatch->kernel, machine);
    const sbp_gpu_row_shape shape = sbp_gpu_row_shape_plain(dispatch->kernel, local);
    SBP_CROSS_IF(shape.mode == SBP_GPU_ROW_FLAT, vulkan_row_flat);
    SBP_CROSS_IF(shape.mode == SBP_GPU_ROW_COLUMNS, vulkan_row_columns);
    SBP_CROSS_IF(shape.mode == SBP_GPU_ROW_HEADS, vulkan_row_heads);
    SBP_CROSS_IF(shape.mode == SBP_GPU_ROW_ROWS, vulkan_row_rows);
    SBP_CROSS_IF(shape.mode == SBP_GPU_ROW_BLOCKS, vulkan_row_blocks);
    SBP_CROSS_IF(!is_flat(dispatch->kernel) && local > 8, vulkan_row_wider);
    if (is_flat(dispatch->kernel))
        SBP_CROSS_EITHER(sbp_gpu_row_packs(dispatch->kernel, &shape), vulkan_row_packed, vulkan_row_apart);
    return sbp_gpu_row_groups(dispatch->kernel, &shape, dispatch->rows);
}

static int64_t reduce_groups(const sbp_span *src) {
    int64_t groups = sbp_ceil_div(src->rows * src->cols, SBP_VULKAN_REDUCE_ELEMS);
    return groups < 1 ? 1 : groups < SBP_VULKAN_REDUCE_GROUPS ? groups : SBP_VULKAN_REDUCE_GROUPS;
}

bool sbp_vulkan_work_fits(const sbp_dispatch *dispatch) {
    const sbp_command_traits *traits = sbp_command_traits_of(dispatch->command->kind);
    const sbp_span *v = dispatch->spans;
    if (traits->items != SBP_ITEMS_STATES ||
        (!traits->backward && !sbp_gpu_is_empty(&v[SBP_DELTA_RULE_NEXT])))
        return true;
    const sbp_span *k = &v[traits->item_operand], *work = &v[traits->scratch];
    return work->space != SBP_SPACE_COUNT && work->rows >= sbp_gpu_delta_rows(k->rows, traits->backward) &&
           work->cols >= sbp_gpu_delta_columns(&dispatch->command->u.delta, traits->backward);
}

static void cross_gemm(sbp_vulkan_gemm gemm, const sbp_span *d) {
    bool thin = d->rows < SBP_VULKAN_GEMM_DIRECT || d->cols < SBP_VULKAN_GEMM_DIRECT;
    SBP_CROSS_IF(gemm == SBP_VULKAN_DIRECT, vulkan_gemm_direct);
    SBP_CROSS_IF(gemm == SBP_VULKAN_DIRECT && thin, vulkan_gemm_thin);
    SBP_CROSS_IF(gemm == SBP_VULKAN_TILED, vulkan_gemm_tiled);
    SBP_CROSS_IF(gemm == SBP_VULKAN_WIDE, vulkan_gemm_wide);
    SBP_CROSS_IF(gemm == SBP_VULKAN_MATRIX, vulkan_gemm_matrix);
    SBP_CROSS_IF(gemm == SBP_VULKAN_MATRIX_WIDE, vulkan_gemm_matrix_wide);
}

/* Workgroups of each step of a command; whether a step waits for the one before it. */
static bool find_groups(const sbp_dispatch *dispatch, const sbp_vulkan_machine *machine, sbp_vulkan_gemm gemm,
                        int64_t groups[SBP_VULKAN_STEPS], int64_t *scratch_bytes) {
    const sbp_command *command = dispatch->command;
    const sbp_command_traits *traits = sbp_command_traits_of(command->kind);
    const sbp_span *v = dispatch->spans, *of = &v[traits->item_operand];
    const sbp_attention_operands *has = sbp_command_attention(command->kind);
    int64_t local = machine->software ? SOFTWARE_LOCAL : LOCAL;
    switch (traits->items) {
    case SBP_ITEMS_ELEMENTS: /* an invocation per element */
    case SBP_ITEMS_RUNS:
        groups[0] = sbp_ceil_div(of->rows * of->cols, local);
        return false;
    case SBP_ITEMS_TILES:
        groups[0] = gemm_groups(machine, gemm, of->rows, of->cols);
        return false;
    case SBP_ITEMS_KERNEL_ROWS:
        groups[0] = row_groups(dispatch, machine);
        return false;
    case SBP_ITEMS_COLUMNS:
        groups[0] = of->rows > 0 ? sbp_ceil_div(of->cols, SBP_VULKAN_COLSUM_COLUMNS) : 0;
        return false;
    case SBP_ITEMS_BLOCKS:
        groups[0] = conv_groups(of, local);
        return false;
    case SBP_ITEMS_STATES:
        groups[0] = sbp_ceil_div(command->u.delta.heads * command->u.delta.d_v, local);
        if (traits->backward)
            delta_groups(&command->u.delta, of->rows, local, groups);
        return traits->backward;
    case SBP_ITEMS_CHOICES:
        groups[0] = sbp_ceil_div(of->rows, local);
        return false;
    case SBP_ITEMS_EXPERTS:
        groups[0] = of->cols - 1;
        return false;
    case SBP_ITEMS_SLOTS:
        expert_groups(dispatch, traits->backward, local, groups, scratch_bytes);
        return true;
    case SBP_ITEMS_QUERIES: /* backward: dq, then dk and dv, which do not wait for it */
        groups[0] = sbp_ceil_div(of->rows, SBP_VULKAN_ATTENTION_TILE) * command->u.attention.heads;
        if (has->backward && of->rows > 0)
            groups[1] =
                sbp_ceil_div(v[has->k].rows, SBP_VULKAN_ATTENTION_TILE) * command->u.attention.kv_heads;
        return false;
    case SBP_ITEMS_PARTS:
        groups[0] = v[traits->empty].rows > 0 && v[traits->empty].cols > 0 ? reduce_groups(of) : 0;
        groups[1] = groups[0] > 0 ? 1 : 0;
        SBP_CROSS_EITHER(groups[0] > 1, vulkan_reduce_groups, vulkan_reduce_group);
        SBP_CROSS_IF(groups[0] == SBP_VULKAN_REDUCE_GROUPS, vulkan_reduce_most_groups);
        *scratch_bytes = SBP_VULKAN_REDUCE_GROUPS * 8;
        return true;
    case SBP_ITEMS_NONE:
        break;
    }
    return false;
}

int32_t sbp_vulkan_steps(const sbp_dispatch *dispatch, const sbp_vulkan_machine *machine,
                         sbp_vulkan_step *steps, int64_t *scratch_bytes) {
    const sbp_command *command = dispatch->command;
    const sbp_span *v = dispatch->spans;
    sbp_gpu_key keys[SBP_VULKAN_STEPS];
    sbp_dtype dtypes[SBP_MAX_COMMAND_OPERANDS];
    int64_t groups[SBP_VULKAN_STEPS] = {0};
    sbp_vulkan_gemm gemm = SBP_VULKAN_DIRECT;
    *scratch_bytes = 0;
    sbp_gpu_dispatch_dtypes(dispatch, dtypes);
    if (sbp_command_traits_of(command->kind)->items == SBP_ITEMS_TILES) {
        gemm = choose_gemm(machine, dtypes, v[SBP_GEMM_D].rows, v[SBP_GEMM_D].cols,
                           command->u.gemm.ta ? v[SBP_GEMM_A].rows : v[SBP_GEMM_A].cols);
        cross_gemm(gemm, &v[SBP_GEMM_D]);
    }
    int32_t count = sbp_vulkan_step_keys(command, dtypes, gemm, keys);
    for (int32_t i = 0; i < count; i++)
        keys[i].no64 = machine->lacks_float64 && sbp_vulkan_uses_f64(command, dispatch->kernel);
    bool waits = find_groups(dispatch, machine, gemm, groups, scratch_bytes);
    int32_t used = 0;
    for (int32_t i = 0; i < count; i++) {
        if (groups[i] == 0)
            continue;
        sbp_vulkan_step *step = &steps[used];
        step->key = keys[i];
        set_groups(step, groups[i]);
        step->waits = used > 0 && waits;
        used++;
    }
    return used;
}

int64_t sbp_vulkan_args_fill(const sbp_dispatch *dispatch, const uint64_t addresses[SBP_SPACE_COUNT],
                             uint64_t scratch, sbp_gpu_args *out) {
    int64_t bytes = sbp_gpu_args_fill(dispatch, addresses, scratch, out);
    if (dispatch->command->kind == SBP_CMD_REDUCE) /* workgroups of the first step */
        out->ints[8] = (int32_t)reduce_groups(&dispatch->spans[SBP_REDUCE_SRC]);
    return bytes;
}
