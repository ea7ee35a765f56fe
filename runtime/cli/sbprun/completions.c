/* completions.c: answers into the texts of a generator, a token of each at a time. */
#include "runtime/cli/sbprun/completions.h"

#include <stdlib.h>

#include "ir/base/machine.h"
#include "runtime/cli/sbprun/interrupt.h"

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

typedef struct writing {
    const sbp_completing *of;
    answer *first, *last; /* begun and not visited */
    int64_t begun;        /* answers, of all prompts */
    /* of each text of the generator */
    answer **answers; /* NULL: none */
    int64_t *prompt;  /* whose rows it has up to its mark; -1: it is free */
} writing;

/* ---- answers ----------------------------------------------------------------------------------------- */

/* By ids alone, where there is no tokenizer. */
static sbp_finish finish_by_ids(const writing *job, const answer *a) {
    for (int32_t i = 0; i < job->of->stopping->end_id_count; i++)
        if (a->ids[a->count - 1] == job->of->stopping->end_ids[i])
            return SBP_FINISH_STOP;
    return a->count == job->of->stopping->most_tokens ? SBP_FINISH_LENGTH : SBP_FINISH_NOT;
}

static void free_answer(answer *a) {
    if (a->stream)
        sbp_text_stream_destroy(a->stream);
    sbp_arena_destroy(a->arena);
    free(a);
}

/* What is done with an answer, where its memory may run out. */
typedef struct answer_step {
    writing *job;
    answer *answer;
    sbp_sampled drawn;
    double logp;
} answer_step;

static sbp_status guarded(answer_step *step, sbp_status (*body)(void *)) {
    return sbp_guard(step->answer->arena, step->job->of->diag, body, step);
}

static sbp_status begin_body(void *user) {
    const answer_step *step = user;
    answer *a = step->answer;
    const sbp_completing *all = step->job->of;
    sbp_text_init(&a->text, a->arena);
    if (!all->tokenizer)
        return SBP_OK;
    return sbp_text_stream_create(all->tokenizer, all->diag, all->stopping, &a->stream);
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
        SBP_TRY(sbp_text_stream_push(a->stream, step->job->of->diag, (int32_t)step->drawn.token, &piece));
        sbp_text_add_n(&a->text, piece.text, piece.length);
    }
    a->finish = a->stream ? piece.finish : finish_by_ids(step->job, a);
    return SBP_OK;
}

static sbp_status visit_body(void *user) {
    const answer_step *step = user;
    const answer *a = step->answer;
    const sbp_completing *c = step->job->of;
    const sbp_completion out = {.prompt = a->prompt,
                                .sample = a->sample,
                                .ids = a->ids,
                                .logps = a->logps,
                                .processed = a->processed,
                                .count = a->count,
                                .text = c->tokenizer ? a->text.data : NULL,
                                .text_bytes = a->text.length,
                                .finish = a->finish};
    return c->visit(c->user, a->arena, &out);
}

/* Those that have ended, up to one that has not. */
static sbp_status visit_ended(writing *job) {
    while (job->first && job->first->finish != SBP_FINISH_NOT) {
        answer_step step = {.job = job, .answer = job->first};
        SBP_TRY(guarded(&step, visit_body));
        job->first = job->first->next;
        free_answer(step.answer);
    }
    return SBP_OK;
}

/* ---- texts of the generator -------------------------------------------------------------------------- */

/* Rows of an answer: its last token is not run. */
static int64_t rows_of(const writing *job, int64_t prompt) {
    return job->of->prompts[prompt]->count + job->of->stopping->most_tokens - 1;
}

/* A text that nothing is written in: best one with the rows of this prompt; -1: none. */
static int32_t find_idle(const writing *job, int64_t prompt) {
    int32_t found = -1;
    for (int32_t t = 0; t < sbp_generator_texts(job->of->generator); t++) {
        if (job->answers[t])
            continue;
        if (job->prompt[t] == prompt)
            return t;
        if (found < 0 || (job->prompt[found] >= 0 && job->prompt[t] < 0))
            found = t;
    }
    return found;
}

static int32_t find_written(const writing *job, int64_t prompt) {
    for (int32_t t = 0; t < sbp_generator_texts(job->of->generator); t++)
        if (job->answers[t] && job->prompt[t] == prompt)
            return t;
    return -1;
}

/* Brings a text to the end of the prompt: by what it was, by another's rows, or by running it. *begun: there
 * was room. */
static sbp_status begin_text(writing *job, int32_t text, int64_t prompt, bool *begun) {
    sbp_generator *g = job->of->generator;
    sbp_diag *diag = job->of->diag;
    const sbp_prompt *p = job->of->prompts[prompt];
    const int64_t rows = rows_of(job, prompt);
    *begun = true;
    if (job->prompt[text] == prompt)
        return sbp_generator_rewind(g, diag, text);
    int32_t other = find_written(job, prompt);
    for (int32_t t = 0; t < sbp_generator_texts(g) && !sbp_generator_fits(g, text, rows); t++)
        if (!job->answers[t]) { /* what is left of others makes room */
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
static sbp_status begin_answer(writing *job, bool *begun) {
    const int64_t each = job->of->each;
    *begun = false;
    if (job->begun == each * job->of->prompt_count)
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
        return sbp_fail(job->of->diag, SBP_MACHINE, "out of memory for an answer");
    }
    *a = (answer){.arena = arena, .prompt = prompt, .sample = job->begun % each};
    job->begun++;
    *(job->first ? &job->last->next : &job->first) = a;
    job->last = a;
    job->answers[text] = a;
    answer_step step = {.job = job, .answer = a};
    return guarded(&step, begin_body);
}

/* The token behind what text number `text` has. */
static sbp_status draw(const writing *job, int32_t text, const answer *a, sbp_sampled *out) {
    const sbp_completing *c = job->of;
    return sbp_token_sampler_draw(c->sampler, c->diag, c->sampling, sbp_generator_logits(c->generator, text),
                                  sbp_generator_vocabulary(c->generator),
                                  sbp_sampling_uniform(c->seed, c->first + (uint64_t)a->prompt,
                                                       (uint64_t)a->sample, (uint64_t)a->count),
                                  out);
}

/* One token of each answer that is written. *count: of those that go on. */
static sbp_status write_tokens(writing *job, int32_t *texts, int32_t *tokens, double *logps,
                               answer_step *steps, int32_t *count) {
    const sbp_completing *all = job->of;
    int32_t written = 0, going = 0;
    for (int32_t t = 0; t < sbp_generator_texts(all->generator); t++) {
        answer *a = job->answers[t];
        if (!a)
            continue;
        steps[written] = (answer_step){.job = job, .answer = a};
        SBP_TRY(draw(job, t, a, &steps[written].drawn));
        texts[written] = t;
        tokens[written] = (int32_t)steps[written].drawn.token;
        written++;
    }
    SBP_TRY(sbp_generator_score(all->generator, all->diag, texts, tokens, written, logps));
    for (int32_t i = 0; i < written; i++) {
        steps[i].logp = logps[i];
        SBP_TRY(guarded(&steps[i], take_body));
        if (steps[i].answer->finish != SBP_FINISH_NOT) {
            job->answers[texts[i]] = NULL;
            continue;
        }
        texts[going] = texts[i];
        tokens[going++] = tokens[i];
    }
    *count = going;
    return SBP_OK;
}

static sbp_status check_rooms(const writing *job) {
    const int64_t most = sbp_generator_most_rows(job->of->generator), new = job->of->stopping->most_tokens;
    for (int64_t p = 0; p < job->of->prompt_count; p++)
        if (rows_of(job, p) > most)
            return sbp_fail(job->of->diag, SBP_INPUT,
                            "%s: %lld tokens and %lld new ones: the plan takes %lld; compile it with "
                            "--seq-len %lld, or lower --max-new-tokens",
                            job->of->prompts[p]->where, (long long)job->of->prompts[p]->count, (long long)new,
                            (long long)most, (long long)(rows_of(job, p) + 1));
    return SBP_OK;
}

static sbp_status write_answers(writing *job) {
    sbp_arena *arena = job->of->arena;
    const int32_t n = sbp_generator_texts(job->of->generator);
    job->answers = SBP_NEW_ARRAY(arena, answer *, n);
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
        SBP_TRY(visit_ended(job));
        if (going > 0)
            SBP_TRY(sbp_generator_append(job->of->generator, job->of->diag, texts, tokens, going));
    } while (!sbp_interrupted());
    return sbp_interrupt_status();
}

void sbp_completion_write(sbp_json_writer *w, const sbp_completion *c) {
    if (c->text)
        sbp_json_write_bytes(w, "text", c->text, c->text_bytes);
    else
        sbp_json_write_null(w, "text");
    sbp_json_write_ids(w, "ids", c->ids, c->count);
    sbp_json_write_doubles(w, "logps", c->logps, c->count);
}

sbp_status sbp_completions_open(const sbp_world *world, const sbp_session *session, const char *option,
                                int64_t answers, int64_t longest, int64_t most_tokens,
                                sbp_generator **generator, sbp_token_sampler **sampler) {
    const sbp_program *program = session->plan->program;
    const int64_t rows = longest + most_tokens - 1,
                  most = sbp_min_i64(answers, sbp_options_int(world->options, SBP_OPT_MAX_NUM_SEQS));
    if (!sbp_program_entry(program, SBP_ENTRY_GENERATE))
        return sbp_fail(world->diag, SBP_USAGE,
                        "%s: '%s' does not generate: give the model, or a plan of sbpc compile --for both",
                        option, session->plan_path);
    SBP_TRY(sbp_generator_create(world->diag, world->executor,
                                 sbp_generator_texts_of(program, rows, (int32_t)most), generator));
    SBP_TRY(sbp_token_sampler_create(world->diag, sbp_generator_vocabulary(*generator), sampler));
    if (rows > sbp_generator_most_rows(*generator))
        return sbp_fail(
            world->diag, SBP_INPUT,
            "%s: the longest prompt and --max-new-tokens %lld take %lld rows, the plan has %lld: give fewer "
            "tokens, or --seq-len %lld",
            option, (long long)most_tokens, (long long)rows, (long long)sbp_generator_most_rows(*generator),
            (long long)(rows + 1));
    return SBP_OK;
}

sbp_status sbp_completions_make(const sbp_completing *what) {
    writing job = {.of = what};
    int64_t longest = 0;
    for (int64_t p = 0; p < what->prompt_count; p++)
        longest = sbp_max_i64(longest, what->prompts[p]->count + what->stopping->most_tokens);
    SBP_TRY(sbp_generator_start(what->generator, what->diag)); /* the device trained, perhaps */
    sbp_generator_set_longest(what->generator, longest);
    sbp_status status = write_answers(&job);
    for (answer *a = job.first, *next; a; a = next) {
        next = a->next;
        free_answer(a);
    }
    for (int32_t t = 0; t < sbp_generator_texts(what->generator); t++) /* the weights may change */
        sbp_generator_release(what->generator, t);
    return status;
}
