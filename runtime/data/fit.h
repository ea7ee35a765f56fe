/* fit.h: what becomes of the documents of a row for which there is no room.
 *
 * A row fits when its documents together have no more tokens than there is room for: a pair is two of them,
 * and stays in one micro-batch. Cutting leaves every document its first tokens, as many as an equal share of
 * the room (TRL cuts both answers to its max_length, each on its own: half the room), and with them what is
 * known of each token. A row of which nothing is left to learn from then goes: none of its labels, or a
 * pair's prompt fills its share. What answers are still to be written to is never cut, and neither pairs nor
 * what has numbers beside it are split.
 *
 * Threads: none of this keeps state.
 */
#ifndef SBP_RUNTIME_DATA_FIT_H
#define SBP_RUNTIME_DATA_FIT_H

#include "runtime/data/tokenize.h"

typedef enum sbp_overlong {
    SBP_OVERLONG_ERROR,
    SBP_OVERLONG_TRUNCATE, /* keep the first tokens; rows without a label are then left out */
    SBP_OVERLONG_CUT,      /* keep the first tokens, and single documents without a label too */
    SBP_OVERLONG_SPLIT,    /* pieces of the greatest length, each a document */
    SBP_OVERLONG_DROP      /* leave the row out */
} sbp_overlong;

typedef enum sbp_fit {
    SBP_FIT_WHOLE,
    SBP_FIT_CUT,
    SBP_FIT_SPLIT,
    SBP_FIT_EMPTY,    /* the row goes: no tokens */
    SBP_FIT_DROPPED,  /* the row goes */
    SBP_FIT_CUT_AWAY, /* the row goes: nothing to learn from was left of it */
    SBP_FIT_OVERLONG  /* it is an error: SBP_OVERLONG_ERROR, or it cannot be split */
} sbp_fit;

/* room: tokens, 0: any number. Pieces and cut documents share the memory of what they were. Below a guard. */
sbp_fit sbp_documents_fit(sbp_arena *arena, sbp_documents *documents, int64_t room, sbp_overlong overlong);
bool sbp_documents_can_split(const sbp_documents *documents);
int64_t sbp_documents_tokens(const sbp_documents *documents);
/* "a document of 11 tokens", "a pair of 7 + 5 tokens (chosen, rejected)". */
const char *sbp_documents_lengths(sbp_arena *arena, const sbp_documents *documents);

#endif
