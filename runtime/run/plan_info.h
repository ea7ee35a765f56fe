/* plan_info.h: what the section "meta" of a plan says (ir/program/plan_file.h), and how options of a run go
 * together with it.
 *
 * meta: {"sbpc": version, "options": {every option of sbpc compile, resolved, by name}, "model": {"name",
 * "model_type", "vocab_size", "max_positions", "eos_id", "eos_ids", "bos_id", "pad_id", "weights": path,
 * "tokenizer": path, "config": text, "adapter": text, "adapter_weights": path, "special_tokens":
 * {"eos_token": text ..}}, "objective", "objective_of_pairs": what preferences are for, "loss_type",
 * "counted": column, "backend", "dtype", "runtime_bytes": the process beyond the arenas with "threads"
 * threads, "thread_bytes" for each more or less of them, "defaults": {option of the run: value}}. What is
 * missing counts as null.
 */
#ifndef SBP_RUNTIME_RUN_PLAN_INFO_H
#define SBP_RUNTIME_RUN_PLAN_INFO_H

#include "runtime/cli/options/options.h"
#include "runtime/run/plan.h"

typedef struct sbp_plan_info {
    const char *sbpc;                                /* version */
    const char *backend;                             /* "cpu" */
    const char *dtype;                               /* "fp32" */
    const char *objective, *objective_of_pairs;      /* names; NULL: unknown */
    const char *name, *weights, *tokenizer, *config; /* NULL: none; config: text of config.json */
    const sbp_json *eos_ids;                         /* array of the ids that end texts, or NULL */
    const sbp_json *special_tokens;                  /* of the tokenizer: object of texts, or NULL */
    const char *adapter;         /* text of adapter_config.json of what is trained, NULL: no adapter */
    const char *adapter_weights; /* directory of the adapter that it goes on with, NULL: none */
    bool merge;                  /* not of the plan: --merge */
    const char *merge_dtype;     /* likewise: --merge-dtype, NULL: what the plan says */
    double adapter_factor;       /* likewise: the scalar by which adapters are scaled */
    const char *user_eos;        /* not of the plan: the token that ends texts, NULL: the tokenizer's */
    int32_t user_eos_id;
    const char *user_template; /* likewise: the chat template that the run was given, NULL: none */
    int64_t vocab_size;        /* 0: unknown */
    int64_t runtime_bytes, threads, thread_bytes;
    const char
        *counted; /* column that is 0 in rows of which the objective reads nothing; NULL: it reads all */
    bool tf32, deterministic;
    const sbp_json *options, *defaults; /* objects or NULL */
    int64_t most_parts;                 /* --accumulate; 0: any */
    int64_t ranks;                      /* processes that run it together */
    int64_t memory_bytes;               /* of --memory, a rank's part; 0: no limit */
    double max_grad_norm;               /* --clip; infinity: none */
} sbp_plan_info;

/* Everything lives as long as the plan. */
sbp_status sbp_plan_info_read(sbp_diag *diag, const sbp_plan *plan, sbp_plan_info *out) SBP_CHECKED;

/* What a plan has for an option of sbpc compile, resolved: the schedule knows what "auto" became, meta what
 * was not given. NULL: nothing. Below a guard. */
const sbp_json *sbp_plan_value(const sbp_json *meta, const sbp_option *option, sbp_arena *arena);

/* SBP_USAGE for an option of sbpc compile that was given although the plan is there, naming the plan's value.
 * From a config file, which may serve both programs, a value equal to the plan's is fine. Below a guard. */
sbp_status sbp_plan_check_options(sbp_diag *diag, const sbp_plan *plan, const sbp_options *options,
                                  sbp_arena *arena) SBP_CHECKED;

/* The plan's defaults for options of the run that were not given. SBP_USAGE for a number of objectives that
 * was given though the plan's objective does not have it. Below a guard. */
sbp_status sbp_plan_set_defaults(sbp_diag *diag, const sbp_plan_info *info, sbp_options *options,
                                 sbp_arena *arena) SBP_CHECKED;

#endif
