/* conv.c: a short causal convolution over the rows of each document, channel by channel.
 *
 *   conv_rows  x [T, n], w [n, 1, taps], bias [n], first (i32 [T]: the row where its document begins)
 *              -> y [T, n], state_out [taps-1, n]
 *
 *   y_t = bias + sum over s < taps of w[taps-1-s] x_{t-s}, of rows t-s >= first_t: those before a document
 *   are left out, whatever they hold. taps >= 2. (torch.nn.Conv1d with groups = n, padded on the left;
 *   transformers, Lfm2ShortConv, Qwen3NextGatedDeltaNet.)
 *
 * State: the last taps-1 rows of x before a chunk, oldest first, zeros where there are none; its rows count
 * by `first`, as others do, so that nothing in it is ever reset. A chunk shorter than the state shifts it.
 *
 *   dx_t = sum over s of w[taps-1-s] dy_{t+s}, of rows t+s that see t; in a chunk, of its rows, and beside
 *          them what later chunks have added to the row in dstate
 *   dw[taps-1-s] = sum over t of dy_t x_{t-s}, as one row [n taps]        dbias = sum over t of dy_t
 *   dstate_out: what dy of this chunk, and dstate of later ones, add to the rows of its state */
#include "ir/graph/rules.h"

#include <string.h>

enum { X, W, BIAS, FIRST, STATE };                               /* conv_rows */
enum { VJP_DY, VJP_X, VJP_W, VJP_FIRST, VJP_STATE, VJP_DSTATE }; /* conv_rows_vjp */
enum { VJP_DX, VJP_DW, VJP_DSTATE_OUT };

/* ---- shape ---------------------------------------------------------------------------------------- */

static sbp_status check_rows(const sbp_shape *shape, int32_t x_operand, int32_t w_operand,
                             int32_t first_operand) {
    const sbp_type *x = &shape->in[x_operand], *w = &shape->in[w_operand], *first = &shape->in[first_operand];
    SBP_SHAPE_REQUIRE(shape, 1, x->rank == 2 && sbp_type_rows(x) != SBP_ONE && sbp_dtype_is_float(x->dtype),
                      "x is %s; [rows, channels] of a float expected", sbp_shape_text(x));
    SBP_SHAPE_REQUIRE(shape, 2,
                      w->rank == 3 && sbp_type_rows(w) == SBP_ONE && w->dim[0].n == x->dim[1].n &&
                          w->dim[1].n == 1 && w->dim[2].n >= 2 && w->dtype == x->dtype,
                      "w is %s for x %s; [channels, 1, 2 or more] of its type expected", sbp_shape_text(w),
                      sbp_shape_text(x));
    SBP_SHAPE_REQUIRE(shape, 3,
                      first->rank == 1 && first->dtype == SBP_I32 && sbp_type_rows(first) == sbp_type_rows(x),
                      "first is %s for x %s", sbp_shape_text(first), sbp_shape_text(x));
    return SBP_OK;
}

static sbp_type state_of(const sbp_type *x, const sbp_type *w) {
    return (sbp_type){.dtype = x->dtype, .rank = 2, .dim = {sbp_dim_const(w->dim[2].n - 1), x->dim[1]}};
}

sbp_status sbp_state_conv_rows(const sbp_shape *shape, sbp_type *out) {
    *out = state_of(&shape->in[X], &shape->in[W]);
    return SBP_OK;
}

sbp_status sbp_shape_conv_rows(sbp_shape *shape) {
    const sbp_type *x = &shape->in[X], *bias = &shape->in[BIAS];
    SBP_TRY(check_rows(shape, X, W, FIRST));
    SBP_SHAPE_REQUIRE(shape, 4,
                      !shape->present[BIAS] || (bias->rank == 1 && bias->dtype == x->dtype &&
                                                sbp_dim_equal(bias->dim[0], x->dim[1])),
                      "bias is %s for x %s", sbp_shape_text(bias), sbp_shape_text(x));
    shape->out[0] = *x;
    return sbp_rule_with_state(shape, sbp_type_rows(x));
}

sbp_status sbp_shape_conv_rows_state(sbp_shape *shape) {
    const sbp_type *x = &shape->in[0], *state = &shape->in[1];
    SBP_SHAPE_REQUIRE(shape, 1,
                      x->rank == 2 && sbp_rule_of_chunk(sbp_type_rows(x)) && state->rank == 2 &&
                          sbp_type_rows(state) == SBP_ONE && state->dtype == x->dtype &&
                          state->dim[0].n >= 1 && sbp_dim_equal(state->dim[1], x->dim[1]),
                      "x %s, state %s", sbp_shape_text(x), sbp_shape_text(state));
    shape->out[0] = *state;
    return SBP_OK;
}

sbp_status sbp_shape_conv_rows_vjp(sbp_shape *shape) {
    const sbp_type *dy = &shape->in[VJP_DY], *x = &shape->in[VJP_X], *w = &shape->in[VJP_W];
    SBP_TRY(check_rows(shape, VJP_X, VJP_W, VJP_FIRST));
    SBP_SHAPE_REQUIRE(shape, 4, sbp_type_equal(dy, x), "dy is %s for x %s", sbp_shape_text(dy),
                      sbp_shape_text(x));
    sbp_type state = state_of(x, w), dstate = state;
    dstate.dtype = sbp_rule_wide(x->dtype);
    bool given = shape->present[VJP_STATE];
    SBP_SHAPE_REQUIRE(shape, 5,
                      given ? sbp_rule_of_chunk(sbp_type_rows(x)) && shape->present[VJP_DSTATE] &&
                                  sbp_type_equal(&shape->in[VJP_STATE], &state) &&
                                  sbp_type_equal(&shape->in[VJP_DSTATE], &dstate)
                            : !shape->present[VJP_DSTATE] && sbp_rule_of_batch(sbp_type_rows(x)),
                      "rows %s with state %s and dstate %s", sbp_symbol_name(sbp_type_rows(x)),
                      sbp_shape_text(&shape->in[VJP_STATE]), sbp_shape_text(&shape->in[VJP_DSTATE]));
    shape->out[VJP_DX] = *x;
    shape->out[VJP_DW] =
        (sbp_type){.dtype = dstate.dtype, .rank = 1, .dim = {sbp_dim_const(sbp_type_row_elems(w))}};
    shape->out[VJP_DSTATE_OUT] = dstate;
    return SBP_OK;
}

sbp_seq sbp_seq_conv_rows(const sbp_op *op, int32_t operand, int32_t result) {
    (void)op;
    if (result == 1)
        return sbp_seq_of(SBP_SEQ_REDUCE);
    return sbp_seq_of(operand == X ? SBP_SEQ_RECUR : SBP_SEQ_ROW);
}

SBP_RULE_SEQ_REDUCE(conv_rows_state)

/* dx of row t: from dy of rows behind it. */
sbp_seq sbp_seq_conv_rows_vjp(const sbp_op *op, int32_t operand, int32_t result) {
    (void)op;
    (void)operand;
    return sbp_seq_of(result == VJP_DX ? SBP_SEQ_AFTER : SBP_SEQ_REDUCE);
}

/* ---- vjp ------------------------------------------------------------------------------------------ */

sbp_status sbp_vjp_conv_rows(sbp_vjp *vjp) {
    sbp_builder *b = vjp->builder;
    if (vjp->dout[1] != SBP_NO_VALUE)
        return sbp_fail(b->diag, SBP_INPUT, "conv_rows: its state has no derivative of its own");
    if (vjp->dout[0] == SBP_NO_VALUE)
        return SBP_OK;
    if (vjp->need[X] || vjp->need[W]) {
        sbp_value operands[] = {vjp->dout[0],   vjp->in[X],     vjp->in[W],
                                vjp->in[FIRST], vjp->in[STATE], vjp->dcarry[STATE]};
        sbp_value out[3];
        sbp_build(b, SBP_OP_conv_rows_vjp, NULL, operands, SBP_COUNT(operands), NULL, 0, out);
        vjp->din[X] = out[VJP_DX];
        if (vjp->need[W] && b->status == SBP_OK) {
            const sbp_type *w = sbp_build_type(b, vjp->in[W]);
            vjp->din[W] = sbp_build_reshape(b, out[VJP_DW], (int64_t[]){w->dim[0].n, 1, w->dim[2].n}, 3);
        }
        vjp->din[STATE] = out[VJP_DSTATE_OUT];
    }
    if (vjp->need[BIAS] && b->status == SBP_OK)
        vjp->din[BIAS] = sbp_vjp_reduce_to(b, vjp->dout[0], sbp_build_type(b, vjp->in[BIAS]));
    return b->status;
}

/* ---- eval ----------------------------------------------------------------------------------------- */

typedef struct rows {
    const sbp_tensor *x, *w, *first, *state; /* state: NULL before `split` */
    int64_t count, channels, taps, row0;
} rows;

static rows rows_of(const sbp_eval *eval, int32_t x, int32_t w, int32_t first, int32_t state) {
    rows r = {.x = eval->in[x], .w = eval->in[w], .first = eval->in[first], .state = eval->in[state]};
    r.count = r.x->dim[0];
    r.channels = r.x->dim[1];
    r.taps = r.w->dim[2];
    r.row0 = r.state ? eval->env->row0 : 0;
    return r;
}

/* Whether row j of the chunk sees the one s before it. */
static bool sees(const rows *r, int64_t j, int64_t s) {
    return r->row0 + j - s >= (int64_t)r->first->data[j];
}

/* Number t of the rows at hand, of the state where it is negative; NULL: there is none. */
static const double *row_at(const rows *r, int64_t t) {
    if (t >= 0)
        return r->x->data + t * r->channels;
    return r->state ? r->state->data + (t + r->taps - 1) * r->channels : NULL;
}

/* The last rows of state and x. */
static void next_state(const sbp_tensor *x, const sbp_tensor *state, sbp_tensor *out) {
    int64_t n = x->dim[1], kept = out->dim[0];
    for (int64_t k = 0; k < kept; k++) {
        int64_t t = x->dim[0] - kept + k;
        const double *from = t >= 0 ? x->data + t * n : state ? state->data + (t + kept) * n : NULL;
        for (int64_t c = 0; c < n; c++)
            out->data[k * n + c] = from ? from[c] : 0;
    }
}

sbp_status sbp_eval_conv_rows(const sbp_eval *eval) {
    rows r = rows_of(eval, X, W, FIRST, STATE);
    for (int64_t j = 0; j < r.count; j++)
        for (int64_t c = 0; c < r.channels; c++) {
            double sum = eval->in[BIAS] ? eval->in[BIAS]->data[c] : 0;
            for (int64_t s = 0; s < r.taps; s++)
                if (sees(&r, j, s) && row_at(&r, j - s))
                    sum += r.w->data[c * r.taps + r.taps - 1 - s] * row_at(&r, j - s)[c];
            eval->out[0]->data[j * r.channels + c] = sum;
        }
    next_state(r.x, r.state, eval->out[1]);
    return SBP_OK;
}

sbp_status sbp_eval_conv_rows_state(const sbp_eval *eval) {
    next_state(eval->in[0], eval->in[1], eval->out[0]);
    return SBP_OK;
}

sbp_status sbp_eval_conv_rows_vjp(const sbp_eval *eval) {
    rows r = rows_of(eval, VJP_X, VJP_W, VJP_FIRST, VJP_STATE);
    const sbp_tensor *dy = eval->in[VJP_DY], *later = eval->in[VJP_DSTATE];
    double *dx = eval->out[VJP_DX]->data, *dw = eval->out[VJP_DW]->data,
           *ds = eval->out[VJP_DSTATE_OUT]->data;
    int64_t n = r.channels, kept = r.taps - 1;
    for (int64_t k = 0; later && k < kept; k++) { /* row k of the state behind the chunk */
        int64_t t = r.count - kept + k;
        double *to = t >= 0 ? dx + t * n : ds + (t + kept) * n;
        for (int64_t c = 0; c < n; c++)
            to[c] += later->data[k * n + c];
    }
    for (int64_t j = 0; j < r.count; j++)
        for (int64_t s = 0; s < r.taps; s++) {
            const double *x = row_at(&r, j - s);
            if (!sees(&r, j, s) || !x)
                continue;
            double *to = j - s >= 0 ? dx + (j - s) * n : ds + (j - s + kept) * n;
            for (int64_t c = 0; c < n; c++) {
                int64_t tap = c * r.taps + kept - s;
                to[c] += r.w->data[tap] * dy->data[j * n + c];
                dw[tap] += dy->data[j * n + c] * x[c];
            }
        }
    return SBP_OK;
}

/* ---- examples ------------------------------------------------------------------------------------- */

static const struct {
    const char *x, *w, *bias;
} cases[] = {
    {"f64[T,3]", "f64[3,1,3]", NULL}, {"f64[T,2]", "f64[2,1,4]", "f64[2]"}, {"f64[T,1]", "f64[1,1,2]", NULL}};

bool sbp_examples_conv_rows(int32_t index, sbp_example *out) {
    if (index >= SBP_COUNT(cases))
        return false;
    out->in[X] = sbp_example_float(cases[index].x, -1, 1);
    out->in[W] = sbp_example_float(cases[index].w, -1, 1);
    out->in[BIAS].fill = SBP_FILL_ABSENT;
    if (cases[index].bias)
        out->in[BIAS] = sbp_example_float(cases[index].bias, -1, 1);
    out->in[FIRST] = sbp_example_rows(SBP_FILL_OWN);
    out->in[STATE].fill = SBP_FILL_ABSENT;
    out->in_count = 5;
    return true;
}

bool sbp_examples_conv_rows_state(int32_t index, sbp_example *out) {
    out->in[0] = sbp_example_float("f64[C,2]", -1, 1);
    out->in[1] = sbp_example_float(index == 0 ? "f64[2,2]" : "f64[5,2]", -1, 1);
    out->in_count = 2;
    return index < 2;
}

bool sbp_examples_conv_rows_vjp(int32_t index, sbp_example *out) {
    if (index >= SBP_COUNT(cases))
        return false;
    out->in[VJP_DY] = out->in[VJP_X] = sbp_example_float(cases[index].x, -1, 1);
    out->in[VJP_W] = sbp_example_float(cases[index].w, -1, 1);
    out->in[VJP_FIRST] = sbp_example_rows(SBP_FILL_OWN);
    out->in[VJP_STATE].fill = out->in[VJP_DSTATE].fill = SBP_FILL_ABSENT;
    out->in_count = 6;
    return true;
}
