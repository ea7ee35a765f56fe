/* command_generate.c: `sbprun generate`: answers to prompts, with their log-probabilities. */
#include <stdio.h>
#include <stdlib.h>

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

/* One answer: of a text of the generator while it is written, then until those before it are printed. */
typedef struct answer {
    struct answer *next; /* in the order of prompts and samples */
    sbp_arena *arena;    /* of this one */
    sbp_text_stream *stream;
    sbp_text text;
    int32_t *ids;
    double *logps, *processed;
    int64_t count, capacity;
    int64_t prompt, sample;
    sbp_finish finish;
} answer;

typedef struct generate_job {
    sbp_answering a;
    sbp_prompts prompts;
    answer *first, *last; /* begun and not printed */
    int64_t begun;        /* answers, of all prompts */
    /* of each text of the generator */
    answer **writing; /* NULL: none */
    int64_t *prompt;  /* whose rows it has up to its mark; -1: it is free */
} generate_job;

/* ---- answers ----------------------------------------------------------------------------------------- */

static void write_numbers(sbp_json_writer *w, const char *key, const double *values, int64_t count) {
    sbp_json_write_array(w, key);
    for (int64_t i = 0; i < count; i++)
        sbp_json_write_double(w, NULL, values[i]);
    sbp_json_write_end(w);
}

static sbp_status print_answer(const generate_job *job, answer *a) {
    sbp_text line;
    sbp_text_init(&line, a->arena);
    sbp_json_writer w = sbp_json_writer_on(&line);
    sbp_json_write_object(&w, NULL);
    sbp_json_write_int(&w, "row", a->prompt);
    sbp_json_write_int(&w, "sample", a->sample);
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
    sbp_json_write_int(&w, "prompt_tokens", job->prompts.items[a->prompt].count);
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

static void free_answer(answer *a) {
    if (a->stream)
        sbp_text_stream_destroy(a->stream);
    sbp_arena_destroy(a->arena);
    free(a);
}

/* What is done with an answer, where its memory may run out. */
typedef struct answer_step {
    generate_job *job;
    answer *answer;
    sbp_sampled drawn;
    double logp;
} answer_step;

static sbp_status guarded(answer_step *step, sbp_status (*body)(void *)) {
    return sbp_guard(step->answer->arena, step->job->a.world.diag, body, step);
}

static sbp_status begin_body(void *user) {
    const answer_step *step = user;
    answer *a = step->answer;
    const sbp_answering *all = &step->job->a;
    sbp_text_init(&a->text, a->arena);
    if (!all->texts.tokenizer)
        return SBP_OK;
    return sbp_text_stream_create(all->texts.tokenizer, all->world.diag, &all->stopping, &a->stream);
}

/* A token that was drawn and scored; the answer may end with it. */
static sbp_status take_body(void *user) {
    const answer_step *step = user;
    answer *a = step->answer;
    if (a->count == a->capacity) {
        int64_t more = a->capacity < 16 ? 16 : 2 * a->capacity;
        int32_t *ids = SBP_NEW_ARRAY(a->arena, int32_t, more);
        double *logps = SBP_NEW_ARRAY(a->arena, double, more),
               *processed = SBP_NEW_ARRAY(a->arena, double, more);
        for (int64_t i = 0; i < a->count; i++) {
            ids[i] = a->ids[i];
            logps[i] = a->logps[i];
            processed[i] = a->processed[i];
        }
        a->ids = ids;
        a->logps = logps;
        a->processed = processed;
        a->capacity = more;
    }
    a->logps[a->count] = step->logp;
    a->processed[a->count] = step->drawn.processed_logp;
    a->ids[a->count++] = (int32_t)step->drawn.token;
    sbp_text_piece piece;
    if (a->stream) {
        SBP_TRY(sbp_text_stream_push(a->stream, step->job->a.world.diag, (int32_t)step->drawn.token, &piece));
        sbp_text_add_n(&a->text, piece.text, piece.length);
    }
    a->finish = a->stream ? piece.finish : finish_by_ids(step->job, a);
    return SBP_OK;
}

static sbp_status print_body(void *user) {
    const answer_step *step = user;
    return print_answer(step->job, step->answer);
}

/* Those that have ended, up to one that has not. */
static sbp_status print_ended(generate_job *job) {
    while (job->first && job->first->finish != SBP_FINISH_NOT) {
        answer_step step = {.job = job, .answer = job->first};
        SBP_TRY(guarded(&step, print_body));
        job->first = job->first->next;
        free_answer(step.answer);
    }
    return SBP_OK;
}

/* ---- texts of the generator -------------------------------------------------------------------------- */

/* Rows of an answer: its last token is not run. */
static int64_t rows_of(const generate_job *job, int64_t prompt) {
    return job->prompts.items[prompt].count + job->a.stopping.most_tokens - 1;
}

/* A text that nothing is written in: best one with the rows of this prompt; -1: none. */
static int32_t find_idle(const generate_job *job, int64_t prompt) {
    int32_t found = -1;
    for (int32_t t = 0; t < sbp_generator_texts(job->a.generator); t++) {
        if (job->writing[t])
            continue;
        if (job->prompt[t] == prompt)
            return t;
        if (found < 0 || (job->prompt[found] >= 0 && job->prompt[t] < 0))
            found = t;
    }
    return found;
}

static int32_t find_written(const generate_job *job, int64_t prompt) {
    for (int32_t t = 0; t < sbp_generator_texts(job->a.generator); t++)
        if (job->writing[t] && job->prompt[t] == prompt)
            return t;
    return -1;
}

/* Brings a text to the end of the prompt: by what it was, by another's rows, or by running it. *begun: there
 * was room. */
static sbp_status begin_text(generate_job *job, int32_t text, int64_t prompt, bool *begun) {
    sbp_generator *g = job->a.generator;
    sbp_diag *diag = job->a.world.diag;
    const sbp_prompt *p = &job->prompts.items[prompt];
    const int64_t rows = rows_of(job, prompt);
    *begun = true;
    if (job->prompt[text] == prompt)
        return sbp_generator_rewind(g, diag, text);
    int32_t other = find_written(job, prompt);
    for (int32_t t = 0; t < sbp_generator_texts(g) && !sbp_generator_fits(g, text, rows); t++)
        if (!job->writing[t]) { /* what is left of others makes room */
            sbp_generator_release(g, t);
            job->prompt[t] = -1;
        }
    *begun = sbp_generator_fits(g, text, rows);
    if (!*begun)
        return SBP_OK;
    job->prompt[text] = prompt;
    return other >= 0 ? sbp_generator_fork(g, diag, text, other, rows)
                      : sbp_generator_begin(g, diag, text, p->ids, p->count, rows);
}

/* Begins the next answer, if there is a text for it and room. */
static sbp_status begin_answer(generate_job *job, bool *begun) {
    const int64_t each = sbp_options_int(job->a.world.options, SBP_OPT_ANSWERS);
    *begun = false;
    if (job->begun == each * job->prompts.count)
        return SBP_OK;
    const int64_t prompt = job->begun / each;
    int32_t text = find_idle(job, prompt);
    if (text < 0)
        return SBP_OK;
    SBP_TRY(begin_text(job, text, prompt, begun));
    if (!*begun)
        return SBP_OK;
    answer *a = sbp_malloc(sizeof *a);
    sbp_arena *arena = sbp_arena_create();
    if (!a || !arena) {
        free(a);
        sbp_arena_destroy(arena);
        return sbp_fail(job->a.world.diag, SBP_MACHINE, "out of memory for an answer");
    }
    *a = (answer){.arena = arena, .prompt = prompt, .sample = job->begun % each};
    job->begun++;
    *(job->first ? &job->last->next : &job->first) = a;
    job->last = a;
    job->writing[text] = a;
    answer_step step = {.job = job, .answer = a};
    return guarded(&step, begin_body);
}

/* One token of each answer that is written. *count: of those that go on. */
static sbp_status write_tokens(generate_job *job, int32_t *texts, int32_t *tokens, double *logps,
                               answer_step *steps, int32_t *count) {
    const sbp_answering *all = &job->a;
    int32_t written = 0, going = 0;
    for (int32_t t = 0; t < sbp_generator_texts(all->generator); t++) {
        answer *a = job->writing[t];
        if (!a)
            continue;
        steps[written] = (answer_step){.job = job, .answer = a};
        SBP_TRY(sbp_answering_choose(&job->a, t, (uint64_t)a->prompt, (uint64_t)a->sample, (uint64_t)a->count,
                                     &steps[written].drawn));
        texts[written] = t;
        tokens[written] = (int32_t)steps[written].drawn.token;
        written++;
    }
    SBP_TRY(sbp_generator_score(all->generator, all->world.diag, texts, tokens, written, logps));
    for (int32_t i = 0; i < written; i++) {
        steps[i].logp = logps[i];
        SBP_TRY(guarded(&steps[i], take_body));
        if (steps[i].answer->finish != SBP_FINISH_NOT) {
            job->writing[texts[i]] = NULL;
            continue;
        }
        texts[going] = texts[i];
        tokens[going++] = tokens[i];
    }
    *count = going;
    return SBP_OK;
}

static sbp_status check_rooms(const generate_job *job) {
    const int64_t most = sbp_generator_most_rows(job->a.generator), new = job->a.stopping.most_tokens;
    for (int64_t p = 0; p < job->prompts.count; p++)
        if (rows_of(job, p) > most)
            return sbp_fail(job->a.world.diag, SBP_INPUT,
                            "%s: %lld tokens and %lld new ones: the plan takes %lld; compile it with "
                            "--seq-len %lld, or lower --max-new-tokens",
                            job->prompts.items[p].where, (long long)job->prompts.items[p].count,
                            (long long)new, (long long)most, (long long)(rows_of(job, p) + 1));
    return SBP_OK;
}

static sbp_status write_answers(generate_job *job) {
    sbp_arena *arena = job->a.world.arena;
    const int32_t n = sbp_generator_texts(job->a.generator);
    job->writing = SBP_NEW_ARRAY(arena, answer *, n);
    job->prompt = SBP_NEW_ARRAY(arena, int64_t, n);
    int32_t *texts = SBP_NEW_ARRAY(arena, int32_t, n), *tokens = SBP_NEW_ARRAY(arena, int32_t, n), going = 0;
    double *logps = SBP_NEW_ARRAY(arena, double, n);
    answer_step *steps = SBP_NEW_ARRAY(arena, answer_step, n);
    for (int32_t t = 0; t < n; t++)
        job->prompt[t] = -1;
    SBP_TRY(check_rooms(job));
    do {
        for (bool begun = true; begun;)
            SBP_TRY(begin_answer(job, &begun));
        if (!job->first)
            return SBP_OK;
        SBP_TRY(write_tokens(job, texts, tokens, logps, steps, &going));
        SBP_TRY(print_ended(job));
        if (going > 0)
            SBP_TRY(sbp_generator_append(job->a.generator, job->a.world.diag, texts, tokens, going));
    } while (!sbp_interrupted());
    return sbp_interrupt_status();
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
    int64_t most = job->prompts.count * sbp_options_int(world->options, SBP_OPT_ANSWERS),
            at_once = sbp_options_int(world->options, SBP_OPT_MAX_NUM_SEQS);
    SBP_TRY(sbp_answering_open(&job->a,
                               job->prompts.longest + sbp_options_int(world->options, SBP_OPT_MAX_NEW_TOKENS),
                               (int32_t)sbp_min_i64(most, at_once)));
    sbp_status status = write_answers(job);
    for (answer *a = job->first, *next; a; a = next) {
        next = a->next;
        free_answer(a);
    }
    return status;
}

sbp_status sbp_command_generate(sbp_diag *diag, int argc, char *const *argv) {
    generate_job job = {0};
    return sbp_answering_run(&job.a, diag, argc, argv, generate_body, &job);
}
