/* shadow.c: the transfer shadow, a device for tests. Nothing runs: each command is recorded as copies of the
 * bytes that it reads and writes, fences as the barriers that the real device records, under synchronization
 * validation, which sees missing barriers between transfers (and none between dispatches that use addresses).
 * What it objects to fails the next wait.
 *
 * The layer follows one queue, so a queue of the program is a stage of that one: compute the transfers, the
 * others, as one, compute shaders that copy between descriptors, which the layer sees as it does transfers. A
 * fence is a barrier from the stage of the one queue to that of the other, and orders nothing else. Bytes are
 * SCALE times as far apart as in the program, so that descriptors may begin at any.
 *
 * A command that both reads and writes bytes is recorded as writing them: whatever conflicts with the read
 * conflicts with the write. */
#include "backends/vulkan/device/vulkan.h"
#include "backends/vulkan/vulkan_device.h"

#include <stdlib.h>
#include <string.h>

enum {
    MOST_REGIONS = 1024,
    MOST_INTERVALS = 1 << 16,
    DUMP_BYTES = 1 << 30,
    SCALE = 16,
    MOST_SETS = 4096 /* of descriptors, in one command buffer */
};

/* b[0] = a[0], of two storage buffers at bindings 0 (read only) and 1 (write only), as glslc makes it of
 *     void main() { b.v[0] = a.v[0]; } */
static const uint32_t copy_words[] = {
    0x7230203,  0x10500,    0xd000b, 0x18,    0x0,     0x20011, 0x1,     0x6000b, 0x1,     0x4c534c47,
    0x6474732e, 0x3035342e, 0x0,     0x3000e, 0x0,     0x1,     0x7000f, 0x5,     0x4,     0x6e69616d,
    0x0,        0xa,        0x10,    0x60010, 0x4,     0x11,    0x1,     0x1,     0x1,     0x40047,
    0x7,        0x6,        0x4,     0x40048, 0x8,     0x0,     0x19,    0x50048, 0x8,     0x0,
    0x23,       0x0,        0x30047, 0x8,     0x2,     0x40047, 0xa,     0x22,    0x0,     0x40047,
    0xa,        0x21,       0x1,     0x40047, 0xd,     0x6,     0x4,     0x40048, 0xe,     0x0,
    0x18,       0x50048,    0xe,     0x0,     0x23,    0x0,     0x30047, 0xe,     0x2,     0x40047,
    0x10,       0x22,       0x0,     0x40047, 0x10,    0x21,    0x0,     0x40047, 0x17,    0xb,
    0x19,       0x20013,    0x2,     0x30021, 0x3,     0x2,     0x40015, 0x6,     0x20,    0x0,
    0x3001d,    0x7,        0x6,     0x3001e, 0x8,     0x7,     0x40020, 0x9,     0xc,     0x8,
    0x4003b,    0x9,        0xa,     0xc,     0x40015, 0xb,     0x20,    0x1,     0x4002b, 0xb,
    0xc,        0x0,        0x3001d, 0xd,     0x6,     0x3001e, 0xe,     0xd,     0x40020, 0xf,
    0xc,        0xe,        0x4003b, 0xf,     0x10,    0xc,     0x40020, 0x11,    0xc,     0x6,
    0x40017,    0x15,       0x6,     0x3,     0x4002b, 0x6,     0x16,    0x1,     0x6002c, 0x15,
    0x17,       0x16,       0x16,    0x16,    0x50036, 0x2,     0x4,     0x0,     0x3,     0x200f8,
    0x5,        0x60041,    0x11,    0x12,    0x10,    0xc,     0xc,     0x4003d, 0x6,     0x13,
    0x12,       0x60041,    0x11,    0x14,    0xa,     0xc,     0xc,     0x3003e, 0x14,    0x13,
    0x100fd,    0x10038};

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
    int queue; /* of the command at hand */
    vulkan_buffer arenas[SBP_SPACE_COUNT];
    vulkan_buffer source, dump; /* nobody writes source; nobody reads dump */
    int64_t dump_at;
    const sbp_command *skipped;
    interval_list reads, writes;
    VkBufferCopy regions[MOST_REGIONS];
    VkDescriptorSetLayout set_layout;
    VkPipelineLayout layout;
    VkPipeline copy;
    VkDescriptorPool sets;
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
    VULKAN_TRY(&s->d, diag, ResetDescriptorPool(s->d.device, s->sets, 0));
    VULKAN_TRY(&s->d, diag, BeginCommandBuffer(s->commands, &info));
    s->d.vk.CmdBindPipeline(s->commands, VK_PIPELINE_BIND_POINT_COMPUTE, s->copy);
    s->open = true;
    s->dump_at = 0;
    return SBP_OK;
}

static void flush_regions(shadow *s, VkBuffer from, VkBuffer to, uint32_t *count) {
    if (*count > 0)
        s->d.vk.CmdCopyBuffer(s->commands, from, to, *count, s->regions);
    *count = 0;
}

/* A copy by a dispatch; from source: from its beginning. */
static sbp_status dispatch_copy(shadow *s, VkBuffer from, VkBuffer to, const VkBufferCopy *region,
                                sbp_diag *diag) {
    VkDescriptorSet set;
    VkDescriptorSetAllocateInfo info = {.sType = VK_STRUCTURE_TYPE_DESCRIPTOR_SET_ALLOCATE_INFO,
                                        .descriptorPool = s->sets,
                                        .descriptorSetCount = 1,
                                        .pSetLayouts = &s->set_layout};
    VULKAN_TRY(&s->d, diag, AllocateDescriptorSets(s->d.device, &info, &set));
    VkDescriptorBufferInfo ends[] = {{.buffer = from, .offset = region->srcOffset, .range = region->size},
                                     {.buffer = to, .offset = region->dstOffset, .range = region->size}};
    VkWriteDescriptorSet writes[2];
    for (uint32_t i = 0; i < 2; i++)
        writes[i] = (VkWriteDescriptorSet){.sType = VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET,
                                           .dstSet = set,
                                           .dstBinding = i,
                                           .descriptorCount = 1,
                                           .descriptorType = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER,
                                           .pBufferInfo = &ends[i]};
    s->d.vk.UpdateDescriptorSets(s->d.device, 2, writes, 0, NULL);
    s->d.vk.CmdBindDescriptorSets(s->commands, VK_PIPELINE_BIND_POINT_COMPUTE, s->layout, 0, 1, &set, 0,
                                  NULL);
    s->d.vk.CmdDispatch(s->commands, 1, 1, 1);
    return SBP_OK;
}

static sbp_status record_read(shadow *s, int space, int64_t begin_at, int64_t end, uint32_t *count,
                              sbp_diag *diag) {
    int64_t bytes = SCALE * (end - begin_at);
    if (bytes > s->dump.bytes - s->dump_at)
        return sbp_fail(diag, SBP_INTERNAL, "vulkan: more than %lld bytes are read in one command buffer",
                        (long long)s->dump.bytes);
    VkBufferCopy region = {.srcOffset = (VkDeviceSize)(SCALE * begin_at),
                           .dstOffset = (VkDeviceSize)s->dump_at,
                           .size = (VkDeviceSize)bytes};
    s->dump_at += bytes;
    if (s->queue == 1)
        return dispatch_copy(s, s->arenas[space].buffer, s->dump.buffer, &region, diag);
    s->regions[(*count)++] = region;
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

static sbp_status record_writes(shadow *s, int space, sbp_diag *diag) {
    uint32_t count = 0;
    for (int32_t i = 0; i < s->writes.count; i++) {
        const interval *x = &s->writes.items[i];
        VkBufferCopy region = {.dstOffset = (VkDeviceSize)(SCALE * x->begin),
                               .size = (VkDeviceSize)(SCALE * (x->end - x->begin))};
        if (s->queue == 1) {
            SBP_TRY(dispatch_copy(s, s->source.buffer, s->arenas[space].buffer, &region, diag));
            continue;
        }
        s->regions[count++] = region;
        if (count == MOST_REGIONS)
            flush_regions(s, s->source.buffer, s->arenas[space].buffer, &count);
    }
    flush_regions(s, s->source.buffer, s->arenas[space].buffer, &count);
    return SBP_OK;
}

/* Later commands of one queue behind the earlier ones of another, or the same. */
static void record_fence(shadow *s, int32_t from, int32_t to) {
    static const VkPipelineStageFlags2 stages[] = {VK_PIPELINE_STAGE_2_ALL_TRANSFER_BIT,
                                                   VK_PIPELINE_STAGE_2_COMPUTE_SHADER_BIT};
    static const VkAccessFlags2 writes[] = {VK_ACCESS_2_TRANSFER_WRITE_BIT, VK_ACCESS_2_SHADER_WRITE_BIT},
                                reads[] = {VK_ACCESS_2_TRANSFER_READ_BIT, VK_ACCESS_2_SHADER_READ_BIT};
    VkMemoryBarrier2 barrier = {.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER_2,
                                .srcStageMask = stages[from],
                                .srcAccessMask = writes[from],
                                .dstStageMask = stages[to],
                                .dstAccessMask = reads[to] | writes[to]};
    VkDependencyInfo info = {
        .sType = VK_STRUCTURE_TYPE_DEPENDENCY_INFO, .memoryBarrierCount = 1, .pMemoryBarriers = &barrier};
    s->d.vk.CmdPipelineBarrier2(s->commands, &info);
}

static sbp_status shadow_submit(sbp_device *base, const sbp_dispatch *dispatch, sbp_diag *diag) {
    shadow *s = (shadow *)base;
    sbp_command_operand operands[SBP_MAX_COMMAND_OPERANDS];
    SBP_TRY(begin(s, diag));
    if (dispatch->command->kind == SBP_CMD_FENCE) {
        if (dispatch->command == s->skipped)
            return SBP_OK;
        record_fence(s, dispatch->command->u.fence.from != 0, dispatch->command->u.fence.to != 0);
        return SBP_OK;
    }
    s->queue = dispatch->command->queue != 0;
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
        SBP_TRY(record_writes(s, space, diag));
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
        if (s->copy)
            s->d.vk.DestroyPipeline(s->d.device, s->copy, NULL);
        if (s->layout)
            s->d.vk.DestroyPipelineLayout(s->d.device, s->layout, NULL);
        if (s->set_layout)
            s->d.vk.DestroyDescriptorSetLayout(s->d.device, s->set_layout, NULL);
        if (s->sets)
            s->d.vk.DestroyDescriptorPool(s->d.device, s->sets, NULL);
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

/* The copy by a shader, and descriptors for it. */
static sbp_status create_copy(shadow *s, sbp_diag *diag) {
    VkDescriptorPoolSize size = {.type = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, .descriptorCount = 2 * MOST_SETS};
    VkDescriptorPoolCreateInfo pool = {.sType = VK_STRUCTURE_TYPE_DESCRIPTOR_POOL_CREATE_INFO,
                                       .maxSets = MOST_SETS,
                                       .poolSizeCount = 1,
                                       .pPoolSizes = &size};
    VkDescriptorSetLayoutBinding bindings[2];
    for (uint32_t i = 0; i < 2; i++)
        bindings[i] = (VkDescriptorSetLayoutBinding){.binding = i,
                                                     .descriptorType = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER,
                                                     .descriptorCount = 1,
                                                     .stageFlags = VK_SHADER_STAGE_COMPUTE_BIT};
    VkDescriptorSetLayoutCreateInfo set = {.sType = VK_STRUCTURE_TYPE_DESCRIPTOR_SET_LAYOUT_CREATE_INFO,
                                           .bindingCount = 2,
                                           .pBindings = bindings};
    VULKAN_TRY(&s->d, diag, CreateDescriptorPool(s->d.device, &pool, NULL, &s->sets));
    VULKAN_TRY(&s->d, diag, CreateDescriptorSetLayout(s->d.device, &set, NULL, &s->set_layout));
    VkPipelineLayoutCreateInfo layout = {.sType = VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO,
                                         .setLayoutCount = 1,
                                         .pSetLayouts = &s->set_layout};
    VULKAN_TRY(&s->d, diag, CreatePipelineLayout(s->d.device, &layout, NULL, &s->layout));
    VkShaderModuleCreateInfo source = {.sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO,
                                       .codeSize = sizeof copy_words,
                                       .pCode = copy_words};
    VkShaderModule module;
    VULKAN_TRY(&s->d, diag, CreateShaderModule(s->d.device, &source, NULL, &module));
    VkComputePipelineCreateInfo info = {
        .sType = VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO,
        .stage = {.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO,
                  .stage = VK_SHADER_STAGE_COMPUTE_BIT,
                  .module = module,
                  .pName = "main"},
        .layout = s->layout};
    VkResult result = s->d.vk.CreateComputePipelines(s->d.device, VK_NULL_HANDLE, 1, &info, NULL, &s->copy);
    s->d.vk.DestroyShaderModule(s->d.device, module, NULL);
    return result == VK_SUCCESS ? SBP_OK : vulkan_fail(&s->d, result, "CreateComputePipelines", diag);
}

static sbp_status shadow_create(const sbp_device_options *options, sbp_diag *diag, sbp_device **out) {
    *out = NULL;
    shadow *s = sbp_malloc(sizeof *s);
    if (!s)
        return sbp_fail(diag, SBP_MACHINE, "out of memory for the shadow of commands");
    memset(s, 0, sizeof *s);
    s->d.base.class = &sbp_vulkan_shadow_device;
    sbp_status status = vulkan_device_open(&s->d, options, "sync", diag);
    if (status == SBP_OK)
        status = create_pool(s, diag);
    if (status == SBP_OK)
        status = create_copy(s, diag);
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
        int64_t bytes = SCALE * program->arena_bytes[i];
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
    vulkan_backend_class.info(base, out);
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
