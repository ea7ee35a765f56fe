/* cuda.c: CUDA C (backends/cuda). Threads of a group and of a team are constants. */
#include "backends/gpu/emit/emitter.h"

static void constants(sbp_text *out, const sbp_gpu_row_shape *shape) {
    int32_t teams = sbp_gpu_row_teams(shape);
    sbp_text_add(out, "#define THREADS %d\n#define LANES %d\n#define TEAMS %d\n", shape->threads,
                 shape->threads / teams, teams);
}

const sbp_gpu_dialect sbp_gpu_cuda = {
    .address = "u64",
    .kernel = "KERNEL(THREADS)",
    .shared = "static __shared__ __align__(16) ",
    .unroll = "#pragma unroll",
    .team_barrier = "meet<LANES, TEAMS>();",
    .group_barrier = "__syncthreads();",
    .sum = "over_team<LANES, TEAMS, plus, #>(@)",
    .max = "over_team<LANES, TEAMS, larger, #>(@)",
    .min = "over_team<LANES, TEAMS, smaller, #>(@)",
    .dynamic = "DYNAMIC_TYPE(@)\n",
    .constant = "static __device__ const REAL",
    .list_begin = "{",
    .list_end = "}",
    .f64_suffix = "",
    .sums_in_type = true,
    .reductions_meet = true,
    .constants = constants,
};
