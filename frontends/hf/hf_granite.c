/* hf_granite.c: Granite 3: Llama with numbers on embedding, scores, branches and logits. */
#include "frontends/hf/hf.h"

void sbp_hf_granite(sbp_hf *hf) {
    sbp_hf_decoder d =
        sbp_hf_decoder_read(hf, &(sbp_hf_defaults){.head_dim_rounds = true, .max_positions = 2048});
    d.qkv_bias = d.o_bias = sbp_hf_bool(hf, "attention_bias", false);
    d.mlp_bias = sbp_hf_bool(hf, "mlp_bias", false);
    d.embed_scale = sbp_hf_double(hf, "embedding_multiplier", 1);
    d.score_scale = sbp_hf_double(hf, "attention_multiplier", 1);
    d.branch_scale = sbp_hf_double(hf, "residual_multiplier", 1);
    d.logits_divisor = sbp_hf_double(hf, "logits_scaling", 1);
    d.rope[0] = sbp_hf_decoder_rope(hf, &d);
    sbp_hf_decoder_build(hf, &d);
}
