/* delta.c: delta_rule and its gradient, in fp32 and fp64. */
#include "backends/cpu/kernels/delta.h"
#include "backends/cpu/kernels/convert.h"
#include "backends/cpu/kernels/kernels.h"
#include "backends/rowmath.h"
#include "ir/base/census.h"

#define REAL_IS_F64 0
#include "backends/cpu/kernels/real.h"

#include "backends/cpu/kernels/tile.h"

#include "backends/cpu/kernels/delta_body.h"

#include "backends/cpu/kernels/delta_fwd_body.h"

#include "backends/cpu/kernels/delta_bwd_body.h"

#undef REAL_IS_F64
#define REAL_IS_F64 1
#include "backends/cpu/kernels/real.h"

#include "backends/cpu/kernels/tile.h"

#include "backends/cpu/kernels/delta_body.h"

#include "backends/cpu/kernels/delta_fwd_body.h"

#include "backends/cpu/kernels/delta_bwd_body.h"

/* Runs an item with results of 0 in place of subnormal numbers, of which decays make many and which
 * take a hundred times as long as others. What is loaded is not changed: 16-bit numbers may be
 * subnormal on their way. */
static void run_flushing(void *arg, int64_t item, char *scratch) {
    const delta *d = arg;
#if defined(__x86_64__)
    uint32_t kept = _mm_getcsr();
    _mm_setcsr(kept | _MM_FLUSH_ZERO_ON);
    d->item(arg, item, scratch);
    _mm_setcsr(kept);
#else
    d->item(arg, item, scratch);
#endif
}

void ISA_NAME(delta_rule)(cpu_lane *lane, const cpu_command *command) {
    const cpu_view *v = command->views;
    delta d = {.q = &v[SBP_DELTA_RULE_Q],
               .k = &v[SBP_DELTA_RULE_K],
               .v = &v[SBP_DELTA_RULE_V],
               .decay = &v[SBP_DELTA_RULE_DECAY],
               .beta = &v[SBP_DELTA_RULE_BETA],
               .first = &v[SBP_DELTA_RULE_FIRST],
               .state = &v[SBP_DELTA_RULE_STATE],
               .o = &v[SBP_DELTA_RULE_O],
               .next = &v[SBP_DELTA_RULE_NEXT],
               .attrs = command->command->u.delta};
    SBP_CROSS_EITHER(d.k->rows > SBP_DELTA_BLOCK, cpu_delta_blocks, cpu_delta_block);
    SBP_CROSS_EITHER(d.k->rows % DELTA_STRIP, cpu_delta_strip_short, cpu_delta_strips);
    d.group = d.attrs.heads / d.attrs.key_heads;
    d.item = d.k->dtype == SBP_F64 ? delta_item_f64 : delta_item_f32;
    cpu_pool_run(lane->pool, d.attrs.heads, run_flushing, &d);
}

void ISA_NAME(delta_rule_bwd)(cpu_lane *lane, const cpu_command *command) {
    const cpu_view *v = command->views;
    delta d = {.q = &v[SBP_DELTA_RULE_BWD_Q],
               .k = &v[SBP_DELTA_RULE_BWD_K],
               .v = &v[SBP_DELTA_RULE_BWD_V],
               .decay = &v[SBP_DELTA_RULE_BWD_DECAY],
               .beta = &v[SBP_DELTA_RULE_BWD_BETA],
               .first = &v[SBP_DELTA_RULE_BWD_FIRST],
               .state = &v[SBP_DELTA_RULE_BWD_STATE],
               .d_o = &v[SBP_DELTA_RULE_BWD_DO],
               .dq = &v[SBP_DELTA_RULE_BWD_DQ],
               .dk = &v[SBP_DELTA_RULE_BWD_DK],
               .dv = &v[SBP_DELTA_RULE_BWD_DV],
               .ddecay = &v[SBP_DELTA_RULE_BWD_DDECAY],
               .dbeta = &v[SBP_DELTA_RULE_BWD_DBETA],
               .dstate = &v[SBP_DELTA_RULE_BWD_DSTATE],
               .work = &v[SBP_DELTA_RULE_BWD_WORK],
               .attrs = command->command->u.delta};
    bool wide = d.k->dtype == SBP_F64, corrects = d.attrs.corrects;
    int64_t parts = corrects ? 1 : sbp_ceil_div(d.k->rows, SBP_DELTA_BLOCK);
    if (!corrects && d.k->rows == 0) /* dstate stays */
        return;
    if (corrects)
        SBP_CROSS_EITHER(d.k->rows > SBP_DELTA_BLOCK, cpu_delta_back_blocks, cpu_delta_back_block);
    else
        SBP_CROSS_EITHER(d.k->rows > SBP_DELTA_BLOCK, cpu_delta_back_parts, cpu_delta_back_part);
    d.group = d.attrs.heads / d.attrs.key_heads;
    d.item = wide ? delta_keep_item_f64 : delta_keep_item_f32;
    cpu_pool_run(lane->pool, d.attrs.heads, run_flushing, &d);
    d.item = wide ? delta_back_item_f64 : delta_back_item_f32;
    cpu_pool_run(lane->pool, parts * d.attrs.key_heads, run_flushing, &d);
    if (corrects)
        return;
    d.item = wide ? delta_dstate_item_f64 : delta_dstate_item_f32;
    cpu_pool_run(lane->pool, d.attrs.heads, run_flushing, &d);
}
