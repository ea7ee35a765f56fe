/* library.h: NVIDIA's libraries, opened when something needs them. Looked for, in this order:
 *
 *   1. the folders of LD_LIBRARY_PATH
 *   2. where the loader looks by itself (its cache, the system's folders)
 *   3. $CUDA_HOME, $CUDA_PATH, /usr/local/cuda: lib64, lib
 *   4. $VIRTUAL_ENV and $CONDA_PREFIX: the lib folders of pip's packages, and lib
 *   5. the environment of the python3 that PATH names first, then where rented machines keep environments
 *      that nobody has activated (~, /opt, /venv, /workspace), and /usr/local/cuda-*
 *
 * NVRTC and cuBLASLt of CUDA 12 are taken where those of CUDA 13 are nowhere, and are looked for first where
 * the driver is older than CUDA 13: it would refuse what NVRTC 13 compiles.
 *
 * The driver's library only in 1 and 2: a toolkit has stubs of that name. SBP_CUDA_LIBRARIES=DIR[:DIR..] in
 * the environment, for tests: in these folders and nowhere else.
 *
 * Threads: opening may happen on any thread; the environment must not change meanwhile. */
#ifndef SBP_CUDA_LIBRARY_H
#define SBP_CUDA_LIBRARY_H

#include "ir/base/base.h"

typedef enum sbp_cuda_library_id {
#define LIBRARY(id, file, older, beside, what, package) SBP_CUDA_##id,
#include "backends/cuda/libraries.def"
#undef LIBRARY
    SBP_CUDA_LIBRARIES
} sbp_cuda_library_id;

/* All zeros: not open. */
typedef struct sbp_cuda_library {
    void *handle, *beside; /* of dlopen */
    char path[4096];       /* of its file */
} sbp_cuda_library;

/* A function of a library, and where in a table of functions it belongs. From a .def file of
 * SYMBOL(name, result, arguments):
 *
 *     struct api {
 *     #define SYMBOL(name, result, ...) result (*name)(__VA_ARGS__);
 *     ..
 *     static const sbp_cuda_symbol symbols[] = {
 *     #define SYMBOL(name, result, ...) {#name, offsetof(struct api, name)}, */
typedef struct sbp_cuda_symbol {
    const char *name;
    size_t offset;
} sbp_cuda_symbol;

/* "libnvrtc.so.13"; "NVRTC, which compiles kernels"; "nvidia-cuda-nvrtc==13.0.88", "" when it comes with the
 * driver. */
const char *sbp_cuda_library_file(sbp_cuda_library_id id);
const char *sbp_cuda_library_what(sbp_cuda_library_id id);
const char *sbp_cuda_library_package(sbp_cuda_library_id id);

/* SBP_MACHINE when there is none, or none that loads: every place that was tried, why it would not do, and
 * what brings the library. */
sbp_status sbp_cuda_library_open(sbp_cuda_library_id id, sbp_diag *diag, sbp_cuda_library *out) SBP_CHECKED;
/* Fills a table of functions. SBP_MACHINE names the first that is missing and the file. */
sbp_status sbp_cuda_library_symbols(const sbp_cuda_library *library, const sbp_cuda_symbol *symbols,
                                    int32_t count, void *table, sbp_diag *diag) SBP_CHECKED;
/* NULL when there is none of that name. */
void *sbp_cuda_library_symbol(const sbp_cuda_library *library, const char *name);
/* From now on it stays loaded when it is closed, until the process ends: some leak what they allocate when
 * they are loaded. */
void sbp_cuda_library_keep(const sbp_cuda_library *library);
/* Does nothing for one that is not open. */
void sbp_cuda_library_close(sbp_cuda_library *library);

#endif
