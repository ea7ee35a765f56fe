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

#include "frontends/formats/weights/weights.h"
#include "frontends/source/loading.h"
#include "ir/base/json.h"
#include "ir/program/contract.h"

typedef struct sbp_hf {
    sbp_arena *arena;
    sbp_diag *diag;
    const sbp_json *config; /* the whole file, overrides applied */
    sbp_dtype compute;      /* of operands and results of products and attention */
    sbp_dtype residual; /* of the stream between layers, and of what scales or shifts rows outside of products
                           (norms): `compute`, or wide */
    sbp_builder builder;   /* on @model */
    sbp_model *model;      /* facts to be filled in */
    sbp_head_options head; /* how @model ends */
    const double *balance; /* coefficient that was asked for; NULL: the model's */
    bool routed_experts;   /* rows of data may say which experts they go to */
    int32_t routers;       /* that there were so far */
    sbp_map read;          /* names of top-level fields that were read */
    double initializer_range;
    sbp_dtype published; /* element type the model was published in (dtype, torch_dtype); F32 when not said */
    int64_t pad_row;     /* pad_token_id when it is a row of the embedding, else -1 */
    const sbp_weights *weights; /* the model's values, when they are there at all; else NULL */
    bool names_only;            /* their values are not looked at */
    bool untied;                /* the weights say that the head is not tied, although config.json does */
    /* What files may leave out at the beginning of names ("model."), as transformers allows; NULL: nothing.
     */
    const char *base_prefix;
    /* Files of a multimodal model hold this text model too, under names with "language_model" in them. */
    bool within_multimodal;
    /* of a multimodal model: the whole file, of which `config` is text_config or which it is; NULL */
    const sbp_json *wrapper;
    const char *text_type;          /* model_type of `config` */
    const char *root, *head_module; /* where names of the weights begin: "model", and "lm_head" */
    const char *layers;             /* behind the root: "layers" */
    bool fp8, packed;               /* config.json says that weights are in FP8, in INT4 or INT8 */
    const sbp_json *packing;        /* the latter's quantization_config; NULL */
} sbp_hf;

/* ---- config.json ---------------------------------------------------------------------------------- */

/* For `fallback`: the field must be there. */
#define SBP_HF_REQUIRED INT64_MIN

/* An error about a field, which sticks. */
void sbp_hf_fail(sbp_hf *hf, const sbp_json *field, const char *format, ...) SBP_PRINTF(3, 4);
/* quantization_config of compressed-tensors (hf_packed.c). */
void sbp_hf_read_packed(sbp_hf *hf, const sbp_json *quantization);
/* Where no weights are there: formats of what it names, linear or not. */
void sbp_hf_plan_packed(sbp_hf *hf);
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
/* tie_word_embeddings, of a multimodal model as the whole file has it. */
bool sbp_hf_tied(sbp_hf *hf, bool fallback);
/* A list with one of two words for each layer: sets is_yes[layer]; false when the field is absent. Other
 * words are errors. */
bool sbp_hf_layer_words(sbp_hf *hf, const char *key, int64_t layers, const char *no, const char *yes,
                        bool *is_yes);
/* A list with an item for each layer, and more where a file has layers behind the last, that predict further
 * tokens (num_nextn_predict_layers); NULL: absent. And a number of it, `fallback` where it is null or absent.
 */
const sbp_json *sbp_hf_layer_list(sbp_hf *hf, const char *key, int64_t layers);
double sbp_hf_layer_number(sbp_hf *hf, const sbp_json *list, int64_t layer, double fallback);
/* An error unless `count` is a multiple of `of`. */
void sbp_hf_check_multiple(sbp_hf *hf, const char *count_key, int64_t count, const char *of_key, int64_t of);
/* What is known of every model; an error of more layers than any model has. */
void sbp_hf_set_facts(sbp_hf *hf, int64_t vocab, int64_t layers, int64_t max_positions);

/* ---- rotary position embedding --------------------------------------------------------------------- */

/* Formulas and their source: hf_rope.c. */
typedef struct sbp_hf_rope {
    const double *inv_freq; /* [n], rounded as the compute type wants it; NULL: nothing turns */
    int64_t n;              /* element i < n of a head turns with element i + n; those from 2 n on stay */
    bool interleaved;       /* element 2 i turns with element 2 i + 1 */
    double scale;           /* of cos and sin */
    double score_scale;     /* of scores, in latent attention (mscale_all_dim) */
    /* Types that look at the longest document of the step, when it has more tokens than this: */
    double original_length;
    const double *long_inv_freq; /* longrope: these instead; NULL for other types */
    double growth;               /* dynamic: the factor by which the base grows; 0 for other types */
    const double *growth_power;  /* dynamic: [n] */
    /* What turned or not is times 1 + temper log(1 + floor((position + temper_shift) / temper_length)), of
     * queries; temper 0: it is not. */
    double temper;
    int64_t temper_length, temper_shift;
} sbp_hf_rope;

/* What the family says; config.json says the rest. */
typedef struct sbp_hf_rope_shape {
    int64_t head_dim;
    int64_t rotary_dim;    /* how many elements of a head turn, from the first; must be given: head_dim for
                              all. A partial_rotary_factor that says otherwise is an error */
    double theta;          /* when there is no rope_theta */
    double always;         /* theta, whatever rope_theta says; 0: none */
    const char *theta_key; /* top-level field of theta; NULL: rope_theta */
    int64_t max_positions;
    int64_t original_positions; /* when there is no top-level original_max_position_embeddings; 0: none */
    const char *own; /* rope_parameters, as JSON, where the file has none; NULL: the default type */
    bool alpha;      /* of type dynamic: by how much the base is stretched once and for all */
    bool tempered;   /* rope_parameters may have llama_4_scaling_beta, by which queries are scaled */
    bool three_axes; /* the files may say how time, height and width share the frequencies: for text all three
                        are the position */
} sbp_hf_rope_shape;

/* How many elements of a head turn: head_dim * partial_rotary_factor, rounded down; the factor stands inside
 * of rope_parameters (rope_scaling), else in the top-level field `key`, else it is `fallback`. */
int64_t sbp_hf_rotary_dim(sbp_hf *hf, int64_t head_dim, const char *key, double fallback);
/* From rope_parameters (flat), rope_scaling, rope_theta. */
sbp_hf_rope sbp_hf_rope_read(sbp_hf *hf, const sbp_hf_rope_shape *shape);
/* For models with one set of parameters per layer type: `over`, then `base`, are objects or NULL, theta is
 * that of a field outside of them. */
sbp_hf_rope sbp_hf_rope_from(sbp_hf *hf, const sbp_json *over, const sbp_json *base,
                             const sbp_hf_rope_shape *shape);

/* cos and sin of row input pos, [T, n], in fp32 (fp64 when computing in fp64). */
typedef struct sbp_hf_turn {
    sbp_value cos, sin; /* SBP_NO_VALUE: nothing turns */
    bool interleaved;
    sbp_value temper; /* [T, 1, 1], of queries; SBP_NO_VALUE: 1 */
} sbp_hf_turn;

sbp_hf_turn sbp_hf_rope_tables(sbp_hf *hf, const sbp_hf_rope *rope);
/* x: [T, heads, head_dim]; the result is an operand of attention. What was interleaved is first elements,
 * then second ones behind it: products of queries and keys are sums over elements in any order. */
sbp_value sbp_hf_rotate(sbp_hf *hf, const char *name, sbp_value x, sbp_hf_turn turn);
/* Queries [T, heads, d], turned where they turn, times what their position says. */
sbp_value sbp_hf_temper(sbp_hf *hf, const char *name, sbp_value q, sbp_hf_turn turn);

/* ---- graph ----------------------------------------------------------------------------------------
 *
 * Types (ir/README.md: a type is a rounding). Products and attention read and give the compute type; the
 * pieces below that multiply or attend cast what they are given. What works inside a row is computed in fp32
 * and rounded once to the type of what it reads. Branches join the stream by sbp_hf_add, in the residual
 * type.
 */

/* Row inputs of the batch: "tok", "pos", ... */
sbp_value sbp_hf_row(sbp_hf *hf, sbp_column_id column);
/* A parameter as an argument of @model; made on first use. Names decide about weight decay (norms and biases
 * are not decayed). For `zeros` and `ones` see the init rules of sbp_param. */
sbp_value sbp_hf_param(sbp_hf *hf, const char *name, sbp_init init, int32_t rank, const int64_t *dims);
sbp_value sbp_hf_vector(sbp_hf *hf, const char *name, sbp_init init, int64_t n);
/* One that rows are scaled or shifted by outside of products, in the residual type. */
sbp_value sbp_hf_row_vector(sbp_hf *hf, const char *name, sbp_init init, int64_t n);
/* Numbers of the wide type that files hold and nobody trains. */
sbp_value sbp_hf_buffer(sbp_hf *hf, const char *name, int32_t rank, const int64_t *dims);
sbp_value sbp_hf_matrix(sbp_hf *hf, const char *name, int64_t rows, int64_t columns);
/* A matrix with a row per token; that of the padding token starts as zeros. */
sbp_value sbp_hf_table(sbp_hf *hf, const char *name, int64_t vocab, int64_t columns);
/* A parameter that is `length` rows or columns, from `start` on along `axis`, of a larger tensor `source` of
 * the files (fused q, k, v): [length] of a vector, else a matrix. All parts of a source must become
 * parameters. */
sbp_value sbp_hf_part(sbp_hf *hf, const char *name, const char *source, sbp_init init, int32_t rank,
                      const int64_t *source_dims, int32_t axis, int64_t start, int64_t length);
/* A parameter that is part of a matrix of `heads` heads, one behind the other along its rows: `length` rows
 * from `start` on of each head. */
sbp_value sbp_hf_part_of_heads(sbp_hf *hf, const char *name, const char *source, int64_t rows,
                               int64_t columns, int64_t heads, int64_t start, int64_t length);
/* Likewise of the last axis of `source`, whose last two axes are then the other way round. */
sbp_value sbp_hf_turned_part(sbp_hf *hf, const char *name, const char *source, int32_t rank,
                             const int64_t *source_dims, int64_t start, int64_t length);
/* The tensor of the weights of that name, or of one that a parameter may have beside it; NULL: the weights
 * are not here, or have none. */
const sbp_weight *sbp_hf_find_tensor(sbp_hf *hf, const char *name);
bool sbp_hf_has_tensor(sbp_hf *hf, const char *name);
/* A parameter that files keep as a tensor per number along axis 0, "*" in their names. */
sbp_value sbp_hf_stack(sbp_hf *hf, const char *name, const char *source, int32_t rank, const int64_t *dims);
/* A parameter [.., out, in] that files keep in MXFP4, as <name>_blocks and <name>_scales, or as numbers
 * [.., in, out], as which it is written. frozen: in the blocks, which nobody trains; the numbers of blocks
 * may be trained. */
sbp_value sbp_hf_mxfp4(sbp_hf *hf, const char *name, int32_t rank, const int64_t *dims, bool frozen);
/* The matrix of the head, [vocab, columns]: the table when tied, else `name`. As transformers has it: weights
 * that hold both, with different values, are not tied whatever config.json says; a file may hold either one.
 */
sbp_value sbp_hf_head_matrix(sbp_hf *hf, const char *name, sbp_value table, bool tied);
/* What transformers' class calls the module of a linear map that files call `module`: adapters go by it. */
void sbp_hf_class_name(sbp_hf *hf, const char *module, const char *class_module);
/* Weight decay takes a parameter that begins as a norm's weight does, but is not called so. */
void sbp_hf_decays(sbp_hf *hf, sbp_value param);
/* Another name under which files may keep the parameter that a value is. */
void sbp_hf_alias(sbp_hf *hf, sbp_value param, const char *alias);
/* Rows of a table by row input ("tok", "pos"), in the residual type. name: may be NULL. */
sbp_value sbp_hf_embed(sbp_hf *hf, const char *name, sbp_value table, sbp_column_id column);
/* x + y in the residual type: the stream with a branch added. */
sbp_value sbp_hf_add(sbp_hf *hf, const char *name, sbp_value x, sbp_value y);
/* x as an operand of a product that the file builds itself. */
sbp_value sbp_hf_operand(sbp_hf *hf, sbp_value x);
/* y = x W^T (+ bias): parameters <module>.weight [out, in] and, if asked for, <module>.bias. */
sbp_value sbp_hf_linear(sbp_hf *hf, const char *name, sbp_value x, const char *module, int64_t out,
                        int64_t in, bool bias);
/* y in the wide type: the sum is not rounded. */
sbp_value sbp_hf_linear_wide(sbp_hf *hf, const char *name, sbp_value x, const char *module, int64_t out,
                             int64_t in);
/* As sbp_hf_linear, with `length` rows from `start` on of a fused tensor [out, in]: parameters
 * <module>.<part>.weight (.bias), which are read and written as parts of <module>.weight (.bias). */
sbp_value sbp_hf_linear_part(sbp_hf *hf, const char *name, sbp_value x, const char *module, const char *part,
                             int64_t out, int64_t in, int64_t start, int64_t length, bool bias);
/* The same where the tensor holds `heads` heads: `length` rows from `start` on of each of them. */
sbp_value sbp_hf_linear_heads(sbp_hf *hf, const char *name, sbp_value x, const char *module, const char *part,
                              int64_t out, int64_t in, int64_t heads, int64_t start, int64_t length);
/* [T, heads * d] -> [T, heads, d] and back. */
sbp_value sbp_hf_split_heads(sbp_hf *hf, sbp_value x, int64_t heads, int64_t d);
sbp_value sbp_hf_join_heads(sbp_hf *hf, sbp_value x);
/* Every second element of each head from `start` on, 0 or 1: [T, heads, 2 n] -> [T, heads, n]. */
sbp_value sbp_hf_every_other(sbp_builder *builder, sbp_value x, int64_t heads, int64_t n, int64_t start);

typedef enum sbp_hf_norm_style {
    SBP_HF_RMS_NORM,          /* x / rms, rounded to the type of x, times w: Llama */
    SBP_HF_RMS_NORM_WIDE,     /* x / rms times w, then rounded: OLMo 2 */
    SBP_HF_RMS_NORM_PLUS_ONE, /* x / rms times 1 + w, then rounded: Gemma */
    SBP_HF_LAYER_NORM,        /* (x - mean) / deviation times w, plus bias: GPT-2, GPT-NeoX */
    SBP_HF_LAYER_NORM_NO_BIAS /* Cohere */
} sbp_hf_norm_style;

typedef struct sbp_hf_norm {
    sbp_hf_norm_style style;
    double eps;
} sbp_hf_norm;

/* Over the last axis of x, which has n elements; parameters <module>.weight, for a layer norm <module>.bias.
 */
sbp_value sbp_hf_normalize(sbp_hf *hf, const sbp_hf_norm *norm, const char *name, sbp_value x,
                           const char *module, int64_t n);
/* The mean of the squares of x over its last axis, in the wide type. */
sbp_value sbp_hf_mean_square(sbp_hf *hf, sbp_value x);
/* x / rms, rounded to the type of x, over the last axis: a norm without a weight. */
sbp_value sbp_hf_rms(sbp_hf *hf, const char *name, sbp_value x, double eps);
/* activation(x), and activation(gate) * up; activations as Hugging Face calls them: silu (swish), gelu,
 * gelu_new, gelu_fast, gelu_pytorch_tanh; without a gate relu2. Others are errors. */
sbp_value sbp_hf_activate(sbp_hf *hf, const char *activation, const char *name, sbp_value x);
sbp_value sbp_hf_gate(sbp_hf *hf, const char *activation, const char *name, sbp_value gate, sbp_value up);
/* The same where activation(gate) is at most `limit`, and up from -limit to limit; 0: no limit. */
sbp_value sbp_hf_gate_within(sbp_hf *hf, const char *activation, const char *name, sbp_value gate,
                             sbp_value up, double limit);
/* x times a number that is not rounded to the type of x first, in the type of x; x itself for 1. */
sbp_value sbp_hf_scale(sbp_hf *hf, const char *name, sbp_value x, double scale);
/* Causal attention inside each document; names the results attn_out and lse. */
sbp_value sbp_hf_attention(sbp_hf *hf, sbp_value q, sbp_value k, sbp_value v, double scale, int64_t window);
/* The same inside each part of `part` positions of a document. */
sbp_value sbp_hf_attention_parts(sbp_hf *hf, sbp_value q, sbp_value k, sbp_value v, double scale,
                                 int64_t part);
/* The same with a sink per head, [heads]. */
sbp_value sbp_hf_attention_sink(sbp_hf *hf, sbp_value q, sbp_value k, sbp_value v, sbp_value sink,
                                double scale, int64_t window);
/* A short causal convolution of each channel inside each document: parameters <module>.weight [channels, 1,
 * taps] and, if asked for, <module>.bias, as torch.nn.Conv1d has them. */
sbp_value sbp_hf_conv_rows(sbp_hf *hf, const char *name, sbp_value x, const char *module, int64_t channels,
                           int64_t taps, bool bias);
/* logits [T, vocab] of the last hidden states, in fp32 (fp64 when computing in fp64): the last product of
 * every model. matrix: [vocab, hidden] */
sbp_value sbp_hf_logits(sbp_hf *hf, sbp_value x, sbp_value matrix);
/* The end of every model: what head.h makes of the logits, [T, V]. */
void sbp_hf_finish(sbp_hf *hf, sbp_value logits);
/* "a.3.b" in the arena. */
const char *sbp_hf_path(sbp_hf *hf, const char *format, ...) SBP_PRINTF(2, 3);

/* ---- experts: hf_experts.c -------------------------------------------------------------------------- */

enum { SBP_HF_EXPERT_GATE, SBP_HF_EXPERT_UP, SBP_HF_EXPERT_DOWN, SBP_HF_EXPERT_PARTS };

/* Modules: <module>.<router>, <module>.experts.N.<experts[part]>. */
typedef struct sbp_hf_expert_names {
    const char *module; /* of a layer */
    const char *router;
    const char *experts[SBP_HF_EXPERT_PARTS];
    /* What transformers' class calls `module` and `router`; NULL: so. */
    const char *class_module, *class_router;
    bool linear_router; /* there the router is a linear layer, which peft adapts as others */
    bool stacked; /* files hold one tensor for all experts for each part: <module>.<experts[part]>.weight */
    /* Files may hold one tensor for all experts in place of a module for each: <module>.experts.<fused>, an
     * expert's gate over its up, and <module>.experts.<experts[DOWN]>. NULL: they do not. */
    const char *fused;
    bool always_fused; /* and names are <module>.<fused>, <module>.<experts[DOWN]> */
} sbp_hf_expert_names;

/* mlp.gate, mlp.experts.N.gate_proj, .up_proj, .down_proj; fused mlp.experts.gate_up_proj */
extern const sbp_hf_expert_names sbp_hf_projections;
/* block_sparse_moe.gate, block_sparse_moe.experts.N.w1 gate, .w3 up, .w2 down */
extern const sbp_hf_expert_names sbp_hf_block_sparse;

/* What a router makes of its logits. */
typedef enum sbp_hf_score {
    SBP_HF_SCORE_SOFTMAX, /* over all experts */
    SBP_HF_SCORE_SIGMOID,
    SBP_HF_SCORE_LOGIT,        /* the logits; weights are a softmax over those chosen */
    SBP_HF_SCORE_LOGIT_SIGMOID /* the logits; weights are sigmoids of those chosen */
} sbp_hf_score;

/* Scores of a row, the largest of which are chosen, and the weights that they give the answers. */
typedef struct sbp_hf_router {
    sbp_hf_score score;
    bool bias;      /* of the map that gives the logits */
    bool wide;      /* logits are not rounded */
    double softcap; /* of logits; 0: none */
    /* Within the module: what is added to scores to choose by them, [experts]; it is nobody's weight, and has
     * no gradient. NULL: nothing. */
    const char *correction;
    bool correction_row; /* files have it as [1, experts] */
    /* Experts are chosen within the `chosen_groups` of `groups` of neighbours whose two best sum up to most;
     * 0: no groups. */
    int64_t groups, chosen_groups;
    bool others_zero; /* scores of the other groups count as 0, not as less than all */
    /* Weights are divided by their sum, which has `epsilon` more, and counts as `floor` below that. */
    bool normalized;
    double epsilon, floor;
    double scaling; /* of weights; 0 or 1: none */
} sbp_hf_router;

typedef struct sbp_hf_experts {
    int64_t count, chosen, inner;
    int64_t shared; /* width of the one that every row goes to as well; 0: none */
    /* The shared one: its module, and whether a gate of its own weighs it. */
    const char *shared_name;
    const char *class_shared; /* its module in transformers' class; NULL: so */
    bool shared_gated, shared_bias;
    sbp_hf_router router;
    bool fused;       /* as files have them that are not here */
    bool turned;      /* fused ones of published files are [in, out] */
    bool weighs_rows; /* weights are of the rows that the chosen read, not of their answers */
    /* GPT-OSS's: y = D ((u + 1) g sigmoid(alpha g)) + a bias, g = min(gate, limit), u = up within -limit ..
     * limit; gate and up, which have biases, are the even and odd columns of one matrix, and matrices are
     * [in, out]. */
    bool clamped;
    double limit, alpha; /* limit of others: sbp_hf_gate_within */
    bool plain;          /* Nemotron's, the shared one too: down(act(up x)), without a gate */
    int64_t
        latent; /* width of what the experts, but not the shared one, read and give; 0: that of the stream */
    /* experts are in blocks: the files have their matrices in MXFP4 [out, in], and config.json says so */
    bool blocks, frozen_blocks;
    bool *sparse; /* [layers]: which have experts in place of an MLP; NULL: none */
    const sbp_hf_expert_names *names;
} sbp_hf_experts;

typedef struct sbp_hf_experts_defaults {
    const char *count_key, *other_count_key, *inner_key;
    const char *chosen_key; /* NULL: num_experts_per_tok */
    const char *shared_key; /* NULL: no expert is shared */
    int64_t count, chosen, inner, shared;
    /* Fields with the number of layers before the first that has experts, and of the last one, -1 for the
     * last of all; and with the number of which theirs, from 1 on, are multiples. NULL: none. */
    const char *dense_key, *last_key, *step_key;
    int64_t dense;
    bool typed;             /* mlp_layer_types says it for each layer, where it is given */
    bool always_normalized; /* whatever norm_topk_prob says */
    bool normalized;        /* where it says nothing */
    bool fused;
    bool stepped;   /* the step is decoder_sparse_step, and mlp_only_layers have none */
    double balance; /* router_aux_loss_coef */
    const sbp_hf_expert_names *names;
} sbp_hf_experts_defaults;

/* What models with DeepSeek's router, and shared experts without a gate, have where the fields say
 * nothing. */
typedef struct sbp_hf_deepseek_experts {
    int64_t count, chosen, inner, groups, chosen_groups, dense;
    bool typed; /* as below */
    double scaling;
} sbp_hf_deepseek_experts;
sbp_hf_experts sbp_hf_deepseek_experts_read(sbp_hf *hf, int64_t layers,
                                            const sbp_hf_deepseek_experts *defaults);
sbp_hf_experts sbp_hf_experts_read(sbp_hf *hf, int64_t layers, const sbp_hf_experts_defaults *defaults);
/* Which experts a row goes to, [T, chosen], and the weights of their answers in the wide type. */
typedef struct sbp_hf_choice {
    sbp_value index, weight;
} sbp_hf_choice;
/* Says of the map `module` that the class has it as a linear layer, which peft adapts as others. */
void sbp_hf_linear_router(sbp_hf *hf, const char *module);
/* By the logits, [T, experts], as the router has it, weights [T, chosen]; adds what the loss looks at. */
sbp_hf_choice sbp_hf_choose(sbp_hf *hf, const sbp_hf_experts *experts, sbp_value logits, const char *module);
/* The sum of the answers of those, by weights [T, chosen, 1], in the wide type, [T, hidden]; <module>.experts
 * has the matrices. */
sbp_value sbp_hf_experts_apply(sbp_hf *hf, const sbp_hf_experts *experts, const char *activation, sbp_value x,
                               sbp_hf_choice choice, const char *module, int64_t hidden);
sbp_value sbp_hf_softmax(sbp_builder *builder, sbp_value x);
/* Softmax over all experts, the largest of it, and the sum of their answers, and of the shared one's, [T,
 * hidden]; or as the flags say. */
sbp_value sbp_hf_experts_build(sbp_hf *hf, const sbp_hf_experts *experts, const char *activation,
                               const char *name, sbp_value x, const char *module, int64_t hidden);

/* ---- decoders: embedding, layers, norm, head --------------------------------------------------------
 *
 * A layer is a list of branches; a branch norms the stream x and adds what mixers that stand side by side
 * (attention, a convolution, a state, an MLP, experts) make of it:
 *
 *   x += norm_out(sum of scale_out mixer(scale_in norm_in(x)))
 */

enum { SBP_HF_ROPES = 4 }; /* rotary tables of a model */

struct sbp_hf_decoder;
struct sbp_hf_layer;

/* Where a mixer is built. */
typedef struct sbp_hf_scope {
    sbp_hf *hf;
    const struct sbp_hf_decoder *d;
    const struct sbp_hf_layer *layer;
    int64_t number;                 /* of the layer, from 0 on */
    const char *module;             /* path of the mixer */
    const char *class_module;       /* in transformers' class; NULL: so */
    sbp_value stream;               /* what its branch is added to */
    sbp_hf_turn turn[SBP_HF_ROPES]; /* as the decoder's rope */
} sbp_hf_scope;

/* The ops that follow belong to this module of the layer, "" for the layer itself; its path. */
const char *sbp_hf_enter(const sbp_hf_scope *at, const char *module);
/* As sbp_hf_linear, of the mixer's map `name`. */
sbp_value sbp_hf_map(const sbp_hf_scope *at, const char *value, sbp_value x, const char *name, int64_t out,
                     int64_t in, bool bias);

/* What a mixer gives of x, both [T, hidden]; its parameters are <module>.*. */
typedef sbp_value sbp_hf_mix(const sbp_hf_scope *at, sbp_value x);

sbp_hf_mix sbp_hf_mix_attention; /* self_attn: q_proj, k_proj, v_proj, o_proj */
sbp_hf_mix sbp_hf_mix_mlp;       /* gate_proj, up_proj, down_proj */
sbp_hf_mix sbp_hf_mix_experts;   /* as decoder->experts has them */
sbp_hf_mix sbp_hf_mix_halves;    /* input_linear, of which gate and up are halves, output_linear */
sbp_hf_mix sbp_hf_mix_conv;      /* in_proj, conv, out_proj */
sbp_hf_mix sbp_hf_mix_mamba;     /* in_proj, conv1d, dt_bias, A_log, D, norm, out_proj */

typedef struct sbp_hf_mixer {
    sbp_hf_mix *mix;            /* NULL: there is none */
    const char *module;         /* of the layer */
    double scale_in, scale_out; /* of what it reads and gives; 1: none */
    const char *class_module;   /* what transformers' class calls `module`; NULL: so */
} sbp_hf_mixer;

typedef struct sbp_hf_branch {
    const char *name;               /* of values: <name>_norm, <name>_out_norm, <name>_residual */
    const char *norm_in, *norm_out; /* modules of the layer; NULL: none */
    sbp_hf_mixer mixer[2];
    double scale;        /* of the stream with the branch added; 0: none */
    const char *in_name; /* of the value that norm_in gives; NULL: as above */
    bool alone;          /* there is no other behind it in its layer */
} sbp_hf_branch;

typedef struct sbp_hf_layer {
    /* One after the other; NULL: attention, then an MLP or experts, with the decoder's norms. */
    const sbp_hf_branch *branch[2];
    int64_t window;                /* of attention; 0: sees everything before */
    int64_t part;                  /* positions of a part, inside of which attention is; 0: the document */
    int64_t heads, kv_heads;       /* 0: the decoder's */
    bool sinks;                    /* as the decoder's, of this layer */
    int32_t rope;                  /* which of the decoder's tables */
    bool no_rope;                  /* no positions at all */
    int64_t inner;                 /* of its MLP; 0: the decoder's */
    double limit;                  /* of its MLP: sbp_hf_gate_within */
    const sbp_hf_experts *experts; /* NULL: the decoder's */
} sbp_hf_layer;

/* Latent attention (MLA): queries from a latent of q_rank (0: straight from the stream), keys and values from
 * one of kv_rank; the first `fixed` elements of a head do not turn, the `turned` ones behind them do, and
 * those of keys are the same for all heads. */
typedef struct sbp_hf_latent {
    int64_t q_rank, kv_rank; /* kv_rank 0: attention as others have it */
    int64_t fixed, turned, value;
    bool bias; /* of the maps into latents */
    /* What turns, without dimensions, where partial_rotary_factor is of whole heads; NULL: of the elements
     * that turn, as in DeepSeek-V3. */
    const sbp_hf_rope_shape *rope;
} sbp_hf_latent;

/* Queries, keys and values of latent attention, [T, heads, ..]. Formulas: transformers,
 * modeling_deepseek_v3.py (DeepseekV3Attention). */
void sbp_hf_latent_build(sbp_hf *hf, const struct sbp_hf_decoder *decoder, sbp_value x, const char *module,
                         sbp_hf_turn turn, sbp_value *q, sbp_value *k, sbp_value *v);
/* Reads its fields, with rope_interleave, into the decoder: latent, rope[0] and the scale of scores. Where
 * the file says nothing, `defaults`. */
void sbp_hf_latent_read(sbp_hf *hf, struct sbp_hf_decoder *decoder, const sbp_hf_latent *defaults);

/* What opens the answer y of the states by z, and where the norm is, over the columns of a group. */
typedef enum sbp_hf_mamba_gating {
    SBP_HF_MAMBA_GATE_THEN_NORM, /* norm(y silu(z)): Bamba */
    SBP_HF_MAMBA_NORM_THEN_GATE, /* norm(y) silu(z) */
    SBP_HF_MAMBA_GATE            /* y silu(z) */
} sbp_hf_mamba_gating;

enum { SBP_HF_MAMBA_SEGMENTS = 5 };

/* Mamba-2 of `heads` heads, each of head_dim columns and a state of `state` rows, of which those of a group
 * have rows in common. */
typedef struct sbp_hf_mamba {
    int64_t heads, head_dim, groups, state, taps;
    const char *activation; /* of the convolution */
    bool conv_bias, in_bias, out_bias;
    sbp_hf_mamba_gating gating;
    double eps;
    bool norm_wide;            /* what is normed is not rounded before it is times the weight */
    double dt_least, dt_most;  /* limits of steps */
    const double *multipliers; /* of the columns z | x | B | C | dt that in_proj gives; NULL: none */
} sbp_hf_mamba;

/* As Bamba's fields (mamba_n_heads ..) say it, and time_step_limit; `inner` columns in all, which is what the
 * fields `inner_text` say. */
sbp_hf_mamba sbp_hf_mamba_read(sbp_hf *hf, const struct sbp_hf_decoder *decoder, int64_t inner,
                               const char *inner_text);

/* LFM2's convolution over `taps` rows between two gates; out_proj C conv(B v), B, C and v of in_proj. */
typedef struct sbp_hf_conv {
    int64_t taps;
    bool bias; /* of all three */
} sbp_hf_conv;

/* The gated delta rule of key_heads and value_heads, whose heads are dk and dv long. */
typedef struct sbp_hf_delta {
    int64_t key_heads, value_heads, dk, dv;
    double beta_scale; /* of sigmoid(b); 1: none */
    double eps;        /* of the norm of the answer */
} sbp_hf_delta;

/* What it reads: queries, keys and values, [T, heads d], a z per column of values, and a b and an a per head
 * of values. */
typedef struct sbp_hf_delta_rows {
    sbp_value q, k, v, z, b, a;
} sbp_hf_delta_rows;

/* norm(answer) silu(z), [T, value_heads dv]; parameters <module>.A_log, .dt_bias, .<norm>. */
sbp_value sbp_hf_delta_build(const sbp_hf_scope *at, const sbp_hf_delta *delta, const sbp_hf_delta_rows *rows,
                             const char *norm);

typedef enum sbp_hf_qk_norm {
    SBP_HF_QK_NORM_NONE,
    SBP_HF_QK_NORM_HEAD, /* q_norm and k_norm over each head */
    SBP_HF_QK_NORM_BARE, /* over each head, without weights */
    SBP_HF_QK_NORM_WHOLE /* over all heads together */
} sbp_hf_qk_norm;

/* Norms of a layer by their modules: of what attention and the MLP read, and of what they give before it is
 * added; NULL: none. */
typedef struct sbp_hf_layer_norms {
    const char *attn_in, *attn_out, *mlp_in, *mlp_out;
} sbp_hf_layer_norms;

/* Modules, as far as families call them otherwise than Llama does. */
typedef struct sbp_hf_names {
    const char *root;                  /* of all but the head: "model" */
    const char *embedding, *last_norm; /* "embed_tokens", "norm" */
    const char *head_norm;             /* "norm": q_norm, k_norm */
    const char *q, *k;                 /* in names of these norms: "q", "k" */
    const char *attn_out;              /* "o_proj" */
    const char *attn_gate;             /* map whose sigmoid opens what attention gives; NULL: none */
    const char *class_gate;            /* in transformers' class; NULL: so */
    const char *sinks;                 /* "sinks" */
    const char *const *mlp;            /* [SBP_HF_EXPERT_PARTS] gate_proj, up_proj, down_proj */
    bool maps;                         /* of values: what q_proj, k_proj, v_proj give is called so */
} sbp_hf_names;

/* As it is read: a Llama. */
typedef struct sbp_hf_decoder {
    int64_t vocab, hidden, inner, layers, heads, kv_heads, head_dim, max_positions;
    int64_t value_dim;      /* of heads of values; 0: head_dim */
    const char *activation; /* as Hugging Face calls it */
    sbp_hf_norm norm;       /* of all norms but the next: */
    /* of what attention and the MLP give, and the last one; NULL: as the others */
    const sbp_hf_norm *out_norm, *last_norm;
    sbp_hf_layer_norms norms;
    sbp_hf_qk_norm qk_norm;
    bool qk_norm_turned; /* behind rope, of what turns; else before it, over each head */
    sbp_hf_latent latent;
    bool qkv_bias, o_bias, mlp_bias;
    bool sinks;                       /* a score of each head that belongs to no key */
    bool gate_by_head, gate_softplus; /* names.attn_gate: a number for each head; softplus of it */
    bool output_gate;                 /* q_proj gives each head its query, then what opens its answer */
    bool fused_qkv, fused_gate_up;    /* one tensor each: qkv_proj, gate_up_proj */
    bool ungated;                     /* an MLP is down(act(up x)) */
    bool tied;
    sbp_hf_experts experts;
    sbp_hf_mamba mamba;
    sbp_hf_conv conv;
    double embed_scale;  /* of the embedding; 1: none */
    double branch_scale; /* of what attention and the MLP add; 1: none */
    double score_scale;
    double key_scale, gate_scale;        /* of keys before they turn; of what an MLP's gate gives; 1: none */
    double value_scale;                  /* of values; 1: none */
    double logits_scale, logits_divisor; /* 1: none */
    double final_softcap;                /* 0: none */
    sbp_hf_rope rope[SBP_HF_ROPES];
    sbp_hf_layer *layer; /* [layers] */
    sbp_hf_names names;
    /* The stream that the first layer reads, of the table; NULL: its rows, times embed_scale. */
    sbp_value (*embed)(const sbp_hf_scope *at, sbp_value table);
    /* What the branches of a layer read and add to, of what the layer before gave; NULL: that. */
    sbp_value (*open_layer)(const sbp_hf_scope *at, sbp_value x);
    /* What a layer makes of the stream behind its branches; NULL: nothing. */
    sbp_value (*finish_layer)(const sbp_hf_scope *at, sbp_value x);
    /* What the last norm reads, [T, hidden], of what the last layer gave; NULL: that. */
    sbp_value (*close)(const sbp_hf_scope *at, sbp_value x);
    void *own; /* what the family's own mixers look at */
} sbp_hf_decoder;

/* What differs between families when config.json does not say it. */
typedef struct sbp_hf_defaults {
    int64_t vocab, hidden, inner, layers, heads; /* 0: must be given */
    int64_t kv_heads;                            /* 0: as many as heads */
    int64_t head_dim;                            /* 0: hidden / heads */
    bool head_dim_rounds;                        /* hidden may be no multiple of heads */
    int64_t max_positions;
    bool tied;
    double norm_eps;                         /* 0: 1e-6 */
    const char *eps_key;                     /* NULL: rms_norm_eps */
    const char *activation_key, *activation; /* NULL: hidden_act, silu. A key "": no field says it */
    bool inner_listed;                       /* intermediate_size may be a list with that of each layer */
} sbp_hf_defaults;

/* Reads the fields that all families share; windows 0, rope not read. */
sbp_hf_decoder sbp_hf_decoder_read(sbp_hf *hf, const sbp_hf_defaults *defaults);
/* Its rotary parameters for heads that turn as a whole. */
sbp_hf_rope sbp_hf_decoder_rope(sbp_hf *hf, const sbp_hf_decoder *decoder);
/* One window for all layers: sliding_window, `fallback` when absent (0: none), none when null. Whether there
 * is one. */
bool sbp_hf_one_window(sbp_hf *hf, sbp_hf_decoder *decoder, int64_t fallback);
/* layer_types of full_attention and sliding_attention (sbp_hf_layer_words). */
bool sbp_hf_layer_types(sbp_hf *hf, int64_t layers, bool *sliding);
/* Gives a layer the window if it slides; an error where there is none (window 0): why that is, a clause. */
#define SBP_HF_NO_WINDOW "there is no window: use_sliding_window is false, or sliding_window null"
void sbp_hf_set_window(sbp_hf *hf, sbp_hf_decoder *decoder, int64_t layer, bool slides, int64_t window,
                       const char *why);
/* For families whose layers are all alike: layer_types may be given, but must say the same. */
void sbp_hf_uniform_layers(sbp_hf *hf, int64_t layers, bool sliding);
/* Layers of two kinds, each with a rotary table of its own: full attention with rope[0] and sliding_attention
 * with rope[1] and sliding_window (4096). Without layer_types every layer whose number, from 1 on, is a
 * multiple of `every` is full. */
void sbp_hf_two_kinds(sbp_hf *hf, sbp_hf_decoder *decoder, int64_t every);
/* Their tables, from the objects of rope_parameters; a legacy rope_scaling is of full attention. Thetas where
 * the objects have none. */
void sbp_hf_two_ropes(sbp_hf *hf, sbp_hf_decoder *decoder, double full_theta, double sliding_theta);
/* As sbp_hf_two_ropes, where a part of each head may turn, `part` of it when the object says nothing; own:
 * what stands for rope_parameters that are not there. */
void sbp_hf_kind_ropes(sbp_hf *hf, sbp_hf_decoder *decoder, double part, const char *own);
/* A theta for each layer (layer_rope_theta), 0 where it has no positions: tables and layers. Where the field
 * is absent all turn alike, but for layers that have no positions already. */
void sbp_hf_layer_thetas(sbp_hf *hf, sbp_hf_decoder *decoder, double theta);
/* Granite: numbers on embedding, scores, branches and logits. */
void sbp_hf_granite_scales(sbp_hf *hf, sbp_hf_decoder *decoder);
/* Qwen: which layers slide (use_sliding_window, max_window_layers, layer_types), and how far. */
void sbp_hf_qwen_windows(sbp_hf *hf, sbp_hf_decoder *decoder, int64_t default_first);
/* LFM2: convolutions and attention (layer_types), each followed by an MLP `feed_forward`, and their names. */
void sbp_hf_lfm2_names(sbp_hf *hf, sbp_hf_decoder *decoder, int64_t taps); /* and the convolution */
void sbp_hf_lfm2_blocks(sbp_hf *hf, sbp_hf_decoder *decoder);
void sbp_hf_decoder_build(sbp_hf *hf, const sbp_hf_decoder *decoder);

/* ---- registry -------------------------------------------------------------------------------------- */

#define ARCHITECTURE(model_type, function) void function(sbp_hf *hf);
#include "frontends/hf/registry.def"

#endif
