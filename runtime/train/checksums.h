/* checksums.h: DIR/checksums.json, by which damage to the files of a checkpoint is seen and named.
 *
 * {"NAME": {"bytes": N, "checksum": "16 hexadecimal digits"}, ..} for every file of the directory but itself.
 * The checksum is xxh64 over pieces of 2^16 bytes, each seeded by that of the piece before, the first by 0.
 */
#ifndef SBP_RUNTIME_TRAIN_CHECKSUMS_H
#define SBP_RUNTIME_TRAIN_CHECKSUMS_H

#include "ir/base.h"

/* Of the files that are there. Below a guard of the arena. */
sbp_status sbp_checksums_write(sbp_arena *arena, sbp_diag *diag, const char *directory) SBP_CHECKED;
/* SBP_INPUT naming the first file that is not what it was; SBP_IO for one that cannot be read. A note where
 * there is no checksums.json. Below a guard of the arena. */
sbp_status sbp_checksums_verify(sbp_arena *arena, sbp_diag *diag, const char *directory) SBP_CHECKED;

#endif
