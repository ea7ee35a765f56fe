/* reductions.c: sums and largest and smallest values of a row. */
#include "backends/gpu/emit/emitter.h"

#include <stdio.h>

const char *emit_start_of(const emitter *e, sbp_rk_op op) {
    bool wide = e->kernel->compute == SBP_F64;
    if (op == SBP_RK_SUM)
        return "REAL(0.0)";
    if (op == SBP_RK_MAX)
        return wide ? "SBP_FROM_HIGH(0xfff00000u)" : "SBP_FROM_BITS(0xff800000u)";
    return wide ? "SBP_FROM_HIGH(0x7ff00000u)" : "SBP_FROM_BITS(0x7f800000u)";
}

void emit_accumulate(emitter *e, int32_t k) {
    const sbp_rk_instr *instr = &e->kernel->instrs[k];
    emit_value(e, instr->a);
    if (instr->op == SBP_RK_SUM)
        emit_line(e, "t%d += v%d;", k, instr->a);
    else
        emit_line(e, "t%d = %s(v%d, t%d);", k, instr->op == SBP_RK_MAX ? "larger" : "smaller", instr->a, k);
}

void emit_combined(const emitter *e, char *out, size_t size, int32_t k) {
    sbp_rk_op op = e->kernel->instrs[k].op;
    char value[32];
    snprintf(value, sizeof value, "t%d", k);
    const char *format = op == SBP_RK_SUM   ? e->dialect->sum
                         : op == SBP_RK_MAX ? e->dialect->max
                                            : e->dialect->min;
    size_t at = 0;
    for (const char *p = format; *p && at + sizeof value < size; p++) {
        if (*p == '@')
            at += (size_t)snprintf(out + at, size - at, "%s", value);
        else if (*p == '#')
            at += (size_t)snprintf(out + at, size - at, "%d", k);
        else
            out[at++] = *p;
    }
    out[at] = 0;
}

/* Reductions that run in the same loops as reduction k. */
static bool same_loops(const emitter *e, int32_t k, int32_t other) {
    const sbp_rk_instr *a = &e->kernel->instrs[k], *b = &e->kernel->instrs[other];
    if (!sbp_rk_is_reduction(b))
        return false;
    const sbp_rk_instr *va = &e->kernel->instrs[a->a], *vb = &e->kernel->instrs[b->a];
    return e->levels[k] == e->levels[other] && a->axes == b->axes &&
           (va->vary & INNER) == (vb->vary & INNER) && va->length == vb->length;
}

/* What the reductions of a group are of. */
int32_t emit_values_of(const emitter *e, const int32_t *group, int32_t count, int32_t *values) {
    for (int32_t g = 0; g < count; g++)
        values[g] = e->kernel->instrs[group[g]].a;
    return count;
}

enum { WARP = 32 }; /* threads that shuffle: no barrier is needed for that, and none orders their memory */

static void declare_own(emitter *e, const int32_t *group, int32_t count) {
    for (int32_t g = 0; g < count; g++)
        emit_line(e, "REAL t%d = %s;", group[g], emit_start_of(e, e->kernel->instrs[group[g]].op));
}

/* Over heads alone: each thread for its own elements. */
static void reduce_heads(emitter *e, const int32_t *group, int32_t count) {
    const sbp_rk_instr *a = &e->kernel->instrs[e->kernel->instrs[group[0]].a];
    bool elems = a->vary & SBP_VARY_ELEM;
    int32_t values[MOST] = {0};
    emit_values_of(e, group, count, values);
    if (elems) {
        emit_open_elements(e, a->length, values, count, 0);
        emit_open_each(e);
    }
    declare_own(e, group, count);
    bool heads = emit_open_heads(e, true);
    for (int32_t g = 0; g < count; g++)
        emit_accumulate(e, group[g]);
    if (heads)
        emit_close(e);
    for (int32_t g = 0; g < count; g++)
        emit_line(e, "r%d%s = t%d;", group[g],
                  !elems         ? ""
                  : e->width > 1 ? "[i * WIDTH + q]"
                                 : "[i]",
                  group[g]);
    if (elems) {
        emit_close_each(e);
        emit_end_elements(e);
    }
    e->unmet = true; /* every thread has read all heads */
}

/* Over elements, maybe over heads too: partial results per thread, then over the team. */
static void reduce_elems(emitter *e, const int32_t *group, int32_t count) {
    const sbp_rk_instr *first = &e->kernel->instrs[group[0]], *a = &e->kernel->instrs[first->a];
    bool over_heads = first->axes & SBP_VARY_HEAD;
    bool per_head = !over_heads && emit_open_heads(e, (a->vary & SBP_VARY_HEAD) != 0);
    int32_t values[MOST] = {0};
    emit_values_of(e, group, count, values);
    declare_own(e, group, count);
    bool inner = over_heads && emit_open_heads(e, true);
    emit_open_elements(e, a->length, values, count, e->units || per_head || inner ? SBP_VARY_HEAD : 0);
    emit_open_each(e);
    for (int32_t g = 0; g < count; g++)
        emit_accumulate(e, group[g]);
    emit_close_each(e);
    emit_end_elements(e);
    if (inner)
        emit_close(e);
    for (int32_t g = 0; g < count; g++) {
        char text[96];
        emit_combined(e, text, sizeof text, group[g]);
        e->unmet &= !emit_reductions_meet(e);
        if (!per_head) {
            emit_line(e, "r%d = %s;", group[g], text);
            continue;
        }
        emit_line(e, "t%d = %s;", group[g], text);
        emit_line(e, "if (lane == 0)");
        emit_line(e, "    r%d[h] = t%d;", group[g], group[g]);
        e->unseen = true;
    }
    if (per_head) {
        if (e->dialect->reductions_meet) /* the next head uses the same memory */
            emit_line(e, "%s", e->dialect->team_barrier);
        emit_close(e);
    }
}

bool emit_reductions_meet(const emitter *e) {
    int32_t lanes = e->shape->lanes > 0 ? e->shape->lanes : e->shape->threads;
    return e->dialect->reductions_meet && lanes > WARP;
}

void emit_reductions(emitter *e, int32_t level) {
    bool emitted[MOST] = {false};
    for (int32_t k = 0; k < e->kernel->instr_count; k++) {
        const sbp_rk_instr *instr = &e->kernel->instrs[k];
        if (!sbp_rk_is_reduction(instr) || e->levels[k] != level + 1 || emitted[k])
            continue;
        int32_t group[MOST] = {0}, count = 0;
        for (int32_t other = k; other < e->kernel->instr_count; other++)
            if (same_loops(e, k, other)) {
                group[count++] = other;
                emitted[other] = true;
            }
        emit_line(e, "{");
        emit_open(e);
        if (instr->axes & SBP_VARY_ELEM)
            reduce_elems(e, group, count);
        else
            reduce_heads(e, group, count);
        emit_close(e);
    }
}
