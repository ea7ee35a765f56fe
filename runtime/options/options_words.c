/* options_words.c: names and values compared, and the names of TRL that have no effect here. */
#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "runtime/options/options_internal.h"

bool sbp_option_same_name(const char *name, size_t name_length, const char *key, size_t length) {
    if (name_length != length)
        return false;
    for (size_t i = 0; i < length; i++) {
        char a = name[i] == '_' ? '-' : name[i], b = key[i] == '_' ? '-' : key[i];
        if (a != b)
            return false;
    }
    return true;
}

bool sbp_option_alternative(const char *values, const char **at, const char **begin, size_t *length,
                            bool *hidden) {
    const char *p = *at ? *at : values;
    if (!*p)
        return false;
    *begin = p;
    size_t n = strcspn(p, "|");
    *at = p + n + (p[n] == '|');
    *hidden = n > 0 && p[n - 1] == '!';
    *length = n - *hidden;
    return true;
}

bool sbp_option_is_placeholder(const char *begin, size_t length) {
    return length > 0 && isupper((unsigned char)begin[0]);
}

bool sbp_option_read_number(const char *text, double *out) {
    char *end;
    if (!*text || isspace((unsigned char)*text) || strspn(text, "0123456789+-.eE") != strlen(text))
        return false;
    *out = strtod(text, &end);
    return *end == 0 && isfinite(*out);
}

bool sbp_option_same_value(const char *a, size_t length, const char *b) {
    char text[64];
    double x, y;
    if (strlen(b) == length && strncasecmp(a, b, length) == 0)
        return true;
    if (length >= sizeof text)
        return false;
    memcpy(text, a, length);
    text[length] = 0;
    return sbp_option_read_number(text, &x) && sbp_option_read_number(b, &y) && x == y;
}

bool sbp_option_accepts(const char *accepted, const char *text) {
    const char *at = NULL, *begin;
    size_t length;
    bool hidden;
    while (sbp_option_alternative(accepted, &at, &begin, &length, &hidden))
        if (sbp_option_same_value(begin, length, text))
            return true;
    return false;
}

/* ---- settings of TRL without effect ------------------------------------------------------------------ */

static const struct ignored {
    const char *name, *usual;
} ignored[] = {
#define IGNORED(name, usual) {name, usual},
#include "runtime/options/trl.def"
};

const char *sbp_options_ignored(const char *key, size_t length) {
    for (int i = 0; i < SBP_COUNT(ignored); i++)
        if (sbp_option_same_name(ignored[i].name, strlen(ignored[i].name), key, length))
            return ignored[i].usual;
    return NULL;
}

const char *sbp_options_ignored_at(int32_t index) {
    return index < SBP_COUNT(ignored) ? ignored[index].name : NULL;
}

bool sbp_option_is_blank(const char *text) {
    static const char *const blank[] = {"", "~", "none", "null", "{}", "[]"};
    for (int i = 0; i < SBP_COUNT(blank); i++)
        if (strcasecmp(text, blank[i]) == 0)
            return true;
    return false;
}

void sbp_options_say_ignored(sbp_options *o, const option_setting *s, const char *usual, const char *text) {
    if (sbp_option_is_blank(text) || strcasecmp(text, "false") == 0 || sbp_option_accepts(usual, text))
        return;
    if (o->without_effect.length == 0)
        sbp_text_init(&o->without_effect, o->arena);
    sbp_text_add(&o->without_effect, "%s%s%s", o->without_effect.length > 0 ? ", " : "",
                 s->config ? "" : "--", s->key);
}
