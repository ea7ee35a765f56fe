/* rundir.c: lock, contents and deletions of a run's directory. */
#include "runtime/train/rundir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "ir/base/file.h"
#include "ir/program/plan_file.h"

#define LOCK ".lock"

enum { MOST_DEPTH = 50, ATTEMPTS = 50, WAIT_MS = 1000 };

static bool is_dots(const char *name) {
    return strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
}

/* ---- deleting --------------------------------------------------------------------------------------- */

static int remove_at(int parent, const char *name, int depth);

/* Takes the descriptor. */
static int empty_directory(int fd, int depth) {
    DIR *dir = fdopendir(fd);
    struct dirent *entry;
    int failed = 0;
    if (!dir) {
        failed = errno;
        close(fd);
        return failed;
    }
    while ((entry = readdir(dir)))
        if (!is_dots(entry->d_name)) {
            int error = remove_at(dirfd(dir), entry->d_name, depth + 1);
            failed = failed ? failed : error;
        }
    closedir(dir);
    return failed;
}

static int remove_at(int parent, const char *name, int depth) {
    if (unlinkat(parent, name, 0) == 0 || errno == ENOENT)
        return 0;
    if (errno != EISDIR && errno != EPERM) /* of a directory: Linux, POSIX */
        return errno;
    int reason = errno, fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOTDIR || errno == ELOOP ? reason : errno;
    if (depth == MOST_DEPTH) {
        close(fd);
        return ELOOP;
    }
    int failed = empty_directory(fd, depth);
    return unlinkat(parent, name, AT_REMOVEDIR) == 0 ? 0 : failed ? failed : errno;
}

int sbp_rundir_remove(const sbp_rundir *dir, const char *name) {
    return remove_at(dir->fd, name, 0);
}

bool sbp_rundir_is_own(const sbp_rundir *dir, const char *name, const char *mark) {
    char path[200];
    struct stat s;
    if (fstatat(dir->fd, name, &s, AT_SYMLINK_NOFOLLOW) != 0)
        return errno == ENOENT;
    if (S_ISLNK(s.st_mode)) /* what it points to stays */
        return true;
    return S_ISDIR(s.st_mode) && snprintf(path, sizeof path, "%s/%s", name, mark) < (int)sizeof path &&
           fstatat(dir->fd, path, &s, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(s.st_mode);
}

int sbp_rundir_discard_name(const sbp_rundir *dir, const char *name, const char *mark) {
    char away[80];
    if (!sbp_rundir_is_own(dir, name, mark))
        return SBP_RUNDIR_FOREIGN;
    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
        snprintf(away, sizeof away, SBP_RUNDIR_TEMPORARY "old-%ld-%d", (long)getpid(), attempt);
        int error = sbp_rundir_rename(dir, name, away);
        if (error == 0)
            return remove_at(dir->fd, away, 0);
        if (error == ENOENT)
            return 0;
        if (error != EEXIST)
            return error;
    }
    return EEXIST;
}

int sbp_rundir_discard(const sbp_rundir *dir, int64_t step) {
    char name[40];
    snprintf(name, sizeof name, "checkpoint-%lld", (long long)step);
    return sbp_rundir_discard_name(dir, name, SBP_RUNDIR_CHECKPOINT);
}

/* Some file systems cannot refuse to replace: then what is there is looked for first. */
int sbp_rundir_rename(const sbp_rundir *dir, const char *from, const char *to) {
    struct stat s;
    if (renameat2(dir->fd, from, dir->fd, to, RENAME_NOREPLACE) == 0)
        return 0;
    if (errno != EINVAL && errno != ENOSYS)
        return errno;
    if (fstatat(dir->fd, to, &s, AT_SYMLINK_NOFOLLOW) == 0)
        return EEXIST;
    return renameat(dir->fd, from, dir->fd, to) == 0 ? 0 : errno;
}

const char *sbp_rundir_error(int error) {
    return error == SBP_RUNDIR_FOREIGN ? "it was not written by sbprun" : strerror(error);
}

/* ---- names ------------------------------------------------------------------------------------------ */

int64_t sbp_rundir_step(const char *name) {
    static const char prefix[] = "checkpoint-";
    size_t length = sizeof prefix - 1;
    if (strncmp(name, prefix, length) != 0 || !name[length] ||
        strspn(name + length, "0123456789") != strlen(name + length) || strlen(name + length) > 18)
        return -1;
    return strtoll(name + length, NULL, 10);
}

/* ".checkpoint-", one of the words of such names or none, and numbers. */
bool sbp_rundir_is_leftover(const char *name) {
    static const char *const words[] = {"old-", "step-", "latest-", ""};
    const char *rest = name + strlen(SBP_RUNDIR_TEMPORARY);
    if (strncmp(name, SBP_RUNDIR_TEMPORARY, strlen(SBP_RUNDIR_TEMPORARY)) != 0)
        return sbp_file_is_temporary(name);
    for (int i = 0; i < SBP_COUNT(words); i++) {
        size_t length = strlen(words[i]);
        if (strncmp(rest, words[i], length) == 0)
            return rest[length] && rest[length + strspn(rest + length, "0123456789-")] == 0;
    }
    return false;
}

/* Whether a run writes weights under this name: model.safetensors, or shards and their index, or an
 * adapter's. */
static bool is_weights(const char *name) {
    static const char *const whole[] = {"adapter_model.safetensors", "model.safetensors",
                                        "model.safetensors.index.json"};
    int end = 0;
    for (int i = 0; i < SBP_COUNT(whole); i++)
        if (strcmp(name, whole[i]) == 0)
            return true;
    return sscanf(name, "model-%*5[0-9]-of-%*5[0-9].safetensors%n", &end) == 0 && end > 0 && !name[end];
}

/* The directory for reading its names, NULL with errno. */
static DIR *list(const sbp_rundir *dir) {
    int fd = openat(dir->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *names = fd < 0 ? NULL : fdopendir(fd);
    if (!names && fd >= 0)
        close(fd);
    return names;
}

int64_t sbp_rundir_newest(const sbp_rundir *dir, int64_t below) {
    int64_t best = -1;
    DIR *names = list(dir);
    struct dirent *entry;
    while (names && (entry = readdir(names))) {
        int64_t step = sbp_rundir_step(entry->d_name);
        if (step > best && step < below)
            best = step;
    }
    if (names)
        closedir(names);
    return best;
}

/* Whether run.json says that this program wrote it. */
static bool is_run(const sbp_rundir *dir) {
    static const char begin[] = "{\n  \"sbprun\":";
    char head[sizeof begin] = "";
    int fd = openat(dir->fd, "run.json", O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    ssize_t length = fd < 0 ? -1 : read(fd, head, sizeof begin - 1);
    if (fd >= 0)
        close(fd);
    return length == (ssize_t)sizeof begin - 1 && strcmp(head, begin) == 0;
}

static bool is_plan(const sbp_rundir *dir) {
    char path[4096];
    return snprintf(path, sizeof path, "%s/plan.bin", dir->path) < (int)sizeof path &&
           sbp_plan_file_probe(path);
}

/* What comes into the directory of a run after run.json. A pipe or a device for metrics may be there before.
 */
static bool is_result(const sbp_rundir *dir, const char *name) {
    struct stat s;
    if (strcmp(name, "metrics.jsonl") == 0)
        return fstatat(dir->fd, name, &s, 0) != 0 || S_ISREG(s.st_mode);
    return strcmp(name, "matmuls.txt") == 0 || strncmp(name, "ref_logps.", strlen("ref_logps.")) == 0 ||
           is_weights(name) || sbp_rundir_step(name) >= 0;
}

sbp_status sbp_rundir_look(const sbp_rundir *dir, sbp_diag *diag, sbp_rundir_contents *out) {
    DIR *names = list(dir);
    struct dirent *entry;
    *out = (sbp_rundir_contents){.newest = -1};
    if (!names)
        return sbp_fail(diag, SBP_IO, "cannot read '%s': %s", dir->path, strerror(errno));
    out->run = is_run(dir);
    while ((entry = readdir(names))) {
        const char *name = entry->d_name;
        int64_t step = sbp_rundir_step(name);
        out->newest = step > out->newest ? step : out->newest;
        out->model |= is_weights(name);
        if (is_result(dir, name))
            snprintf(out->result, sizeof out->result, "%.50s", name);
        else if (!is_dots(name) && strcmp(name, LOCK) != 0 && strcmp(name, "metrics.jsonl") != 0 &&
                 !sbp_rundir_is_leftover(name) && !(out->run && strcmp(name, "run.json") == 0) &&
                 !(strcmp(name, "plan.bin") == 0 && is_plan(dir)))
            snprintf(out->stranger, sizeof out->stranger, "%.50s", name);
    }
    closedir(names);
    return SBP_OK;
}

/* ---- the lock --------------------------------------------------------------------------------------- */

static sbp_status fail_locked(const sbp_rundir *dir, sbp_diag *diag, long pid) {
    char who[40] = "another process";
    if (pid > 0) /* 0: of another machine or container */
        snprintf(who, sizeof who, "process %ld", pid);
    return sbp_fail(diag, SBP_IO, "'%s' belongs to a run that is going on (%s): choose another %s", dir->path,
                    who, dir->option ? dir->option : "--out");
}

/* There are two: byte 0 belongs to the process and tells its number, byte 1 to the open file, and so to a
 * child as well, which may live a moment longer. */
static struct flock lock_of(int byte) {
    return (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
}

/* Whether somebody else has the lock of an open file: its process, 0 unknown, -1 nobody. */
static long holder(int fd) {
    for (int byte = 0; byte < 2; byte++) {
        struct flock lock = lock_of(byte);
        if (fcntl(fd, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK)
            return lock.l_pid > 0 ? (long)lock.l_pid : 0;
    }
    return -1;
}

/* Who ends removes the file while it holds the lock, so a lock counts only while its file has the name. */
static bool has_name(const sbp_rundir *dir, int fd) {
    struct stat held, named;
    return fstat(fd, &held) == 0 && fstatat(dir->fd, LOCK, &named, AT_SYMLINK_NOFOLLOW) == 0 &&
           held.st_dev == named.st_dev && held.st_ino == named.st_ino;
}

/* One attempt: SBP_OK with *pid -1, or who has it. */
static sbp_status try_lock(sbp_rundir *dir, sbp_diag *diag, long *pid) {
    struct flock own = lock_of(0), shared = lock_of(1);
    int fd = openat(dir->fd, LOCK, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666);
    *pid = -1;
    if (fd < 0)
        return sbp_fail(diag, SBP_IO, "cannot write to '%s': %s", dir->path, strerror(errno));
    bool locked = fcntl(fd, F_SETLK, &own) == 0 && fcntl(fd, F_OFD_SETLK, &shared) == 0,
         held = !locked && (errno == EACCES || errno == EAGAIN);
    if (!locked && !held)
        sbp_warn(diag, "'%s' cannot be locked (%s): a second run in it would not be noticed", dir->path,
                 strerror(errno));
    if (!held && (!locked || has_name(dir, fd))) {
        dir->lock = fd;
        return SBP_OK;
    }
    *pid = held ? holder(fd) : 0;
    *pid = *pid < 0 ? 0 : *pid; /* it went just now: the next attempt finds out */
    close(fd);
    return SBP_OK;
}

/* What an attempt would say, without writing anything. */
static long look_at_lock(const sbp_rundir *dir) {
    int fd = openat(dir->fd, LOCK, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    long pid = fd < 0 ? -1 : holder(fd);
    if (fd >= 0)
        close(fd);
    return pid;
}

/* A process that was just killed needs a moment to go. */
static sbp_status take_lock(sbp_rundir *dir, sbp_diag *diag, bool look) {
    const struct timespec pause = {.tv_nsec = WAIT_MS * 1000000 / ATTEMPTS};
    long pid = -1;
    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
        if (look)
            pid = look_at_lock(dir);
        else
            SBP_TRY(try_lock(dir, diag, &pid));
        if (pid < 0)
            return SBP_OK;
        nanosleep(&pause, NULL);
    }
    return fail_locked(dir, diag, pid);
}

/* ---- opening ---------------------------------------------------------------------------------------- */

/* *created: the last part. */
static sbp_status make_directories(sbp_diag *diag, char *path, bool *created) {
    for (char *at = path + 1;; at++) {
        char end = *at;
        if (end != '/' && end != 0)
            continue;
        *at = 0;
        *created = mkdir(path, 0777) == 0;
        if (!*created && errno != EEXIST)
            return sbp_fail(diag, SBP_IO, "cannot create the directory '%s': %s", path, strerror(errno));
        *at = end;
        if (end == 0)
            return SBP_OK;
    }
}

sbp_status sbp_rundir_open(sbp_rundir *dir, sbp_diag *diag, const char *path, sbp_rundir_mode mode) {
    char copy[4096];
    size_t length = strlen(path);
    if (dir->fd >= 0)
        return SBP_OK;
    if (length == 0 || length >= sizeof copy)
        return sbp_fail(diag, SBP_USAGE, "%s: '%.60s' is not a name for a directory",
                        dir->option ? dir->option : "--out", path);
    memcpy(copy, path, length + 1);
    while (length > 1 && copy[length - 1] == '/')
        copy[--length] = 0;
    *dir = (sbp_rundir){.path = path, .option = dir->option, .fd = -1, .lock = -1};
    if (mode == SBP_RUNDIR_CREATE)
        SBP_TRY(make_directories(diag, copy, &dir->created));
    int fd = open(copy, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT && mode != SBP_RUNDIR_CREATE)
        return SBP_OK;
    if (fd < 0 && errno == ENOTDIR && access(copy, F_OK) != 0) /* part of its path is a file */
        return sbp_fail(diag, SBP_IO, "cannot create the directory '%s': %s", path, strerror(errno));
    if (fd < 0)
        return sbp_fail(diag, SBP_IO, "cannot write to '%s': %s", path,
                        errno == ENOTDIR ? "it is not a directory" : strerror(errno));
    dir->fd = fd;
    if (mode == SBP_RUNDIR_READ)
        return SBP_OK;
    if (faccessat(fd, ".", W_OK | X_OK, AT_EACCESS) != 0)
        return sbp_fail(diag, SBP_IO, "cannot write to '%s': %s", path, strerror(errno));
    return take_lock(dir, diag, mode == SBP_RUNDIR_LOOK);
}

static void clean(const sbp_rundir *dir, sbp_diag *diag) {
    DIR *names = list(dir);
    struct dirent *entry;
    while (names && (entry = readdir(names))) {
        int error = sbp_rundir_is_leftover(entry->d_name) ? sbp_rundir_remove(dir, entry->d_name) : 0;
        if (error && diag)
            sbp_warn(diag, "cannot remove '%s/%s', which an earlier run left: %s", dir->path, entry->d_name,
                     strerror(error));
    }
    if (names)
        closedir(names);
}

void sbp_rundir_begin(sbp_rundir *dir, sbp_diag *diag) {
    dir->begun = true;
    clean(dir, diag);
}

void sbp_rundir_remove_results(const sbp_rundir *dir, sbp_diag *diag) {
    DIR *names = list(dir);
    struct dirent *entry;
    for (int64_t step = INT64_MAX; (step = sbp_rundir_newest(dir, step)) >= 0;) {
        int error = sbp_rundir_discard(dir, step);
        if (error)
            sbp_warn(diag, "cannot remove '%s/checkpoint-%lld': %s", dir->path, (long long)step,
                     sbp_rundir_error(error));
    }
    while (names && (entry = readdir(names)))
        if (is_weights(entry->d_name) ||
            strcmp(entry->d_name, "adapter_config.json") == 0) { /* a model beside it would be none */
            int error = sbp_rundir_remove(dir, entry->d_name);
            if (error)
                sbp_warn(diag, "cannot remove '%s/%s': %s", dir->path, entry->d_name, strerror(error));
        }
    if (names)
        closedir(names);
}

bool sbp_rundir_is_in_place(const sbp_rundir *dir, char *now, size_t size) {
    struct stat held, named;
    char link[40];
    *now = 0;
    if (dir->fd < 0 || fstat(dir->fd, &held) != 0)
        return true;
    if (stat(dir->path, &named) != 0) {
        if (errno != ENOENT && errno != ENOTDIR)
            return true;
    } else if (held.st_dev == named.st_dev && held.st_ino == named.st_ino)
        return true;
    snprintf(link, sizeof link, "/proc/self/fd/%d", dir->fd);
    ssize_t length = held.st_nlink > 0 ? readlink(link, now, size) : 0;
    now[length > 0 && length < (ssize_t)size ? length : 0] = 0;
    return false;
}

bool sbp_rundir_has_lock(const sbp_rundir *dir) {
    return dir->lock < 0 || has_name(dir, dir->lock);
}

void sbp_rundir_close(sbp_rundir *dir) {
    char now[1];
    if (dir->lock >= 0) {
        if (dir->created && !dir->begun)
            clean(dir, NULL);
        if (has_name(dir, dir->lock)) /* else it is that of another run */
            unlinkat(dir->fd, LOCK, 0);
        if (dir->created && !dir->begun && sbp_rundir_is_in_place(dir, now, sizeof now))
            rmdir(dir->path); /* not if somebody put something there */
        close(dir->lock);
    }
    if (dir->fd >= 0)
        close(dir->fd);
    *dir = (sbp_rundir){.option = dir->option, .fd = -1, .lock = -1};
}
