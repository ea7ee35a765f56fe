/* onnx_ops.c: operators that work element by element, and those that only rearrange. Parts of a value:
 * onnx_parts.c. */
#include "frontends/onnx/onnx.h"

#include <string.h>

const sbp_onnx_op *sbp_onnx_find_op(const char *name) {
    static const sbp_onnx_op ops[] = {
#define ONNX_OP(name, since, function) {name, since, function},
#include "frontends/onnx/onnx_ops.def"
#undef ONNX_OP
    };
    for (int32_t i = 0; i < SBP_COUNT(ops); i++)
        if (strcmp(ops[i].name, name) == 0)
            return &ops[i];
    return NULL;
}

static sbp_status no_attributes(sbp_onnx *o) {
    static const char *const none[] = {NULL};
    return sbp_onnx_attrs_known(o, none);
}

/* ---- element by element -------------------------------------------------------------------------------- */

/* Operand 0 in the dtype of the result, and its shape. */
static sbp_status one_operand(sbp_onnx *o, const sbp_onnx_value **x, sbp_value *value, int64_t *dim) {
    int32_t rank;
    SBP_TRY(sbp_onnx_required(o, 0, x));
    return sbp_onnx_broadcast(o, x, 1, value, &rank, dim);
}

sbp_status sbp_onnx_unary(sbp_onnx *o) {
    static const struct {
        const char *op;
        sbp_opcode code;
    } codes[] = {{"Abs", SBP_OP_abs},        {"Cos", SBP_OP_cos},   {"Erf", SBP_OP_erf},
                 {"Exp", SBP_OP_exp},        {"Log", SBP_OP_log},   {"Neg", SBP_OP_neg},
                 {"Sin", SBP_OP_sin},        {"Sqrt", SBP_OP_sqrt}, {"Tanh", SBP_OP_tanh},
                 {"Sigmoid", SBP_OP_sigmoid}};
    const sbp_onnx_value *x;
    sbp_value value;
    int64_t dim[SBP_MAX_RANK];
    SBP_TRY(no_attributes(o));
    SBP_TRY(one_operand(o, &x, &value, dim));
    for (int32_t i = 0; i < SBP_COUNT(codes); i++)
        if (strcmp(codes[i].op, o->node->op) == 0)
            sbp_onnx_define_value(o, 0, sbp_build1(&o->builder, codes[i].code, value), x->type, x->rank, dim);
    return o->builder.status;
}

sbp_status sbp_onnx_reciprocal(sbp_onnx *o) {
    const sbp_onnx_value *x;
    sbp_value value;
    int64_t dim[SBP_MAX_RANK];
    SBP_TRY(no_attributes(o));
    SBP_TRY(one_operand(o, &x, &value, dim));
    sbp_value one = sbp_build_const(&o->builder, sbp_build_type(&o->builder, value)->dtype, 1);
    sbp_onnx_define_value(o, 0, sbp_build2(&o->builder, SBP_OP_div, one, value), x->type, x->rank, dim);
    return o->builder.status;
}

/* Whether a node is a sum of two activations [1, T, n], as where a branch joins the residual stream. */
static bool joins_streams(const sbp_onnx *o, const sbp_onnx_value *const *in) {
    bool same = strcmp(o->node->op, "Add") == 0 && !o->wide_node[o->node - o->model->nodes];
    for (int32_t i = 0; i < 2; i++)
        same &= in[i]->kind == SBP_ONNX_VALUE && in[i]->rank == 3 && sbp_onnx_rows_axis(in[i]) == 1 &&
                memcmp(in[i]->dim, in[0]->dim, 3 * sizeof *in[0]->dim) == 0;
    return same;
}

/* In the type of the stream, as hf/hf_blocks.c does it: what crosses from layer to layer is its result. */
static sbp_status join_streams(sbp_onnx *o, const sbp_onnx_value *const *in) {
    sbp_value value[2];
    for (int32_t i = 0; i < 2; i++)
        SBP_TRY(sbp_onnx_materialize(o, in[i], o->residual, &value[i]));
    sbp_value y = sbp_build2(&o->builder, SBP_OP_add, value[0], value[1]);
    sbp_onnx_define_value(o, 0, y, in[0]->type, in[0]->rank, in[0]->dim);
    return o->builder.status;
}

sbp_status sbp_onnx_binary(sbp_onnx *o) {
    static const struct {
        const char *op;
        sbp_opcode code;
    } codes[] = {{"Add", SBP_OP_add}, {"Sub", SBP_OP_sub}, {"Mul", SBP_OP_mul}, {"Div", SBP_OP_div}};
    const sbp_onnx_value *in[2];
    sbp_value value[2];
    int32_t rank;
    int64_t dim[SBP_MAX_RANK];
    SBP_TRY(no_attributes(o));
    SBP_TRY(sbp_onnx_required(o, 0, &in[0]));
    SBP_TRY(sbp_onnx_required(o, 1, &in[1]));
    if (joins_streams(o, in))
        return join_streams(o, in);
    bool done = false;
    for (int i = 0; i < 2 && !done && strcmp(o->node->op, "Add") == 0; i++)
        SBP_TRY(sbp_onnx_add_bias(o, in[i], in[1 - i], &done));
    if (done)
        return SBP_OK;
    SBP_TRY(sbp_onnx_broadcast(o, in, 2, value, &rank, dim));
    for (int32_t i = 0; i < SBP_COUNT(codes); i++)
        if (strcmp(codes[i].op, o->node->op) == 0) {
            sbp_value y = sbp_build2(&o->builder, codes[i].code, value[0], value[1]);
            sbp_onnx_define_value(o, 0, y, in[0]->type, rank, dim);
        }
    return o->builder.status;
}

/* Powers that are products and roots. */
sbp_status sbp_onnx_pow(sbp_onnx *o) {
    const sbp_onnx_value *x, *exponent;
    sbp_builder *b = &o->builder;
    sbp_value value, out = SBP_NO_VALUE;
    int64_t dim[SBP_MAX_RANK];
    SBP_TRY(no_attributes(o));
    SBP_TRY(one_operand(o, &x, &value, dim));
    SBP_TRY(sbp_onnx_required(o, 1, &exponent));
    if (exponent->kind != SBP_ONNX_CONSTANT || exponent->rank > 1 ||
        (exponent->rank == 1 && exponent->dim[0] != 1))
        return sbp_onnx_fail(o, "the exponent '%s' is not a constant number", exponent->name);
    double e = exponent->data[0];
    if (e == 2 || e == 3)
        out = sbp_build2(b, SBP_OP_mul, value, value);
    if (e == 3)
        out = sbp_build2(b, SBP_OP_mul, out, value);
    if (e == 0.5)
        out = sbp_build1(b, SBP_OP_sqrt, value);
    if (e == -0.5)
        out = sbp_build1(b, SBP_OP_rsqrt, value);
    if (out == SBP_NO_VALUE)
        return sbp_onnx_fail(o, "the exponent is %g; 2, 3, 0.5 and -0.5 are supported", e);
    sbp_onnx_define_value(o, 0, out, x->type, x->rank, dim);
    return b->status;
}

/* Casts between float types: fp32 and fp64 mean the wide type of the plan, 16 bits its compute type. */
sbp_status sbp_onnx_cast(sbp_onnx *o) {
    static const char *const known[] = {"to", "saturate", "round_mode", NULL};
    const sbp_onnx_value *x;
    int64_t to = 0;
    sbp_dtype from_dtype, to_dtype;
    SBP_TRY(sbp_onnx_attrs_known(o, known));
    SBP_TRY(sbp_onnx_required(o, 0, &x));
    SBP_TRY(sbp_onnx_attr_int(o, "to", &to));
    if (to <= 0 || to >= SBP_ONNX_TYPE_COUNT)
        return sbp_onnx_fail(o, "the cast to type %lld is not supported", (long long)to);
    sbp_onnx_type type = (sbp_onnx_type)to;
    sbp_onnx_value copy = *x;
    copy.type = type;
    if (x->kind == SBP_ONNX_VALUE && type == SBP_ONNX_BOOL)
        return sbp_onnx_cast_truth(o, x);
    bool from_float = sbp_onnx_type_float(x->type, &from_dtype),
         to_float = sbp_onnx_type_float(type, &to_dtype);
    bool to_int = type == SBP_ONNX_INT64 || type == SBP_ONNX_INT32;
    if (!to_float && !(to_int && !from_float))
        return sbp_onnx_fail(o, "a cast of %s to %s is not supported", sbp_onnx_type_name(x->type),
                             sbp_onnx_type_name(type));
    if (x->kind == SBP_ONNX_VALUE && to_float && x->shared) {
        bool wide = to_dtype == SBP_F32 || to_dtype == SBP_F64;
        copy.value = sbp_build_cast(&o->builder, x->value, wide ? o->wide : o->compute);
        sbp_onnx_define(o, 0, &copy);
    } else if (x->kind == SBP_ONNX_VALUE && to_float) {
        bool wide = !from_float || to_dtype == SBP_F32 || to_dtype == SBP_F64;
        copy.value = sbp_build_cast(&o->builder, x->value, wide ? o->wide : o->compute);
        SBP_TRY(sbp_onnx_as_shape(o, copy.value, x->rank, x->dim, &copy.value));
        sbp_onnx_define_value(o, 0, copy.value, type, x->rank, x->dim);
    } else {
        sbp_onnx_define(o, 0, &copy);
    }
    return o->builder.status;
}

/* To the type of input 1. */
sbp_status sbp_onnx_cast_like(sbp_onnx *o) {
    const sbp_onnx_value *x, *like;
    sbp_dtype from, to;
    SBP_TRY(sbp_onnx_required(o, 0, &x));
    SBP_TRY(sbp_onnx_required(o, 1, &like));
    bool number = x->kind == SBP_ONNX_CONSTANT || x->kind == SBP_ONNX_NUMBERS;
    if (!sbp_onnx_type_float(like->type, &to) ||
        (!number && (x->kind != SBP_ONNX_VALUE || !sbp_onnx_type_float(x->type, &from))))
        return sbp_onnx_fail(o, "a cast of %s to %s is not supported", sbp_onnx_type_name(x->type),
                             sbp_onnx_type_name(like->type));
    sbp_onnx_value copy = *x;
    copy.type = like->type;
    if (!number)
        copy.value =
            sbp_build_cast(&o->builder, x->value, to == SBP_F32 || to == SBP_F64 ? o->wide : o->compute);
    sbp_onnx_define(o, 0, &copy);
    return o->builder.status;
}

/* ---- constants and copies -------------------------------------------------------------------------------
 */

static sbp_status define_numbers(sbp_onnx *o, sbp_onnx_type type, int32_t rank, int64_t count,
                                 const double *data) {
    sbp_onnx_value v = {.kind = SBP_ONNX_CONSTANT, .type = type, .rank = rank, .dim = {count}, .data = data};
    sbp_onnx_define(o, 0, &v);
    return o->builder.status;
}

static sbp_status define_tensor(sbp_onnx *o, const sbp_onnx_attribute *a) {
    sbp_onnx_tensor t = a->t;
    if (t.rank > SBP_MAX_RANK)
        return sbp_onnx_fail(o, "the constant has the unsupported rank %d", t.rank);
    SBP_TRY(sbp_onnx_tensor_load(o->arena, o->diag, o->model->path, &t));
    double *data = SBP_NEW_ARRAY(o->arena, double, t.elems);
    for (int64_t i = 0; i < t.elems; i++)
        data[i] = sbp_onnx_tensor_at(&t, i);
    sbp_onnx_value v = {.kind = SBP_ONNX_CONSTANT, .type = t.type, .rank = t.rank, .data = data};
    memcpy(v.dim, t.dim, (size_t)t.rank * sizeof *t.dim);
    sbp_onnx_define(o, 0, &v);
    return o->builder.status;
}

sbp_status sbp_onnx_constant(sbp_onnx *o) {
    static const char *const known[] = {"value",     "value_float", "value_floats",
                                        "value_int", "value_ints",  NULL};
    SBP_TRY(sbp_onnx_attrs_known(o, known));
    if (o->node->attribute_count != 1)
        return sbp_onnx_fail(o, "%d attributes; the value in exactly one is expected",
                             o->node->attribute_count);
    const sbp_onnx_attribute *a = &o->node->attributes[0];
    double *data = SBP_NEW_ARRAY(o->arena, double, a->count + 1);
    switch (a->kind) {
    case SBP_ONNX_ATTR_TENSOR:
        return define_tensor(o, a);
    case SBP_ONNX_ATTR_FLOAT:
        data[0] = a->f;
        return define_numbers(o, SBP_ONNX_FLOAT, 0, 1, data);
    case SBP_ONNX_ATTR_INT:
        data[0] = (double)a->i;
        return define_numbers(o, SBP_ONNX_INT64, 0, 1, data);
    case SBP_ONNX_ATTR_FLOATS:
        return define_numbers(o, SBP_ONNX_FLOAT, 1, a->count, a->floats);
    case SBP_ONNX_ATTR_INTS:
        for (int64_t i = 0; i < a->count; i++)
            data[i] = (double)a->ints[i];
        return define_numbers(o, SBP_ONNX_INT64, 1, a->count, data);
    default:
        return sbp_onnx_fail(o, "attribute '%s' holds no tensor", a->name);
    }
}

sbp_status sbp_onnx_identity(sbp_onnx *o) {
    const sbp_onnx_value *x;
    SBP_TRY(no_attributes(o));
    SBP_TRY(sbp_onnx_required(o, 0, &x));
    sbp_onnx_define(o, 0, x);
    return o->builder.status;
}

/* Dropout of an exported (inference) model does nothing; a graph that asks for training is refused. */
sbp_status sbp_onnx_dropout(sbp_onnx *o) {
    static const char *const known[] = {"seed", NULL};
    const sbp_onnx_value *x, *training = sbp_onnx_input(o, 2);
    SBP_TRY(sbp_onnx_attrs_known(o, known));
    SBP_TRY(sbp_onnx_required(o, 0, &x));
    if (training && !(training->kind == SBP_ONNX_CONSTANT && training->data[0] == 0))
        return sbp_onnx_fail(o, "dropout in training mode is not supported");
    if (sbp_onnx_has_output(o, 1))
        return sbp_onnx_fail(o, "the mask of dropout is used");
    sbp_onnx_define(o, 0, x);
    return o->builder.status;
}

/* ---- shapes ------------------------------------------------------------------------------------------- */

/* Output 0 is x with another ONNX shape of the same elements in the same order. */
static sbp_status define_reshaped(sbp_onnx *o, const sbp_onnx_value *x, int32_t rank, const int64_t *dim) {
    if (rank > SBP_MAX_RANK)
        return sbp_onnx_fail(o, "a result has rank %d; at most %d is supported", rank, SBP_MAX_RANK);
    sbp_onnx_value copy = *x;
    copy.rank = rank;
    memcpy(copy.dim, dim, (size_t)rank * sizeof *dim);
    if (x->kind == SBP_ONNX_PARAMETER) {
        if (x->transposed)
            return sbp_onnx_fail(o, "the transpose of parameter '%s' is reshaped", x->name);
        int32_t param;
        SBP_TRY(sbp_onnx_param(o, x, &param));
        copy.kind = SBP_ONNX_VALUE;
        copy.value = sbp_build_param(&o->builder, param);
    }
    sbp_dtype dtype;
    if (x->shared) { /* as if it had a row per token */
        int64_t own[SBP_MAX_RANK];
        memcpy(own, dim, (size_t)rank * sizeof *own);
        own[0] = SBP_ONNX_ROWS;
        if (rank < 1 || dim[0] != x->dim[0])
            return sbp_onnx_fail(
                o, "what tokens hand to their experts, %s, is reshaped in a way that is not supported",
                sbp_onnx_shape_text(o, x));
        SBP_TRY(sbp_onnx_as_shape(o, x->value, rank, own, &copy.value));
        sbp_onnx_define(o, 0, &copy);
        return o->builder.status;
    }
    if (copy.kind == SBP_ONNX_VALUE &&
        sbp_onnx_type_float(x->type, &dtype)) { /* integers follow when they are cast */
        SBP_TRY(sbp_onnx_as_shape(o, copy.value, rank, dim, &copy.value));
        sbp_onnx_define_value(o, 0, copy.value, x->type, rank, dim);
    } else {
        sbp_onnx_define(o, 0, &copy);
    }
    return o->builder.status;
}

/* Axes of the node (input 1), sorted out for a result or operand of this rank: on[axis]. */
static sbp_status read_axes(sbp_onnx *o, int32_t rank, bool *on, int64_t *count) {
    const int64_t *axes;
    SBP_TRY(sbp_onnx_ints(o, 1, "axes", &axes, count));
    for (int64_t i = 0; i < *count; i++) {
        int64_t axis = axes[i] < 0 ? axes[i] + rank : axes[i];
        if (axis < 0 || axis >= rank || on[axis])
            return sbp_onnx_fail(o, "axis %lld does not exist in a tensor of rank %d", (long long)axes[i],
                                 rank);
        on[axis] = true;
    }
    return SBP_OK;
}

sbp_status sbp_onnx_unsqueeze(sbp_onnx *o) {
    const sbp_onnx_value *x;
    const int64_t *axes;
    int64_t count, dim[SBP_MAX_RANK];
    bool on[SBP_MAX_RANK] = {false};
    SBP_TRY(no_attributes(o));
    SBP_TRY(sbp_onnx_required(o, 0, &x));
    SBP_TRY(sbp_onnx_ints(o, 1, "axes", &axes, &count));
    if (count + x->rank > SBP_MAX_RANK)
        return sbp_onnx_fail(o, "a result has rank %lld; at most %d is supported", (long long)count + x->rank,
                             SBP_MAX_RANK);
    int32_t rank = x->rank + (int32_t)count, next = 0;
    SBP_TRY(read_axes(o, rank, on, &count));
    for (int32_t d = 0; d < rank; d++)
        dim[d] = on[d] ? 1 : x->dim[next++];
    return define_reshaped(o, x, rank, dim);
}

sbp_status sbp_onnx_squeeze(sbp_onnx *o) {
    const sbp_onnx_value *x;
    int64_t count = 0, dim[SBP_MAX_RANK];
    bool on[SBP_MAX_RANK] = {false};
    SBP_TRY(no_attributes(o));
    SBP_TRY(sbp_onnx_required(o, 0, &x));
    if (sbp_onnx_input(o, 1))
        SBP_TRY(read_axes(o, x->rank, on, &count));
    int32_t rank = 0;
    for (int32_t d = 0; d < x->rank; d++) {
        bool gone = count > 0 ? on[d] : x->dim[d] == 1;
        if (gone && x->dim[d] != 1)
            return sbp_onnx_fail(o, "axis %d of %s is not 1", d, sbp_onnx_shape_text(o, x));
        if (!gone)
            dim[rank++] = x->dim[d];
    }
    return define_reshaped(o, x, rank, dim);
}

/* Elements before the tokens, after them, and in all; of a shape with at most one -1 taken as the tokens. */
typedef struct sizes {
    int64_t before, after;
    int32_t rows;
} sizes;

static sizes sizes_of(int32_t rank, const int64_t *dim) {
    sizes s = {.before = 1, .after = 1, .rows = -1};
    for (int32_t d = 0; d < rank; d++) {
        if (dim[d] == SBP_ONNX_ROWS)
            s.rows = d;
        else if (d == 0 && sbp_onnx_slots(dim[d]) > 0) {
            s.rows = d;
            s.after = sbp_onnx_slots(dim[d]);
        } else if (s.rows < 0)
            s.before *= dim[d];
        else
            s.after *= dim[d];
    }
    return s;
}

/* The shape that input 1 asks for: 0 copies a dimension, -1 is what is left over. */
static sbp_status asked_shape(sbp_onnx *o, const sbp_onnx_value *x, int64_t *dim, int32_t *rank) {
    const int64_t *shape;
    int64_t count, allow_zero = 0, known = 1;
    int32_t open = -1;
    bool has_rows = false;
    SBP_TRY(sbp_onnx_attr_int(o, "allowzero", &allow_zero));
    SBP_TRY(sbp_onnx_ints(o, 1, "the shape", &shape, &count));
    if (count > SBP_MAX_RANK)
        return sbp_onnx_fail(o, "a result has rank %lld; at most %d is supported", (long long)count,
                             SBP_MAX_RANK);
    *rank = (int32_t)count;
    for (int32_t d = 0; d < *rank; d++) {
        bool copy = shape[d] == 0 && !allow_zero, tokens = sbp_onnx_dim_of(shape[d]) != shape[d];
        if ((copy && d >= x->rank) || (shape[d] < -1 && !tokens) || (shape[d] == -1 && open >= 0))
            return sbp_onnx_fail(o, "the shape has %lld at place %d", (long long)shape[d], d);
        dim[d] = copy ? x->dim[d] : sbp_onnx_dim_of(shape[d]);
        int64_t slots = sbp_onnx_slots(dim[d]), n = slots > 0 ? slots : dim[d];
        if (shape[d] == -1)
            open = d;
        if (shape[d] != -1)
            has_rows |= dim[d] == SBP_ONNX_ROWS || slots > 0;
        if (shape[d] != -1 && dim[d] != SBP_ONNX_ROWS && !sbp_mul_i64(known, n, &known))
            return sbp_onnx_fail(o, "the shape overflows");
    }
    sizes s = sizes_of(x->rank, x->dim);
    int64_t total = s.before * s.after;
    if (open >= 0 && (has_rows || s.rows < 0)) /* else the open place is the tokens, which is -1 as well */
        dim[open] = known > 0 ? total / known : 0;
    else if (open == 0 && known > 0 && total % known == 0 && total / known > 1 &&
             total / known <= SBP_ONNX_MOST_SLOTS) /* slots of tokens, one token after the other */
        dim[0] = SBP_ONNX_SLOTS(total / known);
    return SBP_OK;
}

/* Elements of the axes up to `last`, tokens left out. */
static int64_t elements_up_to(int32_t last, const int64_t *dim) {
    int64_t n = 1;
    for (int32_t d = 0; d <= last; d++)
        n *= dim[d] == SBP_ONNX_ROWS ? 1 : dim[d];
    return n;
}

/* Reshapes keys or values that are repeated: their heads and the copies of each become one axis, or stay
 * it. */
static sbp_status reshape_repeated(sbp_onnx *o, const sbp_onnx_value *x, int32_t rank, const int64_t *dim) {
    sbp_onnx_value copy = *x;
    int64_t up_to = elements_up_to(x->repeat_axis, x->dim);
    if (x->kind == SBP_ONNX_VALUE && rank == x->rank - 1 && x->dim[0] == SBP_ONNX_ROWS &&
        x->repeat_axis == 1 && x->dim[1] == x->repeat && dim[0] == SBP_ONNX_SLOTS(x->repeat) &&
        memcmp(dim + 1, x->dim + 2, (size_t)(rank - 1) * sizeof *dim) == 0) { /* each token's for its slots */
        int64_t own[SBP_ONNX_MAX_RANK];
        memcpy(own, dim, (size_t)rank * sizeof *own);
        memcpy(copy.dim, dim, (size_t)rank * sizeof *dim);
        own[0] = SBP_ONNX_ROWS;
        copy.rank = rank;
        copy.repeat = 0;
        copy.shared = true;
        SBP_TRY(sbp_onnx_as_shape(o, x->value, rank, own, &copy.value));
        sbp_onnx_define(o, 0, &copy);
        return o->builder.status;
    }
    for (int32_t d = 0; d < rank; d++) {
        sizes from = sizes_of(x->rank, x->dim), to = sizes_of(rank, dim);
        if (dim[d] < 1 || dim[d] % x->repeat != 0 || elements_up_to(d, dim) != up_to ||
            from.before != to.before || from.after != to.after)
            continue;
        copy.rank = rank;
        copy.repeat_axis = d;
        memcpy(copy.dim, dim, (size_t)rank * sizeof *dim);
        sbp_onnx_define(o, 0, &copy);
        return o->builder.status;
    }
    return sbp_onnx_fail(o,
                         "heads repeated for their groups, %s, are reshaped in a way that is not supported",
                         sbp_onnx_shape_text(o, x));
}

sbp_status sbp_onnx_reshape(sbp_onnx *o) {
    static const char *const known[] = {"allowzero", NULL};
    const sbp_onnx_value *x;
    int64_t dim[SBP_MAX_RANK] = {0};
    int32_t rank = 0;
    SBP_TRY(sbp_onnx_attrs_known(o, known));
    SBP_TRY(sbp_onnx_required(o, 0, &x));
    SBP_TRY(asked_shape(o, x, dim, &rank));
    if (x->repeat > 1)
        return reshape_repeated(o, x, rank, dim);
    sizes from = sizes_of(x->rank, x->dim), to = sizes_of(rank, dim);
    bool fits = from.before == to.before && from.after == to.after && (from.rows < 0) == (to.rows < 0);
    if (!fits) {
        sbp_onnx_value asked = {.rank = rank};
        memcpy(asked.dim, dim, sizeof dim);
        return sbp_onnx_fail(o, "%s to %s does not keep one row per token", sbp_onnx_shape_text(o, x),
                             sbp_onnx_shape_text(o, &asked));
    }
    return define_reshaped(o, x, rank, dim);
}

/* Heads repeated for the queries of their group: one axis of size 1, after theirs, becomes larger. Tile says
 * by how much. */
sbp_status sbp_onnx_expand(sbp_onnx *o) {
    const sbp_onnx_value *x;
    const int64_t *shape;
    int64_t count;
    SBP_TRY(no_attributes(o));
    SBP_TRY(sbp_onnx_required(o, 0, &x));
    SBP_TRY(sbp_onnx_ints(o, 1, "the shape", &shape, &count));
    sbp_onnx_value copy = *x;
    int32_t larger = 0;
    for (int32_t d = 0; count == x->rank && d < x->rank; d++) {
        int64_t size = sbp_onnx_dim_of(shape[d]);
        if (strcmp(o->node->op, "Tile") == 0 && size > 1 && x->dim[d] > 1)
            larger = 2;
        if (size == 1 || size == x->dim[d] || (size == -1 && shape[d] == -1))
            continue;
        copy.dim[d] = size;
        copy.repeat = size;
        copy.repeat_axis = d;
        larger += x->dim[d] == 1 && size > 1 ? 1 : 2;
    }
    if (count != x->rank || larger > 1 ||
        (larger == 1 && (x->kind != SBP_ONNX_VALUE || x->repeat > 1 || sbp_onnx_slots(x->dim[0]) > 0)))
        return sbp_onnx_fail(o, "'%s' %s is repeated in a way that is not supported", x->name,
                             sbp_onnx_shape_text(o, x));
    sbp_onnx_define(o, 0, &copy);
    return o->builder.status;
}

/* ---- axes exchanged ---------------------------------------------------------------------------------------
 */

/* Exchanging axes moves nothing in the graph IR as long as those other than tokens and batch keep their
 * order. */
sbp_status sbp_onnx_transpose(sbp_onnx *o) {
    static const char *const known[] = {"perm", NULL};
    const sbp_onnx_value *x;
    const sbp_onnx_attribute *perm = sbp_onnx_attr(o, "perm");
    int64_t dim[SBP_MAX_RANK];
    SBP_TRY(sbp_onnx_attrs_known(o, known));
    SBP_TRY(sbp_onnx_required(o, 0, &x));
    if (perm && (perm->kind != SBP_ONNX_ATTR_INTS || perm->count != x->rank))
        return sbp_onnx_fail(o, "perm has not one entry per axis of %s", sbp_onnx_shape_text(o, x));
    bool used[SBP_MAX_RANK] = {false}, identity = true, moves = false;
    int32_t repeat_axis = 0;
    int64_t last = -1; /* the last axis seen that has elements side by side */
    for (int32_t d = 0; d < x->rank; d++) {
        int64_t axis = perm ? perm->ints[d] : x->rank - 1 - d;
        if (axis < 0 || axis >= x->rank || used[axis])
            return sbp_onnx_fail(o, "perm is not a permutation");
        used[axis] = true;
        identity &= axis == d;
        dim[d] = x->dim[axis];
        if (axis == x->repeat_axis)
            repeat_axis = d;
        if (dim[d] == SBP_ONNX_ROWS || dim[d] == 1)
            continue;
        moves |= axis < last;
        last = axis;
    }
    if (x->kind == SBP_ONNX_PARAMETER && x->rank == 2 && !identity) {
        sbp_onnx_value copy = *x;
        copy.transposed = !copy.transposed;
        memcpy(copy.dim, dim, sizeof dim);
        sbp_onnx_define(o, 0, &copy);
        return o->builder.status;
    }
    if (moves)
        return sbp_onnx_fail(o, "axes of %s other than the tokens' are exchanged", sbp_onnx_shape_text(o, x));
    if (x->repeat > 1) {
        sbp_onnx_value copy = *x;
        copy.repeat_axis = repeat_axis;
        memcpy(copy.dim, dim, sizeof dim);
        sbp_onnx_define(o, 0, &copy);
        return o->builder.status;
    }
    return define_reshaped(o, x, x->rank, dim);
}
