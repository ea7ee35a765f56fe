/* tokenize.c: rows to token ids and labels. */
#include "runtime/data/tokenize.h"

#include <string.h>

#include "runtime/data/messages.h"

typedef struct make_job {
    sbp_document_maker *maker;
    sbp_arena *arena;
    const sbp_row *row;
    sbp_documents *all;
    sbp_document *out; /* the one that is made */
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

static const char *eos_of(const sbp_document_maker *maker) {
    return maker->eos ? maker->eos : sbp_eos_text(maker->tokenizer);
}

/* a + b, and the end-of-sequence text unless it is there. */
static sbp_row_text join(const make_job *job, sbp_row_text a, sbp_row_text b) {
    const char *eos = eos_of(job->maker);
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

static bool has_completion(const make_job *job) {
    sbp_row_type type = job->row->form.type;
    return type == SBP_ROW_PROMPT || type == SBP_ROW_PROMPT_IDS || type == SBP_ROW_PROMPT_MESSAGES;
}

static bool only_completion(const make_job *job) {
    return job->maker->loss_on == SBP_LOSS_COMPLETION ||
           (job->maker->loss_on != SBP_LOSS_ALL && has_completion(job));
}

static sbp_status no_completion(const make_job *job) {
    return sbp_fail(job->maker->diag, SBP_INPUT,
                    "%s: the loss is to be on completions, but rows have no completion", job->row->where);
}

static sbp_status make_text(const make_job *job) {
    if (job->maker->loss_on == SBP_LOSS_COMPLETION)
        return no_completion(job);
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
    *job->out = (sbp_document){.ids = all.ids, .count = all.count, .prompt = common, .part = "completion"};
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
    *job->out = (sbp_document){.ids = SBP_NEW_ARRAY(job->arena, int32_t, count),
                               .count = count,
                               .prompt = prompt->count,
                               .part = "completion"};
    for (int64_t i = 0; i < count; i++)
        job->out->ids[i] = i < prompt->count ? prompt->data[i] : completion->data[i - prompt->count];
    label_from(job, only_completion(job) ? prompt->count : 0);
    return SBP_OK;
}

/* ---- conversations ---------------------------------------------------------------------------------- */

static sbp_status open_chat(const make_job *job) {
    sbp_document_maker *maker = job->maker;
    static const sbp_chat_options none;
    if (maker->chat)
        return SBP_OK;
    return sbp_chat_open(maker->chat_arena ? maker->chat_arena : job->arena, maker->diag,
                         maker->chat_options ? maker->chat_options : &none, &maker->chat);
}

static sbp_status encode_rendering(const make_job *job, const sbp_rendering *text, sbp_encoding *out) {
    return sbp_tokenizer_encode(job->maker->tokenizer, job->arena, job->maker->diag, text->text, text->length,
                                SBP_WITH_OFFSETS, out);
}

static bool is_blank(const sbp_encoding *all, const sbp_rendering *text, int64_t token) {
    int64_t at = all->offsets[token][0];
    while (at < all->offsets[token][1] && strchr(" \t\r\n", text->text[at]))
        at++;
    return at == all->offsets[token][1];
}

/* What the assistant said, up to token `next`, should end with a special token (and blanks), which ends its
 * turn. */
static void check_end(const make_job *job, const sbp_encoding *all, const sbp_rendering *text, int64_t next) {
    const sbp_tokenizer *tokenizer = job->maker->tokenizer;
    int64_t last = next - 1;
    while (last > 0 && is_blank(all, text, last) && !sbp_tokenizer_is_special(tokenizer, all->ids[last]))
        last--;
    while (next < all->count && is_blank(all, text, next))
        next++;
    if (job->maker->chat->warned_end || next == all->count || last < 0 ||
        sbp_tokenizer_is_special(tokenizer, all->ids[last]) ||
        !sbp_tokenizer_is_special(tokenizer, all->ids[next]))
        return;
    job->maker->chat->warned_end = true;
    sbp_warn(job->maker->diag,
             "%s: the template leaves the token '%.40s' behind an answer outside of it: the model will not "
             "learn to "
             "stop (shown once)",
             job->row->where, sbp_tokenizer_token(tokenizer, all->ids[next], NULL));
}

/* The first token that ends behind a byte of the text. */
static int64_t token_at(const sbp_encoding *all, int64_t byte) {
    int64_t low = 0, high = all->count;
    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (all->offsets[middle][1] > byte)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* Labels go, but of the tokens from that of a span's first character to that of its last: of several that
 * share it the first, as in transformers. */
static sbp_status keep_spans(const make_job *job, const sbp_encoding *all, const sbp_rendering *text) {
    sbp_document *d = job->out;
    bool *inside = SBP_NEW_ARRAY(job->arena, bool, all->count);
    int64_t kept = 0;
    for (int32_t s = 0; s < text->span_count; s++) {
        if (text->spans[s][0] >= text->spans[s][1])
            continue;
        int64_t token = token_at(all, text->spans[s][0]), last = token_at(all, text->spans[s][1] - 1);
        for (; token < all->count && token <= last; token++)
            inside[token] = true;
        check_end(job, all, text, token);
    }
    for (int64_t i = 0; i < all->count; i++) {
        d->labels[i] = inside[i] ? d->labels[i] : -100;
        kept += d->labels[i] >= 0;
    }
    if (kept == 0)
        return sbp_fail(job->maker->diag, SBP_INPUT,
                        "%s: no token counts: %s; leave the row out, or give --loss-on all", job->row->where,
                        text->span_count ? "what the assistant said has none"
                                         : "no message is the assistant's");
    return SBP_OK;
}

static sbp_conversation conversation(const make_job *job, const sbp_json *messages) {
    return (sbp_conversation){.where = job->row->where,
                              .messages = messages,
                              .tools = job->row->tools,
                              .kwargs = job->row->template_kwargs};
}

/* The text of a conversation as the document; with a prompt, labels begin where its tokens end. */
static sbp_status make_rendered(const make_job *job, const sbp_json *messages, const sbp_encoding *prompt) {
    sbp_document_maker *maker = job->maker;
    sbp_conversation talk = conversation(job, messages);
    sbp_rendering text;
    sbp_encoding all;
    int64_t common = 0;
    bool marked = maker->loss_on == SBP_LOSS_ASSISTANT;
    SBP_TRY(marked ? sbp_chat_render_marked(maker->chat, job->arena, maker->diag, &talk, &text)
                   : sbp_chat_render(maker->chat, job->arena, maker->diag, &talk, false, &text));
    SBP_TRY(encode_rendering(job, &text, &all));
    while (prompt && common < prompt->count && common < all.count && prompt->ids[common] == all.ids[common])
        common++;
    if (prompt && common < prompt->count && !maker->warned_border)
        SBP_TRY(warn_border(job, prompt, common));
    *job->out = (sbp_document){
        .ids = all.ids, .count = all.count, .prompt = common, .part = prompt ? "completion" : "text"};
    label_from(job, only_completion(job) ? common : 0);
    return marked ? keep_spans(job, &all, &text) : SBP_OK;
}

static sbp_status make_messages(const make_job *job) {
    sbp_document_maker *maker = job->maker;
    if (maker->loss_on == SBP_LOSS_COMPLETION)
        return no_completion(job);
    SBP_TRY(open_chat(job));
    if (maker->loss_on == SBP_LOSS_AUTO && !maker->chat->warned_all && !maker->chat->options->quiet) {
        maker->chat->warned_all = true;
        sbp_note(maker->diag,
                 "all tokens of conversations count, as in TRL; --loss-on assistant: answers only");
    }
    return make_rendered(job, job->row->messages, NULL);
}

static sbp_status make_prompt_messages(const make_job *job) {
    sbp_document_maker *maker = job->maker;
    sbp_conversation talk = conversation(job, job->row->messages);
    sbp_rendering text;
    sbp_encoding prompt;
    SBP_TRY(open_chat(job));
    SBP_TRY(sbp_chat_render(maker->chat, job->arena, maker->diag, &talk, true, &text));
    SBP_TRY(encode_rendering(job, &text, &prompt));
    return make_rendered(
        job, sbp_messages_join(job->arena, job->row->messages, job->row->completion_messages), &prompt);
}

sbp_status sbp_row_render(sbp_document_maker *maker, sbp_arena *arena, const sbp_row *row,
                          bool add_generation_prompt, sbp_rendering *out) {
    make_job job = {.maker = maker, .arena = arena, .row = row};
    if (!row->messages)
        return sbp_fail(maker->diag, SBP_INPUT, "%s: only conversations are rendered by a template",
                        row->where);
    SBP_TRY(open_chat(&job));
    const sbp_json *all = row->messages;
    if (row->completion_messages)
        all = sbp_messages_join(arena, all, row->completion_messages);
    sbp_conversation talk = conversation(&job, all);
    return sbp_chat_render(maker->chat, arena, maker->diag, &talk, add_generation_prompt, out);
}

/* ---- any row ---------------------------------------------------------------------------------------- */

static sbp_status make_body(void *user) {
    make_job *job = user;
    sbp_document_maker *maker = job->maker;
    *job->all = (sbp_documents){.documents = SBP_NEW(job->arena, sbp_document), .count = 1};
    job->out = job->all->documents;
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
    if (maker->loss_on == SBP_LOSS_ASSISTANT && (type == SBP_ROW_PROMPT || type == SBP_ROW_TEXT))
        return sbp_fail(maker->diag, SBP_INPUT,
                        "%s: the loss is to be on what an assistant said, but rows are no conversations",
                        job->row->where);
    if (type == SBP_ROW_MESSAGES)
        return make_messages(job);
    if (type == SBP_ROW_PROMPT_MESSAGES)
        return make_prompt_messages(job);
    if (!maker->warned_eos && !eos_of(maker)) {
        maker->warned_eos = true;
        sbp_warn(maker->diag, "the model names no end-of-sequence token: nothing is appended to texts");
    }
    return type == SBP_ROW_PROMPT ? make_prompt(job) : make_text(job);
}

sbp_status sbp_documents_make(sbp_document_maker *maker, sbp_arena *arena, const sbp_row *row,
                              sbp_documents *out) {
    make_job job = {.maker = maker, .arena = arena, .row = row, .all = out};
    return sbp_guard(arena, maker->diag, make_body, &job);
}
