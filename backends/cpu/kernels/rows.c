/* rows.c: row kernels, in fp32 and fp64. */
#include "backends/cpu/rows.h"
#include "backends/cpu/kernels/convert.h"
#include "backends/cpu/kernels/kernels.h"
#include "backends/cpu/kernels/random.h"
#include "backends/rowmath.h"

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

void ISA_NAME(row)(cpu_lane *lane, const cpu_command *command) {
    cpu_command copy = *command; /* the pool takes what it may write to */
    cpu_pool_run(lane->pool, sbp_ceil_div(command->rows, command->plan->item_rows),
                 command->plan->kernel->compute == SBP_F64 ? rows_item_f64 : rows_item_f32, &copy);
}
