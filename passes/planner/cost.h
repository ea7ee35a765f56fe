/* cost.h: time and work of a program, in closed form over its sizes: the model that the planner ranks plans
 * by. */
#ifndef SBP_PASSES_PLANNER_COST_H
#define SBP_PASSES_PLANNER_COST_H

#include "ir/program.h"
#include "ir/target_info.h"

typedef struct sbp_cost {
    double seconds;
    double flops; /* as executed, recomputation included */
    int64_t commands;
} sbp_cost;

/* A whole optimizer step of one micro-batch of t rows in one document: `step`, or `accumulate` and `update`;
 * `score` when nothing trains. program->chunk and head_chunk as they are. What the other queues run overlaps
 * with what runs on compute; the longer of the two counts. */
void sbp_cost_step(sbp_arena *arena, const sbp_program *program, int64_t t, const sbp_target_info *target,
                   sbp_cost *out);
/* The entry of those that runs once per micro-batch. */
const char *sbp_cost_training_entry(const sbp_program *program);

/* The part of an entry in functions whose name ends with `suffix`. */
void sbp_cost_functions(sbp_arena *arena, const sbp_program *program, const char *entry, const char *suffix,
                        int64_t t, const sbp_target_info *target, sbp_cost *out);

#endif
