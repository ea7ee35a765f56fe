/* options.c: the table, command lines, and checked values. */
#include "runtime/cli/options/options_internal.h"

#include <assert.h>
#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "ir/base/file.h"

enum option_group {
#define GROUP(id, title) GROUP_##id,
#include "runtime/cli/options/options.def"
    GROUP_COUNT
};

static const char *const group_titles[] = {
#define GROUP(id, title) title,
#include "runtime/cli/options/options.def"
};

static const struct phase_title {
    unsigned bit;
    const char *title;
} phase_titles[] = {
#define PHASE(id, bit, title) {bit, title},
#include "runtime/cli/options/options.def"
};

/* Words that other tables have. */
static const char values_of_backend[] = "auto"
#define BACKEND(name, title, is, without) "|" #name
#include "backends/backends.def"
    ;
static const char values_of_optimizer[] =
#define OPTIMIZER(id, name, text, states) text "|"
#include "passes/optimizers.def"
#undef OPTIMIZER
    "none";

static const sbp_option table[] = {
#define OPTION(id, name, letter, kind, phases, group, values, fallback, least, most, state, resume, aliases, \
               help)                                                                                         \
    {SBP_OPT_##id,                                                                                           \
     name,                                                                                                   \
     letter,                                                                                                 \
     SBP_OPTION_##kind,                                                                                      \
     phases,                                                                                                 \
     GROUP_##group,                                                                                          \
     values,                                                                                                 \
     fallback,                                                                                               \
     least,                                                                                                  \
     most,                                                                                                   \
     SBP_OPTION_##state,                                                                                     \
     SBP_RESUME_##resume,                                                                                    \
     aliases,                                                                                                \
     help},
#include "runtime/cli/options/options.def"
};

static const struct refused {
    const char *name, *accepted, *reason;
} refusals[] = {
#define REFUSED(name, accepted, reason) {name, accepted, reason},
#include "runtime/cli/options/options.def"
};

int32_t sbp_option_count(void) {
    return SBP_COUNT(table);
}

const sbp_option *sbp_option_at(int32_t index) {
    return &table[index];
}

const char *sbp_option_name(sbp_option_id id) {
    return table[id].name;
}

const sbp_option *sbp_option_find(const char *name) {
    for (int32_t i = 0; i < SBP_COUNT(table); i++)
        if (strcmp(table[i].name, name) == 0)
            return &table[i];
    return NULL;
}

const char *sbp_option_group_title(int group) {
    return group_titles[group];
}

int sbp_option_group_count(void) {
    return GROUP_COUNT;
}

const char *sbp_phase_title(unsigned phases) {
    for (int i = 0; i < SBP_COUNT(phase_titles); i++)
        if (phase_titles[i].bit & phases)
            return phase_titles[i].title;
    return "no command";
}

/* ---- names ------------------------------------------------------------------------------------------ */

bool sbp_options_refused_at(int32_t index, const char **name, const char **reason) {
    if (index >= SBP_COUNT(refusals))
        return false;
    *name = refusals[index].name;
    *reason = refusals[index].reason;
    return true;
}

const sbp_option *sbp_option_setting_at(int32_t index) {
    for (int32_t i = 0; i < SBP_COUNT(table); i++)
        if (table[i].group == GROUP_OBJECTIVE && index-- == 0)
            return &table[i];
    return NULL;
}

const sbp_option *sbp_option_setting(const char *scalar) {
    for (int32_t i = 0; sbp_option_setting_at(i); i++) {
        const sbp_option *option = sbp_option_setting_at(i);
        if (sbp_option_same_name(option->name, strlen(option->name), scalar, strlen(scalar)))
            return option;
    }
    return NULL;
}

/* The next alias of a list, with what follows its name; false at the end. */
static bool next_alias(const char **at, const char **name, size_t *length) {
    while (**at == ' ')
        (*at)++;
    if (!**at)
        return false;
    *name = *at;
    *length = strcspn(*at, " {#+");
    *at += strcspn(*at, " ");
    return true;
}

/* What stands behind an alias of an option; NULL: it has no such alias. */
static const char *find_alias(int32_t index, const char *key, size_t length) {
    const char *at = table[index].aliases, *name;
    size_t n;
    while (next_alias(&at, &name, &n))
        if (sbp_option_same_name(name, n, key, length))
            return name + n;
    return NULL;
}

option_target sbp_options_find(const char *key, size_t length) {
    for (int32_t i = 0; i < SBP_COUNT(table); i++)
        if (sbp_option_same_name(table[i].name, strlen(table[i].name), key, length))
            return (option_target){.index = i, .alias = find_alias(i, key, length)};
    for (int32_t i = 0; i < SBP_COUNT(table); i++) {
        const char *alias = find_alias(i, key, length);
        if (alias)
            return (option_target){.index = i, .alias = alias};
    }
    for (int i = 0; i < SBP_COUNT(refusals); i++)
        if (sbp_option_same_name(refusals[i].name, strlen(refusals[i].name), key, length))
            return (option_target){
                .index = -1, .accepted = refusals[i].accepted, .reason = refusals[i].reason};
    return (option_target){.index = -1, .usual = sbp_options_ignored(key, length)};
}

/* Optimal string alignment distance. '_' equals '-'. */
static int distance(sbp_arena *arena, const char *a, const char *b, size_t nb) {
    int na = (int)strlen(a), width = (int)nb + 1;
    int *d = SBP_NEW_ARRAY(arena, int, (na + 1) * width);
    for (int i = 0; i <= na; i++)
        d[i * width] = i;
    for (int j = 0; j < width; j++)
        d[j] = j;
    for (int i = 1; i <= na; i++)
        for (int j = 1; j < width; j++) {
            int cost = !sbp_option_same_name(a + i - 1, 1, b + j - 1, 1);
            int best = d[(i - 1) * width + j - 1] + cost;
            int other = d[(i - 1) * width + j] + 1;
            best = other < best ? other : best;
            other = d[i * width + j - 1] + 1;
            best = other < best ? other : best;
            if (i > 1 && j > 1 && sbp_option_same_name(a + i - 1, 1, b + j - 2, 1) &&
                sbp_option_same_name(a + i - 2, 1, b + j - 1, 1)) {
                other = d[(i - 2) * width + j - 2] + 1;
                best = other < best ? other : best;
            }
            d[i * width + j] = best;
        }
    return d[na * width + width - 1];
}

const char *sbp_options_nearest(sbp_arena *arena, unsigned phases, const char *name) {
    if (strlen(name) > 64)
        return NULL;
    int best = 1 + (int)strlen(name) / 2;
    const char *nearest = NULL;
    for (int32_t i = 0; i < SBP_COUNT(table); i++) {
        if (!(table[i].phases & phases) || table[i].state == SBP_OPTION_LATER)
            continue;
        int n = distance(arena, name, table[i].name, strlen(table[i].name));
        if (n < best) {
            best = n;
            nearest = table[i].name;
        }
        const char *at = table[i].aliases, *alias;
        size_t length;
        while (next_alias(&at, &alias, &length)) {
            n = distance(arena, name, alias, length);
            if (n < best) {
                best = n;
                nearest = sbp_arena_strndup(arena, alias, length);
            }
        }
    }
    return nearest;
}

/* "--name" on the command line, plain in a file. */
static const char *shown(const sbp_options *o, const option_setting *s, const char *name) {
    return s->config ? name : sbp_arena_printf(o->arena, strlen(name) == 1 ? "-%s" : "--%s", name);
}

sbp_status sbp_options_unknown(sbp_options *o, sbp_diag *diag, const option_setting *s) {
    const char *nearest = sbp_options_nearest(o->arena, o->phases, s->key);
    const char *what = s->config ? "key" : "option";
    if (nearest)
        return sbp_fail(diag, SBP_USAGE, "%s: unknown %s '%.100s'; the nearest is '%s'", s->where, what,
                        shown(o, s, s->key), shown(o, s, nearest));
    return sbp_fail(diag, SBP_USAGE, "%s: unknown %s '%.100s'; --help lists all", s->where, what,
                    shown(o, s, s->key));
}

/* ---- values ----------------------------------------------------------------------------------------- */

/* The words that a kind knows besides what it reads; *later when it is one that is not built. */
static bool is_word(const sbp_option *option, const char *text, bool *later) {
    const char *at = NULL, *begin;
    size_t length;
    while (sbp_option_alternative(option->values, &at, &begin, &length, later))
        if (!sbp_option_is_placeholder(begin, length) &&
            sbp_option_same_name(begin, length, text, strlen(text)))
            return true;
    return false;
}

/* The word as the table spells it. */
static const char *spelling(sbp_arena *arena, const sbp_option *option, const char *text) {
    const char *at = NULL, *begin;
    size_t length;
    bool later;
    while (sbp_option_alternative(option->values, &at, &begin, &length, &later))
        if (sbp_option_same_name(begin, length, text, strlen(text)))
            return sbp_arena_strndup(arena, begin, length);
    return text;
}

const char *sbp_option_word(sbp_arena *arena, const sbp_option *option, int32_t index) {
    const char *at = NULL, *begin;
    size_t length;
    bool later;
    while (sbp_option_alternative(option->values, &at, &begin, &length, &later))
        if (index-- == 0)
            return sbp_arena_strndup(arena, begin, length);
    return NULL;
}

/* Which of the words it is, from 0. */
static int32_t word_index(const sbp_option *option, const char *text) {
    const char *at = NULL, *begin;
    size_t length;
    bool later;
    for (int32_t i = 0; sbp_option_alternative(option->values, &at, &begin, &length, &later); i++)
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
    bool later;
    int count = 0, seen = 0;
    while (sbp_option_alternative(option->values, &at, &begin, &length, &later))
        count += !later;
    at = NULL;
    while (sbp_option_alternative(option->values, &at, &begin, &length, &later)) {
        if (later)
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

/* Words of transformers for values that are said by other options here. */
static const struct {
    const char *name, *value, *options;
} elsewhere[] = {
#define ELSEWHERE(name, value, options) {name, value, options},
#include "runtime/cli/options/options.def"
};

static sbp_status bad_value(const value_check *c) {
    for (int i = 0; i < SBP_COUNT(elsewhere); i++)
        if (strcmp(elsewhere[i].name, c->option->name) == 0 &&
            sbp_option_same_name(elsewhere[i].value, strlen(elsewhere[i].value), c->text, strlen(c->text)))
            return sbp_fail(c->diag, SBP_USAGE, "%s: %s: for '%s' use %s", c->setting->where,
                            shown(c->o, c->setting, c->setting->key), c->text, elsewhere[i].options);
    return sbp_fail(c->diag, SBP_USAGE, "%s: %s: found '%.100s', expected %s", c->setting->where,
                    shown(c->o, c->setting, c->setting->key), c->text,
                    c->option->kind == SBP_OPTION_PAIR ? "two numbers A,B"
                                                       : expected(c->o->arena, c->option));
}

static sbp_status check_range(const value_check *c, double value) {
    const sbp_option *option = c->option;
    if (value >= option->least && value <= option->most)
        return SBP_OK;
    const char *name = shown(c->o, c->setting, c->setting->key);
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

static bool on_or_off(const char *text, const char **word) {
    static const char *const names[2][5] = {{"off", "false", "no", "0", NULL},
                                            {"on", "true", "yes", "1", NULL}};
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
    bool later = false;
    v->text = c->text;
    v->integer = -1;
    v->number = v->second = NAN;
    if (option->kind != SBP_OPTION_TEXT && option->kind != SBP_OPTION_LIST &&
        is_word(option, c->text, &later)) {
        v->text = spelling(c->o->arena, option, c->text);
        if (later)
            return sbp_fail(c->diag, SBP_USAGE, "%s: %s %s is not supported yet", c->setting->where,
                            shown(c->o, c->setting, c->setting->key), v->text);
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
                            c->setting->where, shown(c->o, c->setting, c->setting->key), c->text);
        return check_range(c, (double)v->integer);
    case SBP_OPTION_PAIR:
        return read_pair(c, v);
    case SBP_OPTION_ONOFF:
    case SBP_OPTION_SWITCH:
        return on_or_off(c->text, &v->text) ? SBP_OK : bad_value(c);
    case SBP_OPTION_ENUM:
        return bad_value(c);
    default:
        return SBP_OK;
    }
}

static sbp_status put(sbp_options *o, sbp_diag *diag, const option_setting *s, int32_t index,
                      const char *text) {
    const sbp_option *option = &table[index];
    option_value *v = &o->values[index];
    value_check c = {.o = o, .diag = diag, .setting = s, .option = option, .text = text};
    if (option->kind == SBP_OPTION_LIST) {
        v->given = true;
        v->config = s->config;
        v->text = text;
        SBP_PUSH(o->arena, v->list, v->count, v->capacity, text);
        return SBP_OK;
    }
    option_value fresh = {.given = true, .config = s->config};
    SBP_TRY(convert(&c, &fresh));
    *v = fresh;
    return SBP_OK;
}

/* ---- aliases ---------------------------------------------------------------------------------------- */

/* What an alias' map {from=to;..} makes of a value. */
static const char *map_value(sbp_arena *arena, const char *alias, const char *text) {
    if (*alias != '{')
        return text;
    for (const char *p = alias + 1; *p && *p != '}';) {
        size_t from = strcspn(p, "="), whole = strcspn(p, ";}");
        if (sbp_option_same_value(p, from, text))
            return sbp_arena_strndup(arena, p + from + 1, whole - from - 1);
        p += whole + (p[whole] == ';');
    }
    return text;
}

/* alias: what follows the alias' name in the table. */
static sbp_status assign_alias(sbp_options *o, sbp_diag *diag, const option_setting *s, int32_t index,
                               const char *alias, const char *text) {
    text = map_value(o->arena, alias, text);
    if (!*text)
        return SBP_OK;
    size_t end = strcspn(alias, " ");
    const char *plus = memchr(alias, '+', end), *component = memchr(alias, '#', end);
    if (plus) {
        size_t name = strcspn(plus + 1, "="), whole = strcspn(plus + 1, " ");
        option_target other = sbp_options_find(plus + 1, name);
        const char *value = sbp_arena_strndup(o->arena, plus + 2 + name, whole - name - 1);
        if ((table[other.index].phases & o->phases) && !o->values[other.index].given)
            SBP_TRY(put(o, diag, s, other.index, value));
    }
    if (component) { /* the other component stays */
        const option_value *v = &o->values[index];
        char first[32], second[32];
        sbp_format_double(first, sizeof first, v->number);
        sbp_format_double(second, sizeof second, v->second);
        text = component[1] == '0' ? sbp_arena_printf(o->arena, "%s,%s", text, second)
                                   : sbp_arena_printf(o->arena, "%s,%s", first, text);
    }
    return put(o, diag, s, index, text);
}

bool sbp_options_leaves_default(sbp_options *o, const option_setting *s, const option_target *t,
                                const char *text) {
    bool later;
    const sbp_option *option = t->index >= 0 ? &table[t->index] : NULL;
    if (!option || (!s->config && !t->alias))
        return false;
    bool leaves = (t->alias && !*map_value(o->arena, t->alias, text)) ||
                  (sbp_option_is_blank(text) && !is_word(option, text, &later));
    o->values[t->index].left |= leaves;
    return leaves;
}

sbp_status sbp_options_assign(sbp_options *o, sbp_diag *diag, const option_setting *s, const option_target *t,
                              const char *text) {
    bool off = sbp_option_is_blank(text) ||
               (strcasecmp(text, "false") == 0 && strcmp(t->accepted ? t->accepted : "", "true") != 0);
    if (t->usual) {
        sbp_options_say_ignored(o, s, t->usual, text);
        return SBP_OK;
    }
    if (t->reason)
        return off || sbp_option_accepts(t->accepted, text)
                   ? SBP_OK
                   : sbp_fail(diag, SBP_USAGE, "%s: %s: %s", s->where, shown(o, s, s->key), t->reason);
    if (t->index < 0)
        return sbp_options_unknown(o, diag, s);
    const sbp_option *option = &table[t->index];
    if (!(option->phases & o->phases))
        return s->config ? SBP_OK /* for the other program */
                         : sbp_fail(diag, SBP_USAGE, "%s: %s is an option of %s", s->where,
                                    shown(o, s, s->key), sbp_phase_title(option->phases));
    if (option->state == SBP_OPTION_LATER)
        return sbp_fail(diag, SBP_USAGE, "%s: %s is not supported yet", s->where, shown(o, s, s->key));
    bool bundle;
    SBP_TRY(sbp_options_take_bundle(o, diag, s->key, text, &bundle));
    if (bundle)
        return SBP_OK;
    if ((s->config || t->alias) && sbp_options_leaves_default(o, s, t, text))
        return SBP_OK;
    if (t->alias)
        return assign_alias(o, diag, s, t->index, t->alias, text);
    const char *at = option->aliases, *name;
    size_t n;
    while (next_alias(&at, &name, &n)) /* TRL's word for it may be ours, with other values */
        if (sbp_option_same_name(name, n, option->name, strlen(option->name)))
            text = map_value(o->arena, name + n, text);
    return put(o, diag, s, t->index, text);
}

/* ---- command lines ---------------------------------------------------------------------------------- */

typedef struct parse_job {
    sbp_arena *arena;
    sbp_diag *diag;
    const char *program;
    unsigned phases;
    int argc;
    char *const *argv;
    sbp_options *o;
} parse_job;

static int32_t by_letter(char letter) {
    for (int32_t i = 0; i < SBP_COUNT(table); i++)
        if (table[i].letter == letter)
            return i;
    return -1;
}

static bool takes_no_value(const option_target *t) {
    return t->index >= 0 && !t->alias && table[t->index].kind == SBP_OPTION_SWITCH;
}

/* What it means alone, where it need not have a value; NULL: it must. */
static const char *value_alone(const option_target *t) {
    if (t->index >= 0 && t->alias && strncmp(t->alias, "{true=", 6) == 0)
        return "true"; /* a flag of TRL */
    if (t->reason || t->usual)
        return "true"; /* likewise: what takes its place is said below */
    return t->index >= 0 && strncmp(table[t->index].values, "on|off", 6) == 0 ? "on" : NULL;
}

/* Whether an argument is one more name of a list that is called as TRL calls it, which takes several:
 * `lora_target_modules q_proj v_proj`. A file or a name of the Hub is an argument of its own. */
static bool is_more(const option_target *t, const char *text) {
    static const char name[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.";
    return t->index >= 0 && t->alias && strncmp(table[t->index].name, "lora-", 5) == 0 &&
           table[t->index].kind == SBP_OPTION_LIST && text && *text && text[strspn(text, name)] == 0 &&
           !sbp_file_exists(text) && !sbp_directory_exists(text);
}

/* Of TRL's names that are nothing here: whether only a word like true is its value. */
static bool is_flag(const option_target *t) {
    const char *values = t->usual ? t->usual : t->reason ? t->accepted : "none";
    return strncmp(values, "true", 4) == 0 || strncmp(values, "false", 5) == 0;
}

/* One option at argv[*i]; moves *i behind its value. */
static sbp_status parse_option(parse_job *job, int *i) {
    sbp_options *o = job->o;
    const char *arg = job->argv[*i], *value = NULL, *word;
    option_setting setting = {.where = job->program};
    option_target target;
    (*i)++;
    if (arg[1] != '-') {
        setting.key = arg + 1;
        target = (option_target){.index = arg[2] ? -1 : by_letter(arg[1])};
    } else {
        const char *equals = strchr(arg, '=');
        size_t length = equals ? (size_t)(equals - arg) - 2 : strlen(arg) - 2;
        setting.key = sbp_arena_strndup(o->arena, arg + 2, length);
        target = sbp_options_find(setting.key, length);
        value = equals ? equals + 1 : NULL;
    }
    if (target.index < 0 && !target.reason && !target.usual) {
        const char *next = *i < job->argc ? job->argv[*i] : NULL;
        *i += !value && next && next[0] != '-'; /* most likely its value */
        return sbp_options_unknown(o, job->diag, &setting);
    }
    if (!value && takes_no_value(&target))
        value = "on";
    if (!value) {
        const char *next = *i < job->argc ? job->argv[*i] : NULL;
        if (next && strncmp(next, "--", 2) != 0 && (!is_flag(&target) || on_or_off(next, &word))) {
            value = next;
            (*i)++;
        } else {
            value = value_alone(&target);
        }
        if (!value)
            return sbp_fail(job->diag, SBP_USAGE, "%s: %s needs a value", job->program, arg);
    }
    SBP_TRY(sbp_options_assign(o, job->diag, &setting, &target, value));
    while (*i < job->argc && is_more(&target, job->argv[*i]))
        SBP_TRY(sbp_options_assign(o, job->diag, &setting, &target, job->argv[(*i)++]));
    return SBP_OK;
}

/* All that is wrong is said, not only what comes first. */
static sbp_status parse_arguments(parse_job *job) {
    bool only_args = false;
    sbp_status first = SBP_OK;
    for (int i = 0; i < job->argc;) {
        const char *arg = job->argv[i];
        if (only_args || arg[0] != '-' || arg[1] == 0) {
            SBP_PUSH(job->arena, job->o->args, job->o->arg_count, job->o->arg_capacity, arg);
            i++;
        } else if (strcmp(arg, "--") == 0) {
            only_args = true;
            i++;
        } else {
            sbp_status status = parse_option(job, &i);
            first = first == SBP_OK ? status : first;
        }
    }
    return first;
}

static sbp_status parse_body(void *user) {
    parse_job *job = user;
    sbp_options *o = SBP_NEW(job->arena, sbp_options);
    *o = (sbp_options){.arena = job->arena, .program = job->program, .phases = job->phases};
    o->values = SBP_NEW_ARRAY(job->arena, option_value, SBP_COUNT(table));
    job->o = o;
    for (int32_t i = 0; i < SBP_COUNT(table); i++) {
        o->values[i] = (option_value){.integer = -1, .number = NAN, .second = NAN};
        if (*table[i].fallback)
            SBP_TRY(sbp_options_set_default(o, job->diag, table[i].id, table[i].fallback));
    }
    SBP_TRY(parse_arguments(job));
    if (sbp_options_given(o, SBP_OPT_CONFIG) && !sbp_options_on(o, SBP_OPT_HELP))
        SBP_TRY(sbp_options_read_config(o, job->diag, sbp_options_text(o, SBP_OPT_CONFIG)));
    return sbp_options_settle(o, job->diag);
}

sbp_status sbp_options_parse(sbp_arena *arena, sbp_diag *diag, const char *program, unsigned phases, int argc,
                             char *const *argv, sbp_options **out) {
    parse_job job = {
        .arena = arena, .diag = diag, .program = program, .phases = phases, .argc = argc, .argv = argv};
    SBP_TRY(sbp_guard(arena, diag, parse_body, &job));
    *out = job.o;
    return SBP_OK;
}

/* ---- access ----------------------------------------------------------------------------------------- */

static const option_value *value_of(const sbp_options *o, sbp_option_id id, unsigned kinds) {
    assert(id < SBP_COUNT(table) && (kinds >> table[id].kind & 1));
    (void)kinds;
    return &o->values[id];
}

enum {
    ANY_KIND = ~0u >> 1,
    WHOLE = 1 << SBP_OPTION_INT | 1 << SBP_OPTION_SIZE,
    NUMERIC = 1 << SBP_OPTION_INT | 1 << SBP_OPTION_NUMBER | 1 << SBP_OPTION_ENUM,
    BOOLEAN = 1 << SBP_OPTION_ONOFF | 1 << SBP_OPTION_SWITCH
};

int32_t sbp_options_arg_count(const sbp_options *o) {
    return o->arg_count;
}

const char *sbp_options_arg(const sbp_options *o, int32_t index) {
    return o->args[index];
}

bool sbp_options_given(const sbp_options *o, sbp_option_id id) {
    return value_of(o, id, ANY_KIND)->given;
}

const char *sbp_options_from_config(const sbp_options *o, sbp_option_id id) {
    return value_of(o, id, ANY_KIND)->config;
}

const char *sbp_options_text(const sbp_options *o, sbp_option_id id) {
    return value_of(o, id, ANY_KIND)->text;
}

bool sbp_options_is(const sbp_options *o, sbp_option_id id, const char *word) {
    const char *text = sbp_options_text(o, id);
    return text && strcmp(text, word) == 0;
}

int64_t sbp_options_int(const sbp_options *o, sbp_option_id id) {
    return value_of(o, id, WHOLE)->integer;
}

double sbp_options_double(const sbp_options *o, sbp_option_id id) {
    const option_value *v = value_of(o, id, NUMERIC | BOOLEAN);
    bool is_number = NUMERIC >> table[id].kind & 1;
    return is_number ? v->number : sbp_options_on(o, id);
}

void sbp_options_pair(const sbp_options *o, sbp_option_id id, double out[2]) {
    const option_value *v = value_of(o, id, 1 << SBP_OPTION_PAIR);
    out[0] = v->number;
    out[1] = v->second;
}

bool sbp_options_on(const sbp_options *o, sbp_option_id id) {
    const option_value *v = value_of(o, id, BOOLEAN);
    return v->text && strcmp(v->text, "on") == 0;
}

int32_t sbp_options_list_count(const sbp_options *o, sbp_option_id id) {
    return value_of(o, id, 1 << SBP_OPTION_LIST)->count;
}

const char *sbp_options_list_at(const sbp_options *o, sbp_option_id id, int32_t index) {
    return value_of(o, id, 1 << SBP_OPTION_LIST)->list[index];
}

void sbp_options_replace(sbp_options *o, sbp_option_id id, int32_t index, const char *text) {
    o->values[id].list[index] = text;
}

const char *const *sbp_options_list(const sbp_options *o, sbp_arena *arena, sbp_option_id id,
                                    int32_t *count) {
    *count = sbp_options_list_count(o, id);
    const char **list = SBP_NEW_ARRAY(arena, const char *, *count);
    for (int32_t i = 0; i < *count; i++)
        list[i] = sbp_options_list_at(o, id, i);
    return list;
}

sbp_status sbp_options_set_default(sbp_options *o, sbp_diag *diag, sbp_option_id id, const char *text) {
    assert(id < SBP_COUNT(table) && table[id].kind != SBP_OPTION_LIST);
    option_setting setting = {.where = o->program, .key = table[id].name};
    value_check c = {.o = o, .diag = diag, .setting = &setting, .option = &table[id], .text = text};
    option_value fresh = {0};
    SBP_TRY(convert(&c, &fresh));
    if (!o->values[id].given)
        o->values[id] = fresh;
    return SBP_OK;
}

const sbp_option *sbp_options_next_given(const sbp_options *o, unsigned phases, unsigned not_phases,
                                         int32_t *at) {
    for (; *at < SBP_COUNT(table); (*at)++) {
        const sbp_option *option = &table[*at];
        if (o->values[*at].given && (option->phases & phases) && !(option->phases & not_phases)) {
            (*at)++;
            return option;
        }
    }
    return NULL;
}

void sbp_options_to_args(const sbp_options *o, unsigned phases, unsigned not_phases, sbp_arena *arena,
                         const char ***out, int32_t *count) {
    const sbp_option *option;
    int32_t at = 0, capacity = 0;
    *out = NULL;
    *count = 0;
    while ((option = sbp_options_next_given(o, phases, not_phases, &at))) {
        const option_value *v = &o->values[option - table];
        int32_t values = option->kind == SBP_OPTION_LIST ? v->count : 1;
        for (int32_t i = 0; i < values; i++) {
            const char *text = option->kind == SBP_OPTION_LIST ? v->list[i] : v->text;
            SBP_PUSH(arena, *out, *count, capacity, sbp_arena_printf(arena, "--%s=%s", option->name, text));
        }
    }
}
