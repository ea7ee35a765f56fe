/* devices.h: lists what this machine can run plans on. */
#ifndef SBP_RUNTIME_RUN_DEVICES_H
#define SBP_RUNTIME_RUN_DEVICES_H

#include "ir/base/base.h"

/* A line per device, or a JSON array of those that can be used. */
sbp_status sbp_devices_print(sbp_text *out, bool json, sbp_diag *diag) SBP_CHECKED;

#endif
