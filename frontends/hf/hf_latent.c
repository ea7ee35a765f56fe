/* hf_latent.c: latent attention (MLA), of DeepSeek-V3 and others: queries, keys and values out of latents
 * with norms of their own, a part of each head that turns and a part that does not. */
#include <math.h>

#include "frontends/hf/hf.h"

void sbp_hf_latent_read(sbp_hf *hf, sbp_hf_decoder *d, const sbp_hf_latent *defaults) {
    sbp_hf_latent *l = &d->latent;
    bool direct = sbp_hf_is_null(hf, "q_lora_rank");
    int64_t q_rank = sbp_hf_count(hf, "q_lora_rank", defaults->q_rank);
    *l = (sbp_hf_latent){.q_rank = direct ? 0 : q_rank,
                         .kv_rank = sbp_hf_size(hf, "kv_lora_rank", defaults->kv_rank),
                         .fixed = sbp_hf_size(hf, "qk_nope_head_dim", defaults->fixed),
                         .turned = sbp_hf_size(hf, "qk_rope_head_dim", defaults->turned),
                         .value = sbp_hf_size(hf, "v_head_dim", defaults->value),
                         .bias = sbp_hf_bool(hf, "attention_bias", false)};
    if (sbp_hf_size(hf, "qk_head_dim", l->fixed + l->turned) != l->fixed + l->turned)
        sbp_hf_fail(hf, sbp_hf_field(hf, "qk_head_dim"),
                    "%lld expected, the sum of qk_nope_head_dim and qk_rope_head_dim",
                    (long long)(l->fixed + l->turned));
    if (hf->builder.status == SBP_OK && d->kv_heads != d->heads)
        sbp_hf_fail(hf, sbp_hf_field(hf, "num_key_value_heads"),
                    "%lld; latent attention has as many keys as heads, %lld", (long long)d->kv_heads,
                    (long long)d->heads);
    d->o_bias = l->bias;
    sbp_hf_rope_shape shape = {.theta = 1e4};
    if (defaults->rope)
        shape = *defaults->rope;
    shape.head_dim = l->turned + (defaults->rope ? l->fixed : 0);
    shape.rotary_dim = l->turned;
    shape.max_positions = d->max_positions;
    d->rope[0] = sbp_hf_rope_read(hf, &shape);
    d->rope[0].interleaved = sbp_hf_bool(hf, "rope_interleave", true);
    d->score_scale = pow((double)(l->fixed + l->turned), -0.5) * d->rope[0].score_scale;
}

/* The norm of a latent, whose eps is its own whatever config.json says. */
static sbp_value norm_latent(sbp_hf *hf, const sbp_hf_decoder *d, sbp_value x, const char *module,
                             int64_t n) {
    sbp_hf_norm norm = d->norm;
    norm.eps = 1e-6;
    return sbp_hf_normalize(hf, &norm, NULL, x, module, n);
}

void sbp_hf_latent_build(sbp_hf *hf, const sbp_hf_decoder *d, sbp_value x, const char *module,
                         sbp_hf_turn turn, sbp_value *q, sbp_value *k, sbp_value *v) {
    sbp_builder *b = &hf->builder;
    const sbp_hf_latent *l = &d->latent;
    int64_t whole = l->fixed + l->turned;
    sbp_value y = x;
    if (l->q_rank > 0) {
        y = sbp_hf_linear(hf, "q_latent", x, sbp_hf_path(hf, "%s.q_a_proj", module), l->q_rank, d->hidden,
                          l->bias);
        y = norm_latent(hf, d, y, sbp_hf_path(hf, "%s.q_a_layernorm", module), l->q_rank);
    }
    y = sbp_hf_linear(hf, NULL, y, sbp_hf_path(hf, l->q_rank > 0 ? "%s.q_b_proj" : "%s.q_proj", module),
                      d->heads * whole, l->q_rank > 0 ? l->q_rank : d->hidden, false);
    y = sbp_hf_split_heads(hf, y, d->heads, whole);
    sbp_value fixed = sbp_build_slice(b, y, 0, l->fixed);
    sbp_value turned = sbp_hf_rotate(hf, "q_turned", sbp_build_slice(b, y, l->fixed, l->turned), turn);
    y = sbp_build2(b, SBP_OP_concat, sbp_hf_operand(hf, fixed), turned);
    *q = sbp_hf_temper(hf, "q", y, turn);

    y = sbp_hf_linear(hf, "kv_latent", x, sbp_hf_path(hf, "%s.kv_a_proj_with_mqa", module),
                      l->kv_rank + l->turned, d->hidden, l->bias);
    turned = sbp_hf_split_heads(hf, sbp_build_slice(b, y, l->kv_rank, l->turned), 1, l->turned);
    turned = sbp_hf_rotate(hf, "k_turned", turned, turn);
    y = norm_latent(hf, d, sbp_build_slice(b, y, 0, l->kv_rank), sbp_hf_path(hf, "%s.kv_a_layernorm", module),
                    l->kv_rank);
    y = sbp_hf_linear(hf, "kv", y, sbp_hf_path(hf, "%s.kv_b_proj", module), d->heads * (l->fixed + l->value),
                      l->kv_rank, false);
    y = sbp_hf_split_heads(hf, y, d->heads, l->fixed + l->value);
    fixed = sbp_hf_operand(hf, sbp_build_slice(b, y, 0, l->fixed));
    *v = sbp_build_slice(b, y, l->fixed, l->value);
    sbp_build_name(b, *v, "v");
    if (b->status != SBP_OK)
        return;
    sbp_type all = *sbp_build_type(b, fixed); /* the keys' turned part is every head's */
    all.dim[2] = sbp_dim_const(l->turned);
    turned = sbp_build_broadcast(b, turned, &all);
    *k = sbp_build2(b, SBP_OP_concat, fixed, turned);
    sbp_build_name(b, *k, "k");
}
