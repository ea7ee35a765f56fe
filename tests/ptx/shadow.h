/* shadow.h: what is asked of the bytes that a warp touches, many at a time: the cases in which nothing can be
 * wrong are found and remembered here, the others are left to shared.c and global.c, which know what to say.
 * Compiled for several instruction sets (lanes.h); all do the same. */
#ifndef SBP_TESTS_PTX_SHADOW_H
#define SBP_TESTS_PTX_SHADOW_H

#include "tests/ptx/machine.h"

/* Lanes of a warp that access `bytes` (a power of two, at most 32) at at[lane] each: within the memory,
 * aligned, no two of them at the same. */
typedef struct {
    const uint32_t *at;
    uint32_t mask, bytes;
    uint32_t now;
    uint32_t before; // what was done up to this time is known to every lane
    uint32_t known;  // reads up to this time need not be kept beside newer ones
    uint32_t line;
    int warp;
} ptx_shadow_lanes;

typedef struct ptx_shadow_ops {
    // How many of n bytes of shared memory from b on have the state, writer, times and readers of the first.
    uint32_t (*alike)(const ptx_shared *s, uint32_t b, uint32_t n);
    // The lanes that are left: whose bytes were not simply written, long ago or by themselves, or others
    // read.
    uint32_t (*read)(ptx_shared *s, const ptx_shadow_lanes *x);
    // The lanes that are left: whose bytes somebody touched of whom that must be asked.
    uint32_t (*write)(ptx_shared *s, const ptx_shadow_lanes *x);
    /* Units [first, first + count) of a page of global memory, `per` of which (a power of two) each thread
     * from `who` on reads or writes: false where that must be asked about, and nothing is done then. */
    bool (*page_read)(ptx_page *page, uint32_t first, uint32_t count, uint32_t per, uint32_t who,
                      uint32_t begin, uint32_t now);
    bool (*page_write)(ptx_page *page, uint32_t first, uint32_t count, uint32_t per, uint32_t who,
                       uint32_t begin, uint32_t now);
} ptx_shadow_ops;

extern const ptx_shadow_ops ptx_shadow_base, ptx_shadow_v3, ptx_shadow_v4;
const ptx_shadow_ops *ptx_shadow_best(void);

#endif
