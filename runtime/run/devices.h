/* devices.h: the kinds of device that this program can run plans on. */
#ifndef SBP_RUNTIME_RUN_DEVICES_H
#define SBP_RUNTIME_RUN_DEVICES_H

#include "backends/device.h"

/* By the name that a plan carries ("cpu"); NULL when this build has none. */
const sbp_device_class *sbp_device_find(const char *backend);

/* A line per device, or a JSON array of those that can be used. */
sbp_status sbp_devices_print(sbp_text *out, bool json, sbp_diag *diag) SBP_CHECKED;

#endif
