/* partial.c: sums over the rows of a block, in the order of ir/rowkernel/rowkernel.h: rows, then heads. */
#include "backends/gpu/emit/emitter.h"

static bool is_partial(const emitter *e, int32_t k) {
    return e->kernel->instrs[k].op == SBP_RK_PARTIAL_ADD;
}

bool emit_any_headless(const emitter *e) {
    for (int32_t k = 0; k < e->kernel->instr_count; k++)
        if (is_partial(e, k) && !(e->kernel->instrs[k].vary & SBP_VARY_HEAD))
            return true;
    return false;
}

emit_sum emit_sum_of(const emitter *e, int32_t k) {
    bool headed = (e->kernel->instrs[k].vary & SBP_VARY_HEAD) && e->kernel->heads > 1;
    if (e->shape->mode == SBP_GPU_ROW_COLUMNS) /* a thread that loops over the heads has too many columns */
        return headed && emit_any_headless(e) ? SUM_MEMORY : SUM_THREAD;
    if (!e->units)
        return SUM_MEMORY;
    return e->teams > 1 ? SUM_TEAMS : e->kept ? SUM_THREAD : SUM_MEMORY;
}

const char *emit_sum_type(const emitter *e, int32_t k) {
    const sbp_rk_instr *instr = &e->kernel->instrs[k];
    if (instr->op != SBP_RK_PARTIAL_ADD || !e->dialect->sums_in_type)
        return "REAL";
    return e->kernel->operands[instr->index].dtype == SBP_F64 ? "double" : "float";
}

bool emit_sums_heads(const emitter *e, int32_t k) {
    const sbp_rk_instr *instr = &e->kernel->instrs[k];
    return !e->units && is_partial(e, k) && e->shape->mode == SBP_GPU_ROW_BLOCKS &&
           !(instr->vary & SBP_VARY_HEAD) && (e->kernel->instrs[instr->a].vary & SBP_VARY_HEAD);
}

/* Sums that a thread holds. */
static int64_t held(const emitter *e, int32_t k) {
    const sbp_rk_instr *instr = &e->kernel->instrs[k];
    bool elem = instr->vary & SBP_VARY_ELEM;
    if (e->shape->mode == SBP_GPU_ROW_COLUMNS)
        return elem ? e->width : 1;
    if (emit_sum_of(e, k) == SUM_TEAMS)
        return sbp_ceil_div(instr->length, e->shape->threads);
    return elem ? emit_turns(e, instr->length) * e->width : 1;
}

void emit_sums_shared(emitter *e) {
    for (int32_t k = 0; k < e->kernel->instr_count; k++)
        if (is_partial(e, k) && emit_sum_of(e, k) == SUM_TEAMS)
            emit_line(e, "%s%s c%d[TEAMS * %lld];", e->dialect->shared, emit_sum_type(e, k), k,
                      (long long)e->kernel->instrs[k].length);
}

void emit_sums_declare(emitter *e) {
    for (int32_t k = 0; k < e->kernel->instr_count; k++) {
        if (!is_partial(e, k) || emit_sum_of(e, k) == SUM_MEMORY)
            continue;
        emit_line(e, "%s s%d[%lld];", emit_sum_type(e, k), k, (long long)held(e, k));
        emit_line(e, "%s", e->dialect->unroll);
        emit_line(e, "for (int i = 0; i < %lld; i++)", (long long)held(e, k));
        emit_line(e, "    s%d[i] = %s(0.0);", k, emit_sum_type(e, k));
    }
}

/* Opens a loop over the columns of a partial that a thread of the group sums. */
static void open_columns(emitter *e, int32_t k) {
    emit_line(e, "%s", e->dialect->unroll);
    emit_line(e, "for (int i = 0; i < %lld; i++) {", (long long)held(e, k));
    emit_open(e);
    emit_line(e, "const int j = i * THREADS + thread;");
    emit_line(e, "if (j < %lld) {", (long long)e->kernel->instrs[k].length);
    emit_open(e);
}

static void close_columns(emitter *e) {
    emit_close(e);
    emit_close(e);
}

void emit_sums_combine(emitter *e) {
    emit_line(e, "%s", e->dialect->group_barrier);
    for (int32_t k = 0; k < e->kernel->instr_count; k++) {
        const sbp_rk_instr *instr = &e->kernel->instrs[k];
        if (!is_partial(e, k))
            continue;
        bool once = e->kernel->heads > 1 && !(e->kernel->instrs[instr->a].vary & SBP_VARY_HEAD);
        open_columns(e, k);
        emit_line(e, "for (int t = 0; t < TEAMS; t++)");
        emit_line(e, "    if (block * %d + (first + t) / HEADS < args.rows%s)", SBP_PARTIAL_ROWS,
                  once ? " && (first + t) % HEADS == 0" : "");
        emit_line(e, "        s%d[i] += c%d[t * %lld + j];", k, k, (long long)instr->length);
        close_columns(e);
    }
    emit_line(e, "%s", e->dialect->group_barrier);
}

/* "s<k> + first" of a thread into memory: as many elements as it has at once, or one. */
static void store_sums(emitter *e, int32_t k, const char *first, bool vector) {
    const sbp_rk_instr *instr = &e->kernel->instrs[k];
    const char *type = sbp_dtype_name(e->kernel->operands[instr->index].dtype);
    char element[128];
    emit_element(e, element, sizeof element, instr);
    if (vector)
        emit_line(e, "put_%s<WIDTH>(%s, s%d + %s);", type, element, k, first);
    else
        emit_line(e, "%s_%s(%s, s%d[%s]);", e->dialect->sums_in_type ? "put" : "store", type, element, k,
                  first);
}

void emit_sums_store(emitter *e) {
    for (int32_t k = 0; k < e->kernel->instr_count; k++) {
        const sbp_rk_instr *instr = &e->kernel->instrs[k];
        bool elem = instr->vary & SBP_VARY_ELEM, vector = elem && e->width > 1;
        if (!is_partial(e, k) || emit_sum_of(e, k) == SUM_MEMORY)
            continue;
        if (emit_sum_of(e, k) == SUM_TEAMS) {
            open_columns(e, k);
            store_sums(e, k, "i", false);
            close_columns(e);
        } else if (e->shape->mode == SBP_GPU_ROW_COLUMNS) {
            emit_line(e, "if (j < %lld)", (long long)(elem ? instr->length : 1));
            store_sums(e, k, "0", vector);
        } else if (elem) {
            emit_begin_elements(e, instr->length);
            store_sums(e, k, vector ? "i * WIDTH" : "i", vector);
            emit_end_elements(e);
        } else {
            emit_line(e, "if (lane == 0)");
            store_sums(e, k, "0", false);
        }
    }
}
