/* checksums.c: checksums of the files of a directory. */
#include "runtime/train/checksums.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "frontends/formats/files/named_path.h"
#include "runtime/train/rundir.h"

#define FILE_NAME "checksums.json"

enum { PIECE_BYTES = 1 << 16 };

typedef struct file_sum {
    int64_t bytes;
    uint64_t sum;
} file_sum;

static sbp_status sum_open_file(sbp_diag *diag, int fd, const char *path, unsigned char *piece,
                                file_sum *out) {
    struct stat info;
    *out = (file_sum){0};
    if (fstat(fd, &info) != 0)
        return sbp_fail(diag, SBP_IO, "cannot read '%s': %s", path, strerror(errno));
    while (out->bytes < info.st_size) {
        int64_t left = info.st_size - out->bytes, count = left < PIECE_BYTES ? left : PIECE_BYTES;
        SBP_TRY(sbp_file_pread(diag, fd, path, piece, count, out->bytes));
        out->sum = sbp_hash_bytes(piece, (size_t)count, out->sum);
        out->bytes += count;
    }
    return SBP_OK;
}

static sbp_status sum_file(sbp_diag *diag, const char *path, unsigned char *piece, file_sum *out) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return sbp_fail(diag, SBP_IO, "cannot read '%s': %s", path, strerror(errno));
    sbp_status status = sum_open_file(diag, fd, path, piece, out);
    close(fd);
    return status;
}

static int by_name(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Names are collected before anything else is done, so that nothing is owned when the arena unwinds. */
typedef struct name_list {
    sbp_arena *arena;
    DIR *dir;
    const char *prefix; /* of the names of the folder at hand: "", or its own and a slash */
    const char **names;
    int32_t count, capacity;
} name_list;

static sbp_status list_body(void *user) {
    name_list *l = user;
    struct dirent *entry;
    while ((entry = readdir(l->dir)))
        if (entry->d_name[0] != '.' && strcmp(entry->d_name, FILE_NAME) != 0)
            SBP_PUSH(l->arena, l->names, l->count, l->capacity,
                     sbp_arena_printf(l->arena, "%s%s", l->prefix, entry->d_name));
    return SBP_OK;
}

static sbp_status list_folder(sbp_diag *diag, const char *path, name_list *l) {
    l->dir = opendir(path);
    if (!l->dir && errno == ENOMEM)
        return sbp_fail(diag, SBP_MACHINE, "out of memory for the names in '%s'", path);
    if (!l->dir)
        return sbp_fail(diag, SBP_IO, "cannot read '%s': %s", path, strerror(errno));
    sbp_status status = sbp_guard(l->arena, diag, list_body, l);
    closedir(l->dir);
    return status;
}

/* Files of the directory, and of the folders in it: their names follow where theirs was. */
static sbp_status list_names(sbp_diag *diag, const char *directory, name_list *l) {
    l->prefix = "";
    SBP_TRY(list_folder(diag, directory, l));
    for (int32_t i = 0, count = l->count; i < count;) {
        const char *path = sbp_file_join(l->arena, directory, l->names[i]);
        if (!sbp_directory_exists(path)) {
            i++;
            continue;
        }
        l->prefix = sbp_arena_printf(l->arena, "%s/", l->names[i]);
        l->names[i] =
            l->names[--count]; /* the last of the directory's own, and in its place the last of all */
        l->names[count] = l->names[--l->count];
        SBP_TRY(list_folder(diag, path, l));
    }
    if (l->count > 0)
        qsort(l->names, (size_t)l->count, sizeof *l->names, by_name);
    return SBP_OK;
}

static void write_entry(sbp_json_writer *w, const char *name, int64_t bytes, const char *sum) {
    sbp_json_write_object(w, name);
    sbp_json_write_int(w, "bytes", bytes);
    sbp_json_write_string(w, "checksum", sum);
    sbp_json_write_end(w);
}

sbp_status sbp_checksums_add(sbp_arena *arena, sbp_diag *diag, const char *directory, const char *name,
                             sbp_json_writer *entries) {
    unsigned char *piece = sbp_arena_alloc(arena, PIECE_BYTES);
    char text[20];
    file_sum s;
    SBP_TRY(sum_file(diag, sbp_file_join(arena, directory, name), piece, &s));
    snprintf(text, sizeof text, "%016llx", (unsigned long long)s.sum);
    write_entry(entries, name, s.bytes, text);
    return SBP_OK;
}

/* Whether one of the objects has it. */
static bool is_known(const sbp_json *known, const char *name) {
    for (int64_t i = 0; known && i < known->count; i++)
        if (sbp_json_member(&known->items[i], name))
            return true;
    return false;
}

static sbp_status write_known(sbp_diag *diag, const sbp_json *entries, sbp_json_writer *w) {
    const char *sum;
    int64_t bytes;
    SBP_TRY(sbp_json_as_object(diag, entries, &entries));
    for (int64_t i = 0; i < entries->count; i++) {
        SBP_TRY(sbp_json_get_i64(diag, &entries->items[i], "bytes", SBP_JSON_REQUIRED, &bytes));
        SBP_TRY(sbp_json_get_string(diag, &entries->items[i], "checksum", SBP_JSON_REQUIRED, &sum));
        write_entry(w, entries->items[i].key, bytes, sum);
    }
    return SBP_OK;
}

sbp_status sbp_checksums_write(sbp_arena *arena, sbp_diag *diag, const char *directory,
                               const sbp_json *known) {
    name_list l = {.arena = arena};
    sbp_text out;
    sbp_text_init(&out, arena);
    SBP_TRY(list_names(diag, directory, &l));
    sbp_json_writer w = sbp_json_writer_on(&out);
    w.lines = 1;
    sbp_json_write_object(&w, NULL);
    for (int64_t i = 0; known && i < known->count; i++)
        SBP_TRY(write_known(diag, &known->items[i], &w));
    for (int32_t i = 0; i < l.count; i++)
        if (!is_known(known, l.names[i]))
            SBP_TRY(sbp_checksums_add(arena, diag, directory, l.names[i], &w));
    sbp_json_write_end(&w);
    sbp_text_add(&out, "\n");
    return sbp_file_write(diag, sbp_file_join(arena, directory, FILE_NAME), out.data, out.length);
}

sbp_status sbp_checksums_verify(sbp_arena *arena, sbp_diag *diag, const char *directory, int32_t first,
                                int32_t of) {
    const char *path = sbp_file_join(arena, directory, FILE_NAME);
    unsigned char *piece = sbp_arena_alloc(arena, PIECE_BYTES);
    const sbp_json *root;
    if (!sbp_file_exists(path))
        return sbp_fail(diag, SBP_INPUT,
                        "'%s' is damaged: it has no " FILE_NAME
                        ", without which damage to its other files is not "
                        "seen; delete '%s', and --resume goes on from the checkpoint before it",
                        directory, directory);
    SBP_TRY(sbp_json_read(arena, diag, path, 0, &root));
    SBP_TRY(sbp_json_as_object(diag, root, &root));
    if (!sbp_json_member(root, SBP_RUNDIR_CHECKPOINT))
        return sbp_fail(diag, SBP_INPUT,
                        "'%s' is damaged: " FILE_NAME " does not list " SBP_RUNDIR_CHECKPOINT
                        "; delete '%s', and --resume goes on from the checkpoint before it",
                        directory, directory);
    for (int64_t i = first; i < root->count; i += of) {
        const sbp_json *entry;
        const char *expected, *file;
        int64_t bytes;
        char found[20];
        file_sum s;
        SBP_TRY(sbp_json_as_object(diag, &root->items[i], &entry));
        SBP_TRY(sbp_json_get_i64(diag, entry, "bytes", SBP_JSON_REQUIRED, &bytes));
        SBP_TRY(sbp_json_get_string(diag, entry, "checksum", SBP_JSON_REQUIRED, &expected));
        SBP_TRY(sbp_named_path(arena, diag, path, directory, root->items[i].key, &file));
        if (!sbp_file_exists(file))
            return sbp_fail(
                diag, SBP_IO,
                "'%s' is missing; delete '%s', and --resume goes on from the checkpoint before it", file,
                directory);
        SBP_TRY(sum_file(diag, file, piece, &s));
        snprintf(found, sizeof found, "%016llx", (unsigned long long)s.sum);
        if (s.bytes != bytes || strcmp(found, expected) != 0)
            return sbp_fail(
                diag, SBP_INPUT,
                "'%s/%s' is damaged: %lld bytes with checksum %s, where %lld with %.20s were written; "
                "delete '%s', and --resume goes on from the checkpoint before it",
                directory, root->items[i].key, (long long)s.bytes, found, (long long)bytes, expected,
                directory);
    }
    return SBP_OK;
}
