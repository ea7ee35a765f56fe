/* cache.c: directories of arrays, and what is written about them. */
#include "runtime/data/cache.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "ir/base/json_write.h"

enum { CACHE_VERSION = 7, MOST_TRIES = 20 };

static const int64_t checked_bytes = (int64_t)4 << 30, longest_unused = 30 * 24 * 3600;
static const double disk_share = 0.25; /* of a disk, for all caches in a directory */

typedef struct cached_file {
    const char *path; /* absolute */
    int64_t size, mtime, ctime, inode;
} cached_file;

struct sbp_cache {
    sbp_arena *arena;
    const char *root, *path; /* path: in its place */
    cached_file *files;
    int32_t file_count;
    const char *building; /* NULL: nothing to be removed */
    int directory;        /* -1: not open */
};

/* ---- files ------------------------------------------------------------------------------------------ */

static int64_t nanoseconds(const struct timespec *t) {
    return (int64_t)t->tv_sec * 1000000000 + t->tv_nsec;
}

/* false: it is no regular file. */
static bool look_at(const char *path, cached_file *out) {
    struct stat s;
    if (stat(path, &s) != 0 || !S_ISREG(s.st_mode))
        return false;
    out->size = s.st_size;
    out->mtime = nanoseconds(&s.st_mtim);
    out->ctime = nanoseconds(&s.st_ctim);
    out->inode = (int64_t)s.st_ino;
    return true;
}

/* Waits until what is written from now on gets another time than what is there: clocks of files go by ticks,
 * of some by whole seconds. */
static void wait_for_clock(const cached_file *file) {
    struct timespec now;
    int64_t tick = file->ctime % 1000000000 == 0 ? 2000000000 : 20000000;
    if (clock_gettime(CLOCK_REALTIME, &now) != 0)
        return;
    int64_t left = file->ctime + tick - nanoseconds(&now);
    if (left > 0 && left <= tick)
        nanosleep(&(struct timespec){left / 1000000000, left % 1000000000}, NULL);
}

static bool same_file(const cached_file *a, const cached_file *b) {
    return a->size == b->size && a->mtime == b->mtime && a->ctime == b->ctime && a->inode == b->inode;
}

/* ---- directories ------------------------------------------------------------------------------------ */

static sbp_status make_directories(sbp_arena *arena, sbp_diag *diag, const char *path) {
    char *copy = sbp_arena_strdup(arena, path);
    for (char *at = copy + 1;; at++) {
        if (*at && *at != '/')
            continue;
        char end = *at;
        *at = 0;
        if (mkdir(copy, 0700) != 0 && errno != EEXIST)
            return sbp_fail(diag, SBP_IO, "cannot create the directory '%s': %s (--data-cache DIR|none)",
                            copy, strerror(errno));
        *at = end;
        if (!end)
            return SBP_OK;
    }
}

/* A directory of files, no deeper; not through a link. */
static void remove_directory(const char *path) {
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    struct dirent *entry;
    if (!dir) {
        if (fd >= 0)
            close(fd);
        return;
    }
    while ((entry = readdir(dir)))
        if (entry->d_name[0] != '.')
            unlinkat(dirfd(dir), entry->d_name, 0);
    closedir(dir);
    rmdir(path);
}

/* "KEY.PID.N.tmp" of processes that are gone. */
static void remove_leftovers(const char *root) {
    DIR *dir = opendir(root);
    struct dirent *entry;
    while (dir && (entry = readdir(dir))) {
        long pid;
        int key = 0, end = 0;
        char path[4096];
        if (sscanf(entry->d_name, "%*16[0-9a-f]%n.%ld.%*d.tmp%n", &key, &pid, &end) == 1 && key == 16 &&
            end > 0 && !entry->d_name[end] && kill((pid_t)pid, 0) != 0 && errno == ESRCH &&
            snprintf(path, sizeof path, "%s/%s", root, entry->d_name) < (int)sizeof path)
            remove_directory(path);
    }
    if (dir)
        closedir(dir);
}

/* ---- old ones --------------------------------------------------------------------------------------- */

/* A cache that may go. */
typedef struct old_cache {
    char name[24];
    int64_t used, bytes; /* used: second of the last start that read it */
} old_cache;

/* false: it is no cache. */
static bool look_at_cache(int root, const char *name, old_cache *out) {
    struct stat s;
    struct dirent *entry;
    int end = 0;
    if (sscanf(name, "%*16[0-9a-f]%n", &end) != 0 || end != 16 || name[end])
        return false;
    int fd = openat(root, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    bool good = fd >= 0 && fstatat(fd, "meta.json", &s, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(s.st_mode);
    DIR *dir = good ? fdopendir(fd) : NULL;
    if (!dir) {
        if (fd >= 0)
            close(fd);
        return false;
    }
    *out = (old_cache){.used = s.st_mtim.tv_sec};
    memcpy(out->name, name, 17);
    while ((entry = readdir(dir)))
        if (fstatat(fd, entry->d_name, &s, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(s.st_mode))
            out->bytes += (int64_t)s.st_blocks * 512;
    closedir(dir);
    return true;
}

/* The one that was not used for longest; bytes of all; false: there is none. */
static bool find_oldest(const char *root, old_cache *out, int64_t *bytes) {
    DIR *dir = opendir(root);
    struct dirent *entry;
    old_cache each;
    bool found = false;
    *bytes = 0;
    while (dir && (entry = readdir(dir)))
        if (look_at_cache(dirfd(dir), entry->d_name, &each)) {
            *bytes += each.bytes;
            if (!found || each.used < out->used)
                *out = each;
            found = true;
        }
    if (dir)
        closedir(dir);
    return found;
}

/* Under another name first, so that nobody finds half of it. Who has mapped it keeps it. */
static bool remove_cache(const char *root, const char *name) {
    char path[4096], gone[4096 + 64];
    if (snprintf(path, sizeof path, "%s/%s", root, name) >= (int)sizeof path)
        return false;
    snprintf(gone, sizeof gone, "%s.%ld.%d.tmp", path, (long)getpid(), 2 * MOST_TRIES);
    if (rename(path, gone) != 0)
        return false;
    remove_directory(gone);
    return true;
}

int32_t sbp_cache_clear(const char *root, int64_t most_bytes, int64_t unused_seconds) {
    int64_t bytes, now = (int64_t)time(NULL);
    old_cache oldest;
    int32_t gone = 0;
    while (find_oldest(root, &oldest, &bytes) && (bytes > most_bytes || now - oldest.used > unused_seconds) &&
           remove_cache(root, oldest.name))
        gone++;
    return gone;
}

/* ---- key -------------------------------------------------------------------------------------------- */

static uint64_t hash_text(const char *text, uint64_t hash) {
    return text ? sbp_hash_bytes(text, strlen(text) + 1, hash) : hash * 31 + 1;
}

static uint64_t hash_mixture(const sbp_mixture *m, uint64_t hash) {
    if (!m || sbp_mixture_takes_all(m))
        return hash;
    const int64_t numbers[] = {m->part_count, m->rows, m->weighted, (int64_t)m->seed, m->held_out};
    hash = sbp_hash_bytes(numbers, sizeof numbers, hash);
    hash = sbp_hash_bytes(&m->test_size, sizeof m->test_size, hash);
    for (int32_t i = 0; i < m->part_count; i++) {
        const sbp_mixture_part *part = &m->parts[i];
        hash = sbp_hash_bytes(&part->file_count, sizeof part->file_count, hash);
        hash = sbp_hash_bytes(&part->weight, sizeof part->weight, hash);
    }
    return hash;
}

static uint64_t key_of(const sbp_dataset_options *o, const sbp_cache *cache) {
    const int64_t numbers[] = {CACHE_VERSION,     (int64_t)sizeof(sbp_doc),
                               o->loss_on,        o->rows,
                               o->vocab_size,     o->max_tokens,
                               o->overlong,       o->skip_bad_rows,
                               o->mask_truncated, (int64_t)o->settings_hash,
                               o->max_prompt,     o->reasoning};
    uint64_t hash = hash_text(SBP_VERSION, sbp_hash_bytes(numbers, sizeof numbers, 0));
    hash = sbp_hash_bytes(&o->eos_penalty, sizeof o->eos_penalty, hash);
    hash = hash_text(o->eos, hash);
    hash = sbp_hash_bytes(o->eos_ids.count ? o->eos_ids.data : (const int32_t *)numbers,
                          (size_t)o->eos_ids.count * sizeof *o->eos_ids.data, hash);
    for (int32_t i = 0; i < o->columns.count; i++)
        hash = hash_text(o->columns.items[i].to, hash_text(o->columns.items[i].from, hash)) +
               o->columns.items[i].where_there;
    if (o->chat) {
        const sbp_template_source *s = &o->chat->source;
        hash = s->text ? sbp_hash_bytes(s->text, s->length, hash) : hash;
        hash = s->tool_text ? sbp_hash_bytes(s->tool_text, s->tool_length, hash) : hash;
        hash = hash_text(s->text && strstr(s->text, "strftime_now") ? o->chat->date : NULL, hash);
        hash = hash_text(o->chat->assistant ? "assistant" : "", hash_text(o->chat->eos, hash));
    }
    hash = hash_mixture(o->mixture, hash);
    for (int32_t i = 0; i < cache->file_count; i++)
        hash = hash_text(cache->files[i].path, hash);
    return hash;
}

void sbp_cache_open(sbp_arena *arena, const sbp_dataset_options *o, sbp_cache **out) {
    sbp_cache *c = SBP_NEW(arena, sbp_cache);
    c->arena = arena;
    c->directory = -1;
    c->root = o->cache;
    c->file_count = o->file_count;
    c->files = SBP_NEW_ARRAY(arena, cached_file, o->file_count);
    *out = NULL;
    for (int32_t i = 0; i < o->file_count; i++) {
        char *path = realpath(o->files[i], NULL);
        if (path)
            c->files[i].path = path;
        bool good = path && look_at(path, &c->files[i]);
        if (path) { /* the arena may leave this function */
            char copy[4096];
            good &= snprintf(copy, sizeof copy, "%s", path) < (int)sizeof copy;
            free(path);
            c->files[i].path = sbp_arena_strdup(arena, copy);
        }
        if (!good)
            return;
        wait_for_clock(&c->files[i]);
    }
    c->path = sbp_arena_printf(arena, "%s/%016llx", c->root, (unsigned long long)key_of(o, c));
    *out = c;
}

const char *sbp_cache_directory(const sbp_cache *cache) {
    return cache->path;
}

/* ---- what there is ---------------------------------------------------------------------------------- */

typedef struct field {
    const char *name;
    int64_t *value;
} field;

enum { FIELDS = 19 };

static void fields_of(sbp_dataset *d, field *out) {
    const field all[FIELDS] = {{"token_count", &d->token_count},
                               {"doc_count", &d->doc_count},
                               {"row_count", &d->row_count},
                               {"label_count", &d->label_count},
                               {"longest", &d->longest},
                               {"read_count", &d->read_count},
                               {"unchosen", &d->unchosen},
                               {"dropped", &d->dropped},
                               {"truncated", &d->truncated},
                               {"split", &d->split},
                               {"empty", &d->empty},
                               {"bad", &d->bad},
                               {"unwritten_tools", &d->unwritten[0]},
                               {"unwritten_calls", &d->unwritten[1]},
                               {"unwritten_reasoning", &d->unwritten[2]},
                               {"greatest_id", &d->greatest_id},
                               {"routed_count", &d->routed_count},
                               {"routed_layers", &d->routed_layers},
                               {"routed_chosen", &d->routed_chosen}};
    memcpy(out, all, sizeof all);
}

typedef struct array_of {
    char name[SBP_ARRAY_NAME];
    void *pointer; /* to the pointer in the dataset */
    int64_t bytes;
} array_of;

/* The arrays of a dataset whose counts are known. */
static int32_t arrays_of(sbp_dataset *d, array_of *out) {
    int32_t count = 0;
    out[count++] = (array_of){"tokens", &d->tokens, d->token_count * (int64_t)sizeof *d->tokens};
    out[count++] = (array_of){"labels", &d->labels, d->token_count * (int64_t)sizeof *d->labels};
    out[count++] = (array_of){"docs", &d->docs, d->doc_count * (int64_t)sizeof *d->docs};
    out[count++] = (array_of){"rows", &d->rows, (d->row_count + 1) * (int64_t)sizeof *d->rows};
    if (d->grouped)
        out[count++] = (array_of){"groups", &d->groups, d->row_count * (int64_t)sizeof *d->groups};
    if (d->routed_count > 0)
        out[count++] =
            (array_of){"routed", &d->routed,
                       d->routed_count * d->routed_layers * d->routed_chosen * (int64_t)sizeof *d->routed};
    for (int32_t i = 0; i < d->column_count; i++, count++) {
        out[count] = (array_of){"", &d->columns[i], d->token_count * (int64_t)sizeof(double)};
        snprintf(out[count].name, SBP_ARRAY_NAME, "column.%d", i);
    }
    for (int32_t i = 0; i < d->number_count; i++, count++) {
        out[count] = (array_of){"", &d->numbers[i], d->doc_count * (int64_t)sizeof(double)};
        snprintf(out[count].name, SBP_ARRAY_NAME, "number.%d", i);
    }
    return count;
}

/* ---- loading ---------------------------------------------------------------------------------------- */

typedef struct load_job {
    sbp_cache *cache;
    sbp_diag *diag;
    sbp_dataset *data;
    sbp_arena *arena; /* of the tree */
    bool found;
} load_job;

static bool files_are_same(const sbp_cache *c, const sbp_json *files) {
    if (!files || files->kind != SBP_JSON_ARRAY || files->count != c->file_count)
        return false;
    for (int32_t i = 0; i < c->file_count; i++) {
        static const char *const names[] = {"size", "mtime", "ctime", "inode"};
        const int64_t values[] = {c->files[i].size, c->files[i].mtime, c->files[i].ctime, c->files[i].inode};
        for (int k = 0; k < SBP_COUNT(names); k++) {
            int64_t was;
            if (sbp_json_get_i64(NULL, &files->items[i], names[k], SBP_JSON_REQUIRED, &was) != SBP_OK ||
                was != values[k])
                return false;
        }
    }
    return true;
}

static sbp_status read_names(load_job *job, const sbp_json *root, const char *key, const char **out,
                             int32_t most, int32_t *count) {
    const sbp_json *names;
    SBP_TRY(sbp_json_get_array(NULL, root, key, SBP_JSON_REQUIRED, &names));
    if (names->count > most)
        return SBP_INPUT;
    for (*count = 0; *count < names->count; ++*count) {
        const char *name;
        SBP_TRY(sbp_json_as_string(NULL, &names->items[*count], &name));
        out[*count] = sbp_arena_strdup(job->data->arena, name);
    }
    return SBP_OK;
}

static sbp_status read_hash(const sbp_json *root, const char *key, uint64_t *out) {
    const char *text = "";
    SBP_TRY(sbp_json_get_string(NULL, root, key, SBP_JSON_REQUIRED, &text));
    return sscanf(text, "%16lx", out) == 1 ? SBP_OK : SBP_INPUT;
}

/* Maps an array and looks at its sums. */
static sbp_status load_array(load_job *job, const array_of *array, const sbp_json *sums) {
    const char *text;
    int64_t pieces = sbp_ceil_div(array->bytes, SBP_SUM_BYTES);
    bool large = strcmp(array->name, "tokens") == 0 || strcmp(array->name, "labels") == 0;
    SBP_TRY(sbp_json_get_string(NULL, sums, array->name, SBP_JSON_REQUIRED, &text));
    if ((int64_t)strlen(text) != pieces * 16)
        return SBP_INPUT;
    uint64_t *values = SBP_NEW_ARRAY(job->arena, uint64_t, pieces);
    for (int64_t i = 0; i < pieces; i++)
        if (sscanf(text + 16 * i, "%16lx", &values[i]) != 1)
            return SBP_INPUT;
    sbp_arrays *arrays = &job->data->arrays;
    return sbp_arrays_map(arrays, array->name, array->bytes, array->pointer) &&
                   sbp_arrays_check(arrays, array->name, array->bytes, values,
                                    large ? checked_bytes : INT64_MAX)
               ? SBP_OK
               : SBP_INPUT;
}

static sbp_status repeat_messages(load_job *job, const sbp_json *root) {
    const sbp_json *list;
    SBP_TRY(sbp_json_get_array(NULL, root, "messages", SBP_JSON_REQUIRED, &list));
    for (int64_t i = 0; i < list->count; i++) {
        const char *text;
        int64_t severity;
        SBP_TRY(sbp_json_get_string(NULL, &list->items[i], "text", SBP_JSON_REQUIRED, &text));
        SBP_TRY(sbp_json_get_i64(NULL, &list->items[i], "severity", SBP_JSON_REQUIRED, &severity));
        if (severity == SBP_NOTE)
            sbp_note(job->diag, "%s", text);
        else
            sbp_warn(job->diag, "%s", text);
    }
    return SBP_OK;
}

/* The tree of meta.json, whose last line is the hash of what comes before; SBP_INPUT: it is none. */
static sbp_status read_meta(load_job *job, const sbp_json **out) {
    const char *path = sbp_file_join(job->arena, job->cache->path, "meta.json"), *text;
    size_t length;
    unsigned long hash;
    SBP_TRY(sbp_file_read(job->arena, NULL, path, &text, &length));
    if (length < 18 || sscanf(text + length - 17, "%16lx", &hash) != 1 ||
        hash != sbp_hash_bytes(text, length - 17, CACHE_VERSION))
        return SBP_INPUT;
    return sbp_json_parse(job->arena, NULL, path, text, length - 17, 0, out);
}

static sbp_status load_body(void *user) {
    load_job *job = user;
    sbp_dataset *d = job->data;
    const sbp_json *root, *sums;
    field fields[FIELDS];
    array_of arrays[SBP_MOST_ARRAYS];
    SBP_TRY(read_meta(job, &root));
    if (!files_are_same(job->cache, sbp_json_member(root, "files")))
        return SBP_INPUT;
    fields_of(d, fields);
    for (int i = 0; i < FIELDS; i++) {
        SBP_TRY(sbp_json_get_i64(NULL, root, fields[i].name, SBP_JSON_REQUIRED, fields[i].value));
        if (*fields[i].value < 0)
            return SBP_INPUT;
    }
    SBP_TRY(read_hash(root, "hash", &d->hash));
    SBP_TRY(sbp_json_get_bool(NULL, root, "texts", SBP_JSON_REQUIRED, &d->texts));
    SBP_TRY(sbp_json_get_bool(NULL, root, "groups", SBP_JSON_REQUIRED, &d->grouped));
    SBP_TRY(read_names(job, root, "columns", d->column_names, SBP_DATA_COLUMNS, &d->column_count));
    SBP_TRY(read_names(job, root, "numbers", d->number_names, SBP_DATA_NUMBERS, &d->number_count));
    SBP_TRY(sbp_json_get_object(NULL, root, "sums", SBP_JSON_REQUIRED, &sums));
    sbp_arrays_init(&d->arrays, job->cache->directory);
    int32_t count = arrays_of(d, arrays);
    for (int32_t i = 0; i < count; i++)
        SBP_TRY(load_array(job, &arrays[i], sums));
    SBP_TRY(repeat_messages(job, root));
    job->found = true;
    return SBP_OK;
}

sbp_status sbp_cache_load(sbp_cache *c, sbp_diag *diag, sbp_dataset *data, bool *found) {
    load_job job = {.cache = c, .diag = diag, .data = data, .arena = sbp_arena_create()};
    sbp_dataset empty = {.arena = data->arena, .arrays = {.directory = -1}};
    *found = false;
    if (!job.arena)
        return sbp_fail(diag, SBP_MACHINE, "out of memory for the data");
    c->directory = open(c->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool there = c->directory >= 0;
    sbp_status status = there ? sbp_guard(job.arena, NULL, load_body, &job) : SBP_INPUT;
    if (job.found) /* when it was used last; where that cannot be written, nobody clears either */
        (void)!utimensat(c->directory, "meta.json", NULL, 0);
    if (there)
        close(c->directory);
    c->directory = -1;
    sbp_arena_destroy(job.arena);
    *found = job.found;
    if (job.found)
        return SBP_OK;
    sbp_arrays_close(&data->arrays);
    *data = empty;
    if (there && status != SBP_MACHINE)
        sbp_note(diag, "cached tokens (%s) are of other files, or damaged: they are made anew", c->path);
    return status == SBP_MACHINE ? sbp_fail(diag, SBP_MACHINE, "out of memory for the data") : SBP_OK;
}

/* ---- making ----------------------------------------------------------------------------------------- */

/* Old ones go first: those that were long not used, and with the new one no more than a share of the disk. */
static sbp_status make_space(const sbp_cache *c, sbp_diag *diag) {
    struct statvfs s;
    int64_t bytes = 0;
    char need[32], have[32];
    for (int32_t i = 0; i < c->file_count; i++)
        bytes += c->files[i].size;
    if (statvfs(c->root, &s) != 0)
        return SBP_OK;
    double wanted = 2 * (double)bytes, left = disk_share * (double)s.f_blocks * (double)s.f_frsize - wanted;
    int32_t gone = sbp_cache_clear(c->root, left > 0 ? (int64_t)left : 0, longest_unused);
    if (gone > 0)
        sbp_note(diag, "cached tokens of other data, not used for long, were removed from '%s' (%d of them)",
                 c->root, gone);
    if (statvfs(c->root, &s) != 0)
        return SBP_OK;
    double available = (double)s.f_bavail * (double)s.f_frsize;
    if (available >= wanted)
        return SBP_OK;
    return sbp_fail(
        diag, SBP_MACHINE,
        "'%s' has %s free, the tokens of these files may take about %s there: --data-cache DIR for another "
        "place, none to hold them in memory",
        c->root, sbp_format_bytes(have, sizeof have, available), sbp_format_bytes(need, sizeof need, wanted));
}

sbp_status sbp_cache_create(sbp_cache *c, sbp_diag *diag, int *directory) {
    SBP_TRY(make_directories(c->arena, diag, c->root));
    remove_leftovers(c->root);
    SBP_TRY(make_space(c, diag));
    for (int i = 0; i < MOST_TRIES; i++) {
        const char *path = sbp_arena_printf(c->arena, "%s.%ld.%d.tmp", c->path, (long)getpid(), i);
        if (mkdir(path, 0700) == 0) {
            c->building = path;
            break;
        }
    }
    c->directory = c->building ? open(c->building, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    if (c->directory < 0)
        return sbp_fail(diag, SBP_IO, "cannot create a directory in '%s': %s (--data-cache DIR|none)",
                        c->root, strerror(errno));
    *directory = c->directory;
    return SBP_OK;
}

static void write_names(sbp_json_writer *w, const char *key, const char *const *names, int32_t count) {
    sbp_json_write_array(w, key);
    for (int32_t i = 0; i < count; i++)
        sbp_json_write_string(w, NULL, names[i]);
    sbp_json_write_end(w);
}

static void write_files(sbp_json_writer *w, const sbp_cache *c) {
    sbp_json_write_array(w, "files");
    for (int32_t i = 0; i < c->file_count; i++) {
        const cached_file *f = &c->files[i];
        sbp_json_write_object(w, NULL);
        sbp_json_write_string(w, "path", f->path);
        sbp_json_write_int(w, "size", f->size);
        sbp_json_write_int(w, "mtime", f->mtime);
        sbp_json_write_int(w, "ctime", f->ctime);
        sbp_json_write_int(w, "inode", f->inode);
        sbp_json_write_end(w);
    }
    sbp_json_write_end(w);
}

static void write_messages(sbp_json_writer *w, const sbp_cache_messages *messages) {
    sbp_json_write_array(w, "messages");
    for (int32_t i = 0; i < messages->count; i++) {
        sbp_json_write_object(w, NULL);
        sbp_json_write_int(w, "severity", messages->items[i].severity);
        sbp_json_write_string(w, "text", messages->items[i].text);
        sbp_json_write_end(w);
    }
    sbp_json_write_end(w);
}

static sbp_status finish_arrays(const sbp_cache *c, sbp_diag *diag, sbp_dataset *d, sbp_json_writer *w) {
    array_of arrays[SBP_MOST_ARRAYS];
    int32_t count = arrays_of(d, arrays);
    sbp_json_write_object(w, "sums");
    for (int32_t i = 0; i < count; i++) {
        int64_t pieces = sbp_ceil_div(arrays[i].bytes, SBP_SUM_BYTES);
        uint64_t *sums = SBP_NEW_ARRAY(c->arena, uint64_t, pieces);
        sbp_text digits;
        sbp_text_init(&digits, c->arena);
        if (!sbp_arrays_finish(&d->arrays, arrays[i].name, arrays[i].bytes, sums) ||
            !sbp_arrays_map(&d->arrays, arrays[i].name, arrays[i].bytes, arrays[i].pointer))
            return sbp_fail(diag, SBP_IO, "cannot write '%s/%s': %s", c->building, arrays[i].name,
                            strerror(d->arrays.error ? d->arrays.error : ENOMEM));
        for (int64_t k = 0; k < pieces; k++)
            sbp_text_add(&digits, "%016llx", (unsigned long long)sums[k]);
        sbp_json_write_bytes(w, arrays[i].name, digits.data, digits.length);
    }
    sbp_json_write_end(w);
    return SBP_OK;
}

/* Into its place, where there may be another one. */
static bool put_in_place(const sbp_cache *c) {
    for (int i = 0; i < MOST_TRIES; i++) {
        if (rename(c->building, c->path) == 0)
            return true;
        if (errno != ENOTEMPTY && errno != EEXIST)
            return false;
        const char *old =
            sbp_arena_printf(c->arena, "%s.%ld.%d.tmp", c->path, (long)getpid(), MOST_TRIES + i);
        if (rename(c->path, old) == 0)
            remove_directory(old);
    }
    return false;
}

sbp_status sbp_cache_commit(sbp_cache *c, sbp_diag *diag, sbp_dataset *data,
                            const sbp_cache_messages *messages) {
    sbp_text out;
    field fields[FIELDS];
    fields_of(data, fields);
    sbp_text_init(&out, c->arena);
    sbp_json_writer w = sbp_json_writer_on(&out);
    sbp_json_write_object(&w, NULL);
    sbp_json_write_string(&w, "sbprun", SBP_VERSION);
    sbp_json_write_hash(&w, "hash", data->hash);
    sbp_json_write_bool(&w, "texts", data->texts);
    sbp_json_write_bool(&w, "groups", data->grouped);
    for (int i = 0; i < FIELDS; i++)
        sbp_json_write_int(&w, fields[i].name, *fields[i].value);
    write_names(&w, "columns", data->column_names, data->column_count);
    write_names(&w, "numbers", data->number_names, data->number_count);
    write_files(&w, c);
    write_messages(&w, messages);
    SBP_TRY(finish_arrays(c, diag, data, &w));
    sbp_json_write_end(&w);
    sbp_text_add(&out, "\n");
    sbp_text_add(&out, "%016llx\n", (unsigned long long)sbp_hash_bytes(out.data, out.length, CACHE_VERSION));
    for (int32_t i = 0; i < c->file_count; i++) {
        cached_file now = {0};
        if (!look_at(c->files[i].path, &now) || !same_file(&now, &c->files[i])) {
            sbp_warn(diag, "'%s' was changed while it was read: the data are what was there before and after",
                     c->files[i].path);
            return SBP_OK;
        }
    }
    SBP_TRY(sbp_file_write(diag, sbp_file_join(c->arena, c->building, "meta.json"), out.data, out.length));
    if (!put_in_place(c)) {
        sbp_warn(diag, "cannot rename '%s': %s: what was tokenized is not kept", c->building,
                 strerror(errno));
        return SBP_OK;
    }
    c->building = NULL;
    return SBP_OK;
}

void sbp_cache_close(sbp_cache *c) {
    if (!c)
        return;
    if (c->directory >= 0)
        close(c->directory);
    if (c->building)
        remove_directory(c->building);
    c->directory = -1;
    c->building = NULL;
}
