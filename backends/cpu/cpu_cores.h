/* cpu_cores.h: the CPU's kernels over the host arena of any device, for queue host. */
#ifndef SBP_BACKENDS_CPU_CORES_H
#define SBP_BACKENDS_CPU_CORES_H

#include "backends/composite/composite.h"

extern const composite_cores cpu_cores;

#endif
