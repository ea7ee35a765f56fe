/* memory.h: device memory from inside the machine: allocations with their bytes, which of them were written,
 * and who touched them last. */
#ifndef SBP_TESTS_PTX_MEMORY_H
#define SBP_TESTS_PTX_MEMORY_H

#include "tests/ptx/ptx.h"

/* Who touched a unit of 1, 2 or 4 bytes of global memory last. A time is the memory's clock (which goes on
 * from launch to launch; 0: never), a thread is numbered through the grid, with flags above. */
typedef struct {
    uint32_t write_time, writer;
    uint32_t read_time[2], reader[2]; // the last reader, and the last one of another block
} ptx_trace;

enum { PTX_PAGE_BYTES = 4096 };

// Traces of a page: units of 1 << shift bytes.
typedef struct {
    int shift;
    ptx_trace *traces;
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

/* The traces of [offset, offset + bytes), which lies in one page: their first, and in *out_count how many.
 * NULL: out of memory. */
ptx_trace *ptx_traces(ptx_allocation *allocation, uint64_t offset, uint32_t bytes, int *out_count);
// Forgets all traces and starts the clock anew.
void ptx_memory_forget(sbp_ptx_memory *memory);

#endif
