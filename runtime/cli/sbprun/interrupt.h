/* interrupt.h: SIGINT and SIGTERM ask a run to stop at the next good place; a second one ends it at once. */
#ifndef SBP_RUNTIME_CLI_SBPRUN_INTERRUPT_H
#define SBP_RUNTIME_CLI_SBPRUN_INTERRUPT_H

#include "ir/base/base.h"

void sbp_interrupt_install(void);
bool sbp_interrupted(void);
/* Forgets a signal that was answered. */
void sbp_interrupt_forget(void);
/* SBP_OK, SBP_INTERRUPTED or SBP_TERMINATED. */
sbp_status sbp_interrupt_status(void);

#endif
