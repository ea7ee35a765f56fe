/* cli.h: the pieces of sbpc: compile, inspect, what they print and write. */
#ifndef SBP_RUNTIME_CLI_SBPC_CLI_H
#define SBP_RUNTIME_CLI_SBPC_CLI_H

#include "backends/choice.h"
#include "backends/devices.h"
#include "backends/target.h"
#include "frontends/formats/tokenizer/tokenizer.h"
#include "frontends/objectives/objective.h"
#include "frontends/source/frontend.h"
#include "ir/base/json_write.h"
#include "passes/planner/plan.h"
#include "runtime/cli/sbpc/profile.h"
#include "runtime/options/options.h"

/* Everything sbpc knows about a compilation. */
typedef struct sbp_compilation {
    sbp_arena *arena;
    sbp_diag *diag;
    const sbp_options *options;
    const char *model_path, *output;
    const sbp_target *target;      /* NULL: a machine that is not here, only estimated */
    sbp_profile profile;           /* of that machine */
    bool host_assumed;             /* its host memory is what such machines have, not what was said */
    int64_t machine_bytes;         /* what this machine has, or allows; 0: unknown */
    const char *machine_source;    /* what says so */
    sbp_choice choice;             /* of the target */
    const char *throughput_source; /* of the target's throughput: "table", or where they come from */
    sbp_model model;
    const sbp_tokenizer *tokenizer; /* that the plan will carry, as the text of tokenizer.json; NULL: none */
    const char *tokenizer_text;
    size_t tokenizer_bytes;
    const char *objective, *loss_type;
    sbp_objective_settings settings; /* of the objective */
    sbp_dtype dtype, grad_dtype, state_dtype;
    bool halves; /* trained weights that are computed with in bf16 are kept so, too, with a master or without
                  */
    bool step;
    sbp_pipeline pipeline;      /* before planning, its target and options; after it, the program */
    int64_t threads;            /* of the process that will run the plan, and */
    sbp_footprint process;      /* what it takes beside the arenas */
    bool terse;                 /* as in sbp_schedule_request */
    int64_t tries_for_remedies; /* likewise */
    sbp_speller speller;        /* of the request */
    sbp_schedule_request request;
    sbp_plan_estimate estimate;
    const char *advice; /* the one change that would buy most; set by the summary */
} sbp_compilation;

/* sbpc --help, sbpc compile --help [TOPIC]: topic NULL: what people look for first. Below a guard. */
void sbp_cli_compile_help(sbp_arena *arena, const char *topic);
/* The two commands; what follows the command is argv. */
sbp_status sbp_cli_compile(sbp_arena *arena, sbp_diag *diag, int argc, char **argv) SBP_CHECKED;
sbp_status sbp_cli_inspect(sbp_arena *arena, sbp_diag *diag, int argc, char **argv) SBP_CHECKED;
/* sbpc fit MODEL..: a table of models, cards, kinds and lengths (fit.h). */
sbp_status sbp_cli_fit(sbp_arena *arena, sbp_diag *diag, int argc, char **argv) SBP_CHECKED;

/* spell.c: how the planner's messages name options. */
void sbp_cli_speller(sbp_speller *out);
/* A change without numbers: "--backward stream". */
const char *sbp_cli_change(sbp_change change);
/* What compile plans, of model_path with the options; the arena and diagnostics of the pipeline are set. */
sbp_status sbp_cli_plan(sbp_compilation *c) SBP_CHECKED;
/* sbpc inspect --ranks N: a model with options of compile, at 1, 2, 4 .. N ranks, as text or JSON: what a
 * rank takes and sends, how long a step takes, where more ranks stop to pay, and why. */
sbp_status sbp_cli_scale(sbp_arena *arena, sbp_diag *diag, const char *model, const sbp_options *options,
                         sbp_text *out) SBP_CHECKED;

/* --lora and what belongs to it; *out NULL: no new adapters. adapter: MODEL is one, whose dropout may be
 * chosen and nothing else. */
sbp_status sbp_cli_read_lora(const sbp_compilation *c, bool adapter,
                             const sbp_lora_options **out) SBP_CHECKED;

/* Throughput as --throughput says, in place of the target's. */
sbp_status sbp_cli_choose_throughput(sbp_compilation *c) SBP_CHECKED;
/* What a plan was planned with, as an object, and back; NULL leaves all as it is. */
void sbp_cli_write_throughput(sbp_json_writer *w, const char *key, const char *source,
                              const sbp_throughput *throughput);
sbp_status sbp_cli_read_throughput(sbp_diag *diag, const sbp_json *object, sbp_throughput *out,
                                   const char **source) SBP_CHECKED;

/* What is known of the process that will run the plan, once the model is read. */
sbp_status sbp_cli_describe_process(const sbp_compilation *c, sbp_process *out) SBP_CHECKED;

/* Writes plan.bin: program, tensor table, meta, tokenizer, device code. */
sbp_status sbp_cli_write_plan(const sbp_compilation *c) SBP_CHECKED;

/* Schedule, memory by category, whether it fits, longest sequence, time, the change that buys most: some 12
 * lines of at most SBP_CLI_WIDTH characters. */
enum { SBP_CLI_WIDTH = 98, SBP_CLI_INDENT = 11 };
sbp_status sbp_cli_summary(sbp_compilation *c, sbp_text *out) SBP_CHECKED;

/* The same for scripts: one JSON object. After the summary. */
sbp_status sbp_cli_summary_json(const sbp_compilation *c, sbp_text *out) SBP_CHECKED;
/* The schedule of the estimate, an object; the member "peak_bytes". */
void sbp_cli_write_schedule(sbp_json_writer *w, const char *key, const sbp_compilation *c);
void sbp_cli_write_peak(sbp_json_writer *w, const sbp_program *program, int64_t process_bytes);

/* What placements cost: bytes per class that are copied in a step, seconds per queue and the one that bounds
 * it, of all the step takes: two lines, none when nothing moves; and the members "busy" and "traffic".
 * traffic: one per class, busy: one per queue. */
void sbp_cli_traffic_lines(const sbp_traffic *traffic, const double *busy, double seconds, sbp_text *out);
/* What ranks send each other: a line, none of one rank; and the members "ranks", "interconnect", "context"
 * .. */
void sbp_cli_net_line(const sbp_program *program, const sbp_target_info *target, const double *busy,
                      double seconds, sbp_text *out);
void sbp_cli_write_net(sbp_json_writer *j, const sbp_program *program, const sbp_target_info *target);
void sbp_cli_write_traffic(sbp_json_writer *w, const sbp_traffic *traffic, const double *busy);

/* What holds the memory of a plan when most of it is held: names of roles.def, gaps between buffers, and,
 * last on the device, the process itself; together they are all of the space. Plans carry it, and every page
 * shows it. */
typedef struct sbp_category {
    const char *name;
    int64_t bytes;
} sbp_category;
typedef struct sbp_account {
    sbp_category parts[SBP_SPACE_COUNT][SBP_ROLE_COUNT + 2];
    int32_t counts[SBP_SPACE_COUNT];
} sbp_account;
sbp_status sbp_cli_account(sbp_arena *arena, sbp_diag *diag, const sbp_program *program, int64_t alignment,
                           int64_t process_bytes, sbp_account *out) SBP_CHECKED;
/* The device's, as text: "parameters 0.51 GiB, ..": what has a hundredth of the arena or more,
 * without the process. */
void sbp_cli_memory_line(const sbp_account *account, sbp_text *out);
/* {"device": {name: bytes}, "host": .., "disk": ..}: what is held, without a key as the root; and all names
 * of the device's, with zeros. */
void sbp_cli_write_account(sbp_json_writer *w, const char *key, const sbp_account *account);
void sbp_cli_write_categories(sbp_json_writer *w, const char *key, const sbp_account *account);

/* A picture: positions of the training entry from left to right, addresses of what comes and goes from bottom
 * to top; below them, folded and not to scale, what is there all the time by category, and the process. */
void sbp_cli_memory_svg(sbp_arena *arena, const sbp_program *program, int64_t process_bytes, sbp_text *out);

#endif
