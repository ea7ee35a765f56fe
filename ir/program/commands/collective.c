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
 *   to_heads               src: [n, all heads], dst: [W n, this rank's heads]: rows of all ranks, those of rank
 *                          r from r n on; 0 where it has no head. Floats. An all-to-all
 *   to_rows                src: [W n, this rank's heads], dst: [n, all heads]: back; where ranks have the
 *                          same head their sum, added in the order of ranks
 *   context_gather         all_gather among these ranks; context_share, context_reduce: share and
 *                          reduce_scatter among them
 *
 * Attributes: op; of to_heads and to_rows heads, kv_heads, dim, keys. */
#include "ir/program/commands/command.h"

static bool is_of_heads(const sbp_command *command) {
    return command->u.collective.op == SBP_TO_HEADS || command->u.collective.op == SBP_TO_ROWS;
}

bool sbp_collective_of_context(sbp_collective_op op) {
    switch (op) {
    case SBP_TO_HEADS:
    case SBP_TO_ROWS:
    case SBP_CONTEXT_GATHER:
    case SBP_CONTEXT_SHARE:
    case SBP_CONTEXT_REDUCE:
        return true;
    default:
        return false;
    }
}

bool sbp_is_exchange(const sbp_command *command) {
    return command->kind == SBP_CMD_COLLECTIVE && command->queue == SBP_QUEUE_COMPUTE &&
           sbp_collective_of_context(command->u.collective.op) &&
           command->u.collective.op != SBP_CONTEXT_SHARE;
}

void sbp_rows_collective(sbp_row_rules *rules) {
    enum { DST = SBP_COLLECTIVE_DST, SRC = SBP_COLLECTIVE_SRC };
    const sbp_program *program = rules->program;
    switch (rules->command->u.collective.op) {
    case SBP_ALL_REDUCE:
    case SBP_BROADCAST:
    case SBP_REDUCE_OWN:
    case SBP_GROUP_REDUCE:
        sbp_rows_add(rules, SBP_ROWS_SAME, DST, SRC, 0);
        break;
    case SBP_TO_HEADS:
    case SBP_CONTEXT_GATHER:
        sbp_rows_add(rules, SBP_ROWS_SHARE, DST, SRC, program->context);
        break;
    case SBP_TO_ROWS:
    case SBP_CONTEXT_SHARE:
    case SBP_CONTEXT_REDUCE:
        sbp_rows_add(rules, SBP_ROWS_SHARE, SRC, DST, program->context);
        break;
    case SBP_ALL_GATHER:
        sbp_rows_add(rules, SBP_ROWS_SHARE, DST, SRC, program->group);
        break;
    default:
        sbp_rows_add(rules, SBP_ROWS_SHARE, SRC, DST, program->group);
        break;
    }
}

/* Of one rank it is a copy, and may run as one in queue compute. */
static bool may_be_copy(sbp_collective_op op) {
    return op == SBP_ALL_REDUCE || op == SBP_REDUCE_SCATTER || op == SBP_ALL_GATHER || op == SBP_BROADCAST ||
           op == SBP_SHARE;
}

static sbp_status check_queue(const sbp_subject *s) {
    const sbp_command *command = s->command;
    const sbp_program *program = s->c->program;
    const char *queue = sbp_queue_names[command->queue];
    const sbp_context_heads *h = &command->u.collective.heads;
    if (!sbp_collective_of_context(command->u.collective.op)) {
        if (command->queue != SBP_QUEUE_NET && command->u.collective.op != SBP_SHARE &&
            (program->ranks > 1 || !may_be_copy(command->u.collective.op)))
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
    bool to_heads = s->command->u.collective.op == SBP_TO_HEADS;
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
    if (command->u.collective.op == SBP_REDUCE_OWN &&
        !sbp_view_equal(&command->views[DST], &command->views[SRC]))
        return SBP_SUBJECT_FAIL(s, "c26", "reduce_own of one view into another");
    if (is_of_heads(command))
        return check_heads(s);
    if (command->u.collective.op == SBP_REDUCE_ADD) {
        SBP_TRY(sbp_check_float(s, DST));
        SBP_TRY(sbp_check_float(s, SRC));
    } else {
        SBP_TRY(sbp_check_same_dtype(s, DST, SRC));
    }
    return sbp_check_same_cols(s, DST, SRC);
}

/* Of what is written whole, what it was is gone. */
sbp_access sbp_access_collective(const sbp_command *command, int32_t operand, sbp_access stated) {
    bool whole = command->u.collective.op == SBP_SHARE || command->u.collective.op == SBP_ALL_GATHER ||
                 sbp_collective_of_context(command->u.collective.op);
    return operand == SBP_COLLECTIVE_DST && whole ? SBP_WRITE : stated;
}

bool sbp_alias_collective(const sbp_rowkernel *kernel, int32_t written, int32_t other) {
    (void)kernel;
    return written == SBP_COLLECTIVE_DST && other == SBP_COLLECTIVE_SRC;
}

void sbp_text_collective(sbp_fields *fields) {
    static const char *const ops[SBP_COLLECTIVE_COUNT] = {
        "all_reduce",     "reduce_scatter", "all_gather",    "broadcast", "share",
        "reduce_add",     "reduce_own",     "group_reduce",  "to_heads",  "to_rows",
        "context_gather", "context_share",  "context_reduce"};
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

/* Elements that a rank sends to the others of its context, of so many rows of its own. */
static double sent_elems(const sbp_work_query *q) {
    double others = (double)(q->program->context - 1);
    switch (q->command->u.collective.op) {
    case SBP_CONTEXT_SHARE:
        return 0;
    case SBP_CONTEXT_GATHER:
        return (double)q->operands[SBP_COLLECTIVE_SRC].rows * (double)q->operands[SBP_COLLECTIVE_SRC].cols *
               others;
    case SBP_CONTEXT_REDUCE:
        return (double)q->operands[SBP_COLLECTIVE_DST].rows * (double)q->operands[SBP_COLLECTIVE_SRC].cols *
               others;
    case SBP_TO_HEADS:
        return (double)sbp_exchange_sent(q->program, q->command, q->operands[SBP_COLLECTIVE_SRC].rows);
    default:
        return (double)sbp_exchange_sent(q->program, q->command, q->operands[SBP_COLLECTIVE_DST].rows);
    }
}

void sbp_work_collective(const sbp_work_query *q, sbp_work *out) {
    const sbp_operand_shape *dst = &q->operands[SBP_COLLECTIVE_DST], *src = &q->operands[SBP_COLLECTIVE_SRC];
    double of_dst = (double)dst->rows * (double)dst->cols, of_src = (double)src->rows * (double)src->cols;
    if (sbp_collective_of_context(q->command->u.collective.op)) {
        out->kind = SBP_WORK_EXCHANGE;
        out->dtype = dst->dtype;
        out->sent = sent_elems(q) * (double)sbp_dtype_bytes(dst->dtype);
        return;
    }
    out->kind = SBP_WORK_COLLECTIVE;
    out->dtype = of_src >= of_dst ? src->dtype : dst->dtype;
    out->elems = of_src >= of_dst ? of_src : of_dst;
}
