/* tokenize.h: rows to documents: token ids with labels, as TRL 1.16 makes them.
 *
 * Strings: the text of the end-of-sequence token is appended to a text or completion unless it ends with it;
 * the tokenizer adds its special tokens. prompt + completion: the completion begins where the tokens of
 * `prompt` and of `prompt + completion` first differ; the input is always the tokens of the joined text.
 * Conversations are rendered by the chat template (chat.h), which writes what begins and ends a text itself:
 * nothing is added or appended. A prompt is rendered with the generation prompt, then prompt and completion
 * together without; the completion begins where their tokens differ. What the assistant said goes from the
 * token of its first character to that of its last one, the first of several that share it, as transformers
 * has it. Labels are not shifted: labels[i] names token i, -100 stands for none.
 *
 * A pair gives two documents, chosen and rejected; both answers begin where the tokens of one of them first
 * differ from the prompt's, and all their tokens count. A prompt alone gives a document of which none does.
 * In a rollout (an answer with what is known of it: row_fields.def) the tokens count that the model wrote.
 *
 * What messages say of themselves ("train", "weight") comes first: turns.h.
 *
 * Threads: a maker is used by one thread at a time.
 */
#ifndef SBP_RUNTIME_DATA_TOKENIZE_H
#define SBP_RUNTIME_DATA_TOKENIZE_H

#include "frontends/formats/tokenizer/tokenizer.h"
#include "runtime/data/chat.h"
#include "runtime/data/rows.h"
#include "runtime/data/turns.h"

enum { SBP_DOCUMENT_COLUMNS = 5, SBP_DOCUMENT_NUMBERS = 8 };

/* A number for each token, about it as a label: [i] names token i, 0 where rows have none. In double
 * precision, as log-probabilities of files have more digits than fit in 32 bits. */
typedef struct sbp_document_column {
    const char *name;     /* static: "old_logps", "ref_logps", "sampling_logps", "weight" */
    const double *values; /* [count] of the document */
} sbp_document_column;

/* A number about the document as a whole. */
typedef struct sbp_document_number {
    const char *name; /* static: "advantage", "reward", "ref_logps_sum", "wanted" */
    double value;     /* NaN: the document has none */
} sbp_document_number;

typedef struct sbp_document {
    int32_t *ids, *labels; /* [count] */
    int64_t count;
    int64_t prompt;   /* tokens before the completion; 0 where there is no prompt */
    const char *part; /* static: "text", "completion", "chosen", "rejected" or "prompt": what is scored */
    sbp_document_column columns[SBP_DOCUMENT_COLUMNS];
    int32_t column_count;
    sbp_document_number numbers[SBP_DOCUMENT_NUMBERS];
    int32_t number_count;
    const sbp_row_routed *routed; /* NULL: none; the column SBP_ROUTED says which place of it a token has */
} sbp_document;

/* What a row of data becomes. Names and order of columns and numbers are those of the form that all rows of
 * the data have, so they are equal for the same part of any two rows. */
typedef struct sbp_documents {
    sbp_document *documents; /* in the order of parts: chosen before rejected */
    int32_t count;           /* at least 1 */
    uint64_t group;          /* key: rows with the same one are a group (groups.h); 0: alone */
    const char *group_name;  /* what the row calls it; NULL: nothing */
    uint64_t group_prompt;   /* of a group with a name: hash of the prompt's tokens */
    unsigned unwritten;      /* of conversations: what their template leaves out (chat.h) */
} sbp_documents;

/* Turns rows into documents and warns once about each oddity. */
typedef struct sbp_document_maker {
    const sbp_tokenizer *tokenizer; /* NULL: rows must be ids */
    sbp_loss_on loss_on;
    sbp_reasoning reasoning;
    bool mask_truncated; /* nothing counts of a completion that does not end with the end-of-sequence token */
    double eos_penalty;  /* taken from the reward of a completion without that token */
    sbp_diag *diag;      /* of warnings and errors */
    bool warned_eos, warned_border, warned_mask;
    const char *eos;     /* end-of-sequence text in place of the tokenizer's; NULL: that */
    sbp_row_ids eos_ids; /* end-of-sequence tokens, by the model's config, where there is no such text */
    const sbp_chat_options *chat_options; /* NULL: there is no template */
    sbp_arena *chat_arena; /* where the template goes, which is opened by the first conversation */
    sbp_chat *chat;
    bool unusable; /* what failed is no fault of the row: there is no tokenizer, or no template that works */
} sbp_document_maker;

/* In the arena. Needs no guard. */
sbp_status sbp_documents_make(sbp_document_maker *maker, sbp_arena *arena, const sbp_row *row,
                              sbp_documents *out) SBP_CHECKED;

/* The text of a conversation, of prompt and completion together; of a pair the chosen, or (which 1) the
 * rejected one. Below a guard. */
sbp_status sbp_row_render(sbp_document_maker *maker, sbp_arena *arena, const sbp_row *row, int32_t which,
                          bool add_generation_prompt, sbp_rendering *out) SBP_CHECKED;

/* Text of the end-of-sequence token; NULL when the tokenizer has none. */
const char *sbp_eos_text(const sbp_tokenizer *tokenizer);

#endif
