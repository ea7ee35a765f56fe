/* routed.h: experts that rows of data name, "routed_experts" (rows.h). */
#ifndef SBP_RUNTIME_DATA_ROUTED_H
#define SBP_RUNTIME_DATA_ROUTED_H

#include "ir/program/program.h"
#include "runtime/data/dataset.h"

/* Whether they are those of the model: as many layers, as many of a token, each once. SBP_INPUT names the
 * row. A note says where the program does not read them. */
sbp_status sbp_routed_check(const sbp_program *program, sbp_diag *diag, const sbp_dataset *data) SBP_CHECKED;

#endif
