/* core.c: what the CPU device and the cores of queue host share: arenas, prepared kernels, resolving of
 * operands. */
#include "backends/cpu/cpu.h"
#include "backends/cpu/rows.h"
#include "ir/base/machine.h"
#include "ir/program/traits.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern const cpu_kernels cpu_kernels_base;
#if defined(__x86_64__)
extern const cpu_kernels cpu_kernels_v3, cpu_kernels_v4, cpu_kernels_v4_bf16;
#endif

/* The best that this machine has. SBP_CPU_ISA=base|v3|v4 in the environment asks for less, for tests. */
static const cpu_kernels *choose_kernels(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    bool v3 =
        __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
    bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
              __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
              __builtin_cpu_supports("avx512vl");
    const struct {
        const cpu_kernels *kernels;
        bool there;
    } sets[] = {{&cpu_kernels_v4_bf16, v4 && __builtin_cpu_supports("avx512bf16")},
                {&cpu_kernels_v4, v4},
                {&cpu_kernels_v3, v3}};
    const char *limit = getenv("SBP_CPU_ISA");
    bool asked = !limit;
    for (int i = 0; i < SBP_COUNT(sets); i++) { /* the best there is, from the one that is asked for on */
        asked |= limit && strcmp(limit, sets[i].kernels->name) == 0;
        if (asked && sets[i].there)
            return sets[i].kernels;
    }
#endif
    return &cpu_kernels_base;
}

static void cpu_lane_free(cpu_lane *lane) {
    cpu_pool_destroy(lane->pool);
    cpu_unmap_pages(lane->shared, CPU_SHARED_BYTES);
    *lane = (cpu_lane){0};
}

static bool cpu_lane_init(cpu_lane *lane, int threads) {
    lane->shared = cpu_map_pages(CPU_SHARED_BYTES);
    lane->pool = cpu_pool_create(threads, CPU_SCRATCH_BYTES);
    if (lane->shared && lane->pool)
        return true;
    cpu_lane_free(lane);
    return false;
}

sbp_status cpu_core_create(cpu_core *core, const sbp_device_class *class, int32_t threads, sbp_diag *diag) {
    char need[32], limit[100];
    core->base.class = class;
    core->kernels = choose_kernels();
    core->threads = threads > 0 ? threads : sbp_machine_cores();
    if (core->threads > 1024)
        return sbp_fail(diag, SBP_USAGE, "%d threads: at most 1024", core->threads);
    if (!cpu_lane_init(&core->lane, core->threads))
        return sbp_fail(diag, SBP_MACHINE,
                        "cannot start %d threads with their stacks and %s of memory each: %s", core->threads,
                        sbp_format_bytes(need, sizeof need, CPU_SCRATCH_BYTES),
                        sbp_machine_memory_text(limit, sizeof limit));
    return SBP_OK;
}

void cpu_core_destroy(cpu_core *core) {
    cpu_lane_free(&core->lane);
    for (int s = 0; s < SBP_SPACE_COUNT; s++)
        cpu_unmap_pages(core->arena[s], core->arena_bytes[s]);
    for (int32_t i = 0; i < core->plan_count; i++)
        cpu_row_plan_destroy(core->plans[i]);
    free(core->plans);
}

void cpu_core_info(const cpu_core *core, sbp_device_info *out) {
    char model[96] = "unknown processor", line[256];
    *out = (sbp_device_info){0};
    FILE *file = fopen("/proc/cpuinfo", "r");
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "model name : %95[^\n]", model) == 1)
            break;
    if (file)
        fclose(file);
    snprintf(out->name, sizeof out->name, "%s (%s)", model, core->kernels->name);
    out->memory_bytes = sbp_machine_memory();
    out->used_bytes = cpu_memory_peak();
    out->threads = core->threads;
}

static sbp_status map_arena(cpu_core *core, sbp_space space, int64_t bytes, sbp_diag *diag) {
    int64_t most = sbp_machine_memory();
    char need[32], limit[100];
    if (bytes == 0)
        return SBP_OK;
    if (most == 0 || bytes <= most)
        core->arena[space] = cpu_map_pages((size_t)bytes);
    if (!core->arena[space])
        return sbp_fail(diag, SBP_MACHINE, "the plan needs %s of memory: %s",
                        sbp_format_bytes(need, sizeof need, (double)bytes),
                        sbp_machine_memory_text(limit, sizeof limit));
    core->arena_bytes[space] = (size_t)bytes;
    cpu_touch_pages(core->lane.pool, core->arena[space], (size_t)bytes);
    return SBP_OK;
}

sbp_status cpu_core_load(cpu_core *core, const sbp_program *program, sbp_diag *diag) {
    if (core->program)
        return sbp_fail(diag, SBP_INTERNAL, "cpu: a second program on the same device");
    SBP_TRY(map_arena(core, SBP_DEVICE, program->arena_bytes[SBP_DEVICE], diag));
    SBP_TRY(map_arena(core, SBP_HOST, program->arena_bytes[SBP_HOST], diag));
    return cpu_core_prepare(core, program, diag);
}

sbp_status cpu_core_prepare(cpu_core *core, const sbp_program *program, sbp_diag *diag) {
    char need[32], limit[100];
    core->program = program;
    core->plans = sbp_malloc(((size_t)program->kernel_count + 1) * sizeof(cpu_row_plan *));
    if (!core->plans)
        return sbp_fail(diag, SBP_MACHINE, "out of memory for the threads of the CPU device");
    core->scratch_bytes = CPU_SCRATCH_BYTES;
    for (int32_t i = 0; i < program->kernel_count; i++) {
        SBP_TRY(cpu_row_plan_create(program->kernels[i], diag, &core->plans[i]));
        core->plan_count = i + 1;
        if ((size_t)core->plans[i]->scratch_bytes > core->scratch_bytes)
            core->scratch_bytes = (size_t)core->plans[i]->scratch_bytes;
    }
    if (!cpu_pool_reserve(core->lane.pool, core->scratch_bytes))
        return sbp_fail(diag, SBP_MACHINE, "out of memory: %s of scratch memory per thread; %s",
                        sbp_format_bytes(need, sizeof need, (double)core->scratch_bytes),
                        sbp_machine_memory_text(limit, sizeof limit));
    return SBP_OK;
}

static sbp_status check_range(const cpu_core *core, sbp_space space, int64_t offset, int64_t bytes,
                              sbp_diag *diag) {
    if ((unsigned)space >= SBP_SPACE_COUNT || offset < 0 || bytes < 0 ||
        offset > (int64_t)core->arena_bytes[space] || bytes > (int64_t)core->arena_bytes[space] - offset)
        return sbp_fail(diag, SBP_INTERNAL, "cpu: bytes %lld to %lld of an arena of %lld", (long long)offset,
                        (long long)(offset + bytes),
                        (unsigned)space < SBP_SPACE_COUNT ? (long long)core->arena_bytes[space] : 0);
    return SBP_OK;
}

sbp_status cpu_core_write(const cpu_core *core, sbp_space space, int64_t offset, const void *data,
                          int64_t bytes, sbp_diag *diag) {
    SBP_TRY(check_range(core, space, offset, bytes, diag));
    if (bytes > 0)
        memcpy(core->arena[space] + offset, data, (size_t)bytes);
    return SBP_OK;
}

sbp_status cpu_core_read(const cpu_core *core, sbp_space space, int64_t offset, void *data, int64_t bytes,
                         sbp_diag *diag) {
    SBP_TRY(check_range(core, space, offset, bytes, diag));
    if (bytes > 0)
        memcpy(data, core->arena[space] + offset, (size_t)bytes);
    return SBP_OK;
}

static sbp_status resolve_span(const cpu_core *core, const sbp_span *span, cpu_view *out, sbp_diag *diag) {
    *out = (cpu_view){0};
    if (span->space == SBP_SPACE_COUNT)
        return SBP_OK;
    int64_t bytes = 0, before = 0;
    if (span->rows < 0 || span->cols < 0 || span->stride < 0 || (unsigned)span->dtype >= SBP_DTYPE_COUNT ||
        (span->rows > 1 && span->stride < span->cols))
        return sbp_fail(diag, SBP_INTERNAL, "cpu: an operand of %lld x %lld, stride %lld",
                        (long long)span->rows, (long long)span->cols, (long long)span->stride);
    if (span->rows > 0 &&
        (!sbp_mul_i64(span->rows - 1, span->stride, &before) || !sbp_add_i64(before, span->cols, &bytes) ||
         !sbp_mul_i64(bytes, sbp_dtype_bytes(span->dtype), &bytes)))
        return sbp_fail(diag, SBP_INTERNAL, "cpu: the size of an operand overflows");
    char *data;
    if (core->address && span->space == SBP_HOST) {
        data = core->address(core->address_user, span->offset, bytes);
        if (!data)
            return sbp_fail(diag, SBP_INTERNAL, "cpu: bytes %lld to %lld of the host arena",
                            (long long)span->offset, (long long)(span->offset + bytes));
    } else {
        SBP_TRY(check_range(core, span->space, span->offset, bytes, diag));
        data = core->arena[span->space] + span->offset;
    }
    *out = (cpu_view){.data = data,
                      .dtype = span->dtype,
                      .rows = span->rows,
                      .cols = span->cols,
                      .stride = span->stride,
                      .first_row = span->first_row};
    return SBP_OK;
}

sbp_status cpu_core_resolve(const cpu_core *core, const sbp_dispatch *dispatch, cpu_command *out,
                            sbp_diag *diag) {
    const sbp_command *command = dispatch->command;
    const sbp_command_traits *traits = sbp_command_traits_of(command->kind);
    char text[SBP_CPU_LIMIT_TEXT];
    *out = (cpu_command){.command = command, .rows = dispatch->rows, .row0 = dispatch->row0};
    if (dispatch->span_count < 0 || dispatch->span_count > SBP_MAX_COMMAND_OPERANDS)
        return sbp_fail(diag, SBP_INTERNAL, "cpu: a command of %d operands", dispatch->span_count);
    out->view_count = dispatch->span_count;
    for (int32_t i = 0; i < dispatch->span_count; i++)
        SBP_TRY(resolve_span(core, &dispatch->spans[i], &out->views[i], diag));
    if (traits->keyed == SBP_KEYED_KERNEL) {
        if (command->kernel < 0 || command->kernel >= core->plan_count || dispatch->rows < 0 ||
            !sbp_rowkernel_rows_fit(dispatch->row0, dispatch->rows) ||
            core->plans[command->kernel]->kernel->operand_count != dispatch->span_count)
            return sbp_fail(diag, SBP_INTERNAL, "cpu: row: no kernel number %d, or rows beyond 2^32",
                            command->kernel);
        out->plan = core->plans[command->kernel];
        for (int32_t i = 0; i < out->plan->kernel->scalar_count; i++)
            out->scalars[i] = dispatch->scalars[i];
    }
    if (sbp_cpu_beyond_limits(command, out->views[traits->item_operand].cols, text))
        return sbp_fail(diag, SBP_MACHINE, "cpu: %s", text);
    return SBP_OK;
}

void cpu_core_run(const cpu_core *core, cpu_lane *lane, const cpu_command *command) {
    core->kernels->run[command->command->kind](lane, command);
}
