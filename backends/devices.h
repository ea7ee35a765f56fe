/* devices.h: the kinds of device that this build can run plans on. Threads: no state. */
#ifndef SBP_BACKENDS_DEVICES_H
#define SBP_BACKENDS_DEVICES_H

#include "backends/device.h"

/* By the name that a plan carries ("cpu"); NULL when this build has none. */
const sbp_device_class *sbp_device_find(const char *backend);
/* How ranks meet that have no MPI; NULL when no kind of device can do that. */
const struct sbp_transport *sbp_device_transport(void);
/* Those that are listed; NULL after the last. */
const sbp_device_class *sbp_device_at(int32_t index);

#endif
