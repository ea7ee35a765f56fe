/* onnx_fold.c: nodes that only shapes, positions and constants reach: their results are tensors of
 * expressions (onnx_numbers.h), or constants. None of them gets into the graph, unless an activation is
 * computed with it (sbp_onnx_numbers_value). */
#include "frontends/onnx/onnx_fold.h"

#include <string.h>

enum { MOST_LOOKED_AT = 1 << 23 };

static bool is_float(sbp_onnx_type type) {
    sbp_dtype dtype;
    return sbp_onnx_type_float(type, &dtype);
}

/* ---- element by element ------------------------------------------------------------------------------- */

typedef const sbp_number *element_rule(sbp_fold *f, const sbp_number *const *x);

static const sbp_number *add_rule(sbp_fold *f, const sbp_number *const *x) {
    return sbp_number_add(f->n, x[0], 1, x[1]);
}
static const sbp_number *sub_rule(sbp_fold *f, const sbp_number *const *x) {
    return sbp_number_add(f->n, x[0], -1, x[1]);
}
static const sbp_number *mul_rule(sbp_fold *f, const sbp_number *const *x) {
    return sbp_number_multiply(f->n, x[0], x[1]);
}
static const sbp_number *div_rule(sbp_fold *f, const sbp_number *const *x) {
    const sbp_number *q = sbp_number_divide(f->n, x[0], x[1]);
    /* whole numbers: towards 0, of what is not negative here */
    return is_float(f->v[0]->type) ? q : sbp_number_floor(f->n, q);
}
static const sbp_number *mod_rule(sbp_fold *f, const sbp_number *const *x) {
    const sbp_number *q = sbp_number_floor(f->n, sbp_number_divide(f->n, x[0], x[1]));
    return sbp_number_add(f->n, x[0], -1, sbp_number_multiply(f->n, q, x[1]));
}
static const sbp_number *min_rule(sbp_fold *f, const sbp_number *const *x) {
    return sbp_fold_smaller(f, x[0], x[1]);
}
static const sbp_number *max_rule(sbp_fold *f, const sbp_number *const *x) {
    return sbp_fold_larger(f, x[0], x[1]);
}
static const sbp_number *equal_rule(sbp_fold *f, const sbp_number *const *x) {
    return sbp_number_zero(f->n, sub_rule(f, x));
}
static const sbp_number *less_rule(sbp_fold *f, const sbp_number *const *x) {
    return sbp_number_less(f->n, x[0], x[1]);
}
static const sbp_number *greater_rule(sbp_fold *f, const sbp_number *const *x) {
    return sbp_number_less(f->n, x[1], x[0]);
}
static const sbp_number *less_equal_rule(sbp_fold *f, const sbp_number *const *x) {
    return sbp_number_not(f->n, greater_rule(f, x));
}
static const sbp_number *greater_equal_rule(sbp_fold *f, const sbp_number *const *x) {
    return sbp_number_not(f->n, less_rule(f, x));
}
static const sbp_number *and_rule(sbp_fold *f, const sbp_number *const *x) {
    return sbp_number_choose(f->n, x[0], x[1], sbp_fold_number(f, 0));
}
static const sbp_number *or_rule(sbp_fold *f, const sbp_number *const *x) {
    return sbp_number_choose(f->n, x[0], sbp_fold_number(f, 1), x[1]);
}
static const sbp_number *xor_rule(sbp_fold *f, const sbp_number *const *x) {
    return sbp_number_choose(f->n, x[0], sbp_number_not(f->n, x[1]), x[1]);
}
static const sbp_number *not_rule(sbp_fold *f, const sbp_number *const *x) {
    return sbp_number_not(f->n, x[0]);
}
static const sbp_number *where_rule(sbp_fold *f, const sbp_number *const *x) {
    return sbp_number_choose(f->n, x[0], x[1], x[2]);
}
static const sbp_number *neg_rule(sbp_fold *f, const sbp_number *const *x) {
    return sbp_number_add(f->n, sbp_fold_number(f, 0), -1, x[0]);
}
static const sbp_number *abs_rule(sbp_fold *f, const sbp_number *const *x) {
    return sbp_number_choose(f->n, sbp_number_less(f->n, x[0], sbp_fold_number(f, 0)), neg_rule(f, x), x[0]);
}
static const sbp_number *pow_rule(sbp_fold *f, const sbp_number *const *x) {
    return sbp_number_power(f->n, x[0], x[1]);
}
static const sbp_number *sqrt_rule(sbp_fold *f, const sbp_number *const *x) {
    return sbp_number_power(f->n, x[0], sbp_fold_number(f, 0.5));
}
static const sbp_number *reciprocal_rule(sbp_fold *f, const sbp_number *const *x) {
    return sbp_number_divide(f->n, sbp_fold_number(f, 1), x[0]);
}
static const sbp_number *cos_rule(sbp_fold *f, const sbp_number *const *x) {
    return sbp_number_apply(f->n, SBP_NUMBER_COS, x[0]);
}
static const sbp_number *sin_rule(sbp_fold *f, const sbp_number *const *x) {
    return sbp_number_apply(f->n, SBP_NUMBER_SIN, x[0]);
}
static const sbp_number *exp_rule(sbp_fold *f, const sbp_number *const *x) {
    return sbp_number_apply(f->n, SBP_NUMBER_EXP, x[0]);
}
static const sbp_number *log_rule(sbp_fold *f, const sbp_number *const *x) {
    return sbp_number_apply(f->n, SBP_NUMBER_LOG, x[0]);
}
static const sbp_number *tanh_rule(sbp_fold *f, const sbp_number *const *x) {
    return sbp_number_apply(f->n, SBP_NUMBER_TANH, x[0]);
}
static const sbp_number *ceil_rule(sbp_fold *f, const sbp_number *const *x) {
    return sbp_number_add(f->n, sbp_fold_number(f, 0), -1, sbp_number_floor(f->n, neg_rule(f, x)));
}
static const sbp_number *sign_rule(sbp_fold *f, const sbp_number *const *x) {
    const sbp_number *below = sbp_number_less(f->n, x[0], sbp_fold_number(f, 0));
    return sbp_number_choose(f->n, below, sbp_fold_number(f, -1), sbp_number_positive(f->n, x[0]));
}
static const sbp_number *floor_rule(sbp_fold *f, const sbp_number *const *x) {
    return sbp_number_floor(f->n, x[0]);
}
static const sbp_number *same_rule(sbp_fold *f, const sbp_number *const *x) {
    (void)f;
    return x[0];
}
static const sbp_number *false_rule(sbp_fold *f, const sbp_number *const *x) {
    (void)x;
    return sbp_fold_number(f, 0);
}

static const struct {
    const char *op;
    int32_t operands;
    bool truth; /* the result is BOOL; else of the type of the last operand, of a power of the first */
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
                     {"Pow", 2, false, pow_rule},
                     {"Sqrt", 1, false, sqrt_rule},
                     {"Reciprocal", 1, false, reciprocal_rule},
                     {"Cos", 1, false, cos_rule},
                     {"Sin", 1, false, sin_rule},
                     {"Exp", 1, false, exp_rule},
                     {"Log", 1, false, log_rule},
                     {"Tanh", 1, false, tanh_rule},
                     {"Ceil", 1, false, ceil_rule},
                     {"Sign", 1, false, sign_rule},
                     {"Floor", 1, false, floor_rule},
                     {"Identity", 1, false, same_rule},
                     {"IsNaN", 1, true, false_rule}};

static bool is_element_rule(const char *op) {
    for (int32_t i = 0; i < SBP_COUNT(element_rules); i++)
        if (strcmp(op, element_rules[i].op) == 0)
            return true;
    return false;
}

static sbp_status by_element(sbp_fold *f, int32_t rule) {
    sbp_number_tensor out;
    const sbp_number *x[8];
    int32_t operands = element_rules[rule].operands;
    if (f->count != operands)
        return sbp_onnx_fail(f->o, "the node has %d inputs; %d are expected", f->count, operands);
    SBP_TRY(sbp_fold_broadcast(f, operands, &out, x));
    out.element = element_rules[rule].rule(f, x);
    sbp_onnx_type type = f->v[element_rules[rule].rule == pow_rule ? 0 : operands - 1]->type;
    return sbp_fold_define(f, 0, element_rules[rule].truth ? SBP_ONNX_BOOL : type, &out);
}

/* ---- the node ----------------------------------------------------------------------------------------- */

/* Whether v is a tensor that may be worked out here; matrices that are turned or copied may still be weights.
 * A first import also looks at rows of trained ones, which may be found to be tables of cos and sin. */
static bool is_table(const sbp_onnx *o, const sbp_onnx_value *v, const char *op) {
    bool weight = strcmp(op, "Transpose") == 0 || strcmp(op, "Cast") == 0 || strcmp(op, "Identity") == 0,
         rows = strcmp(op, "Slice") == 0 || strcmp(op, "Gather") == 0;
    if (v->kind != SBP_ONNX_PARAMETER || !v->tensor || v->transposed)
        return false;
    return v->frozen ? !weight : o->looks && rows && v->tensor->elems <= MOST_LOOKED_AT;
}

/* Whether the node's operands are all numbers, found in f. */
static sbp_status operands(sbp_fold *f, const sbp_onnx_node *node, bool *known) {
    f->count = node->input_count;
    while (f->count > 1 && node->inputs[f->count - 1][0] == 0) /* left out */
        f->count--;
    *known = f->count > 0 && f->count <= SBP_COUNT(f->in);
    for (int32_t i = 0; *known && i < f->count; i++) {
        if (node->inputs[i][0] == 0)
            continue;
        int32_t value = sbp_map_get(&f->o->names, node->inputs[i]);
        f->v[i] = value >= 0 ? &f->o->values[value] : NULL;
        *known = f->v[i] && (f->v[i]->kind == SBP_ONNX_CONSTANT || f->v[i]->kind == SBP_ONNX_NUMBERS ||
                             is_table(f->o, f->v[i], node->op));
    }
    *known = *known && f->v[0];
    for (int32_t i = 0; *known && i < f->count; i++)
        if (f->v[i] && f->v[i]->kind == SBP_ONNX_PARAMETER)
            SBP_TRY(sbp_onnx_table_of(f->o, f->v[i], &f->in[i]));
        else if (f->v[i])
            sbp_onnx_tensor_of(f->o, f->v[i], &f->in[i]);
    return SBP_OK;
}

/* Inputs that a rule reads without a look whether they are there. */
static sbp_status check_inputs(const sbp_fold *f, const char *op) {
    static const struct {
        const char *op;
        int32_t least;
    } all[] = {{"Reshape", 2}, {"Expand", 2}, {"Slice", 3},     {"CastLike", 2},
               {"Tile", 2},    {"Gather", 2}, {"GatherND", 2},  {"Range", 3},
               {"CumSum", 2},  {"MatMul", 2}, {"ScatterND", 3}, {"ScatterElements", 3}};
    int32_t least = 1;
    for (int32_t i = 0; i < SBP_COUNT(all); i++)
        least = strcmp(all[i].op, op) == 0 ? all[i].least : least;
    for (int32_t i = 0; i < least || i < f->count; i++)
        if (i >= f->count || (!f->v[i] && (i < least || strcmp(op, "Slice") != 0)))
            return sbp_onnx_fail(f->o, "input %d is missing", i);
    return SBP_OK;
}

sbp_status sbp_onnx_fold(sbp_onnx *o, bool *folded) {
    sbp_fold f = {.o = o, .n = &o->numbers};
    const char *op = o->node->op;
    *folded = true;
    if (strcmp(op, "Shape") == 0) {
        const sbp_onnx_value *x;
        SBP_TRY(sbp_onnx_required(o, 0, &x));
        return sbp_onnx_fold_shape(o, x);
    }
    bool known;
    SBP_TRY(operands(&f, o->node, &known));
    if (known && (sbp_fold_find_rule(op) || is_element_rule(op)))
        SBP_TRY(check_inputs(&f, op));
    if (known) {
        for (int32_t i = 0; i < SBP_COUNT(element_rules); i++)
            if (strcmp(op, element_rules[i].op) == 0)
                return by_element(&f, i);
        sbp_fold_rule *rule = sbp_fold_find_rule(op);
        sbp_status status = rule ? rule(&f) : SBP_USAGE;
        if (status != SBP_USAGE) /* else it is for the graph */
            return status;
    }
    *folded = false;
    return SBP_OK;
}
