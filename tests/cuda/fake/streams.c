/* streams.c: streams and events of the fake driver. A stream is a list of what is still to do; it is done
 * when somebody waits, in a random order between streams that the events allow. Work that waits for another
 * process is tried again and again (fake_cuda_work). */
#include "tests/cuda/fake/driver.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST_STREAMS = 64, MOST_EVENTS = 4096, MOST_QUEUED = 4096, DATA_ALIGNMENT = 64 };

/* A record of an event: who waits for the event waits for its last record before that. */
typedef struct record {
    bool done;
    double ms;     /* when, by a clock that goes on as work says */
    int32_t users; /* the event, the stream that comes to it, streams that wait */
} record;

typedef enum kind { WORK, RECORD, WAIT } kind;

typedef struct item {
    struct item *next;
    kind kind;
    record *record;
    fake_cuda_work *work;
    _Alignas(DATA_ALIGNMENT) unsigned char data[];
} item;

struct cuda_stream_handle {
    int32_t id; /* 0: free */
    item *head, *tail;
};

struct cuda_event_handle {
    int32_t id;
    uint32_t flags;
    record *last;
};

static struct cuda_stream_handle streams[MOST_STREAMS];
static struct cuda_event_handle events[MOST_EVENTS];
static int32_t queued;
static bool others_first; /* what is not ready waits for another stream */
static double clock_ms;

static void leave(record *r) {
    if (r && --r->users == 0)
        free(r);
}

static void drop_head(cuda_stream stream) {
    item *x = stream->head;
    stream->head = x->next;
    if (!stream->head)
        stream->tail = NULL;
    leave(x->record);
    free(x);
    queued--;
}

void fake_streams_reset(void) {
    for (int s = 0; s < MOST_STREAMS; s++) {
        while (streams[s].head)
            drop_head(&streams[s]);
        streams[s].id = 0;
    }
    for (int e = 0; e < MOST_EVENTS; e++) {
        leave(events[e].last);
        events[e] = (struct cuda_event_handle){0};
    }
}

static bool is_event(cuda_event event) {
    return event >= events && event < events + MOST_EVENTS && event->id > 0;
}

int32_t fake_cuda_stream(cuda_stream stream) {
    return stream >= streams && stream < streams + MOST_STREAMS ? stream->id : 0;
}

/* ---- running ---------------------------------------------------------------------------------------- */

static bool may_run(const struct cuda_stream_handle *stream) {
    return stream->head && (stream->head->kind != WAIT || stream->head->record->done);
}

/* False: it is not ready, and stays where it is. */
static bool run_head(cuda_stream stream) {
    item *x = stream->head;
    if (x->kind == RECORD) {
        x->record->done = true;
        x->record->ms = clock_ms;
    }
    if (x->kind == WORK && fake.sticky == CUDA_OK) {
        cuda_result result = x->work(x->data);
        if (result == CUDA_NOT_READY)
            return false;
        fake.sticky = result;
    }
    drop_head(stream);
    return true;
}

static cuda_stream any_that_may_run(void) {
    cuda_stream found = NULL;
    uint64_t seen = 0;
    for (int s = 0; s < MOST_STREAMS; s++)
        if (may_run(&streams[s]) && fake_random() % ++seen == 0)
            found = &streams[s];
    return found;
}

/* The stream that must go on before this one can: a record always stands before those who wait for it. */
static cuda_stream needed_for(cuda_stream stream) {
    while (!may_run(stream)) {
        const record *wanted = stream->head->record;
        cuda_stream found = NULL;
        for (int s = 0; s < MOST_STREAMS; s++)
            for (const item *x = streams[s].head; x; x = x->next)
                if (x->kind == RECORD && x->record == wanted)
                    found = &streams[s];
        stream = found;
    }
    return stream;
}

/* Whether the stream is empty now; false: it waits for another process. */
static bool go_on(cuda_stream stream) {
    bool late = fake_number("late", -1) >= 0;
    while (stream->head) {
        if (!late && fake_random() % 2)
            (void)run_head(any_that_may_run());
        if (stream->head && !run_head(needed_for(stream)))
            return false;
    }
    return true;
}

/* Lets the driver's own thread, and other processes, do something. */
static void pause_unlocked(void) {
    const int locked = 1;
    fake_cuda_unlock(&locked);
    nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    (void)fake_cuda_lock();
}

void fake_streams_go_on(void) {
    for (int s = 0; s < MOST_STREAMS; s++)
        if (streams[s].id > 0)
            (void)go_on(&streams[s]);
}

void fake_cuda_wait_for_others(void) {
    others_first = true;
}

static bool go_on_with_others(cuda_stream stream) {
    others_first = false;
    bool done = go_on(stream);
    if (!done && others_first)
        fake_streams_go_on();
    return done || !stream->head;
}

static cuda_result drain(cuda_stream stream) {
    while (!go_on_with_others(stream))
        pause_unlocked();
    return fake.sticky;
}

static cuda_result push(cuda_stream stream, const item *what, const void *data, size_t bytes) {
    size_t size = (sizeof *what + bytes + DATA_ALIGNMENT - 1) / DATA_ALIGNMENT * DATA_ALIGNMENT;
    item *x = aligned_alloc(DATA_ALIGNMENT, size);
    if (!x)
        return CUDA_OUT_OF_MEMORY;
    memcpy(x, what, sizeof *x);
    if (bytes > 0)
        memcpy(x->data, data, bytes);
    if (stream->tail)
        stream->tail->next = x;
    else
        stream->head = x;
    stream->tail = x;
    if (x->record)
        x->record->users++;
    if (++queued > MOST_QUEUED) /* a driver's lists are not endless either */
        while (queued > MOST_QUEUED / 2)
            if (!run_head(any_that_may_run()))
                pause_unlocked();
    return CUDA_OK;
}

cuda_result fake_cuda_enqueue(cuda_stream stream, fake_cuda_work *work, const void *data, size_t bytes) {
    FAKE_LOCKED;
    if (fake_cuda_stream(stream) == 0)
        return fake_cuda_wrong(CUDA_INVALID_HANDLE, "no such stream, or the default one");
    return push(stream, &(item){.kind = WORK, .work = work}, data, bytes);
}

cuda_result fake_cuda_enqueue_behind(struct record **last, cuda_stream stream, fake_cuda_work *work,
                                     const void *data, size_t bytes) {
    FAKE_LOCKED;
    record *r = calloc(1, sizeof *r);
    cuda_result result = r ? CUDA_OK : CUDA_OUT_OF_MEMORY;
    if (r)
        r->users = 1;
    if (result == CUDA_OK && *last)
        result = push(stream, &(item){.kind = WAIT, .record = *last}, NULL, 0);
    if (result == CUDA_OK)
        result = fake_cuda_enqueue(stream, work, data, bytes);
    if (result == CUDA_OK)
        result = push(stream, &(item){.kind = RECORD, .record = r}, NULL, 0);
    leave(*last);
    *last = r;
    return result;
}

void fake_cuda_forget(struct record **last) {
    FAKE_LOCKED;
    leave(*last);
    *last = NULL;
}

/* ---- the driver's functions ------------------------------------------------------------------------- */

cuda_result cuStreamCreate(cuda_stream *stream, uint32_t flags) {
    FAKE_ENTER(true);
    for (int s = 0; s < MOST_STREAMS; s++)
        if (streams[s].id == 0) {
            streams[s] = (struct cuda_stream_handle){.id = ++fake.ids};
            *stream = &streams[s];
            fake_cuda_count(1);
            fake_cuda_log("cuStreamCreate -> s%d, flags %u", streams[s].id, flags);
            return CUDA_OK;
        }
    return CUDA_OUT_OF_MEMORY;
}

/* What is in it still runs, as with a driver. */
cuda_result cuStreamDestroy(cuda_stream stream) {
    FAKE_LOCKED;
    cuda_result result = fake_cuda_enter(__func__, true);
    if (fake_cuda_stream(stream) == 0)
        return fake_cuda_wrong(CUDA_INVALID_HANDLE, "cuStreamDestroy: no such stream");
    (void)drain(stream);
    fake_cuda_log("cuStreamDestroy s%d", stream->id);
    stream->id = 0;
    fake_cuda_count(-1);
    return result;
}

/* A device that is lost does nothing more, but what ran has come to an end. */
cuda_result cuStreamSynchronize(cuda_stream stream) {
    FAKE_LOCKED;
    cuda_result result = fake_cuda_enter(__func__, true);
    if (fake_cuda_stream(stream) == 0)
        return fake_cuda_wrong(CUDA_INVALID_HANDLE, "cuStreamSynchronize: no such stream");
    fake_cuda_log("cuStreamSynchronize s%d", stream->id);
    cuda_result drained = drain(stream);
    return result != CUDA_OK ? result : drained;
}

/* What is asked for goes on. */
cuda_result cuStreamQuery(cuda_stream stream) {
    FAKE_ENTER(true);
    if (fake_cuda_stream(stream) == 0)
        return fake_cuda_wrong(CUDA_INVALID_HANDLE, "cuStreamQuery: no such stream");
    bool done = go_on_with_others(stream);
    return fake.sticky != CUDA_OK ? fake.sticky : done ? CUDA_OK : CUDA_NOT_READY;
}

cuda_result cuEventQuery(cuda_event event) {
    FAKE_ENTER(true);
    if (!is_event(event))
        return fake_cuda_wrong(CUDA_INVALID_HANDLE, "cuEventQuery: no such event");
    return !event->last || event->last->done ? CUDA_OK : CUDA_NOT_READY;
}

cuda_result cuEventCreate(cuda_event *event, uint32_t flags) {
    FAKE_ENTER(true);
    for (int e = 0; e < MOST_EVENTS; e++)
        if (events[e].id == 0) {
            events[e] = (struct cuda_event_handle){.id = ++fake.ids};
            events[e].flags = flags;
            *event = &events[e];
            fake_cuda_count(1);
            fake_cuda_log("cuEventCreate -> e%d, flags %u", events[e].id, flags);
            return CUDA_OK;
        }
    return CUDA_OUT_OF_MEMORY;
}

cuda_result cuEventDestroy(cuda_event event) {
    FAKE_LOCKED;
    cuda_result result = fake_cuda_enter(__func__, true);
    if (!is_event(event))
        return fake_cuda_wrong(CUDA_INVALID_HANDLE, "cuEventDestroy: no such event");
    fake_cuda_log("cuEventDestroy e%d", event->id);
    leave(event->last);
    *event = (struct cuda_event_handle){0};
    fake_cuda_count(-1);
    return result;
}

cuda_result cuEventRecord(cuda_event event, cuda_stream stream) {
    FAKE_ENTER(true);
    if (!is_event(event) || fake_cuda_stream(stream) == 0)
        return fake_cuda_wrong(CUDA_INVALID_HANDLE, "cuEventRecord: no such event or stream");
    record *r = calloc(1, sizeof *r);
    if (!r)
        return CUDA_OUT_OF_MEMORY;
    leave(event->last);
    event->last = r;
    r->users = 1;
    fake_cuda_log("cuEventRecord e%d, s%d", event->id, stream->id);
    return push(stream, &(item){.kind = RECORD, .record = r}, NULL, 0);
}

void fake_cuda_take_time(double ms) {
    clock_ms += ms;
}

cuda_result cuEventElapsedTime(float *milliseconds, cuda_event from, cuda_event to) {
    FAKE_ENTER(true);
    if (!is_event(from) || !is_event(to) || ((from->flags | to->flags) & CUDA_EVENT_DISABLE_TIMING) ||
        !from->last || !to->last)
        return fake_cuda_wrong(CUDA_INVALID_HANDLE,
                               "cuEventElapsedTime: no events of which the time is known");
    if (!from->last->done || !to->last->done)
        return CUDA_NOT_READY;
    *milliseconds = (float)(to->last->ms - from->last->ms);
    return CUDA_OK;
}

cuda_result cuStreamWaitEvent(cuda_stream stream, cuda_event event, uint32_t flags) {
    FAKE_ENTER(true);
    if (!is_event(event) || fake_cuda_stream(stream) == 0 || flags != 0)
        return fake_cuda_wrong(CUDA_INVALID_HANDLE, "cuStreamWaitEvent: no such event or stream");
    fake_cuda_log("cuStreamWaitEvent s%d, e%d", stream->id, event->id);
    if (!event->last) /* never recorded: nothing to wait for */
        return CUDA_OK;
    return push(stream, &(item){.kind = WAIT, .record = event->last}, NULL, 0);
}
