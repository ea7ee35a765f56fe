/* probe.c: the devices as candidates for --backend auto. */
#include "backends/cuda/cuda_probe.h"
#include "backends/cuda/device/cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OLDEST_CAPABILITY = 80 }; /* that kernels are written for */

static void describe(const cuda_physical *p, sbp_candidate *out) {
    *out = (sbp_candidate){.fp64 = true, .free_bytes = p->memory_bytes};
    snprintf(out->name, sizeof out->name, "%.100s", p->name);
    snprintf(out->arch, sizeof out->arch, "sm_%d%s", (int)p->capability, p->capability == 90 ? "a" : "");
    if (p->capability < OLDEST_CAPABILITY)
        snprintf(out->missing, sizeof out->missing,
                 "which is of compute capability %d.%d; %d.%d is the least", p->capability / 10,
                 p->capability % 10, OLDEST_CAPABILITY / 10, OLDEST_CAPABILITY % 10);
}

static sbp_status list(const cuda_api *api, sbp_diag *diag, sbp_candidate **out, int32_t *count) {
    SBP_TRY(cuda_api_count(api, diag, count));
    *out = sbp_malloc((size_t)*count * sizeof **out);
    if (!*out)
        return sbp_fail(diag, SBP_MACHINE, "out of memory");
    for (int32_t i = 0; i < *count; i++) {
        cuda_physical physical;
        SBP_TRY(cuda_physical_read(api, i, diag, &physical));
        describe(&physical, &(*out)[i]);
    }
    return SBP_OK;
}

sbp_status sbp_cuda_probe(sbp_diag *diag, sbp_candidate **out, int32_t *count) {
    cuda_api api;
    *out = NULL;
    *count = 0;
    SBP_TRY(cuda_api_open(&api, diag));
    sbp_status status = list(&api, diag, out, count);
    if (status != SBP_OK) {
        free(*out);
        *out = NULL;
        *count = 0;
    }
    cuda_api_close(&api);
    return status;
}
