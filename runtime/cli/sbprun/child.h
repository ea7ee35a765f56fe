/* child.h: child processes: sbpc for `sbprun MODEL`, mpirun for `--ranks`. */
#ifndef SBP_RUNTIME_CLI_SBPRUN_CHILD_H
#define SBP_RUNTIME_CLI_SBPRUN_CHILD_H

#include <signal.h>

#include "ir/base/base.h"

/* Path of the program of that name beside this one, in the arena; SBP_MACHINE when it is not there. Below a
 * guard. */
sbp_status sbp_child_find(sbp_arena *arena, sbp_diag *diag, const char *name, const char **out) SBP_CHECKED;
/* A command line as one would type it. Below a guard. */
void sbp_child_print(sbp_text *out, const char *const *args);
/* Runs args[0] with args (NULL at the end), its standard output going to standard error, and waits. The
 * result is its exit status as an sbp_status. SIGINT and SIGTERM that this process gets end the child too,
 * and are the result; the child ends, however this process does. kept: a descriptor that stays open in the
 * child, with the locks on it; -1: none. *pid: what the child had, for what it may have left. */
sbp_status sbp_child_run(sbp_diag *diag, const char *const *args, int kept, long *pid) SBP_CHECKED;

/* Runs `sbpc compile` so, with args that write `plan`, beside which nothing is left where that fails. Below
 * a guard. */
sbp_status sbp_child_compile(sbp_arena *arena, sbp_diag *diag, const char *const *args, const char *plan,
                             int kept) SBP_CHECKED;
/* An empty file of a new name that ends in `end`, where temporary files are; the path, in the arena. A name
 * that ends in SBP_CHILD_PLAN is one of sbp_file_is_temporary. Below a guard. */
#define SBP_CHILD_PLAN ".0.0.tmp"
sbp_status sbp_child_new_file(sbp_arena *arena, sbp_diag *diag, const char *end, char **out) SBP_CHECKED;

/* Starts one in a process group of its own, with this mask of signals and only if wished with standard input,
 * and does not wait. SIGINT, SIGTERM and SIGCHLD are blocked meanwhile. It ends, however this process does.
 */
sbp_status sbp_child_start(sbp_diag *diag, const char *const *args, bool input, const sigset_t *mask,
                           long *pid) SBP_CHECKED;
/* Whether it has: *status as a shell has it, 128 + number when a signal ended it. */
bool sbp_child_has_ended(long pid, int *status);

#endif
