/* memory.h: device memory from inside the machine: allocations with their bytes, which of them were written,
 * and who touched them last. */
#ifndef SBP_TESTS_PTX_MEMORY_H
#define SBP_TESTS_PTX_MEMORY_H

#include "tests/ptx/ptx.h"

enum { PTX_PAGE_BYTES = 4096 };

/* Other readers of a unit than the last: the last ones of two other blocks, and one of the last one's block
 * before it. */
typedef struct {
    uint32_t time[3], who[3];
} ptx_more_readers;

/* Who touched each unit of 1 << shift (0, 1, 2) bytes of a page of global memory last. A time is the memory's
 * clock (which goes on from launch to launch; 0: never), a thread is numbered through the grid, with flags
 * above. */
typedef struct {
    int shift;
    uint32_t *write_time; // one piece of memory with the next three; NULL: nothing yet
    uint32_t *writer, *read_time, *reader;
    ptx_more_readers *more; // NULL: nobody else
} ptx_page;

typedef struct {
    uint64_t base, bytes;
    uint8_t *host;
    uint8_t *written; // a bit per byte
    ptx_page *pages;  // NULL until a launch traces them
} ptx_allocation;

struct sbp_ptx_memory {
    uint64_t limit, used, next;
    ptx_allocation *allocations; // by address
    int count, capacity;
    uint32_t clock; // of traces, > 0
};

// The allocation that holds an address; NULL.
ptx_allocation *ptx_memory_at(const sbp_ptx_memory *memory, uint64_t address);

// Whether [offset, offset + bytes) was written; bytes <= 16 is fast.
bool ptx_written(const ptx_allocation *allocation, uint64_t offset, uint64_t bytes);
void ptx_mark_written(ptx_allocation *allocation, uint64_t offset, uint64_t bytes, bool written);

/* The page of [offset, offset + bytes), which lies in one, with units that the range is whole ones of: *first
 * is the first of them, *count how many. NULL: out of memory. */
ptx_page *ptx_page_of(ptx_allocation *allocation, uint64_t offset, uint32_t bytes, uint32_t *first,
                      uint32_t *count);
// Forgets all traces and starts the clock anew.
void ptx_memory_forget(sbp_ptx_memory *memory);

#endif
