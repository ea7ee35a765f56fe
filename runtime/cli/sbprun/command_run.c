/* command_run.c: `sbprun PLAN --data ...` and `sbprun MODEL --data ...`. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "backends/backends.h"
#include "backends/choice.h"
#include "frontends/files/hub.h"
#include "ir/base/machine.h"
#include "ir/program/plan_file.h"
#include "runtime/cli/sbprun/child.h"
#include "runtime/cli/sbprun/commands.h"
#include "runtime/cli/sbprun/launcher.h"
#include "runtime/cli/sbprun/run.h"
#include "runtime/run/devices.h"
#include "runtime/train/shadow.h"

/* Rows of a micro-batch when neither the user nor a long document asks for more. */
enum { USUAL_ROWS = 4096 };

/* ---- models ----------------------------------------------------------------------------------------- */

/* Tokens of the longest step, as far as one micro-batch should take it: usual rows, or a longer document. */
static int64_t find_seq_len(sbp_run *run, int64_t usual) {
    int64_t most = 0;
    for (int64_t step = 0; step < run->steps_per_epoch; step++) {
        int64_t count, tokens = 0;
        const int64_t *rows = sbp_sampler_next(&run->sampler, &count);
        for (int64_t r = 0; r < count; r++)
            tokens += sbp_dataset_row_tokens(run->data, rows[r]);
        most = tokens > most ? tokens : most;
    }
    sbp_sampler_seek(&run->sampler, 0, 0);
    most = most < usual ? most : usual;
    return run->data->longest > most ? run->data->longest : most;
}

/* Whether what is no plan begins as a model does: a directory with config.json, a GGUF file, or JSON, before
 * which lines may be comments. sbpc finds out the rest; this comes before the data are read. */
static sbp_status check_model(const sbp_run *run) {
    char head[4096] = "";
    if (sbp_file_exists(sbp_file_join(run->arena, run->model, "config.json")) ||
        sbp_file_exists(sbp_file_join(run->arena, run->model, "adapter_config.json")))
        return SBP_OK;
    bool directory = sbp_directory_exists(run->model);
    if (!directory) {
        int fd;
        SBP_TRY(sbp_file_open_regular(run->diag, run->model, &fd));
        ssize_t got = read(fd, head, sizeof head - 1);
        close(fd);
        if (got < 0)
            return sbp_fail(run->diag, SBP_IO, "cannot read '%s': %s", run->model, strerror(errno));
    }
    const char *begin = head + strspn(head, " \t\r\n");
    if (strncmp(begin, "GGUF", 4) == 0 || *begin == '{' || *begin == '/')
        return SBP_OK;
    return sbp_fail(run->diag, SBP_INPUT,
                    "'%s' %s: a plan.bin, a Hugging Face model directory, a model.json or a .gguf file is "
                    "expected",
                    run->model, directory ? "has no config.json" : "is neither a plan nor a model");
}

/* "organisation/name" is most likely meant for the Hub. */
static sbp_status no_such_model(sbp_run *run, const char *path, const char *reason) {
    if (!sbp_hub_is_id(path))
        return sbp_fail(run->diag, SBP_IO, "cannot read '%s': %s", path, reason);
    const char *cached = sbp_hub_find(run->arena, path), *name = strchr(path, '/') + 1;
    if (cached)
        return sbp_fail(run->diag, SBP_IO,
                        "cannot read '%s': %s; the Hugging Face cache has it: sbprun %s ...", path, reason,
                        cached);
    return sbp_fail(
        run->diag, SBP_IO,
        "cannot read '%s': %s. Nothing is downloaded here: hf download %s --local-dir %s, then sbprun "
        "%s ...",
        path, reason, path, name, name);
}

/* Sizes that the data decide; the data stay. */
static sbp_status measure_data(sbp_run *run, int64_t *seq_len) {
    if (sbp_options_is(run->options, SBP_OPT_PACKING, "bfd"))
        return sbp_fail(
            run->diag, SBP_USAGE,
            "--packing bfd needs --seq-len N: the length of packed rows (max_length of TRL, 1024 there)");
    if (!sbp_options_is(run->options, SBP_OPT_OVERLONG, "error"))
        return sbp_fail(run->diag, SBP_USAGE,
                        "--overlong %s needs --seq-len, else the longest document decides",
                        sbp_options_text(run->options, SBP_OPT_OVERLONG));
    SBP_TRY(sbp_run_load_raw(run));
    SBP_TRY(sbp_run_plan_steps(run));
    *seq_len =
        find_seq_len(run, sbp_options_is(run->options, SBP_OPT_SEQ_LEN, "max") ? INT64_MAX : USUAL_ROWS);
    return SBP_OK;
}

/* A name for the plan until the run begins: in --out, else where temporary files are. */
static sbp_status choose_plan_path(sbp_run *run) {
    if (sbp_options_given(run->options, SBP_OPT_OUTPUT))
        return sbp_fail(run->diag, SBP_USAGE,
                        "--output is an option of sbpc compile; the plan goes to --out DIR");
    const char *tmp = getenv("TMPDIR");
    bool stays = run->out && !sbp_options_on(run->options, SBP_OPT_DRY_RUN);
    if (stays) { /* as sbp_file_is_temporary knows it, so that it goes when this process is killed */
        SBP_TRY(sbp_run_create_out(run));
        run->plan_path = run->temporary_plan =
            sbp_arena_printf(run->arena, "%s/plan.bin.%ld.0.tmp", run->out, (long)getpid());
        return SBP_OK;
    }
    char *path = sbp_arena_printf(run->arena, "%s/sbprun-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    int fd = mkstemp(path);
    if (fd < 0)
        return sbp_fail(run->diag, SBP_IO, "cannot create '%s': %s", path, strerror(errno));
    close(fd);
    run->temporary_plan = path;
    run->plan_path = path;
    return SBP_OK;
}

/* What the plan is for, and what it may take there. */
static sbp_status choose_backend(sbp_run *run, sbp_choice *out) {
    const sbp_choice_wish wish = {.backend = sbp_options_text(run->options, SBP_OPT_BACKEND),
                                  .device = (int32_t)sbp_options_int(run->options, SBP_OPT_DEVICE),
                                  .fp64 = sbp_options_is(run->options, SBP_OPT_DTYPE, "fp64")};
    SBP_TRY(sbp_choice_find(&wish, run->diag, out));
    if (strcmp(wish.backend, "auto") == 0)
        sbp_note(run->diag, "backend %s: %s", out->backend, out->reason);
    return SBP_OK;
}

static void push(sbp_run *run, const char ***args, int32_t *count, int32_t *capacity, const char *text) {
    SBP_PUSH(run->arena, *args, *count, *capacity, text);
}

/* --memory in MiB where it was not given; 0: it was, or nothing is known. The rest is for the system. */
static int64_t chosen_memory(const sbp_run *run, const sbp_choice *choice) {
    return sbp_options_given(run->options, SBP_OPT_MEMORY) ? 0 : choice->memory_bytes / 100 * 95 >> 20;
}

/* Where --memory came from, which sbpc has just refused to plan in. */
static void explain_memory(const sbp_run *run, const sbp_choice *choice, const char *limit) {
    if (!sbp_backend_is_a(choice->backend, SBP_BACKEND_HOST))
        limit = "that of the device";
    sbp_note(run->diag, "--memory was not given: %lld MiB were chosen, 95 %% of what is free: %s",
             (long long)chosen_memory(run, choice), limit);
}

/* Nothing is trained or read: how that would be planned is of no use. */
static bool only_merges(const sbp_run *run) {
    return sbp_options_on(run->options, SBP_OPT_MERGE) && !run->train &&
           sbp_options_list_count(run->options, SBP_OPT_DATA) == 0 &&
           sbp_options_list_count(run->options, SBP_OPT_EVAL) == 0;
}

/* The command line of sbpc, NULL at the end. seq_len 0: the user gave it; beside --seq-len max: its bound. */
static const char **compile_args(sbp_run *run, const char *sbpc, const sbp_choice *choice, int64_t seq_len) {
    static const sbp_option_id terms[] = {
        SBP_OPT_ENTROPY_COEF}; /* numbers without which a plan lacks their term */
    const char **args = NULL, **given;
    int32_t count = 0, capacity = 0, given_count;
    push(run, &args, &count, &capacity, sbpc);
    push(run, &args, &count, &capacity, "compile");
    push(run, &args, &count, &capacity, run->model);
    push(run, &args, &count, &capacity, "-o");
    push(run, &args, &count, &capacity, run->plan_path);
    sbp_options_to_args(run->options, SBP_PHASE_COMPILE, SBP_PHASE_RUN, run->arena, &given, &given_count);
    for (int32_t i = 0; i < given_count; i++)
        push(run, &args, &count, &capacity, given[i]);
    for (int i = 0; i < SBP_COUNT(terms); i++) {
        char value[40];
        if (!sbp_options_given(run->options, terms[i]))
            continue;
        sbp_format_double(value, sizeof value, sbp_options_double(run->options, terms[i]));
        push(run, &args, &count, &capacity,
             sbp_arena_printf(run->arena, "--%s=%s", sbp_option_name(terms[i]), value));
    }
    if (seq_len > 0)
        push(run, &args, &count, &capacity,
             sbp_arena_printf(run->arena, "--seq-len%s=%lld",
                              sbp_options_given(run->options, SBP_OPT_SEQ_LEN) ? "-most" : "",
                              (long long)seq_len));
    if (!sbp_options_given(run->options, SBP_OPT_BACKEND))
        push(run, &args, &count, &capacity, sbp_arena_printf(run->arena, "--backend=%s", choice->backend));
    if (choice->arch[0] && !sbp_options_given(run->options, SBP_OPT_ARCH))
        push(run, &args, &count, &capacity, sbp_arena_printf(run->arena, "--arch=%s", choice->arch));
    if (chosen_memory(run, choice) > 0)
        push(run, &args, &count, &capacity,
             sbp_arena_printf(run->arena, "--memory=%lldMiB", (long long)chosen_memory(run, choice)));
    push(run, &args, &count, &capacity, sbp_arena_printf(run->arena, "--threads=%d", sbp_run_threads(run)));
    if (sbp_options_on(run->options, SBP_OPT_QUIET) || only_merges(run))
        push(run, &args, &count, &capacity, "--quiet");
    if (run->world.count > 1)
        push(run, &args, &count, &capacity,
             sbp_arena_printf(run->arena, "--ranks=%d", (int)run->world.count));
    if (run->world.count > 1 && !sbp_options_given(run->options, SBP_OPT_NODE))
        push(run, &args, &count, &capacity,
             sbp_arena_printf(run->arena, "--node=%d", (int)run->world.local_count));
    push(run, &args, &count, &capacity, NULL);
    return args;
}

static void print_command(sbp_run *run, const char *const *args) {
    sbp_text text;
    if (sbp_options_on(run->options, SBP_OPT_QUIET) || only_merges(run))
        return;
    sbp_text_init(&text, run->arena);
    sbp_child_print(&text, args);
    fprintf(stderr, "+ %s\n", text.data);
}

/* `sbprun MODEL ...` as it would be with the plan, where that stays. */
static sbp_status print_own_command(sbp_run *run) {
    const char *sbprun;
    if (!run->out || sbp_options_on(run->options, SBP_OPT_RESUME) ||
        sbp_options_on(run->options, SBP_OPT_DRY_RUN))
        return SBP_OK;
    const char **args = NULL, **given;
    int32_t count = 0, capacity = 0, given_count;
    SBP_TRY(sbp_child_find(run->arena, run->diag, "sbprun", &sbprun));
    push(run, &args, &count, &capacity, sbprun);
    push(run, &args, &count, &capacity, sbp_file_join(run->arena, run->out, "plan.bin"));
    sbp_options_to_args(run->options, SBP_PHASE_RUN, 0, run->arena, &given, &given_count);
    for (int32_t i = 0; i < given_count; i++)
        if (strncmp(given[i], "--config=", 9) != 0) /* all of it is here */
            push(run, &args, &count, &capacity, given[i]);
    push(run, &args, &count, &capacity, NULL);
    print_command(run, args);
    return SBP_OK;
}

static bool reads_stdin(const sbp_run *run) {
    return run->options && sbp_options_list_count(run->options, SBP_OPT_DATA) > 0 &&
           strcmp(sbp_options_list_at(run->options, SBP_OPT_DATA, 0), "-") == 0;
}

/* Whether the data say how long a micro-batch may be; with --seq-len max, how long it need not be. */
static bool is_measured(const sbp_run *run) {
    const sbp_options *o = run->options;
    if (sbp_options_list_count(o, SBP_OPT_DATA) == 0)
        return false;
    if (!sbp_options_given(o, SBP_OPT_SEQ_LEN))
        return true;
    return sbp_options_is(o, SBP_OPT_SEQ_LEN, "max") && !reads_stdin(run) &&
           sbp_options_is(o, SBP_OPT_OVERLONG, "error") && sbp_options_is(o, SBP_OPT_PACKING, "none");
}

/* By rank 0. */
static sbp_status compile_model(sbp_run *run) {
    const char *sbpc, *temporary;
    int64_t seq_len = 0;
    long pid = 0;
    char limit[100];
    sbp_choice choice;
    SBP_TRY(sbp_child_find(run->arena, run->diag, "sbpc", &sbpc));
    SBP_TRY(choose_backend(run, &choice));
    if (is_measured(run))
        SBP_TRY(measure_data(run, &seq_len));
    SBP_TRY(choose_plan_path(run));
    sbp_machine_memory_text(limit, sizeof limit);
    const char **args = compile_args(run, sbpc, &choice, seq_len);
    print_command(run, args);
    sbp_status status = sbp_child_run(run->diag, args, run->dir.lock, &pid);
    if (status == SBP_OK)
        return print_own_command(run);
    if (status == SBP_MACHINE && chosen_memory(run, &choice) > 0)
        explain_memory(run, &choice, limit);
    temporary = sbp_arena_printf(run->arena, "%s.%ld.0.tmp", run->plan_path, pid);
    if (sbp_file_is_temporary(temporary)) /* as sbp_file_out makes them; of a child that was ended */
        unlink(temporary);
    return status;
}

/* The plan of a model: that which the run has, or a new one. */
static sbp_status find_plan(sbp_run *run) {
    SBP_TRY(check_model(run));
    SBP_TRY(sbp_run_reuse_plan(run));
    return run->plan_path ? SBP_OK : compile_model(run);
}

static sbp_status open_plan(sbp_run *run) {
    if (run->model && !sbp_file_exists(run->plan_path))
        return sbp_fail(run->diag, SBP_IO,
                        "rank 0 compiled '%s', which is not there for this rank: give --out DIR on a file "
                        "system that all hosts share, or compile a plan before and copy it to all",
                        run->plan_path);
    run->plan_checksum = sbp_plan_file_checksum(run->plan_path);
    SBP_TRY(sbp_plan_open(run->arena, run->diag, run->plan_path, &run->plan));
    return sbp_plan_info_read(run->diag, run->plan, &run->info);
}

static sbp_status make_plan(sbp_run *run) {
    SBP_TRY(sbp_run_alone(run, find_plan));
    SBP_TRY(sbp_run_share_text(run, &run->plan_path));
    SBP_TRY(sbp_run_agree(run, open_plan(run)));
    return sbp_run_same(run, "another plan", run->plan_checksum);
}

/* ---- the command ------------------------------------------------------------------------------------ */

static sbp_status print_help(sbp_run *run) {
    sbp_text text;
    sbp_text_init(&text, run->arena);
    int32_t count = sbp_options_arg_count(run->options);
    const char *topic = count > 0 ? sbp_options_arg(run->options, count - 1) : NULL;
    if (topic && strcmp(topic, "rows") == 0)
        return sbp_print(run->diag, sbp_help_of_rows, strlen(sbp_help_of_rows));
    if (!topic || !sbp_options_is_topic(SBP_PHASE_RUN | SBP_PHASE_COMPILE, topic))
        sbp_text_add(&text, "%s", sbp_help_of_sbprun);
    sbp_options_print_topic(&text, SBP_PHASE_RUN, SBP_PHASE_RUN | SBP_PHASE_COMPILE, topic);
    return sbp_print(run->diag, text.data, text.length);
}

/* What needs neither plan nor data; *done when that was all. */
static sbp_status print_information(sbp_run *run, bool *done) {
    const sbp_options *o = run->options;
    sbp_text text;
    sbp_text_init(&text, run->arena);
    *done = true;
    if (!sbp_run_writes(run)) {
        *done = sbp_options_on(o, SBP_OPT_HELP) || sbp_options_on(o, SBP_OPT_VERSION) ||
                sbp_options_on(o, SBP_OPT_HELP_MARKDOWN) || sbp_options_on(o, SBP_OPT_DEVICES);
        return SBP_OK;
    }
    if (sbp_options_on(o, SBP_OPT_HELP))
        return print_help(run);
    if (sbp_options_on(o, SBP_OPT_VERSION))
        sbp_text_add(&text, "sbprun %s\n", SBP_VERSION);
    else if (sbp_options_on(o, SBP_OPT_HELP_MARKDOWN))
        sbp_options_print_markdown(&text);
    else if (sbp_options_on(o, SBP_OPT_DEVICES))
        SBP_TRY(sbp_devices_print(&text, sbp_options_on(o, SBP_OPT_JSON), run->diag));
    else
        *done = false;
    return *done ? sbp_print(run->diag, text.data, text.length) : SBP_OK;
}

static sbp_status check_arguments(const sbp_run *run) {
    const sbp_options *o = run->options;
    bool data = sbp_options_list_count(o, SBP_OPT_DATA) > 0;
    if (sbp_options_arg_count(o) != 1)
        return sbp_fail(
            run->diag, SBP_USAGE, "expected one plan or model, found %d arguments%s; see sbprun --help",
            sbp_options_arg_count(o),
            sbp_options_arg_count(o) > 1 && !data ? " (rows are given with --data FILE.jsonl)" : "");
    if (!sbp_options_on(o, SBP_OPT_RESUME))
        return SBP_OK;
    if (sbp_options_is(o, SBP_OPT_OUT, "none"))
        return sbp_fail(run->diag, SBP_USAGE, "--resume needs --out DIR, where the checkpoints are");
    if (sbp_options_on(o, SBP_OPT_OVERWRITE))
        return sbp_fail(run->diag, SBP_USAGE, "--resume and --overwrite: give one of them");
    return SBP_OK;
}

/* Of several ranks one has it, and passes it on where it is all of the data. */
static sbp_status check_stdin(const sbp_run *run) {
    if (run->world.count > 1 && run->model && reads_stdin(run) &&
        !sbp_options_given(run->options, SBP_OPT_SEQ_LEN))
        return sbp_fail(run->diag, SBP_USAGE,
                        "--data - with several ranks needs --seq-len N, the most tokens of a micro-batch: "
                        "rows of a stream cannot be measured before");
    static const sbp_option_id lists[] = {SBP_OPT_DATA, SBP_OPT_EVAL};
    for (int k = 0; k < SBP_COUNT(lists) && run->world.count > 1; k++)
        for (int32_t i = 0, count = sbp_options_list_count(run->options, lists[k]); i < count; i++)
            if (strcmp(sbp_options_list_at(run->options, lists[k], i), "-") == 0 && (k > 0 || count > 1))
                return sbp_fail(run->diag, SBP_USAGE,
                                "--%s -: with several ranks, standard input must be the only --data",
                                sbp_option_name(lists[k]));
    return SBP_OK;
}

static sbp_status check_usage(const sbp_run *run) {
    const sbp_options *o = run->options;
    bool data = sbp_options_list_count(o, SBP_OPT_DATA) > 0;
    if (!data && sbp_options_list_count(o, SBP_OPT_EVAL) == 0 && !sbp_options_on(o, SBP_OPT_MERGE))
        return sbp_fail(run->diag, SBP_USAGE, "--data FILE.jsonl is missing");
    static const sbp_option_id need_data[] = {SBP_OPT_SCORE, SBP_OPT_DUMP_GRADIENTS, SBP_OPT_DRY_RUN,
                                              SBP_OPT_STEPS};
    for (int i = 0; i < SBP_COUNT(need_data); i++)
        if (!data && sbp_options_given(o, need_data[i]))
            return sbp_fail(run->diag, SBP_USAGE, "--%s needs --data", sbp_option_name(need_data[i]));
    SBP_TRY(check_stdin(run));
    bool every = sbp_options_given(o, SBP_OPT_EVAL_EVERY) && sbp_options_list_count(o, SBP_OPT_EVAL) == 0;
    if (every && sbp_options_from_config(o, SBP_OPT_EVAL_EVERY))
        sbp_note(run->diag, "%s: eval_steps without --eval FILE: nothing is evaluated",
                 sbp_options_from_config(o, SBP_OPT_EVAL_EVERY));
    else if (every)
        return sbp_fail(run->diag, SBP_USAGE, "--eval-every needs --eval FILE");
    if (sbp_options_is(o, SBP_OPT_PACKING, "bfd") && sbp_options_given(o, SBP_OPT_SCORE))
        return sbp_fail(run->diag, SBP_USAGE,
                        "--score writes a line for each row of the data: leave out --packing bfd");
    return SBP_OK;
}

/* What templates see as today: once for a run, so that it can be told and resumed. */
static sbp_status choose_date(sbp_run *run) {
    char date[32] = "";
    time_t now = time(NULL);
    struct tm day;
    int year, month, number, end = 0;
    if (localtime_r(&now, &day))
        strftime(date, sizeof date, "%Y-%m-%d", &day);
    SBP_TRY(
        sbp_options_set_default(run->options, run->diag, SBP_OPT_DATE, sbp_arena_strdup(run->arena, date)));
    const char *text = sbp_options_text(run->options, SBP_OPT_DATE);
    if (sscanf(text, "%4d-%2d-%2d%n", &year, &month, &number, &end) == 3 && text[end] == '\0' && month >= 1 &&
        month <= 12 && number >= 1 && number <= 31)
        return SBP_OK;
    return sbp_fail(run->diag, SBP_USAGE, "--date: expected a day as 2026-03-01, found '%s'", text);
}

static sbp_status choose_merge(sbp_run *run) {
    run->info.merge = sbp_options_on(run->options, SBP_OPT_MERGE);
    if (run->info.merge && !run->info.meta.adapter)
        return sbp_fail(run->diag, SBP_USAGE, "--merge: '%s' has no adapter", run->plan_path);
    if (run->info.merge && !run->train && !run->out)
        return sbp_fail(run->diag, SBP_USAGE, "--merge needs --out DIR for the merged model");
    if (sbp_options_given(run->options, SBP_OPT_MERGE_DTYPE)) {
        if (!run->info.merge)
            return sbp_fail(run->diag, SBP_USAGE,
                            "--merge-dtype needs --merge: an adapter is not written in it");
        run->info.merge_dtype = sbp_options_text(run->options, SBP_OPT_MERGE_DTYPE);
    }
    return SBP_OK;
}

/* As they are, or will be started. */
static int64_t ranks_of(const sbp_run *run) {
    return run->world.count > 1 ? run->world.count : sbp_options_int(run->options, SBP_OPT_RANKS);
}

/* Options, and what they name. *done: that was all. */
static sbp_status read_arguments(sbp_run *run, bool *done) {
    *done = false;
    SBP_TRY(sbp_options_parse(run->arena, run->diag, "sbprun", SBP_PHASE_RUN | SBP_PHASE_COMPILE, run->argc,
                              run->argv, &run->options));
    if (sbp_options_on(run->options, SBP_OPT_QUIET))
        sbp_diag_set_quiet(run->diag);
    SBP_TRY(sbp_options_settle_batch(run->options, run->diag, ranks_of(run)));
    SBP_TRY(print_information(run, done));
    if (*done)
        return SBP_OK;
    const sbp_options *o = run->options;
    SBP_TRY(check_arguments(run));
    const char *first = sbp_options_arg(o, 0);
    bool data = sbp_options_list_count(o, SBP_OPT_DATA) > 0 || sbp_options_on(o, SBP_OPT_RESUME);
    run->train = data && !sbp_options_given(o, SBP_OPT_DUMP_GRADIENTS) &&
                 (!sbp_options_given(o, SBP_OPT_SCORE) || sbp_options_given(o, SBP_OPT_STEPS));
    if (access(first, F_OK) != 0)
        return no_such_model(run, first, strerror(errno));
    bool is_plan = sbp_plan_file_probe(first);
    run->model = is_plan ? NULL : first;
    run->plan_path = is_plan ? first : NULL;
    if (is_plan) {
        SBP_TRY(open_plan(run));
        SBP_TRY(sbp_plan_check_options(run->diag, run->plan, run->options, run->arena));
    }
    return sbp_run_choose_out(run);
}

/* All other options: of the run that goes on, too. */
static sbp_status complete_options(sbp_run *run) {
    SBP_TRY(sbp_run_inherit(run));
    SBP_TRY(choose_date(run));
    SBP_TRY(check_usage(run));
    return sbp_run_check_results(run);
}

static sbp_status load_data(sbp_run *run) {
    SBP_TRY(sbp_run_check_plan(run));
    SBP_TRY(sbp_plan_set_defaults(run->diag, &run->info, run->options, run->arena));
    SBP_TRY(choose_merge(run));
    SBP_TRY(sbp_run_load_data(run));
    SBP_TRY(sbp_run_read_reference(run));
    sbp_sampler_close(&run->sampler);
    SBP_TRY(sbp_run_plan_inner(run));
    if (run->data)
        SBP_TRY(sbp_run_plan_steps(run));
    if (run->data)
        SBP_TRY(sbp_run_check_rotated(run));
    if (sbp_options_on(run->options, SBP_OPT_DRY_RUN) && run->stream.steps)
        return sbp_fail(run->diag, SBP_USAGE,
                        "--dry-run needs rows from files: rows of a stream are not known before they arrive");
    return SBP_OK;
}

static uint64_t hash_data(const sbp_run *run) {
    uint64_t hash = run->data ? run->data->hash : 0;
    for (int32_t i = 0; i < run->eval_count; i++)
        hash = sbp_hash_bytes(&run->evals[i]->hash, sizeof hash, hash);
    return hash;
}

static sbp_status run_dry(sbp_run *run) {
    SBP_TRY(sbp_run_print_dry(run));
    return sbp_run_check_start(run);
}

/* launch: ranks that are to be started and that run this in place of this process, 0: none. */
static sbp_status run_all(sbp_run *run, int32_t *launch) {
    bool done;
    SBP_TRY(sbp_run_agree(run, read_arguments(run, &done)));
    if (done)
        return SBP_OK;
    SBP_TRY(sbp_run_agree(run, sbp_run_count_ranks(run, launch)));
    if (*launch > 0)
        return run->plan ? sbp_run_check_count(run, *launch) : SBP_OK;
    bool dry = sbp_options_on(run->options, SBP_OPT_DRY_RUN);
    sbp_run_say_world(run);
    SBP_TRY(sbp_run_open_out(run, dry ? SBP_RUNDIR_LOOK : SBP_RUNDIR_EXISTS));
    SBP_TRY(sbp_run_agree(run, complete_options(run)));
    if (run->model)
        SBP_TRY(make_plan(run));
    SBP_TRY(sbp_run_agree(run, sbp_run_check_count(run, run->world.count)));
    SBP_TRY(sbp_run_agree(run, load_data(run)));
    SBP_TRY(sbp_run_same(run, "other data", hash_data(run)));
    if (dry)
        return sbp_run_alone(run, run_dry);
    SBP_TRY(sbp_run_open_out(run, SBP_RUNDIR_CREATE));
    SBP_TRY(sbp_run_agree(run, sbp_run_open_publish(run)));
    return sbp_run_on_device(run);
}

typedef struct run_job {
    sbp_run *run;
    int32_t launch;
    bool input; /* it reads standard input */
} run_job;

static sbp_status run_body(void *user) {
    run_job *job = user;
    SBP_TRY(sbp_run_join(job->run));
    SBP_TRY(run_all(job->run, &job->launch));
    job->input =
        reads_stdin(job->run) && !isatty(STDIN_FILENO); /* which it must not read in the background */
    return SBP_OK;
}

static void close_run(sbp_run *run) {
    if (run->metrics.file)
        fclose(run->metrics.file);
    sbp_trainer_close(&run->trainer);
    sbp_executor_destroy(run->executor);
    if (run->profile && sbp_run_writes(run))
        sbp_profile_print(run->profile, stderr);
    sbp_profile_destroy(run->profile);
    sbp_sampler_close(&run->sampler);
    sbp_dataset_destroy(run->data);
    sbp_run_close_stream(run);
    sbp_kept_release(&run->state);
    sbp_shadow_destroy(run->shadow);
    sbp_rundir_close(&run->published.dir);
    for (int32_t i = 0; i < run->eval_count; i++)
        sbp_dataset_destroy(run->evals[i]);
    if (run->temporary_plan)
        unlink(run->temporary_plan);
    sbp_rundir_close(&run->dir);
    sbp_arena_destroy(run->arena);
}

sbp_status sbp_command_run(sbp_diag *diag, int argc, char *const *argv) {
    sbp_run run = {.arena = sbp_arena_create(),
                   .diag = diag,
                   .argc = argc,
                   .argv = argv,
                   .dir = {.fd = -1, .lock = -1},
                   .published = {.dir = {.fd = -1, .lock = -1}, .before = -1, .latest = -1},
                   .eval_loss = NAN};
    run_job job = {.run = &run};
    if (!run.arena)
        return sbp_fail(diag, SBP_MACHINE, "out of memory");
    sbp_status status = sbp_guard(run.arena, diag, run_body, &job);
    sbp_progress_break();
    sbp_run_prepare_to_leave(&run, status);
    close_run(&run);
    sbp_run_leave(&run, status);
    return status == SBP_OK && job.launch > 0 ? sbp_launch(diag, job.launch, job.input, argc, argv) : status;
}
