/* program_rules.c: whether rows of operands agree. The same few relations serve the verifier (at sampled
 * sizes), the executor (at every command, since plans are untrusted) and simulators; which of them a command
 * asks for is in commands/<name>.c. */
#include "ir/program/program.h"

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
    case SBP_ROWS_PER:
        return range->rows >= sbp_ceil_div(other->rows, rule->n);
    case SBP_ROWS_COVER:
        return range->first_row <= window_lo(program, position, rule->n) &&
               range->first_row + range->rows >= other->first_row + other->rows;
    case SBP_ROWS_COVER_ALL:
        return range->first_row <= window_lo(program, position, rule->n) &&
               range->first_row + range->rows >= (other->first_row + other->rows) * program->context;
    case SBP_ROWS_NAMED:
        return true;
    case SBP_ROWS_ORDER: {
        int64_t step = position->sizes.v[rule->n],
                left = position->sizes.v[rule->n == SBP_W ? SBP_W : SBP_T] - range->start;
        return range->start % step == 0 && range->rows == (left < step ? left : step);
    }
    }
    return false;
}
