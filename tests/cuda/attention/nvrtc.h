/* nvrtc.h: CUDA C to PTX by the library NVRTC, found when a test runs: on the path of libraries, in the CUDA
 * toolkit, or in build/cuda-tools, where pip puts it. Needs no device. One thread. */
#ifndef SBP_TESTS_CUDA_NVRTC_H
#define SBP_TESTS_CUDA_NVRTC_H

#include <stdbool.h>

/* What came of a compilation; `log` holds what ptxas says of registers and spills. The caller frees the
 * texts. */
typedef struct nvrtc_result {
    char *ptx, *log;
    bool ok;
} nvrtc_result;

/* False when there is no NVRTC; *reason then says so. */
bool nvrtc_open(const char **reason);
/* arch: "90a". The text is compiled as it is, without headers. */
nvrtc_result nvrtc_compile(const char *text, const char *arch);
void nvrtc_free(nvrtc_result *result);

#endif
