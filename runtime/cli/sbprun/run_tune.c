/* run_tune.c: --tune: how the device computes matmuls, chosen by measuring, kept in a file, and part of the
 * run: OUT/matmuls.txt is what it took, checkpoints have its hash, and --resume takes it again. */
#include <string.h>
#include <time.h>

#include "runtime/cli/sbprun/outputs.h"

#define OWN_NAME "matmuls.txt"

/* Choices from a file. lenient: those of another device are left out with a warning. */
static sbp_status take_choices(const sbp_world *world, const char *path, bool lenient, int32_t *count) {
    sbp_device *device = sbp_executor_device(world->executor);
    const char *text;
    size_t length;
    *count = 0;
    SBP_TRY(sbp_file_read(world->arena, world->diag, path, &text, &length));
    if (!lenient)
        return device->class->tune_open(device, path, text, (int64_t)length, count, world->diag);
    sbp_diag *why = sbp_diag_create();
    if (!why)
        return sbp_fail(world->diag, SBP_MACHINE, "out of memory for the file of --tune");
    sbp_status status = device->class->tune_open(device, path, text, (int64_t)length, count, why);
    const char *message = sbp_diag_text(why, SBP_ERROR);
    if (status == SBP_USAGE) {
        const char *skip = strncmp(message, "error: ", 7) == 0 ? message + 7 : message;
        sbp_warn(world->diag,
                 "%.*s. The run goes on with what the library chooses here: sums round differently",
                 (int)strcspn(skip, "\n"), skip);
        status = SBP_OK;
    } else if (status != SBP_OK) {
        status = sbp_fail(world->diag, status, "%s", message);
    }
    sbp_diag_destroy(why);
    return status;
}

/* session->products: what was chosen, as text. */
static sbp_status keep_text(const sbp_world *world, sbp_session *session, int32_t *count) {
    sbp_device *device = sbp_executor_device(world->executor);
    sbp_text out;
    sbp_text_init(&out, world->arena);
    SBP_TRY(device->class->tune_text(device, &out, count, world->diag));
    if (*count == 0)
        return SBP_OK;
    session->matmuls = out.data;
    session->state.matmuls = sbp_hash_bytes(out.data, out.length, 0);
    return SBP_OK;
}

static double seconds_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static sbp_status measure(const sbp_world *world, sbp_session *session, const char *path) {
    int32_t known = 0, count;
    if (sbp_file_exists(path))
        SBP_TRY(take_choices(world, path, false, &known));
    double begin = seconds_now();
    SBP_TRY(sbp_executor_tune(world->executor, world->diag));
    SBP_TRY(keep_text(world, session, &count));
    if (count == 0)
        sbp_warn(world->diag, "--tune has nothing to measure: cuBLASLt computes no matmul of the plan");
    if (count == known)
        return SBP_OK;
    sbp_note(world->diag, "%d matmuls were measured in %.1f s; their algorithms are kept in '%s'",
             (int)(count - known), seconds_now() - begin, path);
    return sbp_file_write(world->diag, path, session->matmuls, strlen(session->matmuls));
}

/* A run that goes on takes what it took. */
static sbp_status take_own(const sbp_world *world, sbp_session *session, const sbp_outputs *outputs) {
    const char *own = sbp_file_join(world->arena, outputs->out, OWN_NAME);
    int32_t count;
    if (!sbp_file_exists(own)) {
        sbp_warn(world->diag,
                 "'%s', the algorithms of the run's matmuls, is missing: sums round differently from here on",
                 own);
        return SBP_OK;
    }
    SBP_TRY(take_choices(world, own, true, &count));
    return keep_text(world, session, &count);
}

sbp_status sbp_run_tune(sbp_world *world, sbp_session *session, sbp_outputs *outputs) {
    const char *path = sbp_options_text(world->options, SBP_OPT_TUNE);
    if (!path)
        return SBP_OK;
    if (!sbp_executor_can_tune(world->executor))
        return sbp_fail(world->diag, SBP_USAGE,
                        "--tune: backend %s has one way to compute each matmul; leave it out",
                        session->info.meta.backend);
    bool goes_on = outputs->out && sbp_options_on(world->options, SBP_OPT_RESUME) &&
                   sbp_rundir_newest(&outputs->dir, INT64_MAX) >= 0;
    if (goes_on)
        return take_own(world, session, outputs);
    SBP_TRY(sbp_world_agree(world, sbp_world_writes(world) ? measure(world, session, path) : SBP_OK));
    return sbp_world_agree(
        world, sbp_world_writes(world) ? SBP_OK : measure(world, session, path)); /* takes what is there */
}

sbp_status sbp_run_write_matmuls(const sbp_world *world, const sbp_session *session, sbp_outputs *outputs,
                                 const char *resumed) {
    if (resumed)
        return SBP_OK;
    if (session->matmuls)
        return sbp_file_write(world->diag, sbp_file_join(world->arena, outputs->out, OWN_NAME),
                              session->matmuls, strlen(session->matmuls));
    int error = sbp_rundir_remove(&outputs->dir, OWN_NAME); /* of a run before */
    if (error)
        sbp_warn(world->diag, "cannot remove '%s/" OWN_NAME "': %s", outputs->out, strerror(error));
    return SBP_OK;
}
