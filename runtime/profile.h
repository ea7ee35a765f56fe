/* profile.h: where the time of a run goes: a device around a device that runs each command alone, waits for
 * it and adds up. With SBP_PROFILE=1 in the environment sbprun uses it, and prints a table on standard error
 * at the end.
 *
 * Copies of offloading no longer overlap with computation, and each wait costs a device other than the CPU
 * its latency: compare shares, not totals. */
#ifndef SBP_RUNTIME_PROFILE_H
#define SBP_RUNTIME_PROFILE_H

#include "backends/device.h"

/* `class` itself unless the environment asks for a profile; then a class around it, valid until the next
 * call. What a profiling device creates is used by one thread of the process, one device at a time. */
const sbp_device_class *sbp_profile_class(const sbp_device_class *class);

#endif
