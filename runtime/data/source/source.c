/* source.c: what a file is, and its rows. */
#include "runtime/data/source/source.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/data/source/source_internal.h"

/* ---- what it is ------------------------------------------------------------------------------------- */

/* Files that are no rows, by how they begin, and one line that makes rows of them; %s: the file. */
typedef struct known_file {
    const char *magic;
    int length;
    const char *what, *convert;
} known_file;

#define PANDAS(read)                                                                                         \
    "python3 -c \"import pandas as p; p." read ".to_json('data.jsonl', orient='records', lines=True, "       \
    "force_ascii=False)\""

static const known_file known_files[] = {
    {"PK\3\4", 4, "a zip archive (or a spreadsheet)",
     "unzip '%s' (spreadsheets: " PANDAS("read_excel('%s')") ")"},
    {"BZh", 3, "compressed by bzip2", "bzcat '%s' > data.jsonl"},
    {"\xfd"
     "7zXZ",
     5, "compressed by xz", "xzcat '%s' > data.jsonl"},
    {"\x04\x22\x4d\x18", 4, "compressed by lz4", "lz4cat '%s' > data.jsonl"},
    {"ORC", 3, "ORC", PANDAS("read_orc('%s')")},
    {"FEA1", 4, "Feather V1", PANDAS("read_feather('%s')")},
    {"Obj\1", 4, "Avro",
     "python3 -c \"import fastavro, json; [print(json.dumps(r)) for r in "
     "fastavro.reader(open('%s', 'rb'))]\" > data.jsonl"},
    {"SQLite format 3", 15, "an SQLite database", "sqlite3 -json '%s' 'select * from TABLE' > data.json"},
    {"\x89HDF", 4, "HDF5", PANDAS("read_hdf('%s')")},
    {"\x80\x04", 2, "a pickle", PANDAS("read_pickle('%s')")},
    {"\x80\x05", 2, "a pickle", PANDAS("read_pickle('%s')")},
    {"\xff\xfe", 2, "text in UTF-16", "iconv -f UTF-16 -t UTF-8 '%s' > data.jsonl"},
    {"\xfe\xff", 2, "text in UTF-16", "iconv -f UTF-16 -t UTF-8 '%s' > data.jsonl"},
    {"\x7f"
     "ELF",
     4, "a program", ""},
    {"%PDF", 4, "a PDF", "pdftotext '%s' data.txt"},
};

#undef PANDAS

static sbp_status check_known(const sbp_source *s, sbp_diag *diag, const char *head, size_t length) {
    char line[600];
    for (int i = 0; i < SBP_COUNT(known_files); i++) {
        const known_file *k = &known_files[i];
        if (length < (size_t)k->length || memcmp(head, k->magic, (size_t)k->length) != 0)
            continue;
        snprintf(line, sizeof line, k->convert, s->path, s->path);
        return sbp_fail(diag, SBP_INPUT, "'%s' is %s, which is not read here%s%s", s->path, k->what,
                        line[0] ? ": " : "", line);
    }
    if (length > 262 && memcmp(head + 257, "ustar", 5) == 0)
        return sbp_fail(diag, SBP_INPUT, "'%s' is a tar archive, which is not read here: tar xf '%s'",
                        s->path, s->path);
    return SBP_OK;
}

/* A table of text names its columns in the first line: several, or one that is a plain word. */
static bool is_csv(const char *text, size_t length) {
    size_t end = 0, word = 0;
    bool several = false, quoted = false;
    for (; end < length && (quoted || (text[end] != '\n' && text[end] != '\r')); end++) {
        unsigned char c = (unsigned char)text[end];
        quoted ^= c == '"';
        several |= !quoted && (c == ',' || c == '\t' || c == ';');
        word += (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
                c == '"';
        if (c < ' ' && c != '\t' && !quoted)
            return false;
    }
    return end > 0 && end < length && (several || word == end);
}

/* NULL: nothing that is known. */
static const sbp_format *find_format(const char *head, size_t length) {
    size_t at = length >= 3 && memcmp(head, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
    uint32_t mark = 0;
    if (length >= 4)
        memcpy(&mark, head, sizeof mark);
    if (length >= 4 && memcmp(head, "PAR1", 4) == 0)
        return &sbp_format_parquet;
    if ((length >= 6 && memcmp(head, "ARROW1", 6) == 0) || mark == UINT32_MAX)
        return &sbp_format_arrow;
    bool csv = is_csv(head + at, length - at);
    while (at < length && strchr(" \t\r\n", head[at]) && head[at])
        at++;
    if (at == length || head[at] == '{')
        return &sbp_format_lines;
    if (head[at] == '[') {
        for (at++; at < length && head[at] && strchr(" \t\r\n", head[at]);)
            at++;
        return at == length || head[at] == '{' || head[at] == ']' ? &sbp_format_array : &sbp_format_lines;
    }
    return csv ? &sbp_format_csv : &sbp_format_lines; /* whose rows will say what is wrong */
}

/* ---- opening ---------------------------------------------------------------------------------------- */

/* Formats that read anywhere are compressed within, or do not become much smaller. */
static sbp_status check_spool(const sbp_source *s, sbp_diag *diag, size_t more) {
    const int64_t free_bytes = (int64_t)1 << 26, per_byte = 1 << 12;
    char size[32];
    int64_t taken = s->stream->taken;
    if (s->stream->compression == SBP_PLAIN || taken > (INT64_MAX - free_bytes) / per_byte ||
        (int64_t)more <= free_bytes + taken * per_byte - s->size)
        return SBP_OK;
    return sbp_fail(diag, SBP_INPUT,
                    "'%s': %lld compressed bytes become more than %s: decompress it first if that is right",
                    s->path, (long long)taken, sbp_format_bytes(size, sizeof size, (double)s->size));
}

/* Copies what a stream has to a file that has no name, for formats that read anywhere. */
static sbp_status spool(sbp_source *s, sbp_diag *diag) {
    const char *tmp = getenv("TMPDIR");
    char *path = sbp_arena_printf(s->arena, "%s/sbprun-data-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    s->fd = mkostemp(path, O_CLOEXEC);
    if (s->fd < 0)
        return sbp_fail(diag, SBP_IO, "cannot create '%s': %s", path, strerror(errno));
    unlink(path);
    for (;;) {
        SBP_TRY(sbp_stream_fill(s->stream, diag));
        size_t left = s->stream->length - s->stream->at;
        if (left == 0)
            break;
        SBP_TRY(check_spool(s, diag, left));
        ssize_t put = write(s->fd, s->stream->data + s->stream->at, left);
        if (put < 0 && errno != EINTR)
            return sbp_fail(diag, SBP_IO, "cannot write '%s', a copy of '%s': %s", path, s->path,
                            strerror(errno));
        s->stream->at += put > 0 ? (size_t)put : 0;
        s->size += put > 0 ? put : 0;
    }
    return SBP_OK;
}

static sbp_status open_stream(sbp_source *s, sbp_diag *diag) {
    struct stat info;
    if (strcmp(s->path, "-") == 0) {
        s->path = "standard input";
        if (s->reader)
            return sbp_stream_open_reader(diag, s->path, s->reader, &s->stream);
        return sbp_stream_open(diag, s->path, STDIN_FILENO, false, &s->stream);
    }
    if (sbp_directory_exists(s->path))
        return sbp_fail(diag, SBP_IO, "cannot read '%s': it is a directory", s->path);
    int fd = open(s->path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return sbp_fail(diag, SBP_IO, "cannot read '%s': %s", s->path, strerror(errno));
    s->size = fstat(fd, &info) == 0 && S_ISREG(info.st_mode) ? info.st_size : -1;
    return sbp_stream_open(diag, s->path, fd, true, &s->stream);
}

static sbp_status open_body(void *user) {
    void **pair = user;
    sbp_source *s = pair[0];
    sbp_diag *diag = pair[1];
    s->path = sbp_arena_strdup(s->arena, s->path);
    SBP_TRY(open_stream(s, diag));
    SBP_TRY(check_known(s, diag, s->stream->data, s->stream->length));
    const sbp_format *format = find_format(s->stream->data, s->stream->length);
    if (format->by_position) {
        if (s->size < 0 || s->stream->compression != SBP_PLAIN || !s->stream->owns_fd) {
            s->size = 0;
            SBP_TRY(spool(s, diag));
        } else {
            s->fd = s->stream->fd;
            s->stream->owns_fd = false;
        }
        sbp_stream_close(s->stream);
        s->stream = NULL;
    }
    s->format = format;
    return format->open(s, diag);
}

static sbp_status open_source(sbp_diag *diag, const char *path, const sbp_reader *reader, sbp_source **out) {
    sbp_source *s = sbp_malloc(sizeof *s);
    if (!s)
        return sbp_fail(diag, SBP_MACHINE, "out of memory for reading '%s'", path);
    *s = (sbp_source){.arena = sbp_arena_create(), .path = path, .reader = reader, .fd = -1, .size = -1};
    void *pair[] = {s, diag};
    sbp_status status = s->arena ? sbp_guard(s->arena, diag, open_body, pair)
                                 : sbp_fail(diag, SBP_MACHINE, "out of memory for reading '%s'", path);
    if (status == SBP_OK)
        *out = s;
    else
        sbp_source_close(s);
    return status;
}

sbp_status sbp_source_open(sbp_diag *diag, const char *path, sbp_source **out) {
    return open_source(diag, path, NULL, out);
}

sbp_status sbp_source_open_reader(sbp_diag *diag, const sbp_reader *reader, sbp_source **out) {
    return open_source(diag, "-", reader, out);
}

void sbp_source_close(sbp_source *s) {
    if (!s)
        return;
    if (s->format)
        s->format->close(s);
    sbp_stream_close(s->stream);
    if (s->fd >= 0)
        close(s->fd);
    sbp_arena_destroy(s->arena);
    free(s);
}

void sbp_source_set_interrupt(sbp_source *s, bool (*interrupted)(void)) {
    if (s->stream)
        s->stream->interrupted = interrupted;
}

void sbp_source_select(sbp_source *s, bool (*wanted)(void *user, const char *name), void *user) {
    if (s->format->select && s->rows == 0)
        s->format->select(s, wanted, user);
}

bool sbp_source_names_stay(const sbp_source *s) {
    return s->format == &sbp_format_lines || s->format == &sbp_format_array;
}

double sbp_source_share(const sbp_source *s) {
    if (s->format->share)
        return s->format->share(s);
    int64_t at = s->stream && s->stream->owns_fd && s->size > 0 ? lseek(s->stream->fd, 0, SEEK_CUR) : 0;
    return at > 0 ? (double)at / (double)s->size : 0;
}

/* ---- records ---------------------------------------------------------------------------------------- */

typedef struct read_job {
    sbp_source *source;
    sbp_arena *arena;
    sbp_diag *diag;
    sbp_record *out;
    bool *end;
} read_job;

static sbp_status read_body(void *user) {
    read_job *job = user;
    return job->source->format->next(job->source, job->arena, job->diag, job->out, job->end);
}

sbp_status sbp_source_read(sbp_source *s, sbp_arena *arena, sbp_diag *diag, sbp_record *out, bool *end) {
    read_job job = {s, arena, diag, out, end};
    *out = (sbp_record){0};
    *end = false;
    SBP_TRY(sbp_guard(arena, diag, read_body, &job));
    s->rows += !*end;
    return SBP_OK;
}

/* Columns of a table of text whose values are no text: read as JSON. */
static const char *const no_text[] = {
    "input_ids",
    "labels",
    "completion_mask",
    "assistant_masks",
    "prompt_ids",
    "completion_ids",
    "chosen_ids",
    "rejected_ids",
    "logprobs",
    "env_mask",
    "messages",
    "conversations",
    "tools",
    "chat_template_kwargs",
    "label",
    "ref_chosen_logps",
    "ref_rejected_logps",
    "reward",
    "rewards",
    "advantage",
    "group",
    "score_chosen",
    "score_rejected",
    "margin",
};

/* "True" and "False" are what data frames write. */
static sbp_status parse_string(sbp_arena *arena, sbp_diag *diag, const sbp_json *root, sbp_json *member) {
    const sbp_json *value;
    const char *text = member->string;
    if (member->kind != SBP_JSON_STRING)
        return SBP_OK;
    if (member->count == 0) {
        member->kind = SBP_JSON_NULL;
        return SBP_OK;
    }
    if (strcmp(text, "True") == 0 || strcmp(text, "False") == 0) {
        sbp_json_set_bool(member, text[0] == 'T');
        return SBP_OK;
    }
    const char *where = sbp_arena_printf(arena, "%s: %s", root->key, member->key);
    SBP_TRY(sbp_json_parse(arena, diag, where, text, (size_t)member->count, SBP_JSON_ROW, &value));
    const char *key = member->key;
    const sbp_json *parent = member->parent;
    int32_t index = member->index;
    *member = *value;
    member->key = key;
    member->parent = parent;
    member->index = index;
    return SBP_OK;
}

static sbp_status parse_strings(sbp_arena *arena, sbp_diag *diag, const sbp_json *row, const sbp_json **out) {
    sbp_json *root = SBP_NEW(arena, sbp_json), *items = SBP_NEW_ARRAY(arena, sbp_json, row->count);
    *root = *row;
    root->items = items;
    for (int64_t i = 0; i < row->count; i++) {
        items[i] = row->items[i];
        items[i].parent = root;
        for (int k = 0; k < SBP_COUNT(no_text); k++)
            if (strcmp(items[i].key, no_text[k]) == 0)
                SBP_TRY(parse_string(arena, diag, root, &items[i]));
    }
    *out = root;
    return SBP_OK;
}

/* A line that nobody meant as JSON: what it begins with is none, or what follows a word. */
static bool is_plain_text(const sbp_record *record) {
    size_t at = 0;
    while (at < record->length && strchr(" \t", record->text[at]))
        at++;
    return at == record->length || !strchr("{[\"", record->text[at]);
}

static void tell_what_rows_are(sbp_arena *arena, sbp_diag *diag, const sbp_record *record) {
    static const char objects[] = "rows are JSON objects, each on a line of its own: {\"text\": \"...\"}";
    const char *colon = strrchr(record->where, ':'); /* behind the name of the file */
    if (!is_plain_text(record) || !colon) {
        sbp_note(diag, "%s", objects);
        return;
    }
    const char *file = sbp_arena_strndup(arena, record->where, (size_t)(colon - record->where));
    sbp_note(diag,
             "%s; plain text is not read; as one row, which --overlong split cuts: python3 -c \"import json; "
             "print(json.dumps({'text': open('%s').read()}))\" > data.jsonl",
             objects, file);
}

sbp_status sbp_record_parse(const sbp_record *record, sbp_arena *arena, sbp_diag *diag,
                            const sbp_json **out) {
    if (record->error)
        return sbp_fail(diag, SBP_INPUT, "%s: %s", record->where, record->error);
    if (record->tree) {
        *out = record->tree;
        return record->strings ? parse_strings(arena, diag, record->tree, out) : SBP_OK;
    }
    sbp_status status =
        sbp_json_parse(arena, diag, record->where, record->text, record->length, SBP_JSON_ROW, out);
    if (status == SBP_INPUT || (status == SBP_OK && (*out)->kind != SBP_JSON_OBJECT))
        tell_what_rows_are(arena, diag, record);
    return status;
}
