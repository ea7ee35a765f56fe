/* head.h: what every model ends in: from the logits of each row to what objectives read.
 *
 *   logp     log-probability of the row's label (row input "label", i32)
 *   entropy  of the distribution over the vocabulary, in nats
 *   hit      1 where the label is the first maximum of the logits, else 0
 *   value    only where it is asked for: w . h + b, h being what the matrix of the logits multiplies.
 * Parameters v_head.summary.weight [1, d] and v_head.summary.bias [1], as TRL's models with a value head call
 *            them; where a file has none, w begins at random and b as 0
 * Each is a plain result of @model, [T], fp32 (fp64 when computing in fp64). Frontends build the graph up to
 * the logits and know no objective; this is the one function that knows how a head ends.
 *
 * With a temperature the logits, after any softcap, are divided by the scalar "temperature" of the step
 * first: log-probabilities, entropies and gradients are those of sampling at that temperature.
 */
#ifndef SBP_FRONTENDS_HEAD_H
#define SBP_FRONTENDS_HEAD_H

#include "ir/graph/graph.h"

typedef struct sbp_head_options {
    bool temperature;
    bool value;
    bool no_dropout; /* it compares probabilities of two models: as in TRL nothing is dropped unless asked for
                      */
} sbp_head_options;

/* The loss that balances experts, of which models have the statistics (objectives/statistics.c). */
typedef struct sbp_balance {
    double coefficient; /* 0: there is none */
    int64_t chosen;     /* experts per row */
    bool of_step;       /* over the rows of the whole step, not of each micro-batch */
    bool say;           /* a step may have several of them: a note says what then depends on it */
} sbp_balance;

/* logits: [T, V]. Errors stick in builder->status. */
void sbp_head_finish(sbp_builder *builder, sbp_head_options options, sbp_value logits);

#endif
