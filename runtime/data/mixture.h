/* mixture.h: which rows of a mixture of data sets are trained on, and which are held out: those that
 * `datasets` takes for alignment-handbook and open-r1, or for TRL. S is the seed, W a part's weight, n its
 * rows.
 *
 *   RANDOM  of each part shuffle(S).select(range(int(n * W))); all after each other; shuffle(S)
 *   FIRST   of each part select(range(int(n * W))); all after each other (alignment-handbook's dataset_mixer)
 *   SHARES  of each part select(range(round(W / sum * total))), where total is the most rows that have these
 *           shares; all after each other (TRL's `fraction`)
 *
 * A part without a weight is whole, and of RANDOM in its own order; where no weights were said, all come
 * after each other as they are. Then, with a test size T: train_test_split(test_size=T, seed=S). What is
 * chosen is a set: rows stay in the order of their files, and steps take them in an order of their own
 * (dataset.h).
 *
 * Rows are counted as their files have them, also those that are wrong. Memory: 4 bytes for each row while
 * they are chosen, then a bit. Threads: all is constant but a choice that is made.
 */
#ifndef SBP_RUNTIME_DATA_MIXTURE_H
#define SBP_RUNTIME_DATA_MIXTURE_H

#include "ir/base/base.h"

typedef enum sbp_mixture_rows { SBP_MIXTURE_RANDOM, SBP_MIXTURE_FIRST, SBP_MIXTURE_SHARES } sbp_mixture_rows;

typedef struct sbp_mixture_part {
    const char *name;   /* for messages */
    int32_t file_count; /* those that come next of the data's files */
    double weight;      /* NAN: none */
} sbp_mixture_part;

typedef struct sbp_mixture {
    const sbp_mixture_part *parts;
    int32_t part_count;
    sbp_mixture_rows rows;
    bool weighted; /* weights were said, whatever they are */
    uint64_t seed;
    double test_size; /* 0: nothing is held out; below 1 a share, else rows */
    bool held_out;    /* what is wanted: those that are, else the others */
} sbp_mixture;

typedef struct sbp_mixture_choice {
    uint64_t *bits;              /* of row i of all parts, bit i % 64 of word i / 64 */
    int64_t count, mixed, taken; /* rows of all parts; those of the mixture; and of what is wanted */
} sbp_mixture_choice;

/* Whether each row is taken, so that nothing need be counted. */
bool sbp_mixture_takes_all(const sbp_mixture *mixture);
/* Rows of each part that are in the mixture, by its weight; counts: those that it has. */
void sbp_mixture_count(const sbp_mixture *mixture, const int64_t *counts, int64_t *taken);
/* SBP_USAGE where `datasets` refuses it: a test size that leaves nothing to train on.
 * The caller closes the choice. */
sbp_status sbp_mixture_choose(const sbp_mixture *mixture, sbp_diag *diag, const int64_t *counts,
                              sbp_mixture_choice *out) SBP_CHECKED;
void sbp_mixture_close(sbp_mixture_choice *choice);

static inline bool sbp_mixture_has(const sbp_mixture_choice *choice, int64_t row) {
    return choice->bits[row / 64] >> (row % 64) & 1;
}

#endif
