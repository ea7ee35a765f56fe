/* gguf_table.h: what GGUF files have in place of a Hugging Face directory, as llama.cpp's converter writes
 * them: which model_type is which architecture, which tensor is which, and where each element of one is in
 * the other. One table for both directions (gguf_table.def): gguf_view.c reads files by it, and files are
 * written by it.
 *
 * Names. hf: of a tensor of the directory, as model.safetensors has it, of the text model alone
 * ("model.layers.0..", also where a multimodal model's file has "model.language_model.layers.0.."). A "*"
 * stands for the number of an expert: the tensors of all experts, one behind the other along a first axis
 * that none of them has. "X_blocks+scales": what sbp_weights calls X_blocks and X_scales together. gguf: of a
 * tensor of the file.
 *
 * Shapes are row-major, outermost first (GGUF's ne reversed). Strides, bases and extents are in elements.
 *
 * What no row says, because it is made from numbers of config.json: rope_freqs, rope_factors_long,
 * rope_factors_short. What a file leaves out: output.weight of a tied head.
 *
 * Ownership: all in the arena that is given; strings of rows are static. Threads: no state. Errors:
 * SBP_INPUT, with `path`, tensor or field, found and expected. Needs no guard of its own, but one of `arena`.
 */
#ifndef SBP_FRONTENDS_WEIGHTS_GGUF_TABLE_H
#define SBP_FRONTENDS_WEIGHTS_GGUF_TABLE_H

#include "frontends/formats/weights/gguf.h"
#include "ir/rowkernel/format.h"

/* ---- families --------------------------------------------------------------------------------------- */

typedef enum sbp_gguf_family_id {
#define FAMILY(id, architecture, model_type, class_name, layers, tokens, traits) SBP_GGUF_##id,
#include "frontends/formats/weights/gguf_table.def"
    SBP_GGUF_FAMILIES
} sbp_gguf_family_id;

typedef unsigned __int128 sbp_gguf_traits; /* bits; gguf_traits.h names them */

typedef struct sbp_gguf_family {
    const char *architecture; /* general.architecture, and what keys begin with */
    const char *model_type;   /* of config.json */
    const char *class_name;   /* of its "architectures" */
    const char *layers; /* what names of a layer's tensors begin with, before its number: "model.layers." */
    sbp_gguf_traits traits; /* that it has */
} sbp_gguf_family;

const sbp_gguf_family *sbp_gguf_family_of(sbp_gguf_family_id id);

/* Numbers of a model that say how rows of its tensors are arranged. From config.json
 * (sbp_gguf_facts_of_config), or the keys of a file (sbp_gguf_facts_of_keys). What a family does
 * not have is 0. */
typedef struct sbp_gguf_facts {
    sbp_gguf_family_id family;
    int64_t layers;          /* without those that predict further tokens, */
    int64_t further;         /* which stand behind them in files */
    int64_t shared;          /* how many layers, the last ones, read keys and values of others */
    int64_t heads, kv_heads; /* of attention */
    int64_t key_heads, value_heads, key_size, value_size; /* of the delta rule; sizes are of a head */
    int64_t fixed, value;                                 /* latent attention: of a head of keys what does not
                                                            turn, and of values */
    int64_t groups;                                       /* Mamba-2 */
    int64_t hidden,
        expert_inner; /* of experts that directories have in one of two layouts; from config.json */
    int64_t streams;
} sbp_gguf_facts;

/* config: that of a directory, of a multimodal model its text_config. false: no family has its model_type.
 * The family may depend on more than model_type (granitemoehybrid without states is a granite). */
sbp_status sbp_gguf_facts_of_config(sbp_diag *diag, const char *path, const sbp_json *config,
                                    sbp_gguf_facts *out, bool *found) SBP_CHECKED;
/* found: false when no family has general.architecture. */
sbp_status sbp_gguf_facts_of_keys(sbp_diag *diag, const sbp_gguf *gguf, sbp_gguf_facts *out,
                                  bool *found) SBP_CHECKED;

/* ---- keys and fields --------------------------------------------------------------------------------- */

/* How a key's value and a field of config.json are one another. The key is "<architecture>.<key>". */
typedef enum sbp_gguf_key_kind {
    SBP_GGUF_KEY_COUNT,  /* u32, a number */
    SBP_GGUF_KEY_NUMBER, /* f32, a number; in config.json the shortest decimal that is this f32 */
    SBP_GGUF_KEY_BOOL,   /* bool */
    SBP_GGUF_KEY_YARN,   /* f32, a number of rope_scaling where it is of type yarn */
    SBP_GGUF_KEY_FIXED,  /* u32 that must be 0, where a file has it */
    SBP_GGUF_KEY_SAID,   /* says nothing about the computation, or is read by code beside the table */
} sbp_gguf_key_kind;

typedef struct sbp_gguf_key {
    sbp_gguf_traits traits; /* that its families have, any of them */
    const char *key;        /* behind "<architecture>." */
    const char *field;      /* of config.json; NULL: none */
    sbp_gguf_key_kind kind;
    bool required; /* in files */
} sbp_gguf_key;

/* The rows of a family in the order of gguf_table.def, one for each key: that behind `row`, the first behind
 * NULL; NULL behind the last. */
const sbp_gguf_key *sbp_gguf_next_key(sbp_gguf_family_id family, const sbp_gguf_key *row);
/* NULL: none of its files has this key. */
const sbp_gguf_key *sbp_gguf_find_key(sbp_gguf_family_id family, const char *key);

/* A number of the architecture's code, which no key says: BY_CODE in gguf_table.def. */
typedef struct sbp_gguf_constant {
    const char *model_type;
    const char *field;
    double value;
    bool said;
} sbp_gguf_constant;

/* As sbp_gguf_next_key. */
const sbp_gguf_constant *sbp_gguf_next_constant(sbp_gguf_family_id family, const sbp_gguf_constant *row);
/* The activation of its MLPs, as config.json calls it. */
const char *sbp_gguf_activation(sbp_gguf_family_id family);
/* What counts where config.json does not have the field; NAN: nothing does. */
double sbp_gguf_default(sbp_gguf_family_id family, const char *field);
/* query_pre_attn_scalar of Gemma 3, whose largest model llama.cpp knows by its layers; of others -1. */
int64_t sbp_gguf_query_scalar(const sbp_gguf_facts *facts, int64_t hidden, int64_t head_dim);

/* ---- tensors ---------------------------------------------------------------------------------------- */

typedef enum sbp_gguf_side { SBP_GGUF_HF, SBP_GGUF_FILE } sbp_gguf_side;

/* What the file has of a number x of the directory. */
typedef enum sbp_gguf_value_rule {
    SBP_GGUF_AS_IS,
    SBP_GGUF_PLUS_ONE, /* x + 1 */
    SBP_GGUF_MINUS_EXP /* -exp(x) */
} sbp_gguf_value_rule;

double sbp_gguf_to_file(sbp_gguf_value_rule rule, double value);
double sbp_gguf_to_hf(sbp_gguf_value_rule rule, double value);

enum { SBP_GGUF_LOOPS = 5 };

typedef struct sbp_gguf_loop {
    int64_t extent, hf, file; /* iterations; how far one goes on either side */
} sbp_gguf_loop;

/* Elements that a tensor of the directory and one of the file have in common: those of a nest of
 * loops. A tensor of either side may be several pieces, with several tensors of the other; each
 * element is in exactly one. */
typedef struct sbp_gguf_piece {
    const char *hf, *file; /* names */
    int32_t hf_rank, file_rank;
    int64_t hf_dim[SBP_MAX_RANK], file_dim[SBP_MAX_RANK]; /* of the whole tensors */
    sbp_gguf_loop loops[SBP_GGUF_LOOPS];                  /* in the order of hf's elements, outermost first */
    int32_t loop_count;
    int64_t hf_base, file_base;
    sbp_gguf_value_rule rule;
    /* There is a piece for the same elements under another spelling of hf, too (experts in one tensor, or one
     * each): directories have one of them. The first is what readers call it. */
    bool other_spelling;
} sbp_gguf_piece;

/* The shape of a tensor, on the side that is had; false: it is not there. A name with "*" stands
 * for the stack. */
typedef bool (*sbp_gguf_shape)(void *user, const char *name, int32_t *rank, int64_t *dim);

/* The pieces of all tensors of the side that is had, by its names and shapes; shapes of the other side follow
 * from these. Tensors that no row knows make no piece: who calls says so. A shape that the facts do not fit
 * is an error. */
sbp_status sbp_gguf_pieces(sbp_arena *arena, sbp_diag *diag, const char *path, const sbp_gguf_facts *facts,
                           sbp_gguf_side had, sbp_gguf_shape shape, void *user, sbp_gguf_piece **out,
                           int32_t *count) SBP_CHECKED;

#endif
