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
        strcmp(role->string, "tool") != 0)
        return sbp_json_fail(diag, content, "expected a string or a list of parts, found %s",
                             sbp_json_kind_name(content->kind));
    return SBP_OK;
}

static sbp_status read_message(sbp_arena *arena, sbp_diag *diag, const sbp_json *from, const sbp_json *list,
                               sbp_json *to) {
    sbp_json plain;
    if (from->kind != SBP_JSON_OBJECT)
        return sbp_json_fail(diag, from, "expected a message {\"role\", \"content\"}, found %s",
                             sbp_json_kind_name(from->kind));
    SBP_TRY(check_role(diag, from));
    copy_without_nulls(arena, from, list, &plain);
    const sbp_json *thoughts = reasoning_of(&plain);
    bool old = !has(&plain, "role");
    sbp_json *items = SBP_NEW_ARRAY(arena, sbp_json, plain.count + 2);
    *to = plain;
    to->items = items;
    to->count = 0;
    if (thoughts && !has(&plain, "thinking"))
        add_member(to, items, "thinking", thoughts);
    for (int64_t i = 0; i < plain.count; i++) {
        const char *key = plain.items[i].key;
        if (old && strcmp(key, "from") == 0)
            key = "role";
        else if (old && strcmp(key, "value") == 0)
            key = "content";
        add_member(to, items, key, &plain.items[i]);
    }
    if (thoughts && !has(&plain, "reasoning_content"))
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
