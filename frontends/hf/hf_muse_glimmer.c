/* hf_muse_glimmer.c: Muse Glimmer, the text model: norms before and behind each block, with an eps of their
 * own behind it; norms without weights on the embedding and on the heads of queries and keys; attention
 * opened by a gate; every fourth layer, from the last on backward, sees everything and has no positions.
 * Formulas, names and defaults: transformers, modeling_muse_glimmer.py and configuration_muse_glimmer.py. */
#include "frontends/hf/hf.h"

static sbp_value embed(const sbp_hf_scope *at, sbp_value table) {
    sbp_value x = sbp_hf_embed(at->hf, "embed", table, SBP_DATA_TOK);
    return sbp_hf_rms(at->hf, "embed_norm", x, at->d->norm.eps);
}

static void read_layers(sbp_hf *hf, sbp_hf_decoder *d) {
    int64_t window = sbp_hf_is_null(hf, "sliding_window") ? 0 : sbp_hf_size(hf, "sliding_window", 2048);
    if (hf->builder.status != SBP_OK)
        return;
    bool *sliding = SBP_NEW_ARRAY(hf->arena, bool, d->layers);
    bool given = sbp_hf_layer_types(hf, d->layers, sliding);
    for (int64_t i = 0; i < d->layers; i++) {
        bool fourth = (d->layers - 1 - i) % 4 == 0;
        d->layer[i].no_rope = fourth;
        sbp_hf_set_window(hf, d, i, given ? sliding[i] : !fourth, window, "sliding_window is null");
    }
}

void sbp_hf_muse_glimmer(sbp_hf *hf) {
    sbp_hf_decoder d = sbp_hf_decoder_read(hf, &(sbp_hf_defaults){.vocab = 202048,
                                                                  .hidden = 6656,
                                                                  .inner = 19968,
                                                                  .layers = 52,
                                                                  .heads = 32,
                                                                  .kv_heads = 2,
                                                                  .head_dim = 128,
                                                                  .max_positions = 131072,
                                                                  .norm_eps = 1e-5,
                                                                  .activation_key = "hidden_activation"});
    const sbp_hf_norm out = {SBP_HF_RMS_NORM_PLUS_ONE, sbp_hf_double(hf, "post_norm_eps", 1e-8)},
                      last = {SBP_HF_RMS_NORM_WIDE, d.norm.eps};
    hf->within_multimodal = true; /* MuseGlimmerForConditionalGeneration */
    d.norm.style = SBP_HF_RMS_NORM_PLUS_ONE;
    d.out_norm = &out;
    d.last_norm = &last;
    d.norms = (sbp_hf_layer_norms){"input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm",
                                   "post_feedforward_layernorm"};
    d.embed = embed;
    d.qk_norm = SBP_HF_QK_NORM_BARE;
    d.score_scale *= sbp_hf_double(hf, "qk_scale_factor", 3.87); /* of queries */
    d.qkv_bias = d.o_bias = sbp_hf_bool(hf, "attention_bias", false);
    d.names.attn_gate = "gate_proj";
    d.logits_scale = sbp_hf_double(hf, "output_multiplier", 0.19611613513818404);
    d.final_softcap = sbp_hf_double(hf, "final_logit_softcapping", 20);
    read_layers(hf, &d);
    sbp_hf_layer_thetas(hf, &d, 1e4);
    sbp_hf_decoder_build(hf, &d);
}
