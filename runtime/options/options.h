/* options.h: the options of sbpc and sbprun, from the table in options.def: parsing command lines and config
 * files, resolved values, --help and the table of the README.
 *
 * Names. '_' equals '-'; names of TRL with the same meaning are aliases, those with another are refused with
 * the reason. `--name value` and `--name=value` are the same; a switch alone means on. The last of several
 * values on the command line wins, except for lists, which collect them. "--" ends the options.
 *
 * Bundles. `--loss grpo,epsilon=0.2,delta=3` sets the option --objective and two keys, which are options too
 * (SBP_OPT_EPSILON): the value is cut at commas, "\," is a comma of a key's value. Of two bundles each key
 * counts for itself, the later wins; a list of the later one takes the place of the other's. The names that
 * keys had as options (--epsilon) are read, with a note. In files: `loss: {objective: grpo, epsilon: 0.2}`,
 * or the same text.
 *
 * Config files. JSON or YAML: values, lists, and maps where TRL has them (lr_scheduler_kwargs, env). null,
 * none and nothing leave the default. All keys that are wrong are said at once. Settings of TRL without
 * effect here (trl.def) are named in one note. Options of another command are skipped, so that one file
 * serves sbpc and sbprun; the command line wins.
 *
 * Errors: SBP_USAGE for whatever is wrong with names and values, with the nearest name; SBP_INPUT for bad
 * JSON, SBP_IO for a config file that cannot be read. Asking for another kind than an option has is a bug and
 * asserts.
 *
 * Ownership. Everything lives in the arena given to parse. Threads: parsed options may be read by many.
 */
#ifndef SBP_RUNTIME_CLI_OPTIONS_OPTIONS_H
#define SBP_RUNTIME_CLI_OPTIONS_OPTIONS_H

#include "ir/base/base.h"

#define SBP_ABOVE_ZERO 2.2250738585072014e-308 /* least normal double */
#define SBP_BELOW_ONE 0x1.fffffffffffffp-1     /* greatest double below 1 */

typedef enum sbp_phase {
#define PHASE(id, bit, title) SBP_PHASE_##id = bit,
#include "runtime/options/options.def"
    SBP_PHASE_ALL = 255
} sbp_phase;

typedef enum sbp_option_kind {
    SBP_OPTION_TEXT,
    SBP_OPTION_LIST,
    SBP_OPTION_INT,
    SBP_OPTION_NUMBER,
    SBP_OPTION_SIZE,
    SBP_OPTION_PAIR,
    SBP_OPTION_ENUM,
    SBP_OPTION_ONOFF,
    SBP_OPTION_SWITCH,
    SBP_OPTION_BUNDLE /* nothing but keys, which have the values */
} sbp_option_kind;

typedef enum sbp_option_state {
    SBP_OPTION_BUILT,
    SBP_OPTION_KEY, /* of a bundle */
    SBP_OPTION_HIDDEN,
    SBP_OPTION_PRIVATE,
    SBP_OPTION_LATER
} sbp_option_state;

/* What --resume does with another value than the run began with (options.def). */
typedef enum sbp_option_resume {
    SBP_RESUME_SAME,
    SBP_RESUME_OF_THE_SCHEDULE,
    SBP_RESUME_MAY_CHANGE,
    SBP_RESUME_OF_A_START
} sbp_option_resume;

/* The options by name: SBP_OPT_SEQ_LEN is --seq-len. */
typedef enum sbp_option_id {
#define OPTION(id, ...) SBP_OPT_##id,
#define KEY(id, ...) SBP_OPT_##id,
#include "runtime/options/options.def"
    SBP_OPT_COUNT,
    /* Values of TRL that are put together, which are no options. */
    SBP_TRL_BEFORE = SBP_OPT_COUNT - 1,
#define VALUE(id, ...) SBP_TRL_##id,
#include "runtime/options/trl.def"
    SBP_TRL_END,
    SBP_OPT_NONE
} sbp_option_id;

/* A line of the table. */
typedef struct sbp_option {
    sbp_option_id id;
    const char *name;
    char letter;
    sbp_option_kind kind;
    unsigned phases;
    int group;
    const char *values, *fallback;
    double least, most;
    sbp_option_state state;
    sbp_option_resume resume;
    const char *help;
    sbp_option_id bundle; /* whose key it is; SBP_OPT_NONE: of none */
    const char *key;      /* its name there, "epsilon_high" */
} sbp_option;

int32_t sbp_option_count(void);
const sbp_option *sbp_option_at(int32_t index);
/* "seq-len" */
const char *sbp_option_name(sbp_option_id id);
/* The option of this name, not of an alias; NULL: there is none. */
const sbp_option *sbp_option_find(const char *name);
/* As one types it: "--lr", "--loss epsilon". Below a guard. */
const char *sbp_option_typed(sbp_arena *arena, const sbp_option *option);

/* The option that is a setting of objectives under this name of a scalar ("epsilon_high"); NULL: none. Index
 * counts through all of them instead: 0, 1, .. */
const sbp_option *sbp_option_setting(const char *scalar);
const sbp_option *sbp_option_setting_at(int32_t index);

/* Word number `index` of the values of an ENUM, from 0 on, in the arena; NULL: there are fewer.
 * Below a guard. */
const char *sbp_option_word(sbp_arena *arena, const sbp_option *option, int32_t index);

typedef struct sbp_options sbp_options;
struct sbp_json;        /* ir/base/json.h */
struct sbp_json_writer; /* ir/base/json_write.h */

/* argv: what follows the command, argc of them; not copied, like everything that is text here. Accepts
 * options of any of `phases`; `program` is for messages. Needs no guard. */
sbp_status sbp_options_parse(sbp_arena *arena, sbp_diag *diag, const char *program, unsigned phases, int argc,
                             char *const *argv, sbp_options **out) SBP_CHECKED;

/* TRL's command, where the arguments begin with one: `sft --config x.yaml`; what it stands for takes its
 * place. SBP_USAGE: it is one that is not there; below a guard. */
sbp_status sbp_options_begin_command(sbp_arena *arena, sbp_diag *diag, int *argc,
                                     char *const **argv) SBP_CHECKED;
/* Sets the variables that a config file named under `env:`, as far as it may (trl.def). */
void sbp_options_set_environment(const sbp_options *options);

/* Whether the rows of --objective have two answers each. */
bool sbp_options_wants_pairs(const sbp_options *options);
/* The first objective whose rows do, for messages. */
const char *sbp_options_objective_of_pairs(void);

/* Name number `index` of TRL for an option, from 0 on; NULL: there are fewer. */
const char *sbp_options_trl_name_at(const sbp_option *option, int32_t index);
/* Names of TRL without effect here, one after the other; NULL after the last. */
const char *sbp_options_ignored_at(int32_t index);

/* Sets --batch-size from per_device_train_batch_size and gradient_accumulation_steps, where these were given,
 * and `ranks`; says so in a note. Below a guard. */
sbp_status sbp_options_settle_batch(sbp_options *options, sbp_diag *diag, int64_t ranks) SBP_CHECKED;

/* Arguments that are no options. */
int32_t sbp_options_arg_count(const sbp_options *options);
const char *sbp_options_arg(const sbp_options *options, int32_t index);

/* Given on the command line or in a config file. */
bool sbp_options_given(const sbp_options *options, sbp_option_id id);
/* Given, and not a mere default that a config file repeats (such as the options of a run.json). Below a
 * guard. */
bool sbp_options_chosen(const sbp_options *options, sbp_option_id id);
/* Given as a key of a bundle, or as its word. */
bool sbp_options_from_bundle(const sbp_options *options, sbp_option_id id);
/* The config file that an option came from; NULL: the command line, or not given. */
const char *sbp_options_from_config(const sbp_options *options, sbp_option_id id);
/* The value as it would be typed; NULL when there is none. */
const char *sbp_options_text(const sbp_options *options, sbp_option_id id);
/* Whether the value is this word ("auto"). */
bool sbp_options_is(const sbp_options *options, sbp_option_id id, const char *word);
/* INT and SIZE; -1 when there is none, or a word. */
int64_t sbp_options_int(const sbp_options *options, sbp_option_id id);
/* NUMBER and INT; NaN when there is none, or a word. ONOFF: 1 or 0. ENUM: which of the words, from 0. */
double sbp_options_double(const sbp_options *options, sbp_option_id id);
/* PAIR. */
void sbp_options_pair(const sbp_options *options, sbp_option_id id, double out[2]);
/* ONOFF and SWITCH. */
bool sbp_options_on(const sbp_options *options, sbp_option_id id);
/* LIST. */
int32_t sbp_options_list_count(const sbp_options *options, sbp_option_id id);
const char *sbp_options_list_at(const sbp_options *options, sbp_option_id id, int32_t index);

/* All of them. Below a guard. */
const char *const *sbp_options_list(const sbp_options *options, sbp_arena *arena, sbp_option_id id,
                                    int32_t *count);

/* Another text in place of one of a LIST. */
void sbp_options_replace(sbp_options *options, sbp_option_id id, int32_t index, const char *text);
/* One more of a LIST, as if it had been given. */
void sbp_options_append(sbp_options *options, sbp_option_id id, const char *text);

/* Another default than the table's, for what was not given; checked like any value. Below a guard. */
sbp_status sbp_options_set_default(sbp_options *options, sbp_diag *diag, sbp_option_id id,
                                   const char *text) SBP_CHECKED;

/* Options that a command of TRL has other values of, and that nobody gave, count as not given: a run that
 * goes on has its own. Below a guard. */
sbp_status sbp_options_forget_usual(sbp_options *options, sbp_diag *diag) SBP_CHECKED;

/* Takes a member of a JSON object, called as an option is, as a line of a config file `path`, for an option
 * that was not given. Below a guard. */
sbp_status sbp_options_inherit(sbp_options *options, sbp_diag *diag, const char *path,
                               const struct sbp_json *member) SBP_CHECKED;
/* Whether the value is this one, as write_json wrote it; NULL and null: there is none. Below a guard. */
bool sbp_options_same(const sbp_options *options, const sbp_option *option, const struct sbp_json *value);

/* The phases that they were parsed for. */
unsigned sbp_options_phases(const sbp_options *options);
/* The options given that belong to one of `phases` and to none of `not_phases`: one line of the table after
 * the other; NULL after the last. *at begins as 0. */
const sbp_option *sbp_options_next_given(const sbp_options *options, unsigned phases, unsigned not_phases,
                                         int32_t *at);
/* The same as arguments "--name=value", by the names that keys have without their bundle, into the arena:
 * what plans keep and what is looked through by name. Below a guard. */
void sbp_options_to_args(const sbp_options *options, unsigned phases, unsigned not_phases, sbp_arena *arena,
                         const char ***out, int32_t *count);
/* Such arguments as one types them, keys in their bundles: for who starts a program by them, or prints them.
 * *count gets less where keys come together. Below a guard. */
void sbp_options_spell(sbp_arena *arena, const char **args, int32_t *count);
/* "r=16,alpha=32": the keys of a bundle that were given; its word, where none was. Below a guard. */
const char *sbp_options_bundle(const sbp_options *options, sbp_option_id bundle);

/* ---- text ------------------------------------------------------------------------------------------- */

/* The options of the phases, in groups, aligned, with defaults. Below a guard, as all of these. */
void sbp_options_print_help(sbp_text *out, unsigned phases);
/* What --help prints of the options of a command: those that people look for first, with examples; with
 * `topic` the name of a group ("lora"), that group of all `phases`; with "all", all groups of these. */
void sbp_options_print_topic(sbp_text *out, sbp_phase command, unsigned phases, const char *topic);
/* Whether it is the name of a group that has options of these. */
bool sbp_options_is_topic(unsigned phases, const char *topic);
/* A line of FIRST: its option and example; false behind the last. */
bool sbp_option_first_at(int32_t index, sbp_phase *command, const char **name, const char **example);
/* Usage with examples, and what rows of data may hold. */
extern const char sbp_help_of_export[], sbp_help_of_check[];
extern const char sbp_gguf_server[]; /* what serves a GGUF file, with an adapter */
extern const char sbp_help_of_sbprun[], sbp_help_of_rows[];
/* A Markdown table per command. */
void sbp_options_print_markdown(sbp_text *out);
/* What is installed beside a program: a manual page, completion of a shell. */
typedef enum sbp_page { SBP_PAGE_MAN, SBP_PAGE_BASH, SBP_PAGE_ZSH, SBP_PAGE_FISH } sbp_page;
void sbp_options_print_page(sbp_text *out, sbp_page page, const char *program);
/* "sbpc", "sbprun"; NULL behind the last. */
const char *sbp_options_program_at(int32_t index);
/* Whether runs and plans keep its value: what write_json writes. */
bool sbp_option_is_kept(const sbp_option *option);
/* Members of an open object: the resolved values of all options of the phases, numbers as numbers, on and off
 * as booleans, lists as arrays, what has no value as null; keys of bundles by the names that they have
 * without these. */
void sbp_options_write_json(struct sbp_json_writer *w, const sbp_options *options, unsigned phases);
/* The same as a config file may have it: keys in the maps of their bundles,
 * "schedule": {"type": .., "min_lr": ..}. */
void sbp_options_write_config(struct sbp_json_writer *w, const sbp_options *options, unsigned phases);
/* The value of an option in such members, or as write_json wrote it; NULL: there is none. Below a guard. */
const struct sbp_json *sbp_options_member(sbp_arena *arena, const struct sbp_json *members,
                                          const sbp_option *option);

#endif
