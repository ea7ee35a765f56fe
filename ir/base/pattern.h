/* pattern.h: regular expressions as Python's `re` has them, as far as PCRE2 reads them alike. Below a guard.
 */
#ifndef SBP_IR_BASE_PATTERN_H
#define SBP_IR_BASE_PATTERN_H

#include "ir/base/base.h"

typedef enum sbp_pattern_span {
    SBP_PATTERN_WHOLE, /* re.fullmatch */
    SBP_PATTERN_BEGIN  /* re.match */
} sbp_pattern_span;

/* Whether `text` matches. SBP_USAGE, with the place, where the pattern is none; `what` is for that message.
 */
sbp_status sbp_pattern_match(sbp_arena *arena, sbp_diag *diag, const char *what, const char *pattern,
                             sbp_pattern_span span, const char *text, bool *out) SBP_CHECKED;
/* The same, and the number that its group of this name is, [0-9]+; -1 where that takes no part in the match.
 */
sbp_status sbp_pattern_number(sbp_arena *arena, sbp_diag *diag, const char *what, const char *pattern,
                              sbp_pattern_span span, const char *text, const char *name, bool *matches,
                              int64_t *out) SBP_CHECKED;

#endif
