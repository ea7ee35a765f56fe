/* measure.h: how fast the machine is that a device runs on: its throughput (ir/target/throughput.h), measured
 * in about a second by commands of the kinds that a step has, given to the device as the runtime gives them.
 *
 * Each is the fastest of several runs, so that others who use the machine disturb little. Threads: no state;
 * the device is used by the caller's. */
#ifndef SBP_BACKENDS_MEASURE_H
#define SBP_BACKENDS_MEASURE_H

#include "backends/device.h"
#include "backends/target.h"

/* Throughput of types that the target computes in, of queues, and with options->offload_dir of the disk
 * behind it; the others stay as they are. *share: of the processors that matmuls asked for, what they had; 1
 * for a device that is not of the host. SBP_MACHINE: there is no device, or no room (some 250 MiB of memory,
 * 64 MiB of disk). */
sbp_status sbp_measure_throughput(sbp_arena *arena, sbp_diag *diag, const sbp_target *target,
                                  const sbp_device_class *class, const sbp_device_options *options,
                                  sbp_throughput *inout, double *share) SBP_CHECKED;

#endif
