/* entries: the bodies of `score`, `accumulate` and `step`: one call per segment, checkpoints every k
 * segments, the saved set, offloading, and what happens to each finished gradient.
 *
 * requires  streambp, head, optimizer
 * preserves everything there is
 * breaks    nothing
 *
 * Layers are the calls between the first (embedding) and the last (head). I_l is the input of layer l; I_L
 * the head's, which becomes the gradient stream G in place. Every k-th I_l is a checkpoint, the k - 1 behind
 * it live in slots that all groups share; before a group's backward its layers but the last run forward again
 * (the last group's are still there). Offloaded checkpoints pass through two device slots; saved values
 * likewise, one slot being read while the next is fetched. What is still in its slot when it is read neither
 * comes back nor went to the host for that.
 */
#include <string.h>

#include "passes/update.h"

typedef struct entry_builder {
    sbp_pipeline *p;
    sbp_body body;  /* of the entry being built */
    int32_t layers; /* L */
    int32_t groups;
    int64_t k;
    int32_t checkpoints, temporaries, gradient; /* buffers: device slots, k - 1 slots, G; -1: none */
    int32_t checkpoints_host;                   /* offloaded: one slot per group */
    struct saved_store *stores;
    int32_t store_count;
    int32_t max_saved;
    int32_t *saved_slot;  /* per call and saved value (call * max_saved + i): item in its store */
    int32_t *saved_store; /* likewise: which store */
    bool *fetched;        /* per call and saved value: comes back from the host at some time */
    int32_t *sequence;    /* calls in the order in which the backward reads what they saved */
    int32_t *accums;      /* per parameter: buffer of its accumulator, -1 */
    int32_t *uses;        /* per parameter: calls of the backward still to come */
    int32_t sequence_count, sequence_capacity, at;
    bool rehearsal; /* nothing is emitted: finds out what is fetched */
    bool step, offload;
} entry_builder;

/* All values of one name and shape that calls save: an array on the device, or on the host with two slots
 * here. */
typedef struct saved_store {
    const sbp_saved *saved;
    int32_t count, device, host;
    int32_t resident[2]; /* which item each of the two slots holds, -1: none */
} saved_store;

static const sbp_segment_kind *kind_of(const entry_builder *e, int32_t call) {
    return &e->p->lowering->kinds[e->p->module->calls[call].func];
}

/* ---- buffers ----------------------------------------------------------------------------------------- */

static void make_streams(entry_builder *e, bool backward) {
    sbp_pipeline *p = e->p;
    sbp_extent t = sbp_extent_symbol(SBP_T, 1);
    const sbp_type *x = &kind_of(e, 0)->output;
    int64_t cols = sbp_type_row_elems(x);
    e->gradient = sbp_lower_buffer(p, "G", SBP_ROLE_STREAM, SBP_DEVICE, x->dtype, 1, t, cols, -1);
    int32_t slots = backward ? e->groups : 2;
    e->checkpoints_host = -1;
    if (e->offload && slots > 2) {
        e->checkpoints_host =
            sbp_lower_buffer(p, "X.host", SBP_ROLE_STREAM, SBP_HOST, x->dtype, slots, t, cols, -1);
        slots = 2;
    }
    e->checkpoints = e->layers > 0
                         ? sbp_lower_buffer(p, "X", SBP_ROLE_STREAM, SBP_DEVICE, x->dtype, slots, t, cols, -1)
                         : -1;
    e->temporaries = -1;
    if (backward && e->k > 1 && e->layers > 1)
        e->temporaries =
            sbp_lower_buffer(p, "X.again", SBP_ROLE_STREAM, SBP_DEVICE, x->dtype,
                             (int32_t)(e->k < e->layers ? e->k - 1 : e->layers - 1), t, cols, -1);
}

static void make_saved(entry_builder *e) {
    sbp_pipeline *p = e->p;
    int32_t calls = p->module->call_count;
    for (int32_t c = 0; c + 1 < calls; c++)
        e->max_saved = kind_of(e, c)->saved_count > e->max_saved ? kind_of(e, c)->saved_count : e->max_saved;
    e->saved_slot = SBP_NEW_ARRAY(p->arena, int32_t, calls * e->max_saved + 1);
    e->saved_store = SBP_NEW_ARRAY(p->arena, int32_t, calls * e->max_saved + 1);
    e->fetched = SBP_NEW_ARRAY(p->arena, bool, calls * e->max_saved + 1);
    e->stores = SBP_NEW_ARRAY(p->arena, saved_store, calls * e->max_saved + 1);
    for (int32_t c = 0; c + 1 < calls; c++)
        for (int32_t i = 0; i < kind_of(e, c)->saved_count; i++) {
            const sbp_saved *s = &kind_of(e, c)->saved[i];
            int32_t found = -1;
            for (int32_t j = 0; j < e->store_count; j++)
                if (strcmp(e->stores[j].saved->name, s->name) == 0 && e->stores[j].saved->cols == s->cols &&
                    e->stores[j].saved->dtype == s->dtype)
                    found = j;
            if (found < 0) {
                found = e->store_count++;
                e->stores[found] = (saved_store){.saved = s};
            }
            e->saved_store[c * e->max_saved + i] = found;
            e->saved_slot[c * e->max_saved + i] = e->stores[found].count++;
        }
    for (int32_t j = 0; j < e->store_count; j++) {
        saved_store *s = &e->stores[j];
        bool away = e->offload && s->count > 2;
        const char *name = sbp_arena_printf(p->arena, "saved.%s", s->saved->name);
        sbp_extent t = sbp_extent_symbol(SBP_T, 1);
        s->device = sbp_lower_buffer(p, name, SBP_ROLE_SAVED, SBP_DEVICE, s->saved->dtype,
                                     away ? 2 : s->count, t, s->saved->cols, -1);
        s->host = away ? sbp_lower_buffer(p, sbp_arena_printf(p->arena, "%s.host", name), SBP_ROLE_SAVED,
                                          SBP_HOST, s->saved->dtype, s->count, t, s->saved->cols, -1)
                       : -1;
    }
}

/* ---- parameters -------------------------------------------------------------------------------------- */

/* The parameter as the function wants it: in its compute type, converted before each call when it is kept in
 * another. */
static sbp_view param_view(entry_builder *e, int32_t call, int32_t i) {
    sbp_pipeline *p = e->p;
    int32_t param = p->module->calls[call].params[i];
    const sbp_param *source = &p->module->params[param];
    int32_t buffer = sbp_lower_param_buffer(p, param);
    sbp_view view = sbp_view_buffer(p->program, buffer, 0);
    if (source->storage == source->type.dtype)
        return view;
    const char *name =
        sbp_arena_printf(p->arena, "compute.%s.p%d", p->module->funcs[p->module->calls[call].func]->name, i);
    int32_t copy = sbp_lower_find_buffer(p, name);
    if (copy < 0)
        copy = sbp_lower_buffer(p, name, SBP_ROLE_WORKSPACE, SBP_DEVICE, source->type.dtype, 1,
                                p->program->buffers[buffer].rows, p->program->buffers[buffer].cols, -1);
    sbp_view to = sbp_view_buffer(p->program, copy, 0);
    sbp_lower_convert(p, &e->body, to, source->type.dtype, view, source->storage);
    return to;
}

static sbp_dtype accum_dtype(const sbp_param *param) {
    return sbp_lower_wide(param->type.dtype);
}

/* Gradients can add up where they stay when the types agree and nothing happens to them on the way. */
static bool accumulates_in_place(const entry_builder *e, const sbp_param *param) {
    return !e->step && e->p->options.grad_dtype == accum_dtype(param);
}

/* The accumulator of a parameter in this call. Those of parameters used once are shared by all calls of the
 * kind. */
static sbp_view accum_view(entry_builder *e, int32_t call, int32_t i) {
    sbp_pipeline *p = e->p;
    int32_t param = p->module->calls[call].params[i];
    const sbp_param *source = &p->module->params[param];
    int32_t w = sbp_lower_param_buffer(p, param);
    if (accumulates_in_place(e, source))
        return sbp_view_buffer(p->program, sbp_lower_grad_buffer(p, w), 0);
    if (e->accums[param] >= 0)
        return sbp_view_buffer(p->program, e->accums[param], 0);
    const char *name =
        e->uses[param] > 1
            ? sbp_arena_printf(p->arena, "A.%s", source->name)
            : sbp_arena_printf(p->arena, "A.%s.p%d", p->module->funcs[p->module->calls[call].func]->name, i);
    int32_t buffer = sbp_lower_find_buffer(p, name);
    if (buffer < 0)
        buffer = sbp_lower_buffer(p, name, SBP_ROLE_ACCUM, SBP_DEVICE, accum_dtype(source), 1,
                                  p->program->buffers[w].rows, p->program->buffers[w].cols, -1);
    e->accums[param] = buffer;
    sbp_view view = sbp_view_buffer(p->program, buffer, 0);
    sbp_lower_fill(p, &e->body, view, 0);
    return view;
}

/* After a backward call: gradients that are complete leave their accumulators. */
static void flush_call(entry_builder *e, int32_t call) {
    sbp_pipeline *p = e->p;
    const sbp_invocation *c = &p->module->calls[call];
    for (int32_t i = 0; i < c->param_count; i++) {
        const sbp_param *param = &p->module->params[c->params[i]];
        if (!param->trainable || e->uses[c->params[i]] <= 0)
            continue;
        bool again = false; /* the same parameter twice in one call counts once */
        for (int32_t j = 0; j < i; j++)
            again |= c->params[j] == c->params[i];
        if (again || --e->uses[c->params[i]] > 0 || accumulates_in_place(e, param))
            continue;
        int32_t w = sbp_lower_param_buffer(p, c->params[i]);
        sbp_view accum = sbp_view_buffer(p->program, e->accums[c->params[i]], 0);
        if (e->step) {
            sbp_lower_sumsq(p, &e->body, c->params[i], accum);
            sbp_lower_update_of(p, &e->body, c->params[i], accum, -1);
        } else {
            sbp_lower_flush(p, &e->body, sbp_view_buffer(p->program, sbp_lower_grad_buffer(p, w), 0),
                            p->options.grad_dtype, accum, accum_dtype(param));
        }
        e->accums[c->params[i]] = -1;
    }
}

/* ---- calls ------------------------------------------------------------------------------------------- */

/* Where the input of layer l lives on the device. */
static sbp_view input_view(const entry_builder *e, int32_t l) {
    const sbp_program *prog = e->p->program;
    if (l == e->layers)
        return sbp_view_buffer(prog, e->gradient, 0);
    int32_t group = (int32_t)(l / e->k), within = (int32_t)(l % e->k);
    if (within > 0)
        return sbp_view_buffer(prog, e->temporaries, within - 1);
    return sbp_view_buffer(prog, e->checkpoints, group % prog->buffers[e->checkpoints].count);
}

static void add_saved_views(entry_builder *e, int32_t call, sbp_view *views, int32_t *count) {
    for (int32_t i = 0; i < kind_of(e, call)->saved_count; i++) {
        const saved_store *s = &e->stores[e->saved_store[call * e->max_saved + i]];
        int32_t slot = e->saved_slot[call * e->max_saved + i];
        views[(*count)++] = sbp_view_buffer(e->p->program, s->device, s->host >= 0 ? slot % 2 : slot);
    }
}

static void copy_item(entry_builder *e, const saved_store *s, int32_t slot, bool to_host) {
    sbp_view device = sbp_view_buffer(e->p->program, s->device, slot % 2);
    sbp_view host = sbp_view_buffer(e->p->program, s->host, slot);
    if (!e->rehearsal)
        sbp_lower_copy(e->p, &e->body, to_host ? host : device, to_host ? device : host,
                       to_host ? SBP_QUEUE_OUT : SBP_QUEUE_IN);
}

/* After the forward of a call: what will have to come back goes to the host. */
static void keep_saved(entry_builder *e, int32_t call) {
    for (int32_t i = 0; i < kind_of(e, call)->saved_count; i++) {
        int32_t at = call * e->max_saved + i, slot = e->saved_slot[at];
        saved_store *s = &e->stores[e->saved_store[at]];
        if (s->host < 0)
            continue;
        s->resident[slot % 2] = slot;
        if (e->fetched[at])
            copy_item(e, s, slot, true);
    }
}

/* Whether what `call` saved into a store is in the slot that `slot` would take. */
static bool occupies(const entry_builder *e, int32_t call, int32_t store, int32_t slot) {
    for (int32_t i = 0; call >= 0 && i < kind_of(e, call)->saved_count; i++)
        if (e->saved_store[call * e->max_saved + i] == store &&
            e->saved_slot[call * e->max_saved + i] % 2 == slot % 2)
            return true;
    return false;
}

/* Brings back what a call saved and is not there any more; not into slots that `reader` is going to read. */
static void fetch_saved(entry_builder *e, int32_t call, int32_t reader) {
    for (int32_t i = 0; i < kind_of(e, call)->saved_count; i++) {
        int32_t at = call * e->max_saved + i, slot = e->saved_slot[at], store = e->saved_store[at];
        saved_store *s = &e->stores[store];
        if (s->host < 0 || s->resident[slot % 2] == slot || occupies(e, reader, store, slot))
            continue;
        s->resident[slot % 2] = slot;
        e->fetched[at] = true;
        copy_item(e, s, slot, false);
    }
}

static void copy_checkpoint(entry_builder *e, int32_t group, bool to_host) {
    if (e->checkpoints_host < 0)
        return;
    sbp_view device = sbp_view_buffer(e->p->program, e->checkpoints, group % 2);
    sbp_view host = sbp_view_buffer(e->p->program, e->checkpoints_host, group);
    sbp_lower_copy(e->p, &e->body, to_host ? host : device, to_host ? device : host,
                   to_host ? SBP_QUEUE_OUT : SBP_QUEUE_IN);
}

/* One call of a segment's function. input: SBP_NO_VIEW when there is none; output: y, or G. */
static sbp_status call_segment(entry_builder *e, int32_t call, int32_t function, sbp_view input,
                               sbp_view output, bool backward) {
    sbp_pipeline *p = e->p;
    const sbp_invocation *c = &p->module->calls[call];
    const sbp_func *f = p->module->funcs[c->func];
    int32_t count = 0, number = 0;
    if (function < 0)
        return sbp_fail(p->diag, SBP_INTERNAL, "entries: call %d, of @%s, needs a function that was not made",
                        call, f->name);
    sbp_view *views = SBP_NEW_ARRAY(p->arena, sbp_view, p->program->functions[function].formal_count + 1);
    if (input.ref != SBP_NO_VIEW)
        views[count++] = input;
    if (output.ref != SBP_NO_VIEW)
        views[count++] = output;
    for (int32_t i = 0; i < c->param_count; i++)
        views[count++] = param_view(e, call, i);
    for (int32_t i = 0; backward && i < f->arg_count; i++) {
        const sbp_value_info *info = &f->values[f->args[i]];
        if (info->role != SBP_VALUE_PARAM)
            continue;
        if (info->trainable)
            views[count++] = accum_view(e, call, number);
        number++;
    }
    if (call + 1 < p->module->call_count)
        add_saved_views(e, call, views, &count);
    if (count != p->program->functions[function].formal_count)
        return sbp_fail(p->diag, SBP_INTERNAL, "entries: %d views for the %d formals of @%s", count,
                        p->program->functions[function].formal_count, p->program->functions[function].name);
    sbp_lower_call(p, &e->body, function, views);
    return SBP_OK;
}

static sbp_status forward(entry_builder *e, bool backward_follows) {
    SBP_TRY(call_segment(e, 0, kind_of(e, 0)->forward, sbp_view_none(), input_view(e, 0), false));
    if (backward_follows)
        keep_saved(e, 0);
    for (int32_t l = 0; l < e->layers; l++) {
        if (backward_follows && l % e->k == 0 && l / e->k + 2 < e->groups) /* the last two stay */
            copy_checkpoint(e, (int32_t)(l / e->k), true);
        SBP_TRY(call_segment(e, l + 1, kind_of(e, l + 1)->forward, input_view(e, l), input_view(e, l + 1),
                             false));
        if (backward_follows)
            keep_saved(e, l + 1);
    }
    return SBP_OK;
}

/* Whether the backward of some layer of this group, or below it, runs. */
static bool runs(const entry_builder *e, int32_t call) {
    return call >= e->p->lowering->first_trainable;
}

/* Layers of a group. */
static void group_layers(const entry_builder *e, int32_t group, int32_t *first, int32_t *last) {
    *first = (int32_t)(group * e->k);
    *last = (int32_t)((group + 1) * e->k);
    *last = *last < e->layers ? *last : e->layers;
}

static void list_sequence(entry_builder *e) {
    int32_t first, last;
    e->sequence_count = 0;
    for (int32_t group = e->groups - 1; group >= 0; group--) {
        group_layers(e, group, &first, &last);
        if (!runs(e, last))
            break;
        for (int32_t l = first; l + 1 < last && group + 1 < e->groups; l++)
            SBP_PUSH(e->p->arena, e->sequence, e->sequence_count, e->sequence_capacity, l + 1);
        for (int32_t l = last - 1; l >= first && runs(e, l + 1); l--)
            SBP_PUSH(e->p->arena, e->sequence, e->sequence_count, e->sequence_capacity, l + 1);
    }
    if (runs(e, 0))
        SBP_PUSH(e->p->arena, e->sequence, e->sequence_count, e->sequence_capacity, 0);
}

/* Before the next call of the sequence: its saved values are there, and those of the one after it come while
 * it runs. */
static void next_saved(entry_builder *e) {
    int32_t call = e->sequence[e->at++];
    fetch_saved(e, call, -1);
    if (e->at < e->sequence_count)
        fetch_saved(e, e->sequence[e->at], call);
}

/* Goes through forward and backward without emitting anything: afterwards it is known what is fetched. */
static void rehearse(entry_builder *e) {
    list_sequence(e);
    e->rehearsal = true;
    memset(e->fetched, 0, (size_t)(e->p->module->call_count * e->max_saved) * sizeof *e->fetched);
    for (int32_t j = 0; j < e->store_count; j++)
        e->stores[j].resident[0] = e->stores[j].resident[1] = -1;
    for (int32_t call = 0; call <= e->layers; call++)
        keep_saved(e, call);
    for (e->at = 0; e->at < e->sequence_count;)
        next_saved(e);
    e->at = 0;
    e->rehearsal = false;
}

static sbp_status backward(entry_builder *e) {
    sbp_view g = sbp_view_buffer(e->p->program, e->gradient, 0);
    int32_t first, last;
    for (int32_t group = e->groups - 1; group >= 0; group--) {
        group_layers(e, group, &first, &last);
        if (!runs(e, last))
            break;
        if (group > 0 && group + 1 < e->groups && runs(e, first))
            copy_checkpoint(e, group - 1, false);
        for (int32_t l = first; l + 1 < last && group + 1 < e->groups; l++) {
            next_saved(e);
            SBP_TRY(call_segment(e, l + 1, kind_of(e, l + 1)->again, input_view(e, l), input_view(e, l + 1),
                                 false));
        }
        for (int32_t l = last - 1; l >= first && runs(e, l + 1); l--) {
            next_saved(e);
            SBP_TRY(call_segment(e, l + 1, kind_of(e, l + 1)->backward, input_view(e, l), g, true));
            flush_call(e, l + 1);
        }
    }
    if (runs(e, 0)) {
        next_saved(e);
        SBP_TRY(call_segment(e, 0, kind_of(e, 0)->backward, sbp_view_none(), g, true));
        flush_call(e, 0);
    }
    return SBP_OK;
}

static sbp_status head(entry_builder *e, bool backward_follows) {
    const sbp_head_lowering *h = &e->p->lowering->head;
    int32_t call = e->layers + 1;
    sbp_view stream = input_view(e, e->layers);
    if (!backward_follows || h->first >= 0)
        SBP_TRY(call_segment(e, call, h->score, stream, sbp_view_none(), false));
    if (backward_follows && h->first < 0)
        SBP_TRY(call_segment(e, call, h->backward, stream, sbp_view_none(), true));
    sbp_lower_call(e->p, &e->body, h->objective, NULL);
    if (backward_follows && h->first >= 0) {
        sbp_lower_call(e->p, &e->body, h->gradient, NULL);
        SBP_TRY(call_segment(e, call, h->backward, stream, sbp_view_none(), true));
    }
    if (backward_follows)
        flush_call(e, call);
    return SBP_OK;
}

static void count_uses(entry_builder *e) {
    const sbp_module *m = e->p->module;
    for (int32_t i = 0; i < m->param_count; i++) {
        e->accums[i] = -1;
        e->uses[i] = 0;
        for (int32_t c = 0; c < m->call_count; c++) {
            bool used = false;
            for (int32_t j = 0; j < m->calls[c].param_count; j++)
                used |= m->calls[c].params[j] == i;
            e->uses[i] += used && runs(e, c);
        }
    }
}

static void add_entry(sbp_pipeline *p, const char *name, sbp_body body) {
    SBP_PUSH(p->arena, p->program->entries, p->program->entry_count, p->program->entry_capacity,
             (sbp_entry){.name = name, .body = body});
}

static sbp_status build_entry(entry_builder *e, const char *name, bool backward_follows) {
    e->body = (sbp_body){0};
    count_uses(e);
    if (backward_follows)
        rehearse(e);
    SBP_TRY(forward(e, backward_follows));
    SBP_TRY(head(e, backward_follows));
    if (backward_follows)
        SBP_TRY(backward(e));
    if (e->step)
        sbp_lower_norm(e->p, &e->body, -1);
    add_entry(e->p, name, e->body);
    return SBP_OK;
}

sbp_status sbp_pass_entries(sbp_pipeline *p) {
    if (!p->program)
        return SBP_OK;
    bool trains = p->lowering->head.backward >= 0;
    entry_builder e = {.p = p,
                       .layers = p->module->call_count - 2,
                       .k = p->options.schedule.checkpoint_every,
                       .offload = p->options.schedule.offload && trains};
    e.k = e.k < 1 ? 1 : e.k;
    e.groups = (int32_t)sbp_ceil_div(e.layers, e.k);
    e.accums = SBP_NEW_ARRAY(p->arena, int32_t, p->module->param_count + 1);
    e.uses = SBP_NEW_ARRAY(p->arena, int32_t, p->module->param_count + 1);
    for (int32_t i = 0; i < p->module->param_count; i++) /* tensor table first: in the order of the model */
        sbp_lower_param_buffer(p, i);
    if (e.layers < 0)
        return sbp_fail(p->diag, SBP_INPUT,
                        "the model has no place to cut between its embedding and its head");
    make_streams(&e, trains);
    make_saved(&e);
    if (trains) {
        e.step = p->options.step && p->options.optimizer != SBP_OPTIMIZER_NONE;
        SBP_TRY(build_entry(&e, e.step ? "step" : "accumulate", true));
        e.step = false;
    } else if (e.k > 1) {
        e.k = 1;
    }
    SBP_TRY(build_entry(&e, "score", false));
    return p->lowering->failed ? SBP_INTERNAL : SBP_OK;
}
