/* Learning rate schedules against those of transformers, step by step (schedules.def). */
#include "tests/unit/io_testing.h"

#include <math.h>

#include "runtime/options/options.h"
#include "runtime/train/lr.h"
#include "tests/tolerance.h"

enum { STEPS = 24 };

static const struct schedule_case {
    sbp_lr_options options;
    int64_t total;
    double rates[STEPS];
} cases[] = {
#define CASE(name, warmup, total, cycles, min_lr, min_lr_rate, lr_end, power, timescale, decay_steps,        \
             stable_steps, min_lr_ratio, decay_type, warmup_type, ...)                                       \
    {{name, 1e-3, warmup, cycles, min_lr, min_lr_rate, lr_end, power, timescale, min_lr_ratio, decay_steps,  \
      stable_steps, decay_type, warmup_type},                                                                \
     total,                                                                                                  \
     {__VA_ARGS__}},
#include "tests/unit/schedules.def"
};

static sbp_lr_options plain(const char *schedule, double warmup) {
    return (sbp_lr_options){schedule, 1e-3, warmup, NAN, NAN, NAN,      1e-7,
                            1,        NAN,  0,      -1,  -1,  "cosine", "linear"};
}

static void test_rates_of_transformers(void **state) {
    io_fixture *f = *state;
    for (int c = 0; c < SBP_COUNT(cases); c++) {
        sbp_lr lr;
        assert_ok(f, sbp_lr_init(&lr, f->diag, &cases[c].options, cases[c].total));
        for (int k = 0; k < STEPS; k++) {
            double got = sbp_lr_at(&lr, k), want = cases[c].rates[k];
            if (!(fabs(got - want) <= SBP_TOLERANCE_F64 * 1e-3))
                fail_msg("%s, warmup %g, %lld steps, step %d: %.17g, transformers has %.17g",
                         cases[c].options.schedule, cases[c].options.warmup, (long long)cases[c].total, k,
                         got, want);
        }
    }
}

/* Every name of the option is a schedule, and is in the table above. */
static void test_every_name_is_known(void **state) {
    io_fixture *f = *state;
    int names = 0;
    for (int32_t i = 0; i < sbp_option_count(); i++) {
        if (strcmp(sbp_option_at(i)->name, "schedule") != 0)
            continue;
        char *values = sbp_arena_strdup(f->arena, sbp_option_at(i)->values);
        for (char *name = strtok(values, "|"); name; name = strtok(NULL, "|"), names++) {
            bool seen = false;
            for (int c = 0; c < SBP_COUNT(cases); c++)
                seen |= strcmp(cases[c].options.schedule, name) == 0;
            assert_true(seen);
        }
    }
    assert_true(names >= 10);
}

static void test_warmup_as_a_share(void **state) {
    io_fixture *f = *state;
    sbp_lr lr;
    sbp_lr_options o = plain("linear", 0.1);
    assert_ok(f, sbp_lr_init(&lr, f->diag, &o, 25));
    assert_int_equal(lr.warmup, 3); /* ceil(2.5) */
    o.warmup = 2.9;
    assert_ok(f, sbp_lr_init(&lr, f->diag, &o, 25));
    assert_int_equal(lr.warmup, 2); /* int(2.9) */
    o.warmup = 100;                 /* longer than the run */
    assert_ok(f, sbp_lr_init(&lr, f->diag, &o, 25));
    assert_true(fabs(sbp_lr_at(&lr, 24) - 0.24e-3) <= SBP_TOLERANCE_RELATIVE_F64 * 0.24e-3);
}

static void test_what_is_missing(void **state) {
    io_fixture *f = *state;
    sbp_lr lr;
    sbp_lr_options o = plain("cosine_with_min_lr", 0);
    assert_fails(f, SBP_USAGE, "needs one of the keys min_lr and min_lr_rate",
                 sbp_lr_init(&lr, f->diag, &o, 5));
    o.min_lr = o.min_lr_rate = 1e-5;
    assert_fails(f, SBP_USAGE, "not both", sbp_lr_init(&lr, f->diag, &o, 5));
    o = plain("warmup_stable_decay", 0);
    assert_fails(f, SBP_USAGE, "needs the key num_decay_steps", sbp_lr_init(&lr, f->diag, &o, 5));
    o = plain("polynomial", 0);
    o.lr = 1e-8;
    assert_fails(f, SBP_USAGE, "is not below --lr", sbp_lr_init(&lr, f->diag, &o, 5));
    o = plain("nonsense", 0);
    assert_fails(f, SBP_USAGE, "no schedule 'nonsense'", sbp_lr_init(&lr, f->diag, &o, 5));
    assert_true(sbp_lr_reads("cosine_with_min_lr", "min-lr"));
    assert_true(sbp_lr_reads("warmup_stable_decay", "min-lr-ratio"));
    assert_false(sbp_lr_reads("warmup_stable_decay", "min-lr"));
    assert_false(sbp_lr_reads("linear", "power"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_rates_of_transformers, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_every_name_is_known, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_warmup_as_a_share, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_what_is_missing, io_setup, io_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
