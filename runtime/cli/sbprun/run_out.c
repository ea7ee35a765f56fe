/* run_out.c: where a run writes, and that nothing that it reads, or that is somebody else's, is written over.
 */
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "frontends/formats/files/hub.h"
#include "runtime/cli/sbprun/outputs.h"

sbp_outputs sbp_outputs_begin(void) {
    return (sbp_outputs){
        .dir = {.fd = -1, .lock = -1},
        .published = {.dir = {.fd = -1, .lock = -1}, .before = -1, .latest = -1, .earlier = -1},
        .eval_loss = NAN};
}

void sbp_outputs_close(sbp_outputs *outputs) {
    (void)!sbp_events_close(outputs->metrics.events, NULL);
    if (outputs->metrics.file)
        fclose(outputs->metrics.file);
    sbp_rundir_close(&outputs->published.dir);
    sbp_rundir_close(&outputs->dir);
}

/* ---- the name --------------------------------------------------------------------------------------- */

/* "path/to/Tiny-1B.gguf" is "Tiny-1B". */
char *sbp_run_model_name(sbp_arena *arena, const char *path) {
    char resolved[4096];
    if (realpath(path, resolved))
        path = resolved;
    const char *id = sbp_hub_id_of(arena, path); /* else it were a commit's hash */
    path = id ? id : path;
    const char *slash = strrchr(path, '/');
    char *name = sbp_arena_strdup(arena, slash ? slash + 1 : path), *dot = strrchr(name, '.');
    if (dot && (strcmp(dot, ".gguf") == 0 || strcmp(dot, ".json") == 0))
        *dot = 0;
    return name;
}

/* A name from a plan may hold anything. */
static const char *file_name(sbp_arena *arena, const char *text) {
    char *name = sbp_arena_printf(arena, "%.100s", text);
    for (char *at = name; *at; at++)
        if (!isalnum((unsigned char)*at) && (at == name || !strchr("-_.", *at)))
            *at = '-';
    return *name ? name : "model";
}

sbp_status sbp_run_choose_out(const sbp_world *world, const sbp_session *session, sbp_outputs *outputs) {
    sbp_options *o = world->options;
    const char *given = sbp_options_text(o, SBP_OPT_OUT);
    outputs->out = given && strcmp(given, "none") != 0 ? given : NULL;
    if (sbp_options_given(o, SBP_OPT_DUMP_GRADIENTS))
        outputs->out = NULL; /* what it writes is that file */
    if (given || !session->train)
        return SBP_OK;
    const char *name = session->plan && session->info.meta.name
                           ? session->info.meta.name
                           : sbp_run_model_name(world->arena, sbp_options_arg(o, 0));
    const sbp_json *objective = session->plan ? sbp_json_member(session->plan->meta, "objective") : NULL;
    const char *goal = objective && objective->kind == SBP_JSON_STRING
                           ? objective->string
                           : sbp_options_text(o, SBP_OPT_OBJECTIVE);
    outputs->out = file_name(world->arena, sbp_arena_printf(world->arena, "%.80s-%.20s", name, goal));
    outputs->out_is_default = true;
    return sbp_options_set_default(o, world->diag, SBP_OPT_OUT, outputs->out);
}

/* ---- what is read ----------------------------------------------------------------------------------- */

/* Whether both exist and path is the directory or lies in it. */
bool sbp_run_lies_in(const char *path, const char *directory) {
    char a[4096], b[4096];
    if (!path || !realpath(path, a) || !realpath(directory, b))
        return false;
    size_t length = strlen(b);
    return strncmp(a, b, length) == 0 && (a[length] == 0 || a[length] == '/' || b[length - 1] == '/');
}

/* Model, weights and tokenizer: [3], NULL where there is none. */
static void list_sources(const sbp_world *world, const sbp_session *session, const char *sources[3]) {
    const char *weights = sbp_options_text(world->options, SBP_OPT_WEIGHTS);
    sources[0] = session->model;
    sources[1] = weights && strncmp(weights, "random:", 7) != 0 ? weights
                 : session->plan                                ? session->info.meta.weights
                                                                : NULL;
    sources[2] = session->plan ? session->info.meta.tokenizer : NULL;
}

/* --score and --dump-gradients: not onto a file that is read. */
static sbp_status check_result(const sbp_world *world, const sbp_session *session, sbp_option_id option) {
    static const sbp_option_id lists[] = {SBP_OPT_DATA, SBP_OPT_EVAL};
    const sbp_options *o = world->options;
    const char *path = sbp_options_text(o, option), *sources[3], *read = NULL;
    if (!path)
        return SBP_OK;
    list_sources(world, session, sources);
    for (int l = 0; l < SBP_COUNT(lists); l++)
        for (int32_t i = 0; i < sbp_options_list_count(o, lists[l]); i++)
            if (sbp_same_file(path, sbp_options_list_at(o, lists[l], i)))
                read = sbp_options_list_at(o, lists[l], i);
    for (int i = 0; i < SBP_COUNT(sources); i++)
        if (sources[i] && sbp_run_lies_in(path, sources[i]))
            read = sources[i];
    if (session->plan_path && sbp_same_file(path, session->plan_path))
        read = session->plan_path;
    if (!read)
        return SBP_OK;
    return sbp_fail(world->diag, SBP_USAGE,
                    "--%s '%s' would be written over '%s', which is read: choose another name",
                    sbp_option_name(option), path, read);
}

sbp_status sbp_run_check_results(const sbp_world *world, const sbp_session *session) {
    SBP_TRY(check_result(world, session, SBP_OPT_SCORE));
    return check_result(world, session, SBP_OPT_DUMP_GRADIENTS);
}

/* ---- what lies there -------------------------------------------------------------------------------- */

sbp_status sbp_run_check_apart(const sbp_world *world, const sbp_session *session, const char *option,
                               const char *path) {
    const char *sources[3];
    list_sources(world, session, sources);
    for (int i = 0; i < SBP_COUNT(sources); i++)
        if (sbp_run_lies_in(sources[i], path))
            return sbp_fail(world->diag, SBP_USAGE,
                            "'%s' is where the model is read from ('%s'): choose another --%s", path,
                            sources[i], option);
    return SBP_OK;
}

static sbp_status check_contents(const sbp_world *world, const sbp_session *session,
                                 const sbp_outputs *outputs) {
    const sbp_options *o = world->options;
    bool resume = sbp_options_on(o, SBP_OPT_RESUME), overwrite = sbp_options_on(o, SBP_OPT_OVERWRITE);
    sbp_rundir_contents c;
    SBP_TRY(sbp_rundir_look(&outputs->dir, world->diag, &c));
    SBP_TRY(sbp_run_check_apart(world, session, "out", outputs->out));
    const char *foreign = *c.stranger               ? c.stranger
                          : resume && c.newest >= 0 ? "" /* a checkpoint says what it is */
                                                    : c.result;
    if (!c.run && *foreign)
        return sbp_fail(
            world->diag, SBP_USAGE,
            "'%s' is not empty, and was not written by sbprun ('%s' is there): choose another --out",
            outputs->out, foreign);
    if (!c.model && c.newest < 0)
        return SBP_OK;
    if (!session->train)
        return sbp_fail(world->diag, SBP_USAGE,
                        "'%s' holds the results of a run, whose metrics would be lost: choose another --out",
                        outputs->out);
    if (overwrite || (resume && c.newest >= 0))
        return SBP_OK;
    if (resume)
        return sbp_fail(world->diag, SBP_USAGE,
                        "'%s' holds a model and no checkpoint to go on from: start over with --overwrite, or "
                        "choose another --out",
                        outputs->out);
    return sbp_fail(
        world->diag, SBP_USAGE,
        "'%s' holds %s of another run: go on with --resume, start over with --overwrite, or choose "
        "another --out",
        outputs->out, c.newest >= 0 ? "checkpoints" : "the model");
}

static sbp_status open_to_write(const sbp_world *world, const sbp_session *session, sbp_outputs *outputs,
                                sbp_rundir_mode mode) {
    if (outputs->dir.fd >= 0)
        return SBP_OK;
    SBP_TRY(sbp_rundir_open(&outputs->dir, world->diag, outputs->out, mode));
    return outputs->dir.fd >= 0 ? check_contents(world, session, outputs) : SBP_OK;
}

sbp_status sbp_run_create_out(const sbp_world *world, const sbp_session *session, sbp_outputs *outputs) {
    return open_to_write(world, session, outputs, SBP_RUNDIR_CREATE);
}

sbp_status sbp_run_open_out(sbp_world *world, const sbp_session *session, sbp_outputs *outputs,
                            sbp_rundir_mode mode) {
    sbp_status status = SBP_OK;
    if (!outputs->out)
        return SBP_OK;
    SBP_TRY(sbp_world_agree(world,
                            sbp_world_writes(world) ? open_to_write(world, session, outputs, mode) : SBP_OK));
    if (!sbp_world_writes(world))
        status = sbp_rundir_open(&outputs->dir, world->diag, outputs->out, SBP_RUNDIR_READ);
    return sbp_world_agree(world, status);
}

/* ---- while the run goes on -------------------------------------------------------------------------- */

sbp_status sbp_run_check_in_place(const sbp_world *world, const sbp_outputs *outputs, const sbp_rundir *dir) {
    char now[4096];
    if (sbp_rundir_is_in_place(dir, now, sizeof now))
        return sbp_rundir_has_lock(dir)
                   ? SBP_OK
                   : sbp_fail(world->diag, SBP_IO,
                              "files in '%s' were removed while the run wrote there (.lock is "
                              "gone): the run ends",
                              dir->path);
    int64_t newest = dir == &outputs->dir && *now ? sbp_rundir_newest(dir, INT64_MAX) : -1;
    if (!*now)
        return sbp_fail(world->diag, SBP_IO, "'%s' was removed while the run wrote in it: the run ends",
                        dir->path);
    if (newest < 0)
        return sbp_fail(
            world->diag, SBP_IO,
            "'%s' is no longer the directory that the run writes in, which is '%s' now: the run ends",
            dir->path, now);
    return sbp_fail(
        world->diag, SBP_IO,
        "'%s' is no longer the directory that the run writes in, which is '%s' now: the run ends; its "
        "last checkpoint is '%s/checkpoint-%lld', and --out '%s' --resume goes on from there",
        dir->path, now, now, (long long)newest, now);
}

/* ---- the beginning ---------------------------------------------------------------------------------- */

static sbp_status install_plan(const sbp_world *world, sbp_session *session, const sbp_outputs *outputs) {
    const char *path = sbp_file_join(world->arena, outputs->out, "plan.bin");
    if (!session->temporary_plan)
        return SBP_OK;
    if (rename(session->temporary_plan, path) != 0)
        return sbp_fail(world->diag, SBP_IO, "cannot rename '%s' to '%s': %s", session->temporary_plan, path,
                        strerror(errno));
    session->temporary_plan = NULL;
    return SBP_OK;
}

static sbp_status begin_to_write(const sbp_world *world, const sbp_inputs *inputs, sbp_session *session,
                                 sbp_outputs *outputs, const char *resumed) {
    if (session->train && outputs->out_is_default)
        sbp_note(world->diag,
                 "the model, checkpoints and metrics go to '%s' (--out DIR: elsewhere; none: nowhere)",
                 outputs->out);
    if (session->temporary_plan) /* as it will be called */
        session->plan_path = sbp_file_join(world->arena, outputs->out, "plan.bin");
    if (!resumed && sbp_options_on(world->options, SBP_OPT_OVERWRITE))
        sbp_rundir_remove_results(&outputs->dir, world->diag);
    SBP_TRY(sbp_run_write_json(world, inputs, session, outputs, resumed));
    SBP_TRY(sbp_run_write_matmuls(world, session, outputs, resumed));
    SBP_TRY(install_plan(world, session, outputs));
    sbp_rundir_begin(&outputs->dir, world->diag);
    return SBP_OK;
}

sbp_status sbp_run_begin_out(sbp_world *world, const sbp_inputs *inputs, sbp_session *session,
                             sbp_outputs *outputs, const char *resumed) {
    if (!outputs->out)
        return SBP_OK;
    if (!sbp_world_writes(world))
        return sbp_world_agree(world, SBP_OK);
    return sbp_world_agree(world, begin_to_write(world, inputs, session, outputs, resumed));
}
