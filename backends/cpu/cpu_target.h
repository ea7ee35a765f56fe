/* cpu_target.h: the compile side of the CPU backend. It needs no device code: row kernels are compiled by the
 * device when it loads a program. */
#ifndef SBP_BACKENDS_CPU_TARGET_H
#define SBP_BACKENDS_CPU_TARGET_H

#include "backends/target.h"

extern const sbp_target sbp_cpu_target;

#endif
