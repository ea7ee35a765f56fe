/* frontend.h: how models come in: one call turns a Hugging Face model directory, an ONNX model as JSON, a
 * GGUF file or the directory of an adapter of one of these into a module of the graph IR, and says what else
 * is known about the model.
 *
 * The module has one function @model, without a batch axis:
 *   rows     i32 [T]: tok, pos, first, shared_end, own, label (those that the model reads)
 *   results  what head.h makes of its logits: logp, entropy, hit. The objective (objective.h) adds function
 *            @objective to the module.
 * Parameters carry the source's names and shapes; a tied matrix is one parameter.
 *
 * Errors: SBP_INPUT with file, field or node, what was found and what is expected; SBP_IO; SBP_USAGE for
 * options that do not fit the model. Notes (frozen parameters, ignored outputs) go to diag.
 * Ownership: all results live in `arena`. Threads: different arenas and diags, different threads.
 */
#ifndef SBP_FRONTENDS_FRONTEND_H
#define SBP_FRONTENDS_FRONTEND_H

#include "frontends/source/head.h"

struct sbp_hf;

/* A model_type of Hugging Face's config.json and the function that builds @model from such a file
 * (hf.h; README.md walks through adding one). */
typedef struct sbp_architecture {
    const char *model_type;
    void (*build)(struct sbp_hf *hf);
} sbp_architecture;

/* A multimodal model, of which the text model is built (hf/registry.def). */
typedef struct sbp_wrapper {
    const char *model_type;
    const char *text_types; /* of its text_config, with blanks between them */
    enum {
        SBP_WRAPPER_INSIDE,
        SBP_WRAPPER_AROUND,
        SBP_WRAPPER_BESIDE,
        SBP_WRAPPER_APART,
        SBP_WRAPPER_FILES
    } files;
} sbp_wrapper;

/* Names of modules: each the whole name or what stands behind a dot of it; or one regular expression over
 * whole names. */
typedef struct sbp_lora_names {
    const char *const *names;
    int32_t count;
    bool pattern; /* names[0] is one */
} sbp_lora_names;

/* A number for the modules whose names end in what a regular expression matches; the first that does counts.
 */
typedef struct sbp_lora_number {
    const char *pattern;
    double value;
} sbp_lora_number;

/* Low-rank adapters, as PEFT's LoraConfig says which (frontends/lora/lora.h). */
typedef struct sbp_lora_options {
    int64_t rank;
    double alpha;
    double dropout;  /* share of an adapter's input that is dropped */
    bool rslora;     /* scaled by alpha / sqrt(rank), not alpha / rank */
    bool all_linear; /* every weight of a product but the head's; else: */
    sbp_lora_names
        targets; /* none: q_proj and v_proj, or what stands for them, unless there are parameters: */
    sbp_lora_names parameters; /* of experts, all of them in a tensor; ends of their names */
    sbp_lora_names exclude;    /* not these */
    sbp_lora_names save;       /* modules that are trained whole */
    const int64_t *layers; /* of targets that are no regular expression: only in these layers; none: in all */
    int32_t layer_count;
    sbp_lora_names layers_pattern; /* what stands before the number of a layer */
    const sbp_lora_number *ranks, *alphas;
    int32_t rank_count, alpha_count;
} sbp_lora_options;

typedef struct sbp_model_options {
    sbp_dtype compute; /* F64, F32 or BF16: of operands and results of products and attention */
    /* The type of the residual stream; SBP_DTYPE_COUNT: the compute type. With BF16 it may be F32, as
     * autocast keeps it. */
    sbp_dtype residual;
    /* How parameters are kept; SBP_DTYPE_COUNT: F32 for trainable ones, and for frozen ones the type the
     * source has them in. Computing in F64 keeps everything in F64 whatever is said here. */
    sbp_dtype trainable_storage, frozen_storage;
    /* Blocks in which the weights of frozen linear layers are kept, but not that of the head; NONE: all that
     * is frozen as the source has it. */
    sbp_format base_format;
    /* of trainable ones without a type: the one they are computed with, not F32 */
    bool trainable_as_computed;
    const char *const *set; /* "KEY=JSON" each: a field of config.json, dots between nested names */
    int32_t set_count;
    /* Globs over parameter names. trainable = (no `train` given or one matches) and no `freeze` matches. */
    const char *const *train;
    int32_t train_count;
    const char *const *freeze;
    int32_t freeze_count;
    bool frozen;         /* nothing is trained, whatever these say, and nothing is said of it */
    const char *weights; /* directory or file that values are read from instead of the model's own; or NULL */
    const sbp_lora_options *lora; /* new adapters; NULL: none, or those of the path */
    double lora_dropout;          /* of a path that is an adapter; below 0: as its configuration says */
    const char *base;             /* of an adapter: in place of what its configuration says; NULL */
    const char *base_name;        /* what an adapter's configuration is to call the model; NULL: as it is */
    sbp_head_options head;        /* what the objective wants of the head */
    const double *balance;        /* coefficient of the loss that balances experts; NULL: as the model says */
    bool routed_experts;          /* rows of data may say which experts they go to (ir/program/routed.h) */
    const sbp_architecture *extra; /* architectures besides the built-in ones */
    int32_t extra_count;
} sbp_model_options;

/* Everything at its default for this compute type. */
sbp_model_options sbp_model_options_for(sbp_dtype compute);

typedef struct sbp_model {
    sbp_module *module;
    const char *name;       /* of the directory or file, without its suffix */
    const char *model_type; /* "llama" ...; "onnx" */
    int64_t vocab_size;
    int64_t max_positions;  /* what the model was made for; 0: not known */
    bool learned_positions; /* a hard limit then: there is no row of the table beyond it */
    /* A sentence on what changes where a step has a longer document than length_limit; NULL: nothing. */
    const char *length_rule;
    int64_t length_limit;
    int32_t bos_id, pad_id; /* -1: none */
    const int32_t *eos_ids;
    int32_t eos_count;
    double initializer_range;
    sbp_balance balance; /* of experts, with the statistics for it */
    const char *weights; /* for sbp_weights_open at run time; NULL: the model came without values */
    /* Names in files begin with .file where modules of the class, by which adapters go, begin with .in_class;
     * NULL: they are alike. */
    struct {
        const char *file, *in_class;
    } prefix[3];
    const char *text_part; /* of a multimodal model: how modules of the text model begin in the class; NULL */
    const char *unadapted; /* end of the names of linear layers that PEFT refuses adapters of; NULL: none */
    bool carries; /* tensors of the weights that no parameter is read from are other parts of a multimodal
                     model, and go unchanged into what is written */
    const char *tokenizer;       /* for sbp_tokenizer_load; NULL: none beside the model */
    const char *chat_template;   /* Jinja, as the tokenizer has it; NULL: none */
    const char *adapter;         /* text of the adapter_config.json of what is trained; NULL: no adapter */
    const char *adapter_weights; /* directory of the adapter that the path is; NULL: it begins here */
    const char *config; /* text of a config.json that describes the model as it was built (overrides included,
                           made up for GGUF); NULL for ONNX */
} sbp_model;

/* Whether a path is an adapter's directory. */
bool sbp_model_is_adapter(sbp_arena *arena, const char *path);
/* What a model is called that lies there: sbp_model.name. Below a guard. */
const char *sbp_model_name(sbp_arena *arena, const char *path);
/* Needs no guard by the caller. */
sbp_status sbp_model_load(sbp_arena *arena, sbp_diag *diag, const char *path,
                          const sbp_model_options *options, sbp_model *out) SBP_CHECKED;

/* The built-in architectures and wrappers, for help texts; NULL after the last. */
const sbp_architecture *sbp_architecture_at(int32_t index);
const sbp_wrapper *sbp_wrapper_at(int32_t index);

#endif
