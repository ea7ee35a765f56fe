/* command_generate.c: `sbprun generate`: answers to prompts, with their log-probabilities. */
#include <stdio.h>

#include "ir/base/json_write.h"
#include "runtime/cli/sbprun/answering.h"
#include "runtime/cli/sbprun/commands.h"
#include "runtime/cli/sbprun/interrupt.h"
#include "runtime/cli/sbprun/prompts.h"

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
    sbp_answering a;
    sbp_prompts prompts;
} generate_job;

/* ---- answers ----------------------------------------------------------------------------------------- */

typedef struct answer {
    sbp_arena *arena; /* of this one */
    sbp_text text;
    int32_t *ids;
    double *logps, *processed;
    int64_t count;
    sbp_finish finish;
} answer;

static void write_numbers(sbp_json_writer *w, const char *key, const double *values, int64_t count) {
    sbp_json_write_array(w, key);
    for (int64_t i = 0; i < count; i++)
        sbp_json_write_double(w, NULL, values[i]);
    sbp_json_write_end(w);
}

static sbp_status print_answer(const generate_job *job, const answer *a, int64_t prompt, int64_t sample) {
    sbp_text line;
    sbp_text_init(&line, a->arena);
    sbp_json_writer w = sbp_json_writer_on(&line);
    sbp_json_write_object(&w, NULL);
    sbp_json_write_int(&w, "row", prompt);
    sbp_json_write_int(&w, "sample", sample);
    if (job->a.texts.tokenizer)
        sbp_json_write_bytes(&w, "text", a->text.data, a->text.length);
    else
        sbp_json_write_null(&w, "text");
    sbp_json_write_array(&w, "ids");
    for (int64_t i = 0; i < a->count; i++)
        sbp_json_write_int(&w, NULL, a->ids[i]);
    sbp_json_write_end(&w);
    write_numbers(&w, "logps", a->logps, a->count);
    write_numbers(&w, "processed_logps", a->processed, a->count);
    sbp_json_write_string(&w, "finish_reason", sbp_finish_name(a->finish));
    sbp_json_write_int(&w, "prompt_tokens", job->prompts.items[prompt].count);
    sbp_json_write_end(&w);
    sbp_text_add(&line, "\n");
    return sbp_print_now(job->a.world.diag, line.data, line.length);
}

/* By ids alone, where there is no tokenizer. */
static sbp_finish finish_by_ids(const generate_job *job, const answer *a) {
    for (int32_t i = 0; i < job->a.stopping.end_id_count; i++)
        if (a->ids[a->count - 1] == job->a.stopping.end_ids[i])
            return SBP_FINISH_STOP;
    return a->count == job->a.stopping.most_tokens ? SBP_FINISH_LENGTH : SBP_FINISH_NOT;
}

/* One token: drawn, scored, written down; *done: the answer ends with it. */
static sbp_status take_token(generate_job *job, sbp_text_stream *stream, answer *a, int64_t prompt,
                             int64_t sample, bool *done) {
    sbp_diag *diag = job->a.world.diag;
    sbp_sampled drawn;
    sbp_text_piece piece;
    SBP_TRY(sbp_answering_choose(&job->a, (uint64_t)prompt, (uint64_t)sample, (uint64_t)a->count, &drawn));
    SBP_TRY(sbp_generator_score(job->a.generator, diag, (int32_t)drawn.token, &a->logps[a->count]));
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
    sbp_diag *diag = job->a.world.diag;
    sbp_text_stream *stream = NULL;
    const int64_t most = job->a.stopping.most_tokens;
    a->ids = SBP_NEW_ARRAY(a->arena, int32_t, most);
    a->logps = SBP_NEW_ARRAY(a->arena, double, most);
    a->processed = SBP_NEW_ARRAY(a->arena, double, most);
    sbp_text_init(&a->text, a->arena);
    SBP_TRY(sbp_generator_rewind(job->a.generator, diag));
    if (job->a.texts.tokenizer)
        SBP_TRY(sbp_text_stream_create(job->a.texts.tokenizer, diag, &job->a.stopping, &stream));
    sbp_status status = SBP_OK;
    for (bool done = false; status == SBP_OK && !done;) {
        status = take_token(job, stream, a, prompt, sample, &done);
        if (status == SBP_OK && !done)
            status = sbp_generator_append(job->a.generator, diag, a->ids[a->count - 1]);
        if (status == SBP_OK && sbp_interrupted())
            status = sbp_interrupt_status();
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
    sbp_diag *diag = job->a.world.diag;
    if (p->count + job->a.stopping.most_tokens > sbp_generator_most_rows(job->a.generator) + 1)
        return sbp_fail(diag, SBP_INPUT,
                        "%s: %lld tokens and %lld new ones: the plan takes %lld; compile it with --seq-len "
                        "%lld, or lower --max-new-tokens",
                        p->where, (long long)p->count, (long long)job->a.stopping.most_tokens,
                        (long long)sbp_generator_most_rows(job->a.generator),
                        (long long)(p->count + job->a.stopping.most_tokens));
    SBP_TRY(sbp_generator_begin(job->a.generator, diag, p->ids, p->count));
    for (int64_t s = 0; s < sbp_options_int(job->a.world.options, SBP_OPT_ANSWERS); s++) {
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

static sbp_status generate_body(void *user) {
    generate_job *job = user;
    const sbp_world *world = &job->a.world;
    bool done;
    SBP_TRY(sbp_answering_parse(&job->a, "sbprun generate", usage, &done));
    if (done)
        return SBP_OK;
    SBP_TRY(sbp_answering_find(&job->a));
    SBP_TRY(sbp_run_find_data(world));
    SBP_TRY(sbp_prompts_read(world->arena, world->diag, world->options, &job->a.texts, &job->prompts));
    SBP_TRY(sbp_answering_open(&job->a, job->prompts.longest +
                                            sbp_options_int(world->options, SBP_OPT_MAX_NEW_TOKENS)));
    for (int64_t p = 0; p < job->prompts.count; p++)
        SBP_TRY(answer_prompt(job, p));
    return SBP_OK;
}

sbp_status sbp_command_generate(sbp_diag *diag, int argc, char *const *argv) {
    generate_job job = {0};
    return sbp_answering_run(&job.a, diag, argc, argv, generate_body, &job);
}
