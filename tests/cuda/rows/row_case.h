/* row_case.h: a row kernel with operands, run by the CUDA kernels on the PTX machine, by the CPU device and
 * by the reference interpreter. */
#ifndef SBP_TESTS_CUDA_ROW_CASE_H
#define SBP_TESTS_CUDA_ROW_CASE_H

#include "backends/device.h"
#include "tests/cuda/target/kernel_testing.h"
#include "tests/ptx/ptx.h"
#include "tests/rowkernel_random.h"

/* Adds a kernel to a program, with a command that runs it; returns its number. */
int32_t row_add_kernel(testing *t, sbp_program *program, sbp_rowkernel *kernel);

typedef struct row_case {
    const sbp_rowkernel *kernel;
    int32_t number; /* of the kernel in the program */
    int64_t rows, row0;
    double scalars[SBP_ROWKERNEL_MAX_SCALARS];
    const int32_t *alias; /* in operand whose memory an out has, or -1; NULL: none */
    bool odd;             /* rows begin anywhere, else at multiples of 256 bytes */
    bool special;         /* rows of long operands have infinities, NaN, the same number throughout */
    uint64_t seed;
} row_case;

typedef struct row_image { /* all operands, as they lie in memory */
    unsigned char *bytes;
    int64_t size;
    sbp_span spans[SBP_ROWKERNEL_MAX_OPERANDS];
} row_image;

/* Lays out operands with random numbers; the rest is 0xff. */
row_image row_image_make(testing *t, const row_case *c);
/* What the reference makes of it. */
row_image row_run_reference(testing *t, const row_case *c, const row_image *in);
/* The CPU device. */
row_image row_run_cpu(testing *t, const row_case *c, const row_image *in, const sbp_program *program);
/* The kernel of the set that suits, on the PTX machine. *vector: whether it was the
 * vectors' variant. */
row_image row_run_ptx(testing *t, const row_case *c, const row_image *in, const kernel_set *set,
                      const sbp_ptx_options *options, bool *vector);

/* Adds the sectors of 32 bytes that accesses to global memory touched, all of them or vectors' alone, and the
 * least that could hold them. */
void row_add_sectors(const sbp_ptx_counts *counts, bool vectors_only, int64_t *sectors, int64_t *least);

/* Fails unless what stores write is within the tolerance, and all other bytes are the same. */
void row_compare(const row_case *c, const row_image *expected, const row_image *found, const char *name);

/* Fails unless what stores write has the same bits, or is NaN in both: which NaN is the processor's own. */
void row_same_bits(const row_case *c, const row_image *expected, const row_image *found, const char *name);

#endif
