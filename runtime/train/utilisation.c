/* utilisation.c: useful operations of a step, and what a device could do. */
#include "runtime/train/utilisation.h"

#include <math.h>
#include <string.h>

#include "backends/backends.h"

static const struct {
    const char *name;
    double bf16, fp32;
} peaks[] = {
#define PEAK(name, bf16, fp32) {name, bf16 * 1e12, fp32 * 1e12},
#include "runtime/train/peaks.def"
#undef PEAK
};

double sbp_peak_of(const char *device, const char *dtype) {
    size_t length = strlen(device);
    for (int i = 0; i < SBP_COUNT(peaks); i++) {
        size_t part = strlen(peaks[i].name);
        if (part > length || strcmp(device + length - part, peaks[i].name) != 0 ||
            (part < length && device[length - part - 1] != ' '))
            continue;
        return strcmp(dtype, "bf16") == 0 ? peaks[i].bf16 : strcmp(dtype, "fp32") == 0 ? peaks[i].fp32 : 0;
    }
    return 0;
}

static double number(const sbp_json *object, const char *key) {
    double value = 0;
    if (sbp_json_get_double(NULL, object, key, SBP_JSON_REQUIRED, &value) != SBP_OK)
        return 0;
    return isfinite(value) && value > 0 ? value : 0;
}

/* The rate of products that the plan was made with, where it is more than a table's. */
static double measured_peak(const sbp_json *meta, const char *dtype) {
    const sbp_json *throughput = sbp_json_member(meta, "throughput");
    const char *source = NULL;
    char key[32];
    if (!throughput || strlen(dtype) > 8 ||
        sbp_json_get_string(NULL, throughput, "source", SBP_JSON_REQUIRED, &source) != SBP_OK || !source ||
        strcmp(source, "table") == 0)
        return 0;
    snprintf(key, sizeof key, "%s_flops", dtype);
    return number(throughput, key);
}

sbp_utilisation sbp_utilisation_read(const sbp_plan_info *info, const sbp_json *meta,
                                     const sbp_device_info *device, int64_t ranks) {
    const sbp_json *work = sbp_json_member(sbp_json_member(meta, "estimate"), "useful_flops"),
                   *attention = sbp_json_member(work, "attention");
    sbp_utilisation u = {.every_row = !info->meta.counted, .ranks = ranks};
    if (!work || info->tf32)
        return u;
    u.measured = sbp_backend_is_a(info->meta.backend, SBP_BACKEND_HOST);
    u.peak = u.measured ? measured_peak(meta, info->meta.dtype) : sbp_peak_of(device->name, info->meta.dtype);
    u.work.per_row = number(work, "per_token");
    u.per_label = number(work, "per_label");
    for (int32_t i = 0; attention && i < attention->count && i < SBP_MAX_WINDOWS; i++) {
        const sbp_json *item = &attention->items[i];
        u.work.attention[i].window = (int64_t)number(item, "window");
        u.work.attention[i].per_pair = number(item, "per_pair");
        u.work.attention_count++;
    }
    return u;
}

double sbp_utilisation_of(const sbp_utilisation *u, const sbp_packer *packer, const sbp_dataset *data,
                          double seconds) {
    if (!(u->peak > 0) || !(seconds > 0) || packer->run_rows != packer->rows)
        return NAN;
    double work = u->per_label * (double)(u->every_row ? packer->rows : packer->labels);
    for (int32_t p = 0; p < packer->part_count; p++)
        for (int64_t i = 0; i < packer->parts[p].count; i++)
            work += sbp_pack_rows_work(&u->work, 0, data->docs[packer->parts[p].docs[i]].count);
    return work / (seconds * u->peak * (double)u->ranks);
}
