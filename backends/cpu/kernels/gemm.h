/* gemm.h: a product whose rows may lie apart, for the commands that are made of products. */
#ifndef SBP_CPU_KERNELS_GEMM_H
#define SBP_CPU_KERNELS_GEMM_H

#include "backends/cpu/kernels/kernels.h"

/* Row i of an operand is in slot p % slots of row p / slots of its view, p = number begin + i of pairs, a
 * matrix of `slots` columns: `step` elements behind the slot before it, or 0 where a row's slots are the
 * same. pairs NULL: row i of the view. */
typedef struct cpu_gemm_rows {
    const cpu_view *pairs; /* i32 */
    int64_t begin, slots, step;
} cpu_gemm_rows;

static inline int64_t cpu_pair(const cpu_view *pairs, int64_t at) {
    int64_t elem = at / pairs->cols * pairs->stride + at % pairs->cols;
    return ((const int32_t *)(const void *)pairs->data)[elem];
}

/* As the command gemm (ir/program/commands/gemm.c). b's rows are gathered only where it is not transposed;
 * where d's are there is no c, or c is d. Rows of a view whose rows are gathered are the product's. */
typedef struct cpu_gemm {
    cpu_view d, a, b, c, bias; /* c, bias: data NULL when absent */
    cpu_gemm_rows a_rows, b_rows, d_rows;
    const cpu_command *decoded; /* makes b, whose memory holds nothing yet; NULL: b is there */
    bool ta, tb;
    double alpha, beta;
} cpu_gemm;

void ISA_NAME(run_gemm)(cpu_lane *lane, const cpu_gemm *gemm);

#endif
