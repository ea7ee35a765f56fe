/* hf_gemma3.c: Gemma 3, text models: norms that scale by 1 + w, also on the outputs of attention and MLP;
 * scaled embedding; layers with a window and layers without, each kind with its own rotary frequencies. */
#include "frontends/hf/hf.h"

#include <math.h>

void sbp_hf_gemma3_text(sbp_hf *hf) {
    sbp_hf_decoder d = sbp_hf_decoder_read(hf, &(sbp_hf_defaults){.vocab = 262208,
                                                                  .heads = 8,
                                                                  .kv_heads = 4,
                                                                  .head_dim = 256,
                                                                  .max_positions = 131072,
                                                                  .tied = true,
                                                                  .activation_key = "hidden_activation",
                                                                  .activation = "gelu_pytorch_tanh"});
    hf->within_multimodal =
        true; /* Gemma3ForConditionalGeneration, which leaves defaults out of text_config */
    d.norm.style = SBP_HF_RMS_NORM_PLUS_ONE;
    d.norms = (sbp_hf_layer_norms){"input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm",
                                   "post_feedforward_layernorm"};
    d.qk_norm = SBP_HF_QK_NORM_HEAD;
    d.qkv_bias = d.o_bias = sbp_hf_bool(hf, "attention_bias", false);
    d.embed_scale = sbp_round_to(hf->residual, sqrt((double)d.hidden)); /* a tensor of that type */
    d.score_scale = pow(sbp_hf_double(hf, "query_pre_attn_scalar", 256), -0.5);
    d.final_softcap = sbp_hf_double(hf, "final_logit_softcapping", 0);
    if (hf->wrapper && d.final_softcap != 0) {
        sbp_note(hf->diag, "final_logit_softcapping %g is not applied, as by Gemma3ForConditionalGeneration",
                 d.final_softcap);
        d.final_softcap = 0;
    }
    sbp_hf_field(hf, "attn_logit_softcapping"); /* transformers reads and never applies it */
    int64_t pattern = sbp_hf_size(hf, "sliding_window_pattern", 6);
    sbp_hf_field(hf, "_sliding_window_pattern"); /* written by transformers, and not read again */
    sbp_hf_two_kinds(hf, &d, pattern);
    sbp_hf_two_ropes(hf, &d, sbp_hf_double(hf, "rope_theta", 1e6),
                     sbp_hf_double(hf, "rope_local_base_freq", 1e4));
    sbp_hf_decoder_build(hf, &d);
}
