/* options_internal.h: what options.c (command lines), options_config.c (files), options_assign.c and
 * options_access.c (values), options_settle.c (settings put together), options_words.c (names and values) and
 * options_help.c (text) share. */
#ifndef SBP_RUNTIME_CLI_OPTIONS_OPTIONS_INTERNAL_H
#define SBP_RUNTIME_CLI_OPTIONS_OPTIONS_INTERNAL_H

#include "ir/base/yaml.h"
#include "runtime/options/options.h"

/* A value, checked and converted. */
typedef struct option_value {
    bool given;
    bool left;          /* to its default, by null or none */
    bool noted;         /* that it is a key now */
    bool usual;         /* nobody said it: a command of TRL has it */
    const void *bundle; /* where it is from one: which; NULL: it is from none */
    const char *config; /* the file it came from */
    const char *text;   /* NULL: none */
    int64_t integer;    /* -1: none, or a word */
    double number, second;
    const char **list;
    int32_t count, capacity;
} option_value;

struct sbp_options {
    sbp_arena *arena;
    const char *program;
    unsigned phases;
    bool trl;             /* a command of TRL */
    option_value *values; /* by line of the table */
    const char **args;
    int32_t arg_count, arg_capacity;
    const char *half; /* who asked for weights in fp16, which TRL has beside bf16: true; NULL: nobody */
    bool settled;     /* nothing more is read of files */
    sbp_text without_effect; /* names of TRL, for a note */
    sbp_text unknown;        /* keys of files that nobody knows, likewise */
    const char **notes;      /* what was taken for something else */
    int32_t note_count, note_capacity;
    struct option_name {
        const char *note;
        bool of_file;
    } * names; /* keys of bundles that were given as options */
    int32_t name_count, name_capacity;
    bool file_of_trl;      /* whose keys these are: other programs read it as it is */
    sbp_yaml *environment; /* what a config sets */
    int32_t environment_count, environment_capacity;
};

/* One assignment on its way: who speaks ("sbprun" or "FILE:LINE"), the key as typed. */
typedef struct option_setting {
    const char *where;
    const char *config; /* NULL: the command line */
    const char *key;
    bool strict;        /* a key that nobody knows is an error, whatever file it is of */
    const void *bundle; /* of a key: its text or map, by which bundles are told apart */
} option_setting;

/* A key of a bundle with its value. */
typedef struct option_piece {
    sbp_option_id option;
    const char *key; /* for messages: "loss epsilon" */
    const char *value;
} option_piece;

typedef struct option_pieces {
    option_piece *items;
    int32_t count, capacity;
} option_pieces;

/* A key resolved: to a line of the table, or to what an alias says. */
typedef struct option_target {
    int32_t index;        /* of the table; -1: unknown */
    const char *alias;    /* the alias' own text, behind its name; NULL when the key is the name itself */
    const char *accepted; /* of a refused name, else NULL */
    const char *reason;
    const char *usual; /* of a name without effect, else NULL */
} option_target;

/* What a name of TRL says of values (NAME in trl.def); NULL: it is none. */
const char *sbp_options_trl_values(const char *key);
/* Whether only a word like true is the value of one of TRL's names that have no effect here. */
bool sbp_option_is_flag(const option_target *target);
/* Whether it is on or off, so that --no_NAME turns it off. */
bool sbp_option_is_boolean(const option_target *target);
/* "no_NAME": false where NAME is no boolean. */
bool sbp_options_find_negated(const char *key, option_target *out);
/* "--name" on the command line, plain in a file. Below a guard. */
const char *sbp_option_shown(const sbp_options *o, const option_setting *setting, const char *name);
/* A word that the option knows besides what it reads. */
bool sbp_option_is_word(const sbp_option *option, const char *text);
/* on, off and their other names; *word: as the table has it. */
bool sbp_option_on_or_off(const char *text, const char **word);
/* Text by the option's kind into a value that holds nothing yet. Below a guard. */
sbp_status sbp_option_convert(sbp_options *o, sbp_diag *diag, const option_setting *setting,
                              const sbp_option *option, const char *text, option_value *out) SBP_CHECKED;
/* For a name without effect: values that are not worth a word; NULL: the name is none of these. */
const char *sbp_options_ignored(const char *key, size_t length);
/* Remembers a name whose value has no effect, unless the value is the usual one. Below a guard. */
void sbp_options_say_ignored(sbp_options *o, const option_setting *setting, const char *usual,
                             const char *text);
/* After all has been read: the note on what has no effect, and settings that are put together. Below a guard.
 */
sbp_status sbp_options_settle(sbp_options *o, sbp_diag *diag) SBP_CHECKED;
/* None, null, ~, {}, [] or nothing: the default. */
bool sbp_option_is_blank(const char *text);
/* Whether the value leaves the default: a blank one, where that is no word of the option, or one that an
 * alias maps to nothing. Below a guard. */
bool sbp_options_leaves_default(sbp_options *o, const option_setting *setting, const option_target *target,
                                const char *text);
/* A line of REFUSED; false behind the last. */
bool sbp_options_refused_at(int32_t index, const char **name, const char **reason);
/* '_' equals '-'. */
bool sbp_option_same_name(const char *name, size_t name_length, const char *key, size_t length);
bool sbp_option_read_number(const char *text, double *out);
/* Equal as text without case, or as numbers. */
bool sbp_option_same_value(const char *a, size_t length, const char *b);
/* Whether it is one of the values, separated by '|'. */
bool sbp_option_accepts(const char *values, const char *text);

/* Whether it has keys. */
bool sbp_option_is_bundle(sbp_option_id id);
/* Key number `index` of a bundle, and the option that it sets; NULL behind the last. */
const char *sbp_option_key_at(sbp_option_id bundle, int32_t index, sbp_option_id *option);
/* By its name, or by the name that it has as an option; SBP_OPT_NONE: there is none. */
sbp_option_id sbp_option_find_key(sbp_option_id bundle, const char *key, size_t length);
/* "grpo,epsilon=0.2" in pieces; SBP_USAGE: it is none. Below a guard. */
sbp_status sbp_options_cut(sbp_options *o, sbp_diag *diag, const option_setting *setting,
                           sbp_option_id bundle, const char *text, option_pieces *out) SBP_CHECKED;
/* What keys of a bundle say though it is not written: --lora r=8 is --lora on. Below a guard. */
void sbp_options_imply(sbp_option_id bundle, sbp_arena *arena, option_pieces *out);
/* SBP_USAGE, with the keys that there are. Below a guard. */
sbp_status sbp_options_unknown_key(sbp_options *o, sbp_diag *diag, const option_setting *setting,
                                   sbp_option_id bundle, const char *key);
/* Remembers a note where a key was given by the name that it had as an option. Below a guard. */
void sbp_options_note_name(sbp_options *o, const option_setting *setting, const sbp_option *option,
                           const char *text);

option_target sbp_options_find(const char *key, size_t length);
/* Checks `text` and puts it in. Below a guard. */
sbp_status sbp_options_assign(sbp_options *o, sbp_diag *diag, const option_setting *setting,
                              const option_target *target, const char *text) SBP_CHECKED;
/* The nearest of `count` names, NULL when none is near. Below a guard. */
const char *sbp_option_nearest_of(sbp_arena *arena, const char *key, const char *const *names, int32_t count);
/* A key that nobody knows: SBP_USAGE, with the nearest; of a file, a word in a note, where none is near. */
sbp_status sbp_options_unknown(sbp_options *o, sbp_diag *diag, const option_setting *setting);
/* All of a file, for options that the command line does not give. Below a guard. */
sbp_status sbp_options_read_config(sbp_options *o, sbp_diag *diag, const char *path) SBP_CHECKED;

/* `env:` of a config: variables that may be set are kept; SBP_USAGE: one that never is. Below a guard. */
sbp_status sbp_options_take_environment(sbp_options *o, sbp_diag *diag, const char *path,
                                        const sbp_yaml *map) SBP_CHECKED;
/* sbp_options_assign; of a map whose members are options (--lr_scheduler_kwargs '{"num_cycles": 2}') each of
 * them. Below a guard. */
sbp_status sbp_options_take(sbp_options *o, sbp_diag *diag, const option_setting *setting,
                            const option_target *target, const char *text) SBP_CHECKED;

/* Walks alternatives: the part of `values` at *at, without the '!' of what is taken but not shown (*hidden);
 * false at the end. */
bool sbp_option_alternative(const char *values, const char **at, const char **begin, size_t *length,
                            bool *hidden);
/* Whether an alternative stands for a value to be read, like N. */
bool sbp_option_is_placeholder(const char *begin, size_t length);
const char *sbp_option_group_title(int group);
/* Its name, a topic of --help: "LORA". */
const char *sbp_option_group_topic(int group);
int sbp_option_group_count(void);
/* "sbpc compile" */
const char *sbp_phase_title(unsigned phases);
/* "N|auto": the values without those that are not built, in the arena. Below a guard. */
const char *sbp_option_values(sbp_arena *arena, const sbp_option *option, const char *separator);

/* A command of a program, for pages. */
typedef struct option_command {
    const char *program, *command; /* "sbprun", "tokenize"; "": what the program does without one */
    unsigned phases, shown;        /* whose options it takes; those that are its own */
    const char *usage, *what;
} option_command;

/* NULL behind the last. */
const option_command *sbp_option_command_at(const char *program, int32_t index);
void sbp_options_print_man(sbp_text *out, const char *program);

#endif
