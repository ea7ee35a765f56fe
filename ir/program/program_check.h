/* program_check.h: what the parts of the program verifier share (program_verify.c walks, program_check.c
 * looks at one command, program_check_calls.c at one call). Private to them. */
#ifndef SBP_IR_PROGRAM_PROGRAM_CHECK_H
#define SBP_IR_PROGRAM_PROGRAM_CHECK_H

#include "ir/program/program.h"

/* Positions at which views are resolved: sizes, iterations and lo columns chosen so that what is affine in
 * them is wrong at one of these if it is wrong at all. Index 0: outside loops over tables, then one list
 * per table. */
typedef struct sbp_position_list {
    sbp_position *items;
    int32_t count, capacity;
} sbp_position_list;

/* What calls of a function must know of it. */
typedef struct sbp_function_facts {
    uint8_t *spaces; /* per formal: a bit per space in which its commands let it be */
    bool *wide;      /* per formal: seen with a width */
} sbp_function_facts;

/* Buffers that a function touches itself: an open hash set of (function, buffer). */
typedef struct sbp_touch_set {
    uint64_t *keys; /* 0: empty */
    uint8_t *access;
    int32_t count, capacity;
} sbp_touch_set;

typedef struct sbp_checker {
    const sbp_program *program;
    sbp_diag *diag;
    sbp_arena *arena;
    sbp_position_list *positions; /* [1 + tables] */
    int32_t *input_of;            /* per buffer: its row input, -1 none */
    bool has_shared_end, has_own; /* columns of these names exist */
    uint8_t **may_alias;          /* per kernel: 24 x 24 answers + 1, 0 not asked yet */
    sbp_function_facts *facts;    /* per function */
    sbp_touch_set touched;
    bool placed; /* the memory pass has run */
    /* where the walk stands */
    const sbp_function *function; /* NULL in an entry */
    int32_t function_index;
    const char *place; /* name of the function or entry */
    int32_t table;     /* of the innermost loop over one, -1 none */
    int32_t depth;
    int32_t command; /* number in its function or entry, from 0 */
} sbp_checker;

/* Fails with "program_<constraint>: <place>, command n (what): <message>". */
sbp_status sbp_checker_fail(const sbp_checker *c, const char *constraint, const char *what,
                            const char *format, ...) SBP_PRINTF(4, 5);
/* A view's reference, slot, column range and use of the table. name: of the operand, for messages. */
sbp_status sbp_check_view(const sbp_checker *c, const char *what, const char *name,
                          const sbp_view *view) SBP_CHECKED;
/* The columns of the matrix that a view counts in, of one that was checked. */
int64_t sbp_check_width(const sbp_checker *c, const sbp_view *view);
/* Its rows at a position; c17. */
sbp_status sbp_check_resolve(const sbp_checker *c, const char *what, const char *name, const sbp_view *view,
                             const sbp_position *position, sbp_range *out) SBP_CHECKED;
/* How a function uses the buffer itself: 1 reads, 2 writes. */
uint8_t sbp_checker_touched(const sbp_checker *c, int32_t function, int32_t buffer);
sbp_status sbp_check_command(sbp_checker *c, const sbp_command *command) SBP_CHECKED;
sbp_status sbp_check_call(sbp_checker *c, const sbp_call *call) SBP_CHECKED;

#endif
