/* ranks_testing.h: what tests of sbprun with several ranks share. $M is mpirun, with more ranks than cores,
 * that does not wait for a second before it ends ranks. */
#ifndef SBP_TESTS_CLI_RANKS_TESTING_H
#define SBP_TESTS_CLI_RANKS_TESTING_H

#include <sys/stat.h>

#include "tests/cli/cli_testing.h"

#include "ir/base/machine.h"

/* Whether this build and this machine have MPI; says what is skipped, unless that is NULL. */
static inline bool cli_has_ranks(io_fixture *f, const char *what) {
#ifdef SBP_MPIRUN
    setenv("ASAN_OPTIONS", "detect_leaks=0", 1); /* of MPI, in plugins that are gone when they are told */
    /* what mpirun removes at its end is nobody else's: of two that share a folder, one may begin while the
     * other removes it */
    const char *own = io_path(f, ".mpi");
    (void)mkdir(own, 0700);
    setenv("OMPI_MCA_orte_tmpdir_base", own, 1);
    setenv("M",
           "env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 " SBP_MPIRUN
           " --oversubscribe --bind-to none --mca odls_base_sigkill_timeout 0",
           1);
    if (access(SBP_MPIRUN, X_OK) == 0)
        return true;
#endif
    (void)f;
    if (what)
        print_message("skipped: %s: MPI is not installed\n", what);
    return false;
}

static inline int threads_of_each(int ranks) {
    int cores = (int)sbp_machine_cores();
    return cores / ranks > 0 ? cores / ranks : 1;
}

#endif
