/* rows.h: rows of data, typed and checked.
 *
 * A row is a JSON object. What it is, by its keys:
 *   whole texts       {"input_ids"} with "labels" or the masks "completion_mask" and "assistant_masks";
 *                     {"messages"}, or the older {"conversations"} of {"from", "value"}; {"text"} (or another
 *                     key)
 *   prompt and answer {"prompt", "completion"}; {"prompt_ids", "completion_ids"}
 *   pairs             {"prompt", "chosen", "rejected"}; {"prompt_ids", "chosen_ids", "rejected_ids"}; without
 *                     a prompt it is what both begin with (below)
 *   prompts           {"prompt"} or {"prompt_ids"} alone
 * Values are strings, ids, which are token ids as they are (nothing is tokenized or appended), or lists of
 * messages, where "tools" and "chat_template_kwargs" count too (messages.h).
 *
 * What stands beside them (row_fields.def): numbers of the row ("advantage", "reward", "label" of an answer
 * ..), lists with a number for each token of the completion ("old_per_token_logps" ..), "env_mask", which
 * says of each token of the completion whether the model wrote it (1), and "group", a string or an integer:
 * rows of one prompt. "reward" and "advantage" may be null: of an answer that nobody scored. Some of the rows
 * that are no pairs may have "routed_experts", a list per token of prompt and completion (the last one may
 * lack it) of lists per layer of ids.
 *
 * The first row decides for all files that are read together, and every further row is checked against it:
 * type, values and what stands beside. Other keys are not read (sbp_row_unused names them).
 *
 * Answers of a pair that are one message each, not lists, have their prompt in "conversations" or "prompt".
 *
 * The prompt of a pair without one, as TRL finds it: the characters, or messages, that both answers begin
 * with; where one answer begins the other, all but the last of it; a space before the place where they part
 * goes to the answers. (TRL cuts off all but the last character of answers that part in the first and end in
 * a space: not here.) A prompt that is a string beside answers that are conversations is not read: they have
 * it within.
 *
 * Errors: SBP_INPUT, "FILE:LINE: field: expected .., found ..". SBP_USAGE: pairs where they are not
 * wanted. Threads: none of this keeps state.
 */
#ifndef SBP_RUNTIME_DATA_ROWS_H
#define SBP_RUNTIME_DATA_ROWS_H

#include "ir/base/json.h"
#include "ir/program/contract.h"

typedef enum sbp_row_type {
    SBP_ROW_NONE, /* no row was read yet */
    SBP_ROW_INPUT_IDS,
    SBP_ROW_TEXT,
    SBP_ROW_COMPLETION,
    SBP_ROW_PAIR,
    SBP_ROW_PROMPT
} sbp_row_type;

typedef enum sbp_row_values { SBP_VALUES_IDS, SBP_VALUES_STRINGS, SBP_VALUES_MESSAGES } sbp_row_values;

/* What stands beside texts: numbers of the row or of a part, and lists of numbers per token. */
typedef enum sbp_row_field {
#define FIELD(id, key, alias, column, type, part, list) SBP_FIELD_##id,
#include "runtime/data/row_fields.def"
#undef FIELD
    SBP_FIELD_COUNT
} sbp_row_field;

/* What the first row has. */
typedef struct sbp_row_form {
    sbp_row_type type;
    sbp_row_values values;
    bool labels, completion_mask, assistant_masks; /* of SBP_ROW_INPUT_IDS */
    bool group;
    uint32_t fields; /* bit per sbp_row_field */
} sbp_row_form;

typedef struct sbp_row_text {
    const char *data; /* UTF-8; may contain NUL */
    size_t length;
} sbp_row_text;

typedef struct sbp_row_ids {
    int32_t *data;
    int64_t count;
} sbp_row_ids;

/* One of the values of a row: as form.values says. */
typedef struct sbp_row_value {
    const char *key; /* NULL: the row has none */
    sbp_row_text text;
    sbp_row_ids ids;
    const sbp_json *messages;
} sbp_row_value;

/* Numbers per token of the completion. */
typedef struct sbp_row_list {
    const sbp_json *node; /* NULL: none */
    const double *data;   /* NaN: null */
    int64_t count;
} sbp_row_list;

/* Experts that tokens go to: [count][layers][chosen]. */
typedef struct sbp_row_routed {
    const sbp_json *node; /* NULL: the row does not say */
    const int16_t *ids;
    int64_t count, layers, chosen;
} sbp_row_routed;

typedef struct sbp_row {
    sbp_row_form form;
    const char *where;                               /* "FILE:LINE" */
    sbp_row_value text;                              /* the whole, or the prompt of the next two */
    sbp_row_value completion, rejected;              /* of pairs, completion is what was chosen */
    int32_t *labels;                                 /* [text.ids.count] or NULL; -100: none */
    const int8_t *completion_mask, *assistant_masks; /* [text.ids.count] or NULL; 0 or 1 */
    const int8_t *env_mask;                          /* [env_mask_count] or NULL; of the completion */
    int64_t env_mask_count;
    sbp_row_routed routed;                   /* of prompt and completion */
    const sbp_json *tools, *template_kwargs; /* NULL: none */
    double numbers[SBP_FIELD_COUNT];         /* of the fields that are no lists; NaN: null */
    sbp_row_list lists[SBP_FIELD_COUNT];
    uint64_t group;         /* never 0 where form.group */
    const char *group_name; /* where form.group: as the row has it */
} sbp_row;

typedef struct sbp_row_options {
    int64_t vocab_size; /* ids must be below; 0: unknown */
    bool fields;        /* what stands beside texts is read; else it is ignored like other keys */
    bool no_pairs;      /* pairs and prompts alone are no rows */
    const char *objective, *objective_of_pairs; /* for messages about that; NULL: unknown */
} sbp_row_options;

/* Whether rows may need a member of that name: what has another need not be read from a file. */
bool sbp_row_may_need(const char *key);
/* Reads one row, parsed as JSON (sbp_record_parse). form: of the first row; SBP_ROW_NONE makes this the first
 * and sets it. Everything lives in the arena. Below a guard. */
sbp_status sbp_row_read(sbp_arena *arena, sbp_diag *diag, const char *where, const sbp_json *root,
                        const sbp_row_options *options, sbp_row_form *form, sbp_row *out) SBP_CHECKED;

/* The keys of a row of this form that nobody reads, whatever is trained for: "'a', 'b'"; NULL: none. Below a
 * guard. */
const char *sbp_row_unused(sbp_arena *arena, const sbp_row_form *form, const sbp_json *root);
/* The names of a field: its key in rows, what a document calls it, and the part that it belongs
 * to (NULL: any). */
const char *sbp_row_field_key(sbp_row_field field);
const char *sbp_row_field_name(sbp_row_field field);
const char *sbp_row_field_part(sbp_row_field field);
bool sbp_row_field_is_list(sbp_row_field field);

/* Adds the ids of a number, or of a list of them, that are not there yet; what is no id is left out. Below a
 * guard. */
void sbp_row_ids_add(sbp_arena *arena, const sbp_json *node, sbp_row_ids *ids);

/* Where a pair without a prompt parts: in bytes of two texts, in messages of two lists. */
size_t sbp_pair_split_texts(sbp_row_text a, sbp_row_text b);

#endif
