/* test_attention.c: attention and its gradients against loops over all pairs of rows, which are themselves
 * checked by finite differences. */
#include "tests/conformance/conformance.h"

#include <math.h>

/* A sequence of `total` rows, of which the command sees queries row0 .. row0 + rows and keys lo .. row0 +
 * rows. */
typedef struct sequence {
    int64_t total, row0, rows, lo;
    int64_t *first, *shared_end, *own; /* [total] */
} sequence;

typedef struct setting {
    sbp_attention_attrs attrs;
    sbp_dtype dtype;
    int copies;       /* of the workspace; 0: none */
    bool wide;        /* o and dq in fp32, whatever dtype is */
    uint32_t only_on; /* of suite_case */
} setting;

/* A factor that attention makes itself, p or ds: of bf16 the CPU and CUDA round it, of f16 CUDA does; others
 * may (ir/program/program.h). */
static bool rounds(const setting *t) {
    const char *name = suite_device()->name;
    bool cuda = strcmp(name, "cuda") == 0;
    return t->dtype == SBP_F16 ? cuda : t->dtype == SBP_BF16 && (cuda || strncmp(name, "cpu", 3) == 0);
}

static double factor(const setting *t, double x) {
    return rounds(t) ? sbp_round_to(t->dtype, x) : x;
}

static struct { long seen, doubted; } factors; /* of those that round */

/* x, which fp32 computes within `error`, may have been rounded to what lies on the other side of a middle:
 * elements at, at + 1 .. of r, to which scale * factor(x) * vector[] was added, are then others. */
static void doubt_factor(suite_case *c, const setting *t, suite_tensor *r, int64_t at, int64_t count,
                         double x, double error, double scale, const double *vector) {
    if (!r || !rounds(t))
        return;
    factors.seen++;
    for (int sign = -1; sign <= 1; sign += 2) {
        double step = scale * (factor(t, x + sign * error) - factor(t, x));
        if (step == 0)
            continue;
        factors.doubted++;
        suite_doubt_add(c, r, (suite_doubt){at, count, step, vector});
    }
}

/* Documents of random lengths; some are several completions of one prompt (it comes first, then each). */
static sequence make_sequence(suite_case *c, int64_t total, int64_t rows, bool documents) {
    sequence s = {.total = total, .rows = rows, .row0 = total - rows};
    s.first = suite_alloc(c, total, sizeof(int64_t));
    s.shared_end = suite_alloc(c, total, sizeof(int64_t));
    s.own = suite_alloc(c, total, sizeof(int64_t));
    int64_t at = 0;
    while (at < total) {
        int64_t length = documents ? 1 + sbp_rng_below(&c->rng, total / 3 + 2) : total;
        length = length < total - at ? length : total - at;
        int64_t prompt = documents && sbp_rng_below(&c->rng, 2) ? length / 3 : 0;
        for (int64_t r = at; r < at + length; r++) {
            bool completion = prompt > 0 && r >= at + prompt;
            int64_t half = (length - prompt) / 2 + at + prompt; /* two completions */
            s.first[r] = at;
            s.shared_end[r] = completion ? at + prompt : at;
            s.own[r] = completion ? (r < half ? at + prompt : half) : at;
        }
        at += length;
    }
    s.lo = total;
    for (int64_t r = s.row0; r < total; r++)
        s.lo = s.first[r] < s.lo ? s.first[r] : s.lo;
    if (rows == 0)
        s.lo = total;
    return s;
}

/* Whether row r sees row k, by the definition in ir/program/program.h. */
static bool sees(const sequence *s, int64_t r, int64_t k, int64_t window) {
    if (k >= s->own[r] && k <= r)
        return window == 0 || r - k < window;
    if (k >= s->first[r] && k < s->shared_end[r])
        return window == 0 || s->shared_end[r] + r - s->own[r] - k < window;
    return false;
}

typedef struct matrices {
    const double *q, *k, *v, *d_o;  /* rows of q from row0, of k and v from lo */
    const double *out, *out_lse;    /* what the forward pass left, for the gradients; NULL: o and lse */
    double *o, *lse, *dq, *dk, *dv; /* gradients are added to; NULL: forward only */
    suite_tensor *doubt_o, *doubt_dq, *doubt_dk, *doubt_dv; /* where roundings are noted that may differ */
} matrices;

/* error: of what fp32 makes of it: its sum in any order, what is done to it, an exponential that takes it. */
static double score(const setting *t, const double *q, const double *k, double *slope, double *error) {
    double x = 0, size = 0;
    for (int64_t d = 0; d < t->attrs.d_qk; d++) {
        x += q[d] * k[d];
        size += fabs(q[d] * k[d]);
    }
    x *= t->attrs.scale;
    *slope = 1;
    *error = SBP_HALF_ULP_F32 *
             ((double)(t->attrs.d_qk + 2) * size * fabs(t->attrs.scale) + 16 * (1 + t->attrs.softcap));
    if (t->attrs.softcap > 0) {
        double y = tanh(x / t->attrs.softcap);
        *slope = 1 - y * y;
        x = t->attrs.softcap * y;
    }
    return x;
}

static void reference_row(suite_case *c, const setting *t, const sequence *s, const matrices *m, int64_t j,
                          int64_t h, double *p, double *slope, double *error) {
    const sbp_attention_attrs *a = &t->attrs;
    int64_t kv = h / (a->heads / a->kv_heads), row = s->row0 + j, keys = s->total - s->lo;
    const double *q = m->q + (j * a->heads + h) * a->d_qk;
    double *o = m->o + (j * a->heads + h) * a->d_v, largest = -(double)INFINITY, sum = 0;
    for (int64_t i = 0; i < keys; i++) {
        p[i] = -(double)INFINITY;
        if (sees(s, row, s->lo + i, a->window))
            p[i] = score(t, q, m->k + (i * a->kv_heads + kv) * a->d_qk, &slope[i], &error[i]);
        largest = fmax(largest, p[i]);
    }
    double whole = log(2) * nearbyint(largest / log(2)); /* a power of two */
    for (int64_t i = 0; i < keys; i++) {
        if (p[i] > -(double)INFINITY)
            error[i] += SBP_HALF_ULP_F32 * 4 * (fabs(p[i]) + fabs(whole)); /* now of exp, relative */
        sum += p[i] = exp(p[i] - whole);
    }
    double lse = whole + log(sum);
    m->lse[j * a->heads + h] = lse;
    for (int64_t d = 0; d < a->d_v; d++)
        o[d] = 0;
    for (int64_t i = 0; i < keys; i++) {
        const double *v = m->v + (i * a->kv_heads + kv) * a->d_v;
        if (p[i] == 0)
            continue;
        for (int64_t d = 0; d < a->d_v; d++)
            o[d] += factor(t, p[i]) / sum * v[d];
        doubt_factor(c, t, m->doubt_o, (j * a->heads + h) * a->d_v, a->d_v, p[i], p[i] * error[i], 1 / sum,
                     v);
    }
    if (!m->dq)
        return;
    const double *d_o = m->d_o + (j * a->heads + h) * a->d_v;
    const double *out = m->out ? m->out + (j * a->heads + h) * a->d_v : o;
    double delta = 0, delta_size = 0, shift = whole - (m->out_lse ? m->out_lse[j * a->heads + h] : lse);
    for (int64_t d = 0; d < a->d_v; d++) {
        delta += d_o[d] * out[d];
        delta_size += fabs(d_o[d] * out[d]);
    }
    for (int64_t i = 0; i < keys; i++) {
        if (p[i] == 0)
            continue;
        int64_t at_k = (i * a->kv_heads + kv) * a->d_qk, at_v = (i * a->kv_heads + kv) * a->d_v;
        double dp = 0, size = delta_size, pi = p[i] * exp(shift);
        for (int64_t d = 0; d < a->d_v; d++) {
            dp += d_o[d] * m->v[at_v + d];
            size += fabs(d_o[d] * m->v[at_v + d]);
            m->dv[at_v + d] += factor(t, pi) * d_o[d];
        }
        double ds = pi * (dp - delta) * slope[i], rounded = factor(t, ds) * a->scale;
        for (int64_t d = 0; d < a->d_qk; d++) {
            m->dq[(j * a->heads + h) * a->d_qk + d] += rounded * m->k[at_k + d];
            m->dk[at_k + d] += rounded * q[d];
        }
        /* sums of d_v terms in any order, and slope, a difference of numbers up to 1 */
        double ds_error = fabs(ds) * error[i] +
                          SBP_HALF_ULP_F32 * pi * ((double)(a->d_v + 2) * size + 16 * fabs(dp - delta));
        doubt_factor(c, t, m->doubt_dv, at_v, a->d_v, pi, pi * error[i], 1, d_o);
        doubt_factor(c, t, m->doubt_dq, (j * a->heads + h) * a->d_qk, a->d_qk, ds, ds_error, a->scale,
                     m->k + at_k);
        doubt_factor(c, t, m->doubt_dk, at_k, a->d_qk, ds, ds_error, a->scale, q);
    }
}

static void reference(suite_case *c, const setting *t, const sequence *s, const matrices *m) {
    double *p = suite_alloc(c, s->total + 1, sizeof(double)),
           *slope = suite_alloc(c, s->total + 1, sizeof(double)),
           *error = suite_alloc(c, s->total + 1, sizeof(double));
    for (int64_t j = 0; j < s->rows; j++)
        for (int64_t h = 0; h < t->attrs.heads; h++)
            reference_row(c, t, s, m, j, h, p, slope, error);
}

static suite_tensor *add_column(suite_case *c, const sequence *s, const int64_t *column, sbp_dtype dtype) {
    suite_tensor *t = suite_add(c, dtype, s->rows, 1);
    for (int64_t j = 0; j < s->rows; j++)
        t->values[j] = (double)column[s->row0 + j];
    return t;
}

static void check_attention(const char *name, const setting *t, int64_t total, int64_t rows, bool documents,
                            bool backward, uint64_t seed) {
    suite_case *c = suite_begin(name, seed);
    const sbp_attention_attrs *a = &t->attrs;
    sequence s = make_sequence(c, total, rows, documents);
    int64_t keys = s.total - s.lo;
    sbp_dtype real = t->dtype == SBP_F64 ? SBP_F64 : SBP_F32, index = seed % 3 ? SBP_I32 : SBP_I64;
    sbp_dtype result = t->wide ? SBP_F32 : t->dtype;
    suite_tensor *dq = NULL, *dk = NULL, *dv = NULL, *o = NULL, *lse = NULL;
    if (backward) {
        dq = suite_add(c, result, rows, a->heads * a->d_qk);
        dk = suite_add(c, real, keys, a->kv_heads * a->d_qk);
        dv = suite_add(c, real, keys, a->kv_heads * a->d_v);
    } else {
        o = suite_add(c, result, rows, a->heads * a->d_v);
        lse = suite_add(c, real, rows, a->heads);
    }
    suite_tensor *q = suite_add(c, t->dtype, rows, a->heads * a->d_qk);
    suite_tensor *k = suite_add(c, t->dtype, keys, a->kv_heads * a->d_qk);
    suite_tensor *v = suite_add(c, t->dtype, keys, a->kv_heads * a->d_v);
    q->first_row = s.row0;
    k->first_row = v->first_row = s.lo;
    for (int64_t i = 0; i < rows * q->cols; i++) /* peaked distributions */
        q->values[i] = sbp_round_to(t->dtype, 3 * q->values[i]);
    suite_tensor *d_o = NULL;
    if (backward) {
        o = suite_add(c, t->dtype, rows, a->heads * a->d_v);
        lse = suite_add(c, real, rows, a->heads);
        d_o = suite_add(c, t->dtype, rows, a->heads * a->d_v);
    }
    add_column(c, &s, s.first, index);
    add_column(c, &s, s.shared_end, index);
    add_column(c, &s, s.own, index);
    if (!backward) {
        suite_add_absent(c);
    } else if (t->copies > 0) {
        suite_tensor *work = suite_add(c, real, rows, t->copies * a->heads * a->d_qk);
        c->layout = SUITE_DENSE;
        suite_expect(c, work); /* whatever it holds */
        work->tolerance = (double)INFINITY;
    } else {
        suite_add_absent(c);
    }
    c->command.kind = backward ? SBP_CMD_ATTN_BWD : SBP_CMD_ATTN_FWD;
    c->command.u.attention = *a;
    c->same_bits = t->dtype == SBP_BF16;
    c->only_on = t->only_on;
    if (!suite_wants(c)) {
        suite_end(c);
        return;
    }
    matrices m = {.q = q->values, .k = k->values, .v = v->values};
    m.o = suite_alloc(c, rows * a->heads * a->d_v, sizeof(double));
    m.lse = suite_alloc(c, rows * a->heads, sizeof(double));
    if (backward) {
        suite_expect(c, dq);
        suite_expect(c, dk);
        suite_expect(c, dv);
        /* of a row that sees little else but itself, dp - delta is the difference of equal numbers */
        dq->terms = dk->terms = a->scale * sqrt((double)a->d_v) / 3;
        memset(dq->expected, 0, (size_t)(rows * dq->cols) * sizeof(double));
        m.d_o = d_o->values;
        m.dq = dq->expected;
        m.dk = dk->expected;
        m.dv = dv->expected;
        /* as a forward pass leaves them: rounded */
        matrices forward = {.q = m.q, .k = m.k, .v = m.v, .o = o->values, .lse = lse->values};
        reference(c, t, &s, &forward);
        for (int64_t i = 0; i < rows * o->cols; i++)
            o->values[i] = sbp_round_to(t->dtype, o->values[i]);
        for (int64_t i = 0; i < rows * a->heads; i++)
            lse->values[i] = sbp_round_to(real, lse->values[i]);
        m.out = o->values;
        m.out_lse = lse->values;
        m.doubt_dq = t->wide ? dq : NULL;
        m.doubt_dk = dk;
        m.doubt_dv = dv;
        reference(c, t, &s, &m);
    } else {
        suite_expect(c, o);
        suite_expect(c, lse);
        m.doubt_o = t->wide ? o : NULL;
        reference(c, t, &s, &m);
        memcpy(o->expected, m.o, (size_t)(rows * o->cols) * sizeof(double));
        memcpy(lse->expected, m.lse, (size_t)(rows * a->heads) * sizeof(double));
    }
    suite_check(c);
    suite_end(c);
}

static const setting settings[] = {
    {{.heads = 1, .kv_heads = 1, .d_qk = 4, .d_v = 4, .scale = 0.5}, SBP_F32, .copies = 0},
    {{.heads = 9, .kv_heads = 3, .d_qk = 64, .d_v = 64, .scale = 0.125}, SBP_F32, .copies = 2},
    {{.heads = 4, .kv_heads = 4, .d_qk = 16, .d_v = 24, .scale = 0.25}, SBP_F32, .copies = 3},
    {{.heads = 6, .kv_heads = 1, .d_qk = 20, .d_v = 7, .scale = 0.2, .window = 9}, SBP_F32, .copies = 2},
    {{.heads = 4, .kv_heads = 2, .d_qk = 32, .d_v = 32, .scale = 0.3, .softcap = 5}, SBP_F32, .copies = 4},
    {{.heads = 14, .kv_heads = 2, .d_qk = 8, .d_v = 8, .scale = 1, .window = 40, .softcap = 2},
     SBP_F32,
     .copies = 0},
    {{.heads = 9, .kv_heads = 3, .d_qk = 16, .d_v = 16, .scale = 0.25}, SBP_F64, .copies = 2},
    {{.heads = 3, .kv_heads = 1, .d_qk = 10, .d_v = 12, .scale = 0.3, .window = 5, .softcap = 3},
     SBP_F64,
     .copies = 0},
    {{.heads = 4, .kv_heads = 2, .d_qk = 32, .d_v = 32, .scale = 0.2}, SBP_BF16, .copies = 2},
    {{.heads = 4, .kv_heads = 2, .d_qk = 32, .d_v = 32, .scale = 0.2}, SBP_BF16, .copies = 2, .wide = true},
    {{.heads = 9, .kv_heads = 3, .d_qk = 64, .d_v = 64, .scale = -0.125},
     SBP_BF16,
     .copies = 2,
     .wide = true},
    {{.heads = 3, .kv_heads = 1, .d_qk = 19, .d_v = 21, .scale = 0.3, .window = 9},
     SBP_BF16,
     0,
     .wide = true},
    {{.heads = 5, .kv_heads = 5, .d_qk = 8, .d_v = 33, .scale = 0.5, .softcap = 5},
     SBP_BF16,
     3,
     .wide = true},
    {{.heads = 2, .kv_heads = 1, .d_qk = 6, .d_v = 4, .scale = 0}, SBP_BF16, .copies = 0, .wide = true},
    {{.heads = 4, .kv_heads = 2, .d_qk = 32, .d_v = 16, .scale = 0.2, .window = 30}, SBP_F16, .copies = 0},
    {{.heads = 2, .kv_heads = 1, .d_qk = 64, .d_v = 64, .scale = 0.2}, SBP_F16, .copies = 2, .wide = true}};

static void check_settings(bool backward) {
    static const int64_t rows[] = {0, 1, 7, 63, 64, 130};
    for (int t = 0; t < SBP_COUNT(settings); t++)
        for (int r = 0; r < SBP_COUNT(rows); r++)
            for (int documents = 0; documents < 2; documents++) {
                char name[96];
                int64_t total = rows[r] + (r % 2 ? 0 : 77);
                snprintf(name, sizeof name, "attention %s, setting %d, %lld rows of %lld%s",
                         backward ? "backward" : "forward", t, (long long)rows[r], (long long)total,
                         documents ? ", documents" : "");
                check_attention(name, &settings[t], total, rows[r], documents, backward,
                                (uint64_t)(t + 7 * r + documents));
            }
}

static void test_attention_forward(void **state) {
    (void)state;
    check_settings(false);
}

static void test_attention_backward(void **state) {
    (void)state;
    check_settings(true);
}

/* Several tiles of keys: whole, masked, invisible. */
static void test_attention_long(void **state) {
    (void)state;
    static const setting longer[] = {
        {{.heads = 3, .kv_heads = 1, .d_qk = 16, .d_v = 16, .scale = 0.25}, SBP_F32, .copies = 3},
        {{.heads = 2, .kv_heads = 2, .d_qk = 8, .d_v = 8, .scale = 0.3, .window = 300}, SBP_F32, .copies = 2},
        {{.heads = 2, .kv_heads = 1, .d_qk = 8, .d_v = 8, .scale = 0.3}, SBP_F64, .copies = 2},
        {{.heads = 3, .kv_heads = 1, .d_qk = 16, .d_v = 16, .scale = 0.25},
         SBP_BF16,
         .copies = 3,
         .wide = true},
        {{.heads = 2, .kv_heads = 2, .d_qk = 8, .d_v = 9, .scale = 0.3, .window = 301},
         SBP_BF16,
         2,
         .wide = true}};
    for (int t = 0; t < SBP_COUNT(longer); t++)
        for (int documents = 0; documents < 2; documents++)
            for (int backward = 0; backward < 2; backward++)
                check_attention("attention, 1300 keys", &longer[t], 1300, 260, documents, backward,
                                (uint64_t)(t + documents));
}

/* Heads that no thread's registers hold the sums of. */
static void test_attention_wide(void **state) {
    (void)state;
    static const setting wide[] = {
        {{.heads = 2, .kv_heads = 1, .d_qk = 512, .d_v = 512, .scale = 0.05}, SBP_BF16, 1, .wide = true},
        {{.heads = 1, .kv_heads = 1, .d_qk = 272, .d_v = 320, .scale = 0.06, .window = 9},
         SBP_BF16,
         .copies = 1}};
    for (int t = 0; t < SBP_COUNT(wide); t++)
        for (int backward = 0; backward < 2; backward++)
            check_attention("attention, wide heads", &wide[t], 40, 20, true, backward, (uint64_t)t);
}

/* Heads so wide that a tile has fewer keys, in more than one tile; many heads on one of keys, so that a block
 * has few positions; rows a power of two apart. */
static void test_attention_cut(void **state) {
    (void)state;
    static const struct {
        sbp_attention_attrs attrs;
        int64_t keys, rows;
    } cuts[] = {
        {{.heads = 2, .kv_heads = 1, .d_qk = 512, .d_v = 512, .scale = 0.05}, 300, 20},
        {{.heads = 1, .kv_heads = 1, .d_qk = 192, .d_v = 256, .scale = 0.06, .window = 400}, 700, 9},
        {{.heads = 1, .kv_heads = 1, .d_qk = 272, .d_v = 40, .scale = 0.06}, 500, 9},
        {{.heads = 16, .kv_heads = 1, .d_qk = 20, .d_v = 24, .scale = 0.2}, 60, 30},
        {{.heads = 71, .kv_heads = 1, .d_qk = 8, .d_v = 9, .scale = 0.3}, 40, 9},
        {{.heads = 96, .kv_heads = 1, .d_qk = 4, .d_v = 4, .scale = 0.3, .window = 7}, 30, 11},
    };
    static const sbp_dtype types[] = {SBP_F32, SBP_F64, SBP_BF16};
    for (int i = 0; i < SBP_COUNT(cuts); i++)
        for (int d = 0; d < SBP_COUNT(types); d++)
            for (int backward = 0; backward < 2; backward++) {
                char name[64];
                snprintf(name, sizeof name, "attention, cut %d, %s%s", i, sbp_dtype_name(types[d]),
                         backward ? " backward" : "");
                setting t = {.attrs = cuts[i].attrs,
                             .dtype = types[d],
                             .copies = 2 * (i % 2),
                             .wide = types[d] == SBP_BF16,
                             .only_on = SUITE_ON_CPU};
                check_attention(
                    name, &t, cuts[i].keys, cuts[i].rows, i > 2, backward,
                    (uint64_t)(2 * d + (i > 2 ? 2 : 0))); /* no factor lies where doubts miss it */
            }
}

/* For nearly all factors it is known what they are rounded to: so a rounding that is missing, or
 * another, is seen. */
static void test_attention_doubts(void **state) {
    (void)state;
    print_message("  %ld of %ld factors of attention may be rounded either way\n", factors.doubted,
                  factors.seen);
    assert_true(factors.doubted <= SBP_MOST_DOUBTS * (double)factors.seen);
}

/* The reference's gradients against central differences of sum(o * d_o). */
static void test_attention_reference(void **state) {
    (void)state;
    suite_case *c = suite_begin("reference", 0);
    setting t = {{.heads = 4, .kv_heads = 2, .d_qk = 5, .d_v = 3, .scale = 0.4, .window = 6, .softcap = 2},
                 SBP_F64,
                 .copies = 0};
    sequence s = make_sequence(c, 20, 14, true);
    int64_t keys = s.total - s.lo, sizes[3] = {14 * 20, keys * 10, keys * 6};
    double *x[3], *dx[3], *d_o = suite_alloc(c, 14 * 12, sizeof(double));
    for (int i = 0; i < 3; i++) {
        x[i] = suite_alloc(c, sizes[i], sizeof(double));
        dx[i] = suite_alloc(c, sizes[i], sizeof(double));
        for (int64_t j = 0; j < sizes[i]; j++)
            x[i][j] = sbp_rng_unit(&c->rng);
    }
    for (int j = 0; j < 14 * 12; j++)
        d_o[j] = sbp_rng_unit(&c->rng);
    matrices m = {.q = x[0], .k = x[1], .v = x[2], .d_o = d_o, .dq = dx[0], .dk = dx[1], .dv = dx[2]};
    m.o = suite_alloc(c, 14 * 12, sizeof(double));
    m.lse = suite_alloc(c, 14 * 4, sizeof(double));
    reference(c, &t, &s, &m);
    m.dq = NULL;
    for (int i = 0; i < 3; i++)
        for (int64_t j = 0; j < sizes[i]; j++) {
            double value[2], at = x[i][j];
            for (int sign = 0; sign < 2; sign++) {
                x[i][j] = at + (sign ? 1e-5 : -1e-5);
                reference(c, &t, &s, &m);
                value[sign] = 0;
                for (int n = 0; n < 14 * 12; n++)
                    value[sign] += m.o[n] * d_o[n];
            }
            x[i][j] = at;
            assert_true(fabs((value[1] - value[0]) / 2e-5 - dx[i][j]) <= SBP_TOLERANCE_DIFFERENCES);
        }
    suite_end(c);
}

const struct CMUnitTest suite_attention_tests[] = {
    cmocka_unit_test(test_attention_reference), cmocka_unit_test(test_attention_forward),
    cmocka_unit_test(test_attention_backward),  cmocka_unit_test(test_attention_long),
    cmocka_unit_test(test_attention_wide),      cmocka_unit_test(test_attention_cut),
    cmocka_unit_test(test_attention_doubts)};
const int suite_attention_count = SBP_COUNT(suite_attention_tests);
