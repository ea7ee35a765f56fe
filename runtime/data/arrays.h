/* arrays.h: arrays that grow, in memory or as files of a directory that are mapped, so that they may be
 * larger than memory: of a dataset, and of its cache.
 *
 * Arrays are known by name; they have one element size each. In a directory they are written through the
 * mapping: space on the disk is taken before, so that a full disk is an error and not a signal. What was
 * touched counts as memory of the process until sbp_arrays_release gives it back to the system, where it
 * stays cached.
 *
 * Threads: one thread at a time; what is mapped may be read by many.
 */
#ifndef SBP_RUNTIME_DATA_ARRAYS_H
#define SBP_RUNTIME_DATA_ARRAYS_H

#include "ir/base/base.h"

enum { SBP_MOST_ARRAYS = 32, SBP_ARRAY_NAME = 24, SBP_SUM_BYTES = 1 << 20 };

typedef struct sbp_array {
    char name[SBP_ARRAY_NAME];
    int fd; /* -1: in memory */
    void *data;
    int64_t bytes; /* there is room for */
} sbp_array;

typedef struct sbp_arrays {
    int directory; /* -1: arrays are in memory */
    sbp_array items[SBP_MOST_ARRAYS];
    int32_t count;
    int error; /* errno of what failed last; 0: out of memory */
} sbp_arrays;

/* directory: open, stays the caller's; -1: in memory. */
void sbp_arrays_init(sbp_arrays *arrays, int directory);
/* Frees memory, unmaps and closes files; they stay. */
void sbp_arrays_close(sbp_arrays *arrays);

/* Makes room for `count` elements of an array: *array is where it is now, *capacity how many it has room for.
 * What was there stays; what is new is undefined. false: there is no room. */
bool sbp_arrays_reserve(sbp_arrays *arrays, const char *name, void *array, int64_t *capacity, int64_t count,
                        size_t element_bytes);
/* Gives pages back. */
void sbp_arrays_release(const sbp_arrays *arrays);

/* Ends the writing of an array in a directory: it gets this length, and a hash of each SBP_SUM_BYTES of it
 * into sums [ceil(bytes / SBP_SUM_BYTES)]. false: it could not be read or written (arrays->error). */
bool sbp_arrays_finish(sbp_arrays *arrays, const char *name, int64_t bytes, uint64_t *sums);
/* Maps a file of the directory for reading. false: it is not there or has another length. */
bool sbp_arrays_map(sbp_arrays *arrays, const char *name, int64_t bytes, void *array);
/* Whether pieces of a mapped array have these sums: all, or, beyond `most` bytes, the first, the last and
 * others between them. */
bool sbp_arrays_check(sbp_arrays *arrays, const char *name, int64_t bytes, const uint64_t *sums,
                      int64_t most);

#endif
