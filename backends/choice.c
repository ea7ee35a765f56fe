/* choice.c: which backend a plan is for. */
#include "backends/choice.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef SBP_HAS_VULKAN_PROBE
#include "backends/vulkan/vulkan_probe.h"
#endif
#include "ir/machine.h"

/* Why a device does not come into question; NULL: it does. */
static const char *objection(const sbp_candidate *device, bool fp64) {
    if (device->software)
        return "which is software";
    if (device->missing[0])
        return device->missing;
    return fp64 && !device->fp64 ? "which does not compute in fp64" : NULL;
}

static void take_device(const sbp_candidate *device, sbp_choice *out) {
    out->backend = "vulkan";
    out->memory_bytes = device->free_bytes;
    snprintf(out->reason, sizeof out->reason, "%s", device->name);
}

static void choose_automatically(const sbp_choice_wish *wish, const sbp_candidate *devices, int32_t count,
                                 const char *none, bool compiles, sbp_choice *out) {
    int length = snprintf(out->reason, sizeof out->reason, "no Vulkan GPU: ");
    if (!compiles) {
        snprintf(out->reason, sizeof out->reason, "this build compiles for no GPU");
        return;
    }
    for (int32_t i = 0; i < count; i++)
        if (i >= wish->device && !objection(&devices[i], wish->fp64)) {
            take_device(&devices[i], out);
            return;
        }
    for (int32_t i = 0; i < count && (size_t)length < sizeof out->reason; i++)
        length += snprintf(out->reason + length, sizeof out->reason - (size_t)length, "%s%s, %s",
                           i > 0        ? "; "
                           : count == 1 ? "only "
                                        : "",
                           devices[i].name,
                           objection(&devices[i], wish->fp64) ? objection(&devices[i], wish->fp64)
                                                              : "which comes before --device");
    if (count == 0)
        snprintf(out->reason + length, sizeof out->reason - (size_t)length, "%s", none);
}

void sbp_choice_make(const sbp_choice_wish *wish, const sbp_candidate *devices, int32_t count,
                     const char *none, bool compiles, int64_t host_bytes, sbp_choice *out) {
    *out = (sbp_choice){.backend = "cpu", .memory_bytes = host_bytes};
    if (strcmp(wish->backend, "auto") == 0) {
        choose_automatically(wish, devices, count, none, compiles, out);
        return;
    }
    snprintf(out->reason, sizeof out->reason, "asked for");
    out->backend = wish->backend;
    if (strcmp(wish->backend, "cpu") != 0)
        out->memory_bytes = devices && wish->device < count ? devices[wish->device].free_bytes : 0;
}

/* ---- this machine ----------------------------------------------------------------------------------- */

/* The message without "error: " and the end of the line. */
static void copy_reason(sbp_diag *diag, char *out, size_t size) {
    const char *text = sbp_diag_text(diag, SBP_ERROR);
    const char *start = strncmp(text, "error: ", 7) == 0 ? text + 7 : text;
    start = strncmp(start, "vulkan: ", 8) == 0 ? start + 8 : start;
    snprintf(out, size, "%.*s", (int)strcspn(start, "\n"), start);
}

sbp_status sbp_choice_find(const sbp_choice_wish *wish, sbp_diag *diag, sbp_choice *out) {
    sbp_candidate *devices = NULL;
    int32_t count = 0;
    char none[256] = "this build knows none";
    bool compiles = false;
#ifdef SBP_COMPILES_VULKAN
    compiles = true;
#endif
    bool look = compiles && strcmp(wish->backend, "cpu") != 0;
#ifdef SBP_HAS_VULKAN_PROBE
    sbp_diag *why = look ? sbp_diag_create() : NULL;
    if (look && !why)
        return sbp_fail(diag, SBP_MACHINE, "out of memory");
    sbp_status status = look ? sbp_vulkan_probe(why, &devices, &count) : SBP_OK;
    if (status != SBP_OK)
        copy_reason(why, none, sizeof none);
    sbp_diag_destroy(why);
    if (strcmp(none, "out of memory") == 0) /* of the host: another time there may be a device */
        return sbp_fail(diag, SBP_MACHINE, "%s", none);
#else
    (void)look, (void)diag, (void)copy_reason;
#endif
    sbp_choice_make(wish, devices, count, none, compiles, sbp_machine_memory_available(), out);
    free(devices);
    return SBP_OK;
}
