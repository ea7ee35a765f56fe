/* tensors.c: what outlives a call, where it lives, and which of it is one piece. */
#include <string.h>

#include "passes/calls/builder.h"

const sbp_segment_kind *sbp_calls_kind(const sbp_calls_builder *e, int32_t call) {
    return &e->from->segments->kinds[e->p->module->calls[call].func];
}

/* Where tensor number n of a class is kept. Where experts come in pieces, parameters that are not among the
 * first on disk are on the host. */
sbp_space sbp_calls_placement(const sbp_calls_builder *e, sbp_tensor_class class, int32_t n) {
    const sbp_schedule_options *s = &e->p->options.schedule;
    if (class < SBP_TENSOR_CLASS_COUNT && (s->first[class] <= 0 || n < s->first[class]))
        return s->placement[class];
    return class == SBP_TENSOR_PARAM && s->expert_pieces > 1 && s->placement[class] == SBP_DISK ? SBP_HOST
                                                                                                : SBP_DEVICE;
}

/* Whether the backward of a call runs: of the lowest one with a trained parameter, and of those above it. */
bool sbp_calls_runs(const sbp_calls_builder *e, int32_t call) {
    return call >= e->from->derivatives->first_trainable;
}

/* The layer behind a group's last; the call of its last layer has the same number. */
int32_t sbp_calls_end_of_group(const sbp_calls_builder *e, int32_t group) {
    int64_t end = (group + 1) * e->k;
    return (int32_t)(end < e->layers ? end : e->layers);
}

/* Whether the backward, or a second forward, reads what this call saves. */
static bool is_read_again(const sbp_calls_builder *e, int32_t call) {
    return sbp_calls_runs(e, call == 0 ? 0 : sbp_calls_end_of_group(e, (int32_t)((call - 1) / e->k)));
}

/* ---- tensors ------------------------------------------------------------------------------------------- */

static int32_t add_tensor(sbp_calls_builder *e, sbp_placed_tensor tensor) {
    SBP_PUSH(e->p->arena, e->r->tensors, e->r->tensor_count, e->r->tensor_capacity, tensor);
    return e->r->tensor_count - 1;
}

/* `count` tensors of T rows, one kind of a pool, in an array of this name; those without a placement stand in
 * staging buffers. Returns the first. */
static int32_t add_part(sbp_calls_builder *e, sbp_placed_tensor tensor, const char *array, int32_t count,
                        bool placement) {
    int32_t first = e->r->tensor_count,
            piece = sbp_offload_piece(e->p, tensor.space, tensor.stored, tensor.rows, tensor.cols, count);
    for (int32_t i = 0; i < count; i++) {
        if (placement && i % piece == 0)
            tensor.buffer =
                sbp_lower_buffer(e->p, array, tensor.role, tensor.space, tensor.stored,
                                 count - i < piece ? count - i : piece, tensor.rows, tensor.cols, -1);
        tensor.element = i % piece;
        add_tensor(e, tensor);
    }
    return first;
}

/* One of a pool of this name, in no buffer yet. */
static sbp_placed_tensor tensor_of(sbp_calls_builder *e, sbp_tensor_class class, sbp_role role,
                                   const char *name, sbp_space space, sbp_dtype dtype, sbp_extent rows,
                                   int64_t cols) {
    const sbp_tensor_pool pool = {.name = name,
                                  .role = role,
                                  .stored = dtype,
                                  .computed = dtype,
                                  .rows = rows,
                                  .cols = cols,
                                  .layout = -1};
    return (sbp_placed_tensor){.class = class,
                               .role = role,
                               .pool = sbp_call_schedule_pool(e->p, e->r, pool),
                               .buffer = -1,
                               .space = space,
                               .stored = dtype,
                               .computed = dtype,
                               .rows = rows,
                               .cols = cols};
}

/* `count` tensors with `rows` rows each (T, W or N + 1); the first is number n of its class. Offloaded ones
 * have an array there, and staging buffers here; when there are no more of them than staging buffers, nothing
 * ever leaves. `kept` false: each is read soon after it was written, two staging buffers serve all. Returns
 * the first. */
static int32_t add_array(sbp_calls_builder *e, sbp_tensor_class class, int32_t n, const char *name,
                         sbp_role role, sbp_dtype dtype, sbp_extent rows, int64_t cols, int32_t count,
                         bool kept) {
    int32_t away = 0;
    while (away < count && sbp_calls_placement(e, class, n + away) != SBP_DEVICE)
        away++;
    sbp_space space = away > 0 ? sbp_calls_placement(e, class, n) : SBP_DEVICE;
    bool placement = kept && away > 2;
    sbp_placed_tensor tensor =
        tensor_of(e, class, role, name, placement ? space : SBP_DEVICE, dtype, rows, cols);
    const char *there = sbp_arena_printf(e->p->arena, "%s.%s", name, sbp_space_names[space]);
    int32_t first = add_part(e, tensor, there, away, placement);
    tensor.space = SBP_DEVICE;
    if (away > 0)
        name = sbp_arena_printf(e->p->arena, "%s.%s", name, sbp_space_names[SBP_DEVICE]);
    (void)add_part(e, tensor, name, count - away, kept);
    return first;
}

void sbp_calls_make_streams(sbp_calls_builder *e, bool backward) {
    sbp_program_builder *p = e->p;
    sbp_extent t = sbp_extent_symbol(SBP_T, 1);
    const sbp_type *x = &sbp_calls_kind(e, 0)->outputs[0].type;
    int64_t cols = sbp_type_row_elems(x);
    e->gradient = sbp_lower_buffer(p, "G", SBP_ROLE_STREAM, SBP_DEVICE, x->dtype, 1, t, cols, -1);
    e->checkpoints = SBP_NEW_ARRAY(p->arena, int32_t, e->groups + 1);
    int32_t below = 0; /* groups that only the forward reads */
    while (below < e->groups && !(backward && sbp_calls_runs(e, sbp_calls_end_of_group(e, below))))
        below++;
    int32_t first = add_array(e, SBP_TENSOR_CHECKPOINT, 0, below < e->groups ? "X.below" : "X",
                              SBP_ROLE_STREAM, x->dtype, t, cols, below, false);
    (void)add_array(e, SBP_TENSOR_CHECKPOINT, below, "X", SBP_ROLE_STREAM, x->dtype, t, cols,
                    e->groups - below, true);
    for (int32_t i = 0; i < e->groups; i++)
        e->checkpoints[i] = first + i;
    e->temporaries = -1;
    if (backward && e->k > 1 && e->layers > 1)
        e->temporaries =
            sbp_lower_buffer(p, "X.recompute", SBP_ROLE_STREAM, SBP_DEVICE, x->dtype,
                             (int32_t)(e->k < e->layers ? e->k - 1 : e->layers - 1), t, cols, -1);
}

sbp_calls_side *sbp_calls_side_of(const sbp_calls_builder *e, int32_t call, const sbp_side *side) {
    const sbp_invocation *c = &e->p->module->calls[call];
    return &e->sides[side->output ? c->outputs[side->number] : c->streams[side->number]];
}

/* Those whose cotangents a backward names that runs get one. */
static void find_side_cotangents(sbp_calls_builder *e, bool *has) {
    const sbp_stages *stages = e->from->stages;
    for (int32_t call = 0; call <= e->layers; call++) {
        int32_t function = sbp_calls_runs(e, call) ? sbp_calls_kind(e, call)->backward : -1;
        for (int32_t i = 0; function >= 0 && i < stages->functions[function]->side_count; i++) {
            const sbp_side *side = &stages->functions[function]->sides[i];
            has[sbp_calls_side_of(e, call, side) - e->sides] |= side->cotangent;
        }
    }
}

enum { SIDES_MOST = 16 }; /* in one array */

static sbp_dtype side_dtype(const sbp_calls_side *side, bool cotangent) {
    return cotangent ? sbp_lower_wide(side->as->type.dtype) : side->as->type.dtype;
}

/* Tensors of all that are of one shape, in an array where they live away; *n: checkpoints, and these, so far.
 */
static void add_sides(sbp_calls_builder *e, bool cotangent, const bool *has, int32_t *n) {
    int32_t values = e->p->module->model_value_count;
    for (int32_t v = 0; v < values; v++) {
        const sbp_calls_side *like = &e->sides[v];
        int32_t alike[SIDES_MOST], count = 0;
        if (!has[v] || !like->as || (cotangent ? like->cotangent : like->tensor) >= 0)
            continue;
        bool away = sbp_calls_placement(e, SBP_TENSOR_CHECKPOINT, *n) != SBP_DEVICE;
        for (int32_t w = v; w < values && count < (away ? SIDES_MOST : 1); w++)
            if (has[w] && e->sides[w].as &&
                side_dtype(&e->sides[w], cotangent) == side_dtype(like, cotangent) &&
                sbp_lower_kept_rows(&e->sides[w].as->type) == sbp_lower_kept_rows(&like->as->type) &&
                sbp_type_row_elems(&e->sides[w].as->type) == sbp_type_row_elems(&like->as->type))
                alike[count++] = w;
        const char *name = sbp_arena_printf(e->p->arena, "%s%d", cotangent ? "d_side" : "side", v);
        int32_t first =
            add_array(e, SBP_TENSOR_CHECKPOINT, *n, name, SBP_ROLE_STREAM, side_dtype(like, cotangent),
                      sbp_extent_symbol(sbp_lower_kept_rows(&like->as->type), 1),
                      sbp_type_row_elems(&like->as->type), count, true);
        for (int32_t k = 0; k < count; k++)
            *(cotangent ? &e->sides[alike[k]].cotangent : &e->sides[alike[k]].tensor) = first + k;
        *n += count;
    }
}

void sbp_calls_make_sides(sbp_calls_builder *e, bool backward) {
    const sbp_module *m = e->p->module;
    int32_t n = e->groups;
    bool *has = SBP_NEW_ARRAY(e->p->arena, bool, m->model_value_count + 1);
    e->sides = SBP_NEW_ARRAY(e->p->arena, sbp_calls_side, m->model_value_count + 1);
    for (int32_t v = 0; v < m->model_value_count; v++)
        e->sides[v] = (sbp_calls_side){.writer = -1, .tensor = -1, .cotangent = -1, .cached = -1};
    for (int32_t c = 0; c <= e->layers; c++)
        for (int32_t i = 1; i < m->calls[c].output_count; i++) {
            sbp_calls_side *side = &e->sides[m->calls[c].outputs[i]];
            side->writer = c;
            side->as = &sbp_calls_kind(e, c)->outputs[i];
            has[m->calls[c].outputs[i]] = true;
        }
    add_sides(e, false, has, &n);
    for (int32_t v = 0; v < m->model_value_count; v++)
        has[v] = false;
    if (backward)
        find_side_cotangents(e, has);
    add_sides(e, true, has, &n);
}

/* All values of one name and shape that calls save are tensors of one array. */
typedef struct saved_array {
    const sbp_saved *saved;
    bool kept; /* somebody reads it again */
    int32_t count, first;
} saved_array;

void sbp_calls_make_saved(sbp_calls_builder *e) {
    sbp_program_builder *p = e->p;
    int32_t calls = p->module->call_count, array_count = 0;
    for (int32_t c = 0; c + 1 < calls; c++)
        e->max_saved = sbp_calls_kind(e, c)->saved_count > e->max_saved ? sbp_calls_kind(e, c)->saved_count
                                                                        : e->max_saved;
    e->saved = SBP_NEW_ARRAY(p->arena, int32_t, calls * e->max_saved + 1);
    int32_t *array_of = SBP_NEW_ARRAY(p->arena, int32_t, calls * e->max_saved + 1);
    saved_array *arrays = SBP_NEW_ARRAY(p->arena, saved_array, calls * e->max_saved + 1);
    for (int32_t c = 0; c + 1 < calls; c++)
        for (int32_t i = 0; i < sbp_calls_kind(e, c)->saved_count; i++) {
            const sbp_saved *s = &sbp_calls_kind(e, c)->saved[i];
            int32_t found = 0;
            while (found < array_count &&
                   (strcmp(arrays[found].saved->name, s->name) != 0 || arrays[found].saved->cols != s->cols ||
                    !sbp_extent_equal(arrays[found].saved->rows, s->rows) ||
                    arrays[found].saved->dtype != s->dtype || arrays[found].kept != is_read_again(e, c)))
                found++;
            if (found == array_count)
                arrays[array_count++] = (saved_array){.saved = s, .kept = is_read_again(e, c)};
            array_of[c * e->max_saved + i] = found;
            e->saved[c * e->max_saved + i] = arrays[found].count++;
        }
    for (int32_t j = 0; j < array_count; j++)
        arrays[j].first = add_array(
            e, SBP_TENSOR_SAVED, 0,
            sbp_arena_printf(p->arena, "saved.%s%s", arrays[j].saved->name, arrays[j].kept ? "" : ".below"),
            SBP_ROLE_SAVED, arrays[j].saved->dtype, arrays[j].saved->rows, arrays[j].saved->cols,
            arrays[j].count, arrays[j].kept);
    for (int32_t c = 0; c + 1 < calls; c++)
        for (int32_t i = 0; i < sbp_calls_kind(e, c)->saved_count; i++)
            e->saved[c * e->max_saved + i] += arrays[array_of[c * e->max_saved + i]].first;
}

/* A tensor on the device that lasts. */
static int32_t add_cached(sbp_calls_builder *e, const char *name, sbp_dtype dtype, sbp_extent rows,
                          int64_t cols) {
    return add_part(e, tensor_of(e, SBP_TENSOR_SAVED, SBP_ROLE_CACHE, name, SBP_DEVICE, dtype, rows, cols),
                    name, 1, true);
}

void sbp_calls_make_cache(sbp_calls_builder *e) {
    sbp_program_builder *p = e->p;
    int32_t calls = p->module->call_count;
    for (int32_t c = 0; c + 1 < calls; c++)
        if (sbp_calls_kind(e, c)->cached_count > e->max_cached)
            e->max_cached = sbp_calls_kind(e, c)->cached_count;
    e->cached = SBP_NEW_ARRAY(p->arena, int32_t, calls * e->max_cached + 1);
    for (int32_t c = 0; c + 1 < calls; c++)
        for (int32_t i = 0; i < sbp_calls_kind(e, c)->cached_count; i++) {
            const sbp_saved *s = &sbp_calls_kind(e, c)->cached[i];
            e->cached[c * e->max_cached + i] = add_cached(
                e, sbp_arena_printf(p->arena, "cache%d.%s", c, s->name), s->dtype, s->rows, s->cols);
        }
    for (int32_t v = 0; v < p->module->model_value_count; v++) {
        sbp_calls_side *side = &e->sides[v];
        if (side->as)
            side->cached = add_cached(e, sbp_arena_printf(p->arena, "cache.side%d", v), side->as->type.dtype,
                                      sbp_extent_symbol(sbp_lower_kept_rows(&side->as->type), 1),
                                      sbp_type_row_elems(&side->as->type));
    }
}

enum { SMALL = 64 }; /* a tensor is small below 1/64 of the mean number of elements of its class */

/* Norms and biases are many and nothing: a command that moves one takes time, and saves no memory. They stay
 * on the device. */
static void find_small(sbp_calls_builder *e) {
    const sbp_module *m = e->p->module;
    double sum = 0;
    int32_t count = 0; /* numbers of the program's own are none */
    e->small = SBP_NEW_ARRAY(e->p->arena, bool, m->param_count + 1);
    for (int32_t i = 0; i < m->param_count; i++)
        if (!m->params[i].number) {
            sum += (double)sbp_type_row_elems(&m->params[i].type);
            count++;
        }
    for (int32_t i = 0; i < m->param_count; i++)
        e->small[i] =
            m->params[i].number || (double)sbp_type_row_elems(&m->params[i].type) * SMALL * count < sum;
}

/* Where what belongs to a parameter (itself, its gradient or its states, by class) is kept. */
static sbp_space placement_with(const sbp_calls_builder *e, sbp_tensor_class class, int32_t param) {
    if (e->flat_of[param] >= 0)
        param = e->flats[e->flat_of[param]].params[0];
    int32_t n = class == SBP_TENSOR_PARAM ? param : e->trained[param];
    sbp_space space = e->small[param] ? SBP_DEVICE : sbp_calls_placement(e, class, n);
    bool away = class == SBP_TENSOR_PARAM && e->pieces[param].away; /* then their functions fetch them */
    return away && space == SBP_DEVICE ? SBP_HOST : space;
}

/* Whether the rule of a parameter runs where its states live. */
bool sbp_calls_updates_on_host(const sbp_calls_builder *e, int32_t param) {
    return e->p->options.schedule.host_update && e->p->module->params[param].trainable &&
           placement_with(e, SBP_TENSOR_STATE, param) != SBP_DEVICE &&
           (e->flat_of[param] < 0 || /* a share of what is not kept in shares is on the device */
            (!e->step && sbp_calls_is_sharded(e, SBP_TENSOR_PARAM, param)));
}

/* Gradients can add up where they are kept when the types agree and nothing happens to them on the way. */
bool sbp_calls_accumulates_in_place(const sbp_calls_builder *e, const sbp_param *param) {
    if (sbp_calls_is_sharded(e, SBP_TENSOR_GRAD, (int32_t)(param - e->p->module->params)))
        return false;
    return !e->step && e->p->options.grad_dtype == sbp_lower_wide(param->type.dtype);
}

sbp_joining sbp_calls_joining(const sbp_calls_builder *e, sbp_tensor_class class, int32_t param,
                              sbp_space space) {
    if (e->flat_of[param] >= 0)
        return SBP_JOIN_SEGMENT;
    if (class == SBP_TENSOR_PARAM && e->pieces[param].count > 0) /* the others are wanted on the device */
        return SBP_JOIN_ALONE;
    if (class == SBP_TENSOR_GRAD && space == SBP_DEVICE && e->ranks > 1)
        return e->call_of[param] >= 0 ? SBP_JOIN_SEGMENT : SBP_JOIN_ALONE;
    if (e->call_of[param] < 1 || e->call_of[param] > e->layers || e->small[param])
        return SBP_JOIN_ALONE;
    if (class == SBP_TENSOR_PARAM && space != SBP_DEVICE)
        return SBP_JOIN_SEGMENT;
    if (class == SBP_TENSOR_GRAD && space != SBP_DEVICE)
        return sbp_calls_accumulates_in_place(e, &e->p->module->params[param]) ? SBP_JOIN_SEGMENT
                                                                               : SBP_JOIN_ALONE;
    return sbp_calls_updates_on_host(e, param) ? SBP_JOIN_PIECE : SBP_JOIN_ALONE;
}

/* Something of a parameter that lasts, in a buffer that is there already and moves to its placement. */
static void add_lasting(sbp_calls_builder *e, sbp_bucket_list *buckets, sbp_tensor_class class, int32_t param,
                        int32_t operand, int32_t buffer, sbp_tensor_part *ref) {
    const sbp_param *source = &e->p->module->params[param];
    sbp_buffer *b = &e->p->program->buffers[buffer];
    sbp_dtype computed = class == SBP_TENSOR_PARAM ? source->type.dtype : b->dtype;
    sbp_packed what = {.first = buffer,
                       .format = class == SBP_TENSOR_PARAM ? source->format : SBP_FORMAT_NONE};
    if (what.format)
        sbp_lower_shape(&source->type, SBP_C, &what.rows, &what.cols);
    b->space = placement_with(e, class, param);
    for (int32_t k = 1; what.format && k < sbp_format_of(what.format)->part_count; k++)
        b[k].space = b->space;
    sbp_bucket_key key = {.class = class,
                          .call = e->small[param] ? e->p->module->call_count : e->call_of[param],
                          .operand = operand,
                          .updated = sbp_calls_updates_on_host(e, param),
                          .trained = source->trainable,
                          .space = b->space,
                          .stored = what.format ? SBP_I8 : b->dtype,
                          .computed = computed};
    sbp_joining how = sbp_calls_joining(e, class, param, b->space);
    if (e->flat_of[param] >= 0)
        sbp_calls_flat_key(e, param, operand, &key);
    key.shared = how == SBP_JOIN_PIECE && e->p->options.schedule.sparing;
    key.most = key.shared ? e->largest : SBP_BUCKET_MOST;
    if (how != SBP_JOIN_ALONE)
        sbp_bucket_add(e->p, buckets, &key, &what, ref);
    else if (what.format)
        *ref = (sbp_tensor_part){sbp_bucket_pack(e->p, e->r,
                                                 sbp_arena_printf(e->p->arena, "%s.packed", source->name),
                                                 computed, &what, 1),
                                 -1};
    else
        *ref = (sbp_tensor_part){sbp_call_schedule_add(e->p, e->r, class, buffer, computed, true), -1};
}

static void find_calls(sbp_calls_builder *e) {
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

/* As the functions of their calls have them. */
static void find_pieces(sbp_calls_builder *e) {
    const sbp_module *m = e->p->module;
    e->pieces = SBP_NEW_ARRAY(e->p->arena, sbp_expert_pieces, m->param_count + 1);
    for (int32_t c = 0; c < m->call_count && e->p->options.schedule.expert_pieces > 1; c++) {
        const sbp_derivative *d = &e->from->derivatives->of[m->calls[c].func];
        const sbp_func *from = d->derivative ? d->derivative : d->func;
        for (int32_t i = 0, number = 0; i < from->arg_count; i++) {
            if (from->values[from->args[i]].role != SBP_VALUE_PARAM)
                continue;
            int32_t param = m->calls[c].params[number];
            e->pieces[param] = sbp_lower_pieces(e->p, from, m->calls[c].func, from->args[i], number++);
            e->small[param] = e->small[param] && e->pieces[param].count == 0;
        }
    }
}

sbp_status sbp_calls_make_lasting(sbp_calls_builder *e) {
    static const sbp_tensor_part none = {-1, -1};
    sbp_program_builder *p = e->p;
    const sbp_lasting *l = e->from->lasting;
    int32_t count = p->module->param_count;
    sbp_bucket_list buckets = {0};
    e->params = SBP_NEW_ARRAY(p->arena, sbp_tensor_part, count + 1);
    e->grads = SBP_NEW_ARRAY(p->arena, sbp_tensor_part, count + 1);
    e->states = sbp_arena_array(p->arena, (size_t)count + 1, sizeof *e->states);
    e->accums = SBP_NEW_ARRAY(p->arena, sbp_tensor_part, count + 1);
    e->uses = SBP_NEW_ARRAY(p->arena, int32_t, count + 1);
    e->trained = SBP_NEW_ARRAY(p->arena, int32_t, count + 1);
    find_small(e);
    find_pieces(e);
    find_calls(e);
    sbp_calls_find_flats(e);
    for (int32_t i = 0; i < count; i++)
        e->trained[i] = i > 0 ? e->trained[i - 1] + p->module->params[i - 1].trainable : 0;
    for (int32_t i = 0; i < count; i++) {
        add_lasting(e, &buckets, SBP_TENSOR_PARAM, i, 0, l->params[i], &e->params[i]);
        e->grads[i] = none;
        if (l->grads && l->grads[i] >= 0)
            add_lasting(e, &buckets, SBP_TENSOR_GRAD, i, 0, l->grads[i], &e->grads[i]);
        const sbp_update *update = l->updates ? l->updates[i] : NULL;
        for (int32_t o = 0; update && o < update->operand_count; o++) {
            int32_t buffer = l->states[i * SBP_MAX_UPDATE_OPERANDS + o];
            e->states[i][o] = none;
            if (buffer >= 0)
                add_lasting(e, &buckets, SBP_TENSOR_STATE, i, o, buffer, &e->states[i][o]);
        }
    }
    sbp_bucket_finish(p, e->r, &buckets);
    e->open = SBP_NEW_ARRAY(p->arena, int32_t, e->r->tensor_count + 1);
    e->clip = e->norms = none;
    if (l->clip >= 0)
        e->clip.tensor = sbp_call_schedule_add(p, e->r, SBP_TENSOR_OTHER, l->clip, SBP_F64, true);
    if (l->norms >= 0)
        e->norms.tensor = sbp_call_schedule_add(p, e->r, SBP_TENSOR_OTHER, l->norms, SBP_F64, true);
    return l->updates ? sbp_calls_make_flat_rules(e) : SBP_OK;
}
