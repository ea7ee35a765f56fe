/* yaml.h: YAML documents, as libyaml parses them, as read-only trees in an arena: scalars stay the text that
 * they are, so that 1e-5 is what its reader makes of it. Aliases are followed; a document that would grow
 * beyond reason by them, or nests too deep, is refused. JSON is YAML, too.
 */
#ifndef SBP_IR_BASE_YAML_H
#define SBP_IR_BASE_YAML_H

#include "ir/base/base.h"

typedef enum sbp_yaml_kind { SBP_YAML_SCALAR, SBP_YAML_LIST, SBP_YAML_MAP } sbp_yaml_kind;

typedef struct sbp_yaml {
    sbp_yaml_kind kind;
    int32_t line;                 /* from 1; of a member, that of its key */
    const char *key;              /* of a member of a map, else NULL */
    const char *text;             /* of a scalar: UTF-8 without NUL */
    bool plain;                   /* a scalar without quotes: null, 1, true may be meant */
    const struct sbp_yaml *items; /* of a list, or the members of a map in file order */
    int32_t count;
} sbp_yaml;

/* `file` is for messages, which are of `status`: "FILE:LINE: what". NULL in *out: the document is empty.
 * Needs no guard by the caller. */
sbp_status sbp_yaml_parse(sbp_arena *arena, sbp_diag *diag, sbp_status status, const char *file,
                          const char *text, size_t length, const sbp_yaml **out) SBP_CHECKED;
/* The first member of that key; NULL: there is none, or it is no map. */
const sbp_yaml *sbp_yaml_member(const sbp_yaml *map, const char *key);

#endif
