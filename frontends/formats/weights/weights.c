/* weights.c: opens files of any format, and finds what several of their tensors are together. */
#include "frontends/formats/weights/weights_internal.h"

typedef struct opening {
    sbp_arena *arena;
    sbp_diag *diag;
    const char *path;
    sbp_weights_adder add;
    sbp_weights *w; /* set as soon as files may be open */
} opening;

static sbp_status open_guarded(void *user) {
    opening *o = user;
    o->w = SBP_NEW(o->arena, sbp_weights);
    o->w->arena = o->arena;
    sbp_map_init(&o->w->by_name, o->arena);
    o->w->path = sbp_arena_strdup(o->arena, o->path);
    SBP_TRY(o->add(o->w, o->diag, o->w->path));
    SBP_TRY(sbp_weights_pair(o->w, o->diag));
    sbp_weights_stack(o->w);
    return SBP_OK;
}

sbp_status sbp_weights_open_as(sbp_arena *arena, sbp_diag *diag, const char *path, sbp_weights_adder add,
                               sbp_weights **out) {
    opening o = {.arena = arena, .diag = diag, .path = path, .add = add};
    sbp_status status = sbp_guard(arena, diag, open_guarded, &o);
    if (status != SBP_OK)
        sbp_weights_close(o.w);
    else
        *out = o.w;
    return status;
}
