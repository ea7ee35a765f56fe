/* hf_llama.c: Llama 2, 3, 3.1, 3.2, SmolLM2 and others of model_type llama. */
#include "frontends/hf/hf.h"

void sbp_hf_llama(sbp_hf *hf) {
    sbp_hf_decoder d = sbp_hf_decoder_read(hf, &(sbp_hf_defaults){.max_positions = 2048});
    d.qkv_bias = d.o_bias = sbp_hf_bool(hf, "attention_bias", false);
    d.mlp_bias = sbp_hf_bool(hf, "mlp_bias", false);
    d.rope[0] = sbp_hf_decoder_rope(hf, &d);
    sbp_hf_uniform_layers(hf, d.layers, false);
    sbp_hf_decoder_build(hf, &d);
}
