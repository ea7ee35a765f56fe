/* rowbuild_internal.h: what the parts of building a row kernel share. rowbuild.c has the whole and explains
 * it, rowbuild_emit.c makes instructions, rowbuild_ranges.c finds the ranges that a kernel works on.
 * Private to them. */
#ifndef SBP_PASSES_ROWS_ROWBUILD_INTERNAL_H
#define SBP_PASSES_ROWS_ROWBUILD_INTERNAL_H

#include "passes/rows/rowbuild.h"

enum {
    SBP_ROW_MAX_DEPTH = SBP_ROWKERNEL_MAX_INSTRS,      /* of `emit` */
    SBP_ROW_MAX_RANGES = 64 * SBP_ROWKERNEL_MAX_INSTRS /* that find_cuts looks at, over all values */
};

/* In place of the value to be cut off. */
enum { SBP_ROW_LEAF = SBP_NO_VALUE - 1, SBP_ROW_TOO_LARGE = SBP_NO_VALUE - 2 };

/* The instruction that holds a range of a value. */
typedef struct sbp_row_memo {
    sbp_value value;
    bool split;
    int64_t a, b;
    int32_t instr;
    int32_t next; /* of the same value, -1 */
} sbp_row_memo;

/* A range of a value that find_cuts looks at; shift maps to the numbering of who asked. */
typedef struct sbp_row_piece {
    sbp_value value;
    int64_t a, b, shift;
    int32_t next; /* of the same value, -1 */
} sbp_row_piece;

/* Arrays over the values of a body, made once for all its kernels. Between kernels `own` is false, the
 * numbers are -1. */
struct sbp_row_work {
    bool *own;         /* values that the kernel computes although they are materialized */
    int32_t *memo_of;  /* the latest memo of a value */
    int32_t *piece_of; /* the latest piece of a value */
    int32_t *seen;     /* the number of the last survey that saw the value */
    int32_t survey;    /* the number of the present one */
    sbp_value *list;   /* values that the survey saw */
    int32_t list_count;
    sbp_row_memo *memos;
    int32_t memo_count, memo_capacity;
    sbp_row_piece *pieces;
    int32_t piece_count, piece_capacity;
};

typedef struct sbp_row_emitter {
    sbp_program_builder *p;
    const sbp_stage *stage;
    const sbp_func *f;
    const bool *materialized;
    sbp_row_work *work;
    sbp_rowkernel *k;
    int64_t heads;
    bool one_row; /* what is computed has no rows: it is the only one */
    int32_t depth;
    struct {
        sbp_value value, like; /* base, and the value whose shape it was loaded in */
        bool split;
        int32_t operand;
    } * loads;
    int32_t load_count, load_capacity;
    sbp_row_kernel *out;
    sbp_value culprit; /* SBP_NO_VALUE while all is well */
} sbp_row_emitter;

static inline const sbp_op *sbp_row_def(const sbp_row_emitter *e, sbp_value v) {
    const sbp_value_info *info = &e->f->values[v];
    return info->role == SBP_VALUE_OP && info->op >= 0 ? &e->f->ops[info->op] : NULL;
}

static inline bool sbp_row_is_leaf(const sbp_row_emitter *e, sbp_value v) {
    sbp_value base = e->stage->base[v];
    return e->materialized[base] && !e->work->own[base];
}

static inline int32_t sbp_row_give_up(sbp_row_emitter *e, sbp_value culprit) {
    if (e->culprit == SBP_NO_VALUE)
        e->culprit = culprit;
    return 0;
}

/* [a, b) of a value cut wherever concat or pad below it change from one source to another, as bounds
 * a = bound[0] < ... < bound[count] = b in the arena. Returns count. */
int32_t sbp_row_ranges(sbp_row_emitter *e, sbp_value v, int64_t a, int64_t b, int64_t **bounds);

sbp_rk_instr sbp_row_blank(sbp_rk_op op);
/* Adds an operand for a value: its axes as the kernel sees them. split: a flat value, seen as [heads, n]. */
int32_t sbp_row_add_operand(sbp_row_emitter *e, sbp_value v, bool split, sbp_rk_mode mode, sbp_dtype dtype);
/* The instruction that holds [a, b) of a value; 0 after giving up. */
int32_t sbp_row_emit(sbp_row_emitter *e, sbp_value v, bool split, int64_t a, int64_t b);
/* Forgets which instructions from number `instr` on hold what. */
void sbp_row_forget(sbp_row_emitter *e, int32_t instr);

#endif
