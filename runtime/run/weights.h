/* weights.h: parameters between files and the arenas of an executor, by the plan's tensor table: loading,
 * random initialisation, saving, and dumping gradients. Every name and shape in a file is that of the
 * source; recipes (frontends/formats/weights/recipe.h) translate.
 *
 * Halves. A parameter in bf16 with a master (plan.h) is an fp32 number in two buffers (sbp_f32_split), and
 * here it is that number: files and random numbers fill both, and what is read is both, joined.
 *
 * Memory. Files are read and written in pieces of a few MiB, straight into and out of the arena where the
 * device maps it. Where it does not, a parameter whose elements change places passes through a host copy of
 * its own size.
 *
 * Errors. SBP_INPUT names file, tensor, found and expected: a tensor that is missing or of another shape, a
 * weight that is NaN or infinite. Threads: as the executor.
 */
#ifndef SBP_RUNTIME_RUN_WEIGHTS_H
#define SBP_RUNTIME_RUN_WEIGHTS_H

#include "frontends/formats/weights/safetensors.h"
#include "runtime/run/executor.h"
#include "runtime/run/plan.h"

/* Loads every parameter. Fresh tensors that the file lacks are initialised as by sbp_params_randomize. */
sbp_status sbp_params_load(sbp_executor *executor, const sbp_plan *plan, const sbp_weights *weights,
                           uint64_t seed, sbp_diag *diag) SBP_CHECKED;

/* The base: what is frozen and kept in blocks (ir/rowkernel/format.h). It comes as its file has it where that
 * is the same format, else its numbers are brought into it (q8_0, nf4). Checkpoints do not have it. */
bool sbp_params_keep_base(const sbp_plan *plan);
/* Whether something is merged into it: then it is written as numbers, all of it. */
bool sbp_params_merge_base(const sbp_plan *plan);
/* A hash of all bytes of the base; 0 where there is none. */
sbp_status sbp_params_hash_base(sbp_executor *executor, const sbp_plan *plan, uint64_t *out,
                                sbp_diag *diag) SBP_CHECKED;
/* All parameters but the base, which is there. */
sbp_status sbp_params_load_trained(sbp_executor *executor, const sbp_plan *plan, const sbp_weights *weights,
                                   sbp_diag *diag) SBP_CHECKED;
/* Loads what is of an adapter from its own file, whatever was in place of it. All of it must be there. */
sbp_status sbp_params_load_adapter(sbp_executor *executor, const sbp_plan *plan, const sbp_weights *weights,
                                   sbp_diag *diag) SBP_CHECKED;

/* Initialises every parameter by its rule. A uniform number is bound (2 u - 1), u being the uniform of its
 * index, as follows. A normal number depends on the seed, the name of the source and
 * the index in it alone: elements 2k and 2k + 1 are the Box-Muller pair of uniforms u, v in (0, 1) from
 * Philox4x32-10 (ir/rowkernel/rowkernel.h) with key seed and counters (index low, index high, name hash low,
 * high) at index 2k and 2k + 1, u = (word + 1/2) / 2^32. threads: at least 1; the numbers do not depend on
 * it.
 */
sbp_status sbp_params_randomize(sbp_executor *executor, const sbp_plan *plan, uint64_t seed, int32_t threads,
                                sbp_diag *diag) SBP_CHECKED;

/* Reads elements of a parameter as F32 or F64, in place of its buffers. */
typedef sbp_status (*sbp_param_reader)(void *user, int32_t tensor, int64_t first, int64_t count,
                                       sbp_dtype dtype, void *out, sbp_diag *diag);

/* What of a plan with an adapter is written. */
typedef enum sbp_save_part {
    SBP_SAVE_ALL,     /* all parameters, by their own names */
    SBP_SAVE_ADAPTER, /* those of the adapter */
    SBP_SAVE_MERGED   /* the model: W + factor x scale x B A, and what takes the place of its tensors */
} sbp_save_part;

typedef struct sbp_save_options {
    sbp_save_part part;
    double factor;       /* MERGED */
    bool trainable_only; /* parts of a source that are not trained are then zeros */
    bool without_base;   /* no tensor of which all is kept in blocks */
    bool own_dtype;      /* write every tensor in the type of its source; else in `dtype` */
    sbp_dtype dtype;
    int64_t max_shard_bytes; /* 0: one file */
    /* With several ranks all write, each its shards, of which there are at least as many as ranks; rank 0 the
     * index. They finish reading (executor.h), whatever came of it. */
    int32_t rank, ranks;  /* ranks 0: this process writes all */
    int32_t *shard_count; /* then: how many there are; shard i, from 0 on, is written by rank i % ranks */
    /* weights whose tensors that are no parameter's are written too, as they are; NULL */
    const char *carried;
    const sbp_key_value *metadata; /* NULL: {"format": "pt"}, which transformers wants */
    int32_t metadata_count;
    sbp_param_reader read; /* NULL: the buffers */
    void *read_user;
} sbp_save_options;

/* Writes parameters as safetensors, atomically (frontends/formats/weights/safetensors.h). */
sbp_status sbp_params_save(sbp_executor *executor, const sbp_plan *plan, const char *path,
                           const sbp_save_options *options, sbp_diag *diag) SBP_CHECKED;

/* "DIR/model-00002-of-00005.safetensors" of shard 1 of 5 of DIR/model.safetensors, which one alone is. */
const char *sbp_params_shard_path(sbp_arena *arena, const char *path, int32_t shard, int32_t count);

/* Collects the gradients of all trainable parameters as they are flushed and writes them as one safetensors
 * file. Between, they lie in a spool file beside `path`, so memory stays bounded. */
typedef struct sbp_gradient_dump sbp_gradient_dump;

/* Installs a flush hook in the executor, which makes every flush be skipped. dtype: F32 or F64. */
sbp_status sbp_gradient_dump_begin(sbp_executor *executor, const sbp_plan *plan, const char *path,
                                   sbp_dtype dtype, sbp_diag *diag, sbp_gradient_dump **out) SBP_CHECKED;
/* The gradient of a parameter in a buffer of its shape, of programs that keep gradients without consuming
 * them. Both are buffer numbers. */
sbp_gradient sbp_gradient_of(sbp_executor *executor, int32_t parameter, int32_t buffer);
/* Takes such a one. */
sbp_status sbp_gradient_dump_take(sbp_gradient_dump *dump, int32_t parameter, int32_t buffer,
                                  sbp_diag *diag) SBP_CHECKED;
/* After the entries have run: writes the file. A trainable parameter that was not flushed, or twice, is
 * SBP_INPUT. Removes hook and spool and frees the dump in any case. */
sbp_status sbp_gradient_dump_end(sbp_gradient_dump *dump, sbp_diag *diag) SBP_CHECKED;
/* Frees without writing. NULL is allowed. */
void sbp_gradient_dump_abort(sbp_gradient_dump *dump);

#endif
