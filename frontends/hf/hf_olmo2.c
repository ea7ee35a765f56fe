/* hf_olmo2.c: OLMo 2: norms on the outputs of attention and MLP and on q and k as a whole, none on inputs. */
#include "frontends/hf/hf.h"

void sbp_hf_olmo2(sbp_hf *hf) {
    sbp_hf_decoder d = sbp_hf_decoder_read(
        hf, &(sbp_hf_defaults){.head_dim_rounds = true, .max_positions = 2048, .norm_eps = 1e-5});
    d.norm.style = SBP_HF_RMS_NORM_WIDE;
    d.norms =
        (sbp_hf_layer_norms){.attn_out = "post_attention_layernorm", .mlp_out = "post_feedforward_layernorm"};
    d.qk_norm = SBP_HF_QK_NORM_WHOLE;
    d.qkv_bias = d.o_bias = sbp_hf_bool(hf, "attention_bias", false);
    d.rope[0] = sbp_hf_decoder_rope(hf, &d);
    sbp_hf_decoder_build(hf, &d);
}
