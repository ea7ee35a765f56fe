/* options.c: command lines, what values and aliases stand for, and access to what was given. */
#include "runtime/options/options_internal.h"

#include <assert.h>
#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "ir/base/file.h"

/* ---- words that stand for several options ------------------------------------------------------------ */

static const struct {
    const char *name, *word, *value, *others;
} elsewhere[] = {
#define ELSEWHERE(name, word, value, others) {name, word, value, others},
#include "runtime/options/options.def"
};

/* "state-dtype=int8": where it was not given otherwise. */
static sbp_status take_other(sbp_options *o, sbp_diag *diag, const option_setting *s, const char *other,
                             sbp_text *said) {
    const char *value = strchr(other, '=') + 1;
    const sbp_option *option =
        sbp_option_find(sbp_arena_strndup(o->arena, other, (size_t)(value - 1 - other)));
    const option_target target = {.index = (int32_t)option->id};
    if (!(option->phases & o->phases) || o->values[option->id].given)
        return SBP_OK;
    sbp_text_add(said, " --%s %s", option->name, value);
    return sbp_options_assign(o, diag, s, &target, value);
}

static sbp_status take_elsewhere(sbp_options *o, sbp_diag *diag, const option_setting *s,
                                 const sbp_option *option, const char **text) {
    int line = 0;
    sbp_text said;
    for (; line < SBP_COUNT(elsewhere); line++)
        if (strcmp(elsewhere[line].name, option->name) == 0 &&
            sbp_option_same_name(elsewhere[line].word, strlen(elsewhere[line].word), *text, strlen(*text)))
            break;
    if (line == SBP_COUNT(elsewhere))
        return SBP_OK;
    sbp_text_init(&said, o->arena);
    sbp_text_add(&said, "%s %s: taken as --%s %s", sbp_option_shown(o, s, s->key), *text, option->name,
                 elsewhere[line].value);
    char *others = sbp_arena_strdup(o->arena, elsewhere[line].others), *rest = others;
    for (char *other; (other = strtok_r(rest, " ", &rest));)
        SBP_TRY(take_other(o, diag, s, other, &said));
    *text = elsewhere[line].value;
    SBP_PUSH(o->arena, o->notes, o->note_count, o->note_capacity, said.data);
    return SBP_OK;
}

/* ---- values ----------------------------------------------------------------------------------------- */

static sbp_status put(sbp_options *o, sbp_diag *diag, const option_setting *s, int32_t index,
                      const char *text) {
    const sbp_option *option = sbp_option_at(index);
    option_value *v = &o->values[index];
    if (option->id == SBP_OPT_DTYPE && sbp_option_same_name("float16", 7, text, strlen(text))) {
        o->half = sbp_arena_printf(o->arena, "%s: %s float16", s->where, sbp_option_shown(o, s, s->key));
        return SBP_OK;
    }
    SBP_TRY(take_elsewhere(o, diag, s, option, &text));
    if (option->kind == SBP_OPTION_LIST) {
        v->given = true;
        v->config = s->config;
        v->text = text;
        SBP_PUSH(o->arena, v->list, v->count, v->capacity, text);
        return SBP_OK;
    }
    option_value fresh = {.given = true, .config = s->config};
    SBP_TRY(sbp_option_convert(o, diag, s, option, text, &fresh));
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
        if ((sbp_option_at(other.index)->phases & o->phases) && !o->values[other.index].given)
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
    const sbp_option *option = t->index >= 0 ? sbp_option_at(t->index) : NULL;
    if (!option || (!s->config && !t->alias))
        return false;
    bool leaves = (t->alias && !*map_value(o->arena, t->alias, text)) ||
                  (sbp_option_is_blank(text) && !sbp_option_is_word(option, text));
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
                   : sbp_fail(diag, SBP_USAGE, "%s: %s: %s", s->where, sbp_option_shown(o, s, s->key),
                              t->reason);
    if (t->index < 0)
        return sbp_options_unknown(o, diag, s);
    const sbp_option *option = sbp_option_at(t->index);
    if (!(option->phases & o->phases))
        return s->config ? SBP_OK /* for the other program */
                         : sbp_fail(diag, SBP_USAGE, "%s: %s is an option of %s", s->where,
                                    sbp_option_shown(o, s, s->key), sbp_phase_title(option->phases));
    if (option->state == SBP_OPTION_LATER)
        return sbp_fail(diag, SBP_USAGE, "%s: %s is not supported yet", s->where,
                        sbp_option_shown(o, s, s->key));
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
    while (sbp_option_next_alias(&at, &name, &n)) /* TRL's word for it may be ours, with other values */
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
    for (int32_t i = 0; i < sbp_option_count(); i++)
        if (sbp_option_at(i)->letter == letter)
            return i;
    return -1;
}

static bool takes_no_value(const option_target *t) {
    return t->index >= 0 && !t->alias && sbp_option_at(t->index)->kind == SBP_OPTION_SWITCH;
}

/* What it means alone, where it need not have a value; NULL: it must. */
static const char *value_alone(const option_target *t) {
    if (t->index >= 0 && t->alias && strncmp(t->alias, "{true=", 6) == 0)
        return "true"; /* a flag of TRL */
    if (t->reason || t->usual)
        return "true"; /* likewise: what takes its place is said below */
    return t->index >= 0 && strncmp(sbp_option_at(t->index)->values, "on|off", 6) == 0 ? "on" : NULL;
}

/* Whether an argument is one more name of a list that is called as TRL calls it, which takes several:
 * `lora_target_modules q_proj v_proj`. A file or a name of the Hub is an argument of its own. */
static bool is_more(const option_target *t, const char *text) {
    static const char name[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.";
    return t->index >= 0 && t->alias && strncmp(sbp_option_at(t->index)->name, "lora-", 5) == 0 &&
           sbp_option_at(t->index)->kind == SBP_OPTION_LIST && text && *text &&
           text[strspn(text, name)] == 0 && !sbp_file_exists(text) && !sbp_directory_exists(text);
}

static bool is_unknown(const option_target *t) {
    return t->index < 0 && !t->reason && !t->usual;
}

/* One option at argv[*i]; moves *i behind its value. */
static sbp_status parse_option(parse_job *job, int *i) {
    sbp_options *o = job->o;
    const char *arg = job->argv[*i], *value = NULL, *word;
    option_setting setting = {.where = job->program};
    option_target target;
    bool negated = false;
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
        negated = is_unknown(&target) && sbp_options_find_negated(setting.key, &target);
    }
    if (negated && value)
        return sbp_fail(job->diag, SBP_USAGE, "%s: --%s takes no value", job->program, setting.key);
    if (is_unknown(&target)) {
        const char *next = *i < job->argc ? job->argv[*i] : NULL;
        *i += !value && next && next[0] != '-'; /* most likely its value */
        return sbp_options_unknown(o, job->diag, &setting);
    }
    if (negated)
        value = target.index >= 0 && !target.alias ? "off" : "false";
    if (!value && takes_no_value(&target))
        value = "on";
    if (!value) {
        const char *next = *i < job->argc ? job->argv[*i] : NULL;
        if (next && strncmp(next, "--", 2) != 0 &&
            (!sbp_option_is_flag(&target) || sbp_option_on_or_off(next, &word))) {
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
    o->values = SBP_NEW_ARRAY(job->arena, option_value, sbp_option_count());
    job->o = o;
    for (int32_t i = 0; i < sbp_option_count(); i++) {
        o->values[i] = (option_value){.integer = -1, .number = NAN, .second = NAN};
        if (*sbp_option_at(i)->fallback)
            SBP_TRY(sbp_options_set_default(o, job->diag, sbp_option_at(i)->id, sbp_option_at(i)->fallback));
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

static const sbp_option *option_of(sbp_option_id id) {
    return sbp_option_at((int32_t)id);
}

static const option_value *value_of(const sbp_options *o, sbp_option_id id, unsigned kinds) {
    assert((int32_t)id < sbp_option_count() && (kinds >> option_of(id)->kind & 1));
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
    bool is_number = NUMERIC >> option_of(id)->kind & 1;
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
    assert((int32_t)id < sbp_option_count() && option_of(id)->kind != SBP_OPTION_LIST);
    option_setting setting = {.where = o->program, .key = option_of(id)->name};
    option_value fresh = {0};
    SBP_TRY(sbp_option_convert(o, diag, &setting, option_of(id), text, &fresh));
    if (!o->values[id].given)
        o->values[id] = fresh;
    return SBP_OK;
}

const sbp_option *sbp_options_next_given(const sbp_options *o, unsigned phases, unsigned not_phases,
                                         int32_t *at) {
    for (; *at < sbp_option_count(); (*at)++) {
        const sbp_option *option = sbp_option_at(*at);
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
        const option_value *v = &o->values[option->id];
        int32_t values = option->kind == SBP_OPTION_LIST ? v->count : 1;
        for (int32_t i = 0; i < values; i++) {
            const char *text = option->kind == SBP_OPTION_LIST ? v->list[i] : v->text;
            SBP_PUSH(arena, *out, *count, capacity, sbp_arena_printf(arena, "--%s=%s", option->name, text));
        }
    }
}
