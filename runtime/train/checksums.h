/* checksums.h: DIR/checksums.json, by which damage to the files of a checkpoint is seen and named.
 *
 * {"NAME": {"bytes": N, "checksum": "16 hexadecimal digits"}, ..} for every file of the directory but itself.
 * The checksum is xxh64 over pieces of 2^16 bytes, each seeded by that of the piece before, the first by 0.
 */
#ifndef SBP_RUNTIME_TRAIN_CHECKSUMS_H
#define SBP_RUNTIME_TRAIN_CHECKSUMS_H

#include "ir/base/json_write.h"

/* Writes the entry of a file, a member of the object that is open. Below a guard of the arena. */
sbp_status sbp_checksums_add(sbp_arena *arena, sbp_diag *diag, const char *directory, const char *name,
                             sbp_json_writer *entries) SBP_CHECKED;
/* Writes the checksums of the files that are there. known: a list of objects that others have made of such
 * entries, NULL; their files are not read. Below a guard of the arena. */
sbp_status sbp_checksums_write(sbp_arena *arena, sbp_diag *diag, const char *directory,
                               const sbp_json *known) SBP_CHECKED;
/* Every `of`-th file, from number `first` on. SBP_INPUT naming the first that is not what it was; SBP_IO for
 * one that cannot be read. SBP_INPUT, too, where there is no checksums.json, which every checkpoint has, or
 * it does not list trainer_state.json. Below a guard of the arena. */
sbp_status sbp_checksums_verify(sbp_arena *arena, sbp_diag *diag, const char *directory, int32_t first,
                                int32_t of) SBP_CHECKED;

#endif
