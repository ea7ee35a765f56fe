/* pool.c: the thread pool. Workers look for a new job for a few microseconds, then sleep. A job is open while
 * its caller works on it: workers that wake up in time join, the others are not waited for. */
#include "backends/cpu/cpu.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

typedef struct worker {
    cpu_pool *pool;
    pthread_t thread;
    char *scratch;
} worker;

struct cpu_pool {
    int threads;
    worker *workers; /* `threads` of them; the last is the caller */
    size_t scratch_bytes;
    pthread_mutex_t mutex; /* guards job, open, joined, sleeping, stop */
    pthread_cond_t wake;
    bool open, stop;
    int joined, sleeping;
    cpu_task task;
    void *arg;
    int64_t items;
    _Atomic uint64_t epoch; /* number of jobs so far; changes under the mutex, read without it */
    _Atomic int64_t next;   /* item */
    _Atomic int left;       /* workers that joined the job and are through */
};

enum { SPIN = 4000 }; /* pauses, about 40 ns each, before a worker sleeps */

static inline void pause_cpu(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static void take_items(cpu_pool *pool, cpu_task task, void *arg, int64_t items, char *scratch) {
    for (;;) {
        int64_t item = atomic_fetch_add_explicit(&pool->next, 1, memory_order_relaxed);
        if (item >= items)
            return;
        task(arg, item, scratch);
    }
}

static void *work(void *user) {
    worker *self = user;
    cpu_pool *pool = self->pool;
    uint64_t seen = 0;
    for (;;) {
        for (int spin = 0; spin < SPIN && atomic_load_explicit(&pool->epoch, memory_order_relaxed) == seen;
             spin++)
            pause_cpu();
        pthread_mutex_lock(&pool->mutex);
        while (pool->epoch == seen && !pool->stop) {
            pool->sleeping++;
            pthread_cond_wait(&pool->wake, &pool->mutex);
            pool->sleeping--;
        }
        if (pool->stop) {
            pthread_mutex_unlock(&pool->mutex);
            return NULL;
        }
        seen = pool->epoch;
        bool join = pool->open;
        cpu_task task = pool->task;
        void *arg = pool->arg;
        int64_t items = pool->items;
        pool->joined += join;
        pthread_mutex_unlock(&pool->mutex);
        if (join) {
            take_items(pool, task, arg, items, self->scratch);
            atomic_fetch_add_explicit(&pool->left, 1, memory_order_release);
        }
    }
}

void cpu_pool_run(cpu_pool *pool, int64_t items, cpu_task task, void *arg) {
    char *scratch = pool->workers[pool->threads - 1].scratch;
    if (pool->threads == 1 || items <= 1) {
        for (int64_t item = 0; item < items; item++)
            task(arg, item, scratch);
        return;
    }
    pthread_mutex_lock(&pool->mutex);
    pool->task = task;
    pool->arg = arg;
    pool->items = items;
    pool->open = true;
    pool->joined = 0;
    atomic_store_explicit(&pool->next, 0, memory_order_relaxed);
    atomic_store_explicit(&pool->left, 0, memory_order_relaxed);
    pool->epoch++;
    bool asleep = pool->sleeping > 0;
    pthread_mutex_unlock(&pool->mutex);
    if (asleep)
        pthread_cond_broadcast(&pool->wake);
    take_items(pool, task, arg, items, scratch);
    pthread_mutex_lock(&pool->mutex);
    pool->open = false;
    int joined = pool->joined;
    pthread_mutex_unlock(&pool->mutex);
    for (int spin = 0; atomic_load_explicit(&pool->left, memory_order_acquire) != joined; spin++) {
        if (spin < SPIN)
            pause_cpu();
        else
            sched_yield();
    }
}

/* The first page is taken at once: what a process holds shall not depend on which thread was in time for
 * what. */
static char *map_scratch(size_t bytes) {
    char *scratch = cpu_map_pages(bytes);
    if (scratch)
        *(volatile char *)scratch = 0;
    if (scratch && getenv("SBP_TEST_SCRATCH")) /* what kernels must not read is no number */
        memset(scratch, 0xff, bytes);
    return scratch;
}

bool cpu_pool_reserve(cpu_pool *pool, size_t scratch_bytes) {
    if (scratch_bytes <= pool->scratch_bytes)
        return true;
    for (int i = 0; i < pool->threads; i++) {
        char *scratch = map_scratch(scratch_bytes);
        if (!scratch)
            return false;
        cpu_unmap_pages(pool->workers[i].scratch, pool->scratch_bytes);
        pool->workers[i].scratch = scratch;
    }
    pool->scratch_bytes = scratch_bytes;
    return true;
}

cpu_pool *cpu_pool_create(int threads, size_t scratch_bytes) {
    cpu_pool *pool = sbp_malloc(sizeof *pool);
    if (!pool)
        return NULL;
    memset(pool, 0, sizeof *pool);
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->wake, NULL);
    pool->workers = sbp_malloc((size_t)threads * sizeof *pool->workers);
    if (!pool->workers) {
        cpu_pool_destroy(pool);
        return NULL;
    }
    memset(pool->workers, 0, (size_t)threads * sizeof *pool->workers);
    pool->threads = 1; /* so far */
    pool->scratch_bytes = scratch_bytes;
    pool->workers[0].scratch = map_scratch(scratch_bytes);
    bool ok = pool->workers[0].scratch != NULL;
    while (ok && pool->threads < threads) {
        worker *last = &pool->workers[pool->threads - 1], *caller = last + 1;
        last->pool = pool;
        caller->scratch = map_scratch(scratch_bytes);
        ok = caller->scratch && pthread_create(&last->thread, NULL, work, last) == 0;
        if (ok)
            pool->threads++;
        else
            cpu_unmap_pages(caller->scratch, scratch_bytes);
    }
    if (!ok) {
        cpu_pool_destroy(pool);
        return NULL;
    }
    return pool;
}

void cpu_pool_destroy(cpu_pool *pool) {
    if (!pool)
        return;
    pthread_mutex_lock(&pool->mutex);
    pool->stop = true;
    pthread_mutex_unlock(&pool->mutex);
    pthread_cond_broadcast(&pool->wake);
    for (int i = 0; i < pool->threads; i++) {
        if (i < pool->threads - 1)
            pthread_join(pool->workers[i].thread, NULL);
        cpu_unmap_pages(pool->workers[i].scratch, pool->scratch_bytes);
    }
    pthread_cond_destroy(&pool->wake);
    pthread_mutex_destroy(&pool->mutex);
    free(pool->workers);
    free(pool);
}
