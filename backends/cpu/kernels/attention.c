/* attention.c: attention forward and backward, in fp32, fp64 and of bf16. */
#include "backends/cpu/kernels/attention.h"
#include "backends/cpu/kernels/bf16.h"
#include "backends/cpu/kernels/convert.h"
#include "backends/cpu/kernels/kernels.h"
#include "backends/rowmath.h"

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

static bool is_bf16(const cpu_view *q) {
    return q[0].dtype == SBP_BF16 && q[1].dtype == SBP_BF16 && q[2].dtype == SBP_BF16; /* q k v */
}

void ISA_NAME(attn_fwd)(cpu_lane *lane, const cpu_command *command) {
    const cpu_view *v = command->views; /* o lse q k v .. */
    if (v[2].dtype == SBP_F64)
        run_forward_f64(lane, command);
    else if (is_bf16(&v[2]))
        run_forward_bf16(lane, command);
    else
        run_forward_f32(lane, command);
}

void ISA_NAME(attn_bwd)(cpu_lane *lane, const cpu_command *command) {
    const cpu_view *v = command->views; /* dq dk dv q k v o lse do .. */
    if (v[3].dtype == SBP_F64)
        run_backward_f64(lane, command);
    else if (is_bf16(&v[3]) && v[8].dtype == SBP_BF16)
        run_backward_bf16(lane, command);
    else
        run_backward_f32(lane, command);
}
