/* emitter.h: the state of the emitter, and what its files know of each other. Private to this folder.
 *
 * In the text, v<k> is the value of instruction k at the element at hand, n<k> that of a function of integers
 * as an int; t<k> what a thread has of a reduction, r<k> its result; a<k> the elements of a load that a
 * thread has at once, b<k> those of a store; s<k> a thread's sums of a partial, c<k> what teams add to it;
 * p<i> the row of operand i. row, h, j: the row, head and element; i: the number of a loop's turn; q: the
 * number of an element among those at once. */
#ifndef SBP_GPU_EMITTER_H
#define SBP_GPU_EMITTER_H

#include "backends/gpu/emit/emit.h"

/* What the languages spell differently. */
struct sbp_gpu_dialect {
    const char *address;         /* type of an address */
    const char *kernel;          /* before the kernel's { */
    const char *shared;          /* before a declaration */
    const char *unroll;          /* before a loop */
    const char *team_barrier;    /* threads of a team, and what they wrote */
    const char *group_barrier;   /* of a group */
    const char *sum, *max, *min; /* over a team: @ what, # a number that no other reduction has */
    const char *dynamic;         /* loads and stores of type @, by from_@ and to_@ */
    const char *constant;        /* before the name of an array of REAL that never changes */
    const char *list_begin, *list_end, *f64_suffix; /* around its numbers; after one in fp64 */
    bool sums_in_type;                              /* partials add up in their own type, else in REAL */
    bool reductions_meet; /* a reduction over a team of several warps is a barrier */
    /* Constants of the shape. */
    void (*constants)(sbp_text *out, const sbp_gpu_row_shape *shape);
};

enum { MOST = SBP_ROWKERNEL_MAX_INSTRS, INNER = SBP_VARY_HEAD | SBP_VARY_ELEM };

typedef struct emitter {
    sbp_text *out;
    const sbp_rowkernel *kernel;
    const sbp_gpu_row_shape *shape;
    const sbp_gpu_dialect *dialect;
    int32_t levels[MOST];
    int32_t width, teams;
    bool units;   /* h is given: a team has one head, or there is but one */
    bool aliases; /* some out may be the memory of an in */
    bool unmet;   /* memory was read since the threads of a team last met */
    bool unseen;  /* shared memory was written since then */
    bool alone;   /* in code that is for the first head alone: what it computes is not there for others */
    int indent;
    int declared[MOST]; /* indent of the scope that has v<k>; 0: none */
    bool counting;      /* this is the first run, which nobody reads */
    /* rows in registers */
    bool kept;                                      /* loops over elements are unrolled */
    bool loads_kept[MOST];                          /* a<k> is loaded before all loops */
    bool values_kept[MOST];                         /* k<k> holds it from its first loop on */
    int32_t loop, loops_of[MOST], first_loop[MOST]; /* loops that need a value: how many, the first, from 1 */
    int32_t last_loop[MOST];
} emitter;

/* ---- lines.c ---- */

void emit_line(emitter *e, const char *format, ...) SBP_PRINTF(2, 3);
/* After a line that ended in {; closing forgets the values of the scope. */
void emit_open(emitter *e);
void emit_close(emitter *e);
/* A loop over the elements of a thread, j, i; its turns. */
void emit_begin_elements(emitter *e, int64_t length);
void emit_end_elements(emitter *e);
int64_t emit_turns(const emitter *e, int64_t length);
/* A loop over the elements that a thread has at once, q. */
void emit_open_each(emitter *e);
void emit_close_each(emitter *e);
/* A loop over the heads where a team has them all; else nothing is opened. */
bool emit_open_heads(emitter *e, bool wanted);

/* ---- values.c ---- */

/* Declares v<k> and what it needs, unless the scope has it. */
void emit_value(emitter *e, int32_t k);
/* Loads the elements that these values need, where several come at once. */
void emit_loads(emitter *e, const int32_t *values, int32_t count);
/* "p<operand>, column" of a load or store. */
void emit_element(const emitter *e, char *out, size_t size, const sbp_rk_instr *instr);
/* A loop over elements for these values; what varies with no more than the axes comes before it. */
void emit_open_elements(emitter *e, int64_t length, const int32_t *values, int32_t count, uint8_t axes);
/* Loads what is kept, before all loops; declares what will be. */
void emit_kept(emitter *e);
/* Chooses what is kept, after a first run that only counted. */
void emit_choose_kept(emitter *e);

/* ---- reductions.c ---- */

/* Where a sum, a largest or a smallest value begins. */
const char *emit_start_of(const emitter *e, sbp_rk_op op);
/* t<k> and the element at hand. */
void emit_accumulate(emitter *e, int32_t k);
/* An expression of t<k> combined over the threads of a team. */
void emit_combined(const emitter *e, char *out, size_t size, int32_t k);
/* What the reductions of a group are of; their number. */
int32_t emit_values_of(const emitter *e, const int32_t *group, int32_t count, int32_t *values);
/* Whether a reduction over the team is a barrier too, for memory: not where shuffles do all of it. */
bool emit_reductions_meet(const emitter *e);
/* All reductions of values of a level. */
void emit_reductions(emitter *e, int32_t level);

/* ---- online.c ---- */

/* The reductions of the first two levels in one loop, where the second level is of a row less its largest
 * value. False: nothing was done. */
bool emit_online(emitter *e);

/* ---- passes.c ---- */

/* Reductions, stores and partials of a row (of a head), level by level. */
void emit_passes(emitter *e);
/* Stores and partials of kernels without reductions. */
void emit_flat_stores(emitter *e);

/* ---- partial.c ---- */

/* Where the sums of a partial are while rows go by. */
typedef enum emit_sum {
    SUM_MEMORY, /* in the operand, always by the same thread */
    SUM_THREAD, /* in registers of the thread that has the element */
    SUM_TEAMS   /* teams leave what they have in shared memory; the group adds in order */
} emit_sum;
emit_sum emit_sum_of(const emitter *e, int32_t k);
const char *emit_sum_type(const emitter *e, int32_t k);
/* Whether some partial lacks the head. */
bool emit_any_headless(const emitter *e);
/* Whether it sums a value over the heads, which its operand lacks, in a loop of its own. */
bool emit_sums_heads(const emitter *e, int32_t k);
void emit_sums_declare(emitter *e);
/* Adds what the teams left, unit `first` on. */
void emit_sums_combine(emitter *e);
void emit_sums_store(emitter *e);
/* Shared memory, before the kernel. */
void emit_sums_shared(emitter *e);

/* ---- functions.c ---- */

/* Functions that the kernel needs: random numbers, dynamic types, of integers; and its tables. */
void emit_functions(sbp_text *out, const sbp_rowkernel *kernel, const sbp_gpu_dialect *dialect);

#endif
