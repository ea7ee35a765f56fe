/* texts.c: the tokenizer and the chat template of a model or plan, and what of a chat is trained. */
#include "runtime/cli/sbprun/texts.h"

#include <string.h>
#include <time.h>

#include "ir/program/plan_file.h"

sbp_loss_on sbp_texts_loss_on(const sbp_options *options) {
    for (int i = 0; i < SBP_LOSS_ON_COUNT; i++)
        if (sbp_options_is(options, SBP_OPT_LOSS_ON, sbp_loss_on_names[i]))
            return (sbp_loss_on)i;
    return SBP_LOSS_AUTO;
}

sbp_reasoning sbp_texts_reasoning(const sbp_options *options) {
    for (int i = 0; i < SBP_REASONING_COUNT; i++)
        if (sbp_options_is(options, SBP_OPT_LOSS_ON_REASONING, sbp_reasoning_names[i]))
            return (sbp_reasoning)i;
    return SBP_REASONING_ALL;
}

typedef struct texts_job {
    sbp_arena *arena;
    sbp_diag *diag;
    const sbp_options *options;
    sbp_texts *out;
} texts_job;

static const char *today(sbp_arena *arena) {
    char date[32] = "";
    time_t now = time(NULL);
    struct tm day;
    if (localtime_r(&now, &day))
        strftime(date, sizeof date, "%Y-%m-%d", &day);
    return sbp_arena_strdup(arena, date);
}

/* plan: of a plan, its section; NULL: a model at path. */
static sbp_status find_template(texts_job *job, const char *path, const sbp_plan_section *plan) {
    const char *request = sbp_options_text(job->options, SBP_OPT_CHAT_TEMPLATE),
               *date = sbp_options_text(job->options, SBP_OPT_DATE);
    sbp_template_source *source = &job->out->chat.source;
    const char *eos = sbp_options_text(job->options, SBP_OPT_EOS_TOKEN);
    if (eos && sbp_tokenizer_id(job->out->tokenizer, eos, strlen(eos)) < 0)
        return sbp_fail(job->diag, SBP_USAGE, "--eos-token %s: the tokenizer has no such token", eos);
    job->out->chat.eos = eos;
    job->out->chat.date = date ? date : today(job->arena);
    job->out->chat.tokenizer = job->out->tokenizer;
    job->out->chat.assistant = sbp_loss_is_on_answers(sbp_texts_loss_on(job->options));
    job->out->chat.quiet = true;
    if (request)
        return sbp_template_source_find(job->arena, job->diag, request, plan ? NULL : path, source);
    if (!plan)
        return sbp_template_source_of_model(job->arena, job->diag, path, source);
    if (plan->length > 0)
        *source = (sbp_template_source){.text = plan->data, .length = (size_t)plan->length, .name = path};
    return SBP_OK;
}

/* Whether a file is a model's, not a tokenizer's: ONNX, or the config.json of a directory. */
static sbp_status is_of_model(texts_job *job, const char *path, bool *is) {
    size_t length = strlen(path), n;
    const char *text;
    const sbp_json *root;
    *is = length > 5 && strcmp(path + length - 5, ".onnx") == 0;
    if (*is || !sbp_file_exists(path) || length < 5 || strcmp(path + length - 5, ".json") != 0)
        return SBP_OK;
    SBP_TRY(sbp_file_read(job->arena, job->diag, path, &text, &n));
    if (!memmem(text, n, "\"graph\"", 7) && !memmem(text, n, "\"model_type\"", 12)) /* most tokenizers */
        return SBP_OK;
    SBP_TRY(sbp_json_parse(job->arena, job->diag, path, text, n, SBP_JSON_COMMENTS, &root));
    *is = sbp_json_member(root, "graph") || sbp_json_member(root, "model_type");
    return SBP_OK;
}

sbp_status sbp_texts_open(sbp_arena *arena, sbp_diag *diag, const sbp_options *options, const char *path,
                          bool optional, sbp_texts *out) {
    texts_job opened = {arena, diag, options, out}, *job = &opened;
    *out = (sbp_texts){0};
    if (!sbp_plan_file_probe(path)) {
        bool of_model;
        SBP_TRY(is_of_model(job, path, &of_model));
        if (of_model || sbp_directory_exists(path))
            path = sbp_tokenizer_place(job->arena, path, NULL);
        if (optional && sbp_directory_exists(path) && !sbp_tokenizer_is_in(job->arena, path))
            return SBP_OK;
        if (optional)
            SBP_TRY(sbp_tokenizer_load_optional(job->arena, job->diag, path, &job->out->tokenizer));
        else
            SBP_TRY(sbp_tokenizer_load(job->arena, job->diag, path, &job->out->tokenizer));
        if (!job->out->tokenizer)
            return SBP_OK;
        return find_template(job, path, NULL);
    }
    const sbp_plan_file *file;
    SBP_TRY(sbp_plan_file_read(job->arena, job->diag, path, &file));
    const sbp_plan_section *section = sbp_plan_file_find(file, SBP_PLAN_TOKENIZER);
    if (optional && (!section || section->length == 0))
        return SBP_OK;
    if (!section || section->length == 0)
        return sbp_fail(job->diag, SBP_INPUT, "%s: the plan has no tokenizer", path);
    SBP_TRY(sbp_tokenizer_from_json(job->arena, job->diag, path, section->data, (size_t)section->length,
                                    &job->out->tokenizer));
    const sbp_plan_section *template = sbp_plan_file_find(file, SBP_PLAN_TEMPLATE), empty = {0};
    return find_template(job, path, template ? template : &empty);
}
