/* collective: over the program's ranks, each of which gives this command.
 *
 *   dst, src  floats or not, of one type and as many columns but where an op says otherwise
 *
 * A share is the rows from rank % group * rows / group on. Sums have the same bits on every rank and in every
 * run (backends/ranks/ranks.h), and are over all ranks, whatever the groups are. dst and src may be the same
 * rows and columns, where they have the same rows.
 *
 *   all_reduce, broadcast  dst, src: [n, cols]; the sum of all, or rank 0's src
 *   group_reduce           all_reduce among the ranks of the group alone
 *   reduce_scatter         src: [group n, cols]; dst: [n, cols] is the sum of this rank's share of src
 *   reduce_add             likewise, but dst += that sum, rounded once where dst is of another type; floats
 *   reduce_own             dst is src (one view): this rank's share of it becomes the sum, the rest anything
 *   all_gather             dst: [group n, cols] is the src of all of the rank's group, in their order
 *   share                  src: [group n, cols]; dst: [n, cols] is this rank's share of it. Nothing is sent
 *
 * Among the ranks that have a micro-batch together (ir/base/context.h), in queue compute; W = context:
 *
 *   to_heads               src: [n, all heads], dst: [W n, this rank's heads]: rows of all ranks, those of
 *                          rank r from r n on; 0 where it has no head. Floats. An all-to-all
 *   to_rows                src: [W n, this rank's heads], dst: [n, all heads]: back; where ranks have the
 *                          same head their sum, added in the order of ranks
 *   context_gather         all_gather among these ranks; context_share, context_reduce, context_sum: share,
 *                          reduce_scatter and all_reduce among them
 *
 * ../collectives.def lists them; the steps of each rank are ../collective_steps.h's.
 *
 * Attributes: op; of to_heads and to_rows heads, kv_heads, dim, keys. */
#include "ir/program/collective_steps.h"
#include "ir/program/command.h"

static const sbp_collective_info *info_of(const sbp_command *command) {
    return &sbp_collectives[command->u.collective.op];
}

static bool is_of_heads(const sbp_command *command) {
    sbp_collective_kind kind = info_of(command)->kind;
    return kind == SBP_KIND_TO_HEADS || kind == SBP_KIND_TO_ROWS;
}

bool sbp_is_exchange(const sbp_command *command) {
    return command->kind == SBP_CMD_COLLECTIVE && command->queue == SBP_QUEUE_COMPUTE &&
           info_of(command)->among == SBP_AMONG_CONTEXT && info_of(command)->kind != SBP_KIND_SHARE;
}

/* Which operand has a share of what the other has. */
void sbp_rows_collective(sbp_row_rules *rules) {
    enum { DST = SBP_COLLECTIVE_DST, SRC = SBP_COLLECTIVE_SRC };
    const sbp_collective_info *info = info_of(rules->command);
    int64_t ranks = info->among == SBP_AMONG_CONTEXT ? rules->program->context : rules->program->group;
    if (info->into == SBP_DST_OWN || info->kind == SBP_KIND_ALL_REDUCE || info->kind == SBP_KIND_BROADCAST)
        sbp_rows_add(rules, SBP_ROWS_SAME, DST, SRC, 0);
    else if (info->kind == SBP_KIND_ALL_GATHER || info->kind == SBP_KIND_TO_HEADS)
        sbp_rows_add(rules, SBP_ROWS_SHARE, DST, SRC, ranks);
    else
        sbp_rows_add(rules, SBP_ROWS_SHARE, SRC, DST, ranks);
}

/* In queue net; of one rank it is a copy, unless it adds, and may run as one in queue compute. Among the
 * ranks of a context it is in queue compute. */
static sbp_status check_queue(const sbp_subject *s) {
    const sbp_command *command = s->command;
    const sbp_collective_info *info = info_of(command);
    const sbp_program *program = s->c->program;
    const char *queue = sbp_queue_names[command->queue];
    const sbp_context_heads *h = &command->u.collective.heads;
    bool copies = info->into == SBP_DST_WRITES || info->into == SBP_DST_UPDATES;
    if (info->among != SBP_AMONG_CONTEXT) {
        if (command->queue != SBP_QUEUE_NET && info->kind != SBP_KIND_SHARE &&
            (program->ranks > 1 || !copies))
            return SBP_SUBJECT_FAIL(s, "c26", "between %lld ranks in queue %s", (long long)program->ranks,
                                    queue);
        return SBP_OK;
    }
    if (command->queue != SBP_QUEUE_COMPUTE || program->context < 2)
        return SBP_SUBJECT_FAIL(s, "c26", "among %lld ranks of a context in queue %s",
                                (long long)program->context, queue);
    if (is_of_heads(command) && (h->heads < 1 || h->heads > SBP_MOST_HEADS || h->kv_heads < 1 ||
                                 h->heads % h->kv_heads != 0 || h->dim < 1 || h->dim > SBP_MOST_HEADS))
        return SBP_SUBJECT_FAIL(s, "c26", "heads %lld, kv_heads %lld, dim %lld", (long long)h->heads,
                                (long long)h->kv_heads, (long long)h->dim);
    return SBP_OK;
}

/* Rows of all heads in one operand, this rank's heads in the other; whole rows of both, for both ways. */
static sbp_status check_heads(const sbp_subject *s) {
    const sbp_context_heads *heads = &s->command->u.collective.heads;
    bool to_heads = info_of(s->command)->kind == SBP_KIND_TO_HEADS;
    int32_t own = to_heads ? SBP_COLLECTIVE_DST : SBP_COLLECTIVE_SRC,
            all = to_heads ? SBP_COLLECTIVE_SRC : SBP_COLLECTIVE_DST;
    SBP_TRY(sbp_check_float(s, SBP_COLLECTIVE_DST));
    SBP_TRY(sbp_check_same_dtype(s, SBP_COLLECTIVE_DST, SBP_COLLECTIVE_SRC));
    SBP_TRY(sbp_check_exact_cols(s, own, sbp_context_slots(heads, s->c->program->context) * heads->dim));
    return sbp_check_exact_cols(s, all, sbp_context_count(heads) * heads->dim);
}

sbp_status sbp_check_collective(const sbp_subject *s) {
    enum { DST = SBP_COLLECTIVE_DST, SRC = SBP_COLLECTIVE_SRC };
    const sbp_command *command = s->command;
    if ((unsigned)command->u.collective.op >= SBP_COLLECTIVE_COUNT)
        return SBP_SUBJECT_FAIL(s, "c26", "no collective operation %d", (int)command->u.collective.op);
    SBP_TRY(check_queue(s));
    if (info_of(command)->into == SBP_DST_OWN && !sbp_view_equal(&command->views[DST], &command->views[SRC]))
        return SBP_SUBJECT_FAIL(s, "c26", "reduce_own of one view into another");
    if (is_of_heads(command))
        return check_heads(s);
    if (info_of(command)->into == SBP_DST_ADDS) {
        SBP_TRY(sbp_check_float(s, DST));
        SBP_TRY(sbp_check_float(s, SRC));
    } else {
        SBP_TRY(sbp_check_same_dtype(s, DST, SRC));
    }
    return sbp_check_same_cols(s, DST, SRC);
}

/* An operation that writes its whole result does not read what dst had. */
sbp_access sbp_access_collective(const sbp_command *command, int32_t operand, sbp_access stated) {
    return operand == SBP_COLLECTIVE_DST && info_of(command)->into == SBP_DST_WRITES ? SBP_WRITE : stated;
}

bool sbp_alias_collective(const sbp_rowkernel *kernel, int32_t written, int32_t other) {
    (void)kernel;
    return written == SBP_COLLECTIVE_DST && other == SBP_COLLECTIVE_SRC;
}

void sbp_text_collective(sbp_fields *fields) {
    static const char *const ops[SBP_COLLECTIVE_COUNT] = {
#define COLLECTIVE(id, text, kind, communicator, accumulate) #text,
#include "ir/program/collectives.def"
#undef COLLECTIVE
    };
    sbp_command *c = fields->command;
    sbp_context_heads *heads = &c->u.collective.heads;
    sbp_field_word(fields, "op", &c->u.collective.op, ops, SBP_COLLECTIVE_COUNT, "a collective operation");
    sbp_field *of_heads[] = {
        sbp_field_int(fields, "heads", &heads->heads), sbp_field_int(fields, "kv_heads", &heads->kv_heads),
        sbp_field_int(fields, "dim", &heads->dim), sbp_field_flag(fields, "keys", &heads->keys)};
    for (int i = 0; i < SBP_COUNT(of_heads); i++) {
        of_heads[i]->always = of_heads[i]->type == SBP_FIELD_INT;
        of_heads[i]->hidden = !is_of_heads(c);
    }
}

void sbp_work_collective(const sbp_work_query *q, sbp_work *out) {
    const sbp_operand_shape *dst = &q->operands[SBP_COLLECTIVE_DST], *src = &q->operands[SBP_COLLECTIVE_SRC];
    double of_dst = (double)dst->rows * (double)dst->cols, of_src = (double)src->rows * (double)src->cols;
    if (info_of(q->command)->among == SBP_AMONG_CONTEXT) {
        const sbp_program *p = q->program;
        const sbp_collective_world world = {0, (int32_t)p->ranks, (int32_t)p->group, (int32_t)p->context, 1};
        const sbp_collective_call call = sbp_collective_call_of(q->command, dst, src, &world);
        out->kind = SBP_WORK_EXCHANGE;
        out->dtype = dst->dtype;
        out->sent = (double)sbp_collective_sent(&call).bytes;
        return;
    }
    out->kind = SBP_WORK_COLLECTIVE;
    out->dtype = of_src >= of_dst ? src->dtype : dst->dtype;
    out->elems = of_src >= of_dst ? of_src : of_dst;
}
