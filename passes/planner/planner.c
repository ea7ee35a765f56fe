/* planner.c: candidates, their bytes and time, and the choice among them. */
#include "passes/planner/search.h"

#include <string.h>

#include "passes/optimizers/update.h"

/* ---- candidates -------------------------------------------------------------------------------------- */

int64_t sbp_search_needed_bytes(const sbp_search *s, const sbp_plan_estimate *e) {
    const sbp_target_info *target = &s->pl.base->target;
    return e->device_bytes + s->request->process_bytes + (target->shared_memory ? e->host_bytes : 0);
}

static bool fits_device(const sbp_search *s, const sbp_plan_estimate *e) {
    int64_t most = s->request->memory_bytes;
    return most == 0 || sbp_search_needed_bytes(s, e) <= most;
}

static bool fits(const sbp_search *s, const sbp_plan_estimate *e) {
    int64_t most = s->request->host_memory_bytes;
    return fits_device(s, e) && (most == 0 || e->host_bytes <= most);
}

/* Chunks for a micro-batch of t rows; never larger than it. */
static int64_t clamp_chunk(int64_t chunk, int64_t t) {
    return chunk < 1 ? 1 : chunk > t ? t : chunk;
}

static sbp_status try_at(sbp_search *s, sbp_schedule_options o, int64_t t, bool timed, sbp_plan_estimate *e) {
    o.chunk = clamp_chunk(o.chunk, t);
    o.head_chunk = clamp_chunk(o.head_chunk, t);
    SBP_TRY(sbp_evaluator_run(&s->pl, t, &o, timed, e));
    if (s->smallest.device_bytes == 0 ||
        sbp_search_needed_bytes(s, e) < sbp_search_needed_bytes(s, &s->smallest))
        s->smallest = *e;
    if ((s->longest || t == s->request->t_max) && fits_device(s, e) &&
        (s->sparest.t_max == 0 || e->host_bytes < s->sparest.host_bytes))
        s->sparest = *e;
    return SBP_OK;
}

static bool better(const sbp_search *s, const sbp_plan_estimate *e) {
    if (!s->found)
        return true;
    if (s->longest && e->t_max != s->best.t_max)
        return e->t_max > s->best.t_max;
    return e->seconds < s->best.seconds * 0.999; /* earlier candidates win ties */
}

/* What may live away from the device, in the order in which ties are decided: the less the better. */
static const struct {
    bool checkpoints, states, gradients, params;
} placements_tried[SBP_SEARCH_PLACEMENTS] = {
    {false, false, false, false}, {true, false, false, false}, {false, true, false, false},
    {true, true, false, false},   {true, true, true, false},   {true, true, true, true},
};

/* The number of the choice that a schedule was made with; what was asked for is choice 0. */
static int32_t placement_number(const sbp_search *s, const sbp_schedule_options *o) {
    int32_t i = s->request->offload == SBP_OFFLOAD_GIVEN ? 0 : SBP_SEARCH_PLACEMENTS - 1;
    for (; i > 0; i--)
        if (placements_tried[i].checkpoints == (o->placement[SBP_TENSOR_CHECKPOINT] == SBP_HOST) &&
            placements_tried[i].states == (o->placement[SBP_TENSOR_STATE] == SBP_HOST) &&
            placements_tried[i].gradients == (o->placement[SBP_TENSOR_GRAD] == SBP_HOST) &&
            placements_tried[i].params == (o->placement[SBP_TENSOR_PARAM] == SBP_HOST))
            break;
    return i;
}

static void consider(sbp_search *s, const sbp_plan_estimate *e) {
    if (!fits(s, e))
        return;
    sbp_plan_estimate *own = &s->best_of[placement_number(s, &e->schedule)];
    if (own->t_max == 0 || e->seconds < own->seconds)
        *own = *e;
    if (!better(s, e))
        return;
    s->best = *e;
    s->found = true;
}

/* The longest t at which the schedule fits; *fitting: the longest that was found to, as far as this comes. */
static sbp_status find_longest(sbp_search *s, const sbp_schedule_options *o, sbp_plan_estimate *fitting) {
    sbp_plan_estimate e;
    int64_t context = s->pl.base->options.context; /* 0: as 1 */
    int64_t low = 0, high = 1, most = SBP_MOST_ROWS / (context > 1 ? context : 1);
    for (; low < most; high = high < most - high ? 2 * high : most) {
        SBP_TRY(try_at(s, *o, high, false, &e));
        if (!fits(s, &e))
            break;
        low = high;
        *fitting = e;
    }
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        SBP_TRY(try_at(s, *o, middle, false, &e));
        *(fits(s, &e) ? &low : &high) = middle;
        if (low == middle)
            *fitting = e;
    }
    return low > 0 ? try_at(s, *o, low, true, fitting) : SBP_OK;
}

static sbp_status try_longest(sbp_search *s, const sbp_schedule_options *o) {
    sbp_plan_estimate e = {.t_max = 0};
    sbp_status status = find_longest(s, o, &e);
    if ((status == SBP_OK || s->pl.ended) && e.t_max > 0)
        consider(s, &e);
    return status;
}

/* ---- the saved set ----------------------------------------------------------------------------------- */

/* What is left of the limits for values that are kept. */
typedef struct room {
    int64_t device, host;
} room;

static room room_left(const sbp_search *s, const sbp_plan_estimate *e) {
    const sbp_schedule_request *w = s->request;
    room r = {.device = w->memory_bytes > 0 ? w->memory_bytes - sbp_search_needed_bytes(s, e) : INT64_MAX / 4,
              .host = w->host_memory_bytes > 0 ? w->host_memory_bytes - e->host_bytes : INT64_MAX / 4};
    return r;
}

/* Takes a step's bytes from the room when they are there. */
static bool claim(const sbp_search *s, const sbp_schedule_options *o, const sbp_recompute_saving *step,
                  room *r) {
    double t = (double)s->request->t_max, all = (double)step->row_bytes * t,
           staging = (double)step->call_row_bytes * t * 2;
    bool away = o->placement[SBP_TENSOR_SAVED] != SBP_DEVICE;
    double device = away ? staging + (s->pl.base->target.shared_memory ? all : 0) : all,
           host = o->placement[SBP_TENSOR_SAVED] == SBP_HOST ? all : 0;
    if (device > (double)r->device || host > (double)r->host)
        return false;
    r->device -= (int64_t)device;
    r->host -= (int64_t)host;
    return true;
}

static void name_saved(sbp_search *s, const sbp_recompute_saving *steps, const bool *claimed, int32_t count,
                       sbp_schedule_options *o) {
    const char **names = NULL;
    int32_t n = 0, capacity = 0;
    for (int32_t i = 0; i < count; i++)
        for (int32_t k = 0; claimed[i] && k < steps[i].name_count; k++)
            SBP_PUSH(s->pl.arena, names, n, capacity, steps[i].names[k]);
    o->saved = names;
    o->saved_count = n;
}

/* Leaves out names that others made unneeded: nothing is kept under them. */
static sbp_status drop_unneeded(sbp_search *s, sbp_plan_estimate *e) {
    sbp_schedule_options *o = &e->schedule;
    sbp_skeleton *made;
    SBP_TRY(sbp_evaluator_skeleton(&s->pl, o, e->t_max, &made));
    const char **names = SBP_NEW_ARRAY(s->pl.arena, const char *, o->saved_count + 1);
    int32_t n = 0;
    for (int32_t i = 0; i < o->saved_count; i++)
        if (sbp_saved_name_exists(&made->pipeline, o->saved[i]))
            names[n++] = o->saved[i];
    o->saved = names;
    o->saved_count = n;
    return SBP_OK;
}

/* The real program may take as little as this fraction of the estimate made from steps. */
#define ROUGH 0.97

/* A choice of steps for the room that a schedule leaves. */
typedef struct filling {
    sbp_skeleton *base;
    int32_t *order; /* numbers of all steps, in the order in which they claimed their room */
    bool *claimed;
    double seconds; /* of a step of training with them, by the steps' own estimates */
} filling;

/* Steps too large for what is left are passed over. Those that buy most time per byte come first, or those
 * that buy most time at all: a large one may fill the room better than several small ones that leave no place
 * for it. `bare` is the schedule's estimate with nothing saved. */
static sbp_status claim_steps(sbp_search *s, const sbp_plan_estimate *bare, bool largest_first,
                              filling *out) {
    const sbp_schedule_options *o = &bare->schedule;
    sbp_skeleton *base;
    SBP_TRY(sbp_evaluator_skeleton(&s->pl, o, bare->t_max, &base));
    if (base->saving_rows != bare->t_max) {
        sbp_recompute_savings(&base->pipeline, bare->t_max, &base->savings, &base->saving_count);
        base->saving_rows = bare->t_max;
    }
    *out = (filling){.base = base,
                     .order = SBP_NEW_ARRAY(s->pl.arena, int32_t, base->saving_count + 1),
                     .claimed = SBP_NEW_ARRAY(s->pl.arena, bool, base->saving_count + 1),
                     .seconds = bare->seconds};
    for (int32_t i = 0; i < base->saving_count; i++) {
        int32_t place = i;
        for (; largest_first && place > 0 &&
               base->savings[out->order[place - 1]].seconds < base->savings[i].seconds * (1 - 1e-9);
             place--)
            out->order[place] = out->order[place - 1];
        out->order[place] = i;
    }
    room left = room_left(s, bare);
    int64_t groups = sbp_ceil_div(base->layers, o->checkpoint_every);
    double again = (double)((groups - 1) * (o->checkpoint_every - 1)) / (double)base->layers;
    for (int32_t i = 0; i < base->saving_count; i++) {
        const sbp_recompute_saving *step = &base->savings[out->order[i]];
        out->claimed[out->order[i]] = claim(s, o, step, &left);
        if (out->claimed[out->order[i]])
            out->seconds -= step->seconds * (1 + again);
    }
    return SBP_OK;
}

/* Fills the room that a schedule leaves. Sizes of steps come from the graph, so that what was chosen is
 * measured, and gives way from its end until it fits. */
static sbp_status fill_in_order(sbp_search *s, const sbp_plan_estimate *bare, bool largest_first) {
    sbp_schedule_options o = bare->schedule;
    filling f;
    SBP_TRY(claim_steps(s, bare, largest_first, &f));
    if (s->found && f.seconds * ROUGH > s->best.seconds)
        return SBP_OK;
    for (int32_t last = f.base->saving_count - 1; last >= 0; last--) {
        if (!f.claimed[f.order[last]])
            continue;
        sbp_plan_estimate e;
        name_saved(s, f.base->savings, f.claimed, f.base->saving_count, &o);
        SBP_TRY(try_at(s, o, bare->t_max, true, &e));
        if (fits(s, &e)) {
            SBP_TRY(drop_unneeded(s, &e));
            consider(s, &e);
            return SBP_OK;
        }
        f.claimed[f.order[last]] = false;
    }
    return SBP_OK;
}

static sbp_status fill_room(sbp_search *s, const sbp_plan_estimate *bare) {
    SBP_TRY(fill_in_order(s, bare, false));
    return fill_in_order(s, bare, true);
}

static sbp_status try_schedule(sbp_search *s, const sbp_schedule_options *o) {
    if (s->longest)
        return try_longest(s, o);
    sbp_plan_estimate e;
    SBP_TRY(try_at(s, *o, s->request->t_max, true, &e));
    consider(s, &e);
    if (s->request->save_mode == SBP_SAVE_AUTO && s->request->memory_bytes > 0 && fits(s, &e))
        SBP_TRY(fill_room(s, &e));
    return SBP_OK;
}

/* That there are no tries left is no failure: what was found is found. */
static sbp_status as_far_as_it_came(const sbp_search *s, sbp_status status) {
    return s->pl.ended ? SBP_OK : status;
}

sbp_status sbp_search_try(sbp_search *s, const sbp_schedule_options *o) {
    return as_far_as_it_came(s, try_schedule(s, o));
}

/* ---- structures and chunks --------------------------------------------------------------------------- */

static int64_t pick(int64_t asked, bool whole, int64_t usual, int64_t quarters) {
    if (asked != SBP_AUTO)
        return asked;
    return whole ? (int64_t)1 << 40 : usual * quarters / 4; /* clamped to the rows there are */
}

static int64_t most_rows(const sbp_target_info *t, int64_t usual) {
    return t->chunk_most > usual ? t->chunk_most : usual;
}

enum { CHUNK_STEPS = 5 }; /* a quarter of what the target likes, half of it, .. four times as much */

/* Chunks of step i, of the head of step j; false: more than the target has a use for. */
static bool pick_chunks(const sbp_search *s, int i, int j, sbp_schedule_options *o) {
    const sbp_schedule_request *w = s->request;
    const sbp_target_info *t = &s->pl.base->target;
    o->chunk = pick(w->chunk, w->whole, t->chunk, INT64_C(1) << i);
    o->head_chunk = pick(w->head_chunk, w->whole, t->head_chunk, INT64_C(1) << j);
    return (w->chunk != SBP_AUTO || o->chunk <= most_rows(t, t->chunk)) &&
           (w->head_chunk != SBP_AUTO || o->head_chunk <= most_rows(t, t->head_chunk));
}

static void pick_largest(const sbp_search *s, sbp_schedule_options *o) {
    int most = CHUNK_STEPS - 1;
    while (most > 0 && !pick_chunks(s, most, most, o))
        most--;
}

/* Whether a schedule that does not drop states keeps one for each chunk: then fewer, larger chunks may take
 * less memory. */
static bool has_states(const sbp_module *m) {
    for (int32_t f = 0; f < m->func_count; f++)
        for (int32_t i = 0; i < m->funcs[f]->op_count; i++)
            if (sbp_opcode_class(m->funcs[f]->ops[i].code) == SBP_CLASS_RECUR)
                return true;
    return false;
}

static sbp_status find_bounds(sbp_search *s, sbp_schedule_options o, sbp_bounds *out) {
    out->structure = o;
    (void)pick_chunks(s, 0, 0, &o);
    SBP_TRY(try_at(s, o, s->request->t_max, false, &out->small));
    bool keeps = s->request->chunk == SBP_AUTO && !o.drop_states && has_states(s->pl.base->module);
    for (int i = 1; i < CHUNK_STEPS && keeps; i++) {
        sbp_plan_estimate e;
        if (!pick_chunks(s, i, 0, &o))
            break;
        SBP_TRY(try_at(s, o, s->request->t_max, false, &e));
        if (e.device_bytes < out->small.device_bytes)
            out->small = e;
    }
    pick_largest(s, &o);
    return try_at(s, o, s->request->t_max, true, &out->large);
}

static const sbp_bounds *known_bounds(const sbp_search *s, const sbp_schedule_options *o) {
    for (int32_t i = 0; i < s->tried_count; i++) {
        const sbp_schedule_options *other = &s->tried[i].structure;
        if (other->segment == o->segment && other->checkpoint_every == o->checkpoint_every &&
            other->drop_states == o->drop_states && other->expert_pieces == o->expert_pieces &&
            sbp_same_placement(other, o))
            return &s->tried[i];
    }
    return NULL;
}

/* Whether chunks of other sizes could make a structure the best: with the memory of the smallest and the time
 * of the largest. */
static sbp_status has_hope(sbp_search *s, sbp_schedule_options o, bool *out) {
    sbp_bounds b;
    const sbp_bounds *known = known_bounds(s, &o);
    if (known)
        b = *known;
    else
        SBP_TRY(find_bounds(s, o, &b));
    *out = false;
    if (!fits(s, &b.small))
        return SBP_OK;
    pick_largest(s, &o);
    *out = b.large.seconds < s->best.seconds;
    if (s->request->save_mode != SBP_SAVE_AUTO)
        return SBP_OK;
    b.small.seconds = b.large.seconds; /* for what the steps leave of it */
    for (int largest_first = 0; !*out && largest_first <= 1; largest_first++) {
        filling f;
        sbp_plan_estimate large;
        SBP_TRY(claim_steps(s, &b.small, largest_first == 1, &f));
        if (f.seconds * ROUGH > s->best.seconds)
            continue;
        name_saved(s, f.base->savings, f.claimed, f.base->saving_count, &o);
        SBP_TRY(try_at(s, o, s->request->t_max, true, &large));
        *out = large.seconds < s->best.seconds;
    }
    return SBP_OK;
}

/* Tries one structure with every chunk size: memory that smaller chunks free can hold more saved values. */
static sbp_status refine_chunks(sbp_search *s, sbp_schedule_options o) {
    bool hope = true;
    if (!s->longest)
        SBP_TRY(has_hope(s, o, &hope));
    for (int i = 0; hope && i < (s->request->chunk == SBP_AUTO ? CHUNK_STEPS : 1); i++)
        for (int j = 0; j < (s->request->head_chunk == SBP_AUTO ? CHUNK_STEPS : 1); j++)
            if (pick_chunks(s, i, j, &o))
                SBP_TRY(try_schedule(s, &o));
    return SBP_OK;
}

/* Tries one structure with chunks of quarters/4 of the target's size, or with every size. */
static sbp_status try_chunks(sbp_search *s, int64_t quarters, sbp_schedule_options o) {
    const sbp_schedule_request *w = s->request;
    const sbp_target_info *t = &s->pl.base->target;
    if (quarters == SBP_ALL_SIZES)
        return refine_chunks(s, o);
    const sbp_bounds *known = known_bounds(s, &o);
    if (known && !fits(s, &known->small)) /* an earlier round has seen that no chunk is small enough */
        return SBP_OK;
    o.chunk = pick(w->chunk, w->whole, t->chunk, quarters);
    o.head_chunk = pick(w->head_chunk, w->whole, t->head_chunk, quarters);
    if (!known && quarters == 4 && !s->longest && !w->whole && w->memory_bytes > 0) {
        sbp_bounds b; /* while it is built */
        SBP_TRY(find_bounds(s, o, &b));
        SBP_PUSH(s->pl.arena, s->tried, s->tried_count, s->tried_capacity, b);
        if (!fits(s, &b.small))
            return SBP_OK;
    }
    return try_schedule(s, &o);
}

/* Without a limit: larger chunks as long as they cost no memory. */
static sbp_status grow_chunk(sbp_search *s) {
    const sbp_target_info *t = &s->pl.base->target;
    sbp_plan_estimate e;
    if (s->request->chunk != SBP_AUTO)
        return SBP_OK;
    for (int64_t chunk = s->best.schedule.chunk * 2;
         chunk <= most_rows(t, t->chunk) && s->best.schedule.chunk < s->best.t_max; chunk *= 2) {
        sbp_schedule_options o = s->best.schedule;
        o.chunk = chunk;
        SBP_TRY(try_at(s, o, s->best.t_max, true, &e));
        if (e.device_bytes > s->best.device_bytes || e.host_bytes > s->best.host_bytes ||
            e.seconds > s->best.seconds)
            break;
        s->best = e;
    }
    return SBP_OK;
}

/* host_too_small: these placements never fit on the host; only what they need is looked for. */
static sbp_status try_checkpoints(sbp_search *s, int64_t quarters, sbp_schedule_options o, int32_t layers,
                                  bool host_too_small) {
    const sbp_schedule_request *w = s->request;
    for (int64_t k = 1; k <= 16; k = host_too_small ? 2 * k : k + 1) {
        o.checkpoint_every = w->checkpoint_every != SBP_AUTO ? w->checkpoint_every : k;
        int64_t segments = sbp_ceil_div(layers, o.segment);
        if (k > 1 &&
            (w->checkpoint_every != SBP_AUTO || w->memory_bytes == 0 || k * 2 > segments || o.save_all))
            break;
        SBP_TRY(try_chunks(s, quarters, o));
    }
    return SBP_OK;
}

static sbp_status count_layers(sbp_search *s, bool drop_states, int32_t *out) {
    sbp_schedule_options o = {
        .chunk = 1, .head_chunk = 1, .segment = 1, .checkpoint_every = 1, .drop_states = drop_states};
    sbp_skeleton *found;
    SBP_TRY(sbp_evaluator_skeleton(&s->pl, &o, 64, &found));
    *out = found->layers;
    return SBP_OK;
}

/* Choice number `choice` of placements; false: not to be looked at. */
static bool pick_placement(const sbp_search *s, int32_t choice, sbp_schedule_options *o) {
    const sbp_schedule_request *w = s->request;
    const sbp_target_info *t = &s->pl.base->target;
    const sbp_pass_options *p = &s->pl.base->options;
    if (w->offload == SBP_OFFLOAD_GIVEN) {
        if (choice > 0)
            return false;
        memcpy(o->placement, w->placement, sizeof o->placement);
        memcpy(o->first, w->first, sizeof o->first);
    } else {
        bool states = placements_tried[choice].states, gradients = placements_tried[choice].gradients,
             none = choice == 0;
        o->placement[SBP_TENSOR_CHECKPOINT] = o->placement[SBP_TENSOR_SAVED] =
            placements_tried[choice].checkpoints ? SBP_HOST : SBP_DEVICE;
        o->placement[SBP_TENSOR_STATE] = states ? SBP_HOST : SBP_DEVICE;
        o->placement[SBP_TENSOR_GRAD] = gradients ? SBP_HOST : SBP_DEVICE;
        o->placement[SBP_TENSOR_PARAM] = placements_tried[choice].params ? SBP_HOST : SBP_DEVICE;
        if (none ? w->offload == SBP_OFFLOAD_ON
                 : w->offload == SBP_OFFLOAD_OFF || !t->has_copy_queue ||
                       (w->offload == SBP_OFFLOAD_AUTO && (w->memory_bytes == 0 || t->shared_memory)))
            return false;
        if ((states && !sbp_update_keeps_states(s->pl.base->module, p)) ||
            (gradients && p->step && !placements_tried[choice].params))
            return false; /* there are none: an earlier choice says the same */
    }
    return true;
}

/* Where updates run: where the simplest schedule with these placements is faster. The longest sequence is the
 * one with most memory left for it. */
static sbp_status pick_update(sbp_search *s, const sbp_candidate *c, sbp_schedule_options *o) {
    const sbp_target_info *t = &s->pl.base->target;
    sbp_plan_estimate here, host;
    sbp_schedule_options simple = *o;
    if (o->placement[SBP_TENSOR_STATE] == SBP_DEVICE || !t->has_copy_queue)
        return SBP_OK;
    simple.segment = simple.checkpoint_every = 1;
    simple.chunk = t->chunk;
    simple.head_chunk = t->head_chunk;
    int64_t rows = s->longest ? 4 * t->chunk : s->request->t_max;
    SBP_TRY(try_at(s, simple, rows, true, &here));
    simple.host_update = true;
    simple.sparing = o->sparing = s->longest || c->sparing;
    SBP_TRY(try_at(s, simple, rows, true, &host));
    o->host_update = (host.seconds < here.seconds) != c->slow_update;
    o->sparing &= o->host_update;
    return SBP_OK;
}

/* Whether parameters, gradients and states alone are more than the host has: then no sequence is short
 * enough, no structure sparing enough. What is packed beside them for a single row counts for nothing. */
static sbp_status is_too_much_for_host(sbp_search *s, sbp_schedule_options o, bool *out) {
    int64_t most = s->request->host_memory_bytes;
    sbp_plan_estimate e;
    *out = false;
    if (most == 0 || s->longest || s->request->whole || s->request->memory_bytes == 0)
        return SBP_OK;
    o.segment = o.checkpoint_every = o.chunk = o.head_chunk = 1;
    SBP_TRY(sbp_evaluator_run(&s->pl, 1, &o, false, &e));
    *out = e.host_bytes - most / 64 > most;
    return SBP_OK;
}

/* All placements, segments and distances of checkpoints of one candidate. */
static sbp_status try_all(sbp_search *s, const sbp_candidate *c) {
    const sbp_schedule_request *w = s->request;
    bool limited = w->memory_bytes > 0, host_too_small;
    int32_t layers = 1;
    if (limited)
        SBP_TRY(count_layers(s, c->drop_states, &layers));
    for (int32_t i = 0; i < SBP_COUNT(placements_tried); i++) {
        sbp_schedule_options o = {
            .gathered = c->gathered, .drop_states = c->drop_states, .expert_pieces = c->expert_pieces};
        if (!pick_placement(s, i, &o) || !sbp_search_pieces_matter(s, &o))
            continue;
        SBP_TRY(pick_update(s, c, &o));
        SBP_TRY(is_too_much_for_host(s, o, &host_too_small));
        for (int64_t g = 1; g <= 4; g *= 2) {
            o.segment = w->segment != SBP_AUTO ? w->segment : g;
            if (g > 1 && (host_too_small || w->segment != SBP_AUTO || !limited || g > layers))
                break;
            if (w->save_mode == SBP_SAVE_GIVEN) {
                o.save_all = w->save_all;
                o.saved = w->saved;
                o.saved_count = w->saved_count;
            }
            SBP_TRY(try_checkpoints(s, c->quarters, o, layers, host_too_small));
        }
    }
    return SBP_OK;
}

/* ---- a part of a class -------------------------------------------------------------------------------- */

/* How many tensors of a class there are, at most, as they are counted in sbp_schedule_options. */
static sbp_status count_tensors(sbp_search *s, const sbp_schedule_options *o, sbp_tensor_class class,
                                int32_t *out) {
    sbp_skeleton *found;
    SBP_TRY(sbp_evaluator_skeleton(&s->pl, o, s->request->t_max, &found));
    const sbp_module *m = found->pipeline.module;
    *out = class == SBP_TENSOR_CHECKPOINT ? (int32_t)sbp_ceil_div(found->layers, o->checkpoint_every)
           : class == SBP_TENSOR_PARAM    ? m->param_count
                                          : 0;
    for (int32_t i = 0; i < m->param_count && (class == SBP_TENSOR_STATE || class == SBP_TENSOR_GRAD); i++)
        *out += m->params[i].trainable;
    return SBP_OK;
}

/* All of a class lives on the host, and that fits: the fewest of its tensors that need to. */
static sbp_status try_part(sbp_search *s, sbp_schedule_options o, sbp_tensor_class class) {
    sbp_plan_estimate e;
    int32_t low = 0, high;
    SBP_TRY(count_tensors(s, &o, class, &high));
    if (high < 2)
        return SBP_OK;
    o.first[class] = 1;
    SBP_TRY(try_at(s, o, s->request->t_max, true, &e));
    if (e.seconds >= s->best.seconds * 0.999) /* more would take longer still */
        return SBP_OK;
    while (high - low > 1) {
        o.first[class] = low + (high - low) / 2;
        SBP_TRY(try_at(s, o, s->request->t_max, false, &e));
        *(fits(s, &e) ? &high : &low) = o.first[class];
    }
    o.first[class] = high;
    return try_schedule(s, &o);
}

/* What lives on the host as a whole in a schedule though a part would do; with what it saves, and with that
 * room, too. */
static sbp_status try_parts_of(sbp_search *s, sbp_schedule_options chosen) {
    static const sbp_tensor_class classes[] = {SBP_TENSOR_PARAM, SBP_TENSOR_GRAD, SBP_TENSOR_STATE,
                                               SBP_TENSOR_CHECKPOINT};
    sbp_schedule_options bare = chosen;
    bare.saved_count = 0;
    for (int i = 0; i < SBP_COUNT(classes); i++) {
        if (chosen.placement[classes[i]] != SBP_HOST)
            continue;
        SBP_TRY(try_part(s, chosen, classes[i]));
        if (s->request->save_mode == SBP_SAVE_AUTO && chosen.saved_count > 0)
            SBP_TRY(try_part(s, bare, classes[i]));
    }
    return SBP_OK;
}

/* Tries to move parts of tensors off the host, for the schedule chosen and for the fastest with each choice
 * of placements. */
static sbp_status try_parts(sbp_search *s) {
    if (s->request->offload == SBP_OFFLOAD_GIVEN)
        return SBP_OK;
    sbp_plan_estimate whole[SBP_SEARCH_PLACEMENTS];
    memcpy(whole, s->best_of, sizeof whole);
    SBP_TRY(try_parts_of(s, s->best.schedule));
    for (int h = 0; h < SBP_SEARCH_PLACEMENTS; h++)
        if (whole[h].t_max > 0)
            SBP_TRY(try_parts_of(s, whole[h].schedule));
    return SBP_OK;
}

/* ---- what stays gathered ------------------------------------------------------------------------------ */

/* Keeps the parameters of as many segments gathered as one schedule has room for. */
static sbp_status fill_gathered(sbp_search *s, sbp_schedule_options o, int32_t layers) {
    sbp_plan_estimate e;
    int32_t low = 2, high = layers;
    while (high - low > 1) {
        o.gathered = low + (high - low) / 2;
        SBP_TRY(try_at(s, o, s->request->t_max, false, &e));
        *(fits(s, &e) ? &low : &high) = o.gathered;
    }
    o.gathered = low;
    return try_schedule(s, &o);
}

/* Where it is faster: all structures with the parameters of all segments, or of half of them; then what room
 * the choice leaves. */
static sbp_status keep_gathered(sbp_search *s, sbp_candidate c) {
    const sbp_pass_options *p = &s->pl.base->options;
    sbp_schedule_options o = s->best.schedule;
    sbp_plan_estimate e;
    int32_t layers;
    if (s->request->gathered != SBP_AUTO || p->ranks < 2 || p->zero < 3)
        return SBP_OK;
    o.gathered = INT32_MAX;
    SBP_TRY(try_at(s, o, s->request->t_max, true, &e));
    if (e.seconds >= s->best.seconds * 0.999)
        return SBP_OK;
    SBP_TRY(count_layers(s, c.drop_states, &layers));
    const int32_t kept[] = {INT32_MAX, layers / 2};
    for (int i = 0; i < SBP_COUNT(kept); i++) {
        c.gathered = kept[i];
        SBP_TRY(try_all(s, &c));
    }
    if (s->best.schedule.gathered == INT32_MAX)
        return SBP_OK;
    return fill_gathered(s, s->best.schedule, layers);
}

/* With the usual chunks, then with smaller ones, and where those keep more, with larger ones. */
static sbp_status search_usual(sbp_search *s, sbp_candidate c) {
    bool keeps = !c.drop_states && has_states(s->pl.base->module);
    for (c.quarters = 4; c.quarters >= 1 && !s->found; c.quarters /= 2)
        SBP_TRY(try_all(s, &c));
    for (c.quarters = 8; c.quarters <= 16 && !s->found && keeps; c.quarters *= 2)
        SBP_TRY(try_all(s, &c));
    return SBP_OK;
}

/* Where states are kept and that does not fit, or a longer sequence might: the same with states made
 * again. */
static bool may_drop_states(const sbp_search *s, const sbp_candidate *c) {
    return !c->drop_states && s->request->save_mode != SBP_SAVE_GIVEN && (!s->found || s->longest) &&
           has_states(s->pl.base->module);
}

/* How updates run, in the order in which it is tried; all but the first only where nothing else fits. */
static const struct {
    bool sparing, slow_update;
} updates_tried[] = {{false, false}, {true, false}, {false, true}, {true, true}};

/* Structures with the usual chunks, and what is looked at only where none of them fits. *c becomes the
 * candidate that was found with, or the last. */
static sbp_status search_structures(sbp_search *s, sbp_candidate *c) {
    SBP_TRY(search_usual(s, *c));
    if (may_drop_states(s, c)) {
        c->drop_states = true;
        SBP_TRY(search_usual(s, *c));
        c->drop_states = s->found && s->best.schedule.drop_states;
    }
    for (int i = 1; i < SBP_COUNT(updates_tried) && !s->found && s->pl.base->target.has_copy_queue; i++) {
        c->sparing = updates_tried[i].sparing;
        c->slow_update = updates_tried[i].slow_update;
        SBP_TRY(search_usual(s, *c));
    }
    return SBP_OK;
}

enum { FEW_CHUNKS = 8 };

/* Pieces are brought again for every chunk: fewer, larger ones than the target likes for its own sake, those
 * of the choice as they are else. */
static sbp_status widen_chunks(sbp_search *s) {
    sbp_schedule_options o = s->best.schedule;
    if (o.expert_pieces < 2 || s->longest || s->request->chunk != SBP_AUTO)
        return SBP_OK;
    if (s->request->save_mode == SBP_SAVE_AUTO)
        o.saved_count = 0;
    for (int64_t n = 1, chunk = o.chunk; n <= FEW_CHUNKS; n++) {
        o.chunk = sbp_round_up(sbp_ceil_div(s->best.t_max, n), SBP_PARTIAL_ROWS);
        if (o.chunk > chunk)
            SBP_TRY(try_schedule(s, &o));
    }
    return SBP_OK;
}

enum { MOST_PIECES = 64 };

/* Searches with experts in `pieces` pieces, as if nothing had been found. What was found before stays unless
 * this is better, then *c becomes the candidate that this was found with. */
static sbp_status search_with_pieces(sbp_search *s, int32_t pieces, sbp_candidate *c) {
    const bool had = s->found;
    const sbp_plan_estimate before = s->best;
    sbp_candidate now = {.drop_states = c->drop_states, .gathered = c->gathered, .expert_pieces = pieces};
    s->found = false;
    sbp_status status = search_structures(s, &now);
    if (status == SBP_OK && s->found)
        status = widen_chunks(s);
    const sbp_plan_estimate after = s->best;
    const bool found = s->found;
    if (had) { /* also where there were no tries left for this one */
        s->best = before;
        s->found = true;
    }
    if (had && !(found && better(s, &after)))
        return status;
    s->best = after;
    *c = now;
    return status;
}

/* Experts whole, then in 2, 4, .. pieces: as long as more find something that fits, or is faster. */
static sbp_status search_pieces(sbp_search *s, sbp_candidate *c) {
    const sbp_schedule_request *w = s->request;
    SBP_TRY(search_with_pieces(s, w->expert_pieces > 0 ? w->expert_pieces : 0, c));
    if (w->expert_pieces != SBP_AUTO || w->memory_bytes == 0 || w->whole || !sbp_search_has_experts(s))
        return SBP_OK;
    for (int32_t pieces = 2; pieces <= MOST_PIECES; pieces *= 2) {
        SBP_TRY(search_with_pieces(s, pieces, c));
        if (s->found && s->best.schedule.expert_pieces != pieces)
            break;
    }
    return SBP_OK;
}

/* Structures with the usual chunks, then those that might do better with others. The longest sequence is
 * found step by step: there only for the structure that won. */
static sbp_status search_all(sbp_search *s) {
    const sbp_schedule_request *w = s->request;
    sbp_candidate c = {.drop_states = w->save_mode == SBP_SAVE_GIVEN && w->drop_states,
                       .gathered = w->gathered > 0 ? w->gathered : 0};
    SBP_TRY(search_pieces(s, &c));
    if (!s->found || w->whole)
        return SBP_OK;
    if (w->memory_bytes == 0)
        return grow_chunk(s);
    if (!s->longest) {
        c.quarters = SBP_ALL_SIZES;
        SBP_TRY(try_all(s, &c));
        SBP_TRY(try_parts(s));
        return keep_gathered(s, c);
    }
    sbp_schedule_options o = s->best.schedule;
    if (w->save_mode == SBP_SAVE_AUTO) {
        o.saved = NULL;
        o.saved_count = 0;
        o.save_all = false;
    }
    return refine_chunks(s, o);
}

sbp_status sbp_search_plans(sbp_search *s) {
    return as_far_as_it_came(s, search_all(s));
}

const char *sbp_planner_placement(sbp_arena *arena, const sbp_schedule_options *o, const char *before) {
    sbp_text text;
    sbp_text_init(&text, arena);
    for (int i = 0; i < SBP_TENSOR_CLASS_COUNT; i++) {
        if (o->placement[i] == SBP_DEVICE)
            continue;
        sbp_text_add(&text, "%s%s", text.length > 0 ? "+" : before, sbp_tensor_class_names[i]);
        if (o->placement[i] == SBP_DISK || o->first[i] > 0)
            sbp_text_add(&text, ":%s", sbp_space_names[o->placement[i]]);
        if (o->first[i] > 0)
            sbp_text_add(&text, ":%d", o->first[i]);
    }
    return text.length > 0 ? text.data : "";
}
