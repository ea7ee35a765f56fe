/* onnx_fold.c: nodes that only shapes, positions and constants reach: their results are tensors of
 * expressions (onnx_numbers.h), or constants. None of them gets into the graph, unless an activation is
 * computed with it (sbp_onnx_numbers_value). */
#include "frontends/onnx/onnx.h"

#include <math.h>
#include <string.h>

enum { MOST_CONSTANTS = 1 << 16 };

/* Operands of the node at hand as tensors. */
typedef struct fold {
    sbp_onnx *o;
    sbp_numbers *n;
    const sbp_onnx_value *v[8]; /* NULL: absent */
    sbp_number_tensor in[8];
    int32_t count;
} fold;

/* ---- tensors ------------------------------------------------------------------------------------------ */

static const sbp_number *number(fold *f, double value) {
    return sbp_number_constant(f->n, value);
}

static const sbp_number *axis(fold *f, int32_t d) {
    return sbp_number_axis(f->n, d);
}

/* Row-major place of the element at these indices; sizes must be constant but the first. */
static const sbp_number *place(fold *f, const sbp_number_tensor *t, const sbp_number *const *index) {
    const sbp_number *at = number(f, 0);
    for (int32_t d = 0; d < t->rank; d++) {
        at = sbp_number_multiply(f->n, at, t->size[d]);
        at = sbp_number_add(f->n, at, 1, index[d]);
    }
    return at;
}

void sbp_onnx_tensor_of(sbp_onnx *o, const sbp_onnx_value *v, sbp_number_tensor *out) {
    fold f = {.o = o, .n = &o->numbers};
    const sbp_number *index[SBP_NUMBERS_RANK];
    int64_t elems = 1;
    if (v->kind == SBP_ONNX_NUMBERS) {
        *out = v->numbers;
        return;
    }
    *out = (sbp_number_tensor){.rank = v->rank};
    for (int32_t d = 0; d < v->rank; d++) {
        out->size[d] = number(&f, (double)v->dim[d]);
        index[d] = v->dim[d] == 1 ? number(&f, 0) : axis(&f, d);
        elems *= v->dim[d];
    }
    out->element = sbp_number_table(f.n, v->data, elems, place(&f, out, index));
}

/* Output `index` of the node, in its simplest form. */
static sbp_status define(fold *f, int32_t index, sbp_onnx_type type, sbp_number_tensor *t) {
    sbp_onnx *o = f->o;
    sbp_onnx_value v = {.kind = SBP_ONNX_NUMBERS, .type = type, .rank = t->rank};
    int64_t elems = 1;
    bool constant = true;
    if (t->rank > SBP_MAX_RANK + 1)
        return sbp_onnx_fail(o, "a result of rank %d; at most %d is supported", t->rank, SBP_MAX_RANK + 1);
    for (int32_t d = 0; d < t->rank; d++) {
        double size;
        t->size[d] = sbp_number_refine(f->n, t, t->size[d]);
        bool known = sbp_number_is_constant(t->size[d], &size);
        if (known && (size < 0 || size != floor(size) || size > 1e15))
            return sbp_onnx_fail(o, "axis %d of a result has size %g", d, size);
        v.dim[d] = known                                   ? (int64_t)size
                   : t->size[d]->kind == SBP_NUMBER_TOKENS ? SBP_ONNX_ROWS
                                                           : SBP_ONNX_OTHER;
        constant = constant && known && elems * v.dim[d] <= MOST_CONSTANTS;
        elems *= constant ? v.dim[d] : 1;
        if (known && size == 1) { /* its only index */
            const sbp_number *with[SBP_NUMBERS_RANK] = {NULL};
            with[d] = number(f, 0);
            t->element = sbp_number_substitute(f->n, t->element, with, SBP_NUMBERS_RANK);
        }
    }
    t->element = sbp_number_refine(f->n, t, t->element);
    if (f->n->full)
        return sbp_onnx_fail(o, "shapes and masks take too many steps to work out");
    v.numbers = *t;
    if (constant && !t->element->tokens) {
        double *data = SBP_NEW_ARRAY(o->arena, double, elems), at[SBP_NUMBERS_RANK] = {0};
        for (int64_t i = 0; i < elems; i++) {
            int64_t rest = i;
            for (int32_t d = t->rank - 1; d >= 0; d--) {
                at[d] = (double)(rest % v.dim[d]);
                rest /= v.dim[d];
            }
            data[i] = sbp_number_value(t->element, at, 1);
        }
        v.kind = SBP_ONNX_CONSTANT;
        v.data = data;
    }
    sbp_onnx_define(o, index, &v);
    return o->builder.status;
}

/* The element of t in a result of this rank, into which it is broadcast. */
static const sbp_number *broadcast_element(fold *f, const sbp_number_tensor *t, int32_t rank) {
    const sbp_number *with[SBP_NUMBERS_RANK] = {NULL};
    for (int32_t d = 0; d < t->rank; d++)
        with[d] = sbp_number_equals(t->size[d], 1) ? number(f, 0) : axis(f, d + rank - t->rank);
    return sbp_number_substitute(f->n, t->element, with, t->rank);
}

static sbp_status sizes_differ(fold *f, int32_t axis_number, const sbp_number *one, const sbp_number *other) {
    sbp_text text;
    sbp_text_init(&text, f->o->arena);
    sbp_number_print(&text, one);
    sbp_text_add(&text, " and ");
    sbp_number_print(&text, other);
    return sbp_onnx_fail(f->o, "sizes %.200s of axis %d do not broadcast", text.data, axis_number);
}

static sbp_status broadcast(fold *f, int32_t count, sbp_number_tensor *out, const sbp_number **elements) {
    *out = (sbp_number_tensor){0};
    for (int32_t i = 0; i < count; i++)
        out->rank = f->in[i].rank > out->rank ? f->in[i].rank : out->rank;
    for (int32_t d = 0; d < out->rank; d++)
        out->size[d] = number(f, 1);
    for (int32_t i = 0; i < count; i++) {
        int32_t shift = out->rank - f->in[i].rank;
        for (int32_t d = shift; d < out->rank; d++) {
            const sbp_number *size = f->in[i].size[d - shift];
            if (sbp_number_equals(out->size[d], 1))
                out->size[d] = size;
            else if (size != out->size[d] && !sbp_number_equals(size, 1))
                return sizes_differ(f, d, out->size[d], size);
        }
    }
    for (int32_t i = 0; i < count; i++)
        elements[i] = broadcast_element(f, &f->in[i], out->rank);
    return SBP_OK;
}

/* Number i of a vector or number. */
static const sbp_number *item(fold *f, const sbp_number_tensor *t, int64_t i) {
    const sbp_number *with[SBP_NUMBERS_RANK] = {NULL};
    for (int32_t d = 0; d < t->rank; d++)
        with[d] = number(f, d == t->rank - 1 ? (double)i : 0);
    return sbp_number_refine(f->n, t, sbp_number_substitute(f->n, t->element, with, t->rank));
}

/* Whole numbers of operand i, all known; count 1 of a number. */
static sbp_status whole_numbers(fold *f, int32_t i, const char *what, int64_t *out, int32_t *count) {
    double size = 1, value;
    if (f->in[i].rank > 1 || (f->in[i].rank == 1 && !sbp_number_is_constant(f->in[i].size[0], &size)) ||
        size > SBP_NUMBERS_RANK)
        return sbp_onnx_fail(f->o, "%s '%s' are no short list", what, f->o->node->inputs[i]);
    *count = (int32_t)size;
    for (int32_t k = 0; k < *count; k++) {
        if (!sbp_number_is_constant(item(f, &f->in[i], k), &value) || value != floor(value))
            return sbp_onnx_fail(f->o, "%s '%s' are not constant", what, f->o->node->inputs[i]);
        out[k] = value > 9e15 ? INT64_MAX : value < -9e15 ? INT64_MIN : (int64_t)value;
    }
    return SBP_OK;
}

static sbp_status one_axis(fold *f, int64_t given, int32_t rank, int32_t *out) {
    int64_t d = given < 0 ? given + rank : given;
    if (d < 0 || d >= rank)
        return sbp_onnx_fail(f->o, "axis %lld of a tensor of rank %d", (long long)given, rank);
    *out = (int32_t)d;
    return SBP_OK;
}

static bool is_float(sbp_onnx_type type) {
    sbp_dtype dtype;
    return sbp_onnx_type_float(type, &dtype);
}

/* ---- element by element ------------------------------------------------------------------------------- */

typedef const sbp_number *element_rule(fold *f, const sbp_number *const *x);

static const sbp_number *add_rule(fold *f, const sbp_number *const *x) {
    return sbp_number_add(f->n, x[0], 1, x[1]);
}
static const sbp_number *sub_rule(fold *f, const sbp_number *const *x) {
    return sbp_number_add(f->n, x[0], -1, x[1]);
}
static const sbp_number *mul_rule(fold *f, const sbp_number *const *x) {
    return sbp_number_multiply(f->n, x[0], x[1]);
}
static const sbp_number *div_rule(fold *f, const sbp_number *const *x) {
    const sbp_number *q = sbp_number_divide(f->n, x[0], x[1]);
    /* whole numbers: towards 0, of what is not negative here */
    return is_float(f->v[0]->type) ? q : sbp_number_floor(f->n, q);
}
static const sbp_number *mod_rule(fold *f, const sbp_number *const *x) {
    const sbp_number *q = sbp_number_floor(f->n, sbp_number_divide(f->n, x[0], x[1]));
    return sbp_number_add(f->n, x[0], -1, sbp_number_multiply(f->n, q, x[1]));
}
/* The smaller of two numbers, which for any T >= 1 may be known though neither is less for all. */
static const sbp_number *smaller(fold *f, const sbp_number *a, const sbp_number *b) {
    const sbp_number_tensor none = {0};
    if (sbp_number_equals(sbp_number_refine(f->n, &none, sbp_number_less(f->n, b, a)), 0))
        return a;
    return sbp_number_choose(f->n, sbp_number_refine(f->n, &none, sbp_number_less(f->n, a, b)), a, b);
}
static const sbp_number *min_rule(fold *f, const sbp_number *const *x) {
    return smaller(f, x[0], x[1]);
}
static const sbp_number *max_rule(fold *f, const sbp_number *const *x) {
    const sbp_number *none = number(f, 0);
    const sbp_number *less =
        smaller(f, sbp_number_add(f->n, none, -1, x[0]), sbp_number_add(f->n, none, -1, x[1]));
    return sbp_number_add(f->n, none, -1, less);
}
static const sbp_number *equal_rule(fold *f, const sbp_number *const *x) {
    return sbp_number_zero(f->n, sub_rule(f, x));
}
static const sbp_number *less_rule(fold *f, const sbp_number *const *x) {
    return sbp_number_less(f->n, x[0], x[1]);
}
static const sbp_number *greater_rule(fold *f, const sbp_number *const *x) {
    return sbp_number_less(f->n, x[1], x[0]);
}
static const sbp_number *less_equal_rule(fold *f, const sbp_number *const *x) {
    return sbp_number_not(f->n, greater_rule(f, x));
}
static const sbp_number *greater_equal_rule(fold *f, const sbp_number *const *x) {
    return sbp_number_not(f->n, less_rule(f, x));
}
static const sbp_number *and_rule(fold *f, const sbp_number *const *x) {
    return sbp_number_choose(f->n, x[0], x[1], number(f, 0));
}
static const sbp_number *or_rule(fold *f, const sbp_number *const *x) {
    return sbp_number_choose(f->n, x[0], number(f, 1), x[1]);
}
static const sbp_number *xor_rule(fold *f, const sbp_number *const *x) {
    return sbp_number_choose(f->n, x[0], sbp_number_not(f->n, x[1]), x[1]);
}
static const sbp_number *not_rule(fold *f, const sbp_number *const *x) {
    return sbp_number_not(f->n, x[0]);
}
static const sbp_number *where_rule(fold *f, const sbp_number *const *x) {
    return sbp_number_choose(f->n, x[0], x[1], x[2]);
}
static const sbp_number *neg_rule(fold *f, const sbp_number *const *x) {
    return sbp_number_add(f->n, number(f, 0), -1, x[0]);
}
static const sbp_number *abs_rule(fold *f, const sbp_number *const *x) {
    return sbp_number_choose(f->n, sbp_number_less(f->n, x[0], number(f, 0)), neg_rule(f, x), x[0]);
}
static const sbp_number *floor_rule(fold *f, const sbp_number *const *x) {
    return sbp_number_floor(f->n, x[0]);
}
static const sbp_number *same_rule(fold *f, const sbp_number *const *x) {
    (void)f;
    return x[0];
}
static const sbp_number *false_rule(fold *f, const sbp_number *const *x) {
    (void)x;
    return number(f, 0);
}

static const struct {
    const char *op;
    int32_t operands;
    bool truth; /* the result is BOOL; else of the type of the last operand */
    element_rule *rule;
} element_rules[] = {{"Add", 2, false, add_rule},
                     {"Sub", 2, false, sub_rule},
                     {"Mul", 2, false, mul_rule},
                     {"Div", 2, false, div_rule},
                     {"Mod", 2, false, mod_rule},
                     {"Max", 2, false, max_rule},
                     {"Min", 2, false, min_rule},
                     {"Equal", 2, true, equal_rule},
                     {"Less", 2, true, less_rule},
                     {"Greater", 2, true, greater_rule},
                     {"LessOrEqual", 2, true, less_equal_rule},
                     {"GreaterOrEqual", 2, true, greater_equal_rule},
                     {"And", 2, true, and_rule},
                     {"Or", 2, true, or_rule},
                     {"Xor", 2, true, xor_rule},
                     {"Not", 1, true, not_rule},
                     {"Where", 3, false, where_rule},
                     {"Neg", 1, false, neg_rule},
                     {"Abs", 1, false, abs_rule},
                     {"Floor", 1, false, floor_rule},
                     {"Identity", 1, false, same_rule},
                     {"IsNaN", 1, true, false_rule}};

static sbp_status by_element(fold *f, int32_t rule) {
    sbp_number_tensor out;
    const sbp_number *x[8];
    int32_t operands = element_rules[rule].operands;
    if (f->count != operands)
        return sbp_onnx_fail(f->o, "%d inputs; %d are expected", f->count, operands);
    SBP_TRY(broadcast(f, operands, &out, x));
    out.element = element_rules[rule].rule(f, x);
    return define(f, 0, element_rules[rule].truth ? SBP_ONNX_BOOL : f->v[operands - 1]->type, &out);
}

static sbp_status cast_node(fold *f) {
    int64_t to = 0;
    SBP_TRY(sbp_onnx_attr_int(f->o, "to", &to));
    if (to <= 0 || to >= SBP_ONNX_TYPE_COUNT)
        return sbp_onnx_fail(f->o, "cast to type %lld", (long long)to);
    sbp_number_tensor out = f->in[0];
    sbp_onnx_type type = (sbp_onnx_type)to;
    if (type == SBP_ONNX_BOOL && f->v[0]->type != SBP_ONNX_BOOL)
        out.element = sbp_number_not(f->n, sbp_number_zero(f->n, out.element));
    else if (is_float(f->v[0]->type) && !is_float(type))
        out.element = sbp_number_floor(f->n, out.element);
    return define(f, 0, type, &out);
}

/* ---- shapes ------------------------------------------------------------------------------------------- */

static sbp_status shape_node(fold *f, const sbp_onnx_value *x) {
    int64_t start = 0, end = x->rank;
    sbp_number_tensor out = {.rank = 1, .element = number(f, 0)};
    SBP_TRY(sbp_onnx_attr_int(f->o, "start", &start));
    SBP_TRY(sbp_onnx_attr_int(f->o, "end", &end));
    start = start < 0 ? start + x->rank : start;
    end = end < 0 ? end + x->rank : end > x->rank ? x->rank : end;
    start = start < 0 ? 0 : start;
    int64_t length = end > start ? end - start : 0;
    out.size[0] = number(f, (double)length);
    for (int64_t i = length - 1; i >= 0; i--) {
        int64_t d = start + i;
        const sbp_number *size = x->kind == SBP_ONNX_NUMBERS  ? x->numbers.size[d]
                                 : x->dim[d] == SBP_ONNX_ROWS ? sbp_number_tokens(f->n)
                                                              : number(f, (double)x->dim[d]);
        const sbp_number *here =
            sbp_number_zero(f->n, sbp_number_add(f->n, axis(f, 0), -1, number(f, (double)i)));
        out.element = sbp_number_choose(f->n, here, size, out.element);
    }
    return define(f, 0, SBP_ONNX_INT64, &out);
}

/* x with other sizes of 1 in between: those of `out` that are not 1 are those of x, in order. */
static sbp_status squeeze_like(fold *f, sbp_number_tensor *out) {
    const sbp_number_tensor *x = &f->in[0];
    const sbp_number *with[SBP_NUMBERS_RANK] = {NULL};
    int32_t d = 0;
    out->element = x->element;
    if (x->element->axes == 0) /* the same number everywhere */
        return SBP_OK;
    for (int32_t i = 0; i < x->rank; i++) {
        if (sbp_number_equals(x->size[i], 1)) {
            with[i] = number(f, 0);
            continue;
        }
        while (d < out->rank && sbp_number_equals(out->size[d], 1))
            d++;
        if (d == out->rank || out->size[d] != x->size[i])
            return SBP_USAGE;
        with[i] = axis(f, d++);
    }
    for (; d < out->rank; d++)
        if (!sbp_number_equals(out->size[d], 1))
            return SBP_USAGE;
    out->element = sbp_number_substitute(f->n, x->element, with, x->rank);
    return SBP_OK;
}

static sbp_status reshape_node(fold *f) {
    const sbp_number_tensor *x = &f->in[0];
    sbp_number_tensor out = {0};
    double size = 0;
    int64_t allow_zero = 0;
    int32_t open = -1;
    SBP_TRY(sbp_onnx_attr_int(f->o, "allowzero", &allow_zero));
    if (f->count < 2 || f->in[1].rank != 1 || !sbp_number_is_constant(f->in[1].size[0], &size) ||
        size > SBP_NUMBERS_RANK)
        return sbp_onnx_fail(f->o, "the shape is no short list");
    out.rank = (int32_t)size;
    const sbp_number *total = number(f, 1), *known = number(f, 1);
    for (int32_t d = 0; d < x->rank; d++)
        total = sbp_number_multiply(f->n, total, x->size[d]);
    for (int32_t d = 0; d < out.rank; d++) {
        out.size[d] = item(f, &f->in[1], d);
        if (sbp_number_equals(out.size[d], 0) && !allow_zero && d < x->rank)
            out.size[d] = x->size[d];
        if (sbp_number_equals(out.size[d], -1))
            open = d;
        else
            known = sbp_number_multiply(f->n, known, out.size[d]);
    }
    if (open >= 0)
        out.size[open] = known == total ? number(f, 1) : sbp_number_divide(f->n, total, known);
    if (squeeze_like(f, &out) != SBP_OK) {
        if (x->rank == 1 || !sbp_number_is_constant(total, &size))
            return sbp_onnx_fail(f->o, "axes of '%s' are joined or split", f->o->node->inputs[0]);
        return sbp_onnx_fail(f->o, "constants are reshaped in a way that is not built");
    }
    return define(f, 0, f->v[0]->type, &out);
}

static sbp_status flatten_node(fold *f) {
    const sbp_number_tensor *x = &f->in[0];
    sbp_number_tensor out = {.rank = 2};
    int64_t at = 1;
    SBP_TRY(sbp_onnx_attr_int(f->o, "axis", &at));
    at = at < 0 ? at + x->rank : at;
    for (int32_t half = 0; half < 2; half++)
        out.size[half] = number(f, 1);
    for (int32_t d = 0; d < x->rank; d++)
        out.size[d >= at] = sbp_number_multiply(f->n, out.size[d >= at], x->size[d]);
    if (squeeze_like(f, &out) != SBP_OK)
        return sbp_onnx_fail(f->o, "axes of '%s' are joined", f->o->node->inputs[0]);
    return define(f, 0, f->v[0]->type, &out);
}

/* Squeeze, and Unsqueeze: axes of the larger tensor. */
static sbp_status squeeze_node(fold *f, bool insert) {
    const sbp_number_tensor *x = &f->in[0];
    sbp_number_tensor out = {0};
    int64_t axes[SBP_NUMBERS_RANK];
    int32_t count = 0, next = 0;
    bool on[SBP_NUMBERS_RANK] = {false};
    if (f->count > 1)
        SBP_TRY(whole_numbers(f, 1, "axes", axes, &count));
    int32_t rank = insert ? x->rank + count : x->rank;
    if (rank > SBP_NUMBERS_RANK)
        return sbp_onnx_fail(f->o, "a result of rank %d", rank);
    for (int32_t i = 0; i < count; i++) {
        int32_t d = 0;
        SBP_TRY(one_axis(f, axes[i], rank, &d));
        on[d] = true;
    }
    for (int32_t d = 0; !insert && f->count < 2 && d < rank; d++)
        on[d] = sbp_number_equals(x->size[d], 1);
    for (int32_t d = 0; d < rank; d++) {
        if (insert)
            out.size[out.rank++] = on[d] ? number(f, 1) : x->size[next++];
        else if (!on[d])
            out.size[out.rank++] = x->size[d];
        else if (!sbp_number_equals(x->size[d], 1))
            return sbp_onnx_fail(f->o, "axis %d of '%s' is not 1", d, f->o->node->inputs[0]);
    }
    if (squeeze_like(f, &out) != SBP_OK)
        return sbp_onnx_fail(f->o, "its axes do not fit");
    return define(f, 0, f->v[0]->type, &out);
}

static sbp_status expand_node(fold *f) {
    double size = 0;
    sbp_number_tensor asked = {.element = number(f, 0)}, out;
    const sbp_number *x[2];
    if (f->count < 2 || f->in[1].rank != 1 || !sbp_number_is_constant(f->in[1].size[0], &size) ||
        size > SBP_NUMBERS_RANK)
        return sbp_onnx_fail(f->o, "the shape is no short list");
    asked.rank = (int32_t)size;
    for (int32_t d = 0; d < asked.rank; d++)
        asked.size[d] = item(f, &f->in[1], d);
    for (int32_t d = 0; d < asked.rank; d++) /* as exporters write "leave it" */
        if (sbp_number_equals(asked.size[d], -1))
            asked.size[d] = number(f, 1);
    f->in[1] = asked;
    SBP_TRY(broadcast(f, 2, &out, x));
    out.element = x[0];
    return define(f, 0, f->v[0]->type, &out);
}

static sbp_status transpose_node(fold *f) {
    const sbp_number_tensor *x = &f->in[0];
    const sbp_onnx_attribute *perm = sbp_onnx_attr(f->o, "perm");
    sbp_number_tensor out = {.rank = x->rank};
    const sbp_number *with[SBP_NUMBERS_RANK] = {NULL};
    if (perm && (perm->kind != SBP_ONNX_ATTR_INTS || perm->count != x->rank))
        return sbp_onnx_fail(f->o, "perm has not one entry per axis");
    for (int32_t d = 0; d < x->rank; d++) {
        int64_t from = perm ? perm->ints[d] : x->rank - 1 - d;
        if (from < 0 || from >= x->rank || with[from])
            return sbp_onnx_fail(f->o, "perm is no permutation");
        out.size[d] = x->size[from];
        with[from] = axis(f, d);
    }
    out.element = sbp_number_substitute(f->n, x->element, with, x->rank);
    return define(f, 0, f->v[0]->type, &out);
}

/* ---- parts -------------------------------------------------------------------------------------------- */

/* A bound of a slice: from the end when negative, and inside. */
static const sbp_number *slice_bound(fold *f, const sbp_number *bound, const sbp_number *size) {
    const sbp_number_tensor none = {0};
    double c;
    if (sbp_number_is_constant(bound, &c) && c < 0)
        bound = sbp_number_add(f->n, bound, 1, size);
    if (sbp_number_is_constant(bound, &c) && c > 9e15)
        return size;
    const sbp_number *above[] = {smaller(f, bound, size), number(f, 0)};
    return sbp_number_refine(f->n, &none, max_rule(f, above));
}

static sbp_status slice_node(fold *f) {
    sbp_number_tensor out = f->in[0];
    int64_t axes[SBP_NUMBERS_RANK], steps[SBP_NUMBERS_RANK];
    int32_t count = 0, given;
    double size = 0;
    const sbp_number *with[SBP_NUMBERS_RANK] = {NULL};
    if (f->count < 3 || f->in[1].rank != 1 || !sbp_number_is_constant(f->in[1].size[0], &size) ||
        size > SBP_NUMBERS_RANK)
        return sbp_onnx_fail(f->o, "starts are no short list");
    count = given = (int32_t)size;
    for (int32_t i = 0; i < count; i++) {
        axes[i] = i;
        steps[i] = 1;
    }
    if (f->count > 3 && f->v[3])
        SBP_TRY(whole_numbers(f, 3, "axes", axes, &given));
    if (given == count && f->count > 4 && f->v[4])
        SBP_TRY(whole_numbers(f, 4, "steps", steps, &given));
    if (given != count)
        return sbp_onnx_fail(f->o, "%d axes or steps for %d starts", given, count);
    for (int32_t i = 0; i < count; i++) {
        int32_t d = 0;
        SBP_TRY(one_axis(f, axes[i], out.rank, &d));
        if (steps[i] != 1)
            return sbp_onnx_fail(f->o, "steps of %lld", (long long)steps[i]);
        const sbp_number *start = slice_bound(f, item(f, &f->in[1], i), f->in[0].size[d]);
        const sbp_number *end = slice_bound(f, item(f, &f->in[2], i), f->in[0].size[d]);
        with[d] = sbp_number_add(f->n, axis(f, d), 1, start);
        out.size[d] = sbp_number_add(f->n, end, -1, start);
    }
    out.element = sbp_number_substitute(f->n, out.element, with, out.rank);
    return define(f, 0, f->v[0]->type, &out);
}

/* An index that may count from the end. */
static const sbp_number *inside(fold *f, const sbp_number_tensor *t, const sbp_number *index,
                                const sbp_number *size) {
    const sbp_number *negative = sbp_number_refine(f->n, t, sbp_number_less(f->n, index, number(f, 0)));
    return sbp_number_choose(f->n, negative, sbp_number_add(f->n, index, 1, size), index);
}

static sbp_status gather_node(fold *f) {
    const sbp_number_tensor *x = &f->in[0], *index = &f->in[1];
    sbp_number_tensor out = {0};
    const sbp_number *with[SBP_NUMBERS_RANK] = {NULL}, *moved[SBP_NUMBERS_RANK] = {NULL};
    int64_t given = 0;
    int32_t at = 0;
    SBP_TRY(sbp_onnx_attr_int(f->o, "axis", &given));
    SBP_TRY(one_axis(f, given, x->rank, &at));
    if (x->rank + index->rank - 1 > SBP_NUMBERS_RANK)
        return sbp_onnx_fail(f->o, "a result of rank %d", x->rank + index->rank - 1);
    for (int32_t d = 0; d < at; d++) {
        out.size[out.rank] = x->size[d];
        with[d] = axis(f, out.rank++);
    }
    for (int32_t d = 0; d < index->rank; d++) {
        out.size[out.rank] = index->size[d];
        moved[d] = axis(f, out.rank++);
    }
    with[at] = inside(f, index, index->element, x->size[at]);
    with[at] = sbp_number_substitute(f->n, with[at], moved, index->rank);
    for (int32_t d = at + 1; d < x->rank; d++) {
        out.size[out.rank] = x->size[d];
        with[d] = axis(f, out.rank++);
    }
    out.element = sbp_number_substitute(f->n, x->element, with, x->rank);
    return define(f, 0, f->v[0]->type, &out);
}

static sbp_status gather_nd_node(fold *f) {
    const sbp_number_tensor *x = &f->in[0], *index = &f->in[1];
    sbp_number_tensor out = {0};
    const sbp_number *with[SBP_NUMBERS_RANK] = {NULL};
    int64_t batch = 0;
    double depth;
    SBP_TRY(sbp_onnx_attr_int(f->o, "batch_dims", &batch));
    if (batch != 0 || index->rank < 1 || !sbp_number_is_constant(index->size[index->rank - 1], &depth) ||
        depth > x->rank)
        return sbp_onnx_fail(f->o, "batch_dims %lld, or indices of unknown depth", (long long)batch);
    for (int32_t d = 0; d < index->rank - 1; d++)
        out.size[out.rank++] = index->size[d];
    for (int32_t d = 0; d < x->rank; d++) {
        if (d < (int32_t)depth) {
            const sbp_number *last[SBP_NUMBERS_RANK] = {NULL};
            last[index->rank - 1] = number(f, d);
            with[d] = sbp_number_refine(f->n, index,
                                        sbp_number_substitute(f->n, index->element, last, index->rank));
            with[d] = inside(f, index, with[d], x->size[d]);
            continue;
        }
        if (out.rank == SBP_NUMBERS_RANK)
            return sbp_onnx_fail(f->o, "a result of too high a rank");
        out.size[out.rank] = x->size[d];
        with[d] = axis(f, out.rank++);
    }
    out.element = sbp_number_substitute(f->n, x->element, with, x->rank);
    return define(f, 0, f->v[0]->type, &out);
}

static sbp_status concat_node(fold *f) {
    sbp_number_tensor out = f->in[0];
    int64_t given = 0;
    int32_t at = 0;
    SBP_TRY(sbp_onnx_attr_int(f->o, "axis", &given));
    SBP_TRY(one_axis(f, given, out.rank, &at));
    for (int32_t i = 1; i < f->count; i++) {
        const sbp_number_tensor *x = &f->in[i];
        const sbp_number *with[SBP_NUMBERS_RANK] = {NULL};
        bool same = x->rank == out.rank;
        for (int32_t d = 0; same && d < out.rank; d++)
            same = d == at || x->size[d] == out.size[d];
        if (!same)
            return sbp_onnx_fail(f->o, "shapes of '%s' and '%s' differ", f->o->node->inputs[0],
                                 f->o->node->inputs[i]);
        with[at] = sbp_number_add(f->n, axis(f, at), -1, out.size[at]);
        const sbp_number *before = sbp_number_less(f->n, axis(f, at), out.size[at]);
        out.element = sbp_number_choose(f->n, before, out.element,
                                        sbp_number_substitute(f->n, x->element, with, x->rank));
        out.size[at] = sbp_number_add(f->n, out.size[at], 1, x->size[at]);
    }
    return define(f, 0, f->v[0]->type, &out);
}

/* ---- made from numbers -------------------------------------------------------------------------------- */

static sbp_status range_node(fold *f) {
    const sbp_number *start = item(f, &f->in[0], 0), *limit = item(f, &f->in[1], 0);
    if (f->count != 3 || !sbp_number_equals(item(f, &f->in[2], 0), 1))
        return sbp_onnx_fail(f->o, "steps other than 1");
    sbp_number_tensor out = {.rank = 1, .element = sbp_number_add(f->n, axis(f, 0), 1, start)};
    out.size[0] = sbp_number_add(f->n, limit, -1, start);
    return define(f, 0, f->v[0]->type, &out);
}

static sbp_status constant_of_shape_node(fold *f) {
    const sbp_onnx_attribute *value = sbp_onnx_attr(f->o, "value");
    sbp_number_tensor out = {.element = number(f, 0)};
    sbp_onnx_type type = SBP_ONNX_FLOAT;
    double size = 0;
    if (f->in[0].rank != 1 || !sbp_number_is_constant(f->in[0].size[0], &size) || size > SBP_NUMBERS_RANK)
        return sbp_onnx_fail(f->o, "the shape is no short list");
    out.rank = (int32_t)size;
    for (int32_t d = 0; d < out.rank; d++)
        out.size[d] = item(f, &f->in[0], d);
    if (value) {
        sbp_onnx_tensor loaded = value->t;
        if (value->kind != SBP_ONNX_ATTR_TENSOR || value->t.elems != 1)
            return sbp_onnx_fail(f->o, "value is no tensor of one number");
        SBP_TRY(sbp_onnx_tensor_load(f->o->arena, f->o->diag, f->o->model->path, &loaded));
        type = loaded.type;
        out.element = number(f, sbp_onnx_tensor_at(&loaded, 0));
    }
    return define(f, 0, type, &out);
}

/* Sums of what is the same number everywhere along the axis. */
static sbp_status cumsum_node(fold *f) {
    sbp_number_tensor out = f->in[0];
    int64_t exclusive = 0, reverse = 0, given[SBP_NUMBERS_RANK];
    int32_t count = 0, at = 0;
    SBP_TRY(sbp_onnx_attr_int(f->o, "exclusive", &exclusive));
    SBP_TRY(sbp_onnx_attr_int(f->o, "reverse", &reverse));
    SBP_TRY(whole_numbers(f, 1, "the axis", given, &count));
    SBP_TRY(one_axis(f, count == 1 ? given[0] : out.rank, out.rank, &at));
    if (reverse != 0 || (out.element->axes >> at & 1))
        return sbp_onnx_fail(f->o, "sums of numbers that differ along the axis");
    const sbp_number *terms = sbp_number_add(f->n, axis(f, at), 1, number(f, exclusive ? 0 : 1));
    out.element = sbp_number_multiply(f->n, out.element, terms);
    return define(f, 0, f->v[0]->type, &out);
}

/* The upper (or lower) triangle of the last two axes: those k indices above the diagonal and beyond. */
static sbp_status trilu_node(fold *f) {
    sbp_number_tensor out = f->in[0];
    int64_t upper = 1;
    SBP_TRY(sbp_onnx_attr_int(f->o, "upper", &upper));
    const sbp_number *k = f->count > 1 && f->v[1] ? item(f, &f->in[1], 0) : number(f, 0);
    if (out.rank < 2)
        return sbp_onnx_fail(f->o, "a tensor of rank %d", out.rank);
    const sbp_number *d = sbp_number_add(f->n, axis(f, out.rank - 1), -1, axis(f, out.rank - 2));
    const sbp_number *keep =
        sbp_number_not(f->n, upper ? sbp_number_less(f->n, d, k) : sbp_number_less(f->n, k, d));
    out.element = sbp_number_choose(f->n, keep, out.element, number(f, 0));
    return define(f, 0, f->v[0]->type, &out);
}

/* Products of few terms: tables of angles are outer products. */
static sbp_status matmul_node(fold *f) {
    const sbp_number_tensor *a = &f->in[0], *b = &f->in[1];
    sbp_number_tensor out = {.rank = a->rank, .element = number(f, 0)};
    double inner;
    if (a->rank < 2 || a->rank != b->rank || !sbp_number_is_constant(a->size[a->rank - 1], &inner) ||
        inner > 8 || b->size[b->rank - 2] != a->size[a->rank - 1])
        return SBP_USAGE;
    for (int32_t d = 0; d < a->rank; d++) {
        out.size[d] = d == a->rank - 1 || (d < a->rank - 2 && sbp_number_equals(a->size[d], 1)) ? b->size[d]
                                                                                                : a->size[d];
        if (d < a->rank - 2 && b->size[d] != out.size[d] && !sbp_number_equals(b->size[d], 1))
            return SBP_USAGE;
    }
    for (int32_t k = 0; k < (int32_t)inner; k++) {
        const sbp_number *with_a[SBP_NUMBERS_RANK] = {NULL}, *with_b[SBP_NUMBERS_RANK] = {NULL};
        for (int32_t d = 0; d < a->rank - 2; d++) {
            with_a[d] = sbp_number_equals(a->size[d], 1) ? number(f, 0) : NULL;
            with_b[d] = sbp_number_equals(b->size[d], 1) ? number(f, 0) : NULL;
        }
        with_a[a->rank - 1] = number(f, k);
        with_b[b->rank - 2] = number(f, k);
        const sbp_number *x = sbp_number_substitute(f->n, a->element, with_a, a->rank);
        const sbp_number *y = sbp_number_substitute(f->n, b->element, with_b, b->rank);
        out.element = sbp_number_add(f->n, out.element, 1, sbp_number_multiply(f->n, x, y));
    }
    return define(f, 0, f->v[0]->type, &out);
}

/* ---- the node ----------------------------------------------------------------------------------------- */

typedef sbp_status node_rule(fold *f);

static sbp_status squeeze_rule(fold *f) {
    return squeeze_node(f, false);
}
static sbp_status unsqueeze_rule(fold *f) {
    return squeeze_node(f, true);
}

static const struct {
    const char *op;
    node_rule *rule;
} node_rules[] = {{"Cast", cast_node},
                  {"Reshape", reshape_node},
                  {"Squeeze", squeeze_rule},
                  {"Flatten", flatten_node},
                  {"Unsqueeze", unsqueeze_rule},
                  {"Expand", expand_node},
                  {"Transpose", transpose_node},
                  {"Slice", slice_node},
                  {"Gather", gather_node},
                  {"GatherND", gather_nd_node},
                  {"Concat", concat_node},
                  {"Range", range_node},
                  {"ConstantOfShape", constant_of_shape_node},
                  {"CumSum", cumsum_node},
                  {"Trilu", trilu_node},
                  {"MatMul", matmul_node}};

/* Whether the node's operands are all numbers, found in f. */
static bool operands(fold *f, const sbp_onnx_node *node) {
    f->count = node->input_count;
    bool known = f->count > 0 && f->count <= SBP_COUNT(f->in);
    for (int32_t i = 0; known && i < f->count; i++) {
        if (node->inputs[i][0] == 0)
            continue;
        int32_t value = sbp_map_get(&f->o->names, node->inputs[i]);
        f->v[i] = value >= 0 ? &f->o->values[value] : NULL;
        known = f->v[i] && (f->v[i]->kind == SBP_ONNX_CONSTANT || f->v[i]->kind == SBP_ONNX_NUMBERS);
        if (known)
            sbp_onnx_tensor_of(f->o, f->v[i], &f->in[i]);
    }
    return known && f->v[0];
}

sbp_status sbp_onnx_fold(sbp_onnx *o, bool *folded) {
    fold f = {.o = o, .n = &o->numbers};
    const char *op = o->node->op;
    *folded = true;
    if (strcmp(op, "Shape") == 0) {
        const sbp_onnx_value *x;
        SBP_TRY(sbp_onnx_required(o, 0, &x));
        return shape_node(&f, x);
    }
    if (operands(&f, o->node)) {
        for (int32_t i = 0; i < SBP_COUNT(element_rules); i++)
            if (strcmp(op, element_rules[i].op) == 0)
                return by_element(&f, i);
        for (int32_t i = 0; i < SBP_COUNT(node_rules); i++)
            if (strcmp(op, node_rules[i].op) == 0) {
                sbp_status status = node_rules[i].rule(&f);
                if (status != SBP_USAGE) /* else it is for the graph */
                    return status;
            }
    }
    *folded = false;
    return SBP_OK;
}
