/* command.c: a command of the program becomes one of Vulkan: copies and most fills transfers, all else
 * dispatches as abi.h says. */
#include "backends/vulkan/device/vulkan.h"
#include "ir/base/census.h"

#include <string.h>

enum { MOST_REGIONS = 256, MOST_FILLS = 64 };

/* Where an operand lies; block is NULL when it is absent or empty. */
typedef struct place {
    const vulkan_block *block;
    int64_t offset; /* bytes in the block */
} place;

static sbp_status find_place(vulkan_device *d, const sbp_span *span, place *out, sbp_diag *diag) {
    int64_t bytes;
    *out = (place){0};
    SBP_TRY(sbp_gpu_span_bytes(span, "vulkan", diag, &bytes));
    if (bytes == 0)
        return SBP_OK;
    SBP_TRY(vulkan_arena_find(d, span->space, span->offset, bytes, &out->block, diag));
    out->offset = span->offset - out->block->start;
    return SBP_OK;
}

static sbp_status begin_plain(vulkan_device *d, int32_t stream, VkCommandBuffer *out, sbp_diag *diag) {
    void *record;
    VkDeviceAddress address;
    return vulkan_stream_begin(d, stream, 0, out, &record, &address, diag);
}

/* ---- transfers -------------------------------------------------------------------------------------- */

static sbp_status record_copy(vulkan_device *d, int32_t stream, const sbp_span *to, const place *to_place,
                              const sbp_span *from, const place *from_place, sbp_diag *diag) {
    VkBufferCopy regions[MOST_REGIONS];
    VkCommandBuffer commands;
    if (to->rows != from->rows || to->cols != from->cols || to->dtype != from->dtype)
        return sbp_fail(diag, SBP_INTERNAL, "vulkan: copy: shapes or types differ");
    if (!to_place->block)
        return SBP_OK;
    int64_t unit = sbp_dtype_bytes(to->dtype), row_bytes = to->cols * unit;
    int64_t rows = sbp_gpu_is_dense(to) && sbp_gpu_is_dense(from) ? 1 : to->rows;
    if (rows == 1)
        row_bytes *= to->rows;
    SBP_CROSS_IF(rows == 1, vulkan_copy_whole);
    SBP_CROSS_IF(rows > 1, vulkan_copy_rows);
    SBP_CROSS_IF(rows > MOST_REGIONS, vulkan_copy_many_rows);
    SBP_TRY(begin_plain(d, stream, &commands, diag));
    for (int64_t r = 0; r < rows; r += MOST_REGIONS) {
        int64_t n = rows - r < MOST_REGIONS ? rows - r : MOST_REGIONS;
        for (int64_t i = 0; i < n; i++)
            regions[i] = (VkBufferCopy){
                .srcOffset = (VkDeviceSize)(from_place->offset + (r + i) * from->stride * unit),
                .dstOffset = (VkDeviceSize)(to_place->offset + (r + i) * to->stride * unit),
                .size = (VkDeviceSize)row_bytes};
        d->vk.CmdCopyBuffer(commands, from_place->block->buffer.buffer, to_place->block->buffer.buffer,
                            (uint32_t)n, regions);
    }
    return SBP_OK;
}

/* The number as four equal bytes, two equal halves or one word; false when it takes more. */
static bool fill_word(sbp_dtype dtype, double value, uint32_t *out) {
    unsigned char bytes[8];
    int64_t unit = sbp_dtype_bytes(dtype);
    sbp_element_set(bytes, dtype, 0, value);
    for (int64_t i = unit; i < 4; i++)
        bytes[i] = bytes[i - unit];
    memcpy(out, bytes, sizeof *out);
    return unit <= 4 || memcmp(bytes, bytes + 4, 4) == 0;
}

/* False when it takes a kernel: rows that do not lie on words, or too many. */
static bool can_fill(const sbp_dispatch *dispatch, const place *p, uint32_t *word) {
    const sbp_span *span = &dispatch->spans[SBP_FILL_DST];
    int64_t unit = sbp_dtype_bytes(span->dtype);
    if (!fill_word(span->dtype, dispatch->command->u.fill, word) || p->offset % 4 != 0)
        return false;
    if (sbp_gpu_is_dense(span))
        return span->rows * span->cols * unit % 4 == 0;
    return span->rows <= MOST_FILLS && span->cols * unit % 4 == 0 && span->stride * unit % 4 == 0;
}

static sbp_status record_fill(vulkan_device *d, int32_t stream, const sbp_span *span, const place *p,
                              uint32_t word, sbp_diag *diag) {
    VkCommandBuffer commands;
    int64_t unit = sbp_dtype_bytes(span->dtype), row_bytes = span->cols * unit, rows = span->rows;
    SBP_TRY(begin_plain(d, stream, &commands, diag));
    if (sbp_gpu_is_dense(span)) {
        row_bytes *= rows;
        rows = 1;
    }
    for (int64_t r = 0; r < rows; r++)
        d->vk.CmdFillBuffer(commands, p->block->buffer.buffer,
                            (VkDeviceSize)(p->offset + r * span->stride * unit), (VkDeviceSize)row_bytes,
                            word);
    return SBP_OK;
}

/* ---- dispatches ------------------------------------------------------------------------------------- */

static sbp_status no_kernel(const sbp_gpu_key *key, sbp_diag *diag) {
    char text[SBP_GPU_NAME];
    sbp_vulkan_key_text(key, text);
    return sbp_fail(diag, SBP_INPUT, "vulkan: the plan has no kernel '%s'", text);
}

static sbp_status dispatch_steps(vulkan_device *d, int32_t stream, const sbp_dispatch *dispatch,
                                 const place *places, const sbp_vulkan_step *steps, int32_t count,
                                 int64_t scratch_bytes, sbp_diag *diag) {
    static const uint64_t none[SBP_SPACE_COUNT] = {0};
    sbp_gpu_args args;
    VkCommandBuffer commands;
    VkDeviceAddress address;
    void *record;
    const int64_t scratch_at = (int64_t)(sizeof args + 15) / 16 * 16;
    SBP_TRY(vulkan_stream_begin(d, stream, scratch_at + scratch_bytes, &commands, &record, &address, diag));
    int64_t bytes = sbp_vulkan_args_fill(dispatch, none, address + (uint64_t)scratch_at, &args);
    for (int32_t i = 0; i < dispatch->span_count; i++)
        args.operands[i].address =
            places[i].block ? places[i].block->buffer.address + (uint64_t)places[i].offset : 0;
    memcpy(record, &args, (size_t)bytes);
    vulkan_stream *s = &d->streams[stream];
    for (int32_t i = 0; i < count; i++) {
        const vulkan_pipeline *pipeline = vulkan_pipeline_find(d, &steps[i].key);
        if (!pipeline)
            return no_kernel(&steps[i].key, diag);
        if (steps[i].waits)
            vulkan_barrier(d, commands, false);
        if (s->bound != pipeline->pipeline)
            d->vk.CmdBindPipeline(commands, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline->pipeline);
        s->bound = pipeline->pipeline;
        d->vk.CmdPushConstants(commands, d->layout, VK_SHADER_STAGE_COMPUTE_BIT, 0, sizeof address, &address);
        d->vk.CmdDispatch(commands, steps[i].groups[0], steps[i].groups[1], steps[i].groups[2]);
    }
    return SBP_OK;
}

static sbp_status record_kernels(vulkan_device *d, int32_t stream, const sbp_dispatch *dispatch,
                                 const place *places, sbp_diag *diag) {
    sbp_vulkan_step steps[SBP_VULKAN_STEPS];
    int64_t scratch_bytes = 0;
    if (!sbp_gpu_fits(dispatch))
        return sbp_fail(diag, SBP_MACHINE, "vulkan: %s: rows, columns and strides must be below 2^31",
                        sbp_command_name(dispatch->command->kind));
    if (sbp_vulkan_too_long(dispatch, &d->machine))
        return sbp_fail(
            diag, SBP_MACHINE,
            "vulkan: %s would run up to %lld loop iterations in one invocation, and software drivers "
            "silently stop after 65535: use shorter sequences or smaller chunks, a GPU, or --backend cpu",
            sbp_command_name(dispatch->command->kind),
            (long long)sbp_vulkan_iterations(dispatch, &d->machine));
    if (!sbp_vulkan_work_fits(dispatch))
        return sbp_fail(diag, SBP_INTERNAL, "vulkan: %s: the plan's workspace is too small",
                        sbp_command_name(dispatch->command->kind));
    int32_t count = sbp_vulkan_steps(dispatch, &d->machine, steps, &scratch_bytes);
    if (count == 0)
        return SBP_OK;
    if (d->streams[stream].computes)
        return dispatch_steps(d, stream, dispatch, places, steps, count, scratch_bytes, diag);
    /* The queue of the copies cannot: between two fences, on the other one. */
    SBP_TRY(vulkan_stream_order(d, stream, VULKAN_COMPUTE, diag));
    SBP_TRY(dispatch_steps(d, VULKAN_COMPUTE, dispatch, places, steps, count, scratch_bytes, diag));
    return vulkan_stream_order(d, VULKAN_COMPUTE, stream, diag);
}

static int32_t stream_of(const vulkan_device *d, int32_t queue) {
    return queue != SBP_QUEUE_COMPUTE && d->separate ? VULKAN_COPIES : VULKAN_COMPUTE;
}

sbp_status vulkan_command_record(sbp_device *base, const sbp_dispatch *dispatch, sbp_diag *diag) {
    vulkan_device *d = (vulkan_device *)base;
    const sbp_command *command = dispatch->command;
    const sbp_span *spans = dispatch->spans, *dst, *src;
    place places[SBP_MAX_COMMAND_OPERANDS] = {0};
    uint32_t word;
    bool fills;
    if (command->kind == SBP_CMD_FENCE)
        return vulkan_stream_order(d, stream_of(d, command->u.fence.from), stream_of(d, command->u.fence.to),
                                   diag);
    if (dispatch->span_count < 0 || dispatch->span_count > SBP_MAX_COMMAND_OPERANDS)
        return sbp_fail(diag, SBP_INTERNAL, "vulkan: a command of %d operands", dispatch->span_count);
    for (int32_t i = 0; i < dispatch->span_count; i++)
        SBP_TRY(find_place(d, &dispatch->spans[i], &places[i], diag));
    int32_t stream = stream_of(d, command->queue);
    switch (command->kind) {
    case SBP_CMD_COLLECTIVE: /* of one rank */
        dst = &spans[SBP_COLLECTIVE_DST];
        src = &spans[SBP_COLLECTIVE_SRC];
        if (dst->space == src->space && dst->offset == src->offset)
            return SBP_OK;
        return record_copy(d, stream, dst, &places[SBP_COLLECTIVE_DST], src, &places[SBP_COLLECTIVE_SRC],
                           diag);
    case SBP_CMD_COPY:
        return record_copy(d, stream, &spans[SBP_COPY_DST], &places[SBP_COPY_DST], &spans[SBP_COPY_SRC],
                           &places[SBP_COPY_SRC], diag);
    case SBP_CMD_FILL:
        if (!places[SBP_FILL_DST].block)
            return SBP_OK;
        fills = can_fill(dispatch, &places[SBP_FILL_DST], &word);
        SBP_CROSS_EITHER(fills, vulkan_fill_transfer, vulkan_fill_kernel);
        if (fills)
            return record_fill(d, stream, &spans[SBP_FILL_DST], &places[SBP_FILL_DST], word, diag);
        return record_kernels(d, stream, dispatch, places, diag);
    default:
        return record_kernels(d, stream, dispatch, places, diag);
    }
}
