/* exec_mem.h: addresses, for all that access memory. */
#ifndef SBP_TESTS_PTX_EXEC_MEM_H
#define SBP_TESTS_PTX_EXEC_MEM_H

#include "tests/ptx/machine.h"

// What an address operand gives in a lane.
uint64_t ptx_lane_address(const ptx_warp *w, const ptx_operand *o, int lane);
// Which space a generic address is in; the address becomes one of that space.
ptx_space ptx_resolve(ptx_space space, uint64_t *inout_address);
// An address of shared memory, from a shared or a generic one; anything else is a fault.
uint32_t ptx_shared_address(ptx_warp *w, const ptx_insn *i, int lane, uint64_t address);
// A space among the modifiers; PTX_GENERIC: none.
ptx_space ptx_take_space(ptx_mods *mods);
// Cache hints; true where there is an operand for one (.L2::cache_hint).
bool ptx_take_hints(ptx_mods *mods);

#endif
