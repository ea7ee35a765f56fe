/* What the lanes of a warp do together: shuffles, votes, ldmatrix, stmatrix, mma. */
#include "tests/ptx/decode.h"
#include "tests/ptx/exec_mem.h"
#include "tests/ptx/machine.h"
#include "tests/ptx/tensor/matrix.h"
#include "tests/ptx/tensor/mma.h"

/* The lanes of `mask` whose members (a register or number of each) are all here; the others wait. 0: none. A
 * lane that is no member of its own mask is a fault. */
static uint32_t gathered(ptx_warp *w, const ptx_insn *i, uint32_t mask, uint32_t place) {
    const uint32_t *members = ptx_at(w, place);
    uint32_t needed = 0;
    PTX_EACH_LANE(l, mask) {
        if (!(members[l] >> l & 1)) {
            ptx_fault(w, i, (int)l, "the lane is not in its own member mask 0x%08x", members[l]);
        }
        needed |= members[l];
    }
    if (!(needed & w->live & ~mask)) {
        return mask;
    }
    uint32_t ready = 0;
    PTX_EACH_LANE(m, mask) {
        ready |= (uint32_t) !(members[m] & w->live & ~mask) << m;
    }
    if (!ready) {
        return ptx_gather(w, i, mask, needed) ? mask : 0;
    }
    PTX_EACH_LANE(n, mask & ~ready) { // some can go on, the others wait for theirs
        w->lane_pc[n] = w->pc - 1;
    }
    w->stuck |= mask & ~ready;
    w->active &= ~(mask & ~ready);
    return ready;
}

static bool whole_warp(ptx_warp *w, const ptx_insn *i, uint32_t mask) {
    return ptx_gather(w, i, mask, PTX_FULL);
}

// ---- shfl -------------------------------------------------------------------------------------------------

enum { SHFL_UP = 1, SHFL_DOWN, SHFL_BFLY, SHFL_IDX };

static void exec_shfl(ptx_warp *w, const ptx_insn *i, uint32_t mask) {
    mask = gathered(w, i, mask, i->src[3]);
    if (!mask) {
        return;
    }
    const uint32_t *a = ptx_at(w, i->src[0]), *b = ptx_at(w, i->src[1]), *c = ptx_at(w, i->src[2]);
    uint32_t from[PTX_LANES], inside = 0;
    memcpy(from, a, sizeof from);
    uint32_t *d = ptx_at(w, i->dst);
    PTX_EACH_LANE(l, mask) {
        const int lane = (int)l, by = (int)(b[l] & 31), clamp = (int)(c[l] & 31),
                  segment = (int)(c[l] >> 8 & 31);
        const int most = (lane & segment) | (clamp & ~segment), least = lane & segment;
        int j = i->form == SHFL_UP     ? lane - by
                : i->form == SHFL_DOWN ? lane + by
                : i->form == SHFL_BFLY ? lane ^ by
                                       : least | (by & ~segment);
        const bool in = i->form == SHFL_UP ? j >= most : j <= most;
        j = in ? j : lane;
        inside |= (uint32_t)in << l;
        if (!(mask >> j & 1) && w->exists >> j & 1 && w->live >> j & 1) {
            ptx_fault(w, i, lane, "takes the value of lane %d, which does not take part", j);
        }
        d[l] = from[j];
    }
    if (i->dst2 != PTX_NO_PLACE) {
        uint32_t *p = ptx_at(w, i->dst2);
        *p = (*p & ~mask) | inside;
    }
}

static void split_pair(ptx_parser *p, ptx_insn *i, int bytes) {
    bool negated;
    const ptx_operand *d = i->op[0].kind == PTX_PAIR ? &i->op[0].parts[0] : &i->op[0];
    i->dst = ptx_target(p, d, bytes);
    if (i->op[0].kind == PTX_PAIR && i->op[0].parts[1].kind != PTX_SINK) {
        i->dst2 = ptx_predicate(p, &i->op[0].parts[1], &negated);
    }
}

void ptx_decode_shfl(ptx_parser *p, ptx_insn *i, ptx_mods *mods) {
    static const char *const modes[] = {"up", "down", "bfly", "idx", NULL};
    i->form = (uint8_t)ptx_take_one(mods, modes);
    ptx_need_ops(p, i, 5, 5);
    if (!ptx_take(mods, "sync") || !i->form || ptx_one_type(p, i, mods) != PTX_b32) {
        ptx_refuse(p, "unknown form of %s", i->name);
    }
    split_pair(p, i, 4);
    for (int k = 0; k < 4; k++) {
        i->src[k] = ptx_source(p, &i->op[1 + k], PTX_b32);
    }
    ptx_use_exec(i, exec_shfl, PTX_CLASS_WARP, 1);
}

// ---- votes ------------------------------------------------------------------------------------------------

enum { VOTE_ALL = 1, VOTE_ANY, VOTE_UNI, VOTE_BALLOT };

static void exec_vote(ptx_warp *w, const ptx_insn *i, uint32_t mask) {
    mask = gathered(w, i, mask, i->src[1]);
    const uint32_t *members = ptx_at(w, i->src[1]);
    const uint32_t p = i->op[1].kind == PTX_PREDICATE
                           ? *(uint32_t *)ptx_at(w, i->op[1].place) ^ (i->op[1].negated ? PTX_FULL : 0)
                       : i->op[1].value ? PTX_FULL
                                        : 0;
    PTX_EACH_LANE(l, mask) {
        const uint32_t of = members[l] & mask, yes = p & of;
        if (i->form == VOTE_BALLOT) {
            ((uint32_t *)ptx_at(w, i->dst))[l] = yes;
            continue;
        }
        const bool result = i->form == VOTE_ALL   ? yes == of
                            : i->form == VOTE_ANY ? yes != 0
                                                  : yes == of || !yes;
        uint32_t *d = ptx_at(w, i->dst);
        *d = (*d & ~(1U << l)) | (uint32_t)result << l;
    }
}

void ptx_decode_vote(ptx_parser *p, ptx_insn *i, ptx_mods *mods) {
    static const char *const modes[] = {"all", "any", "uni", "ballot", NULL};
    bool negated;
    i->form = (uint8_t)ptx_take_one(mods, modes);
    ptx_need_ops(p, i, 3, 3);
    if (!ptx_take(mods, "sync") || !i->form) {
        ptx_refuse(p, "unknown form of %s", i->name);
    }
    i->dst = i->form == VOTE_BALLOT ? ptx_target(p, &i->op[0], 4) : ptx_predicate(p, &i->op[0], &negated);
    if (i->op[1].kind != PTX_PREDICATE) {
        (void)ptx_integer(p, &i->op[1]);
    }
    i->src[1] = ptx_source(p, &i->op[2], PTX_b32);
    ptx_use_exec(i, exec_vote, PTX_CLASS_WARP, 1);
}

static void exec_match(ptx_warp *w, const ptx_insn *i, uint32_t mask) {
    mask = gathered(w, i, mask, i->src[1]);
    const uint32_t *members = ptx_at(w, i->src[1]);
    uint32_t result[PTX_LANES] = {0}, all = 0;
    PTX_EACH_LANE(l, mask) {
        const uint64_t value = ptx_lane_value(w, i->src[0], i->elem_bytes, (int)l);
        PTX_EACH_LANE(m, members[l] & mask) {
            result[l] |= (uint32_t)(ptx_lane_value(w, i->src[0], i->elem_bytes, (int)m) == value) << m;
        }
        if (i->flag) { // all
            const bool same = result[l] == (members[l] & mask);
            all |= (uint32_t)same << l;
            result[l] = same ? result[l] : 0;
        }
    }
    PTX_EACH_LANE(n, mask) {
        ((uint32_t *)ptx_at(w, i->dst))[n] = result[n];
    }
    if (i->dst2 != PTX_NO_PLACE) {
        uint32_t *p = ptx_at(w, i->dst2);
        *p = (*p & ~mask) | all;
    }
}

void ptx_decode_match(ptx_parser *p, ptx_insn *i, ptx_mods *mods) {
    const ptx_type type = ptx_one_type(p, i, mods);
    const bool any = ptx_take(mods, "any");
    i->flag = ptx_take(mods, "all");
    ptx_need_ops(p, i, 3, 3);
    if (!ptx_take(mods, "sync") || any == i->flag || (type != PTX_b32 && type != PTX_b64)) {
        ptx_refuse(p, "unknown form of %s", i->name);
    }
    i->elem_bytes = (uint8_t)ptx_type_bytes(type);
    split_pair(p, i, 4);
    i->src[0] = ptx_source(p, &i->op[1], type);
    i->src[1] = ptx_source(p, &i->op[2], PTX_b32);
    ptx_use_exec(i, exec_match, PTX_CLASS_WARP, 1);
}

static void exec_activemask(ptx_warp *w, const ptx_insn *i, uint32_t mask) {
    PTX_EACH_LANE(l, mask) {
        ((uint32_t *)ptx_at(w, i->dst))[l] = mask;
    }
}

void ptx_decode_activemask(ptx_parser *p, ptx_insn *i, ptx_mods *mods) {
    ptx_need_ops(p, i, 1, 1);
    (void)ptx_one_type(p, i, mods);
    i->dst = ptx_target(p, &i->op[0], 4);
    ptx_use_exec(i, exec_activemask, PTX_CLASS_WARP, 1);
}

enum { REDUX_ADD = 1, REDUX_MIN, REDUX_MAX, REDUX_AND, REDUX_OR, REDUX_XOR };

static void exec_redux(ptx_warp *w, const ptx_insn *i, uint32_t mask) {
    mask = gathered(w, i, mask, i->src[1]);
    const uint32_t *members = ptx_at(w, i->src[1]);
    uint32_t result[PTX_LANES];
    PTX_EACH_LANE(l, mask) {
        const uint32_t *a = ptx_at(w, i->src[0]);
        uint32_t r = a[l];
        PTX_EACH_LANE(m, members[l] & mask & ~(1U << l)) {
            const uint32_t x = a[m];
            const bool less = i->flag ? (int32_t)x < (int32_t)r : x < r;
            r = i->form == REDUX_ADD   ? r + x
                : i->form == REDUX_MIN ? (less ? x : r)
                : i->form == REDUX_MAX ? (less ? r : x)
                : i->form == REDUX_AND ? r & x
                : i->form == REDUX_OR  ? r | x
                                       : r ^ x;
        }
        result[l] = r;
    }
    PTX_EACH_LANE(n, mask) {
        ((uint32_t *)ptx_at(w, i->dst))[n] = result[n];
    }
}

void ptx_decode_redux(ptx_parser *p, ptx_insn *i, ptx_mods *mods) {
    static const char *const ops[] = {"add", "min", "max", "and", "or", "xor", NULL};
    const ptx_type type = ptx_one_type(p, i, mods);
    i->form = (uint8_t)ptx_take_one(mods, ops);
    i->flag = type == PTX_s32;
    ptx_need_ops(p, i, 3, 3);
    if (!ptx_take(mods, "sync") || !i->form || ptx_type_bytes(type) != 4 || ptx_type_kind(type) == 'f') {
        ptx_refuse(p, "unknown form of %s", i->name);
    }
    i->dst = ptx_target(p, &i->op[0], 4);
    i->src[0] = ptx_source(p, &i->op[1], type);
    i->src[1] = ptx_source(p, &i->op[2], PTX_b32);
    ptx_use_exec(i, exec_redux, PTX_CLASS_WARP, 1);
}

// The same lane for the same mask: the lowest of it.
static void exec_elect(ptx_warp *w, const ptx_insn *i, uint32_t mask) {
    mask = gathered(w, i, mask, i->src[0]);
    const uint32_t *members = ptx_at(w, i->src[0]);
    uint32_t elected = 0;
    PTX_EACH_LANE(l, mask) {
        const uint32_t leader = (uint32_t)__builtin_ctz(members[l] & mask);
        ((uint32_t *)ptx_at(w, i->dst))[l] = leader;
        elected |= (uint32_t)(leader == l) << l;
    }
    if (i->dst2 != PTX_NO_PLACE) {
        uint32_t *p = ptx_at(w, i->dst2);
        *p = (*p & ~mask) | elected;
    }
}

void ptx_decode_elect(ptx_parser *p, ptx_insn *i, ptx_mods *mods) {
    ptx_need_ops(p, i, 2, 2);
    if (!ptx_take(mods, "sync")) {
        ptx_refuse(p, "unknown form of %s", i->name);
    }
    split_pair(p, i, 4);
    i->src[0] = ptx_source(p, &i->op[1], PTX_b32);
    ptx_use_exec(i, exec_elect, PTX_CLASS_WARP, 1);
}

// ---- matrices ---------------------------------------------------------------------------------------------

static void need_full(ptx_warp *w, const ptx_insn *i) {
    if (w->live != PTX_FULL) {
        ptx_fault(w, i, -1, "executed by a warp of which lanes are missing: 0x%08x", w->live);
    }
}

static void row_addresses(ptx_warp *w, const ptx_insn *i, const ptx_operand *o, uint32_t at[PTX_LANES]) {
    for (int l = 0; l < 8 * i->vector; l++) {
        uint64_t address = ptx_lane_address(w, o, l);
        if (ptx_resolve(i->space, &address) != PTX_SHARED) {
            ptx_fault(w, i, l, "0x%llx is no address of shared memory", (unsigned long long)address);
        }
        at[l] = ptx_shared_address(w, i, l, address);
    }
    if (w->launch->line_counts) {
        ptx_count_shared(w->launch, i, at, i->vector == 4 ? PTX_FULL : (1U << 8 * i->vector) - 1, 16);
    }
}

static void exec_ldmatrix(ptx_warp *w, const ptx_insn *i, uint32_t mask) {
    if (!whole_warp(w, i, mask)) {
        return;
    }
    need_full(w, i);
    uint32_t at[PTX_LANES];
    uint8_t rows[PTX_LANES][16];
    uint32_t *d[4];
    row_addresses(w, i, &i->op[1], at);
    for (int r = 0; r < 8 * i->vector; r++) {
        ptx_shared_bounds(w, i, r, at[r], 16, 16);
        ptx_shared_read(w, i, PTX_FULL, at[r], 16, 16);
        memcpy(rows[r], w->block->shared.data + at[r], 16);
    }
    for (int k = 0; k < i->vector; k++) {
        d[k] = ptx_at(w, ((const uint32_t *)i->more)[k]);
    }
    sbp_ptx_ldmatrix(i->vector, i->flag, rows, d);
}

static void exec_stmatrix(ptx_warp *w, const ptx_insn *i, uint32_t mask) {
    if (!whole_warp(w, i, mask)) {
        return;
    }
    need_full(w, i);
    uint32_t at[PTX_LANES];
    uint8_t rows[PTX_LANES][16];
    const uint32_t *s[4];
    row_addresses(w, i, &i->op[0], at);
    for (int k = 0; k < i->vector; k++) {
        s[k] = ptx_at(w, ((const uint32_t *)i->more)[k]);
    }
    sbp_ptx_stmatrix(i->vector, i->flag, s, rows);
    for (int r = 0; r < 8 * i->vector; r++) {
        ptx_shared_bounds(w, i, r, at[r], 16, 16);
        for (uint32_t pair = 0; pair < 4; pair++) { // 4 lanes write a row
            const int lane =
                i->flag ? r % 8 : r % 8 * 4 + (int)pair; // transposed: of 8 lanes, one stands for all
            ptx_shared_access(w, i, i->flag ? lane / 2 : lane, at[r] + 4 * pair, 4, 4, PTX_WRITE,
                              rows[r] + 4 * pair);
            memcpy(w->block->shared.data + at[r] + 4 * pair, rows[r] + 4 * pair, 4);
        }
    }
    ptx_progress(w->launch);
}

static void decode_matrix(ptx_parser *p, ptx_insn *i, ptx_mods *mods, int address, ptx_exec_fn *exec) {
    static const char *const counts[] = {"x1", "x2", "x4", NULL};
    const int count = ptx_take_one(mods, counts);
    const bool right = ptx_take(mods, "sync") && ptx_take(mods, "aligned") && ptx_take(mods, "m8n8") &&
                       count && ptx_one_type(p, i, mods) == PTX_b16;
    i->flag = ptx_take(mods, "trans");
    i->space = (uint8_t)ptx_take_space(mods);
    ptx_need_ops(p, i, 2, 2);
    if (!right || (i->space != PTX_SHARED && i->space != PTX_GENERIC)) {
        ptx_refuse(p, "unknown form of %s", i->name);
    }
    i->vector = (uint8_t)(1 << (count - 1));
    const ptx_operand *regs = &i->op[1 - address];
    (void)ptx_address_register(p, &i->op[address]);
    if (regs->kind != PTX_VECTOR ? i->vector != 1 : regs->count != i->vector) {
        ptx_refuse(p, "%s with a vector of %d", i->name, regs->count);
    }
    uint32_t *places = ptx_parser_alloc(p, sizeof *places * i->vector);
    for (int k = 0; k < i->vector; k++) {
        const ptx_operand *r = regs->kind == PTX_VECTOR ? &regs->parts[k] : regs;
        places[k] = address == 1 ? ptx_target(p, r, 4) : ptx_source(p, r, PTX_b32);
    }
    i->more = places;
    ptx_use_exec(i, exec, PTX_CLASS_MATRIX, address == 1);
}

void ptx_decode_ldmatrix(ptx_parser *p, ptx_insn *i, ptx_mods *mods) {
    decode_matrix(p, i, mods, 1, exec_ldmatrix);
}

void ptx_decode_stmatrix(ptx_parser *p, ptx_insn *i, ptx_mods *mods) {
    decode_matrix(p, i, mods, 0, exec_stmatrix);
}

// ---- mma --------------------------------------------------------------------------------------------------

typedef struct {
    sbp_ptx_mma op;
    uint32_t places[4][16]; // d, a, b, c
} mma_form;

static void exec_mma(ptx_warp *w, const ptx_insn *i, uint32_t mask) {
    if (!whole_warp(w, i, mask)) {
        return;
    }
    need_full(w, i);
    const mma_form *f = i->more;
    void *at[4][16] = {{0}};
    const int counts[4] = {f->op.cd_regs, f->op.a_regs, f->op.b_regs, f->op.cd_regs};
    for (int k = 0; k < 4; k++) {
        for (int r = 0; r < counts[k]; r++) {
            at[k][r] = ptx_at(w, f->places[k][r]);
        }
    }
    if (f->op.cd == SBP_PTX_F64) {
        sbp_ptx_mma_warp_f64(&f->op, (const uint64_t *const *)at[1], (const uint64_t *const *)at[2],
                             (const uint64_t *const *)at[3], (uint64_t *const *)at[0]);
    } else {
        sbp_ptx_mma_warp(&f->op, (const uint32_t *const *)at[1], (const uint32_t *const *)at[2],
                         (const uint32_t *const *)at[3], (uint32_t *const *)at[0], i->saturate, 0);
    }
}

static bool number_of(ptx_type type, sbp_ptx_type *out) {
    switch (type) {
    case PTX_bf16:
        return *out = SBP_PTX_BF16, true;
    case PTX_f16:
        return *out = SBP_PTX_F16, true;
    case PTX_tf32:
        return *out = SBP_PTX_TF32, true;
    case PTX_e4m3:
        return *out = SBP_PTX_E4M3, true;
    case PTX_e5m2:
        return *out = SBP_PTX_E5M2, true;
    case PTX_f32:
        return *out = SBP_PTX_F32, true;
    case PTX_f64:
        return *out = SBP_PTX_F64, true;
    case PTX_s8:
        return *out = SBP_PTX_S8, true;
    case PTX_u8:
        return *out = SBP_PTX_U8, true;
    case PTX_s32:
        return *out = SBP_PTX_S32, true;
    default:
        return false;
    }
}

void ptx_decode_mma(ptx_parser *p, ptx_insn *i, ptx_mods *mods) {
    int m = 0, n = 0, k = 0;
    sbp_ptx_type a, b, c, d;
    bool right = ptx_take(mods, "sync") && ptx_take(mods, "aligned") && ptx_take(mods, "row") &&
                 ptx_take(mods, "col") && mods->type_count == 4 && number_of(mods->types[0], &d) &&
                 number_of(mods->types[1], &a) && number_of(mods->types[2], &b) &&
                 number_of(mods->types[3], &c) && c == d;
    for (int t = 0; t < mods->count; t++) {
        if (sscanf(mods->mods[t], "m%dn%dk%d", &m, &n, &k) == 3) {
            (void)ptx_take(mods, mods->mods[t]);
            break;
        }
    }
    i->saturate = ptx_take(mods, "satfinite");
    mma_form *f = ptx_parser_alloc(p, sizeof *f);
    ptx_need_ops(p, i, 4, 4);
    if (!right || !sbp_ptx_mma_make(m, n, k, a, b, d, &f->op)) {
        ptx_refuse(p, "unknown form of %s", i->name);
    }
    const int counts[4] = {f->op.cd_regs, f->op.a_regs, f->op.b_regs, f->op.cd_regs};
    const int bytes = d == SBP_PTX_F64 ? 8 : 4;
    for (int o = 0; o < 4; o++) {
        const ptx_operand *v = &i->op[o];
        if ((v->kind == PTX_VECTOR ? v->count : 1) != counts[o] || counts[o] > 16) {
            ptx_refuse(p, "%s: operand %d has %d registers, not %d", i->name, o + 1, v->count, counts[o]);
        }
        for (int r = 0; r < counts[o]; r++) {
            const ptx_operand *x = v->kind == PTX_VECTOR ? &v->parts[r] : v;
            const ptx_type type = bytes == 8                                         ? PTX_f64
                                  : x->kind == PTX_FLOAT32 || x->kind == PTX_FLOAT64 ? PTX_f32
                                                                                     : PTX_b32;
            f->places[o][r] = o == 0 ? ptx_target(p, x, bytes) : ptx_source(p, x, type);
        }
    }
    i->more = f;
    ptx_use_exec(i, exec_mma, PTX_CLASS_MMA, 1);
}
