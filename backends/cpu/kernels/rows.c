/* rows.c: row kernels, in fp32 and fp64. */
#include "backends/cpu/rows.h"
#include "backends/cpu/kernels/convert.h"
#include "backends/cpu/kernels/kernels.h"
#include "backends/rowmath.h"

enum { SUM_LANES = 64 };

/* sbp_philox, inline so that loops over it vectorise. */
INLINE uint32_t philox(uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3, uint32_t k0, uint32_t k1) {
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return c0;
}

#define REAL_IS_F64 0
#include "backends/cpu/kernels/real.h"

#include "backends/cpu/kernels/rows_ops_body.h"

#include "backends/cpu/kernels/rows_body.h"

#undef REAL_IS_F64
#define REAL_IS_F64 1
#include "backends/cpu/kernels/real.h"

#include "backends/cpu/kernels/rows_ops_body.h"

#include "backends/cpu/kernels/rows_body.h"

void ISA_NAME(row)(cpu_lane *lane, const cpu_command *command) {
    cpu_command copy = *command; /* the pool takes what it may write to */
    cpu_pool_run(lane->pool, sbp_ceil_div(command->rows, command->plan->item_rows),
                 command->plan->kernel->compute == SBP_F64 ? rows_item_f64 : rows_item_f32, &copy);
}
