/* statistics.c: what an objective makes of the statistics of a model's routers (objective.h).
 *
 *   c_e, p_e   sums over all rows of all layers: how often expert e was chosen; its probability
 *   R          those rows: sum_e c_e / k, at least 1
 *   aux_loss   E sum_e (c_e / R) (p_e / R)          transformers: load_balancing_loss_func
 *   loss       router_aux_loss_coef times the mean of that over the micro-batches of the step, beside the
 *              other terms; c_e has no gradient
 *
 * Where statistics of the whole step are asked for, c_e and R are its sums, which entry `count` adds up
 * before; what is left is a sum over rows, of which a micro-batch adds its own,
 *   aux_loss   E sum_e (C_e / R) (p_e / R)
 * Metrics besides: expert_load/max and expert_load/min, the shares of all choices that the busiest expert and
 * the idlest one have; means over micro-batches, too. */
#include "frontends/objectives/objective.h"

#include <string.h>

#include "ir/graph/of_step.h"

typedef struct statistics {
    sbp_objective *o;
    sbp_value parts;
    sbp_value own; /* of the whole step: choices of the micro-batch over those of all; else SBP_NO_VALUE */
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

static void add_sum(statistics *s, const char *name, sbp_value number) {
    sbp_builder *b = s->o->builder;
    if (b->status == SBP_OK)
        sbp_func_add_result(b->func, number, SBP_RESULT_VALUE, SBP_NO_VALUE, name);
}

/* A result: the mean of a number over micro-batches, or over their rows where all have the same. */
static void add_mean(statistics *s, const char *name, sbp_value number) {
    sbp_builder *b = s->o->builder;
    if (s->own != SBP_NO_VALUE)
        number = sbp_build2(b, SBP_OP_mul, number, s->own);
    else
        number = sbp_build2(b, SBP_OP_div, number, s->parts);
    add_sum(s, name, number);
}

/* The statistic added up over all micro-batches of the step. */
static sbp_value of_step(statistics *s, const char *name, sbp_value like) {
    sbp_builder *b = s->o->builder;
    if (b->status != SBP_OK)
        return SBP_NO_VALUE;
    const char *called = sbp_arena_printf(b->module->arena, SBP_OF_STEP "%s", name);
    return sbp_func_add_arg(b->func, SBP_VALUE_STREAM, called, sbp_build_type(b, like), -1);
}

static sbp_value at_least_one(sbp_builder *b, sbp_value sum) {
    sbp_value one = sbp_build_const(b, SBP_F64, 1);
    return sbp_build3(b, SBP_OP_select, sbp_build2(b, SBP_OP_lt, sum, one), one, sum);
}

sbp_status sbp_objective_add_statistics(sbp_objective *of, const sbp_func *model,
                                        const sbp_balance *balance) {
    sbp_module *module = of->builder->module;
    sbp_builder builder =
                    sbp_builder_on(module, sbp_func_create(module->arena, "statistics"), of->builder->diag),
                *b = &builder;
    sbp_objective own = {.builder = b, .dtype = SBP_F64, .loss = of};
    statistics s = {.o = &own, .own = SBP_NO_VALUE};
    builder.node = "statistics";
    sbp_value chosen = argument(&s, model, SBP_STATISTIC_CHOICES);
    sbp_value probability = argument(&s, model, SBP_STATISTIC_PROBABILITIES);
    if (chosen == SBP_NO_VALUE)
        return b->status;
    int64_t experts = sbp_build_type(b, chosen)->dim[0].n;
    bool whole = probability != SBP_NO_VALUE && balance->of_step;
    s.parts = sbp_objective_scalar(&own, SBP_SCALAR_PARTS);
    chosen = sbp_build1(b, SBP_OP_stop_gradient, chosen);
    sbp_value all = sbp_build1(b, SBP_OP_row_sum, chosen);
    if (whole) {
        sbp_value part = all;
        chosen = sbp_build1(b, SBP_OP_stop_gradient, of_step(&s, SBP_STATISTIC_CHOICES, chosen));
        all = at_least_one(b, sbp_build1(b, SBP_OP_row_sum, chosen));
        s.own = sbp_build2(b, SBP_OP_div, part, all);
    } else {
        all = at_least_one(b, all);
    }
    sbp_value share = sbp_build2(b, SBP_OP_div, chosen, all); /* c_e / (k R) */
    if (probability != SBP_NO_VALUE) {
        double factor = (double)experts * (double)balance->chosen * (double)balance->chosen;
        sbp_value aux = sbp_build1(b, SBP_OP_row_sum, sbp_build2(b, SBP_OP_mul, share, probability));
        aux = sbp_build2(b, SBP_OP_div, aux, all);
        aux = sbp_build2(b, SBP_OP_mul, aux, sbp_build_const(b, SBP_F64, factor));
        sbp_value weight =
            sbp_objective_setting(&own, SBP_SETTING_ROUTER_AUX_LOSS_COEF, balance->coefficient, aux);
        sbp_value loss = sbp_build2(b, SBP_OP_mul, aux, weight);
        void (*add)(statistics *, const char *, sbp_value) = whole ? add_sum : add_mean;
        add(&s, "loss", loss);
        add(&s, "aux_loss", aux);
        if (!whole && balance->say)
            sbp_note(
                b->diag,
                "experts are balanced over the rows of each micro-batch, with router_aux_loss_coef %g: "
                "loss and gradients depend on how a step is packed into them, and so on --memory and "
                "--ranks, as in TRL; --loss router_aux_scope=step takes the rows of the whole step, for one "
                "more forward",
                balance->coefficient);
    }
    add_mean(&s, "expert_load/max", sbp_build1(b, SBP_OP_row_max, share));
    add_mean(&s, "expert_load/min", sbp_build1(b, SBP_OP_row_min, share));
    SBP_PUSH(module->arena, module->funcs, module->func_count, module->func_capacity, builder.func);
    return b->status;
}
