/* options_trl.c: names of TRL, its commands, and `env:` of its configs, by the table in trl.def. */
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

#include "ir/base/yaml.h"
#include "runtime/options/options_internal.h"

static const struct name {
    const char *name, *option, *values;
} names[] = {
#define NAME(name, option, values) {name, option, values},
#include "runtime/options/trl.def"
};

static const struct refused {
    const char *name, *accepted, *reason;
} refusals[] = {
#define REFUSED(name, accepted, reason) {name, accepted, reason},
#include "runtime/options/trl.def"
};

static const struct command {
    const char *name, *options, *reason;
} commands[] = {
#define COMMAND(name, options, reason) {name, options, reason},
#include "runtime/options/trl.def"
};

static const char *const may_be_set[] = {
#define ENVIRONMENT(name) name,
#include "runtime/options/trl.def"
};

static const char *const never_set[] = {
#define NO_ENVIRONMENT(pattern) pattern,
#include "runtime/options/trl.def"
};

bool sbp_options_refused_at(int32_t index, const char **name, const char **reason) {
    if (index >= SBP_COUNT(refusals))
        return false;
    *name = refusals[index].name;
    *reason = refusals[index].reason;
    return true;
}

/* The line of a name; NULL: there is none. */
static const struct name *find_name(const char *key, size_t length) {
    for (int i = 0; i < SBP_COUNT(names); i++)
        if (sbp_option_same_name(names[i].name, strlen(names[i].name), key, length))
            return &names[i];
    return NULL;
}

const char *sbp_options_trl_name_at(const sbp_option *option, int32_t index) {
    for (int i = 0; i < SBP_COUNT(names); i++)
        if (strcmp(names[i].option, option->name) == 0 && index-- == 0)
            return names[i].name;
    return NULL;
}

const char *sbp_options_trl_values(const char *key) {
    const struct name *name = find_name(key, strlen(key));
    return name ? name->values : NULL;
}

/* The line of the table, those of VALUE included; -1: there is none. */
static int32_t line_of(const char *key, size_t length) {
    for (int32_t i = 0; i < SBP_TRL_END; i++)
        if (sbp_option_same_name(sbp_option_at(i)->name, strlen(sbp_option_at(i)->name), key, length))
            return i;
    return -1;
}

option_target sbp_options_find(const char *key, size_t length) {
    const struct name *name = find_name(key, length);
    if (name)
        return (option_target){.index = line_of(name->option, strlen(name->option)), .alias = name->values};
    const int32_t line = line_of(key, length);
    if (line >= 0)
        return (option_target){.index = line};
    for (int i = 0; i < SBP_COUNT(refusals); i++)
        if (sbp_option_same_name(refusals[i].name, strlen(refusals[i].name), key, length))
            return (option_target){
                .index = -1, .accepted = refusals[i].accepted, .reason = refusals[i].reason};
    return (option_target){.index = -1, .usual = sbp_options_ignored(key, length)};
}

bool sbp_option_is_flag(const option_target *t) {
    const char *values = t->usual ? t->usual : t->reason ? t->accepted : "none";
    return strncmp(values, "true", 4) == 0 || strncmp(values, "false", 5) == 0;
}

bool sbp_option_is_boolean(const option_target *t) {
    if (t->index < 0)
        return sbp_option_is_flag(t);
    return sbp_option_at(t->index)->kind == SBP_OPTION_ONOFF ||
           sbp_option_at(t->index)->kind == SBP_OPTION_SWITCH || (t->alias && strstr(t->alias, "false=")) ||
           strncmp(sbp_option_at(t->index)->values, "on|off", 6) == 0;
}

sbp_status sbp_options_begin_command(sbp_arena *arena, sbp_diag *diag, int *argc, char *const **argv) {
    const struct command *command = NULL;
    const char *first = *argc > 0 ? **argv : "";
    for (int i = 0; i < SBP_COUNT(commands); i++)
        if (strcmp(commands[i].name, first) == 0)
            command = &commands[i];
    if (!command)
        return SBP_OK;
    if (!*command->options)
        return sbp_fail(diag, SBP_USAGE, "'%s' of TRL: %s", first, command->reason);
    char **list = NULL, *text = sbp_arena_strdup(arena, command->options);
    int32_t count = 0, capacity = 0;
    while (*text) { /* before what was typed, which wins */
        char *end = text + strcspn(text, " ");
        char *next = *end ? end + 1 : end;
        *end = 0;
        SBP_PUSH(arena, list, count, capacity, text);
        text = next;
    }
    for (int i = 1; i < *argc; i++)
        SBP_PUSH(arena, list, count, capacity, (*argv)[i]);
    SBP_PUSH(arena, list, count, capacity, NULL);
    *argc = count - 1;
    *argv = list;
    return SBP_OK;
}

static const struct {
    const char *name;
    bool pairs; /* its rows have two answers each */
} objectives[] = {
#define OBJECTIVE(name, function, pairs, ...) {name, pairs},
#include "frontends/objectives/objectives.def"
#undef OBJECTIVE
};

const char *sbp_options_objective_of_pairs(void) {
    int i = 0;
    while (i + 1 < SBP_COUNT(objectives) && !objectives[i].pairs)
        i++;
    return objectives[i].name;
}

bool sbp_options_wants_pairs(const sbp_options *o) {
    for (int i = 0; i < SBP_COUNT(objectives); i++)
        if (strcmp(o->values[SBP_OPT_OBJECTIVE].text, objectives[i].name) == 0)
            return objectives[i].pairs;
    return false;
}

/* ---- env: ------------------------------------------------------------------------------------------- */

static bool fits(const char *const *patterns, int count, const char *name) {
    for (int i = 0; i < count; i++)
        if (fnmatch(patterns[i], name, 0) == 0)
            return true;
    return false;
}

sbp_status sbp_options_take_environment(sbp_options *o, sbp_diag *diag, const char *path,
                                        const sbp_yaml *map) {
    sbp_status first = SBP_OK;
    if (map->kind != SBP_YAML_MAP)
        return map->kind == SBP_YAML_SCALAR && sbp_option_is_blank(map->text)
                   ? SBP_OK
                   : sbp_fail(diag, SBP_USAGE, "%s:%d: 'env': expected NAME: value below it", path,
                              (int)map->line);
    if (o->without_effect.length == 0)
        sbp_text_init(&o->without_effect, o->arena);
    for (int32_t i = 0; i < map->count; i++) {
        const sbp_yaml *member = &map->items[i];
        sbp_status status = SBP_OK;
        if (member->kind != SBP_YAML_SCALAR)
            status = sbp_fail(diag, SBP_USAGE, "%s:%d: 'env': %.60s: expected a single value", path,
                              (int)member->line, member->key);
        else if (fits(never_set, SBP_COUNT(never_set), member->key))
            status = sbp_fail(
                diag, SBP_USAGE,
                "%s:%d: 'env': %.60s is not set from a file, which could run any program by it: set it "
                "in the shell if it is meant",
                path, (int)member->line, member->key);
        else if (fits(may_be_set, SBP_COUNT(may_be_set), member->key)) {
            if (strcmp(member->key, "HF_ENDPOINT") == 0)
                sbp_warn(
                    diag,
                    "%s:%d: this file sets HF_ENDPOINT to '%.200s': what is fetched comes from there, and "
                    "what is sent goes there, your token of the Hub too",
                    path, (int)member->line, member->text);
            SBP_PUSH(o->arena, o->environment, o->environment_count, o->environment_capacity, *member);
        } else
            sbp_text_add(&o->without_effect, "%senv: %.60s", o->without_effect.length > 0 ? ", " : "",
                         member->key);
        first = first == SBP_OK ? status : first;
    }
    return first;
}

void sbp_options_set_environment(const sbp_options *o) {
    for (int32_t i = 0; i < o->environment_count; i++)
        (void)setenv(o->environment[i].key, o->environment[i].text, 1);
}
