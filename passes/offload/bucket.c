/* bucket.c: tensors that are many buffers of one segment behind each other, so that they move in one piece.
 *
 * What a call wants all of: parameters, and gradients that it adds to where they are kept. And what comes to
 * the host's cores: gradients, states from disk, weights that live on the device. Buckets are cut at 250 M
 * elements, so that copies and updates of a large layer overlap. Where host memory is scarce (sparing), what
 * comes to its cores is cut into buckets no larger than the largest matrix of a layer, and as many staging
 * buffers serve all of them as take what two for each shape of matrix would. An update on the device wants
 * one parameter's states at a time: these move alone, staging buffers for whole segments would be memory for
 * nothing.
 *
 * Parts begin at multiples of SBP_BUCKET_ALIGNMENT elements, which are whole blocks of 8-bit states, on disk
 * of SBP_DISK_ALIGNMENT, which are whole blocks of a file in every type; most matrices have such numbers of
 * elements. The rules of an update see a part as its own matrix; what is converted is converted as one.
 */
#include <string.h>

#include "ir/base/census.h"
#include "passes/offload/offload.h"

const char *const sbp_tensor_class_names[SBP_TENSOR_CLASS_COUNT] = {"checkpoints", "saved", "states",
                                                                    "gradients", "params"};

/* ---- tensors ------------------------------------------------------------------------------------------- */

int32_t sbp_call_schedule_pool(sbp_program_builder *p, sbp_call_schedule *r, sbp_tensor_pool pool) {
    for (int32_t i = r->pool_count - 1; i >= 0; i--) {
        const sbp_tensor_pool *q = &r->pools[i];
        if (q->name == pool.name && q->role == pool.role && q->stored == pool.stored &&
            q->computed == pool.computed && q->cols == pool.cols && q->layout == pool.layout &&
            q->unpacked.cols == pool.unpacked.cols && q->unpacked.layout == pool.unpacked.layout &&
            sbp_extent_equal(q->unpacked.rows, pool.unpacked.rows) && sbp_extent_equal(q->rows, pool.rows))
            return i;
    }
    SBP_PUSH(p->arena, r->pools, r->pool_count, r->pool_capacity, pool);
    return r->pool_count - 1;
}

static int32_t add_tensor(sbp_program_builder *p, sbp_call_schedule *r, sbp_tensor_class class, sbp_role role,
                          int32_t buffer, sbp_dtype computed, bool lasts, int32_t layout) {
    const sbp_buffer *b = &p->program->buffers[buffer];
    sbp_placed_tensor tensor = {.class = class,
                                .role = role,
                                .pool = sbp_call_schedule_pool(p, r,
                                                               (sbp_tensor_pool){.role = role,
                                                                                 .stored = b->dtype,
                                                                                 .computed = computed,
                                                                                 .rows = b->rows,
                                                                                 .cols = b->cols,
                                                                                 .layout = layout}),
                                .buffer = buffer,
                                .space = b->space,
                                .stored = b->dtype,
                                .computed = computed,
                                .rows = b->rows,
                                .cols = b->cols,
                                .lasts = lasts};
    SBP_PUSH(p->arena, r->tensors, r->tensor_count, r->tensor_capacity, tensor);
    return r->tensor_count - 1;
}

int32_t sbp_call_schedule_add(sbp_program_builder *p, sbp_call_schedule *r, sbp_tensor_class class,
                              int32_t buffer, sbp_dtype computed, bool lasts) {
    return add_tensor(p, r, class, p->program->buffers[buffer].role, buffer, computed, lasts, -1);
}

/* ---- layouts ------------------------------------------------------------------------------------------ */

static int64_t elems_of(const sbp_buffer *b) {
    return sbp_extent_as_const(b->rows) * b->cols;
}

/* On disk a part begins where a block of the file does, whatever its type. */
static int64_t unit_of(sbp_space space) {
    return space == SBP_DISK ? SBP_DISK_ALIGNMENT : SBP_BUCKET_ALIGNMENT;
}

static bool same_layout(const sbp_layout *a, const sbp_layout *b) {
    bool same =
        a->count == b->count && a->unit == b->unit && a->whole == b->whole && !a->dtypes == !b->dtypes;
    for (int32_t i = 0; same && i < a->count; i++)
        same = a->cols[i] == b->cols[i] && sbp_extent_equal(a->rows[i], b->rows[i]) &&
               (!a->dtypes || a->dtypes[i] == b->dtypes[i]);
    return same;
}

/* The number of the layout with these parts, whose places are still to be found. */
static int32_t find_layout(sbp_program_builder *p, sbp_call_schedule *r, sbp_layout l) {
    for (int32_t i = r->layout_count - 1; i >= 0; i--)
        if (same_layout(&r->layouts[i], &l))
            return i;
    l.place = SBP_NEW_ARRAY(p->arena, int64_t, l.count);
    for (int32_t i = 0; i < l.count; i++) {
        l.place[i] = l.elems;
        l.elems += sbp_round_up(sbp_extent_as_const(l.rows[i]) * l.cols[i] *
                                    (l.dtypes ? sbp_dtype_bytes(l.dtypes[i]) : 1),
                                l.unit);
    }
    l.elems = sbp_round_up(l.elems, l.whole);
    SBP_PUSH(p->arena, r->layouts, r->layout_count, r->layout_capacity, l);
    return r->layout_count - 1;
}

static sbp_layout begin_layout(sbp_program_builder *p, int32_t count, bool bytes) {
    return (sbp_layout){.count = count,
                        .unit = SBP_BUCKET_ALIGNMENT,
                        .whole = 1,
                        .rows = SBP_NEW_ARRAY(p->arena, sbp_extent, count),
                        .cols = SBP_NEW_ARRAY(p->arena, int64_t, count),
                        .dtypes = bytes ? SBP_NEW_ARRAY(p->arena, sbp_dtype, count) : NULL};
}

/* That of buffers which are there. */
static int32_t layout_of(sbp_program_builder *p, sbp_call_schedule *r, const int32_t *buffers, int32_t count,
                         bool bytes, const sbp_bucket_key *key) {
    sbp_layout l = begin_layout(p, count, bytes);
    l.unit = unit_of(p->program->buffers[buffers[0]].space);
    if (key && key->flat) {
        l.unit = key->unit;
        l.whole = key->whole;
    }
    for (int32_t i = 0; i < count; i++) {
        const sbp_buffer *b = &p->program->buffers[buffers[i]];
        l.rows[i] = b->rows;
        l.cols[i] = b->cols;
        if (bytes)
            l.dtypes[i] = b->dtype;
    }
    return find_layout(p, r, l);
}

void sbp_bucket_parts(sbp_program_builder *p, int32_t bucket, const sbp_layout *layout) {
    sbp_buffer b = p->program->buffers[bucket];
    for (int32_t i = 0; i < layout->count; i++) {
        int32_t part = sbp_lower_buffer(p, sbp_arena_printf(p->arena, "%s.%d", b.name, i), b.role, b.space,
                                        layout->dtypes ? layout->dtypes[i] : b.dtype, b.count,
                                        layout->rows[i], layout->cols[i], -1);
        p->program->buffers[part].part_of = bucket + 1;
        p->program->buffers[part].place = layout->place[i];
    }
}

/* A bucket of buffers that are there, laid out so; returns its buffer. key: NULL, or of what it is flat. */
static int32_t join(sbp_program_builder *p, const sbp_layout *l, const char *name, sbp_role role,
                    sbp_dtype dtype, const int32_t *buffers, const sbp_bucket_key *key) {
    sbp_space space = p->program->buffers[buffers[0]].space;
    int64_t cols = key && key->flat ? key->cols : SBP_BUCKET_ALIGNMENT, elems = l->elems;
    sbp_sharding sharding = key && key->flat ? key->sharding : SBP_WHOLE;
    if (sharding == SBP_SHARDED)
        elems /= p->program->group;
    int32_t bucket = sbp_lower_buffer(p, name, role, space, dtype, p->program->buffers[buffers[0]].count,
                                      sbp_extent_const(elems / cols), cols, -1);
    p->program->buffers[bucket].sharding = sharding;
    for (int32_t i = 0; i < l->count; i++) {
        p->program->buffers[buffers[i]].part_of = bucket + 1;
        p->program->buffers[buffers[i]].place = l->place[i];
    }
    return bucket;
}

static void set_parts(sbp_program_builder *p, sbp_placed_tensor *tensor, const int32_t *buffers,
                      int32_t count) {
    tensor->parts = SBP_NEW_ARRAY(p->arena, int32_t, count);
    memcpy(tensor->parts, buffers, (size_t)count * sizeof *buffers);
}

static int32_t make(sbp_program_builder *p, sbp_call_schedule *r, const char *name, sbp_role role,
                    sbp_dtype computed, const int32_t *buffers, int32_t count, const sbp_bucket_key *key) {
    sbp_buffer first = p->program->buffers[buffers[0]];
    int32_t layout = layout_of(p, r, buffers, count, false, key);
    bool lasts = role == SBP_ROLE_BUCKET;
    int32_t bucket = join(p, &r->layouts[layout], name, role, first.dtype, buffers, key);
    int32_t tensor =
        add_tensor(p, r, SBP_TENSOR_OTHER, lasts ? first.role : role, bucket, computed, lasts, layout);
    r->tensors[tensor].shared = key && key->shared;
    r->tensors[tensor].sharded = p->program->buffers[bucket].sharding == SBP_SHARDED;
    set_parts(p, &r->tensors[tensor], buffers, count);
    return tensor;
}

int32_t sbp_bucket_make(sbp_program_builder *p, sbp_call_schedule *r, const char *name, sbp_role role,
                        sbp_dtype computed, const int32_t *buffers, int32_t count, bool shared) {
    return make(p, r, name, role, computed, buffers, count, &(sbp_bucket_key){.shared = shared});
}

int32_t sbp_bucket_make_like(sbp_program_builder *p, sbp_call_schedule *r, const char *name, sbp_role role,
                             const int32_t *buffers, const sbp_placed_tensor *like) {
    const sbp_layout *l = &r->layouts[r->pools[like->pool].layout];
    const sbp_bucket_key key = {.flat = 1, .unit = l->unit, .whole = l->whole, .cols = like->cols};
    return make(p, r, name, role, p->program->buffers[buffers[0]].dtype, buffers, l->count, &key);
}

/* The computed form: one matrix, or all behind each other. */
static void unpack(sbp_program_builder *p, sbp_call_schedule *r, const sbp_packed *packed, int32_t count,
                   sbp_tensor_pool *pool) {
    pool->unpacked.rows = packed[0].rows;
    pool->unpacked.cols = packed[0].cols;
    pool->unpacked.layout = -1;
    if (count == 1)
        return;
    sbp_layout l = begin_layout(p, count, false);
    for (int32_t i = 0; i < count; i++) {
        l.rows[i] = packed[i].rows;
        l.cols[i] = packed[i].cols;
    }
    pool->unpacked.layout = find_layout(p, r, l);
    pool->unpacked.rows = sbp_extent_const(r->layouts[pool->unpacked.layout].elems / SBP_BUCKET_ALIGNMENT);
    pool->unpacked.cols = SBP_BUCKET_ALIGNMENT;
}

static int32_t pack(sbp_program_builder *p, sbp_call_schedule *r, const char *name, sbp_dtype computed,
                    const sbp_packed *packed, int32_t count, const sbp_bucket_key *key) {
    int32_t *buffers = SBP_NEW_ARRAY(p->arena, int32_t, count * SBP_MAX_FORMAT_PARTS), parts = 0;
    for (int32_t i = 0; i < count; i++)
        for (int32_t k = 0; k < sbp_format_of(packed[i].format)->part_count; k++)
            buffers[parts++] = packed[i].first + k;
    int32_t layout = layout_of(p, r, buffers, parts, true, key);
    int32_t bucket = join(p, &r->layouts[layout], name, SBP_ROLE_BUCKET, SBP_I8, buffers, key);
    int32_t number = add_tensor(p, r, SBP_TENSOR_PARAM, SBP_ROLE_PARAM, bucket, computed, true, layout);
    sbp_placed_tensor *tensor = &r->tensors[number];
    tensor->sharded = p->program->buffers[bucket].sharding == SBP_SHARDED;
    sbp_tensor_pool pool = r->pools[tensor->pool];
    unpack(p, r, packed, count, &pool);
    tensor->pool = sbp_call_schedule_pool(p, r, pool);
    set_parts(p, tensor, buffers, parts);
    tensor->packed = SBP_NEW_ARRAY(p->arena, sbp_packed, count);
    memcpy(tensor->packed, packed, (size_t)count * sizeof *packed);
    tensor->packed_count = count;
    return number;
}

int32_t sbp_bucket_pack(sbp_program_builder *p, sbp_call_schedule *r, const char *name, sbp_dtype computed,
                        const sbp_packed *packed, int32_t count) {
    return pack(p, r, name, computed, packed, count, NULL);
}

/* ---- what lasts --------------------------------------------------------------------------------------- */

static bool same_key(const sbp_bucket_key *a, const sbp_bucket_key *b) {
    return a->class == b->class && a->call == b->call && a->operand == b->operand &&
           a->updated == b->updated && a->trained == b->trained && a->space == b->space &&
           a->stored == b->stored && a->computed == b->computed && a->most == b->most &&
           a->shared == b->shared && a->flat == b->flat;
}

int64_t sbp_bucket_most(const sbp_program_builder *p, sbp_dtype stored, sbp_dtype computed, int64_t most) {
    int64_t unit = sbp_dtype_bytes(stored) > sbp_dtype_bytes(computed) ? sbp_dtype_bytes(stored)
                                                                       : sbp_dtype_bytes(computed),
            bytes = p->target.max_allocation_bytes, fit = bytes > 0 ? bytes / unit : INT64_MAX;
    return most > 0 && most < fit ? most : fit;
}

/* Elements of what functions read. */
static int64_t numbers_of(const sbp_program_builder *p, const sbp_packed *what) {
    return what->format ? sbp_extent_as_const(what->rows) * what->cols
                        : elems_of(&p->program->buffers[what->first]);
}

void sbp_bucket_add(sbp_program_builder *p, sbp_bucket_list *list, const sbp_bucket_key *key,
                    const sbp_packed *what, sbp_tensor_part *ref) {
    sbp_bucket_plan *found = NULL;
    int64_t elems = sbp_round_up(numbers_of(p, what), key->flat ? key->unit : unit_of(key->space)),
            most = key->flat ? INT64_MAX : sbp_bucket_most(p, key->stored, key->computed, key->most);
    if (!list->last)
        list->last = SBP_NEW_ARRAY(p->arena, int32_t, p->module->call_count + 1);
    int32_t *last = &list->last[key->call];
    for (int32_t i = *last - 1; i >= 0 && !found; i = list->plans[i].before) {
        bool same = same_key(&list->plans[i].key, key);
        SBP_CROSS_IF(same && list->plans[i].elems > most - elems, plan_buckets);
        if (same && list->plans[i].elems <= most - elems)
            found = &list->plans[i];
    }
    SBP_CROSS_IF(found, plan_bucket);
    if (!found) {
        SBP_PUSH(p->arena, list->plans, list->count, list->capacity,
                 (sbp_bucket_plan){.key = *key, .before = *last - 1});
        *last = list->count;
        found = &list->plans[list->count - 1];
    }
    found->elems += elems;
    SBP_PUSH(p->arena, found->members, found->count, found->capacity,
             (sbp_bucket_member){.packed = *what, .ref = ref});
}

static int32_t make_planned(sbp_program_builder *p, sbp_call_schedule *r, const sbp_bucket_plan *plan) {
    const sbp_bucket_key *key = &plan->key;
    const sbp_packed *first = &plan->members[0].packed;
    int32_t *buffers = SBP_NEW_ARRAY(p->arena, int32_t, plan->count);
    sbp_packed *packed = SBP_NEW_ARRAY(p->arena, sbp_packed, plan->count);
    if (plan->count == 1 && !key->shared && !first->format && !key->flat)
        return sbp_call_schedule_add(p, r, key->class, first->first, key->computed, true);
    for (int32_t i = 0; i < plan->count; i++) {
        packed[i] = plan->members[i].packed;
        buffers[i] = packed[i].first;
    }
    const char *name = sbp_arena_printf(p->arena, "%s.%s.%d", sbp_tensor_class_names[key->class],
                                        sbp_dtype_name(key->stored), key->call);
    if (first->format)
        return pack(p, r, name, key->computed, packed, plan->count, key);
    int32_t tensor = make(p, r, name, SBP_ROLE_BUCKET, key->computed, buffers, plan->count, key);
    r->tensors[tensor].class = key->class;
    return tensor;
}

void sbp_bucket_finish(sbp_program_builder *p, sbp_call_schedule *r, const sbp_bucket_list *list) {
    for (int32_t i = 0; i < list->count; i++) {
        const sbp_bucket_plan *plan = &list->plans[i];
        int32_t tensor = make_planned(p, r, plan);
        for (int32_t k = 0; k < plan->count; k++)
            *plan->members[k].ref = (sbp_tensor_part){
                tensor, r->tensors[tensor].parts && (!r->tensors[tensor].packed || plan->count > 1) ? k : -1};
    }
}
