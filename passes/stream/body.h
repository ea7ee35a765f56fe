/* body.h: cutting the body of one stage out of a function and its reverse sweep. */
#ifndef SBP_PASSES_STREAM_BODY_H
#define SBP_PASSES_STREAM_BODY_H

#include "passes/graph/rewrite.h"

/* What a body is cut to. Arrays are indexed by the values of `from`. */
typedef struct sbp_body_spec {
    const sbp_func *from;
    const bool *given;                                         /* these values become arguments */
    bool (*keeps)(const void *user, const sbp_result *result); /* which results stay */
    const bool *filled; /* carry arguments that are there for all chunks: appends to them are dropped */
    const void *user;
} sbp_body_spec;

typedef struct sbp_body_cut {
    sbp_func *func;
    sbp_value *map;    /* per value of `from`: value of the body, SBP_NO_VALUE when it is not there */
    sbp_value *origin; /* per value of the body: value of `from` it stands for, SBP_NO_VALUE for others */
} sbp_body_cut;

/* The ops that the kept results need, arguments that nothing reads left out; ops with a derivative of their
 * own expanded, duplicates merged. A RECUR op whose state alone is read is replaced by the op that makes
 * nothing else.
 */
sbp_status sbp_body_make(sbp_module *module, const sbp_body_spec *spec, const char *name, sbp_diag *diag,
                         sbp_body_cut *out) SBP_CHECKED;

/* Removes arguments that neither an op nor a result reads. */
void sbp_body_drop_arguments(sbp_func *func);

/* The carry argument that a value is, or is later; SBP_NO_VALUE when it is no carry. */
sbp_value sbp_body_carry_root(const sbp_func *func, sbp_value value);

/* Whether a carry is a state, one for each chunk: it has no rows. */
bool sbp_body_is_state(const sbp_func *func, sbp_value carry);

/* A sbp_body_spec's `keeps`: gradients alone. */
bool sbp_body_keeps_gradients(const void *user, const sbp_result *result);

#endif
