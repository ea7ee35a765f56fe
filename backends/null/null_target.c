/* null_target.c: the target of a new backend: what the passes must know of its devices, as plain data.
 * Numbers here are those of no device: put yours in their place. The rates rank plans, they change no result;
 * `sbpc compile --throughput measured` finds those of a machine by the device alone. */
#include "backends/target.h"

static sbp_status describe(const char *arch, sbp_diag *diag, sbp_target_info *out) {
    if (arch) /* else, where plans have code for certain devices alone: kept in out->archs */
        return sbp_fail(diag, SBP_USAGE, "--arch '%s': the null backend has no architectures; leave it out",
                        arch);
    sbp_warn(diag,
             "backend null runs no command yet: its plans are for looking at, sbprun stops at the first step "
             "(backends/README.md)");
    *out = (sbp_target_info){
        .name = "null",
        .alignment_bytes = 256,     /* of every buffer */
        .runtime_bytes = 64 << 20,  /* of the driver and of kernels, beside the arena */
        .has_copy_queue = true,     /* copies run beside kernels */
        .shared_memory = false,     /* the device has a memory of its own */
        .default_compute = SBP_F32, /* of --dtype */
        .chunk = 1024,              /* rows at which matmuls are near their full rate */
        .head_chunk = 512,          /* the same, of logits */
        .chunk_most = 4096,         /* rows from which on they are no faster */
        .throughput = {.matmul = {[SBP_F32] = 1e12, [SBP_BF16] = 2e12}, /* operations per second */
                       .attention = {[SBP_F32] = 5e11, [SBP_BF16] = 1e12},
                       .half_rows = 128, /* rows at which a matmul has half of its rate */
                       .memory = 100e9,  /* bytes per second: of kernels .. */
                       .row_ops = 1e12,
                       .in = 10e9, /* .. and of copies to the device, back .. */
                       .out = 10e9,
                       .host = 20e9,
                       .host_ops = 20e9,
                       .disk_read = 1e9,
                       .disk_write = 1e9,
                       .command_seconds = 20e-6}};
    out->supports[SBP_F32] = true; /* compute types */
    return SBP_OK;
}

/* .compile makes device code of a finished program, which travels in the plan and comes back as options.code
 * of the device; without it the device's kernels are its own. */
const sbp_target sbp_null_target = {.name = "null", .describe = describe};
