/* rowkernel_testing.h: what tests of row kernels begin with: an arena, diagnostics, kernels from
 * text and back. */
#ifndef SBP_TESTS_UNIT_ROWKERNEL_TESTING_H
#define SBP_TESTS_UNIT_ROWKERNEL_TESTING_H

#include "ir/base/lex.h"
#include "ir/rowkernel/rowkernel.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct fixture {
    sbp_arena *arena;
    sbp_diag *diag;
} fixture;

static inline int set_up(void **state) {
    fixture *f = calloc(1, sizeof *f);
    f->arena = sbp_arena_create();
    f->diag = sbp_diag_create();
    *state = f;
    return f->arena && f->diag ? 0 : -1;
}

static inline int tear_down(void **state) {
    fixture *f = *state;
    sbp_arena_destroy(f->arena);
    sbp_diag_destroy(f->diag);
    free(f);
    return 0;
}

static inline sbp_status parse(fixture *f, const char *text, size_t length, sbp_rowkernel **out) {
    sbp_lexer lexer;
    SBP_TRY(sbp_lexer_init(&lexer, f->arena, f->diag, "test", text, length));
    return sbp_rowkernel_parse(&lexer, f->arena, out);
}

static inline sbp_status parse_verified(fixture *f, const char *text, sbp_rowkernel **out) {
    SBP_TRY(parse(f, text, strlen(text), out));
    return sbp_rowkernel_verify(*out, f->diag);
}

static inline sbp_rowkernel *parse_ok(fixture *f, const char *text) {
    sbp_rowkernel *kernel = NULL;
    if (parse_verified(f, text, &kernel) != SBP_OK)
        fail_msg("%s", sbp_diag_text(f->diag, SBP_NOTE));
    return kernel;
}

static inline const char *print(fixture *f, const sbp_rowkernel *kernel) {
    sbp_text text;
    sbp_text_init(&text, f->arena);
    sbp_rowkernel_print(&text, kernel);
    return text.data;
}

#endif
