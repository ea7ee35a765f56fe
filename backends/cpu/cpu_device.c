/* cpu_device.c: the CPU backend device: each command runs in submit, those of compute and host over all
 * threads, copies on the thread that submits them. Compute and host have the same cores, so they have the
 * same pool and scratch memory, a command at a time, in the order in which they come: queue host gets its
 * turn while compute is busy, or what waits for it (the disk) would stand still. */
#include "backends/cpu/cpu_device.h"
#include "backends/composite/composite.h"
#include "backends/cpu/cpu.h"
#include "ir/program/traits.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef struct cpu_device {
    cpu_core core;
    cpu_pool *copier;      /* one thread without scratch memory: of in and out, at once */
    pthread_mutex_t mutex; /* guards what follows */
    pthread_cond_t turn;
    int64_t tickets, served; /* for core.lane */
} cpu_device;

enum { COPIER_BYTES = 4096 }; /* copies use none of it */

static const sbp_device_class backend_class;

static void cpu_destroy(sbp_device *base) {
    cpu_device *device = (cpu_device *)base;
    cpu_pool_destroy(device->copier);
    cpu_core_destroy(&device->core);
    pthread_cond_destroy(&device->turn);
    pthread_mutex_destroy(&device->mutex);
    free(device);
}

static sbp_status cpu_create(const sbp_device_options *options, sbp_diag *diag, sbp_device **out) {
    *out = NULL;
    cpu_device *device = sbp_malloc(sizeof *device);
    if (!device)
        return sbp_fail(diag, SBP_MACHINE, "out of memory for the CPU device");
    memset(device, 0, sizeof *device);
    pthread_mutex_init(&device->mutex, NULL);
    pthread_cond_init(&device->turn, NULL);
    sbp_status status = cpu_core_create(&device->core, &backend_class, options ? options->threads : 0, diag);
    if (status == SBP_OK && !(device->copier = cpu_pool_create(1, COPIER_BYTES)))
        status = sbp_fail(diag, SBP_MACHINE, "out of memory for the CPU device");
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

static void take_turn(cpu_device *device) {
    pthread_mutex_lock(&device->mutex);
    int64_t ticket = device->tickets++;
    while (device->served != ticket)
        pthread_cond_wait(&device->turn, &device->mutex);
    pthread_mutex_unlock(&device->mutex);
}

static void pass_turn(cpu_device *device) {
    pthread_mutex_lock(&device->mutex);
    device->served++;
    bool awaited = device->served != device->tickets;
    pthread_mutex_unlock(&device->mutex);
    if (awaited)
        pthread_cond_broadcast(&device->turn);
}

static sbp_status cpu_submit(sbp_device *base, const sbp_dispatch *dispatch, sbp_diag *diag) {
    cpu_device *device = (cpu_device *)base;
    int32_t queue = dispatch->command->queue;
    cpu_command command;
    SBP_TRY(cpu_core_resolve(&device->core, dispatch, &command, diag));
    if (queue == SBP_QUEUE_IN || queue == SBP_QUEUE_OUT) {
        cpu_lane copies = {.pool = device->copier};
        if (!sbp_command_traits_of(dispatch->command->kind)->moves)
            return sbp_fail(diag, SBP_INTERNAL, "cpu: queue %s only copies", sbp_queue_names[queue]);
        cpu_core_run(&device->core, &copies, &command);
        return SBP_OK;
    }
    take_turn(device);
    cpu_core_run(&device->core, &device->core.lane, &command);
    pass_turn(device);
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

static const sbp_device_class backend_class = {.name = "cpu",
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
    const composite_parts parts = {.name = "cpu", .backend = &backend_class, .waits = true};
    return composite_create(&parts, &sbp_cpu_device, options, diag, out);
}

static sbp_status create_shuffle(const sbp_device_options *options, sbp_diag *diag, sbp_device **out) {
    const composite_parts parts = {
        .name = "cpu-shuffle", .backend = &backend_class, .waits = true, .shuffled = true};
    return composite_create(&parts, &sbp_cpu_shuffle_device, options, diag, out);
}

const sbp_device_class sbp_cpu_device = {.name = "cpu", .create = create_device, COMPOSITE_CLASS};
const sbp_device_class sbp_cpu_shuffle_device = {
    .name = "cpu-shuffle", .create = create_shuffle, COMPOSITE_CLASS};
