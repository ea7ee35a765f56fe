/* refuse.c: why nothing fits, and what would: each remedy is tried before it is named. All of them together
 * may evaluate SBP_TRIES_FOR_REMEDIES plans; a search takes at most half of what is left, so that one remedy
 * does not keep the others from being tried. */
#include "passes/planner/search.h"

#include <stdio.h>
#include <string.h>

#include "ir/target/footprint.h"
#include "passes/optimizers/update.h"

/* A refusal while its remedies are looked for. */
typedef struct refusal {
    const sbp_search *s;
    int64_t tries; /* that are left */
    bool ended;    /* some attempt wanted more */
    sbp_text remedies;
    sbp_remedy *list;
    int32_t count, capacity;
    sbp_pipeline base; /* with which the last attempt was made */
} refusal;

/* Attempts at another request or with other options, under the same limit. */
typedef struct attempt {
    sbp_search search;
    bool all; /* a whole search, or this one schedule */
    sbp_schedule_options schedule;
} attempt;

static sbp_status run_attempt(void *user) {
    attempt *a = user;
    if (a->all)
        return sbp_search_plans(&a->search);
    return sbp_search_try(&a->search, &a->schedule);
}

/* Nothing is refused for want of the device's memory, only of the host's. */
static bool lacks_host(const sbp_search *s) {
    return s->sparest.t_max > 0;
}

/* What needs least of what there is too little of. */
static const sbp_plan_estimate *least(const sbp_search *s) {
    return lacks_host(s) ? &s->sparest : &s->smallest;
}

/* Whether it fits; if so *out is what was found. Its messages are dropped: a failed attempt is no remedy. */
static bool would_fit(refusal *r, const sbp_pipeline *base, const sbp_schedule_request *request, bool all,
                      sbp_plan_estimate *out) {
    const sbp_search *s = r->s;
    sbp_pipeline p = *base;
    int64_t tries = all ? (r->tries + 1) / 2 : r->tries;
    r->ended |= tries == 0;
    p.diag = tries > 0 ? sbp_diag_create() : NULL;
    if (!p.diag)
        return false;
    attempt a = {.search = {.pl = {.base = &p,
                                   .arena = s->pl.arena,
                                   .diag = p.diag,
                                   .tried = s->pl.tried,
                                   .tries_most = tries},
                            .request = request,
                            .longest = request->t_max == SBP_AUTO},
                 .all = all,
                 .schedule = least(s)->schedule};
    sbp_status status = sbp_guard(s->pl.arena, p.diag, run_attempt, &a);
    sbp_evaluator_end(&a.search.pl);
    sbp_diag_destroy(p.diag);
    r->tries -= a.search.pl.tries;
    r->ended |= a.search.pl.ended;
    *out = a.search.best;
    r->base = *base;
    return status == SBP_OK && a.search.found;
}

/* What a remedy takes on the device: of the process, what its own program makes of it. */
static int64_t needed_bytes(const refusal *r, const sbp_plan_estimate *e) {
    const sbp_schedule_request *w = r->s->request;
    int64_t bytes = sbp_search_needed_bytes(r->s, e);
    sbp_pipeline p = r->base;
    sbp_footprint process;
    p.diag = w->process ? sbp_diag_create() : NULL;
    if (p.diag && sbp_planner_footprint(&p, w->process, e->t_max, &e->schedule, &process) == SBP_OK)
        bytes += process.bytes - w->process_bytes;
    sbp_diag_destroy(p.diag);
    return bytes;
}

static const char *const plain_changes[SBP_CHANGE_COUNT] = {
    [SBP_CHANGE_STEP] = "updates as soon as a gradient is known",
    [SBP_CHANGE_STREAM] = "chunks",
    [SBP_CHANGE_FREE] = "what the schedule was given",
    [SBP_CHANGE_ROWS] = "rows",
    [SBP_CHANGE_CONTEXT] = "ranks that share each micro-batch",
    [SBP_CHANGE_PLACEMENT] = "offloading to disk",
    [SBP_CHANGE_STATE_DTYPE] = "smaller optimizer states",
    [SBP_CHANGE_OPTIMIZER] = "sgd",
    [SBP_CHANGE_FREEZE] = "training fewer parameters",
};

const char *sbp_planner_spell(sbp_arena *arena, const sbp_schedule_request *request,
                              const sbp_remedy *remedy) {
    if (request->speller)
        return request->speller->spell(arena, request, remedy);
    const char *name = plain_changes[remedy->change];
    return remedy->number > 0 ? sbp_arena_printf(arena, "%lld %s", (long long)remedy->number, name) : name;
}

/* `what` is a change by which e fits. */
static void add_remedy(refusal *r, const sbp_remedy *what, const sbp_plan_estimate *e) {
    sbp_arena *arena = r->s->pl.arena;
    char size[32];
    sbp_remedy remedy = *what;
    bool dropped = what->change == SBP_CHANGE_FREE;
    sbp_schedule_request given = *r->s->request;
    if (r->s->pl.base->target.shared_memory && given.offload == SBP_OFFLOAD_OFF)
        given.offload = SBP_OFFLOAD_AUTO; /* there is no other place: nobody needs to drop it */
    const char *text = sbp_planner_spell(arena, &given, what);
    remedy.text = dropped ? sbp_arena_printf(arena, "without %s", text) : text;
    remedy.t_max = e->t_max;
    remedy.device_bytes = needed_bytes(r, e);
    remedy.host_bytes = e->host_bytes;
    remedy.seconds = e->seconds;
    int64_t bytes = lacks_host(r->s) ? remedy.host_bytes : remedy.device_bytes;
    sbp_text_add(&r->remedies, "%s%s %s (%s)", r->remedies.length > 0 ? ", or " : "",
                 dropped ? "if you drop" : "with", text, sbp_format_bytes(size, sizeof size, (double)bytes));
    SBP_PUSH(arena, r->list, r->count, r->capacity, remedy);
}

static long long all_rows(const sbp_search *s, int64_t t) {
    int64_t context = s->pl.base->options.context;
    return (long long)(t * (context > 1 ? context : 1));
}

/* The fewest ranks that could share each micro-batch, where there are more. */
static void try_context(refusal *r) {
    const sbp_search *s = r->s;
    sbp_pipeline other = *s->pl.base;
    int64_t ranks = other.options.ranks, now = other.options.context > 1 ? other.options.context : 1;
    sbp_schedule_request w = *s->request;
    sbp_plan_estimate e;
    for (int64_t context = now + 1; !s->longest && context <= ranks; context++) {
        if (ranks % context != 0)
            continue;
        other.options.context = context;
        w.t_max = sbp_ceil_div(all_rows(s, s->request->t_max), context);
        if (would_fit(r, &other, &w, true, &e)) {
            add_remedy(r, &(sbp_remedy){.change = SBP_CHANGE_CONTEXT, .number = context}, &e);
            return;
        }
    }
}

/* An update as soon as a gradient is known: there is no place for gradients. */
static void try_step(refusal *r) {
    sbp_pipeline other = *r->s->pl.base;
    sbp_plan_estimate e;
    if (other.options.step || other.options.optimizer == SBP_OPTIMIZER_NONE)
        return;
    other.options.step = true;
    if (would_fit(r, &other, r->s->request, false, &e))
        add_remedy(r, &(sbp_remedy){.change = SBP_CHANGE_STEP}, &e);
}

/* Changes that fit, each tried. */
static void list_remedies(refusal *r) {
    const sbp_search *s = r->s;
    const sbp_pipeline *base = s->pl.base;
    sbp_pipeline other = *base;
    sbp_schedule_request w = *s->request;
    sbp_plan_estimate e;
    try_step(r);
    w.chunk = w.head_chunk = w.segment = w.checkpoint_every = SBP_AUTO;
    w.whole = false;
    w.save_mode = SBP_SAVE_AUTO;
    w.offload = SBP_OFFLOAD_AUTO;
    bool fixed = s->request->whole || s->request->chunk != SBP_AUTO || s->request->head_chunk != SBP_AUTO ||
                 s->request->segment != SBP_AUTO || s->request->checkpoint_every != SBP_AUTO ||
                 s->request->save_mode != SBP_SAVE_AUTO ||
                 (s->request->offload == SBP_OFFLOAD_OFF && !base->target.shared_memory);
    if (fixed && would_fit(r, base, &w, true, &e))
        add_remedy(r, &(sbp_remedy){.change = s->request->whole ? SBP_CHANGE_STREAM : SBP_CHANGE_FREE}, &e);
    w = *s->request;
    w.t_max = SBP_AUTO;
    w.save_mode = SBP_SAVE_GIVEN; /* the schedule is given as a whole */
    if (!s->longest && would_fit(r, base, &w, false, &e))
        add_remedy(r, &(sbp_remedy){.change = SBP_CHANGE_ROWS, .number = all_rows(s, e.t_max)}, &e);
    w.t_max = s->request->t_max;
    try_context(r);
    static const sbp_tensor_class on_disk[] = {SBP_TENSOR_STATE, SBP_TENSOR_GRAD, SBP_TENSOR_PARAM};
    w.offload = SBP_OFFLOAD_GIVEN;
    for (int i = 0;
         i < SBP_COUNT(on_disk) && s->request->offload == SBP_OFFLOAD_AUTO && base->target.has_copy_queue;
         i++) {
        sbp_remedy away = {.change = SBP_CHANGE_PLACEMENT};
        w.placement[on_disk[i]] = SBP_DISK;
        memcpy(away.placement, w.placement, sizeof away.placement);
        if (would_fit(r, base, &w, true, &e)) {
            add_remedy(r, &away, &e);
            break;
        }
    }
    w = *s->request;
    static const sbp_dtype smaller[] = {SBP_BF16, SBP_D8};
    for (int i = 0; i < SBP_COUNT(smaller) && base->options.state_dtype == SBP_F32; i++) {
        other = *base;
        other.options.state_dtype = smaller[i];
        if (sbp_update_keeps_states(base->module, &base->options) && would_fit(r, &other, &w, false, &e)) {
            add_remedy(r, &(sbp_remedy){.change = SBP_CHANGE_STATE_DTYPE, .dtype = smaller[i]}, &e);
            break;
        }
    }
    other = *base;
    other.options.optimizer = SBP_OPTIMIZER_SGD;
    if (sbp_update_keeps_states(base->module, &base->options) && would_fit(r, &other, &w, false, &e))
        add_remedy(r, &(sbp_remedy){.change = SBP_CHANGE_OPTIMIZER}, &e);
}

/* "It fits with ..., or ..." */
static const char *remedies_of(const sbp_search *s, const char *without, sbp_plan_estimate *out) {
    int64_t most =
        s->request->tries_for_remedies > 0 ? s->request->tries_for_remedies : SBP_TRIES_FOR_REMEDIES;
    refusal r = {.s = s, .tries = most};
    sbp_text_init(&r.remedies, s->pl.arena);
    if (!s->request->terse)
        list_remedies(&r);
    out->tried_for_remedies = most - r.tries;
    out->remedies = r.list;
    out->remedy_count = r.count;
    if (r.remedies.length > 0)
        return sbp_arena_printf(s->pl.arena, "It fits %s", r.remedies.data);
    return r.ended ? sbp_arena_printf(s->pl.arena, "None of %lld other plans that were tried fits",
                                      (long long)out->tried_for_remedies)
                   : without;
}

static sbp_status refuse_host(const sbp_search *s, const char *each, sbp_plan_estimate *out) {
    char need[32], have[32];
    sbp_format_bytes(need, sizeof need, (double)s->sparest.host_bytes);
    sbp_format_bytes(have, sizeof have, (double)s->request->host_memory_bytes);
    const char *remedies = remedies_of(s, "", out);
    return sbp_fail(s->pl.diag, SBP_MACHINE,
                    "does not fit: offloading needs %s of host memory, %s is %s%s%s%s", need,
                    s->request->speller ? s->request->speller->host_memory : "the limit", have, each,
                    *remedies ? ". " : "", remedies);
}

sbp_status sbp_search_refuse(const sbp_search *s, sbp_plan_estimate *out) {
    const sbp_schedule_request *w = s->request;
    const sbp_plan_estimate *e = &s->smallest;
    const sbp_target_info *target = &s->pl.base->target;
    int64_t device = sbp_search_needed_bytes(s, e);
    if (w->refused_process_bytes > 0)
        device += w->refused_process_bytes - w->process_bytes;
    char need[32], have[32], over[32], each[60] = "";
    if (w->sharers > 1)
        snprintf(each, sizeof each, " for each of the %lld ranks of a host", (long long)w->sharers);
    sbp_format_bytes(need, sizeof need, (double)device);
    sbp_format_bytes(have, sizeof have, (double)w->memory_bytes);
    sbp_format_bytes(over, sizeof over, (double)(device - w->memory_bytes));
    if (lacks_host(s))
        return refuse_host(s, each, out);
    const char *remedies = remedies_of(
        s,
        sbp_arena_printf(s->pl.arena,
                         "Even a single token does not fit beside parameters, gradients and optimizer "
                         "states; %s makes the last two smaller",
                         sbp_planner_spell(s->pl.arena, w, &(sbp_remedy){.change = SBP_CHANGE_FREEZE})),
        out);
    return sbp_fail(
        s->pl.diag, SBP_MACHINE,
        "does not fit: the plan needs %s, %s is %s%s: %s too much; no %s setting uses less memory "
        "(%lld tokens, chunk %lld, segment %lld, checkpoint every %lld%s). %s",
        need, w->speller ? w->speller->memory : "the limit", have, target->shared_memory ? each : "", over,
        s->pl.ended ? "tried" : "allowed", all_rows(s, e->t_max), (long long)e->schedule.chunk,
        (long long)e->schedule.segment, (long long)e->schedule.checkpoint_every,
        sbp_planner_placement(s->pl.arena, &e->schedule, ", offloaded: "), remedies);
}
