/* deferred.h: parameters kept in blocks whose numbers are not made yet.
 *
 * Text is generated row by row, so that each number of a parameter is used once or a few times: made and
 * written to memory for all rows of a product, it costs more than the product. So the CPU device puts off row
 * commands that only decode (kernels/decode.c), until a command needs their results: products of few rows
 * decode what they multiply themselves, in the cache of a thread; a gather decodes the rows that it reads;
 * before any other use the command runs as it stands. A result that is written over first is never made.
 *
 * Only where a program generates, and nothing but commands and the device's write can reach what is decoded:
 * on one process without a disk. Threads: one at a time. */
#ifndef SBP_BACKENDS_CPU_DEFERRED_H
#define SBP_BACKENDS_CPU_DEFERRED_H

#include "backends/cpu/cpu.h"

enum { CPU_MOST_DEFERRED = 48 };

typedef struct cpu_deferred {
    int32_t count;
    cpu_command commands[CPU_MOST_DEFERRED]; /* in the order in which they came */
} cpu_deferred;

/* Whether the command was put off: else it is to run now. What it depends on has run. */
bool cpu_defer(cpu_core *core, cpu_deferred *deferred, const cpu_command *command);
/* Before a command runs: what it needs, or is about to change the operands of, runs. Sets its `decoded`. */
void cpu_settle(cpu_core *core, cpu_deferred *deferred, cpu_command *command);
/* The same before these bytes are read or written. */
void cpu_settle_bytes(cpu_core *core, cpu_deferred *deferred, const char *begin, const char *end);

#endif
