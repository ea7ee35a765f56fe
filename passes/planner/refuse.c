/* refuse.c: why nothing fits, and what would: each remedy is tried before it is named. */
#include "passes/planner/search.h"

#include <stdio.h>
#include <string.h>

#include "passes/optimizers/update.h"

/* Attempts at another wish or with other options, under the same limit. */
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
static bool would_fit(const sbp_search *s, const sbp_pipeline *base, const sbp_wish *wish, bool all,
                      sbp_plan_estimate *out) {
    sbp_pipeline p = *base;
    p.diag = sbp_diag_create();
    if (!p.diag)
        return false;
    attempt a = {.search = {.pl = {.base = &p, .arena = s->pl.arena, .diag = p.diag, .tried = s->pl.tried},
                            .wish = wish,
                            .gathered = wish->gathered > 0 ? wish->gathered : 0,
                            .longest = wish->t_max == SBP_AUTO},
                 .all = all,
                 .schedule = least(s)->schedule};
    sbp_status status = sbp_guard(s->pl.arena, p.diag, run_attempt, &a);
    sbp_evaluator_end(&a.search.pl);
    sbp_diag_destroy(p.diag);
    *out = a.search.best;
    return status == SBP_OK && a.search.found;
}

/* how: "with", "if you drop". */
static void add_remedy_of(const sbp_search *s, const char *how, const char *option,
                          const sbp_plan_estimate *e, sbp_text *out) {
    char size[32];
    int64_t bytes = lacks_host(s) ? e->host_bytes : sbp_search_needed_bytes(s, e);
    sbp_text_add(out, "%s%s %s (%s)", out->length > 0 ? ", or " : "", how, option,
                 sbp_format_bytes(size, sizeof size, (double)bytes));
}

static void add_remedy(const sbp_search *s, const char *option, const sbp_plan_estimate *e, sbp_text *out) {
    add_remedy_of(s, "with", option, e, out);
}

/* The options that fix the schedule, as they were given: "--chunk 64 --offload none". */
static const char *given_schedule(const sbp_search *s) {
    const sbp_wish *w = s->wish;
    const struct {
        const char *name;
        int64_t value;
    } numbers[] = {{"chunk", w->chunk},
                   {"head-chunk", w->head_chunk},
                   {"segment", w->segment},
                   {"checkpoint-every", w->checkpoint_every}};
    sbp_text out;
    sbp_text_init(&out, s->pl.arena);
    for (int i = 0; i < SBP_COUNT(numbers); i++)
        if (numbers[i].value != SBP_AUTO)
            sbp_text_add(&out, "%s--%s %lld", out.length > 0 ? " " : "", numbers[i].name,
                         (long long)numbers[i].value);
    if (w->save_mode != SBP_SAVE_AUTO)
        sbp_text_add(&out, "%s--save%s", out.length > 0 ? " " : "", w->saved_count == 0 ? " none" : "");
    if (w->offload == SBP_OFFLOAD_OFF && !s->pl.base->target.shared_memory)
        sbp_text_add(&out, "%s--offload none", out.length > 0 ? " " : "");
    return out.data;
}

static long long all_rows(const sbp_search *s, int64_t t) {
    int64_t together = s->pl.base->options.context;
    return (long long)(t * (together > 1 ? together : 1));
}

/* The fewest ranks that could have each micro-batch together, where there are more. */
static void try_context(const sbp_search *s, sbp_text *out) {
    sbp_pipeline other = *s->pl.base;
    int64_t ranks = other.options.ranks, now = other.options.context > 1 ? other.options.context : 1;
    sbp_wish w = *s->wish;
    sbp_plan_estimate e;
    for (int64_t together = now + 1; !s->longest && together <= ranks; together++) {
        if (ranks % together != 0)
            continue;
        other.options.context = together;
        w.t_max = sbp_ceil_div(all_rows(s, s->wish->t_max), together);
        if (would_fit(s, &other, &w, true, &e)) {
            add_remedy(s, sbp_arena_printf(s->pl.arena, "--context-parallel %lld", (long long)together), &e,
                       out);
            return;
        }
    }
}

/* An update as soon as a gradient is known: there is no place for gradients. */
static void try_step(const sbp_search *s, sbp_text *out) {
    sbp_pipeline other = *s->pl.base;
    sbp_plan_estimate e;
    if (other.options.step || other.options.optimizer == SBP_OPTIMIZER_NONE)
        return;
    other.options.step = true;
    if (would_fit(s, &other, s->wish, false, &e))
        add_remedy(s, "--clip none --accumulate 1", &e, out);
}

/* Changes that fit, each tried. */
static void list_remedies(const sbp_search *s, sbp_text *out) {
    const sbp_pipeline *base = s->pl.base;
    sbp_pipeline other = *base;
    sbp_wish w = *s->wish;
    sbp_plan_estimate e;
    try_step(s, out);
    w.chunk = w.head_chunk = w.segment = w.checkpoint_every = SBP_AUTO;
    w.whole = false;
    w.save_mode = SBP_SAVE_AUTO;
    w.offload = SBP_OFFLOAD_AUTO;
    bool fixed = s->wish->whole || s->wish->chunk != SBP_AUTO || s->wish->head_chunk != SBP_AUTO ||
                 s->wish->segment != SBP_AUTO || s->wish->checkpoint_every != SBP_AUTO ||
                 s->wish->save_mode != SBP_SAVE_AUTO ||
                 (s->wish->offload == SBP_OFFLOAD_OFF && !base->target.shared_memory);
    if (fixed && would_fit(s, base, &w, true, &e))
        add_remedy_of(s, s->wish->whole ? "with" : "if you drop",
                      s->wish->whole ? "--backward stream" : given_schedule(s), &e, out);
    w = *s->wish;
    w.t_max = SBP_AUTO;
    w.save_mode = SBP_SAVE_GIVEN; /* the schedule is given as a whole */
    if (!s->longest && would_fit(s, base, &w, false, &e))
        add_remedy(s, sbp_arena_printf(s->pl.arena, "--seq-len %lld", all_rows(s, e.t_max)), &e, out);
    w.t_max = s->wish->t_max;
    try_context(s, out);
    static const sbp_item_class on_disk[] = {SBP_ITEM_STATE, SBP_ITEM_GRAD, SBP_ITEM_PARAM};
    w.offload = SBP_OFFLOAD_GIVEN;
    for (int i = 0;
         i < SBP_COUNT(on_disk) && s->wish->offload == SBP_OFFLOAD_AUTO && base->target.has_copy_queue; i++) {
        sbp_schedule_options named = {0};
        w.homes[on_disk[i]] = SBP_DISK;
        memcpy(named.homes, w.homes, sizeof named.homes);
        if (would_fit(s, base, &w, true, &e)) {
            add_remedy(s, sbp_planner_homes(s->pl.arena, &named, "--offload "), &e, out);
            break;
        }
    }
    w = *s->wish;
    static const struct {
        sbp_dtype dtype;
        const char *option;
    } smaller[] = {{SBP_BF16, "--state-dtype bf16"}, {SBP_D8, "--state-dtype int8"}};
    for (int i = 0; i < SBP_COUNT(smaller) && base->options.state_dtype == SBP_F32; i++) {
        other = *base;
        other.options.state_dtype = smaller[i].dtype;
        if (sbp_update_keeps_states(base->module, &base->options) && would_fit(s, &other, &w, false, &e)) {
            add_remedy(s, smaller[i].option, &e, out);
            break;
        }
    }
    other = *base;
    other.options.optimizer = SBP_OPTIMIZER_SGD;
    if (sbp_update_keeps_states(base->module, &base->options) && would_fit(s, &other, &w, false, &e))
        add_remedy(s, "--optimizer sgd", &e, out);
}

/* "It fits with ..., or ..." */
static const char *remedies_of(const sbp_search *s, const char *without) {
    sbp_text remedies;
    sbp_text_init(&remedies, s->pl.arena);
    if (!s->wish->terse)
        list_remedies(s, &remedies);
    return remedies.length > 0 ? sbp_arena_printf(s->pl.arena, "It fits %s", remedies.data) : without;
}

static sbp_status refuse_host(const sbp_search *s, const char *each) {
    char need[32], have[32];
    sbp_format_bytes(need, sizeof need, (double)s->sparest.host_bytes);
    sbp_format_bytes(have, sizeof have, (double)s->wish->host_memory_bytes);
    const char *remedies = remedies_of(s, "");
    return sbp_fail(s->pl.diag, SBP_MACHINE,
                    "does not fit: offloading needs %s of host memory, --host-memory is %s%s%s%s", need, have,
                    each, *remedies ? ". " : "", remedies);
}

sbp_status sbp_search_refuse(const sbp_search *s) {
    const sbp_wish *w = s->wish;
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
        return refuse_host(s, each);
    const char *remedies =
        remedies_of(s, "Even one row does not fit: parameters, gradients and optimizer states are "
                       "too large; --freeze makes the last two smaller");
    return sbp_fail(
        s->pl.diag, SBP_MACHINE,
        "does not fit: the plan needs %s, %s is %s%s: %s too much; no allowed setting uses less memory "
        "(%lld rows, chunk %lld, segment %lld, checkpoint every %lld%s). %s",
        need, w->memory_name ? w->memory_name : "--memory", have, target->shared_memory ? each : "", over,
        all_rows(s, e->t_max), (long long)e->schedule.chunk, (long long)e->schedule.segment,
        (long long)e->schedule.checkpoint_every,
        sbp_planner_homes(s->pl.arena, &e->schedule, ", offloaded: "), remedies);
}
