/* devices.h: lists what this machine can run plans on. */
#ifndef SBP_RUNTIME_RUN_DEVICES_H
#define SBP_RUNTIME_RUN_DEVICES_H

#include "backends/device.h"

/* Opens a device for a moment; SBP_MACHINE with the reason why it cannot be used. */
sbp_status sbp_device_describe(const sbp_device_class *class, int32_t index, sbp_diag *diag,
                               sbp_device_info *out) SBP_CHECKED;
/* A line per device, or a JSON array of those that can be used. */
sbp_status sbp_devices_print(sbp_text *out, bool json, sbp_diag *diag) SBP_CHECKED;

#endif
