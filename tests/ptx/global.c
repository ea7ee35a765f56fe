/* Global memory: bounds, bytes that were never written, races between threads and blocks. */
#include "tests/ptx/machine.h"

enum { PLAIN = 0 };
#define STRONG UINT32_C(0x80000000)  // of a writer: atomic or strong
#define PENDING UINT32_C(0x40000000) // a bulk copy still writes
#define ASYNC UINT32_C(0x20000000)   // by the async proxy
#define THREAD UINT32_C(0x1fffffff)

static uint32_t thread_of(const ptx_warp *w, int lane) {
    return w->block->number * w->launch->threads + (uint32_t)(w->index * PTX_LANES + lane);
}

static bool knows(const ptx_warp *w, int lane, uint32_t who, uint32_t time) {
    const uint32_t threads = w->launch->threads;
    return ptx_knows(w, lane, (who & THREAD) / threads, (who & THREAD) % threads, time);
}

static ptx_allocation *find(ptx_warp *w, const ptx_insn *i, int lane, uint64_t address, uint32_t bytes) {
    ptx_launch *L = w->launch;
    ptx_allocation *a = L->near;
    if (!a || address < a->base || address - a->base >= a->bytes) {
        a = ptx_memory_at(L->memory, address);
        if (!a) {
            uint64_t back = 1; // perhaps shortly behind one
            while (back < 65536 && !(a = ptx_memory_at(L->memory, address - back))) {
                back += back < 256 ? 1 : 256;
            }
            if (a) {
                ptx_fault(w, i, lane,
                          "global address 0x%llx is in no allocation: %llu bytes behind one of %llu bytes at "
                          "0x%llx",
                          (unsigned long long)address, (unsigned long long)(address - a->base - a->bytes),
                          (unsigned long long)a->bytes, (unsigned long long)a->base);
            }
            ptx_fault(w, i, lane, "global address 0x%llx is in no allocation", (unsigned long long)address);
        }
        L->near = a;
    }
    if (bytes > a->bytes - (address - a->base)) {
        ptx_fault(w, i, lane,
                  "global address 0x%llx, %u bytes: out of bounds, its allocation has %llu bytes from 0x%llx",
                  (unsigned long long)address, bytes, (unsigned long long)a->bytes,
                  (unsigned long long)a->base);
    }
    return a;
}

_Noreturn static void race(ptx_warp *w, const ptx_insn *i, int lane, uint64_t address, const char *does,
                           uint32_t who) {
    char name[96];
    const uint32_t threads = w->launch->threads;
    ptx_fault(w, i, lane, "race: %s global byte 0x%llx %s %s, without synchronisation between", does,
              (unsigned long long)address,
              who & PENDING ? "which a bulk copy still writes, of" : "touched by",
              ptx_thread_name(w->launch, (who & THREAD) / threads, (who & THREAD) % threads, name));
}

// who: of the new access. Sums by bulk copies may be under way at once, but nothing else beside them.
static void check_writer(ptx_warp *w, const ptx_insn *i, int lane, const ptx_trace *t, uint64_t address,
                         uint32_t who, const char *does) {
    if (t->write_time <= w->launch->begin ||
        (who & t->writer & STRONG && (who & PENDING || !(t->writer & PENDING)))) {
        return;
    }
    if (t->writer & PENDING || !knows(w, lane, t->writer, t->write_time)) {
        race(w, i, lane, address, does, t->writer);
    }
}

static void check_readers(ptx_warp *w, const ptx_insn *i, int lane, const ptx_trace *t, uint64_t address,
                          bool strong) {
    for (int r = 0; r < 2; r++) {
        if (t->read_time[r] > w->launch->begin && !(strong && t->reader[r] & STRONG) &&
            !knows(w, lane, t->reader[r], t->read_time[r])) {
            race(w, i, lane, address, "writes", t->reader[r] & THREAD);
        }
    }
}

static void remember_reader(ptx_warp *w, ptx_trace *t, uint32_t who) {
    const uint32_t threads = w->launch->threads;
    if (t->read_time[0] > w->launch->begin && (t->reader[0] & THREAD) / threads != (who & THREAD) / threads) {
        t->read_time[1] = t->read_time[0];
        t->reader[1] = t->reader[0];
    }
    t->read_time[0] = ptx_now(w->launch);
    t->reader[0] = who;
}

static void trace_one(ptx_warp *w, const ptx_insn *i, int lane, ptx_trace *t, uint64_t address,
                      ptx_access access, bool same, uint32_t flags) {
    const bool strong = access == PTX_ATOMIC || access == PTX_STRONG_READ;
    const uint32_t who = thread_of(w, lane) | (strong ? STRONG : 0) | flags;
    if (access == PTX_READ || access == PTX_STRONG_READ) {
        check_writer(w, i, lane, t, address, who, "reads");
        remember_reader(w, t, who & ~PENDING);
        return;
    }
    const bool pending = t->write_time > w->launch->begin && t->writer & PENDING;
    // The same value, or lanes of one instruction: whoever comes last.
    const bool mates =
        t->write_time == ptx_now(w->launch) && (t->writer & THREAD) / PTX_LANES == (who & THREAD) / PTX_LANES;
    if ((!same && !mates) || (pending && !(same && flags & PENDING))) {
        check_writer(w, i, lane, t, address, who, "writes");
    }
    check_readers(w, i, lane, t, address, strong);
    t->write_time = ptx_now(w->launch);
    t->writer = who;
}

static void trace(ptx_warp *w, const ptx_insn *i, int lane, ptx_allocation *a, uint64_t address,
                  uint32_t bytes, ptx_access access, const uint8_t *data, uint32_t flags) {
    uint64_t offset = address - a->base;
    while (bytes > 0) {
        const uint32_t left = PTX_PAGE_BYTES - (uint32_t)(offset % PTX_PAGE_BYTES),
                       chunk = bytes < left ? bytes : left;
        int count;
        ptx_trace *t = ptx_traces(a, offset, chunk, &count);
        if (!t) {
            ptx_no_memory(w->launch);
        }
        const uint32_t unit = chunk / (uint32_t)count;
        for (int k = 0; k < count; k++) {
            const uint64_t at = offset + (uint64_t)k * unit;
            const bool same =
                data && ptx_written(a, at, unit) && memcmp(a->host + at, data + k * (int)unit, unit) == 0;
            trace_one(w, i, lane, &t[k], a->base + at, access, same, flags);
        }
        offset += chunk;
        bytes -= chunk;
        data = data ? data + chunk : NULL;
    }
}

uint8_t *ptx_global_access(ptx_warp *w, const ptx_insn *i, int lane, uint64_t address, uint32_t bytes,
                           uint32_t align, ptx_access access, const void *data) {
    if (address & (align - 1)) {
        ptx_fault(w, i, lane, "global address 0x%llx is no multiple of %u", (unsigned long long)address,
                  align);
    }
    ptx_allocation *a = find(w, i, lane, address, bytes);
    const uint64_t offset = address - a->base;
    const bool writes = access == PTX_WRITE || access == PTX_ATOMIC;
    if ((!writes || (access == PTX_ATOMIC && !data)) && !ptx_written(a, offset, bytes)) {
        ptx_fault(w, i, lane, "reads global address 0x%llx, %u bytes, of which not all were ever written",
                  (unsigned long long)address, bytes);
    }
    if (w->launch->races) {
        trace(w, i, lane, a, address, bytes, access, data, PLAIN);
    }
    if (writes) {
        ptx_mark_written(a, offset, bytes, true);
        ptx_progress(w->launch);
        w->launch->world_at = w->launch->executed;
    }
    return a->host + offset;
}

// The largest unit of a trace in which such a range is whole.
static uint32_t step_of(uint64_t address, uint32_t bytes) {
    const uint32_t both = (uint32_t)address | bytes;
    return both & 1 ? 1 : both & 2 ? 2 : 4;
}

// Generic writes of this launch that the async proxy reads or replaces.
static void check_proxy(ptx_warp *w, const ptx_insn *i, int lane, ptx_allocation *a, uint64_t address,
                        uint32_t bytes) {
    const uint32_t threads = w->launch->threads;
    const uint32_t step = step_of(address, bytes);
    for (uint32_t b = 0; b < bytes; b += step) {
        int count;
        const ptx_trace *t = ptx_traces(a, address - a->base + b, step, &count);
        if (!t) {
            ptx_no_memory(w->launch);
        }
        if (t->write_time > w->launch->begin && !(t->writer & ASYNC) &&
            !ptx_knows_proxy(w, lane, (t->writer & THREAD) / threads, (t->writer & THREAD) % threads,
                             t->write_time)) {
            char name[96];
            ptx_fault(w, i, lane,
                      "the async proxy reads global byte 0x%llx, written by %s, without a fence.proxy.async "
                      "between",
                      (unsigned long long)address + b,
                      ptx_thread_name(w->launch, (t->writer & THREAD) / threads,
                                      (t->writer & THREAD) % threads, name));
        }
    }
}

void ptx_global_unwritten(ptx_warp *w, const ptx_insn *i, int lane, uint64_t address, uint32_t bytes) {
    ptx_allocation *a = find(w, i, lane, address, bytes);
    int count = 0;
    const ptx_trace *t = w->launch->races ? ptx_traces(a, address - a->base, bytes, &count) : NULL;
    for (int k = 0; t && k < count; k++) {
        if (t[k].write_time > w->launch->begin) {
            ptx_fault(w, i, lane,
                      "a non-coherent load of global address 0x%llx, which this kernel has written",
                      (unsigned long long)address);
        }
    }
}

uint8_t *ptx_global_async(ptx_warp *w, const ptx_insn *i, int lane, uint64_t address, uint32_t bytes,
                          bool write, bool reduce, const void *data) {
    ptx_allocation *a = find(w, i, lane, address, bytes);
    const uint64_t offset = address - a->base;
    if ((!write || reduce) && !ptx_written(a, offset, bytes)) {
        ptx_fault(w, i, lane, "reads global address 0x%llx, %u bytes, of which not all were ever written",
                  (unsigned long long)address, bytes);
    }
    if (w->launch->races) {
        if (!write && a->pages) {
            check_proxy(w, i, lane, a, address, bytes);
        }
        const ptx_access access = !write ? PTX_READ : reduce ? PTX_ATOMIC : PTX_WRITE;
        trace(w, i, lane, a, address, bytes, access, data, ASYNC | (write ? PENDING : 0));
    }
    if (write) {
        ptx_mark_written(a, offset, bytes, true);
        ptx_progress(w->launch);
        w->launch->world_at = w->launch->executed;
    }
    return a->host + offset;
}

void ptx_global_done(ptx_warp *w, int lane, uint64_t address, uint32_t bytes, bool reduce) {
    if (!w->launch->races) {
        return;
    }
    const uint32_t me = thread_of(w, lane);
    ptx_allocation *a = ptx_memory_at(w->launch->memory, address);
    const uint32_t step = step_of(address, bytes);
    for (uint32_t b = 0; a && b < bytes; b += step) {
        int count;
        ptx_trace *t = ptx_traces(a, address - a->base + b, step, &count);
        if (!t) {
            ptx_no_memory(w->launch);
        }
        for (int k = 0; k < count; k++) {
            if ((t[k].writer & THREAD) == me) { // visible to this thread from now on
                t[k].writer = me | ASYNC | (reduce ? STRONG : 0);
                t[k].write_time = ptx_now(w->launch);
            }
        }
    }
}
