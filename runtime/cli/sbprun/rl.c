/* rl.c: sample, reward, hand over to the trainer. */
#include "runtime/cli/sbprun/rl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ir/base/json_write.h"
#include "ir/base/machine.h"
#include "runtime/cli/sbprun/completions.h"
#include "runtime/cli/sbprun/ending.h"
#include "runtime/cli/sbprun/interrupt.h"
#include "runtime/cli/sbprun/rollouts.h"
#include "runtime/cli/sbprun/step_files.h"
#include "runtime/data/draw.h"
#include "runtime/reward/rewarder.h"

enum { USUAL_ANSWERS = 8 }; /* num_generations of TRL */

struct sbp_rl {
    sbp_world *world;
    sbp_session *session;
    sbp_outputs *outputs; /* NULL: not begun */
    sbp_texts texts;
    sbp_prompts prompts;
    sbp_stopping stopping;
    sbp_sampling sampling;
    int64_t each, per_step; /* answers to a prompt; prompts of a generation */
    uint32_t *order;        /* of the prompts, in epoch order_epoch; -1: none yet */
    int64_t order_epoch;
    sbp_generator *generator;
    sbp_token_sampler *sampler;
    sbp_rewarder *rewarder;
    sbp_reader reader;
    sbp_arena *arena;    /* of the generation at hand */
    const char *pending; /* what the reader has still to bring: from `at` on */
    size_t length, at;
    bool opened;
    sbp_rollout_metrics metrics;
};

/* ---- options, prompts -------------------------------------------------------------------------------- */

bool sbp_rl_is_asked_for(const sbp_options *o) {
    return sbp_options_list_count(o, SBP_OPT_REWARD) > 0;
}

static sbp_status check_options(const sbp_world *world) {
    const sbp_options *o = world->options;
    if (world->place.count > 1)
        return sbp_fail(world->diag, SBP_USAGE,
                        "--reward: one process samples and trains: leave out --ranks");
    if (sbp_options_list_count(o, SBP_OPT_DATA) == 0)
        return sbp_fail(world->diag, SBP_USAGE, "--reward needs --data FILE, the prompts");
    return SBP_OK;
}

sbp_status sbp_rl_open(sbp_world *world, sbp_session *session, sbp_inputs *inputs) {
    const sbp_options *o = world->options;
    SBP_TRY(check_options(world));
    sbp_rl *l = SBP_NEW(world->arena, sbp_rl);
    *l = (sbp_rl){.world = world, .session = session, .order_epoch = -1};
    inputs->rl = l;
    l->each = sbp_options_given(o, SBP_OPT_ANSWERS) ? sbp_options_int(o, SBP_OPT_ANSWERS) : USUAL_ANSWERS;
    int64_t rows =
        sbp_options_chosen(o, SBP_OPT_BATCH_SIZE) ? sbp_options_int(o, SBP_OPT_BATCH_SIZE) : l->each;
    if (l->each < 2)
        return sbp_fail(world->diag, SBP_USAGE,
                        "--n %lld: rewards are compared within the answers to a prompt: give at least 2",
                        (long long)l->each);
    if (rows % l->each != 0)
        return sbp_fail(
            world->diag, SBP_USAGE,
            "--batch-size %lld: the rows of a step are answers, %lld to each prompt (--n): give a "
            "multiple of that",
            (long long)rows, (long long)l->each);
    l->per_step = rows / l->each;
    /* the head divides logits by the temperature already */
    l->sampling = (sbp_sampling){.temperature = 1,
                                 .top_k = sbp_options_int(o, SBP_OPT_TOP_K),
                                 .top_p = sbp_options_double(o, SBP_OPT_TOP_P),
                                 .min_p = sbp_options_double(o, SBP_OPT_MIN_P)};
    SBP_TRY(sbp_sampling_check(world->diag, &l->sampling));
    SBP_TRY(sbp_texts_open(world->arena, world->diag, o, session->model ? session->model : session->plan_path,
                           true, &l->texts));
    SBP_TRY(sbp_prompts_read(world->arena, world->diag, o, &l->texts, &l->prompts));
    if (l->prompts.count < l->per_step)
        return sbp_fail(world->diag, SBP_INPUT, "--data has %d prompts, fewer than the %lld of a step",
                        (int)l->prompts.count, (long long)l->per_step);
    l->order = SBP_NEW_ARRAY(world->arena, uint32_t, l->prompts.count);
    return SBP_OK;
}

/* Tokens of an answer: --max-new-tokens, or TRL's name, which is a number of a loss, too. */
static int64_t most_new(const sbp_options *o) {
    bool other =
        !sbp_options_given(o, SBP_OPT_MAX_NEW_TOKENS) && sbp_options_given(o, SBP_OPT_MAX_COMPLETION_LENGTH);
    return sbp_options_int(o, other ? SBP_OPT_MAX_COMPLETION_LENGTH : SBP_OPT_MAX_NEW_TOKENS);
}

int64_t sbp_rl_seq_len(const sbp_rl *l, int64_t usual) {
    int64_t one = l->prompts.longest + most_new(l->world->options), answers = l->each * l->per_step,
            together = sbp_min_i64(answers, sbp_options_int(l->world->options, SBP_OPT_MAX_NUM_SEQS)),
            all = sbp_max_i64(one * answers, sbp_generator_rows_of(one, (int32_t)together));
    return sbp_max_i64(one, sbp_min_i64(all, usual));
}

int64_t sbp_rl_epoch(const sbp_rl *l) {
    return l->prompts.count / l->per_step; /* what is left is another epoch's, as TRL has it */
}

/* ---- a generation ------------------------------------------------------------------------------------ */

typedef struct generation {
    sbp_rl *loop;
    sbp_arena *arena;
    int64_t number; /* from 0 */
    const sbp_prompt **prompts;
    sbp_rollout *rollouts;
    int64_t count;
    double sampling_seconds, reward_seconds;
} generation;

static void find_prompts(generation *g) {
    sbp_rl *l = g->loop;
    int64_t each_epoch = sbp_rl_epoch(l), epoch = g->number / each_epoch,
            first = g->number % each_epoch * l->per_step;
    const sbp_options *o = l->world->options;
    if (l->order_epoch != epoch) {
        for (int64_t i = 0; i < l->prompts.count; i++)
            l->order[i] = (uint32_t)i;
        sbp_draw draw = sbp_draw_begin((uint64_t)sbp_options_int(o, SBP_OPT_SEED) + (uint64_t)epoch);
        if (sbp_options_on(o, SBP_OPT_SHUFFLE))
            sbp_draw_shuffle(&draw, l->order, l->prompts.count);
        l->order_epoch = epoch;
    }
    g->prompts = SBP_NEW_ARRAY(g->arena, const sbp_prompt *, l->per_step);
    for (int64_t i = 0; i < l->per_step; i++)
        g->prompts[i] = &l->prompts.items[l->order[first + i]];
}

/* Whether tokens are left out before one is drawn. */
static bool cuts(const sbp_sampling *s) {
    return s->top_k > 0 || s->top_p < 1 || s->min_p > 0;
}

/* Keeps an answer. */
static sbp_status take_completion(void *user, sbp_arena *arena, const sbp_completion *c) {
    generation *g = user;
    (void)arena; /* the answer's own */
    sbp_rollout *r = &g->rollouts[g->count++];
    *r = (sbp_rollout){.prompt = g->prompts[c->prompt],
                       .group = g->number * g->loop->per_step + c->prompt,
                       .ids = SBP_NEW_ARRAY(g->arena, int32_t, c->count),
                       .logps = SBP_NEW_ARRAY(g->arena, double, c->count),
                       .processed = SBP_NEW_ARRAY(g->arena, double, c->count),
                       .count = c->count,
                       .text = c->text ? sbp_arena_strndup(g->arena, c->text, c->text_bytes) : "",
                       .text_bytes = c->text_bytes,
                       .truncated = c->finish == SBP_FINISH_LENGTH};
    char line[100];
    snprintf(line, sizeof line, "step %lld  sampling: %lld of %lld answers",
             (long long)g->loop->session->state.step + 1, (long long)g->count,
             (long long)(g->loop->per_step * g->loop->each));
    sbp_progress_say(&g->loop->outputs->metrics, line);
    memcpy(r->ids, c->ids, (size_t)c->count * sizeof *r->ids);
    memcpy(r->logps, c->logps, (size_t)c->count * sizeof *r->logps);
    /* drawn from the model's own distribution: to the bit what training computes */
    memcpy(r->processed, cuts(&g->loop->sampling) ? c->processed : c->logps,
           (size_t)c->count * sizeof *r->processed);
    return SBP_OK;
}

static sbp_status sample(generation *g) {
    sbp_rl *l = g->loop;
    const sbp_completing what = {.arena = g->arena,
                                 .diag = l->world->diag,
                                 .generator = l->generator,
                                 .sampler = l->sampler,
                                 .tokenizer = l->texts.tokenizer,
                                 .sampling = &l->sampling,
                                 .stopping = &l->stopping,
                                 .seed = (uint64_t)sbp_options_int(l->world->options, SBP_OPT_SEED),
                                 .first = (uint64_t)(g->number * l->per_step),
                                 .prompts = g->prompts,
                                 .prompt_count = l->per_step,
                                 .each = l->each,
                                 .visit = take_completion,
                                 .user = g};
    double start = sbp_seconds();
    SBP_TRY(sbp_completions_make(&what));
    g->sampling_seconds = sbp_seconds() - start;
    return SBP_OK;
}

/* The prompt as rewards see it: text, or messages; of ids, what they decode to. */
static sbp_status prompt_json(const generation *g, const sbp_prompt *p, const sbp_json **out) {
    const char *text = "";
    size_t length = 0;
    if (p->asked &&
        (p->asked->kind == SBP_JSON_STRING || !p->asked->key || strcmp(p->asked->key, "prompt") == 0)) {
        *out = p->asked;
        return SBP_OK;
    }
    if (g->loop->texts.tokenizer)
        SBP_TRY(sbp_tokenizer_decode(g->loop->texts.tokenizer, g->arena, g->loop->world->diag, p->ids,
                                     p->count, true, &text, &length));
    sbp_json *made = SBP_NEW(g->arena, sbp_json);
    *made = (sbp_json){.kind = SBP_JSON_STRING, .key = "prompt", .string = text, .count = (int64_t)length};
    *out = made;
    return SBP_OK;
}

static sbp_status reward(generation *g) {
    sbp_rl *l = g->loop;
    const int32_t functions = sbp_rewarder_count(l->rewarder);
    sbp_reward_sample *samples = SBP_NEW_ARRAY(g->arena, sbp_reward_sample, g->count);
    double *rewards = SBP_NEW_ARRAY(g->arena, double, g->count),
           *each = SBP_NEW_ARRAY(g->arena, double, g->count *functions);
    for (int64_t i = 0; i < g->count; i++) {
        const sbp_rollout *r = &g->rollouts[i];
        samples[i] = (sbp_reward_sample){.row = r->prompt->row,
                                         .completion = r->text,
                                         .completion_bytes = r->text_bytes,
                                         .ids = r->ids,
                                         .id_count = r->count};
        SBP_TRY(prompt_json(g, r->prompt, &samples[i].prompt));
    }
    const sbp_session *s = l->session;
    const sbp_reward_batch batch = {.samples = samples,
                                    .count = g->count,
                                    .per_prompt = l->each,
                                    .step = s->state.step,
                                    .steps = s->total_steps < SBP_STEPS_UNKNOWN ? s->total_steps : -1};
    double start = sbp_seconds();
    SBP_TRY(sbp_rewarder_run(l->rewarder, l->world->diag, &batch, rewards, each));
    g->reward_seconds = sbp_seconds() - start;
    for (int64_t i = 0; i < g->count; i++) {
        sbp_rollout *r = &g->rollouts[i];
        r->reward = rewards[i];
        r->rewards = SBP_NEW_ARRAY(g->arena, double, functions);
        for (int32_t f = 0; f < functions; f++)
            r->rewards[f] = each[f * g->count + i];
    }
    return SBP_OK;
}

static const char *journal_path(const generation *g) {
    const sbp_outputs *out = g->loop->outputs;
    return out->out
               ? sbp_step_file(g->arena, out->out, SBP_ROLLOUTS, g->number * g->loop->session->inner_epochs)
               : NULL;
}

/* The rows of a generation that is there; NULL: it is not. */
static sbp_status read_journal(generation *g, const char *path, const char **text, size_t *length) {
    *text = NULL;
    if (!path || !sbp_file_exists(path))
        return SBP_OK;
    SBP_TRY(sbp_file_read(g->arena, g->loop->world->diag, path, text, length));
    return sbp_rollouts_parse(g->arena, g->loop->world->diag, path, *text, *length, &g->rollouts, &g->count);
}

static sbp_status make_rollouts(generation *g, const char *path, const char **text, size_t *length) {
    sbp_rl *l = g->loop;
    sbp_text out;
    sbp_text_init(&out, g->arena);
    g->rollouts = SBP_NEW_ARRAY(g->arena, sbp_rollout, l->per_step * l->each);
    find_prompts(g);
    SBP_TRY(sample(g));
    SBP_TRY(reward(g));
    sbp_rollouts_write(&out, g->rollouts, g->count, l->rewarder);
    *text = out.data;
    *length = out.length;
    return path ? sbp_file_write(l->world->diag, path, out.data, out.length) : SBP_OK;
}

static sbp_status generation_body(void *user) {
    generation *g = user;
    sbp_rl *l = g->loop;
    const char *text, *path = journal_path(g);
    size_t length;
    SBP_TRY(read_journal(g, path, &text, &length));
    if (!text)
        SBP_TRY(make_rollouts(g, path, &text, &length));
    sbp_rollouts_measure(&l->metrics, g->arena, g->rollouts, g->count, l->rewarder);
    sbp_rollouts_measure_time(&l->metrics, g->rollouts, g->count, g->sampling_seconds, g->reward_seconds);
    l->outputs->metrics.more = l->metrics.items;
    l->outputs->metrics.more_count = l->metrics.count;
    l->pending = text;
    l->length = length;
    return SBP_OK;
}

static sbp_status next_generation(sbp_rl *l) {
    l->outputs->metrics.more_count = 0;
    sbp_arena_destroy(l->arena);
    l->arena = sbp_arena_create();
    if (!l->arena)
        return sbp_fail(l->world->diag, SBP_MACHINE, "out of memory for answers");
    generation g = {
        .loop = l, .arena = l->arena, .number = l->session->state.step / l->session->inner_epochs};
    return sbp_guard(g.arena, l->world->diag, generation_body, &g);
}

/* ---- as a stream of steps ----------------------------------------------------------------------------- */

/* The first step has no rows: it says that there are steps before there is a device. */
static sbp_status read_rows(void *user, sbp_diag *diag, char *out, size_t room, size_t *got) {
    static const char first[] = SBP_ROLLOUTS_END;
    sbp_rl *l = user;
    (void)diag;
    if (l->at == l->length) {
        l->at = l->length = 0;
        if (l->opened)
            SBP_TRY(next_generation(l));
    }
    const char *from = l->opened ? l->pending + l->at : first + l->at;
    size_t left = (l->opened ? l->length : sizeof first - 1) - l->at;
    *got = left < room ? left : room;
    memcpy(out, from, *got);
    l->at += *got;
    if (!l->opened && *got == left) {
        l->opened = true;
        l->at = l->length = 0;
    }
    return SBP_OK;
}

sbp_status sbp_rl_open_source(sbp_rl *l, sbp_diag *diag, sbp_source **out) {
    const sbp_session *s = l->session;
    bool optional;
    if (!sbp_pack_reads(s->plan->program, sbp_data_columns[SBP_DATA_ADVANTAGE].name, &optional) ||
        sbp_pack_reads(s->plan->program, sbp_data_columns[SBP_DATA_OLD_VALUES].name, &optional))
        return sbp_fail(diag, SBP_USAGE,
                        "--reward: objective %s does not compare answers to a prompt by their rewards",
                        s->info.meta.objective);
    l->reader = (sbp_reader){read_rows, l};
    return sbp_source_open_reader(diag, &l->reader, out);
}

static sbp_status open_rewarder(sbp_rl *l) {
    const sbp_options *o = l->world->options;
    int32_t count, weight_count;
    const double *weights = NULL; /* 1 each */
    const char *const *specs = sbp_options_list(o, l->world->arena, SBP_OPT_REWARD, &count);
    const char *const *texts = sbp_options_list(o, l->world->arena, SBP_OPT_REWARD_WEIGHTS, &weight_count);
    if (weight_count > 0)
        SBP_TRY(sbp_reward_weights(l->world->arena, l->world->diag, texts, weight_count, count, &weights));
    const sbp_reward_options options = {.timeout_seconds = sbp_options_double(o, SBP_OPT_REWARD_TIMEOUT),
                                        .restarts = 2,
                                        .python = sbp_options_text(o, SBP_OPT_REWARD_PYTHON),
                                        .log = 2,
                                        .interrupted = sbp_interrupt_status};
    return sbp_rewarder_open(l->world->arena, l->world->diag, specs, weights, count, &options, &l->rewarder);
}

sbp_status sbp_rl_begin(sbp_rl *l, sbp_outputs *outputs, bool resumed) {
    sbp_world *world = l->world;
    l->outputs = outputs;
    SBP_TRY(sbp_ending_find(world, l->session, &l->texts, &l->stopping));
    l->stopping.most_tokens = most_new(world->options);
    SBP_TRY(sbp_completions_open(world, l->session, "--reward", l->each * l->per_step, l->prompts.longest,
                                 l->stopping.most_tokens, &l->generator, &l->sampler));
    if (outputs->out)
        SBP_TRY(sbp_step_files_begin(world->diag, sbp_file_join(world->arena, outputs->out, SBP_ROLLOUTS),
                                     resumed ? INT64_MAX : 0));
    return open_rewarder(l);
}

void sbp_rl_close(sbp_rl *l) {
    if (!l)
        return;
    sbp_rewarder_close(l->rewarder);
    sbp_token_sampler_destroy(l->sampler);
    sbp_generator_destroy(l->generator);
    sbp_arena_destroy(l->arena);
}
