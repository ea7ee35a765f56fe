/* args.h: argument lists of other programs. What a file or another person wrote goes into them by two ways
 * only, so that it is never taken for an option: behind an option's '=', in one word, or as an operand that
 * was looked at. Below a guard.
 */
#ifndef SBP_IR_BASE_ARGS_H
#define SBP_IR_BASE_ARGS_H

#include "ir/base/base.h"

typedef struct sbp_args {
    sbp_arena *arena;
    const char **items;
    int32_t count, capacity;
} sbp_args;

/* An empty list. */
sbp_args sbp_args_on(sbp_arena *arena);
/* A word of this program's own, or of its own command line. */
void sbp_args_add(sbp_args *args, const char *word);
/* "OPTION=VALUE", one word. */
void sbp_args_option(sbp_args *args, const char *option, const char *value);
/* A word that stands alone. SBP_INPUT: it is empty, or begins with '-'; what: what it should name, for the
 * message. */
sbp_status sbp_args_operand(sbp_args *args, sbp_diag *diag, const char *what, const char *value) SBP_CHECKED;
/* The words, with a NULL behind the last. */
const char **sbp_args_end(sbp_args *args);

#endif
