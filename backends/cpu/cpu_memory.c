/* cpu_memory.c: pages for arenas and scratch, and what the system says about memory. */
#include "backends/cpu/cpu.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define TOUCH_BYTES ((size_t)4 << 20) /* per item */

/* Large blocks begin on a huge page: a little more is reserved and the ends are given back. */
void *cpu_map_pages(size_t bytes) {
    if (bytes == 0 || bytes > SIZE_MAX / 2)
        return NULL;
    const size_t huge = CPU_HUGE_PAGE_BYTES;
    size_t slack = bytes >= huge ? huge : 0;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    bytes = (bytes + page - 1) / page * page;
    char *pages = mmap(NULL, bytes + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED)
        return NULL;
    if (slack) {
        size_t before = (huge - (size_t)(uintptr_t)pages % huge) % huge;
        if (before)
            munmap(pages, before);
        if (slack > before)
            munmap(pages + before + bytes, slack - before);
        pages += before;
        madvise(pages, bytes, MADV_HUGEPAGE);
    }
    return pages;
}

void cpu_unmap_pages(void *pages, size_t bytes) {
    if (!pages)
        return;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    munmap(pages, (bytes + page - 1) / page * page);
}

typedef struct touching {
    char *pages;
    size_t bytes;
} touching;

static void touch(void *arg, int64_t item, char *scratch) {
    (void)scratch;
    const touching *t = arg;
    size_t begin = (size_t)item * TOUCH_BYTES;
    size_t end = t->bytes - begin < TOUCH_BYTES ? t->bytes : begin + TOUCH_BYTES;
    for (size_t at = begin; at < end; at += 4096)
        *(volatile char *)(t->pages + at) = 0;
}

void cpu_touch_pages(cpu_pool *pool, void *pages, size_t bytes) {
    touching t = {.pages = pages, .bytes = bytes};
    cpu_pool_run(pool, (int64_t)((bytes + TOUCH_BYTES - 1) / TOUCH_BYTES), touch, &t);
}

int64_t cpu_memory_peak(void) {
    char line[256];
    long long kib = 0;
    FILE *file = fopen("/proc/self/status", "r");
    if (!file)
        return 0;
    while (kib == 0 && fgets(line, sizeof line, file))
        if (sscanf(line, "VmHWM: %lld kB", &kib) != 1)
            kib = 0;
    fclose(file);
    return kib * 1024;
}
