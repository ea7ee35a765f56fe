/* passes.c: the loops of a row: reductions, partials and stores, level by level.
 *
 * Pass p runs the reductions whose values have level p + 1, then the partials and stores of level p. What
 * varies with no element is computed before the loop that needs it. */
#include "backends/gpu/emit/emitter.h"

#include <stdio.h>

/* ---- loops ------------------------------------------------------------------------------------------ */

/* All threads of a team have read what they read, and see what was written. */
static void meet(emitter *e) {
    emit_line(e, "%s", e->dialect->team_barrier);
    e->unmet = e->unseen = false;
}

/* ---- stores ----------------------------------------------------------------------------------------- */

/* One element: of a store, or of a partial that is added to where it lies. */
static void store_one(emitter *e, int32_t k) {
    const sbp_rk_instr *instr = &e->kernel->instrs[k];
    const char *type = sbp_dtype_name(e->kernel->operands[instr->index].dtype);
    bool elem = instr->vary & SBP_VARY_ELEM;
    char element[160];
    emit_element(e, element, sizeof element, instr);
    if (instr->op == SBP_RK_STORE) {
        emit_line(e, "store_%s(%s, v%d);", type, element, instr->a);
        return;
    }
    const char *own = e->shape->mode == SBP_GPU_ROW_COLUMNS ? (e->width > 1 && elem ? "q" : "0")
                      : !elem                               ? "0"
                      : e->width > 1                        ? "i * WIDTH + q"
                                                            : "i";
    switch (emit_sum_of(e, k)) {
    case SUM_THREAD:
        emit_line(e, "s%d[%s] += %s(v%d);", k, own, emit_sum_type(e, k), instr->a);
        break;
    case SUM_TEAMS:
        emit_line(e, "c%d[team * %lld%s] = %s(v%d);", k, (long long)instr->length, elem ? " + j" : "",
                  emit_sum_type(e, k), instr->a);
        break;
    case SUM_MEMORY: {
        const char *q = elem && e->width > 1 ? " + q" : "";
        emit_line(e, "store_%s(%s%s, fresh ? v%d : load_%s(%s%s) + v%d);", type, element, q, instr->a, type,
                  element, q, instr->a);
        break;
    }
    }
}

/* A partial over the heads: one chain of additions per element. */
static void store_summed(emitter *e, int32_t k) {
    const sbp_rk_instr *instr = &e->kernel->instrs[k];
    const char *type = sbp_dtype_name(e->kernel->operands[instr->index].dtype);
    char element[128];
    emit_element(e, element, sizeof element, instr);
    emit_line(e, "REAL t%d = REAL(0.0);", k);
    emit_line(e, "if (!fresh)");
    emit_line(e, "    t%d = load_%s(%s);", k, type, element);
    bool heads = emit_open_heads(e, true);
    emit_value(e, instr->a);
    emit_line(e, "t%d += v%d;", k, instr->a);
    if (heads)
        emit_close(e);
    emit_line(e, "store_%s(%s, t%d);", type, element, k);
}

/* Whether all elements of a thread go where they go at once. */
static bool at_once(const emitter *e, int32_t k) {
    const sbp_rk_instr *instr = &e->kernel->instrs[k];
    return instr->op == SBP_RK_STORE || emit_sum_of(e, k) == SUM_TEAMS;
}

static void store_elements(emitter *e, int32_t k) {
    const sbp_rk_instr *instr = &e->kernel->instrs[k];
    const char *type = sbp_dtype_name(e->kernel->operands[instr->index].dtype);
    char element[128];
    emit_element(e, element, sizeof element, instr);
    if (instr->op == SBP_RK_STORE)
        emit_line(e, "store_%s(%s, b%d);", type, element, k);
    else
        emit_line(e, "put_shared(c%d + team * %lld + j, b%d);", k, (long long)instr->length, k);
}

/* All values are there before the first is stored. */
static void store_vectors(emitter *e, const int32_t *group, int32_t count) {
    for (int32_t g = 0; g < count; g++)
        if (at_once(e, group[g]))
            emit_line(e, "%s b%d[WIDTH];", emit_sum_type(e, group[g]), group[g]);
    emit_open_each(e);
    for (int32_t g = 0; g < count; g++)
        emit_value(e, e->kernel->instrs[group[g]].a);
    for (int32_t g = 0; g < count; g++)
        if (at_once(e, group[g]))
            emit_line(e, "b%d[q] = %s(v%d);", group[g], emit_sum_type(e, group[g]),
                      e->kernel->instrs[group[g]].a);
        else
            store_one(e, group[g]);
    emit_close_each(e);
    for (int32_t g = 0; g < count; g++)
        if (at_once(e, group[g]))
            store_elements(e, group[g]);
}

static void store_scalars(emitter *e, const int32_t *group, int32_t count) {
    for (int32_t g = 0; g < count; g++)
        if (!emit_sums_heads(e, group[g]))
            emit_value(e, e->kernel->instrs[group[g]].a);
    for (int32_t g = 0; g < count; g++)
        if (!emit_sums_heads(e, group[g]))
            store_one(e, group[g]);
    for (int32_t g = 0; g < count; g++)
        if (emit_sums_heads(e, group[g]))
            store_summed(e, group[g]);
}

static bool is_flat(const emitter *e) {
    return e->shape->mode == SBP_GPU_ROW_FLAT || e->shape->mode == SBP_GPU_ROW_COLUMNS;
}

/* Whether the instruction is for the first head alone, where the head is given. */
static bool is_for_first(const emitter *e, const sbp_rk_instr *instr) {
    if (e->kernel->heads == 1 || (instr->vary & SBP_VARY_HEAD))
        return false;
    bool adds = instr->op == SBP_RK_PARTIAL_ADD && (e->kernel->instrs[instr->a].vary & SBP_VARY_HEAD);
    return is_flat(e) ? !adds : e->units && instr->op == SBP_RK_PARTIAL_ADD && !adds;
}

static void store_group(emitter *e, const int32_t *group, int32_t count) {
    const sbp_rk_instr *first = &e->kernel->instrs[group[0]];
    bool elems = first->vary & SBP_VARY_ELEM, head_loop = false, alone = is_for_first(e, first);
    int32_t values[MOST] = {0};
    emit_values_of(e, group, count, values);
    if (is_flat(e)) {
        emit_line(e, "if (j < %lld%s) {", (long long)(elems ? first->length : 1), alone ? " && h == 0" : "");
        emit_open(e);
        if (elems)
            emit_loads(e, values, count);
    } else {
        if (alone) {
            emit_line(e, "if (h == 0) {");
            emit_open(e);
        }
        e->alone = alone;
        head_loop = emit_open_heads(e, (first->vary & SBP_VARY_HEAD) != 0);
        if (elems) {
            emit_open_elements(e, first->length, values, count, e->units || head_loop ? SBP_VARY_HEAD : 0);
        } else {
            emit_line(e, "if (lane == 0) {");
            emit_open(e);
        }
    }
    if (elems && e->width > 1)
        store_vectors(e, group, count);
    else
        store_scalars(e, group, count);
    if (elems && !is_flat(e))
        emit_end_elements(e);
    else
        emit_close(e);
    if (head_loop)
        emit_close(e);
    if (alone && !is_flat(e))
        emit_close(e);
    e->alone = false;
}

/* Stores (op STORE) or partials (PARTIAL_ADD) of a level, that vary with `axes` and not with `but`; those
 * with equal axes and length in one loop. */
static void stores_of(emitter *e, int32_t level, sbp_rk_op op, uint8_t axes, uint8_t but) {
    const sbp_rowkernel *kernel = e->kernel;
    bool emitted[MOST] = {false};
    for (int32_t k = 0; k < kernel->instr_count; k++) {
        const sbp_rk_instr *first = &kernel->instrs[k];
        if (first->op != op || e->levels[k] != level || emitted[k] || (first->vary & axes) != axes ||
            (first->vary & but))
            continue;
        int32_t group[MOST] = {0}, count = 0;
        for (int32_t other = k; other < kernel->instr_count; other++) {
            const sbp_rk_instr *instr = &kernel->instrs[other];
            if (instr->op == op && e->levels[other] == level &&
                (instr->vary & INNER) == (first->vary & INNER) && instr->length == first->length &&
                is_for_first(e, instr) == is_for_first(e, first)) {
                group[count++] = other;
                emitted[other] = true;
            }
        }
        emit_line(e, "{");
        emit_open(e);
        store_group(e, group, count);
        emit_close(e);
    }
}

static void stores(emitter *e, int32_t level) {
    bool elems = false, others = false;
    for (int32_t k = 0; k < e->kernel->instr_count; k++)
        if (e->kernel->instrs[k].op == SBP_RK_STORE && e->levels[k] == level) {
            elems |= (e->kernel->instrs[k].vary & SBP_VARY_ELEM) != 0;
            others |= !(e->kernel->instrs[k].vary & SBP_VARY_ELEM);
        }
    stores_of(e, level, SBP_RK_PARTIAL_ADD, 0, 0); /* a store may overwrite what they read */
    stores_of(e, level, SBP_RK_STORE, SBP_VARY_ELEM, 0);
    if (!is_flat(e) && elems && others && e->aliases) /* what all elements read may be overwritten now */
        meet(e);
    stores_of(e, level, SBP_RK_STORE, 0, SBP_VARY_ELEM);
}

void emit_flat_stores(emitter *e) {
    stores(e, 0);
}

/* ---- passes ----------------------------------------------------------------------------------------- */

void emit_passes(emitter *e) {
    int32_t last = 0;
    for (int32_t k = 0; k < e->kernel->instr_count; k++)
        last = e->levels[k] > last ? e->levels[k] : last;
    int32_t together = emit_online(e) ? 2 : 0; /* levels of reductions that are done */
    for (int32_t level = 0; level <= last; level++) {
        if (level >= together)
            emit_reductions(e, level);
        if (e->unseen || (e->unmet && e->aliases))
            meet(e);
        stores(e, level);
    }
}
