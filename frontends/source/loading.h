/* loading.h: what the loaders of the source formats share; private to frontends/. */
#ifndef SBP_FRONTENDS_LOADING_H
#define SBP_FRONTENDS_LOADING_H

#include "frontends/formats/weights/weights.h"
#include "frontends/source/frontend.h"

typedef struct sbp_loading {
    sbp_arena *arena;
    sbp_diag *diag;
    const char *path;
    const sbp_model_options *options;
    const sbp_lora_options *lora; /* of the options, or of the adapter that the path is; NULL: none */
    const char *origin;           /* the model that a file was made of, as the file says; NULL: it does not */
    const char *parent;           /* a model that may be that one, or what it was tuned from; NULL */
    sbp_model *model;
    sbp_dtype residual;    /* as options->residual, decided */
    sbp_weights *weights;  /* of model->weights; open, or NULL; closed by sbp_model_load */
    sbp_weights *source;   /* of a model that is a file of weights itself; likewise */
    sbp_weights *adapter;  /* of the adapter that the path is; likewise */
    bool own_initializers; /* weights are an ONNX model's own */
    /* In how many bits a frozen parameter was published, when no weights say so; SBP_DTYPE_COUNT: not known.
     */
    sbp_dtype published;
    /* model->config where codes of the weights become numbers, which are then written; NULL: they do not */
    const char *numbers_config;
} sbp_loading;

/* Opens model->weights when it is set and not open yet. */
sbp_status sbp_loading_open_weights(sbp_loading *l) SBP_CHECKED;
/* What the user calls a parameter: the tensor of the files that it is, or is a part of. */
const char *sbp_loading_source_name(const sbp_param *param);
/* Per value, whether experts are chosen by it: a product that does so is a router, which is no linear layer
 * of transformers (a class of its own): PEFT does not adapt it as one, and it is not kept in 4 bits. */
bool *sbp_loading_find_routers(sbp_arena *arena, const sbp_func *func);
/* What a parameter is read from as it was published: the tensor of its name, or of the first alias that is
 * there; NULL. */
const sbp_weight *sbp_loading_find(const sbp_weights *weights, const sbp_param *param);

/* Builds the module from a config.json. */
sbp_status sbp_load_hf(sbp_loading *l, const sbp_json *config) SBP_CHECKED;

sbp_status sbp_load_gguf(sbp_loading *l) SBP_CHECKED;
sbp_status sbp_load_onnx(sbp_loading *l, const sbp_json *root) SBP_CHECKED;

#endif
