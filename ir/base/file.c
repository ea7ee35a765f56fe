/* file.c: reading whole files, and writing them atomically. */
#include "ir/base/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

bool sbp_file_exists(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && !S_ISDIR(info.st_mode);
}

bool sbp_directory_exists(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

bool sbp_same_file(const char *a, const char *b) {
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

char *sbp_file_join(sbp_arena *arena, const char *directory, const char *name) {
    size_t length = strlen(directory);
    const char *slash = length > 0 && directory[length - 1] == '/' ? "" : "/";
    return sbp_arena_printf(arena, "%s%s%s", directory, slash, name);
}

/* ---- reading -------------------------------------------------------------------------------------- */

typedef struct allocation {
    sbp_arena *arena;
    size_t bytes;
    char *data;
} allocation;

static sbp_status allocate(void *user) {
    allocation *a = user;
    a->data = sbp_arena_alloc(a->arena, a->bytes);
    return SBP_OK;
}

/* Pipes and files of /proc do not know their size: read until the end. */
static sbp_status read_stream(sbp_arena *arena, sbp_diag *diag, int fd, const char *path, const char **data,
                              size_t *length) {
    size_t used = 0, capacity = 1 << 16;
    char *buffer = sbp_malloc(capacity);
    sbp_status status = SBP_OK;
    while (buffer) {
        ssize_t got = read(fd, buffer + used, capacity - used);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            status = sbp_fail(diag, SBP_IO, "cannot read '%s': %s", path, strerror(errno));
        if (got <= 0)
            break;
        used += (size_t)got;
        if (used == capacity) {
            char *larger = capacity < SIZE_MAX / 2 ? sbp_realloc(buffer, capacity * 2) : NULL;
            if (!larger)
                free(buffer);
            buffer = larger;
            capacity *= 2;
        }
    }
    if (!buffer)
        return sbp_fail(diag, SBP_MACHINE, "out of memory reading '%s'", path);
    if (status == SBP_OK) {
        allocation a = {.arena = arena, .bytes = used + 1};
        status = sbp_guard(arena, diag, allocate, &a);
        if (status == SBP_OK) {
            memcpy(a.data, buffer, used);
            *data = a.data;
            *length = used;
        }
    }
    free(buffer);
    return status;
}

sbp_status sbp_file_pread(sbp_diag *diag, int fd, const char *path, void *out, int64_t length,
                          int64_t offset) {
    char *at = out;
    while (length > 0) {
        /* Linux reads at most 0x7ffff000 bytes a call. */
        size_t piece = length > 0x40000000 ? 0x40000000 : (size_t)length;
        ssize_t got = pread(fd, at, piece, offset);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return sbp_fail(diag, SBP_IO, "cannot read '%s': %s", path, strerror(errno));
        if (got == 0)
            return sbp_fail(diag, SBP_IO, "'%s' ends %lld bytes before what was to be read at offset %lld",
                            path, (long long)length, (long long)offset);
        at += got;
        length -= got;
        offset += got;
    }
    return SBP_OK;
}

sbp_status sbp_file_open_regular(sbp_diag *diag, const char *path, int *fd) {
    struct stat info;
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (*fd < 0)
        return sbp_fail(diag, SBP_IO, "cannot open '%s': %s", path, strerror(errno));
    if (fstat(*fd, &info) == 0 && S_ISREG(info.st_mode))
        return SBP_OK;
    close(*fd);
    *fd = -1;
    return sbp_fail(diag, SBP_IO, "cannot read '%s': it is not a regular file", path);
}

static sbp_status read_open_file(sbp_arena *arena, sbp_diag *diag, int fd, const char *path,
                                 const char **data, size_t *length) {
    struct stat info;
    if (fstat(fd, &info) != 0)
        return sbp_fail(diag, SBP_IO, "cannot read '%s': %s", path, strerror(errno));
    if (S_ISDIR(info.st_mode))
        return sbp_fail(diag, SBP_IO, "cannot read '%s': it is a directory", path);
    if (!S_ISREG(info.st_mode) || info.st_size == 0)
        return read_stream(arena, diag, fd, path, data, length);
    allocation a = {.arena = arena, .bytes = (size_t)info.st_size + 1};
    SBP_TRY(sbp_guard(arena, diag, allocate, &a));
    SBP_TRY(sbp_file_pread(diag, fd, path, a.data, info.st_size, 0));
    *data = a.data;
    *length = (size_t)info.st_size;
    return SBP_OK;
}

sbp_status sbp_file_read(sbp_arena *arena, sbp_diag *diag, const char *path, const char **data,
                         size_t *length) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return sbp_fail(diag, SBP_IO, "cannot open '%s': %s", path, strerror(errno));
    sbp_status status = read_open_file(arena, diag, fd, path, data, length);
    close(fd);
    return status;
}

/* ---- writing -------------------------------------------------------------------------------------- */

struct sbp_file_out {
    int fd;
    int64_t position;
    bool direct; /* no temporary file: the target is a device or a pipe */
    char *path;
    char *temporary; /* beside path, in the same allocation */
};

static void out_free(sbp_file_out *out) {
    free(out->path);
    free(out);
}

static sbp_status out_failed(const sbp_file_out *out, sbp_diag *diag) {
    return sbp_fail(diag, SBP_IO, "cannot write '%s': %s", out->path, strerror(errno));
}

/* ".PROCESS.ATTEMPT.tmp" at the end */
bool sbp_file_is_temporary(const char *name) {
    const char *at = name + strlen(name) - (strlen(name) < 4 ? 0 : 4);
    if (strcmp(at, ".tmp") != 0)
        return false;
    for (int i = 0; i < 2; i++) {
        const char *end = at;
        while (at > name && at[-1] >= '0' && at[-1] <= '9')
            at--;
        if (at == end || at == name || at[-1] != '.')
            return false;
        at--;
    }
    return at > name;
}

/* Whether a name is BASE.PROCESS.ATTEMPT.tmp of a process that is gone. */
static bool is_of_the_dead(const char *name, const char *base) {
    size_t length = strlen(base);
    int end = 0;
    long pid;
    return length > 0 && strncmp(name, base, length) == 0 &&
           sscanf(name + length, ".%ld.%*d.tmp%n", &pid, &end) == 1 && end > 0 &&
           !name[length + (size_t)end] && pid > 0 && kill((pid_t)pid, 0) != 0 && errno == ESRCH;
}

/* What processes left that were killed while they wrote this path. Processes of other machines may share the
 * directory: what was written in the last minute stays. */
static void remove_leftovers(const char *path) {
    const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
    char directory[4096];
    if (snprintf(directory, sizeof directory, "%.*s.", (int)(base - path), path) >= (int)sizeof directory)
        return;
    DIR *names = opendir(directory);
    struct dirent *entry;
    struct stat s;
    while (names && (entry = readdir(names)))
        if (is_of_the_dead(entry->d_name, base) &&
            fstatat(dirfd(names), entry->d_name, &s, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(s.st_mode) &&
            time(NULL) - s.st_mtim.tv_sec > 60)
            unlinkat(dirfd(names), entry->d_name, 0);
    if (names)
        closedir(names);
}

sbp_status sbp_file_out_open(sbp_diag *diag, const char *path, sbp_file_out **result) {
    size_t length = strlen(path), temporary_bytes = length + 48;
    sbp_file_out *out = sbp_malloc(sizeof *out);
    char *names = sbp_malloc(length + 1 + temporary_bytes);
    if (!out || !names) {
        free(out);
        free(names);
        return sbp_fail(diag, SBP_MACHINE, "out of memory writing '%s'", path);
    }
    *out = (sbp_file_out){.fd = -1, .path = names, .temporary = names + length + 1};
    memcpy(out->path, path, length + 1);

    struct stat info;
    out->direct = stat(path, &info) == 0 && !S_ISREG(info.st_mode);
    if (out->direct) {
        out->fd = open(path, O_WRONLY | O_CLOEXEC);
    } else {
        remove_leftovers(path);
        /* Not mkstemp: the file is to get the mode that the user's umask gives. A leftover of a killed
         * process with our number is stepped over. */
        for (int attempt = 0; attempt < 1000; attempt++) {
            snprintf(out->temporary, temporary_bytes, "%s.%lld.%d.tmp", path, (long long)getpid(), attempt);
            out->fd = open(out->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
            if (out->fd >= 0 || errno != EEXIST)
                break;
        }
    }
    if (out->fd < 0) {
        sbp_status status = out_failed(out, diag);
        out_free(out);
        return status;
    }
    *result = out;
    return SBP_OK;
}

static sbp_status write_all(sbp_file_out *out, sbp_diag *diag, const char *data, int64_t length,
                            int64_t offset) {
    while (length > 0) {
        size_t piece = length > 0x40000000 ? 0x40000000 : (size_t)length;
        ssize_t done = out->direct ? write(out->fd, data, piece) : pwrite(out->fd, data, piece, offset);
        if (done < 0 && errno == EINTR)
            continue;
        if (done < 0)
            return out_failed(out, diag);
        data += done;
        length -= done;
        offset += done;
    }
    return SBP_OK;
}

sbp_status sbp_file_out_write(sbp_file_out *out, sbp_diag *diag, const void *data, int64_t length) {
    SBP_TRY(write_all(out, diag, data, length, out->position));
    out->position += length;
    return SBP_OK;
}

sbp_status sbp_file_out_write_at(sbp_file_out *out, sbp_diag *diag, const void *data, int64_t length,
                                 int64_t offset) {
    if (out->direct && offset != out->position)
        return sbp_fail(diag, SBP_IO,
                        "cannot write '%s': it is not a regular file, so it must be written in order",
                        out->path);
    if (out->direct)
        return sbp_file_out_write(out, diag, data, length);
    return write_all(out, diag, data, length, offset);
}

/* Makes the rename durable. Some file systems cannot sync a directory; that is no failure of ours. */
static void sync_directory(const char *path) {
    const char *slash = strrchr(path, '/');
    size_t length = slash ? (size_t)(slash - path) + 1 : 0;
    char *directory = sbp_malloc(length + 2);
    if (!directory)
        return;
    memcpy(directory, path, length);
    memcpy(directory + length, ".", 2);
    int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        fsync(fd);
        close(fd);
    }
    free(directory);
}

sbp_status sbp_file_out_finish(sbp_file_out *out, sbp_diag *diag) {
    sbp_status status = SBP_OK;
    if (out->fd < 0)
        return status;
    if (!out->direct && fsync(out->fd) != 0)
        status = out_failed(out, diag);
    if (close(out->fd) != 0 && status == SBP_OK)
        status = out_failed(out, diag);
    out->fd = -1;
    return status;
}

sbp_status sbp_file_out_commit(sbp_file_out *out, sbp_diag *diag) {
    sbp_status status = sbp_file_out_finish(out, diag);
    if (!out->direct) {
        if (status == SBP_OK && rename(out->temporary, out->path) != 0)
            status = out_failed(out, diag);
        if (status == SBP_OK)
            sync_directory(out->path);
        else
            unlink(out->temporary);
    }
    out_free(out);
    return status;
}

void sbp_file_out_abort(sbp_file_out *out) {
    if (!out)
        return;
    if (out->fd >= 0)
        close(out->fd);
    if (!out->direct)
        unlink(out->temporary);
    out_free(out);
}

sbp_status sbp_file_write(sbp_diag *diag, const char *path, const void *data, size_t length) {
    sbp_file_out *out;
    SBP_TRY(sbp_file_out_open(diag, path, &out));
    sbp_status status = sbp_file_out_write(out, diag, data, (int64_t)length);
    if (status != SBP_OK) {
        sbp_file_out_abort(out);
        return status;
    }
    return sbp_file_out_commit(out, diag);
}
