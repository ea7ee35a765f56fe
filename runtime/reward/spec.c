/* spec.c: specs told apart and cut into words, and programs found. */
#include "runtime/reward/spec.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ir/base/file.h"
#include "runtime/reward/rewarder.h"

/* ---- which kind -------------------------------------------------------------------------------------- */

static bool begins_identifier(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (unsigned char)c >= 0x80;
}

/* Identifiers joined by points, length bytes of them. */
static bool is_dotted(const char *text, size_t length) {
    bool begin = true;
    for (size_t i = 0; i < length; i++) {
        bool digit = text[i] >= '0' && text[i] <= '9';
        if (begin ? !begins_identifier(text[i]) : text[i] != '.' && !digit && !begins_identifier(text[i]))
            return false;
        begin = text[i] == '.';
    }
    return length > 0 && !begin;
}

bool sbp_reward_is_python(const char *spec) {
    const char *colon = strrchr(spec, ':');
    if (!colon || !is_dotted(colon + 1, strlen(colon + 1)))
        return false;
    size_t place = (size_t)(colon - spec);
    return is_dotted(spec, place) || (place > 3 && strncmp(colon - 3, ".py", 3) == 0);
}

/* ---- words ------------------------------------------------------------------------------------------- */

static sbp_status no_shell(sbp_diag *diag, const char *spec, const char *at) {
    return sbp_fail(diag, SBP_USAGE,
                    "--reward '%s': no shell runs it, so '%c' has no effect: put it in quotes, or the whole "
                    "command into a script",
                    spec, *at);
}

/* A word from *at on, which is behind it afterwards. */
static sbp_status read_word(sbp_diag *diag, const char *spec, const char **at, sbp_text *word) {
    const char *p = *at;
    for (char quote = 0; quote || (*p && !strchr(" \t\n", *p)); p++) {
        if (!*p)
            return sbp_fail(diag, SBP_USAGE, "--reward '%s': a %c without its end", spec, quote);
        if (quote ? *p == quote : *p == '\'' || *p == '"') {
            quote = quote ? 0 : *p;
            continue;
        }
        bool escape = *p == '\\' && quote != '\'' && p[1] && (!quote || strchr("$`\"\\\n", p[1]));
        if (!escape && quote != '\'' && strchr(quote ? "$`" : "|&;<>()$`", *p))
            return no_shell(diag, spec, p);
        p += escape;
        if (!escape || *p != '\n') /* which a backslash takes away */
            sbp_text_add_n(word, p, 1);
    }
    *at = p;
    return SBP_OK;
}

sbp_status sbp_reward_words(sbp_arena *arena, sbp_diag *diag, const char *spec, sbp_args *out) {
    const char *at = spec;
    *out = sbp_args_on(arena);
    for (;;) {
        at += strspn(at, " \t\n");
        if (!*at)
            break;
        sbp_text word;
        sbp_text_init(&word, arena);
        sbp_text_add(&word, "%s", "");
        SBP_TRY(read_word(diag, spec, &at, &word));
        sbp_args_add(out, word.data);
    }
    return out->count > 0 && out->items[0][0]
               ? SBP_OK
               : sbp_fail(diag, SBP_USAGE,
                          "--reward '%s' names no program: expected FILE.py:NAME, MODULE:NAME "
                          "or a program with its arguments",
                          spec);
}

/* ---- programs ---------------------------------------------------------------------------------------- */

static bool can_run(const char *path) {
    return access(path, X_OK) == 0 && !sbp_directory_exists(path);
}

sbp_status sbp_reward_program(sbp_arena *arena, sbp_diag *diag, const char *what, const char *word,
                              const char **out) {
    *out = word;
    if (strchr(word, '/'))
        return can_run(word) ? SBP_OK
                             : sbp_fail(diag, SBP_MACHINE, "%s: cannot run '%s': %s", what, word,
                                        sbp_directory_exists(word) ? "it is a directory" : strerror(errno));
    const char *path = getenv("PATH");
    while (path && *path) {
        size_t part = strcspn(path, ":");
        *out = sbp_arena_printf(arena, "%.*s/%s", (int)part, path, word);
        if (*path == '/' && can_run(*out)) /* none of the current directory: that takes "./" */
            return SBP_OK;
        path += part + (path[part] == ':');
    }
    return sbp_fail(diag, SBP_MACHINE,
                    "%s: '%s' is in no folder of PATH (of the current directory it is './%s')", what, word,
                    word);
}

sbp_status sbp_reward_python(sbp_arena *arena, sbp_diag *diag, const char *wanted, const char **out) {
    const char *environment = getenv("VIRTUAL_ENV");
    if (!wanted && environment && *environment == '/') {
        *out = sbp_arena_printf(arena, "%s/bin/python", environment);
        if (can_run(*out))
            return SBP_OK;
    }
    return sbp_reward_program(arena, diag, "--reward-python", wanted ? wanted : "python3", out);
}

/* ---- weights ----------------------------------------------------------------------------------------- */

sbp_status sbp_reward_weights(sbp_arena *arena, sbp_diag *diag, const char *const *texts, int32_t text_count,
                              int32_t count, const double **out) {
    double *weights = NULL;
    int32_t found = 0, capacity = 0;
    for (int32_t i = 0; i < text_count; i++)
        for (const char *at = texts[i];;) {
            const size_t length = strcspn(at, ",");
            char *end, *word = sbp_arena_strndup(arena, at, length);
            const double weight = strtod(word, &end);
            if (end == word || end[strspn(end, " ")] || !isfinite(weight))
                return sbp_fail(diag, SBP_USAGE, "--reward-weights: found '%s', expected a finite number",
                                word);
            SBP_PUSH(arena, weights, found, capacity, weight);
            if (!at[length])
                break;
            at += length + 1;
        }
    if (found != count)
        return sbp_fail(diag, SBP_USAGE, "--reward-weights has %d weight%s, --reward is given %d time%s",
                        found, found == 1 ? "" : "s", count, count == 1 ? "" : "s");
    *out = weights;
    return SBP_OK;
}
