/* sampling.c: logits to a token. */
#include "runtime/generate/sampling.h"

#include <math.h>
#include <stdlib.h>

#include "ir/rowkernel/rowkernel.h"

typedef struct candidate {
    double score;
    int64_t token;
} candidate;

struct sbp_token_sampler {
    int64_t size;
    candidate *sorted; /* [size] */
    double *scores;    /* [size]; -inf: dropped */
    double *weights;   /* [size]: exp(score - largest), or what else is kept of each for a while */
};

sbp_status sbp_sampling_check(sbp_diag *diag, const sbp_sampling *s) {
    if (!(s->temperature >= 0 && isfinite(s->temperature)))
        return sbp_fail(diag, SBP_USAGE, "a temperature of %g: expected a number of at least 0",
                        s->temperature);
    if (s->top_k < 0)
        return sbp_fail(diag, SBP_USAGE, "top-k %lld: expected a number of tokens, 0 for all",
                        (long long)s->top_k);
    if (!(s->top_p >= 0 && s->top_p <= 1))
        return sbp_fail(diag, SBP_USAGE, "top-p %g: expected a number from 0 to 1", s->top_p);
    if (!(s->min_p >= 0 && s->min_p <= 1))
        return sbp_fail(diag, SBP_USAGE, "min-p %g: expected a number from 0 to 1", s->min_p);
    return SBP_OK;
}

sbp_status sbp_token_sampler_create(sbp_diag *diag, int64_t size, sbp_token_sampler **out) {
    sbp_token_sampler *s = size > 0 ? sbp_malloc(sizeof *s) : NULL;
    int64_t bytes;
    *out = NULL;
    if (size < 1)
        return sbp_fail(diag, SBP_INTERNAL, "a sampler of %lld tokens", (long long)size);
    if (s && sbp_mul_i64(size, sizeof *s->sorted, &bytes)) {
        *s = (sbp_token_sampler){.size = size,
                                 .sorted = sbp_malloc((size_t)bytes),
                                 .scores = sbp_malloc((size_t)bytes / 2),
                                 .weights = sbp_malloc((size_t)bytes / 2)};
        if (s->sorted && s->scores && s->weights) {
            *out = s;
            return SBP_OK;
        }
        sbp_token_sampler_destroy(s);
    } else {
        free(s);
    }
    return sbp_fail(diag, SBP_MACHINE, "out of memory for the logits of %lld tokens", (long long)size);
}

void sbp_token_sampler_destroy(sbp_token_sampler *s) {
    if (!s)
        return;
    free(s->sorted);
    free(s->scores);
    free(s->weights);
    free(s);
}

/* ---- parts of a distribution -------------------------------------------------------------------------- */

static int64_t largest(const double *values, int64_t n) {
    int64_t at = 0;
    for (int64_t i = 1; i < n; i++)
        at = values[i] > values[at] ? i : at;
    return at;
}

/* Weights of the scores; returns their sum. */
static double weigh(double *weights, const double *scores, int64_t n, double top) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += weights[i] =
            scores[i] > -INFINITY ? exp(scores[i] - top) : 0; /* most are dropped: it is quick */
    return sum;
}

static void swap(double *a, double *b) {
    double t = *a;
    *a = *b;
    *b = t;
}

/* The k-th largest (k from 1) of values, which change places: Hoare's selection. */
static double select_largest(double *values, int64_t n, int64_t k) {
    int64_t low = 0, high = n - 1, at = n - k; /* its place in ascending order */
    while (low < high) {
        int64_t i = low, j = high, middle = low + (high - low) / 2;
        double pivot = values[low] < values[middle] ? values[low] : values[middle], /* the middle of three */
            upper = values[low] < values[middle] ? values[middle] : values[low];
        pivot = values[high] < pivot ? pivot : values[high] < upper ? values[high] : upper;
        while (i <= j) {
            while (values[i] < pivot)
                i++;
            while (values[j] > pivot)
                j--;
            if (i <= j)
                swap(&values[i++], &values[j--]);
        }
        if (at <= j)
            high = j;
        else if (at >= i)
            low = i;
        else
            break; /* between them all are the pivot */
    }
    return values[at];
}

static void keep_top_k(sbp_token_sampler *s, int64_t n, int64_t top_k) {
    if (top_k >= n)
        return;
    for (int64_t i = 0; i < n; i++)
        s->weights[i] = s->scores[i];
    double least = select_largest(s->weights, n, top_k);
    for (int64_t i = 0; i < n; i++)
        s->scores[i] = s->scores[i] < least ? -INFINITY : s->scores[i];
}

static int compare_candidates(const void *a, const void *b) {
    const candidate *x = a, *y = b;
    if (x->score != y->score)
        return x->score < y->score ? -1 : 1;
    return x->token < y->token ? -1 : x->token > y->token;
}

static void keep_top_p(sbp_token_sampler *s, int64_t n, double top, double top_p) {
    double total = weigh(s->weights, s->scores, n, top), most = 1 - top_p, sum = 0;
    int64_t count = 0;
    /* Any n tokens of this probability together do not reach what may be dropped: they need no sorting. */
    double little = most / (2 * (double)n);
    for (int64_t i = 0; i < n; i++) {
        double p = s->weights[i] / total;
        if (p < little) {
            sum += p;
            s->scores[i] = -INFINITY;
        } else {
            s->sorted[count++] = (candidate){s->scores[i], i};
        }
    }
    qsort(s->sorted, (size_t)count, sizeof *s->sorted, compare_candidates);
    for (int64_t i = 0; i + 1 < count; i++) {
        sum += s->weights[s->sorted[i].token] / total;
        if (sum > most)
            break;
        s->scores[s->sorted[i].token] = -INFINITY;
    }
}

static void keep_min_p(sbp_token_sampler *s, int64_t n, double top, double min_p) {
    double total = weigh(s->weights, s->scores, n, top), least = min_p * (1 / total);
    for (int64_t i = 0; i < n; i++)
        s->scores[i] = s->weights[i] / total < least ? -INFINITY : s->scores[i];
}

/* ---- a draw ------------------------------------------------------------------------------------------- */

static sbp_status check_logits(sbp_diag *diag, const double *logits, int64_t n) {
    int64_t finite = 0;
    for (int64_t i = 0; i < n; i++) {
        if (isnan(logits[i]) || logits[i] == INFINITY)
            return sbp_fail(diag, SBP_NOT_FINITE, "the logit of token %lld of %lld is %s", (long long)i,
                            (long long)n, isnan(logits[i]) ? "not a number" : "infinite");
        finite += logits[i] > -INFINITY;
    }
    if (finite == 0)
        return sbp_fail(diag, SBP_NOT_FINITE, "all %lld logits are -inf: no token can follow", (long long)n);
    return SBP_OK;
}

static sbp_status draw_token(sbp_token_sampler *s, sbp_diag *diag, const sbp_sampling *how,
                             const double *logits, int64_t n, double uniform, sbp_sampled *out) {
    for (int64_t i = 0; i < n; i++)
        s->scores[i] = logits[i] / how->temperature;
    double top = s->scores[largest(s->scores, n)];
    if (!isfinite(top))
        return sbp_fail(diag, SBP_NOT_FINITE, "logits divided by the temperature %g are infinite: take 0",
                        how->temperature);
    if (how->top_k > 0)
        keep_top_k(s, n, how->top_k);
    if (how->top_p < 1)
        keep_top_p(s, n, top, how->top_p);
    if (how->min_p > 0)
        keep_min_p(s, n, top, how->min_p);
    double total = weigh(s->weights, s->scores, n, top), target = uniform * total, sum = 0;
    for (int64_t i = 0; i < n; i++) {
        if (!(s->weights[i] > 0))
            continue;
        out->token = i; /* the last of them, should rounding let none pass */
        sum += s->weights[i];
        if (sum > target)
            break;
    }
    out->processed_logp = s->scores[out->token] - top - log(total);
    return SBP_OK;
}

sbp_status sbp_token_sampler_draw(sbp_token_sampler *s, sbp_diag *diag, const sbp_sampling *how,
                                  const double *logits, int64_t n, double uniform, sbp_sampled *out) {
    SBP_TRY(sbp_sampling_check(diag, how));
    if (n < 1 || n > s->size || !(uniform >= 0 && uniform < 1))
        return sbp_fail(diag, SBP_INTERNAL, "a token of %lld logits by the number %g, with room for %lld",
                        (long long)n, uniform, (long long)s->size);
    SBP_TRY(check_logits(diag, logits, n));
    *out = (sbp_sampled){.token = largest(logits, n)};
    double top = logits[out->token];
    if (how->temperature > 0)
        SBP_TRY(draw_token(s, diag, how, logits, n, uniform, out));
    out->logp = logits[out->token] - top - log(weigh(s->weights, logits, n, top));
    return SBP_OK;
}

/* ---- numbers ------------------------------------------------------------------------------------------ */

static uint64_t philox_bits(uint64_t low, uint64_t high, uint64_t key) {
    const uint32_t counter[4] = {(uint32_t)low, (uint32_t)(low >> 32), (uint32_t)high,
                                 (uint32_t)(high >> 32)};
    const uint32_t keys[2] = {(uint32_t)key, (uint32_t)(key >> 32)};
    uint32_t words[4];
    sbp_philox_words(counter, keys, words);
    return (uint64_t)words[1] << 32 | words[0];
}

double sbp_sampling_uniform(uint64_t seed, uint64_t prompt, uint64_t sample, uint64_t position) {
    uint64_t key = philox_bits(prompt, SBP_SAMPLING_STREAM, seed);
    return (double)(philox_bits(position, sample, key) >> 11) * 0x1p-53;
}
