/* args.c: argument lists of other programs. */
#include "ir/base/args.h"

sbp_args sbp_args_on(sbp_arena *arena) {
    return (sbp_args){.arena = arena};
}

void sbp_args_add(sbp_args *args, const char *word) {
    SBP_PUSH(args->arena, args->items, args->count, args->capacity, word);
}

void sbp_args_option(sbp_args *args, const char *option, const char *value) {
    sbp_args_add(args, sbp_arena_printf(args->arena, "%s=%s", option, value));
}

sbp_status sbp_args_operand(sbp_args *args, sbp_diag *diag, const char *what, const char *value) {
    if (!value || !*value || *value == '-')
        return sbp_fail(
            diag, SBP_INPUT,
            "%s is '%.200s', which a program that gets it takes for an option: it is not given to any", what,
            value ? value : "");
    sbp_args_add(args, value);
    return SBP_OK;
}

const char **sbp_args_end(sbp_args *args) {
    sbp_args_add(args, NULL);
    args->count--;
    return args->items;
}
