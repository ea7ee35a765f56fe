/* program_rules.c: how the rows of a command's operands must agree. The same few rules serve the verifier
 * (at sampled sizes), the executor (at every command, since plans are untrusted) and simulators. */
#include "ir/program/program.h"

typedef struct rule_list {
    const sbp_command *command;
    sbp_row_rule *out;
    int32_t count;
} rule_list;

/* Rules on absent operands are dropped. */
static void add(rule_list *list, sbp_row_relation relation, int32_t operand, int32_t other, int64_t n) {
    if (list->command->views[operand].ref == SBP_NO_VIEW)
        return;
    list->out[list->count++] = (sbp_row_rule){relation, operand, other, n};
}

int32_t sbp_command_rows_operand(const sbp_program *program, const sbp_command *command) {
    const sbp_rowkernel *kernel = program->kernels[command->kernel];
    for (int32_t k = 0; k < kernel->operand_count; k++)
        if (kernel->operands[k].mode != SBP_RK_PARTIAL && (kernel->operands[k].vary & SBP_VARY_ROW))
            return k;
    return -1;
}

static void row_kernel_rules(rule_list *list, const sbp_program *program) {
    const sbp_rowkernel *kernel = program->kernels[list->command->kernel];
    int32_t leader = sbp_command_rows_operand(program, list->command);
    for (int32_t k = 0; k < kernel->operand_count; k++) {
        if (kernel->operands[k].mode == SBP_RK_PARTIAL) {
            if (leader >= 0)
                add(list, SBP_ROWS_BLOCKS, k, leader, 0);
            else
                add(list, SBP_ROWS_EXACT, k, -1, 1);
        } else if (!(kernel->operands[k].vary & SBP_VARY_ROW)) {
            add(list, SBP_ROWS_AT_LEAST, k, -1, 1);
        } else if (k != leader) {
            add(list, SBP_ROWS_SAME, k, leader, 0);
        }
    }
}

static void gemm_rules(rule_list *list) {
    enum { D, A, B, C, BIAS };
    const sbp_command *gemm = list->command;
    if (gemm->u.gemm.ta)
        add(list, SBP_ROWS_EXACT, D, -1, gemm->views[A].cols);
    else
        add(list, SBP_ROWS_SAME, D, A, 0);
    if (gemm->u.gemm.ta && gemm->u.gemm.tb)
        add(list, SBP_ROWS_EXACT, A, -1, gemm->views[B].cols);
    else if (gemm->u.gemm.ta)
        add(list, SBP_ROWS_SAME, A, B, 0);
    else if (gemm->u.gemm.tb)
        add(list, SBP_ROWS_EXACT, B, -1, gemm->views[D].cols);
    else
        add(list, SBP_ROWS_EXACT, B, -1, gemm->views[A].cols);
    if (gemm->u.gemm.ta && gemm->u.gemm.tb)
        add(list, SBP_ROWS_EXACT, B, -1, gemm->views[D].cols);
    add(list, SBP_ROWS_SAME, C, D, 0);
    add(list, SBP_ROWS_EXACT, BIAS, -1, 1);
}

static void attention_rules(rule_list *list, const int32_t *like_q, int32_t q, int32_t k, int32_t v,
                            int32_t first) {
    for (; *like_q >= 0; like_q++)
        add(list, SBP_ROWS_SAME, *like_q, q, 0);
    for (int32_t column = first; column < first + 3; column++) /* first, shared_end, own */
        add(list, SBP_ROWS_ALIGNED, column, q, 0);
    add(list, list->command->u.attention.by_rank ? SBP_ROWS_COVER_ALL : SBP_ROWS_COVER, k, q,
        list->command->u.attention.window);
    add(list, SBP_ROWS_ALIGNED, v, k, 0);
}

/* A chunk of a scatter order belongs to the rows it was sorted for. */
static void order_rule(rule_list *list, const sbp_program *program, int32_t operand) {
    for (int32_t r = 0; r < program->row_input_count; r++)
        if (program->row_inputs[r].buffer == list->command->views[operand].ref)
            add(list, SBP_ROWS_ORDER, operand, -1, (int64_t)program->row_inputs[r].chunk);
}

int32_t sbp_command_row_rules(const sbp_program *program, const sbp_command *command, sbp_row_rule *out) {
    rule_list list = {.command = command, .out = out};
    switch (command->kind) {
    case SBP_CMD_ROW:
        row_kernel_rules(&list, program);
        break;
    case SBP_CMD_COPY:
        add(&list, SBP_ROWS_SAME, 0, 1, 0);
        break;
    case SBP_CMD_COLLECTIVE:
        if (command->u.collective == SBP_ALL_REDUCE || command->u.collective == SBP_BROADCAST ||
            command->u.collective == SBP_REDUCE_OWN || command->u.collective == SBP_GROUP_REDUCE)
            add(&list, SBP_ROWS_SAME, 0, 1, 0);
        else if (command->u.collective == SBP_TO_HEADS || command->u.collective == SBP_CONTEXT_GATHER)
            add(&list, SBP_ROWS_SHARE, 0, 1, program->context);
        else if (command->u.collective == SBP_TO_ROWS || command->u.collective == SBP_CONTEXT_SHARE ||
                 command->u.collective == SBP_CONTEXT_REDUCE)
            add(&list, SBP_ROWS_SHARE, 1, 0, program->context);
        else if (command->u.collective == SBP_ALL_GATHER)
            add(&list, SBP_ROWS_SHARE, 0, 1, program->group);
        else
            add(&list, SBP_ROWS_SHARE, 1, 0, program->group);
        break;
    case SBP_CMD_GEMM:
        gemm_rules(&list);
        break;
    case SBP_CMD_COLSUM:
    case SBP_CMD_REDUCE:
        add(&list, SBP_ROWS_EXACT, 0, -1, 1);
        break;
    case SBP_CMD_GATHER: /* dst table index */
        add(&list, SBP_ROWS_SAME, 0, 2, 0);
        break;
    case SBP_CMD_SCATTER_ADD: /* dst src index perm segment */
        add(&list, SBP_ROWS_SAME, 1, 2, 0);
        add(&list, SBP_ROWS_ALIGNED, 3, 2, 0);
        add(&list, SBP_ROWS_ALIGNED, 4, 2, 0);
        order_rule(&list, program, 3);
        break;
    case SBP_CMD_ATTN_FWD: /* o lse q k v first shared_end own work */
        attention_rules(&list, (const int32_t[]){0, 1, -1}, 2, 3, 4, 5);
        add(&list, SBP_ROWS_NO_LESS, 8, 2, 0);
        break;
    case SBP_CMD_ATTN_BWD: /* dq dk dv q k v o lse do first shared_end own work */
        attention_rules(&list, (const int32_t[]){0, 6, 7, 8, -1}, 3, 4, 5, 9);
        add(&list, SBP_ROWS_ALIGNED, 1, 4, 0);
        add(&list, SBP_ROWS_ALIGNED, 2, 4, 0);
        add(&list, SBP_ROWS_NO_LESS, 12, 3, 0);
        break;
    case SBP_CMD_FILL:
    case SBP_CMD_FENCE:
    case SBP_CMD_COUNT:
        break;
    }
    return list.count;
}

/* The first row that attention with this window reads; row 0 where no table tells. */
static int64_t window_lo(const sbp_program *program, const sbp_position *position, int64_t window) {
    if (position->table < 0)
        return 0;
    const sbp_chunk_table *table = &program->tables[position->table];
    for (int32_t w = 0; w < table->window_count; w++)
        if (table->windows[w] == window)
            return position->columns[SBP_COLUMN_LO + w];
    return 0;
}

bool sbp_row_rule_holds(const sbp_program *program, const sbp_row_rule *rule, const sbp_range *ranges,
                        const sbp_position *position) {
    const sbp_range *range = &ranges[rule->operand];
    const sbp_range *other = rule->other >= 0 ? &ranges[rule->other] : range;
    switch (rule->relation) {
    case SBP_ROWS_SAME:
        return range->rows == other->rows;
    case SBP_ROWS_NO_LESS:
        return range->rows >= other->rows;
    case SBP_ROWS_ALIGNED:
        return range->rows == other->rows && range->first_row == other->first_row;
    case SBP_ROWS_EXACT:
        return range->rows == rule->n;
    case SBP_ROWS_SHARE:
        return range->rows == rule->n * other->rows;
    case SBP_ROWS_AT_LEAST:
        return range->rows >= rule->n;
    case SBP_ROWS_BLOCKS:
        return range->rows == sbp_ceil_div(other->rows, SBP_PARTIAL_ROWS);
    case SBP_ROWS_COVER:
        return range->first_row <= window_lo(program, position, rule->n) &&
               range->first_row + range->rows >= other->first_row + other->rows;
    case SBP_ROWS_COVER_ALL:
        return range->first_row <= window_lo(program, position, rule->n) &&
               range->first_row + range->rows >= (other->first_row + other->rows) * program->context;
    case SBP_ROWS_ORDER: {
        int64_t step = position->sizes.v[rule->n],
                left = position->sizes.v[rule->n == SBP_W ? SBP_W : SBP_T] - range->start;
        return range->start % step == 0 && range->rows == (left < step ? left : step);
    }
    }
    return false;
}
