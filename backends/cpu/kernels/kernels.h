/* kernels.h: what the files of this folder offer, each once per instruction set (isa.h). */
#ifndef SBP_CPU_KERNELS_KERNELS_H
#define SBP_CPU_KERNELS_KERNELS_H

#include "backends/cpu/cpu.h"
#include "backends/cpu/kernels/isa.h"

#define COMMAND(id, text, queues, operands, traits, synopsis)                                                \
    void ISA_NAME(text)(cpu_lane * lane, const cpu_command *command);
#include "ir/program/commands.def"
#undef COMMAND

#endif
