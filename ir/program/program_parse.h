/* program_parse.h: what the two halves of the program parser share (program_parse.c reads declarations,
 * program_parse_code.c bodies, program_parse_names.c the names in both). Private to them. */
#ifndef SBP_IR_PROGRAM_PROGRAM_PARSE_H
#define SBP_IR_PROGRAM_PROGRAM_PARSE_H

#include "ir/base/lex.h"
#include "ir/program/program.h"

/* Buffers of one function (scope 0: of the program), as a list through parser.next_in_scope. */
typedef struct sbp_parser_scope {
    const char *name;
    int32_t first;
    int line;
} sbp_parser_scope;

typedef struct sbp_parser_part {
    int32_t buffer;
    const char *bucket;
    int line;
} sbp_parser_part;

typedef struct sbp_program_parser {
    sbp_lexer lexer;
    sbp_arena *arena;
    int name_line; /* of the latest name read */
    sbp_program *program;
    sbp_map buffers, scalars, tables, kernels, functions, scope_names;
    sbp_parser_scope *scopes; /* one per function that buffers name */
    int32_t scope_count, scope_capacity;
    int32_t *next_in_scope, next_count, next_capacity; /* per buffer */
    struct sbp_parser_part *parts;                     /* buffers that lie in others, which may come later */
    int32_t part_count, part_capacity;
    /* the function being read */
    const sbp_function *function;
    sbp_map formals, local_buffers;
} sbp_program_parser;

/* Names. The line of the latest one is kept, as the lexer stands behind it when it turns out to be wrong. */
sbp_status sbp_parser_name(sbp_program_parser *p, const char **out) SBP_CHECKED;
sbp_status sbp_parser_fail_name(sbp_program_parser *p, const char *what, const char *name);
/* The number of a name that must be in `map`. */
sbp_status sbp_parser_known_name(sbp_program_parser *p, const sbp_map *map, const char *what,
                                 int32_t *out) SBP_CHECKED;
/* An integer from least to most. */
sbp_status sbp_parser_int32(sbp_program_parser *p, int64_t least, int64_t most, int32_t *out) SBP_CHECKED;
/* One of `words`. */
sbp_status sbp_parser_word(sbp_program_parser *p, const char *const *words, int count, const char *what,
                           int *out) SBP_CHECKED;
bool sbp_parser_is_symbol(const sbp_lexer *lexer, sbp_symbol *out);
sbp_status sbp_parser_symbol(sbp_program_parser *p, sbp_symbol *out) SBP_CHECKED;

/* { node ... } */
sbp_status sbp_parser_body(sbp_program_parser *p, sbp_body *body) SBP_CHECKED;

#endif
