/* hf_hunyuan_v1.c: HunYuan V1: norms on the heads of queries and keys behind their rotation, whose base is
 * stretched by a fixed number; with experts and without. Fields and their defaults: transformers,
 * configuration_hunyuan_v1_dense.py and configuration_hunyuan_v1_moe.py. */
#include "frontends/hf/hf.h"

static sbp_hf_decoder read(sbp_hf *hf) {
    sbp_hf_decoder d = sbp_hf_decoder_read(hf, &(sbp_hf_defaults){.vocab = 290943,
                                                                  .hidden = 4096,
                                                                  .inner = 11008,
                                                                  .layers = 32,
                                                                  .heads = 32,
                                                                  .head_dim_rounds = true,
                                                                  .max_positions = 2048,
                                                                  .norm_eps = 1e-5});
    int64_t other = sbp_hf_size(hf, "attention_head_dim", d.head_dim); /* which transformers does not read */
    if (hf->builder.status == SBP_OK && other != d.head_dim)
        sbp_hf_fail(hf, sbp_hf_field(hf, "attention_head_dim"), "%lld, but head_dim is %lld",
                    (long long)other, (long long)d.head_dim);
    d.qkv_bias = d.o_bias = sbp_hf_bool(hf, "attention_bias", false);
    d.qk_norm = SBP_HF_QK_NORM_HEAD;
    d.qk_norm_turned = true;
    d.names.q = "query";
    d.names.k = "key";
    d.names.head_norm = "layernorm";
    d.rope[0] = sbp_hf_rope_read(hf, &(sbp_hf_rope_shape){.head_dim = d.head_dim,
                                                          .rotary_dim = d.head_dim,
                                                          .theta = 1e4,
                                                          .max_positions = d.max_positions,
                                                          .alpha = true});
    return d;
}

void sbp_hf_hunyuan_v1_dense(sbp_hf *hf) {
    sbp_hf_decoder d = read(hf);
    sbp_hf_decoder_build(hf, &d);
}

/* A number for layer `i`: the field may be a list of one for each. */
static int64_t of_layer(sbp_hf *hf, const sbp_hf_decoder *d, const char *key, int64_t i) {
    const sbp_json *field = sbp_hf_field(hf, key);
    bool list = field && field->kind == SBP_JSON_ARRAY;
    int64_t number = 1;
    if (list && field->count != d->layers)
        sbp_hf_fail(hf, field, "expected a number, or an array of %lld (num_hidden_layers)",
                    (long long)d->layers);
    if (field && hf->builder.status == SBP_OK)
        hf->builder.status = sbp_json_as_i64(hf->diag, list ? &field->items[i] : field, &number);
    if (number < 1 || number > INT32_MAX)
        sbp_hf_fail(hf, field, "%lld is out of range", (long long)number);
    return number;
}

/* Experts of all layers, as the first one has them; layers may choose other numbers of them. */
static void read_experts(sbp_hf *hf, sbp_hf_decoder *d) {
    static const sbp_hf_expert_names names = {.module = "mlp",
                                              .router = "gate.wg",
                                              .linear_router = true,
                                              .experts = {[SBP_HF_EXPERT_GATE] = "gate_proj",
                                                          [SBP_HF_EXPERT_UP] = "up_proj",
                                                          [SBP_HF_EXPERT_DOWN] = "down_proj"},
                                              .fused = "gate_up_proj"};
    int64_t count = of_layer(hf, d, "num_experts", 0), most = 0;
    sbp_hf_experts *e =
        SBP_NEW_ARRAY(hf->arena, sbp_hf_experts, hf->builder.status == SBP_OK ? d->layers : 1);
    bool *sparse = SBP_NEW_ARRAY(hf->arena, bool, hf->builder.status == SBP_OK ? d->layers : 1);
    for (int64_t i = 0; i < d->layers && hf->builder.status == SBP_OK; i++) {
        e[i] = (sbp_hf_experts){.count = count,
                                .chosen = of_layer(hf, d, "moe_topk", i),
                                .inner = d->inner,
                                .shared = d->inner,
                                .shared_name = "shared_mlp",
                                .router = {.wide = true, .normalized = true},
                                .names = &names};
        if (hf->builder.status == SBP_OK && of_layer(hf, d, "num_experts", i) != count)
            sbp_hf_fail(hf, sbp_hf_field(hf, "num_experts"), "all layers have as many experts as the first");
        if (hf->builder.status == SBP_OK && e[i].chosen > count)
            sbp_hf_fail(hf, sbp_hf_field(hf, "moe_topk"), "%lld of %lld experts", (long long)e[i].chosen,
                        (long long)count);
        sparse[i] = true;
        d->layer[i].experts = &e[i];
        most = most < e[i].chosen ? e[i].chosen : most;
    }
    d->experts = e[0];
    d->experts.sparse = sparse;
    (void)sbp_hf_bool(hf, "output_router_logits", false);
    hf->model->balance.chosen = most;
}

void sbp_hf_hunyuan_v1_moe(sbp_hf *hf) {
    sbp_hf_decoder d = read(hf);
    read_experts(hf, &d);
    sbp_hf_decoder_build(hf, &d);
}
