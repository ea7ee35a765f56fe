/* hf_experts.c: mixtures of experts: a router, and for each row the gated MLPs that it has chosen. Formulas:
 * transformers, modeling_qwen3_moe.py (Qwen3MoeTopKRouter, Qwen3MoeExperts) and modeling_mixtral.py. */
#include <string.h>

#include "frontends/hf/hf.h"
#include "ir/graph/op.h"

const sbp_hf_expert_names sbp_hf_projections = {.module = "mlp",
                                                .router = "gate",
                                                .experts = {[SBP_HF_EXPERT_GATE] = "gate_proj",
                                                            [SBP_HF_EXPERT_UP] = "up_proj",
                                                            [SBP_HF_EXPERT_DOWN] = "down_proj"}};

/* ---- configuration -------------------------------------------------------------------------------- */

/* The loss that balances experts is not built. TRL adds it wherever its coefficient is not 0, transformers
 * where output_router_logits is set, too. */
static void check_balance(sbp_hf *hf, double fallback) {
    const sbp_json *field = sbp_hf_field(hf, "router_aux_loss_coef");
    double coefficient = sbp_hf_double(hf, "router_aux_loss_coef", fallback);
    (void)sbp_hf_bool(hf, "output_router_logits", false);
    if (coefficient != 0)
        sbp_hf_fail(
            hf, field,
            "%g%s: the loss that balances experts, which TRL trains with unless it is 0, is not built; "
            "--set router_aux_loss_coef=0 trains without it",
            coefficient, field ? "" : " is the router_aux_loss_coef of this model_type");
}

sbp_hf_experts sbp_hf_experts_read(sbp_hf *hf, const sbp_hf_experts_defaults *defaults) {
    bool other = sbp_hf_field(hf, defaults->count_key) == NULL;
    sbp_hf_experts e = {.inner = sbp_hf_size(hf, defaults->inner_key, defaults->inner),
                        .chosen = sbp_hf_size(hf, "num_experts_per_tok", defaults->chosen),
                        .names = defaults->names};
    e.count = other ? sbp_hf_size(hf, defaults->other_count_key, defaults->count)
                    : sbp_hf_size(hf, defaults->count_key, defaults->count);
    e.normalized = defaults->always_normalized || sbp_hf_bool(hf, "norm_topk_prob", false);
    if (hf->builder.status == SBP_OK && e.chosen > e.count)
        sbp_hf_fail(hf, sbp_hf_field(hf, "num_experts_per_tok"), "%lld of %lld experts", (long long)e.chosen,
                    (long long)e.count);
    check_balance(hf, defaults->balance);
    return e;
}

/* ---- graph ---------------------------------------------------------------------------------------- */

static sbp_value softmax(sbp_builder *b, sbp_value x) {
    sbp_value top = sbp_build1(b, SBP_OP_stop_gradient, sbp_build1(b, SBP_OP_row_max, x));
    sbp_value p = sbp_build1(b, SBP_OP_exp, sbp_build2(b, SBP_OP_sub, x, top));
    sbp_value sum = sbp_build1(b, SBP_OP_row_sum, p);
    return sbp_build2(b, SBP_OP_div, p, sum);
}

/* The matrices of all experts, which files keep one by one. */
static sbp_value expert_matrices(sbp_hf *hf, const sbp_hf_experts *e, const char *module, int part,
                                 int64_t out, int64_t in) {
    const char *name = e->names->experts[part];
    return sbp_hf_stack(hf, sbp_hf_path(hf, "%s.experts.%s.weight", module, name),
                        sbp_hf_path(hf, "%s.experts.*.%s.weight", module, name), 3,
                        (int64_t[]){e->count, out, in});
}

static sbp_value expert_linear(sbp_hf *hf, const char *name, sbp_value x, sbp_value index, sbp_value w,
                               bool wide) {
    return sbp_build(&hf->builder, SBP_OP_expert_linear, name,
                     (sbp_value[]){sbp_hf_operand(hf, x), index, w, SBP_NO_VALUE}, 4,
                     (sbp_attr[]){sbp_attr_bool("wide", wide)}, 1, NULL);
}

/* An expert's answer is weighted before its last product, which is linear: then nothing as wide as all
 * answers together is read by the gradient of a weight. */
sbp_value sbp_hf_experts_build(sbp_hf *hf, const sbp_hf_experts *e, const char *activation, const char *name,
                               sbp_value x, const char *module, int64_t hidden) {
    sbp_builder *b = &hf->builder;
    sbp_dtype wide = sbp_rule_wide(hf->compute);
    sbp_value scores = sbp_hf_linear(hf, "router", x, sbp_hf_path(hf, "%s.%s", module, e->names->router),
                                     e->count, hidden, false);
    scores = softmax(b, sbp_build_cast(b, scores, wide));
    sbp_value index =
        sbp_build(b, SBP_OP_route, "chosen", &scores, 1, (sbp_attr[]){sbp_attr_int("k", e->chosen)}, 1, NULL);
    sbp_value weight = sbp_build2(b, SBP_OP_take_at, scores, index);
    if (e->normalized) {
        sbp_value sum = sbp_build1(b, SBP_OP_row_sum, weight);
        weight = sbp_build2(b, SBP_OP_div, weight, sum);
    }
    sbp_value w = expert_matrices(hf, e, module, SBP_HF_EXPERT_GATE, e->inner, hidden);
    sbp_value gate = expert_linear(hf, "expert_gate", x, index, w, false);
    w = expert_matrices(hf, e, module, SBP_HF_EXPERT_UP, e->inner, hidden);
    sbp_value up = expert_linear(hf, "expert_up", x, index, w, false);
    sbp_value h = sbp_build_cast(b, sbp_hf_gate(hf, activation, "expert_act", gate, up), wide);
    weight = sbp_build_reshape(b, weight, (int64_t[]){e->chosen, 1}, 2);
    h = sbp_build2(b, SBP_OP_mul, h, weight);
    w = expert_matrices(hf, e, module, SBP_HF_EXPERT_DOWN, hidden, e->inner);
    sbp_value y = expert_linear(hf, NULL, h, index, w, wide != hf->compute);
    y = sbp_build(b, SBP_OP_row_sum, NULL, &y, 1, (sbp_attr[]){sbp_attr_int("axis", -2)}, 1, NULL);
    y = sbp_build_reshape(b, y, (int64_t[]){hidden}, 1);
    y = sbp_build_cast(b, y, hf->compute);
    sbp_build_name(b, y, name);
    return y;
}
