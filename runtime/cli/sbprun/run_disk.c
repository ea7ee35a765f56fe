/* run_disk.c: room on disk before a run begins, and what placement in a file costs the drive. */
#include <errno.h>
#include <string.h>
#include <sys/statvfs.h>

#include "runtime/cli/sbprun/outputs.h"

/* What drives of the common kind are warranted for: terabytes written per terabyte of size. */
enum { WRITES_PER_SIZE = 600 };

const char *sbp_run_offload_dir(const sbp_world *world, const sbp_outputs *outputs) {
    const char *given = sbp_options_text(world->options, SBP_OPT_OFFLOAD_DIR);
    return given ? given : outputs->out ? outputs->out : ".";
}

/* Bytes of all buffers of a role. */
static int64_t role_bytes(const sbp_program *p, sbp_role role) {
    sbp_sizes most = sbp_program_sizes(p, p->t_max, p->s_max);
    int64_t sum = 0;
    for (int32_t b = 0; b < p->buffer_count; b++) {
        int64_t bytes;
        if (p->buffers[b].role == role && sbp_buffer_bytes(&p->buffers[b], &most, &bytes))
            sum += p->buffers[b].count * bytes;
    }
    return sum;
}

/* What is kept in blocks, in bytes: as it is kept, and as the numbers that the model at the end has. */
static void base_bytes(const sbp_plan *plan, const sbp_plan_info *info, int64_t *kept, int64_t *written) {
    *kept = *written = 0;
    for (int32_t t = 0; t < plan->tensors->count; t++) {
        const sbp_tensor_entry *tensor = &plan->tensors->tensors[t];
        if (!tensor->format)
            continue;
        *kept += sbp_format_size(tensor->format, tensor->map.elems);
        *written += tensor->map.elems * sbp_dtype_bytes(sbp_output_dtype(info));
    }
}

/* Bytes of the tensors that the files of an adapter have. */
static int64_t adapter_bytes(const sbp_plan *plan, const sbp_plan_info *info) {
    int64_t elems = 0;
    for (int32_t t = 0; t < plan->tensors->count; t++)
        elems += plan->tensors->tensors[t].of_adapter ? plan->tensors->tensors[t].map.elems : 0;
    return elems * (strcmp(info->meta.dtype, "fp64") == 0 ? 8 : 4);
}

/* Bytes of a merged model in the type that the user wants; where he does not say, `otherwise`. */
static int64_t merged_bytes(const sbp_plan *plan, const sbp_plan_info *info, int64_t otherwise) {
    int64_t elems = 0;
    for (int32_t t = 0; t < plan->tensors->count; t++)
        elems += plan->tensors->tensors[t].of_adapter ? 0 : plan->tensors->tensors[t].map.elems;
    return info->merge_dtype ? elems * (strcmp(info->merge_dtype, "fp32") == 0 ? 4 : 2) : otherwise;
}

/* Checkpoints that the run will write and that will lie beside each other, beyond those that lie there: one
 * more than are kept, as the oldest goes when the newest is complete. */
static int64_t checkpoints_to_come(const sbp_world *world, const sbp_session *session,
                                   const sbp_outputs *outputs) {
    int64_t every = session->save_every, keep = sbp_options_int(world->options, SBP_OPT_KEEP);
    int64_t there = 0, left = session->total_steps - session->state.step;
    int64_t best = session->best.saves ? left / session->eval_every + 1 : 0;
    if ((every <= 0 && best == 0) || left <= 0)
        return 0;
    for (int64_t step = INT64_MAX; (step = sbp_rundir_newest(&outputs->dir, step)) >= 0;)
        there++;
    int64_t to_come = best;
    if (every > 0)
        to_come +=
            session->total_steps / every - session->state.step / every + (session->total_steps % every != 0);
    int64_t room = keep > 0 ? keep + 1 + (keep == 1 && best > 0) - there : to_come;
    return to_come < room ? to_come : room > 0 ? room : 0;
}

sbp_status sbp_run_check_space(const sbp_world *world, const sbp_session *session,
                               const sbp_outputs *outputs) {
    struct statvfs fs;
    if (!outputs->out || !session->train || statvfs(outputs->out, &fs) != 0)
        return SBP_OK;
    const sbp_program *p = session->plan->program;
    int64_t kept, written;
    base_bytes(session->plan, &session->info, &kept, &written);
    int64_t model = role_bytes(p, SBP_ROLE_PARAM) - kept, /* what checkpoints have of it */
        states = role_bytes(p, SBP_ROLE_STATE) + role_bytes(p, SBP_ROLE_MASTER), need;
    int64_t result = model + written;
    if (sbp_tensor_table_has_adapter(session->plan->tensors)) {
        model = adapter_bytes(session->plan, &session->info);
        result = session->info.merge ? merged_bytes(session->plan, &session->info, result) : model;
    }
    int64_t count = checkpoints_to_come(world, session, outputs),
            free_bytes = (int64_t)fs.f_bavail * (int64_t)fs.f_frsize;
    char a[32], b[32];
    if (!sbp_mul_i64(count, model + states, &need) || !sbp_add_i64(need, result, &need))
        need = INT64_MAX;
    if (need <= free_bytes)
        return SBP_OK;
    return sbp_fail(
        world->diag, SBP_MACHINE,
        "%lld checkpoint%s and the model take %s in '%s', %s are free there: --keep, --save-every "
        "and --out say how many and where",
        (long long)count, count == 1 ? "" : "s", sbp_format_bytes(a, sizeof a, (double)need), outputs->out,
        sbp_format_bytes(b, sizeof b, (double)free_bytes));
}

void sbp_run_disk_traffic(const sbp_world *world, const sbp_outputs *outputs, int64_t *read_bytes,
                          int64_t *written_bytes) {
    sbp_device_info info = {0};
    sbp_device *device = sbp_executor_device(world->executor);
    device->class->info(device, &info);
    *read_bytes = info.disk_read_bytes - outputs->disk_read_before;
    *written_bytes = info.disk_written_bytes - outputs->disk_written_before;
}

void sbp_run_note_disk(const sbp_world *world, const sbp_session *session, const sbp_outputs *outputs) {
    int64_t read_bytes, written_bytes, steps = session->state.step - session->resumed_after;
    struct statvfs fs;
    char a[32], b[32], c[32];
    sbp_run_disk_traffic(world, outputs, &read_bytes, &written_bytes);
    if (steps <= 0 || read_bytes + written_bytes == 0)
        return;
    double written = (double)written_bytes / (double)steps;
    sbp_note(world->diag, "offloaded to disk: %s written and %s read per step",
             sbp_format_bytes(a, sizeof a, written),
             sbp_format_bytes(b, sizeof b, (double)read_bytes / (double)steps));
    if (written > 0 && statvfs(sbp_run_offload_dir(world, outputs), &fs) == 0)
        sbp_note(world->diag,
                 "a drive of %s that is good for %d times its size in writes lasts %.3g such steps",
                 sbp_format_bytes(c, sizeof c, (double)fs.f_blocks * (double)fs.f_frsize), WRITES_PER_SIZE,
                 WRITES_PER_SIZE * (double)fs.f_blocks * (double)fs.f_frsize / written);
}
