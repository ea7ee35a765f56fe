/* optimizer: the rules that consume finished gradients (update.c), and the buffers that last: parameters,
 * gradients, states. Above the pass is what optimizers' files are written with (optimizer.h).
 *
 * requires  head
 * gives     sbp_lasting
 * preserves everything there is
 * breaks    nothing
 */
#include "passes/optimizers/maker.h"

/* ---- what a rule is written with ----------------------------------------------------------------------- */

sbp_value sbp_optimizer_state(sbp_optimizer_rule *r, sbp_suffix_id id, sbp_state_sign sign) {
    const char *suffix = sbp_suffixes[id].name;
    sbp_update_maker *m = r->maker;
    sbp_dtype dtype = m->rule.p->options.state_dtype;
    bool bytes = m->bytes;
    if (dtype == SBP_D8)
        dtype = !bytes ? SBP_F32 : sign == SBP_STATE_SIGNED ? SBP_D8 : SBP_UD8;
    int32_t state = m->state_count++;
    m->states[state].suffix = suffix;
    m->states[state].operand = m->update->operand_count;
    sbp_value kept = sbp_build_cast(
        r->b, sbp_maker_like_param(m, SBP_UPDATE_STATE, suffix, dtype, SBP_UPDATE), r->compute);
    m->states[state].absmax = -1;
    if (!bytes)
        return kept;
    m->states[state].absmax = m->update->operand_count;
    sbp_value absmax = sbp_maker_operand(
        m, (sbp_update_operand){.kind = SBP_UPDATE_STATE,
                                .suffix = sbp_arena_printf(m->rule.p->arena, "%s" SBP_ABSMAX_SUFFIX, suffix),
                                .dtype = SBP_F32,
                                .rows = sbp_extent_const(sbp_extent_as_const(m->rows) * m->cols / SBP_BLOCK),
                                .cols = 1,
                                .access = SBP_UPDATE});
    return sbp_build2(r->b, SBP_OP_mul, kept, absmax);
}

/* value / absmax, and the absmax of each block; a block of zeros stays one. */
static void store_bytes(sbp_optimizer_rule *r, int32_t operand, int32_t absmax, sbp_value value) {
    sbp_value zero = sbp_build_const(r->b, r->compute, 0);
    sbp_value largest = sbp_build1(r->b, SBP_OP_row_max, sbp_build1(r->b, SBP_OP_abs, value));
    sbp_value share = sbp_build3(r->b, SBP_OP_select, sbp_build2(r->b, SBP_OP_lt, zero, largest),
                                 sbp_build2(r->b, SBP_OP_div, value, largest), zero);
    sbp_rule_store(&r->maker->rule, operand, share);
    sbp_rule_store(&r->maker->rule, absmax, largest);
    r->maker->largest = largest;
}

void sbp_optimizer_set_state(sbp_optimizer_rule *r, int32_t state, sbp_value value) {
    sbp_update_maker *m = r->maker;
    int32_t operand = m->states[state].operand;
    if (m->states[state].absmax >= 0)
        store_bytes(r, operand, m->states[state].absmax, value);
    else if (m->update->operands[operand].dtype == SBP_BF16)
        sbp_rule_store(&m->rule, operand, sbp_maker_round(&m->rule, value, m->states[state].suffix));
    else
        sbp_rule_store(&m->rule, operand, value);
}

void sbp_optimizer_set_weight(sbp_optimizer_rule *r, sbp_value value) {
    r->maker->next_weight = value;
}

sbp_value sbp_optimizer_scalar(sbp_optimizer_rule *r, sbp_scalar_id scalar) {
    return sbp_build_cast(r->b, sbp_build_scalar(r->b, sbp_scalar_names[scalar]), r->compute);
}

sbp_value sbp_optimizer_decayed(sbp_optimizer_rule *r) {
    if (!r->decay)
        return r->weight;
    sbp_value rate = sbp_build2(r->b, SBP_OP_mul, sbp_optimizer_scalar(r, SBP_SCALAR_LR),
                                sbp_optimizer_scalar(r, SBP_SCALAR_WEIGHT_DECAY));
    return sbp_build2(r->b, SBP_OP_sub, r->weight, sbp_build2(r->b, SBP_OP_mul, rate, r->weight));
}

sbp_value sbp_optimizer_regularized(sbp_optimizer_rule *r) {
    if (!r->decay)
        return r->grad;
    return sbp_build2(
        r->b, SBP_OP_add, r->grad,
        sbp_build2(r->b, SBP_OP_mul, sbp_optimizer_scalar(r, SBP_SCALAR_WEIGHT_DECAY), r->weight));
}

/* ---- rules --------------------------------------------------------------------------------------------- */

/* Parameters of equal shape, storage and decay share a rule. */
static sbp_status make_rules(sbp_program_builder *p, sbp_lasting *out) {
    sbp_map seen;
    sbp_map_init(&seen, p->arena);
    int32_t count = p->module->param_count;
    out->updates = SBP_NEW_ARRAY(p->arena, const sbp_update *, count + 1);
    for (int32_t i = 0; i < count; i++) {
        const sbp_param *param = &p->module->params[i];
        if (!param->trainable || p->options.optimizer == SBP_OPTIMIZER_NONE)
            continue;
        const char *key = sbp_update_key(p, param);
        int32_t same = sbp_map_get(&seen, key);
        if (same >= 0) {
            out->updates[i] = out->updates[same];
            continue;
        }
        sbp_map_set(&seen, key, i);
        SBP_TRY(sbp_update_make(p, param, &out->updates[i]));
    }
    return SBP_OK;
}

/* ---- placements ---------------------------------------------------------------------------------------- */

static int32_t result_buffer(sbp_program_builder *p, const char *name, int64_t cols) {
    return sbp_lower_buffer(p, name, SBP_ROLE_RESULT, SBP_DEVICE, SBP_F64, 1, sbp_extent_const(1), cols, -1);
}

/* Where gradients and states are kept between calls; offload may move them. */
static void make_placement(sbp_program_builder *p, sbp_lasting *out) {
    int32_t count = p->module->param_count;
    out->grads = SBP_NEW_ARRAY(p->arena, int32_t, count + 1);
    out->states = SBP_NEW_ARRAY(p->arena, int32_t, count * SBP_MAX_UPDATE_OPERANDS + 1);
    bool keeps = !p->options.step || p->options.optimizer == SBP_OPTIMIZER_NONE;
    for (int32_t i = 0; i < count; i++) {
        const sbp_buffer w = p->program->buffers[out->params[i]];
        const sbp_update *update = out->updates[i];
        bool trainable = p->module->params[i].trainable;
        out->grads[i] = trainable && keeps
                            ? sbp_lower_buffer_of_param(p, out->params[i], sbp_suffixes[SBP_SUFFIX_GRAD].name,
                                                        SBP_ROLE_GRAD, p->options.grad_dtype, w.rows, w.cols)
                            : -1;
        for (int32_t o = 0; update && o < update->operand_count; o++) {
            const sbp_update_operand *operand = &update->operands[o];
            sbp_role role = operand->kind == SBP_UPDATE_MASTER ? SBP_ROLE_MASTER : SBP_ROLE_STATE;
            out->states[i * SBP_MAX_UPDATE_OPERANDS + o] =
                operand->suffix ? sbp_lower_buffer_of_param(p, out->params[i], operand->suffix, role,
                                                            operand->dtype, operand->rows, operand->cols)
                                : -1;
        }
    }
}

sbp_status sbp_pass_optimizer(sbp_program_builder *p, const sbp_head_lowering *head, sbp_lasting *out) {
    *out = (sbp_lasting){.norms = -1, .norm_squared = -1, .grad_norm = -1, .clip = -1};
    out->params = SBP_NEW_ARRAY(p->arena, int32_t, p->module->param_count + 1);
    for (int32_t i = 0; i < p->module->param_count; i++)
        out->params[i] = sbp_lower_param_buffer(p, i);
    if (head->backward < 0)
        return SBP_OK;
    int64_t trainable = 0;
    for (int32_t i = 0; i < p->module->param_count; i++)
        trainable += p->module->params[i].trainable;
    out->norms = result_buffer(p, "norms", trainable);
    out->norm_squared = result_buffer(p, "norm_squared", 1);
    out->grad_norm = result_buffer(p, "grad_norm", 1);
    SBP_PUSH(p->arena, p->program->outputs, p->program->output_count, p->program->output_capacity,
             (sbp_output){.name = "grad_norm", .buffer = out->grad_norm, .index = 0});
    SBP_TRY(make_rules(p, out));
    make_placement(p, out);
    if (!p->options.step && p->options.optimizer != SBP_OPTIMIZER_NONE)
        out->clip = result_buffer(p, "clip", 1);
    return p->status;
}
