/* child.c: starts sbpc, or mpirun, and waits for it. */
#include "runtime/cli/sbprun/child.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ir/base/file.h"

sbp_status sbp_child_find(sbp_arena *arena, sbp_diag *diag, const char *name, const char **out) {
    char self[4096];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    if (length <= 0)
        return sbp_fail(diag, SBP_MACHINE, "cannot find the path of this program: %s", strerror(errno));
    self[length] = 0;
    char *slash = strrchr(self, '/');
    *slash = 0;
    const char *path = sbp_arena_printf(arena, "%s/%s", self, name);
    if (access(path, X_OK) != 0)
        return sbp_fail(diag, SBP_MACHINE,
                        "to train a model without a plan, sbpc must be in the folder of sbprun: '%s': %s",
                        path, strerror(errno));
    *out = path;
    return SBP_OK;
}

void sbp_child_print(sbp_text *out, const char *const *args) {
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=./,:+@%";
    for (int i = 0; args[i]; i++) {
        sbp_text_add(out, i ? " " : "");
        if (*args[i] && strspn(args[i], plain) == strlen(args[i])) {
            sbp_text_add(out, "%s", args[i]);
            continue;
        }
        sbp_text_add(out, "'");
        for (const char *p = args[i]; *p; p++)
            if (*p == '\'')
                sbp_text_add(out, "'\\''");
            else
                sbp_text_add_n(out, p, 1);
        sbp_text_add(out, "'");
    }
}

/* ---- running ---------------------------------------------------------------------------------------- */

static volatile sig_atomic_t child, caught; /* child: its process, 0: none */

static void pass_on(int number) {
    int saved = errno;
    caught = number;
    if (child > 0)
        kill((pid_t)child, number);
    errno = saved;
}

/* How a child runs. */
typedef struct manner {
    int kept;   /* a descriptor that stays open; -1: none */
    bool apart; /* in a group of its own, that a terminal's signals do not reach */
    bool input; /* it has standard input, even so */
    const sigset_t *mask;
} manner;

/* In the child, after fork. Where it fails, the reason goes into the pipe. */
static _Noreturn void become(const char *const *args, pid_t parent, int pipe_end, const manner *how) {
    int nothing = how->apart && !how->input ? open("/dev/null", O_RDONLY | O_CLOEXEC) : -1;
    if (how->apart) {
        setpgid(0, 0);
        if (nothing >= 0)
            dup2(nothing, STDIN_FILENO);
    } else {
        dup2(STDERR_FILENO, STDOUT_FILENO);
    }
    if (how->kept >= 0)
        fcntl(how->kept, F_SETFD, 0);
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    sigprocmask(SIG_SETMASK, how->mask, NULL);
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 && getppid() == parent) /* or it has ended already */
        execv(args[0], (char *const *)(uintptr_t)args);
    int reason = errno;
    (void)!write(pipe_end, &reason, sizeof reason);
    _exit(127);
}

/* With the two signals blocked. */
static sbp_status start(sbp_diag *diag, const char *const *args, const manner *how, pid_t *out) {
    int ends[2], reason;
    pid_t parent = getpid();
    *out = 0; /* also where nothing starts: signals are passed on to it */
    if (pipe2(ends, O_CLOEXEC) != 0)
        return sbp_fail(diag, SBP_MACHINE, "cannot start '%s': %s", args[0], strerror(errno));
    pid_t pid = fork();
    if (pid == 0)
        become(args, parent, ends[1], how);
    reason = errno;
    close(ends[1]);
    bool failed = pid < 0 || read(ends[0], &reason, sizeof reason) == (ssize_t)sizeof reason;
    close(ends[0]);
    *out = pid > 0 ? pid : 0;
    if (!failed)
        return SBP_OK;
    if (pid > 0)
        waitpid(pid, NULL, 0);
    *out = 0;
    return sbp_fail(diag, SBP_MACHINE, "cannot start '%s': %s", args[0], strerror(reason));
}

static sbp_status wait_for(sbp_diag *diag, const char *program) {
    int state;
    while (waitpid((pid_t)child, &state, 0) < 0)
        if (errno != EINTR)
            return sbp_fail(diag, SBP_INTERNAL, "cannot wait for '%s': %s", program, strerror(errno));
    int signal_number = caught ? caught : WIFSIGNALED(state) ? WTERMSIG(state) : 0;
    if (signal_number == SIGINT)
        return SBP_INTERRUPTED;
    if (signal_number == SIGTERM)
        return SBP_TERMINATED;
    if (signal_number)
        return sbp_fail(diag, SBP_INTERNAL, "'%s' was ended by signal %d", program, signal_number);
    return (sbp_status)WEXITSTATUS(state); /* it has said why */
}

/* Signals come before the child is there, or while it is waited for, never between. */
sbp_status sbp_child_run(sbp_diag *diag, const char *const *args, int kept, long *pid) {
    static const int numbers[] = {SIGINT, SIGTERM};
    struct sigaction action = {.sa_handler = pass_on}, old[SBP_COUNT(numbers)];
    sigset_t both, mask;
    sigemptyset(&both);
    for (int i = 0; i < SBP_COUNT(numbers); i++)
        sigaddset(&both, numbers[i]);
    sigprocmask(SIG_BLOCK, &both, &mask);
    caught = 0;
    const manner how = {.kept = kept, .mask = &mask};
    pid_t started;
    sbp_status status = start(diag, args, &how, &started);
    child = started;
    *pid = (long)started;
    for (int i = 0; i < SBP_COUNT(numbers); i++)
        sigaction(numbers[i], &action, &old[i]);
    sigprocmask(SIG_SETMASK, &mask, NULL);
    if (status == SBP_OK)
        status = wait_for(diag, args[0]);
    child = 0;
    for (int i = 0; i < SBP_COUNT(numbers); i++)
        sigaction(numbers[i], &old[i], NULL);
    return status;
}

sbp_status sbp_child_compile(sbp_arena *arena, sbp_diag *diag, const char *const *args, const char *plan,
                             int kept) {
    long pid;
    sbp_status status = sbp_child_run(diag, args, kept, &pid);
    const char *left = sbp_arena_printf(arena, "%s.%ld.0.tmp", plan, pid);
    if (status != SBP_OK &&
        sbp_file_is_temporary(left)) /* as sbp_file_out makes them; of one that was ended */
        unlink(left);
    return status;
}

sbp_status sbp_child_new_file(sbp_arena *arena, sbp_diag *diag, const char *end, char **out) {
    const char *tmp = getenv("TMPDIR");
    char *path = sbp_arena_printf(arena, "%s/sbprun-XXXXXX%s", tmp && *tmp ? tmp : "/tmp", end);
    int fd = mkstemps(path, (int)strlen(end));
    if (fd < 0)
        return sbp_fail(diag, SBP_IO, "cannot create '%s': %s", path, strerror(errno));
    close(fd);
    *out = path;
    return SBP_OK;
}

sbp_status sbp_child_start(sbp_diag *diag, const char *const *args, bool input, const sigset_t *mask,
                           long *pid) {
    const manner how = {.kept = -1, .apart = true, .input = input, .mask = mask};
    pid_t started;
    sbp_status status = start(diag, args, &how, &started);
    *pid = (long)started;
    return status;
}

bool sbp_child_has_ended(long pid, int *status) {
    int state;
    if (waitpid((pid_t)pid, &state, WNOHANG) != (pid_t)pid)
        return false;
    *status = WIFSIGNALED(state) ? 128 + WTERMSIG(state) : WEXITSTATUS(state);
    return true;
}
