/* sweep.h: SBP_TEST_ALL=1 asks for the whole sweeps of tests, which take hours (./run-tests --all). */
#ifndef SBP_TESTS_COMMON_SWEEP_H
#define SBP_TESTS_COMMON_SWEEP_H

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static inline bool testing_all(void) {
    const char *text = getenv("SBP_TEST_ALL");
    return text && strcmp(text, "1") == 0;
}

/* `once` normally, `all` with SBP_TEST_ALL=1. */
static inline int testing_sweep(int once, int all) {
    return testing_all() ? all : once;
}

#endif
