/* rewarder.h: rewards of sampled answers, computed by processes beside this one: one Python that runs all
 * reward functions, and one process for each other program. PROTOCOL.md has the protocol.
 *
 * What Python functions get is what TRL's trainer gives them (trl 1.16, _calculate_rewards): f(prompts=..,
 * completions=.., completion_ids=.., **columns, trainer_state=.., log_extra=.., log_metric=..), lists with
 * an item for each sample. An answer to a prompt that is a list of messages is a list of one message,
 * {"role": "assistant", "content": TEXT}; else it is the text. Columns are the members of all rows but
 * prompt, completion and completion_ids, null where a row lacks one. None is "no reward by this function".
 *
 * A process that ends, does not answer in time or prints what is no answer is started again and asked
 * again, up to a limit; a warning says so. An answer that is wrong ends the run: an exception, another
 * number of rewards, what is no number or not finite; the message names function, prompt and sample, from 1
 * on.
 *
 * Processes are groups of their own, so the terminal's SIGINT does not reach them. They end with
 * sbp_rewarder_close, and when the thread that called open or run ends, as with this process: that thread
 * must live as long as the rewarder. This process must ignore SIGPIPE.
 *
 * Threads: one at a time. */
#ifndef SBP_RUNTIME_REWARD_REWARDER_H
#define SBP_RUNTIME_REWARD_REWARDER_H

#include "ir/base/json.h"

typedef struct sbp_reward_options {
    double timeout_seconds; /* for an answer; to start a process has two minutes at least; 0: no limit */
    int32_t restarts;       /* most for one request of one process */
    const char *python;     /* NULL: $VIRTUAL_ENV/bin/python, else python3 of PATH */
    int log;                /* descriptor to which what processes write to stderr goes; -1: to none */
    sbp_status (*interrupted)(void); /* asked while waiting: another status than SBP_OK ends that; or NULL */
} sbp_reward_options;

/* One answer to one prompt. */
typedef struct sbp_reward_sample {
    const sbp_json *prompt; /* a string, or an array of messages */
    const sbp_json *row;    /* object: the row of the data with its columns; NULL: none */
    const char *completion; /* [completion_bytes], UTF-8, without what ends it */
    size_t completion_bytes;
    const int32_t *ids; /* [id_count], the tokens that were sampled */
    int64_t id_count;
} sbp_reward_sample;

typedef struct sbp_reward_batch {
    const sbp_reward_sample *samples; /* [count], those of a prompt side by side */
    int64_t count, per_prompt;
    int64_t step;  /* optimizer steps done so far: trainer_state.global_step */
    int64_t steps; /* of the whole run: trainer_state.max_steps; -1: not known */
} sbp_reward_batch;

typedef struct sbp_rewarder sbp_rewarder;

/* Whether a spec is a Python function: it ends in .py:NAME or is MODULE:NAME. Any other is a program with its
 * arguments, cut into words as a POSIX shell does, and run without one. */
bool sbp_reward_is_python(const char *spec);

/* Weights of `count` functions from texts "W,..", as --reward-weights has them. SBP_USAGE: another number of
 * them, or what is no finite number. In the arena; below a guard. */
sbp_status sbp_reward_weights(sbp_arena *arena, sbp_diag *diag, const char *const *texts, int32_t text_count,
                              int32_t count, const double **out) SBP_CHECKED;

/* Starts the processes and waits until Python has imported the functions. weights: [count]; NULL: 1 each.
 * Keeps specs and options, not weights. SBP_USAGE: a spec or weight is wrong; SBP_INPUT: a function cannot be
 * imported; SBP_MACHINE: no Python, or a program cannot be started. Below no guard; nothing is left running
 * after a failure. */
sbp_status sbp_rewarder_open(sbp_arena *arena, sbp_diag *diag, const char *const *specs,
                             const double *weights, int32_t count, const sbp_reward_options *options,
                             sbp_rewarder **out) SBP_CHECKED;

/* rewards: [batch->count], sums over functions of weight times reward, NaN where no function gave one
 * (which is warned of). each: [functions][batch->count], NaN: no reward by this function; NULL: not wanted.
 * SBP_INPUT: an answer is wrong, or a process failed again and again. After a failure, or an interruption,
 * no process runs any more and the rewarder can only be closed. */
sbp_status sbp_rewarder_run(sbp_rewarder *rewarder, sbp_diag *diag, const sbp_reward_batch *batch,
                            double *rewards, double *each) SBP_CHECKED;

int32_t sbp_rewarder_count(const sbp_rewarder *rewarder);
/* The function's __name__, as TRL has it in rewards/NAME/mean; of a program, its file's name. */
const char *sbp_rewarder_name(const sbp_rewarder *rewarder, int32_t function);

/* What was reported with the last answers, until the next run. Metric number `index`: log_metric's mean
 * over the request, or a program's "metrics"; false behind the last. A name may come from several
 * processes. */
bool sbp_rewarder_metric(const sbp_rewarder *rewarder, int32_t index, const char **name, double *value);
/* Column number `index` of log_extra, or of a program's "extra": an array under its key, of a value for each
 * sample where the function does as it should; NULL behind the last. */
const sbp_json *sbp_rewarder_extra(const sbp_rewarder *rewarder, int32_t index);

/* Ends all processes: those that do not end by the end of their input, within two seconds, are killed, and
 * with them what they started and left in their group. NULL: nothing. */
void sbp_rewarder_close(sbp_rewarder *rewarder);

#endif
