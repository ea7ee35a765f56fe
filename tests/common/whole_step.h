/* whole_step.h: the gradients of a whole step by two ways that share neither head nor schedule: a model
 * through all passes and on the CPU device, with an objective that reads whole documents
 * (objective_test_group.h), in settings of the schedule; and a reference: @model as one function over all
 * rows, evaluated in double; the objective and its derivative by the formulas of that header, in C; the
 * reverse sweep of the whole @model with that as cotangent. The reference itself is compared with difference
 * quotients of the objective. */
#ifndef SBP_TESTS_COMMON_WHOLE_STEP_H
#define SBP_TESTS_COMMON_WHOLE_STEP_H

#include "ir/program/program.h"
#include "tests/common/testing.h"

enum { WHOLE_STEP_ROWS = 17, WHOLE_STEP_VOCABULARY = 50 }; /* of a micro-batch at most; tokens are below */

/* A model with values for its parameters, all of them trained, at most 64. few: each setting and each size of
 * chunks once. Prints what was compared; fails with what differs. */
void whole_step_check(const char *path, bool few);

/* The same in fp64 with `count` settings of chunks, segments, checkpoints, what is kept, and
 * where it lives. */
void whole_step_draw(const char *path, uint64_t seed, int count);

/* The same of a model whose directory may hold no values (then they are drawn), with drawn documents; the
 * reference evaluates each document alone, as if there were no others. */
void whole_step_draw_alone(const char *path, uint64_t seed, int count);

/* Calls of a function by an entry. */
int32_t whole_step_calls(const sbp_program *p, const char *entry, const char *function);

#endif
