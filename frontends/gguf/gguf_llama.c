/* gguf_llama.c: GGUF files of architecture llama, as llama.cpp's converter writes them.
 *
 * Rows of q and k are interleaved: row (head, i, half) of the file is row (head, half, i) of Hugging Face.
 * The head is tied when output.weight is missing. Llama 3's stretched frequencies appear as a tensor of
 * factors, rope_freqs.weight, whose parameters are found again here, so that config.json can say them. */
#include "frontends/gguf/gguf.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "frontends/weights/recipe.h"
#include "ir/base/json_write.h"

/* ---- names ---------------------------------------------------------------------------------------- */

static const struct {
    const char *hf, *gguf;
    enum { PLAIN, QUERY, KEY } kind;
} layer_modules[] = {
    {"input_layernorm", "attn_norm", PLAIN},    {"self_attn.q_proj", "attn_q", QUERY},
    {"self_attn.k_proj", "attn_k", KEY},        {"self_attn.v_proj", "attn_v", PLAIN},
    {"self_attn.o_proj", "attn_output", PLAIN}, {"post_attention_layernorm", "ffn_norm", PLAIN},
    {"mlp.gate_proj", "ffn_gate", PLAIN},       {"mlp.up_proj", "ffn_up", PLAIN},
    {"mlp.down_proj", "ffn_down", PLAIN},
};

static const char *const outer_names[][2] = {{"model.embed_tokens.weight", "token_embd.weight"},
                                             {"model.norm.weight", "output_norm.weight"},
                                             {"lm_head.weight", "output.weight"}};

typedef struct llama {
    sbp_gguf_source *s;
    sbp_arena *arena;
    sbp_diag *diag;
    int64_t vocab, hidden, inner, layers, heads, kv_heads, head_dim, positions;
    double eps, theta;
    bool attention_bias, mlp_bias, tied;
} llama;

/* "<prefix>N.<module>.<kind>": N and the index of the module in layer_modules, -1 when it is none. gguf:
 * which of the two names. */
static int32_t layer_module(const char *name, const char *prefix, bool gguf, int64_t *layer,
                            const char **kind) {
    long long number;
    int used = 0;
    char format[40];
    snprintf(format, sizeof format, "%s%%lld.%%n", prefix);
    if (sscanf(name, format, &number, &used) != 1 || used == 0)
        return -1;
    const char *rest = name + used;
    *layer = number;
    for (int32_t i = 0; i < SBP_COUNT(layer_modules); i++) {
        const char *module = gguf ? layer_modules[i].gguf : layer_modules[i].hf;
        size_t n = strlen(module);
        *kind = rest + n;
        if (strncmp(rest, module, n) == 0 && (strcmp(*kind, ".weight") == 0 || strcmp(*kind, ".bias") == 0))
            return i;
    }
    return -1;
}

/* How the file keeps a parameter of Hugging Face's class. */
static const sbp_recipe *stored(sbp_arena *arena, void *user, const char *name, const sbp_type *type) {
    const llama *m = user;
    sbp_recipe *recipe = SBP_NEW(arena, sbp_recipe);
    *recipe = (sbp_recipe){.dtype = SBP_F32, .rank = type->rank};
    for (int32_t d = 0; d < type->rank; d++)
        recipe->dim[d] = type->dim[d].n;
    for (int32_t i = 0; i < SBP_COUNT(outer_names); i++)
        if (strcmp(name, outer_names[i][0]) == 0)
            recipe->source = outer_names[i][1];
    int64_t layer;
    const char *kind;
    int32_t module = layer_module(name, "model.layers.", false, &layer, &kind);
    if (module >= 0)
        recipe->source =
            sbp_arena_printf(arena, "blk.%lld.%s%s", (long long)layer, layer_modules[module].gguf, kind);
    if (module >= 0 && layer_modules[module].kind != PLAIN) {
        recipe->steps = SBP_NEW(arena, sbp_recipe_step);
        recipe->step_count = 1;
        recipe->steps[0] =
            (sbp_recipe_step){.op = SBP_RECIPE_DEINTERLEAVE,
                              .heads = layer_modules[module].kind == QUERY ? m->heads : m->kv_heads};
    }
    return recipe->source ? recipe : NULL;
}

/* Every tensor of the file must be one that the model has. */
static sbp_status check_tensors(const llama *m) {
    for (int32_t i = 0; i < sbp_weights_count(m->s->tensors); i++) {
        const char *name = sbp_weights_at(m->s->tensors, i)->name, *kind;
        int64_t layer = 0;
        bool known = strcmp(name, "rope_freqs.weight") == 0;
        for (int32_t k = 0; k < SBP_COUNT(outer_names); k++)
            known |= strcmp(name, outer_names[k][1]) == 0;
        known |= layer_module(name, "blk.", true, &layer, &kind) >= 0 && layer >= 0 && layer < m->layers;
        if (!known)
            return sbp_fail(
                m->diag, SBP_INPUT,
                "%s: tensor '%s' has no place in a Llama of %lld layers; this variant is not supported",
                m->s->loading->path, name, (long long)m->layers);
    }
    return SBP_OK;
}

static bool has(const llama *m, const char *name) {
    return sbp_weights_find(m->s->tensors, name) != NULL;
}

/* ---- metadata -------------------------------------------------------------------------------------- */

/* Keys under "llama." that are read below, or say nothing about the computation. */
static const char *const known_keys[] = {"context_length",
                                         "embedding_length",
                                         "feed_forward_length",
                                         "attention.head_count",
                                         "attention.head_count_kv",
                                         "attention.key_length",
                                         "attention.value_length",
                                         "attention.layer_norm_rms_epsilon",
                                         "block_count",
                                         "expert_count",
                                         "expert_used_count",
                                         "rope.dimension_count",
                                         "rope.freq_base",
                                         "rope.scale_linear",
                                         "rope.scaling.type",
                                         "rope.scaling.factor",
                                         "rope.scaling.original_context_length",
                                         "rope.scaling.finetuned",
                                         "tensor_data_layout",
                                         "vocab_size"};

static bool is_known(const char *key) {
    for (int32_t k = 0; k < SBP_COUNT(known_keys); k++)
        if (strcmp(key, known_keys[k]) == 0)
            return true;
    return false;
}

static sbp_status check_keys(const llama *m) {
    for (int32_t i = 0; i < sbp_gguf_count(m->s->keys); i++) {
        const char *key = sbp_gguf_at(m->s->keys, i)->key;
        if (strncmp(key, "llama.", 6) == 0 && !is_known(key + 6))
            return sbp_fail(
                m->diag, SBP_INPUT,
                "%s: key '%s': the supported Llama does not have this; it may change what is computed",
                m->s->loading->path, key);
    }
    return SBP_OK;
}

static sbp_status get_size(const llama *m, const char *key, sbp_json_need need, int64_t *out) {
    SBP_TRY(sbp_gguf_get_i64(m->diag, m->s->keys, key, need, out));
    if (*out >= 1 && *out <= INT32_MAX)
        return SBP_OK;
    return sbp_fail(m->diag, SBP_INPUT, "%s: key '%s' is %lld; a size from 1 to 2147483647 is expected",
                    m->s->loading->path, key, (long long)*out);
}

static sbp_status must_be(const llama *m, const char *key, int64_t expected) {
    int64_t value = expected;
    SBP_TRY(sbp_gguf_get_i64(m->diag, m->s->keys, key, SBP_JSON_OPTIONAL, &value));
    if (value == expected)
        return SBP_OK;
    return sbp_fail(m->diag, SBP_INPUT, "%s: key '%s' is %lld; only %lld is supported", m->s->loading->path,
                    key, (long long)value, (long long)expected);
}

static sbp_status read_sizes(llama *m) {
    const sbp_gguf *g = m->s->keys;
    SBP_TRY(get_size(m, "llama.embedding_length", SBP_JSON_REQUIRED, &m->hidden));
    SBP_TRY(get_size(m, "llama.feed_forward_length", SBP_JSON_REQUIRED, &m->inner));
    SBP_TRY(get_size(m, "llama.block_count", SBP_JSON_REQUIRED, &m->layers));
    SBP_TRY(get_size(m, "llama.attention.head_count", SBP_JSON_REQUIRED, &m->heads));
    SBP_TRY(get_size(m, "llama.context_length", SBP_JSON_REQUIRED, &m->positions));
    m->kv_heads = m->heads;
    SBP_TRY(get_size(m, "llama.attention.head_count_kv", SBP_JSON_OPTIONAL, &m->kv_heads));
    m->head_dim = m->hidden / m->heads > 0 ? m->hidden / m->heads : 1;
    SBP_TRY(get_size(m, "llama.attention.key_length", SBP_JSON_OPTIONAL, &m->head_dim));
    SBP_TRY(must_be(m, "llama.attention.value_length", m->head_dim));
    SBP_TRY(must_be(m, "llama.rope.dimension_count", m->head_dim));
    SBP_TRY(must_be(m, "llama.expert_count", 0));
    SBP_TRY(must_be(m, "split.count", 1));
    SBP_TRY(sbp_gguf_get_double(m->diag, g, "llama.attention.layer_norm_rms_epsilon", SBP_JSON_REQUIRED,
                                &m->eps));
    m->theta = 10000;
    return sbp_gguf_get_double(m->diag, g, "llama.rope.freq_base", SBP_JSON_OPTIONAL, &m->theta);
}

static sbp_status read_tensors(llama *m) {
    const sbp_weight *table = sbp_weights_find(m->s->tensors, "token_embd.weight");
    if (!table || table->rank != 2)
        return sbp_fail(m->diag, SBP_INPUT, "%s: no matrix 'token_embd.weight'", m->s->loading->path);
    m->vocab = table->dim[0];
    m->tied = !has(m, "output.weight");
    m->attention_bias = has(m, "blk.0.attn_q.bias");
    m->mlp_bias = has(m, "blk.0.ffn_gate.bias");
    if (m->attention_bias != has(m, "blk.0.attn_output.bias"))
        return sbp_fail(m->diag, SBP_INPUT,
                        "%s: biases on some of q, k, v and output only; a Llama has all four or none",
                        m->s->loading->path);
    return check_tensors(m);
}

/* ---- rotary embedding ------------------------------------------------------------------------------ */

/* Llama 3 divides slow frequencies by `factor`, keeps fast ones, and blends between: llama3 in hf_rope.c. */
static double llama3_factor(const llama *m, int64_t i, double factor, double length) {
    const double pi = 3.14159265358979323846, low = 1, high = 4;
    double wavelength = 2 * pi * pow(m->theta, (double)(2 * i) / (double)m->head_dim);
    if (wavelength < length / high)
        return 1;
    if (wavelength > length / low)
        return factor;
    double t = (length / wavelength - low) / (high - low);
    return 1 / ((1 - t) / factor + t);
}

/* rope_scaling for rope_freqs.weight, whose factors must be Llama 3's. */
static sbp_status write_rope_factors(const llama *m, const sbp_weight *w, sbp_json_writer *out) {
    int64_t length = 8192, n = m->head_dim / 2;
    SBP_TRY(get_size(m, "llama.rope.scaling.original_context_length", SBP_JSON_OPTIONAL, &length));
    if (w->rank != 1 || w->elems != n)
        return sbp_fail(m->diag, SBP_INPUT,
                        "%s: tensor '%s' has %lld elements, half of the head size %lld is expected", w->path,
                        w->name, (long long)w->elems, (long long)m->head_dim);
    double *found = SBP_NEW_ARRAY(m->arena, double, n), factor = 1;
    SBP_TRY(sbp_weights_read(m->s->tensors, w, 0, n, SBP_F64, found, m->diag));
    for (int64_t i = 0; i < n; i++)
        factor = fmax(factor, found[i]);
    for (int64_t i = 0; i < n; i++) {
        double expected = llama3_factor(m, i, factor, (double)length);
        if (!(fabs(found[i] - expected) <= 1e-4 * expected))
            return sbp_fail(m->diag, SBP_INPUT,
                            "%s: tensor '%s', element %lld is %g; Llama 3's scaling by %g of %lld positions "
                            "gives %g, and no other is supported",
                            w->path, w->name, (long long)i, found[i], factor, (long long)length, expected);
    }
    sbp_json_write_object(out, "rope_scaling");
    sbp_json_write_string(out, "rope_type", "llama3");
    sbp_json_write_double(out, "factor", factor);
    sbp_json_write_raw(out, "low_freq_factor", "1.0");
    sbp_json_write_raw(out, "high_freq_factor", "4.0");
    sbp_json_write_int(out, "original_max_position_embeddings", length);
    sbp_json_write_end(out);
    return SBP_OK;
}

static sbp_status write_rope_scaling(const llama *m, sbp_json_writer *out) {
    const char *type = "none";
    double factor = 1;
    SBP_TRY(sbp_gguf_get_string(m->diag, m->s->keys, "llama.rope.scaling.type", SBP_JSON_OPTIONAL, &type));
    SBP_TRY(
        sbp_gguf_get_double(m->diag, m->s->keys, "llama.rope.scaling.factor", SBP_JSON_OPTIONAL, &factor));
    const sbp_weight *factors = sbp_weights_find(m->s->tensors, "rope_freqs.weight");
    bool linear = strcmp(type, "linear") == 0;
    if (!linear && strcmp(type, "none") != 0)
        return sbp_fail(m->diag, SBP_INPUT,
                        "%s: key 'llama.rope.scaling.type' is '%s'; none and linear are supported",
                        m->s->loading->path, type);
    if (!linear) { /* the spelling of old files */
        factor = 1;
        SBP_TRY(
            sbp_gguf_get_double(m->diag, m->s->keys, "llama.rope.scale_linear", SBP_JSON_OPTIONAL, &factor));
        linear = factor != 1;
    }
    if (linear && factors)
        return sbp_fail(m->diag, SBP_INPUT, "%s: linear scaling of rotary frequencies as well as '%s'",
                        m->s->loading->path, factors->name);
    if (factors)
        return write_rope_factors(m, factors, out);
    if (linear) {
        sbp_json_write_object(out, "rope_scaling");
        sbp_json_write_string(out, "rope_type", "linear");
        sbp_json_write_double(out, "factor", factor);
        sbp_json_write_end(out);
    } else {
        sbp_json_write_null(out, "rope_scaling");
    }
    return SBP_OK;
}

/* ---- config.json ----------------------------------------------------------------------------------- */

/* The shortest decimal that is this fp32 number: the one somebody wrote before it was stored. */
static void write_number(sbp_json_writer *out, const char *key, double value) {
    char text[40];
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtof(text, NULL) == (float)value)
            break;
    }
    if (isfinite(value))
        sbp_json_write_raw(out, key,
                           sbp_arena_printf(out->out->arena, "%s%s", text, strpbrk(text, ".e") ? "" : ".0"));
    else
        sbp_json_write_null(out, key);
}

/* Token ids are u32; absent, and the largest number, mean none. */
static sbp_status write_token(const llama *m, sbp_json_writer *out, const char *key, const char *name) {
    int64_t id = -1;
    SBP_TRY(sbp_gguf_get_i64(m->diag, m->s->keys, key, SBP_JSON_OPTIONAL, &id));
    if (id < 0 || id > INT32_MAX)
        sbp_json_write_null(out, name);
    else
        sbp_json_write_int(out, name, id);
    return SBP_OK;
}

static sbp_status write_config(const llama *m, sbp_json_writer *out) {
    sbp_json_write_object(out, NULL);
    sbp_json_write_array(out, "architectures");
    sbp_json_write_string(out, NULL, "LlamaForCausalLM");
    sbp_json_write_end(out);
    sbp_json_write_string(out, "model_type", "llama");
    sbp_json_write_int(out, "vocab_size", m->vocab);
    sbp_json_write_int(out, "hidden_size", m->hidden);
    sbp_json_write_int(out, "intermediate_size", m->inner);
    sbp_json_write_int(out, "num_hidden_layers", m->layers);
    sbp_json_write_int(out, "num_attention_heads", m->heads);
    sbp_json_write_int(out, "num_key_value_heads", m->kv_heads);
    sbp_json_write_int(out, "head_dim", m->head_dim);
    sbp_json_write_int(out, "max_position_embeddings", m->positions);
    sbp_json_write_string(out, "hidden_act", "silu");
    sbp_json_write_string(out, "torch_dtype", "float32");
    sbp_json_write_bool(out, "attention_bias", m->attention_bias);
    sbp_json_write_bool(out, "mlp_bias", m->mlp_bias);
    sbp_json_write_bool(out, "tie_word_embeddings", m->tied);
    write_number(out, "rms_norm_eps", m->eps);
    write_number(out, "rope_theta", m->theta);
    SBP_TRY(write_token(m, out, "tokenizer.ggml.bos_token_id", "bos_token_id"));
    SBP_TRY(write_token(m, out, "tokenizer.ggml.eos_token_id", "eos_token_id"));
    SBP_TRY(write_token(m, out, "tokenizer.ggml.padding_token_id", "pad_token_id"));
    SBP_TRY(write_rope_scaling(m, out));
    sbp_json_write_end(out);
    return SBP_OK;
}

sbp_status sbp_gguf_llama(sbp_gguf_source *source) {
    sbp_loading *l = source->loading;
    llama *m = SBP_NEW(l->arena, llama);
    *m = (llama){.s = source, .arena = l->arena, .diag = l->diag};
    SBP_TRY(check_keys(m));
    SBP_TRY(read_sizes(m));
    SBP_TRY(read_tensors(m));
    sbp_text text;
    sbp_text_init(&text, l->arena);
    sbp_json_writer w = sbp_json_writer_on(&text);
    w.compact = true;
    SBP_TRY(write_config(m, &w));
    const sbp_json *config;
    SBP_TRY(sbp_json_parse(l->arena, l->diag, l->path, text.data, text.length, 0, &config));
    return sbp_load_hf(l, config, stored, m);
}
