/* disk.c: the disk arena as a file without a name. Pieces of a megabyte and more at block borders go around
 * the page cache (O_DIRECT), through a buffer where memory is not aligned: they are touched once a step, and
 * would push out everything else. The rest goes through the page cache, which the kernel keeps in step. */
#include "backends/composite/disk.h"
#include "ir/base/census.h"
#include "ir/program/program.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum { BLOCK = SBP_DISK_ALIGNMENT, DIRECT_LEAST = 1 << 20, BOUNCE_BYTES = 1 << 20 };

struct composite_disk {
    char *directory;
    int file, direct;      /* descriptors; direct -1: not to be had */
    char *memory, *bounce; /* for `direct`: BOUNCE_BYTES at a block border in it */
    int64_t bytes;
    _Atomic int64_t read_bytes, written_bytes;
};

static sbp_status fail_io(const composite_disk *disk, const char *what, int error, sbp_diag *diag) {
    return sbp_fail(diag, SBP_IO, "cannot %s the file of offloaded data in %s: %s (--offload-dir)", what,
                    disk->directory, strerror(error));
}

/* The file gets its blocks now: running out of them in the middle of a run would lose it. */
static sbp_status reserve(composite_disk *disk, sbp_diag *diag) {
    char need[32], have[32];
    struct statvfs fs;
    int error;
    do
        error = posix_fallocate(disk->file, 0, disk->bytes);
    while (error == EINTR);
    if (error == 0)
        return SBP_OK;
    if (error != ENOSPC && error != EFBIG && error != EDQUOT)
        return fail_io(disk, "make", error, diag);
    bool known = statvfs(disk->directory, &fs) == 0;
    int64_t free_bytes = known ? (int64_t)fs.f_bavail * (int64_t)fs.f_frsize : 0;
    return sbp_fail(diag, SBP_MACHINE,
                    "the plan needs %s on disk for offloaded data; in %s %s are free%s (--offload-dir)",
                    sbp_format_bytes(need, sizeof need, (double)disk->bytes), disk->directory,
                    sbp_format_bytes(have, sizeof have, (double)free_bytes),
                    error == ENOSPC  ? ""
                    : error == EFBIG ? ", and a file may not be that large"
                                     : ", less by quota");
}

static sbp_status open_file(composite_disk *disk, sbp_diag *diag) {
    static const char pattern[] = "/sbp-offload-XXXXXX";
    char path[64], *name;
    disk->file = open(disk->directory, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (disk->file < 0) { /* not every file system can */
        size_t bytes = strlen(disk->directory) + sizeof pattern;
        name = sbp_malloc(bytes);
        if (!name)
            return sbp_fail(diag, SBP_MACHINE, "out of memory for reading and writing on disk");
        snprintf(name, bytes, "%s%s", disk->directory, pattern);
        disk->file = mkostemp(name, O_CLOEXEC);
        int error = errno;
        if (disk->file >= 0)
            unlink(name);
        free(name);
        if (disk->file < 0)
            return fail_io(disk, "make", error, diag);
    }
    snprintf(path, sizeof path, "/proc/self/fd/%d", disk->file);
    disk->direct = open(path, O_RDWR | O_DIRECT | O_CLOEXEC);
    if (disk->direct >= 0) {
        disk->memory = sbp_malloc(BOUNCE_BYTES + BLOCK);
        if (!disk->memory)
            return sbp_fail(diag, SBP_MACHINE, "out of memory for reading and writing on disk");
        disk->bounce = disk->memory + (BLOCK - (uintptr_t)disk->memory % BLOCK) % BLOCK;
    }
    return reserve(disk, diag);
}

sbp_status composite_disk_create(const char *directory, int64_t bytes, sbp_diag *diag, composite_disk **out) {
    *out = NULL;
    composite_disk *disk = sbp_malloc(sizeof *disk);
    if (!disk)
        return sbp_fail(diag, SBP_MACHINE, "out of memory for reading and writing on disk");
    *disk = (composite_disk){.file = -1, .direct = -1, .bytes = sbp_round_up(bytes, BLOCK)};
    size_t length = strlen(directory) + 1;
    disk->directory = sbp_malloc(length);
    if (!disk->directory) {
        composite_disk_destroy(disk);
        return sbp_fail(diag, SBP_MACHINE, "out of memory for reading and writing on disk");
    }
    memcpy(disk->directory, directory, length);
    sbp_status status = open_file(disk, diag);
    if (status != SBP_OK)
        composite_disk_destroy(disk);
    else
        *out = disk;
    return status;
}

void composite_disk_destroy(composite_disk *disk) {
    if (!disk)
        return;
    if (disk->direct >= 0)
        close(disk->direct);
    if (disk->file >= 0)
        close(disk->file);
    free(disk->memory);
    free(disk->directory);
    free(disk);
}

void composite_disk_counts(const composite_disk *disk, int64_t *read_bytes, int64_t *written_bytes) {
    *read_bytes = atomic_load_explicit(&disk->read_bytes, memory_order_relaxed);
    *written_bytes = atomic_load_explicit(&disk->written_bytes, memory_order_relaxed);
}

/* One call of the system; what it moved, or -1. */
static ssize_t move_some(int file, bool writes, char *data, int64_t bytes, int64_t offset) {
    enum { MOST = 1 << 30 };
    size_t n = (size_t)(bytes < MOST ? bytes : MOST);
    ssize_t moved;
    do
        moved = writes ? pwrite(file, data, n, (off_t)offset) : pread(file, data, n, (off_t)offset);
    while (moved < 0 && errno == EINTR);
    if (moved == 0)
        errno = EIO; /* the file ends before its arena */
    return moved == 0 ? -1 : moved;
}

/* As much of a piece as goes around the page cache; 0 when it must go through. */
static ssize_t move_direct(composite_disk *disk, bool writes, char *data, int64_t bytes, int64_t offset) {
    if (disk->direct < 0 || bytes < DIRECT_LEAST || offset % BLOCK != 0) {
        SBP_CROSS(disk_through_cache);
        return 0;
    }
    bytes -= bytes % BLOCK;
    bool aligned = (uintptr_t)data % BLOCK == 0;
    SBP_CROSS_EITHER(aligned, disk_direct, disk_bounced);
    SBP_CROSS_IF(!aligned && bytes > BOUNCE_BYTES, disk_bounced_in_pieces);
    if (!aligned && bytes > BOUNCE_BYTES)
        bytes = BOUNCE_BYTES;
    if (!aligned && writes)
        memcpy(disk->bounce, data, (size_t)bytes);
    ssize_t moved = move_some(disk->direct, writes, aligned ? data : disk->bounce, bytes, offset);
    if (moved < 0 && errno == EINVAL) { /* the file system wants more than it says: no more of this */
        close(disk->direct);
        disk->direct = -1;
        return 0;
    }
    if (!aligned && !writes && moved > 0)
        memcpy(data, disk->bounce, (size_t)moved);
    return moved;
}

static sbp_status move(composite_disk *disk, bool writes, char *data, int64_t bytes, int64_t offset,
                       sbp_diag *diag) {
    if (offset < 0 || bytes < 0 || offset > disk->bytes || bytes > disk->bytes - offset)
        return sbp_fail(diag, SBP_INTERNAL, "disk: bytes %lld to %lld of an arena of %lld", (long long)offset,
                        (long long)(offset + bytes), (long long)disk->bytes);
    while (bytes > 0) {
        ssize_t moved = move_direct(disk, writes, data, bytes, offset);
        if (moved == 0)
            moved = move_some(disk->file, writes, data, bytes, offset);
        if (moved < 0)
            return fail_io(disk, writes ? "write" : "read", errno, diag);
        data += moved;
        offset += moved;
        bytes -= moved;
        atomic_fetch_add_explicit(writes ? &disk->written_bytes : &disk->read_bytes, moved,
                                  memory_order_relaxed);
    }
    return SBP_OK;
}

sbp_status composite_disk_write(composite_disk *disk, int64_t offset, const void *data, int64_t bytes,
                                sbp_diag *diag) {
    return move(disk, true, (char *)(uintptr_t)data, bytes, offset, diag);
}

sbp_status composite_disk_read(composite_disk *disk, int64_t offset, void *data, int64_t bytes,
                               sbp_diag *diag) {
    return move(disk, false, data, bytes, offset, diag);
}
