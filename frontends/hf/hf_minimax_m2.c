/* hf_minimax_m2.c: MiniMax-M2: experts in all layers, norms over all heads of q and k together, half of each
 * head turned. Formulas: transformers, modeling_minimax_m2.py (MiniMaxM2TopKRouter); fields and their
 * defaults: configuration_minimax_m2.py. */
#include "frontends/hf/hf.h"

/* Attention of all layers is what it is here where every number of the list is 1. */
static void check_attention(sbp_hf *hf) {
    const sbp_json *list = sbp_hf_field(hf, "attn_type_list");
    for (int64_t i = 0; list && list->kind == SBP_JSON_ARRAY && i < list->count; i++) {
        int64_t kind = 0;
        if (hf->builder.status == SBP_OK)
            hf->builder.status = sbp_json_as_i64(hf->diag, &list->items[i], &kind);
        if (hf->builder.status == SBP_OK && kind != 1)
            sbp_hf_fail(hf, &list->items[i], "attention of type %lld is not supported; 1 expected",
                        (long long)kind);
    }
}

void sbp_hf_minimax_m2(sbp_hf *hf) {
    sbp_hf_decoder d = sbp_hf_decoder_read(hf, &(sbp_hf_defaults){.vocab = 200064,
                                                                  .hidden = 3072,
                                                                  .inner = 1536,
                                                                  .layers = 62,
                                                                  .heads = 48,
                                                                  .kv_heads = 8,
                                                                  .head_dim = 128,
                                                                  .max_positions = 196608});
    int64_t turned = sbp_hf_size(hf, "rotary_dim", d.head_dim);
    d.qk_norm = SBP_HF_QK_NORM_WHOLE;
    check_attention(hf);
    turned = sbp_hf_rotary_dim(hf, d.head_dim, "partial_rotary_factor", (double)turned / (double)d.head_dim);
    d.rope[0] = sbp_hf_rope_read(hf, &(sbp_hf_rope_shape){.head_dim = d.head_dim,
                                                          .rotary_dim = turned,
                                                          .theta = 5e6,
                                                          .max_positions = d.max_positions});
    d.experts = sbp_hf_experts_read(hf, d.layers,
                                    &(sbp_hf_experts_defaults){.count_key = "num_local_experts",
                                                               .other_count_key = "num_experts",
                                                               .count = 256,
                                                               .chosen = 8,
                                                               .inner_key = "intermediate_size",
                                                               .inner = d.inner,
                                                               .always_normalized = true,
                                                               .balance = 0.001,
                                                               .names = &sbp_hf_block_sparse});
    d.experts.router.score = SBP_HF_SCORE_SIGMOID;
    d.experts.router.correction = "e_score_correction_bias";
    sbp_hf_decoder_build(hf, &d);
}
