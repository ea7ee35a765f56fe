/* pattern.c: regular expressions of options and of configurations, by PCRE2. */
#include "ir/base/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

/* Steps of the matcher: far more than a name of a module asks for, and an end for patterns that have none. */
enum { MOST_STEPS = 1000000 };

/* "{,n}" is "{0,n}" in Python; PCRE2 has taken it for text before 10.43. */
static const char *with_bounds(sbp_arena *arena, const char *pattern) {
    sbp_text out;
    bool in_class = false;
    sbp_text_init(&out, arena);
    for (const char *at = pattern; *at; at++) {
        size_t digits = !in_class && at[0] == '{' && at[1] == ',' ? strspn(at + 2, "0123456789") : 0;
        sbp_text_add(&out, "%c", *at);
        if (*at == '\\' && at[1])
            sbp_text_add(&out, "%c", *++at);
        else if (*at == '[' && !in_class) {
            in_class = true;
            if (at[1] == '^')
                sbp_text_add(&out, "%c", *++at);
            if (at[1] == ']') /* the first one is a member */
                sbp_text_add(&out, "%c", *++at);
        } else if (*at == ']')
            in_class = false;
        else if (!in_class && at[0] == '{' && at[1] == ',' && at[2 + digits] == '}')
            sbp_text_add(&out, "0");
    }
    return out.data;
}

static sbp_status compile(sbp_arena *arena, sbp_diag *diag, const char *what, const char *pattern,
                          sbp_pattern_span span, pcre2_code **out) {
    uint32_t options =
        PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED | (span == SBP_PATTERN_WHOLE ? PCRE2_ENDANCHORED : 0u);
    const char *text = with_bounds(arena, pattern);
    int error;
    size_t at;
    *out = pcre2_compile((PCRE2_SPTR)text, PCRE2_ZERO_TERMINATED, options, &error, &at, NULL);
    if (*out)
        return SBP_OK;
    PCRE2_UCHAR reason[200];
    pcre2_get_error_message(error, reason, sizeof reason);
    return sbp_fail(diag, SBP_USAGE, "%s: '%s' is not a regular expression: %s, at character %zu", what, text,
                    (const char *)reason, at);
}

/* *matches; group: [2], where the group of that name begins and ends: -1 where it takes no part, or name is
 * NULL. */
static sbp_status run(sbp_arena *arena, sbp_diag *diag, const char *what, const char *pattern,
                      sbp_pattern_span span, const char *text, const char *name, bool *matches,
                      int64_t group[2]) {
    pcre2_code *code;
    group[0] = group[1] = -1;
    *matches = false;
    SBP_TRY(compile(arena, diag, what, pattern, span, &code));
    pcre2_match_data *match = pcre2_match_data_create_from_pattern(code, NULL);
    pcre2_match_context *context = pcre2_match_context_create(NULL);
    int found = PCRE2_ERROR_NOMEMORY;
    if (match && context) {
        pcre2_set_match_limit(context, MOST_STEPS);
        found = pcre2_match(code, (PCRE2_SPTR)text, strlen(text), 0, 0, match, context);
    }
    *matches = found > 0; /* whatever groups have taken part in it */
    int number = *matches && name ? pcre2_substring_number_from_name(code, (PCRE2_SPTR)name) : -1;
    if (number > 0 && number < found) {
        const size_t *spans = pcre2_get_ovector_pointer(match) + 2 * number;
        if (spans[0] != PCRE2_UNSET) {
            group[0] = (int64_t)spans[0];
            group[1] = (int64_t)spans[1];
        }
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
    return run(arena, diag, what, pattern, span, text, NULL, out, group);
}

sbp_status sbp_pattern_number(sbp_arena *arena, sbp_diag *diag, const char *what, const char *pattern,
                              sbp_pattern_span span, const char *text, const char *name, bool *matches,
                              int64_t *out) {
    int64_t group[2];
    *out = -1;
    SBP_TRY(run(arena, diag, what, pattern, span, text, name, matches, group));
    if (group[0] >= 0)
        *out = strtoll(sbp_arena_strndup(arena, text + group[0], (size_t)(group[1] - group[0])), NULL, 10);
    return SBP_OK;
}
