/* run_publish.c: --publish DIR: the model after each batch, for a process beside this one that samples from
 * it: DIR/step-N, whole when it has that name, a link DIR/latest to the newest, and a line on standard
 * output. DIR has a file .published, and so has each step-N: what lacks it is somebody else's and stays. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ir/base/json_write.h"
#include "runtime/cli/sbprun/commands.h"
#include "runtime/cli/sbprun/run.h"

#define MARK ".published"
#define LATEST "latest"

static const char mark_text[] = "{\"sbprun\": \"" SBP_VERSION "\"}\n";

/* ---- whose directory it is --------------------------------------------------------------------------- */

static bool has_entry(const sbp_rundir *dir, const char *name, mode_t type) {
    struct stat s;
    return fstatat(dir->fd, name, &s, AT_SYMLINK_NOFOLLOW) == 0 && (s.st_mode & S_IFMT) == type;
}

static bool is_step(const char *name) {
    return strncmp(name, "step-", 5) == 0 && name[5] && name[5 + strspn(name + 5, "0123456789")] == 0;
}

/* Whether an entry may stay where models are published. marked: the directory has been used for that. */
static bool may_stay(const sbp_rundir *dir, const char *name, bool marked) {
    if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0 || strcmp(name, ".lock") == 0 ||
        sbp_rundir_is_leftover(name))
        return true;
    if (strcmp(name, LATEST) == 0)
        return marked && has_entry(dir, name, S_IFLNK);
    return marked &&
           (!is_step(name) || (has_entry(dir, name, S_IFDIR) && sbp_rundir_is_own(dir, name, MARK)));
}

/* The first that may not, "": none. */
static sbp_status find_foreign(const sbp_run *run, char *out, size_t size) {
    const sbp_rundir *dir = &run->published.dir;
    int fd = openat(dir->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *names = fd < 0 ? NULL : fdopendir(fd);
    struct dirent *entry;
    *out = 0;
    if (!names) {
        sbp_status status = sbp_fail(run->diag, SBP_IO, "cannot read '%s': %s", dir->path, strerror(errno));
        if (fd >= 0)
            close(fd);
        return status;
    }
    bool marked = has_entry(dir, MARK, S_IFREG);
    while (!*out && (entry = readdir(names)))
        if (!may_stay(dir, entry->d_name, marked))
            snprintf(out, size, "%.50s", entry->d_name);
    closedir(names);
    return SBP_OK;
}

sbp_status sbp_run_open_publish(sbp_run *run) {
    const char *path = sbp_options_text(run->options, SBP_OPT_PUBLISH);
    char foreign[60];
    if (!path || !run->train || !sbp_run_writes(run))
        return SBP_OK;
    if (run->out && sbp_same_file(path, run->out))
        return sbp_fail(run->diag, SBP_USAGE, "--publish '%s' is --out: choose another directory", path);
    SBP_TRY(sbp_run_check_apart(run, "publish", path));
    if (run->out && sbp_run_lies_in(run->out, path))
        return sbp_fail(run->diag, SBP_USAGE, "--out '%s' lies in --publish '%s': choose another --publish",
                        run->out, path);
    run->published.dir.option = "--publish";
    SBP_TRY(sbp_rundir_open(&run->published.dir, run->diag, path, SBP_RUNDIR_CREATE));
    SBP_TRY(find_foreign(run, foreign, sizeof foreign));
    if (*foreign)
        return sbp_fail(
            run->diag, SBP_USAGE,
            "'%s' is not empty, and '%s' there was not published by sbprun: choose another --publish", path,
            foreign);
    return SBP_OK;
}

sbp_status sbp_run_begin_publish(sbp_run *run) {
    sbp_rundir *dir = &run->published.dir;
    if (dir->fd < 0)
        return SBP_OK;
    SBP_TRY(sbp_file_write(run->diag, sbp_file_join(run->arena, dir->path, MARK), mark_text,
                           sizeof mark_text - 1));
    sbp_rundir_begin(dir, run->diag);
    return SBP_OK;
}

/* ---- a model ----------------------------------------------------------------------------------------- */

static sbp_status failed(const sbp_run *run, const char *what, const char *name, int error) {
    return sbp_fail(run->diag, SBP_IO, "cannot %s '%s/%s': %s", what, run->published.dir.path, name,
                    sbp_rundir_error(error));
}

/* A new link takes the place of the old one at once. */
static sbp_status point_to(const sbp_run *run, const char *name) {
    const sbp_rundir *dir = &run->published.dir;
    char link[80];
    snprintf(link, sizeof link, SBP_RUNDIR_TEMPORARY LATEST "-%ld", (long)getpid());
    int error = sbp_rundir_remove(dir, link);
    if (error)
        return failed(run, "remove", link, error);
    if (!has_entry(dir, LATEST, S_IFLNK) && !sbp_rundir_is_own(dir, LATEST, MARK))
        return failed(run, "replace", LATEST, SBP_RUNDIR_FOREIGN);
    if (symlinkat(name, dir->fd, link) != 0)
        return failed(run, "make the link", link, errno);
    if (renameat(dir->fd, link, dir->fd, LATEST) == 0)
        return SBP_OK;
    error = errno;
    sbp_rundir_remove(dir, link);
    return failed(run, "replace", LATEST, error);
}

static sbp_status say_published(sbp_run *run, const char *path) {
    sbp_text line;
    sbp_text_init(&line, run->arena);
    sbp_json_writer w = sbp_json_writer_on(&line);
    sbp_json_write_object(&w, NULL);
    sbp_json_write_int(&w, "published", run->state.step);
    sbp_json_write_string(&w, "path", path);
    sbp_json_write_end(&w);
    sbp_text_add(&line, "\n");
    SBP_TRY(sbp_print(run->diag, line.data, line.length));
    return fflush(stdout) == 0
               ? SBP_OK
               : sbp_fail(run->diag, SBP_IO, "cannot write to standard output: %s", strerror(errno));
}

/* The model in a directory of a temporary name, which gets its own when it is whole. */
static sbp_status put(const sbp_run *run, const char *name, const char *temporary) {
    const sbp_rundir *dir = &run->published.dir;
    const char *path = sbp_file_join(run->arena, dir->path, temporary);
    SBP_TRY(sbp_output_save_model(run->diag, run->executor, run->plan, &run->info, path, false));
    SBP_TRY(
        sbp_file_write(run->diag, sbp_file_join(run->arena, path, MARK), mark_text, sizeof mark_text - 1));
    int error = sbp_rundir_discard_name(dir, name, MARK);
    if (error)
        return failed(run, "replace", name, error);
    error = sbp_rundir_rename(dir, temporary, name);
    return error ? failed(run, "rename", temporary, error) : SBP_OK;
}

sbp_status sbp_run_publish(sbp_run *run) {
    const sbp_rundir *dir = &run->published.dir;
    char name[40], temporary[80], old[40];
    if (dir->fd < 0)
        return SBP_OK;
    SBP_TRY(sbp_run_check_in_place(run, dir));
    snprintf(name, sizeof name, "step-%lld", (long long)run->state.step);
    snprintf(temporary, sizeof temporary, SBP_RUNDIR_TEMPORARY "%s-%ld", name, (long)getpid());
    if (mkdirat(dir->fd, temporary, 0777) != 0)
        return failed(run, "create", temporary, errno);
    sbp_status status = put(run, name, temporary);
    if (status != SBP_OK)
        sbp_rundir_remove(dir, temporary);
    if (status == SBP_IO) /* perhaps why */
        SBP_TRY(sbp_run_check_in_place(run, dir));
    SBP_TRY(status);
    SBP_TRY(point_to(run, name));
    /* the one before may still be read; that before it goes */
    if (run->published.before >= 0) {
        snprintf(old, sizeof old, "step-%lld", (long long)run->published.before);
        int error = sbp_rundir_discard_name(dir, old, MARK);
        if (error)
            sbp_warn(run->diag, "cannot remove '%s/%s': %s", dir->path, old, sbp_rundir_error(error));
    }
    run->published.before = run->published.latest;
    run->published.latest = run->state.step;
    return say_published(run, sbp_file_join(run->arena, dir->path, name));
}

sbp_status sbp_run_publish_again(sbp_run *run) {
    const sbp_rundir *dir = &run->published.dir;
    if (dir->fd < 0 || run->published.latest != run->state.step)
        return sbp_run_publish(run);
    const char *name = sbp_arena_printf(run->arena, "step-%lld", (long long)run->state.step);
    return say_published(run, sbp_file_join(run->arena, dir->path, name));
}
