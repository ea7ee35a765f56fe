/* pack_testing.h: what tests of the packer look at. */
#ifndef SBP_TESTS_UNIT_PACK_TESTING_H
#define SBP_TESTS_UNIT_PACK_TESTING_H

#include "runtime/data/pack.h"
#include "tests/unit/io_testing.h"

/* A column of integers of the latest micro-batch. */
static inline const int32_t *ints(const sbp_packer *p, const char *name) {
    for (int32_t c = 0; c < p->column_count; c++)
        if (strcmp(p->columns[c].name, name) == 0)
            return p->columns[c].data;
    fail_msg("no column %s", name);
    return NULL;
}

#endif
