/* rewarder.c: a batch as a line of JSON, answers as rewards, and what is done when there are none. */
#include "runtime/reward/rewarder.h"

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "ir/base/json_write.h"
#include "runtime/reward/host.h"
#include "runtime/reward/spec.h"
#include "runtime/reward/worker.h"

typedef struct function {
    const char *spec, *name;
    double weight;
    int32_t worker, place; /* which process runs it; its number among the functions of that */
} function;

typedef enum phase { PHASE_STARTS, PHASE_ANSWERS, PHASE_DONE } phase;

/* A process, and how far it is. */
typedef struct source {
    bool python;
    int32_t functions; /* that it runs */
    phase phase;
    int32_t restarts; /* for this request */
    const sbp_json *answer;
} source;

struct sbp_rewarder {
    sbp_reward_options options;
    function *functions;
    source *sources;
    sbp_worker *workers; /* [worker_count], as sources */
    int32_t count, worker_count;
    sbp_arena *own; /* what one request needs; kept until the next, with the answers */
    int64_t id;     /* of the last request */
    bool closed;    /* a run has failed */
};

/* What one exchange is about; request NULL: Python's start. */
typedef struct exchange {
    sbp_rewarder *r;
    sbp_diag *diag;
    const sbp_reward_batch *batch;
    double *rewards, *each;
    const char *request;
    size_t request_bytes;
} exchange;

/* Imports take long where functions do not. */
static double start_seconds(const sbp_rewarder *r) {
    const double least = 120, seconds = r->options.timeout_seconds;
    return seconds == 0 || seconds > least ? seconds : least;
}

/* ---- messages ---------------------------------------------------------------------------------------- */

/* "--reward 'reward.py:f': step 3: ", of a function of the process; place -1: of the first. */
static const char *where(const exchange *e, int32_t worker, int64_t place) {
    const sbp_rewarder *r = e->r;
    const char *spec = "";
    for (int32_t i = r->count - 1; i >= 0; i--)
        if (r->functions[i].worker == worker && (r->functions[i].place == place || place < 0))
            spec = r->functions[i].spec;
    if (!e->batch)
        return sbp_arena_printf(r->own, "--reward '%s': ", spec);
    return sbp_arena_printf(r->own, "--reward '%s': step %lld: ", spec, (long long)e->batch->step);
}

/* "prompt 2, sample 1: " */
static const char *row_of(const exchange *e, int64_t row) {
    const int64_t per = e->batch->per_prompt;
    return sbp_arena_printf(e->r->own, "prompt %lld, sample %lld: ", (long long)(row / per + 1),
                            (long long)(row % per + 1));
}

/* ---- requests ---------------------------------------------------------------------------------------- */

static bool is_column(const char *name) {
    return strcmp(name, "prompt") != 0 && strcmp(name, "completion") != 0 &&
           strcmp(name, "completion_ids") != 0;
}

/* Members of all rows, by the first row that has each. */
static void write_columns(sbp_json_writer *w, sbp_arena *arena, const sbp_reward_batch *batch) {
    const char **names = NULL;
    int32_t count = 0, capacity = 0;
    sbp_map known;
    sbp_map_init(&known, arena);
    for (int64_t i = 0; i < batch->count; i++) {
        const sbp_json *row = batch->samples[i].row;
        if (!row || (i > 0 && row == batch->samples[i - 1].row))
            continue;
        for (int64_t k = 0; k < row->count; k++)
            if (is_column(row->items[k].key) && sbp_map_get(&known, row->items[k].key) < 0) {
                sbp_map_set(&known, row->items[k].key, count);
                SBP_PUSH(arena, names, count, capacity, row->items[k].key);
            }
    }
    sbp_json_write_object(w, "columns");
    for (int32_t k = 0; k < count; k++) {
        sbp_json_write_array(w, names[k]);
        for (int64_t i = 0; i < batch->count; i++)
            sbp_json_write_value(w, NULL, sbp_json_member(batch->samples[i].row, names[k]));
        sbp_json_write_end(w);
    }
    sbp_json_write_end(w);
}

static void write_completion(sbp_json_writer *w, const sbp_reward_sample *sample) {
    const bool messages = sample->prompt->kind == SBP_JSON_ARRAY;
    if (messages) {
        sbp_json_write_array(w, NULL);
        sbp_json_write_object(w, NULL);
        sbp_json_write_string(w, "role", "assistant");
    }
    sbp_json_write_bytes(w, messages ? "content" : NULL, sample->completion, sample->completion_bytes);
    if (messages) {
        sbp_json_write_end(w);
        sbp_json_write_end(w);
    }
}

static void write_request(exchange *e) {
    const sbp_reward_batch *batch = e->batch;
    sbp_text text;
    sbp_text_init(&text, e->r->own);
    sbp_json_writer w = sbp_json_writer_on(&text);
    w.compact = true;
    sbp_json_write_object(&w, NULL);
    sbp_json_write_int(&w, "id", e->r->id);
    sbp_json_write_array(&w, "prompts");
    for (int64_t i = 0; i < batch->count; i++)
        sbp_json_write_value(&w, NULL, batch->samples[i].prompt);
    sbp_json_write_end(&w);
    sbp_json_write_array(&w, "completions");
    for (int64_t i = 0; i < batch->count; i++)
        write_completion(&w, &batch->samples[i]);
    sbp_json_write_end(&w);
    sbp_json_write_array(&w, "completion_ids");
    for (int64_t i = 0; i < batch->count; i++) {
        sbp_json_write_array(&w, NULL);
        for (int64_t k = 0; k < batch->samples[i].id_count; k++)
            sbp_json_write_int(&w, NULL, batch->samples[i].ids[k]);
        sbp_json_write_end(&w);
    }
    sbp_json_write_end(&w);
    write_columns(&w, e->r->own, batch);
    sbp_json_write_int(&w, "step", batch->step);
    sbp_json_write_int(&w, "steps", batch->steps);
    sbp_json_write_end(&w);
    sbp_text_add(&text, "\n");
    e->request = text.data;
    e->request_bytes = text.length;
}

/* ---- answers ----------------------------------------------------------------------------------------- */

/* An exception, or what a program says in place of rewards. */
static sbp_status refuse_error(const exchange *e, int32_t worker, const sbp_json *answer,
                               const sbp_json *error) {
    const sbp_json *place = sbp_json_member(answer, "function"), *row = sbp_json_member(answer, "row");
    const bool has_row =
        e->batch && row && row->kind == SBP_JSON_INT && row->integer >= 0 && row->integer < e->batch->count;
    sbp_text text;
    sbp_text_init(&text, e->r->own);
    if (error->kind == SBP_JSON_STRING)
        sbp_text_add_n(&text, error->string, (size_t)error->count);
    else
        sbp_json_add_value(&text, error);
    return sbp_fail(e->diag, SBP_INPUT, "%s%s%s",
                    where(e, worker, place && place->kind == SBP_JSON_INT ? place->integer : -1),
                    has_row ? row_of(e, row->integer) : "", text.data);
}

/* Rewards of function number k of all, of which this is the list. */
static sbp_status take_rewards(const exchange *e, int32_t k, const sbp_json *list) {
    const function *f = &e->r->functions[k];
    const int64_t count = e->batch->count;
    if (!list || list->kind != SBP_JSON_ARRAY)
        return sbp_fail(e->diag, SBP_INPUT, "%sexpected \"rewards\" as a list of %lld numbers, found %s",
                        where(e, f->worker, f->place), (long long)count,
                        list ? sbp_json_kind_name(list->kind) : "none");
    if (list->count != count)
        return sbp_fail(e->diag, SBP_INPUT, "%s%s returned %lld rewards, expected %lld, one for each sample",
                        where(e, f->worker, f->place), f->name, (long long)list->count, (long long)count);
    for (int64_t i = 0; i < count; i++) {
        const sbp_json *item = &list->items[i];
        const bool number = item->kind == SBP_JSON_INT || item->kind == SBP_JSON_REAL;
        const double value = !number ? NAN : item->kind == SBP_JSON_INT ? (double)item->integer : item->real;
        if (item->kind != SBP_JSON_NULL && !number)
            return sbp_fail(e->diag, SBP_INPUT, "%s%sexpected a number or null as the reward, found %s",
                            where(e, f->worker, f->place), row_of(e, i), sbp_json_kind_name(item->kind));
        if (number && !isfinite(value))
            return sbp_fail(e->diag, SBP_INPUT,
                            "%s%s%s returned %s: expected a finite number, or None (null) for no reward",
                            where(e, f->worker, f->place), row_of(e, i), f->name,
                            isnan(value) ? "NaN"
                            : value > 0  ? "infinity"
                                         : "-infinity");
        if (e->each)
            e->each[k * count + i] = value;
        if (number) {
            const double sum = (isnan(e->rewards[i]) ? 0 : e->rewards[i]) + f->weight * value;
            if (!isfinite(sum))
                return sbp_fail(e->diag, SBP_INPUT, "%s%sthe sum of weighted rewards is not finite",
                                where(e, f->worker, f->place), row_of(e, i));
            e->rewards[i] = sum;
        }
    }
    return SBP_OK;
}

static sbp_status take_all(const exchange *e) {
    const sbp_rewarder *r = e->r;
    int64_t none = 0, first = -1;
    for (int64_t i = 0; i < e->batch->count; i++)
        e->rewards[i] = NAN;
    for (int32_t k = 0; k < r->count; k++) { /* in the order of the functions, whoever was first */
        const function *f = &r->functions[k];
        const sbp_json *list = sbp_json_member(r->sources[f->worker].answer, "rewards");
        if (r->sources[f->worker].python)
            list = list && list->kind == SBP_JSON_ARRAY && f->place < list->count ? &list->items[f->place]
                                                                                  : NULL;
        SBP_TRY(take_rewards(e, k, list));
    }
    for (int64_t i = e->batch->count - 1; i >= 0; i--)
        if (isnan(e->rewards[i])) {
            none++;
            first = i;
        }
    if (none > 0)
        sbp_warn(
            e->diag,
            "step %lld: %sno reward function gave a reward (of %lld samples likewise): it has no part in "
            "means and no advantage",
            (long long)e->batch->step, row_of(e, first), (long long)none);
    return SBP_OK;
}

/* ---- one exchange ------------------------------------------------------------------------------------ */

/* What was wrong, and started again; or given up. */
static sbp_status again(exchange *e, int32_t i, const char *how) {
    sbp_rewarder *r = e->r;
    sbp_worker *w = &r->workers[i];
    source *s = &r->sources[i];
    const char *place = where(e, i, s->functions > 1 ? -1 : 0);
    sbp_text tail;
    if (s->python && s->phase == PHASE_ANSWERS)
        sbp_worker_look(w,
                        SIGUSR1); /* host.py: the lines of Python that it is at; nothing where it has ended */
    sbp_worker_stop(w, false);
    sbp_text_init(&tail, r->own);
    sbp_worker_add_tail(w, &tail);
    if (s->restarts >= r->options.restarts)
        return sbp_fail(
            e->diag, SBP_INPUT, "%sthe %s %s%s%s%s", place, s->python ? "Python process" : "program", how,
            s->restarts > 0 ? sbp_arena_printf(r->own, ", and was started again %d times", (int)s->restarts)
                            : "",
            tail.length ? "; the end of what it wrote to stderr:" : "", tail.length ? tail.data : "");
    s->restarts++;
    sbp_warn(e->diag, "%sthe %s %s; it is started again (%d of %d)%s%s", place,
             s->python ? "Python process" : "program", how, (int)s->restarts, (int)r->options.restarts,
             tail.length ? "; the end of what it wrote to stderr:" : "", tail.length ? tail.data : "");
    SBP_TRY(sbp_worker_start(w, e->diag));
    s->phase = s->python ? PHASE_STARTS : PHASE_ANSWERS;
    if (s->python)
        sbp_worker_ask(w, NULL, 0, start_seconds(r));
    else
        sbp_worker_ask(w, e->request, e->request_bytes, r->options.timeout_seconds);
    return SBP_OK;
}

static sbp_status rubbish(exchange *e, int32_t i, const char *why) {
    const sbp_worker *w = &e->r->workers[i];
    sbp_text text;
    sbp_text_init(&text, e->r->own);
    for (size_t k = 0; k < w->line_bytes && k < 80; k++)
        sbp_text_add_n(&text, (unsigned char)w->line[k] < ' ' ? " " : w->line + k, 1);
    return again(e, i,
                 sbp_arena_printf(e->r->own, "wrote what is no answer to standard output (%s): %s%s", why,
                                  text.length ? text.data : "", w->line_bytes > 80 ? ".." : ""));
}

/* Names of functions, as the started Python has them. */
static sbp_status take_names(exchange *e, int32_t i, const sbp_json *answer) {
    sbp_rewarder *r = e->r;
    const sbp_json *names = sbp_json_member(answer, "functions");
    if (!names || names->kind != SBP_JSON_ARRAY || names->count != r->sources[i].functions)
        return rubbish(e, i, "it does not name the functions");
    r->sources[i].phase = PHASE_ANSWERS;
    if (e->request)
        sbp_worker_ask(&r->workers[i], e->request, e->request_bytes, r->options.timeout_seconds);
    else
        r->sources[i].phase = PHASE_DONE;
    r->sources[i].answer = answer;
    return SBP_OK;
}

/* The line that the process has written. */
static sbp_status take_line(exchange *e, int32_t i) {
    sbp_rewarder *r = e->r;
    sbp_worker *w = &r->workers[i];
    const sbp_json *answer = NULL;
    sbp_diag *wrong = sbp_diag_create(); /* what is said of it is said in `rubbish` */
    if (!wrong)
        return sbp_fail(e->diag, SBP_MACHINE, "out of memory");
    sbp_status status = sbp_json_parse(r->own, wrong, "answer", w->line, w->line_bytes,
                                       SBP_JSON_ROW | SBP_JSON_PYTHON, &answer);
    sbp_diag_destroy(wrong);
    if (status == SBP_MACHINE)
        return sbp_fail(e->diag, SBP_MACHINE, "out of memory for what reward functions answer");
    if (status != SBP_OK || answer->kind != SBP_JSON_OBJECT)
        return rubbish(e, i, "expected a line that is an object of JSON");
    const sbp_json *error = sbp_json_member(answer, "error"), *id = sbp_json_member(answer, "id");
    if (r->sources[i].phase == PHASE_STARTS)
        return error ? refuse_error(e, i, answer, error) : take_names(e, i, answer);
    if (!id || id->kind != SBP_JSON_INT || id->integer != r->id)
        return rubbish(e, i, "expected the \"id\" of the request");
    if (error)
        return refuse_error(e, i, answer, error);
    r->sources[i].answer = answer;
    r->sources[i].phase = PHASE_DONE;
    return SBP_OK;
}

/* Until every process has answered. */
static sbp_status finish(exchange *e) {
    sbp_rewarder *r = e->r;
    for (;;) {
        bool waits = false;
        for (int32_t i = 0; i < r->worker_count; i++)
            waits |= r->sources[i].phase != PHASE_DONE;
        if (!waits)
            return SBP_OK;
        SBP_TRY(sbp_workers_wait(r->workers, r->worker_count, e->diag, r->options.interrupted));
        for (int32_t i = 0; i < r->worker_count; i++) {
            sbp_worker *w = &r->workers[i];
            const sbp_worker_news news = w->news;
            if (news <= SBP_WORKER_WAITING)
                continue;
            w->news = SBP_WORKER_IDLE;
            if (news == SBP_WORKER_ANSWERED)
                SBP_TRY(take_line(e, i));
            else
                SBP_TRY(again(e, i, sbp_arena_strdup(r->own, w->failure)));
        }
    }
}

static sbp_status run_guarded(void *user) {
    exchange *e = user;
    sbp_rewarder *r = e->r;
    r->id++;
    write_request(e);
    for (int32_t i = 0; i < r->worker_count; i++) {
        r->sources[i].phase = PHASE_ANSWERS;
        r->sources[i].restarts = 0;
        r->sources[i].answer = NULL;
        sbp_worker_ask(&r->workers[i], e->request, e->request_bytes, r->options.timeout_seconds);
    }
    SBP_TRY(finish(e));
    return take_all(e);
}

static void stop_all(sbp_rewarder *r, bool gently) {
    for (int32_t i = 0; i < r->worker_count; i++)
        sbp_worker_end_input(&r->workers[i]);
    for (int32_t i = 0; i < r->worker_count; i++)
        sbp_worker_stop(&r->workers[i], gently);
}

/* What the last request needed. */
static bool renew(sbp_rewarder *r) {
    sbp_arena_destroy(r->own);
    r->own = sbp_arena_create();
    for (int32_t i = 0; i < r->worker_count; i++)
        r->sources[i].answer = NULL;
    return r->own != NULL;
}

sbp_status sbp_rewarder_run(sbp_rewarder *r, sbp_diag *diag, const sbp_reward_batch *batch, double *rewards,
                            double *each) {
    exchange e = {.r = r, .diag = diag, .batch = batch, .rewards = rewards, .each = each};
    if (r->closed)
        return sbp_fail(diag, SBP_INTERNAL, "rewards after a run of the rewarder has failed");
    sbp_status status = renew(r) ? sbp_guard(r->own, diag, run_guarded, &e)
                                 : sbp_fail(diag, SBP_MACHINE, "out of memory for a request of rewards");
    if (status != SBP_OK) {
        stop_all(r, false);
        r->closed = true;
    }
    return status;
}

/* ---- opening ----------------------------------------------------------------------------------------- */

typedef struct opening {
    sbp_arena *arena;
    sbp_diag *diag;
    const char *const *specs;
    const double *weights;
    int32_t count;
    const sbp_reward_options *options;
    sbp_rewarder *r;
} opening;

static sbp_worker *add_worker(sbp_rewarder *r, const char *const *args, const char *what, bool python) {
    r->sources[r->worker_count] = (source){.python = python, .phase = PHASE_DONE};
    sbp_worker *w = &r->workers[r->worker_count++];
    *w = (sbp_worker){.args = args, .what = what, .log = r->options.log, .in = -1, .out = -1, .err = -1};
    return w;
}

/* "DIR/name" without the directory. */
static const char *file_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static sbp_status add_program(opening *o, function *f) {
    sbp_args words;
    const char *what = sbp_arena_printf(o->arena, "--reward '%s'", f->spec);
    SBP_TRY(sbp_reward_words(o->arena, o->diag, f->spec, &words));
    f->name = file_name(words.items[0]);
    SBP_TRY(sbp_reward_program(o->arena, o->diag, what, words.items[0], &words.items[0]));
    f->worker = o->r->worker_count;
    f->place = 0;
    add_worker(o->r, sbp_args_end(&words), what, false);
    o->r->sources[f->worker].functions = 1;
    return SBP_OK;
}

/* One process for all functions of Python. */
static sbp_status add_python(opening *o) {
    sbp_rewarder *r = o->r;
    sbp_args words = sbp_args_on(o->arena);
    const char *python, *first = NULL;
    int32_t functions = 0;
    SBP_TRY(sbp_reward_python(o->arena, o->diag, r->options.python, &python));
    sbp_args_add(&words, python);
    sbp_args_add(&words, "-c");
    sbp_args_add(&words, sbp_reward_files[0].text);
    for (int32_t i = 0; i < r->count; i++) {
        function *f = &r->functions[i];
        if (!sbp_reward_is_python(f->spec))
            continue;
        sbp_args_add(&words, f->spec);
        first = first ? first : f->spec;
        f->worker = r->worker_count;
        f->place = functions++;
        f->name = strrchr(f->spec, ':') + 1;
    }
    if (functions == 0)
        return SBP_OK;
    add_worker(r, sbp_args_end(&words), sbp_arena_printf(o->arena, "--reward '%s'", first), true);
    r->sources[r->worker_count - 1].functions = functions;
    return SBP_OK;
}

static sbp_status plan_guarded(void *user) {
    opening *o = user;
    bool python = false;
    sbp_rewarder *r = SBP_NEW(o->arena, sbp_rewarder);
    r->options = *o->options;
    r->functions = SBP_NEW_ARRAY(o->arena, function, o->count);
    r->sources = SBP_NEW_ARRAY(o->arena, source, o->count);
    r->workers = SBP_NEW_ARRAY(o->arena, sbp_worker, o->count);
    r->count = o->count;
    o->r = r;
    for (int32_t i = 0; i < o->count; i++) {
        function *f = &r->functions[i];
        f->spec = o->specs[i];
        f->weight = o->weights ? o->weights[i] : 1;
        if (!isfinite(f->weight))
            return sbp_fail(o->diag, SBP_USAGE, "--reward-weights: the weight of '%s' is not finite",
                            f->spec);
        if (sbp_reward_is_python(f->spec))
            python = true;
        else
            SBP_TRY(add_program(o, f));
    }
    return python ? add_python(o) : SBP_OK;
}

/* Waits for Python, the others being asked nothing yet. */
static sbp_status greet_guarded(void *user) {
    opening *o = user;
    sbp_rewarder *r = o->r;
    exchange e = {.r = r, .diag = o->diag};
    for (int32_t i = 0; i < r->worker_count; i++) {
        SBP_TRY(sbp_worker_start(&r->workers[i], o->diag));
        if (!r->sources[i].python)
            continue;
        r->sources[i].phase = PHASE_STARTS;
        sbp_worker_ask(&r->workers[i], NULL, 0, start_seconds(r));
    }
    return finish(&e);
}

static sbp_status name_guarded(void *user) {
    const opening *o = user;
    for (int32_t i = 0; i < o->r->count; i++) {
        function *f = &o->r->functions[i];
        const sbp_json *names = sbp_json_member(o->r->sources[f->worker].answer, "functions");
        const char *name;
        if (!names)
            continue;
        SBP_TRY(sbp_json_as_string(o->diag, &names->items[f->place], &name));
        f->name = sbp_arena_strdup(o->arena, name);
    }
    return SBP_OK;
}

sbp_status sbp_rewarder_open(sbp_arena *arena, sbp_diag *diag, const char *const *specs,
                             const double *weights, int32_t count, const sbp_reward_options *options,
                             sbp_rewarder **out) {
    opening o = {arena, diag, specs, weights, count, options, NULL};
    sbp_status status = sbp_guard(arena, diag, plan_guarded, &o);
    if (status == SBP_OK && !renew(o.r))
        status = sbp_fail(diag, SBP_MACHINE, "out of memory for reward functions");
    if (status == SBP_OK)
        status = sbp_guard(o.r->own, diag, greet_guarded, &o);
    if (status == SBP_OK)
        status = sbp_guard(arena, diag, name_guarded, &o);
    if (status != SBP_OK && o.r) {
        stop_all(o.r, false);
        sbp_arena_destroy(o.r->own);
    }
    *out = status == SBP_OK ? o.r : NULL;
    return status;
}

void sbp_rewarder_close(sbp_rewarder *r) {
    if (!r)
        return;
    stop_all(r, true);
    sbp_arena_destroy(r->own);
    r->own = NULL;
}

/* ---- what it has ------------------------------------------------------------------------------------- */

int32_t sbp_rewarder_count(const sbp_rewarder *r) {
    return r->count;
}

const char *sbp_rewarder_name(const sbp_rewarder *r, int32_t index) {
    return r->functions[index].name;
}

/* Member number `index` of an object that all answers may have. */
static const sbp_json *member_at(const sbp_rewarder *r, const char *key, int32_t index) {
    for (int32_t i = 0; i < r->worker_count; i++) {
        const sbp_json *object = sbp_json_member(r->sources[i].answer, key);
        if (!object || object->kind != SBP_JSON_OBJECT)
            continue;
        if (index < object->count)
            return &object->items[index];
        index -= (int32_t)object->count;
    }
    return NULL;
}

bool sbp_rewarder_metric(const sbp_rewarder *r, int32_t index, const char **name, double *value) {
    const sbp_json *member = member_at(r, "metrics", index);
    if (!member)
        return false;
    *name = member->key;
    *value = member->kind == SBP_JSON_REAL  ? member->real
             : member->kind == SBP_JSON_INT ? (double)member->integer
                                            : NAN;
    return true;
}

const sbp_json *sbp_rewarder_extra(const sbp_rewarder *r, int32_t index) {
    return member_at(r, "extra", index);
}
