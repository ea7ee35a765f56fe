/* lanes.h: what ordinary arithmetic does to 32 lanes, by name: "add.s32", "fma.rm.f32". The functions are
 * compiled for several instruction sets; all give the same bits. */
#ifndef SBP_TESTS_PTX_LANES_H
#define SBP_TESTS_PTX_LANES_H

#include "tests/ptx/module.h"

typedef struct {
    const char *key;
    ptx_lanes_fn *fn;
    uint8_t class, sources, dst; // dst: bytes of the result
    uint8_t src[3];              // bytes of each source
} ptx_lanes_op;

typedef struct {
    const char *key;
    ptx_compare_fn *fn;
    uint8_t bytes;
} ptx_compare_op;

// NULL: there is none of this name.
const ptx_lanes_op *ptx_lanes_find(const char *key);
const ptx_compare_op *ptx_compare_find(const char *key);

// The tables behind it, by instruction set, ended by a key of NULL.
extern const ptx_lanes_op ptx_lanes_base[], ptx_lanes_v3[], ptx_lanes_v4[], ptx_lanes_slow[];
extern const ptx_compare_op ptx_compare_base[], ptx_compare_v3[], ptx_compare_v4[], ptx_compare_slow[];

#endif
