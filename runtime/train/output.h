/* output.h: the directory of results: a model that transformers loads, with the files that belong to it.
 *
 * Weights are written in fp32 (fp64 for fp64 plans; of a merged model, as --merge-dtype says) under the
 * source's names, in shards of at most 5 GB; config.json with that dtype; the chat template, if the user gave
 * one; tokenizer files and generation_config.json are copied from the source directory where there is one,
 * else the plan's tokenizer is written. Every file is written atomically.
 */
#ifndef SBP_RUNTIME_TRAIN_OUTPUT_H
#define SBP_RUNTIME_TRAIN_OUTPUT_H

#include "runtime/run/plan_info.h"
#include "runtime/run/weights.h"

/* What the plan trains: a model, or an adapter as PEFT has it; with info->merge the model with the adapter in
 * it. checkpoint: without the base, which is still where it came from, and nothing merged, with this text in
 * the metadata of its weights ("checkpoint"); NULL: a result. Needs no guard. */
sbp_status sbp_output_save_model(sbp_diag *diag, sbp_executor *executor, const sbp_plan *plan,
                                 const sbp_plan_info *info, const char *directory,
                                 const char *checkpoint) SBP_CHECKED;

/* What a rank writes of the model of a checkpoint that all write together (sbp_save_options): rank 0 all but
 * the others' shards; of an adapter all. */
typedef struct sbp_output_part {
    int32_t rank, ranks;
    const char *checkpoint; /* as above */
    int32_t shard_count;    /* out: of model.safetensors; 0: it is an adapter's */
} sbp_output_part;

sbp_status sbp_output_save_part(sbp_diag *diag, sbp_executor *executor, const sbp_plan *plan,
                                const sbp_plan_info *info, const char *directory,
                                sbp_output_part *part) SBP_CHECKED;
/* The type in which gradients are written, and weights, unless all of them are bf16. */
sbp_dtype sbp_output_dtype(const sbp_plan_info *info);

#endif
