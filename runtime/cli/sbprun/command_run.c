/* command_run.c: `sbprun PLAN --data ...` and `sbprun MODEL --data ...`. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "backends/backends.h"
#include "backends/choice.h"
#include "frontends/formats/files/hub_fetch.h"
#include "ir/base/args.h"
#include "ir/base/machine.h"
#include "ir/program/plan_file.h"
#include "runtime/cli/sbprun/check.h"
#include "runtime/cli/sbprun/child.h"
#include "runtime/cli/sbprun/commands.h"
#include "runtime/cli/sbprun/launcher.h"
#include "runtime/cli/sbprun/outputs.h"
#include "runtime/cli/sbprun/rl.h"
#include "runtime/cli/sbprun/run_samples.h"
#include "runtime/run/devices.h"

/* Rows of a micro-batch when neither the user nor a long document asks for more. */
enum { USUAL_ROWS = 4096 };

/* ---- models ----------------------------------------------------------------------------------------- */

/* Tokens of the longest step, as far as one micro-batch should take it: usual rows, or a longer document. */
static int64_t find_seq_len(sbp_inputs *inputs, int64_t usual) {
    int64_t most = 0;
    for (int64_t step = 0; step < inputs->steps_per_epoch; step++) {
        int64_t count, tokens = 0;
        const int64_t *rows = sbp_sampler_next(&inputs->sampler, &count);
        for (int64_t r = 0; r < count; r++)
            tokens += sbp_dataset_row_tokens(inputs->data, rows[r]);
        most = tokens > most ? tokens : most;
    }
    sbp_sampler_seek(&inputs->sampler, 0, 0);
    most = most < usual ? most : usual;
    for (int32_t i = 0; i < inputs->eval_count; i++) /* those that are held out */
        most = inputs->evals[i]->longest > most ? inputs->evals[i]->longest : most;
    return inputs->data->longest > most ? inputs->data->longest : most;
}

/* Whether what is no plan begins as a model does: a directory with config.json, a GGUF file, or JSON, before
 * which lines may be comments. sbpc finds out the rest; this comes before the data are read. */
static sbp_status check_model(const sbp_world *world, const sbp_session *session) {
    char head[4096] = "";
    if (sbp_file_exists(sbp_file_join(world->arena, session->model, "config.json")) ||
        sbp_file_exists(sbp_file_join(world->arena, session->model, "adapter_config.json")))
        return SBP_OK;
    bool directory = sbp_directory_exists(session->model);
    if (!directory) {
        int fd;
        SBP_TRY(sbp_file_open_regular(world->diag, session->model, &fd));
        ssize_t got = read(fd, head, sizeof head - 1);
        close(fd);
        if (got < 0)
            return sbp_fail(world->diag, SBP_IO, "cannot read '%s': %s", session->model, strerror(errno));
    }
    const char *begin = head + strspn(head, " \t\r\n");
    if (strncmp(begin, "GGUF", 4) == 0 || *begin == '{' || *begin == '/')
        return SBP_OK;
    return sbp_fail(world->diag, SBP_INPUT,
                    "'%s' %s: a plan.bin, a Hugging Face model directory, a model.json or a .gguf file is "
                    "expected",
                    session->model, directory ? "has no config.json" : "is neither a plan nor a model");
}

/* What the data cannot decide by themselves: said before any of them is read. */
static sbp_status check_measured(const sbp_world *world) {
    if (sbp_options_is(world->options, SBP_OPT_PACKING, "bfd"))
        return sbp_fail(
            world->diag, SBP_USAGE,
            "--packing bfd needs --seq-len N: the length of packed rows (max_length of TRL, 1024 there)");
    if (!sbp_options_is(world->options, SBP_OPT_OVERLONG, "error"))
        return sbp_fail(world->diag, SBP_USAGE,
                        "--overlong %s needs --seq-len, else the longest document decides",
                        sbp_options_text(world->options, SBP_OPT_OVERLONG));
    return SBP_OK;
}

/* Sizes that the data decide; the data stay. */
static sbp_status measure_data(sbp_world *world, sbp_inputs *inputs, sbp_session *session, int64_t *seq_len) {
    SBP_TRY(sbp_run_load_raw(world, inputs, session));
    SBP_TRY(sbp_run_plan_steps(world, inputs, session));
    *seq_len =
        find_seq_len(inputs, sbp_options_is(world->options, SBP_OPT_SEQ_LEN, "max") ? INT64_MAX : USUAL_ROWS);
    return SBP_OK;
}

/* A name for the plan until the run begins: in --out, else where temporary files are. */
static sbp_status choose_plan_path(const sbp_world *world, sbp_session *session, sbp_outputs *outputs) {
    if (sbp_options_given(world->options, SBP_OPT_OUTPUT))
        return sbp_fail(world->diag, SBP_USAGE,
                        "--output is an option of sbpc compile; the plan goes to --out DIR");
    bool stays = outputs->out && !sbp_options_on(world->options, SBP_OPT_DRY_RUN);
    if (stays) { /* as sbp_file_is_temporary knows it, so that it goes when this process is killed */
        SBP_TRY(sbp_run_create_out(world, session, outputs));
        session->plan_path = session->temporary_plan =
            sbp_arena_printf(world->arena, "%s/plan.bin.%ld.0.tmp", outputs->out, (long)getpid());
        return SBP_OK;
    }
    SBP_TRY(sbp_child_new_file(world->arena, world->diag, SBP_CHILD_PLAN, &session->temporary_plan));
    session->plan_path = session->temporary_plan;
    return SBP_OK;
}

/* What the plan is for, and what it may take there. */
static sbp_status choose_backend(const sbp_world *world, sbp_choice *out) {
    const sbp_choice_request request = {.backend = sbp_options_text(world->options, SBP_OPT_BACKEND),
                                        .device = (int32_t)sbp_options_int(world->options, SBP_OPT_DEVICE),
                                        .fp64 = sbp_options_is(world->options, SBP_OPT_DTYPE, "fp64")};
    SBP_TRY(sbp_choice_find(&request, world->diag, out));
    if (strcmp(request.backend, "auto") == 0)
        sbp_note(world->diag, "backend %s: %s", out->backend, out->reason);
    return SBP_OK;
}

/* --memory in MiB where it was not given; 0: it was, or nothing is known. The rest is for the system. */
static int64_t chosen_memory(const sbp_world *world, const sbp_choice *choice) {
    return sbp_options_given(world->options, SBP_OPT_MEMORY) ? 0 : choice->memory_bytes / 100 * 95 >> 20;
}

/* Where --memory came from, which sbpc has just refused to plan in. */
static void explain_memory(const sbp_world *world, const sbp_choice *choice, const char *limit) {
    if (!sbp_backend_is_a(choice->backend, SBP_BACKEND_HOST))
        limit = "that of the device";
    sbp_note(world->diag, "--memory was not given: %lld MiB were chosen, 95 %% of what is free: %s",
             (long long)chosen_memory(world, choice), limit);
}

/* Nothing is trained or read: how that would be planned is of no use. */
static bool only_merges(const sbp_world *world, const sbp_session *session) {
    return sbp_options_on(world->options, SBP_OPT_MERGE) && !session->train &&
           sbp_options_list_count(world->options, SBP_OPT_DATA) == 0 &&
           sbp_options_list_count(world->options, SBP_OPT_EVAL) == 0;
}

/* The command line of sbpc that writes `plan`, NULL at the end. seq_len 0: the user gave it; beside --seq-len
 * max: its bound. */
static sbp_status compile_args(const sbp_world *world, const sbp_session *session, const char *sbpc,
                               const char *plan, const sbp_choice *choice, int64_t seq_len,
                               const char ***out) {
    static const sbp_option_id terms[] = {
        SBP_OPT_ENTROPY_COEF}; /* numbers without which a plan lacks their term */
    const char **given;
    int32_t given_count, capacity;
    sbp_args args = sbp_args_on(world->arena);
    sbp_args_add(&args, sbpc);
    sbp_args_add(&args, "compile");
    SBP_TRY(sbp_args_operand(&args, world->diag, "MODEL", session->model));
    sbp_args_add(&args, "-o");
    sbp_args_add(&args, plan);
    sbp_options_to_args(world->options, SBP_PHASE_COMPILE, SBP_PHASE_RUN, world->arena, &given, &given_count);
    capacity = given_count;
    for (int i = 0; i < SBP_COUNT(terms); i++)
        if (sbp_options_given(world->options, terms[i]))
            SBP_PUSH(world->arena, given, given_count, capacity,
                     sbp_arena_printf(world->arena, "--%s=%s", sbp_option_name(terms[i]),
                                      sbp_options_text(world->options, terms[i])));
    sbp_options_spell(world->arena, given, &given_count);
    for (int32_t i = 0; i < given_count; i++)
        sbp_args_add(&args, given[i]);
    if (sbp_rl_is_asked_for(world->options) || sbp_samples_are_asked_for(world->options))
        sbp_args_add(&args, "--for=both");
    if (seq_len > 0)
        sbp_args_add(&args,
                     sbp_arena_printf(world->arena, "--seq-len%s=%lld",
                                      sbp_options_given(world->options, SBP_OPT_SEQ_LEN) ? "-most" : "",
                                      (long long)seq_len));
    if (!sbp_options_given(world->options, SBP_OPT_BACKEND))
        sbp_args_option(&args, "--backend", choice->backend);
    if (choice->arch[0] && !sbp_options_given(world->options, SBP_OPT_ARCH))
        sbp_args_option(&args, "--arch", choice->arch);
    if (chosen_memory(world, choice) > 0)
        sbp_args_add(&args, sbp_arena_printf(world->arena, "--memory=%lldMiB",
                                             (long long)chosen_memory(world, choice)));
    sbp_args_add(&args, sbp_arena_printf(world->arena, "--threads=%d", sbp_world_threads(world)));
    if (sbp_options_on(world->options, SBP_OPT_QUIET) || only_merges(world, session))
        sbp_args_add(&args, "--quiet");
    else if (!sbp_options_on(world->options, SBP_OPT_VERBOSE))
        sbp_args_add(&args, "--summary=short");
    if (world->place.count > 1)
        sbp_args_add(&args, sbp_arena_printf(world->arena, "--ranks=%d", (int)world->place.count));
    if (world->place.count > 1 && !sbp_options_given(world->options, SBP_OPT_NODE))
        sbp_args_add(&args, sbp_arena_printf(world->arena, "--node=%d", (int)world->place.local_count));
    *out = sbp_args_end(&args);
    return SBP_OK;
}

static void print_command(const sbp_world *world, const sbp_session *session, const char *const *args) {
    sbp_text text;
    if (!sbp_options_on(world->options, SBP_OPT_VERBOSE) || only_merges(world, session))
        return;
    sbp_text_init(&text, world->arena);
    sbp_child_print(&text, args);
    fprintf(stderr, "+ %s\n", text.data);
}

/* `sbprun MODEL ...` as it would be with the plan, where that stays. */
static sbp_status print_own_command(const sbp_world *world, const sbp_session *session,
                                    const sbp_outputs *outputs) {
    const char *sbprun;
    if (!outputs->out || sbp_options_on(world->options, SBP_OPT_RESUME) ||
        sbp_options_on(world->options, SBP_OPT_DRY_RUN))
        return SBP_OK;
    const char **given;
    int32_t given_count;
    sbp_args args = sbp_args_on(world->arena);
    SBP_TRY(sbp_child_find(world->arena, world->diag, "sbprun", &sbprun));
    sbp_args_add(&args, sbprun);
    sbp_args_add(&args, sbp_file_join(world->arena, outputs->out, "plan.bin"));
    sbp_options_to_args(world->options, SBP_PHASE_RUN, 0, world->arena, &given, &given_count);
    sbp_options_spell(world->arena, given, &given_count);
    for (int32_t i = 0; i < given_count; i++)
        if (strncmp(given[i], "--config=", 9) != 0) /* all of it is here */
            sbp_args_add(&args, given[i]);
    print_command(world, session, sbp_args_end(&args));
    return SBP_OK;
}

static bool reads_stdin(const sbp_world *world) {
    return world->options && sbp_options_list_count(world->options, SBP_OPT_DATA) > 0 &&
           strcmp(sbp_options_list_at(world->options, SBP_OPT_DATA, 0), "-") == 0;
}

/* Whether the data say how long a micro-batch may be; with --seq-len max, how long it need not be. */
static bool is_measured(const sbp_world *world) {
    const sbp_options *o = world->options;
    if (sbp_options_list_count(o, SBP_OPT_DATA) == 0 || sbp_rl_is_asked_for(o))
        return false;
    if (!sbp_options_given(o, SBP_OPT_SEQ_LEN))
        return true;
    return sbp_options_is(o, SBP_OPT_SEQ_LEN, "max") && !reads_stdin(world) &&
           sbp_options_is(o, SBP_OPT_OVERLONG, "error") && sbp_options_is(o, SBP_OPT_PACKING, "none");
}

/* By rank 0. */
static sbp_status compile_model(sbp_world *world, sbp_inputs *inputs, sbp_session *session,
                                sbp_outputs *outputs) {
    const char *plan, *sbpc, **args;
    int64_t seq_len = 0;
    char limit[100];
    sbp_choice choice;
    SBP_TRY(sbp_child_find(world->arena, world->diag, "sbpc", &sbpc));
    if (is_measured(world))
        SBP_TRY(check_measured(world));
    SBP_TRY(sbp_run_peek(world, session));
    SBP_TRY(choose_backend(world, &choice));
    if (inputs->rl && !sbp_options_given(world->options, SBP_OPT_SEQ_LEN))
        seq_len = sbp_rl_seq_len(inputs->rl, USUAL_ROWS);
    if (is_measured(world))
        SBP_TRY(measure_data(world, inputs, session, &seq_len));
    if (inputs->samples && seq_len > 0)
        seq_len = sbp_max_i64(seq_len, sbp_samples_rows(inputs->samples));
    SBP_TRY(choose_plan_path(world, session, outputs));
    sbp_machine_memory_text(limit, sizeof limit);
    plan = outputs->out ? sbp_file_join(world->arena, outputs->out, "plan.bin") : "plan.bin";
    SBP_TRY(compile_args(world, session, sbpc, plan, &choice, seq_len, &args));
    print_command(world, session,
                  args); /* as one would give it; the plan has another name until it is whole */
    SBP_TRY(compile_args(world, session, sbpc, session->plan_path, &choice, seq_len, &args));
    sbp_status status =
        sbp_child_compile(world->arena, world->diag, args, session->plan_path, outputs->dir.lock);
    if (status == SBP_OK)
        return print_own_command(world, session, outputs);
    if (status == SBP_MACHINE && chosen_memory(world, &choice) > 0)
        explain_memory(world, &choice, limit);
    return status;
}

/* The plan of a model: that which the run has, or a new one. */
static sbp_status find_plan(sbp_world *world, sbp_inputs *inputs, sbp_session *session,
                            sbp_outputs *outputs) {
    SBP_TRY(check_model(world, session));
    SBP_TRY(sbp_run_reuse_plan(world, session, outputs));
    return session->plan_path ? SBP_OK : compile_model(world, inputs, session, outputs);
}

static sbp_status open_plan(const sbp_world *world, sbp_session *session) {
    if (session->model && !sbp_file_exists(session->plan_path))
        return sbp_fail(world->diag, SBP_IO,
                        "rank 0 compiled '%s', which is not there for this rank: give --out DIR on a file "
                        "system that all hosts share, or compile a plan before and copy it to all",
                        session->plan_path);
    session->plan_checksum = sbp_plan_file_checksum(session->plan_path);
    SBP_TRY(sbp_plan_open(world->arena, world->diag, session->plan_path, &session->plan));
    return sbp_plan_info_read(world->diag, session->plan, &session->info);
}

static sbp_status make_plan(sbp_world *world, sbp_inputs *inputs, sbp_session *session,
                            sbp_outputs *outputs) {
    SBP_TRY(sbp_world_alone(world,
                            sbp_world_writes(world) ? find_plan(world, inputs, session, outputs) : SBP_OK));
    SBP_TRY(sbp_world_share_text(world, &session->plan_path));
    SBP_TRY(sbp_world_agree(world, open_plan(world, session)));
    return sbp_world_same(world, "another plan", session->plan_checksum);
}

/* ---- the command ------------------------------------------------------------------------------------ */

static sbp_status print_help(const sbp_world *world, bool check) {
    sbp_text text;
    if (check)
        return sbp_print(world->diag, sbp_help_of_check, strlen(sbp_help_of_check));
    sbp_text_init(&text, world->arena);
    int32_t count = sbp_options_arg_count(world->options);
    const char *topic = count > 0 ? sbp_options_arg(world->options, count - 1) : NULL;
    if (topic && strcmp(topic, "rows") == 0)
        return sbp_print(world->diag, sbp_help_of_rows, strlen(sbp_help_of_rows));
    bool is_topic = topic && sbp_options_is_topic(SBP_PHASE_RUN | SBP_PHASE_COMPILE,
                                                  topic); /* or a model beside --help */
    if (topic && !is_topic && strcmp(topic, "all") != 0 && !strpbrk(topic, "/.") && !sbp_file_exists(topic) &&
        !sbp_directory_exists(topic))
        return sbp_fail(world->diag, SBP_USAGE,
                        "--help %s: there is no such topic; sbprun --help names them all", topic);
    if (!is_topic)
        sbp_text_add(&text, "%s", sbp_help_of_sbprun);
    sbp_options_print_topic(&text, SBP_PHASE_RUN, SBP_PHASE_RUN | SBP_PHASE_COMPILE, topic);
    return sbp_print(world->diag, text.data, text.length);
}

/* What needs neither plan nor data; *done when that was all. */
static sbp_status print_information(const sbp_world *world, bool check, bool *done) {
    const sbp_options *o = world->options;
    sbp_text text;
    sbp_text_init(&text, world->arena);
    *done = true;
    if (!sbp_world_writes(world)) {
        *done = sbp_options_on(o, SBP_OPT_HELP) || sbp_options_on(o, SBP_OPT_VERSION) ||
                sbp_options_on(o, SBP_OPT_HELP_MARKDOWN) || sbp_options_on(o, SBP_OPT_DEVICES);
        return SBP_OK;
    }
    if (sbp_options_on(o, SBP_OPT_HELP))
        return print_help(world, check);
    if (sbp_options_on(o, SBP_OPT_VERSION))
        sbp_text_add(&text, "sbprun %s\n", SBP_VERSION);
    else if (sbp_options_on(o, SBP_OPT_HELP_MARKDOWN))
        sbp_options_print_markdown(&text);
    else if (sbp_options_on(o, SBP_OPT_DEVICES))
        SBP_TRY(sbp_devices_print(&text, sbp_options_on(o, SBP_OPT_JSON), world->diag));
    else
        *done = false;
    return *done ? sbp_print(world->diag, text.data, text.length) : SBP_OK;
}

static sbp_status check_arguments(const sbp_world *world) {
    const sbp_options *o = world->options;
    if (sbp_options_on(world->options, SBP_OPT_QUIET) && sbp_options_on(world->options, SBP_OPT_VERBOSE))
        return sbp_fail(world->diag, SBP_USAGE, "--quiet and --verbose: choose one of them");
    bool data = sbp_options_list_count(o, SBP_OPT_DATA) > 0;
    const char *first = sbp_options_arg_count(o) > 1 ? sbp_options_arg(o, 0) : "/";
    if (!strpbrk(first, "/.") && !sbp_file_exists(first) && !sbp_directory_exists(first))
        return sbp_fail(world->diag, SBP_USAGE,
                        "'%s' is neither a command of sbprun nor a model that is here; see sbprun --help",
                        first);
    if (sbp_options_arg_count(o) != 1)
        return sbp_fail(
            world->diag, SBP_USAGE, "expected one plan or model, found %d arguments%s; see sbprun --help",
            sbp_options_arg_count(o),
            sbp_options_arg_count(o) > 1 && !data ? " (rows are given with --data FILE.jsonl)" : "");
    if (!sbp_options_on(o, SBP_OPT_RESUME))
        return SBP_OK;
    if (sbp_options_is(o, SBP_OPT_OUT, "none"))
        return sbp_fail(world->diag, SBP_USAGE, "--resume needs --out DIR, where the checkpoints are");
    if (sbp_options_on(o, SBP_OPT_OVERWRITE))
        return sbp_fail(world->diag, SBP_USAGE, "--resume and --overwrite: give one of them");
    return SBP_OK;
}

/* Checks what standard input can be used for. With several ranks one has it, and passes it on where it is all
 * of the data. */
static sbp_status check_stdin(const sbp_world *world, const sbp_session *session) {
    if (world->place.count > 1 && session->model && reads_stdin(world) &&
        !sbp_options_given(world->options, SBP_OPT_SEQ_LEN))
        return sbp_fail(world->diag, SBP_USAGE,
                        "--data - with several ranks needs --seq-len N, the most tokens of a micro-batch: "
                        "rows of a stream cannot be measured before");
    static const sbp_option_id lists[] = {SBP_OPT_DATA, SBP_OPT_EVAL};
    for (int k = 0; k < SBP_COUNT(lists) && world->place.count > 1; k++)
        for (int32_t i = 0, count = sbp_options_list_count(world->options, lists[k]); i < count; i++)
            if (strcmp(sbp_options_list_at(world->options, lists[k], i), "-") == 0 && (k > 0 || count > 1))
                return sbp_fail(world->diag, SBP_USAGE,
                                "--%s -: with several ranks, standard input must be the only --data",
                                sbp_option_name(lists[k]));
    return SBP_OK;
}

/* Refuses options that `sbprun check` cannot take, as nothing is trained or written. */
static sbp_status check_check(const sbp_world *world) {
    static const sbp_option_id refused[] = {SBP_OPT_RESUME, SBP_OPT_DUMP_GRADIENTS, SBP_OPT_SCORE,
                                            SBP_OPT_MERGE,  SBP_OPT_DRY_RUN,        SBP_OPT_PUBLISH};
    for (int i = 0; i < SBP_COUNT(refused); i++)
        if (sbp_options_given(world->options, refused[i]))
            return sbp_fail(world->diag, SBP_USAGE,
                            "sbprun check: leave out --%s: nothing is trained or written",
                            sbp_option_name(refused[i]));
    if (reads_stdin(world))
        return sbp_fail(world->diag, SBP_USAGE, "sbprun check: rows are read from files (--data FILE)");
    return SBP_OK;
}

/* Before anything is read of the data. */
static sbp_status check_mixture(const sbp_world *world) {
    sbp_mixture mixture;
    SBP_TRY(sbp_run_find_mixture(world, world->arena, &mixture));
    for (int32_t i = 0; i < sbp_options_list_count(world->options, SBP_OPT_DATA); i++)
        if (!sbp_mixture_takes_all(&mixture) &&
            strcmp(sbp_options_list_at(world->options, SBP_OPT_DATA, i), "-") == 0)
            return sbp_fail(
                world->diag, SBP_USAGE,
                "--data -: rows of standard input cannot be counted before some of them are taken: put "
                "them into a file, or leave out --mixture-weights and --test-split-size");
    if (mixture.test_size > 0 && sbp_options_list_count(world->options, SBP_OPT_EVAL) > 0 &&
        sbp_world_writes(world))
        sbp_note(world->diag,
                 "rows of --test-split-size are held out, and not evaluated: those of --eval are");
    return SBP_OK;
}

/* Options of rewards where there are none. */
static sbp_status check_rewards(const sbp_world *world) {
    static const sbp_option_id with_reward[] = {SBP_OPT_REWARD_WEIGHTS, SBP_OPT_REWARD_TIMEOUT,
                                                SBP_OPT_REWARD_PYTHON};
    const sbp_options *o = world->options;
    if (sbp_rl_is_asked_for(o))
        return SBP_OK;
    for (int i = 0; i < SBP_COUNT(with_reward); i++) {
        const char *name = sbp_option_name(with_reward[i]);
        const char *config = sbp_options_from_config(o, with_reward[i]);
        if (!sbp_options_given(o, with_reward[i]))
            continue;
        if (!config)
            return sbp_fail(world->diag, SBP_USAGE, "--%s needs --reward", name);
        if (sbp_world_writes(world))
            sbp_note(world->diag, "%s: %s has no effect without --reward", config, name);
    }
    return SBP_OK;
}

static sbp_status check_usage(const sbp_world *world, const sbp_session *session) {
    const sbp_options *o = world->options;
    bool data = sbp_options_list_count(o, SBP_OPT_DATA) > 0;
    SBP_TRY(check_rewards(world));
    if (session->check)
        return check_check(world);
    if (!data && sbp_options_list_count(o, SBP_OPT_EVAL) == 0 && !sbp_options_on(o, SBP_OPT_MERGE))
        return sbp_fail(world->diag, SBP_USAGE, "--data FILE.jsonl is missing");
    static const sbp_option_id need_data[] = {SBP_OPT_SCORE,           SBP_OPT_DUMP_GRADIENTS,
                                              SBP_OPT_DRY_RUN,         SBP_OPT_STEPS,
                                              SBP_OPT_MIXTURE_WEIGHTS, SBP_OPT_TEST_SPLIT_SIZE};
    for (int i = 0; i < SBP_COUNT(need_data); i++)
        if (!data && sbp_options_given(o, need_data[i]))
            return sbp_fail(world->diag, SBP_USAGE, "--%s needs --data", sbp_option_name(need_data[i]));
    SBP_TRY(check_stdin(world, session));
    SBP_TRY(check_mixture(world));
    bool every = sbp_options_given(o, SBP_OPT_EVAL_EVERY) && sbp_options_list_count(o, SBP_OPT_EVAL) == 0 &&
                 !sbp_run_evaluates_held_out(world, session);
    const char *config = sbp_options_from_config(o, SBP_OPT_EVAL_EVERY);
    if (every && sbp_world_writes(world))
        sbp_note(world->diag, "%s%seval_steps (--eval-every) without --eval FILE: nothing is evaluated",
                 config ? config : "", config ? ": " : "");
    if (sbp_options_is(o, SBP_OPT_PACKING, "bfd") && sbp_options_given(o, SBP_OPT_SCORE))
        return sbp_fail(world->diag, SBP_USAGE,
                        "--score writes a line for each row of the data: leave out --packing bfd");
    return SBP_OK;
}

/* A name of TRL's that nothing is built for never stops a run. */
static void check_reports(const sbp_world *world) {
    for (int32_t i = 0; i < sbp_options_list_count(world->options, SBP_OPT_REPORT_TO); i++) {
        const char *to = sbp_options_list_at(world->options, SBP_OPT_REPORT_TO, i), *folder;
        if (sbp_world_writes(world) && strcmp(to, "none") != 0 && strcmp(to, "jsonl") != 0 &&
            !sbp_run_reports_events(to, &folder))
            sbp_note(
                world->diag,
                "--report-to %s is not built: --report-to jsonl writes the numbers of each step to standard "
                "output, for a few lines of Python that pass them on (examples/report_bridge.py)",
                to);
    }
}

/* What templates see as today: once for a run, so that it can be told and resumed. */
static sbp_status choose_date(const sbp_world *world) {
    char date[32] = "";
    time_t now = time(NULL);
    struct tm day;
    int year, month, number, end = 0;
    if (localtime_r(&now, &day))
        strftime(date, sizeof date, "%Y-%m-%d", &day);
    SBP_TRY(sbp_options_set_default(world->options, world->diag, SBP_OPT_DATE,
                                    sbp_arena_strdup(world->arena, date)));
    const char *text = sbp_options_text(world->options, SBP_OPT_DATE);
    if (sscanf(text, "%4d-%2d-%2d%n", &year, &month, &number, &end) == 3 && text[end] == '\0' && month >= 1 &&
        month <= 12 && number >= 1 && number <= 31)
        return SBP_OK;
    return sbp_fail(world->diag, SBP_USAGE, "--date: expected a day as 2026-03-01, found '%s'", text);
}

static sbp_status choose_merge(const sbp_world *world, sbp_session *session, const sbp_outputs *outputs) {
    session->info.merge = sbp_options_on(world->options, SBP_OPT_MERGE);
    if (session->info.merge && !session->info.meta.adapter)
        return sbp_fail(world->diag, SBP_USAGE, "--merge: '%s' has no adapter", session->plan_path);
    if (session->info.merge && !session->train && !outputs->out)
        return sbp_fail(world->diag, SBP_USAGE, "--merge needs --out DIR for the merged model");
    if (sbp_options_given(world->options, SBP_OPT_MERGE_DTYPE)) {
        if (!session->info.merge)
            return sbp_fail(world->diag, SBP_USAGE,
                            "--merge-dtype needs --merge: an adapter is not written in it");
        session->info.merge_dtype = sbp_options_text(world->options, SBP_OPT_MERGE_DTYPE);
    }
    return SBP_OK;
}

/* As they are, or will be started. */
static int64_t ranks_of(const sbp_world *world) {
    return world->place.count > 1 ? world->place.count : sbp_options_int(world->options, SBP_OPT_RANKS);
}

/* Options, and what they name. *done: that was all. */
static sbp_status read_arguments(sbp_world *world, sbp_session *session, sbp_outputs *outputs, bool *done) {
    *done = false;
    SBP_TRY(sbp_options_parse(world->arena, world->diag, "sbprun", SBP_PHASE_RUN | SBP_PHASE_COMPILE,
                              world->argc, world->argv, &world->options));
    sbp_options_set_environment(world->options);
    if (sbp_options_on(world->options, SBP_OPT_QUIET))
        sbp_diag_set_quiet(world->diag);
    SBP_TRY(sbp_options_settle_batch(world->options, world->diag, ranks_of(world)));
    SBP_TRY(print_information(world, session->check, done));
    if (*done)
        return SBP_OK;
    const sbp_options *o = world->options;
    SBP_TRY(check_arguments(world));
    const char *first = sbp_options_arg(o, 0);
    bool data = sbp_options_list_count(o, SBP_OPT_DATA) > 0 || sbp_options_on(o, SBP_OPT_RESUME);
    session->evaluates_nothing =
        sbp_options_given(o, SBP_OPT_EVAL_STRATEGY) && sbp_options_is(o, SBP_OPT_EVAL_STRATEGY, "no");
    session->train = data && !session->check && !sbp_options_given(o, SBP_OPT_DUMP_GRADIENTS) &&
                     (!sbp_options_given(o, SBP_OPT_SCORE) || sbp_options_given(o, SBP_OPT_STEPS));
    SBP_TRY(sbp_hub_model(world->arena, world->diag, first, true, &first));
    SBP_TRY(sbp_run_find_data(world));
    bool is_plan = sbp_plan_file_probe(first);
    session->model = is_plan ? NULL : first;
    session->plan_path = is_plan ? first : NULL;
    if (is_plan) {
        SBP_TRY(open_plan(world, session));
        SBP_TRY(sbp_plan_check_options(world->diag, session->plan, world->options, world->arena));
    }
    return session->check ? SBP_OK : sbp_run_choose_out(world, session, outputs);
}

/* All other options: of the run that goes on, too. */
static sbp_status complete_options(const sbp_world *world, sbp_session *session, const sbp_outputs *outputs) {
    SBP_TRY(sbp_run_inherit(world, session, outputs));
    SBP_TRY(choose_date(world));
    SBP_TRY(check_usage(world, session));
    check_reports(world);
    SBP_TRY(sbp_run_check_push(world, session, outputs));
    return sbp_run_check_results(world, session);
}

/* Rows of random tokens in place of --data. */
static sbp_status make_random_rows(sbp_world *world, sbp_session *session) {
    char *path;
    SBP_TRY(sbp_child_new_file(world->arena, world->diag, ".jsonl", &path));
    session->random_rows = path;
    if (sbp_options_list_count(world->options, SBP_OPT_DATA) == 0)
        sbp_options_append(world->options, SBP_OPT_DATA, path);
    for (int32_t i = 0; i < sbp_options_list_count(world->options, SBP_OPT_DATA); i++)
        sbp_options_replace(world->options, SBP_OPT_DATA, i, path);
    return sbp_check_write_rows(world, session, path);
}

/* The data; of a check random rows in place of data that were not given, or have fewer tokens than its
 * micro-batch, which crosses chunks. */
static sbp_status load_rows(sbp_world *world, sbp_inputs *inputs, sbp_session *session) {
    bool given = sbp_options_list_count(world->options, SBP_OPT_DATA) > 0;
    if (given || !session->check)
        SBP_TRY(sbp_run_load_data(world, inputs, session));
    if (!session->check ||
        (given && inputs->data->token_count >= sbp_check_most_rows(session->plan->program)))
        return SBP_OK;
    if (given)
        sbp_note(
            world->diag,
            "the data have %lld tokens, which do not cross chunks of %lld: rows of random tokens are checked",
            (long long)inputs->data->token_count, (long long)session->plan->program->chunk);
    else
        sbp_note(world->diag, "no --data: rows of random tokens");
    sbp_dataset_destroy(inputs->data);
    inputs->data = NULL;
    sbp_status status = make_random_rows(world, session);
    if (status == SBP_OK)
        status = sbp_run_load_data(world, inputs, session);
    unlink(session->random_rows);
    return status;
}

/* What the page will show of the data: now, as a tokenizer takes memory beside the plan's. */
static sbp_status keep_shown_rows(const sbp_world *world, sbp_inputs *inputs, sbp_session *session,
                                  const sbp_outputs *outputs) {
    sbp_text rows;
    if (!session->train || session->check || !outputs->out || !inputs->data || inputs->stream.steps ||
        !sbp_world_writes(world) || sbp_options_on(world->options, SBP_OPT_DRY_RUN) ||
        sbp_options_int(world->options, SBP_OPT_SHOW) == 0)
        return SBP_OK;
    sbp_text_init(&rows, world->arena);
    SBP_TRY(sbp_run_show_rows(world, inputs, session, SBP_SHOW_HTML, &rows));
    session->rows = rows.data;
    return SBP_OK;
}

static sbp_status load_data(sbp_world *world, sbp_inputs *inputs, sbp_session *session,
                            const sbp_outputs *outputs) {
    SBP_TRY(sbp_run_check_plan(world, session, outputs));
    SBP_TRY(sbp_plan_set_defaults(world->diag, &session->info, world->options, world->arena));
    SBP_TRY(choose_merge(world, session, outputs));
    SBP_TRY(sbp_run_find_carried(world, session, outputs));
    SBP_TRY(load_rows(world, inputs, session));
    SBP_TRY(sbp_run_read_reference(world, inputs, session));
    sbp_sampler_close(&inputs->sampler);
    SBP_TRY(sbp_run_plan_inner(world, session));
    if (inputs->data)
        SBP_TRY(sbp_run_plan_steps(world, inputs, session));
    if (inputs->data)
        SBP_TRY(sbp_run_check_mismatched(world, inputs, session));
    SBP_TRY(sbp_run_plan_best(world, inputs, session, outputs));
    if (sbp_options_on(world->options, SBP_OPT_DRY_RUN) && inputs->stream.steps)
        return sbp_fail(world->diag, SBP_USAGE,
                        "--dry-run needs rows from files: rows of a stream are not known before they arrive");
    return keep_shown_rows(world, inputs, session, outputs);
}

/* SBP_USAGE when the plan is for another number of ranks. */
static sbp_status check_count(const sbp_world *world, const sbp_session *session, int32_t count) {
    int64_t planned = session->info.ranks > 1 ? session->info.ranks : 1;
    const char *of = session->model ? session->model : session->plan_path;
    if (planned == count)
        return SBP_OK;
    if (count == 1)
        return sbp_fail(
            world->diag, SBP_USAGE,
            "'%s' was compiled for %lld ranks, this is one: start it with --ranks %lld (on this host) "
            "or mpirun -n %lld, or compile it with --ranks 1",
            of, (long long)planned, (long long)planned, (long long)planned);
    return sbp_fail(world->diag, SBP_USAGE,
                    "'%s' was compiled for %lld rank%s, this run has %d: compile it with --ranks %d", of,
                    (long long)planned, planned == 1 ? "" : "s", (int)count, (int)count);
}

static uint64_t hash_data(const sbp_inputs *inputs) {
    uint64_t hash = inputs->data ? inputs->data->hash : 0;
    for (int32_t i = 0; i < inputs->eval_count; i++)
        hash = sbp_hash_bytes(&inputs->evals[i]->hash, sizeof hash, hash);
    return hash;
}

static sbp_status run_dry(const sbp_world *world, sbp_inputs *inputs, const sbp_session *session,
                          const sbp_outputs *outputs) {
    SBP_TRY(sbp_run_print_dry(world, inputs, session));
    return sbp_run_check_start(world, session, outputs);
}

/* launch: ranks that are to be started and that run this in place of this process, 0: none. */
static sbp_status run_all(sbp_world *world, sbp_inputs *inputs, sbp_session *session, sbp_outputs *outputs,
                          int32_t *launch) {
    bool done;
    SBP_TRY(sbp_world_agree(world, read_arguments(world, session, outputs, &done)));
    if (done)
        return SBP_OK;
    SBP_TRY(sbp_world_agree(world, sbp_world_count_ranks(world, outputs->out, launch)));
    if (session->check &&
        (*launch > 0 || world->place.count > 1 || (session->plan && session->info.ranks > 1)))
        return sbp_fail(
            world->diag, SBP_MACHINE,
            "what several ranks do together is not checked: check a plan of one rank (--ranks 1)");
    if (*launch > 0)
        return session->plan ? check_count(world, session, *launch) : SBP_OK;
    bool dry = sbp_options_on(world->options, SBP_OPT_DRY_RUN);
    sbp_world_say(world);
    SBP_TRY(sbp_run_open_out(world, session, outputs, dry ? SBP_RUNDIR_LOOK : SBP_RUNDIR_EXISTS));
    SBP_TRY(sbp_world_agree(world, complete_options(world, session, outputs)));
    if (sbp_rl_is_asked_for(world->options))
        SBP_TRY(sbp_rl_open(world, session, inputs));
    if (sbp_samples_are_asked_for(world->options))
        SBP_TRY(sbp_samples_open(world, session, inputs));
    if (session->model)
        SBP_TRY(make_plan(world, inputs, session, outputs));
    SBP_TRY(sbp_world_agree(world, check_count(world, session, world->place.count)));
    SBP_TRY(sbp_world_agree(world, load_data(world, inputs, session, outputs)));
    SBP_TRY(sbp_world_same(world, "other data", hash_data(inputs)));
    if (dry)
        return sbp_world_alone(world,
                               sbp_world_writes(world) ? run_dry(world, inputs, session, outputs) : SBP_OK);
    if (session->check)
        return sbp_run_on_device(world, inputs, session, outputs);
    SBP_TRY(sbp_run_open_out(world, session, outputs, SBP_RUNDIR_CREATE));
    SBP_TRY(sbp_world_agree(world, sbp_run_open_publish(world, session, outputs)));
    SBP_TRY(sbp_world_alone(world, sbp_world_writes(world) ? sbp_run_check_before(world, session) : SBP_OK));
    SBP_TRY(sbp_run_on_device(world, inputs, session, outputs));
    return sbp_run_push(world, outputs);
}

/* All of a run. */
typedef struct run_job {
    sbp_world world;
    sbp_inputs inputs;
    sbp_session session;
    sbp_outputs outputs;
    int32_t launch;
    bool input; /* it reads standard input */
} run_job;

static sbp_status run_body(void *user) {
    run_job *job = user;
    SBP_TRY(sbp_options_begin_command(job->world.arena, job->world.diag, &job->world.argc, &job->world.argv));
    SBP_TRY(sbp_world_join(&job->world));
    SBP_TRY(run_all(&job->world, &job->inputs, &job->session, &job->outputs, &job->launch));
    job->input =
        reads_stdin(&job->world) && !isatty(STDIN_FILENO); /* which it must not read in the background */
    return SBP_OK;
}

static sbp_status run_command(sbp_diag *diag, int argc, char *const *argv, bool check) {
    run_job job = {.world = {.arena = sbp_arena_create(), .diag = diag, .argc = argc, .argv = argv},
                   .session = {.check = check},
                   .outputs = sbp_outputs_begin()};
    if (!job.world.arena)
        return sbp_fail(diag, SBP_MACHINE, "out of memory for the options");
    sbp_status status = sbp_guard(job.world.arena, diag, run_body, &job);
    sbp_progress_break();
    sbp_world_prepare_to_leave(&job.world, status, job.session.temporary_plan);
    sbp_session_close(&job.session);
    sbp_world_close_device(&job.world);
    sbp_inputs_close(&job.inputs);
    sbp_outputs_close(&job.outputs);
    sbp_world_leave(&job.world, status);
    return status == SBP_OK && job.launch > 0 ? sbp_launch(diag, job.launch, job.input, argc, argv) : status;
}

sbp_status sbp_command_run(sbp_diag *diag, int argc, char *const *argv) {
    return run_command(diag, argc, argv, false);
}

sbp_status sbp_command_check(sbp_diag *diag, int argc, char *const *argv) {
    return run_command(diag, argc, argv, true);
}
