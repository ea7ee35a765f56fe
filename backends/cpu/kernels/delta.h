/* delta.h: how the rows of delta_rule and its gradient are cut into blocks, in every arithmetic. Definition:
 * ir/program/commands/delta_rule.c.
 *
 * Matrices of a block lie in a thread's scratch memory, a row in an odd number of lines of the cache, so that
 * a column of tiles does not fall into the same sets. In fp64 with heads of 256 columns the backward fills
 * CPU_SCRATCH_BYTES nearly to the end. */
#ifndef SBP_CPU_KERNELS_DELTA_H
#define SBP_CPU_KERNELS_DELTA_H

#include "backends/cpu/cpu.h"

enum { DELTA_STRIP = 16 }; /* rows of a triangle that are computed together */

typedef struct delta {
    const cpu_view *q, *k, *v, *decay, *beta, *first, *state;
    const cpu_view *o, *next;                                            /* delta_rule */
    const cpu_view *d_o, *dq, *dk, *dv, *ddecay, *dbeta, *dstate, *work; /* delta_rule_bwd */
    sbp_delta_attrs attrs;
    int64_t group; /* heads of v for one of k */
    cpu_task item;
} delta;

/* Rows of one block of one document: row .. row + rows - 1 of the views. */
typedef struct delta_block {
    int64_t row, rows;
    bool begins;    /* a document: the state before it is 0 */
    bool ends;      /* the rows of the command */
    bool continues; /* the row behind it reads the state behind it */
} delta_block;

/* Elements from row to row of a matrix with `columns` columns. */
static inline int64_t delta_pitch(int64_t columns, int64_t real_bytes) {
    return (sbp_ceil_div(columns * real_bytes, 64) | 1) * 64 / real_bytes;
}

/* Which row of its document a row is. */
static inline int64_t delta_place(const delta *d, int64_t row) {
    const char *at = d->first->data + row * d->first->stride * sbp_dtype_bytes(d->first->dtype);
    int64_t first =
        d->first->dtype == SBP_I64 ? *(const int64_t *)(const void *)at : *(const int32_t *)(const void *)at;
    return (int64_t)((uint64_t)(d->k->first_row + row) - (uint64_t)first);
}

/* The block whose first row this is. */
static inline delta_block delta_block_at(const delta *d, int64_t row) {
    int64_t place = delta_place(d, row), end = row + SBP_DELTA_BLOCK - (place & (SBP_DELTA_BLOCK - 1));
    delta_block b = {.row = row, .begins = place == 0};
    end = end < d->k->rows ? end : d->k->rows;
    do {
        b.rows++;
    } while (row + b.rows < end && delta_place(d, row + b.rows) != 0);
    b.ends = row + b.rows == d->k->rows;
    b.continues = !b.ends && delta_place(d, row + b.rows) != 0;
    return b;
}

/* The block whose last row is the one before `end`. */
static inline delta_block delta_block_before(const delta *d, int64_t end) {
    int64_t row = end - 1 - (delta_place(d, end - 1) & (SBP_DELTA_BLOCK - 1));
    delta_block b = delta_block_at(d, row > 0 ? row : 0);
    b.rows = end - b.row; /* as it is, where `first` says what it may */
    return b;
}

/* The first row, from this one on, where a block begins. */
static inline int64_t delta_next_block(const delta *d, int64_t row) {
    int64_t begin = delta_block_before(d, row + 1).row;
    return begin == row ? row : begin + delta_block_at(d, begin).rows;
}

/* Where S before a block is kept for the backward: the operand `state`, or a row of work. Not for a block
 * that begins a document, which has none. */
static inline const char *delta_kept_state(const delta *d, const delta_block *b, int64_t head) {
    const cpu_view *in = b->row == 0 ? d->state : d->work;
    int64_t row = b->row == 0 ? 0 : b->row / SBP_DELTA_BLOCK;
    return in->data + (row * in->stride + head * d->attrs.d_k * d->attrs.d_v) * sbp_dtype_bytes(in->dtype);
}

#endif
