/* row_case.h: row kernels as cases of the suite: what the reference interpreter gives is expected. */
#ifndef SBP_TESTS_CONFORMANCE_ROW_CASE_H
#define SBP_TESTS_CONFORMANCE_ROW_CASE_H

#include "tests/conformance/conformance.h"

const char *row_case_text(suite_case *c);
/* Instructions of a kernel that round to 16 bits. */
int32_t row_case_rounds(const sbp_rowkernel *k);
/* Adds tensors for the operands of c->kernel, expects what the reference gives, and checks. alias: per
 * operand an earlier one whose memory it shares, -1 none; NULL: nothing is shared. */
void row_case_check(suite_case *c, const int32_t *alias);
/* Sets c->kernel. */
void row_case_parse(suite_case *c, const char *text);
/* A kernel by its text, as one case. */
void row_case_run(const char *text, int64_t rows, const int32_t *alias, uint64_t seed, double scalar);

#endif
