/* utilisation.h: model FLOP utilisation of a step: the operations that it cannot do without (which the plan
 * has, passes/planner/useful.h), nothing computed again, divided by its seconds and by what the device
 * could do at most:
 *
 *     tokens * per_token + labels * per_label + sum over documents and windows of pairs * per_pair
 *     ----------------------------------------------------------------------------------------------
 *                                  seconds * peak * ranks
 *
 * The peak is what a GPU's maker says (peaks.def), or the rate of products that was measured on a CPU
 * (--throughput measured, or a file). Where it is not known, there is no utilisation: neither with --tf32,
 * nor where prompts are run once for several answers. */
#ifndef SBP_RUNTIME_TRAIN_UTILISATION_H
#define SBP_RUNTIME_TRAIN_UTILISATION_H

#include "backends/device.h"
#include "runtime/data/pack.h"
#include "runtime/run/plan_info.h"

typedef struct sbp_utilisation {
    double peak;        /* of a device, operations a second; 0: unknown */
    bool measured;      /* the peak: on this machine */
    bool every_row;     /* the head computes all rows, not those with labels alone */
    sbp_pack_work work; /* per_row: of a token */
    double per_label;
    int64_t ranks;
} sbp_utilisation;

/* What a maker says of a device, by its name, for products of this type; 0: nothing is known. */
double sbp_peak_of(const char *device, const char *dtype);
/* meta: of the plan. */
sbp_utilisation sbp_utilisation_read(const sbp_plan_info *info, const sbp_json *meta,
                                     const sbp_device_info *device, int64_t ranks);
/* How much of the device's peak the step that was packed last has reached, from 0 to 1; NaN: unknown. */
double sbp_utilisation_of(const sbp_utilisation *utilisation, const sbp_packer *packer,
                          const sbp_dataset *data, double seconds);

#endif
