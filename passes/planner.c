/* planner.c: candidates, their bytes and time, and the choice among them. */
#include "passes/planner.h"

#include <string.h>

#include "passes/cost.h"
#include "passes/lowering.h"
#include "passes/memory.h"

/* A program of one structure, to be evaluated at any size. Where all layers are of one kind, one that was
 * made with k = 2 stands for every k that leaves three groups or more: only the slots and the number of calls
 * differ. */
typedef struct skeleton {
    int64_t k;  /* what it was made for; EVERY_K */
    bool mixed; /* layers of several kinds */
    sbp_program *program;
    sbp_lowering *lowering;
    sbp_liveness live;
    sbp_schedule_options schedule;
    int32_t layers; /* L, in segments */
    struct skeleton *next;
} skeleton;

enum { EVERY_K = 0 };

typedef struct planner {
    const sbp_pipeline *base;
    sbp_arena *arena;
    sbp_diag *diag;
    skeleton *skeletons;
    sbp_arena *scratch; /* during one evaluation */
} planner;

/* ---- skeletons --------------------------------------------------------------------------------------- */

static bool same_structure(const skeleton *s, const sbp_schedule_options *o, int64_t k) {
    if (s->k != k || s->schedule.segment != o->segment || s->schedule.save_all != o->save_all ||
        s->schedule.offload != o->offload || s->schedule.saved_count != o->saved_count)
        return false;
    for (int32_t i = 0; i < o->saved_count; i++)
        if (strcmp(s->schedule.saved[i], o->saved[i]) != 0)
            return false;
    return true;
}

static bool has_mixed_layers(const sbp_module *m) {
    for (int32_t c = 2; c + 1 < m->call_count; c++)
        if (m->calls[c].func != m->calls[1].func)
            return true;
    return false;
}

static sbp_status find_skeleton(planner *pl, const sbp_schedule_options *o, int64_t t, int64_t k,
                                skeleton **out) {
    for (skeleton *s = pl->skeletons; s; s = s->next)
        if (same_structure(s, o, k)) {
            *out = s;
            return SBP_OK;
        }
    sbp_pipeline p = *pl->base;
    p.module = sbp_module_copy(pl->arena, pl->base->module);
    p.program = NULL;
    p.lowering = NULL;
    p.printed = NULL;
    p.print_after = NULL;
    p.stop_after = "schedule";
    p.options.t_max = t;
    p.options.schedule = *o;
    p.options.schedule.checkpoint_every = k == EVERY_K ? 2 : k;
    SBP_TRY(sbp_pipeline_run(&p));
    skeleton *s = SBP_NEW(pl->arena, skeleton);
    *s = (skeleton){.k = k,
                    .mixed = has_mixed_layers(p.module),
                    .program = p.program,
                    .lowering = p.lowering,
                    .schedule = *o,
                    .layers = p.module->call_count - 2,
                    .next = pl->skeletons};
    sbp_memory_liveness(pl->arena, p.program, &s->live);
    pl->skeletons = *out = s;
    return SBP_OK;
}

static void set_count(const skeleton *s, sbp_program *copy, const char *name, int64_t count) {
    int32_t buffer = sbp_map_get(&s->lowering->buffer_names, name);
    if (buffer >= 0)
        copy->buffers[buffer].count = (int32_t)count;
}

/* The skeleton's program at other sizes. */
static sbp_program *resize(planner *pl, const skeleton *s, int64_t t, const sbp_schedule_options *o) {
    sbp_program *copy = sbp_memory_resize(pl->scratch, s->program, t, o->chunk, o->head_chunk);
    if (s->k != EVERY_K)
        return copy;
    int64_t groups = sbp_ceil_div(s->layers, o->checkpoint_every);
    bool away = sbp_map_get(&s->lowering->buffer_names, "X.host") >= 0;
    set_count(s, copy, away ? "X.host" : "X", groups);
    set_count(s, copy, "X.again", o->checkpoint_every - 1);
    return copy;
}

/* Seconds of the training entry (or of scoring, when nothing trains) with k checkpoints. */
static void estimate_time(planner *pl, const skeleton *s, const sbp_program *sized,
                          const sbp_schedule_options *o, sbp_plan_estimate *out) {
    static const char *const entries[] = {"step", "accumulate", "score"};
    const char *entry = NULL;
    for (int i = 0; i < SBP_COUNT(entries) && !entry; i++)
        if (sbp_program_find_entry(sized, entries[i]))
            entry = entries[i];
    sbp_cost cost;
    sbp_cost_entry(pl->scratch, sized, entry ? entry : "score", out->t_max, &pl->base->target, &cost);
    out->seconds = cost.seconds;
    out->flops = cost.flops;
    if (s->k != EVERY_K)
        return;
    /* the skeleton runs (layers/2 rounded up - 1) layers again; this setting (groups - 1)(k - 1) */
    int64_t groups = sbp_ceil_div(s->layers, o->checkpoint_every);
    double here = (double)((groups - 1) * (o->checkpoint_every - 1)),
           there = (double)(sbp_ceil_div(s->layers, 2) - 1);
    sbp_cost again;
    sbp_cost_functions(pl->scratch, sized, entry, ".again", out->t_max, &pl->base->target, &again);
    double factor = there > 0 ? here / there - 1 : 0;
    out->seconds += again.seconds * factor;
    out->flops += again.flops * factor;
}

/* One evaluation, in an arena of its own: a search makes tens of thousands. */
typedef struct evaluation {
    planner *pl;
    const skeleton *s;
    bool timed;
    sbp_plan_estimate *out;
} evaluation;

static sbp_status evaluate_body(void *user) {
    evaluation *e = user;
    sbp_program *sized = resize(e->pl, e->s, e->out->t_max, &e->out->schedule);
    SBP_TRY(sbp_memory_pack(e->pl->scratch, e->pl->diag, sized, &e->s->live, &e->pl->base->target));
    e->out->device_bytes = sized->arena_bytes[SBP_DEVICE];
    e->out->host_bytes = sized->arena_bytes[SBP_HOST];
    if (e->timed)
        estimate_time(e->pl, e->s, sized, &e->out->schedule, e->out);
    return SBP_OK;
}

static sbp_status evaluate(planner *pl, int64_t t, const sbp_schedule_options *o, bool timed,
                           sbp_plan_estimate *out) {
    skeleton *s;
    SBP_TRY(find_skeleton(pl, o, t, 1, &s));
    if (o->checkpoint_every > 1) {
        bool typical = !s->mixed && sbp_ceil_div(s->layers, o->checkpoint_every) >= 3;
        SBP_TRY(find_skeleton(pl, o, t, typical ? EVERY_K : o->checkpoint_every, &s));
    }
    *out = (sbp_plan_estimate){.t_max = t, .schedule = *o};
    evaluation e = {.pl = pl, .s = s, .timed = timed, .out = out};
    pl->scratch = sbp_arena_create();
    if (!pl->scratch)
        return sbp_fail(pl->diag, SBP_MACHINE, "out of memory");
    sbp_status status = sbp_guard(pl->scratch, pl->diag, evaluate_body, &e);
    sbp_arena_destroy(pl->scratch);
    pl->scratch = NULL;
    return status;
}

sbp_status sbp_planner_estimate(const sbp_pipeline *pipeline, int64_t t_max,
                                const sbp_schedule_options *schedule, sbp_plan_estimate *out) {
    planner pl = {.base = pipeline, .arena = pipeline->arena, .diag = pipeline->diag};
    return evaluate(&pl, t_max, schedule, true, out);
}

/* ---- candidates -------------------------------------------------------------------------------------- */

static const char *const attention_set[] = {SBP_SAVE_ATTENTION};

typedef struct search {
    planner pl;
    const sbp_wish *wish;
    bool longest;     /* maximise t_max instead of speed */
    int64_t quarters; /* of the target's chunk sizes */
    bool found;
    sbp_plan_estimate best, smallest; /* smallest: least device memory of all, for messages */
} search;

/* What --memory limits: the arena and the process beside it; both arenas where they share memory. */
static int64_t needed_bytes(const sbp_target_info *target, const sbp_plan_estimate *e) {
    return e->device_bytes + target->runtime_bytes + (target->shared_memory ? e->host_bytes : 0);
}

static bool fits(const search *s, const sbp_plan_estimate *e) {
    const sbp_wish *w = s->wish;
    int64_t device = needed_bytes(&s->pl.base->target, e);
    return (w->memory_bytes == 0 || device <= w->memory_bytes) &&
           (w->host_memory_bytes == 0 || e->host_bytes <= w->host_memory_bytes);
}

/* Chunks for a micro-batch of t rows; never larger than it. */
static int64_t clamp_chunk(int64_t chunk, int64_t t) {
    return chunk < 1 ? 1 : chunk > t ? t : chunk;
}

static sbp_status try_at(search *s, sbp_schedule_options o, int64_t t, bool timed, sbp_plan_estimate *e) {
    o.chunk = clamp_chunk(o.chunk, t);
    o.head_chunk = clamp_chunk(o.head_chunk, t);
    SBP_TRY(evaluate(&s->pl, t, &o, timed, e));
    const sbp_target_info *target = &s->pl.base->target;
    if (s->smallest.device_bytes == 0 || needed_bytes(target, e) < needed_bytes(target, &s->smallest))
        s->smallest = *e;
    return SBP_OK;
}

static bool better(const search *s, const sbp_plan_estimate *e) {
    if (!s->found)
        return true;
    if (s->longest && e->t_max != s->best.t_max)
        return e->t_max > s->best.t_max;
    return e->seconds < s->best.seconds * 0.999; /* earlier candidates win ties */
}

static sbp_status try_candidate(search *s, const sbp_schedule_options *o) {
    sbp_plan_estimate e;
    if (!s->longest) {
        SBP_TRY(try_at(s, *o, s->wish->t_max, true, &e));
        if (fits(s, &e) && better(s, &e)) {
            s->best = e;
            s->found = true;
        }
        return SBP_OK;
    }
    int64_t low = 0, high = 1;
    for (; high < (int64_t)1 << 32; high *= 2) {
        SBP_TRY(try_at(s, *o, high, false, &e));
        if (!fits(s, &e))
            break;
        low = high;
    }
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        SBP_TRY(try_at(s, *o, middle, false, &e));
        *(fits(s, &e) ? &low : &high) = middle;
    }
    if (low == 0)
        return SBP_OK;
    SBP_TRY(try_at(s, *o, low, true, &e));
    if (better(s, &e)) {
        s->best = e;
        s->found = true;
    }
    return SBP_OK;
}

static int64_t pick(int64_t asked, bool whole, int64_t usual, int64_t quarters) {
    if (asked != SBP_AUTO)
        return asked;
    return whole ? (int64_t)1 << 40 : usual * quarters / 4; /* clamped to the rows there are */
}

/* One structure, with chunks of so many quarters of what the target likes. */
static sbp_status try_chunks(search *s, sbp_schedule_options o) {
    const sbp_wish *w = s->wish;
    const sbp_target_info *t = &s->pl.base->target;
    o.chunk = pick(w->chunk, w->whole, t->chunk, s->quarters);
    o.head_chunk = pick(w->head_chunk, w->whole, t->head_chunk, s->quarters);
    return try_candidate(s, &o);
}

/* Other chunk sizes for the structure that won. */
static sbp_status refine_chunks(search *s) {
    static const int64_t quarters[] = {1, 2, 4, 8, 16};
    const sbp_wish *w = s->wish;
    const sbp_target_info *t = &s->pl.base->target;
    sbp_schedule_options o = s->best.schedule;
    if (w->memory_bytes == 0 || w->whole)
        return SBP_OK;
    for (int i = 0; i < SBP_COUNT(quarters); i++)
        for (int j = 0; j < SBP_COUNT(quarters); j++) {
            if (t->chunk_most > 0 && (t->chunk * quarters[i] / 4 > t->chunk_most ||
                                      t->head_chunk * quarters[j] / 4 > t->chunk_most))
                continue;
            o.chunk = pick(w->chunk, false, t->chunk, quarters[i]);
            o.head_chunk = pick(w->head_chunk, false, t->head_chunk, quarters[j]);
            SBP_TRY(try_candidate(s, &o));
        }
    return SBP_OK;
}

static sbp_status try_checkpoints(search *s, sbp_schedule_options o, int32_t layers) {
    const sbp_wish *w = s->wish;
    for (int64_t k = 1; k <= 16; k++) {
        o.checkpoint_every = w->checkpoint_every != SBP_AUTO ? w->checkpoint_every : k;
        int64_t segments = sbp_ceil_div(layers, o.segment);
        if (k > 1 &&
            (w->checkpoint_every != SBP_AUTO || w->memory_bytes == 0 || k * 2 > segments || o.save_all))
            break;
        SBP_TRY(try_chunks(s, o));
    }
    return SBP_OK;
}

static sbp_status count_layers(search *s, int32_t *out) {
    sbp_schedule_options o = {.chunk = 1, .head_chunk = 1, .segment = 1, .checkpoint_every = 1};
    skeleton *found;
    SBP_TRY(find_skeleton(&s->pl, &o, 64, 1, &found));
    *out = found->layers;
    return SBP_OK;
}

static sbp_status try_all(search *s) {
    const sbp_wish *w = s->wish;
    bool limited = w->memory_bytes > 0;
    int32_t layers = 1;
    if (limited)
        SBP_TRY(count_layers(s, &layers));
    for (int offload = 0; offload < 2; offload++) {
        if ((offload == 1 &&
             (w->offload == SBP_OFFLOAD_OFF ||
              (w->offload == SBP_OFFLOAD_AUTO && (!limited || s->pl.base->target.shared_memory)))) ||
            (offload == 0 && w->offload == SBP_OFFLOAD_ON) ||
            (offload == 1 && !s->pl.base->target.has_copy_queue))
            continue;
        for (int save = 0; save < (w->save_mode == SBP_SAVE_AUTO && limited ? 3 : 1); save++)
            for (int64_t g = 1; g <= 4; g *= 2) {
                sbp_schedule_options o = {.segment = w->segment != SBP_AUTO ? w->segment : g,
                                          .offload = offload == 1};
                if (g > 1 && (w->segment != SBP_AUTO || !limited || g > layers))
                    break;
                if (w->save_mode == SBP_SAVE_GIVEN) {
                    o.save_all = w->save_all;
                    o.saved = w->saved;
                    o.saved_count = w->saved_count;
                } else if (save == 1) {
                    o.saved = attention_set;
                    o.saved_count = 1;
                } else {
                    o.save_all = save == 2;
                }
                SBP_TRY(try_checkpoints(s, o, layers));
            }
    }
    return SBP_OK;
}

static sbp_status refuse(const search *s) {
    const sbp_wish *w = s->wish;
    const sbp_plan_estimate *e = &s->smallest;
    int64_t device = needed_bytes(&s->pl.base->target, e);
    char need[32], have[32], over[32], host[32];
    sbp_format_bytes(need, sizeof need, (double)device);
    sbp_format_bytes(have, sizeof have, (double)w->memory_bytes);
    sbp_format_bytes(over, sizeof over, (double)(device - w->memory_bytes));
    sbp_format_bytes(host, sizeof host, (double)e->host_bytes);
    if (w->memory_bytes == 0 || device <= w->memory_bytes)
        return sbp_fail(s->pl.diag, SBP_MACHINE,
                        "offloading needs %s of host memory; --host-memory allows less", host);
    return sbp_fail(
        s->pl.diag, SBP_MACHINE,
        "the plan needs %s, --memory is %s: %s too much. This is the least of all settings that were allowed "
        "(%lld rows, chunk %lld, segment %lld, checkpoint every %lld%s); %s",
        need, have, over, (long long)e->t_max, (long long)e->schedule.chunk, (long long)e->schedule.segment,
        (long long)e->schedule.checkpoint_every, e->schedule.offload ? ", offloaded" : "",
        s->longest ? "parameters, gradients and optimizer states alone are too large"
                   : "a shorter --seq-len, --offload host, --optimizer sgd or --freeze would help");
}

sbp_status sbp_planner_choose(const sbp_pipeline *pipeline, const sbp_wish *wish, sbp_plan_estimate *out) {
    if (wish->t_max == SBP_AUTO && wish->memory_bytes == 0)
        return sbp_fail(pipeline->diag, SBP_USAGE,
                        "--seq-len max needs --memory: the longest sequence depends on it");
    search s = {.pl = {.base = pipeline, .arena = pipeline->arena, .diag = pipeline->diag},
                .wish = wish,
                .longest = wish->t_max == SBP_AUTO};
    for (s.quarters = 4; s.quarters >= 1 && !s.found; s.quarters /= 2)
        SBP_TRY(try_all(&s));
    if (!s.found)
        return refuse(&s);
    SBP_TRY(refine_chunks(&s));
    *out = s.best;
    return SBP_OK;
}

/* Chunks of the program for t rows: one that held all rows still does. */
static int64_t scaled_chunk(const sbp_program *program, int64_t chunk, int64_t t) {
    return chunk >= program->t_max ? t : clamp_chunk(chunk, t);
}

typedef struct sized {
    const sbp_program *program;
    const sbp_liveness *live;
    const sbp_target_info *target;
    sbp_diag *diag;
    sbp_arena *arena;
    int64_t t, bytes[SBP_SPACE_COUNT];
} sized;

static sbp_status pack_sized(void *user) {
    sized *s = user;
    sbp_program *copy =
        sbp_memory_resize(s->arena, s->program, s->t, scaled_chunk(s->program, s->program->chunk, s->t),
                          scaled_chunk(s->program, s->program->head_chunk, s->t));
    SBP_TRY(sbp_memory_pack(s->arena, s->diag, copy, s->live, s->target));
    memcpy(s->bytes, copy->arena_bytes, sizeof s->bytes);
    return SBP_OK;
}

static sbp_status bytes_at(sized *s, int64_t t) {
    s->t = t;
    s->arena = sbp_arena_create();
    if (!s->arena)
        return sbp_fail(s->diag, SBP_MACHINE, "out of memory");
    sbp_status status = sbp_guard(s->arena, s->diag, pack_sized, s);
    sbp_arena_destroy(s->arena);
    return status;
}

sbp_status sbp_planner_longest(sbp_arena *arena, sbp_diag *diag, const sbp_program *program,
                               const sbp_target_info *target, int64_t device_bytes, int64_t host_bytes,
                               int64_t *out) {
    sbp_liveness live;
    sbp_memory_liveness(arena, program, &live);
    sized s = {.program = program, .live = &live, .target = target, .diag = diag};
    int64_t low = 0, high = (int64_t)1 << 32;
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        SBP_TRY(bytes_at(&s, middle));
        bool ok = s.bytes[SBP_DEVICE] <= device_bytes && s.bytes[SBP_HOST] <= host_bytes;
        *(ok ? &low : &high) = middle;
    }
    *out = low;
    return SBP_OK;
}

sbp_status sbp_planner_bytes_per_token(sbp_arena *arena, sbp_diag *diag, const sbp_program *program,
                                       const sbp_target_info *target, double *device, double *host) {
    sbp_liveness live;
    sbp_memory_liveness(arena, program, &live);
    sized s = {.program = program, .live = &live, .target = target, .diag = diag};
    int64_t t = (int64_t)1 << 24, at_t[SBP_SPACE_COUNT];
    SBP_TRY(bytes_at(&s, t));
    memcpy(at_t, s.bytes, sizeof at_t);
    SBP_TRY(bytes_at(&s, 2 * t));
    *device = (double)(s.bytes[SBP_DEVICE] - at_t[SBP_DEVICE]) / (double)t;
    *host = (double)(s.bytes[SBP_HOST] - at_t[SBP_HOST]) / (double)t;
    return SBP_OK;
}
