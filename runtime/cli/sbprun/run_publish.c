/* run_publish.c: --publish DIR: the model after each batch, for a process beside this one that samples from
 * it: DIR/step-N, whole when it has that name, a link DIR/latest to the newest, and a line on standard
 * output. DIR has a file .published, and so has each step-N: what lacks it is somebody else's and stays. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ir/base/json_write.h"
#include "runtime/cli/sbprun/commands.h"
#include "runtime/cli/sbprun/outputs.h"

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
static sbp_status find_foreign(const sbp_world *world, const sbp_outputs *outputs, char *out, size_t size) {
    const sbp_rundir *dir = &outputs->published.dir;
    int fd = openat(dir->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *names = fd < 0 ? NULL : fdopendir(fd);
    struct dirent *entry;
    *out = 0;
    if (!names) {
        sbp_status status = sbp_fail(world->diag, SBP_IO, "cannot read '%s': %s", dir->path, strerror(errno));
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

sbp_status sbp_run_open_publish(const sbp_world *world, const sbp_session *session, sbp_outputs *outputs) {
    const char *path = sbp_options_text(world->options, SBP_OPT_PUBLISH);
    char foreign[60];
    if (!path || !session->train || !sbp_world_writes(world))
        return SBP_OK;
    if (outputs->out && sbp_same_file(path, outputs->out))
        return sbp_fail(world->diag, SBP_USAGE, "--publish '%s' is --out: choose another directory", path);
    SBP_TRY(sbp_run_check_apart(world, session, "publish", path));
    if (outputs->out && sbp_run_lies_in(outputs->out, path))
        return sbp_fail(world->diag, SBP_USAGE, "--out '%s' lies in --publish '%s': choose another --publish",
                        outputs->out, path);
    outputs->published.dir.option = "--publish";
    SBP_TRY(sbp_rundir_open(&outputs->published.dir, world->diag, path, SBP_RUNDIR_CREATE));
    SBP_TRY(find_foreign(world, outputs, foreign, sizeof foreign));
    if (*foreign)
        return sbp_fail(
            world->diag, SBP_USAGE,
            "'%s' is not empty, and '%s' there was not published by sbprun: choose another --publish", path,
            foreign);
    return SBP_OK;
}

/* Steps that an earlier run published, but for the one that readers are pointed to, which goes when two newer
 * ones are there. What cannot be removed is a warning. */
static void remove_earlier(const sbp_world *world, sbp_outputs *outputs) {
    const sbp_rundir *dir = &outputs->published.dir;
    char latest[60] = "";
    ssize_t length = readlinkat(dir->fd, LATEST, latest, sizeof latest - 1);
    latest[length > 0 ? length : 0] = 0;
    outputs->published.earlier = is_step(latest) ? strtoll(latest + 5, NULL, 10) : -1;
    int fd = openat(dir->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *names = fd < 0 ? NULL : fdopendir(fd);
    struct dirent *entry;
    if (!names && fd >= 0)
        close(fd);
    while (names && (entry = readdir(names))) {
        if (!is_step(entry->d_name) || strcmp(entry->d_name, latest) == 0)
            continue;
        int error = sbp_rundir_discard_name(dir, entry->d_name, MARK);
        if (error)
            sbp_warn(world->diag, "cannot remove '%s/%s', which an earlier run published: %s", dir->path,
                     entry->d_name, sbp_rundir_error(error));
    }
    if (names)
        closedir(names);
}

sbp_status sbp_run_begin_publish(const sbp_world *world, sbp_outputs *outputs) {
    sbp_rundir *dir = &outputs->published.dir;
    if (dir->fd < 0)
        return SBP_OK;
    SBP_TRY(sbp_file_write(world->diag, sbp_file_join(world->arena, dir->path, MARK), mark_text,
                           sizeof mark_text - 1));
    sbp_rundir_begin(dir, world->diag);
    remove_earlier(world, outputs);
    return SBP_OK;
}

/* ---- a model ----------------------------------------------------------------------------------------- */

static sbp_status failed(const sbp_world *world, const sbp_outputs *outputs, const char *what,
                         const char *name, int error) {
    return sbp_fail(world->diag, SBP_IO, "cannot %s '%s/%s': %s", what, outputs->published.dir.path, name,
                    sbp_rundir_error(error));
}

/* A new link takes the place of the old one at once. */
static sbp_status point_to(const sbp_world *world, const sbp_outputs *outputs, const char *name) {
    const sbp_rundir *dir = &outputs->published.dir;
    char link[80];
    snprintf(link, sizeof link, SBP_RUNDIR_TEMPORARY LATEST "-%ld", (long)getpid());
    int error = sbp_rundir_remove(dir, link);
    if (error)
        return failed(world, outputs, "remove", link, error);
    if (!has_entry(dir, LATEST, S_IFLNK) && !sbp_rundir_is_own(dir, LATEST, MARK))
        return failed(world, outputs, "replace", LATEST, SBP_RUNDIR_FOREIGN);
    if (symlinkat(name, dir->fd, link) != 0)
        return failed(world, outputs, "make the link", link, errno);
    if (renameat(dir->fd, link, dir->fd, LATEST) == 0)
        return SBP_OK;
    error = errno;
    sbp_rundir_remove(dir, link);
    return failed(world, outputs, "replace", LATEST, error);
}

static sbp_status say_published(const sbp_world *world, const sbp_session *session, const char *path) {
    sbp_text line;
    sbp_text_init(&line, world->arena);
    sbp_json_writer w = sbp_json_writer_on(&line);
    sbp_json_write_object(&w, NULL);
    sbp_json_write_int(&w, "published", session->state.step);
    sbp_json_write_string(&w, "path", path);
    sbp_json_write_end(&w);
    sbp_text_add(&line, "\n");
    SBP_TRY(sbp_print(world->diag, line.data, line.length));
    return fflush(stdout) == 0
               ? SBP_OK
               : sbp_fail(world->diag, SBP_IO, "cannot write to standard output: %s", strerror(errno));
}

/* The model in a directory of a temporary name, which gets its own when it is whole. */
static sbp_status put(const sbp_world *world, const sbp_session *session, const sbp_outputs *outputs,
                      const char *name, const char *temporary) {
    const sbp_rundir *dir = &outputs->published.dir;
    const char *path = sbp_file_join(world->arena, dir->path, temporary);
    SBP_TRY(sbp_output_save_model(world->diag, world->executor, session->plan, &session->info, path, NULL));
    SBP_TRY(sbp_file_write(world->diag, sbp_file_join(world->arena, path, MARK), mark_text,
                           sizeof mark_text - 1));
    int error = sbp_rundir_discard_name(dir, name, MARK);
    if (error)
        return failed(world, outputs, "replace", name, error);
    error = sbp_rundir_rename(dir, temporary, name);
    return error ? failed(world, outputs, "rename", temporary, error) : SBP_OK;
}

sbp_status sbp_run_publish(const sbp_world *world, const sbp_session *session, sbp_outputs *outputs) {
    const sbp_rundir *dir = &outputs->published.dir;
    char name[40], temporary[80], old[40];
    if (dir->fd < 0)
        return SBP_OK;
    SBP_TRY(sbp_run_check_in_place(world, outputs, dir));
    snprintf(name, sizeof name, "step-%lld", (long long)session->state.step);
    snprintf(temporary, sizeof temporary, SBP_RUNDIR_TEMPORARY "%s-%ld", name, (long)getpid());
    if (mkdirat(dir->fd, temporary, 0777) != 0)
        return failed(world, outputs, "create", temporary, errno);
    sbp_status status = put(world, session, outputs, name, temporary);
    if (status != SBP_OK)
        sbp_rundir_remove(dir, temporary);
    if (status == SBP_IO) /* perhaps why */
        SBP_TRY(sbp_run_check_in_place(world, outputs, dir));
    SBP_TRY(status);
    SBP_TRY(point_to(world, outputs, name));
    /* the one before may still be read; that before it goes */
    if (outputs->published.before >= 0 && outputs->published.before != session->state.step) {
        snprintf(old, sizeof old, "step-%lld", (long long)outputs->published.before);
        int error = sbp_rundir_discard_name(dir, old, MARK);
        if (error)
            sbp_warn(world->diag, "cannot remove '%s/%s': %s", dir->path, old, sbp_rundir_error(error));
    }
    if (outputs->published.latest >= 0)
        outputs->published.before = outputs->published.latest;
    else if (outputs->published.earlier != session->state.step)
        outputs->published.before = outputs->published.earlier;
    outputs->published.latest = session->state.step;
    return say_published(world, session, sbp_file_join(world->arena, dir->path, name));
}

sbp_status sbp_run_publish_again(const sbp_world *world, const sbp_session *session, sbp_outputs *outputs) {
    const sbp_rundir *dir = &outputs->published.dir;
    if (dir->fd < 0 || outputs->published.latest != session->state.step)
        return sbp_run_publish(world, session, outputs);
    const char *name = sbp_arena_printf(world->arena, "step-%lld", (long long)session->state.step);
    return say_published(world, session, sbp_file_join(world->arena, dir->path, name));
}
