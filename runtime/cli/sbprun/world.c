/* world.c: a run as several processes: all read and compute, rank 0 writes and reports. What they do is
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
#include "ir/base/json.h"
#include "ir/base/machine.h"
#include "runtime/cli/sbprun/interrupt.h"
#include "runtime/cli/sbprun/launcher.h"
#include "runtime/cli/sbprun/messages.h"
#include "runtime/cli/sbprun/starter.h"
#include "runtime/cli/sbprun/world.h"

/* The bits of numbers that ranks tell each other as doubles. */
#define EXACT_BITS (((uint64_t)1 << 53) - 1)

/* ---- joining and leaving ---------------------------------------------------------------------------- */

bool sbp_world_writes(const sbp_world *world) {
    return world->place.rank == 0;
}

/* value of each rank, [place.count], in world->slots. */
static sbp_status tell_all(sbp_world *world, double value) {
    memset(world->slots, 0, (size_t)world->place.count * sizeof *world->slots);
    world->slots[world->place.rank] = value;
    return sbp_ranks_all_reduce(world->ranks, world->slots, world->place.count, SBP_F64, world->diag);
}

/* How many processes use the cores that this one may use. */
static sbp_status count_sharing(sbp_world *world) {
    double own = (double)(sbp_machine_core_set() & EXACT_BITS);
    SBP_TRY(tell_all(world, own));
    world->sharing = 0;
    for (int32_t r = 0; r < world->place.count; r++)
        world->sharing += world->slots[r] == own;
    return SBP_OK;
}

void sbp_world_say(const sbp_world *world) {
    const sbp_ranks_info *w = &world->place;
    const char *tasks = getenv("SLURM_STEP_NUM_TASKS");
    if (!world->ranks && tasks && strtol(tasks, NULL, 10) > 1 && sbp_ranks_announced() == 0)
        sbp_note(world->diag,
                 "this is one of %s Slurm tasks, without MPI: it runs alone (srun --mpi=pmix starts ranks)",
                 tasks);
    if (!world->ranks)
        return;
    char here[40] = "all on this host";
    if (w->local_count < w->count)
        snprintf(here, sizeof here, "%d of them on this host", (int)w->local_count);
    if (sbp_is_launched())
        sbp_note(world->diag, "one of %d ranks over %s, %s: --ranks %d started them", (int)w->count,
                 w->transport, here, (int)w->count);
    else
        sbp_note(world->diag, "one of %d ranks over %s, %s: %s", (int)w->count, w->transport, here, w->why);
    if (w->node == 1 && w->local_count > 1)
        sbp_note(world->diag,
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
static double timeout_of(const sbp_world *world) {
    sbp_options *options;
    const unsigned phases = SBP_PHASE_RUN | SBP_PHASE_COMPILE;
    if (sbp_options_parse(world->arena, NULL, "sbprun", phases, world->argc, world->argv, &options) != SBP_OK)
        return SBP_WORLD_FIRST_TIMEOUT;
    return sbp_options_double(options, SBP_OPT_TIMEOUT);
}

sbp_status sbp_world_join(sbp_world *world) {
    world->place =
        (sbp_ranks_info){.count = 1, .local_count = 1, .transport = "none", .why = "started alone"};
    world->sharing = 1;
    if (sbp_ranks_announced() < 2)
        return SBP_OK;
    sbp_launched(sbp_ranks_announced_rank());
    sbp_messages_of_rank(sbp_ranks_announced_rank());
    world->timeout = timeout_of(world);
    if (!sbp_is_launched())
        sbp_starter_watch(world->timeout);
    limit_time(world->timeout);
    SBP_TRY(sbp_ranks_join(world->timeout, sbp_device_transport(), world->diag, &world->ranks));
    limit_time(0);
    sbp_ranks_info_of(world->ranks, &world->place);
    sbp_messages_of_rank(world->place.rank);
    world->slots = sbp_malloc(2 * (size_t)world->place.count * sizeof *world->slots);
    if (!world->slots)
        return sbp_fail(world->diag, SBP_MACHINE, "out of memory for the list of ranks");
    return count_sharing(world);
}

/* What failed here alone ends all: the others would wait. Most such errors are everybody's, and rank 0 says
 * them: that it ends the others comes as a signal. Where a rank waited in vain, others did too, and each says
 * for which. */
static void end_all(const sbp_world *world, sbp_status status, const char *leftover) {
    bool in_vain = sbp_ranks_has_failed(world->ranks);
    int tenths = in_vain                 ? (int)(SBP_IN_VAIN_SECONDS * 10)
                 : world->place.rank < 4 ? 5 * world->place.rank
                                         : 20;
    sbp_launched_ends(status, in_vain);
    if (in_vain)
        sbp_messages_release(true);
    for (int i = 0; i < tenths && (in_vain || !sbp_interrupted()); i++)
        nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
    sbp_messages_release(world->place.rank == 0 || !sbp_interrupted());
    if (leftover)
        unlink(leftover);
    sbp_starter_must_end();
    sbp_ranks_end_all(world->ranks, (int)status);
}

void sbp_world_prepare_to_leave(const sbp_world *world, sbp_status status, const char *leftover) {
    if (world->ranks && status != SBP_OK && status != world->agreed && status != world->signal)
        end_all(world, status, leftover);
    sbp_messages_release(true);
}

void sbp_world_leave(const sbp_world *world, sbp_status status) {
    if (status != SBP_OK)
        sbp_launched_ends(status, false);
    limit_time(world->ranks ? world->timeout : 0);
    sbp_ranks_leave(world->ranks);
    limit_time(0);
    sbp_launched_ends(status, false);
    free(world->slots);
    sbp_arena_destroy(world->arena);
}

/* ---- agreeing --------------------------------------------------------------------------------------- */

sbp_status sbp_world_agree(sbp_world *world, sbp_status status) {
    int32_t count = world->place.count, first = -1;
    double *slots = world->slots;
    if (!world->ranks) {
        world->signal = sbp_interrupt_status();
        return status;
    }
    if (world->agreed != SBP_OK) /* they go the same way out, some sooner */
        return world->agreed;
    memset(slots, 0, 2 * (size_t)count * sizeof *slots);
    slots[2 * world->place.rank] = status;
    slots[2 * world->place.rank + 1] = sbp_interrupt_status();
    sbp_status reduced = sbp_ranks_all_reduce(world->ranks, slots, 2 * count, SBP_F64, world->diag);
    if (reduced != SBP_OK)
        return status != SBP_OK ? status : reduced;
    for (int32_t r = count - 1; r >= 0; r--) {
        first = slots[2 * r] > 0 ? r : first;
        sbp_status signal = (sbp_status)slots[2 * r + 1];
        if (signal > world->signal)
            world->signal = signal;
    }
    if (first < 0)
        return SBP_OK;
    sbp_status common = (sbp_status)slots[2 * first];
    if (common == SBP_INTERRUPTED) /* nothing has failed */
        return SBP_INTERRUPTED;
    sbp_messages_release(first == world->place.rank);
    return world->agreed = common;
}

bool sbp_world_is_common(sbp_status status) {
    return status == SBP_OK || status == SBP_NOT_FINITE || status == SBP_INTERRUPTED;
}

sbp_status sbp_world_alone(sbp_world *world, sbp_status status) {
    sbp_status end = SBP_OK;
    if (world->executor)
        end = sbp_executor_finish_reading(world->executor, world->diag);
    return sbp_world_agree(world, status != SBP_OK ? status : end);
}

sbp_status sbp_world_share_text(const sbp_world *world, const char **text) {
    double length = sbp_world_writes(world) && *text ? (double)strlen(*text) : -1;
    if (!world->ranks)
        return SBP_OK;
    SBP_TRY(sbp_ranks_broadcast(world->ranks, &length, 1, SBP_F64, 0, world->diag));
    if (length < 0) {
        *text = NULL;
        return SBP_OK;
    }
    int64_t words = (int64_t)length / 8 + 1; /* the end too */
    char *copy = sbp_arena_alloc(world->arena, (size_t)words * 8);
    if (sbp_world_writes(world) && *text)
        memcpy(copy, *text, (size_t)length);
    SBP_TRY(sbp_ranks_broadcast(world->ranks, copy, words, SBP_F64, 0, world->diag));
    *text = copy;
    return SBP_OK;
}

sbp_status sbp_world_same(sbp_world *world, const char *what, uint64_t hash) {
    sbp_status status = SBP_OK;
    if (!world->ranks)
        return SBP_OK;
    SBP_TRY(tell_all(world, (double)(hash & EXACT_BITS)));
    for (int32_t r = 1; r < world->place.count && status == SBP_OK; r++)
        if (world->slots[r] != world->slots[0])
            status = sbp_fail(world->diag, SBP_INPUT,
                              "rank %d has %s than rank 0: all ranks must read the same", (int)r, what);
    return sbp_world_agree(world, status);
}

sbp_status sbp_world_largest(sbp_world *world, int64_t *value) {
    if (!world->ranks)
        return SBP_OK;
    SBP_TRY(tell_all(world, (double)*value));
    for (int32_t r = 0; r < world->place.count; r++)
        *value = (int64_t)world->slots[r] > *value ? (int64_t)world->slots[r] : *value;
    return SBP_OK;
}

/* ---- this machine ------------------------------------------------------------------------------------ */

int32_t sbp_world_threads(const sbp_world *world) {
    enum { LEAST_CAP = 16 };
    int64_t asked = sbp_options_int(world->options, SBP_OPT_THREADS);
    int64_t cores = sbp_machine_cores() / world->sharing, most;
    cores = cores > 0 ? cores : 1;
    most = cores * 4 < LEAST_CAP ? LEAST_CAP : cores * 4;
    return (int32_t)(asked <= 0 ? cores : asked < most ? asked : most);
}

void sbp_world_close_device(sbp_world *world) {
    sbp_executor_destroy(world->executor);
    if (world->profile && sbp_world_writes(world))
        sbp_profile_print(world->profile, stderr);
    sbp_profile_destroy(world->profile);
    world->executor = NULL;
    world->profile = NULL;
}

/* ---- how many --------------------------------------------------------------------------------------- */

/* That of the run which is to go on. */
static sbp_status inherit_count(const sbp_world *world, const char *out) {
    const sbp_json *root = NULL;
    const char *path = out ? sbp_file_join(world->arena, out, "run.json") : NULL;
    if (!path || world->ranks || !sbp_options_on(world->options, SBP_OPT_RESUME) ||
        sbp_options_given(world->options, SBP_OPT_RANKS) || !sbp_file_exists(path))
        return SBP_OK;
    SBP_TRY(sbp_json_read(world->arena, world->diag, path, 0, &root));
    const sbp_json *value = sbp_json_member(sbp_json_member(root, "options"), sbp_option_name(SBP_OPT_RANKS));
    return value ? sbp_options_inherit(world->options, world->diag, path, value) : SBP_OK;
}

sbp_status sbp_world_count_ranks(sbp_world *world, const char *out, int32_t *launch) {
    bool given = sbp_options_given(world->options, SBP_OPT_RANKS);
    *launch = 0;
    SBP_TRY(inherit_count(world, out));
    int64_t wanted = sbp_options_int(world->options, SBP_OPT_RANKS);
    if (sbp_ranks_announced() > 0 && given && wanted != world->place.count)
        return sbp_fail(
            world->diag, SBP_USAGE,
            "--ranks %lld, but this process was started as one of %d (%s): leave it out, or start "
            "as many",
            (long long)wanted, (int)world->place.count, world->place.why);
    if (world->ranks || wanted < 2)
        return SBP_OK;
    if (sbp_options_on(world->options, SBP_OPT_DRY_RUN)) { /* as if */
        world->place.count = world->place.local_count = world->sharing = (int32_t)wanted;
        return SBP_OK;
    }
    *launch = (int32_t)wanted;
    return SBP_OK;
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

sbp_status sbp_world_check_shared(sbp_world *world, const char *out, bool must, bool *shared) {
    int64_t missing;
    const char *path = NULL, *text = NULL;
    sbp_status status = SBP_OK;
    *shared = false;
    if (!world->ranks || !out)
        return SBP_OK;
    if (sbp_world_writes(world)) { /* the name of what goes when this process is killed */
        path = sbp_arena_printf(world->arena, "%s/ranks.%ld.0.tmp", out, (long)getpid());
        text = sbp_arena_printf(world->arena, "%ld %.9f", (long)getpid(), sbp_seconds());
        status = sbp_file_write(world->diag, path, text, strlen(text));
    }
    SBP_TRY(sbp_world_agree(world, status));
    SBP_TRY(sbp_world_share_text(world, &path));
    SBP_TRY(sbp_world_share_text(world, &text));
    missing = !path || !text || !appears(path, text);
    if (missing && must)
        status =
            sbp_fail(world->diag, SBP_IO,
                     "what rank 0 wrote in '%s' is not there for this rank: --resume and --best need the "
                     "same directory for all, on a file system that their hosts share",
                     out);
    status = sbp_world_agree(world, status);
    if (status == SBP_OK)
        status = sbp_world_largest(world, &missing);
    *shared = missing == 0;
    if (sbp_world_writes(world) && path)
        unlink(path);
    return status;
}
