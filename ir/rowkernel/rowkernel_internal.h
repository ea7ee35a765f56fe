/* rowkernel_internal.h: what the files of this folder know of an instruction. Private to it. */
#ifndef SBP_IR_ROWKERNEL_ROWKERNEL_INTERNAL_H
#define SBP_IR_ROWKERNEL_ROWKERNEL_INTERNAL_H

#include "ir/rowkernel/rowkernel.h"

/* Operand number k (0 a, 1 b, 2 c) of an instruction. */
static inline int32_t instr_value(const sbp_rk_instr *instr, int k) {
    return k == 0 ? instr->a : k == 1 ? instr->b : instr->c;
}

/* How many of a, b, c an instruction uses. */
static inline int value_count(const sbp_rk_instr *instr) {
    switch (instr->op) {
    case SBP_RK_LOAD:
    case SBP_RK_CONST:
    case SBP_RK_SCALAR:
    case SBP_RK_INDEX:
        return 0;
    case SBP_RK_RANDOM:
        return instr->b >= 0 ? 3 : instr->a >= 0 ? 1 : 0; /* the stream; what stands for row and head */
    case SBP_RK_MAP:
        return sbp_rowop_arity(instr->map);
    case SBP_RK_INTEGER:
        return sbp_intop_arity(instr->integer);
    default:
        return 1;
    }
}

/* The axes and the length that a map, rounding or reduction has on account of its operands, which exist. */
void sbp_rowkernel_derive(const sbp_rowkernel *kernel, const sbp_rk_instr *instr, uint8_t *vary,
                          int64_t *length);

#endif
