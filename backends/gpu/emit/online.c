/* online.c: log-probabilities in one reading of the row (Milakov, Gimelshein 2018).
 *
 * With m the largest value of a row x and d = x - m, what losses sum are exp(d), exp(d) d, d where a
 * condition holds, and the place of m. All can be kept while m grows: when it becomes m', with f = exp(m -
 * m'),
 *
 *   sum exp(d)      S' = f S
 *   sum exp(d) d    T' = f (T + (m - m') S)
 *   sum of picked d: the x and their number are summed, m is taken away at the end (of one exactly)
 *   smallest of (x == m ? i : z)  begins anew; what came before counts as z
 *
 * and the same makes one of what several threads have. In the text v<m> is m, or 0 while it is -inf. */
#include "backends/gpu/emit/emitter.h"

#include <stdio.h>

enum { MOST_RULES = 16 };

typedef enum rule_kind { RULE_EXP, RULE_EXP_D, RULE_PICK, RULE_FIRST } rule_kind;

typedef struct rule {
    rule_kind kind;
    int32_t k;   /* the reduction */
    int32_t sum; /* EXP_D: the reduction that sums exp(d) */
} rule;

typedef struct online {
    int32_t largest, x; /* reduction m; what it is of */
    rule rules[MOST_RULES];
    int32_t count;
} online;

/* ---- recognising ------------------------------------------------------------------------------------ */

static const sbp_rk_instr *at(const emitter *e, int32_t k) {
    return &e->kernel->instrs[k];
}

static bool is_map(const emitter *e, int32_t k, sbp_rowop map) {
    return at(e, k)->op == SBP_RK_MAP && at(e, k)->map == map;
}

static bool is_difference(const emitter *e, const online *o, int32_t k) {
    return is_map(e, k, SBP_ROWOP_sub) && at(e, k)->a == o->x && at(e, k)->b == o->largest;
}

static bool is_exp(const emitter *e, const online *o, int32_t k) {
    return is_map(e, k, SBP_ROWOP_exp) && is_difference(e, o, at(e, k)->a);
}

static bool is_largest(const emitter *e, const online *o, int32_t k) {
    const sbp_rk_instr *eq = at(e, k);
    return is_map(e, k, SBP_ROWOP_eq) &&
           ((eq->a == o->x && eq->b == o->largest) || (eq->b == o->x && eq->a == o->largest));
}

static bool rule_of(const emitter *e, const online *o, int32_t k, rule *out) {
    const sbp_rk_instr *reduction = at(e, k);
    int32_t v = reduction->a;
    const sbp_rk_instr *value = at(e, v);
    *out = (rule){.k = k, .sum = -1};
    if (reduction->op == SBP_RK_SUM && is_exp(e, o, v)) {
        out->kind = RULE_EXP;
        return true;
    }
    if (reduction->op == SBP_RK_SUM && is_map(e, v, SBP_ROWOP_mul)) {
        out->kind = RULE_EXP_D;
        return (is_exp(e, o, value->a) && is_difference(e, o, value->b)) ||
               (is_exp(e, o, value->b) && is_difference(e, o, value->a));
    }
    if (!is_map(e, v, SBP_ROWOP_select) || at(e, value->c)->op != SBP_RK_CONST)
        return false;
    if (reduction->op == SBP_RK_SUM) {
        out->kind = RULE_PICK;
        return e->levels[value->a] == 0 && is_difference(e, o, value->b) && at(e, value->c)->imm == 0;
    }
    out->kind = RULE_FIRST;
    return reduction->op == SBP_RK_MIN && is_largest(e, o, value->a) && e->levels[value->b] == 0;
}

/* One sum of exp(d) is enough for all of exp(d) d. */
static bool find_sums(online *o) {
    int32_t sum = -1;
    for (int32_t i = 0; i < o->count; i++)
        if (o->rules[i].kind == RULE_EXP)
            sum = o->rules[i].k;
    for (int32_t i = 0; i < o->count; i++) {
        o->rules[i].sum = sum;
        if (o->rules[i].kind == RULE_EXP_D && sum < 0)
            return false;
    }
    return true;
}

/* Whether the first two levels are the largest value and reductions that have a rule. */
static bool recognise(const emitter *e, online *o) {
    *o = (online){.largest = -1};
    for (int32_t k = 0; k < e->kernel->instr_count; k++) {
        const sbp_rk_instr *instr = at(e, k);
        if (!sbp_rk_is_reduction(instr) || e->levels[k] > 2)
            continue;
        if (e->levels[k] == 1) {
            if (o->largest >= 0 || instr->op != SBP_RK_MAX || instr->axes != SBP_VARY_ELEM)
                return false;
            o->largest = k;
            o->x = instr->a;
        } else if (o->largest < 0 || o->count == MOST_RULES || instr->axes != SBP_VARY_ELEM ||
                   at(e, instr->a)->length != at(e, o->x)->length ||
                   !rule_of(e, o, k, &o->rules[o->count++])) {
            return false;
        }
    }
    return o->largest >= 0 && o->count > 0 && find_sums(o);
}

/* ---- text ------------------------------------------------------------------------------------------- */

static const char *exp_of(const emitter *e) {
    return e->kernel->compute == SBP_F64 ? "sbp_exp_f64" : "sbp_exp_f32";
}

static void declare(emitter *e, const online *o) {
    emit_line(e, "REAL t%d = %s;", o->largest, emit_start_of(e, SBP_RK_MAX));
    for (int32_t i = 0; i < o->count; i++) {
        const rule *r = &o->rules[i];
        emit_line(e, "REAL t%d = %s;", r->k, emit_start_of(e, at(e, r->k)->op));
        if (r->kind == RULE_PICK)
            emit_line(e, "REAL n%d = REAL(0.0);", r->k);
    }
}

/* A larger value, or NaN, was seen: what was summed so far becomes what it is with that. */
static void grow(emitter *e, const online *o) {
    int32_t m = o->largest;
    emit_line(e, "if (top != t%d) {", m);
    emit_open(e);
    emit_line(e, "REAL less = t%d - top, factor = %s(less);", m, exp_of(e));
    for (int32_t i = 0; i < o->count; i++) /* while nothing was summed, `less` may be -inf */
        if (o->rules[i].kind == RULE_EXP_D)
            emit_line(e, "t%d = t%d == REAL(0.0) ? t%d : factor * (t%d + less * t%d);", o->rules[i].k,
                      o->rules[i].sum, o->rules[i].k, o->rules[i].k, o->rules[i].sum);
    for (int32_t i = 0; i < o->count; i++) {
        const rule *r = &o->rules[i];
        if (r->kind == RULE_EXP)
            emit_line(e, "t%d *= factor;", r->k);
        else if (r->kind == RULE_FIRST)
            emit_line(e, "t%d = i == 0 ? %s : v%d;", r->k, emit_start_of(e, SBP_RK_MIN),
                      at(e, at(e, r->k)->a)->c);
    }
    emit_line(e, "t%d = top;", m);
    emit_close(e);
}

static void add(emitter *e, const online *o, const rule *r) {
    const sbp_rk_instr *value = at(e, at(e, r->k)->a);
    switch (r->kind) {
    case RULE_EXP:
    case RULE_EXP_D:
        emit_accumulate(e, r->k);
        break;
    case RULE_PICK:
        emit_value(e, value->a);
        emit_value(e, o->x);
        emit_line(e, "t%d += v%d != REAL(0.0) ? v%d : REAL(0.0);", r->k, value->a, o->x);
        emit_line(e, "n%d += v%d != REAL(0.0) ? REAL(1.0) : REAL(0.0);", r->k, value->a);
        break;
    case RULE_FIRST:
        emit_value(e, o->x);
        emit_value(e, value->b);
        emit_line(e, "t%d = smaller(v%d == t%d ? v%d : v%d, t%d);", r->k, o->x, o->largest, value->b,
                  value->c, r->k);
        break;
    }
}

/* What is read of an element: what level 0 has. */
static int32_t roots_of(const emitter *e, const online *o, int32_t *roots) {
    int32_t count = 0;
    roots[count++] = o->x;
    for (int32_t i = 0; i < o->count; i++) {
        const sbp_rk_instr *value = at(e, at(e, o->rules[i].k)->a);
        if (o->rules[i].kind == RULE_PICK)
            roots[count++] = value->a;
        else if (o->rules[i].kind == RULE_FIRST)
            roots[count++] = value->b;
        if (o->rules[i].kind == RULE_FIRST)
            roots[count++] = value->c;
    }
    return count;
}

static void element_loop(emitter *e, const online *o) {
    int32_t roots[2 * MOST_RULES + 1], m = o->largest;
    int32_t count = roots_of(e, o, roots);
    emit_open_elements(e, at(e, o->x)->length, roots, count, SBP_VARY_HEAD);
    emit_line(e, "REAL top = t%d;", m);
    emit_open_each(e);
    emit_value(e, o->x);
    emit_line(e, "top = larger(v%d, top);", o->x);
    emit_close_each(e);
    grow(e, o);
    emit_line(e, "REAL v%d = t%d == %s ? REAL(0.0) : t%d;", m, m, emit_start_of(e, SBP_RK_MAX), m);
    e->declared[m] = e->indent;
    emit_open_each(e);
    for (int32_t i = 0; i < o->count; i++)
        add(e, o, &o->rules[i]);
    emit_close_each(e);
    emit_end_elements(e);
}

static void result(emitter *e, int32_t k) {
    char text[96];
    emit_combined(e, text, sizeof text, k);
    emit_line(e, "r%d = %s;", k, text);
}

/* What each thread has, as it is with the largest value of all. */
static void combine(emitter *e, const online *o) {
    int32_t m = o->largest;
    result(e, m);
    emit_line(e, "REAL less = t%d - r%d, factor = %s(less);", m, m, exp_of(e));
    for (int32_t i = 0; i < o->count; i++) {
        const rule *r = &o->rules[i];
        if (r->kind == RULE_EXP_D)
            emit_line(e, "t%d = t%d == REAL(0.0) ? t%d : factor * (t%d + less * t%d);", r->k, r->sum, r->k,
                      r->k, r->sum);
        else if (r->kind == RULE_PICK)
            emit_line(e, "t%d = n%d == REAL(0.0) ? REAL(0.0) : t%d - n%d * r%d;", r->k, r->k, r->k, r->k, m);
        else if (r->kind == RULE_FIRST)
            emit_line(e, "t%d = t%d == r%d || lane * WIDTH >= %lld ? t%d : v%d;", r->k, m, m,
                      (long long)at(e, o->x)->length, r->k, at(e, at(e, r->k)->a)->c);
    }
    for (int32_t i = 0; i < o->count; i++)
        if (o->rules[i].kind == RULE_EXP)
            emit_line(e, "t%d *= factor;", o->rules[i].k);
    for (int32_t i = 0; i < o->count; i++)
        result(e, o->rules[i].k);
    e->unmet &= !emit_reductions_meet(e);
}

bool emit_online(emitter *e) {
    online o;
    if (!e->units || e->kept || e->counting || !recognise(e, &o))
        return false;
    emit_line(e, "{");
    emit_open(e);
    declare(e, &o);
    for (int32_t i = 0; i < o.count; i++) /* what stands for elements that are not the largest */
        if (o.rules[i].kind == RULE_FIRST)
            emit_value(e, at(e, at(e, o.rules[i].k)->a)->c);
    element_loop(e, &o);
    combine(e, &o);
    emit_close(e);
    return true;
}
