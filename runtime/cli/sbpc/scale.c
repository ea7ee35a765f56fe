/* scale.c: sbpc inspect --ranks N: what 1, 2, 4 .. N ranks would take, send and reach, each count planned as
 * compile would plan it; where more ranks stop to pay, and what they wait for. Nothing was measured. */
#include <stdlib.h>
#include <string.h>

#include "ir/base/json.h"
#include "passes/planner/cost.h"
#include "runtime/cli/sbpc/cli.h"

/* What a number of ranks comes to. */
typedef struct scale_count {
    int64_t ranks;
    const char *refused; /* why there is no plan; NULL: there is one */
    int64_t rows, length, device_bytes, host_bytes, parts;
    double part_seconds, seconds, tokens; /* of a micro-batch, and of a step; tokens a second, of all ranks */
    double efficiency; /* of a rank, beside the most that one reaches with as many ranks or fewer */
    double waited;     /* of a micro-batch's seconds: for the interconnect */
    sbp_net_traffic traffic;
    double compute, net; /* busy, of a step of one micro-batch */
    sbp_collective_op longest;
    bool idle; /* more ranks than sequences in a step */
} scale_count;

typedef struct scale {
    sbp_arena *arena;
    sbp_diag *diag;
    const char *model;
    const sbp_options *options;
    const char **args; /* of compile, without those that a count decides */
    int32_t arg_count;
    int64_t ranks, step_tokens;
    const char *title;
    scale_count *counts;
    int32_t count, capacity;
} scale;

/* One count while it is planned. */
typedef struct attempt {
    const scale *s;
    sbp_arena *arena;
    sbp_diag *diag;
    scale_count *out;
    const char *title;
} attempt;

static const char *const names[SBP_COLLECTIVE_COUNT] = {
    [SBP_ALL_REDUCE] = "all_reduce of gradients",     [SBP_REDUCE_SCATTER] = "reduce_scatter of gradients",
    [SBP_ALL_GATHER] = "all_gather of parameters",    [SBP_BROADCAST] = "broadcasts",
    [SBP_REDUCE_ADD] = "sums of gradients in shares", [SBP_REDUCE_OWN] = "sums of gradients for shares",
    [SBP_GROUP_REDUCE] = "sums within groups",        [SBP_CONTEXT_SUM] = "sums of statistics"};

/* ---- planning --------------------------------------------------------------------------------------- */

static bool is_one_of(const char *arg, const char *const *list, int count) {
    for (int i = 0; i < count; i++) {
        size_t length = strlen(list[i]);
        if (strncmp(arg, "--", 2) == 0 && strncmp(arg + 2, list[i], length) == 0 && arg[2 + length] == '=')
            return true;
    }
    return false;
}

/* What a run of a->out->ranks ranks is compiled with. A group of more ranks than there are is all of them. */
static sbp_status options_of(const attempt *a, const sbp_options **out) {
    static const char *const of_several[] = {"zero",         "shard-group",      "keep-gathered",
                                             "reduce-dtype", "context-parallel", "context-exchange"};
    const scale *s = a->s;
    int64_t ranks = a->out->ranks;
    const char **argv = SBP_NEW_ARRAY(a->arena, const char *, s->arg_count + 1);
    int32_t argc = 0;
    for (int32_t i = 0; i < s->arg_count; i++) {
        const char *group = strncmp(s->args[i], "--shard-group=", 14) == 0 ? s->args[i] + 14 : NULL;
        if (ranks == 1 && is_one_of(s->args[i], of_several, SBP_COUNT(of_several)))
            continue;
        if (group && strtoll(group, NULL, 10) > ranks)
            continue;
        argv[argc++] = s->args[i];
    }
    sbp_options_spell(a->arena, argv, &argc);
    argv[argc++] = sbp_arena_printf(a->arena, "--ranks=%lld", (long long)ranks);
    sbp_options *options;
    char **list = (char **)(void *)argv; /* which are only read */
    SBP_TRY(sbp_options_parse(a->arena, a->diag, "sbpc inspect", SBP_PHASE_COMPILE, argc, list, &options));
    *out = options;
    return SBP_OK;
}

static void measure(attempt *a, const sbp_compilation *c) {
    scale_count *n = a->out;
    const sbp_program *program = c->pipeline.program;
    const sbp_target_info *target = &c->pipeline.target;
    sbp_cost cost;
    sbp_cost_step(a->arena, program, program->t_max, target, &cost);
    sbp_cost_net_traffic(program, target, &n->traffic);
    n->rows = program->t_max;
    n->length = sbp_program_most_rows(program);
    n->device_bytes = program->arena_bytes[SBP_DEVICE] + c->process.bytes;
    n->host_bytes = program->arena_bytes[SBP_HOST];
    n->part_seconds = sbp_cost_entry(a->arena, program, sbp_program_training_entry(program), target);
    double update = sbp_cost_entry(a->arena, program, sbp_program_entry(program, SBP_ENTRY_UPDATE), target);
    n->parts = 1;
    double tokens = (double)n->rows * (double)n->ranks;
    if (a->s->step_tokens > 0) {
        int64_t contexts = n->ranks / program->context,
                sequences = a->s->step_tokens / n->length > 1 ? a->s->step_tokens / n->length : 1;
        n->parts = sbp_ceil_div(sequences, contexts);
        n->idle = sequences < contexts;
        tokens = (double)(sequences * n->length);
    }
    n->seconds = (double)n->parts * n->part_seconds + update;
    n->tokens = n->seconds > 0 ? tokens / n->seconds : 0;
    n->net = cost.busy[SBP_QUEUE_NET];
    for (int q = 0; q < SBP_QUEUE_COUNT; q++)
        if (q != SBP_QUEUE_NET && cost.busy[q] > n->compute)
            n->compute = cost.busy[q];
    n->waited = n->ranks > 1 && cost.seconds > n->compute ? (cost.seconds - n->compute) / cost.seconds : 0;
    for (int op = 0; op < SBP_COLLECTIVE_COUNT; op++)
        if (n->traffic.seconds[op] > n->traffic.seconds[n->longest])
            n->longest = (sbp_collective_op)op;
}

static sbp_status try_count(void *user) {
    attempt *a = user;
    sbp_compilation *c = SBP_NEW(a->arena, sbp_compilation);
    *c = (sbp_compilation){.arena = a->arena, .diag = a->diag, .model_path = a->s->model, .terse = true};
    SBP_TRY(options_of(a, &c->options));
    c->pipeline.arena = a->arena;
    c->pipeline.diag = a->diag;
    SBP_TRY(sbp_cli_plan(c));
    measure(a, c);
    a->title =
        sbp_arena_printf(a->s->arena, "%s on %s, %s", c->model.name, c->pipeline.target.name, c->objective);
    return SBP_OK;
}

/* What does not fit is one line of the table; anything else that is wrong is wrong with all of it. */
static sbp_status plan_count(scale *s, int64_t ranks) {
    scale_count n = {.ranks = ranks};
    attempt a = {.s = s, .arena = sbp_arena_create(), .diag = sbp_diag_create(), .out = &n};
    sbp_status status = a.arena && a.diag ? sbp_guard(a.arena, a.diag, try_count, &a) : SBP_MACHINE;
    const char *text = a.diag ? sbp_diag_text(a.diag, SBP_ERROR) : "out of memory";
    text += strncmp(text, "error: ", 7) == 0 ? 7 : 0;
    if (status != SBP_OK) {
        const char *end = strchr(text, '\n'), *stop = strstr(text, " too much;");
        n.refused = sbp_arena_strndup(s->arena, text,
                                      stop  ? (size_t)(stop - text) + 9
                                      : end ? (size_t)(end - text)
                                            : strlen(text));
    }
    s->title = a.title ? a.title : s->title;
    sbp_arena_destroy(a.arena);
    sbp_diag_destroy(a.diag);
    if (status != SBP_OK && status != SBP_MACHINE)
        return sbp_fail(s->diag, status, "%s", n.refused);
    SBP_PUSH(s->arena, s->counts, s->count, s->capacity, n);
    return SBP_OK;
}

static void rate(scale *s) {
    double most = 0; /* tokens a second of a rank */
    for (int32_t i = 0; i < s->count; i++) {
        scale_count *n = &s->counts[i];
        double each = n->tokens / (double)n->ranks;
        most = each > most ? each : most;
        n->efficiency = n->refused ? 0 : each / most;
    }
}

/* ---- where it stops --------------------------------------------------------------------------------- */

/* Below this a rank more is not worth it; and what is waited for has a name from this on. */
#define PAYS 0.8
#define NOTED 0.05

/* The first that fits where a rank reaches less than it should; NULL: none does. */
static const scale_count *find_stop(const scale *s) {
    for (int32_t i = 0; i < s->count; i++)
        if (!s->counts[i].refused && (s->counts[i].idle || s->counts[i].efficiency < PAYS))
            return &s->counts[i];
    return NULL;
}

/* What a count is bound by, in a word or a few. */
static const char *bound_of(const scale *s, const scale_count *n) {
    if (n->idle)
        return "too few sequences";
    if (n->waited < NOTED)
        return "compute";
    if (n->net <= n->compute)
        return sbp_arena_printf(s->arena, "compute, and %s that is not overlapped", names[n->longest]);
    return sbp_arena_printf(s->arena, "the interconnect%s: %s",
                            n->traffic.part_away + n->traffic.step_away > 0 ? " between hosts" : "",
                            names[n->longest]);
}

/* Rows a micro-batch would need for the interconnect to be busy no longer than the rest. */
static int64_t hiding_rows(const scale_count *n) {
    return n->compute > 0 ? (int64_t)((double)n->rows * n->net / n->compute) : 0;
}

static void stop_line(const scale *s, sbp_text *out) {
    char net[32], most[32], rest[32];
    const scale_count *n = find_stop(s), *last = &s->counts[s->count - 1];
    if (!n && last->refused) {
        sbp_text_add(out, "scales     no: %lld ranks do not fit either\n", (long long)last->ranks);
        return;
    }
    if (!n) {
        sbp_text_add(out,
                     "scales     to %lld ranks: each reaches %.0f %% of the most that one does with fewer\n",
                     (long long)last->ranks, 100 * last->efficiency);
        return;
    }
    sbp_text_add(out, "scales     not beyond %lld ranks", (long long)(n->ranks > 1 ? n->ranks / 2 : 1));
    if (n->idle)
        sbp_text_add(out,
                     ": a step of --batch-tokens %lld is %lld sequences of %lld rows, "
                     "fewer than ranks could have: the others wait\n",
                     (long long)s->step_tokens, (long long)(s->step_tokens / n->length),
                     (long long)n->length);
    else if (n->net > n->compute)
        sbp_text_add(out,
                     ": with %lld each reaches %.0f %%; the interconnect is busy %s a micro-batch, %s of "
                     "that with %s%s, the rest %s. Micro-batches of %lld rows would hide it\n",
                     (long long)n->ranks, 100 * n->efficiency, sbp_format_seconds(net, sizeof net, n->net),
                     sbp_format_seconds(most, sizeof most, n->traffic.seconds[n->longest]), names[n->longest],
                     n->traffic.part_away + n->traffic.step_away > 0 ? ", most of it between hosts" : "",
                     sbp_format_seconds(rest, sizeof rest, n->compute), (long long)hiding_rows(n));
    else
        sbp_text_add(
            out,
            ": with %lld each reaches %.0f %%, and waits %.0f %% of a micro-batch for the interconnect\n",
            (long long)n->ranks, 100 * n->efficiency, 100 * n->waited);
}

/* ---- as text, as JSON ------------------------------------------------------------------------------- */

static void print_text(const scale *s, sbp_text *out) {
    char device[32], host[32], traffic[32], away[32], time[32], rate[32];
    if (s->title)
        sbp_text_add(out, "%s: %s, up to %lld ranks; planned, not tried\n", s->model, s->title,
                     (long long)s->ranks);
    sbp_text_add(out, "%9s %11s %11s %11s %13s %9s %11s %6s %6s  %s\n", "ranks", "of a rank", "of host",
                 "a step sent", "to other hosts", "a step", "tokens/s", "each", "waits", "bound by");
    for (int32_t i = 0; i < s->count; i++) {
        const scale_count *n = &s->counts[i];
        if (n->refused) {
            sbp_text_add(out, "%9lld  %s\n", (long long)n->ranks, n->refused);
            continue;
        }
        double parts = (double)n->parts;
        sbp_text_add(out, "%9lld %11s %11s %11s %13s %9s %11s %5.0f%% %5.0f%%  %s\n", (long long)n->ranks,
                     sbp_format_bytes(device, sizeof device, (double)n->device_bytes),
                     sbp_format_bytes(host, sizeof host, (double)n->host_bytes),
                     sbp_format_bytes(traffic, sizeof traffic,
                                      parts * (double)n->traffic.part_bytes + (double)n->traffic.step_bytes),
                     sbp_format_bytes(away, sizeof away, parts * n->traffic.part_away + n->traffic.step_away),
                     sbp_format_seconds(time, sizeof time, n->seconds),
                     sbp_format_three(rate, sizeof rate, n->tokens), 100 * n->efficiency, 100 * n->waited,
                     bound_of(s, n));
    }
    stop_line(s, out);
}

static void write_count(sbp_json_writer *w, const scale *s, const scale_count *n) {
    sbp_json_write_object(w, NULL);
    sbp_json_write_int(w, "ranks", n->ranks);
    sbp_json_write_bool(w, "fits", !n->refused);
    if (n->refused) {
        sbp_json_write_string(w, "refused", n->refused);
        sbp_json_write_end(w);
        return;
    }
    sbp_json_write_int(w, "seq_len", n->rows);
    sbp_json_write_int(w, "device_bytes", n->device_bytes);
    sbp_json_write_int(w, "host_bytes", n->host_bytes);
    sbp_json_write_int(w, "micro_batches", n->parts);
    sbp_json_write_object(w, "interconnect");
    sbp_json_write_int(w, "micro_batch_bytes", n->traffic.part_bytes);
    sbp_json_write_int(w, "step_bytes", n->traffic.step_bytes);
    sbp_json_write_fixed(w, "micro_batch_bytes_between_hosts", n->traffic.part_away, 0);
    sbp_json_write_fixed(w, "step_bytes_between_hosts", n->traffic.step_away, 0);
    sbp_json_write_object(w, "seconds");
    for (int op = 0; op < SBP_COLLECTIVE_COUNT; op++)
        if (n->traffic.seconds[op] > 0)
            sbp_json_write_double(w, names[op], n->traffic.seconds[op]);
    sbp_json_write_end(w);
    sbp_json_write_end(w);
    sbp_json_write_double(w, "micro_batch_seconds", n->part_seconds);
    sbp_json_write_double(w, "seconds", n->seconds);
    sbp_json_write_double(w, "compute_seconds", n->compute);
    sbp_json_write_double(w, "interconnect_seconds", n->net);
    sbp_json_write_double(w, "tokens_per_second", n->tokens);
    sbp_json_write_double(w, "efficiency", n->efficiency);
    sbp_json_write_double(w, "waited", n->waited);
    sbp_json_write_string(w, "bound", bound_of(s, n));
    sbp_json_write_end(w);
}

static void print_json(const scale *s, sbp_text *out) {
    const scale_count *stop = find_stop(s);
    sbp_json_writer w = sbp_json_writer_on(out);
    sbp_json_write_object(&w, NULL);
    sbp_json_write_string(&w, "model", s->model);
    sbp_json_write_array(&w, "counts");
    for (int32_t i = 0; i < s->count; i++)
        write_count(&w, s, &s->counts[i]);
    sbp_json_write_end(&w);
    if (stop) {
        sbp_json_write_object(&w, "stops_at");
        sbp_json_write_int(&w, "ranks", stop->ranks);
        sbp_json_write_string(&w, "bound", bound_of(s, stop));
        sbp_json_write_int(&w, "hiding_rows", hiding_rows(stop));
        sbp_json_write_end(&w);
    } else {
        sbp_json_write_null(&w, "stops_at");
    }
    sbp_json_write_end(&w);
    sbp_text_add(out, "\n");
}

/* ---- the command ------------------------------------------------------------------------------------ */

/* Whether `ranks` ranks are whole groups, as options want them; a single rank always is. */
static bool has_whole_groups(const scale *s, int64_t ranks) {
    bool whole = true;
    for (int32_t i = 0; i < s->arg_count && ranks > 1; i++) {
        const char *value = strchr(s->args[i], '=');
        int64_t group = value ? strtoll(value + 1, NULL, 10) : 0;
        if (strcmp(s->args[i], "--shard-group=node") == 0)
            group = sbp_options_int(s->options, SBP_OPT_NODE);
        if (strncmp(s->args[i], "--shard-group=", 14) == 0)
            whole &= group < 1 || group >= ranks || ranks % group == 0;
        if (strncmp(s->args[i], "--context-parallel=", 19) == 0)
            whole &= group < 1 || ranks % group == 0;
    }
    return whole;
}

sbp_status sbp_cli_scale(sbp_arena *arena, sbp_diag *diag, const char *model, const sbp_options *options,
                         sbp_text *out) {
    static const char *const not_taken[] = {"output", "json",       "tune",       "ranks",
                                            "svg",    "stop-after", "print-after"};
    scale s = {.arena = arena,
               .diag = diag,
               .model = model,
               .options = options,
               .ranks = sbp_options_int(options, SBP_OPT_RANKS),
               .step_tokens = sbp_options_given(options, SBP_OPT_BATCH_TOKENS)
                                  ? sbp_options_int(options, SBP_OPT_BATCH_TOKENS)
                                  : 0};
    const char **given;
    int32_t count;
    sbp_options_to_args(options, SBP_PHASE_COMPILE, 0, arena, &given, &count);
    s.args = SBP_NEW_ARRAY(arena, const char *, count + 2);
    for (int32_t i = 0; i < count; i++)
        if (!is_one_of(given[i], not_taken, SBP_COUNT(not_taken)))
            s.args[s.arg_count++] = given[i];
    s.args[s.arg_count++] = model;
    for (int64_t ranks = 1; ranks < s.ranks; ranks *= 2)
        if (has_whole_groups(&s, ranks))
            SBP_TRY(plan_count(&s, ranks));
    SBP_TRY(plan_count(&s, s.ranks));
    rate(&s);
    if (sbp_options_on(options, SBP_OPT_JSON))
        print_json(&s, out);
    else
        print_text(&s, out);
    return SBP_OK;
}
