/* delta.c: the workspace of delta_rule and its gradient. */
#include "backends/gpu/gpu.h"

/* The columns of delta_rule's workspace, per head. Backward, a row of it is for a block:
 *   - S and dS before it;
 *   - for each of its rows: dR, a row of C, and three numbers; where it corrects, v - S^T k and a row of B.
 * One row more has the S and dS that are being computed. */
int64_t sbp_gpu_delta_columns(const sbp_delta_attrs *attrs, bool backward) {
    int64_t state = attrs->d_k * attrs->d_v, rows = attrs->corrects ? 2 : 1;
    return attrs->heads *
           (backward ? 2 * state + SBP_DELTA_BLOCK * (rows * (attrs->d_v + SBP_DELTA_BLOCK) + 3) : state);
}

int64_t sbp_gpu_delta_rows(int64_t rows, bool backward) {
    return backward ? sbp_ceil_div(rows, SBP_DELTA_BLOCK) + SBP_GPU_DELTA_MORE_ROWS : 1;
}
