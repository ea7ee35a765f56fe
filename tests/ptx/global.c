/* Global memory: bounds, bytes that were never written, races between threads and blocks. */
#include "tests/ptx/shadow.h"

#include <stdlib.h>

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
static void check_writer(ptx_warp *w, const ptx_insn *i, int lane, const ptx_page *t, uint32_t u,
                         uint64_t address, uint32_t who, const char *does) {
    const uint32_t writer = t->writer[u];
    if (t->write_time[u] <= w->launch->begin ||
        (who & writer & STRONG && (who & PENDING || !(writer & PENDING)))) {
        return;
    }
    if (writer & PENDING || !knows(w, lane, writer, t->write_time[u])) {
        race(w, i, lane, address, does, writer);
    }
}

static void check_reader(ptx_warp *w, const ptx_insn *i, int lane, uint32_t reader, uint32_t time,
                         uint64_t address, bool strong) {
    if (time > w->launch->begin && !(strong && reader & STRONG) && !knows(w, lane, reader, time)) {
        race(w, i, lane, address, "writes", reader & THREAD);
    }
}

static void check_readers(ptx_warp *w, const ptx_insn *i, int lane, const ptx_page *t, uint32_t u,
                          uint64_t address, bool strong) {
    if (t->read_time[u] <= w->launch->begin) {
        return; // the others came before it
    }
    check_reader(w, i, lane, t->reader[u], t->read_time[u], address, strong);
    for (int r = 0; t->more && r < 3; r++) {
        check_reader(w, i, lane, t->more[u].who[r], t->more[u].time[r], address, strong);
    }
}

// The last reader, two of other blocks before it, and one of its own block.
static void remember_reader(ptx_warp *w, ptx_page *t, uint32_t u, uint32_t who) {
    const uint32_t threads = w->launch->threads, begin = w->launch->begin;
    const uint32_t before = t->reader[u], time = t->read_time[u];
    t->read_time[u] = ptx_now(w->launch);
    t->reader[u] = who;
    if (time <= begin || before == who) {
        return;
    }
    if (!t->more) {
        t->more = calloc((size_t)PTX_PAGE_BYTES >> t->shift, sizeof *t->more);
        if (!t->more) {
            ptx_no_memory(w->launch);
        }
    }
    ptx_more_readers *m = &t->more[u];
    const uint32_t block = (who & THREAD) / threads;
    int at = 2;
    if ((before & THREAD) / threads != block) {
        const bool moves = m->time[0] > begin && (m->who[0] & THREAD) / threads != block;
        if (moves) {
            m->time[1] = m->time[0];
            m->who[1] = m->who[0];
        }
        at = 0;
    }
    m->time[at] = time;
    m->who[at] = before;
}

static void trace_one(ptx_warp *w, const ptx_insn *i, int lane, ptx_page *t, uint32_t u, uint64_t address,
                      ptx_access access, bool same, uint32_t flags) {
    const bool strong = access == PTX_ATOMIC || access == PTX_STRONG_READ;
    const uint32_t who = thread_of(w, lane) | (strong ? STRONG : 0) | flags;
    if (access == PTX_READ || access == PTX_STRONG_READ) {
        check_writer(w, i, lane, t, u, address, who, "reads");
        remember_reader(w, t, u, who & ~PENDING);
        return;
    }
    const bool pending = t->write_time[u] > w->launch->begin && t->writer[u] & PENDING;
    // The same value, or lanes of one instruction: whoever comes last.
    const bool mates = t->write_time[u] == ptx_now(w->launch) &&
                       (t->writer[u] & THREAD) / PTX_LANES == (who & THREAD) / PTX_LANES;
    if ((!same && !mates) || (pending && !(same && flags & PENDING))) {
        check_writer(w, i, lane, t, u, address, who, "writes");
    }
    check_readers(w, i, lane, t, u, address, strong);
    t->write_time[u] = ptx_now(w->launch);
    t->writer[u] = who;
}

static ptx_page *page_of(ptx_warp *w, ptx_allocation *a, uint64_t offset, uint32_t bytes, uint32_t *first,
                         uint32_t *count) {
    ptx_page *page = ptx_page_of(a, offset, bytes, first, count);
    if (!page) {
        ptx_no_memory(w->launch);
    }
    return page;
}

static void trace(ptx_warp *w, const ptx_insn *i, int lane, ptx_allocation *a, uint64_t address,
                  uint32_t bytes, ptx_access access, const uint8_t *data, uint32_t flags) {
    uint64_t offset = address - a->base;
    while (bytes > 0) {
        const uint32_t left = PTX_PAGE_BYTES - (uint32_t)(offset % PTX_PAGE_BYTES),
                       chunk = bytes < left ? bytes : left;
        uint32_t first, count;
        ptx_page *t = page_of(w, a, offset, chunk, &first, &count);
        const uint32_t unit = chunk / count;
        for (uint32_t k = 0; k < count; k++) {
            const uint64_t at = offset + (uint64_t)k * unit;
            const bool same =
                data && ptx_written(a, at, unit) && memcmp(a->host + at, data + k * unit, unit) == 0;
            trace_one(w, i, lane, t, first + k, a->base + at, access, same, flags);
        }
        offset += chunk;
        bytes -= chunk;
        data = data ? data + chunk : NULL;
    }
}

// A thread's few units, in one page: whether nothing was to be asked.
static bool trace_few(ptx_warp *w, ptx_allocation *a, uint64_t offset, uint32_t bytes, uint32_t me,
                      bool write) {
    const uint32_t begin = w->launch->begin, now = ptx_now(w->launch);
    uint32_t first, count;
    ptx_page *t = page_of(w, a, offset, bytes, &first, &count);
    uint32_t *time = (write ? t->write_time : t->read_time) + first;
    uint32_t *who = (write ? t->writer : t->reader) + first;
    for (uint32_t k = 0; k < count; k++) {
        const bool other = time[k] > begin && who[k] != me &&
                           (write || time[k] != now || who[k] / PTX_LANES != me / PTX_LANES);
        const bool crossed = write
                                 ? t->read_time[first + k] > begin && (t->reader[first + k] != me || t->more)
                                 : t->write_time[first + k] > begin;
        if (other || crossed) {
            return false;
        }
    }
    for (uint32_t k = 0; k < count; k++) {
        time[k] = now;
        who[k] = me;
    }
    return true;
}

// One thread after another from `who` on, each `bytes` from offset on.
static bool trace_plain(ptx_warp *w, ptx_allocation *a, uint64_t offset, uint32_t bytes, uint32_t threads,
                        uint32_t who, bool write) {
    uint32_t first, count;
    const ptx_launch *L = w->launch;
    ptx_page *t = page_of(w, a, offset, bytes, &first, &count); // units that fit each thread's bytes
    return (write ? L->shadow->page_write : L->shadow->page_read)(t, first, count * threads, count, who,
                                                                  L->begin, ptx_now(L));
}

uint32_t ptx_global_warp(ptx_warp *w, const uint64_t at[PTX_LANES], uint32_t mask, uint32_t bytes, bool write,
                         uint8_t *host[PTX_LANES]) {
    ptx_launch *L = w->launch;
    const int leader = __builtin_ctz(mask);
    ptx_allocation *a = L->near;
    if (!a || at[leader] < a->base || at[leader] - a->base >= a->bytes) {
        a = ptx_memory_at(L->memory, at[leader]);
        if (!a) {
            return mask;
        }
        L->near = a;
    }
    if (a->bytes < bytes) {
        return mask;
    }
    const uint64_t base = a->base, last = a->bytes - bytes;
    uint64_t wrong = 0, apart = 0;
    if (mask == PTX_FULL) {
        for (uint32_t l = 0; l < PTX_LANES; l++) {
            wrong |= (at[l] & (bytes - 1)) | (at[l] - base > last);
            apart |= at[l] ^ (at[0] + (uint64_t)l * bytes);
        }
    } else {
        apart = 1;
        PTX_EACH_LANE(l, mask) {
            wrong |= (at[l] & (bytes - 1)) | (at[l] - base > last);
        }
    }
    if (wrong) {
        return mask;
    }
    const uint32_t me = thread_of(w, 0), all = PTX_LANES * bytes;
    uint32_t left = 0;
    const uint64_t begin = at[leader] - base;
    if (!apart && begin % PTX_PAGE_BYTES + all <= PTX_PAGE_BYTES && (write || ptx_written(a, begin, all)) &&
        (!L->races || trace_plain(w, a, begin, bytes, PTX_LANES, me, write))) {
        for (uint32_t l = 0; l < PTX_LANES; l++) {
            host[l] = a->host + begin + (size_t)l * bytes;
        }
        if (write) {
            ptx_mark_written(a, begin, all, true);
        }
    } else {
        PTX_EACH_LANE(l, mask) {
            const uint64_t offset = at[l] - base;
            if ((write || ptx_written(a, offset, bytes)) &&
                (!L->races || trace_few(w, a, offset, bytes, me + l, write))) {
                host[l] = a->host + offset;
                if (write) {
                    ptx_mark_written(a, offset, bytes, true);
                }
            } else {
                left |= 1U << l;
            }
        }
    }
    if (write && left != mask) {
        ptx_progress(L);
        L->world_at = L->executed;
    }
    return left;
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
        uint32_t u, count;
        const ptx_page *t = page_of(w, a, address - a->base + b, step, &u, &count);
        if (t->write_time[u] > w->launch->begin && !(t->writer[u] & ASYNC) &&
            !ptx_knows_proxy(w, lane, (t->writer[u] & THREAD) / threads, (t->writer[u] & THREAD) % threads,
                             t->write_time[u])) {
            char name[96];
            ptx_fault(w, i, lane,
                      "the async proxy reads global byte 0x%llx, written by %s, without a fence.proxy.async "
                      "between",
                      (unsigned long long)address + b,
                      ptx_thread_name(w->launch, (t->writer[u] & THREAD) / threads,
                                      (t->writer[u] & THREAD) % threads, name));
        }
    }
}

void ptx_global_unwritten(ptx_warp *w, const ptx_insn *i, int lane, uint64_t address, uint32_t bytes) {
    ptx_allocation *a = find(w, i, lane, address, bytes);
    uint32_t first = 0, count = 0;
    const ptx_page *t = w->launch->races ? page_of(w, a, address - a->base, bytes, &first, &count) : NULL;
    for (uint32_t k = first; k < first + count; k++) {
        if (t->write_time[k] > w->launch->begin) {
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
        uint32_t first, count;
        ptx_page *t = page_of(w, a, address - a->base + b, step, &first, &count);
        for (uint32_t k = first; k < first + count; k++) {
            if ((t->writer[k] & THREAD) == me) { // visible to this thread from now on
                t->writer[k] = me | ASYNC | (reduce ? STRONG : 0);
                t->write_time[k] = ptx_now(w->launch);
            }
        }
    }
}
