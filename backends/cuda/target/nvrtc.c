/* nvrtc.c: the text of a kernel to a cubin and PTX, and what the compiler said about it. */
#include "backends/cuda/cuda_delta.h"
#include "backends/cuda/library.h"
#include "backends/cuda/target/target.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

typedef struct api {
#define SYMBOL(name, result, ...) result (*name)(__VA_ARGS__);
#include "backends/cuda/target/nvrtc.def"
#undef SYMBOL
} api;

struct sbp_cuda_nvrtc {
    sbp_cuda_library library;
    api api;
    char name[32];
    uint64_t identity; /* of the library */
};

enum { OPTIONS = 4, OPTION_BYTES = 48 };

/* A real architecture, so that cubin and PTX come from one compilation. The language is C++17 as NVRTC has
 * it; no folder of headers is given. */
static int32_t make_options(const sbp_cuda_source *source, char options[OPTIONS][OPTION_BYTES]) {
    char arch[16];
    sbp_cuda_arch_text(source->arch, arch);
    snprintf(options[0], OPTION_BYTES, "--gpu-architecture=%s", arch);
    snprintf(options[1], OPTION_BYTES, "--ptxas-options=-v");
    int32_t count = 2;
    if (source->exact)
        snprintf(options[count++], OPTION_BYTES, "--fmad=false");
    /* text that is made, and rowmath.h, declare more than each kernel uses */
    sbp_attributes attributes = sbp_command_traits_of((sbp_command_kind)source->key.kind)->attributes;
    if (attributes == SBP_ATTRIBUTES_ROW || attributes == SBP_ATTRIBUTES_DELTA)
        snprintf(options[count++], OPTION_BYTES, "--diag-suppress=177,186,550");
    return count;
}

/* ---- the library ------------------------------------------------------------------------------------- */

/* Its version has no third number, but builds of one version may differ: the size of the file tells them
 * apart. */
static uint64_t identity_of(const sbp_cuda_nvrtc *nvrtc) {
    struct stat about;
    int64_t bytes = stat(nvrtc->library.path, &about) == 0 ? (int64_t)about.st_size : 0;
    return sbp_hash_bytes(nvrtc->name, strlen(nvrtc->name), (uint64_t)bytes);
}

sbp_status sbp_cuda_nvrtc_open(sbp_diag *diag, sbp_cuda_nvrtc **out) {
    static const sbp_cuda_symbol symbols[] = {
#define SYMBOL(name, result, ...) {#name, offsetof(api, name)},
#include "backends/cuda/target/nvrtc.def"
#undef SYMBOL
    };
    int major = 0, minor = 0;
    sbp_cuda_nvrtc *nvrtc = sbp_malloc(sizeof *nvrtc);
    *out = NULL;
    if (!nvrtc)
        return sbp_fail(diag, SBP_MACHINE, "out of memory for compiling kernels");
    memset(nvrtc, 0, sizeof *nvrtc);
    sbp_status status = sbp_cuda_library_open(SBP_CUDA_NVRTC, diag, &nvrtc->library);
    if (status == SBP_OK)
        status = sbp_cuda_library_symbols(&nvrtc->library, symbols, SBP_COUNT(symbols), &nvrtc->api, diag);
    if (status == SBP_OK && nvrtc->api.nvrtcVersion(&major, &minor) != 0)
        status = sbp_fail(diag, SBP_MACHINE, "%s does not say its version", nvrtc->library.path);
    if (status != SBP_OK) {
        sbp_cuda_nvrtc_close(nvrtc);
        return status;
    }
    sbp_cuda_library_keep(&nvrtc->library);
    snprintf(nvrtc->name, sizeof nvrtc->name, "NVRTC %d.%d", major, minor);
    nvrtc->identity = identity_of(nvrtc);
    *out = nvrtc;
    return SBP_OK;
}

void sbp_cuda_nvrtc_close(sbp_cuda_nvrtc *nvrtc) {
    if (nvrtc)
        sbp_cuda_library_close(&nvrtc->library);
    free(nvrtc);
}

const char *sbp_cuda_nvrtc_name(const sbp_cuda_nvrtc *nvrtc) {
    return nvrtc->name;
}

uint64_t sbp_cuda_nvrtc_identity(const sbp_cuda_nvrtc *nvrtc, const sbp_cuda_source *source) {
    char options[OPTIONS][OPTION_BYTES];
    uint64_t hash = nvrtc->identity;
    int32_t count = make_options(source, options);
    for (int32_t i = 0; i < count; i++)
        hash = sbp_hash_bytes(options[i], strlen(options[i]) + 1, hash);
    return hash;
}

/* ---- compiling --------------------------------------------------------------------------------------- */

void sbp_cuda_source_name(const sbp_cuda_source *source, char text[SBP_CUDA_SOURCE_NAME]) {
    char name[SBP_GPU_NAME], arch[16];
    sbp_gpu_key_text(&source->key, sbp_cuda_variant_names[source->key.variant], name);
    sbp_cuda_arch_text(source->arch, arch);
    snprintf(text, SBP_CUDA_SOURCE_NAME, "%s for %s", name, arch);
}

/* Whatever went wrong, with the compiler's own words: of a long log from the first error on. */
static sbp_status fail_log(sbp_diag *diag, const sbp_cuda_source *source, const char *what, const char *log) {
    char name[SBP_CUDA_SOURCE_NAME];
    const char *error = strstr(log, "error");
    sbp_cuda_source_name(source, name);
    while (error && error > log && error[-1] != '\n')
        error--;
    return sbp_fail(diag, SBP_INTERNAL, "kernel %s: %s:\n%.2000s", name, what, error ? error : log);
}

static sbp_status take_log(const sbp_cuda_nvrtc *nvrtc, sbp_diag *diag, const sbp_cuda_source *source,
                           void *program, int result) {
    size_t bytes = 0;
    char *log = NULL;
    if (nvrtc->api.nvrtcGetProgramLogSize(program, &bytes) == 0 && bytes > 0 &&
        (log = sbp_malloc(bytes + 1)) != NULL) {
        log[0] = log[bytes] = 0;
        if (nvrtc->api.nvrtcGetProgramLog(program, log) != 0)
            log[0] = 0;
    }
    sbp_status status = fail_log(diag, source, nvrtc->api.nvrtcGetErrorString(result), log ? log : "");
    free(log);
    return status;
}

static sbp_status take_results(const sbp_cuda_nvrtc *nvrtc, sbp_diag *diag, const sbp_cuda_source *source,
                               void *program, sbp_cuda_object *out) {
    const api *n = &nvrtc->api;
    size_t cubin = 0, ptx = 0, log = 0;
    if (n->nvrtcGetCUBINSize(program, &cubin) != 0 || n->nvrtcGetPTXSize(program, &ptx) != 0 ||
        n->nvrtcGetProgramLogSize(program, &log) != 0 || cubin == 0 || ptx == 0 || log == 0)
        return fail_log(diag, source, "the compiler gave no code", "");
    out->data = sbp_malloc(cubin + ptx + log);
    if (!out->data)
        return sbp_fail(diag, SBP_MACHINE, "out of memory for compiling kernels");
    out->cubin_bytes = (int64_t)cubin;
    out->ptx_bytes = (int64_t)ptx;
    out->log_bytes = (int64_t)log;
    if (n->nvrtcGetCUBIN(program, out->data) != 0 || n->nvrtcGetPTX(program, out->data + cubin) != 0 ||
        n->nvrtcGetProgramLog(program, out->data + cubin + ptx) != 0)
        return fail_log(diag, source, "the compiler kept its code", "");
    out->data[cubin + ptx - 1] = out->data[cubin + ptx + log - 1] = 0;
    return SBP_OK;
}

sbp_status sbp_cuda_nvrtc_compile(const sbp_cuda_nvrtc *nvrtc, sbp_diag *diag, const sbp_cuda_source *source,
                                  sbp_cuda_object *out) {
    char texts[OPTIONS][OPTION_BYTES];
    const char *options[OPTIONS];
    void *program = NULL;
    int32_t count = make_options(source, texts);
    *out = (sbp_cuda_object){0};
    for (int32_t i = 0; i < count; i++)
        options[i] = texts[i];
    int result = nvrtc->api.nvrtcCreateProgram(&program, source->text, "kernel.cu", 0, NULL, NULL);
    if (result != 0)
        return fail_log(diag, source, nvrtc->api.nvrtcGetErrorString(result), "");
    result = nvrtc->api.nvrtcCompileProgram(program, count, options);
    sbp_status status = result == 0 ? take_results(nvrtc, diag, source, program, out)
                                    : take_log(nvrtc, diag, source, program, result);
    nvrtc->api.nvrtcDestroyProgram(&program);
    if (status != SBP_OK) {
        free(out->data);
        *out = (sbp_cuda_object){0};
    }
    return status;
}

/* ---- the log ----------------------------------------------------------------------------------------- */

/* The number before a word: "0 bytes stack frame, .."; -1: there is none. */
static int32_t number_before(const char *log, const char *word) {
    const char *at = strstr(log, word);
    int64_t value = 0, unit = 1;
    if (!at || at == log)
        return -1;
    while (at > log && at[-1] >= '0' && at[-1] <= '9' && unit <= 100000000) {
        value += unit * (*--at - '0');
        unit *= 10;
    }
    return unit > 1 ? (int32_t)value : -1;
}

bool sbp_cuda_resources_known(const sbp_cuda_resources *r) {
    return r->registers >= 0 && r->stack_bytes >= 0 && r->spill_store_bytes >= 0 && r->spill_load_bytes >= 0;
}

const char *sbp_cuda_log_fault(const char *log, sbp_cuda_resources *out) {
    *out = (sbp_cuda_resources){.registers = number_before(log, " registers"),
                                .shared_bytes = number_before(log, " bytes smem"),
                                .stack_bytes = number_before(log, " bytes stack frame"),
                                .spill_store_bytes = number_before(log, " bytes spill stores"),
                                .spill_load_bytes = number_before(log, " bytes spill loads")};
    if (out->shared_bytes < 0)
        out->shared_bytes = 0;
    if (!sbp_cuda_resources_known(out))
        return "the compiler's log does not say what it takes";
    if (out->spill_store_bytes > 0 || out->spill_load_bytes > 0)
        return "registers do not suffice";
    return strstr(log, "C75") || strstr(log, "warning") ? "the compiler warns" : NULL;
}

sbp_status sbp_cuda_resources_read(sbp_diag *diag, const sbp_cuda_source *source, const char *log,
                                   sbp_cuda_resources *out) {
    const char *fault = sbp_cuda_log_fault(log, out);
    return fault ? fail_log(diag, source, fault, log) : SBP_OK;
}
