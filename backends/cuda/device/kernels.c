/* kernels.c: kernels out of the plan's images, and their launches. */
#include "backends/cuda/device/cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ENTRY "kernel"

/* ---- which images ----------------------------------------------------------------------------------- */

/* The architectures that a plan has code for, as cubins or as PTX. */
typedef struct arch_list {
    sbp_cuda_arch items[SBP_CUDA_ARCHS];
    int32_t count;
} arch_list;

static void add_arch(arch_list *list, sbp_cuda_arch arch) {
    for (int32_t i = 0; i < list->count; i++)
        if (list->items[i].number == arch.number && list->items[i].specific == arch.specific)
            return;
    if (list->count < SBP_CUDA_ARCHS)
        list->items[list->count++] = arch;
}

static void list_archs(const sbp_gpu_images *images, bool ptx, arch_list *out) {
    *out = (arch_list){.count = 0};
    for (int32_t i = 0; i < images->count; i++) {
        sbp_cuda_arch arch;
        bool is_ptx;
        sbp_cuda_tag_read(images->items[i].tag, &arch, &is_ptx);
        if (is_ptx == ptx)
            add_arch(out, arch);
    }
}

/* The driver compiles PTX for its device: that of the device itself with all features, else the newest
 * general one that is not newer than the device. -1: none. */
static int32_t choose_ptx(const arch_list *list, int32_t capability) {
    int32_t best = -1;
    for (int32_t i = 0; i < list->count; i++) {
        const sbp_cuda_arch *a = &list->items[i];
        if (a->number == capability && a->specific)
            return i;
        if (!a->specific && a->number <= capability && (best < 0 || a->number > list->items[best].number))
            best = i;
    }
    return best;
}

/* "sm_80, sm_90a" */
static void archs_text(const arch_list *a, char *out, size_t size) {
    size_t length = 0;
    out[0] = 0;
    for (int32_t i = 0; i < a->count && length < size; i++) {
        char name[16];
        sbp_cuda_arch_text(a->items[i], name);
        length += (size_t)snprintf(out + length, size - length, "%s%s", i > 0 ? ", " : "", name);
    }
}

static sbp_status choose_tag(cuda_device *d, const sbp_gpu_images *images, uint32_t *tag, sbp_diag *diag) {
    const char *request = getenv("SBP_CUDA_IMAGE");
    arch_list cubins, ptx;
    if (request && *request && strcmp(request, "ptx") != 0 && strcmp(request, "cubin") != 0)
        return sbp_fail(diag, SBP_USAGE, "SBP_CUDA_IMAGE is '%s'; it may be cubin or ptx", request);
    bool wants_ptx = request && strcmp(request, "ptx") == 0;
    list_archs(images, false, &cubins);
    list_archs(images, true, &ptx);
    int32_t at = wants_ptx ? -1 : sbp_cuda_arch_choose(cubins.items, cubins.count, d->physical.capability);
    bool is_ptx = at < 0;
    if (is_ptx)
        at = choose_ptx(&ptx, d->physical.capability);
    if (at >= 0) {
        d->machine.arch = is_ptx ? ptx.items[at] : cubins.items[at];
        *tag = sbp_cuda_tag(d->machine.arch, is_ptx);
        return SBP_OK;
    }
    char has[200];
    archs_text(cubins.count > 0 ? &cubins : &ptx, has, sizeof has);
    return sbp_fail(diag, SBP_MACHINE,
                    "cuda: %s is of architecture sm_%d, which the plan lacks (it has %s): compile it with "
                    "--arch sm_%d",
                    d->physical.name, d->physical.capability, has, d->physical.capability);
}

/* ---- modules ---------------------------------------------------------------------------------------- */

/* Code that the driver does not take although it is for this device. */
static sbp_status refused(cuda_device *d, cuda_result result, const char *name, const char *log,
                          sbp_diag *diag) {
    size_t length = strcspn(log, "\n");
    if (result == CUDA_OUT_OF_MEMORY || !cuda_result_is_machine(result))
        return cuda_fail(d, result, name, diag);
    d->broken = result;
    bool old = d->api.version < 13000;
    return sbp_fail(diag, SBP_MACHINE, "cuda: %s: the driver does not take kernel '%s': %s (%d)%s%.*s%s",
                    d->physical.name, name, cuda_result_text(&d->api, result), (int)result,
                    length > 0 ? ": " : "", (int)length, log,
                    old ? "; compile the plan by NVRTC 12 (pip install nvidia-cuda-nvrtc-cu12), which is "
                          "taken first where this driver is, or install driver 580"
                        : "");
}

static sbp_status load_image(cuda_device *d, const sbp_gpu_image *image, bool ptx, cuda_kernel *out,
                             sbp_diag *diag) {
    char name[SBP_GPU_NAME], log[400] = "";
    int32_t options[] = {CUDA_JIT_ERROR_LOG, CUDA_JIT_ERROR_LOG_BYTES};
    void *values[] = {log, (void *)(uintptr_t)(sizeof log - 1)};
    char *text = NULL;
    const char *variant =
        image->key.variant < SBP_CUDA_VARIANTS ? sbp_cuda_variant_names[image->key.variant] : "";
    sbp_gpu_key_text(&image->key, variant, name);
    if (ptx) { /* a text, that a zero ends */
        text = sbp_malloc((size_t)image->bytes + 1);
        if (!text)
            return sbp_fail(diag, SBP_MACHINE, "out of memory for the kernels of a plan");
        memcpy(text, image->data, (size_t)image->bytes);
        text[image->bytes] = 0;
    }
    cuda_result result = d->api.calls.cuModuleLoadDataEx(&out->module, ptx ? text : image->data,
                                                         ptx ? SBP_COUNT(options) : 0, options, values);
    free(text);
    log[sizeof log - 1] = 0;
    if (result != CUDA_OK) {
        out->module = NULL;
        return refused(d, result, name, log, diag);
    }
    out->key = image->key;
    out->shared_bytes = CUDA_SHARED_BYTES_ALWAYS;
    d->kernel_count++; /* its module is ours to unload */
    result = d->api.calls.cuModuleGetFunction(&out->function, out->module, ENTRY);
    return result == CUDA_OK ? SBP_OK : cuda_fail(d, result, name, diag);
}

static sbp_status load_images(cuda_device *d, const sbp_gpu_images *images, uint32_t tag, sbp_diag *diag) {
    sbp_cuda_arch arch;
    bool ptx;
    sbp_cuda_tag_read(tag, &arch, &ptx);
    d->kernels = sbp_malloc(((size_t)images->count + 1) * sizeof *d->kernels);
    if (!d->kernels)
        return sbp_fail(diag, SBP_MACHINE, "out of memory for the kernels of a plan");
    for (int32_t i = 0; i < images->count; i++)
        if (images->items[i].tag == tag)
            SBP_TRY(load_image(d, &images->items[i], ptx, &d->kernels[d->kernel_count], diag));
    return SBP_OK;
}

static cuda_kernel *find_kernel(const cuda_device *d, const sbp_gpu_key *key) {
    const cuda_kernel *found = sbp_gpu_key_find(key, d->kernels, d->kernel_count, sizeof *found);
    return found ? &d->kernels[found - d->kernels] : NULL;
}

static bool has_kernel(const void *owner, const sbp_gpu_key *key) {
    return find_kernel(owner, key) != NULL;
}

typedef struct reading {
    cuda_device *d;
    sbp_diag *diag;
    sbp_gpu_images images;
} reading;

static sbp_status read_images(void *user) {
    reading *r = user;
    return sbp_gpu_images_read(r->d->arena, r->diag, &sbp_cuda_format, r->d->code, r->d->code_bytes,
                               &r->images);
}

sbp_status cuda_kernels_create(cuda_device *d, sbp_diag *diag) {
    reading r = {.d = d, .diag = diag};
    uint32_t tag;
    d->machine.arch = (sbp_cuda_arch){.number = d->physical.capability};
    d->machine.shared_bytes = d->physical.shared_bytes;
    if (d->code_bytes == 0)
        return SBP_OK;
    SBP_TRY(sbp_guard(d->arena, diag, read_images, &r));
    if (r.images.count == 0)
        return SBP_OK;
    SBP_TRY(choose_tag(d, &r.images, &tag, diag));
    SBP_TRY(load_images(d, &r.images, tag, diag));
    d->machine.has = has_kernel;
    d->machine.owner = d;
    return SBP_OK;
}

void cuda_kernels_destroy(cuda_device *d) {
    for (int32_t i = 0; i < d->kernel_count; i++)
        (void)d->api.calls.cuModuleUnload(d->kernels[i].module);
    free(d->kernels);
    d->kernels = NULL;
    d->kernel_count = 0;
}

/* ---- launches --------------------------------------------------------------------------------------- */

static int32_t tensor_type(sbp_dtype dtype) {
    switch (dtype) {
    case SBP_F64:
        return CUDA_TENSOR_FLOAT64;
    case SBP_F32:
        return CUDA_TENSOR_FLOAT32;
    case SBP_BF16:
        return CUDA_TENSOR_BFLOAT16;
    case SBP_F16:
        return CUDA_TENSOR_FLOAT16;
    case SBP_I32:
        return CUDA_TENSOR_INT32;
    default:
        return CUDA_TENSOR_UINT8;
    }
}

static sbp_status encode_map(cuda_device *d, const sbp_cuda_tensor_map *map, cuda_tensor_map *out,
                             sbp_diag *diag) {
    static const uint32_t ones[CUDA_TENSOR_RANK] = {1, 1, 1, 1, 1};
    int32_t swizzle = map->swizzle == 128  ? CUDA_SWIZZLE_128B
                      : map->swizzle == 64 ? CUDA_SWIZZLE_64B
                      : map->swizzle == 32 ? CUDA_SWIZZLE_32B
                                           : CUDA_SWIZZLE_NONE;
    CUDA_TRY(d, diag,
             cuTensorMapEncodeTiled(out, tensor_type(map->dtype), (uint32_t)map->rank,
                                    (void *)(uintptr_t)map->address, map->dims, map->strides, map->box, ones,
                                    CUDA_INTERLEAVE_NONE, swizzle, CUDA_L2_PROMOTION_128B,
                                    CUDA_OUTSIDE_IS_ZERO));
    return SBP_OK;
}

/* Beyond what every kernel may have, each must be allowed. */
static sbp_status allow_shared(cuda_device *d, cuda_kernel *kernel, uint32_t bytes, sbp_diag *diag) {
    if ((int64_t)bytes <= kernel->shared_bytes)
        return SBP_OK;
    if ((int64_t)bytes > d->physical.shared_bytes)
        return sbp_fail(diag, SBP_MACHINE,
                        "cuda: a kernel of the plan needs %u bytes of shared memory; %s has %d", bytes,
                        d->physical.name, d->physical.shared_bytes);
    CUDA_TRY(d, diag, cuFuncSetAttribute(kernel->function, CUDA_FUNCTION_DYNAMIC_SHARED, (int32_t)bytes));
    kernel->shared_bytes = (int32_t)bytes;
    return SBP_OK;
}

static sbp_status wait_for_kernel(cuda_device *d, const sbp_cuda_step *step, cuda_stream stream,
                                  sbp_diag *diag) {
    char name[SBP_GPU_NAME];
    sbp_gpu_key_text(&step->key, sbp_cuda_variant_names[step->key.variant], name);
    cuda_result result = d->api.calls.cuStreamSynchronize(stream);
    return result == CUDA_OK ? SBP_OK : cuda_fail(d, result, name, diag);
}

sbp_status cuda_kernels_step(cuda_device *d, const sbp_cuda_step *step, sbp_gpu_args *args,
                             cuda_stream stream, sbp_diag *diag) {
    cuda_tensor_map maps[SBP_CUDA_TENSOR_MAPS];
    void *parameters[1 + SBP_CUDA_TENSOR_MAPS] = {args};
    cuda_kernel *kernel = find_kernel(d, &step->key);
    if (!kernel) {
        char text[SBP_GPU_NAME], arch[16];
        sbp_gpu_key_text(&step->key, sbp_cuda_variant_names[step->key.variant], text);
        sbp_cuda_arch_text(d->machine.arch, arch);
        return sbp_fail(diag, SBP_INPUT, "cuda: the plan has no kernel '%s' for %s", text, arch);
    }
    SBP_TRY(allow_shared(d, kernel, step->shared_bytes, diag));
    for (int32_t i = 0; i < step->map_count; i++) {
        SBP_TRY(encode_map(d, &step->maps[i], &maps[i], diag));
        parameters[1 + i] = &maps[i];
    }
    if (step->clear_bytes > 0)
        CUDA_TRY(d, diag,
                 cuMemsetD8Async(args->scratch + (uint64_t)step->clear_from, 0, (size_t)step->clear_bytes,
                                 stream));
    CUDA_TRY(d, diag,
             cuLaunchKernel(kernel->function, step->grid[0], step->grid[1], step->grid[2], step->block[0],
                            step->block[1], step->block[2], step->shared_bytes, stream, parameters, NULL));
    return d->waits_for_kernels ? wait_for_kernel(d, step, stream, diag) : SBP_OK;
}

/* A variant that the plan has and the machine takes, and that these operands do not suit, is worth a line: a
 * matrix that is a view into a wider one may begin at any byte, and the step is slower without anything else
 * to see. Said once. */
static void note_descent(cuda_device *d, const sbp_gpu_key *taken, const sbp_cuda_machine *machine,
                         sbp_diag *diag) {
    char name[SBP_GPU_NAME];
    sbp_gpu_key better = *taken;
    if (d->noted_descent || sbp_command_traits_of((sbp_command_kind)taken->kind)->keyed == SBP_KEYED_KERNEL)
        return;
    for (int32_t v = taken->variant + 1; v < SBP_CUDA_VARIANTS && v <= machine->variant; v++) {
        better.variant = (uint8_t)v;
        if (!find_kernel(d, &better))
            continue;
        sbp_gpu_key_text(taken, "", name);
        sbp_note(diag,
                 "cuda: a kernel '%s' runs as variant %s where the plan has %s: its operands do not begin at "
                 "multiples of 16 "
                 "bytes, or the GPU lacks the shared memory; it is slower",
                 name, taken->variant == SBP_CUDA_PLAIN ? "plain" : sbp_cuda_variant_names[taken->variant],
                 sbp_cuda_variant_names[v]);
        d->noted_descent = true;
        return;
    }
}

sbp_status cuda_kernels_launch(cuda_device *d, const sbp_dispatch *dispatch, const sbp_cuda_machine *machine,
                               sbp_diag *diag) {
    const uint64_t addresses[SBP_SPACE_COUNT] = {[SBP_DEVICE] = d->memory};
    sbp_cuda_step steps[SBP_CUDA_STEPS];
    sbp_gpu_args args;
    cuda_address scratch = 0;
    if (!sbp_gpu_fits(dispatch))
        return sbp_fail(diag, SBP_MACHINE, "cuda: %s: rows, columns and strides must be below 2^31",
                        sbp_command_name(dispatch->command->kind));
    int64_t scratch_bytes = sbp_cuda_scratch_bytes(dispatch, machine);
    if (scratch_bytes > 0)
        SBP_TRY(cuda_scratch(d, dispatch, scratch_bytes, &scratch, diag));
    memset(&args, 0, sizeof args); /* all of it is handed over */
    (void)sbp_gpu_args_fill(dispatch, addresses, scratch, &args);
    int32_t count = sbp_cuda_steps(dispatch, machine, &args, steps);
    if (count > 0)
        note_descent(d, &steps[0].key, machine, diag);
    for (int32_t i = 0; i < count; i++)
        SBP_TRY(cuda_kernels_step(d, &steps[i], &args, d->streams[CUDA_COMPUTE], diag));
    return SBP_OK;
}
