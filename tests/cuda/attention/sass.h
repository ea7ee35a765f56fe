/* sass.h: the machine code of a kernel as nvdisasm prints it, and one pass through its main loop: the
 * instructions that a warp issues for a tile that is neither masked nor capped. */
#ifndef SBP_TESTS_CUDA_SASS_H
#define SBP_TESTS_CUDA_SASS_H

#include "ir/base/base.h"

typedef struct sass_instruction {
    const char *op;     /* "HGMMA.64x128x16.F32.BF16" */
    const char *text;   /* all of it, without the predicate: "BRA `(.L_x_1)" */
    bool conditional;   /* it has a predicate that may be false */
    bool never;         /* its predicate is !PT: takes a slot, and does nothing */
    int32_t targets[2]; /* instructions that may follow; -1: none */
} sass_instruction;

typedef struct sass_kernel {
    sass_instruction *items;
    int32_t count;
} sass_kernel;

/* Prints "skipped: .." and is false where there is no nvdisasm: tests/cuda_tools.sh brings it. */
bool sass_can_read(void);

/* Fails the test when nvdisasm does not take it. */
sass_kernel sass_read(sbp_arena *arena, const void *cubin, int64_t bytes);

/* A loop in which products are made by tensor cores: that with the most of their instructions of those that
 * have none of the instructions of `other` (a loop found before; NULL: of all), the smallest of these. *body:
 * the shortest way from its head to its head that makes all of its products and copies. Number of
 * instructions, in *out; 0: there is no such loop. */
int32_t sass_main_loop(sbp_arena *arena, const sass_kernel *kernel, const bool *other, int32_t **out,
                       bool **body);

/* Whether it is this instruction, with any modifiers: "LDS" is "LDS.64", not "LDSM". */
bool sass_is(const sass_instruction *i, const char *op);

#endif
