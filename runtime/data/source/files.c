/* files.c: globs and directories to files. */
#include <dirent.h>
#include <glob.h>
#include <stdlib.h>
#include <string.h>

#include "frontends/formats/files/named_path.h"
#include "runtime/data/source/source.h"

typedef struct file_list {
    sbp_arena *arena;
    sbp_diag *diag;
    const char **items;
    int32_t count, capacity;
} file_list;

static int by_name(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static void push(file_list *list, const char *path) {
    SBP_PUSH(list->arena, list->items, list->count, list->capacity, path);
}

static bool ends_with(const char *text, const char *end) {
    size_t n = strlen(text), m = strlen(end);
    return n > m && strcmp(text + n - m, end) == 0;
}

/* Names under which rows are kept; what lies beside them (README.md, state.json) is none of that. */
static bool is_shard(const char *name) {
    static const char *const ends[] = {".jsonl",   ".json",    ".ndjson",    ".parquet",   ".arrow",
                                       ".feather", ".csv",     ".tsv",       ".json.gz",   ".jsonl.gz",
                                       ".csv.gz",  ".tsv.gz",  ".ndjson.gz", ".jsonl.zst", ".json.zst",
                                       ".csv.zst", ".tsv.zst", ".ndjson.zst"};
    static const char *const others[] = {"dataset_info.json", "dataset_infos.json", "dataset_dict.json",
                                         "state.json"};
    for (int i = 0; i < SBP_COUNT(others); i++)
        if (strcmp(name, others[i]) == 0)
            return false;
    for (int i = 0; i < SBP_COUNT(ends); i++)
        if (name[0] != '.' && ends_with(name, ends[i]))
            return true;
    return false;
}

/* In the order of their names. The directory is closed before anything is allocated that could fail. */
static sbp_status shards_of(file_list *list, const char *directory) {
    struct dirent **names;
    int count = scandir(directory, &names, NULL, alphasort);
    if (count < 0)
        return sbp_fail(list->diag, SBP_IO, "cannot read the directory '%s'", directory);
    size_t bytes = 1;
    for (int i = 0; i < count; i++)
        bytes += is_shard(names[i]->d_name) ? strlen(names[i]->d_name) + 1 : 0;
    char *all = sbp_malloc(bytes), *at = all;
    for (int i = 0; i < count; i++) {
        if (all && is_shard(names[i]->d_name))
            at = stpcpy(at, names[i]->d_name) + 1;
        free(names[i]);
    }
    free(names);
    if (!all)
        return sbp_fail(list->diag, SBP_MACHINE, "out of memory for the names in '%s'", directory);
    *at = 0;
    char *copy = sbp_arena_alloc(list->arena, bytes);
    memcpy(copy, all, bytes);
    free(all);
    for (char *name = copy; *name; name += strlen(name) + 1) {
        const char *path = sbp_file_join(list->arena, directory, name);
        if (!sbp_directory_exists(path))
            push(list, path);
    }
    return SBP_OK;
}

/* What `datasets` saved: state.json names the files in their order. */
static sbp_status saved_files(file_list *list, const char *directory, const char *state) {
    const sbp_json *root, *files;
    SBP_TRY(sbp_json_read(list->arena, list->diag, state, 0, &root));
    SBP_TRY(sbp_json_as_object(list->diag, root, &root));
    SBP_TRY(sbp_json_get_array(list->diag, root, "_data_files", SBP_JSON_REQUIRED, &files));
    for (int64_t i = 0; i < files->count; i++) {
        const char *name, *path;
        SBP_TRY(sbp_json_get_string(list->diag, &files->items[i], "filename", SBP_JSON_REQUIRED, &name));
        SBP_TRY(sbp_named_path(list->arena, list->diag, state, directory, name, &path));
        push(list, path);
    }
    return SBP_OK;
}

static const char *base_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* Shards of several splits are not one set of rows. */
static sbp_status check_splits(const file_list *list, const char *directory) {
    static const char *const splits[] = {"train", "test", "validation", "valid", "dev", "eval"};
    int found[SBP_COUNT(splits)] = {0}, different = 0;
    for (int32_t i = 0; i < list->count; i++)
        for (int k = 0; k < SBP_COUNT(splits); k++) {
            size_t n = strlen(splits[k]);
            const char *name = base_name(list->items[i]);
            if (strncmp(name, splits[k], n) == 0 && (name[n] == '-' || name[n] == '.' || name[n] == '_'))
                found[k]++;
        }
    for (int k = 0; k < SBP_COUNT(splits); k++)
        different += found[k] > 0;
    if (different < 2)
        return SBP_OK;
    return sbp_fail(list->diag, SBP_USAGE,
                    "'%s' has files of several splits: give those that are meant, as in '%s/train*'",
                    directory, directory);
}

static sbp_status directory_files(file_list *list, const char *directory) {
    const char *state = sbp_file_join(list->arena, directory, "state.json"),
               *dict = sbp_file_join(list->arena, directory, "dataset_dict.json"),
               *data = sbp_file_join(list->arena, directory, "data");
    if (sbp_file_exists(dict))
        return sbp_fail(list->diag, SBP_USAGE,
                        "'%s' has several splits: give the directory of one, as in '%s/train'", directory,
                        directory);
    if (sbp_file_exists(state))
        return saved_files(list, directory, state);
    SBP_TRY(shards_of(list, directory));
    if (list->count == 0 && sbp_directory_exists(data)) /* as repositories of data sets have it */
        SBP_TRY(shards_of(list, data));
    if (list->count == 0)
        return sbp_fail(list->diag, SBP_IO,
                        "'%s' has no files of rows (.jsonl, .json, .parquet, .arrow, .csv, .tsv)", directory);
    return check_splits(list, directory);
}

static sbp_status glob_files(file_list *list, const char *pattern) {
    glob_t found;
    int result = glob(pattern, GLOB_BRACE | GLOB_TILDE, NULL, &found);
    size_t bytes = 1;
    if (result == 0)
        for (size_t i = 0; i < found.gl_pathc; i++)
            bytes += strlen(found.gl_pathv[i]) + 1;
    char *all = result == 0 ? sbp_malloc(bytes) : NULL, *at = all;
    for (size_t i = 0; all && i < found.gl_pathc; i++)
        at = stpcpy(at, found.gl_pathv[i]) + 1;
    if (result == 0)
        globfree(&found);
    if (result != 0)
        return sbp_fail(list->diag, SBP_IO, "no file matches '%s'", pattern);
    if (!all)
        return sbp_fail(list->diag, SBP_MACHINE, "out of memory for the files of '%s'", pattern);
    *at = 0;
    char *copy = sbp_arena_alloc(list->arena, bytes);
    memcpy(copy, all, bytes);
    free(all);
    for (char *name = copy; *name; name += strlen(name) + 1)
        if (!sbp_directory_exists(name))
            push(list, name);
    if (list->count == 0)
        return sbp_fail(list->diag, SBP_IO, "no file matches '%s'", pattern);
    qsort(list->items, (size_t)list->count, sizeof *list->items, by_name);
    return SBP_OK;
}

sbp_status sbp_source_expand(sbp_arena *arena, sbp_diag *diag, const char *argument, const char *const **out,
                             int32_t *count) {
    file_list list = {.arena = arena, .diag = diag};
    if (sbp_directory_exists(argument))
        SBP_TRY(directory_files(&list, argument));
    else if (strpbrk(argument, "*?[{") && !sbp_file_exists(argument))
        SBP_TRY(glob_files(&list, argument));
    else
        push(&list, argument);
    *out = list.items;
    *count = list.count;
    return SBP_OK;
}
