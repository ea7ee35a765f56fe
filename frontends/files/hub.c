/* hub.c: models--ORGANISATION--NAME/snapshots/REVISION in HF_HUB_CACHE, or in hub/ of HF_HOME. */
#include "frontends/files/hub.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ir/base/file.h"

static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";

bool sbp_hub_is_id(const char *text) {
    size_t owner = strspn(text, letters), name = text[owner] == '/' ? strspn(text + owner + 1, letters) : 0;
    return owner > 0 && name > 0 && !text[owner + 1 + name] && text[0] != '.';
}

const char *sbp_hub_find(sbp_arena *arena, const char *id) {
    const char *hub = getenv("HF_HUB_CACHE"), *home = getenv("HF_HOME"), *user = getenv("HOME");
    if (!sbp_hub_is_id(id))
        return NULL;
    if (!hub)
        hub = home ? sbp_file_join(arena, home, "hub")
                   : sbp_file_join(arena, user ? user : "", ".cache/huggingface/hub");
    int owner = (int)strcspn(id, "/");
    const char *snapshots =
        sbp_arena_printf(arena, "%s/models--%.*s--%s/snapshots", hub, owner, id, id + owner + 1);
    char *path = sbp_arena_alloc(arena, strlen(snapshots) + 300);
    bool found = false;
    DIR *dir = opendir(snapshots);
    if (!dir)
        return NULL;
    for (struct dirent *entry; !found && (entry = readdir(dir));) { /* nothing is allocated meanwhile */
        char config[5000];
        if (entry->d_name[0] == '.' || (size_t)snprintf(config, sizeof config, "%s/%s/config.json", snapshots,
                                                        entry->d_name) >= sizeof config)
            continue;
        found = sbp_file_exists(config);
        snprintf(path, strlen(snapshots) + 300, "%s/%s", snapshots, entry->d_name);
    }
    closedir(dir);
    return found ? path : NULL;
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
    const char *beside = adapter ? sbp_file_join(arena, adapter, name) : NULL;
    if (beside && name[0] != '/' && exists(beside))
        return beside;
    if (exists(name))
        return name;
    return name[0] != '/' ? sbp_hub_find(arena, name) : NULL;
}
