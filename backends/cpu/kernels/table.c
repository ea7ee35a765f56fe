/* table.c: the commands of one instruction set. */
#include "backends/cpu/kernels/kernels.h"

#define TEXT2(x) #x
#define TEXT(x) TEXT2(x)

extern const cpu_kernels ISA_NAME(kernels);

const cpu_kernels ISA_NAME(kernels) = {
    .name = TEXT(CPU_ISA),
    .run =
        {
#define COMMAND(id, text, queues, operands, traits, synopsis) ISA_NAME(text),
#include "ir/program/commands.def"
#undef COMMAND
        },
    .decode = ISA_NAME(decode),
};
