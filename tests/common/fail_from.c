/* fail_from.c: a library for LD_PRELOAD in whose process every allocation from the n-th on fails, whoever
 * asks for it: SBP_FAIL_FROM=n. SBP_COUNT_TO=FILE: how many there were, when the process ends. */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *old, size_t bytes);
extern void *__libc_memalign(size_t alignment, size_t bytes);

static atomic_long count;
static long from = -1;

static int fails(void) {
    if (from < 0) {
        const char *text = getenv("SBP_FAIL_FROM");
        from = text ? atol(text) : 0;
    }
    long n = atomic_fetch_add(&count, 1) + 1;
    if (from == 0 || n < from)
        return 0;
    errno = ENOMEM;
    return 1;
}

void *malloc(size_t bytes) {
    return fails() ? NULL : __libc_malloc(bytes);
}

void *calloc(size_t number, size_t size) {
    return fails() ? NULL : __libc_calloc(number, size);
}

void *realloc(void *old, size_t bytes) {
    return fails() ? NULL : __libc_realloc(old, bytes);
}

void *aligned_alloc(size_t alignment, size_t bytes) {
    return fails() ? NULL : __libc_memalign(alignment, bytes);
}

int posix_memalign(void **out, size_t alignment, size_t bytes) {
    *out = fails() ? NULL : __libc_memalign(alignment, bytes);
    return *out ? 0 : ENOMEM;
}

__attribute__((destructor)) static void tell(void) {
    const char *path = getenv("SBP_COUNT_TO");
    int fd = path ? open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600) : -1;
    if (fd >= 0) {
        (void)dprintf(fd, "%ld\n", atomic_load(&count));
        close(fd);
    }
}
