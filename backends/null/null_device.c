/* null_device.c: the device of a new backend, with everything but kernels: `conformance null` lists what is
 * missing.
 *
 * Its memory is two arenas of the process, which stand for that of a device and for host memory that it
 * reaches; what a real one does in place of a line is said beside it. The rest of a device is
 * composite/: queue host runs on the CPU's kernels over the host arena, queue disk in a file,
 * collectives between ranks, fences.
 */
#include "backends/composite/composite.h"
#include "backends/cpu/cpu_cores.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct null_device {
    sbp_device base; /* first, as in all */
    char *arena[SBP_SPACE_COUNT];
    int64_t bytes[SBP_SPACE_COUNT];
} null_device;

static const sbp_device_class backend_class;

/* Opens a driver and the device of options->index. A class with .count says how many there are, or why
 * none. */
static sbp_status null_create(const sbp_device_options *options, sbp_diag *diag, sbp_device **out) {
    (void)options;
    null_device *d = sbp_malloc(sizeof *d);
    *out = NULL;
    if (!d)
        return sbp_fail(diag, SBP_MACHINE, "null: out of memory for the device");
    *d = (null_device){.base.class = &backend_class};
    *out = &d->base;
    return SBP_OK;
}

static void null_destroy(sbp_device *base) {
    null_device *d = (null_device *)base;
    for (int s = 0; s < SBP_SPACE_COUNT; s++)
        free(d->arena[s]);
    free(d);
}

/* memory_bytes, used_bytes and available_bytes are what the driver says; 0: it does not. */
static void null_info(sbp_device *base, sbp_device_info *out) {
    (void)base;
    *out = (sbp_device_info){.software = true};
    snprintf(out->name, sizeof out->name, "null, which runs no command");
}

/* An allocation for each space, and the kernels that the program needs: of options->code, or by command. */
static sbp_status null_load(sbp_device *base, const sbp_program *program, sbp_diag *diag) {
    null_device *d = (null_device *)base;
    for (int s = 0; s < SBP_SPACE_COUNT; s++) {
        if (s == SBP_DISK) /* a file: composite/ has it */
            continue;
        d->bytes[s] = program->arena_bytes[s];
        if (!(d->arena[s] = sbp_malloc((size_t)d->bytes[s] + 1))) /* maybe none */
            return sbp_fail(diag, SBP_MACHINE,
                            "null: no memory for an arena of %lld bytes: give --memory a smaller size",
                            (long long)d->bytes[s]);
    }
    return SBP_OK;
}

static sbp_status find(const null_device *d, sbp_space space, int64_t offset, int64_t bytes, sbp_diag *diag,
                       char **out) {
    if (bytes < 0 || offset < 0 || offset > d->bytes[space] || bytes > d->bytes[space] - offset)
        return sbp_fail(diag, SBP_INTERNAL, "null: bytes %lld to %lld of an arena of %lld", (long long)offset,
                        (long long)(offset + bytes), (long long)d->bytes[space]);
    *out = d->arena[space] + offset;
    return SBP_OK;
}

/* Copies, which wait for the commands before them. */
static sbp_status null_write(sbp_device *base, sbp_space space, int64_t offset, const void *data,
                             int64_t bytes, sbp_diag *diag) {
    char *at = NULL;
    SBP_TRY(find((null_device *)base, space, offset, bytes, diag, &at));
    memcpy(at, data, (size_t)bytes);
    return SBP_OK;
}

static sbp_status null_read(sbp_device *base, sbp_space space, int64_t offset, void *data, int64_t bytes,
                            sbp_diag *diag) {
    char *at = NULL;
    SBP_TRY(find((null_device *)base, space, offset, bytes, diag, &at));
    memcpy(data, at, (size_t)bytes);
    return SBP_OK;
}

/* A case for each command that has a kernel: it is given dispatch->spans, operands by the names of
 * commands.def, which find() turns into addresses, and for `row` a kernel to generate code from (gpu/emit).
 * What a command means is said in ir/program/commands/. SBP_USAGE, and nothing else, means that there is no
 * kernel. */
static sbp_status null_submit(sbp_device *base, const sbp_dispatch *dispatch, sbp_diag *diag) {
    (void)base;
    switch (dispatch->command->kind) {
    default:
        return sbp_fail(diag, SBP_USAGE,
                        "backend null has no kernel for command '%s': compile for another --backend",
                        sbp_command_name(dispatch->command->kind));
    }
}

/* Until all that was submitted is done. */
static sbp_status null_wait(sbp_device *base, sbp_diag *diag) {
    (void)base, (void)diag;
    return SBP_OK;
}

/* The host reaches its own arena, and that of a device only where their memory is the same. */
static void *null_map(sbp_device *base, sbp_space space, int64_t offset) {
    null_device *d = (null_device *)base;
    return space == SBP_HOST && d->arena[space] ? d->arena[space] + offset : NULL;
}

static const sbp_device_class backend_class = {.name = "null",
                                               .create = null_create,
                                               .destroy = null_destroy,
                                               .info = null_info,
                                               .load = null_load,
                                               .write = null_write,
                                               .read = null_read,
                                               .submit = null_submit,
                                               .wait = null_wait,
                                               .map = null_map};

extern const sbp_device_class sbp_null_device;

/* waits: submit returns when a command is done. A device with queues of its own is without it, and is given
 * fences, too. */
static sbp_status create_composite(const sbp_device_options *options, sbp_diag *diag, sbp_device **out) {
    const composite_parts parts = {
        .name = "null", .backend = &backend_class, .cores = &cpu_cores, .waits = true};
    return composite_create(&parts, &sbp_null_device, options, diag, out);
}

const sbp_device_class sbp_null_device = {.name = "null", .create = create_composite, COMPOSITE_CLASS};
