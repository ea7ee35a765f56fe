/* loss.c: the derivative of a loss, the first result of a function, with respect to what it reads. */
#include "passes/lower/lowering.h"
#include "passes/stream/body.h"

static sbp_value one_like(sbp_builder *b, const sbp_type *type) {
    sbp_value one = sbp_build_const(b, type->dtype, 1);
    return type->rank == 0 ? one : sbp_build_broadcast(b, one, type);
}

/* d(loss) = 1. */
sbp_status sbp_loss_slope(sbp_program_builder *p, const sbp_func *func, const char *name, sbp_func **out) {
    sbp_module *m = p->module;
    sbp_func *with_loss, *expanded;
    SBP_TRY(sbp_expand_func(m, func, false, p->diag, &expanded));
    for (int32_t i = 0; i < expanded->result_count; i++)
        if (i > 0)
            expanded->results[i].role = SBP_RESULT_SAVED; /* metrics */
    SBP_TRY(sbp_autodiff_func(m, expanded, true, p->diag, &with_loss));
    sbp_rewrite rw;
    sbp_rewrite_begin_bare(&rw, m, with_loss, p->diag);
    rw.to->name = name;
    for (int32_t i = 0; i < with_loss->arg_count; i++) {
        sbp_value arg = with_loss->args[i];
        if (with_loss->values[arg].role == SBP_VALUE_COTANGENT)
            rw.map[arg] = one_like(&rw.builder, &with_loss->values[arg].type);
        else
            sbp_rewrite_arg(&rw, arg, &with_loss->values[arg].type);
    }
    for (int32_t i = 0; i < with_loss->op_count; i++)
        SBP_TRY(sbp_rewrite_copy(&rw, &with_loss->ops[i]));
    sbp_func *all = sbp_rewrite_end(&rw);
    bool *none = SBP_NEW_ARRAY(p->arena, bool, all->value_count + 1);
    sbp_body_cut cut;
    SBP_TRY(sbp_body_make(
        m, &(sbp_body_spec){.from = all, .given = none, .keeps = sbp_body_keeps_gradients, .filled = none},
        name, p->diag, &cut));
    *out = cut.func;
    return SBP_OK;
}
