/* chat.h: conversations to text, by the chat template of a model (frontends/formats/template), and which of
 * it an assistant said.
 *
 * Which text the assistant said: what stands in {% generation %} blocks of the template; of a known template
 * without such, in those of its marked copy, which is then what all rows are rendered with, as TRL does; of
 * any other: for each message i of role assistant the difference between messages[:i] with the generation
 * prompt and messages[:i+1], where both begin the text of the whole, else an error that names row and
 * message.
 *
 * Ownership: everything lives in the arena given to open, renderings in that of the call. Threads: one at a
 * time.
 */
#ifndef SBP_RUNTIME_DATA_CHAT_H
#define SBP_RUNTIME_DATA_CHAT_H

#include "frontends/formats/template/template.h"
#include "frontends/formats/template/template_source.h"
#include "frontends/formats/tokenizer/tokenizer.h"

typedef struct sbp_chat_options {
    sbp_template_source source;     /* text NULL: the model has none */
    const char *date;               /* what templates see as today */
    const sbp_tokenizer *tokenizer; /* NULL: rows must be ids */
    const char *eos;                /* in place of the tokenizer's eos_token; NULL: that */
    bool assistant;                 /* what the assistant said will be asked for */
    bool quiet;                     /* no notes about the source */
} sbp_chat_options;

typedef struct sbp_chat {
    const sbp_chat_options *options;
    const sbp_template *template, *tool_template;
    bool warned_end, warned_all; /* about a token that ends a turn; that all tokens count */
} sbp_chat;

typedef struct sbp_conversation {
    const char *where;
    const sbp_json *messages, *tools, *kwargs; /* tools, kwargs: NULL when there are none */
} sbp_conversation;

/* Parses the template and says which one it is; SBP_INPUT when there is none or it is wrong. Needs no guard.
 */
sbp_status sbp_chat_open(sbp_arena *arena, sbp_diag *diag, const sbp_chat_options *options,
                         sbp_chat **out) SBP_CHECKED;
/* Needs no guard, as the next. */
sbp_status sbp_chat_render(const sbp_chat *chat, sbp_arena *arena, sbp_diag *diag,
                           const sbp_conversation *talk, bool add_generation_prompt,
                           sbp_rendering *out) SBP_CHECKED;
/* The whole, without a generation prompt; spans: what the assistant said. */
sbp_status sbp_chat_render_marked(const sbp_chat *chat, sbp_arena *arena, sbp_diag *diag,
                                  const sbp_conversation *talk, sbp_rendering *out) SBP_CHECKED;

/* What a conversation may have that its template leaves out, as bits: rendered without it the
 * text is the same. */
enum {
    SBP_UNWRITTEN_TOOLS = 1,
    SBP_UNWRITTEN_CALLS = 2,
    SBP_UNWRITTEN_REASONING = 4,
    SBP_UNWRITTEN_KINDS = 3
};

/* Names of the bits, in their order. */
extern const char *const sbp_chat_unwritten_names[SBP_UNWRITTEN_KINDS];
sbp_status sbp_chat_find_unwritten(const sbp_chat *chat, sbp_arena *arena, sbp_diag *diag,
                                   const sbp_conversation *talk, unsigned *out) SBP_CHECKED;

#endif
