/* kernels.c: from keys to texts to PTX. */
#include "tests/cuda/attention/kernels.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static sbp_cuda_nvrtc *nvrtc;
static sbp_diag *diag;

bool kernels_open(void) {
    if (nvrtc)
        return true;
    diag = diag ? diag : sbp_diag_create();
    assert_non_null(diag);
    if (sbp_cuda_nvrtc_open(diag, &nvrtc) == SBP_OK)
        return true;
    print_message("skipped: %s\n", sbp_diag_text(diag, SBP_NOTE));
    return false;
}

const char *kernels_version(void) {
    return sbp_cuda_nvrtc_name(nvrtc);
}

void kernels_close(void) {
    if (nvrtc)
        sbp_cuda_nvrtc_close(nvrtc);
    sbp_diag_destroy(diag);
    nvrtc = NULL;
    diag = NULL;
}

sbp_gpu_key kernel_key(bool backward, sbp_cuda_variant variant, int32_t d_qk, int32_t d_v) {
    static const uint8_t fwd[] = {SBP_BF16, SBP_F32, SBP_BF16, SBP_BF16, SBP_BF16, SBP_I32, SBP_I32, SBP_I32};
    static const uint8_t bwd[] = {SBP_BF16, SBP_F32, SBP_F32,  SBP_BF16, SBP_BF16, SBP_BF16,
                                  SBP_BF16, SBP_F32, SBP_BF16, SBP_I32,  SBP_I32,  SBP_I32};
    sbp_gpu_key key = {.kind = (uint8_t)(backward ? SBP_CMD_ATTN_BWD : SBP_CMD_ATTN_FWD),
                       .variant = (uint8_t)variant,
                       .d_qk = d_qk,
                       .d_v = d_v};
    memset(key.dtypes, SBP_DTYPE_COUNT, sizeof key.dtypes);
    memcpy(key.dtypes, backward ? bwd : fwd, backward ? sizeof bwd : sizeof fwd);
    return key;
}

sbp_cuda_arch kernel_arch(const char *name) {
    return (sbp_cuda_arch){.number = atoi(name + 3), .specific = name[strlen(name) - 1] == 'a'};
}

bool kernel_wanted(const char *name) {
    const char *only = getenv("SBP_KERNEL");
    return !only || strstr(name, only);
}

char *kernel_text(const sbp_gpu_key *key, sbp_cuda_arch arch) {
    sbp_arena *arena = sbp_arena_create();
    sbp_command command = {.kind = (sbp_command_kind)key->kind};
    sbp_dtype dtypes[SBP_MAX_COMMAND_OPERANDS] = {0};
    sbp_cuda_source source;
    assert_non_null(arena);
    if (sbp_cuda_source_make(arena, diag, NULL, &command, dtypes, key, arch, &source) != SBP_OK)
        fail_msg("%s", sbp_diag_text(diag, SBP_NOTE));
    char *text = strdup(source.text);
    assert_non_null(text);
    sbp_arena_destroy(arena);
    return text;
}

bool kernel_compile(const char *text, const sbp_gpu_key *key, sbp_cuda_arch arch, sbp_cuda_object *out,
                    sbp_cuda_resources *resources, const char **message) {
    sbp_cuda_source source = {.key = *key, .arch = arch, .text = text, .bytes = strlen(text)};
    uint64_t identity = sbp_cuda_nvrtc_identity(nvrtc, &source);
    sbp_cuda_cache cache;
    sbp_cuda_cache_open(&cache);
    sbp_diag_clear(diag);
    *out = (sbp_cuda_object){0};
    bool known = sbp_cuda_cache_get(&cache, identity, &source, out);
    bool right = (known || sbp_cuda_nvrtc_compile(nvrtc, diag, &source, out) == SBP_OK) &&
                 sbp_cuda_resources_read(diag, &source, sbp_cuda_object_log(out), resources) == SBP_OK;
    if (right && !known)
        sbp_cuda_cache_put(&cache, identity, &source, out);
    *message = sbp_diag_text(diag, SBP_NOTE);
    return right;
}

void kernel_name(const sbp_gpu_key *key, sbp_cuda_arch arch, char name[SBP_GPU_NAME]) {
    static const char *const variants[SBP_CUDA_VARIANTS] = {"plain", "vector", "mma", "wgmma"};
    bool backward = key->kind == SBP_CMD_ATTN_BWD;
    snprintf(name, SBP_GPU_NAME, "%s %s %s step %d, %d/%d, sm_%d%s", backward ? "attn_bwd" : "attn_fwd",
             variants[key->variant], sbp_dtype_name((sbp_dtype)key->dtypes[backward ? 3 : 2]), key->step,
             (int)key->d_qk, (int)key->d_v, (int)arch.number, arch.specific ? "a" : "");
}
