/* conv.c: conv_rows and its gradients, in fp32 and fp64. */
#include "backends/cpu/cpu.h"
#include "backends/cpu/kernels/convert.h"
#include "backends/cpu/kernels/kernels.h"
#include "ir/base/census.h"

enum {
    CONV_STRIP = 256,    /* channels of an item */
    CONV_ITEM_ROWS = 64, /* rows of one, forward; backward those of a row of dw */
    CONV_LINES = SBP_CONV_MOST_TAPS
};

/* The operands of either command that both have, and the item at hand. */
typedef struct conv {
    const cpu_view *x, *w, *first, *state;
    const cpu_view *y, *bias;              /* conv_rows */
    const cpu_view *dx, *dw, *dstate, *dy; /* conv_rows_bwd */
    int64_t channels, taps, strips;
} conv;

static char *conv_row(const cpu_view *view, int64_t row, int64_t column) {
    return view->data + (row * view->stride + column) * sbp_dtype_bytes(view->dtype);
}

/* How many taps of row j see a row that is there: as many as rows from the beginning of its
 * document to it. */
static int64_t conv_seen(const conv *c, int64_t j) {
    const char *at = conv_row(c->first, j, 0);
    int64_t first =
        c->first->dtype == SBP_I64 ? *(const int64_t *)(const void *)at : *(const int32_t *)(const void *)at;
    int64_t seen = c->x->first_row + j - first + 1;
    return seen < c->taps ? seen : c->taps;
}

/* Row t of the rows at hand: of x, or of the state before it. */
static const char *conv_source(const conv *c, int64_t t, int64_t column) {
    int64_t kept = c->taps - 1;
    return t >= 0 ? conv_row(c->x, t, column) : conv_row(c->state, 0, (t + kept) * c->channels + column);
}

#define REAL_IS_F64 0
#include "backends/cpu/kernels/real.h"

#include "backends/cpu/kernels/conv_body.h"

#undef REAL_IS_F64
#define REAL_IS_F64 1
#include "backends/cpu/kernels/real.h"

#include "backends/cpu/kernels/conv_body.h"

static conv conv_of(const cpu_view *x, const cpu_view *w, const cpu_view *first, const cpu_view *state) {
    conv c = {.x = x, .w = w, .first = first, .state = state, .channels = x->cols};
    c.taps = state->cols / x->cols + 1;
    c.strips = sbp_ceil_div(c.channels, CONV_STRIP);
    return c;
}

/* next[k] is row rows - (taps-1) + k. It may be the state itself: then what is read lies behind it. */
static void conv_next(const conv *c, const cpu_view *next) {
    int64_t kept = c->taps - 1, bytes = c->channels * sbp_dtype_bytes(next->dtype);
    for (int64_t k = 0; k < kept; k++)
        memmove(conv_row(next, 0, k * c->channels), conv_source(c, c->x->rows - kept + k, 0), (size_t)bytes);
}

void ISA_NAME(conv_rows)(cpu_lane *lane, const cpu_command *command) {
    const cpu_view *v = command->views;
    conv c =
        conv_of(&v[SBP_CONV_ROWS_X], &v[SBP_CONV_ROWS_W], &v[SBP_CONV_ROWS_FIRST], &v[SBP_CONV_ROWS_STATE]);
    c.y = &v[SBP_CONV_ROWS_Y];
    c.bias = &v[SBP_CONV_ROWS_BIAS];
    SBP_CROSS_IF(c.strips > 1, cpu_conv_strips);
    SBP_CROSS_EITHER(c.x->rows > CONV_ITEM_ROWS, cpu_conv_items, cpu_conv_item);
    if (c.y->data)
        cpu_pool_run(lane->pool, c.strips * sbp_ceil_div(c.x->rows, CONV_ITEM_ROWS),
                     c.x->dtype == SBP_F64 ? conv_item_f64 : conv_item_f32, &c);
    if (v[SBP_CONV_ROWS_NEXT].data)
        conv_next(&c, &v[SBP_CONV_ROWS_NEXT]);
}

void ISA_NAME(conv_rows_bwd)(cpu_lane *lane, const cpu_command *command) {
    const cpu_view *v = command->views;
    bool wide = v[SBP_CONV_ROWS_BWD_X].dtype == SBP_F64;
    conv c = conv_of(&v[SBP_CONV_ROWS_BWD_X], &v[SBP_CONV_ROWS_BWD_W], &v[SBP_CONV_ROWS_BWD_FIRST],
                     &v[SBP_CONV_ROWS_BWD_STATE]);
    c.dx = &v[SBP_CONV_ROWS_BWD_DX];
    c.dw = &v[SBP_CONV_ROWS_BWD_DW];
    c.dstate = &v[SBP_CONV_ROWS_BWD_DSTATE];
    c.dy = &v[SBP_CONV_ROWS_BWD_DY];
    SBP_CROSS_IF(c.strips > 1, cpu_conv_back_strips);
    SBP_CROSS_EITHER(c.x->rows > SBP_PARTIAL_ROWS, cpu_conv_back_items, cpu_conv_back_item);
    cpu_pool_run(lane->pool, c.strips * sbp_ceil_div(c.x->rows, SBP_PARTIAL_ROWS),
                 wide ? conv_back_item_f64 : conv_back_item_f32, &c);
    cpu_pool_run(lane->pool, c.strips, wide ? conv_state_item_f64 : conv_state_item_f32, &c);
}
