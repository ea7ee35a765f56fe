/* machine.h: memory, in bytes, cores, the clock and the cache directory of this machine, for planning and for
 * messages. Linux; limits of the control groups (ir/base/cgroup.h) and of the process (ulimit -v, -d) count.
 * Thread safe. */
#ifndef SBP_IR_BASE_MACHINE_H
#define SBP_IR_BASE_MACHINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Whether sbp_malloc, sbp_realloc or an arena has failed in this process (allocate.c). */
bool sbp_memory_ran_out(void);

/* What a process may have at most; 0 when that is not known. */
int64_t sbp_machine_memory(void);
/* Who says so: "this machine", "the control group", "ulimit -v", "ulimit -d". */
const char *sbp_machine_memory_source(void);
/* What is free now, for another process; 0 when that is not known. */
int64_t sbp_machine_memory_available(void);
/* Which limit is the nearest and what it leaves, for messages that memory is lacking, into out, which is
 * returned: "3092.48 MiB are free of this machine's 24104.96 MiB", "12.10 MiB are left of 97.66 MiB (ulimit
 * -v)".
 */
const char *sbp_machine_memory_text(char *out, size_t size);
/* That a process may use at once; at least 1. */
int32_t sbp_machine_cores(void);
/* A hash of this machine's name and of which cores a process may use: equal where they are the same. */
uint64_t sbp_machine_core_set(void);
/* The processor as it names itself, with its family and model, which tell apart what goes by one name, into
 * out, which is returned: "AMD EPYC, family 26 model 2". */
const char *sbp_machine_processor(char *out, size_t size);
/* The path of a file of this name among what programs of this project keep for the next time,
 * $XDG_CACHE_HOME/streambp or ~/.cache/streambp, into out; false: there is no place for it. */
bool sbp_cache_path(const char *name, char *out, size_t size);
/* Makes the directories above a path that are missing, for this user alone. What could not be made shows when
 * the file is written. */
void sbp_make_directories_above(const char *path);
/* Seconds of a clock that never goes back. */
double sbp_seconds(void);

#endif
