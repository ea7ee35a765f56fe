/* rule.h: commands over whole buffers (an optimizer's update, a flush, a conversion) made from a small graph,
 * which fuse and schedule lower as they lower every other. */
#ifndef SBP_PASSES_OPTIMIZERS_RULE_H
#define SBP_PASSES_OPTIMIZERS_RULE_H

#include "passes/lower/lowering.h"

/* A rule being made. Its operands are its formals, in the order they were added. */
typedef struct sbp_rule {
    sbp_program_builder *p;
    sbp_builder builder; /* on the graph; kernels compute in fp64 where a value of rows is f64 */
    sbp_function code;   /* formals, and in the end the commands: a view's ref ~i stands for operand i */
    sbp_value *values;   /* per formal: the argument that reads it, SBP_NO_VALUE */
    sbp_value *results;  /* per formal: what is stored to it, SBP_NO_VALUE */
    bool of_param;       /* sbp_stage */
    int64_t *widths;     /* per formal: in which its views count columns, 0: as the buffer does */
} sbp_rule;

enum { SBP_MAX_RULE_OPERANDS = 16 };

void sbp_rule_begin(sbp_program_builder *p, const char *name, sbp_rule *out);
/* An operand, read as the value that is returned: [rows, cols]; of rule_number one element, for all rows.
 * rule_blocks: seen as rows of `width`, of which it has a whole number. */
sbp_value sbp_rule_operand(sbp_rule *rule, const char *name, sbp_access access, sbp_dtype dtype,
                           sbp_extent rows, int64_t cols);
sbp_value sbp_rule_blocks(sbp_rule *rule, const char *name, sbp_access access, sbp_dtype dtype,
                          sbp_extent rows, int64_t cols, int64_t width);
sbp_value sbp_rule_number(sbp_rule *rule, const char *name, sbp_dtype dtype);
/* What operand number `formal` becomes: `value`, of its shape, rounded to its type. */
void sbp_rule_store(sbp_rule *rule, int32_t formal, sbp_value value);
/* Lowers the graph. The commands and formals are in rule->code, in the pipeline's arena. */
sbp_status sbp_rule_end(sbp_rule *rule) SBP_CHECKED;

#endif
