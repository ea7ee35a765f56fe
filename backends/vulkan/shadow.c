/* shadow.c: the transfer shadow, a device for tests. Nothing runs: each command is recorded as copies of the
 * bytes that it reads and writes, fences as the barriers that the real device records, under synchronization
 * validation, which sees missing barriers between transfers (and none between dispatches that use addresses).
 * What it objects to fails the next wait.
 *
 * A command that both reads and writes bytes is recorded as writing them: whatever conflicts with the read
 * conflicts with the write. */
#include "backends/vulkan/vulkan.h"
#include "backends/vulkan/vulkan_device.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_REGIONS = 1024, MOST_INTERVALS = 1 << 16, DUMP_BYTES = 1 << 30 };

/* Bytes of an arena. */
typedef struct interval {
    int64_t begin, end;
} interval;

typedef struct interval_list {
    interval items[MOST_INTERVALS];
    int32_t count;
} interval_list;

typedef struct shadow {
    vulkan_device d;
    VkCommandPool pool;
    VkCommandBuffer commands;
    bool open;
    vulkan_buffer arenas[SBP_SPACE_COUNT];
    vulkan_buffer source, dump; /* nobody writes source; nobody reads dump */
    int64_t dump_at;
    const sbp_command *skipped;
    interval_list reads, writes;
    VkBufferCopy regions[MOST_REGIONS];
} shadow;

/* ---- ranges ----------------------------------------------------------------------------------------- */

static sbp_status add_interval(interval_list *list, int64_t begin, int64_t end, sbp_diag *diag) {
    if (list->count > 0 && list->items[list->count - 1].end == begin) {
        list->items[list->count - 1].end = end;
        return SBP_OK;
    }
    if (list->count == MOST_INTERVALS)
        return sbp_fail(diag, SBP_INTERNAL, "vulkan: a command with more than %d ranges", MOST_INTERVALS);
    list->items[list->count++] = (interval){begin, end};
    return SBP_OK;
}

static sbp_status add_span(interval_list *list, const sbp_span *span, sbp_diag *diag) {
    int64_t unit = sbp_dtype_bytes(span->dtype);
    for (int64_t r = 0; r < span->rows && span->cols > 0; r++) {
        int64_t begin = span->offset + r * span->stride * unit;
        SBP_TRY(add_interval(list, begin, begin + span->cols * unit, diag));
    }
    return SBP_OK;
}

static int by_begin(const void *a, const void *b) {
    const interval *x = a, *y = b;
    return x->begin < y->begin ? -1 : x->begin > y->begin;
}

/* Sorted, without overlaps. */
static void normalize(interval_list *list) {
    int32_t n = 0;
    qsort(list->items, (size_t)list->count, sizeof *list->items, by_begin);
    for (int32_t i = 0; i < list->count; i++) {
        interval x = list->items[i];
        if (n > 0 && x.begin <= list->items[n - 1].end) {
            if (x.end > list->items[n - 1].end)
                list->items[n - 1].end = x.end;
        } else {
            list->items[n++] = x;
        }
    }
    list->count = n;
}

/* ---- recording -------------------------------------------------------------------------------------- */

static sbp_status begin(shadow *s, sbp_diag *diag) {
    VkCommandBufferBeginInfo info = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO};
    if (s->open)
        return SBP_OK;
    VULKAN_TRY(&s->d, diag, ResetCommandPool(s->d.device, s->pool, 0));
    VULKAN_TRY(&s->d, diag, BeginCommandBuffer(s->commands, &info));
    s->open = true;
    s->dump_at = 0;
    return SBP_OK;
}

static void flush_regions(shadow *s, VkBuffer from, VkBuffer to, uint32_t *count) {
    if (*count > 0)
        s->d.vk.CmdCopyBuffer(s->commands, from, to, *count, s->regions);
    *count = 0;
}

static sbp_status record_read(shadow *s, int space, int64_t begin_at, int64_t end, uint32_t *count,
                              sbp_diag *diag) {
    if (end - begin_at > s->dump.bytes - s->dump_at)
        return sbp_fail(diag, SBP_INTERNAL, "vulkan: more than %lld bytes are read in one command buffer",
                        (long long)s->dump.bytes);
    s->regions[(*count)++] = (VkBufferCopy){.srcOffset = (VkDeviceSize)begin_at,
                                            .dstOffset = (VkDeviceSize)s->dump_at,
                                            .size = (VkDeviceSize)(end - begin_at)};
    s->dump_at += end - begin_at;
    if (*count == MOST_REGIONS)
        flush_regions(s, s->arenas[space].buffer, s->dump.buffer, count);
    return SBP_OK;
}

/* Reads of what is not written as well. */
static sbp_status record_reads(shadow *s, int space, sbp_diag *diag) {
    uint32_t count = 0;
    int32_t w = 0;
    for (int32_t i = 0; i < s->reads.count; i++) {
        int64_t at = s->reads.items[i].begin, end = s->reads.items[i].end;
        while (w < s->writes.count && s->writes.items[w].end <= at)
            w++;
        for (int32_t k = w; at < end; k++) {
            const interval *next =
                k < s->writes.count && s->writes.items[k].begin < end ? &s->writes.items[k] : NULL;
            int64_t stop = next ? next->begin : end;
            if (stop > at)
                SBP_TRY(record_read(s, space, at, stop, &count, diag));
            at = next ? next->end : end;
        }
    }
    flush_regions(s, s->arenas[space].buffer, s->dump.buffer, &count);
    return SBP_OK;
}

static void record_writes(shadow *s, int space) {
    uint32_t count = 0;
    for (int32_t i = 0; i < s->writes.count; i++) {
        const interval *x = &s->writes.items[i];
        s->regions[count++] =
            (VkBufferCopy){.dstOffset = (VkDeviceSize)x->begin, .size = (VkDeviceSize)(x->end - x->begin)};
        if (count == MOST_REGIONS)
            flush_regions(s, s->source.buffer, s->arenas[space].buffer, &count);
    }
    flush_regions(s, s->source.buffer, s->arenas[space].buffer, &count);
}

static sbp_status shadow_submit(sbp_device *base, const sbp_dispatch *dispatch, sbp_diag *diag) {
    shadow *s = (shadow *)base;
    sbp_command_operand operands[SBP_MAX_COMMAND_OPERANDS];
    SBP_TRY(begin(s, diag));
    if (dispatch->command->kind == SBP_CMD_FENCE) {
        if (dispatch->command == s->skipped)
            return SBP_OK;
        vulkan_barrier(&s->d, s->commands, false);
        s->dump_at = 0; /* what was dumped before the barrier may be overwritten behind it */
        return SBP_OK;
    }
    int32_t count = sbp_command_operands(s->d.program, dispatch->command, operands);
    for (int space = 0; space < SBP_SPACE_COUNT; space++) {
        s->reads.count = s->writes.count = 0;
        for (int32_t i = 0; i < dispatch->span_count && i < count; i++)
            if ((int)dispatch->spans[i].space == space)
                SBP_TRY(add_span(operands[i].access == SBP_READ ? &s->reads : &s->writes, &dispatch->spans[i],
                                 diag));
        normalize(&s->reads);
        normalize(&s->writes);
        SBP_TRY(record_reads(s, space, diag));
        record_writes(s, space);
    }
    return SBP_OK;
}

static sbp_status shadow_wait(sbp_device *base, sbp_diag *diag) {
    shadow *s = (shadow *)base;
    if (s->open)
        VULKAN_TRY(&s->d, diag, EndCommandBuffer(s->commands));
    s->open = false;
    int errors = s->d.vk.errors;
    s->d.vk.errors = 0;
    if (errors == 0)
        return SBP_OK;
    return sbp_fail(diag, SBP_INTERNAL, "vulkan: the validation layer has %d errors, the first: %s", errors,
                    s->d.vk.first_error);
}

/* ---- the rest of a device --------------------------------------------------------------------------- */

static void shadow_destroy(sbp_device *base) {
    shadow *s = (shadow *)base;
    if (s->d.device) {
        if (s->pool)
            s->d.vk.DestroyCommandPool(s->d.device, s->pool, NULL);
        for (int i = 0; i < SBP_SPACE_COUNT; i++)
            vulkan_buffer_destroy(&s->d, &s->arenas[i]);
        vulkan_buffer_destroy(&s->d, &s->source);
        vulkan_buffer_destroy(&s->d, &s->dump);
    }
    vulkan_device_close(&s->d);
    free(s);
}

static sbp_status create_pool(shadow *s, sbp_diag *diag) {
    VkCommandPoolCreateInfo pool = {.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
                                    .queueFamilyIndex = s->d.families[0]};
    VULKAN_TRY(&s->d, diag, CreateCommandPool(s->d.device, &pool, NULL, &s->pool));
    VkCommandBufferAllocateInfo info = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
                                        .commandPool = s->pool,
                                        .level = VK_COMMAND_BUFFER_LEVEL_PRIMARY,
                                        .commandBufferCount = 1};
    VULKAN_TRY(&s->d, diag, AllocateCommandBuffers(s->d.device, &info, &s->commands));
    return SBP_OK;
}

static sbp_status shadow_create(const sbp_device_options *options, sbp_diag *diag, sbp_device **out) {
    *out = NULL;
    shadow *s = sbp_malloc(sizeof *s);
    if (!s)
        return sbp_fail(diag, SBP_MACHINE, "out of memory");
    memset(s, 0, sizeof *s);
    s->d.base.class = &sbp_vulkan_shadow_device;
    sbp_status status = vulkan_device_open(&s->d, options, "sync", diag);
    if (status == SBP_OK)
        status = create_pool(s, diag);
    if (status != SBP_OK)
        shadow_destroy(&s->d.base);
    else
        *out = &s->d.base;
    return status;
}

static sbp_status shadow_load(sbp_device *base, const sbp_program *program, sbp_diag *diag) {
    shadow *s = (shadow *)base;
    int64_t most = 16;
    s->d.program = program;
    for (int i = 0; i < SBP_SPACE_COUNT; i++) {
        int64_t bytes = program->arena_bytes[i];
        most = bytes > most ? bytes : most;
        if (bytes > 0)
            SBP_TRY(vulkan_buffer_create(&s->d, VULKAN_DEVICE_ARENA, bytes, &s->arenas[i], diag));
    }
    SBP_TRY(vulkan_buffer_create(&s->d, VULKAN_DEVICE_ARENA, most, &s->source, diag));
    return vulkan_buffer_create(&s->d, VULKAN_DEVICE_ARENA, DUMP_BYTES, &s->dump, diag);
}

/* The host orders what comes after its reads and writes behind what came before. */
static sbp_status shadow_write(sbp_device *base, sbp_space space, int64_t offset, const void *data,
                               int64_t bytes, sbp_diag *diag) {
    (void)space, (void)offset, (void)data, (void)bytes;
    return shadow_wait(base, diag);
}

static sbp_status shadow_read(sbp_device *base, sbp_space space, int64_t offset, void *data, int64_t bytes,
                              sbp_diag *diag) {
    (void)space, (void)offset;
    memset(data, 0, (size_t)bytes);
    return shadow_wait(base, diag);
}

static void shadow_info(sbp_device *base, sbp_device_info *out) {
    sbp_vulkan_device.info(base, out);
}

const sbp_device_class sbp_vulkan_shadow_device = {.name = "vulkan-shadow",
                                                   .create = shadow_create,
                                                   .destroy = shadow_destroy,
                                                   .info = shadow_info,
                                                   .load = shadow_load,
                                                   .write = shadow_write,
                                                   .read = shadow_read,
                                                   .submit = shadow_submit,
                                                   .wait = shadow_wait};

void sbp_vulkan_shadow_skip(sbp_device *device, const sbp_command *fence) {
    ((shadow *)device)->skipped = fence;
}
