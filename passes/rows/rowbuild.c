/* rowbuild.c: row-wise ops of a body as one row kernel.
 *
 * A value [rows, heads, n] of the body is emitted over a range [a, b) of its last axis. Slices,
 * concatenations and padding never become instructions: they only choose ranges, so that rope on halves of a
 * head becomes loads and stores at an offset. A flat value [rows, heads * n] next to values with heads is
 * seen as [heads, n] ("split").
 *
 * A value of a type narrower than f32 that is computed is rounded there and then (`round`), so that its bits
 * are the same as if it had gone through memory.
 *
 * What a kernel computes may be a graph of any depth in which values are used many times: every walk goes to
 * a value once and keeps its own stack. Only `emit` calls itself, MAX_DEPTH deep: what is deeper is too large
 * for one kernel and is cut in the middle, like what has too many instructions or operands.
 *
 * An example: rotary embedding of q, as tests/ir/08_split.sbp and 13_fuse.sbp have it.
 *
 *   x:  [C, 4, 6]  in memory (t28)      c: [C, 1, 3] cos of position times inv_freq    s: its sin
 *   lo: [C, 4, 3]  = x[..0:3] * c - x[..3:6] * s          slice, slice, mul, mul, sub
 *   hi: [C, 4, 3]  = x[..3:6] * c + x[..0:3] * s
 *   q:  [C, 4, 6]  = concat lo, hi                        the root: it is read from memory
 *
 * q is wanted over [0, 6). find_cuts goes down from there: concat changes its source at 3, so the ranges are
 * [0, 3) and [3, 6), and all that the kernel computes is 3 wide ("heads 4 n 3"). emit(q, 0, 3) is emit(lo,
 * 0, 3); the slices below it only choose which elements of x are loaded, and c, which has no heads, is loaded
 * once for all of them. emit(q, 3, 6) is emit(hi, 0, 3), which finds both loads and both of cos and sin in
 * the memos of the first range:
 *
 *   %0 = load x[0:3]    %1 = load pos    %2 = load inv_freq    %3 = mul %1, %2    %4 = cos %3
 *   %5 = mul %0, %4     %6 = load x[3:6]    %7 = sin %3    %8 = mul %6, %7    %9 = sub %5, %8
 *   %10 = mul %6, %4    %11 = mul %0, %7    %12 = add %10, %11
 *   store q[0:3], %9    store q[3:6], %12
 */
#include "passes/rows/rowbuild.h"

#include <stdlib.h>
#include <string.h>

enum {
    MAX_DEPTH = SBP_ROWKERNEL_MAX_INSTRS,      /* of `emit` */
    MAX_RANGES = 64 * SBP_ROWKERNEL_MAX_INSTRS /* that find_cuts looks at, over all values */
};

/* In place of the value to be cut off. */
enum { CULPRIT_LEAF = SBP_NO_VALUE - 1, CULPRIT_TOO_LARGE = SBP_NO_VALUE - 2 };

/* The instruction that holds a range of a value. */
typedef struct memo {
    sbp_value value;
    bool split;
    int64_t a, b;
    int32_t instr;
    int32_t next; /* of the same value, -1 */
} memo;

/* A range of a value that find_cuts looks at; shift maps to the numbering of who asked. */
typedef struct piece {
    sbp_value value;
    int64_t a, b, shift;
    int32_t next; /* of the same value, -1 */
} piece;

/* Arrays over the values of a body, made once for all its kernels. Between kernels `own` is false, the
 * numbers are -1. */
struct sbp_row_work {
    bool *own;         /* values that the kernel computes although they are materialized */
    int32_t *memo_of;  /* the latest memo of a value */
    int32_t *piece_of; /* the latest piece of a value */
    int32_t *seen;     /* the number of the last survey that saw the value */
    int32_t survey;    /* the number of the present one */
    sbp_value *list;   /* values that the survey saw */
    int32_t list_count;
    memo *memos;
    int32_t memo_count, memo_capacity;
    piece *pieces;
    int32_t piece_count, piece_capacity;
};

typedef struct emitter {
    sbp_pipeline *p;
    const sbp_stage *stage;
    const sbp_func *f;
    const bool *materialized;
    sbp_row_work *work;
    sbp_rowkernel *k;
    int64_t heads;
    bool one_row; /* what is computed has no rows: it is the only one */
    int32_t depth;
    struct {
        sbp_value value, like; /* base, and the value whose shape it was loaded in */
        bool split;
        int32_t operand;
    } * loads;
    int32_t load_count, load_capacity;
    sbp_row_kernel *out;
    sbp_value culprit; /* SBP_NO_VALUE while all is well */
} emitter;

void sbp_row_form(const sbp_type *type, int64_t *heads, int64_t *n) {
    int32_t first = sbp_type_rows(type) != SBP_ONE ? 1 : 0;
    *heads = 1;
    *n = type->rank > first ? type->dim[type->rank - 1].n : 1;
    for (int32_t d = first; d + 1 < type->rank; d++)
        *heads *= type->dim[d].n;
}

bool sbp_row_can_be_stored(const sbp_type *type) {
    return type->dtype != SBP_BOOL && sbp_type_rows(type) != SBP_ONE &&
           (type->rank == 1 || sbp_type_row_elems(type) > 1);
}

static const sbp_op *def(const emitter *e, sbp_value v) {
    const sbp_value_info *info = &e->f->values[v];
    return info->role == SBP_VALUE_OP && info->op >= 0 ? &e->f->ops[info->op] : NULL;
}

static bool is_leaf(const emitter *e, sbp_value v) {
    sbp_value base = e->stage->base[v];
    return e->materialized[base] && !e->work->own[base];
}

static int32_t give_up(emitter *e, sbp_value culprit) {
    if (e->culprit == SBP_NO_VALUE)
        e->culprit = culprit;
    return 0;
}

/* ---- ranges ------------------------------------------------------------------------------------------ */

typedef struct cuts {
    int64_t *at;
    int32_t count, capacity;
} cuts;

static void add_cut(emitter *e, cuts *c, int64_t at, int64_t a, int64_t b) {
    if (at > a && at < b)
        SBP_PUSH(e->p->arena, c->at, c->count, c->capacity, at);
}

/* The range of operand `o` that [a, b) of a row-wise result reads: its own single element, or the same. */
static bool reads_range(const emitter *e, sbp_value o) {
    int64_t heads, n;
    sbp_row_form(&e->f->values[o].type, &heads, &n);
    return n > 1 || heads > 1;
}

/* Asks for the places inside a range of a value, once. */
static void look_at(emitter *e, sbp_value v, int64_t a, int64_t b, int64_t shift) {
    sbp_row_work *w = e->work;
    const sbp_op *op = def(e, v);
    if (is_leaf(e, v) || !op || sbp_opcode_class(op->code) != SBP_CLASS_ROWWISE)
        return;
    for (int32_t i = w->piece_of[v]; i >= 0; i = w->pieces[i].next)
        if (w->pieces[i].a == a && w->pieces[i].b == b && w->pieces[i].shift == shift)
            return;
    if (w->piece_count >= MAX_RANGES) {
        (void)give_up(e, CULPRIT_TOO_LARGE);
        return;
    }
    piece p = {.value = v, .a = a, .b = b, .shift = shift, .next = w->piece_of[v]};
    w->piece_of[v] = w->piece_count;
    SBP_PUSH(e->p->arena, w->pieces, w->piece_count, w->piece_capacity, p);
}

/* One step of find_cuts: the places that the op of a value brings, and ranges of its operands. */
static void cut_piece(emitter *e, piece p, cuts *c) {
    const sbp_op *op = def(e, p.value);
    int64_t heads, n, a = p.a, b = p.b;
    cuts local = {0};
    switch (op->code) {
    case SBP_OP_slice: {
        int64_t start = sbp_op_int(op, "start");
        look_at(e, op->operands[0], a + start, b + start, p.shift - start);
        break;
    }
    case SBP_OP_concat:
        sbp_row_form(&e->f->values[op->operands[0]].type, &heads, &n);
        add_cut(e, &local, n, a, b);
        if (a < n)
            look_at(e, op->operands[0], a, b < n ? b : n, p.shift);
        if (b > n)
            look_at(e, op->operands[1], a > n ? a - n : 0, b - n, p.shift + n);
        break;
    case SBP_OP_pad: {
        int64_t before = sbp_op_int(op, "before");
        sbp_row_form(&e->f->values[op->operands[0]].type, &heads, &n);
        add_cut(e, &local, before, a, b);
        add_cut(e, &local, before + n, a, b);
        int64_t lo = a > before ? a - before : 0, hi = b - before < n ? b - before : n;
        if (lo < hi)
            look_at(e, op->operands[0], lo, hi, p.shift + before);
        break;
    }
    case SBP_OP_row_sum:
    case SBP_OP_row_max:
    case SBP_OP_row_min:
        break;
    default:
        for (int32_t k = 0; k < op->operand_count; k++)
            if (op->operands[k] != SBP_NO_VALUE && reads_range(e, op->operands[k]))
                look_at(e, op->operands[k], a, b, p.shift);
        break;
    }
    for (int32_t i = 0; i < local.count; i++)
        SBP_PUSH(e->p->arena, c->at, c->count, c->capacity, local.at[i] + p.shift);
}

/* Places inside [a, b) of v where concat or pad change from one source to another. */
static void find_cuts(emitter *e, sbp_value v, int64_t a, int64_t b, cuts *c) {
    sbp_row_work *w = e->work;
    look_at(e, v, a, b, 0);
    for (int32_t i = 0; i < w->piece_count; i++)
        cut_piece(e, w->pieces[i], c);
    for (int32_t i = 0; i < w->piece_count; i++)
        w->piece_of[w->pieces[i].value] = -1;
    w->piece_count = 0;
}

static int compare_i64(const void *x, const void *y) {
    int64_t a = *(const int64_t *)x, b = *(const int64_t *)y;
    return (a > b) - (a < b);
}

/* [a, b) cut at every place found, as bounds a = bound[0] < ... < bound[count] = b. */
static int32_t ranges(emitter *e, sbp_value v, int64_t a, int64_t b, int64_t **bounds) {
    cuts c = {0};
    SBP_PUSH(e->p->arena, c.at, c.count, c.capacity, a);
    find_cuts(e, v, a, b, &c);
    SBP_PUSH(e->p->arena, c.at, c.count, c.capacity, b);
    qsort(c.at, (size_t)c.count, sizeof *c.at, compare_i64);
    int32_t kept = 0;
    for (int32_t i = 0; i < c.count; i++)
        if (kept == 0 || c.at[i] != c.at[kept - 1])
            c.at[kept++] = c.at[i];
    *bounds = c.at;
    return kept - 1;
}

/* ---- instructions ------------------------------------------------------------------------------------ */

static int32_t add(emitter *e, sbp_rk_instr instr) {
    if (e->k->instr_count >= SBP_ROWKERNEL_MAX_INSTRS)
        return give_up(e, CULPRIT_TOO_LARGE);
    return sbp_rowkernel_add(e->p->arena, e->k, &instr);
}

static sbp_rk_instr blank(sbp_rk_op op) {
    return (sbp_rk_instr){.op = op, .a = -1, .b = -1, .c = -1, .index = -1};
}

/* Adds an operand for a value: its axes as the kernel sees them. Names say nothing of the value, so that
 * equal kernels are one. */
static int32_t add_operand(emitter *e, sbp_value v, bool split, sbp_rk_mode mode, sbp_dtype dtype) {
    static const char *const mode_names[] = {"in", "out", "sum"};
    const sbp_type *type = &e->f->values[v].type;
    int64_t heads, n;
    sbp_row_form(type, &heads, &n);
    if (split) {
        heads = e->heads;
        n /= e->heads;
    }
    unsigned vary = 0;
    if (sbp_type_rows(type) != SBP_ONE || e->one_row)
        vary |= SBP_VARY_ROW;
    if (heads > 1)
        vary |= SBP_VARY_HEAD;
    if (n > 1)
        vary |= SBP_VARY_ELEM;
    if (e->k->operand_count >= SBP_ROWKERNEL_MAX_OPERANDS)
        return give_up(e, CULPRIT_TOO_LARGE);
    SBP_PUSH(e->p->arena, e->out->operands, e->out->operand_count, e->out->operand_capacity,
             mode == SBP_RK_PARTIAL ? v : e->stage->base[v]);
    return sbp_rowkernel_add_operand(
        e->p->arena, e->k,
        &(sbp_rk_operand){.name =
                              sbp_arena_printf(e->p->arena, "%s%d", mode_names[mode], e->k->operand_count),
                          .mode = mode,
                          .dtype = dtype,
                          .vary = (uint8_t)vary,
                          .length = n,
                          .head_stride = heads > 1 ? n : 0});
}

static int32_t emit(emitter *e, sbp_value v, bool split, int64_t a, int64_t b);

/* The number of a scalar of the step in the kernel. */
static int32_t scalar_number(emitter *e, sbp_value v) {
    const char *name = e->p->module->scalars[e->f->values[v].binding];
    for (int32_t i = 0; i < e->k->scalar_count; i++)
        if (strcmp(e->k->scalars[i], name) == 0)
            return i;
    if (e->k->scalar_count >= SBP_ROWKERNEL_MAX_SCALARS)
        return give_up(e, CULPRIT_TOO_LARGE);
    return sbp_rowkernel_add_scalar(e->p->arena, e->k, name);
}

static int32_t emit_load(emitter *e, sbp_value v, bool split, int64_t a, int64_t b) {
    const sbp_value_info *info = &e->f->values[v];
    if (info->role == SBP_VALUE_SCALAR) {
        sbp_rk_instr scalar = blank(SBP_RK_SCALAR);
        scalar.index = scalar_number(e, v);
        return e->culprit == SBP_NO_VALUE ? add(e, scalar) : 0;
    }
    int64_t heads, n;
    sbp_row_form(&info->type, &heads, &n);
    if (!split && heads > 1 && heads != e->heads)
        return give_up(e, CULPRIT_LEAF); /* its reader has to be cut off instead */
    sbp_rk_instr load = blank(SBP_RK_LOAD);
    for (int32_t i = 0; i < e->load_count; i++)
        if (e->loads[i].value == e->stage->base[v] && e->loads[i].split == split &&
            sbp_type_same_shape(&info->type, &e->f->values[e->loads[i].like].type))
            load.index = e->loads[i].operand;
    if (load.index < 0) {
        load.index = add_operand(e, v, split, SBP_RK_IN, info->type.dtype);
        if (e->culprit != SBP_NO_VALUE)
            return 0;
        e->loads =
            e->load_count >= e->load_capacity
                ? sbp_array_grow(e->p->arena, e->loads, &e->load_capacity, sizeof *e->loads, e->load_count)
                : e->loads;
        e->loads[e->load_count].value = e->stage->base[v];
        e->loads[e->load_count].like = v;
        e->loads[e->load_count].split = split;
        e->loads[e->load_count++].operand = load.index;
    }
    const sbp_rk_operand *operand = &e->k->operands[load.index];
    load.vary = operand->vary;
    load.length = operand->vary & SBP_VARY_ELEM ? b - a : 1;
    load.offset = operand->vary & SBP_VARY_ELEM ? a : 0;
    return add(e, load);
}

/* Operand `o` of a row-wise op whose result is emitted over [a, b). */
static int32_t emit_operand(emitter *e, sbp_value result, sbp_value o, bool split, int64_t a, int64_t b) {
    int64_t heads, n, result_heads, result_n;
    sbp_row_form(&e->f->values[o].type, &heads, &n);
    sbp_row_form(&e->f->values[result].type, &result_heads, &result_n);
    if (!split)
        return emit(e, o, false, n > 1 ? a : 0, n > 1 ? b : 1);
    if (heads == 1 && n == 1)
        return emit(e, o, false, 0, 1);
    if (heads == 1 && n == result_n)
        return emit(e, o, true, a, b);
    return give_up(e, result);
}

static int32_t emit_map(emitter *e, const sbp_op *op, bool split, int64_t a, int64_t b) {
    sbp_rk_instr map = blank(SBP_RK_MAP);
    map.map = sbp_opcode_rowop(op->code);
    int32_t *args[] = {&map.a, &map.b, &map.c};
    for (int32_t i = 0; i < SBP_COUNT(args) && i < sbp_rowop_arity(map.map); i++)
        *args[i] = emit_operand(e, op->results[0], op->operands[i], split, a, b);
    return e->culprit == SBP_NO_VALUE ? add(e, map) : 0;
}

static int32_t emit_reduction(emitter *e, const sbp_op *op, int64_t a, int64_t b) {
    sbp_value x = op->operands[0];
    int64_t heads, n, axis = op->code == SBP_OP_row_sum ? sbp_op_int(op, "axis") : -1;
    sbp_row_form(&e->f->values[x].type, &heads, &n);
    sbp_rk_op kind = op->code == SBP_OP_row_sum   ? SBP_RK_SUM
                     : op->code == SBP_OP_row_max ? SBP_RK_MAX
                                                  : SBP_RK_MIN;
    sbp_rowop join = op->code == SBP_OP_row_sum   ? SBP_ROWOP_add
                     : op->code == SBP_OP_row_max ? SBP_ROWOP_max
                                                  : SBP_ROWOP_min;
    if (axis == -1) {
        int64_t *bounds;
        int32_t count = ranges(e, x, 0, n, &bounds), total = -1;
        for (int32_t i = 0; i < count && e->culprit == SBP_NO_VALUE; i++) {
            int32_t part = emit(e, x, false, bounds[i], bounds[i + 1]);
            if (e->culprit != SBP_NO_VALUE)
                return 0;
            if (e->k->instrs[part].vary & SBP_VARY_ELEM) {
                sbp_rk_instr reduce = blank(kind);
                reduce.a = part;
                reduce.axes = SBP_VARY_ELEM;
                part = add(e, reduce);
            } else if (kind == SBP_RK_SUM &&
                       bounds[i + 1] - bounds[i] > 1) { /* the same number that many times */
                sbp_rk_instr times = blank(SBP_RK_CONST), product = blank(SBP_RK_MAP);
                times.imm = (double)(bounds[i + 1] - bounds[i]);
                product.map = SBP_ROWOP_mul;
                product.a = part;
                product.b = add(e, times);
                part = add(e, product);
            }
            if (total >= 0) {
                sbp_rk_instr both = blank(SBP_RK_MAP);
                both.map = join;
                both.a = total;
                both.b = part;
                part = add(e, both);
            }
            total = part;
        }
        return total < 0 ? 0 : total;
    }
    int32_t value = emit(e, x, false, a, b); /* over the heads */
    if (e->culprit != SBP_NO_VALUE)
        return 0;
    if (e->f->values[x].type.rank + axis < 0 || heads == 1)
        return value;
    sbp_rk_instr reduce = blank(kind);
    reduce.a = value;
    reduce.axes = SBP_VARY_HEAD;
    if (!(e->k->instrs[value].vary & SBP_VARY_HEAD))
        return give_up(e, x);
    return add(e, reduce);
}

static int32_t emit_reshape(emitter *e, const sbp_op *op, bool split, int64_t a, int64_t b) {
    sbp_value x = op->operands[0], y = op->results[0];
    int64_t heads, n, x_heads, x_n;
    sbp_row_form(&e->f->values[y].type, &heads, &n);
    sbp_row_form(&e->f->values[x].type, &x_heads, &x_n);
    if (split) {
        heads = e->heads;
        n /= e->heads;
    }
    if (x_heads == heads && x_n == n)
        return emit(e, x, false, a, b);
    if (x_heads == 1 && heads == e->heads && x_n == heads * n)
        return emit(e, x, true, a, b);
    if (x_heads * x_n == 1)
        return emit(e, x, false, 0, 1);
    return give_up(e, x);
}

static bool is_narrow(sbp_dtype dtype) {
    return dtype != SBP_F64 && dtype != SBP_F32 && dtype != SBP_I64 && dtype != SBP_BOOL;
}

static int32_t emit_round(emitter *e, int32_t value, sbp_dtype dtype) {
    sbp_rk_instr round = blank(SBP_RK_ROUND);
    round.a = value;
    round.dtype = dtype;
    return e->culprit == SBP_NO_VALUE ? add(e, round) : 0;
}

static int32_t emit_cast(emitter *e, const sbp_op *op, bool split, int64_t a, int64_t b) {
    int32_t x = emit_operand(e, op->results[0], op->operands[0], split, a, b);
    sbp_dtype to = (sbp_dtype)sbp_op_int(op, "to"), from = e->f->values[op->operands[0]].type.dtype;
    bool narrows = sbp_dtype_is_float(from) && sbp_dtype_bytes(to) < sbp_dtype_bytes(from) &&
                   sbp_dtype_bytes(to) < sbp_dtype_bytes(e->k->compute);
    if (!narrows || is_narrow(to) || e->f->values[op->operands[0]].role == SBP_VALUE_SCALAR)
        return x;
    return emit_round(e, x, to);
}

/* Elements count inside a head, so a range is an offset; seen with other heads it would be other numbers. */
static int32_t emit_random(emitter *e, const sbp_op *op, sbp_value v, bool split, int64_t a, int64_t b) {
    sbp_rk_instr random = blank(SBP_RK_RANDOM);
    sbp_value stream = op->operands[0], key = op->operands[1];
    int64_t heads, n;
    sbp_row_form(&e->f->values[v].type, &heads, &n);
    if (split || e->f->values[key].role != SBP_VALUE_SCALAR)
        return give_up(e, v);
    random.index = scalar_number(e, key);
    random.a = emit(e, stream, false, 0, 1);
    if (op->operands[2] != SBP_NO_VALUE) {
        random.b = emit(e, op->operands[2], false, 0, 1);
        random.c = emit(e, op->operands[3], false, 0, 1);
    }
    random.vary = SBP_VARY_ROW;
    if (heads > 1)
        random.vary |= SBP_VARY_HEAD;
    if (n > 1)
        random.vary |= SBP_VARY_ELEM;
    random.length = n > 1 ? b - a : 1;
    random.offset = n > 1 ? a : 0;
    return e->culprit == SBP_NO_VALUE ? add(e, random) : 0;
}

/* Whether the op may compute numbers that are none of its operands' and not yet of its result's type. */
static bool computes(const sbp_op *op) {
    switch (op->code) {
    case SBP_OP_reshape:
    case SBP_OP_stop_gradient:
    case SBP_OP_broadcast:
    case SBP_OP_slice:
    case SBP_OP_concat:
    case SBP_OP_pad:
    case SBP_OP_row_max:
    case SBP_OP_row_min:
    case SBP_OP_max:
    case SBP_OP_min:
    case SBP_OP_neg:
    case SBP_OP_abs:
    case SBP_OP_select:
        return false;
    default:
        return true;
    }
}

static int32_t emit_op(emitter *e, const sbp_op *op, sbp_value v, bool split, int64_t a, int64_t b) {
    sbp_rk_instr instr;
    int64_t heads, n;
    switch (op->code) {
    case SBP_OP_constant:
        instr = blank(SBP_RK_CONST);
        instr.imm = sbp_op_double(op, "value");
        return add(e, instr);
    case SBP_OP_iota:
        if (split)
            return give_up(e, v);
        instr = blank(SBP_RK_INDEX);
        instr.offset = a;
        instr.vary = b - a > 1 || sbp_op_int(op, "n") > 1 ? SBP_VARY_ELEM : 0;
        instr.length = b - a;
        return add(e, instr);
    case SBP_OP_random:
        return emit_random(e, op, v, split, a, b);
    case SBP_OP_reshape:
        return emit_reshape(e, op, split, a, b);
    case SBP_OP_stop_gradient:
    case SBP_OP_broadcast:
        return emit_operand(e, v, op->operands[0], split, a, b);
    case SBP_OP_cast:
        return emit_cast(e, op, split, a, b);
    case SBP_OP_slice:
        return split ? give_up(e, v)
                     : emit(e, op->operands[0], false, a + sbp_op_int(op, "start"),
                            b + sbp_op_int(op, "start"));
    case SBP_OP_concat:
        sbp_row_form(&e->f->values[op->operands[0]].type, &heads, &n);
        if (split || (a < n && b > n))
            return give_up(e, v);
        return a < n ? emit(e, op->operands[0], false, a, b) : emit(e, op->operands[1], false, a - n, b - n);
    case SBP_OP_pad:
        sbp_row_form(&e->f->values[op->operands[0]].type, &heads, &n);
        a -= sbp_op_int(op, "before");
        b -= sbp_op_int(op, "before");
        if (split || (a < 0 && b > 0) || (a < n && b > n))
            return give_up(e, v);
        if (a >= 0 && b <= n)
            return emit(e, op->operands[0], false, a, b);
        return add(e, blank(SBP_RK_CONST));
    case SBP_OP_row_sum:
    case SBP_OP_row_max:
    case SBP_OP_row_min:
        return emit_reduction(e, op, a, b);
    default:
        return emit_map(e, op, split, a, b);
    }
}

static void remember(emitter *e, memo m) {
    sbp_row_work *w = e->work;
    m.next = w->memo_of[m.value];
    w->memo_of[m.value] = w->memo_count;
    SBP_PUSH(e->p->arena, w->memos, w->memo_count, w->memo_capacity, m);
}

/* Forgets memos of instructions from `instr` on. */
static void forget(emitter *e, int32_t instr) {
    sbp_row_work *w = e->work;
    int32_t count = w->memo_count;
    for (int32_t i = 0; i < count; i++)
        w->memo_of[w->memos[i].value] = -1;
    w->memo_count = 0;
    for (int32_t i = 0; i < count; i++)
        if (w->memos[i].instr < instr)
            remember(e, w->memos[i]);
}

/* The instruction that holds [a, b) of v. */
static int32_t emit(emitter *e, sbp_value v, bool split, int64_t a, int64_t b) {
    if (e->culprit != SBP_NO_VALUE)
        return 0;
    for (int32_t i = e->work->memo_of[v]; i >= 0; i = e->work->memos[i].next) {
        const memo *m = &e->work->memos[i];
        if (m->split == split && m->a == a && m->b == b)
            return m->instr;
    }
    const sbp_op *op = def(e, v);
    int64_t heads, n;
    sbp_row_form(&e->f->values[v].type, &heads, &n);
    bool leaf = is_leaf(e, v) || !op;
    if (!split && heads > 1 && heads != e->heads)
        return give_up(e, leaf ? CULPRIT_LEAF : v);
    if (e->depth >= MAX_DEPTH)
        return give_up(e, CULPRIT_TOO_LARGE);
    e->depth++;
    int32_t instr = leaf ? emit_load(e, v, split, a, b) : emit_op(e, op, v, split, a, b);
    if (!leaf && is_narrow(e->f->values[v].type.dtype) && computes(op))
        instr = emit_round(e, instr, e->f->values[v].type.dtype);
    e->depth--;
    if (e->culprit == SBP_NO_VALUE)
        remember(e, (memo){.value = v, .split = split, .a = a, .b = b, .instr = instr});
    return instr;
}

/* ---- a whole kernel ---------------------------------------------------------------------------------- */

typedef struct survey {
    int64_t heads; /* the one count above 1 that occurs, or 1 */
    bool has_f64;
} survey;

static void see(sbp_row_work *w, sbp_value v) {
    if (w->seen[v] == w->survey)
        return;
    w->seen[v] = w->survey;
    w->list[w->list_count++] = v;
}

/* One number in memory that is cast to fp32: a load of a kernel that computes in fp32 rounds it. */
static bool loads_as_f32(const emitter *e, const sbp_op *op) {
    if (op->code != SBP_OP_cast || sbp_op_int(op, "to") != SBP_F32 || !is_leaf(e, op->operands[0]))
        return false;
    const sbp_type *from = &e->f->values[op->operands[0]].type;
    return from->dtype == SBP_F64 && sbp_type_rows(from) == SBP_ONE && sbp_type_row_elems(from) == 1;
}

static void look(emitter *e, sbp_value v, survey *s) {
    const sbp_value_info *info = &e->f->values[v];
    int64_t heads, n;
    sbp_row_form(&info->type, &heads, &n);
    if (heads > s->heads)
        s->heads = heads;
    const sbp_op *op = def(e, v);
    bool leaf = is_leaf(e, v) || !op;
    if (info->type.dtype == SBP_F64 && info->role != SBP_VALUE_SCALAR &&
        !(op && op->code == SBP_OP_constant) &&
        !(op && op->code == SBP_OP_cast && e->f->values[op->operands[0]].role == SBP_VALUE_SCALAR))
        s->has_f64 = true;
    for (int32_t k = 0; !leaf && k < op->operand_count; k++)
        if (op->operands[k] != SBP_NO_VALUE && !loads_as_f32(e, op))
            see(e->work, op->operands[k]);
}

/* The value a root stands for: what a sum over rows adds up, or itself. */
static sbp_value summand(const emitter *e, sbp_value root) {
    const sbp_op *op = def(e, root);
    return op && op->code == SBP_OP_sum_rows ? op->operands[0] : root;
}

/* Stores a root, or adds it to a partial, range by range. */
static void emit_root(emitter *e, sbp_value root, sbp_rk_instr **stores, int32_t *count, int32_t *capacity) {
    sbp_value v = summand(e, root);
    bool partial = v != root, split = false;
    int64_t heads, n;
    sbp_row_form(&e->f->values[v].type, &heads, &n);
    if (e->heads > 1 && heads == 1 && n > 1 && n % e->heads == 0 &&
        !partial) { /* flat beside heads: try as heads */
        int32_t before = e->k->instr_count;
        sbp_value culprit = e->culprit;
        emit(e, v, true, 0, n / e->heads);
        split = e->culprit == SBP_NO_VALUE &&
                (e->k->instrs[e->k->instr_count - 1].vary & SBP_VARY_HEAD || before == 0);
        if (e->culprit != culprit) {
            e->culprit = culprit;
            e->k->instr_count = before;
            forget(e, before);
        }
    }
    sbp_dtype dtype = e->f->values[root].type.dtype;
    int32_t operand =
        add_operand(e, root, split, partial ? SBP_RK_PARTIAL : SBP_RK_OUT, partial ? e->k->compute : dtype);
    int64_t *bounds, width = split ? n / e->heads : n;
    int32_t pieces = ranges(e, v, 0, width, &bounds);
    for (int32_t i = 0; i < pieces && e->culprit == SBP_NO_VALUE; i++) {
        sbp_rk_instr store = blank(partial ? SBP_RK_PARTIAL_ADD : SBP_RK_STORE);
        store.index = operand;
        store.a = emit(e, v, split, bounds[i], bounds[i + 1]);
        store.vary = e->k->operands[operand].vary;
        store.length = store.vary & SBP_VARY_ELEM ? bounds[i + 1] - bounds[i] : 1;
        store.offset = store.vary & SBP_VARY_ELEM ? bounds[i] : 0;
        SBP_PUSH(e->p->arena, *stores, *count, *capacity, store);
    }
}

/* A store rounds: it need not wait for a rounding to the same type that nothing else reads. */
static void store_unrounded(emitter *e, sbp_rk_instr *stores, int32_t count) {
    sbp_rowkernel *k = e->k;
    int32_t *others =
        SBP_NEW_ARRAY(e->p->arena, int32_t, k->instr_count + 1); /* readers that are no stores */
    int32_t *number = SBP_NEW_ARRAY(e->p->arena, int32_t, k->instr_count + 1); /* after the removal */
    for (int32_t i = 0; i < k->instr_count; i++) {
        const int32_t args[] = {k->instrs[i].a, k->instrs[i].b, k->instrs[i].c};
        for (int j = 0; j < SBP_COUNT(args); j++)
            if (args[j] >= 0)
                others[args[j]]++;
    }
    for (int32_t i = 0; i < count; i++)
        if (stores[i].op != SBP_RK_STORE ||
            k->operands[stores[i].index].dtype != k->instrs[stores[i].a].dtype)
            others[stores[i].a]++;
    for (int32_t i = 0; i < count; i++)
        if (k->instrs[stores[i].a].op == SBP_RK_ROUND && others[stores[i].a] == 0)
            stores[i].a = k->instrs[stores[i].a].a;
    int32_t kept = 0;
    for (int32_t i = 0; i < k->instr_count; i++) {
        sbp_rk_instr *instr = &k->instrs[i];
        int32_t *args[] = {&instr->a, &instr->b, &instr->c};
        if (instr->op == SBP_RK_ROUND && others[i] == 0)
            continue;
        for (int j = 0; j < SBP_COUNT(args); j++)
            if (*args[j] >= 0)
                *args[j] = number[*args[j]];
        number[i] = kept;
        k->instrs[kept++] = *instr;
    }
    k->instr_count = kept;
    for (int32_t i = 0; i < count; i++)
        stores[i].a = number[stores[i].a];
}

static int compare_i32(const void *x, const void *y) {
    int32_t a = *(const int32_t *)x, b = *(const int32_t *)y;
    return (a > b) - (a < b);
}

/* Of a kernel that has become too large: a value of rows in the middle of what it computes. */
static sbp_value middle(const emitter *e, const sbp_row_group *group) {
    int32_t *ops = SBP_NEW_ARRAY(e->p->arena, int32_t, e->work->list_count + 1), count = 0;
    for (int32_t i = 0; i < e->work->list_count; i++) {
        sbp_value v = e->work->list[i];
        if (def(e, v) && def(e, v)->results[0] == v && !e->materialized[e->stage->base[v]] &&
            e->stage->base[v] == v && sbp_row_can_be_stored(&e->f->values[v].type) &&
            v != summand(e, group->roots[0]))
            ops[count++] = e->f->values[v].op;
    }
    qsort(ops, (size_t)count, sizeof *ops, compare_i32);
    return count > 0 ? e->f->ops[ops[count / 2]].results[0] : group->roots[0];
}

/* A leaf cannot be cut: the first row-wise reader with other heads. */
static sbp_value other_heads(const emitter *e) {
    sbp_value first = CULPRIT_LEAF;
    for (int32_t i = 0; i < e->work->list_count; i++) {
        sbp_value v = e->work->list[i];
        int64_t heads, n;
        sbp_row_form(&e->f->values[v].type, &heads, &n);
        if (!e->materialized[v] && heads > 1 && heads != e->heads && (first < 0 || v < first))
            first = v;
    }
    return first;
}

static bool too_large(const sbp_rowkernel *k, int32_t stores) {
    return k->operand_count > SBP_ROWKERNEL_MAX_OPERANDS || k->scalar_count > SBP_ROWKERNEL_MAX_SCALARS ||
           k->instr_count + stores > SBP_ROWKERNEL_MAX_INSTRS;
}

sbp_row_work *sbp_row_work_create(sbp_arena *arena, const sbp_func *body) {
    int32_t n = body->value_count + 1;
    sbp_row_work *w = SBP_NEW(arena, sbp_row_work);
    w->own = SBP_NEW_ARRAY(arena, bool, n);
    w->memo_of = SBP_NEW_ARRAY(arena, int32_t, n);
    w->piece_of = SBP_NEW_ARRAY(arena, int32_t, n);
    w->seen = SBP_NEW_ARRAY(arena, int32_t, n);
    w->list = SBP_NEW_ARRAY(arena, sbp_value, n);
    for (int32_t v = 0; v < n; v++)
        w->memo_of[v] = w->piece_of[v] = -1;
    return w;
}

/* All values that the roots are computed from, in w->list. */
static void survey_group(emitter *e, const sbp_row_group *group, survey *s) {
    sbp_row_work *w = e->work;
    w->survey++;
    w->list_count = 0;
    for (int32_t i = 0; i < group->root_count; i++)
        see(w, summand(e, group->roots[i]));
    for (int32_t i = 0; i < w->list_count; i++)
        look(e, w->list[i], s);
}

void sbp_row_build(sbp_pipeline *p, const sbp_stage *stage, sbp_row_work *work, const bool *materialized,
                   const sbp_row_group *group, const char *name, sbp_row_kernel *out, sbp_value *culprit) {
    sbp_row_kernel kernel = {0};
    emitter e = {.p = p,
                 .stage = stage,
                 .f = stage->body,
                 .materialized = materialized,
                 .work = work,
                 .out = &kernel,
                 .culprit = SBP_NO_VALUE};
    survey s = {.heads = 1};
    for (int32_t i = 0; i < group->root_count; i++)
        work->own[group->roots[i]] = true;
    survey_group(&e, group, &s);
    e.heads = s.heads;
    e.one_row = sbp_type_rows(&e.f->values[summand(&e, group->roots[0])].type) == SBP_ONE;
    e.k = kernel.kernel = sbp_rowkernel_create(p->arena, name, s.has_f64 ? SBP_F64 : SBP_F32);
    e.k->heads = e.heads;
    sbp_rk_instr *stores = NULL;
    int32_t count = 0, capacity = 0;
    for (int32_t i = 0; i < group->root_count && e.culprit == SBP_NO_VALUE; i++)
        emit_root(&e, group->roots[i], &stores, &count, &capacity);
    if (e.culprit == SBP_NO_VALUE)
        store_unrounded(&e, stores, count);
    forget(&e, 0);
    for (int32_t i = 0; i < group->root_count; i++)
        work->own[group->roots[i]] = false;
    if (e.culprit == CULPRIT_LEAF)
        e.culprit = other_heads(&e);
    if (e.culprit == CULPRIT_TOO_LARGE || (e.culprit == SBP_NO_VALUE && too_large(e.k, count)))
        e.culprit = middle(&e, group);
    *culprit = e.culprit;
    if (e.culprit != SBP_NO_VALUE)
        return;
    for (int32_t i = 0; i < count; i++)
        sbp_rowkernel_add(p->arena, e.k, &stores[i]);
    *out = kernel;
}
