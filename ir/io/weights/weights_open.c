/* weights_open.c: which format a path holds, and which files belong to it. */
#include "ir/io/weights/weights_internal.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

static bool has_suffix(const char *text, const char *suffix) {
    size_t a = strlen(text), b = strlen(suffix);
    return a >= b && strcmp(text + a - b, suffix) == 0;
}

/* Shards of an index: weight_map {tensor: file}. */
static sbp_status open_index(sbp_weights *w, sbp_diag *diag, const char *directory, const char *path) {
    const sbp_json *root, *map;
    SBP_TRY(sbp_json_read(w->arena, diag, path, 0, &root));
    SBP_TRY(sbp_json_get_object(diag, root, "weight_map", SBP_JSON_REQUIRED, &map));
    sbp_map shards;
    sbp_map_init(&shards, w->arena);
    for (int64_t i = 0; i < map->count; i++) {
        const char *shard;
        SBP_TRY(sbp_json_as_string(diag, &map->items[i], &shard));
        if (strchr(shard, '/') || shard[0] == '.' || shard[0] == 0)
            return sbp_json_fail(diag, &map->items[i],
                                 "expected the name of a file beside the index, found '%s'", shard);
        if (sbp_map_get(&shards, shard) < 0) {
            sbp_map_set(&shards, shard, w->file_count);
            SBP_TRY(sbp_safetensors_add(w, diag, sbp_file_join(w->arena, directory, shard)));
        }
    }
    for (int64_t i = 0; i < map->count; i++) {
        const sbp_weight *t = sbp_weights_find(w, map->items[i].key);
        int32_t file = sbp_map_get(&shards, map->items[i].string);
        if (!t || t->file != file)
            return sbp_fail(diag, SBP_INPUT,
                            "%s: weight_map places tensor '%s' into %s, which does not have it", path,
                            map->items[i].key, map->items[i].string);
    }
    for (int32_t i = 0; i < w->count; i++)
        if (!sbp_json_member(map, w->weights[i].name))
            sbp_note(diag, "%s: tensor '%s' is not in the weight_map of %s", w->weights[i].path,
                     w->weights[i].name, path);
    return SBP_OK;
}

static sbp_status open_directory(sbp_weights *w, sbp_diag *diag, const char *directory) {
    /* transformers looks for the single file first. */
    const char *single = sbp_file_join(w->arena, directory, "model.safetensors");
    if (sbp_file_exists(single))
        return sbp_safetensors_add(w, diag, single);
    const char *index = sbp_file_join(w->arena, directory, "model.safetensors.index.json");
    if (sbp_file_exists(index))
        return open_index(w, diag, directory, index);
    return sbp_fail(diag, SBP_IO, "'%s' has neither model.safetensors nor model.safetensors.index.json",
                    directory);
}

/* By content, so that a file of any name is recognized. */
static bool begins_with_gguf(const char *path) {
    char magic[4] = {0};
    int fd;
    if (sbp_file_open_regular(NULL, path, &fd) != SBP_OK)
        return false; /* reported when it is opened for good */
    bool found = read(fd, magic, 4) == 4 && memcmp(magic, "GGUF", 4) == 0;
    close(fd);
    return found;
}

static sbp_status open_any(sbp_weights *w, sbp_diag *diag, const char *path) {
    if (sbp_directory_exists(path))
        return open_directory(w, diag, path);
    if (has_suffix(path, ".gguf") || begins_with_gguf(path))
        return sbp_gguf_add(w, diag, path);
    if (has_suffix(path, ".safetensors.index.json")) {
        const char *slash = strrchr(path, '/');
        const char *directory = slash ? sbp_arena_strndup(w->arena, path, (size_t)(slash - path) + 1) : ".";
        return open_index(w, diag, directory, path);
    }
    if (has_suffix(path, ".json") || has_suffix(path, ".onnx"))
        return sbp_onnx_add(w, diag, path);
    return sbp_safetensors_add(w, diag, path);
}

sbp_status sbp_weights_open(sbp_arena *arena, sbp_diag *diag, const char *path, sbp_weights **out) {
    return sbp_weights_open_as(arena, diag, path, open_any, out);
}
