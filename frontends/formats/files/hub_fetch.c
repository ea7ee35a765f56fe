/* hub_fetch.c: `hf download`, and what is asked of what it leaves. */
#include "frontends/formats/files/hub_fetch.h"

#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "frontends/formats/files/named_path.h"
#include "frontends/formats/files/sha256.h"
#include "ir/base/file.h"
#include "ir/base/machine.h"

/* What describes a model, and what its weights are in. Neither pickles nor programs; not the copies that some
 * repositories have under other names (consolidated.safetensors). */
#define DESCRIPTION                                                                                          \
    "config.json", "generation_config.json", "adapter_config.json", "tokenizer.json", "tokenizer.model",     \
        "tokenizer_config.json", "tekken.json", "special_tokens_map.json", "added_tokens.json",              \
        "vocab.json", "merges.txt", "chat_template.jinja", "chat_template.json",                             \
        "additional_chat_templates/*.jinja", "processor_config.json", "preprocessor_config.json",            \
        "video_preprocessor_config.json", "*.tiktoken"
static const char *const describing[] = {DESCRIPTION, NULL};
static const char *const config_only[] = {"config.json", NULL};
static const char *const whole[] = {DESCRIPTION,
                                    "model.safetensors.index.json",
                                    "model.safetensors",
                                    "model-*-of-*.safetensors",
                                    "adapter_model.safetensors",
                                    NULL};

/* ---- the program ------------------------------------------------------------------------------------ */

static const char *runnable(const char *path) {
    return path && access(path, X_OK) == 0 && !sbp_directory_exists(path) ? path : NULL;
}

/* Where a wheel or an environment puts it, then PATH; NULL: nowhere. */
static const char *find_program(sbp_arena *arena) {
    const char *environment = getenv("VIRTUAL_ENV"), *path = getenv("PATH"), *found = NULL;
    char self[4096];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    if (environment && *environment == '/')
        found = runnable(sbp_arena_printf(arena, "%s/bin/hf", environment));
    self[length > 0 ? length : 0] = 0;
    /* beside this program; and in bin/ above lib/pythonX/site-packages/sbpc/bin, where a wheel has it */
    static const char *const places[] = {"hf", "../../../../../bin/hf"};
    char *slash = strrchr(self, '/');
    for (int i = 0; slash && i < SBP_COUNT(places) && !found; i++)
        found = runnable(sbp_arena_printf(arena, "%.*s/%s", (int)(slash - self), self, places[i]));
    while (!found && path && *path) {
        size_t part = strcspn(path, ":");
        if (*path == '/')
            found = runnable(sbp_arena_printf(arena, "%.*s/hf", (int)part, path));
        path += part + (path[part] == ':');
    }
    return found;
}

extern char **environ;

/* output: where its standard output goes. */
static sbp_status start(sbp_diag *diag, const char *const *args, int output, pid_t *pid) {
    posix_spawn_file_actions_t actions;
    int reason = posix_spawn_file_actions_init(&actions);
    if (reason == 0) {
        reason = posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
        if (reason == 0)
            reason = posix_spawn(pid, args[0], &actions, NULL, (char *const *)(uintptr_t)args, environ);
        posix_spawn_file_actions_destroy(&actions);
    }
    return reason == 0 ? SBP_OK
                       : sbp_fail(diag, SBP_MACHINE, "cannot start '%s': %s", args[0], strerror(reason));
}

bool sbp_hub_is_installed(sbp_arena *arena) {
    return find_program(arena) != NULL;
}

/* It, or that there is none. */
static sbp_status need_program(sbp_arena *arena, sbp_diag *diag, const char *what, const char **out) {
    *out = find_program(arena);
    return *out ? SBP_OK
                : sbp_fail(diag, SBP_MACHINE,
                           "%s, and huggingface_hub, which does that, is not installed: pip install "
                           "huggingface_hub",
                           what);
}

sbp_status sbp_hub_has_program(sbp_arena *arena, sbp_diag *diag, const char *what) {
    const char *program;
    return need_program(arena, diag, what, &program);
}

static int wait_for(pid_t pid) {
    int state;
    while (waitpid(pid, &state, 0) < 0)
        if (errno != EINTR)
            return -1;
    return state;
}

/* Before 1.0 the last --include counts alone, and the last --exclude: models came in part, and what a result
 * must not have would be sent. What does not say its version is taken for a newer one. */
static sbp_status check_version(sbp_diag *diag, const char *what, const char *program) {
    const char *const args[] = {program, "version", NULL};
    static const char mark[] = "version: 0.";
    char text[400];
    int ends[2];
    size_t length = 0;
    pid_t pid;
    if (pipe2(ends, O_CLOEXEC) != 0)
        return SBP_OK;
    sbp_status status = start(diag, args, ends[1], &pid);
    close(ends[1]);
    for (ssize_t got = 1;
         status == SBP_OK && got > 0 && length<sizeof text - 1; length += got> 0 ? (size_t)got : 0)
        got = read(ends[0], text + length, sizeof text - 1 - length);
    close(ends[0]);
    if (status == SBP_OK)
        (void)wait_for(pid);
    text[length] = 0;
    return status == SBP_OK && strstr(text, mark)
               ? sbp_fail(diag, SBP_MACHINE,
                          "%s, and '%s' is of huggingface_hub below 1.0: pip install -U huggingface_hub",
                          what, program)
               : status;
}

sbp_status sbp_hub_run(sbp_arena *arena, sbp_diag *diag, const char *what, const sbp_args *args) {
    sbp_args all = sbp_args_on(arena);
    const char *program;
    pid_t pid;
    SBP_TRY(need_program(arena, diag, what, &program));
    sbp_args_add(&all, program);
    for (int32_t i = 0; i < args->count; i++)
        sbp_args_add(&all, args->items[i]);
    SBP_TRY(check_version(diag, what, program));
    SBP_TRY(start(diag, sbp_args_end(&all), STDERR_FILENO, &pid));
    int state = wait_for(pid);
    if (state < 0)
        return sbp_fail(diag, SBP_INTERNAL, "cannot wait for '%s': %s", program, strerror(errno));
    if (WIFEXITED(state) && WEXITSTATUS(state) == 0)
        return SBP_OK;
    return sbp_fail(diag, SBP_IO, "%s: `hf %s` ended with %s %d; what it said stands above", what,
                    args->items[0], WIFEXITED(state) ? "status" : "signal",
                    WIFEXITED(state) ? WEXITSTATUS(state) : WTERMSIG(state));
}

bool sbp_hub_is_offline(void) {
    static const char *const names[] = {"HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"}, *const values[] = {
                                                                                       "1", "on", "yes",
                                                                                       "true"};
    for (int i = 0; i < SBP_COUNT(names); i++) {
        const char *set = getenv(names[i]);
        for (int k = 0; set && k < SBP_COUNT(values); k++)
            if (strcasecmp(set, values[k]) == 0)
                return true;
    }
    return false;
}

/* "'data/train.jsonl', 'README.md'", the first of many. */
static const char *list_patterns(sbp_arena *arena, const char *const *patterns) {
    enum { MOST_SHOWN = 3 };
    sbp_text text;
    sbp_text_init(&text, arena);
    for (int32_t i = 0; patterns[i] && i < MOST_SHOWN; i++)
        sbp_text_add(&text, "%s'%s'%s", i > 0 ? ", " : "", patterns[i],
                     i + 1 == MOST_SHOWN && patterns[i + 1] ? " .." : "");
    return text.data;
}

sbp_status sbp_hub_fetch(sbp_arena *arena, sbp_diag *diag, const sbp_hub_name *name,
                         const char *const *patterns, const char **out) {
    const char *kind = name->dataset ? "data set" : "model";
    sbp_args args = sbp_args_on(arena);
    const char *what =
        sbp_arena_printf(arena, "the cache of the Hub (%s) lacks %s of the %s %s (%s)", sbp_hub_cache(arena),
                         list_patterns(arena, patterns), kind, name->id, name->revision);
    if (sbp_hub_is_offline())
        return sbp_fail(diag, SBP_IO, "%s, and HF_HUB_OFFLINE is set: nothing is fetched", what);
    sbp_args_add(&args, "download");
    SBP_TRY(sbp_args_operand(&args, diag, "the name on the Hub", name->id));
    sbp_args_option(&args, "--repo-type", name->dataset ? "dataset" : "model");
    sbp_args_option(&args, "--revision", name->revision);
    for (; *patterns; patterns++)
        sbp_args_option(&args, "--include", *patterns);
    sbp_note(diag, "fetching the %s %s (%s) from the Hub by huggingface_hub", kind, name->id, name->revision);
    SBP_TRY(sbp_hub_run(arena, diag, what, &args));
    *out = sbp_hub_snapshot(arena, name);
    return *out ? SBP_OK
                : sbp_fail(diag, SBP_IO, "%s: `hf download` left nothing of revision %s there that is meant",
                           what, name->revision);
}

/* ---- what it left ----------------------------------------------------------------------------------- */

static bool is_sha256(const char *text) {
    return strlen(text) == 64 && strspn(text, "0123456789abcdef") == 64;
}

/* A file that was compared is not again: an empty file of its hash's name, no older than it. */
static bool was_compared(const char *stamp, const char *blob) {
    struct stat then, now;
    return *stamp && stat(stamp, &then) == 0 && stat(blob, &now) == 0 &&
           (then.st_mtim.tv_sec > now.st_mtim.tv_sec ||
            (then.st_mtim.tv_sec == now.st_mtim.tv_sec && then.st_mtim.tv_nsec >= now.st_mtim.tv_nsec));
}

static sbp_status compare(sbp_arena *arena, sbp_diag *diag, const char *blob, const char *hash) {
    char stamp[4096], found[65];
    if (!sbp_cache_path(sbp_arena_printf(arena, "hub/%s", hash), stamp, sizeof stamp))
        *stamp = 0;
    if (was_compared(stamp, blob))
        return SBP_OK;
    SBP_TRY(sbp_sha256_file(diag, blob, found));
    if (strcmp(found, hash) != 0)
        return sbp_fail(
            diag, SBP_INPUT,
            "'%s' is damaged: its SHA-256 is %s, which its name says otherwise. Remove it (rm '%s') "
            "and start again: it is fetched anew",
            blob, found, blob);
    if (*stamp) {
        sbp_make_directories_above(stamp);
        (void)!sbp_file_write(NULL, stamp, "", 0); /* else it is compared again */
    }
    return SBP_OK;
}

sbp_status sbp_hub_check_file(sbp_arena *arena, sbp_diag *diag, const char *snapshot, const char *path) {
    char blob[4096], target[4096];
    if (!sbp_named_repository(arena, snapshot))
        return sbp_fail(diag, SBP_IO, "cannot read '%s': it lies in no repository of the cache", path);
    SBP_TRY(sbp_named_links(arena, diag, snapshot, path));
    /* the blob of the repository has the name; what that may be a link to, of the cache's, has another
     * hash */
    ssize_t length = readlink(path, blob, sizeof blob - 1);
    blob[length > 0 ? length : 0] = 0;
    const char *slash = strrchr(blob, '/'), *name = slash ? slash + 1 : blob;
    if (!is_sha256(name))
        return SBP_OK;
    if (!realpath(path, target))
        return sbp_fail(diag, SBP_IO, "cannot read '%s': %s", path, strerror(errno));
    return compare(arena, diag, target, name);
}

/* Every link stays in the repository; files that match are those that their names say. */
static sbp_status check_snapshot(sbp_arena *arena, sbp_diag *diag, const char *snapshot,
                                 const char *const *patterns) {
    const char *names = NULL;
    SBP_TRY(sbp_named_snapshot(arena, diag, snapshot, &names));
    for (; *names; names += strlen(names) + 1)
        for (const char *const *p = patterns; *p; p++)
            if (fnmatch(*p, names, 0) == 0) {
                SBP_TRY(sbp_hub_check_file(arena, diag, snapshot, sbp_file_join(arena, snapshot, names)));
                break;
            }
    return SBP_OK;
}

static sbp_status find_model(sbp_arena *arena, sbp_diag *diag, const char *text, const char *const *patterns,
                             const char **out) {
    sbp_hub_name name;
    const bool weights = patterns == whole;
    *out = text;
    if (access(text, F_OK) == 0)
        return SBP_OK;
    int reason = errno;
    if (!sbp_hub_parse(arena, text, &name))
        return sbp_fail(diag, SBP_IO, "cannot read '%s': %s", text, strerror(reason));
    const char *snapshot = sbp_hub_snapshot(arena, &name);
    if (!snapshot || !sbp_hub_is_complete(arena, snapshot, weights))
        SBP_TRY(sbp_hub_fetch(arena, diag, &name, patterns, &snapshot));
    if (!sbp_hub_is_complete(arena, snapshot, weights))
        return sbp_fail(diag, SBP_IO,
                        "'%s' is still incomplete after `hf download`: a config.json%s expected. Weights in "
                        "pickle (.bin) are not read",
                        snapshot,
                        weights ? " and model.safetensors, or all shards of its index, are" : " is");
    SBP_TRY(check_snapshot(arena, diag, snapshot, patterns));
    *out = snapshot;
    return SBP_OK;
}

sbp_status sbp_hub_model(sbp_arena *arena, sbp_diag *diag, const char *text, bool weights, const char **out) {
    return find_model(arena, diag, text, weights ? whole : describing, out);
}

sbp_status sbp_hub_config(sbp_arena *arena, sbp_diag *diag, const char *text, const char **out) {
    return find_model(arena, diag, text, config_only, out);
}
