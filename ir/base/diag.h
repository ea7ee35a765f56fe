/* diag.h: the messages of an sbp_diag (base.h) as a list. */
#ifndef SBP_IR_BASE_DIAG_H
#define SBP_IR_BASE_DIAG_H

#include "ir/base/base.h"

/* Calls `sink` for each message so far, in their order; where there was no memory for one, with the beginning
 * of the first such message at the end. */
void sbp_diag_each(const sbp_diag *diag, sbp_diag_sink sink, void *user);

#endif
