/* table.c: the commands of one instruction set. */
#include "backends/cpu/kernels/kernels.h"

#define TEXT2(x) #x
#define TEXT(x) TEXT2(x)

extern const cpu_kernels ISA_NAME(kernels);

const cpu_kernels ISA_NAME(kernels) = {
    .name = TEXT(CPU_ISA),
    .run = {[SBP_CMD_FILL] = ISA_NAME(fill),
            [SBP_CMD_COPY] = ISA_NAME(copy),
            [SBP_CMD_GEMM] = ISA_NAME(gemm),
            [SBP_CMD_ROW] = ISA_NAME(row),
            [SBP_CMD_COLSUM] = ISA_NAME(colsum),
            [SBP_CMD_GATHER] = ISA_NAME(gather),
            [SBP_CMD_SCATTER_ADD] = ISA_NAME(scatter_add),
            [SBP_CMD_ATTN_FWD] = ISA_NAME(attn_fwd),
            [SBP_CMD_ATTN_BWD] = ISA_NAME(attn_bwd),
            [SBP_CMD_CONV_ROWS] = ISA_NAME(conv_rows),
            [SBP_CMD_CONV_ROWS_BWD] = ISA_NAME(conv_rows_bwd),
            [SBP_CMD_DELTA_RULE] = ISA_NAME(delta_rule),
            [SBP_CMD_DELTA_RULE_BWD] = ISA_NAME(delta_rule_bwd),
            [SBP_CMD_SSD] = ISA_NAME(ssd),
            [SBP_CMD_SSD_BWD] = ISA_NAME(ssd_bwd),
            [SBP_CMD_ROUTE] = ISA_NAME(route),
            [SBP_CMD_EXPERT_ORDER] = ISA_NAME(expert_order),
            [SBP_CMD_EXPERT_GEMM] = ISA_NAME(expert_gemm),
            [SBP_CMD_EXPERT_GEMM_DW] = ISA_NAME(expert_gemm_dw),
            [SBP_CMD_REDUCE] = ISA_NAME(reduce),
            [SBP_CMD_COLLECTIVE] = ISA_NAME(collective)},
};
