/* test_op_seq.c: the sequence rule of every op against the effect of changing one row.
 *
 * Change row s of an operand: the rows of the result that change must be allowed by the kind the rule states
 * (sound), and over the examples some change must be seen at the furthest row that the kind allows (tight).
 * The same for derivatives: changing row s of the cotangent changes rows of an operand's gradient as the
 * transposed kind allows, and what the kinds of the derivative's ops compose to holds for every argument. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/common/graphs.h"

enum { ROWS = 11 };

/* ---- rows ---------------------------------------------------------------------------------------------- */

/* Where rows of a value lie: how many, and which row of the sequence (or group) the first is. */
typedef struct row_axis {
    sbp_symbol symbol;
    int64_t count, first, elems;
} row_axis;

static row_axis axis_of(const sbp_tensor *tensor, const sbp_eval_env *env) {
    sbp_symbol symbol = sbp_type_rows(&tensor->type);
    int64_t count = symbol == SBP_ONE ? 1 : tensor->dim[0];
    return (row_axis){.symbol = symbol,
                      .count = count,
                      .first = symbol == SBP_C ? env->row0 : 0,
                      .elems = tensor->elems / count};
}

typedef struct change {
    const documents *rows;
    const double *group, *group_before; /* per row: its group, when the op has groups; before the change */
    row_axis from, to;
    int64_t s; /* row of `from` that was changed */
} change;

static bool same_group(const change *c, int64_t r, int64_t s) {
    if (!c->group)
        return false;
    int64_t row = c->from.symbol == SBP_S ? r : s, other = c->from.symbol == SBP_S ? s : r;
    if (c->from.symbol != SBP_S && c->to.symbol != SBP_S)
        return c->group[r] == c->group[s] || c->group_before[r] == c->group_before[s];
    return (int64_t)c->group[row] == other || (int64_t)c->group_before[row] == other;
}

/* Whether the rule `seq` allows row j of the result to change. */
static bool allowed(const change *c, sbp_seq seq, int64_t j) {
    int64_t r = c->to.first + j, s = c->from.first + c->s;
    if (seq.kind == SBP_SEQ_GROUP)
        return same_group(c, r, s);
    if (seq.kind == SBP_SEQ_REDUCE)
        return c->to.symbol == SBP_ONE;
    return documents_allow(c->rows, seq, r, s);
}

/* Whether a change at row j is one at the furthest row that `seq` allows, so that no smaller kind would do.
 */
static bool extreme(const change *c, sbp_seq seq, int64_t j) {
    const documents *d = c->rows;
    int64_t r = c->to.first + j, s = c->from.first + c->s;
    switch (seq.kind) {
    case SBP_SEQ_WINDOW: /* at w - 1, with more rows behind it */
        return documents_distance(d, r, s) == seq.window - 1 && d->position[r] >= seq.window;
    case SBP_SEQ_MIRROR:
        return documents_distance(d, s, r) == seq.window - 1 && d->position[s] >= seq.window;
    case SBP_SEQ_RECUR: /* any row before, or behind: a short state forgets */
        return s < r;
    case SBP_SEQ_AFTER:
        return s > r;
    case SBP_SEQ_PREFIX: /* from a completion into the beginning of its prompt */
        return s == d->first[r] && s < d->own[r];
    case SBP_SEQ_SUFFIX:
        return r == d->first[s] && r < d->own[s];
    case SBP_SEQ_REDUCE:
        return s == 0 || s == d->rows - 1;
    case SBP_SEQ_ALL:
        return documents_distance(d, r, s) < 0 && documents_distance(d, s, r) < 0;
    default:
        return true;
    }
}

/* ---- changing a row ------------------------------------------------------------------------------------ */

static double other_integer(testing *t, double old, double lo, double hi) {
    assert_true(hi - lo >= 2);
    double fresh = lo + (double)sbp_rng_below(&t->rng, (int64_t)(hi - lo) - 1);
    return fresh >= old ? fresh + 1 : fresh;
}

/* Changes row s of the input, as its fill allows; row numbers stay between 0 and the row itself. */
static void change_row(testing *t, const sbp_example_operand *in, sbp_tensor *x, const row_axis *axis,
                       int64_t s) {
    for (int64_t e = s * axis->elems; e < (s + 1) * axis->elems; e++)
        if (in->fill == SBP_FILL_FLOAT)
            x->data[e] = testing_uniform(t, in->lo, in->hi);
        else if (in->fill == SBP_FILL_INT)
            x->data[e] = other_integer(t, x->data[e], in->lo, in->hi);
        else if (axis->first + s > 0)
            x->data[e] = other_integer(t, x->data[e], 0, (double)(axis->first + s) + 1);
}

/* Other documents: in derivatives, what the kinds mean would change with them. */
static bool is_structure(sbp_example_fill fill) {
    return fill != SBP_FILL_FLOAT && fill != SBP_FILL_INT;
}

static bool row_differs(const sbp_tensor *a, const sbp_tensor *b, int64_t elems, int64_t row) {
    return memcmp(a->data + row * elems, b->data + row * elems, (size_t)elems * sizeof(double)) != 0;
}

/* ---- forward ------------------------------------------------------------------------------------------- */

typedef struct totals {
    int pairs, changes, tight, composed;
} totals;

enum { WINDOWS = 8, KINDS = SBP_SEQ_COUNT * WINDOWS };

/* Per operand and result: which kinds (with their windows) were stated, and for which the extreme was seen,
 * over all examples. */
typedef struct seen {
    bool stated[KINDS], tight[KINDS];
} seen;

static const double *groups_of(const example_graph *g, sbp_tensor *const *inputs) {
    bool groups = g->code == SBP_OP_group_sum || g->code == SBP_OP_group_take;
    return groups ? inputs[1]->data : g->code == SBP_OP_scan ? inputs[2]->data : NULL;
}

static void note(seen *at, sbp_seq seq, bool tight) {
    assert_true(seq.window >= 0 && seq.window < WINDOWS);
    int64_t kind = (int64_t)seq.kind * WINDOWS + seq.window;
    at->stated[kind] = true;
    at->tight[kind] |= tight;
}

/* Whether the rule is that of corrections; delta_rule_vjp has another one without. */
static bool corrects(const example_graph *g) {
    return g->code != SBP_OP_delta_rule_vjp || sbp_op_int(&g->func->ops[0], "corrects");
}

/* Dependences that a rule states for the sake of simplicity although no value shows them. */
static bool loose(sbp_opcode code, bool corrects, int32_t operand, int32_t result) {
    if (sbp_opcode_attends(code) && result == 1) /* log-sum-exp: v does not matter */
        return operand == 2;
    if (code == SBP_OP_log_prob && operand == 1) /* the label matters to neither entropy nor log-sum-exp */
        return result == 1 || result == 3;
    if (sbp_opcode_class(code) != SBP_CLASS_STRUCTURAL && code != SBP_OP_attention_vjp &&
        sbp_opcode_continues(code, result) >=
            0) /* a state, of documents alone what it is at their beginning */
        return true;
    if (code == SBP_OP_conv_rows_vjp) /* neither x nor, of sums over rows, where documents begin moves dx */
        return operand != 0;
    if (!corrects) /* what is added moves not its own gradient; ALL means documents too */
        return (result < 3 && operand == result + 1) || (result == 4 && operand == 5) ||
               (result == 3 && operand == 4);
    if (code == SBP_OP_delta_rule_vjp) /* ALL means documents too; q moves no dq, v no dv */
        return (result == 0 && operand == 1) || (result == 2 && operand == 3) ||
               (result != 0 && result != 2 && operand >= 2);
    if (code != SBP_OP_attention_vjp)
        return false;
    if (result == 2) /* dv = p do: v, o, and running sums of others do not matter */
        return operand == 2 || operand == 3 || operand == 9;
    return operand >= 9;
}

static void forward_of(testing *t, example_graph *g, seen at[SBP_MAX_OPERANDS][SBP_MAX_RESULTS],
                       const documents *rows, totals *sum) {
    sbp_eval_env env = example_env(t, ROWS);
    const sbp_op *op = &g->func->ops[0];
    sbp_tensor **inputs = example_inputs(t, g, rows, &env);
    sbp_tensor **before = graph_evaluate(t, t->arena, g->module, g->func, &env, inputs);
    for (int32_t i = 0; i < g->func->arg_count; i++) {
        int32_t k = g->operand[i];
        row_axis from = axis_of(inputs[i], &env);
        if (from.symbol == SBP_ONE) {
            for (int32_t r = 0; r < op->result_count; r++)
                assert_int_equal(sbp_op_seq(g->func, op, k, r).kind, SBP_SEQ_NONE);
            continue;
        }
        bool structure = is_structure(g->example.in[k].fill);
        if (structure && sbp_opcode_class(g->code) == SBP_CLASS_BACKWARD)
            continue;
        sbp_tensor *kept = inputs[i], changed = *kept;
        for (int64_t s = 0; s < from.count; s++) {
            changed.data = SBP_NEW_ARRAY(t->arena, double, kept->elems);
            memcpy(changed.data, kept->data, (size_t)kept->elems * sizeof(double));
            change_row(t, &g->example.in[k], &changed, &from, s);
            const double *group_before = groups_of(g, inputs);
            inputs[i] = &changed;
            sbp_tensor **after = graph_evaluate(t, t->arena, g->module, g->func, &env, inputs);
            for (int32_t r = 0; r < op->result_count; r++) {
                sbp_seq seq = sbp_op_seq(g->func, op, k, r);
                const sbp_tensor *x = before[op->results[r]], *y = after[op->results[r]];
                change c = {.rows = rows,
                            .group = groups_of(g, inputs),
                            .group_before = group_before,
                            .from = from,
                            .to = axis_of(x, &env),
                            .s = s};
                assert_true((c.to.symbol == SBP_ONE) == (seq.kind == SBP_SEQ_REDUCE));
                note(&at[k][r], seq, false);
                for (int64_t j = 0; j < c.to.count; j++) {
                    if (!row_differs(x, y, c.to.elems, j))
                        continue;
                    sum->changes++;
                    if (!allowed(&c, seq, j))
                        fail_msg("%s: row %lld of operand %d changes row %lld of result %d, but the rule "
                                 "says %s",
                                 sbp_opcode_name(g->code), (long long)s, k, (long long)j, r,
                                 sbp_seq_name(seq.kind));
                    note(&at[k][r], seq, extreme(&c, seq, j));
                }
            }
            inputs[i] = kept;
        }
    }
}

static void check_seen(const char *what, sbp_opcode code, const seen *at, int32_t operand, int32_t result,
                       totals *sum) {
    for (int kind = 0; kind < KINDS; kind++) {
        if (!at->stated[kind])
            continue;
        if (code == SBP_OP_attention && operand == 1 && kind % WINDOWS == 1)
            continue; /* the softmax of one key is 1, whatever the key */
        sum->pairs++;
        sum->tight += at->tight[kind];
        if (!at->tight[kind])
            fail_msg("%s of %s: operand %d, result %d: %s (window %d), but nothing depends that far", what,
                     sbp_opcode_name(code), operand, result, sbp_seq_name((sbp_seq_kind)(kind / WINDOWS)),
                     kind % WINDOWS);
    }
}

static void every_rule(void **state) {
    (void)state;
    totals sum = {0};
    for (int code = 0; code < SBP_OP_COUNT; code++) {
        seen at[2][SBP_MAX_OPERANDS][SBP_MAX_RESULTS] = {0}; /* of those that do not correct, of others */
        example_graph g;
        bool more = true;
        for (int32_t i = 0; more; i++) {
            testing t = testing_open((uint64_t)(code * 100 + i));
            more = example_graph_build(&t, (sbp_opcode)code, i, SBP_F64, &g);
            documents rows = documents_layout(ROWS);
            if (more)
                forward_of(&t, &g, at[corrects(&g)], &rows, &sum);
            for (int extra = 0; more && extra < testing_sweep(1, 20); extra++) {
                rows = documents_random(ROWS, &t.rng);
                forward_of(&t, &g, at[corrects(&g)], &rows, &sum);
            }
            testing_close(&t);
        }
        for (int c = 0; c < 2; c++)
            for (int32_t k = 0; k < SBP_MAX_OPERANDS; k++)
                for (int32_t r = 0; r < SBP_MAX_RESULTS; r++)
                    if (!loose((sbp_opcode)code, c, k, r))
                        check_seen("rule", (sbp_opcode)code, &at[c][k][r], k, r, &sum);
    }
    printf("  %d stated kinds, each seen at its extreme; %d changed rows allowed\n", sum.pairs, sum.changes);
    assert_true(sum.pairs > 100 && sum.pairs == sum.tight);
}

/* ---- derivatives --------------------------------------------------------------------------------------- */

/* Changes every row of every argument of a derivative and looks at its gradients. */
static void derivative_of(testing *t, example_graph *g, seen at[SBP_MAX_OPERANDS][SBP_MAX_RESULTS],
                          totals *sum) {
    sbp_eval_env env = example_env(t, ROWS);
    documents rows = documents_layout(ROWS);
    sbp_func *d = graph_differentiate(t, g->module, g->func);
    sbp_tensor **inputs = SBP_NEW_ARRAY(t->arena, sbp_tensor *, d->arg_count);
    memcpy(inputs, example_inputs(t, g, &rows, &env), (size_t)g->func->arg_count * sizeof *inputs);
    for (int32_t i = g->func->arg_count; i < d->arg_count; i++)
        inputs[i] = graph_tensor(t, &d->values[d->args[i]].type, &env, -1, 1);
    sbp_tensor **before = graph_evaluate(t, t->arena, g->module, d, &env, inputs);
    for (int32_t i = 0; i < d->arg_count; i++) {
        const sbp_value_info *info = &d->values[d->args[i]];
        bool cotangent = info->role == SBP_VALUE_COTANGENT;
        row_axis from = axis_of(inputs[i], &env);
        sbp_example_operand fill = {.lo = -1, .hi = 1};
        if (!cotangent)
            fill = g->example.in[g->operand[i]];
        if (is_structure(fill.fill))
            continue;
        sbp_tensor *kept = inputs[i], changed = *kept;
        for (int64_t s = 0; s < from.count; s++) {
            changed.data = SBP_NEW_ARRAY(t->arena, double, kept->elems);
            memcpy(changed.data, kept->data, (size_t)kept->elems * sizeof(double));
            change_row(t, &fill, &changed, &from, s);
            const double *group_before = groups_of(g, inputs);
            inputs[i] = &changed;
            sbp_tensor **after = graph_evaluate(t, t->arena, g->module, d, &env, inputs);
            for (int32_t n = 0; n < d->result_count; n++) {
                const sbp_result *result = &d->results[n];
                if (result->role != SBP_RESULT_GRADIENT)
                    continue;
                int32_t arg = 0;
                while (d->args[arg] != result->target)
                    arg++;
                const sbp_tensor *x = before[result->value], *y = after[result->value];
                change c = {.rows = &rows,
                            .group = groups_of(g, inputs),
                            .group_before = group_before,
                            .from = from,
                            .to = axis_of(x, &env),
                            .s = s};
                sbp_seq composed;
                bool depends = graph_dependence(t, d, d->args[i], result->value, &composed);
                sbp_seq stated = composed;
                int32_t k = g->operand[arg], r = 0;
                if (from.symbol == SBP_ONE && c.to.symbol == SBP_ONE)
                    continue;    /* no rows anywhere */
                if (cotangent) { /* of which result */
                    while (d->results[r].role != SBP_RESULT_VALUE || d->results[r].value != info->binding)
                        r++;
                    stated = sbp_seq_transpose(sbp_op_seq(g->func, &g->func->ops[0], k, r));
                }
                for (int64_t j = 0; j < c.to.count; j++) {
                    if (!row_differs(x, y, c.to.elems, j))
                        continue;
                    sum->changes++;
                    bool rowless = from.symbol == SBP_ONE; /* its row is no row */
                    if (!depends || (!rowless && !allowed(&c, composed, j)) ||
                        (!rowless && !allowed(&c, stated, j)))
                        fail_msg("%s: row %lld of %%%s changes row %lld of the gradient of operand %d; "
                                 "stated %s, composed %s",
                                 sbp_opcode_name(g->code), (long long)s, info->name, (long long)j, k,
                                 sbp_seq_name(stated.kind), sbp_seq_name(composed.kind));
                    if (cotangent)
                        note(&at[k][r], stated, rowless || extreme(&c, stated, j));
                }
                if (cotangent && depends) {
                    note(&at[k][r], stated, false);
                    if (composed.kind != stated.kind || composed.window != stated.window)
                        fail_msg("%s: the gradient of operand %d depends on the cotangent as %s, its rule "
                                 "transposed is %s",
                                 sbp_opcode_name(g->code), k, sbp_seq_name(composed.kind),
                                 sbp_seq_name(stated.kind));
                }
                sum->composed++;
            }
            inputs[i] = kept;
        }
    }
}

static void every_derivative(void **state) {
    (void)state;
    totals sum = {0};
    int ops = 0;
    for (int code = 0; code < SBP_OP_COUNT; code++) {
        if (sbp_opcode_class((sbp_opcode)code) == SBP_CLASS_BACKWARD || code == SBP_OP_append)
            continue;
        seen at[SBP_MAX_OPERANDS][SBP_MAX_RESULTS] = {0};
        example_graph g;
        bool more = true;
        for (int32_t i = 0; more; i++) {
            testing t = testing_open((uint64_t)(code * 100 + i));
            more = example_graph_build(&t, (sbp_opcode)code, i, SBP_F64, &g);
            if (more)
                derivative_of(&t, &g, at, &sum);
            testing_close(&t);
        }
        int before = sum.pairs;
        for (int32_t k = 0; k < SBP_MAX_OPERANDS; k++)
            for (int32_t r = 0; r < SBP_MAX_RESULTS; r++)
                check_seen("derivative", (sbp_opcode)code, &at[k][r], k, r, &sum);
        ops += sum.pairs > before;
    }
    printf("  %d ops: %d transposed kinds, each seen at its extreme; %d changed rows allowed\n", ops,
           sum.pairs, sum.changes);
    assert_true(ops > 40 && sum.pairs > 60 && sum.pairs == sum.tight);
}

/* The checks above can fail: a rule that is too narrow, and one that is too wide, are noticed. */
static void the_checks_can_fail(void **state) {
    (void)state;
    documents rows = documents_layout(ROWS);
    row_axis axis = {.symbol = SBP_T, .count = ROWS, .elems = 1};
    change c = {.rows = &rows, .from = axis, .to = axis, .s = 2};
    /* family of rows 2..9: prompt 2, 3; completions 4..6 and 7..9 */
    assert_true(allowed(&c, sbp_seq_of(SBP_SEQ_PREFIX), 8));
    assert_true(extreme(&c, sbp_seq_of(SBP_SEQ_PREFIX), 8));
    assert_false(allowed(&c, sbp_seq_of(SBP_SEQ_ROW), 8));
    assert_false(allowed(&c, sbp_seq_windowed(3), 8)); /* position 3 sees positions 1..3 */
    c.s = 3;
    assert_true(allowed(&c, sbp_seq_windowed(3), 8));
    assert_true(extreme(&c, sbp_seq_windowed(3), 8));
    assert_false(extreme(&c, sbp_seq_windowed(4), 8));
    c.s = 5;
    assert_false(allowed(&c, sbp_seq_of(SBP_SEQ_PREFIX), 8));  /* the other completion */
    assert_false(allowed(&c, sbp_seq_of(SBP_SEQ_PREFIX), 10)); /* another document */
    c.s = 8;
    assert_false(allowed(&c, sbp_seq_of(SBP_SEQ_PREFIX), 7)); /* the future */
    assert_true(allowed(&c, sbp_seq_of(SBP_SEQ_SUFFIX), 3));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_rule), cmocka_unit_test(every_derivative),
                                       cmocka_unit_test(the_checks_can_fail)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
