/* clocks.h: what happened before what. Time is one clock that ticks at every synchronisation; every access
 * has the time it was made at. A view says up to which time the accesses of each thread are known (happened
 * before whatever is done next); it never changes once others may see it.
 *
 * Writes of the generic proxy have a second time, up to which a fence.proxy.async came after them: what the
 * async proxy may read. Asynchronous copies that an mbarrier waits for are agents of their own, one for each
 * mbarrier, numbered behind the threads of a block. */
#ifndef SBP_TESTS_PTX_CLOCKS_H
#define SBP_TESTS_PTX_CLOCKS_H

#include <stdbool.h>
#include <stdint.h>

// What is known of one block's threads and agents.
typedef struct {
    uint32_t refs, block, count;
    uint32_t times[]; // count of known[], then count of proxy[]
} ptx_slice;

typedef struct {
    uint32_t refs;
    int count;           // of other blocks
    ptx_slice *own;      // never NULL
    ptx_slice *others[]; // by block
} ptx_view;

static inline uint32_t *ptx_known(ptx_slice *s) {
    return s->times;
}

static inline uint32_t *ptx_proxy(ptx_slice *s) {
    return s->times + s->count;
}

// NULL: out of memory, here and below. A view of nothing.
ptx_view *ptx_view_create(uint32_t block, uint32_t count);
ptx_view *ptx_view_keep(ptx_view *view);
void ptx_view_drop(ptx_view *view); // NULL is nothing
// A view of the same with a slice of its own that may be changed.
ptx_view *ptx_view_copy(const ptx_view *view);
/* What both know, as the view of a thread of a's block; b may be of another block. A new reference; a itself
 * where b knows no more. */
ptx_view *ptx_view_join(ptx_view *a, ptx_view *b);
// A view of the same in which everything that is known is known to the async proxy as well.
ptx_view *ptx_view_fenced(const ptx_view *view);
// The slice of a block; NULL: nothing is known of it.
const ptx_slice *ptx_view_slice(const ptx_view *view, uint32_t block);

#endif
