/* fence_simulator.h: runs a program on paper and says whether its fences suffice. Shares no code with the
 * pass that places them: it knows only what ir/program/program.h says about views, queues and fences.
 *
 * A stream is every command that entries give to a device for one micro-batch, operands resolved to bytes.
 * Two checks on it:
 *   order  two commands of which one writes what the other touches must be ordered by fences; nothing else
 *          orders commands, also not within a queue
 *   data   in the order of the stream, a command reads only bytes that were last written through the same
 *          buffer element, since its entry (its call, for buffers of functions) began. Parameters, row data
 *          and the like are there from the beginning, and nobody else writes to their memory. What a command
 *          writes, its workspace among it, is no memory of another element that it touches
 */
#ifndef SBP_TESTS_COMMON_FENCE_SIMULATOR_H
#define SBP_TESTS_COMMON_FENCE_SIMULATOR_H

#include "ir/program/program.h"

/* Rows of a micro-batch; arrays of t. trips: how often loops over a scalar run, per scalar of the program;
 * NULL: once. uncounted: how many rows are none for loops over rows that count. */
typedef struct fence_batch {
    int64_t t, s;
    const int64_t *first, *shared_end, *own;
    const int64_t *trips;
    int64_t uncounted;
} fence_batch;

typedef struct fence_stream fence_stream;

/* Records the entries `sequence` (numbers), one after the other without waiting. Everything lives in the
 * arena. SBP_INTERNAL when a view leaves its buffer. */
sbp_status fence_stream_record(sbp_arena *arena, sbp_diag *diag, const sbp_program *program,
                               const fence_batch *batch, const int32_t *sequence, int32_t count,
                               fence_stream **out) SBP_CHECKED;
int64_t fence_stream_commands(const fence_stream *stream);
int64_t fence_stream_fences(const fence_stream *stream);

/* NULL when all is well, else what is not; the text lives in the arena. changed: a fence that is left out, or
 * (earlier) that does not wait for the last command of its queue before it; NULL: none. */
const char *fence_stream_check_order(sbp_arena *arena, const fence_stream *stream, const sbp_command *changed,
                                     bool earlier);
const char *fence_stream_check_data(sbp_arena *arena, const fence_stream *stream);

/* The fences of a program in the order of its text. */
typedef struct fence_list {
    const sbp_command **items;
    int32_t count, capacity;
} fence_list;

fence_list fence_list_make(sbp_arena *arena, const sbp_program *program);

/* A sequence of entries in which each stands right before each. */
int32_t fence_sequence_of_pairs(sbp_arena *arena, const sbp_program *program, int32_t **out);

#endif
