/* timeline.c: when each command began and how long it took, by events around it (SBP_CUDA_TIMELINE=FILE).
 * Events are read a batch at a time, with all streams empty: a run that is watched is slower between batches,
 * its commands are not. */
#include "backends/cuda/device/cuda.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ir/base/json_write.h"

enum { BATCH = 1024 };

/* A command: matmuls and attention are known by their sizes, rows by their kernel. */
typedef struct timed {
    cuda_event begin, end;
    int32_t queue;
    const char *command;
    char kernel[61];
    int64_t rows, cols, depth;
} timed;

struct cuda_timeline {
    FILE *file;
    cuda_event origin;
    timed *timed; /* BATCH, their events made when first used */
    int32_t count;
};

sbp_status cuda_timeline_create(cuda_device *d, sbp_diag *diag) {
    const char *path = getenv("SBP_CUDA_TIMELINE");
    if (!path || !*path)
        return SBP_OK;
    struct cuda_timeline *t = sbp_malloc(sizeof *t);
    if (!t)
        return sbp_fail(diag, SBP_MACHINE, "out of memory for the events of a GPU");
    memset(t, 0, sizeof *t);
    d->timeline = t;
    t->timed = sbp_malloc(BATCH * sizeof *t->timed);
    if (!t->timed)
        return sbp_fail(diag, SBP_MACHINE, "out of memory for the events of a GPU");
    memset(t->timed, 0, BATCH * sizeof *t->timed);
    t->file = fopen(path, "we");
    if (!t->file)
        return sbp_fail(diag, SBP_IO, "SBP_CUDA_TIMELINE: cannot write %s: %s", path, strerror(errno));
    CUDA_TRY(d, diag, cuEventCreate(&t->origin, 0));
    CUDA_TRY(d, diag, cuEventRecord(t->origin, d->streams[CUDA_COMPUTE]));
    return SBP_OK;
}

void cuda_timeline_destroy(cuda_device *d) {
    struct cuda_timeline *t = d->timeline;
    if (!t)
        return;
    for (int32_t i = 0; t->timed && i < BATCH; i++) {
        if (t->timed[i].begin)
            (void)d->api.calls.cuEventDestroy(t->timed[i].begin);
        if (t->timed[i].end)
            (void)d->api.calls.cuEventDestroy(t->timed[i].end);
    }
    if (t->origin)
        (void)d->api.calls.cuEventDestroy(t->origin);
    if (t->file)
        (void)fclose(t->file);
    free(t->timed);
    free(t);
    d->timeline = NULL;
}

/* The lines of a batch, in the arena. */
typedef struct batch_text {
    cuda_device *d;
    sbp_arena *arena;
    sbp_diag *diag;
    int32_t count;
    sbp_text out;
} batch_text;

static sbp_status write_batch(void *user) {
    batch_text *b = user;
    cuda_device *d = b->d;
    const struct cuda_timeline *t = d->timeline;
    sbp_text_init(&b->out, b->arena);
    for (int32_t i = 0; i < b->count; i++) {
        const timed *x = &t->timed[i];
        float begin, took;
        CUDA_TRY(d, b->diag, cuEventElapsedTime(&begin, t->origin, x->begin));
        CUDA_TRY(d, b->diag, cuEventElapsedTime(&took, x->begin, x->end));
        sbp_json_writer w = sbp_json_writer_on(&b->out);
        sbp_json_write_object(&w, NULL);
        sbp_json_write_string(&w, "queue", sbp_queue_names[x->queue]);
        sbp_json_write_fixed(&w, "begin_ms", (double)begin, 4);
        sbp_json_write_fixed(&w, "ms", (double)took, 4);
        sbp_json_write_string(&w, "command", x->command);
        sbp_json_write_string(&w, "kernel", x->kernel);
        sbp_json_write_int(&w, "rows", x->rows);
        sbp_json_write_int(&w, "cols", x->cols);
        sbp_json_write_int(&w, "depth", x->depth);
        sbp_json_write_end(&w);
        sbp_text_add(&b->out, "\n");
    }
    return SBP_OK;
}

sbp_status cuda_timeline_flush(cuda_device *d, sbp_diag *diag) {
    struct cuda_timeline *t = d->timeline;
    batch_text b = {.d = d, .diag = diag, .count = t ? t->count : 0};
    if (b.count == 0)
        return SBP_OK;
    t->count = 0;
    for (int s = 0; s < CUDA_STREAMS; s++)
        if (d->streams[s])
            SBP_TRY(cuda_synchronize(d, d->streams[s], diag));
    b.arena = sbp_arena_create();
    if (!b.arena)
        return sbp_fail(diag, SBP_MACHINE, "out of memory for the events of a GPU");
    sbp_status status = sbp_guard(b.arena, diag, write_batch, &b);
    if (status == SBP_OK)
        (void)fwrite(b.out.data, 1, b.out.length, t->file); /* ferror knows */
    sbp_arena_destroy(b.arena);
    SBP_TRY(status);
    if (fflush(t->file) != 0 || ferror(t->file))
        return sbp_fail(diag, SBP_IO, "SBP_CUDA_TIMELINE: cannot be written: %s", strerror(errno));
    return SBP_OK;
}

static void describe(const cuda_device *d, const sbp_dispatch *dispatch, timed *x) {
    const sbp_command *c = dispatch->command;
    const sbp_span *s = dispatch->spans;
    bool some = dispatch->span_count > 0,
         matmul = sbp_command_attributes(c) == SBP_ATTRIBUTES_GEMM && dispatch->span_count > 1;
    const sbp_rowkernel *kernel = sbp_command_kernel(d->program, c);
    x->queue = c->queue;
    x->command = sbp_command_name(c->kind);
    snprintf(x->kernel, sizeof x->kernel, "%s", kernel ? kernel->name : "");
    x->rows = some ? s[0].rows : 0;
    x->cols = some ? s[0].cols : 0;
    x->depth = !matmul ? 0 : c->u.gemm.ta ? s[1].rows : s[1].cols;
}

sbp_status cuda_timeline_begin(cuda_device *d, const sbp_dispatch *dispatch, sbp_diag *diag) {
    struct cuda_timeline *t = d->timeline;
    if (!t)
        return SBP_OK;
    if (t->count == BATCH)
        SBP_TRY(cuda_timeline_flush(d, diag));
    timed *x = &t->timed[t->count];
    if (!x->begin)
        CUDA_TRY(d, diag, cuEventCreate(&x->begin, 0));
    if (!x->end)
        CUDA_TRY(d, diag, cuEventCreate(&x->end, 0));
    describe(d, dispatch, x);
    CUDA_TRY(d, diag, cuEventRecord(x->begin, d->streams[cuda_stream_of(x->queue)]));
    return SBP_OK;
}

sbp_status cuda_timeline_end(cuda_device *d, sbp_diag *diag) {
    struct cuda_timeline *t = d->timeline;
    if (!t)
        return SBP_OK;
    timed *x = &t->timed[t->count];
    CUDA_TRY(d, diag, cuEventRecord(x->end, d->streams[cuda_stream_of(x->queue)]));
    t->count++;
    return SBP_OK;
}
