/* hf_mistral4.c: Mistral Small 4: latent attention whose queries are scaled by their positions; experts in
 * groups, which a softmax chooses. Formulas: transformers, modeling_mistral4.py (Mistral4TopkRouter); fields
 * and their defaults: configuration_mistral4.py. */
#include "frontends/hf/hf.h"

void sbp_hf_mistral4(sbp_hf *hf) {
    static const sbp_hf_rope_shape rope = {
        .theta = 1e4,
        .tempered = true,
        .own = "{\"rope_type\": \"yarn\", \"rope_theta\": 10000.0, \"factor\": 128.0, "
               "\"original_max_position_embeddings\": 8192, \"beta_fast\": 32.0, \"beta_slow\": 1.0, "
               "\"mscale\": 1.0, \"mscale_all_dim\": 1.0, \"llama_4_scaling_beta\": 0.1}"};
    sbp_hf_decoder d = sbp_hf_decoder_read(hf, &(sbp_hf_defaults){.vocab = 131072,
                                                                  .hidden = 4096,
                                                                  .inner = 12288,
                                                                  .layers = 36,
                                                                  .heads = 32,
                                                                  .kv_heads = 32,
                                                                  .head_dim_rounds = true,
                                                                  .max_positions = 1048576});
    hf->within_multimodal = true; /* Mistral3ForConditionalGeneration */
    sbp_hf_latent_read(
        hf, &d,
        &(sbp_hf_latent){
            .q_rank = 1024, .kv_rank = 256, .fixed = 64, .turned = 64, .value = 128, .rope = &rope});
    d.experts = sbp_hf_deepseek_experts_read(
        hf, d.layers,
        &(sbp_hf_deepseek_experts){
            .count = 128, .chosen = 4, .inner = 2048, .groups = 1, .chosen_groups = 1, .scaling = 1});
    d.experts.fused = true;
    d.experts.router.score = SBP_HF_SCORE_SOFTMAX;
    d.experts.router.wide = false;
    d.experts.router.correction = NULL;
    d.experts.router.others_zero = true;
    sbp_hf_decoder_build(hf, &d);
}
