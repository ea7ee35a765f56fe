/* check.c: a command's operands against ir/program/program.h. The runtime gives what the verifier has seen;
 * what is wrong here is a bug of ours, and reading on would be a crash. */
#include "backends/cpu/cpu.h"
#include "backends/cpu/cpu_target.h"

_Static_assert((int)SBP_CPU_MOST_CHOSEN == (int)CPU_MOST_CHOSEN,
               "what the compiler takes is what is computed");

static sbp_status wrong(const cpu_command *c, sbp_diag *diag, const char *what) {
    return sbp_fail(diag, SBP_INTERNAL, "cpu: %s: %s", sbp_command_name(c->command->kind), what);
}

static bool is_real(const cpu_view *view) {
    return view->data && sbp_dtype_is_float(view->dtype);
}

static bool is_index(const cpu_view *view, int64_t rows) {
    return view->data && (view->dtype == SBP_I32 || view->dtype == SBP_I64) && view->rows >= rows &&
           view->cols >= 1;
}

static bool has_shape(const cpu_view *view, int64_t rows, int64_t cols) {
    return view->rows == rows && view->cols == cols;
}

static sbp_status check_gemm(const cpu_command *c, sbp_diag *diag) {
    const cpu_view *d = &c->views[SBP_GEMM_D], *a = &c->views[SBP_GEMM_A], *b = &c->views[SBP_GEMM_B];
    const cpu_view *cc = &c->views[SBP_GEMM_C], *bias = &c->views[SBP_GEMM_BIAS];
    bool ta = c->command->u.gemm.ta, tb = c->command->u.gemm.tb;
    int64_t k = ta ? a->rows : a->cols;
    if (!is_real(d) || !is_real(a) || !is_real(b))
        return wrong(c, diag, "operands are not of float types");
    if ((ta ? a->cols : a->rows) != d->rows || (tb ? b->rows : b->cols) != d->cols ||
        (tb ? b->cols : b->rows) != k)
        return wrong(c, diag, "shapes do not fit");
    if (cc->data && (!is_real(cc) || !has_shape(cc, d->rows, d->cols)))
        return wrong(c, diag, "c does not have the shape of d");
    if (bias->data && (!is_real(bias) || bias->rows < 1 || bias->cols != d->cols))
        return wrong(c, diag, "the bias is not a row as wide as d");
    return SBP_OK;
}

static sbp_status check_row(const cpu_command *c, const sbp_rowkernel *kernel, sbp_diag *diag) {
    if (!sbp_rowkernel_rows_fit(c->row0, c->rows))
        return wrong(c, diag, "rows beyond 2^32");
    for (int32_t i = 0; i < kernel->operand_count; i++) {
        const sbp_rk_operand *o = &kernel->operands[i];
        const cpu_view *view = &c->views[i];
        int64_t heads = o->vary & SBP_VARY_HEAD ? kernel->heads : 1;
        int64_t rows = o->vary & SBP_VARY_ROW      ? c->rows
                       : o->mode == SBP_RK_PARTIAL ? sbp_ceil_div(c->rows, SBP_PARTIAL_ROWS)
                                                   : 1;
        if (c->rows > 0 && (!view->data || view->dtype != o->dtype || view->rows < rows ||
                            view->cols < (heads - 1) * o->head_stride + o->length))
            return sbp_fail(diag, SBP_INTERNAL, "cpu: row: kernel '%s': operand '%s' does not fit its view",
                            kernel->name, o->name);
    }
    return SBP_OK;
}

/* What attn_bwd has beside attn_fwd's operands. */
static sbp_status check_gradients(const cpu_command *c, sbp_diag *diag) {
    const cpu_view *dq = &c->views[SBP_ATTN_BWD_DQ], *dk = &c->views[SBP_ATTN_BWD_DK];
    const cpu_view *dv = &c->views[SBP_ATTN_BWD_DV], *d_o = &c->views[SBP_ATTN_BWD_DO];
    const cpu_view *q = &c->views[SBP_ATTN_BWD_Q], *k = &c->views[SBP_ATTN_BWD_K];
    const cpu_view *v = &c->views[SBP_ATTN_BWD_V], *o = &c->views[SBP_ATTN_BWD_O];
    const cpu_view *work = &c->views[SBP_ATTN_BWD_WORK];
    sbp_dtype sums = q->dtype == SBP_F64 ? SBP_F64 : SBP_F32;
    if (!is_real(dq) || !has_shape(dq, q->rows, q->cols) || !has_shape(dk, k->rows, k->cols) ||
        !has_shape(dv, v->rows, v->cols) || dk->dtype != sums || dv->dtype != sums || !is_real(d_o) ||
        !has_shape(d_o, o->rows, o->cols))
        return wrong(c, diag, "gradients do not fit");
    if (work->data && work->rows < q->rows)
        return wrong(c, diag, "the workspace has fewer rows than q");
    return SBP_OK;
}

static sbp_status check_attention(const cpu_command *c, const sbp_attention_operands *has, sbp_diag *diag) {
    const sbp_attention_attrs *at = &c->command->u.attention;
    const cpu_view *q = &c->views[has->q], *k = &c->views[has->k], *v = &c->views[has->v];
    const cpu_view *o = &c->views[has->o], *lse = &c->views[has->lse];
    const cpu_view *of_scores[] = {q, k, v};
    const int32_t columns[] = {has->first, has->shared_end, has->own};
    if (at->heads < 1 || at->kv_heads < 1 || at->heads % at->kv_heads != 0 || at->d_qk < 1 || at->d_v < 1)
        return wrong(c, diag, "heads or their sizes");
    if (at->heads / at->kv_heads > SBP_CPU_MOST_GROUP || at->d_qk > SBP_CPU_MOST_HEAD ||
        at->d_v > SBP_CPU_MOST_HEAD)
        return sbp_fail(
            diag, SBP_MACHINE,
            "cpu: attention with %lld query heads per kv head of sizes %lld and %lld (at most %d, %d)",
            (long long)(at->heads / at->kv_heads), (long long)at->d_qk, (long long)at->d_v,
            SBP_CPU_MOST_GROUP, SBP_CPU_MOST_HEAD);
    for (int i = 0; i < SBP_COUNT(of_scores); i++)
        if (!is_real(of_scores[i]) || (of_scores[i]->dtype == SBP_F64) != (q->dtype == SBP_F64))
            return wrong(c, diag, "q, k, v are not of like types");
    if (!is_real(o) || !is_real(lse) || lse->dtype != (q->dtype == SBP_F64 ? SBP_F64 : SBP_F32))
        return wrong(c, diag, "o or lse");
    if (q->cols != at->heads * at->d_qk || k->cols != at->kv_heads * at->d_qk ||
        v->cols != at->kv_heads * at->d_v || v->rows != k->rows || k->rows > INT32_MAX - (1 << 20) ||
        !has_shape(o, q->rows, at->heads * at->d_v) || !has_shape(lse, q->rows, at->heads))
        return wrong(c, diag, "shapes do not fit");
    for (int i = 0; i < SBP_COUNT(columns); i++)
        if (!is_index(&c->views[columns[i]], q->rows))
            return wrong(c, diag, "first, shared_end or own");
    return has->backward ? check_gradients(c, diag) : SBP_OK;
}

/* What conv_rows and conv_rows_bwd share; w and first may be absent in conv_rows. */
static sbp_status check_conv(const cpu_command *c, int32_t x_operand, int32_t w_operand, int32_t first,
                             int32_t state_operand, sbp_diag *diag) {
    const cpu_view *x = &c->views[x_operand], *w = &c->views[w_operand], *state = &c->views[state_operand];
    if (!is_real(x) || !is_real(state) || x->dtype != state->dtype || x->cols < 1 || state->rows < 1 ||
        state->cols < x->cols || state->cols % x->cols != 0 || state->cols / x->cols >= SBP_CONV_MOST_TAPS)
        return wrong(c, diag, "x or state");
    if (w->data && (!is_real(w) || !has_shape(w, x->cols, state->cols / x->cols + 1) ||
                    !is_index(&c->views[first], x->rows)))
        return wrong(c, diag, "w or first");
    return SBP_OK;
}

static sbp_status check_conv_rows(const cpu_command *c, sbp_diag *diag) {
    const cpu_view *v = c->views, *x = &v[SBP_CONV_ROWS_X], *y = &v[SBP_CONV_ROWS_Y];
    const cpu_view *bias = &v[SBP_CONV_ROWS_BIAS], *next = &v[SBP_CONV_ROWS_NEXT];
    SBP_TRY(check_conv(c, SBP_CONV_ROWS_X, SBP_CONV_ROWS_W, SBP_CONV_ROWS_FIRST, SBP_CONV_ROWS_STATE, diag));
    if (y->data && (!is_real(y) || !has_shape(y, x->rows, x->cols) || !v[SBP_CONV_ROWS_W].data))
        return wrong(c, diag, "y does not have the shape of x, or there is no w");
    if ((bias->data && (!is_real(bias) || bias->rows < 1 || bias->cols != x->cols)) ||
        (next->data &&
         (next->dtype != x->dtype || next->rows < 1 || next->cols != v[SBP_CONV_ROWS_STATE].cols)))
        return wrong(c, diag, "bias or next");
    return SBP_OK;
}

static sbp_status check_conv_rows_bwd(const cpu_command *c, sbp_diag *diag) {
    const cpu_view *v = c->views, *x = &v[SBP_CONV_ROWS_BWD_X], *w = &v[SBP_CONV_ROWS_BWD_W];
    const cpu_view *dx = &v[SBP_CONV_ROWS_BWD_DX], *dw = &v[SBP_CONV_ROWS_BWD_DW];
    const cpu_view *dy = &v[SBP_CONV_ROWS_BWD_DY], *dstate = &v[SBP_CONV_ROWS_BWD_DSTATE];
    sbp_dtype sums = x->dtype == SBP_F64 ? SBP_F64 : SBP_F32;
    SBP_TRY(check_conv(c, SBP_CONV_ROWS_BWD_X, SBP_CONV_ROWS_BWD_W, SBP_CONV_ROWS_BWD_FIRST,
                       SBP_CONV_ROWS_BWD_STATE, diag));
    if (!w->data || !is_real(dy) || !has_shape(dy, x->rows, x->cols) || dstate->dtype != sums ||
        !dstate->data || dstate->rows < 1 || dstate->cols != v[SBP_CONV_ROWS_BWD_STATE].cols)
        return wrong(c, diag, "dy or dstate");
    if ((dx->data && (!is_real(dx) || !has_shape(dx, x->rows, x->cols))) ||
        (dw->data && (dw->dtype != sums || dw->cols != w->rows * w->cols ||
                      dw->rows < sbp_ceil_div(x->rows, SBP_PARTIAL_ROWS))))
        return wrong(c, diag, "dx or dw");
    return SBP_OK;
}

/* The type of sums, and of what goes from row to row. */
static sbp_dtype wide_of(const cpu_view *view) {
    return view->dtype == SBP_F64 ? SBP_F64 : SBP_F32;
}

static bool has_kind(const cpu_view *view, int64_t rows, int64_t cols, sbp_dtype dtype) {
    return view->data && has_shape(view, rows, cols) && view->dtype == dtype;
}

/* What delta_rule, ssd and their gradients share, from operand k (b) on: k, v, decay, beta, first, state. */
static sbp_status check_delta(const cpu_command *c, const cpu_view *k, sbp_diag *diag) {
    const sbp_delta_attrs *a = &c->command->u.delta;
    const cpu_view *v = k + 1, *decay = k + 2, *beta = k + 3, *first = k + 4, *state = k + 5;
    if (a->heads < 1 || a->key_heads < 1 || a->heads % a->key_heads != 0 || a->d_k < 1 || a->d_v < 1)
        return wrong(c, diag, "heads or their sizes");
    if (a->d_k > SBP_CPU_MOST_STATE ||
        a->d_v > SBP_CPU_MOST_STATE) /* kernels/delta.h: what fits into scratch memory */
        return sbp_fail(diag, SBP_MACHINE, "cpu: %s with heads of %lld and %lld columns (at most %d)",
                        sbp_command_name(c->command->kind), (long long)a->d_k, (long long)a->d_v,
                        SBP_CPU_MOST_STATE);
    if (!is_real(k) || k->cols != a->key_heads * a->d_k || !has_kind(v, k->rows, a->heads * a->d_v, k->dtype))
        return wrong(c, diag, "k or v");
    if (!has_kind(decay, k->rows, a->heads, wide_of(k)) || !has_kind(beta, k->rows, a->heads, wide_of(k)) ||
        !is_index(first, k->rows) || !has_kind(state, 1, a->heads * a->d_k * a->d_v, wide_of(k)))
        return wrong(c, diag, "decay, beta, first or state");
    return SBP_OK;
}

static sbp_status check_delta_rule(const cpu_command *c, sbp_diag *diag) {
    const cpu_view *v = c->views, *q = &v[SBP_DELTA_RULE_Q], *k = &v[SBP_DELTA_RULE_K];
    const cpu_view *o = &v[SBP_DELTA_RULE_O], *next = &v[SBP_DELTA_RULE_NEXT];
    SBP_TRY(check_delta(c, k, diag));
    if (o->data && (!has_kind(o, k->rows, v[SBP_DELTA_RULE_V].cols, k->dtype) ||
                    !has_kind(q, k->rows, k->cols, k->dtype)))
        return wrong(c, diag, "o or q (y or c)");
    if (next->data && !has_kind(next, 1, v[SBP_DELTA_RULE_STATE].cols, wide_of(k)))
        return wrong(c, diag, "next");
    return SBP_OK;
}

/* states: how many a row of the workspace has. */
static sbp_status check_delta_rule_bwd(const cpu_command *c, int64_t states, sbp_diag *diag) {
    const cpu_view *v = c->views, *k = &v[SBP_DELTA_RULE_BWD_K], *work = &v[SBP_DELTA_RULE_BWD_WORK];
    const cpu_view *state = &v[SBP_DELTA_RULE_BWD_STATE];
    int64_t values = v[SBP_DELTA_RULE_BWD_V].cols, heads = c->command->u.delta.heads;
    const struct {
        int32_t operand;
        bool there;
        int64_t cols;
        sbp_dtype dtype;
    } more[] = {{SBP_DELTA_RULE_BWD_Q, true, k->cols, k->dtype},
                {SBP_DELTA_RULE_BWD_DO, true, values, k->dtype},
                {SBP_DELTA_RULE_BWD_DQ, false, k->cols, k->dtype},
                {SBP_DELTA_RULE_BWD_DK, false, k->cols, k->dtype},
                {SBP_DELTA_RULE_BWD_DV, false, values, k->dtype},
                {SBP_DELTA_RULE_BWD_DDECAY, false, heads, wide_of(k)},
                {SBP_DELTA_RULE_BWD_DBETA, false, heads, wide_of(k)}};
    SBP_TRY(check_delta(c, k, diag));
    for (int i = 0; i < SBP_COUNT(more); i++)
        if ((more[i].there || v[more[i].operand].data) &&
            !has_kind(&v[more[i].operand], k->rows, more[i].cols, more[i].dtype))
            return wrong(c, diag, "q, do (c, dy) or a gradient");
    if (!has_kind(&v[SBP_DELTA_RULE_BWD_DSTATE], 1, state->cols, wide_of(k)))
        return wrong(c, diag, "dstate");
    if (work->dtype != wide_of(k) || work->cols < states * state->cols || !work->data ||
        work->rows < sbp_ceil_div(k->rows, SBP_DELTA_BLOCK))
        return wrong(c, diag, "the workspace does not have room for the states of each block");
    return SBP_OK;
}

static bool is_i32(const cpu_view *view) {
    return view->data && view->dtype == SBP_I32;
}

/* Checks pairs and bounds of experts, and the operand of_experts, which has one row per expert; NULL:
 * there is none. */
static sbp_status check_slots(const cpu_command *c, const cpu_view *pairs, const cpu_view *bounds,
                              const cpu_view *of_experts, sbp_diag *diag) {
    if (!is_i32(pairs) || !is_i32(bounds) || pairs->cols < 1 || bounds->rows < 1 || bounds->cols < 2 ||
        pairs->rows > INT32_MAX / pairs->cols)
        return wrong(c, diag, "pairs or bounds");
    if (of_experts && (!is_real(of_experts) || of_experts->rows != bounds->cols - 1))
        return wrong(c, diag, "matrices of experts");
    return SBP_OK;
}

/* Columns of a slot; 0: the operand cannot be cut into them. */
static int64_t slot_cols(const cpu_view *view, const cpu_view *pairs, bool by_slot) {
    if (!is_real(view) || view->rows != pairs->rows || (by_slot && view->cols % pairs->cols != 0))
        return 0;
    return by_slot ? view->cols / pairs->cols : view->cols;
}

static sbp_status check_route(const cpu_command *c, sbp_diag *diag) {
    const cpu_view *index = &c->views[SBP_ROUTE_INDEX], *scores = &c->views[SBP_ROUTE_SCORES];
    if (!is_i32(index) || !is_real(scores) || index->rows != scores->rows || index->cols < 1 ||
        index->cols > scores->cols)
        return wrong(c, diag, "shapes do not fit");
    if (index->cols > CPU_MOST_CHOSEN)
        return sbp_fail(diag, SBP_MACHINE, "cpu: route of %lld columns (at most %d)", (long long)index->cols,
                        CPU_MOST_CHOSEN);
    return SBP_OK;
}

static sbp_status check_expert_order(const cpu_command *c, sbp_diag *diag) {
    const cpu_view *pairs = &c->views[SBP_EXPERT_ORDER_PAIRS], *index = &c->views[SBP_EXPERT_ORDER_INDEX];
    SBP_TRY(check_slots(c, pairs, &c->views[SBP_EXPERT_ORDER_BOUNDS], NULL, diag));
    return is_i32(index) && has_shape(index, pairs->rows, pairs->cols) ? SBP_OK : wrong(c, diag, "index");
}

static sbp_status check_expert_gemm(const cpu_command *c, sbp_diag *diag) {
    const cpu_view *v = c->views, *pairs = &v[SBP_EXPERT_GEMM_PAIRS], *bias = &v[SBP_EXPERT_GEMM_BIAS];
    const cpu_view *b = &v[SBP_EXPERT_GEMM_B];
    SBP_TRY(check_slots(c, pairs, &v[SBP_EXPERT_GEMM_BOUNDS], b, diag));
    int64_t n = slot_cols(&v[SBP_EXPERT_GEMM_D], pairs, true);
    int64_t m = slot_cols(&v[SBP_EXPERT_GEMM_A], pairs, c->command->u.experts.a_by_slot);
    if (n < 1 || m < 1 || b->cols != n * m)
        return wrong(c, diag, "shapes do not fit");
    if (bias->data && (!is_real(bias) || !has_shape(bias, b->rows, n)))
        return wrong(c, diag, "bias");
    return SBP_OK;
}

static sbp_status check_expert_gemm_dw(const cpu_command *c, sbp_diag *diag) {
    const cpu_view *v = c->views, *pairs = &v[SBP_EXPERT_GEMM_DW_PAIRS], *d = &v[SBP_EXPERT_GEMM_DW_D];
    SBP_TRY(check_slots(c, pairs, &v[SBP_EXPERT_GEMM_DW_BOUNDS], d, diag));
    int64_t n = slot_cols(&v[SBP_EXPERT_GEMM_DW_A], pairs, c->command->u.experts.a_by_slot);
    int64_t m = slot_cols(&v[SBP_EXPERT_GEMM_DW_B], pairs, c->command->u.experts.b_by_slot);
    return n >= 1 && m >= 1 && d->cols == n * m ? SBP_OK : wrong(c, diag, "shapes do not fit");
}

static sbp_status check_copy(const cpu_command *c, const cpu_view *dst, const cpu_view *src, sbp_diag *diag) {
    if (!dst->data || !src->data || dst->dtype != src->dtype || !has_shape(dst, src->rows, src->cols))
        return wrong(c, diag, "types or shapes differ");
    return SBP_OK;
}

sbp_status cpu_command_check(const cpu_command *c, const sbp_rowkernel *kernel, sbp_diag *diag) {
    const cpu_view *v = c->views;
    switch (c->command->kind) {
    case SBP_CMD_FILL:
        return v[SBP_FILL_DST].data ? SBP_OK : wrong(c, diag, "no destination");
    case SBP_CMD_COPY:
        return check_copy(c, &v[SBP_COPY_DST], &v[SBP_COPY_SRC], diag);
    case SBP_CMD_COLLECTIVE:
        return check_copy(c, &v[SBP_COLLECTIVE_DST], &v[SBP_COLLECTIVE_SRC], diag);
    case SBP_CMD_GEMM:
        return check_gemm(c, diag);
    case SBP_CMD_ROW:
        return check_row(c, kernel, diag);
    case SBP_CMD_COLSUM:
        if (!is_real(&v[SBP_COLSUM_DST]) || !is_real(&v[SBP_COLSUM_SRC]) || v[SBP_COLSUM_DST].rows < 1 ||
            v[SBP_COLSUM_DST].cols != v[SBP_COLSUM_SRC].cols)
            return wrong(c, diag, "shapes do not fit");
        return SBP_OK;
    case SBP_CMD_GATHER:
        if (!is_real(&v[SBP_GATHER_DST]) || !is_real(&v[SBP_GATHER_TABLE]) ||
            v[SBP_GATHER_DST].cols != v[SBP_GATHER_TABLE].cols ||
            !is_index(&v[SBP_GATHER_INDEX], v[SBP_GATHER_DST].rows))
            return wrong(c, diag, "shapes do not fit");
        return SBP_OK;
    case SBP_CMD_SCATTER_ADD:
        if (!is_real(&v[SBP_SCATTER_ADD_DST]) || !is_real(&v[SBP_SCATTER_ADD_SRC]) ||
            v[SBP_SCATTER_ADD_DST].cols != v[SBP_SCATTER_ADD_SRC].cols ||
            !is_index(&v[SBP_SCATTER_ADD_INDEX], v[SBP_SCATTER_ADD_SRC].rows) ||
            !is_index(&v[SBP_SCATTER_ADD_PERM], v[SBP_SCATTER_ADD_SRC].rows) ||
            !is_index(&v[SBP_SCATTER_ADD_SEGMENT], v[SBP_SCATTER_ADD_SRC].rows))
            return wrong(c, diag, "shapes do not fit");
        return SBP_OK;
    case SBP_CMD_ATTN_FWD:
    case SBP_CMD_ATTN_BWD:
        return check_attention(c, sbp_command_attention(c->command->kind), diag);
    case SBP_CMD_CONV_ROWS:
        return check_conv_rows(c, diag);
    case SBP_CMD_CONV_ROWS_BWD:
        return check_conv_rows_bwd(c, diag);
    case SBP_CMD_DELTA_RULE:
    case SBP_CMD_SSD:
        return check_delta_rule(c, diag);
    case SBP_CMD_DELTA_RULE_BWD:
    case SBP_CMD_SSD_BWD:
        return check_delta_rule_bwd(c, c->command->kind == SBP_CMD_SSD_BWD ? 2 : 1, diag);
    case SBP_CMD_ROUTE:
        return check_route(c, diag);
    case SBP_CMD_EXPERT_ORDER:
        return check_expert_order(c, diag);
    case SBP_CMD_EXPERT_GEMM:
        return check_expert_gemm(c, diag);
    case SBP_CMD_EXPERT_GEMM_DW:
        return check_expert_gemm_dw(c, diag);
    case SBP_CMD_REDUCE:
        if (!is_real(&v[SBP_REDUCE_SRC]) || !v[SBP_REDUCE_DST].data || v[SBP_REDUCE_DST].dtype != SBP_F64)
            return wrong(c, diag, "the result is not f64");
        return SBP_OK;
    case SBP_CMD_FENCE:
        return SBP_OK;
    case SBP_CMD_COUNT:
        break;
    }
    return sbp_fail(diag, SBP_INTERNAL, "cpu: no command number %d", (int)c->command->kind);
}
