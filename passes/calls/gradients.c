/* gradients.c: from the accumulators of a call to updates, and over the interconnect between. */
#include <string.h>

#include "ir/base/census.h"
#include "passes/calls/builder.h"

/* ---- tasks -------------------------------------------------------------------------------------------- */

static bool is_last_part(const sbp_calls_builder *e, sbp_tensor_part what) {
    const sbp_placed_tensor *tensor = &e->r->tensors[what.tensor];
    return what.part < 0 || what.part + 1 == e->r->layouts[e->r->pools[tensor->pool].layout].count;
}

static const sbp_flat *flat_of(const sbp_calls_builder *e, int32_t param) {
    return e->flat_of[param] >= 0 ? &e->flats[e->flat_of[param]] : NULL;
}

/* Whether ranks update shares. */
static bool has_flats(const sbp_calls_builder *e) {
    for (int32_t i = 0; i < e->flat_count; i++)
        if (e->flats[i].trained)
            return true;
    return false;
}

/* What an update takes of a parameter: all of it, or this rank's share of its flat. */
static sbp_operand update_operand(const sbp_calls_builder *e, int32_t param, sbp_tensor_part what,
                                  sbp_access access) {
    sbp_operand operand = sbp_calls_stored(what, access);
    if (e->flat_of[param] >= 0 && what.tensor != e->clip.tensor) {
        operand.part = -1;
        operand.form = SBP_FORM_SHARE;
    }
    return operand;
}

/* The norms of gradients whose class is updated on the host are taken there, also of small ones: they stand
 * beside each other. */
static void sum_squares(sbp_calls_builder *e, int32_t param, sbp_tensor_part gradient) {
    sbp_operand operands[] = {sbp_calls_stored(e->norms, SBP_UPDATE),
                              update_operand(e, param, gradient, SBP_READ)};
    sbp_task *task = sbp_calls_add_task(e, SBP_TASK_SUM_SQUARES, operands, 2);
    task->param = param;
    task->on_host = e->p->options.schedule.host_update &&
                    sbp_calls_placement(e, SBP_TENSOR_STATE, e->trained[param]) != SBP_DEVICE &&
                    (e->flat_of[param] < 0 || (!e->step && sbp_calls_is_sharded(e, SBP_TENSOR_GRAD, param)));
    task->when = has_flats(e) && e->flat_of[param] < 0 ? sbp_scalar_names[SBP_SCALAR_RANK_FIRST] : NULL;
}

void sbp_calls_finish_norm(sbp_calls_builder *e) {
    sbp_operand operands[] = {sbp_calls_stored(e->norms, SBP_READ), sbp_calls_stored(e->clip, SBP_WRITE)};
    if (has_flats(e)) { /* each rank has summed its shares, the first what all have all of */
        sbp_operand norms = sbp_calls_stored(e->norms, SBP_UPDATE);
        bool groups = e->p->program->group < e->ranks; /* each has all shares, as the others */
        sbp_calls_add_task(e, SBP_TASK_COLLECTIVE, &norms, 1)->collective =
            groups ? SBP_GROUP_REDUCE : SBP_ALL_REDUCE;
    }
    sbp_calls_add_task(e, SBP_TASK_NORM, operands, e->clip.tensor >= 0 ? 2 : 1);
}

static void update(sbp_calls_builder *e, int32_t param, sbp_tensor_part gradient) {
    const sbp_flat *flat = flat_of(e, param);
    const sbp_update *rule = flat ? flat->rule : e->from->lasting->updates[param];
    sbp_operand operands[SBP_MAX_UPDATE_OPERANDS] = {0};
    for (int32_t i = 0; i < rule->operand_count; i++) {
        sbp_update_operand_kind kind = rule->operands[i].kind;
        operands[i] = update_operand(e, param,
                                     kind == SBP_UPDATE_GRAD    ? gradient
                                     : kind == SBP_UPDATE_CLIP  ? e->clip
                                     : kind == SBP_UPDATE_PARAM ? e->params[param]
                                                                : e->states[param][i],
                                     rule->operands[i].access);
    }
    sbp_task *task = sbp_calls_add_task(e, SBP_TASK_UPDATE, operands, rule->operand_count);
    task->param = param;
    task->rule = flat ? flat->rule : NULL;
    task->on_host = sbp_calls_updates_on_host(e, param);
}

/* Whether sums of this type are rounded before they cross. */
static bool is_rounded(const sbp_calls_builder *e, sbp_dtype dtype) {
    return e->p->options.reduce_bf16 && dtype == SBP_F32;
}

/* ---- accumulators ------------------------------------------------------------------------------------ */

/* What the accumulator of parameter `i` of a call's segment is called. Those of parameters used once are
 * shared by all calls of the kind. */
static const char *accum_name(const sbp_calls_builder *e, int32_t call, int32_t i) {
    const sbp_module *m = e->p->module;
    int32_t param = m->calls[call].params[i];
    if (e->uses[param] > 1)
        return sbp_arena_printf(e->p->arena, "A:%s", m->params[param].name); /* no function is called so */
    return sbp_arena_printf(e->p->arena, "A.%s.p%d", m->funcs[m->calls[call].func]->name, i);
}

static int32_t sum_buffer(sbp_calls_builder *e, const char *name, int32_t param, int32_t ring_size) {
    sbp_program_builder *p = e->p;
    const sbp_buffer *w = &p->program->buffers[e->from->lasting->params[param]];
    return sbp_lower_buffer(p, name, SBP_ROLE_ACCUM, SBP_DEVICE,
                            sbp_lower_wide(p->module->params[param].type.dtype), ring_size, w->rows, w->cols,
                            -1);
}

static int32_t accum_buffer(sbp_calls_builder *e, int32_t call, int32_t i, int32_t ring_size) {
    return sum_buffer(e, accum_name(e, call, i), e->p->module->calls[call].params[i], ring_size);
}

/* Those of a layer go to the host's cores in pieces, or over the interconnect. */
static bool accumulates_in_bucket(const sbp_calls_builder *e, int32_t call, int32_t param) {
    return e->step && e->call_of[param] == call && e->flat_of[param] < 0 &&
           (e->ranks > 1 || sbp_calls_joining(e, SBP_TENSOR_OTHER, param, SBP_DEVICE) == SBP_JOIN_PIECE);
}

/* The tensor of accumulators that were made for another call of the kind, or for this parameter; -1. */
static int32_t find_accums(const sbp_calls_builder *e, int32_t call, const int32_t *members, int32_t count,
                           bool bucket, int32_t ring_index) {
    const sbp_invocation *c = &e->p->module->calls[call];
    int32_t param = e->uses[c->params[members[0]]] > 1 ? c->params[members[0]] : -1;
    for (int32_t i = 0; i < e->set_count; i++) {
        const sbp_accums *a = &e->sets[i];
        if (a->param == param && a->bucket == bucket && a->ring_index == ring_index &&
            (param >= 0 || (a->func == c->func && a->count == count &&
                            memcmp(a->members, members, (size_t)count * sizeof *members) == 0)))
            return a->tensor;
    }
    return -1;
}

/* The tensor of accumulators of parameters `members` of a call's segment, made now: one bucket, or one alone;
 * with `like` a bucket that lies as that, the first of `ring_size`. */
static int32_t make_accums(sbp_calls_builder *e, int32_t call, const int32_t *members, int32_t count,
                           bool bucket, int32_t ring_size, const sbp_placed_tensor *like) {
    sbp_program_builder *p = e->p;
    const sbp_invocation *c = &p->module->calls[call];
    int32_t *buffers = SBP_NEW_ARRAY(p->arena, int32_t, count);
    for (int32_t k = 0; k < count; k++)
        buffers[k] = accum_buffer(e, call, members[k], ring_size);
    sbp_dtype dtype = p->program->buffers[buffers[0]].dtype;
    const char *name = sbp_arena_printf(p->arena, "A.%s", p->module->funcs[c->func]->name);
    if (like)
        return sbp_bucket_make_like(p, e->r, name, SBP_ROLE_ACCUM, buffers, like);
    return bucket ? sbp_bucket_make(p, e->r, name, SBP_ROLE_ACCUM, dtype, buffers, count,
                                    p->options.schedule.sparing)
                  : sbp_call_schedule_add(p, e->r, SBP_TENSOR_OTHER, buffers[0], dtype, false);
}

/* Calls of a kind share them. */
static void keep_accums(sbp_calls_builder *e, int32_t call, const int32_t *members, int32_t count,
                        bool bucket, int32_t ring_index, int32_t tensor) {
    const sbp_invocation *c = &e->p->module->calls[call];
    sbp_accums a = {.func = c->func,
                    .count = count,
                    .bucket = bucket,
                    .ring_index = ring_index,
                    .tensor = tensor,
                    .param = -1};
    a.param = e->uses[c->params[members[0]]] > 1 ? c->params[members[0]] : -1;
    a.members = SBP_NEW_ARRAY(e->p->arena, int32_t, count);
    memcpy(a.members, members, (size_t)count * sizeof *members);
    SBP_PUSH(e->p->arena, e->sets, e->set_count, e->set_capacity, a);
}

static void begin_tensor(sbp_calls_builder *e, int32_t call, const int32_t *members, int32_t count,
                         bool bucket, int32_t tensor) {
    const sbp_invocation *c = &e->p->module->calls[call];
    for (int32_t k = 0; k < count; k++)
        e->accums[c->params[members[k]]] = (sbp_tensor_part){tensor, bucket ? k : -1};
    sbp_calls_fill(e, tensor);
}

/* Begins the accumulators of parameters `members` of a call's segment: one bucket, or one alone; like: NULL,
 * or of a flat. While the sums of one call are on the interconnect, the next of its kind adds to another
 * bucket: double buffering. */
static void begin_accums(sbp_calls_builder *e, int32_t call, const int32_t *members, int32_t count,
                         bool bucket, const sbp_placed_tensor *like) {
    const sbp_module *m = e->p->module;
    const sbp_invocation *c = &m->calls[call];
    int32_t before = 0, all = 0;
    for (int32_t k = 0; k < m->call_count; k++) {
        before += k < call && m->calls[k].func == c->func;
        all += m->calls[k].func == c->func;
    }
    sbp_dtype wide = sbp_lower_wide(m->params[c->params[members[0]]].type.dtype);
    bool crosses = e->step ? e->ranks > 1 : like && !is_rounded(e, wide); /* else what is rounded crosses */
    int32_t ring_size = crosses && all > 1 && e->uses[c->params[members[0]]] == 1 ? 2 : 1;
    int32_t tensor = find_accums(e, call, members, count, bucket, before % ring_size);
    if (tensor < 0) {
        tensor = make_accums(e, call, members, count, bucket, ring_size, like);
        keep_accums(e, call, members, count, bucket, 0, tensor);
        if (ring_size > 1) {
            sbp_placed_tensor other = e->r->tensors[tensor];
            other.element = 1;
            SBP_PUSH(e->p->arena, e->r->tensors, e->r->tensor_count, e->r->tensor_capacity, other);
            keep_accums(e, call, members, count, bucket, 1, e->r->tensor_count - 1);
        }
        tensor = find_accums(e, call, members, count, bucket, before % ring_size);
    }
    begin_tensor(e, call, members, count, bucket, tensor);
}

/* Begins the gradients of all parameters of a flat, which all belong to this call. */
static void begin_flat_accums(sbp_calls_builder *e, int32_t call, const sbp_flat *flat) {
    const sbp_invocation *c = &e->p->module->calls[call];
    int32_t *members = SBP_NEW_ARRAY(e->p->arena, int32_t, flat->count);
    for (int32_t k = 0; k < flat->count; k++)
        while (c->params[members[k]] != flat->params[k])
            members[k]++;
    const sbp_placed_tensor like = e->r->tensors[e->params[flat->params[0]].tensor];
    begin_accums(e, call, members, flat->count, true, &like);
}

/* Begins the gradients of a flat of small parameters, which belong to many calls: once for the whole list. */
static void begin_small_accums(sbp_calls_builder *e, const sbp_flat *flat) {
    sbp_program_builder *p = e->p;
    int32_t *buffers = SBP_NEW_ARRAY(p->arena, int32_t, flat->count);
    for (int32_t k = 0; k < flat->count; k++)
        buffers[k] =
            sum_buffer(e, sbp_arena_printf(p->arena, "A:%s", p->module->params[flat->params[k]].name),
                       flat->params[k], 1);
    const sbp_placed_tensor like = e->r->tensors[e->params[flat->params[0]].tensor];
    int32_t tensor =
        sbp_bucket_make_like(p, e->r, sbp_arena_printf(p->arena, "A.small.%d", (int)(flat - e->flats)),
                             SBP_ROLE_ACCUM, buffers, &like);
    for (int32_t k = 0; k < flat->count; k++)
        e->accums[flat->params[k]] = (sbp_tensor_part){tensor, k};
    sbp_calls_fill(e, tensor);
}

/* With all of the same call whose gradients go to the host, as many as one bucket has; each where the first
 * with room for it is. */
static void begin_accum_buckets(sbp_calls_builder *e, int32_t call) {
    sbp_program_builder *p = e->p;
    const sbp_invocation *c = &p->module->calls[call];
    int32_t *members = SBP_NEW_ARRAY(p->arena, int32_t, c->param_count);
    bool *bucketed = SBP_NEW_ARRAY(p->arena, bool, c->param_count), sparing = p->options.schedule.sparing;
    for (int32_t count = 1; count > 0;) {
        int64_t elems = 0;
        count = 0;
        for (int32_t i = 0; i < c->param_count; i++) {
            const sbp_param *source = &p->module->params[c->params[i]];
            sbp_dtype wide = sbp_lower_wide(source->type.dtype);
            int64_t part = sbp_round_up(sbp_type_row_elems(&source->type), SBP_BUCKET_ALIGNMENT);
            int64_t most = sbp_bucket_most(p, wide, wide, sparing ? e->largest : SBP_BUCKET_MOST);
            bool again = bucketed[i];
            for (int32_t j = 0; j < i; j++)
                again |= c->params[j] == c->params[i];
            if (again || !accumulates_in_bucket(e, call, c->params[i]))
                continue;
            SBP_CROSS_IF(count > 0 && elems + part > most, plan_gradients_in_buckets);
            if (count > 0 && elems + part > most)
                continue;
            members[count++] = i;
            elems += part;
            bucketed[i] = true;
        }
        SBP_CROSS_IF(count > 1, plan_gradients_in_bucket);
        if (count > 0)
            begin_accums(e, call, members, count, sparing || count > 1, NULL);
    }
}

/* The accumulator of parameter `i` of the call's segment. */
sbp_tensor_part sbp_calls_accum(sbp_calls_builder *e, int32_t call, int32_t i) {
    int32_t param = e->p->module->calls[call].params[i];
    if (sbp_calls_accumulates_in_place(e, &e->p->module->params[param]))
        return e->grads[param];
    if (e->accums[param].tensor < 0 &&
        (sbp_calls_is_sharded(e, SBP_TENSOR_GRAD, param) || (e->step && flat_of(e, param))))
        begin_flat_accums(e, call, flat_of(e, param));
    if (e->accums[param].tensor < 0 && accumulates_in_bucket(e, call, param))
        begin_accum_buckets(e, call);
    if (e->accums[param].tensor < 0)
        begin_accums(e, call, &i, 1, false, NULL);
    return e->accums[param];
}

static void flush(sbp_calls_builder *e, int32_t param) {
    sbp_operand operands[] = {sbp_calls_stored(e->grads[param], SBP_UPDATE),
                              sbp_calls_stored(e->accums[param], SBP_READ)};
    sbp_calls_add_task(e, SBP_TASK_FLUSH, operands, 2);
}

/* ---- over the interconnect ----------------------------------------------------------------------------- */

/* What a tensor is rounded to: of its shape, where it lives. */
static int32_t rounded_tensor(sbp_calls_builder *e, int32_t tensor) {
    const sbp_placed_tensor *from = &e->r->tensors[tensor];
    sbp_space space = from->space == SBP_DEVICE ? SBP_DEVICE : SBP_HOST;
    int32_t found = 0;
    while (found < e->rounded_count &&
           (e->rounded[found].space != space || e->rounded[found].cols != from->cols ||
            !sbp_extent_equal(e->rounded[found].rows, from->rows)))
        found++;
    if (found == e->rounded_count) {
        sbp_calls_rounded buffers = {.space = space, .rows = from->rows, .cols = from->cols};
        int32_t buffer = sbp_lower_buffer(e->p, sbp_arena_printf(e->p->arena, "W.%d", (int)found),
                                          SBP_ROLE_ACCUM, space, SBP_BF16, 2, from->rows, from->cols, -1);
        for (int k = 0; k < 2; k++) {
            buffers.tensors[k] = sbp_call_schedule_add(e->p, e->r, SBP_TENSOR_OTHER, buffer, SBP_BF16, false);
            e->r->tensors[buffers.tensors[k]].element = k;
        }
        SBP_PUSH(e->p->arena, e->rounded, e->rounded_count, e->rounded_capacity, buffers);
    }
    return e->rounded[found].tensors[e->rounded[found].uses++ % 2];
}

static void convert(sbp_calls_builder *e, sbp_operand to, sbp_operand from, bool on_host, const char *when) {
    sbp_task *task = sbp_calls_add_task(e, SBP_TASK_CONVERT, (sbp_operand[]){to, from}, 2);
    task->on_host = on_host;
    task->when = when;
}

/* All of a tensor, with what the other ranks have: in place, or added to a share (NULL: none). */
static void send_sums(sbp_calls_builder *e, sbp_collective_op op, int32_t tensor, const sbp_operand *share,
                      const char *when) {
    bool rounded = is_rounded(e, e->r->tensors[tensor].stored),
         away = e->r->tensors[tensor].space != SBP_DEVICE;
    int32_t sent = rounded ? rounded_tensor(e, tensor) : tensor;
    sbp_operand sums = sbp_calls_stored(sbp_calls_whole(tensor), SBP_READ),
                operands[] = {sbp_calls_stored(sbp_calls_whole(sent), SBP_UPDATE),
                              sbp_calls_stored(sbp_calls_whole(sent), SBP_READ)};
    if (share)
        operands[0] = *share;
    if (rounded)
        convert(e, sbp_calls_stored(sbp_calls_whole(sent), SBP_WRITE), sums, away, when);
    sbp_task *task = sbp_calls_add_task(e, SBP_TASK_COLLECTIVE, operands, share ? 2 : 1);
    task->collective = op;
    task->when = when;
    sums.access = SBP_UPDATE; /* nothing becomes of it where this is not the last part */
    if (rounded && !share)
        convert(e, sums, sbp_calls_stored(sbp_calls_whole(sent), SBP_READ), away, when);
}

/* With the gradients of the other ranks, where there are some: all of a bucket at once. Those that each rank
 * has all of wait for the last micro-batch of a step; shares take in the sum of each. */
static void reduce(sbp_calls_builder *e, int32_t param) {
    int32_t tensor = e->grads[param].tensor;
    if (e->ranks == 1 || tensor < 0 || --e->open[tensor] > 0)
        return;
    bool sharded = e->r->tensors[tensor].sharded;
    sbp_operand share = sbp_calls_stored(sbp_calls_whole(tensor), SBP_UPDATE);
    share.form = SBP_FORM_SHARE;
    if (sharded)
        send_sums(e, SBP_REDUCE_ADD, e->accums[param].tensor, &share, NULL);
    else
        send_sums(e, e->flat_of[param] >= 0 ? SBP_REDUCE_OWN : SBP_ALL_REDUCE, tensor, NULL,
                  sbp_scalar_names[SBP_SCALAR_PART_LAST]);
}

/* Whether the gradients of a parameter, and of all in its flat, are complete. */
static bool is_complete(const sbp_calls_builder *e, int32_t param) {
    const sbp_flat *flat = flat_of(e, param);
    bool complete = e->uses[param] <= 0;
    for (int32_t k = 0; flat && k < flat->count; k++)
        complete &= e->uses[flat->params[k]] <= 0;
    return complete;
}

/* Whether some parameter of the list before number `at` has its gradient in the same tensor. */
static bool is_again(const sbp_calls_builder *e, const int32_t *params, int32_t at) {
    for (int32_t i = 0; i < at; i++)
        if (e->accums[params[i]].tensor == e->accums[params[at]].tensor)
            return true;
    return false;
}

/* In `step`, of parameters whose gradients a call has completed: over the interconnect, then what consumes
 * them. */
static void consume(sbp_calls_builder *e, const int32_t *params, int32_t count) {
    for (int32_t i = 0; i < count && e->ranks > 1; i++) {
        if (is_again(e, params, i) || !is_complete(e, params[i]))
            continue;
        send_sums(e, flat_of(e, params[i]) ? SBP_REDUCE_OWN : SBP_ALL_REDUCE, e->accums[params[i]].tensor,
                  NULL, NULL);
    }
    for (int32_t i = 0; i < count; i++) {
        const sbp_flat *flat = flat_of(e, params[i]);
        if (flat && (is_again(e, params, i) || !is_complete(e, params[i])))
            continue;
        int32_t first = flat ? flat->params[0] : params[i];
        sum_squares(e, first, e->accums[params[i]]);
        update(e, first, e->accums[params[i]]);
    }
    for (int32_t i = 0; i < count; i++)
        if (is_complete(e, params[i]))
            e->accums[params[i]].tensor = -1;
}

void sbp_calls_flush_call(sbp_calls_builder *e, int32_t call) {
    sbp_program_builder *p = e->p;
    const sbp_invocation *c = &p->module->calls[call];
    int32_t *done = SBP_NEW_ARRAY(p->arena, int32_t, c->param_count + 1), count = 0;
    for (int32_t i = 0; i < c->param_count; i++) {
        int32_t param = c->params[i];
        if (!p->module->params[param].trainable || e->uses[param] <= 0)
            continue;
        bool again = false; /* the same parameter twice in one call counts once */
        for (int32_t j = 0; j < i; j++)
            again |= c->params[j] == param;
        if (!again && --e->uses[param] == 0)
            done[count++] = param;
    }
    if (e->step) {
        consume(e, done, count);
        return;
    }
    for (int32_t i = 0; i < count; i++) {
        if (!sbp_calls_accumulates_in_place(e, &p->module->params[done[i]]) &&
            !sbp_calls_is_sharded(e, SBP_TENSOR_GRAD, done[i]))
            flush(e, done[i]);
        reduce(e, done[i]);
        e->accums[done[i]].tensor = -1;
    }
}

/* ---- lists ------------------------------------------------------------------------------------------- */

void sbp_calls_begin_gradients(sbp_calls_builder *e) {
    const sbp_module *m = e->p->module;
    for (int32_t i = 0; i < m->param_count; i++) {
        e->accums[i].tensor = -1;
        e->uses[i] = 0;
        for (int32_t c = 0; c < m->call_count; c++) {
            bool used = false;
            for (int32_t j = 0; j < m->calls[c].param_count; j++)
                used |= m->calls[c].params[j] == i;
            e->uses[i] += used && sbp_calls_runs(e, c);
        }
        if (e->grads[i].tensor >= 0)
            e->open[e->grads[i].tensor] += e->uses[i] > 0;
    }
    if (e->step && has_flats(e))
        sbp_calls_fill(e, e->norms.tensor);
    for (int32_t i = 0; i < e->flat_count && e->step; i++)
        if (e->flats[i].small && e->flats[i].trained)
            begin_small_accums(e, &e->flats[i]);
}

/* The norm over all gradients and its clipping factor, then the optimizer's rule for each parameter, or flat
 * of them; gradients are cleared. Where gradients stay, each of the three goes over all: its commands are
 * independent. Where they come and go, updates begin with what the norm ends with. */
void sbp_calls_update_list(sbp_calls_builder *e) {
    const sbp_module *m = e->p->module;
    bool away = sbp_calls_placement(e, SBP_TENSOR_GRAD, 0) != SBP_DEVICE, flats = has_flats(e);
    int32_t count = m->param_count;
    sbp_calls_begin_list(e, SBP_ENTRY_UPDATE);
    if (flats) /* they are fewer than parameters */
        sbp_calls_fill(e, e->norms.tensor);
    for (int pass = 0; pass < (away ? 2 : 3); pass++) {
        for (int32_t n = 0; n < count; n++) {
            int32_t i = away && pass == 0 ? count - 1 - n : n;
            const sbp_flat *flat = flat_of(e, i);
            if (!m->params[i].trainable || (flat && flat->params[0] != i))
                continue;
            if (pass == 0)
                sum_squares(e, i, e->grads[i]);
            if (pass == 1)
                update(e, i, e->grads[i]);
            if (pass == (away ? 1 : 2) && (flat || is_last_part(e, e->grads[i])))
                sbp_calls_fill(e, e->grads[i].tensor);
        }
        if (pass == 0)
            sbp_calls_finish_norm(e);
    }
}
