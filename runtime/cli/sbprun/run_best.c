/* run_best.c: --best: evaluations are compared, the best model is kept, training stops when there is no
 * better one any more; and what evaluations say of a run at its end. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ir/base/json_write.h"
#include "runtime/cli/sbprun/outputs.h"

/* ---- what is compared ------------------------------------------------------------------------------- */

/* Name of number `index` of an evaluation; NULL: there are no more, "": it has none. */
static const char *number_name(const sbp_session *session, int32_t index) {
    const sbp_program *p = session->plan->program;
    if (index < p->output_count)
        return strcmp(p->outputs[index].name, "grad_norm") == 0 ? "" : p->outputs[index].name;
    index -= p->output_count;
    return p->prepare && index < p->prepare->number_count ? p->prepare->numbers[index] : NULL;
}

typedef struct finder {
    const sbp_world *world;
    const char *wanted; /* without eval_ */
    sbp_text names;     /* all */
    int32_t found, eval, number;
} finder;

static void take_name(finder *f, const char *name, int32_t eval, int32_t number) {
    sbp_text_add(&f->names, "%seval_%s", f->names.length > 0 ? ", " : "", name);
    if (strcmp(name, f->wanted) != 0)
        return;
    f->found++;
    f->eval = eval;
    f->number = number;
}

/* The first file's numbers by their names, and of several those of each with the file's name before it. */
static void find_number(finder *f, const sbp_inputs *inputs, const sbp_session *session) {
    char file[80];
    const char *name;
    for (int32_t eval = -1; eval < (inputs->eval_count > 1 ? inputs->eval_count : 0); eval++)
        for (int32_t number = 0; (name = number_name(session, number)); number++) {
            if (!*name)
                continue;
            if (eval >= 0) {
                sbp_metrics_eval_name(sbp_run_eval_name(f->world, eval), file, sizeof file);
                name = sbp_arena_printf(f->world->arena, "%s_%s", file, name);
            }
            take_name(f, name, eval < 0 ? 0 : eval, number);
        }
}

static sbp_status check_asked(const sbp_world *world, const sbp_inputs *inputs, const sbp_session *session,
                              const sbp_outputs *outputs) {
    const char *config = sbp_options_from_config(world->options, SBP_OPT_BEST),
               *where = config ? config : "sbprun",
               *what = session->best.load    ? "--best (load_best_model_at_end)"
                       : session->best.stops ? "--best patience (early_stopping_patience)"
                                             : "--save-strategy best";
    if (inputs->eval_count == 0)
        return sbp_fail(world->diag, SBP_USAGE,
                        "%s: %s compares evaluations, and there is nothing to evaluate: give --eval FILE or "
                        "--test-split-size",
                        where, what);
    if (session->eval_every == 0)
        return sbp_fail(
            world->diag, SBP_USAGE,
            "%s: %s compares evaluations on the way: give --eval-every N or --eval-strategy epoch", where,
            what);
    if (session->best.saves && !outputs->out)
        return sbp_fail(world->diag, SBP_USAGE, "%s: %s keeps the best checkpoint in --out, which is none",
                        where, what);
    if (fmax((double)session->eval_every, session->eval_after) > (double)session->total_steps &&
        session->total_steps > 0 && sbp_world_writes(world))
        sbp_note(
            world->diag,
            "the %lld steps end before the first evaluation (--eval-every, --eval-delay): the one at the "
            "end is the best",
            (long long)session->total_steps);
    return SBP_OK;
}

static bool ends_in(const char *text, const char *end) {
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

/* By the default of a metric, or as it was said. */
static bool is_greater(const sbp_options *o, const char *metric) {
    return sbp_options_given(o, SBP_OPT_BEST_GREATER) ? sbp_options_on(o, SBP_OPT_BEST_GREATER)
                                                      : !ends_in(metric, "loss");
}

static sbp_status find_metric(const sbp_world *world, const sbp_inputs *inputs, sbp_session *session,
                              const char *metric) {
    sbp_comparison *b = &session->best;
    finder f = {.world = world, .wanted = strncmp(metric, "eval_", 5) == 0 ? metric + 5 : metric};
    bool asked = b->load || b->saves || b->stops;
    sbp_text_init(&f.names, world->arena);
    find_number(&f, inputs, session);
    if (f.found != 1)
        return !asked
                   ? SBP_OK
                   : sbp_fail(world->diag, SBP_USAGE, "--best metric=%.100s: %s; evaluations have %s", metric,
                              f.found == 0 ? "there is no such number" : "several files have this name",
                              f.names.data);
    b->name = sbp_arena_printf(world->arena, "eval_%s", f.wanted);
    b->eval = f.eval;
    b->number = f.number;
    b->is_loss = f.eval == 0 && strcmp(number_name(session, f.number), "loss") == 0;
    b->of = sbp_hash_bytes(b->name, strlen(b->name), inputs->evals[f.eval]->hash + b->rule.greater);
    return SBP_OK;
}

static void note_unused(const sbp_world *world) {
    static const sbp_option_id keys[] = {SBP_OPT_BEST_METRIC, SBP_OPT_BEST_GREATER, SBP_OPT_BEST_THRESHOLD};
    for (int i = 0; i < SBP_COUNT(keys); i++)
        if (sbp_world_writes(world) && sbp_options_chosen(world->options, keys[i])) {
            sbp_note(world->diag, "%s has no effect without --best on (load_best_model_at_end) or patience",
                     sbp_option_typed(world->arena, sbp_option_at((int32_t)keys[i])));
            return;
        }
}

sbp_status sbp_run_plan_best(const sbp_world *world, const sbp_inputs *inputs, sbp_session *session,
                             const sbp_outputs *outputs) {
    const sbp_options *o = world->options;
    const char *metric = sbp_options_text(o, SBP_OPT_BEST_METRIC);
    int64_t patience = sbp_options_int(o, SBP_OPT_BEST_PATIENCE);
    session->best = (sbp_comparison){.load = sbp_options_is(o, SBP_OPT_BEST, "on"),
                                     .stops = patience > 0,
                                     .rule = {.patience = patience > 0 ? patience : 0,
                                              .threshold = sbp_options_double(o, SBP_OPT_BEST_THRESHOLD)}};
    session->best.saves = session->best.load || sbp_options_is(o, SBP_OPT_SAVE_STRATEGY, "best");
    if (!session->train || !session->plan)
        return SBP_OK;
    if (session->best.saves || session->best.stops) {
        SBP_TRY(check_asked(world, inputs, session, outputs));
    } else {
        metric = "loss";
        note_unused(world);
    }
    session->best.rule.greater = is_greater(o, metric);
    return inputs->eval_count > 0 ? find_metric(world, inputs, session, metric) : SBP_OK;
}

double sbp_run_compared(const sbp_session *session) {
    const sbp_trainer *t = &session->trainer;
    int32_t number = session->best.number, outputs = t->program->output_count;
    if (!session->best.name)
        return NAN;
    return number < outputs ? t->results[number] : t->prepared.numbers[number - outputs];
}

/* ---- the best --------------------------------------------------------------------------------------- */

/* Whether its checkpoint is there, as all ranks then know. */
static sbp_status find_best(sbp_world *world, const sbp_session *session, const sbp_outputs *outputs,
                            const char **path) {
    *path = NULL;
    if (sbp_world_writes(world)) {
        *path = sbp_arena_printf(world->arena, "%s/checkpoint-%lld", outputs->out,
                                 (long long)session->state.best.step);
        if (!sbp_file_exists(sbp_file_join(world->arena, *path, SBP_RUNDIR_CHECKPOINT)))
            *path = NULL;
    }
    return sbp_world_share_text(world, path);
}

sbp_status sbp_run_resume_best(sbp_world *world, sbp_session *session, const sbp_outputs *outputs) {
    sbp_best *best = &session->state.best;
    const char *path;
    if (best->seen && best->of != session->best.of) {
        if (session->best.saves || session->best.stops)
            sbp_note(world->diag,
                     "what is compared is not what it was before step %lld: the best is that of the "
                     "evaluations from here on",
                     (long long)session->state.step);
        *best = SBP_BEST_NONE;
    }
    if (!session->best.load || best->step == 0)
        return SBP_OK;
    SBP_TRY(find_best(world, session, outputs, &path));
    if (path)
        return SBP_OK;
    sbp_note(
        world->diag,
        "the best so far, %s %.4f after step %lld, has no checkpoint: the best is that of the evaluations "
        "from here on",
        session->best.name, best->value, (long long)best->step);
    const double before = best->before;
    *best = SBP_BEST_NONE;
    best->before = before;
    return SBP_OK;
}

/* The mean loss of the steps since the evaluation before. */
static void count_training(sbp_run_state *s) {
    sbp_best *b = &s->best;
    b->trained = s->loss_count > b->loss_count
                     ? (s->loss_sum - b->loss_sum) / (double)(s->loss_count - b->loss_count)
                     : (double)NAN;
    b->loss_sum = s->loss_sum;
    b->loss_count = s->loss_count;
}

sbp_status sbp_run_count_evaluation(const sbp_world *world, sbp_session *session, double value, bool again) {
    sbp_best *best = &session->state.best;
    if (!session->best.name)
        return SBP_OK;
    if (world->ranks)
        SBP_TRY(sbp_ranks_broadcast(world->ranks, &value, 1, SBP_F64, 0, world->diag));
    best->last = value;
    if (session->state.step == 0)
        best->before = value;
    if (session->state.step == 0 || again)
        return SBP_OK;
    best->of = session->best.of;
    count_training(&session->state);
    if (sbp_best_evaluated(&session->best.rule, best, session->state.step, value))
        best->trained_best = best->trained;
    return SBP_OK;
}

bool sbp_run_stops_early(const sbp_session *session) {
    return session->best.stops && session->state.step > 0 && session->state.step < session->total_steps &&
           sbp_best_stops(&session->best.rule, &session->state.best);
}

sbp_keep sbp_run_keeps(const sbp_world *world, const sbp_session *session) {
    int64_t keep = sbp_options_int(world->options, SBP_OPT_KEEP);
    return (sbp_keep){.count = keep > 0 ? keep : 0,
                      .best = session->best.saves ? session->state.best.step : 0};
}

/* ---- the end ---------------------------------------------------------------------------------------- */

static sbp_status load_weights(sbp_world *world, const sbp_session *session, const char *path) {
    sbp_run_state state = session->state; /* of what must be the same */
    state.kept_count = 0;
    SBP_TRY(sbp_world_agree(world,
                            sbp_checkpoint_verify(world->diag, path, world->place.rank, world->place.count)));
    sbp_status status = sbp_checkpoint_load(world->diag, world->executor, session->plan, path, &state);
    sbp_kept_release(&state);
    return sbp_world_agree(world, status);
}

sbp_status sbp_run_load_best(sbp_world *world, sbp_session *session, const sbp_outputs *outputs) {
    const int64_t step = session->state.best.step;
    const char *path;
    if (!session->best.load || step == session->state.step)
        return SBP_OK;
    if (step == 0) {
        sbp_warn(world->diag, "%s was no number in any evaluation: the model is that of the last step",
                 session->best.name);
        return SBP_OK;
    }
    SBP_TRY(find_best(world, session, outputs, &path));
    if (!path) {
        sbp_warn(world->diag,
                 "'%s/checkpoint-%lld', the best, is gone: the model is that of the last step, %lld",
                 outputs->out, (long long)step, (long long)session->state.step);
        return SBP_OK;
    }
    SBP_TRY(load_weights(world, session, path));
    session->best.loaded = step;
    return SBP_OK;
}

void sbp_run_keep_best(const sbp_world *world, const sbp_session *session, const sbp_outputs *outputs) {
    const int64_t best = session->best.loaded;
    if (best == 0 || sbp_run_keeps(world, session).count != 1)
        return;
    for (int64_t step = INT64_MAX; (step = sbp_rundir_newest(&outputs->dir, step)) >= 0;) {
        int error = step == best ? 0 : sbp_rundir_discard(&outputs->dir, step);
        if (error)
            sbp_warn(world->diag, "cannot remove '%s/checkpoint-%lld', which --keep 1 does not count: %s",
                     outputs->out, (long long)step, sbp_rundir_error(error));
    }
}

/* How it went, of a run with a best evaluation. */
static const char *judge(sbp_arena *arena, const sbp_session *session) {
    const sbp_best *b = &session->state.best;
    const sbp_best_rule *rule = &session->best.rule;
    const long long step = b->step;
    if (!isfinite(b->last))
        return sbp_arena_printf(arena, "no number at the end: after step %lld a step was too large", step);
    if (isfinite(b->before) && !sbp_best_is_better(rule, b->value, b->before))
        return "never better than before training: these rows gained nothing";
    if (b->step == session->state.step)
        return "it went well, to the end";
    if (!sbp_best_is_better(rule, b->value, b->last))
        return sbp_arena_printf(arena, "it went well, and got no better after step %lld", step);
    if (b->trained < b->trained_best)
        return sbp_arena_printf(
            arena, "overfitting from step %lld on, while the loss of training went on to fall", step);
    if (b->trained > b->trained_best)
        return sbp_arena_printf(
            arena, "worse from step %lld on, as is the loss of training: a smaller --lr may help", step);
    return sbp_arena_printf(arena, "worse from step %lld on", step);
}

const char *sbp_run_verdict(sbp_arena *arena, const sbp_session *session) {
    const sbp_best *b = &session->state.best;
    const char *name = !session->best.name     ? NULL
                       : session->best.is_loss ? "held-out loss"
                                               : session->best.name;
    sbp_text out;
    if (!session->train || !name || !b->seen)
        return NULL;
    if (b->step == 0)
        return sbp_arena_printf(arena, "%s was no number in any evaluation", name);
    sbp_text_init(&out, arena);
    sbp_text_add(&out, "%s", name);
    if (isfinite(b->before))
        sbp_text_add(&out, " %.4f before training,", b->before);
    if (b->step == session->state.step)
        sbp_text_add(&out, " %.4f at the end, the best: ", b->value);
    else
        sbp_text_add(&out, " %.4f at best, after step %lld, %.4f at the end: ", b->value, (long long)b->step,
                     b->last);
    sbp_text_add(&out, "%s", judge(arena, session));
    if (session->best.loaded > 0)
        sbp_text_add(&out, "; the model is that of step %lld", (long long)session->best.loaded);
    return out.data;
}

void sbp_run_write_best(sbp_json_writer *w, const sbp_session *session) {
    const sbp_best *b = &session->state.best;
    if (!session->train || !session->best.name || !b->seen)
        return;
    sbp_json_write_string(w, "metric_for_best_model", session->best.name);
    if (b->step > 0)
        sbp_json_write_int(w, "best_step", b->step);
    else
        sbp_json_write_null(w, "best_step");
    sbp_json_write_double(w, "best_metric", b->value);
    sbp_json_write_int(w, "model_step",
                       session->best.loaded > 0 ? session->best.loaded : session->state.step);
    sbp_json_write_bool(w, "stopped_early", sbp_run_stops_early(session));
}
