/* onnx_experts.c: mixtures of experts as exporters write them: TopK of scores is the choice, i32 [T, k]; the
 * matrices that rows have chosen, gathered, are PICKED, which nothing computes; a matmul with them is one
 * with the experts' matrices. What slots of tokens have, [k T, n] in ONNX, is [T, k, n] in the graph IR. */
#include "frontends/onnx/onnx.h"

#include <math.h>
#include <string.h>

static const sbp_onnx_value *operand(sbp_onnx *o, int32_t i) {
    int32_t value = i < o->node->input_count ? sbp_map_get(&o->names, o->node->inputs[i]) : -1;
    return value >= 0 ? &o->values[value] : NULL;
}

static bool is_kind(const sbp_onnx_value *v, sbp_onnx_kind kind) {
    return v && v->kind == kind;
}

/* What a TopK has chosen, i32 [T, k], in whatever ONNX shape. */
static bool is_choice(const sbp_onnx *o, const sbp_onnx_value *v) {
    bool whole = is_kind(v, SBP_ONNX_VALUE) && (v->type == SBP_ONNX_INT64 || v->type == SBP_ONNX_INT32) &&
                 o->builder.status == SBP_OK;
    const sbp_type *type = whole ? &o->builder.func->values[v->value].type : NULL;
    return type && type->dtype == SBP_I32 && type->rank == 2;
}

static const sbp_op *maker(const sbp_onnx *o, sbp_value value) {
    int32_t op = o->builder.func->values[value].op;
    return op >= 0 ? &o->builder.func->ops[op] : NULL;
}

/* A value of the wide type with these dimensions after its rows. */
static sbp_status wide_value(sbp_onnx *o, const sbp_onnx_value *v, const int64_t *dims, int32_t count,
                             sbp_value *out) {
    SBP_TRY(sbp_onnx_materialize(o, v, o->wide, out));
    *out = sbp_onnx_with_dims(o, *out, dims, count);
    return o->builder.status;
}

static sbp_value number(sbp_onnx *o, double value) {
    return sbp_build_const(&o->builder, o->wide, value);
}

/* ---- choices ------------------------------------------------------------------------------------------ */

/* The two largest of each row of x [T, groups, n]: [T, groups, 2]. */
static sbp_value two_largest(sbp_onnx *o, sbp_value x) {
    sbp_builder *b = &o->builder;
    sbp_value none = number(o, 0), one = number(o, 1);
    sbp_value best = sbp_build1(b, SBP_OP_row_max, x);
    sbp_value below = sbp_build2(b, SBP_OP_lt, x, best);
    sbp_value next = sbp_build1(b, SBP_OP_row_max, sbp_build3(b, SBP_OP_select, below, x, number(o, -1e30)));
    sbp_value equals = sbp_build1(b, SBP_OP_row_sum, sbp_build3(b, SBP_OP_select, below, none, one));
    next = sbp_build3(b, SBP_OP_select, sbp_build2(b, SBP_OP_lt, one, equals), best, next);
    return sbp_build2(b, SBP_OP_concat, best, next);
}

static sbp_status top(sbp_onnx *o) {
    static const char *const known[] = {"axis", "largest", "sorted", NULL};
    const sbp_onnx_value *x;
    const int64_t *given;
    int64_t axis = -1, largest = 1, count, dims[SBP_MAX_RANK], dim[SBP_ONNX_MAX_RANK];
    int32_t rank;
    sbp_value scores;
    SBP_TRY(sbp_onnx_attrs_known(o, known));
    SBP_TRY(sbp_onnx_required(o, 0, &x));
    SBP_TRY(sbp_onnx_attr_int(o, "axis", &axis));
    SBP_TRY(sbp_onnx_attr_int(o, "largest", &largest));
    SBP_TRY(sbp_onnx_ints(o, 1, "the count", &given, &count));
    int32_t last = x->rank - 1;
    if (x->kind != SBP_ONNX_VALUE || sbp_onnx_rows_axis(x) < 0 || sbp_onnx_rows_axis(x) == last ||
        (axis != -1 && axis != last) || largest != 1 || count != 1 || given[0] < 1 || given[0] > x->dim[last])
        return sbp_onnx_fail(o,
                             "%lld of axis %lld of '%s' %s%s; the largest of the last axis of an activation "
                             "are supported",
                             (long long)(count == 1 ? given[0] : 0), (long long)axis, x->name,
                             sbp_onnx_shape_text(o, x), largest != 1 ? ", the smallest" : "");
    memcpy(dim, x->dim, sizeof dim);
    dim[last] = given[0];
    SBP_TRY(sbp_onnx_ir_dims(o, x->rank, x->dim, dims, &rank));
    sbp_onnx_type type = x->type;
    int32_t axes = x->rank;
    SBP_TRY(wide_value(o, x, dims, rank, &scores));
    if (rank != 1) {
        if (rank != 2 || given[0] != 2 || dims[1] < 2 || sbp_onnx_has_output(o, 1))
            return sbp_onnx_fail(o,
                                 "the largest of each of several groups, '%s' %s: only the values of the two "
                                 "largest are supported",
                                 x->name, sbp_onnx_shape_text(o, x));
        sbp_onnx_define_value(o, 0, two_largest(o, scores), type, axes, dim);
        return o->builder.status;
    }
    sbp_value index = sbp_build(&o->builder, SBP_OP_route, "chosen", &scores, 1,
                                (sbp_attr[]){sbp_attr_int("k", dim[last])}, 1, NULL);
    if (sbp_onnx_has_output(o, 0))
        sbp_onnx_define_value(o, 0, sbp_build2(&o->builder, SBP_OP_take_at, scores, index), type, axes, dim);
    if (o->node->output_count > 1)
        sbp_onnx_define_value(o, 1, index, SBP_ONNX_INT64, axes, dim);
    return o->builder.status;
}

/* Elements of rows at what was chosen. */
static sbp_status take(sbp_onnx *o, const sbp_onnx_value *x, const sbp_onnx_value *index) {
    int64_t axis = 0, width = x->dim[x->rank - 1], dim[SBP_ONNX_MAX_RANK];
    sbp_value value;
    SBP_TRY(sbp_onnx_attr_int(o, "axis", &axis));
    bool fits = x->rank == index->rank && (axis == -1 || axis == x->rank - 1) && sbp_onnx_rows_axis(x) >= 0 &&
                sbp_onnx_rows_axis(x) == sbp_onnx_rows_axis(index) && x->rank >= 2 && x->rank <= 3 &&
                sbp_onnx_rows_axis(x) == x->rank - 2 && (x->rank == 2 || x->dim[0] == 1);
    if (!fits)
        return sbp_onnx_fail(o, "axis %lld of '%s' %s at '%s' %s: elements of rows are supported",
                             (long long)axis, x->name, sbp_onnx_shape_text(o, x), index->name,
                             sbp_onnx_shape_text(o, index));
    memcpy(dim, index->dim, sizeof dim);
    sbp_onnx_type type = x->type;
    int32_t rank = index->rank;
    sbp_value at = index->value;
    SBP_TRY(wide_value(o, x, &width, 1, &value));
    sbp_onnx_define_value(o, 0, sbp_build2(&o->builder, SBP_OP_take_at, value, at), type, rank, dim);
    return o->builder.status;
}

/* One number everywhere, after broadcasting. */
static bool one_number(sbp_onnx *o, const sbp_onnx_value *v, double *out) {
    sbp_number_tensor t;
    if (!is_kind(v, SBP_ONNX_CONSTANT) && !is_kind(v, SBP_ONNX_NUMBERS))
        return false;
    sbp_onnx_tensor_of(o, v, &t);
    return sbp_number_is_constant(t.element, out);
}

/* Two numbers: one where a row has chosen, the other elsewhere. */
static sbp_status mark(sbp_onnx *o, const sbp_onnx_value *index) {
    const sbp_onnx_value *base = operand(o, 0), *marks = operand(o, 2);
    const char *reduction = "none";
    double elsewhere, here;
    int64_t axis = 0, dim[SBP_ONNX_MAX_RANK];
    sbp_builder *b = &o->builder;
    SBP_TRY(sbp_onnx_attr_int(o, "axis", &axis));
    SBP_TRY(sbp_onnx_attr_string(o, "reduction", &reduction));
    bool fits =
        one_number(o, base, &elsewhere) && one_number(o, marks, &here) && strcmp(reduction, "none") == 0;
    if (!fits || base->rank != 2 || (axis != -1 && axis != 1) || index->rank != 2 ||
        sbp_onnx_rows_axis(index) != 0 || sbp_onnx_rows_axis(base) != 0)
        return sbp_onnx_fail(o, "what '%s' %s has chosen is written in a way that is not supported",
                             index->name, sbp_onnx_shape_text(o, index));
    if (base->dim[1] == index->dim[1]) { /* all are chosen */
        sbp_onnx_define(o, 0, marks);
        return o->builder.status;
    }
    memcpy(dim, base->dim, sizeof dim);
    sbp_onnx_type type = base->type;
    sbp_value each =
        sbp_build(b, SBP_OP_iota, NULL, NULL, 0,
                  (sbp_attr[]){sbp_attr_int("n", dim[1]), sbp_attr_dtype("dtype", o->wide)}, 2, NULL);
    sbp_value chosen =
        sbp_onnx_with_dims(o, sbp_build_cast(b, index->value, o->wide), (int64_t[]){index->dim[1], 1}, 2);
    sbp_value hit = sbp_build3(b, SBP_OP_select, sbp_build2(b, SBP_OP_eq, chosen, each),
                               number(o, here - elsewhere), number(o, 0));
    hit = sbp_build(b, SBP_OP_row_sum, NULL, &hit, 1, (sbp_attr[]){sbp_attr_int("axis", -2)}, 1, NULL);
    hit = sbp_onnx_with_dims(o, hit, &dim[1], 1);
    if (elsewhere != 0)
        hit = sbp_build2(b, SBP_OP_add, hit, number(o, elsewhere));
    sbp_onnx_define_value(o, 0, hit, type, 2, dim);
    return b->status;
}

/* ---- what was chosen ---------------------------------------------------------------------------------- */

/* Output 0: parts of the parameter along its axis 0, in the shape of the index without its last `dropped`
 * axes. */
static sbp_status pick(sbp_onnx *o, const sbp_onnx_value *table, const sbp_onnx_value *index,
                       int32_t dropped) {
    sbp_onnx_value v = {.kind = SBP_ONNX_PICKED, .type = table->type, .value = index->value};
    int64_t axis = 0;
    SBP_TRY(sbp_onnx_attr_int(o, "axis", &axis));
    SBP_TRY(sbp_onnx_attr_int(o, "batch_dims", &axis));
    v.rank = index->rank - dropped + table->rank - 1;
    if (axis != 0 || table->transposed || table->rank < 1 || v.rank > SBP_ONNX_MAX_RANK ||
        (dropped && index->dim[index->rank - 1] != 1))
        return sbp_onnx_fail(o, "axis %lld of '%s' %s by '%s' %s: parts of axis 0 are supported",
                             (long long)axis, table->name, sbp_onnx_shape_text(o, table), index->name,
                             sbp_onnx_shape_text(o, index));
    memcpy(v.dim, index->dim, sizeof v.dim);
    memcpy(v.dim + index->rank - dropped, table->dim + 1, (size_t)(table->rank - 1) * sizeof *v.dim);
    SBP_TRY(sbp_onnx_param(o, table, &v.param));
    if (table->rank == 3 && !o->has_experts)
        sbp_note(o->diag,
                 "%s: experts are trained without the loss that balances them: an export does not say its "
                 "coefficient",
                 o->model->path);
    o->has_experts |= table->rank == 3;
    sbp_onnx_define(o, 0, &v);
    return o->builder.status;
}

static sbp_value expert_linear(sbp_onnx *o, const sbp_value operands[4], bool out_in, bool wide) {
    return sbp_build(
        &o->builder, SBP_OP_expert_linear, NULL, operands, 4,
        (sbp_attr[]){sbp_attr_symbol("layout", out_in ? "out_in" : "in_out"), sbp_attr_bool("wide", wide)}, 2,
        NULL);
}

/* The parameter of a PICKED, of the compute type. */
static sbp_value matrices(sbp_onnx *o, const sbp_onnx_value *picked) {
    return sbp_build_cast(&o->builder, sbp_build_param(&o->builder, picked->param), o->compute);
}

/* A vector of every slot times the slot's matrix, or the other way round. */
static sbp_status multiply(sbp_onnx *o, const sbp_onnx_value *a, const sbp_onnx_value *b) {
    bool out_in = a->kind == SBP_ONNX_PICKED;
    const sbp_onnx_value *w = out_in ? a : b, *x = out_in ? b : a;
    int64_t slots = sbp_build_type(&o->builder, w->value)->dim[1].n;
    int32_t vector = out_in ? 1 : 2; /* axis of x */
    bool fits = x->kind == SBP_ONNX_VALUE && x->rank == 3 && w->rank == 3 && x->repeat < 2 &&
                x->dim[0] == w->dim[0] && x->dim[3 - vector] == 1 &&
                x->dim[vector] == w->dim[out_in ? 2 : 1] &&
                x->dim[0] == (slots == 1 ? SBP_ONNX_ROWS : SBP_ONNX_SLOTS(slots));
    if (!fits)
        return sbp_onnx_fail(o,
                             "'%s' %s times '%s' %s: a vector for each expert that a token has chosen is "
                             "expected, and that expert's matrix",
                             a->name, sbp_onnx_shape_text(o, a), b->name, sbp_onnx_shape_text(o, b));
    int64_t in = x->dim[vector], dim[3] = {x->dim[0], 1, 1};
    dim[vector] = w->dim[out_in ? 1 : 2];
    sbp_onnx_type type = x->type;
    sbp_value value = x->shared || slots == 1 ? sbp_onnx_with_dims(o, x->value, &in, 1)
                                              : sbp_onnx_with_dims(o, x->value, (int64_t[]){slots, in}, 2);
    const sbp_value operands[] = {sbp_build_rounded(&o->builder, value, o->compute), w->value, matrices(o, w),
                                  SBP_NO_VALUE};
    sbp_value y = expert_linear(o, operands, out_in, false);
    sbp_build_name(&o->builder, y, sbp_onnx_short_name(o));
    SBP_TRY(sbp_onnx_as_shape(o, y, 3, dim, &y));
    sbp_onnx_define_value(o, 0, y, type, 3, dim);
    return o->builder.status;
}

/* ---- biases and weights of answers -------------------------------------------------------------------- */

/* The matmul with experts whose answers y is, in another shape and type at most, and which
 * nobody else reads. */
static const sbp_op *answers_of(const sbp_onnx *o, const sbp_onnx_value *y) {
    if (!is_kind(y, SBP_ONNX_VALUE) || y->rank != 2 || sbp_map_get(&o->read, y->name) != 1 ||
        o->builder.status != SBP_OK)
        return NULL;
    const sbp_op *op = maker(o, y->value);
    while (op && (op->code == SBP_OP_reshape || op->code == SBP_OP_cast))
        op = maker(o, op->operands[0]);
    return op && op->code == SBP_OP_expert_linear ? op : NULL;
}

/* Answers plus each expert's bias: one op. */
static sbp_status add_bias(sbp_onnx *o, const sbp_onnx_value *y, const sbp_onnx_value *bias, bool *done) {
    const sbp_op *op = answers_of(o, y);
    *done = op && op->operands[3] == SBP_NO_VALUE && op->operands[1] == bias->value && bias->rank == 2 &&
            y->dim[0] == bias->dim[0] && y->dim[1] == bias->dim[1];
    if (!*done)
        return SBP_OK;
    const sbp_value operands[] = {op->operands[0], op->operands[1], op->operands[2], matrices(o, bias)};
    sbp_value sum =
        expert_linear(o, operands, sbp_op_symbol_is(op, "layout", "out_in"), sbp_op_int(op, "wide"));
    SBP_TRY(sbp_onnx_as_shape(o, sum, 2, y->dim, &sum));
    sbp_onnx_define_value(o, 0, sum, y->type, 2, y->dim);
    return o->builder.status;
}

/* Answers times the weights of their slots: these go in front of the matmul, as hf/hf_experts.c has it and
 * says why. */
static sbp_status weigh(sbp_onnx *o, const sbp_onnx_value *y, const sbp_onnx_value *weight, bool *done) {
    const sbp_op *op = answers_of(o, y);
    sbp_builder *b = &o->builder;
    *done = false;
    if (!op || !is_kind(weight, SBP_ONNX_VALUE) || weight->rank != 2 || weight->dim[0] != y->dim[0] ||
        weight->dim[1] != 1 || weight->shared || weight->repeat > 1 ||
        sbp_build_type(b, op->operands[0])->rank != 3)
        return SBP_OK;
    *done = true;
    int64_t slots = sbp_build_type(b, op->operands[1])->dim[1].n, dim[2] = {y->dim[0], y->dim[1]};
    sbp_value x = op->operands[0], index = op->operands[1], w = op->operands[2], bias = op->operands[3], by;
    bool out_in = sbp_op_symbol_is(op, "layout", "out_in"), wide = o->wide != o->compute;
    const sbp_op *cast = maker(o, x);
    sbp_onnx_type type = y->type;
    if (cast && cast->code == SBP_OP_cast && sbp_build_type(b, cast->operands[0])->dtype == o->wide)
        x = cast->operands[0];
    SBP_TRY(wide_value(o, weight, (int64_t[]){slots, 1}, 2, &by));
    x = sbp_build2(b, SBP_OP_mul, sbp_build_cast(b, x, o->wide), by);
    sbp_value sum = expert_linear(
        o, (sbp_value[]){sbp_build_rounded(b, x, o->compute), index, w, SBP_NO_VALUE}, out_in, wide);
    if (bias != SBP_NO_VALUE) { /* whose input is the weight */
        const int64_t experts = sbp_build_type(b, bias)->dim[0].n;
        bias = sbp_build_reshape(b, bias, (int64_t[]){experts, 1, dim[1]}, 3);
        bias = expert_linear(
            o, (sbp_value[]){sbp_build_rounded(b, by, o->compute), index, bias, SBP_NO_VALUE}, false, wide);
        sum = sbp_build2(b, SBP_OP_add, sum, bias);
    }
    SBP_TRY(sbp_onnx_as_shape(o, sum, 2, dim, &sum));
    sbp_onnx_define_value(o, 0, sum, type, 2, dim);
    return b->status;
}

/* ---- the node ----------------------------------------------------------------------------------------- */

sbp_status sbp_onnx_experts_node(sbp_onnx *o, bool *done) {
    const char *op = o->node->op;
    const sbp_onnx_value *a = operand(o, 0), *b = operand(o, 1);
    bool picked = is_kind(a, SBP_ONNX_PICKED) || is_kind(b, SBP_ONNX_PICKED);
    *done = true;
    if (strcmp(op, "TopK") == 0)
        return top(o);
    if (strcmp(op, "GatherElements") == 0 && is_kind(a, SBP_ONNX_VALUE) && is_choice(o, b))
        return take(o, a, b);
    if (strcmp(op, "ScatterElements") == 0 && is_choice(o, b))
        return mark(o, b);
    if (strcmp(op, "GatherND") == 0 && is_kind(a, SBP_ONNX_PARAMETER) && is_choice(o, b))
        return pick(o, a, b, 1);
    if (strcmp(op, "Gather") == 0 && is_kind(a, SBP_ONNX_PARAMETER) && is_choice(o, b))
        return pick(o, a, b, 0);
    if (strcmp(op, "MatMul") == 0 && picked && a && b)
        return multiply(o, a, b);
    *done = false;
    for (int i = 0; i < 2 && !*done && a && b; i++) {
        const sbp_onnx_value *x = i == 0 ? a : b, *other = i == 0 ? b : a;
        if (strcmp(op, "Add") == 0 && is_kind(other, SBP_ONNX_PICKED))
            SBP_TRY(add_bias(o, x, other, done));
        if (strcmp(op, "Mul") == 0)
            SBP_TRY(weigh(o, x, other, done));
    }
    return o->builder.status;
}
