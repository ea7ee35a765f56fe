/* delta.c: the workspace of delta_rule and delta_rule_bwd. */
#include "backends/gpu/gpu.h"

/* Of a block: S and dS; of each of its rows v - S^T k and dR, a row of B and of C, and three numbers. The row more has the S
 * and dS that are being computed. */
int64_t sbp_gpu_delta_columns(const sbp_delta_attrs *attrs, bool backward) {
    int64_t state = attrs->d_k * attrs->d_v;
    return attrs->heads *
           (backward ? 2 * state + SBP_DELTA_BLOCK * (2 * attrs->d_v + 2 * SBP_DELTA_BLOCK + 3) : state);
}

double sbp_gpu_delta_scalar_rate(const sbp_target_info *info, const sbp_delta_attrs *attrs, sbp_dtype dtype,
                                 bool backward) {
    (void)attrs, (void)backward;
    double rate = sbp_throughput_attention(&info->throughput, dtype),
           scalar = sbp_throughput_attention(&info->throughput, dtype == SBP_F64 ? SBP_F64 : SBP_F32);
    return rate < scalar ? rate : scalar;
}

int64_t sbp_gpu_delta_rows(int64_t rows, bool backward) {
    return backward ? sbp_ceil_div(rows, SBP_DELTA_BLOCK) + SBP_GPU_DELTA_MORE_ROWS : 1;
}
