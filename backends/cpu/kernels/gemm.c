/* gemm.c: products, in fp32 and fp64. */
#include "backends/cpu/cpu.h"
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

void ISA_NAME(gemm)(cpu_lane *lane, const cpu_command *command) {
    if (command->views[0].dtype == SBP_F64)
        run_gemm_f64(lane, command);
    else
        run_gemm_f32(lane, command);
}
