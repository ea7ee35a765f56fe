/* messages.h: messages of sbprun on standard error. Where several ranks run, rank 0 alone says notes and
 * warnings; errors wait until it is known which rank says them, for most are found by all. Threads: one at a
 * time. */
#ifndef SBP_RUNTIME_CLI_SBPRUN_MESSAGES_H
#define SBP_RUNTIME_CLI_SBPRUN_MESSAGES_H

#include "ir/base/base.h"

/* An sbp_diag_sink; user: not used. */
void sbp_messages_sink(void *user, sbp_severity severity, const char *text);
/* This process is one of several ranks from here on. */
void sbp_messages_of_rank(int32_t rank);
/* Errors that wait are printed, or forgotten. */
void sbp_messages_release(bool print);

#endif
