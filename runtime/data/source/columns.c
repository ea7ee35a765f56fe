/* columns.c: other names for columns, and several as one. */
#include <string.h>

#include "runtime/data/source/source.h"

enum { MOST_RENAMINGS = 64, SHOWN_COLUMNS = 20 };

sbp_status sbp_columns_parse(sbp_arena *arena, sbp_diag *diag, const char *text, sbp_columns *out) {
    sbp_renaming *items = SBP_NEW_ARRAY(arena, sbp_renaming, MOST_RENAMINGS);
    *out = (sbp_columns){.items = items};
    for (const char *at = text; at && *at; at += strcspn(at, ","), at += *at == ',') {
        size_t length = strcspn(at, ","), to = strcspn(at, "=");
        const bool optional = length > to + 1 && at[length - 1] == '?';
        if (to == 0 || to + 1 + optional >= length || memchr(at + to + 1, '=', length - to - 1) ||
            out->count == MOST_RENAMINGS)
            return sbp_fail(diag, SBP_USAGE,
                            "--columns: expected names as in prompt=question,completion=answer, found '%.*s'",
                            (int)length, at);
        sbp_renaming new = {sbp_arena_strndup(arena, at, to),
                            sbp_arena_strndup(arena, at + to + 1, length - to - 1 - optional), optional};
        for (int32_t i = 0; i < out->count; i++)
            if (strcmp(items[i].to, new.to) == 0)
                return sbp_fail(diag, SBP_USAGE, "--columns: '%s' is given twice", new.to);
        items[out->count++] = new;
    }
    if (text && out->count == 0)
        return sbp_fail(diag, SBP_USAGE, "--columns: expected names as in prompt=question,completion=answer");
    return SBP_OK;
}

void sbp_columns_allow_missing(sbp_arena *arena, sbp_columns *columns) {
    sbp_renaming *items = SBP_NEW_ARRAY(arena, sbp_renaming, columns->count + 1);
    for (int32_t i = 0; i < columns->count; i++) {
        items[i] = columns->items[i];
        items[i].where_there = true;
    }
    columns->items = items;
}

static sbp_status fail_missing(sbp_arena *arena, sbp_diag *diag, const char *where, const sbp_json *row,
                               const char *name) {
    sbp_text names;
    sbp_text_init(&names, arena);
    for (int64_t i = 0; i < row->count && i < SHOWN_COLUMNS; i++)
        sbp_text_add(&names, "%s'%.60s'", i ? ", " : "", row->items[i].key);
    return sbp_fail(diag, SBP_INPUT, "%s: --columns: there is no column '%s'; there are %s%s", where, name,
                    row->count ? names.data : "none", row->count > SHOWN_COLUMNS ? " ..." : "");
}

/* The next of the names in "a+b"; NULL behind the last. */
static const char *next_part(sbp_arena *arena, const char **at) {
    size_t length = strcspn(*at, "+");
    const char *part = *at;
    if (!part[0])
        return NULL;
    *at += length + (part[length] == '+');
    return sbp_arena_strndup(arena, part, length);
}

/* Whether it is for other rows. */
static bool is_left(const sbp_renaming *renaming, sbp_arena *arena, const sbp_json *row) {
    const char *at = renaming->from;
    return renaming->where_there && !sbp_json_member(row, at) && !sbp_json_member(row, next_part(arena, &at));
}

/* Whether a column is taken under another name, alone or with others. */
static bool is_from(const sbp_columns *columns, sbp_arena *arena, const sbp_json *row, const char *name) {
    for (int32_t i = 0; i < columns->count; i++) {
        const char *from = columns->items[i].from, *part;
        if (is_left(&columns->items[i], arena, row))
            continue;
        if (strcmp(from, name) == 0)
            return true;
        while (!sbp_json_member(row, columns->items[i].from) && (part = next_part(arena, &from)))
            if (strcmp(part, name) == 0)
                return true;
    }
    return false;
}

bool sbp_columns_take(const sbp_columns *columns, const char *name) {
    const size_t length = strlen(name);
    for (int32_t i = 0; i < columns->count; i++) {
        const char *part = columns->items[i].from;
        if (strcmp(part, name) == 0)
            return true;
        for (; *part; part += strcspn(part, "+"), part += *part == '+')
            if (strcspn(part, "+") == length && strncmp(part, name, length) == 0)
                return true;
    }
    return false;
}

static bool is_to(const sbp_columns *columns, sbp_arena *arena, const sbp_json *row, const char *name) {
    for (int32_t i = 0; i < columns->count; i++)
        if (!is_left(&columns->items[i], arena, row) && strcmp(columns->items[i].to, name) == 0)
            return true;
    return false;
}

static void add(sbp_json *root, sbp_json *items, const char *key, const sbp_json *value) {
    sbp_json *item = &items[root->count];
    *item = *value;
    item->key = key;
    item->parent = root;
    item->index = (int32_t)root->count++;
}

static sbp_status add_text(sbp_diag *diag, sbp_text *out, const char *where, const sbp_json *value) {
    if (value->kind == SBP_JSON_NULL)
        return SBP_OK;
    if (value->kind != SBP_JSON_STRING)
        return sbp_fail(diag, SBP_INPUT, "%s: --columns: only texts are joined, and '%.60s' is %s", where,
                        value->key, sbp_json_kind_name(value->kind));
    if (out->length > 0 && value->count > 0)
        sbp_text_add(out, "\n\n");
    sbp_text_add_n(out, value->string, (size_t)value->count);
    return SBP_OK;
}

/* The column of that name, or those of "a+b" as one text. */
static sbp_status find_value(sbp_arena *arena, sbp_diag *diag, const char *where, const sbp_json *row,
                             const char *from, bool all, sbp_json *joined, const sbp_json **out) {
    sbp_text text;
    bool first = true;
    const char *at = from;
    *out = sbp_json_member(row, from);
    if (*out)
        return SBP_OK;
    if (!strchr(from, '+'))
        return fail_missing(arena, diag, where, row, from);
    sbp_text_init(&text, arena);
    for (const char *part; (part = next_part(arena, &at)); first = false) {
        const sbp_json *value = sbp_json_member(row, part);
        if (!value && (all || first))
            return fail_missing(arena, diag, where, row, part);
        if (value)
            SBP_TRY(add_text(diag, &text, where, value));
    }
    *joined = (sbp_json){
        .kind = SBP_JSON_STRING, .count = (int64_t)text.length, .string = text.length ? text.data : ""};
    *out = joined;
    return SBP_OK;
}

sbp_status sbp_columns_rename(const sbp_columns *columns, sbp_arena *arena, sbp_diag *diag, const char *where,
                              const sbp_json *row, bool all, const sbp_json **out) {
    *out = row;
    if (columns->count == 0 || row->kind != SBP_JSON_OBJECT)
        return SBP_OK;
    sbp_json *root = SBP_NEW(arena, sbp_json),
             *items = SBP_NEW_ARRAY(arena, sbp_json, row->count + columns->count);
    *root = *row;
    root->items = items;
    root->table = NULL;
    root->count = 0;
    for (int32_t i = 0; i < columns->count; i++) {
        sbp_json joined;
        const sbp_json *value;
        if (is_left(&columns->items[i], arena, row))
            continue;
        SBP_TRY(find_value(arena, diag, where, row, columns->items[i].from, all, &joined, &value));
        add(root, items, columns->items[i].to, value);
    }
    for (int64_t i = 0; i < row->count; i++)
        if (!is_to(columns, arena, row, row->items[i].key) &&
            !is_from(columns, arena, row, row->items[i].key))
            add(root, items, row->items[i].key, &row->items[i]);
    *out = root;
    return SBP_OK;
}
