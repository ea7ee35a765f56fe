/* turns.h: what of a conversation is trained, message by message, and how much it counts.
 *
 * A message may say it: "train", true or false, before any rule by roles (Axolotl's message_field_training;
 * "training" and "loss", a boolean each, are read alike, the latter is ms-swift's); "weight", a number from 0
 * on, by which the loss of its tokens is multiplied, 1 without it. Templates do not see these. The mean stays
 * one over the tokens that are trained, whatever they weigh, as in ms-swift: it divides by their number, not
 * by the sum of their weights. A weight of 0 leaves them out, from that number too.
 *
 * What a message has in the text: with the loss on answers, what the assistant said (chat.h); of another
 * message that says "train": true, its content and what the template writes behind it, blanks at the end
 * aside. With the loss on all, everything that the template writes for it: the body of its loop over
 * messages, or, of a message that is written outside of that, what stands between its neighbours.
 *
 * Tokens are those of the whole text, never of a part. One that has characters of two parts counts as the
 * part that counts more does: it is left out only if all of it is.
 *
 * Errors: SBP_INPUT. Below a guard. Threads: no state.
 */
#ifndef SBP_RUNTIME_DATA_TURNS_H
#define SBP_RUNTIME_DATA_TURNS_H

#include "runtime/data/chat.h"

/* Which tokens count. auto: the completion where rows have prompt and completion, else all. assistant: what
 * the assistant said, of completions where there are some; of that: the last message (mask_history or
 * last_round elsewhere), the first, or tool calls, from the first call of a message to its end. */
typedef enum sbp_loss_on {
    SBP_LOSS_AUTO,
    SBP_LOSS_ALL,
    SBP_LOSS_COMPLETION,
    SBP_LOSS_ASSISTANT,
    SBP_LOSS_LAST_TURN,
    SBP_LOSS_FIRST_TURN,
    SBP_LOSS_TOOL_CALLS,
    SBP_LOSS_ON_COUNT
} sbp_loss_on;

/* As --loss-on has them. */
extern const char *const sbp_loss_on_names[SBP_LOSS_ON_COUNT];

/* Which think blocks of the assistant count: all, those that are not empty, none. Such a block goes with its
 * tags and the blanks behind it; an empty one is as a rule the template's own. */
typedef enum sbp_reasoning {
    SBP_REASONING_ALL,
    SBP_REASONING_FILLED,
    SBP_REASONING_NONE,
    SBP_REASONING_COUNT
} sbp_reasoning;

/* As --loss-on-reasoning has them. */
extern const char *const sbp_reasoning_names[SBP_REASONING_COUNT];

/* Whether it is on what the assistant said, or on part of that. */
static inline bool sbp_loss_is_on_answers(sbp_loss_on on) {
    return on >= SBP_LOSS_ASSISTANT;
}

typedef struct sbp_turn {
    bool assistant;
    bool told, train; /* told: the message says "train" */
    double weight;
} sbp_turn;

typedef struct sbp_turns {
    const sbp_json *messages; /* without what they say here */
    sbp_turn *items;          /* [messages->count] */
    bool told;                /* a message says something that changes anything */
} sbp_turns;

/* Reads what messages say, and makes them without it. */
sbp_status sbp_turns_read(sbp_arena *arena, sbp_diag *diag, const sbp_json *messages,
                          sbp_turns *out) SBP_CHECKED;

typedef struct sbp_turns_job {
    sbp_arena *arena;
    sbp_diag *diag;
    const char *where;
    sbp_chat *chat;
    const sbp_turns *turns;
    const sbp_conversation *talk; /* that was rendered */
    const sbp_rendering *text;    /* with the loss on answers: by sbp_chat_render_marked */
    const sbp_encoding *tokens;   /* with offsets */
    sbp_loss_on loss_on;
    sbp_reasoning reasoning;
} sbp_turns_job;

/* How much each token counts, 0: it is not trained. out: [tokens->count]. It is wrong when none is. */
sbp_status sbp_turns_weigh(const sbp_turns_job *job, double *out) SBP_CHECKED;

#endif
