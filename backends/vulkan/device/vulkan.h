/* vulkan.h: what the files of the Vulkan device share.
 *
 * A command becomes a dispatch of a pipeline (command.c), recorded into the open batch of a stream
 * (stream.c); batches are submitted when full or when somebody waits. Fences of the program become pipeline
 * barriers within a stream and semaphore waits between streams; nothing else orders commands. Arenas are
 * VkBuffers with device addresses (arena.c).
 *
 * Environment, for tests: SBP_VULKAN_VALIDATION=on|gpu|sync runs under VK_LAYER_KHRONOS_validation, and what
 * it finds fails the next wait; SBP_VULKAN_TEST is a list of words: "staging" treats no arena as the host's
 * own memory, "streams" gives queues in and out a stream of their own whatever the hardware, "blocks"
 * allocates no more than 64 KiB at once where buffers allow it, "distrust" makes matmuls by cooperative
 * matrices look wrong when a plan is loaded. SBP_VULKAN_GEMM=direct|tiled|wide|matrix|matrix_wide asks for
 * one variant of matmuls, wherever there is such a one. */
#ifndef SBP_BACKENDS_VULKAN_H
#define SBP_BACKENDS_VULKAN_H

#define VK_NO_PROTOTYPES
#include <vulkan/vulkan_core.h>

#include "backends/device.h"
#include "backends/vulkan/abi.h"
#include "backends/vulkan/device/newer.h"

/* ---- api.c ------------------------------------------------------------------------------------------ */

typedef struct vulkan_api {
#define GLOBAL(name) PFN_vk##name name;
#define INSTANCE(name) PFN_vk##name name;
#define OPTIONAL(name) PFN_vk##name name;
#define DEVICE(name) PFN_vk##name name;
#include "backends/vulkan/device/symbols.def"
    void *library;
    VkInstance instance;
    VkDebugUtilsMessengerEXT messenger;
    /* GPU-assisted validation of version 1.3.239 loses track of timelines ("Timeout waiting for timeline
     * semaphore state to update. This is most likely a validation bug"): wait for whole queues instead */
    bool waits_for_queues;
    /* what the validation layer found; written by the thread that calls Vulkan */
    int errors;
    char first_error[1024];
} vulkan_api;

/* libvulkan and an instance. SBP_MACHINE when there is none. `api` must stay where it is. validation: as in
 * SBP_VULKAN_VALIDATION, NULL or "": none. */
sbp_status vulkan_api_open(vulkan_api *api, const char *validation, sbp_diag *diag) SBP_CHECKED;
void vulkan_api_close(vulkan_api *api);
sbp_status vulkan_api_open_device(vulkan_api *api, VkDevice device, sbp_diag *diag) SBP_CHECKED;
/* "out of device memory" */
const char *vulkan_result_text(VkResult result);
/* Whether SBP_VULKAN_TEST has this word. */
bool vulkan_test_asks(const char *word);

/* ---- physical.c ------------------------------------------------------------------------------------- */

enum {
#define FEATURE(chain, member, capability, use) VULKAN_FEATURE_##member,
#include "backends/vulkan/device/features.def"
#undef FEATURE
    VULKAN_FEATURE_COUNT
};

typedef struct vulkan_features {
    VkPhysicalDeviceFeatures2 base;
    VkPhysicalDeviceVulkan11Features v11;
    VkPhysicalDeviceVulkan12Features v12;
    VkPhysicalDeviceVulkan13Features v13;
    VkPhysicalDeviceCooperativeMatrixFeaturesKHR matrix; /* linked where the extension is there */
    VkPhysicalDeviceShaderBfloat16FeaturesKHR bfloat16;  /* the same */
} vulkan_features;

/* A driver and what it offers. */
typedef struct vulkan_physical {
    VkPhysicalDevice handle;
    VkPhysicalDeviceProperties properties;
    VkPhysicalDeviceVulkan11Properties v11;
    VkPhysicalDeviceVulkan12Properties v12;
    VkPhysicalDeviceVulkan13Properties v13;
    VkPhysicalDeviceMemoryProperties memory;
    bool features[VULKAN_FEATURE_COUNT];
    bool memory_budget;                      /* VK_EXT_memory_budget */
    bool has_matrix, has_bfloat16;           /* VK_KHR_cooperative_matrix, VK_KHR_shader_bfloat16: usable */
    sbp_vulkan_shape f16, bf16;              /* cooperative matrices for matmuls */
    int32_t heap;                            /* of the device space */
    int32_t compute_family, transfer_family; /* -1: none; transfer: without compute */
} vulkan_physical;

/* All devices, the best first: discrete, integrated, virtual, others, software. *out is freed by the caller.
 */
sbp_status vulkan_physical_list(const vulkan_api *api, sbp_diag *diag, vulkan_physical **out,
                                int32_t *count) SBP_CHECKED;
/* Whether it is the host's processor that runs its kernels. */
bool vulkan_is_software(const vulkan_physical *physical);
/* What plans never do without; SBP_MACHINE names all that is missing. */
sbp_status vulkan_physical_check(const vulkan_physical *physical, sbp_diag *diag) SBP_CHECKED;
/* The capabilities of a SPIR-V module; SBP_MACHINE names the one that the device does not have. */
sbp_status vulkan_physical_check_module(const vulkan_physical *physical, const char *name,
                                        const uint32_t *words, int64_t count, sbp_diag *diag) SBP_CHECKED;
/* The features that are there and wanted, as vkCreateDevice takes them: base.pNext is linked. */
void vulkan_features_wanted(const vulkan_physical *physical, vulkan_features *out);
/* Bytes of the heap of the device space that are in use by this process and that it may use; 0 unknown. */
void vulkan_physical_usage(const vulkan_api *api, const vulkan_physical *physical, int64_t *used,
                           int64_t *budget);

/* ---- matrix.c ---------------------------------------------------------------------------------------- */

/* Links the features of cooperative matrices behind `f->base`, as far as the device has the extensions. */
void vulkan_matrix_link(const vulkan_physical *physical, vulkan_features *f);
/* Fills in f16 and bf16; has_matrix becomes false when something else that it needs is missing. */
sbp_status vulkan_matrix_find(const vulkan_api *api, vulkan_physical *physical, sbp_diag *diag) SBP_CHECKED;

/* ---- buffer.c, arena.c
 * --------------------------------------------------------------------------------------- */

/* A buffer with memory of its own. */
typedef struct vulkan_buffer {
    VkBuffer buffer;
    VkDeviceMemory memory;
    VkDeviceAddress address;
    char *mapped; /* NULL: not visible to the host */
    int64_t bytes;
} vulkan_buffer;

typedef enum vulkan_usage {
    VULKAN_DEVICE_ARENA, /* where the device is fastest */
    VULKAN_HOST_ARENA,   /* host memory that the device reaches */
    VULKAN_UPLOAD,       /* host memory that the device reads */
    VULKAN_DOWNLOAD      /* host memory that the host reads */
} vulkan_usage;

/* A part of an arena: bytes start .. start + buffer.bytes. */
typedef struct vulkan_block {
    int64_t start;
    vulkan_buffer buffer;
} vulkan_block;

typedef struct vulkan_arena {
    vulkan_block *blocks;
    int32_t count;
    int64_t bytes;
} vulkan_arena;

/* ---- stream.c --------------------------------------------------------------------------------------- */

enum {
    VULKAN_COMPUTE,
    VULKAN_COPIES,
    VULKAN_STAGING,
    VULKAN_STREAMS,
    VULKAN_BATCHES = 4,              /* per stream: recorded or running at once */
    VULKAN_BATCH_COMMANDS = 256,     /* most commands of a batch */
    VULKAN_RECORD_BYTES = 256 << 10, /* argument records of a batch */
    VULKAN_STAGING_BYTES = 8 << 20
};

typedef struct vulkan_batch {
    VkCommandPool pool;
    VkCommandBuffer commands;
    vulkan_buffer records; /* argument records; of the staging stream: the data */
    int64_t used_bytes;
    int32_t count;
    uint64_t value; /* of the timeline when it is done; 0: never submitted */
} vulkan_batch;

/* A sequence of batches, each done before the next is known to be only by fences. */
typedef struct vulkan_stream {
    bool used;
    VkQueue queue;
    uint32_t family;
    bool computes; /* can dispatch */
    VkSemaphore timeline;
    uint64_t submitted;                /* last value */
    uint64_t wait_for[VULKAN_STREAMS]; /* what the next batch waits for */
    vulkan_batch batches[VULKAN_BATCHES];
    int32_t current;
    bool open, fenced; /* fenced: a barrier goes before the next command */
    int32_t limit;     /* commands of the open batch; grows while the device is behind */
    VkPipeline bound;
} vulkan_stream;

/* ---- pipeline.c ------------------------------------------------------------------------------------- */

typedef struct vulkan_pipeline {
    sbp_gpu_key key; /* of its module */
    VkPipeline pipeline;
} vulkan_pipeline;

/* ---- open.c --------------------------------------------------------------------------------------- */

typedef struct vulkan_device {
    sbp_device base;
    vulkan_api vk;
    vulkan_physical physical;
    VkDevice device;
    int32_t family_count;
    uint32_t families[2]; /* that buffers are shared by */
    vulkan_stream streams[VULKAN_STREAMS];
    bool separate;   /* queues in and out are the stream VULKAN_COPIES */
    VkResult broken; /* what a call failed with: nothing runs after it. VK_SUCCESS: none did */
    sbp_vulkan_machine machine;
    const sbp_program *program;
    const void *code;
    int64_t code_bytes;
    sbp_arena *arena; /* of the modules */
    vulkan_arena arenas[SBP_SPACE_COUNT];
    VkPipelineLayout layout;
    VkPipelineCache cache;
    vulkan_pipeline *pipelines; /* sorted by key */
    int32_t pipeline_count;
    uint64_t allocated_bytes; /* of the heap of the device space, by us */
} vulkan_device;

/* The device without queues host and disk (backends/composite). */
extern const sbp_device_class vulkan_backend_class;

/* Library, physical and logical device; no streams. Zeroed before; closed by vulkan_device_close in any case.
 */
sbp_status vulkan_device_open(vulkan_device *d, const sbp_device_options *options, const char *validation,
                              sbp_diag *diag) SBP_CHECKED;
void vulkan_device_close(vulkan_device *d);
/* Fails with what a call of Vulkan returned; memory, when it ran out, with what is needed and there is. From
 * then on commands are refused: what was submitted before may not have run. */
sbp_status vulkan_fail(vulkan_device *d, VkResult result, const char *what, sbp_diag *diag);
/* Leaves the calling function unless the call succeeded. */
#define VULKAN_TRY(d, diag, call)                                                                            \
    do {                                                                                                     \
        VkResult vulkan_result_ = (d)->vk.call;                                                              \
        if (vulkan_result_ != VK_SUCCESS)                                                                    \
            return vulkan_fail(d, vulkan_result_, #call, diag);                                              \
    } while (0)

sbp_status vulkan_buffer_create(vulkan_device *d, vulkan_usage usage, int64_t bytes, vulkan_buffer *out,
                                sbp_diag *diag) SBP_CHECKED;
void vulkan_buffer_destroy(vulkan_device *d, vulkan_buffer *buffer);
/* The arenas of d->program. */
sbp_status vulkan_arenas_create(vulkan_device *d, sbp_diag *diag) SBP_CHECKED;
void vulkan_arena_destroy(vulkan_device *d, vulkan_arena *arena);
/* The block that holds the bytes; SBP_INTERNAL when none holds all of them. bytes > 0. */
sbp_status vulkan_arena_find(vulkan_device *d, sbp_space space, int64_t offset, int64_t bytes,
                             const vulkan_block **out, sbp_diag *diag) SBP_CHECKED;
sbp_status vulkan_arena_write(sbp_device *base, sbp_space space, int64_t offset, const void *data,
                              int64_t bytes, sbp_diag *diag) SBP_CHECKED;
sbp_status vulkan_arena_read(sbp_device *base, sbp_space space, int64_t offset, void *data, int64_t bytes,
                             sbp_diag *diag) SBP_CHECKED;

sbp_status vulkan_streams_create(vulkan_device *d, sbp_diag *diag) SBP_CHECKED;
void vulkan_streams_destroy(vulkan_device *d);
/* A command buffer of the stream to record one command into, behind the barrier that fences asked for, and
 * record_bytes (maybe 0) of memory for its arguments. */
sbp_status vulkan_stream_begin(vulkan_device *d, int32_t stream, int64_t record_bytes, VkCommandBuffer *out,
                               void **record, VkDeviceAddress *address, sbp_diag *diag) SBP_CHECKED;
/* Commands of `to` after this start when those of `from` before it are done. */
sbp_status vulkan_stream_order(vulkan_device *d, int32_t from, int32_t to, sbp_diag *diag) SBP_CHECKED;
sbp_status vulkan_stream_submit(vulkan_device *d, int32_t stream, sbp_diag *diag) SBP_CHECKED;
sbp_status vulkan_stream_wait(vulkan_device *d, int32_t stream, uint64_t value, sbp_diag *diag) SBP_CHECKED;
/* Submits all and waits for all; reports what the validation layer found. */
sbp_status vulkan_wait_all(vulkan_device *d, sbp_diag *diag) SBP_CHECKED;
void vulkan_barrier(const vulkan_device *d, VkCommandBuffer commands, bool to_host);

/* Pipelines of the modules in the plan's section "kernels". */
sbp_status vulkan_pipelines_create(vulkan_device *d, const void *code, int64_t bytes,
                                   sbp_diag *diag) SBP_CHECKED;
void vulkan_pipelines_destroy(vulkan_device *d);
/* NULL when the plan has no such module. */
const vulkan_pipeline *vulkan_pipeline_find(const vulkan_device *d, const sbp_gpu_key *key);

/* trust.c: computes a matmul in every way that uses cooperative matrices; warns, and takes them out of
 * d->machine, when one is wrong. Behind vulkan_pipelines_create. */
sbp_status vulkan_matrix_check(vulkan_device *d, sbp_diag *diag) SBP_CHECKED;

/* command.c */
sbp_status vulkan_command_record(sbp_device *base, const sbp_dispatch *dispatch, sbp_diag *diag) SBP_CHECKED;

#endif
