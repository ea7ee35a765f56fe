/* mixture.c: rows of a mixture, chosen as `datasets` does. */
#include "runtime/data/mixture.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/data/draw.h"

static bool has_weight(const sbp_mixture_part *part) {
    return !isnan(part->weight);
}

bool sbp_mixture_takes_all(const sbp_mixture *m) {
    bool all = m->test_size == 0;
    bool shares = m->rows == SBP_MIXTURE_SHARES && m->part_count > 1; /* which depend on each other */
    for (int32_t p = 0; p < m->part_count; p++)
        all &= !has_weight(&m->parts[p]) || (m->parts[p].weight == 1 && !shares);
    return all;
}

/* As Python adds floats from 3.12 on: with what each sum loses kept beside it (Neumaier). */
static double sum_of_weights(const sbp_mixture *m) {
    double sum = 0, lost = 0;
    for (int32_t p = 0; p < m->part_count; p++) {
        double weight = m->parts[p].weight, next = sum + weight;
        lost += fabs(sum) >= fabs(weight) ? sum - next + weight : weight - next + sum;
        sum = next;
    }
    return sum + lost;
}

/* Rows of the largest mixture that has TRL's shares. */
static double rows_of_shares(const sbp_mixture *m, const int64_t *counts) {
    double sum = sum_of_weights(m), total = INFINITY;
    for (int32_t p = 0; p < m->part_count; p++) {
        double share = m->parts[p].weight / sum;
        if (share > 0 && (double)counts[p] / share < total)
            total = (double)counts[p] / share;
    }
    return total;
}

void sbp_mixture_count(const sbp_mixture *m, const int64_t *counts, int64_t *taken) {
    double sum = sum_of_weights(m), total = rows_of_shares(m, counts);
    for (int32_t p = 0; p < m->part_count; p++) {
        double weight = m->parts[p].weight;
        if (!has_weight(&m->parts[p]))
            taken[p] = counts[p];
        else if (m->rows == SBP_MIXTURE_SHARES)
            taken[p] = (int64_t)nearbyint(weight / sum * total); /* a half goes to the even number */
        else
            taken[p] = (int64_t)((double)counts[p] * weight);
        taken[p] = taken[p] < counts[p] ? taken[p] : counts[p];
    }
}

/* All rows of part p at `at`, those that are taken first. */
static void put_part(const sbp_mixture *m, int32_t p, int64_t first, int64_t count, uint32_t *at) {
    for (int64_t i = 0; i < count; i++)
        at[i] = (uint32_t)(first + i);
    if (m->rows != SBP_MIXTURE_RANDOM || !has_weight(&m->parts[p]))
        return;
    sbp_draw draw = sbp_draw_begin(m->seed);
    sbp_draw_shuffle(&draw, at, count);
}

/* Rows that are held out. */
static sbp_status count_held_out(const sbp_mixture *m, sbp_diag *diag, int64_t mixed, int64_t *out) {
    double size = m->test_size, held_out = size < 1 ? ceil(size * (double)mixed) : size;
    *out = 0;
    if (size == 0 || mixed == 0)
        return SBP_OK;
    if (held_out >= (double)mixed)
        return sbp_fail(diag, SBP_USAGE,
                        "--test-split-size %g of %lld row%s leaves none to train on: make it smaller", size,
                        (long long)mixed, mixed == 1 ? "" : "s");
    *out = (int64_t)held_out;
    return SBP_OK;
}

typedef struct choosing {
    const sbp_mixture *mixture;
    const int64_t *counts;
    int64_t *taken;
    uint32_t *rows; /* [choice->count] */
    sbp_mixture_choice *choice;
} choosing;

/* Rows of the mixture, side by side, from the beginning of c->rows. */
static void mix(const choosing *c) {
    const sbp_mixture *m = c->mixture;
    int64_t first = 0, mixed = 0;
    for (int32_t p = 0; p < m->part_count; first += c->counts[p], mixed += c->taken[p], p++)
        put_part(m, p, first, c->counts[p], c->rows + mixed);
    c->choice->mixed = mixed;
}

static sbp_status choose(const choosing *c, sbp_diag *diag) {
    const sbp_mixture *m = c->mixture;
    sbp_mixture_choice *choice = c->choice;
    int64_t held_out;
    mix(c);
    SBP_TRY(count_held_out(m, diag, choice->mixed, &held_out));
    sbp_draw draw = sbp_draw_begin(m->seed), again = draw;
    if (held_out > 0 && m->rows == SBP_MIXTURE_RANDOM && m->weighted)
        sbp_draw_shuffle(&draw, c->rows, choice->mixed);
    if (held_out > 0)
        sbp_draw_shuffle(&again, c->rows, choice->mixed);
    const uint32_t *from = m->held_out ? c->rows : c->rows + held_out;
    choice->taken = m->held_out ? held_out : choice->mixed - held_out;
    for (int64_t i = 0; i < choice->taken; i++)
        choice->bits[from[i] / 64] |= (uint64_t)1 << from[i] % 64;
    return SBP_OK;
}

sbp_status sbp_mixture_choose(const sbp_mixture *m, sbp_diag *diag, const int64_t *counts,
                              sbp_mixture_choice *out) {
    static const int64_t most_rows = (int64_t)1 << 32;
    *out = (sbp_mixture_choice){0};
    for (int32_t p = 0; p < m->part_count; p++) {
        out->count += counts[p];
        if (out->count > most_rows)
            return sbp_fail(diag, SBP_INPUT,
                            "a mixture may choose of %lld rows, these files have more: leave out "
                            "--mixture-weights and --test-split-size",
                            (long long)most_rows);
    }
    choosing c = {.mixture = m,
                  .counts = counts,
                  .taken = sbp_malloc((size_t)(m->part_count + 1) * sizeof *c.taken),
                  .rows = sbp_malloc((size_t)(out->count + 1) * sizeof *c.rows),
                  .choice = out};
    size_t bytes = ((size_t)out->count / 64 + 1) * sizeof *out->bits;
    out->bits = sbp_malloc(bytes);
    sbp_status status = SBP_OK;
    if (!c.taken || !c.rows || !out->bits)
        status =
            sbp_fail(diag, SBP_MACHINE, "out of memory for choosing of %lld rows", (long long)out->count);
    if (status == SBP_OK) {
        memset(out->bits, 0, bytes);
        sbp_mixture_count(m, counts, c.taken);
        status = choose(&c, diag);
    }
    free(c.taken);
    free(c.rows);
    if (status != SBP_OK)
        sbp_mixture_close(out);
    return status;
}

void sbp_mixture_close(sbp_mixture_choice *choice) {
    free(choice->bits);
    *choice = (sbp_mixture_choice){0};
}
