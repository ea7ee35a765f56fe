/* jsonl.h: rows of data: one JSON object a line, of a known type.
 *
 * Types, by the keys of the first row: {"input_ids"} with "labels" or the masks "completion_mask" and
 * "assistant_masks"; {"prompt_ids", "completion_ids"}; {"prompt", "completion"}, both strings or both lists
 * of messages; {"messages"}, or the older {"conversations"} of {"from", "value"}; {"text"} (or another key).
 * Rows of messages may have "tools" and "chat_template_kwargs" (messages.h). The first row decides for all
 * files that are read together; every further row is checked against it. Other keys are ignored. Ids are
 * token ids as they are: nothing is tokenized or appended. Preferences are recognised and refused: not built
 * yet.
 *
 * Errors: SBP_INPUT, "FILE:LINE: field: expected .., found ..". A row type that is not built yet is
 * SBP_USAGE. Threads: none of this keeps state.
 */
#ifndef SBP_RUNTIME_DATA_JSONL_H
#define SBP_RUNTIME_DATA_JSONL_H

#include "ir/io/json.h"

typedef enum sbp_row_type {
    SBP_ROW_NONE, /* no row was read yet */
    SBP_ROW_INPUT_IDS,
    SBP_ROW_PROMPT_IDS,
    SBP_ROW_PROMPT,
    SBP_ROW_TEXT,
    SBP_ROW_MESSAGES,
    SBP_ROW_PROMPT_MESSAGES
} sbp_row_type;

/* What the first row has. */
typedef struct sbp_row_form {
    sbp_row_type type;
    bool labels, completion_mask, assistant_masks; /* of SBP_ROW_INPUT_IDS */
} sbp_row_form;

typedef struct sbp_row_text {
    const char *data; /* UTF-8; may contain NUL */
    size_t length;
} sbp_row_text;

typedef struct sbp_row_ids {
    int32_t *data;
    int64_t count;
} sbp_row_ids;

typedef struct sbp_row {
    sbp_row_form form;
    const char *where;             /* "FILE:LINE" */
    sbp_row_text text, completion; /* text: the prompt where there is one */
    sbp_row_ids ids, completion_ids;
    int32_t *labels;                                 /* [ids.count] or NULL; -100: none */
    const int8_t *completion_mask, *assistant_masks; /* [ids.count] or NULL; 0 or 1 */
    const sbp_json *messages, *completion_messages;  /* messages: the prompt where there is one */
    const sbp_json *tools, *template_kwargs;         /* NULL: none */
} sbp_row;

typedef struct sbp_row_options {
    const char *text_field; /* usually "text" */
    int64_t vocab_size;     /* ids must be below; 0: unknown */
} sbp_row_options;

/* Reads one line. form: of the first row; SBP_ROW_NONE makes this the first and sets it. Everything lives in
 * the arena. Below a guard. */
sbp_status sbp_row_parse(sbp_arena *arena, sbp_diag *diag, const char *where, const char *line, size_t length,
                         const sbp_row_options *options, sbp_row_form *form, sbp_row *out) SBP_CHECKED;
/* The same of a line that was parsed as JSON. */
sbp_status sbp_row_read(sbp_arena *arena, sbp_diag *diag, const char *where, const sbp_json *root,
                        const sbp_row_options *options, sbp_row_form *form, sbp_row *out) SBP_CHECKED;

/* Calls `visit` with every line of a file that is not blank ("-": standard input), without its end; `line`
 * counts from 1. Stops at the first status that is not SBP_OK. */
typedef sbp_status (*sbp_line_visitor)(void *user, const char *path, int64_t line, const char *text,
                                       size_t length);
sbp_status sbp_lines_read(sbp_diag *diag, const char *path, sbp_line_visitor visit, void *user) SBP_CHECKED;

#endif
