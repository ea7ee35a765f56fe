/* compile_model.h: programs of real models for tests: a model directory through all passes. */
#ifndef SBP_TESTS_COMMON_COMPILE_MODEL_H
#define SBP_TESTS_COMMON_COMPILE_MODEL_H

#include "frontends/objectives/objective.h"
#include "passes/lower/passes.h"

typedef struct compile_request {
    const char *model; /* directory */
    sbp_dtype compute;
    const char *set;                 /* KEY=JSON, changes config.json; NULL: nothing */
    const char *freeze;              /* glob over parameters; NULL: train all */
    sbp_objective_builder objective; /* NULL: sft */
    bool bf16_weights;               /* trained weights are kept in bf16, else in fp32 (fp64) */
    const char *stop_after;          /* a pass, or NULL */
    sbp_pass_options options;
} compile_request;

/* SFT in fp32 with AdamW: stream, everything else 1; the caller changes what it wants otherwise. */
compile_request compile_request_for(const char *model, int64_t t_max, int64_t chunk, int64_t head_chunk);

/* Checkpoints and saved values live on the host, or not. */
void compile_offload(compile_request *request, bool offload);

/* All that outlives a call of a segment lives there, or of each class the first items (0: all), and the
 * optimizer's rules run on the host's cores. */
void compile_away(compile_request *request, sbp_space placement, int32_t first);

/* For the CPU; everything lives in the arena. */
sbp_status compile_model(sbp_arena *arena, sbp_diag *diag, const compile_request *request,
                         sbp_program **out) SBP_CHECKED;

#endif
