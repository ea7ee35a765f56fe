/* modules.c: SPIR-V modules as the images that a plan carries (backends/gpu/gpu.h); the tag is the features.
 */
#include "backends/vulkan/abi.h"

static const sbp_gpu_format format = {.magic = "SBPSPIRV",
                                      .backend = "Vulkan",
                                      .version = 5,
                                      .steps = SBP_VULKAN_STEPS,
                                      .variants = SBP_VULKAN_ANY};

void sbp_vulkan_modules_write(sbp_arena *arena, const sbp_vulkan_module *modules, int32_t count,
                              const void **data, int64_t *bytes) {
    sbp_gpu_image *images = SBP_NEW_ARRAY(arena, sbp_gpu_image, count);
    for (int32_t i = 0; i < count; i++)
        images[i] = (sbp_gpu_image){.key = modules[i].key,
                                    .tag = modules[i].features,
                                    .data = modules[i].words,
                                    .bytes = modules[i].word_count * 4};
    sbp_gpu_images_write(arena, &format, images, count, data, bytes);
}

sbp_status sbp_vulkan_modules_read(sbp_arena *arena, sbp_diag *diag, const void *data, int64_t bytes,
                                   sbp_vulkan_modules *out) {
    sbp_gpu_images images;
    *out = (sbp_vulkan_modules){0};
    SBP_TRY(sbp_gpu_images_read(arena, diag, &format, data, bytes, &images));
    sbp_vulkan_module *items = SBP_NEW_ARRAY(arena, sbp_vulkan_module, images.count);
    for (int32_t i = 0; i < images.count; i++) {
        const sbp_gpu_image *image = &images.items[i];
        const uint32_t *words = image->data;
        if (image->bytes < 20 || image->bytes % 4 != 0 || words[0] != 0x07230203u ||
            (i > 0 && sbp_gpu_key_compare(&image[-1].key, &image->key) == 0))
            return sbp_fail(diag, SBP_INPUT, "the plan's Vulkan kernels are damaged: a module is not SPIR-V");
        items[i] = (sbp_vulkan_module){
            .key = image->key, .words = words, .word_count = image->bytes / 4, .features = image->tag};
    }
    *out = (sbp_vulkan_modules){.items = items, .count = images.count, .images = images};
    return SBP_OK;
}

const sbp_vulkan_module *sbp_vulkan_modules_find(const sbp_vulkan_modules *modules, const sbp_gpu_key *key) {
    const sbp_gpu_image *image = sbp_gpu_images_find(&modules->images, key);
    return image ? &modules->items[image - modules->images.items] : NULL;
}
