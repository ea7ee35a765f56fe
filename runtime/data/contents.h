/* contents.h: contents of messages as the template of a model takes them.
 *
 * A content may be a list of parts, [{"type": "text", "text": ".."}, ..]. A template that reads such lists
 * gets them. Where one does not (it refuses them, or writes the list itself with its braces, as Python prints
 * it) the texts of the parts are put together, one behind the other. Parts of another type are then an error
 * that names them; images, sounds and films always are, as models are trained on text.
 *
 * A message with "tool_calls" may have no content. It is left out, as TRL leaves out what is null; where the
 * template refuses that, it is null, as transformers has it.
 *
 * Errors: SBP_INPUT, "FILE:LINE: messages[0].content[1].type: ..". What the template refuses in any form is
 * for the rendering to say. Needs no guard.
 */
#ifndef SBP_RUNTIME_DATA_CONTENTS_H
#define SBP_RUNTIME_DATA_CONTENTS_H

#include "runtime/data/chat.h"

/* The messages of a conversation; they may be the same. */
sbp_status sbp_contents_fit(const sbp_chat *chat, sbp_arena *arena, sbp_diag *diag,
                            const sbp_conversation *talk, const sbp_json **out) SBP_CHECKED;

#endif
