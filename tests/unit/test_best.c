/* The rules of best.h: as transformers' own code has them (tests/data/best), and as a model of them says that
 * looks at all evaluations again each time; with the state of a run going through a checkpoint in between. */
#include "tests/unit/io_testing.h"

#include <math.h>

#include "ir/base/json.h"
#include "runtime/train/checkpoint_state.h"
#include "tests/rowkernel_random.h"

enum { MOST = 40, EVERY = 10 };

/* A run that trains nothing: its evaluations and checkpoints. */
typedef struct run {
    sbp_best_rule rule;
    int64_t keep, save; /* evaluations between checkpoints */
    sbp_best best;
    int64_t left[2 * MOST]; /* steps of checkpoints, the newest first */
    int64_t count;
} run;

static bool evaluate(run *r, int64_t step, double value) {
    bool goes[2 * MOST], better = sbp_best_evaluated(&r->rule, &r->best, step, value);
    if (!better && step / EVERY % r->save != 0)
        return better;
    memmove(r->left + 1, r->left, (size_t)r->count++ * sizeof *r->left);
    r->left[0] = step;
    sbp_best_discards(r->left, r->count, r->keep, r->best.step, goes);
    int64_t to = 0;
    for (int64_t i = 0; i < r->count; i++)
        if (!goes[i])
            r->left[to++] = r->left[i];
    r->count = to;
    return better;
}

/* ---- transformers ----------------------------------------------------------------------------------- */

static int64_t whole(io_fixture *f, const sbp_json *object, const char *key) {
    int64_t value = -1;
    assert_ok(f, sbp_json_get_i64(f->diag, object, key, SBP_JSON_REQUIRED, &value));
    return value;
}

static void check_seen(io_fixture *f, const run *r, const sbp_json *seen, bool better) {
    bool stops, new;
    const sbp_json *left = sbp_json_member(seen, "left");
    assert_ok(f, sbp_json_get_bool(f->diag, seen, "stops", SBP_JSON_REQUIRED, &stops));
    assert_ok(f, sbp_json_get_bool(f->diag, seen, "new", SBP_JSON_REQUIRED, &new));
    assert_int_equal(new, better);
    assert_int_equal(whole(f, seen, "best"), r->best.step);
    assert_int_equal(whole(f, seen, "worse"), r->best.worse);
    assert_int_equal(stops, sbp_best_stops(&r->rule, &r->best));
    assert_int_equal(left->count, r->count);
    for (int64_t i = 0; i < r->count; i++)
        assert_int_equal(left->items[i].integer, r->left[r->count - 1 - i]);
}

static void test_as_transformers(void **state) {
    io_fixture *f = *state;
    const sbp_json *root, *cases;
    assert_ok(f, sbp_json_read(f->arena, f->diag, "tests/data/best/rule.json", SBP_JSON_PYTHON, &root));
    cases = sbp_json_member(root, "cases");
    assert_int_equal(whole(f, root, "every"), EVERY);
    assert_true(cases->count > 70);
    for (int64_t c = 0; c < cases->count; c++) {
        const sbp_json *one = &cases->items[c], *values = sbp_json_member(one, "values"),
                       *seen = sbp_json_member(one, "seen");
        run r = {.rule = {.patience = whole(f, one, "patience")},
                 .keep = whole(f, one, "keep"),
                 .save = whole(f, one, "save"),
                 .best = SBP_BEST_NONE};
        assert_ok(f, sbp_json_get_bool(f->diag, one, "greater", SBP_JSON_REQUIRED, &r.rule.greater));
        assert_ok(f, sbp_json_get_double(f->diag, one, "threshold", SBP_JSON_REQUIRED, &r.rule.threshold));
        for (int64_t k = 0; k < seen->count; k++) {
            const sbp_json *v = &values->items[k];
            double value = v->kind == SBP_JSON_INT ? (double)v->integer : v->real;
            check_seen(f, &r, &seen->items[k], evaluate(&r, EVERY * (k + 1), value));
        }
        assert_true(seen->count == values->count || sbp_best_stops(&r.rule, &r.best));
    }
}

/* ---- the model -------------------------------------------------------------------------------------- */

/* Evaluation k was the best of all up to it: better than each before, of those that are numbers. */
static bool is_record(const sbp_best_rule *rule, const double *values, int k) {
    const double sign = rule->greater ? -1 : 1;
    bool record = !isnan(values[k]) && sign * values[k] < (double)INFINITY;
    for (int i = 0; i < k; i++)
        record = record && (isnan(values[i]) || sign * values[k] < sign * values[i]);
    return record;
}

static int best_up_to(const sbp_best_rule *rule, const double *values, int k) {
    while (k >= 0 && !is_record(rule, values, k))
        k--;
    return k;
}

/* Evaluations up to k that were no improvement, back to the last that was one, or the first. */
static int worse_up_to(const sbp_best_rule *rule, const double *values, int k) {
    int count = 0;
    for (; k > 0; k--, count++) {
        int before = best_up_to(rule, values, k - 1);
        if (is_record(rule, values, k) && (before < 0 || fabs(values[k] - values[before]) > rule->threshold))
            break;
    }
    return count;
}

/* Through trainer_state.json, as a run that was killed and goes on. */
static void resume(io_fixture *f, sbp_best *best, int64_t step) {
    sbp_checkpoint_mark mark;
    sbp_run_state before = {.step = step, .evaluated = step, .best = *best, .loss_count = step}, after = {0};
    const char *text = sbp_checkpoint_state_text(f->arena, &before, &mark);
    io_put(io_path(f, "trainer_state.json"), text, strlen(text));
    assert_ok(f, sbp_checkpoint_state_read(f->arena, f->diag, f->directory, &after, &mark));
    *best = after.best;
    assert_int_equal(before.best.step, best->step);
    assert_int_equal(before.best.worse, best->worse);
    assert_int_equal(before.best.seen, best->seen);
    assert_true(before.best.of == best->of);
    assert_true(!isfinite(before.best.value) || before.best.value == best->value);
    assert_true(isnan(before.best.before) ? isnan(best->before) : before.best.before == best->before);
}

/* The newest, the best, and of the others the newest, `keep` in all where that is more. */
static bool is_left(const run *r, const int64_t *saved, int64_t count, int64_t i) {
    int64_t better_claims = 0;
    if (i == count - 1 || saved[i] == r->best.step)
        return true;
    for (int64_t k = 0; k < count; k++)
        better_claims += k > i || saved[k] == r->best.step;
    return better_claims < r->keep;
}

static double draw_value(sbp_rng *rng) {
    static const double odd[] = {NAN, INFINITY, -INFINITY};
    int kind = (int)sbp_rng_below(rng, 20);
    return kind < 3 ? odd[kind] : (double)sbp_rng_below(rng, 9) / 4;
}

static void check_run(io_fixture *f, sbp_rng *rng, int64_t *resumed) {
    double values[MOST];
    int64_t saved[MOST], saves = 0;
    run r = {.rule = {.greater = sbp_rng_below(rng, 2) == 0,
                      .patience = sbp_rng_below(rng, 6),
                      .threshold = (double)sbp_rng_below(rng, 4) / 4},
             .keep = sbp_rng_below(rng, 5),
             .save = 1 + sbp_rng_below(rng, 5),
             .best = SBP_BEST_NONE};
    r.best.before = draw_value(rng);
    if (!isfinite(r.best.before))
        r.best.before = NAN;
    for (int k = 0; k < MOST && !sbp_best_stops(&r.rule, &r.best); k++) {
        int64_t step = EVERY * (k + 1);
        values[k] = draw_value(rng);
        bool better = evaluate(&r, step, values[k]);
        int best = best_up_to(&r.rule, values, k), worse = worse_up_to(&r.rule, values, k);
        assert_int_equal(better, best == k);
        assert_int_equal(r.best.step, EVERY * (best + 1));
        assert_int_equal(r.best.worse, worse);
        assert_int_equal(sbp_best_stops(&r.rule, &r.best), r.rule.patience > 0 && worse >= r.rule.patience);
        if (best == k || (k + 1) % r.save == 0)
            saved[saves++] = step;
        int64_t left = r.count;
        for (int64_t i = 0; i < saves; i++) /* the newest last */
            if (r.keep == 0 || is_left(&r, saved, saves, i))
                assert_int_equal(saved[i], r.left[--left]);
        assert_int_equal(left, 0);
        if (saves > 0 && sbp_rng_below(rng, 4) == 0) {
            resume(f, &r.best, step);
            ++*resumed;
        }
    }
}

static void test_as_the_model(void **state) {
    io_fixture *f = *state;
    int64_t resumed = 0;
    for (uint64_t seed = 0; seed < 400; seed++) {
        sbp_rng rng = {seed};
        check_run(f, &rng, &resumed);
        io_renew(f);
    }
    assert_true(resumed > 400);
}

/* States that no run could have. */
static void test_states_are_checked(void **state) {
    io_fixture *f = *state;
    static const char *const wrong[] = {"\"best_global_step\": 11", "\"best_global_step\": -1",
                                        "\"early_stopping_patience_counter\": 11", "\"best_loss_count\": 11"};
    sbp_checkpoint_mark mark;
    sbp_run_state s = {.step = 10, .loss_count = 10, .best = SBP_BEST_NONE}, read = {0};
    s.best.seen = true;
    s.best.step = s.best.worse = s.best.loss_count = 9;
    s.best.value = 1;
    const char *text = sbp_checkpoint_state_text(f->arena, &s, &mark);
    for (int i = 0; i < SBP_COUNT(wrong); i++) {
        size_t key = strcspn(wrong[i], ":") + 2;
        const char *at = strstr(text, sbp_arena_strndup(f->arena, wrong[i], key));
        assert_non_null(at);
        const char *bad =
            sbp_arena_printf(f->arena, "%.*s%s%s", (int)(at - text), text, wrong[i], at + key + 1);
        io_put(io_path(f, "trainer_state.json"), bad, strlen(bad));
        assert_int_equal(sbp_checkpoint_state_read(f->arena, f->diag, f->directory, &read, &mark), SBP_INPUT);
        assert_non_null(strstr(sbp_diag_text(f->diag, SBP_ERROR), "is not in 0 .. 10"));
        sbp_diag_clear(f->diag);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_as_transformers, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_as_the_model, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_states_are_checked, io_setup, io_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
