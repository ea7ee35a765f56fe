/* vulkan_target.c: what the passes know of the Vulkan backend, and its device code. */
#include "backends/vulkan/vulkan_target.h"

#include "backends/vulkan/target/shaders.h"
#include "backends/vulkan/target/software.h"

#include <stdio.h>
#include <string.h>

enum { SOFTWARE_CHUNK = 64 };

static double delta_rate(const sbp_target_info *info, const sbp_delta_attrs *attrs, sbp_dtype dtype,
                         bool backward) {
    (void)attrs, (void)backward;
    return sbp_throughput_scalars(&info->throughput, dtype);
}

/* Modules carry a variant for every kind of device, and the device picks (abi.h): --arch only says that the
 * plan will run on a software driver, where chunks are short enough for states of 128 columns. Throughput are
 * those of a middling discrete GPU; they only rank plans, results do not depend on them. */
static sbp_status describe(const char *arch, sbp_diag *diag, sbp_target_info *out) {
    bool software = arch && strcmp(arch, SBP_VULKAN_SOFTWARE) == 0;
    if (arch && !software)
        return sbp_fail(diag, SBP_USAGE,
                        "--arch '%s': the vulkan backend has no architectures but " SBP_VULKAN_SOFTWARE
                        ", of software drivers; its kernels run on any device",
                        arch);
    *out = (sbp_target_info){.name = "vulkan",
                             .alignment_bytes = 256,
                             .max_allocation_bytes = 0,
                             .runtime_bytes = 64 << 20,
                             .attention_partials = 0,
                             .delta_columns = sbp_gpu_delta_columns,
                             .delta_more_rows = SBP_GPU_DELTA_MORE_ROWS,
                             .delta_rate = delta_rate,
                             .own_expert_products = true,
                             .has_copy_queue = true,
                             .shared_memory = false,
                             .default_compute = SBP_F32,
                             .chunk = 1024,
                             .head_chunk = 512,
                             .chunk_most = 4096,
                             .throughput = {.matmul = {[SBP_F32] = 5e12, [SBP_BF16] = 5e12},
                                            .attention = {[SBP_F32] = 2e12, [SBP_BF16] = 2e12},
                                            .half_rows = 128,
                                            .memory = 300e9,
                                            .row_ops = 2e12,
                                            .in = 12e9,
                                            .out = 12e9,
                                            .host = 20e9,
                                            .host_ops = 20e9,
                                            .disk_read = 1e9,
                                            .disk_write = 1e9,
                                            .command_seconds = 20e-6}};
    out->supports[SBP_F64] = out->supports[SBP_F32] = out->supports[SBP_BF16] = true;
    if (software) {
        snprintf(out->archs, sizeof out->archs, "%s", arch);
        out->driver = "a Vulkan driver";
        out->chunk = out->head_chunk = out->chunk_most = SOFTWARE_CHUNK;
    }
    return SBP_OK;
}

/* ---- every module that a program needs ------------------------------------------------------------- */

typedef struct collector {
    sbp_arena *arena;
    sbp_diag *diag;
    const sbp_program *program;
    sbp_vulkan_compiler *compiler;
    bool wide;     /* in fp64: there are no modules without */
    sbp_map names; /* modules made so far */
    sbp_vulkan_module *modules;
    int32_t count, capacity;
    const void *data;
    int64_t bytes;
} collector;

/* A plan in fp64: what is kept over rows, or trained, is. */
static bool is_wide(const sbp_program *program) {
    for (int32_t b = 0; b < program->buffer_count; b++)
        switch (program->buffers[b].dtype == SBP_F64 ? program->buffers[b].role : SBP_ROLE_RESULT) {
        case SBP_ROLE_PARAM:
        case SBP_ROLE_GRAD:
        case SBP_ROLE_STATE:
        case SBP_ROLE_ACCUM:
        case SBP_ROLE_STREAM:
        case SBP_ROLE_CARRY:
            return true;
        default:
            break;
        }
    return false;
}

static sbp_status collect_module(collector *c, const sbp_command *command, const sbp_dtype *dtypes,
                                 const sbp_gpu_key *key) {
    sbp_vulkan_shader shader;
    sbp_vulkan_module module = {0};
    char name[SBP_GPU_NAME];
    sbp_vulkan_key_text(key, name);
    if (sbp_map_get(&c->names, name) >= 0)
        return SBP_OK;
    SBP_TRY(sbp_vulkan_shader_make(c->arena, c->diag, c->program, command, dtypes, key, &shader));
    SBP_TRY(sbp_vulkan_compiler_run(c->compiler, c->arena, c->diag, &shader, &module));
    sbp_map_set(&c->names, sbp_arena_strdup(c->arena, name), c->count);
    SBP_PUSH(c->arena, c->modules, c->count, c->capacity, module);
    return SBP_OK;
}

static sbp_status collect_command(void *user, const sbp_command *command, const sbp_dtype *dtypes) {
    collector *c = user;
    sbp_gpu_key keys[SBP_VULKAN_STEPS * SBP_VULKAN_VARIANTS];
    int32_t count = sbp_vulkan_keys(command, dtypes, keys);
    const sbp_rowkernel *kernel = sbp_command_kernel(c->program, command);
    bool twice = !c->wide && sbp_vulkan_uses_f64(command, kernel);
    for (int32_t i = 0; i < count; i++) {
        SBP_TRY(collect_module(c, command, dtypes, &keys[i]));
        keys[i].no64 = twice;
        if (twice)
            SBP_TRY(collect_module(c, command, dtypes, &keys[i]));
    }
    return SBP_OK;
}

static sbp_status collect(void *user) {
    collector *c = user;
    sbp_map_init(&c->names, c->arena);
    c->wide = is_wide(c->program);
    SBP_TRY(sbp_gpu_each_command(c->program, collect_command, c));
    sbp_vulkan_modules_write(c->arena, c->modules, c->count, &c->data, &c->bytes);
    return SBP_OK;
}

static sbp_status compile(sbp_arena *arena, sbp_diag *diag, const sbp_program *program, const void **data,
                          int64_t *bytes) {
    collector c = {.arena = arena, .diag = diag, .program = program};
    if (strcmp(program->target, "vulkan:" SBP_VULKAN_SOFTWARE) == 0)
        SBP_TRY(sbp_vulkan_check_software(program, diag));
    c.compiler = sbp_vulkan_compiler_create();
    if (!c.compiler)
        return sbp_fail(diag, SBP_MACHINE, "out of memory for compiling shaders");
    sbp_status status = sbp_guard(arena, diag, collect, &c);
    sbp_vulkan_compiler_destroy(c.compiler);
    *data = c.data;
    *bytes = c.bytes;
    return status;
}

const sbp_target sbp_vulkan_target = {.name = "vulkan", .describe = describe, .compile = compile};
