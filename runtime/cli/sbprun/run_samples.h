/* run_samples.h: answers to the same prompts on the way (--sample-every), by which one sees what a model says
 * before, during and after training: OUT/samples/step-N.jsonl, report.html, TensorBoard, a line each.
 *
 * They are the most likely tokens: two steps differ by their weights alone, and training has the bits that it
 * has without.
 *
 * Owner: sbp_inputs. Lifetime: prompts from sbp_samples_open on, the generator from sbp_samples_begin.
 */
#ifndef SBP_RUNTIME_CLI_SBPRUN_RUN_SAMPLES_H
#define SBP_RUNTIME_CLI_SBPRUN_RUN_SAMPLES_H

#include "runtime/cli/sbprun/outputs.h"

typedef struct sbp_samples sbp_samples;

/* Whether the run has them. */
bool sbp_samples_are_asked_for(const sbp_options *options);
/* Reads the prompts: inputs->samples. Below a guard. */
sbp_status sbp_samples_open(sbp_world *world, sbp_session *session, sbp_inputs *inputs) SBP_CHECKED;
/* Rows that the longest prompt and its answer take. */
int64_t sbp_samples_rows(const sbp_samples *samples);
/* With the weights on the device; what an earlier run left of later steps goes. samples: NULL is allowed,
 * here and below. */
sbp_status sbp_samples_begin(sbp_samples *samples, const sbp_session *session,
                             const sbp_outputs *outputs) SBP_CHECKED;
/* After state.step steps: writes answers, if it is their turn. last: it is. */
sbp_status sbp_samples_take(sbp_samples *samples, const sbp_session *session, const sbp_outputs *outputs,
                            bool last) SBP_CHECKED;
/* The part of report.html. Below a guard. */
sbp_status sbp_samples_add_page(const sbp_world *world, const sbp_outputs *outputs,
                                sbp_text *page) SBP_CHECKED;
void sbp_samples_close(sbp_samples *samples);

#endif
