/* run_weights.c: the weights that a run begins with. */
#include <stdlib.h>
#include <string.h>

#include "runtime/cli/sbprun/outputs.h"

const char *sbp_run_adapter_file(sbp_arena *arena, const char *directory) {
    return sbp_file_join(arena, directory, "adapter_model.safetensors");
}

sbp_status sbp_run_find_weights(const sbp_world *world, const sbp_session *session, const char **path,
                                const char **adapter, uint64_t *seed) {
    static const char random[] = "random:";
    const char *given = sbp_options_text(world->options, SBP_OPT_WEIGHTS);
    char *end;
    *adapter = session->info.meta.adapter_weights;
    if (given && session->info.meta.adapter && sbp_file_exists(sbp_run_adapter_file(world->arena, given))) {
        *adapter = given;
        given = NULL;
    }
    *path = given ? given : session->info.meta.weights;
    const char *pickle =
        !*path && session->model ? sbp_weights_find_pickle(world->arena, session->model) : NULL;
    if (pickle)
        return sbp_fail(world->diag, SBP_INPUT, "%s: %s", pickle,
                        sbp_weights_convert_pickle(world->arena, pickle));
    if (!*path)
        return sbp_fail(world->diag, SBP_INPUT, "'%s' %s: give --weights DIR, FILE or random:SEED",
                        session->model ? session->model : session->plan_path,
                        session->model ? "has no weights" : "was compiled without weights");
    if (!given || strncmp(given, random, strlen(random)) != 0)
        return SBP_OK;
    given += strlen(random);
    *path = NULL;
    *seed = strtoull(given, &end, 10);
    if (!*given || *end || *given == '-')
        return sbp_fail(world->diag, SBP_USAGE, "--weights random:%s: expected a whole number as seed",
                        given);
    return SBP_OK;
}

sbp_status sbp_run_find_carried(const sbp_world *world, sbp_session *session, const sbp_outputs *outputs) {
    const char *path, *adapter;
    uint64_t seed;
    sbp_weights *weights;
    if (!session->info.meta.carried || !outputs->out)
        return SBP_OK;
    SBP_TRY(sbp_run_find_weights(world, session, &path, &adapter, &seed));
    session->info.carried = path;
    if (!path)
        return SBP_OK;
    SBP_TRY(sbp_weights_open(world->arena, world->diag, path, &weights)); /* else it fails when all is done */
    sbp_weights_close(weights);
    return SBP_OK;
}

static sbp_status load_adapter(const sbp_world *world, const sbp_session *session, sbp_arena *arena,
                               const char *directory) {
    sbp_weights *weights;
    SBP_TRY(sbp_weights_open(arena, world->diag, sbp_run_adapter_file(world->arena, directory), &weights));
    sbp_status status = sbp_params_load_adapter(world->executor, session->plan, weights, world->diag);
    sbp_weights_close(weights);
    return status;
}

sbp_status sbp_run_load_weights(const sbp_world *world, const sbp_session *session) {
    const char *path, *adapter;
    uint64_t seed;
    sbp_weights *weights;
    SBP_TRY(sbp_run_find_weights(world, session, &path, &adapter, &seed));
    if (!path)
        return sbp_params_randomize(world->executor, session->plan, seed, sbp_world_threads(world),
                                    world->diag);
    sbp_arena *arena = sbp_arena_create();
    if (!arena)
        return sbp_fail(world->diag, SBP_MACHINE, "out of memory for reading the weights");
    sbp_status status = sbp_weights_open(arena, world->diag, path, &weights);
    if (status == SBP_OK) {
        status = sbp_params_load(world->executor, session->plan, weights,
                                 (uint64_t)sbp_options_int(world->options, SBP_OPT_SEED), world->diag);
        sbp_weights_close(weights);
    }
    if (status == SBP_OK && adapter)
        status = load_adapter(world, session, arena, adapter);
    sbp_arena_destroy(arena);
    return status;
}
