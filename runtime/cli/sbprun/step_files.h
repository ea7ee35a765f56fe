/* step_files.h: folders of a run directory that have a file for some of its steps: step-N.jsonl, after N
 * steps. */
#ifndef SBP_RUNTIME_CLI_SBPRUN_STEP_FILES_H
#define SBP_RUNTIME_CLI_SBPRUN_STEP_FILES_H

#include "ir/base/base.h"

/* The path of one, in the arena. */
const char *sbp_step_file(sbp_arena *arena, const char *out, const char *folder, int64_t step);
/* The step of a name in such a folder; -1: it is of no such file. */
int64_t sbp_step_file_step(const char *name);
/* Makes the folder. Files of steps from `from` on go, and in any case temporary ones, which a process left
 * that was killed; what has other names stays. SBP_IO. */
sbp_status sbp_step_files_begin(sbp_diag *diag, const char *folder, int64_t from) SBP_CHECKED;

#endif
