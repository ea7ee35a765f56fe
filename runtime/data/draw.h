/* draw.h: numpy's random numbers, so that rows are chosen as `datasets` chooses them:
 * numpy.random.default_rng(seed), which is PCG64 (O'Neill, 2014: a congruential generator of 128 bits) seeded
 * by SeedSequence, and of it what Generator.shuffle takes. tests/data/mixture/choices.json has numpy's own
 * answers.
 *
 * Threads: a generator is used by one at a time.
 */
#ifndef SBP_RUNTIME_DATA_DRAW_H
#define SBP_RUNTIME_DATA_DRAW_H

#include "ir/base/base.h"

typedef struct sbp_draw {
    unsigned __int128 state, step;
    uint32_t half; /* of the latest word of 64 bits, the upper one */
    bool has_half;
} sbp_draw;

sbp_draw sbp_draw_begin(uint64_t seed);
/* 0 .. most, each as likely. */
uint32_t sbp_draw_to(sbp_draw *draw, uint32_t most);
/* As Generator.shuffle: of items 0, 1, 2, .. it makes Generator.permutation(count). At most 2^32 items. */
void sbp_draw_shuffle(sbp_draw *draw, uint32_t *items, int64_t count);

#endif
