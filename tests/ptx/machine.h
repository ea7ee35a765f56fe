/* machine.h: a launch that runs: blocks, warps, shared memory, what is pending. */
#ifndef SBP_TESTS_PTX_MACHINE_H
#define SBP_TESTS_PTX_MACHINE_H

#include "tests/ptx/clocks.h"
#include "tests/ptx/module.h"

#include <string.h>

typedef struct ptx_launch ptx_launch;
typedef struct ptx_block ptx_block;

enum { PTX_MAX_WARPS = 32, PTX_MAX_AGENTS = 64, PTX_BARRIERS = 16 };

// ---- shared memory ----------------------------------------------------------------------------------------

// Bits for each byte of shared memory.
enum {
    PTX_BYTE_WRITTEN = 1,
    PTX_BYTE_PENDING = 2,   // an asynchronous copy writes here
    PTX_BYTE_ATOMIC = 4,    // last written by an atomic or strong access
    PTX_BYTE_ASYNC = 8,     // last written by the async proxy
    PTX_BYTE_AGENT = 16,    // last written by what an mbarrier waits for
    PTX_BYTE_MBARRIER = 32, // of an mbarrier that is in use
};

typedef struct {
    uint32_t bytes;
    uint8_t *data, *state;
    uint32_t *write_time, *write_line; // line of the PTX
    uint16_t *writer;                  // thread of the block, or PTX_MAX_WARPS * 32 + agent
    uint16_t *readers;                 // asynchronous operations that read it now
    uint32_t *last_read;               // by anyone
    uint32_t *reads[PTX_MAX_WARPS]; // time << 6 | code of the lanes (see shared.c); NULL: none of this warp
    uint32_t read_base;             // what times in reads[] count from
    uint32_t lane_sets[PTX_MAX_WARPS][32]; // codes 32 and up of a warp
    int lane_set_count[PTX_MAX_WARPS];
} ptx_shared;

// Who accesses, and how.
typedef enum {
    PTX_READ,
    PTX_WRITE,
    PTX_ATOMIC, // strong read, write or both: no race with its like
    PTX_STRONG_READ,
} ptx_access;

// ---- synchronisation --------------------------------------------------------------------------------------

// One of the 16 barriers of a block.
typedef struct {
    uint32_t waiting, arrived; // warps; a warp may be in both
    uint32_t expected;         // threads; 0: no round is open
    uint32_t count;            // threads so far
    ptx_view *view;            // of those that came
    bool any, all;             // bar.red
    uint32_t popc;
    int op, line; // bar.red: 1 popc, 2 and, 3 or
} ptx_barrier;

typedef struct {
    uint32_t address;
    uint32_t expected, pending; // arrivals
    int64_t tx;                 // bytes that are still to come
    uint32_t phase;             // phases that are complete
    int agent;
    uint32_t loads_phase, seen_phase; // phases of which copies came; that someone saw complete
    int loads_line;
    ptx_view *collecting, *complete; // of this phase's arrivals; of the last complete phase
} ptx_mbarrier;

// What releases have put into an address of shared or global memory.
typedef struct ptx_signal {
    uint64_t address;
    uint32_t block;          // of cta
    ptx_view *gpu, *cta;     // for threads of any block; of the same block
    struct ptx_signal *next; // of its slot
} ptx_signal;

typedef struct {
    ptx_signal **slots;
    uint32_t slot_count, count;
} ptx_signals;

// ---- asynchronous copies ----------------------------------------------------------------------------------

typedef enum { PTX_COPY_CP, PTX_COPY_LOAD, PTX_COPY_STORE, PTX_COPY_ARRIVE } ptx_copy_kind;

/* An asynchronous operation under way. CP (cp.async) has moved its data and waits for its thread to wait;
 * STORE (bulk, shared to global) moves it then or before. LOAD (bulk, to shared) and ARRIVE
 * (cp.async.mbarrier.arrive) happen at a random time and tell an mbarrier. */
typedef struct ptx_copy {
    struct ptx_copy *next; // of its warp (CP, STORE) or block
    const ptx_insn *insn;
    const void *map;        // tensor map; NULL: linear
    uint64_t global;        // without a map
    ptx_view *view;         // ARRIVE: what it releases
    uint32_t group;         // of its thread, once committed
    uint32_t shared, bytes; // what it reads or writes in shared memory, dense
    uint32_t barrier;       // mbarrier
    int32_t corner[5];
    uint16_t thread;
    uint8_t kind, reduce, type; // reduce: 0 none, else the operation
    bool committed, read_done, moved;
} ptx_copy;

// ---- warps ------------------------------------------------------------------------------------------------

typedef enum { PTX_WARP_RUNS, PTX_WARP_AT_BARRIER, PTX_WARP_DONE } ptx_warp_state;

struct ptx_warp {
    ptx_launch *launch;
    ptx_block *block;
    const sbp_ptx_entry *entry;
    int index; // in its block
    ptx_warp_state state;
    uint8_t *bank[2];    // registers, constants
    uint32_t pc, active; // of the lanes that run now
    uint32_t other_pc;   // the least pc of the others that can run; UINT32_MAX: none
    uint32_t exists, live;
    uint32_t stuck;              // lanes that wait for others of their warp
    uint32_t lane_pc[PTX_LANES]; // of lanes that are not active
    uint32_t spins;              // jumps back since the others ran
    uint32_t carry;              // CC.CF, a bit of each lane
    bool yield;
    int barrier; // where it waits
    uint8_t *local;
    // knowledge
    ptx_view *view[PTX_LANES];
    uint32_t together, mates_fenced; // time up to which the lanes know each other's accesses; and fenced ones
    uint32_t fenced[PTX_LANES];      // last fence.proxy.async
    uint32_t released;               // last release by some lanes
    ptx_view *fence_view[PTX_LANES]; // at the last fence that releases, and its time
    uint32_t fence_time[PTX_LANES], fence_together[PTX_LANES], fence_fenced[PTX_LANES];
    uint8_t fence_scope[PTX_LANES];
    ptx_view *heard[PTX_LANES];                         // by relaxed reads, for a later fence
    ptx_copy *copies;                                   // CP and STORE
    uint32_t groups[PTX_LANES], bulk_groups[PTX_LANES]; // committed groups of cp.async; of bulk
    // wgmma
    uint8_t *dirty; // per register: written since the last wgmma.fence
    uint32_t *
        flying; // per register: 1 + group of the wgmma that writes it, or 1 << 31 | that of one that reads it
    uint32_t wgmma_group, wgmma_done,
        wgmma_open; // groups committed, waited for; operations since the last commit
    struct ptx_flight *flights;
    bool fenced_once, fenced_since; // wgmma.fence: ever; since the last commit
    uint32_t max_registers;         // of a thread, by setmaxnreg; 0: that is not counted
};

struct ptx_block {
    ptx_launch *launch;
    uint32_t number, id[3];
    int warp_count, warps_done;
    ptx_warp *warps;
    ptx_shared shared;
    ptx_barrier barriers[PTX_BARRIERS];
    ptx_mbarrier mbarriers[PTX_MAX_AGENTS];
    int mbarrier_count;
    ptx_signals signals;
    ptx_copy *late; // copies that complete by themselves
    int late_count;
    uint32_t settled; // every thread knows all accesses of the block up to this time
    uint32_t live_threads;
    uint32_t spare_registers; // that warps have given back by setmaxnreg
};

struct ptx_launch {
    jmp_buf fail;
    sbp_ptx_report *report;
    const sbp_ptx_entry *entry;
    sbp_ptx_memory *memory;
    sbp_ptx_options options;
    uint32_t grid[3], dim[3], dynamic_bytes;
    uint32_t threads; // of a block, in whole warps
    uint32_t slots;   // entries of a slice: threads and agents
    uint8_t *params;
    uint32_t begin; // time
    uint64_t random, executed, progress_at;
    uint64_t world_at;     // when global memory was last written, or a block began or ended
    uint64_t *line_counts; // by instruction, when counted
    ptx_block **resident;
    int resident_count;
    uint32_t *order; // of blocks
    uint32_t next_block, block_count;
    ptx_signals signals; // global memory
    bool races;
    const struct ptx_shadow_ops *shadow;
    ptx_lanes_fn *flush, *saturate; // of f32
    ptx_allocation *near;           // the last allocation that was accessed
    ptx_view *held;                 // of an instruction that may end in a fault
};

static inline uint64_t ptx_random(ptx_launch *L) {
    uint64_t x = L->random;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return L->random = x;
}

static inline uint32_t ptx_now(const ptx_launch *L) {
    return L->memory->clock;
}

// Something moved: no deadlock.
static inline void ptx_progress(ptx_launch *L) {
    L->progress_at = L->executed;
}

static inline void *ptx_at(const ptx_warp *w, uint32_t place) {
    return w->bank[place >> 31] + (place & ~PTX_CONSTANT);
}

static inline void *ptx_lanes_of(const ptx_warp *w, const ptx_operand *o) {
    return ptx_at(w, o->place);
}

static inline bool ptx_lane_pred(const ptx_warp *w, const ptx_operand *o, int lane) {
    return ((*(uint32_t *)ptx_at(w, o->place) >> lane & 1) != 0) != o->negated;
}

static inline uint64_t ptx_lane_value(const ptx_warp *w, uint32_t place, int bytes, int lane) {
    const void *lanes = ptx_at(w, place);
    return bytes == 8   ? ((const uint64_t *)lanes)[lane]
           : bytes == 4 ? ((const uint32_t *)lanes)[lane]
                        : ((const uint16_t *)lanes)[lane];
}

static inline void ptx_lane_set(const ptx_warp *w, uint32_t place, int bytes, int lane, uint64_t value) {
    void *lanes = ptx_at(w, place);
    if (bytes == 8) {
        ((uint64_t *)lanes)[lane] = value;
    } else if (bytes == 4) {
        ((uint32_t *)lanes)[lane] = (uint32_t)value;
    } else {
        ((uint16_t *)lanes)[lane] = (uint16_t)value;
    }
}

// For each lane of a mask, from the lowest; the mask is read once.
#define PTX_EACH_LANE(lane, mask)                                                                            \
    for (uint32_t each_##lane = (mask), lane = 0;                                                            \
         each_##lane && (lane = (uint32_t)__builtin_ctz(each_##lane), true); each_##lane &= each_##lane - 1)

// The kernel is at fault, in this lane (-1: no single one). Does not return.
_Noreturn void ptx_fault(const ptx_warp *w, const ptx_insn *i, int lane, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
// The machine cannot do this. Does not return.
_Noreturn void ptx_unable(const ptx_warp *w, const ptx_insn *i, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
_Noreturn void ptx_no_memory(ptx_launch *L);
// The kernel is at fault where no instruction is.
_Noreturn void ptx_fail(ptx_launch *L, const char *format, ...) __attribute__((format(printf, 2, 3)));
// "thread (3,0,0) of block (0,1,0)" into text.
const char *ptx_thread_name(const ptx_launch *L, uint32_t block, uint32_t thread, char text[96]);

// ---- run.c
/* A .sync instruction for the lanes `mask` that needs all live lanes of `members`: true when they are here.
 * Else the lanes wait at this instruction, and the caller returns. */
bool ptx_gather(ptx_warp *w, const ptx_insn *i, uint32_t mask, uint32_t members);
void ptx_run_warp(ptx_warp *w, uint32_t budget);
void ptx_exit_lanes(ptx_warp *w, uint32_t mask);

// ---- shared.c
void ptx_shared_create(ptx_block *b, uint32_t bytes);
void ptx_shared_destroy(ptx_shared *s);
/* An access of a lane to [address, address + bytes): bounds, alignment to `align`, what was written, what is
 * pending, races. Data is the caller's to move, before for writes of the same value: `data` what will be
 * written, or NULL. */
void ptx_shared_access(ptx_warp *w, const ptx_insn *i, int lane, uint32_t address, uint32_t bytes,
                       uint32_t align, ptx_access access, const void *data);
// The 8 bytes of an mbarrier are one from now on, or not any more: then they may be read and written as
// others.
void ptx_shared_mbarrier(ptx_block *b, uint32_t address, bool in_use);
// A read of the same bytes by several lanes.
void ptx_shared_read(ptx_warp *w, const ptx_insn *i, uint32_t lanes, uint32_t address, uint32_t bytes,
                     uint32_t align);
void ptx_shared_bounds(ptx_warp *w, const ptx_insn *i, int lane, uint32_t address, uint32_t bytes,
                       uint32_t align);
/* Plain accesses of the lanes of a warp, no two to one address: those that raise no question are done. The
 * lanes that are left. */
uint32_t ptx_shared_warp(ptx_warp *w, const ptx_insn *i, const uint32_t at[PTX_LANES], uint32_t mask,
                         uint32_t bytes, bool write);
// Asynchronous operations of a lane: beginning to write; to read; what ended.
void ptx_shared_async_write(ptx_warp *w, const ptx_insn *i, int lane, uint32_t address, uint32_t bytes,
                            bool proxy);
void ptx_shared_async_read(ptx_warp *w, const ptx_insn *i, int lane, uint32_t address, uint32_t bytes,
                           bool proxy);
void ptx_shared_write_done(ptx_block *b, uint32_t address, uint32_t bytes, uint32_t who, bool proxy);
void ptx_shared_read_done(ptx_warp *w, int lane, uint32_t address, uint32_t bytes); // lane -1: all

// ---- sync.c: knowledge
uint32_t ptx_tick(ptx_launch *L); // the time that ends now
bool ptx_knows(const ptx_warp *w, int lane, uint32_t block, uint32_t thread, uint32_t time);
bool ptx_knows_proxy(const ptx_warp *w, int lane, uint32_t block, uint32_t thread, uint32_t time);
// What the lanes in mask know, themselves included, as one new view; time goes on.
ptx_view *ptx_release(ptx_warp *w, uint32_t mask);
void ptx_acquire(ptx_warp *w, uint32_t mask, ptx_view *view);
void ptx_join_into(ptx_launch *L, ptx_view **into, ptx_view *view);
void ptx_proxy_fence(ptx_warp *w, uint32_t mask);
void ptx_sync_lanes(ptx_warp *w, uint32_t mask);
typedef enum { PTX_RELAXED, PTX_ACQUIRE, PTX_RELEASE, PTX_ACQ_REL, PTX_WEAK } ptx_sem;
typedef enum { PTX_SCOPE_CTA, PTX_SCOPE_GPU } ptx_scope_id; // .cluster and .sys are one of them here
void ptx_fence(ptx_warp *w, uint32_t mask, ptx_scope_id scope);
// A strong read, write or both at an address: what it publishes and hears.
void ptx_strong(ptx_warp *w, int lane, bool shared, uint64_t address, bool reads, bool writes, ptx_sem sem,
                ptx_scope_id scope);
void ptx_signals_free(ptx_signals *s);

// ---- global.c
/* The host's address of a lane's access to global memory, checked for bounds, alignment and, of reads, for
 * having been written; races are looked for and remembered. */
uint8_t *ptx_global_access(ptx_warp *w, const ptx_insn *i, int lane, uint64_t address, uint32_t bytes,
                           uint32_t align, ptx_access access, const void *data);
/* Plain accesses of the lanes of a warp, no two to one address: those that raise no question are done, and
 * host[] says where their bytes are. The lanes that are left. */
uint32_t ptx_global_warp(ptx_warp *w, const uint64_t at[PTX_LANES], uint32_t mask, uint32_t bytes, bool write,
                         uint8_t *host[PTX_LANES]);
// A load through a cache that sees no writes of this launch: there may be none.
void ptx_global_unwritten(ptx_warp *w, const ptx_insn *i, int lane, uint64_t address, uint32_t bytes);
// The same by the async proxy: reads of bulk copies; writes, of `data`, are pending until they are done.
uint8_t *ptx_global_async(ptx_warp *w, const ptx_insn *i, int lane, uint64_t address, uint32_t bytes,
                          bool write, bool reduce, const void *data);
void ptx_global_done(ptx_warp *w, int lane, uint64_t address, uint32_t bytes, bool reduce);

// ---- async.c
void ptx_complete_one(ptx_block *b); // some copy that completes by itself
void ptx_check_copies(ptx_block *b); // at the end of a block
void ptx_copies_free(ptx_block *b);
// bulk.c
void ptx_decode_bulk(ptx_parser *p, ptx_insn *i, ptx_mods *mods, bool reduce);
void ptx_load_done(ptx_block *b, ptx_copy *c); // LOAD: moves the data and tells the mbarrier
void ptx_store_move(ptx_warp *w, ptx_copy *c); // STORE: moves the data
void ptx_store_done(ptx_warp *w, ptx_copy *c); // its writes are visible
ptx_copy *ptx_copy_add(ptx_warp *w, const ptx_insn *i, int lane, ptx_copy_kind kind);

// ---- mbarrier.c
ptx_mbarrier *ptx_mbarrier_at(ptx_warp *w, const ptx_insn *i, int lane, uint32_t address);
ptx_mbarrier *ptx_mbarrier_find(ptx_block *b, uint32_t address);
// Arrivals, bytes that came (tx > 0) or are expected (tx < 0), and what is released, which may be NULL.
void ptx_mbarrier_update(ptx_block *b, ptx_mbarrier *m, uint32_t arrivals, int64_t tx, ptx_view *view);
// Copies that this mbarrier waits for have written: what they wrote is known to who waits.
void ptx_mbarrier_agent(ptx_block *b, ptx_mbarrier *m, int line);
void ptx_mbarriers_check(ptx_block *b); // at the end of a block
void ptx_mbarriers_free(ptx_block *b);

// ---- barrier.c
void ptx_barriers_check(ptx_block *b); // after lanes exited
int ptx_barrier_where(const ptx_warp *w, char *text, size_t bytes);

// ---- wgmma.c
void ptx_wgmma_registers(ptx_warp *w, const ptx_insn *i, uint32_t mask);
void ptx_wgmma_free(ptx_warp *w);

// ---- counts.c
void ptx_count_shared(ptx_launch *L, const ptx_insn *i, const uint32_t addresses[32], uint32_t mask,
                      int bytes);
void ptx_count_global(ptx_launch *L, const ptx_insn *i, const uint64_t addresses[32], uint32_t mask,
                      int bytes);
void ptx_count_launch(ptx_launch *L);

#endif
