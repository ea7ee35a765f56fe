/* load.c: files to datasets: this thread reads records and places documents, in the order of the files;
 * others make documents of records, a batch at a time. What is said, and which row is found to be wrong, does
 * not depend on how many they are. */
#include "runtime/data/load.h"
#include "ir/base/census.h"
#include "ir/base/diag.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "runtime/data/batch.h"
#include "runtime/data/cache.h"

enum {
    SHOWN_BAD_ROWS = 5,
    THREADS_FROM_BYTES = 1 << 22 /* of files; below, one thread is as fast */
};

static const int64_t release_bytes = 1 << 25; /* of tokens, after which their pages are given back */

/* ---- loading ---------------------------------------------------------------------------------------- */

typedef struct loader {
    sbp_diag *diag;
    sbp_arena *arena;
    const sbp_dataset_options *options;
    sbp_placer placer;
    sbp_row_worker first; /* of the rows before threads begin */
    sbp_row_pool *pool;
    unsigned told; /* oddities that were told of */
    sbp_cache_messages messages;
    int64_t bytes, bytes_before; /* of all files that are regular; of those read */
    int64_t unreleased;          /* tokens */
    sbp_mixture_choice choice;   /* of a mixture; without bits: all rows */
    int64_t row;                 /* the next of the files */
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
    const char *text, *end; /* end: what stands behind the text */
} keep_job;

/* For a cache, which says it again. */
static sbp_status keep_message(void *user) {
    keep_job *job = user;
    loader *l = job->loader;
    SBP_PUSH(l->arena, l->messages.items, l->messages.count, l->messages.capacity,
             (sbp_cache_message){job->severity, sbp_arena_printf(l->arena, "%s%s", job->text, job->end)});
    return SBP_OK;
}

/* Passes a message on. An error ends the load: it is said, and not kept. `lacking` is told where there is no
 * memory for keeping it; NULL: then a cache goes without it. */
static sbp_status say(loader *l, sbp_diag *lacking, sbp_severity severity, const char *text,
                      const char *end) {
    keep_job job = {l, severity, text, end};
    if (severity == SBP_ERROR) {
        (void)sbp_fail(l->diag, SBP_INPUT, "%s%s", text, end);
        return SBP_OK;
    }
    if (severity == SBP_NOTE)
        sbp_note(l->diag, "%s%s", text, end);
    else
        sbp_warn(l->diag, "%s%s", text, end);
    return sbp_guard(l->arena, lacking, keep_message, &job);
}

/* What a worker said of a row. An error of a row that is wrong and left out becomes a warning, for the first
 * of them. */
static sbp_status tell(loader *l, const sbp_said *s, bool bad) {
    if (s->once && (s->once & ~l->told) == 0)
        return SBP_OK;
    l->told |= s->once;
    if (s->severity != SBP_ERROR || !bad)
        return say(l, l->diag, s->severity, s->text, "");
    if (l->placer.data->bad >= SHOWN_BAD_ROWS)
        return SBP_OK;
    return say(l, l->diag, SBP_WARNING, s->text, " (row left out)");
}

static sbp_status place_batch(loader *l, sbp_batch *b) {
    sbp_dataset *data = l->placer.data;
    int64_t before = data->token_count;
    for (int32_t i = 0; i < b->made; i++) {
        sbp_outcome *o = &b->outcomes[i];
        for (const sbp_said *s = o->first; s; s = s->next)
            SBP_TRY(tell(l, s, o->bad));
        if (b->status != SBP_OK && i + 1 == b->made)
            return o->first || b->status != SBP_MACHINE ? b->status
                                                        : out_of_memory_for(l, b->records[i].where);
        if (o->bad)
            data->bad++;
        else {
            data->read_count = b->rows[i];
            SBP_TRY(sbp_placer_row(&l->placer, b->arena, b->records[i].where, &o->documents));
        }
        sbp_arena_destroy(o->arena);
        o->arena = NULL;
    }
    l->unreleased += (data->token_count - before) * 8;
    if (l->unreleased > release_bytes) {
        sbp_dataset_release(data);
        l->unreleased = 0;
    }
    return b->status;
}

/* Places the oldest batch of the pool. */
static sbp_status consume(loader *l) {
    sbp_batch *b = sbp_row_pool_take(l->pool);
    sbp_status status = place_batch(l, b);
    sbp_batch_destroy(b);
    return status;
}

static sbp_status drain(loader *l) {
    while (l->pool && !sbp_row_pool_is_empty(l->pool))
        SBP_TRY(consume(l));
    return SBP_OK;
}

/* Takes the batch over. */
static sbp_status submit(loader *l, sbp_batch *b) {
    sbp_status status = SBP_OK;
    while (status == SBP_OK && sbp_row_pool_is_full(l->pool))
        status = consume(l);
    if (status == SBP_OK)
        sbp_row_pool_put(l->pool, b);
    else
        sbp_batch_destroy(b);
    return status;
}

/* Rows of this thread come first: the first good one decides what rows are, and opens the template. */
static sbp_status handle_batch(loader *l, sbp_batch *b) {
    b->warned = l->told;
    if (!l->pool && l->options->threads > 1 && l->bytes >= THREADS_FROM_BYTES &&
        l->first.form.type != SBP_ROW_NONE)
        l->pool = sbp_row_pool_open(l->options, &l->first);
    SBP_CROSS_EITHER(l->pool, data_threads, data_one_thread);
    if (l->pool) {
        b->warned = sbp_row_worker_told(&l->first);
        return submit(l, b);
    }
    sbp_batch_make(&l->first, b);
    sbp_status status = place_batch(l, b);
    sbp_batch_destroy(b);
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
static bool ends_step(sbp_batch *b, const sbp_record *record) {
    end_job job = {.arena = b->arena, .record = record};
    return record->text && strstr(record->text, "\"end_of_step\"") &&
           sbp_guard(b->arena, NULL, look_for_end, &job) == SBP_OK && job.ends;
}

/* Whether the next row is one that the mixture takes. */
static sbp_status look_up(const loader *l, sbp_diag *diag, const sbp_record *record, bool *taken) {
    const sbp_mixture_choice *choice = &l->choice;
    *taken = true;
    if (!choice->bits)
        return SBP_OK;
    if (l->row >= choice->count)
        return sbp_fail(diag, SBP_IO, "%s: the file was changed while it was read: begin again",
                        record->where);
    *taken = sbp_mixture_has(choice, l->row);
    return SBP_OK;
}

/* Fills a batch; the diag of the reader is told later, behind what comes before in the file. Of a stream it
 * ends with a step. */
static sbp_status fill_batch(loader *l, sbp_source *source, sbp_diag *diag, sbp_batch *b, bool *end) {
    sbp_row_stream *stream = l->options->stream;
    bool taken = true;
    while (!*end && b->count < SBP_BATCH_RECORDS && sbp_arena_bytes(b->arena) < SBP_BATCH_BYTES) {
        sbp_record *record = &b->records[b->count];
        SBP_TRY(sbp_source_read(source, b->arena, diag, record, end));
        if (stream && *end)
            stream->ended = true;
        if (stream && !*end && ends_step(b, record)) {
            snprintf(stream->where, sizeof stream->where, "%s", record->where);
            stream->steps = *end = true;
        }
        if (*end)
            break;
        SBP_TRY(look_up(l, diag, record, &taken));
        b->rows[b->count] = l->row++;
        b->count += taken;
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
        sbp_batch *b = sbp_batch_create();
        if (!b)
            return out_of_memory(l);
        read = fill_batch(l, source, diag, b, &end);
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
    (void)!say(user, NULL, severity, text, "");
}

/* Passes on what was said while a batch was read. */
static void forward_all(loader *l, sbp_diag *diag) {
    sbp_diag_each(diag, forward_reader, l);
    sbp_diag_clear(diag);
}

/* Columns by the names that the file has for them. */
static bool is_wanted(void *user, const char *name) {
    const loader *l = user;
    return sbp_columns_take(&l->options->columns, name) || sbp_row_may_need(name);
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
            sbp_row_pool_close(l->pool);
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

/* ---- mixtures --------------------------------------------------------------------------------------- */

static bool wants_nothing(void *user, const char *name) {
    (void)user;
    (void)name;
    return false;
}

/* Rows of an open file; nothing of them is looked at. */
static sbp_status count_rows(loader *l, sbp_source *source, sbp_diag *diag, int64_t *count) {
    sbp_status status = SBP_OK;
    sbp_record record;
    for (bool end = false; status == SBP_OK && !end;) {
        sbp_arena *arena = sbp_arena_create();
        if (!arena)
            return out_of_memory(l);
        while (status == SBP_OK && !end && sbp_arena_bytes(arena) < SBP_BATCH_BYTES) {
            status = sbp_source_read(source, arena, diag, &record, &end);
            *count += status == SBP_OK && !end;
        }
        sbp_arena_destroy(arena);
        if (l->options->progress)
            l->options->progress(l->options->progress_user, 0);
    }
    return status;
}

static sbp_status count_file(loader *l, const char *path, int64_t *count) {
    struct stat s;
    sbp_source *source = NULL;
    if (strcmp(path, "-") == 0 || (stat(path, &s) == 0 && !S_ISREG(s.st_mode)))
        return sbp_fail(
            l->diag, SBP_USAGE,
            "%s cannot be read twice, to count its rows and to take some of them: put them into a "
            "file, or leave out --mixture-weights and --test-split-size",
            strcmp(path, "-") == 0 ? "standard input" : path);
    sbp_diag *diag = sbp_diag_create();
    if (!diag)
        return out_of_memory(l);
    sbp_status status = sbp_source_open(diag, path, &source);
    if (status == SBP_OK) {
        sbp_source_select(source, wants_nothing, NULL);
        status = count_rows(l, source, diag, count);
    }
    if (status != SBP_OK) /* else they are said when it is read */
        forward_all(l, diag);
    sbp_source_close(source);
    sbp_diag_destroy(diag);
    return status;
}

/* Says how many rows the mixture takes. counts: what its parts have. */
static void tell_mixture(loader *l, const int64_t *counts) {
    const sbp_mixture *m = l->options->mixture;
    const sbp_mixture_choice *choice = &l->choice;
    int64_t *taken = SBP_NEW_ARRAY(l->arena, int64_t, m->part_count + 1),
            held_out = choice->mixed - choice->taken;
    sbp_text text;
    sbp_text_init(&text, l->arena);
    sbp_mixture_count(m, counts, taken);
    for (int32_t p = 0; p < m->part_count && m->weighted; p++)
        sbp_text_add(&text, "%s%lld of %lld (%s)",
                     p > 0 ? ", " : "rows of the mixture: ", (long long)taken[p], (long long)counts[p],
                     m->parts[p].name);
    if (m->test_size > 0)
        sbp_text_add(&text, "%s%lld of %lld rows are held out", m->weighted ? "; " : "", (long long)held_out,
                     (long long)choice->mixed);
    forward_reader(l, SBP_NOTE, text.data);
}

/* Which rows are taken, for which all of them are counted first. */
static sbp_status choose_rows(loader *l) {
    const sbp_dataset_options *o = l->options;
    const sbp_mixture *m = o->mixture;
    int32_t file = 0;
    if (!m || sbp_mixture_takes_all(m))
        return SBP_OK;
    int64_t *counts = SBP_NEW_ARRAY(l->arena, int64_t, m->part_count + 1);
    for (int32_t p = 0; p < m->part_count; p++)
        for (int32_t i = 0; i < m->parts[p].file_count; i++)
            SBP_TRY(count_file(l, o->files[file++], &counts[p]));
    SBP_TRY(sbp_mixture_choose(m, l->diag, counts, &l->choice));
    if (!o->quiet && !m->held_out)
        tell_mixture(l, counts);
    return SBP_OK;
}

/* Whether the files have what was counted. */
static sbp_status check_counts(const loader *l) {
    if (!l->choice.bits || l->row == l->choice.count)
        return SBP_OK;
    return sbp_fail(l->diag, SBP_IO, "%s%s: rows went while they were read: begin again",
                    l->options->files[0], l->options->file_count > 1 ? " ..." : "");
}

/* ---- the whole -------------------------------------------------------------------------------------- */

static sbp_status read_files(loader *l) {
    sbp_status status = SBP_OK;
    const sbp_dataset_options *o = l->options;
    SBP_TRY(choose_rows(l));
    if (!sbp_row_worker_open(&l->first, o, NULL)) {
        sbp_row_worker_close(&l->first);
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
    if (status == SBP_OK)
        status = check_counts(l);
    l->placer.data->read_count = l->row;
    l->placer.data->unchosen = l->choice.count - l->choice.taken;
    sbp_row_pool_close(l->pool);
    l->pool = NULL;
    sbp_row_type type = l->first.form.type;
    l->placer.data->texts = type != SBP_ROW_PAIR && type != SBP_ROW_PROMPT;
    sbp_row_worker_close(&l->first);
    return status;
}

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
    sbp_mixture_close(&l.choice);
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
