/* test_conv.c: conv_rows and conv_rows_bwd: documents shorter than the convolution, chunks shorter than the
 * state, what is read before a document poisoned, absent operands, the state written over in its place. */
#include "tests/conformance/conformance.h"

#include <math.h>

static const int64_t row_counts[] = {0, 1, 2, 15, 16, 17, 70};
static const sbp_dtype floats[] = {SBP_F32, SBP_BF16, SBP_F16, SBP_F64};
static const int64_t tap_counts[] = {2, 3, 4, SBP_CONV_MOST_TAPS};
static const int64_t channel_counts[] = {1, 3, 300};

/* Tensors of a case, and what loops over them need. */
typedef struct conv_case {
    suite_tensor *x, *w, *bias, *first, *state;
    int64_t rows, channels, taps, row0;
    sbp_dtype type;
} conv_case;

enum {
    MODES = SBP_COUNT(floats) * SBP_COUNT(row_counts) * SBP_COUNT(tap_counts) * SBP_COUNT(channel_counts)
};

/* All combinations of type, rows, taps and channels, the last fastest. */
static conv_case conv_of_mode(int mode) {
    int channels = mode % SBP_COUNT(channel_counts), rest = mode / SBP_COUNT(channel_counts);
    int taps = rest % SBP_COUNT(tap_counts);
    rest /= SBP_COUNT(tap_counts);
    return (conv_case){.rows = row_counts[rest % SBP_COUNT(row_counts)],
                       .channels = channel_counts[channels],
                       .taps = tap_counts[taps],
                       .row0 = mode % 3 == 0 ? 0 : 37,
                       .type = floats[rest / SBP_COUNT(row_counts)]};
}

/* Documents of any length, the first one begun before the chunk; no row of x or the state is seen by rows of
 * a document that begins behind it. */
static void draw_documents(suite_case *c, conv_case *k) {
    int64_t first = k->row0 - sbp_rng_below(&c->rng, 2 * k->taps);
    for (int64_t j = 0; j < k->rows; j++) {
        if (sbp_rng_below(&c->rng, 4) == 0)
            first = k->row0 + j;
        k->first->values[j] = (double)(first > 0 ? first : 0);
    }
}

static double row_value(const conv_case *k, int64_t t, int64_t column) {
    return t >= 0 ? k->x->values[t * k->channels + column]
                  : k->state->values[(t + k->taps - 1) * k->channels + column];
}

static bool sees(const conv_case *k, int64_t j, int64_t before) {
    return k->row0 + j - before >= (int64_t)k->first->values[j];
}

static double weight(const conv_case *k, int64_t column, int64_t before) {
    return k->w->values[column * k->taps + k->taps - 1 - before];
}

/* What no row sees of the state must not matter: NaN. */
static void poison_state(const conv_case *k) {
    for (int64_t t = 1 - k->taps; t < 0; t++) {
        bool seen = false;
        for (int64_t j = 0; j < k->rows && j - t < k->taps; j++)
            seen |= sees(k, j, j - t);
        for (int64_t column = 0; !seen && column < k->channels; column++)
            k->state->values[(t + k->taps - 1) * k->channels + column] = (double)NAN;
    }
}

static void test_conv_rows(void **state) {
    (void)state;
    for (int mode = 0; mode < MODES; mode++) {
        suite_case *c = suite_begin("conv_rows", (uint64_t)mode);
        conv_case k = conv_of_mode(mode);
        /* both; y alone, as when the backward computes it again; the state alone; in place */
        bool has_y = mode % 4 != 2, has_next = mode % 4 != 1, in_place = mode % 4 == 3;
        int64_t kept = (k.taps - 1) * k.channels;
        suite_tensor *y = has_y ? suite_add(c, k.type, k.rows, k.channels) : suite_add_absent(c);
        suite_tensor *next = has_next ? suite_add(c, k.type, 1, kept) : suite_add_absent(c);
        k.x = suite_add(c, k.type, k.rows, k.channels);
        k.x->first_row = k.row0;
        k.w = has_y ? suite_add(c, k.type, k.channels, k.taps) : suite_add_absent(c);
        k.bias = has_y && mode % 5 < 2 ? suite_add(c, k.type, 1, k.channels) : suite_add_absent(c);
        k.first = has_y ? suite_add(c, mode % 2 ? SBP_I32 : SBP_I64, k.rows, 1) : suite_add_absent(c);
        k.first->first_row = k.row0;
        k.state = suite_add(c, k.type, 1, kept);
        c->command.kind = SBP_CMD_CONV_ROWS;
        if (has_y) {
            draw_documents(c, &k);
            suite_expect(c, y);
        }
        for (int64_t i = 0; has_y && i < k.rows * k.channels; i++) {
            int64_t j = i / k.channels, column = i % k.channels;
            y->expected[i] = k.bias->absent ? 0 : k.bias->values[column];
            for (int64_t before = 0; before < k.taps; before++)
                if (sees(&k, j, before))
                    y->expected[i] += weight(&k, column, before) * row_value(&k, j - before, column);
        }
        if (has_next)
            suite_expect(c, next);
        if (in_place) {
            next->same_as = (int32_t)(k.state - c->tensors);
            memcpy(next->values, k.state->values, (size_t)kept * sizeof(double));
        }
        for (int64_t i = 0; has_next && i < kept; i++)
            next->expected[i] = row_value(&k, k.rows - k.taps + 1 + i / k.channels, i % k.channels);
        if (has_y && !has_next && k.rows > 0)
            poison_state(&k);
        suite_check(c);
        suite_end(c);
    }
}

static void test_conv_rows_bwd(void **state) {
    (void)state;
    for (int mode = 0; mode < MODES; mode++) {
        suite_case *c = suite_begin("conv_rows_bwd", (uint64_t)mode);
        conv_case k = conv_of_mode(mode);
        bool has_dx = mode % 4 != 1, has_dw = mode % 4 != 2;
        int64_t kept = k.taps - 1;
        sbp_dtype wide = k.type == SBP_F64 ? SBP_F64 : SBP_F32;
        suite_tensor *dx = has_dx ? suite_add(c, k.type, k.rows, k.channels) : suite_add_absent(c);
        suite_tensor *dw =
            has_dw ? suite_add(c, wide, sbp_ceil_div(k.rows, SBP_PARTIAL_ROWS), k.channels * k.taps)
                   : suite_add_absent(c);
        suite_tensor *dstate = suite_add(c, wide, 1, kept * k.channels);
        suite_tensor *dy = suite_add(c, k.type, k.rows, k.channels);
        k.x = suite_add(c, k.type, k.rows, k.channels);
        k.w = suite_add(c, k.type, k.channels, k.taps);
        k.first = suite_add(c, mode % 2 ? SBP_I32 : SBP_I64, k.rows, 1);
        k.state = suite_add(c, k.type, 1, kept * k.channels);
        k.x->first_row = dy->first_row = k.first->first_row = dx->first_row = k.row0;
        c->command.kind = SBP_CMD_CONV_ROWS_BWD;
        draw_documents(c, &k);
        poison_state(&k);
        double *none = suite_alloc(c, k.rows * k.channels, sizeof(double));
        suite_expect(c, dstate);
        if (has_dx)
            suite_expect(c, dx);
        if (has_dw) {
            suite_expect(c, dw);
            memset(dw->expected, 0, (size_t)(dw->rows * dw->cols) * sizeof(double));
        }
        double *of_rows = has_dx ? dx->expected : none;
        memset(of_rows, 0, (size_t)(k.rows * k.channels) * sizeof(double));
        memset(dstate->expected, 0, (size_t)(kept * k.channels) * sizeof(double));
        for (int64_t m = 0; m < kept; m++) /* row m of next */
            for (int64_t column = 0; column < k.channels; column++) {
                int64_t t = k.rows - kept + m;
                double *to = t >= 0 ? &of_rows[t * k.channels + column]
                                    : &dstate->expected[(t + kept) * k.channels + column];
                *to += dstate->values[m * k.channels + column];
            }
        for (int64_t i = 0; i < k.rows * k.channels * k.taps; i++) {
            int64_t j = i / k.taps / k.channels, column = i / k.taps % k.channels;
            int64_t before = i % k.taps, t = j - before;
            if (!sees(&k, j, before))
                continue;
            double dyj = dy->values[j * k.channels + column];
            *(t >= 0 ? &of_rows[t * k.channels + column]
                     : &dstate->expected[(t + kept) * k.channels + column]) +=
                weight(&k, column, before) * dyj;
            if (has_dw)
                dw->expected[j / SBP_PARTIAL_ROWS * dw->cols + column * k.taps + kept - before] +=
                    dyj * row_value(&k, t, column);
        }
        suite_check(c);
        suite_end(c);
    }
}

const struct CMUnitTest suite_conv_tests[] = {cmocka_unit_test(test_conv_rows),
                                              cmocka_unit_test(test_conv_rows_bwd)};
const int suite_conv_count = SBP_COUNT(suite_conv_tests);
