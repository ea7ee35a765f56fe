/* experts.h: what the rules of expert_order, expert_gemm and expert_gemm_dw share. */
#ifndef SBP_IR_PROGRAM_COMMANDS_EXPERTS_H
#define SBP_IR_PROGRAM_COMMANDS_EXPERTS_H

#include "ir/program/program_check.h"

/* Types of pairs and bounds, and that there are experts. */
sbp_status sbp_experts_check(const sbp_subject *s, int32_t pairs, int32_t bounds) SBP_CHECKED;
/* That rows of an operand can be cut into the slots of pairs. */
sbp_status sbp_experts_check_slots(const sbp_subject *s, int32_t operand, int32_t pairs,
                                   bool by_slot) SBP_CHECKED;

#endif
