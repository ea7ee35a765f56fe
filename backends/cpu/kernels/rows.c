/* rows.c: row kernels, in fp32 and fp64. */
#include "backends/cpu/rows.h"
#include "backends/cpu/kernels/convert.h"
#include "backends/cpu/kernels/kernels.h"
#include "backends/cpu/kernels/random.h"
#include "backends/rowmath.h"
#include "ir/base/census.h"

enum { SUM_LANES = 64, ROW_AHEAD = 16, ROW_AHEAD_LINES = 8 };

/* Memory that the next block needs, from `next` to `end`, still to be asked for. */
typedef struct row_ahead {
    const char *next[ROW_AHEAD], *end[ROW_AHEAD];
    int count;
} row_ahead;

#define REAL_IS_F64 0
#include "backends/cpu/kernels/real.h"

#include "backends/cpu/kernels/rows_ops_body.h"

#include "backends/cpu/kernels/rows_body.h"

#undef REAL_IS_F64
#define REAL_IS_F64 1
#include "backends/cpu/kernels/real.h"

#include "backends/cpu/kernels/rows_ops_body.h"

#include "backends/cpu/kernels/rows_body.h"

static void cross_paths(const cpu_command *command) {
    const cpu_row_plan *plan = command->plan;
    int64_t n = plan->kernel->n;
    SBP_CROSS_EITHER(plan->kernel->compute == SBP_F64, cpu_rows_f64, cpu_rows_f32);
    SBP_CROSS_IF(command->rows > plan->item_rows && plan->item_rows > 1, cpu_rows_items);
    SBP_CROSS_IF(n * plan->kernel->heads > ROW_ITEM_ELEMS, cpu_rows_item_row);
    for (int32_t i = 0; i < plan->kernel->instr_count; i++)
        if (plan->kernel->instrs[i].op == SBP_RK_PARTIAL_ADD)
            SBP_CROSS_EITHER(command->rows % SBP_PARTIAL_ROWS, cpu_rows_partials_short, cpu_rows_partials);
    if (plan->pieces) {
        SBP_CROSS(cpu_rows_pieces);
        SBP_CROSS_IF(n % ROW_BLOCK != 0, cpu_rows_pieces_short);
        SBP_CROSS_IF(plan->in_place, cpu_rows_pieces_in_place);
    } else {
        SBP_CROSS_EITHER(plan->block_rows > 1 || plan->block_heads > 1, cpu_rows_many, cpu_rows_one);
        SBP_CROSS_IF(n > ROW_WHOLE, cpu_rows_long_whole);
        SBP_CROSS_IF(plan->in_place, cpu_rows_in_place);
    }
}

/* Whether the blocks that a format's kernel makes numbers of are to lie one behind the other. */
static bool decodes(const cpu_command *command) {
    if (command->plan->decodes == SBP_FORMAT_NONE)
        return false;
    const sbp_format_info *f = sbp_format_of(command->plan->decodes);
    const cpu_view *to = &command->views[f->part_count];
    return to->cols == f->block && to->stride == f->block;
}

void ISA_NAME(row)(cpu_lane *lane, const cpu_command *command) {
    cpu_command copy = *command; /* the pool takes what it may write to */
    bool decoded = decodes(command);
    SBP_CROSS_EITHER(decoded, cpu_rows_decoded, cpu_rows_steps);
    if (decoded) {
        ISA_NAME(decode_rows)(lane, command);
        return;
    }
    cross_paths(command);
    cpu_pool_run(lane->pool, sbp_ceil_div(command->rows, command->plan->item_rows),
                 command->plan->kernel->compute == SBP_F64 ? rows_item_f64 : rows_item_f32, &copy);
}
