/* flats.c: what lies together where ranks have shares (ZeRO): the parameters of a segment that one rule
 * updates; a table that several calls use alone; what is small in the whole model.
 *
 * A share is of a bucket, not of a matrix, and need not end at a row. The same places are in all buckets that
 * belong to a flat: parameters, gradients, states. Small ones are few bytes in many pieces: their parameters
 * and gradients are whole on every rank, in one bucket.
 *
 * Random numbers are of places in a parameter. What is rounded by them is a flat of its own, whose rows are
 * counted from where the share begins in it; small ones, and those that are no whole blocks, are in none:
 * every rank updates all of them. */
#include <string.h>

#include "ir/base/census.h"
#include "passes/calls/builder.h"

static int zero_of(const sbp_calls_builder *e) {
    return e->ranks > 1 ? e->p->options.zero : 0;
}

bool sbp_calls_is_sharded(const sbp_calls_builder *e, sbp_tensor_class class, int32_t param) {
    if (e->flat_of[param] < 0)
        return false;
    const sbp_flat *f = &e->flats[e->flat_of[param]];
    int least = class == SBP_TENSOR_STATE ? 1 : class == SBP_TENSOR_GRAD ? 2 : 3;
    return zero_of(e) >= least && (class == SBP_TENSOR_STATE || !f->small);
}

/* Elements at whose multiples parameters begin: where something of a flat is on disk, blocks of its file. */
static int64_t unit_of(const sbp_calls_builder *e) {
    for (int k = 0; k < SBP_TENSOR_CLASS_COUNT; k++)
        if (e->p->options.schedule.placement[k] == SBP_DISK)
            return SBP_DISK_ALIGNMENT;
    return SBP_BUCKET_ALIGNMENT;
}

static const char *key_of(const sbp_calls_builder *e, int32_t param) {
    const sbp_param *source = &e->p->module->params[param];
    int32_t call = e->call_of[param];
    bool alone = call < 0 || sbp_update_is_random(e->p, param);
    int32_t place = e->small[param] ? -1 : alone ? e->p->module->call_count + 1 + param : call;
    return sbp_arena_printf(e->p->arena, "%d %d %d %s", place, source->trainable,
                            source->format != SBP_FORMAT_NONE, sbp_update_flat_key(e->p, source));
}

static void add(sbp_calls_builder *e, int32_t param) {
    const sbp_param *source = &e->p->module->params[param];
    const char *key = key_of(e, param);
    int64_t elems = sbp_round_up(sbp_type_row_elems(&source->type), unit_of(e));
    int64_t most = sbp_bucket_most(e->p, source->storage, source->type.dtype, SBP_BUCKET_MOST);
    int32_t found = e->flat_count - 1;
    while (found >= 0 && (strcmp(e->flats[found].key, key) != 0 || e->flats[found].elems + elems > most)) {
        SBP_CROSS_IF(strcmp(e->flats[found].key, key) == 0, plan_shares_in_buckets);
        found--;
    }
    SBP_CROSS_IF(found >= 0, plan_shares_in_bucket);
    if (found < 0) {
        const sbp_flat f = {.key = key, .small = e->small[param], .trained = source->trainable};
        SBP_PUSH(e->p->arena, e->flats, e->flat_count, e->flat_capacity, f);
        found = e->flat_count - 1;
    }
    sbp_flat *f = &e->flats[found];
    SBP_PUSH(e->p->arena, f->params, f->count, f->capacity, param);
    f->elems += elems;
    e->flat_of[param] = found;
}

void sbp_calls_find_flats(sbp_calls_builder *e) {
    const sbp_module *m = e->p->module;
    e->flat_of = SBP_NEW_ARRAY(e->p->arena, int32_t, m->param_count + 1);
    for (int32_t i = 0; i < m->param_count; i++) {
        bool alone = m->params[i].trainable
                         ? sbp_update_is_random(e->p, i) && (e->small[i] || !sbp_update_has_shares(e->p, i))
                         : zero_of(e) < 3 || e->small[i];
        e->flat_of[i] = -1;
        if (zero_of(e) > 0 && !alone)
            add(e, i);
    }
}

void sbp_calls_flat_key(const sbp_calls_builder *e, int32_t param, int32_t operand, sbp_bucket_key *key) {
    const sbp_param *source = &e->p->module->params[param];
    const sbp_update *update = key->class == SBP_TENSOR_STATE ? e->from->lasting->updates[param] : NULL;
    int64_t unit = unit_of(e), cols = SBP_BUCKET_ALIGNMENT;
    if (update && update->operands[operand].cols == 1 && sbp_type_row_elems(&source->type) > 1 &&
        sbp_extent_as_const(update->operands[operand].rows) * SBP_BLOCK ==
            sbp_type_row_elems(&source->type)) {
        unit /= SBP_BLOCK; /* one for each block of the parameter */
        cols = 1;
    }
    key->flat = 1 + e->flat_of[param];
    key->unit = unit;
    key->whole = unit * e->p->program->group;
    key->cols = cols;
    key->sharding = sbp_calls_is_sharded(e, key->class, param) ? SBP_SHARDED
                    : key->class == SBP_TENSOR_GRAD            ? SBP_OWN
                                                               : SBP_WHOLE;
    if (key->call < 0)
        key->call = e->p->module->call_count;
}

sbp_status sbp_calls_make_flat_rules(sbp_calls_builder *e) {
    sbp_map rules;
    sbp_map_init(&rules, e->p->arena);
    for (int32_t i = 0; i < e->flat_count; i++) {
        sbp_flat *f = &e->flats[i];
        if (!f->trained || e->p->options.optimizer == SBP_OPTIMIZER_NONE)
            continue;
        const sbp_placed_tensor *numbers = &e->r->tensors[e->params[f->params[0]].tensor];
        const sbp_param *like = &e->p->module->params[f->params[0]];
        int64_t rows = sbp_extent_as_const(numbers->rows) / (numbers->sharded ? 1 : e->p->program->group);
        const char *key =
            sbp_arena_printf(e->p->arena, "%lld %s", (long long)rows, sbp_update_flat_key(e->p, like));
        int32_t same = sbp_map_get(&rules, key);
        if (same < 0)
            SBP_TRY(sbp_update_make_flat(e->p, like, rows, &f->rule));
        else
            f->rule = e->flats[same].rule;
        if (same < 0)
            sbp_map_set(&rules, key, i);
    }
    return SBP_OK;
}
