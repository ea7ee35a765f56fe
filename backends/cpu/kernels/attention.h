/* attention.h: what forward and backward share: which keys a row sees, and how the work is cut.
 *
 * The query heads of one kv head are stacked: `positions` rows times `group` heads are `lanes` columns of
 * every matrix, a lane being position * group + head. Scores lie transposed, [keys, lanes], so that keys and
 * values are read where they are, softmax needs no sum across a vector, and masks compare lane by lane. Keys
 * come in tiles; a tile that no position sees is never computed, one that only some see is masked.
 *
 * Forward, tiles are counted within the document, so that a row's sums are over the same keys in the same
 * order wherever the document stands, and whichever rows are run with it. A key's number is its place in what
 * its rows see: a shared prompt comes first, then the rows' own part. So a row sees an interval of numbers
 * that ends with its own; a block of rows is cut where another document, or another answer of a prompt,
 * begins. */
#ifndef SBP_CPU_KERNELS_ATTENTION_H
#define SBP_CPU_KERNELS_ATTENTION_H

#include "backends/cpu/cpu.h"

enum {
    ATTENTION_LANE_BYTES = 768,      /* a row of scores: 192 lanes of fp32 */
    ATTENTION_FORWARD_KEYS = 512,    /* keys per tile */
    ATTENTION_BACKWARD_KEYS = 256,   /* two matrices of scores, and sums for keys and values */
    ATTENTION_TILE_ELEMS = 1 << 16,  /* keys per tile times head dimension is at most this */
    ATTENTION_MOST_DIMENSIONS = 512, /* of a head */
    ATTENTION_MOST_GROUP = 96        /* query heads per kv head */
};

/* Keys that a row sees, as numbers of rows of the k view: [lo1, hi1) and [lo2, hi2). */
typedef struct visible {
    int32_t lo1, hi1, lo2, hi2;
} visible;

/* Rows j .. j + positions - 1 of q, which are of one document. */
typedef struct attention_run {
    int64_t j, positions;
    int64_t number;     /* of row j, and so of the last key that it sees */
    int64_t shared;     /* keys of the shared part, 0 .. shared - 1 */
    int64_t first, own; /* rows of the k view with the keys 0 and `shared`; below 0 where k begins later */
    int64_t lo, hi;     /* keys that any of these rows sees */
} attention_run;

/* Keys of a tile: rows row, row + 1, .. of the k view, from the split-th key on next, next + 1, .. */
typedef struct attention_keys {
    int64_t count, row, split, next;
    int64_t skipped; /* of bf16: 1 where the first key is the second of its pair */
} attention_keys;

typedef struct attention {
    const cpu_view *q, *k, *v, *first, *shared_end, *own;
    sbp_attention_attrs attrs;
    int64_t group;     /* query heads per kv head */
    int64_t positions; /* rows of q per block */
    int64_t blocks;
    int64_t lanes; /* of a full block, rounded up to whole vectors: a row of every [.., lanes] matrix */
    int64_t tile_keys;
} attention;

static inline int64_t attention_integer(const cpu_view *view, int64_t row) {
    const char *at = view->data + row * view->stride * sbp_dtype_bytes(view->dtype);
    return view->dtype == SBP_I64 ? *(const int64_t *)(const void *)at : *(const int32_t *)(const void *)at;
}

static inline int32_t attention_clamp(const attention *a, int64_t row) {
    int64_t at = row - a->k->first_row;
    return (int32_t)(at < 0 ? 0 : at > a->k->rows ? a->k->rows : at);
}

/* What row j of q sees (ir/program/program.h, attn_fwd). */
static inline visible attention_visible(const attention *a, int64_t j) {
    int64_t row = a->q->first_row + j, window = a->attrs.window;
    int64_t first = attention_integer(a->first, j), shared_end = attention_integer(a->shared_end, j);
    int64_t own = attention_integer(a->own, j), shared_from = first, own_from = own;
    if (window > 0) {
        if (shared_from < shared_end + row - own - window + 1)
            shared_from = shared_end + row - own - window + 1;
        if (own_from < row - window + 1)
            own_from = row - window + 1;
    }
    visible v = {.lo1 = attention_clamp(a, shared_from),
                 .hi1 = attention_clamp(a, shared_end),
                 .lo2 = attention_clamp(a, own_from),
                 .hi2 = attention_clamp(a, row + 1)};
    if (v.hi1 < v.lo1)
        v.hi1 = v.lo1;
    if (v.hi2 < v.lo2)
        v.hi2 = v.lo2;
    return v;
}

/* Keys that row p of a run sees: attention_run_from(p) .. run->number + p, as numbers. */
static inline int64_t attention_run_from(const attention *a, const attention_run *run, int64_t p) {
    int64_t from = a->attrs.window > 0 ? run->number + p - a->attrs.window + 1 : 0;
    return from > run->lo ? from : run->lo;
}

/* The rows from j on, of rows up to `end`, that are of one document. first <= shared_end <= own. */
static inline attention_run attention_run_at(const attention *a, int64_t j, int64_t end) {
    int64_t first = attention_integer(a->first, j), shared_end = attention_integer(a->shared_end, j);
    int64_t own = attention_integer(a->own, j), rows = a->k->rows;
    attention_run run = {.j = j,
                         .positions = 1,
                         .number = shared_end - first + a->q->first_row + j - own,
                         .shared = shared_end - first,
                         .first = first - a->k->first_row,
                         .own = own - a->k->first_row};
    while (j + run.positions < end && attention_integer(a->first, j + run.positions) == first &&
           attention_integer(a->shared_end, j + run.positions) == shared_end &&
           attention_integer(a->own, j + run.positions) == own)
        run.positions++;
    /* of what k has */
    bool begins = run.first + run.shared > 0, ends = run.own < rows;
    run.lo = begins ? sbp_max_i64(0, -run.first) : run.shared + sbp_max_i64(0, -run.own);
    run.lo = attention_run_from(a, &run, 0);
    run.hi = ends ? run.shared + rows - run.own : sbp_min_i64(run.shared, rows - run.first);
    run.hi = sbp_min_i64(run.hi, run.number + run.positions);
    return run;
}

/* Keys lo .. hi - 1 of a run. */
static inline attention_keys attention_run_keys(const attention_run *run, int64_t lo, int64_t hi) {
    if (lo >= run->shared)
        return (attention_keys){.count = hi - lo, .row = run->own + lo - run->shared, .split = hi - lo};
    return (attention_keys){.count = hi - lo,
                            .row = run->first + lo,
                            .split = sbp_min_i64(hi, run->shared) - lo,
                            .next = run->own};
}

/* Rows lo .. hi - 1 of the k view. */
static inline attention_keys attention_key_rows(int64_t lo, int64_t hi) {
    return (attention_keys){.count = hi - lo, .row = lo, .split = hi - lo};
}

static inline int64_t attention_key_row(const attention_keys *keys, int64_t i) {
    return i < keys->split ? keys->row + i : keys->next + i - keys->split;
}

/* Whether they lie one behind the other. */
static inline bool attention_keys_follow(const attention_keys *keys) {
    return keys->split == keys->count || keys->next == keys->row + keys->split;
}

typedef struct tile_view {
    int32_t lo, hi; /* the keys of the tile that any position sees; empty when lo >= hi */
    bool whole;     /* all positions see all of these */
} tile_view;

/* The part of keys [lo, hi) that rows with these visibilities see. */
static inline tile_view attention_tile(const visible *see, int64_t positions, int32_t lo, int32_t hi) {
    tile_view t = {.lo = hi, .hi = lo, .whole = true};
    for (int64_t p = 0; p < positions; p++) {
        const int32_t from[2] = {see[p].lo1, see[p].lo2}, to[2] = {see[p].hi1, see[p].hi2};
        for (int i = 0; i < 2; i++) {
            int32_t a = from[i] > lo ? from[i] : lo, b = to[i] < hi ? to[i] : hi;
            if (a < b) {
                t.lo = a < t.lo ? a : t.lo;
                t.hi = b > t.hi ? b : t.hi;
            }
        }
    }
    for (int64_t p = 0; p < positions; p++)
        t.whole &= (see[p].lo1 <= t.lo && t.hi <= see[p].hi1) || (see[p].lo2 <= t.lo && t.hi <= see[p].hi2);
    return t;
}

/* The keys of a block: from the first to the last that any of its positions sees. */
static inline tile_view attention_block(const attention *a, const visible *see, int64_t positions) {
    return attention_tile(see, positions, 0, (int32_t)a->k->rows);
}

static inline void attention_init(attention *a, const cpu_command *command, int64_t real_bytes,
                                  int64_t vector, int64_t most_keys) {
    const sbp_attention_operands *has = sbp_command_attention(command->command->kind);
    const cpu_view *q = &command->views[has->q];
    a->q = q;
    a->k = &command->views[has->k];
    a->v = &command->views[has->v];
    a->first = &command->views[has->first];
    a->shared_end = &command->views[has->shared_end];
    a->own = &command->views[has->own];
    a->attrs = command->command->u.attention;
    a->group = a->attrs.heads / a->attrs.kv_heads;
    int64_t most_lanes = ATTENTION_LANE_BYTES / real_bytes;
    a->positions = most_lanes / a->group > 0 ? most_lanes / a->group : 1;
    if (a->positions > q->rows && q->rows > 0)
        a->positions = q->rows;
    a->blocks = sbp_ceil_div(q->rows, a->positions);
    a->lanes = sbp_round_up(a->positions * a->group, vector);
    int64_t most = a->attrs.d_qk > a->attrs.d_v ? a->attrs.d_qk : a->attrs.d_v;
    a->tile_keys = ATTENTION_TILE_ELEMS / most / 16 * 16;
    if (a->tile_keys > most_keys)
        a->tile_keys = most_keys;
}

#endif
