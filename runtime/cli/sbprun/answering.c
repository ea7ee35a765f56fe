/* answering.c: the plan that generates on a device. */
#include "runtime/cli/sbprun/answering.h"

#include <string.h>

#include "frontends/formats/files/hub_fetch.h"
#include "ir/base/args.h"
#include "ir/base/machine.h"
#include "ir/program/plan_file.h"
#include "runtime/cli/sbprun/child.h"
#include "runtime/cli/sbprun/commands.h"
#include "runtime/cli/sbprun/ending.h"
#include "runtime/cli/sbprun/interrupt.h"

/* ---- the plan ---------------------------------------------------------------------------------------- */

/* The command line of sbpc for a plan of `rows`. */
static sbp_status compile_args(const sbp_answering *a, const char *sbpc, int64_t rows, const char ***out) {
    const sbp_world *world = &a->world;
    const char **given;
    int32_t given_count;
    sbp_args args = sbp_args_on(world->arena);
    sbp_args_add(&args, sbpc);
    sbp_args_add(&args, "compile");
    SBP_TRY(sbp_args_operand(&args, world->diag, "MODEL", a->session.model));
    sbp_args_add(&args, "-o");
    sbp_args_add(&args, a->session.plan_path);
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

/* For half as many texts where the plan does not fit. */
static sbp_status compile_model(sbp_answering *a, int64_t rows, int32_t texts) {
    const sbp_world *world = &a->world;
    const char *sbpc, **args;
    SBP_TRY(sbp_child_find(world->arena, world->diag, "sbpc", &sbpc));
    if (!a->session.temporary_plan)
        SBP_TRY(sbp_child_new_file(world->arena, world->diag, SBP_CHILD_PLAN, &a->session.temporary_plan));
    a->session.plan_path = a->session.temporary_plan;
    for (;; texts /= 2) {
        SBP_TRY(compile_args(a, sbpc, sbp_generator_rows_of(rows, texts), &args));
        sbp_status status = sbp_child_compile(world->arena, world->diag, args, a->session.plan_path, -1);
        if (status != SBP_MACHINE || texts == 1 || sbp_options_given(world->options, SBP_OPT_SEQ_LEN))
            return status;
        sbp_note(world->diag, "%d answers of up to %lld tokens at a time do not fit: going on with %d", texts,
                 (long long)rows, texts / 2);
    }
}

static sbp_status open_plan(sbp_answering *a) {
    const sbp_world *world = &a->world;
    sbp_session *s = &a->session;
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

/* ---- in their order ---------------------------------------------------------------------------------- */

sbp_status sbp_answering_parse(sbp_answering *a, const char *program, const char *usage, bool *done) {
    sbp_world *world = &a->world;
    SBP_TRY(sbp_options_parse(world->arena, world->diag, program, SBP_PHASE_GENERATE | SBP_PHASE_COMPILE,
                              world->argc, world->argv, &world->options));
    const sbp_options *o = world->options;
    *done = sbp_options_on(o, SBP_OPT_HELP);
    if (*done) {
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
                        "expected one model or plan, found %d arguments; see %s --help",
                        sbp_options_arg_count(o), program);
    SBP_TRY(sbp_world_join(world));
    if (world->place.count > 1)
        return sbp_fail(world->diag, SBP_USAGE, "%s is one process: start it without mpirun", program);
    a->sampling = (sbp_sampling){.temperature = sbp_options_given(o, SBP_OPT_TEMPERATURE)
                                                    ? sbp_options_double(o, SBP_OPT_TEMPERATURE)
                                                    : 1,
                                 .top_k = sbp_options_int(o, SBP_OPT_TOP_K),
                                 .top_p = sbp_options_double(o, SBP_OPT_TOP_P),
                                 .min_p = sbp_options_double(o, SBP_OPT_MIN_P)};
    return sbp_sampling_check(world->diag, &a->sampling);
}

sbp_status sbp_answering_find(sbp_answering *a) {
    sbp_world *world = &a->world;
    const char *model;
    SBP_TRY(sbp_hub_model(world->arena, world->diag, sbp_options_arg(world->options, 0), true, &model));
    bool is_plan = sbp_plan_file_probe(model);
    a->session.model = is_plan ? NULL : model;
    a->session.plan_path = is_plan ? model : NULL;
    return sbp_texts_open(world->arena, world->diag, world->options, model, true, &a->texts);
}

sbp_status sbp_answering_open(sbp_answering *a, int64_t rows, int32_t texts) {
    sbp_world *world = &a->world;
    bool chosen = a->session.model && !sbp_options_given(world->options, SBP_OPT_SEQ_LEN);
    if (a->session.model)
        SBP_TRY(compile_model(a, rows, texts));
    SBP_TRY(open_plan(a));
    if (chosen && texts > 1 && sbp_generator_texts_of(a->session.plan->program, rows, texts) == 1) {
        SBP_TRY(compile_model(a, rows, 1)); /* there are states: rows for one */
        SBP_TRY(open_plan(a));
    }
    SBP_TRY(sbp_plan_set_defaults(world->diag, &a->session.info, world->options, world->arena));
    SBP_TRY(sbp_ending_find(world, &a->session, &a->texts, &a->stopping));
    sbp_interrupt_install();
    SBP_TRY(sbp_run_open_device(world, &a->session, &a->outputs));
    SBP_TRY(sbp_run_load_weights(world, &a->session));
    texts = sbp_generator_texts_of(a->session.plan->program, rows, texts);
    SBP_TRY(sbp_generator_create(world->diag, world->executor, texts, &a->generator));
    return sbp_token_sampler_create(world->diag, sbp_generator_vocabulary(a->generator), &a->sampler);
}

sbp_status sbp_answering_choose(sbp_answering *a, int32_t text, uint64_t prompt, uint64_t sample,
                                uint64_t position, sbp_sampled *out) {
    uint64_t seed = (uint64_t)sbp_options_int(a->world.options, SBP_OPT_SEED);
    return sbp_token_sampler_draw(
        a->sampler, a->world.diag, &a->sampling, sbp_generator_logits(a->generator, text),
        sbp_generator_vocabulary(a->generator), sbp_sampling_uniform(seed, prompt, sample, position), out);
}

sbp_status sbp_answering_run(sbp_answering *a, sbp_diag *diag, int argc, char *const *argv,
                             sbp_status (*body)(void *), void *user) {
    *a = (sbp_answering){.world = {.arena = sbp_arena_create(), .diag = diag, .argc = argc, .argv = argv},
                         .outputs = sbp_outputs_begin()};
    if (!a->world.arena)
        return sbp_fail(diag, SBP_MACHINE, "out of memory for the options");
    sbp_status status = sbp_guard(a->world.arena, diag, body, user);
    sbp_generator_destroy(a->generator);
    sbp_token_sampler_destroy(a->sampler);
    sbp_session_close(&a->session);
    sbp_world_close_device(&a->world);
    sbp_outputs_close(&a->outputs);
    sbp_world_leave(&a->world, status);
    return status;
}
