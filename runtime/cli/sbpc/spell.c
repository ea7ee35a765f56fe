/* spell.c: changes that the planner names, as options. */
#include "runtime/cli/sbpc/cli.h"

#include <string.h>

static const char *const fixed[SBP_CHANGE_COUNT] = {
    [SBP_CHANGE_STEP] = "--clip none --accumulate 1",
    [SBP_CHANGE_STREAM] = "--backward stream",
    [SBP_CHANGE_OPTIMIZER] = "--optimizer sgd",
    [SBP_CHANGE_FREEZE] = "--lora or --freeze GLOB",
};

const char *sbp_cli_change(sbp_change change) {
    return fixed[change];
}

/* The options that fix the schedule, as they were given: "--chunk 64 --offload none". */
static const char *given_schedule(sbp_arena *arena, const sbp_schedule_request *w) {
    const struct {
        const char *name;
        int64_t value;
    } numbers[] = {{"chunk", w->chunk},
                   {"head-chunk", w->head_chunk},
                   {"segment", w->segment},
                   {"checkpoint-every", w->checkpoint_every}};
    sbp_text out;
    sbp_text_init(&out, arena);
    for (int i = 0; i < SBP_COUNT(numbers); i++)
        if (numbers[i].value != SBP_AUTO)
            sbp_text_add(&out, "%s--%s %lld", out.length > 0 ? " " : "", numbers[i].name,
                         (long long)numbers[i].value);
    if (w->save_mode != SBP_SAVE_AUTO)
        sbp_text_add(&out, "%s--save%s", out.length > 0 ? " " : "", w->saved_count == 0 ? " none" : "");
    if (w->offload == SBP_OFFLOAD_OFF)
        sbp_text_add(&out, "%s--offload none", out.length > 0 ? " " : "");
    return out.data;
}

static const char *spell(sbp_arena *arena, const sbp_schedule_request *request, const sbp_remedy *remedy) {
    sbp_schedule_options away = {0};
    switch (remedy->change) {
    case SBP_CHANGE_FREE:
        return given_schedule(arena, request);
    case SBP_CHANGE_ROWS:
        return remedy->number == SBP_AUTO
                   ? "--seq-len max"
                   : sbp_arena_printf(arena, "--seq-len %lld", (long long)remedy->number);
    case SBP_CHANGE_CONTEXT:
        return sbp_arena_printf(arena, "--context-parallel %lld", (long long)remedy->number);
    case SBP_CHANGE_PLACEMENT:
        memcpy(away.placement, remedy->placement, sizeof away.placement);
        return sbp_planner_placement(arena, &away, "--offload ");
    case SBP_CHANGE_STATE_DTYPE:
        return remedy->dtype == SBP_D8 ? "--state-dtype int8" : "--state-dtype bf16";
    default:
        return fixed[remedy->change];
    }
}

void sbp_cli_speller(sbp_speller *out) {
    *out = (sbp_speller){.memory = "--memory", .host_memory = "--host-memory", .spell = spell};
}
