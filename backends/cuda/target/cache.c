/* cache.c: what was compiled before, in files: HASH.kernel in $XDG_CACHE_HOME/streambp/cuda.
 *
 * A file: header, text, cubin, PTX, log. The name is a hash of the text and of what else the code depends on;
 * the text itself is compared, so that two texts of one hash are no error. */
#include "backends/cuda/target/target.h"
#include "ir/base/file.h"
#include "ir/base/machine.h"

#include <fcntl.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct header {
    char magic[8];
    uint64_t identity;
    int64_t text_bytes, cubin_bytes, ptx_bytes, log_bytes;
    uint64_t hash; /* of all that follows */
} header;

static const char MAGIC[8] = "SBPKERN";

enum { MOST_BYTES = 1 << 28 }; /* of one file: what is larger is damaged */

void sbp_cuda_cache_open(sbp_cuda_cache *cache) {
    char below[sizeof cache->folder + 8];
    if (!sbp_cache_path("cuda", cache->folder, sizeof cache->folder)) {
        cache->folder[0] = 0;
        return;
    }
    snprintf(below, sizeof below, "%s/x", cache->folder);
    sbp_make_directories_above(below);
}

static void path_of(const sbp_cuda_cache *cache, uint64_t identity, const sbp_cuda_source *source,
                    char path[4096]) {
    uint64_t hash = sbp_hash_bytes(source->text, source->bytes, identity);
    snprintf(path, 4096, "%s/%016llx.kernel", cache->folder, (unsigned long long)hash);
}

/* ---- reading ----------------------------------------------------------------------------------------- */

static bool plausible(const header *h, uint64_t identity, const sbp_cuda_source *source, int64_t bytes) {
    const int64_t parts[] = {h->text_bytes, h->cubin_bytes, h->ptx_bytes, h->log_bytes};
    int64_t all = (int64_t)sizeof *h;
    for (int i = 0; i < SBP_COUNT(parts); i++) {
        if (parts[i] < 1 || parts[i] > MOST_BYTES)
            return false;
        all += parts[i];
    }
    return memcmp(h->magic, MAGIC, sizeof h->magic) == 0 && h->identity == identity && all == bytes &&
           h->text_bytes == (int64_t)source->bytes;
}

static bool read_all(int fd, char *out, int64_t bytes, int64_t from) {
    return sbp_file_pread(NULL, fd, "", out, bytes, from) == SBP_OK;
}

static bool read_object(int fd, uint64_t identity, const sbp_cuda_source *source, sbp_cuda_object *out) {
    header h;
    struct stat about;
    if (fstat(fd, &about) != 0 || about.st_size < (off_t)sizeof h || !read_all(fd, (char *)&h, sizeof h, 0) ||
        !plausible(&h, identity, source, (int64_t)about.st_size))
        return false;
    int64_t bytes = (int64_t)about.st_size - (int64_t)sizeof h;
    char *data = sbp_malloc((size_t)bytes);
    bool good = data && read_all(fd, data, bytes, (int64_t)sizeof h) &&
                sbp_hash_bytes(data, (size_t)bytes, 0) == h.hash &&
                memcmp(data, source->text, source->bytes) == 0;
    if (good)
        memmove(data, data + h.text_bytes, (size_t)(bytes - h.text_bytes));
    else
        free(data);
    *out = good ? (sbp_cuda_object){data, h.cubin_bytes, h.ptx_bytes, h.log_bytes} : (sbp_cuda_object){0};
    return good && data[h.cubin_bytes + h.ptx_bytes - 1] == 0 && data[bytes - h.text_bytes - 1] == 0;
}

bool sbp_cuda_cache_get(const sbp_cuda_cache *cache, uint64_t identity, const sbp_cuda_source *source,
                        sbp_cuda_object *out) {
    char path[4096];
    *out = (sbp_cuda_object){0};
    if (!cache->folder[0])
        return false;
    path_of(cache, identity, source, path);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    bool found = read_object(fd, identity, source, out);
    if (found)
        futimens(fd, NULL); /* used now: what was not is trimmed first */
    close(fd);
    if (!found) {
        free(out->data);
        *out = (sbp_cuda_object){0};
    }
    return found;
}

/* ---- writing ----------------------------------------------------------------------------------------- */

/* A disk that is full or cannot be written only means that it is compiled again next time. The file is no
 * one's only copy, so it is not synced: after a power cut it may be damaged, and is compiled again. */
void sbp_cuda_cache_put(const sbp_cuda_cache *cache, uint64_t identity, const sbp_cuda_source *source,
                        const sbp_cuda_object *object) {
    char path[4096], temporary[4096];
    int64_t bytes = object->cubin_bytes + object->ptx_bytes + object->log_bytes;
    header h = {.identity = identity,
                .text_bytes = (int64_t)source->bytes,
                .cubin_bytes = object->cubin_bytes,
                .ptx_bytes = object->ptx_bytes,
                .log_bytes = object->log_bytes};
    if (!cache->folder[0])
        return;
    memcpy(h.magic, MAGIC, sizeof h.magic);
    size_t size = sizeof h + source->bytes + (size_t)bytes;
    char *all = sbp_malloc(size);
    if (!all)
        return;
    memcpy(all + sizeof h, source->text, source->bytes);
    memcpy(all + sizeof h + source->bytes, object->data, (size_t)bytes);
    h.hash = sbp_hash_bytes(all + sizeof h, size - sizeof h, 0);
    memcpy(all, &h, sizeof h);
    path_of(cache, identity, source, path);
    snprintf(temporary, sizeof temporary, "%.3072s/write.XXXXXX", cache->folder);
    int fd = mkstemp(temporary);
    if (fd >= 0) {
        ssize_t written = write(fd, all, size);
        bool good = close(fd) == 0 && written == (ssize_t)size;
        if (!good || rename(temporary, path) != 0)
            unlink(temporary);
    }
    free(all);
}

/* ---- trimming ---------------------------------------------------------------------------------------- */

typedef struct entry {
    const char *path;
    int64_t bytes;
    struct timespec used;
} entry;

static int compare_entries(const void *a, const void *b) {
    const entry *one = a, *other = b;
    if (one->used.tv_sec != other->used.tv_sec)
        return one->used.tv_sec > other->used.tv_sec ? -1 : 1;
    if (one->used.tv_nsec != other->used.tv_nsec)
        return one->used.tv_nsec > other->used.tv_nsec ? -1 : 1;
    return strcmp(one->path, other->path);
}

/* The newest stay. What a killed process was writing counts as a file like others; names that are not of
 * this cache stay. */
void sbp_cuda_cache_trim(const sbp_cuda_cache *cache, int64_t bytes) {
    static const char *const names[] = {"*.kernel", "write.??????"};
    char pattern[4096];
    glob_t found = {0};
    if (!cache->folder[0])
        return;
    for (int i = 0; i < SBP_COUNT(names); i++) {
        snprintf(pattern, sizeof pattern, "%.3072s/%s", cache->folder, names[i]);
        (void)glob(pattern, i > 0 ? GLOB_APPEND : 0, NULL, &found);
    }
    entry *entries = found.gl_pathc > 0 ? sbp_malloc((found.gl_pathc + 1) * sizeof *entries) : NULL;
    size_t count = 0;
    int64_t all = 0;
    for (size_t i = 0; entries && i < found.gl_pathc; i++) {
        struct stat about;
        if (stat(found.gl_pathv[i], &about) == 0 && S_ISREG(about.st_mode))
            entries[count++] = (entry){found.gl_pathv[i], (int64_t)about.st_size, about.st_mtim};
    }
    if (count > 1)
        qsort(entries, count, sizeof *entries, compare_entries);
    for (size_t i = 0; i < count; i++) {
        all += entries[i].bytes;
        if (all > bytes)
            unlink(entries[i].path);
    }
    free(entries);
    globfree(&found);
}
