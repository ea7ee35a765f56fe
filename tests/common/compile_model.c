#include "tests/common/compile_model.h"

#include "frontends/source/frontend.h"

compile_request compile_request_for(const char *model, int64_t t_max, int64_t chunk, int64_t head_chunk) {
    return (compile_request){
        .model = model,
        .compute = SBP_F32,
        .options =
            {.t_max = t_max,
             .schedule = {.chunk = chunk, .head_chunk = head_chunk, .segment = 1, .checkpoint_every = 1},
             .grad_dtype = SBP_F32,
             .state_dtype = SBP_F32,
             .optimizer = SBP_OPTIMIZER_ADAMW},
    };
}

typedef struct work {
    sbp_arena *arena;
    sbp_diag *diag;
    const compile_request *request;
    sbp_program *program;
} work;

static sbp_status compile(void *user) {
    work *w = user;
    sbp_model_options options = sbp_model_options_for(w->request->compute);
    if (w->request->bf16_weights)
        options.trainable_storage = SBP_BF16;
    options.set = &w->request->set;
    options.set_count = w->request->set != NULL;
    options.freeze = &w->request->freeze;
    options.freeze_count = w->request->freeze != NULL;
    sbp_model model;
    SBP_TRY(sbp_model_load(w->arena, w->diag, w->request->model, &options, &model));
    sbp_objective_choice choice = {
        .name = "sft", .build = w->request->objective, .request.balance = model.balance};
    SBP_TRY(sbp_objective_add(model.module, w->diag, &choice, NULL));
    sbp_pipeline p = {.arena = w->arena,
                      .diag = w->diag,
                      .module = model.module,
                      .target = {.name = "cpu", .alignment_bytes = 64, .attention_partials = 4},
                      .options = w->request->options,
                      .stop_after = w->request->stop_after};
    SBP_TRY(sbp_pipeline_run(&p));
    w->program = p.program;
    return SBP_OK;
}

void compile_offload(compile_request *request, bool offload) {
    request->options.schedule.placement[SBP_TENSOR_CHECKPOINT] =
        request->options.schedule.placement[SBP_TENSOR_SAVED] = offload ? SBP_HOST : SBP_DEVICE;
}

void compile_away(compile_request *request, sbp_space placement, int32_t first) {
    for (int class = 0; class < SBP_TENSOR_CLASS_COUNT; class ++) {
        request->options.schedule.placement[class] = placement;
        request->options.schedule.first[class] = first;
    }
    request->options.schedule.host_update = placement != SBP_DEVICE;
    request->options.schedule.sparing = first > 0;
}

sbp_status compile_model(sbp_arena *arena, sbp_diag *diag, const compile_request *request,
                         sbp_program **out) {
    work w = {.arena = arena, .diag = diag, .request = request};
    SBP_TRY(sbp_guard(arena, diag, compile, &w));
    *out = w.program;
    return SBP_OK;
}
