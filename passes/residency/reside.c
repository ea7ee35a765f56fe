/* reside: brings what calls read to where they read it, and back home: the one place with copies between
 * spaces, conversions between types, and slots.
 *
 * requires  entries
 * gives     the program's entries
 * preserves everything there is
 * breaks    nothing; later passes make no buffer with rows of T, and insert no copy
 *
 * slots.c decides along each call list what stands where and which moves that takes; here lists become the
 * bodies of entries: each act, and behind it the moves that may begin once it is done. Their order is the
 * order of their queues. Entries follow each other in any order: between them everything that lasts is at
 * home.
 */
#include <stdlib.h>

#include "passes/optimizers/update.h"
#include "passes/residency/slots.h"

static int by_position(const void *x, const void *y) {
    const sbp_move *a = x, *b = y;
    return a->after != b->after ? (a->after < b->after ? -1 : 1)
                                : (a->order > b->order) - (a->order < b->order);
}

static void emit_numbers(sbp_program_builder *p, const sbp_resident *item, sbp_body *body,
                         const sbp_move *m) {
    const sbp_spot *part = m->parts, *number = m->parts + m->part_count - item->packed_count;
    for (int32_t i = 0; i < item->packed_count; i++) {
        sbp_format format = item->packed[i].format;
        sbp_view views[SBP_MAX_FORMAT_PARTS];
        for (int32_t k = 0; k < sbp_format_of(format)->part_count; k++, part++)
            views[k] = sbp_view_buffer(p->program, part->buffer, part->element);
        sbp_lower_dequantize(p, body, format,
                             sbp_view_buffer(p->program, number[i].buffer, number[i].element), m->to_dtype,
                             views);
    }
}

static void emit_move(sbp_program_builder *p, const sbp_residency *r, sbp_body *body, const sbp_move *m) {
    if (m->parts) {
        emit_numbers(p, &r->items[m->item], body, m);
        return;
    }
    sbp_view to = sbp_view_buffer(p->program, m->to.buffer, m->to.element),
             from = sbp_view_buffer(p->program, m->from.buffer, m->from.element);
    to.length.base = m->to_rows;
    from.length.base = m->from_rows;
    if (m->collective >= 0)
        sbp_lower_collective(p, body, (sbp_collective_op)m->collective, to, from, m->queue);
    else if (m->from_dtype == m->to_dtype)
        sbp_lower_copy(p, body, to, from, m->queue);
    else
        sbp_lower_convert(p, body, to, m->to_dtype, from, m->from_dtype);
}

static void emit_update(sbp_program_builder *p, const sbp_lasting *lasting, sbp_body *body,
                        const sbp_act *act, const sbp_view *views) {
    const sbp_update *rule = act->rule ? act->rule : lasting->updates[act->param];
    int32_t gradient = 0;
    while (rule->operands[gradient].kind != SBP_UPDATE_GRAD)
        gradient++;
    int32_t first = body->count;
    sbp_lower_inline(p, body, &rule->body, views, act->rule ? -1 : lasting->params[act->param], gradient,
                     sbp_update_stream(p, act->param));
    bool share = act->rule && sbp_update_is_random(p, act->param);
    for (int32_t n = first; n < body->count; n++)
        if (body->nodes[n].u.command->kind == SBP_CMD_ROW)
            body->nodes[n].u.command->u.share = share;
}

static void emit_act(sbp_program_builder *p, const sbp_lasting *lasting, sbp_body *whole, const sbp_act *act,
                     const sbp_view *views) {
    sbp_body conditional = {0}, *body = act->when ? &conditional : whole;
    int32_t first = body->count;
    switch (act->kind) {
    case SBP_ACT_CALL:
        sbp_lower_call(p, body, act->function, views);
        break;
    case SBP_ACT_FILL:
        sbp_lower_fill(p, body, views[0], 0);
        break;
    case SBP_ACT_FLUSH:
        sbp_lower_flush(p, body, views[0], p->program->buffers[views[0].ref].dtype, views[1],
                        p->program->buffers[views[1].ref].dtype);
        break;
    case SBP_ACT_CONVERT:
        sbp_lower_convert(p, body, views[0], p->program->buffers[views[0].ref].dtype, views[1],
                          p->program->buffers[views[1].ref].dtype);
        break;
    case SBP_ACT_SUM_SQUARES:
        sbp_lower_sumsq(p, body, act->param, views[0], views[1]);
        break;
    case SBP_ACT_NORM:
        sbp_lower_norm(p, body, lasting, views[0], act->operand_count > 1 ? views[1] : sbp_view_none());
        break;
    case SBP_ACT_COLLECTIVE:
        sbp_lower_collective(p, body, act->collective, views[0], views[act->operand_count > 1],
                             SBP_QUEUE_NET);
        break;
    case SBP_ACT_UPDATE:
        emit_update(p, lasting, body, act, views);
        break;
    }
    for (int32_t n = first; n < body->count && act->on_host; n++)
        body->nodes[n].u.command->queue = SBP_QUEUE_HOST;
    if (act->when)
        sbp_lower_when(p, whole, act->when, conditional);
}

static void emit_walk(sbp_program_builder *p, const sbp_lasting *lasting, const sbp_residency *r,
                      const sbp_walk *w) {
    sbp_body body = {0};
    for (int32_t a = -1, m = 0; a < w->list->act_count; a++) {
        const sbp_act *act = a >= 0 ? &w->list->acts[a] : NULL;
        sbp_view *views = SBP_NEW_ARRAY(p->arena, sbp_view, act ? act->operand_count + 1 : 1);
        for (int32_t i = 0; act && i < act->operand_count; i++)
            views[i] = sbp_view_buffer(p->program, w->spots[a][i].buffer, w->spots[a][i].element);
        if (act)
            emit_act(p, lasting, &body, act, views);
        for (; m < w->move_count && w->moves[m].after <= a; m++)
            emit_move(p, r, &body, &w->moves[m]);
    }
    SBP_PUSH(p->arena, p->program->entries, p->program->entry_count, p->program->entry_capacity,
             (sbp_entry){.name = w->list->entry, .body = body});
}

static sbp_status walk_list(sbp_slots *s, const sbp_call_list *list, sbp_walk *out) {
    sbp_arena *arena = s->p->arena;
    *out = (sbp_walk){.list = list, .spots = SBP_NEW_ARRAY(arena, sbp_spot *, list->act_count + 1)};
    sbp_slots_begin(s, list);
    for (int32_t a = 0; a < list->act_count; a++) {
        out->spots[a] = SBP_NEW_ARRAY(arena, sbp_spot, list->acts[a].operand_count + 1);
        SBP_TRY(sbp_slots_act(s, a, out->spots[a]));
    }
    SBP_TRY(sbp_slots_end(s));
    out->moves = s->moves;
    out->move_count = s->move_count;
    if (s->move_count > 0)
        qsort(s->moves, (size_t)s->move_count, sizeof *s->moves, by_position);
    return SBP_OK;
}

sbp_status sbp_residency_walk(sbp_program_builder *p, const sbp_residency *r, sbp_walk **walks) {
    sbp_slots slots;
    SBP_TRY(sbp_slots_make(p, r, &slots));
    *walks = SBP_NEW_ARRAY(p->arena, sbp_walk, r->list_count + 1);
    for (int32_t l = 0; l < r->list_count; l++)
        SBP_TRY(walk_list(&slots, &r->lists[l], &(*walks)[l]));
    return SBP_OK;
}

sbp_status sbp_pass_reside(sbp_program_builder *p, const sbp_lasting *lasting,
                           const sbp_residency *residency) {
    sbp_walk *walks;
    if (!residency)
        return sbp_fail(p->diag, SBP_INTERNAL, "reside: there are no call lists");
    SBP_TRY(sbp_residency_walk(p, residency, &walks));
    for (int32_t l = 0; l < residency->list_count; l++)
        emit_walk(p, lasting, residency, &walks[l]);
    return p->status;
}
