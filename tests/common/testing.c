/* testing.c: fixture and comparisons of the tests of ops and passes. */
#include "tests/common/testing.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Fixtures of tests that ended by a failed check are closed at the end, so that the leak checker has nothing
 * to add to the failure. */
static struct {
    sbp_arena *arena;
    sbp_diag *diag;
} opened[256];

static void close_left(void) {
    for (int i = 0; i < SBP_COUNT(opened); i++) {
        sbp_arena_destroy(opened[i].arena);
        sbp_diag_destroy(opened[i].diag);
        opened[i].arena = NULL;
        opened[i].diag = NULL;
    }
}

testing testing_open(uint64_t seed) {
    static bool registered;
    testing t = {sbp_arena_create(), sbp_diag_create(), {seed}};
    assert_non_null(t.arena);
    assert_non_null(t.diag);
    if (!registered)
        atexit(close_left);
    registered = true;
    int slot = 0;
    while (slot < SBP_COUNT(opened) && opened[slot].arena)
        slot++;
    assert_true(slot < SBP_COUNT(opened));
    opened[slot].arena = t.arena;
    opened[slot].diag = t.diag;
    return t;
}

void testing_close(testing *t) {
    for (int i = 0; i < SBP_COUNT(opened); i++)
        if (opened[i].arena == t->arena) {
            opened[i].arena = NULL;
            opened[i].diag = NULL;
        }
    sbp_arena_destroy(t->arena);
    sbp_diag_destroy(t->diag);
}

void testing_check(testing *t, sbp_status status) {
    if (status != SBP_OK)
        fail_msg("status %d\n%s", (int)status, sbp_diag_text(t->diag, SBP_NOTE));
}

void testing_check_fails(testing *t, sbp_status status, sbp_status expected, const char *message) {
    const char *text = sbp_diag_text(t->diag, SBP_ERROR);
    if (status != expected || !strstr(text, message))
        fail_msg("expected status %d with '%s', found %d with: %s", (int)expected, message, (int)status,
                 text);
    sbp_diag_clear(t->diag);
}

double testing_uniform(testing *t, double lo, double hi) {
    return lo + (hi - lo) * (0.5 * sbp_rng_unit(&t->rng) + 0.5);
}

int testing_draws(int once, int all) {
#ifdef __SANITIZE_ADDRESS__
    once = (once + 2) / 3;
#endif
    return testing_sweep(once, all);
}

double testing_difference(const double *x, const double *y, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += (x[i] - y[i]) * (x[i] - y[i]);
    return isnan(sum) ? (double)INFINITY : sqrt(sum);
}

double testing_norm(const double *x, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    return sqrt(sum);
}

double testing_relative_error(const double *x, const double *y, int64_t n) {
    double difference = testing_difference(x, y, n), norm = testing_norm(y, n);
    if (difference == 0)
        return 0;
    return norm > 0 ? difference / norm : (double)INFINITY;
}

void testing_same_text(const char *got, const char *want, const char *what) {
    size_t line = 0, k = 0;
    for (; got[k] && got[k] == want[k]; k++)
        if (got[k] == '\n')
            line = k + 1;
    if (got[k] != want[k])
        fail_msg("%s\ngot  '%.200s'\nwant '%.200s'", what, got + line, want + line);
}
