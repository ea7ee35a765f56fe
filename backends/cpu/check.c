/* check.c: a command's operands against ir/program/program.h. The runtime gives what the verifier has seen;
 * what is wrong here is a bug of ours, and reading on would be a crash. */
#include "backends/cpu/cpu.h"

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
    const cpu_view *d = &c->views[0], *a = &c->views[1], *b = &c->views[2], *cc = &c->views[3];
    const cpu_view *bias = &c->views[4];
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

static sbp_status check_attention(const cpu_command *c, sbp_diag *diag) {
    bool backward = c->command->kind == SBP_CMD_ATTN_BWD;
    const sbp_attention_attrs *at = &c->command->u.attention;
    const cpu_view *q = &c->views[backward ? 3 : 2], *k = q + 1, *v = q + 2;
    const cpu_view *o = &c->views[backward ? 6 : 0], *lse = &c->views[backward ? 7 : 1];
    const cpu_view *first = &c->views[backward ? 9 : 5];
    if (at->heads < 1 || at->kv_heads < 1 || at->heads % at->kv_heads != 0 || at->d_qk < 1 || at->d_v < 1)
        return wrong(c, diag, "heads or their sizes");
    if (at->heads / at->kv_heads > 96 || at->d_qk > 512 || at->d_v > 512)
        return sbp_fail(
            diag, SBP_MACHINE,
            "cpu: attention with %lld query heads per kv head of sizes %lld and %lld (at most 96, 512)",
            (long long)(at->heads / at->kv_heads), (long long)at->d_qk, (long long)at->d_v);
    for (int i = 0; i < 3; i++)
        if (!is_real(&q[i]) || (q[i].dtype == SBP_F64) != (q->dtype == SBP_F64))
            return wrong(c, diag, "q, k, v are not of like types");
    if (!is_real(o) || !is_real(lse) || lse->dtype != (q->dtype == SBP_F64 ? SBP_F64 : SBP_F32))
        return wrong(c, diag, "o or lse");
    if (q->cols != at->heads * at->d_qk || k->cols != at->kv_heads * at->d_qk ||
        v->cols != at->kv_heads * at->d_v || v->rows != k->rows || k->rows > INT32_MAX - (1 << 20) ||
        !has_shape(o, q->rows, at->heads * at->d_v) || !has_shape(lse, q->rows, at->heads))
        return wrong(c, diag, "shapes do not fit");
    for (int i = 0; i < 3; i++)
        if (!is_index(&first[i], q->rows))
            return wrong(c, diag, "first, shared_end or own");
    if (backward) {
        sbp_dtype sums = q->dtype == SBP_F64 ? SBP_F64 : SBP_F32;
        if (!is_real(&c->views[0]) || !has_shape(&c->views[0], q->rows, q->cols) ||
            !has_shape(&c->views[1], k->rows, k->cols) || !has_shape(&c->views[2], v->rows, v->cols) ||
            c->views[1].dtype != sums || c->views[2].dtype != sums || !is_real(&c->views[8]) ||
            !has_shape(&c->views[8], o->rows, o->cols))
            return wrong(c, diag, "gradients do not fit");
        if (c->views[12].data && c->views[12].rows < q->rows)
            return wrong(c, diag, "the workspace has fewer rows than q");
    }
    return SBP_OK;
}

sbp_status cpu_command_check(const cpu_command *c, const sbp_rowkernel *kernel, sbp_diag *diag) {
    const cpu_view *v = c->views;
    switch (c->command->kind) {
    case SBP_CMD_FILL:
        return v[0].data ? SBP_OK : wrong(c, diag, "no destination");
    case SBP_CMD_COPY:
    case SBP_CMD_COLLECTIVE:
        if (!v[0].data || !v[1].data || v[0].dtype != v[1].dtype || !has_shape(&v[0], v[1].rows, v[1].cols))
            return wrong(c, diag, "types or shapes differ");
        return SBP_OK;
    case SBP_CMD_GEMM:
        return check_gemm(c, diag);
    case SBP_CMD_ROW:
        return check_row(c, kernel, diag);
    case SBP_CMD_COLSUM:
        if (!is_real(&v[0]) || !is_real(&v[1]) || v[0].rows < 1 || v[0].cols != v[1].cols)
            return wrong(c, diag, "shapes do not fit");
        return SBP_OK;
    case SBP_CMD_GATHER:
        if (!is_real(&v[0]) || !is_real(&v[1]) || v[0].cols != v[1].cols || !is_index(&v[2], v[0].rows))
            return wrong(c, diag, "shapes do not fit");
        return SBP_OK;
    case SBP_CMD_SCATTER_ADD:
        if (!is_real(&v[0]) || !is_real(&v[1]) || v[0].cols != v[1].cols || !is_index(&v[2], v[1].rows) ||
            !is_index(&v[3], v[1].rows) || !is_index(&v[4], v[1].rows))
            return wrong(c, diag, "shapes do not fit");
        return SBP_OK;
    case SBP_CMD_ATTN_FWD:
    case SBP_CMD_ATTN_BWD:
        return check_attention(c, diag);
    case SBP_CMD_REDUCE:
        if (!is_real(&v[1]) || !v[0].data || v[0].dtype != SBP_F64)
            return wrong(c, diag, "the result is not f64");
        return SBP_OK;
    case SBP_CMD_FENCE:
        return SBP_OK;
    case SBP_CMD_COUNT:
        break;
    }
    return sbp_fail(diag, SBP_INTERNAL, "cpu: no command number %d", (int)c->command->kind);
}
