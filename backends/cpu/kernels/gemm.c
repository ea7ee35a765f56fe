/* gemm.c: products, in fp32, fp64 and of bf16. */
#include "backends/cpu/kernels/gemm.h"
#include "backends/cpu/cpu.h"
#include "backends/cpu/kernels/bf16.h"
#include "backends/cpu/kernels/convert.h"
#include "backends/cpu/kernels/kernels.h"
#include "ir/base/census.h"

#define REAL_IS_F64 0
#include "backends/cpu/kernels/real.h"

#include "backends/cpu/kernels/tile.h"

#include "backends/cpu/kernels/gemm_body.h"

#undef REAL_IS_F64
#define REAL_IS_F64 1
#include "backends/cpu/kernels/real.h"

#include "backends/cpu/kernels/tile.h"

#include "backends/cpu/kernels/gemm_body.h"

#undef REAL_IS_F64
#undef PRODUCTS_OF_BF16
#define REAL_IS_F64 0
#define PRODUCTS_OF_BF16 1
#include "backends/cpu/kernels/real.h"

#include "backends/cpu/kernels/tile.h"

#include "backends/cpu/kernels/gemm_body.h"

void ISA_NAME(run_gemm)(cpu_lane *lane, const cpu_gemm *gemm) {
    if (gemm->d.dtype == SBP_F64)
        run_gemm_f64(lane, gemm);
    else if (gemm->a.dtype == SBP_BF16 && gemm->b.dtype == SBP_BF16)
        run_gemm_bf16(lane, gemm);
    else
        run_gemm_f32(lane, gemm);
}

void ISA_NAME(gemm)(cpu_lane *lane, const cpu_command *command) {
    const cpu_view *v = command->views;
    const sbp_command *c = command->command;
    cpu_gemm gemm = {.d = v[SBP_GEMM_D],
                     .a = v[SBP_GEMM_A],
                     .b = v[SBP_GEMM_B],
                     .c = v[SBP_GEMM_C],
                     .bias = v[SBP_GEMM_BIAS],
                     .decoded = command->decoded,
                     .ta = c->u.gemm.ta,
                     .tb = c->u.gemm.tb,
                     .alpha = c->u.gemm.alpha,
                     .beta = c->u.gemm.beta};
    ISA_NAME(run_gemm)(lane, &gemm);
}
