/* cpu_device.c: the CPU backend device: each command runs in submit, those of compute and host over all
 * threads, copies on the thread that submits them. Compute and host have the same cores, so they have the
 * same pool and scratch memory, a command at a time, in the order in which they come: queue host gets its
 * turn while compute is busy, or what waits for it (the disk) would stand still. */
#include "backends/cpu/cpu_device.h"
#include "backends/composite/composite.h"
#include "backends/cpu/cpu.h"
#include "backends/cpu/deferred.h"
#include "ir/program/traits.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef struct cpu_device {
    cpu_core core;
    cpu_pool *copier;      /* one thread without scratch memory: of in and out, at once */
    pthread_mutex_t mutex; /* guards what follows */
    pthread_cond_t turn;
    int64_t tickets, served; /* for core.lane, and for what is put off */
    bool alone;              /* no other ranks */
    cpu_deferred *deferred;  /* NULL where nothing is put off */
} cpu_device;

enum { COPIER_BYTES = 4096 }; /* copies use none of it */

static const sbp_device_class backend_class;

static void cpu_destroy(sbp_device *base) {
    cpu_device *device = (cpu_device *)base;
    cpu_pool_destroy(device->copier);
    cpu_core_destroy(&device->core);
    free(device->deferred);
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
    device->alone = !options || !options->ranks;
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

static sbp_status cpu_load(sbp_device *base, const sbp_program *program, sbp_diag *diag) {
    cpu_device *device = (cpu_device *)base;
    SBP_TRY(cpu_core_load(&device->core, program, diag));
    if (!device->alone || !sbp_program_entry(program, SBP_ENTRY_GENERATE) ||
        program->arena_bytes[SBP_DISK] > 0)
        return SBP_OK;
    device->deferred = sbp_malloc(sizeof *device->deferred);
    if (!device->deferred)
        return sbp_fail(diag, SBP_MACHINE, "out of memory for the CPU device");
    device->deferred->count = 0;
    return SBP_OK;
}

/* Before bytes of an arena are reached without a command. */
static void settle(cpu_device *device, sbp_space space, int64_t offset, int64_t bytes) {
    const cpu_core *core = &device->core;
    if (!device->deferred || (unsigned)space >= SBP_SPACE_COUNT || !core->arena[space] || bytes <= 0)
        return;
    take_turn(device);
    cpu_settle_bytes(&device->core, device->deferred, core->arena[space] + offset,
                     core->arena[space] + offset + bytes);
    pass_turn(device);
}

static sbp_status cpu_write(sbp_device *base, sbp_space space, int64_t offset, const void *data,
                            int64_t bytes, sbp_diag *diag) {
    settle((cpu_device *)base, space, offset, bytes);
    return cpu_core_write(&((cpu_device *)base)->core, space, offset, data, bytes, diag);
}

static sbp_status cpu_read(sbp_device *base, sbp_space space, int64_t offset, void *data, int64_t bytes,
                           sbp_diag *diag) {
    settle((cpu_device *)base, space, offset, bytes);
    return cpu_core_read(&((cpu_device *)base)->core, space, offset, data, bytes, diag);
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
        if (device->deferred) {
            take_turn(device);
            cpu_settle(&device->core, device->deferred, &command);
            pass_turn(device);
        }
        cpu_core_run(&device->core, &copies, &command);
        return SBP_OK;
    }
    take_turn(device);
    if (!device->deferred || !cpu_defer(&device->core, device->deferred, &command)) {
        if (device->deferred)
            cpu_settle(&device->core, device->deferred, &command);
        cpu_core_run(&device->core, &device->core.lane, &command);
    }
    pass_turn(device);
    return SBP_OK;
}

static sbp_status cpu_wait(sbp_device *base, sbp_diag *diag) {
    (void)base;
    (void)diag;
    return SBP_OK;
}

/* The end of the buffer that a byte belongs to. */
static int64_t buffer_end(const cpu_core *core, sbp_space space, int64_t offset) {
    const sbp_program *p = core->program;
    for (int32_t i = 0; p && i < p->buffer_count; i++) {
        const sbp_buffer *b = &p->buffers[i];
        if (b->space == space && offset >= b->offset && offset < b->offset + b->count * b->stride)
            return b->offset + b->count * b->stride;
    }
    return (int64_t)core->arena_bytes[space];
}

/* Whoever asks for the address of a buffer reads and writes that buffer. */
static void *cpu_map(sbp_device *base, sbp_space space, int64_t offset) {
    cpu_device *device = (cpu_device *)base;
    if (!device->core.arena[space])
        return NULL;
    settle(device, space, offset, buffer_end(&device->core, space, offset) - offset);
    return device->core.arena[space] + offset;
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
