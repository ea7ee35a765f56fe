/* run_card.c: the model card, README.md of a result, as the Hub shows it. It goes where the model goes:
 * paths, and what options hold that is no number or word of theirs, stay out of it. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "frontends/formats/files/hub.h"
#include "frontends/formats/template/template_source.h"
#include "frontends/formats/weights/weights.h"
#include "ir/base/json_write.h"
#include "runtime/cli/sbprun/outputs.h"

/* By which a card is known as one that may be written anew. */
#define MARK "# Written by sbprun; without this line it stays as it is.\n"

enum { MOST_POINTS = 16 };

typedef struct card {
    sbp_arena *arena;
    sbp_text text;
    const char *base;  /* a name of the Hub; NULL: there is none */
    const char *model; /* what a reader may know of a base that has none */
    bool adapter;
    const char *gguf; /* the name of the base, where it is a file of that kind; NULL: it is not */
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
    c->gguf = path && sbp_weights_is_gguf(path) ? name_of(path) : NULL;
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

static void add_datasets(const sbp_world *world, card *c) {
    const char *last = NULL;
    for (int32_t i = 0; i < sbp_options_list_count(world->options, SBP_OPT_DATA); i++) {
        const char *name =
            sbp_run_dataset_name(c->arena, sbp_options_list_at(world->options, SBP_OPT_DATA, i));
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
    if (session->info.meta.config) /* else no library knows the model */
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
    if (!sbp_option_is_kept(option) || option->resume == SBP_RESUME_OF_A_START ||
        option->id == SBP_OPT_OBJECTIVE) /* which is there by its name */
        return false;
    if (option->kind != SBP_OPTION_TEXT && option->kind != SBP_OPTION_LIST)
        return true;
    return strncmp(option->name, "lora", 4) == 0 || option->id == SBP_OPT_LOSS_TYPE ||
           option->id == SBP_OPT_SAVE || option->id == SBP_OPT_OFFLOAD;
}

typedef struct shown_args {
    const char **items;
    int32_t count, capacity;
} shown_args;

/* "--name=value"; `given`: the options among which it must be, NULL: it need not. */
static void add_shown(sbp_arena *arena, const sbp_options *given, const char *argument, shown_args *out) {
    const char *equals = strchr(argument, '=');
    const sbp_option *option =
        strncmp(argument, "--", 2) == 0 && equals
            ? sbp_option_find(sbp_arena_strndup(arena, argument + 2, (size_t)(equals - argument) - 2))
            : NULL;
    if (option && is_shown(option) && (!given || sbp_options_given(given, option->id)))
        SBP_PUSH(arena, out->items, out->count, out->capacity, argument);
}

void sbp_run_each_setting(const sbp_world *world, const sbp_session *session, sbp_setting_visitor visit,
                          void *user) {
    const sbp_json *compiled = session->info.meta.arguments;
    sbp_arena *arena = world->arena;
    const char **given;
    int32_t count;
    shown_args shown = {0};
    if (session->info.meta.objective)
        visit(user, "objective", session->info.meta.objective);
    for (int64_t i = 0; compiled && compiled->kind == SBP_JSON_ARRAY && i < compiled->count; i++)
        if (compiled->items[i].kind == SBP_JSON_STRING)
            add_shown(arena, session->model ? world->options : NULL, compiled->items[i].string, &shown);
    sbp_options_to_args(world->options, SBP_PHASE_RUN, SBP_PHASE_COMPILE, arena, &given, &count);
    for (int32_t i = 0; i < count; i++)
        add_shown(arena, NULL, given[i], &shown);
    sbp_options_spell(arena, shown.items, &shown.count);
    for (int32_t i = 0; i < shown.count; i++) {
        const char *equals = strchr(shown.items[i], '=');
        visit(user, sbp_arena_strndup(arena, shown.items[i], (size_t)(equals - shown.items[i])), equals + 1);
    }
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
    if (session->best.loaded > 0)
        sbp_text_add(&c->text, "| model of step | %lld, the best: %.4f |\n", (long long)session->best.loaded,
                     session->state.best.value);
    sbp_text_add(&c->text, "| time | %s |\n| memory planned | %s |\n",
                 sbp_format_seconds(a, sizeof a, outputs->seconds),
                 sbp_format_bytes(b, sizeof b, (double)sbp_run_peak_planned(world, session)));
    sbp_run_account device = sbp_run_account_of(world, session, SBP_DEVICE);
    for (int32_t i = 0; i < device.count; i++)
        if (100 * device.parts[i].bytes >= device.bytes) {
            sbp_text_add(&c->text, "| of it ");
            add_code(c, device.parts[i].name);
            sbp_text_add(&c->text, " | %s |\n", sbp_format_bytes(b, sizeof b, (double)device.parts[i].bytes));
        }
    sbp_text_add(&c->text, "| computed by | ");
    add_code(c, sbp_arena_printf(c->arena, "%s, %s", session->info.meta.backend, session->info.meta.dtype));
    sbp_text_add(&c->text, " |\n");
}

/* What changes with the lengths of rows, and how long those were. */
static void add_length_rule(const sbp_inputs *inputs, const sbp_session *session, card *c) {
    const sbp_plan_meta *meta = &session->info.meta;
    if (!meta->length_rule || !inputs->data)
        return;
    long long longest = (long long)inputs->data->longest, limit = (long long)meta->length_limit;
    sbp_text_add(&c->text,
                 "\nThe longest document of the data has %lld tokens, %s the %lld that matter here: %s.\n",
                 longest, longest > limit ? "above" : "not above", limit, meta->length_rule);
}

/* ---- the curve -------------------------------------------------------------------------------------- */

static void add_cell(card *c, double value) {
    sbp_text_add(&c->text, isfinite(value) ? " %.4f |" : " |", value);
}

static void add_row(card *c, const sbp_curve_point *point) {
    sbp_text_add(&c->text, "| %.0f |", point->step);
    add_cell(c, point->values[0]);
    add_cell(c, point->eval_loss);
    sbp_text_add(&c->text, "\n");
}

/* A row for some of the steps, and for each evaluation at its own. */
static void add_curve(const sbp_world *world, const sbp_outputs *outputs, card *c) {
    static const char *const keys[] = {"loss"};
    sbp_curve curve;
    if (sbp_run_read_curve(world, outputs, keys, SBP_COUNT(keys), MOST_POINTS, &curve) != SBP_OK ||
        curve.count == 0)
        return;
    sbp_text_add(&c->text, "\n| step | loss | evaluation loss |\n|---:|---:|---:|\n");
    for (int32_t i = 0, k = 0; i < curve.count || k < curve.eval_count;) {
        bool evaluated =
            k < curve.eval_count && (i == curve.count || curve.evals[k].step <= curve.points[i].step);
        i += i < curve.count && (!evaluated || curve.evals[k].step == curve.points[i].step);
        add_row(c, evaluated ? &curve.evals[k++] : &curve.points[i - 1]);
    }
}

/* ---- all of it -------------------------------------------------------------------------------------- */

/* A name that may stand in quotes of Python and in a command of a shell, in a block of code. */
static const char *plain_name(sbp_arena *arena, const char *name) {
    char *out = sbp_arena_strdup(arena, name);
    for (char *at = out; *at; at++)
        if (strchr("\"\\`$", *at) || (unsigned char)*at < ' ')
            *at = '_';
    return out;
}

/* What transformers and PEFT load by name; chat: by its template. */
static void add_transformers(const sbp_session *session, card *c, const char *name, bool chat) {
    const char *class = c->adapter ? "AutoPeftModelForCausalLM" : "AutoModelForCausalLM";
    sbp_text_add(&c->text,
                 "```python\nfrom %s import %s\nfrom transformers import AutoTokenizer\n\n"
                 "model = %s.from_pretrained(\"%s\")\n",
                 c->adapter ? "peft" : "transformers", class, class, name);
    if (session->plan->tokenizer_bytes > 0)
        sbp_text_add(&c->text, "tokenizer = AutoTokenizer.from_pretrained(\"%s\")\n", name);
    if (session->plan->tokenizer_bytes > 0 && chat)
        sbp_text_add(
            &c->text,
            "messages = [{\"role\": \"user\", \"content\": \"What is a gradient?\"}]\n"
            "ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True, "
            "return_tensors=\"pt\")\n"
            "answer = model.generate(**ids, max_new_tokens=256)[0, ids[\"input_ids\"].shape[1] :]\n"
            "print(tokenizer.decode(answer, skip_special_tokens=True))\n");
    else if (session->plan->tokenizer_bytes > 0)
        sbp_text_add(&c->text, "ids = tokenizer(\"Once upon a time\", return_tensors=\"pt\")\n"
                               "print(tokenizer.decode(model.generate(**ids, max_new_tokens=64)[0]))\n");
    sbp_text_add(&c->text, "```\n\n");
}

/* Says how an adapter of a torch module that is in no library is used: by the module's own code. */
static void add_module(card *c, const char *name) {
    if (c->adapter) {
        sbp_text_add(
            &c->text,
            "An adapter of a torch module of one's own, in PEFT's files. `sbprun %s --base "
            "MODEL.json --merge --out DIR` writes the module's weights with the adapter in them.\n\n",
            name);
        return;
    }
    sbp_text_add(&c->text,
                 "The weights have the names that they have in the torch module that was exported:\n\n"
                 "```python\nfrom safetensors.torch import load_file\n\n"
                 "model = Model()  # that module\n"
                 "tied, unknown = model.load_state_dict(load_file(\"%s/model.safetensors\"), strict=False)\n"
                 "assert not unknown, unknown  # tied: names of weights that the file has once\n```\n\n",
                 name);
}

/* Says how an adapter of a GGUF file is used, which PEFT does not open. */
static void add_gguf(card *c, const char *name) {
    const char *base = plain_name(c->arena, c->gguf);
    sbp_text_add(&c->text,
                 "An adapter of a GGUF file, for programs that take both in that format:\n\n"
                 "```sh\nsbprun export \"%s\" -o adapter.gguf\n%s -m \"%s\" --lora adapter.gguf\n```\n\n"
                 "PEFT opens it with a base of its own format: "
                 "`PeftModel.from_pretrained(base_model, \"%s\")`.\n\n",
                 name, sbp_gguf_server, base, name);
}

static sbp_status add_use(const sbp_world *world, const sbp_session *session, const sbp_outputs *outputs,
                          card *c) {
    const char *id = sbp_options_text(world->options, SBP_OPT_HUB_MODEL_ID),
               *name = plain_name(c->arena, id ? id : sbp_run_model_name(c->arena, outputs->out));
    sbp_template_source chat;
    SBP_TRY(sbp_template_source_of_model(c->arena, world->diag, outputs->out, &chat));
    sbp_text_add(&c->text, "## Use\n\n");
    if (!session->info.meta.config)
        add_module(c, name);
    else if (c->adapter && !c->base && c->gguf)
        add_gguf(c, name);
    else
        add_transformers(session, c, name, chat.text != NULL);
    return SBP_OK;
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
    SBP_TRY(add_use(world, session, outputs, c));
    sbp_text_add(&c->text, "## Training\n\n");
    sbp_text_add(&c->text, "| setting | |\n|---|---|\n");
    sbp_run_each_setting(world, session, add_setting, c);
    if (session->state.step > 0) {
        add_figures(world, inputs, session, outputs, c);
        add_length_rule(inputs, session, c);
        add_curve(world, outputs, c);
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
