/* abi.h: what the Vulkan target (compile) and device (run) agree on: how compute modules are carried in a
 * plan, which modules a command needs, with how many workgroups they are dispatched, and where they find
 * their operands.
 *
 * A command is one to SBP_VULKAN_STEPS dispatches ("steps"), each of one module, found by its key
 * (backends/gpu/gpu.h). Matmuls come in several variants, a module each (sbp_vulkan_gemm); a device
 * takes those that sbp_vulkan_local_size() wants and leaves the others. Modules that compute in double have a
 * second one, no64, for devices without shaderFloat64, unless the plan is one in fp64: reduce sums pairs of
 * floats there, and row kernels compute in fp32.
 *
 * Every module has the entry point "main", no descriptors, one push constant block of 8 bytes (the device
 * address of an sbp_gpu_args record, aligned to 16), and the specialisation constant 0: local_size_x, as
 * sbp_vulkan_local_size() gives it. Those with cooperative matrices have five more, 1 to 5, as
 * sbp_vulkan_matrix_of() gives them. Everything else is reached by device addresses, in scalar layout. The
 * features that a module needs of the device beyond those of SBP_VULKAN_ALWAYS are listed with it.
 *
 * No atomics: equal inputs give equal bits, on the same device.
 *
 * Nothing here needs a driver or a compiler of shaders. Threads: no state. */
#ifndef SBP_VULKAN_ABI_H
#define SBP_VULKAN_ABI_H

#include "backends/gpu/gpu.h"

enum {
    SBP_VULKAN_STEPS = 4,
    SBP_VULKAN_PUSH_BYTES = 8,
    SBP_VULKAN_VARIANTS = 5,
    SBP_VULKAN_GEMM_OPERANDS = 5 /* d, a, b, c, bias */
};

/* Ways to compute a matmul. */
typedef enum sbp_vulkan_gemm {
    SBP_VULKAN_DIRECT,      /* 8 x 8 per invocation, straight from memory: software drivers */
    SBP_VULKAN_TILED,       /* 64 x 64 per workgroup, through shared memory */
    SBP_VULKAN_WIDE,        /* 128 x 128 per workgroup, for large matmuls; sums in fp32 only */
    SBP_VULKAN_MATRIX,      /* 64 x 64, cooperative matrices: a and b both f16 or both bf16, sums in fp32 */
    SBP_VULKAN_MATRIX_WIDE, /* the same, 128 x 128 */
    SBP_VULKAN_ANY          /* what fits the device and the matmul */
} sbp_vulkan_gemm;
extern const char *const sbp_vulkan_gemm_names[SBP_VULKAN_ANY]; /* "direct", "tiled", ... */
/* SBP_VULKAN_ANY when there is none of that name. */
sbp_vulkan_gemm sbp_vulkan_gemm_named(const char *name);
/* Rows and columns of d that a workgroup (direct: an invocation) computes. */
int32_t sbp_vulkan_gemm_side(sbp_vulkan_gemm gemm);
/* Whether by cooperative matrices. */
bool sbp_vulkan_gemm_is_matrix(sbp_vulkan_gemm gemm);

/* Features of a module; bit set. Without being listed, each may use (and the device must have): Vulkan 1.3,
 * bufferDeviceAddress, scalarBlockLayout, shaderInt64, storageBuffer16BitAccess, storageBuffer8BitAccess, the
 * subgroup operations basic, vote and arithmetic, and 32 KiB of shared memory per workgroup. */
typedef enum sbp_vulkan_feature {
    SBP_VULKAN_FLOAT64 = 1, /* shaderFloat64 */
    SBP_VULKAN_FLOAT16 = 2, /* shaderFloat16 */
    SBP_VULKAN_COOPMAT = 4, /* VK_KHR_cooperative_matrix, shaderFloat16, vulkanMemoryModel */
    SBP_VULKAN_BFLOAT16 = 8 /* VK_KHR_shader_bfloat16, with cooperative matrices */
} sbp_vulkan_feature;

/* ---- the plan's section "kernels" ------------------------------------------------------------------ */

/* The text of a key: "gemm.nt.f32.f32.f32.x.x.tiled". Variants are sbp_vulkan_gemm of matmuls. */
void sbp_vulkan_key_text(const sbp_gpu_key *key, char text[SBP_GPU_NAME]);

typedef struct sbp_vulkan_module {
    sbp_gpu_key key;
    const uint32_t *words; /* SPIR-V */
    int64_t word_count;
    uint32_t features; /* sbp_vulkan_feature bits */
} sbp_vulkan_module;

typedef struct sbp_vulkan_modules {
    const sbp_vulkan_module *items; /* sorted by key */
    int32_t count;
    sbp_gpu_images images; /* what they were read from, in the same order */
} sbp_vulkan_modules;

/* Bytes of a container; modules are sorted by key. Below a guard (the arena's errors jump). */
void sbp_vulkan_modules_write(sbp_arena *arena, const sbp_vulkan_module *modules, int32_t count,
                              const void **data, int64_t *bytes);
/* Reads one; `data` is untrusted. Words are copied into the arena, so they are aligned. SBP_INPUT when it is
 * no container, is of another version or is damaged. Below a guard. */
sbp_status sbp_vulkan_modules_read(sbp_arena *arena, sbp_diag *diag, const void *data, int64_t bytes,
                                   sbp_vulkan_modules *out) SBP_CHECKED;
/* NULL when there is none of that key. */
const sbp_vulkan_module *sbp_vulkan_modules_find(const sbp_vulkan_modules *modules, const sbp_gpu_key *key);

/* ---- commands -------------------------------------------------------------------------------------- */

/* A cooperative matmul of m x k by k x n in a subgroup, inputs of 16 bits, sums in fp32; m 0: there is none.
 */
typedef struct sbp_vulkan_shape {
    uint32_t m, n, k;
} sbp_vulkan_shape;

/* How a matmul uses them: the shape, and the rows and columns of d that a subgroup computes. */
typedef struct sbp_vulkan_matrix {
    uint32_t m, n, k, rows, cols;
} sbp_vulkan_matrix;

#define SBP_VULKAN_SOFTWARE "software" /* what --arch calls software drivers */

/* What choices at run time depend on. */
typedef struct sbp_vulkan_machine {
    bool software;        /* a CPU driver (VK_PHYSICAL_DEVICE_TYPE_CPU) */
    bool lacks_float64;   /* no shaderFloat64 */
    sbp_vulkan_gemm gemm; /* the variant of all matmuls that can have it: tests; else SBP_VULKAN_ANY */
    bool by_size;         /* a software driver, too, chooses by size: tests */
    sbp_vulkan_shape f16; /* for matmuls of f16 */
    sbp_vulkan_shape bf16;
    uint32_t subgroup_size;  /* as reported; 0 unknown */
    uint32_t max_local_size; /* smaller of maxComputeWorkGroupInvocations and maxComputeWorkGroupSize[0] */
    uint32_t shared_bytes;   /* maxComputeSharedMemorySize */
} sbp_vulkan_machine;

/* The modules that a command (no fence, no empty ones) may need on some machine: at most SBP_VULKAN_STEPS *
 * SBP_VULKAN_VARIANTS, without no64. dtypes: one per operand, SBP_DTYPE_COUNT where it is absent. Returns the
 * count. */
int32_t sbp_vulkan_keys(const sbp_command *command, const sbp_dtype *dtypes, sbp_gpu_key *keys);
/* Those of its steps, with this variant of matmuls. */
int32_t sbp_vulkan_step_keys(const sbp_command *command, const sbp_dtype *dtypes, sbp_vulkan_gemm gemm,
                             sbp_gpu_key *keys);
/* Whether there are modules of this variant for matmuls of these types (d, a, b). */
bool sbp_vulkan_gemm_exists(sbp_vulkan_gemm gemm, const sbp_dtype *dtypes);

/* Whether the modules of a command (kernel: of a row command) compute in double, so that no64 is needed. */
bool sbp_vulkan_uses_f64(const sbp_command *command, const sbp_rowkernel *kernel);

/* Rows and columns that one workgroup (direct gemm: one invocation) computes; shared with the shaders. */
enum {
    SBP_VULKAN_GEMM_DIRECT = 8,
    SBP_VULKAN_GEMM_TILED = 64,
    SBP_VULKAN_GEMM_WIDE = 128,
    SBP_VULKAN_GEMM_DEPTH = 32,        /* of cooperative matrices: columns of a in shared memory at once */
    SBP_VULKAN_GEMM_CHAIN = 4096,      /* most terms that wide variants sum in a row */
    SBP_VULKAN_GEMM_GROUPS = 64,       /* wide variants are worth it from this many workgroups on */
    SBP_VULKAN_EXPERT_PATCH = 4,       /* of products of experts: an invocation */
    SBP_VULKAN_ATTENTION_TILE = 32,    /* query rows, and keys */
    SBP_VULKAN_COLSUM_COLUMNS = 32,    /* by local size / 32 chains of rows */
    SBP_VULKAN_REDUCE_GROUPS = 256,    /* most workgroups, each leaving one f64 in the scratch memory */
    SBP_VULKAN_REDUCE_ELEMS = 1 << 14, /* a workgroup is worth it for this many elements */
    SBP_VULKAN_SOFTWARE_ITERATIONS = 65535 /* of all loops of an invocation, on a software driver */
};

/* Invocations per workgroup (specialisation constant 0) of a module on this machine; 0: this machine does not
 * use it (or the program has no such kernel). */
uint32_t sbp_vulkan_local_size(const sbp_program *program, const sbp_gpu_key *key,
                               const sbp_vulkan_machine *machine);

/* Whether cooperative matrices of this shape can be used for matmuls: they must divide what a subgroup
 * computes. */
bool sbp_vulkan_shape_fits(const sbp_vulkan_shape *shape);
/* Specialisation constants 1 to 5 of a module; zeros when it has none. */
sbp_vulkan_matrix sbp_vulkan_matrix_of(const sbp_gpu_key *key, const sbp_vulkan_machine *machine);

typedef struct sbp_vulkan_step {
    sbp_gpu_key key;
    uint32_t groups[3]; /* each below 65536 */
    bool waits;         /* reads what the step before it wrote: a barrier stands between them */
} sbp_vulkan_step;

/* The dispatches of a command whose spans were checked; returns their number: 0 when there is nothing to do
 * (no rows), also for fence. *scratch_bytes: memory on the device that the steps of this command alone may
 * use until they are done (0 mostly; a few KiB for reduce), aligned to 16. */
int32_t sbp_vulkan_steps(const sbp_dispatch *dispatch, const sbp_vulkan_machine *machine,
                         sbp_vulkan_step *steps, int64_t *scratch_bytes);

/* ---- the argument record (gpu.h) ------------------------------------------------------------------- */

/* sbp_gpu_args_fill, and for reduce the workgroups of its first step in ints[8]. */
int64_t sbp_vulkan_args_fill(const sbp_dispatch *dispatch, const uint64_t addresses[SBP_SPACE_COUNT],
                             uint64_t scratch, sbp_gpu_args *out);
/* Whether a software driver would silently stop its loops before the end: llvmpipe leaves all loops of an
 * invocation after 65535 iterations together (long attention, mostly). The device must refuse then,
 * SBP_MACHINE. */
bool sbp_vulkan_too_long(const sbp_dispatch *dispatch, const sbp_vulkan_machine *machine);
/* Whether its workspace is as large as its shaders count on. */
bool sbp_vulkan_work_fits(const sbp_dispatch *dispatch);
/* A bound of those iterations. */
int64_t sbp_vulkan_iterations(const sbp_dispatch *dispatch, const sbp_vulkan_machine *machine);

#endif
