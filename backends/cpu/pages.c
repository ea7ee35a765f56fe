/* pages.c: pages for arenas and scratch. */
#include "backends/cpu/cpu.h"

#include <sys/mman.h>
#include <unistd.h>

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
