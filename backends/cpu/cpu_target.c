/* cpu_target.c: what the passes know of the CPU backend. Rates are those of two Zen 4 cores with AVX-512
 * (tests/bench/cpu_kernels); they only rank plans, results do not depend on them. */
#include "backends/cpu/cpu_target.h"

static sbp_status describe(const char *arch, sbp_diag *diag, sbp_target_info *out) {
    if (arch)
        return sbp_fail(
            diag, SBP_USAGE,
            "--arch '%s': the cpu backend has no architectures; it adapts to the machine it runs on", arch);
    *out = (sbp_target_info){.name = "cpu",
                             .alignment_bytes = 64,
                             .max_allocation_bytes = 0,
                             .runtime_bytes = 24 << 20,
                             .attention_partials = 4,
                             .has_copy_queue = true,
                             .shared_memory = true,
                             .default_compute = SBP_F32,
                             .chunk = 512,
                             .head_chunk = 512,
                             .chunk_most = 512,
                             .gemm_flops = 190e9,
                             .attention_flops = 100e9,
                             .memory_bytes = 45e9,
                             .host_link_bytes = 20e9,
                             .gemm_half_rows = 24,
                             .command_seconds = 2e-6};
    out->supports[SBP_F64] = out->supports[SBP_F32] = out->supports[SBP_BF16] = true;
    return SBP_OK;
}

const sbp_target sbp_cpu_target = {.name = "cpu", .describe = describe};
