/* arena.c: arenas, and how the host reaches them.
 *
 * An arena is one allocation where the device allows it, else several: cut where no buffer of the program
 * lies (the memory pass keeps buffers out of the way of the cuts of its target). */
#include "backends/vulkan/device/vulkan.h"

#include <stdlib.h>
#include <string.h>

/* ---- arenas ----------------------------------------------------------------------------------------- */

typedef struct interval {
    int64_t begin, end;
} interval;

static int by_begin(const void *a, const void *b) {
    const interval *x = a, *y = b;
    return x->begin < y->begin ? -1 : x->begin > y->begin;
}

/* What must stay together: the buffers of a space, those that overlap as one. Returns their number. */
static int32_t find_pieces(const sbp_program *program, sbp_space space, interval *out) {
    int32_t count = 0, merged = 0;
    for (int32_t b = 0; b < program->buffer_count; b++) {
        const sbp_buffer *buffer = &program->buffers[b];
        if (buffer->space == space && buffer->offset >= 0 && buffer->stride > 0)
            out[count++] = (interval){buffer->offset, buffer->offset + buffer->stride * buffer->count};
    }
    qsort(out, (size_t)count, sizeof *out, by_begin);
    for (int32_t i = 0; i < count; i++) {
        if (merged > 0 && out[i].begin < out[merged - 1].end) {
            if (out[i].end > out[merged - 1].end)
                out[merged - 1].end = out[i].end;
        } else {
            out[merged++] = out[i];
        }
    }
    return merged;
}

static int64_t largest_block(const vulkan_device *d) {
    int64_t most = INT64_MAX;
    if (d->physical.v11.maxMemoryAllocationSize < (VkDeviceSize)most)
        most = (int64_t)d->physical.v11.maxMemoryAllocationSize;
    if (d->physical.v13.maxBufferSize < (VkDeviceSize)most)
        most = (int64_t)d->physical.v13.maxBufferSize;
    return vulkan_test_asks("blocks") ? 64 << 10 : most;
}

static sbp_status add_block(vulkan_device *d, sbp_space space, int64_t start, int64_t end, sbp_diag *diag) {
    vulkan_arena *arena = &d->arenas[space];
    vulkan_block *block = &arena->blocks[arena->count++];
    block->start = start;
    return vulkan_buffer_create(d, space == SBP_DEVICE ? VULKAN_DEVICE_ARENA : VULKAN_HOST_ARENA, end - start,
                                &block->buffer, diag);
}

static sbp_status cut_arena(vulkan_device *d, sbp_space space, const interval *pieces, int32_t count,
                            sbp_diag *diag) {
    int64_t most = largest_block(d), bytes = d->program->arena_bytes[space], start = 0;
    bool may_exceed = vulkan_test_asks("blocks");
    while (bytes - start > most) {
        int64_t cut = start + most; /* the last place that is inside no piece */
        for (int32_t i = count - 1; i >= 0; i--)
            if (pieces[i].begin < cut && cut < pieces[i].end)
                cut = pieces[i].begin;
        if (cut <= start && may_exceed) { /* smaller than a buffer for the sake of a test */
            cut = start + most;
            for (int32_t i = 0; i < count; i++)
                if (pieces[i].begin < cut && cut < pieces[i].end)
                    cut = pieces[i].end;
        }
        if (cut <= start) {
            char need[32], limit[32];
            int64_t size = 0;
            for (int32_t i = 0; i < count; i++)
                if (pieces[i].begin <= start && start < pieces[i].end)
                    size = pieces[i].end - start;
            return sbp_fail(
                diag, SBP_MACHINE,
                "vulkan: the plan has a buffer, or buffers that share memory, of %s; %s allocates at "
                "most %s at once",
                sbp_format_bytes(need, sizeof need, (double)size), d->physical.properties.deviceName,
                sbp_format_bytes(limit, sizeof limit, (double)most));
        }
        SBP_TRY(add_block(d, space, start, cut, diag));
        start = cut;
    }
    return bytes > start ? add_block(d, space, start, bytes, diag) : SBP_OK;
}

/* The whole is checked first: drivers may grant memory that they do not have. */
static sbp_status check_memory(const vulkan_device *d, sbp_diag *diag) {
    int64_t used, budget, need = d->program->arena_bytes[SBP_DEVICE];
    int64_t size = (int64_t)d->physical.memory.memoryHeaps[d->physical.heap].size;
    char a[32], b[32], c[32];
    vulkan_physical_usage(&d->vk, &d->physical, &used, &budget);
    if (need > size)
        return sbp_fail(diag, SBP_MACHINE, "the plan needs %s of device memory, %s has %s",
                        sbp_format_bytes(a, sizeof a, (double)need), d->physical.properties.deviceName,
                        sbp_format_bytes(b, sizeof b, (double)size));
    if (budget > 0 && need > budget - used)
        return sbp_fail(diag, SBP_MACHINE,
                        "the plan needs %s of device memory; of the %s of %s, %s are free for this process",
                        sbp_format_bytes(a, sizeof a, (double)need),
                        sbp_format_bytes(b, sizeof b, (double)size), d->physical.properties.deviceName,
                        sbp_format_bytes(c, sizeof c, (double)(budget > used ? budget - used : 0)));
    return SBP_OK;
}

static sbp_status create_arena(vulkan_device *d, sbp_space space, sbp_diag *diag) {
    const sbp_program *program = d->program;
    vulkan_arena *arena = &d->arenas[space];
    if (program->arena_bytes[space] == 0)
        return SBP_OK;
    interval *pieces = sbp_malloc(((size_t)program->buffer_count + 1) * sizeof *pieces);
    int32_t count = pieces ? find_pieces(program, space, pieces) : 0;
    arena->blocks = sbp_malloc(((size_t)count + 2) * sizeof *arena->blocks);
    sbp_status status = pieces && arena->blocks
                            ? cut_arena(d, space, pieces, count, diag)
                            : sbp_fail(diag, SBP_MACHINE, "out of memory for the arenas of a Vulkan device");
    free(pieces);
    arena->bytes = program->arena_bytes[space];
    return status;
}

sbp_status vulkan_arenas_create(vulkan_device *d, sbp_diag *diag) {
    SBP_TRY(check_memory(d, diag));
    SBP_TRY(create_arena(d, SBP_DEVICE, diag));
    return create_arena(d, SBP_HOST, diag);
}

void vulkan_arena_destroy(vulkan_device *d, vulkan_arena *arena) {
    for (int32_t i = 0; i < arena->count; i++)
        vulkan_buffer_destroy(d, &arena->blocks[i].buffer);
    free(arena->blocks);
    *arena = (vulkan_arena){0};
}

/* The block of a byte; NULL when the arena ends before. */
static const vulkan_block *block_at(const vulkan_arena *arena, int64_t offset) {
    int32_t low = 0, high = arena->count;
    while (low < high) {
        int32_t middle = low + (high - low) / 2;
        if (arena->blocks[middle].start + arena->blocks[middle].buffer.bytes <= offset)
            low = middle + 1;
        else
            high = middle;
    }
    return low < arena->count ? &arena->blocks[low] : NULL;
}

static sbp_status wrong_range(const vulkan_device *d, sbp_space space, int64_t offset, int64_t bytes,
                              sbp_diag *diag) {
    return sbp_fail(diag, SBP_INTERNAL, "vulkan: bytes %lld to %lld of an arena of %lld", (long long)offset,
                    (long long)(offset + bytes),
                    (unsigned)space < SBP_SPACE_COUNT ? (long long)d->arenas[space].bytes : 0);
}

sbp_status vulkan_arena_find(vulkan_device *d, sbp_space space, int64_t offset, int64_t bytes,
                             const vulkan_block **out, sbp_diag *diag) {
    const vulkan_block *block =
        (unsigned)space < SBP_SPACE_COUNT && offset >= 0 ? block_at(&d->arenas[space], offset) : NULL;
    if (!block || bytes > block->start + block->buffer.bytes - offset)
        return wrong_range(d, space, offset, bytes, diag);
    *out = block;
    return SBP_OK;
}

/* ---- the host's side -------------------------------------------------------------------------------- */

/* A piece of staged data: the batch has its own memory. */
static sbp_status stage(vulkan_device *d, const vulkan_block *block, int64_t offset, int64_t bytes,
                        bool upload, char **data, sbp_diag *diag) {
    VkCommandBuffer commands;
    VkDeviceAddress address;
    void *memory;
    for (int s = 0; s < VULKAN_STREAMS; s++)
        SBP_TRY(vulkan_stream_order(d, s, VULKAN_STAGING, diag));
    SBP_TRY(vulkan_stream_begin(d, VULKAN_STAGING, bytes, &commands, &memory, &address, diag));
    const vulkan_stream *s = &d->streams[VULKAN_STAGING];
    const vulkan_buffer *staging = &s->batches[s->current].records;
    VkBufferCopy region = {.srcOffset = upload ? 0 : (VkDeviceSize)(offset - block->start),
                           .dstOffset = upload ? (VkDeviceSize)(offset - block->start) : 0,
                           .size = (VkDeviceSize)bytes};
    *data = memory;
    d->vk.CmdCopyBuffer(commands, upload ? staging->buffer : block->buffer.buffer,
                        upload ? block->buffer.buffer : staging->buffer, 1, &region);
    return SBP_OK;
}

/* What was staged is there before anything else runs. */
static sbp_status finish_upload(vulkan_device *d, sbp_diag *diag) {
    for (int s = 0; s < VULKAN_STREAMS; s++)
        SBP_TRY(vulkan_stream_order(d, VULKAN_STAGING, s, diag));
    return SBP_OK;
}

static sbp_status move(vulkan_device *d, sbp_space space, int64_t offset, char *data, int64_t bytes,
                       bool upload, sbp_diag *diag) {
    if (bytes < 0 || offset < 0 || (unsigned)space >= SBP_SPACE_COUNT)
        return wrong_range(d, space, offset, bytes, diag);
    bool waited = false;
    while (bytes > 0) {
        const vulkan_block *block;
        SBP_TRY(vulkan_arena_find(d, space, offset, 1, &block, diag));
        int64_t n = block->start + block->buffer.bytes - offset;
        n = n < bytes ? n : bytes;
        if (block->buffer.mapped) {
            char *at = block->buffer.mapped + (offset - block->start);
            if (!waited)
                SBP_TRY(vulkan_wait_all(d, diag));
            waited = true;
            memcpy(upload ? at : data, upload ? data : at, (size_t)n);
        } else {
            char *staged;
            n = n < VULKAN_STAGING_BYTES ? n : VULKAN_STAGING_BYTES;
            SBP_TRY(stage(d, block, offset, n, upload, &staged, diag));
            if (upload)
                memcpy(staged, data, (size_t)n);
            SBP_TRY(vulkan_stream_submit(d, VULKAN_STAGING, diag));
            if (!upload) {
                SBP_TRY(vulkan_stream_wait(d, VULKAN_STAGING, d->streams[VULKAN_STAGING].submitted, diag));
                memcpy(data, staged, (size_t)n);
            }
        }
        offset += n;
        data += n;
        bytes -= n;
    }
    return finish_upload(d, diag);
}

sbp_status vulkan_arena_write(sbp_device *base, sbp_space space, int64_t offset, const void *data,
                              int64_t bytes, sbp_diag *diag) {
    vulkan_device *d = (vulkan_device *)base;
    return move(d, space, offset, (char *)(uintptr_t)data, bytes, true, diag);
}

sbp_status vulkan_arena_read(sbp_device *base, sbp_space space, int64_t offset, void *data, int64_t bytes,
                             sbp_diag *diag) {
    vulkan_device *d = (vulkan_device *)base;
    return move(d, space, offset, data, bytes, false, diag);
}
