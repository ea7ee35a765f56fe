/* cuda_target.c: what the passes know of the CUDA backend, and its device code. */
#include "backends/cuda/cuda_target.h"

#include "backends/cuda/cuda_attention.h"
#include "backends/cuda/cuda_delta.h"
#include "backends/cuda/target/target.h"
#include "ir/target/footprint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- architectures ---------------------------------------------------------------------------------- */

typedef struct known_arch {
    int32_t number;
    bool by_default, has_specific;
    const char *device;
    double bf16, f32, f64, attention, f32_attention, half_rows, memory, row_ops, link;
} known_arch;

static const known_arch known[] = {
#define ARCH(...) {__VA_ARGS__},
#include "backends/cuda/target/archs.def"
#undef ARCH
};

static const known_arch *find_arch(sbp_cuda_arch arch) {
    for (int i = 0; i < SBP_COUNT(known); i++)
        if (known[i].number == arch.number && (known[i].has_specific || !arch.specific))
            return &known[i];
    return NULL;
}

static sbp_status check_archs(sbp_diag *diag, const char *text, const sbp_cuda_arch *archs, int32_t count) {
    char list[160] = "";
    for (int i = 0, at = 0; i < SBP_COUNT(known); i++)
        at += snprintf(list + at, sizeof list - (size_t)at, "%ssm_%d%s", i > 0 ? " " : "",
                       (int)known[i].number, known[i].has_specific ? "[a]" : "");
    if (count == 0)
        return sbp_fail(diag, SBP_USAGE, "--arch '%s': it takes names like sm_80,sm_90a; there are: %s", text,
                        list);
    for (int32_t i = 0; i < count; i++) {
        char name[16];
        sbp_cuda_arch_text(archs[i], name);
        if (!find_arch(archs[i]))
            return sbp_fail(diag, SBP_USAGE, "--arch '%s': no kernels for %s; there are: %s", text, name,
                            list);
    }
    return SBP_OK;
}

static sbp_status parse_archs(sbp_diag *diag, const char *text, sbp_cuda_arch archs[SBP_CUDA_ARCHS],
                              int32_t *count) {
    *count = 0;
    if (text) {
        (void)sbp_cuda_archs_parse(text, archs, count);
        return check_archs(diag, text, archs, *count);
    }
    for (int i = 0; i < SBP_COUNT(known); i++) /* with what wgmma needs */
        if (known[i].by_default)
            archs[(*count)++] = (sbp_cuda_arch){.number = known[i].number, .specific = known[i].number == 90};
    return SBP_OK;
}

/* ---- what the passes know ---------------------------------------------------------------------------- */

/* Throughput of a plan for several architectures: those of the H100 where it is among them, else of the
 * first. */
static const known_arch *rated_arch(const sbp_cuda_arch *archs, int32_t count) {
    for (int32_t i = 0; i < count; i++)
        if (archs[i].number == 90)
            return find_arch(archs[i]);
    return find_arch(archs[0]);
}

/* Whether attention's backward pass keeps sums of dq in fp32 (wgmma). */
static bool sums_dq(const sbp_cuda_arch *archs, int32_t count) {
    bool found = false;
    for (int32_t i = 0; i < count; i++)
        found |= archs[i].number == 90 && archs[i].specific;
    return found;
}

/* One of several ranks has NCCL too, and what it sends from. */
static sbp_footprint footprint(const sbp_process *process) {
    int64_t ranks = process->ranks > 1 ? SBP_CUDA_NCCL_BYTES + SBP_CUDA_NET_BYTES : 0;
    return (sbp_footprint){.bytes = SBP_CUDA_CONTEXT_BYTES + SBP_CUDA_WORKSPACE_BYTES + ranks};
}

/* The rate of the best variant. */
static double delta_rate(const sbp_target_info *info, const sbp_delta_attrs *attrs, sbp_dtype dtype,
                         bool backward) {
    sbp_gpu_key key = {.kind = backward ? SBP_CMD_DELTA_RULE_BWD : SBP_CMD_DELTA_RULE,
                       .variant = SBP_CUDA_MMA,
                       .reduce = attrs->corrects,
                       .d_qk = (int32_t)attrs->d_k,
                       .d_v = (int32_t)attrs->d_v};
    sbp_cuda_arch archs[SBP_CUDA_ARCHS];
    int32_t count = 0;
    double scalars = sbp_throughput_scalars(&info->throughput, dtype),
           products = sbp_throughput_attention(&info->throughput, dtype) /
                      (backward ? SBP_CUDA_DELTA_BWD_MMA_TIMES : SBP_CUDA_DELTA_MMA_TIMES);
    key.dtypes[backward ? SBP_DELTA_RULE_BWD_K : SBP_DELTA_RULE_K] = (uint8_t)dtype;
    if (!sbp_cuda_archs_parse(info->archs, archs, &count) || count == 0 ||
        sbp_cuda_delta_steps(&key, (sbp_cuda_arch){.number = rated_arch(archs, count)->number}) == 0)
        return scalars;
    return products > scalars ? products : scalars;
}

static sbp_status describe(const char *arch, sbp_diag *diag, sbp_target_info *out) {
    sbp_cuda_arch archs[SBP_CUDA_ARCHS];
    int32_t count;
    SBP_TRY(parse_archs(diag, arch, archs, &count));
    const known_arch *k = rated_arch(archs, count);
    *out = (sbp_target_info){
        .name = "cuda",
        .driver = "NVIDIA's driver 580 or newer", /* release notes of CUDA 13.0 */
        .alignment_bytes = 256,
        .max_allocation_bytes = 0,
        .runtime_bytes = SBP_CUDA_CONTEXT_BYTES + SBP_CUDA_WORKSPACE_BYTES,
        .footprint = footprint,
        .attention_partials = sums_dq(archs, count) ? 1 : 0,
        .attention_head_elems = SBP_CUDA_WORK_HEAD_ELEMS,
        .attention_row_elems = SBP_CUDA_WORK_ROW_ELEMS,
        .attention_more_rows = SBP_CUDA_WORK_MORE_ROWS,
        .attention_columns = SBP_CUDA_ATTENTION_COLUMNS,
        .attention_part_columns = SBP_CUDA_ATTENTION_PART_COLUMNS,
        .attention_part_times = 2.0, /* DECISIONS.md: heads of more than 256 columns */
        .attention_part_times_bwd = 2.15,
        .delta_columns = sbp_gpu_delta_columns,
        .delta_more_rows = SBP_GPU_DELTA_MORE_ROWS,
        .delta_rate = delta_rate,
        .own_expert_products = true,
        .has_copy_queue = true,
        .shared_memory = false,
        .default_compute = SBP_BF16,
        .chunk = 4096,
        .head_chunk = 1024,
        .chunk_most = 16384,
        .throughput = {.matmul = {[SBP_F32] = k->f32, [SBP_BF16] = k->bf16, [SBP_F64] = k->f64},
                       .attention = {[SBP_F32] = k->f32_attention, [SBP_BF16] = k->attention},
                       .half_rows = k->half_rows,
                       .memory = k->memory,
                       .row_ops = k->row_ops,
                       .in = k->link,
                       .out = k->link,
                       .host = 100e9,
                       .host_ops = 250e9,
                       .disk_read = 5e9,
                       .disk_write = 5e9,
                       .command_seconds = 4e-6}};
    size_t at = 0;
    for (int32_t i = 0; i < count; i++) {
        char name[16];
        sbp_cuda_arch_text(archs[i], name);
        at += (size_t)snprintf(out->archs + at, sizeof out->archs - at, "%s%s", i > 0 ? "," : "", name);
    }
    out->supports[SBP_F64] = out->supports[SBP_F32] = out->supports[SBP_BF16] = true;
    return SBP_OK;
}

/* ---- device code ------------------------------------------------------------------------------------- */

typedef struct build {
    sbp_arena *arena;
    sbp_diag *diag;
    const sbp_program *program;
    sbp_cuda_arch archs[SBP_CUDA_ARCHS];
    int32_t arch_count;
    sbp_cuda_source *sources;
    sbp_cuda_object *objects; /* their data is the caller's to free, whatever happens */
    int32_t count;
    const void *data;
    int64_t bytes;
} build;

/* "cuda:sm_80,sm_90a"; a program of which nothing is said, as tests have them, gets what SBP_CUDA_ARCHS in
 * the environment says, else what there is without --arch. */
static sbp_status find_archs(build *b) {
    const char *target = b->program->target ? b->program->target : "", *list = strchr(target, ':');
    return parse_archs(b->diag, list && list[1] ? list + 1 : getenv("SBP_CUDA_ARCHS"), b->archs,
                       &b->arch_count);
}

static sbp_status make_sources(void *user) {
    build *b = user;
    SBP_TRY(find_archs(b));
    return sbp_cuda_sources(b->arena, b->diag, b->program, b->archs, b->arch_count, &b->sources, &b->count);
}

static sbp_status write_images(void *user) {
    build *b = user;
    sbp_gpu_image *images = SBP_NEW_ARRAY(b->arena, sbp_gpu_image, 2 * (size_t)b->count);
    int32_t count = 0;
    for (int32_t i = 0; i < b->count; i++) {
        const sbp_cuda_object *o = &b->objects[i];
        if (!o->data) /* left out */
            continue;
        sbp_gpu_image *cubin = &images[count++], *ptx = &images[count++];
        *cubin = *ptx = (sbp_gpu_image){.key = b->sources[i].key};
        cubin->tag = sbp_cuda_tag(b->sources[i].arch, false);
        cubin->data = o->data;
        cubin->bytes = o->cubin_bytes;
        ptx->tag = sbp_cuda_tag(b->sources[i].arch, true);
        ptx->data = sbp_cuda_object_ptx(o);
        ptx->bytes = o->ptx_bytes;
    }
    sbp_gpu_images_write(b->arena, &sbp_cuda_format, images, count, &b->data, &b->bytes);
    return SBP_OK;
}

static sbp_status compile(sbp_arena *arena, sbp_diag *diag, const sbp_program *program, const void **data,
                          int64_t *bytes) {
    build b = {.arena = arena, .diag = diag, .program = program};
    int32_t compiled;
    SBP_TRY(sbp_guard(arena, diag, make_sources, &b));
    b.objects = sbp_malloc(((size_t)b.count + 1) * sizeof *b.objects);
    if (!b.objects)
        return sbp_fail(diag, SBP_MACHINE, "out of memory for the kernels of a plan");
    sbp_status status = sbp_cuda_compile_all(diag, b.sources, b.count, b.objects, &compiled);
    if (status == SBP_OK) {
        sbp_cuda_drop_faulty(diag, b.sources, b.objects, b.count);
        status = sbp_guard(arena, diag, write_images, &b);
    }
    for (int32_t i = 0; i < b.count; i++)
        free(b.objects[i].data);
    free(b.objects);
    *data = b.data;
    *bytes = b.bytes;
    return status;
}

const sbp_target sbp_cuda_target = {.name = "cuda", .describe = describe, .compile = compile};
