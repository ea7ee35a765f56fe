/* export_keys.h: the keys of a GGUF file beside those of the tokenizer. Below a guard. */
#ifndef SBP_FRONTENDS_EXPORT_EXPORT_KEYS_H
#define SBP_FRONTENDS_EXPORT_EXPORT_KEYS_H

#include "frontends/formats/weights/gguf_table.h"
#include "frontends/formats/weights/gguf_write.h"

/* general.*: name, origin, licence, sampling. Numbers of parameters as llama.cpp's converter counts them:
 * those of all experts of a kind as one; below zero for an adapter, whose size is not known. */
typedef struct exp_meta_request {
    const char *directory;
    const sbp_json *config; /* config.json */
    bool of_adapter;        /* which has no config.json */
    double parameters, shared, of_experts;
    int64_t experts; /* 0: none */
} exp_meta_request;

sbp_status sbp_exp_put_meta(sbp_arena *arena, sbp_diag *diag, const exp_meta_request *request,
                            sbp_gguf_keys *keys) SBP_CHECKED;

/* The model, as config.json says it. */
typedef struct exp_model {
    sbp_arena *arena;
    sbp_diag *diag;
    const char *path;              /* of config.json, for messages */
    const sbp_json *root, *config; /* the whole; of a multimodal model its text_config */
    sbp_gguf_facts facts;
    const char *architecture;
} exp_model;

/* <architecture>.*: sizes, rotation, experts .. and general.architecture. */
sbp_status sbp_exp_put_architecture(const exp_model *model, sbp_gguf_keys *keys) SBP_CHECKED;

/* A tensor that is made from numbers of config.json: rope_freqs, rope_factors_long .. */
typedef struct exp_extra {
    const char *name;
    const float *numbers;
    int64_t count;
} exp_extra;

enum { EXP_MOST_EXTRAS = 2 };
sbp_status sbp_exp_extra_tensors(const exp_model *model, exp_extra out[EXP_MOST_EXTRAS],
                                 int *count) SBP_CHECKED;

/* A number of config.json; the class's own where it is absent or null, NAN where the class has none
 * either. */
double sbp_exp_number(const exp_model *model, const char *field);
/* A number of rope_parameters, however they are spelled: that of layers with full or with sliding
 * attention. */
double sbp_exp_rope_number(const exp_model *model, bool sliding, const char *field);
const char *sbp_exp_rope_type(const exp_model *model);
const sbp_json *sbp_exp_rope_list(const exp_model *model, const char *field);
/* Rows and columns that a head's queries and keys have. */
int64_t sbp_exp_head_dim(const exp_model *model);

#endif
