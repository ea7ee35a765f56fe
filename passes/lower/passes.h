/* passes.h: the pipeline from a model's graph to a program.
 *
 *   graph     infer canonicalize lora sink segment expand context split autodiff   functions of SSA ops
 *   stages    streambp head optimizer, fuse schedule    loops around SSA bodies, then commands over views
 *   program   calls offload memory fence               what is called, where it lives, at addresses
 *
 * Each pass is one file with a contract comment; passes.def lists them in order, pipeline.c calls them. What
 * a pass takes is const, what it gives is its own (lowering.h), or the IR that it works on: the module, then
 * stages, then the program. With SBP_VERIFY that is verified after each. Nothing here knows a model family, a
 * parameter name or an objective.
 */
#ifndef SBP_PASSES_PASSES_H
#define SBP_PASSES_PASSES_H

#include "ir/graph/graph.h"
#include "ir/program/program.h"
#include "ir/target/target_info.h"

#define SBP_SAVE_STATES "recurrent_states" /* in a saved set: what is carried from chunk to chunk */
#define SBP_SAVE_ATTENTION "@attention"    /* in a saved set: outputs and log-sum-exps of attention */

typedef enum sbp_optimizer {
    SBP_OPTIMIZER_NONE,
#define OPTIMIZER(id, name, text, states) SBP_OPTIMIZER_##id,
#include "passes/lower/optimizers.def"
#undef OPTIMIZER
    SBP_OPTIMIZER_COUNT
} sbp_optimizer;

extern const char *const sbp_optimizer_names[SBP_OPTIMIZER_COUNT]; /* as --optimizer takes them */

/* What outlives a call, by class: each has a placement in some memory space (offload/). */
typedef enum sbp_tensor_class {
    SBP_TENSOR_CHECKPOINT,
    SBP_TENSOR_SAVED,
    SBP_TENSOR_STATE,
    SBP_TENSOR_GRAD,
    SBP_TENSOR_PARAM,
    SBP_TENSOR_CLASS_COUNT,
    SBP_TENSOR_OTHER = SBP_TENSOR_CLASS_COUNT /* accumulators and the like: always on the device */
} sbp_tensor_class;

extern const char *const sbp_tensor_class_names[SBP_TENSOR_CLASS_COUNT]; /* as --offload takes them */

/* Settings of the one schedule. The presets of --backward are values of these, nothing else. */
typedef struct sbp_schedule_options {
    int64_t chunk;            /* C, rows */
    int64_t head_chunk;       /* C_head, rows */
    int64_t segment;          /* g, layers per segment */
    int64_t checkpoint_every; /* k, segments per checkpoint */
    bool save_all;            /* saved set: everything the backward reads, or ... */
    const char *const *saved; /* ... these values, by name */
    int32_t saved_count;
    bool drop_states; /* of ops that carry a state from chunk to chunk: the backward makes them again */
    sbp_space placement[SBP_TENSOR_CLASS_COUNT];
    /* Per class: how many of its tensors, from the first on, are placed there, the others on the device; 0:
     * all. States and gradients are counted by trained parameter, saved values by name. */
    int32_t first[SBP_TENSOR_CLASS_COUNT];
    /* The optimizer's rules run on the host's cores, for parameters whose states live away; sparing: through
     * as little host memory as can be, not as fast (passes/offload/bucket.c). */
    bool host_update, sparing;
    /* How many segments' sharded parameters stay gathered, so that the backward finds what the forward
     * gathered. Below 2 it is 2: one segment is used while the next arrives. INT32_MAX: all. */
    int32_t gathered;
    /* P: the matrices of a layer's experts arrive in P pieces, each the matrices of some experts; 0 and 1: at
     * once. Only where they are offloaded or kept in blocks. */
    int32_t expert_pieces;
} sbp_schedule_options;

typedef struct sbp_pass_options {
    int64_t t_max;
    sbp_schedule_options schedule;
    sbp_dtype grad_dtype; /* of gradient buffers */
    /* of optimizer states; SBP_D8: 8 bits in blocks of 256 (passes/optimizers/update.h) */
    sbp_dtype state_dtype;
    bool master;     /* trained weights in bf16 are the high half of fp32 ones; else they are all there is */
    bool stochastic; /* how weights in bf16 without a master are rounded: at random, or to nearest */
    sbp_optimizer optimizer;
    int64_t ranks;   /* processes that train together; 0 and 1: one */
    int64_t group;   /* ranks of a sharding group, which are neighbours; divides ranks; 0: all of them */
    int64_t context; /* ranks that split one micro-batch by rows (ir/base/context.h); 0 and 1: one */
    sbp_context_exchange context_exchange;
    bool reduce_bf16; /* gradients cross the interconnect in bf16; else in the type they are added up in */
    int32_t zero; /* what each has a share of only: 1 optimizer states, 2 gradients too, 3 parameters too */
    const char *counted; /* the head computes only rows where this column is not 0; NULL: all */
    bool step;           /* gradients consumed per segment: no clipping, no accumulation */
    bool list_keepable;  /* when a name of the saved set keeps nothing, find out which would: slow */
    bool generates; /* entries `generate` and `choose`, too, for which keys, values and states last */
    bool skip_streambp; /* debug: proves that nothing works without it */
} sbp_pass_options;

/* What every pass is given: where its results are allocated, where it says what is wrong, for which target
 * and with which settings it works. */
typedef struct sbp_pass_input {
    sbp_arena *arena;
    sbp_diag *diag;
    sbp_target_info target;
    sbp_pass_options options;
} sbp_pass_input;

struct sbp_pass_results;

/* One way through the passes. Only pipeline.c writes what is marked `out`; all of it is in the arena. */
typedef struct sbp_pipeline {
    sbp_arena *arena;
    sbp_diag *diag;
    sbp_module *module; /* in: @model and @objective; out: what the passes up to split made of them */
    sbp_target_info target;
    sbp_pass_options options;
    struct sbp_pass_results *results; /* out: from autodiff on (lowering.h) */
    sbp_program *program;             /* out: from streambp on */
    int32_t uncut_layers; /* out: layers that stay with what is before them: no cut of the stream's width */
    /* --print-after, --stop-after: names of passes, NULL; text is added to `printed`. */
    const char *print_after, *stop_after;
    /* `module` is what this pass, at most split, left behind; NULL: all passes run */
    const char *start_after;
    sbp_text *printed;
    bool stopped;
    /* What the planner has made of the module and the options, in the arena, for whoever asks it again
     * (planner/evaluate.h); NULL: it begins anew each time. */
    struct sbp_skeletons *skeletons;
} sbp_pipeline;

/* Runs all passes, or those up to stop_after. */
sbp_status sbp_pipeline_run(sbp_pipeline *pipeline) SBP_CHECKED;
/* Runs pass number `index` alone, behind those before it. */
sbp_status sbp_pipeline_step(sbp_pipeline *pipeline, int index) SBP_CHECKED;
/* Names of the passes in order; NULL after the last. */
const char *sbp_pass_name(int index);

/* ---- the passes over a module, and those over a program (between them: lowering.h) ------------------- */

sbp_status sbp_pass_infer(const sbp_pass_input *in, const sbp_module *module) SBP_CHECKED;
sbp_status sbp_pass_canonicalize(const sbp_pass_input *in, sbp_module *module) SBP_CHECKED;
sbp_status sbp_pass_lora(const sbp_pass_input *in, sbp_module *module) SBP_CHECKED;
sbp_status sbp_pass_sink(const sbp_pass_input *in, sbp_module *module) SBP_CHECKED;
/* uncut: as sbp_pipeline.uncut_layers. */
sbp_status sbp_pass_segment(const sbp_pass_input *in, sbp_module *module, int32_t *uncut) SBP_CHECKED;
sbp_status sbp_pass_expand(const sbp_pass_input *in, sbp_module *module) SBP_CHECKED;
sbp_status sbp_pass_context(const sbp_pass_input *in, sbp_module *module) SBP_CHECKED;
sbp_status sbp_pass_split(const sbp_pass_input *in, sbp_module *module) SBP_CHECKED;

sbp_status sbp_pass_memory(const sbp_pass_input *in, sbp_program *program) SBP_CHECKED;
sbp_status sbp_pass_fence(const sbp_pass_input *in, sbp_program *program) SBP_CHECKED;

/* The buffer that holds a parameter of the module, by its name in the program; after the passes ran. */
const char *sbp_param_label(const sbp_pipeline *pipeline, int32_t param);

/* ---- the saved set, after the passes ran ----------------------------------------------------------- */

/* Names of what the plan keeps for the backward, each once, joined by `separator`; nothing when it keeps
 * nothing. */
void sbp_saved_list(const sbp_pipeline *pipeline, const char *separator, sbp_text *out);
/* Whether something is kept under a name that --save asked for. */
bool sbp_saved_name_exists(const sbp_pipeline *pipeline, const char *asked);
/* Names that --save could have asked for; known when it asked for one that is not kept. */
void sbp_saved_names(const sbp_pipeline *pipeline, sbp_text *out);
/* Whether a name is one of these: then it is not kept because others are, from which nothing leads to it. */
bool sbp_saved_name_is_keepable(const sbp_pipeline *pipeline, const char *asked);
/* Whether a value called `name` ("gate", "gate.3") is asked for by `asked` ("gate"). */
bool sbp_saved_name_matches(const char *name, const char *asked);

/* ---- pieces that tests use on their own ------------------------------------------------------------ */

/* Replaces composites (and with `late`, ops that are expanded after autodiff) by smaller ops. */
sbp_status sbp_expand_func(sbp_module *module, const sbp_func *func, bool late, sbp_diag *diag,
                           sbp_func **out) SBP_CHECKED;

/* T becomes C; every operand read as PREFIX or WINDOW becomes a carry. */
sbp_status sbp_split_func(sbp_module *module, const sbp_func *func, sbp_diag *diag,
                          sbp_func **out) SBP_CHECKED;

/* func, followed by its reverse sweep. Adds a cotangent argument per plain result and per carry; results
 * become the gradients of stream arguments (when want_streams) and of trainable parameters, and the carries.
 * Plain results stay results. */
sbp_status sbp_autodiff_func(sbp_module *module, const sbp_func *func, bool want_streams, sbp_diag *diag,
                             sbp_func **out) SBP_CHECKED;

/* Folds constants, removes what no result needs and what is computed twice. */
sbp_status sbp_canonicalize_func(sbp_module *module, const sbp_func *func, sbp_diag *diag,
                                 sbp_func **out) SBP_CHECKED;

#endif
