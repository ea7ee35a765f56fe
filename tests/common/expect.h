/* expect.h: what tests that hold diagnostics of their own ask of a status and of its message. */
#ifndef SBP_TESTS_COMMON_EXPECT_H
#define SBP_TESTS_COMMON_EXPECT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "ir/base/base.h"

/* Fails the test with the messages, unless all is well. */
static inline void expect_ok(sbp_diag *diag, sbp_status status) {
    if (status != SBP_OK)
        fail_msg("status %d: %s", (int)status, sbp_diag_text(diag, SBP_ERROR));
}

/* The errors so far say this; clears them. */
static inline void expect_text(sbp_diag *diag, const char *want) {
    const char *text = sbp_diag_text(diag, SBP_ERROR);
    if (!strstr(text, want))
        fail_msg("expected a message with '%s', got '%s'", want, text);
    sbp_diag_clear(diag);
}

#endif
