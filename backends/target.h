/* target.h: the compile side of a backend: what the passes must know of it, and (GPU backends) its device
 * code. A target needs no device. One implementation per backend: backends/<name>/<name>_target.c.
 *
 * Threads: none of this keeps state. Errors: SBP_USAGE for an architecture or type that the backend does
 * not have.
 */
#ifndef SBP_BACKENDS_TARGET_H
#define SBP_BACKENDS_TARGET_H

#include "ir/program/program.h"
#include "ir/target/target_info.h"

typedef struct sbp_target {
    const char *name; /* "cpu" */
    /* arch: what --arch says, NULL when it was not given. */
    sbp_status (*describe)(const char *arch, sbp_diag *diag, sbp_target_info *out);
    /* Device code for a finished program: bytes in the arena, for the plan's section "kernels". NULL when the
     * backend needs none. */
    sbp_status (*compile)(sbp_arena *arena, sbp_diag *diag, const sbp_program *program, const void **data,
                          int64_t *bytes);
} sbp_target;

/* NULL when this build has no backend of that name. */
const sbp_target *sbp_target_find(const char *name);

#endif
