/* objective.h: losses: small graphs over one number per row.
 *
 * An objective becomes function @objective of the module:
 *   arguments  streams [T] named as the results of @model: logp, entropy, hit; row inputs and scalars of the
 *              step that the objective asks for (sft: row weight f32, 1 where the label counts; scalar
 * labels, the number of counted labels of the whole step, at least 1) results    plain, rank 0, fp64: "loss"
 * first, which is minimised, then metrics under TRL's names Every result is sum_rows of a term that is
 * already divided by its step-wide denominator: the results of the micro-batches of a step, and of ranks, add
 * up, and so do gradients.
 *
 * To add one: a file objective_<name>.c with one function, and its line in objectives.def.
 */
#ifndef SBP_FRONTENDS_OBJECTIVES_OBJECTIVE_H
#define SBP_FRONTENDS_OBJECTIVES_OBJECTIVE_H

#include "ir/ir.h"

typedef struct sbp_objective {
    sbp_builder *builder;
    const char *loss_type; /* variant; NULL: the default */
    sbp_dtype dtype;       /* of logp, entropy, hit: fp32 or fp64 */
    sbp_value logp, entropy, hit;
} sbp_objective;

/* Errors stick in objective->builder->status. */
typedef void (*sbp_objective_builder)(sbp_objective *objective);

/* Adds @objective to a module that has @model. An unknown name or variant is SBP_USAGE and lists what there
 * is. Needs no guard. */
sbp_status sbp_objective_add(sbp_module *module, sbp_diag *diag, const char *name,
                             const char *loss_type) SBP_CHECKED;
/* The same with a builder that is not in the table. */
sbp_status sbp_objective_add_with(sbp_module *module, sbp_diag *diag, sbp_objective_builder build,
                                  const char *loss_type) SBP_CHECKED;
/* Names in the table; NULL after the last. */
const char *sbp_objective_name(int32_t index);
/* NULL when there is none of that name. */
sbp_objective_builder sbp_objective_find(const char *name);

/* ---- for builders ---------------------------------------------------------------------------------- */

/* A row input, and a scalar of the step, both in the dtype of the objective. */
sbp_value sbp_objective_row(sbp_objective *objective, const char *name);
sbp_value sbp_objective_scalar(sbp_objective *objective, const char *name);
/* The result `name`: the sum of `term` [T] over all rows. */
void sbp_objective_result(sbp_objective *objective, const char *name, sbp_value term);

#define OBJECTIVE(name, function) void function(sbp_objective *objective);
#include "frontends/objectives/objectives.def"
#undef OBJECTIVE

#endif
