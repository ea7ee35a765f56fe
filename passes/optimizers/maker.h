/* maker.h: an update while it is made: update.c reads and stores weight and gradient, optimizer.c states, as
 * an optimizer asks for them. */
#ifndef SBP_PASSES_OPTIMIZERS_MAKER_H
#define SBP_PASSES_OPTIMIZERS_MAKER_H

#include "passes/optimizers/optimizer.h"
#include "passes/optimizers/update.h"

typedef struct sbp_update_maker {
    const sbp_param *param;
    sbp_rule rule; /* its formals are the operands of the update, in the same order */
    sbp_update *update;
    sbp_extent rows;
    int64_t cols;
    int64_t block;       /* operands are seen as rows of `block` elements; 0: as they are */
    bool bytes;          /* states in 8 bits */
    int32_t weight, low; /* operands; low: of an exact master, -1 */
    struct {
        int32_t operand, absmax; /* absmax: of 8-bit states, -1 */
        const char *suffix;
    } states[SBP_MAX_UPDATE_OPERANDS];
    int32_t state_count;
    sbp_value next_weight, largest; /* largest: of the last 8-bit state's blocks, SBP_NO_VALUE */
} sbp_update_maker;

/* Adds an operand and returns what it reads, as it is kept. */
sbp_value sbp_maker_operand(sbp_update_maker *maker, sbp_update_operand operand);
/* An operand of the parameter's shape. */
sbp_value sbp_maker_like_param(sbp_update_maker *maker, sbp_update_operand_kind kind, const char *suffix,
                               sbp_dtype dtype, sbp_access access);
/* A value rounded to bf16 at random, by the draw of that name. */
sbp_value sbp_maker_round(sbp_rule *rule, sbp_value value, const char *name);

#endif
