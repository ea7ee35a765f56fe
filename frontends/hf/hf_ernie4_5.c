/* hf_ernie4_5.c: ERNIE 4.5, without experts: Llama whose heads turn by pairs of neighbours, and a bias on
 * every map or on none. Fields and their defaults: transformers, configuration_ernie4_5.py. */
#include "frontends/hf/hf.h"

void sbp_hf_ernie4_5(sbp_hf *hf) {
    sbp_hf_decoder d =
        sbp_hf_decoder_read(hf, &(sbp_hf_defaults){.vocab = 103424,
                                                   .hidden = 1024,
                                                   .inner = 3072,
                                                   .layers = 18,
                                                   .heads = 16,
                                                   .kv_heads = 2,
                                                   .head_dim = sbp_hf_is_null(hf, "head_dim") ? 0 : 128,
                                                   .max_positions = 131072,
                                                   .tied = true,
                                                   .norm_eps = 1e-5});
    d.qkv_bias = d.o_bias = d.mlp_bias = sbp_hf_bool(hf, "use_bias", false);
    d.rope[0] = sbp_hf_rope_read(hf, &(sbp_hf_rope_shape){.head_dim = d.head_dim,
                                                          .rotary_dim = d.head_dim,
                                                          .theta = 5e5,
                                                          .max_positions = d.max_positions});
    d.rope[0].interleaved = true;
    sbp_hf_decoder_build(hf, &d);
}
