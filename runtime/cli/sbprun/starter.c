/* starter.c: a process beside a rank that ends mpirun where that hangs. */
#include "runtime/cli/sbprun/starter.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "ir/base/base.h"

/* Open MPI 4 and 5, MPICH. */
static const char *const names[] = {"mpirun",  "mpiexec", "orterun",       "orted",
                                    "prterun", "prted",   "mpiexec.hydra", "hydra_pmi_proxy"};
/* Processes to look through, from the parent up: shells and wrappers lie between. */
enum { MOST_ANCESTORS = 8 };
/* Open MPI needs some four to end its ranks. LAST: from asking it to end to ending it. */
enum { LEAST_SECONDS = 5, MOST_SECONDS = 10, LAST_SECONDS = 3 };

static int pipe_end = -1;

/* Name and parent of a process; false: it is gone, or waits to be. */
static bool look(pid_t pid, char name[32], pid_t *parent) {
    char path[64], text[400] = "", state = 'Z';
    int of = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "r");
    const char *begin = file && fgets(text, sizeof text, file) ? strchr(text, '(') : NULL, *end;
    if (file)
        fclose(file);
    if (!begin || !(end = strrchr(text, ')')) || sscanf(end + 1, " %c %d", &state, &of) != 2)
        return false;
    snprintf(name, 32, "%.*s", (int)(end - begin - 1), begin + 1);
    *parent = (pid_t)of;
    return state != 'Z' && state != 'X';
}

static bool is_starter(pid_t pid, pid_t *parent) {
    char name[32];
    if (!look(pid, name, parent))
        return false;
    for (int i = 0; i < SBP_COUNT(names); i++)
        if (strcmp(name, names[i]) == 0)
            return true;
    return false;
}

/* The nearest ancestor that is one; 0: none is. */
static pid_t find_starter(void) {
    pid_t at = getppid(), parent = 0;
    for (int i = 0; i < MOST_ANCESTORS && at > 1; i++, at = parent)
        if (is_starter(at, &parent))
            return at;
    return 0;
}

/* Whether it is gone within the time. */
static bool ends_within(pid_t starter, int seconds) {
    pid_t parent;
    for (int i = 0; i < 10 * seconds; i++) {
        if (!is_starter(starter, &parent))
            return true;
        nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
    }
    return false;
}

/* The process beside: holds nothing open that others wait for the end of. */
static _Noreturn void stand_by(pid_t rank, pid_t starter, int seconds, int from) {
    char word;
    setsid(); /* signals to the group of the rank are not for this one */
    for (int fd = 0; fd < 1024; fd++)
        if (fd != from)
            close(fd);
    if (read(from, &word, 1) != 1 || ends_within(starter, seconds))
        _exit(0);
    if (getppid() == rank) /* MPI did not come back to it */
        kill(rank, SIGKILL);
    kill(starter, SIGTERM);
    if (!ends_within(starter, LAST_SECONDS))
        kill(starter, SIGKILL);
    _exit(0);
}

void sbp_starter_watch(double timeout) {
    int seconds = timeout <= 0 || timeout > MOST_SECONDS ? MOST_SECONDS : (int)timeout;
    pid_t rank = getpid(), starter = find_starter();
    int ends[2];
    if (starter == 0 || pipe_end >= 0 || pipe2(ends, O_CLOEXEC) != 0)
        return;
    pid_t child = fork();
    if (child == 0)
        stand_by(rank, starter, seconds < LEAST_SECONDS ? LEAST_SECONDS : seconds, ends[0]);
    close(ends[0]);
    if (child > 0)
        pipe_end = ends[1];
    else
        close(ends[1]);
}

void sbp_starter_must_end(void) {
    if (pipe_end >= 0)
        (void)!write(pipe_end, "!", 1);
}
