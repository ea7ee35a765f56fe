/* library.c: where NVIDIA's libraries are looked for. */
#include "backends/cuda/library.h"

#include <dlfcn.h>
#include <glob.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct description {
    const char *file, *beside, *what, *package;
} description;

static const description libraries[SBP_CUDA_LIBRARIES] = {
#define LIBRARY(id, file, beside, what, package) {file, beside, what, package},
#include "backends/cuda/libraries.def"
#undef LIBRARY
};

const char *sbp_cuda_library_file(sbp_cuda_library_id id) {
    return libraries[id].file;
}

const char *sbp_cuda_library_what(sbp_cuda_library_id id) {
    return libraries[id].what;
}

const char *sbp_cuda_library_package(sbp_cuda_library_id id) {
    return libraries[id].package;
}

typedef struct search {
    sbp_arena *arena;
    sbp_diag *diag;
    const description *wanted;
    sbp_cuda_library *out;
    sbp_text tried; /* places, with what was wrong */
} search;

static void note_tried(search *s, const char *place, const char *why) {
    sbp_text_add(&s->tried, "%s%s%s%s", s->tried.length > 0 ? "; " : "", place, why ? ": " : "",
                 why ? why : "");
}

/* What dlopen has against a file; it begins with the file's name mostly, which is said already. */
static const char *loader_message(const char *path) {
    const char *text = dlerror();
    size_t length = strlen(path);
    if (text && strncmp(text, path, length) == 0 && strncmp(text + length, ": ", 2) == 0)
        return text + length + 2;
    return text ? text : "it does not load";
}

/* What it opens by name later must be loaded by then: its own folder need not be one where the loader looks.
 * Without it the library itself says what is missing. */
static void open_beside(search *s) {
    const char *slash = strrchr(s->out->path, '/');
    if (!slash || !s->wanted->beside[0])
        return;
    const char *path =
        sbp_arena_printf(s->arena, "%.*s/%s", (int)(slash - s->out->path), s->out->path, s->wanted->beside);
    s->out->beside = dlopen(path, RTLD_NOW | RTLD_LOCAL);
}

/* Whether a file is the library. path: as dlopen wants it; place: for messages. */
static bool try_file(search *s, const char *path, const char *place) {
    struct link_map *map = NULL;
    if (strchr(path, '/') && access(path, F_OK) != 0) {
        note_tried(s, path, NULL);
        return false;
    }
    s->out->handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!s->out->handle) {
        const char *why = loader_message(path);
        bool absent = !strchr(path, '/') && strstr(why, "No such file");
        note_tried(s, place, absent ? NULL : why);
        return false;
    }
    bool known = dlinfo(s->out->handle, RTLD_DI_LINKMAP, &map) == 0 && map && map->l_name[0];
    snprintf(s->out->path, sizeof s->out->path, "%s", known ? map->l_name : path);
    open_beside(s);
    return true;
}

static bool try_folder(search *s, const char *folder) {
    const char *path = sbp_arena_printf(s->arena, "%s/%s", folder, s->wanted->file);
    return try_file(s, path, path);
}

/* Folders with ':' between them; NULL: none. */
static bool try_list(search *s, const char *list) {
    while (list && *list) {
        size_t length = strcspn(list, ":");
        if (length > 0 && try_folder(s, sbp_arena_strndup(s->arena, list, length)))
            return true;
        list += length + (list[length] == ':');
    }
    return false;
}

static bool try_toolkit(search *s, const char *home) {
    return home && *home &&
           (try_folder(s, sbp_arena_printf(s->arena, "%s/lib64", home)) ||
            try_folder(s, sbp_arena_printf(s->arena, "%s/lib", home)));
}

/* Files of a pattern; copied first, since an arena that runs out would leave what glob has allocated. */
static bool try_pattern(search *s, const char *pattern) {
    char paths[8][1024];
    size_t count = 0;
    glob_t found = {0};
    if (glob(pattern, 0, NULL, &found) == 0)
        for (; count < found.gl_pathc && count < SBP_COUNT(paths); count++)
            snprintf(paths[count], sizeof paths[count], "%s", found.gl_pathv[count]);
    globfree(&found);
    if (count == 0)
        note_tried(s, pattern, NULL);
    for (size_t i = 0; i < count; i++)
        if (try_file(s, paths[i], paths[i]))
            return true;
    return false;
}

/* Of pip or conda: each of NVIDIA's packages has a folder of its own, or several share one. */
static bool try_environment(search *s, const char *home) {
    return home && *home &&
           (try_pattern(s, sbp_arena_printf(s->arena, "%s/lib/python*/site-packages/nvidia/*/lib/%s", home,
                                            s->wanted->file)) ||
            try_folder(s, sbp_arena_printf(s->arena, "%s/lib", home)));
}

static bool try_everything(search *s) {
    const char *only = getenv("SBP_CUDA_LIBRARIES");
    if (only)
        return try_list(s, only);
    if (try_list(s, getenv("LD_LIBRARY_PATH")) || try_file(s, s->wanted->file, "the loader's own places"))
        return true;
    if (!s->wanted->package[0])
        return false;
    return try_toolkit(s, getenv("CUDA_HOME")) || try_toolkit(s, getenv("CUDA_PATH")) ||
           try_toolkit(s, "/usr/local/cuda") || try_environment(s, getenv("VIRTUAL_ENV")) ||
           try_environment(s, getenv("CONDA_PREFIX"));
}

static sbp_status open_library(void *user) {
    search *s = user;
    const description *w = s->wanted;
    sbp_text_init(&s->tried, s->arena);
    if (try_everything(s))
        return SBP_OK;
    const char *advice = sbp_arena_printf(
        s->arena,
        "`pip install %s` in a virtual environment brings it (activate that, or name the folder in "
        "LD_LIBRARY_PATH)",
        w->package);
    return sbp_fail(s->diag, SBP_MACHINE, "%s (%s) was not found or does not load. Tried: %s. %s", w->file,
                    w->what, s->tried.data, w->package[0] ? advice : "It comes with NVIDIA's driver");
}

sbp_status sbp_cuda_library_open(sbp_cuda_library_id id, sbp_diag *diag, sbp_cuda_library *out) {
    search s = {.arena = sbp_arena_create(), .diag = diag, .wanted = &libraries[id], .out = out};
    *out = (sbp_cuda_library){0};
    if (!s.arena)
        return sbp_fail(diag, SBP_MACHINE, "out of memory");
    sbp_status status = sbp_guard(s.arena, diag, open_library, &s);
    sbp_arena_destroy(s.arena);
    if (status != SBP_OK)
        sbp_cuda_library_close(out);
    return status;
}

void *sbp_cuda_library_symbol(const sbp_cuda_library *library, const char *name) {
    return dlsym(library->handle, name);
}

sbp_status sbp_cuda_library_symbols(const sbp_cuda_library *library, const sbp_cuda_symbol *symbols,
                                    int32_t count, void *table, sbp_diag *diag) {
    for (int32_t i = 0; i < count; i++) {
        void *function = dlsym(library->handle, symbols[i].name);
        if (!function)
            return sbp_fail(diag, SBP_MACHINE,
                            "%s has no function %s: it is too old, or not what it says it is", library->path,
                            symbols[i].name);
        memcpy((char *)table + symbols[i].offset, &function, sizeof function);
    }
    return SBP_OK;
}

void sbp_cuda_library_keep(const sbp_cuda_library *library) {
    void *again = dlopen(library->path, RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE);
    if (again)
        dlclose(again);
}

void sbp_cuda_library_close(sbp_cuda_library *library) {
    if (library->handle)
        dlclose(library->handle);
    if (library->beside)
        dlclose(library->beside);
    *library = (sbp_cuda_library){0};
}
