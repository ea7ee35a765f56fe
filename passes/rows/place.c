/* place.c: where the values of a scheduled stage live.
 *
 * A value whose place the caller fixed lives there (G[i], K[i], y[i]). Another one shares the memory of a
 * value it may be written over: from the back, an operand that dies at an instruction takes the location of
 * the result, when the instruction may write over it and nobody else lives there meanwhile; then, from the
 * front, a result takes the location of an operand that dies. So a gradient that becomes dx is in G from dy
 * on, and a key is in K from its product on.
 */

#include "passes/rows/schedule.h"

/* Fixed memory may be written when the caller gave it for that, or when it is the function's own. */
static bool is_writable(const sbp_scheduler *s, const sbp_view *view) {
    if (view->ref < 0)
        return s->code->formals[~view->ref].access != SBP_READ;
    sbp_role role = s->p->program->buffers[view->ref].role;
    return role == SBP_ROLE_CARRY || role == SBP_ROLE_STATES || role == SBP_ROLE_SCRATCH;
}

static int32_t location_at(sbp_scheduler *s, const sbp_view *view) {
    for (int32_t h = 0; h < s->location_count; h++)
        if (s->locations[h].view.ref != SBP_NO_VIEW && sbp_view_equal(&s->locations[h].view, view))
            return h;
    SBP_PUSH(s->p->arena, s->locations, s->location_count, s->location_capacity,
             (sbp_location){.view = *view, .writable = is_writable(s, view), .buffer = -1});
    return s->location_count - 1;
}

static int32_t new_scratch(sbp_scheduler *s) {
    SBP_PUSH(s->p->arena, s->locations, s->location_count, s->location_capacity,
             (sbp_location){.view = sbp_view_none(), .writable = true, .buffer = -1});
    return s->location_count - 1;
}

static void move_in(sbp_scheduler *s, sbp_value v, int32_t location) {
    sbp_location *h = &s->locations[location];
    s->location_of[v] = location;
    SBP_PUSH(s->p->arena, h->values, h->value_count, h->value_capacity, v);
}

/* Whether the instruction may write result over operand: wherever they are its operands, these may alias. */
static bool may_overwrite(const sbp_instr *instr, sbp_value operand, sbp_value result) {
    bool found = false;
    for (int32_t o = 0; o < instr->term_count; o++) {
        if (instr->terms[o].kind != SBP_TERM_VALUE || instr->terms[o].value != result ||
            sbp_schedule_access(instr, o) == SBP_READ)
            continue;
        for (int32_t i = 0; i < instr->term_count; i++)
            if (instr->terms[i].kind == SBP_TERM_VALUE && instr->terms[i].value == operand &&
                sbp_schedule_access(instr, i) == SBP_READ) {
                if (!sbp_command_may_alias(instr->kind, instr->kernel, o, i))
                    return false;
                found = true;
            }
    }
    return found;
}

static bool same_memory_shape(const sbp_scheduler *s, sbp_value a, sbp_value b) {
    sbp_extent rows_a, rows_b;
    int64_t cols_a, cols_b;
    const sbp_func *f = s->stage->body;
    sbp_lower_shape(&f->values[a].type, s->stage->rows, &rows_a, &cols_a);
    sbp_lower_shape(&f->values[b].type, s->stage->rows, &rows_b, &cols_b);
    return f->values[a].type.dtype == f->values[b].type.dtype && cols_a == cols_b &&
           sbp_extent_equal(rows_a, rows_b);
}

/* Rows are not gathered into what they come from: one might be overwritten before it is read. */
static bool gathers_from(const sbp_scheduler *s, sbp_value v, const sbp_location *h) {
    const sbp_instr *born = s->born[v] >= 0 && s->born[v] < s->stage->instr_count
                                ? &s->stage->instrs[s->order[s->born[v]]]
                                : NULL;
    if (!born || born->kind != SBP_CMD_GATHER || h->view.ref == SBP_NO_VIEW)
        return false;
    const sbp_term *table = &born->terms[SBP_GATHER_TABLE];
    const sbp_view *from = table->kind == SBP_TERM_VALUE ? &s->stage->places[table->value] : &table->view;
    return from->ref == h->view.ref;
}

/* Whether v can stand in the location from its birth to its death, before or after the values
 * placed there. */
static bool fits(const sbp_scheduler *s, sbp_value v, int32_t location) {
    const sbp_location *h = &s->locations[location];
    if (!h->writable || gathers_from(s, v, h))
        return false;
    for (int32_t i = 0; i < h->value_count; i++) {
        sbp_value t = h->values[i];
        if (!same_memory_shape(s, v, t))
            return false;
        if (s->dies[t] < s->born[v] || s->dies[v] < s->born[t])
            continue;
        bool after = s->dies[t] == s->born[v] && s->born[v] >= 0 && s->born[v] < s->stage->instr_count &&
                     may_overwrite(&s->stage->instrs[s->order[s->born[v]]], t, v);
        bool before = s->dies[v] == s->born[t] && s->born[t] >= 0 && s->born[t] < s->stage->instr_count &&
                      may_overwrite(&s->stage->instrs[s->order[s->born[t]]], v, t);
        if (!after && !before)
            return false;
    }
    return true;
}

static void find_lifetimes(sbp_scheduler *s) {
    sbp_stage *stage = s->stage;
    int32_t n = stage->instr_count, values = stage->body->value_count;
    s->born = SBP_NEW_ARRAY(s->p->arena, int32_t, values + 1);
    s->dies = SBP_NEW_ARRAY(s->p->arena, int32_t, values + 1);
    s->location_of = SBP_NEW_ARRAY(s->p->arena, int32_t, values + 1);
    for (int32_t v = 0; v < values; v++) {
        s->born[v] = stage->body->values[v].role == SBP_VALUE_OP ? n : -1;
        s->dies[v] = s->location_of[v] = -1;
    }
    for (int32_t t = 0; t < n; t++) {
        const sbp_instr *instr = &stage->instrs[s->order[t]];
        for (int32_t k = 0; k < instr->term_count; k++) {
            sbp_value v = instr->terms[k].value;
            if (instr->terms[k].kind != SBP_TERM_VALUE)
                continue;
            if (s->born[v] == n)
                s->born[v] = t;
            s->dies[v] = t;
        }
        for (int d = 0; d < SBP_COUNT(instr->defines); d++) /* rows taken of a carry are there from here on */
            for (int32_t v = 0; instr->defines[d] != SBP_NO_VALUE && v < values; v++)
                if (v != instr->defines[d] && stage->defined_by[v] == instr->defines[d] && s->born[v] == n)
                    s->born[v] = t;
    }
    for (int32_t v = 0; v < values; v++) /* born by another value's instruction, e.g. a take */
        if (stage->defined_by[v] != v && s->dies[v] >= 0 && s->born[v] > s->dies[v])
            s->born[v] = s->dies[v];
    for (int32_t i = 0; i < stage->store_count; i++)
        s->dies[stage->base[stage->stores[i].value]] = n;
    for (int32_t i = 0; i < stage->body->op_count; i++) { /* appended rows stay in the carry */
        const sbp_op *op = &stage->body->ops[i];
        if (op->code == SBP_OP_append)
            s->dies[stage->base[op->operands[1]]] = n;
    }
}

static bool is_value_term(const sbp_term *term) {
    return term->kind == SBP_TERM_VALUE;
}

/* An operand that dies here and has no location yet moves in with the result. */
static void settle_backward(sbp_scheduler *s, int32_t t) {
    const sbp_instr *instr = &s->stage->instrs[s->order[t]];
    for (int32_t r = 0; r < instr->term_count; r++) {
        if (!is_value_term(&instr->terms[r]) || sbp_schedule_access(instr, r) == SBP_READ)
            continue;
        sbp_value result = instr->terms[r].value;
        if (s->location_of[result] < 0)
            continue;
        for (int32_t o = 0; o < instr->term_count; o++) {
            sbp_value v = instr->terms[o].value;
            if (!is_value_term(&instr->terms[o]) || sbp_schedule_access(instr, o) != SBP_READ ||
                s->location_of[v] >= 0 || s->born[v] < 0 || s->dies[v] != t ||
                !may_overwrite(instr, v, result) || !fits(s, v, s->location_of[result]))
                continue;
            move_in(s, v, s->location_of[result]);
            break;
        }
    }
}

/* A result without a location takes that of an operand that dies here, or gets scratch of its own. */
static void settle_forward(sbp_scheduler *s, int32_t t) {
    const sbp_instr *instr = &s->stage->instrs[s->order[t]];
    for (int32_t r = 0; r < instr->term_count; r++) {
        sbp_value result = instr->terms[r].value;
        if (!is_value_term(&instr->terms[r]) || sbp_schedule_access(instr, r) == SBP_READ ||
            s->location_of[result] >= 0)
            continue;
        for (int32_t o = 0; o < instr->term_count && s->location_of[result] < 0; o++) {
            sbp_value v = instr->terms[o].value;
            if (is_value_term(&instr->terms[o]) && sbp_schedule_access(instr, o) == SBP_READ &&
                s->location_of[v] >= 0 && s->dies[v] == t && may_overwrite(instr, v, result) &&
                fits(s, result, s->location_of[v]))
                move_in(s, result, s->location_of[v]);
        }
        if (s->location_of[result] < 0)
            move_in(s, result, new_scratch(s));
    }
}

sbp_status sbp_place_values(sbp_scheduler *s) {
    sbp_stage *stage = s->stage;
    find_lifetimes(s);
    for (int32_t v = 0; v < stage->body->value_count; v++) {
        bool used = s->dies[v] >= 0;
        if (!used || stage->base[v] != v || stage->places[v].ref == SBP_NO_VIEW)
            continue;
        int32_t location = location_at(s, &stage->places[v]);
        for (int32_t i = 0; i < s->locations[location].value_count; i++) {
            sbp_value t = s->locations[location].values[i];
            bool apart = s->dies[t] < s->born[v] || s->dies[v] < s->born[t];
            bool touch =
                (s->dies[t] == s->born[v] && may_overwrite(&stage->instrs[s->order[s->born[v]]], t, v)) ||
                (s->dies[v] == s->born[t] && may_overwrite(&stage->instrs[s->order[s->born[t]]], v, t));
            if (!apart && !touch)
                return sbp_fail(s->p->diag, SBP_INTERNAL,
                                "schedule: %%%s and %%%s of %s want the same place at once",
                                stage->body->values[t].name, stage->body->values[v].name, stage->name);
        }
        move_in(s, v, location);
    }
    for (int32_t t = stage->instr_count - 1; t >= 0; t--)
        settle_backward(s, t);
    for (int32_t t = 0; t < stage->instr_count; t++)
        settle_forward(s, t);
    return SBP_OK;
}
