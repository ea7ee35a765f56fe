/* hf.h: what a file that knows one Hugging Face architecture works with: its config.json, the graph being
 * built, and the parts that decoders have in common.
 *
 * Calls that build must not be nested in the arguments of another such call: C does not say which of two
 * arguments is evaluated first, and the text of the graph must not depend on it.
 *
 * Errors stick in hf->builder.status, so that code reads straight: after the first one every call returns
 * at once (numbers: the fallback; values: SBP_NO_VALUE). Every field that is read is remembered; what is
 * left over must be known to be harmless (hf_fields.def) or is an error.
 */
#ifndef SBP_FRONTENDS_HF_HF_H
#define SBP_FRONTENDS_HF_HF_H

#include "frontends/frontend.h"
#include "ir/io/json.h"
#include "ir/io/weights/weights.h"

typedef struct sbp_hf {
    sbp_arena *arena;
    sbp_diag *diag;
    const sbp_json *config; /* the whole file, overrides applied */
    sbp_dtype compute;
    sbp_builder builder; /* on @model */
    sbp_model *model;    /* facts to be filled in */
    sbp_map read;        /* names of top-level fields that were read */
    double initializer_range;
    sbp_dtype published; /* element type the model was published in (dtype, torch_dtype); F32 when not said */
    int64_t pad_row;     /* pad_token_id when it is a row of the embedding, else -1 */
    const sbp_weights *weights; /* the model's values, when they are there at all; else NULL */
    bool untied;                /* the weights say that the head is not tied, although config.json does */
    /* What files may leave out at the beginning of names ("model."), as transformers allows; NULL: nothing.
     */
    const char *base_prefix;
    /* Files of a multimodal model hold this text model too, under names with "language_model" in them. */
    bool within_multimodal;
    /* How the model's own file keeps a parameter, when it is not under its name (GGUF); NULL: never. */
    const struct sbp_recipe *(*stored)(struct sbp_hf *hf, const char *name, const sbp_type *type);
    void *stored_user;
} sbp_hf;

/* ---- config.json ---------------------------------------------------------------------------------- */

/* For `fallback`: the field must be there. */
#define SBP_HF_REQUIRED INT64_MIN

/* An error about a field, which sticks. */
void sbp_hf_fail(sbp_hf *hf, const sbp_json *field, const char *format, ...) SBP_PRINTF(3, 4);
/* A field that is read in some other way; NULL when it is absent or null. */
const sbp_json *sbp_hf_field(sbp_hf *hf, const char *key);
/* Absent or null: the fallback. size: from 1, count: from 0, both below 2^31. */
int64_t sbp_hf_size(sbp_hf *hf, const char *key, int64_t fallback);
int64_t sbp_hf_count(sbp_hf *hf, const char *key, int64_t fallback);
double sbp_hf_double(sbp_hf *hf, const char *key, double fallback);
bool sbp_hf_bool(sbp_hf *hf, const char *key, bool fallback);
const char *sbp_hf_string(sbp_hf *hf, const char *key, const char *fallback);
/* Whether the field is there and null, as num_key_value_heads may be. */
bool sbp_hf_is_null(sbp_hf *hf, const char *key);

/* ---- rotary position embedding (COMPAT: `default`, linear, llama3, yarn, proportional) ------------- */

typedef struct sbp_hf_rope {
    const double *inv_freq; /* [n], rounded as the compute type wants it */
    int64_t n;              /* head_dim / 2 */
    double scale;           /* of cos and sin */
} sbp_hf_rope;

/* From rope_parameters (flat), rope_scaling, rope_theta. */
sbp_hf_rope sbp_hf_rope_read(sbp_hf *hf, int64_t head_dim, double default_theta, int64_t max_positions);
/* For models with one set of parameters per layer type: `over`, then `base`, are objects or NULL, theta is
 * that of a field outside of them. */
sbp_hf_rope sbp_hf_rope_from(sbp_hf *hf, const sbp_json *over, const sbp_json *base, int64_t head_dim,
                             double theta, int64_t max_positions);
/* cos and sin, [T, head_dim / 2] in the compute type, of row input pos. */
void sbp_hf_rope_tables(sbp_hf *hf, const sbp_hf_rope *rope, sbp_value *cos, sbp_value *sin);

/* ---- graph ---------------------------------------------------------------------------------------- */

/* Row inputs of the batch: "tok", "pos", ... */
sbp_value sbp_hf_row(sbp_hf *hf, const char *name);
/* A parameter as an argument of @model; made on first use. Names decide about weight decay (norms and biases
 * are not decayed). For `zeros` and `ones` see the init rules of sbp_param. */
sbp_value sbp_hf_param(sbp_hf *hf, const char *name, sbp_init init, int32_t rank, const int64_t *dims);
sbp_value sbp_hf_vector(sbp_hf *hf, const char *name, sbp_init init, int64_t n);
sbp_value sbp_hf_matrix(sbp_hf *hf, const char *name, int64_t rows, int64_t columns);
/* A matrix with a row per token; that of the padding token starts as zeros. */
sbp_value sbp_hf_table(sbp_hf *hf, const char *name, int64_t vocab, int64_t columns);
/* A parameter that is `length` rows or columns, from `start` on along `axis`, of a larger tensor `source` of
 * the files (fused q, k, v): [length] of a vector, else a matrix. All parts of a source must become
 * parameters. */
sbp_value sbp_hf_part(sbp_hf *hf, const char *name, const char *source, sbp_init init, int32_t rank,
                      const int64_t *source_dims, int32_t axis, int64_t start, int64_t length);
/* The matrix of the head, [vocab, columns]: the table when tied, else `name`. As transformers has it: weights
 * that hold both, with different values, are not tied whatever config.json says; a file may hold either one.
 */
sbp_value sbp_hf_head_matrix(sbp_hf *hf, const char *name, sbp_value table, bool tied);
/* y = x W^T (+ bias): parameters <module>.weight [out, in] and, if asked for, <module>.bias. */
sbp_value sbp_hf_linear(sbp_hf *hf, const char *name, sbp_value x, const char *module, int64_t out,
                        int64_t in, bool bias);
/* [T, heads * d] -> [T, heads, d] and back. */
sbp_value sbp_hf_split_heads(sbp_hf *hf, sbp_value x, int64_t heads, int64_t d);
sbp_value sbp_hf_join_heads(sbp_hf *hf, sbp_value x);
/* Causal attention inside each document; names the results attn_out and lse. */
sbp_value sbp_hf_attention(sbp_hf *hf, sbp_value q, sbp_value k, sbp_value v, double scale, int64_t window);
/* The end of every model: log-probabilities of the labels and the results of @model. logits: [T, V]. */
void sbp_hf_finish(sbp_hf *hf, sbp_value logits);
/* "a.3.b" in the arena. */
const char *sbp_hf_path(sbp_hf *hf, const char *format, ...) SBP_PRINTF(2, 3);

/* ---- decoders: embedding, layers of attention and gated MLP, norm, head ----------------------------- */

typedef struct sbp_hf_layer {
    int64_t window; /* 0: sees everything before */
    int32_t rope;   /* which of the decoder's tables */
} sbp_hf_layer;

typedef struct sbp_hf_decoder {
    int64_t vocab, hidden, inner, layers, heads, kv_heads, head_dim, max_positions;
    const char *activation; /* as Hugging Face calls it */
    double norm_eps;
    bool norm_plus_one; /* norms scale by 1 + w, in fp32 */
    bool qkv_bias, o_bias, mlp_bias;
    bool qk_norm;      /* q_norm and k_norm over head_dim, before rope */
    bool output_norms; /* norms on the outputs of attention and of the MLP, before they are added */
    bool tied;
    double embed_scale; /* 1: none */
    double score_scale, final_softcap;
    sbp_hf_rope rope[2];
    sbp_hf_layer *layer; /* [layers] */
} sbp_hf_decoder;

/* Defaults that differ between families: COMPAT, section 3. */
typedef struct sbp_hf_defaults {
    int64_t vocab, heads; /* 0: must be given */
    int64_t kv_heads;     /* 0: as many as heads */
    int64_t head_dim;     /* 0: hidden / heads */
    bool head_dim_rounds; /* hidden may be no multiple of heads */
    int64_t max_positions;
    bool tied;
    const char *activation_key, *activation;
} sbp_hf_defaults;

/* Reads the fields that all families share; windows 0, rope not read. */
sbp_hf_decoder sbp_hf_decoder_read(sbp_hf *hf, const sbp_hf_defaults *defaults);
/* layer_types: sets sliding[layer]; false when the field is absent. Types other than full_attention and
 * sliding_attention are errors. */
bool sbp_hf_layer_types(sbp_hf *hf, int64_t layers, bool *sliding);
/* For families whose layers are all alike: layer_types may be given, but must say the same. */
void sbp_hf_uniform_layers(sbp_hf *hf, int64_t layers, bool sliding);
/* Qwen: which layers slide (use_sliding_window, max_window_layers, layer_types), and how far. */
void sbp_hf_qwen_windows(sbp_hf *hf, sbp_hf_decoder *decoder);
void sbp_hf_decoder_build(sbp_hf *hf, const sbp_hf_decoder *decoder);

/* ---- registry -------------------------------------------------------------------------------------- */

#define ARCHITECTURE(model_type, function) void function(sbp_hf *hf);
#define GGUF(architecture, function)
#include "frontends/registry.def"
#undef ARCHITECTURE
#undef GGUF

#endif
