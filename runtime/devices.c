/* devices.c: the table of devices, and the machine's memory. */
#include "runtime/devices.h"

#include <stdio.h>
#include <string.h>

#include "backends/cpu/cpu_device.h"
#include "ir/io/json.h"

static const sbp_device_class *const classes[] = {&sbp_cpu_device};

const sbp_device_class *sbp_device_find(const char *backend) {
    for (int i = 0; i < SBP_COUNT(classes); i++)
        if (strcmp(classes[i]->name, backend) == 0)
            return classes[i];
    return NULL;
}

sbp_status sbp_devices_print(sbp_text *out, bool json, sbp_diag *diag) {
    char bytes[32];
    if (json)
        sbp_text_add(out, "[");
    for (int i = 0; i < SBP_COUNT(classes); i++) {
        sbp_device_options options = {0};
        sbp_device *device;
        sbp_device_info info;
        SBP_TRY(classes[i]->create(&options, diag, &device));
        classes[i]->info(device, &info);
        classes[i]->destroy(device);
        if (json) {
            sbp_text_add(out, "%s{\"backend\": \"%s\", \"name\": ", i ? ", " : "", classes[i]->name);
            sbp_json_add_string(out, info.name, strlen(info.name));
            sbp_text_add(out, ", \"memory_bytes\": %lld, \"threads\": %d}", (long long)info.memory_bytes,
                         info.threads);
        } else {
            sbp_text_add(out, "%s: %s, %d threads, %s of memory\n", classes[i]->name, info.name, info.threads,
                         sbp_format_bytes(bytes, sizeof bytes, (double)info.memory_bytes));
        }
    }
    if (json)
        sbp_text_add(out, "]\n");
    return SBP_OK;
}

static int64_t read_number(const char *path) {
    long long value = 0;
    FILE *file = fopen(path, "re");
    if (!file)
        return 0;
    if (fscanf(file, "%lld", &value) != 1) /* "max" */
        value = 0;
    fclose(file);
    return value;
}

int64_t sbp_memory_available(void) {
    char line[256];
    long long kib = 0;
    FILE *file = fopen("/proc/meminfo", "re");
    while (file && kib == 0 && fgets(line, sizeof line, file))
        if (sscanf(line, "MemAvailable: %lld kB", &kib) != 1)
            kib = 0;
    if (file)
        fclose(file);
    int64_t available = (int64_t)kib * 1024;
    int64_t limit = read_number("/sys/fs/cgroup/memory.max"),
            used = read_number("/sys/fs/cgroup/memory.current");
    if (limit > 0 && limit - used < available)
        available = limit > used ? limit - used : 0;
    return available;
}
