/* planner.h: chooses chunk sizes, segment, checkpoints, the saved set and placements for a memory limit.
 *
 * Bytes are exact: the passes run once per (segment, saved set), calls and staging buffers are walked once
 * per (k, placements), and packed again at every size; what that says equals arena_bytes of the real plan (a
 * unit test compares them to the byte). Time is the makespan of the queues over the call list, by the
 * throughput of the target.
 */
#ifndef SBP_PASSES_PLANNER_PLANNER_H
#define SBP_PASSES_PLANNER_PLANNER_H

#include "passes/planner/cost.h"

enum { SBP_AUTO = -1 };

/* Evaluations that advice beside a plan may cost: all remedies of a refusal together; each search for one
 * piece of advice. A search that reaches its limit gives the best that it has found. */
enum { SBP_TRIES_FOR_REMEDIES = 4000, SBP_TRIES_FOR_ADVICE = 200 };

typedef enum sbp_save_mode { SBP_SAVE_AUTO, SBP_SAVE_GIVEN } sbp_save_mode;
/* AUTO: what lives on the host is chosen, with a limit on memory; ON: chosen, but something does. */
typedef enum sbp_offload_mode {
    SBP_OFFLOAD_AUTO,
    SBP_OFFLOAD_OFF,
    SBP_OFFLOAD_ON,
    SBP_OFFLOAD_GIVEN
} sbp_offload_mode;

/* A change of a request or of options that a message names. */
typedef enum sbp_change {
    SBP_CHANGE_STEP,    /* updates as soon as a gradient is known: neither clipped nor accumulated */
    SBP_CHANGE_STREAM,  /* chunks in place of whole sequences */
    SBP_CHANGE_FREE,    /* nothing of the schedule is given */
    SBP_CHANGE_ROWS,    /* `number` rows at most, of all ranks that share a document; SBP_AUTO: the longest */
    SBP_CHANGE_CONTEXT, /* `number` ranks share each micro-batch */
    SBP_CHANGE_PLACEMENT,   /* `placement` */
    SBP_CHANGE_STATE_DTYPE, /* `dtype` */
    SBP_CHANGE_OPTIMIZER,   /* sgd */
    SBP_CHANGE_FREEZE,      /* fewer trained parameters */
    SBP_CHANGE_COUNT
} sbp_change;

/* A change, and what a plan with it came to when it was tried. */
typedef struct sbp_remedy {
    sbp_change change;
    int64_t number;
    sbp_dtype dtype;
    sbp_space placement[SBP_TENSOR_CLASS_COUNT];
    const char *text; /* as the speller of the request has it, in the planner's arena */
    int64_t t_max, device_bytes, host_bytes;
    double seconds;
} sbp_remedy;

struct sbp_schedule_request;

/* How messages of the planner name what the user can set: the passes know no options. */
typedef struct sbp_speller {
    const char *memory, *host_memory; /* the two limits */
    /* The text of a change of this request, in the arena. */
    const char *(*spell)(sbp_arena *arena, const struct sbp_schedule_request *request,
                         const sbp_remedy *remedy);
} sbp_speller;

/* What the user asked for; SBP_AUTO where it is left to the planner. */
typedef struct sbp_schedule_request {
    int64_t t_max; /* SBP_AUTO: the longest that fits (needs memory_bytes) */
    int64_t chunk, head_chunk, segment, checkpoint_every;
    bool whole; /* auto chunks mean one chunk of all rows (checkpoint, standard) */
    sbp_save_mode save_mode;
    bool save_all;            /* with SBP_SAVE_GIVEN: everything, or ... */
    const char *const *saved; /* ... these */
    int32_t saved_count;
    bool drop_states; /* with SBP_SAVE_GIVEN */
    sbp_offload_mode offload;
    sbp_space placement[SBP_TENSOR_CLASS_COUNT]; /* with SBP_OFFLOAD_GIVEN; */
    int32_t first[SBP_TENSOR_CLASS_COUNT];       /* how many tensors of the class, from the first; 0: all */
    int32_t gathered;                            /* as in sbp_schedule_options, or SBP_AUTO */
    int32_t expert_pieces;                       /* likewise; 0: whole */
    int64_t memory_bytes;                        /* all the process may use on the device; 0: no limit */
    const sbp_speller *speller;                  /* NULL: in plain words */
    int64_t host_memory_bytes;                   /* for offloading; 0: no limit */
    int64_t sharers;               /* ranks of a host: both limits, that of the device where its memory
                                      is the host's, are of one of them, a part of what was asked for */
    int64_t tries;                 /* evaluations at most; 0: as many as it takes */
    int64_t tries_for_remedies;    /* of a refusal; 0: SBP_TRIES_FOR_REMEDIES */
    bool terse;                    /* what is refused is: no remedies are looked for */
    int64_t process_bytes;         /* of the memory_bytes, what the process takes beside the arenas */
    const sbp_process *process;    /* by which that of a remedy is found; NULL: it is process_bytes, too */
    int64_t refused_process_bytes; /* the same of what is refused, where that is known: process_bytes is then
                                      what remedies are tried with; 0: the same */
} sbp_schedule_request;

typedef struct sbp_plan_estimate {
    int64_t t_max;
    sbp_schedule_options schedule;
    int64_t device_bytes, host_bytes, disk_bytes; /* arenas */
    double seconds;                               /* of the training entry, one document of t_max rows */
    double flops;
    double busy[SBP_QUEUE_COUNT]; /* of the seconds, per queue */
    sbp_traffic traffic[SBP_TENSOR_CLASS_COUNT];
    bool refused;               /* of a choice: nothing fits; this needs the least */
    const sbp_remedy *remedies; /* of a refusal that was said, in the arena */
    int32_t remedy_count;
    int64_t tried, tried_for_remedies; /* of a choice: how many plans were evaluated for both; for remedies */
} sbp_plan_estimate;

/* `pipeline` holds module, target and options other than schedule and t_max; it is not changed. A request
 * that cannot be met within memory is SBP_MACHINE, saying how much is needed at least and what would help
 * (with diagnostics; without, it is refused at once), and out->refused. */
sbp_status sbp_planner_choose(const sbp_pipeline *pipeline, const sbp_schedule_request *request,
                              sbp_plan_estimate *out) SBP_CHECKED;

/* Exact bytes and modelled time of `count` settings; those that share functions cost little together. */
sbp_status sbp_planner_estimate(const sbp_pipeline *pipeline, int64_t t_max,
                                const sbp_schedule_options *schedules, int32_t count,
                                sbp_plan_estimate *out) SBP_CHECKED;

/* What the process takes beside the arenas where it runs the program that these settings make; `about`: all
 * of it but module, program and chunks. */
sbp_status sbp_planner_footprint(const sbp_pipeline *pipeline, const sbp_process *about, int64_t t_max,
                                 const sbp_schedule_options *schedule, sbp_footprint *out) SBP_CHECKED;

/* The longest t for which a finished program, chunks as they are, stays within the given arena bytes; 0:
 * none. */
sbp_status sbp_planner_longest(sbp_arena *arena, sbp_diag *diag, const sbp_program *program,
                               const sbp_target_info *target, int64_t device_bytes, int64_t host_bytes,
                               int64_t *out) SBP_CHECKED;

/* What one more row costs when there are many: the coefficient of T in the arenas. */
sbp_status sbp_planner_bytes_per_token(sbp_arena *arena, sbp_diag *diag, const sbp_program *program,
                                       const sbp_target_info *target, double *device,
                                       double *host) SBP_CHECKED;

/* What a message calls a change of a request, in the arena. */
const char *sbp_planner_spell(sbp_arena *arena, const sbp_schedule_request *request,
                              const sbp_remedy *remedy);

/* "checkpoints+states:disk+params:host:12": what lives away from the device, as --offload takes it, behind
 * `before`; nothing when nothing does. */
const char *sbp_planner_placement(sbp_arena *arena, const sbp_schedule_options *schedule, const char *before);

#endif
