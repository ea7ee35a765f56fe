/* run_device.c: the device of a run, with the plan's program, and the trainer on it. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backends/devices.h"
#include "ir/base/machine.h"
#include "runtime/cli/sbprun/interrupt.h"
#include "runtime/cli/sbprun/outputs.h"

/* --device; else ranks take turns among the devices of their host. */
static int32_t device_index(const sbp_world *world, const sbp_device_class *class) {
    int32_t count = 1;
    if (sbp_options_given(world->options, SBP_OPT_DEVICE) || !world->ranks || !class->count ||
        class->count(NULL, &count) != SBP_OK || count < 1)
        return (int32_t)sbp_options_int(world->options, SBP_OPT_DEVICE);
    return world->place.local_rank % count;
}

static sbp_status open_device(sbp_world *world, const sbp_session *session, const sbp_outputs *outputs) {
    const sbp_device_class *class = sbp_device_find(session->info.meta.backend);
    int64_t planned = sbp_run_peak_planned(world, session);
    sbp_device_options options = {.threads = sbp_world_threads(world),
                                  .index = device_index(world, class),
                                  .code = session->plan->kernels,
                                  .code_bytes = session->plan->kernels_bytes,
                                  .offload_dir = sbp_run_offload_dir(world, outputs),
                                  .ranks = world->ranks,
                                  .tf32 = session->info.tf32,
                                  .native_sums = !session->info.deterministic};
    char need[32], have[32];
    if (sbp_options_int(world->options, SBP_OPT_THREADS) > options.threads)
        sbp_note(world->diag, "--threads %lld: %d are used, more would only wait for the %d core%s",
                 (long long)sbp_options_int(world->options, SBP_OPT_THREADS), options.threads,
                 sbp_machine_cores(), sbp_machine_cores() == 1 ? "" : "s");
    if (session->info.memory_bytes > 0 && planned > session->info.memory_bytes &&
        options.threads > session->info.meta.threads && session->info.meta.thread_bytes > 0)
        sbp_note(world->diag,
                 "with %d threads this takes %s; '%s' was made for --memory %s and %lld threads "
                 "(sbpc compile --threads %d plans for more)",
                 options.threads, sbp_format_bytes(need, sizeof need, (double)planned), session->plan_path,
                 sbp_format_bytes(have, sizeof have, (double)session->info.memory_bytes),
                 (long long)session->info.meta.threads, options.threads);
    SBP_TRY(sbp_executor_create(world->diag, class, &options, session->plan->program, &world->executor));
    const char *profile = getenv("SBP_PROFILE");
    if (!profile || !*profile || strcmp(profile, "0") == 0)
        return SBP_OK;
    world->profile = sbp_profile_create();
    if (!world->profile)
        return sbp_fail(world->diag, SBP_MACHINE, "out of memory for the device");
    sbp_executor_set_profile(world->executor, world->profile);
    return SBP_OK;
}

/* Settings of the objective are scalars of the program, or of its @prepare, that are called as options. */
static void set_setting(const sbp_world *world, sbp_session *session, const char *scalar) {
    const sbp_option *option = sbp_option_setting(scalar);
    if (option)
        sbp_trainer_set(&session->trainer, scalar, sbp_options_double(world->options, option->id));
}

static void set_settings(const sbp_world *world, sbp_session *session) {
    const sbp_program *program = session->plan->program;
    for (int32_t s = 0; s < program->scalar_count; s++)
        set_setting(world, session, program->scalars[s]);
    for (int32_t s = 0; program->prepare && s < program->prepare->scalar_count; s++)
        set_setting(world, session, program->prepare->scalars[s]);
}

static sbp_status prepare_trainer(const sbp_world *world, sbp_session *session) {
    sbp_trainer *t = &session->trainer;
    double betas[2];
    SBP_TRY(sbp_trainer_init(t, world->diag, world->executor));
    SBP_TRY(sbp_run_shared(world, session, &t->packer.counted));
    set_settings(world, session);
    sbp_options_pair(world->options, SBP_OPT_BETAS, betas);
    t->beta1 = betas[0];
    t->beta2 = betas[1];
    t->eps = sbp_options_double(world->options, SBP_OPT_EPS);
    t->momentum = sbp_options_double(world->options, SBP_OPT_MOMENTUM);
    t->weight_decay = sbp_options_double(world->options, SBP_OPT_WEIGHT_DECAY);
    t->max_grad_norm = session->info.max_grad_norm;
    t->packer.most_parts = session->info.most_parts;
    t->seed = (uint64_t)sbp_options_int(world->options, SBP_OPT_SEED);
    t->interrupted = sbp_interrupted;
    t->ranks = world->ranks;
    return sbp_trainer_reset(t, world->diag);
}

sbp_status sbp_run_open_device(sbp_world *world, sbp_session *session, sbp_outputs *outputs) {
    SBP_TRY(open_device(world, session, outputs));
    SBP_TRY(sbp_run_tune(world, session, outputs));
    return prepare_trainer(world, session);
}
