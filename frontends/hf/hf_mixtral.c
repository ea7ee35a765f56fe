/* hf_mixtral.c: Mixtral: a Llama with experts in place of all MLPs. Fields and their defaults: transformers,
 * configuration_mixtral.py. */
#include "frontends/hf/hf.h"

void sbp_hf_mixtral(sbp_hf *hf) {
    sbp_hf_decoder d = sbp_hf_decoder_read(
        hf, &(sbp_hf_defaults){
                .vocab = 32000, .heads = 32, .kv_heads = 8, .max_positions = 131072, .norm_eps = 1e-5});
    (void)sbp_hf_one_window(hf, &d, 0);
    d.rope[0] = sbp_hf_rope_read(hf, &(sbp_hf_rope_shape){.head_dim = d.head_dim,
                                                          .rotary_dim = d.head_dim,
                                                          .theta = 1e6,
                                                          .max_positions = d.max_positions});
    d.experts = sbp_hf_experts_read(hf, d.layers,
                                    &(sbp_hf_experts_defaults){.count_key = "num_local_experts",
                                                               .other_count_key = "num_experts",
                                                               .count = 8,
                                                               .chosen = 2,
                                                               .inner_key = "intermediate_size",
                                                               .inner = d.inner,
                                                               .always_normalized = true,
                                                               .balance = 0.001,
                                                               .names = &sbp_hf_block_sparse});
    sbp_hf_decoder_build(hf, &d);
}
