/* cost.h: time and work of a program, in closed form over its sizes: the model that the planner ranks plans
 * by. */
#ifndef SBP_PASSES_PLANNER_COST_H
#define SBP_PASSES_PLANNER_COST_H

#include "passes/lower/passes.h"

/* Bytes of a class of tensors that are copied in a step. */
typedef struct sbp_traffic {
    double in, out;       /* to the device, from it */
    double read, written; /* of the disk */
} sbp_traffic;

typedef struct sbp_cost {
    double seconds;
    double busy[SBP_QUEUE_COUNT]; /* of these, per queue: of whole steps; of a function in and compute */
    double flops;                 /* as executed, recomputation included */
    int64_t commands;
    sbp_traffic traffic[SBP_TENSOR_CLASS_COUNT]; /* of whole steps; of a function what it brings itself */
} sbp_cost;

/* Counts `bytes` bytes that are copied between two spaces; within one nothing is counted. */
void sbp_traffic_add(sbp_traffic *traffic, sbp_space to, sbp_space from, double bytes);

/* What rank 0 sends to the others, who send as much, in a step: with each micro-batch, and once. */
typedef struct sbp_net_traffic {
    int64_t part_bytes, step_bytes;
    int32_t part_collectives, step_collectives;
    double part_away, step_away;          /* of the bytes: to other hosts */
    double seconds[SBP_COLLECTIVE_COUNT]; /* per kind, of a step of one micro-batch */
    /* Among the ranks of a context, with a micro-batch of as many rows as there can be; bytes go with rows.
     */
    int64_t context_bytes, context_exchanges;
    double context_seconds;
} sbp_net_traffic;

/* What ranks send each other in a step, or in a scoring when nothing trains; all 0 with one rank. */
void sbp_cost_net_traffic(const sbp_program *program, const sbp_target_info *target, sbp_net_traffic *out);

/* A whole optimizer step of one micro-batch of t rows in one document: `step`, or `accumulate` and `update`;
 * `score` when nothing trains. program->chunk and head_chunk as they are. Queues run beside each other as far
 * as what they read and write allows (makespan.h). */
void sbp_cost_step(sbp_arena *arena, const sbp_program *program, int64_t t, const sbp_target_info *target,
                   sbp_cost *out);
/* Seconds of one entry with t_max rows; 0 for NULL. */
double sbp_cost_entry(sbp_arena *arena, const sbp_program *program, const sbp_entry *entry,
                      const sbp_target_info *target);

/* One call of a function. */
void sbp_cost_function(const sbp_program *program, int32_t function, int64_t t, const sbp_target_info *target,
                       sbp_cost *out);
/* Seconds of a copy of `bytes` bytes, while the other ranks of the host (throughput.host_ranks) do the same:
 * they share its disks, and where the device has a memory of its own the host's memory and cores. */
double sbp_cost_copy(const sbp_target_info *target, sbp_space to, sbp_space from, double bytes);
/* Seconds of a collective over `elems` elements (all that there is, not a share). */
double sbp_cost_collective(const sbp_target_info *target, sbp_collective_op op, const sbp_program *program,
                           int64_t elems, sbp_dtype dtype);
/* Seconds of row kernels that read and write `bytes` bytes and take `ops` scalar operations. */
double sbp_cost_rows(const sbp_target_info *target, bool on_host, double bytes, double ops);

#endif
