/* plan.h: an opened plan.bin: the verified program, the table of its parameters, and what else the compiler
 * left for the runtime. A plan is untrusted: whatever is wrong with it is SBP_INPUT, naming file and
 * section; once it is open, the program may be run and the table used without further checks.
 *
 * Ownership. Everything lives in the arena given to open. Threads: an open plan may be read by many.
 */
#ifndef SBP_RUNTIME_RUN_PLAN_H
#define SBP_RUNTIME_RUN_PLAN_H

#include "frontends/formats/weights/tensor_table.h"
#include "ir/program/plan_file.h"
#include "ir/program/program.h"

typedef struct sbp_plan {
    const char *path;
    const sbp_program *program; /* verified, with offsets */
    const sbp_tensor_table *tensors;
    const int32_t *buffers; /* [tensors->count] program buffer of each tensor: role param, as many elements;
                             * of one that is kept in blocks its first part */
    const int32_t (*parts)[SBP_MAX_FORMAT_PARTS];         /* [tensors->count] of those in blocks */
    const sbp_format_decoder *decoders[SBP_FORMAT_COUNT]; /* of formats that tensors have */
    /* [tensors->count] the low halves of its numbers: "<parameter>.master_lo", -1: none */
    const int32_t *masters;
    const int32_t *tensor_of; /* [buffer_count] tensor of each buffer, -1: none */
    const sbp_json *meta;     /* an object: compile options, model info, defaults of run-time scalars */
    const char *tokenizer;    /* text of tokenizer.json, NUL after its bytes; "" when the plan has none */
    int64_t tokenizer_bytes;
    const char *chat_template; /* "" when the plan has none */
    const void *kernels;       /* device code, NULL when the plan has none */
    int64_t kernels_bytes;
} sbp_plan;

/* Needs no guard by the caller. */
sbp_status sbp_plan_open(sbp_arena *arena, sbp_diag *diag, const char *path,
                         const sbp_plan **out) SBP_CHECKED;
/* Loads a plan out of a file that was read. Below a guard. */
sbp_status sbp_plan_load(sbp_arena *arena, sbp_diag *diag, const sbp_plan_file *file,
                         const sbp_plan **out) SBP_CHECKED;

#endif
