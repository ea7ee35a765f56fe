/* attention.c: attention forward and backward, in fp32 and fp64. */
#include "backends/cpu/kernels/attention.h"
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

void ISA_NAME(attn_fwd)(cpu_lane *lane, const cpu_command *command) {
    if (command->views[2].dtype == SBP_F64)
        run_forward_f64(lane, command);
    else
        run_forward_f32(lane, command);
}

void ISA_NAME(attn_bwd)(cpu_lane *lane, const cpu_command *command) {
    if (command->views[3].dtype == SBP_F64)
        run_backward_f64(lane, command);
    else
        run_backward_f32(lane, command);
}
