/* hf_gemma3.c: Gemma 3, text models: norms that scale by 1 + w, also on the outputs of attention and MLP;
 * scaled embedding; layers with a window and layers without, each kind with its own rotary frequencies. */
#include "frontends/hf/hf.h"

#include <math.h>

enum { FULL, SLIDING };

/* One set of rotary parameters per layer type. A legacy rope_scaling speaks of full attention only. */
static void read_rope(sbp_hf *hf, sbp_hf_decoder *d) {
    const sbp_json *both = sbp_hf_field(hf, "rope_parameters"), *scaling = sbp_hf_field(hf, "rope_scaling");
    const sbp_json *full = sbp_json_member(both, "full_attention"),
                   *local = sbp_json_member(both, "sliding_attention");
    if (both && !full && !local && both->count > 0)
        sbp_hf_fail(hf, both, "an object each for full_attention and sliding_attention is expected");
    if (both && sbp_json_member(both, "truncate"))
        sbp_hf_fail(hf, sbp_json_member(both, "truncate"), "not supported here, for all layer types");
    double theta = sbp_hf_double(hf, "rope_theta", 1e6),
           local_theta = sbp_hf_double(hf, "rope_local_base_freq", 1e4);
    sbp_hf_rope_shape shape = {.head_dim = d->head_dim,
                               .rotary_dim = d->head_dim,
                               .theta = theta,
                               .max_positions = d->max_positions};
    d->rope[FULL] = sbp_hf_rope_from(hf, scaling, full, &shape);
    shape.theta = local_theta;
    d->rope[SLIDING] = sbp_hf_rope_from(hf, NULL, local, &shape);
}

static void read_layers(sbp_hf *hf, sbp_hf_decoder *d) {
    int64_t pattern = sbp_hf_size(hf, "sliding_window_pattern", 6);
    sbp_hf_field(hf, "_sliding_window_pattern"); /* written by transformers, and not read again */
    bool no_window = sbp_hf_is_null(hf, "sliding_window");
    int64_t window = sbp_hf_size(hf, "sliding_window", 4096);
    if (hf->builder.status != SBP_OK)
        return;
    bool *sliding = SBP_NEW_ARRAY(hf->arena, bool, d->layers);
    if (!sbp_hf_layer_types(hf, d->layers, sliding))
        for (int64_t i = 0; i < d->layers; i++)
            sliding[i] = (i + 1) % pattern != 0;
    for (int64_t i = 0; i < d->layers; i++) {
        if (sliding[i] && no_window)
            sbp_hf_fail(hf, NULL, "layer %lld is sliding_attention, but sliding_window is null",
                        (long long)i);
        d->layer[i].window = sliding[i] ? window : 0;
        d->layer[i].rope = sliding[i] ? SLIDING : FULL;
    }
}

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
    d.output_norms = true;
    d.qk_norm = SBP_HF_QK_NORM_HEAD;
    d.qkv_bias = d.o_bias = sbp_hf_bool(hf, "attention_bias", false);
    d.embed_scale = sbp_round_to(hf->residual, sqrt((double)d.hidden)); /* a tensor of that type */
    d.score_scale = pow(sbp_hf_double(hf, "query_pre_attn_scalar", 256), -0.5);
    d.final_softcap = sbp_hf_double(hf, "final_logit_softcapping", 0);
    sbp_hf_field(hf, "attn_logit_softcapping"); /* transformers reads and never applies it */
    read_layers(hf, &d);
    read_rope(hf, &d);
    sbp_hf_decoder_build(hf, &d);
}
