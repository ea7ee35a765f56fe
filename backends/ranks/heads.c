/* heads.c: heads of attention in place of rows, and back, among the ranks of a context (ir/base/context.h).
 */
#include <string.h>

#include "backends/ranks/world.h"

/* What both ways work with. Rows go in blocks, of which what is packed for all ranks fits into `arrived`. */
typedef struct turning {
    sbp_ranks *r;
    const sbp_context_heads *heads;
    int64_t rows, block;            /* of each rank; of those at most so many at once */
    int64_t own_bytes, slots_bytes; /* of a row, of all heads and of a rank's slots */
    int64_t head_bytes, slots;
    sbp_dtype dtype;
} turning;

static sbp_status begin(sbp_ranks *r, int64_t rows, const sbp_context_heads *heads, sbp_dtype dtype,
                        turning *t, sbp_diag *diag) {
    *t = (turning){.r = r, .heads = heads, .rows = rows, .dtype = dtype};
    t->head_bytes = heads->dim * sbp_dtype_bytes(dtype);
    t->slots = sbp_context_slots(heads, r->world.count);
    t->own_bytes = sbp_context_count(heads) * t->head_bytes;
    t->slots_bytes = t->slots * t->head_bytes;
    t->block = r->arrived_bytes / (r->world.count * t->slots_bytes);
    if (t->block < 1)
        return sbp_fail(diag, SBP_INTERNAL, "a row of %lld bytes is too long to be exchanged",
                        (long long)t->slots_bytes);
    return SBP_OK;
}

static int64_t head_of(const turning *t, int32_t rank, int64_t slot) {
    return sbp_context_head(t->heads, t->r->world.count, rank * t->slots + slot);
}

/* The heads of a rank, of some rows. */
static void pack(const turning *t, char *to, const char *own, int64_t rows, int32_t rank) {
    for (int64_t slot = 0; slot < t->slots; slot++) {
        int64_t head = head_of(t, rank, slot);
        char *at = to + slot * t->head_bytes;
        const char *from = own + head * t->head_bytes;
        for (int64_t i = 0; i < rows; i++, at += t->slots_bytes)
            if (head < 0)
                memset(at, 0, (size_t)t->head_bytes);
            else
                memcpy(at, from + i * t->own_bytes, (size_t)t->head_bytes);
    }
}

sbp_status sbp_ranks_to_heads(sbp_ranks *r, void *all, const void *own, int64_t rows,
                              const sbp_context_heads *heads, sbp_dtype dtype, sbp_diag *diag) {
    turning t;
    SBP_TRY(begin(r, rows, heads, dtype, &t, diag));
    for (int64_t first = 0; first < rows; first += t.block) {
        int64_t count = rows - first < t.block ? rows - first : t.block, bytes = count * t.slots_bytes;
        const char *from = (const char *)own + first * t.own_bytes;
        int32_t sends = 0, receives = 0;
        for (int32_t p = 0; p < r->world.count; p++) {
            char *packed = r->arrived + p * bytes, *there = (char *)all + (p * rows + first) * t.slots_bytes;
            pack(&t, p == r->world.rank ? there : packed, from, count, p);
            sbp_ranks_add_piece(r, r->send, &sends, p, packed, bytes);
            sbp_ranks_add_piece(r, r->receive, &receives, p, there, bytes);
        }
        SBP_TRY(sbp_ranks_exchange(r, sends, receives, "to_heads", diag));
    }
    return SBP_OK;
}

/* Where the numbers of a slot are, of a block of rows. */
static const char *slot_at(const turning *t, const char *all, int64_t first, int64_t bytes, int64_t slot) {
    int32_t p = (int32_t)(slot / t->slots);
    const char *rows =
        p == t->r->world.rank ? all + (p * t->rows + first) * t->slots_bytes : t->r->arrived + p * bytes;
    return rows + slot % t->slots * t->head_bytes;
}

/* Of a head's slots, which are neighbours, the sum: in fp32 (f64: in f64), rounded once. */
static void add_slots(const turning *t, char *own, const char *all, int64_t first, int64_t rows, int64_t slot,
                      int64_t count) {
    int64_t bytes = rows * t->slots_bytes;
    for (int64_t i = 0; i < rows; i++) {
        char *to = own + i * t->own_bytes;
        for (int64_t k = 0; k < t->heads->dim && count > 1; k++) {
            double sum = 0;
            for (int64_t c = 0; c < count; c++) {
                const char *from = slot_at(t, all, first, bytes, slot + c) + i * t->slots_bytes;
                sum += sbp_element_get(from, t->dtype, k);
                sum = t->dtype == SBP_F64 ? sum : (double)(float)sum;
            }
            sbp_element_set(to, t->dtype, k, sum);
        }
        if (count == 1)
            memcpy(to, slot_at(t, all, first, bytes, slot) + i * t->slots_bytes, (size_t)t->head_bytes);
    }
}

sbp_status sbp_ranks_to_rows(sbp_ranks *r, void *own, void *all, int64_t rows, const sbp_context_heads *heads,
                             sbp_dtype dtype, sbp_diag *diag) {
    turning t;
    SBP_TRY(begin(r, rows, heads, dtype, &t, diag));
    for (int64_t first = 0; first < rows; first += t.block) {
        int64_t count = rows - first < t.block ? rows - first : t.block, bytes = count * t.slots_bytes;
        int32_t sends = 0, receives = 0;
        for (int32_t p = 0; p < r->world.count; p++) {
            sbp_ranks_add_piece(r, r->send, &sends, p, (char *)all + (p * rows + first) * t.slots_bytes,
                                bytes);
            sbp_ranks_add_piece(r, r->receive, &receives, p, r->arrived + p * bytes, bytes);
        }
        SBP_TRY(sbp_ranks_exchange(r, sends, receives, "to_rows", diag));
        int64_t copies = sbp_context_same(heads, r->world.count);
        for (int64_t slot = 0; slot < r->world.count * t.slots; slot += copies) {
            int64_t head = sbp_context_head(heads, r->world.count, slot);
            if (head >= 0)
                add_slots(&t, (char *)own + first * t.own_bytes + head * t.head_bytes, all, first, count,
                          slot, copies);
        }
    }
    return SBP_OK;
}
