/* options_config.c: options from a file, flat JSON or `key: value` lines. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "ir/io/json.h"
#include "ir/io/options/options_internal.h"

typedef struct config_reader {
    sbp_options *o;
    sbp_diag *diag;
    const char *path;
    bool *seen;       /* per line of the table: set by an earlier line of this file */
    const char *list; /* the key of a list whose "- item" lines may follow; NULL: none */
} config_reader;

static bool is_list(const option_target *t) {
    return t->index >= 0 && sbp_option_at(t->index)->kind == SBP_OPTION_LIST;
}

/* One value of one key. */
static sbp_status take(config_reader *r, const char *where, const char *key, const char *text) {
    option_setting setting = {.where = where, .config = r->path, .key = key};
    option_target t = sbp_options_find(key, strlen(key));
    if (t.index < 0)
        return sbp_options_assign(r->o, r->diag, &setting, &t, text);
    if (strcmp(sbp_option_at(t.index)->name, "config") == 0)
        return sbp_fail(r->diag, SBP_USAGE, "%s: a config file cannot name another", where);
    const option_value *v = &r->o->values[t.index];
    if (v->given && !v->config)
        return SBP_OK;                           /* the command line wins */
    bool component = t.alias && *t.alias == '#'; /* the other one may follow */
    if (r->seen[t.index] && !is_list(&t) && !component)
        return sbp_fail(r->diag, SBP_USAGE, "%s: '%.100s' is given twice (as '%s')", where, key,
                        sbp_option_at(t.index)->name);
    r->seen[t.index] = true;
    return sbp_options_assign(r->o, r->diag, &setting, &t, text);
}

/* ---- JSON ------------------------------------------------------------------------------------------- */

static const char *json_text(sbp_arena *arena, const sbp_json *node) {
    sbp_text out;
    sbp_text_init(&out, arena);
    if (node->kind == SBP_JSON_STRING)
        return strlen(node->string) == (size_t)node->count ? node->string : NULL;
    if (node->kind == SBP_JSON_BOOL)
        return node->boolean ? "true" : "false";
    if (node->kind == SBP_JSON_INT)
        return sbp_arena_printf(arena, "%lld", (long long)node->integer);
    if (node->kind != SBP_JSON_REAL)
        return NULL;
    sbp_text_add_double(&out, node->real);
    return out.data;
}

/* Arrays: the values of a list, or two numbers. */
static sbp_status take_array(config_reader *r, const char *where, const sbp_json *array) {
    sbp_arena *arena = r->o->arena;
    option_target t = sbp_options_find(array->key, strlen(array->key));
    bool pair = t.index >= 0 && sbp_option_at(t.index)->kind == SBP_OPTION_PAIR && array->count == 2;
    const char *texts[2] = {NULL, NULL};
    for (int64_t i = 0; i < array->count; i++) {
        const char *text = json_text(arena, &array->items[i]);
        if (!text || !(pair || is_list(&t)))
            return sbp_json_fail(r->diag, array, "expected one value, found an array");
        if (pair)
            texts[i] = text;
        else
            SBP_TRY(take(r, where, array->key, text));
    }
    return pair ? take(r, where, array->key, sbp_arena_printf(arena, "%s,%s", texts[0], texts[1])) : SBP_OK;
}

static sbp_status take_member(config_reader *r, const sbp_json *member) {
    option_target t = sbp_options_find(member->key, strlen(member->key));
    option_setting setting = {.where = r->path, .config = r->path, .key = member->key};
    if (t.index < 0 && !t.reason)
        return sbp_options_unknown(r->o, r->diag, &setting);
    if (member->kind == SBP_JSON_NULL)
        return SBP_OK;
    if (member->kind == SBP_JSON_ARRAY)
        return take_array(r, r->path, member);
    const char *value = json_text(r->o->arena, member);
    if (!value)
        value = t.reason ? "" : NULL; /* an object as a refused key: its reason says more */
    if (!value)
        return sbp_json_fail(r->diag, member, "expected a number, a string or true or false, found %s",
                             sbp_json_kind_name(member->kind));
    return take(r, r->path, member->key, value);
}

static sbp_status read_json(config_reader *r, const char *text, size_t length) {
    const sbp_json *root;
    SBP_TRY(sbp_json_parse(r->o->arena, r->diag, r->path, text, length, SBP_JSON_COMMENTS, &root));
    SBP_TRY(sbp_json_as_object(r->diag, root, &root));
    for (int64_t i = 0; i < root->count; i++)
        SBP_TRY(take_member(r, &root->items[i]));
    return SBP_OK;
}

sbp_status sbp_options_inherit(sbp_options *o, sbp_diag *diag, const char *path, const sbp_json *member) {
    config_reader r = {.o = o, .diag = diag, .path = path};
    r.seen = SBP_NEW_ARRAY(o->arena, bool, sbp_option_count());
    return take_member(&r, member);
}

/* ---- lines ------------------------------------------------------------------------------------------ */

/* The value of a line: without quotes, or up to a comment. NULL: a quote is not closed. */
static const char *line_value(sbp_arena *arena, const char *p, const char *end) {
    if (p < end && (*p == '"' || *p == '\'')) {
        const char *close = memchr(p + 1, *p, (size_t)(end - p - 1));
        if (!close)
            return NULL;
        const char *rest = close + 1;
        while (rest < end && isspace((unsigned char)*rest))
            rest++;
        return rest == end || *rest == '#' ? sbp_arena_strndup(arena, p + 1, (size_t)(close - p - 1)) : NULL;
    }
    for (const char *q = p; q < end; q++)
        if (*q == '#' && (q == p || isspace((unsigned char)q[-1]))) {
            end = q;
            break;
        }
    while (end > p && isspace((unsigned char)end[-1]))
        end--;
    return sbp_arena_strndup(arena, p, (size_t)(end - p));
}

static sbp_status read_line(config_reader *r, const char *where, const char *p, const char *end) {
    sbp_arena *arena = r->o->arena;
    while (end > p && isspace((unsigned char)end[-1]))
        end--;
    if (p == end || *p == '#' || (end - p == 3 && memcmp(p, "---", 3) == 0))
        return SBP_OK;
    const char *item = p;
    while (item < end && isspace((unsigned char)*item))
        item++;
    if (r->list && end - item > 2 && item[0] == '-' && item[1] == ' ') {
        item += 1 + strspn(item + 1, " ");
        const char *text = line_value(arena, item, end);
        return text ? take(r, where, r->list, text)
                    : sbp_fail(r->diag, SBP_USAGE, "%s: '%s': a quote is not closed", where, r->list);
    }
    r->list = NULL;
    if (isspace((unsigned char)*p) || *p == '-')
        return sbp_fail(r->diag, SBP_USAGE,
                        "%s: expected 'key: value'; lists are repeated lines, and nothing nests", where);
    const char *colon = memchr(p, ':', (size_t)(end - p));
    if (!colon)
        return sbp_fail(r->diag, SBP_USAGE, "%s: expected 'key: value', found '%.*s'", where,
                        (int)(end - p < 60 ? end - p : 60), p);
    const char *key = sbp_arena_strndup(arena, p, (size_t)(colon - p)), *value = colon + 1;
    while (value < end && isspace((unsigned char)*value))
        value++;
    bool quoted = value < end && (*value == '"' || *value == '\'');
    const char *text = line_value(arena, value, end);
    if (!text)
        return sbp_fail(r->diag, SBP_USAGE, "%s: '%s': a quote is not closed", where, key);
    option_setting setting = {.where = where, .config = r->path, .key = key};
    option_target t = sbp_options_find(key, strlen(key));
    if (t.index < 0 && !t.reason)
        return sbp_options_unknown(r->o, r->diag, &setting);
    if (!quoted && !*text && is_list(&t) && strncmp(sbp_option_at(t.index)->name, "lora-", 5) == 0)
        r->list = key;
    if (!quoted && (!*text || strcmp(text, "null") == 0 || strcmp(text, "~") == 0))
        return SBP_OK;
    return take(r, where, key, text);
}

sbp_status sbp_options_read_config(sbp_options *o, sbp_diag *diag, const char *path) {
    const char *text;
    size_t length;
    config_reader r = {.o = o, .diag = diag, .path = path};
    r.seen = SBP_NEW_ARRAY(o->arena, bool, sbp_option_count());
    SBP_TRY(sbp_file_read(o->arena, diag, path, &text, &length));
    if (length >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) { /* byte order mark */
        text += 3;
        length -= 3;
    }
    size_t first = 0;
    while (first < length && isspace((unsigned char)text[first]))
        first++;
    if (first < length && text[first] == '{')
        return read_json(&r, text, length);
    int line = 1;
    for (const char *p = text, *end = text + length; p < end; line++) {
        const char *stop = memchr(p, '\n', (size_t)(end - p));
        stop = stop ? stop : end;
        SBP_TRY(read_line(&r, sbp_arena_printf(o->arena, "%s:%d", path, line), p, stop));
        p = stop + 1;
    }
    return SBP_OK;
}
