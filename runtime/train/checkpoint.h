/* checkpoint.h: checkpoints from which a run goes on bit for bit.
 *
 * OUT/checkpoint-STEP/ is a model directory (runtime/train/output.h) with three more files:
 *   optimizer.safetensors   optimizer states "<source>.exp_avg" ..., in the layout of the source, bit for bit
 *                           in the type that the plan keeps them in; "<source>.master_lo", the low halves of
 *                           weights (sbp_f32_split); "<source>.exact", parameters whose recipe changes
 *                           values, as they are in memory. States in blocks, their codes and scales, as they
 *                           are in memory too: "<parameter>.exp_avg" ...
 *   trainer_state.json      step, position in the data, sums for metrics, and what must be the same on resume
 *                           The metadata of .safetensors name the checkpoint: its step and a hash of this
 *                           file ("marked" in it, which those of earlier versions lack)
 *   checksums.json          of all the others (runtime/train/checksums.h), verified before one is read
 * Ranks that see the same directory write it together: each its own optimizer-0000R-of-0000N.safetensors in
 * place of the one (runtime/train/pieces.h), and its part of the model's shards. Either kind is read by any
 * number of ranks, with any shares.
 *
 * It is written under a temporary name, synced and, when all ranks have done so, renamed by the first, so a
 * name checkpoint-STEP is always whole.
 */
#ifndef SBP_RUNTIME_TRAIN_CHECKPOINT_H
#define SBP_RUNTIME_TRAIN_CHECKPOINT_H

#include "runtime/data/dataset.h"
#include "runtime/train/best.h"
#include "runtime/train/output.h"
#include "runtime/train/rundir.h"

/* Numbers of a batch that is used several times, by the weights that it was first used with. */
typedef struct sbp_kept {
    char name[24];
    double *values; /* [count], from sbp_malloc */
    int64_t count;
} sbp_kept;

enum { SBP_MOST_KEPT = 2 };

typedef struct sbp_run_state {
    int64_t step;       /* done */
    int64_t epoch, at;  /* of the sampler: where the next batch begins */
    int64_t num_tokens; /* so far */
    double loss_sum;
    int64_t loss_count;
    int64_t inner; /* steps done with the batch at hand, which then is where epoch and at begin */
    sbp_kept kept[SBP_MOST_KEPT]; /* of that batch: batch.safetensors */
    int32_t kept_count;
    int64_t evaluated; /* steps done at the last evaluation, -1: none yet */
    sbp_best best;     /* of the evaluations */
    /* must be the same on resume */
    uint64_t data_hash;
    /* of what is frozen in blocks (sbp_params_hash_base), which checkpoints do not have; 0: none */
    uint64_t base;
    int64_t seed, batch_rows, batch_tokens;
    bool shuffle;
    /* of matmuls.txt beside the checkpoints, by which the device computed matmuls; 0: it chose by itself */
    uint64_t matmuls;
    uint64_t reference; /* hash of the weights that scored as reference; 0: there was no need */
} sbp_run_state;

/* Frees what is kept. */
void sbp_kept_release(sbp_run_state *state);

/* Ranks that write and read a checkpoint together. */
typedef struct sbp_together {
    struct sbp_ranks *ranks;
    int32_t rank, count;
    /* What all of them agree on, each coming with how it went: the status of the first that failed. */
    sbp_status (*agree)(void *user, sbp_status status);
    void *user;
} sbp_together;

/* Which checkpoints stay (best.h). */
typedef struct sbp_keep {
    int64_t count; /* 0: all */
    int64_t best;  /* the step of one that does in any case, 0: none */
} sbp_keep;

/* Replaces an older one of the same step; afterwards those that are not kept are removed; one that cannot be
 * removed is a warning. together: all ranks call it, and see the directory; NULL: this process
 * writes all of it, and others finish reading (executor.h). Needs no guard. */
sbp_status sbp_checkpoint_save(sbp_diag *diag, sbp_executor *executor, const sbp_plan *plan,
                               const sbp_plan_info *info, const sbp_rundir *directory,
                               const sbp_run_state *state, sbp_keep keep,
                               const sbp_together *together) SBP_CHECKED;

/* Path of the newest checkpoint in a directory, in the arena; NULL when there is none. Below a guard. */
const char *sbp_checkpoint_find(sbp_arena *arena, const sbp_rundir *directory);
/* That its files are what was written, before it is loaded; of `ranks` that do this together number `rank`
 * looks at as many files as each other. Needs no guard. */
sbp_status sbp_checkpoint_verify(sbp_diag *diag, const char *path, int32_t rank, int32_t ranks) SBP_CHECKED;
/* state: comes with what must be the same, which is checked (SBP_INPUT), and is filled with the rest. Files
 * of another checkpoint, another step than the directory's name has, states of another shape or that no run
 * could have are SBP_INPUT, too. Loads
 * parameters and states, of shares this rank's. Needs no guard. */
sbp_status sbp_checkpoint_load(sbp_diag *diag, sbp_executor *executor, const sbp_plan *plan, const char *path,
                               sbp_run_state *state) SBP_CHECKED;

#endif
