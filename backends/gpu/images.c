/* images.c: the container of kernels that a plan carries:
 *
 *   magic | u32 version | u32 count | count entries | images, each at a multiple of 16
 *   entry: key | u32 tag | u64 offset | u64 bytes
 *
 * Offsets count from the start; images follow each other in the order of their entries. Little endian. */
#include "backends/gpu/gpu.h"

#include <stdlib.h>
#include <string.h>

enum {
    MAGIC_BYTES = 8,
    HEADER_BYTES = 16,
    KEY_BYTES = (int)sizeof(sbp_gpu_key),
    ENTRY_BYTES = KEY_BYTES + 20,
    ALIGNMENT = 16
};

static int compare_images(const void *a, const void *b) {
    const sbp_gpu_image *one = a, *other = b;
    int order = sbp_gpu_key_compare(&one->key, &other->key);
    return order != 0 ? order : (one->tag > other->tag) - (one->tag < other->tag);
}

static int64_t aligned(int64_t bytes) {
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

void sbp_gpu_images_write(sbp_arena *arena, const sbp_gpu_format *format, const sbp_gpu_image *images,
                          int32_t count, const void **data, int64_t *bytes) {
    sbp_gpu_image *sorted = SBP_NEW_ARRAY(arena, sbp_gpu_image, count);
    for (int32_t i = 0; i < count; i++)
        sorted[i] = images[i];
    if (count > 1)
        qsort(sorted, (size_t)count, sizeof *sorted, compare_images);
    int64_t at = aligned(HEADER_BYTES + (int64_t)count * ENTRY_BYTES), size = at;
    for (int32_t i = 0; i < count; i++)
        size += aligned(sorted[i].bytes);
    char *out = sbp_arena_alloc(arena, (size_t)size);
    memset(out, 0, (size_t)size);
    memcpy(out, format->magic, MAGIC_BYTES);
    memcpy(out + 8, &(uint32_t){(uint32_t)format->version}, 4);
    memcpy(out + 12, &(uint32_t){(uint32_t)count}, 4);
    for (int32_t i = 0; i < count; i++) {
        char *entry = out + HEADER_BYTES + (int64_t)i * ENTRY_BYTES;
        memcpy(entry, &sorted[i].key, KEY_BYTES);
        memcpy(entry + KEY_BYTES, &sorted[i].tag, 4);
        memcpy(entry + KEY_BYTES + 4, &at, 8);
        memcpy(entry + KEY_BYTES + 12, &sorted[i].bytes, 8);
        memcpy(out + at, sorted[i].data, (size_t)sorted[i].bytes);
        at += aligned(sorted[i].bytes);
    }
    *data = out;
    *bytes = size;
}

static sbp_status damaged(sbp_diag *diag, const sbp_gpu_format *format, const char *what) {
    return sbp_fail(diag, SBP_INPUT, "the plan's %s kernels are damaged: %s", format->backend, what);
}

static sbp_status read_entry(sbp_arena *arena, sbp_diag *diag, const sbp_gpu_format *format, const char *data,
                             int64_t bytes, const char *entry, int64_t *expected, sbp_gpu_image *out) {
    int64_t at, size;
    memcpy(&out->key, entry, KEY_BYTES);
    memcpy(&out->tag, entry + KEY_BYTES, 4);
    memcpy(&at, entry + KEY_BYTES + 4, 8);
    memcpy(&size, entry + KEY_BYTES + 12, 8);
    if (!sbp_gpu_key_possible(&out->key, format->steps, format->variants))
        return damaged(diag, format, "a key is none");
    if (at != *expected || size < 1 || size > bytes || at > bytes - aligned(size))
        return damaged(diag, format, "a kernel lies outside, or not behind the one before");
    *expected = at + aligned(size);
    void *copy = sbp_arena_alloc(arena, (size_t)aligned(size));
    memcpy(copy, data + at, (size_t)size);
    out->data = copy;
    out->bytes = size;
    return SBP_OK;
}

sbp_status sbp_gpu_images_read(sbp_arena *arena, sbp_diag *diag, const sbp_gpu_format *format,
                               const void *data, int64_t bytes, sbp_gpu_images *out) {
    uint32_t version, count;
    *out = (sbp_gpu_images){0};
    if (!data || bytes < HEADER_BYTES || memcmp(data, format->magic, MAGIC_BYTES) != 0)
        return damaged(diag, format, "no such section, or no container of kernels");
    const char *in = data;
    memcpy(&version, in + 8, 4);
    memcpy(&count, in + 12, 4);
    if (version != (uint32_t)format->version)
        return sbp_fail(diag, SBP_INPUT,
                        "the plan's %s kernels are of version %u, this program reads %d: compile again",
                        format->backend, (unsigned)version, (int)format->version);
    if (count > (bytes - HEADER_BYTES) / ENTRY_BYTES)
        return damaged(diag, format, "fewer kernels than it says");
    sbp_gpu_image *items = SBP_NEW_ARRAY(arena, sbp_gpu_image, (int64_t)count);
    int64_t expected = aligned(HEADER_BYTES + (int64_t)count * ENTRY_BYTES);
    for (int64_t i = 0; i < count; i++) {
        SBP_TRY(read_entry(arena, diag, format, in, bytes, in + HEADER_BYTES + i * ENTRY_BYTES, &expected,
                           &items[i]));
        if (i > 0 && compare_images(&items[i - 1], &items[i]) >= 0)
            return damaged(diag, format, "keys are not in order");
    }
    *out = (sbp_gpu_images){.items = items, .count = (int32_t)count};
    return SBP_OK;
}

const sbp_gpu_image *sbp_gpu_images_find(const sbp_gpu_images *images, const sbp_gpu_key *key) {
    return sbp_gpu_key_find(key, images->items, images->count, sizeof *images->items);
}
