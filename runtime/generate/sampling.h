/* sampling.h: the next token of a text, chosen by the logits of a language model, on the host.
 *
 * The distribution that a token is drawn from is that of transformers 5.24 (generation/logits_process.py, in
 * the order of generation/utils.py, min_tokens_to_keep 1):
 *   temperature  s = logits / temperature                                           TemperatureLogitsWarper
 *   top_k        drops s below the k-th largest; what equals it stays               TopKLogitsWarper
 *   top_p        p = softmax(s), from the smallest on: drops while their sum so far is at most 1 - top_p;
 *                never the last. Equal ones by token, which torch.sort leaves open  TopPLogitsWarper
 *   min_p        p = softmax of what is left: drops p below min_p * max(p)          MinPLogitsWarper
 * and the softmax of what is left after all. Everything is computed in double precision, sums in the order of
 * tokens (top_p: of the sorted ones), so the same logits and the same number give the same token.
 *
 * Logits may be -inf (a token that never comes), but not all of them, and neither NaN nor +inf.
 *
 * Threads: a sampler is used by one at a time.
 */
#ifndef SBP_RUNTIME_GENERATE_SAMPLING_H
#define SBP_RUNTIME_GENERATE_SAMPLING_H

#include "ir/base/base.h"

typedef struct sbp_sampling {
    double
        temperature; /* 0: greedy, the first of the largest logits, whatever the others say; else above 0 */
    int64_t top_k;   /* 0: all tokens */
    double top_p;    /* 0 .. 1; 1: all */
    double min_p;    /* 0 .. 1; 0: all */
} sbp_sampling;

typedef struct sbp_sampled {
    int64_t token;
    double logp;           /* natural logarithm of the model's own probability: log softmax(logits) */
    double processed_logp; /* that of the distribution that it was drawn from; greedy: 0 */
} sbp_sampled;

/* Refuses settings out of range: SBP_USAGE. */
sbp_status sbp_sampling_check(sbp_diag *diag, const sbp_sampling *sampling) SBP_CHECKED;

/* Memory for what is done with up to `size` logits: 32 bytes each. */
typedef struct sbp_token_sampler sbp_token_sampler;
sbp_status sbp_token_sampler_create(sbp_diag *diag, int64_t size, sbp_token_sampler **out) SBP_CHECKED;
void sbp_token_sampler_destroy(sbp_token_sampler *sampler); /* NULL: nothing */

/* logits: [n], 1 <= n <= size. uniform: in [0, 1). The token is the first at which the probabilities, summed
 * in the order of tokens, are above it. Settings are checked as above; logits as they must not be, or all of
 * them too large for the temperature: SBP_NOT_FINITE. */
sbp_status sbp_token_sampler_draw(sbp_token_sampler *sampler, sbp_diag *diag, const sbp_sampling *sampling,
                                  const double *logits, int64_t n, double uniform,
                                  sbp_sampled *out) SBP_CHECKED;

/* A number in [0, 1) that depends on these four alone: the upper 53 of 64 bits of two words of Philox4x32-10
 * (ir/rowkernel/rowkernel.h) of the counter (position, sample), low words first, under the key that is the
 * first two words of the counter (prompt, SBP_SAMPLING_STREAM) under the key `seed`. */
double sbp_sampling_uniform(uint64_t seed, uint64_t prompt, uint64_t sample, uint64_t position);
#define SBP_SAMPLING_STREAM 0x6e656b6f74706273u /* what tells these numbers from others of the seed */

#endif
