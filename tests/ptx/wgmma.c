/* wgmma: each warp computes the 16 rows of D that its registers hold, at once; until the matching wait those
 * registers may not be touched, nor what was read be overwritten. */
#include "tests/ptx/tensor/wgmma.h"
#include "tests/ptx/decode.h"
#include "tests/ptx/machine.h"

#include <stdlib.h>

enum { ROWS = 16, MAX_N = 256, MAX_K = 32, MAX_D = 128 };
/* Bits of dirty[]. Compilers put the zeros that sums begin with between wgmma.fence and wgmma (LLVM makes
 * constants where they are needed), and hardware forgives: for these it is enough that there is a fence since
 * the last group. */
enum { COMPUTED = 1, ZEROED = 2 };
#define SOURCE UINT32_C(0x80000000) // of flying[]: a register that is read, not written

typedef struct {
    sbp_ptx_wgmma op;
    uint32_t d[MAX_D], d_reg[MAX_D], a[4], a_reg[4];
    uint32_t a_desc, b_desc; // places
    uint32_t scale_d;        // place of the predicate, or PTX_NO_PLACE
    bool scale_not, keep, saturate;
} form;

// An operation whose reads of shared memory are not known to be over.
typedef struct ptx_flight {
    struct ptx_flight *next;
    const ptx_insn *insn;
    uint64_t a_desc, b_desc;
    uint32_t group;
} ptx_flight;

// ---- registers --------------------------------------------------------------------------------------------

static bool moves_zero(const ptx_warp *w, const ptx_insn *i) {
    uint32_t any = 0;
    const uint32_t *from = ptx_at(w, i->src[0]);
    for (int l = 0; i->op[0].bytes == 4 && l < PTX_LANES; l++) {
        any |= from[l];
    }
    return i->op[0].bytes == 4 && !any;
}

static void touch(ptx_warp *w, const ptx_insn *i, const ptx_operand *o, bool write) {
    if (o->kind == PTX_VECTOR || o->kind == PTX_PAIR) {
        for (int k = 0; k < o->count; k++) {
            touch(w, i, &o->parts[k], write);
        }
        return;
    }
    if ((o->kind != PTX_REGISTER && o->kind != PTX_ADDRESS) || o->place == PTX_NO_PLACE || o->special) {
        return;
    }
    const uint32_t flying = w->flying[o->reg];
    if (flying && (write || !(flying & SOURCE))) {
        ptx_fault(w, i, -1,
                  "%s register number %u of its declarations, which a wgmma still %s: no wgmma.wait_group "
                  "came between",
                  write ? "writes" : "reads", o->reg, flying & SOURCE ? "reads" : "writes");
    }
    if (write && o->kind == PTX_REGISTER) {
        w->dirty[o->reg] = i->copies && moves_zero(w, i) ? ZEROED : COMPUTED;
    }
}

static void exec_wgmma(ptx_warp *w, const ptx_insn *i, uint32_t mask);

void ptx_wgmma_registers(ptx_warp *w, const ptx_insn *i, uint32_t mask) {
    (void)mask;
    if (i->run == PTX_RUN_EXEC && i->exec == exec_wgmma) {
        return; // has rules of its own
    }
    for (int k = 0; k < i->ops; k++) {
        touch(w, i, &i->op[k], k < i->writes);
    }
}

// ---- the product ------------------------------------------------------------------------------------------

static uint32_t piece_address(ptx_warp *w, const ptx_insn *i, const sbp_ptx_descriptor *d, bool mn, int bytes,
                              int x, int k) {
    const uint32_t at = sbp_ptx_descriptor_piece(d, mn, bytes, x, k);
    ptx_shared_bounds(w, i, -1, at, 16, 16);
    return at;
}

typedef void piece_fn(ptx_warp *w, const ptx_insn *i, uint32_t address);

// All 16-byte pieces of [from, to) x k of an operand.
static void each_piece(ptx_warp *w, const ptx_insn *i, const sbp_ptx_descriptor *d, bool mn, int bytes,
                       int from, int to, int depth, piece_fn *fn) {
    const int per = 16 / bytes;
    for (int x = from; x < to; x += mn ? per : 1) {
        for (int k = 0; k < depth; k += mn ? 1 : per) {
            fn(w, i, piece_address(w, i, d, mn, bytes, x, k));
        }
    }
}

static void begin_read(ptx_warp *w, const ptx_insn *i, uint32_t address) {
    ptx_shared_async_read(w, i, -1, address, 16, true);
}

static void end_read(ptx_warp *w, const ptx_insn *i, uint32_t address) {
    (void)i;
    ptx_shared_read_done(w, -1, address, 16);
}

static void operand_pieces(ptx_warp *w, const ptx_insn *i, uint64_t a_desc, uint64_t b_desc, piece_fn *fn) {
    const form *f = i->more;
    const int bytes = sbp_ptx_type_bits(f->op.a) / 8, row = w->index % 4 * ROWS;
    if (!f->op.a_from_registers) {
        const sbp_ptx_descriptor a = sbp_ptx_descriptor_decode(a_desc);
        each_piece(w, i, &a, f->op.a_trans, bytes, row, row + ROWS, f->op.k, fn);
    }
    const sbp_ptx_descriptor b = sbp_ptx_descriptor_decode(b_desc);
    each_piece(w, i, &b, f->op.b_trans, bytes, 0, f->op.n, f->op.k, fn);
}

static double value_of(sbp_ptx_type type, uint64_t bits) {
    return type == SBP_PTX_BF16 ? (double)sbp_ptx_f32_of_bf16((uint16_t)bits) : sbp_ptx_value(type, bits);
}

// Elements [from, to) x depth of an operand in shared memory: out[(x - from) * x_step + k * k_step].
static void load_operand(ptx_warp *w, const ptx_insn *i, const sbp_ptx_descriptor *d, bool mn,
                         sbp_ptx_type type, int from, int to, int depth, double *out, int x_step, int k_step,
                         bool minus) {
    const int bytes = sbp_ptx_type_bits(type) / 8, per = 16 / bytes;
    for (int x = from; x < to; x += mn ? per : 1) {
        for (int k = 0; k < depth; k += mn ? 1 : per) {
            const uint8_t *piece = w->block->shared.data + piece_address(w, i, d, mn, bytes, x, k);
            double *at = out + (x - from) * x_step + k * k_step;
            for (int e = 0; e < per; e++) {
                uint64_t bits = 0;
                memcpy(&bits, piece + e * bytes, (size_t)bytes);
                const double v = value_of(type, bits);
                at[e * (mn ? x_step : k_step)] = minus ? -v : v;
            }
        }
    }
}

static void read_a(ptx_warp *w, const ptx_insn *i, uint64_t a_desc, double *a) {
    const form *f = i->more;
    const sbp_ptx_wgmma *op = &f->op;
    const int row = w->index % 4 * ROWS, bits = sbp_ptx_type_bits(op->a), per = 32 / bits;
    if (op->a_from_registers) {
        for (int l = 0; l < PTX_LANES; l++) {
            for (int e = 0; e < 4 * per; e++) {
                const sbp_ptx_place at = sbp_ptx_wgmma_a(op, w->index % 4 * PTX_LANES + l, e);
                const uint32_t reg = ((const uint32_t *)ptx_at(w, f->a[e / per]))[l];
                a[(at.row - row) * op->k + at.col] = sbp_ptx_value(op->a, reg >> (e % per * bits));
            }
        }
    } else {
        const sbp_ptx_descriptor d = sbp_ptx_descriptor_decode(a_desc);
        load_operand(w, i, &d, op->a_trans, op->a, row, row + ROWS, op->k, a, op->k, 1, false);
    }
    for (int e = 0; op->a_minus && e < ROWS * op->k; e++) {
        a[e] = -a[e];
    }
}

static void multiply(ptx_warp *w, const ptx_insn *i, uint64_t a_desc, uint64_t b_desc, bool keep) {
    const form *f = i->more;
    const sbp_ptx_wgmma *op = &f->op;
    double a[ROWS * MAX_K], *b = calloc((size_t)op->n * (size_t)(op->k + 2 * ROWS), sizeof *b);
    if (!b) {
        ptx_no_memory(w->launch);
    }
    double *c = b + op->n * op->k, *d = c + op->n * ROWS;
    read_a(w, i, a_desc, a);
    const sbp_ptx_descriptor bd = sbp_ptx_descriptor_decode(b_desc);
    load_operand(w, i, &bd, op->b_trans, op->b, 0, op->n, op->k, b, 1, op->n, op->b_minus);
    const bool halves = op->d == SBP_PTX_F16;
    const int elements = op->n / 2, per = halves ? 2 : 1;
    for (int l = 0; keep && l < PTX_LANES; l++) {
        for (int e = 0; e < elements; e++) {
            const sbp_ptx_place at = sbp_ptx_wgmma_d(op, w->index % 4 * PTX_LANES + l, e);
            const uint32_t reg = ((const uint32_t *)ptx_at(w, f->d[e / per]))[l];
            c[at.row % ROWS * op->n + at.col] =
                sbp_ptx_value(op->d, halves ? reg >> (e % 2 * 16) & 0xffff : reg);
        }
    }
    sbp_ptx_multiply(ROWS, op->n, op->k, a, b, c, d, op->d, sbp_ptx_accumulation_of(0));
    for (int l = 0; l < PTX_LANES; l++) {
        for (int e = 0; e < elements; e++) {
            const sbp_ptx_place at = sbp_ptx_wgmma_d(op, w->index % 4 * PTX_LANES + l, e);
            double x = d[at.row % ROWS * op->n + at.col]; // of f32 it is one already
            if (f->saturate) {
                x = x < INT32_MIN ? INT32_MIN : x > INT32_MAX ? INT32_MAX : x;
            }
            const uint32_t bits = op->d == SBP_PTX_S32 ? (uint32_t)(int64_t)x
                                  : halves || x != x   ? (uint32_t)sbp_ptx_round(op->d, x, SBP_PTX_RN, 0)
                                                       : sbp_ptx_bits_of_f32((float)x);
            uint32_t *reg = &((uint32_t *)ptx_at(w, f->d[e / per]))[l];
            *reg = !halves ? bits : e % 2 ? (*reg & 0xffff) | bits << 16 : (*reg & 0xffff0000) | bits;
        }
    }
    free(b);
}

static bool unfenced(const ptx_warp *w, uint32_t reg) {
    return w->dirty[reg] == COMPUTED || (w->dirty[reg] == ZEROED && !w->fenced_since);
}

static void check_registers(ptx_warp *w, const ptx_insn *i, bool keep) {
    const form *f = i->more;
    if (!w->fenced_once) {
        ptx_fault(w, i, -1, "no wgmma.fence came before the first wgmma");
    }
    for (int r = 0; r < f->op.d_regs; r++) {
        if (w->flying[f->d_reg[r]] & SOURCE) {
            ptx_fault(w, i, -1, "an accumulator that another wgmma still reads as A");
        }
        if (keep && unfenced(w, f->d_reg[r])) {
            ptx_fault(w, i, -1, "register %d of D was written without a wgmma.fence since", r);
        }
    }
    for (int r = 0; f->op.a_from_registers && r < 4; r++) {
        if (unfenced(w, f->a_reg[r])) {
            ptx_fault(w, i, -1, "register %d of A was written without a wgmma.fence since", r);
        }
        if (w->flying[f->a_reg[r]] && !(w->flying[f->a_reg[r]] & SOURCE)) {
            ptx_fault(w, i, -1, "register %d of A is the result of a wgmma that nobody waited for", r);
        }
    }
}

static uint64_t descriptor(ptx_warp *w, const ptx_insn *i, uint32_t place, const char *name) {
    const uint64_t *v = ptx_at(w, place);
    for (int l = 1; l < PTX_LANES; l++) {
        if (v[l] != v[0]) {
            ptx_fault(w, i, l, "lanes of a warp give different descriptors of %s: 0x%llx and 0x%llx", name,
                      (unsigned long long)v[0], (unsigned long long)v[l]);
        }
    }
    const char *fault = sbp_ptx_descriptor_fault(v[0]);
    if (fault) {
        ptx_unable(w, i, "descriptor 0x%llx of %s: %s", (unsigned long long)v[0], name, fault);
    }
    return v[0];
}

static void exec_wgmma(ptx_warp *w, const ptx_insn *i, uint32_t mask) {
    if (!ptx_gather(w, i, mask, PTX_FULL)) {
        return;
    }
    const form *f = i->more;
    if (w->live != PTX_FULL || (w->index | 3) >= w->block->warp_count) {
        ptx_fault(w, i, -1, "executed without a whole warpgroup");
    }
    bool keep = f->keep;
    if (f->scale_d != PTX_NO_PLACE) {
        const uint32_t p = *(uint32_t *)ptx_at(w, f->scale_d) ^ (f->scale_not ? PTX_FULL : 0);
        if (p != 0 && p != PTX_FULL) {
            ptx_fault(w, i, -1, "lanes of a warp give different values of scale-d");
        }
        keep = p != 0;
    }
    check_registers(w, i, keep);
    const uint64_t a = f->op.a_from_registers ? 0 : descriptor(w, i, f->a_desc, "A"),
                   b = descriptor(w, i, f->b_desc, "B");
    operand_pieces(w, i, a, b, begin_read);
    multiply(w, i, a, b, keep);
    for (int r = 0; r < f->op.d_regs; r++) {
        w->flying[f->d_reg[r]] = 1 + w->wgmma_group;
    }
    for (int r = 0; f->op.a_from_registers && r < 4; r++) {
        w->flying[f->a_reg[r]] = SOURCE | (1 + w->wgmma_group);
    }
    ptx_flight *flight = calloc(1, sizeof *flight);
    if (!flight) {
        ptx_no_memory(w->launch);
    }
    *flight = (ptx_flight){w->flights, i, a, b, w->wgmma_group};
    w->flights = flight;
    ptx_progress(w->launch);
}

static void exec_fence(ptx_warp *w, const ptx_insn *i, uint32_t mask) {
    if (!ptx_gather(w, i, mask, PTX_FULL)) {
        return;
    }
    w->fenced_once = true;
    w->fenced_since = true;
    memset(w->dirty, 0, w->entry->registers);
}

static void exec_commit(ptx_warp *w, const ptx_insn *i, uint32_t mask) {
    if (ptx_gather(w, i, mask, PTX_FULL)) {
        w->wgmma_group++;
        w->fenced_since = false;
    }
}

static void exec_wait(ptx_warp *w, const ptx_insn *i, uint32_t mask) {
    if (!ptx_gather(w, i, mask, PTX_FULL) || w->wgmma_group < i->extra) {
        return;
    }
    const uint32_t done = w->wgmma_group - i->extra; // groups below it are complete
    for (ptx_flight **at = &w->flights; *at;) {
        ptx_flight *f = *at;
        if (f->group >= done) {
            at = &f->next;
            continue;
        }
        operand_pieces(w, f->insn, f->a_desc, f->b_desc, end_read);
        *at = f->next;
        free(f);
    }
    for (uint32_t r = 0; r < w->entry->registers; r++) {
        if (w->flying[r] && (w->flying[r] & ~SOURCE) <= done) {
            w->flying[r] = 0;
        }
    }
}

void ptx_wgmma_free(ptx_warp *w) {
    while (w->flights) {
        ptx_flight *next = w->flights->next;
        free(w->flights);
        w->flights = next;
    }
}

// ---- decoder ----------------------------------------------------------------------------------------------

static bool number_of(ptx_type type, sbp_ptx_type *out) {
    static const struct {
        ptx_type type;
        sbp_ptx_type number;
    } table[] = {{PTX_bf16, SBP_PTX_BF16}, {PTX_f16, SBP_PTX_F16},   {PTX_tf32, SBP_PTX_TF32},
                 {PTX_e4m3, SBP_PTX_E4M3}, {PTX_e5m2, SBP_PTX_E5M2}, {PTX_f32, SBP_PTX_F32},
                 {PTX_s8, SBP_PTX_S8},     {PTX_u8, SBP_PTX_U8},     {PTX_s32, SBP_PTX_S32}};
    for (size_t k = 0; k < sizeof table / sizeof table[0]; k++) {
        if (table[k].type == type) {
            *out = table[k].number;
            return true;
        }
    }
    return false;
}

static int sign(ptx_parser *p, const ptx_operand *o) {
    const int64_t v = ptx_integer(p, o);
    if (v != 1 && v != -1) {
        ptx_refuse(p, "a scale of %lld", (long long)v);
    }
    return (int)v;
}

static void decode_product(ptx_parser *p, ptx_insn *i, ptx_mods *mods) {
    form *f = ptx_parser_alloc(p, sizeof *f);
    int n = 0, k = 0;
    for (int m = 0; m < mods->count; m++) {
        if (sscanf(mods->mods[m], "m64n%dk%d", &n, &k) == 2) {
            (void)ptx_take(mods, mods->mods[m]);
            break;
        }
    }
    const bool right = n > 0 && mods->type_count == 3 && number_of(mods->types[0], &f->op.d) &&
                       number_of(mods->types[1], &f->op.a) && number_of(mods->types[2], &f->op.b);
    f->op.n = n;
    const bool wide = right && sbp_ptx_type_bits(f->op.a) == 16;
    const bool integers = right && f->op.d == SBP_PTX_S32; // these are not scaled
    f->saturate = integers && ptx_take(mods, "satfinite");
    ptx_need_ops(p, i, 4, 8);
    f->op.a_from_registers = i->op[1].kind == PTX_VECTOR;
    const int scales = 4,
              last = integers ? scales : scales + 2 + (wide ? (f->op.a_from_registers ? 1 : 2) : 0);
    if (!right || i->ops != last || i->op[0].kind != PTX_VECTOR) {
        ptx_refuse(p, "unknown form of %s", i->name);
    }
    f->op.a_minus = !integers && sign(p, &i->op[4]) < 0;
    f->op.b_minus = !integers && sign(p, &i->op[5]) < 0;
    if (wide && !f->op.a_from_registers) {
        f->op.a_trans = ptx_integer(p, &i->op[6]) != 0;
    }
    f->op.b_trans = wide && ptx_integer(p, &i->op[last - 1]) != 0;
    const char *fault = sbp_ptx_wgmma_make(&f->op);
    if (fault || k != f->op.k || i->op[0].count != f->op.d_regs || f->op.d_regs > MAX_D ||
        (f->op.a_from_registers && i->op[1].count != 4)) {
        ptx_refuse(p, "unknown form of %s: %s", i->name, fault ? fault : "numbers of registers");
    }
    for (int r = 0; r < f->op.d_regs; r++) {
        f->d[r] = ptx_target(p, &i->op[0].parts[r], 4);
        f->d_reg[r] = i->op[0].parts[r].reg;
    }
    for (int r = 0; f->op.a_from_registers && r < 4; r++) {
        const ptx_operand *x = &i->op[1].parts[r];
        if (x->kind != PTX_REGISTER) {
            ptx_refuse(p, "%s: A needs registers", i->name);
        }
        f->a[r] = ptx_source(p, x, PTX_b32);
        f->a_reg[r] = x->reg;
    }
    if (!f->op.a_from_registers) {
        f->a_desc = ptx_source(p, &i->op[1], PTX_b64);
    }
    f->b_desc = ptx_source(p, &i->op[2], PTX_b64);
    f->scale_d = PTX_NO_PLACE;
    if (i->op[3].kind == PTX_PREDICATE) {
        f->scale_d = ptx_predicate(p, &i->op[3], &f->scale_not);
    } else {
        f->keep = ptx_integer(p, &i->op[3]) != 0;
    }
    i->more = f;
    ptx_parser_entry(p)->has_wgmma = true;
    ptx_use_exec(i, exec_wgmma, PTX_CLASS_WGMMA, 1);
}

void ptx_decode_wgmma(ptx_parser *p, ptx_insn *i, ptx_mods *mods) {
    const bool fence = ptx_take(mods, "fence"), commit = ptx_take(mods, "commit_group"),
               wait = ptx_take(mods, "wait_group");
    const bool product = ptx_take(mods, "mma_async");
    if (!ptx_take(mods, "sync") || !ptx_take(mods, "aligned") || fence + commit + wait + product != 1) {
        ptx_refuse(p, "unknown form of %s", i->name);
    }
    if (product) {
        decode_product(p, i, mods);
        return;
    }
    ptx_need_ops(p, i, wait, wait);
    ptx_parser_entry(p)->has_wgmma = true;
    if (wait) {
        const int64_t left = ptx_integer(p, &i->op[0]);
        if (left < 0 || left > 7) {
            ptx_refuse(p, "%s of %lld groups", i->name, (long long)left);
        }
        i->extra = (uint32_t)left;
    }
    ptx_use_exec(i, fence ? exec_fence : commit ? exec_commit : exec_wait, PTX_CLASS_BARRIER, 0);
}
