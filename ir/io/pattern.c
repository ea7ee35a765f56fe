/* pattern.c: regular expressions of options and of configurations, by PCRE2. */
#include "ir/io/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

/* Steps of the matcher: far more than a name of a module asks for, and an end for patterns that have none. */
enum { MOST_STEPS = 1000000 };

/* *groups: [2] where the first group begins and ends; -1 where there is no match. */
static sbp_status run(sbp_diag *diag, const char *what, const char *pattern, sbp_pattern_span span,
                      const char *text, int64_t group[2]) {
    uint32_t options = PCRE2_UTF | PCRE2_ANCHORED | (span == SBP_PATTERN_WHOLE ? PCRE2_ENDANCHORED : 0u);
    int error;
    size_t at;
    group[0] = group[1] = -1;
    pcre2_code *code = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, options, &error, &at, NULL);
    if (!code) {
        PCRE2_UCHAR reason[200];
        pcre2_get_error_message(error, reason, sizeof reason);
        return sbp_fail(diag, SBP_USAGE, "%s: '%s' is no regular expression: %s, at character %zu", what,
                        pattern, (const char *)reason, at);
    }
    pcre2_match_data *match = pcre2_match_data_create_from_pattern(code, NULL);
    pcre2_match_context *context = pcre2_match_context_create(NULL);
    int found = PCRE2_ERROR_NOMEMORY;
    if (match && context) {
        pcre2_set_match_limit(context, MOST_STEPS);
        found = pcre2_match(code, (PCRE2_SPTR)text, strlen(text), 0, 0, match, context);
    }
    if (found > 0) {
        const size_t *spans = pcre2_get_ovector_pointer(match);
        group[0] = (int64_t)spans[found > 1 ? 2 : 0];
        group[1] = (int64_t)spans[found > 1 ? 3 : 1];
    }
    pcre2_match_context_free(context);
    pcre2_match_data_free(match);
    pcre2_code_free(code);
    if (found < 0 && found != PCRE2_ERROR_NOMATCH)
        return sbp_fail(diag, found == PCRE2_ERROR_NOMEMORY ? SBP_MACHINE : SBP_USAGE,
                        "%s: '%s' cannot be matched with '%s'", what, pattern, text);
    return SBP_OK;
}

sbp_status sbp_pattern_match(sbp_arena *arena, sbp_diag *diag, const char *what, const char *pattern,
                             sbp_pattern_span span, const char *text, bool *out) {
    int64_t group[2];
    (void)arena;
    SBP_TRY(run(diag, what, pattern, span, text, group));
    *out = group[0] >= 0;
    return SBP_OK;
}

sbp_status sbp_pattern_number(sbp_arena *arena, sbp_diag *diag, const char *what, const char *pattern,
                              sbp_pattern_span span, const char *text, int64_t *out) {
    int64_t group[2];
    SBP_TRY(run(diag, what, pattern, span, text, group));
    *out = -1;
    if (group[0] >= 0)
        *out = strtoll(sbp_arena_strndup(arena, text + group[0], (size_t)(group[1] - group[0])), NULL, 10);
    return SBP_OK;
}
