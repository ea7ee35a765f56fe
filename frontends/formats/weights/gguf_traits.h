/* gguf_traits.h: what families of GGUF files have: the traits that a line FAMILY of gguf_table.def lists. Its
 * other rows, and the code that reads and writes what no row can say, ask for these and for no family, so
 * that a new family is its line, and rows for what is new about it. `|` is any of them.
 *
 * For .c files: names are short. */
#ifndef SBP_FRONTENDS_WEIGHTS_GGUF_TRAITS_H
#define SBP_FRONTENDS_WEIGHTS_GGUF_TRAITS_H

#include "frontends/formats/weights/gguf_table.h"

#define TRAIT(n) ((sbp_gguf_traits)1 << (n))
#define ALL TRAIT(127) /* which no line has to list */
enum { TRAITS = 76 };

/* ---- what tensors and fields are called ---- */
#define PLAIN TRAIT(0) /* as Llama's */
#define NEOX TRAIT(1)  /* as GPT-NeoX's */
/* As Nemotron-H's: a layer is one mixer, which is a state, attention, an MLP or experts. Nothing rotates. */
#define MIXERS TRAIT(2)
#define SHORT_CONVS TRAIT(3) /* as LFM2's, which has short convolutions in place of some attention */

/* ---- norms ---- */
#define PRE_NORM TRAIT(4)      /* input_layernorm */
#define FFN_NORM TRAIT(5)      /* post_attention_layernorm stands before the MLP, */
#define POST_NORM TRAIT(6)     /* or behind attention */
#define POST_FFW_NORM TRAIT(7) /* post_feedforward_layernorm */
#define FOUR_NORMS TRAIT(8)    /* post_self_attn_layernorm and post_mlp_layernorm beside the two before */
#define SHIFTED TRAIT(9)       /* norms are 1 + w */
#define GEMMA TRAIT(10)        /* pre_feedforward_layernorm, a soft cap of logits, hidden_activation */

#define COHERE TRAIT(61) /* layer_norm_eps of norms without a bias, none before the MLP; logit_scale */

/* ---- attention ---- */
#define SEPARATE_QKV TRAIT(11)
#define FUSED_QKV TRAIT(12)
#define INTERLEAVED TRAIT(13) /* rows of queries and keys; without MIXERS, rope_freqs.weight of Llama 3 */
#define LATENT TRAIT(14)      /* DeepSeek's */
#define SINKS TRAIT(15)
#define SIZED TRAIT(16)      /* attention.key_length is written whether config.json has head_dim or not, */
#define UNSIZED TRAIT(17)    /* or never: a head is hidden_size divided by heads */
#define TWO_SIZES TRAIT(18)  /* of heads and MLPs, by kind of layer; the last layer has no window */
#define QUERY_ROWS TRAIT(19) /* a file without attention.key_length: a head is what rows of queries say */
#define UNBIASED TRAIT(20)   /* config.json has no attention_bias */
/* query_layernorm and key_layernorm, behind the rotation; alpha stretches its base, as which a file has it */
#define TURNED_NORMS TRAIT(60)
#define SHARED_KV TRAIT(21) /* the last layers read keys and values of others */

/* ---- windows and rotation ---- */
#define WINDOWS TRAIT(22)      /* of some layers */
#define PERIODIC TRAIT(23)     /* of which layers llama.cpp knows, where that is as the class has it */
#define WINDOW_LOST TRAIT(24)  /* files do not say it */
#define TWO_ROPES TRAIT(25)    /* parameters for each kind of layer */
#define PARTIAL TRAIT(26)      /* partial_rotary_factor */
#define PROPORTIONAL TRAIT(27) /* rope_type of full attention, as rope_freqs.weight */
#define LONG_FACTORS TRAIT(28) /* longrope alone, as two tensors */
#define SECTIONS TRAIT(29)     /* rope.dimension_sections, also where config.json has none */
#define SCALE_LINEAR TRAIT(30) /* the key of old files */
/* Which layers have windows is listed, as with TWO_ROPES; those that turn do so by the same parameters. */
#define LISTED_WINDOWS TRAIT(53)
#define TEMPERED TRAIT(62)     /* yarn, by which queries are scaled at their positions, too */
#define LISTED_TURNS TRAIT(67) /* attention.rope_pattern: layers that turn */
#define LLAMA3_ROWS TRAIT(54)  /* rope_freqs.weight of Llama 3, and rows are not INTERLEAVED */

/* ---- MLPs and experts ---- */
#define MLP TRAIT(31)        /* gate_proj, up_proj and down_proj, if only of some layers */
#define FUSED_UP TRAIT(32)   /* gate_up_proj */
#define MLP_BIAS TRAIT(33)   /* config.json has mlp_bias */
#define XIELU TRAIT(72)      /* Apertus's activation without a gate, whose numbers are keys; names of norms */
#define NO_EXPERTS TRAIT(34) /* which others of its architecture have */
#define SEPARATE TRAIT(35)   /* mlp.experts, a tensor for each, */
#define FUSED_EXPERTS TRAIT(36) /* or one for all */
#define MOE_SIZE TRAIT(37)      /* moe_intermediate_size, of experts by softmax */
#define ROUTED TRAIT(38)        /* n_routed_experts, chosen by sigmoids */
/* mlp.shared_experts, a bias to choose by, and the first layers without experts. */
#define SHARED_EXPERTS TRAIT(39)
#define GATED_SHARED TRAIT(40)   /* mlp.shared_expert, behind a gate */
#define BLOCK_SPARSE TRAIT(41)   /* Mixtral's */
#define GATES_IN_TURN TRAIT(42)  /* with ups, GPT-OSS's; biases */
#define BESIDE_EXPERTS TRAIT(43) /* Gemma 4's: an MLP, too, and a norm for each */
#define EXPERT_MIXERS TRAIT(44)  /* mixer.experts in some layers */
#define TURNED_EXPERTS TRAIT(55) /* mlp.experts, one tensor for all: [experts, in, 2 n], gates, then ups */
#define ERNIE_EXPERTS TRAIT(56)  /* ERNIE's names of experts' fields, and its bias to choose by */
#define SHORT_CONV_EXPERTS TRAIT(57) /* feed_forward.experts behind the first layers, LFM2's */
#define BY_SIGMOIDS TRAIT(58)        /* experts are chosen by sigmoids and a bias, without ROUTED's fields */

/* ---- Granite ---- */
#define MULTIPLIERS TRAIT(45)   /* of embedding, attention, residuals and logits */
#define OR_GRANITE_4 TRAIT(46)  /* files without experts and states are of 3 or 4, which tensors tell */
#define SHARED_MLP TRAIT(47)    /* shared_mlp is the MLP, */
#define SHARED_BESIDE TRAIT(48) /* or stands beside experts in block_sparse_moe */
#define GRANITE_4 (SHARED_MLP | SHARED_BESIDE)
#define SWA_EXPERTS TRAIT(73) /* block_sparse_moe of those with windows, and shared_mlp in one matrix */

/* ---- layers ---- */
#define HYBRID TRAIT(49)        /* mamba: a Mamba-2 in some layers in place of attention */
#define GROUPED_DELTA TRAIT(50) /* the delta rule, its rows by key head, */
#define SPLIT_DELTA TRAIT(51)   /* or a tensor for each of q k v, z, b, a */
#define STREAMS TRAIT(68)       /* Gemma 3n's, a branch of low rank, sparse gates */
#define PER_LAYER TRAIT(52)     /* embeddings for each layer */

/* ---- of one or two families ---- */
#define PARTS TRAIT(63)             /* Llama 4's: attention inside parts of a document, names of experts */
#define GATED_HEADS TRAIT(64)       /* g_proj, a gate for what heads give, whose number differs by layer */
#define HUNYUAN_EXPERTS TRAIT(65)   /* Hunyuan 3's names of experts */
#define HUNYUAN_1_EXPERTS TRAIT(69) /* those of V1 */
#define NARROW_VALUES TRAIT(70)     /* MiMo's heads: of values, of windows, and their sinks */
#define BESIDE_STATES TRAIT(71)     /* Falcon-H1's: attention and a HYBRID's state side by side */
#define STEP_EXPERTS TRAIT(74)      /* Step 3.5's moe and share_expert; half of a head turns, or all */
#define SOFTMAX_ROUTED TRAIT(75) /* Mistral 4's: ROUTED by a softmax; queries are scaled at their positions */
#define ONLY_READ TRAIT(66)      /* nothing here writes such files */

/* ---- multimodal models ---- */
#define PICTURES TRAIT(59) /* a multimodal model's text model; files have keys that say nothing of text */

/* ---- what several are ---- */
#define LLAMA_LIKE (PLAIN | PRE_NORM | FFN_NORM)
#define MAMBA (HYBRID | MIXERS)
#define DELTA_RULE (GROUPED_DELTA | SPLIT_DELTA)
#define KINDS_OF_LAYERS (MAMBA | SHORT_CONVS) /* keys and values of some layers only, in a list */
#define SPARSE (SEPARATE | FUSED_EXPERTS)     /* mlp.experts */
/* Families of one architecture are told apart by these. */
#define EXPERTS                                                                                              \
    (BLOCK_SPARSE | SPARSE | GATES_IN_TURN | SHARED_BESIDE | EXPERT_MIXERS | TURNED_EXPERTS |                \
     SHORT_CONV_EXPERTS | PARTS | SWA_EXPERTS)

_Static_assert(TRAIT(TRAITS) - 1 ==
                   PLAIN + NEOX + MIXERS + SHORT_CONVS + PRE_NORM + FFN_NORM + POST_NORM + POST_FFW_NORM +
                       FOUR_NORMS + SHIFTED + GEMMA + SEPARATE_QKV + FUSED_QKV + INTERLEAVED + LATENT +
                       SINKS + SIZED + UNSIZED + TWO_SIZES + QUERY_ROWS + UNBIASED + SHARED_KV + WINDOWS +
                       PERIODIC + WINDOW_LOST + TWO_ROPES + PARTIAL + PROPORTIONAL + LONG_FACTORS + SECTIONS +
                       SCALE_LINEAR + MLP + FUSED_UP + MLP_BIAS + NO_EXPERTS + SEPARATE + FUSED_EXPERTS +
                       MOE_SIZE + ROUTED + SHARED_EXPERTS + GATED_SHARED + BLOCK_SPARSE + GATES_IN_TURN +
                       BESIDE_EXPERTS + EXPERT_MIXERS + MULTIPLIERS + OR_GRANITE_4 + SHARED_MLP +
                       SHARED_BESIDE + HYBRID + GROUPED_DELTA + SPLIT_DELTA + PER_LAYER + LISTED_WINDOWS +
                       LLAMA3_ROWS + TURNED_EXPERTS + ERNIE_EXPERTS + SHORT_CONV_EXPERTS + BY_SIGMOIDS +
                       PICTURES + TURNED_NORMS + COHERE + TEMPERED + PARTS + GATED_HEADS + HUNYUAN_EXPERTS +
                       ONLY_READ + LISTED_TURNS + STREAMS + HUNYUAN_1_EXPERTS + NARROW_VALUES +
                       BESIDE_STATES + XIELU + SWA_EXPERTS + STEP_EXPERTS + SOFTMAX_ROUTED,
               "each trait has a number of its own");

static inline bool sbp_gguf_has(sbp_gguf_family_id family, sbp_gguf_traits traits) {
    return (sbp_gguf_family_of(family)->traits & traits) != 0;
}

#endif
