/* run_weights.c: the weights that a run begins with. */
#include <stdlib.h>
#include <string.h>

#include "runtime/cli/sbprun/run.h"

const char *sbp_run_adapter_file(sbp_arena *arena, const char *directory) {
    return sbp_file_join(arena, directory, "adapter_model.safetensors");
}

sbp_status sbp_run_find_weights(const sbp_run *run, const char **path, const char **adapter, uint64_t *seed) {
    static const char random[] = "random:";
    const char *given = sbp_options_text(run->options, SBP_OPT_WEIGHTS);
    char *end;
    *adapter = run->info.meta.adapter_weights;
    if (given && run->info.meta.adapter && sbp_file_exists(sbp_run_adapter_file(run->arena, given))) {
        *adapter = given;
        given = NULL;
    }
    *path = given ? given : run->info.meta.weights;
    const char *pickle = !*path && run->model ? sbp_weights_find_pickle(run->arena, run->model) : NULL;
    if (pickle)
        return sbp_fail(run->diag, SBP_INPUT, "%s: %s", pickle,
                        sbp_weights_convert_pickle(run->arena, pickle));
    if (!*path)
        return sbp_fail(run->diag, SBP_INPUT, "'%s' %s: give --weights DIR, FILE or random:SEED",
                        run->model ? run->model : run->plan_path,
                        run->model ? "has no weights" : "was compiled without weights");
    if (!given || strncmp(given, random, strlen(random)) != 0)
        return SBP_OK;
    given += strlen(random);
    *path = NULL;
    *seed = strtoull(given, &end, 10);
    if (!*given || *end || *given == '-')
        return sbp_fail(run->diag, SBP_USAGE, "--weights random:%s: expected a whole number as seed", given);
    return SBP_OK;
}

static sbp_status load_adapter(sbp_run *run, sbp_arena *arena, const char *directory) {
    sbp_weights *weights;
    SBP_TRY(sbp_weights_open(arena, run->diag, sbp_run_adapter_file(run->arena, directory), &weights));
    sbp_status status = sbp_params_load_adapter(run->executor, run->plan, weights, run->diag);
    sbp_weights_close(weights);
    return status;
}

sbp_status sbp_run_load_weights(sbp_run *run) {
    const char *path, *adapter;
    uint64_t seed;
    sbp_weights *weights;
    SBP_TRY(sbp_run_find_weights(run, &path, &adapter, &seed));
    if (!path)
        return sbp_params_randomize(run->executor, run->plan, seed, sbp_run_threads(run), run->diag);
    sbp_arena *arena = sbp_arena_create();
    if (!arena)
        return sbp_fail(run->diag, SBP_MACHINE, "out of memory");
    sbp_status status = sbp_weights_open(arena, run->diag, path, &weights);
    if (status == SBP_OK) {
        status = sbp_params_load(run->executor, run->plan, weights,
                                 (uint64_t)sbp_options_int(run->options, SBP_OPT_SEED), run->diag);
        sbp_weights_close(weights);
    }
    if (status == SBP_OK && adapter)
        status = load_adapter(run, arena, adapter);
    sbp_arena_destroy(arena);
    return status;
}
