/* oracle_states.c: delta_rule row by row, a head's matrix at a time, and conv_rows tap by tap;
 * with their gradients. Only some heads, rows and channels are computed, whatever blocks a device
 * makes of rows. */
#include <math.h>
#include <string.h>

#include "ir/program/traits.h"
#include "runtime/run/oracle_internal.h"

enum { ROWS = 4, CHANNELS = 8 };
static const double MOST_WORK = 4e9; /* operations of a comparison, about */

/* x, or x off by so much as its type's last bit. */
static double off(double x, double unit, uint64_t number) {
    return unit > 0 ? x * (1 + unit * sbp_oracle_draw(number)) : x;
}

static void blur(double *x, int64_t count, double unit, uint64_t number) {
    for (int64_t i = 0; i < count && unit > 0; i++)
        x[i] = off(x[i], unit, number + (uint64_t)i);
}

static double dot(const double *a, const double *b, int64_t count) {
    double sum = 0;
    for (int64_t i = 0; i < count; i++)
        sum += a[i] * b[i];
    return sum;
}

/* a += factor b */
static void add(double *a, double factor, const double *b, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        a[i] += factor * b[i];
}

/* ---- delta_rule -------------------------------------------------------------------------------------- */

typedef struct rule {
    oracle_job *job;
    bool corrects, backward;
    int32_t q, k, v, decay, beta, first, state;
    int64_t of_key, d_k, d_v, rows; /* of_key: heads to each of q and k */
    bool *begins;                   /* [rows] a document */
    void *raw;                      /* room for what is read at a time */
    int64_t *looked, look_count;    /* rows of which results are compared */
    double unit;
} rule;

/* A head's operands, exact or off. One at a time. */
typedef struct head {
    double *q, *k, *v, *decay, *beta, *state, *d_o, *d_state;
} head;

static head new_head(rule *r) {
    sbp_arena *arena = r->job->arena;
    int64_t size = r->d_k * r->d_v, of_k = r->rows * r->d_k + 1, of_v = r->rows * r->d_v + 1;
    int64_t most = of_k > of_v ? of_k : of_v;
    r->raw = SBP_NEW_ARRAY(arena, double, most > size ? most : size);
    return (head){.q = SBP_NEW_ARRAY(arena, double, of_k),
                  .k = SBP_NEW_ARRAY(arena, double, of_k),
                  .v = SBP_NEW_ARRAY(arena, double, of_v),
                  .decay = SBP_NEW_ARRAY(arena, double, r->rows + 1),
                  .beta = SBP_NEW_ARRAY(arena, double, r->rows + 1),
                  .state = SBP_NEW_ARRAY(arena, double, size),
                  .d_o = SBP_NEW_ARRAY(arena, double, of_v),
                  .d_state = SBP_NEW_ARRAY(arena, double, size)};
}

static sbp_status read_part(const rule *r, int32_t operand, int64_t rows, int64_t col, int64_t cols,
                            double unit, double *out) {
    const sbp_span *s = &r->job->dispatch->spans[operand];
    if (s->space == SBP_SPACE_COUNT || rows == 0)
        return SBP_OK;
    SBP_TRY(sbp_oracle_fetch_raw(r->job, operand, 0, rows, col, cols, r->raw));
    for (int64_t i = 0; i < rows * cols; i++)
        out[i] = sbp_element_get(r->raw, s->dtype, i);
    blur(out, rows * cols, unit, (uint64_t)(operand + 1) << 40);
    return SBP_OK;
}

static sbp_status read_head(const rule *r, int64_t h, double unit, const head *out) {
    int64_t key = h / r->of_key, size = r->d_k * r->d_v;
    SBP_TRY(read_part(r, r->q, r->rows, key * r->d_k, r->d_k, unit, out->q));
    SBP_TRY(read_part(r, r->k, r->rows, key * r->d_k, r->d_k, unit, out->k));
    SBP_TRY(read_part(r, r->v, r->rows, h * r->d_v, r->d_v, unit, out->v));
    SBP_TRY(read_part(r, r->decay, r->rows, h, 1, unit, out->decay));
    SBP_TRY(read_part(r, r->beta, r->rows, h, 1, unit, out->beta));
    SBP_TRY(read_part(r, r->state, 1, h * size, size, unit, out->state));
    if (!r->backward)
        return SBP_OK;
    SBP_TRY(read_part(r, SBP_DELTA_RULE_BWD_DO, r->rows, h * r->d_v, r->d_v, unit, out->d_o));
    return read_part(r, SBP_DELTA_RULE_BWD_DSTATE, 1, h * size, size, unit, out->d_state);
}

/* What a head's state and rows make, row by row. */
typedef struct states {
    double *s;     /* [d_k, d_v] */
    double *added; /* [rows, d_v] which a row's key adds to the state */
    double *rest;  /* [rows, d_v] which beta makes these of */
    double *kept;  /* [look_count] states, decayed, to which these rows have not added yet */
} states;

static states new_states(const rule *r) {
    sbp_arena *arena = r->job->arena;
    int64_t size = r->d_k * r->d_v;
    return (states){.s = SBP_NEW_ARRAY(arena, double, size),
                    .added = SBP_NEW_ARRAY(arena, double, r->rows * r->d_v + 1),
                    .rest = SBP_NEW_ARRAY(arena, double, r->rows * r->d_v + 1),
                    .kept = SBP_NEW_ARRAY(arena, double, r->look_count *size + 1)};
}

static void decay_by(double *s, int64_t size, bool begins, double decay) {
    double factor = begins ? 0 : exp(decay);
    for (int64_t i = 0; i < size; i++)
        s[i] = begins ? 0 : s[i] * factor; /* what is not finite ends there, too */
}

/* o: [look_count, d_v], or NULL. */
static void run_forward(const rule *r, const head *h, double unit, states *st, double *o) {
    int64_t size = r->d_k * r->d_v, look = 0;
    memcpy(st->s, h->state, (size_t)size * sizeof *st->s);
    for (int64_t t = 0; t < r->rows; t++) {
        const double *k = h->k + t * r->d_k;
        double *added = st->added + t * r->d_v, *rest = st->rest + t * r->d_v;
        bool looked = look < r->look_count && r->looked[look] == t;
        decay_by(st->s, size, r->begins[t], h->decay[t]);
        if (t % SBP_DELTA_BLOCK == 0)
            blur(st->s, size, unit, (uint64_t)t);
        if (looked)
            memcpy(st->kept + look * size, st->s, (size_t)size * sizeof *st->s);
        memcpy(rest, h->v + t * r->d_v, (size_t)r->d_v * sizeof *rest);
        for (int64_t i = 0; i < r->d_k && r->corrects; i++)
            add(rest, -k[i], st->s + i * r->d_v, r->d_v);
        for (int64_t j = 0; j < r->d_v; j++)
            added[j] = off(h->beta[t] * rest[j], unit, (uint64_t)(t * r->d_v + j) + 11);
        for (int64_t i = 0; i < r->d_k; i++)
            add(st->s + i * r->d_v, k[i], added, r->d_v);
        for (int64_t i = 0; i < r->d_k && looked && o; i++)
            add(o + look * r->d_v, h->q[t * r->d_k + i], st->s + i * r->d_v, r->d_v);
        look += looked;
    }
}

/* What is compared of a head, and of the head of q and k that it has. */
typedef struct results {
    double *dq, *dk, *dv, *ddecay, *dbeta, *dstate; /* of rows that are looked at */
} results;

/* dq and dk of a row; ds: of the state behind it. */
static void add_of_key(const rule *r, const head *h, const states *st, const double *ds, const double *dv,
                       int64_t look, results *out) {
    int64_t t = r->looked[look], size = r->d_k * r->d_v;
    const double *d_o = h->d_o + t * r->d_v, *added = st->added + t * r->d_v;
    double of_o = dot(added, d_o, r->d_v);
    for (int64_t i = 0; i < r->d_k; i++) {
        const double *kept = st->kept + look * size + i * r->d_v;
        out->dq[look * r->d_k + i] += dot(kept, d_o, r->d_v) + h->k[t * r->d_k + i] * of_o;
        out->dk[look * r->d_k + i] +=
            dot(ds + i * r->d_v, added, r->d_v) - (r->corrects ? dot(kept, dv, r->d_v) : 0);
    }
}

/* After run_forward. Adds to dq and dk of the head of q and k. */
static void run_backward(const rule *r, const head *h, double unit, const states *st, results *out) {
    int64_t size = r->d_k * r->d_v, look = r->look_count - 1;
    double *ds = out->dstate, *dv = SBP_NEW_ARRAY(r->job->arena, double, r->d_v);
    memcpy(ds, h->d_state, (size_t)size * sizeof *ds);
    for (int64_t t = r->rows - 1; t >= 0; t--) {
        const double *q = h->q + t * r->d_k, *k = h->k + t * r->d_k, *d_o = h->d_o + t * r->d_v;
        bool looked = look >= 0 && r->looked[look] == t;
        memset(dv, 0, (size_t)r->d_v * sizeof *dv);
        if (t % SBP_DELTA_BLOCK == SBP_DELTA_BLOCK - 1)
            blur(ds, size, unit, (uint64_t)t + 5);
        for (int64_t i = 0; i < r->d_k; i++) {
            add(ds + i * r->d_v, q[i], d_o, r->d_v);
            add(dv, k[i], ds + i * r->d_v, r->d_v);
        }
        if (looked)
            out->dbeta[look] = dot(dv, st->rest + t * r->d_v, r->d_v);
        for (int64_t j = 0; j < r->d_v; j++)
            dv[j] = off(dv[j] * h->beta[t], unit, (uint64_t)(t * r->d_v + j) + 13);
        if (looked && r->corrects)
            add_of_key(r, h, st, ds, dv, look, out);
        for (int64_t i = 0; i < r->d_k && r->corrects; i++)
            add(ds + i * r->d_v, -k[i], dv, r->d_v);
        if (looked) {
            memcpy(out->dv + look * r->d_v, dv, (size_t)r->d_v * sizeof *dv);
            out->ddecay[look] = dot(ds, st->kept + look * size, size);
        }
        decay_by(ds, size, r->begins[t], h->decay[t]);
        look -= looked;
    }
}

/* Where nothing is corrected: dq and dk of rows that are looked at, of one of the many heads that a head of k
 * may have: sums over the rows before and behind, which need no matrix at each. */
static void add_of_group(const rule *r, const head *h, results *out) {
    for (int64_t look = 0; look < r->look_count; look++) {
        int64_t t = r->looked[look], s = t, u = t;
        const double *d_o = h->d_o + t * r->d_v, *v = h->v + t * r->d_v;
        double *dq = out->dq + look * r->d_k, *dk = out->dk + look * r->d_k, decay = 0;
        for (; s >= 0; s--) {
            add(dq, exp(decay) * h->beta[s] * dot(h->v + s * r->d_v, d_o, r->d_v), h->k + s * r->d_k, r->d_k);
            if (r->begins[s])
                break;
            decay += h->decay[s];
        }
        for (int64_t i = 0; i < r->d_k && s < 0; i++)
            dq[i] += exp(decay) * dot(h->state + i * r->d_v, d_o, r->d_v);
        for (decay = 0;; decay += h->decay[u]) {
            add(dk, exp(decay) * h->beta[t] * dot(h->d_o + u * r->d_v, v, r->d_v), h->q + u * r->d_k, r->d_k);
            if (++u == r->rows || r->begins[u])
                break;
        }
        for (int64_t i = 0; i < r->d_k && u == r->rows; i++)
            dk[i] += exp(decay) * h->beta[t] * dot(h->d_state + i * r->d_v, v, r->d_v);
    }
}

/* Expects count numbers for each row that is looked at. values: exact, off. */
static void expect_rows(const rule *r, int32_t operand, int64_t col, int64_t count, double *const values[2]) {
    for (int64_t look = 0; look < r->look_count; look++) {
        oracle_expected *e = sbp_oracle_expect(r->job, operand, r->looked[look], 1, col, count);
        if (!e)
            return;
        memcpy(e->exact, values[0] + look * count, (size_t)count * sizeof(double));
        memcpy(e->rounded, values[1] + look * count, (size_t)count * sizeof(double));
    }
}

static void expect_state(const rule *r, int32_t operand, int64_t h, double *const values[2]) {
    int64_t size = r->d_k * r->d_v;
    oracle_expected *e = sbp_oracle_expect(r->job, operand, 0, 1, h * size, size);
    if (!e)
        return;
    memcpy(e->exact, values[0], (size_t)size * sizeof(double));
    memcpy(e->rounded, values[1], (size_t)size * sizeof(double));
}

static sbp_status expect_forward(const rule *r, const head *of, states *st, int64_t h) {
    bool makes_o = r->job->dispatch->spans[SBP_DELTA_RULE_O].space != SBP_SPACE_COUNT;
    double *o[2], *next[2];
    for (int k = 0; k < 2; k++) {
        double unit = k ? r->unit : 0;
        o[k] = SBP_NEW_ARRAY(r->job->arena, double, r->look_count * r->d_v + 1);
        next[k] = SBP_NEW_ARRAY(r->job->arena, double, r->d_k * r->d_v);
        SBP_TRY(read_head(r, h, unit, of));
        run_forward(r, of, unit, st, makes_o ? o[k] : NULL);
        memcpy(next[k], st->s, (size_t)(r->d_k * r->d_v) * sizeof(double));
    }
    expect_rows(r, SBP_DELTA_RULE_O, h * r->d_v, r->d_v, o);
    expect_state(r, SBP_DELTA_RULE_NEXT, h, next);
    return SBP_OK;
}

/* A head of q and k with all heads that have it. */
static sbp_status expect_backward(const rule *r, const head *of, states *st, int64_t key) {
    sbp_arena *arena = r->job->arena;
    oracle_runs own = sbp_oracle_choose(r->of_key, 1, 1); /* where nothing is corrected */
    results all[2];
    for (int k = 0; k < 2; k++)
        all[k] = (results){.dq = SBP_NEW_ARRAY(arena, double, r->look_count * r->d_k + 1),
                           .dk = SBP_NEW_ARRAY(arena, double, r->look_count * r->d_k + 1)};
    for (int64_t g = 0; g < r->of_key; g++) {
        int64_t h = key * r->of_key + g;
        bool alone = r->corrects;
        for (int32_t i = 0; i < own.runs; i++)
            alone |= g >= own.first[i] && g < own.first[i] + own.count[i];
        for (int k = 0; k < 2; k++) {
            double unit = k ? r->unit : 0;
            SBP_TRY(read_head(r, h, unit, of));
            if (!r->corrects)
                add_of_group(r, of, &all[k]);
            if (!alone)
                continue;
            all[k].dv = SBP_NEW_ARRAY(arena, double, r->look_count * r->d_v + 1);
            all[k].ddecay = SBP_NEW_ARRAY(arena, double, r->look_count + 1);
            all[k].dbeta = SBP_NEW_ARRAY(arena, double, r->look_count + 1);
            all[k].dstate = SBP_NEW_ARRAY(arena, double, r->d_k * r->d_v);
            run_forward(r, of, unit, st, NULL);
            run_backward(r, of, unit, st, &all[k]);
        }
        if (!alone)
            continue;
        expect_rows(r, SBP_DELTA_RULE_BWD_DV, h * r->d_v, r->d_v, (double *[]){all[0].dv, all[1].dv});
        expect_rows(r, SBP_DELTA_RULE_BWD_DDECAY, h, 1, (double *[]){all[0].ddecay, all[1].ddecay});
        expect_rows(r, SBP_DELTA_RULE_BWD_DBETA, h, 1, (double *[]){all[0].dbeta, all[1].dbeta});
        expect_state(r, SBP_DELTA_RULE_BWD_DSTATE, h, (double *[]){all[0].dstate, all[1].dstate});
    }
    expect_rows(r, SBP_DELTA_RULE_BWD_DQ, key * r->d_k, r->d_k, (double *[]){all[0].dq, all[1].dq});
    expect_rows(r, SBP_DELTA_RULE_BWD_DK, key * r->d_k, r->d_k, (double *[]){all[0].dk, all[1].dk});
    return SBP_OK;
}

static sbp_status read_documents(rule *r) {
    double *first;
    int64_t row0 = r->job->dispatch->spans[r->k].first_row;
    oracle_runs chosen = sbp_oracle_choose(r->rows, ROWS, 1);
    SBP_TRY(sbp_oracle_fetch(r->job, r->first, 0, r->rows, 0, 1, &first));
    r->begins = SBP_NEW_ARRAY(r->job->arena, bool, r->rows + 1);
    r->looked = SBP_NEW_ARRAY(r->job->arena, int64_t, 3 * ROWS);
    for (int64_t t = 0; t < r->rows; t++)
        r->begins[t] = (int64_t)first[t] == row0 + t;
    for (int32_t i = 0; i < chosen.runs; i++)
        for (int64_t t = 0; t < chosen.count[i]; t++)
            r->looked[r->look_count++] = chosen.first[i] + t;
    return SBP_OK;
}

/* Heads, or those of q and k; one of them, where more are too much work. */
static oracle_runs choose_heads(const rule *r, int64_t count) {
    double rows = (double)r->rows * (double)(r->d_k * r->d_v) * (r->backward ? 24 : 12);
    double each = rows * (r->backward && r->corrects ? (double)r->of_key : 3);
    oracle_runs runs = sbp_oracle_choose(count, 1, 1);
    if (each * 3 > MOST_WORK && count > 1) {
        runs = (oracle_runs){.runs = 1};
        runs.first[0] = count / 2;
        runs.count[0] = 1;
    }
    r->job->work = each * runs.runs;
    return runs;
}

sbp_status sbp_oracle_rule(oracle_job *job) {
    const sbp_command *c = job->dispatch->command;
    const sbp_delta_attrs *a = &c->u.delta;
    bool back = sbp_command_traits_of(c->kind)->backward;
    rule r = {.job = job,
              .corrects = a->corrects,
              .backward = back,
              .q = back ? SBP_DELTA_RULE_BWD_Q : SBP_DELTA_RULE_Q,
              .k = back ? SBP_DELTA_RULE_BWD_K : SBP_DELTA_RULE_K,
              .v = back ? SBP_DELTA_RULE_BWD_V : SBP_DELTA_RULE_V,
              .decay = back ? SBP_DELTA_RULE_BWD_DECAY : SBP_DELTA_RULE_DECAY,
              .beta = back ? SBP_DELTA_RULE_BWD_BETA : SBP_DELTA_RULE_BETA,
              .first = back ? SBP_DELTA_RULE_BWD_FIRST : SBP_DELTA_RULE_FIRST,
              .state = back ? SBP_DELTA_RULE_BWD_STATE : SBP_DELTA_RULE_STATE,
              .of_key = a->heads / a->key_heads,
              .d_k = a->d_k,
              .d_v = a->d_v};
    r.rows = job->dispatch->spans[r.k].rows;
    r.unit = 2 * sbp_oracle_unit(job->dispatch->spans[r.k].dtype);
    SBP_TRY(read_documents(&r));
    head of = new_head(&r);
    states st = new_states(&r);
    oracle_runs heads = choose_heads(&r, back ? a->key_heads : a->heads);
    for (int32_t i = 0; i < heads.runs; i++)
        for (int64_t h = heads.first[i]; h < heads.first[i] + heads.count[i]; h++)
            SBP_TRY(back ? expect_backward(&r, &of, &st, h) : expect_forward(&r, &of, &st, h));
    return sbp_oracle_settle(job);
}

/* ---- conv_rows --------------------------------------------------------------------------------------- */

/* Some channels, from `col` on. Place p is row p of x, and below 0 row taps - 1 + p of the state. */
typedef struct convolution {
    oracle_job *job;
    int32_t x, w, first, state;
    int64_t rows, row0, n, taps, col, cols;
    double unit;
    double *weight; /* [cols, taps] */
} convolution;

/* `count` places from p on, [count, cols]; 0 where there is none. */
static sbp_status read_places(const convolution *v, int32_t of_rows, int64_t p, int64_t count, double **out) {
    double *row;
    *out = SBP_NEW_ARRAY(v->job->arena, double, count * v->cols + 1);
    for (int64_t i = 0; i < count; i++) {
        int64_t place = p + i, kept = v->taps - 1 + place;
        if (place >= v->rows || kept < 0 || (place < 0 && of_rows != v->x))
            continue;
        SBP_TRY(place < 0 ? sbp_oracle_fetch(v->job, v->state, 0, 1, kept * v->n + v->col, v->cols, &row)
                          : sbp_oracle_fetch(v->job, of_rows, place, 1, v->col, v->cols, &row));
        memcpy(*out + i * v->cols, row, (size_t)v->cols * sizeof *row);
    }
    return SBP_OK;
}

/* A product, and what rounding makes of it. */
static void add_product(const convolution *v, oracle_expected *e, int64_t at, double product) {
    e->exact[at] += product;
    e->rounded[at] += off(product, v->unit, (uint64_t)at + (uint64_t)(fabs(product) * 0x1p40));
}

static sbp_status expect_y(const convolution *v, int64_t row, int64_t count) {
    double *x, *first, *bias = NULL;
    oracle_expected *e = sbp_oracle_expect(v->job, SBP_CONV_ROWS_Y, row, count, v->col, v->cols);
    if (!e)
        return SBP_OK;
    if (!v->weight)
        return sbp_fail(v->job->diag, SBP_INTERNAL, "conv_rows: its weights were not read");
    SBP_TRY(read_places(v, v->x, row - v->taps + 1, count + v->taps - 1, &x));
    SBP_TRY(sbp_oracle_fetch(v->job, v->first, row, count, 0, 1, &first));
    if (v->job->dispatch->spans[SBP_CONV_ROWS_BIAS].space != SBP_SPACE_COUNT)
        SBP_TRY(sbp_oracle_fetch(v->job, SBP_CONV_ROWS_BIAS, 0, 1, v->col, v->cols, &bias));
    for (int64_t j = 0; j < count; j++)
        for (int64_t c = 0; c < v->cols; c++) {
            if (bias)
                add_product(v, e, j * v->cols + c, bias[c]);
            for (int64_t s = 0; s < v->taps && v->row0 + row + j - s >= (int64_t)first[j]; s++)
                add_product(v, e, j * v->cols + c,
                            v->weight[c * v->taps + v->taps - 1 - s] *
                                x[(j - s + v->taps - 1) * v->cols + c]);
        }
    return SBP_OK;
}

static sbp_status expect_next(const convolution *v) {
    double *kept;
    SBP_TRY(read_places(v, v->x, v->rows - v->taps + 1, v->taps - 1, &kept));
    for (int64_t i = 0; i + 1 < v->taps; i++) {
        oracle_expected *e = sbp_oracle_expect(v->job, SBP_CONV_ROWS_NEXT, 0, 1, i * v->n + v->col, v->cols);
        if (!e)
            return SBP_OK;
        memcpy(e->exact, kept + i * v->cols, (size_t)v->cols * sizeof *kept);
        memcpy(e->rounded, kept + i * v->cols, (size_t)v->cols * sizeof *kept);
    }
    return SBP_OK;
}

/* dx of a row, or dstate of a place before it. */
static sbp_status expect_place(const convolution *v, int64_t p, oracle_expected *e) {
    double *dy, *first, *behind;
    int64_t next = p + v->taps - 1 - v->rows; /* the row of next that it is */
    if (!e)
        return SBP_OK;
    SBP_TRY(read_places(v, SBP_CONV_ROWS_BWD_DY, p, v->taps, &dy));
    if (next >= 0) {
        SBP_TRY(
            sbp_oracle_fetch(v->job, SBP_CONV_ROWS_BWD_DSTATE, 0, 1, next * v->n + v->col, v->cols, &behind));
        for (int64_t c = 0; c < v->cols; c++)
            add_product(v, e, c, behind[c]);
    }
    for (int64_t s = p < 0 ? -p : 0; s < v->taps && p + s < v->rows; s++) {
        SBP_TRY(sbp_oracle_fetch(v->job, v->first, p + s, 1, 0, 1, &first));
        for (int64_t c = 0; c < v->cols && v->row0 + p >= (int64_t)first[0]; c++)
            add_product(v, e, c, v->weight[c * v->taps + v->taps - 1 - s] * dy[s * v->cols + c]);
    }
    return SBP_OK;
}

/* dw of the rows of a partial. */
static sbp_status expect_dw(const convolution *v, int64_t block) {
    int64_t row = block * SBP_PARTIAL_ROWS, count = v->rows - row;
    double *x, *dy, *first;
    oracle_expected *e =
        sbp_oracle_expect(v->job, SBP_CONV_ROWS_BWD_DW, block, 1, v->col * v->taps, v->cols * v->taps);
    if (!e)
        return SBP_OK;
    count = count < SBP_PARTIAL_ROWS ? count : SBP_PARTIAL_ROWS;
    SBP_TRY(read_places(v, v->x, row - v->taps + 1, count + v->taps - 1, &x));
    SBP_TRY(read_places(v, SBP_CONV_ROWS_BWD_DY, row, count, &dy));
    SBP_TRY(sbp_oracle_fetch(v->job, v->first, row, count, 0, 1, &first));
    for (int64_t j = 0; j < count; j++)
        for (int64_t s = 0; s < v->taps && v->row0 + row + j - s >= (int64_t)first[j]; s++)
            for (int64_t c = 0; c < v->cols; c++)
                add_product(v, e, c * v->taps + v->taps - 1 - s,
                            dy[j * v->cols + c] * x[(j - s + v->taps - 1) * v->cols + c]);
    return SBP_OK;
}

static sbp_status expect_convolved(const convolution *v, bool back) {
    oracle_runs rows = sbp_oracle_choose(v->rows, ROWS, 1),
                blocks = sbp_oracle_choose(sbp_ceil_div(v->rows, SBP_PARTIAL_ROWS), 1, 1);
    for (int32_t i = 0; i < rows.runs && !back; i++)
        SBP_TRY(expect_y(v, rows.first[i], rows.count[i]));
    if (!back)
        return expect_next(v);
    for (int32_t i = 0; i < rows.runs; i++)
        for (int64_t p = rows.first[i]; p < rows.first[i] + rows.count[i]; p++)
            SBP_TRY(
                expect_place(v, p, sbp_oracle_expect(v->job, SBP_CONV_ROWS_BWD_DX, p, 1, v->col, v->cols)));
    for (int64_t i = 0; i + 1 < v->taps; i++)
        SBP_TRY(expect_place(
            v, i + 1 - v->taps,
            sbp_oracle_expect(v->job, SBP_CONV_ROWS_BWD_DSTATE, 0, 1, i * v->n + v->col, v->cols)));
    for (int32_t i = 0; i < blocks.runs; i++)
        for (int64_t b = blocks.first[i]; b < blocks.first[i] + blocks.count[i]; b++)
            SBP_TRY(expect_dw(v, b));
    return SBP_OK;
}

sbp_status sbp_oracle_convolution(oracle_job *job) {
    bool back = sbp_command_traits_of(job->dispatch->command->kind)->backward;
    const sbp_span *s = job->dispatch->spans;
    convolution v = {.job = job,
                     .x = back ? SBP_CONV_ROWS_BWD_X : SBP_CONV_ROWS_X,
                     .w = back ? SBP_CONV_ROWS_BWD_W : SBP_CONV_ROWS_W,
                     .first = back ? SBP_CONV_ROWS_BWD_FIRST : SBP_CONV_ROWS_FIRST,
                     .state = back ? SBP_CONV_ROWS_BWD_STATE : SBP_CONV_ROWS_STATE};
    v.rows = s[v.x].rows;
    v.row0 = s[v.x].first_row;
    v.n = s[v.x].cols;
    v.taps = s[v.state].cols / v.n + 1;
    v.unit = 2 * sbp_oracle_unit(s[v.x].dtype == SBP_F64 ? SBP_F64 : SBP_F32);
    oracle_runs channels = sbp_oracle_choose(v.n, CHANNELS, 1);
    for (int32_t i = 0; i < channels.runs; i++) {
        v.col = channels.first[i];
        v.cols = channels.count[i];
        if (s[v.w].space != SBP_SPACE_COUNT)
            SBP_TRY(sbp_oracle_fetch(job, v.w, v.col, v.cols, 0, v.taps, &v.weight));
        SBP_TRY(expect_convolved(&v, back));
    }
    return sbp_oracle_settle(job);
}
