/* chat.c: templates over conversations. */
#include "runtime/data/chat.h"

#include <string.h>

enum { MOST_MARKER_BYTES = 40 };

/* Answers times length of a conversation whose renderings are compared: some minutes of rendering. */
#define MOST_COMPARED_BYTES ((size_t)16 << 30)

static const sbp_json null_node = {.kind = SBP_JSON_NULL};

/* ---- the template --------------------------------------------------------------------------------- */

typedef struct open_job {
    sbp_arena *arena;
    sbp_diag *diag;
    const sbp_chat_options *options;
    sbp_chat **out;
} open_job;

/* Parses a text, or its marked copy where that is needed; *copied tells which. */
static sbp_status parse(const open_job *job, const char *name, const char *text, size_t length, bool *copied,
                        const sbp_template **out) {
    size_t copy_length;
    *copied = false;
    SBP_TRY(sbp_template_parse(job->arena, job->diag, name, text, length, out));
    if (!job->options->assistant || sbp_template_has_marks(*out))
        return SBP_OK;
    const char *copy = sbp_template_marked_copy(job->arena, text, length, &copy_length);
    if (!copy)
        return SBP_OK;
    *copied = true;
    return sbp_template_parse(job->arena, job->diag, name, copy, copy_length, out);
}

/* Length of something like <|im_end|> or <end_of_turn> at the beginning of a text, 0: none. */
static size_t marker_length(const char *text, size_t length) {
    static const char *const words[] = {"<start_of_turn>", "<end_of_turn>", "[INST]", "[/INST]"};
    for (int i = 0; i < SBP_COUNT(words); i++)
        if (length >= strlen(words[i]) && memcmp(text, words[i], strlen(words[i])) == 0)
            return strlen(words[i]);
    if (length < 5 || text[0] != '<' || text[1] != '|')
        return 0;
    for (size_t i = 2; i + 1 < length && i < MOST_MARKER_BYTES; i++) {
        if (text[i] == '|' && text[i + 1] == '>')
            return i > 2 ? i + 2 : 0;
        if (strchr(" \n'\"{}<", text[i]))
            return 0;
    }
    return 0;
}

/* A marker of turns that is spelled out in pieces is none to this tokenizer: the template is another model's.
 */
static sbp_status check_markers(const open_job *job) {
    const char *text = job->options->source.text;
    size_t length = job->options->source.length;
    sbp_map seen;
    sbp_map_init(&seen, job->arena);
    for (size_t at = 0; at < length; at++) {
        size_t bytes = marker_length(text + at, length - at);
        if (bytes == 0)
            continue;
        const char *marker = sbp_arena_strndup(job->arena, text + at, bytes);
        sbp_encoding tokens;
        if (sbp_map_get(&seen, marker) >= 0)
            continue;
        sbp_map_set(&seen, marker, 0);
        SBP_TRY(
            sbp_tokenizer_encode(job->options->tokenizer, job->arena, job->diag, marker, bytes, 0, &tokens));
        if (tokens.count > 1) {
            sbp_warn(job->diag,
                     "the chat template writes '%s', which is %lld tokens to this tokenizer: the template "
                     "may belong "
                     "to another model",
                     marker, (long long)tokens.count);
            return SBP_OK;
        }
    }
    return SBP_OK;
}

/* A name for messages; if it is that of a file, without folders: paths in the cache of the Hub
 * have 150 letters. */
static const char *short_name(const char *name) {
    const char *slash = strrchr(name, '/');
    return slash && sbp_file_exists(name) ? slash + 1 : name;
}

static sbp_status open_body(void *user) {
    open_job *job = user;
    const sbp_chat_options *o = job->options;
    sbp_chat *chat = SBP_NEW(job->arena, sbp_chat);
    bool copied, tool_copied;
    chat->options = o;
    if (!o->source.text)
        return sbp_fail(
            job->diag, SBP_INPUT,
            "rows are conversations, and the model has no chat template: give --chat-template FILE");
    SBP_TRY(parse(job, o->source.name, o->source.text, o->source.length, &copied, &chat->template));
    chat->tool_template = chat->template;
    if (o->source.tool_text)
        SBP_TRY(parse(job, "tool_use", o->source.tool_text, o->source.tool_length, &tool_copied,
                      &chat->tool_template));
    if (!o->quiet)
        sbp_note(job->diag, "chat template: %s%s%s", short_name(o->source.name),
                 o->source.tool_text ? ", tool_use where rows have tools" : "",
                 !o->assistant ? ""
                 : copied      ? "; assistant tokens: found by a marked copy of it"
                 : sbp_template_has_marks(chat->template)
                     ? "; assistant tokens: as the template marks them"
                     : "; assistant tokens: found by comparing renderings of it");
    if (o->tokenizer)
        SBP_TRY(check_markers(job));
    *job->out = chat;
    return SBP_OK;
}

sbp_status sbp_chat_open(sbp_arena *arena, sbp_diag *diag, const sbp_chat_options *options, sbp_chat **out) {
    open_job job = {arena, diag, options, out};
    return sbp_guard(arena, diag, open_body, &job);
}

/* ---- rendering -------------------------------------------------------------------------------------- */

typedef struct render_job {
    const sbp_chat *chat;
    sbp_arena *arena;
    sbp_diag *diag;
    const sbp_conversation *talk;
    int64_t messages; /* how many of them, from the first */
    bool prompt;
    sbp_rendering *out;
} render_job;

static sbp_status render_body(void *user) {
    const render_job *job = user;
    const sbp_conversation *talk = job->talk;
    const sbp_tokenizer *tokenizer = job->chat->options->tokenizer;
    int32_t tokens = tokenizer ? sbp_tokenizer_named_count(tokenizer) : 0, count = 0;
    int64_t extra = talk->kwargs ? talk->kwargs->count : 0;
    sbp_template_variable *list = SBP_NEW_ARRAY(job->arena, sbp_template_variable, tokens + extra + 5);
    sbp_json *messages = SBP_NEW(job->arena, sbp_json);
    *messages = *talk->messages;
    messages->count = job->messages;
    for (int32_t i = 0; i < tokens; i++, count++)
        sbp_tokenizer_named_at(tokenizer, i, &list[count].name, &list[count].text);
    if (job->chat->options->eos)
        list[count++] = (sbp_template_variable){.name = "eos_token", .text = job->chat->options->eos};
    list[count++] = (sbp_template_variable){.name = "messages", .json = messages};
    list[count++] = (sbp_template_variable){.name = "tools", .json = talk->tools ? talk->tools : &null_node};
    list[count++] = (sbp_template_variable){.name = "documents", .json = &null_node};
    list[count++] = (sbp_template_variable){.name = "add_generation_prompt", .boolean = job->prompt};
    for (int64_t i = 0; i < extra; i++)
        if (talk->kwargs->items[i].kind != SBP_JSON_NULL)
            list[count++] =
                (sbp_template_variable){.name = talk->kwargs->items[i].key, .json = &talk->kwargs->items[i]};
    const sbp_template_call call = {
        .where = talk->where, .variables = list, .variable_count = count, .date = job->chat->options->date};
    return sbp_template_render(talk->tools ? job->chat->tool_template : job->chat->template, job->arena,
                               job->diag, &call, job->out);
}

static sbp_status render(const sbp_chat *chat, sbp_arena *arena, sbp_diag *diag, const sbp_conversation *talk,
                         int64_t messages, bool prompt, sbp_rendering *out) {
    render_job job = {chat, arena, diag, talk, messages, prompt, out};
    return sbp_guard(arena, diag, render_body, &job);
}

sbp_status sbp_chat_render(const sbp_chat *chat, sbp_arena *arena, sbp_diag *diag,
                           const sbp_conversation *talk, bool add_generation_prompt, sbp_rendering *out) {
    return render(chat, arena, diag, talk, talk->messages->count, add_generation_prompt, out);
}

/* ---- differences ------------------------------------------------------------------------------------ */

static bool begins(const sbp_rendering *all, const sbp_rendering *with) {
    return with->length <= all->length && memcmp(all->text, with->text, with->length) == 0;
}

/* What message i adds. */
static sbp_status difference(const render_job *job, int64_t i, const sbp_rendering *all, int64_t span[2]) {
    sbp_rendering before, behind;
    SBP_TRY(render(job->chat, job->arena, job->diag, job->talk, i, true, &before));
    SBP_TRY(render(job->chat, job->arena, job->diag, job->talk, i + 1, false, &behind));
    if (!begins(all, &before) || !begins(all, &behind) || behind.length < before.length)
        return sbp_fail(
            job->diag, SBP_INPUT,
            "%s: message %lld (from 0): the template writes the conversation up to here differently when "
            "it goes on%s, so what the assistant said cannot be told; give a template with {%% generation "
            "%%} around it by --chat-template FILE, or --loss-on all",
            job->talk->where, (long long)i, begins(all, &behind) ? "" : " behind the answer");
    span[0] = (int64_t)before.length;
    span[1] = (int64_t)behind.length;
    return SBP_OK;
}

static bool is_answer(const sbp_json *message) {
    return strcmp(sbp_json_member(message, "role")->string, "assistant") == 0;
}

/* Each answer renders the conversation up to it twice: the time grows with answers times length, the memory
 * does not, since what a message rendered is given back before the next. */
static sbp_status differences_body(void *user) {
    const render_job *job = user;
    const sbp_json *messages = job->talk->messages;
    sbp_rendering *out = job->out;
    int64_t answers = 0;
    for (int64_t i = 0; i < messages->count; i++)
        answers += is_answer(&messages->items[i]);
    if (answers > 0 && out->length > MOST_COMPARED_BYTES / (size_t)answers)
        return sbp_fail(
            job->diag, SBP_INPUT,
            "%s: to find what the assistant said in a conversation of %zu bytes with %lld answers, it would "
            "have to be rendered up to each of them; give a template with {%% generation %%} around the "
            "answers by --chat-template FILE, or --loss-on all",
            job->talk->where, out->length, (long long)answers);
    out->spans = sbp_arena_array(job->arena, (size_t)answers, sizeof *out->spans);
    out->span_count = 0;
    for (int64_t i = 0; i < messages->count; i++) {
        if (!is_answer(&messages->items[i]))
            continue;
        sbp_arena_mark mark = sbp_arena_begin(job->arena);
        sbp_status status = difference(job, i, out, out->spans[out->span_count++]);
        sbp_arena_end(job->arena, mark);
        SBP_TRY(status);
    }
    return SBP_OK;
}

sbp_status sbp_chat_render_marked(const sbp_chat *chat, sbp_arena *arena, sbp_diag *diag,
                                  const sbp_conversation *talk, sbp_rendering *out) {
    render_job job = {chat, arena, diag, talk, talk->messages->count, false, out};
    SBP_TRY(sbp_guard(arena, diag, render_body, &job));
    if (sbp_template_has_marks(talk->tools ? chat->tool_template : chat->template))
        return SBP_OK;
    return sbp_guard(arena, diag, differences_body, &job);
}

/* ---- what a template leaves out --------------------------------------------------------------------- */

const char *const sbp_chat_unwritten_names[SBP_UNWRITTEN_KINDS] = {"tools", "tool_calls", "reasoning"};

static const char *const calls[] = {"tool_calls", NULL}, *const thoughts[] = {"reasoning_content",
                                                                              "reasoning", "thinking", NULL};

static bool is_one_of(const char *const *names, const char *key) {
    while (*names && strcmp(*names, key) != 0)
        names++;
    return *names != NULL;
}

/* Messages without members of these names, in the arena; NULL: none has one that says anything. */
static const sbp_json *without(sbp_arena *arena, const sbp_json *messages, const char *const *names) {
    sbp_json *out = SBP_NEW(arena, sbp_json), *items = SBP_NEW_ARRAY(arena, sbp_json, messages->count);
    bool found = false;
    *out = *messages;
    out->items = items;
    for (int64_t i = 0; i < messages->count; i++) {
        const sbp_json *from = &messages->items[i];
        sbp_json *members = SBP_NEW_ARRAY(arena, sbp_json, from->count);
        items[i] = *from;
        items[i].items = members;
        items[i].table = NULL;
        items[i].count = 0;
        for (int64_t k = 0; k < from->count; k++) {
            const sbp_json *member = &from->items[k];
            bool says =
                member->kind != SBP_JSON_NULL &&
                ((member->kind != SBP_JSON_ARRAY && member->kind != SBP_JSON_STRING) || member->count > 0);
            found |= says && is_one_of(names, member->key);
            if (!is_one_of(names, member->key))
                members[items[i].count++] = *member;
        }
    }
    return found ? out : NULL;
}

typedef struct unwritten_job {
    const sbp_chat *chat;
    sbp_arena *arena;
    sbp_diag *diag;
    const sbp_conversation *talk;
    sbp_rendering all;
    unsigned *out;
} unwritten_job;

/* A template that fails without it reads it. */
static void compare(unwritten_job *job, const sbp_conversation *less, unsigned bit) {
    sbp_rendering text;
    if (sbp_chat_render(job->chat, job->arena, NULL, less, false, &text) == SBP_OK &&
        text.length == job->all.length && memcmp(text.text, job->all.text, text.length) == 0)
        *job->out |= bit;
}

static sbp_status unwritten_body(void *user) {
    unwritten_job *job = user;
    const sbp_conversation *talk = job->talk;
    sbp_conversation less[SBP_UNWRITTEN_KINDS] = {*talk, *talk, *talk};
    bool has[SBP_UNWRITTEN_KINDS] = {talk->tools && talk->tools->count > 0};
    less[0].tools = NULL;
    has[1] = (less[1].messages = without(job->arena, talk->messages, calls)) != NULL;
    has[2] = (less[2].messages = without(job->arena, talk->messages, thoughts)) != NULL;
    if (!has[0] && !has[1] && !has[2])
        return SBP_OK;
    SBP_TRY(sbp_chat_render(job->chat, job->arena, job->diag, talk, false, &job->all));
    for (int k = 0; k < SBP_UNWRITTEN_KINDS; k++)
        if (has[k])
            compare(job, &less[k], 1u << k);
    return SBP_OK;
}

sbp_status sbp_chat_find_unwritten(const sbp_chat *chat, sbp_arena *arena, sbp_diag *diag,
                                   const sbp_conversation *talk, unsigned *out) {
    unwritten_job job = {.chat = chat, .arena = arena, .diag = diag, .talk = talk, .out = out};
    *out = 0;
    return sbp_guard(arena, diag, unwritten_body, &job);
}
