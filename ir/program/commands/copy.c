/* copy: dst = src, between memory spaces on the queue that leads there (sbp_queue_of_copy).
 *
 *   dst  [rows, cols]             written
 *   src  [rows, cols], of dst's type
 *
 * They do not overlap. In queue disk one of them is on disk, the other on the host. */
#include "ir/program/command.h"

void sbp_rows_copy(sbp_row_rules *rules) {
    sbp_rows_add(rules, SBP_ROWS_SAME, SBP_COPY_DST, SBP_COPY_SRC, 0);
}

sbp_status sbp_check_copy(const sbp_subject *s) {
    const sbp_view *dst = &s->command->views[SBP_COPY_DST], *src = &s->command->views[SBP_COPY_SRC];
    const sbp_buffer *buffers = s->c->program->buffers;
    /* behind c23: both are buffers on the host or on disk */
    if (s->command->queue == SBP_QUEUE_DISK && buffers[dst->ref].space == buffers[src->ref].space)
        return SBP_SUBJECT_FAIL(s, "c23", "a copy within the %s, in queue disk",
                                sbp_space_names[buffers[dst->ref].space]);
    SBP_TRY(sbp_check_same_dtype(s, SBP_COPY_DST, SBP_COPY_SRC));
    return sbp_check_same_cols(s, SBP_COPY_DST, SBP_COPY_SRC);
}

SBP_RULE_ACCESS_STATED(copy)
SBP_RULE_ALIAS_NONE(copy)
SBP_RULE_TEXT_NONE(copy)

void sbp_work_copy(const sbp_work_query *q, sbp_work *out) {
    (void)q;
    out->kind = SBP_WORK_COPY;
}
