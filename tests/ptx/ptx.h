/* ptx.h: a machine that executes PTX on the CPU, to prove CUDA kernels without a GPU: the text that ships is
 * what runs. It looks for what a GPU would forgive now and then: accesses out of bounds, misaligned, of what
 * was never written or is still being copied; races, missing fences, divergent barriers, deadlocks. What it
 * takes for a fault and what not: README.md of this folder.
 *
 * A device memory, modules loaded into it, launches of their entries. Launches are complete when they return.
 *
 * Ownership: a module keeps what it needs of its text; a memory must outlive its modules. Threads: objects of
 * different memories may be used at the same time; one memory, with its modules, by one thread at a time.
 * Nothing here exits or aborts because of its input. */
#ifndef SBP_TESTS_PTX_PTX_H
#define SBP_TESTS_PTX_PTX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef enum {
    SBP_PTX_OK = 0,
    SBP_PTX_FAULT = 1,   // the kernel is at fault
    SBP_PTX_REFUSED = 2, // the machine cannot read or execute something, or an argument is wrong
} sbp_ptx_status;

/* What was wrong, as text: kernel, line of the PTX, thread, address or register. */
typedef struct {
    sbp_ptx_status status;
    int line;              // of the PTX, from 1; 0: none
    char text[2048];       // lines, the first says what; no newline at the end
    uint64_t instructions; // warp instructions that a launch executed
} sbp_ptx_report;

// ---- device memory ----------------------------------------------------------------------------------------

/* Allocations at addresses of their own (a CUdeviceptr), never those of the host, multiples of 256, with gaps
 * between them; bounds are exact to the byte. Every byte knows whether it was ever written. */
typedef struct sbp_ptx_memory sbp_ptx_memory;

// limit_bytes: what may be allocated in all; 0: no limit. NULL: out of memory.
sbp_ptx_memory *sbp_ptx_memory_create(uint64_t limit_bytes);
void sbp_ptx_memory_destroy(sbp_ptx_memory *memory);

// Not initialised. 0: no room, or no bytes asked for.
uint64_t sbp_ptx_memory_alloc(sbp_ptx_memory *memory, uint64_t bytes);
// false: no allocation begins at this address.
bool sbp_ptx_memory_free(sbp_ptx_memory *memory, uint64_t address);
uint64_t sbp_ptx_memory_used_bytes(const sbp_ptx_memory *memory);

// The allocation that holds this address. false: none.
bool sbp_ptx_memory_find(const sbp_ptx_memory *memory, uint64_t address, uint64_t *out_base,
                         uint64_t *out_bytes);

// What the host does to the device; false when the range is not within one allocation, and nothing is done.
bool sbp_ptx_memory_write(sbp_ptx_memory *memory, uint64_t address, const void *from, uint64_t bytes);
bool sbp_ptx_memory_read(const sbp_ptx_memory *memory, uint64_t address, void *to, uint64_t bytes);
// Copies what was never written as such.
bool sbp_ptx_memory_copy(sbp_ptx_memory *memory, uint64_t to, uint64_t from, uint64_t bytes);
// `count` times the lowest `width` (1, 2, 4) bytes of value.
bool sbp_ptx_memory_fill(sbp_ptx_memory *memory, uint64_t address, uint32_t value, int width, uint64_t count);

/* The host's address of a range, until its allocation is freed; NULL when it is not within one allocation.
 * Whoever writes there says so with sbp_ptx_memory_mark. */
void *sbp_ptx_memory_host(const sbp_ptx_memory *memory, uint64_t address, uint64_t bytes);
bool sbp_ptx_memory_mark(sbp_ptx_memory *memory, uint64_t address, uint64_t bytes, bool initialised);

// ---- modules ----------------------------------------------------------------------------------------------

typedef struct sbp_ptx_module sbp_ptx_module;
typedef struct sbp_ptx_entry sbp_ptx_entry; // owned by its module

/* Reads `bytes` of PTX (a NUL ends it as well) and allocates its .global and .const variables. NULL: refused,
 * *report says why. */
sbp_ptx_module *sbp_ptx_module_load(sbp_ptx_memory *memory, const char *text, size_t bytes,
                                    sbp_ptx_report *report);
void sbp_ptx_module_unload(sbp_ptx_module *module);

const sbp_ptx_entry *sbp_ptx_module_entry(const sbp_ptx_module *module, const char *name); // NULL: none
int sbp_ptx_module_entries(const sbp_ptx_module *module);
const sbp_ptx_entry *sbp_ptx_module_entry_at(const sbp_ptx_module *module, int index);
// A variable of the module. false: none of this name.
bool sbp_ptx_module_global(const sbp_ptx_module *module, const char *name, uint64_t *out_address,
                           uint64_t *out_bytes);

typedef struct {
    size_t offset, bytes, align; // within the parameter space
} sbp_ptx_param;

const char *sbp_ptx_entry_name(const sbp_ptx_entry *entry);
int sbp_ptx_entry_params(const sbp_ptx_entry *entry);
sbp_ptx_param sbp_ptx_entry_param(const sbp_ptx_entry *entry, int index);
uint32_t sbp_ptx_entry_shared_bytes(const sbp_ptx_entry *entry); // static
uint32_t sbp_ptx_entry_max_threads(const sbp_ptx_entry *entry);  // .maxntid or .reqntid; 1024 without

// ---- launches ---------------------------------------------------------------------------------------------

typedef struct sbp_ptx_counts sbp_ptx_counts;

typedef struct {
    uint64_t seed;              // of everything that is random; default 1
    uint64_t instruction_limit; // warp instructions after which a launch is refused; 0: no limit
    int resident;               // blocks at a time; 0: some (4), -1: all
    bool no_races;              // leave out races of global memory (shared memory is always watched)
    sbp_ptx_counts *counts;     // added to when not NULL
} sbp_ptx_options;

/* Runs a grid. params: as cuLaunchKernel's kernelParams, a pointer per parameter to its bytes (tensor maps:
 * the 128 bytes that sbp_ptx_tensor_map_encode of tensor/tma.h made). options may be NULL. Whatever the
 * status, *report is filled; of a faulty kernel the memory holds what it had written by then. */
sbp_ptx_status sbp_ptx_launch(const sbp_ptx_entry *entry, const uint32_t grid[3], const uint32_t block[3],
                              uint32_t dynamic_shared_bytes, void *const *params,
                              const sbp_ptx_options *options, sbp_ptx_report *report);

// ---- counts -----------------------------------------------------------------------------------------------

/* What launches executed: warp instructions by class, and by line of the PTX wavefronts of shared memory and
 * 32-byte sectors of global memory beside the least that the same bytes could take. Exact and, but for loops
 * that wait, the same for every seed. */
sbp_ptx_counts *sbp_ptx_counts_create(void);
void sbp_ptx_counts_destroy(sbp_ptx_counts *counts);
uint64_t sbp_ptx_counts_instructions(const sbp_ptx_counts *counts);
void sbp_ptx_counts_print(const sbp_ptx_counts *counts, FILE *out);

#endif
