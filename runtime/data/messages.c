/* messages.c: messages and tools of a row. */
#include "runtime/data/messages.h"

#include <string.h>

static bool is_null(const sbp_json *node) {
    return !node || node->kind == SBP_JSON_NULL;
}

static bool has(const sbp_json *object, const char *key) {
    return !is_null(sbp_json_member(object, key));
}

/* A copy of a list or object without members that are null. The depth is bounded by the parser. */
static void copy_without_nulls(sbp_arena *arena, const sbp_json *from, const sbp_json *parent, sbp_json *to) {
    *to = *from;
    to->parent = parent;
    if (from->kind != SBP_JSON_ARRAY && from->kind != SBP_JSON_OBJECT)
        return;
    sbp_json *items = SBP_NEW_ARRAY(arena, sbp_json, from->count);
    to->items = items;
    to->table = NULL;
    to->count = 0;
    for (int64_t i = 0; i < from->count; i++)
        if (from->kind == SBP_JSON_ARRAY || from->items[i].kind != SBP_JSON_NULL)
            copy_without_nulls(arena, &from->items[i], to, &items[to->count++]);
}

/* Adds a member, which others of a message may be named like no more. */
static void add_member(sbp_json *message, sbp_json *items, const char *key, const sbp_json *value) {
    sbp_json *member = &items[message->count++];
    *member = *value;
    member->key = key;
    member->parent = message;
}

/* The first of the names under which thoughts come. */
static const sbp_json *reasoning_of(const sbp_json *message) {
    static const char *const names[] = {"reasoning_content", "thinking", "reasoning"};
    for (int i = 0; i < SBP_COUNT(names); i++)
        if (has(message, names[i]))
            return sbp_json_member(message, names[i]);
    return NULL;
}

/* ---- from and value --------------------------------------------------------------------------------- */

enum { CALL = 1 };

/* Who speaks in {"from", "value"}, and what templates call it. "function" is what one answered, as it is with
 * OpenAI; a call of one is "function_call", its text the JSON of the call. */
static const struct {
    const char *from, *role;
    int kind;
} speakers[] = {{"human", "user", 0},
                {"user", "user", 0},
                {"gpt", "assistant", 0},
                {"assistant", "assistant", 0},
                {"system", "system", 0},
                {"developer", "developer", 0},
                {"tool", "tool", 0},
                {"observation", "tool", 0},
                {"function", "tool", 0},
                {"function_response", "tool", 0},
                {"function_call", "assistant", CALL}};

static sbp_status find_speaker(sbp_diag *diag, const sbp_json *from, int *out) {
    for (*out = 0; *out < SBP_COUNT(speakers); (*out)++)
        if (strcmp(from->string, speakers[*out].from) == 0)
            return SBP_OK;
    return sbp_json_fail(diag, from,
                         "expected human, gpt, system, tool, observation or function_call, found '%.60s'; "
                         "other roles are read as {\"role\", \"content\"}",
                         from->string);
}

static bool is_call(const sbp_json *node) {
    const sbp_json *name = sbp_json_member(node, "name");
    return name && name->kind == SBP_JSON_STRING;
}

/* The list that "tool_calls" is, of the text of a function_call: one call, or a list of them. */
static sbp_status read_calls(sbp_arena *arena, sbp_diag *diag, const sbp_json *value, sbp_json *out) {
    const sbp_json *root = NULL;
    sbp_status status = SBP_INPUT;
    if (value && value->kind == SBP_JSON_STRING)
        status = sbp_json_parse(arena, NULL, "function_call", value->string, (size_t)value->count,
                                SBP_JSON_ROW, &root);
    if (status == SBP_MACHINE)
        return sbp_fail(diag, SBP_MACHINE, "out of memory for a message");
    bool good = status == SBP_OK;
    int64_t count = good && root->kind == SBP_JSON_ARRAY ? root->count : 1;
    const sbp_json *calls = good && root->kind == SBP_JSON_ARRAY ? root->items : root;
    for (int64_t i = 0; i < count && good; i++)
        good = is_call(&calls[i]);
    if (!good || count == 0)
        return sbp_json_fail(diag, value,
                             "expected the JSON of a call, {\"name\": .., \"arguments\": {..}}, or of a list "
                             "of them");
    sbp_json *items = SBP_NEW_ARRAY(arena, sbp_json, count);
    *out = (sbp_json){.kind = SBP_JSON_ARRAY, .key = "tool_calls", .count = count, .items = items};
    for (int64_t i = 0; i < count; i++) {
        sbp_json *members = SBP_NEW_ARRAY(arena, sbp_json, 2);
        items[i] = (sbp_json){.kind = SBP_JSON_OBJECT, .index = (int32_t)i, .parent = out, .items = members};
        members[0] = (sbp_json){.kind = SBP_JSON_STRING, .key = "type", .count = 8, .string = "function"};
        members[1] = calls[i];
        members[1].key = "function";
        members[0].parent = members[1].parent = &items[i];
        items[i].count = 2;
    }
    return SBP_OK;
}

/* A message in the older form; items has room. */
static sbp_status read_old(sbp_arena *arena, sbp_diag *diag, const sbp_json *from, const sbp_json *plain,
                           sbp_json *to, sbp_json *items) {
    int speaker;
    SBP_TRY(find_speaker(diag, sbp_json_member(from, "from"), &speaker));
    const char *role = speakers[speaker].role;
    if (speakers[speaker].kind == CALL && !has(from, "value"))
        return sbp_json_fail(diag, from, "expected 'value', the JSON of a call");
    for (int64_t i = 0; i < plain->count; i++) {
        sbp_json value = plain->items[i];
        if (strcmp(value.key, "from") == 0) {
            value.string = role;
            value.count = (int64_t)strlen(role);
            add_member(to, items, "role", &value);
        } else if (strcmp(value.key, "value") != 0) {
            add_member(to, items, value.key, &value);
        } else if (speakers[speaker].kind == CALL) {
            SBP_TRY(read_calls(arena, diag, sbp_json_member(from, "value"), &value));
            add_member(to, items, "tool_calls", &value);
        } else {
            add_member(to, items, "content", &value);
        }
    }
    return SBP_OK;
}

/* ---- messages --------------------------------------------------------------------------------------- */

/* What a tool answers may be anything. */
static bool may_be_any(const char *role, bool old) {
    for (int i = 0; i < SBP_COUNT(speakers) && old; i++)
        if (strcmp(role, speakers[i].from) == 0)
            return strcmp(speakers[i].role, "tool") == 0;
    return strcmp(role, "tool") == 0;
}

static sbp_status check_role(sbp_diag *diag, const sbp_json *message) {
    bool old = has(message, "from") && !has(message, "role");
    const sbp_json *role = sbp_json_member(message, old ? "from" : "role");
    if (is_null(role))
        return sbp_json_fail(diag, message,
                             "expected 'role' and 'content' (or 'from' and 'value'), found neither role "
                             "nor from");
    if (role->kind != SBP_JSON_STRING)
        return sbp_json_fail(diag, role, "expected a string, found %s", sbp_json_kind_name(role->kind));
    const sbp_json *content = sbp_json_member(message, old ? "value" : "content");
    if (content && content->kind != SBP_JSON_STRING && content->kind != SBP_JSON_ARRAY && !is_null(content) &&
        !may_be_any(role->string, old))
        return sbp_json_fail(diag, content, "expected a string or a list of parts, found %s",
                             sbp_json_kind_name(content->kind));
    return SBP_OK;
}

static sbp_status read_message(sbp_arena *arena, sbp_diag *diag, const sbp_json *from, const sbp_json *list,
                               sbp_json *to) {
    sbp_json *plain = SBP_NEW(arena, sbp_json); /* stays: nodes below name their place by it */
    if (from->kind != SBP_JSON_OBJECT)
        return sbp_json_fail(diag, from, "expected a message {\"role\", \"content\"}, found %s",
                             sbp_json_kind_name(from->kind));
    SBP_TRY(check_role(diag, from));
    copy_without_nulls(arena, from, list, plain);
    const sbp_json *thoughts = reasoning_of(plain);
    bool old = !has(plain, "role");
    sbp_json *items = SBP_NEW_ARRAY(arena, sbp_json, plain->count + 2);
    *to = *plain;
    to->items = items;
    to->count = 0;
    if (thoughts && !has(plain, "thinking"))
        add_member(to, items, "thinking", thoughts);
    if (old)
        SBP_TRY(read_old(arena, diag, from, plain, to, items));
    for (int64_t i = 0; i < plain->count && !old; i++)
        add_member(to, items, plain->items[i].key, &plain->items[i]);
    if (thoughts && !has(plain, "reasoning_content"))
        add_member(to, items, "reasoning_content", thoughts);
    return SBP_OK;
}

sbp_status sbp_messages_read(sbp_arena *arena, sbp_diag *diag, const sbp_json *list, bool may_be_empty,
                             const sbp_json **out) {
    if (list->kind != SBP_JSON_ARRAY)
        return sbp_json_fail(diag, list, "expected a list of messages, found %s",
                             sbp_json_kind_name(list->kind));
    if (list->count == 0 && !may_be_empty)
        return sbp_json_fail(diag, list, "expected messages, found an empty list");
    sbp_json *copy = SBP_NEW(arena, sbp_json), *items = SBP_NEW_ARRAY(arena, sbp_json, list->count);
    *copy = *list;
    copy->items = items;
    for (int64_t i = 0; i < list->count; i++)
        SBP_TRY(read_message(arena, diag, &list->items[i], copy, &items[i]));
    *out = copy;
    return SBP_OK;
}

sbp_status sbp_tools_read(sbp_arena *arena, sbp_diag *diag, const char *where, const sbp_json *node,
                          const sbp_json **out) {
    *out = NULL;
    if (is_null(node))
        return SBP_OK;
    bool text = node->kind == SBP_JSON_STRING;
    if (text)
        SBP_TRY(sbp_json_parse(arena, diag, sbp_arena_printf(arena, "%s: the text of tools", where),
                               node->string, (size_t)node->count, SBP_JSON_ROW, &node));
    if (is_null(node))
        return SBP_OK;
    if (node->kind != SBP_JSON_ARRAY)
        return sbp_json_fail(diag, node, "expected a list of tools, found %s",
                             sbp_json_kind_name(node->kind));
    for (int64_t i = 0; i < node->count; i++)
        if (node->items[i].kind != SBP_JSON_OBJECT)
            return sbp_json_fail(diag, &node->items[i], "expected an object that describes a tool, found %s",
                                 sbp_json_kind_name(node->items[i].kind));
    *out = node;
    if (text) /* its nulls were meant: no column of a table made them */
        return SBP_OK;
    sbp_json *copy = SBP_NEW(arena, sbp_json);
    copy_without_nulls(arena, node, node->parent, copy);
    *out = copy;
    return SBP_OK;
}

static double number_of(const sbp_json *node) {
    return node->kind == SBP_JSON_BOOL  ? node->boolean
           : node->kind == SBP_JSON_INT ? (double)node->integer
                                        : node->real;
}

static bool is_number(const sbp_json *node) {
    return node->kind == SBP_JSON_BOOL || node->kind == SBP_JSON_INT || node->kind == SBP_JSON_REAL;
}

bool sbp_messages_equal(const sbp_json *a, const sbp_json *b) {
    if (a->kind == SBP_JSON_INT && b->kind == SBP_JSON_INT)
        return a->integer == b->integer;
    if (is_number(a) && is_number(b))
        return number_of(a) == number_of(b);
    if (a->kind != b->kind || a->count != b->count)
        return false;
    if (a->kind == SBP_JSON_STRING)
        return memcmp(a->string, b->string, (size_t)a->count) == 0;
    for (int64_t i = 0; i < a->count; i++) {
        const sbp_json *other =
            a->kind == SBP_JSON_OBJECT ? sbp_json_member(b, a->items[i].key) : &b->items[i];
        if (!other || !sbp_messages_equal(&a->items[i], other))
            return false;
    }
    return true;
}

const sbp_json *sbp_messages_of_one(sbp_arena *arena, const sbp_json *message) {
    sbp_json *list = SBP_NEW(arena, sbp_json);
    *list = (sbp_json){.kind = SBP_JSON_ARRAY,
                       .index = message->index,
                       .key = message->key,
                       .parent = message->parent,
                       .count = 1,
                       .items = message};
    return list;
}

const sbp_json *sbp_messages_part(sbp_arena *arena, const sbp_json *list, int64_t from, int64_t to) {
    sbp_json *part = SBP_NEW(arena, sbp_json);
    *part = *list;
    part->items = list->items + from;
    part->count = to - from;
    return part;
}

const sbp_json *sbp_messages_join(sbp_arena *arena, const sbp_json *a, const sbp_json *b) {
    sbp_json *both = SBP_NEW(arena, sbp_json), *items = SBP_NEW_ARRAY(arena, sbp_json, a->count + b->count);
    *both = *a;
    both->items = items;
    both->count = a->count + b->count;
    for (int64_t i = 0; i < both->count; i++)
        items[i] = i < a->count ? a->items[i] : b->items[i - a->count];
    return both;
}
