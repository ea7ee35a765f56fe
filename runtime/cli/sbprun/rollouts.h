/* rollouts.h: answers with their rewards: as rows that a step trains on, and as numbers of that step. */
#ifndef SBP_RUNTIME_CLI_SBPRUN_ROLLOUTS_H
#define SBP_RUNTIME_CLI_SBPRUN_ROLLOUTS_H

#include "runtime/cli/sbprun/prompts.h"
#include "runtime/reward/rewarder.h"
#include "runtime/train/metrics.h"

#define SBP_ROLLOUTS "rollouts" /* in OUT */
#define SBP_ROLLOUTS_END "{\"end_of_step\": true}\n"

typedef struct sbp_rollout {
    const sbp_prompt *prompt;  /* NULL of one that was read */
    int64_t group;             /* the same for answers to one prompt */
    int32_t *ids;              /* [count] */
    double *logps, *processed; /* [count] */
    int64_t count;
    const char *text;
    size_t text_bytes;
    bool truncated;          /* by --max-new-tokens */
    double reward, *rewards; /* NaN: none; [functions] */
} sbp_rollout;

/* Lines of rows, as sbprun --help rows has them, and the one that ends a step. Besides what a step reads each
 * has "rollout": text, finish_reason, rewards by function. */
void sbp_rollouts_write(sbp_text *out, const sbp_rollout *rollouts, int64_t count,
                        const sbp_rewarder *rewarder);
/* Reads what was written. SBP_INPUT: something is missing. Below a guard. */
sbp_status sbp_rollouts_parse(sbp_arena *arena, sbp_diag *diag, const char *path, const char *text,
                              size_t length, sbp_rollout **out, int64_t *count) SBP_CHECKED;
typedef struct sbp_rollout_metrics {
    sbp_metric *items;
    int32_t count, capacity;
} sbp_rollout_metrics;

/* TRL 1.16's numbers, under its names (grpo_trainer.py): completions/.., rewards/..; and those that reward
 * functions reported. What the objective makes of rewards is among the program's. Below a guard of the arena.
 */
void sbp_rollouts_measure(sbp_rollout_metrics *metrics, sbp_arena *arena, const sbp_rollout *rollouts,
                          int64_t count, const sbp_rewarder *rewarder);
/* sampling_seconds, sampled_tokens_per_second, reward_seconds; 0 seconds: they were read. */
void sbp_rollouts_measure_time(sbp_rollout_metrics *metrics, const sbp_rollout *rollouts, int64_t count,
                               double sampling_seconds, double reward_seconds);

#endif
