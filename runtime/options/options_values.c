/* options_values.c: values, checked and converted by what kind an option is. */
#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "runtime/options/options_internal.h"

/* The words that a kind knows besides what it reads. */
bool sbp_option_is_word(const sbp_option *option, const char *text) {
    const char *at = NULL, *begin;
    size_t length;
    bool hidden;
    while (sbp_option_alternative(option->values, &at, &begin, &length, &hidden))
        if (!sbp_option_is_placeholder(begin, length) &&
            sbp_option_same_name(begin, length, text, strlen(text)))
            return true;
    return false;
}

/* The word as the table spells it. */
static const char *spelling(sbp_arena *arena, const sbp_option *option, const char *text) {
    const char *at = NULL, *begin;
    size_t length;
    bool hidden;
    while (sbp_option_alternative(option->values, &at, &begin, &length, &hidden))
        if (sbp_option_same_name(begin, length, text, strlen(text)))
            return sbp_arena_strndup(arena, begin, length);
    return text;
}

const char *sbp_option_word(sbp_arena *arena, const sbp_option *option, int32_t index) {
    const char *at = NULL, *begin;
    size_t length;
    bool hidden;
    while (sbp_option_alternative(option->values, &at, &begin, &length, &hidden))
        if (index-- == 0)
            return sbp_arena_strndup(arena, begin, length);
    return NULL;
}

/* Which of the words it is, from 0. */
static int32_t word_index(const sbp_option *option, const char *text) {
    const char *at = NULL, *begin;
    size_t length;
    bool hidden;
    for (int32_t i = 0; sbp_option_alternative(option->values, &at, &begin, &length, &hidden); i++)
        if (sbp_option_same_name(begin, length, text, strlen(text)))
            return i;
    return -1;
}

/* "N or auto", "sft, dpo or grpo": what is built. */
static const char *expected(sbp_arena *arena, const sbp_option *option) {
    sbp_text out;
    sbp_text_init(&out, arena);
    const char *at = NULL, *begin;
    size_t length;
    bool hidden;
    int count = 0, seen = 0;
    while (sbp_option_alternative(option->values, &at, &begin, &length, &hidden))
        count += !hidden;
    at = NULL;
    while (sbp_option_alternative(option->values, &at, &begin, &length, &hidden)) {
        if (hidden)
            continue;
        if (seen > 0)
            sbp_text_add(&out, seen + 1 == count ? " or " : ", ");
        bool placeholder = sbp_option_is_placeholder(begin, length);
        if (placeholder && option->kind == SBP_OPTION_INT)
            sbp_text_add(&out, "a whole number");
        else if (placeholder && option->kind == SBP_OPTION_NUMBER)
            sbp_text_add(&out, "a number");
        else
            sbp_text_add(&out, "%.*s", (int)length, begin);
        seen++;
    }
    return out.data;
}

static bool read_integer(const char *text, int64_t *out) {
    const char *digits = text + (*text == '-');
    size_t n = strspn(digits, "0123456789");
    if (n == 0 || digits[n] || n > 18)
        return false;
    *out = strtoll(text, NULL, 10);
    return true;
}

typedef struct value_check {
    sbp_options *o;
    sbp_diag *diag;
    const option_setting *setting;
    const sbp_option *option;
    const char *text;
} value_check;

static sbp_status bad_value(const value_check *c) {
    return sbp_fail(c->diag, SBP_USAGE, "%s: %s: found '%.100s', expected %s", c->setting->where,
                    sbp_option_shown(c->o, c->setting, c->setting->key), c->text,
                    c->option->kind == SBP_OPTION_PAIR ? "two numbers A,B"
                                                       : expected(c->o->arena, c->option));
}

static sbp_status check_range(const value_check *c, double value) {
    const sbp_option *option = c->option;
    const char *name = sbp_option_shown(c->o, c->setting, c->setting->key);
    bool divides = option->id == SBP_OPT_TEMPERATURE && !(c->o->phases & SBP_PHASE_GENERATE);
    if (divides && value == 0) /* logits, of what trains */
        return sbp_fail(c->diag, SBP_USAGE, "%s: %s: %s is not above 0", c->setting->where, name, c->text);
    if (value >= option->least && value <= option->most)
        return SBP_OK;
    if (value < option->least && option->least == SBP_ABOVE_ZERO)
        return sbp_fail(c->diag, SBP_USAGE, "%s: %s: %s is not above 0", c->setting->where, name, c->text);
    if (value > option->most && option->most == SBP_BELOW_ONE)
        return sbp_fail(c->diag, SBP_USAGE, "%s: %s: %s is not below 1", c->setting->where, name, c->text);
    if (option->kind == SBP_OPTION_SIZE && value < option->least) /* most likely a unit is missing */
        return sbp_fail(c->diag, SBP_USAGE,
                        "%s: %s: found '%.100s', which is too small; expected a size such as 80GiB or 24GB",
                        c->setting->where, name, c->text);
    return sbp_fail(c->diag, SBP_USAGE, "%s: %s: %s is %s %.15g", c->setting->where, name, c->text,
                    value < option->least ? "below" : "above",
                    value < option->least ? option->least : option->most);
}

bool sbp_option_on_or_off(const char *text, const char **word) {
    static const char *const names[2][7] = {{"off", "false", "no", "0", "f", "n", NULL},
                                            {"on", "true", "yes", "1", "t", "y", NULL}};
    for (int v = 0; v < 2; v++)
        for (int i = 0; names[v][i]; i++)
            if (strcasecmp(text, names[v][i]) == 0) {
                *word = names[v][0];
                return true;
            }
    return false;
}

static sbp_status read_pair(const value_check *c, option_value *v) {
    const char *comma = strchr(c->text, ',');
    double first, second;
    if (!comma ||
        !sbp_option_read_number(sbp_arena_strndup(c->o->arena, c->text, (size_t)(comma - c->text)), &first) ||
        !sbp_option_read_number(comma + 1 + strspn(comma + 1, " "), &second))
        return bad_value(c);
    SBP_TRY(check_range(c, first));
    SBP_TRY(check_range(c, second));
    v->number = first;
    v->second = second;
    return SBP_OK;
}

/* Converts text by the option's kind into v, which holds nothing yet. */
static sbp_status convert(const value_check *c, option_value *v) {
    const sbp_option *option = c->option;
    v->text = c->text;
    v->integer = -1;
    v->number = v->second = NAN;
    if (option->kind != SBP_OPTION_TEXT && option->kind != SBP_OPTION_LIST &&
        sbp_option_is_word(option, c->text)) {
        v->text = spelling(c->o->arena, option, c->text);
        if (option->kind == SBP_OPTION_ENUM)
            v->number = word_index(option, c->text);
        if (option->kind != SBP_OPTION_INT || !read_integer(c->text, &v->integer))
            return SBP_OK;
    }
    switch (option->kind) {
    case SBP_OPTION_INT:
        if (!read_integer(c->text, &v->integer))
            return bad_value(c);
        v->number = (double)v->integer;
        return check_range(c, v->number);
    case SBP_OPTION_NUMBER:
        if (!sbp_option_read_number(c->text, &v->number))
            return bad_value(c);
        return check_range(c, v->number);
    case SBP_OPTION_SIZE:
        if (sbp_parse_bytes(NULL, c->text, &v->integer) != SBP_OK)
            return sbp_fail(c->diag, SBP_USAGE,
                            "%s: %s: found '%.100s', expected a size such as 80GiB or 24GB",
                            c->setting->where, sbp_option_shown(c->o, c->setting, c->setting->key), c->text);
        return check_range(c, (double)v->integer);
    case SBP_OPTION_PAIR:
        return read_pair(c, v);
    case SBP_OPTION_ONOFF:
    case SBP_OPTION_SWITCH:
        return sbp_option_on_or_off(c->text, &v->text) ? SBP_OK : bad_value(c);
    case SBP_OPTION_ENUM:
        return bad_value(c);
    default:
        return SBP_OK;
    }
}

sbp_status sbp_option_convert(sbp_options *o, sbp_diag *diag, const option_setting *setting,
                              const sbp_option *option, const char *text, option_value *out) {
    const value_check c = {.o = o, .diag = diag, .setting = setting, .option = option, .text = text};
    return convert(&c, out);
}
