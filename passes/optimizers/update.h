/* update.h: what consumes finished gradients (update.c), for the passes that place it.
 *
 * The optimizer's rule for one parameter is a list of operands and a body of commands over them. The rule
 * says what a parameter needs beside it (states, and later parts of a master); where these live, and where
 * the commands run, is not its business: offload binds the operands to buffers or staging buffers.
 *
 * The graph of a rule (--print-after optimizer) is the optimizer's own (optimizers/), with casts around it:
 * in what a parameter and its states are kept is no variant of the optimizer. */
#ifndef SBP_PASSES_OPTIMIZERS_UPDATE_H
#define SBP_PASSES_OPTIMIZERS_UPDATE_H

#include "passes/lower/lowering.h"

typedef enum sbp_update_operand_kind {
    SBP_UPDATE_GRAD,  /* the finished gradient, in the type it is kept in (`step`: its accumulator) */
    SBP_UPDATE_CLIP,  /* f64 [1, 1]: the factor on the gradient; absent in `step` */
    SBP_UPDATE_PARAM, /* the parameter as it is stored */
    SBP_UPDATE_STATE, /* kept between steps, cleared before the first: "<parameter>.<suffix>" */
    SBP_UPDATE_MASTER /* "<parameter>.master_lo": the low halves of its numbers, kept beside them */
} sbp_update_operand_kind;

typedef struct sbp_update_operand {
    sbp_update_operand_kind kind;
    const char *suffix; /* of a state or master: "exp_avg"; else NULL */
    sbp_dtype dtype;
    sbp_extent rows; /* constant */
    int64_t cols;
    sbp_access access;
} sbp_update_operand;

enum { SBP_MAX_UPDATE_OPERANDS = 10 };

/* How a trained parameter and its states are kept:
 *
 *   master    a bf16 weight is the high half of an fp32 one, rounded with halves away from zero; the low half
 *             is an operand of its own, i16: nothing is lost. Without, the new weight is rounded to bf16:
 *             stochastically, so that small updates count on average, or to nearest.
 *   bf16      states, always rounded stochastically: with beta2 = 0.999 a step changes a second moment by a
 *             thousandth, and bf16 has 8 bits: to nearest it would stand still.
 *   8 bits    states in blocks of 256 numbers, as in bitsandbytes: a number of the dynamic map (d8, ud8)
 *             times the largest of its block ("<suffix>_absmax", f32); of parameters of SBP_BLOCK_LEAST
 *             elements or more in whole blocks, the others' are fp32. Weights are updated with the new states
 *             before these are rounded.
 *
 * Random numbers are of the seed and step (scalars random_<what>, set by the runtime), of the parameter
 * (sbp_update_stream) and of the element: its block and place in that, so that shares have the numbers of the
 * whole; where elements are no whole blocks, its row and column. */
enum { SBP_BLOCK = 256, SBP_BLOCK_LEAST = 4096 };

/* The rule for parameters of one shape, type and decay. In `body` a view's ref ~i stands for operand i. */
typedef struct sbp_update {
    sbp_update_operand operands[SBP_MAX_UPDATE_OPERANDS];
    int32_t operand_count;
    sbp_body body;
} sbp_update;

/* The rule for a trained parameter: the same for all with equal `key`, a text that is written into the arena.
 */
const char *sbp_update_key(const sbp_program_builder *p, const sbp_param *param);
sbp_status sbp_update_make(sbp_program_builder *p, const sbp_param *param,
                           const sbp_update **out) SBP_CHECKED;
/* The rule for `rows` rows of SBP_BLOCK elements of parameters like this one, behind each other. */
sbp_status sbp_update_make_flat(sbp_program_builder *p, const sbp_param *like, int64_t rows,
                                const sbp_update **out) SBP_CHECKED;
/* Whether the update of parameter number `param` rounds at random, and whether one of a share would have the
 * same random numbers. */
bool sbp_update_is_random(const sbp_program_builder *p, int32_t param);
bool sbp_update_has_shares(const sbp_program_builder *p, int32_t param);
/* What these rules differ by. */
const char *sbp_update_flat_key(const sbp_program_builder *p, const sbp_param *param);
/* Whether updates read something that lasts besides the parameters. */
bool sbp_update_keeps_states(const sbp_module *module, const sbp_pass_options *options);
/* The stream of random numbers of a parameter, below 2^24: of its name, so that neither what else is trained
 * nor where it stands changes its numbers. */
double sbp_update_stream(const sbp_program_builder *p, int32_t param);
/* grad += accum, rounded once. */
void sbp_lower_flush(sbp_program_builder *p, sbp_body *body, sbp_view grad, sbp_dtype grad_dtype,
                     sbp_view accum, sbp_dtype accum_dtype);
/* to = from in another float type. */
void sbp_lower_convert(sbp_program_builder *p, sbp_body *body, sbp_view to, sbp_dtype to_dtype, sbp_view from,
                       sbp_dtype from_dtype);
/* The sum of squares of the gradient of parameter number `param` of the module, into its place in `norms`. */
void sbp_lower_sumsq(sbp_program_builder *p, sbp_body *body, int32_t param, sbp_view norms, sbp_view grad);
/* The norm of all of them; where `clip` is not absent, the factor on the gradients. */
void sbp_lower_norm(sbp_program_builder *p, sbp_body *body, const sbp_lasting *lasting, sbp_view norms,
                    sbp_view clip);

#endif
