/* command_generate.c: `sbprun generate`: answers to prompts, with their log-probabilities. */
#include <stdio.h>
#include <stdlib.h>

#include "ir/base/json_write.h"
#include "runtime/cli/sbprun/answering.h"
#include "runtime/cli/sbprun/commands.h"
#include "runtime/cli/sbprun/completions.h"
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

static sbp_status print_answer(void *user, sbp_arena *arena, const sbp_completion *c) {
    const generate_job *job = user;
    sbp_text line;
    sbp_text_init(&line, arena);
    sbp_json_writer w = sbp_json_writer_on(&line);
    sbp_json_write_object(&w, NULL);
    sbp_json_write_int(&w, "row", c->prompt);
    sbp_json_write_int(&w, "sample", c->sample);
    sbp_completion_write(&w, c);
    sbp_json_write_doubles(&w, "processed_logps", c->processed, c->count);
    sbp_json_write_string(&w, "finish_reason", sbp_finish_name(c->finish));
    sbp_json_write_int(&w, "prompt_tokens", job->prompts.items[c->prompt].count);
    sbp_json_write_end(&w);
    sbp_text_add(&line, "\n");
    return sbp_print_now(job->a.world.diag, line.data, line.length);
}

static sbp_status write_answers(generate_job *job) {
    const sbp_world *world = &job->a.world;
    const sbp_prompt **prompts = SBP_NEW_ARRAY(world->arena, const sbp_prompt *, job->prompts.count);
    for (int32_t p = 0; p < job->prompts.count; p++)
        prompts[p] = &job->prompts.items[p];
    const sbp_completing what = {.arena = world->arena,
                                 .diag = world->diag,
                                 .generator = job->a.generator,
                                 .sampler = job->a.sampler,
                                 .tokenizer = job->a.texts.tokenizer,
                                 .sampling = &job->a.sampling,
                                 .stopping = &job->a.stopping,
                                 .seed = (uint64_t)sbp_options_int(world->options, SBP_OPT_SEED),
                                 .prompts = prompts,
                                 .prompt_count = job->prompts.count,
                                 .each = sbp_options_int(world->options, SBP_OPT_ANSWERS),
                                 .visit = print_answer,
                                 .user = job};
    return sbp_completions_make(&what);
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
    return write_answers(job);
}

sbp_status sbp_command_generate(sbp_diag *diag, int argc, char *const *argv) {
    generate_job job = {0};
    return sbp_answering_run(&job.a, diag, argc, argv, generate_body, &job);
}
