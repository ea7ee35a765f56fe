/* weights_internal.h: between weights_save.c and weights_adapter.c. */
#ifndef SBP_RUNTIME_RUN_WEIGHTS_INTERNAL_H
#define SBP_RUNTIME_RUN_WEIGHTS_INTERNAL_H

#include "runtime/run/weights.h"

/* sbp_params_save of all that a plan has. */
sbp_status sbp_params_save_plan(sbp_executor *executor, const sbp_plan *plan, const char *path,
                                const sbp_save_options *options, sbp_diag *diag) SBP_CHECKED;
/* Elements of a parameter that may be kept in two halves: of both, or of the high one alone. */
sbp_status sbp_params_read(sbp_executor *executor, const sbp_plan *plan, int32_t tensor, bool high_half,
                           int64_t first, int64_t count, sbp_dtype dtype, void *out,
                           sbp_diag *diag) SBP_CHECKED;

#endif
