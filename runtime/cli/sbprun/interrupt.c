/* interrupt.c: the two signals. */
#include "runtime/cli/sbprun/interrupt.h"

#include <signal.h>

static volatile sig_atomic_t caught;

static void catch_signal(int number) {
    caught = number;
}

void sbp_interrupt_install(void) {
    struct sigaction action = {.sa_handler = catch_signal, .sa_flags = (int)SA_RESETHAND};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

bool sbp_interrupted(void) {
    return caught != 0;
}

void sbp_interrupt_forget(void) {
    caught = 0;
    sbp_interrupt_install();
}

sbp_status sbp_interrupt_status(void) {
    return caught == 0 ? SBP_OK : caught == SIGINT ? SBP_INTERRUPTED : SBP_TERMINATED;
}
