/* row_line.h: a row from a line of JSON, as the loader reads it. */
#ifndef SBP_TESTS_COMMON_ROW_LINE_H
#define SBP_TESTS_COMMON_ROW_LINE_H

#include "runtime/data/rows.h"
#include "runtime/data/source/source.h"

static inline sbp_status row_of_line(sbp_arena *arena, sbp_diag *diag, const char *where, const char *line,
                                     size_t length, const sbp_row_options *options, sbp_row_form *form,
                                     sbp_row *out) {
    const sbp_record record = {.where = where, .text = line, .length = length};
    const sbp_json *root;
    SBP_TRY(sbp_record_parse(&record, arena, diag, &root));
    return sbp_row_read(arena, diag, where, root, options, form, out);
}

#endif
