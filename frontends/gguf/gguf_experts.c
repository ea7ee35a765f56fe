/* gguf_experts.c: fields of config.json that say a GGUF file's experts: how routers choose, which layers have
 * them, what stands beside them. */
#include "frontends/formats/weights/gguf_traits.h"
#include "frontends/gguf/gguf_config.h"

static bool is(const sbp_gguf_config *c, sbp_gguf_traits traits) {
    return sbp_gguf_has(c->facts.family, traits);
}

static const char *key_name(const sbp_gguf_config *c, const char *key) {
    return sbp_arena_printf(c->arena, "%s.%s", c->family->architecture, key);
}

static void write_int(sbp_gguf_config *c, const char *field, int64_t value) {
    sbp_json_write_int(c->out, field, value);
}

static void write_bool(sbp_gguf_config *c, const char *field, bool value) {
    sbp_json_write_bool(c->out, field, value);
}

/* Routers take sigmoids, and a bias to choose by. */
static void check_sigmoids(sbp_gguf_config *c) {
    int64_t rule = sbp_gguf_config_count(c, "expert_gating_func", 0, 0);
    bool biased = sbp_gguf_config_has(c, "exp_probs_b.bias") || sbp_gguf_config_has(c, "exp_probs_b"),
         sparse = sbp_gguf_config_has(c, "ffn_gate_inp.weight");
    if (sparse && rule != 2 &&
        !(rule == 0 && biased)) /* files may leave it out, whose models always have the bias */
        sbp_gguf_config_fail(
            c,
            "the router takes expert_gating_func %lld%s; 2, sigmoids, and 'exp_probs_b.bias' are "
            "supported",
            (long long)rule, biased ? "" : " without a bias");
}

static void check_softmax(sbp_gguf_config *c) {
    int64_t rule = sbp_gguf_config_count(c, "expert_gating_func", 0, 1);
    if (rule != 1)
        sbp_gguf_config_fail(c, "key '%s' is %lld; 1, a softmax, is supported",
                             key_name(c, "expert_gating_func"), (long long)rule);
}

static const char *expert_word(sbp_gguf_config *c, int64_t i) {
    return sbp_gguf_config_in_layer(c, i, "ffn_gate_inp.weight") ? "sparse" : "dense";
}

/* Routers by DeepSeek's rule. */
static void write_deepseek(sbp_gguf_config *c) {
    if (is(c, SOFTMAX_ROUTED))
        check_softmax(c);
    else
        check_sigmoids(c);
    if (!is(c, NARROW_VALUES))
        write_bool(c, "norm_topk_prob", sbp_gguf_config_bool(c, "expert_weights_norm", false));
    static const char *const absent[][2] = {{"expert_group_count", "n_group"},
                                            {"expert_group_used_count", "topk_group"}};
    for (int i = 0; i < SBP_COUNT(absent); i++)
        if (!sbp_gguf_config_key(c, absent[i][0]))
            write_int(c, absent[i][1], 1);
    if (!sbp_gguf_config_key(c, "expert_weights_scale"))
        sbp_json_write_raw(c->out, "routed_scaling_factor", "1.0");
    if (!sbp_gguf_config_key(c, "expert_shared_count"))
        write_int(c, "n_shared_experts", 0);
    if (is(c, SHARED_EXPERTS) && !sbp_gguf_config_key(c, "leading_dense_block_count"))
        write_int(c, "first_k_dense_replace", 0);
    if (is(c, NARROW_VALUES))
        sbp_gguf_config_layers(c, "mlp_layer_types", expert_word);
}

/* Layers with experts end where the last one is. */
static void write_ernie(sbp_gguf_config *c) {
    int64_t last = c->facts.layers - 1;
    while (last > 0 && !sbp_gguf_config_in_layer(c, last, "ffn_gate_inp.weight"))
        last--;
    write_int(c, "moe_layer_end_index", last);
    if (!sbp_gguf_config_key(c, "expert_shared_count"))
        write_int(c, "moe_num_shared_experts", 0);
}

/* All MLPs and experts are of one size. */
static void check_inner(sbp_gguf_config *c, const char *key) {
    int64_t inner = sbp_gguf_config_count(c, "feed_forward_length", 0, 0);
    if (sbp_gguf_config_count(c, key, 0, inner) != inner)
        sbp_gguf_config_fail(c, "keys '%s' and '%s' differ", key_name(c, key),
                             key_name(c, "feed_forward_length"));
}

/* Routers that divide by a sum of scores whatever config.json says; which layers they are in. */
static void write_typed(sbp_gguf_config *c) {
    if (!sbp_gguf_config_bool(c, "expert_weights_norm", false))
        sbp_gguf_config_fail(c, "key '%s' is not true; nothing else is supported",
                             key_name(c, "expert_weights_norm"));
    sbp_gguf_config_layers(c, "mlp_layer_types", expert_word);
}

/* Bounds of layers, 0: none. */
static void write_bounds(sbp_gguf_config *c, const char *key, const char *field) {
    const sbp_gguf_value *v = sbp_gguf_config_key(c, key);
    if (!v)
        return;
    if (v->type != SBP_GGUF_F32 || (v->is_array && v->count < c->facts.layers)) {
        sbp_gguf_config_fail(c, "key '%s': expected an f32 for each layer", v->key);
        return;
    }
    sbp_json_write_array(c->out, field);
    for (int64_t i = 0; i < c->facts.layers && c->status == SBP_OK; i++)
        sbp_gguf_config_write(c, NULL, sbp_gguf_double_at(v, v->is_array ? i : 0));
    sbp_json_write_end(c->out);
}

static void write_hunyuan(sbp_gguf_config *c) {
    int64_t inner = sbp_gguf_config_count(c, "expert_feed_forward_length", 0, 1),
            shared = sbp_gguf_config_count(c, "expert_shared_feed_forward_length", 0, inner);
    write_typed(c);
    if (!sbp_gguf_config_key(c, "expert_weights_scale"))
        sbp_json_write_raw(c->out, "router_scaling_factor", "1.0");
    if (inner < 1 || shared % inner != 0)
        sbp_gguf_config_fail(c, "key '%s' is %lld, which is no multiple of %lld of '%s'",
                             key_name(c, "expert_shared_feed_forward_length"), (long long)shared,
                             (long long)inner, key_name(c, "expert_feed_forward_length"));
    else
        write_int(c, "num_shared_experts", shared / inner);
}

void sbp_gguf_config_experts(sbp_gguf_config *c) {
    if (is(c, ROUTED))
        write_deepseek(c);
    if (is(c, BY_SIGMOIDS))
        check_sigmoids(c);
    if (is(c, ERNIE_EXPERTS))
        write_ernie(c);
    if (is(c, GATED_HEADS))
        write_typed(c);
    if (is(c, HUNYUAN_EXPERTS))
        write_hunyuan(c);
    if (is(c, STEP_EXPERTS)) {
        write_bounds(c, "swiglu_clamp_exp", "swiglu_limits");
        write_bounds(c, "swiglu_clamp_shexp", "swiglu_limits_shared");
    }
    if (is(c, PARTS)) /* llama.cpp knows by their number which model it is */
        write_bool(c, "use_qk_norm", sbp_gguf_config_count(c, "expert_count", 0, 0) != 128);
    const sbp_gguf_constant *row = NULL;
    while ((row = sbp_gguf_next_constant(c->facts.family, row)))
        if (row->said)
            write_bool(c, row->field, row->value != 0);
    if (is(c, GATES_IN_TURN | BLOCK_SPARSE | HUNYUAN_1_EXPERTS))
        check_inner(c, "expert_feed_forward_length");
    if (is(c, HUNYUAN_1_EXPERTS))
        check_inner(c, "expert_shared_feed_forward_length");
    if (is(c, HUNYUAN_1_EXPERTS) && sbp_gguf_config_count(c, "expert_shared_count", 0, 1) != 1)
        sbp_gguf_config_fail(c, "key '%s' is %lld; only 1 is supported", key_name(c, "expert_shared_count"),
                             (long long)sbp_gguf_config_count(c, "expert_shared_count", 0, 1));
}
