/* hf_mistral.c: Mistral 7B and others of model_type mistral: Llama without biases, all layers windowed. */
#include "frontends/hf/hf.h"

void sbp_hf_mistral(sbp_hf *hf) {
    sbp_hf_decoder d = sbp_hf_decoder_read(
        hf, &(sbp_hf_defaults){.kv_heads = 8, .head_dim_rounds = true, .max_positions = 131072});
    hf->within_multimodal = true; /* Mistral3ForConditionalGeneration, Llava */
    bool slides = sbp_hf_one_window(hf, &d, 4096);
    sbp_hf_uniform_layers(hf, d.layers, slides);
    d.rope[0] = sbp_hf_decoder_rope(hf, &d);
    sbp_hf_decoder_build(hf, &d);
}
