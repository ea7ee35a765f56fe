/* fuse: turns the ops of every stage into instructions, commands over values.
 *
 * requires  stages: bodies without composites, results bound to views
 * gives     the instructions of each stage
 * preserves values of all results
 * breaks    the ops: schedule looks at instructions only
 *
 *   matmuls    linear, linear_dw: gemm. An addition of a matmul's result to a value in memory becomes the
 *              matmul's addend; weight gradients add straight into their accumulator
 *   row work   the row-wise ops between values in memory become row kernels; kernels that read the same
 *              values and do not wait for each other are one. A value that several kernels would compute from
 *              two or more values in memory is kept in memory itself
 *   sums       a sum over rows is a partial of a row kernel and a colsum; one number: reduce
 */
#include <string.h>

#include "passes/rows/fuse.h"

static bool row_wise_op(const sbp_op *op) {
    return sbp_opcode_class(op->code) == SBP_CLASS_ROWWISE;
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
           (op->code == SBP_OP_linear_dw || op->code == SBP_OP_expert_linear_dw ||
            op->code == SBP_OP_scatter_add || op->code == SBP_OP_conv_rows_vjp ||
            (op->code == SBP_OP_sum_rows && sbp_op_int(op, "rank") > 0));
}

/* The gradient of a parameter: past reshapes, and term by term when the parameter is used several times, down
 * to ops that add straight into the accumulator. All as long as nothing else is made of these values (the
 * gradient of two biases may be one value): others go through memory. */
static void add_gradient(sbp_fuser *z, sbp_value gradient, sbp_value param) {
    const sbp_value_info *values = z->f->values;
    sbp_value *stack = NULL;
    int32_t count = 0, capacity = 0;
    SBP_PUSH(z->p->arena, stack, count, capacity, gradient);
    while (count > 0) {
        sbp_value v = stack[--count];
        const sbp_op *op = z->uses[v] == 1 ? def(z, v) : NULL;
        if (is_accumulated(z, v)) {
            z->accumulates[v] = param;
        } else if (op && op->code == SBP_OP_add &&
                   sbp_type_equal(&values[op->operands[0]].type, &values[v].type) &&
                   sbp_type_equal(&values[op->operands[1]].type, &values[v].type)) {
            SBP_PUSH(z->p->arena, stack, count, capacity, op->operands[1]);
            SBP_PUSH(z->p->arena, stack, count, capacity, op->operands[0]);
        } else if (op && op->code == SBP_OP_reshape) {
            SBP_PUSH(z->p->arena, stack, count, capacity, op->operands[0]);
        } else {
            sbp_added_gradient added = {.value = v, .param = param};
            need_in_memory(z, v);
            SBP_PUSH(z->p->arena, z->added, z->added_count, z->added_capacity, added);
        }
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
    for (int32_t i = 0; i < f->result_count; i++) {
        if (f->results[i].role == SBP_RESULT_GRADIENT &&
            f->values[f->results[i].target].role == SBP_VALUE_PARAM)
            add_gradient(z, f->results[i].value, f->results[i].target);
        if (f->results[i].role == SBP_RESULT_STATISTIC) /* added to a vector in the same way */
            add_gradient(z, f->results[i].value, f->results[i].value);
    }
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

/* y = u + W x: one matmul with an addend, when nothing else reads W x, which no rounding keeps apart from
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
            const sbp_op *matmul = def(z, v);
            if (!matmul || matmul->code != SBP_OP_linear || z->uses[v] != 1 || z->addend[v] != SBP_NO_VALUE ||
                u == v || !z->materialized[z->stage->base[u]] ||
                !sbp_type_equal(&f->values[u].type, &f->values[v].type) ||
                f->values[v].type.dtype != sbp_lower_wide(f->values[v].type.dtype))
                continue;
            if (best < 0 || v > op->operands[best]) /* of two matmuls the later one adds the earlier */
                best = k;
        }
        if (best < 0)
            continue;
        sbp_value v = op->operands[best];
        z->addend[v] = op->operands[1 - best];
        z->matmul_of[op->results[0]] = v;
        z->sum_of[v] = op->results[0];
        z->materialized[v] = false; /* its memory is that of the sum */
        z->materialized[op->results[0]] = true;
    }
}

/* ---- driver ------------------------------------------------------------------------------------------ */

/* Builds the kernels of all groups. What cannot be built is taken apart, in all groups at once, and *again
 * set. */
static sbp_status build_kernels(sbp_fuser *z, bool *again) {
    *again = false;
    for (int32_t g = 0; g < z->group_count; g++) {
        sbp_value culprit;
        const sbp_row_group *group = &z->groups[g];
        const char *name = z->group_count == 1 ? z->stage->name
                                               : sbp_arena_printf(z->p->arena, "%s.%s", z->stage->name,
                                                                  z->f->values[group->roots[0]].name);
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
    }
    return SBP_OK;
}

sbp_status sbp_fuse_stage(sbp_program_builder *p, sbp_stage *stage) {
    int32_t n = stage->body->value_count + 1;
    sbp_fuser z = {.p = p, .stage = stage, .f = stage->body};
    z.row_work = sbp_row_work_create(p->arena, stage->body);
    z.materialized = SBP_NEW_ARRAY(p->arena, bool, n);
    z.alone = SBP_NEW_ARRAY(p->arena, bool, n);
    z.uses = SBP_NEW_ARRAY(p->arena, int32_t, n);
    z.addend = SBP_NEW_ARRAY(p->arena, sbp_value, n);
    z.matmul_of = SBP_NEW_ARRAY(p->arena, sbp_value, n);
    z.accumulates = SBP_NEW_ARRAY(p->arena, sbp_value, n);
    z.sum_of = SBP_NEW_ARRAY(p->arena, sbp_value, n);
    z.slots = SBP_NEW_ARRAY(p->arena, sbp_expert_slots, n);
    for (int32_t v = 0; v < n; v++)
        z.addend[v] = z.matmul_of[v] = z.sum_of[v] = z.accumulates[v] = SBP_NO_VALUE;
    find_bases(&z);
    count_uses(&z);
    find_materialized(&z);
    fold_addends(&z);
    sbp_fuse_group_begin(&z);
    for (bool again = true; again;) {
        sbp_fuse_group(&z);
        if (sbp_fuse_keep_shared(&z) || sbp_fuse_separate(&z))
            continue;
        SBP_TRY(build_kernels(&z, &again));
    }
    return sbp_fuse_emit(&z);
}

sbp_status sbp_pass_fuse(sbp_program_builder *p, sbp_stages *stages) {
    for (int32_t i = 0; i < stages->count; i++)
        for (int32_t j = 0; j < stages->functions[i]->item_count; j++)
            if (stages->functions[i]->items[j].stage)
                SBP_TRY(sbp_fuse_stage(p, stages->functions[i]->items[j].stage));
    return SBP_OK;
}
