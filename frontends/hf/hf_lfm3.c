/* hf_lfm3.c: LFM3: LFM2 with norms behind the blocks, too, attention over windows in some layers, and a gate
 * for each head that opens what attention gives. Formulas: transformers, modeling_lfm3.py (Lfm3Attention,
 * Lfm3DecoderLayer); fields and their defaults: configuration_lfm3.py. */
#include <string.h>

#include "frontends/hf/hf.h"

static const char rotation[] =
    "{\"full_attention\": {\"rope_type\": \"proportional\", \"rope_theta\": 1000000.0, "
    "\"partial_rotary_factor\": 0.5}, \"sliding_attention\": {\"rope_theta\": 10000.0}}";

/* A layer's branches, with norms behind them and without. */
static const sbp_hf_branch
    convolution[] = {{.name = "conv", .norm_in = "operator_norm", .mixer = {{sbp_hf_mix_conv, "conv", 1, 1}}},
                     {.name = "conv",
                      .norm_in = "operator_norm",
                      .norm_out = "post_operator_norm",
                      .mixer = {{sbp_hf_mix_conv, "conv", 1, 1}}}},
    mlp[] = {{.name = "mlp", .norm_in = "ffn_norm", .mixer = {{sbp_hf_mix_mlp, "feed_forward", 1, 1}}},
             {.name = "mlp",
              .norm_in = "ffn_norm",
              .norm_out = "post_ffn_norm",
              .mixer = {{sbp_hf_mix_mlp, "feed_forward", 1, 1}}}};

/* layer_types; without them every fourth layer from the third on sees everything, every fourth from the fifth
 * on has a window. */
static void read_layers(sbp_hf *hf, sbp_hf_decoder *d, bool sandwich) {
    enum { CONV, FULL, SLIDING };
    static const char *const words[] = {"conv", "full_attention", "sliding_attention"};
    const sbp_json *types = sbp_hf_field(hf, "layer_types");
    int64_t window = sbp_hf_is_null(hf, "sliding_window") ? 0 : sbp_hf_size(hf, "sliding_window", 256);
    if (types && (types->kind != SBP_JSON_ARRAY || types->count != d->layers))
        sbp_hf_fail(hf, types, "expected an array of %lld layer types (num_hidden_layers)",
                    (long long)d->layers);
    for (int64_t i = 0; i < d->layers && hf->builder.status == SBP_OK; i++) {
        const sbp_json *item = types ? &types->items[i] : NULL;
        int kind = i % 4 == 2 ? FULL : i % 4 == 0 && i > 0 ? SLIDING : CONV;
        for (kind = item ? 0 : kind; item && kind < SBP_COUNT(words); kind++)
            if (item->kind == SBP_JSON_STRING && strcmp(item->string, words[kind]) == 0)
                break;
        if (kind == SBP_COUNT(words))
            sbp_hf_fail(hf, item, "conv, full_attention or sliding_attention expected");
        d->layer[i].branch[0] = kind == CONV ? &convolution[sandwich] : NULL;
        d->layer[i].branch[1] = &mlp[sandwich];
        sbp_hf_set_window(hf, d, i, kind == SLIDING, window, "sliding_window is null");
        d->layer[i].rope = kind == SLIDING;
    }
}

void sbp_hf_lfm3(sbp_hf *hf) {
    sbp_hf_decoder d = sbp_hf_decoder_read(hf, &(sbp_hf_defaults){.vocab = 128000,
                                                                  .hidden = 2048,
                                                                  .inner = 7680,
                                                                  .layers = 24,
                                                                  .heads = 16,
                                                                  .kv_heads = 4,
                                                                  .head_dim = 128,
                                                                  .max_positions = 128000,
                                                                  .tied = true,
                                                                  .norm_eps = 1e-5,
                                                                  .eps_key = "norm_eps",
                                                                  .activation_key = ""});
    bool sandwich = sbp_hf_bool(hf, "use_sandwich_norm", true);
    d.qkv_bias = d.o_bias = sbp_hf_bool(hf, "attention_bias", false);
    d.gate_by_head = sbp_hf_bool(hf, "use_attention_gate", true);
    sbp_hf_lfm2_names(hf, &d, 7);
    d.names.head_norm = "norm";
    d.names.attn_out = "o_proj";
    d.names.attn_gate = d.gate_by_head ? "gate_proj" : NULL;
    d.names.class_gate = d.gate_by_head ? "g_proj" : NULL;
    d.norms.attn_out = sandwich ? "post_operator_norm" : NULL;
    read_layers(hf, &d, sandwich);
    sbp_hf_kind_ropes(hf, &d, 1, rotation);
    sbp_hf_decoder_build(hf, &d);
}
