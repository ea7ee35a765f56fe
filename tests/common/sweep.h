/* sweep.h: SBP_TEST_ALL=1 asks for the whole sweeps of tests, which take hours (./run-tests --all);
 * SBP_TEST_ONLY="qwen3_moe_* gpt_oss_*" for those of some golden cases, whose names are patterns
 * of the shell. */
#ifndef SBP_TESTS_COMMON_SWEEP_H
#define SBP_TESTS_COMMON_SWEEP_H

#include <fnmatch.h>
#include <stdbool.h>
#include <stdio.h>
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

/* Whether the golden case of this name is asked for: all are without SBP_TEST_ONLY. */
static inline bool testing_wants(const char *name) {
    const char *patterns = getenv("SBP_TEST_ONLY");
    char pattern[200];
    int used;
    for (const char *at = patterns; at && sscanf(at, "%199s%n", pattern, &used) == 1; at += used)
        if (fnmatch(pattern, name, 0) == 0)
            return true;
    return !patterns;
}

#endif
