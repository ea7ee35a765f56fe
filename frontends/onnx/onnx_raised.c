/* onnx_raised.c: what is one composite of the graph IR: activations and rotations, most of them made by
 * patterns. */
#include "frontends/onnx/onnx.h"

#include <string.h>

/* ---- activations ----------------------------------------------------------------------------------------
 */

/* Operand `index`, an activation of its own type: composites compute in the wide type and round once. */
static sbp_status plain_operand(sbp_onnx *o, int32_t index, const sbp_onnx_value **x, sbp_value *out) {
    SBP_TRY(sbp_onnx_required(o, index, x));
    const sbp_onnx_value *v = *x;
    if (v->kind != SBP_ONNX_VALUE || v->repeat > 1 || v->shared || !sbp_onnx_has_rows(v))
        return sbp_onnx_fail(o, "'%s' %s is not an activation", v->name, sbp_onnx_shape_text(o, v));
    return sbp_onnx_as_shape(o, v->value, v->rank, v->dim, out);
}

static sbp_status kind_of_gelu(sbp_onnx *o, const char **approximate) {
    *approximate = "none";
    SBP_TRY(sbp_onnx_attr_string(o, "approximate", approximate));
    if (strcmp(*approximate, "none") != 0 && strcmp(*approximate, "tanh") != 0)
        return sbp_onnx_fail(o, "approximate '%s'; none or tanh expected", *approximate);
    return SBP_OK;
}

sbp_status sbp_onnx_gelu(sbp_onnx *o) {
    static const char *const known[] = {"approximate", NULL};
    const sbp_onnx_value *x;
    const char *approximate;
    sbp_value value;
    SBP_TRY(sbp_onnx_attrs_known(o, known));
    SBP_TRY(kind_of_gelu(o, &approximate));
    SBP_TRY(plain_operand(o, 0, &x, &value));
    sbp_value y = sbp_build(&o->builder, SBP_OP_gelu, NULL, &value, 1,
                            (sbp_attr[]){sbp_attr_symbol("approximate", approximate)}, 1, NULL);
    sbp_onnx_define_value(o, 0, y, x->type, x->rank, x->dim);
    return o->builder.status;
}

sbp_status sbp_onnx_silu(sbp_onnx *o) {
    static const char *const known[] = {"alpha", NULL};
    const sbp_onnx_value *x;
    double alpha = 1;
    sbp_value value;
    SBP_TRY(sbp_onnx_attrs_known(o, known));
    SBP_TRY(sbp_onnx_attr_float(o, "alpha", &alpha));
    if (alpha != 1)
        return sbp_onnx_fail(o, "alpha %g; only 1 is supported", alpha);
    SBP_TRY(plain_operand(o, 0, &x, &value));
    sbp_onnx_define_value(o, 0, sbp_build1(&o->builder, SBP_OP_silu, value), x->type, x->rank, x->dim);
    return o->builder.status;
}

/* An activation of input 0 times input 1. */
sbp_status sbp_onnx_gate(sbp_onnx *o) {
    const sbp_onnx_value *x[2];
    const char *approximate;
    sbp_value in[2];
    bool gelu = strcmp(o->node->op, "GeGLU") == 0;
    SBP_TRY(kind_of_gelu(o, &approximate));
    for (int32_t i = 0; i < 2; i++)
        SBP_TRY(plain_operand(o, i, &x[i], &in[i]));
    if (x[0]->rank != x[1]->rank || memcmp(x[0]->dim, x[1]->dim, (size_t)x[0]->rank * sizeof *x[0]->dim) != 0)
        return sbp_onnx_fail(o, "'%s' %s beside '%s' %s", x[0]->name, sbp_onnx_shape_text(o, x[0]),
                             x[1]->name, sbp_onnx_shape_text(o, x[1]));
    sbp_value y = sbp_build(&o->builder, gelu ? SBP_OP_geglu : SBP_OP_swiglu, NULL, in, 2,
                            (sbp_attr[]){sbp_attr_symbol("approximate", approximate)}, gelu ? 1 : 0, NULL);
    sbp_onnx_define_value(o, 0, y, x[0]->type, x[0]->rank, x[0]->dim);
    return o->builder.status;
}

/* cap tanh(x / cap) */
sbp_status sbp_onnx_softcap(sbp_onnx *o) {
    const sbp_onnx_value *x;
    double cap = 0;
    sbp_value value;
    SBP_TRY(sbp_onnx_attr_float(o, "cap", &cap));
    if (!(cap > 0))
        return sbp_onnx_fail(o, "the cap is %g; a positive number is expected", cap);
    SBP_TRY(plain_operand(o, 0, &x, &value));
    value = sbp_build_cast(&o->builder, value, o->wide);
    sbp_value y = sbp_build(&o->builder, SBP_OP_softcap, NULL, &value, 1,
                            (sbp_attr[]){sbp_attr_double("cap", cap)}, 1, NULL);
    sbp_onnx_define_value(o, 0, y, x->type, x->rank, x->dim);
    return o->builder.status;
}

/* ---- rotations ------------------------------------------------------------------------------------------
 */

enum { MOST_CHECKED = 4096 }; /* positions at which numbers are compared that formulas do not decide */

/* Whether a table has equal numbers in the columns `one` and `other` of i, for all i below n: by its formula,
 * else by its numbers. */
static bool columns_agree(sbp_onnx *o, const sbp_onnx_value *table, int32_t rows, const sbp_number *one,
                          const sbp_number *other, int64_t n) {
    sbp_numbers *numbers = &o->numbers;
    const sbp_number *with[SBP_NUMBERS_RANK] = {NULL};
    sbp_number_tensor half = table->numbers;
    int32_t last = table->rank - 1;
    half.size[last] = sbp_number_constant(numbers, (double)n);
    with[last] = one;
    const sbp_number *a = sbp_number_substitute(numbers, table->numbers.element, with, table->rank);
    with[last] = other;
    const sbp_number *b = sbp_number_substitute(numbers, table->numbers.element, with, table->rank);
    if (sbp_number_refine(numbers, &half, a) == sbp_number_refine(numbers, &half, b))
        return true;
    double most = numbers->most_tokens < MOST_CHECKED ? numbers->most_tokens : MOST_CHECKED;
    for (int64_t t = 0; t < (int64_t)most; t++)
        for (int64_t i = 0; i < n; i++) {
            double at[SBP_NUMBERS_RANK] = {0};
            at[rows] = (double)t;
            at[last] = (double)i;
            if (sbp_number_value(a, at, most) != sbp_number_value(b, at, most))
                return false;
        }
    return true;
}

/* Input `index`, a table of cos or sin by position, of as many columns as a head of x or half of them: its
 * columns as a rotation needs them, [T, n] for halves and [T, 2 n] for neighbours. From the end of its shape,
 * tokens stand where x has them. */
static sbp_status angle_table(sbp_onnx *o, const sbp_onnx_value *x, int32_t index, bool pairs,
                              sbp_value *out) {
    const sbp_onnx_value *given;
    int64_t width = x->dim[x->rank - 1], n = width / 2;
    SBP_TRY(sbp_onnx_required(o, index, &given));
    sbp_onnx_value table = *given;
    int32_t rows = sbp_onnx_rows_axis(given), last = given->rank - 1;
    bool fits = given->kind == SBP_ONNX_NUMBERS && rows >= 0 && rows < last && width % 2 == 0 &&
                given->rank - rows == x->rank - sbp_onnx_rows_axis(x) &&
                (given->dim[last] == width || given->dim[last] == n);
    for (int32_t d = 0; fits && d < last; d++)
        fits = d == rows || given->dim[d] == 1;
    if (!fits)
        return sbp_onnx_fail(o, "'%s' is %s; a table by position, for heads of %lld", given->name,
                             sbp_onnx_shape_text(o, given), (long long)width);
    sbp_numbers *numbers = &o->numbers;
    const sbp_number *column = sbp_number_axis(numbers, last), *two = sbp_number_constant(numbers, 2);
    const sbp_number *even = sbp_number_multiply(numbers, column, two);
    const sbp_number *partner = sbp_number_add(numbers, pairs ? even : column, 1,
                                               sbp_number_constant(numbers, pairs ? 1 : (double)n));
    if (given->dim[last] == width && !columns_agree(o, given, rows, pairs ? even : column, partner, n))
        return sbp_onnx_fail(o, "'%s' %s turns the two elements of a pair differently", given->name,
                             sbp_onnx_shape_text(o, given));
    if (given->dim[last] == n && pairs) { /* each number for both elements */
        const sbp_number *with[SBP_NUMBERS_RANK] = {NULL};
        with[last] = sbp_number_floor(numbers, sbp_number_divide(numbers, column, two));
        table.numbers.element = sbp_number_substitute(numbers, given->numbers.element, with, given->rank);
    }
    table.dim[last] = pairs ? width : n;
    table.numbers.size[last] = sbp_number_constant(numbers, (double)table.dim[last]);
    table.numbers.element = sbp_number_refine(numbers, &table.numbers, table.numbers.element);
    sbp_onnx_value computed;
    SBP_TRY(sbp_onnx_numbers_value(o, &table, &computed));
    *out = sbp_onnx_with_dims(o, computed.value, &table.dim[last], 1);
    return o->builder.status;
}

/* x [T, heads, d] turned in pairs of neighbours: x cos + (-x1, x0, -x3, x2, ..) sin. Neighbours are reached
 * by moving the whole row by one to either side, of which every other element is taken. */
static sbp_value turn_pairs(sbp_onnx *o, sbp_value x, int64_t d, sbp_value cosine, sbp_value sine) {
    sbp_builder *b = &o->builder;
    double *signs[2] = {SBP_NEW_ARRAY(o->arena, double, d), SBP_NEW_ARRAY(o->arena, double, d)};
    sbp_value mask[2];
    for (int64_t i = 0; i < d; i++)
        signs[i % 2][i] = i % 2 == 0 ? -1 : 1;
    for (int32_t k = 0; k < 2; k++) {
        sbp_onnx_value constant = {
            .name = sbp_arena_printf(o->arena, "%s.%lld", k == 0 ? "evens" : "odds", (long long)d),
            .kind = SBP_ONNX_CONSTANT,
            .type = SBP_ONNX_FLOAT,
            .rank = 1,
            .dim = {d},
            .data = signs[k]};
        if (sbp_onnx_materialize(o, &constant, o->wide, &mask[k]) != SBP_OK)
            return SBP_NO_VALUE;
    }
    x = sbp_build_cast(b, x, o->wide);
    sbp_value head = sbp_build_slice(b, x, 0, 1), without_head = sbp_build_slice(b, x, 1, d - 1);
    sbp_value end = sbp_build_slice(b, x, d - 1, 1), without_end = sbp_build_slice(b, x, 0, d - 1);
    sbp_value next = sbp_build2(b, SBP_OP_concat, without_head, head);
    sbp_value previous = sbp_build2(b, SBP_OP_concat, end, without_end);
    sbp_value from_next = sbp_build2(b, SBP_OP_mul, next, mask[0]);
    sbp_value from_previous = sbp_build2(b, SBP_OP_mul, previous, mask[1]);
    sbp_value turned = sbp_build2(b, SBP_OP_add, from_next, from_previous);
    cosine = sbp_build_reshape(b, cosine, (int64_t[]){1, d}, 2);
    sine = sbp_build_reshape(b, sine, (int64_t[]){1, d}, 2);
    x = sbp_build2(b, SBP_OP_mul, x, cosine);
    turned = sbp_build2(b, SBP_OP_mul, turned, sine);
    return sbp_build2(b, SBP_OP_add, x, turned);
}

sbp_status sbp_onnx_rotary_raised(sbp_onnx *o) {
    const sbp_onnx_value *x;
    sbp_value operands[3], y;
    bool pairs = strcmp(o->node->op, "RotaryPairs") == 0;
    SBP_TRY(plain_operand(o, 0, &x, &operands[0]));
    int64_t d = x->dim[x->rank - 1], heads = 1;
    int32_t rows = sbp_onnx_rows_axis(x);
    for (int32_t k = 0; k < x->rank - 1; k++)
        heads *= k == rows ? 1 : x->dim[k];
    if (rows == x->rank - 1 || d < 2)
        return sbp_onnx_fail(o, "'%s' is %s", x->name, sbp_onnx_shape_text(o, x));
    SBP_TRY(angle_table(o, x, 1, pairs, &operands[1]));
    SBP_TRY(angle_table(o, x, 2, pairs, &operands[2]));
    operands[0] = sbp_onnx_with_dims(o, operands[0], (int64_t[]){heads, d}, 2);
    if (pairs)
        y = turn_pairs(o, operands[0], d, operands[1], operands[2]);
    else
        y = sbp_build(&o->builder, SBP_OP_rope, NULL, operands, 3, NULL, 0, NULL);
    if (o->builder.status != SBP_OK)
        return o->builder.status;
    sbp_build_name(&o->builder, y, sbp_onnx_short_name(o));
    y = sbp_build_rounded(&o->builder, y, o->compute);
    SBP_TRY(sbp_onnx_as_shape(o, y, x->rank, x->dim, &y));
    sbp_onnx_define_value(o, 0, y, x->type, x->rank, x->dim);
    return o->builder.status;
}
