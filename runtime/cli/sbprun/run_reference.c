/* run_reference.c: log-probabilities of a reference that the plan reads and rows lack: of --ref FILE, else of
 * the initial weights, once, kept in --out. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ir/base/machine.h"
#include "runtime/cli/sbprun/outputs.h"
#include "runtime/data/mismatched.h"
#include "runtime/train/scored.h"
#include "runtime/train/shadow.h"

/* ---- what is wanted --------------------------------------------------------------------------------- */

/* Whether a number of the objective that weighs the reference is above 0: else it can do without. */
static bool is_weighed(const sbp_world *world, const sbp_session *session) {
    static const sbp_option_id strengths[] = {SBP_OPT_BETA, SBP_OPT_KL_COEF};
    for (int i = 0; i < SBP_COUNT(strengths); i++)
        if (session->info.meta.defaults &&
            sbp_json_member(session->info.meta.defaults, sbp_option_name(strengths[i])) &&
            sbp_options_double(world->options, strengths[i]) > 0)
            return true;
    return false;
}

static bool is_lacking(const sbp_world *world, const sbp_session *session, const sbp_dataset *data) {
    return data && sbp_reference_is_lacking(session->plan->program, data, is_weighed(world, session));
}

/* Whether the plan wants to know of mismatched documents by a reference, which rows do not say. */
static bool rotates_reference(const sbp_session *session, const sbp_dataset *data) {
    return data && session->plan &&
           sbp_program_find_scalar(session->plan->program,
                                   sbp_scalar_names[SBP_SCALAR_MISMATCHED_REF_LOGPS]) >= 0 &&
           !sbp_dataset_has_mismatched(data);
}

/* Files of the data, and of those of --eval, in turn: -1, 0, 1, .. */
static sbp_dataset *set_at(const sbp_inputs *inputs, int32_t index) {
    return index < 0 ? inputs->data : inputs->evals[index];
}

sbp_status sbp_run_read_reference(const sbp_world *world, const sbp_inputs *inputs,
                                  const sbp_session *session) {
    const char *path = sbp_options_text(world->options, SBP_OPT_REF);
    if (!path)
        return SBP_OK;
    if (!inputs->data || inputs->stream.steps)
        return sbp_fail(world->diag, SBP_USAGE, "--ref needs rows from files (--data FILE)");
    if (!sbp_reference_is_lacking(session->plan->program, inputs->data, true))
        return sbp_fail(world->diag, SBP_USAGE, "--ref: %s",
                        sbp_reference_is_read(session->plan->program)
                            ? "the rows carry log-probabilities of a reference themselves"
                            : "the plan's objective reads no reference");
    SBP_TRY(sbp_reference_read(world->diag, session->plan->program, inputs->data, path));
    if (sbp_run_evaluates_held_out(world, session)) /* rows of the same files */
        SBP_TRY(sbp_reference_read(world->diag, session->plan->program, inputs->evals[0], path));
    for (int32_t i = 0; i < inputs->eval_count; i++)
        if (is_lacking(world, session, inputs->evals[i]))
            return sbp_fail(world->diag, SBP_USAGE,
                            "--ref applies to --data: the rows of --eval '%s' must carry the "
                            "log-probabilities of that reference themselves",
                            sbp_run_eval_name(world, i));
    return SBP_OK;
}

/* ---- scoring ---------------------------------------------------------------------------------------- */

typedef struct progress {
    double started, shown;
    bool terminal, open;
} progress;

static void show_progress(void *user, double share) {
    progress *p = user;
    double now = sbp_seconds(), passed = now - p->started;
    if (passed < 2 || now - p->shown < (p->terminal ? 0.2 : 10))
        return;
    p->shown = now;
    fprintf(stderr, "%sscoring by the reference: %.1f %%, %.0f s left%s", p->terminal ? "\r\033[K" : "",
            100 * share, share > 0 ? passed / share * (1 - share) : 0, p->terminal ? "" : "\n");
    p->open = p->terminal;
    fflush(stderr);
}

/* A plan that has adapters has a setting for their scale. */
static double adapter_of_training(const sbp_world *world) {
    const sbp_option *option = sbp_option_setting(sbp_scalar_names[SBP_SCALAR_ADAPTER]);
    return option ? sbp_options_double(world->options, option->id) : 1;
}

/* Adapters are no part of the reference unless the run goes on with some that were there before. */
static double adapter_of_reference(const sbp_world *world, const sbp_session *session) {
    static const char file[] = "adapter_model.safetensors";
    const sbp_json *from = sbp_json_member(sbp_json_member(session->plan->meta, "model"), "adapter_weights");
    const char *weights = sbp_options_text(world->options, SBP_OPT_WEIGHTS);
    bool there = from && from->kind == SBP_JSON_STRING;
    there |= weights && sbp_file_exists(sbp_file_join(world->arena, weights, file));
    return there ? adapter_of_training(world) : 0;
}

static void set_adapter(const sbp_world *world, double value) {
    sbp_executor_set(world->executor, SBP_SCALAR_ADAPTER, value);
}

/* With the weights that are on the device, which are the reference's. */
static sbp_status score_reference(const sbp_world *world, sbp_session *session, sbp_dataset *data,
                                  const int64_t *rows, int64_t count) {
    int64_t docs = 0;
    progress p = {.started = sbp_seconds(), .terminal = isatty(STDERR_FILENO)};
    p.shown = p.started;
    set_adapter(world, adapter_of_reference(world, session));
    for (int64_t k = 0; k < count; k++)
        docs += data->rows[rows[k] + 1] - data->rows[rows[k]];
    sbp_status status = sbp_reference_score(
        &session->trainer, world->diag, data, rows, count,
        sbp_world_writes(world) && !sbp_options_on(world->options, SBP_OPT_QUIET) ? show_progress : NULL, &p);
    set_adapter(world, adapter_of_training(world));
    if (p.open)
        fputc('\n', stderr);
    if (status == SBP_OK)
        sbp_note(world->diag, "the initial weights, as reference, scored %lld%s documents in %.1f s",
                 (long long)docs,
                 docs < data->doc_count
                     ? sbp_arena_printf(world->arena, " of %lld", (long long)data->doc_count)
                     : "",
                 sbp_seconds() - p.started);
    return status;
}

/* A hash of what log-probabilities depend on besides weights and rows. */
static uint64_t hash_settings(const sbp_world *world, const sbp_session *session) {
    static const sbp_option_id settings[] = {SBP_OPT_TEMPERATURE};
    const char *config = session->info.meta.config ? session->info.meta.config : "";
    const sbp_json *set = session->info.meta.options
                              ? sbp_json_member(session->info.meta.options, sbp_option_name(SBP_OPT_SET))
                              : NULL;
    uint64_t hash = sbp_hash_bytes(session->info.meta.dtype, strlen(session->info.meta.dtype), 1);
    sbp_text changed;
    sbp_text_init(&changed, world->arena);
    if (set)
        sbp_json_add_value(&changed, set);
    hash = sbp_hash_bytes(config, strlen(config), hash);
    hash = sbp_hash_bytes(changed.data, changed.length, hash);
    for (int i = 0; i < SBP_COUNT(settings); i++) {
        double value = sbp_options_double(world->options, settings[i]);
        hash = sbp_hash_bytes(&value, sizeof value, hash);
    }
    const double adapter = adapter_of_reference(world, session);
    return sbp_hash_bytes(&adapter, sizeof adapter, hash);
}

static const char *path_of(const sbp_world *world, const sbp_session *session, const sbp_outputs *outputs,
                           int32_t index) {
    if (!outputs->out || !session->train)
        return NULL;
    return sbp_file_join(world->arena, outputs->out,
                         index < 0 ? "ref_logps.safetensors"
                                   : sbp_arena_printf(world->arena, "ref_logps.eval-%d.safetensors", index));
}

/* The initial weights, on the device in place of those of a checkpoint. */
static sbp_status begin_again(const sbp_world *world, const sbp_session *session, const sbp_outputs *outputs,
                              uint64_t weights) {
    uint64_t now;
    SBP_TRY(sbp_run_load_weights(world, session));
    SBP_TRY(sbp_reference_hash_weights(world->executor, session->plan, world->diag, &now));
    if (weights == 0 || now == weights)
        return SBP_OK;
    return sbp_fail(
        world->diag, SBP_INPUT,
        "the log-probabilities of the reference are gone from '%s', and the initial weights are not those "
        "that the run began with (hash %016llx, now %016llx): it cannot go on",
        outputs->out, (unsigned long long)weights, (unsigned long long)now);
}

sbp_status sbp_run_enter_reference(const sbp_world *world, const sbp_session *session) {
    set_adapter(world, adapter_of_reference(world, session));
    return sbp_shadow_exchange(session->shadow, world->diag);
}

sbp_status sbp_run_leave_reference(const sbp_world *world, const sbp_session *session) {
    set_adapter(world, adapter_of_training(world));
    return sbp_shadow_exchange(session->shadow, world->diag);
}

sbp_status sbp_run_step_reference(const sbp_world *world, const sbp_inputs *inputs, sbp_session *session) {
    if (!is_lacking(world, session, inputs->data))
        return SBP_OK;
    if (!session->shadow)
        return sbp_fail(
            world->diag, SBP_INPUT,
            "data row 1 (from 1): log-probabilities of the reference ('ref_per_token_logps') are missing, "
            "which the first step of the stream had");
    SBP_TRY(sbp_run_enter_reference(world, session));
    sbp_status status = sbp_reference_score(&session->trainer, world->diag, inputs->data, inputs->rows,
                                            inputs->row_count, NULL, NULL);
    sbp_status back = sbp_run_leave_reference(world, session);
    return status != SBP_OK && status != SBP_INTERRUPTED ? status : back != SBP_OK ? back : status;
}

/* For what is scored as it comes: rows of a stream, and mismatched ones. */
static sbp_status keep_weights(const sbp_world *world, sbp_session *session) {
    char size[32];
    if (session->shadow)
        return SBP_OK;
    SBP_TRY(sbp_shadow_create(world->executor, session->plan, world->diag, &session->shadow));
    sbp_note(world->diag,
             "a copy of the initial weights, the reference, stays in host memory: %s (not needed where rows "
             "carry its log-probabilities)",
             sbp_format_bytes(size, sizeof size, (double)sbp_shadow_bytes(session->shadow)));
    return SBP_OK;
}

/* *found: by all ranks, or all score again. */
static sbp_status load_kept(sbp_world *world, const sbp_session *session, sbp_dataset *data, const char *path,
                            sbp_reference_key *key, bool *found) {
    SBP_TRY(sbp_world_agree(world,
                            sbp_reference_load(world->diag, session->plan->program, data, path, key, found)));
    int64_t missing = !*found;
    SBP_TRY(sbp_world_largest(world, &missing));
    *found = missing == 0;
    return SBP_OK;
}

/* Which rows the steps take, or the one whose gradients are wanted, by row; NULL: all of them. */
static sbp_status rows_of_steps(const sbp_world *world, sbp_inputs *inputs, const sbp_session *session,
                                uint8_t **out) {
    sbp_sampler *s = &inputs->sampler;
    const int64_t epoch = s->epoch, at = s->at, inner = session->inner_epochs;
    int64_t steps = session->train ? sbp_ceil_div(session->total_steps, inner) : 1, count;
    *out = NULL;
    if (steps >= inputs->steps_per_epoch || session->check)
        return SBP_OK;
    *out = sbp_malloc((size_t)(inputs->data->row_count + 1) * sizeof **out);
    if (!*out)
        return sbp_fail(world->diag, SBP_MACHINE, "out of memory for %lld rows",
                        (long long)inputs->data->row_count);
    memset(*out, 0, (size_t)inputs->data->row_count * sizeof **out);
    if (session->train)
        sbp_sampler_seek(s, 0, 0);
    for (int64_t step = 0; step < steps; step++) {
        const int64_t *rows = sbp_sampler_next(s, &count);
        for (int64_t k = 0; k < count; k++)
            (*out)[rows[k]] = 1;
    }
    sbp_sampler_seek(s, epoch, at);
    return SBP_OK;
}

/* Rows of the set, as above, that lack numbers: by all ranks the same, or all that are wanted. */
static sbp_status find_missing(sbp_world *world, sbp_inputs *inputs, const sbp_session *session,
                               int32_t index, bool found, int64_t **rows, int64_t *count) {
    const sbp_dataset *data = set_at(inputs, index);
    uint8_t *wanted = NULL;
    *rows = NULL;
    sbp_status status = index < 0 ? rows_of_steps(world, inputs, session, &wanted) : SBP_OK;
    if (status == SBP_OK)
        status = sbp_reference_missing(world->diag, data, wanted, found, rows, count);
    status = sbp_world_agree(world, status);
    int64_t hash = status == SBP_OK
                       ? (int64_t)(sbp_hash_bytes(*rows, (size_t)*count * sizeof **rows, 1) & INT64_MAX)
                       : 0;
    int64_t most = hash, least = -hash;
    if (status == SBP_OK)
        status = sbp_world_largest(world, &most);
    if (status == SBP_OK)
        status = sbp_world_largest(world, &least);
    if (status == SBP_OK && most != -least) {
        free(*rows);
        status = sbp_world_agree(world, sbp_reference_missing(world->diag, data, wanted, false, rows, count));
    }
    free(wanted);
    if (status != SBP_OK) {
        free(*rows);
        *rows = NULL;
    }
    return status;
}

/* Those that are not there yet, kept in a file; rows of the steps alone, of data that have more of them:
 * later steps score theirs. */
static sbp_status score_missing(sbp_world *world, sbp_session *session, sbp_dataset *data,
                                const int64_t *rows, int64_t count, const char *path,
                                const sbp_reference_key *key) {
    SBP_TRY(score_reference(world, session, data, rows, count));
    if (!path)
        return SBP_OK;
    return sbp_world_agree(world, sbp_world_writes(world) ? sbp_reference_save(world->diag, data, path, key)
                                                          : SBP_OK);
}

sbp_status sbp_run_reference(sbp_world *world, sbp_inputs *inputs, sbp_session *session,
                             const sbp_outputs *outputs, const char *resumed) {
    sbp_reference_key key = {.weights = resumed ? session->state.reference : 0,
                             .settings = hash_settings(world, session)};
    bool known = false, initial = !resumed, again = false;
    bool steps =
        session->train || session->check || sbp_options_given(world->options, SBP_OPT_DUMP_GRADIENTS);
    for (int32_t i = steps ? -1 : 0; i < inputs->eval_count; i++) {
        sbp_dataset *data = set_at(inputs, i);
        const char *path = path_of(world, session, outputs, i);
        bool found = false, stream = i < 0 && inputs->stream.steps;
        int64_t *rows = NULL, count = 0;
        bool lacks = is_lacking(world, session, data), keeps = rotates_reference(session, data);
        if (!lacks && !keeps)
            continue;
        if (initial && !known)
            SBP_TRY(sbp_reference_hash_weights(world->executor, session->plan, world->diag, &key.weights));
        known = true;
        key.data = data->hash;
        if (lacks && path && !stream)
            SBP_TRY(load_kept(world, session, data, path, &key, &found));
        if (lacks && !stream)
            SBP_TRY(find_missing(world, inputs, session, i, found, &rows, &count));
        bool scores = lacks && !stream && count > 0;
        if (found && !scores)
            sbp_note(world->diag, "log-probabilities of the reference are in '%s'", path);
        if (keeps && !lacks)
            sbp_note(world->diag,
                     "rows carry log-probabilities of a reference, but not of its answers to other "
                     "prompts ('ref_KL_logps'): these are of the initial weights");
        keeps |= lacks && stream;
        sbp_status status = SBP_OK;
        if ((scores || keeps) && !initial) {
            status = begin_again(world, session, outputs, key.weights);
            again = initial = true;
        }
        if (status == SBP_OK && keeps)
            status = keep_weights(world, session);
        if (status == SBP_OK && scores)
            status = score_missing(world, session, data, rows, count, path, &key);
        free(rows);
        SBP_TRY(status);
    }
    if (known)
        session->state.reference = key.weights;
    if (!again)
        return SBP_OK;
    sbp_run_state copy = session->state;
    copy.kept_count = 0;
    sbp_status status = sbp_checkpoint_load(world->diag, world->executor, session->plan, resumed, &copy);
    sbp_kept_release(&copy);
    return status;
}
