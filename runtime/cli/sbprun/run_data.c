/* run_data.c: the data of a run, and its steps. */
#include <malloc.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "frontends/formats/files/hub.h"
#include "ir/base/machine.h"
#include "runtime/cli/sbprun/interrupt.h"
#include "runtime/cli/sbprun/rl.h"
#include "runtime/cli/sbprun/run_samples.h"
#include "runtime/cli/sbprun/session.h"
#include "runtime/cli/sbprun/texts.h"

/* The text of tokenizers and the trees that they are parsed from are freed before the arenas of the program
 * are touched, so that they do not count in the peak. */
typedef struct sbp_load_job {
    sbp_world *world;
    sbp_inputs *inputs;
    sbp_session *session;
    sbp_arena *arena;
    const sbp_tokenizer *tokenizer;
    sbp_chat_options chat;
    uint64_t tokenizer_hash; /* of what it was made of */
    double started, shown;   /* of progress */
    sbp_row_ids eos_ids;     /* what ends texts, by the model's config; none: it does not say */
    bool line_is_open;
    bool leads; /* others wait, and want to hear of it now and then */
    double told;
    sbp_status told_status;
} load_job;

static const char together[] = "--packing bfd is for single texts: pairs of answers and groups of rows stay "
                               "together";

/* Files of data from which on their tokens are kept for the next start. */
enum { CACHE_FROM_BYTES = 8 << 20 };

static bool packed(const sbp_options *o) {
    return sbp_options_is(o, SBP_OPT_PACKING, "bfd");
}

static sbp_overlong overlong(const sbp_options *o) {
    if (packed(o) &&
        (!sbp_options_chosen(o, SBP_OPT_OVERLONG) || sbp_options_is(o, SBP_OPT_OVERLONG, "truncate")))
        return SBP_OVERLONG_CUT; /* as packing has it */
    return sbp_options_is(o, SBP_OPT_OVERLONG, "truncate") ? SBP_OVERLONG_TRUNCATE
           : sbp_options_is(o, SBP_OPT_OVERLONG, "split")  ? SBP_OVERLONG_SPLIT
           : sbp_options_is(o, SBP_OPT_OVERLONG, "drop")   ? SBP_OVERLONG_DROP
                                                           : SBP_OVERLONG_ERROR;
}

/* ---- loading in turn --------------------------------------------------------------------------------- */

/* Where several ranks are on a host, one tokenizes what is kept, with the cores of all, and the others map
 * it. All meet now and then until nobody is busy, so that none seems to be gone. */
static sbp_status rendezvous(const sbp_world *world, bool *busy) {
    double count = *busy;
    sbp_status status = sbp_ranks_all_reduce(world->ranks, &count, 1, SBP_F64, world->diag);
    *busy = count > 0;
    return status;
}

static void tell_the_others(load_job *job) {
    enum { MOST_SECONDS = 5 };
    double timeout = sbp_options_double(job->world->options, SBP_OPT_TIMEOUT), now = sbp_seconds();
    bool busy = true;
    if (!job->leads || job->told_status != SBP_OK ||
        now - job->told < (timeout > 0 && timeout < 4 * MOST_SECONDS ? timeout / 4 : MOST_SECONDS))
        return;
    job->told_status = rendezvous(job->world, &busy);
    job->told = now;
}

static sbp_status load_in_turn(load_job *job, sbp_dataset_options *o, sbp_dataset **out) {
    sbp_world *world = job->world;
    sbp_status status = SBP_OK;
    bool busy = true;
    job->leads = world->place.local_rank == 0;
    job->told = sbp_seconds();
    if (job->leads) {
        o->threads *= world->sharing;
        status = sbp_dataset_load(world->diag, o, out);
    }
    SBP_TRY(job->told_status);
    while (busy) {
        busy = false;
        SBP_TRY(rendezvous(world, &busy));
    }
    SBP_TRY(sbp_world_agree(world, status));
    if (!job->leads)
        return sbp_dataset_load(world->diag, o, out);
    job->leads = false;
    return SBP_OK;
}

/* Whether they do: as rank 0 says. Before the plan is there it is alone. */
static sbp_status is_in_turn(const sbp_world *world, const sbp_session *session, const sbp_dataset_options *o,
                             bool *out) {
    double kept = sbp_dataset_is_kept(o);
    *out = false;
    if (!world->ranks || !session->plan)
        return SBP_OK;
    SBP_TRY(sbp_ranks_broadcast(world->ranks, &kept, 1, SBP_F64, 0, world->diag));
    *out = kept > 0;
    return SBP_OK;
}

/* One line that is rewritten on a terminal, else one every few seconds; nothing for what is quick. */
static void show_progress(void *user, double share) {
    load_job *job = user;
    tell_the_others(job);
    bool terminal = isatty(STDERR_FILENO);
    double now = sbp_seconds(), passed = now - job->started;
    if (passed < 2 || now - job->shown < (terminal ? 0.2 : 10) || !sbp_world_writes(job->world) ||
        sbp_options_on(job->world->options, SBP_OPT_QUIET))
        return;
    job->shown = now;
    fprintf(stderr, "%stokenizing: %.1f %%, %.0f s left%s", terminal ? "\r\033[K" : "", 100 * share,
            share > 0 ? passed / share * (1 - share) : 0, terminal ? "" : "\n");
    job->line_is_open = terminal;
    fflush(stderr);
}

/* Where caches of tokens are; NULL: nowhere. */
static const char *cache_directory(const load_job *job) {
    const char *given = sbp_options_text(job->world->options, SBP_OPT_DATA_CACHE);
    char path[4096];
    if (given)
        return strcmp(given, "none") == 0 ? NULL : given;
    return sbp_cache_path("tokens", path, sizeof path) ? sbp_arena_strdup(job->arena, path) : NULL;
}

static sbp_dataset_options options_of(load_job *job) {
    const sbp_world *world = job->world;
    const sbp_session *session = job->session;
    job->started = job->shown = sbp_seconds();
    return (sbp_dataset_options){
        .threads = sbp_world_threads(world),
        .cache = session->check ? NULL : cache_directory(job), /* documents are cut in memory */
        .cache_from_bytes = sbp_options_given(world->options, SBP_OPT_DATA_CACHE) ? 0 : CACHE_FROM_BYTES,
        .settings_hash = job->tokenizer_hash,
        .progress = show_progress,
        .progress_user = job,
        .tokenizer = job->tokenizer,
        .eos = job->chat.eos,
        .eos_ids = job->eos_ids,
        .objective = session->plan ? session->info.meta.objective : NULL,
        .objective_of_pairs = session->plan ? session->info.meta.objective_of_pairs : NULL,
        .chat = &job->chat,
        .quiet = job->chat.quiet,
        .skip_bad_rows = sbp_options_is(world->options, SBP_OPT_ON_BAD_ROW, "skip"),
        .rows = session->plan ? sbp_pack_rows_wanted(session->plan->program) : SBP_ROWS_ANY,
        .loss_on = sbp_texts_loss_on(world->options),
        .reasoning = sbp_texts_reasoning(world->options),
        .mask_truncated = sbp_options_on(world->options, SBP_OPT_MASK_TRUNCATED_COMPLETIONS),
        .eos_penalty = sbp_options_double(world->options, SBP_OPT_MISSING_EOS_PENALTY),
        .vocab_size = session->info.meta.vocab_size,
        .max_tokens = session->plan ? sbp_program_most_rows(session->plan->program) : 0,
        .max_prompt = sbp_options_given(world->options, SBP_OPT_MAX_PROMPT_LENGTH)
                          ? sbp_options_int(world->options, SBP_OPT_MAX_PROMPT_LENGTH)
                          : 0,
        .overlong = overlong(world->options)};
}

/* Standard input may hold steps; whether it does is known after the first. */
static sbp_status open_stream(sbp_world *world, sbp_inputs *inputs, sbp_dataset_options *options) {
    inputs->stream.own = inputs->rl != NULL;
    if (inputs->rl)
        SBP_TRY(sbp_rl_open_source(inputs->rl, world->diag, &inputs->stream.source));
    else
        SBP_TRY(sbp_run_open_stdin(world, inputs, &inputs->stream.source));
    options->stream = &inputs->stream;
    return SBP_OK;
}

/* After a first reading. */
static sbp_status check_stream(const sbp_world *world, sbp_inputs *inputs, const sbp_session *session) {
    static const sbp_option_id meaningless[] = {SBP_OPT_BATCH_SIZE, SBP_OPT_BATCH_TOKENS, SBP_OPT_EPOCHS};
    if (inputs->stream.source && !inputs->stream.steps) { /* rows as of a file, and all of them */
        sbp_source_close(inputs->stream.source);
        inputs->stream.source = NULL;
    }
    if (!inputs->stream.steps)
        return SBP_OK;
    if (!session->plan)
        return sbp_fail(
            world->diag, SBP_USAGE,
            "rows of a stream cannot be measured before: give --seq-len N, the most tokens of a micro-batch");
    if (packed(world->options))
        return sbp_fail(world->diag, SBP_USAGE, "--packing bfd needs rows from files (--data FILE)");
    for (int i = 0; i < SBP_COUNT(meaningless) && !inputs->rl; i++)
        if (sbp_options_chosen(world->options, meaningless[i]))
            return sbp_fail(world->diag, SBP_USAGE,
                            "--%s has no effect where lines of the data end the steps (%s): leave it out",
                            sbp_option_name(meaningless[i]), inputs->stream.where);
    return SBP_OK;
}

/* Data that were read before the plan was there. */
static sbp_status check_ids(const sbp_world *world, const sbp_dataset *d, const sbp_session *session) {
    if (d->greatest_id < session->info.meta.vocab_size)
        return SBP_OK;
    for (int64_t k = 0; k < d->doc_count; k++)
        for (int64_t i = 0; i < d->docs[k].count && session->info.meta.vocab_size > 0; i++) {
            int32_t id = d->tokens[d->docs[k].first + i], label = d->labels[d->docs[k].first + i];
            if (id >= session->info.meta.vocab_size || label >= session->info.meta.vocab_size)
                return sbp_fail(
                    world->diag, SBP_INPUT,
                    "data row %lld (from 1): token %lld: id %d is not below the model's vocabulary of "
                    "%lld",
                    (long long)d->docs[k].row + 1, (long long)i, id > label ? id : label,
                    (long long)session->info.meta.vocab_size);
        }
    return SBP_OK;
}

/* Arguments [first, first + count) of a list option as one dataset, or its rows that are held out. */
typedef struct data_set {
    sbp_option_id option;
    int32_t first, count;
    bool held_out;
} data_set;

/* The files of a data set, and which of their rows it takes. */
static sbp_status find_files(const load_job *job, const data_set *set, sbp_dataset_options *o) {
    const sbp_world *world = job->world;
    bool mixed = set->option == SBP_OPT_DATA && !job->session->random_rows;
    sbp_mixture *mixture = SBP_NEW(job->arena, sbp_mixture);
    const char **files = NULL;
    int32_t capacity = 0;
    if (mixed)
        SBP_TRY(sbp_run_find_mixture(world, job->arena, mixture));
    mixture->held_out = set->held_out;
    sbp_mixture_part *parts = SBP_NEW_ARRAY(job->arena, sbp_mixture_part, set->count + 1);
    for (int32_t i = 0; i < set->count; i++) {
        const char *const *some;
        int32_t some_count;
        SBP_TRY(sbp_source_expand(job->arena, world->diag,
                                  sbp_options_list_at(world->options, set->option, set->first + i), &some,
                                  &some_count));
        for (int32_t k = 0; k < some_count; k++)
            SBP_PUSH(job->arena, files, o->file_count, capacity, some[k]);
        parts[i] = mixed ? mixture->parts[i] : (sbp_mixture_part){0};
        parts[i].file_count = some_count;
    }
    o->files = files;
    mixture->parts = parts;
    o->mixture = mixed ? mixture : NULL;
    return SBP_OK;
}

static sbp_status load_files(load_job *job, const data_set *set, sbp_dataset **out) {
    sbp_world *world = job->world;
    sbp_inputs *inputs = job->inputs;
    const sbp_session *session = job->session;
    sbp_dataset_options o = options_of(job);
    bool in_turn;
    if (inputs->rl && set->option == SBP_OPT_DATA) { /* the files have prompts */
        static const char *const stream[] = {"-"};
        o.files = stream;
        o.file_count = 1;
    } else {
        SBP_TRY(find_files(job, set, &o));
    }
    SBP_TRY(sbp_columns_parse(job->arena, world->diag, sbp_options_text(world->options, SBP_OPT_COLUMNS),
                              &o.columns));
    if (packed(world->options) && session->plan && sbp_pack_keeps_rows(session->plan->program))
        return sbp_fail(world->diag, SBP_USAGE, together);
    SBP_TRY(is_in_turn(world, session, &o, &in_turn));
    if (*out && !in_turn) /* it was there before the plan */
        return check_ids(world, *out, session);
    sbp_dataset_destroy(*out);
    *out = NULL;
    if (o.file_count == 1 && strcmp(o.files[0], "-") == 0 && !inputs->stream.source)
        SBP_TRY(open_stream(world, inputs, &o));
    sbp_status status = in_turn ? load_in_turn(job, &o, out) : sbp_dataset_load(world->diag, &o, out);
    if (job->line_is_open)
        fputc('\n', stderr);
    job->line_is_open = false;
    SBP_TRY(status);
    SBP_TRY(check_stream(world, inputs, session));
    if (session->plan)
        SBP_TRY(sbp_pack_check_data(session->plan->program, world->diag, *out));
    if (packed(world->options) && (*out)->grouped)
        return sbp_fail(world->diag, SBP_USAGE, together);
    if (packed(world->options) && set->option == SBP_OPT_DATA && !set->held_out && session->plan)
        SBP_TRY(sbp_dataset_pack(world->diag, *out, o.max_tokens));
    job->chat.quiet = true; /* it was said */
    return SBP_OK;
}

/* --eos-token: a token of the tokenizer. */
static sbp_status find_eos(load_job *job) {
    const sbp_world *world = job->world;
    sbp_session *session = job->session;
    const char *eos = sbp_options_text(world->options, SBP_OPT_EOS_TOKEN);
    if (!eos)
        return SBP_OK;
    int32_t id = job->tokenizer ? sbp_tokenizer_id(job->tokenizer, eos, strlen(eos)) : -1;
    if (id < 0)
        return sbp_fail(world->diag, SBP_USAGE, "--eos-token %s: %s", eos,
                        job->tokenizer ? "the tokenizer has no such token"
                                       : "there is no tokenizer; what ends texts is then eos_token_id of the "
                                         "model's config.json");
    job->chat.eos = eos;
    session->info.user_eos = eos;
    session->info.user_eos_id = id;
    return SBP_OK;
}

/* What ends texts by the files of a model: of its config, else of how it is sampled. */
static sbp_status find_eos_ids(load_job *job, const char *model) {
    static const char *const files[] = {"config.json", "generation_config.json"};
    for (int i = 0; i < SBP_COUNT(files) && model && job->eos_ids.count == 0; i++) {
        const char *path = sbp_file_join(job->arena, model, files[i]);
        const sbp_json *root;
        sbp_status status =
            sbp_file_exists(path) ? sbp_json_read(job->arena, NULL, path, SBP_JSON_PYTHON, &root) : SBP_IO;
        if (status == SBP_MACHINE)
            return sbp_fail(job->world->diag, SBP_MACHINE, "out of memory reading '%s'", path);
        if (status == SBP_OK)
            sbp_row_ids_add(job->arena, sbp_json_member(root, "eos_token_id"), &job->eos_ids);
    }
    return SBP_OK;
}

/* The template of conversations: what the user gave, else the model's. model: a directory or file, NULL:
 * unknown. */
static sbp_status find_template(load_job *job, const char *model) {
    const sbp_world *world = job->world;
    sbp_session *session = job->session;
    const char *request = sbp_options_text(world->options, SBP_OPT_CHAT_TEMPLATE);
    sbp_template_source *source = &job->chat.source;
    SBP_TRY(find_eos(job));
    job->chat.date = sbp_options_text(world->options, SBP_OPT_DATE);
    job->chat.tokenizer = job->tokenizer;
    job->chat.assistant = sbp_loss_is_on_answers(sbp_texts_loss_on(world->options));
    if (request) {
        SBP_TRY(sbp_template_source_find(job->arena, world->diag, request, model, source));
        session->info.user_template = sbp_arena_strndup(world->arena, source->text, source->length);
        return SBP_OK;
    }
    if (model)
        SBP_TRY(sbp_template_source_of_model(job->arena, world->diag, model, source));
    const char *id = model ? sbp_hub_id_of(job->arena, model) : NULL;
    if (id && source->text) /* in the cache, whose paths are long */
        source->name = id;
    if (session->plan && session->plan->chat_template[0]) { /* it may be all that is left of the model */
        source->text = session->plan->chat_template;
        source->length = strlen(source->text);
        source->name = "the plan's";
    }
    return SBP_OK;
}

static const char *known_model(const char *path) {
    return path && (sbp_directory_exists(path) || sbp_file_exists(path)) ? path : NULL;
}

static void forget_data(sbp_inputs *inputs) {
    sbp_dataset_destroy(inputs->data);
    inputs->data = NULL;
    for (int32_t i = 0; i < inputs->eval_count; i++)
        sbp_dataset_destroy(inputs->evals[i]);
    inputs->eval_count = 0;
}

/* --data, and of it what is held out and evaluated. */
static sbp_status load_training(load_job *job) {
    const sbp_world *world = job->world;
    sbp_inputs *inputs = job->inputs;
    data_set set = {.option = SBP_OPT_DATA, .count = sbp_options_list_count(world->options, SBP_OPT_DATA)};
    SBP_TRY(load_files(job, &set, &inputs->data));
    if (!sbp_run_evaluates_held_out(world, job->session))
        return SBP_OK;
    set.held_out = true;
    sbp_dataset *held_out = inputs->eval_count > 0 ? inputs->evals[0] : NULL; /* before there was a plan */
    inputs->eval_count = 0;
    sbp_status status = load_files(job, &set, &held_out);
    inputs->evals[0] = held_out;
    inputs->eval_count = held_out != NULL;
    return status;
}

static sbp_status load_body(void *user) {
    load_job *job = user;
    const sbp_world *world = job->world;
    sbp_inputs *inputs = job->inputs;
    const sbp_session *session = job->session;
    job->chat.quiet = inputs->data != NULL; /* it was said before */
    job->tokenizer_hash = sbp_hash_bytes(session->plan->tokenizer, (size_t)session->plan->tokenizer_bytes, 0);
    if (session->plan->tokenizer_bytes > 0)
        SBP_TRY(sbp_tokenizer_from_json(job->arena, world->diag, session->plan->path,
                                        session->plan->tokenizer, (size_t)session->plan->tokenizer_bytes,
                                        &job->tokenizer));
    SBP_TRY(find_template(job, known_model(session->info.meta.tokenizer)));
    sbp_row_ids_add(job->arena, session->info.meta.eos_ids, &job->eos_ids);
    SBP_TRY(find_eos_ids(job, known_model(session->info.meta.weights)));
    int32_t files = sbp_options_list_count(world->options, SBP_OPT_DATA);
    if (inputs->data &&
        (!inputs->data->texts || sbp_pack_rows_wanted(session->plan->program) != SBP_ROWS_TEXTS)) {
        if (files == 1 && strcmp(sbp_options_list_at(world->options, SBP_OPT_DATA, 0), "-") == 0)
            return sbp_fail(
                world->diag, SBP_USAGE,
                "standard input cannot be read twice, for lengths and for training: give --seq-len N");
        forget_data(inputs); /* what else it has to have was not known */
    }
    if (inputs->data && inputs->data->longest > sbp_program_most_rows(session->plan->program))
        forget_data(inputs); /* memory had no room for as many rows: those that are too long are found */
    if (files > 0)
        SBP_TRY(load_training(job));
    if (sbp_options_given(world->options, SBP_OPT_MAX_PROMPT_LENGTH) && inputs->data &&
        inputs->data->bad == 0 && sbp_world_writes(world))
        sbp_note(world->diag, "max_prompt_length %s: no prompt is longer",
                 sbp_options_text(world->options, SBP_OPT_MAX_PROMPT_LENGTH));
    for (int32_t i = 0; i < sbp_options_list_count(world->options, SBP_OPT_EVAL); i++) {
        const data_set set = {.option = SBP_OPT_EVAL, .first = i, .count = 1};
        SBP_TRY(load_files(job, &set, &inputs->evals[i]));
        inputs->eval_count = i + 1;
    }
    return SBP_OK;
}

/* What reads a stream stays. */
static sbp_status with_arena(sbp_world *world, sbp_inputs *inputs, sbp_session *session,
                             sbp_status (*body)(void *user)) {
    load_job *job = SBP_NEW(world->arena, load_job);
    *job = (load_job){.world = world, .inputs = inputs, .session = session, .arena = sbp_arena_create()};
    if (!job->arena)
        return sbp_fail(world->diag, SBP_MACHINE, "out of memory for reading the data");
    sbp_status status = sbp_guard(job->arena, world->diag, body, job);
    if (status == SBP_OK && inputs->stream.steps) {
        inputs->stream_job = job;
        inputs->stream_is_fresh = true;
        sbp_source_set_interrupt(inputs->stream.source, sbp_interrupted);
        return SBP_OK;
    }
    sbp_arena_destroy(job->arena);
    malloc_trim(0);
    return status;
}

static sbp_status load_step_body(void *user) {
    load_job *job = user;
    const sbp_world *world = job->world;
    sbp_inputs *inputs = job->inputs;
    const sbp_session *session = job->session;
    sbp_dataset_options o = options_of(job);
    o.stream = &inputs->stream;
    SBP_TRY(sbp_columns_parse(job->arena, world->diag, sbp_options_text(world->options, SBP_OPT_COLUMNS),
                              &o.columns));
    SBP_TRY(sbp_dataset_load(world->diag, &o, &inputs->data));
    return inputs->data ? sbp_pack_check_data(session->plan->program, world->diag, inputs->data) : SBP_OK;
}

sbp_status sbp_run_load_step(const sbp_world *world, sbp_inputs *inputs) {
    sbp_dataset_destroy(inputs->data);
    inputs->data = NULL;
    return sbp_guard(inputs->stream_job->arena, world->diag, load_step_body, inputs->stream_job);
}

void sbp_inputs_close(sbp_inputs *inputs) {
    sbp_sampler_close(&inputs->sampler);
    forget_data(inputs);
    sbp_source_close(inputs->stream.source);
    sbp_rl_close(inputs->rl);
    sbp_samples_close(inputs->samples);
    free(inputs->stream_rows);
    if (inputs->stream_job)
        sbp_arena_destroy(inputs->stream_job->arena);
}

/* Room for the data sets of --eval, or the rows that are held out. */
static void make_evals(const sbp_world *world, sbp_inputs *inputs) {
    int32_t count = sbp_options_list_count(world->options, SBP_OPT_EVAL);
    if (!inputs->evals)
        inputs->evals = SBP_NEW_ARRAY(world->arena, sbp_dataset *, count + 1);
}

sbp_status sbp_run_load_data(sbp_world *world, sbp_inputs *inputs, sbp_session *session) {
    make_evals(world, inputs);
    return with_arena(world, inputs, session, load_body);
}

/* ---- models ----------------------------------------------------------------------------------------- */

static const char *tokenizer_place(load_job *job) {
    return sbp_tokenizer_place(job->arena, job->session->model,
                               sbp_options_text(job->world->options, SBP_OPT_BASE));
}

static sbp_status model_tokenizer(load_job *job) {
    const char *path = tokenizer_place(job);
    if (sbp_directory_exists(path) && !sbp_tokenizer_is_in(job->arena, path))
        return SBP_OK;
    return sbp_tokenizer_load_optional(job->arena, job->world->diag, path, &job->tokenizer);
}

/* A hash of what tokenizer and special tokens are read from: small files by their content, a GGUF file by its
 * size, times and number (stat). */
static uint64_t hash_model(load_job *job) {
    static const char *const names[] = {"tokenizer.json",
                                        "tokenizer_config.json",
                                        "special_tokens_map.json",
                                        "added_tokens.json",
                                        "tokenizer.model",
                                        "tekken.json",
                                        "vocab.json",
                                        "merges.txt",
                                        "config.json",
                                        "generation_config.json"};
    const char *path = job->session->model;
    struct stat s;
    uint64_t hash = 1;
    if (!sbp_directory_exists(path) && stat(path, &s) == 0) {
        const int64_t known[] = {s.st_size,        s.st_mtim.tv_sec,  s.st_mtim.tv_nsec,
                                 s.st_ctim.tv_sec, s.st_ctim.tv_nsec, (int64_t)s.st_ino};
        hash = sbp_hash_bytes(known, sizeof known, hash);
    }
    path = tokenizer_place(job);
    for (int i = 0; i < SBP_COUNT(names); i++) {
        const char *text;
        size_t length;
        hash = hash * 31 + 1;
        if (sbp_file_read(job->arena, NULL, sbp_file_join(job->arena, path, names[i]), &text, &length) ==
            SBP_OK)
            hash = sbp_hash_bytes(text, length, hash);
    }
    return hash;
}

static sbp_status load_raw_body(void *user) {
    load_job *job = user;
    job->tokenizer_hash = hash_model(job);
    SBP_TRY(model_tokenizer(job));
    SBP_TRY(find_template(job, tokenizer_place(job)));
    SBP_TRY(find_eos_ids(job, tokenizer_place(job)));
    return load_training(job);
}

sbp_status sbp_run_load_raw(sbp_world *world, sbp_inputs *inputs, sbp_session *session) {
    make_evals(world, inputs);
    return with_arena(world, inputs, session, load_raw_body);
}

/* ---- steps ------------------------------------------------------------------------------------------ */

static sbp_lr_options lr_options(const sbp_options *o) {
    return (sbp_lr_options){.schedule = sbp_options_text(o, SBP_OPT_SCHEDULE),
                            .lr = sbp_options_double(o, SBP_OPT_LR),
                            .warmup = sbp_options_double(o, SBP_OPT_WARMUP),
                            .num_cycles = sbp_options_double(o, SBP_OPT_NUM_CYCLES),
                            .min_lr = sbp_options_double(o, SBP_OPT_MIN_LR),
                            .min_lr_rate = sbp_options_double(o, SBP_OPT_MIN_LR_RATE),
                            .lr_end = sbp_options_double(o, SBP_OPT_LR_END),
                            .power = sbp_options_double(o, SBP_OPT_POWER),
                            .timescale = sbp_options_double(o, SBP_OPT_TIMESCALE),
                            .min_lr_ratio = sbp_options_double(o, SBP_OPT_MIN_LR_RATIO),
                            .num_decay_steps = sbp_options_int(o, SBP_OPT_NUM_DECAY_STEPS),
                            .num_stable_steps = sbp_options_int(o, SBP_OPT_NUM_STABLE_STEPS),
                            .decay_type = sbp_options_text(o, SBP_OPT_DECAY_TYPE),
                            .warmup_type = sbp_options_text(o, SBP_OPT_WARMUP_TYPE)};
}

/* ": cosine_with_min_lr, .." */
static const char *readers_of(sbp_arena *arena, const char *option) {
    const char *name;
    sbp_text out;
    sbp_text_init(&out, arena);
    for (int32_t i = 0; (name = sbp_option_word(arena, sbp_option_at(SBP_OPT_SCHEDULE), i)); i++)
        if (sbp_lr_reads(name, option))
            sbp_text_add(&out, "%s%s", out.length > 0 ? ", " : ": ", name);
    return out.length > 0 ? out.data : "";
}

/* An option of another schedule is a mistake that would go unseen. */
static sbp_status check_schedule_options(const sbp_world *world) {
    const char *schedule = sbp_options_text(world->options, SBP_OPT_SCHEDULE);
    for (int32_t i = 0; i < sbp_option_count(); i++) {
        const sbp_option *option = sbp_option_at(i);
        if (sbp_lr_reads(NULL, option->name) && !sbp_lr_reads(schedule, option->name) &&
            sbp_options_chosen(world->options, option->id))
            return sbp_fail(
                world->diag, SBP_USAGE,
                "%s has no effect with --schedule %s: leave it out, or take a schedule that reads it%s",
                sbp_option_typed(world->arena, option), schedule, readers_of(world->arena, option->name));
    }
    return SBP_OK;
}

sbp_status sbp_run_shared(const sbp_world *world, const sbp_session *session, const char **counted) {
    *counted = NULL;
    if (!sbp_options_on(world->options, SBP_OPT_SHARE_PROMPT))
        return SBP_OK;
    const char *why = sbp_pack_cannot_share(session->plan->program, session->info.meta.counted);
    *counted = session->info.meta.counted;
    return why ? sbp_fail(world->diag, SBP_USAGE, "--share-prompt: '%s': %s", session->plan_path, why)
               : SBP_OK;
}

/* Packs every step once, when the plan limits how many micro-batches one may have. */
static sbp_status check_steps(const sbp_world *world, sbp_inputs *inputs, const sbp_session *session) {
    if (session->info.most_parts == 0 || !session->plan)
        return SBP_OK;
    sbp_packer packer;
    sbp_status status = SBP_OK;
    sbp_packer_init(&packer, sbp_program_most_rows(session->plan->program), session->plan->program);
    packer.most_parts = session->info.most_parts;
    sbp_packer_share(&packer, session->plan->program, world->place.rank, world->place.count);
    SBP_TRY(sbp_run_shared(world, session, &packer.counted));
    for (int64_t step = 0; step < session->total_steps && status == SBP_OK; step++) {
        int64_t count;
        const int64_t *rows = sbp_sampler_next(&inputs->sampler, &count);
        status = sbp_packer_pack(&packer, world->diag, inputs->data, rows, count);
        if (status == SBP_OK)
            status = sbp_packer_check(&packer, world->diag);
    }
    sbp_packer_close(&packer);
    sbp_sampler_seek(&inputs->sampler, 0, 0);
    return status;
}

/* Steps between two of what `every` is about; below 1 it is a part of all, rounded up as
 * transformers has it. */
static sbp_status steps_between(const sbp_world *world, const sbp_session *session, sbp_option_id every,
                                int64_t *out) {
    const char *name = sbp_option_name(every);
    double value = sbp_options_double(world->options, every);
    *out = 0;
    if (isnan(value))
        return SBP_OK;
    if (value < 1 && session->total_steps >= SBP_STEPS_UNKNOWN)
        return sbp_fail(
            world->diag, SBP_USAGE,
            "--%s %g is a part of all steps, whose number a stream does not tell: give --steps, or a "
            "whole number",
            name, value);
    if (value >= 1 && value != floor(value))
        return sbp_fail(world->diag, SBP_USAGE,
                        "--%s %g: give a whole number of steps, or, below 1, a part of all steps", name,
                        value);
    *out = (int64_t)(value < 1 ? ceil((double)session->total_steps * value) : value);
    return SBP_OK;
}

/* When there are evaluations, checkpoints and lines of progress. */
static sbp_status plan_intervals(const sbp_world *world, const sbp_inputs *inputs, sbp_session *session) {
    const sbp_options *o = world->options;
    int64_t epoch = inputs->steps_per_epoch * (session->inner_epochs > 0 ? session->inner_epochs : 1);
    SBP_TRY(steps_between(world, session, SBP_OPT_EVAL_EVERY, &session->eval_every));
    SBP_TRY(steps_between(world, session, SBP_OPT_SAVE_EVERY, &session->save_every));
    SBP_TRY(steps_between(world, session, SBP_OPT_LOG_EVERY, &session->log_every));
    if (sbp_options_is(o, SBP_OPT_EVAL_STRATEGY, "epoch"))
        session->eval_every = epoch;
    session->eval_after = sbp_options_double(o, SBP_OPT_EVAL_DELAY) *
                          (double)(sbp_options_is(o, SBP_OPT_EVAL_STRATEGY, "epoch") ? epoch : 1);
    if (sbp_options_is(o, SBP_OPT_SAVE_STRATEGY, "epoch"))
        session->save_every = epoch;
    else if (sbp_options_is(o, SBP_OPT_SAVE_STRATEGY, "no") ||
             sbp_options_is(o, SBP_OPT_SAVE_STRATEGY, "best"))
        session->save_every = 0;
    return SBP_OK;
}

/* How many steps will come is not known, unless --steps says so. */
static sbp_status plan_stream(const sbp_world *world, const sbp_inputs *inputs, sbp_session *session) {
    const sbp_options *o = world->options;
    const char *schedule = sbp_options_text(o, SBP_OPT_SCHEDULE);
    double warmup = sbp_options_double(o, SBP_OPT_WARMUP);
    bool constant = strncmp(schedule, "constant", strlen("constant")) == 0 && !(warmup > 0 && warmup < 1);
    session->state =
        (sbp_run_state){.evaluated = -1, .best = SBP_BEST_NONE, .seed = sbp_options_int(o, SBP_OPT_SEED)};
    session->total_steps = sbp_options_int(o, SBP_OPT_STEPS);
    if (inputs->rl && session->total_steps < 0)
        session->total_steps =
            (int64_t)ceil(sbp_options_double(o, SBP_OPT_EPOCHS) * (double)sbp_rl_epoch(inputs->rl)) *
            session->inner_epochs;
    if (session->total_steps < 0 && !constant)
        return sbp_fail(
            world->diag, SBP_USAGE,
            "a stream of steps whose number is not known has no schedule '%s'%s: give --schedule constant, "
            "or --steps N",
            schedule, warmup > 0 && warmup < 1 ? " with warmup for a share of them" : "");
    if (session->total_steps < 0)
        session->total_steps = SBP_STEPS_UNKNOWN;
    SBP_TRY(plan_intervals(world, inputs, session));
    SBP_TRY(check_schedule_options(world));
    sbp_lr_options lr = lr_options(o);
    return sbp_lr_init(&session->lr, world->diag, &lr, session->total_steps);
}

sbp_status sbp_run_plan_steps(const sbp_world *world, sbp_inputs *inputs, sbp_session *session) {
    const sbp_options *o = world->options;
    const char *counted;
    if (session->plan)
        SBP_TRY(sbp_run_shared(world, session, &counted));
    if (inputs->stream.steps)
        return plan_stream(world, inputs, session);
    int64_t tokens = sbp_options_int(o, SBP_OPT_BATCH_TOKENS);
    if (tokens > 0 && sbp_options_chosen(o, SBP_OPT_BATCH_SIZE))
        return sbp_fail(world->diag, SBP_USAGE, "--batch-size and --batch-tokens: give one of them");
    session->state = (sbp_run_state){.evaluated = -1,
                                     .best = SBP_BEST_NONE,
                                     .data_hash = inputs->data->hash,
                                     .seed = sbp_options_int(o, SBP_OPT_SEED),
                                     .shuffle = sbp_options_on(o, SBP_OPT_SHUFFLE),
                                     .batch_rows = sbp_options_int(o, SBP_OPT_BATCH_SIZE),
                                     .batch_tokens = tokens > 0 ? tokens : 0};
    SBP_TRY(sbp_sampler_init(&inputs->sampler, world->diag, inputs->data, (uint64_t)session->state.seed,
                             session->state.shuffle, session->state.batch_rows, session->state.batch_tokens));
    inputs->steps_per_epoch = sbp_sampler_epoch_steps(&inputs->sampler, 0);
    session->total_steps = sbp_options_int(o, SBP_OPT_STEPS);
    if (session->total_steps < 0)
        session->total_steps =
            sbp_sampler_total_steps(&inputs->sampler, sbp_options_double(o, SBP_OPT_EPOCHS)) *
            (session->plan ? session->inner_epochs : 1);
    else if (sbp_options_chosen(o, SBP_OPT_EPOCHS))
        sbp_note(world->diag, "--steps takes precedence over --epochs");
    if (session->train && inputs->data->label_count == 0)
        sbp_note(world->diag, "no token of the data is trained: all labels are -100, and the loss stays 0");
    sbp_sampler_seek(&inputs->sampler, 0, 0);
    SBP_TRY(plan_intervals(world, inputs, session));
    SBP_TRY(check_schedule_options(world));
    sbp_lr_options lr = lr_options(o);
    SBP_TRY(sbp_lr_init(&session->lr, world->diag, &lr, session->total_steps));
    return session->check ? SBP_OK : check_steps(world, inputs, session);
}
