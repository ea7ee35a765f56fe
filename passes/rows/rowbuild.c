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
 * a value once and keeps its own stack. Only `emit` calls itself, SBP_ROW_MAX_DEPTH deep: what is deeper is
 * too large for one kernel and is cut in the middle, like what has too many instructions or operands.
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
#include "passes/rows/rowbuild_internal.h"

#include <stdlib.h>
#include <string.h>

typedef struct survey {
    int64_t heads; /* the largest count that occurs */
    bool has_f64;
} survey;

static void see(sbp_row_work *w, sbp_value v) {
    if (w->seen[v] == w->survey)
        return;
    w->seen[v] = w->survey;
    w->list[w->list_count++] = v;
}

/* One number in memory that is cast to fp32: a load of a kernel that computes in fp32 rounds it. */
static bool loads_as_f32(const sbp_row_emitter *e, const sbp_op *op) {
    if (op->code != SBP_OP_cast || sbp_op_int(op, "to") != SBP_F32 || !sbp_row_is_leaf(e, op->operands[0]))
        return false;
    const sbp_type *from = &e->f->values[op->operands[0]].type;
    return from->dtype == SBP_F64 && sbp_type_rows(from) == SBP_ONE && sbp_type_row_elems(from) == 1;
}

static void look(sbp_row_emitter *e, sbp_value v, survey *s) {
    const sbp_value_info *info = &e->f->values[v];
    int64_t heads, n;
    sbp_row_form(&info->type, &heads, &n);
    if (heads > s->heads)
        s->heads = heads;
    const sbp_op *op = sbp_row_def(e, v);
    bool leaf = sbp_row_is_leaf(e, v) || !op;
    if (info->type.dtype == SBP_F64 && info->role != SBP_VALUE_SCALAR &&
        !(op && op->code == SBP_OP_constant) &&
        !(op && op->code == SBP_OP_cast && e->f->values[op->operands[0]].role == SBP_VALUE_SCALAR))
        s->has_f64 = true;
    for (int32_t k = 0; !leaf && k < op->operand_count; k++)
        if (op->operands[k] != SBP_NO_VALUE && !loads_as_f32(e, op))
            see(e->work, op->operands[k]);
}

/* The value a root stands for: what a sum over rows adds up, or itself. */
static sbp_value summand(const sbp_row_emitter *e, sbp_value root) {
    const sbp_op *op = sbp_row_def(e, root);
    return op && op->code == SBP_OP_sum_rows ? op->operands[0] : root;
}

/* Where values of other heads occur they are cut off, not the root. */
static int64_t root_heads(const sbp_row_emitter *e, sbp_value root) {
    int64_t heads, n;
    sbp_row_form(&e->f->values[summand(e, root)].type, &heads, &n);
    return heads;
}

/* Stores a root, or adds it to a partial, range by range. */
static void emit_root(sbp_row_emitter *e, sbp_value root, sbp_rk_instr **stores, int32_t *count,
                      int32_t *capacity) {
    sbp_value v = summand(e, root);
    bool partial = v != root, split = false;
    int64_t heads, n;
    sbp_row_form(&e->f->values[v].type, &heads, &n);
    if (e->heads > 1 && heads == 1 && n > 1 && n % e->heads == 0 &&
        !partial) { /* flat beside heads: try as heads */
        int32_t before = e->k->instr_count;
        sbp_value culprit = e->culprit;
        sbp_row_emit(e, v, true, 0, n / e->heads);
        split = e->culprit == SBP_NO_VALUE &&
                (e->k->instrs[e->k->instr_count - 1].vary & SBP_VARY_HEAD || before == 0);
        if (e->culprit != culprit) {
            e->culprit = culprit;
            e->k->instr_count = before;
            sbp_row_forget(e, before);
        }
    }
    sbp_dtype dtype = e->f->values[root].type.dtype;
    int32_t operand = sbp_row_add_operand(e, root, split, partial ? SBP_RK_PARTIAL : SBP_RK_OUT,
                                          partial ? e->k->compute : dtype);
    int64_t *bounds, width = split ? n / e->heads : n;
    int32_t pieces = sbp_row_ranges(e, v, 0, width, &bounds);
    for (int32_t i = 0; i < pieces && e->culprit == SBP_NO_VALUE; i++) {
        sbp_rk_instr store = sbp_row_blank(partial ? SBP_RK_PARTIAL_ADD : SBP_RK_STORE);
        store.index = operand;
        store.a = sbp_row_emit(e, v, split, bounds[i], bounds[i + 1]);
        store.vary = e->k->operands[operand].vary;
        store.length = store.vary & SBP_VARY_ELEM ? bounds[i + 1] - bounds[i] : 1;
        store.offset = store.vary & SBP_VARY_ELEM ? bounds[i] : 0;
        SBP_PUSH(e->p->arena, *stores, *count, *capacity, store);
    }
}

/* A store rounds: it need not wait for a rounding to the same type that nothing else reads. */
static void store_unrounded(sbp_row_emitter *e, sbp_rk_instr *stores, int32_t count) {
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

/* In a kernel that has become too large: a value of rows in the middle of what it computes. */
static sbp_value middle(const sbp_row_emitter *e, const sbp_row_group *group) {
    int32_t *ops = SBP_NEW_ARRAY(e->p->arena, int32_t, e->work->list_count + 1), count = 0;
    for (int32_t i = 0; i < e->work->list_count; i++) {
        sbp_value v = e->work->list[i];
        if (sbp_row_def(e, v) && sbp_row_def(e, v)->results[0] == v && !e->materialized[e->stage->base[v]] &&
            e->stage->base[v] == v && sbp_row_can_be_stored(&e->f->values[v].type) &&
            v != summand(e, group->roots[0]))
            ops[count++] = e->f->values[v].op;
    }
    qsort(ops, (size_t)count, sizeof *ops, compare_i32);
    return count > 0 ? e->f->ops[ops[count / 2]].results[0] : group->roots[0];
}

/* A leaf cannot be cut: the first row-wise reader with other heads. */
static sbp_value other_heads(const sbp_row_emitter *e) {
    sbp_value first = SBP_ROW_LEAF;
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
static void survey_group(sbp_row_emitter *e, const sbp_row_group *group, survey *s) {
    sbp_row_work *w = e->work;
    w->survey++;
    w->list_count = 0;
    for (int32_t i = 0; i < group->root_count; i++)
        see(w, summand(e, group->roots[i]));
    for (int32_t i = 0; i < w->list_count; i++)
        look(e, w->list[i], s);
}

void sbp_row_build(sbp_program_builder *p, const sbp_stage *stage, sbp_row_work *work,
                   const bool *materialized, const sbp_row_group *group, const char *name,
                   sbp_row_kernel *out, sbp_value *culprit) {
    sbp_row_kernel kernel = {0};
    sbp_row_emitter e = {.p = p,
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
    e.heads = root_heads(&e, group->roots[0]);
    e.heads = e.heads > 1 ? e.heads : s.heads;
    e.one_row = sbp_type_rows(&e.f->values[summand(&e, group->roots[0])].type) == SBP_ONE;
    e.k = kernel.kernel = sbp_rowkernel_create(p->arena, name, s.has_f64 ? SBP_F64 : SBP_F32);
    e.k->heads = e.heads;
    sbp_rk_instr *stores = NULL;
    int32_t count = 0, capacity = 0;
    for (int32_t i = 0; i < group->root_count && e.culprit == SBP_NO_VALUE; i++)
        emit_root(&e, group->roots[i], &stores, &count, &capacity);
    if (e.culprit == SBP_NO_VALUE)
        store_unrounded(&e, stores, count);
    sbp_row_forget(&e, 0);
    for (int32_t i = 0; i < group->root_count; i++)
        work->own[group->roots[i]] = false;
    if (e.culprit == SBP_ROW_LEAF)
        e.culprit = other_heads(&e);
    if (e.culprit == SBP_ROW_TOO_LARGE || (e.culprit == SBP_NO_VALUE && too_large(e.k, count)))
        e.culprit = middle(&e, group);
    *culprit = e.culprit;
    if (e.culprit != SBP_NO_VALUE)
        return;
    for (int32_t i = 0; i < count; i++)
        sbp_rowkernel_add(p->arena, e.k, &stores[i]);
    *out = kernel;
}
