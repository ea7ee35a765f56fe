/* attention.c: causal attention over packed documents, its derivative, and the carries that `split` makes of
 * its keys and values.
 *
 *   attention      q [T, heads, d_qk], k [T, kv_heads, d_qk], v [T, kv_heads, d_v], first, shared_end, own
 *                  (i32 [T], absolute rows) -> o [T, heads, d_v], lse [T, heads]
 *   attention_vjp  cotangents of q, k, v; with dk, dv given they are added to
 *   append         carry with the rows of this chunk filled in
 *   take           the rows of this chunk of a carry
 *
 * Row r sees rows [first, shared_end) and [own, r], minus those `window` or more positions back when window >
 * 0. score = scale q.k; softcap: cap tanh(score/cap). Query head h reads kv head h / (heads/kv_heads). lse is
 * the natural log of the sum of exp(score), fp32 or fp64.
 *
 * In a chunk function q has C rows, k and v are carries of T rows; or D and W (ir/base/context.h), or q has
 * this rank's rows, C (outside T), and k and v those of all, W.
 */
#include "ir/graph/rules.h"

#include <math.h>
#include <string.h>

/* ---- shape ---------------------------------------------------------------------------------------- */

static sbp_status check_rows_operand(const sbp_shape *shape, int32_t operand, sbp_symbol rows) {
    const sbp_type *t = &shape->in[operand];
    SBP_SHAPE_REQUIRE(shape, 1, t->rank == 1 && t->dtype == SBP_I32 && sbp_type_rows(t) == rows,
                      "operand %d is %s, i32[%s] expected", operand, sbp_shape_text(t),
                      sbp_symbol_name(rows));
    return SBP_OK;
}

/* Rows of a chunk, beside those of a carry. */
static bool is_chunk_of(sbp_symbol rows, sbp_symbol carry) {
    return (rows == SBP_C && carry == SBP_T) || (rows == SBP_D && carry == SBP_W);
}

/* Rows of this rank, in a chunk function or outside, beside those of all. */
static bool is_own_of(sbp_symbol rows, sbp_symbol keys) {
    return (rows == SBP_C || rows == SBP_T) && keys == SBP_W;
}

static sbp_status check_qkv(const sbp_shape *shape) {
    const sbp_type *q = &shape->in[0], *k = &shape->in[1], *v = &shape->in[2];
    sbp_symbol rows = sbp_type_rows(q), keys = sbp_type_rows(k);
    SBP_SHAPE_REQUIRE(shape, 2, q->rank == 3 && k->rank == 3 && v->rank == 3,
                      "q %s, k %s, v %s; [rows, heads, d] expected", sbp_shape_text(q), sbp_shape_text(k),
                      sbp_shape_text(v));
    SBP_SHAPE_REQUIRE(shape, 3,
                      rows != SBP_ONE && sbp_type_rows(v) == keys &&
                          (keys == rows || is_chunk_of(rows, keys) || is_own_of(rows, keys)),
                      "rows of q %s, k %s, v %s do not fit", sbp_shape_text(q), sbp_shape_text(k),
                      sbp_shape_text(v));
    SBP_SHAPE_REQUIRE(shape, 4, q->dim[2].n == k->dim[2].n, "head sizes of q %s and k %s differ",
                      sbp_shape_text(q), sbp_shape_text(k));
    SBP_SHAPE_REQUIRE(shape, 5,
                      k->dim[1].n == v->dim[1].n && k->dim[1].n > 0 && q->dim[1].n % k->dim[1].n == 0,
                      "%lld query heads over %lld key and %lld value heads", (long long)q->dim[1].n,
                      (long long)k->dim[1].n, (long long)v->dim[1].n);
    SBP_SHAPE_REQUIRE(shape, 6, q->dtype == k->dtype && q->dtype == v->dtype && sbp_dtype_is_float(q->dtype),
                      "q %s, k %s, v %s differ in type", sbp_shape_text(q), sbp_shape_text(k),
                      sbp_shape_text(v));
    SBP_SHAPE_REQUIRE(shape, 7,
                      sbp_op_int(shape->op, "window") >= 0 && sbp_op_double(shape->op, "softcap") >= 0 &&
                          isfinite(sbp_op_double(shape->op, "softcap")) &&
                          isfinite(sbp_op_double(shape->op, "scale")),
                      "window, softcap or scale out of range");
    return SBP_OK;
}

sbp_status sbp_shape_attention(sbp_shape *shape) {
    SBP_TRY(check_qkv(shape));
    const sbp_type *q = &shape->in[0], *v = &shape->in[2];
    for (int32_t i = 3; i < 6; i++)
        SBP_TRY(check_rows_operand(shape, i, sbp_type_rows(q)));
    shape->out[0] = *q;
    shape->out[0].dim[2] = v->dim[2];
    shape->out[1] = (sbp_type){.dtype = sbp_rule_wide(q->dtype), .rank = 2, .dim = {q->dim[0], q->dim[1]}};
    return SBP_OK;
}

sbp_seq sbp_seq_attention(const sbp_op *op, int32_t operand, int32_t result) {
    (void)result;
    if (operand == 1 || operand == 2)
        return sbp_seq_windowed(sbp_op_int(op, "window"));
    return sbp_seq_of(SBP_SEQ_ROW);
}

/* ---- vjp ------------------------------------------------------------------------------------------
 *
 * One head; r a query row, c a key row that it sees. Forward, and under each line what is behind it:
 *
 *   x_rc = scale q_r . k_c                  q: [rows, d_qk], k: [keys, d_qk]
 *   s_rc = cap tanh(x_rc / cap)             where softcap is not 0, else x_rc
 *   l_r  = log sum_c exp(s_rc)              lse: [rows]
 *   p_rc = exp(s_rc - l_r)                  never in memory: lse brings it back
 *   o_r  = sum_c p_rc v_c                   v: [keys, d_v], o: [rows, d_v]
 *
 *   o_r = sum_c p_rc v_c       gives  dv_c += p_rc do_r,   dp_rc = do_r . v_c
 *   p = softmax(s)             gives  ds_rc = p_rc (dp_rc - do_r . o_r)
 *                                     (sum_c p_rc dp_rc is do_r . o_r)
 *   s_rc = cap tanh(x_rc/cap)  gives  dx_rc = ds_rc (1 - (s_rc / cap)^2)
 *   x_rc = scale q_r . k_c     gives  dq_r += scale dx_rc k_c,   dk_c += scale dx_rc q_r
 *
 * Kv heads that several query heads read (heads / kv_heads of them) add the dk, dv of all of these. dk and dv
 * are cotangents of a carry: rows behind this chunk have added to them already (dcarry). */

sbp_status sbp_vjp_attention(sbp_vjp *vjp) {
    sbp_builder *b = vjp->builder;
    if (vjp->dout[1] != SBP_NO_VALUE)
        return sbp_fail(b->diag, SBP_INPUT, "attention: its log-sum-exp has no derivative");
    if (vjp->dout[0] == SBP_NO_VALUE)
        return SBP_OK;
    sbp_value operands[] = {vjp->in[0], vjp->in[1], vjp->in[2], vjp->out[0],    vjp->out[1],   vjp->dout[0],
                            vjp->in[3], vjp->in[4], vjp->in[5], vjp->dcarry[1], vjp->dcarry[2]};
    sbp_value out[3];
    sbp_build(b, SBP_OP_attention_vjp, NULL, operands, SBP_COUNT(operands),
              (sbp_attr[]){sbp_attr_double("scale", sbp_op_double(&vjp->op, "scale")),
                           sbp_attr_int("window", sbp_op_int(&vjp->op, "window")),
                           sbp_attr_double("softcap", sbp_op_double(&vjp->op, "softcap"))},
              3, out);
    memcpy(vjp->din, out, sizeof out);
    return b->status;
}

sbp_status sbp_shape_attention_vjp(sbp_shape *shape) {
    SBP_TRY(check_qkv(shape));
    const sbp_type *q = &shape->in[0], *k = &shape->in[1], *v = &shape->in[2], *o = &shape->in[3];
    for (int32_t i = 6; i < 9; i++)
        SBP_TRY(check_rows_operand(shape, i, sbp_type_rows(q)));
    sbp_type want = *q;
    want.dim[2] = v->dim[2];
    SBP_SHAPE_REQUIRE(shape, 8, sbp_type_equal(o, &want) && sbp_type_equal(&shape->in[5], &want),
                      "o is %s, dout is %s; %s expected", sbp_shape_text(o), sbp_shape_text(&shape->in[5]),
                      sbp_shape_text(&want));
    const sbp_type *lse = &shape->in[4];
    SBP_SHAPE_REQUIRE(shape, 11,
                      lse->dtype == sbp_rule_wide(q->dtype) && lse->rank == 2 &&
                          sbp_dim_equal(lse->dim[0], q->dim[0]) && sbp_dim_equal(lse->dim[1], q->dim[1]),
                      "lse is %s for q %s", sbp_shape_text(lse), sbp_shape_text(q));
    SBP_SHAPE_REQUIRE(shape, 9, shape->present[9] == shape->present[10], "dk without dv");
    shape->out[0] = *q;
    shape->out[1] = shape->present[9] ? shape->in[9] : *k;
    shape->out[2] = shape->present[9] ? shape->in[10] : *v;
    SBP_SHAPE_REQUIRE(shape, 10,
                      sbp_type_same_shape(&shape->out[1], k) && sbp_type_same_shape(&shape->out[2], v) &&
                          sbp_dtype_is_float(shape->out[1].dtype) && sbp_dtype_is_float(shape->out[2].dtype),
                      "dk is %s for k %s, dv is %s for v %s", sbp_shape_text(&shape->out[1]),
                      sbp_shape_text(k), sbp_shape_text(&shape->out[2]), sbp_shape_text(v));
    return SBP_OK;
}

/* dk, dv of row c: from the queries that see it (with their o and lse), and from k, v of row c itself. */
sbp_seq sbp_seq_attention_vjp(const sbp_op *op, int32_t operand, int32_t result) {
    sbp_seq window = sbp_seq_windowed(sbp_op_int(op, "window"));
    bool keys = operand == 1 || operand == 2;
    if (result == 0)
        return keys ? window : sbp_seq_of(SBP_SEQ_ROW);
    return keys || operand >= 9 ? sbp_seq_of(SBP_SEQ_ROW) : sbp_seq_transpose(window);
}

/* ---- eval ----------------------------------------------------------------------------------------- */

typedef struct scores {
    const sbp_tensor *q, *k, *v, *first, *shared_end, *own;
    int64_t heads, kv_heads, d_qk, d_v, keys, row0, window;
    double scale, cap;
} scores;

static scores scores_of(const sbp_eval *eval, int32_t rows_operand) {
    scores s = {.q = eval->in[0],
                .k = eval->in[1],
                .v = eval->in[2],
                .first = eval->in[rows_operand],
                .shared_end = eval->in[rows_operand + 1],
                .own = eval->in[rows_operand + 2],
                .window = sbp_op_int(eval->op, "window"),
                .scale = sbp_op_double(eval->op, "scale"),
                .cap = sbp_op_double(eval->op, "softcap")};
    s.heads = s.q->dim[1];
    s.kv_heads = s.k->dim[1];
    s.d_qk = s.q->dim[2];
    s.d_v = s.v->dim[2];
    s.keys = s.k->dim[0];
    sbp_symbol rows = sbp_type_rows(&s.q->type), keys = sbp_type_rows(&s.k->type);
    s.row0 = rows != keys && !(rows == SBP_T && keys == SBP_W) ? eval->env->row0 : 0;
    return s;
}

/* Whether query row j of the chunk (absolute row row0 + j) sees key row c. */
static bool sees(const scores *s, int64_t j, int64_t c) {
    int64_t r = s->row0 + j, first = (int64_t)s->first->data[j], shared_end = (int64_t)s->shared_end->data[j],
            own = (int64_t)s->own->data[j], distance;
    if (c >= own && c <= r)
        distance = r - c;
    else if (c >= first && c < shared_end)
        distance = shared_end + r - own - c;
    else
        return false;
    return s->window == 0 || distance < s->window;
}

/* The raw product scale q.k, before softcap. */
static double raw_score(const scores *s, int64_t j, int64_t h, int64_t c) {
    int64_t kv = h / (s->heads / s->kv_heads);
    double dot = 0;
    for (int64_t i = 0; i < s->d_qk; i++)
        dot +=
            s->q->data[(j * s->heads + h) * s->d_qk + i] * s->k->data[(c * s->kv_heads + kv) * s->d_qk + i];
    return s->scale * dot;
}

static double capped(const scores *s, double score) {
    return s->cap > 0 ? s->cap * tanh(score / s->cap) : score;
}

/* A factor that attention makes itself, as an operand of a product (sbp_eval_env.round_factors). */
static double factor(const sbp_eval *eval, double x) {
    return eval->env->round_factors ? sbp_rule_rounded(eval, eval->in[0]->type.dtype, x) : x;
}

sbp_status sbp_eval_attention(const sbp_eval *eval) {
    scores s = scores_of(eval, 3);
    sbp_tensor *o = eval->out[0], *lse = eval->out[1];
    for (int64_t j = 0; j < s.q->dim[0]; j++)
        for (int64_t h = 0; h < s.heads; h++) {
            double top = -(double)INFINITY, sum = 0;
            int64_t kv = h / (s.heads / s.kv_heads);
            for (int64_t c = 0; c < s.keys; c++)
                if (sees(&s, j, c))
                    top = fmax(top, capped(&s, raw_score(&s, j, h, c)));
            for (int64_t c = 0; c < s.keys; c++)
                if (sees(&s, j, c))
                    sum += exp(capped(&s, raw_score(&s, j, h, c)) - top);
            double log_sum = top + log(sum), whole = log(2) * nearbyint(top / log(2)); /* a power of two */
            lse->data[j * s.heads + h] = log_sum;
            for (int64_t c = 0; c < s.keys; c++)
                if (sees(&s, j, c)) {
                    double score = capped(&s, raw_score(&s, j, h, c)), p = exp(score - log_sum);
                    if (eval->env->round_factors)
                        p = factor(eval, exp(score - whole)) * exp(whole - log_sum);
                    for (int64_t i = 0; i < s.d_v; i++)
                        o->data[(j * s.heads + h) * s.d_v + i] +=
                            p * s.v->data[(c * s.kv_heads + kv) * s.d_v + i];
                }
        }
    return SBP_OK;
}

/* dv += p do; dscore = p (do.v - do.o); through the softcap; dq += scale dscore k; dk += scale dscore q */
sbp_status sbp_eval_attention_vjp(const sbp_eval *eval) {
    scores s = scores_of(eval, 6);
    const sbp_tensor *o = eval->in[3], *lse = eval->in[4], *dout = eval->in[5];
    sbp_tensor *dq = eval->out[0], *dk = eval->out[1], *dv = eval->out[2];
    if (eval->in[9]) {
        memcpy(dk->data, eval->in[9]->data, (size_t)dk->elems * sizeof(double));
        memcpy(dv->data, eval->in[10]->data, (size_t)dv->elems * sizeof(double));
    }
    for (int64_t j = 0; j < s.q->dim[0]; j++)
        for (int64_t h = 0; h < s.heads; h++) {
            int64_t kv = h / (s.heads / s.kv_heads), qh = j * s.heads + h;
            double delta = 0;
            for (int64_t i = 0; i < s.d_v; i++)
                delta += dout->data[qh * s.d_v + i] * o->data[qh * s.d_v + i];
            for (int64_t c = 0; c < s.keys; c++) {
                if (!sees(&s, j, c))
                    continue;
                int64_t ck = c * s.kv_heads + kv;
                double score = capped(&s, raw_score(&s, j, h, c)), p = exp(score - lse->data[qh]), dp = 0;
                for (int64_t i = 0; i < s.d_v; i++) {
                    dp += dout->data[qh * s.d_v + i] * s.v->data[ck * s.d_v + i];
                    dv->data[ck * s.d_v + i] += factor(eval, p) * dout->data[qh * s.d_v + i];
                }
                double ds = p * (dp - delta);
                if (s.cap > 0)
                    ds *= 1 - (score / s.cap) * (score / s.cap);
                ds = factor(eval, ds);
                for (int64_t i = 0; i < s.d_qk; i++) {
                    dq->data[qh * s.d_qk + i] += s.scale * ds * s.k->data[ck * s.d_qk + i];
                    dk->data[ck * s.d_qk + i] += s.scale * ds * s.q->data[qh * s.d_qk + i];
                }
            }
        }
    return SBP_OK;
}

/* ---- examples ------------------------------------------------------------------------------------- */

static const struct {
    const char *q, *k, *v, *lse, *o;
    int64_t window;
    double softcap;
} cases[] = {{"f64[T,2,3]", "f64[T,1,3]", "f64[T,1,3]", "f64[T,2]", "f64[T,2,3]", 0, 0},
             {"f64[T,4,2]", "f64[T,2,2]", "f64[T,2,5]", "f64[T,4]", "f64[T,4,5]", 4, 0},
             {"f64[T,1,4]", "f64[T,1,4]", "f64[T,1,2]", "f64[T,1]", "f64[T,1,2]", 0, 1.5},
             {"f64[T,2,3]", "f64[T,2,3]", "f64[T,2,3]", "f64[T,2]", "f64[T,2,3]", 1, 0}};

static bool example(int32_t index, int32_t rows_operand, sbp_example *out) {
    if (index >= SBP_COUNT(cases))
        return false;
    out->in[0] = sbp_example_float(cases[index].q, -1, 1);
    out->in[1] = sbp_example_float(cases[index].k, -1, 1);
    out->in[2] = sbp_example_float(cases[index].v, -1, 1);
    out->in[rows_operand] = sbp_example_rows(SBP_FILL_FIRST);
    out->in[rows_operand + 1] = sbp_example_rows(SBP_FILL_SHARED_END);
    out->in[rows_operand + 2] = sbp_example_rows(SBP_FILL_OWN);
    out->in_count = rows_operand + 3;
    out->attrs[0] = sbp_attr_double("scale", 0.8);
    out->attrs[1] = sbp_attr_int("window", cases[index].window);
    out->attrs[2] = sbp_attr_double("softcap", cases[index].softcap);
    out->attr_count = 3;
    return true;
}

bool sbp_examples_attention(int32_t index, sbp_example *out) {
    return example(index, 3, out);
}

bool sbp_examples_attention_vjp(int32_t index, sbp_example *out) {
    if (!example(index, 6, out))
        return false;
    out->in[3] = sbp_example_float(cases[index].o, -1, 1);
    out->in[4] = sbp_example_float(cases[index].lse, 1, 2);
    out->in[5] = sbp_example_float(cases[index].o, -1, 1);
    return true;
}

/* ---- carries -------------------------------------------------------------------------------------- */

sbp_status sbp_shape_append(sbp_shape *shape) {
    const sbp_type *carry = &shape->in[0], *rows = &shape->in[1];
    sbp_type expected = *carry;
    expected.dim[0] = rows->dim[0];
    SBP_SHAPE_REQUIRE(
        shape, 1, is_chunk_of(sbp_type_rows(rows), sbp_type_rows(carry)) && sbp_type_equal(&expected, rows),
        "%s to a carry %s", sbp_shape_text(rows), sbp_shape_text(carry));
    shape->out[0] = *carry;
    return SBP_OK;
}

SBP_RULE_SEQ_ROW(append)

/* The rows of this chunk are final once every later chunk was processed: take them. */
sbp_status sbp_vjp_append(sbp_vjp *vjp) {
    sbp_builder *b = vjp->builder;
    vjp->din[0] = vjp->dcarry[0];
    if (vjp->need[1]) {
        sbp_value rows = sbp_build1(b, SBP_OP_take, vjp->dcarry[0]);
        vjp->din[1] = sbp_build_cast(b, rows, sbp_build_type(b, vjp->in[1])->dtype);
    }
    return b->status;
}

sbp_status sbp_eval_append(const sbp_eval *eval) {
    const sbp_tensor *carry = eval->in[0], *rows = eval->in[1];
    memcpy(eval->out[0]->data, carry->data, (size_t)carry->elems * sizeof(double));
    int64_t d = rows->dim[0] > 0 ? rows->elems / rows->dim[0] : 0;
    if (rows->elems > 0)
        memcpy(eval->out[0]->data + eval->env->row0 * d, rows->data, (size_t)rows->elems * sizeof(double));
    return SBP_OK;
}

bool sbp_examples_append(int32_t index, sbp_example *out) {
    out->in[0] = sbp_example_float("f64[T,2,3]", -1, 1);
    out->in[1] = sbp_example_float("f64[C,2,3]", -1, 1);
    out->in_count = 2;
    return index == 0;
}

sbp_status sbp_shape_take(sbp_shape *shape) {
    sbp_symbol rows = sbp_type_rows(&shape->in[0]);
    SBP_SHAPE_REQUIRE(shape, 1, rows == SBP_T || rows == SBP_W, "%s is no carry",
                      sbp_shape_text(&shape->in[0]));
    shape->out[0] = shape->in[0];
    shape->out[0].dim[0] = sbp_dim_symbol(rows == SBP_T ? SBP_C : SBP_D);
    return SBP_OK;
}

SBP_RULE_SEQ_ROW(take)

sbp_status sbp_eval_take(const sbp_eval *eval) {
    sbp_tensor *rows = eval->out[0];
    int64_t d = rows->dim[0] > 0 ? rows->elems / rows->dim[0] : 0;
    if (rows->elems > 0)
        memcpy(rows->data, eval->in[0]->data + eval->env->row0 * d, (size_t)rows->elems * sizeof(double));
    return SBP_OK;
}

bool sbp_examples_take(int32_t index, sbp_example *out) {
    out->in[0] = sbp_example_float("f64[T,2,3]", -1, 1);
    out->in_count = 1;
    return index == 0;
}
