/* attention.c: attention forward and backward, in fp32, fp64 and of bf16. */
#include "backends/cpu/kernels/attention.h"
#include "backends/cpu/kernels/bf16.h"
#include "backends/cpu/kernels/convert.h"
#include "backends/cpu/kernels/kernels.h"
#include "backends/rowmath.h"
#include "ir/base/census.h"

/* Begins below every score: what a lane that has seen no key yet gathers is wiped out by the first that it
 * sees. */
#define NOTHING_SEEN R(-1e30)

#define REAL_IS_F64 0
#include "backends/cpu/kernels/real.h"

#include "backends/cpu/kernels/tile.h"

#include "backends/cpu/kernels/attention_body.h"

#include "backends/cpu/kernels/attention_fwd_body.h"

#include "backends/cpu/kernels/attention_bwd_body.h"

#undef REAL_IS_F64
#define REAL_IS_F64 1
#include "backends/cpu/kernels/real.h"

#include "backends/cpu/kernels/tile.h"

#include "backends/cpu/kernels/attention_body.h"

#include "backends/cpu/kernels/attention_fwd_body.h"

#include "backends/cpu/kernels/attention_bwd_body.h"

#undef REAL_IS_F64
#undef PRODUCTS_OF_BF16
#define REAL_IS_F64 0
#define PRODUCTS_OF_BF16 1
#include "backends/cpu/kernels/real.h"

#include "backends/cpu/kernels/tile.h"

#include "backends/cpu/kernels/attention_body.h"

#include "backends/cpu/kernels/attention_fwd_body.h"

#include "backends/cpu/kernels/attention_bwd_body.h"

static bool is_bf16(const cpu_view *q, const cpu_view *k, const cpu_view *v) {
    return q->dtype == SBP_BF16 && k->dtype == SBP_BF16 && v->dtype == SBP_BF16;
}

void ISA_NAME(attn_fwd)(cpu_lane *lane, const cpu_command *command) {
    const cpu_view *v = command->views, *q = &v[SBP_ATTN_FWD_Q];
    if (q->dtype == SBP_F64)
        run_forward_f64(lane, command);
    else if (is_bf16(q, &v[SBP_ATTN_FWD_K], &v[SBP_ATTN_FWD_V]))
        run_forward_bf16(lane, command);
    else
        run_forward_f32(lane, command);
}

void ISA_NAME(attn_bwd)(cpu_lane *lane, const cpu_command *command) {
    const cpu_view *v = command->views, *q = &v[SBP_ATTN_BWD_Q];
    if (q->dtype == SBP_F64)
        run_backward_f64(lane, command);
    else if (is_bf16(q, &v[SBP_ATTN_BWD_K], &v[SBP_ATTN_BWD_V]) && v[SBP_ATTN_BWD_DO].dtype == SBP_BF16)
        run_backward_bf16(lane, command);
    else
        run_backward_f32(lane, command);
}
