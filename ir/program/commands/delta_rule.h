/* delta_rule.h: what the rules of delta_rule and delta_rule_bwd share. */
#ifndef SBP_IR_PROGRAM_COMMANDS_DELTA_RULE_H
#define SBP_IR_PROGRAM_COMMANDS_DELTA_RULE_H

#include "ir/program/command.h"

/* Where a command has what both have; q may be absent. */
typedef struct sbp_delta_operands {
    int32_t q, k, v, decay, beta, first, state, work;
} sbp_delta_operands;

void sbp_delta_rows(sbp_row_rules *rules, const sbp_delta_operands *at);
/* Attributes, types and columns. */
sbp_status sbp_delta_check(const sbp_subject *s, const sbp_delta_operands *at) SBP_CHECKED;
void sbp_delta_text(sbp_fields *fields);
/* Numbers of multiply-adds for a row of a head: d_k d_v times `squares`, and for half a block of rows each
 * `of_k` times d_k and `of_v` times d_v. */
void sbp_delta_work(const sbp_work_query *q, int32_t k, double squares, double of_k, double of_v,
                    sbp_work *out);

#endif
