/* summary.c: what sbpc compile says at its end. */
#include <string.h>

#include "backends/backends.h"
#include "ir/base/file.h"
#include "ir/base/json.h"
#include "runtime/cli/sbpc/cli.h"

/* ---- the one change that would buy most -------------------------------------------------------------- */

/* Options that could be added to the command line, and what the plan would come to. */
typedef struct change {
    const char *text;
    sbp_plan_estimate estimate;
    bool step;             /* with an update behind each layer's backward */
    int64_t process_bytes; /* as of the plan; once it is found, of its own program */
    bool found;
} change;

enum { MAX_CHANGES = 16 };

typedef struct changes {
    sbp_compilation *c;
    sbp_pipeline base; /* before the passes */
    change list[2 * MAX_CHANGES];
    int32_t count;
    sbp_schedule_options schedules[MAX_CHANGES]; /* to be estimated */
    const char *texts[MAX_CHANGES];
    int32_t scheduled;
} changes;

static int64_t room(const sbp_compilation *c) {
    if (c->request.memory_bytes > 0)
        return c->request.memory_bytes;
    return c->target && sbp_backend_is_a(c->target->name, SBP_BACKEND_HOST)
               ? c->machine_bytes / c->request.sharers
               : c->choice.memory_bytes;
}

/* Who says so. */
static const char *room_source(const sbp_compilation *c) {
    if (sbp_options_given(c->options, SBP_OPT_MEMORY))
        return "--memory";
    if (!c->target)
        return "--device-profile";
    return sbp_backend_is_a(c->pipeline.target.name, SBP_BACKEND_HOST) ? c->machine_source : "this machine";
}

static int64_t needed_bytes(const sbp_compilation *c, const sbp_plan_estimate *e, int64_t process_bytes) {
    return e->device_bytes + process_bytes + (c->pipeline.target.shared_memory ? e->host_bytes : 0);
}

static int64_t device_bytes(const sbp_compilation *c) {
    return needed_bytes(c, &c->estimate, c->process.bytes);
}

static int64_t changed_bytes(const sbp_compilation *c, const change *one) {
    return needed_bytes(c, &one->estimate, one->process_bytes);
}

/* A change of the schedule; estimated with the others of its kind. */
static void add_change(changes *ch, const char *text, const sbp_schedule_options *s) {
    ch->schedules[ch->scheduled] = *s;
    ch->texts[ch->scheduled++] = text;
}

static sbp_status estimate_changes(changes *ch) {
    sbp_plan_estimate estimates[MAX_CHANGES];
    SBP_TRY(sbp_planner_estimate(&ch->base, ch->c->estimate.t_max, ch->schedules, ch->scheduled, estimates));
    for (int32_t i = 0; i < ch->scheduled; i++)
        ch->list[ch->count++] = (change){.text = ch->texts[i], .estimate = estimates[i]};
    return SBP_OK;
}

/* "--save a+b": what the planner would keep in the memory there is, all else as it is. */
static sbp_status add_saved_set(changes *ch) {
    sbp_compilation *c = ch->c;
    const sbp_schedule_options *s = &c->estimate.schedule;
    sbp_schedule_request w = {.t_max = c->estimate.t_max,
                              .chunk = s->chunk,
                              .head_chunk = s->head_chunk,
                              .segment = s->segment,
                              .checkpoint_every = s->checkpoint_every,
                              .save_mode = SBP_SAVE_AUTO,
                              .offload = SBP_OFFLOAD_GIVEN,
                              .memory_bytes = room(c),
                              .gathered = s->gathered,
                              .expert_pieces = s->expert_pieces,
                              .host_memory_bytes = c->request.host_memory_bytes,
                              .process_bytes = c->process.bytes,
                              .tries = SBP_TRIES_FOR_ADVICE};
    memcpy(w.placement, s->placement, sizeof w.placement);
    memcpy(w.first, s->first, sizeof w.first);
    sbp_plan_estimate bare;
    sbp_schedule_options none = *s;
    none.save_all = false;
    none.saved_count = 0;
    SBP_TRY(sbp_planner_estimate(&ch->base, w.t_max, &none, 1, &bare));
    if (w.memory_bytes == 0 || needed_bytes(c, &bare, c->process.bytes) > w.memory_bytes)
        return SBP_OK;
    change *next = &ch->list[ch->count];
    SBP_TRY(sbp_planner_choose(&ch->base, &w, &next->estimate));
    sbp_text text;
    sbp_text_init(&text, c->arena);
    for (int32_t i = 0; i < next->estimate.schedule.saved_count; i++)
        sbp_text_add(&text, "%s%s", i > 0 ? "+" : "--save ", next->estimate.schedule.saved[i]);
    if (!next->estimate.schedule.drop_states && sbp_saved_name_exists(&c->pipeline, SBP_SAVE_STATES))
        sbp_text_add(&text, "+%s", SBP_SAVE_STATES);
    next->text = text.data;
    ch->count += next->estimate.schedule.saved_count > 0;
    return SBP_OK;
}

/* Options one step away from what was chosen. */
static sbp_status find_changes(changes *ch) {
    const sbp_compilation *c = ch->c;
    const sbp_schedule_options *s = &c->estimate.schedule;
    const sbp_target_info *target = &c->pipeline.target;
    const sbp_schedule_request *w = &c->request;
    sbp_schedule_options o = *s;
    if (!w->whole && (w->save_mode == SBP_SAVE_GIVEN || w->memory_bytes == 0))
        SBP_TRY(add_saved_set(ch));
    if (!w->whole && (s->save_all || s->saved_count > 0)) {
        o.save_all = false;
        o.saved_count = 0;
        o.drop_states = true;
        add_change(ch, "--save none", &o);
    }
    o = *s;
    for (int class = 0; class < SBP_TENSOR_CLASS_COUNT && target->has_copy_queue && !target->shared_memory;
         class ++)
        if (s->placement[class] == SBP_DEVICE) {
            o.placement[class] = SBP_HOST;
            add_change(ch, sbp_planner_placement(c->arena, &o, "--offload "), &o);
        }
    o = *s;
    if (!w->whole && s->placement[SBP_TENSOR_CHECKPOINT] == SBP_DEVICE) {
        o.checkpoint_every = s->checkpoint_every > 1 ? 1 : 4;
        add_change(
            ch, sbp_arena_printf(c->arena, "--backward checkpoint_every=%lld", (long long)o.checkpoint_every),
            &o);
    }
    SBP_TRY(estimate_changes(ch));
    if (w->whole && c->estimate.t_max > target->chunk) {
        sbp_schedule_request stream = {.t_max = c->estimate.t_max,
                                       .chunk = SBP_AUTO,
                                       .head_chunk = SBP_AUTO,
                                       .segment = 1,
                                       .checkpoint_every = 1,
                                       .save_mode = SBP_SAVE_GIVEN,
                                       .offload = SBP_OFFLOAD_OFF,
                                       .process_bytes = c->process.bytes,
                                       .tries = SBP_TRIES_FOR_ADVICE};
        ch->list[ch->count].text = sbp_cli_change(SBP_CHANGE_STREAM);
        SBP_TRY(sbp_planner_choose(&ch->base, &stream, &ch->list[ch->count].estimate));
        ch->count++;
    }
    if (!c->step && c->pipeline.options.optimizer != SBP_OPTIMIZER_NONE) {
        sbp_pipeline p = ch->base;
        change *next = &ch->list[ch->count++];
        p.options.step = true;
        next->text = sbp_cli_change(SBP_CHANGE_STEP);
        next->step = true;
        SBP_TRY(sbp_planner_estimate(&p, c->estimate.t_max, s, 1, &next->estimate));
    }
    return SBP_OK;
}

static const char NOTHING_BETTER[] = "better: nothing, no single option helps much";

/* What a change is worth: time saved counts first, then memory saved at a bearable loss of time; a plan that
 * does not fit needs memory most. */
static double gain(const sbp_compilation *c, const change *one) {
    const sbp_plan_estimate *now = &c->estimate, *e = &one->estimate;
    int64_t bytes = changed_bytes(c, one);
    bool tight = room(c) > 0 && device_bytes(c) > room(c);
    double faster = 1 - e->seconds / now->seconds;
    double smaller = 1 - (double)bytes / (double)device_bytes(c);
    if (!tight && room(c) > 0 && bytes > room(c))
        return 0;
    if (tight)
        return smaller > 0.03 ? smaller : 0;
    if (faster > 0.03)
        return 1 + faster;
    return smaller > 0.1 && smaller + faster > 0.03 ? smaller + faster : 0; /* time lost counts against it */
}

/* What its own process takes. */
static sbp_status find_process(const changes *ch, change *one) {
    sbp_process about;
    sbp_footprint process;
    sbp_pipeline p = ch->base;
    p.options.step |= one->step;
    SBP_TRY(sbp_cli_describe_process(ch->c, &about));
    SBP_TRY(sbp_planner_footprint(&p, &about, one->estimate.t_max, &one->estimate.schedule, &process));
    one->process_bytes = process.bytes;
    one->found = true;
    return SBP_OK;
}

/* The best of all, by its own process; NULL: none helps much. */
static sbp_status find_best(changes *ch, change **best) {
    for (int32_t i = 0; i < ch->count; i++)
        ch->list[i].process_bytes = ch->c->process.bytes;
    for (;;) {
        *best = NULL;
        for (int32_t i = 0; i < ch->count; i++)
            if (gain(ch->c, &ch->list[i]) > (*best ? gain(ch->c, *best) : 0))
                *best = &ch->list[i];
        if (!*best || (*best)->found)
            return SBP_OK;
        SBP_TRY(find_process(ch, *best));
    }
}

static sbp_status find_advice(sbp_compilation *c) {
    changes ch = {.c = c, .base = c->pipeline};
    change *best;
    ch.base.module = c->model.module;
    SBP_TRY(find_changes(&ch));
    SBP_TRY(find_best(&ch, &best));
    if (!best) {
        c->advice = NOTHING_BETTER;
        return SBP_OK;
    }
    char before[32], after[32], slow[32], fast[32], more[32];
    int64_t now = device_bytes(c), then = changed_bytes(c, best), grows = then - now;
    bool faster = best->estimate.seconds < c->estimate.seconds;
    const char *price =
        faster && grows > 0
            ? sbp_arena_printf(c->arena, ", for %s more", sbp_format_bytes(more, sizeof more, (double)grows))
            : "";
    c->advice = sbp_arena_printf(c->arena, "%s: %s%s: %s to %s on the device%s, %s to %s a step (planned)",
                                 faster && grows > 0 ? "faster"
                                 : faster            ? "faster and smaller"
                                                     : "smaller",
                                 best->text, price, sbp_format_bytes(before, sizeof before, (double)now),
                                 sbp_format_bytes(after, sizeof after, (double)then),
                                 room(c) > 0 && then > room(c) ? " (more than there is)" : "",
                                 sbp_format_seconds(slow, sizeof slow, c->estimate.seconds),
                                 sbp_format_seconds(fast, sizeof fast, best->estimate.seconds));
    return SBP_OK;
}

/* ---- lines ------------------------------------------------------------------------------------------- */

/* What of a layer is where in parts. */
static void add_parts(const sbp_compilation *c, sbp_text *out) {
    const sbp_schedule_options *s = &c->estimate.schedule;
    if (s->gathered == INT32_MAX)
        sbp_text_add(out, "           parameters stay gathered from the forward to the backward\n");
    else if (s->gathered > 2)
        sbp_text_add(out,
                     "           parameters of %d segments stay gathered from the forward to the backward\n",
                     (int)s->gathered);
    if (s->expert_pieces > 1 && sbp_program_has_expert_pieces(c->pipeline.program))
        sbp_text_add(out, "           experts come to the device in %d pieces\n", (int)s->expert_pieces);
    else if (s->expert_pieces > 1)
        sbp_text_add(out,
                     "           experts come to the device whole: in pieces come those that are away from "
                     "it (--offload params) or in blocks, and not in shares of ranks (--zero)\n");
    if (s->host_update)
        sbp_text_add(out, "           updates run on the host's cores, where the states are\n");
}

static void schedule_line(const sbp_compilation *c, sbp_text *out) {
    const sbp_schedule_options *s = &c->estimate.schedule;
    sbp_text saved;
    sbp_text_init(&saved, c->arena);
    sbp_saved_list(&c->pipeline, "+", &saved);
    sbp_text_add(
        out, "schedule   %s: chunk %lld, head chunk %lld, segment %lld, checkpoint every %lld, saved: %s%s\n",
        sbp_options_text(c->options, SBP_OPT_BACKWARD), (long long)s->chunk, (long long)s->head_chunk,
        (long long)s->segment, (long long)s->checkpoint_every, *saved.data ? saved.data : "layer inputs only",
        sbp_planner_placement(c->arena, s, ", offloaded: "));
    add_parts(c, out);
}

static sbp_status longest_line(const sbp_compilation *c, sbp_text *out) {
    int64_t limit = room(c), longest;
    char size[32];
    if (limit <= c->process.bytes)
        return SBP_OK;
    SBP_TRY(sbp_planner_longest(
        c->arena, c->diag, c->pipeline.program, &c->pipeline.target, limit - c->process.bytes,
        c->request.host_memory_bytes > 0 ? c->request.host_memory_bytes : INT64_MAX, &longest));
    sbp_text_add(out, "longest    %lld tokens with this schedule in %s (%s)\n",
                 (long long)(longest * c->pipeline.program->context),
                 sbp_format_bytes(size, sizeof size, (double)limit), room_source(c));
    return SBP_OK;
}

/* "640", "6.4K", "134.5M", "32.8B" */
static const char *count_text(const sbp_compilation *c, int64_t n) {
    static const char *const units[] = {"", "K", "M", "B"};
    double value = (double)n;
    int unit = 0;
    for (; value >= 999.95 && unit < SBP_COUNT(units) - 1; unit++)
        value /= 1000;
    return sbp_arena_printf(c->arena, "%.*f%s", unit > 0, value, units[unit]);
}

/* "base       112.4M weights in q4_1 (5 bits each), 28.3M in q8_0 (8.5)" */
static void base_line(const sbp_compilation *c, sbp_text *out) {
    const sbp_module *m = c->model.module;
    int named = 0;
    for (int format = SBP_FORMAT_NONE + 1; format < SBP_FORMAT_COUNT; format++) {
        const sbp_format_info *f = sbp_format_of((sbp_format)format);
        int64_t elems = 0;
        for (int32_t i = 0; i < m->param_count; i++)
            elems += m->params[i].format == (sbp_format)format ? sbp_type_row_elems(&m->params[i].type) : 0;
        if (elems > 0)
            sbp_text_add(out, "%s%s %s%s (%.3g%s)", named == 0 ? "base       " : ", ", count_text(c, elems),
                         named == 0 ? "weights in " : "in ", f->name,
                         8.0 * (double)sbp_format_size((sbp_format)format, f->block) / f->block,
                         named == 0 ? " bits each" : "");
        named += elems > 0;
    }
    if (named > 0)
        sbp_text_add(out, "\n");
}

/* "61.20 of 80.00 GiB" */
static void add_part(sbp_text *out, int64_t part, int64_t all) {
    char a[32], b[32];
    sbp_format_bytes(a, sizeof a, (double)part);
    sbp_format_bytes(b, sizeof b, (double)all);
    const char *unit = strchr(a, ' '), *same = strchr(b, ' ');
    bool cut = unit && same && strcmp(unit, same) == 0;
    sbp_text_add(out, "%.*s of %s", cut ? (int)(unit - a) : (int)strlen(a), a, b);
}

/* "fits       yes: 61.20 of 80.00 GiB on the device, 12.00 of 64.00 GiB (assumed) on the host": it was
 * planned for that, or, where nothing was said, is compared with what is here. */
static void fits_line(const sbp_compilation *c, sbp_text *out) {
    const sbp_schedule_request *w = &c->request;
    char size[32];
    int64_t host = c->pipeline.program->arena_bytes[SBP_HOST], needed = device_bytes(c);
    bool shared = c->pipeline.target.shared_memory;
    if (room(c) == 0)
        return;
    sbp_text_add(out, "fits       %s: ", needed <= room(c) ? "yes" : "no");
    add_part(out, needed, room(c));
    sbp_text_add(out, "%s%s", shared ? "" : " on the device",
                 w->sharers > 1 && shared ? ", a rank's part" : "");
    if (w->memory_bytes == 0)
        sbp_text_add(out, " (%s)", room_source(c));
    if (!shared && w->host_memory_bytes > 0) {
        sbp_text_add(out, ", ");
        add_part(out, host, w->host_memory_bytes);
        sbp_text_add(out, "%s on the host", c->host_assumed ? " (assumed)" : "");
    } else if (!shared && !c->target && host > 0) {
        sbp_text_add(out, "; on the host %s, of any amount (--host-memory, or host_memory of the profile)",
                     sbp_format_bytes(size, sizeof size, (double)host));
    }
    sbp_text_add(out, "\n");
}

/* The cost model's time of a step. */
static void time_line(const sbp_compilation *c, sbp_text *out) {
    char time[32], rate[32], flops[32];
    const sbp_plan_estimate *e = &c->estimate;
    double rows = (double)sbp_program_most_rows(c->pipeline.program);
    sbp_text_add(out, "time       about %s a step of one full micro-batch (%s tokens/s, %s), planned\n",
                 sbp_format_seconds(time, sizeof time, e->seconds),
                 sbp_format_three(rate, sizeof rate, e->seconds > 0 ? rows / e->seconds : 0),
                 sbp_format_flops(flops, sizeof flops, (double)c->pipeline.program->context * e->flops));
}

/* "model (llama), 134.5M parameters, 460.8K trained, of an adapter; sft" */
static void model_line(const sbp_compilation *c, sbp_text *out) {
    int64_t parameters = 0, trained = 0;
    for (int32_t i = 0; i < c->model.module->param_count; i++) {
        int64_t n = sbp_type_row_elems(&c->model.module->params[i].type);
        parameters += n;
        trained += c->model.module->params[i].trainable ? n : 0;
    }
    sbp_text_add(out, "%s (%s), %s parameters, ", c->model.name, c->model.model_type,
                 count_text(c, parameters));
    sbp_text_add(out, "%s; %s",
                 trained == parameters ? "all trained"
                                       : sbp_arena_printf(c->arena, "%s trained", count_text(c, trained)),
                 c->objective);
}

/* Sums up a run: what is trained, whether it fits, how long a step takes, what would be better. */
static sbp_status add_short_lines(sbp_compilation *c, sbp_text *out) {
    const char *placement = sbp_planner_placement(c->arena, &c->estimate.schedule, "offloaded  ");
    SBP_TRY(find_advice(c));
    model_line(c, out);
    sbp_text_add(out, ", %s\n", sbp_dtype_spelling(c->dtype));
    if (*placement)
        sbp_text_add(out, "%s\n", placement);
    add_parts(c, out);
    base_line(c, out);
    fits_line(c, out);
    time_line(c, out);
    if (strcmp(c->advice, NOTHING_BETTER) != 0)
        sbp_text_add(out, "%s\n", c->advice);
    return SBP_OK;
}

/* Lines of any length. */
static sbp_status add_lines(sbp_compilation *c, sbp_text *out) {
    const sbp_program *program = c->pipeline.program;
    const sbp_target_info *target = &c->pipeline.target;
    int64_t device = program->arena_bytes[SBP_DEVICE] + c->process.bytes;
    char size[32], host[32], process[32];
    SBP_TRY(find_advice(c));
    if (!c->target || !sbp_file_is_temporary(c->output)) /* what sbprun calls it until it is whole */
        sbp_text_add(out, "%s: ", c->target ? c->output : "Estimate (no plan file is written)");
    model_line(c, out);
    sbp_text_add(out, "\nbackend    %s (%s), %s\n", target->name, c->choice.reason,
                 sbp_dtype_spelling(c->dtype));
    if (c->target && target->archs[0])
        sbp_text_add(out, "kernels    for %s; they need %s\n", target->archs, target->driver);
    schedule_line(c, out);
    sbp_text_add(out, "memory     %s on the device, %s of it the process itself",
                 sbp_format_bytes(size, sizeof size, (double)device),
                 sbp_format_bytes(process, sizeof process, (double)c->process.bytes));
    if (c->process.thread_bytes > 0)
        sbp_text_add(out, " with %lld thread%s", (long long)c->threads, c->threads == 1 ? "" : "s");
    for (int space = SBP_HOST; space < SBP_SPACE_COUNT; space++)
        if (program->arena_bytes[space] > 0)
            sbp_text_add(out, "; %s on %s",
                         sbp_format_bytes(host, sizeof host, (double)program->arena_bytes[space]),
                         space == SBP_HOST ? "the host" : "disk");
    sbp_text_add(out, "\n           ");
    sbp_account account;
    SBP_TRY(sbp_cli_account(c->arena, c->diag, program, target->alignment_bytes, c->process.bytes, &account));
    sbp_cli_memory_line(&account, out);
    sbp_text_add(out, "\n");
    sbp_text kept;
    sbp_text_init(&kept, c->arena);
    if (sbp_program_describe_kept(c->arena, program, &kept))
        sbp_text_add(out, "trained    %s\n", kept.data);
    base_line(c, out);
    double row, row_host;
    SBP_TRY(sbp_planner_bytes_per_token(c->arena, c->diag, program, target, &row, &row_host));
    sbp_text_add(
        out, "tokens     up to %lld in a micro-batch; each takes %.1f KB on the device, %.1f on the host\n",
        (long long)sbp_program_most_rows(program), row / 1e3, row_host / 1e3);
    fits_line(c, out);
    SBP_TRY(longest_line(c, out));
    time_line(c, out);
    if (c->target && strcmp(c->throughput_source, "table") != 0) {
        sbp_text_add(out, "throughput %s: ", c->throughput_source);
        sbp_throughput_describe(out, &target->throughput, " ");
        sbp_text_add(out, "\n");
    }
    sbp_cli_traffic_lines(c->estimate.traffic, c->estimate.busy, c->estimate.seconds, out);
    sbp_cli_net_line(program, target, c->estimate.busy, c->estimate.seconds, out);
    sbp_text_add(out, "%s\n", c->advice);
    return SBP_OK;
}

sbp_status sbp_cli_summary(sbp_compilation *c, sbp_text *out) {
    sbp_text lines;
    sbp_text_init(&lines, c->arena);
    SBP_TRY(sbp_options_is(c->options, SBP_OPT_SUMMARY, "short") ? add_short_lines(c, &lines)
                                                                 : add_lines(c, &lines));
    sbp_text_add_wrapped(out, lines.data, SBP_CLI_WIDTH, SBP_CLI_INDENT);
    return SBP_OK;
}

void sbp_cli_write_peak(sbp_json_writer *w, const sbp_program *program, int64_t process_bytes) {
    sbp_json_write_object(w, "peak_bytes");
    sbp_json_write_int(w, "device", program->arena_bytes[SBP_DEVICE] + process_bytes);
    sbp_json_write_int(w, "host", program->arena_bytes[SBP_HOST]);
    sbp_json_write_int(w, "disk", program->arena_bytes[SBP_DISK]);
    sbp_json_write_end(w);
}

sbp_status sbp_cli_summary_json(const sbp_compilation *c, sbp_text *out) {
    const sbp_program *program = c->pipeline.program;
    sbp_account account;
    SBP_TRY(sbp_cli_account(c->arena, c->diag, program, c->pipeline.target.alignment_bytes, c->process.bytes,
                            &account));
    double row, row_host;
    SBP_TRY(sbp_planner_bytes_per_token(c->arena, c->diag, program, &c->pipeline.target, &row, &row_host));
    sbp_json_writer w = sbp_json_writer_on(out);
    sbp_json_write_object(&w, NULL);
    sbp_json_write_string(&w, "model", c->model.name);
    sbp_json_write_string(&w, "backend", c->pipeline.target.name);
    sbp_json_write_string(&w, "plan", c->target ? c->output : NULL);
    sbp_json_write_double(&w, "seconds", c->estimate.seconds);
    sbp_json_write_double(&w, "flops", c->estimate.flops);
    sbp_cli_write_peak(&w, program, c->process.bytes);
    sbp_cli_write_categories(&w, "categories", &account);
    sbp_cli_write_schedule(&w, "schedule", c);
    sbp_json_write_object(&w, "bytes_per_token");
    sbp_json_write_double(&w, "device", row);
    sbp_json_write_double(&w, "host", row_host);
    sbp_json_write_end(&w);
    sbp_cli_write_traffic(&w, c->estimate.traffic, c->estimate.busy);
    sbp_cli_write_net(&w, program, &c->pipeline.target);
    sbp_cli_write_throughput(&w, "throughput", c->throughput_source, &c->pipeline.target.throughput);
    sbp_json_write_string(&w, "advice", c->advice);
    sbp_json_write_end(&w);
    sbp_text_add(out, "\n");
    return SBP_OK;
}
