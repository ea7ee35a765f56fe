/* target.h: the parts of the CUDA target. Private to backends/cuda.
 *
 * An image is made in three steps: the text of a kernel (text.c picks and joins files of kernels/), NVRTC
 * (nvrtc.c), or what it said of the same text before (cache.c). */
#ifndef SBP_CUDA_TARGET_TARGET_H
#define SBP_CUDA_TARGET_TARGET_H

#include "backends/cuda/abi.h"

/* ---- text -------------------------------------------------------------------------------------------- */

/* Those of kernels/, and rowmath.h. */
extern const sbp_gpu_file sbp_cuda_files[];

/* A kernel for one architecture, as text. */
typedef struct sbp_cuda_source {
    sbp_gpu_key key;
    sbp_cuda_arch arch;
    const char *text;
    size_t bytes; /* of the text */
    bool exact;   /* no product and sum become one operation unless the text says so */
} sbp_cuda_source;

/* "attn_fwd.. for sm_90a" */
enum { SBP_CUDA_SOURCE_NAME = SBP_GPU_NAME + 24 };
void sbp_cuda_source_name(const sbp_cuda_source *source, char text[SBP_CUDA_SOURCE_NAME]);

/* The kernel of a key of a command (sbp_cuda_keys). Below a guard. SBP_MACHINE for what no kernel does. */
sbp_status sbp_cuda_source_make(sbp_arena *arena, sbp_diag *diag, const sbp_program *program,
                                const sbp_command *command, const sbp_dtype *dtypes, const sbp_gpu_key *key,
                                sbp_cuda_arch arch, sbp_cuda_source *out) SBP_CHECKED;

/* ---- NVRTC ------------------------------------------------------------------------------------------- */

/* What a kernel takes, as the compiler says. Bytes of local memory per thread: stack, and what of it are
 * registers that did not fit, stored and loaded. */
typedef struct sbp_cuda_resources {
    int32_t registers, shared_bytes, stack_bytes, spill_store_bytes, spill_load_bytes;
} sbp_cuda_resources;

/* What NVRTC made of a source: a cubin, PTX (text, with its zero), and its log; one after the other in
 * `data`, freed by the caller with free(). */
typedef struct sbp_cuda_object {
    char *data;
    int64_t cubin_bytes, ptx_bytes, log_bytes; /* log_bytes: with its zero */
} sbp_cuda_object;
static inline const char *sbp_cuda_object_ptx(const sbp_cuda_object *object) {
    return object->data + object->cubin_bytes;
}
static inline const char *sbp_cuda_object_log(const sbp_cuda_object *object) {
    return object->data + object->cubin_bytes + object->ptx_bytes;
}

typedef struct sbp_cuda_nvrtc sbp_cuda_nvrtc;
/* SBP_MACHINE when there is none (library.h). */
sbp_status sbp_cuda_nvrtc_open(sbp_diag *diag, sbp_cuda_nvrtc **out) SBP_CHECKED;
void sbp_cuda_nvrtc_close(sbp_cuda_nvrtc *nvrtc);
/* "NVRTC 13.0" */
const char *sbp_cuda_nvrtc_name(const sbp_cuda_nvrtc *nvrtc);
/* Tells apart what may give other code for the same text: the library, and the options of a source. */
uint64_t sbp_cuda_nvrtc_identity(const sbp_cuda_nvrtc *nvrtc, const sbp_cuda_source *source);
/* Thread safe. SBP_INTERNAL with the compiler's messages when the text is wrong. */
sbp_status sbp_cuda_nvrtc_compile(const sbp_cuda_nvrtc *nvrtc, sbp_diag *diag, const sbp_cuda_source *source,
                                  sbp_cuda_object *out) SBP_CHECKED;
/* What a log says. Why the kernel is not what it should be: it has spills, a warning of the compiler's back
 * end (C75xx: what was meant to run side by side does not), or a log that does not say what it takes. NULL:
 * it is. */
const char *sbp_cuda_log_fault(const char *log, sbp_cuda_resources *out);
/* Whether the log said all of it: another compiler may say it in other words. */
bool sbp_cuda_resources_known(const sbp_cuda_resources *resources);
/* The same; SBP_INTERNAL for a kernel with a fault. */
sbp_status sbp_cuda_resources_read(sbp_diag *diag, const sbp_cuda_source *source, const char *log,
                                   sbp_cuda_resources *out) SBP_CHECKED;

/* ---- the cache --------------------------------------------------------------------------------------- */

/* Objects by what they were made from, files in $XDG_CACHE_HOME/streambp/cuda (or ~/.cache/streambp/cuda).
 * Two processes may use it at once; a damaged file counts as none; without a place to write nothing is kept.
 * Thread safe. */
typedef struct sbp_cuda_cache {
    char folder[3072]; /* "": there is none */
} sbp_cuda_cache;
void sbp_cuda_cache_open(sbp_cuda_cache *cache);
/* False: it is not there. */
bool sbp_cuda_cache_get(const sbp_cuda_cache *cache, uint64_t identity, const sbp_cuda_source *source,
                        sbp_cuda_object *out);
void sbp_cuda_cache_put(const sbp_cuda_cache *cache, uint64_t identity, const sbp_cuda_source *source,
                        const sbp_cuda_object *object);
/* Removes the entries that were not used for longest, until at most `bytes` bytes are left. */
void sbp_cuda_cache_trim(const sbp_cuda_cache *cache, int64_t bytes);

/* ---- all of a program -------------------------------------------------------------------------------- */

/* Objects of all sources, on several threads, from the cache or from NVRTC. objects: as many, each freed by
 * the caller also on failure (data NULL: none). compiled: how many the cache did not have. */
sbp_status sbp_cuda_compile_all(sbp_diag *diag, const sbp_cuda_source *sources, int32_t count,
                                sbp_cuda_object *objects, int32_t *compiled) SBP_CHECKED;

/* Leaves out variants with a fault (sbp_cuda_log_fault), as another NVRTC than ours may make them: all steps
 * of one, freed, data NULL. Devices take the next best there. What has no other variant stays. One warning
 * names the first of each. */
void sbp_cuda_drop_faulty(sbp_diag *diag, const sbp_cuda_source *sources, sbp_cuda_object *objects,
                          int32_t count);

/* What sbp_target.compile makes of a program for these architectures, before it becomes bytes: one object per
 * source. Below a guard. */
sbp_status sbp_cuda_sources(sbp_arena *arena, sbp_diag *diag, const sbp_program *program,
                            const sbp_cuda_arch *archs, int32_t arch_count, sbp_cuda_source **out,
                            int32_t *count) SBP_CHECKED;

#endif
