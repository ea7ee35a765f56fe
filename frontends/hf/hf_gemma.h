/* hf_gemma.h: what Gemma 3n and Gemma 4 have in common: layers with a window and layers without, of which
 * the last read keys and values of earlier ones, and an embedding of tokens for each layer. The decoder's
 * `own` is a sbp_hf_gemma. Formulas: transformers, modeling_gemma3n.py and modeling_gemma4.py.
 */
#ifndef SBP_FRONTENDS_HF_GEMMA_H
#define SBP_FRONTENDS_HF_GEMMA_H

#include "frontends/hf/hf.h"

/* Kinds of layers, as the decoder's rope[]. */
enum { SBP_HF_GEMMA_FULL, SBP_HF_GEMMA_SLIDING, SBP_HF_GEMMA_KINDS };

typedef struct sbp_hf_gemma_layer {
    int kind;
    int64_t head_dim, kv_heads;
    bool reads_shared; /* keys and values of the last layer of its kind that has its own */
} sbp_hf_gemma_layer;

/* Streams beside each other, each as wide as the decoder's. */
typedef struct sbp_hf_altup {
    int64_t streams;     /* 0: there is one, as everywhere */
    bool scaled;         /* what a layer's own input sees of the first is scaled by correct_output_scale */
    sbp_value predicted; /* of the layer at hand, [T, streams hidden] */
} sbp_hf_altup;

typedef struct sbp_hf_gemma {
    sbp_hf_decoder d;
    sbp_hf_gemma_layer *layer;
    int64_t window, per_layer, per_layer_vocab;
    bool others_read_first; /* tokens from per_layer_vocab on read row 0 of the table of layers' inputs */
    bool keys_are_values, has_experts;
    sbp_value k[SBP_HF_GEMMA_KINDS], v[SBP_HF_GEMMA_KINDS];
    sbp_hf_altup altup;
    sbp_value inputs; /* of all layers, [T, layers per_layer] */
} sbp_hf_gemma;

/* Makes the last `shared` layers read keys and values of earlier ones; an error where there are none. */
void sbp_hf_gemma_share_keys(sbp_hf *hf, sbp_hf_gemma *m, int64_t shared);

/* By the decoder's norm. */
sbp_value sbp_hf_gemma_norm(const sbp_hf_scope *at, const char *name, sbp_value x, const char *module,
                            int64_t n);

/* self_attn: q_proj, q_norm, o_proj; k_proj, k_norm, v_proj of layers that have keys of their own. */
sbp_hf_mix sbp_hf_gemma_mix_attention;

/* Rows of a table by index, times the root of `width`. */
sbp_value sbp_hf_gemma_rows(sbp_hf *hf, const char *name, sbp_value table, sbp_value index, int64_t width);
/* Sets m->inputs: what each layer adds of a token, from a table of its own and from the embedding x. */
void sbp_hf_gemma_inputs(const sbp_hf_scope *at, sbp_value x);
/* Hooks of the decoder. All streams, of the embedding of tokens. */
sbp_value sbp_hf_altup_embed(const sbp_hf_scope *at, sbp_value table);
/* Every stream as all of them predict it; the layer reads the first. */
sbp_value sbp_hf_altup_predict(const sbp_hf_scope *at, sbp_value streams);
/* All streams, each by how far the layer, which gave x, went from the prediction; the layer's own input goes
 * to all but the first. */
sbp_value sbp_hf_altup_correct(const sbp_hf_scope *at, sbp_value x);
/* The mean of all streams, each as large as the first. */
sbp_value sbp_hf_altup_close(const sbp_hf_scope *at, sbp_value streams);

/* What the layer's own embedding of the token gives where the stream is x. */
sbp_value sbp_hf_gemma_own_input(const sbp_hf_scope *at, sbp_value x);

#endif
