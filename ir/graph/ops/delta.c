/* delta.c: per head a matrix that forgets, and to which each row adds: with the attribute `corrects` what the
 * matrix lacks of it (the gated delta rule), without all of it (Mamba-2, SSD).
 *
 *   delta_rule  q, k [T, K, dk], v [T, V, dv], decay, beta [T, V], first (i32 [T]: the row where its document
 *               begins) -> o [T, V, dv], state_out [V, dk, dv]
 *
 *   S <- e^{decay_t} S;   d = beta_t u_t;   S <- S + k_t d^T;   o_t = S^T q_t
 *   u_t = v_t - S^T k_t, with the decayed S, if it corrects; else v_t
 *
 *   with S [dk, dv] of value head h, which reads q and k of head h / (V/K); S = 0 before the first row of a
 *   document, by a branch, whatever it held. decay is the logarithm of the factor. decay, beta and states are
 *   wide (f64 where q is, else f32).
 *
 * The delta rule's q and k come normalised and scaled (transformers, torch_recurrent_gated_delta_rule; Yang
 * et al., Gated Delta Networks, arXiv 2412.06464). Mamba-2 has C, B, x, dt for q, k, v, beta, groups for key
 * heads, and a decay of dt times a number below 0 of each head; what else a layer has works inside a row: the
 * softplus of dt and its limits, D x, the norm (transformers, mamba2_chunk_scan; Dao, Gu, Transformers are
 * SSMs, arXiv 2405.21060).
 *
 * A decay for each channel of k (Kimi Delta Attention) will be `decay` as [T, V, dk]: its rank says which of
 * both it is, and row i of S has the factor e^{decay_t[i]}. Constraint 3 allows [T, V] alone so far.
 *
 * State: S of all value heads before a chunk.
 *
 * Backwards, row by row from the last one, with dS of the state behind the row, S before it, and A =
 * e^{decay_t} S:
 *   o = S'^T q       gives  dq = S' do,                     dS += q do^T         S' = A + k d^T
 *   S' = A + k d^T   gives  dd = dS^T k,                    dk = dS d            dA = dS
 *   d = beta u       gives  dbeta = dd . u,  dv = beta dd
 *   u = v - A^T k    gives  (if it corrects)                dk -= A dv,          dA -= k dv^T
 *   A = e^decay S    gives  ddecay = sum of dA o A,         dS = e^decay dA; none from the first row
 * A key head adds dq and dk of its value heads. dstate_out: dS before the first row at hand. */
#include "ir/graph/rules.h"

#include <assert.h>
#include <math.h>
#include <string.h>

enum { Q, K, V, DECAY, BETA, FIRST, STATE };                                                 /* delta_rule */
enum { S_K, S_V, S_DECAY, S_BETA, S_FIRST, S_STATE };                                        /* _state */
enum { VJP_DO, VJP_Q, VJP_K, VJP_V, VJP_DECAY, VJP_BETA, VJP_FIRST, VJP_STATE, VJP_DSTATE }; /* _vjp */
enum { VJP_DQ, VJP_DK, VJP_DV, VJP_DDECAY, VJP_DBETA, VJP_DSTATE_OUT };

/* ---- shape ---------------------------------------------------------------------------------------- */

/* Operands k, v, decay, beta, first, which stand in this order in every form. */
static sbp_status check_rows(const sbp_shape *shape, int32_t k_operand) {
    const sbp_type *k = &shape->in[k_operand], *v = k + 1, *first = k + 4;
    SBP_SHAPE_REQUIRE(shape, 1,
                      k->rank == 3 && sbp_type_rows(k) != SBP_ONE && sbp_dtype_is_float(k->dtype) &&
                          k->dim[1].n >= 1 && k->dim[2].n >= 1,
                      "k is %s; [rows, key heads, columns] of a float expected", sbp_shape_text(k));
    SBP_SHAPE_REQUIRE(shape, 2,
                      v->rank == 3 && v->dtype == k->dtype && sbp_dim_equal(v->dim[0], k->dim[0]) &&
                          v->dim[1].n >= 1 && v->dim[1].n % k->dim[1].n == 0 && v->dim[2].n >= 1,
                      "v is %s for k %s; a multiple of its heads, in its type, expected", sbp_shape_text(v),
                      sbp_shape_text(k));
    for (int32_t i = 2; i < 4; i++)
        SBP_SHAPE_REQUIRE(shape, 3,
                          k[i].rank == 2 && k[i].dtype == sbp_rule_wide(k->dtype) &&
                              sbp_dim_equal(k[i].dim[0], v->dim[0]) && sbp_dim_equal(k[i].dim[1], v->dim[1]),
                          "%s is %s for v %s; a wide number per value head expected",
                          i == 2 ? "decay" : "beta", sbp_shape_text(&k[i]), sbp_shape_text(v));
    SBP_SHAPE_REQUIRE(shape, 4,
                      first->rank == 1 && first->dtype == SBP_I32 && sbp_dim_equal(first->dim[0], k->dim[0]),
                      "first is %s for k %s", sbp_shape_text(first), sbp_shape_text(k));
    return SBP_OK;
}

static sbp_type state_of(const sbp_type *k, const sbp_type *v) {
    return (sbp_type){.dtype = sbp_rule_wide(k->dtype), .rank = 3, .dim = {v->dim[1], k->dim[2], v->dim[2]}};
}

sbp_status sbp_state_delta_rule(const sbp_shape *shape, sbp_type *out) {
    *out = state_of(&shape->in[K], &shape->in[V]);
    return SBP_OK;
}

sbp_status sbp_shape_delta_rule(sbp_shape *shape) {
    const sbp_type *q = &shape->in[Q], *k = &shape->in[K];
    SBP_TRY(check_rows(shape, K));
    SBP_SHAPE_REQUIRE(shape, 5, sbp_type_equal(q, k), "q is %s for k %s", sbp_shape_text(q),
                      sbp_shape_text(k));
    shape->out[0] = shape->in[V];
    return sbp_rule_with_state(shape, sbp_type_rows(k));
}

sbp_status sbp_shape_delta_rule_state(sbp_shape *shape) {
    SBP_TRY(check_rows(shape, S_K));
    sbp_type state = state_of(&shape->in[S_K], &shape->in[S_V]);
    SBP_SHAPE_REQUIRE(shape, 6,
                      sbp_rule_of_chunk(sbp_type_rows(&shape->in[S_K])) &&
                          sbp_type_equal(&shape->in[S_STATE], &state),
                      "k %s, state %s; %s expected", sbp_shape_text(&shape->in[S_K]),
                      sbp_shape_text(&shape->in[S_STATE]), sbp_shape_text(&state));
    shape->out[0] = state;
    return SBP_OK;
}

sbp_status sbp_shape_delta_rule_vjp(sbp_shape *shape) {
    const sbp_type *q = &shape->in[VJP_Q], *k = &shape->in[VJP_K], *v = &shape->in[VJP_V];
    SBP_TRY(check_rows(shape, VJP_K));
    SBP_SHAPE_REQUIRE(shape, 5, sbp_type_equal(q, k), "q is %s for k %s", sbp_shape_text(q),
                      sbp_shape_text(k));
    SBP_SHAPE_REQUIRE(shape, 7, sbp_type_equal(&shape->in[VJP_DO], v), "do is %s for v %s",
                      sbp_shape_text(&shape->in[VJP_DO]), sbp_shape_text(v));
    sbp_type state = state_of(k, v);
    bool given = shape->present[VJP_STATE];
    SBP_SHAPE_REQUIRE(shape, 8,
                      given ? sbp_rule_of_chunk(sbp_type_rows(k)) && shape->present[VJP_DSTATE] &&
                                  sbp_type_equal(&shape->in[VJP_STATE], &state) &&
                                  sbp_type_equal(&shape->in[VJP_DSTATE], &state)
                            : !shape->present[VJP_DSTATE] && sbp_rule_of_batch(sbp_type_rows(k)),
                      "rows %s with state %s and dstate %s", sbp_symbol_name(sbp_type_rows(k)),
                      sbp_shape_text(&shape->in[VJP_STATE]), sbp_shape_text(&shape->in[VJP_DSTATE]));
    for (int32_t r = VJP_DQ; r <= VJP_DBETA; r++) /* of what stands one operand behind */
        shape->out[r] = shape->in[r + 1];
    shape->out[VJP_DSTATE_OUT] = state;
    return SBP_OK;
}

/* `first` too: a state that began afresh is read by the rows behind. */
sbp_seq sbp_seq_delta_rule(const sbp_op *op, int32_t operand, int32_t result) {
    (void)op;
    if (result == 1)
        return sbp_seq_of(SBP_SEQ_REDUCE);
    return sbp_seq_of(operand == Q ? SBP_SEQ_ROW : SBP_SEQ_RECUR);
}

SBP_RULE_SEQ_REDUCE(delta_rule_state)

/* dq of a row reads the states before it, dv what comes back from the rows behind it, ddecay both. dk and
 * dbeta do as well if it corrects, else they do as dv: then what is added to the state changes nothing of
 * what comes back. */
sbp_seq sbp_seq_delta_rule_vjp(const sbp_op *op, int32_t operand, int32_t result) {
    bool later = operand == VJP_DO || operand == VJP_Q, corrects = sbp_op_int(op, "corrects") != 0,
         added = operand == VJP_K || operand == VJP_V || operand == VJP_BETA;
    if (result == VJP_DSTATE_OUT)
        return sbp_seq_of(SBP_SEQ_REDUCE);
    if (result == VJP_DQ)
        return sbp_seq_of(later ? SBP_SEQ_ROW : SBP_SEQ_RECUR);
    if (later)
        return sbp_seq_of(SBP_SEQ_AFTER);
    if (corrects)
        return sbp_seq_of(result == VJP_DV ? SBP_SEQ_AFTER : SBP_SEQ_ALL);
    if (result == VJP_DDECAY)
        return sbp_seq_of(added ? SBP_SEQ_RECUR : SBP_SEQ_ALL);
    return sbp_seq_of(added ? SBP_SEQ_ROW : SBP_SEQ_AFTER);
}

/* ---- vjp ------------------------------------------------------------------------------------------ */

sbp_status sbp_vjp_delta_rule(sbp_vjp *vjp) {
    sbp_builder *b = vjp->builder;
    if (vjp->dout[1] != SBP_NO_VALUE)
        return sbp_fail(b->diag, SBP_INPUT, "delta_rule: its state has no derivative of its own");
    if (vjp->dout[0] == SBP_NO_VALUE)
        return SBP_OK;
    sbp_value operands[] = {vjp->dout[0],  vjp->in[Q],     vjp->in[K],     vjp->in[V],        vjp->in[DECAY],
                            vjp->in[BETA], vjp->in[FIRST], vjp->in[STATE], vjp->dcarry[STATE]};
    sbp_value out[6];
    const sbp_attr corrects = sbp_attr_bool("corrects", sbp_op_int(&vjp->op, "corrects") != 0);
    sbp_build(b, SBP_OP_delta_rule_vjp, NULL, operands, SBP_COUNT(operands), &corrects, 1, out);
    memcpy(vjp->din, out, 5 * sizeof *out);
    vjp->din[STATE] = out[VJP_DSTATE_OUT];
    return b->status;
}

/* ---- eval ----------------------------------------------------------------------------------------- */

typedef struct rows {
    const sbp_tensor *q, *k, *v, *decay, *beta, *first, *state; /* q: NULL of _state; state: before `split` */
    int64_t count, key_heads, heads, dk, dv, row0;
    bool corrects;
} rows;

static rows rows_of(const sbp_eval *eval, const sbp_tensor *q, int32_t k_operand) {
    const sbp_tensor *const *in = eval->in + k_operand;
    rows r = {.q = q, .k = in[0], .v = in[1], .decay = in[2], .beta = in[3], .first = in[4], .state = in[5]};
    r.count = r.k->dim[0];
    r.key_heads = r.k->dim[1];
    r.heads = r.v->dim[1];
    r.dk = r.k->dim[2];
    r.dv = r.v->dim[2];
    r.row0 = r.state ? eval->env->row0 : 0;
    r.corrects = sbp_op_int(eval->op, "corrects") != 0;
    return r;
}

static bool begins(const rows *r, int64_t t) {
    return (int64_t)r->first->data[t] == r->row0 + t;
}

/* Row t of x [rows, heads, n], head h. */
static double *head_at(const sbp_tensor *x, int64_t t, int64_t h) {
    return x->data + (t * x->dim[1] + h) * x->dim[2];
}

/* What a value head reads in row t. */
typedef struct step {
    const double *q, *k, *v;
    double factor, beta;
} step;

static step step_of(const rows *r, int64_t t, int64_t h) {
    int64_t kh = h / (r->heads / r->key_heads);
    return (step){.q = r->q ? head_at(r->q, t, kh) : NULL,
                  .k = head_at(r->k, t, kh),
                  .v = head_at(r->v, t, h),
                  .factor = exp(r->decay->data[t * r->heads + h]),
                  .beta = r->beta->data[t * r->heads + h]};
}

/* u = v - A^T k, with A = factor s: what the state is wrong by; or v. */
static void error_of(const rows *r, const step *now, const double *s, double *u) {
    for (int64_t j = 0; j < r->dv; j++) {
        u[j] = now->v[j];
        for (int64_t i = 0; i < r->dk && r->corrects; i++)
            u[j] -= now->factor * s[i * r->dv + j] * now->k[i];
    }
}

/* The state behind row t into `after`, from the one before it. */
static void advance(const rows *r, int64_t t, int64_t h, const double *before, double *after, double *u) {
    step now = step_of(r, t, h);
    error_of(r, &now, before, u);
    for (int64_t i = 0; i < r->dk; i++)
        for (int64_t j = 0; j < r->dv; j++)
            after[i * r->dv + j] = now.factor * before[i * r->dv + j] + now.beta * u[j] * now.k[i];
}

/* s = S of head h before row 0. */
static void start(const rows *r, int64_t h, double *s) {
    size_t bytes = (size_t)(r->dk * r->dv) * sizeof *s;
    if (r->state)
        memcpy(s, r->state->data + h * r->dk * r->dv, bytes);
    else
        memset(s, 0, bytes);
}

/* Rows of all heads forward: into o where there is one, and the state behind the last one. */
static void forward(const sbp_eval *eval, const rows *r, sbp_tensor *o, sbp_tensor *state) {
    double *u = SBP_NEW_ARRAY(eval->env->arena, double, r->dv);
    for (int64_t h = 0; h < r->heads; h++) {
        double *s = state->data + h * r->dk * r->dv;
        start(r, h, s);
        for (int64_t t = 0; t < r->count; t++) {
            if (begins(r, t))
                memset(s, 0, (size_t)(r->dk * r->dv) * sizeof *s);
            advance(r, t, h, s, s, u);
            const double *q = step_of(r, t, h).q;
            for (int64_t i = 0; o && i < r->dk; i++)
                for (int64_t j = 0; j < r->dv; j++)
                    head_at(o, t, h)[j] += s[i * r->dv + j] * q[i];
        }
    }
}

sbp_status sbp_eval_delta_rule(const sbp_eval *eval) {
    rows r = rows_of(eval, eval->in[Q], K);
    forward(eval, &r, eval->out[0], eval->out[1]);
    return SBP_OK;
}

sbp_status sbp_eval_delta_rule_state(const sbp_eval *eval) {
    rows r = rows_of(eval, NULL, S_K);
    forward(eval, &r, NULL, eval->out[0]);
    return SBP_OK;
}

/* Row t of head h backwards: s before it (zeros where the document begins), after behind it; ds of the state
 * behind it becomes that of the one before it. u: scratch, [2 dv]. */
static void row_backward(const sbp_eval *eval, const rows *r, int64_t t, int64_t h, const double *s,
                         const double *after, double *ds, double *u) {
    step now = step_of(r, t, h);
    int64_t kh = h / (r->heads / r->key_heads), at = t * r->heads + h;
    const double *dout = head_at(eval->in[VJP_DO], t, h);
    double *dq = head_at(eval->out[VJP_DQ], t, kh), *dk = head_at(eval->out[VJP_DK], t, kh),
           *dv = head_at(eval->out[VJP_DV], t, h), *dd = u + r->dv, ddecay = 0;
    assert(now.q);
    error_of(r, &now, s, u);
    for (int64_t i = 0; i < r->dk; i++)
        for (int64_t j = 0; j < r->dv; j++) {
            dq[i] += after[i * r->dv + j] * dout[j];
            ds[i * r->dv + j] += now.q[i] * dout[j];
        }
    for (int64_t j = 0; j < r->dv; j++) {
        dd[j] = 0;
        for (int64_t i = 0; i < r->dk; i++) {
            dd[j] += ds[i * r->dv + j] * now.k[i];
            dk[i] += ds[i * r->dv + j] * now.beta * u[j];
        }
        eval->out[VJP_DBETA]->data[at] += dd[j] * u[j];
        dv[j] = now.beta * dd[j];
    }
    for (int64_t i = 0; i < r->dk; i++)
        for (int64_t j = 0; j < r->dv; j++) {
            double a = now.factor * s[i * r->dv + j], da = ds[i * r->dv + j];
            if (r->corrects) {
                da -= now.k[i] * dv[j];
                dk[i] -= a * dv[j];
            }
            ddecay += da * a;
            ds[i * r->dv + j] = now.factor * da;
        }
    eval->out[VJP_DDECAY]->data[at] = ddecay;
}

sbp_status sbp_eval_delta_rule_vjp(const sbp_eval *eval) {
    rows r = rows_of(eval, eval->in[VJP_Q], VJP_K);
    int64_t n = r.dk * r.dv;
    size_t bytes = (size_t)n * sizeof(double);
    double *u = SBP_NEW_ARRAY(eval->env->arena, double, 2 * r.dv),
           *zero = SBP_NEW_ARRAY(eval->env->arena, double, n),
           *s = SBP_NEW_ARRAY(eval->env->arena, double, (r.count + 1) * n); /* before each row, and behind */
    for (int64_t h = 0; h < r.heads; h++) {
        double *ds = eval->out[VJP_DSTATE_OUT]->data + h * n;
        if (eval->in[VJP_DSTATE])
            memcpy(ds, eval->in[VJP_DSTATE]->data + h * n, bytes);
        start(&r, h, s);
        for (int64_t t = 0; t < r.count; t++)
            advance(&r, t, h, begins(&r, t) ? zero : s + t * n, s + (t + 1) * n, u);
        for (int64_t t = r.count - 1; t >= 0; t--) {
            row_backward(eval, &r, t, h, begins(&r, t) ? zero : s + t * n, s + (t + 1) * n, ds, u);
            if (begins(&r, t))
                memset(ds, 0, bytes);
        }
    }
    return SBP_OK;
}

/* ---- examples ------------------------------------------------------------------------------------- */

static const struct {
    const char *k, *v, *heads, *state;
} cases[] = {{"f64[T,1,2]", "f64[T,1,3]", "f64[T,1]", NULL},
             {"f64[T,2,3]", "f64[T,4,2]", "f64[T,4]", NULL},
             {"f64[T,1,1]", "f64[T,3,1]", "f64[T,3]", NULL},
             {"f64[C,2,2]", "f64[C,2,3]", "f64[C,2]", "f64[2,2,3]"},
             {"f64[C,1,3]", "f64[C,2,1]", "f64[C,2]", "f64[2,3,1]"}};
enum { WHOLE = 3, CASES = SBP_COUNT(cases) }; /* WHOLE: cases before `split`; those behind are chunks */

/* Each of `count` cases from `first` on, with corrections and then without: the attribute; from operand k on,
 * k and what stands behind it, up to the state. */
static bool example(int32_t index, int32_t first, int32_t count, int32_t k_operand, sbp_example *out) {
    sbp_example_operand *k = &out->in[k_operand];
    int32_t c = first + index / 2;
    if (index >= 2 * count)
        return false;
    out->attrs[0] = sbp_attr_bool("corrects", index % 2 == 0);
    out->attr_count = 1;
    k[0] = sbp_example_float(cases[c].k, -1, 1);
    k[1] = sbp_example_float(cases[c].v, -1, 1);
    k[2] = sbp_example_float(cases[c].heads, -1, 0);
    k[3] = sbp_example_float(cases[c].heads, 0, 1);
    k[4] = sbp_example_rows(SBP_FILL_OWN);
    k[4].type.dim[0] = k[0].type.dim[0];
    k[5].fill = SBP_FILL_ABSENT;
    if (cases[c].state)
        k[5] = sbp_example_float(cases[c].state, -1, 1);
    return true;
}

bool sbp_examples_delta_rule(int32_t index, sbp_example *out) {
    if (!example(index, 0, WHOLE, K, out))
        return false;
    out->in[Q] = out->in[K];
    out->in_count = 7;
    return true;
}

bool sbp_examples_delta_rule_state(int32_t index, sbp_example *out) {
    if (!example(index, WHOLE, CASES - WHOLE, S_K, out))
        return false;
    out->in_count = 6;
    return true;
}

bool sbp_examples_delta_rule_vjp(int32_t index, sbp_example *out) {
    if (!example(index, 0, CASES, VJP_K, out))
        return false;
    out->in[VJP_DO] = out->in[VJP_V];
    out->in[VJP_Q] = out->in[VJP_K];
    out->in[VJP_DSTATE] = out->in[VJP_STATE];
    out->in_count = 9;
    return true;
}
