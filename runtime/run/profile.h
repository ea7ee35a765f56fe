/* profile.h: where the time of a run goes: seconds, operations and bytes of every command, added up by what
 * it is (matmuls by their sizes, row kernels by their names). SBP_PROFILE=1 in the environment makes sbprun
 * print a table of them on standard error at the end.
 *
 * An executor with a profile (sbp_executor_set_profile) runs each command alone and waits for it: copies of
 * offloading no longer overlap with computation, and each wait costs a device other than the CPU its latency.
 * Compare shares, not totals.
 *
 * Threads: one at a time. */
#ifndef SBP_RUNTIME_RUN_PROFILE_H
#define SBP_RUNTIME_RUN_PROFILE_H

#include "backends/device.h"

#include <stdio.h>

typedef struct sbp_profile sbp_profile;

/* NULL when memory runs out. */
sbp_profile *sbp_profile_create(void);
/* NULL is allowed. */
void sbp_profile_destroy(sbp_profile *profile);
/* Runs a command, no fence, on a device, to its end. What the device reports, or SBP_MACHINE when memory runs
 * out. */
sbp_status sbp_profile_run(sbp_profile *profile, const sbp_device_class *class, sbp_device *device,
                           const sbp_program *program, const sbp_dispatch *dispatch,
                           sbp_diag *diag) SBP_CHECKED;
/* The table, longest first; nothing when no command ran. */
void sbp_profile_print(sbp_profile *profile, FILE *out);

#endif
