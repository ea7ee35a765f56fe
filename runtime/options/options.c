/* options.c: command lines. */
#include "runtime/options/options_internal.h"

#include <math.h>
#include <string.h>

#include "ir/base/file.h"

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
    SBP_TRY(sbp_options_take(o, job->diag, &setting, &target, value));
    while (*i < job->argc && is_more(&target, job->argv[*i]))
        SBP_TRY(sbp_options_take(o, job->diag, &setting, &target, job->argv[(*i)++]));
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
    o->values = SBP_NEW_ARRAY(job->arena, option_value, SBP_TRL_END);
    job->o = o;
    for (int32_t i = 0; i < SBP_TRL_END; i++) {
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
