/* hf_hunyuan_v1.c: HunYuan V1: norms on the heads of queries and keys behind their rotation, whose base is
 * stretched by a fixed number. Fields and their defaults: transformers,
 * configuration_hunyuan_v1_dense.py. */
#include "frontends/hf/hf.h"

void sbp_hf_hunyuan_v1_dense(sbp_hf *hf) {
    sbp_hf_decoder d = sbp_hf_decoder_read(hf, &(sbp_hf_defaults){.vocab = 290943,
                                                                  .hidden = 4096,
                                                                  .inner = 11008,
                                                                  .layers = 32,
                                                                  .heads = 32,
                                                                  .head_dim_rounds = true,
                                                                  .max_positions = 2048,
                                                                  .norm_eps = 1e-5});
    int64_t other = sbp_hf_size(hf, "attention_head_dim", d.head_dim); /* which transformers does not read */
    if (hf->builder.status == SBP_OK && other != d.head_dim)
        sbp_hf_fail(hf, sbp_hf_field(hf, "attention_head_dim"), "%lld, but head_dim is %lld",
                    (long long)other, (long long)d.head_dim);
    d.qkv_bias = d.o_bias = sbp_hf_bool(hf, "attention_bias", false);
    d.qk_norm = SBP_HF_QK_NORM_HEAD;
    d.qk_norm_turned = true;
    d.names.q = "query";
    d.names.k = "key";
    d.names.head_norm = "layernorm";
    d.rope[0] = sbp_hf_rope_read(hf, &(sbp_hf_rope_shape){.head_dim = d.head_dim,
                                                          .rotary_dim = d.head_dim,
                                                          .theta = 1e4,
                                                          .max_positions = d.max_positions,
                                                          .alpha = true});
    sbp_hf_decoder_build(hf, &d);
}
