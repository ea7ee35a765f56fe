/* tokenize.c: rows to token ids and labels. */
#include "runtime/data/tokenize.h"

#include <math.h>
#include <string.h>

#include "ir/program/routed.h"
#include "runtime/data/contents.h"
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

static bool only_completion(const make_job *job) {
    return job->maker->loss_on == SBP_LOSS_COMPLETION ||
           (job->maker->loss_on != SBP_LOSS_ALL && job->row->form.type == SBP_ROW_COMPLETION);
}

static sbp_status no_completion(const make_job *job) {
    return sbp_fail(job->maker->diag, SBP_INPUT, "%s: --loss-on completion: rows have no completion",
                    job->row->where);
}

static sbp_status make_text(const make_job *job) {
    if (job->maker->loss_on == SBP_LOSS_COMPLETION)
        return no_completion(job);
    sbp_encoding all;
    SBP_TRY(encode(job, join(job, job->row->text.text, (sbp_row_text){0}), &all));
    *job->out = (sbp_document){.ids = all.ids, .count = all.count, .part = "text"};
    label_from(job, 0);
    return SBP_OK;
}

/* "the rest of the prompt is not trained on" */
static sbp_status warn_border(const make_job *job, const sbp_encoding *prompt, int64_t common, bool strings) {
    const char *text;
    size_t length;
    job->maker->warned_border = true;
    SBP_TRY(sbp_tokenizer_decode(job->maker->tokenizer, job->arena, job->maker->diag, prompt->ids + common,
                                 prompt->count - common, false, &text, &length));
    sbp_warn(
        job->maker->diag,
        "%s: the tokens of the prompt alone are not the first tokens of prompt and completion together: %s. "
        "The completion begins where they differ; the end of the prompt, '%.*s', is not as the model sees it "
        "at "
        "inference. (Shown once; %s.)",
        job->row->where,
        strings ? "tokens merge across the border" : "the template writes the prompt alone differently",
        (int)(length < 60 ? length : 60), text,
        strings ? "end prompts where a token ends" : "--chat-template FILE takes another template");
    return SBP_OK;
}

static sbp_status make_input_ids(const make_job *job) {
    const sbp_row *row = job->row;
    *job->out = (sbp_document){.ids = row->text.ids.data, .count = row->text.ids.count, .part = "text"};
    if (row->labels) {
        job->out->labels = row->labels;
        return SBP_OK;
    }
    label_from(job, 0);
    bool completion = only_completion(job);
    if (completion && !row->completion_mask)
        return sbp_fail(job->maker->diag, SBP_INPUT, "%s: --loss-on completion: rows have no completion_mask",
                        row->where);
    if (row->completion_mask && !completion && !job->maker->warned_mask) {
        job->maker->warned_mask = true;
        sbp_warn(job->maker->diag, "%s: completion_mask is only used with --loss-on completion", row->where);
    }
    for (int64_t i = 0; i < row->text.ids.count; i++)
        if ((completion && !row->completion_mask[i]) || (row->assistant_masks && !row->assistant_masks[i]))
            job->out->labels[i] = -100;
    return SBP_OK;
}

/* ---- conversations ---------------------------------------------------------------------------------- */

static sbp_status open_chat(const make_job *job) {
    sbp_document_maker *maker = job->maker;
    static const sbp_chat_options none;
    if (maker->chat)
        return SBP_OK;
    maker->unusable = true;
    SBP_TRY(sbp_chat_open(maker->chat_arena ? maker->chat_arena : job->arena, maker->diag,
                          maker->chat_options ? maker->chat_options : &none, &maker->chat));
    maker->unusable = false;
    return SBP_OK;
}

/* spans: with the place of each token, which takes eight times as much as its id. */
static sbp_status encode_rendering(const make_job *job, const sbp_rendering *text, bool spans,
                                   sbp_encoding *out) {
    return sbp_tokenizer_encode(job->maker->tokenizer, job->arena, job->maker->diag, text->text, text->length,
                                spans ? SBP_WITH_OFFSETS : 0, out);
}

/* What templates see of messages; turns: what they say of themselves, which they do not see. */
static sbp_status conversation(const make_job *job, const sbp_json *messages, sbp_turns *turns,
                               sbp_conversation *out) {
    SBP_TRY(sbp_turns_read(job->arena, job->maker->diag, messages, turns));
    *out = (sbp_conversation){.where = job->row->where,
                              .messages = turns->messages,
                              .tools = job->row->tools,
                              .kwargs = job->row->template_kwargs};
    return sbp_contents_fit(job->maker->chat, job->arena, job->maker->diag, out, &out->messages);
}

/* A conversation as a text and its tokens. */
typedef struct encoded {
    sbp_rendering text;
    sbp_turns turns;
    sbp_encoding tokens;
    double *weights; /* [tokens.count] what each counts; NULL: all alike */
} encoded;

/* Renders, encodes and weighs a conversation; `prompt`: it is one, of which nothing counts. */
static sbp_status encode_messages(const make_job *job, const sbp_json *messages, bool prompt, encoded *out) {
    sbp_document_maker *maker = job->maker;
    sbp_conversation talk;
    *out = (encoded){0};
    SBP_TRY(open_chat(job));
    SBP_TRY(conversation(job, messages, &out->turns, &talk));
    bool answers = !prompt && sbp_loss_is_on_answers(maker->loss_on),
         said = out->turns.told || maker->reasoning != SBP_REASONING_ALL,
         weighed = answers || (!prompt && said && job->row->form.type != SBP_ROW_PAIR);
    SBP_TRY(answers ? sbp_chat_render_marked(maker->chat, job->arena, maker->diag, &talk, &out->text)
                    : sbp_chat_render(maker->chat, job->arena, maker->diag, &talk, prompt, &out->text));
    SBP_TRY(encode_rendering(job, &out->text, weighed, &out->tokens));
    if (!weighed)
        return SBP_OK;
    const sbp_turns_job weigh = {.arena = job->arena,
                                 .diag = maker->diag,
                                 .where = job->row->where,
                                 .chat = maker->chat,
                                 .turns = &out->turns,
                                 .talk = &talk,
                                 .text = &out->text,
                                 .tokens = &out->tokens,
                                 .loss_on = maker->loss_on,
                                 .reasoning = maker->reasoning};
    out->weights = SBP_NEW_ARRAY(job->arena, double, out->tokens.count);
    return sbp_turns_weigh(&weigh, out->weights);
}

/* Labels go where nothing counts. Weights other than 1 stand beside them. */
static void keep_weighed(const make_job *job, double *weights) {
    sbp_document *d = job->out;
    bool uneven = false;
    for (int64_t i = 0; i < d->count; i++) {
        if (weights[i] == 0)
            d->labels[i] = -100;
        if (d->labels[i] < 0)
            weights[i] = 0;
        uneven |= weights[i] != 0 && weights[i] != 1;
    }
    if (uneven)
        d->columns[d->column_count++] =
            (sbp_document_column){sbp_data_columns[SBP_DATA_WEIGHT].name, weights};
}

static sbp_status make_messages(const make_job *job) {
    sbp_document_maker *maker = job->maker;
    encoded all;
    if (maker->loss_on == SBP_LOSS_COMPLETION)
        return no_completion(job);
    SBP_TRY(open_chat(job));
    if (maker->loss_on == SBP_LOSS_AUTO && !maker->chat->warned_all && !maker->chat->options->quiet) {
        maker->chat->warned_all = true;
        sbp_note(
            maker->diag,
            "all tokens of conversations are trained, as in TRL; --loss-on assistant trains answers only");
    }
    SBP_TRY(encode_messages(job, job->row->text.messages, false, &all));
    *job->out = (sbp_document){.ids = all.tokens.ids, .count = all.tokens.count, .part = "text"};
    label_from(job, 0);
    if (all.weights)
        keep_weighed(job, all.weights);
    return SBP_OK;
}

/* The chosen answer of a pair, or (which 1) the rejected one. */
static const sbp_row_value *answer(const sbp_row *row, int32_t which) {
    return which == 0 ? &row->completion : &row->rejected;
}

static const sbp_json *whole_messages(sbp_arena *arena, const sbp_row *row, int32_t which) {
    return sbp_messages_join(arena, row->text.messages, answer(row, which)->messages);
}

sbp_status sbp_row_render(sbp_document_maker *maker, sbp_arena *arena, const sbp_row *row, int32_t which,
                          bool add_generation_prompt, sbp_rendering *out) {
    make_job job = {.maker = maker, .arena = arena, .row = row};
    bool alone = row->form.type == SBP_ROW_TEXT || row->form.type == SBP_ROW_PROMPT;
    if (row->form.values != SBP_VALUES_MESSAGES)
        return sbp_fail(maker->diag, SBP_INPUT, "%s: only conversations are rendered by a template",
                        row->where);
    SBP_TRY(open_chat(&job));
    sbp_conversation talk;
    sbp_turns turns;
    SBP_TRY(
        conversation(&job, alone ? row->text.messages : whole_messages(arena, row, which), &turns, &talk));
    return sbp_chat_render(maker->chat, arena, maker->diag, &talk, add_generation_prompt, out);
}

/* ---- prompts and answers ---------------------------------------------------------------------------- */

/* A prompt is not trained, unless everything is. */
static sbp_status check_prompt(const make_job *job, const sbp_turns *turns) {
    bool trained = job->row->form.type == SBP_ROW_COMPLETION && !only_completion(job);
    for (int64_t i = 0; i < turns->messages->count; i++)
        if (job->row->form.type == SBP_ROW_COMPLETION && !trained && turns->items[i].told &&
            turns->items[i].train)
            return sbp_fail(job->maker->diag, SBP_INPUT,
                            "%s: prompt[%lld].train: the prompt is not trained: put the conversation into "
                            "'messages', or give --loss-on all",
                            job->row->where, (long long)i);
    return SBP_OK;
}

/* Both answers of a pair are compared as wholes. */
static sbp_status check_pair_turns(const make_job *job, int32_t which, const sbp_turns *turns) {
    const sbp_row *row = job->row;
    for (int64_t i = row->text.messages->count; i < turns->messages->count; i++)
        if ((turns->items[i].told && !turns->items[i].train) || turns->items[i].weight != 1)
            return sbp_fail(job->maker->diag, SBP_INPUT,
                            "%s: %s: message %lld (from 0) has a 'train' or 'weight', and both answers of a "
                            "preference pair are trained whole: leave it out",
                            row->where, answer(row, which)->key, (long long)(i - row->text.messages->count));
    return SBP_OK;
}

static sbp_status encode_prompt(const make_job *job, sbp_encoding *out) {
    const sbp_row *row = job->row;
    encoded all;
    switch (row->form.values) {
    case SBP_VALUES_IDS:
        *out = (sbp_encoding){.ids = row->text.ids.data, .count = row->text.ids.count};
        return SBP_OK;
    case SBP_VALUES_MESSAGES:
        SBP_TRY(encode_messages(job, row->text.messages, true, &all));
        *out = all.tokens;
        return check_prompt(job, &all.turns);
    default:
        return encode(job, row->text.text, out);
    }
}

/* Prompt and answer together. */
static sbp_status encode_whole(const make_job *job, int32_t which, encoded *all) {
    sbp_encoding *out = &all->tokens;
    const sbp_row *row = job->row;
    const sbp_row_ids *prompt = &row->text.ids, *ids = &answer(row, which)->ids;
    switch (row->form.values) {
    case SBP_VALUES_IDS:
        out->count = prompt->count + ids->count;
        out->ids = SBP_NEW_ARRAY(job->arena, int32_t, out->count);
        for (int64_t i = 0; i < out->count; i++)
            out->ids[i] = i < prompt->count ? prompt->data[i] : ids->data[i - prompt->count];
        return SBP_OK;
    case SBP_VALUES_MESSAGES:
        SBP_TRY(encode_messages(job, whole_messages(job->arena, row, which), false, all));
        return row->form.type == SBP_ROW_PAIR ? check_pair_turns(job, which, &all->turns) : SBP_OK;
    default:
        return encode(job, join(job, row->text.text, answer(row, which)->text), out);
    }
}

static int64_t common_prefix(const sbp_encoding *a, const sbp_encoding *b) {
    int64_t common = 0;
    while (common < a->count && common < b->count && a->ids[common] == b->ids[common])
        common++;
    return common;
}

static sbp_status check_pair(const make_job *job) {
    bool whole = job->maker->loss_on == SBP_LOSS_AUTO || job->maker->loss_on == SBP_LOSS_COMPLETION;
    if (whole && job->maker->reasoning == SBP_REASONING_ALL)
        return SBP_OK;
    return sbp_fail(job->maker->diag, SBP_USAGE,
                    "%s: both answers of a preference pair are trained whole: --loss-on%s %s does not apply",
                    job->row->where, whole ? "-reasoning" : "",
                    whole ? sbp_reasoning_names[job->maker->reasoning]
                          : sbp_loss_on_names[job->maker->loss_on]);
}

/* The end-of-sequence tokens, for an option that needs them: that of the tokenizer, else what the model says.
 */
static sbp_status find_eos(const make_job *job, const char *option, sbp_row_ids *out) {
    const sbp_document_maker *maker = job->maker;
    const char *eos = maker->tokenizer ? eos_of(maker) : NULL;
    int32_t *id = SBP_NEW(job->arena, int32_t);
    *id = eos ? sbp_tokenizer_id(maker->tokenizer, eos, strlen(eos)) : -1;
    *out = *id >= 0 ? (sbp_row_ids){id, 1} : maker->eos_ids;
    if (out->count > 0)
        return SBP_OK;
    return sbp_fail(
        maker->diag, SBP_USAGE,
        maker->tokenizer
            ? "--%s: the model has no end-of-sequence token; name it with --eos-token"
            : "--%s: the model has no end-of-sequence token: its config.json has no eos_token_id, "
              "and there is no tokenizer",
        option);
}

static bool is_eos(const sbp_row_ids *eos, int32_t id) {
    for (int64_t i = 0; i < eos->count; i++)
        if (eos->data[i] == id)
            return true;
    return false;
}

/* An answer that was cut off, not ended, says nothing about how to answer (TRL's mask_truncated_completions).
 */
static sbp_status mask_truncated(const make_job *job) {
    const sbp_document *d = job->out;
    sbp_row_ids eos;
    SBP_TRY(find_eos(job, "mask-truncated-completions", &eos));
    if (d->count == d->prompt || !is_eos(&eos, d->ids[d->count - 1]))
        for (int64_t i = 0; i < d->count; i++)
            d->labels[i] = -100;
    return SBP_OK;
}

/* An answer, or both of a pair: they begin where the tokens of one of them part from the prompt's. */
static sbp_status make_answers(make_job *job) {
    const sbp_row *row = job->row;
    static const char *const parts[] = {"chosen", "rejected"};
    bool pair = row->form.type == SBP_ROW_PAIR, strings = row->form.values == SBP_VALUES_STRINGS;
    int32_t count = pair ? 2 : 1;
    sbp_encoding prompt;
    encoded wholes[2] = {0};
    if (pair)
        SBP_TRY(check_pair(job));
    SBP_TRY(encode_prompt(job, &prompt));
    int64_t common = prompt.count;
    for (int32_t i = 0; i < count; i++) {
        SBP_TRY(encode_whole(job, i, &wholes[i]));
        int64_t here = common_prefix(&prompt, &wholes[i].tokens);
        common = here < common ? here : common;
    }
    if (common < prompt.count && !job->maker->warned_border)
        SBP_TRY(warn_border(job, &prompt, common, strings));
    job->all->documents = SBP_NEW_ARRAY(job->arena, sbp_document, count);
    job->all->count = count;
    for (int32_t i = 0; i < count; i++) {
        job->out = &job->all->documents[i];
        *job->out = (sbp_document){.ids = wholes[i].tokens.ids,
                                   .count = wholes[i].tokens.count,
                                   .prompt = common,
                                   .part = pair ? parts[i] : "completion"};
        if (pair && wholes[i].tokens.count == common)
            return sbp_fail(job->maker->diag, SBP_INPUT,
                            "%s: %s: expected an answer, found no token behind the prompt", row->where,
                            answer(row, i)->key);
        label_from(job, pair || only_completion(job) ? common : 0);
        if (wholes[i].weights)
            keep_weighed(job, wholes[i].weights);
        if (!pair && job->maker->mask_truncated)
            SBP_TRY(mask_truncated(job));
    }
    return SBP_OK;
}

/* What answers will be written to: nothing counts. */
static sbp_status make_prompt(const make_job *job) {
    sbp_encoding prompt;
    SBP_TRY(encode_prompt(job, &prompt));
    *job->out =
        (sbp_document){.ids = prompt.ids, .count = prompt.count, .prompt = prompt.count, .part = "prompt"};
    label_from(job, prompt.count);
    return SBP_OK;
}

/* ---- beside the texts ------------------------------------------------------------------------------- */

static sbp_status check_length(const make_job *job, const char *key, int64_t found) {
    const sbp_document *d = job->all->documents;
    if (found == d->count - d->prompt)
        return SBP_OK;
    return sbp_fail(job->maker->diag, SBP_INPUT,
                    "%s: %s: expected as many items as the completion has tokens (%lld), found %lld",
                    job->row->where, key, (long long)(d->count - d->prompt), (long long)found);
}

static sbp_status add_list(const make_job *job, sbp_row_field field) {
    sbp_document *d = job->all->documents;
    const sbp_row_list *list = &job->row->lists[field];
    SBP_TRY(check_length(job, list->node->key, list->count));
    if (!only_completion(job))
        return sbp_fail(job->maker->diag, SBP_USAGE,
                        "%s: %s belong to the completion: --loss-on %s does not apply", job->row->where,
                        list->node->key, "all");
    double *values = SBP_NEW_ARRAY(job->arena, double, d->count);
    for (int64_t i = d->prompt; i < d->count; i++)
        values[i] = list->data[i - d->prompt];
    d->columns[d->column_count++] = (sbp_document_column){sbp_row_field_name(field), values};
    return SBP_OK;
}

/* What the model did not write itself does not count. */
static sbp_status mask_environment(const make_job *job) {
    sbp_document *d = job->all->documents;
    SBP_TRY(check_length(job, "env_mask", job->row->env_mask_count));
    for (int64_t i = d->prompt; i < d->count; i++)
        if (!job->row->env_mask[i - d->prompt])
            d->labels[i] = -100;
    return SBP_OK;
}

/* Which experts the tokens go to. A sampler does not run the last one, so it may have none. */
static sbp_status add_routed(const make_job *job) {
    sbp_document *d = job->all->documents;
    const sbp_row_routed *routed = &job->row->routed;
    if (!routed->node)
        return SBP_OK;
    if (routed->count != d->count && routed->count != d->count - 1)
        return sbp_fail(
            job->maker->diag, SBP_INPUT,
            "%s: %s: expected as many items as the row has tokens (%lld, or one less), found %lld",
            job->row->where, routed->node->key, (long long)d->count, (long long)routed->count);
    double *values = SBP_NEW_ARRAY(job->arena, double, d->count);
    for (int64_t i = 0; i < d->count; i++)
        values[i] = i < routed->count ? (double)i : NAN;
    d->columns[d->column_count++] = (sbp_document_column){SBP_ROUTED, values};
    sbp_row_routed *kept = SBP_NEW(job->arena, sbp_row_routed);
    *kept = *routed;
    d->routed = kept;
    return SBP_OK;
}

/* Rows of one prompt: what the file says, else equal tokens. */
static void find_group(const make_job *job) {
    const uint32_t rollouts = 1u << SBP_FIELD_ADVANTAGE | 1u << SBP_FIELD_REWARD | 1u << SBP_FIELD_OLD_LOGPS |
                              1u << SBP_FIELD_REF_LOGPS | 1u << SBP_FIELD_SAMPLING;
    const sbp_document *d = job->all->documents;
    uint64_t prompt = sbp_hash_bytes(d->ids, (size_t)d->prompt * sizeof *d->ids, 3);
    prompt = prompt ? prompt : 1;
    job->all->group = job->row->group;
    if (job->row->form.group) {
        job->all->group_name = job->row->group_name;
        job->all->group_prompt = prompt;
    } else if (job->row->form.fields & rollouts) {
        job->all->group = prompt;
    }
}

/* What the reward loses where the answer has no end-of-sequence token (TRL's missing_eos_penalty). */
static sbp_status find_penalty(const make_job *job, double *penalty) {
    const sbp_document *d = job->all->documents;
    sbp_row_ids eos;
    *penalty = job->maker->eos_penalty;
    if (*penalty == 0 || !(job->row->form.fields >> SBP_FIELD_REWARD & 1))
        return SBP_OK;
    SBP_TRY(find_eos(job, "missing-eos-penalty", &eos));
    for (int64_t i = d->prompt; i < d->count; i++)
        if (is_eos(&eos, d->ids[i]))
            *penalty = 0;
    return SBP_OK;
}

static sbp_status add_fields(const make_job *job) {
    double penalty;
    SBP_TRY(find_penalty(job, &penalty));
    for (sbp_row_field i = 0; i < SBP_FIELD_COUNT; i++) {
        const char *part = sbp_row_field_part(i);
        if (!(job->row->form.fields >> i & 1))
            continue;
        if (sbp_row_field_is_list(i)) {
            SBP_TRY(add_list(job, i));
            continue;
        }
        for (int32_t k = 0; k < job->all->count; k++) {
            sbp_document *d = &job->all->documents[k];
            if (!part || strcmp(part, d->part) == 0)
                d->numbers[d->number_count++] = (sbp_document_number){
                    sbp_row_field_name(i), job->row->numbers[i] - (i == SBP_FIELD_REWARD ? penalty : 0)};
        }
    }
    if (job->row->env_mask)
        SBP_TRY(mask_environment(job));
    find_group(job);
    return SBP_OK;
}

/* What the template leaves out of a conversation, or of one of a pair. */
static sbp_status find_unwritten(const make_job *job) {
    const sbp_row *row = job->row;
    bool alone = row->form.type == SBP_ROW_TEXT || row->form.type == SBP_ROW_PROMPT;
    for (int32_t which = 0; which < (row->form.type == SBP_ROW_PAIR ? 2 : 1); which++) {
        sbp_conversation talk;
        sbp_turns turns;
        unsigned bits;
        SBP_TRY(conversation(job, alone ? row->text.messages : whole_messages(job->arena, row, which), &turns,
                             &talk));
        SBP_TRY(sbp_chat_find_unwritten(job->maker->chat, job->arena, job->maker->diag, &talk, &bits));
        job->all->unwritten |= bits;
    }
    return SBP_OK;
}

/* ---- any row ---------------------------------------------------------------------------------------- */

/* What is asked of conversations. */
static sbp_status check_no_talk(const make_job *job) {
    const sbp_document_maker *maker = job->maker;
    bool ids = job->row->form.values == SBP_VALUES_IDS, /* which may have masks of their own */
        answers = maker->loss_on > SBP_LOSS_ASSISTANT || (!ids && maker->loss_on == SBP_LOSS_ASSISTANT);
    if (!answers && maker->reasoning == SBP_REASONING_ALL)
        return SBP_OK;
    return sbp_fail(maker->diag, SBP_INPUT, "%s: --loss-on%s %s: rows are not conversations ('messages')",
                    job->row->where, answers ? "" : "-reasoning",
                    answers ? sbp_loss_on_names[maker->loss_on] : sbp_reasoning_names[maker->reasoning]);
}

static sbp_status check_strings(const make_job *job) {
    sbp_document_maker *maker = job->maker;
    SBP_TRY(check_no_talk(job));
    if (!maker->warned_eos && !eos_of(maker) && job->row->form.type != SBP_ROW_PROMPT) {
        maker->warned_eos = true;
        sbp_warn(maker->diag, "the model names no end-of-sequence token: nothing is appended to texts");
    }
    return SBP_OK;
}

static sbp_status make_documents(make_job *job) {
    const sbp_row_form *form = &job->row->form;
    if (form->values != SBP_VALUES_IDS && !job->maker->tokenizer) {
        job->maker->unusable = true;
        return sbp_fail(job->maker->diag, SBP_INPUT,
                        "%s: rows of text need a tokenizer, and no tokenizer.json was read: add one, or use "
                        "input_ids",
                        job->row->where);
    }
    if (form->values == SBP_VALUES_STRINGS)
        SBP_TRY(check_strings(job));
    if (form->values == SBP_VALUES_IDS && form->type != SBP_ROW_PROMPT)
        SBP_TRY(check_no_talk(job));
    switch (form->type) {
    case SBP_ROW_INPUT_IDS:
        return make_input_ids(job);
    case SBP_ROW_COMPLETION:
    case SBP_ROW_PAIR:
        return make_answers(job);
    case SBP_ROW_PROMPT:
        return make_prompt(job);
    default:
        return form->values == SBP_VALUES_MESSAGES ? make_messages(job) : make_text(job);
    }
}

static sbp_status make_body(void *user) {
    make_job *job = user;
    *job->all = (sbp_documents){.documents = SBP_NEW(job->arena, sbp_document), .count = 1};
    job->out = job->all->documents;
    SBP_TRY(make_documents(job));
    if (job->row->form.values == SBP_VALUES_MESSAGES)
        SBP_TRY(find_unwritten(job));
    SBP_TRY(add_routed(job));
    return add_fields(job);
}

sbp_status sbp_documents_make(sbp_document_maker *maker, sbp_arena *arena, const sbp_row *row,
                              sbp_documents *out) {
    make_job job = {.maker = maker, .arena = arena, .row = row, .all = out};
    return sbp_guard(arena, maker->diag, make_body, &job);
}
