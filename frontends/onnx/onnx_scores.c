/* onnx_scores.c: attention spelled out. A product of queries and transposed keys becomes SCORES, which
 * nothing computes; scale, softcap, mask, softmax and a guard against NaN are noted on it, and the product
 * with the values is the attention op. */
#include "frontends/onnx/onnx.h"
#include "ir/program/contract.h"

#include <math.h>
#include <string.h>

/* ---- operands ------------------------------------------------------------------------------------------ */

/* x without a product by one constant number, which *factor takes. */
static sbp_value without_factor(sbp_onnx *o, sbp_value x, double *factor) {
    const sbp_func *func = o->builder.func;
    int32_t number = func->values[x].op;
    const sbp_op *op = number >= 0 ? &func->ops[number] : NULL;
    for (int k = 0; op && op->code == SBP_OP_mul && k < 2; k++) {
        const sbp_value *c = &op->operands[k];
        int32_t made = func->values[*c].op;
        const sbp_type *type = &func->values[op->operands[1 - k]].type;
        if (made >= 0 && func->ops[made].code == SBP_OP_constant && type->rank == func->values[x].type.rank) {
            *factor *= sbp_op_double(&func->ops[made], "value");
            return op->operands[1 - k];
        }
    }
    return x;
}

/* x [.., heads, T, d] (keys: [.., heads, d, T]) as [T, own heads, d] of the compute type; a factor on it
 * joins *scale. */
static sbp_status heads_of(sbp_onnx *o, const sbp_onnx_value *x, bool transposed, double *scale,
                           sbp_value *out, int64_t *heads, int64_t *own_heads, int64_t *d) {
    int64_t own[SBP_ONNX_MAX_RANK];
    int32_t rows = sbp_onnx_rows_axis(x), n = x->rank;
    bool fits = x->kind == SBP_ONNX_VALUE && n >= 3 && n <= 4 && rows == (transposed ? n - 1 : n - 2) &&
                (n == 3 || x->dim[0] == 1) && (x->repeat < 2 || x->repeat_axis == n - 3);
    if (!fits)
        return sbp_onnx_fail(o, "'%s' is %s; %s is expected", x->name, sbp_onnx_shape_text(o, x),
                             transposed ? "[1,heads,d,T]" : "[1,heads,T,d]");
    sbp_onnx_own_dims(x, own);
    *heads = x->dim[n - 3];
    *own_heads = own[n - 3];
    *d = own[transposed ? n - 2 : n - 1];
    sbp_value value = without_factor(o, x->value, scale);
    value = sbp_onnx_with_dims(o, value, (int64_t[]){*own_heads, *d}, 2);
    if (scale)
        value = without_factor(o, value, scale);
    *out = sbp_build_rounded(&o->builder, value, o->compute);
    return o->builder.status;
}

static const sbp_onnx_value *operand(sbp_onnx *o, int32_t i) {
    int32_t value = i < o->node->input_count ? sbp_map_get(&o->names, o->node->inputs[i]) : -1;
    return value >= 0 ? &o->values[value] : NULL;
}

static bool is_kind(const sbp_onnx_value *v, sbp_onnx_kind kind) {
    return v && v->kind == kind;
}

/* A value that is one number everywhere, after broadcasting. */
static bool one_number(sbp_onnx *o, const sbp_onnx_value *v, double *out) {
    sbp_number_tensor t;
    if (!is_kind(v, SBP_ONNX_CONSTANT) && !is_kind(v, SBP_ONNX_NUMBERS))
        return false;
    sbp_onnx_tensor_of(o, v, &t);
    return sbp_number_is_constant(t.element, out);
}

/* Output 0: s instead of the scores that it comes from. */
static sbp_status define_scores(sbp_onnx *o, const sbp_onnx_value *from, const sbp_onnx_scores *s) {
    sbp_onnx_scores *copy = SBP_NEW(o->arena, sbp_onnx_scores);
    *copy = *s;
    sbp_onnx_value v = *from;
    v.scores = copy;
    sbp_onnx_define(o, 0, &v);
    return o->builder.status;
}

/* ---- products ------------------------------------------------------------------------------------------ */

static sbp_status scores_of(sbp_onnx *o, const sbp_onnx_value *q, const sbp_onnx_value *k) {
    sbp_onnx_scores s = {.scale = 1, .sink = SBP_NO_VALUE};
    int64_t k_heads, own, k_d;
    SBP_TRY(heads_of(o, q, false, &s.scale, &s.q, &s.heads, &own, &s.d));
    SBP_TRY(heads_of(o, k, true, &s.scale, &s.k, &k_heads, &s.kv_heads, &k_d));
    if (own != s.heads || k_heads != s.heads || k_d != s.d || q->rank != k->rank)
        return sbp_onnx_fail(o, "queries %s and keys %s do not fit", sbp_onnx_shape_text(o, q),
                             sbp_onnx_shape_text(o, k));
    sbp_onnx_value v = {.kind = SBP_ONNX_SCORES, .type = q->type, .rank = q->rank};
    memcpy(v.dim, q->dim, sizeof v.dim);
    v.dim[v.rank - 1] = SBP_ONNX_ROWS;
    return define_scores(o, &v, &s);
}

/* sink: of each head, SBP_NO_VALUE where there are none. */
static sbp_value build_attention(sbp_onnx *o, const sbp_value qkv[3], sbp_value sink, double scale,
                                 double softcap, int64_t window) {
    sbp_value operands[7] = {qkv[0], qkv[1], qkv[2]}, out[2];
    bool has_sink = sink != SBP_NO_VALUE;
    operands[3] = sbp_build_row(&o->builder, sbp_data_columns[SBP_DATA_FIRST].name, SBP_I32, SBP_T);
    operands[4] = sbp_build_row(&o->builder, sbp_data_columns[SBP_DATA_SHARED_END].name, SBP_I32, SBP_T);
    operands[5] = sbp_build_row(&o->builder, sbp_data_columns[SBP_DATA_OWN].name, SBP_I32, SBP_T);
    operands[6] = sink;
    sbp_build(&o->builder, has_sink ? SBP_OP_attention_sink : SBP_OP_attention, "attn_out", operands,
              has_sink ? 7 : 6,
              (sbp_attr[]){sbp_attr_double("scale", scale), sbp_attr_int("window", window),
                           sbp_attr_double("softcap", softcap)},
              3, out);
    sbp_build_name(&o->builder, out[1], "lse");
    return out[0];
}

sbp_value sbp_onnx_build_attention(sbp_onnx *o, const sbp_value qkv[3], double scale, double softcap,
                                   int64_t window) {
    return build_attention(o, qkv, SBP_NO_VALUE, scale, softcap, window);
}

static sbp_status values_of(sbp_onnx *o, const sbp_onnx_value *p, const sbp_onnx_value *x) {
    const sbp_onnx_scores *s = p->scores;
    sbp_value qkv[3] = {s->q, s->k};
    int64_t heads, kv_heads, d, dim[SBP_ONNX_MAX_RANK];
    double factor = 1;
    if (!s->softmax)
        return sbp_onnx_fail(o, "scores of attention are multiplied without a softmax");
    SBP_TRY(heads_of(o, x, false, &factor, &qkv[2], &heads, &kv_heads, &d));
    if (heads != s->heads || kv_heads != s->kv_heads || x->rank != p->rank)
        return sbp_onnx_fail(o, "values %s do not fit %lld heads", sbp_onnx_shape_text(o, x),
                             (long long)s->heads);
    sbp_value y = build_attention(o, qkv, s->sink, s->scale, s->softcap, s->window);
    if (factor != 1)
        y = sbp_build2(&o->builder, SBP_OP_mul, y,
                       sbp_build_const(&o->builder, sbp_build_type(&o->builder, y)->dtype, factor));
    memcpy(dim, p->dim, sizeof dim);
    dim[p->rank - 1] = d;
    sbp_onnx_define_value(o, 0, y, x->type, p->rank, dim);
    return o->builder.status;
}

static sbp_status product(sbp_onnx *o, bool *done) {
    const sbp_onnx_value *a = operand(o, 0), *b = operand(o, 1);
    bool activations = is_kind(a, SBP_ONNX_VALUE) && is_kind(b, SBP_ONNX_VALUE) && sbp_onnx_rows_axis(b) >= 0;
    *done = true;
    if (activations)
        return scores_of(o, a, b);
    if (is_kind(a, SBP_ONNX_SCORES) && is_kind(b, SBP_ONNX_VALUE))
        return values_of(o, a, b);
    *done = false;
    return SBP_OK;
}

/* "bhqd,bhkd->bhqk": axes of the operands and the result, batch and heads first. */
static bool read_equation(const char *text, char parts[3][8]) {
    int32_t part = 0, n = 0;
    memset(parts, 0, 3 * sizeof parts[0]);
    for (; *text; text++) {
        if (*text == ' ')
            continue;
        if (*text == ',' || (*text == '-' && text[1] == '>')) {
            text += *text == '-';
            n = 0;
            if (++part > 2)
                return false;
            continue;
        }
        if (n == 7 || !strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ", *text))
            return false;
        parts[part][n++] = *text;
    }
    return part == 2;
}

/* x with the axes that `from` names in the order of `to`, which may only move the tokens' axis. */
static sbp_status reordered(sbp_onnx *o, const sbp_onnx_value *x, const char *from, const char *to,
                            sbp_onnx_value *out) {
    int32_t last = -1;
    *out = *x;
    for (int32_t d = 0; d < x->rank; d++) {
        const char *at = strchr(from, to[d]);
        int32_t axis = at ? (int32_t)(at - from) : -1;
        if (axis < 0)
            return sbp_onnx_fail(o, "'%s' %s has no axis '%c'", x->name, sbp_onnx_shape_text(o, x), to[d]);
        out->dim[d] = x->dim[axis];
        if (x->repeat > 1 && axis == x->repeat_axis)
            out->repeat_axis = d;
        if (x->dim[axis] == SBP_ONNX_ROWS || x->dim[axis] == 1)
            continue;
        if (axis < last)
            return sbp_onnx_fail(o, "axes of '%s' %s other than the tokens' are exchanged", x->name,
                                 sbp_onnx_shape_text(o, x));
        last = axis;
    }
    return SBP_OK;
}

/* Einsum of queries and keys, or of their softmax and values: as the product that it is. */
static sbp_status einsum(sbp_onnx *o, bool *done) {
    const sbp_onnx_value *a = operand(o, 0), *b = operand(o, 1);
    const char *equation = "";
    char e[3][8], order[8] = "";
    sbp_onnx_value x, y;
    *done = false;
    SBP_TRY(sbp_onnx_attr_string(o, "equation", &equation));
    bool scores = is_kind(a, SBP_ONNX_VALUE), fits = o->node->input_count == 2 && is_kind(b, SBP_ONNX_VALUE);
    if (!fits || (!scores && !is_kind(a, SBP_ONNX_SCORES)) || !read_equation(equation, e))
        return SBP_OK;
    int32_t n = (int32_t)strlen(e[2]);
    if (n < 3 || n > 4 || a->rank != n || b->rank != n || (int32_t)strlen(e[0]) != n ||
        (int32_t)strlen(e[1]) != n)
        return SBP_OK;
    *done = true;
    char q = e[2][n - 2], k = e[2][n - 1];
    if (!scores) { /* [.., q, k], [.., k, d] -> [.., q, d] */
        if (strncmp(e[0], e[2], (size_t)n - 1) != 0)
            return sbp_onnx_fail(o, "'%s': the softmax has its axes in another order than the result",
                                 equation);
        memcpy(order, e[2], (size_t)n - 2);
        order[n - 2] = e[0][n - 1];
        order[n - 1] = k;
        SBP_TRY(reordered(o, b, e[1], order, &y));
        return values_of(o, a, &y);
    }
    char inner = 0; /* what both operands have and the result has not */
    for (int32_t d = 0; d < n; d++)
        inner = !strchr(e[2], e[0][d]) && strchr(e[1], e[0][d]) ? e[0][d] : inner;
    if (!inner || !strchr(e[0], q) || !strchr(e[1], k))
        return sbp_onnx_fail(o, "'%s' does not multiply queries by keys", equation);
    memcpy(order, e[2], (size_t)n - 2);
    order[n - 2] = q;
    order[n - 1] = inner;
    SBP_TRY(reordered(o, a, e[0], order, &x));
    order[n - 2] = inner;
    order[n - 1] = k;
    SBP_TRY(reordered(o, b, e[1], order, &y));
    return scores_of(o, &x, &y);
}

/* ---- steps on the way ---------------------------------------------------------------------------------- */

/* Scale, or what a tanh is multiplied by. */
static sbp_status multiply(sbp_onnx *o, const sbp_onnx_value *x, double factor) {
    sbp_onnx_scores s = *x->scores;
    if (s.masked || s.softmax)
        return sbp_onnx_fail(o, "scores are scaled after the mask or the softmax");
    if (s.tanh) { /* c tanh(scale / c ..) */
        s.softcap = factor;
        s.scale *= factor;
        s.tanh = false;
    } else if (s.softcap > 0) {
        return sbp_onnx_fail(o, "scores are scaled after their softcap");
    } else {
        s.scale *= factor;
    }
    return define_scores(o, x, &s);
}

static sbp_status take_tanh(sbp_onnx *o, const sbp_onnx_value *x) {
    sbp_onnx_scores s = *x->scores;
    if (s.tanh || s.softcap > 0 || s.masked || s.softmax)
        return sbp_onnx_fail(o, "tanh of scores after another, a mask or a softmax");
    s.tanh = true;
    return define_scores(o, x, &s);
}

static sbp_status mask_scores(sbp_onnx *o, const sbp_onnx_value *x, const sbp_onnx_value *mask) {
    sbp_onnx_scores s = *x->scores;
    int64_t window;
    if (s.softmax)
        return sbp_onnx_fail(o, "it masks the result of Softmax; only a mask before Softmax is supported");
    SBP_TRY(sbp_onnx_mask_window(o, mask, &window));
    if (s.masked && s.window > 0 && (window == 0 || s.window < window))
        window = s.window;
    s.masked = true;
    s.window = window;
    return define_scores(o, x, &s);
}

static sbp_status softmax(sbp_onnx *o, const sbp_onnx_value *x) {
    sbp_onnx_scores s = *x->scores;
    int64_t axis = -1;
    SBP_TRY(sbp_onnx_attr_int(o, "axis", &axis));
    if ((axis != -1 && axis != x->rank - 1) || s.tanh || s.softmax)
        return sbp_onnx_fail(o, "a softmax over axis %lld of scores%s", (long long)axis,
                             s.tanh      ? ", of a tanh that nothing multiplies"
                             : s.softmax ? ", a second one"
                                         : "");
    if (!s.masked)
        return sbp_onnx_fail(o, "no mask hides from a token what comes after it");
    s.softmax = true;
    return define_scores(o, x, &s);
}

/* Scores beside one of each head, input 1, that is no token's: their softmax. */
static sbp_status softmax_sink(sbp_onnx *o, const sbp_onnx_value *x) {
    const sbp_onnx_value *sink = operand(o, 1);
    sbp_onnx_scores s = *x->scores;
    bool fits = sink && sink->rank == x->rank && sbp_onnx_rows_axis(sink) < 0;
    for (int32_t d = 0; fits && d < x->rank; d++)
        fits = sink->dim[d] == (d == x->rank - 3 ? s.heads : 1);
    if (!fits || !s.masked || s.tanh || s.softmax)
        return sbp_onnx_fail(o,
                             "sinks '%s' %s beside scores %s%s; one of each head is expected, after the mask",
                             o->node->inputs[1], sink ? sbp_onnx_shape_text(o, sink) : "[]",
                             sbp_onnx_shape_text(o, x), s.masked ? "" : " without a mask");
    SBP_TRY(sbp_onnx_materialize(o, sink, o->residual, &s.sink));
    s.sink = sbp_onnx_with_dims(o, s.sink, &s.heads, 1);
    s.softmax = true;
    return define_scores(o, x, &s);
}

/* Whether x broadcasts to the shape of y. */
static bool fits_into(const sbp_onnx_value *x, const sbp_onnx_value *y) {
    bool fits = x->rank <= y->rank;
    for (int32_t d = 0; fits && d < x->rank; d++)
        fits = x->dim[d] == 1 || x->dim[d] == y->dim[d + y->rank - x->rank];
    return fits;
}

/* Where(condition, a, b): a mask, or the guard against rows that see nothing. */
static sbp_status choose(sbp_onnx *o, bool *done) {
    const sbp_onnx_value *c = operand(o, 0), *a = operand(o, 1), *b = operand(o, 2);
    double number;
    *done = true;
    if (a && b && one_number(o, c, &number)) { /* a guard against tokens that see nothing */
        const sbp_onnx_value *taken = number != 0 ? a : b, *left = number != 0 ? b : a;
        if (is_kind(taken, SBP_ONNX_VALUE) && fits_into(left, taken) && fits_into(c, taken)) {
            sbp_onnx_define(o, 0, taken);
            return o->builder.status;
        }
    }
    if (is_kind(c, SBP_ONNX_NAN) && is_kind(b, SBP_ONNX_SCORES)) { /* never NaN: a token sees itself */
        sbp_onnx_define(o, 0, b);
        return o->builder.status;
    }
    if (is_kind(a, SBP_ONNX_SCORES) && one_number(o, b, &number) && number <= -1e4)
        return mask_scores(o, a, c);
    if (is_kind(b, SBP_ONNX_SCORES) && one_number(o, a, &number) && number <= -1e4 && c &&
        (is_kind(c, SBP_ONNX_CONSTANT) || is_kind(c, SBP_ONNX_NUMBERS)) && c->type == SBP_ONNX_BOOL) {
        sbp_onnx_value shown = *c; /* where the condition does not hold */
        sbp_onnx_tensor_of(o, c, &shown.numbers);
        shown.kind = SBP_ONNX_NUMBERS;
        shown.numbers.element = sbp_number_not(&o->numbers, shown.numbers.element);
        return mask_scores(o, b, &shown);
    }
    *done = false;
    return SBP_OK;
}

/* Keys or values, repeated for their groups, times a number. */
static sbp_status scale_repeated(sbp_onnx *o, const sbp_onnx_value *x, double factor) {
    sbp_onnx_value copy = *x;
    sbp_dtype dtype = sbp_build_type(&o->builder, x->value)->dtype;
    if (factor != 1)
        copy.value =
            sbp_build2(&o->builder, SBP_OP_mul, x->value, sbp_build_const(&o->builder, dtype, factor));
    sbp_onnx_define(o, 0, &copy);
    return o->builder.status;
}

static bool is_repeated(const sbp_onnx_value *v) {
    return is_kind(v, SBP_ONNX_VALUE) && v->repeat > 1;
}

/* A product with numbers that are 1 for every token, as with a mask of tokens that are there. */
static const sbp_onnx_value *times_one(sbp_onnx *o) {
    for (int32_t i = 0; i < 2; i++) {
        const sbp_onnx_value *x = operand(o, i), *ones = operand(o, 1 - i);
        double number;
        if (is_kind(x, SBP_ONNX_VALUE) && is_kind(ones, SBP_ONNX_NUMBERS) && sbp_onnx_rows_axis(ones) >= 0 &&
            one_number(o, ones, &number) && number == 1 && fits_into(ones, x))
            return x;
    }
    return NULL;
}

static sbp_status binary(sbp_onnx *o, bool *done) {
    const sbp_onnx_value *x = operand(o, 0), *y = operand(o, 1);
    const char *op = o->node->op;
    double number;
    *done = true;
    if (strcmp(op, "Mul") == 0 && times_one(o)) {
        sbp_onnx_define(o, 0, times_one(o));
        return o->builder.status;
    }
    if ((is_kind(y, SBP_ONNX_SCORES) || is_repeated(y)) && strcmp(op, "Div") != 0 && strcmp(op, "Sub") != 0) {
        const sbp_onnx_value *swap = x;
        x = y;
        y = swap;
    }
    if (is_repeated(x) && one_number(o, y, &number)) {
        if (strcmp(op, "Mul") == 0)
            return scale_repeated(o, x, number);
        if (strcmp(op, "Div") == 0 && number != 0)
            return scale_repeated(o, x, 1 / number);
    }
    if (is_kind(x, SBP_ONNX_SCORES) && y) {
        if (strcmp(op, "Mul") == 0 && one_number(o, y, &number))
            return multiply(o, x, number);
        if (strcmp(op, "Div") == 0 && one_number(o, y, &number) && number != 0)
            return multiply(o, x, 1 / number);
        if (strcmp(op, "Add") == 0)
            return mask_scores(o, x, y);
    }
    *done = false;
    return SBP_OK;
}

/* Whether the node casts to a float: Cast says its type, CastLike shows it. */
static bool casts_to_float(sbp_onnx *o) {
    const sbp_onnx_attribute *to = sbp_onnx_attr(o, "to");
    const sbp_onnx_value *like = operand(o, 1);
    sbp_dtype dtype;
    if (to)
        return to->kind == SBP_ONNX_ATTR_INT && to->i > 0 && to->i < SBP_ONNX_TYPE_COUNT &&
               sbp_onnx_type_float((sbp_onnx_type)to->i, &dtype);
    return like && sbp_onnx_type_float(like->type, &dtype);
}

sbp_status sbp_onnx_scores_node(sbp_onnx *o, bool *done) {
    const char *op = o->node->op;
    const sbp_onnx_value *x = operand(o, 0);
    *done = false;
    if (strcmp(op, "MatMul") == 0)
        return product(o, done);
    if (strcmp(op, "Einsum") == 0)
        return einsum(o, done);
    if (strcmp(op, "Where") == 0)
        return choose(o, done);
    if (strcmp(op, "Mul") == 0 || strcmp(op, "Div") == 0 || strcmp(op, "Add") == 0)
        return binary(o, done);
    bool cast = strcmp(op, "Cast") == 0 || strcmp(op, "CastLike") == 0;
    if (is_repeated(x) && cast && casts_to_float(o)) {
        *done = true;
        return scale_repeated(o, x, 1);
    }
    if (!is_kind(x, SBP_ONNX_SCORES))
        return SBP_OK;
    *done = true;
    if (strcmp(op, "Tanh") == 0)
        return take_tanh(o, x);
    if (strcmp(op, "Softmax") == 0)
        return softmax(o, x);
    if (strcmp(op, "SoftmaxSink") == 0 && o->node->raised)
        return softmax_sink(o, x);
    if (strcmp(op, "IsNaN") == 0 && x->scores->softmax) {
        sbp_onnx_value v = *x;
        v.kind = SBP_ONNX_NAN;
        v.type = SBP_ONNX_BOOL;
        sbp_onnx_define(o, 0, &v);
        return o->builder.status;
    }
    *done = cast || strcmp(op, "Identity") == 0;
    if (*done)
        sbp_onnx_define(o, 0, x);
    return o->builder.status;
}
