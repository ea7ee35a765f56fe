/* oracle_attention.c: attention and its gradients by loops over pairs of rows: of some rows of queries, and
 * of some keys, all of their heads. */
#include <math.h>

#include "runtime/run/oracle_internal.h"

enum { ROWS = 2, KEYS = 1, HEADS = 4 };

typedef struct attention {
    oracle_job *job;
    const sbp_attention_attrs *attrs;
    const sbp_attention_operands *at;
    int32_t dq, dk, dv, d_o;
    int64_t rows, keys, row0, key0; /* of the sequence */
    double *first, *shared_end, *own;
    /* of the kv head at hand */
    double *k, *v;
} attention;

/* Whether query row j sees key i. */
static bool sees(const attention *a, int64_t j, int64_t i) {
    double r = (double)(a->row0 + j), key = (double)(a->key0 + i), window = (double)a->attrs->window;
    if (key >= a->own[j] && key <= r)
        return window == 0 || r - key < window;
    if (key >= a->first[j] && key < a->shared_end[j])
        return window == 0 || a->shared_end[j] + r - a->own[j] - key < window;
    return false;
}

/* x, or x off by so much as its type's last bit. */
static double off(double x, double unit, uint64_t number) {
    return unit > 0 ? x * (1 + unit * sbp_oracle_draw(number)) : x;
}

static double dot(const double *a, const double *b, int64_t count, double unit, uint64_t number) {
    double sum = 0;
    for (int64_t i = 0; i < count; i++)
        sum += off(a[i] * b[i], unit, number + (uint64_t)i);
    return sum;
}

/* Score of a query and key i, and how softcap slopes there. */
static double score(const attention *a, const double *q, int64_t i, double unit, double *slope) {
    double x = a->attrs->scale *
               dot(q, a->k + i * a->attrs->d_qk, a->attrs->d_qk, unit, (uint64_t)(i * a->attrs->d_qk));
    *slope = 1;
    if (a->attrs->softcap > 0) {
        double y = tanh(x / a->attrs->softcap);
        *slope = 1 - y * y;
        x = a->attrs->softcap * y;
    }
    return x;
}

static sbp_status read_columns(attention *a) {
    SBP_TRY(sbp_oracle_fetch(a->job, a->at->first, 0, a->rows, 0, 1, &a->first));
    SBP_TRY(sbp_oracle_fetch(a->job, a->at->shared_end, 0, a->rows, 0, 1, &a->shared_end));
    return sbp_oracle_fetch(a->job, a->at->own, 0, a->rows, 0, 1, &a->own);
}

static sbp_status read_head(attention *a, int64_t kv) {
    const sbp_attention_attrs *t = a->attrs;
    SBP_TRY(sbp_oracle_fetch(a->job, a->at->k, 0, a->keys, kv * t->d_qk, t->d_qk, &a->k));
    return sbp_oracle_fetch(a->job, a->at->v, 0, a->keys, kv * t->d_v, t->d_v, &a->v);
}

/* o and lse of a row. */
static double forward(const attention *a, const double *q, int64_t j, double unit, double *o) {
    double most = -INFINITY, sum = 0, slope;
    for (int64_t i = 0; i < a->keys; i++)
        most = sees(a, j, i) ? fmax(most, score(a, q, i, unit, &slope)) : most;
    for (int64_t d = 0; d < a->attrs->d_v; d++)
        o[d] = 0;
    for (int64_t i = 0; i < a->keys; i++) {
        if (!sees(a, j, i))
            continue;
        double p = exp(score(a, q, i, unit, &slope) - most);
        sum += off(p, unit, (uint64_t)i);
        for (int64_t d = 0; d < a->attrs->d_v; d++)
            o[d] += off(p, unit, (uint64_t)i + 7) * a->v[i * a->attrs->d_v + d];
    }
    for (int64_t d = 0; d < a->attrs->d_v; d++)
        o[d] /= sum;
    return most + log(sum);
}

/* Heads that are looked at: all of a group have the same kv head. */
static oracle_runs choose_heads(const attention *a) {
    return sbp_oracle_choose(a->attrs->heads, HEADS, 1);
}

static int64_t kv_of(const attention *a, int64_t head) {
    return head / (a->attrs->heads / a->attrs->kv_heads);
}

static sbp_status check_forward(attention *a) {
    const sbp_attention_attrs *t = a->attrs;
    const sbp_span *spans = a->job->dispatch->spans;
    oracle_runs rows = sbp_oracle_choose(a->rows, ROWS, 1), heads = choose_heads(a);
    oracle_sum of_o = {0}, of_lse = {0};
    double unit = 2 * sbp_oracle_unit(spans[a->at->q].dtype), *q, *got;
    int64_t count = t->heads * 3 * ROWS, place = 0;
    double **o = SBP_NEW_ARRAY(a->job->arena, double *, 2 * count),
           *lse = SBP_NEW_ARRAY(a->job->arena, double, 2 * count);
    for (int32_t g = 0; g < heads.runs; g++)
        for (int64_t h = heads.first[g]; h < heads.first[g] + heads.count[g]; h++) {
            SBP_TRY(read_head(a, kv_of(a, h)));
            for (int32_t r = 0; r < rows.runs; r++)
                for (int64_t j = rows.first[r]; j < rows.first[r] + rows.count[r]; j++, place++) {
                    SBP_TRY(sbp_oracle_fetch(a->job, a->at->q, j, 1, h * t->d_qk, t->d_qk, &q));
                    for (int k = 0; k < 2; k++) {
                        o[2 * place + k] = SBP_NEW_ARRAY(a->job->arena, double, t->d_v);
                        lse[2 * place + k] = forward(a, q, j, k ? unit : 0, o[2 * place + k]);
                    }
                }
        }
    SBP_TRY(sbp_oracle_submit(a->job));
    place = 0;
    for (int32_t g = 0; g < heads.runs; g++)
        for (int64_t h = heads.first[g]; h < heads.first[g] + heads.count[g]; h++)
            for (int32_t r = 0; r < rows.runs; r++)
                for (int64_t j = rows.first[r]; j < rows.first[r] + rows.count[r]; j++, place++) {
                    SBP_TRY(sbp_oracle_fetch(a->job, a->at->o, j, 1, h * t->d_v, t->d_v, &got));
                    for (int64_t d = 0; d < t->d_v; d++)
                        sbp_oracle_note(&of_o, o[2 * place][d], o[2 * place + 1][d], got[d],
                                        spans[a->at->o].dtype);
                    SBP_TRY(sbp_oracle_fetch(a->job, a->at->lse, j, 1, h, 1, &got));
                    sbp_oracle_note(&of_lse, lse[2 * place], lse[2 * place + 1], got[0],
                                    spans[a->at->lse].dtype);
                }
    sbp_oracle_judge(a->job, &of_o, "o");
    sbp_oracle_judge(a->job, &of_lse, "lse");
    return SBP_OK;
}

/* p and ds of a pair. */
static void pair(const attention *a, const double *q, const double *d_o, double delta, double lse, int64_t i,
                 double unit, double *p, double *ds) {
    double slope, x = score(a, q, i, unit, &slope);
    *p = off(exp(x - lse), unit, (uint64_t)i + 1);
    double dp = dot(d_o, a->v + i * a->attrs->d_v, a->attrs->d_v, unit, (uint64_t)(i * a->attrs->d_v) + 3);
    *ds = off(*p * (dp - delta) * slope, unit, (uint64_t)i + 2);
}

/* What belongs to all rows of queries of a head. */
typedef struct queries {
    double *q, *d_o, *o, *lse;
} queries;

static sbp_status read_queries(const attention *a, int64_t h, int64_t row, int64_t rows, queries *out) {
    const sbp_attention_attrs *t = a->attrs;
    SBP_TRY(sbp_oracle_fetch(a->job, a->at->q, row, rows, h * t->d_qk, t->d_qk, &out->q));
    SBP_TRY(sbp_oracle_fetch(a->job, a->d_o, row, rows, h * t->d_v, t->d_v, &out->d_o));
    SBP_TRY(sbp_oracle_fetch(a->job, a->at->o, row, rows, h * t->d_v, t->d_v, &out->o));
    return sbp_oracle_fetch(a->job, a->at->lse, row, rows, h, 1, &out->lse);
}

static void find_dq(const attention *a, const queries *of, int64_t j, double unit, double *dq) {
    const sbp_attention_attrs *t = a->attrs;
    double delta = dot(of->d_o, of->o, t->d_v, unit, 5), p, ds;
    for (int64_t d = 0; d < t->d_qk; d++)
        dq[d] = 0;
    for (int64_t i = 0; i < a->keys; i++) {
        if (!sees(a, j, i))
            continue;
        pair(a, of->q, of->d_o, delta, of->lse[0], i, unit, &p, &ds);
        for (int64_t d = 0; d < t->d_qk; d++)
            dq[d] += t->scale * ds * a->k[i * t->d_qk + d];
    }
}

/* Adds what a head's rows give to dk and dv of key i. */
static void add_dk(const attention *a, const queries *of, int64_t i, double unit, double *dk, double *dv) {
    const sbp_attention_attrs *t = a->attrs;
    for (int64_t j = 0; j < a->rows; j++) {
        double p, ds;
        if (!sees(a, j, i))
            continue;
        const double *q = of->q + j * t->d_qk, *d_o = of->d_o + j * t->d_v;
        double delta = dot(d_o, of->o + j * t->d_v, t->d_v, unit, (uint64_t)j);
        pair(a, q, d_o, delta, of->lse[j], i, unit, &p, &ds);
        for (int64_t d = 0; d < t->d_qk; d++)
            dk[d] += off(t->scale * ds, unit, (uint64_t)j + 9) * q[d];
        for (int64_t d = 0; d < t->d_v; d++)
            dv[d] += off(p, unit, (uint64_t)j + 8) * d_o[d];
    }
}

/* Results of one kv head, exact and rounded. */
typedef struct of_head {
    double *dq[3 * HEADS][3 * ROWS][2], *dk[3 * KEYS][2], *dv[3 * KEYS][2];
} of_head;

static sbp_status compute_head(attention *a, int64_t kv, const oracle_runs *rows, const oracle_runs *keys,
                               of_head *out) {
    const sbp_attention_attrs *t = a->attrs;
    int64_t group = t->heads / t->kv_heads;
    double unit = 2 * sbp_oracle_unit(a->job->dispatch->spans[a->at->q].dtype);
    queries of;
    SBP_TRY(read_head(a, kv));
    int32_t place = 0;
    for (int32_t r = 0; r < keys->runs; r++)
        for (int64_t i = keys->first[r]; i < keys->first[r] + keys->count[r]; i++, place++)
            for (int k = 0; k < 2; k++) {
                SBP_TRY(sbp_oracle_fetch(a->job, a->dk, i, 1, kv * t->d_qk, t->d_qk, &out->dk[place][k]));
                SBP_TRY(sbp_oracle_fetch(a->job, a->dv, i, 1, kv * t->d_v, t->d_v, &out->dv[place][k]));
            }
    for (int64_t g = 0; g < group; g++) {
        int64_t h = kv * group + g;
        SBP_TRY(read_queries(a, h, 0, a->rows, &of));
        place = 0;
        for (int32_t r = 0; r < keys->runs; r++)
            for (int64_t i = keys->first[r]; i < keys->first[r] + keys->count[r]; i++, place++)
                for (int k = 0; k < 2; k++)
                    add_dk(a, &of, i, k ? unit : 0, out->dk[place][k], out->dv[place][k]);
        place = 0;
        for (int32_t r = 0; r < rows->runs && g < HEADS; r++)
            for (int64_t j = rows->first[r]; j < rows->first[r] + rows->count[r]; j++, place++)
                for (int k = 0; k < 2; k++) {
                    const queries row = {of.q + j * t->d_qk, of.d_o + j * t->d_v, of.o + j * t->d_v,
                                         of.lse + j};
                    out->dq[g][place][k] = SBP_NEW_ARRAY(a->job->arena, double, t->d_qk);
                    find_dq(a, &row, j, k ? unit : 0, out->dq[g][place][k]);
                }
    }
    return SBP_OK;
}

static sbp_status note_head(attention *a, int64_t kv, const oracle_runs *rows, const oracle_runs *keys,
                            const of_head *in, oracle_sum *of_dq, oracle_sum *of_dk, oracle_sum *of_dv) {
    const sbp_attention_attrs *t = a->attrs;
    const sbp_span *spans = a->job->dispatch->spans;
    int64_t group = t->heads / t->kv_heads;
    double *got;
    int32_t place = 0;
    for (int32_t r = 0; r < keys->runs; r++)
        for (int64_t i = keys->first[r]; i < keys->first[r] + keys->count[r]; i++, place++) {
            SBP_TRY(sbp_oracle_fetch(a->job, a->dk, i, 1, kv * t->d_qk, t->d_qk, &got));
            for (int64_t d = 0; d < t->d_qk; d++)
                sbp_oracle_note(of_dk, in->dk[place][0][d], in->dk[place][1][d], got[d], spans[a->dk].dtype);
            SBP_TRY(sbp_oracle_fetch(a->job, a->dv, i, 1, kv * t->d_v, t->d_v, &got));
            for (int64_t d = 0; d < t->d_v; d++)
                sbp_oracle_note(of_dv, in->dv[place][0][d], in->dv[place][1][d], got[d], spans[a->dv].dtype);
        }
    for (int64_t g = 0; g < group && g < HEADS; g++) {
        place = 0;
        for (int32_t r = 0; r < rows->runs; r++)
            for (int64_t j = rows->first[r]; j < rows->first[r] + rows->count[r]; j++, place++) {
                SBP_TRY(sbp_oracle_fetch(a->job, a->dq, j, 1, (kv * group + g) * t->d_qk, t->d_qk, &got));
                for (int64_t d = 0; d < t->d_qk; d++)
                    sbp_oracle_note(of_dq, in->dq[g][place][0][d], in->dq[g][place][1][d], got[d],
                                    spans[a->dq].dtype);
            }
    }
    return SBP_OK;
}

static sbp_status check_backward(attention *a) {
    oracle_runs rows = sbp_oracle_choose(a->rows, ROWS, 1), keys = sbp_oracle_choose(a->keys, KEYS, 1);
    oracle_runs kv = sbp_oracle_choose(a->attrs->kv_heads, 1, 1);
    oracle_sum of_dq = {0}, of_dk = {0}, of_dv = {0};
    of_head *heads = SBP_NEW_ARRAY(a->job->arena, of_head, 3);
    int32_t count = 0;
    for (int32_t r = 0; r < kv.runs; r++)
        for (int64_t h = kv.first[r]; h < kv.first[r] + kv.count[r]; h++)
            SBP_TRY(compute_head(a, h, &rows, &keys, &heads[count++]));
    SBP_TRY(sbp_oracle_submit(a->job));
    count = 0;
    for (int32_t r = 0; r < kv.runs; r++)
        for (int64_t h = kv.first[r]; h < kv.first[r] + kv.count[r]; h++)
            SBP_TRY(note_head(a, h, &rows, &keys, &heads[count++], &of_dq, &of_dk, &of_dv));
    sbp_oracle_judge(a->job, &of_dq, "dq");
    sbp_oracle_judge(a->job, &of_dk, "dk");
    sbp_oracle_judge(a->job, &of_dv, "dv");
    return SBP_OK;
}

sbp_status sbp_oracle_attention(oracle_job *job) {
    const sbp_command *c = job->dispatch->command;
    const sbp_attention_operands *at = sbp_command_attention(c->kind);
    const sbp_span *s = job->dispatch->spans;
    attention a = {.job = job,
                   .attrs = &c->u.attention,
                   .at = at,
                   .dq = SBP_ATTN_BWD_DQ,
                   .dk = SBP_ATTN_BWD_DK,
                   .dv = SBP_ATTN_BWD_DV,
                   .d_o = SBP_ATTN_BWD_DO,
                   .rows = s[at->q].rows,
                   .keys = s[at->k].rows,
                   .row0 = s[at->q].first_row,
                   .key0 = s[at->k].first_row};
    if (a.rows == 0)
        return SBP_OK;
    SBP_TRY(read_columns(&a));
    return at->backward ? check_backward(&a) : check_forward(&a);
}
