/* Tokens from logits: the distributions against those of transformers' own processors, and numbers of Philox
 * against another implementation (tests/data/generate/make.py); how often each token comes; what is refused.
 */
#include "tests/unit/io_testing.h"

#include <math.h>

#include "ir/base/json.h"
#include "runtime/generate/sampling.h"
#include "tests/tolerance.h"

enum { MOST = 64 };

static const sbp_json *table(io_fixture *f, const char *key) {
    const sbp_json *root = NULL;
    assert_ok(f, sbp_json_read(f->arena, f->diag, "tests/data/generate/sampling.json", 0, &root));
    return sbp_json_member(root, key);
}

static double number(const sbp_json *node) {
    return node->kind == SBP_JSON_NULL  ? -INFINITY
           : node->kind == SBP_JSON_INT ? (double)node->integer
                                        : node->real;
}

static int64_t read_row(const sbp_json *row, const char *key, double *out) {
    const sbp_json *list = sbp_json_member(row, key);
    assert_true(list->count > 0 && list->count <= MOST);
    for (int64_t i = 0; i < list->count; i++)
        out[i] = number(&list->items[i]);
    return list->count;
}

static sbp_sampling read_settings(const sbp_json *one) {
    return (sbp_sampling){number(&one->items[1]), one->items[2].integer, number(&one->items[3]),
                          number(&one->items[4])};
}

static sbp_sampled draw(io_fixture *f, sbp_token_sampler *s, const sbp_sampling *how, const double *logits,
                        int64_t n, double uniform) {
    sbp_sampled out;
    assert_ok(f, sbp_token_sampler_draw(s, f->diag, how, logits, n, uniform, &out));
    return out;
}

static bool near(double a, double b) {
    return fabs(a - b) <= SBP_TOLERANCE_F64 * fmax(1, fabs(b));
}

static sbp_token_sampler *create(io_fixture *f) {
    sbp_token_sampler *s;
    assert_ok(f, sbp_token_sampler_create(f->diag, MOST, &s));
    return s;
}

/* ---- distributions ------------------------------------------------------------------------------------ */

/* Each token that is left comes for the number in the middle of its own range, the first for 0, the last for
 * the number before 1: of a token more or less, all ranges and probabilities were others. */
static int64_t check_case(io_fixture *f, sbp_token_sampler *s, const sbp_json *rows, const sbp_json *one) {
    double logits[MOST], logp[MOST], sum = 0;
    const sbp_json *row = &rows->items[one->items[0].integer], *left = &one->items[5];
    int64_t n = read_row(row, "logits", logits), first = -1, last = -1;
    sbp_sampling how = read_settings(one);
    read_row(row, "logp", logp);
    assert_true(left->count > 0);
    for (int64_t i = 0; i < left->count; i++) {
        int64_t token = strtoll(left->items[i].key, NULL, 10);
        double expected = number(&left->items[i]), p = exp(expected);
        sbp_sampled got = draw(f, s, &how, logits, n, fmin(sum + p / 2, 1 - 0x1p-53));
        sum += p;
        first = first < 0 && p > 0 ? token : first;
        if (p * 0x1p50 < 1) /* hardly a number has its range */
            continue;
        if (got.token != token || !near(got.processed_logp, expected) || !near(got.logp, logp[token]))
            fail_msg(
                "row %lld at %g, %lld, %g, %g: token %lld of %.17g (%.17g), expected %lld of %.17g (%.17g)",
                (long long)one->items[0].integer, how.temperature, (long long)how.top_k, how.top_p, how.min_p,
                (long long)got.token, got.processed_logp, got.logp, (long long)token, expected, logp[token]);
        last = token;
    }
    assert_int_equal(draw(f, s, &how, logits, n, 0).token, first);
    assert_int_equal(draw(f, s, &how, logits, n, 1 - 0x1p-53).token, last);
    return left->count;
}

static void distributions_are_those_of_transformers(void **state) {
    io_fixture *f = *state;
    const sbp_json *rows = table(f, "rows"), *cases = table(f, "cases");
    sbp_token_sampler *s = create(f);
    int64_t compared = 0;
    for (int64_t i = 0; i < cases->count; i++)
        compared += check_case(f, s, rows, &cases->items[i]);
    assert_true(cases->count >= 200 && compared > 1000);
    sbp_token_sampler_destroy(s);
}

static void greedy_is_the_first_largest(void **state) {
    io_fixture *f = *state;
    const sbp_json *rows = table(f, "rows");
    static const sbp_sampling settings[] = {{0, 0, 1, 0}, {0, 2, 0.5, 0.9}};
    sbp_token_sampler *s = create(f);
    for (int64_t i = 0; i < rows->count; i++)
        for (int k = 0; k < SBP_COUNT(settings); k++) {
            double logits[MOST], logp[MOST];
            int64_t n = read_row(&rows->items[i], "logits", logits);
            read_row(&rows->items[i], "logp", logp);
            sbp_sampled got = draw(f, s, &settings[k], logits, n, 0.999);
            assert_int_equal(got.token, sbp_json_member(&rows->items[i], "greedy")->integer);
            assert_true(near(got.logp, logp[got.token]) && got.processed_logp == 0);
        }
    sbp_token_sampler_destroy(s);
}

/* What top-k, top-p leave of many logits, where most need no sorting, against counting: a token is left when
 * fewer than k, or less than p, are above it. */
static void large_vocabularies(void **state) {
    io_fixture *f = *state;
    enum { N = 5000 };
    double *logits = SBP_NEW_ARRAY(f->arena, double, N), sum = 0;
    sbp_token_sampler *s;
    assert_ok(f, sbp_token_sampler_create(f->diag, N, &s));
    for (int64_t i = 0; i < N; i++) { /* all different, in an order of their own */
        logits[i] = (double)((i * 1237 + 11) % N) / 400;
        sum += exp(logits[i]);
    }
    static const sbp_sampling settings[] = {{1, 40, 1, 0}, {1, 0, 0.9, 0}, {1, 0, 0.2, 0}, {1, 4999, 1, 0}};
    for (int k = 0; k < SBP_COUNT(settings); k++) {
        double kept = 0;
        int64_t count = 0;
        for (int64_t value = N - 1; value >= 0; value--) { /* from the largest on */
            if (settings[k].top_k > 0 ? count == settings[k].top_k : kept / sum >= settings[k].top_p)
                break;
            kept += exp((double)value / 400);
            count++;
        }
        double below = 0; /* what is kept of smaller tokens */
        for (int64_t i = 0; i < N; i++) {
            double weight = logits[i] * 400 > (double)(N - count) - 0.5 ? exp(logits[i]) : 0;
            if (weight > 0 && i % 7 == 0) {
                sbp_sampled got = draw(f, s, &settings[k], logits, N, (below + weight / 2) / kept);
                assert_int_equal(got.token, i);
                assert_true(near(got.processed_logp, logits[i] - log(kept)));
            }
            below += weight;
        }
    }
    sbp_token_sampler_destroy(s);
}

/* ---- draws -------------------------------------------------------------------------------------------- */

/* The middle of chi-square with `freedom` degrees, and its deviation: of draws that are right it is 5
 * deviations above in less than one of 10^4 (Wilson and Hilferty's transformation). */
static double chi_deviations(double chi, double freedom) {
    return (cbrt(chi / freedom) - 1 + 2 / (9 * freedom)) / sqrt(2 / (9 * freedom));
}

static double chi_square(io_fixture *f, sbp_token_sampler *s, const sbp_json *rows, const sbp_json *one,
                         uint64_t prompt, double *freedom) {
    enum { DRAWS = 20000 };
    double logits[MOST], chi = 0, rest = DRAWS, rest_found = DRAWS;
    int64_t found[MOST] = {0}, n = read_row(&rows->items[one->items[0].integer], "logits", logits);
    const sbp_json *left = &one->items[5];
    sbp_sampling how = read_settings(one);
    for (uint64_t i = 0; i < DRAWS; i++)
        found[draw(f, s, &how, logits, n, sbp_sampling_uniform(3, prompt, i % 50, i / 50)).token]++;
    *freedom = -1;
    for (int64_t i = 0; i < left->count; i++) {
        int64_t token = strtoll(left->items[i].key, NULL, 10);
        double expected = DRAWS * exp(number(&left->items[i]));
        if (expected < 5) /* seldom ones are counted together */
            continue;
        double count = (double)found[token];
        chi += (count - expected) * (count - expected) / expected;
        rest -= expected;
        rest_found -= count;
        *freedom += 1;
    }
    if (rest >= 5) {
        chi += (rest_found - rest) * (rest_found - rest) / rest;
        *freedom += 1;
    } else if (rest < 0.5) {
        assert_true(rest_found <= 5);
    }
    return chi;
}

static void draws_come_as_often_as_they_should(void **state) {
    io_fixture *f = *state;
    const sbp_json *rows = table(f, "rows"), *cases = table(f, "cases");
    sbp_token_sampler *s = create(f);
    double sum = 0, freedom, sum_freedom = 0;
    int tested = 0;
    for (int64_t i = 0; i < cases->count && cases->items[i].items[0].integer == 0; i++) {
        double chi = chi_square(f, s, rows, &cases->items[i], (uint64_t)i, &freedom);
        if (freedom < 1)
            continue;
        if (chi_deviations(chi, freedom) > 5)
            fail_msg("case %lld: chi-square of %.1f, %.0f degrees of freedom", (long long)i, chi, freedom);
        sum += chi;
        sum_freedom += freedom;
        tested++;
    }
    if (tested < 20 || fabs(chi_deviations(sum, sum_freedom)) > 5)
        fail_msg("%d cases: chi-square of %.1f, %.0f degrees of freedom", tested, sum, sum_freedom);
    sbp_token_sampler_destroy(s);
}

/* ---- numbers ------------------------------------------------------------------------------------------ */

static void numbers_are_those_of_philox(void **state) {
    io_fixture *f = *state;
    const sbp_json *all = table(f, "uniform");
    for (int64_t i = 0; i < all->count; i++) {
        uint64_t of[4];
        for (int k = 0; k < 4; k++)
            of[k] = strtoull(all->items[i].items[k].string, NULL, 10);
        assert_true(sbp_sampling_uniform(of[0], of[1], of[2], of[3]) == number(&all->items[i].items[4]));
    }
    assert_true(all->count >= 10);
}

/* ---- what is refused ---------------------------------------------------------------------------------- */

static void wrong_settings_and_logits(void **state) {
    io_fixture *f = *state;
    sbp_token_sampler *s = create(f), *none;
    sbp_sampled out;
    double logits[3] = {1, 2, 3}, nothing[2] = {-INFINITY, -INFINITY};
    static const struct {
        sbp_sampling how;
        const char *text;
    } cases[] = {{{-1, 0, 1, 0}, "a temperature of -1"}, {{NAN, 0, 1, 0}, "a temperature of"},
                 {{INFINITY, 0, 1, 0}, "a temperature"}, {{1, -1, 1, 0}, "top-k -1"},
                 {{1, 0, 1.5, 0}, "top-p 1.5"},          {{1, 0, NAN, 0}, "top-p"},
                 {{1, 0, 1, -0.5}, "min-p -0.5"},        {{0, 0, 1, 2}, "min-p 2"}};
    for (int i = 0; i < SBP_COUNT(cases); i++)
        assert_fails(f, SBP_USAGE, cases[i].text,
                     sbp_token_sampler_draw(s, f->diag, &cases[i].how, logits, 3, 0, &out));
    for (int greedy = 0; greedy < 2; greedy++) {
        sbp_sampling how = {greedy ? 0 : 1, 0, 1, 0};
        assert_fails(f, SBP_NOT_FINITE, "all 2 logits are -inf",
                     sbp_token_sampler_draw(s, f->diag, &how, nothing, 2, 0, &out));
        logits[1] = NAN;
        assert_fails(f, SBP_NOT_FINITE, "token 1 of 3 is not a number",
                     sbp_token_sampler_draw(s, f->diag, &how, logits, 3, 0, &out));
        logits[1] = INFINITY;
        assert_fails(f, SBP_NOT_FINITE, "token 1 of 3 is infinite",
                     sbp_token_sampler_draw(s, f->diag, &how, logits, 3, 0, &out));
        logits[1] = 2;
        assert_fails(f, SBP_INTERNAL, "65 logits",
                     sbp_token_sampler_draw(s, f->diag, &how, logits, MOST + 1, 0, &out));
        assert_fails(f, SBP_INTERNAL, "the number 1",
                     sbp_token_sampler_draw(s, f->diag, &how, logits, 3, 1, &out));
    }
    assert_fails(f, SBP_NOT_FINITE, "temperature 1e-310",
                 sbp_token_sampler_draw(s, f->diag, &(sbp_sampling){1e-310, 0, 1, 0}, logits, 3, 0, &out));
    assert_fails(f, SBP_INTERNAL, "0 tokens", sbp_token_sampler_create(f->diag, 0, &none));
    assert_fails(f, SBP_MACHINE, "out of memory", sbp_token_sampler_create(f->diag, INT64_MAX / 2, &none));
    sbp_token_sampler_destroy(s);
    for (int64_t n = 1;; n++) { /* each allocation fails in turn */
        sbp_test_fail_allocation(n);
        sbp_status status = sbp_token_sampler_create(NULL, 10, &s);
        sbp_test_fail_allocation(0);
        sbp_token_sampler_destroy(s);
        if (status == SBP_OK) {
            assert_int_equal(n, 5);
            break;
        }
        assert_true(status == SBP_MACHINE && !s);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(distributions_are_those_of_transformers, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(greedy_is_the_first_largest, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(large_vocabularies, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(draws_come_as_often_as_they_should, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(numbers_are_those_of_philox, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(wrong_settings_and_logits, io_setup, io_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
