/* rows.h: a row kernel prepared for the block evaluator (kernels/rows_body.h). Made by rows_plan.c when a
 * program is loaded.
 *
 * Values live in blocks of about ROW_BLOCK elements, small enough for all of a kernel's temporaries to stay
 * in the first-level cache; a step is one vectorised loop over a block. There are two ways to cut a kernel:
 *
 *   whole    n <= ROW_WHOLE, or a reduction over heads. A block holds up to `block_rows` rows and
 *            `block_heads` heads with all their elements: [rows, heads, length]. What varies with neither
 *            row nor head is computed once per item, what does not vary with the head once per block of rows
 *            (the cosines of rope), the rest once per block of heads. Stores come last.
 *   pieces   longer n: one (row, head) at a time, in passes (ir/rowkernel/rowkernel.h, levels), each running
 *            over pieces of ROW_BLOCK elements; elementwise values are computed again in each pass that needs
 *            them.
 *
 * A value that has one element where its user has many is a scalar operand of that step, or is expanded. */
#ifndef SBP_CPU_ROWS_H
#define SBP_CPU_ROWS_H

#include "backends/cpu/cpu.h"
#include "ir/rowkernel/format.h"

enum {
    ROW_BLOCK = 512,  /* elements of a block */
    ROW_WHOLE = 1024, /* the longest n that is kept whole */
    ROW_ITEM_ELEMS = 1 << 15
};

typedef enum row_step_kind {
    ROW_LOAD,
    ROW_INDEX,
    ROW_RANDOM,
    ROW_MAP,
    ROW_INTEGER,
    ROW_LOOKUP,
    ROW_ROUND,
    ROW_EXPAND,
    ROW_REDUCE, /* pieces: adds a piece to the running result */
    ROW_STORE,
    ROW_PARTIAL
} row_step_kind;

/* A value by its place. Shapes are SBP_VARY_ bits of the axes along which the block has several elements. */
typedef struct row_step {
    row_step_kind kind;
    const sbp_rk_instr *instr;
    int32_t dst, a, b, c;          /* places, -1 when absent */
    uint8_t shape;                 /* of dst; of a for store and partial */
    uint8_t a_shape;               /* expand, reduce */
    uint8_t scalars;               /* map: bit k is set when operand k has one element */
    const struct row_step *target; /* map: a store that this may write through at once, or NULL */
    bool in_memory;                /* load: dst may point at the operand itself */
    bool last_head;                /* pieces: only with the last head of a row */
    int32_t reduction;             /* pieces, reduce: number of the accumulator */
    int64_t length;                /* elements along n, 1 without SBP_VARY_ELEM in shape */
} row_step;

typedef struct row_list {
    row_step *steps;
    int32_t count, capacity;
    int64_t length; /* pieces: elements that the list runs over */
} row_list;

/* A pass: scalars first, then one list per length, then the results of the reductions are ready. */
typedef struct row_pass {
    row_list scalars;
    row_list *lists;
    int32_t list_count, list_capacity;
} row_pass;

typedef struct row_reduction {
    const sbp_rk_instr *instr;
    int32_t place;
    int32_t level; /* the pass that computes it */
} row_reduction;

struct cpu_row_plan {
    sbp_arena *arena; /* owns the plan */
    const sbp_rowkernel *kernel;
    sbp_format decodes; /* the kernel is that of this format, which kernels/decode.c knows; else NONE */
    bool pieces;
    bool in_place; /* some map has a target */
    int64_t block_rows, block_heads;
    int64_t item_rows; /* a multiple of SBP_PARTIAL_ROWS when there is a partial */
    /* whole */
    row_list once, per_rows, per_heads, head_stores, row_stores;
    /* pieces */
    row_pass *passes;
    int32_t pass_count;
    row_reduction *reductions; /* in order of instructions; accumulators lie in the scratch memory */
    int32_t reduction_count, reduction_capacity;
    row_list final_stores; /* scalars */
    /* Scratch memory: pointers to the places, then the places, then the accumulators. */
    int64_t *offsets; /* bytes, per place */
    int32_t place_count, place_capacity;
    int32_t *constants; /* place of each CONST and SCALAR instruction, -1 for the others */
    int64_t accumulators, scratch_bytes;
};

/* kernel must be verified and outlive the plan. SBP_MACHINE when memory runs out or the kernel needs too much
 * scratch memory. */
sbp_status cpu_row_plan_create(const sbp_rowkernel *kernel, sbp_diag *diag, cpu_row_plan **out) SBP_CHECKED;
void cpu_row_plan_destroy(cpu_row_plan *plan);

/* rows_check.c: whether the steps of a plan, run over `rows` rows, compute what its kernel means wherever
 * results lie over operands as sbp_rowkernel_may_alias() allows. SBP_INTERNAL with the kernel, the step and
 * the operand when one reads what another has written over. Debug builds (SBP_VERIFY) ask this of every plan
 * that they make. */
sbp_status cpu_row_plan_check(const cpu_row_plan *plan, int64_t rows, sbp_diag *diag) SBP_CHECKED;

#endif
