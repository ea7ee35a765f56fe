/* options_table.c: the table of options, and what its names and aliases stand for. */
#include <assert.h>
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
#define OPTION(id, name, letter, kind, phases, group, values, fallback, least, most, state, resume, help)    \
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
     help,                                                                                                   \
     SBP_OPT_NONE,                                                                                           \
     name},
#define KEY(id, name, bundle, key, kind, phases, values, fallback, least, most, resume, help)                \
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
     help,                                                                                                   \
     SBP_OPT_##bundle,                                                                                       \
     key},
#include "runtime/options/options.def"
#define VALUE(id, name, kind, phases, values, fallback, least, most, becomes)                                \
    {SBP_TRL_##id, name,  0,    SBP_OPTION_##kind,  phases,          GROUP_GENERAL, values,                  \
     fallback,     least, most, SBP_OPTION_PRIVATE, SBP_RESUME_SAME, becomes,       SBP_OPT_NONE,            \
     name},
#include "runtime/options/trl.def"
};

static const sbp_option_id settings[] = {
#define OPTION(id, ...) SBP_OPT_##id,
#define KEY OPTION
#include "frontends/objectives/settings.def"
#undef KEY
#undef OPTION
    SBP_OPT_ADAPTER};

static_assert(SBP_COUNT(table) == SBP_TRL_END, "a line each");

int32_t sbp_option_count(void) {
    return SBP_OPT_COUNT;
}

const sbp_option *sbp_option_at(int32_t index) {
    return &table[index];
}

const char *sbp_option_name(sbp_option_id id) {
    return table[id].name;
}

const sbp_option *sbp_option_find(const char *name) {
    for (int32_t i = 0; i < SBP_OPT_COUNT; i++)
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
