/* rollouts.c: rows of a generation, and what is said of them. */
#include "runtime/cli/sbprun/rollouts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ir/base/json_write.h"
#include "runtime/cli/sbprun/outputs.h"

/* ---- rows --------------------------------------------------------------------------------------------- */

void sbp_rollouts_write(sbp_text *out, const sbp_rollout *rollouts, int64_t count,
                        const sbp_rewarder *rewarder) {
    for (int64_t i = 0; i < count; i++) {
        const sbp_rollout *r = &rollouts[i];
        sbp_json_writer w = sbp_json_writer_on(out);
        sbp_json_write_object(&w, NULL);
        sbp_json_write_ids(&w, "prompt_ids", r->prompt->ids, r->prompt->count);
        sbp_json_write_ids(&w, "completion_ids", r->ids, r->count);
        sbp_json_write_int(&w, "group", r->group);
        sbp_json_write_double(&w, "reward", r->reward);
        sbp_json_write_doubles(&w, "old_per_token_logps", r->logps, r->count);
        sbp_json_write_doubles(&w, "sampling_per_token_logps", r->processed, r->count);
        sbp_json_write_object(&w, "rollout");
        sbp_json_write_bytes(&w, "text", r->text, r->text_bytes);
        sbp_json_write_string(&w, "finish_reason", r->truncated ? "length" : "stop");
        sbp_json_write_array(&w, "rewards");
        for (int32_t f = 0; f < sbp_rewarder_count(rewarder); f++)
            sbp_json_write_double(&w, NULL, r->rewards[f]);
        sbp_json_write_end(&w);
        sbp_json_write_end(&w);
        sbp_json_write_end(&w);
        sbp_text_add(out, "\n");
    }
    sbp_text_add(out, "%s", SBP_ROLLOUTS_END);
}

static double number_of(const sbp_json *node) {
    return !node || node->kind == SBP_JSON_NULL ? NAN
           : node->kind == SBP_JSON_INT         ? (double)node->integer
                                                : node->real;
}

static sbp_status parse_row(sbp_arena *arena, sbp_diag *diag, const char *path, const sbp_json *row,
                            sbp_rollout *out) {
    const sbp_json *ids = sbp_json_member(row, "completion_ids"), *group = sbp_json_member(row, "group"),
                   *rollout = sbp_json_member(row, "rollout");
    const sbp_json *rewards = rollout ? sbp_json_member(rollout, "rewards") : NULL,
                   *finish = rollout ? sbp_json_member(rollout, "finish_reason") : NULL;
    if (!ids || ids->kind != SBP_JSON_ARRAY || !group || group->kind != SBP_JSON_INT || !rewards ||
        rewards->kind != SBP_JSON_ARRAY || !finish || finish->kind != SBP_JSON_STRING)
        return sbp_fail(
            diag, SBP_INPUT,
            "'%s' is not a file of rollouts that this program wrote: remove it, and its answers are "
            "sampled again",
            path);
    *out = (sbp_rollout){.group = group->integer,
                         .count = ids->count,
                         .truncated = strcmp(finish->string, "length") == 0,
                         .reward = number_of(sbp_json_member(row, "reward")),
                         .rewards = SBP_NEW_ARRAY(arena, double, rewards->count + 1)};
    for (int64_t f = 0; f < rewards->count; f++)
        out->rewards[f] = number_of(&rewards->items[f]);
    return SBP_OK;
}

sbp_status sbp_rollouts_parse(sbp_arena *arena, sbp_diag *diag, const char *path, const char *text,
                              size_t length, sbp_rollout **out, int64_t *count) {
    int32_t rows = 0, capacity = 0;
    *out = NULL;
    for (const char *at = text, *end = text + length; at < end;) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        const sbp_json *row;
        size_t line = newline ? (size_t)(newline - at) : (size_t)(end - at);
        SBP_TRY(sbp_json_parse(arena, diag, path, at, line, 0, &row));
        at += line + 1;
        if (sbp_json_member(row, "end_of_step"))
            break;
        SBP_PUSH(arena, *out, rows, capacity, (sbp_rollout){0});
        SBP_TRY(parse_row(arena, diag, path, row, &(*out)[rows - 1]));
    }
    *count = rows;
    return SBP_OK;
}

/* ---- numbers ------------------------------------------------------------------------------------------ */

/* Mean, and standard deviation (n - 1), of those that are numbers; NaN where there are none, or not two. */
typedef struct moments {
    int64_t n;
    double mean, std, least, most;
} moments;

static moments moments_of(const double *values, int64_t count) {
    moments m = {.least = INFINITY, .most = -INFINITY};
    double squares = 0;
    for (int64_t i = 0; i < count; i++)
        if (!isnan(values[i])) {
            m.n++;
            m.mean += values[i];
            m.least = fmin(m.least, values[i]);
            m.most = fmax(m.most, values[i]);
        }
    m.mean = m.n > 0 ? m.mean / (double)m.n : NAN;
    for (int64_t i = 0; i < count; i++)
        if (!isnan(values[i]))
            squares += (values[i] - m.mean) * (values[i] - m.mean);
    m.std = m.n > 1 ? sqrt(squares / (double)(m.n - 1)) : NAN;
    return m;
}

typedef struct measuring {
    sbp_rollout_metrics *out;
    sbp_arena *arena;
    const sbp_rollout *rollouts;
    int64_t count;
    double *values; /* [count] */
} measuring;

static void add(measuring *m, const char *name, double value) {
    SBP_PUSH(m->arena, m->out->items, m->out->count, m->out->capacity,
             (sbp_metric){.name = name, .value = value});
}

static void measure_lengths(measuring *m) {
    int64_t ended = 0;
    for (int64_t i = 0; i < m->count; i++)
        m->values[i] = (double)m->rollouts[i].count;
    moments all = moments_of(m->values, m->count);
    for (int64_t i = 0; i < m->count; i++)
        if (!m->rollouts[i].truncated)
            m->values[ended++] = (double)m->rollouts[i].count;
    moments whole = moments_of(m->values, ended);
    add(m, "completions/min_length", all.least);
    add(m, "completions/max_length", all.most);
    add(m, "completions/clipped_ratio", (double)(m->count - ended) / (double)m->count);
    add(m, "completions/mean_terminated_length", ended > 0 ? whole.mean : 0);
    add(m, "completions/min_terminated_length", ended > 0 ? whole.least : 0);
    add(m, "completions/max_terminated_length", ended > 0 ? whole.most : 0);
}

static void measure_rewards(measuring *m, const sbp_rewarder *rewarder) {
    for (int32_t f = 0; f < sbp_rewarder_count(rewarder); f++) {
        for (int64_t i = 0; i < m->count; i++)
            m->values[i] = m->rollouts[i].rewards[f];
        moments one = moments_of(m->values, m->count);
        const char *name = sbp_rewarder_name(rewarder, f);
        add(m, sbp_arena_printf(m->arena, "rewards/%s/mean", name), one.mean);
        add(m, sbp_arena_printf(m->arena, "rewards/%s/std", name), one.std);
    }
}

void sbp_rollouts_measure(sbp_rollout_metrics *metrics, sbp_arena *arena, const sbp_rollout *rollouts,
                          int64_t count, const sbp_rewarder *rewarder) {
    measuring m = {.out = metrics,
                   .arena = arena,
                   .rollouts = rollouts,
                   .count = count,
                   .values = SBP_NEW_ARRAY(arena, double, count + 1)};
    const char *name;
    double value;
    metrics->items = NULL;
    metrics->count = metrics->capacity = 0;
    measure_lengths(&m);
    measure_rewards(&m, rewarder);
    for (int32_t i = 0; sbp_rewarder_metric(rewarder, i, &name, &value); i++)
        add(&m, sbp_arena_strdup(arena, name), value);
    for (int i = 0; i < 3; i++) /* of sbp_rollouts_measure_time */
        add(&m, (const char *const[]){"sampling_seconds", "sampled_tokens_per_second", "reward_seconds"}[i],
            NAN);
}

void sbp_rollouts_measure_time(sbp_rollout_metrics *metrics, const sbp_rollout *rollouts, int64_t count,
                               double sampling_seconds, double reward_seconds) {
    double tokens = 0;
    sbp_metric *last = metrics->items + metrics->count - 3;
    if (sampling_seconds <= 0)
        return;
    for (int64_t i = 0; i < count; i++)
        tokens += (double)rollouts[i].count;
    last[0].value = sampling_seconds;
    last[1].value = tokens / sampling_seconds;
    last[2].value = reward_seconds;
}
