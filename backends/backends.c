/* backends.c: the list of backends. */
#include "backends/backends.h"

#include <stdio.h>
#include <string.h>

enum { HOST = SBP_BACKEND_HOST, HAS_TF32 = SBP_BACKEND_HAS_TF32, TUNES = SBP_BACKEND_TUNES };

static const sbp_backend backends[] = {
#define BACKEND(name, title, is, without) {#name, title, is, without},
#include "backends/backends.def"
};

const sbp_backend *sbp_backend_at(int32_t index) {
    return index >= 0 && index < SBP_COUNT(backends) ? &backends[index] : NULL;
}

const sbp_backend *sbp_backend_find(const char *name) {
    for (int32_t i = 0; i < SBP_COUNT(backends); i++)
        if (strcmp(backends[i].name, name) == 0)
            return &backends[i];
    return NULL;
}

bool sbp_backend_is_a(const char *name, unsigned is) {
    const sbp_backend *backend = sbp_backend_find(name);
    return backend && (backend->is & is) == is;
}

const sbp_backend *sbp_backend_of_host(void) {
    int32_t i = 0;
    while (!(backends[i].is & SBP_BACKEND_HOST))
        i++;
    return &backends[i];
}

const char *sbp_backend_names(unsigned is, char *out, size_t size) {
    const char *last = NULL;
    size_t length = 0;
    int count = 0;
    out[0] = '\0';
    for (int32_t i = 0; i < SBP_COUNT(backends); i++) {
        if ((backends[i].is & is) != is)
            continue;
        if (last && length < size)
            length += (size_t)snprintf(out + length, size - length, "%s%s", count++ ? ", " : "", last);
        last = backends[i].name;
    }
    if (last && length < size)
        snprintf(out + length, size - length, "%s%s", count ? " or " : "", last);
    return out;
}
