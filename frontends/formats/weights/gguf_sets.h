/* gguf_sets.h: which families of GGUF files are alike, as sets of bits 1 << sbp_gguf_family_id. Rows of
 * gguf_table.def are of such sets, and so is the code that reads and writes what no row can say: a new family
 * is put here into each set that it belongs to. Code has F(ID) only for what one family alone does.
 *
 * For .c files: names are short. */
#ifndef SBP_FRONTENDS_WEIGHTS_GGUF_SETS_H
#define SBP_FRONTENDS_WEIGHTS_GGUF_SETS_H

#include "frontends/formats/weights/gguf_table.h"

#define F(id) (UINT64_C(1) << SBP_GGUF_##id)
#define ALL ((UINT64_C(1) << SBP_GGUF_FAMILIES) - 1)

/* ---- relatives ---- */
#define LLAMAS (F(LLAMA) | F(MISTRAL) | F(MIXTRAL))
#define GRANITE_EXPERTS (F(GRANITE_MOE) | F(GRANITE_HYBRID_MOE))
#define GRANITE_MLPS (F(GRANITE_DENSE) | F(GRANITE_HYBRID))
#define GRANITES_4 (GRANITE_EXPERTS | GRANITE_MLPS)
#define GRANITES (F(GRANITE) | GRANITES_4)
#define HYBRIDS (F(GRANITE_HYBRID) | F(GRANITE_HYBRID_MOE))
#define NEMOTRONS (F(NEMOTRON_H) | F(NEMOTRON_H_MOE))
#define DELTAS (F(QWEN3_5) | F(QWEN3_5_MOE))
#define LATENTS (F(DEEPSEEK_V3) | F(GLM4_MOE_LITE))
#define GEMMAS (F(GEMMA3) | F(GEMMA4))
#define OLMOS (F(OLMO2) | F(OLMO3))
#define GLMS (F(GLM) | F(GLM4))

/* ---- layers ---- */
#define MAMBAS (HYBRIDS | NEMOTRONS)
#define NEXTS (F(QWEN3_NEXT) | DELTAS)     /* the delta rule */
#define KINDS_OF_LAYERS (MAMBAS | F(LFM2)) /* keys and values of some layers only, in a list */
#define PLAIN (ALL & ~(F(GPT_NEOX) | NEMOTRONS | F(LFM2))) /* layers are called as Llama's are */
#define SHIFTED (F(GEMMA3) | NEXTS)                        /* norms are 1 + w */
#define PERMUTED (LLAMAS | F(SMOLLM3) | GRANITES)          /* rows of queries and keys are interleaved */
/* The size of a head is not head_dim, or not attention.key_length. */
#define OTHER_HEADS (F(GEMMA4) | LATENTS | GRANITES | F(PHI3) | F(GPT_NEOX))
#define SEPARATE_QKV (PLAIN & ~(F(PHI3) | LATENTS))

/* ---- MLPs and experts ---- */
#define FUSED_UP (F(PHI3) | GLMS)
#define MLPS (PLAIN & ~(FUSED_UP | F(MIXTRAL) | F(QWEN3_MOE) | F(OLMOE) | F(GPT_OSS) | GRANITES_4))
#define DEEPSEEKS (LATENTS | F(GLM4_MOE))        /* their router: sigmoids, and a bias to choose by */
#define SHARING (F(QWEN3_NEXT) | F(QWEN3_5_MOE)) /* an expert that all rows go to, behind a gate */
#define SEPARATE (F(QWEN3_MOE) | F(QWEN3_NEXT) | F(OLMOE) | DEEPSEEKS) /* a tensor for each expert */
#define SPARSE (SEPARATE | F(QWEN3_5_MOE))                             /* mlp.experts */

/* ---- rotation ---- */
#define TWO_ROPES (GEMMAS | F(OLMO3))        /* parameters for each kind of layer */
#define PARTIAL (NEXTS | GLMS | F(GLM4_MOE)) /* partial_rotary_factor */

#endif
