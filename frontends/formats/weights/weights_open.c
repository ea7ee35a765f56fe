/* weights_open.c: which format a path holds, and which files belong to it. */
#include "frontends/formats/weights/weights_internal.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "frontends/formats/files/named_path.h"

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
            const char *file;
            sbp_map_set(&shards, shard, w->file_count);
            SBP_TRY(sbp_named_path(w->arena, diag, path, directory, shard, &file));
            SBP_TRY(sbp_safetensors_add(w, diag, file));
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

const char *sbp_weights_find_pickle(sbp_arena *arena, const char *path) {
    static const char *const files[] = {"pytorch_model.bin", "pytorch_model.bin.index.json",
                                        "adapter_model.bin", "consolidated.00.pth"},
                             *const suffixes[] = {".bin", ".pt", ".pth", ".pkl", ".bin.index.json"};
    bool directory = sbp_directory_exists(path);
    for (int i = 0; directory && i < SBP_COUNT(files); i++) {
        const char *file = sbp_file_join(arena, path, files[i]);
        if (sbp_file_exists(file))
            return file;
    }
    for (int i = 0; !directory && i < SBP_COUNT(suffixes); i++)
        if (has_suffix(path, suffixes[i]) && sbp_file_exists(path))
            return path;
    return NULL;
}

const char *sbp_weights_convert_pickle(sbp_arena *arena, const char *path) {
    const char *slash = strrchr(path, '/');
    const char *directory = sbp_directory_exists(path) ? path
                            : slash ? sbp_arena_strndup(arena, path, (size_t)(slash - path) + (slash == path))
                                    : ".";
    return sbp_arena_printf(
        arena,
        "weights in pickle are not read, since loading them can run any code; transformers converts them: "
        "python3 -c \"from transformers import AutoModelForCausalLM as M; M.from_pretrained('%s', "
        "dtype='auto').save_pretrained('NEW')\" writes model.safetensors into NEW",
        directory);
}

static sbp_status open_directory(sbp_weights *w, sbp_diag *diag, const char *directory) {
    /* transformers looks for the single file first. */
    const char *single = sbp_file_join(w->arena, directory, "model.safetensors");
    if (sbp_file_exists(single))
        return sbp_safetensors_add(w, diag, single);
    const char *index = sbp_file_join(w->arena, directory, "model.safetensors.index.json");
    if (sbp_file_exists(index))
        return open_index(w, diag, directory, index);
    const char *pickle = sbp_weights_find_pickle(w->arena, directory);
    if (pickle)
        return sbp_fail(diag, SBP_INPUT, "%s: %s", pickle, sbp_weights_convert_pickle(w->arena, pickle));
    return sbp_fail(diag, SBP_IO, "'%s' has neither model.safetensors nor model.safetensors.index.json",
                    directory);
}

bool sbp_weights_is_gguf(const char *path) {
    char magic[4] = {0};
    int fd;
    if (sbp_file_open_regular(NULL, path, &fd) != SBP_OK)
        return false; /* reported when it is opened for good */
    bool found = read(fd, magic, 4) == 4 && memcmp(magic, "GGUF", 4) == 0;
    close(fd);
    return found;
}

/* A pickle begins with its protocol or is a zip file; a header of safetensors is an object. */
static bool is_safetensors(const char *path) {
    char bytes[9] = {0};
    int fd;
    if (sbp_file_open_regular(NULL, path, &fd) != SBP_OK)
        return true; /* reported when it is opened for good */
    bool found = read(fd, bytes, 9) == 9 && bytes[8] == '{';
    close(fd);
    return found;
}

static sbp_status open_gguf(sbp_weights *w, sbp_diag *diag, const char *path) {
    SBP_TRY(sbp_gguf_add(w, diag, path));
    return sbp_weights_view(w, diag);
}

static sbp_status open_any(sbp_weights *w, sbp_diag *diag, const char *path) {
    if (sbp_directory_exists(path))
        return open_directory(w, diag, path);
    if (has_suffix(path, ".gguf") || sbp_weights_is_gguf(path))
        return open_gguf(w, diag, path);
    if (has_suffix(path, ".safetensors.index.json")) {
        const char *slash = strrchr(path, '/');
        const char *directory = slash ? sbp_arena_strndup(w->arena, path, (size_t)(slash - path) + 1) : ".";
        return open_index(w, diag, directory, path);
    }
    if (sbp_weights_find_pickle(w->arena, path) && !is_safetensors(path))
        return sbp_fail(diag, SBP_INPUT, "%s: %s", path, sbp_weights_convert_pickle(w->arena, path));
    if (has_suffix(path, ".json") || has_suffix(path, ".onnx"))
        return sbp_onnx_add(w, diag, path);
    return sbp_safetensors_add(w, diag, path);
}

sbp_status sbp_weights_open(sbp_arena *arena, sbp_diag *diag, const char *path, sbp_weights **out) {
    return sbp_weights_open_as(arena, diag, path, open_any, out);
}
