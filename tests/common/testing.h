/* testing.h: what the tests of ops and passes share: a fixture, random numbers, comparisons.
 *
 * Everything lives in the fixture's arena. A failed check ends the cmocka test with the messages of the
 * diagnostics. Seeds are fixed: a test does the same on every run. SBP_TEST_ALL=1 in the environment asks for
 * larger sweeps. */
#ifndef SBP_TESTS_COMMON_TESTING_H
#define SBP_TESTS_COMMON_TESTING_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "ir/graph/evaluate.h"
#include "tests/common/sweep.h"
#include "tests/rowkernel_random.h"

typedef struct testing {
    sbp_arena *arena;
    sbp_diag *diag;
    sbp_rng rng;
} testing;

testing testing_open(uint64_t seed);
void testing_close(testing *t);

/* Fails the test with the messages of diag unless status is SBP_OK. */
void testing_check(testing *t, sbp_status status);
/* The call must have failed with this status and said this; clears the messages. */
void testing_check_fails(testing *t, sbp_status status, sbp_status expected, const char *message);

double testing_uniform(testing *t, double lo, double hi);
/* As testing_sweep (sweep.h), for a number of draws, of which an address sanitizer, who takes six times as
 * long, gets a third. */
int testing_draws(int once, int all);

/* ||x - y||, ||x||, and ||x - y|| / ||y||: 0 when both are 0, infinite when only y is. NaN counts as
 * infinite. */
double testing_difference(const double *x, const double *y, int64_t n);
double testing_norm(const double *x, int64_t n);
double testing_relative_error(const double *x, const double *y, int64_t n);

/* Equal texts, or fails with the first line that differs. */
void testing_same_text(const char *got, const char *want, const char *what);

#endif
