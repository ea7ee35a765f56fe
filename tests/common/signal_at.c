/* signal_at.c: a library for LD_PRELOAD that sends a process a signal exactly before its N-th call that
 * changes a file, so that tests of interrupted runs do not depend on how fast the machine is.
 *
 *   SBP_AT=SIGNAL@CALL:N[:TEXT]
 *       before the N-th (from 1) CALL on a path that contains TEXT.
 *       SIGNAL: KILL, TERM, INT or STOP; PARENT-KILL ..: to the parent, and this process sleeps a second.
 *       CALL: open (for writing), mkdir, rename, unlink, rmdir, fsync, write, fflush, or any of them.
 *   SBP_AT_IN=NAME
 *       in programs of this name; without it, in sbprun.
 *   SBP_CALLS=FILE
 *       appends a line "PID CALL PATH" for each of these calls; those of sbpc as its parent's.
 *
 * A step ends with a flush of metrics.jsonl, so TERM@fflush:3:metrics comes in step 3. One thread calls.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))(uintptr_t)dlsym(RTLD_NEXT, #name))

static long matched;
static long process; /* of sbprun: sbpc counts as the one that started it */

static __attribute__((constructor)) void begin(void) {
    process = strcmp(program_invocation_short_name, "sbpc") == 0 ? (long)getppid() : (long)getpid();
}

static bool is_wanted(const char *call, const char *path, long *number) {
    const char *spec = getenv("SBP_AT"), *program = getenv("SBP_AT_IN");
    char text[200] = "", kind[20];
    if (!spec || !(spec = strchr(spec, '@')) ||
        strcmp(program_invocation_short_name, program ? program : "sbprun") != 0)
        return false;
    if (sscanf(spec, "@%19[a-z]:%ld:%199s", kind, number, text) < 2)
        abort();
    return (strcmp(kind, "any") == 0 || strcmp(kind, call) == 0) && strstr(path, text);
}

static void send_signal(const char *spec) {
    static const struct {
        const char *name;
        int number;
    } signals[] = {{"KILL@", SIGKILL}, {"TERM@", SIGTERM}, {"INT@", SIGINT}, {"STOP@", SIGSTOP}};
    bool parent = strncmp(spec, "PARENT-", 7) == 0;
    spec += parent ? 7 : 0;
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        if (strncmp(spec, signals[i].name, strlen(signals[i].name)) == 0)
            kill(parent ? getppid() : getpid(), signals[i].number);
    if (parent)
        sleep(1);
}

static void before(const char *call, const char *path) {
    const char *log = getenv("SBP_CALLS");
    int saved = errno;
    long number;
    if (log) {
        char line[600];
        int fd = REAL(open)(log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
        int length = snprintf(line, sizeof line, "%ld %s %.500s\n", process, call, path);
        if (fd < 0 || write(fd, line, (size_t)length) != length)
            abort();
        close(fd);
    }
    if (is_wanted(call, path, &number) && ++matched == number)
        send_signal(getenv("SBP_AT"));
    errno = saved;
}

/* The path of a name in an open directory, or of an open file where name is NULL. */
static const char *path_of(int fd, const char *name) {
    static char path[8300];
    char link[40], target[4096];
    if (name && (name[0] == '/' || fd == AT_FDCWD))
        return name;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, target, sizeof target - 1);
    target[length < 0 ? 0 : length] = 0;
    snprintf(path, sizeof path, "%s%s%s", target, name ? "/" : "", name ? name : "");
    return path;
}

static void before_opening(int fd, const char *name, int flags) {
    if (flags & (O_WRONLY | O_RDWR | O_CREAT))
        before("open", path_of(fd, name));
}

#define OPEN(function)                                                                                       \
    int function(const char *path, int flags, ...) {                                                         \
        va_list args;                                                                                        \
        va_start(args, flags);                                                                               \
        mode_t mode = flags & O_CREAT ? va_arg(args, mode_t) : 0;                                            \
        va_end(args);                                                                                        \
        before_opening(AT_FDCWD, path, flags);                                                               \
        return REAL(function)(path, flags, mode);                                                            \
    }
#define OPENAT(function)                                                                                     \
    int function(int directory, const char *path, int flags, ...) {                                          \
        va_list args;                                                                                        \
        va_start(args, flags);                                                                               \
        mode_t mode = flags & O_CREAT ? va_arg(args, mode_t) : 0;                                            \
        va_end(args);                                                                                        \
        before_opening(directory, path, flags);                                                              \
        return REAL(function)(directory, path, flags, mode);                                                 \
    }
OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)

int mkdir(const char *path, mode_t mode) {
    before("mkdir", path);
    return REAL(mkdir)(path, mode);
}

int mkdirat(int directory, const char *path, mode_t mode) {
    before("mkdir", path_of(directory, path));
    return REAL(mkdirat)(directory, path, mode);
}

int rename(const char *from, const char *to) {
    before("rename", to);
    return REAL(rename)(from, to);
}

int renameat(int from_directory, const char *from, int to_directory, const char *to) {
    before("rename", path_of(to_directory, to));
    return REAL(renameat)(from_directory, from, to_directory, to);
}

int renameat2(int from_directory, const char *from, int to_directory, const char *to, unsigned flags) {
    before("rename", path_of(to_directory, to));
    return REAL(renameat2)(from_directory, from, to_directory, to, flags);
}

int unlink(const char *path) {
    before("unlink", path);
    return REAL(unlink)(path);
}

int unlinkat(int directory, const char *path, int flags) {
    before("unlink", path_of(directory, path));
    return REAL(unlinkat)(directory, path, flags);
}

int rmdir(const char *path) {
    before("rmdir", path);
    return REAL(rmdir)(path);
}

int fsync(int fd) {
    before("fsync", path_of(fd, NULL));
    return REAL(fsync)(fd);
}

ssize_t pwrite(int fd, const void *data, size_t count, off_t offset) {
    before("write", path_of(fd, NULL));
    return REAL(pwrite)(fd, data, count, offset);
}

ssize_t pwrite64(int fd, const void *data, size_t count, off64_t offset) {
    before("write", path_of(fd, NULL));
    return REAL(pwrite64)(fd, data, count, offset);
}

int fflush(FILE *file) {
    if (file && fileno(file) > STDERR_FILENO)
        before("fflush", path_of(fileno(file), NULL));
    return REAL(fflush)(file);
}
