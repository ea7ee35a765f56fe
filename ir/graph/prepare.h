/* prepare.h: what an objective computes from data alone, once for each step and before it: the graph function
 * @prepare of a module of its own, whose text is a section of the plan. It runs on the host, in double
 * precision.
 *
 * T are all rows of the step, document after document in the order of the data; S is the number of its
 * documents, so that indices of documents, units and groups may stand beside each other. Row inputs are named
 * as those of programs (runtime/data/pack.h); scalars are counts of the step and settings. A result [T] is a
 * column that the program, too, may read by its name, in place of one of the data; a result without rows is a
 * number of the step: a scalar where the program has one of that name, and reported in any case. So is one
 * whose name ends in "/max" or "/min": the greatest or the least of its rows that are a number, 0 where none
 * is.
 *
 * Values are vectors over T or S and numbers; ops those of a fixed list (prepare.c), each in time linear in
 * the rows.
 *
 * Ownership: all in the arena given to parse. Threads: a parsed one may be run by many. Untrusted text is
 * checked.
 */
#ifndef SBP_IR_GRAPH_PREPARE_H
#define SBP_IR_GRAPH_PREPARE_H

#include "ir/base/base.h"

typedef struct sbp_prepare {
    const char *const *rows; /* names of row inputs */
    int32_t row_count;
    const char *const *scalars;
    int32_t scalar_count;
    const char *const *columns; /* names of the results with rows */
    int32_t column_count;
    const char *const *numbers; /* names of those without */
    int32_t number_count;
    const struct sbp_prepare_graph *graph;
} sbp_prepare;

/* name: of the text, for messages. Below a guard. */
sbp_status sbp_prepare_parse(sbp_arena *arena, sbp_diag *diag, const char *name, const char *text,
                             size_t length, const sbp_prepare **out) SBP_CHECKED;

/* inputs: [row_count][T], only read; scalars: [scalar_count]; columns: [column_count][T] and numbers:
 * [number_count] are written. t, s: at least 1. Needs no guard. */
sbp_status sbp_prepare_run(const sbp_prepare *prepare, sbp_diag *diag, int64_t t, int64_t s,
                           double *const *inputs, const double *scalars, double *const *columns,
                           double *numbers) SBP_CHECKED;

#endif
