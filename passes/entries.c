/* entries: what is called, in which order: the call lists of `score`, `accumulate` and `update`, or `step`.
 *
 * requires  streambp, head, optimizer, schedule
 * preserves everything there is
 * breaks    nothing
 *
 * Layers are the calls between the first (embedding) and the last (head). I_l is the input of layer l; I_L
 * the head's, which becomes the gradient stream G in place. Every k-th I_l is a checkpoint, the k - 1 behind
 * it live in buffers that all groups share; before a group's backward its layers but the last run forward
 * again (the last group's are still there). `step` is: the gradient of a parameter is complete, so it is
 * updated.
 *
 * Nothing here knows where anything lives: acts name items, and reside brings them.
 */
#include <string.h>

#include "passes/residency/residency.h"
#include "passes/update.h"

/* Accumulators of parameters `members` of a function's calls, or of one that several calls use. */
typedef struct accums {
    int32_t func, param; /* param -1: of those of func */
    int32_t *members, count;
    bool bucket;
    int32_t item;
} accums;

typedef struct entry_builder {
    sbp_pipeline *p;
    sbp_residency *r;
    sbp_call_list *list; /* being built */
    int32_t layers;      /* L */
    int32_t groups;
    int64_t k;
    int32_t *checkpoints;          /* per group: item */
    int32_t temporaries, gradient; /* buffers: k - 1 inputs, G; -1: none */
    int32_t max_saved;
    int32_t *saved;                /* per call and saved value (call * max_saved + i): item */
    sbp_item_part *params, *grads; /* per parameter; item -1: none */
    int32_t *trained;              /* per parameter: trained ones before it */
    bool *small;                   /* per parameter: nothing of it leaves the device */
    sbp_item_part (*states)[SBP_MAX_UPDATE_OPERANDS]; /* per parameter and operand of its update */
    sbp_item_part clip, norms;                        /* item -1: none */
    sbp_item_part *accums;                            /* per parameter: its accumulator; item -1: none now */
    int32_t *call_of; /* per parameter: the one call that uses it; negative: none, several */
    int64_t largest;  /* elements of a layer's largest parameter, as part of a bucket */
    int32_t *uses;    /* per parameter: calls of the backward still to come */
    accums *sets;     /* accumulators that calls of a kind share */
    int32_t set_count, set_capacity;
    bool step;
} entry_builder;

static const sbp_segment_kind *kind_of(const entry_builder *e, int32_t call) {
    return &e->p->lowering->kinds[e->p->module->calls[call].func];
}

/* Of item number n of a class. */
static sbp_space home_of(const entry_builder *e, sbp_item_class class, int32_t n) {
    const sbp_schedule_options *s = &e->p->options.schedule;
    return class < SBP_ITEM_CLASS_COUNT && (s->first[class] <= 0 || n < s->first[class]) ? s->homes[class]
                                                                                         : SBP_DEVICE;
}

/* Whether the backward of a call runs: of the lowest one with a trained parameter, and of those above it. */
static bool runs(const entry_builder *e, int32_t call) {
    return call >= e->p->lowering->first_trainable;
}

/* The layer behind a group's last; the call of its last layer has the same number. */
static int32_t end_of_group(const entry_builder *e, int32_t group) {
    int64_t end = (group + 1) * e->k;
    return (int32_t)(end < e->layers ? end : e->layers);
}

/* Whether the backward, or a second forward, reads what this call saves. */
static bool is_read_again(const entry_builder *e, int32_t call) {
    return runs(e, call == 0 ? 0 : end_of_group(e, (int32_t)((call - 1) / e->k)));
}

/* ---- items ------------------------------------------------------------------------------------------- */

static int32_t add_item(entry_builder *e, sbp_resident item) {
    SBP_PUSH(e->p->arena, e->r->items, e->r->item_count, e->r->item_capacity, item);
    return e->r->item_count - 1;
}

/* `count` items of T rows, one kind of a pool, in an array of this name; homeless ones stand in slots.
 * Returns the first. */
static int32_t add_part(entry_builder *e, sbp_resident item, const char *array, int32_t count, bool home) {
    int32_t first = e->r->item_count,
            piece = sbp_residency_piece(e->p, item.space, item.stored, item.rows, item.cols, count);
    for (int32_t i = 0; i < count; i++) {
        if (home && i % piece == 0)
            item.buffer = sbp_lower_buffer(e->p, array, item.role, item.space, item.stored,
                                           count - i < piece ? count - i : piece, item.rows, item.cols, -1);
        item.element = i % piece;
        add_item(e, item);
    }
    return first;
}

/* `count` items of T rows, the first being number n of its class. Those away from the device have an array
 * there, and slots here; when there are no more of them than slots, nothing ever leaves. `kept` false: each
 * is read soon after it was written, two slots serve all. Returns the first. */
static int32_t add_array(entry_builder *e, sbp_item_class class, int32_t n, const char *name, sbp_role role,
                         sbp_dtype dtype, int64_t cols, int32_t count, bool kept) {
    sbp_extent t = sbp_extent_symbol(SBP_T, 1);
    int32_t away = 0;
    while (away < count && home_of(e, class, n + away) != SBP_DEVICE)
        away++;
    sbp_space space = away > 0 ? home_of(e, class, n) : SBP_DEVICE;
    bool home = kept && away > 2;
    sbp_resident item = {.class = class,
                         .role = role,
                         .pool = sbp_residency_pool(e->p, e->r,
                                                    (sbp_resident_pool){.name = name,
                                                                        .role = role,
                                                                        .stored = dtype,
                                                                        .computed = dtype,
                                                                        .rows = t,
                                                                        .cols = cols,
                                                                        .layout = -1}),
                         .buffer = -1,
                         .space = home ? space : SBP_DEVICE,
                         .stored = dtype,
                         .computed = dtype,
                         .rows = t,
                         .cols = cols};
    const char *there = sbp_arena_printf(e->p->arena, "%s.%s", name, sbp_space_names[space]);
    int32_t first = add_part(e, item, there, away, home);
    item.space = SBP_DEVICE;
    if (away > 0)
        name = sbp_arena_printf(e->p->arena, "%s.%s", name, sbp_space_names[SBP_DEVICE]);
    (void)add_part(e, item, name, count - away, kept);
    return first;
}

static void make_streams(entry_builder *e, bool backward) {
    sbp_pipeline *p = e->p;
    sbp_extent t = sbp_extent_symbol(SBP_T, 1);
    const sbp_type *x = &kind_of(e, 0)->output;
    int64_t cols = sbp_type_row_elems(x);
    e->gradient = sbp_lower_buffer(p, "G", SBP_ROLE_STREAM, SBP_DEVICE, x->dtype, 1, t, cols, -1);
    e->checkpoints = SBP_NEW_ARRAY(p->arena, int32_t, e->groups + 1);
    int32_t below = 0; /* groups that only the forward reads */
    while (below < e->groups && !(backward && runs(e, end_of_group(e, below))))
        below++;
    int32_t first = add_array(e, SBP_ITEM_CHECKPOINT, 0, below < e->groups ? "X.below" : "X", SBP_ROLE_STREAM,
                              x->dtype, cols, below, false);
    (void)add_array(e, SBP_ITEM_CHECKPOINT, below, "X", SBP_ROLE_STREAM, x->dtype, cols, e->groups - below,
                    true);
    for (int32_t i = 0; i < e->groups; i++)
        e->checkpoints[i] = first + i;
    e->temporaries = -1;
    if (backward && e->k > 1 && e->layers > 1)
        e->temporaries =
            sbp_lower_buffer(p, "X.again", SBP_ROLE_STREAM, SBP_DEVICE, x->dtype,
                             (int32_t)(e->k < e->layers ? e->k - 1 : e->layers - 1), t, cols, -1);
}

/* All values of one name and shape that calls save are items of one array. */
typedef struct saved_array {
    const sbp_saved *saved;
    bool kept; /* somebody reads it again */
    int32_t count, first;
} saved_array;

static void make_saved(entry_builder *e) {
    sbp_pipeline *p = e->p;
    int32_t calls = p->module->call_count, array_count = 0;
    for (int32_t c = 0; c + 1 < calls; c++)
        e->max_saved = kind_of(e, c)->saved_count > e->max_saved ? kind_of(e, c)->saved_count : e->max_saved;
    e->saved = SBP_NEW_ARRAY(p->arena, int32_t, calls * e->max_saved + 1);
    int32_t *array_of = SBP_NEW_ARRAY(p->arena, int32_t, calls * e->max_saved + 1);
    saved_array *arrays = SBP_NEW_ARRAY(p->arena, saved_array, calls * e->max_saved + 1);
    for (int32_t c = 0; c + 1 < calls; c++)
        for (int32_t i = 0; i < kind_of(e, c)->saved_count; i++) {
            const sbp_saved *s = &kind_of(e, c)->saved[i];
            int32_t found = 0;
            while (found < array_count &&
                   (strcmp(arrays[found].saved->name, s->name) != 0 || arrays[found].saved->cols != s->cols ||
                    arrays[found].saved->dtype != s->dtype || arrays[found].kept != is_read_again(e, c)))
                found++;
            if (found == array_count)
                arrays[array_count++] = (saved_array){.saved = s, .kept = is_read_again(e, c)};
            array_of[c * e->max_saved + i] = found;
            e->saved[c * e->max_saved + i] = arrays[found].count++;
        }
    for (int32_t j = 0; j < array_count; j++)
        arrays[j].first = add_array(
            e, SBP_ITEM_SAVED, 0,
            sbp_arena_printf(p->arena, "saved.%s%s", arrays[j].saved->name, arrays[j].kept ? "" : ".below"),
            SBP_ROLE_SAVED, arrays[j].saved->dtype, arrays[j].saved->cols, arrays[j].count, arrays[j].kept);
    for (int32_t c = 0; c + 1 < calls; c++)
        for (int32_t i = 0; i < kind_of(e, c)->saved_count; i++)
            e->saved[c * e->max_saved + i] += arrays[array_of[c * e->max_saved + i]].first;
}

enum { SMALL = 64 }; /* an item with so many times fewer elements than those of its class have in the mean */

/* Norms and biases are many and nothing: a command that moves one takes time, and saves no memory. They stay
 * on the device. */
static void find_small(entry_builder *e) {
    const sbp_module *m = e->p->module;
    double sum = 0;
    e->small = SBP_NEW_ARRAY(e->p->arena, bool, m->param_count + 1);
    for (int32_t i = 0; i < m->param_count; i++)
        sum += (double)sbp_type_row_elems(&m->params[i].type);
    for (int32_t i = 0; i < m->param_count; i++)
        e->small[i] = (double)sbp_type_row_elems(&m->params[i].type) * SMALL * m->param_count < sum;
}

/* Of what belongs to a parameter. */
static sbp_space home_with(const entry_builder *e, sbp_item_class class, int32_t param) {
    int32_t n = class == SBP_ITEM_PARAM ? param : e->trained[param];
    return e->small[param] ? SBP_DEVICE : home_of(e, class, n);
}

/* Whether the rule of a parameter runs where its states live. */
static bool updates_on_host(const entry_builder *e, int32_t param) {
    return e->p->options.schedule.host_update && e->p->module->params[param].trainable &&
           home_with(e, SBP_ITEM_STATE, param) != SBP_DEVICE;
}

/* Gradients can add up where they are kept when the types agree and nothing happens to them on the way. */
static bool accumulates_in_place(const entry_builder *e, const sbp_param *param) {
    return !e->step && e->p->options.grad_dtype == sbp_lower_wide(param->type.dtype);
}

/* How something of a parameter joins a bucket (bucket.c): not at all; all of its segment that a call wants;
 * what comes to the host one by one. Tables of embedding and head stay alone: they share slots. */
typedef enum joining { ALONE, SEGMENT, PIECE } joining;

static joining find_joining(const entry_builder *e, sbp_item_class class, int32_t param, sbp_space space) {
    if (e->call_of[param] < 1 || e->call_of[param] > e->layers || e->small[param])
        return ALONE;
    if (class == SBP_ITEM_PARAM && space != SBP_DEVICE)
        return SEGMENT;
    if (class == SBP_ITEM_GRAD && space != SBP_DEVICE)
        return accumulates_in_place(e, &e->p->module->params[param]) ? SEGMENT : ALONE;
    return updates_on_host(e, param) ? PIECE : ALONE;
}

enum { MOST_ELEMS = 250000000 }; /* a GB of fp32: 20 ms of a fast link, so that copies and updates overlap */

/* Something of a parameter that lasts, in a buffer that is there already and moves to its home. */
static void add_lasting(entry_builder *e, sbp_bucket_list *buckets, sbp_item_class class, int32_t param,
                        int32_t operand, int32_t buffer, sbp_item_part *ref) {
    const sbp_param *source = &e->p->module->params[param];
    sbp_buffer *b = &e->p->program->buffers[buffer];
    sbp_dtype computed = class == SBP_ITEM_PARAM ? source->type.dtype : b->dtype;
    sbp_packed what = {.first = buffer, .format = class == SBP_ITEM_PARAM ? source->format : SBP_FORMAT_NONE};
    if (what.format)
        sbp_lower_shape(&source->type, SBP_C, &what.rows, &what.cols);
    b->space = home_with(e, class, param);
    for (int32_t k = 1; what.format && k < sbp_format_of(what.format)->part_count; k++)
        b[k].space = b->space;
    sbp_bucket_key key = {.class = class,
                          .call = e->call_of[param],
                          .operand = operand,
                          .updated = updates_on_host(e, param),
                          .trained = source->trainable,
                          .space = b->space,
                          .stored = what.format ? SBP_I8 : b->dtype,
                          .computed = computed};
    joining how = find_joining(e, class, param, b->space);
    key.shared = how == PIECE && e->p->options.schedule.sparing;
    key.most = key.shared ? e->largest : MOST_ELEMS;
    if (how != ALONE)
        sbp_bucket_add(e->p, buckets, &key, &what, ref);
    else if (what.format)
        *ref = (sbp_item_part){sbp_bucket_pack(e->p, e->r,
                                               sbp_arena_printf(e->p->arena, "%s.packed", source->name),
                                               computed, &what, 1),
                               -1};
    else
        *ref = (sbp_item_part){sbp_residency_add(e->p, e->r, class, buffer, computed, true), -1};
}

static void find_calls(entry_builder *e) {
    const sbp_module *m = e->p->module;
    enum { SEVERAL = -2 };
    e->call_of = SBP_NEW_ARRAY(e->p->arena, int32_t, m->param_count + 1);
    for (int32_t i = 0; i < m->param_count; i++)
        e->call_of[i] = -1;
    for (int32_t c = 0; c < m->call_count; c++)
        for (int32_t i = 0; i < m->calls[c].param_count; i++) {
            int32_t *call = &e->call_of[m->calls[c].params[i]];
            *call = *call == -1 || *call == c ? c : SEVERAL;
        }
    for (int32_t i = 0; i < m->param_count; i++) {
        int64_t elems = sbp_round_up(sbp_type_row_elems(&m->params[i].type), SBP_BUCKET_ALIGNMENT);
        if (e->call_of[i] > 0 && e->call_of[i] <= e->layers && elems > e->largest)
            e->largest = elems;
    }
}

static void make_lasting(entry_builder *e) {
    static const sbp_item_part none = {-1, -1};
    sbp_pipeline *p = e->p;
    const sbp_lowering *l = p->lowering;
    int32_t count = p->module->param_count;
    sbp_bucket_list buckets = {0};
    e->params = SBP_NEW_ARRAY(p->arena, sbp_item_part, count + 1);
    e->grads = SBP_NEW_ARRAY(p->arena, sbp_item_part, count + 1);
    e->states = sbp_arena_array(p->arena, (size_t)count + 1, sizeof *e->states);
    e->accums = SBP_NEW_ARRAY(p->arena, sbp_item_part, count + 1);
    e->uses = SBP_NEW_ARRAY(p->arena, int32_t, count + 1);
    e->trained = SBP_NEW_ARRAY(p->arena, int32_t, count + 1);
    find_small(e);
    find_calls(e);
    for (int32_t i = 0; i < count; i++)
        e->trained[i] = i > 0 ? e->trained[i - 1] + p->module->params[i - 1].trainable : 0;
    for (int32_t i = 0; i < count; i++) {
        add_lasting(e, &buckets, SBP_ITEM_PARAM, i, 0, l->param_buffers[i], &e->params[i]);
        e->grads[i] = none;
        if (l->grad_buffers && l->grad_buffers[i] >= 0)
            add_lasting(e, &buckets, SBP_ITEM_GRAD, i, 0, l->grad_buffers[i], &e->grads[i]);
        const sbp_update *update = l->updates ? l->updates[i] : NULL;
        for (int32_t o = 0; update && o < update->operand_count; o++) {
            int32_t buffer = l->state_buffers[i * SBP_MAX_UPDATE_OPERANDS + o];
            e->states[i][o] = none;
            if (buffer >= 0)
                add_lasting(e, &buckets, SBP_ITEM_STATE, i, o, buffer, &e->states[i][o]);
        }
    }
    sbp_bucket_finish(p, e->r, &buckets);
    e->clip = e->norms = none;
    if (l->clip >= 0)
        e->clip.item = sbp_residency_add(p, e->r, SBP_ITEM_OTHER, l->clip, SBP_F64, true);
    if (l->norms >= 0)
        e->norms.item = sbp_residency_add(p, e->r, SBP_ITEM_OTHER, l->norms, SBP_F64, true);
}

/* ---- acts -------------------------------------------------------------------------------------------- */

static sbp_operand stored(sbp_item_part what, sbp_access access) {
    return (sbp_operand){
        .item = what.item, .part = what.part, .access = access, .form = SBP_FORM_STORED, .buffer = -1};
}

static sbp_item_part whole(int32_t item) {
    return (sbp_item_part){item, -1};
}

static sbp_act *add_act(entry_builder *e, sbp_act_kind kind, const sbp_operand *operands, int32_t count) {
    sbp_act act = {.kind = kind, .function = -1, .param = -1, .operand_count = count};
    act.operands = SBP_NEW_ARRAY(e->p->arena, sbp_operand, count + 1);
    if (count > 0)
        memcpy(act.operands, operands, (size_t)count * sizeof *operands);
    SBP_PUSH(e->p->arena, e->list->acts, e->list->act_count, e->list->act_capacity, act);
    return &e->list->acts[e->list->act_count - 1];
}

static void add_call(entry_builder *e, int32_t function, const sbp_operand *operands, int32_t count) {
    add_act(e, SBP_ACT_CALL, operands, count)->function = function;
}

static void fill(entry_builder *e, int32_t item) {
    add_act(e, SBP_ACT_FILL, (sbp_operand[]){stored(whole(item), SBP_WRITE)}, 1);
}

static bool is_last_part(const entry_builder *e, sbp_item_part what) {
    const sbp_resident *item = &e->r->items[what.item];
    return what.part < 0 || what.part + 1 == e->r->layouts[e->r->pools[item->pool].layout].count;
}

/* The norms of gradients whose class is updated on the host are taken there, also of small ones: they stand
 * beside each other. */
static void sum_squares(entry_builder *e, int32_t param, sbp_item_part gradient) {
    sbp_operand operands[] = {stored(e->norms, SBP_UPDATE), stored(gradient, SBP_READ)};
    sbp_act *act = add_act(e, SBP_ACT_SUM_SQUARES, operands, 2);
    act->param = param;
    act->on_host =
        e->p->options.schedule.host_update && home_of(e, SBP_ITEM_STATE, e->trained[param]) != SBP_DEVICE;
}

static void finish_norm(entry_builder *e) {
    sbp_operand operands[] = {stored(e->norms, SBP_READ), stored(e->clip, SBP_WRITE)};
    add_act(e, SBP_ACT_NORM, operands, e->clip.item >= 0 ? 2 : 1);
}

static void update(entry_builder *e, int32_t param, sbp_item_part gradient) {
    const sbp_update *rule = sbp_update_of(e->p, param);
    sbp_operand operands[SBP_MAX_UPDATE_OPERANDS];
    for (int32_t i = 0; i < rule->operand_count; i++) {
        sbp_update_operand_kind kind = rule->operands[i].kind;
        operands[i] = stored(kind == SBP_UPDATE_GRAD    ? gradient
                             : kind == SBP_UPDATE_CLIP  ? e->clip
                             : kind == SBP_UPDATE_PARAM ? e->params[param]
                                                        : e->states[param][i],
                             rule->operands[i].access);
    }
    sbp_act *act = add_act(e, SBP_ACT_UPDATE, operands, rule->operand_count);
    act->param = param;
    act->on_host = updates_on_host(e, param);
}

/* ---- accumulators ------------------------------------------------------------------------------------ */

/* What the accumulator of parameter `i` of a call's segment is called. Those of parameters used once are
 * shared by all calls of the kind. */
static const char *accum_name(const entry_builder *e, int32_t call, int32_t i) {
    const sbp_module *m = e->p->module;
    int32_t param = m->calls[call].params[i];
    if (e->uses[param] > 1)
        return sbp_arena_printf(e->p->arena, "A:%s", m->params[param].name); /* no function is called so */
    return sbp_arena_printf(e->p->arena, "A.%s.p%d", m->funcs[m->calls[call].func]->name, i);
}

static int32_t accum_buffer(entry_builder *e, int32_t call, int32_t i) {
    sbp_pipeline *p = e->p;
    int32_t param = p->module->calls[call].params[i];
    const sbp_buffer *w = &p->program->buffers[p->lowering->param_buffers[param]];
    return sbp_lower_buffer(p, accum_name(e, call, i), SBP_ROLE_ACCUM, SBP_DEVICE,
                            sbp_lower_wide(p->module->params[param].type.dtype), 1, w->rows, w->cols, -1);
}

/* Those of a layer go to the host's cores in pieces. */
static bool accumulates_in_bucket(const entry_builder *e, int32_t call, int32_t param) {
    return e->step && e->call_of[param] == call &&
           find_joining(e, SBP_ITEM_OTHER, param, SBP_DEVICE) == PIECE;
}

/* The item of accumulators that were made for another call of the kind, or for this parameter; -1. */
static int32_t find_accums(const entry_builder *e, int32_t call, const int32_t *members, int32_t count,
                           bool bucket) {
    const sbp_invocation *c = &e->p->module->calls[call];
    int32_t param = e->uses[c->params[members[0]]] > 1 ? c->params[members[0]] : -1;
    for (int32_t i = 0; i < e->set_count; i++) {
        const accums *a = &e->sets[i];
        if (a->param == param && a->bucket == bucket &&
            (param >= 0 || (a->func == c->func && a->count == count &&
                            memcmp(a->members, members, (size_t)count * sizeof *members) == 0)))
            return a->item;
    }
    return -1;
}

/* Begins the accumulators of parameters `members` of a call's segment: one bucket, or one alone. */
static void begin_accums(entry_builder *e, int32_t call, const int32_t *members, int32_t count, bool bucket) {
    sbp_pipeline *p = e->p;
    const sbp_invocation *c = &p->module->calls[call];
    int32_t item = find_accums(e, call, members, count, bucket);
    if (item < 0) {
        int32_t *buffers = SBP_NEW_ARRAY(p->arena, int32_t, count);
        for (int32_t k = 0; k < count; k++)
            buffers[k] = accum_buffer(e, call, members[k]);
        sbp_dtype dtype = p->program->buffers[buffers[0]].dtype;
        const char *name = sbp_arena_printf(p->arena, "A.%s", p->module->funcs[c->func]->name);
        item = bucket ? sbp_bucket_make(p, e->r, name, SBP_ROLE_ACCUM, dtype, buffers, count,
                                        p->options.schedule.sparing)
                      : sbp_residency_add(p, e->r, SBP_ITEM_OTHER, buffers[0], dtype, false);
        accums a = {.func = c->func, .count = count, .bucket = bucket, .item = item, .param = -1};
        a.param = e->uses[c->params[members[0]]] > 1 ? c->params[members[0]] : -1;
        a.members = SBP_NEW_ARRAY(p->arena, int32_t, count);
        memcpy(a.members, members, (size_t)count * sizeof *members);
        SBP_PUSH(p->arena, e->sets, e->set_count, e->set_capacity, a);
    }
    for (int32_t k = 0; k < count; k++)
        e->accums[c->params[members[k]]] = (sbp_item_part){item, bucket ? k : -1};
    fill(e, item);
}

/* With all of the same call whose gradients go to the host, as many as one bucket has; each where the first
 * with room for it is. */
static void begin_accum_buckets(entry_builder *e, int32_t call) {
    sbp_pipeline *p = e->p;
    const sbp_invocation *c = &p->module->calls[call];
    int32_t *members = SBP_NEW_ARRAY(p->arena, int32_t, c->param_count);
    bool *taken = SBP_NEW_ARRAY(p->arena, bool, c->param_count), sparing = p->options.schedule.sparing;
    for (int32_t count = 1; count > 0;) {
        int64_t elems = 0;
        count = 0;
        for (int32_t i = 0; i < c->param_count; i++) {
            const sbp_param *source = &p->module->params[c->params[i]];
            sbp_dtype wide = sbp_lower_wide(source->type.dtype);
            int64_t part = sbp_round_up(sbp_type_row_elems(&source->type), SBP_BUCKET_ALIGNMENT);
            bool again = taken[i];
            for (int32_t j = 0; j < i; j++)
                again |= c->params[j] == c->params[i];
            if (again || !accumulates_in_bucket(e, call, c->params[i]) ||
                (count > 0 &&
                 elems + part > sbp_bucket_most(p, wide, wide, sparing ? e->largest : MOST_ELEMS)))
                continue;
            members[count++] = i;
            elems += part;
            taken[i] = true;
        }
        if (count > 0)
            begin_accums(e, call, members, count, sparing || count > 1);
    }
}

/* The accumulator of parameter `i` of the call's segment. */
static sbp_item_part accum_item(entry_builder *e, int32_t call, int32_t i) {
    int32_t param = e->p->module->calls[call].params[i];
    if (accumulates_in_place(e, &e->p->module->params[param]))
        return e->grads[param];
    if (e->accums[param].item < 0 && accumulates_in_bucket(e, call, param))
        begin_accum_buckets(e, call);
    if (e->accums[param].item < 0)
        begin_accums(e, call, &i, 1, false);
    return e->accums[param];
}

static void flush(entry_builder *e, int32_t param) {
    sbp_operand operands[] = {stored(e->grads[param], SBP_UPDATE), stored(e->accums[param], SBP_READ)};
    add_act(e, SBP_ACT_FLUSH, operands, 2);
}

/* After a backward call: gradients that are complete leave their accumulators. */
static void flush_call(entry_builder *e, int32_t call) {
    sbp_pipeline *p = e->p;
    const sbp_invocation *c = &p->module->calls[call];
    for (int32_t i = 0; i < c->param_count; i++) {
        int32_t param = c->params[i];
        if (!p->module->params[param].trainable || e->uses[param] <= 0)
            continue;
        bool again = false; /* the same parameter twice in one call counts once */
        for (int32_t j = 0; j < i; j++)
            again |= c->params[j] == param;
        if (again || --e->uses[param] > 0 || accumulates_in_place(e, &p->module->params[param]))
            continue;
        if (e->step) {
            sum_squares(e, param, e->accums[param]);
            update(e, param, e->accums[param]);
        } else {
            flush(e, param);
        }
        e->accums[param].item = -1;
    }
}

/* ---- calls ------------------------------------------------------------------------------------------- */

static sbp_operand fixed(int32_t buffer, int32_t element) {
    return (sbp_operand){.item = -1, .part = -1, .buffer = buffer, .element = element};
}

/* The input of layer l. */
static sbp_operand input_of(const entry_builder *e, int32_t l) {
    if (l == e->layers)
        return fixed(e->gradient, 0);
    int32_t within = (int32_t)(l % e->k);
    if (within > 0)
        return fixed(e->temporaries, within - 1);
    return stored(whole(e->checkpoints[l / e->k]), SBP_READ);
}

/* One call of a segment's function. input, output (y, or G): NULL when there is none. */
static sbp_status call_segment(entry_builder *e, int32_t call, int32_t function, const sbp_operand *input,
                               const sbp_operand *output, bool backward) {
    sbp_pipeline *p = e->p;
    const sbp_invocation *c = &p->module->calls[call];
    const sbp_func *f = p->module->funcs[c->func];
    if (function < 0)
        return sbp_fail(p->diag, SBP_INTERNAL, "entries: segment '%s' has no function for a call", f->name);
    const sbp_function *callee = &p->program->functions[function];
    int32_t saved = call + 1 < p->module->call_count ? kind_of(e, call)->saved_count : 0;
    int32_t count = 0, number = 0;
    sbp_operand *operands =
        SBP_NEW_ARRAY(p->arena, sbp_operand, 2 + 2 * c->param_count + f->arg_count + saved + 1);
    if (input)
        operands[count++] = *input;
    if (output)
        operands[count++] = *output;
    const sbp_function_lowering *lowering = p->lowering->functions[function];
    for (int32_t i = 0; i < lowering->param_count; i++, count++) {
        sbp_item_part what = e->params[c->params[lowering->params[i]]];
        bool kept = callee->formals[count].dtype == e->r->items[what.item].stored;
        operands[count] = stored(what, SBP_READ);
        operands[count].form = kept ? SBP_FORM_STORED : SBP_FORM_COMPUTED;
    }
    for (int32_t i = 0; backward && i < f->arg_count; i++) {
        const sbp_value_info *info = &f->values[f->args[i]];
        if (info->role != SBP_VALUE_PARAM)
            continue;
        if (info->trainable)
            operands[count++] = stored(accum_item(e, call, number), SBP_UPDATE);
        number++;
    }
    for (int32_t i = 0; i < saved; i++)
        operands[count++] = stored(whole(e->saved[call * e->max_saved + i]), SBP_READ);
    if (count != callee->formal_count)
        return sbp_fail(p->diag, SBP_INTERNAL, "entries: %d views for the %d formals of @%s", count,
                        callee->formal_count, callee->name);
    for (int32_t i = 0; i < count; i++)
        operands[i].access = callee->formals[i].access;
    add_call(e, function, operands, count);
    return SBP_OK;
}

static sbp_status forward(entry_builder *e) {
    for (int32_t call = 0; call <= e->layers; call++) {
        sbp_operand input = input_of(e, call > 0 ? call - 1 : 0), output = input_of(e, call);
        SBP_TRY(call_segment(e, call, kind_of(e, call)->forward, call > 0 ? &input : NULL, &output, false));
    }
    return SBP_OK;
}

static sbp_status backward(entry_builder *e) {
    sbp_operand g = fixed(e->gradient, 0);
    for (int32_t group = e->groups - 1; group >= 0; group--) {
        int32_t first = (int32_t)(group * e->k), last = end_of_group(e, group);
        if (!runs(e, last))
            break;
        for (int32_t l = first; l + 1 < last && group + 1 < e->groups; l++) {
            sbp_operand input = input_of(e, l), output = input_of(e, l + 1);
            SBP_TRY(call_segment(e, l + 1, kind_of(e, l + 1)->again, &input, &output, false));
        }
        for (int32_t l = last - 1; l >= first && runs(e, l + 1); l--) {
            sbp_operand input = input_of(e, l);
            SBP_TRY(call_segment(e, l + 1, kind_of(e, l + 1)->backward, &input, &g, true));
            flush_call(e, l + 1);
        }
    }
    if (runs(e, 0)) {
        SBP_TRY(call_segment(e, 0, kind_of(e, 0)->backward, NULL, &g, true));
        flush_call(e, 0);
    }
    return SBP_OK;
}

static sbp_status head(entry_builder *e, bool backward_follows) {
    const sbp_head_lowering *h = &e->p->lowering->head;
    int32_t call = e->layers + 1;
    sbp_operand stream = input_of(e, e->layers), updated = stream;
    updated.access = SBP_UPDATE;
    if (h->gather >= 0)
        add_call(e, h->gather, &updated, 1);
    if (!backward_follows || h->first >= 0)
        SBP_TRY(call_segment(e, call, h->score, &stream, NULL, false));
    if (backward_follows && h->first < 0 && h->data >= 0)
        add_call(e, h->data, NULL, 0);
    if (backward_follows && h->first < 0)
        SBP_TRY(call_segment(e, call, h->backward, &stream, NULL, true));
    add_call(e, h->objective, NULL, 0);
    if (backward_follows && h->first >= 0) {
        add_call(e, h->gradient, NULL, 0);
        SBP_TRY(call_segment(e, call, h->backward, &stream, NULL, true));
    }
    if (backward_follows && h->scatter >= 0)
        add_call(e, h->scatter, &updated, 1);
    if (backward_follows)
        flush_call(e, call);
    return SBP_OK;
}

/* ---- entries ----------------------------------------------------------------------------------------- */

static void count_uses(entry_builder *e) {
    const sbp_module *m = e->p->module;
    for (int32_t i = 0; i < m->param_count; i++) {
        e->accums[i].item = -1;
        e->uses[i] = 0;
        for (int32_t c = 0; c < m->call_count; c++) {
            bool used = false;
            for (int32_t j = 0; j < m->calls[c].param_count; j++)
                used |= m->calls[c].params[j] == i;
            e->uses[i] += used && runs(e, c);
        }
    }
}

static void begin_list(entry_builder *e, const char *entry) {
    SBP_PUSH(e->p->arena, e->r->lists, e->r->list_count, e->r->list_capacity,
             (sbp_call_list){.entry = entry});
    e->list = &e->r->lists[e->r->list_count - 1];
}

static sbp_status build_training(entry_builder *e) {
    begin_list(e, e->step ? "step" : "accumulate");
    count_uses(e);
    SBP_TRY(forward(e));
    SBP_TRY(head(e, true));
    SBP_TRY(backward(e));
    if (e->step)
        finish_norm(e);
    return SBP_OK;
}

/* The norm over all gradients and its clipping factor, then the optimizer's rule for each parameter;
 * gradients are cleared. Where gradients stay, each of the three goes over all parameters: its commands are
 * independent. Where they come and go, updates begin with what the norm
 * ends with. */
static void build_update(entry_builder *e) {
    const sbp_module *m = e->p->module;
    bool away = home_of(e, SBP_ITEM_GRAD, 0) != SBP_DEVICE;
    begin_list(e, "update");
    for (int pass = 0; pass < (away ? 2 : 3); pass++) {
        for (int32_t n = 0; n < m->param_count; n++) {
            int32_t i = away && pass == 0 ? m->param_count - 1 - n : n;
            if (!m->params[i].trainable)
                continue;
            if (pass == 0)
                sum_squares(e, i, e->grads[i]);
            if (pass == 1)
                update(e, i, e->grads[i]);
            if (pass == (away ? 1 : 2) && is_last_part(e, e->grads[i]))
                fill(e, e->grads[i].item);
        }
        if (pass == 0)
            finish_norm(e);
    }
}

sbp_status sbp_residency_lists(sbp_pipeline *p, sbp_residency *out) {
    bool trains = p->lowering->head.backward >= 0, optimizes = p->options.optimizer != SBP_OPTIMIZER_NONE;
    *out = (sbp_residency){0};
    entry_builder e = {.p = p,
                       .r = out,
                       .layers = p->module->call_count - 2,
                       .k = p->options.schedule.checkpoint_every,
                       .step = trains && p->options.step && optimizes};
    if (e.layers < 0)
        return sbp_fail(p->diag, SBP_INPUT,
                        "the model has no place to cut between its embedding and its head");
    e.k = e.k < 1 || !trains ? 1 : e.k;
    e.groups = (int32_t)sbp_ceil_div(e.layers, e.k);
    make_lasting(&e);
    make_streams(&e, trains);
    make_saved(&e);
    if (trains && !e.step && optimizes)
        build_update(&e);
    if (trains)
        SBP_TRY(build_training(&e));
    e.step = false;
    begin_list(&e, "score");
    SBP_TRY(forward(&e));
    SBP_TRY(head(&e, false));
    return p->lowering->failed ? SBP_INTERNAL : SBP_OK;
}

sbp_status sbp_pass_entries(sbp_pipeline *p) {
    if (!p->program)
        return SBP_OK;
    p->lowering->residency = SBP_NEW(p->arena, sbp_residency);
    return sbp_residency_lists(p, p->lowering->residency);
}
