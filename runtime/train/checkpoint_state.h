/* checkpoint_state.h: trainer_state.json of a checkpoint (checkpoint.h), and how the other files say that
 * they are of the same one. Below a guard.
 */
#ifndef SBP_RUNTIME_TRAIN_CHECKPOINT_STATE_H
#define SBP_RUNTIME_TRAIN_CHECKPOINT_STATE_H

#include "runtime/train/checkpoint.h"

/* "STEP:HASH" of the text of trainer_state.json, which is in the metadata of a checkpoint's .safetensors; "":
 * it was written before they had that. */
typedef struct sbp_checkpoint_mark {
    char text[48];
} sbp_checkpoint_mark;

/* The text of the file. */
const char *sbp_checkpoint_state_text(sbp_arena *arena, const sbp_run_state *state,
                                      sbp_checkpoint_mark *mark);
/* state: as for sbp_checkpoint_load; nothing is kept in it. */
sbp_status sbp_checkpoint_state_read(sbp_arena *arena, sbp_diag *diag, const char *directory,
                                     sbp_run_state *state, sbp_checkpoint_mark *mark) SBP_CHECKED;

#endif
