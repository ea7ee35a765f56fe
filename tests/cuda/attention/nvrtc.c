/* nvrtc.c: finds and calls NVRTC. */
#include "tests/cuda/attention/nvrtc.h"

#include <dlfcn.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct program *program; /* nvrtcProgram */

static struct {
    void *library;
    int (*create)(program *, const char *, const char *, int, const char *const *, const char *const *);
    int (*compile)(program, int, const char *const *);
    int (*ptx_size)(program, size_t *);
    int (*ptx)(program, char *);
    int (*log_size)(program, size_t *);
    int (*log)(program, char *);
    int (*destroy)(program *);
} api;

static bool try_open(const char *path) {
    api.library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    return api.library != NULL;
}

static bool find_library(void) {
    static const char *const patterns[] = {"/usr/local/cuda/lib64/libnvrtc.so.1*",
                                           "build/cuda-tools/nvidia/*/lib/libnvrtc.so.1*"};
    if (try_open("libnvrtc.so.13") || try_open("libnvrtc.so.12") || try_open("libnvrtc.so"))
        return true;
    for (int i = 0; i < 2; i++) {
        glob_t found;
        bool opened = false;
        if (glob(patterns[i], 0, NULL, &found) == 0) {
            for (size_t j = 0; j < found.gl_pathc && !opened; j++)
                opened = try_open(found.gl_pathv[j]);
            globfree(&found);
        }
        if (opened)
            return true;
    }
    return false;
}

static bool find_symbol(void *to, const char *name) {
    void *at = dlsym(api.library, name);
    *(void **)to = at;
    return at != NULL;
}

bool nvrtc_open(const char **reason) {
    if (api.library)
        return true;
    *reason = "there is no libnvrtc (LD_LIBRARY_PATH, /usr/local/cuda, build/cuda-tools)";
    if (!find_library())
        return false;
    *reason = "libnvrtc lacks functions";
    return find_symbol((void *)&api.create, "nvrtcCreateProgram") &&
           find_symbol((void *)&api.compile, "nvrtcCompileProgram") &&
           find_symbol((void *)&api.ptx_size, "nvrtcGetPTXSize") &&
           find_symbol((void *)&api.ptx, "nvrtcGetPTX") &&
           find_symbol((void *)&api.log_size, "nvrtcGetProgramLogSize") &&
           find_symbol((void *)&api.log, "nvrtcGetProgramLog") &&
           find_symbol((void *)&api.destroy, "nvrtcDestroyProgram");
}

static char *get_text(program p, int (*size)(program, size_t *), int (*get)(program, char *)) {
    size_t bytes = 0;
    if (size(p, &bytes) != 0)
        return NULL;
    char *text = calloc(bytes + 1, 1);
    if (text && bytes > 0)
        get(p, text);
    return text;
}

nvrtc_result nvrtc_compile(const char *text, const char *arch) {
    nvrtc_result result = {0};
    program p;
    char option[32];
    snprintf(option, sizeof option, "-arch=sm_%s", arch);
    const char *const options[] = {option, "--ptxas-options=-v", "-std=c++17"};
    if (api.create(&p, text, "kernel.cu", 0, NULL, NULL) != 0)
        return result;
    result.ok = api.compile(p, 3, options) == 0;
    result.log = get_text(p, api.log_size, api.log);
    if (result.ok)
        result.ptx = get_text(p, api.ptx_size, api.ptx);
    api.destroy(&p);
    return result;
}

void nvrtc_free(nvrtc_result *result) {
    free(result->ptx);
    free(result->log);
    *result = (nvrtc_result){0};
}
