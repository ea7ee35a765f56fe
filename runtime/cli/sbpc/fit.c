/* fit.c: sbpc fit: which models fit which machines. Each cell is planned by what plans for compile
 * --device-profile, several at a time; what is said depends on neither their number nor their order. */
#include "runtime/cli/sbpc/fit.h"

#include <ctype.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "frontends/formats/files/hub_fetch.h"
#include "ir/base/machine.h"

/* Evaluations for a refusal's remedies: what a person would wait for is worth more than remedies that
 * nobody takes. */
enum { TRIES_FOR_REMEDIES = 600 };

/* ---- what is asked for ------------------------------------------------------------------------------- */

/* Words of a LIST, whose values join some by ',' or '+'. */
static const char **words_of(const sbp_fit *f, sbp_option_id id, const char *fallback, int32_t *count) {
    int32_t capacity = 0, given = sbp_options_list_count(f->options, id);
    const char **words = NULL;
    *count = 0;
    for (int32_t i = 0; i < given || (given == 0 && i == 0); i++)
        for (const char *at = given > 0 ? sbp_options_list_at(f->options, id, i) : fallback; *at;) {
            size_t length = strcspn(at, ",+ ");
            if (length > 0)
                SBP_PUSH(f->arena, words, *count, capacity, sbp_arena_strndup(f->arena, at, length));
            at += length + (at[length] != 0);
        }
    return words;
}

static sbp_status read_kinds(sbp_fit *f) {
    const char **words = words_of(f, SBP_OPT_KINDS, "full,lora,qlora", &f->kind_count);
    f->kinds = SBP_NEW_ARRAY(f->arena, sbp_fit_kind, f->kind_count);
    for (int32_t i = 0; i < f->kind_count; i++) {
        int kind = 0;
        while (kind < SBP_FIT_KIND_COUNT && strcmp(sbp_fit_kind_names[kind], words[i]) != 0)
            kind++;
        if (kind == SBP_FIT_KIND_COUNT)
            return sbp_fail(f->diag, SBP_USAGE, "--kinds %s: expected full, lora or qlora, joined by ','",
                            words[i]);
        f->kinds[i] = (sbp_fit_kind)kind;
    }
    return SBP_OK;
}

/* "8k" is 8192. */
static sbp_status read_lengths(sbp_fit *f) {
    const char **words = words_of(f, SBP_OPT_LENGTHS, "8k,32k,128k", &f->length_count);
    f->lengths = SBP_NEW_ARRAY(f->arena, int64_t, f->length_count);
    for (int32_t i = 0; i < f->length_count; i++) {
        char *end;
        long long n = strtoll(words[i], &end, 10);
        int64_t unit = 1;
        if (tolower((unsigned char)*end) == 'k' || tolower((unsigned char)*end) == 'm')
            unit = tolower((unsigned char)*end++) == 'k' ? 1 << 10 : 1 << 20;
        if (!isdigit((unsigned char)words[i][0]) || *end || n < 1 || n > INT32_MAX / unit)
            return sbp_fail(f->diag, SBP_USAGE,
                            "--lengths %s: expected numbers of tokens, such as 8k,32k,100000", words[i]);
        f->lengths[i] = n * unit;
    }
    return SBP_OK;
}

static sbp_status read_cards(sbp_fit *f) {
    static const char some[] = "h100-80gb,h200,a100-80gb,rtx4090-24gb,rtx5090-32gb,l40s-48gb";
    const char **words = words_of(f, SBP_OPT_CARDS, some, &f->card_count);
    f->cards = SBP_NEW_ARRAY(f->arena, sbp_profile, f->card_count);
    f->card_names = SBP_NEW_ARRAY(f->arena, const char *, f->card_count);
    for (int32_t i = 0; i < f->card_count; i++) {
        SBP_TRY(sbp_profile_find(f->arena, f->diag, sbp_option_name(SBP_OPT_CARDS), words[i], &f->cards[i]));
        const char *slash = strrchr(words[i], '/');
        f->card_names[i] = slash ? slash + 1 : f->cards[i].name;
    }
    return SBP_OK;
}

static sbp_status list_cards(sbp_arena *arena, sbp_diag *diag) {
    sbp_profile card;
    char memory[32], host[32];
    for (int32_t i = 0; sbp_profile_at(i); i++) {
        SBP_TRY(sbp_profile_find(arena, diag, sbp_option_name(SBP_OPT_CARDS), sbp_profile_at(i), &card));
        printf("%-14s %s, %s of the host\n", card.name,
               sbp_format_bytes(memory, sizeof memory, (double)card.memory_bytes),
               sbp_format_bytes(host, sizeof host, (double)card.host_memory_bytes));
    }
    return SBP_OK;
}

/* What was given that plans depend on, as it would be typed. */
static void describe_given(sbp_fit *f) {
    sbp_text text;
    const char **given;
    int32_t count;
    sbp_text_init(&text, f->arena);
    sbp_options_to_args(f->options, SBP_PHASE_COMPILE, SBP_PHASE_FIT, f->arena, &given, &count);
    sbp_options_spell(f->arena, given, &count);
    for (int32_t i = 0; i < count; i++)
        if (strncmp(given[i], "--config=", 9) != 0)
            sbp_text_add(&text, "%s%s", text.length > 0 ? " " : "", given[i]);
    f->given = text.length > 0 ? text.data : "";
}

/* What a cell decides is no option of the command. */
static sbp_status check_options(const sbp_fit *f) {
    static const struct {
        sbp_option_id id;
        const char *instead;
    } decided[] = {{SBP_OPT_SEQ_LEN, "use --lengths"},       {SBP_OPT_DEVICE_PROFILE, "use --cards"},
                   {SBP_OPT_BACKEND, "use --cards"},         {SBP_OPT_OUTPUT, "no plan is written"},
                   {SBP_OPT_TUNE, "nothing is run"},         {SBP_OPT_STOP_AFTER, "use sbpc compile"},
                   {SBP_OPT_PRINT_AFTER, "use sbpc compile"}};
    for (int i = 0; i < SBP_COUNT(decided); i++)
        if (sbp_options_given(f->options, decided[i].id))
            return sbp_fail(f->diag, SBP_USAGE, "--%s is not for sbpc fit: %s",
                            sbp_option_name(decided[i].id), decided[i].instead);
    return SBP_OK;
}

/* ---- one cell ---------------------------------------------------------------------------------------- */

/* While it is planned. */
typedef struct attempt {
    const sbp_fit *f;
    sbp_arena *arena, *keep; /* of the plan; of what is said of it */
    sbp_diag *diag;
    sbp_fit_cell *cell;
    sbp_fit_model *model; /* gets what is known of it; NULL */
    bool planned;
} attempt;

static bool is_of_adapters(const sbp_option *option) {
    return strncmp(option->name, "lora", 4) == 0;
}

/* What compile would be told. */
static sbp_status options_of(const attempt *a, const sbp_options **out) {
    const sbp_fit *f = a->f;
    const sbp_fit_cell *cell = a->cell;
    const bool full = cell->kind == SBP_FIT_FULL;
    const char **given, **argv = NULL;
    int32_t count, argc = 0, capacity = 0;
    bool lora = false, base = false;
    sbp_options_to_args(f->options, SBP_PHASE_COMPILE, 0, a->arena, &given, &count);
    for (int32_t i = 0; i < count; i++) {
        const char *name = given[i] + 2, *equals = strchr(name, '=');
        const sbp_option *option =
            sbp_option_find(equals ? sbp_arena_strndup(a->arena, name, (size_t)(equals - name)) : name);
        if (!option || option->id == SBP_OPT_JSON || option->id == SBP_OPT_QUIET ||
            option->id == SBP_OPT_CONFIG || /* whose lines are among these */
            (full && is_of_adapters(option)) ||
            (option->id == SBP_OPT_BASE_DTYPE && cell->kind != SBP_FIT_QLORA))
            continue;
        lora |= is_of_adapters(option);
        base |= option->id == SBP_OPT_BASE_DTYPE;
        SBP_PUSH(a->arena, argv, argc, capacity, given[i]);
    }
    if (!full && !lora)
        SBP_PUSH(a->arena, argv, argc, capacity, "--lora=on");
    if (cell->kind == SBP_FIT_QLORA && !base)
        SBP_PUSH(a->arena, argv, argc, capacity, "--base-dtype=nf4");
    SBP_PUSH(a->arena, argv, argc, capacity,
             sbp_arena_printf(a->arena, "--device-profile=%s", f->cards[cell->card].name));
    int64_t tokens = cell->length < f->length_count ? f->lengths[cell->length] : cell->tokens;
    SBP_PUSH(a->arena, argv, argc, capacity,
             tokens > 0 ? sbp_arena_printf(a->arena, "--seq-len=%lld", (long long)tokens) : "--seq-len=max");
    SBP_PUSH(a->arena, argv, argc, capacity, f->models[cell->model].path);
    sbp_options_spell(a->arena, argv, &argc);
    sbp_options *options;
    char **list = (char **)(void *)argv; /* which are only read */
    SBP_TRY(sbp_options_parse(a->arena, a->diag, "sbpc fit", SBP_PHASE_COMPILE, argc, list, &options));
    *out = options;
    return SBP_OK;
}

static void keep_model(const attempt *a, const sbp_compilation *c) {
    if (!a->model || !c->model.module)
        return;
    a->model->type = sbp_arena_strdup(a->keep, c->model.model_type);
    a->model->positions = c->model.max_positions;
    for (int32_t i = 0; i < c->model.module->param_count; i++)
        if (c->model.module->params[i].owner != SBP_OF_ADAPTER)
            a->model->parameters += sbp_type_row_elems(&c->model.module->params[i].type);
}

static int64_t count_trained(const sbp_compilation *c) {
    int64_t sum = 0;
    for (int32_t i = 0; c->model.module && i < c->model.module->param_count; i++)
        sum +=
            c->model.module->params[i].trainable ? sbp_type_row_elems(&c->model.module->params[i].type) : 0;
    return sum;
}

static sbp_status try_cell(void *user) {
    attempt *a = user;
    sbp_fit_cell *cell = a->cell;
    sbp_compilation *c = SBP_NEW(a->arena, sbp_compilation);
    *c = (sbp_compilation){.arena = a->arena,
                           .diag = a->diag,
                           .model_path = a->f->models[cell->model].path,
                           .terse = cell->length == a->f->length_count,
                           .tries_for_remedies = TRIES_FOR_REMEDIES};
    SBP_TRY(options_of(a, &c->options));
    c->pipeline.arena = a->arena;
    c->pipeline.diag = a->diag;
    sbp_status status = sbp_cli_plan(c);
    const sbp_plan_estimate *e = &c->estimate;
    keep_model(a, c);
    cell->trained = count_trained(c);
    a->planned = c->request.t_max != 0;
    cell->memory_bytes = c->request.memory_bytes;
    cell->host_memory_bytes = c->request.host_memory_bytes;
    cell->fits = status == SBP_OK;
    sbp_remedy *remedies = SBP_NEW_ARRAY(a->keep, sbp_remedy, e->remedy_count);
    for (int32_t i = 0; i < e->remedy_count; i++) {
        remedies[i] = e->remedies[i];
        remedies[i].text = sbp_arena_strdup(a->keep, e->remedies[i].text);
    }
    cell->remedies = remedies;
    cell->remedy_count = e->remedy_count;
    SBP_TRY(status);
    cell->tokens = sbp_program_most_rows(c->pipeline.program);
    cell->device_bytes = c->pipeline.program->arena_bytes[SBP_DEVICE] + c->process.bytes;
    cell->host_bytes = c->pipeline.program->arena_bytes[SBP_HOST];
    cell->seconds = e->seconds;
    cell->placement = sbp_arena_strdup(a->keep, sbp_planner_placement(a->arena, &e->schedule, ""));
    return SBP_OK;
}

/* The first sentence of what is wrong, without "error: " and what would help, which stands elsewhere. */
static const char *reason_of(sbp_arena *keep, sbp_diag *diag) {
    const char *text = diag ? sbp_diag_text(diag, SBP_ERROR) : "out of memory";
    text += strncmp(text, "error: ", 7) == 0 ? 7 : 0;
    text += strncmp(text, "does not fit: ", 14) == 0 ? 14 : 0;
    size_t length = strcspn(text, "\n");
    static const char *const ends[] = {"; no allowed setting", "; no tried setting", ". It fits ",
                                       ". None of "};
    for (int i = 0; i < SBP_COUNT(ends); i++) {
        const char *end = strstr(text, ends[i]);
        if (end && (size_t)(end - text) < length)
            length = (size_t)(end - text);
    }
    return sbp_arena_strndup(keep, text, length);
}

static void plan_cell(const sbp_fit *f, sbp_arena *keep, sbp_fit_cell *cell, sbp_fit_model *model) {
    attempt a = {.f = f,
                 .arena = sbp_arena_create(),
                 .keep = keep,
                 .diag = sbp_diag_create(),
                 .cell = cell,
                 .model = model};
    cell->placement = "";
    cell->done = true;
    cell->status = a.arena && a.diag ? sbp_guard(a.arena, a.diag, try_cell, &a) : SBP_MACHINE;
    if (cell->status != SBP_OK)
        cell->reason = reason_of(keep, a.arena ? a.diag : NULL);
    if (model && !a.planned)
        model->error = cell->reason;
    sbp_arena_destroy(a.arena);
    sbp_diag_destroy(a.diag);
}

/* ---- all of them ------------------------------------------------------------------------------------- */

/* What fits nothing of SHORT tokens fits nothing: that is found out sooner than the longest of none. */
enum { SHORT = 256 };

/* The cells of a model, a card and a kind. */
static void plan_row(const sbp_fit *f, sbp_arena *keep, sbp_fit_cell *row) {
    sbp_fit_cell *longest = &row[f->length_count];
    if (f->models[row->model].error)
        return;
    for (int32_t n = 0; n < f->length_count; n++) {
        if (!row[n].done)
            plan_cell(f, keep, &row[n], NULL);
        longest->fits |= row[n].fits;
    }
    if (!longest->fits) {
        longest->tokens = SHORT;
        plan_cell(f, keep, longest, NULL);
    }
    longest->tokens = 0;
    if (longest->fits)
        plan_cell(f, keep, longest, NULL);
}

/* Threads that take one row after the other. */
typedef struct crew {
    sbp_fit *f;
    atomic_int next, done;
    bool shows; /* how far it is, on a terminal */
} crew;

typedef struct worker {
    crew *crew;
    sbp_arena *keep;
    sbp_diag *diag;
    pthread_t thread;
    bool runs;
    sbp_status status;
} worker;

static sbp_status work(void *user) {
    worker *w = user;
    sbp_fit *f = w->crew->f;
    int all = f->cell_count / (f->length_count + 1);
    for (int i; (i = atomic_fetch_add(&w->crew->next, 1)) < all;) {
        plan_row(f, w->keep, &f->cells[i * (f->length_count + 1)]);
        int done = atomic_fetch_add(&w->crew->done, 1) + 1;
        if (w->crew->shows)
            fprintf(stderr, "\rsbpc: %d of %d%s", done, all, done == all ? "\r\033[K" : "");
    }
    return SBP_OK;
}

static void *run_worker(void *user) {
    worker *w = user;
    w->status = sbp_guard(w->keep, w->diag, work, w);
    return NULL;
}

static sbp_status plan_cells(sbp_fit *f) {
    int64_t jobs = sbp_options_int(f->options, SBP_OPT_JOBS);
    jobs = jobs > 0 ? jobs : sbp_machine_cores();
    int64_t rows = f->cell_count / (f->length_count + 1);
    jobs = jobs < rows ? jobs : rows;
    crew all = {.f = f, .shows = isatty(STDERR_FILENO) && !sbp_options_on(f->options, SBP_OPT_QUIET)};
    worker *workers = SBP_NEW_ARRAY(f->arena, worker, (int32_t)jobs);
    sbp_status status = SBP_OK;
    for (int64_t i = 0; i < jobs; i++) {
        worker *w = &workers[i];
        *w = (worker){.crew = &all, .keep = i > 0 ? sbp_arena_create() : f->arena, .diag = sbp_diag_create()};
        w->runs = i > 0 && w->keep && w->diag && pthread_create(&w->thread, NULL, run_worker, w) == 0;
    }
    run_worker(&workers[0]); /* this thread, which is enough when no other can be had */
    status = workers[0].status;
    for (int64_t i = 1; i < jobs; i++) {
        if (workers[i].runs)
            (void)pthread_join(workers[i].thread, NULL);
        status = status == SBP_OK && workers[i].runs ? workers[i].status : status;
    }
    f->kept = SBP_NEW_ARRAY(f->arena, sbp_arena *, (int32_t)jobs);
    for (int64_t i = 0; i < jobs; i++) {
        sbp_diag_destroy(workers[i].diag);
        if (i > 0)
            f->kept[f->kept_count++] = workers[i].keep;
    }
    return status == SBP_OK ? SBP_OK : sbp_fail(f->diag, status, "out of memory while plans were made");
}

/* What nothing can be planned of is said at once: its first cell says why. */
static sbp_status look_at_models(sbp_fit *f) {
    int32_t of_model = f->cell_count / f->model_count, unknown = 0;
    for (int32_t m = 0; m < f->model_count; m++) {
        plan_cell(f, f->arena, &f->cells[m * of_model], &f->models[m]);
        const sbp_fit_model *model = &f->models[m];
        if (!model->error)
            continue;
        if (f->cells[m * of_model].status == SBP_USAGE || f->model_count == 1)
            return sbp_fail(f->diag, f->cells[m * of_model].status, "%s", model->error);
        sbp_warn(f->diag, "%s: %s", model->argument, model->error);
        unknown++;
    }
    return unknown < f->model_count
               ? SBP_OK
               : sbp_fail(f->diag, SBP_INPUT, "none of the %d models can be planned", (int)unknown);
}

/* ---- the cheapest change ----------------------------------------------------------------------------- */

/* What trains the same, on fewer tokens, otherwise. */
static int rank_of(const sbp_fit_cell *cell, const sbp_fit *f, const sbp_remedy *r) {
    if (r->change == SBP_CHANGE_OPTIMIZER)
        return 3;
    return r->change == SBP_CHANGE_ROWS && r->t_max < f->lengths[cell->length] ? 1 : 0;
}

static void choose_change(const sbp_fit *f, sbp_fit_cell *cell) {
    int best = 4;
    for (int32_t i = 0; i < cell->remedy_count; i++) {
        const sbp_remedy *r = &cell->remedies[i];
        int rank = rank_of(cell, f, r);
        if (rank > best || (rank == best && r->seconds >= cell->change_seconds))
            continue;
        best = rank;
        cell->change = r->text;
        cell->change_seconds = r->seconds;
        cell->change_tokens = rank == 1 ? r->t_max : f->lengths[cell->length];
    }
    const sbp_fit_cell *longest = &cell[f->length_count - cell->length];
    if (longest->fits && best > 0) { /* with a schedule for it */
        best = 1;
        cell->change = sbp_arena_printf(f->arena, "--seq-len %lld", (long long)longest->tokens);
        cell->change_seconds = longest->seconds;
        cell->change_tokens = longest->tokens;
    }
    for (int32_t k = 0; k < f->kind_count && best > 1; k++) {
        const sbp_fit_cell *other = &cell[(k - cell->place) * (f->length_count + 1)];
        if (f->kinds[k] <= cell->kind || !other->fits ||
            (best == 2 && other->seconds >= cell->change_seconds))
            continue;
        best = 2;
        cell->change = f->kinds[k] == SBP_FIT_LORA ? "--lora" : "--lora --base-dtype nf4";
        cell->change_seconds = other->seconds;
        cell->change_tokens = f->lengths[cell->length];
    }
}

/* ---- the command ------------------------------------------------------------------------------------- */

static sbp_status find_models(sbp_fit *f) {
    f->model_count = sbp_options_arg_count(f->options);
    f->models = SBP_NEW_ARRAY(f->arena, sbp_fit_model, f->model_count);
    for (int32_t i = 0; i < f->model_count; i++) {
        sbp_fit_model *m = &f->models[i];
        m->argument = sbp_options_arg(f->options, i);
        SBP_TRY(sbp_hub_config(f->arena, f->diag, m->argument, &m->path));
        const char *slash = strrchr(m->path, '/');
        if (strcmp(slash ? slash + 1 : m->path, "config.json") == 0) /* it is called as its directory is */
            m->path = slash ? sbp_arena_strndup(f->arena, m->path, (size_t)(slash - m->path)) : ".";
        m->name = sbp_model_name(f->arena, m->path);
    }
    return SBP_OK;
}

static void make_cells(sbp_fit *f) {
    f->cell_count = f->model_count * f->card_count * f->kind_count * (f->length_count + 1);
    f->cells = SBP_NEW_ARRAY(f->arena, sbp_fit_cell, f->cell_count);
    sbp_fit_cell *cell = f->cells;
    for (int32_t m = 0; m < f->model_count; m++)
        for (int32_t c = 0; c < f->card_count; c++)
            for (int32_t k = 0; k < f->kind_count; k++)
                for (int32_t n = 0; n <= f->length_count; n++)
                    *cell++ =
                        (sbp_fit_cell){.model = m, .card = c, .place = k, .kind = f->kinds[k], .length = n};
}

static void print_help(sbp_arena *arena, const char *topic) {
    sbp_text text;
    sbp_text_init(&text, arena);
    if (!topic || !sbp_options_is_topic(SBP_PHASE_FIT | SBP_PHASE_COMPILE, topic))
        sbp_text_add(
            &text,
            "usage: sbpc fit MODEL.. [--cards NAME,..] [options]   does it fit, and how long does a step "
            "take?\n\n"
            "MODEL: a directory, a config.json, or a name on the Hub, of which only config.json is fetched.\n"
            "Options of sbpc compile count for every plan. For example:\n\n"
            "  sbpc fit Qwen/Qwen3-8B --cards rtx4090-24gb,h100-80gb --lengths 8k,128k --host-memory "
            "128GiB\n");
    sbp_options_print_topic(&text, SBP_PHASE_FIT, SBP_PHASE_FIT | SBP_PHASE_COMPILE, topic);
    fputs(text.data, stdout);
}

static sbp_status fit_models(sbp_fit *f) {
    sbp_text text;
    sbp_text_init(&text, f->arena);
    SBP_TRY(check_options(f));
    SBP_TRY(read_cards(f));
    SBP_TRY(read_kinds(f));
    SBP_TRY(read_lengths(f));
    describe_given(f);
    SBP_TRY(find_models(f));
    make_cells(f);
    SBP_TRY(look_at_models(f));
    SBP_TRY(plan_cells(f));
    for (int32_t i = 0; i < f->cell_count; i++) {
        sbp_fit_cell *cell = &f->cells[i];
        if (cell->status == SBP_USAGE && !f->models[cell->model].error)
            return sbp_fail(f->diag, SBP_USAGE, "%s: %s", f->models[cell->model].name, cell->reason);
        if (!cell->fits && cell->length < f->length_count)
            choose_change(f, cell);
    }
    const char *html = sbp_options_text(f->options, SBP_OPT_HTML);
    if (html) {
        sbp_fit_print_page(f, &text);
        SBP_TRY(sbp_file_write(f->diag, html, text.data, text.length));
        sbp_text_init(&text, f->arena);
    }
    (sbp_options_on(f->options, SBP_OPT_JSON) ? sbp_fit_print_json : sbp_fit_print_text)(f, &text);
    fputs(text.data, stdout);
    return SBP_OK;
}

sbp_status sbp_cli_fit(sbp_arena *arena, sbp_diag *diag, int argc, char **argv) {
    sbp_options *options;
    SBP_TRY(
        sbp_options_parse(arena, diag, "sbpc fit", SBP_PHASE_FIT | SBP_PHASE_COMPILE, argc, argv, &options));
    int32_t count = sbp_options_arg_count(options);
    if (sbp_options_on(options, SBP_OPT_QUIET))
        sbp_diag_set_quiet(diag);
    if (sbp_options_on(options, SBP_OPT_HELP)) {
        print_help(arena, count > 0 ? sbp_options_arg(options, count - 1) : NULL);
        return SBP_OK;
    }
    if (sbp_options_list_count(options, SBP_OPT_CARDS) == 1 &&
        strcmp(sbp_options_list_at(options, SBP_OPT_CARDS, 0), "list") == 0)
        return list_cards(arena, diag);
    if (count == 0)
        return sbp_fail(diag, SBP_USAGE, "no MODEL was given; usage: sbpc fit MODEL.. (sbpc fit --help)");
    sbp_fit f = {.arena = arena, .diag = diag, .options = options};
    sbp_status status = fit_models(&f);
    for (int32_t i = 0; i < f.kept_count; i++)
        sbp_arena_destroy(f.kept[i]);
    return status;
}
