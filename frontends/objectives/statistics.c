/* statistics.c: what an objective makes of the statistics of a model's routers (objective.h).
 *
 *   c_e, p_e   sums over all rows of all layers: how often expert e was chosen; its probability
 *   R          those rows: sum_e c_e / k, at least 1
 *   aux_loss   E sum_e (c_e / R) (p_e / R)          transformers: load_balancing_loss_func
 *   loss       router_aux_loss_coef times the mean of that over the micro-batches of the step, beside the other
 *              terms; c_e has no gradient
 * Metrics besides: expert_load/max and expert_load/min, the shares of all choices that the busiest expert and
 * the idlest one have; means over micro-batches, too. */
#include "frontends/objectives/objective.h"

#include <string.h>

typedef struct statistics {
    sbp_objective *o;
    sbp_value parts;
} statistics;

/* A statistic of the model as a vector in fp64; SBP_NO_VALUE: it has none of that name. */
static sbp_value argument(statistics *s, const sbp_func *model, const char *name) {
    sbp_builder *b = s->o->builder;
    for (int32_t i = 0; i < model->result_count; i++) {
        const sbp_result *result = &model->results[i];
        if (result->role != SBP_RESULT_STATISTIC || strcmp(result->name, name) != 0)
            continue;
        const sbp_type *type = &model->values[result->value].type;
        sbp_value arg = sbp_func_add_arg(b->func, SBP_VALUE_STREAM, name, type, -1);
        return sbp_build_cast(b, arg, SBP_F64);
    }
    return SBP_NO_VALUE;
}

/* A result: the mean of a number over micro-batches. */
static void add_mean(statistics *s, const char *name, sbp_value number) {
    sbp_builder *b = s->o->builder;
    number = sbp_build2(b, SBP_OP_div, number, s->parts);
    if (b->status == SBP_OK)
        sbp_func_add_result(b->func, number, SBP_RESULT_VALUE, SBP_NO_VALUE, name);
}

sbp_status sbp_objective_add_statistics(sbp_objective *of, const sbp_func *model,
                                        const sbp_balance *balance) {
    sbp_module *module = of->builder->module;
    sbp_builder builder =
                    sbp_builder_on(module, sbp_func_create(module->arena, "statistics"), of->builder->diag),
                *b = &builder;
    sbp_objective own = {.builder = b, .dtype = SBP_F64, .loss = of};
    statistics s = {.o = &own};
    builder.node = "statistics";
    sbp_value chosen = argument(&s, model, SBP_STATISTIC_CHOICES);
    sbp_value probability = argument(&s, model, SBP_STATISTIC_PROBABILITIES);
    if (chosen == SBP_NO_VALUE)
        return b->status;
    int64_t experts = sbp_build_type(b, chosen)->dim[0].n;
    sbp_value one = sbp_build_const(b, SBP_F64, 1);
    s.parts = sbp_objective_scalar(&own, "parts");
    chosen = sbp_build1(b, SBP_OP_stop_gradient, chosen);
    sbp_value all = sbp_build1(b, SBP_OP_row_sum, chosen);
    all = sbp_build3(b, SBP_OP_select, sbp_build2(b, SBP_OP_lt, all, one), one, all);
    sbp_value share = sbp_build2(b, SBP_OP_div, chosen, all); /* c_e / (k R) */
    if (probability != SBP_NO_VALUE) {
        double factor = (double)experts * (double)balance->chosen * (double)balance->chosen;
        sbp_value aux = sbp_build1(b, SBP_OP_row_sum, sbp_build2(b, SBP_OP_mul, share, probability));
        aux = sbp_build2(b, SBP_OP_div, aux, all);
        aux = sbp_build2(b, SBP_OP_mul, aux, sbp_build_const(b, SBP_F64, factor));
        sbp_value weight = sbp_objective_setting(&own, "router_aux_loss_coef", balance->coefficient, aux);
        add_mean(&s, "loss", sbp_build2(b, SBP_OP_mul, aux, weight));
        add_mean(&s, "aux_loss", aux);
        sbp_note(
            b->diag,
            "experts are balanced over the rows of each micro-batch, with router_aux_loss_coef %g: loss and "
            "gradients depend on how a step is packed into them, as in TRL",
            balance->coefficient);
    }
    add_mean(&s, "expert_load/max", sbp_build1(b, SBP_OP_row_max, share));
    add_mean(&s, "expert_load/min", sbp_build1(b, SBP_OP_row_min, share));
    SBP_PUSH(module->arena, module->funcs, module->func_count, module->func_capacity, builder.func);
    return b->status;
}
