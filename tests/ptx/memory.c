/* Device memory: see ptx.h and memory.h. Addresses are never given twice, so that a freed one stays wrong. */
#include "tests/ptx/memory.h"

#include <stdlib.h>
#include <string.h>

enum { GAP_BYTES = 4096 };
#define FIRST_ADDRESS UINT64_C(0x200000000) // above what a 32-bit address could be

sbp_ptx_memory *sbp_ptx_memory_create(uint64_t limit_bytes) {
    sbp_ptx_memory *memory = calloc(1, sizeof *memory);
    if (memory) {
        memory->limit = limit_bytes ? limit_bytes : UINT64_MAX;
        memory->next = FIRST_ADDRESS;
        memory->clock = 1;
    }
    return memory;
}

static void pages_free(ptx_allocation *a) {
    if (a->pages) {
        for (uint64_t i = 0; i <= a->bytes / PTX_PAGE_BYTES; i++) {
            free(a->pages[i].write_time);
            free(a->pages[i].more);
        }
        free(a->pages);
        a->pages = NULL;
    }
}

static void allocation_free(ptx_allocation *a) {
    pages_free(a);
    free(a->host);
    free(a->written);
}

void sbp_ptx_memory_destroy(sbp_ptx_memory *memory) {
    if (memory) {
        for (int i = 0; i < memory->count; i++) {
            allocation_free(&memory->allocations[i]);
        }
        free(memory->allocations);
        free(memory);
    }
}

uint64_t sbp_ptx_memory_alloc(sbp_ptx_memory *memory, uint64_t bytes) {
    if (bytes == 0 || bytes > memory->limit - memory->used || bytes > UINT64_C(1) << 46) {
        return 0;
    }
    if (memory->count == memory->capacity) {
        const int capacity = memory->capacity ? 2 * memory->capacity : 16;
        ptx_allocation *grown = realloc(memory->allocations, (size_t)capacity * sizeof *grown);
        if (!grown) {
            return 0;
        }
        memory->allocations = grown;
        memory->capacity = capacity;
    }
    ptx_allocation a = {.base = memory->next, .bytes = bytes};
    a.host = aligned_alloc(256, (bytes + 255) / 256 * 256);
    a.written = calloc(1, bytes / 8 + 4); // a little more: ptx_written reads words
    if (!a.host || !a.written) {
        allocation_free(&a);
        return 0;
    }
    memory->allocations[memory->count++] = a;
    memory->used += bytes;
    memory->next += (bytes + GAP_BYTES + 255) / 256 * 256;
    return a.base;
}

ptx_allocation *ptx_memory_at(const sbp_ptx_memory *memory, uint64_t address) {
    int low = 0, high = memory->count; // the last whose base is <= address is below high
    while (low < high) {
        const int middle = (low + high) / 2;
        if (memory->allocations[middle].base <= address) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    if (low == 0) {
        return NULL;
    }
    ptx_allocation *a = &memory->allocations[low - 1];
    return address - a->base < a->bytes ? a : NULL;
}

bool sbp_ptx_memory_free(sbp_ptx_memory *memory, uint64_t address) {
    ptx_allocation *a = ptx_memory_at(memory, address);
    if (!a || a->base != address) {
        return false;
    }
    memory->used -= a->bytes;
    allocation_free(a);
    const ptrdiff_t index = a - memory->allocations;
    memmove(a, a + 1, (size_t)(memory->count - index - 1) * sizeof *a);
    memory->count--;
    return true;
}

uint64_t sbp_ptx_memory_used_bytes(const sbp_ptx_memory *memory) {
    return memory->used;
}

bool sbp_ptx_memory_find(const sbp_ptx_memory *memory, uint64_t address, uint64_t *out_base,
                         uint64_t *out_bytes) {
    const ptx_allocation *a = ptx_memory_at(memory, address);
    if (a) {
        *out_base = a->base;
        *out_bytes = a->bytes;
    }
    return a != NULL;
}

// The allocation that holds the whole range.
static ptx_allocation *range_at(const sbp_ptx_memory *memory, uint64_t address, uint64_t bytes) {
    ptx_allocation *a = ptx_memory_at(memory, address);
    return a && bytes <= a->bytes - (address - a->base) ? a : NULL;
}

void *sbp_ptx_memory_host(const sbp_ptx_memory *memory, uint64_t address, uint64_t bytes) {
    const ptx_allocation *a = range_at(memory, address, bytes);
    return a ? a->host + (address - a->base) : NULL;
}

bool ptx_written(const ptx_allocation *a, uint64_t offset, uint64_t bytes) {
    while (bytes > 0) {
        const uint64_t chunk = bytes < 16 ? bytes : 16;
        uint32_t word;
        memcpy(&word, a->written + offset / 8, sizeof word);
        const uint32_t wanted = (uint32_t)((UINT64_C(1) << chunk) - 1) << offset % 8;
        if ((word & wanted) != wanted) {
            return false;
        }
        offset += chunk;
        bytes -= chunk;
    }
    return true;
}

void ptx_mark_written(ptx_allocation *a, uint64_t offset, uint64_t bytes, bool written) {
    while (bytes > 0) {
        if (offset % 8 == 0 && bytes >= 8) {
            memset(a->written + offset / 8, written ? 0xff : 0, bytes / 8);
            offset += bytes / 8 * 8;
            bytes %= 8;
            continue;
        }
        const uint64_t chunk = bytes < 8 - offset % 8 ? bytes : 8 - offset % 8;
        const uint8_t mask = (uint8_t)(((1U << chunk) - 1) << offset % 8);
        uint8_t *at = &a->written[offset / 8];
        *at = (uint8_t)(written ? *at | mask : *at & ~mask);
        offset += chunk;
        bytes -= chunk;
    }
}

bool sbp_ptx_memory_mark(sbp_ptx_memory *memory, uint64_t address, uint64_t bytes, bool initialised) {
    ptx_allocation *a = range_at(memory, address, bytes);
    if (a) {
        ptx_mark_written(a, address - a->base, bytes, initialised);
    }
    return a != NULL;
}

bool sbp_ptx_memory_write(sbp_ptx_memory *memory, uint64_t address, const void *from, uint64_t bytes) {
    void *to = sbp_ptx_memory_host(memory, address, bytes);
    if (to) {
        memcpy(to, from, bytes);
        (void)sbp_ptx_memory_mark(memory, address, bytes, true);
    }
    return to != NULL;
}

bool sbp_ptx_memory_read(const sbp_ptx_memory *memory, uint64_t address, void *to, uint64_t bytes) {
    const void *from = sbp_ptx_memory_host(memory, address, bytes);
    if (from) {
        memcpy(to, from, bytes);
    }
    return from != NULL;
}

bool sbp_ptx_memory_copy(sbp_ptx_memory *memory, uint64_t to, uint64_t from, uint64_t bytes) {
    ptx_allocation *target = range_at(memory, to, bytes);
    const ptx_allocation *source = range_at(memory, from, bytes);
    if (!target || !source) {
        return false;
    }
    const uint64_t at = to - target->base, begin = from - source->base;
    memmove(target->host + at, source->host + begin, bytes);
    if (ptx_written(source, begin, bytes)) {
        ptx_mark_written(target, at, bytes, true);
        return true;
    }
    for (uint64_t i = 0; i < bytes; i++) { // within one allocation ranges may overlap: from the far end then
        const uint64_t k = to > from ? bytes - 1 - i : i;
        ptx_mark_written(target, at + k, 1, ptx_written(source, begin + k, 1));
    }
    return true;
}

bool sbp_ptx_memory_fill(sbp_ptx_memory *memory, uint64_t address, uint32_t value, int width,
                         uint64_t count) {
    if ((width != 1 && width != 2 && width != 4) || count > UINT64_MAX / 4) {
        return false;
    }
    uint8_t *to = sbp_ptx_memory_host(memory, address, count * (uint64_t)width);
    if (!to) {
        return false;
    }
    for (uint64_t i = 0; i < count; i++) {
        memcpy(to + i * (uint64_t)width, &value, (size_t)width); // little endian
    }
    return sbp_ptx_memory_mark(memory, address, count * (uint64_t)width, true);
}

// ---- traces -----------------------------------------------------------------------------------------------

// Gives a page smaller units, each with what its larger one had.
static bool page_split(ptx_page *page, int shift) {
    const size_t units = (size_t)PTX_PAGE_BYTES >> shift;
    uint32_t *all = calloc(4 * units, sizeof *all);
    ptx_more_readers *more = page->more ? calloc(units, sizeof *more) : NULL;
    if (!all || (page->more && !more)) {
        free(all);
        free(more);
        return false;
    }
    const int by = page->shift - shift;
    for (size_t i = 0; page->write_time && i < units; i++) {
        for (size_t k = 0; k < 4; k++) {
            all[k * units + i] = page->write_time[k * (units >> by) + (i >> by)];
        }
        if (more) {
            more[i] = page->more[i >> by];
        }
    }
    free(page->write_time);
    free(page->more);
    *page = (ptx_page){shift, all, all + units, all + 2 * units, all + 3 * units, more};
    return true;
}

ptx_page *ptx_page_of(ptx_allocation *a, uint64_t offset, uint32_t bytes, uint32_t *first, uint32_t *count) {
    if (!a->pages) {
        a->pages = calloc(a->bytes / PTX_PAGE_BYTES + 1, sizeof *a->pages);
        if (!a->pages) {
            return NULL;
        }
    }
    ptx_page *page = &a->pages[offset / PTX_PAGE_BYTES];
    const uint32_t both = (uint32_t)offset | bytes;
    const int shift = both & 1 ? 0 : both & 2 ? 1 : 2;
    if ((!page->write_time || page->shift > shift) && !page_split(page, shift)) {
        return NULL;
    }
    *count = bytes >> page->shift;
    *first = (uint32_t)(offset % PTX_PAGE_BYTES) >> page->shift;
    return page;
}

void ptx_memory_forget(sbp_ptx_memory *memory) {
    for (int i = 0; i < memory->count; i++) {
        pages_free(&memory->allocations[i]);
    }
    memory->clock = 1;
}
