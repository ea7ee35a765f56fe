/* composite.h: a device of the runtime (backends/device.h) made of what has hands of its own: the backend
 * device for queues compute, in and out, the host's cores for queue host (the CPU is both), a file for queue
 * disk. Each backend
 * says what its backend device is; this room knows none of them.
 *
 * As long as a program submits to compute alone, commands go straight to the backend device. */
#ifndef SBP_BACKENDS_COMPOSITE_H
#define SBP_BACKENDS_COMPOSITE_H

#include "backends/device.h"

/* Where a byte range of the host arena lies; NULL when it is not in one piece of memory. */
typedef char *(*composite_address)(void *user, int64_t offset, int64_t bytes);

/* What runs the commands of queue host. */
typedef struct composite_cores {
    /* For a verified program; threads: 0 all cores that the process may use. */
    sbp_status (*create)(int32_t threads, const sbp_program *program, composite_address address, void *user,
                         sbp_diag *diag, void **out);
    /* Runs one command to its end. One thread at a time. */
    sbp_status (*run)(void *cores, const sbp_dispatch *dispatch, sbp_diag *diag);
    void (*destroy)(void *cores);
} composite_cores;

typedef struct composite_parts {
    const char *name;
    /* Has no queue disk, and no arena for SBP_DISK; its `map` reaches all of SBP_HOST. */
    const sbp_device_class *backend;
    const composite_cores *cores; /* NULL: the backend device is the host's cores and runs queue host too */
    /* submit of the backend device returns when the command is done, fences mean nothing to it, and its
     * queues may be submitted from a thread each. Else it has queues itself and one thread submits. */
    bool waits;
    bool shuffled; /* commands run in random order, as far as fences allow (options.shuffle_seed); with waits
                    */
} composite_parts;

sbp_status composite_create(const composite_parts *parts, const sbp_device_class *class,
                            const sbp_device_options *options, sbp_diag *diag, sbp_device **out) SBP_CHECKED;
void composite_destroy(sbp_device *device);
/* The backend device, for who measures it. */
sbp_device *composite_backend(sbp_device *device);
void composite_info(sbp_device *device, sbp_device_info *out);
sbp_status composite_load(sbp_device *device, const sbp_program *program, sbp_diag *diag);
/* The backend device may take queue net for its own, as it does the others. */
sbp_status composite_rendezvous(sbp_device *device, bool *own, sbp_diag *diag);
sbp_status composite_write(sbp_device *device, sbp_space space, int64_t offset, const void *data,
                           int64_t bytes, sbp_diag *diag);
sbp_status composite_read(sbp_device *device, sbp_space space, int64_t offset, void *data, int64_t bytes,
                          sbp_diag *diag);
sbp_status composite_submit(sbp_device *device, const sbp_dispatch *dispatch, sbp_diag *diag);
sbp_status composite_wait(sbp_device *device, sbp_diag *diag);
void *composite_map(sbp_device *device, sbp_space space, int64_t offset);

/* All of a class but name, count and create. */
#define COMPOSITE_CLASS                                                                                      \
    .destroy = composite_destroy, .info = composite_info, .load = composite_load, .write = composite_write,  \
    .read = composite_read, .submit = composite_submit, .wait = composite_wait, .map = composite_map

#endif
