/* load.c: files to datasets: this thread reads records and places documents, in the order of the files;
 * others make documents of records, a batch at a time. What is said, and which row is found to be wrong, does
 * not depend on how many they are. */
#include "runtime/data/load.h"
#include "ir/base/census.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "runtime/data/cache.h"

enum {
    SHOWN_BAD_ROWS = 5,
    BATCH_RECORDS = 256,
    BATCH_BYTES = 1 << 19,
    THREADS_FROM_BYTES = 1 << 22, /* of files; below, one thread is as fast */
    MOST_THREADS = 64
};

static const int64_t release_bytes = 1 << 25; /* of tokens, after which their pages are given back */

/* ---- batches ---------------------------------------------------------------------------------------- */

typedef struct said {
    struct said *next;
    sbp_severity severity;
    unsigned once; /* the oddities that are told once and that it is about, by bit */
    char text[];
} said;

/* What became of a record. */
typedef struct outcome {
    sbp_documents documents;
    bool bad;
    sbp_arena *arena;    /* of the documents of a large row; NULL: that of the batch */
    said *first, **last; /* what was said about it */
} outcome;

typedef struct batch {
    sbp_arena *arena;
    sbp_record records[BATCH_RECORDS];
    outcome outcomes[BATCH_RECORDS];
    int32_t count, made; /* records; those with an outcome */
    sbp_status status;   /* SBP_OK, or of record made - 1 */
    unsigned warned;     /* before it */
    bool done;
} batch;

static void destroy_batch(batch *b) {
    if (!b)
        return;
    for (int32_t i = 0; i < b->made; i++) {
        sbp_arena_destroy(b->outcomes[i].arena);
        for (said *s = b->outcomes[i].first; s;) {
            said *next = s->next;
            free(s);
            s = next;
        }
    }
    sbp_arena_destroy(b->arena);
    free(b);
}

static batch *create_batch(void) {
    batch *b = sbp_malloc(sizeof *b);
    if (!b)
        return NULL;
    memset(b, 0, sizeof *b);
    b->arena = sbp_arena_create();
    if (b->arena)
        return b;
    free(b);
    return NULL;
}

/* ---- documents of records --------------------------------------------------------------------------- */

/* What a thread makes documents with. */
typedef struct row_worker {
    const sbp_dataset_options *options;
    sbp_row_options row_options;
    sbp_row_form form; /* of the first row */
    sbp_document_maker maker;
    sbp_chat chat; /* a copy of the first worker's, with its own memory of what was said */
    sbp_chat_options chat_options;
    sbp_diag *diag;
    unsigned told;    /* before the message at hand */
    outcome *outcome; /* of the record at hand */
} row_worker;

typedef struct record_job {
    row_worker *worker;
    batch *batch;
    const sbp_record *record;
    sbp_arena *arena; /* of the row */
    sbp_documents *out;
} record_job;

/* Oddities that a maker has told of. */
static unsigned told_by(const sbp_document_maker *m) {
    return (unsigned)m->warned_eos | (unsigned)m->warned_border << 1 | (unsigned)m->warned_mask << 2 |
           (m->chat ? (unsigned)m->chat->warned_end << 3 | (unsigned)m->chat->warned_all << 4 : 0);
}

static void set_told(sbp_document_maker *m, unsigned told) {
    m->warned_eos = told & 1;
    m->warned_border = told & 2;
    m->warned_mask = told & 4;
    if (m->chat) {
        m->chat->warned_end = told & 8;
        m->chat->warned_all = told & 16;
    }
}

/* Not in the arena: a message may come of one that has run out of memory. */
static void remember(void *user, sbp_severity severity, const char *text) {
    row_worker *w = user;
    said *s = sbp_malloc(sizeof *s + strlen(text) + 1);
    unsigned told = told_by(&w->maker);
    if (!s)
        return;
    *s = (said){.severity = severity, .once = told & ~w->told};
    memcpy(s->text, text, strlen(text) + 1);
    w->told = told;
    *w->outcome->last = s;
    w->outcome->last = &s->next;
}

static sbp_status check_ids(const record_job *job, const sbp_document *d) {
    const sbp_dataset_options *o = job->worker->options;
    for (int64_t i = 0; o->vocab_size > 0 && i < d->count; i++)
        if (d->ids[i] >= o->vocab_size)
            return sbp_fail(
                job->worker->diag, SBP_INPUT,
                "%s: token %lld is id %d ('%.40s'), which is not below the model's vocabulary of %lld",
                job->record->where, (long long)i, d->ids[i],
                o->tokenizer ? sbp_tokenizer_token(o->tokenizer, d->ids[i], NULL) : "?",
                (long long)o->vocab_size);
    return SBP_OK;
}

static sbp_status check_prompts(const record_job *job) {
    int64_t most = job->worker->options->max_prompt;
    for (int32_t i = 0; most > 0 && i < job->out->count; i++) {
        const sbp_document *d = &job->out->documents[i];
        int64_t tokens = strcmp(d->part, "prompt") == 0 ? d->count : d->prompt;
        if (tokens > most)
            return sbp_fail(
                job->worker->diag, SBP_INPUT,
                "%s: the prompt has %lld tokens, max_prompt_length is %lld: prompts are not cut here; "
                "shorten it, leave such rows out (--on-bad-row skip), or leave the setting out",
                job->record->where, (long long)tokens, (long long)most);
    }
    return SBP_OK;
}

static void *copy(sbp_arena *arena, const void *from, int64_t count, size_t size) {
    void *to = sbp_arena_array(arena, (size_t)count, size);
    if (count > 0)
        memcpy(to, from, (size_t)count * size);
    return to;
}

/* From the arena of the row to that of the batch. */
static void keep_documents(sbp_arena *arena, const sbp_documents *from, sbp_documents *to) {
    *to = *from;
    to->documents = copy(arena, from->documents, from->count, sizeof *from->documents);
    to->group_name = from->group_name ? sbp_arena_strdup(arena, from->group_name) : NULL;
    for (int32_t i = 0; i < to->count; i++) {
        sbp_document *d = &to->documents[i];
        d->ids = copy(arena, d->ids, d->count, sizeof *d->ids);
        d->labels = copy(arena, d->labels, d->count, sizeof *d->labels);
        for (int32_t k = 0; k < d->column_count; k++)
            d->columns[k].values = copy(arena, d->columns[k].values, d->count, sizeof(double));
    }
}

/* Says which columns of the first row are not used. */
static void tell_unused(const record_job *job, const sbp_json *tree) {
    const row_worker *w = job->worker;
    const char *names = sbp_row_unused(job->arena, &w->row_options, &w->form, tree);
    if (names)
        sbp_note(w->diag, "%s: columns that are not used: %s%s", job->record->where, names,
                 w->options->columns.count ? " (--columns prompt=a+b joins two)" : "");
}

static sbp_status make_documents(void *user) {
    record_job *job = user;
    row_worker *w = job->worker;
    const sbp_json *tree;
    const char *where = job->record->where;
    bool first = w->form.type == SBP_ROW_NONE; /* tables leave out what is null */
    sbp_row row;
    SBP_TRY(sbp_record_parse(job->record, job->arena, w->diag, &tree));
    SBP_TRY(sbp_columns_rename(&w->options->columns, job->arena, w->diag, where, tree,
                               first && job->record->text, &tree));
    SBP_TRY(sbp_row_read(job->arena, w->diag, where, tree, &w->row_options, &w->form, &row));
    if (w->options->rows == SBP_ROWS_PAIRS && row.form.type != SBP_ROW_PAIR)
        return sbp_fail(w->diag, SBP_INPUT, "%s: %s needs 'chosen' and 'rejected'", where,
                        w->options->objective ? w->options->objective : "the objective");
    SBP_TRY(sbp_documents_make(&w->maker, job->arena, &row, job->out));
    for (int32_t i = 0; i < job->out->count; i++)
        SBP_TRY(check_ids(job, &job->out->documents[i]));
    SBP_TRY(check_prompts(job));
    if (first && !w->options->quiet)
        tell_unused(job, tree);
    return SBP_OK;
}

static sbp_status keep_body(void *user) {
    record_job *job = user;
    keep_documents(job->batch->arena, job->out, &job->worker->outcome->documents);
    return SBP_OK;
}

/* Small documents go to the batch; of large ones, which a copy would make larger, the arena stays. */
static sbp_status keep_outcome(row_worker *w, batch *b, record_job *job) {
    if (sbp_arena_bytes(job->arena) < BATCH_BYTES)
        return sbp_guard(b->arena, w->diag, keep_body, job);
    w->outcome->documents = *job->out;
    w->outcome->arena = job->arena;
    job->arena = NULL;
    return SBP_OK;
}

static sbp_status make_outcome(row_worker *w, batch *b, int32_t i) {
    sbp_documents made = {0};
    record_job job = {
        .worker = w, .batch = b, .record = &b->records[i], .arena = sbp_arena_create(), .out = &made};
    sbp_row_form form = w->form;
    w->outcome = &b->outcomes[i];
    w->outcome->last = &w->outcome->first;
    b->made = i + 1;
    w->told = told_by(&w->maker);
    sbp_status status =
        job.arena ? sbp_guard(job.arena, w->diag, make_documents, &job)
                  : sbp_fail(w->diag, SBP_MACHINE, "%s: out of memory for a row", b->records[i].where);
    if (status == SBP_OK)
        status = keep_outcome(w, b, &job);
    sbp_arena_destroy(job.arena);
    sbp_diag_clear(w->diag);
    if (status != SBP_INPUT || !w->options->skip_bad_rows || w->maker.unusable)
        return status;
    w->outcome->bad = true;
    w->form = form;
    return SBP_OK;
}

static void make_batch(row_worker *w, batch *b) {
    set_told(&w->maker, b->warned);
    b->status = SBP_OK;
    for (int32_t i = 0; i < b->count && b->status == SBP_OK; i++)
        b->status = make_outcome(w, b, i);
}

/* first: a worker that knows the form of rows and has opened the template; NULL: this is it. */
static bool open_worker(row_worker *w, const sbp_dataset_options *o, const row_worker *first) {
    *w = (row_worker){.options = o,
                      .row_options = {.text_field = o->text_field,
                                      .vocab_size = o->vocab_size,
                                      .fields = o->rows == SBP_ROWS_SCORED || o->rows == SBP_ROWS_PAIRS,
                                      .no_pairs = o->rows == SBP_ROWS_TEXTS || o->rows == SBP_ROWS_SCORED,
                                      .objective = o->objective,
                                      .objective_of_pairs = o->objective_of_pairs},
                      .diag = sbp_diag_create(),
                      .maker = {.tokenizer = o->tokenizer,
                                .loss_on = o->loss_on,
                                .mask_truncated = o->mask_truncated,
                                .eos_penalty = o->eos_penalty,
                                .eos = o->eos,
                                .eos_ids = o->eos_ids,
                                .chat_options = o->chat}};
    w->maker.diag = w->diag;
    w->maker.chat_arena = sbp_arena_create();
    if (first) {
        w->form = first->form;
        if (first->maker.chat) {
            w->chat = *first->maker.chat;
            w->maker.chat = &w->chat;
        }
    }
    if (w->diag)
        sbp_diag_set_sink(w->diag, remember, w);
    return w->diag && w->maker.chat_arena;
}

static void close_worker(row_worker *w) {
    sbp_arena_destroy(w->maker.chat_arena);
    sbp_diag_destroy(w->diag);
}

/* ---- threads ---------------------------------------------------------------------------------------- */

typedef struct pool {
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    batch *ring[2 * MOST_THREADS + 2];
    int64_t submitted, taken, consumed, size; /* batches; slots of the ring */
    bool stop;
    int32_t count;
    pthread_t threads[MOST_THREADS];
    row_worker workers[MOST_THREADS];
    struct pool_thread {
        struct pool *pool;
        int32_t index;
    } starts[MOST_THREADS];
} pool;

static void *run_worker(void *user) {
    struct pool_thread *start = user;
    pool *p = start->pool;
    pthread_mutex_lock(&p->lock);
    for (;;) {
        while (!p->stop && p->taken == p->submitted)
            pthread_cond_wait(&p->work, &p->lock);
        if (p->stop)
            break;
        batch *b = p->ring[p->taken++ % p->size];
        pthread_mutex_unlock(&p->lock);
        make_batch(&p->workers[start->index], b);
        pthread_mutex_lock(&p->lock);
        b->done = true;
        pthread_cond_broadcast(&p->done);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

static void close_pool(pool *p) {
    if (!p)
        return;
    pthread_mutex_lock(&p->lock);
    p->stop = true;
    pthread_cond_broadcast(&p->work);
    pthread_mutex_unlock(&p->lock);
    for (int32_t i = 0; i < p->count; i++) {
        pthread_join(p->threads[i], NULL);
        close_worker(&p->workers[i]);
    }
    for (; p->consumed < p->submitted; p->consumed++)
        destroy_batch(p->ring[p->consumed % p->size]);
    pthread_mutex_destroy(&p->lock);
    pthread_cond_destroy(&p->work);
    pthread_cond_destroy(&p->done);
    free(p);
}

/* As many threads as can be had; NULL: none. */
static pool *open_pool(const sbp_dataset_options *o, const row_worker *first) {
    pool *p = sbp_malloc(sizeof *p);
    if (!p)
        return NULL;
    memset(p, 0, sizeof *p);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->work, NULL);
    pthread_cond_init(&p->done, NULL);
    for (int32_t i = 0; i < o->threads && i < MOST_THREADS; i++) {
        p->starts[i] = (struct pool_thread){p, i};
        if (!open_worker(&p->workers[i], o, first) ||
            pthread_create(&p->threads[i], NULL, run_worker, &p->starts[i]) != 0) {
            close_worker(&p->workers[i]);
            break;
        }
        p->count++;
    }
    p->size = 2 * p->count + 2;
    if (p->count > 0)
        return p;
    close_pool(p);
    return NULL;
}

/* ---- loading ---------------------------------------------------------------------------------------- */

typedef struct loader {
    sbp_diag *diag;
    sbp_arena *arena;
    const sbp_dataset_options *options;
    sbp_placer placer;
    row_worker first; /* of the rows before threads begin */
    pool *pool;
    unsigned told; /* oddities that were told of */
    sbp_cache_messages messages;
    int64_t bytes, bytes_before; /* of all files that are regular; of those read */
    int64_t unreleased;          /* tokens */
} loader;

static sbp_status out_of_memory(const loader *l) {
    return sbp_fail(l->diag, SBP_MACHINE, "out of memory for the data");
}

/* Where there was none for what a worker had to say of it either. */
static sbp_status out_of_memory_for(const loader *l, const char *where) {
    return sbp_fail(l->diag, SBP_MACHINE, "%s: out of memory for a row", where);
}

typedef struct keep_job {
    loader *loader;
    sbp_severity severity;
    const char *text;
} keep_job;

/* For a cache, which says it again. */
static sbp_status keep_message(void *user) {
    keep_job *job = user;
    loader *l = job->loader;
    SBP_PUSH(l->arena, l->messages.items, l->messages.count, l->messages.capacity,
             (sbp_cache_message){job->severity, sbp_arena_strdup(l->arena, job->text)});
    return SBP_OK;
}

/* A message that goes on: of rows that are wrong and left out a warning, for the first of them. */
static sbp_status tell(loader *l, const said *s, bool bad) {
    char *text = (char *)(uintptr_t)s->text;
    if (s->once && (s->once & ~l->told) == 0)
        return SBP_OK;
    l->told |= s->once;
    if (s->severity == SBP_ERROR && !bad) {
        (void)sbp_fail(l->diag, SBP_INPUT, "%s", text);
        return SBP_OK;
    }
    if (s->severity == SBP_ERROR && l->placer.data->bad >= SHOWN_BAD_ROWS)
        return SBP_OK;
    keep_job job = {l, s->severity == SBP_NOTE ? SBP_NOTE : SBP_WARNING, text};
    if (s->severity == SBP_ERROR) {
        size_t length = strlen(text) + 20;
        char *longer = sbp_malloc(length);
        if (!longer)
            return out_of_memory(l);
        stpcpy(stpcpy(longer, text), " (row left out)");
        job.text = longer;
    }
    if (job.severity == SBP_NOTE)
        sbp_note(l->diag, "%s", job.text);
    else
        sbp_warn(l->diag, "%s", job.text);
    sbp_status status = sbp_guard(l->arena, l->diag, keep_message, &job);
    if (job.text != text)
        free((char *)(uintptr_t)job.text);
    return status;
}

static sbp_status place_batch(loader *l, batch *b) {
    sbp_dataset *data = l->placer.data;
    int64_t before = data->token_count;
    for (int32_t i = 0; i < b->made; i++) {
        outcome *o = &b->outcomes[i];
        for (const said *s = o->first; s; s = s->next)
            SBP_TRY(tell(l, s, o->bad));
        if (b->status != SBP_OK && i + 1 == b->made)
            return o->first || b->status != SBP_MACHINE ? b->status
                                                        : out_of_memory_for(l, b->records[i].where);
        if (o->bad)
            data->bad++;
        else
            SBP_TRY(sbp_placer_row(&l->placer, b->arena, b->records[i].where, &o->documents));
        sbp_arena_destroy(o->arena);
        o->arena = NULL;
        data->read_count++;
    }
    l->unreleased += (data->token_count - before) * 8;
    if (l->unreleased > release_bytes) {
        sbp_dataset_release(data);
        l->unreleased = 0;
    }
    return b->status;
}

/* Waits for the oldest batch and places it. */
static sbp_status consume(loader *l) {
    pool *p = l->pool;
    pthread_mutex_lock(&p->lock);
    batch *b = p->ring[p->consumed % p->size];
    while (!b->done)
        pthread_cond_wait(&p->done, &p->lock);
    p->consumed++;
    pthread_mutex_unlock(&p->lock);
    sbp_status status = place_batch(l, b);
    destroy_batch(b);
    return status;
}

static sbp_status drain(loader *l) {
    while (l->pool && l->pool->consumed < l->pool->submitted)
        SBP_TRY(consume(l));
    return SBP_OK;
}

/* Takes the batch over. */
static sbp_status submit(loader *l, batch *b) {
    pool *p = l->pool;
    sbp_status status = SBP_OK;
    while (status == SBP_OK && p->submitted - p->consumed == p->size)
        status = consume(l);
    if (status != SBP_OK) {
        destroy_batch(b);
        return status;
    }
    pthread_mutex_lock(&p->lock);
    p->ring[p->submitted++ % p->size] = b;
    pthread_cond_signal(&p->work);
    pthread_mutex_unlock(&p->lock);
    return SBP_OK;
}

/* Rows of this thread come first: the first good one decides what rows are, and opens the template. */
static sbp_status handle_batch(loader *l, batch *b) {
    b->warned = l->told;
    if (!l->pool && l->options->threads > 1 && l->bytes >= THREADS_FROM_BYTES &&
        l->first.form.type != SBP_ROW_NONE)
        l->pool = open_pool(l->options, &l->first);
    SBP_CROSS_EITHER(l->pool, data_threads, data_one_thread);
    if (l->pool) {
        b->warned = told_by(&l->first.maker);
        return submit(l, b);
    }
    make_batch(&l->first, b);
    sbp_status status = place_batch(l, b);
    destroy_batch(b);
    return status;
}

typedef struct end_job {
    sbp_arena *arena;
    const sbp_record *record;
    bool ends;
} end_job;

static sbp_status look_for_end(void *user) {
    end_job *job = user;
    const sbp_json *root, *end = NULL;
    if (sbp_record_parse(job->record, job->arena, NULL, &root) == SBP_OK && root->kind == SBP_JSON_OBJECT)
        end = sbp_json_member(root, "end_of_step");
    job->ends = end && end->kind == SBP_JSON_BOOL && end->boolean;
    return SBP_OK;
}

/* Whether a record is no row but the end of a step. */
static bool ends_step(batch *b, const sbp_record *record) {
    end_job job = {.arena = b->arena, .record = record};
    return record->text && strstr(record->text, "\"end_of_step\"") &&
           sbp_guard(b->arena, NULL, look_for_end, &job) == SBP_OK && job.ends;
}

/* Fills a batch; the diag of the reader is told later, behind what comes before in the file. stream: ends
 * with a step; NULL: a file. */
static sbp_status fill_batch(sbp_source *source, sbp_row_stream *stream, sbp_diag *diag, batch *b,
                             bool *end) {
    while (!*end && b->count < BATCH_RECORDS && sbp_arena_bytes(b->arena) < BATCH_BYTES) {
        sbp_record *record = &b->records[b->count];
        SBP_TRY(sbp_source_read(source, b->arena, diag, record, end));
        if (stream && *end)
            stream->ended = true;
        if (stream && !*end && ends_step(b, record)) {
            snprintf(stream->where, sizeof stream->where, "%s", record->where);
            stream->steps = *end = true;
        }
        b->count += !*end;
    }
    return SBP_OK;
}

static void tell_progress(const loader *l, const sbp_source *source, int64_t size) {
    if (l->options->progress && l->bytes > 0)
        l->options->progress(l->options->progress_user,
                             ((double)l->bytes_before + sbp_source_share(source) * (double)size) /
                                 (double)l->bytes);
}

static sbp_status read_source(loader *l, sbp_source *source, sbp_diag *diag, int64_t size) {
    sbp_status status = SBP_OK, read = SBP_OK;
    for (bool end = false; status == SBP_OK && read == SBP_OK && !end;) {
        batch *b = create_batch();
        if (!b)
            return out_of_memory(l);
        read = fill_batch(source, l->options->stream, diag, b, &end);
        tell_progress(l, source, size);
        status = handle_batch(l, b);
    }
    if (status == SBP_OK && read != SBP_OK)
        status = drain(l);
    return status != SBP_OK ? status : read;
}

static int64_t size_of(const char *path) {
    struct stat s;
    return strcmp(path, "-") != 0 && stat(path, &s) == 0 && S_ISREG(s.st_mode) ? s.st_size : 0;
}

static void forward_reader(void *user, sbp_severity severity, const char *text) {
    loader *l = user;
    keep_job job = {l, severity, text};
    if (severity == SBP_ERROR)
        (void)sbp_fail(l->diag, SBP_INPUT, "%s", text);
    else if (severity == SBP_WARNING)
        sbp_warn(l->diag, "%s", text);
    else
        sbp_note(l->diag, "%s", text);
    if (severity != SBP_ERROR)
        (void)!sbp_guard(l->arena, NULL, keep_message, &job);
}

/* Messages of a diag, one after the other. */
static void forward_all(loader *l, sbp_diag *diag) {
    static const struct {
        const char *prefix;
        sbp_severity severity;
    } kinds[] = {{"note: ", SBP_NOTE}, {"warning: ", SBP_WARNING}, {"error: ", SBP_ERROR}};
    char *text = (char *)(uintptr_t)sbp_diag_text(diag, SBP_NOTE);
    for (char *line = text; *line;) {
        char *end = strchr(line, '\n');
        *end = 0;
        for (int k = 0; k < SBP_COUNT(kinds); k++)
            if (strncmp(line, kinds[k].prefix, strlen(kinds[k].prefix)) == 0)
                forward_reader(l, kinds[k].severity, line + strlen(kinds[k].prefix));
        line = end + 1;
    }
    sbp_diag_clear(diag);
}

/* Columns by the names that the file has for them. */
static bool is_wanted(void *user, const char *name) {
    const loader *l = user;
    const sbp_columns *columns = &l->options->columns;
    for (int32_t i = 0; i < columns->count; i++)
        if (strcmp(columns->items[i].from, name) == 0)
            return true;
    return sbp_row_may_need(&l->first.row_options, name);
}

static sbp_status read_file(loader *l, const char *path) {
    sbp_source *source = NULL;
    sbp_diag *diag = sbp_diag_create();
    int64_t size = size_of(path);
    if (!diag)
        return out_of_memory(l);
    sbp_status status = sbp_source_open(diag, path, &source);
    if (status != SBP_OK) {
        sbp_status before = drain(l);
        status = before != SBP_OK ? before : status;
        if (before == SBP_OK)
            forward_all(l, diag);
    } else {
        forward_all(l, diag);
        sbp_source_select(source, is_wanted, l);
        status = read_source(l, source, diag, size);
        if (status == SBP_OK && !sbp_source_names_stay(source))
            status = drain(l);
        if (status != SBP_OK) { /* nobody looks at what the source has named any more */
            close_pool(l->pool);
            l->pool = NULL;
        }
        forward_all(l, diag);
        sbp_source_close(source);
    }
    sbp_diag_destroy(diag);
    l->bytes_before += size;
    return status;
}

static sbp_status read_stream(loader *l, sbp_source *source) {
    sbp_diag *diag = sbp_diag_create();
    if (!diag)
        return out_of_memory(l);
    sbp_source_select(source, is_wanted, l);
    sbp_status status = read_source(l, source, diag, 0);
    forward_all(l, diag);
    sbp_diag_destroy(diag);
    return status;
}

static sbp_status read_files(loader *l) {
    sbp_status status = SBP_OK;
    const sbp_dataset_options *o = l->options;
    if (!open_worker(&l->first, o, NULL)) {
        close_worker(&l->first);
        return out_of_memory(l);
    }
    for (int32_t i = 0; i < o->file_count; i++)
        l->bytes += size_of(o->files[i]);
    if (o->stream)
        status = read_stream(l, o->stream->source);
    for (int32_t i = 0; !o->stream && i < o->file_count && status == SBP_OK; i++)
        status = read_file(l, o->files[i]);
    if (status == SBP_OK)
        status = drain(l);
    close_pool(l->pool);
    l->pool = NULL;
    sbp_row_type type = l->first.form.type;
    l->placer.data->texts = type != SBP_ROW_PAIR && type != SBP_ROW_PROMPT;
    close_worker(&l->first);
    return status;
}

/* ---- the whole -------------------------------------------------------------------------------------- */

bool sbp_dataset_is_kept(const sbp_dataset_options *o) {
    int64_t bytes = 0;
    for (int32_t i = 0; i < o->file_count; i++) {
        if (strcmp(o->files[i], "-") == 0)
            return false;
        bytes += size_of(o->files[i]);
    }
    return o->cache && bytes >= o->cache_from_bytes;
}

static void find_cache(loader *l, sbp_cache **out) {
    *out = NULL;
    if (sbp_dataset_is_kept(l->options))
        sbp_cache_open(l->arena, l->options, out);
}

/* Whether what is there when a stream ends is behind its last step: in a stream whose rows come in steps,
 * that is no step. */
static bool is_behind_last_step(const loader *l) {
    const sbp_row_stream *stream = l->options->stream;
    return stream && stream->steps && stream->ended;
}

/* Rows of a group side by side. */
static sbp_status gather(loader *l) {
    char text[300];
    SBP_TRY(sbp_dataset_gather(l->diag, l->placer.data, &l->placer.groups, text, sizeof text));
    sbp_group_rows_close(&l->placer.groups);
    if (text[0] && !l->options->stream) /* of a stream it would be said of every step */
        forward_reader(l, SBP_NOTE, text);
    return SBP_OK;
}

static sbp_status load_with(loader *l, sbp_cache *cache) {
    sbp_dataset *data = l->placer.data;
    bool found = false;
    int directory = -1;
    char size[32];
    if (cache)
        SBP_TRY(sbp_cache_load(cache, l->diag, data, &found));
    SBP_CROSS_IF(!cache, data_not_kept);
    SBP_CROSS_IF(cache && !found, data_kept);
    SBP_CROSS_IF(cache && found, data_kept_before);
    if (found)
        return sbp_placer_end(&l->placer);
    if (cache)
        SBP_TRY(sbp_cache_create(cache, l->diag, &directory));
    sbp_arrays_init(&data->arrays, directory);
    SBP_TRY(read_files(l));
    if (is_behind_last_step(l))
        return SBP_OK;
    SBP_TRY(gather(l));
    SBP_TRY(sbp_placer_end(&l->placer));
    if (!cache)
        return SBP_OK;
    SBP_TRY(sbp_cache_commit(cache, l->diag, data, &l->messages));
    sbp_note(l->diag, "%lld tokens are kept in %s (%s); the next start reads them there",
             (long long)data->token_count, sbp_cache_directory(cache),
             sbp_format_bytes(size, sizeof size, (double)data->token_count * 8));
    return SBP_OK;
}

static sbp_status load_body(void *user) {
    loader *l = user;
    sbp_cache *cache;
    find_cache(l, &cache);
    sbp_status status = load_with(l, cache);
    sbp_cache_close(cache);
    return status;
}

sbp_status sbp_dataset_load(sbp_diag *diag, const sbp_dataset_options *options, sbp_dataset **out) {
    loader l = {.diag = diag, .options = options, .arena = sbp_arena_create()};
    sbp_dataset *data = sbp_malloc(sizeof *data);
    sbp_status status = SBP_MACHINE;
    if (data) {
        memset(data, 0, sizeof *data);
        data->arena = sbp_arena_create();
        sbp_arrays_init(&data->arrays, -1);
    }
    l.placer = (sbp_placer){.diag = diag, .options = options, .data = data};
    status = l.arena && data && data->arena ? sbp_guard(l.arena, diag, load_body, &l) : out_of_memory(&l);
    sbp_group_rows_close(&l.placer.groups);
    sbp_arena_destroy(l.arena);
    bool behind = status == SBP_OK && is_behind_last_step(&l);
    if (behind && data->read_count > 0)
        sbp_warn(diag, "%lld rows behind %s, the end of the last step, are left out: no line ends theirs",
                 (long long)data->read_count, options->stream->where);
    *out = status == SBP_OK && !behind ? data : NULL;
    if (!*out)
        sbp_dataset_destroy(data);
    return status;
}
