/* makespan.c: queues that run beside each other, simulated. */
#include "passes/planner/makespan.h"

void sbp_makespan_begin(sbp_arena *arena, const sbp_program *program, sbp_makespan *out) {
    *out = (sbp_makespan){.arena = arena, .program = program};
    out->first = SBP_NEW_ARRAY(arena, int32_t, program->buffer_count + 1);
    int32_t elements = 0;
    for (int32_t b = 0; b < program->buffer_count; b++) {
        out->first[b] = elements;
        elements += program->buffers[b].part_of > 0 ? 0 : program->buffers[b].count;
    }
    for (int32_t b = 0; b < program->buffer_count; b++)
        out->first[b] = out->first[sbp_buffer_memory(program, b)];
    out->written = SBP_NEW_ARRAY(arena, double, elements + 1);
    out->read = SBP_NEW_ARRAY(arena, double, elements + 1);
}

static double later(double a, double b) {
    return a > b ? a : b;
}

void sbp_makespan_run(sbp_makespan *span, int32_t queue, double seconds, const sbp_spot *spots,
                      int32_t count) {
    double start = span->clock[queue];
    for (int32_t i = 0; i < count; i++) {
        int32_t element = span->first[spots[i].buffer] + spots[i].element;
        start = later(start, span->written[element]);
        if (spots[i].access != SBP_READ)
            start = later(start, span->read[element]);
    }
    double end = start + seconds;
    for (int32_t i = 0; i < count; i++) {
        int32_t element = span->first[spots[i].buffer] + spots[i].element;
        double *done = spots[i].access == SBP_READ ? span->read : span->written;
        done[element] = later(done[element], end);
    }
    span->clock[queue] = end;
    span->busy[queue] += seconds;
}

void sbp_makespan_call(sbp_makespan *span, const sbp_cost *function, const sbp_spot *spots, int32_t count) {
    bool brings = function->busy[SBP_QUEUE_IN] > 0;
    if (brings)
        span->clock[SBP_QUEUE_COMPUTE] = later(span->clock[SBP_QUEUE_COMPUTE], span->clock[SBP_QUEUE_IN]);
    sbp_makespan_run(span, SBP_QUEUE_COMPUTE, function->seconds, spots, count);
    if (!brings)
        return;
    span->clock[SBP_QUEUE_IN] = span->clock[SBP_QUEUE_COMPUTE];
    span->busy[SBP_QUEUE_IN] += function->busy[SBP_QUEUE_IN];
    span->busy[SBP_QUEUE_COMPUTE] += function->busy[SBP_QUEUE_COMPUTE] - function->seconds;
}

double sbp_makespan_end(const sbp_makespan *span) {
    double end = 0;
    for (int q = 0; q < SBP_QUEUE_COUNT; q++)
        end = later(end, span->clock[q]);
    return end;
}
