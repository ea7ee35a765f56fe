/* archs.c: architectures by name, and which images fit a device. */
#include "backends/cuda/abi.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int compare_archs(const void *a, const void *b) {
    const sbp_cuda_arch *one = a, *other = b;
    return one->number != other->number ? (one->number > other->number) - (one->number < other->number)
                                        : (int)one->specific - (int)other->specific;
}

/* Reads "sm_90a", `length` characters. */
static bool parse_arch(const char *text, size_t length, sbp_cuda_arch *out) {
    size_t at = 3;
    *out = (sbp_cuda_arch){0};
    if (length < 5 || strncmp(text, "sm_", 3) != 0 || text[3] == '0')
        return false;
    for (; at < length && at < 6 && text[at] >= '0' && text[at] <= '9'; at++)
        out->number = 10 * out->number + (text[at] - '0');
    out->specific = at < length && text[at] == 'a';
    return at >= 5 && at + out->specific == length;
}

bool sbp_cuda_archs_parse(const char *text, sbp_cuda_arch archs[SBP_CUDA_ARCHS], int32_t *count) {
    int32_t found = 0, kept = 0;
    *count = 0;
    for (const char *at = text; at; at = strchr(at, ',')) {
        at += at != text;
        if (found == SBP_CUDA_ARCHS || !parse_arch(at, strcspn(at, ","), &archs[found++]))
            return false;
    }
    if (found > 1)
        qsort(archs, (size_t)found, sizeof *archs, compare_archs);
    for (int32_t i = 0; i < found; i++)
        if (i == 0 || compare_archs(&archs[i], &archs[kept - 1]) != 0)
            archs[kept++] = archs[i];
    *count = kept;
    return kept > 0;
}

void sbp_cuda_arch_text(sbp_cuda_arch arch, char text[16]) {
    snprintf(text, 16, "sm_%d%s", (int)arch.number, arch.specific ? "a" : "");
}

int32_t sbp_cuda_arch_choose(const sbp_cuda_arch *archs, int32_t count, int32_t number) {
    int32_t best = -1;
    for (int32_t i = 0; i < count; i++) {
        bool same = archs[i].number == number;
        bool below = archs[i].number < number && archs[i].number / 10 == number / 10 && !archs[i].specific;
        if ((same || below) && (best < 0 || compare_archs(&archs[i], &archs[best]) > 0))
            best = i;
    }
    return best;
}

/* ---- images ----------------------------------------------------------------------------------------- */

const sbp_gpu_format sbp_cuda_format = {.magic = "SBPCUBIN",
                                        .backend = "CUDA",
                                        .version = 1,
                                        .steps = SBP_CUDA_STEPS,
                                        .variants = SBP_CUDA_VARIANTS};

uint32_t sbp_cuda_tag(sbp_cuda_arch arch, bool ptx) {
    return (uint32_t)arch.number << 2 | (uint32_t)arch.specific << 1 | (uint32_t)ptx;
}

void sbp_cuda_tag_read(uint32_t tag, sbp_cuda_arch *arch, bool *ptx) {
    *arch = (sbp_cuda_arch){.number = (int32_t)(tag >> 2), .specific = tag >> 1 & 1};
    *ptx = tag & 1;
}

int32_t sbp_cuda_shared_limit(sbp_cuda_arch arch) {
    switch (arch.number) {
    case 80:
    case 87:
        return 163 << 10;
    case 86:
    case 89:
    case 120:
    case 121:
        return 99 << 10;
    default:
        return arch.number < 90 ? 99 << 10 : 227 << 10;
    }
}
