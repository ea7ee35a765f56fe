/* plan_info.h: what a run must know of its plan beside the program: what the plan says of itself (meta,
 * ir/program/plan_meta.def), and how options of a run go together with it. */
#ifndef SBP_RUNTIME_RUN_PLAN_INFO_H
#define SBP_RUNTIME_RUN_PLAN_INFO_H

#include "ir/program/plan_meta.h"
#include "runtime/options/options.h"
#include "runtime/run/plan.h"

typedef struct sbp_plan_info {
    sbp_plan_meta meta;
    bool tf32, deterministic; /* options of sbpc */
    double max_grad_norm;     /* --clip; infinity: none */
    int64_t most_parts;       /* --accumulate; 0: any */
    int64_t ranks;            /* processes that run it together */
    int64_t memory_bytes;     /* of --memory, a rank's part; 0: no limit */
    /* Not of the plan, but of this start: */
    bool merge;              /* --merge */
    const char *merge_dtype; /* --merge-dtype; NULL: what the plan says */
    double adapter_factor;   /* the scalar by which adapters are scaled */
    const char *user_eos;    /* the token that ends texts; NULL: the tokenizer's */
    int32_t user_eos_id;
    const char *user_template; /* the chat template that the run was given; NULL: none */
    const char *carried;       /* meta.carried, or the weights that the run was given in its place */
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
