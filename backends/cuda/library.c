/* library.c: where NVIDIA's libraries are looked for. */
#include "backends/cuda/library.h"

#include <dlfcn.h>
#include <glob.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    NEWEST_CUDA = 13000
}; /* of the files that are preferred; a driver for an older one takes what is older */

typedef struct description {
    const char *files[2]; /* the second: older, "" where there is none */
    const char *beside, *what, *package;
} description;

static const description libraries[SBP_CUDA_LIBRARIES] = {
#define LIBRARY(id, file, older, beside, what, package) {{file, older}, beside, what, package},
#include "backends/cuda/libraries.def"
#undef LIBRARY
};

const char *sbp_cuda_library_file(sbp_cuda_library_id id) {
    return libraries[id].files[0];
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
    const char *file,
        *first; /* of its files: the one that is looked for, the one that was looked for first */
    sbp_cuda_library *out;
    sbp_text tried; /* places, with what was wrong */
} search;

/* A file that is not there is noted once: under the name that is looked for first. */
static void note_tried(search *s, const char *place, const char *why) {
    if (!why && s->tried.length > 0 && s->file != s->first)
        return;
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
 * The name has the library's own version, of which its file says the first number ("libnvrtc.so.13":
 * "..so.13.0"). Without it the library itself says what is missing. */
static void open_beside(search *s) {
    const char *slash = strrchr(s->out->path, '/'), *major = strrchr(s->file, '.');
    glob_t found = {0};
    if (!slash || !major || !s->wanted->beside[0])
        return;
    const char *pattern = sbp_arena_printf(s->arena, "%.*s/%s%s.*", (int)(slash - s->out->path), s->out->path,
                                           s->wanted->beside, major);
    if (glob(pattern, 0, NULL, &found) == 0)
        s->out->beside = dlopen(found.gl_pathv[0], RTLD_NOW | RTLD_LOCAL);
    globfree(&found);
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
    const char *path = sbp_arena_printf(s->arena, "%s/%s", folder, s->file);
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

/* A library among Python's packages: each of NVIDIA's has a folder of its own, or several share one. */
static bool try_packages(search *s, const char *home, const char *below) {
    return try_pattern(s, sbp_arena_printf(s->arena, "%s/%s/nvidia/*/lib/%s", home, below, s->file));
}

/* Looks in an environment of pip or conda. */
static bool try_environment(search *s, const char *home) {
    return home && *home &&
           (try_packages(s, home, "lib/python*/site-packages") ||
            try_folder(s, sbp_arena_printf(s->arena, "%s/lib", home)));
}

/* The environment whose python3 a shell would start: two folders up from it, links followed only
 * by the shell. */
static bool try_python(search *s) {
    for (const char *list = getenv("PATH"); list && *list;) {
        size_t length = strcspn(list, ":");
        const char *folder = sbp_arena_strndup(s->arena, list, length);
        list += length + (list[length] == ':');
        if (length == 0 || access(sbp_arena_printf(s->arena, "%s/python3", folder), X_OK) != 0)
            continue;
        return try_packages(s, sbp_arena_printf(s->arena, "%s/..", folder), "lib/python*/site-packages") ||
               try_packages(s, sbp_arena_printf(s->arena, "%s/..", folder), "lib/python3*/dist-packages");
    }
    return false;
}

/* Where machines that are rented keep environments that nobody has activated, and toolkits beside
 * the chosen one. */
static bool try_usual_places(search *s) {
    static const char *const folders[] = {
        "/opt/*/lib/python3*/site-packages",      "/opt/*/.venv/lib/python3*/site-packages",
        "/opt/*/venv/lib/python3*/site-packages", "/opt/*/envs/*/lib/python3*/site-packages",
        "/venv/*/lib/python3*/site-packages",     "/venv/lib/python3*/site-packages",
        "/workspace/*/lib/python3*/site-packages"};
    const char *home = getenv("HOME");
    if (home && *home &&
        (try_packages(s, home, ".local/lib/python3*/site-packages") ||
         try_packages(s, home, "*/lib/python3*/site-packages") ||
         try_packages(s, home, "*/.venv/lib/python3*/site-packages")))
        return true;
    for (int i = 0; i < SBP_COUNT(folders); i++)
        if (try_packages(s, "", folders[i] + 1))
            return true;
    return try_pattern(s, sbp_arena_printf(s->arena, "/usr/local/cuda-*/lib64/%s", s->file)) ||
           try_pattern(s, sbp_arena_printf(s->arena, "/usr/local/cuda*/targets/*/lib/%s", s->file));
}

static bool try_everything(search *s) {
    const char *only = getenv("SBP_CUDA_LIBRARIES");
    if (only)
        return try_list(s, only);
    if (try_list(s, getenv("LD_LIBRARY_PATH")) || try_file(s, s->file, "the loader's own places"))
        return true;
    if (!s->wanted->package[0])
        return false;
    return try_toolkit(s, getenv("CUDA_HOME")) || try_toolkit(s, getenv("CUDA_PATH")) ||
           try_toolkit(s, "/usr/local/cuda") || try_environment(s, getenv("VIRTUAL_ENV")) ||
           try_environment(s, getenv("CONDA_PREFIX")) || try_python(s) || try_usual_places(s);
}

/* The CUDA that the driver is made for, 13000; 0: there is no driver, or none that says. */
static int32_t driver_version(void) {
    sbp_cuda_library driver;
    int32_t version = 0;
    int32_t (*get)(int32_t *) = NULL;
    if (sbp_cuda_library_open(SBP_CUDA_DRIVER, NULL, &driver) != SBP_OK)
        return 0;
    void *symbol = sbp_cuda_library_symbol(&driver, "cuDriverGetVersion");
    memcpy(&get, &symbol, sizeof get);
    if (get && get(&version) != 0)
        version = 0;
    sbp_cuda_library_keep(&driver);
    sbp_cuda_library_close(&driver);
    return version;
}

static sbp_status open_library(void *user) {
    search *s = user;
    const description *w = s->wanted;
    sbp_text_init(&s->tried, s->arena);
    int32_t driver = w->files[1][0] ? driver_version() : 0;
    bool older_first = driver > 0 && driver < NEWEST_CUDA;
    for (int k = 0; k < SBP_COUNT(w->files); k++) {
        s->file = w->files[older_first ? 1 - k : k];
        s->first = k == 0 ? s->file : s->first;
        if (s->file[0] && try_everything(s))
            return SBP_OK;
    }
    const char *advice = sbp_arena_printf(
        s->arena,
        "`pip install %s` in a virtual environment brings it (activate that, or name the folder in "
        "LD_LIBRARY_PATH)",
        w->package);
    return sbp_fail(s->diag, SBP_MACHINE, "%s%s%s (%s) was not found or does not load. Tried: %s. %s",
                    w->files[0], w->files[1][0] ? " or " : "", w->files[1], w->what, s->tried.data,
                    w->package[0] ? advice : "It comes with NVIDIA's driver");
}

sbp_status sbp_cuda_library_open(sbp_cuda_library_id id, sbp_diag *diag, sbp_cuda_library *out) {
    search s = {.arena = sbp_arena_create(), .diag = diag, .wanted = &libraries[id], .out = out};
    *out = (sbp_cuda_library){0};
    if (!s.arena)
        return sbp_fail(diag, SBP_MACHINE, "out of memory for the paths of CUDA libraries");
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
