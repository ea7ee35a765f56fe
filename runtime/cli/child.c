/* child.c: starts sbpc and waits for it. */
#include "runtime/cli/child.h"

#include <errno.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

sbp_status sbp_child_find(sbp_arena *arena, sbp_diag *diag, const char **out) {
    char self[4096];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    if (length <= 0)
        return sbp_fail(diag, SBP_MACHINE, "cannot find out where this program lies: %s", strerror(errno));
    self[length] = 0;
    char *slash = strrchr(self, '/');
    *slash = 0;
    const char *path = sbp_arena_printf(arena, "%s/sbpc", self);
    if (access(path, X_OK) != 0)
        return sbp_fail(diag, SBP_MACHINE,
                        "to train a model that is no plan, sbpc must lie beside sbprun: '%s': %s", path,
                        strerror(errno));
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

sbp_status sbp_child_run(sbp_diag *diag, const char *const *args) {
    posix_spawn_file_actions_t actions;
    pid_t pid;
    int state;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
    int failed = posix_spawn(&pid, args[0], &actions, NULL, (char *const *)(uintptr_t)args, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (failed)
        return sbp_fail(diag, SBP_MACHINE, "cannot start '%s': %s", args[0], strerror(failed));
    while (waitpid(pid, &state, 0) < 0)
        if (errno != EINTR)
            return sbp_fail(diag, SBP_INTERNAL, "cannot wait for '%s': %s", args[0], strerror(errno));
    if (WIFSIGNALED(state)) {
        if (WTERMSIG(state) == SIGINT)
            return SBP_INTERRUPTED;
        if (WTERMSIG(state) == SIGTERM)
            return SBP_TERMINATED;
        return sbp_fail(diag, SBP_INTERNAL, "'%s' was ended by signal %d", args[0], WTERMSIG(state));
    }
    return (sbp_status)WEXITSTATUS(state); /* it has said why */
}
