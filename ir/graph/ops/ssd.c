/* ssd.c: Mamba-2: per head a matrix that forgets, and to which each row adds one of rank 1.
 *
 *   ssd  c, b [T, G, n], x [T, H, p], decay, dt [T, H], first (i32 [T]: the row where its document begins)
 *        -> y [T, H, p], state_out [H, n, p]
 *
 *   S <- e^{decay_t} S + dt_t b_t x_t^T;   y_t = S^T c_t
 *
 *   with S [n, p] of head h, which reads b and c of group h / (H/G); S = 0 before the first row of a
 *   document, by a branch, whatever it held. decay is the logarithm of the factor: dt times a number below 0,
 *   of each head. decay, dt and states are wide (f64 where x is, else f32). What else a layer has works
 *   inside a row: the softplus of dt and its limits, D x, the norm. (transformers, mamba2_chunk_scan; Dao,
 *   Gu, Transformers are SSMs, arXiv 2405.21060.)
 *
 * State: S of all heads before a chunk. It is the delta rule without its correction (delta.c).
 *
 * Backwards, row by row from the last one, with dS of the state behind the row and S before it:
 *   y = S'^T c                  gives  dc = S' dy,            dS += c dy^T        S' = e^decay S + dt b x^T
 *   S' = e^decay S + dt b x^T   gives  u = dS^T b,  dx = dt u,  ddt = u . x,  db = dt dS x
 *                                      ddecay = sum of dS o e^decay S,  dS = e^decay dS; none from the first
 *                                      row
 * A group adds dc and db of its heads. dstate_out: dS before the first row at hand. */
#include "ir/graph/rules.h"

#include <assert.h>
#include <math.h>
#include <string.h>

enum { C, B, X, DECAY, DT, FIRST, STATE };                                                 /* ssd */
enum { S_B, S_X, S_DECAY, S_DT, S_FIRST, S_STATE };                                        /* _state */
enum { VJP_DY, VJP_C, VJP_B, VJP_X, VJP_DECAY, VJP_DT, VJP_FIRST, VJP_STATE, VJP_DSTATE }; /* _vjp */
enum { VJP_DC, VJP_DB, VJP_DX, VJP_DDECAY, VJP_DDT, VJP_DSTATE_OUT };

/* ---- shape ---------------------------------------------------------------------------------------- */

/* Operands b, x, decay, dt, first, which stand in this order in every form. */
static sbp_status check_rows(const sbp_shape *shape, int32_t b_operand) {
    const sbp_type *b = &shape->in[b_operand], *x = b + 1, *first = b + 4;
    SBP_SHAPE_REQUIRE(shape, 1,
                      b->rank == 3 && sbp_type_rows(b) != SBP_ONE && sbp_dtype_is_float(b->dtype) &&
                          b->dim[1].n >= 1 && b->dim[2].n >= 1,
                      "b is %s; [rows, groups, columns] of a float expected", sbp_shape_text(b));
    SBP_SHAPE_REQUIRE(shape, 2,
                      x->rank == 3 && x->dtype == b->dtype && sbp_dim_equal(x->dim[0], b->dim[0]) &&
                          x->dim[1].n >= 1 && x->dim[1].n % b->dim[1].n == 0 && x->dim[2].n >= 1,
                      "x is %s for b %s; a multiple of its groups, in its type, expected", sbp_shape_text(x),
                      sbp_shape_text(b));
    for (int32_t i = 2; i < 4; i++)
        SBP_SHAPE_REQUIRE(shape, 3,
                          b[i].rank == 2 && b[i].dtype == sbp_rule_wide(b->dtype) &&
                              sbp_dim_equal(b[i].dim[0], x->dim[0]) && sbp_dim_equal(b[i].dim[1], x->dim[1]),
                          "%s is %s for x %s; a wide number per head expected", i == 2 ? "decay" : "dt",
                          sbp_shape_text(&b[i]), sbp_shape_text(x));
    SBP_SHAPE_REQUIRE(shape, 4,
                      first->rank == 1 && first->dtype == SBP_I32 && sbp_dim_equal(first->dim[0], b->dim[0]),
                      "first is %s for b %s", sbp_shape_text(first), sbp_shape_text(b));
    return SBP_OK;
}

static sbp_type state_of(const sbp_type *b, const sbp_type *x) {
    return (sbp_type){.dtype = sbp_rule_wide(b->dtype), .rank = 3, .dim = {x->dim[1], b->dim[2], x->dim[2]}};
}

sbp_status sbp_state_ssd(const sbp_shape *shape, sbp_type *out) {
    *out = state_of(&shape->in[B], &shape->in[X]);
    return SBP_OK;
}

sbp_status sbp_shape_ssd(sbp_shape *shape) {
    const sbp_type *c = &shape->in[C], *b = &shape->in[B];
    SBP_TRY(check_rows(shape, B));
    SBP_SHAPE_REQUIRE(shape, 5, sbp_type_equal(c, b), "c is %s for b %s", sbp_shape_text(c),
                      sbp_shape_text(b));
    shape->out[0] = shape->in[X];
    return sbp_rule_with_state(shape, sbp_type_rows(b));
}

sbp_status sbp_shape_ssd_state(sbp_shape *shape) {
    SBP_TRY(check_rows(shape, S_B));
    sbp_type state = state_of(&shape->in[S_B], &shape->in[S_X]);
    SBP_SHAPE_REQUIRE(shape, 6,
                      sbp_rule_of_chunk(sbp_type_rows(&shape->in[S_B])) &&
                          sbp_type_equal(&shape->in[S_STATE], &state),
                      "b %s, state %s; %s expected", sbp_shape_text(&shape->in[S_B]),
                      sbp_shape_text(&shape->in[S_STATE]), sbp_shape_text(&state));
    shape->out[0] = state;
    return SBP_OK;
}

sbp_status sbp_shape_ssd_vjp(sbp_shape *shape) {
    const sbp_type *c = &shape->in[VJP_C], *b = &shape->in[VJP_B], *x = &shape->in[VJP_X];
    SBP_TRY(check_rows(shape, VJP_B));
    SBP_SHAPE_REQUIRE(shape, 5, sbp_type_equal(c, b), "c is %s for b %s", sbp_shape_text(c),
                      sbp_shape_text(b));
    SBP_SHAPE_REQUIRE(shape, 7, sbp_type_equal(&shape->in[VJP_DY], x), "dy is %s for x %s",
                      sbp_shape_text(&shape->in[VJP_DY]), sbp_shape_text(x));
    sbp_type state = state_of(b, x);
    bool given = shape->present[VJP_STATE];
    SBP_SHAPE_REQUIRE(shape, 8,
                      given ? sbp_rule_of_chunk(sbp_type_rows(b)) && shape->present[VJP_DSTATE] &&
                                  sbp_type_equal(&shape->in[VJP_STATE], &state) &&
                                  sbp_type_equal(&shape->in[VJP_DSTATE], &state)
                            : !shape->present[VJP_DSTATE] && sbp_rule_of_batch(sbp_type_rows(b)),
                      "rows %s with state %s and dstate %s", sbp_symbol_name(sbp_type_rows(b)),
                      sbp_shape_text(&shape->in[VJP_STATE]), sbp_shape_text(&shape->in[VJP_DSTATE]));
    for (int32_t r = VJP_DC; r <= VJP_DDT; r++) /* of what stands one operand behind */
        shape->out[r] = shape->in[r + 1];
    shape->out[VJP_DSTATE_OUT] = state;
    return SBP_OK;
}

/* `first` too: a state that began afresh is read by the rows behind. */
sbp_seq sbp_seq_ssd(const sbp_op *op, int32_t operand, int32_t result) {
    (void)op;
    if (result == 1)
        return sbp_seq_of(SBP_SEQ_REDUCE);
    return sbp_seq_of(operand == C ? SBP_SEQ_ROW : SBP_SEQ_RECUR);
}

SBP_RULE_SEQ_REDUCE(ssd_state)

/* dc of a row reads the states before it, db, dx and ddt what comes back from the rows behind it, ddecay
 * both. What is added to the state changes nothing of what comes back. */
sbp_seq sbp_seq_ssd_vjp(const sbp_op *op, int32_t operand, int32_t result) {
    (void)op;
    bool later = operand == VJP_DY || operand == VJP_C,
         added = operand == VJP_B || operand == VJP_X || operand == VJP_DT;
    if (result == VJP_DSTATE_OUT)
        return sbp_seq_of(SBP_SEQ_REDUCE);
    if (result == VJP_DC)
        return sbp_seq_of(later ? SBP_SEQ_ROW : SBP_SEQ_RECUR);
    if (later)
        return sbp_seq_of(SBP_SEQ_AFTER);
    if (result == VJP_DDECAY)
        return sbp_seq_of(added ? SBP_SEQ_RECUR : SBP_SEQ_ALL);
    return sbp_seq_of(added ? SBP_SEQ_ROW : SBP_SEQ_AFTER);
}

/* ---- vjp ------------------------------------------------------------------------------------------ */

sbp_status sbp_vjp_ssd(sbp_vjp *vjp) {
    sbp_builder *b = vjp->builder;
    if (vjp->dout[1] != SBP_NO_VALUE)
        return sbp_fail(b->diag, SBP_INPUT, "ssd: its state has no derivative of its own");
    if (vjp->dout[0] == SBP_NO_VALUE)
        return SBP_OK;
    sbp_value operands[] = {vjp->dout[0], vjp->in[C],     vjp->in[B],     vjp->in[X],        vjp->in[DECAY],
                            vjp->in[DT],  vjp->in[FIRST], vjp->in[STATE], vjp->dcarry[STATE]};
    sbp_value out[6];
    sbp_build(b, SBP_OP_ssd_vjp, NULL, operands, SBP_COUNT(operands), NULL, 0, out);
    memcpy(vjp->din, out, 5 * sizeof *out);
    vjp->din[STATE] = out[VJP_DSTATE_OUT];
    return b->status;
}

/* ---- eval ----------------------------------------------------------------------------------------- */

typedef struct rows {
    const sbp_tensor *c, *b, *x, *decay, *dt, *first, *state; /* c: NULL of _state; state: before `split` */
    int64_t count, groups, heads, n, p, row0;
} rows;

static rows rows_of(const sbp_eval *eval, const sbp_tensor *c, int32_t b_operand) {
    const sbp_tensor *const *in = eval->in + b_operand;
    rows r = {.c = c, .b = in[0], .x = in[1], .decay = in[2], .dt = in[3], .first = in[4], .state = in[5]};
    r.count = r.b->dim[0];
    r.groups = r.b->dim[1];
    r.heads = r.x->dim[1];
    r.n = r.b->dim[2];
    r.p = r.x->dim[2];
    r.row0 = r.state ? eval->env->row0 : 0;
    return r;
}

static bool begins(const rows *r, int64_t t) {
    return (int64_t)r->first->data[t] == r->row0 + t;
}

/* Row t of x [rows, heads, n], head h. */
static double *head_at(const sbp_tensor *x, int64_t t, int64_t h) {
    return x->data + (t * x->dim[1] + h) * x->dim[2];
}

/* What a head reads in row t. */
typedef struct step {
    const double *c, *b, *x;
    double factor, dt;
} step;

static step step_of(const rows *r, int64_t t, int64_t h) {
    int64_t group = h / (r->heads / r->groups);
    return (step){.c = r->c ? head_at(r->c, t, group) : NULL,
                  .b = head_at(r->b, t, group),
                  .x = head_at(r->x, t, h),
                  .factor = exp(r->decay->data[t * r->heads + h]),
                  .dt = r->dt->data[t * r->heads + h]};
}

/* The state behind row t into `after`, from the one before it. */
static void advance(const rows *r, int64_t t, int64_t h, const double *before, double *after) {
    step now = step_of(r, t, h);
    for (int64_t i = 0; i < r->n; i++)
        for (int64_t j = 0; j < r->p; j++)
            after[i * r->p + j] = now.factor * before[i * r->p + j] + now.dt * now.b[i] * now.x[j];
}

/* s = S of head h before row 0. */
static void start(const rows *r, int64_t h, double *s) {
    size_t bytes = (size_t)(r->n * r->p) * sizeof *s;
    if (r->state)
        memcpy(s, r->state->data + h * r->n * r->p, bytes);
    else
        memset(s, 0, bytes);
}

/* Rows of all heads forward: into y where there is one, and the state behind the last one. */
static void forward(const rows *r, sbp_tensor *y, sbp_tensor *state) {
    for (int64_t h = 0; h < r->heads; h++) {
        double *s = state->data + h * r->n * r->p;
        start(r, h, s);
        for (int64_t t = 0; t < r->count; t++) {
            if (begins(r, t))
                memset(s, 0, (size_t)(r->n * r->p) * sizeof *s);
            advance(r, t, h, s, s);
            const double *c = step_of(r, t, h).c;
            for (int64_t i = 0; y && i < r->n; i++)
                for (int64_t j = 0; j < r->p; j++)
                    head_at(y, t, h)[j] += s[i * r->p + j] * c[i];
        }
    }
}

sbp_status sbp_eval_ssd(const sbp_eval *eval) {
    rows r = rows_of(eval, eval->in[C], B);
    forward(&r, eval->out[0], eval->out[1]);
    return SBP_OK;
}

sbp_status sbp_eval_ssd_state(const sbp_eval *eval) {
    rows r = rows_of(eval, NULL, S_B);
    forward(&r, NULL, eval->out[0]);
    return SBP_OK;
}

/* Row t of head h backwards: s before it (zeros where the document begins), after behind it; ds of the state
 * behind it becomes that of the one before it. */
static void row_backward(const sbp_eval *eval, const rows *r, int64_t t, int64_t h, const double *s,
                         const double *after, double *ds) {
    step now = step_of(r, t, h);
    int64_t group = h / (r->heads / r->groups), at = t * r->heads + h;
    const double *dy = head_at(eval->in[VJP_DY], t, h);
    double *dc = head_at(eval->out[VJP_DC], t, group), *db = head_at(eval->out[VJP_DB], t, group),
           *dx = head_at(eval->out[VJP_DX], t, h), ddecay = 0, ddt = 0;
    assert(now.c);
    for (int64_t i = 0; i < r->n; i++)
        for (int64_t j = 0; j < r->p; j++) {
            double *d = &ds[i * r->p + j];
            dc[i] += after[i * r->p + j] * dy[j];
            *d += now.c[i] * dy[j];
            db[i] += now.dt * *d * now.x[j];
            dx[j] += now.dt * *d * now.b[i];
            ddt += *d * now.b[i] * now.x[j];
            *d *= now.factor;
            ddecay += *d * s[i * r->p + j];
        }
    eval->out[VJP_DDECAY]->data[at] = ddecay;
    eval->out[VJP_DDT]->data[at] = ddt;
}

sbp_status sbp_eval_ssd_vjp(const sbp_eval *eval) {
    rows r = rows_of(eval, eval->in[VJP_C], VJP_B);
    int64_t n = r.n * r.p;
    size_t bytes = (size_t)n * sizeof(double);
    double *zero = SBP_NEW_ARRAY(eval->env->arena, double, n),
           *s = SBP_NEW_ARRAY(eval->env->arena, double, (r.count + 1) * n); /* before each row, and behind */
    for (int64_t h = 0; h < r.heads; h++) {
        double *ds = eval->out[VJP_DSTATE_OUT]->data + h * n;
        if (eval->in[VJP_DSTATE])
            memcpy(ds, eval->in[VJP_DSTATE]->data + h * n, bytes);
        start(&r, h, s);
        for (int64_t t = 0; t < r.count; t++)
            advance(&r, t, h, begins(&r, t) ? zero : s + t * n, s + (t + 1) * n);
        for (int64_t t = r.count - 1; t >= 0; t--) {
            row_backward(eval, &r, t, h, begins(&r, t) ? zero : s + t * n, s + (t + 1) * n, ds);
            if (begins(&r, t))
                memset(ds, 0, bytes);
        }
    }
    return SBP_OK;
}

/* ---- examples ------------------------------------------------------------------------------------- */

static const struct {
    const char *b, *x, *heads, *state;
} cases[] = {{"f64[T,1,2]", "f64[T,1,3]", "f64[T,1]", NULL},
             {"f64[T,2,3]", "f64[T,4,2]", "f64[T,4]", NULL},
             {"f64[T,1,1]", "f64[T,3,1]", "f64[T,3]", NULL},
             {"f64[C,2,2]", "f64[C,2,3]", "f64[C,2]", "f64[2,2,3]"},
             {"f64[C,1,3]", "f64[C,2,1]", "f64[C,2]", "f64[2,3,1]"}};
enum { WHOLE = 3 }; /* cases before `split`; those behind are chunks */

/* b and what stands behind it, up to the state. */
static void example(int32_t c, sbp_example_operand *b) {
    b[0] = sbp_example_float(cases[c].b, -1, 1);
    b[1] = sbp_example_float(cases[c].x, -1, 1);
    b[2] = sbp_example_float(cases[c].heads, -1, 0);
    b[3] = sbp_example_float(cases[c].heads, 0, 1);
    b[4] = sbp_example_rows(SBP_FILL_OWN);
    b[4].type.dim[0] = b[0].type.dim[0];
    b[5].fill = SBP_FILL_ABSENT;
    if (cases[c].state)
        b[5] = sbp_example_float(cases[c].state, -1, 1);
}

bool sbp_examples_ssd(int32_t index, sbp_example *out) {
    if (index >= WHOLE)
        return false;
    example(index, &out->in[B]);
    out->in[C] = out->in[B];
    out->in_count = 7;
    return true;
}

bool sbp_examples_ssd_state(int32_t index, sbp_example *out) {
    if (WHOLE + index >= SBP_COUNT(cases))
        return false;
    example(WHOLE + index, &out->in[S_B]);
    out->in_count = 6;
    return true;
}

bool sbp_examples_ssd_vjp(int32_t index, sbp_example *out) {
    if (index >= SBP_COUNT(cases))
        return false;
    example(index, &out->in[VJP_B]);
    out->in[VJP_DY] = out->in[VJP_X];
    out->in[VJP_C] = out->in[VJP_B];
    out->in[VJP_DSTATE] = out->in[VJP_STATE];
    out->in_count = 9;
    return true;
}
