/* recorder.h: a device for tests that keeps what it is given and computes nothing. Its memory is the host's;
 * it maps it or, like a device far away, does not. */
#ifndef SBP_TESTS_RECORDER_H
#define SBP_TESTS_RECORDER_H

#include "backends/device.h"

#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct record {
    const sbp_command *command;
    sbp_span spans[SBP_MAX_COMMAND_OPERANDS];
    int64_t rows, row0;
    double scalars[SBP_ROWKERNEL_MAX_SCALARS];
} record;

typedef struct recorder {
    sbp_device base;
    unsigned char *arena[SBP_SPACE_COUNT];
    int64_t bytes[SBP_SPACE_COUNT];
    record *records;
    int32_t count, capacity;
    bool keep; /* records are kept; else only counted */
    const sbp_program *program;
} recorder;

static sbp_status recorder_create(const sbp_device_options *options, sbp_diag *diag, sbp_device **out) {
    (void)options;
    recorder *r = calloc(1, sizeof *r);
    if (!r)
        return sbp_fail(diag, SBP_MACHINE, "out of memory");
    r->keep = true;
    *out = &r->base;
    return SBP_OK;
}

static void recorder_destroy(sbp_device *device) {
    recorder *r = (recorder *)(void *)device;
    for (int s = 0; s < SBP_SPACE_COUNT; s++)
        free(r->arena[s]);
    free(r->records);
    free(r);
}

static sbp_status recorder_load(sbp_device *device, const sbp_program *program, sbp_diag *diag) {
    recorder *r = (recorder *)(void *)device;
    (void)diag;
    r->program = program;
    for (int s = 0; s < SBP_SPACE_COUNT; s++) {
        r->bytes[s] = program->arena_bytes[s];
        r->arena[s] = malloc((size_t)r->bytes[s] + 1);
        memset(r->arena[s], 0xee, (size_t)r->bytes[s]);
    }
    return SBP_OK;
}

static sbp_status recorder_write(sbp_device *device, sbp_space space, int64_t offset, const void *data,
                                 int64_t bytes, sbp_diag *diag) {
    recorder *r = (recorder *)(void *)device;
    (void)diag;
    assert_true(offset >= 0 && bytes >= 0 && offset + bytes <= r->bytes[space]);
    memcpy(r->arena[space] + offset, data, (size_t)bytes);
    return SBP_OK;
}

static sbp_status recorder_read(sbp_device *device, sbp_space space, int64_t offset, void *data,
                                int64_t bytes, sbp_diag *diag) {
    recorder *r = (recorder *)(void *)device;
    (void)diag;
    assert_true(offset >= 0 && bytes >= 0 && offset + bytes <= r->bytes[space]);
    memcpy(data, r->arena[space] + offset, (size_t)bytes);
    return SBP_OK;
}

/* Every operand lies inside one buffer. */
static void recorder_check(const recorder *r, const sbp_span *span) {
    if (span->space == SBP_SPACE_COUNT || span->rows == 0)
        return;
    assert_true(span->rows > 0 && span->cols > 0 && span->stride >= span->cols);
    int64_t end =
        span->offset + ((span->rows - 1) * span->stride + span->cols) * sbp_dtype_bytes(span->dtype);
    sbp_sizes most = sbp_program_sizes(r->program, r->program->t_max, r->program->s_max);
    bool inside = false;
    for (int32_t b = 0; b < r->program->buffer_count && !inside; b++) {
        const sbp_buffer *buffer = &r->program->buffers[b];
        int64_t bytes = 0;
        assert_true(sbp_buffer_bytes(buffer, &most, &bytes));
        for (int32_t slot = 0; slot < buffer->count && !inside; slot++) {
            int64_t begin = buffer->offset + slot * buffer->stride;
            inside = buffer->space == span->space && span->offset >= begin && end <= begin + bytes;
        }
    }
    assert_true(inside);
}

static sbp_status recorder_submit(sbp_device *device, const sbp_dispatch *d, sbp_diag *diag) {
    recorder *r = (recorder *)(void *)device;
    (void)diag;
    for (int32_t k = 0; r->keep && k < d->span_count; k++)
        recorder_check(r, &d->spans[k]);
    if (!r->keep) {
        r->count++;
        return SBP_OK;
    }
    if (r->count == r->capacity) {
        r->capacity = r->capacity ? r->capacity * 2 : 64;
        r->records = realloc(r->records, (size_t)r->capacity * sizeof *r->records);
    }
    record *to = &r->records[r->count++];
    memset(to, 0, sizeof *to);
    to->command = d->command;
    to->rows = d->rows;
    to->row0 = d->row0;
    assert_int_equal(d->span_count, d->command->view_count);
    memcpy(to->spans, d->spans, (size_t)d->span_count * sizeof *d->spans);
    if (d->kernel)
        memcpy(to->scalars, d->scalars, (size_t)d->kernel->scalar_count * sizeof(double));
    return SBP_OK;
}

static sbp_status recorder_wait(sbp_device *device, sbp_diag *diag) {
    (void)device;
    (void)diag;
    return SBP_OK;
}

static void *recorder_map(sbp_device *device, sbp_space space, int64_t offset) {
    return ((recorder *)(void *)device)->arena[space] + offset;
}

static const sbp_device_class *recorder_class(bool map) {
    static const sbp_device_class mapping = {.name = "recorder",
                                             .create = recorder_create,
                                             .destroy = recorder_destroy,
                                             .load = recorder_load,
                                             .write = recorder_write,
                                             .read = recorder_read,
                                             .submit = recorder_submit,
                                             .wait = recorder_wait,
                                             .map = recorder_map};
    static sbp_device_class remote;
    remote = mapping;
    remote.map = NULL;
    return map ? &mapping : &remote;
}

#endif
