/* kernels.h: what the files of this folder offer, each once per instruction set (isa.h). */
#ifndef SBP_CPU_KERNELS_KERNELS_H
#define SBP_CPU_KERNELS_KERNELS_H

#include "backends/cpu/cpu.h"
#include "backends/cpu/kernels/isa.h"

#define COMMAND(id, text, queues, operands, traits, synopsis)                                                \
    void ISA_NAME(text)(cpu_lane * lane, const cpu_command *command);
#include "ir/program/commands.def"
#undef COMMAND

/* decode.c. Blocks of a parameter that a command with a plan that decodes makes numbers of, from `first` on,
 * one behind the other; and that command, where its results lie so. */
void ISA_NAME(decode)(const cpu_command *command, int64_t first, int64_t blocks, char *out);
void ISA_NAME(decode_rows)(cpu_lane *lane, const cpu_command *command);

#endif
