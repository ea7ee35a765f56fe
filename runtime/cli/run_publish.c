/* run_publish.c: --publish DIR: the model after each batch, for a process beside this one that samples from
 * it: DIR/step-N, whole when it has that name, a link DIR/latest to the newest, and a line on standard
 * output. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/cli/commands.h"
#include "runtime/cli/run.h"

sbp_status sbp_run_open_publish(sbp_run *run) {
    const char *path = sbp_options_text(run->options, "publish");
    if (!path || !run->train || !sbp_run_writes(run))
        return SBP_OK;
    if (run->out && sbp_same_file(path, run->out))
        return sbp_fail(run->diag, SBP_USAGE, "--publish '%s' is --out: choose another directory", path);
    SBP_TRY(sbp_rundir_open(&run->published.dir, run->diag, path, SBP_RUNDIR_CREATE));
    sbp_rundir_begin(&run->published.dir, run->diag);
    return SBP_OK;
}

static sbp_status failed(const sbp_run *run, const char *what, const char *name, int error) {
    return sbp_fail(run->diag, SBP_IO, "cannot %s '%s/%s': %s", what, run->published.dir.path, name,
                    strerror(error));
}

/* A new link takes the place of the old one at once. */
static sbp_status point_to(const sbp_run *run, const char *name) {
    int fd = run->published.dir.fd;
    char link[80];
    snprintf(link, sizeof link, SBP_RUNDIR_TEMPORARY "latest-%ld", (long)getpid());
    int error = sbp_rundir_remove(&run->published.dir, link);
    if (error)
        return failed(run, "remove", link, error);
    if (symlinkat(name, fd, link) != 0)
        return failed(run, "make the link", link, errno);
    if (renameat(fd, link, fd, "latest") != 0)
        return failed(run, "replace", "latest", errno);
    return SBP_OK;
}

static sbp_status say_published(sbp_run *run, const char *path) {
    sbp_text line;
    sbp_text_init(&line, run->arena);
    sbp_text_add(&line, "{\"published\": %lld, \"path\": ", (long long)run->state.step);
    sbp_json_add_string(&line, path, strlen(path));
    sbp_text_add(&line, "}\n");
    SBP_TRY(sbp_print(run->diag, line.data, line.length));
    return fflush(stdout) == 0
               ? SBP_OK
               : sbp_fail(run->diag, SBP_IO, "cannot write to standard output: %s", strerror(errno));
}

sbp_status sbp_run_publish(sbp_run *run) {
    const sbp_rundir *dir = &run->published.dir;
    char name[40], temporary[80], old[40];
    if (dir->fd < 0)
        return SBP_OK;
    snprintf(name, sizeof name, "step-%lld", (long long)run->state.step);
    snprintf(temporary, sizeof temporary, SBP_RUNDIR_TEMPORARY "%s-%ld", name, (long)getpid());
    if (mkdirat(dir->fd, temporary, 0777) != 0)
        return failed(run, "create", temporary, errno);
    SBP_TRY(sbp_output_save_model(run->diag, run->executor, run->plan, &run->info,
                                  sbp_file_join(run->arena, dir->path, temporary), false));
    int error = sbp_rundir_remove(dir, name);
    if (error)
        return failed(run, "replace", name, error);
    if (renameat(dir->fd, temporary, dir->fd, name) != 0)
        return failed(run, "rename", temporary, errno);
    SBP_TRY(point_to(run, name));
    /* the one before may still be read; that before it goes */
    if (run->published.before >= 0) {
        snprintf(old, sizeof old, "step-%lld", (long long)run->published.before);
        error = sbp_rundir_remove(dir, old);
        if (error)
            sbp_warn(run->diag, "cannot remove '%s/%s': %s", dir->path, old, strerror(error));
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
