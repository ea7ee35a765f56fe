/* conv_rows.h: what the rules of conv_rows and conv_rows_bwd share. */
#ifndef SBP_IR_PROGRAM_COMMANDS_CONV_ROWS_H
#define SBP_IR_PROGRAM_COMMANDS_CONV_ROWS_H

#include "ir/program/program_check.h"

/* Types and columns of x, w, first and state; w and first may be absent. */
sbp_status sbp_conv_check(const sbp_subject *s, int32_t x, int32_t w, int32_t first,
                          int32_t state) SBP_CHECKED;

#endif
