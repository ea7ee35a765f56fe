/* starter.h: what started this rank, mpirun or its daemon on this host, and that it ends.
 *
 * Ranks that waited for another in vain end, and have MPI end all. But mpirun then waits for its daemons on
 * other hosts, without a limit: where such a host hangs, or its network, it would stay for ever. So each rank
 * has a process beside it, small as it begins before anything else, that ends what started the rank when that
 * did not do so itself. Not where the launcher watches (launcher.h), nor below what is not Open MPI's or
 * MPICH's. */
#ifndef SBP_RUNTIME_CLI_SBPRUN_STARTER_H
#define SBP_RUNTIME_CLI_SBPRUN_STARTER_H

/* Begins the process beside this one, before there are threads. timeout: for how long ranks wait for each
 * other, in seconds, 0: for ever. */
void sbp_starter_watch(double timeout);
/* This rank is about to end all: what started it has as long as ranks wait, but 5 to 10 seconds. Safe in a
 * signal's handler. */
void sbp_starter_must_end(void);

#endif
