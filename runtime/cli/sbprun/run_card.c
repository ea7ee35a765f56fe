/* run_card.c: the model card, README.md of a result, as the Hub shows it. It goes where the model goes: paths, and
 * what options hold that is no number or word of theirs, stay out of it. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "frontends/files/hub.h"
#include "ir/base/json_write.h"
#include "runtime/cli/sbprun/outputs.h"
#include "runtime/data/jsonl.h"

/* By which a card is known as one that may be written anew. */
#define MARK "# Written by sbprun; without this line it stays as it is.\n"

enum { MOST_POINTS = 16 };

typedef struct point {
    int64_t step;
    double loss, eval_loss;
} point;

typedef struct card {
    sbp_arena *arena;
    sbp_text text;
    const char *base;  /* a name of the Hub; NULL: there is none */
    const char *model; /* what a reader may know of a base that has none */
    bool adapter;
    point points[2 * MOST_POINTS];
    int32_t point_count;
    int64_t every, lines; /* each so many-th line is a point */
} card;

/* ---- text ------------------------------------------------------------------------------------------- */

/* `text` in Markdown, also in a table: no end of a line, and nothing that ends the quotes. */
static void add_code(card *c, const char *text) {
    sbp_text_add(&c->text, "`");
    for (; *text; text++)
        if (*text == '|')
            sbp_text_add(&c->text, "\\|");
        else
            sbp_text_add(&c->text, "%c", *text == '`' ? '\'' : (unsigned char)*text < ' ' ? ' ' : *text);
    sbp_text_add(&c->text, "`");
}

/* "key: "text"", in YAML, where a string of JSON is one. */
static void add_yaml(card *c, const char *before, const char *text) {
    sbp_json_writer w = sbp_json_writer_on(&c->text);
    sbp_text_add(&c->text, "%s", before);
    sbp_json_write_string(&w, NULL, text);
    sbp_text_add(&c->text, "\n");
}

/* The last part of a path. */
static const char *name_of(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash && slash[1] ? slash + 1 : path;
}

/* ---- what it is of ---------------------------------------------------------------------------------- */

static sbp_status find_base(const sbp_world *world, const sbp_session *session, card *c) {
    const sbp_plan_meta *meta = &session->info.meta;
    const char *text = meta->adapter, *path, *adapter, *name = NULL;
    uint64_t seed;
    const sbp_json *root;
    SBP_TRY(sbp_run_find_weights(world, session, &path, &adapter, &seed));
    c->adapter = text && !session->info.merge;
    if (text &&
        sbp_json_parse(c->arena, NULL, "adapter_config.json", text, strlen(text), 0, &root) == SBP_OK) {
        const sbp_json *member = sbp_json_member(root, "base_model_name_or_path");
        name = member && member->kind == SBP_JSON_STRING ? member->string : NULL;
    }
    if (name && sbp_hub_is_id(name) && !sbp_directory_exists(name))
        c->base = name;
    else if (path)
        c->base = sbp_hub_id_of(c->arena, path);
    c->model = meta->name         ? meta->name
               : path             ? sbp_run_model_name(c->arena, path)
               : meta->model_type ? meta->model_type
                                  : "model";
    return SBP_OK;
}

/* What a directory's README.md says of its licence, a word; NULL: nothing. */
static const char *find_license(card *c, const char *directory) {
    const char *text, *at;
    size_t length;
    if (!directory || !sbp_directory_exists(directory) ||
        sbp_file_read(c->arena, NULL, sbp_file_join(c->arena, directory, "README.md"), &text, &length) !=
            SBP_OK ||
        strncmp(text, "---\n", 4) != 0)
        return NULL;
    const char *end = strstr(text + 3, "\n---");
    if (!end || !(at = strstr(text, "\nlicense: ")) || at > end)
        return NULL;
    at += strlen("\nlicense: ");
    size_t n = strspn(at, "abcdefghijklmnopqrstuvwxyz0123456789.-");
    return n > 0 && n < 60 && at[n] == '\n' ? sbp_arena_strndup(c->arena, at, n) : NULL;
}

/* The name of a data set that lies in a cache of the Hub: ../datasets--ORGANISATION--NAME/..; NULL: it does not. */
static const char *dataset_of(card *c, const char *path) {
    static const char mark[] = "/datasets--";
    char resolved[4096];
    const char *at = realpath(path, resolved) ? strstr(resolved, mark) : NULL;
    if (!at && !(at = strstr(path, mark)))
        return NULL;
    at += strlen(mark);
    char *name = sbp_arena_strndup(c->arena, at, strcspn(at, "/")), *gap = strstr(name, "--");
    if (gap) {
        *gap = '/';
        memmove(gap + 1, gap + 2, strlen(gap + 2) + 1);
    }
    return sbp_hub_is_id(name) ? name : NULL;
}

static void add_datasets(const sbp_world *world, card *c) {
    const char *last = NULL;
    for (int32_t i = 0; i < sbp_options_list_count(world->options, SBP_OPT_DATA); i++) {
        const char *name = dataset_of(c, sbp_options_list_at(world->options, SBP_OPT_DATA, i));
        if (!name || (last && strcmp(last, name) == 0))
            continue;
        if (!last)
            sbp_text_add(&c->text, "datasets:\n");
        add_yaml(c, "- ", name);
        last = name;
    }
}

static sbp_status add_front_matter(const sbp_world *world, const sbp_session *session, card *c,
                                   const char *name) {
    const char *path, *adapter, *license;
    uint64_t seed;
    SBP_TRY(sbp_run_find_weights(world, session, &path, &adapter, &seed));
    sbp_text_add(&c->text, "---\n" MARK);
    if (c->base)
        add_yaml(c, "base_model: ", c->base);
    add_datasets(world, c);
    if ((license = find_license(c, path)))
        add_yaml(c, "license: ", license);
    sbp_text_add(&c->text, "library_name: %s\n", c->adapter ? "peft" : "transformers");
    add_yaml(c, "model_name: ", name);
    sbp_text_add(&c->text, "pipeline_tag: text-generation\ntags:\n- generated_from_trainer\n- sbprun\n");
    if (session->info.meta.objective)
        add_yaml(c, "- ", session->info.meta.objective);
    if (session->info.meta.adapter)
        sbp_text_add(&c->text, "- lora\n");
    if (c->adapter && c->base)
        add_yaml(c, "- ", sbp_arena_printf(c->arena, "base_model:adapter:%s", c->base));
    sbp_text_add(&c->text, "---\n\n");
    return SBP_OK;
}

/* ---- how it was trained ----------------------------------------------------------------------------- */

/* Whether a value may be shown: numbers and words of the option, not what it names. */
static bool is_shown(const sbp_option *option) {
    if (option->state != SBP_OPTION_BUILT || option->resume == SBP_RESUME_OF_A_START)
        return false;
    if (option->kind != SBP_OPTION_TEXT && option->kind != SBP_OPTION_LIST)
        return true;
    return strncmp(option->name, "lora", 4) == 0 || option->id == SBP_OPT_LOSS_TYPE ||
           option->id == SBP_OPT_SAVE || option->id == SBP_OPT_OFFLOAD;
}

/* "--name=value" */
static void show_setting(sbp_arena *arena, const char *argument, sbp_setting_visitor visit, void *user) {
    const char *equals = strchr(argument, '=');
    const sbp_option *option =
        strncmp(argument, "--", 2) == 0 && equals
            ? sbp_option_find(sbp_arena_strndup(arena, argument + 2, (size_t)(equals - argument) - 2))
            : NULL;
    if (option && is_shown(option))
        visit(user, sbp_arena_printf(arena, "--%s", option->name), equals + 1);
}

void sbp_run_each_setting(const sbp_world *world, const sbp_session *session, sbp_setting_visitor visit,
                          void *user) {
    const sbp_json *compiled = session->info.meta.arguments;
    const char **given;
    int32_t count;
    if (session->info.meta.objective)
        visit(user, "objective", session->info.meta.objective);
    for (int64_t i = 0; compiled && compiled->kind == SBP_JSON_ARRAY && i < compiled->count; i++)
        if (compiled->items[i].kind == SBP_JSON_STRING)
            show_setting(world->arena, compiled->items[i].string, visit, user);
    sbp_options_to_args(world->options, SBP_PHASE_RUN, SBP_PHASE_COMPILE, world->arena, &given, &count);
    for (int32_t i = 0; i < count; i++)
        show_setting(world->arena, given[i], visit, user);
}

static void add_setting(void *user, const char *name, const char *value) {
    card *c = user;
    sbp_text_add(&c->text, *name == '-' ? "| `%s` | " : "| %s | ", name);
    add_code(c, value);
    sbp_text_add(&c->text, " |\n");
}

static void add_figures(const sbp_world *world, const sbp_inputs *inputs, const sbp_session *session,
                        const sbp_outputs *outputs, card *c) {
    char a[32], b[32];
    double loss = sbp_metrics_train_loss(&outputs->metrics);
    sbp_text_add(&c->text, "\n| result | |\n|---|---|\n| steps | %lld |\n| tokens | %lld |\n",
                 (long long)session->state.step, (long long)session->state.num_tokens);
    if (inputs->data)
        sbp_text_add(&c->text, "| rows of data | %lld |\n", (long long)inputs->data->row_count);
    if (isfinite(loss))
        sbp_text_add(&c->text, "| mean loss | %.4f |\n", loss);
    if (isfinite(outputs->eval_loss))
        sbp_text_add(&c->text, "| evaluation loss | %.4f |\n", outputs->eval_loss);
    sbp_text_add(&c->text, "| time | %s |\n| memory planned | %s |\n| computed by | ",
                 sbp_format_seconds(a, sizeof a, outputs->seconds),
                 sbp_format_bytes(b, sizeof b, (double)sbp_run_peak_planned(world, session)));
    add_code(c, sbp_arena_printf(c->arena, "%s, %s", session->info.meta.backend,
                                 session->info.meta.dtype ? session->info.meta.dtype : "fp32"));
    sbp_text_add(&c->text, " |\n");
}

/* ---- the curve -------------------------------------------------------------------------------------- */

/* Every other point goes when there are too many. */
static void add_point(card *c, point p) {
    if (c->point_count == 2 * MOST_POINTS) {
        for (int32_t i = 0; i < MOST_POINTS; i++) {
            double evaluated = c->points[2 * i + 1].eval_loss;
            c->points[i] = c->points[2 * i];
            c->points[i].eval_loss = isfinite(evaluated) ? evaluated : c->points[i].eval_loss;
        }
        c->point_count = MOST_POINTS;
        c->every *= 2;
    }
    c->points[c->point_count++] = p;
}

static double number_of(const sbp_json *root, const char *key) {
    double value = NAN;
    return sbp_json_get_double(NULL, root, key, SBP_JSON_REQUIRED, &value) == SBP_OK ? value : (double)NAN;
}

static sbp_status take_line(void *user, const char *path, int64_t line, const char *text, size_t length) {
    card *c = user;
    const sbp_json *root;
    point p = {.eval_loss = NAN};
    (void)line;
    sbp_arena_mark mark = sbp_arena_begin(c->arena);
    if (sbp_json_parse(c->arena, NULL, path, text, length, 0, &root) == SBP_OK &&
        root->kind == SBP_JSON_OBJECT) {
        p.step = (int64_t)number_of(root, "step");
        p.loss = number_of(root, "loss");
        bool train = sbp_json_member(root, "loss") != NULL;
        if (train && c->lines++ % c->every == 0)
            add_point(c, p);
        else if (!train && c->point_count > 0 && isnan(c->points[c->point_count - 1].eval_loss))
            c->points[c->point_count - 1].eval_loss = number_of(root, "eval_loss");
    }
    sbp_arena_end(c->arena, mark);
    return SBP_OK;
}

static void add_cell(card *c, double value) {
    sbp_text_add(&c->text, isfinite(value) ? " %.4f |" : " |", value);
}

static void add_curve(const sbp_outputs *outputs, card *c) {
    const char *path = sbp_file_join(c->arena, outputs->out, "metrics.jsonl");
    c->every = 1;
    if (!sbp_file_exists(path) || sbp_lines_read(NULL, path, take_line, c) != SBP_OK || c->point_count == 0)
        return;
    sbp_text_add(&c->text, "\n| step | loss | evaluation loss |\n|---:|---:|---:|\n");
    for (int32_t i = 0; i < c->point_count; i++) {
        sbp_text_add(&c->text, "| %lld |", (long long)c->points[i].step);
        add_cell(c, c->points[i].loss);
        add_cell(c, c->points[i].eval_loss);
        sbp_text_add(&c->text, "\n");
    }
}

/* ---- all of it -------------------------------------------------------------------------------------- */

static void add_use(const sbp_session *session, card *c, const char *name) {
    const char *class = c->adapter ? "AutoPeftModelForCausalLM" : "AutoModelForCausalLM";
    char *path = sbp_arena_strdup(c->arena, name);
    for (char *at = path; *at; at++) /* in quotes of Python, in a block of code */
        if (*at == '"' || *at == '\\' || *at == '`' || (unsigned char)*at < ' ')
            *at = '_';
    sbp_text_add(&c->text,
                 "## Use\n\n```python\nfrom %s import %s\nfrom transformers import AutoTokenizer\n\n"
                 "model = %s.from_pretrained(\"%s\")\n",
                 c->adapter ? "peft" : "transformers", class, class, path);
    if (session->plan->tokenizer_bytes > 0)
        sbp_text_add(&c->text,
                     "tokenizer = AutoTokenizer.from_pretrained(\"%s\")\n"
                     "ids = tokenizer(\"Once upon a time\", return_tensors=\"pt\")\n"
                     "print(tokenizer.decode(model.generate(**ids, max_new_tokens=64)[0]))\n",
                     path);
    sbp_text_add(&c->text, "```\n\n");
}

static sbp_status write_card(const sbp_world *world, const sbp_inputs *inputs, const sbp_session *session,
                             const sbp_outputs *outputs, card *c, const char *path) {
    const char *name = sbp_run_model_name(c->arena, outputs->out);
    sbp_text_init(&c->text, c->arena);
    SBP_TRY(find_base(world, session, c));
    SBP_TRY(add_front_matter(world, session, c, name));
    sbp_text_add(&c->text, "# Model card of ");
    add_code(c, name);
    sbp_text_add(&c->text, "\n\n%s of ", c->adapter ? "A low-rank adapter" : "A fine-tuned version");
    if (c->base)
        sbp_text_add(&c->text, "[%s](https://huggingface.co/%s)", c->base, c->base);
    else
        add_code(c, name_of(c->model));
    sbp_text_add(&c->text, ", trained by sbprun %s of the StreamBP Compiler with exact gradients.\n\n",
                 SBP_VERSION);
    add_use(session, c, name);
    sbp_text_add(&c->text, "## Training\n\n");
    sbp_text_add(&c->text, "| setting | |\n|---|---|\n");
    sbp_run_each_setting(world, session, add_setting, c);
    if (session->state.step > 0) {
        add_figures(world, inputs, session, outputs, c);
        add_curve(outputs, c);
    }
    sbp_text_add(&c->text,
                 "\nThe method: StreamBP, memory-efficient exact backpropagation for long sequences "
                 "([arXiv:2506.03077](https://arxiv.org/abs/2506.03077)).\n");
    return sbp_file_write(world->diag, path, c->text.data, c->text.length);
}

sbp_status sbp_run_write_card(const sbp_world *world, const sbp_inputs *inputs, const sbp_session *session,
                              const sbp_outputs *outputs) {
    const char *path = sbp_file_join(world->arena, outputs->out, "README.md"), *text;
    size_t length;
    card *c = SBP_NEW(world->arena, card);
    c->arena = world->arena;
    if (sbp_file_exists(path) &&
        (sbp_file_read(world->arena, NULL, path, &text, &length) != SBP_OK || !strstr(text, MARK))) {
        sbp_note(world->diag, "'%s' was not written by sbprun, or changed: it stays as it is", path);
        return SBP_OK;
    }
    return write_card(world, inputs, session, outputs, c, path);
}
