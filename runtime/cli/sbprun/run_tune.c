/* run_tune.c: --tune: how the device computes products, chosen by measuring, kept in a file, and part of the
 * run: OUT/products.txt is what it took, checkpoints have its hash, and --resume takes it again. */
#include <string.h>
#include <time.h>

#include "runtime/cli/sbprun/run.h"

#define OWN_NAME "products.txt"

/* Choices from a file. lenient: those of another device are left out with a warning. */
static sbp_status take_choices(sbp_run *run, const char *path, bool lenient, int32_t *count) {
    sbp_device *device = sbp_executor_device(run->executor);
    const char *text;
    size_t length;
    *count = 0;
    SBP_TRY(sbp_file_read(run->arena, run->diag, path, &text, &length));
    if (!lenient)
        return device->class->tune_open(device, path, text, (int64_t)length, count, run->diag);
    sbp_diag *why = sbp_diag_create();
    if (!why)
        return sbp_fail(run->diag, SBP_MACHINE, "out of memory");
    sbp_status status = device->class->tune_open(device, path, text, (int64_t)length, count, why);
    const char *message = sbp_diag_text(why, SBP_ERROR);
    if (status == SBP_USAGE) {
        const char *skip = strncmp(message, "error: ", 7) == 0 ? message + 7 : message;
        sbp_warn(run->diag,
                 "%.*s. The run goes on with what the library chooses here: sums round differently",
                 (int)strcspn(skip, "\n"), skip);
        status = SBP_OK;
    } else if (status != SBP_OK) {
        status = sbp_fail(run->diag, status, "%s", message);
    }
    sbp_diag_destroy(why);
    return status;
}

/* run->products: what was chosen, as text. */
static sbp_status keep_text(sbp_run *run, int32_t *count) {
    sbp_device *device = sbp_executor_device(run->executor);
    sbp_text out;
    sbp_text_init(&out, run->arena);
    SBP_TRY(device->class->tune_text(device, &out, count, run->diag));
    if (*count == 0)
        return SBP_OK;
    run->products = out.data;
    run->state.products = sbp_hash_bytes(out.data, out.length, 0);
    return SBP_OK;
}

static double seconds_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static sbp_status measure(sbp_run *run, const char *path) {
    int32_t known = 0, count;
    if (sbp_file_exists(path))
        SBP_TRY(take_choices(run, path, false, &known));
    double begin = seconds_now();
    SBP_TRY(sbp_executor_tune(run->executor, run->diag));
    SBP_TRY(keep_text(run, &count));
    if (count == 0)
        sbp_warn(run->diag, "--tune has nothing to measure: cuBLASLt computes no matmul of the plan");
    if (count == known)
        return SBP_OK;
    sbp_note(run->diag, "%d matmuls were measured in %.1f s; their algorithms are kept in '%s'",
             (int)(count - known), seconds_now() - begin, path);
    return sbp_file_write(run->diag, path, run->products, strlen(run->products));
}

/* A run that goes on takes what it took. */
static sbp_status take_own(sbp_run *run) {
    const char *own = sbp_file_join(run->arena, run->out, OWN_NAME);
    int32_t count;
    if (!sbp_file_exists(own)) {
        sbp_warn(run->diag,
                 "'%s', the algorithms of the run's matmuls, is missing: sums round differently from here on",
                 own);
        return SBP_OK;
    }
    SBP_TRY(take_choices(run, own, true, &count));
    return keep_text(run, &count);
}

sbp_status sbp_run_tune(sbp_run *run) {
    const char *path = sbp_options_text(run->options, SBP_OPT_TUNE);
    if (!path)
        return SBP_OK;
    if (!sbp_executor_can_tune(run->executor))
        return sbp_fail(run->diag, SBP_USAGE,
                        "--tune: backend %s has one way to compute each matmul; leave it out",
                        run->info.meta.backend);
    bool goes_on = run->out && sbp_options_on(run->options, SBP_OPT_RESUME) &&
                   sbp_rundir_newest(&run->dir, INT64_MAX) >= 0;
    if (goes_on)
        return take_own(run);
    SBP_TRY(sbp_run_agree(run, sbp_run_writes(run) ? measure(run, path) : SBP_OK));
    return sbp_run_agree(run, sbp_run_writes(run) ? SBP_OK : measure(run, path)); /* takes what is there */
}

sbp_status sbp_run_write_products(sbp_run *run, const char *resumed) {
    if (resumed)
        return SBP_OK;
    if (run->products)
        return sbp_file_write(run->diag, sbp_file_join(run->arena, run->out, OWN_NAME), run->products,
                              strlen(run->products));
    int error = sbp_rundir_remove(&run->dir, OWN_NAME); /* of a run before */
    if (error)
        sbp_warn(run->diag, "cannot remove '%s/" OWN_NAME "': %s", run->out, strerror(error));
    return SBP_OK;
}
