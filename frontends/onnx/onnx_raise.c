/* onnx_raise.c: finds what exporters spell out in small operators (onnx_patterns.def) and puts one node in
 * place of the last one of each. Constants and shapes that patterns look at are those of a first import into
 * a module of its own, which is thrown away; so is what it complains about. What a new node replaces stays in
 * the list; nothing reads it any more, unless something else did.
 *
 * A pattern is matched by goals (expression, value), solved with all their choices, those that are single
 * values last. The steps per node are bounded. */
#include "frontends/onnx/onnx.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_ARGS = 4, MOST_NAMES = 8, MOST_FACTORS = 8, MOST_STEPS = 4000 };
#define SAME_NUMBER 1.2e-7 /* relative: rounded to float32 */

/* ---- expressions ----------------------------------------------------------------------------------------
 */

typedef enum kind { VALUE, NAMED_NUMBER, LITERAL, NODE, PRODUCT, KNOWN, ALTERNATIVES } kind;

typedef struct expression {
    kind kind;
    const char *name; /* of the value, number, operator or known function */
    const char *word; /* that a string attribute of the node must be; NULL */
    double literal;
    const struct expression *args[MOST_ARGS];
    int32_t count;
    const struct expression *next; /* of ALTERNATIVES, whose first is args[0] */
} expression;

typedef struct raise {
    const char *op, *inputs, *attributes;
    const expression *root;
} raise;

/* Arguments of the rule being read, by parameter. */
typedef struct arguments {
    char names[MOST_ARGS][16];
    const expression *args[MOST_ARGS];
    int32_t count;
} arguments;

static const struct {
    const char *head, *body;
} rules[] = {
#define RULE(head, body) {head, body},
#define RAISE(op, inputs, attributes, body)
#include "frontends/onnx/onnx_patterns.def"
#undef RULE
#undef RAISE
};

static const struct {
    const char *op, *inputs, *attributes, *body;
} raises[] = {
#define RULE(head, body)
#define RAISE(op, inputs, attributes, body) {op, inputs, attributes, body},
#include "frontends/onnx/onnx_patterns.def"
#undef RULE
#undef RAISE
};

static const expression *read_expression(sbp_arena *arena, const char **at, const arguments *scope);

static void read_word(const char **at, char *out, size_t size) {
    size_t n = strspn(*at, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_");
    snprintf(out, size, "%.*s", (int)n, *at);
    *at += n;
}

static void skip_blanks(const char **at) {
    *at += strspn(*at, " ,");
}

/* The alternatives of a rule, its parameters replaced by the arguments. */
static const expression *read_rule(sbp_arena *arena, const char *name, const expression *call) {
    expression *out = NULL;
    const expression **last = NULL;
    for (int32_t i = 0; i < SBP_COUNT(rules); i++) {
        const char *at = rules[i].head, *body = rules[i].body;
        char word[32];
        arguments scope = {.count = 0};
        read_word(&at, word, sizeof word);
        if (strcmp(word, name) != 0)
            continue;
        for (at++; *at != ')' && scope.count < MOST_ARGS; skip_blanks(&at)) {
            scope.args[scope.count] = call->args[scope.count];
            read_word(&at, scope.names[scope.count++], sizeof scope.names[0]);
        }
        expression *one = SBP_NEW(arena, expression);
        *one =
            (expression){.kind = ALTERNATIVES, .name = name, .args = {read_expression(arena, &body, &scope)}};
        if (last)
            *last = one;
        else
            out = one;
        last = &one->next;
    }
    return out;
}

static const expression *read_expression(sbp_arena *arena, const char **at, const arguments *scope) {
    static const char *const known[] = {"mean",  "concat",  "first",   "second",   "even", "odd",
                                        "pairs", "maximum", "softmax", "but_last", "put"};
    expression *e = SBP_NEW(arena, expression);
    char word[32], attribute[16] = "";
    skip_blanks(at);
    if (**at == '-' || (**at >= '0' && **at <= '9')) {
        char *end;
        *e = (expression){.kind = LITERAL, .literal = strtod(*at, &end)};
        *at = end;
        return e;
    }
    e->kind = **at == '#' ? NAMED_NUMBER : VALUE;
    *at += **at == '#';
    read_word(at, word, sizeof word);
    e->name = sbp_arena_strdup(arena, word);
    if (**at == '{') {
        (*at)++;
        read_word(at, attribute, sizeof attribute);
        e->word = sbp_arena_strdup(arena, attribute);
        (*at)++;
    }
    for (int32_t i = 0; scope && e->kind == VALUE && **at != '(' && i < scope->count; i++)
        if (strcmp(scope->names[i], word) == 0)
            return scope->args[i];
    if (**at != '(')
        return e;
    for ((*at)++, skip_blanks(at); **at != ')' && e->count < MOST_ARGS; skip_blanks(at))
        e->args[e->count++] = read_expression(arena, at, scope);
    (*at)++;
    e->kind = strcmp(word, "Product") == 0 ? PRODUCT : word[0] >= 'A' && word[0] <= 'Z' ? NODE : ALTERNATIVES;
    for (int32_t i = 0; i < SBP_COUNT(known); i++)
        if (strcmp(known[i], word) == 0)
            e->kind = KNOWN;
    return e->kind == ALTERNATIVES ? read_rule(arena, e->name, e) : e;
}

/* ---- nodes and values -----------------------------------------------------------------------------------
 */

typedef struct goals {
    const expression *e;
    const char *value;
    const struct goals *rest;
} goals;

typedef struct matcher {
    sbp_onnx *o;                /* of the first import */
    const sbp_onnx_node *nodes; /* of the file */
    sbp_map makers;             /* value -> node * 16 + output */
    struct {
        const char *name, *value; /* value NULL: a number */
        double number;
    } bound[MOST_NAMES];
    int32_t bound_count, steps;
} matcher;

static const sbp_onnx_value *value_of(const matcher *m, const char *name) {
    int32_t index = sbp_map_get(&m->o->names, name);
    return index >= 0 ? &m->o->values[index] : NULL;
}

static const sbp_onnx_node *maker_of(const matcher *m, const char *name, int32_t *output) {
    int32_t place = sbp_map_get(&m->makers, name);
    *output = place >= 0 ? place % 16 : 0;
    return place >= 0 ? &m->nodes[place / 16] : NULL;
}

static bool is_op(const sbp_onnx_node *node, const char *op) {
    return node && strcmp(node->op, op) == 0 && node->domain[0] == 0;
}

/* The value behind casts between float types and copies. */
static const char *behind_casts(const matcher *m, const char *name) {
    for (;;) {
        int32_t output;
        sbp_dtype dtype;
        const sbp_onnx_node *node = maker_of(m, name, &output);
        bool cast = is_op(node, "Cast"), copy = is_op(node, "Identity");
        if ((!cast && !copy) || node->input_count != 1)
            return name;
        const sbp_onnx_value *from = value_of(m, node->inputs[0]), *to = value_of(m, name);
        if (cast && (!from || !to || !sbp_onnx_type_float(from->type, &dtype) ||
                     !sbp_onnx_type_float(to->type, &dtype)))
            return name;
        name = node->inputs[0];
    }
}

static bool constant_of(const matcher *m, const char *name, double *out) {
    const sbp_onnx_value *v = value_of(m, name);
    if (!v || (v->kind != SBP_ONNX_CONSTANT && v->kind != SBP_ONNX_NUMBERS))
        return false;
    if (v->kind == SBP_ONNX_NUMBERS)
        return sbp_number_is_constant(v->numbers.element, out);
    int64_t elems = 1;
    for (int32_t d = 0; d < v->rank; d++)
        elems *= v->dim[d];
    *out = elems == 1 ? v->data[0] : 0;
    return elems == 1;
}

static bool same_number(double a, double b) {
    return fabs(a - b) <= SAME_NUMBER * fmax(fabs(a), fabs(b));
}

/* Whether input `index` of the node is a list of one number: which. */
static bool one_integer(const matcher *m, const sbp_onnx_node *node, int32_t index, int64_t *out) {
    double number;
    if (index >= node->input_count || !constant_of(m, node->inputs[index], &number))
        return false;
    *out = number >= 0x1p62 ? INT64_MAX : number <= -0x1p62 ? INT64_MIN : (int64_t)number;
    return true;
}

static int64_t attribute(const sbp_onnx_node *node, const char *name, int64_t fallback) {
    for (int32_t i = 0; i < node->attribute_count; i++)
        if (strcmp(node->attributes[i].name, name) == 0)
            return node->attributes[i].i;
    return fallback;
}

static bool has_word(const sbp_onnx_node *node, const char *word) {
    for (int32_t i = 0; i < node->attribute_count; i++)
        if (node->attributes[i].kind == SBP_ONNX_ATTR_STRING)
            return strcmp(node->attributes[i].s, word) == 0;
    return strcmp(word, "none") == 0; /* the default of Gelu */
}

/* ---- known functions ------------------------------------------------------------------------------------
 */

typedef enum part { NO_PART, FIRST, SECOND, EVEN, ODD } part;

/* The value before its axes were cut differently, without moving elements. */
static const char *before_reshape(const matcher *m, const char *name) {
    int32_t output;
    const sbp_onnx_node *node = maker_of(m, name, &output);
    bool shapes_only = is_op(node, "Reshape") || is_op(node, "Unsqueeze") || is_op(node, "Squeeze");
    return shapes_only && value_of(m, node->inputs[0]) ? node->inputs[0] : NULL;
}

/* Whether `whole`, of n elements along its last axis, comes from *source by splitting that axis in two parts,
 * the pairs last or first: which part number `index` of them is. */
static part part_of_two(const matcher *m, const char *whole, int64_t axis, int64_t index,
                        const char **source) {
    const sbp_onnx_value *v = value_of(m, whole);
    const char *before = before_reshape(m, whole);
    const sbp_onnx_value *x = before ? value_of(m, before) : NULL;
    if (!x || v->rank != x->rank + 1 || index < 0 || index > 1)
        return NO_PART;
    for (int32_t d = 0; d < x->rank - 1; d++)
        if (x->dim[d] != v->dim[d])
            return NO_PART;
    *source = before;
    if (axis == v->rank - 1 && v->dim[axis] == 2)
        return index == 0 ? EVEN : ODD;
    if (axis == v->rank - 2 && v->dim[axis] == 2)
        return index == 0 ? FIRST : SECOND;
    return NO_PART;
}

static part find_part(const matcher *m, const char *name, const char **source) {
    int32_t output;
    const sbp_onnx_node *node = maker_of(m, name, &output);
    const sbp_onnx_value *v = value_of(m, name);
    int64_t axis, start, end, step = 1, index;
    if (!node || !v || v->rank < 1 || node->input_count < 1)
        return NO_PART;
    if (is_op(node, "Squeeze") || is_op(node, "Reshape")) { /* of one of two, kept as an axis of 1 */
        const char *kept = node->inputs[0];
        const sbp_onnx_node *cut = maker_of(m, kept, &output);
        const sbp_onnx_value *k = value_of(m, kept),
                             *w = cut && cut->input_count > 0 ? value_of(m, cut->inputs[0]) : NULL;
        if (!k || !w || k->rank != v->rank + 1)
            return NO_PART;
        if (is_op(cut, "Split")) {
            axis = attribute(cut, "axis", 0);
            return part_of_two(m, cut->inputs[0], axis < 0 ? axis + w->rank : axis, output, source);
        }
        if (is_op(cut, "Slice") && one_integer(m, cut, 1, &start) && one_integer(m, cut, 2, &end) &&
            one_integer(m, cut, 3, &axis) &&
            (cut->input_count < 5 || (one_integer(m, cut, 4, &step) && step == 1))) {
            axis = axis < 0 ? axis + w->rank : axis;
            return axis < 0 || axis >= w->rank || k->dim[axis] != 1
                       ? NO_PART
                       : part_of_two(m, cut->inputs[0], axis, start < 0 ? start + w->dim[axis] : start,
                                     source);
        }
        return NO_PART;
    }
    const sbp_onnx_value *x = value_of(m, node->inputs[0]);
    if (!x || x->rank < 1)
        return NO_PART;
    if (is_op(node, "Gather") && one_integer(m, node, 1, &index)) {
        axis = attribute(node, "axis", 0);
        return part_of_two(m, node->inputs[0], axis < 0 ? axis + x->rank : axis,
                           index < 0 ? index + 2 : index, source);
    }
    int64_t n = x->dim[x->rank - 1];
    *source = node->inputs[0];
    if (x->rank != v->rank || n < 2 || n % 2 != 0 || v->dim[v->rank - 1] != n / 2)
        return NO_PART;
    if (is_op(node, "Split")) {
        axis = attribute(node, "axis", 0);
        bool last = axis == -1 || axis == x->rank - 1;
        return last && node->output_count == 2 ? (output == 0 ? FIRST : SECOND) : NO_PART;
    }
    if (!is_op(node, "Slice") || !one_integer(m, node, 1, &start) || !one_integer(m, node, 3, &axis) ||
        (axis != -1 && axis != x->rank - 1) || (node->input_count > 4 && !one_integer(m, node, 4, &step)))
        return NO_PART;
    start = start < 0 ? start + n : start;
    if (step == 1)
        return start == 0 ? FIRST : start == n / 2 ? SECOND : NO_PART;
    return step == 2 && start == 0 ? EVEN : step == 2 && start == 1 ? ODD : NO_PART;
}

/* The operands of a node that joins two along the last axis. */
static bool find_concat(const matcher *m, const char *name, const char *out[2]) {
    int32_t output;
    const sbp_onnx_node *node = maker_of(m, name, &output);
    const sbp_onnx_value *v = value_of(m, name);
    if (!is_op(node, "Concat") || node->input_count != 2)
        return false;
    int64_t axis = attribute(node, "axis", 0);
    const sbp_onnx_value *a = value_of(m, node->inputs[0]);
    int32_t rank = v ? v->rank : a ? a->rank : 0;
    for (int32_t i = 0; i < 2; i++)
        out[i] = node->inputs[i];
    return rank > 0 && (axis == -1 || axis == rank - 1);
}

/* The operands of what puts elements of two in turn: both as [.., n, 1], joined and seen as [.., 2 n]. */
static bool find_pairs(const matcher *m, const char *name, const char *out[2]) {
    const sbp_onnx_value *v = value_of(m, name);
    const char *joined = before_reshape(m, name), *parts[2];
    const sbp_onnx_value *j = joined ? value_of(m, joined) : NULL;
    if (!v || !j || j->rank != v->rank + 1 || j->dim[j->rank - 1] != 2 || !find_concat(m, joined, parts))
        return false;
    for (int32_t i = 0; i < 2; i++) {
        const sbp_onnx_value *p = value_of(m, parts[i]), *x;
        out[i] = before_reshape(m, parts[i]);
        x = out[i] ? value_of(m, out[i]) : NULL;
        if (!p || !x || p->rank != x->rank + 1 || p->dim[p->rank - 1] != 1 || x->rank != v->rank)
            return false;
        for (int32_t d = 0; d < x->rank; d++)
            if (x->dim[d] != p->dim[d])
                return false;
    }
    return true;
}

/* The operand of a mean, or largest, over the last axis. */
static const char *find_reduced(const matcher *m, const char *op, const char *name) {
    int32_t output;
    const sbp_onnx_node *node = maker_of(m, name, &output);
    int64_t axis;
    if (!is_op(node, op) || attribute(node, "keepdims", 1) != 1 || !one_integer(m, node, 1, &axis))
        return NULL;
    const sbp_onnx_value *x = value_of(m, node->inputs[0]);
    return axis == -1 || (x && axis == x->rank - 1) ? node->inputs[0] : NULL;
}

/* The operand of a softmax over the last axis, or of a slice that leaves its last element out: along `axis`,
 * where that is known. */
static const char *find_softmax(const matcher *m, const char *name) {
    int32_t output;
    const sbp_onnx_node *node = maker_of(m, name, &output);
    return is_op(node, "Softmax") && attribute(node, "axis", -1) == -1 ? node->inputs[0] : NULL;
}

/* The scores [1, heads, T, ..] of which a Slice leaves out the last column; NULL: it is no such Slice. */
static const char *find_but_last(const matcher *m, const char *name) {
    int32_t output;
    const sbp_onnx_node *node = maker_of(m, name, &output);
    int64_t start, end, axis, step = 1;
    if (!is_op(node, "Slice") || !one_integer(m, node, 1, &start) || !one_integer(m, node, 2, &end) ||
        !one_integer(m, node, 3, &axis) || (node->input_count > 4 && !one_integer(m, node, 4, &step)))
        return NULL;
    return start == 0 && end == -1 && step == 1 && (axis == -1 || axis == 3) ? node->inputs[0] : NULL;
}

/* What a Transpose that exchanges axis 0 and another has for an operand; *axis: the other one. */
static const char *find_exchanged(const matcher *m, const char *name, int64_t *axis) {
    int32_t output;
    const sbp_onnx_node *node = maker_of(m, name, &output);
    const sbp_onnx_attribute *perm = NULL;
    if (!is_op(node, "Transpose"))
        return NULL;
    for (int32_t i = 0; i < node->attribute_count; i++)
        if (strcmp(node->attributes[i].name, "perm") == 0 && node->attributes[i].kind == SBP_ONNX_ATTR_INTS)
            perm = &node->attributes[i];
    if (!perm || perm->count < 2 || perm->ints[0] < 1 || perm->ints[0] >= perm->count)
        return NULL;
    *axis = perm->ints[0];
    for (int64_t d = 0; d < perm->count; d++)
        if (perm->ints[d] != (d == 0 ? *axis : d == *axis ? 0 : d))
            return NULL;
    return node->inputs[0];
}

/* x, y and the list of a ScatterND along one axis, which is brought to the front and back. */
static bool find_put(const matcher *m, const char *name, const char *out[3]) {
    int32_t output;
    int64_t axis = 0, of_x = 0, of_y = 0;
    const char *result = find_exchanged(m, name, &axis);
    const sbp_onnx_node *node = result ? maker_of(m, result, &output) : NULL;
    if (!is_op(node, "ScatterND") || node->input_count != 3 || !has_word(node, "none"))
        return false;
    out[0] = find_exchanged(m, node->inputs[0], &of_x);
    out[1] = find_exchanged(m, node->inputs[2], &of_y);
    out[2] = node->inputs[1];
    const sbp_onnx_value *y = out[1] ? value_of(m, out[1]) : NULL;
    return out[0] && out[1] && of_x == axis && of_y == axis && y && axis == y->rank - 1;
}

/* ---- goals ----------------------------------------------------------------------------------------------
 */

static bool solve(matcher *m, const goals *todo, const goals *values);

/* The goal comes before the others; values after all that are more than a name. */
static bool with_goal(matcher *m, const expression *e, const char *value, const goals *todo,
                      const goals *values) {
    const goals goal = {e, value, e->kind == VALUE ? values : todo};
    return e->kind == VALUE ? solve(m, todo, &goal) : solve(m, &goal, values);
}

static bool with_goals(matcher *m, const expression *const *e, const char *const *of, int32_t count,
                       const goals *todo, const goals *values) {
    goals made[MOST_ARGS];
    for (int32_t i = 0; i < count; i++) {
        const goals **list = e[i]->kind == VALUE ? &values : &todo;
        made[i] = (goals){e[i], of[i], *list};
        *list = &made[i];
    }
    return solve(m, todo, values);
}

static bool bind(matcher *m, const char *name, const char *value, double number, const goals *todo,
                 const goals *values) {
    for (int32_t i = 0; i < m->bound_count; i++)
        if (strcmp(m->bound[i].name, name) == 0) {
            bool same = value ? m->bound[i].value && strcmp(m->bound[i].value, value) == 0
                              : !m->bound[i].value && same_number(m->bound[i].number, number);
            return same && solve(m, todo, values);
        }
    if (m->bound_count == MOST_NAMES)
        return false;
    m->bound[m->bound_count].name = name;
    m->bound[m->bound_count].value = value;
    m->bound[m->bound_count++].number = number;
    if (solve(m, todo, values))
        return true;
    m->bound_count--;
    return false;
}

static bool solve_node(matcher *m, const expression *e, const char *value, const goals *todo,
                       const goals *values) {
    int32_t output;
    const sbp_onnx_node *node = maker_of(m, value, &output);
    if (!is_op(node, e->name) || node->input_count != e->count || (e->word && !has_word(node, e->word)))
        return false;
    if (with_goals(m, e->args, node->inputs, e->count, todo, values))
        return true;
    bool either = e->count == 2 && (strcmp(e->name, "Add") == 0 || strcmp(e->name, "Mul") == 0);
    const char *swapped[2] = {node->inputs[either], node->inputs[0]};
    return either && with_goals(m, e->args, swapped, 2, todo, values);
}

/* Whether the factors are those of e, in some order. */
static bool assign_factors(matcher *m, const expression *e, int32_t next, const char **factors, int32_t count,
                           const goals *todo, const goals *values) {
    if (next == e->count)
        return count == 0 && solve(m, todo, values);
    if (e->args[next]->kind == LITERAL)
        return assign_factors(m, e, next + 1, factors, count, todo, values);
    for (int32_t i = 0; i < count; i++) {
        const char *left[MOST_FACTORS];
        goals goal = {e->args[next], factors[i], NULL};
        const goals **list = e->args[next]->kind == VALUE ? &values : &todo, *before = *list;
        int32_t rest = 0;
        for (int32_t k = 0; k < count; k++)
            if (k != i)
                left[rest++] = factors[k];
        goal.rest = before;
        *list = &goal;
        bool done = assign_factors(m, e, next + 1, left, rest, todo, values);
        *list = before;
        if (done)
            return true;
    }
    return false;
}

/* Factors so far, and a number; those from `opened` on may still be products. */
static bool solve_product(matcher *m, const expression *e, const char *const *factors, int32_t count,
                          int32_t opened, double number, const goals *todo, const goals *values) {
    double wanted = 1, constant;
    const char *now[MOST_FACTORS];
    int32_t open = 0, n = 0;
    if (++m->steps > MOST_STEPS)
        return false;
    for (int32_t i = 0; i < e->count; i++) {
        wanted *= e->args[i]->kind == LITERAL ? e->args[i]->literal : 1;
        open += e->args[i]->kind != LITERAL;
    }
    for (int32_t i = 0; i < count; i++) {
        const char *f = behind_casts(m, factors[i]);
        if (constant_of(m, f, &constant))
            number *= constant;
        else
            now[n++] = f;
        opened -= i < opened && constant_of(m, f, &constant);
    }
    if (n == open && fabs(number - wanted) <= 2.5e-7 * fabs(wanted) &&
        assign_factors(m, e, 0, now, n, todo, values))
        return true;
    for (int32_t i = opened > 0 ? opened : 0; i < n; i++) {
        int32_t output;
        const sbp_onnx_node *node = maker_of(m, now[i], &output);
        const char *more[MOST_FACTORS];
        double factor = number;
        int32_t total = 0;
        bool opens = node && node->input_count == 2 && n < MOST_FACTORS - 2;
        for (int32_t k = 0; k < n; k++)
            if (k != i)
                more[total++] = now[k];
        if (opens && is_op(node, "Mul")) {
            more[total++] = node->inputs[0];
            more[total++] = node->inputs[1];
        } else if (opens && is_op(node, "Div") && constant_of(m, node->inputs[1], &constant) &&
                   constant != 0) {
            more[total++] = node->inputs[0];
            factor /= constant;
        } else if (opens && is_op(node, "Pow") && constant_of(m, node->inputs[1], &constant) &&
                   (constant == 2 || constant == 3)) {
            for (int32_t k = 0; k < (int32_t)constant; k++)
                more[total++] = node->inputs[0];
        } else {
            continue;
        }
        if (solve_product(m, e, more, total, i, factor, todo, values))
            return true;
    }
    return false;
}

static bool solve_known(matcher *m, const expression *e, const char *value, const goals *todo,
                        const goals *values) {
    static const char *const parts[] = {"", "first", "second", "even", "odd"};
    const char *of[3];
    if (strcmp(e->name, "put") == 0)
        return find_put(m, value, of) && with_goals(m, e->args, of, 3, todo, values);
    of[0] = strcmp(e->name, "mean") == 0       ? find_reduced(m, "ReduceMean", value)
            : strcmp(e->name, "maximum") == 0  ? find_reduced(m, "ReduceMax", value)
            : strcmp(e->name, "softmax") == 0  ? find_softmax(m, value)
            : strcmp(e->name, "but_last") == 0 ? find_but_last(m, value)
                                               : NULL;
    if (of[0])
        return with_goal(m, e->args[0], of[0], todo, values);
    if (strcmp(e->name, "concat") == 0 || strcmp(e->name, "pairs") == 0) {
        bool found = e->name[0] == 'c' ? find_concat(m, value, of) : find_pairs(m, value, of);
        return found && with_goals(m, e->args, of, 2, todo, values);
    }
    part p = find_part(m, value, &of[0]);
    return p != NO_PART && strcmp(parts[p], e->name) == 0 && with_goal(m, e->args[0], of[0], todo, values);
}

static bool solve(matcher *m, const goals *todo, const goals *values) {
    const goals *goal = todo ? todo : values;
    double number;
    if (!goal)
        return true;
    if (++m->steps > MOST_STEPS)
        return false;
    todo = todo ? todo->rest : NULL;
    values = goal == values ? values->rest : values;
    const expression *e = goal->e;
    const char *value = behind_casts(m, goal->value);
    switch (e->kind) {
    case VALUE:
        return bind(m, e->name, value, 0, todo, values);
    case NAMED_NUMBER:
        return constant_of(m, value, &number) && bind(m, e->name, NULL, number, todo, values);
    case LITERAL:
        return constant_of(m, value, &number) && same_number(number, e->literal) && solve(m, todo, values);
    case NODE:
        return solve_node(m, e, value, todo, values);
    case PRODUCT:
        return solve_product(m, e, &value, 1, 0, 1, todo, values);
    case KNOWN:
        return solve_known(m, e, value, todo, values);
    case ALTERNATIVES:
        for (; e; e = e->next) {
            if (with_goal(m, e->args[0], value, todo, values))
                return true;
        }
        return false;
    }
    return false;
}

/* ---- new nodes ------------------------------------------------------------------------------------------
 */

static const char *bound_value(const matcher *m, const char *name, double *number) {
    for (int32_t i = 0; i < m->bound_count; i++)
        if (strcmp(m->bound[i].name, name) == 0) {
            *number = m->bound[i].number;
            return m->bound[i].value;
        }
    return NULL;
}

/* The node that takes the place of `root`. */
static sbp_onnx_node make_node(matcher *m, const raise *r, const sbp_onnx_node *root) {
    sbp_arena *arena = m->o->arena;
    sbp_onnx_node node = *root;
    char word[32], value[32];
    double number;
    node.op = r->op;
    node.domain = "";
    node.raised = true;
    node.inputs = SBP_NEW_ARRAY(arena, const char *, MOST_ARGS);
    node.input_count = node.attribute_count = 0;
    for (const char *at = r->inputs; *at; skip_blanks(&at)) {
        read_word(&at, word, sizeof word);
        const char *name = bound_value(m, word, &number);
        node.inputs[node.input_count++] = name ? name : "";
    }
    node.attributes = SBP_NEW_ARRAY(arena, sbp_onnx_attribute, MOST_ARGS);
    for (const char *at = r->attributes; *at; skip_blanks(&at)) {
        read_word(&at, word, sizeof word);
        at++; /* = */
        read_word(&at, value, sizeof value);
        bool bound = false;
        for (int32_t i = 0; i < m->bound_count; i++)
            bound |= strcmp(m->bound[i].name, value) == 0 && !m->bound[i].value;
        sbp_onnx_attribute *a = &node.attributes[node.attribute_count++];
        *a = (sbp_onnx_attribute){.name = strcmp(word, "epsilon") == 0 ? "epsilon"
                                                                       : sbp_arena_strdup(arena, word),
                                  .kind = bound ? SBP_ONNX_ATTR_FLOAT : SBP_ONNX_ATTR_STRING};
        if (bound)
            (void)bound_value(m, value, &a->f);
        else
            a->s = sbp_arena_strdup(arena, value);
    }
    return node;
}

/* Whether the value has the shape that it had before, where that is known. */
static bool same_shape(const matcher *m, const char *name, const sbp_onnx_value *before) {
    const sbp_onnx_value *now = value_of(m, name);
    return before->rank < 0 || (now && now->rank == before->rank &&
                                memcmp(now->dim, before->dim, (size_t)now->rank * sizeof *now->dim) == 0);
}

/* Imports the node, then what it is the end of in its place. Only failures of the machine are failures here.
 */
static sbp_status import_one(matcher *m, const raise *all, sbp_onnx_node *node) {
    sbp_onnx *o = m->o;
    sbp_onnx_node original = *node;
    sbp_onnx_value plain = {.rank = -1};
    o->node = node;
    sbp_status status = sbp_onnx_import_node(o);
    if (status == SBP_MACHINE)
        return status;
    o->builder.status = SBP_OK;
    if (status == SBP_OK && value_of(m, node->outputs[0]))
        plain = *value_of(m, node->outputs[0]);
    int32_t index = sbp_map_get(&o->names, node->outputs[0]);
    for (int32_t k = 0; k < SBP_COUNT(raises) && node->output_count == 1; k++) {
        const expression *e = all[k].root;
        const goals root = {e, node->outputs[0], NULL};
        bool may = e->kind == NODE ? is_op(node, e->name) : e->kind != PRODUCT || is_op(node, "Mul");
        m->bound_count = m->steps = 0;
        if (!may || !solve(m, &root, NULL))
            continue;
        *node = make_node(m, &all[k], &original);
        status = sbp_onnx_import_node(o);
        if (status == SBP_MACHINE || (status == SBP_OK && same_shape(m, node->outputs[0], &plain)))
            return status;
        o->builder.status = SBP_OK;
        *node = original;
        if (index >= 0)
            sbp_map_set(&o->names, node->outputs[0], index);
    }
    return SBP_OK;
}

/* The first import. */
typedef struct look {
    sbp_onnx *o;
    sbp_onnx_model *raised;
    sbp_diag *diag;
} look;

static sbp_status run_first(void *user) {
    look *l = user;
    sbp_onnx *o = l->o;
    sbp_loading loading = *o->loading;
    sbp_model model = *loading.model;
    raise all[SBP_COUNT(raises)];
    matcher m = {.o = SBP_NEW(o->arena, sbp_onnx), .nodes = o->model->nodes};
    for (int32_t k = 0; k < SBP_COUNT(raises); k++) {
        const char *at = raises[k].body;
        all[k] = (raise){raises[k].op, raises[k].inputs, raises[k].attributes,
                         read_expression(o->arena, &at, NULL)};
    }
    loading.model = &model;
    loading.diag = l->diag;
    sbp_onnx_create(m.o, &loading, l->raised, sbp_module_create(o->arena, "first"));
    m.o->looks = true;
    sbp_map_init(&m.makers, o->arena);
    sbp_status status = sbp_onnx_begin(m.o);
    for (int32_t i = 0; status == SBP_OK && i < l->raised->node_count; i++) {
        sbp_onnx_node *node = &l->raised->nodes[i];
        for (int32_t k = 0; k < node->output_count && k < 16; k++)
            sbp_map_set(&m.makers, node->outputs[k], i * 16 + k);
        if (m.o->live[i])
            status = import_one(&m, all, node);
    }
    return status == SBP_MACHINE ? status : SBP_OK;
}

sbp_status sbp_onnx_raise(sbp_onnx *o) {
    sbp_onnx_model *raised = SBP_NEW(o->arena, sbp_onnx_model);
    *raised = *o->model;
    raised->nodes = SBP_NEW_ARRAY(o->arena, sbp_onnx_node, raised->node_count + 1);
    memcpy(raised->nodes, o->model->nodes, (size_t)raised->node_count * sizeof *raised->nodes);
    look l = {.o = o, .raised = raised, .diag = sbp_diag_create()};
    sbp_status status = l.diag ? sbp_guard(o->arena, NULL, run_first, &l) : SBP_MACHINE;
    sbp_diag_destroy(l.diag);
    if (status != SBP_OK)
        return sbp_fail(o->diag, SBP_MACHINE, "out of memory for the patterns of an ONNX graph");
    o->model = raised;
    return SBP_OK;
}
