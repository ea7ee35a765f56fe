/* cores.c: queue host of another device: the kernels of the CPU device, on threads of their own, over memory
 * that is not theirs. */
#include "backends/cpu/cpu.h"
#include "backends/cpu/cpu_cores.h"

#include <stdlib.h>
#include <string.h>

static void cores_destroy(void *cores) {
    cpu_core_destroy(cores);
    free(cores);
}

static sbp_status cores_create(int32_t threads, const sbp_program *program, composite_address address,
                               void *user, sbp_diag *diag, void **out) {
    *out = NULL;
    cpu_core *core = sbp_malloc(sizeof *core);
    if (!core)
        return sbp_fail(diag, SBP_MACHINE, "out of memory for the threads of the CPU device");
    memset(core, 0, sizeof *core);
    core->address = address;
    core->address_user = user;
    sbp_status status = cpu_core_create(core, NULL, threads, diag);
    if (status == SBP_OK)
        status = cpu_core_prepare(core, program, diag);
    if (status != SBP_OK)
        cores_destroy(core);
    else
        *out = core;
    return status;
}

static sbp_status cores_run(void *cores, const sbp_dispatch *dispatch, sbp_diag *diag) {
    cpu_core *core = cores;
    cpu_command command;
    SBP_TRY(cpu_core_resolve(core, dispatch, &command, diag));
    cpu_core_run(core, &core->lane, &command);
    return SBP_OK;
}

const composite_cores cpu_cores = {.create = cores_create, .run = cores_run, .destroy = cores_destroy};
