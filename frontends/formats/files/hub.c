/* hub.c: the cache, read. */
#include "frontends/formats/files/hub.h"

#include <stdlib.h>
#include <string.h>

#include "frontends/formats/files/named_path.h"
#include "ir/base/json.h"

#define DIGITS "0123456789"
#define LETTERS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ" DIGITS "-_."

enum { LONGEST_ID = 96, LONGEST_REVISION = 200 };

/* A part of an id: no "..", no "--", neither '-' nor '.' at its ends. */
static bool is_part(const char *text, size_t length) {
    if (length == 0 || strchr("-.", text[0]) || strchr("-.", text[length - 1]))
        return false;
    for (size_t i = 0; i + 1 < length; i++)
        if ((text[i] == '-' || text[i] == '.') && text[i + 1] == text[i])
            return false;
    return true;
}

bool sbp_hub_is_id(const char *text) {
    size_t owner = strspn(text, LETTERS), name = text[owner] == '/' ? strspn(text + owner + 1, LETTERS) : 0;
    return name > 0 && !text[owner + 1 + name] && owner + 1 + name <= LONGEST_ID && is_part(text, owner) &&
           is_part(text + owner + 1, name);
}

/* A branch, a tag, a commit or refs/pr/N: what could not leave the directory of refs. */
static bool is_revision(const char *text) {
    size_t length = strlen(text);
    return length > 0 && length <= LONGEST_REVISION && strspn(text, LETTERS "/+") == length &&
           !strchr("-./", text[0]) && text[length - 1] != '/' && !strstr(text, "..") && !strstr(text, "//") &&
           !strstr(text, "/.");
}

bool sbp_hub_parse(sbp_arena *arena, const char *text, sbp_hub_name *out) {
    size_t id = strcspn(text, "@");
    *out = (sbp_hub_name){.id = sbp_arena_strndup(arena, text, id),
                          .revision = text[id] ? sbp_arena_strdup(arena, text + id + 1) : "main"};
    return sbp_hub_is_id(out->id) && is_revision(out->revision);
}

/* "~/x" as the user means it. */
static const char *expand(sbp_arena *arena, const char *path) {
    const char *user = getenv("HOME");
    return path[0] == '~' && path[1] == '/' && user ? sbp_file_join(arena, user, path + 2) : path;
}

static const char *setting(const char *name) {
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

const char *sbp_hub_cache(sbp_arena *arena) {
    const char *hub = setting("HF_HUB_CACHE"), *home = setting("HF_HOME"), *cache = setting("XDG_CACHE_HOME");
    hub = hub ? hub : setting("HUGGINGFACE_HUB_CACHE");
    if (hub)
        return expand(arena, hub);
    if (!home)
        home = sbp_file_join(arena, cache ? cache : "~/.cache", "huggingface");
    return sbp_file_join(arena, expand(arena, home), "hub");
}

/* models--organisation--name */
static const char *folder_of(sbp_arena *arena, const sbp_hub_name *name) {
    int owner = (int)strcspn(name->id, "/");
    return sbp_arena_printf(arena, "%s/%s--%.*s--%s", sbp_hub_cache(arena),
                            name->dataset ? "datasets" : "models", owner, name->id, name->id + owner + 1);
}

static bool is_commit(const char *text, size_t length) {
    return length == 40 && strspn(text, DIGITS "abcdef") >= length;
}

const char *sbp_hub_snapshot(sbp_arena *arena, const sbp_hub_name *name) {
    const char *folder = folder_of(arena, name), *commit = name->revision, *text;
    size_t length = strlen(commit);
    const char *ref = sbp_arena_printf(arena, "%s/refs/%s", folder, name->revision);
    if (!is_commit(commit, length)) {
        if (sbp_file_read(arena, NULL, ref, &text, &length) != SBP_OK)
            return NULL;
        commit = text;
        length = strcspn(text, " \r\n");
    }
    if (length == 0 || strspn(commit, LETTERS) < length || commit[0] == '.')
        return NULL;
    const char *snapshot = sbp_arena_printf(arena, "%s/snapshots/%.*s", folder, (int)length, commit);
    return sbp_directory_exists(snapshot) ? snapshot : NULL;
}

/* Every shard of an index is there. */
static bool has_shards(sbp_arena *arena, const char *snapshot, const char *index) {
    const sbp_json *root, *map;
    if (sbp_json_read(arena, NULL, index, 0, &root) != SBP_OK ||
        sbp_json_get_object(NULL, root, "weight_map", SBP_JSON_REQUIRED, &map) != SBP_OK)
        return false;
    const char *last = ""; /* tensors of a shard mostly follow one another */
    for (int64_t i = 0; i < map->count; i++) {
        const sbp_json *shard = &map->items[i];
        if (shard->kind != SBP_JSON_STRING || strchr(shard->string, '/'))
            return false;
        if (strcmp(shard->string, last) != 0 &&
            !sbp_file_exists(sbp_file_join(arena, snapshot, shard->string)))
            return false;
        last = shard->string;
    }
    return map->count > 0;
}

bool sbp_hub_is_complete(sbp_arena *arena, const char *snapshot, bool weights) {
    if (sbp_file_exists(sbp_file_join(arena, snapshot, "adapter_config.json")))
        return !weights || sbp_file_exists(sbp_file_join(arena, snapshot, "adapter_model.safetensors"));
    if (!sbp_file_exists(sbp_file_join(arena, snapshot, "config.json")))
        return false;
    return !weights || sbp_file_exists(sbp_file_join(arena, snapshot, "model.safetensors")) ||
           has_shards(arena, snapshot, sbp_file_join(arena, snapshot, "model.safetensors.index.json"));
}

const char *sbp_hub_find(sbp_arena *arena, const char *text) {
    sbp_hub_name name;
    const char *snapshot = sbp_hub_parse(arena, text, &name) ? sbp_hub_snapshot(arena, &name) : NULL, *names;
    bool is = snapshot && sbp_hub_is_complete(arena, snapshot, false) &&
              sbp_named_snapshot(arena, NULL, snapshot, &names) == SBP_OK;
    return is ? snapshot : NULL;
}

const char *sbp_hub_id_of(sbp_arena *arena, const char *path) {
    static const char prefix[] = "/models--";
    const char *at = NULL;
    for (const char *next = strstr(path, prefix); next; next = strstr(next + 1, prefix))
        at = next + sizeof prefix - 1;
    const char *end = at ? strchr(at, '/') : NULL, *middle = at ? strstr(at, "--") : NULL;
    if (!end || !middle || middle > end || strncmp(end, "/snapshots/", 11) != 0)
        return NULL;
    return sbp_arena_printf(arena, "%.*s/%.*s", (int)(middle - at), at, (int)(end - middle - 2), middle + 2);
}

static bool exists(const char *path) {
    return sbp_file_exists(path) || sbp_directory_exists(path);
}

const char *sbp_hub_base(sbp_arena *arena, const char *adapter, const char *name) {
    const char *beside = NULL;
    if (adapter &&
        sbp_named_repository(arena, adapter)) { /* others wrote it: it knows no path of this machine */
        if (sbp_named_path(arena, NULL, adapter, adapter, name, &beside) == SBP_OK && exists(beside))
            return beside;
        return sbp_hub_is_id(name) && exists(name) ? name : sbp_hub_find(arena, name);
    }
    if (adapter && name[0] != '/')
        beside = sbp_file_join(arena, adapter, name);
    if (beside && exists(beside))
        return beside;
    if (exists(name))
        return name;
    return name[0] != '/' ? sbp_hub_find(arena, name) : NULL;
}
