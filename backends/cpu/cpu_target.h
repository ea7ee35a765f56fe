/* cpu_target.h: the compile side of the CPU backend. It needs no device code: row kernels are compiled by the
 * device when it loads a program. */
#ifndef SBP_BACKENDS_CPU_TARGET_H
#define SBP_BACKENDS_CPU_TARGET_H

#include "backends/target.h"
#include "ir/target/footprint.h"

enum {
    SBP_CPU_CHUNK_MOST = 2048, /* rows from which on products are no faster */
    SBP_CPU_DEPTH_MOST = 2048, /* of a product whose operands are packed at once: GEMM_MACRO */
    SBP_CPU_RUNTIME_BYTES =
        9888 << 10 /* of a process that writes what it trains, without a model; measured */
};

extern const sbp_target sbp_cpu_target;

/* What a process takes beside the arenas (cpu_footprint_target.c). */
sbp_footprint sbp_cpu_footprint(const sbp_process *process);

#endif
