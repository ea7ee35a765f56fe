/* messages.h: conversations of rows, checked and as templates want them: lists of {"role", "content", ..}.
 *
 * {"from", "value"} becomes {"role", "content"}, and its human, gpt, observation .. the roles user,
 * assistant, tool that templates know (one that is none of them is an error); members whose value is null are
 * left out, at any depth; "reasoning_content" is filled from "thinking" or "reasoning", and "thinking" from
 * it, as transformers does. The result shares what it can with the row's tree, and its nodes are named as in
 * the row.
 *
 * Errors: SBP_INPUT, "FILE:LINE: messages[2].role: expected .., found ..". Below a guard.
 */
#ifndef SBP_RUNTIME_DATA_MESSAGES_H
#define SBP_RUNTIME_DATA_MESSAGES_H

#include "ir/base/json.h"

/* list: of the row; must have a message unless `may_be_empty`. */
sbp_status sbp_messages_read(sbp_arena *arena, sbp_diag *diag, const sbp_json *list, bool may_be_empty,
                             const sbp_json **out) SBP_CHECKED;
/* "tools": a list of objects, or such a list as the text of JSON, in which nulls stay. NULL and null stay
 * NULL. */
sbp_status sbp_tools_read(sbp_arena *arena, sbp_diag *diag, const char *where, const sbp_json *node,
                          const sbp_json **out) SBP_CHECKED;
/* Whether two values are equal; the order of members does not count, 1 equals 1.0. */
bool sbp_messages_equal(const sbp_json *a, const sbp_json *b);
/* A message as a list that has nothing else. */
const sbp_json *sbp_messages_of_one(sbp_arena *arena, const sbp_json *message);
/* Items [from, to) of a list. */
const sbp_json *sbp_messages_part(sbp_arena *arena, const sbp_json *list, int64_t from, int64_t to);
/* Both lists, one behind the other. */
const sbp_json *sbp_messages_join(sbp_arena *arena, const sbp_json *a, const sbp_json *b);

#endif
