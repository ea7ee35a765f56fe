/* contents.c: parts of contents, and contents that are not there. */
#include "runtime/data/contents.h"

#include <string.h>

/* In which form contents are tried, by bit; in this order. */
enum { AS_THEY_ARE = 0, NULLS = 1, TEXTS = 2, FORMS = 4, EMPTY = 4 };

typedef struct fit_job {
    const sbp_chat *chat;
    sbp_arena *arena;
    sbp_diag *diag;
    const sbp_conversation *talk;
    const sbp_json *forms[2 * FORMS]; /* messages; NULL: not made yet */
    bool lists;                       /* there are lists of parts */
    const sbp_json *absent;           /* the first call without a content; NULL: there is none */
    const sbp_json *other;            /* the type of the first part that is no text; NULL: there is none */
    const sbp_json **out;
} fit_job;

static const sbp_json *string_member(const sbp_json *object, const char *key) {
    const sbp_json *member = sbp_json_member(object, key);
    return member && member->kind == SBP_JSON_STRING ? member : NULL;
}

static bool is_list_of_parts(const sbp_json *content) {
    if (!content || content->kind != SBP_JSON_ARRAY)
        return false;
    for (int64_t i = 0; i < content->count; i++)
        if (!string_member(&content->items[i], "type"))
            return false;
    return true;
}

static bool is_call_alone(const sbp_json *message) {
    const sbp_json *calls = sbp_json_member(message, "tool_calls");
    return calls && calls->kind == SBP_JSON_ARRAY && !sbp_json_member(message, "content");
}

/* ---- parts ------------------------------------------------------------------------------------------ */

static sbp_status check_part(fit_job *job, const sbp_json *part) {
    static const char *const never[] = {"image", "audio", "video"};
    const sbp_json *type = string_member(part, "type");
    for (int i = 0; i < SBP_COUNT(never); i++)
        if (strstr(type->string, never[i])) /* input_image, image_url .. */
            return sbp_json_fail(job->diag, type, "found a part of type '%.60s': models are trained on text",
                                 type->string);
    bool text = strcmp(type->string, "text") == 0;
    const sbp_json *value = sbp_json_member(part, "text");
    if (text && value && value->kind != SBP_JSON_STRING)
        return sbp_json_fail(job->diag, value, "expected a string, found %s",
                             sbp_json_kind_name(value->kind));
    if (!text && !job->other)
        job->other = type;
    return SBP_OK;
}

static sbp_status look(fit_job *job) {
    const sbp_json *messages = job->talk->messages;
    for (int64_t i = 0; i < messages->count; i++) {
        const sbp_json *content = sbp_json_member(&messages->items[i], "content");
        if (!job->absent && is_call_alone(&messages->items[i]))
            job->absent = &messages->items[i];
        if (!is_list_of_parts(content))
            continue;
        job->lists = true;
        for (int64_t k = 0; k < content->count; k++)
            SBP_TRY(check_part(job, &content->items[k]));
    }
    return SBP_OK;
}

/* The texts of a list of parts as one. */
static void join_parts(sbp_arena *arena, const sbp_json *list, sbp_json *out) {
    size_t length = 0;
    for (int64_t i = 0; i < list->count; i++) {
        const sbp_json *text = string_member(&list->items[i], "text");
        length += text ? (size_t)text->count : 0;
    }
    char *joined = sbp_arena_alloc(arena, length + 1);
    out->kind = SBP_JSON_STRING;
    out->string = joined;
    out->count = (int64_t)length;
    for (int64_t i = 0; i < list->count; i++) {
        const sbp_json *text = string_member(&list->items[i], "text");
        if (text && text->count > 0)
            memcpy(joined, text->string, (size_t)text->count);
        joined += text ? text->count : 0;
    }
    *joined = 0;
}

/* ---- forms ------------------------------------------------------------------------------------------ */

static void make_message(const fit_job *job, int form, const sbp_json *from, sbp_json *to) {
    *to = *from;
    bool texts = (form & TEXTS) && is_list_of_parts(sbp_json_member(from, "content")),
         add = (form & (NULLS | EMPTY)) && is_call_alone(from);
    if (!texts && !add)
        return;
    sbp_json *items = SBP_NEW_ARRAY(job->arena, sbp_json, from->count + 1);
    to->items = items;
    to->table = NULL;
    memcpy(items, from->items, (size_t)from->count * sizeof *items);
    for (int64_t i = 0; i < from->count && texts; i++)
        if (strcmp(items[i].key, "content") == 0)
            join_parts(job->arena, &from->items[i], &items[i]);
    if (add)
        items[to->count++] = (sbp_json){.kind = form & EMPTY ? SBP_JSON_STRING : SBP_JSON_NULL,
                                        .key = "content",
                                        .parent = to,
                                        .string = ""};
}

static const sbp_json *messages_in(fit_job *job, int form) {
    const sbp_json *from = job->talk->messages;
    if (form == AS_THEY_ARE)
        return from;
    if (job->forms[form])
        return job->forms[form];
    sbp_json *list = SBP_NEW(job->arena, sbp_json),
             *items = SBP_NEW_ARRAY(job->arena, sbp_json, from->count + 1);
    *list = *from;
    list->items = items;
    for (int64_t i = 0; i < from->count; i++)
        make_message(job, form, &from->items[i], &items[i]);
    return job->forms[form] = list;
}

/* SBP_INPUT: the template refuses it. */
static sbp_status render(fit_job *job, int form, sbp_rendering *out) {
    sbp_conversation talk = *job->talk;
    talk.messages = messages_in(job, form);
    sbp_status status = sbp_chat_render(job->chat, job->arena, NULL, &talk, false, out);
    if (status == SBP_MACHINE)
        return sbp_fail(job->diag, SBP_MACHINE, "%s: out of memory for a conversation", job->talk->where);
    return status;
}

static int64_t count_types(const sbp_rendering *text) {
    static const char *const spelled[] = {"'type': '", "\"type\": \""};
    int64_t count = 0;
    for (int i = 0; i < SBP_COUNT(spelled); i++)
        for (const char *at = text->text, *end = text->text + text->length;
             (at = memmem(at, (size_t)(end - at), spelled[i], strlen(spelled[i]))); at++)
            count++;
    return count;
}

/* Whether a template wrote lists of parts as they are, which it does not when it has read them. */
static sbp_status are_spelled(fit_job *job, int form, const sbp_rendering *text, bool *out) {
    sbp_rendering texts;
    int64_t count = count_types(text);
    *out = false;
    if (count == 0)
        return SBP_OK;
    sbp_status status = render(job, form | TEXTS, &texts);
    *out = status == SBP_OK && count > count_types(&texts);
    return status == SBP_INPUT ? SBP_OK : status;
}

static sbp_status fits(fit_job *job, int form, bool *out) {
    sbp_rendering text;
    bool spelled = false;
    sbp_status status = render(job, form, &text);
    *out = status == SBP_OK;
    if (status != SBP_OK)
        return status == SBP_INPUT ? SBP_OK : status;
    if (job->lists && !(form & TEXTS))
        SBP_TRY(are_spelled(job, form, &text, &spelled));
    *out = !spelled;
    return SBP_OK;
}

/* Nothing of it was taken. Where a content would be, there is something to say; the rest says the template.
 */
static sbp_status refuse(fit_job *job) {
    sbp_rendering text;
    if (!job->absent)
        return SBP_OK;
    sbp_status status = render(job, EMPTY | (job->lists ? TEXTS : 0), &text);
    if (status != SBP_OK)
        return status == SBP_INPUT ? SBP_OK : status;
    return sbp_json_fail(
        job->diag, job->absent,
        "has tool_calls and no content, which the template does not take, and it may write no "
        "calls: give it a content (\"\" is one), or another --chat-template");
}

static sbp_status fit_body(void *user) {
    fit_job *job = user;
    int form = AS_THEY_ARE;
    SBP_TRY(look(job));
    for (bool good = !job->lists && !job->absent; !good && form < FORMS;) {
        bool has = ((form & NULLS) == 0 || job->absent) && ((form & TEXTS) == 0 || job->lists);
        if (has)
            SBP_TRY(fits(job, form, &good));
        form += !good;
    }
    if (form == FORMS) {
        SBP_TRY(refuse(job));
        form = job->lists ? TEXTS : AS_THEY_ARE;
    }
    if ((form & TEXTS) && job->other)
        return sbp_json_fail(job->diag, job->other,
                             "found a part of type '%.60s', and the template takes texts only",
                             job->other->string);
    *job->out = messages_in(job, form);
    return SBP_OK;
}

sbp_status sbp_contents_fit(const sbp_chat *chat, sbp_arena *arena, sbp_diag *diag,
                            const sbp_conversation *talk, const sbp_json **out) {
    fit_job job = {.chat = chat, .arena = arena, .diag = diag, .talk = talk, .out = out};
    return sbp_guard(arena, diag, fit_body, &job);
}
