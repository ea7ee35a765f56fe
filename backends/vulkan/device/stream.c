/* stream.c: batches of commands, and what orders them.
 *
 * A stream has a timeline semaphore: batch number n sets it to n. Batches of one stream run on one queue of
 * the device, where barriers reach back over earlier batches; a batch that must come after those of another
 * stream waits for its value. A batch is only ever made to wait for what is submitted already, so that
 * streams may share a queue. */
#include "backends/vulkan/device/vulkan.h"

#include <stdlib.h>
#include <string.h>

enum { FIRST_BATCH_COMMANDS = 16 };

static sbp_status create_stream(vulkan_device *d, int32_t index, sbp_diag *diag) {
    vulkan_stream *s = &d->streams[index];
    VkSemaphoreTypeCreateInfo type = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO,
                                      .semaphoreType = VK_SEMAPHORE_TYPE_TIMELINE};
    VkSemaphoreCreateInfo semaphore = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO, .pNext = &type};
    VULKAN_TRY(d, diag, CreateSemaphore(d->device, &semaphore, NULL, &s->timeline));
    for (int i = 0; i < VULKAN_BATCHES; i++) {
        vulkan_batch *b = &s->batches[i];
        VkCommandPoolCreateInfo pool = {.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
                                        .flags = VK_COMMAND_POOL_CREATE_TRANSIENT_BIT,
                                        .queueFamilyIndex = s->family};
        VULKAN_TRY(d, diag, CreateCommandPool(d->device, &pool, NULL, &b->pool));
        VkCommandBufferAllocateInfo info = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
                                            .commandPool = b->pool,
                                            .level = VK_COMMAND_BUFFER_LEVEL_PRIMARY,
                                            .commandBufferCount = 1};
        VULKAN_TRY(d, diag, AllocateCommandBuffers(d->device, &info, &b->commands));
    }
    s->limit = FIRST_BATCH_COMMANDS;
    s->used = true;
    return SBP_OK;
}

sbp_status vulkan_streams_create(vulkan_device *d, sbp_diag *diag) {
    SBP_TRY(create_stream(d, VULKAN_COMPUTE, diag));
    if (d->separate)
        SBP_TRY(create_stream(d, VULKAN_COPIES, diag));
    return create_stream(d, VULKAN_STAGING, diag);
}

void vulkan_streams_destroy(vulkan_device *d) {
    for (int i = 0; i < VULKAN_STREAMS; i++) {
        vulkan_stream *s = &d->streams[i];
        for (int k = 0; k < VULKAN_BATCHES; k++) {
            vulkan_buffer_destroy(d, &s->batches[k].records);
            if (s->batches[k].pool)
                d->vk.DestroyCommandPool(d->device, s->batches[k].pool, NULL);
        }
        if (s->timeline)
            d->vk.DestroySemaphore(d->device, s->timeline, NULL);
        *s = (vulkan_stream){0};
    }
}

/* All writes before are seen by all commands after. */
void vulkan_barrier(const vulkan_device *d, VkCommandBuffer commands, bool to_host) {
    VkMemoryBarrier2 barrier = {
        .sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER_2,
        .srcStageMask = VK_PIPELINE_STAGE_2_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_2_ALL_TRANSFER_BIT,
        .srcAccessMask = VK_ACCESS_2_SHADER_WRITE_BIT | VK_ACCESS_2_TRANSFER_WRITE_BIT,
        .dstStageMask = VK_PIPELINE_STAGE_2_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_2_ALL_TRANSFER_BIT,
        .dstAccessMask = VK_ACCESS_2_SHADER_READ_BIT | VK_ACCESS_2_SHADER_WRITE_BIT |
                         VK_ACCESS_2_TRANSFER_READ_BIT | VK_ACCESS_2_TRANSFER_WRITE_BIT};
    if (to_host) {
        barrier.srcStageMask = VK_PIPELINE_STAGE_2_ALL_COMMANDS_BIT;
        barrier.srcAccessMask = VK_ACCESS_2_MEMORY_WRITE_BIT;
        barrier.dstStageMask = VK_PIPELINE_STAGE_2_HOST_BIT;
        barrier.dstAccessMask = VK_ACCESS_2_HOST_READ_BIT;
    }
    VkDependencyInfo info = {
        .sType = VK_STRUCTURE_TYPE_DEPENDENCY_INFO, .memoryBarrierCount = 1, .pMemoryBarriers = &barrier};
    d->vk.CmdPipelineBarrier2(commands, &info);
}

/* What failed once fails again: commands may be missing, and results would be wrong without a word. */
static sbp_status check_whole(vulkan_device *d, sbp_diag *diag) {
    return d->broken == VK_SUCCESS ? SBP_OK : vulkan_fail(d, d->broken, "an earlier call", diag);
}

/* On a queue without compute the stages of compute do not exist. */
static void fence_barrier(const vulkan_device *d, const vulkan_stream *s, VkCommandBuffer commands) {
    if (s->computes) {
        vulkan_barrier(d, commands, false);
        return;
    }
    VkMemoryBarrier2 barrier = {.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER_2,
                                .srcStageMask = VK_PIPELINE_STAGE_2_ALL_TRANSFER_BIT,
                                .srcAccessMask = VK_ACCESS_2_TRANSFER_WRITE_BIT,
                                .dstStageMask = VK_PIPELINE_STAGE_2_ALL_TRANSFER_BIT,
                                .dstAccessMask =
                                    VK_ACCESS_2_TRANSFER_READ_BIT | VK_ACCESS_2_TRANSFER_WRITE_BIT};
    VkDependencyInfo info = {
        .sType = VK_STRUCTURE_TYPE_DEPENDENCY_INFO, .memoryBarrierCount = 1, .pMemoryBarriers = &barrier};
    d->vk.CmdPipelineBarrier2(commands, &info);
}

sbp_status vulkan_stream_wait(vulkan_device *d, int32_t stream, uint64_t value, sbp_diag *diag) {
    SBP_TRY(check_whole(d, diag));
    if (value == 0)
        return SBP_OK;
    if (d->vk.waits_for_queues) {
        VULKAN_TRY(d, diag, QueueWaitIdle(d->streams[stream].queue));
        return SBP_OK;
    }
    VkSemaphoreWaitInfo info = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_WAIT_INFO,
                                .semaphoreCount = 1,
                                .pSemaphores = &d->streams[stream].timeline,
                                .pValues = &value};
    VULKAN_TRY(d, diag, WaitSemaphores(d->device, &info, UINT64_MAX));
    return SBP_OK;
}

/* ---- recording -------------------------------------------------------------------------------------- */

static sbp_status open_batch(vulkan_device *d, int32_t stream, sbp_diag *diag) {
    vulkan_stream *s = &d->streams[stream];
    s->current = (s->current + 1) % VULKAN_BATCHES;
    vulkan_batch *b = &s->batches[s->current];
    SBP_TRY(vulkan_stream_wait(d, stream, b->value, diag));
    if (!b->records.buffer) {
        bool staging = stream == VULKAN_STAGING;
        SBP_TRY(vulkan_buffer_create(d, staging ? VULKAN_DOWNLOAD : VULKAN_UPLOAD,
                                     staging ? VULKAN_STAGING_BYTES : VULKAN_RECORD_BYTES, &b->records,
                                     diag));
    }
    b->used_bytes = 0;
    b->count = 0;
    VULKAN_TRY(d, diag, ResetCommandPool(d->device, b->pool, 0));
    VkCommandBufferBeginInfo info = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO,
                                     .flags = VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT};
    VULKAN_TRY(d, diag, BeginCommandBuffer(b->commands, &info));
    s->bound = VK_NULL_HANDLE;
    s->open = true;
    return SBP_OK;
}

sbp_status vulkan_stream_begin(vulkan_device *d, int32_t stream, int64_t record_bytes, VkCommandBuffer *out,
                               void **record, VkDeviceAddress *address, sbp_diag *diag) {
    vulkan_stream *s = &d->streams[stream];
    vulkan_batch *b = &s->batches[s->current];
    SBP_TRY(check_whole(d, diag));
    if (s->open && (b->count >= s->limit || record_bytes > b->records.bytes - b->used_bytes)) {
        SBP_TRY(vulkan_stream_submit(d, stream, diag));
        s->limit = 2 * s->limit < VULKAN_BATCH_COMMANDS ? 2 * s->limit : VULKAN_BATCH_COMMANDS;
    }
    if (!s->open)
        SBP_TRY(open_batch(d, stream, diag));
    b = &s->batches[s->current];
    if (record_bytes > b->records.bytes)
        return sbp_fail(diag, SBP_INTERNAL, "vulkan: %lld bytes of arguments", (long long)record_bytes);
    *out = b->commands;
    *record = b->records.mapped + b->used_bytes;
    *address = b->records.address + (VkDeviceAddress)b->used_bytes;
    b->used_bytes = sbp_round_up(b->used_bytes + record_bytes, 64);
    if (b->used_bytes > b->records.bytes)
        b->used_bytes = b->records.bytes;
    b->count++;
    if (s->fenced)
        fence_barrier(d, s, b->commands);
    s->fenced = false;
    return SBP_OK;
}

sbp_status vulkan_stream_order(vulkan_device *d, int32_t from, int32_t to, sbp_diag *diag) {
    vulkan_stream *f = &d->streams[from], *t = &d->streams[to];
    if (!f->used || !t->used)
        return SBP_OK;
    if (from == to) {
        t->fenced = t->open || t->submitted > 0;
        return SBP_OK;
    }
    SBP_TRY(vulkan_stream_submit(d, from, diag));
    if (f->submitted == 0)
        return SBP_OK;
    SBP_TRY(vulkan_stream_submit(d, to, diag));
    t->wait_for[from] = f->submitted;
    return SBP_OK;
}

sbp_status vulkan_stream_submit(vulkan_device *d, int32_t stream, sbp_diag *diag) {
    vulkan_stream *s = &d->streams[stream];
    SBP_TRY(check_whole(d, diag));
    if (!s->open)
        return SBP_OK;
    vulkan_batch *b = &s->batches[s->current];
    VkSemaphoreSubmitInfo waits[VULKAN_STREAMS];
    uint32_t wait_count = 0;
    for (int i = 0; i < VULKAN_STREAMS; i++) {
        if (s->wait_for[i] > 0)
            waits[wait_count++] = (VkSemaphoreSubmitInfo){.sType = VK_STRUCTURE_TYPE_SEMAPHORE_SUBMIT_INFO,
                                                          .semaphore = d->streams[i].timeline,
                                                          .value = s->wait_for[i],
                                                          .stageMask = VK_PIPELINE_STAGE_2_ALL_COMMANDS_BIT};
        s->wait_for[i] = 0;
    }
    VkSemaphoreSubmitInfo signal = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_SUBMIT_INFO,
                                    .semaphore = s->timeline,
                                    .value = s->submitted + 1,
                                    .stageMask = VK_PIPELINE_STAGE_2_ALL_COMMANDS_BIT};
    VkCommandBufferSubmitInfo commands = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_SUBMIT_INFO,
                                          .commandBuffer = b->commands};
    VkSubmitInfo2 info = {.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO_2,
                          .waitSemaphoreInfoCount = wait_count,
                          .pWaitSemaphoreInfos = waits,
                          .commandBufferInfoCount = 1,
                          .pCommandBufferInfos = &commands,
                          .signalSemaphoreInfoCount = 1,
                          .pSignalSemaphoreInfos = &signal};
    s->open = false;
    vulkan_barrier(d, b->commands, true);
    VULKAN_TRY(d, diag, EndCommandBuffer(b->commands));
    VULKAN_TRY(d, diag, QueueSubmit2(s->queue, 1, &info, VK_NULL_HANDLE));
    b->value = ++s->submitted;
    return SBP_OK;
}

sbp_status vulkan_wait_all(vulkan_device *d, sbp_diag *diag) {
    for (int i = 0; i < VULKAN_STREAMS; i++)
        if (d->streams[i].used)
            SBP_TRY(vulkan_stream_submit(d, i, diag));
    for (int i = 0; i < VULKAN_STREAMS; i++) {
        if (d->streams[i].used)
            SBP_TRY(vulkan_stream_wait(d, i, d->streams[i].submitted, diag));
        d->streams[i].limit = FIRST_BATCH_COMMANDS;
    }
    if (d->vk.errors > 0)
        return sbp_fail(diag, SBP_INTERNAL, "vulkan: the validation layer has %d errors, the first: %s",
                        d->vk.errors, d->vk.first_error);
    return SBP_OK;
}
