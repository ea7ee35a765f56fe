/* memory.h: live ranges of buffers, for the memory pass and for reports about memory. */
#ifndef SBP_PASSES_MEMORY_H
#define SBP_PASSES_MEMORY_H

#include "ir/program/program.h"
#include "ir/target/target_info.h"

/* What is done to all of one element of a buffer. */
typedef struct sbp_spot {
    int32_t buffer, element;
    sbp_access access;
} sbp_spot;

/* What is live at the moment of the highest demand: bytes per role, and the rest that packing left unused. */
typedef struct sbp_memory_peak {
    int64_t roles[SBP_ROLE_COUNT];
    int64_t live_bytes;  /* sum of the above: no packing can do with less */
    int64_t arena_bytes; /* what was allotted */
    const char *entry;   /* where the peak is */
} sbp_memory_peak;

sbp_status sbp_memory_find_peak(sbp_arena *arena, const sbp_program *program, sbp_space space,
                                int64_t alignment, sbp_diag *diag, sbp_memory_peak *out) SBP_CHECKED;

/* Positions during which a buffer holds something that is still read: intervals, ascending, both ends
 * included. */
typedef struct sbp_live_range {
    int32_t begin, end;
} sbp_live_range;

typedef struct sbp_live_set {
    sbp_live_range *ranges;
    int32_t count, capacity;
} sbp_live_set;

/* Persistent buffers (parameters, gradients, states, row data, results) are live throughout and have no sets.
 * The cache of generated rows is live throughout the entries that generate, and nowhere else: training has
 * its memory between two batches of answers.
 * A buffer written whole begins a new interval; arrays, and what only parts are written of, have one. */
typedef struct sbp_liveness {
    int32_t entry_count;
    int32_t *lengths;      /* positions per entry: a command or a call each */
    sbp_live_set *buffers; /* [entry * buffer_count + buffer] */
    sbp_live_set *calls;   /* [entry * function_count + function]: where it is called */
    sbp_live_set *frames;  /* per buffer of a function: inside one run of the function */
    int32_t *function_lengths;
} sbp_liveness;

void sbp_memory_liveness(sbp_arena *arena, const sbp_program *program, sbp_liveness *out);

/* The same without bodies of entries: the frames of functions first, then position by position what each of
 * `entries` entries touches there, calling `function` or (-1) none. All buffers are there at the beginning.
 */
void sbp_memory_frames(sbp_arena *arena, const sbp_program *program, int32_t entries, sbp_liveness *out);
void sbp_memory_touch(sbp_arena *arena, const sbp_program *program, sbp_liveness *live, int32_t entry,
                      const sbp_spot *spots, int32_t count, int32_t function);

/* Once all of an entry was touched: what `name` keeps of the cache, be it used there or not. */
void sbp_memory_keep_cache(sbp_arena *arena, const sbp_program *program, sbp_liveness *live, int32_t entry,
                           const char *name);

bool sbp_memory_is_persistent(sbp_role role);

/* The rows of a buffer as a number, once the program's longest chunk is known: one for every blocks->per of
 * its rows, plus blocks->more. */
sbp_extent sbp_memory_block_rows(const sbp_program *program, const sbp_blocks *blocks);

/* A copy of a program for other sizes, with a buffer list of its own: what is sized by the chunks follows.
 * Offsets are those of the original until it is packed. */
sbp_program *sbp_memory_resize(sbp_arena *arena, const sbp_program *program, int64_t t_max, int64_t chunk,
                               int64_t head_chunk);

/* Gives every buffer its offset and stride and sets arena_bytes, for the program's t_max, chunk and
 * head_chunk. Liveness is that of the same program, whatever its sizes were then. */
sbp_status sbp_memory_pack(sbp_arena *arena, sbp_diag *diag, sbp_program *program, const sbp_liveness *live,
                           const sbp_target_info *target) SBP_CHECKED;
/* The same, and adds to *looks how many live ranges and places were looked at: nearly in proportion to the
 * buffers when each is live with a few others. For tests. */
sbp_status sbp_memory_pack_counted(sbp_arena *arena, sbp_diag *diag, sbp_program *program,
                                   const sbp_liveness *live, const sbp_target_info *target,
                                   int64_t *looks) SBP_CHECKED;

#endif
