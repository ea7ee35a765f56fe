/* hf_mistral.c: Mistral 7B and others of model_type mistral: Llama without biases, all layers windowed. */
#include "frontends/hf/hf.h"

void sbp_hf_mistral(sbp_hf *hf) {
    sbp_hf_decoder d = sbp_hf_decoder_read(hf, &(sbp_hf_defaults){.kv_heads = 8,
                                                                  .head_dim_rounds = true,
                                                                  .max_positions = 131072,
                                                                  .activation_key = "hidden_act",
                                                                  .activation = "silu"});
    hf->within_multimodal = true; /* Mistral3ForConditionalGeneration, Llava */
    bool unlimited = sbp_hf_is_null(hf, "sliding_window");
    int64_t window = unlimited ? 0 : sbp_hf_size(hf, "sliding_window", 4096);
    for (int64_t i = 0; i < d.layers && hf->builder.status == SBP_OK; i++)
        d.layer[i].window = window;
    sbp_hf_uniform_layers(hf, d.layers, !unlimited);
    d.rope[0] = sbp_hf_rope_read(hf, d.head_dim, 1e4, d.max_positions);
    sbp_hf_decoder_build(hf, &d);
}
