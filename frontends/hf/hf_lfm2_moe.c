/* hf_lfm2_moe.c: LFM2 with experts behind the first layers. Formulas: transformers, modeling_lfm2_moe.py
 * (Lfm2MoeTopKRouter); fields and their defaults: configuration_lfm2_moe.py. */
#include "frontends/hf/hf.h"

static const sbp_hf_expert_names names = {
    .module = "feed_forward",
    .router = "gate",
    .experts = {[SBP_HF_EXPERT_GATE] = "w1", [SBP_HF_EXPERT_UP] = "w3", [SBP_HF_EXPERT_DOWN] = "w2"}};
static const sbp_hf_branch experts = {
    .name = "mlp", .norm_in = "ffn_norm", .mixer = {{sbp_hf_mix_experts, "feed_forward", 1, 1}}};

void sbp_hf_lfm2_moe(sbp_hf *hf) {
    sbp_hf_decoder d = sbp_hf_decoder_read(hf, &(sbp_hf_defaults){.vocab = 65536,
                                                                  .hidden = 2048,
                                                                  .inner = 7168,
                                                                  .layers = 32,
                                                                  .heads = 32,
                                                                  .kv_heads = 8,
                                                                  .head_dim_rounds = true,
                                                                  .max_positions = 128000,
                                                                  .tied = true,
                                                                  .norm_eps = 1e-5,
                                                                  .eps_key = "norm_eps",
                                                                  .activation_key = ""});
    sbp_hf_lfm2_blocks(hf, &d);
    d.experts = sbp_hf_experts_read(hf, d.layers,
                                    &(sbp_hf_experts_defaults){.count_key = "num_experts",
                                                               .count = 32,
                                                               .chosen = 4,
                                                               .inner_key = "moe_intermediate_size",
                                                               .inner = 1792,
                                                               .normalized = true,
                                                               .dense_key = "num_dense_layers",
                                                               .dense = 2,
                                                               .names = &names});
    d.experts.router.score = SBP_HF_SCORE_SIGMOID;
    d.experts.router.correction = sbp_hf_bool(hf, "use_expert_bias", true) ? "expert_bias" : NULL;
    d.experts.router.epsilon = 1e-6;
    d.experts.router.scaling = sbp_hf_double(hf, "routed_scaling_factor", 1);
    for (int64_t i = 0; d.experts.sparse && i < d.layers && hf->builder.status == SBP_OK; i++)
        if (d.experts.sparse[i])
            d.layer[i].branch[1] = &experts;
    sbp_hf_decoder_build(hf, &d);
}
