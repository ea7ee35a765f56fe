/* shadow.h: a second set of the trained parameters, in host memory, that changes places with the one on the
 * device: the weights of a reference, while a plan has room for one set.
 *
 * Memory: as many bytes as the trained parameters have, and 1 MiB. Threads: one at a time.
 */
#ifndef SBP_RUNTIME_TRAIN_SHADOW_H
#define SBP_RUNTIME_TRAIN_SHADOW_H

#include "runtime/run/executor.h"
#include "runtime/run/plan.h"

typedef struct sbp_shadow sbp_shadow;

/* A copy of what is on the device. */
sbp_status sbp_shadow_create(sbp_executor *executor, const sbp_plan *plan, sbp_diag *diag,
                             sbp_shadow **out) SBP_CHECKED;
/* Exchanges the two sets; twice is as if nothing had been. After an error the device has parts of both. */
sbp_status sbp_shadow_exchange(sbp_shadow *shadow, sbp_diag *diag) SBP_CHECKED;
int64_t sbp_shadow_bytes(const sbp_shadow *shadow);
/* NULL is allowed. */
void sbp_shadow_destroy(sbp_shadow *shadow);

#endif
