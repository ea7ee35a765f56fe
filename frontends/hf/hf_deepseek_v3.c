/* hf_deepseek_v3.c: DeepSeek-V3 and R1, and GLM-4.7-Flash: latent attention, and experts behind the first
 * layers. Fields and their defaults: transformers, configuration_deepseek_v3.py,
 * configuration_glm4_moe_lite.py. */
#include "frontends/hf/hf.h"

void sbp_hf_deepseek_v3(sbp_hf *hf) {
    sbp_hf_decoder d = sbp_hf_decoder_read(
        hf,
        &(sbp_hf_defaults){
            .vocab = 129280, .heads = 128, .kv_heads = 128, .head_dim_rounds = true, .max_positions = 4096});
    sbp_hf_latent_read(
        hf, &d, &(sbp_hf_latent){.q_rank = 1536, .kv_rank = 512, .fixed = 128, .turned = 64, .value = 128});
    d.experts = sbp_hf_deepseek_experts_read(hf, d.layers,
                                             &(sbp_hf_deepseek_experts){.count = 256,
                                                                        .chosen = 8,
                                                                        .inner = 2048,
                                                                        .groups = 8,
                                                                        .chosen_groups = 4,
                                                                        .dense = 3,
                                                                        .scaling = 2.5});
    sbp_hf_decoder_build(hf, &d);
}

void sbp_hf_glm4_moe_lite(sbp_hf *hf) {
    sbp_hf_decoder d = sbp_hf_decoder_read(hf, &(sbp_hf_defaults){.vocab = 154880,
                                                                  .heads = 20,
                                                                  .kv_heads = 20,
                                                                  .head_dim_rounds = true,
                                                                  .max_positions = 202752,
                                                                  .norm_eps = 1e-5});
    sbp_hf_latent_read(
        hf, &d, &(sbp_hf_latent){.q_rank = 768, .kv_rank = 512, .fixed = 192, .turned = 64, .value = 256});
    d.experts = sbp_hf_deepseek_experts_read(hf, d.layers,
                                             &(sbp_hf_deepseek_experts){.count = 64,
                                                                        .chosen = 4,
                                                                        .inner = 1536,
                                                                        .groups = 1,
                                                                        .chosen_groups = 1,
                                                                        .dense = 1,
                                                                        .typed = true,
                                                                        .scaling = 1.8});
    sbp_hf_decoder_build(hf, &d);
}
