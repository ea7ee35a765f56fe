/* calls.h: the call schedule: what is called in which order, and what that reads and writes. */
#ifndef SBP_PASSES_CALLS_CALLS_H
#define SBP_PASSES_CALLS_CALLS_H

#include "passes/offload/offload.h"

/* The lists of `score`, `accumulate` and `update`, or `step`, for the schedule of the program's options, in
 * its arena. The program gets the buffers of the streams, and tensors get the placements that the options
 * name. */
sbp_status sbp_call_lists_make(sbp_program_builder *program, const sbp_callables *from,
                               sbp_call_schedule *out) SBP_CHECKED;

#endif
