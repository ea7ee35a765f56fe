/* fuse: turns the ops of every stage into instructions, commands over values.
 *
 * requires  stages: bodies without composites, results bound to views
 * preserves values of all results
 * breaks    the ops: schedule looks at instructions only
 *
 *   products   linear, linear_dw: gemm. An addition of a product's result to a value in memory becomes the
 * product's addend; weight gradients add straight into their accumulator row work   the row-wise ops between
 * values in memory become row kernels; kernels that read the same values and do not wait for each other are
 * one. A value that several kernels would compute from two or more values in memory is kept in memory itself
 *   sums       a sum over rows is a partial of a row kernel and a colsum; one number: reduce
 */
#include <string.h>

#include "passes/rows/fuse.h"

static bool row_wise_op(const sbp_op *op) {
    return sbp_opcode_class(op->code) == SBP_CLASS_ROWWISE;
}

static const sbp_op *def(const sbp_fuser *z, sbp_value v) {
    const sbp_value_info *info = &z->f->values[v];
    return info->role == SBP_VALUE_OP && info->op >= 0 ? &z->f->ops[info->op] : NULL;
}

static bool row_wise(const sbp_fuser *z, sbp_value v) {
    const sbp_op *op = def(z, v);
    return op && row_wise_op(op);
}

/* ---- whose memory a value is ------------------------------------------------------------------------- */

static void find_bases(sbp_fuser *z) {
    sbp_stage *s = z->stage;
    s->base = SBP_NEW_ARRAY(z->p->arena, sbp_value, z->f->value_count + 1);
    s->defined_by = SBP_NEW_ARRAY(z->p->arena, sbp_value, z->f->value_count + 1);
    for (int32_t v = 0; v < z->f->value_count; v++)
        s->base[v] = s->defined_by[v] = v;
    for (int32_t i = 0; i < z->f->op_count; i++) {
        const sbp_op *op = &z->f->ops[i];
        sbp_value y = op->results[0], x = op->operand_count > 0 ? op->operands[0] : SBP_NO_VALUE;
        if (op->code == SBP_OP_reshape || op->code == SBP_OP_stop_gradient ||
            (op->code == SBP_OP_cast && z->f->values[x].type.dtype == z->f->values[y].type.dtype))
            s->base[y] = s->base[x];
        else if (op->code == SBP_OP_take)
            s->defined_by[y] = s->defined_by[x];
    }
}

/* ---- what is in memory ------------------------------------------------------------------------------- */

static void need_in_memory(sbp_fuser *z, sbp_value v) {
    z->materialized[z->stage->base[v]] = true;
}

static bool is_accumulated(const sbp_fuser *z, sbp_value source) {
    const sbp_op *op = def(z, source);
    return op && z->uses[source] == 1 &&
           (op->code == SBP_OP_linear_dw || op->code == SBP_OP_scatter_add ||
            (op->code == SBP_OP_sum_rows && sbp_op_int(op, "rank") > 0));
}

/* The gradient of a parameter: past reshapes, and term by term when the parameter is used several times, down
 * to ops that add straight into the accumulator. All as long as nothing else is made of these values (the
 * gradient of two biases may be one value): others go through memory. */
static void add_gradient(sbp_fuser *z, sbp_value v, sbp_value param) {
    const sbp_op *op = z->uses[v] == 1 ? def(z, v) : NULL;
    const sbp_value_info *values = z->f->values;
    if (is_accumulated(z, v)) {
        z->accumulates[v] = param;
    } else if (op && op->code == SBP_OP_add &&
               sbp_type_equal(&values[op->operands[0]].type, &values[v].type) &&
               sbp_type_equal(&values[op->operands[1]].type, &values[v].type)) {
        add_gradient(z, op->operands[0], param);
        add_gradient(z, op->operands[1], param);
    } else if (op && op->code == SBP_OP_reshape) {
        add_gradient(z, op->operands[0], param);
    } else {
        sbp_added_gradient added = {.value = v, .param = param};
        need_in_memory(z, v);
        SBP_PUSH(z->p->arena, z->added, z->added_count, z->added_capacity, added);
    }
}

static void find_materialized(sbp_fuser *z) {
    const sbp_func *f = z->f;
    for (int32_t i = 0; i < f->arg_count; i++)
        z->materialized[f->args[i]] = f->values[f->args[i]].role != SBP_VALUE_SCALAR;
    for (int32_t i = 0; i < f->op_count; i++) {
        const sbp_op *op = &f->ops[i];
        if (row_wise_op(op))
            continue;
        for (int32_t r = 0; r < op->result_count; r++)
            z->materialized[op->results[r]] = true;
        if (op->code == SBP_OP_sum_rows && sbp_op_int(op, "rank") > 0)
            continue; /* what it adds up may live in the row kernel */
        for (int32_t k = 0; k < op->operand_count; k++)
            if (op->operands[k] != SBP_NO_VALUE)
                need_in_memory(z, op->operands[k]);
    }
    for (int32_t i = 0; i < z->stage->store_count; i++)
        need_in_memory(z, z->stage->stores[i].value);
    for (int32_t i = 0; i < f->result_count; i++)
        if (f->results[i].role == SBP_RESULT_GRADIENT &&
            f->values[f->results[i].target].role == SBP_VALUE_PARAM)
            add_gradient(z, f->results[i].value, f->results[i].target);
}

static void count_uses(sbp_fuser *z) {
    const sbp_func *f = z->f;
    for (int32_t i = 0; i < f->op_count; i++)
        for (int32_t k = 0; k < f->ops[i].operand_count; k++)
            if (f->ops[i].operands[k] != SBP_NO_VALUE)
                z->uses[f->ops[i].operands[k]]++;
    for (int32_t i = 0; i < f->result_count; i++)
        z->uses[f->results[i].value]++;
}

/* y = u + W x: one product with an addend, when nothing else reads W x, which no rounding keeps apart from
 * the sum, and u is in memory anyway. */
static void fold_addends(sbp_fuser *z) {
    const sbp_func *f = z->f;
    for (int32_t i = 0; i < f->op_count; i++) {
        const sbp_op *op = &f->ops[i];
        if (op->code != SBP_OP_add)
            continue;
        int best = -1;
        for (int k = 0; k < 2; k++) {
            sbp_value v = op->operands[k], u = op->operands[1 - k];
            const sbp_op *product = def(z, v);
            if (!product || product->code != SBP_OP_linear || z->uses[v] != 1 ||
                z->addend[v] != SBP_NO_VALUE || u == v || !z->materialized[z->stage->base[u]] ||
                !sbp_type_equal(&f->values[u].type, &f->values[v].type) ||
                f->values[v].type.dtype != sbp_lower_wide(f->values[v].type.dtype))
                continue;
            if (best < 0 || v > op->operands[best]) /* of two products the later one adds the earlier */
                best = k;
        }
        if (best < 0)
            continue;
        sbp_value v = op->operands[best];
        z->addend[v] = op->operands[1 - best];
        z->product_of[op->results[0]] = v;
        z->materialized[v] = false; /* its memory is that of the sum */
        z->materialized[op->results[0]] = true;
    }
}

/* Row-wise values in memory: what row kernels compute. */
static bool is_root(const sbp_fuser *z, sbp_value v) {
    return row_wise(z, v) && z->materialized[v] && z->stage->base[v] == v && z->product_of[v] == SBP_NO_VALUE;
}

static bool is_partial(const sbp_fuser *z, sbp_value v) {
    const sbp_op *op = def(z, v);
    return op && op->code == SBP_OP_sum_rows && sbp_op_int(op, "rank") > 0 && !sbp_fuse_sums_memory(z, v);
}

bool sbp_fuse_sums_memory(const sbp_fuser *z, sbp_value v) {
    const sbp_op *op = def(z, v);
    sbp_value x = op->operands[0];
    int64_t heads, n;
    sbp_row_form(&z->f->values[x].type, &heads, &n);
    return z->materialized[z->stage->base[x]] &&
           (sbp_op_int(op, "rank") == z->f->values[x].type.rank - 1 || heads == 1);
}

/* ---- grouping ---------------------------------------------------------------------------------------- */

static void leaves_of(const sbp_fuser *z, sbp_value v, bool *seen, sbp_value *leaves, int32_t *count) {
    if (seen[v])
        return;
    seen[v] = true;
    sbp_value base = z->stage->base[v];
    const sbp_op *op = def(z, v);
    if (z->materialized[base] || !op) {
        if (!seen[base] || base == v) {
            seen[base] = true;
            leaves[(*count)++] = base;
        }
        return;
    }
    for (int32_t k = 0; k < op->operand_count; k++)
        if (op->operands[k] != SBP_NO_VALUE)
            leaves_of(z, op->operands[k], seen, leaves, count);
}

/* Values in memory that a root reads; a root's own memory does not count. */
static int32_t root_leaves(const sbp_fuser *z, sbp_value root, sbp_value *leaves) {
    bool *seen = SBP_NEW_ARRAY(z->p->arena, bool, z->f->value_count + 1);
    int32_t count = 0;
    const sbp_op *op = def(z, root);
    seen[root] = true;
    for (int32_t k = 0; k < op->operand_count; k++)
        if (op->operands[k] != SBP_NO_VALUE)
            leaves_of(z, op->operands[k], seen, leaves, &count);
    return count;
}

/* A value of rows and of more than one element a row: worth a pass over memory. */
static bool is_large(const sbp_fuser *z, sbp_value v) {
    const sbp_type *type = &z->f->values[v].type;
    return sbp_type_rows(type) != SBP_ONE && sbp_type_row_elems(type) > 1;
}

static int64_t heads_of(const sbp_fuser *z, sbp_value root) {
    int64_t heads, n;
    const sbp_op *op = def(z, root);
    sbp_row_form(&z->f->values[op->code == SBP_OP_sum_rows ? op->operands[0] : root].type, &heads, &n);
    return heads;
}

static sbp_symbol rows_of(const sbp_fuser *z, sbp_value root) {
    const sbp_op *op = def(z, root);
    return sbp_type_rows(&z->f->values[op->code == SBP_OP_sum_rows ? op->operands[0] : root].type);
}

static bool needs_group(const sbp_fuser *z, int32_t group, int32_t needed);

/* Whether computing value v waits for a root of the group. */
static bool waits_for(const sbp_fuser *z, sbp_value v, int32_t group, bool *seen) {
    v = z->stage->defined_by[z->stage->base[v]];
    if (seen[v])
        return false;
    seen[v] = true;
    if (z->group_of[v] == group)
        return true;
    if (z->group_of[v] >= 0) { /* computed together with the others of its own group */
        const sbp_row_group *g = &z->groups[z->group_of[v]];
        for (int32_t i = 0; i < g->root_count; i++) {
            const sbp_op *op = def(z, g->roots[i]);
            for (int32_t k = 0; k < op->operand_count; k++)
                if (op->operands[k] != SBP_NO_VALUE && waits_for(z, op->operands[k], group, seen))
                    return true;
        }
        return false;
    }
    const sbp_op *op = def(z, v);
    for (int32_t k = 0; op && k < op->operand_count; k++)
        if (op->operands[k] != SBP_NO_VALUE && waits_for(z, op->operands[k], group, seen))
            return true;
    return false;
}

/* Whether the root can join the group: nothing it reads waits for what the group computes by way of other
 * commands, nor the group for the root. */
static bool may_join(const sbp_fuser *z, sbp_value root, const sbp_value *leaves, int32_t leaf_count,
                     int32_t group) {
    bool *seen = SBP_NEW_ARRAY(z->p->arena, bool, z->f->value_count + 1);
    for (int32_t i = 0; i < leaf_count; i++) {
        if (z->group_of[leaves[i]] == group)
            continue; /* read from the kernel itself */
        if (waits_for(z, leaves[i], group, seen))
            return false;
    }
    return !needs_group(z, group, z->group_of[root]);
}

/* Whether a group waits for another one. */
static bool needs_group(const sbp_fuser *z, int32_t group, int32_t needed) {
    if (needed < 0)
        return false;
    bool *seen = SBP_NEW_ARRAY(z->p->arena, bool, z->f->value_count + 1);
    const sbp_row_group *g = &z->groups[group];
    for (int32_t i = 0; i < g->root_count; i++) {
        const sbp_op *op = def(z, g->roots[i]);
        for (int32_t k = 0; k < op->operand_count; k++)
            if (op->operands[k] != SBP_NO_VALUE && waits_for(z, op->operands[k], needed, seen))
                return true;
    }
    return false;
}

static bool reads(const sbp_fuser *z, int32_t group, sbp_value leaf) {
    for (int32_t i = 0; i < z->group_leaf_count[group]; i++)
        if (z->group_leaves[group][i] == leaf)
            return true;
    return false;
}

/* Whether a value that a root of the group reads would be an operand that the kernel does not have yet. */
static bool is_new_operand(const sbp_fuser *z, int32_t group, sbp_value leaf) {
    return z->group_of[leaf] != group && !reads(z, group, leaf);
}

/* Whether the kernel of a group can take another root: what it reads and computes are operands. */
static bool has_room(const sbp_fuser *z, int32_t group, const sbp_value *leaves, int32_t leaf_count) {
    int32_t operands = z->groups[group].root_count + z->group_leaf_count[group] + 1;
    for (int32_t i = 0; i < leaf_count; i++)
        operands += is_new_operand(z, group, leaves[i]);
    return operands <= SBP_ROWKERNEL_MAX_OPERANDS;
}

static void group_roots(sbp_fuser *z) {
    const sbp_func *f = z->f;
    z->group_count = 0;
    for (int32_t v = 0; v < f->value_count; v++)
        z->group_of[v] = -1;
    sbp_value *leaves = SBP_NEW_ARRAY(z->p->arena, sbp_value, f->value_count + 1);
    for (int32_t i = 0; i < f->op_count; i++) {
        sbp_value root = f->ops[i].results[0];
        if (!is_root(z, root) && !is_partial(z, root))
            continue;
        int32_t leaf_count = root_leaves(z, root, leaves), chosen = -1;
        for (int32_t g = z->group_count - 1; g >= 0 && chosen < 0 && !z->alone[root]; g--) {
            const sbp_row_group *group = &z->groups[g];
            bool shares = false;
            for (int32_t j = 0; j < leaf_count; j++) {
                if (!is_large(z, leaves[j]))
                    continue;
                shares |= !is_new_operand(z, g, leaves[j]);
            }
            if (shares && rows_of(z, root) == rows_of(z, group->roots[0]) &&
                heads_of(z, root) == z->group_heads[g] && !z->alone[group->roots[0]] &&
                has_room(z, g, leaves, leaf_count) && may_join(z, root, leaves, leaf_count, g))
                chosen = g;
        }
        if (chosen < 0) {
            chosen = z->group_count++;
            z->groups[chosen] = (sbp_row_group){0};
            z->group_heads[chosen] = heads_of(z, root);
            z->group_leaves[chosen] = NULL;
            z->group_leaf_count[chosen] = z->group_leaf_capacity[chosen] = 0;
        }
        sbp_row_group *group = &z->groups[chosen];
        SBP_PUSH(z->p->arena, group->roots, group->root_count, group->root_capacity, root);
        for (int32_t j = 0; j < leaf_count; j++)
            if (is_new_operand(z, chosen, leaves[j]))
                SBP_PUSH(z->p->arena, z->group_leaves[chosen], z->group_leaf_count[chosen],
                         z->group_leaf_capacity[chosen], leaves[j]);
        z->group_of[root] = chosen;
    }
}

/* The argument whose memory a root's result takes over; SBP_NO_VALUE. */
static sbp_value replaced_argument(const sbp_fuser *z, sbp_value root) {
    for (int32_t i = 0; i < z->stage->store_count; i++)
        for (int32_t a = 0; z->stage->base[z->stage->stores[i].value] == root && a < z->f->arg_count; a++)
            if (sbp_view_same_start(&z->stage->places[z->f->args[a]], &z->stage->stores[i].to))
                return z->f->args[a];
    return SBP_NO_VALUE;
}

static bool op_waits_for(const sbp_fuser *z, const sbp_op *op, int32_t group) {
    bool *seen = SBP_NEW_ARRAY(z->p->arena, bool, z->f->value_count + 1);
    for (int32_t k = 0; k < op->operand_count; k++)
        if (op->operands[k] != SBP_NO_VALUE && waits_for(z, op->operands[k], group, seen))
            return true;
    return false;
}

/* Whether a command outside of the group reads the argument, and waits for the group. */
static bool readers_wait(const sbp_fuser *z, sbp_value argument, int32_t group) {
    for (int32_t i = 0; i < z->f->op_count; i++) {
        const sbp_op *op = &z->f->ops[i];
        bool reads_it = false;
        for (int32_t k = 0; k < op->operand_count && !row_wise_op(op); k++)
            reads_it |= op->operands[k] != SBP_NO_VALUE && z->stage->base[op->operands[k]] == argument;
        if (reads_it && op_waits_for(z, op, group))
            return true;
    }
    for (int32_t g = 0; g < z->group_count; g++)
        if (g != group && reads(z, g, argument) && needs_group(z, g, group))
            return true;
    return false;
}

/* A result that takes an argument's place is stored after all readers of the argument: those must not wait
 * for what the same kernel computes besides. True when roots were set alone and groups are to be found again.
 */
static bool separate_replacing(sbp_fuser *z) {
    bool changed = false;
    for (int32_t g = 0; g < z->group_count; g++)
        for (int32_t i = 0; z->groups[g].root_count > 1 && i < z->groups[g].root_count; i++) {
            sbp_value root = z->groups[g].roots[i], argument = replaced_argument(z, root);
            if (argument == SBP_NO_VALUE || z->alone[root] || !readers_wait(z, argument, g))
                continue;
            z->alone[root] = changed = true;
        }
    return changed;
}

/* ---- values worth keeping in memory ------------------------------------------------------------------- */

static void mark_computed(const sbp_fuser *z, sbp_value v, int32_t group, int32_t *first, bool *several,
                          bool *seen) {
    const sbp_op *op = def(z, v);
    if (seen[v] || !op || z->materialized[z->stage->base[v]])
        return;
    seen[v] = true;
    if (first[v] >= 0 && first[v] != group)
        several[v] = true;
    first[v] = group;
    for (int32_t k = 0; k < op->operand_count; k++)
        if (op->operands[k] != SBP_NO_VALUE)
            mark_computed(z, op->operands[k], group, first, several, seen);
}

/* A large value that several kernels would compute, from two large values or more. True when one was found.
 */
static bool keep_shared_values(sbp_fuser *z) {
    const sbp_func *f = z->f;
    int32_t *first = SBP_NEW_ARRAY(z->p->arena, int32_t, f->value_count + 1);
    bool *several = SBP_NEW_ARRAY(z->p->arena, bool, f->value_count + 1);
    for (int32_t v = 0; v < f->value_count; v++)
        first[v] = -1;
    for (int32_t g = 0; g < z->group_count; g++) {
        bool *seen = SBP_NEW_ARRAY(z->p->arena, bool, f->value_count + 1);
        for (int32_t i = 0; i < z->groups[g].root_count; i++) {
            const sbp_op *op = def(z, z->groups[g].roots[i]);
            for (int32_t k = 0; k < op->operand_count; k++)
                if (op->operands[k] != SBP_NO_VALUE)
                    mark_computed(z, op->operands[k], g, first, several, seen);
        }
    }
    sbp_value *leaves = SBP_NEW_ARRAY(z->p->arena, sbp_value, f->value_count + 1);
    for (int32_t i = 0; i < f->op_count; i++) {
        sbp_value v = f->ops[i].results[0];
        if (!several[v] || !is_large(z, v) || z->stage->base[v] != v || f->values[v].type.dtype == SBP_BOOL)
            continue;
        int32_t large = 0, count = root_leaves(z, v, leaves);
        for (int32_t j = 0; j < count; j++)
            large += is_large(z, leaves[j]);
        if (large >= 2) {
            z->materialized[v] = true;
            return true;
        }
    }
    return false;
}

/* ---- driver ------------------------------------------------------------------------------------------ */

static sbp_status build_kernels(sbp_fuser *z, bool *again) {
    *again = false;
    for (int32_t g = 0; g < z->group_count; g++) {
        sbp_value culprit;
        const sbp_row_group *group = &z->groups[g];
        const char *name =
            sbp_arena_printf(z->p->arena, "%s.%s", z->stage->name, z->f->values[group->roots[0]].name);
        sbp_row_build(z->p, z->stage, z->row_work, z->materialized, group, name, &z->kernels[g], &culprit);
        if (culprit == SBP_NO_VALUE)
            continue;
        *again = true;
        if (group->root_count > 1) { /* first take the group apart */
            for (int32_t i = 0; i < group->root_count; i++)
                z->alone[group->roots[i]] = true;
        } else if (culprit >= 0 && z->stage->base[culprit] != group->roots[0] &&
                   !z->materialized[z->stage->base[culprit]]) {
            z->materialized[z->stage->base[culprit]] = true;
        } else {
            return sbp_fail(z->p->diag, SBP_INTERNAL, "fuse: %%%s of %s cannot be computed by a row kernel",
                            z->f->values[group->roots[0]].name, z->stage->name);
        }
        return SBP_OK;
    }
    return SBP_OK;
}

sbp_status sbp_fuse_stage(sbp_pipeline *p, sbp_stage *stage) {
    int32_t n = stage->body->value_count + 1;
    sbp_fuser z = {.p = p, .stage = stage, .f = stage->body};
    z.row_work = sbp_row_work_create(p->arena, stage->body);
    z.materialized = SBP_NEW_ARRAY(p->arena, bool, n);
    z.alone = SBP_NEW_ARRAY(p->arena, bool, n);
    z.uses = SBP_NEW_ARRAY(p->arena, int32_t, n);
    z.addend = SBP_NEW_ARRAY(p->arena, sbp_value, n);
    z.product_of = SBP_NEW_ARRAY(p->arena, sbp_value, n);
    z.accumulates = SBP_NEW_ARRAY(p->arena, sbp_value, n);
    z.group_of = SBP_NEW_ARRAY(p->arena, int32_t, n);
    z.groups = SBP_NEW_ARRAY(p->arena, sbp_row_group, n);
    z.kernels = SBP_NEW_ARRAY(p->arena, sbp_row_kernel, n);
    z.group_heads = SBP_NEW_ARRAY(p->arena, int64_t, n);
    z.group_leaves = SBP_NEW_ARRAY(p->arena, sbp_value *, n);
    z.group_leaf_count = SBP_NEW_ARRAY(p->arena, int32_t, n);
    z.group_leaf_capacity = SBP_NEW_ARRAY(p->arena, int32_t, n);
    for (int32_t v = 0; v < n; v++)
        z.addend[v] = z.product_of[v] = z.accumulates[v] = SBP_NO_VALUE;
    find_bases(&z);
    count_uses(&z);
    find_materialized(&z);
    fold_addends(&z);
    for (bool again = true; again;) {
        group_roots(&z);
        if (keep_shared_values(&z) || separate_replacing(&z))
            continue;
        SBP_TRY(build_kernels(&z, &again));
    }
    return sbp_fuse_emit(&z);
}

sbp_status sbp_pass_fuse(sbp_pipeline *p) {
    if (!p->program)
        return SBP_OK;
    for (int32_t i = 0; i < p->lowering->function_count; i++)
        for (int32_t j = 0; j < p->lowering->functions[i]->item_count; j++)
            if (p->lowering->functions[i]->items[j].stage)
                SBP_TRY(sbp_fuse_stage(p, p->lowering->functions[i]->items[j].stage));
    return SBP_OK;
}
