/* lists.c: call lists and tasks, for what writes them. */
#include <string.h>

#include "passes/calls/builder.h"

void sbp_calls_begin_list(sbp_calls_builder *e, sbp_entry_id entry) {
    SBP_PUSH(e->p->arena, e->r->lists, e->r->list_count, e->r->list_capacity,
             (sbp_call_list){.entry = sbp_entry_names[entry]});
    e->list = &e->r->lists[e->r->list_count - 1];
}

sbp_task *sbp_calls_add_task(sbp_calls_builder *e, sbp_task_kind kind, const sbp_operand *operands,
                             int32_t count) {
    sbp_task task = {.kind = kind, .function = -1, .param = -1, .operand_count = count};
    task.operands = SBP_NEW_ARRAY(e->p->arena, sbp_operand, count + 1);
    if (count > 0)
        memcpy(task.operands, operands, (size_t)count * sizeof *operands);
    SBP_PUSH(e->p->arena, e->list->tasks, e->list->task_count, e->list->task_capacity, task);
    return &e->list->tasks[e->list->task_count - 1];
}

void sbp_calls_fill(sbp_calls_builder *e, int32_t tensor) {
    sbp_operand all = sbp_calls_stored(sbp_calls_whole(tensor), SBP_WRITE);
    all.form = e->r->tensors[tensor].sharded ? SBP_FORM_SHARE : SBP_FORM_STORED;
    sbp_calls_add_task(e, SBP_TASK_FILL, &all, 1);
}
