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
#include "backends/cpu/limits.h"
#include "ir/program/traits.h"

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

static sbp_status check_command(const sbp_program *program, const sbp_command *c, sbp_diag *diag) {
    int32_t place = sbp_command_traits_of(c->kind)->item_operand;
    char text[SBP_CPU_LIMIT_TEXT];
    const sbp_view *view = place < c->view_count ? &c->views[place] : NULL;
    int64_t cols = !view            ? 0
                   : view->cols > 0 ? view->cols
                   : view->ref >= 0 ? program->buffers[view->ref].cols
                                    : 0;
    if (!sbp_cpu_beyond_limits(c, cols, text))
        return SBP_OK;
    return sbp_fail(diag, SBP_INPUT, "--backend cpu: %s; use another --backend, or a smaller model", text);
}

static sbp_status check_body(const sbp_program *program, const sbp_body *body, sbp_diag *diag) {
    for (int32_t i = 0; i < body->count; i++) {
        const sbp_node *node = &body->nodes[i];
        if (node->kind == SBP_NODE_LOOP)
            SBP_TRY(check_body(program, &node->u.loop->body, diag));
        else if (node->kind == SBP_NODE_COMMAND)
            SBP_TRY(check_command(program, node->u.command, diag));
    }
    return SBP_OK;
}

/* No code is made: kernels are in the program that runs them. */
static sbp_status compile(sbp_arena *arena, sbp_diag *diag, const sbp_program *program, const void **data,
                          int64_t *bytes) {
    (void)arena;
    *data = NULL;
    *bytes = 0;
    for (int32_t f = 0; f < program->function_count; f++)
        SBP_TRY(check_body(program, &program->functions[f].body, diag));
    for (int32_t e = 0; e < program->entry_count; e++)
        SBP_TRY(check_body(program, &program->entries[e].body, diag));
    return SBP_OK;
}

const sbp_target sbp_cpu_target = {.name = "cpu", .describe = describe, .compile = compile};
