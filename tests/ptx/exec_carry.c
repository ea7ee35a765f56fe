/* Integers in several words ("Extended-Precision Integer Arithmetic Instructions"): add.cc, addc, sub.cc,
 * subc, mad.cc and madc, which hand on a carry (or borrow) by a flag of each lane. */
#include "tests/ptx/decode.h"
#include "tests/ptx/machine.h"

#include <string.h>

enum { ADD = 1, SUB, MAD_LO, MAD_HI };

static unsigned __int128 product(const ptx_insn *i, uint64_t a, uint64_t b) {
    if (ptx_type_kind(i->type) != 's') {
        return (unsigned __int128)a * b;
    }
    const bool narrow = i->elem_bytes == 4;
    return (unsigned __int128)((__int128)(narrow ? (int32_t)a : (int64_t)a) *
                               (narrow ? (int32_t)b : (int64_t)b));
}

// i->flag: takes the carry; i->flag2: leaves one.
static void exec_carry(ptx_warp *w, const ptx_insn *i, uint32_t mask) {
    const int bits = 8 * i->elem_bytes;
    const uint64_t all = UINT64_MAX >> (64 - bits);
    PTX_EACH_LANE(l, mask) {
        uint64_t a = ptx_lane_value(w, i->src[0], i->elem_bytes, (int)l) & all;
        uint64_t b = ptx_lane_value(w, i->src[1], i->elem_bytes, (int)l) & all;
        if (i->form >= MAD_LO) {
            a = (uint64_t)(product(i, a, b) >> (i->form == MAD_HI ? bits : 0)) & all;
            b = ptx_lane_value(w, i->src[2], i->elem_bytes, (int)l) & all;
        }
        const unsigned __int128 carry = i->flag ? w->carry >> l & 1 : 0;
        const unsigned __int128 result =
            i->form == SUB ? (unsigned __int128)a - b - carry : (unsigned __int128)a + b + carry;
        ptx_lane_set(w, i->dst, i->elem_bytes, (int)l, (uint64_t)result & all);
        if (i->flag2) {
            w->carry = (w->carry & ~(1U << l)) | (uint32_t)(result >> bits & 1) << l;
        }
    }
}

void ptx_decode_carry(ptx_parser *p, ptx_insn *i, ptx_mods *mods) {
    const ptx_type type = ptx_one_type(p, i, mods);
    const char *name = mods->opcode;
    const bool mad = strncmp(name, "mad", 3) == 0, low = mad && ptx_take(mods, "lo"),
               high = mad && ptx_take(mods, "hi");
    i->flag = name[3] == 'c';
    i->flag2 = ptx_take(mods, "cc");
    i->form = (uint8_t)(low ? MAD_LO : high ? MAD_HI : name[0] == 's' ? SUB : ADD);
    const int bytes = ptx_type_bytes(type);
    if ((mad && !low && !high) || (bytes != 4 && bytes != 8) || ptx_type_kind(type) == 'f') {
        ptx_refuse(p, "unknown instruction %s", i->name);
    }
    ptx_need_ops(p, i, 3 + mad, 3 + mad);
    i->type = (uint8_t)type;
    i->elem_bytes = (uint8_t)bytes;
    i->dst = ptx_target(p, &i->op[0], bytes);
    for (int k = 0; k < 2 + mad; k++) {
        i->src[k] = ptx_source(p, &i->op[1 + k], type);
    }
    ptx_use_exec(i, exec_carry, PTX_CLASS_INTEGER, 1);
}
