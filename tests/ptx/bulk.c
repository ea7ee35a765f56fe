/* cp.async.bulk and cp.reduce.async.bulk, linear and of tensors. */
#include "tests/ptx/decode.h"
#include "tests/ptx/exec_mem.h"
#include "tests/ptx/machine.h"
#include "tests/ptx/tensor/formats.h"
#include "tests/ptx/tensor/tma.h"

#include <stdlib.h>

enum { REDUCE_ADD = 1, REDUCE_MIN, REDUCE_MAX, REDUCE_AND, REDUCE_OR, REDUCE_XOR, REDUCE_INC, REDUCE_DEC };

// Operands of one form: their numbers.
typedef struct {
    int shared, global, size, barrier;
} roles;

// ---- pieces -----------------------------------------------------------------------------------------------

// A copy as pieces: of 16 bytes of a tensor, or one of all that is linear.
typedef struct {
    uint32_t shared;
    uint64_t global;
    uint32_t bytes, skip; // in the tensor; bytes of the piece before them
} piece;

static uint32_t piece_count(const ptx_copy *c) {
    return c->map ? c->bytes / 16 : 1;
}

static piece piece_at(const ptx_copy *c, uint32_t index) {
    if (!c->map) {
        return (piece){c->shared, c->global, c->bytes, 0};
    }
    const sbp_ptx_tma_piece t = sbp_ptx_tma_piece_at(c->map, c->corner, c->shared, index);
    return (piece){t.shared, t.global + (uint64_t)t.first, (uint32_t)(t.end - t.first), (uint32_t)t.first};
}

void ptx_load_done(ptx_block *b, ptx_copy *c) {
    uint8_t *data = b->shared.data;
    ptx_mbarrier *m = ptx_mbarrier_find(b, c->barrier);
    if (!m) {
        ptx_fail(b->launch, "line %d: %s: there is no mbarrier at 0x%x any more", c->insn->line,
                 c->insn->name, c->barrier);
    }
    for (uint32_t k = 0; k < piece_count(c); k++) {
        const piece t = piece_at(c, k);
        if (c->map) {
            memset(data + t.shared, 0, 16);
        }
        const void *from = t.bytes ? sbp_ptx_memory_host(b->launch->memory, t.global, t.bytes) : data;
        if (from) {
            memmove(data + t.shared + t.skip, from, t.bytes);
        }
    }
    ptx_shared_write_done(b, c->shared, c->bytes, b->launch->threads + (uint32_t)m->agent, true);
    ptx_mbarrier_agent(b, m, c->insn->line);
    ptx_mbarrier_update(b, m, 0, c->bytes, NULL);
}

static void reduce_one(ptx_type type, int op, uint8_t *to, const uint8_t *from) {
    const int bytes = ptx_type_bytes(type);
    if (type == PTX_f32 || type == PTX_f64) {
        if (type == PTX_f32) {
            float x, y;
            memcpy(&x, to, 4);
            memcpy(&y, from, 4);
            x += y;
            memcpy(to, &x, 4);
        } else {
            double x, y;
            memcpy(&x, to, 8);
            memcpy(&y, from, 8);
            x += y;
            memcpy(to, &x, 8);
        }
        return;
    }
    uint64_t old = 0, b = 0;
    memcpy(&old, to, (size_t)bytes);
    memcpy(&b, from, (size_t)bytes);
    if (type == PTX_f16 || type == PTX_bf16) {
        const sbp_ptx_type number = type == PTX_f16 ? SBP_PTX_F16 : SBP_PTX_BF16;
        const double x = sbp_ptx_value(number, old), y = sbp_ptx_value(number, b);
        const double r = op == REDUCE_ADD   ? sbp_ptx_add_odd(x, y)
                         : op == REDUCE_MIN ? (y < x ? y : x)
                                            : (y > x ? y : x);
        old = sbp_ptx_round(number, r, SBP_PTX_RN, 0);
    } else {
        const bool is_signed = ptx_type_kind(type) == 's';
        const bool less =
            is_signed ? (bytes == 4 ? (int32_t)b < (int32_t)old : (int64_t)b < (int64_t)old) : b < old;
        old = op == REDUCE_ADD   ? old + b
              : op == REDUCE_MIN ? (less ? b : old)
              : op == REDUCE_MAX ? (less ? old : b)
              : op == REDUCE_AND ? old & b
              : op == REDUCE_OR  ? old | b
                                 : old ^ b;
    }
    memcpy(to, &old, (size_t)bytes);
}

void ptx_store_move(ptx_warp *w, ptx_copy *c) {
    if (c->moved) {
        return;
    }
    c->moved = true;
    for (uint32_t k = 0; k < piece_count(c); k++) {
        const piece t = piece_at(c, k);
        uint8_t *to = t.bytes ? sbp_ptx_memory_host(w->launch->memory, t.global, t.bytes) : NULL;
        const uint8_t *from = w->block->shared.data + t.shared + t.skip;
        if (to && !c->reduce) {
            memcpy(to, from, t.bytes);
        }
        for (uint32_t n = 0; to && c->reduce && n < t.bytes; n += (uint32_t)ptx_type_bytes(c->type)) {
            reduce_one(c->type, c->reduce, to + n, from + n);
        }
    }
    ptx_progress(w->launch);
}

void ptx_store_done(ptx_warp *w, ptx_copy *c) {
    for (uint32_t k = 0; k < piece_count(c); k++) {
        const piece t = piece_at(c, k);
        if (t.bytes) {
            ptx_global_done(w, c->thread % PTX_LANES, t.global, t.bytes, c->reduce != 0);
        }
    }
    (void)ptx_tick(w->launch);
}

// ---- instructions -----------------------------------------------------------------------------------------

// The tensor map of an operand, and where in the tensor.
static void take_map(ptx_warp *w, const ptx_insn *i, int lane, const ptx_operand *o, ptx_copy *c) {
    uint64_t address = ptx_lane_address(w, o, lane);
    const ptx_space space = ptx_resolve(PTX_GENERIC, &address);
    const sbp_ptx_tensor_map *map = NULL;
    if (address % 64) {
        ptx_fault(w, i, lane, "the tensor map's address 0x%llx is no multiple of 64",
                  (unsigned long long)address);
    }
    if (space == PTX_PARAM && address + sizeof *map <= w->entry->param_bytes) {
        map = (const void *)(w->launch->params + address);
    } else if (space == PTX_GLOBAL) {
        map = (const void *)ptx_global_access(w, i, lane, address, sizeof *map, 64, PTX_READ, NULL);
    }
    const char *fault =
        map ? sbp_ptx_tensor_map_fault(map) : "it is in no parameter and not in global memory";
    if (fault) {
        ptx_fault(w, i, lane, "no tensor map: %s", fault);
    }
    if (map->rank != o->count) {
        ptx_fault(w, i, lane, "a tensor map of %d dimensions", map->rank);
    }
    c->map = map;
    c->bytes = 16 * sbp_ptx_tma_pieces(map);
    for (int d = 0; d < o->count; d++) {
        const ptx_operand *x = &o->parts[d];
        c->corner[d] =
            x->kind == PTX_INTEGER ? (int32_t)x->value : (int32_t)ptx_lane_value(w, x->place, 4, lane);
    }
}

static void take_linear(ptx_warp *w, const ptx_insn *i, int lane, const roles *r, ptx_copy *c) {
    uint64_t address = ptx_lane_address(w, &i->op[r->global], lane);
    if (ptx_resolve(PTX_GENERIC, &address) != PTX_GLOBAL) {
        ptx_fault(w, i, lane, "0x%llx is no address of global memory", (unsigned long long)address);
    }
    c->global = address;
    c->bytes = (uint32_t)ptx_lane_value(w, i->src[0], 4, lane);
    if (address % 16 || c->bytes % 16 || c->bytes == 0) {
        ptx_fault(w, i, lane,
                  "a bulk copy of %u bytes at global address 0x%llx: both must be multiples of 16", c->bytes,
                  (unsigned long long)address);
    }
}

static void take_operands(ptx_warp *w, const ptx_insn *i, int lane, const roles *r, ptx_copy *c) {
    if (i->flag) {
        take_map(w, i, lane, &i->op[r->global], c);
    } else {
        take_linear(w, i, lane, r, c);
    }
    c->shared = ptx_shared_address(w, i, lane, ptx_lane_address(w, &i->op[r->shared], lane));
    ptx_shared_bounds(w, i, lane, c->shared, c->bytes, i->flag ? 128 : 16);
}

static void exec_load(ptx_warp *w, const ptx_insn *i, uint32_t mask) {
    const roles *r = i->more;
    PTX_EACH_LANE(l, mask) {
        ptx_copy c = {0};
        take_operands(w, i, (int)l, r, &c);
        c.barrier = ptx_shared_address(w, i, (int)l, ptx_lane_address(w, &i->op[r->barrier], (int)l));
        (void)ptx_mbarrier_at(w, i, (int)l, c.barrier);
        for (uint32_t k = 0; k < piece_count(&c); k++) {
            const piece t = piece_at(&c, k);
            if (t.bytes) {
                (void)ptx_global_async(w, i, (int)l, t.global, t.bytes, false, false, NULL);
            }
        }
        ptx_shared_async_write(w, i, (int)l, c.shared, c.bytes, true);
        ptx_copy *kept = ptx_copy_add(w, i, (int)l, PTX_COPY_LOAD);
        kept->map = c.map;
        kept->global = c.global;
        kept->shared = c.shared;
        kept->bytes = c.bytes;
        kept->barrier = c.barrier;
        memcpy(kept->corner, c.corner, sizeof c.corner);
    }
}

static ptx_type element_of(const sbp_ptx_tensor_map *map) {
    switch (map->type) {
    case SBP_PTX_TMA_F16:
        return PTX_f16;
    case SBP_PTX_TMA_BF16:
        return PTX_bf16;
    case SBP_PTX_TMA_F32:
        return PTX_f32;
    case SBP_PTX_TMA_U32:
        return PTX_u32;
    case SBP_PTX_TMA_S32:
        return PTX_s32;
    case SBP_PTX_TMA_U64:
        return PTX_u64;
    default:
        return PTX_NO_TYPE;
    }
}

static void exec_store(ptx_warp *w, const ptx_insn *i, uint32_t mask) {
    const roles *r = i->more;
    PTX_EACH_LANE(l, mask) {
        ptx_copy c = {0};
        take_operands(w, i, (int)l, r, &c);
        ptx_shared_async_read(w, i, (int)l, c.shared, c.bytes, true);
        c.type = i->type;
        if (i->form && c.map) {
            c.type = (uint8_t)element_of(c.map);
            if (c.type == PTX_NO_TYPE) {
                ptx_unable(w, i, "reductions of this type of tensor");
            }
        }
        for (uint32_t k = 0; k < piece_count(&c); k++) {
            const piece t = piece_at(&c, k);
            if (t.bytes) {
                const uint8_t *data = i->form ? NULL : w->block->shared.data + t.shared + t.skip;
                (void)ptx_global_async(w, i, (int)l, t.global, t.bytes, true, i->form != 0, data);
            }
        }
        ptx_copy *kept = ptx_copy_add(w, i, (int)l, PTX_COPY_STORE);
        kept->map = c.map;
        kept->global = c.global;
        kept->shared = c.shared;
        kept->bytes = c.bytes;
        kept->type = c.type;
        kept->reduce = i->form;
        memcpy(kept->corner, c.corner, sizeof c.corner);
        if (!i->form) { // at once: neither end may be touched until somebody waits
            ptx_store_move(w, kept);
        }
    }
}

static void exec_prefetch(ptx_warp *w, const ptx_insn *i, uint32_t mask) {
    (void)w;
    (void)i;
    (void)mask;
}

// ---- decoder ----------------------------------------------------------------------------------------------

// .shared::cluster.global or .global.shared::cta: true when shared memory comes first.
static bool take_direction(ptx_parser *p, const ptx_insn *i, ptx_mods *mods) {
    for (int m = 0; m < mods->count; m++) {
        if (strncmp(mods->mods[m], "shared", 6) == 0 || strcmp(mods->mods[m], "global") == 0) {
            const bool to_shared = mods->mods[m][0] == 's';
            const bool both = ptx_take(mods, "global") &&
                              (ptx_take(mods, "shared::cluster") || ptx_take(mods, "shared::cta"));
            if (!both || ptx_take(mods, "shared::cluster") || ptx_take(mods, "shared::cta")) {
                break;
            }
            return to_shared;
        }
    }
    ptx_refuse(p, "unknown form of %s", i->name);
}

static void need_coordinates(ptx_parser *p, const ptx_insn *i, const ptx_operand *o, int rank) {
    (void)ptx_address_register(p, o);
    if (o->count != rank) {
        ptx_refuse(p, "%s with %d coordinates", i->name, o->count);
    }
    for (int d = 0; d < rank; d++) {
        const ptx_operand *x = &o->parts[d];
        if (x->kind != PTX_INTEGER && (x->kind != PTX_REGISTER || x->bytes != 4)) {
            ptx_refuse(p, "%s: a coordinate must be an integer of 32 bits", i->name);
        }
    }
}

void ptx_decode_bulk(ptx_parser *p, ptx_insn *i, ptx_mods *mods, bool reduce) {
    static const char *const ranks[] = {"1d", "2d", "3d", "4d", "5d", NULL};
    static const char *const ops[] = {"add", "min", "max", "and", "or", "xor", "inc", "dec", NULL};
    i->flag = ptx_take(mods, "tensor");
    const bool prefetch = ptx_take(mods, "prefetch");
    const int rank = i->flag ? ptx_take_one(mods, ranks) : 0;
    (void)ptx_take(mods, "tile");
    const bool hint = ptx_take_hints(mods);
    if (prefetch) {
        mods->count = 0;
        ptx_use_exec(i, exec_prefetch, PTX_CLASS_ASYNC, 0);
        return;
    }
    if (i->flag && !rank) {
        ptx_refuse(p, "unknown form of %s", i->name);
    }
    const bool to_shared = take_direction(p, i, mods);
    const bool multicast = ptx_take(mods, "multicast::cluster");
    const bool ending =
        to_shared ? ptx_take(mods, "mbarrier::complete_tx::bytes") : ptx_take(mods, "bulk_group");
    (void)ptx_take(mods, "noftz");
    i->form = (uint8_t)(reduce ? ptx_take_one(mods, ops) : 0);
    i->type = (uint8_t)(mods->type_count ? mods->types[0] : PTX_NO_TYPE);
    const bool typed = reduce && !i->flag;
    if (!ending || (reduce && (!i->form || i->form >= REDUCE_INC || to_shared)) ||
        mods->type_count != typed) {
        ptx_refuse(p, "unknown form of %s", i->name);
    }
    roles *r = ptx_parser_alloc(p, sizeof *r);
    *r = (roles){
        .shared = to_shared ? 0 : 1, .global = to_shared ? 1 : 0, .size = 2, .barrier = i->flag ? 2 : 3};
    const int count = 2 + !i->flag + to_shared;
    ptx_need_ops(p, i, count, count + hint + multicast);
    (void)ptx_address_register(p, &i->op[r->shared]);
    (void)ptx_address_register(p, &i->op[r->global]);
    if (i->flag) {
        need_coordinates(p, i, &i->op[r->global], rank);
    } else {
        i->src[0] = ptx_source(p, &i->op[r->size], PTX_u32);
    }
    if (to_shared) {
        (void)ptx_address_register(p, &i->op[r->barrier]);
    }
    i->more = r;
    ptx_use_exec(i, to_shared ? exec_load : exec_store, PTX_CLASS_ASYNC, 0);
}
