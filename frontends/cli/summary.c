/* summary.c: what sbpc compile says at its end. */
#include <string.h>

#include "frontends/cli/cli.h"
#include "ir/machine.h"

/* ---- the one change that would buy most -------------------------------------------------------------- */

typedef struct change {
    const char *text;
    sbp_schedule_options schedule;
} change;

static const char *const attention_set[] = {SBP_SAVE_ATTENTION};

/* Settings one step away from the one that was chosen. */
static int32_t neighbours(const sbp_compilation *c, change *out) {
    const sbp_schedule_options *s = &c->estimate.schedule;
    int64_t t = c->estimate.t_max;
    int32_t n = 0;
    if (!s->save_all && s->saved_count == 0) {
        out[n] = (change){"--save with the attention outputs", *s};
        out[n].schedule.saved = attention_set;
        out[n++].schedule.saved_count = 1;
        out[n] = (change){"--save with everything (--backward standard keeps that)", *s};
        out[n++].schedule.save_all = true;
    }
    if (s->save_all || s->saved_count > 0) {
        out[n] = (change){"--save none", *s};
        out[n].schedule.saved_count = 0;
        out[n++].schedule.save_all = false;
    }
    if (!s->offload && c->pipeline.target.has_copy_queue && strcmp(c->target->name, "cpu") != 0) {
        out[n] = (change){"--offload host", *s};
        out[n++].schedule.offload = true;
    }
    if (s->checkpoint_every == 1 && !s->save_all && !s->offload) {
        out[n] = (change){"--checkpoint-every 4", *s};
        out[n++].schedule.checkpoint_every = 4;
    }
    if (s->checkpoint_every > 1) {
        out[n] = (change){"--checkpoint-every 1", *s};
        out[n++].schedule.checkpoint_every = 1;
    }
    if (s->chunk > c->pipeline.target.chunk && t > c->pipeline.target.chunk) {
        out[n] = (change){"--backward stream", *s};
        out[n].schedule.chunk = c->pipeline.target.chunk;
        out[n].schedule.head_chunk = c->pipeline.target.head_chunk;
        out[n].schedule.saved_count = 0;
        out[n++].schedule.save_all = false;
    }
    return n;
}

static int64_t room(const sbp_compilation *c) {
    return c->wish.memory_bytes > 0 ? c->wish.memory_bytes : sbp_machine_memory();
}

/* Time saved within the memory there is counts first; else memory saved per time lost. */
static sbp_status find_advice(sbp_compilation *c) {
    change list[8];
    int32_t count = neighbours(c, list), best = -1;
    double best_gain = 0.03;
    sbp_plan_estimate best_estimate = {0};
    const sbp_plan_estimate *now = &c->estimate;
    sbp_pipeline p = c->pipeline;
    p.module = c->model.module;
    for (int32_t i = 0; i < count; i++) {
        sbp_plan_estimate e;
        SBP_TRY(sbp_planner_estimate(&p, now->t_max, &list[i].schedule, &e));
        if (room(c) > 0 && e.device_bytes + p.target.runtime_bytes > room(c))
            continue;
        double faster = 1 - e.seconds / now->seconds;
        double smaller = 1 - (double)e.device_bytes / (double)now->device_bytes;
        double gain = faster > 0.03 ? faster : smaller > 0.1 && faster > -0.5 ? smaller * 0.5 : 0;
        if (gain > best_gain) {
            best = i;
            best_gain = gain;
            best_estimate = e;
        }
    }
    if (best < 0) {
        c->advice = "no single change of the schedule would buy much";
        return SBP_OK;
    }
    char before[32], after[32];
    c->advice =
        sbp_arena_printf(c->arena, "%s: %s to %s, %.3g s to %.3g s a micro-batch (planned)", list[best].text,
                         sbp_format_bytes(before, sizeof before, (double)now->device_bytes),
                         sbp_format_bytes(after, sizeof after, (double)best_estimate.device_bytes),
                         now->seconds, best_estimate.seconds);
    return SBP_OK;
}

/* ---- lines ------------------------------------------------------------------------------------------- */

static void schedule_line(const sbp_compilation *c, sbp_text *out) {
    const sbp_schedule_options *s = &c->estimate.schedule;
    sbp_text saved;
    sbp_text_init(&saved, c->arena);
    sbp_saved_list(&c->pipeline, "+", &saved);
    sbp_text_add(
        out, "schedule   %s: chunk %lld, head chunk %lld, segment %lld, checkpoint every %lld, saved: %s%s\n",
        sbp_options_text(c->options, "backward"), (long long)s->chunk, (long long)s->head_chunk,
        (long long)s->segment, (long long)s->checkpoint_every, *saved.data ? saved.data : "layer inputs only",
        s->offload ? ", offloaded to the host" : "");
}

static sbp_status longest_line(const sbp_compilation *c, sbp_text *out) {
    int64_t limit = room(c), longest;
    char size[32];
    if (limit <= c->pipeline.target.runtime_bytes)
        return SBP_OK;
    SBP_TRY(sbp_planner_longest(
        c->arena, c->diag, c->pipeline.program, &c->pipeline.target, limit - c->pipeline.target.runtime_bytes,
        c->wish.host_memory_bytes > 0 ? c->wish.host_memory_bytes : INT64_MAX, &longest));
    sbp_text_add(out, "longest    %lld rows with this schedule in %s (%s)\n", (long long)longest,
                 sbp_format_bytes(size, sizeof size, (double)limit),
                 c->wish.memory_bytes > 0 ? "--memory" : "this machine");
    return SBP_OK;
}

sbp_status sbp_cli_summary(sbp_compilation *c, sbp_text *out) {
    const sbp_program *program = c->pipeline.program;
    const sbp_target_info *target = &c->pipeline.target;
    int64_t device = program->arena_bytes[SBP_DEVICE] + target->runtime_bytes, parameters = 0, trained = 0;
    char size[32], host[32], spare[32];
    for (int32_t i = 0; i < c->model.module->param_count; i++) {
        int64_t n = sbp_type_row_elems(&c->model.module->params[i].type);
        parameters += n;
        trained += c->model.module->params[i].trainable ? n : 0;
    }
    SBP_TRY(find_advice(c));
    sbp_text_add(out, "%s: %s (%s), %.1fM parameters, %.1fM trained; %s\n", c->output, c->model.name,
                 c->model.model_type, (double)parameters / 1e6, (double)trained / 1e6, c->objective);
    sbp_text_add(out, "backend    %s (%s), %s; up to %lld rows in a micro-batch\n", target->name,
                 c->target_reason,
                 c->dtype == SBP_F64    ? "fp64"
                 : c->dtype == SBP_BF16 ? "bf16"
                                        : "fp32",
                 (long long)c->estimate.t_max);
    schedule_line(c, out);
    sbp_text_add(out, "memory     %s on the device, %s of it the process itself",
                 sbp_format_bytes(size, sizeof size, (double)device),
                 sbp_format_bytes(spare, sizeof spare, (double)target->runtime_bytes));
    if (program->arena_bytes[SBP_HOST] > 0)
        sbp_text_add(out, "; %s on the host",
                     sbp_format_bytes(host, sizeof host, (double)program->arena_bytes[SBP_HOST]));
    sbp_text_add(out, "\n           ");
    SBP_TRY(sbp_cli_memory_line(c->arena, c->diag, program, target->alignment_bytes, out));
    sbp_text_add(out, "\n");
    if (c->wish.memory_bytes > 0)
        sbp_text_add(out, "headroom   %s of --memory %s\n",
                     sbp_format_bytes(spare, sizeof spare, (double)(c->wish.memory_bytes - device)),
                     sbp_format_bytes(size, sizeof size, (double)c->wish.memory_bytes));
    SBP_TRY(longest_line(c, out));
    sbp_text_add(
        out,
        "time       about %.3g s for a full micro-batch (%.3g tokens/s, %.3g TFLOP), by the cost model\n",
        c->estimate.seconds, c->estimate.seconds > 0 ? (double)c->estimate.t_max / c->estimate.seconds : 0,
        c->estimate.flops / 1e12);
    sbp_text_add(out, "most       %s\n", c->advice);
    return SBP_OK;
}
