/* rowbuild_emit.c: the instructions that compute ranges of the values of a body. */
#include "passes/rows/rowbuild_internal.h"

#include <string.h>

static int32_t add(sbp_row_emitter *e, sbp_rk_instr instr) {
    if (e->k->instr_count >= SBP_ROWKERNEL_MAX_INSTRS)
        return sbp_row_give_up(e, SBP_ROW_TOO_LARGE);
    return sbp_rowkernel_add(e->p->arena, e->k, &instr);
}

sbp_rk_instr sbp_row_blank(sbp_rk_op op) {
    return (sbp_rk_instr){.op = op, .a = -1, .b = -1, .c = -1, .index = -1};
}

/* Adds an operand for a value: its axes as the kernel sees them. Names say nothing of the value, so that
 * equal kernels are one. */
int32_t sbp_row_add_operand(sbp_row_emitter *e, sbp_value v, bool split, sbp_rk_mode mode, sbp_dtype dtype) {
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
        return sbp_row_give_up(e, SBP_ROW_TOO_LARGE);
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

/* The number of a scalar of the step in the kernel. */
static int32_t scalar_number(sbp_row_emitter *e, sbp_value v) {
    const char *name = e->p->module->scalars[e->f->values[v].binding];
    for (int32_t i = 0; i < e->k->scalar_count; i++)
        if (strcmp(e->k->scalars[i], name) == 0)
            return i;
    if (e->k->scalar_count >= SBP_ROWKERNEL_MAX_SCALARS)
        return sbp_row_give_up(e, SBP_ROW_TOO_LARGE);
    return sbp_rowkernel_add_scalar(e->p->arena, e->k, name);
}

static int32_t emit_load(sbp_row_emitter *e, sbp_value v, bool split, int64_t a, int64_t b) {
    const sbp_value_info *info = &e->f->values[v];
    if (info->role == SBP_VALUE_SCALAR) {
        sbp_rk_instr scalar = sbp_row_blank(SBP_RK_SCALAR);
        scalar.index = scalar_number(e, v);
        return e->culprit == SBP_NO_VALUE ? add(e, scalar) : 0;
    }
    int64_t heads, n;
    sbp_row_form(&info->type, &heads, &n);
    if (!split && heads > 1 && heads != e->heads)
        return sbp_row_give_up(e, SBP_ROW_LEAF); /* its reader has to be cut off instead */
    sbp_rk_instr load = sbp_row_blank(SBP_RK_LOAD);
    for (int32_t i = 0; i < e->load_count; i++)
        if (e->loads[i].value == e->stage->base[v] && e->loads[i].split == split &&
            sbp_type_same_shape(&info->type, &e->f->values[e->loads[i].like].type))
            load.index = e->loads[i].operand;
    if (load.index < 0) {
        load.index = sbp_row_add_operand(e, v, split, SBP_RK_IN, info->type.dtype);
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
static int32_t emit_operand(sbp_row_emitter *e, sbp_value result, sbp_value o, bool split, int64_t a,
                            int64_t b) {
    int64_t heads, n, result_heads, result_n;
    sbp_row_form(&e->f->values[o].type, &heads, &n);
    sbp_row_form(&e->f->values[result].type, &result_heads, &result_n);
    if (!split)
        return sbp_row_emit(e, o, false, n > 1 ? a : 0, n > 1 ? b : 1);
    if (heads == 1 && n == 1)
        return sbp_row_emit(e, o, false, 0, 1);
    if (heads == 1 && n == result_n)
        return sbp_row_emit(e, o, true, a, b);
    return sbp_row_give_up(e, result);
}

static int32_t emit_map(sbp_row_emitter *e, const sbp_op *op, bool split, int64_t a, int64_t b) {
    sbp_rk_instr map = sbp_row_blank(SBP_RK_MAP);
    map.map = sbp_opcode_rowop(op->code);
    int32_t *args[] = {&map.a, &map.b, &map.c};
    for (int32_t i = 0; i < SBP_COUNT(args) && i < sbp_rowop_arity(map.map); i++)
        *args[i] = emit_operand(e, op->results[0], op->operands[i], split, a, b);
    return e->culprit == SBP_NO_VALUE ? add(e, map) : 0;
}

static int32_t emit_reduction(sbp_row_emitter *e, const sbp_op *op, int64_t a, int64_t b) {
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
        int32_t count = sbp_row_ranges(e, x, 0, n, &bounds), total = -1;
        for (int32_t i = 0; i < count && e->culprit == SBP_NO_VALUE; i++) {
            int32_t part = sbp_row_emit(e, x, false, bounds[i], bounds[i + 1]);
            if (e->culprit != SBP_NO_VALUE)
                return 0;
            if (e->k->instrs[part].vary & SBP_VARY_ELEM) {
                sbp_rk_instr reduce = sbp_row_blank(kind);
                reduce.a = part;
                reduce.axes = SBP_VARY_ELEM;
                part = add(e, reduce);
            } else if (kind == SBP_RK_SUM &&
                       bounds[i + 1] - bounds[i] > 1) { /* the same number that many times */
                sbp_rk_instr times = sbp_row_blank(SBP_RK_CONST), product = sbp_row_blank(SBP_RK_MAP);
                times.imm = (double)(bounds[i + 1] - bounds[i]);
                product.map = SBP_ROWOP_mul;
                product.a = part;
                product.b = add(e, times);
                part = add(e, product);
            }
            if (total >= 0) {
                sbp_rk_instr both = sbp_row_blank(SBP_RK_MAP);
                both.map = join;
                both.a = total;
                both.b = part;
                part = add(e, both);
            }
            total = part;
        }
        return total < 0 ? 0 : total;
    }
    int32_t value = sbp_row_emit(e, x, false, a, b); /* over the heads */
    if (e->culprit != SBP_NO_VALUE)
        return 0;
    if (e->f->values[x].type.rank + axis < 0 || heads == 1)
        return value;
    sbp_rk_instr reduce = sbp_row_blank(kind);
    reduce.a = value;
    reduce.axes = SBP_VARY_HEAD;
    if (!(e->k->instrs[value].vary & SBP_VARY_HEAD))
        return sbp_row_give_up(e, x);
    return add(e, reduce);
}

static int32_t emit_reshape(sbp_row_emitter *e, const sbp_op *op, bool split, int64_t a, int64_t b) {
    sbp_value x = op->operands[0], y = op->results[0];
    int64_t heads, n, x_heads, x_n;
    sbp_row_form(&e->f->values[y].type, &heads, &n);
    sbp_row_form(&e->f->values[x].type, &x_heads, &x_n);
    if (split) {
        heads = e->heads;
        n /= e->heads;
    }
    if (x_heads == heads && x_n == n)
        return sbp_row_emit(e, x, false, a, b);
    if (x_heads == 1 && heads == e->heads && x_n == heads * n)
        return sbp_row_emit(e, x, true, a, b);
    if (x_heads * x_n == 1)
        return sbp_row_emit(e, x, false, 0, 1);
    return sbp_row_give_up(e, x);
}

static bool is_narrow(sbp_dtype dtype) {
    return dtype != SBP_F64 && dtype != SBP_F32 && dtype != SBP_I64 && dtype != SBP_BOOL;
}

static int32_t emit_round(sbp_row_emitter *e, int32_t value, sbp_dtype dtype) {
    sbp_rk_instr round = sbp_row_blank(SBP_RK_ROUND);
    round.a = value;
    round.dtype = dtype;
    return e->culprit == SBP_NO_VALUE ? add(e, round) : 0;
}

static int32_t emit_cast(sbp_row_emitter *e, const sbp_op *op, bool split, int64_t a, int64_t b) {
    int32_t x = emit_operand(e, op->results[0], op->operands[0], split, a, b);
    sbp_dtype to = (sbp_dtype)sbp_op_int(op, "to"), from = e->f->values[op->operands[0]].type.dtype;
    bool narrows = sbp_dtype_is_float(from) && sbp_dtype_bytes(to) < sbp_dtype_bytes(from) &&
                   sbp_dtype_bytes(to) < sbp_dtype_bytes(e->k->compute);
    if (!narrows || is_narrow(to) || e->f->values[op->operands[0]].role == SBP_VALUE_SCALAR)
        return x;
    return emit_round(e, x, to);
}

/* Elements count inside a head, so a range is an offset; seen with other heads it would be other numbers. */
static int32_t emit_random(sbp_row_emitter *e, const sbp_op *op, sbp_value v, bool split, int64_t a,
                           int64_t b) {
    sbp_rk_instr random = sbp_row_blank(SBP_RK_RANDOM);
    sbp_value stream = op->operands[0], key = op->operands[1];
    int64_t heads, n;
    sbp_row_form(&e->f->values[v].type, &heads, &n);
    if (split || e->f->values[key].role != SBP_VALUE_SCALAR)
        return sbp_row_give_up(e, v);
    random.index = scalar_number(e, key);
    random.a = sbp_row_emit(e, stream, false, 0, 1);
    if (op->operands[2] != SBP_NO_VALUE) {
        random.b = sbp_row_emit(e, op->operands[2], false, 0, 1);
        random.c = sbp_row_emit(e, op->operands[3], false, 0, 1);
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

/* A slice of one element has no elements to be seen with: it is their sum. */
static int32_t emit_slice(sbp_row_emitter *e, const sbp_op *op, int64_t a, int64_t b) {
    int64_t heads, n, start = sbp_op_int(op, "start");
    sbp_row_form(&e->f->values[op->results[0]].type, &heads, &n);
    int32_t part = sbp_row_emit(e, op->operands[0], false, a + start, b + start);
    if (n > 1 || e->culprit != SBP_NO_VALUE || !(e->k->instrs[part].vary & SBP_VARY_ELEM))
        return part;
    sbp_rk_instr only = sbp_row_blank(SBP_RK_SUM);
    only.a = part;
    only.axes = SBP_VARY_ELEM;
    return add(e, only);
}

static int32_t emit_op(sbp_row_emitter *e, const sbp_op *op, sbp_value v, bool split, int64_t a, int64_t b) {
    sbp_rk_instr instr;
    int64_t heads, n;
    switch (op->code) {
    case SBP_OP_constant:
        instr = sbp_row_blank(SBP_RK_CONST);
        instr.imm = sbp_op_double(op, "value");
        return add(e, instr);
    case SBP_OP_iota:
        if (split)
            return sbp_row_give_up(e, v);
        instr = sbp_row_blank(SBP_RK_INDEX);
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
        return split ? sbp_row_give_up(e, v) : emit_slice(e, op, a, b);
    case SBP_OP_concat:
        sbp_row_form(&e->f->values[op->operands[0]].type, &heads, &n);
        if (split || (a < n && b > n))
            return sbp_row_give_up(e, v);
        return a < n ? sbp_row_emit(e, op->operands[0], false, a, b)
                     : sbp_row_emit(e, op->operands[1], false, a - n, b - n);
    case SBP_OP_pad:
        sbp_row_form(&e->f->values[op->operands[0]].type, &heads, &n);
        a -= sbp_op_int(op, "before");
        b -= sbp_op_int(op, "before");
        if (split || (a < 0 && b > 0) || (a < n && b > n))
            return sbp_row_give_up(e, v);
        if (a >= 0 && b <= n)
            return sbp_row_emit(e, op->operands[0], false, a, b);
        return add(e, sbp_row_blank(SBP_RK_CONST));
    case SBP_OP_row_sum:
    case SBP_OP_row_max:
    case SBP_OP_row_min:
        if (split && op->code == SBP_OP_row_sum && sbp_op_int(op, "axis") != -1)
            return sbp_row_give_up(e, v); /* a sum over the heads of x has none to be seen with */
        return emit_reduction(e, op, a, b);
    default:
        return emit_map(e, op, split, a, b);
    }
}

static void remember(sbp_row_emitter *e, sbp_row_memo m) {
    sbp_row_work *w = e->work;
    m.next = w->memo_of[m.value];
    w->memo_of[m.value] = w->memo_count;
    SBP_PUSH(e->p->arena, w->memos, w->memo_count, w->memo_capacity, m);
}

/* Forgets memos of instructions from `instr` on. */
void sbp_row_forget(sbp_row_emitter *e, int32_t instr) {
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
int32_t sbp_row_emit(sbp_row_emitter *e, sbp_value v, bool split, int64_t a, int64_t b) {
    if (e->culprit != SBP_NO_VALUE)
        return 0;
    for (int32_t i = e->work->memo_of[v]; i >= 0; i = e->work->memos[i].next) {
        const sbp_row_memo *m = &e->work->memos[i];
        if (m->split == split && m->a == a && m->b == b)
            return m->instr;
    }
    const sbp_op *op = sbp_row_def(e, v);
    int64_t heads, n;
    sbp_row_form(&e->f->values[v].type, &heads, &n);
    bool leaf = sbp_row_is_leaf(e, v) || !op;
    if (!split && heads > 1 && heads != e->heads)
        return sbp_row_give_up(e, leaf ? SBP_ROW_LEAF : v);
    if (e->depth >= SBP_ROW_MAX_DEPTH)
        return sbp_row_give_up(e, SBP_ROW_TOO_LARGE);
    e->depth++;
    int32_t instr = leaf ? emit_load(e, v, split, a, b) : emit_op(e, op, v, split, a, b);
    if (!leaf && is_narrow(e->f->values[v].type.dtype) && computes(op))
        instr = emit_round(e, instr, e->f->values[v].type.dtype);
    e->depth--;
    if (e->culprit == SBP_NO_VALUE)
        remember(e, (sbp_row_memo){.value = v, .split = split, .a = a, .b = b, .instr = instr});
    return instr;
}
