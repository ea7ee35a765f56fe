/* cuda_device.c: the CUDA device as backends/device.h wants it. */
#include "backends/cuda/cuda_device.h"
#include "backends/composite/composite.h"
#include "backends/cpu/cpu_cores.h"
#include "backends/cuda/device/cuda.h"
#include "backends/cuda/device/transport.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void cuda_destroy(sbp_device *base) {
    cuda_device *d = (cuda_device *)base;
    if (d->context) {
        cuda_net_leave(d);
        cuda_device_idle(d);
        cuda_blas_destroy(d);
        cuda_kernels_destroy(d);
        cuda_memory_destroy(d);
    }
    cuda_device_close(d);
    free(d);
}

static sbp_status cuda_create(const sbp_device_options *options, sbp_diag *diag, sbp_device **out) {
    *out = NULL;
    cuda_device *d = sbp_malloc(sizeof *d);
    if (!d)
        return sbp_fail(diag, SBP_MACHINE, "out of memory for the CUDA device");
    memset(d, 0, sizeof *d);
    d->base.class = &cuda_backend_class;
    if (options) {
        d->code = options->code;
        d->code_bytes = options->code_bytes;
        d->blas.tf32 = options->tf32;
        d->native_sums = options->native_sums;
        d->ranks = options->ranks;
    }
    sbp_status status = cuda_device_open(d, options, diag);
    if (status != SBP_OK)
        cuda_destroy(&d->base);
    else
        *out = &d->base;
    return status;
}

static sbp_status cuda_count(sbp_diag *diag, int32_t *out) {
    cuda_api api;
    *out = 0;
    SBP_TRY(cuda_api_open(&api, diag));
    sbp_status status = cuda_api_count(&api, diag, out);
    cuda_api_close(&api);
    return status;
}

/* What the driver says is used is of all processes: ours is what is gone since we began. */
static void cuda_info(sbp_device *base, sbp_device_info *out) {
    cuda_device *d = (cuda_device *)base;
    const cuda_physical *p = &d->physical;
    size_t free_bytes, total_bytes;
    *out = (sbp_device_info){.memory_bytes = p->memory_bytes};
    snprintf(out->name, sizeof out->name, "%.80s (sm_%d, CUDA %d.%d)", p->name, p->capability,
             d->api.version / 1000, d->api.version % 1000 / 10);
    out->net_sent_bytes = cuda_net_sent_bytes(d, &out->net_away_bytes);
    if (cuda_enter(d, NULL) != SBP_OK || d->api.calls.cuMemGetInfo(&free_bytes, &total_bytes) != CUDA_OK)
        return;
    out->available_bytes = (int64_t)free_bytes;
    out->used_bytes = d->free_bytes > (int64_t)free_bytes ? d->free_bytes - (int64_t)free_bytes : 0;
}

/* ---- running ---------------------------------------------------------------------------------------- */

static sbp_status cuda_load(sbp_device *base, const sbp_program *program, sbp_diag *diag) {
    cuda_device *d = (cuda_device *)base;
    if (d->program)
        return sbp_fail(diag, SBP_INTERNAL, "cuda: a second program on the same device");
    SBP_TRY(cuda_enter(d, diag));
    d->program = program;
    SBP_TRY(cuda_arenas_create(d, diag));
    SBP_TRY(cuda_kernels_create(d, diag));
    return cuda_blas_create(d, diag);
}

static sbp_status cuda_wait(sbp_device *base, sbp_diag *diag) {
    return cuda_wait_all((cuda_device *)base, diag);
}

static sbp_status cuda_rendezvous(sbp_device *base, bool *own, sbp_diag *diag) {
    return cuda_net_rendezvous((cuda_device *)base, own, diag);
}

static sbp_status tune_open(sbp_device *base, const char *name, const void *text, int64_t bytes,
                            int32_t *count, sbp_diag *diag) {
    return cuda_tune_open((cuda_device *)composite_backend(base), name, text, bytes, count, diag);
}

static sbp_status tune(sbp_device *base, const sbp_dispatch *dispatch, sbp_diag *diag) {
    return cuda_tune((cuda_device *)composite_backend(base), dispatch, diag);
}

static sbp_status tune_text(sbp_device *base, sbp_text *out, int32_t *count, sbp_diag *diag) {
    return cuda_tune_text((cuda_device *)composite_backend(base), out, count, diag);
}

static void *cuda_map(sbp_device *base, sbp_space space, int64_t offset) {
    cuda_device *d = (cuda_device *)base;
    if (space != SBP_HOST || !d->host || cuda_memory_check(d, space, offset, 0, NULL) != SBP_OK ||
        cuda_wait_all(d, NULL) != SBP_OK)
        return NULL;
    return d->host + offset;
}

static void cuda_libraries(void (*visit)(void *user, const sbp_device_library *library), void *user) {
    for (int i = 0; i < SBP_CUDA_LIBRARIES; i++) {
        const sbp_cuda_library_id id = (sbp_cuda_library_id)i;
        const char *package = sbp_cuda_library_package(id);
        char path[sizeof((sbp_cuda_library *)NULL)->path],
            brings[100] = "the driver of NVIDIA, version 580 or later";
        sbp_cuda_library library;
        bool found = sbp_cuda_library_open(id, NULL, &library) == SBP_OK;
        if (*package)
            snprintf(brings, sizeof brings, "pip install %s", package);
        snprintf(path, sizeof path, "%s", library.path);
        if (found)
            sbp_cuda_library_keep(&library);
        sbp_cuda_library_close(&library);
        const sbp_device_library seen = {.name = sbp_cuda_library_file(id),
                                         .what = sbp_cuda_library_what(id),
                                         .path = found ? path : NULL,
                                         .brings = brings};
        visit(user, &seen);
    }
}

const sbp_device_class cuda_backend_class = {.name = "cuda",
                                             .count = cuda_count,
                                             .create = cuda_create,
                                             .destroy = cuda_destroy,
                                             .info = cuda_info,
                                             .load = cuda_load,
                                             .write = cuda_memory_write,
                                             .read = cuda_memory_read,
                                             .submit = cuda_command_submit,
                                             .wait = cuda_wait,
                                             .map = cuda_map,
                                             .rendezvous = cuda_rendezvous};

static sbp_status create_composite(const sbp_device_options *options, sbp_diag *diag, sbp_device **out) {
    const composite_parts parts = {.name = "cuda", .backend = &cuda_backend_class, .cores = &cpu_cores};
    return composite_create(&parts, &sbp_cuda_device, options, diag, out);
}

const sbp_device_class sbp_cuda_device = {.name = "cuda",
                                          .count = cuda_count,
                                          .create = create_composite,
                                          .transport = &cuda_transport,
                                          .rendezvous = composite_rendezvous,
                                          .tune_open = tune_open,
                                          .tune = tune,
                                          .tune_text = tune_text,
                                          .libraries = cuda_libraries,
                                          COMPOSITE_CLASS};
