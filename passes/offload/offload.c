/* offload: brings what calls read to where they read it, and back: the one place with copies between
 * spaces, conversions between types, and staging buffers.
 *
 * requires  calls
 * gives     the program's entries
 * preserves everything there is
 * breaks    nothing; later passes make no buffer with rows of T, and insert no copy
 *
 * staging.c decides along each call list what stands where and which moves that takes; here lists become the
 * bodies of entries: each task, and behind it the moves that may begin once it is done. Their order is the
 * order of their queues. Entries follow each other in any order: between them everything that lasts is at
 * in its placement.
 */
#include <stdlib.h>

#include "ir/program/traits.h"
#include "passes/offload/staging.h"
#include "passes/optimizers/update.h"

static int by_position(const void *x, const void *y) {
    const sbp_move *a = x, *b = y;
    return a->after != b->after ? (a->after < b->after ? -1 : 1)
                                : (a->order > b->order) - (a->order < b->order);
}

static void emit_numbers(sbp_program_builder *p, const sbp_placed_tensor *tensor, sbp_body *body,
                         const sbp_move *m) {
    const sbp_spot *part = m->parts, *number = m->parts + m->part_count - tensor->packed_count;
    for (int32_t i = 0; i < tensor->packed_count; i++) {
        sbp_format format = tensor->packed[i].format;
        sbp_view views[SBP_MAX_FORMAT_PARTS];
        for (int32_t k = 0; k < sbp_format_of(format)->part_count; k++, part++)
            views[k] = sbp_view_buffer(p->program, part->buffer, part->element);
        sbp_lower_dequantize(p, body, format,
                             sbp_view_buffer(p->program, number[i].buffer, number[i].element), m->to_dtype,
                             views);
    }
}

static void emit_move(sbp_program_builder *p, const sbp_call_schedule *r, sbp_body *body, const sbp_move *m) {
    if (m->parts) {
        emit_numbers(p, &r->tensors[m->tensor], body, m);
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
                        const sbp_task *task, const sbp_view *views) {
    const sbp_update *rule = task->rule ? task->rule : lasting->updates[task->param];
    int32_t gradient = 0;
    while (rule->operands[gradient].kind != SBP_UPDATE_GRAD)
        gradient++;
    int32_t first = body->count;
    sbp_lower_inline(p, body, &rule->body, views, task->rule ? -1 : lasting->params[task->param], gradient,
                     sbp_update_stream(p, task->param));
    bool share = task->rule && sbp_update_is_random(p, task->param);
    for (int32_t n = first; n < body->count; n++)
        if (sbp_command_attributes(body->nodes[n].u.command) == SBP_ATTRIBUTES_ROW)
            body->nodes[n].u.command->u.share = share;
}

static void emit_task(sbp_program_builder *p, const sbp_lasting *lasting, sbp_body *whole,
                      const sbp_task *task, const sbp_view *views) {
    sbp_body conditional = {0}, *body = task->when ? &conditional : whole;
    int32_t first = body->count;
    switch (task->kind) {
    case SBP_TASK_CALL:
        sbp_lower_call(p, body, task->function, views);
        break;
    case SBP_TASK_FILL:
        sbp_lower_fill(p, body, views[0], 0);
        break;
    case SBP_TASK_FLUSH:
        sbp_lower_flush(p, body, views[0], p->program->buffers[views[0].ref].dtype, views[1],
                        p->program->buffers[views[1].ref].dtype);
        break;
    case SBP_TASK_CONVERT:
        sbp_lower_convert(p, body, views[0], p->program->buffers[views[0].ref].dtype, views[1],
                          p->program->buffers[views[1].ref].dtype);
        break;
    case SBP_TASK_SUM_SQUARES:
        sbp_lower_sumsq(p, body, task->param, views[0], views[1]);
        break;
    case SBP_TASK_NORM:
        sbp_lower_norm(p, body, lasting, views[0], task->operand_count > 1 ? views[1] : sbp_view_none());
        break;
    case SBP_TASK_COLLECTIVE:
        sbp_lower_collective(p, body, task->collective, views[0], views[task->operand_count > 1],
                             SBP_QUEUE_NET);
        break;
    case SBP_TASK_UPDATE:
        emit_update(p, lasting, body, task, views);
        break;
    }
    for (int32_t n = first; n < body->count && task->on_host; n++)
        body->nodes[n].u.command->queue = SBP_QUEUE_HOST;
    if (task->when)
        sbp_lower_when(p, whole, task->when, conditional);
}

static void emit_walk(sbp_program_builder *p, const sbp_lasting *lasting, const sbp_call_schedule *r,
                      const sbp_walk *w) {
    sbp_body body = {0};
    for (int32_t a = -1, m = 0; a < w->list->task_count; a++) {
        const sbp_task *task = a >= 0 ? &w->list->tasks[a] : NULL;
        sbp_view *views = SBP_NEW_ARRAY(p->arena, sbp_view, task ? task->operand_count + 1 : 1);
        for (int32_t i = 0; task && i < task->operand_count; i++)
            views[i] = sbp_view_buffer(p->program, w->spots[a][i].buffer, w->spots[a][i].element);
        if (task)
            emit_task(p, lasting, &body, task, views);
        for (; m < w->move_count && w->moves[m].after <= a; m++)
            emit_move(p, r, &body, &w->moves[m]);
    }
    SBP_PUSH(p->arena, p->program->entries, p->program->entry_count, p->program->entry_capacity,
             (sbp_entry){.name = w->list->entry, .body = body});
}

static sbp_status walk_list(sbp_staging *s, const sbp_call_list *list, sbp_walk *out) {
    sbp_arena *arena = s->p->arena;
    *out = (sbp_walk){.list = list, .spots = SBP_NEW_ARRAY(arena, sbp_spot *, list->task_count + 1)};
    sbp_staging_begin(s, list);
    for (int32_t a = 0; a < list->task_count; a++) {
        out->spots[a] = SBP_NEW_ARRAY(arena, sbp_spot, list->tasks[a].operand_count + 1);
        SBP_TRY(sbp_staging_bring(s, a, out->spots[a]));
    }
    SBP_TRY(sbp_staging_end(s));
    out->moves = s->moves;
    out->move_count = s->move_count;
    if (s->move_count > 0)
        qsort(s->moves, (size_t)s->move_count, sizeof *s->moves, by_position);
    return SBP_OK;
}

sbp_status sbp_offload_walk(sbp_program_builder *p, const sbp_call_schedule *r, sbp_walk **walks) {
    sbp_staging staging;
    SBP_TRY(sbp_staging_make(p, r, &staging));
    *walks = SBP_NEW_ARRAY(p->arena, sbp_walk, r->list_count + 1);
    for (int32_t l = 0; l < r->list_count; l++)
        SBP_TRY(walk_list(&staging, &r->lists[l], &(*walks)[l]));
    return SBP_OK;
}

sbp_status sbp_pass_offload(sbp_program_builder *p, const sbp_lasting *lasting,
                            const sbp_call_schedule *call_schedule) {
    sbp_walk *walks;
    if (!call_schedule)
        return sbp_fail(p->diag, SBP_INTERNAL, "offload: there are no call lists");
    SBP_TRY(sbp_offload_walk(p, call_schedule, &walks));
    for (int32_t l = 0; l < call_schedule->list_count; l++)
        emit_walk(p, lasting, call_schedule, &walks[l]);
    return p->status;
}
