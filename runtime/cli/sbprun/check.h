/* check.h: `sbprun check`: whether a plan computes right gradients on this machine: what was found, and the
 * parts that find it. No tolerance is set by hand: what is allowed is a small multiple of what the plan's own
 * type does to the same numbers here, which is measured.
 *
 * Owner: sbp_run_check, for which it is; findings are in the world's arena. Threads: one at a time.
 */
#ifndef SBP_RUNTIME_CLI_SBPRUN_CHECK_H
#define SBP_RUNTIME_CLI_SBPRUN_CHECK_H

#include "runtime/cli/sbprun/outputs.h"
#include "runtime/train/sketch.h"

/* What the rounding of the type does once, by flipped last bits of weights, is multiplied by this: all
 * numbers between are rounded too, and sums in another order; and an estimate of an error by this. What is
 * wrong is off by thousands of times the former in fp32, and by as much as there is in bf16. */
#define SBP_CHECK_ROUNDING 16.0
#define SBP_CHECK_ESTIMATE 4.0

typedef enum sbp_verdict {
    SBP_VERDICT_RIGHT,
    SBP_VERDICT_WRONG,
    SBP_VERDICT_UNSEEN,   /* smaller than what rounding does */
    SBP_VERDICT_UNCHECKED /* why is in `text` */
} sbp_verdict;

typedef struct sbp_finding {
    const char *part, *what, *text; /* text: what was found; what: of what, or NULL */
    double found, allowed;          /* NaN: not by numbers */
    sbp_verdict verdict;
} sbp_finding;

typedef struct sbp_check {
    sbp_world *world;
    sbp_inputs *inputs;
    sbp_session *session;
    sbp_outputs *outputs;
    sbp_finding *findings;
    int32_t count, capacity;
    sbp_dtype compute, reads; /* of activations; in which gradients are read */
    struct {                  /* the rows of the data that are used, as they came */
        sbp_doc *docs;
        int64_t doc_count, row_count;
    } came;
    int64_t *rows; /* [inputs->data->row_count] */
    double began, gradient_seconds;
    int64_t peak_bytes;  /* measured */
    sbp_sketch *rounded; /* gradients by weights of which last bits are flipped; and by those as they are */
    sbp_sketch *plain;
    double *noise; /* [kinds of plain] what that does to gradients, at the median of its parameters */
} sbp_check;

/* Below a guard, as all of these. */
void sbp_check_add(sbp_check *check, const sbp_finding *finding);

/* ---- check_rows.c ------------------------------------------------------------------------------------ */

/* Rows of random tokens, in a file of that name, where there are no data. */
sbp_status sbp_check_write_rows(const sbp_world *world, const sbp_session *session,
                                const char *path) SBP_CHECKED;
/* Rows of its micro-batch, which crosses from chunk to chunk, and whose last one is short. */
int64_t sbp_check_most_rows(const sbp_program *program);
/* Takes the first rows of the data and the ends of their documents, so that they have at most `most` tokens
 * together; SBP_MACHINE where no token of them is trained. */
sbp_status sbp_check_take_rows(sbp_check *check, int64_t most) SBP_CHECKED;

/* ---- check_slopes.c ---------------------------------------------------------------------------------- */

/* The loss along the gradients of each kind of parameter. */
sbp_status sbp_check_slopes(sbp_check *check) SBP_CHECKED;

/* ---- check_commands.c -------------------------------------------------------------------------------- */

/* Commands of one step, which changes the weights, against loops (runtime/run/oracle.h). */
sbp_status sbp_check_commands(sbp_check *check) SBP_CHECKED;

/* ---- check_schedule.c -------------------------------------------------------------------------------- */

/* Gradients of all parameters, in a sketch that the caller ends. */
sbp_status sbp_check_gradients(sbp_check *check, bool pieces, sbp_sketch **out) SBP_CHECKED;
/* The same by another schedule, in place of the plan's. The device is another afterwards. */
sbp_status sbp_check_schedule(sbp_check *check) SBP_CHECKED;

/* ---- check_table.c ----------------------------------------------------------------------------------- */

/* Prints what was found, and the verdict: SBP_INPUT where something is wrong, SBP_MACHINE where something
 * could not be checked. */
sbp_status sbp_check_print(const sbp_check *check) SBP_CHECKED;

#endif
