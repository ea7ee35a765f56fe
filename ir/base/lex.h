/* lex.h: the tokens of the text forms (graph, kernels, programs). Text is untrusted: every function
 * reports errors as "NAME:LINE: ..." in the diagnostics and returns SBP_INPUT. */
#ifndef SBP_IR_BASE_LEX_H
#define SBP_IR_BASE_LEX_H

#include "ir/base/types.h"

typedef enum sbp_token {
    SBP_TOKEN_END,
    SBP_TOKEN_NAME,   /* letters, digits, _ . $, not beginning with a digit */
    SBP_TOKEN_STRING, /* quoted */
    SBP_TOKEN_INT,
    SBP_TOKEN_FLOAT,
    SBP_TOKEN_PUNCT /* one character */
} sbp_token;

typedef struct sbp_lexer {
    sbp_arena *arena;
    sbp_diag *diag;
    const char *name; /* of the text, for messages */
    const char *at, *end;
    int line;
    sbp_token token;  /* the current token */
    const char *text; /* its characters, NUL-terminated; as long as the arena (name, string, punct) */
    int64_t integer;
    double number;                 /* INT and FLOAT */
    struct sbp_lexer_words *words; /* copies of a lexer share them */
} sbp_lexer;

/* Positions the lexer on the first token. `#` starts a comment to the end of the line. */
sbp_status sbp_lexer_init(sbp_lexer *lexer, sbp_arena *arena, sbp_diag *diag, const char *name,
                          const char *text, size_t length) SBP_CHECKED;
sbp_status sbp_lexer_next(sbp_lexer *lexer) SBP_CHECKED;
sbp_status sbp_lexer_fail(sbp_lexer *lexer, const char *format, ...) SBP_PRINTF(2, 3);

bool sbp_lexer_is(const sbp_lexer *lexer, const char *text); /* a name or punctuation with this text */
/* Moves on when the token is `text`. */
sbp_status sbp_lexer_accept(sbp_lexer *lexer, const char *text, bool *accepted) SBP_CHECKED;
sbp_status sbp_lexer_expect(sbp_lexer *lexer, const char *text) SBP_CHECKED;
sbp_status sbp_lexer_name(sbp_lexer *lexer, const char **out) SBP_CHECKED; /* a name or a string */
sbp_status sbp_lexer_int(sbp_lexer *lexer, int64_t *out) SBP_CHECKED;
sbp_status sbp_lexer_double(sbp_lexer *lexer, double *out) SBP_CHECKED; /* inf, -inf and nan too */
sbp_status sbp_lexer_dtype(sbp_lexer *lexer, sbp_dtype *out) SBP_CHECKED;
sbp_status sbp_lexer_type(sbp_lexer *lexer, sbp_type *out) SBP_CHECKED;
sbp_status sbp_lexer_extent(sbp_lexer *lexer, sbp_extent *out) SBP_CHECKED;

#endif
