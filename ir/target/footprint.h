/* footprint.h: what a process holds on the device beside the arenas of its plan. A backend that was measured
 * has a function for it (backends/<name>/); the planner and the command line ask sbp_target_footprint and
 * know none of its figures. Threads: no state. */
#ifndef SBP_IR_TARGET_FOOTPRINT_H
#define SBP_IR_TARGET_FOOTPRINT_H

#include "ir/target/target_info.h"

struct sbp_module;
struct sbp_program;

/* What the footprint of a process depends on, beside its backend. */
struct sbp_process {
    const struct sbp_module *module;
    const struct sbp_program *program; /* NULL: there is none yet, and the four fields below stand for it */
    bool most;                         /* no program: the most that it can come to; else the least */
    int farthest;              /* no program: the space farthest from the device where states, gradients or
                            parameters may live (sbp_space) */
    bool on_disk;              /* no program: something lives on disk */
    int64_t chunk, head_chunk; /* rows */
    sbp_dtype dtype;           /* of computation */
    int64_t threads, ranks;
    int64_t tokenizer_bytes;    /* of the text that the plan carries */
    bool vocabulary_in_weights; /* the weights' file has the same tokens, and they are read with it */
    int64_t reordered_bytes;    /* of the largest tensor that is put in order while it is read or written */
    bool prepare;               /* there is a function @prepare (ir/graph/prepare.h) */
};

struct sbp_footprint {
    int64_t bytes;        /* in all */
    int64_t thread_bytes; /* of these, of each thread */
};

/* A target without a function takes runtime_bytes, whatever it runs. */
static inline sbp_footprint sbp_target_footprint(const sbp_target_info *target, const sbp_process *process) {
    if (!target->footprint)
        return (sbp_footprint){.bytes = target->runtime_bytes};
    return target->footprint(process);
}

#endif
