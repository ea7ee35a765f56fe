/* row.c: the shapes of row kernels. */
#include "backends/gpu/row.h"

enum {
    WARP = 32,
    FLAT_THREADS = 256,
    TEAM_THREADS = 256, /* of a group whose teams are warps or less */
    MOST_WIDTH = 8,
    MOST_BYTES = 16,  /* of a load or store */
    WARP_VECTORS = 3, /* most per thread, of a row that one warp takes */
    BLOCK_THREADS = 512,
    SHARED_BYTES = 32 << 10 /* for the sums of teams (blocks) */
};

/* What the mode depends on. */
typedef struct traits {
    bool partial, reduces, over_heads, headless_store, headed_partial, headless_partial;
} traits;

static traits traits_of(const sbp_rowkernel *kernel) {
    traits t = {0};
    for (int32_t i = 0; i < kernel->instr_count; i++) {
        const sbp_rk_instr *instr = &kernel->instrs[i];
        bool headed = instr->vary & SBP_VARY_HEAD;
        t.reduces |= sbp_rk_is_reduction(instr);
        t.over_heads |= sbp_rk_is_reduction(instr) && (instr->axes & SBP_VARY_HEAD);
        t.headless_store |= instr->op == SBP_RK_STORE && !headed;
        t.partial |= instr->op == SBP_RK_PARTIAL_ADD;
        t.headed_partial |= instr->op == SBP_RK_PARTIAL_ADD && headed;
        t.headless_partial |= instr->op == SBP_RK_PARTIAL_ADD && !headed;
    }
    return t;
}

sbp_gpu_row_mode sbp_gpu_row_mode_of(const sbp_rowkernel *kernel) {
    traits t = traits_of(kernel);
    if (t.partial)
        return t.reduces ? SBP_GPU_ROW_BLOCKS : SBP_GPU_ROW_COLUMNS;
    if (!t.reduces)
        return SBP_GPU_ROW_FLAT;
    return kernel->heads > 1 && (t.over_heads || t.headless_store) ? SBP_GPU_ROW_ROWS : SBP_GPU_ROW_HEADS;
}

/* ---- widths ----------------------------------------------------------------------------------------- */

/* Elements that fit into 16 bytes of every operand that varies with them; 1 when some length, offset or
 * stride is no multiple. */
static int32_t width_of(const sbp_rowkernel *kernel) {
    int32_t width = MOST_WIDTH;
    bool any = false;
    for (int32_t i = 0; i < kernel->operand_count; i++) {
        const sbp_rk_operand *o = &kernel->operands[i];
        if (!(o->vary & SBP_VARY_ELEM))
            continue;
        any = true;
        while (width * sbp_dtype_bytes(o->dtype) > MOST_BYTES)
            width /= 2;
    }
    for (int32_t i = 0; i < kernel->operand_count; i++) {
        const sbp_rk_operand *o = &kernel->operands[i];
        if ((o->vary & SBP_VARY_ELEM) && kernel->heads > 1 && o->head_stride % width != 0)
            return 1;
    }
    for (int32_t i = 0; i < kernel->instr_count; i++) {
        const sbp_rk_instr *instr = &kernel->instrs[i];
        bool moves = instr->op == SBP_RK_LOAD || instr->op == SBP_RK_STORE || instr->op == SBP_RK_PARTIAL_ADD;
        if (!(instr->vary & SBP_VARY_ELEM))
            continue;
        if (instr->length % width != 0 || (moves && instr->offset % width != 0))
            return 1;
    }
    return any ? width : 1;
}

/* ---- shapes ----------------------------------------------------------------------------------------- */

static int32_t round_up(int64_t n, int64_t unit) {
    return (int32_t)sbp_round_up(n, unit);
}

/* Threads that share a row of `vectors` vectors: the smallest power of two of a warp that takes two each, a
 * warp up to three, then whole warps of two each, up to 16: with 1024 threads each has 64 registers, which do
 * not suffice for large rows. */
static int32_t lanes_for(int64_t vectors) {
    int32_t lanes = 4;
    while (lanes < WARP && lanes * 2 < vectors)
        lanes *= 2;
    if (vectors <= WARP * WARP_VECTORS)
        return lanes;
    if (vectors <= 2 * BLOCK_THREADS)
        return round_up(sbp_ceil_div(vectors, 2), WARP);
    return BLOCK_THREADS;
}

/* Bytes of shared memory of a team: a number per column that its row adds. */
static int64_t summed_bytes(const sbp_rowkernel *kernel) {
    int64_t bytes = 0;
    for (int32_t i = 0; i < kernel->instr_count; i++) {
        const sbp_rk_instr *instr = &kernel->instrs[i];
        if (instr->op == SBP_RK_PARTIAL_ADD)
            bytes += instr->length * sbp_dtype_bytes(kernel->operands[instr->index].dtype);
    }
    return bytes;
}

/* Numbers that a row has for each thread of a group. */
static int64_t places_of(const sbp_rowkernel *kernel, const sbp_gpu_row_shape *shape) {
    int64_t across = kernel->n / shape->width;
    if (shape->mode == SBP_GPU_ROW_COLUMNS && traits_of(kernel).headless_partial)
        return across; /* the thread loops over the heads */
    return across * kernel->heads;
}

static void set_teams(const sbp_rowkernel *kernel, sbp_gpu_row_shape *shape) {
    int32_t teams = 1;
    shape->lanes = lanes_for(sbp_ceil_div(kernel->n, shape->width));
    if (shape->lanes <= WARP)
        teams = TEAM_THREADS / shape->lanes;
    if (shape->mode == SBP_GPU_ROW_BLOCKS) {
        int64_t bytes = summed_bytes(kernel), heads = shape->heads_apart ? kernel->heads : 1;
        while (SBP_PARTIAL_ROWS * heads % teams != 0) /* all teams are in one block at a time */
            teams /= 2;
        while (teams > 1 && teams * bytes > SHARED_BYTES)
            teams /= 2;
        if (shape->lanes > WARP && 2 * bytes <= SHARED_BYTES && 2 * shape->lanes <= BLOCK_THREADS)
            teams = 2;
    }
    shape->threads = teams * shape->lanes;
}

bool sbp_gpu_row_shape_of(const sbp_rowkernel *kernel, bool vector, sbp_gpu_row_shape *out) {
    traits t = traits_of(kernel);
    bool by_head = kernel->heads > 1 && !t.over_heads && !t.headless_store && !t.headed_partial;
    *out = (sbp_gpu_row_shape){.mode = sbp_gpu_row_mode_of(kernel), .width = vector ? width_of(kernel) : 1};
    bool loops =
        out->mode == SBP_GPU_ROW_ROWS || (out->mode == SBP_GPU_ROW_BLOCKS && kernel->heads > 1 && !by_head);
    if (vector &&
        (out->width == 1 || loops)) /* where a team loops over heads it takes one element at a time */
        return false;
    switch (out->mode) {
    case SBP_GPU_ROW_FLAT:
    case SBP_GPU_ROW_COLUMNS:
        out->threads = FLAT_THREADS;
        break;
    case SBP_GPU_ROW_BLOCKS:
        out->heads_apart = by_head; /* fall through */
    case SBP_GPU_ROW_ROWS:
    case SBP_GPU_ROW_HEADS:
        if (loops)
            out->threads = round_up(lanes_for(sbp_ceil_div(kernel->n, out->width)), WARP);
        else
            set_teams(kernel, out);
        break;
    }
    return true;
}

sbp_gpu_row_shape sbp_gpu_row_shape_plain(const sbp_rowkernel *kernel, int32_t threads) {
    return (sbp_gpu_row_shape){.mode = sbp_gpu_row_mode_of(kernel), .width = 1, .threads = threads};
}

/* ---- launches --------------------------------------------------------------------------------------- */

int32_t sbp_gpu_row_teams(const sbp_gpu_row_shape *shape) {
    return shape->lanes > 0 ? shape->threads / shape->lanes : 1;
}

bool sbp_gpu_row_packs(const sbp_rowkernel *kernel, const sbp_gpu_row_shape *shape) {
    return places_of(kernel, shape) < SBP_GPU_ROW_PACKED;
}

int64_t sbp_gpu_row_groups(const sbp_rowkernel *kernel, const sbp_gpu_row_shape *shape, int64_t rows) {
    bool flat = shape->mode == SBP_GPU_ROW_FLAT;
    int64_t places, blocks = sbp_ceil_div(rows, SBP_PARTIAL_ROWS);
    switch (shape->mode) {
    case SBP_GPU_ROW_FLAT:
    case SBP_GPU_ROW_COLUMNS:
        places = places_of(kernel, shape);
        if (sbp_gpu_row_packs(kernel, shape))
            return sbp_ceil_div((flat ? rows : blocks) * places, shape->threads);
        return (flat ? rows : blocks) * sbp_ceil_div(places, shape->threads);
    case SBP_GPU_ROW_HEADS:
        return sbp_ceil_div(rows * kernel->heads, sbp_gpu_row_teams(shape));
    case SBP_GPU_ROW_ROWS:
        return rows;
    case SBP_GPU_ROW_BLOCKS:
        break;
    }
    return blocks;
}

bool sbp_gpu_row_suits(const sbp_rowkernel *kernel, const sbp_gpu_row_shape *shape,
                       const sbp_gpu_args *args) {
    for (int32_t i = 0; i < kernel->operand_count; i++) {
        const sbp_rk_operand *o = &kernel->operands[i];
        const sbp_gpu_operand *at = &args->operands[i];
        uint64_t unit = (uint64_t)(shape->width * sbp_dtype_bytes(o->dtype));
        if ((o->vary & SBP_VARY_ELEM) &&
            (at->address % unit != 0 || (at->rows > 1 && at->stride % shape->width != 0)))
            return false;
    }
    return true;
}
