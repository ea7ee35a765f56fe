/* hf_exaone4.c: EXAONE 4: norms on what attention and the MLP give and on the heads of queries and keys, none
 * on inputs. Where some layers have a window, the others have no positions. Fields and their defaults:
 * transformers, configuration_exaone4.py. */
#include <string.h>

#include "frontends/hf/hf.h"

/* Where layer_types are not given: sliding_window_pattern, a number n, every n-th layer is full; or letters
 * that repeat, L with a window and G without, where the last layer is full, too. */
static void read_pattern(sbp_hf *hf, const sbp_hf_decoder *d, bool *sliding) {
    const sbp_json *field = sbp_hf_field(hf, "sliding_window_pattern");
    if (!field || field->kind != SBP_JSON_STRING) {
        int64_t every = sbp_hf_size(hf, "sliding_window_pattern", 4);
        for (int64_t i = 0; i < d->layers; i++)
            sliding[i] = (i + 1) % every != 0;
        return;
    }
    int64_t letters = (int64_t)strlen(field->string);
    if (letters == 0 || strspn(field->string, "LG") != (size_t)letters)
        sbp_hf_fail(hf, field, "'%.40s': letters L and G, or a number, are expected", field->string);
    for (int64_t i = 0; i < d->layers && letters > 0; i++)
        sliding[i] = field->string[i % letters] == 'L' && i < d->layers - 1;
}

static void read_layers(sbp_hf *hf, sbp_hf_decoder *d) {
    int64_t window = sbp_hf_is_null(hf, "sliding_window") ? 0 : sbp_hf_size(hf, "sliding_window", 4096);
    if (hf->builder.status != SBP_OK)
        return;
    bool *sliding = SBP_NEW_ARRAY(hf->arena, bool, d->layers);
    (void)sbp_hf_field(hf, "sliding_window_pattern");
    if (!sbp_hf_layer_types(hf, d->layers, sliding) && window > 0)
        read_pattern(hf, d, sliding);
    for (int64_t i = 0; i < d->layers && hf->builder.status == SBP_OK; i++) {
        sbp_hf_set_window(hf, d, i, sliding[i], window, "sliding_window is null");
        d->layer[i].no_rope = window > 0 && !sliding[i];
    }
}

void sbp_hf_exaone4(sbp_hf *hf) {
    sbp_hf_decoder d = sbp_hf_decoder_read(hf, &(sbp_hf_defaults){.vocab = 102400,
                                                                  .hidden = 4096,
                                                                  .inner = 16384,
                                                                  .layers = 32,
                                                                  .heads = 32,
                                                                  .kv_heads = 32,
                                                                  .head_dim_rounds = true,
                                                                  .max_positions = 2048,
                                                                  .norm_eps = 1e-5});
    d.norms =
        (sbp_hf_layer_norms){.attn_out = "post_attention_layernorm", .mlp_out = "post_feedforward_layernorm"};
    d.qk_norm = SBP_HF_QK_NORM_HEAD;
    read_layers(hf, &d);
    d.rope[0] = sbp_hf_decoder_rope(hf, &d);
    sbp_hf_decoder_build(hf, &d);
}
