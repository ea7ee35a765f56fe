/* kernels.h: what the files of this folder offer, each once per instruction set (isa.h). */
#ifndef SBP_CPU_KERNELS_KERNELS_H
#define SBP_CPU_KERNELS_KERNELS_H

#include "backends/cpu/cpu.h"
#include "backends/cpu/kernels/isa.h"

void ISA_NAME(fill)(cpu_lane *lane, const cpu_command *command);
void ISA_NAME(copy)(cpu_lane *lane, const cpu_command *command);
void ISA_NAME(gemm)(cpu_lane *lane, const cpu_command *command);
void ISA_NAME(row)(cpu_lane *lane, const cpu_command *command);
void ISA_NAME(colsum)(cpu_lane *lane, const cpu_command *command);
void ISA_NAME(gather)(cpu_lane *lane, const cpu_command *command);
void ISA_NAME(scatter_add)(cpu_lane *lane, const cpu_command *command);
void ISA_NAME(attn_fwd)(cpu_lane *lane, const cpu_command *command);
void ISA_NAME(attn_bwd)(cpu_lane *lane, const cpu_command *command);
void ISA_NAME(conv_rows)(cpu_lane *lane, const cpu_command *command);
void ISA_NAME(conv_rows_bwd)(cpu_lane *lane, const cpu_command *command);
void ISA_NAME(delta_rule)(cpu_lane *lane, const cpu_command *command);
void ISA_NAME(delta_rule_bwd)(cpu_lane *lane, const cpu_command *command);
void ISA_NAME(ssd)(cpu_lane *lane, const cpu_command *command);
void ISA_NAME(ssd_bwd)(cpu_lane *lane, const cpu_command *command);
void ISA_NAME(route)(cpu_lane *lane, const cpu_command *command);
void ISA_NAME(expert_order)(cpu_lane *lane, const cpu_command *command);
void ISA_NAME(expert_gemm)(cpu_lane *lane, const cpu_command *command);
void ISA_NAME(expert_gemm_dw)(cpu_lane *lane, const cpu_command *command);
void ISA_NAME(reduce)(cpu_lane *lane, const cpu_command *command);
void ISA_NAME(collective)(cpu_lane *lane, const cpu_command *command);

#endif
