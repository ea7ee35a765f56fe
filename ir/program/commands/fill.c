/* fill: dst = value, rounded to dst's type.
 *
 *   dst  [rows, cols], any type   written
 *
 * Attribute: value. */
#include "ir/program/command.h"

SBP_RULE_ROWS_NONE(fill)
SBP_RULE_CHECK_NONE(fill)
SBP_RULE_ACCESS_STATED(fill)
SBP_RULE_ALIAS_NONE(fill)

void sbp_text_fill(sbp_fields *fields) {
    sbp_field_double(fields, "value", &fields->command->u.fill, 0)->always = true;
}

SBP_RULE_WORK_MEMORY(fill)
