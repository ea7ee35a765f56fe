/* launcher.h: `sbprun --ranks N`: N processes of the same command line on this host, started by mpirun, and
 * one that watches them.
 *
 * Each rank keeps a connection to the launcher (an abstract socket, named in the environment), tells its
 * number when it comes and its exit status before it goes; one whose connection ends without is gone. The
 * launcher passes SIGINT and SIGTERM on to the ranks, not to mpirun, which would end them; a third ends
 * everything. However the launcher ends, mpirun ends, and the ranks with it.
 *
 * Threads: one at a time. */
#ifndef SBP_RUNTIME_CLI_SBPRUN_LAUNCHER_H
#define SBP_RUNTIME_CLI_SBPRUN_LAUNCHER_H

#include "ir/base/base.h"

/* For so long a rank that waited in vain lets others say the same, before it ends all. */
#define SBP_IN_VAIN_SECONDS 1.0

/* Runs argv, argc of them, as `count` ranks, of which the first has standard input if wished, and waits for
 * all. The status of the first that failed. */
sbp_status sbp_launch(sbp_diag *diag, int32_t count, bool input, int argc, char *const *argv) SBP_CHECKED;

/* Whether ranks can be started here: this build has the transport of MPI, and mpirun (its path, in the arena)
 * is where commands are. why: what wants to, first in the message. */
sbp_status sbp_launch_check(sbp_arena *arena, sbp_diag *diag, const char *why,
                            const char **mpirun) SBP_CHECKED;

/* In a rank: tells the launcher, if there is one, that it is here. */
void sbp_launched(int32_t rank);
/* Whether there is one. */
bool sbp_is_launched(void);
/* Its exit status: the last that it says. in_vain: it ends because it waited for another rank. */
void sbp_launched_ends(sbp_status status, bool in_vain);

#endif
