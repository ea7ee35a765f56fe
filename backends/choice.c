/* choice.c: which backend a plan is for. */
#include "backends/choice.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef SBP_HAS_CUDA_PROBE
#include "backends/cuda/cuda_probe.h"
#include "backends/cuda/library.h"
#endif
#ifdef SBP_HAS_VULKAN_PROBE
#include "backends/vulkan/vulkan_probe.h"
#endif
#include "ir/base/machine.h"

/* Why a device does not come into question; NULL: it does. */
static const char *objection(const sbp_candidate *device, bool fp64) {
    if (device->software)
        return "which is software";
    if (device->missing[0])
        return device->missing;
    return fp64 && !device->fp64 ? "which does not compute in fp64" : NULL;
}

static void take_device(const sbp_choice_backend *backend, const sbp_candidate *device, sbp_choice *out) {
    out->backend = backend->name;
    out->memory_bytes = device->free_bytes;
    snprintf(out->arch, sizeof out->arch, "%s", device->arch);
    snprintf(out->reason, sizeof out->reason, "%s", device->name);
}

static void add_reason(sbp_choice *out, const char *before, const char *text, const char *after) {
    size_t length = strlen(out->reason);
    snprintf(out->reason + length, sizeof out->reason - length, "%s%s%s", before, text, after);
}

/* "no Vulkan GPU: only llvmpipe, which is software" */
static void explain(const sbp_choice_wish *wish, const sbp_choice_backend *backend, sbp_choice *out) {
    add_reason(out, out->reason[0] ? "; no " : "no ", backend->title, " GPU: ");
    for (int32_t i = 0; i < backend->count; i++) {
        const sbp_candidate *device = &backend->devices[i];
        const char *why = objection(device, wish->fp64);
        add_reason(out, i > 0 ? "; " : backend->count == 1 ? "only " : "", device->name, ", ");
        add_reason(out, "", why ? why : "which comes before --device", "");
    }
    if (backend->count == 0)
        add_reason(out, "", backend->none, "");
}

static void choose_automatically(const sbp_choice_wish *wish, const sbp_choice_backend *backends,
                                 int32_t count, sbp_choice *out) {
    bool compiles = false, present = false;
    for (int32_t b = 0; b < count; b++) {
        compiles |= backends[b].compiles;
        present |= backends[b].compiles && !backends[b].absent;
        for (int32_t i = wish->device; backends[b].compiles && i < backends[b].count; i++)
            if (!objection(&backends[b].devices[i], wish->fp64)) {
                take_device(&backends[b], &backends[b].devices[i], out);
                return;
            }
    }
    if (!compiles)
        snprintf(out->reason, sizeof out->reason, "this build compiles for no GPU");
    for (int32_t b = 0; b < count; b++)
        if (backends[b].compiles && (!present || !backends[b].absent))
            explain(wish, &backends[b], out);
}

void sbp_choice_make(const sbp_choice_wish *wish, const sbp_choice_backend *backends, int32_t count,
                     int64_t host_bytes, sbp_choice *out) {
    *out = (sbp_choice){.backend = "cpu", .memory_bytes = host_bytes};
    if (strcmp(wish->backend, "auto") == 0) {
        choose_automatically(wish, backends, count, out);
        return;
    }
    if (strcmp(wish->backend, "cpu") != 0)
        out->memory_bytes = 0;
    for (int32_t b = 0; b < count; b++)
        if (strcmp(wish->backend, backends[b].name) == 0 && wish->device < backends[b].count)
            take_device(&backends[b], &backends[b].devices[wish->device], out);
    out->backend = wish->backend;
    snprintf(out->reason, sizeof out->reason, "asked for");
}

/* ---- this machine ----------------------------------------------------------------------------------- */

enum { BACKENDS = 2, NONE_BYTES = 256 };

/* What a probe found. */
typedef struct probed {
    sbp_candidate *devices;
    char none[NONE_BYTES];
} probed;

typedef sbp_status probe_function(sbp_diag *diag, sbp_candidate **out, int32_t *count);

/* The message without "error: ", the name of the backend and the end of the line. */
static void copy_reason(sbp_diag *diag, const char *name, char *out, size_t size) {
    const char *text = sbp_diag_text(diag, SBP_ERROR);
    const char *start = strncmp(text, "error: ", 7) == 0 ? text + 7 : text;
    size_t length = strlen(name);
    start = strncmp(start, name, length) == 0 && strncmp(start + length, ": ", 2) == 0 ? start + length + 2
                                                                                       : start;
    snprintf(out, size, "%.*s", (int)strcspn(start, "\n"), start);
}

static sbp_status probe(probe_function *function, sbp_diag *diag, probed *p, sbp_choice_backend *out) {
    sbp_diag *why = sbp_diag_create();
    if (!why)
        return sbp_fail(diag, SBP_MACHINE, "out of memory");
    sbp_status status = function(why, &p->devices, &out->count);
    if (status != SBP_OK)
        copy_reason(why, out->name, p->none, sizeof p->none);
    sbp_diag_destroy(why);
    if (strcmp(p->none, "out of memory") == 0) /* of the host: another time there may be a device */
        return sbp_fail(diag, SBP_MACHINE, "%s", p->none);
    out->devices = p->devices;
    out->none = p->none;
    return SBP_OK;
}

#ifdef SBP_HAS_CUDA_PROBE
/* Whether a library of NVIDIA's can be opened. */
static bool has_library(sbp_cuda_library_id id) {
    sbp_cuda_library library;
    bool has = sbp_cuda_library_open(id, NULL, &library) == SBP_OK;
    if (has)
        sbp_cuda_library_keep(&library);
    sbp_cuda_library_close(&library);
    return has;
}

static sbp_status probe_cuda(sbp_diag *diag, probed *p, sbp_choice_backend *out) {
    out->compiles = true;
    out->absent = !has_library(SBP_CUDA_DRIVER);
    out->none = "its driver is not installed (libcuda.so.1)";
    if (out->absent)
        return SBP_OK;
    SBP_TRY(probe(sbp_cuda_probe, diag, p, out));
    bool compiles = out->count == 0 || has_library(SBP_CUDA_NVRTC);
    for (int32_t i = 0; i < out->count && !compiles; i++)
        if (!p->devices[i].missing[0])
            snprintf(p->devices[i].missing, sizeof p->devices[i].missing,
                     "for which nothing can be compiled without %s (pip install %s)",
                     sbp_cuda_library_file(SBP_CUDA_NVRTC), sbp_cuda_library_package(SBP_CUDA_NVRTC));
    return SBP_OK;
}
#endif

static sbp_status find_here(const sbp_choice_wish *wish, sbp_diag *diag, sbp_choice *out) {
    sbp_choice_backend backends[BACKENDS] = {
        {.name = "cuda", .title = "CUDA", .absent = true, .none = "this build knows none"},
        {.name = "vulkan", .title = "Vulkan", .none = "this build knows none"}};
    probed found[BACKENDS] = {0};
    sbp_status status = SBP_OK;
    int64_t host_bytes = sbp_machine_memory_available(); /* before drivers take of it */
    bool any = strcmp(wish->backend, "auto") == 0;
    (void)probe, (void)any;
#ifdef SBP_HAS_CUDA_PROBE
    if (any || strcmp(wish->backend, "cuda") == 0)
        status = probe_cuda(diag, &found[0], &backends[0]);
#endif
#ifdef SBP_COMPILES_VULKAN
    backends[1].compiles = true;
#ifdef SBP_HAS_VULKAN_PROBE
    if (status == SBP_OK && (any || strcmp(wish->backend, "vulkan") == 0))
        status = probe(sbp_vulkan_probe, diag, &found[1], &backends[1]);
#endif
#endif
    if (status == SBP_OK)
        sbp_choice_make(wish, backends, BACKENDS, host_bytes, out);
    for (int i = 0; i < BACKENDS; i++)
        free(found[i].devices);
    return status;
}

/* ---- in a process of its own ------------------------------------------------------------------------ */

/* What that process says. */
typedef struct answer {
    sbp_status status;
    sbp_choice choice; /* but backend, which is a pointer */
    char backend[16], message[1024];
} answer;

static void answer_in_child(const sbp_choice_wish *wish, int to) {
    answer a = {.status = SBP_MACHINE, .message = "out of memory"};
    sbp_diag *diag = sbp_diag_create();
    if (diag) {
        a.status = find_here(wish, diag, &a.choice);
        if (a.status == SBP_OK)
            snprintf(a.backend, sizeof a.backend, "%s", a.choice.backend);
        else
            copy_reason(diag, "", a.message, sizeof a.message);
    }
    a.choice.backend = NULL;
    (void)!write(to, &a, sizeof a); /* a short answer is none */
    _exit(0);
}

static bool read_answer(int from, answer *out) {
    size_t length = 0;
    while (length < sizeof *out) {
        ssize_t got = read(from, (char *)out + length, sizeof *out - length);
        if (got == 0 || (got < 0 && errno != EINTR))
            return false;
        if (got > 0)
            length += (size_t)got;
    }
    return true;
}

/* The name as this process has it. */
static const char *backend_name(const char *name) {
    static const char *const names[] = {"cuda", "vulkan"};
    for (int i = 0; i < SBP_COUNT(names); i++)
        if (strcmp(name, names[i]) == 0)
            return names[i];
    return "cpu";
}

/* Drivers stay in a process that has opened them once, with what they are made of: software ones are
 * compilers of some 50 MiB. And they may crash. Where there can be no other process they are asked here. */
sbp_status sbp_choice_find(const sbp_choice_wish *wish, sbp_diag *diag, sbp_choice *out) {
    int ends[2], how = 0;
    if (strcmp(wish->backend, "cpu") == 0 || pipe2(ends, O_CLOEXEC) != 0)
        return find_here(wish, diag, out);
    pid_t child = fork();
    if (child == 0)
        answer_in_child(wish, ends[1]);
    close(ends[1]);
    answer a;
    bool answered = child > 0 && read_answer(ends[0], &a);
    close(ends[0]);
    while (child > 0 && waitpid(child, &how, 0) < 0 && errno == EINTR) {
    }
    if (child < 0)
        return find_here(wish, diag, out);
    if (!answered)
        return sbp_fail(
            diag, SBP_MACHINE,
            "a driver ended the process that asked it for its devices (%s %d): --backend cpu does "
            "without",
            WIFSIGNALED(how) ? "signal" : "exit status", WIFSIGNALED(how) ? WTERMSIG(how) : WEXITSTATUS(how));
    if (a.status != SBP_OK)
        return sbp_fail(diag, a.status, "%s", a.message);
    *out = a.choice;
    out->backend = backend_name(a.backend);
    return SBP_OK;
}
