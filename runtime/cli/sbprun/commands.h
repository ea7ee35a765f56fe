/* commands.h: what sbprun can be asked to do. Each takes the arguments behind its name, prints results to
 * standard output and returns the exit status; messages go into diag. Threads: one at a time. */
#ifndef SBP_RUNTIME_CLI_SBPRUN_COMMANDS_H
#define SBP_RUNTIME_CLI_SBPRUN_COMMANDS_H

#include "ir/base/base.h"

/* sbprun PLAN|MODEL --data ... */
sbp_status sbp_command_run(sbp_diag *diag, int argc, char *const *argv) SBP_CHECKED;
/* sbprun check PLAN|MODEL [--data ...] */
sbp_status sbp_command_check(sbp_diag *diag, int argc, char *const *argv) SBP_CHECKED;
/* sbprun tokenize MODEL_DIR|FILE.gguf|PLAN */
sbp_status sbp_command_tokenize(sbp_diag *diag, int argc, char *const *argv) SBP_CHECKED;
/* sbprun generate MODEL|PLAN --prompt TEXT */
sbp_status sbp_command_generate(sbp_diag *diag, int argc, char *const *argv) SBP_CHECKED;
/* sbprun chat MODEL|PLAN */
sbp_status sbp_command_chat(sbp_diag *diag, int argc, char *const *argv) SBP_CHECKED;
/* sbprun export RESULT -o FILE.gguf */
sbp_status sbp_command_export(sbp_diag *diag, int argc, char *const *argv) SBP_CHECKED;
/* sbprun doctor */
sbp_status sbp_command_doctor(sbp_diag *diag, int argc, char *const *argv) SBP_CHECKED;

/* Writes text to standard output; SBP_IO when it does not arrive. */
sbp_status sbp_print(sbp_diag *diag, const char *text, size_t length) SBP_CHECKED;
/* The same, and it arrives now. */
sbp_status sbp_print_now(sbp_diag *diag, const char *text, size_t length) SBP_CHECKED;

#endif
