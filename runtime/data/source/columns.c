/* columns.c: other names for columns. */
#include <string.h>

#include "runtime/data/source/source.h"

enum { MOST_RENAMINGS = 64, SHOWN_COLUMNS = 20 };

sbp_status sbp_columns_parse(sbp_arena *arena, sbp_diag *diag, const char *text, sbp_columns *out) {
    sbp_renaming *items = SBP_NEW_ARRAY(arena, sbp_renaming, MOST_RENAMINGS);
    *out = (sbp_columns){.items = items};
    for (const char *at = text; at && *at; at += strcspn(at, ","), at += *at == ',') {
        size_t length = strcspn(at, ","), to = strcspn(at, "=");
        if (to == 0 || to + 1 >= length || memchr(at + to + 1, '=', length - to - 1) ||
            out->count == MOST_RENAMINGS)
            return sbp_fail(diag, SBP_USAGE,
                            "--columns: expected names as in prompt=question,completion=answer, found '%.*s'",
                            (int)length, at);
        sbp_renaming new = {sbp_arena_strndup(arena, at, to),
                            sbp_arena_strndup(arena, at + to + 1, length - to - 1)};
        for (int32_t i = 0; i < out->count; i++)
            if (strcmp(items[i].to, new.to) == 0)
                return sbp_fail(diag, SBP_USAGE, "--columns: '%s' is given twice", new.to);
        items[out->count++] = new;
    }
    if (text && out->count == 0)
        return sbp_fail(diag, SBP_USAGE, "--columns: expected names as in prompt=question,completion=answer");
    return SBP_OK;
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

static const sbp_renaming *find_from(const sbp_columns *columns, const char *name) {
    for (int32_t i = 0; i < columns->count; i++)
        if (strcmp(columns->items[i].from, name) == 0)
            return &columns->items[i];
    return NULL;
}

static bool is_to(const sbp_columns *columns, const char *name) {
    for (int32_t i = 0; i < columns->count; i++)
        if (strcmp(columns->items[i].to, name) == 0)
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

sbp_status sbp_columns_rename(const sbp_columns *columns, sbp_arena *arena, sbp_diag *diag, const char *where,
                              const sbp_json *row, const sbp_json **out) {
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
        const sbp_json *value = sbp_json_member(row, columns->items[i].from);
        if (!value)
            return fail_missing(arena, diag, where, row, columns->items[i].from);
        add(root, items, columns->items[i].to, value);
    }
    for (int64_t i = 0; i < row->count; i++)
        if (!is_to(columns, row->items[i].key) && !find_from(columns, row->items[i].key))
            add(root, items, row->items[i].key, &row->items[i]);
    *out = root;
    return SBP_OK;
}
