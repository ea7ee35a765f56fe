/* jsonl.h: files of rows, line by line.
 *
 * Threads: none of this keeps state.
 */
#ifndef SBP_RUNTIME_DATA_JSONL_H
#define SBP_RUNTIME_DATA_JSONL_H

#include "ir/base/base.h"

/* Calls `visit` with every line of a file that is not blank ("-": standard input), without its end; `line`
 * counts from 1. Stops at the first status that is not SBP_OK. */
typedef sbp_status (*sbp_line_visitor)(void *user, const char *path, int64_t line, const char *text,
                                       size_t length);
sbp_status sbp_lines_read(sbp_diag *diag, const char *path, sbp_line_visitor visit, void *user) SBP_CHECKED;

#endif
