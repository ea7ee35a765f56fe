/* place.h: offsets for hand-written programs. */
#ifndef SBP_TESTS_PLACE_H
#define SBP_TESTS_PLACE_H

#include "ir/program/program.h"

#include <setjmp.h>

#include <cmocka.h>

/* Gives every buffer the next free bytes, as a memory pass might. */
static void place(sbp_program *p) {
    sbp_sizes most = sbp_program_sizes(p, p->t_max, p->s_max);
    for (int32_t b = 0; b < p->buffer_count; b++) {
        sbp_buffer *buffer = &p->buffers[b];
        int64_t bytes = 0;
        assert_true(sbp_buffer_bytes(buffer, &most, &bytes));
        buffer->offset = p->arena_bytes[buffer->space];
        buffer->stride = sbp_round_up(bytes, buffer->space == SBP_DISK ? SBP_DISK_ALIGNMENT : 64);
        p->arena_bytes[buffer->space] += buffer->stride * buffer->count;
    }
    for (int32_t b = 0; b < p->buffer_count; b++) {
        sbp_buffer *part = &p->buffers[b];
        if (part->part_of == 0)
            continue;
        const sbp_buffer *bucket = &p->buffers[part->part_of - 1];
        part->offset = bucket->offset + part->place * sbp_dtype_bytes(bucket->dtype);
        part->stride = bucket->stride;
    }
}

#endif
