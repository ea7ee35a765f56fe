/* test_experts.c: route, expert_order, expert_gemm and expert_gemm_dw: equal scores and such as are no
 * numbers, every expert chosen, one never, all rows to one; slots that share an operand and slots with their
 * own; rows whose bounds or pairs are out of range. */
#include "tests/conformance/conformance.h"

#include <math.h>

static const sbp_dtype floats[] = {SBP_F32, SBP_BF16, SBP_F16, SBP_F64};

/* ---- route, expert_order ---------------------------------------------------------------------------- */

static bool is_larger(double a, double b) {
    return a > b || (isnan(b) && !isnan(a));
}

/* Numbers below `count` in an order that is always the same and has no rhythm: of a sample of cases, some are
 * of every kind. */
static void shuffle(int *order, int count) {
    sbp_rng rng = {(uint64_t)count};
    for (int i = 0; i < count; i++) {
        int64_t at = sbp_rng_below(&rng, i + 1);
        order[i] = order[at];
        order[at] = i;
    }
}

/* k: how many are chosen; 0: some. */
static void route_case(uint64_t number, sbp_dtype dtype, int64_t rows, int64_t experts, int64_t k,
                       uint32_t only_on) {
    suite_case *c = suite_begin("route", number);
    c->only_on = only_on;
    if (k == 0)
        k = 1 + sbp_rng_below(&c->rng, experts < 12 ? experts : 12);
    suite_tensor *index = suite_add(c, SBP_I32, rows, k);
    suite_tensor *scores = suite_add(c, dtype, rows, experts);
    c->command.kind = SBP_CMD_ROUTE;
    for (int64_t i = 0; i < rows * experts; i++) {
        if (number % 3 == 0) /* many are equal */
            scores->values[i] = (double)sbp_rng_below(&c->rng, 3);
        if (number % 3 == 1 && sbp_rng_below(&c->rng, 6) == 0)
            scores->values[i] = sbp_rng_below(&c->rng, 2) ? (double)NAN : -(double)INFINITY;
    }
    suite_expect(c, index);
    bool *taken = suite_alloc(c, experts, sizeof *taken);
    for (int64_t row = 0; row < rows; row++) {
        const double *of = scores->values + row * experts;
        memset(taken, 0, (size_t)experts * sizeof *taken);
        for (int64_t j = 0; j < k; j++) {
            int64_t best = -1;
            for (int64_t e = experts - 1; e >= 0; e--)
                if (!taken[e] && (best < 0 || !is_larger(of[best], of[e])))
                    best = e;
            taken[best] = true;
            index->expected[row * k + j] = (double)best;
        }
    }
    suite_check(c);
    suite_end(c);
}

static void test_route(void **state) {
    (void)state;
    static const int64_t rows[] = {0, 1, 17, 70}, experts[] = {1, 2, 8, 60, 300};
    enum { CASES = SBP_COUNT(floats) * SBP_COUNT(rows) * SBP_COUNT(experts) };
    int order[CASES];
    shuffle(order, CASES);
    for (int i = 0; i < CASES; i++) {
        int at = order[i] / SBP_COUNT(experts);
        route_case((uint64_t)order[i], floats[at / SBP_COUNT(rows)], rows[at % SBP_COUNT(rows)],
                   experts[order[i] % SBP_COUNT(experts)], 0, 0);
    }
}

/* As many experts as the largest models have, and as many chosen as fit. */
static void test_route_many(void **state) {
    (void)state;
    for (uint64_t number = 0; number < 3; number++) {
        route_case(number, floats[number], 40, 384, 8, SUITE_ON_CPU);
        route_case(number, floats[number], 9, 512, 256, SUITE_ON_CPU);
    }
}

/* Slots of rows, and what expert_order makes of them. */
typedef struct slots {
    int64_t rows, k, experts;
    int32_t *index, *pairs, *bounds; /* index: -1 and `experts` name none */
} slots;

enum { EVERY, ONE_NEVER, ALL_TO_ONE, SOME_NOWHERE, CHOICES };

static int32_t choose(suite_case *c, const slots *s, int choice) {
    int64_t e = sbp_rng_below(&c->rng, s->experts);
    if (choice == ONE_NEVER && e == s->experts / 2)
        e = s->experts > 1 ? (e + 1) % s->experts : 0;
    if (choice == ALL_TO_ONE)
        e = s->experts - 1;
    if (choice == SOME_NOWHERE && sbp_rng_below(&c->rng, 4) == 0)
        e = sbp_rng_below(&c->rng, 2) ? -1 : s->experts;
    return (int32_t)e;
}

static slots make_slots(suite_case *c, int64_t rows, int64_t k, int64_t experts, int choice) {
    slots s = {.rows = rows, .k = k, .experts = experts};
    int64_t count = 0, all = rows * k;
    s.index = suite_alloc(c, all + 1, sizeof *s.index);
    s.pairs = suite_alloc(c, all + 1, sizeof *s.pairs);
    s.bounds = suite_alloc(c, experts + 1, sizeof *s.bounds);
    for (int64_t i = 0; i < all; i++) {
        s.index[i] = choose(c, &s, choice);
        s.pairs[i] = -1;
    }
    for (int64_t e = 0; e < experts; e++) {
        s.bounds[e] = (int32_t)count;
        for (int64_t i = 0; i < all; i++)
            if (s.index[i] == e)
                s.pairs[count++] = (int32_t)i;
    }
    s.bounds[experts] = (int32_t)count;
    return s;
}

static void set_values(suite_tensor *t, const int32_t *values) {
    for (int64_t i = 0; i < t->rows * t->cols; i++)
        t->values[i] = values[i];
}

static const int64_t row_counts[] = {0, 1, 2, 17, 130}, slot_counts[] = {1, 2, 8},
                     expert_counts[] = {1, 5, 60, 300};

static void order_case(int number, int64_t rows, int64_t k, int64_t experts) {
    suite_case *c = suite_begin("expert_order", (uint64_t)number);
    slots s = make_slots(c, rows, k, experts, number % CHOICES);
    suite_tensor *pairs = suite_add(c, SBP_I32, s.rows, s.k);
    suite_tensor *bounds = suite_add(c, SBP_I32, 1, s.experts + 1);
    set_values(suite_add(c, SBP_I32, s.rows, s.k), s.index);
    c->command.kind = SBP_CMD_EXPERT_ORDER;
    suite_expect(c, pairs);
    suite_expect(c, bounds);
    for (int64_t i = 0; i < s.rows * s.k; i++)
        pairs->expected[i] = s.pairs[i];
    for (int64_t e = 0; e <= s.experts; e++)
        bounds->expected[e] = s.bounds[e];
    suite_check(c);
    suite_end(c);
}

static void test_expert_order(void **state) {
    (void)state;
    enum { CASES = SBP_COUNT(row_counts) * SBP_COUNT(slot_counts) * SBP_COUNT(expert_counts) };
    int order[CASES];
    shuffle(order, CASES);
    for (int i = 0; i < CASES; i++) {
        int at = order[i] / SBP_COUNT(expert_counts);
        order_case(order[i], row_counts[at / SBP_COUNT(slot_counts)],
                   slot_counts[at % SBP_COUNT(slot_counts)],
                   expert_counts[order[i] % SBP_COUNT(expert_counts)]);
    }
}

/* ---- products --------------------------------------------------------------------------------------- */

static const int64_t widths[] = {1, 3, 48, 131, 200};

/* Experts that a product leaves out: of one, pairs are out of range; of another, bounds. */
static bool is_spoilt(const slots *s, int64_t e) {
    int64_t most = s->rows * s->k;
    bool bad = s->bounds[e] < 0 || s->bounds[e + 1] > most;
    for (int64_t i = s->bounds[e]; i < s->bounds[e + 1] && !bad; i++)
        bad |= s->pairs[i] < 0 || s->pairs[i] >= most;
    return bad;
}

static void spoil(suite_case *c, const slots *s) {
    int64_t all = s->bounds[s->experts];
    if (all > 0)
        s->pairs[sbp_rng_below(&c->rng, all)] = sbp_rng_below(&c->rng, 2) ? -1 : (int32_t)(s->rows * s->k);
    if (sbp_rng_below(&c->rng, 2))
        s->bounds[s->experts] = (int32_t)(s->rows * s->k + 1);
}

/* Element i of what a slot has of an operand. */
static double slot_value(const suite_tensor *t, const slots *s, int64_t pair, bool by_slot, int64_t i) {
    int64_t n = by_slot ? t->cols / s->k : t->cols;
    return t->values[pair / s->k * t->cols + (by_slot ? pair % s->k * n : 0) + i];
}

static void add_order(suite_case *c, const slots *s) {
    set_values(suite_add(c, SBP_I32, s->rows, s->k), s->pairs);
    set_values(suite_add(c, SBP_I32, 1, s->experts + 1), s->bounds);
}

/* One case of a product: n and m are its widths. */
typedef void product_case(suite_case *c, const slots *s, sbp_dtype dtype, int64_t n, int64_t m);

static void each_product(const char *name, product_case *add) {
    enum { PER_TYPE = SBP_COUNT(row_counts) * SBP_COUNT(slot_counts) * SBP_COUNT(widths) };
    int order[SBP_COUNT(floats) * PER_TYPE];
    shuffle(order, SBP_COUNT(order));
    for (int i = 0; i < SBP_COUNT(order); i++) {
        suite_case *c = suite_begin(name, (uint64_t)order[i]);
        int of_type = order[i] % PER_TYPE, at = of_type / SBP_COUNT(widths);
        slots s =
            make_slots(c, row_counts[at / SBP_COUNT(slot_counts)], slot_counts[at % SBP_COUNT(slot_counts)],
                       1 + sbp_rng_below(&c->rng, 9), order[i] % CHOICES);
        int64_t m = widths[sbp_rng_below(&c->rng, SBP_COUNT(widths))];
        if (order[i] % 3 == 0)
            spoil(c, &s);
        add(c, &s, floats[order[i] / PER_TYPE], widths[of_type % SBP_COUNT(widths)], m);
        suite_check(c);
        suite_end(c);
    }
}

static void add_gemm(suite_case *c, const slots *s, sbp_dtype dtype, int64_t n, int64_t m) {
    bool tb = sbp_rng_below(&c->rng, 2), by_slot = sbp_rng_below(&c->rng, 2);
    bool has_bias = sbp_rng_below(&c->rng, 2), wide = sbp_rng_below(&c->rng, 2);
    suite_tensor *y = suite_add(c, wide && dtype != SBP_F64 ? SBP_F32 : dtype, s->rows, s->k * n);
    suite_tensor *a = suite_add(c, dtype, s->rows, by_slot ? s->k * m : m);
    suite_tensor *b = suite_add(c, dtype, s->experts, n * m);
    suite_tensor *bias = has_bias ? suite_add(c, dtype, s->experts, n) : suite_add_absent(c);
    add_order(c, s);
    c->command.kind = SBP_CMD_EXPERT_GEMM;
    c->command.u.experts.tb = tb;
    c->command.u.experts.a_by_slot = by_slot;
    suite_expect(c, y);
    y->written = suite_alloc(c, s->rows * s->k * n + 1, sizeof *y->written);
    memset(y->written, 0, (size_t)(s->rows * s->k * n) * sizeof *y->written);
    for (int64_t e = 0; e < s->experts && suite_wants(c); e++)
        for (int64_t p = s->bounds[e]; p < s->bounds[e + 1] && !is_spoilt(s, e); p++)
            for (int64_t i = 0; i < n; i++) {
                double sum = has_bias ? bias->values[e * n + i] : 0;
                for (int64_t h = 0; h < m; h++)
                    sum += slot_value(a, s, s->pairs[p], by_slot, h) *
                           b->values[e * n * m + (tb ? i * m + h : h * n + i)];
                y->expected[s->pairs[p] * n + i] = sum;
                y->written[s->pairs[p] * n + i] = true;
            }
}

/* All experts, or some that follow each other: slots of the others are left alone. */
static void add_gemm_of_some(suite_case *c, const slots *s, sbp_dtype dtype, int64_t n, int64_t m) {
    slots some = *s;
    int64_t first = sbp_rng_below(&c->rng, 2) ? sbp_rng_below(&c->rng, s->experts) : 0;
    some.bounds += first;
    some.experts -= first;
    some.experts = sbp_rng_below(&c->rng, 2) ? 1 + sbp_rng_below(&c->rng, some.experts) : some.experts;
    c->command.u.experts.more = first > 0;
    c->command.u.experts.of = some.experts < s->experts ? s->experts : 0;
    add_gemm(c, &some, dtype, n, m);
}

static void test_expert_gemm(void **state) {
    (void)state;
    each_product("expert_gemm", add_gemm_of_some);
}

static void add_gemm_dw(suite_case *c, const slots *s, sbp_dtype dtype, int64_t n, int64_t m) {
    bool a_by_slot = sbp_rng_below(&c->rng, 2), b_by_slot = sbp_rng_below(&c->rng, 2);
    bool adds = sbp_rng_below(&c->rng, 2);
    suite_tensor *dw = suite_add(c, dtype == SBP_F64 ? SBP_F64 : SBP_F32, s->experts, n * m);
    suite_tensor *a = suite_add(c, dtype, s->rows, a_by_slot ? s->k * n : n);
    suite_tensor *b = suite_add(c, dtype, s->rows, b_by_slot ? s->k * m : m);
    add_order(c, s);
    c->command.kind = SBP_CMD_EXPERT_GEMM_DW;
    c->command.u.experts.a_by_slot = a_by_slot;
    c->command.u.experts.b_by_slot = b_by_slot;
    c->command.u.experts.adds = adds;
    suite_expect(c, dw);
    for (int64_t i = 0; i < s->experts * n * m && !adds; i++)
        dw->expected[i] = 0;
    for (int64_t e = 0; e < s->experts && suite_wants(c); e++)
        for (int64_t p = s->bounds[e]; p < s->bounds[e + 1] && !is_spoilt(s, e); p++)
            for (int64_t i = 0; i < n * m; i++)
                dw->expected[e * n * m + i] += slot_value(a, s, s->pairs[p], a_by_slot, i / m) *
                                               slot_value(b, s, s->pairs[p], b_by_slot, i % m);
}

static void test_expert_gemm_dw(void **state) {
    (void)state;
    each_product("expert_gemm_dw", add_gemm_dw);
}

/* 512 experts, most of them with few rows; rows as wide as those of real models. */
static void wide_case(const char *name, product_case *add, sbp_dtype dtype, int64_t rows, int64_t experts,
                      int64_t n, int64_t m, uint64_t seed) {
    suite_case *c = suite_begin(name, seed);
    slots s = make_slots(c, rows, 8, experts, EVERY);
    c->only_on = SUITE_ON_CPU;
    add(c, &s, dtype, n, m);
    suite_check(c);
    suite_end(c);
}

static void test_experts_wide(void **state) {
    (void)state;
    for (int d = 0; d < SBP_COUNT(floats); d++) {
        wide_case("expert_gemm, 512 experts", add_gemm, floats[d], 70, 512, 20, 24, (uint64_t)d);
        wide_case("expert_gemm_dw, 384 experts", add_gemm_dw, floats[d], 60, 384, 20, 24, (uint64_t)d);
        wide_case("expert_gemm, wide", add_gemm, floats[d], 12, 3, 770, 1100, (uint64_t)d + 1);
        wide_case("expert_gemm_dw, wide", add_gemm_dw, floats[d], 30, 2, 770, 1100, (uint64_t)d + 1);
    }
}

const struct CMUnitTest suite_expert_tests[] = {
    cmocka_unit_test(test_route),          cmocka_unit_test(test_route_many),
    cmocka_unit_test(test_expert_order),   cmocka_unit_test(test_expert_gemm),
    cmocka_unit_test(test_expert_gemm_dw), cmocka_unit_test(test_experts_wide)};
const int suite_expert_count = SBP_COUNT(suite_expert_tests);
