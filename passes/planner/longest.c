/* longest.c: what a finished program needs at other lengths. */
#include <string.h>

#include "passes/lower/memory.h"
#include "passes/planner/planner.h"

/* Chunks of the program for t rows: one that held all rows still does. */
static int64_t scaled_chunk(const sbp_program *program, int64_t chunk, int64_t t) {
    return chunk >= program->t_max || chunk > t ? t : chunk < 1 ? 1 : chunk;
}

typedef struct sized {
    const sbp_program *program;
    const sbp_liveness *live;
    const sbp_target_info *target;
    sbp_diag *diag;
    sbp_arena *arena;
    int64_t t, bytes[SBP_SPACE_COUNT];
} sized;

static sbp_status pack_sized(void *user) {
    sized *s = user;
    sbp_program *copy =
        sbp_memory_resize(s->arena, s->program, s->t, scaled_chunk(s->program, s->program->chunk, s->t),
                          scaled_chunk(s->program, s->program->head_chunk, s->t));
    SBP_TRY(sbp_memory_pack(s->arena, s->diag, copy, s->live, s->target));
    memcpy(s->bytes, copy->arena_bytes, sizeof s->bytes);
    return SBP_OK;
}

static sbp_status bytes_at(sized *s, int64_t t) {
    s->t = t;
    s->arena = sbp_arena_create();
    if (!s->arena)
        return sbp_fail(s->diag, SBP_MACHINE, "out of memory for trying a length");
    sbp_status status = sbp_guard(s->arena, s->diag, pack_sized, s);
    sbp_arena_destroy(s->arena);
    return status;
}

sbp_status sbp_planner_longest(sbp_arena *arena, sbp_diag *diag, const sbp_program *program,
                               const sbp_target_info *target, int64_t device_bytes, int64_t host_bytes,
                               int64_t *out) {
    sbp_liveness live;
    sbp_memory_liveness(arena, program, &live);
    /* a buffer that is larger than what the target allocates at once is refused: no length for this target */
    bool bounded = target->max_allocation_bytes > 0;
    sized s = {.program = program, .live = &live, .target = target, .diag = bounded ? NULL : diag};
    int64_t low = 0, high = SBP_MOST_ROWS / program->context + 1;
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        sbp_status status = bytes_at(&s, middle);
        if (status != SBP_OK && !(bounded && status == SBP_MACHINE))
            return status;
        bool ok = status == SBP_OK && s.bytes[SBP_DEVICE] <= device_bytes && s.bytes[SBP_HOST] <= host_bytes;
        *(ok ? &low : &high) = middle;
    }
    *out = low;
    return SBP_OK;
}

sbp_status sbp_planner_bytes_per_token(sbp_arena *arena, sbp_diag *diag, const sbp_program *program,
                                       const sbp_target_info *target, double *device, double *host) {
    sbp_liveness live;
    sbp_memory_liveness(arena, program, &live);
    sbp_target_info unbounded = *target; /* what a row costs does not depend on what is allocated at once */
    unbounded.max_allocation_bytes = 0;
    sized s = {.program = program, .live = &live, .target = &unbounded, .diag = diag};
    int64_t t = (int64_t)1 << 24, at_t[SBP_SPACE_COUNT];
    SBP_TRY(bytes_at(&s, t));
    memcpy(at_t, s.bytes, sizeof at_t);
    SBP_TRY(bytes_at(&s, 2 * t));
    *device = (double)(s.bytes[SBP_DEVICE] - at_t[SBP_DEVICE]) / (double)t;
    *host = (double)(s.bytes[SBP_HOST] - at_t[SBP_HOST]) / (double)t;
    return SBP_OK;
}
