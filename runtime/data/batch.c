/* batch.c: records to documents, and the threads that make them. */
#include "runtime/data/batch.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_THREADS = 64 };

/* ---- batches ---------------------------------------------------------------------------------------- */

void sbp_batch_destroy(sbp_batch *b) {
    if (!b)
        return;
    for (int32_t i = 0; i < b->made; i++) {
        sbp_arena_destroy(b->outcomes[i].arena);
        for (sbp_said *s = b->outcomes[i].first; s;) {
            sbp_said *next = s->next;
            free(s);
            s = next;
        }
    }
    sbp_arena_destroy(b->arena);
    free(b);
}

sbp_batch *sbp_batch_create(void) {
    sbp_batch *b = sbp_malloc(sizeof *b);
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

typedef struct record_job {
    sbp_row_worker *worker;
    sbp_batch *batch;
    const sbp_record *record;
    sbp_arena *arena; /* of the row */
    sbp_documents *out;
} record_job;

/* Oddities that a maker has told of. */
static unsigned told_by(const sbp_document_maker *m) {
    return (unsigned)m->warned_eos | (unsigned)m->warned_border << 1 | (unsigned)m->warned_mask << 2 |
           (m->chat ? (unsigned)m->chat->warned_end << 3 | (unsigned)m->chat->warned_all << 4 : 0);
}

unsigned sbp_row_worker_told(const sbp_row_worker *w) {
    return told_by(&w->maker);
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
    sbp_row_worker *w = user;
    sbp_said *s = sbp_malloc(sizeof *s + strlen(text) + 1);
    unsigned told = told_by(&w->maker);
    if (!s)
        return;
    *s = (sbp_said){.severity = severity, .once = told & ~w->told};
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
        if (d->routed) {
            sbp_row_routed *routed = copy(arena, d->routed, 1, sizeof *d->routed);
            routed->ids = copy(arena, routed->ids, routed->count * routed->layers * routed->chosen,
                               sizeof *routed->ids);
            d->routed = routed;
        }
    }
}

/* Says which columns of the first row are not used. */
static void tell_unused(const record_job *job, const sbp_json *tree) {
    const sbp_row_worker *w = job->worker;
    const char *names = sbp_row_unused(job->arena, &w->form, tree);
    if (names)
        sbp_note(w->diag, "%s: columns that are not used: %s%s", job->record->where, names,
                 w->options->columns.count ? " (--columns prompt=a+b joins two)" : "");
}

static sbp_status make_documents(void *user) {
    record_job *job = user;
    sbp_row_worker *w = job->worker;
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
static sbp_status keep_outcome(sbp_row_worker *w, sbp_batch *b, record_job *job) {
    if (sbp_arena_bytes(job->arena) < SBP_BATCH_BYTES)
        return sbp_guard(b->arena, w->diag, keep_body, job);
    w->outcome->documents = *job->out;
    w->outcome->arena = job->arena;
    job->arena = NULL;
    return SBP_OK;
}

static sbp_status make_outcome(sbp_row_worker *w, sbp_batch *b, int32_t i) {
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

void sbp_batch_make(sbp_row_worker *w, sbp_batch *b) {
    set_told(&w->maker, b->warned);
    b->status = SBP_OK;
    for (int32_t i = 0; i < b->count && b->status == SBP_OK; i++)
        b->status = make_outcome(w, b, i);
}

bool sbp_row_worker_open(sbp_row_worker *w, const sbp_dataset_options *o, const sbp_row_worker *first) {
    *w = (sbp_row_worker){.options = o,
                          .row_options = {.vocab_size = o->vocab_size,
                                          .fields = o->rows == SBP_ROWS_SCORED || o->rows == SBP_ROWS_PAIRS,
                                          .no_pairs = o->rows == SBP_ROWS_TEXTS || o->rows == SBP_ROWS_SCORED,
                                          .objective = o->objective,
                                          .objective_of_pairs = o->objective_of_pairs},
                          .diag = sbp_diag_create(),
                          .maker = {.tokenizer = o->tokenizer,
                                    .loss_on = o->loss_on,
                                    .reasoning = o->reasoning,
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

void sbp_row_worker_close(sbp_row_worker *w) {
    sbp_arena_destroy(w->maker.chat_arena);
    sbp_diag_destroy(w->diag);
}

/* ---- threads ---------------------------------------------------------------------------------------- */

struct sbp_row_pool {
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    sbp_batch *ring[2 * MOST_THREADS + 2];
    int64_t submitted, taken, consumed, size; /* batches; slots of the ring */
    bool stop;
    int32_t count;
    pthread_t threads[MOST_THREADS];
    sbp_row_worker workers[MOST_THREADS];
    struct pool_thread {
        struct sbp_row_pool *pool;
        int32_t index;
    } starts[MOST_THREADS];
};

static void *run_worker(void *user) {
    struct pool_thread *start = user;
    sbp_row_pool *p = start->pool;
    pthread_mutex_lock(&p->lock);
    for (;;) {
        while (!p->stop && p->taken == p->submitted)
            pthread_cond_wait(&p->work, &p->lock);
        if (p->stop)
            break;
        sbp_batch *b = p->ring[p->taken++ % p->size];
        pthread_mutex_unlock(&p->lock);
        sbp_batch_make(&p->workers[start->index], b);
        pthread_mutex_lock(&p->lock);
        b->done = true;
        pthread_cond_broadcast(&p->done);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

void sbp_row_pool_close(sbp_row_pool *p) {
    if (!p)
        return;
    pthread_mutex_lock(&p->lock);
    p->stop = true;
    pthread_cond_broadcast(&p->work);
    pthread_mutex_unlock(&p->lock);
    for (int32_t i = 0; i < p->count; i++) {
        pthread_join(p->threads[i], NULL);
        sbp_row_worker_close(&p->workers[i]);
    }
    for (; p->consumed < p->submitted; p->consumed++)
        sbp_batch_destroy(p->ring[p->consumed % p->size]);
    pthread_mutex_destroy(&p->lock);
    pthread_cond_destroy(&p->work);
    pthread_cond_destroy(&p->done);
    free(p);
}

sbp_row_pool *sbp_row_pool_open(const sbp_dataset_options *o, const sbp_row_worker *first) {
    sbp_row_pool *p = sbp_malloc(sizeof *p);
    if (!p)
        return NULL;
    memset(p, 0, sizeof *p);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->work, NULL);
    pthread_cond_init(&p->done, NULL);
    for (int32_t i = 0; i < o->threads && i < MOST_THREADS; i++) {
        p->starts[i] = (struct pool_thread){p, i};
        if (!sbp_row_worker_open(&p->workers[i], o, first) ||
            pthread_create(&p->threads[i], NULL, run_worker, &p->starts[i]) != 0) {
            sbp_row_worker_close(&p->workers[i]);
            break;
        }
        p->count++;
    }
    p->size = 2 * p->count + 2;
    if (p->count > 0)
        return p;
    sbp_row_pool_close(p);
    return NULL;
}

bool sbp_row_pool_is_full(const sbp_row_pool *p) {
    return p->submitted - p->consumed == p->size;
}

bool sbp_row_pool_is_empty(const sbp_row_pool *p) {
    return p->consumed == p->submitted;
}

void sbp_row_pool_put(sbp_row_pool *p, sbp_batch *b) {
    pthread_mutex_lock(&p->lock);
    p->ring[p->submitted++ % p->size] = b;
    pthread_cond_signal(&p->work);
    pthread_mutex_unlock(&p->lock);
}

sbp_batch *sbp_row_pool_take(sbp_row_pool *p) {
    pthread_mutex_lock(&p->lock);
    sbp_batch *b = p->ring[p->consumed % p->size];
    while (!b->done)
        pthread_cond_wait(&p->done, &p->lock);
    p->consumed++;
    pthread_mutex_unlock(&p->lock);
    return b;
}
