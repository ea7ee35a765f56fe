/* compare_gradients.c: how far two safetensors files are apart, tensor by tensor.
 *
 *   compare_gradients A B [MOST]     prints "WORST TENSOR COUNT": the largest ||a - b|| / ||b|| and where
 *
 * Exit status 1 where they hold other names or shapes, or what is no number, or WORST is above MOST. How far
 * two runs may be apart, the same step in fp64 tells: examples/demo.py. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "frontends/formats/weights/weights.h"

typedef struct job {
    sbp_arena *arena;
    sbp_diag *diag;
    const char *paths[2];
    double most;
} job;

enum { PIECE = 1 << 20 };

static sbp_status compare_tensor(job *j, sbp_weights *const files[2], const sbp_weight *a,
                                 const sbp_weight *b, double *out) {
    static double piece[2][PIECE];
    double difference = 0, norm = 0;
    if (a->elems != b->elems || a->rank != b->rank ||
        memcmp(a->dim, b->dim, (size_t)a->rank * sizeof *a->dim) != 0)
        return sbp_fail(j->diag, SBP_INPUT, "tensor '%s' has different shapes", a->name);
    for (int64_t at = 0; at < a->elems; at += PIECE) {
        int64_t count = a->elems - at < PIECE ? a->elems - at : PIECE;
        SBP_TRY(sbp_weights_read(files[0], a, at, count, SBP_F64, piece[0], j->diag));
        SBP_TRY(sbp_weights_read(files[1], b, at, count, SBP_F64, piece[1], j->diag));
        for (int64_t i = 0; i < count; i++) {
            double d = piece[0][i] - piece[1][i];
            difference += d * d;
            norm += piece[1][i] * piece[1][i];
        }
    }
    *out = difference == 0 ? 0 : sqrt(difference / norm);
    return SBP_OK;
}

static sbp_status compare(void *user) {
    job *j = user;
    sbp_weights *files[2];
    for (int i = 0; i < 2; i++)
        SBP_TRY(sbp_weights_open(j->arena, j->diag, j->paths[i], &files[i]));
    double worst = 0;
    const char *where = "-";
    for (int32_t i = 0; i < sbp_weights_count(files[1]); i++) {
        const sbp_weight *b = sbp_weights_at(files[1], i), *a = sbp_weights_find(files[0], b->name);
        double d = 0;
        if (!a)
            return sbp_fail(j->diag, SBP_INPUT, "%s has no tensor '%s'", j->paths[0], b->name);
        SBP_TRY(compare_tensor(j, files, a, b, &d));
        if (!isnan(worst) && !(d <= worst)) { /* NaN sticks */
            worst = d;
            where = b->name;
        }
    }
    if (sbp_weights_count(files[0]) != sbp_weights_count(files[1]))
        return sbp_fail(j->diag, SBP_INPUT, "%s has tensors that %s lacks", j->paths[0], j->paths[1]);
    printf("%.3g %s %d\n", worst, where, sbp_weights_count(files[1]));
    if (!(worst <= j->most))
        return sbp_fail(j->diag, SBP_INPUT, "'%s' is %.3g apart, at most %.3g is allowed", where, worst,
                        j->most);
    return SBP_OK;
}

int main(int argc, char **argv) {
    char *end = "";
    double most = argc == 4 ? strtod(argv[3], &end) : DBL_MAX;
    if (argc < 3 || argc > 4 || *end || !(most >= 0)) {
        fputs("usage: compare_gradients A.safetensors B.safetensors [MOST]\n", stderr);
        return SBP_USAGE;
    }
    job j = {
        .arena = sbp_arena_create(), .diag = sbp_diag_create(), .paths = {argv[1], argv[2]}, .most = most};
    if (!j.arena || !j.diag)
        return SBP_MACHINE;
    sbp_status status = sbp_guard(j.arena, j.diag, compare, &j);
    fputs(sbp_diag_text(j.diag, SBP_WARNING), stderr);
    sbp_arena_destroy(j.arena);
    sbp_diag_destroy(j.diag);
    return (int)status;
}
