/* timeline.c: when each command began and how long it took, by events around it (SBP_CUDA_TIMELINE=FILE).
 * Events are read a batch at a time, with all streams empty: a run that is watched is slower between batches,
 * its commands are not. */
#include "backends/cuda/device/cuda.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 1024, TEXT_BYTES = 256 };

typedef struct timed {
    cuda_event begin, end;
    int32_t queue;
    char text[TEXT_BYTES];
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
        return sbp_fail(diag, SBP_MACHINE, "out of memory");
    memset(t, 0, sizeof *t);
    d->timeline = t;
    t->timed = sbp_malloc(BATCH * sizeof *t->timed);
    if (!t->timed)
        return sbp_fail(diag, SBP_MACHINE, "out of memory");
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

sbp_status cuda_timeline_flush(cuda_device *d, sbp_diag *diag) {
    struct cuda_timeline *t = d->timeline;
    int32_t count = t ? t->count : 0;
    if (count == 0)
        return SBP_OK;
    t->count = 0;
    for (int s = 0; s < CUDA_STREAMS; s++)
        if (d->streams[s])
            SBP_TRY(cuda_synchronize(d, d->streams[s], diag));
    for (int32_t i = 0; i < count; i++) {
        float begin, took;
        CUDA_TRY(d, diag, cuEventElapsedTime(&begin, t->origin, t->timed[i].begin));
        CUDA_TRY(d, diag, cuEventElapsedTime(&took, t->timed[i].begin, t->timed[i].end));
        fprintf(t->file, "{\"queue\": \"%s\", \"begin_ms\": %.4f, \"ms\": %.4f, %s}\n",
                sbp_queue_names[t->timed[i].queue], (double)begin, (double)took, t->timed[i].text);
    }
    if (fflush(t->file) != 0 || ferror(t->file))
        return sbp_fail(diag, SBP_IO, "SBP_CUDA_TIMELINE: cannot be written: %s", strerror(errno));
    return SBP_OK;
}

/* What a command is, as members of a JSON object: products and attention by their sizes, rows by their
 * kernel. */
static void describe(const cuda_device *d, const sbp_dispatch *dispatch, char text[TEXT_BYTES]) {
    const sbp_command *c = dispatch->command;
    const sbp_span *s = dispatch->spans;
    const char *kernel = c->kind == SBP_CMD_ROW ? d->program->kernels[c->kernel]->name : "";
    bool some = dispatch->span_count > 0, product = c->kind == SBP_CMD_GEMM && dispatch->span_count > 1;
    snprintf(text, TEXT_BYTES,
             "\"command\": \"%s\", \"kernel\": \"%.60s\", \"rows\": %lld, \"cols\": %lld, \"depth\": %lld",
             sbp_command_name(c->kind), kernel, some ? (long long)s[0].rows : 0,
             some ? (long long)s[0].cols : 0,
             product ? (long long)(c->u.gemm.ta ? s[1].rows : s[1].cols) : 0);
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
    x->queue = dispatch->command->queue;
    describe(d, dispatch, x->text);
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
