/* devices.c: the devices that this build can run plans on. */
#include "backends/devices.h"

#include <string.h>

#include "backends/backends.h"

#define BACKEND(name, title, is, without) extern const sbp_device_class sbp_##name##_device;
#include "backends/backends.def"

static const sbp_device_class *const classes[] = {
#define BACKEND(name, title, is, without) SBP_BACKEND_BUILT(SBP_DEVICE_##name, &sbp_##name##_device),
#include "backends/backends.def"
};

/* The host's processor comes last. */
const sbp_device_class *sbp_device_at(int32_t index) {
    const unsigned asked = SBP_BACKEND_HOST | SBP_BACKEND_UNLISTED;
    for (unsigned host = 0; host <= SBP_BACKEND_HOST; host++)
        for (int32_t i = 0; i < SBP_COUNT(classes); i++)
            if (classes[i] && (sbp_backend_at(i)->is & asked) == host && index-- == 0)
                return classes[i];
    return NULL;
}

const sbp_device_class *sbp_device_find(const char *backend) {
    for (int i = 0; i < SBP_COUNT(classes); i++)
        if (classes[i] && strcmp(classes[i]->name, backend) == 0)
            return classes[i];
    return NULL;
}

const struct sbp_transport *sbp_device_transport(void) {
    for (int i = 0; i < SBP_COUNT(classes); i++)
        if (classes[i] && classes[i]->transport)
            return classes[i]->transport;
    return NULL;
}
