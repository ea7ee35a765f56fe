/* hf_smollm3.c: SmolLM3: a Llama in which some layers, every fourth if nothing else is said, have no rotary
 * positions; these may have a window. */
#include "frontends/hf/hf.h"

/* no_rope_layers: 1 where a layer turns, 0 where it does not; it may be longer than there are layers. */
static void read_layers(sbp_hf *hf, sbp_hf_decoder *d) {
    const sbp_json *list = sbp_hf_field(hf, "no_rope_layers");
    int64_t every = sbp_hf_size(hf, "no_rope_layer_interval", 4),
            window = sbp_hf_is_null(hf, "sliding_window") ? 0 : sbp_hf_count(hf, "sliding_window", 0);
    bool use = sbp_hf_bool(hf, "use_sliding_window", false) && window > 0;
    if (list && (list->kind != SBP_JSON_ARRAY || list->count < d->layers))
        sbp_hf_fail(hf, list,
                    "expected an array of %lld numbers (num_hidden_layers), 1 where a layer has "
                    "rotary positions and 0 where it has none",
                    (long long)d->layers);
    if (hf->builder.status != SBP_OK)
        return;
    bool *sliding = SBP_NEW_ARRAY(hf->arena, bool, d->layers);
    bool given = sbp_hf_layer_types(hf, d->layers, sliding);
    for (int64_t i = 0; i < d->layers; i++) {
        int64_t turns = (i + 1) % every != 0;
        if (list && hf->builder.status == SBP_OK)
            hf->builder.status = sbp_json_as_i64(hf->diag, &list->items[i], &turns);
        d->layer[i].no_rope = turns == 0;
        bool slides = given ? sliding[i] : use && turns == 0;
        sbp_hf_set_window(hf, d, i, slides, use ? window : 0, SBP_HF_NO_WINDOW);
    }
}

void sbp_hf_smollm3(sbp_hf *hf) {
    sbp_hf_decoder d = sbp_hf_decoder_read(hf, &(sbp_hf_defaults){.vocab = 128256,
                                                                  .heads = 16,
                                                                  .kv_heads = 4,
                                                                  .head_dim_rounds = true,
                                                                  .max_positions = 32768,
                                                                  .tied = true});
    d.qkv_bias = d.o_bias = sbp_hf_bool(hf, "attention_bias", false);
    d.mlp_bias = sbp_hf_bool(hf, "mlp_bias", false);
    read_layers(hf, &d);
    d.rope[0] = sbp_hf_rope_read(hf, &(sbp_hf_rope_shape){.head_dim = d.head_dim,
                                                          .rotary_dim = d.head_dim,
                                                          .theta = 2e6,
                                                          .max_positions = d.max_positions});
    sbp_hf_decoder_build(hf, &d);
}
