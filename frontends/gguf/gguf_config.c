/* gguf_config.c: a GGUF file described as a Hugging Face config.json: the keys of gguf_table.def, and by code
 * what is more than one field each: widths of heads, biases, kinds of layers. What files do not say is as
 * llama.cpp computes it, and where that goes by the class that files were made from, as that class has it. */
#include "frontends/gguf/gguf_config.h"
#include "frontends/formats/weights/gguf_traits.h"
#include "frontends/gguf/gguf.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- access -------------------------------------------------------------------------------------------- */

void sbp_gguf_config_fail(sbp_gguf_config *c, const char *format, ...) {
    char text[1000];
    va_list list;
    if (c->status != SBP_OK)
        return;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    c->status = sbp_fail(c->diag, SBP_INPUT, "%s: %s", c->path, text);
}

static const char *key_name(const sbp_gguf_config *c, const char *key) {
    return sbp_arena_printf(c->arena, "%s.%s", c->family->architecture, key);
}

const sbp_gguf_value *sbp_gguf_config_key(const sbp_gguf_config *c, const char *key) {
    return sbp_gguf_find(c->keys, key_name(c, key));
}

int64_t sbp_gguf_config_count(sbp_gguf_config *c, const char *key, int64_t layer, int64_t fallback) {
    const sbp_gguf_value *v = sbp_gguf_config_key(c, key);
    if (!v || c->status != SBP_OK)
        return fallback;
    if (!sbp_gguf_is_integer(v->type) || (v->is_array && layer >= v->count))
        sbp_gguf_config_fail(c, "key '%s': expected an integer%s, found %s%s", v->key,
                             v->is_array ? " for each layer" : "", v->is_array ? "an array of " : "",
                             sbp_gguf_type_name(v->type));
    int64_t value = c->status == SBP_OK ? sbp_gguf_i64_at(v, v->is_array ? layer : 0) : fallback;
    if (value < 0 || value > INT32_MAX)
        sbp_gguf_config_fail(c, "key '%s' is %lld; a number from 0 to 2147483647 is expected", v->key,
                             (long long)value);
    return value;
}

double sbp_gguf_config_number(sbp_gguf_config *c, const char *key, double fallback) {
    double value = fallback;
    if (c->status == SBP_OK)
        c->status = sbp_gguf_get_double(c->diag, c->keys, key_name(c, key), SBP_JSON_OPTIONAL, &value);
    return value;
}

bool sbp_gguf_config_bool(sbp_gguf_config *c, const char *key, bool fallback) {
    bool value = fallback;
    if (c->status == SBP_OK)
        c->status = sbp_gguf_get_bool(c->diag, c->keys, key_name(c, key), SBP_JSON_OPTIONAL, &value);
    return value;
}

const char *sbp_gguf_config_string(sbp_gguf_config *c, const char *key, const char *fallback) {
    const char *value = fallback;
    if (c->status == SBP_OK)
        c->status = sbp_gguf_get_string(c->diag, c->keys, key_name(c, key), SBP_JSON_OPTIONAL, &value);
    return value;
}

const sbp_weight *sbp_gguf_config_tensor(const sbp_gguf_config *c, const char *name) {
    return sbp_weights_find(c->tensors, name);
}

const sbp_weight *sbp_gguf_config_in_layer(const sbp_gguf_config *c, int64_t layer, const char *name) {
    return sbp_gguf_config_tensor(c, sbp_arena_printf(c->arena, "blk.%lld.%s", (long long)layer, name));
}

bool sbp_gguf_config_has(const sbp_gguf_config *c, const char *name) {
    for (int64_t i = 0; i < c->facts.layers; i++)
        if (sbp_gguf_config_in_layer(c, i, name))
            return true;
    return false;
}

/* The shortest decimal that is this fp32. */
static void spell(char *text, size_t size, double value) {
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, size, "%.*g", digits, value);
        if (strtof(text, NULL) == (float)value)
            break;
    }
}

double sbp_gguf_config_said(double value) {
    char text[40];
    spell(text, sizeof text, value);
    return strtod(text, NULL);
}

void sbp_gguf_config_write(sbp_gguf_config *c, const char *field, double value) {
    char text[40];
    spell(text, sizeof text, value);
    if (isfinite(value))
        sbp_json_write_raw(c->out, field,
                           sbp_arena_printf(c->arena, "%s%s", text, strpbrk(text, ".e") ? "" : ".0"));
    else
        sbp_json_write_null(c->out, field);
}

static void write_int(sbp_gguf_config *c, const char *field, int64_t value) {
    sbp_json_write_int(c->out, field, value);
}

static void write_bool(sbp_gguf_config *c, const char *field, bool value) {
    sbp_json_write_bool(c->out, field, value);
}

static bool is(const sbp_gguf_config *c, sbp_gguf_traits traits) {
    return sbp_gguf_has(c->facts.family, traits);
}

/* ---- what all have ------------------------------------------------------------------------------------- */

/* Keys of the architecture that no row of the table knows may change what is computed. */
static void check_keys(sbp_gguf_config *c) {
    size_t n = strlen(c->family->architecture);
    for (int32_t i = 0; i < sbp_gguf_count(c->keys) && c->status == SBP_OK; i++) {
        const char *key = sbp_gguf_at(c->keys, i)->key;
        if (strncmp(key, c->family->architecture, n) != 0 || key[n] != '.')
            continue;
        if (!sbp_gguf_find_key(c->facts.family, key + n + 1))
            sbp_gguf_config_fail(
                c,
                "key '%s': what is supported of architecture %s does not have this; it may change "
                "what is computed",
                key, c->family->architecture);
    }
}

/* A number; of an array with one for each layer all must be the same. */
static int64_t one_for_all(sbp_gguf_config *c, const char *key) {
    const sbp_gguf_value *v = sbp_gguf_config_key(c, key);
    int64_t first = sbp_gguf_config_count(c, key, 0, 0);
    for (int64_t i = 1; v->is_array && i < v->count && c->status == SBP_OK; i++)
        if (sbp_gguf_config_count(c, key, i, 0) != first)
            sbp_gguf_config_fail(
                c, "key '%s': layer 0 has %lld, layer %lld %lld; one number for all is supported", v->key,
                (long long)first, (long long)i, (long long)sbp_gguf_config_count(c, key, i, 0));
    return first;
}

static void write_key(sbp_gguf_config *c, const sbp_gguf_key *k) {
    bool there = sbp_gguf_config_key(c, k->key) != NULL;
    if (k->required && !there)
        sbp_gguf_config_fail(c, "the key '%s' is missing", key_name(c, k->key));
    if (!there || c->status != SBP_OK)
        return;
    switch (k->kind) {
    case SBP_GGUF_KEY_COUNT:
        write_int(c, k->field, one_for_all(c, k->key));
        break;
    case SBP_GGUF_KEY_NUMBER:
        sbp_gguf_config_write(c, k->field, sbp_gguf_config_number(c, k->key, 0));
        break;
    case SBP_GGUF_KEY_BOOL:
        write_bool(c, k->field, sbp_gguf_config_bool(c, k->key, false));
        break;
    case SBP_GGUF_KEY_FIXED:
        if (sbp_gguf_config_count(c, k->key, 0, 0) != 0)
            sbp_gguf_config_fail(c, "key '%s' is %lld; only 0 is supported", key_name(c, k->key),
                                 (long long)sbp_gguf_config_count(c, k->key, 0, 0));
        break;
    case SBP_GGUF_KEY_YARN:
    case SBP_GGUF_KEY_SAID:
        break;
    }
}

static int64_t required_size(sbp_gguf_config *c, const char *key) {
    int64_t value = sbp_gguf_config_count(c, key, 0, 0);
    if (!sbp_gguf_config_key(c, key))
        sbp_gguf_config_fail(c, "the key '%s' is missing", key_name(c, key));
    else if (value < 1)
        sbp_gguf_config_fail(c, "key '%s' is %lld; a size from 1 to 2147483647 is expected", key_name(c, key),
                             (long long)value);
    return value;
}

/* The head size: a key, or what rows of queries say, or a share of the stream. */
static void read_sizes(sbp_gguf_config *c) {
    c->hidden = required_size(c, "embedding_length");
    c->positions = required_size(c, "context_length");
    (void)required_size(c, "block_count");
    if (c->status == SBP_OK && (c->facts.heads < 1 || c->facts.kv_heads < 1 || c->facts.layers < 1))
        sbp_gguf_config_fail(c, "%lld layers of %lld heads, %lld of keys; at least one is expected",
                             (long long)c->facts.layers, (long long)c->facts.heads,
                             (long long)c->facts.kv_heads);
    if (c->status != SBP_OK)
        return;
    int64_t share = c->hidden / c->facts.heads > 0 ? c->hidden / c->facts.heads : 1;
    const sbp_weight *q = sbp_gguf_config_in_layer(c, 0, "attn_q.weight");
    if (is(c, QUERY_ROWS) && q && q->rank == 2)
        share = q->dim[0] / c->facts.heads > 0 ? q->dim[0] / c->facts.heads : 1;
    c->head_dim = sbp_gguf_config_count(c, "attention.key_length", 0, share);
    int64_t values = sbp_gguf_config_count(c, "attention.value_length", 0, c->head_dim);
    if (values != c->head_dim && !is(c, LATENT | NARROW_VALUES))
        sbp_gguf_config_fail(c, "key '%s' is %lld; only %lld is supported",
                             key_name(c, "attention.value_length"), (long long)values,
                             (long long)c->head_dim);
}

/* Token ids are u32; absent, and the largest number, mean none. */
static void write_token(sbp_gguf_config *c, const char *key, const char *field) {
    int64_t id = -1;
    if (c->status == SBP_OK)
        c->status = sbp_gguf_get_i64(c->diag, c->keys, key, SBP_JSON_OPTIONAL, &id);
    if (id < 0 || id > INT32_MAX)
        sbp_json_write_null(c->out, field);
    else
        write_int(c, field, id);
}

static void write_common(sbp_gguf_config *c) {
    const sbp_weight *table = sbp_gguf_config_tensor(c, "token_embd.weight");
    if (!table || table->rank != 2) {
        sbp_gguf_config_fail(c, "no matrix 'token_embd.weight'");
        return;
    }
    sbp_json_write_array(c->out, "architectures");
    sbp_json_write_string(c->out, NULL, c->family->class_name);
    sbp_json_write_end(c->out);
    sbp_json_write_string(c->out, "model_type", c->family->model_type);
    write_int(c, "vocab_size", table->dim[0]);
    write_int(c, "num_hidden_layers", c->facts.layers);
    const sbp_gguf_key *row = NULL;
    while (c->status == SBP_OK && (row = sbp_gguf_next_key(c->facts.family, row)))
        write_key(c, row);
    sbp_json_write_string(c->out, "torch_dtype", "float32");
    write_bool(c, "tie_word_embeddings", sbp_gguf_config_tensor(c, "output.weight") == NULL);
    write_token(c, "tokenizer.ggml.bos_token_id", "bos_token_id");
    write_token(c, "tokenizer.ggml.eos_token_id", "eos_token_id");
    write_token(c, "tokenizer.ggml.padding_token_id", "pad_token_id");
}

/* Rows of the first matrix of this name in any layer. */
static int64_t rows_of(const sbp_gguf_config *c, const char *name) {
    for (int64_t i = 0; i < c->facts.layers; i++) {
        const sbp_weight *w = sbp_gguf_config_in_layer(c, i, name);
        if (w && w->rank > 1)
            return w->dim[w->rank - 2];
    }
    return 0;
}

/* ---- attention and MLPs -------------------------------------------------------------------------------- */

static void write_heads_of_layers(sbp_gguf_config *c) {
    sbp_json_write_object(c->out, "per_layer_config");
    for (int64_t i = 0; i < c->facts.layers && c->status == SBP_OK; i++) {
        sbp_json_write_object(c->out, sbp_arena_printf(c->arena, "%lld", (long long)i));
        write_int(c, "num_attention_heads", sbp_gguf_config_count(c, "attention.head_count", i, 1));
        sbp_json_write_end(c->out);
    }
    sbp_json_write_end(c->out);
}

/* Heads by layer, and whether a gate is for a head or for each number of it. */
static void write_heads(sbp_gguf_config *c) {
    const sbp_weight *gate = sbp_gguf_config_in_layer(c, 0, "attn_gate.weight");
    write_int(c, "num_attention_heads", c->facts.heads);
    if (is(c, STEP_EXPERTS)) {
        write_heads_of_layers(c);
        return;
    }
    sbp_json_write_array(c->out, "num_attention_heads_per_layer");
    for (int64_t i = 0; i < c->facts.layers && c->status == SBP_OK; i++)
        write_int(c, NULL, sbp_gguf_config_count(c, "attention.head_count", i, 1));
    sbp_json_write_end(c->out);
    sbp_json_write_string(c->out, "gating",
                          gate && gate->rank == 2 && gate->dim[0] == c->facts.heads * c->head_dim &&
                                  c->head_dim > 1
                              ? "per-element"
                              : "per-head");
}

static void write_attention(sbp_gguf_config *c) {
    const char *bias = is(c, LATENT)                      ? "attn_kv_a_mqa.bias"
                       : is(c, NEOX)                      ? "attn_qkv.bias"
                       : is(c, PLAIN) && !is(c, UNBIASED) ? "attn_q.bias"
                                                          : NULL;
    bool said =
        !is(c, UNSIZED | TWO_SIZES | LATENT | SHORT_CONVS) && sbp_gguf_config_key(c, "attention.key_length");
    if (said || is(c, QUERY_ROWS))
        write_int(c, "head_dim", c->head_dim);
    if (!sbp_gguf_config_key(c, "attention.head_count_kv") && !is(c, NEOX))
        write_int(c, "num_key_value_heads", c->facts.kv_heads);
    if (bias)
        write_bool(c, "attention_bias", sbp_gguf_config_has(c, bias));
    if (c->facts.family == SBP_GGUF_GLM4_MOE)
        write_bool(c, "use_qk_norm", sbp_gguf_config_has(c, "attn_q_norm.weight"));
    if (is(c, GATED_HEADS))
        write_heads(c);
    if (is(c, MLP_BIAS))
        write_bool(c, "mlp_bias", sbp_gguf_config_has(c, "ffn_gate.bias"));
    if (is(c, MULTIPLIERS) && !sbp_gguf_config_key(c, "attention.scale"))
        sbp_json_write_double(c->out, "attention_multiplier", pow((double)c->head_dim, -0.5));
    if (is(c, OR_GRANITE_4))
        write_int(c, "intermediate_size", rows_of(c, "ffn_gate.weight"));
    if (is(c, OR_GRANITE_4) && !sbp_gguf_config_bool(c, "rope.scaling.finetuned", true))
        sbp_gguf_config_fail(c, "key '%s' is false: a Granite without positions is not supported",
                             key_name(c, "rope.scaling.finetuned"));
}

void sbp_gguf_config_layers(sbp_gguf_config *c, const char *field,
                            const char *(*word)(sbp_gguf_config *c, int64_t i)) {
    sbp_json_write_array(c->out, field);
    for (int64_t i = 0; i < c->facts.layers && c->status == SBP_OK; i++)
        sbp_json_write_string(c->out, NULL, word(c, i));
    sbp_json_write_end(c->out);
}

/* Whether layer i has the window: as a key says, else as the class has it. */
static const char *window_word(sbp_gguf_config *c, int64_t i) {
    const sbp_gguf_value *pattern = sbp_gguf_config_key(c, "attention.sliding_window_pattern");
    int64_t window = sbp_gguf_config_count(c, "attention.sliding_window", 0, 0);
    double every = sbp_gguf_default(c->facts.family, "sliding_window_pattern");
    int64_t first = sbp_gguf_default(c->facts.family, "sliding_window_first") == 1 ? 0 : 1;
    bool slides = every >= 1 && (i + first) % (int64_t)every != 0;
    if (pattern && (!pattern->is_array || pattern->count < c->facts.layers ||
                    (pattern->type != SBP_GGUF_BOOL && !sbp_gguf_is_integer(pattern->type))))
        sbp_gguf_config_fail(c, "key '%s': expected an array of a bool for each layer", pattern->key);
    else if (pattern)
        slides = sbp_gguf_i64_at(pattern, i) != 0;
    return slides && window > 0 ? "sliding_attention" : "full_attention";
}

/* The number of the last layer that slides, or of the last that does not, in an array with one
 * for each layer. */
static int64_t of_kind(sbp_gguf_config *c, const char *key, bool slides, int64_t fallback) {
    for (int64_t i = c->facts.layers - 1; i >= 0; i--)
        if ((strcmp(window_word(c, i), "sliding_attention") == 0) == slides)
            return sbp_gguf_config_count(c, key, i, fallback);
    return fallback;
}

/* Windows have twice as many heads of keys and values. */
static void write_narrow(sbp_gguf_config *c) {
    int64_t last = c->facts.layers - 1, heads = of_kind(c, "attention.head_count_kv", false, 0);
    heads = heads > 0 ? heads : sbp_gguf_config_count(c, "attention.head_count_kv", 0, 0) / 2;
    write_int(c, "num_key_value_heads", heads);
    write_int(c, "v_head_dim", sbp_gguf_config_count(c, "attention.value_length", 0, c->head_dim));
    if (!sbp_gguf_config_key(c, "attention.value_scale"))
        sbp_json_write_null(c->out, "attention_value_scale");
    for (int64_t i = 0; i <= last && c->status == SBP_OK; i++) {
        bool slides = strcmp(window_word(c, i), "sliding_attention") == 0;
        int64_t found = sbp_gguf_config_count(c, "attention.head_count_kv", i, 0);
        if (found != (slides ? 2 * heads : heads))
            sbp_gguf_config_fail(
                c, "key '%s': layer %lld has %lld; %lld, and twice as many with a window, is supported",
                key_name(c, "attention.head_count_kv"), (long long)i, (long long)found, (long long)heads);
    }
}

static void write_windows(sbp_gguf_config *c) {
    int64_t scalar = sbp_gguf_query_scalar(&c->facts, c->hidden, c->head_dim);
    if (is(c, TWO_ROPES | LISTED_WINDOWS))
        sbp_gguf_config_layers(c, "layer_types", window_word);
    if (c->facts.family == SBP_GGUF_MISTRAL3 || /* whose class has one where config.json does not say */
        (is(c, LISTED_WINDOWS) && !sbp_gguf_config_key(c, "attention.sliding_window")))
        sbp_json_write_null(c->out, "sliding_window");
    if (is(c, NARROW_VALUES))
        write_narrow(c);
    if (scalar >= 0)
        write_int(c, "query_pre_attn_scalar", scalar);
    if (!is(c, LONG_FACTORS))
        return;
    int64_t window = sbp_gguf_config_count(c, "attention.sliding_window", 0, 0);
    if (window > 0)
        write_int(c, "sliding_window", window);
    else
        sbp_json_write_null(c->out, "sliding_window");
}

/* ---- latent attention ---------------------------------------------------------------------------------- */

static void write_latent(sbp_gguf_config *c) {
    if (!is(c, LATENT))
        return;
    write_int(c, "qk_nope_head_dim", c->facts.fixed);
    write_int(c, "qk_rope_head_dim", sbp_gguf_config_count(c, "rope.dimension_count", 0, 0));
    write_int(c, "v_head_dim", c->facts.value);
    write_int(c, "num_key_value_heads", c->facts.heads);
    if (!sbp_gguf_config_key(c, "attention.q_lora_rank"))
        sbp_json_write_null(c->out, "q_lora_rank");
}

/* ---- layers with states -------------------------------------------------------------------------------- */

static const char *delta_word(sbp_gguf_config *c, int64_t i) {
    return sbp_gguf_config_in_layer(c, i, "ssm_a") ? "linear_attention" : "full_attention";
}

static const char *granite_word(sbp_gguf_config *c, int64_t i) {
    return sbp_gguf_config_in_layer(c, i, "ssm_a") ? "mamba" : "attention";
}

static const char *lfm2_word(sbp_gguf_config *c, int64_t i) {
    return sbp_gguf_config_in_layer(c, i, "shortconv.conv.weight") ? "conv" : "full_attention";
}

static const char *nemotron_word(sbp_gguf_config *c, int64_t i) {
    return sbp_gguf_config_in_layer(c, i, "ssm_a")                 ? "mamba"
           : sbp_gguf_config_in_layer(c, i, "attn_q.weight")       ? "attention"
           : sbp_gguf_config_in_layer(c, i, "ffn_gate_inp.weight") ? "moe"
                                                                   : "mlp";
}

/* ssm.inner_size divided by heads. */
static int64_t head_of_inner(sbp_gguf_config *c) {
    int64_t inner = sbp_gguf_config_count(c, "ssm.inner_size", 0, 0),
            heads = sbp_gguf_config_count(c, "ssm.time_step_rank", 0, 0);
    if (c->status == SBP_OK && (heads < 1 || inner % heads != 0))
        sbp_gguf_config_fail(c, "key '%s' is %lld, which is no multiple of the %lld heads of '%s'",
                             key_name(c, "ssm.inner_size"), (long long)inner, (long long)heads,
                             key_name(c, "ssm.time_step_rank"));
    return c->status == SBP_OK ? inner / heads : 1;
}

static void write_granite(sbp_gguf_config *c) {
    bool turns = sbp_gguf_config_bool(c, "rope.scaling.finetuned", true);
    int64_t shared = rows_of(c, "ffn_gate.weight"), inner = sbp_gguf_config_count(c, "ssm.inner_size", 0, 0);
    shared = shared > 0 ? shared : rows_of(c, "ffn_gate_shexp.weight");
    sbp_gguf_config_layers(c, "layer_types", granite_word);
    sbp_json_write_string(c->out, "position_embedding_type", turns ? "rope" : "nope");
    write_int(c, "intermediate_size", sbp_gguf_config_count(c, "feed_forward_length", 0, 1));
    if (!sbp_gguf_config_key(c, "expert_shared_feed_forward_length"))
        write_int(c, "shared_intermediate_size", shared);
    if (!sbp_gguf_config_key(c, "expert_count"))
        write_int(c, "num_local_experts", 0);
    if (!is(c, HYBRID)) { /* no layer has a state; the class wants sizes that go together all the same */
        write_int(c, "mamba_expand", 1);
        write_int(c, "mamba_n_heads", 1);
        write_int(c, "mamba_d_head", c->hidden);
        return;
    }
    write_int(c, "num_key_value_heads", c->facts.kv_heads);
    write_int(c, "mamba_d_head", head_of_inner(c));
    write_bool(c, "mamba_conv_bias", sbp_gguf_config_has(c, "ssm_conv1d.bias"));
    write_bool(c, "mamba_proj_bias", sbp_gguf_config_has(c, "ssm_in.bias"));
    if (inner % c->hidden != 0)
        sbp_gguf_config_fail(c, "key '%s' is %lld; a multiple of %lld is supported",
                             key_name(c, "ssm.inner_size"), (long long)inner, (long long)c->hidden);
    write_int(c, "mamba_expand", inner / c->hidden);
}

static void write_nemotron(sbp_gguf_config *c) {
    int64_t inner = rows_of(c, "ffn_up.weight");
    sbp_gguf_config_layers(c, "layers_block_type", nemotron_word);
    write_int(c, "intermediate_size", inner > 0 ? inner : 1);
    double eps = sbp_gguf_config_number(c, "attention.layer_norm_epsilon", 1e-5);
    sbp_gguf_config_write(c, "layer_norm_epsilon",
                          sbp_gguf_config_number(c, "attention.layer_norm_rms_epsilon", eps));
    write_int(c, "num_key_value_heads", c->facts.kv_heads);
    write_int(c, "mamba_head_dim", head_of_inner(c));
    write_bool(c, "use_conv_bias", sbp_gguf_config_has(c, "ssm_conv1d.bias"));
    write_bool(c, "use_bias", sbp_gguf_config_has(c, "ssm_in.bias"));
    write_bool(c, "mlp_bias", sbp_gguf_config_has(c, "ffn_up.bias"));
}

/* All that is multiplied by fixed numbers is stored so. */
static void write_falcon(sbp_gguf_config *c) {
    write_int(c, "num_key_value_heads", c->facts.kv_heads);
    write_int(c, "mamba_d_ssm", sbp_gguf_config_count(c, "ssm.inner_size", 0, 0));
    write_int(c, "mamba_d_head", head_of_inner(c));
    write_bool(c, "mamba_conv_bias", sbp_gguf_config_has(c, "ssm_conv1d.bias"));
    write_bool(c, "mamba_proj_bias", sbp_gguf_config_has(c, "ssm_in.bias"));
    write_bool(c, "mamba_rms_norm", sbp_gguf_config_has(c, "ssm_norm.weight"));
    write_bool(c, "mamba_norm_before_gate", false);
}

static void write_states(sbp_gguf_config *c) {
    if (is(c, BESIDE_STATES))
        write_falcon(c);
    if (is(c, DELTA_RULE)) {
        sbp_gguf_config_layers(c, "layer_types", delta_word);
        write_int(c, "linear_value_head_dim", head_of_inner(c));
    }
    if (is(c, GRANITE_4))
        write_granite(c);
    if (is(c, MIXERS))
        write_nemotron(c);
    if (is(c, SHORT_CONVS)) {
        sbp_gguf_config_layers(c, "layer_types", lfm2_word);
        if (!is(c, SHORT_CONV_EXPERTS))
            write_bool(c, "block_auto_adjust_ff_dim", false);
        write_bool(c, "conv_bias", sbp_gguf_config_has(c, "shortconv.conv.bias"));
        write_int(c, "num_key_value_heads", c->facts.kv_heads);
    }
}

/* ---- Gemma 4 ------------------------------------------------------------------------------------------- */

static void write_two_sizes(sbp_gguf_config *c) {
    if (!is(c, TWO_SIZES))
        return;
    int64_t last = c->facts.layers - 1, first_inner = sbp_gguf_config_count(c, "feed_forward_length", 0, 0),
            last_inner = sbp_gguf_config_count(c, "feed_forward_length", last, 0), full = 0, values = 0;
    const sbp_weight *own = sbp_gguf_config_tensor(c, "per_layer_token_embd.weight");
    write_int(c, "head_dim", sbp_gguf_config_count(c, "attention.key_length_swa", 0, c->head_dim));
    write_int(c, "global_head_dim", c->head_dim);
    write_int(c, "intermediate_size", first_inner);
    write_bool(c, "use_double_wide_mlp", last_inner != first_inner);
    for (int64_t i = 0; i <= last; i++)
        if (strcmp(window_word(c, i), "full_attention") == 0 &&
            sbp_gguf_config_in_layer(c, i, "attn_k.weight")) {
            full++;
            values += sbp_gguf_config_in_layer(c, i, "attn_v.weight") != NULL;
        }
    write_bool(c, "attention_k_eq_v", full > 0 && values == 0);
    write_int(c, "num_key_value_heads", of_kind(c, "attention.head_count_kv", true, c->facts.kv_heads));
    write_int(c, "num_global_key_value_heads",
              of_kind(c, "attention.head_count_kv", false, c->facts.kv_heads));
    write_bool(c, "enable_moe_block", sbp_gguf_config_count(c, "expert_count", 0, 0) > 0);
    if (own && own->rank == 2)
        write_int(c, "vocab_size_per_layer_input", own->dim[0]);
    if (!sbp_gguf_config_key(c, "embedding_length_per_layer_input"))
        write_int(c, "hidden_size_per_layer_input", 0);
}

/* ---- all ----------------------------------------------------------------------------------------------- */

sbp_status sbp_gguf_describe(const sbp_gguf_source *source, const sbp_gguf_facts *facts, const char **out) {
    sbp_text text;
    sbp_text_init(&text, source->loading->arena);
    sbp_json_writer w = sbp_json_writer_on(&text);
    w.compact = true;
    sbp_gguf_config c = {.arena = source->loading->arena,
                         .diag = source->loading->diag,
                         .path = source->loading->path,
                         .keys = source->keys,
                         .tensors = source->tensors,
                         .facts = *facts,
                         .family = sbp_gguf_family_of(facts->family),
                         .out = &w,
                         .status = SBP_OK};
    check_keys(&c);
    read_sizes(&c);
    SBP_TRY(c.status);
    static void (*const parts[])(sbp_gguf_config *) = {
        write_common, write_attention, write_windows,           sbp_gguf_config_experts, write_latent,
        write_states, write_two_sizes, sbp_gguf_config_streams, sbp_gguf_config_rope};
    sbp_json_write_object(&w, NULL);
    for (int i = 0; i < SBP_COUNT(parts); i++) {
        parts[i](&c);
        SBP_TRY(c.status);
    }
    sbp_json_write_end(&w);
    *out = text.data;
    return SBP_OK;
}
