/* onnx_numbers.c: expressions in indices and T, always in normal form. */
#include "frontends/onnx/onnx_numbers.h"

#include <math.h>
#include <string.h>

enum { MOST_STEPS = 4 << 20 };

/* False when there were too many. */
static bool step(sbp_numbers *n) {
    n->full = n->full || ++n->steps > MOST_STEPS;
    return !n->full;
}

void sbp_numbers_init(sbp_numbers *n, sbp_arena *arena) {
    *n = (sbp_numbers){.arena = arena, .most_tokens = INFINITY};
    sbp_map_init(&n->known, arena);
}

/* ---- nodes, each once --------------------------------------------------------------------------------- */

/* Nodes of equal parts have equal texts. */
static const char *key_of(const sbp_numbers *n, const sbp_number *a) {
    sbp_text text;
    sbp_text_init(&text, n->arena);
    sbp_text_add(&text, "%d %d %a %p", (int)a->kind, a->axis, a->constant, (const void *)a->table);
    for (int32_t i = 0; a->kind == SBP_NUMBER_LINEAR && i < a->count; i++)
        sbp_text_add(&text, " %a*%d", a->terms[i].factor, a->terms[i].value->id);
    const sbp_number *parts[] = {a->a, a->b, a->c};
    for (int i = 0; i < SBP_COUNT(parts); i++)
        sbp_text_add(&text, " %d", parts[i] ? parts[i]->id : -1);
    return text.data;
}

static const sbp_number *make(sbp_numbers *n, const sbp_number *like) {
    const char *key = key_of(n, like);
    int32_t known = sbp_map_get(&n->known, key);
    if (known >= 0)
        return n->all[known];
    sbp_number *out = SBP_NEW(n->arena, sbp_number);
    *out = *like;
    out->id = n->count;
    const sbp_number *parts[] = {like->a, like->b, like->c};
    for (int i = 0; i < SBP_COUNT(parts); i++)
        if (parts[i]) {
            out->axes |= parts[i]->axes;
            out->tokens |= parts[i]->tokens;
        }
    if (like->kind == SBP_NUMBER_LINEAR) {
        sbp_number_term *terms = SBP_NEW_ARRAY(n->arena, sbp_number_term, like->count);
        for (int32_t i = 0; i < like->count; i++) {
            terms[i] = like->terms[i];
            out->axes |= terms[i].value->axes;
            out->tokens |= terms[i].value->tokens;
        }
        out->terms = terms;
    }
    sbp_map_set(&n->known, key, n->count);
    SBP_PUSH(n->arena, n->all, n->count, n->capacity, out);
    return out;
}

const sbp_number *sbp_number_constant(sbp_numbers *n, double value) {
    return make(n, &(sbp_number){.kind = SBP_NUMBER_LINEAR, .constant = value + 0.0});
}

const sbp_number *sbp_number_tokens(sbp_numbers *n) {
    return make(n, &(sbp_number){.kind = SBP_NUMBER_TOKENS, .tokens = true});
}

const sbp_number *sbp_number_axis(sbp_numbers *n, int32_t axis) {
    return make(n, &(sbp_number){.kind = SBP_NUMBER_AXIS, .axis = axis, .axes = UINT32_C(1) << axis});
}

bool sbp_number_is_constant(const sbp_number *a, double *out) {
    bool is = a->kind == SBP_NUMBER_LINEAR && a->count == 0;
    if (is)
        *out = a->constant;
    return is;
}

bool sbp_number_equals(const sbp_number *a, double value) {
    double c;
    return sbp_number_is_constant(a, &c) && c == value;
}

/* ---- sums --------------------------------------------------------------------------------------------- */

/* The terms of a: itself when it is no sum. */
static int32_t terms_of(const sbp_number *a, const sbp_number_term **terms, sbp_number_term *own) {
    if (a->kind == SBP_NUMBER_LINEAR) {
        *terms = a->terms;
        return a->count;
    }
    *own = (sbp_number_term){1, a};
    *terms = own;
    return 1;
}

static double constant_of(const sbp_number *a) {
    return a->kind == SBP_NUMBER_LINEAR ? a->constant : 0;
}

/* A sum of terms; one term alone with factor 1 is itself. */
static const sbp_number *sum(sbp_numbers *n, double constant, const sbp_number_term *terms, int32_t count) {
    if (count == 1 && constant == 0 && terms[0].factor == 1)
        return terms[0].value;
    return make(
        n,
        &(sbp_number){.kind = SBP_NUMBER_LINEAR, .constant = constant + 0.0, .terms = terms, .count = count});
}

const sbp_number *sbp_number_add(sbp_numbers *n, const sbp_number *a, double factor, const sbp_number *b) {
    sbp_number_term own[2], *out;
    const sbp_number_term *x, *y;
    int32_t xs = terms_of(a, &x, &own[0]), ys = terms_of(b, &y, &own[1]), i = 0, k = 0, count = 0;
    out = SBP_NEW_ARRAY(n->arena, sbp_number_term, xs + ys + 1);
    while (i < xs || k < ys) {
        bool left = k == ys || (i < xs && x[i].value->id <= y[k].value->id);
        bool right = i == xs || (k < ys && y[k].value->id <= x[i].value->id);
        sbp_number_term t = {0, left ? x[i].value : y[k].value};
        t.factor += left ? x[i++].factor : 0;
        t.factor += right ? factor * y[k++].factor : 0;
        if (t.factor != 0)
            out[count++] = t;
    }
    return sum(n, constant_of(a) + factor * constant_of(b), out, count);
}

static const sbp_number *scaled(sbp_numbers *n, const sbp_number *a, double factor) {
    return sbp_number_add(n, sbp_number_constant(n, 0), factor, a);
}

/* ---- other nodes -------------------------------------------------------------------------------------- */

static bool is_truth(const sbp_number *a) {
    return a->kind == SBP_NUMBER_POSITIVE || a->kind == SBP_NUMBER_ZERO || sbp_number_equals(a, 0) ||
           sbp_number_equals(a, 1);
}

const sbp_number *sbp_number_choose(sbp_numbers *n, const sbp_number *condition, const sbp_number *yes,
                                    const sbp_number *no) {
    double c;
    if (sbp_number_is_constant(condition, &c))
        return c != 0 ? yes : no;
    if (yes == no)
        return yes;
    if (is_truth(condition) && sbp_number_equals(yes, 1) && sbp_number_equals(no, 0))
        return condition;
    if (condition->kind == SBP_NUMBER_CHOICE && sbp_number_equals(condition->b, 0) &&
        sbp_number_equals(condition->c, 1))
        return sbp_number_choose(n, condition->a, no, yes); /* of a "not" */
    return make(n, &(sbp_number){.kind = SBP_NUMBER_CHOICE, .a = condition, .b = yes, .c = no});
}

const sbp_number *sbp_number_not(sbp_numbers *n, const sbp_number *a) {
    return sbp_number_choose(n, a, sbp_number_constant(n, 0), sbp_number_constant(n, 1));
}

/* f applied below the choices of a, so that sums and comparisons see their cases. */
typedef const sbp_number *one_case(sbp_numbers *n, const sbp_number *a, const sbp_number *b);

static const sbp_number *by_cases(sbp_numbers *n, one_case *f, const sbp_number *a, const sbp_number *b) {
    if (!step(n))
        return a;
    if (a->kind == SBP_NUMBER_CHOICE)
        return sbp_number_choose(n, a->a, by_cases(n, f, a->b, b), by_cases(n, f, a->c, b));
    if (b && b->kind == SBP_NUMBER_CHOICE)
        return sbp_number_choose(n, b->a, by_cases(n, f, a, b->b), by_cases(n, f, a, b->c));
    return f(n, a, b);
}

static const sbp_number *multiply(sbp_numbers *n, const sbp_number *a, const sbp_number *b) {
    double c;
    if (sbp_number_is_constant(a, &c))
        return scaled(n, b, c);
    if (sbp_number_is_constant(b, &c))
        return scaled(n, a, c);
    const sbp_number *first = b && b->id < a->id ? b : a;
    return make(n, &(sbp_number){.kind = SBP_NUMBER_PRODUCT, .a = first, .b = first == a ? b : a});
}

const sbp_number *sbp_number_multiply(sbp_numbers *n, const sbp_number *a, const sbp_number *b) {
    return by_cases(n, multiply, a, b);
}

/* Whether y divides the constant and every factor of a without rest. */
static bool divides(double y, const sbp_number *a) {
    bool whole = a->kind == SBP_NUMBER_LINEAR && fmod(a->constant, y) == 0;
    for (int32_t i = 0; whole && i < a->count; i++)
        whole = fmod(a->terms[i].factor, y) == 0;
    return whole;
}

static const sbp_number *divide(sbp_numbers *n, const sbp_number *a, const sbp_number *b) {
    double x, y;
    if (sbp_number_is_constant(b, &y) && y != 0) {
        if (sbp_number_is_constant(a, &x))
            return sbp_number_constant(n, x / y);
        if (fabs(y) == exp2(round(log2(fabs(y))))) /* exact */
            return scaled(n, a, 1 / y);
        if (divides(y, a)) {
            sbp_number_term *terms = SBP_NEW_ARRAY(n->arena, sbp_number_term, a->count);
            for (int32_t i = 0; i < a->count; i++)
                terms[i] = (sbp_number_term){a->terms[i].factor / y, a->terms[i].value};
            return sum(n, a->constant / y, terms, a->count);
        }
    }
    return make(n, &(sbp_number){.kind = SBP_NUMBER_QUOTIENT, .a = a, .b = b});
}

const sbp_number *sbp_number_divide(sbp_numbers *n, const sbp_number *a, const sbp_number *b) {
    return by_cases(n, divide, a, b);
}

static bool is_whole(const sbp_number *a) {
    bool whole = a->kind == SBP_NUMBER_TOKENS || a->kind == SBP_NUMBER_AXIS || a->kind == SBP_NUMBER_FLOOR ||
                 is_truth(a);
    if (a->kind == SBP_NUMBER_LINEAR) {
        whole = a->constant == floor(a->constant);
        for (int32_t i = 0; whole && i < a->count; i++)
            whole = a->terms[i].factor == floor(a->terms[i].factor) && is_whole(a->terms[i].value);
    }
    return whole;
}

static const sbp_number *floor_of(sbp_numbers *n, const sbp_number *a, const sbp_number *none) {
    double c;
    (void)none;
    if (sbp_number_is_constant(a, &c))
        return sbp_number_constant(n, floor(c));
    return is_whole(a) ? a : make(n, &(sbp_number){.kind = SBP_NUMBER_FLOOR, .a = a});
}

const sbp_number *sbp_number_floor(sbp_numbers *n, const sbp_number *a) {
    return by_cases(n, floor_of, a, NULL);
}

const sbp_number *sbp_number_power(sbp_numbers *n, const sbp_number *a, const sbp_number *b) {
    double x, y;
    if (sbp_number_is_constant(a, &x) && sbp_number_is_constant(b, &y))
        return sbp_number_constant(n, pow(x, y));
    if (sbp_number_equals(b, 1))
        return a;
    return make(n, &(sbp_number){.kind = SBP_NUMBER_POWER, .a = a, .b = b});
}

static double function_value(sbp_number_function f, double x) {
    switch (f) {
    case SBP_NUMBER_COS:
        return cos(x);
    case SBP_NUMBER_SIN:
        return sin(x);
    case SBP_NUMBER_EXP:
        return exp(x);
    case SBP_NUMBER_LOG:
        return log(x);
    case SBP_NUMBER_TANH:
        return tanh(x);
    case SBP_NUMBER_FUNCTION_COUNT:
        break;
    }
    return NAN;
}

const sbp_number *sbp_number_apply(sbp_numbers *n, sbp_number_function f, const sbp_number *a) {
    double c;
    if (sbp_number_is_constant(a, &c))
        return sbp_number_constant(n, function_value(f, c));
    return make(n, &(sbp_number){.kind = SBP_NUMBER_FUNCTION, .axis = (int32_t)f, .a = a});
}

static const sbp_number *positive(sbp_numbers *n, const sbp_number *a, const sbp_number *none) {
    double c;
    (void)none;
    if (sbp_number_is_constant(a, &c))
        return sbp_number_constant(n, c > 0);
    if (is_truth(a))
        return a;
    return make(n, &(sbp_number){.kind = SBP_NUMBER_POSITIVE, .a = a});
}

/* A sum with a choice in it, by the cases of the choice. */
static const sbp_number *open_sum(sbp_numbers *n, one_case *f, const sbp_number *a) {
    if (!step(n))
        return a;
    for (int32_t i = 0; a->kind == SBP_NUMBER_LINEAR && i < a->count; i++) {
        const sbp_number *choice = a->terms[i].value;
        if (choice->kind != SBP_NUMBER_CHOICE)
            continue;
        double factor = a->terms[i].factor;
        const sbp_number *rest = sbp_number_add(n, a, -factor, choice);
        return sbp_number_choose(n, choice->a, open_sum(n, f, sbp_number_add(n, rest, factor, choice->b)),
                                 open_sum(n, f, sbp_number_add(n, rest, factor, choice->c)));
    }
    return by_cases(n, f, a, NULL);
}

const sbp_number *sbp_number_positive(sbp_numbers *n, const sbp_number *a) {
    return open_sum(n, positive, a);
}

static const sbp_number *zero(sbp_numbers *n, const sbp_number *a, const sbp_number *none) {
    double c;
    (void)none;
    if (sbp_number_is_constant(a, &c))
        return sbp_number_constant(n, c == 0);
    if (is_truth(a))
        return sbp_number_not(n, a);
    return make(n, &(sbp_number){.kind = SBP_NUMBER_ZERO, .a = a});
}

const sbp_number *sbp_number_zero(sbp_numbers *n, const sbp_number *a) {
    return open_sum(n, zero, a);
}

const sbp_number *sbp_number_less(sbp_numbers *n, const sbp_number *a, const sbp_number *b) {
    return sbp_number_positive(n, sbp_number_add(n, b, -1, a));
}

const sbp_number *sbp_number_table(sbp_numbers *n, const double *table, int64_t count,
                                   const sbp_number *index) {
    double c;
    bool same = count > 0;
    if (index->kind == SBP_NUMBER_CHOICE)
        return sbp_number_choose(n, index->a, sbp_number_table(n, table, count, index->b),
                                 sbp_number_table(n, table, count, index->c));
    for (int64_t i = 1; same && i < count; i++)
        same = table[i] == table[0];
    if (same)
        return sbp_number_constant(n, table[0]);
    if (sbp_number_is_constant(index, &c) && c >= 0 && c < (double)count)
        return sbp_number_constant(n, table[(int64_t)c]);
    return make(n,
                &(sbp_number){.kind = SBP_NUMBER_TABLE, .table = table, .count = (int32_t)count, .a = index});
}

/* ---- replacing ---------------------------------------------------------------------------------------- */

/* a with its parts replaced by `parts` (of a sum: its terms), in normal form again. */
static const sbp_number *rebuild(sbp_numbers *n, const sbp_number *a, const sbp_number *const *parts) {
    const sbp_number *out;
    switch (a->kind) {
    case SBP_NUMBER_LINEAR:
        out = sbp_number_constant(n, a->constant);
        for (int32_t i = 0; i < a->count; i++)
            out = sbp_number_add(n, out, a->terms[i].factor, parts[i]);
        return out;
    case SBP_NUMBER_TABLE:
        return sbp_number_table(n, a->table, a->count, parts[0]);
    case SBP_NUMBER_PRODUCT:
        return sbp_number_multiply(n, parts[0], parts[1]);
    case SBP_NUMBER_QUOTIENT:
        return sbp_number_divide(n, parts[0], parts[1]);
    case SBP_NUMBER_FLOOR:
        return sbp_number_floor(n, parts[0]);
    case SBP_NUMBER_POWER:
        return sbp_number_power(n, parts[0], parts[1]);
    case SBP_NUMBER_FUNCTION:
        return sbp_number_apply(n, (sbp_number_function)a->axis, parts[0]);
    case SBP_NUMBER_POSITIVE:
        return sbp_number_positive(n, parts[0]);
    case SBP_NUMBER_ZERO:
        return sbp_number_zero(n, parts[0]);
    case SBP_NUMBER_CHOICE:
        return sbp_number_choose(n, parts[0], parts[1], parts[2]);
    case SBP_NUMBER_TOKENS:
    case SBP_NUMBER_AXIS:
        break;
    }
    return a;
}

static int32_t parts_of(const sbp_number *a, int32_t i, const sbp_number **out) {
    const sbp_number *parts[] = {a->a, a->b, a->c};
    int32_t count = a->kind == SBP_NUMBER_LINEAR ? a->count : !a->a ? 0 : !a->b ? 1 : !a->c ? 2 : 3;
    if (i < count)
        *out = a->kind == SBP_NUMBER_LINEAR ? a->terms[i].value : parts[i];
    return count;
}

const sbp_number *sbp_number_substitute(sbp_numbers *n, const sbp_number *a, const sbp_number *const *with,
                                        int32_t count) {
    if (a->axes == 0 || !step(n))
        return a;
    if (a->kind == SBP_NUMBER_AXIS)
        return a->axis < count && with[a->axis] ? with[a->axis] : a;
    const sbp_number *part = NULL;
    int32_t parts = parts_of(a, 0, &part);
    const sbp_number **replaced = SBP_NEW_ARRAY(n->arena, const sbp_number *, parts);
    for (int32_t i = 0; i < parts; i++) {
        parts_of(a, i, &part);
        replaced[i] = sbp_number_substitute(n, part, with, count);
    }
    return rebuild(n, a, replaced);
}

/* ---- what sizes decide -------------------------------------------------------------------------------- */

/* Bounds of a for T from 1 to the most and indices below the sizes; a bound that depends on a T without limit
 * is infinite. Only of sums of indices and T whose sizes are sums with T. */
static void bounds(sbp_numbers *n, const sbp_number_tensor *t, const sbp_number *a, double *low,
                   double *high) {
    for (int side = 0; side < 2; side++) {
        const sbp_number *at = a;
        bool known = true;
        for (int32_t i = 0; a->kind == SBP_NUMBER_LINEAR ? i < a->count : i < 1; i++) {
            sbp_number_term own = {1, a}, term = a->kind == SBP_NUMBER_LINEAR ? a->terms[i] : own;
            if (term.value->kind == SBP_NUMBER_TOKENS)
                continue;
            known = known && term.value->kind == SBP_NUMBER_AXIS && term.value->axis < t->rank;
            if (!known)
                break;
            /* an index is 0, or its size less one */
            at = sbp_number_add(n, at, -term.factor, term.value);
            if ((term.factor > 0) == (side == 1)) {
                at = sbp_number_add(n, at, term.factor, t->size[term.value->axis]);
                at = sbp_number_add(n, at, -term.factor, sbp_number_constant(n, 1));
            }
        }
        double slope = 0, constant = constant_of(at);
        for (int32_t i = 0; known && at->kind == SBP_NUMBER_LINEAR && i < at->count; i++) {
            known = at->terms[i].value->kind == SBP_NUMBER_TOKENS;
            slope = at->terms[i].factor;
        }
        if (at->kind == SBP_NUMBER_TOKENS)
            slope = 1;
        else if (at->kind != SBP_NUMBER_LINEAR)
            known = false;
        double *out = side == 0 ? low : high;
        *out = side == 0 ? -INFINITY : INFINITY;
        bool at_1 = side == 0 ? slope >= 0 : slope <= 0;
        if (known && (at_1 || n->most_tokens < INFINITY))
            *out = constant + slope * (at_1 ? 1 : n->most_tokens);
    }
}

/* Whether a condition c + f i > 0 (or == 0) with a whole f = +-1 leaves one value of index i: then that, by
 * its axis. `holds`: the condition, or its contrary. */
static const sbp_number *only_value(sbp_numbers *n, const sbp_number_tensor *t, const sbp_number *condition,
                                    bool holds, int32_t *axis) {
    const sbp_number *a = condition->a;
    if (condition->kind != SBP_NUMBER_POSITIVE && condition->kind != SBP_NUMBER_ZERO)
        return NULL;
    for (*axis = 0; *axis < t->rank; (*axis)++) {
        const sbp_number *i = sbp_number_axis(n, *axis);
        double factor = 0;
        sbp_number_term own;
        const sbp_number_term *terms;
        int32_t count = terms_of(a, &terms, &own);
        for (int32_t k = 0; k < count; k++)
            factor += terms[k].value == i ? terms[k].factor : 0;
        if (factor != 1 && factor != -1)
            continue;
        const sbp_number *rest = sbp_number_add(n, a, -factor, i); /* factor i + rest */
        if (condition->kind == SBP_NUMBER_ZERO && holds)
            return rest->axes >> *axis & 1 ? NULL : scaled(n, rest, -factor);
        double c;
        if (condition->kind != SBP_NUMBER_POSITIVE || !sbp_number_is_constant(rest, &c))
            continue;
        if (factor < 0 && holds && c == 1) /* 1 - i > 0 */
            return sbp_number_constant(n, 0);
        if (factor > 0 && !holds && c == 0) /* not i > 0 */
            return sbp_number_constant(n, 0);
    }
    return NULL;
}

/* a where a condition is known to hold, or not to. */
static const sbp_number *assume(sbp_numbers *n, const sbp_number *a, const sbp_number *condition,
                                bool holds) {
    if (a == condition)
        return sbp_number_constant(n, holds);
    if (a->id < condition->id || !step(n)) /* parts are older than what they are in */
        return a;
    const sbp_number *part = NULL;
    int32_t parts = parts_of(a, 0, &part);
    const sbp_number **replaced = SBP_NEW_ARRAY(n->arena, const sbp_number *, parts);
    for (int32_t i = 0; i < parts; i++) {
        parts_of(a, i, &part);
        replaced[i] = assume(n, part, condition, holds);
    }
    return parts > 0 ? rebuild(n, a, replaced) : a;
}

static const sbp_number *refine_choice(sbp_numbers *n, const sbp_number_tensor *t, const sbp_number *a) {
    const sbp_number *condition = sbp_number_refine(n, t, a->a), *branches[2] = {a->b, a->c};
    double c;
    if (sbp_number_is_constant(condition, &c))
        return sbp_number_refine(n, t, c != 0 ? a->b : a->c);
    for (int k = 0; k < 2; k++) {
        const sbp_number *with[SBP_NUMBERS_RANK] = {NULL};
        int32_t axis;
        const sbp_number *only = only_value(n, t, condition, k == 0, &axis);
        if (only) {
            with[axis] = only;
            branches[k] = sbp_number_substitute(n, branches[k], with, SBP_NUMBERS_RANK);
        }
        branches[k] = sbp_number_refine(n, t, assume(n, branches[k], condition, k == 0));
    }
    return sbp_number_choose(n, condition, branches[0], branches[1]);
}

const sbp_number *sbp_number_refine(sbp_numbers *n, const sbp_number_tensor *t, const sbp_number *a) {
    if (!step(n))
        return a;
    if (a->kind == SBP_NUMBER_CHOICE)
        return refine_choice(n, t, a);
    const sbp_number *part = NULL;
    int32_t parts = parts_of(a, 0, &part);
    const sbp_number **refined = SBP_NEW_ARRAY(n->arena, const sbp_number *, parts);
    for (int32_t i = 0; i < parts; i++) {
        parts_of(a, i, &part);
        refined[i] = sbp_number_refine(n, t, part);
    }
    const sbp_number *out = parts > 0 ? rebuild(n, a, refined) : a;
    if (out->kind == SBP_NUMBER_POSITIVE || out->kind == SBP_NUMBER_ZERO) {
        double low = -INFINITY, high = INFINITY;
        bounds(n, t, out->a, &low, &high);
        bool sign = out->kind == SBP_NUMBER_POSITIVE;
        if (sign ? low > 0 : low > 0 || high < 0)
            return sbp_number_constant(n, sign);
        if (sign && high <= 0)
            return sbp_number_constant(n, 0);
    }
    return out;
}

/* ---- values and text ---------------------------------------------------------------------------------- */

double sbp_number_value(const sbp_number *a, const double *indices, double tokens) {
    double x, y;
    switch (a->kind) {
    case SBP_NUMBER_LINEAR:
        x = a->constant;
        for (int32_t i = 0; i < a->count; i++)
            x += a->terms[i].factor * sbp_number_value(a->terms[i].value, indices, tokens);
        return x;
    case SBP_NUMBER_TOKENS:
        return tokens;
    case SBP_NUMBER_AXIS:
        return indices[a->axis];
    case SBP_NUMBER_TABLE:
        x = sbp_number_value(a->a, indices, tokens);
        return x >= 0 && x < a->count ? a->table[(int64_t)x] : NAN;
    case SBP_NUMBER_PRODUCT:
        return sbp_number_value(a->a, indices, tokens) * sbp_number_value(a->b, indices, tokens);
    case SBP_NUMBER_QUOTIENT:
        x = sbp_number_value(a->a, indices, tokens);
        y = sbp_number_value(a->b, indices, tokens);
        return x / y;
    case SBP_NUMBER_FLOOR:
        return floor(sbp_number_value(a->a, indices, tokens));
    case SBP_NUMBER_POWER:
        return pow(sbp_number_value(a->a, indices, tokens), sbp_number_value(a->b, indices, tokens));
    case SBP_NUMBER_FUNCTION:
        return function_value((sbp_number_function)a->axis, sbp_number_value(a->a, indices, tokens));
    case SBP_NUMBER_POSITIVE:
        return sbp_number_value(a->a, indices, tokens) > 0;
    case SBP_NUMBER_ZERO:
        return sbp_number_value(a->a, indices, tokens) == 0;
    case SBP_NUMBER_CHOICE:
        return sbp_number_value(sbp_number_value(a->a, indices, tokens) != 0 ? a->b : a->c, indices, tokens);
    }
    return NAN;
}

static void print_sum(sbp_text *out, const sbp_number *a) {
    if (a->count == 0 || a->constant != 0)
        sbp_text_add(out, "%g", a->constant);
    for (int32_t i = 0; i < a->count; i++) {
        double factor = a->terms[i].factor;
        bool first = i == 0 && a->constant == 0;
        sbp_text_add(out, "%s", factor < 0 ? first ? "-" : " - " : first ? "" : " + ");
        if (fabs(factor) != 1)
            sbp_text_add(out, "%g ", fabs(factor));
        sbp_number_print(out, a->terms[i].value);
    }
}

void sbp_number_print(sbp_text *out, const sbp_number *a) {
    static const char
        *const before[] = {[SBP_NUMBER_TABLE] = "table[", [SBP_NUMBER_FLOOR] = "floor("},
               *const between[] =
                   {[SBP_NUMBER_PRODUCT] = " * ", [SBP_NUMBER_QUOTIENT] = " / ", [SBP_NUMBER_POWER] = " ^ "},
               *const functions[SBP_NUMBER_FUNCTION_COUNT] = {"cos", "sin", "exp", "log", "tanh"};
    switch (a->kind) {
    case SBP_NUMBER_LINEAR:
        print_sum(out, a);
        return;
    case SBP_NUMBER_TOKENS:
        sbp_text_add(out, "T");
        return;
    case SBP_NUMBER_AXIS:
        sbp_text_add(out, "i%d", a->axis);
        return;
    case SBP_NUMBER_TABLE:
    case SBP_NUMBER_FLOOR:
        sbp_text_add(out, "%s", before[a->kind]);
        sbp_number_print(out, a->a);
        sbp_text_add(out, "%s", a->kind == SBP_NUMBER_TABLE ? "]" : ")");
        return;
    case SBP_NUMBER_FUNCTION:
        sbp_text_add(out, "%s(", functions[a->axis]);
        sbp_number_print(out, a->a);
        sbp_text_add(out, ")");
        return;
    case SBP_NUMBER_PRODUCT:
    case SBP_NUMBER_QUOTIENT:
    case SBP_NUMBER_POWER:
        sbp_text_add(out, "(");
        sbp_number_print(out, a->a);
        sbp_text_add(out, ")%s(", between[a->kind]);
        sbp_number_print(out, a->b);
        sbp_text_add(out, ")");
        return;
    case SBP_NUMBER_POSITIVE:
    case SBP_NUMBER_ZERO:
        sbp_text_add(out, "(");
        sbp_number_print(out, a->a);
        sbp_text_add(out, a->kind == SBP_NUMBER_ZERO ? " = 0)" : " > 0)");
        return;
    case SBP_NUMBER_CHOICE:
        sbp_text_add(out, "(");
        sbp_number_print(out, a->a);
        sbp_text_add(out, " ? ");
        sbp_number_print(out, a->b);
        sbp_text_add(out, " : ");
        sbp_number_print(out, a->c);
        sbp_text_add(out, ")");
        return;
    }
}
