/* test_delta.c: delta_rule and delta_rule_bwd against the rule row by row: documents that begin inside of
 * blocks and of chunks, of one row, chunks that begin anywhere in a block, heads that share a key head,
 * absent operands, a state that nobody may read poisoned, the state written over in its place; the bits of
 * documents that are cut and packed; with corrections and without. The rule itself is checked by
 * differences. */
#include "backends/gpu/gpu.h"
#include "tests/common/sweep.h"
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
            for (int64_t i = 0; i < d_k && k->a.corrects; i++)
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
            for (int64_t i = 0; i < d_k && k->a.corrects; i++)
                rest -= now[i * d_v + j] * key[i];
            k->dbeta[t * heads + head] += dd[j] * rest;
            dv[j] = beta * dd[j];
        }
        for (int64_t i = 0; i < size; i++) {
            dk[i / d_v] -= k->a.corrects ? now[i] * dv[i % d_v] : 0;
            ds[i] -= k->a.corrects ? key[i / d_v] * dv[i % d_v] : 0;
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

static bool by_tensor_cores; /* the cases at hand are never left out */

/* Keys of length 1, queries as they are scaled, decays of which some forget all: of cases that are not left
 * out only every hundredth, so that blocks know of those before them. */
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
        k->decay[i] = sbp_round_to(
            wide,
            -fabs(k->decay[i]) *
                scales[sbp_rng_below(&c->rng, by_tensor_cores && sbp_rng_below(&c->rng, 100) > 0 ? 2 : 4)]);
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
    int64_t states = a->heads * a->d_k * a->d_v * (a->corrects ? 1 : 2);
    int64_t cols = is_gpu() ? sbp_gpu_delta_columns(a, backward) : states;
    int64_t blocks = sbp_ceil_div(rows, SBP_DELTA_BLOCK) + (is_gpu() ? 1 : 0) + mode % 2;
    suite_tensor *work = suite_add(c, c->tensors[c->tensor_count - 1].dtype, blocks, cols + mode % 3);
    suite_expect(c, work); /* whatever it holds */
    work->tolerance = (double)INFINITY;
}

static bool wants(suite_case *c) {
    c->wanted = suite_wants(c) || by_tensor_cores;
    return c->wanted;
}

static void check_forward(const sbp_delta_attrs *a, sbp_dtype dtype, int64_t rows, int64_t before, int mode) {
    suite_case *c =
        suite_begin(a->corrects ? "delta_rule" : "delta_rule without corrections", (uint64_t)mode);
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
    if (!wants(c)) {
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
    suite_case *c =
        suite_begin(a->corrects ? "delta_rule_bwd" : "delta_rule_bwd without corrections", (uint64_t)mode);
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
    if (!wants(c)) {
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

static void check_one(check_fn *check, const sbp_delta_attrs *shape, bool corrects, sbp_dtype dtype,
                      int64_t rows, int64_t before, int mode) {
    sbp_delta_attrs a = *shape;
    a.corrects = corrects;
    check(&a, dtype, rows, before, mode);
}

/* Each size in one type; all types with SBP_TEST_ALL=1. */
static void check_all(check_fn *check, bool corrects) {
    const char *all = getenv("SBP_TEST_ALL");
    int mode = 0, types = all && strcmp(all, "1") == 0 ? SBP_COUNT(floats) : 1;
    for (int b = 0; b < SBP_COUNT(rows_before); b++)
        for (int r = 0; r < SBP_COUNT(row_counts); r++)
            for (int s = 0; s < SBP_COUNT(shapes); s++, mode++)
                for (int d = 0; d < types; d++)
                    check_one(check, &shapes[s], corrects, floats[(mode + r + b + d) % SBP_COUNT(floats)],
                              row_counts[r], rows_before[b], mode + d);
    for (int s = 0; s < SBP_COUNT(large_shapes); s++, mode++) /* the second one fills scratch memory */
        check_one(check, &large_shapes[s], corrects, s == 0 ? SBP_F32 : SBP_F64, 70, 30 * s, 4 * mode);
}

/* What tensor cores take: of every sample on the device that has them. */
static const struct {
    sbp_delta_attrs a;
    int64_t rows, before;
    int mode;
} half_cases[] = {
    {{.heads = 1, .key_heads = 1, .d_k = 128, .d_v = 128}, 130, 100, 0},
    {{.heads = 1, .key_heads = 1, .d_k = 80, .d_v = 96}, 65, 1, 1},
    {{.heads = 3, .key_heads = 3, .d_k = 16, .d_v = 48}, 200, 0, 2},
    {{.heads = 4, .key_heads = 2, .d_k = 64, .d_v = 16}, 200, 63, 3},
    {{.heads = 2, .key_heads = 1, .d_k = 32, .d_v = 64}, 70, -1, 4},
    {{.heads = 2, .key_heads = 2, .d_k = 48, .d_v = 80}, 0, 100, 0},
};

static void check_half(check_fn *check) {
    by_tensor_cores = strcmp(suite_device()->name, "cuda") == 0;
    for (int i = 0; i < SBP_COUNT(half_cases); i++)
        check_one(check, &half_cases[i].a, true, SBP_BF16, half_cases[i].rows, half_cases[i].before,
                  half_cases[i].mode);
    by_tensor_cores = false;
}

static void test_delta_rule(void **state) {
    (void)state;
    check_all(check_forward, true);
    check_half(check_forward);
}

static void test_delta_rule_bwd(void **state) {
    (void)state;
    check_all(check_backward, true);
    check_half(check_backward);
}

static void test_uncorrected_rule(void **state) {
    (void)state;
    check_all(check_forward, false);
}

static void test_uncorrected_rule_bwd(void **state) {
    (void)state;
    check_all(check_backward, false);
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

static void check_reference(bool corrects) {
    suite_case *c = suite_begin("delta_rule by differences", 1);
    delta_case k = {.a = {.heads = 2, .key_heads = 1, .d_k = 3, .d_v = 2, .corrects = corrects}, .rows = 6};
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

static void test_delta_reference(void **state) {
    (void)state;
    check_reference(true);
    check_reference(false);
}

/* ---- documents cut into commands ---------------------------------------------------------------------- */

enum { CUT_STATES = 16, CUT_PLACES = 9 };

/* Where documents begin, and behind the last row: that of cuts at multiples of SBP_DELTA_BLOCK from
 * beginnings, that of documents beside one another. A software driver and the machine that runs PTX have
 * fewer rows. */
typedef struct cut_plan {
    int64_t rows, documents[3], some[CUT_PLACES], all[CUT_PLACES], across[CUT_PLACES], packed[CUT_PLACES];
    sbp_delta_attrs a, half; /* half: of what is 16 bits wide, of sizes that tensor cores take */
    int types;               /* the first of floats */
} cut_plan;

static const cut_plan cut_on_cpu = {.rows = 300,
                                    .documents = {0, 130, 300},
                                    .some = {0, 128, 130, 258, 300},
                                    .all = {0, 64, 128, 130, 194, 258, 300},
                                    .across = {0, 64, 194, 300},
                                    .packed = {0, 1, 2, 65, 66, 200, 264, 300},
                                    .a = {.heads = 4, .key_heads = 2, .d_k = 20, .d_v = 12},
                                    .half = {.heads = 4, .key_heads = 2, .d_k = 20, .d_v = 12},
                                    .types = SBP_COUNT(floats)};
static const cut_plan cut_on_gpu = {.rows = 140,
                                    .documents = {0, 70, 140},
                                    .some = {0, 64, 140},
                                    .all = {0, 64, 70, 134, 140},
                                    .across = {0, 134, 140},
                                    .packed = {0, 1, 67, 140},
                                    .a = {.heads = 2, .key_heads = 1, .d_k = 6, .d_v = 5},
                                    .half = {.heads = 2, .key_heads = 1, .d_k = 16, .d_v = 16},
                                    .types = 2};

static const cut_plan *cut_plan_here(void) {
    return is_gpu() ? &cut_on_gpu : &cut_on_cpu;
}

/* Pieces between places; their number is that of places without the first 0. */
static int cut_count(const int64_t *places) {
    int count = 0;
    while (count + 1 < CUT_PLACES && places[count + 1] > 0)
        count++;
    return count;
}

/* Matrices of all rows in the arena of a device, whose commands take pieces of them. */
typedef struct pieces {
    suite_case *c;
    sbp_delta_attrs a;
    int64_t rows;
    sbp_span q, k, v, decay, beta, first, alone, states, d_o, work; /* alone: 0, `first` of one document */
    sbp_span o, dq, dk, dv, ddecay, dbeta, dstate;                  /* what is compared */
    sbp_command forward, backward;
    int64_t bytes;
    unsigned char *before, *after; /* the arena */
} pieces;

static sbp_span lay(pieces *p, sbp_dtype dtype, int64_t rows, int64_t cols) {
    sbp_span span = {
        .space = SBP_DEVICE, .dtype = dtype, .offset = p->bytes, .rows = rows, .cols = cols, .stride = cols};
    p->bytes = sbp_round_up(p->bytes + rows * cols * sbp_dtype_bytes(dtype), 256);
    return span;
}

/* Rows from .. of a matrix; of a document alone they are rows 0 .. of the batch. */
static sbp_span piece(sbp_span span, int64_t from, int64_t rows, bool alone) {
    span.offset += from * span.stride * sbp_dtype_bytes(span.dtype);
    span.first_row = alone ? 0 : from;
    span.rows = rows;
    return span;
}

static sbp_dispatch cut_forward(const pieces *p, int64_t from, int64_t rows, int64_t state, bool alone,
                                sbp_span *spans) {
    const sbp_span all[] = {
        piece(p->o, from, rows, alone),    piece(p->states, state + 1, 1, true),
        piece(p->q, from, rows, alone),    piece(p->k, from, rows, alone),
        piece(p->v, from, rows, alone),    piece(p->decay, from, rows, alone),
        piece(p->beta, from, rows, alone), piece(alone ? p->alone : p->first, from, rows, alone),
        piece(p->states, state, 1, true),  {.space = SBP_SPACE_COUNT}};
    memcpy(spans, all, sizeof all);
    return (sbp_dispatch){.command = &p->forward, .spans = spans, .span_count = SBP_COUNT(all)};
}

static sbp_dispatch cut_backward(const pieces *p, int64_t from, int64_t rows, int64_t state, bool alone,
                                 sbp_span *spans) {
    const sbp_span all[] = {piece(p->dq, from, rows, alone),
                            piece(p->dk, from, rows, alone),
                            piece(p->dv, from, rows, alone),
                            piece(p->ddecay, from, rows, alone),
                            piece(p->dbeta, from, rows, alone),
                            p->dstate,
                            piece(p->d_o, from, rows, alone),
                            piece(p->q, from, rows, alone),
                            piece(p->k, from, rows, alone),
                            piece(p->v, from, rows, alone),
                            piece(p->decay, from, rows, alone),
                            piece(p->beta, from, rows, alone),
                            piece(alone ? p->alone : p->first, from, rows, alone),
                            piece(p->states, state, 1, true),
                            p->work};
    memcpy(spans, all, sizeof all);
    return (sbp_dispatch){.command = &p->backward, .spans = spans, .span_count = SBP_COUNT(all)};
}

static void cut_fill(pieces *p, sbp_span span, double middle, double width) {
    for (int64_t i = 0; i < span.rows * span.cols; i++)
        sbp_element_set(p->before + span.offset, span.dtype, i, middle + width * sbp_rng_unit(&p->c->rng));
}

/* documents: where they begin, and behind the last row. */
static pieces cut_open(const cut_plan *plan, bool corrects, sbp_dtype dtype, const int64_t *documents) {
    pieces p = {.c = suite_begin("delta_rule in pieces", dtype),
                .a = sbp_dtype_bytes(dtype) == 2 ? plan->half : plan->a,
                .rows = plan->rows};
    p.a.corrects = corrects;
    sbp_dtype wide = dtype == SBP_F64 ? SBP_F64 : SBP_F32;
    int64_t of_k = p.a.key_heads * p.a.d_k, of_v = p.a.heads * p.a.d_v, states = of_v * p.a.d_k;
    p.q = lay(&p, dtype, p.rows, of_k);
    p.k = lay(&p, dtype, p.rows, of_k);
    p.v = lay(&p, dtype, p.rows, of_v);
    p.decay = lay(&p, wide, p.rows, p.a.heads);
    p.beta = lay(&p, wide, p.rows, p.a.heads);
    p.first = lay(&p, SBP_I32, p.rows, 1);
    p.alone = lay(&p, SBP_I32, p.rows, 1);
    p.d_o = lay(&p, dtype, p.rows, of_v);
    p.states = lay(&p, wide, CUT_STATES, states);
    p.work = is_gpu() ? lay(&p, wide, sbp_gpu_delta_rows(p.rows, true), sbp_gpu_delta_columns(&p.a, true))
                      : lay(&p, wide, sbp_ceil_div(p.rows, SBP_DELTA_BLOCK), corrects ? states : 2 * states);
    p.o = lay(&p, dtype, p.rows, of_v);
    p.dq = lay(&p, dtype, p.rows, of_k);
    p.dk = lay(&p, dtype, p.rows, of_k);
    p.dv = lay(&p, dtype, p.rows, of_v);
    p.ddecay = lay(&p, wide, p.rows, p.a.heads);
    p.dbeta = lay(&p, wide, p.rows, p.a.heads);
    p.dstate = lay(&p, wide, 1, states);
    p.before = suite_alloc(p.c, p.bytes, 1);
    p.after = suite_alloc(p.c, p.bytes, 1);
    memset(p.before, 0xff, (size_t)p.bytes); /* states before a document, and work: NaN */
    cut_fill(&p, p.q, 0, 0.3);
    cut_fill(&p, p.k, 0, 0.3);
    cut_fill(&p, p.v, 0, 1);
    cut_fill(&p, p.d_o, 0, 1);
    cut_fill(&p, p.decay, -0.2, 0.2);
    cut_fill(&p, p.beta, 0.5, 0.5);
    for (int d = 0; d < cut_count(documents); d++)
        for (int64_t j = documents[d]; j < documents[d + 1]; j++) {
            sbp_element_set(p.before + p.first.offset, SBP_I32, j, (double)documents[d]);
            sbp_element_set(p.before + p.alone.offset, SBP_I32, j, 0);
        }
    p.forward = (sbp_command){
        .kind = SBP_CMD_DELTA_RULE, .flushes = -1, .u.delta = p.a, .view_count = SBP_DELTA_RULE_OPERANDS};
    p.backward = (sbp_command){.kind = SBP_CMD_DELTA_RULE_BWD,
                               .flushes = -1,
                               .u.delta = p.a,
                               .view_count = SBP_DELTA_RULE_BWD_OPERANDS};
    return p;
}

/* Runs commands of rows cuts[i] .. cuts[i + 1], forwards and then backwards, into `after`; the state behind
 * the last row is read by nobody. alone: each piece is a document that knows of no other. */
static void cut_run(pieces *p, const int64_t *cuts, bool alone) {
    int count = cut_count(cuts);
    const sbp_device_class *class = suite_device();
    sbp_diag *diag = sbp_diag_create();
    sbp_device_options options = {.threads = 2, .shuffle_seed = 1};
    sbp_program *program = sbp_program_create(p->c->arena, "pieces");
    sbp_span spans[2][SBP_MAX_COMMAND_OPERANDS];
    program->arena_bytes[SBP_DEVICE] = program->arena_bytes[SBP_HOST] = p->bytes;
    sbp_dispatch kinds[] = {cut_forward(p, 0, 1, 0, alone, spans[0]),
                            cut_backward(p, 0, 1, 0, alone, spans[1])};
    sbp_device *device = suite_open(class, &options, p->c->arena, program, kinds, 2, diag);
    unsigned char *zeros = suite_alloc(p->c, p->dstate.cols, sizeof(double));
    int64_t state_bytes = p->dstate.cols * sbp_dtype_bytes(p->dstate.dtype);
    CHECK_OK(class->write(device, SBP_DEVICE, 0, p->before, p->bytes, diag), diag);
    for (int i = 0; i < count; i++) {
        sbp_dispatch forward = cut_forward(p, cuts[i], cuts[i + 1] - cuts[i], alone ? 0 : i, alone, spans[0]);
        CHECK_OK(class->submit(device, &forward, diag), diag);
        CHECK_OK(class->wait(device, diag), diag);
    }
    for (int i = count - 1; i >= 0; i--) {
        sbp_dispatch backward =
            cut_backward(p, cuts[i], cuts[i + 1] - cuts[i], alone ? 0 : i, alone, spans[1]);
        if (alone || i == count - 1)
            CHECK_OK(class->write(device, SBP_DEVICE, p->dstate.offset, zeros, state_bytes, diag), diag);
        CHECK_OK(class->submit(device, &backward, diag), diag);
        CHECK_OK(class->wait(device, diag), diag);
    }
    CHECK_OK(class->read(device, SBP_DEVICE, 0, p->after, p->bytes, diag), diag);
    class->destroy(device);
    sbp_diag_destroy(diag);
}

/* Whether what was written, o .. dstate, is the same as in `other`; and that it is numbers. */
static void cut_compare(const pieces *p, const unsigned char *other, const char *what) {
    const sbp_span *spans[] = {&p->o, &p->dq, &p->dk, &p->dv, &p->ddecay, &p->dbeta, &p->dstate};
    for (int i = 0; i < SBP_COUNT(spans); i++)
        for (int64_t j = 0; j < spans[i]->rows * spans[i]->cols; j++) {
            double x = sbp_element_get(p->after + spans[i]->offset, spans[i]->dtype, j);
            double y = sbp_element_get(other + spans[i]->offset, spans[i]->dtype, j);
            if (x != y) /* NaN is never the same */
                fail_msg("%s: matrix %d, row %lld: %.17g is %.17g", what, i, (long long)(j / spans[i]->cols),
                         y, x);
        }
}

static unsigned char *cut_keep(const pieces *p) {
    unsigned char *kept = suite_alloc(p->c, p->bytes, 1);
    memcpy(kept, p->after, (size_t)p->bytes);
    return kept;
}

/* Some hundred rows are more than llvmpipe has iterations for beside a search at each access. */
static bool runs_pieces(void) {
    if (suite_searches_addresses())
        print_message(
            "skipped: the bits of pieces of the delta rule: under the layer that searches addresses\n");
    return !suite_searches_addresses();
}

/* The same bits however rows are cut at multiples of SBP_DELTA_BLOCK from the beginnings of documents. */
static void check_cuts(bool corrects) {
    const cut_plan *plan = cut_plan_here();
    const int64_t whole[CUT_PLACES] = {0, plan->rows};
    const int64_t *const cuts[] = {plan->some, plan->all, plan->across};
    for (int d = 0; d < testing_sweep(plan->types, SBP_COUNT(floats)); d++) {
        pieces p = cut_open(plan, corrects, floats[d], plan->documents);
        cut_run(&p, whole, false);
        unsigned char *kept = cut_keep(&p);
        for (int i = 0; i < SBP_COUNT(cuts); i++) {
            cut_run(&p, cuts[i], false);
            cut_compare(&p, kept,
                        sbp_arena_printf(p.c->arena, "%s in %d pieces%s", sbp_dtype_name(floats[d]),
                                         cut_count(cuts[i]), corrects ? "" : ", without corrections"));
        }
        suite_end(p.c);
    }
}

/* Documents beside one another are what they are alone, bit by bit. */
static void check_packed(bool corrects) {
    const cut_plan *plan = cut_plan_here();
    const int64_t whole[CUT_PLACES] = {0, plan->rows};
    for (int d = 0; d < testing_sweep(plan->types, SBP_COUNT(floats)); d++) {
        pieces p = cut_open(plan, corrects, floats[d], plan->packed);
        cut_run(&p, whole, false);
        unsigned char *kept = cut_keep(&p);
        cut_run(&p, plan->packed, true);
        cut_compare(&p, kept,
                    sbp_arena_printf(p.c->arena, "%s alone%s", sbp_dtype_name(floats[d]),
                                     corrects ? "" : ", without corrections"));
        suite_end(p.c);
    }
}

static void check_pieces(void (*check)(bool corrects)) {
    if (suite_lacks(SBP_CMD_DELTA_RULE) || suite_lacks(SBP_CMD_DELTA_RULE_BWD) || !runs_pieces())
        skip();
    check(true);
    check(false);
}

static void test_delta_cuts(void **state) {
    (void)state;
    check_pieces(check_cuts);
}

static void test_delta_packed(void **state) {
    (void)state;
    check_pieces(check_packed);
}

const struct CMUnitTest suite_delta_tests[] = {
    cmocka_unit_test(test_delta_reference),      cmocka_unit_test(test_delta_rule),
    cmocka_unit_test(test_delta_rule_bwd),       cmocka_unit_test(test_uncorrected_rule),
    cmocka_unit_test(test_uncorrected_rule_bwd), cmocka_unit_test(test_delta_cuts),
    cmocka_unit_test(test_delta_packed)};
const int suite_delta_count = SBP_COUNT(suite_delta_tests);
