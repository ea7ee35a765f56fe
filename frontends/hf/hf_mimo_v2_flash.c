/* hf_mimo_v2_flash.c: MiMo-V2-Flash: layers with a window have twice as many heads of keys and values, and
 * sinks; values are narrower than keys, and scaled; experts by DeepSeek's router behind the first layer.
 * Formulas: transformers, modeling_mimo_v2_flash.py; fields and their defaults:
 * configuration_mimo_v2_flash.py. */
#include "frontends/hf/hf.h"

static const char rotation[] =
    "{\"full_attention\": {\"rope_theta\": 5000000.0}, \"sliding_attention\": {\"rope_theta\": 10000.0}}";

/* layer_types, or the first layer and every sixth see everything. */
static void read_layers(sbp_hf *hf, sbp_hf_decoder *d) {
    bool *sliding = SBP_NEW_ARRAY(hf->arena, bool, hf->builder.status == SBP_OK ? d->layers : 1),
         past = sbp_hf_field(hf, "sliding_window_size") != NULL;
    int64_t window = sbp_hf_size(hf, "sliding_window", 129),
            before = sbp_hf_size(hf, "sliding_window_size", 1);
    if (hf->builder.status == SBP_OK && !sbp_hf_layer_types(hf, d->layers, sliding))
        for (int64_t i = 0; i < d->layers; i++)
            sliding[i] = i > 0 && (i + 1) % 6 != 0;
    for (int64_t i = 0; i < d->layers && hf->builder.status == SBP_OK; i++) {
        d->layer[i].window = !sliding[i] ? 0
                             : past      ? before + 1
                                         : window; /* rows before, and the row itself */
        d->layer[i].rope = d->layer[i].sinks = sliding[i];
        d->layer[i].kv_heads = sliding[i] ? 2 * d->kv_heads : 0;
        if (sliding[i] && d->heads % (2 * d->kv_heads) != 0)
            sbp_hf_fail(hf, sbp_hf_field(hf, "num_attention_heads"),
                        "%lld is no multiple of twice num_key_value_heads, which layers with a window have",
                        (long long)d->heads);
    }
}

void sbp_hf_mimo_v2_flash(sbp_hf *hf) {
    sbp_hf_decoder d = sbp_hf_decoder_read(hf, &(sbp_hf_defaults){.vocab = 152576,
                                                                  .hidden = 4096,
                                                                  .inner = 16384,
                                                                  .layers = 48,
                                                                  .heads = 64,
                                                                  .kv_heads = 4,
                                                                  .head_dim = 192,
                                                                  .max_positions = 131072,
                                                                  .norm_eps = 1e-5});
    d.qkv_bias = sbp_hf_bool(hf, "attention_bias", false);
    d.value_dim = sbp_hf_size(hf, "v_head_dim", 128);
    d.value_scale =
        sbp_hf_is_null(hf, "attention_value_scale") ? 1 : sbp_hf_double(hf, "attention_value_scale", 0.707);
    d.names.sinks = "attention_sink_bias";
    read_layers(hf, &d);
    sbp_hf_kind_ropes(hf, &d, 0.334, rotation);
    d.experts = sbp_hf_deepseek_experts_read(hf, d.layers,
                                             &(sbp_hf_deepseek_experts){.count = 256,
                                                                        .chosen = 8,
                                                                        .inner = 2048,
                                                                        .groups = 1,
                                                                        .chosen_groups = 1,
                                                                        .dense = 1,
                                                                        .typed = true,
                                                                        .scaling = 1});
    d.experts.shared = 0; /* whatever n_shared_experts says */
    sbp_hf_decoder_build(hf, &d);
}
