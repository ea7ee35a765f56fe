/* json_text.h: JSON text to a tree, in little more memory than the tree has. */
#ifndef SBP_IR_BASE_JSON_TEXT_H
#define SBP_IR_BASE_JSON_TEXT_H

#include "ir/base/json.h"

/* Reads text that is JSON as jansson understands it (json.h): the same tree, without values in between. What
 * is not, or has numbers that need care, is left to jansson, which says what is wrong: false, and the arenas
 * are as they were. tree: of the tree; scratch: 4 bytes for each list and object, until the caller frees it.
 * Both below a guard. The root has no key. flags: SBP_JSON_PYTHON counts. */
bool sbp_json_text_read(sbp_arena *tree, sbp_arena *scratch, const char *text, size_t length, unsigned flags,
                        sbp_json **out);
/* Finds the members of an object; false: two have the same name. Small ones need none. */
bool sbp_json_index_members(sbp_arena *arena, sbp_json *object);

#endif
