/* run_ranks.c: a run as several processes: all read and compute, rank 0 writes and reports. What they do is
 * the same but for that; where one of them may fail alone, they agree before they go on, so that none waits
 * for one that will not come. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "backends/devices.h"
#include "backends/ranks/ranks.h"
#include "ir/base/machine.h"
#include "runtime/cli/sbprun/interrupt.h"
#include "runtime/cli/sbprun/launcher.h"
#include "runtime/cli/sbprun/messages.h"
#include "runtime/cli/sbprun/run.h"
#include "runtime/cli/sbprun/starter.h"

/* Of numbers that ranks tell each other as doubles. */
#define EXACT_BITS (((uint64_t)1 << 53) - 1)

/* ---- joining and leaving ---------------------------------------------------------------------------- */

bool sbp_run_writes(const sbp_run *run) {
    return run->world.rank == 0;
}

/* value of each rank, [world.count], in run->slots. */
static sbp_status tell_all(sbp_run *run, double value) {
    memset(run->slots, 0, (size_t)run->world.count * sizeof *run->slots);
    run->slots[run->world.rank] = value;
    return sbp_ranks_all_reduce(run->ranks, run->slots, run->world.count, SBP_F64, run->diag);
}

/* How many processes use the cores that this one may use. */
static sbp_status count_sharing(sbp_run *run) {
    double own = (double)(sbp_machine_core_set() & EXACT_BITS);
    SBP_TRY(tell_all(run, own));
    run->sharing = 0;
    for (int32_t r = 0; r < run->world.count; r++)
        run->sharing += run->slots[r] == own;
    return SBP_OK;
}

void sbp_run_say_world(const sbp_run *run) {
    const sbp_ranks_info *w = &run->world;
    const char *tasks = getenv("SLURM_STEP_NUM_TASKS");
    if (!run->ranks && tasks && strtol(tasks, NULL, 10) > 1 && sbp_ranks_announced() == 0)
        sbp_note(run->diag,
                 "this is one of %s Slurm tasks, without MPI: it runs alone (srun --mpi=pmix starts ranks)",
                 tasks);
    if (!run->ranks)
        return;
    char here[40] = "all on this host";
    if (w->local_count < w->count)
        snprintf(here, sizeof here, "%d of them on this host", (int)w->local_count);
    if (sbp_is_launched())
        sbp_note(run->diag, "one of %d ranks over %s, %s: --ranks %d started them", (int)w->count,
                 w->transport, here, (int)w->count);
    else
        sbp_note(run->diag, "one of %d ranks over %s, %s: %s", (int)w->count, w->transport, here, w->why);
    if (w->node == 1 && w->local_count > 1)
        sbp_note(run->diag,
                 "not all hosts have %d consecutive ranks (mpirun --map-by slot): sums are not made within a "
                 "host before they go to others",
                 (int)w->local_count);
}

/* MPI begins and ends without a limit of time: a rank that does not come then is the launcher's to name. */
static void give_up(int number) {
    static const char text[] =
        "sbprun: error: this rank waits for others that do not come, or do not leave: they "
        "hang, are gone or take longer than --timeout\n";
    (void)number;
    (void)!write(STDERR_FILENO, text, sizeof text - 1);
    sbp_launched_ends(SBP_MACHINE, true);
    sbp_starter_must_end();
    nanosleep(&(struct timespec){.tv_sec = (time_t)SBP_IN_VAIN_SECONDS}, NULL);
    kill(getpid(), SIGKILL);
}

/* seconds 0: no limit. */
static void limit_time(double seconds) {
    const struct sigaction action = {.sa_handler = give_up};
    sigaction(SIGALRM, &action, NULL);
    alarm(seconds < 1e9 ? (unsigned)ceil(seconds) : 0);
}

/* --timeout, before the options are read as such and what is wrong with them is said. */
static double timeout_of(const sbp_run *run) {
    sbp_options *options;
    const unsigned phases = SBP_PHASE_RUN | SBP_PHASE_COMPILE;
    if (sbp_options_parse(run->arena, NULL, "sbprun", phases, run->argc, run->argv, &options) != SBP_OK)
        return SBP_RUN_FIRST_TIMEOUT;
    return sbp_options_double(options, SBP_OPT_TIMEOUT);
}

sbp_status sbp_run_join(sbp_run *run) {
    run->world = (sbp_ranks_info){.count = 1, .local_count = 1, .transport = "none", .why = "started alone"};
    run->sharing = 1;
    if (sbp_ranks_announced() < 2)
        return SBP_OK;
    sbp_launched(sbp_ranks_announced_rank());
    sbp_messages_of_rank(sbp_ranks_announced_rank());
    run->timeout = timeout_of(run);
    if (!sbp_is_launched())
        sbp_starter_watch(run->timeout);
    limit_time(run->timeout);
    SBP_TRY(sbp_ranks_join(run->timeout, sbp_device_transport(), run->diag, &run->ranks));
    limit_time(0);
    sbp_ranks_info_of(run->ranks, &run->world);
    sbp_messages_of_rank(run->world.rank);
    run->slots = sbp_malloc(2 * (size_t)run->world.count * sizeof *run->slots);
    if (!run->slots)
        return sbp_fail(run->diag, SBP_MACHINE, "out of memory");
    return count_sharing(run);
}

/* What failed here alone ends all: the others would wait. Most such errors are everybody's, and rank 0 says
 * them: that it ends the others comes as a signal. Where a rank waited in vain, others did too, and each says
 * for which. */
static void end_all(sbp_run *run, sbp_status status) {
    bool in_vain = sbp_ranks_has_failed(run->ranks);
    int tenths = in_vain ? (int)(SBP_IN_VAIN_SECONDS * 10) : run->world.rank < 4 ? 5 * run->world.rank : 20;
    sbp_launched_ends(status, in_vain);
    if (in_vain)
        sbp_messages_release(true);
    for (int i = 0; i < tenths && (in_vain || !sbp_interrupted()); i++)
        nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
    sbp_messages_release(run->world.rank == 0 || !sbp_interrupted());
    if (run->temporary_plan)
        unlink(run->temporary_plan);
    sbp_starter_must_end();
    sbp_ranks_end_all(run->ranks, (int)status);
}

void sbp_run_prepare_to_leave(sbp_run *run, sbp_status status) {
    if (run->ranks && status != SBP_OK && status != run->agreed && status != run->signal)
        end_all(run, status);
    sbp_messages_release(true);
}

void sbp_run_leave(sbp_run *run, sbp_status status) {
    if (status != SBP_OK)
        sbp_launched_ends(status, false);
    limit_time(run->ranks ? run->timeout : 0);
    sbp_ranks_leave(run->ranks);
    limit_time(0);
    sbp_launched_ends(status, false);
    free(run->slots);
}

/* ---- agreeing --------------------------------------------------------------------------------------- */

sbp_status sbp_run_agree(sbp_run *run, sbp_status status) {
    int32_t count = run->world.count, first = -1;
    double *slots = run->slots;
    if (!run->ranks) {
        run->signal = sbp_interrupt_status();
        return status;
    }
    if (run->agreed != SBP_OK) /* they go the same way out, some sooner */
        return run->agreed;
    memset(slots, 0, 2 * (size_t)count * sizeof *slots);
    slots[2 * run->world.rank] = status;
    slots[2 * run->world.rank + 1] = sbp_interrupt_status();
    sbp_status world = sbp_ranks_all_reduce(run->ranks, slots, 2 * count, SBP_F64, run->diag);
    if (world != SBP_OK)
        return status != SBP_OK ? status : world;
    for (int32_t r = count - 1; r >= 0; r--) {
        first = slots[2 * r] > 0 ? r : first;
        if (slots[2 * r + 1] > run->signal)
            run->signal = (sbp_status)slots[2 * r + 1];
    }
    if (first < 0)
        return SBP_OK;
    if (slots[2 * first] == SBP_INTERRUPTED) /* nothing has failed */
        return SBP_INTERRUPTED;
    sbp_messages_release(first == run->world.rank);
    return run->agreed = (sbp_status)slots[2 * first];
}

bool sbp_run_is_common(sbp_status status) {
    return status == SBP_OK || status == SBP_NOT_FINITE || status == SBP_INTERRUPTED;
}

sbp_status sbp_run_alone(sbp_run *run, sbp_status (*act)(sbp_run *run)) {
    sbp_status status = SBP_OK, end = SBP_OK;
    if (sbp_run_writes(run))
        status = act(run);
    if (run->executor)
        end = sbp_executor_finish_reading(run->executor, run->diag);
    return sbp_run_agree(run, status != SBP_OK ? status : end);
}

sbp_status sbp_run_share_text(sbp_run *run, const char **text) {
    double length = sbp_run_writes(run) && *text ? (double)strlen(*text) : -1;
    if (!run->ranks)
        return SBP_OK;
    SBP_TRY(sbp_ranks_broadcast(run->ranks, &length, 1, SBP_F64, 0, run->diag));
    if (length < 0) {
        *text = NULL;
        return SBP_OK;
    }
    int64_t words = (int64_t)length / 8 + 1; /* the end too */
    char *copy = sbp_arena_alloc(run->arena, (size_t)words * 8);
    if (sbp_run_writes(run))
        memcpy(copy, *text, (size_t)length);
    SBP_TRY(sbp_ranks_broadcast(run->ranks, copy, words, SBP_F64, 0, run->diag));
    *text = copy;
    return SBP_OK;
}

sbp_status sbp_run_same(sbp_run *run, const char *what, uint64_t hash) {
    sbp_status status = SBP_OK;
    if (!run->ranks)
        return SBP_OK;
    SBP_TRY(tell_all(run, (double)(hash & EXACT_BITS)));
    for (int32_t r = 1; r < run->world.count && status == SBP_OK; r++)
        if (run->slots[r] != run->slots[0])
            status = sbp_fail(run->diag, SBP_INPUT,
                              "rank %d has %s than rank 0: all ranks must read the same", (int)r, what);
    return sbp_run_agree(run, status);
}

sbp_status sbp_run_largest(sbp_run *run, int64_t *value) {
    if (!run->ranks)
        return SBP_OK;
    SBP_TRY(tell_all(run, (double)*value));
    for (int32_t r = 0; r < run->world.count; r++)
        *value = (int64_t)run->slots[r] > *value ? (int64_t)run->slots[r] : *value;
    return SBP_OK;
}

/* ---- how many --------------------------------------------------------------------------------------- */

/* That of the run which is to go on. */
static sbp_status inherit_count(sbp_run *run) {
    const sbp_json *root = NULL;
    const char *path = run->out ? sbp_file_join(run->arena, run->out, "run.json") : NULL;
    if (!path || run->ranks || !sbp_options_on(run->options, SBP_OPT_RESUME) ||
        sbp_options_given(run->options, SBP_OPT_RANKS) || !sbp_file_exists(path))
        return SBP_OK;
    SBP_TRY(sbp_json_read(run->arena, run->diag, path, 0, &root));
    const sbp_json *value = sbp_json_member(sbp_json_member(root, "options"), "ranks");
    return value ? sbp_options_inherit(run->options, run->diag, path, value) : SBP_OK;
}

sbp_status sbp_run_count_ranks(sbp_run *run, int32_t *launch) {
    bool given = sbp_options_given(run->options, SBP_OPT_RANKS);
    *launch = 0;
    SBP_TRY(inherit_count(run));
    int64_t wanted = sbp_options_int(run->options, SBP_OPT_RANKS);
    if (sbp_ranks_announced() > 0 && given && wanted != run->world.count)
        return sbp_fail(
            run->diag, SBP_USAGE,
            "--ranks %lld, but this process was started as one of %d (%s): leave it out, or start "
            "as many",
            (long long)wanted, (int)run->world.count, run->world.why);
    if (run->ranks || wanted < 2)
        return SBP_OK;
    if (sbp_options_on(run->options, SBP_OPT_DRY_RUN)) { /* as if */
        run->world.count = run->world.local_count = run->sharing = (int32_t)wanted;
        return SBP_OK;
    }
    *launch = (int32_t)wanted;
    return SBP_OK;
}

sbp_status sbp_run_check_count(const sbp_run *run, int32_t count) {
    int64_t planned = run->info.ranks > 1 ? run->info.ranks : 1;
    const char *of = run->model ? run->model : run->plan_path;
    if (planned == count)
        return SBP_OK;
    if (count == 1)
        return sbp_fail(
            run->diag, SBP_USAGE,
            "'%s' was compiled for %lld ranks, this is one: start it with --ranks %lld (on this host) "
            "or mpirun -n %lld, or compile it with --ranks 1",
            of, (long long)planned, (long long)planned, (long long)planned);
    return sbp_fail(run->diag, SBP_USAGE,
                    "'%s' was compiled for %lld rank%s, this run has %d: compile it with --ranks %d", of,
                    (long long)planned, planned == 1 ? "" : "s", (int)count, (int)count);
}

/* ---- files that all must see ------------------------------------------------------------------------ */

static int64_t look(const char *path, char *out, size_t size) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? -1 : read(fd, out, size - 1);
    if (fd >= 0)
        close(fd);
    out[got > 0 ? got : 0] = '\0';
    return got;
}

/* A network's file system may take a while to show what another host wrote. */
static bool appears(const char *path, const char *text) {
    char found[80];
    for (int i = 0; i < 100; i++) {
        if (look(path, found, sizeof found) > 0 && strcmp(found, text) == 0)
            return true;
        nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
    }
    return false;
}

sbp_status sbp_run_check_shared(sbp_run *run, bool must) {
    int64_t missing;
    const char *path = NULL, *text = NULL;
    sbp_status status = SBP_OK;
    if (!run->ranks || !run->out)
        return SBP_OK;
    if (sbp_run_writes(run)) { /* the name of what goes when this process is killed */
        path = sbp_arena_printf(run->arena, "%s/ranks.%ld.0.tmp", run->out, (long)getpid());
        text = sbp_arena_printf(run->arena, "%ld %.9f", (long)getpid(), sbp_seconds());
        status = sbp_file_write(run->diag, path, text, strlen(text));
    }
    SBP_TRY(sbp_run_agree(run, status));
    SBP_TRY(sbp_run_share_text(run, &path));
    SBP_TRY(sbp_run_share_text(run, &text));
    missing = !appears(path, text);
    if (missing && must)
        status = sbp_fail(run->diag, SBP_IO,
                          "what rank 0 wrote in '%s' is not there for this rank: to go on, all need the same "
                          "directory, on a file system that their hosts share",
                          run->out);
    status = sbp_run_agree(run, status);
    if (status == SBP_OK)
        status = sbp_run_largest(run, &missing);
    run->shares_out = missing == 0;
    if (sbp_run_writes(run))
        unlink(path);
    return status;
}
