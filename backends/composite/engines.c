/* engines.c: threads for queues, and the counts between them. */
#include "backends/composite/engines.h"
#include "ir/base/machine.h"
#include "ir/program/collective_steps.h"
#include "ir/program/traits.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Commands that wait in one queue, at most. They take memory that no plan could count exactly, so there are
 * few; enough that a queue has work while the thread that submits wakes up. */
enum { MOST_PENDING = 128 };

typedef struct engine {
    composite_engines *engines;
    int32_t queue;
    bool started;
    pthread_t thread;
    composite_item *head, *tail;
    int64_t submitted, done;
    int64_t fences[SBP_QUEUE_COUNT]; /* what the next command waits for */
    double rate, free_at;            /* bytes per second; when the last command was through at that rate */
    char message[512];               /* the last error of its commands */
} engine;

struct composite_engines {
    composite_run run;
    void *user;
    engine engines[SBP_QUEUE_COUNT];
    const sbp_program *program;
    int64_t node;
    pthread_mutex_t mutex; /* guards what follows, lists and counts */
    pthread_cond_t changed;
    int32_t sleepers;
    bool stop;
    sbp_status status; /* of the first command that failed */
    char message[sizeof((engine *)0)->message];
};

/* ---- items ------------------------------------------------------------------------------------------ */

composite_item *composite_item_create(const sbp_dispatch *dispatch) {
    size_t spans = (size_t)dispatch->span_count * sizeof *dispatch->spans, scalars = 0;
    if (dispatch->kernel && dispatch->scalars)
        scalars = (size_t)dispatch->kernel->scalar_count * sizeof *dispatch->scalars;
    composite_item *item = sbp_malloc(sizeof *item + spans + scalars);
    if (!item)
        return NULL;
    *item = (composite_item){.dispatch = *dispatch};
    char *behind = (char *)(item + 1);
    if (spans)
        memcpy(behind, dispatch->spans, spans);
    if (scalars)
        memcpy(behind + spans, dispatch->scalars, scalars);
    item->dispatch.spans = (const sbp_span *)(const void *)behind;
    item->dispatch.scalars = (const double *)(const void *)(behind + spans);
    return item;
}

/* ---- rates ------------------------------------------------------------------------------------------ */

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double span_bytes(const sbp_span *span) {
    return (double)(span->rows * span->cols * sbp_dtype_bytes(span->dtype));
}

static sbp_operand_shape shape_of(const sbp_span *span) {
    return (sbp_operand_shape){
        .rows = span->rows, .cols = span->cols, .dtype = span->dtype, .space = span->space};
}

/* By rank 0, whose share is no smaller than any other's. */
static double sent_bytes(const sbp_dispatch *dispatch, const sbp_program *program, int64_t node) {
    const sbp_operand_shape dst = shape_of(&dispatch->spans[SBP_COLLECTIVE_DST]),
                            src = shape_of(&dispatch->spans[SBP_COLLECTIVE_SRC]);
    const sbp_collective_world world = {.ranks = (int32_t)program->ranks,
                                        .group = (int32_t)program->group,
                                        .context = (int32_t)program->context,
                                        .node = (int32_t)node};
    const sbp_collective_call call = sbp_collective_call_of(dispatch->command, &dst, &src, &world);
    return (double)sbp_collective_sent(&call).bytes;
}

double composite_moved_bytes(const sbp_dispatch *dispatch, const sbp_program *program, int64_t node) {
    double bytes = 0;
    const sbp_command_traits *traits = sbp_command_traits_of(dispatch->command->kind);
    if (traits->attributes == SBP_ATTRIBUTES_COLLECTIVE)
        return sent_bytes(dispatch, program, node);
    int32_t count = traits->moves ? 1 : dispatch->span_count;
    for (int32_t k = 0; k < count; k++)
        if (dispatch->spans[k].space != SBP_SPACE_COUNT)
            bytes += span_bytes(&dispatch->spans[k]);
    return bytes;
}

/* Sleeps until a command that began at `begun` would be through at the queue's rate. */
static void throttle(engine *e, const sbp_dispatch *dispatch, double begun) {
    double start = e->free_at > begun ? e->free_at : begun;
    e->free_at = start + composite_moved_bytes(dispatch, e->engines->program, e->engines->node) / e->rate;
    struct timespec until = {.tv_sec = (time_t)e->free_at};
    until.tv_nsec = (long)((e->free_at - (double)until.tv_sec) * 1e9);
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) != 0)
        ;
}

/* ---- threads ---------------------------------------------------------------------------------------- */

/* With the mutex: until something has changed. */
static void sleep_until_change(composite_engines *engines) {
    engines->sleepers++;
    pthread_cond_wait(&engines->changed, &engines->mutex);
    engines->sleepers--;
}

static void tell(composite_engines *engines) {
    if (engines->sleepers > 0)
        pthread_cond_broadcast(&engines->changed);
}

static bool may_run(const composite_engines *engines, const composite_item *item) {
    for (int q = 0; q < SBP_QUEUE_COUNT; q++)
        if (engines->engines[q].done < item->after[q])
            return false;
    return true;
}

static void run_item(engine *e, const composite_item *item, sbp_diag *diag) {
    composite_engines *engines = e->engines;
    double begun = e->rate > 0 ? now() : 0;
    sbp_status status = engines->run(engines->user, &item->dispatch, diag);
    if (e->rate > 0)
        throttle(e, &item->dispatch, begun);
    if (status == SBP_OK)
        return;
    pthread_mutex_lock(&engines->mutex);
    if (engines->status == SBP_OK) {
        engines->status = status;
        memcpy(engines->message, e->message, sizeof engines->message);
    }
    pthread_mutex_unlock(&engines->mutex);
}

static void keep_message(void *user, sbp_severity severity, const char *text) {
    engine *e = user;
    if (severity == SBP_ERROR)
        snprintf(e->message, sizeof e->message, "%s", text);
}

static void *work(void *user) {
    engine *e = user;
    composite_engines *engines = e->engines;
    sbp_diag *diag = sbp_diag_create();
    if (diag)
        sbp_diag_set_sink(diag, keep_message, e);
    pthread_mutex_lock(&engines->mutex);
    for (;;) {
        while ((!e->head && !engines->stop) || (e->head && !may_run(engines, e->head)))
            sleep_until_change(engines);
        composite_item *item = e->head;
        if (!item)
            break;
        e->head = item->next;
        bool good = engines->status == SBP_OK;
        pthread_mutex_unlock(&engines->mutex);
        if (good)
            run_item(e, item, diag);
        free(item);
        pthread_mutex_lock(&engines->mutex);
        e->done++;
        tell(engines);
    }
    pthread_mutex_unlock(&engines->mutex);
    sbp_diag_destroy(diag);
    return NULL;
}

sbp_status composite_engines_create(composite_run run, void *user, const double rates[SBP_QUEUE_COUNT],
                                    const sbp_program *program, int64_t node, sbp_diag *diag,
                                    composite_engines **out) {
    *out = NULL;
    composite_engines *engines = sbp_malloc(sizeof *engines);
    if (!engines)
        return sbp_fail(diag, SBP_MACHINE, "out of memory for the queues of a device");
    *engines = (composite_engines){.run = run, .user = user, .program = program, .node = node};
    pthread_mutex_init(&engines->mutex, NULL);
    pthread_cond_init(&engines->changed, NULL);
    for (int32_t q = 0; q < SBP_QUEUE_COUNT; q++)
        engines->engines[q] = (engine){.engines = engines, .queue = q, .rate = rates[q]};
    *out = engines;
    return SBP_OK;
}

void composite_engines_destroy(composite_engines *engines) {
    if (!engines)
        return;
    pthread_mutex_lock(&engines->mutex);
    engines->stop = true;
    pthread_cond_broadcast(&engines->changed);
    pthread_mutex_unlock(&engines->mutex);
    for (int q = 0; q < SBP_QUEUE_COUNT; q++)
        if (engines->engines[q].started)
            pthread_join(engines->engines[q].thread, NULL);
    pthread_cond_destroy(&engines->changed);
    pthread_mutex_destroy(&engines->mutex);
    free(engines);
}

/* ---- submitting ------------------------------------------------------------------------------------- */

static sbp_status failure(composite_engines *engines, sbp_diag *diag) {
    if (engines->status == SBP_OK)
        return SBP_OK;
    return sbp_fail(diag, engines->status, "%s", engines->message);
}

sbp_status composite_engines_submit(composite_engines *engines, const sbp_dispatch *dispatch,
                                    sbp_diag *diag) {
    char limit[100];
    engine *e = &engines->engines[dispatch->command->queue];
    composite_item *item = composite_item_create(dispatch);
    if (!item)
        return sbp_fail(diag, SBP_MACHINE, "out of memory for the queues of a device");
    if (!e->started && pthread_create(&e->thread, NULL, work, e) != 0) {
        free(item);
        return sbp_fail(diag, SBP_MACHINE, "cannot start the thread of queue %s: %s",
                        sbp_queue_names[e->queue], sbp_machine_memory_text(limit, sizeof limit));
    }
    e->started = true;
    memcpy(item->after, e->fences, sizeof item->after);
    pthread_mutex_lock(&engines->mutex);
    if (e->submitted - e->done >= MOST_PENDING)
        while (e->submitted - e->done > MOST_PENDING / 2) /* not a switch of threads for every command */
            sleep_until_change(engines);
    sbp_status status = failure(engines, diag);
    if (status == SBP_OK) {
        if (e->head)
            e->tail->next = item;
        else
            e->head = item;
        e->tail = item;
        e->submitted++;
        tell(engines);
    }
    pthread_mutex_unlock(&engines->mutex);
    if (status != SBP_OK)
        free(item);
    return status;
}

void composite_engines_fence(composite_engines *engines, int32_t from, int32_t to) {
    engines->engines[to].fences[from] = engines->engines[from].submitted;
}

sbp_status composite_engines_wait(composite_engines *engines, int32_t queue, sbp_diag *diag) {
    pthread_mutex_lock(&engines->mutex);
    for (int32_t q = 0; q < SBP_QUEUE_COUNT; q++)
        while ((q == queue || queue == SBP_QUEUE_COUNT) &&
               engines->engines[q].done < engines->engines[q].submitted)
            sleep_until_change(engines);
    sbp_status status = failure(engines, diag);
    pthread_mutex_unlock(&engines->mutex);
    return status;
}
