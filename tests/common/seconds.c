/* seconds.c: starts a test and notes the processor seconds that it took, with everything that it started:
 *
 *     seconds NAME PROGRAM ARGUMENT..
 *
 * appends the line "NAME SECONDS" to the file that SBP_TEST_SECONDS names; without one it becomes the
 * program. SBP_TEST_NAME in the program's environment is NAME. The program stays in the process group it
 * would have been in, and its end is passed on: exit status or signal. Processes that outlive their parents
 * come to this one, so that their time counts too.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile pid_t child;

static void pass_on(int number) {
    if (child > 0)
        kill(child, number);
}

static _Noreturn void become(char **command) {
    execvp(command[0], command);
    perror(command[0]);
    _exit(127);
}

/* The program's status. Others that end meanwhile are reaped, so that none of them stays a zombie. */
static int wait_for_it(void) {
    for (;;) {
        int status;
        pid_t pid = wait(&status);
        if (pid == child)
            return status;
        if (pid < 0 && errno != EINTR)
            return 1 << 8;
    }
}

/* A line in one write, so that tests beside each other do not mix theirs. */
static void note(const char *file, const char *name) {
    struct rusage used;
    char line[512];
    getrusage(RUSAGE_CHILDREN, &used);
    double seconds = (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
                     1e-6 * (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec);
    int length = snprintf(line, sizeof line, "%s %.2f\n", name, seconds);
    int fd = open(file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (fd < 0 || length >= (int)sizeof line || write(fd, line, (size_t)length) != length)
        perror(file);
    if (fd >= 0)
        close(fd);
}

int main(int argc, char **argv) {
    static const int passed[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};
    const char *file = getenv("SBP_TEST_SECONDS");
    struct sigaction before[sizeof passed / sizeof *passed];
    if (argc < 3) {
        fprintf(stderr, "usage: seconds NAME PROGRAM ARGUMENT..\n");
        return 2;
    }
    setenv("SBP_TEST_NAME", argv[1], 1);
    if (!file || !*file)
        become(argv + 2);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    sigset_t held, mask; /* until it is known whom to pass them on to */
    sigemptyset(&held);
    for (size_t i = 0; i < sizeof passed / sizeof *passed; i++)
        sigaddset(&held, passed[i]);
    sigprocmask(SIG_BLOCK, &held, &mask);
    for (size_t i = 0; i < sizeof passed / sizeof *passed; i++) {
        struct sigaction act = {.sa_handler = pass_on};
        sigaction(passed[i], NULL, &before[i]);
        if (before[i].sa_handler != SIG_IGN)
            sigaction(passed[i], &act, NULL);
    }
    pid_t pid = fork();
    child = pid;
    if (pid < 0) {
        perror("fork");
        return 2;
    }
    if (pid == 0) {
        for (size_t i = 0; i < sizeof passed / sizeof *passed; i++)
            sigaction(passed[i], &before[i], NULL);
        sigprocmask(SIG_SETMASK, &mask, NULL);
        become(argv + 2);
    }
    sigprocmask(SIG_SETMASK, &mask, NULL);
    int status = wait_for_it();
    while (waitpid(-1, NULL, WNOHANG) > 0) {
    }
    note(file, argv[1]);
    if (WIFSIGNALED(status)) {
        const struct rlimit none = {0, 0};
        setrlimit(RLIMIT_CORE, &none); /* the program has left its own */
        signal(WTERMSIG(status), SIG_DFL);
        raise(WTERMSIG(status));
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
