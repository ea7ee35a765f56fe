/* machine.h: memory, in bytes, cores and the clock of this machine, for planning and for messages. Linux;
 * limits of the control group count (version 2, else 1). Thread safe. */
#ifndef SBP_IR_MACHINE_H
#define SBP_IR_MACHINE_H

#include <stdint.h>

/* What a process may have at most; 0 when that is not known. */
int64_t sbp_machine_memory(void);
/* What is free now, for another process; 0 when that is not known. */
int64_t sbp_machine_memory_available(void);
/* That a process may use at once; at least 1. */
int32_t sbp_machine_cores(void);
/* Seconds of a clock that never goes back. */
double sbp_seconds(void);

#endif
