/* arrays.c: growing by realloc, or by files and mremap. */
#include "runtime/data/arrays.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static const int64_t first_bytes = 1 << 16, most_step_bytes = (int64_t)1 << 28;

void sbp_arrays_init(sbp_arrays *a, int directory) {
    *a = (sbp_arrays){.directory = directory};
}

void sbp_arrays_close(sbp_arrays *a) {
    for (int32_t i = 0; i < a->count; i++) {
        sbp_array *x = &a->items[i];
        if (x->fd < 0) {
            free(x->data);
        } else {
            if (x->data)
                munmap(x->data, (size_t)x->bytes);
            close(x->fd);
        }
    }
    *a = (sbp_arrays){.directory = -1};
}

static sbp_array *find(sbp_arrays *a, const char *name) {
    for (int32_t i = 0; i < a->count; i++)
        if (strcmp(a->items[i].name, name) == 0)
            return &a->items[i];
    return NULL;
}

/* A new one; flags: of openat, where it is a file. */
static sbp_array *add(sbp_arrays *a, const char *name, int flags) {
    if (a->count == SBP_MOST_ARRAYS || strlen(name) >= SBP_ARRAY_NAME)
        return NULL;
    sbp_array *x = &a->items[a->count];
    *x = (sbp_array){.fd = -1};
    strncpy(x->name, name, SBP_ARRAY_NAME - 1);
    if (a->directory >= 0) {
        x->fd = openat(a->directory, name, flags | O_CLOEXEC, 0600);
        if (x->fd < 0) {
            a->error = errno;
            return NULL;
        }
    }
    a->count++;
    return x;
}

static bool grow_file(sbp_arrays *a, sbp_array *x, int64_t bytes) {
    a->error = posix_fallocate(x->fd, x->bytes, bytes - x->bytes);
    if (a->error)
        return false;
    void *data = x->data ? mremap(x->data, (size_t)x->bytes, (size_t)bytes, MREMAP_MAYMOVE)
                         : mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_SHARED, x->fd, 0);
    if (data == MAP_FAILED) {
        a->error = errno;
        return false;
    }
    x->data = data;
    x->bytes = bytes;
    return true;
}

static bool grow_memory(sbp_array *x, int64_t bytes) {
    void *data = sbp_realloc(x->data, (size_t)bytes);
    if (!data)
        return false;
    x->data = data;
    x->bytes = bytes;
    return true;
}

bool sbp_arrays_reserve(sbp_arrays *a, const char *name, void *array, int64_t *capacity, int64_t count,
                        size_t element_bytes) {
    void **out = array;
    int64_t need;
    if (count <= *capacity)
        return true;
    a->error = 0;
    sbp_array *x = find(a, name);
    if (!x)
        x = add(a, name, O_RDWR | O_CREAT | O_EXCL);
    if (!x || !sbp_mul_i64(count, (int64_t)element_bytes, &need))
        return false;
    int64_t more = x->bytes / 2 < most_step_bytes ? x->bytes / 2 : most_step_bytes, bytes = x->bytes + more;
    bytes = bytes < need ? need : bytes;
    if (x->fd >= 0)
        bytes = sbp_round_up(bytes, first_bytes);
    else
        bytes = bytes < 64 * (int64_t)element_bytes ? 64 * (int64_t)element_bytes : bytes;
    if (x->fd >= 0 ? !grow_file(a, x, bytes) : !grow_memory(x, bytes))
        return false;
    *out = x->data;
    *capacity = x->bytes / (int64_t)element_bytes;
    return true;
}

void sbp_arrays_release(const sbp_arrays *a) {
    for (int32_t i = 0; i < a->count; i++)
        if (a->items[i].fd >= 0 && a->items[i].data)
            madvise(a->items[i].data, (size_t)a->items[i].bytes, MADV_DONTNEED);
}

/* ---- files ------------------------------------------------------------------------------------------ */

static bool read_piece(sbp_arrays *a, const sbp_array *x, int64_t at, int64_t length, char *out) {
    for (int64_t done = 0; done < length;) {
        ssize_t got = pread(x->fd, out + done, (size_t)(length - done), at + done);
        if (got <= 0 && !(got < 0 && errno == EINTR)) {
            a->error = got < 0 ? errno : EIO;
            return false;
        }
        done += got > 0 ? got : 0;
    }
    return true;
}

static int64_t piece_length(int64_t bytes, int64_t piece) {
    int64_t left = bytes - piece * SBP_SUM_BYTES;
    return left < SBP_SUM_BYTES ? left : SBP_SUM_BYTES;
}

static bool sum_piece(sbp_arrays *a, const sbp_array *x, int64_t bytes, int64_t piece, char *buffer,
                      uint64_t *out) {
    int64_t length = piece_length(bytes, piece);
    if (!read_piece(a, x, piece * SBP_SUM_BYTES, length, buffer))
        return false;
    *out = sbp_hash_bytes(buffer, (size_t)length, (uint64_t)piece);
    return true;
}

bool sbp_arrays_finish(sbp_arrays *a, const char *name, int64_t bytes, uint64_t *sums) {
    sbp_array *x = find(a, name);
    a->error = 0;
    if (!x)
        x = add(a, name, O_RDWR | O_CREAT | O_EXCL); /* an array without elements */
    if (!x)
        return false;
    if (x->data)
        munmap(x->data, (size_t)x->bytes);
    x->data = NULL;
    x->bytes = 0;
    if (ftruncate(x->fd, bytes) != 0) {
        a->error = errno;
        return false;
    }
    char *buffer = sbp_malloc(SBP_SUM_BYTES);
    bool good = buffer != NULL;
    for (int64_t i = 0; good && i * SBP_SUM_BYTES < bytes; i++)
        good = sum_piece(a, x, bytes, i, buffer, &sums[i]);
    free(buffer);
    return good;
}

bool sbp_arrays_map(sbp_arrays *a, const char *name, int64_t bytes, void *array) {
    void **out = array;
    sbp_array *x = find(a, name);
    a->error = 0;
    if (!x)
        x = add(a, name, O_RDONLY);
    if (!x || lseek(x->fd, 0, SEEK_END) != bytes)
        return false;
    *out = NULL;
    if (bytes == 0)
        return true;
    void *data = mmap(NULL, (size_t)bytes, PROT_READ, MAP_SHARED, x->fd, 0);
    if (data == MAP_FAILED) {
        a->error = errno;
        return false;
    }
    x->data = data;
    x->bytes = bytes;
    *out = data;
    return true;
}

bool sbp_arrays_check(sbp_arrays *a, const char *name, int64_t bytes, const uint64_t *sums, int64_t most) {
    enum { PIECES = 64 };
    const sbp_array *x = find(a, name);
    int64_t count = sbp_ceil_div(bytes, SBP_SUM_BYTES),
            tried = bytes <= most || count <= PIECES ? count : PIECES;
    char *buffer = sbp_malloc(SBP_SUM_BYTES);
    bool good = x && buffer;
    for (int64_t i = 0; good && i < tried; i++) {
        int64_t piece = tried == count ? i : i * (count - 1) / (tried - 1);
        uint64_t sum;
        good = sum_piece(a, x, bytes, piece, buffer, &sum) && sum == sums[piece];
    }
    free(buffer);
    return good;
}
