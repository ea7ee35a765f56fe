/* trust.c: whether matmuls by cooperative matrices are right.
 *
 * Drivers of many makers list many shapes, and few could be tried here. So when a plan is loaded, each
 * matmul by cooperative matrices is computed once beside the same by plain arithmetic; where they disagree,
 * the device does without. */
#include "backends/vulkan/device/vulkan.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Ragged against every tile, shape and depth. */
enum {
    TEST_ROWS = 83,
    TEST_COLS = 75,
    TEST_DEPTH = 53,
    OPERANDS = SBP_VULKAN_GEMM_OPERANDS,
    OPERAND_BYTES = 32 << 10
};

static void shape_of(const sbp_gpu_key *p, int operand, int32_t *rows, int32_t *cols) {
    *rows = operand == 1   ? (p->ta ? TEST_DEPTH : TEST_ROWS)
            : operand == 2 ? (p->tb ? TEST_COLS : TEST_DEPTH)
            : operand == 4 ? 1
                           : TEST_ROWS;
    *cols = operand == 1   ? (p->ta ? TEST_ROWS : TEST_DEPTH)
            : operand == 2 ? (p->tb ? TEST_DEPTH : TEST_COLS)
                           : TEST_COLS;
}

/* Numbers that look random, in -1 .. 1. */
static void fill_operands(const sbp_gpu_key *p, char *memory) {
    uint64_t state = 1;
    for (int i = 1; i < OPERANDS; i++) {
        int32_t rows, cols;
        if (p->dtypes[i] == SBP_DTYPE_COUNT)
            continue;
        shape_of(p, i, &rows, &cols);
        for (int64_t e = 0; e < (int64_t)rows * cols; e++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            double x = (double)(state >> 40) * 0x1p-23 - 1;
            sbp_element_set(memory + i * OPERAND_BYTES, (sbp_dtype)p->dtypes[i], e, x);
        }
    }
}

static sbp_status record_matmul(vulkan_device *d, const sbp_gpu_key *p, const vulkan_pipeline *pipeline,
                                const vulkan_buffer *memory, int64_t result_at, sbp_diag *diag) {
    VkCommandBuffer commands;
    VkDeviceAddress address;
    void *record;
    sbp_gpu_args args = {.count = OPERANDS, .floats = {-0.75f, 0.5f}, .doubles = {-0.75, 0.5}};
    bool right = p->variant == SBP_VULKAN_TILED || !vulkan_test_asks("distrust");
    if (!right)
        args.floats[0] = -0.74f;
    for (int i = 0; i < OPERANDS; i++) {
        sbp_gpu_operand *o = &args.operands[i];
        if (p->dtypes[i] == SBP_DTYPE_COUNT)
            continue;
        shape_of(p, i, &o->rows, &o->cols);
        o->stride = o->cols;
        o->address = memory->address + (uint64_t)(i == 0 ? result_at : (int64_t)i * OPERAND_BYTES);
    }
    int64_t side = sbp_vulkan_gemm_side((sbp_vulkan_gemm)p->variant);
    SBP_TRY(vulkan_stream_begin(d, VULKAN_COMPUTE, sizeof args, &commands, &record, &address, diag));
    memcpy(record, &args, sizeof args);
    d->vk.CmdBindPipeline(commands, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline->pipeline);
    d->streams[VULKAN_COMPUTE].bound = pipeline->pipeline;
    d->vk.CmdPushConstants(commands, d->layout, VK_SHADER_STAGE_COMPUTE_BIT, 0, sizeof address, &address);
    d->vk.CmdDispatch(commands, (uint32_t)(sbp_ceil_div(TEST_ROWS, side) * sbp_ceil_div(TEST_COLS, side)), 1,
                      1);
    return SBP_OK;
}

/* Relative to the norm of the result. Sums in fp32 of 53 matmuls of numbers below 1 differ by a few 2^-24;
 * sums in fp16 would by 2^-11; a result in 16 bits may be rounded to its neighbour. */
static bool agree(const sbp_gpu_key *p, const char *one, const char *two) {
    sbp_dtype dtype = (sbp_dtype)p->dtypes[SBP_GEMM_D];
    double error = 0, norm = 0, tolerance = dtype == SBP_F32 ? 0x1p-16 : 0x1p-8;
    for (int64_t e = 0; e < TEST_ROWS * TEST_COLS; e++) {
        double x = sbp_element_get(one, dtype, e), y = sbp_element_get(two, dtype, e);
        error += (x - y) * (x - y);
        norm += y * y;
    }
    return sqrt(error) <= tolerance * sqrt(norm); /* false for NaN */
}

/* *same stays as it is when there is nothing to compare. */
static sbp_status compare(vulkan_device *d, const sbp_gpu_key *matmul, const vulkan_pipeline *pipeline,
                          vulkan_buffer *memory, bool *same, sbp_diag *diag) {
    sbp_gpu_key plain = *matmul;
    plain.variant = SBP_VULKAN_TILED;
    const vulkan_pipeline *other = vulkan_pipeline_find(d, &plain);
    if (!other)
        return SBP_OK;
    memset(memory->mapped, 0xff, (size_t)memory->bytes);
    fill_operands(matmul, memory->mapped);
    SBP_TRY(record_matmul(d, matmul, pipeline, memory, 0, diag));
    SBP_TRY(record_matmul(d, &plain, other, memory, (int64_t)OPERANDS * OPERAND_BYTES, diag));
    SBP_TRY(vulkan_wait_all(d, diag));
    *same = agree(matmul, memory->mapped, memory->mapped + (int64_t)OPERANDS * OPERAND_BYTES);
    return SBP_OK;
}

static void check_type(vulkan_device *d, sbp_dtype dtype, sbp_vulkan_shape *shape, vulkan_buffer *memory,
                       sbp_diag *diag, sbp_status *status) {
    for (int32_t i = 0; i < d->pipeline_count && *status == SBP_OK && shape->m > 0; i++) {
        const vulkan_pipeline *pipeline = &d->pipelines[i];
        const sbp_gpu_key *key = &pipeline->key;
        char name[SBP_GPU_NAME];
        bool same = true;
        if (sbp_command_traits_of((sbp_command_kind)key->kind)->items != SBP_ITEMS_TILES ||
            !sbp_vulkan_gemm_is_matrix((sbp_vulkan_gemm)key->variant) || key->dtypes[SBP_GEMM_A] != dtype)
            continue;
        *status = compare(d, key, pipeline, memory, &same, diag);
        if (*status != SBP_OK || same)
            continue;
        sbp_vulkan_key_text(key, name);
        sbp_warn(diag,
                 "vulkan: %s: matmuls of %s by cooperative matrices of %u x %u x %u differ from plain ones "
                 "('%s'); going on without them",
                 d->physical.properties.deviceName, sbp_dtype_name(dtype), shape->m, shape->n, shape->k,
                 name);
        *shape = (sbp_vulkan_shape){0};
    }
}

sbp_status vulkan_matrix_check(vulkan_device *d, sbp_diag *diag) {
    vulkan_buffer memory;
    if (d->machine.f16.m == 0 && d->machine.bf16.m == 0)
        return SBP_OK;
    sbp_status status =
        vulkan_buffer_create(d, VULKAN_DOWNLOAD, (OPERANDS + 1) * OPERAND_BYTES, &memory, diag);
    check_type(d, SBP_F16, &d->machine.f16, &memory, diag, &status);
    check_type(d, SBP_BF16, &d->machine.bf16, &memory, diag, &status);
    vulkan_buffer_destroy(d, &memory);
    return status;
}
