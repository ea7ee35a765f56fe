/* matrix.c: which cooperative matrices a driver offers. */
#include "backends/vulkan/device/vulkan.h"
#include "backends/vulkan/vulkan_device.h"

#include <stdlib.h>

enum { MOST_SHAPES = 256 };

void vulkan_matrix_link(const vulkan_physical *p, vulkan_features *f) {
    f->matrix.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_COOPERATIVE_MATRIX_FEATURES_KHR;
    f->bfloat16.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_BFLOAT16_FEATURES_KHR;
    if (p->has_matrix) {
        f->matrix.pNext = f->base.pNext;
        f->base.pNext = &f->matrix;
    }
    if (p->has_matrix && p->has_bfloat16) {
        f->bfloat16.pNext = f->base.pNext;
        f->base.pNext = &f->bfloat16;
    }
}

/* The largest of those that fit, up to 16 x 16 x 16, which all makers have fast; larger ones hold more than
 * an invocation has registers for. */
static void consider(const VkCooperativeMatrixPropertiesKHR *offer, sbp_vulkan_shape *best) {
    sbp_vulkan_shape shape = {.m = offer->MSize, .n = offer->NSize, .k = offer->KSize};
    if (sbp_vulkan_shape_fits(&shape) && shape.m <= 16 && shape.n <= 16 && shape.k <= 16 &&
        shape.m * shape.n * shape.k > best->m * best->n * best->k)
        *best = shape;
}

sbp_status vulkan_matrix_find(const vulkan_api *api, vulkan_physical *p, sbp_diag *diag) {
    if (!p->has_matrix || !api->GetPhysicalDeviceCooperativeMatrixPropertiesKHR ||
        !p->features[VULKAN_FEATURE_shaderFloat16] || !p->features[VULKAN_FEATURE_vulkanMemoryModel] ||
        !p->features[VULKAN_FEATURE_storageBuffer16BitAccess] ||
        !p->features[VULKAN_FEATURE_computeFullSubgroups])
        p->has_matrix = false;
    if (!p->has_matrix)
        return SBP_OK;
    uint32_t count = MOST_SHAPES;
    VkCooperativeMatrixPropertiesKHR *offers = sbp_malloc(MOST_SHAPES * sizeof *offers);
    if (!offers)
        return sbp_fail(diag, SBP_MACHINE, "out of memory for the kinds of matrices that Vulkan multiplies");
    for (uint32_t i = 0; i < count; i++)
        offers[i] =
            (VkCooperativeMatrixPropertiesKHR){.sType = VK_STRUCTURE_TYPE_COOPERATIVE_MATRIX_PROPERTIES_KHR};
    VkResult result = api->GetPhysicalDeviceCooperativeMatrixPropertiesKHR(p->handle, &count, offers);
    for (uint32_t i = 0; (result == VK_SUCCESS || result == VK_INCOMPLETE) && i < count; i++) {
        const VkCooperativeMatrixPropertiesKHR *o = &offers[i];
        if (o->scope != VK_SCOPE_SUBGROUP_KHR || o->AType != o->BType || o->saturatingAccumulation ||
            o->CType != VK_COMPONENT_TYPE_FLOAT32_KHR || o->ResultType != VK_COMPONENT_TYPE_FLOAT32_KHR)
            continue;
        if (o->AType == VK_COMPONENT_TYPE_FLOAT16_KHR)
            consider(o, &p->f16);
        else if (o->AType == VK_COMPONENT_TYPE_BFLOAT16_KHR && p->has_bfloat16)
            consider(o, &p->bf16);
    }
    free(offers);
    return SBP_OK;
}
