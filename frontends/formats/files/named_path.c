/* named_path.c: paths that a file names, and links in the cache of the Hub. */
#include "frontends/formats/files/named_path.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ir/base/file.h"

bool sbp_named_path_stays(const char *name) {
    if (!*name || *name == '/')
        return false;
    for (const char *part = name; *part;) {
        size_t length = strcspn(part, "/"), plain = strcspn(part, "*?[{");
        if (part[0] == '.' && (plain < length || (length == 2 && part[1] == '.')))
            return false;
        part += length + (part[length] == '/');
    }
    return true;
}

const char *sbp_named_repository(sbp_arena *arena, const char *folder) {
    static const char mark[] = "/snapshots/", *const kinds[] = {"models--", "datasets--"};
    char *real = realpath(folder, NULL), *end = NULL;
    for (char *at = real ? strstr(real, mark) : NULL; at; at = strstr(at + 1, mark)) {
        char *begin = at;
        while (begin > real && begin[-1] != '/')
            begin--;
        for (int i = 0; i < SBP_COUNT(kinds); i++)
            if (strncmp(begin, kinds[i], strlen(kinds[i])) == 0)
                end = at;
    }
    char found[4096] = "";
    if (end && (size_t)(end - real) < sizeof found)
        memcpy(found, real, (size_t)(end - real));
    free(real);
    return *found ? sbp_arena_strdup(arena, found) : NULL;
}

static bool is_below(const char *path, const char *folder, size_t length) {
    return strncmp(path, folder, length) == 0 && path[length] == '/';
}

/* In the repository, or in the store of blobs that all of a cache share, blobs/ beside it. */
static sbp_status links_end_in(sbp_arena *arena, sbp_diag *diag, const char *repository, const char *path) {
    char target[4096];
    const char *shared =
        sbp_arena_printf(arena, "%.*s/blobs", (int)(strrchr(repository, '/') - repository), repository);
    if (!realpath(path, target))
        return sbp_fail(diag, SBP_IO, "cannot read '%s': %s", path, strerror(errno));
    if (is_below(target, repository, strlen(repository)) || is_below(target, shared, strlen(shared)))
        return SBP_OK;
    return sbp_fail(diag, SBP_INPUT, "'%s' leads out of its repository, to '%s': it is not read", path,
                    target);
}

sbp_status sbp_named_links(sbp_arena *arena, sbp_diag *diag, const char *folder, const char *path) {
    const char *repository = sbp_named_repository(arena, folder);
    return repository ? links_end_in(arena, diag, repository, path) : SBP_OK;
}

sbp_status sbp_named_path(sbp_arena *arena, sbp_diag *diag, const char *by, const char *folder,
                          const char *name, const char **out) {
    while (name[0] == '.' && name[1] == '/')
        name += 2;
    if (!sbp_named_path_stays(name))
        return sbp_fail(diag, SBP_INPUT,
                        "%s names '%.200s', which is no file below its folder '%s': it is not read", by, name,
                        folder);
    *out = sbp_file_join(arena, folder, name);
    if (!sbp_file_exists(*out) && !sbp_directory_exists(*out))
        return SBP_OK; /* reported when it is opened */
    return sbp_named_links(arena, diag, folder, *out);
}

/* Names of a directory that begin with no '.', each with `prefix` in front and a NUL behind, as far as there
 * is room for them; returns the bytes of all; -1: it cannot be read. */
static int64_t list(const char *directory, const char *prefix, char *out, int64_t room) {
    DIR *open = opendir(directory);
    int64_t bytes = 0, at = 0;
    if (!open)
        return -1;
    for (struct dirent *entry; (entry = readdir(open));) {
        int64_t length = (int64_t)(strlen(prefix) + strlen(entry->d_name)) + 1;
        if (entry->d_name[0] == '.')
            continue;
        if (length <= room - at)
            at = stpcpy(stpcpy(out + at, prefix), entry->d_name) + 1 - out;
        bytes += length;
    }
    closedir(open);
    return bytes;
}

/* Sizes first: nothing is allocated while the directory is open. */
static sbp_status add_names(sbp_diag *diag, const char *directory, const char *prefix, sbp_text *names) {
    int64_t bytes = list(directory, prefix, NULL, 0);
    if (bytes < 0)
        return sbp_fail(diag, SBP_IO, "cannot read the directory '%s': %s", directory, strerror(errno));
    char *copy = sbp_arena_alloc(names->arena, (size_t)bytes + 1);
    (void)list(directory, prefix, copy, bytes);
    size_t used = 0;
    while (copy[used]) /* names end where no more are */
        used += strlen(copy + used) + 1;
    sbp_text_add_n(names, copy, used);
    return SBP_OK;
}

sbp_status sbp_named_snapshot(sbp_arena *arena, sbp_diag *diag, const char *snapshot, const char **names) {
    static const char folder[] = "additional_chat_templates";
    const char *templates = sbp_file_join(arena, snapshot, folder),
               *repository = sbp_named_repository(arena, snapshot);
    sbp_text text;
    sbp_text_init(&text, arena);
    SBP_TRY(add_names(diag, snapshot, "", &text));
    if (sbp_directory_exists(templates))
        SBP_TRY(add_names(diag, templates, "additional_chat_templates/", &text));
    sbp_text_add_n(&text, "", 1);
    *names = text.data;
    for (const char *name = text.data; repository && *name; name += strlen(name) + 1)
        SBP_TRY(links_end_in(arena, diag, repository, sbp_file_join(arena, snapshot, name)));
    return SBP_OK;
}
