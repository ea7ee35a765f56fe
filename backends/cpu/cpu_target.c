/* cpu_target.c: what the passes know of the CPU backend. Throughput are those of two Zen 4 cores with AVX-512
 * (tests/bench/cpu_kernels: products 100 to 110 GFLOP/s a core from 512 rows on and 3 to 9 % less at 128,
 * attention 91 to 101 both ways, a row kernel full of exponentials 16e9 operations as sbp_rowkernel_ops
 * counts them); with them the cost model is within 7 % of the fp32 steps that tests/bench/cpu_step measured.
 * Those of bf16 are fp32's times what two Zen 5 cores showed between them: 1.9 and 1.65. They only rank
 * plans, results do not depend on them; `sbpc compile --throughput measured` has those of the machine at
 * hand.
 *
 * Chunks: products are at full rate from 512 rows on; more rows, up to 2,048, spare packing weights again and
 * are taken where they cost no memory. */
#include "backends/cpu/cpu_target.h"

static sbp_status describe(const char *arch, sbp_diag *diag, sbp_target_info *out) {
    if (arch)
        return sbp_fail(
            diag, SBP_USAGE,
            "--arch '%s': the cpu backend has no architectures; it adapts to the machine it runs on", arch);
    *out = (sbp_target_info){.name = "cpu",
                             .alignment_bytes = 64,
                             .max_allocation_bytes = 0,
                             .runtime_bytes = SBP_CPU_RUNTIME_BYTES,
                             .footprint = sbp_cpu_footprint,
                             .attention_partials = 4,
                             .has_copy_queue = true,
                             .shared_memory = true,
                             .default_compute = SBP_F32,
                             .chunk = 512,
                             .head_chunk = 512,
                             .chunk_most = SBP_CPU_CHUNK_MOST,
                             .throughput = {.matmul = {[SBP_F32] = 200e9, [SBP_BF16] = 380e9},
                                            .attention = {[SBP_F32] = 190e9, [SBP_BF16] = 310e9},
                                            .half_rows = 20,
                                            .memory = 20e9,
                                            .row_ops = 16e9,
                                            .in = 20e9,
                                            .out = 20e9,
                                            .host = 20e9,
                                            .host_ops = 16e9,
                                            .disk_read = 1e9,
                                            .disk_write = 1e9,
                                            .command_seconds = 2e-6}};
    out->supports[SBP_F64] = out->supports[SBP_F32] = out->supports[SBP_BF16] = true;
    return SBP_OK;
}

const sbp_target sbp_cpu_target = {.name = "cpu", .describe = describe};
