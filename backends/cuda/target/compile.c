/* compile.c: all kernels of a program: which there are, and their code, on as many threads as there are
 * cores. */
#include "backends/cuda/library.h"
#include "backends/cuda/target/target.h"
#include "ir/base/machine.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* ---- which ------------------------------------------------------------------------------------------- */

typedef struct collector {
    sbp_arena *arena;
    sbp_diag *diag;
    const sbp_program *program;
    const sbp_cuda_arch *archs;
    int32_t arch_count;
    sbp_cuda_source *sources;
    int32_t count, capacity;
} collector;

static bool is_known(const collector *c, const sbp_gpu_key *key, sbp_cuda_arch arch) {
    for (int32_t i = 0; i < c->count; i++)
        if (sbp_gpu_key_compare(&c->sources[i].key, key) == 0 && c->sources[i].arch.number == arch.number &&
            c->sources[i].arch.specific == arch.specific)
            return true;
    return false;
}

static sbp_status collect_command(void *user, const sbp_command *command, const sbp_dtype *dtypes) {
    collector *c = user;
    const sbp_rowkernel *kernel = sbp_command_kernel(c->program, command);
    for (int32_t a = 0; a < c->arch_count; a++) {
        sbp_gpu_key keys[SBP_CUDA_STEPS * SBP_CUDA_VARIANTS];
        int32_t count = sbp_cuda_keys(command, dtypes, kernel, c->archs[a], keys);
        for (int32_t i = 0; i < count; i++) {
            sbp_cuda_source source;
            if (is_known(c, &keys[i], c->archs[a]))
                continue;
            SBP_TRY(sbp_cuda_source_make(c->arena, c->diag, c->program, command, dtypes, &keys[i],
                                         c->archs[a], &source));
            SBP_PUSH(c->arena, c->sources, c->count, c->capacity, source);
        }
    }
    return SBP_OK;
}

sbp_status sbp_cuda_sources(sbp_arena *arena, sbp_diag *diag, const sbp_program *program,
                            const sbp_cuda_arch *archs, int32_t arch_count, sbp_cuda_source **out,
                            int32_t *count) {
    collector c = {
        .arena = arena, .diag = diag, .program = program, .archs = archs, .arch_count = arch_count};
    sbp_status status = sbp_gpu_each_command(program, collect_command, &c);
    *out = c.sources;
    *count = c.count;
    return status;
}

/* ---- their code -------------------------------------------------------------------------------------- */

enum {
    MOST_THREADS = 16,
    CACHE_BYTES = 1 << 30 /* what the cache may grow to; a model's kernels are some MB */
};

typedef struct work {
    const sbp_cuda_nvrtc *nvrtc;
    sbp_cuda_cache cache;
    const sbp_cuda_source *sources;
    sbp_cuda_object *objects;
    int32_t count;
    atomic_int next, compiled;
    atomic_bool stop;
} work;

typedef struct worker {
    work *work;
    sbp_diag *diag; /* its own */
    sbp_status status;
    int32_t source; /* at which it failed */
} worker;

static sbp_status compile_one(work *w, sbp_diag *diag, int32_t i) {
    const sbp_cuda_source *source = &w->sources[i];
    uint64_t identity = sbp_cuda_nvrtc_identity(w->nvrtc, source);
    if (sbp_cuda_cache_get(&w->cache, identity, source, &w->objects[i]))
        return SBP_OK;
    SBP_TRY(sbp_cuda_nvrtc_compile(w->nvrtc, diag, source, &w->objects[i]));
    atomic_fetch_add(&w->compiled, 1);
    sbp_cuda_cache_put(&w->cache, identity, source, &w->objects[i]);
    return SBP_OK;
}

static void *run_worker(void *user) {
    worker *me = user;
    for (int32_t i; me->status == SBP_OK && !atomic_load(&me->work->stop) &&
                    (i = atomic_fetch_add(&me->work->next, 1)) < me->work->count;) {
        me->source = i;
        me->status = compile_one(me->work, me->diag, i);
    }
    if (me->status != SBP_OK)
        atomic_store(&me->work->stop, true);
    return NULL;
}

/* The message of the first source that failed, so that it does not depend on who was faster. */
static sbp_status take_failure(sbp_diag *diag, const worker *workers, int32_t count) {
    const worker *first = NULL;
    for (int32_t i = 0; i < count; i++)
        if (workers[i].status != SBP_OK && (!first || workers[i].source < first->source))
            first = &workers[i];
    if (!first)
        return SBP_OK;
    const char *text = sbp_diag_text(first->diag, SBP_ERROR), *start = "error: ";
    text += strncmp(text, start, strlen(start)) == 0 ? strlen(start) : 0;
    return sbp_fail(diag, first->status, "%s", text);
}

static sbp_status run_workers(work *w, sbp_diag *diag) {
    worker workers[MOST_THREADS] = {0};
    pthread_t threads[MOST_THREADS];
    int32_t wanted = sbp_machine_cores(), made = 0, started = 0;
    wanted = wanted > MOST_THREADS ? MOST_THREADS : wanted;
    wanted = wanted > w->count ? w->count : wanted;
    for (; made < wanted; made++) {
        workers[made] = (worker){.work = w, .diag = sbp_diag_create()};
        if (!workers[made].diag)
            break;
    }
    sbp_status status =
        made > 0 || wanted == 0 ? SBP_OK : sbp_fail(diag, SBP_MACHINE, "out of memory for compiling kernels");
    for (; started + 1 < made; started++)
        if (pthread_create(&threads[started], NULL, run_worker, &workers[started + 1]) != 0)
            break;
    if (made > 0)
        run_worker(&workers[0]);
    for (int32_t i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    if (status == SBP_OK)
        status = take_failure(diag, workers, made);
    for (int32_t i = 0; i < made; i++)
        sbp_diag_destroy(workers[i].diag);
    return status;
}

sbp_status sbp_cuda_compile_all(sbp_diag *diag, const sbp_cuda_source *sources, int32_t count,
                                sbp_cuda_object *objects, int32_t *compiled) {
    work w = {.sources = sources, .objects = objects, .count = count};
    sbp_cuda_nvrtc *nvrtc;
    *compiled = 0;
    for (int32_t i = 0; i < count; i++)
        objects[i] = (sbp_cuda_object){0};
    if (count == 0)
        return SBP_OK;
    SBP_TRY(sbp_cuda_nvrtc_open(diag, &nvrtc));
    w.nvrtc = nvrtc;
    sbp_cuda_cache_open(&w.cache);
    sbp_status status = run_workers(&w, diag);
    *compiled = atomic_load(&w.compiled);
    if (*compiled > 0)
        sbp_cuda_cache_trim(&w.cache, CACHE_BYTES);
    sbp_cuda_nvrtc_close(nvrtc);
    return status;
}

/* ---- what another compiler made worse ---------------------------------------------------------------- */

/* Whether two sources are steps of one variant of one command, for one architecture. */
static bool go_together(const sbp_cuda_source *a, const sbp_cuda_source *b) {
    sbp_gpu_key key = a->key;
    key.step = b->key.step;
    return sbp_gpu_key_compare(&key, &b->key) == 0 && a->arch.number == b->arch.number &&
           a->arch.specific == b->arch.specific;
}

void sbp_cuda_drop_faulty(sbp_diag *diag, const sbp_cuda_source *sources, sbp_cuda_object *objects,
                          int32_t count) {
    const char *why[2] = {NULL, NULL}; /* of the first that stays, that is left out */
    char name[2][SBP_CUDA_SOURCE_NAME];
    for (int32_t i = 0; i < count; i++) {
        sbp_cuda_resources resources;
        const char *fault =
            objects[i].data ? sbp_cuda_log_fault(sbp_cuda_object_log(&objects[i]), &resources) : NULL;
        if (!fault)
            continue;
        /* a log of another wording says nothing against the kernel */
        bool drop = sources[i].key.variant != SBP_CUDA_PLAIN && sbp_cuda_resources_known(&resources);
        if (!why[drop])
            sbp_cuda_source_name(&sources[i], name[drop]);
        why[drop] = why[drop] ? why[drop] : fault;
        for (int32_t k = 0; drop && k < count; k++)
            if (go_together(&sources[i], &sources[k])) {
                free(objects[k].data);
                objects[k] = (sbp_cuda_object){0};
            }
    }
    const char *advice = sbp_cuda_library_package(SBP_CUDA_NVRTC);
    if (why[1])
        sbp_warn(
            diag,
            "cuda: this NVRTC does not compile kernel %s well (%s): the plan does without it and those like "
            "it, and is slower. `pip install %s` brings the one that does",
            name[1], why[1], advice);
    if (why[0])
        sbp_warn(diag,
                 "cuda: this NVRTC does not compile kernel %s well (%s): it may be slower. `pip install %s` "
                 "brings the one that does",
                 name[0], why[0], advice);
}
