/* census.h: which of its ways the code went.
 *
 * Wherever size, type or alignment chooses between ways to compute the same, each way has a name in
 * census.def, and where it is chosen stands
 *
 *     SBP_CROSS(cpu_rows_pieces);
 *     SBP_CROSS_EITHER(vectors > most, cuda_row_block, cuda_row_warp);
 *
 * A process that the environment variable SBP_TEST_PATHS gives a file appends a line to it when it ends: the
 * test that it belongs to (SBP_TEST_NAME), and the names that were crossed. ./run-tests demands of each name
 * that a test with a truth of its own crossed it (tests/census).
 *
 * Threads: names may be crossed by several at a time. */
#ifndef SBP_IR_BASE_CENSUS_H
#define SBP_IR_BASE_CENSUS_H

#include "ir/base/base.h"

typedef enum sbp_path {
#define SBP_PATH(name, when) SBP_PATH_##name,
#include "ir/base/census.def"
#undef SBP_PATH
    SBP_PATH_COUNT
} sbp_path;

extern unsigned char sbp_census_crossed[SBP_PATH_COUNT];

/* Written once and read from then on, so that threads which cross the same path do not take the line of the
 * cache from each other. */
static inline void sbp_census_cross(sbp_path path) {
    if (!__atomic_load_n(&sbp_census_crossed[path], __ATOMIC_RELAXED))
        __atomic_store_n(&sbp_census_crossed[path], 1, __ATOMIC_RELAXED);
}

#define SBP_CROSS(name) sbp_census_cross(SBP_PATH_##name)
#define SBP_CROSS_IF(condition, name) ((condition) ? SBP_CROSS(name) : (void)0)
#define SBP_CROSS_EITHER(condition, name, other)                                                             \
    sbp_census_cross((condition) ? SBP_PATH_##name : SBP_PATH_##other)

/* Appends what was crossed so far and forgets it: a test says that this much has passed. Without
 * SBP_TEST_PATHS it only forgets. */
void sbp_census_write(void);
/* What was crossed counts for nothing: the process has failed. */
void sbp_census_forget(void);

/* What was crossed at a time, to return to it: plans that are only tried go no way. */
typedef struct sbp_census_mark {
    unsigned char crossed[SBP_PATH_COUNT];
} sbp_census_mark;
sbp_census_mark sbp_census_now(void);
void sbp_census_return(const sbp_census_mark *mark);

#endif
