/* dispatch_add.h: programs for targets, made of commands that come from no plan (conformance, benches). */
#ifndef SBP_TESTS_COMMON_DISPATCH_ADD_H
#define SBP_TESTS_COMMON_DISPATCH_ADD_H

#include "backends/device.h"

/* Adds the command to the program's entry "accumulate", which is made if there is none, with a buffer for
 * each operand: what a target needs to see of it. Everything lives in the arena. */
void dispatch_add(sbp_arena *arena, sbp_program *program, const sbp_dispatch *dispatch);

#endif
