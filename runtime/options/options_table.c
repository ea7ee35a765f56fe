/* options_table.c: the table of options, and what its names and aliases stand for. */
#include <stdlib.h>
#include <string.h>

#include "runtime/options/options_internal.h"

enum option_group {
#define GROUP(id, title) GROUP_##id,
#include "runtime/options/options.def"
    GROUP_COUNT
};

static const char *const group_titles[] = {
#define GROUP(id, title) title,
#include "runtime/options/options.def"
};

static const struct phase_title {
    unsigned bit;
    const char *title;
} phase_titles[] = {
#define PHASE(id, bit, title) {bit, title},
#include "runtime/options/options.def"
};

/* As the table calls phases. */
enum {
#define PHASE(id, bit, title) id = bit,
#include "runtime/options/options.def"
    ALL = SBP_PHASE_ALL
};

/* Words that other tables have. */
static const char values_of_backend[] = "auto"
#define BACKEND(name, title, is, without) "|" #name
#define UNLISTED(name, title, is, without) "|" #name "!"
#include "backends/backends.def"
    ;
static const char values_of_optimizer[] =
#define OPTIMIZER(id, name, text, states) text "|"
#include "passes/lower/optimizers.def"
#undef OPTIMIZER
    "none";

static const char objectives[] =
#define OBJECTIVE(name, function, pairs, ...) "|" name
#include "frontends/objectives/objectives.def"
#undef OBJECTIVE
    ;
#define values_of_objective (objectives + 1)
static const char schedules[] =
#define SCHEDULE(name, function, cycles, reads) "|" name
#include "runtime/options/schedules.def"
#undef SCHEDULE
    ;
#define values_of_schedule (schedules + 1)

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
     help,                                                                                                   \
     SBP_OPT_NONE,                                                                                           \
     name},
#define KEY(id, name, bundle, key, kind, phases, values, fallback, least, most, resume, aliases, help)       \
    {SBP_OPT_##id,                                                                                           \
     name,                                                                                                   \
     0,                                                                                                      \
     SBP_OPTION_##kind,                                                                                      \
     phases,                                                                                                 \
     GROUP_##bundle,                                                                                         \
     values,                                                                                                 \
     fallback,                                                                                               \
     least,                                                                                                  \
     most,                                                                                                   \
     SBP_OPTION_KEY,                                                                                         \
     SBP_RESUME_##resume,                                                                                    \
     aliases,                                                                                                \
     help,                                                                                                   \
     SBP_OPT_##bundle,                                                                                       \
     key},
#include "runtime/options/options.def"
};

static const sbp_option_id settings[] = {
#define OPTION(id, ...) SBP_OPT_##id,
#define KEY OPTION
#include "frontends/objectives/settings.def"
#undef KEY
#undef OPTION
    SBP_OPT_ADAPTER};

static const struct refused {
    const char *name, *accepted, *reason;
} refusals[] = {
#define REFUSED(name, accepted, reason) {name, accepted, reason},
#include "runtime/options/options.def"
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
    return index < SBP_COUNT(settings) ? &table[settings[index]] : NULL;
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
bool sbp_option_next_alias(const char **at, const char **name, size_t *length) {
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
    while (sbp_option_next_alias(&at, &name, &n))
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

bool sbp_option_is_flag(const option_target *t) {
    const char *values = t->usual ? t->usual : t->reason ? t->accepted : "none";
    return strncmp(values, "true", 4) == 0 || strncmp(values, "false", 5) == 0;
}

bool sbp_option_is_boolean(const option_target *t) {
    if (t->index < 0)
        return sbp_option_is_flag(t);
    return table[t->index].kind == SBP_OPTION_ONOFF || table[t->index].kind == SBP_OPTION_SWITCH ||
           (t->alias && strstr(t->alias, "false=")) || strncmp(table[t->index].values, "on|off", 6) == 0;
}
