/* program_check.h: what the parts of the program verifier share (program_verify.c walks, program_check.c
 * looks at one command, commands/<name>.c at what is its own, program_check_calls.c at one call). Private to
 * them. */
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

/* ---- for the check rules of commands ---------------------------------------------------------------- */

/* A command under test, whose structure, queue and views were found right. */
typedef struct sbp_subject {
    sbp_checker *c;
    const sbp_command *command;
    const char *what; /* its name, for messages */
    sbp_command_operand operands[SBP_MAX_COMMAND_OPERANDS];
    int32_t count;
} sbp_subject;

/* Fails with a constraint and a message. */
#define SBP_SUBJECT_FAIL(s, constraint, ...) sbp_checker_fail((s)->c, constraint, (s)->what, __VA_ARGS__)

bool sbp_subject_has(const sbp_subject *s, int32_t k);
sbp_dtype sbp_subject_dtype(const sbp_subject *s, int32_t k);
int64_t sbp_subject_cols(const sbp_subject *s, int32_t k);
/* The row input that operand k names directly, or NULL. */
const sbp_row_input *sbp_subject_input(const sbp_subject *s, int32_t k);

/* Columns (c19); absent operands have any. */
sbp_status sbp_check_same_cols(const sbp_subject *s, int32_t a, int32_t b) SBP_CHECKED;
sbp_status sbp_check_exact_cols(const sbp_subject *s, int32_t k, int64_t cols) SBP_CHECKED;
/* Dtypes (c20), of absent operands any. wide: f64 where operand `like` is, else f32. */
sbp_status sbp_check_same_dtype(const sbp_subject *s, int32_t a, int32_t b) SBP_CHECKED;
sbp_status sbp_check_float(const sbp_subject *s, int32_t k) SBP_CHECKED;
sbp_status sbp_check_wide(const sbp_subject *s, int32_t k, int32_t like) SBP_CHECKED;
/* One i32 or i64 per row (c19, c20). */
sbp_status sbp_check_index(const sbp_subject *s, int32_t k) SBP_CHECKED;
/* A row input of this kind, of that column where it is not NULL (c27). */
sbp_status sbp_check_input(const sbp_subject *s, int32_t k, sbp_row_input_kind kind,
                           const char *column) SBP_CHECKED;
/* Numbers of heads, their sizes: products of two are safe (c26). */
#define SBP_MOST_HEADS (INT64_C(1) << 24)

#endif
