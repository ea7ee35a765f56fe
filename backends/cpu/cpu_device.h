/* cpu_device.h: the CPU as a device (backends/device.h).
 *
 * `sbp_cpu_device` runs commands as they come, each over a pool of threads; a program that has other queues
 * than compute gets a thread for each. `sbp_cpu_shuffle_device` is for tests of fences: it holds commands
 * back until their results are asked for and runs them in a random order (options.shuffle_seed) that the
 * fences allow, all queues mixed; where fences are right its results are those of the plain device, bit for
 * bit. */
#ifndef SBP_BACKENDS_CPU_DEVICE_H
#define SBP_BACKENDS_CPU_DEVICE_H

#include "backends/device.h"

extern const sbp_device_class sbp_cpu_device;
extern const sbp_device_class sbp_cpu_shuffle_device;

#endif
