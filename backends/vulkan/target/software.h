/* software.h: plans for drivers that run on the processor (lavapipe): --arch software. */
#ifndef SBP_BACKENDS_VULKAN_TARGET_SOFTWARE_H
#define SBP_BACKENDS_VULKAN_TARGET_SOFTWARE_H

#include "ir/program/program.h"

/* Such drivers leave the loops of an invocation after SBP_VULKAN_SOFTWARE_ITERATIONS (abi.h).
 * SBP_INPUT where a command may have more, of the longest micro-batch; the message has settings that
 * do. Threads: no state. */
sbp_status sbp_vulkan_check_software(const sbp_program *program, sbp_diag *diag) SBP_CHECKED;

#endif
