/* composite.c: sends commands to the part of the device that runs their queue. */
#include "backends/composite/composite.h"
#include "backends/composite/disk.h"
#include "backends/composite/engines.h"
#include "backends/composite/shuffle.h"
#include "backends/ranks/ranks.h"

#include "ir/base/machine.h"
#include "ir/program/collective_steps.h"

#include <stdlib.h>
#include <string.h>

/* A piece of the host arena that is one piece of memory. */
typedef struct host_piece {
    int64_t begin, end;
    char *data;
} host_piece;

typedef struct composite {
    sbp_device base;
    composite_parts parts;
    int32_t threads;
    double rates[SBP_QUEUE_COUNT];
    sbp_ranks *ranks;
    sbp_ranks *context;                     /* those that have a micro-batch together; NULL: this one alone */
    sbp_ranks_info world;                   /* of this process among them; alone: rank 0 of 1 */
    bool own_net;                           /* the backend device runs queue net */
    _Atomic int64_t sent_bytes, away_bytes; /* by collectives that pass through here; to other hosts */
    char *staged[2];                        /* operands of one, where the device has a memory of its own */
    int64_t staged_bytes[2];
    char *offload_dir;
    const sbp_program *program;
    sbp_device *backend;
    composite_engines *engines; /* from the first command on that is not for compute */
    composite_shuffle *shuffle;
    composite_disk *disk; /* when the program has a disk arena */
    void *cores;          /* of parts.cores, from the first command of queue host on */
    host_piece *pieces;   /* sorted */
    int32_t piece_count;
} composite;

static sbp_status run_command(void *user, const sbp_dispatch *dispatch, sbp_diag *diag);

/* ---- opening ---------------------------------------------------------------------------------------- */

/* "in:2e9,disk:5e8": bytes per second and queue, over what the options say. */
static sbp_status read_rates(double rates[SBP_QUEUE_COUNT], sbp_diag *diag) {
    const char *text = getenv("SBP_TEST_RATES"), *at = text;
    while (at && *at) {
        size_t length = strcspn(at, ":");
        int q = 0;
        while (q < SBP_QUEUE_COUNT &&
               (strlen(sbp_queue_names[q]) != length || strncmp(at, sbp_queue_names[q], length) != 0))
            q++;
        char *end = NULL;
        double rate = at[length] ? strtod(at + length + 1, &end) : 0;
        if (q == SBP_QUEUE_COUNT || !end || !(rate > 0) || (*end && *end != ','))
            return sbp_fail(diag, SBP_USAGE,
                            "SBP_TEST_RATES is '%.60s'; it gives bytes per second of queues: in:2e9,disk:5e8",
                            text);
        rates[q] = rate;
        at = *end ? end + 1 : end;
    }
    return SBP_OK;
}

static sbp_status create_parts(composite *c, const sbp_device_options *options, sbp_diag *diag) {
    SBP_TRY(read_rates(c->rates, diag));
    if (c->parts.shuffled) {
        c->shuffle = composite_shuffle_create(options ? options->shuffle_seed : 0, run_command, c);
        if (!c->shuffle)
            return sbp_fail(diag, SBP_MACHINE, "out of memory for the queues of a device");
    }
    if (options && options->offload_dir) {
        size_t length = strlen(options->offload_dir) + 1;
        c->offload_dir = sbp_malloc(length);
        if (!c->offload_dir)
            return sbp_fail(diag, SBP_MACHINE, "out of memory for the queues of a device");
        memcpy(c->offload_dir, options->offload_dir, length);
    }
    return c->parts.backend->create(options, diag, &c->backend);
}

sbp_status composite_create(const composite_parts *parts, const sbp_device_class *class,
                            const sbp_device_options *options, sbp_diag *diag, sbp_device **out) {
    *out = NULL;
    composite *c = sbp_malloc(sizeof *c);
    if (!c)
        return sbp_fail(diag, SBP_MACHINE, "out of memory for the queues of a device");
    *c = (composite){.base.class = class, .parts = *parts, .threads = options ? options->threads : 0};
    c->ranks = options ? options->ranks : NULL;
    c->world.count = c->world.node = 1;
    if (c->ranks)
        sbp_ranks_info_of(c->ranks, &c->world);
    for (int q = 0; options && q < SBP_QUEUE_COUNT; q++)
        c->rates[q] = options->rates[q];
    sbp_status status = create_parts(c, options, diag);
    if (status != SBP_OK)
        composite_destroy(&c->base);
    else
        *out = &c->base;
    return status;
}

sbp_device *composite_backend(sbp_device *device) {
    return ((composite *)device)->backend;
}

void composite_destroy(sbp_device *base) {
    composite *c = (composite *)base;
    composite_engines_destroy(c->engines);
    composite_shuffle_destroy(c->shuffle);
    if (c->cores)
        c->parts.cores->destroy(c->cores);
    composite_disk_destroy(c->disk);
    if (c->backend)
        c->backend->class->destroy(c->backend);
    for (int k = 0; k < 2; k++)
        free(c->staged[k]);
    sbp_ranks_leave(c->context);
    free(c->pieces);
    free(c->offload_dir);
    free(c);
}

void composite_info(sbp_device *base, sbp_device_info *out) {
    composite *c = (composite *)base;
    c->backend->class->info(c->backend, out);
    out->net_sent_bytes += c->sent_bytes;
    out->net_away_bytes += c->away_bytes;
    if (c->disk)
        composite_disk_counts(c->disk, &out->disk_read_bytes, &out->disk_written_bytes);
}

/* ---- the host arena --------------------------------------------------------------------------------- */

static int by_begin(const void *a, const void *b) {
    const host_piece *x = a, *y = b;
    return x->begin < y->begin ? -1 : x->begin > y->begin;
}

/* `map` promises the bytes of a buffer; buffers that follow each other in memory become one piece. */
static sbp_status find_pieces(composite *c, sbp_diag *diag) {
    const sbp_program *p = c->program;
    sbp_sizes most = sbp_program_sizes(p, p->t_max, p->s_max);
    int32_t count = 0;
    c->pieces = sbp_malloc(((size_t)p->buffer_count + 1) * sizeof *c->pieces);
    if (!c->pieces)
        return sbp_fail(diag, SBP_MACHINE, "out of memory for the queues of a device");
    for (int32_t i = 0; i < p->buffer_count; i++) {
        const sbp_buffer *b = &p->buffers[i];
        int64_t bytes;
        if (b->space != SBP_HOST || b->offset < 0 || !sbp_buffer_bytes(b, &most, &bytes))
            continue;
        c->pieces[count++] = (host_piece){b->offset, b->offset + (b->count - 1) * b->stride + bytes, NULL};
    }
    if (count == 0)
        c->pieces[count++] = (host_piece){0, p->arena_bytes[SBP_HOST], NULL};
    qsort(c->pieces, (size_t)count, sizeof *c->pieces, by_begin);
    for (int32_t i = 0; i < count; i++) {
        host_piece piece = c->pieces[i];
        piece.data = c->backend->class->map(c->backend, SBP_HOST, piece.begin);
        if (!piece.data) { /* it waits for the device, and cannot say what went wrong with that */
            SBP_TRY(c->backend->class->wait(c->backend, diag));
            return sbp_fail(diag, SBP_MACHINE,
                            "%s: the device failed before its memory was mapped on the host", c->parts.name);
        }
        host_piece *last = c->piece_count > 0 ? &c->pieces[c->piece_count - 1] : NULL;
        if (last && piece.begin <= last->end && last->data + (piece.begin - last->begin) == piece.data)
            last->end = piece.end > last->end ? piece.end : last->end;
        else
            c->pieces[c->piece_count++] = piece;
    }
    return SBP_OK;
}

static char *find_host(void *user, int64_t offset, int64_t bytes) {
    const composite *c = user;
    int32_t low = 0, high = c->piece_count;
    while (high - low > 1) {
        int32_t middle = low + (high - low) / 2;
        if (c->pieces[middle].begin <= offset)
            low = middle;
        else
            high = middle;
    }
    if (c->piece_count == 0 || offset < c->pieces[low].begin || bytes < 0 || offset > c->pieces[low].end ||
        bytes > c->pieces[low].end - offset)
        return NULL;
    return c->pieces[low].data + (offset - c->pieces[low].begin);
}

sbp_status composite_load(sbp_device *base, const sbp_program *program, sbp_diag *diag) {
    composite *c = (composite *)base;
    if (c->program)
        return sbp_fail(diag, SBP_INTERNAL, "%s: a second program on the same device", c->parts.name);
    c->program = program;
    if (c->ranks) {
        SBP_TRY(sbp_ranks_divide(c->ranks, (int32_t)program->group, diag));
        sbp_ranks_info_of(c->ranks, &c->world);
    }
    if (program->context > 1 && c->ranks && c->parts.waits && c->world.native)
        return sbp_fail(diag, SBP_USAGE,
                        "%s: --context-parallel needs MPI on this device: start the ranks by mpirun",
                        c->parts.name);
    if (program->context > 1 && c->ranks)
        SBP_TRY(sbp_ranks_context(c->ranks, (int32_t)program->context, diag, &c->context));
    if (program->arena_bytes[SBP_DISK] > 0) { /* first, as it is what the machine may lack */
        if (!c->offload_dir)
            return sbp_fail(diag, SBP_USAGE,
                            "the plan keeps data in a file: a directory for it is needed (--offload-dir)");
        SBP_TRY(composite_disk_create(c->offload_dir, program->arena_bytes[SBP_DISK], diag, &c->disk));
    }
    SBP_TRY(c->backend->class->load(c->backend, program, diag));
    return program->arena_bytes[SBP_HOST] > 0 ? find_pieces(c, diag) : SBP_OK;
}

sbp_status composite_rendezvous(sbp_device *base, bool *own, sbp_diag *diag) {
    composite *c = (composite *)base;
    *own = false;
    if (c->ranks && c->backend->class->rendezvous)
        SBP_TRY(c->backend->class->rendezvous(c->backend, own, diag));
    c->own_net = *own;
    return SBP_OK;
}

/* ---- running ---------------------------------------------------------------------------------------- */

/* The bytes of a span; false when its rows have others between them. */
static bool dense_bytes(const sbp_span *span, int64_t *row_bytes, int64_t *all_bytes) {
    int64_t unit = sbp_dtype_bytes(span->dtype);
    *row_bytes = span->cols * unit;
    *all_bytes = span->rows > 0 ? ((span->rows - 1) * span->stride + span->cols) * unit : 0;
    return span->rows <= 1 || span->stride == span->cols;
}

static sbp_status move_rows(composite *c, const sbp_span *to, const sbp_span *from, sbp_diag *diag) {
    bool writes = to->space == SBP_DISK;
    const sbp_span *disk = writes ? to : from, *host = writes ? from : to;
    int64_t row_bytes, host_bytes, disk_bytes;
    if (!c->disk || disk->space != SBP_DISK || host->space != SBP_HOST || to->dtype != from->dtype ||
        to->rows != from->rows || to->cols != from->cols || to->cols < 1)
        return sbp_fail(diag, SBP_INTERNAL, "%s: queue disk: not a copy between host and disk",
                        c->parts.name);
    bool dense = dense_bytes(disk, &row_bytes, &disk_bytes);
    dense = dense_bytes(host, &row_bytes, &host_bytes) && dense;
    char *data = find_host(c, host->offset, host_bytes);
    if (!data)
        return sbp_fail(diag, SBP_INTERNAL, "%s: bytes %lld to %lld of the host arena", c->parts.name,
                        (long long)host->offset, (long long)(host->offset + host_bytes));
    int64_t unit = sbp_dtype_bytes(to->dtype), rows = dense ? 1 : to->rows;
    for (int64_t r = 0; r < rows && host_bytes > 0; r++) {
        char *at = data + r * host->stride * unit;
        int64_t offset = disk->offset + r * disk->stride * unit, bytes = dense ? host_bytes : row_bytes;
        SBP_TRY(writes ? composite_disk_write(c->disk, offset, at, bytes, diag)
                       : composite_disk_read(c->disk, offset, at, bytes, diag));
    }
    return SBP_OK;
}

/* Where all bytes of a span are that is in one piece, in memory that the host reaches; NULL: it is not. */
static void *reach(composite *c, const sbp_span *span, int64_t *bytes) {
    int64_t row_bytes;
    if (!dense_bytes(span, &row_bytes, bytes))
        return NULL;
    if (span->space == SBP_HOST)
        return find_host(c, span->offset, *bytes);
    return span->space == SBP_DEVICE && c->parts.waits
               ? c->backend->class->map(c->backend, SBP_DEVICE, span->offset)
               : NULL;
}

/* With both operands in the host's memory. */
static sbp_status collect(sbp_ranks *among, const sbp_dispatch *dispatch, void *dst, void *src,
                          sbp_diag *diag) {
    const sbp_span *to = &dispatch->spans[SBP_COLLECTIVE_DST], *from = &dispatch->spans[SBP_COLLECTIVE_SRC];
    const sbp_operand_shape shapes[] = {{.rows = to->rows, .cols = to->cols, .dtype = to->dtype},
                                        {.rows = from->rows, .cols = from->cols, .dtype = from->dtype}};
    const sbp_collective_world world = {0}; /* that of `among` */
    const sbp_collective_call call =
        sbp_collective_call_of(dispatch->command, &shapes[0], &shapes[1], &world);
    return sbp_ranks_collective(among, &call, dst, src, diag);
}

/* What is in a memory of the device's own passes through the host's: its staging. */
static sbp_status stage(composite *c, int k, const sbp_span *span, bool content, char **out, sbp_diag *diag) {
    int64_t row_bytes, bytes;
    char limit[100];
    if (!dense_bytes(span, &row_bytes, &bytes))
        return sbp_fail(diag, SBP_INTERNAL, "%s: an operand of a collective has gaps between its rows",
                        c->parts.name);
    if (bytes > c->staged_bytes[k]) {
        free(c->staged[k]);
        c->staged[k] = sbp_malloc((size_t)bytes);
        c->staged_bytes[k] = c->staged[k] ? bytes : 0;
        if (!c->staged[k])
            return sbp_fail(diag, SBP_MACHINE, "%s: no memory for what ranks send each other: %s",
                            c->parts.name, sbp_machine_memory_text(limit, sizeof limit));
    }
    *out = c->staged[k];
    return content ? c->backend->class->read(c->backend, span->space, span->offset, *out, bytes, diag)
                   : SBP_OK;
}

static sbp_status run_collective(composite *c, const sbp_dispatch *dispatch, sbp_diag *diag) {
    const sbp_span *to = &dispatch->spans[SBP_COLLECTIVE_DST], *from = &dispatch->spans[SBP_COLLECTIVE_SRC];
    bool adds = sbp_collectives[dispatch->command->u.collective.op].into == SBP_DST_ADDS;
    sbp_ranks_info before, after;
    int64_t to_bytes, from_bytes;
    if (!c->ranks || (sbp_is_exchange(dispatch->command) && !c->context))
        return sbp_fail(diag, SBP_INTERNAL, "%s: a collective was issued in a single-process run",
                        c->parts.name);
    if (to->dtype != from->dtype && !adds)
        return sbp_fail(diag, SBP_INTERNAL,
                        "%s: %s: dst is %s, src is %s; only a sum that is added may change the type",
                        c->parts.name, sbp_collectives[dispatch->command->u.collective.op].name,
                        sbp_dtype_name(to->dtype), sbp_dtype_name(from->dtype));
    sbp_ranks *among = sbp_is_exchange(dispatch->command) ? c->context : c->ranks;
    sbp_ranks_info_of(among, &before);
    char *dst = reach(c, to, &to_bytes), *src = reach(c, from, &from_bytes);
    bool same = to->space == from->space && to->offset == from->offset, staged = !dst;
    if (!src)
        SBP_TRY(stage(c, 1, from, true, &src, diag));
    if (!dst && same)
        dst = src;
    else if (!dst)
        SBP_TRY(stage(c, 0, to, adds, &dst, diag));
    SBP_TRY(collect(among, dispatch, dst, src, diag));
    sbp_ranks_info_of(among, &after);
    c->sent_bytes += after.sent_bytes - before.sent_bytes;
    c->away_bytes += after.away_bytes - before.away_bytes;
    return staged ? c->backend->class->write(c->backend, to->space, to->offset, dst, to_bytes, diag) : SBP_OK;
}

/* By the thread of the command's queue. */
static sbp_status run_command(void *user, const sbp_dispatch *dispatch, sbp_diag *diag) {
    composite *c = user;
    switch (dispatch->command->queue) {
    case SBP_QUEUE_HOST:
        if (c->parts.cores)
            return c->parts.cores->run(c->cores, dispatch, diag);
        return c->backend->class->submit(c->backend, dispatch, diag);
    case SBP_QUEUE_DISK:
        if (dispatch->command->kind != SBP_CMD_COPY || dispatch->span_count != SBP_COPY_OPERANDS)
            return sbp_fail(diag, SBP_INTERNAL, "%s: queue disk only copies", c->parts.name);
        return move_rows(c, &dispatch->spans[SBP_COPY_DST], &dispatch->spans[SBP_COPY_SRC], diag);
    case SBP_QUEUE_NET:
        return run_collective(c, dispatch, diag);
    default:
        return sbp_is_exchange(dispatch->command) ? run_collective(c, dispatch, diag)
                                                  : c->backend->class->submit(c->backend, dispatch, diag);
    }
}

/* Who runs a command. */
typedef enum runner {
    BACKEND,    /* the backend device, which has an order of its own */
    THREADS,    /* the thread of its queue; under shuffle, whoever is drawn */
    RANKS,      /* this thread, at once: nothing runs elsewhere */
    RANKS_NEXT, /* this thread, when the backend device is done */
    RANKS_LAST  /* this thread, when all queues are done */
} runner;

/* The backend device, and what runs beside it. */
typedef enum state {
    OWN_NET,  /* it returns before it is done, and has a queue net */
    RETURNS,  /* it returns before it is done */
    ALONE,    /* it waits, and no thread of a queue has started */
    BESIDE,   /* it waits, threads have started */
    SHUFFLED, /* it waits; commands are drawn at random */
    STATES
} state;

enum { EXCHANGE = SBP_QUEUE_COUNT, WAYS }; /* of queue compute, among the ranks of a context */

static const uint8_t runners[WAYS][STATES] = {
    /*                     OWN_NET  RETURNS     ALONE    BESIDE   SHUFFLED */
    [SBP_QUEUE_COMPUTE] = {BACKEND, BACKEND, BACKEND, THREADS, THREADS},
    [SBP_QUEUE_IN] = {BACKEND, BACKEND, THREADS, THREADS, THREADS},
    [SBP_QUEUE_OUT] = {BACKEND, BACKEND, THREADS, THREADS, THREADS},
    [SBP_QUEUE_HOST] = {THREADS, THREADS, THREADS, THREADS, THREADS},
    [SBP_QUEUE_DISK] = {THREADS, THREADS, THREADS, THREADS, THREADS},
    [SBP_QUEUE_NET] = {BACKEND, RANKS_LAST, THREADS, THREADS, THREADS},
    [EXCHANGE] = {BACKEND, RANKS_NEXT, RANKS, THREADS, THREADS},
};

static state state_of(const composite *c) {
    if (c->shuffle)
        return SHUFFLED;
    if (!c->parts.waits)
        return c->own_net ? OWN_NET : RETURNS;
    return c->engines ? BESIDE : ALONE;
}

/* Whether the backend device puts the commands of a queue in order itself. */
static bool orders(const composite *c, int32_t queue) {
    return !c->parts.waits && runners[queue][state_of(c)] == BACKEND;
}

static sbp_status submit_fence(composite *c, const sbp_dispatch *dispatch, sbp_diag *diag) {
    int32_t from = dispatch->command->u.fence.from, to = dispatch->command->u.fence.to;
    if (from < 0 || from >= SBP_QUEUE_COUNT || to < 0 || to >= SBP_QUEUE_COUNT)
        return sbp_fail(diag, SBP_INTERNAL, "%s: a fence from queue %d to %d", c->parts.name, from, to);
    if (c->shuffle) {
        composite_shuffle_fence(c->shuffle, from, to);
        return SBP_OK;
    }
    if (!c->parts.waits && !c->own_net && (from == SBP_QUEUE_NET || to == SBP_QUEUE_NET))
        return SBP_OK; /* a collective waits for all, and is waited for (submit) */
    if (orders(c, from) && orders(c, to))
        return c->backend->class->submit(c->backend, dispatch, diag);
    if (!c->engines) /* nothing has run anywhere else yet, and what did is done where it waits */
        return orders(c, from) ? c->backend->class->wait(c->backend, diag) : SBP_OK;
    if (orders(c, from))
        return c->backend->class->wait(c->backend, diag);
    if (orders(c, to))
        return composite_engines_wait(c->engines, from, diag);
    composite_engines_fence(c->engines, from, to);
    return SBP_OK;
}

static sbp_status start(composite *c, int32_t queue, sbp_diag *diag) {
    if (!c->shuffle && !c->engines)
        SBP_TRY(
            composite_engines_create(run_command, c, c->rates, c->program, c->world.node, diag, &c->engines));
    if (queue == SBP_QUEUE_HOST && c->parts.cores && !c->cores)
        return c->parts.cores->create(c->threads, c->program, find_host, c, diag, &c->cores);
    return SBP_OK;
}

/* To devices `share` is a copy, as any collective of one rank: of these rows of the source. */
static void find_share(int64_t rank, sbp_span *source, int64_t rows) {
    source->offset += rank * rows * source->stride * sbp_dtype_bytes(source->dtype);
    source->rows = rows;
}

sbp_status composite_submit(sbp_device *base, const sbp_dispatch *dispatch, sbp_diag *diag) {
    composite *c = (composite *)base;
    int32_t queue = dispatch->command->queue;
    sbp_dispatch own;
    sbp_span spans[SBP_COLLECTIVE_OPERANDS];
    if (dispatch->command->kind == SBP_CMD_FENCE)
        return submit_fence(c, dispatch, diag);
    if (c->ranks && dispatch->command->kind == SBP_CMD_COLLECTIVE &&
        dispatch->span_count == SBP_COLLECTIVE_OPERANDS &&
        sbp_collectives[dispatch->command->u.collective.op].kind == SBP_KIND_SHARE) {
        bool all = sbp_collectives[dispatch->command->u.collective.op].among == SBP_AMONG_GROUP;
        own = *dispatch;
        own.spans = memcpy(spans, dispatch->spans, sizeof spans);
        find_share(all ? c->world.member : c->world.rank % c->program->context, &spans[SBP_COLLECTIVE_SRC],
                   spans[SBP_COLLECTIVE_DST].rows);
        dispatch = &own;
    }
    if (queue < 0 || queue >= SBP_QUEUE_COUNT || dispatch->span_count < 0 ||
        dispatch->span_count > SBP_MAX_COMMAND_OPERANDS)
        return sbp_fail(diag, SBP_INTERNAL, "%s: a command of %d operands in queue %d", c->parts.name,
                        dispatch->span_count, queue);
    switch ((runner)runners[sbp_is_exchange(dispatch->command) ? EXCHANGE : queue][state_of(c)]) {
    case BACKEND:
        return c->backend->class->submit(c->backend, dispatch, diag);
    case THREADS:
        SBP_TRY(start(c, queue, diag));
        return c->shuffle ? composite_shuffle_submit(c->shuffle, dispatch, diag)
                          : composite_engines_submit(c->engines, dispatch, diag);
    case RANKS_LAST:
        SBP_TRY(composite_wait(base, diag));
        break;
    case RANKS_NEXT:
        SBP_TRY(c->backend->class->wait(c->backend, diag));
        break;
    case RANKS:
        break;
    }
    return run_collective(c, dispatch, diag);
}

/* Until all queues are done. */
static sbp_status drain(composite *c, sbp_diag *diag) {
    if (c->shuffle)
        return composite_shuffle_wait(c->shuffle, diag);
    return c->engines ? composite_engines_wait(c->engines, SBP_QUEUE_COUNT, diag) : SBP_OK;
}

sbp_status composite_wait(sbp_device *base, sbp_diag *diag) {
    composite *c = (composite *)base;
    SBP_TRY(drain(c, diag));
    return c->backend->class->wait(c->backend, diag);
}

sbp_status composite_write(sbp_device *base, sbp_space space, int64_t offset, const void *data, int64_t bytes,
                           sbp_diag *diag) {
    composite *c = (composite *)base;
    SBP_TRY(drain(c, diag));
    if (space == SBP_DISK && c->disk)
        return composite_disk_write(c->disk, offset, data, bytes, diag);
    return c->backend->class->write(c->backend, space, offset, data, bytes, diag);
}

sbp_status composite_read(sbp_device *base, sbp_space space, int64_t offset, void *data, int64_t bytes,
                          sbp_diag *diag) {
    composite *c = (composite *)base;
    SBP_TRY(drain(c, diag));
    if (space == SBP_DISK && c->disk)
        return composite_disk_read(c->disk, offset, data, bytes, diag);
    return c->backend->class->read(c->backend, space, offset, data, bytes, diag);
}

void *composite_map(sbp_device *base, sbp_space space, int64_t offset) {
    composite *c = (composite *)base;
    if (space == SBP_DISK || drain(c, NULL) != SBP_OK)
        return NULL;
    return c->backend->class->map(c->backend, space, offset);
}
