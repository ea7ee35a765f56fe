/* tokenize.c: rows to token ids and labels. */
#include "runtime/data/tokenize.h"

#include <string.h>

typedef struct make_job {
    sbp_document_maker *maker;
    sbp_arena *arena;
    const sbp_row *row;
    sbp_document *out;
} make_job;

const char *sbp_eos_text(const sbp_tokenizer *tokenizer) {
    for (int32_t i = 0; i < sbp_tokenizer_named_count(tokenizer); i++) {
        const char *name, *value;
        sbp_tokenizer_named_at(tokenizer, i, &name, &value);
        if (strcmp(name, "eos_token") == 0)
            return value;
    }
    int32_t id = sbp_tokenizer_role(tokenizer, SBP_TOKEN_EOS);
    return id < 0 ? NULL : sbp_tokenizer_token(tokenizer, id, NULL);
}

/* a + b, and the end-of-sequence text unless it is there. */
static sbp_row_text join(const make_job *job, sbp_row_text a, sbp_row_text b) {
    const char *eos = sbp_eos_text(job->maker->tokenizer);
    size_t more = eos ? strlen(eos) : 0;
    const sbp_row_text *last = b.data ? &b : &a;
    if (last->length >= more && more > 0 && memcmp(last->data + last->length - more, eos, more) == 0)
        more = 0;
    char *text = sbp_arena_alloc(job->arena, a.length + b.length + more + 1);
    if (a.data)
        memcpy(text, a.data, a.length);
    if (b.data)
        memcpy(text + a.length, b.data, b.length);
    if (more)
        memcpy(text + a.length + b.length, eos, more + 1); /* with its end */
    return (sbp_row_text){text, a.length + b.length + more};
}

static sbp_status encode(const make_job *job, sbp_row_text text, sbp_encoding *out) {
    return sbp_tokenizer_encode(job->maker->tokenizer, job->arena, job->maker->diag, text.data, text.length,
                                SBP_ADD_SPECIAL_TOKENS, out);
}

/* Labels are the ids from `from` on. */
static void label_from(const make_job *job, int64_t from) {
    sbp_document *d = job->out;
    d->labels = SBP_NEW_ARRAY(job->arena, int32_t, d->count);
    for (int64_t i = 0; i < d->count; i++)
        d->labels[i] = i < from ? -100 : d->ids[i];
}

static bool only_completion(const make_job *job) {
    sbp_row_type type = job->row->form.type;
    return job->maker->loss_on == SBP_LOSS_COMPLETION ||
           (job->maker->loss_on == SBP_LOSS_AUTO && (type == SBP_ROW_PROMPT || type == SBP_ROW_PROMPT_IDS));
}

static sbp_status make_text(const make_job *job) {
    if (job->maker->loss_on == SBP_LOSS_COMPLETION)
        return sbp_fail(job->maker->diag, SBP_INPUT,
                        "%s: the loss is to be on completions, but rows have no completion", job->row->where);
    sbp_encoding all;
    SBP_TRY(encode(job, join(job, job->row->text, (sbp_row_text){0}), &all));
    *job->out = (sbp_document){.ids = all.ids, .count = all.count, .part = "text"};
    label_from(job, 0);
    return SBP_OK;
}

/* "the rest of the prompt is not trained on" */
static sbp_status warn_border(const make_job *job, const sbp_encoding *prompt, int64_t common) {
    const char *text;
    size_t length;
    job->maker->warned_border = true;
    SBP_TRY(sbp_tokenizer_decode(job->maker->tokenizer, job->arena, job->maker->diag, prompt->ids + common,
                                 prompt->count - common, false, &text, &length));
    sbp_warn(
        job->maker->diag,
        "%s: the tokens of the prompt alone are not the first tokens of prompt and completion together: "
        "tokens "
        "merge across the border. The completion begins where they differ; the end of the prompt, '%.*s', is "
        "not as the model sees it at inference. (Shown once; end prompts where a token ends.)",
        job->row->where, (int)(length < 60 ? length : 60), text);
    return SBP_OK;
}

static sbp_status make_prompt(const make_job *job) {
    const sbp_row *row = job->row;
    sbp_encoding prompt, all;
    SBP_TRY(encode(job, row->text, &prompt));
    SBP_TRY(encode(job, join(job, row->text, row->completion), &all));
    int64_t common = 0;
    while (common < prompt.count && common < all.count && prompt.ids[common] == all.ids[common])
        common++;
    if (common < prompt.count && !job->maker->warned_border)
        SBP_TRY(warn_border(job, &prompt, common));
    *job->out = (sbp_document){.ids = all.ids, .count = all.count, .part = "completion"};
    label_from(job, only_completion(job) ? common : 0);
    return SBP_OK;
}

static sbp_status make_input_ids(const make_job *job) {
    const sbp_row *row = job->row;
    *job->out = (sbp_document){.ids = row->ids.data, .count = row->ids.count, .part = "text"};
    if (row->labels) {
        job->out->labels = row->labels;
        return SBP_OK;
    }
    label_from(job, 0);
    bool completion = only_completion(job);
    if (completion && !row->completion_mask)
        return sbp_fail(job->maker->diag, SBP_INPUT,
                        "%s: the loss is to be on completions, but rows have no completion_mask", row->where);
    if (row->completion_mask && !completion && !job->maker->warned_mask) {
        job->maker->warned_mask = true;
        sbp_warn(job->maker->diag, "%s: completion_mask is only used with --loss-on completion", row->where);
    }
    for (int64_t i = 0; i < row->ids.count; i++)
        if ((completion && !row->completion_mask[i]) || (row->assistant_masks && !row->assistant_masks[i]))
            job->out->labels[i] = -100;
    return SBP_OK;
}

static sbp_status make_prompt_ids(const make_job *job) {
    const sbp_row_ids *prompt = &job->row->ids, *completion = &job->row->completion_ids;
    int64_t count = prompt->count + completion->count;
    *job->out = (sbp_document){
        .ids = SBP_NEW_ARRAY(job->arena, int32_t, count), .count = count, .part = "completion"};
    for (int64_t i = 0; i < count; i++)
        job->out->ids[i] = i < prompt->count ? prompt->data[i] : completion->data[i - prompt->count];
    label_from(job, only_completion(job) ? prompt->count : 0);
    return SBP_OK;
}

static sbp_status make_body(void *user) {
    const make_job *job = user;
    sbp_document_maker *maker = job->maker;
    sbp_row_type type = job->row->form.type;
    if (type == SBP_ROW_INPUT_IDS)
        return make_input_ids(job);
    if (type == SBP_ROW_PROMPT_IDS)
        return make_prompt_ids(job);
    if (!maker->tokenizer)
        return sbp_fail(
            maker->diag, SBP_INPUT,
            "%s: rows of text need a tokenizer, and the model has none that can be used: give ids in "
            "its place",
            job->row->where);
    if (!maker->warned_eos && !sbp_eos_text(maker->tokenizer)) {
        maker->warned_eos = true;
        sbp_warn(maker->diag, "the model names no end-of-sequence token: nothing is appended to texts");
    }
    return type == SBP_ROW_PROMPT ? make_prompt(job) : make_text(job);
}

sbp_status sbp_document_make(sbp_document_maker *maker, sbp_arena *arena, const sbp_row *row,
                             sbp_document *out) {
    make_job job = {.maker = maker, .arena = arena, .row = row, .out = out};
    return sbp_guard(arena, maker->diag, make_body, &job);
}
