/* kernels.c: from keys to texts to PTX. */
#include "tests/cuda/attention/kernels.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

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

static size_t append_file(char **text, size_t bytes, const char *path) {
    FILE *file = fopen(path, "rb");
    if (!file)
        fail_msg("%s is missing", path);
    *text = realloc(*text, bytes + (1 << 20));
    assert_non_null(*text);
    bytes += fread(*text + bytes, 1, (1 << 20) - 1, file);
    (*text)[bytes] = 0;
    fclose(file);
    return bytes;
}

char *kernel_text(const sbp_gpu_key *key, sbp_cuda_arch arch) {
    sbp_cuda_attention_source source;
    sbp_cuda_attention_source_of(key, arch, &source);
    size_t bytes = strlen(source.defines);
    char *text = malloc(bytes + 1);
    assert_non_null(text);
    strcpy(text, source.defines);
    bytes = append_file(&text, bytes, "tests/cuda/attention/prelude.cuh");
    for (int i = 0; i < SBP_CUDA_ATTENTION_TEXTS && source.files[i]; i++) {
        char path[128];
        snprintf(path, sizeof path, "backends/cuda/kernels/attention/%s", source.files[i]);
        bytes = append_file(&text, bytes, path);
    }
    return text;
}

nvrtc_result kernel_compile(const char *text, sbp_cuda_arch arch) {
    char name[16];
    snprintf(name, sizeof name, "%d%s", (int)arch.number, arch.specific ? "a" : "");
    return nvrtc_compile(text, name);
}

void kernel_name(const sbp_gpu_key *key, sbp_cuda_arch arch, char name[SBP_GPU_NAME]) {
    static const char *const variants[SBP_CUDA_VARIANTS] = {"plain", "vector", "mma", "wgmma"};
    snprintf(name, SBP_GPU_NAME, "%s %s step %d, %d/%d, sm_%d%s",
             key->kind == SBP_CMD_ATTN_BWD ? "attn_bwd" : "attn_fwd", variants[key->variant], key->step,
             (int)key->d_qk, (int)key->d_v, (int)arch.number, arch.specific ? "a" : "");
}
