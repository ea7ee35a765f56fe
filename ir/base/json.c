/* json.c: jansson values copied into an arena, and typed access with messages. */
#include "ir/base/json.h"

#include "ir/base/json_text.h"

#include <ctype.h>
#include <jansson.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- jansson -------------------------------------------------------------------------------------- */

/* jansson does not survive a lack of memory: its scanner drops the character for which it got none, and then
 * searches for the end of a string beyond the end of its buffer. So it never sees a failure: its memory comes
 * from an arena, and when that cannot grow, the arena's guard is where the program goes on. */
static _Thread_local sbp_arena *jansson_arena;

static void *take(size_t bytes) {
    return sbp_arena_alloc(jansson_arena, bytes);
}

static void give_back(void *memory) {
    (void)memory;
}

static void set_memory(void) {
    json_set_alloc_funcs(take, give_back);
}

/* ---- parsing -------------------------------------------------------------------------------------- */

/* The depth of the recursion is bounded by jansson, which refuses more than 2048 levels. */
static void convert(sbp_arena *arena, const json_t *source, sbp_json *out) {
    switch (json_typeof(source)) {
    case JSON_NULL:
        out->kind = SBP_JSON_NULL;
        break;
    case JSON_TRUE:
    case JSON_FALSE:
        out->kind = SBP_JSON_BOOL;
        out->boolean = json_is_true(source);
        break;
    case JSON_INTEGER:
        out->kind = SBP_JSON_INT;
        out->integer = json_integer_value(source);
        break;
    case JSON_REAL:
        out->kind = SBP_JSON_REAL;
        out->real = json_real_value(source);
        break;
    case JSON_STRING:
        out->kind = SBP_JSON_STRING;
        out->count = (int64_t)json_string_length(source);
        out->string = sbp_arena_strndup(arena, json_string_value(source), json_string_length(source));
        break;
    case JSON_ARRAY: {
        out->kind = SBP_JSON_ARRAY;
        out->count = (int64_t)json_array_size(source);
        sbp_json *items = SBP_NEW_ARRAY(arena, sbp_json, out->count);
        for (int64_t i = 0; i < out->count; i++) {
            items[i].parent = out;
            items[i].index = (int32_t)i;
            convert(arena, json_array_get(source, (size_t)i), &items[i]);
        }
        out->items = items;
        break;
    }
    case JSON_OBJECT: {
        out->kind = SBP_JSON_OBJECT;
        out->count = (int64_t)json_object_size(source);
        sbp_json *items = SBP_NEW_ARRAY(arena, sbp_json, out->count);
        int32_t i = 0;
        const char *key;
        json_t *value;
        json_object_foreach((json_t *)(uintptr_t)source, key, value) {
            items[i].parent = out;
            items[i].index = i;
            items[i].key = sbp_arena_strdup(arena, key);
            convert(arena, value, &items[i]);
            i++;
        }
        out->items = items;
        (void)sbp_json_index_members(arena, out); /* jansson has refused what is there twice */
        break;
    }
    }
}

/* A copy in which lines beginning with // are blank, so that lines and columns stay what they were. A
 * JSON string cannot span lines, so such a line is never inside one. */
static const char *without_comments(sbp_arena *arena, const char *text, size_t length) {
    char *copy = sbp_arena_strndup(arena, text, length);
    for (size_t at = 0; at < length;) {
        char *end = memchr(copy + at, '\n', length - at);
        size_t stop = end ? (size_t)(end - copy) : length;
        size_t first = at;
        while (first < stop && (copy[first] == ' ' || copy[first] == '\t'))
            first++;
        if (stop - first >= 2 && copy[first] == '/' && copy[first + 1] == '/')
            memset(copy + first, ' ', stop - first);
        at = stop + 1;
    }
    return copy;
}

/* Whether digits from `text` on are more than an int64 holds; any number of 19 digits counts as such when it
 * is not below 2^63. */
static bool is_large(const char *text, size_t digits) {
    return digits > 19 || (digits == 19 && memcmp(text, "9223372036854775808", 19) >= 0);
}

/* Writes an integer of 19 or more digits as the real number of the same length that comes nearest. */
static void make_real(char *text, size_t digits) {
    char exponent[24];
    size_t length = (size_t)snprintf(exponent, sizeof exponent, "e%zu", digits - 1);
    memmove(text + 2, text + 1, digits - 2);
    text[1] = '.';
    memcpy(text + digits - length, exponent, length);
}

/* A copy in which integers beyond int64 are real numbers, with lines and columns what they were. Transformers
 * writes 10^30 for a length without a limit. */
static const char *without_large_integers(sbp_arena *arena, const char *text, size_t length) {
    char *copy = sbp_arena_strndup(arena, text, length);
    bool in_string = false;
    for (size_t at = 0; at < length;) {
        if (copy[at] == '"') {
            in_string = !in_string;
        } else if (in_string) {
            at += copy[at] == '\\';
        } else if (isdigit((unsigned char)copy[at])) {
            size_t digits = 1, end;
            while (at + digits < length && isdigit((unsigned char)copy[at + digits]))
                digits++;
            for (end = at + digits; end < length && copy[end] && strchr("0123456789.eE+-", copy[end]);)
                end++;
            if (end == at + digits && is_large(copy + at, digits))
                make_real(copy + at, digits);
            at = end;
            continue;
        }
        at++;
    }
    return copy;
}

typedef struct reading {
    sbp_arena *arena, *scratch; /* of the tree; of everything that is needed only until it is built */
    const char *file, *text;
    size_t length;
    unsigned flags;
    json_error_t error;
    const json_t *source; /* NULL: not JSON, as error says */
    const sbp_json *root;
} reading;

static sbp_status load(void *user) {
    reading *r = user;
    const char *text = r->text;
    size_t flags = JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL;
    r->source = json_loadb(text, r->length, flags, &r->error);
    if (!r->source && json_error_code(&r->error) == json_error_numeric_overflow)
        r->source =
            json_loadb(without_large_integers(r->scratch, text, r->length), r->length, flags, &r->error);
    return SBP_OK;
}

static sbp_status read_text(void *user) {
    reading *r = user;
    sbp_json *root;
    if (r->flags & SBP_JSON_COMMENTS)
        r->text = without_comments(r->scratch, r->text, r->length);
    if (!(r->flags & SBP_JSON_JANSSON) &&
        sbp_json_text_read(r->arena, r->scratch, r->text, r->length, r->flags, &root)) {
        root->key = sbp_arena_strdup(r->arena, r->file);
        r->root = root;
    }
    return SBP_OK;
}

static sbp_status read_text_guarded(void *user) {
    reading *r = user;
    return sbp_guard(r->arena, NULL, read_text, r);
}

static sbp_status build(void *user) {
    reading *r = user;
    sbp_json *root = SBP_NEW(r->arena, sbp_json);
    root->key = sbp_arena_strdup(r->arena, r->file);
    convert(r->arena, r->source, root);
    r->root = root;
    return SBP_OK;
}

static sbp_status read_by_jansson(reading *r, sbp_diag *diag) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, set_memory);
    jansson_arena = r->scratch;
    sbp_status status = sbp_guard(r->scratch, NULL, load, r);
    jansson_arena = NULL;
    SBP_TRY(status);
    if (r->source)
        return sbp_guard(r->arena, NULL, build, r);
    if (r->flags & SBP_JSON_ROW)
        return sbp_fail(diag, SBP_INPUT, "%s:%d: not valid JSON: %s", r->file, r->error.column,
                        r->error.text);
    return sbp_fail(diag, SBP_INPUT, "%s:%d:%d: %s", r->file, r->error.line, r->error.column, r->error.text);
}

sbp_status sbp_json_parse(sbp_arena *arena, sbp_diag *diag, const char *file, const char *text, size_t length,
                          unsigned flags, const sbp_json **out) {
    reading r = {.arena = arena, .file = file, .text = text, .length = length, .flags = flags};
    r.scratch = sbp_arena_create();
    sbp_status status = r.scratch ? sbp_guard(r.scratch, NULL, read_text_guarded, &r) : SBP_MACHINE;
    if (status == SBP_OK && !r.root)
        status = read_by_jansson(&r, diag);
    sbp_arena_destroy(r.scratch);
    if (status == SBP_MACHINE)
        return sbp_fail(diag, SBP_MACHINE, "out of memory reading '%s'", file);
    if (status == SBP_OK)
        *out = r.root;
    return status;
}

sbp_status sbp_json_read(sbp_arena *arena, sbp_diag *diag, const char *path, unsigned flags,
                         const sbp_json **out) {
    /* The text is only needed while parsing, so it gets an arena of its own. */
    sbp_arena *scratch = sbp_arena_create();
    if (!scratch)
        return sbp_fail(diag, SBP_MACHINE, "out of memory reading '%s'", path);
    const char *text;
    size_t length;
    sbp_status status = sbp_file_read(scratch, diag, path, &text, &length);
    if (status == SBP_OK)
        status = sbp_json_parse(arena, diag, path, text, length, flags, out);
    sbp_arena_destroy(scratch);
    return status;
}

/* ---- messages ------------------------------------------------------------------------------------- */

const char *sbp_json_kind_name(sbp_json_kind kind) {
    static const char *const names[] = {"null",      "a boolean", "an integer",
                                        "a number",  "a string",  "an array",
                                        "an object", "bytes",     "a column that was not read"};
    return names[kind];
}

const char *sbp_json_where(const sbp_json *node, char *out, size_t size) {
    /* Built from the end, since the way to the root is the only one known. */
    size_t at = size - 1;
    out[at] = 0;
    for (; node; node = node->parent) {
        char piece[300];
        if (!node->parent)
            snprintf(piece, sizeof piece, "%s%s", node->key ? node->key : "?", at == size - 1 ? "" : ": ");
        else if (node->key)
            snprintf(piece, sizeof piece, "%s%s", node->parent->parent ? "." : "", node->key);
        else
            snprintf(piece, sizeof piece, "[%d]", node->index);
        size_t length = strlen(piece);
        if (length > at)
            break;
        at -= length;
        memcpy(out + at, piece, length);
    }
    memmove(out, out + at, size - at);
    return out;
}

sbp_status(sbp_json_fail)(sbp_diag *diag, const sbp_json *node, const char *format, ...) {
    char where[600], message[1000];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    return sbp_fail(diag, SBP_INPUT, "%s: %s", sbp_json_where(node, where, sizeof where), message);
}

/* "the string 'abc'": what was found, with its value where that is short. */
static const char *describe(const sbp_json *node, char *out, size_t size) {
    switch (node->kind) {
    case SBP_JSON_BOOL:
        snprintf(out, size, "%s", node->boolean ? "true" : "false");
        break;
    case SBP_JSON_INT:
        snprintf(out, size, "%lld", (long long)node->integer);
        break;
    case SBP_JSON_REAL:
        sbp_format_double(out, size, node->real);
        if (out[strspn(out, "-0123456789")] == 0) /* 1.0 is no integer; nor should it look like one */
            snprintf(out + strlen(out), size - strlen(out), ".0");
        break;
    case SBP_JSON_STRING:
        snprintf(out, size, "the string '%.40s'%s", node->string, node->count > 40 ? "..." : "");
        break;
    default:
        snprintf(out, size, "%s", sbp_json_kind_name(node->kind));
    }
    return out;
}

static sbp_status wrong_kind(sbp_diag *diag, const sbp_json *node, const char *expected) {
    char found[80];
    return sbp_json_fail(diag, node, "expected %s, found %s", expected, describe(node, found, sizeof found));
}

/* ---- access --------------------------------------------------------------------------------------- */

const sbp_json *sbp_json_member(const sbp_json *object, const char *key) {
    if (!object || object->kind != SBP_JSON_OBJECT)
        return NULL;
    if (!object->table) {
        for (int64_t i = 0; i < object->count; i++)
            if (strcmp(object->items[i].key, key) == 0)
                return &object->items[i];
        return NULL;
    }
    uint64_t mask = (uint64_t)object->table[0] - 1;
    for (uint64_t at = sbp_hash_bytes(key, strlen(key), 0) & mask;; at = (at + 1) & mask) {
        int32_t found = object->table[1 + at];
        if (!found)
            return NULL;
        if (strcmp(object->items[found - 1].key, key) == 0)
            return &object->items[found - 1];
    }
}

sbp_status sbp_json_as_string(sbp_diag *diag, const sbp_json *node, const char **out) {
    if (node->kind != SBP_JSON_STRING)
        return wrong_kind(diag, node, "a string");
    if (memchr(node->string, 0, (size_t)node->count))
        return sbp_json_fail(diag, node, "the string contains a NUL character");
    *out = node->string;
    return SBP_OK;
}

sbp_status sbp_json_as_i64(sbp_diag *diag, const sbp_json *node, int64_t *out) {
    if (node->kind != SBP_JSON_INT)
        return wrong_kind(diag, node, "an integer");
    *out = node->integer;
    return SBP_OK;
}

sbp_status sbp_json_as_double(sbp_diag *diag, const sbp_json *node, double *out) {
    if (node->kind != SBP_JSON_REAL && node->kind != SBP_JSON_INT)
        return wrong_kind(diag, node, "a number");
    if (node->kind == SBP_JSON_REAL && !isfinite(node->real)) /* SBP_JSON_PYTHON */
        return wrong_kind(diag, node, "a finite number");
    *out = node->kind == SBP_JSON_REAL ? node->real : (double)node->integer;
    return SBP_OK;
}

sbp_status sbp_json_as_bool(sbp_diag *diag, const sbp_json *node, bool *out) {
    if (node->kind != SBP_JSON_BOOL)
        return wrong_kind(diag, node, "true or false");
    *out = node->boolean;
    return SBP_OK;
}

sbp_status sbp_json_as_array(sbp_diag *diag, const sbp_json *node, const sbp_json **out) {
    if (node->kind != SBP_JSON_ARRAY)
        return wrong_kind(diag, node, "an array");
    *out = node;
    return SBP_OK;
}

sbp_status sbp_json_as_object(sbp_diag *diag, const sbp_json *node, const sbp_json **out) {
    if (node->kind != SBP_JSON_OBJECT)
        return wrong_kind(diag, node, "an object");
    *out = node;
    return SBP_OK;
}

/* *found is NULL where the default is to be kept. */
static sbp_status lookup(sbp_diag *diag, const sbp_json *object, const char *key, sbp_json_need need,
                         const sbp_json **found) {
    if (object->kind != SBP_JSON_OBJECT)
        return wrong_kind(diag, object, "an object");
    *found = sbp_json_member(object, key);
    if (!*found && need == SBP_JSON_REQUIRED)
        return sbp_json_fail(diag, object, "the field '%s' is missing", key);
    if (*found && (*found)->kind == SBP_JSON_NULL && need == SBP_JSON_NULLABLE)
        *found = NULL;
    return SBP_OK;
}

#define GETTER(name, type)                                                                                   \
    sbp_status sbp_json_get_##name(sbp_diag *diag, const sbp_json *object, const char *key,                  \
                                   sbp_json_need need, type *out) {                                          \
        const sbp_json *found;                                                                               \
        SBP_TRY(lookup(diag, object, key, need, &found));                                                    \
        return found ? sbp_json_as_##name(diag, found, out) : SBP_OK;                                        \
    }
GETTER(string, const char *)
GETTER(i64, int64_t)
GETTER(double, double)
GETTER(bool, bool)
GETTER(array, const sbp_json *)
GETTER(object, const sbp_json *)
#undef GETTER

/* ---- writing -------------------------------------------------------------------------------------- */

void sbp_json_add_string(sbp_text *out, const char *bytes, size_t length) {
    sbp_text_add_n(out, "\"", 1);
    size_t plain = 0; /* bytes before this one that are still to be copied begin here */
    for (size_t i = 0; i < length; i++) {
        unsigned char c = (unsigned char)bytes[i];
        if (c >= 0x20 && c < 0x80 && c != '"' && c != '\\')
            continue;
        int character = c < 0x80 ? 0 : sbp_utf8_bytes(bytes + i, (int64_t)(length - i));
        if (character > 0) {
            i += (size_t)character - 1;
            continue;
        }
        sbp_text_add_n(out, bytes + plain, i - plain);
        plain = i + 1;
        if (c == '"' || c == '\\')
            sbp_text_add(out, "\\%c", c);
        else if (c == '\n')
            sbp_text_add(out, "\\n");
        else if (c >= 0x80)
            sbp_text_add(out, "\xef\xbf\xbd");
        else
            sbp_text_add(out, "\\u%04x", c);
    }
    sbp_text_add_n(out, bytes + plain, length - plain);
    sbp_text_add_n(out, "\"", 1);
}

void sbp_json_add_value(sbp_text *out, const sbp_json *node) {
    switch (node->kind) {
    case SBP_JSON_NULL:
        sbp_text_add(out, "null");
        break;
    case SBP_JSON_BOOL:
        sbp_text_add(out, node->boolean ? "true" : "false");
        break;
    case SBP_JSON_INT:
        sbp_text_add(out, "%lld", (long long)node->integer);
        break;
    case SBP_JSON_REAL: {
        char number[40];
        sbp_format_double(number, sizeof number, node->real);
        if (!isfinite(node->real)) /* as it was read: SBP_JSON_PYTHON */
            sbp_text_add(out, "%s", isnan(node->real) ? "NaN" : node->real > 0 ? "Infinity" : "-Infinity");
        else
            sbp_text_add(out, "%s%s", number, strpbrk(number, ".e") ? "" : ".0");
        break;
    }
    case SBP_JSON_STRING:
        sbp_json_add_string(out, node->string, (size_t)node->count);
        break;
    case SBP_JSON_BYTES: /* no text of JSON */
    case SBP_JSON_UNREAD:
        sbp_text_add(out, "null");
        break;
    case SBP_JSON_ARRAY:
    case SBP_JSON_OBJECT:
        sbp_text_add_n(out, node->kind == SBP_JSON_ARRAY ? "[" : "{", 1);
        for (int64_t i = 0; i < node->count; i++) {
            if (i)
                sbp_text_add_n(out, ",", 1);
            if (node->kind == SBP_JSON_OBJECT) {
                sbp_json_add_string(out, node->items[i].key, strlen(node->items[i].key));
                sbp_text_add_n(out, ":", 1);
            }
            sbp_json_add_value(out, &node->items[i]);
        }
        sbp_text_add_n(out, node->kind == SBP_JSON_ARRAY ? "]" : "}", 1);
        break;
    }
}
