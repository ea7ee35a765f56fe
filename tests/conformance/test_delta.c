/* test_delta.c: delta_rule and delta_rule_bwd against the rule row by row: documents that begin inside of blocks and
 * of chunks, of one row, chunks that begin anywhere in a block, heads that share a key head, absent operands, a state
 * that nobody may read poisoned, the state written over in its place. The rule itself is checked by differences. */
#include "backends/gpu/gpu.h"
#include "tests/conformance/conformance.h"

#include <math.h>

static const sbp_dtype floats[] = {SBP_F32, SBP_BF16, SBP_F16, SBP_F64};
static const int64_t row_counts[] = {0, 1, 3, 63, 64, 65, 200};
/* rows of the first document before the chunk; -1: it begins there, and so does every row */
static const int64_t rows_before[] = {0, 1, 63, 64, 100, -1};
static const sbp_delta_attrs shapes[] = {
    {.heads = 1, .key_heads = 1, .d_k = 1, .d_v = 1},
    {.heads = 2, .key_heads = 1, .d_k = 8, .d_v = 5},
    {.heads = 6, .key_heads = 2, .d_k = 33, .d_v = 17},
    {.heads = 2, .key_heads = 2, .d_k = 16, .d_v = 48},
};
static const sbp_delta_attrs large_shapes[] = {
    {.heads = 2, .key_heads = 1, .d_k = 128, .d_v = 128},
    {.heads = 1, .key_heads = 1, .d_k = 256, .d_v = 256},
};

/* Numbers of a case. Gradients: NULL forwards. */
typedef struct delta_case {
    sbp_delta_attrs a;
    int64_t rows, row0;
    double *q, *k, *v, *decay, *beta, *first, *state; /* q: NULL where nobody asks for o */
    double *o, *next;
    double *d_o, *dstate; /* dstate: of the state behind; afterwards of the one before */
    double *dq, *dk, *dv, *ddecay, *dbeta;
} delta_case;

static bool begins(const delta_case *k, int64_t row) {
    return (int64_t)k->first[row] == k->row0 + row;
}

/* Columns of head `head` of a row in a matrix whose rows have `count` heads of n columns. */
static double *at(double *matrix, int64_t row, int64_t head, int64_t count, int64_t n) {
    return matrix + (row * count + head) * n;
}

/* States of a head, two for each row: decayed, and behind it. */
static void run_head(delta_case *k, int64_t head, double *states, double *corrections) {
    int64_t d_k = k->a.d_k, d_v = k->a.d_v, size = d_k * d_v, of_key = head / (k->a.heads / k->a.key_heads);
    const double *before = k->state + head * size;
    for (int64_t t = 0; t < k->rows; t++) {
        double *now = states + 2 * t * size, *behind = now + size, *d = corrections + t * d_v;
        const double *key = at(k->k, t, of_key, k->a.key_heads, d_k),
                     *value = at(k->v, t, head, k->a.heads, d_v);
        for (int64_t i = 0; i < size; i++)
            now[i] = begins(k, t) ? 0 : exp(k->decay[t * k->a.heads + head]) * before[i];
        for (int64_t j = 0; j < d_v; j++) {
            d[j] = value[j];
            for (int64_t i = 0; i < d_k; i++)
                d[j] -= now[i * d_v + j] * key[i];
            d[j] *= k->beta[t * k->a.heads + head];
        }
        for (int64_t i = 0; i < size; i++)
            behind[i] = now[i] + key[i / d_v] * d[i % d_v];
        for (int64_t i = 0; i < size && k->o; i++)
            at(k->o, t, head, k->a.heads, d_v)[i % d_v] +=
                behind[i] * at(k->q, t, of_key, k->a.key_heads, d_k)[i / d_v];
        before = behind;
    }
    if (k->next)
        memcpy(k->next + head * size, before, (size_t)size * sizeof *before);
}

static void run_head_back(delta_case *k, int64_t head, const double *states, const double *corrections,
                          double *scratch) {
    int64_t d_k = k->a.d_k, d_v = k->a.d_v, size = d_k * d_v, heads = k->a.heads;
    int64_t of_key = head / (heads / k->a.key_heads);
    double *ds = k->dstate + head * size;
    for (int64_t t = k->rows - 1; t >= 0; t--) {
        const double *now = states + 2 * t * size, *behind = now + size, *d = corrections + t * d_v;
        const double *q = at(k->q, t, of_key, k->a.key_heads, d_k),
                     *key = at(k->k, t, of_key, k->a.key_heads, d_k);
        const double *d_o = at(k->d_o, t, head, heads, d_v), *value = at(k->v, t, head, heads, d_v);
        double *dq = at(k->dq, t, of_key, k->a.key_heads, d_k),
               *dk = at(k->dk, t, of_key, k->a.key_heads, d_k);
        double *dv = at(k->dv, t, head, heads, d_v), *dd = scratch, beta = k->beta[t * heads + head];
        for (int64_t i = 0; i < size; i++) {
            dq[i / d_v] += behind[i] * d_o[i % d_v];
            ds[i] += q[i / d_v] * d_o[i % d_v];
        }
        memset(dd, 0, (size_t)d_v * sizeof *dd);
        for (int64_t i = 0; i < size; i++) {
            dd[i % d_v] += ds[i] * key[i / d_v];
            dk[i / d_v] += ds[i] * d[i % d_v];
        }
        for (int64_t j = 0; j < d_v; j++) {
            double rest = value[j];
            for (int64_t i = 0; i < d_k; i++)
                rest -= now[i * d_v + j] * key[i];
            k->dbeta[t * heads + head] += dd[j] * rest;
            dv[j] = beta * dd[j];
        }
        for (int64_t i = 0; i < size; i++) {
            dk[i / d_v] -= now[i] * dv[i % d_v];
            ds[i] -= key[i / d_v] * dv[i % d_v];
            k->ddecay[t * heads + head] += ds[i] * now[i];
            ds[i] = begins(k, t) ? 0 : ds[i] * exp(k->decay[t * heads + head]);
        }
    }
}

/* All that is to be written must be 0, but for dstate. */
static void run_rule(suite_case *c, delta_case *k) {
    int64_t size = k->a.d_k * k->a.d_v;
    double *states = suite_alloc(c, 2 * k->rows * size, sizeof(double));
    double *corrections = suite_alloc(c, (k->rows + 1) * k->a.d_v, sizeof(double));
    for (int64_t head = 0; head < k->a.heads; head++) {
        run_head(k, head, states, corrections);
        if (k->d_o)
            run_head_back(k, head, states, corrections, corrections + k->rows * k->a.d_v);
    }
}

/* Documents of any length: after those before the chunk some of one row, some short, some of blocks. */
static void draw_documents(suite_case *c, suite_tensor *first, int64_t row0, int64_t before) {
    int64_t begin = row0 - before, left = before < 0 ? 1 : sbp_rng_below(&c->rng, 150);
    for (int64_t j = 0; j < first->rows; j++, left--) {
        if (left == 0 || before < 0) {
            begin = row0 + j;
            left = sbp_rng_below(&c->rng, 3) == 0 ? 1 : 1 + sbp_rng_below(&c->rng, 140);
        }
        first->values[j] = (double)begin;
    }
}

/* Keys of length 1, queries as they are scaled, decays of which some forget all. */
static void draw_rows(suite_case *c, delta_case *k, suite_tensor *keys, suite_tensor *queries) {
    for (int64_t h = 0; h < k->rows * k->a.key_heads; h++) {
        double *key = k->k + h * k->a.d_k, *query = k->q ? k->q + h * k->a.d_k : NULL, square = 0;
        for (int64_t i = 0; i < k->a.d_k; i++)
            square += key[i] * key[i];
        for (int64_t i = 0; i < k->a.d_k; i++) {
            key[i] = sbp_round_to(keys->dtype, key[i] / sqrt(square + 1e-3));
            if (query)
                query[i] = sbp_round_to(queries->dtype, query[i] / sqrt((double)k->a.d_k));
        }
    }
    for (int64_t i = 0; i < k->rows * k->a.heads; i++) {
        static const double scales[] = {0.01, 0.01, 0.3, 30};
        sbp_dtype wide = keys->dtype == SBP_F64 ? SBP_F64 : SBP_F32;
        k->decay[i] = sbp_round_to(wide, -fabs(k->decay[i]) * scales[sbp_rng_below(&c->rng, 4)]);
        k->beta[i] = sbp_round_to(wide, fabs(k->beta[i]));
    }
}

typedef struct tensors {
    suite_tensor *q, *k, *v, *decay, *beta, *first, *state;
} tensors;

/* Operands q .. state, after those that are written, and d_o. */
static tensors add_operands(suite_case *c, delta_case *k, sbp_dtype dtype, bool has_q, int64_t before,
                            int mode) {
    sbp_dtype wide = dtype == SBP_F64 ? SBP_F64 : SBP_F32;
    const sbp_delta_attrs *a = &k->a;
    tensors t;
    k->row0 = before > 0 ? before + 7 * (mode % 2) : mode % 3 * 50;
    t.q = has_q ? suite_add(c, dtype, k->rows, a->key_heads * a->d_k) : suite_add_absent(c);
    t.k = suite_add(c, dtype, k->rows, a->key_heads * a->d_k);
    t.v = suite_add(c, dtype, k->rows, a->heads * a->d_v);
    t.decay = suite_add(c, wide, k->rows, a->heads);
    t.beta = suite_add(c, wide, k->rows, a->heads);
    t.first = suite_add(c, mode % 2 ? SBP_I32 : SBP_I64, k->rows, 1);
    t.state = suite_add(c, wide, 1, a->heads * a->d_k * a->d_v);
    t.k->first_row = t.first->first_row = k->row0;
    draw_documents(c, t.first, k->row0, before);
    k->q = has_q ? t.q->values : NULL;
    k->k = t.k->values;
    k->v = t.v->values;
    k->decay = t.decay->values;
    k->beta = t.beta->values;
    k->first = t.first->values;
    k->state = t.state->values;
    draw_rows(c, k, t.k, t.q);
    c->command.u.delta = *a;
    return t;
}

/* Terms of a sum, at least: where all there is are heads of one column, they may cancel. */
#define TERMS 0.1

static double *expect_zeros(suite_case *c, suite_tensor *t) {
    if (t->absent)
        return NULL;
    suite_expect(c, t);
    memset(t->expected, 0, (size_t)(t->rows * t->cols) * sizeof(double));
    t->terms = TERMS;
    return t->expected;
}

/* Nobody reads the state before a document. */
static void poison_state(const delta_case *k, suite_tensor *state) {
    for (int64_t i = 0; k->rows > 0 && begins(k, 0) && i < state->cols; i++)
        state->values[i] = (double)NAN;
}

static bool is_gpu(void) {
    return strncmp(suite_device()->name, "cpu", 3) != 0;
}

/* GPUs keep more there than the states that the command itself asks for. */
static void add_work(suite_case *c, const sbp_delta_attrs *a, int64_t rows, bool backward, int mode) {
    int64_t cols = is_gpu() ? sbp_gpu_delta_columns(a, backward) : a->heads * a->d_k * a->d_v;
    int64_t blocks = sbp_ceil_div(rows, SBP_DELTA_BLOCK) + (is_gpu() ? 1 : 0) + mode % 2;
    suite_tensor *work = suite_add(c, c->tensors[c->tensor_count - 1].dtype, blocks, cols + mode % 3);
    suite_expect(c, work); /* whatever it holds */
    work->tolerance = (double)INFINITY;
}

static void check_forward(const sbp_delta_attrs *a, sbp_dtype dtype, int64_t rows, int64_t before, int mode) {
    suite_case *c = suite_begin("delta_rule", (uint64_t)mode);
    sbp_dtype wide = dtype == SBP_F64 ? SBP_F64 : SBP_F32;
    delta_case k = {.a = *a, .rows = rows};
    /* both; o alone, as when the backward computes it again; the state alone; in place */
    bool has_o = mode % 4 != 2, has_next = mode % 4 != 1, in_place = mode % 4 == 3;
    suite_tensor *o = has_o ? suite_add(c, dtype, rows, a->heads * a->d_v) : suite_add_absent(c);
    suite_tensor *next = has_next ? suite_add(c, wide, 1, a->heads * a->d_k * a->d_v) : suite_add_absent(c);
    tensors t = add_operands(c, &k, dtype, has_o, before, mode);
    if (!has_next && is_gpu())
        add_work(c, a, rows, false, mode);
    else
        suite_add_absent(c);
    c->command.kind = SBP_CMD_DELTA_RULE;
    poison_state(&k, t.state);
    if (in_place) {
        next->same_as = (int32_t)(t.state - c->tensors);
        memcpy(next->values, t.state->values, (size_t)next->cols * sizeof(double));
    }
    if (!suite_wants(c)) {
        suite_end(c);
        return;
    }
    k.o = expect_zeros(c, o);
    k.next = expect_zeros(c, next);
    run_rule(c, &k);
    suite_check(c);
    suite_end(c);
}

static void check_backward(const sbp_delta_attrs *a, sbp_dtype dtype, int64_t rows, int64_t before,
                           int mode) {
    suite_case *c = suite_begin("delta_rule_bwd", (uint64_t)mode);
    sbp_dtype wide = dtype == SBP_F64 ? SBP_F64 : SBP_F32;
    int64_t of_k = a->key_heads * a->d_k, of_v = a->heads * a->d_v, states = a->heads * a->d_k * a->d_v;
    const int64_t cols[] = {of_k, of_k, of_v, a->heads, a->heads};
    suite_tensor *written[SBP_COUNT(cols)];
    double *to[SBP_COUNT(cols)];
    delta_case k = {.a = *a, .rows = rows};
    for (int i = 0; i < SBP_COUNT(cols); i++) /* of 7 cases 5 lack one */
        written[i] = mode % 7 == i ? suite_add_absent(c) : suite_add(c, i < 3 ? dtype : wide, rows, cols[i]);
    suite_tensor *dstate = suite_add(c, wide, 1, states);
    suite_tensor *d_o = suite_add(c, dtype, rows, of_v);
    tensors t = add_operands(c, &k, dtype, true, before, mode);
    add_work(c, a, rows, true, mode);
    c->command.kind = SBP_CMD_DELTA_RULE_BWD;
    if (!suite_wants(c)) {
        suite_end(c);
        return;
    }
    for (int i = 0; i < SBP_COUNT(cols); i++) {
        to[i] = expect_zeros(c, written[i]);
        if (!to[i])
            to[i] = suite_alloc(c, rows * cols[i], sizeof(double));
    }
    k.dq = to[0];
    k.dk = to[1];
    k.dv = to[2];
    k.ddecay = to[3];
    k.dbeta = to[4];
    suite_expect(c, dstate);
    k.dstate = dstate->expected;
    dstate->terms = TERMS;
    k.d_o = d_o->values;
    poison_state(&k, t.state);
    run_rule(c, &k);
    suite_check(c);
    suite_end(c);
}

typedef void check_fn(const sbp_delta_attrs *a, sbp_dtype dtype, int64_t rows, int64_t before, int mode);

/* Each size in one type; all types with SBP_TEST_ALL=1. */
static void check_all(check_fn *check) {
    const char *all = getenv("SBP_TEST_ALL");
    int mode = 0, types = all && strcmp(all, "1") == 0 ? SBP_COUNT(floats) : 1;
    for (int b = 0; b < SBP_COUNT(rows_before); b++)
        for (int r = 0; r < SBP_COUNT(row_counts); r++)
            for (int s = 0; s < SBP_COUNT(shapes); s++, mode++)
                for (int d = 0; d < types; d++)
                    check(&shapes[s], floats[(mode + r + b + d) % SBP_COUNT(floats)], row_counts[r],
                          rows_before[b], mode + d);
    for (int s = 0; s < SBP_COUNT(large_shapes); s++, mode++) /* the second one fills scratch memory */
        check(&large_shapes[s], s == 0 ? SBP_F32 : SBP_F64, 70, 30 * s, 4 * mode);
}

static void test_delta_rule(void **state) {
    (void)state;
    check_all(check_forward);
}

static void test_delta_rule_bwd(void **state) {
    (void)state;
    check_all(check_backward);
}

/* ---- the rule row by row, by differences -------------------------------------------------------------- */

/* o and the state behind, weighed. */
static double weigh(suite_case *c, delta_case k, const double *d_o, const double *dnext) {
    int64_t outputs = k.rows * k.a.heads * k.a.d_v, states = k.a.heads * k.a.d_k * k.a.d_v;
    double sum = 0;
    k.o = suite_alloc(c, outputs, sizeof(double));
    k.next = suite_alloc(c, states, sizeof(double));
    k.d_o = NULL;
    run_rule(c, &k);
    for (int64_t i = 0; i < outputs; i++)
        sum += k.o[i] * d_o[i];
    for (int64_t i = 0; i < states; i++)
        sum += k.next[i] * dnext[i];
    return sum;
}

static void test_delta_reference(void **state) {
    (void)state;
    suite_case *c = suite_begin("delta_rule by differences", 1);
    delta_case k = {.a = {.heads = 2, .key_heads = 1, .d_k = 3, .d_v = 2}, .rows = 6};
    tensors t = add_operands(c, &k, SBP_F64, true, 2, 0);
    for (int64_t j = 0; j < k.rows; j++) /* the fourth row begins a document */
        k.first[j] = (double)(j < 3 ? k.row0 - 2 : k.row0 + 3);
    suite_tensor *d_o = suite_add(c, SBP_F64, k.rows, k.a.heads * k.a.d_v);
    suite_tensor *dnext = suite_add(c, SBP_F64, 1, t.state->cols);
    suite_tensor *inputs[] = {t.q, t.k, t.v, t.decay, t.beta, t.state};
    double *gradients[SBP_COUNT(inputs)];
    for (int i = 0; i < SBP_COUNT(inputs); i++)
        gradients[i] = suite_alloc(c, inputs[i]->rows * inputs[i]->cols, sizeof(double));
    k.dq = gradients[0];
    k.dk = gradients[1];
    k.dv = gradients[2];
    k.ddecay = gradients[3];
    k.dbeta = gradients[4];
    k.dstate = gradients[5];
    memcpy(k.dstate, dnext->values, (size_t)dnext->cols * sizeof(double));
    k.d_o = d_o->values;
    run_rule(c, &k);
    for (int i = 0; i < SBP_COUNT(inputs); i++)
        for (int64_t j = 0; j < inputs[i]->rows * inputs[i]->cols; j++) {
            double *x = &inputs[i]->values[j], kept = *x, step = 1e-5;
            *x = kept + step;
            double above = weigh(c, k, d_o->values, dnext->values);
            *x = kept - step;
            double below = weigh(c, k, d_o->values, dnext->values);
            *x = kept;
            if (fabs((above - below) / (2 * step) - gradients[i][j]) > SBP_TOLERANCE_DIFFERENCES)
                fail_msg("input %d, number %lld: %.9g by differences, %.9g by the rule", i, (long long)j,
                         (above - below) / (2 * step), gradients[i][j]);
        }
    suite_end(c);
}

const struct CMUnitTest suite_delta_tests[] = {cmocka_unit_test(test_delta_reference),
                                               cmocka_unit_test(test_delta_rule),
                                               cmocka_unit_test(test_delta_rule_bwd)};
const int suite_delta_count = SBP_COUNT(suite_delta_tests);
