/* launcher.c: starts ranks, watches them, passes signals on. */
#include "runtime/cli/sbprun/launcher.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "backends/ranks/ranks.h"
#include "ir/base/args.h"
#include "ir/base/machine.h"
#include "runtime/cli/sbprun/child.h"

#define SOCKET_VARIABLE "SBP_LAUNCHER"
/* For what ends by itself: ranks after one of them, mpirun after all. */
#define GRACE_SECONDS 10.0

/* What a rank says. */
typedef struct message {
    int32_t kind, value;
    double seconds; /* when, by the clock of this host */
} message;

enum { HERE = 1, ENDS = 2, ENDS_IN_VAIN = 3 }; /* value: rank, exit status */

/* ---- a rank ----------------------------------------------------------------------------------------- */

static int connection = -1;

static socklen_t address_of(const char *name, struct sockaddr_un *out) {
    size_t length = strlen(name);
    *out = (struct sockaddr_un){.sun_family = AF_UNIX};
    length = length < sizeof out->sun_path - 1 ? length : sizeof out->sun_path - 1;
    memcpy(out->sun_path + 1, name, length); /* abstract: it begins with a zero and is gone with its owner */
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length);
}

static void say(int32_t kind, int32_t value) {
    const message m = {kind, value, sbp_seconds()};
    if (connection >= 0)
        (void)!send(connection, &m, sizeof m, MSG_NOSIGNAL);
}

void sbp_launched(int32_t rank) {
    const char *name = getenv(SOCKET_VARIABLE);
    struct sockaddr_un address;
    if (!name || connection >= 0)
        return;
    socklen_t length = address_of(name, &address);
    connection = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (connection >= 0 && connect(connection, (struct sockaddr *)&address, length) != 0) {
        close(connection);
        connection = -1;
    }
    say(HERE, rank);
}

bool sbp_is_launched(void) {
    return connection >= 0;
}

void sbp_launched_ends(sbp_status status, bool in_vain) {
    say(in_vain ? ENDS_IN_VAIN : ENDS, (int32_t)status);
}

/* ---- the launcher ----------------------------------------------------------------------------------- */

typedef struct rank_process {
    int fd; /* -1: it is gone */
    long pid;
    int32_t rank; /* -1: not said yet */
    int signals;  /* that it was sent */
    double ended; /* when it told its status; 0: not yet */
} rank_process;

typedef struct launcher {
    sbp_diag *diag;
    int32_t count;
    int listener;
    long mpirun; /* 0: it has ended */
    int mpirun_status;
    rank_process *ranks; /* [count] */
    int32_t come, open;
    int events; /* epoll: what comes, in the order in which it came, so that the rank that went first is known
                 */
    bool failed;
    sbp_status status;        /* of the first that failed */
    const rank_process *gone; /* that is it, without a word; NULL: it said why */
    bool by_mpirun;           /* that is it */
    bool in_vain;             /* it waited for another */
    double deadline;          /* 0: none */
} launcher;

static volatile sig_atomic_t caught, caught_count;

static void catch_signal(int number) {
    if (number == SIGCHLD)
        return;
    caught = number;
    caught_count++;
}

static sbp_status interrupted_or(sbp_status status) {
    return caught == SIGINT ? SBP_INTERRUPTED : caught ? SBP_TERMINATED : status;
}

static void fail_first(launcher *l, sbp_status status, const rank_process *gone) {
    if (l->failed)
        return;
    l->failed = true;
    l->status = status;
    l->gone = gone;
    l->deadline = sbp_seconds() + GRACE_SECONDS;
}

static void kill_all(launcher *l) {
    for (int32_t i = 0; i < l->come; i++)
        if (l->ranks[i].fd >= 0 && l->ranks[i].pid > 0)
            kill((pid_t)l->ranks[i].pid, SIGKILL);
    if (l->mpirun)
        kill((pid_t)l->mpirun, SIGKILL);
}

/* Each rank gets as many as came, also one that comes late. */
static void pass_signals(launcher *l) {
    for (int32_t i = 0; i < l->come; i++) {
        rank_process *r = &l->ranks[i];
        if (r->fd >= 0 && r->rank >= 0 && r->signals < caught_count) {
            r->signals = caught_count;
            kill((pid_t)r->pid, caught);
        }
    }
    if (caught_count > 2)
        kill_all(l);
    else if (caught_count > 0 && l->come == 0 && l->mpirun) /* nothing has begun */
        kill((pid_t)l->mpirun, SIGTERM);
}

/* Something to read; number: of the rank, LISTENER of others that come. */
enum { LISTENER = -1 };

static bool expect(const launcher *l, int fd, int32_t number) {
    struct epoll_event event = {.events = EPOLLIN, .data.fd = number};
    return epoll_ctl(l->events, EPOLL_CTL_ADD, fd, &event) == 0;
}

static void take_rank(launcher *l) {
    struct ucred who;
    socklen_t length = sizeof who;
    int fd = accept4(l->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0)
        return;
    if (l->come == l->count || getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &length) != 0 ||
        who.uid != geteuid()) {
        close(fd);
        return;
    }
    if (!expect(l, fd, l->come)) {
        close(fd);
        return;
    }
    l->ranks[l->come++] = (rank_process){.fd = fd, .pid = (long)who.pid, .rank = -1};
    l->open++;
}

static void hear_rank(launcher *l, rank_process *r) {
    message m;
    ssize_t got = recv(r->fd, &m, sizeof m, 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (got != (ssize_t)sizeof m) {
        close(r->fd);
        r->fd = -1;
        l->open--;
        if (r->ended == 0)
            fail_first(l, interrupted_or(SBP_MACHINE), r);
        return;
    }
    if (m.kind == HERE)
        r->rank = m.value;
    if (m.kind != HERE)
        r->ended = m.seconds;
    l->in_vain |= !l->failed && m.kind == ENDS_IN_VAIN;
    if (m.kind != HERE && m.value != SBP_OK)
        fail_first(l, (sbp_status)m.value, NULL);
}

static void wait_for_something(launcher *l, const sigset_t *mask) {
    struct epoll_event events[16];
    int count = epoll_pwait(l->events, events, SBP_COUNT(events), 200, mask);
    for (int i = 0; i < count; i++)
        if (events[i].data.fd == LISTENER)
            take_rank(l);
        else
            hear_rank(l, &l->ranks[events[i].data.fd]);
}

/* Until mpirun and all ranks have ended. */
static void watch(launcher *l, const sigset_t *mask) {
    while (l->mpirun || l->open > 0) {
        wait_for_something(l, mask);
        pass_signals(l);
        if (l->mpirun && sbp_child_has_ended(l->mpirun, &l->mpirun_status)) {
            l->mpirun = 0;
            l->by_mpirun = !l->failed && l->mpirun_status != 0;
            if (l->by_mpirun)
                fail_first(l, interrupted_or(SBP_MACHINE), NULL);
            l->deadline = sbp_seconds() + (l->mpirun_status > 128 ? 0 : GRACE_SECONDS);
        }
        if (l->deadline > 0 && sbp_seconds() > l->deadline)
            kill_all(l);
    }
}

/* Describes the exit status of a shell, or of mpirun. */
static void describe_end(char *out, size_t size, int status) {
    if (status > 128)
        snprintf(out, size, "ended by signal %d (%s)", status - 128, strsignal(status - 128));
    else
        snprintf(out, size, "exit status %d", status);
}

static const rank_process *find_rank(const launcher *l, int32_t rank) {
    for (int32_t i = 0; i < l->come; i++)
        if (l->ranks[i].rank == rank)
            return &l->ranks[i];
    return NULL;
}

/* Names the ranks that others waited for: those that did not start, or did not end within SBP_IN_VAIN_SECONDS
 * of the first that did. */
static sbp_status name_silent(const launcher *l) {
    double first = INFINITY;
    for (int32_t i = 0; i < l->come; i++)
        first = l->ranks[i].ended > 0 && l->ranks[i].ended < first ? l->ranks[i].ended : first;
    for (int32_t rank = 0; rank < l->count; rank++) {
        const rank_process *r = find_rank(l, rank);
        if (!r)
            sbp_fail(l->diag, l->status, "rank %d did not start: all ranks were ended", (int)rank);
        else if (r->ended == 0 || r->ended > first + SBP_IN_VAIN_SECONDS)
            sbp_fail(l->diag, l->status, "rank %d (process %ld) did not answer: all ranks were ended",
                     (int)rank, r->pid);
    }
    return l->status;
}

static sbp_status conclude(launcher *l) {
    char how[100];
    describe_end(how, sizeof how, l->mpirun_status);
    if (l->failed && l->gone && !caught)
        return sbp_fail(l->diag, l->status, "rank %d (process %ld) is gone%s%s: all ranks were ended",
                        (int)l->gone->rank, l->gone->pid, l->mpirun_status > 128 ? ", " : "",
                        l->mpirun_status > 128 ? how : "");
    if (l->by_mpirun && !caught)
        return sbp_fail(l->diag, l->status, "mpirun could not %s %d ranks: %s", l->come ? "run" : "start",
                        (int)l->count, how);
    if (l->in_vain && !caught)
        return name_silent(l);
    return l->failed ? l->status : SBP_OK;
}

/* ---- starting --------------------------------------------------------------------------------------- */

sbp_status sbp_launch_check(sbp_arena *arena, sbp_diag *diag, const char *why, const char **mpirun) {
    SBP_TRY(sbp_ranks_find_transport(why, diag));
    const char *path = getenv("PATH");
    while (path && *path) {
        size_t length = strcspn(path, ":");
        *mpirun = sbp_arena_printf(arena, "%.*s/mpirun", (int)length, path);
        if (length > 0 && access(*mpirun, X_OK) == 0)
            return SBP_OK;
        path += length + (path[length] == ':');
    }
    return sbp_fail(diag, SBP_MACHINE, "%s, but no mpirun was found where PATH says (Debian: openmpi-bin)",
                    why);
}

/* As variables, that another MPI does not stumble over: more ranks than cores, ranks on any core, no words
 * about how ranks end, no second between asking one to end and ending it (those that may end in peace were
 * asked here), and only this host, also where a batch system gave more. Open MPI 4, and 5. */
static void set_environment(void) {
    static const char *const values[][2] = {{"OMPI_MCA_rmaps_base_oversubscribe", "1"},
                                            {"OMPI_MCA_hwloc_base_binding_policy", "none"},
                                            {"OMPI_MCA_orte_execute_quiet", "1"},
                                            {"OMPI_MCA_odls_base_sigkill_timeout", "0"},
                                            {"PRTE_MCA_odls_base_sigkill_timeout", "0"},
                                            {"OMPI_MCA_plm", "isolated"},
                                            {"OMPI_MCA_ras", "^slurm,gridengine,tm,lsf"},
                                            {"PRTE_MCA_plm", "^slurm"},
                                            {"PRTE_MCA_ras", "^slurm,gridengine,pbs,lsf"},
                                            {"PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe"},
                                            {"PRTE_MCA_hwloc_default_binding_policy", "none"}};
    static const char *const of_root[] = {"OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM",
                                          "PRTE_ALLOW_RUN_AS_ROOT", "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM"};
    for (int i = 0; i < SBP_COUNT(values); i++)
        setenv(values[i][0], values[i][1], 1);
    for (int i = 0; i < SBP_COUNT(of_root) && geteuid() == 0; i++) /* on this host, as root was asked to */
        setenv(of_root[i], "1", 1);
}

static sbp_status listen_for_ranks(launcher *l) {
    struct sockaddr_un address;
    char name[60];
    snprintf(name, sizeof name, "streambp-%ld-%.9f", (long)getpid(), sbp_seconds());
    socklen_t length = address_of(name, &address);
    l->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (l->listener < 0 || bind(l->listener, (struct sockaddr *)&address, length) != 0 ||
        listen(l->listener, l->count) != 0 || setenv(SOCKET_VARIABLE, name, 1) != 0 ||
        (l->events = epoll_create1(EPOLL_CLOEXEC)) < 0 || !expect(l, l->listener, LISTENER))
        return sbp_fail(l->diag, SBP_MACHINE, "cannot open a socket for ranks: %s", strerror(errno));
    return SBP_OK;
}

typedef struct launch_job {
    launcher *l;
    sbp_arena *arena;
    bool input;
    int argc;
    char *const *argv;
    sigset_t mask;
} launch_job;

static sbp_status start(void *user) {
    const launch_job *job = user;
    launcher *l = job->l;
    const char *mpirun = NULL, *sbprun = NULL;
    sbp_args args = sbp_args_on(job->arena);
    l->ranks = SBP_NEW_ARRAY(job->arena, rank_process, l->count);
    SBP_TRY(sbp_launch_check(job->arena, l->diag, sbp_arena_printf(job->arena, "--ranks %d", (int)l->count),
                             &mpirun));
    SBP_TRY(sbp_child_find(job->arena, l->diag, "sbprun", &sbprun));
    sbp_args_add(&args, mpirun);
    sbp_args_add(&args, "-n");
    sbp_args_add(&args, sbp_arena_printf(job->arena, "%d", (int)l->count));
    sbp_args_add(&args, sbprun);
    for (int i = 0; i < job->argc; i++)
        sbp_args_add(&args, job->argv[i]);
    SBP_TRY(listen_for_ranks(l));
    const char *hosts = getenv("SLURM_JOB_NUM_NODES");
    if (hosts && strtol(hosts, NULL, 10) > 1)
        sbp_note(l->diag, "--ranks %d: all on this host, of the %s that Slurm gave (srun --mpi=pmix: on all)",
                 (int)l->count, hosts);
    set_environment();
    return sbp_child_start(l->diag, sbp_args_end(&args), job->input, &job->mask, &l->mpirun);
}

sbp_status sbp_launch(sbp_diag *diag, int32_t count, bool input, int argc, char *const *argv) {
    static const int numbers[] = {SIGINT, SIGTERM, SIGCHLD};
    const struct sigaction action = {.sa_handler = catch_signal};
    launcher l = {.diag = diag, .count = count, .listener = -1, .events = -1};
    launch_job job = {.l = &l, .arena = sbp_arena_create(), .input = input, .argc = argc, .argv = argv};
    sigset_t blocked;
    if (!job.arena)
        return sbp_fail(diag, SBP_MACHINE, "out of memory for starting the ranks");
    sigemptyset(&blocked);
    for (int i = 0; i < SBP_COUNT(numbers); i++)
        sigaddset(&blocked, numbers[i]);
    sigprocmask(SIG_BLOCK, &blocked, &job.mask); /* they come while something is waited for */
    for (int i = 0; i < SBP_COUNT(numbers); i++)
        sigaction(numbers[i], &action, NULL);
    sbp_status status = sbp_guard(job.arena, diag, start, &job);
    if (status == SBP_OK) {
        watch(&l, &job.mask);
        status = conclude(&l);
    }
    if (l.listener >= 0)
        close(l.listener);
    if (l.events >= 0)
        close(l.events);
    sbp_arena_destroy(job.arena);
    return status;
}
