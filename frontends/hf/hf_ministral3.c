/* hf_ministral3.c: Ministral 3: Mistral whose queries are scaled by their positions, and whose rotary
 * embedding is stretched if nothing else is said. Fields and their defaults: transformers,
 * configuration_ministral3.py. */
#include "frontends/hf/hf.h"

void sbp_hf_ministral3(sbp_hf *hf) {
    sbp_hf_decoder d = sbp_hf_decoder_read(hf, &(sbp_hf_defaults){.vocab = 131072,
                                                                  .hidden = 4096,
                                                                  .inner = 14336,
                                                                  .layers = 34,
                                                                  .heads = 32,
                                                                  .kv_heads = 8,
                                                                  .head_dim = 128,
                                                                  .max_positions = 262144,
                                                                  .norm_eps = 1e-5});
    hf->within_multimodal = true; /* Mistral3ForConditionalGeneration */
    bool slides = sbp_hf_one_window(hf, &d, 0);
    sbp_hf_uniform_layers(hf, d.layers, slides);
    d.rope[0] = sbp_hf_rope_read(
        hf,
        &(sbp_hf_rope_shape){.head_dim = d.head_dim,
                             .rotary_dim = d.head_dim,
                             .theta = 1e4,
                             .max_positions = d.max_positions,
                             .tempered = true,
                             .own = "{\"rope_type\": \"yarn\", \"rope_theta\": 1000000.0, \"factor\": 16.0, "
                                    "\"original_max_position_embeddings\": 16384, \"beta_fast\": 32.0, "
                                    "\"beta_slow\": 1.0, \"mscale\": 1.0, \"mscale_all_dim\": 1.0, "
                                    "\"llama_4_scaling_beta\": 0.1}"});
    sbp_hf_decoder_build(hf, &d);
}
