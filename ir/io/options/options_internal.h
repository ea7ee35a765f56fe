/* options_internal.h: what options.c (command line, values), options_config.c (files) and options_help.c
 * (text) share. */
#ifndef SBP_IR_IO_OPTIONS_OPTIONS_INTERNAL_H
#define SBP_IR_IO_OPTIONS_OPTIONS_INTERNAL_H

#include "ir/io/options/options.h"

/* A value, checked and converted. */
typedef struct option_value {
    bool given;
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
    option_value *values; /* by line of the table */
    const char **args;
    int32_t arg_count, arg_capacity;
};

/* One assignment on its way: who speaks ("sbprun" or "FILE:LINE"), the key as typed. */
typedef struct option_setting {
    const char *where;
    const char *config; /* NULL: the command line */
    const char *key;
} option_setting;

/* A key resolved: to a line of the table, or to what an alias says. */
typedef struct option_target {
    int32_t index;        /* of the table; -1: unknown */
    const char *alias;    /* the alias' own text, behind its name; NULL when the key is the name itself */
    const char *accepted; /* of a refused name, else NULL */
    const char *reason;
} option_target;

option_target sbp_options_find(const char *key, size_t length);
/* Checks `text` and puts it in. Below a guard. */
sbp_status sbp_options_assign(sbp_options *o, sbp_diag *diag, const option_setting *setting,
                              const option_target *target, const char *text) SBP_CHECKED;
/* SBP_USAGE: nobody knows this key; names the nearest. */
sbp_status sbp_options_unknown(sbp_options *o, sbp_diag *diag, const option_setting *setting);
/* All of a file, for options that the command line does not give. Below a guard. */
sbp_status sbp_options_read_config(sbp_options *o, sbp_diag *diag, const char *path) SBP_CHECKED;

/* Walks alternatives: the part of `values` at *at, without its '!'; false at the end. */
bool sbp_option_alternative(const char *values, const char **at, const char **begin, size_t *length,
                            bool *later);
/* Whether an alternative stands for a value to be read, like N. */
bool sbp_option_is_placeholder(const char *begin, size_t length);
const char *sbp_option_group_title(int group);
int sbp_option_group_count(void);
/* "sbpc compile" */
const char *sbp_phase_title(unsigned phases);

#endif
