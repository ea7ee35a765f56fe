/* decode.h: the decoders of ops.def. Each takes the modifiers that it knows from *mods. */
#ifndef SBP_TESTS_PTX_DECODE_H
#define SBP_TESTS_PTX_DECODE_H

#include "tests/ptx/module.h"

typedef void ptx_decode_fn(ptx_parser *p, ptx_insn *i, ptx_mods *mods);

ptx_decode_fn ptx_decode_arith, ptx_decode_approx, ptx_decode_setp, ptx_decode_selp, ptx_decode_slct,
    ptx_decode_bra, ptx_decode_mov, ptx_decode_set, ptx_decode_bfi, ptx_decode_testp, ptx_decode_brx,
    ptx_decode_leave, ptx_decode_trap, ptx_decode_call, ptx_decode_sleep, ptx_decode_hint,
    ptx_decode_setmaxnreg, ptx_decode_createpolicy, ptx_decode_cvta, ptx_decode_isspacep, ptx_decode_mapa,
    ptx_decode_cvt, ptx_decode_ld, ptx_decode_st, ptx_decode_discard, ptx_decode_atom, ptx_decode_fence,
    ptx_decode_shfl, ptx_decode_vote, ptx_decode_match, ptx_decode_activemask, ptx_decode_redux,
    ptx_decode_elect, ptx_decode_ldmatrix, ptx_decode_stmatrix, ptx_decode_mma, ptx_decode_bar,
    ptx_decode_mbarrier, ptx_decode_cp, ptx_decode_wgmma, ptx_decode_carry;

// An instruction that `exec` executes; `writes` operands from the first are written.
void ptx_use_exec(ptx_insn *i, ptx_exec_fn *exec, ptx_class class, int writes);
// The one type of an instruction.
ptx_type ptx_one_type(ptx_parser *p, const ptx_insn *i, const ptx_mods *mods);
// A comparison such as "lt" among the modifiers, taken; with unsigned names ("lo") as the usual ones.
const char *ptx_take_comparison(ptx_mods *mods);
// The comparison of two operands of a type.
ptx_compare_fn *ptx_comparison(ptx_parser *p, const ptx_insn *i, const char *name, ptx_type type);
// A source register, exactly of `bytes`, or an immediate made into lanes.
uint32_t ptx_address_register(ptx_parser *p, const ptx_operand *o);
// Scope and semantics of strong operations: into i->scope and i->sem.
void ptx_take_sem(ptx_insn *i, ptx_mods *mods, int otherwise);
bool ptx_take_scope(ptx_insn *i, ptx_mods *mods);

#endif
