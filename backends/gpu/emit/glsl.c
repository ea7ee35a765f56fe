/* glsl.c: GLSL 4.60 (backends/vulkan). Threads of a group are known when the module is specialised. */
#include "backends/gpu/emit/emitter.h"

static void constants(sbp_text *out, const sbp_gpu_row_shape *shape) {
    (void)shape;
    sbp_text_add(out, "#define THREADS int(LOCAL)\n#define LANES THREADS\n#define TEAMS 1\n");
}

const sbp_gpu_dialect sbp_gpu_glsl = {
    .address = "uint64_t",
    .kernel = "void main()",
    .shared = "shared ",
    .unroll = "[[unroll]]",
    .team_barrier = "barrier();",
    .group_barrier = "barrier();",
    .sum = "group_sum(@)",
    .max = "group_max(@)",
    .min = "group_min(@)",
    .dynamic = "REAL load_@(uint64_t at, int i) {\n    return from_@(uint(M_u8(at).v[i]));\n}\n"
               "void store_@(uint64_t at, int i, REAL x) {\n    M_u8(at).v[i] = uint8_t(to_@(x));\n}\n",
    .constant = "const REAL",
    .list_begin = "REAL[](",
    .list_end = ")",
    .f64_suffix = "lf",
    .constants = constants,
};
