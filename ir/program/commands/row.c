/* row: a row kernel (ir/rowkernel/rowkernel.h), over the rows of its first operand that varies with the row.
 *
 * Operands, their types and access are those of the kernel:
 *   an operand that varies with the row  has as many rows as the first such one; where there is none, the
 *                                        kernel runs over one row
 *   one that does not                    one row or more, of which the first is read
 *   a partial                            a row for each SBP_PARTIAL_ROWS rows, written
 * and as many columns as the kernel reaches over. What may alias is sbp_rowkernel_may_alias.
 *
 * Attribute: share, these are this rank's share of the rows, of which all ranks have equally many, and random
 * numbers are of their places among all. */
#include "ir/program/command.h"

int32_t sbp_command_rows_operand(const sbp_program *program, const sbp_command *command) {
    const sbp_rowkernel *kernel = program->kernels[command->kernel];
    for (int32_t k = 0; k < kernel->operand_count; k++)
        if (kernel->operands[k].mode != SBP_RK_PARTIAL && (kernel->operands[k].vary & SBP_VARY_ROW))
            return k;
    return -1;
}

void sbp_rows_row(sbp_row_rules *rules) {
    const sbp_rowkernel *kernel = rules->program->kernels[rules->command->kernel];
    int32_t leader = sbp_command_rows_operand(rules->program, rules->command);
    for (int32_t k = 0; k < kernel->operand_count; k++) {
        if (kernel->operands[k].mode == SBP_RK_PARTIAL) {
            if (leader >= 0)
                sbp_rows_add(rules, SBP_ROWS_BLOCKS, k, leader, 0);
            else
                sbp_rows_add(rules, SBP_ROWS_EXACT, k, -1, 1);
        } else if (!(kernel->operands[k].vary & SBP_VARY_ROW)) {
            sbp_rows_add(rules, SBP_ROWS_AT_LEAST, k, -1, 1);
        } else if (k != leader) {
            sbp_rows_add(rules, SBP_ROWS_SAME, k, leader, 0);
        }
    }
}

sbp_status sbp_check_row(const sbp_subject *s) {
    const sbp_rowkernel *kernel = s->c->program->kernels[s->command->kernel];
    for (int32_t k = 0; k < s->count; k++) {
        const sbp_rk_operand *o = &kernel->operands[k];
        if (sbp_subject_dtype(s, k) != o->dtype)
            return SBP_SUBJECT_FAIL(s, "c20", "%.60s is %s, the kernel takes %s", o->name,
                                    sbp_dtype_name(sbp_subject_dtype(s, k)), sbp_dtype_name(o->dtype));
        int64_t width = o->length; /* below 2^31, as are heads and head_stride */
        if (o->vary & SBP_VARY_HEAD)
            width += (kernel->heads - 1) * o->head_stride;
        if (sbp_subject_cols(s, k) < width)
            return SBP_SUBJECT_FAIL(s, "c19", "%.60s has %lld columns, the kernel reaches over %lld", o->name,
                                    (long long)sbp_subject_cols(s, k), (long long)width);
    }
    return SBP_OK;
}

sbp_access sbp_access_row(const sbp_command *command, int32_t operand, sbp_access stated) {
    (void)command, (void)operand;
    return stated; /* the kernel's */
}

bool sbp_alias_row(const sbp_rowkernel *kernel, int32_t written, int32_t other) {
    return sbp_rowkernel_may_alias(kernel, written, other);
}

void sbp_text_row(sbp_fields *fields) {
    sbp_field_flag(fields, "share", &fields->command->u.share);
}

void sbp_work_row(const sbp_work_query *q, sbp_work *out) {
    int32_t operand = sbp_command_rows_operand(q->program, q->command);
    int64_t rows = operand >= 0 ? q->operands[operand].rows : 1;
    out->row_ops = sbp_rowkernel_ops(q->program->kernels[q->command->kernel]) * (double)rows;
}
