/* cuda_attention.c: the tiles of attention's kernels, and what follows from them: definitions, launches,
 * scratch memory. */
#include "backends/cuda/cuda_attention.h"
#include "ir/base/census.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum {
    PLAIN_WARPS = 4,   /* WARPS of scalar.cuh: rows of a block */
    PREPARE_WARPS = 4, /* WARPS_HERE of mma_prepare.cu */
    PADDING = 128,     /* of mma_bwd.cuh: a multiple of every tile of queries */
    MOST_COLUMNS = SBP_CUDA_ATTENTION_COLUMNS,
    MOST_WARPS = 8,                                /* of a block: of more, threads have fewer registers */
    PART_COLUMNS = SBP_CUDA_ATTENTION_PART_COLUMNS /* whose sums fit a warp's registers: Parts of mma.cuh */
};

/* Matrices come before `first`, the columns of rows before `work`, which no key has. */
static const sbp_attention_operands *operands_of(const sbp_gpu_key *key) {
    return sbp_command_attention((sbp_command_kind)key->kind);
}

static bool is_backward(const sbp_gpu_key *key) {
    return operands_of(key)->backward;
}

/* ---- tiles by mma.sync ------------------------------------------------------------------------------- */

/* Warps whose rows stay, 16 in each strip of one, and rows of the tiles that pass by; 0: nothing fits. Where
 * a head is summed in parts, each of these rows has as many warps as there are parts. */
typedef struct tile {
    int32_t warps, strips, moving;
} tile;

static int32_t rows_of(tile t) {
    return 16 * t.strips * t.warps;
}

typedef enum products { PART_FORWARD, PART_DQ, PART_DKV, PART_DK, PART_DV } products;

/* The columns of the head that this kernel sums. */
static int32_t summed_columns(const sbp_gpu_key *key, products part) {
    return part == PART_FORWARD || part == PART_DV ? key->d_v : key->d_qk;
}

/* COUNT of Parts in mma.cuh. dk and dv together are never in parts. */
static int32_t parts_of(const sbp_gpu_key *key, products part) {
    return part != PART_DKV && summed_columns(key, part) > PART_COLUMNS ? 2 : 1;
}

/* COLUMNS of Parts in mma.cuh. */
static int32_t part_columns(const sbp_gpu_key *key, products part) {
    int32_t columns = summed_columns(key, part);
    if (parts_of(key, part) == 1)
        return columns;
    return (int32_t)sbp_round_up(columns / 2, columns % 64 == 0 ? 64 : 16);
}

static int32_t shared_bytes(const sbp_gpu_key *key, products part, tile t) {
    int32_t row = sbp_cuda_tile_pitch(key->d_qk) + sbp_cuda_tile_pitch(key->d_v), still = rows_of(t);
    if (part == PART_FORWARD) /* q and limits; k and v twice */
        return still * (sbp_cuda_tile_pitch(key->d_qk) + 16) + 2 * t.moving * row;
    return (still + 2 * t.moving) * row + (part == PART_DQ ? 0 : 16 * t.moving);
}

/* What the sums and the scores of a tile take of a thread's 255 registers, without what else it needs. */
static int32_t sum_registers(const sbp_gpu_key *key, products part, tile t) {
    int32_t moving = t.moving;
    if (part == PART_FORWARD)
        return t.strips * (part_columns(key, part) + moving) / 2;
    if (part == PART_DKV)
        return (key->d_qk + key->d_v) / 2 + moving;
    return part_columns(key, part) / 2 + moving;
}

/* The most of those with which none is spilled: tests/cuda/attention/test_attention_build.c. Scores of more
 * columns are longer sums, which take more besides, as do rows that are not swizzled; dk and dv have one
 * tile, so that neither may be of 64. */
static int32_t most_registers(const sbp_gpu_key *key, sbp_cuda_arch arch, products part, tile t) {
    bool wide = key->d_qk > PART_COLUMNS || key->d_v > PART_COLUMNS;
    bool swizzled = key->d_qk % 64 == 0 && key->d_v % 64 == 0;
    if (wide && t.moving == 64)
        return part == PART_FORWARD ? 144 : 0;
    if (wide && !swizzled && part != PART_FORWARD)
        return 120;
    if (part == PART_FORWARD)
        return t.strips == 2 && t.moving == 64 ? 144 : 160;
    if (part == PART_DQ && arch.number >= 100)
        return part_columns(key, part) > 128 ? part_columns(key, part) / 2 + 32 : 144;
    return part == PART_DKV && arch.number != 90 ? 192 : 160;
}

/* Two strips of rows share what a warp reads of the other side, where shared memory would be what everything
 * waits for: on architectures whose tensor cores are fast. Blocks are half as many warps then, so that an SM
 * must have two. */
static bool takes_strips(const sbp_gpu_key *key, sbp_cuda_arch arch, products part, tile t) {
    return part == PART_FORWARD && parts_of(key, part) == 1 && sbp_cuda_shared_limit(arch) > 128 << 10 &&
           2 * (shared_bytes(key, part, t) + 1024) <= sbp_cuda_shared_limit(arch) + 1024;
}

/* The largest tiles that fit; query tiles of all backward kernels agree with those of PART_DKV. */
static tile find_tile(const sbp_gpu_key *key, sbp_cuda_arch arch, products part) {
    static const tile tiles[] = {{4, 2, 64}, {4, 2, 32}, {8, 1, 64}, {8, 1, 32}, {4, 1, 64},
                                 {4, 1, 32}, {8, 1, 16}, {4, 1, 16}, {2, 1, 16}, {1, 1, 16}};
    for (int i = 0; i < SBP_COUNT(tiles); i++)
        if (shared_bytes(key, part, tiles[i]) <= sbp_cuda_shared_limit(arch) &&
            sum_registers(key, part, tiles[i]) <= most_registers(key, arch, part, tiles[i]) &&
            tiles[i].warps * parts_of(key, part) <= MOST_WARPS &&
            (tiles[i].strips == 1 || takes_strips(key, arch, part, tiles[i])))
            return tiles[i];
    return (tile){0};
}

/* Whether the sums of dk and dv fit the registers of one kernel. */
static bool joins_dkv(const sbp_gpu_key *key) {
    return key->d_qk + key->d_v <= PART_COLUMNS;
}

/* The tile of the kernels for dk and dv: where they are two, the smaller one, since one scratch
 * memory serves both. */
static tile key_tile(const sbp_gpu_key *key, sbp_cuda_arch arch) {
    if (joins_dkv(key))
        return find_tile(key, arch, PART_DKV);
    tile dk = find_tile(key, arch, PART_DK), dv = find_tile(key, arch, PART_DV);
    return dk.warps < dv.warps || (dk.warps == dv.warps && dk.moving < dv.moving) ? dk : dv;
}

/* Products of bf16 or of fp16; what is written or read whole of that type or fp32, the rest in fp32. */
static bool mma_has(const sbp_gpu_key *key, sbp_cuda_arch arch) {
    const uint8_t *t = key->dtypes;
    if (arch.number < 80 || key->d_qk % 16 != 0 || key->d_v % 16 != 0 || key->d_qk > MOST_COLUMNS ||
        key->d_v > MOST_COLUMNS || key->d_qk <= 0 || key->d_v <= 0)
        return false;
    uint8_t half = t[operands_of(key)->q];
    if (half != SBP_BF16 && half != SBP_F16)
        return false;
    if (!is_backward(key))
        return t[SBP_ATTN_FWD_K] == half && t[SBP_ATTN_FWD_V] == half &&
               (t[SBP_ATTN_FWD_O] == half || t[SBP_ATTN_FWD_O] == SBP_F32) &&
               t[SBP_ATTN_FWD_LSE] == SBP_F32 && find_tile(key, arch, PART_FORWARD).warps > 0;
    return t[SBP_ATTN_BWD_K] == half && t[SBP_ATTN_BWD_V] == half && t[SBP_ATTN_BWD_DO] == half &&
           (t[SBP_ATTN_BWD_O] == half || t[SBP_ATTN_BWD_O] == SBP_F32) &&
           (t[SBP_ATTN_BWD_DQ] == half || t[SBP_ATTN_BWD_DQ] == SBP_F32) && t[SBP_ATTN_BWD_DK] == SBP_F32 &&
           t[SBP_ATTN_BWD_DV] == SBP_F32 && t[SBP_ATTN_BWD_LSE] == SBP_F32 &&
           find_tile(key, arch, PART_DQ).warps > 0 && key_tile(key, arch).warps > 0;
}

/* ---- tiles by wgmma ---------------------------------------------------------------------------------- */

enum { WGMMA_ROWS = 128, WGMMA_QUERIES = 64, WGMMA_THREADS = 384, WGMMA_BARRIERS = 9, SLAB_COLUMNS = 64 };

/* Heads for which wgmma.cuh has products. */
static bool wgmma_has(const sbp_gpu_key *key, sbp_cuda_arch arch) {
    int32_t d = key->d_qk;
    return mma_has(key, arch) && arch.number == 90 && arch.specific && d == key->d_v &&
           (d == 64 || d == 80 || d == 96 || d == 128);
}

static int32_t slab_bytes(int32_t columns, int32_t rows) {
    return (int32_t)sbp_round_up(columns, SLAB_COLUMNS) * 2 * rows;
}

/* Boxes of 64 columns of one head; the columns behind a head that is no multiple of 64 are outside, so zeros.
 */
static sbp_cuda_tensor_map head_map(const sbp_gpu_key *key, const sbp_gpu_operand *o, int32_t columns,
                                    int32_t heads, int32_t rows) {
    return (sbp_cuda_tensor_map){.address = o->address,
                                 .dtype = (sbp_dtype)key->dtypes[operands_of(key)->q],
                                 .rank = 3,
                                 .swizzle = 128,
                                 .dims = {(uint64_t)columns, (uint64_t)heads, (uint64_t)o->rows},
                                 .strides = {(uint64_t)columns * 2, (uint64_t)o->stride * 2},
                                 .box = {SLAB_COLUMNS, 1, (uint32_t)rows}};
}

/* ---- kernels ----------------------------------------------------------------------------------------- */

static bool is_type(uint8_t dtype, bool index) {
    if (index)
        return dtype >= SBP_I8 && dtype <= SBP_I64;
    return dtype <= SBP_F16;
}

/* fp64 goes with fp64 only, see ir/program/program.h. */
static bool plain_has(const sbp_gpu_key *key) {
    const sbp_attention_operands *has = operands_of(key);
    for (int32_t i = 0; i < has->work; i++)
        if (!is_type(key->dtypes[i], i >= has->first))
            return false;
    return key->d_qk > 0 && key->d_v > 0;
}

int32_t sbp_cuda_attention_steps(const sbp_gpu_key *key, sbp_cuda_arch arch) {
    if (!operands_of(key))
        return 0;
    if (!plain_has(key))
        return 0;
    switch (key->variant) {
    case SBP_CUDA_PLAIN:
        return is_backward(key) ? 2 : 1;
    case SBP_CUDA_MMA:
        if (!mma_has(key, arch))
            return 0;
        return !is_backward(key) ? 1 : joins_dkv(key) ? 3 : 4;
    case SBP_CUDA_WGMMA:
        return !wgmma_has(key, arch) ? 0 : is_backward(key) ? 3 : 1;
    default:
        return 0;
    }
}

static void define(sbp_cuda_attention_source *out, const char *name, int32_t value) {
    size_t at = strlen(out->defines);
    snprintf(out->defines + at, sizeof out->defines - at, "#define %s %d\n", name, (int)value);
}

static void set_files(sbp_cuda_attention_source *out, int count, ...) {
    va_list names;
    va_start(names, count);
    for (int i = 0; i < count; i++)
        out->files[i] = va_arg(names, const char *);
    va_end(names);
}

/* The part that a step of the backward pass computes; step 0 prepares. */
static products backward_part(const sbp_gpu_key *key) {
    if (key->step == 1)
        return PART_DQ;
    if (joins_dkv(key))
        return PART_DKV;
    return key->step == 2 ? PART_DV : PART_DK;
}

static void mma_source(const sbp_gpu_key *key, sbp_cuda_arch arch, sbp_cuda_attention_source *out) {
    if (!is_backward(key)) {
        tile t = find_tile(key, arch, PART_FORWARD);
        define(out, "WARPS", t.warps);
        define(out, "STRIPS", t.strips);
        define(out, "KEYS", t.moving);
        set_files(out, 4, "common.cuh", "tiles.cuh", "mma.cuh", "mma_fwd.cu");
        return;
    }
    define(out, "QUERIES", key_tile(key, arch).moving);
    if (key->step == 0) {
        set_files(out, 5, "common.cuh", "tiles.cuh", "mma.cuh", "mma_bwd.cuh", "mma_prepare.cu");
        return;
    }
    products part = backward_part(key);
    tile t = part == PART_DQ ? find_tile(key, arch, PART_DQ) : key_tile(key, arch);
    define(out, "WARPS", t.warps);
    if (part == PART_DQ)
        define(out, "KEYS", t.moving);
    define(out, "WANT_DK", part != PART_DV);
    define(out, "WANT_DV", part != PART_DK);
    set_files(out, 5, "common.cuh", "tiles.cuh", "mma.cuh", "mma_bwd.cuh",
              part == PART_DQ ? "mma_dq.cu" : "mma_dkv.cu");
}

static void wgmma_source(const sbp_gpu_key *key, sbp_cuda_attention_source *out) {
    if (!is_backward(key)) {
        set_files(out, 5, "common.cuh", "tiles.cuh", "mma.cuh", "wgmma.cuh", "wgmma_fwd.cu");
        return;
    }
    define(out, "QUERIES", WGMMA_QUERIES);
    if (key->step == 0)
        set_files(out, 5, "common.cuh", "tiles.cuh", "mma.cuh", "mma_bwd.cuh", "mma_prepare.cu");
    else if (key->step == 1)
        set_files(out, 7, "common.cuh", "tiles.cuh", "mma.cuh", "mma_bwd.cuh", "wgmma_sums.cuh", "wgmma.cuh",
                  "wgmma_bwd.cu");
    else
        set_files(out, 6, "common.cuh", "tiles.cuh", "mma.cuh", "mma_bwd.cuh", "wgmma_sums.cuh",
                  "wgmma_finish.cu");
}

void sbp_cuda_attention_source_of(const sbp_gpu_key *key, sbp_cuda_arch arch,
                                  sbp_cuda_attention_source *out) {
    static const char *const forward[SBP_ATTN_FWD_WORK] = {[SBP_ATTN_FWD_O] = "TYPE_O",
                                                           [SBP_ATTN_FWD_LSE] = "TYPE_LSE",
                                                           [SBP_ATTN_FWD_Q] = "TYPE_Q",
                                                           [SBP_ATTN_FWD_K] = "TYPE_K",
                                                           [SBP_ATTN_FWD_V] = "TYPE_V",
                                                           [SBP_ATTN_FWD_FIRST] = "TYPE_FIRST",
                                                           [SBP_ATTN_FWD_SHARED_END] = "TYPE_SHARED_END",
                                                           [SBP_ATTN_FWD_OWN] = "TYPE_OWN"};
    static const char *const backward[SBP_ATTN_BWD_WORK] = {[SBP_ATTN_BWD_DQ] = "TYPE_DQ",
                                                            [SBP_ATTN_BWD_DK] = "TYPE_DK",
                                                            [SBP_ATTN_BWD_DV] = "TYPE_DV",
                                                            [SBP_ATTN_BWD_Q] = "TYPE_Q",
                                                            [SBP_ATTN_BWD_K] = "TYPE_K",
                                                            [SBP_ATTN_BWD_V] = "TYPE_V",
                                                            [SBP_ATTN_BWD_O] = "TYPE_O",
                                                            [SBP_ATTN_BWD_LSE] = "TYPE_LSE",
                                                            [SBP_ATTN_BWD_DO] = "TYPE_DO",
                                                            [SBP_ATTN_BWD_FIRST] = "TYPE_FIRST",
                                                            [SBP_ATTN_BWD_SHARED_END] = "TYPE_SHARED_END",
                                                            [SBP_ATTN_BWD_OWN] = "TYPE_OWN"};
    memset(out, 0, sizeof *out);
    define(out, "D_QK", key->d_qk);
    define(out, "D_V", key->d_v);
    for (int i = 0; i < operands_of(key)->work; i++)
        define(out, is_backward(key) ? backward[i] : forward[i], key->dtypes[i]);
    if (key->variant == SBP_CUDA_WGMMA)
        wgmma_source(key, out);
    else if (key->variant == SBP_CUDA_MMA)
        mma_source(key, arch, out);
    else
        set_files(out, 3, "common.cuh", "scalar.cuh",
                  !is_backward(key) ? "scalar_fwd.cu"
                  : key->step == 0  ? "scalar_dq.cu"
                                    : "scalar_dkv.cu");
}

/* ---- launches ---------------------------------------------------------------------------------------- */

static const sbp_gpu_operand *q_of(const sbp_gpu_key *key, const sbp_gpu_args *args) {
    return &args->operands[operands_of(key)->q];
}

static const sbp_gpu_operand *k_of(const sbp_gpu_key *key, const sbp_gpu_args *args) {
    return &args->operands[operands_of(key)->k];
}

/* Whether every row of every matrix begins at a multiple of 16 bytes. That need not hold for lse, in whose
 * rows kernels read and write single numbers. */
static bool is_aligned(const sbp_gpu_key *key, const sbp_gpu_args *args) {
    const sbp_attention_operands *has = operands_of(key);
    for (int32_t i = 0; i < has->first; i++) {
        const sbp_gpu_operand *o = &args->operands[i];
        int64_t step = o->stride * sbp_dtype_bytes((sbp_dtype)key->dtypes[i]);
        if (i != has->lse && (o->address % 16 != 0 || step % 16 != 0))
            return false;
    }
    return true;
}

sbp_cuda_variant sbp_cuda_attention_choose(const sbp_gpu_key *key, sbp_cuda_arch arch,
                                           const sbp_gpu_args *args, sbp_cuda_variant most) {
    static const sbp_cuda_variant order[] = {SBP_CUDA_WGMMA, SBP_CUDA_MMA};
    sbp_gpu_key tried = *key;
    for (int i = 0; i < SBP_COUNT(order); i++) {
        tried.variant = (uint8_t)order[i];
        if (order[i] <= most && sbp_cuda_attention_steps(&tried, arch) > 0 && is_aligned(key, args))
            return order[i];
    }
    return SBP_CUDA_PLAIN;
}

/* Queries of a tile, of which bounds are kept. */
static int32_t query_tile(const sbp_gpu_key *key, sbp_cuda_arch arch) {
    return key->variant == SBP_CUDA_WGMMA ? WGMMA_QUERIES : key_tile(key, arch).moving;
}

/* delta, lse, limits, bounds: mma_bwd.cuh */
static int64_t prepared_bytes(const sbp_gpu_key *key, sbp_cuda_arch arch, const sbp_gpu_args *args) {
    int64_t padded = sbp_round_up(q_of(key, args)->rows, PADDING);
    return (8 * args->ints[0] + 16) * padded + 32 * padded / query_tile(key, arch);
}

/* Tiles of queries of a head. */
static int64_t wgmma_tiles(const sbp_gpu_key *key, const sbp_gpu_args *args) {
    return sbp_ceil_div(q_of(key, args)->rows, WGMMA_QUERIES);
}

/* Counters and the ticket: wgmma_sums.cuh. */
static int64_t counter_bytes(const sbp_gpu_key *key, const sbp_gpu_args *args) {
    return sbp_round_up(4 * args->ints[0] * wgmma_tiles(key, args) + 4, 16);
}

/* Sums of dq in fp32. */
static int64_t summed_bytes(const sbp_gpu_key *key, const sbp_gpu_args *args) {
    return 4 * args->ints[0] * wgmma_tiles(key, args) * WGMMA_QUERIES * key->d_qk;
}

int64_t sbp_cuda_attention_scratch(const sbp_gpu_key *key, sbp_cuda_arch arch, const sbp_gpu_args *args) {
    if (!is_backward(key))
        return 0;
    if (key->variant == SBP_CUDA_PLAIN) /* delta */
        return (int64_t)q_of(key, args)->rows * args->ints[0] *
               sbp_dtype_bytes((sbp_dtype)key->dtypes[SBP_ATTN_BWD_Q] == SBP_F64 ? SBP_F64 : SBP_F32);
    return prepared_bytes(key, arch, args) +
           (key->variant == SBP_CUDA_WGMMA ? counter_bytes(key, args) + summed_bytes(key, args) : 0);
}

static int64_t plain_blocks(const sbp_gpu_key *key, const sbp_gpu_args *args) {
    bool of_keys = is_backward(key) && key->step == 1;
    int64_t rows = of_keys ? k_of(key, args)->rows : q_of(key, args)->rows;
    return sbp_ceil_div(rows * args->ints[of_keys ? 1 : 0], PLAIN_WARPS);
}

static void prepare_launch(const sbp_gpu_key *key, sbp_cuda_arch arch, const sbp_gpu_args *args,
                           sbp_cuda_step *out) {
    out->grid[0] =
        (uint32_t)(sbp_round_up(q_of(key, args)->rows, PADDING) / query_tile(key, arch) * args->ints[0]);
    out->block[0] = 32 * PREPARE_WARPS;
}

static void mma_launch(const sbp_gpu_key *key, sbp_cuda_arch arch, const sbp_gpu_args *args,
                       sbp_cuda_step *out) {
    products part = is_backward(key) ? backward_part(key) : PART_FORWARD;
    bool of_keys = part == PART_DKV || part == PART_DK || part == PART_DV;
    tile t = of_keys ? key_tile(key, arch) : find_tile(key, arch, part);
    int64_t rows = of_keys ? k_of(key, args)->rows : q_of(key, args)->rows;
    out->grid[0] = (uint32_t)(sbp_ceil_div(rows, rows_of(t)) * args->ints[of_keys ? 1 : 0]);
    out->block[0] = (uint32_t)(32 * t.warps * parts_of(key, part));
    out->shared_bytes = (uint32_t)shared_bytes(key, part, t);
}

static void wgmma_forward(const sbp_gpu_key *key, const sbp_gpu_args *args, sbp_cuda_step *out) {
    const sbp_gpu_operand *q = q_of(key, args), *k = k_of(key, args), *v = k + 1;
    int32_t heads = args->ints[0], kv_heads = args->ints[1], d = key->d_qk;
    out->grid[0] = (uint32_t)(sbp_ceil_div(q->rows, WGMMA_ROWS) * heads);
    out->block[0] = WGMMA_THREADS;
    out->shared_bytes = (uint32_t)(5 * slab_bytes(d, WGMMA_ROWS) + 16 * WGMMA_ROWS + 8 * WGMMA_BARRIERS);
    out->maps[out->map_count++] = head_map(key, q, d, heads, WGMMA_ROWS);
    out->maps[out->map_count++] = head_map(key, k, d, kv_heads, WGMMA_ROWS);
    out->maps[out->map_count++] = head_map(key, v, d, kv_heads, WGMMA_ROWS);
}

static void wgmma_backward(const sbp_gpu_key *key, sbp_cuda_arch arch, const sbp_gpu_args *args,
                           sbp_cuda_step *out) {
    const sbp_gpu_operand *q = q_of(key, args), *k = k_of(key, args), *v = k + 1,
                          *d_o = &args->operands[SBP_ATTN_BWD_DO];
    int32_t heads = args->ints[0], kv_heads = args->ints[1], d = key->d_qk;
    if (key->step == 2) {
        out->grid[0] = (uint32_t)(wgmma_tiles(key, args) * heads);
        out->block[0] = 128;
        return;
    }
    out->grid[0] = (uint32_t)(sbp_ceil_div(k->rows, WGMMA_ROWS) * kv_heads);
    out->block[0] = WGMMA_THREADS;
    /* k, v; q and do twice; ds twice; dq; lse and delta twice; messages, barriers, the ticket */
    out->shared_bytes = (uint32_t)(2 * slab_bytes(d, WGMMA_ROWS) + 4 * slab_bytes(d, WGMMA_QUERIES) +
                                   2 * 2 * WGMMA_ROWS * WGMMA_QUERIES + 4 * WGMMA_QUERIES * d +
                                   16 * WGMMA_QUERIES + 16 + 8 * WGMMA_BARRIERS + 4);
    out->clear_from = prepared_bytes(key, arch, args);
    out->clear_bytes = counter_bytes(key, args);
    out->maps[out->map_count++] = head_map(key, q, d, heads, WGMMA_QUERIES);
    out->maps[out->map_count++] = head_map(key, k, d, kv_heads, WGMMA_ROWS);
    out->maps[out->map_count++] = head_map(key, v, d, kv_heads, WGMMA_ROWS);
    out->maps[out->map_count++] = head_map(key, d_o, d, heads, WGMMA_QUERIES);
}

void sbp_cuda_attention_cross(const sbp_gpu_key *key, sbp_cuda_arch arch) {
    bool back = is_backward(key), wide = key->d_qk > PART_COLUMNS || key->d_v > PART_COLUMNS;
    if (key->variant == SBP_CUDA_PLAIN)
        SBP_CROSS_EITHER(back, cuda_attention_back_plain, cuda_attention_plain);
    if (key->variant == SBP_CUDA_WGMMA)
        SBP_CROSS_EITHER(back, cuda_attention_back_wgmma, cuda_attention_wgmma);
    if (key->variant != SBP_CUDA_MMA)
        return;
    if (back) {
        SBP_CROSS_EITHER(wide, cuda_attention_back_parts, cuda_attention_back_mma);
        SBP_CROSS_EITHER(joins_dkv(key), cuda_attention_dk_with_dv, cuda_attention_dk_apart);
    } else {
        SBP_CROSS_EITHER(wide, cuda_attention_parts, cuda_attention_mma);
        SBP_CROSS_EITHER(find_tile(key, arch, PART_FORWARD).strips > 1, cuda_attention_strips,
                         cuda_attention_strip);
    }
}

int32_t sbp_cuda_attention_launch(const sbp_gpu_key *key, sbp_cuda_arch arch, const sbp_gpu_args *args,
                                  sbp_cuda_step *steps) {
    int32_t count = sbp_cuda_attention_steps(key, arch);
    if (q_of(key, args)->rows == 0 || k_of(key, args)->rows == 0)
        return 0;
    for (int32_t i = 0; i < count; i++) {
        memset(&steps[i], 0, sizeof steps[i]);
        steps[i].key = *key;
        steps[i].key.step = (uint8_t)i;
        for (int d = 0; d < 3; d++)
            steps[i].grid[d] = steps[i].block[d] = 1;
        if (key->variant == SBP_CUDA_PLAIN) {
            steps[i].grid[0] = (uint32_t)plain_blocks(&steps[i].key, args);
            steps[i].block[0] = 32 * PLAIN_WARPS;
        } else if (is_backward(key) && i == 0) {
            prepare_launch(&steps[i].key, arch, args, &steps[i]);
        } else if (key->variant == SBP_CUDA_MMA) {
            mma_launch(&steps[i].key, arch, args, &steps[i]);
        } else if (is_backward(key)) {
            wgmma_backward(&steps[i].key, arch, args, &steps[i]);
        } else {
            wgmma_forward(&steps[i].key, args, &steps[i]);
        }
    }
    return count;
}
