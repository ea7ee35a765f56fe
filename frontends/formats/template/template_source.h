/* template_source.h: where the text of a chat template comes from, and marks for known ones.
 *
 * Ownership: everything lives in the arena. Threads: none of this keeps state. Below a guard.
 */
#ifndef SBP_FRONTENDS_TEMPLATE_TEMPLATE_SOURCE_H
#define SBP_FRONTENDS_TEMPLATE_TEMPLATE_SOURCE_H

#include "ir/base/base.h"

typedef struct sbp_template_source {
    const char *text; /* NULL: none */
    size_t length;
    const char *name;      /* of the file, for messages */
    const char *tool_text; /* of a template for conversations with tools; NULL: none of its own */
    size_t tool_length;
} sbp_template_source;

/* What a model brings: of a directory chat_template.jinja, else chat_template in tokenizer_config.json (a
 * text, or a list of named ones, of which "default" is meant), and additional_chat_templates/tool_use.jinja
 * or the named "tool_use"; of a .gguf its tokenizer.chat_template. No template: text NULL. */
sbp_status sbp_template_source_of_model(sbp_arena *arena, sbp_diag *diag, const char *path,
                                        sbp_template_source *out) SBP_CHECKED;
/* What --chat-template asks for: a file, a directory as above, or a name: of a template in the directory of
 * the model (NULL: unknown). SBP_USAGE with the names that there are when it is none of these. */
sbp_status sbp_template_source_find(sbp_arena *arena, sbp_diag *diag, const char *request, const char *model,
                                    sbp_template_source *out) SBP_CHECKED;

/* A copy of a known template, told by its text, with {% generation %} around what the model writes, as
 * TRL 1.16 has such copies; what it renders is what TRL's copy does. NULL: not known, or needs none (the
 * differences of renderings give the same spans). */
const char *sbp_template_marked_copy(sbp_arena *arena, const char *text, size_t length, size_t *out_length);

#endif
