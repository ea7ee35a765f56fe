/* run_account.c: what holds the memory of a run, by the account that its plan carries (`sbpc inspect` prints
 * the same); the process with as many threads as this run has. */
#include <string.h>

#include "backends/backends.h"
#include "runtime/cli/sbprun/outputs.h"

static int64_t bytes_of_threads(const sbp_world *world, const sbp_session *session) {
    return (sbp_world_threads(world) - session->info.meta.threads) * session->info.meta.thread_bytes;
}

int64_t sbp_run_peak_planned(const sbp_world *world, const sbp_session *session) {
    const int64_t *bytes = session->plan->program->arena_bytes;
    bool host_is_device = sbp_backend_is_a(session->info.meta.backend, SBP_BACKEND_HOST);
    return bytes[SBP_DEVICE] + (host_is_device ? bytes[SBP_HOST] : 0) + session->info.meta.runtime_bytes +
           bytes_of_threads(world, session);
}

/* A number of bytes out of a file; 0 where it is none. */
static int64_t read_bytes(const sbp_json *value) {
    bool right = value->kind == SBP_JSON_INT && value->integer > 0 && value->integer < INT64_C(1) << 48;
    return right ? value->integer : 0;
}

sbp_run_account sbp_run_account_of(const sbp_world *world, const sbp_session *session, sbp_space space) {
    const sbp_json *parts = sbp_json_member(session->info.meta.memory, sbp_space_names[space]);
    sbp_run_account out = {0};
    if (!parts || parts->kind != SBP_JSON_OBJECT) /* of an earlier version */
        return out;
    out.parts = SBP_NEW_ARRAY(world->arena, sbp_run_part, parts->count);
    for (int64_t i = 0; i < parts->count; i++) {
        sbp_run_part part = {.name = parts->items[i].key, .bytes = read_bytes(&parts->items[i])};
        if (strcmp(part.name, SBP_PLAN_PROCESS) == 0)
            part.bytes += bytes_of_threads(world, session);
        if (part.bytes <= 0)
            continue;
        out.parts[out.count++] = part;
        out.bytes += part.bytes;
    }
    return out;
}
