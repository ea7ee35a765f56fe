/* ending.h: what ends an answer, of commands and runs that sample. */
#ifndef SBP_RUNTIME_CLI_SBPRUN_ENDING_H
#define SBP_RUNTIME_CLI_SBPRUN_ENDING_H

#include "runtime/cli/sbprun/session.h"
#include "runtime/cli/sbprun/texts.h"
#include "runtime/cli/sbprun/world.h"
#include "runtime/generate/stopping.h"

/* Answers of the plan that is open end by --stop, --eos-token, --max-new-tokens and what the model says. In
 * the world's arena. Below a guard. */
sbp_status sbp_ending_find(const sbp_world *world, const sbp_session *session, const sbp_texts *texts,
                           sbp_stopping *out) SBP_CHECKED;

#endif
