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

/* ---- runs, killed and not ------------------------------------------------------------------------------ */

/* What decides, drawn. */
typedef struct drawn {
    sbp_best_rule rule;
    int64_t keep, save, every, steps; /* checkpoints that stay, steps between them and between evaluations */
    double values[MOST];              /* of evaluation k */
} drawn;

/* What a process has in memory, and what is on the disk. */
typedef struct process {
    sbp_best best;
    int64_t step;
} process;
typedef struct disk {
    int64_t steps[MOST + 1], count; /* the newest first */
    const char *newest;             /* its trainer_state.json */
} disk;

static void save(io_fixture *f, const drawn *d, const process *p, disk *on) {
    bool goes[MOST + 1];
    int64_t to = 0;
    sbp_checkpoint_mark mark;
    const sbp_run_state s = {.step = p->step, .evaluated = -1, .best = p->best, .loss_count = p->step};
    on->newest = sbp_checkpoint_state_text(f->arena, &s, &mark);
    memmove(on->steps + 1, on->steps, (size_t)on->count++ * sizeof *on->steps);
    on->steps[0] = p->step;
    sbp_best_discards(on->steps, on->count, d->keep, p->best.step, goes);
    for (int64_t i = 0; i < on->count; i++)
        if (!goes[i])
            on->steps[to++] = on->steps[i];
    on->count = to;
}

static bool is_over(const drawn *d, const process *p) {
    return p->step == d->steps || sbp_best_stops(&d->rule, &p->best);
}

/* A step as a run takes it: trained, evaluated, saved. */
static void take_step(io_fixture *f, const drawn *d, process *p, disk *on) {
    bool best = false;
    p->step++;
    if (p->step % d->every == 0 || p->step == d->steps)
        best = sbp_best_evaluated(&d->rule, &p->best, p->step, d->values[(p->step - 1) / d->every]);
    if (best || p->step % d->save == 0 || is_over(d, p))
        save(f, d, p, on);
}

/* From the newest checkpoint. */
static process resume(io_fixture *f, const disk *on) {
    sbp_run_state s = {0};
    sbp_checkpoint_mark mark;
    if (!on->newest)
        return (process){.best = SBP_BEST_NONE};
    io_put(io_path(f, "trainer_state.json"), on->newest, strlen(on->newest));
    assert_ok(f, sbp_checkpoint_state_read(f->arena, f->diag, f->directory, &s, &mark));
    assert_int_equal(s.step, on->steps[0]);
    return (process){.best = s.best, .step = s.step};
}

/* The newest, the best, and of the others the newest, `keep` in all where that is more. */
static bool is_left(const drawn *d, int64_t best, const int64_t *saved, int64_t count, int64_t i) {
    int64_t before = 0;
    if (d->keep == 0 || i == count - 1 || saved[i] == best)
        return true;
    for (int64_t k = 0; k < count; k++)
        before += k > i || saved[k] == best;
    return before < d->keep;
}

/* A run in one go, compared with the model after each step. */
static void check_whole(io_fixture *f, const drawn *d, process *p, disk *on) {
    int64_t saved[MOST], saves = 0, left;
    int k = -1, best = -1, worse = 0;
    while (!is_over(d, p)) {
        take_step(f, d, p, on);
        bool evaluated = p->step % d->every == 0 || p->step == d->steps;
        k += evaluated;
        if (k >= 0) {
            best = best_up_to(&d->rule, d->values, k);
            worse = worse_up_to(&d->rule, d->values, k);
        }
        int64_t best_step = best < 0 ? 0 : best == k && evaluated ? p->step : d->every * (best + 1);
        assert_int_equal(p->best.step, best_step < p->step ? best_step : p->step);
        assert_int_equal(p->best.worse, worse);
        bool stops = d->rule.patience > 0 && worse >= d->rule.patience;
        assert_int_equal(is_over(d, p), stops || p->step == d->steps);
        if ((evaluated && best == k) || p->step % d->save == 0 || stops || p->step == d->steps)
            saved[saves++] = p->step;
        left = on->count;
        for (int64_t i = 0; i < saves; i++) /* the newest last */
            if (is_left(d, p->best.step, saved, saves, i))
                assert_int_equal(saved[i], on->steps[--left]);
        assert_int_equal(left, 0);
    }
}

static double draw_value(sbp_rng *rng) {
    static const double odd[] = {NAN, INFINITY, -INFINITY};
    int kind = (int)sbp_rng_below(rng, 20);
    return kind < 3 ? odd[kind] : (double)sbp_rng_below(rng, 9) / 4;
}

static drawn draw(sbp_rng *rng) {
    drawn d = {.rule = {.greater = sbp_rng_below(rng, 2) == 0,
                        .patience = sbp_rng_below(rng, 6),
                        .threshold = (double)sbp_rng_below(rng, 4) / 4},
               .keep = sbp_rng_below(rng, 5),
               .save = 1 + sbp_rng_below(rng, 9),
               .every = 1 + sbp_rng_below(rng, 5),
               .steps = 1 + sbp_rng_below(rng, MOST)};
    for (int i = 0; i < MOST; i++)
        d.values[i] = draw_value(rng);
    return d;
}

/* Killed at any step, a few times over, a run ends as it does in one go. */
static void test_as_the_model(void **state) {
    io_fixture *f = *state;
    int64_t stopped = 0, kills = 0;
    for (uint64_t seed = 0; seed < 500; seed++) {
        sbp_rng rng = {seed};
        const drawn d = draw(&rng);
        process whole = {.best = SBP_BEST_NONE}, p = whole;
        disk on_whole = {.count = 0}, on = {.count = 0};
        check_whole(f, &d, &whole, &on_whole);
        for (int64_t budget = 8; !is_over(&d, &p);) {
            take_step(f, &d, &p, &on);
            if (budget > 0 && sbp_rng_below(&rng, 6) == 0) {
                p = resume(f, &on);
                kills++;
                budget--;
            }
        }
        assert_int_equal(p.step, whole.step);
        assert_int_equal(p.best.step, whole.best.step);
        assert_int_equal(p.best.worse, whole.best.worse);
        assert_int_equal(p.best.seen, whole.best.seen);
        assert_true(!isfinite(whole.best.value) || p.best.value == whole.best.value);
        assert_int_equal(on.count, on_whole.count);
        assert_memory_equal(on.steps, on_whole.steps, (size_t)on.count * sizeof *on.steps);
        stopped += whole.step < d.steps;
        io_renew(f);
    }
    assert_true(stopped > 100 && kills > 1000);
}

/* States that no run could have. */
static void test_states_are_checked(void **state) {
    io_fixture *f = *state;
    static const char *const wrong[] = {"\"best_global_step\": 11", "\"best_global_step\": -1",
                                        "\"early_stopping_patience_counter\": 11", "\"eval_loss_count\": 11"};
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
