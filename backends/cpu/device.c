/* device.c: the CPU device proper: each command runs in submit, those of compute over all threads, copies on
 * the thread that submits them. */
#include "backends/composite/composite.h"
#include "backends/cpu/cpu.h"
#include "backends/cpu/cpu_cores.h"
#include "backends/cpu/cpu_device.h"

#include <stdlib.h>
#include <string.h>

typedef struct cpu_device {
    cpu_core core;
    cpu_lane copies[SBP_QUEUE_COUNT]; /* of in and out, from their first command on */
} cpu_device;

static const sbp_device_class proper;

static void cpu_destroy(sbp_device *base) {
    cpu_device *device = (cpu_device *)base;
    for (int q = 0; q < SBP_QUEUE_COUNT; q++)
        cpu_lane_free(&device->copies[q]);
    cpu_core_destroy(&device->core);
    free(device);
}

static sbp_status cpu_create(const sbp_device_options *options, sbp_diag *diag, sbp_device **out) {
    *out = NULL;
    cpu_device *device = sbp_malloc(sizeof *device);
    if (!device)
        return sbp_fail(diag, SBP_MACHINE, "out of memory");
    memset(device, 0, sizeof *device);
    sbp_status status = cpu_core_create(&device->core, &proper, options ? options->threads : 0, diag);
    if (status != SBP_OK)
        cpu_destroy(&device->core.base);
    else
        *out = &device->core.base;
    return status;
}

static void cpu_info(sbp_device *base, sbp_device_info *out) {
    cpu_core_info(&((cpu_device *)base)->core, out);
}

static sbp_status cpu_load(sbp_device *base, const sbp_program *program, sbp_diag *diag) {
    return cpu_core_load(&((cpu_device *)base)->core, program, diag);
}

static sbp_status cpu_write(sbp_device *base, sbp_space space, int64_t offset, const void *data,
                            int64_t bytes, sbp_diag *diag) {
    return cpu_core_write(&((cpu_device *)base)->core, space, offset, data, bytes, diag);
}

static sbp_status cpu_read(sbp_device *base, sbp_space space, int64_t offset, void *data, int64_t bytes,
                           sbp_diag *diag) {
    return cpu_core_read(&((cpu_device *)base)->core, space, offset, data, bytes, diag);
}

static sbp_status cpu_submit(sbp_device *base, const sbp_dispatch *dispatch, sbp_diag *diag) {
    cpu_device *device = (cpu_device *)base;
    int32_t queue = dispatch->command->queue;
    cpu_lane *lane = queue == SBP_QUEUE_COMPUTE ? &device->core.lane : &device->copies[queue];
    cpu_command command;
    SBP_TRY(cpu_core_resolve(&device->core, dispatch, &command, diag));
    if (!lane->pool && !cpu_lane_init(lane, 1))
        return sbp_fail(diag, SBP_MACHINE, "out of memory");
    cpu_core_run(&device->core, lane, &command);
    return SBP_OK;
}

static sbp_status cpu_wait(sbp_device *base, sbp_diag *diag) {
    (void)base;
    (void)diag;
    return SBP_OK;
}

static void *cpu_map(sbp_device *base, sbp_space space, int64_t offset) {
    cpu_device *device = (cpu_device *)base;
    return device->core.arena[space] ? device->core.arena[space] + offset : NULL;
}

static const sbp_device_class proper = {.name = "cpu",
                                        .create = cpu_create,
                                        .destroy = cpu_destroy,
                                        .info = cpu_info,
                                        .load = cpu_load,
                                        .write = cpu_write,
                                        .read = cpu_read,
                                        .submit = cpu_submit,
                                        .wait = cpu_wait,
                                        .map = cpu_map};

static sbp_status create_device(const sbp_device_options *options, sbp_diag *diag, sbp_device **out) {
    const composite_parts parts = {.name = "cpu", .proper = &proper, .cores = &cpu_cores, .waits = true};
    return composite_create(&parts, &sbp_cpu_device, options, diag, out);
}

static sbp_status create_shuffle(const sbp_device_options *options, sbp_diag *diag, sbp_device **out) {
    const composite_parts parts = {
        .name = "cpu-shuffle", .proper = &proper, .cores = &cpu_cores, .waits = true, .shuffled = true};
    return composite_create(&parts, &sbp_cpu_shuffle_device, options, diag, out);
}

const sbp_device_class sbp_cpu_device = {.name = "cpu", .create = create_device, COMPOSITE_CLASS};
const sbp_device_class sbp_cpu_shuffle_device = {
    .name = "cpu-shuffle", .create = create_shuffle, COMPOSITE_CLASS};
