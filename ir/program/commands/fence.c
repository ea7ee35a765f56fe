/* fence: commands of queue `to` after it start only when those of queue `from` before it are done.
 *
 * No operands. Attributes: from, to. A fence is of the queues that it names, and stands in queue compute. */
#include "ir/program/command.h"

SBP_RULE_ROWS_NONE(fence)

sbp_status sbp_check_fence(const sbp_subject *s) {
    int32_t from = s->command->u.fence.from, to = s->command->u.fence.to;
    if (from < 0 || from >= SBP_QUEUE_COUNT || to < 0 || to >= SBP_QUEUE_COUNT)
        return SBP_SUBJECT_FAIL(s, "c24", "a fence from queue %d to %d", from, to);
    return SBP_OK;
}

SBP_RULE_ACCESS_STATED(fence)
SBP_RULE_ALIAS_NONE(fence)

void sbp_text_fence(sbp_fields *fields) {
    sbp_command *fence = fields->command;
    sbp_field_word(fields, "from", &fence->u.fence.from, sbp_queue_names, SBP_QUEUE_COUNT, "a queue");
    sbp_field_word(fields, "to", &fence->u.fence.to, sbp_queue_names, SBP_QUEUE_COUNT, "a queue");
}

void sbp_work_fence(const sbp_work_query *q, sbp_work *out) {
    (void)q;
    out->kind = SBP_WORK_NONE;
}
