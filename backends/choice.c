/* choice.c: which backend a plan is for. */
#include "backends/choice.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backends/backends.h"
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
static void explain(const sbp_choice_request *request, const sbp_choice_backend *backend, sbp_choice *out) {
    add_reason(out, out->reason[0] ? "; no " : "no ", backend->title, " GPU: ");
    for (int32_t i = 0; i < backend->count; i++) {
        const sbp_candidate *device = &backend->devices[i];
        const char *why = objection(device, request->fp64);
        add_reason(out, i > 0 ? "; " : backend->count == 1 ? "only " : "", device->name, ", ");
        add_reason(out, "", why ? why : "which comes before --device", "");
    }
    if (backend->count == 0)
        add_reason(out, "", backend->none, "");
}

static void choose_automatically(const sbp_choice_request *request, const sbp_choice_backend *backends,
                                 int32_t count, sbp_choice *out) {
    bool compiles = false, present = false;
    for (int32_t b = 0; b < count; b++) {
        compiles |= backends[b].compiles;
        present |= backends[b].compiles && !backends[b].absent;
        for (int32_t i = request->device;
             backends[b].compiles && backends[b].devices && i < backends[b].count; i++)
            if (!objection(&backends[b].devices[i], request->fp64)) {
                take_device(&backends[b], &backends[b].devices[i], out);
                return;
            }
    }
    if (!compiles)
        snprintf(out->reason, sizeof out->reason, "this build compiles for no GPU");
    for (int32_t b = 0; b < count; b++)
        if (backends[b].compiles && (!present || !backends[b].absent))
            explain(request, &backends[b], out);
}

void sbp_choice_make(const sbp_choice_request *request, const sbp_choice_backend *backends, int32_t count,
                     int64_t host_bytes, sbp_choice *out) {
    *out = (sbp_choice){.backend = sbp_backend_of_host()->name, .memory_bytes = host_bytes};
    if (strcmp(request->backend, "auto") == 0) {
        choose_automatically(request, backends, count, out);
        return;
    }
    if (!sbp_backend_is_a(request->backend, SBP_BACKEND_HOST))
        out->memory_bytes = 0;
    for (int32_t b = 0; b < count; b++)
        if (strcmp(request->backend, backends[b].name) == 0 && backends[b].devices &&
            request->device < backends[b].count)
            take_device(&backends[b], &backends[b].devices[request->device], out);
    out->backend = request->backend;
    snprintf(out->reason, sizeof out->reason, "asked for");
}

/* ---- this machine ----------------------------------------------------------------------------------- */

/* What this build has of the backends: whether it compiles for them; who asks for their devices, or NULL. */
#define BACKEND(name, title, is, without) sbp_probe sbp_##name##_probe;
#include "backends/backends.def"

static const struct side {
    bool compiles;
    sbp_probe *probe;
} sides[] = {
#define BACKEND(name, title, is, without)                                                                    \
    {SBP_TARGET_##name, SBP_BACKEND_BUILT(SBP_PROBE_##name, sbp_##name##_probe)},
#include "backends/backends.def"
};

enum { BACKENDS = SBP_COUNT(sides) };

/* The message without "error: ", the name of the backend and the end of the line. */
static void copy_reason(sbp_diag *diag, const char *name, char *out, size_t size) {
    const char *text = sbp_diag_text(diag, SBP_ERROR);
    const char *start = strncmp(text, "error: ", 7) == 0 ? text + 7 : text;
    size_t length = strlen(name);
    start = strncmp(start, name, length) == 0 && strncmp(start + length, ": ", 2) == 0 ? start + length + 2
                                                                                       : start;
    snprintf(out, size, "%.*s", (int)strcspn(start, "\n"), start);
}

static sbp_status probe(sbp_probe *function, sbp_diag *diag, sbp_probed *p, sbp_choice_backend *out) {
    sbp_diag *why = sbp_diag_create();
    if (!why)
        return sbp_fail(diag, SBP_MACHINE, "out of memory");
    sbp_status status = function(why, p);
    if (status != SBP_OK)
        copy_reason(why, out->name, p->none, sizeof p->none);
    sbp_diag_destroy(why);
    if (strcmp(p->none, "out of memory") == 0) /* of the host: another time there may be a device */
        return sbp_fail(diag, SBP_MACHINE, "%s", p->none);
    out->devices = p->devices;
    out->count = p->count;
    out->absent = p->absent;
    out->none = p->none;
    return SBP_OK;
}

static sbp_status find_here(const sbp_choice_request *request, sbp_diag *diag, sbp_choice *out) {
    sbp_choice_backend backends[BACKENDS];
    sbp_probed found[BACKENDS] = {0};
    int32_t count = 0;
    sbp_status status = SBP_OK;
    int64_t host_bytes = sbp_machine_memory_available(); /* before drivers take of it */
    bool any = strcmp(request->backend, "auto") == 0;
    for (int32_t i = 0; i < BACKENDS && status == SBP_OK; i++) {
        const sbp_backend *backend = sbp_backend_at(i);
        bool asked = any || strcmp(request->backend, backend->name) == 0;
        if (backend->is & (SBP_BACKEND_HOST | SBP_BACKEND_UNLISTED))
            continue;
        backends[count] = (sbp_choice_backend){.name = backend->name,
                                               .title = backend->title,
                                               .compiles = sides[i].compiles,
                                               .none = "this build knows none"};
        if (sides[i].compiles && sides[i].probe && asked)
            status = probe(sides[i].probe, diag, &found[count], &backends[count]);
        count++;
    }
    if (status == SBP_OK)
        sbp_choice_make(request, backends, count, host_bytes, out);
    for (int32_t i = 0; i < count; i++)
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

static void answer_in_child(const sbp_choice_request *request, int to) {
    answer a = {.status = SBP_MACHINE, .message = "out of memory"};
    sbp_diag *diag = sbp_diag_create();
    if (diag) {
        a.status = find_here(request, diag, &a.choice);
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

/* Drivers stay in a process that has opened them once, with what they are made of: software ones are
 * compilers of some 50 MiB. And they may crash. Where there can be no other process they are asked here. */
sbp_status sbp_choice_find(const sbp_choice_request *request, sbp_diag *diag, sbp_choice *out) {
    int ends[2], how = 0;
    if (sbp_backend_is_a(request->backend, SBP_BACKEND_HOST) || pipe2(ends, O_CLOEXEC) != 0)
        return find_here(request, diag, out);
    pid_t child = fork();
    if (child == 0)
        answer_in_child(request, ends[1]);
    close(ends[1]);
    answer a;
    bool answered = child > 0 && read_answer(ends[0], &a);
    close(ends[0]);
    while (child > 0 && waitpid(child, &how, 0) < 0 && errno == EINTR) {
    }
    if (child < 0)
        return find_here(request, diag, out);
    if (!answered)
        return sbp_fail(
            diag, SBP_MACHINE,
            "a driver ended the process that asked it for its devices (%s %d): --backend cpu does "
            "without",
            WIFSIGNALED(how) ? "signal" : "exit status", WIFSIGNALED(how) ? WTERMSIG(how) : WEXITSTATUS(how));
    if (a.status != SBP_OK)
        return sbp_fail(diag, a.status, "%s", a.message);
    *out = a.choice;
    out->backend = sbp_backend_find(a.backend)->name; /* as this process has it */
    return SBP_OK;
}
