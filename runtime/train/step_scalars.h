/* step_scalars.h: what the trainer sets of a program's scalars, when (ir/program/contract.def). */
#ifndef SBP_RUNTIME_TRAIN_STEP_SCALARS_H
#define SBP_RUNTIME_TRAIN_STEP_SCALARS_H

#include "runtime/train/trainer.h"

typedef enum sbp_when { SBP_BEFORE_PART, SBP_BY_PACKING, SBP_BEFORE_STEP, SBP_BY_THE_RUN } sbp_when;

/* What they are set to, beside the trainer's own settings and its packed step. */
typedef struct sbp_moment {
    const sbp_micro_batch *part;
    bool last;      /* of its step */
    bool drops;     /* inputs of adapters are dropped at random */
    int64_t number; /* of the step, from 1 */
    double lr;
} sbp_moment;

/* All of that moment which the program has. */
void sbp_trainer_set_scalars(const sbp_trainer *trainer, sbp_when when, const sbp_moment *moment);

#endif
