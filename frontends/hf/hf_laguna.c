/* hf_laguna.c: Laguna: heads of attention differ by layer, and a softplus of a gate for each opens what they
 * give; experts behind the first layer, one of which all rows share. Formulas: transformers,
 * modeling_laguna.py (LagunaAttention, LagunaTopKRouter); fields and their defaults:
 * configuration_laguna.py. */
#include <string.h>

#include "frontends/hf/hf.h"

static const char rotation[] =
    "{\"full_attention\": {\"rope_theta\": 500000.0, \"partial_rotary_factor\": 0.5}, "
    "\"sliding_attention\": {\"rope_theta\": 10000.0}}";

/* num_attention_heads_per_layer, layer_types. */
static void read_layers(sbp_hf *hf, sbp_hf_decoder *d) {
    const sbp_json *list = sbp_hf_layer_list(hf, "num_attention_heads_per_layer", d->layers);
    bool *sliding = SBP_NEW_ARRAY(hf->arena, bool, hf->builder.status == SBP_OK ? d->layers : 1);
    int64_t window = sbp_hf_size(hf, "sliding_window", 512);
    (void)sbp_hf_layer_types(hf, d->layers, sliding);
    for (int64_t i = 0; i < d->layers && hf->builder.status == SBP_OK; i++) {
        double heads = sbp_hf_layer_number(hf, list, i, (double)d->heads);
        if (!(heads >= 1 && heads <= INT32_MAX) || (int64_t)heads % d->kv_heads != 0)
            sbp_hf_fail(hf, list, "layer %lld has %g heads, no multiple of its %lld of keys", (long long)i,
                        heads, (long long)d->kv_heads);
        d->layer[i].heads = (int64_t)heads;
        d->layer[i].window = sliding[i] ? window : 0;
        d->layer[i].rope = sliding[i];
    }
}

/* true and "per-head", or "per-element". */
static void read_gate(sbp_hf *hf, sbp_hf_decoder *d) {
    const sbp_json *field = sbp_hf_field(hf, "gating");
    bool word = field && field->kind == SBP_JSON_STRING;
    d->names.attn_gate = "g_proj";
    d->gate_softplus = true;
    d->gate_by_head = !word || strcmp(field->string, "per-head") == 0;
    if (!d->gate_by_head && strcmp(field->string, "per-element") != 0)
        sbp_hf_fail(hf, field, "per-head or per-element expected");
    else if (!word && !sbp_hf_bool(hf, "gating", true))
        sbp_hf_fail(hf, field, "attention without a gate is not supported");
}

void sbp_hf_laguna(sbp_hf *hf) {
    sbp_hf_decoder d = sbp_hf_decoder_read(hf, &(sbp_hf_defaults){.vocab = 100352,
                                                                  .hidden = 2048,
                                                                  .inner = 8192,
                                                                  .layers = 40,
                                                                  .heads = 48,
                                                                  .kv_heads = 8,
                                                                  .head_dim = 128,
                                                                  .max_positions = 131072});
    d.qkv_bias = d.o_bias = sbp_hf_bool(hf, "attention_bias", false);
    d.qk_norm = SBP_HF_QK_NORM_HEAD;
    read_layers(hf, &d);
    read_gate(hf, &d);
    sbp_hf_kind_ropes(hf, &d, 1, rotation);
    d.experts =
        sbp_hf_experts_read(hf, d.layers,
                            &(sbp_hf_experts_defaults){.count_key = "num_experts",
                                                       .other_count_key = "num_local_experts",
                                                       .count = 256,
                                                       .chosen = 8,
                                                       .inner_key = "moe_intermediate_size",
                                                       .inner = 512,
                                                       .shared_key = "shared_expert_intermediate_size",
                                                       .shared = 512,
                                                       .always_normalized = true,
                                                       .dense = 1,
                                                       .typed = true,
                                                       .balance = 0.001,
                                                       .names = &sbp_hf_projections});
    d.experts.router.score = SBP_HF_SCORE_SIGMOID;
    d.experts.router.correction = "experts.e_score_correction_bias";
    d.experts.router.softcap = sbp_hf_double(hf, "moe_router_logit_softcapping", 0);
    d.experts.router.scaling = sbp_hf_double(hf, "moe_routed_scaling_factor", 1);
    d.experts.class_shared = "shared_experts";
    d.experts.shared_gated = false;
    sbp_hf_decoder_build(hf, &d);
}
