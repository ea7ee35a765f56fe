/* rl.h: a run that samples what it trains on (--reward): each generation takes the next prompts of --data,
 * writes --n answers to each with the weights at hand, asks for their rewards, and is then a step of a stream
 * of rows (run_stdin.c), in the form of `sbprun --help rows`.
 *
 * OUT/rollouts/step-N.jsonl has the rows of the generation that step N + 1 trains on, written before they are
 * used: a run that goes on takes them from there, so neither sampling nor rewards need be the same again.
 *
 * Owner: sbp_inputs. Lifetime: prompts from sbp_rl_open on, generator and reward processes from sbp_rl_begin.
 */
#ifndef SBP_RUNTIME_CLI_SBPRUN_RL_H
#define SBP_RUNTIME_CLI_SBPRUN_RL_H

#include "runtime/cli/sbprun/outputs.h"

typedef struct sbp_rl sbp_rl;

/* Whether the run samples. */
bool sbp_rl_is_asked_for(const sbp_options *options);
/* Checks the options and reads the prompts: inputs->rl. Below a guard. */
sbp_status sbp_rl_open(sbp_world *world, sbp_session *session, sbp_inputs *inputs) SBP_CHECKED;
/* Rows of a micro-batch that have room for the longest prompt and its answer, for several up to `usual`. */
int64_t sbp_rl_seq_len(const sbp_rl *loop, int64_t usual);
/* Generations of an epoch. */
int64_t sbp_rl_epoch(const sbp_rl *loop);
/* What its rows are read from, in place of --data. */
sbp_status sbp_rl_open_source(sbp_rl *loop, sbp_diag *diag, sbp_source **out) SBP_CHECKED;
/* With the weights on the device: starts the reward processes. resumed: generations that are there are taken
 * again, else they go. */
sbp_status sbp_rl_begin(sbp_rl *loop, sbp_outputs *outputs, bool resumed) SBP_CHECKED;
/* NULL is allowed. */
void sbp_rl_close(sbp_rl *loop);

#endif
