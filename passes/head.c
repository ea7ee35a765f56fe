/* head: streams the head and the objective, in one pass or in two.
 *
 * requires  the chunk function of the head, its results named as the stream arguments of @objective; results
 * of
 *           @objective are sums over rows
 * preserves loss, metrics, gradients
 * breaks    nothing
 *
 * The objective is differentiated first. How the values that d(loss)/d(per-row output) reads depend on the
 * per-row outputs decides: row by row: one pass over the chunks computes logits, their gradient, dH over H
 * and the weight gradients. Anything else (sums per document, pair or group): a first pass streams the
 * outputs, the objective's derivative runs once on vectors over all rows, a second pass streams the head
 * again with it as cotangent.
 */
#include <string.h>

#include "passes/body.h"
#include "passes/lowering.h"

typedef struct head_builder {
    sbp_pipeline *p;
    sbp_func *head, *objective;
    const sbp_invocation *call;
    sbp_func *slope; /* the objective's derivative: gradients of its stream arguments */
    bool one_pass;
    sbp_func *derivative; /* of the head */
    int32_t outputs;      /* per-row outputs of the head */
    int32_t vectors[8];   /* buffer of each */
    int32_t slopes[8];    /* buffer of the cotangent of each, -1: none (two passes) */
    const char *names[8];
} head_builder;

/* ---- what d(loss) reads ------------------------------------------------------------------------------ */

/* Value of a stream argument by name, SBP_NO_VALUE when the function has none. */
static sbp_value stream_named(const sbp_func *f, const char *name) {
    for (int32_t i = 0; i < f->arg_count; i++)
        if (f->values[f->args[i]].role == SBP_VALUE_STREAM && strcmp(f->values[f->args[i]].name, name) == 0)
            return f->args[i];
    return SBP_NO_VALUE;
}

/* Whether every result depends on stream arguments row by row, if at all. */
static bool depends_by_row(const sbp_func *f) {
    sbp_seq *seq = SBP_NEW_ARRAY(f->arena, sbp_seq, f->value_count + 1);
    bool *reads = SBP_NEW_ARRAY(f->arena, bool, f->value_count + 1);
    for (int32_t i = 0; i < f->arg_count; i++)
        if (f->values[f->args[i]].role == SBP_VALUE_STREAM) {
            reads[f->args[i]] = true;
            seq[f->args[i]] = sbp_seq_of(SBP_SEQ_ROW);
        }
    for (int32_t i = 0; i < f->op_count; i++) {
        const sbp_op *op = &f->ops[i];
        for (int32_t r = 0; r < op->result_count; r++)
            for (int32_t k = 0; k < op->operand_count; k++) {
                sbp_value v = op->operands[k], y = op->results[r];
                if (v == SBP_NO_VALUE || !reads[v])
                    continue;
                sbp_seq path = sbp_seq_compose(sbp_op_seq(f, op, k, r), seq[v],
                                               sbp_type_rows(&f->values[y].type) != SBP_ONE);
                seq[y] = reads[y] ? sbp_seq_join(seq[y], path) : path;
                reads[y] = true;
            }
    }
    for (int32_t i = 0; i < f->result_count; i++) {
        sbp_value v = f->results[i].value;
        if (reads[v] && seq[v].kind != SBP_SEQ_NONE && seq[v].kind != SBP_SEQ_ROW)
            return false;
    }
    return true;
}

static bool is_gradient(const void *user, const sbp_result *result) {
    (void)user;
    return result->role == SBP_RESULT_GRADIENT;
}

/* The objective's derivative with respect to its stream arguments, d(loss) = 1. */
static sbp_status differentiate_objective(head_builder *h) {
    sbp_module *m = h->p->module;
    sbp_func *with_loss, *expanded;
    SBP_TRY(sbp_expand_func(m, h->objective, false, h->p->diag, &expanded));
    for (int32_t i = 0; i < expanded->result_count; i++)
        if (i > 0)
            expanded->results[i].role = SBP_RESULT_SAVED; /* metrics */
    SBP_TRY(sbp_autodiff_func(m, expanded, true, h->p->diag, &with_loss));
    sbp_rewrite rw;
    sbp_rewrite_begin_bare(&rw, m, with_loss, h->p->diag);
    rw.to->name = "objective.gradient";
    for (int32_t i = 0; i < with_loss->arg_count; i++) {
        sbp_value arg = with_loss->args[i];
        if (with_loss->values[arg].role == SBP_VALUE_COTANGENT)
            rw.map[arg] = sbp_build_const(&rw.builder, with_loss->values[arg].type.dtype, 1);
        else
            sbp_rewrite_arg(&rw, arg, &with_loss->values[arg].type);
    }
    for (int32_t i = 0; i < with_loss->op_count; i++)
        SBP_TRY(sbp_rewrite_copy(&rw, &with_loss->ops[i]));
    sbp_func *all = sbp_rewrite_end(&rw);
    bool *none = SBP_NEW_ARRAY(h->p->arena, bool, all->value_count + 1);
    sbp_body_cut cut;
    SBP_TRY(sbp_body_make(m,
                          &(sbp_body_spec){.from = all, .given = none, .keeps = is_gradient, .filled = none},
                          "objective.gradient", h->p->diag, &cut));
    h->slope = cut.func;
    h->one_pass = depends_by_row(h->slope);
    return SBP_OK;
}

/* Gradient result of the objective for the head's output of this name; SBP_NO_VALUE: zero. */
static sbp_value slope_of(const head_builder *h, const char *name) {
    for (int32_t i = 0; i < h->slope->result_count; i++)
        if (strcmp(h->slope->values[h->slope->results[i].target].name, name) == 0)
            return h->slope->results[i].value;
    return SBP_NO_VALUE;
}

/* ---- the head's derivative --------------------------------------------------------------------------- */

static sbp_status differentiate_head(head_builder *h) {
    sbp_func *head = SBP_NEW(h->p->arena, sbp_func);
    *head = *h->head;
    head->results = SBP_NEW_ARRAY(h->p->arena, sbp_result, head->result_count);
    memcpy(head->results, h->head->results, (size_t)head->result_count * sizeof *head->results);
    for (int32_t i = 0; i < head->result_count; i++)
        if (slope_of(h, head->results[i].name) == SBP_NO_VALUE)
            head->results[i].role = SBP_RESULT_SAVED; /* an output that the loss does not read */
    bool want_input = h->p->lowering->first_trainable < h->p->module->call_count - 1;
    return sbp_autodiff_func(h->p->module, head, want_input, h->p->diag, &h->derivative);
}

/* Copies the objective's derivative into the head: its stream arguments are the head's outputs. */
static sbp_status inline_slope(head_builder *h, sbp_rewrite *rw, sbp_value *slope_map) {
    const sbp_func *from = h->slope;
    sbp_rewrite in = {.from = from, .to = rw->to, .map = slope_map, .builder = rw->builder};
    for (int32_t v = 0; v < from->value_count; v++)
        slope_map[v] = SBP_NO_VALUE;
    for (int32_t i = 0; i < from->arg_count; i++) {
        sbp_value arg = from->args[i];
        const sbp_value_info *info = &from->values[arg];
        if (info->role == SBP_VALUE_STREAM) {
            for (int32_t r = 0; r < h->derivative->result_count; r++)
                if (h->derivative->results[r].name && strcmp(h->derivative->results[r].name, info->name) == 0)
                    slope_map[arg] = rw->map[h->derivative->results[r].value];
        } else if (info->role == SBP_VALUE_ROW) {
            const sbp_row *row = &h->p->module->rows[info->binding];
            slope_map[arg] = sbp_build_row(&in.builder, row->name, row->dtype, SBP_C);
        } else if (info->role == SBP_VALUE_SCALAR) {
            slope_map[arg] = sbp_build_scalar(&in.builder, h->p->module->scalars[info->binding]);
        } else {
            slope_map[arg] = sbp_func_add_arg(rw->to, info->role, info->name, &info->type, info->binding);
        }
    }
    for (int32_t i = 0; i < from->op_count; i++) {
        sbp_op op = from->ops[i];
        sbp_attr attrs[SBP_MAX_ATTRS];
        sbp_attr_schema schema[SBP_MAX_ATTRS];
        int32_t count = sbp_opcode_attrs(op.code, schema);
        for (int32_t a = 0; a < count; a++) {
            attrs[a] = op.attrs[a];
            if (attrs[a].kind == SBP_ATTR_S && strcmp(attrs[a].name, "rows") == 0 &&
                strcmp(attrs[a].symbol, "T") == 0)
                attrs[a].symbol = "C";
        }
        op.attrs = attrs;
        SBP_TRY(sbp_rewrite_copy(&in, &op));
    }
    return SBP_OK;
}

/* The head's derivative with its cotangents computed by the objective's: the body of the one pass. */
static sbp_status compose(head_builder *h, sbp_func **out) {
    const sbp_func *d = h->derivative;
    sbp_rewrite rw;
    sbp_rewrite_begin_bare(&rw, h->p->module, d, h->p->diag);
    for (int32_t i = 0; i < d->arg_count; i++)
        if (d->values[d->args[i]].role != SBP_VALUE_COTANGENT)
            sbp_rewrite_arg(&rw, d->args[i], &d->values[d->args[i]].type);
    for (int32_t i = 0; i < h->head->op_count; i++)
        SBP_TRY(sbp_rewrite_copy(&rw, &d->ops[i]));
    sbp_value *slope_map = SBP_NEW_ARRAY(h->p->arena, sbp_value, h->slope->value_count + 1);
    SBP_TRY(inline_slope(h, &rw, slope_map));
    for (int32_t i = 0; i < d->arg_count; i++) {
        sbp_value arg = d->args[i];
        if (d->values[arg].role != SBP_VALUE_COTANGENT)
            continue;
        for (int32_t r = 0; r < d->result_count; r++)
            if (d->results[r].role == SBP_RESULT_VALUE && d->results[r].value == d->values[arg].binding)
                rw.map[arg] = slope_map[slope_of(h, d->results[r].name)];
    }
    for (int32_t i = h->head->op_count; i < d->op_count; i++)
        SBP_TRY(sbp_rewrite_copy(&rw, &d->ops[i]));
    *out = sbp_rewrite_end(&rw);
    return rw.builder.status;
}

/* ---- functions --------------------------------------------------------------------------------------- */

static bool keeps_all(const void *user, const sbp_result *result) {
    (void)user;
    (void)result;
    return true;
}

static bool keeps_outputs(const void *user, const sbp_result *result) {
    (void)user;
    return result->role != SBP_RESULT_GRADIENT;
}

/* Which of the head's outputs a plain result of `from` is; -1: none. */
static int32_t output_of(const head_builder *h, const sbp_func *from, sbp_value value) {
    for (int32_t r = 0; r < from->result_count; r++)
        for (int32_t n = 0; from->results[r].value == value && n < h->outputs; n++)
            if (from->results[r].name && strcmp(from->results[r].name, h->names[n]) == 0)
                return n;
    return -1;
}

/* One loop over the chunks of the head. H is read, and overwritten by its gradient when there is one. */
static sbp_status build_function(head_builder *h, const sbp_func *from, const char *name, bool backward,
                                 bool (*keeps)(const void *, const sbp_result *), int32_t *out) {
    sbp_pipeline *p = h->p;
    bool *none = SBP_NEW_ARRAY(p->arena, bool, from->value_count + 1);
    sbp_body_cut cut;
    SBP_TRY(sbp_body_make(p->module,
                          &(sbp_body_spec){.from = from, .given = none, .keeps = keeps, .filled = none}, name,
                          p->diag, &cut));
    sbp_function_lowering *function = sbp_lower_function(p, name);
    int32_t f = function->function;
    sbp_stage *stage = sbp_lower_stage(p, sbp_arena_printf(p->arena, "%s.chunk", name), cut.func,
                                       p->lowering->head_table, false);
    const sbp_type *x = NULL;
    for (int32_t i = 0; i < h->head->arg_count; i++)
        if (h->head->values[h->head->args[i]].role == SBP_VALUE_STREAM)
            x = &h->head->values[h->head->args[i]].type;
    if (!x)
        return sbp_fail(p->diag, SBP_INTERNAL, "head: @%s reads no stream", h->head->name);
    sbp_lower_formal(p, f, "H", backward ? SBP_UPDATE : SBP_READ, x->dtype, sbp_extent_symbol(SBP_T, 1),
                     sbp_type_row_elems(x));
    int32_t *formal = SBP_NEW_ARRAY(p->arena, int32_t, h->head->value_count + 1);
    int32_t *accum = SBP_NEW_ARRAY(p->arena, int32_t, h->head->value_count + 1);
    sbp_lower_param_formals(p, function, h->head, p->module->calls[p->module->call_count - 1].func,
                            (const sbp_func *const[]){cut.func}, 1, formal, backward ? accum : NULL);
    const sbp_function *fn = &p->program->functions[f];
    sbp_view stream = sbp_lower_rows_of(stage, sbp_view_formal(fn, 0));
    for (int32_t i = 0; i < cut.func->arg_count; i++) {
        sbp_value v = cut.func->args[i];
        const sbp_value_info *info = &cut.func->values[v];
        for (int32_t a = 0; a < h->head->arg_count; a++) {
            sbp_value param = h->head->args[a];
            if (info->role != SBP_VALUE_PARAM || strcmp(h->head->values[param].name, info->name) != 0)
                continue;
            stage->places[v] = sbp_view_formal(fn, formal[param]);
            if (accum[param] > 0)
                stage->accums[v] = sbp_view_formal(fn, accum[param]);
        }
        if (info->role == SBP_VALUE_STREAM && stream_named(h->head, info->name) != SBP_NO_VALUE)
            stage->places[v] = stream;
        sbp_value o = cut.origin[v];
        if (o == SBP_NO_VALUE || from->values[o].role != SBP_VALUE_COTANGENT)
            continue;
        int32_t n = output_of(h, from, from->values[o].binding); /* second of two passes */
        if (n >= 0)
            stage->places[v] = sbp_lower_rows_of(stage, sbp_view_buffer(p->program, h->slopes[n], 0));
    }
    for (int32_t i = 0; i < cut.func->result_count; i++) {
        const sbp_result *result = &cut.func->results[i];
        sbp_view to = sbp_view_none();
        if (result->role == SBP_RESULT_GRADIENT) {
            if (cut.func->values[result->target].role != SBP_VALUE_STREAM)
                continue;
            to = stream;
        } else {
            for (int32_t n = 0; n < h->outputs; n++)
                if (strcmp(result->name, h->names[n]) == 0)
                    to = sbp_lower_rows_of(stage, sbp_view_buffer(p->program, h->vectors[n], 0));
        }
        SBP_PUSH(p->arena, stage->stores, stage->store_count, stage->store_capacity,
                 (sbp_store){.value = result->value, .to = to});
    }
    sbp_lower_add_stage(p, function, stage);
    *out = f;
    return SBP_OK;
}

/* A stage over whole vectors: stream arguments read the head's outputs. */
static sbp_stage *vector_stage(head_builder *h, sbp_func *body, const char *name) {
    sbp_stage *stage = sbp_lower_stage(h->p, name, body, -1, false);
    for (int32_t i = 0; i < body->arg_count; i++)
        for (int32_t n = 0; n < h->outputs; n++)
            if (body->values[body->args[i]].role == SBP_VALUE_STREAM &&
                strcmp(body->values[body->args[i]].name, h->names[n]) == 0)
                stage->places[body->args[i]] = sbp_view_buffer(h->p->program, h->vectors[n], 0);
    return stage;
}

/* Loss and metrics: each a sum over rows, added to its place in the result buffer. */
static sbp_status build_objective(head_builder *h) {
    sbp_pipeline *p = h->p;
    sbp_func *expanded, *body;
    SBP_TRY(sbp_expand_func(p->module, h->objective, true, p->diag, &expanded));
    SBP_TRY(sbp_canonicalize_func(p->module, expanded, p->diag, &body));
    sbp_function_lowering *function = sbp_lower_function(p, "objective");
    sbp_stage *stage = vector_stage(h, body, "objective.rows");
    int32_t results = sbp_lower_buffer(p, "results", SBP_ROLE_RESULT, SBP_DEVICE, SBP_F64, 1,
                                       sbp_extent_const(1), body->result_count, -1);
    for (int32_t i = 0; i < body->result_count; i++) {
        const sbp_result *result = &body->results[i];
        const sbp_value_info *info = &body->values[result->value];
        if (info->role != SBP_VALUE_OP || body->ops[info->op].code != SBP_OP_sum_rows || info->type.rank != 0)
            return sbp_fail(p->diag, SBP_INTERNAL, "head: result '%s' of the objective is no sum over rows",
                            result->name);
        sbp_view to = sbp_view_buffer(p->program, results, 0);
        to.col = i;
        to.cols = 1;
        SBP_PUSH(p->arena, stage->stores, stage->store_count, stage->store_capacity,
                 (sbp_store){.value = result->value, .to = to});
        SBP_PUSH(p->arena, p->program->outputs, p->program->output_count, p->program->output_capacity,
                 (sbp_output){.name = result->name, .buffer = results, .index = i});
    }
    sbp_lower_add_stage(p, function, stage);
    p->lowering->head.objective = function->function;
    return SBP_OK;
}

/* Two passes: the cotangents of the head's outputs, as vectors. */
static sbp_status build_gradient(head_builder *h) {
    sbp_pipeline *p = h->p;
    sbp_function_lowering *function = sbp_lower_function(p, "objective.gradient");
    sbp_stage *stage = vector_stage(h, h->slope, "objective.gradient.rows");
    for (int32_t i = 0; i < h->slope->result_count; i++) {
        const sbp_result *result = &h->slope->results[i];
        for (int32_t n = 0; n < h->outputs; n++)
            if (strcmp(h->slope->values[result->target].name, h->names[n]) == 0)
                SBP_PUSH(
                    p->arena, stage->stores, stage->store_count, stage->store_capacity,
                    (sbp_store){.value = result->value, .to = sbp_view_buffer(p->program, h->slopes[n], 0)});
    }
    sbp_lower_add_stage(p, function, stage);
    p->lowering->head.gradient = function->function;
    return SBP_OK;
}

static sbp_status add_vectors(head_builder *h) {
    sbp_pipeline *p = h->p;
    for (int32_t i = 0; i < h->head->result_count; i++) {
        const sbp_result *result = &h->head->results[i];
        const sbp_type *type = &h->head->values[result->value].type;
        if (!result->name || type->rank != 1 || h->outputs == SBP_COUNT(h->names))
            return sbp_fail(p->diag, SBP_INTERNAL, "head: output %d of @%s is no named vector", i,
                            h->head->name);
        h->names[h->outputs] = result->name;
        h->vectors[h->outputs] = sbp_lower_output_buffer(p, result->name, type->dtype);
        h->slopes[h->outputs] = -1;
        if (!h->one_pass && slope_of(h, result->name) != SBP_NO_VALUE)
            h->slopes[h->outputs] =
                sbp_lower_buffer(p, sbp_arena_printf(p->arena, "d_%s", result->name), SBP_ROLE_VECTOR,
                                 SBP_DEVICE, type->dtype, 1, sbp_extent_symbol(SBP_T, 1), 1, -1);
        h->outputs++;
    }
    for (int32_t i = 0; i < h->objective->arg_count; i++) {
        const sbp_value_info *info = &h->objective->values[h->objective->args[i]];
        bool known = info->role != SBP_VALUE_STREAM;
        for (int32_t n = 0; n < h->outputs; n++)
            known |= strcmp(info->name, h->names[n]) == 0;
        if (!known)
            return sbp_fail(p->diag, SBP_INPUT,
                            "the objective reads '%s', which this model's head does not compute", info->name);
    }
    return SBP_OK;
}

sbp_status sbp_pass_head(sbp_pipeline *p) {
    if (!p->program)
        return SBP_OK;
    sbp_module *m = p->module;
    sbp_lowering *l = p->lowering;
    head_builder h = {
        .p = p, .call = &m->calls[m->call_count - 1], .objective = sbp_module_find_func(m, "objective")};
    h.head = m->funcs[h.call->func];
    l->head = (sbp_head_lowering){.score = -1, .backward = -1, .first = -1, .objective = -1, .gradient = -1};
    SBP_TRY(differentiate_objective(&h));
    SBP_TRY(add_vectors(&h));
    SBP_TRY(build_function(&h, h.head, "head.score", false, keeps_outputs, &l->head.score));
    SBP_TRY(build_objective(&h));
    if (l->first_trainable >= m->call_count || h.slope->result_count == 0)
        return SBP_OK;
    SBP_TRY(differentiate_head(&h));
    if (h.one_pass) {
        sbp_func *body;
        SBP_TRY(compose(&h, &body));
        return build_function(&h, body, "head.backward", true, keeps_all, &l->head.backward);
    }
    l->head.first = l->head.score;
    SBP_TRY(build_gradient(&h));
    return build_function(&h, h.derivative, "head.backward", true, is_gradient, &l->head.backward);
}
