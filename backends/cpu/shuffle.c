/* shuffle.c: the CPU device that runs commands in a random order allowed by the fences, to show which fences
 * are missing. A command may run when all commands of queue f are done that stand before a fence f -> (its
 * queue) that stands before it. Nothing else orders commands, also not within a queue. */
#include "backends/cpu/cpu.h"
#include "backends/cpu/cpu_device.h"

#include <stdlib.h>
#include <string.h>

enum { QUEUES = SBP_QUEUE_COUNT };

typedef struct held {
    cpu_command command;
    int queue;
    bool done;
    int32_t after[QUEUES]; /* commands of queue f before this number must be done first */
} held;

typedef struct shuffle_device {
    cpu_core core;
    uint64_t random;
    held *commands; /* in the order of submission, since the last flush */
    int32_t count, capacity;
    int32_t fences[QUEUES][QUEUES]; /* [from][to]: number of commands before the last such fence */
} shuffle_device;

static uint64_t next_random(shuffle_device *device) { /* splitmix64 */
    uint64_t z = device->random += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static void flush(shuffle_device *device) {
    int32_t first[QUEUES] = {0}; /* the first command of each queue that is not done */
    for (int32_t left = device->count; left > 0; left--) {
        for (int q = 0; q < QUEUES; q++)
            while (first[q] < device->count &&
                   (device->commands[first[q]].done || device->commands[first[q]].queue != q))
                first[q]++;
        /* one of those that may run, each with the same chance */
        held *chosen = NULL;
        uint64_t candidates = 0;
        for (int32_t i = 0; i < device->count; i++) {
            held *h = &device->commands[i];
            bool may_run = !h->done;
            for (int q = 0; q < QUEUES; q++)
                may_run = may_run && h->after[q] <= first[q];
            if (may_run && next_random(device) % ++candidates == 0)
                chosen = h;
        }
        if (!chosen)
            break; /* not with fences that the verifier lets pass: the earliest command waits for none */
        cpu_core_run(&device->core, &device->core.lane, &chosen->command);
        chosen->done = true;
    }
    device->count = 0;
    memset(device->fences, 0, sizeof device->fences);
}

static void shuffle_destroy(sbp_device *base) {
    shuffle_device *device = (shuffle_device *)base;
    free(device->commands);
    cpu_core_destroy(&device->core);
    free(device);
}

static sbp_status shuffle_create(const sbp_device_options *options, sbp_diag *diag, sbp_device **out) {
    *out = NULL;
    shuffle_device *device = sbp_malloc(sizeof *device);
    if (!device)
        return sbp_fail(diag, SBP_MACHINE, "out of memory");
    memset(device, 0, sizeof *device);
    device->random = options ? options->shuffle_seed : 0;
    sbp_status status = cpu_core_create(&device->core, &sbp_cpu_shuffle_device, options, diag);
    if (status != SBP_OK)
        shuffle_destroy(&device->core.base);
    else
        *out = &device->core.base;
    return status;
}

static void shuffle_info(sbp_device *base, sbp_device_info *out) {
    cpu_core_info(&((shuffle_device *)base)->core, out);
}

static sbp_status shuffle_load(sbp_device *base, const sbp_program *program, sbp_diag *diag) {
    return cpu_core_load(&((shuffle_device *)base)->core, program, diag);
}

static sbp_status shuffle_write(sbp_device *base, sbp_space space, int64_t offset, const void *data,
                                int64_t bytes, sbp_diag *diag) {
    shuffle_device *device = (shuffle_device *)base;
    flush(device);
    return cpu_core_write(&device->core, space, offset, data, bytes, diag);
}

static sbp_status shuffle_read(sbp_device *base, sbp_space space, int64_t offset, void *data, int64_t bytes,
                               sbp_diag *diag) {
    shuffle_device *device = (shuffle_device *)base;
    flush(device);
    return cpu_core_read(&device->core, space, offset, data, bytes, diag);
}

static sbp_status shuffle_submit(sbp_device *base, const sbp_dispatch *dispatch, sbp_diag *diag) {
    shuffle_device *device = (shuffle_device *)base;
    held h = {.queue = dispatch->command->queue};
    SBP_TRY(cpu_core_resolve(&device->core, dispatch, &h.command, diag));
    if (dispatch->command->kind == SBP_CMD_FENCE) {
        int from = dispatch->command->u.fence.from, to = dispatch->command->u.fence.to;
        if ((unsigned)from >= QUEUES || (unsigned)to >= QUEUES)
            return sbp_fail(diag, SBP_INTERNAL, "cpu: a fence from queue %d to queue %d", from, to);
        device->fences[from][to] = device->count;
        return SBP_OK;
    }
    for (int from = 0; from < QUEUES; from++)
        h.after[from] = device->fences[from][h.queue];
    if (device->count == device->capacity) {
        int32_t capacity = device->capacity ? 2 * device->capacity : 64;
        held *grown = sbp_realloc(device->commands, (size_t)capacity * sizeof *grown);
        if (!grown)
            return sbp_fail(diag, SBP_MACHINE, "out of memory");
        device->commands = grown;
        device->capacity = capacity;
    }
    device->commands[device->count++] = h;
    return SBP_OK;
}

static sbp_status shuffle_wait(sbp_device *base, sbp_diag *diag) {
    (void)diag;
    flush((shuffle_device *)base);
    return SBP_OK;
}

static void *shuffle_map(sbp_device *base, sbp_space space, int64_t offset) {
    shuffle_device *device = (shuffle_device *)base;
    flush(device);
    return device->core.arena[space] ? device->core.arena[space] + offset : NULL;
}

const sbp_device_class sbp_cpu_shuffle_device = {.name = "cpu-shuffle",
                                                 .create = shuffle_create,
                                                 .destroy = shuffle_destroy,
                                                 .info = shuffle_info,
                                                 .load = shuffle_load,
                                                 .write = shuffle_write,
                                                 .read = shuffle_read,
                                                 .submit = shuffle_submit,
                                                 .wait = shuffle_wait,
                                                 .map = shuffle_map};
