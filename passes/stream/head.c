/* head: streams the head and the objective, in one pass or in two.
 *
 * requires  the chunk function of the head, its results named as the stream arguments of @objective; results
 *           of @objective are sums over rows, or several of these added up; the loss is the first
 * gives     stages of head and objective; sbp_head_lowering
 * preserves loss, metrics, gradients
 * breaks    nothing
 *
 * The objective is differentiated first. How the values that d(loss)/d(per-row output) reads depend on the
 * per-row outputs decides: row by row: one pass over the chunks computes logits, their gradient, dH over H
 * and the weight gradients. Anything else (sums per document, pair or group): a first pass streams the
 * outputs, the objective's derivative runs once on vectors over all rows, a second pass streams the head
 * again with it as cotangent. What the derivative makes of data alone with more than single rows (sums per
 * document) is computed before the head, as vectors.
 *
 * Where several ranks have a micro-batch together (ir/base/context.h), the head runs over each rank's own
 * rows, and what is whole vectors over those of all (W, rank after rank): per-row outputs are gathered first,
 * and every rank computes the same objective, of which it takes its own rows.
 */
#include <assert.h>
#include <string.h>

#include "passes/lower/lowering.h"
#include "passes/stream/body.h"

/* A number per row that lasts while the head runs. Stream arguments of the objective's functions are bound to
 * these by number: first the outputs of the head in the order of its results, then what is computed of data.
 */
typedef struct head_vector {
    int32_t buffer;
    int32_t slope;          /* buffer of its cotangent in two passes; -1: none */
    int32_t all, slope_all; /* the same with the rows of all ranks */
} head_vector;

typedef struct head_builder {
    sbp_program_builder *p;
    const sbp_derivatives *derivatives;
    sbp_stages *stages;
    sbp_head_lowering *out;
    const char *rows;           /* the column of the rows that it computes; NULL: all */
    sbp_row_order order;        /* of the rows of stages that are being made */
    int32_t table;              /* its loop's */
    sbp_func *head, *objective; /* the latter with its stream arguments bound */
    const sbp_invocation *call;
    sbp_func *slope; /* the objective's derivative: gradients of its stream arguments */
    bool one_pass;
    sbp_func *derivative; /* of the head */
    int32_t outputs;      /* per-row outputs of the head */
    head_vector *vectors;
    int32_t vector_count, vector_capacity;
    int32_t all_rows; /* table of chunks of all rows, where the head's is of those that count */
    sbp_value logits; /* while generating: which value of the head, SBP_NO_VALUE: not; and where they stay */
    int32_t logits_buffer;
    sbp_func *with_logits; /* the head, with these as its one result */
} head_builder;

/* ---- what d(loss) reads ------------------------------------------------------------------------------ */

typedef struct reading {
    bool *reads;  /* per value: whether it depends on stream arguments */
    sbp_seq *seq; /* and how */
    bool *mixes;  /* whether it does not, but is made of more than its own rows of the data */
} reading;

static reading read_streams(const sbp_func *f) {
    reading x = {.reads = SBP_NEW_ARRAY(f->arena, bool, f->value_count + 1),
                 .seq = SBP_NEW_ARRAY(f->arena, sbp_seq, f->value_count + 1),
                 .mixes = SBP_NEW_ARRAY(f->arena, bool, f->value_count + 1)};
    for (int32_t i = 0; i < f->arg_count; i++)
        if (f->values[f->args[i]].role == SBP_VALUE_STREAM) {
            x.reads[f->args[i]] = true;
            x.seq[f->args[i]] = sbp_seq_of(SBP_SEQ_ROW);
        }
    for (int32_t i = 0; i < f->op_count; i++) {
        const sbp_op *op = &f->ops[i];
        for (int32_t r = 0; r < op->result_count; r++) {
            sbp_value y = op->results[r];
            for (int32_t k = 0; k < op->operand_count; k++) {
                sbp_value v = op->operands[k];
                if (v == SBP_NO_VALUE)
                    continue;
                sbp_seq own = sbp_op_seq(f, op, k, r);
                x.mixes[y] |= x.mixes[v] || (own.kind != SBP_SEQ_NONE && own.kind != SBP_SEQ_ROW);
                if (!x.reads[v])
                    continue;
                sbp_seq path = sbp_seq_compose(own, x.seq[v], sbp_type_rows(&f->values[y].type) != SBP_ONE);
                x.seq[y] = x.reads[y] ? sbp_seq_join(x.seq[y], path) : path;
                x.reads[y] = true;
            }
            x.mixes[y] &= !x.reads[y];
        }
    }
    return x;
}

/* Whether every result depends on stream arguments row by row, if at all. */
static bool depends_by_row(const sbp_func *f, const reading *x) {
    for (int32_t i = 0; i < f->result_count; i++) {
        sbp_value v = f->results[i].value;
        if (x->reads[v] && x->seq[v].kind != SBP_SEQ_NONE && x->seq[v].kind != SBP_SEQ_ROW)
            return false;
    }
    return true;
}

/* What is made of data alone and read with streams, or is a result: whether each is a number per row. */
static bool find_hoisted(const sbp_func *f, const reading *x, bool *hoisted) {
    bool are_vectors = true;
    for (int32_t i = 0; i < f->op_count; i++)
        for (int32_t k = 0; k < f->ops[i].operand_count; k++) {
            sbp_value v = f->ops[i].operands[k];
            if (v != SBP_NO_VALUE && x->mixes[v] && !x->mixes[f->ops[i].results[0]])
                hoisted[v] = true;
        }
    for (int32_t i = 0; i < f->result_count; i++)
        hoisted[f->results[i].value] |= x->mixes[f->results[i].value];
    for (int32_t v = 0; v < f->value_count; v++)
        if (hoisted[v])
            are_vectors &= f->values[v].type.rank == 1 && sbp_type_rows(&f->values[v].type) != SBP_S;
    return are_vectors;
}

/* Gradient result of the objective for an output of the head; SBP_NO_VALUE: zero. */
static sbp_value slope_of(const head_builder *h, int32_t output) {
    for (int32_t i = 0; i < h->slope->result_count; i++)
        if (h->slope->values[h->slope->results[i].target].binding == output)
            return h->slope->results[i].value;
    return SBP_NO_VALUE;
}

static bool has_context(const head_builder *h) {
    return h->p->program->context > 1;
}

/* Rows of vectors that are whole. */
static sbp_symbol all_rows(const head_builder *h) {
    return has_context(h) ? SBP_W : SBP_T;
}

static int32_t vector_buffer(head_builder *h, const char *name, sbp_dtype dtype, sbp_symbol rows) {
    return sbp_lower_buffer(h->p, name, SBP_ROLE_VECTOR, SBP_DEVICE, dtype, 1, sbp_extent_symbol(rows, 1), 1,
                            -1);
}

/* all: a buffer of all rows. */
static int32_t add_vector(head_builder *h, const char *name, sbp_dtype dtype, int32_t all) {
    int32_t own = has_context(h) ? vector_buffer(h, name, dtype, SBP_T) : all;
    SBP_PUSH(h->p->arena, h->vectors, h->vector_count, h->vector_capacity,
             (head_vector){.buffer = own, .slope = -1, .all = all, .slope_all = -1});
    return h->vector_count - 1;
}

/* Between the rows of a rank and those of all. */
static void add_exchange(head_builder *h, sbp_function_lowering *function, sbp_collective_op op, int32_t to,
                         int32_t from) {
    sbp_body body = {0};
    if (!has_context(h))
        return;
    sbp_lower_collective(h->p, &body, op, sbp_view_buffer(h->p->program, to, 0),
                         sbp_view_buffer(h->p->program, from, 0), SBP_QUEUE_COMPUTE);
    SBP_PUSH(h->p->arena, function->items, function->item_count, function->item_capacity,
             (sbp_item){.node = body.nodes[0]});
}

/* A function of these values alone, as results. */
static sbp_status cut_data(head_builder *h, const bool *hoisted, sbp_func **out) {
    sbp_rewrite rw;
    sbp_rewrite_begin(&rw, h->p->module, h->slope, h->p->diag);
    rw.to->name = "objective.data";
    for (int32_t i = 0; i < h->slope->op_count; i++)
        SBP_TRY(sbp_rewrite_copy(&rw, &h->slope->ops[i]));
    for (int32_t v = 0; v < h->slope->value_count; v++)
        if (hoisted[v])
            sbp_func_add_result(rw.to, rw.map[v], SBP_RESULT_SAVED, SBP_NO_VALUE, h->slope->values[v].name);
    SBP_TRY(sbp_canonicalize_func(h->p->module, rw.to, h->p->diag, out));
    sbp_body_drop_arguments(*out);
    return SBP_OK;
}

/* Moves what is made of data alone, by more than rows, in front of the head; one pass only. */
static sbp_status hoist_data(head_builder *h, const bool *hoisted) {
    sbp_program_builder *p = h->p;
    sbp_func *data;
    sbp_body_cut cut;
    int32_t first = h->vector_count;
    SBP_TRY(cut_data(h, hoisted, &data));
    if (data->result_count == 0)
        return SBP_OK;
    SBP_TRY(
        sbp_body_make(p->module,
                      &(sbp_body_spec){.from = h->slope,
                                       .given = hoisted,
                                       .keeps = sbp_body_keeps_gradients,
                                       .filled = SBP_NEW_ARRAY(p->arena, bool, h->slope->value_count + 1)},
                      "objective.gradient", p->diag, &cut));
    sbp_function_lowering *function = sbp_lower_function(p, h->stages, "objective.data");
    sbp_stage *stage = sbp_lower_stage(p, "objective.data.rows", data, -1, false, h->order);
    for (int32_t v = 0; v < h->slope->value_count; v++) {
        if (!hoisted[v])
            continue;
        sbp_dtype dtype = h->slope->values[v].type.dtype;
        int32_t n = add_vector(h, "data", dtype, vector_buffer(h, "data", dtype, all_rows(h)));
        const sbp_result *result = &data->results[n - first];
        SBP_PUSH(
            p->arena, stage->stores, stage->store_count, stage->store_capacity,
            (sbp_store){.value = result->value, .to = sbp_view_buffer(p->program, h->vectors[n].all, 0)});
        if (cut.map[v] != SBP_NO_VALUE)
            cut.func->values[cut.map[v]].binding = n;
    }
    sbp_lower_add_stage(p, function, stage);
    for (int32_t n = first; n < h->vector_count; n++)
        add_exchange(h, function, SBP_CONTEXT_SHARE, h->vectors[n].buffer, h->vectors[n].all);
    h->out->data = function->function;
    h->slope = cut.func;
    return SBP_OK;
}

/* One pass or two; which values go in front of one. */
static const bool *choose_passes(head_builder *h) {
    reading x = read_streams(h->slope);
    bool *hoisted = SBP_NEW_ARRAY(h->p->arena, bool, h->slope->value_count + 1);
    h->one_pass = depends_by_row(h->slope, &x);
    h->one_pass &= find_hoisted(h->slope, &x, hoisted);
    return hoisted;
}

/* ---- the head's derivative --------------------------------------------------------------------------- */

/* Whether somebody below the head is trained. */
static bool wants_input(const head_builder *h) {
    return h->derivatives->first_trainable < h->p->module->call_count - 1;
}

static sbp_status differentiate_head(head_builder *h) {
    sbp_func *head = SBP_NEW(h->p->arena, sbp_func);
    *head = *h->head;
    head->results = SBP_NEW_ARRAY(h->p->arena, sbp_result, head->result_count);
    memcpy(head->results, h->head->results, (size_t)head->result_count * sizeof *head->results);
    for (int32_t i = 0; i < head->result_count; i++)
        if (slope_of(h, i) == SBP_NO_VALUE)
            head->results[i].role = SBP_RESULT_SAVED; /* an output that the loss does not read */
    return sbp_autodiff_func(h->p->module, head, wants_input(h), h->p->diag, &h->derivative);
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
        if (info->role == SBP_VALUE_STREAM && info->binding < h->outputs) {
            slope_map[arg] = rw->map[h->derivative->results[info->binding].value];
        } else if (info->role == SBP_VALUE_ROW) {
            const sbp_row *row = &h->p->module->rows[info->binding];
            slope_map[arg] = sbp_build_row(&in.builder, row->name, row->dtype, SBP_C);
        } else if (info->role == SBP_VALUE_SCALAR) {
            slope_map[arg] = sbp_build_scalar(&in.builder, h->p->module->scalars[info->binding]);
        } else {
            sbp_type type = sbp_rewrite_rows_type(&info->type, all_rows(h), SBP_C);
            slope_map[arg] = sbp_func_add_arg(rw->to, info->role, info->name, &type, info->binding);
        }
    }
    for (int32_t i = 0; i < from->op_count; i++) {
        sbp_op op = from->ops[i];
        sbp_attr attrs[SBP_MAX_ATTRS];
        sbp_rewrite_rows_attrs(&op, all_rows(h), SBP_C, attrs);
        op.attrs = attrs;
        SBP_TRY(sbp_rewrite_copy(&in, &op));
    }
    return SBP_OK;
}

/* Which of the head's outputs a value of its derivative is; -1: none. */
static int32_t output_of(const head_builder *h, sbp_value value) {
    for (int32_t n = 0; n < h->outputs; n++)
        if (h->derivative->results[n].value == value)
            return n;
    return -1;
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
        int32_t output = output_of(h, d->values[arg].binding);
        if (output >= 0)
            rw.map[arg] = slope_map[slope_of(h, output)];
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

/* Rows of a vector that belong to the chunk; of its cotangent. Nowhere when it has none. */
static sbp_view vector_rows(const head_builder *h, const sbp_stage *stage, int32_t number, bool slope) {
    assert(h->vectors);
    int32_t buffer = slope ? h->vectors[number].slope : h->vectors[number].buffer;
    return buffer < 0 ? sbp_view_none() : sbp_lower_rows_of(stage, sbp_view_buffer(h->p->program, buffer, 0));
}

/* What the head reads of each row. */
static const sbp_type *stream_type(const sbp_func *head) {
    const sbp_type *x = NULL;
    for (int32_t i = 0; i < head->arg_count; i++)
        if (head->values[head->args[i]].role == SBP_VALUE_STREAM)
            x = &head->values[head->args[i]].type;
    return x;
}

/* Rows of the one chunk of rows whose logits stay. */
static sbp_view logits_rows(const head_builder *h) {
    sbp_view view = sbp_view_buffer(h->p->program, h->logits_buffer, 0);
    view.length = (sbp_index){.base = sbp_extent_symbol(SBP_H, 1), .column = -1};
    return view;
}

/* One loop over the chunks of the head. H is read, and overwritten by its gradient when there is one. given:
 * the logits are there. */
static sbp_status build_function(head_builder *h, const sbp_func *from, const char *name, bool backward,
                                 bool given, bool (*keeps)(const void *, const sbp_result *), int32_t *out) {
    sbp_program_builder *p = h->p;
    bool *none = SBP_NEW_ARRAY(p->arena, bool, from->value_count + 1);
    bool *there = SBP_NEW_ARRAY(p->arena, bool, from->value_count + 1);
    sbp_body_cut cut;
    if (given)
        there[h->logits] = true;
    SBP_TRY(sbp_body_make(p->module,
                          &(sbp_body_spec){.from = from, .given = there, .keeps = keeps, .filled = none},
                          name, p->diag, &cut));
    sbp_function_lowering *function = sbp_lower_function(p, h->stages, name);
    int32_t f = function->function;
    sbp_stage *stage =
        sbp_lower_stage(p, sbp_arena_printf(p->arena, "%s.chunk", name), cut.func, h->table, false, h->order);
    const sbp_type *x = stream_type(h->head);
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
        sbp_value o = cut.origin[v];
        if (given && o == h->logits)
            stage->places[v] = logits_rows(h);
        else if (o != SBP_NO_VALUE && from->values[o].role == SBP_VALUE_COTANGENT)
            stage->places[v] = vector_rows(h, stage, output_of(h, from->values[o].binding), true);
        else if (info->role == SBP_VALUE_STREAM)
            stage->places[v] = info->binding >= 0 ? vector_rows(h, stage, info->binding, false) : stream;
    }
    for (int32_t i = 0, output = 0; i < cut.func->result_count; i++) {
        const sbp_result *result = &cut.func->results[i];
        sbp_view to = stream;
        if (result->role == SBP_RESULT_SAVED && from == h->with_logits)
            to = logits_rows(h);
        else if (result->role != SBP_RESULT_GRADIENT)
            to = vector_rows(h, stage, output++, false);
        else if (cut.func->values[result->target].role != SBP_VALUE_STREAM)
            continue;
        SBP_PUSH(p->arena, stage->stores, stage->store_count, stage->store_capacity,
                 (sbp_store){.value = result->value, .to = to});
    }
    sbp_lower_add_stage(p, function, stage);
    *out = f;
    return SBP_OK;
}

/* A stage over whole vectors: stream arguments read the head's outputs. */
static sbp_stage *vector_stage(head_builder *h, sbp_func *body, const char *name) {
    sbp_stage *stage = sbp_lower_stage(h->p, name, body, -1, false, h->order);
    for (int32_t i = 0; i < body->arg_count; i++) {
        const sbp_value_info *info = &body->values[body->args[i]];
        if (info->role != SBP_VALUE_STREAM)
            continue;
        assert(h->vectors);
        stage->places[body->args[i]] = sbp_view_buffer(h->p->program, h->vectors[info->binding].all, 0);
    }
    return stage;
}

/* ---- rows that count --------------------------------------------------------------------------------- */

/* y [C, d]: the rows of H that the index names, 0 where the column of counted rows is. */
static sbp_status make_picking(head_builder *h, const char *name, const sbp_type *x, sbp_func **out) {
    sbp_program_builder *p = h->p;
    sbp_func *f = *out = sbp_func_create(p->arena, name);
    sbp_builder b = sbp_builder_on(p->module, f, p->diag);
    sbp_type table = *x, index = {.dtype = SBP_I32, .rank = 1, .dim = {sbp_dim_symbol(SBP_C)}};
    table.dim[0] = sbp_dim_const(1); /* of as many rows as there are: the view says so */
    sbp_value rows = sbp_func_add_arg(f, SBP_VALUE_STREAM, "all", &table, -1);
    sbp_value pick = sbp_func_add_arg(f, SBP_VALUE_STREAM, "index", &index, -1);
    sbp_dtype dtype = SBP_F32;
    for (int32_t r = 0; r < p->module->row_count; r++)
        if (strcmp(p->module->rows[r].name, h->rows) == 0)
            dtype = p->module->rows[r].dtype;
    sbp_value counts = sbp_build_row(&b, h->rows, dtype, SBP_C);
    sbp_value none = sbp_build_const(&b, dtype, 0);
    counts = sbp_build2(&b, SBP_OP_lt, none, sbp_build_reshape(&b, counts, (int64_t[]){1}, 1));
    sbp_value y = sbp_build2(&b, SBP_OP_gather, rows, pick), zero = sbp_build_const(&b, x->dtype, 0);
    y = sbp_build3(&b, SBP_OP_select, counts, y, zero);
    if (b.status == SBP_OK)
        sbp_func_add_result(f, y, SBP_RESULT_SAVED, SBP_NO_VALUE, "rows");
    return b.status;
}

/* Rows of H to its front, chunk after chunk (a row never comes from before its new place), or, from the last
 * chunk on, back. */
static sbp_status build_picking(head_builder *h, bool back, int32_t *out) {
    sbp_program_builder *p = h->p;
    const char *name = back ? "head.scatter" : "head.gather";
    const sbp_type *x = stream_type(h->head);
    sbp_func *body;
    SBP_TRY(make_picking(h, name, x, &body));
    sbp_function_lowering *function = sbp_lower_function(p, h->stages, name);
    sbp_stage *stage =
        sbp_lower_stage(p, sbp_arena_printf(p->arena, "%s.chunk", name), body, back ? h->all_rows : h->table,
                        back, (sbp_row_order){.counted = !back, .by_rank = h->order.by_rank});
    sbp_lower_formal(p, function->function, "H", SBP_UPDATE, x->dtype, sbp_extent_symbol(SBP_T, 1),
                     sbp_type_row_elems(x));
    int32_t index = sbp_lower_order_buffer(p, h->rows, back ? SBP_ROW_RANK : SBP_ROW_PICK, SBP_T, false);
    sbp_view whole = sbp_view_formal(&p->program->functions[function->function], 0);
    stage->places[body->args[0]] = whole;
    stage->places[body->args[1]] = sbp_lower_rows_of(stage, sbp_view_buffer(p->program, index, 0));
    SBP_PUSH(p->arena, stage->stores, stage->store_count, stage->store_capacity,
             (sbp_store){.value = body->results[0].value, .to = sbp_lower_rows_of(stage, whole)});
    for (int32_t n = 0; n < h->outputs && !back; n++) { /* rows behind those that count */
        sbp_body fill = {0};
        sbp_lower_fill(p, &fill, sbp_view_buffer(p->program, h->vectors[n].buffer, 0), 0);
        SBP_PUSH(p->arena, function->items, function->item_count, function->item_capacity,
                 (sbp_item){.node = fill.nodes[0]});
    }
    sbp_lower_add_stage(p, function, stage);
    *out = function->function;
    return SBP_OK;
}

/* Every row input of the head and the objective comes in the order of counted rows from here on. */
static void begin_counted(head_builder *h) {
    sbp_program *program = h->p->program;
    sbp_chunk_table all = program->tables[h->table];
    all.name = "all_pieces";
    SBP_PUSH(h->p->arena, program->tables, program->table_count, program->table_capacity, all);
    h->all_rows = program->table_count - 1;
    program->tables[h->table].counted = true;
    for (int32_t r = 0; r < h->p->module->row_count; r++) /* the runtime finds them by it */
        if (strcmp(h->p->module->rows[r].name, h->rows) == 0)
            (void)sbp_lower_row_buffer(h->p, h->rows, h->p->module->rows[r].dtype, SBP_T, h->order);
    h->order.counted = true;
}

/* Loss and metrics, each a sum over rows or several of them added up: every sum becomes a result of its own,
 * called as the one that it is part of. */
static sbp_status part_sums(head_builder *h, sbp_func *f) {
    sbp_result *parts = NULL;
    int32_t count = 0, capacity = 0;
    for (int32_t i = 0; i < f->result_count; i++) {
        sbp_value *stack = SBP_NEW_ARRAY(f->arena, sbp_value, f->op_count + 2);
        int32_t depth = 1;
        for (stack[0] = f->results[i].value; depth > 0;) {
            sbp_value v = stack[--depth];
            const sbp_op *op = f->values[v].role == SBP_VALUE_OP ? &f->ops[f->values[v].op] : NULL;
            sbp_result part = f->results[i];
            part.value = v;
            if (op && op->code == SBP_OP_sum_rows && f->values[v].type.rank == 0) {
                SBP_PUSH(f->arena, parts, count, capacity, part);
            } else if (op && op->code == SBP_OP_add && depth < f->op_count) {
                stack[depth++] = op->operands[1];
                stack[depth++] = op->operands[0];
            } else {
                return sbp_fail(h->p->diag, SBP_INTERNAL, "objective: result '%s' is not a sum over rows",
                                part.name);
            }
        }
    }
    f->results = parts;
    f->result_count = count;
    return SBP_OK;
}

/* Place of a result in the buffer of results: declared when it is met first. */
static int32_t result_place(sbp_program_builder *p, const char *name, int32_t buffer, int32_t *known) {
    const sbp_program *program = p->program;
    for (int32_t i = program->output_count - *known; i < program->output_count; i++)
        if (strcmp(program->outputs[i].name, name) == 0)
            return program->outputs[i].index;
    SBP_PUSH(p->arena, p->program->outputs, p->program->output_count, p->program->output_capacity,
             (sbp_output){.name = name, .buffer = buffer, .index = *known});
    return (*known)++;
}

/* Each sum is added to its place in the result buffer. */
static sbp_status build_objective(head_builder *h) {
    sbp_program_builder *p = h->p;
    sbp_func *expanded, *body;
    SBP_TRY(sbp_expand_func(p->module, h->objective, true, p->diag, &expanded));
    int32_t count = expanded->result_count, known = 0;
    SBP_TRY(part_sums(h, expanded));
    SBP_TRY(sbp_canonicalize_func(p->module, expanded, p->diag, &body));
    sbp_function_lowering *function = sbp_lower_function(p, h->stages, "objective");
    for (int32_t n = 0; n < h->outputs; n++)
        add_exchange(h, function, SBP_CONTEXT_GATHER, h->vectors[n].all, h->vectors[n].buffer);
    sbp_stage *stage = vector_stage(h, body, "objective.rows");
    int32_t results = sbp_lower_buffer(p, "results", SBP_ROLE_RESULT, SBP_DEVICE, SBP_F64, 1,
                                       sbp_extent_const(1), count, -1);
    for (int32_t i = 0; i < body->result_count; i++) {
        const sbp_result *result = &body->results[i];
        sbp_view to = sbp_view_buffer(p->program, results, 0);
        to.col = result_place(p, result->name, results, &known);
        to.cols = 1;
        SBP_PUSH(p->arena, stage->stores, stage->store_count, stage->store_capacity,
                 (sbp_store){.value = result->value, .to = to});
    }
    sbp_lower_add_stage(p, function, stage);
    h->out->objective = function->function;
    return SBP_OK;
}

/* Two passes: the cotangents of the head's outputs, as vectors. */
static sbp_status build_gradient(head_builder *h) {
    sbp_program_builder *p = h->p;
    sbp_function_lowering *function = sbp_lower_function(p, h->stages, "objective.gradient");
    sbp_stage *stage = vector_stage(h, h->slope, "objective.gradient.rows");
    for (int32_t i = 0; i < h->slope->result_count; i++) {
        const sbp_result *result = &h->slope->results[i];
        const head_vector *vector = &h->vectors[h->slope->values[result->target].binding];
        SBP_PUSH(
            p->arena, stage->stores, stage->store_count, stage->store_capacity,
            (sbp_store){.value = result->value, .to = sbp_view_buffer(p->program, vector->slope_all, 0)});
    }
    sbp_lower_add_stage(p, function, stage);
    for (int32_t n = 0; n < h->outputs; n++)
        if (h->vectors[n].slope >= 0)
            add_exchange(h, function, SBP_CONTEXT_SHARE, h->vectors[n].slope, h->vectors[n].slope_all);
    h->out->gradient = function->function;
    return SBP_OK;
}

/* The outputs of the head, and their cotangents in two passes. */
static sbp_status add_outputs(head_builder *h) {
    sbp_program_builder *p = h->p;
    for (int32_t i = 0; i < h->outputs; i++) {
        const sbp_result *result = &h->head->results[i];
        sbp_dtype dtype = h->head->values[result->value].type.dtype;
        int32_t n =
            add_vector(h, result->name, dtype, sbp_lower_output_buffer(p, result->name, dtype, all_rows(h)));
        if (h->one_pass || slope_of(h, i) == SBP_NO_VALUE)
            continue;
        const char *name = sbp_arena_printf(p->arena, "d_%s", result->name);
        h->vectors[n].slope = h->vectors[n].slope_all = vector_buffer(h, name, dtype, SBP_T);
        if (has_context(h))
            h->vectors[n].slope_all = vector_buffer(h, name, dtype, SBP_W);
    }
    return SBP_OK;
}

/* Binds what the objective reads to what the head computes: the one place where these have names. */
static sbp_status bind_objective(head_builder *h) {
    sbp_program_builder *p = h->p;
    sbp_rewrite rw;
    sbp_rewrite_begin_bare(&rw, p->module, sbp_module_find_func(p->module, "objective"), p->diag);
    for (int32_t i = 0; i < rw.from->arg_count; i++) {
        sbp_type type = sbp_rewrite_rows_type(&rw.from->values[rw.from->args[i]].type, SBP_T, all_rows(h));
        sbp_rewrite_arg(&rw, rw.from->args[i], &type);
    }
    for (int32_t i = 0; i < rw.from->op_count; i++) {
        sbp_op op = rw.from->ops[i];
        sbp_attr attrs[SBP_MAX_ATTRS];
        sbp_rewrite_rows_attrs(&op, SBP_T, all_rows(h), attrs);
        op.attrs = attrs;
        SBP_TRY(sbp_rewrite_copy(&rw, &op));
    }
    h->objective = sbp_rewrite_end(&rw);
    h->outputs = h->head->result_count;
    for (int32_t i = 0; i < h->outputs; i++)
        if (!h->head->results[i].name || h->head->results[i].role != SBP_RESULT_VALUE ||
            h->head->values[h->head->results[i].value].type.rank != 1)
            return sbp_fail(p->diag, SBP_INTERNAL, "head: output %d of @%s is not a named vector", i,
                            h->head->name);
    for (int32_t i = 0; i < h->objective->arg_count; i++) {
        sbp_value_info *info = &h->objective->values[h->objective->args[i]];
        if (info->role != SBP_VALUE_STREAM)
            continue;
        info->binding = -1;
        for (int32_t n = 0; n < h->outputs; n++)
            if (strcmp(info->name, h->head->results[n].name) == 0)
                info->binding = n;
        if (info->binding < 0)
            return sbp_fail(p->diag, SBP_INPUT,
                            "the objective reads '%s', which this model's head does not compute", info->name);
    }
    return SBP_OK;
}

/* The head up to its logits, which stay, and from there on. */
static sbp_status build_generation(head_builder *h) {
    sbp_program_builder *p = h->p;
    const sbp_func *head = h->head;
    for (int32_t i = 0; i < head->op_count; i++)
        if (head->ops[i].code == SBP_OP_log_prob)
            h->logits = head->ops[i].operands[0];
    if (h->logits == SBP_NO_VALUE)
        return sbp_fail(p->diag, SBP_INTERNAL, "head: @%s has no log-probabilities", head->name);
    const sbp_type *type = &head->values[h->logits].type;
    h->logits_buffer = sbp_lower_buffer(p, SBP_LOGITS, SBP_ROLE_VECTOR, SBP_DEVICE, type->dtype, 1,
                                        sbp_extent_symbol(SBP_H, 1), sbp_type_row_elems(type), -1);
    h->with_logits = SBP_NEW(p->arena, sbp_func);
    *h->with_logits = *head;
    h->with_logits->results = NULL;
    h->with_logits->result_count = h->with_logits->result_capacity = 0;
    sbp_func_add_result(h->with_logits, h->logits, SBP_RESULT_SAVED, SBP_NO_VALUE, SBP_LOGITS);
    SBP_TRY(build_function(h, h->with_logits, "head.logits", false, false, keeps_all, &h->out->logits));
    return build_function(h, head, "head.choose", false, true, keeps_outputs, &h->out->choose);
}

static sbp_status build_functions(head_builder *h) {
    sbp_head_lowering *out = h->out;
    SBP_TRY(bind_objective(h));
    SBP_TRY(sbp_loss_slope(h->p, h->objective, "objective.gradient", &h->slope));
    const bool *hoisted = choose_passes(h);
    SBP_TRY(add_outputs(h));
    if (h->rows)
        SBP_TRY(build_picking(h, false, &out->gather));
    SBP_TRY(build_function(h, h->head, "head.score", false, false, keeps_outputs, &out->score));
    SBP_TRY(build_objective(h));
    if (h->p->options.generates)
        SBP_TRY(build_generation(h));
    if (h->derivatives->first_trainable >= h->p->module->call_count || h->slope->result_count == 0)
        return SBP_OK;
    SBP_TRY(differentiate_head(h));
    if (h->rows && wants_input(h))
        SBP_TRY(build_picking(h, true, &out->scatter));
    if (h->one_pass) {
        sbp_func *body;
        SBP_TRY(hoist_data(h, hoisted));
        SBP_TRY(compose(h, &body));
        return build_function(h, body, "head.backward", true, false, keeps_all, &out->backward);
    }
    out->first = out->score;
    SBP_TRY(build_gradient(h));
    return build_function(h, h->derivative, "head.backward", true, false, sbp_body_keeps_gradients,
                          &out->backward);
}

sbp_status sbp_pass_head(sbp_program_builder *p, const sbp_derivatives *derivatives,
                         const sbp_segments *segments, sbp_stages *stages, sbp_head_lowering *out) {
    const sbp_module *m = p->module;
    head_builder h = {.p = p,
                      .derivatives = derivatives,
                      .stages = stages,
                      .out = out,
                      .rows = p->options.counted,
                      .table = segments->head_table,
                      .call = &m->calls[m->call_count - 1],
                      .logits = SBP_NO_VALUE};
    h.head = m->funcs[h.call->func];
    *out = (sbp_head_lowering){.gather = -1,
                               .scatter = -1,
                               .score = -1,
                               .logits = -1,
                               .choose = -1,
                               .backward = -1,
                               .first = -1,
                               .objective = -1,
                               .data = -1,
                               .gradient = -1,
                               .clear = -1,
                               .statistics = -1,
                               .slopes = -1,
                               .count = -1};
    const sbp_type *x = stream_type(h.head);
    if (!x || x->rank != 2) /* only vectors are moved */
        h.rows = NULL;
    if (h.rows)
        begin_counted(&h);
    h.order.by_rank = true;
    SBP_TRY(build_functions(&h));
    return sbp_statistics_lower(p, derivatives, stages, out);
}
