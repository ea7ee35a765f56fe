/* tokenizer_testing.h: what tests of tokenizers share. */
#ifndef SBP_TESTS_UNIT_TOKENIZER_TESTING_H
#define SBP_TESTS_UNIT_TOKENIZER_TESTING_H

#include "frontends/formats/tokenizer/tokenizer.h"
#include "tests/unit/io_testing.h"

static inline const sbp_json *read_data(io_fixture *f, const char *path) {
    const sbp_json *root = NULL;
    assert_ok(f, sbp_json_read(f->arena, f->diag, path, 0, &root));
    return root;
}

static inline const sbp_tokenizer *load(io_fixture *f, const char *path) {
    const sbp_tokenizer *t = NULL;
    assert_ok(f, sbp_tokenizer_load(f->arena, f->diag, path, &t));
    return t;
}

#endif
