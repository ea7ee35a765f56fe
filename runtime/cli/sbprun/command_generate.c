/* command_generate.c: `sbprun generate`: answers to prompts, with their log-probabilities. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backends/choice.h"
#include "frontends/formats/files/hub_fetch.h"
#include "ir/base/args.h"
#include "ir/base/json_write.h"
#include "ir/base/machine.h"
#include "ir/program/plan_file.h"
#include "runtime/cli/sbprun/child.h"
#include "runtime/cli/sbprun/commands.h"
#include "runtime/cli/sbprun/interrupt.h"
#include "runtime/cli/sbprun/outputs.h"
#include "runtime/cli/sbprun/prompts.h"
#include "runtime/generate/generator.h"
#include "runtime/generate/sampling.h"
#include "runtime/generate/stopping.h"

static const char usage[] =
    "usage: sbprun generate MODEL|PLAN --prompt TEXT | --data FILE [options]\n\n"
    "Writes a line of JSON for each answer: row, sample, text, ids, logps (of the model's own "
    "distribution),\n"
    "processed_logps (of what was drawn from, after temperature, top-k, top-p and min-p), finish_reason. "
    "Rows\n"
    "of --data may have \"prompt\", \"messages\", \"text\" or their ids; conversations are rendered by the "
    "chat\n"
    "template. MODEL is compiled first, with options of sbpc compile (--backend, --dtype ..); a PLAN is one "
    "of\n"
    "sbpc compile --for generate. For example:\n\n"
    "  sbprun generate out --prompt 'Once upon a time' --max-new-tokens 100 --temperature 0.8\n\n";

typedef struct generate_job {
    sbp_world world;
    sbp_session session;
    sbp_outputs outputs;
    sbp_texts texts;
    sbp_prompts prompts;
    sbp_sampling sampling;
    sbp_stopping stopping;
    sbp_generator *generator;
    sbp_token_sampler *sampler;
} generate_job;

/* ---- the plan ---------------------------------------------------------------------------------------- */

/* The command line of sbpc for a plan of `rows`. */
static sbp_status compile_args(const generate_job *job, const char *sbpc, int64_t rows, const char ***out) {
    const sbp_world *world = &job->world;
    const char **given;
    int32_t given_count;
    sbp_args args = sbp_args_on(world->arena);
    sbp_args_add(&args, sbpc);
    sbp_args_add(&args, "compile");
    SBP_TRY(sbp_args_operand(&args, world->diag, "MODEL", job->session.model));
    sbp_args_add(&args, "-o");
    sbp_args_add(&args, job->session.plan_path);
    sbp_args_add(&args, "--for=generate");
    sbp_options_to_args(world->options, SBP_PHASE_COMPILE, SBP_PHASE_GENERATE, world->arena, &given,
                        &given_count);
    sbp_options_spell(world->arena, given, &given_count);
    for (int32_t i = 0; i < given_count; i++)
        sbp_args_add(&args, given[i]);
    if (!sbp_options_given(world->options, SBP_OPT_SEQ_LEN))
        sbp_args_add(&args, sbp_arena_printf(world->arena, "--seq-len=%lld", (long long)rows));
    sbp_args_add(&args, sbp_arena_printf(world->arena, "--threads=%d", sbp_world_threads(world)));
    sbp_args_add(&args, sbp_options_on(world->options, SBP_OPT_QUIET) ? "--quiet" : "--summary=short");
    *out = sbp_args_end(&args);
    return SBP_OK;
}

static sbp_status compile_model(generate_job *job) {
    const sbp_world *world = &job->world;
    const char *sbpc, **args, *tmp = getenv("TMPDIR");
    long pid;
    SBP_TRY(sbp_child_find(world->arena, world->diag, "sbpc", &sbpc));
    char *path = sbp_arena_printf(world->arena, "%s/sbprun-XXXXXX.0.0.tmp", tmp && *tmp ? tmp : "/tmp");
    int fd = mkstemps(path, (int)strlen(".0.0.tmp"));
    if (fd < 0)
        return sbp_fail(world->diag, SBP_IO, "cannot create '%s'", path);
    close(fd);
    job->session.temporary_plan = path;
    job->session.plan_path = path;
    int64_t rows = job->prompts.longest + sbp_options_int(world->options, SBP_OPT_MAX_NEW_TOKENS);
    SBP_TRY(compile_args(job, sbpc, rows, &args));
    return sbp_child_run(world->diag, args, -1, &pid);
}

static sbp_status open_plan(generate_job *job) {
    const sbp_world *world = &job->world;
    sbp_session *s = &job->session;
    SBP_TRY(sbp_plan_open(world->arena, world->diag, s->plan_path, &s->plan));
    SBP_TRY(sbp_plan_info_read(world->diag, s->plan, &s->info));
    if (!s->model)
        SBP_TRY(sbp_plan_check_options(world->diag, s->plan, world->options, world->arena));
    if (!sbp_program_entry(s->plan->program, SBP_ENTRY_GENERATE))
        return sbp_fail(
            world->diag, SBP_USAGE,
            "'%s' is a plan that trains: give the model, or a plan of sbpc compile --for generate",
            s->plan_path);
    if (s->info.ranks > 1)
        return sbp_fail(world->diag, SBP_USAGE, "'%s' is for %lld ranks: generating takes one", s->plan_path,
                        (long long)s->info.ranks);
    return SBP_OK;
}

/* ---- what ends an answer ----------------------------------------------------------------------------- */

static void add_end_id(generate_job *job, int64_t id) {
    int32_t *ids = SBP_NEW_ARRAY(job->world.arena, int32_t, job->stopping.end_id_count + 1);
    for (int32_t i = 0; i < job->stopping.end_id_count; i++) {
        ids[i] = job->stopping.end_ids[i];
        if (ids[i] == id)
            return;
    }
    if (id < 0 || id > INT32_MAX)
        return;
    ids[job->stopping.end_id_count++] = (int32_t)id;
    job->stopping.end_ids = ids;
}

/* A number or a list of them. */
static void add_end_ids(generate_job *job, const sbp_json *node) {
    if (node && node->kind == SBP_JSON_INT)
        add_end_id(job, node->integer);
    for (int64_t i = 0; node && node->kind == SBP_JSON_ARRAY && i < node->count; i++)
        if (node->items[i].kind == SBP_JSON_INT)
            add_end_id(job, node->items[i].integer);
}

/* --eos-token alone; else generation_config.json, config.json and the tokenizer together. */
static sbp_status find_stopping(generate_job *job) {
    const sbp_world *world = &job->world;
    const sbp_options *o = world->options;
    job->stopping.most_tokens = sbp_options_int(o, SBP_OPT_MAX_NEW_TOKENS);
    job->stopping.strings = sbp_options_list(o, world->arena, SBP_OPT_STOP, &job->stopping.string_count);
    const sbp_tokenizer *tokenizer = job->texts.tokenizer;
    if (!tokenizer && (job->stopping.string_count > 0 || sbp_options_given(o, SBP_OPT_EOS_TOKEN)))
        return sbp_fail(world->diag, SBP_USAGE, "--stop and --eos-token need the model's tokenizer");
    const char *eos = job->texts.chat.eos ? job->texts.chat.eos : tokenizer ? sbp_eos_text(tokenizer) : NULL;
    if (eos)
        add_end_id(job, sbp_tokenizer_id(tokenizer, eos, strlen(eos)));
    if (job->texts.chat.eos)
        return SBP_OK;
    add_end_ids(job, job->session.info.meta.eos_ids);
    const char *model = job->session.info.meta.tokenizer;
    const char *path = model && sbp_directory_exists(model)
                           ? sbp_file_join(world->arena, model, "generation_config.json")
                           : NULL;
    const sbp_json *root;
    if (path && sbp_file_exists(path)) {
        SBP_TRY(sbp_json_read(world->arena, world->diag, path, SBP_JSON_PYTHON, &root));
        add_end_ids(job, sbp_json_member(root, "eos_token_id"));
    }
    return SBP_OK;
}

/* ---- answers ----------------------------------------------------------------------------------------- */

typedef struct answer {
    sbp_arena *arena; /* of this one */
    sbp_text text;
    int32_t *ids;
    double *logps, *processed;
    int64_t count;
    sbp_finish finish;
} answer;

static sbp_status print_answer(const generate_job *job, const answer *a, int64_t prompt, int64_t sample) {
    sbp_text line;
    sbp_text_init(&line, a->arena);
    sbp_json_writer w = sbp_json_writer_on(&line);
    sbp_json_write_object(&w, NULL);
    sbp_json_write_int(&w, "row", prompt);
    sbp_json_write_int(&w, "sample", sample);
    if (job->texts.tokenizer)
        sbp_json_write_bytes(&w, "text", a->text.data, a->text.length);
    else
        sbp_json_write_null(&w, "text");
    sbp_json_write_array(&w, "ids");
    for (int64_t i = 0; i < a->count; i++)
        sbp_json_write_int(&w, NULL, a->ids[i]);
    sbp_json_write_end(&w);
    sbp_json_write_array(&w, "logps");
    for (int64_t i = 0; i < a->count; i++)
        sbp_json_write_double(&w, NULL, a->logps[i]);
    sbp_json_write_end(&w);
    sbp_json_write_array(&w, "processed_logps");
    for (int64_t i = 0; i < a->count; i++)
        sbp_json_write_double(&w, NULL, a->processed[i]);
    sbp_json_write_end(&w);
    sbp_json_write_string(&w, "finish_reason", sbp_finish_name(a->finish));
    sbp_json_write_int(&w, "prompt_tokens", job->prompts.items[prompt].count);
    sbp_json_write_end(&w);
    sbp_text_add(&line, "\n");
    SBP_TRY(sbp_print(job->world.diag, line.data, line.length));
    return fflush(stdout) == 0 ? SBP_OK
                               : sbp_fail(job->world.diag, SBP_IO, "cannot write to standard output");
}

/* By ids alone, where there is no tokenizer. */
static sbp_finish finish_by_ids(const generate_job *job, const answer *a) {
    for (int32_t i = 0; i < job->stopping.end_id_count; i++)
        if (a->ids[a->count - 1] == job->stopping.end_ids[i])
            return SBP_FINISH_STOP;
    return a->count == job->stopping.most_tokens ? SBP_FINISH_LENGTH : SBP_FINISH_NOT;
}

/* One token: drawn, scored, written down; *done: the answer ends with it. */
static sbp_status take_token(generate_job *job, sbp_text_stream *stream, answer *a, int64_t prompt,
                             int64_t sample, bool *done) {
    sbp_diag *diag = job->world.diag;
    sbp_sampled drawn;
    sbp_text_piece piece;
    double uniform = sbp_sampling_uniform((uint64_t)sbp_options_int(job->world.options, SBP_OPT_SEED),
                                          (uint64_t)prompt, (uint64_t)sample, (uint64_t)a->count);
    SBP_TRY(sbp_token_sampler_draw(job->sampler, diag, &job->sampling, sbp_generator_logits(job->generator),
                                   sbp_generator_vocabulary(job->generator), uniform, &drawn));
    SBP_TRY(sbp_generator_score(job->generator, diag, (int32_t)drawn.token, &a->logps[a->count]));
    a->processed[a->count] = drawn.processed_logp;
    a->ids[a->count++] = (int32_t)drawn.token;
    if (stream) {
        SBP_TRY(sbp_text_stream_push(stream, diag, (int32_t)drawn.token, &piece));
        sbp_text_add_n(&a->text, piece.text, piece.length);
    }
    a->finish = stream ? piece.finish : finish_by_ids(job, a);
    *done = a->finish != SBP_FINISH_NOT;
    return SBP_OK;
}

static sbp_status make_answer(generate_job *job, answer *a, int64_t prompt, int64_t sample) {
    sbp_diag *diag = job->world.diag;
    sbp_text_stream *stream = NULL;
    const int64_t most = job->stopping.most_tokens;
    a->ids = SBP_NEW_ARRAY(a->arena, int32_t, most);
    a->logps = SBP_NEW_ARRAY(a->arena, double, most);
    a->processed = SBP_NEW_ARRAY(a->arena, double, most);
    sbp_text_init(&a->text, a->arena);
    SBP_TRY(sbp_generator_rewind(job->generator, diag));
    if (job->texts.tokenizer)
        SBP_TRY(sbp_text_stream_create(job->texts.tokenizer, diag, &job->stopping, &stream));
    sbp_status status = SBP_OK;
    for (bool done = false; status == SBP_OK && !done;) {
        status = take_token(job, stream, a, prompt, sample, &done);
        if (status == SBP_OK && !done)
            status = sbp_generator_append(job->generator, diag, a->ids[a->count - 1]);
        if (status == SBP_OK && sbp_interrupted())
            status = SBP_INTERRUPTED;
    }
    sbp_text_stream_destroy(stream);
    return status == SBP_OK ? print_answer(job, a, prompt, sample) : status;
}

typedef struct answer_job {
    generate_job *all;
    answer answer;
    int64_t prompt, sample;
} answer_job;

static sbp_status answer_body(void *user) {
    answer_job *job = user;
    return make_answer(job->all, &job->answer, job->prompt, job->sample);
}

static sbp_status answer_prompt(generate_job *job, int64_t prompt) {
    const sbp_prompt *p = &job->prompts.items[prompt];
    sbp_diag *diag = job->world.diag;
    if (p->count + job->stopping.most_tokens > sbp_generator_most_rows(job->generator) + 1)
        return sbp_fail(diag, SBP_INPUT,
                        "%s: %lld tokens and %lld new ones: the plan takes %lld; compile it with --seq-len "
                        "%lld, or lower --max-new-tokens",
                        p->where, (long long)p->count, (long long)job->stopping.most_tokens,
                        (long long)sbp_generator_most_rows(job->generator),
                        (long long)(p->count + job->stopping.most_tokens));
    SBP_TRY(sbp_generator_begin(job->generator, diag, p->ids, p->count));
    for (int64_t s = 0; s < sbp_options_int(job->world.options, SBP_OPT_ANSWERS); s++) {
        answer_job one = {.all = job, .prompt = prompt, .sample = s};
        one.answer.arena = sbp_arena_create();
        if (!one.answer.arena)
            return sbp_fail(diag, SBP_MACHINE, "out of memory for an answer");
        sbp_status status = sbp_guard(one.answer.arena, diag, answer_body, &one);
        sbp_arena_destroy(one.answer.arena);
        SBP_TRY(status);
    }
    return SBP_OK;
}

/* ---- the command ------------------------------------------------------------------------------------- */

static sbp_status open_model(generate_job *job) {
    sbp_world *world = &job->world;
    const char *model;
    SBP_TRY(sbp_hub_model(world->arena, world->diag, sbp_options_arg(world->options, 0), true, &model));
    bool is_plan = sbp_plan_file_probe(model);
    job->session.model = is_plan ? NULL : model;
    job->session.plan_path = is_plan ? model : NULL;
    SBP_TRY(sbp_texts_open(world->arena, world->diag, world->options, model, true, &job->texts));
    SBP_TRY(sbp_prompts_read(world->arena, world->diag, world->options, &job->texts, &job->prompts));
    if (!is_plan)
        SBP_TRY(compile_model(job));
    SBP_TRY(open_plan(job));
    return sbp_plan_set_defaults(world->diag, &job->session.info, world->options, world->arena);
}

static sbp_status generate_body(void *user) {
    generate_job *job = user;
    sbp_world *world = &job->world;
    SBP_TRY(sbp_options_parse(world->arena, world->diag, "sbprun generate",
                              SBP_PHASE_GENERATE | SBP_PHASE_COMPILE, world->argc, world->argv,
                              &world->options));
    const sbp_options *o = world->options;
    if (sbp_options_on(o, SBP_OPT_HELP)) {
        sbp_text text;
        sbp_text_init(&text, world->arena);
        sbp_text_add(&text, "%s", usage);
        sbp_options_print_help(&text, SBP_PHASE_GENERATE);
        return sbp_print(world->diag, text.data, text.length);
    }
    sbp_options_set_environment(world->options);
    if (sbp_options_on(o, SBP_OPT_QUIET))
        sbp_diag_set_quiet(world->diag);
    if (sbp_options_arg_count(o) != 1)
        return sbp_fail(world->diag, SBP_USAGE,
                        "expected one model or plan, found %d arguments; see sbprun generate --help",
                        sbp_options_arg_count(o));
    SBP_TRY(sbp_world_join(world));
    job->sampling = (sbp_sampling){.temperature = sbp_options_given(o, SBP_OPT_TEMPERATURE)
                                                      ? sbp_options_double(o, SBP_OPT_TEMPERATURE)
                                                      : 1,
                                   .top_k = sbp_options_int(o, SBP_OPT_TOP_K),
                                   .top_p = sbp_options_double(o, SBP_OPT_TOP_P),
                                   .min_p = sbp_options_double(o, SBP_OPT_MIN_P)};
    SBP_TRY(sbp_sampling_check(world->diag, &job->sampling));
    SBP_TRY(open_model(job));
    SBP_TRY(find_stopping(job));
    SBP_TRY(sbp_run_open_device(world, &job->session, &job->outputs));
    SBP_TRY(sbp_run_load_weights(world, &job->session));
    SBP_TRY(sbp_generator_create(world->diag, world->executor, &job->generator));
    SBP_TRY(sbp_token_sampler_create(world->diag, sbp_generator_vocabulary(job->generator), &job->sampler));
    for (int64_t p = 0; p < job->prompts.count; p++)
        SBP_TRY(answer_prompt(job, p));
    return SBP_OK;
}

sbp_status sbp_command_generate(sbp_diag *diag, int argc, char *const *argv) {
    generate_job job = {.world = {.arena = sbp_arena_create(), .diag = diag, .argc = argc, .argv = argv},
                        .outputs = sbp_outputs_begin()};
    if (!job.world.arena)
        return sbp_fail(diag, SBP_MACHINE, "out of memory for the options");
    sbp_status status = sbp_guard(job.world.arena, diag, generate_body, &job);
    sbp_generator_destroy(job.generator);
    sbp_token_sampler_destroy(job.sampler);
    sbp_session_close(&job.session);
    sbp_world_close_device(&job.world);
    sbp_outputs_close(&job.outputs);
    sbp_world_leave(&job.world, status);
    return status;
}
