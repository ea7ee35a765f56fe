/* device.c: the CPU device. Queue 0 runs in submit, over the pool. Queue 1 runs on a thread of its own, in
 * order; a fence from it to queue 0 waits for all that it holds. The other fences ask for nothing: queue 0 is
 * done when submit returns, and each queue runs in order. */
#include "backends/cpu/cpu.h"
#include "backends/cpu/cpu_device.h"
#include "ir/machine.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef struct pending {
    cpu_command command;
    struct pending *next;
} pending;

typedef struct cpu_device {
    cpu_core core;
    cpu_lane copies; /* queue 1: one thread, which is the caller of its pool */
    bool started;
    pthread_t thread;
    pthread_mutex_t mutex; /* guards what follows */
    pthread_cond_t changed;
    pending *head, *tail;
    bool busy, stop;
} cpu_device;

static void *run_copies(void *user) {
    cpu_device *device = user;
    pthread_mutex_lock(&device->mutex);
    for (;;) {
        while (!device->head && !device->stop)
            pthread_cond_wait(&device->changed, &device->mutex);
        pending *p = device->head;
        if (!p)
            break;
        device->head = p->next;
        device->busy = true;
        pthread_mutex_unlock(&device->mutex);
        cpu_core_run(&device->core, &device->copies, &p->command);
        free(p);
        pthread_mutex_lock(&device->mutex);
        device->busy = false;
        pthread_cond_broadcast(&device->changed);
    }
    pthread_mutex_unlock(&device->mutex);
    return NULL;
}

static void drain(cpu_device *device) {
    if (!device->started)
        return;
    pthread_mutex_lock(&device->mutex);
    while (device->head || device->busy)
        pthread_cond_wait(&device->changed, &device->mutex);
    pthread_mutex_unlock(&device->mutex);
}

static sbp_status enqueue(cpu_device *device, const cpu_command *command, sbp_diag *diag) {
    char limit[100];
    pending *p = sbp_malloc(sizeof *p);
    if (!p)
        return sbp_fail(diag, SBP_MACHINE, "out of memory");
    if (!device->started) { /* most programs never copy */
        device->started = cpu_lane_init(&device->copies, 1) &&
                          cpu_pool_reserve(device->copies.pool, device->core.scratch_bytes) &&
                          pthread_create(&device->thread, NULL, run_copies, device) == 0;
        if (!device->started) {
            free(p);
            return sbp_fail(diag, SBP_MACHINE, "cannot start the thread of queue 1: %s",
                            sbp_machine_memory_text(limit, sizeof limit));
        }
    }
    p->command = *command;
    p->next = NULL;
    pthread_mutex_lock(&device->mutex);
    if (device->head)
        device->tail->next = p;
    else
        device->head = p;
    device->tail = p;
    pthread_cond_broadcast(&device->changed);
    pthread_mutex_unlock(&device->mutex);
    return SBP_OK;
}

static void cpu_destroy(sbp_device *base) {
    cpu_device *device = (cpu_device *)base;
    if (device->started) {
        drain(device);
        pthread_mutex_lock(&device->mutex);
        device->stop = true;
        pthread_cond_broadcast(&device->changed);
        pthread_mutex_unlock(&device->mutex);
        pthread_join(device->thread, NULL);
    }
    cpu_lane_free(&device->copies);
    pthread_cond_destroy(&device->changed);
    pthread_mutex_destroy(&device->mutex);
    cpu_core_destroy(&device->core);
    free(device);
}

static sbp_status cpu_create(const sbp_device_options *options, sbp_diag *diag, sbp_device **out) {
    *out = NULL;
    cpu_device *device = sbp_malloc(sizeof *device);
    if (!device)
        return sbp_fail(diag, SBP_MACHINE, "out of memory");
    memset(device, 0, sizeof *device);
    pthread_mutex_init(&device->mutex, NULL);
    pthread_cond_init(&device->changed, NULL);
    sbp_status status = cpu_core_create(&device->core, &sbp_cpu_device, options, diag);
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
    cpu_device *device = (cpu_device *)base;
    drain(device);
    return cpu_core_write(&device->core, space, offset, data, bytes, diag);
}

static sbp_status cpu_read(sbp_device *base, sbp_space space, int64_t offset, void *data, int64_t bytes,
                           sbp_diag *diag) {
    cpu_device *device = (cpu_device *)base;
    drain(device);
    return cpu_core_read(&device->core, space, offset, data, bytes, diag);
}

static sbp_status cpu_submit(sbp_device *base, const sbp_dispatch *dispatch, sbp_diag *diag) {
    cpu_device *device = (cpu_device *)base;
    cpu_command command;
    SBP_TRY(cpu_core_resolve(&device->core, dispatch, &command, diag));
    if (dispatch->command->kind == SBP_CMD_FENCE) {
        if (dispatch->command->u.fence.from != SBP_QUEUE_COMPUTE &&
            dispatch->command->u.fence.to == SBP_QUEUE_COMPUTE)
            drain(device);
        return SBP_OK;
    }
    if (dispatch->command->queue != SBP_QUEUE_COMPUTE)
        return enqueue(device, &command, diag);
    cpu_core_run(&device->core, &device->core.lane, &command);
    return SBP_OK;
}

static sbp_status cpu_wait(sbp_device *base, sbp_diag *diag) {
    (void)diag;
    drain((cpu_device *)base);
    return SBP_OK;
}

static void *cpu_map(sbp_device *base, sbp_space space, int64_t offset) {
    cpu_device *device = (cpu_device *)base;
    return device->core.arena[space] ? device->core.arena[space] + offset : NULL;
}

const sbp_device_class sbp_cpu_device = {.name = "cpu",
                                         .create = cpu_create,
                                         .destroy = cpu_destroy,
                                         .info = cpu_info,
                                         .load = cpu_load,
                                         .write = cpu_write,
                                         .read = cpu_read,
                                         .submit = cpu_submit,
                                         .wait = cpu_wait,
                                         .map = cpu_map};
