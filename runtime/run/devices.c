/* devices.c: what devices there are, in words. */
#include "runtime/run/devices.h"

#include <string.h>

#include "backends/devices.h"
#include "ir/base/json_write.h"

/* ---- listing ---------------------------------------------------------------------------------------- */

/* A device that cannot be opened is listed too, with the reason. */
sbp_status sbp_device_describe(const sbp_device_class *class, int32_t index, sbp_diag *diag,
                               sbp_device_info *out) {
    sbp_device_options options = {.index = index};
    sbp_device *device;
    *out = (sbp_device_info){0};
    SBP_TRY(class->create(&options, diag, &device));
    class->info(device, out);
    class->destroy(device);
    return SBP_OK;
}

static void add_reason(sbp_text *out, sbp_diag *reason) {
    const char *text = sbp_diag_text(reason, SBP_ERROR);
    size_t length = strcspn(text, "\n"), skip = strncmp(text, "error: ", 7) == 0 ? 7 : 0;
    sbp_text_add_n(out, text + skip, length - skip);
}

static void write_device(sbp_json_writer *w, const char *backend, int32_t index,
                         const sbp_device_info *info) {
    sbp_json_write_object(w, NULL);
    sbp_json_write_string(w, "backend", backend);
    sbp_json_write_int(w, "device", index);
    sbp_json_write_string(w, "name", info->name);
    sbp_json_write_bool(w, "software", info->software);
    sbp_json_write_int(w, "memory_bytes", info->memory_bytes);
    if (info->available_bytes > 0)
        sbp_json_write_int(w, "available_bytes", info->available_bytes);
    if (info->allocation_bytes > 0)
        sbp_json_write_int(w, "allocation_bytes", info->allocation_bytes);
    sbp_json_write_int(w, "threads", info->threads);
    sbp_json_write_end(w);
}

static void add_line(sbp_text *out, const char *backend, int32_t index, const sbp_device_info *info) {
    char bytes[32];
    sbp_text_add(out, "%s", backend);
    if (info->threads == 0)
        sbp_text_add(out, " %d", index);
    sbp_text_add(out, ": %s", info->name);
    if (info->threads > 0)
        sbp_text_add(out, ", %d threads", info->threads);
    sbp_text_add(out, ", %s of memory", sbp_format_bytes(bytes, sizeof bytes, (double)info->memory_bytes));
    if (info->available_bytes > 0)
        sbp_text_add(out, ", %s free", sbp_format_bytes(bytes, sizeof bytes, (double)info->available_bytes));
    if (info->allocation_bytes > 0 && info->allocation_bytes < info->memory_bytes)
        sbp_text_add(out, ", at most %s at once",
                     sbp_format_bytes(bytes, sizeof bytes, (double)info->allocation_bytes));
    sbp_text_add(out, "%s\n", info->software ? "; a software driver, never chosen by --backend auto" : "");
}

/* json: the array, NULL: text is wanted. */
static sbp_status list_class(sbp_text *out, sbp_json_writer *json, const sbp_device_class *class,
                             sbp_diag *reason) {
    int32_t count = 1;
    sbp_status status = class->count ? class->count(reason, &count) : SBP_OK;
    if (status == SBP_INTERNAL)
        return status;
    if (status != SBP_OK && !json) {
        sbp_text_add(out, "%s: none (", class->name);
        add_reason(out, reason);
        sbp_text_add(out, ")\n");
    }
    for (int32_t i = 0; i < (status == SBP_OK ? count : 0); i++) {
        sbp_device_info info;
        sbp_diag_clear(reason);
        if (sbp_device_describe(class, i, reason, &info) != SBP_OK) {
            if (json)
                continue;
            sbp_text_add(out, "%s %d: cannot be used (", class->name, i);
            add_reason(out, reason);
            sbp_text_add(out, ")\n");
        } else if (json) {
            write_device(json, class->name, i, &info);
        } else {
            add_line(out, class->name, i, &info);
        }
    }
    return SBP_OK;
}

sbp_status sbp_devices_print(sbp_text *out, bool json, sbp_diag *diag) {
    sbp_json_writer w = sbp_json_writer_on(out);
    w.lines = 1;
    if (json)
        sbp_json_write_array(&w, NULL);
    const sbp_device_class *class;
    for (int32_t i = 0; (class = sbp_device_at(i)) != NULL; i++) {
        sbp_diag *reason = sbp_diag_create();
        if (!reason)
            return sbp_fail(diag, SBP_MACHINE, "out of memory for the list of devices");
        sbp_status status = list_class(out, json ? &w : NULL, class, reason);
        if (status != SBP_OK)
            sbp_fail(diag, status, "%s", sbp_diag_text(reason, SBP_ERROR));
        sbp_diag_destroy(reason);
        SBP_TRY(status);
    }
    if (json) {
        sbp_json_write_end(&w);
        sbp_text_add(out, "\n");
    }
    return SBP_OK;
}
