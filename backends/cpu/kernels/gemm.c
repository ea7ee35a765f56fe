/* gemm.c: products, in fp32, fp64 and of bf16. */
#include "backends/cpu/cpu.h"
#include "backends/cpu/kernels/bf16.h"
#include "backends/cpu/kernels/convert.h"
#include "backends/cpu/kernels/kernels.h"

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

void ISA_NAME(gemm)(cpu_lane *lane, const cpu_command *command) {
    const cpu_view *v = command->views;
    if (v[SBP_GEMM_D].dtype == SBP_F64)
        run_gemm_f64(lane, command);
    else if (v[SBP_GEMM_A].dtype == SBP_BF16 && v[SBP_GEMM_B].dtype == SBP_BF16)
        run_gemm_bf16(lane, command);
    else
        run_gemm_f32(lane, command);
}
