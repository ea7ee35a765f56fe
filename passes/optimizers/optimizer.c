/* optimizer: the rules that consume finished gradients (update.c), and the buffers that last: parameters,
 * gradients, states.
 *
 * requires  head
 * preserves everything there is
 * breaks    nothing
 */
#include "passes/optimizers/update.h"

/* Parameters of equal shape, storage and decay share a rule. */
static sbp_status make_rules(sbp_pipeline *p) {
    sbp_map seen;
    sbp_map_init(&seen, p->arena);
    int32_t count = p->module->param_count;
    p->lowering->updates = SBP_NEW_ARRAY(p->arena, const struct sbp_update *, count + 1);
    for (int32_t i = 0; i < count; i++) {
        const sbp_param *param = &p->module->params[i];
        if (!param->trainable || p->options.optimizer == SBP_OPTIMIZER_NONE)
            continue;
        const char *key = sbp_update_key(p, param);
        int32_t same = sbp_map_get(&seen, key);
        if (same >= 0) {
            p->lowering->updates[i] = p->lowering->updates[same];
            continue;
        }
        sbp_map_set(&seen, key, i);
        SBP_TRY(sbp_update_make(p, param, &p->lowering->updates[i]));
    }
    return SBP_OK;
}

/* ---- homes ------------------------------------------------------------------------------------------- */

static int32_t result_buffer(sbp_pipeline *p, const char *name, int64_t cols) {
    return sbp_lower_buffer(p, name, SBP_ROLE_RESULT, SBP_DEVICE, SBP_F64, 1, sbp_extent_const(1), cols, -1);
}

/* Where gradients and states are kept between calls; reside may move them. */
static void make_homes(sbp_pipeline *p) {
    sbp_lowering *l = p->lowering;
    int32_t count = p->module->param_count;
    l->grad_buffers = SBP_NEW_ARRAY(p->arena, int32_t, count + 1);
    l->state_buffers = SBP_NEW_ARRAY(p->arena, int32_t, count * SBP_MAX_UPDATE_OPERANDS + 1);
    bool keeps = !p->options.step || p->options.optimizer == SBP_OPTIMIZER_NONE;
    for (int32_t i = 0; i < count; i++) {
        const sbp_buffer w = p->program->buffers[l->param_buffers[i]];
        const sbp_update *update = l->updates[i];
        bool trainable = p->module->params[i].trainable;
        l->grad_buffers[i] = trainable && keeps
                                 ? sbp_lower_buffer_of_param(p, l->param_buffers[i], "grad", SBP_ROLE_GRAD,
                                                             p->options.grad_dtype, w.rows, w.cols)
                                 : -1;
        for (int32_t o = 0; update && o < update->operand_count; o++) {
            const sbp_update_operand *operand = &update->operands[o];
            sbp_role role = operand->kind == SBP_UPDATE_MASTER ? SBP_ROLE_MASTER : SBP_ROLE_STATE;
            l->state_buffers[i * SBP_MAX_UPDATE_OPERANDS + o] =
                operand->suffix ? sbp_lower_buffer_of_param(p, l->param_buffers[i], operand->suffix, role,
                                                            operand->dtype, operand->rows, operand->cols)
                                : -1;
        }
    }
}

sbp_status sbp_pass_optimizer(sbp_pipeline *p) {
    if (!p->program)
        return SBP_OK;
    sbp_lowering *l = p->lowering;
    l->param_buffers = SBP_NEW_ARRAY(p->arena, int32_t, p->module->param_count + 1);
    for (int32_t i = 0; i < p->module->param_count; i++)
        l->param_buffers[i] = sbp_lower_param_buffer(p, i);
    l->norms = l->norm_squared = l->grad_norm = l->clip = -1;
    if (l->head.backward < 0)
        return SBP_OK;
    int64_t trainable = 0;
    for (int32_t i = 0; i < p->module->param_count; i++)
        trainable += p->module->params[i].trainable;
    l->norms = result_buffer(p, "norms", trainable);
    l->norm_squared = result_buffer(p, "norm_squared", 1);
    l->grad_norm = result_buffer(p, "grad_norm", 1);
    SBP_PUSH(p->arena, p->program->outputs, p->program->output_count, p->program->output_capacity,
             (sbp_output){.name = "grad_norm", .buffer = l->grad_norm, .index = 0});
    SBP_TRY(make_rules(p));
    make_homes(p);
    if (!p->options.step && p->options.optimizer != SBP_OPTIMIZER_NONE)
        l->clip = result_buffer(p, "clip", 1);
    return l->failed ? SBP_INTERNAL : SBP_OK;
}
