/* hf_olmo3.c: OLMo 3: OLMo 2 with layers that have a window, and rotary frequencies for each
 * kind of layer. */
#include "frontends/hf/hf.h"

/* Refuses files in the spelling before rope_parameters whose rope_theta is not 500000: transformers 5.23
 * gives it to full attention alone, and 500000 to layers with a window, whatever the file says. */
static void refuse_other_theta(sbp_hf *hf, double theta) {
    const sbp_json *sliding = sbp_json_member(sbp_hf_field(hf, "rope_parameters"), "sliding_attention");
    if (theta != 5e5 && !sbp_json_member(sliding, "rope_theta"))
        sbp_hf_fail(hf, sbp_hf_field(hf, "rope_theta"),
                    "transformers reads rope_theta %g for full_attention alone, and 500000 for "
                    "sliding_attention: write rope_parameters, with a rope_theta for each",
                    theta);
}

void sbp_hf_olmo3(sbp_hf *hf) {
    sbp_hf_decoder d = sbp_hf_decoder_read(
        hf,
        &(sbp_hf_defaults){
            .vocab = 50304, .heads = 32, .head_dim_rounds = true, .max_positions = 2048, .norm_eps = 1e-5});
    double theta = sbp_hf_double(hf, "rope_theta", 5e5);
    d.norm.style = SBP_HF_RMS_NORM_WIDE;
    d.norms =
        (sbp_hf_layer_norms){.attn_out = "post_attention_layernorm", .mlp_out = "post_feedforward_layernorm"};
    d.qk_norm = SBP_HF_QK_NORM_WHOLE;
    d.qkv_bias = d.o_bias = sbp_hf_bool(hf, "attention_bias", false);
    refuse_other_theta(hf, theta);
    sbp_hf_two_kinds(hf, &d, 4);
    sbp_hf_two_ropes(hf, &d, theta, 5e5);
    sbp_hf_decoder_build(hf, &d);
}
