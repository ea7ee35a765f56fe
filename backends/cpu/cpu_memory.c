/* cpu_memory.c: the first touch of pages, and what the system says about memory. */
#include "backends/cpu/cpu.h"

#include <stdio.h>
#include <unistd.h>

#define TOUCH_BYTES ((size_t)4 << 20) /* per item */

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
