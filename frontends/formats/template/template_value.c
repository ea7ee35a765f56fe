/* template_value.c: values: making them, truth, equality, order, membership, dicts. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "frontends/formats/template/template_internal.h"

enum { TABLE_FROM = 12 }; /* entries from which on a hash table pays */

tpl_value sbp_tpl_none(void) {
    return (tpl_value){.kind = TPL_NONE};
}

tpl_value sbp_tpl_bool(bool value) {
    return (tpl_value){.kind = TPL_BOOL, .boolean = value};
}

tpl_value sbp_tpl_int(int64_t value) {
    return (tpl_value){.kind = TPL_INT, .integer = value};
}

tpl_value sbp_tpl_float(double value) {
    return (tpl_value){.kind = TPL_FLOAT, .real = value};
}

tpl_value sbp_tpl_string(const char *data, size_t length) {
    return (tpl_value){.kind = TPL_STRING, .string = {data, length}};
}

tpl_value sbp_tpl_literal(const char *text) {
    return sbp_tpl_string(text, strlen(text));
}

tpl_value sbp_tpl_undefined(tpl_eval *e, const char *format, ...) {
    char text[200];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return (tpl_value){.kind = TPL_UNDEFINED, .undefined = sbp_arena_strdup(e->arena, text)};
}

tpl_value sbp_tpl_sequence(tpl_eval *e, tpl_kind kind, int64_t count) {
    tpl_sequence *s = SBP_NEW(e->arena, tpl_sequence);
    s->items = SBP_NEW_ARRAY(e->arena, tpl_value, count);
    s->count = count;
    return (tpl_value){.kind = kind, .sequence = s};
}

const char *sbp_tpl_type(const tpl_value *value) {
    static const char *const names[] = {[TPL_MISSING] = "nothing", [TPL_UNDEFINED] = "undefined",
                                        [TPL_NONE] = "NoneType",   [TPL_BOOL] = "bool",
                                        [TPL_INT] = "int",         [TPL_FLOAT] = "float",
                                        [TPL_STRING] = "str",      [TPL_LIST] = "list",
                                        [TPL_TUPLE] = "tuple",     [TPL_RANGE] = "range",
                                        [TPL_VIEW] = "dict view",  [TPL_GENERATOR] = "generator",
                                        [TPL_DICT] = "dict",       [TPL_NAMESPACE] = "namespace",
                                        [TPL_MACRO] = "macro",     [TPL_FUNCTION] = "function",
                                        [TPL_METHOD] = "method",   [TPL_LOOP] = "loop"};
    return names[value->kind];
}

bool sbp_tpl_truth(const tpl_value *value) {
    switch (value->kind) {
    case TPL_MISSING:
    case TPL_UNDEFINED:
    case TPL_NONE:
        return false;
    case TPL_BOOL:
        return value->boolean;
    case TPL_INT:
        return value->integer != 0;
    case TPL_FLOAT:
        return value->real != 0;
    case TPL_STRING:
        return value->string.length > 0;
    case TPL_LIST:
    case TPL_TUPLE:
    case TPL_RANGE:
    case TPL_VIEW:
        return value->sequence->count > 0;
    case TPL_DICT:
        return value->dict->count > 0;
    case TPL_LOOP: /* has a length */
        return value->loop->count > 0;
    default:
        return true;
    }
}

bool sbp_tpl_integer(const tpl_value *value, int64_t *out) {
    if (value->kind != TPL_BOOL && value->kind != TPL_INT)
        return false;
    *out = value->kind == TPL_BOOL ? value->boolean : value->integer;
    return true;
}

bool sbp_tpl_number(const tpl_value *value, double *out) {
    int64_t integer;
    if (value->kind == TPL_FLOAT)
        *out = value->real;
    else if (sbp_tpl_integer(value, &integer))
        *out = (double)integer;
    else
        return false;
    return true;
}

/* ---- comparing ------------------------------------------------------------------------------------- */

/* Sign of a - b, both numbers; 2 when they have no order (a NaN). Exact for whole numbers against others. */
static int compare_numbers(const tpl_value *a, const tpl_value *b) {
    int64_t i, j;
    if (sbp_tpl_integer(a, &i) && sbp_tpl_integer(b, &j))
        return (i > j) - (i < j);
    double x, y;
    (void)sbp_tpl_number(a, &x);
    (void)sbp_tpl_number(b, &y);
    if (isnan(x) || isnan(y))
        return 2;
    if (x != y || a->kind == b->kind)
        return (x > y) - (x < y);
    /* the double equals the rounded integer: compare as integers, where it is one */
    double real = a->kind == TPL_FLOAT ? x : y;
    int sign = a->kind == TPL_FLOAT ? 1 : -1;
    if (fabs(real) >= 0x1p63)
        return real > 0 ? sign : -sign;
    (void)sbp_tpl_integer(a->kind == TPL_FLOAT ? b : a, &j);
    i = (int64_t)real;
    return i == j ? 0 : i > j ? sign : -sign;
}

static bool is_number(const tpl_value *value) {
    double ignored;
    return sbp_tpl_number(value, &ignored);
}

static sbp_status equal_sequences(tpl_eval *e, const tpl_sequence *a, const tpl_sequence *b, bool *out) {
    *out = a->count == b->count;
    for (int64_t i = 0; *out && i < a->count; i++)
        SBP_TRY(sbp_tpl_equal(e, &a->items[i], &b->items[i], out));
    return SBP_OK;
}

static sbp_status equal_dicts(tpl_eval *e, const tpl_dict *a, const tpl_dict *b, bool *out) {
    *out = a->count == b->count;
    for (int32_t i = 0; *out && i < a->count; i++) {
        const tpl_value *other;
        SBP_TRY(sbp_tpl_dict_get(e, b, &a->entries[i].key, &other));
        *out = other != NULL;
        if (other)
            SBP_TRY(sbp_tpl_equal(e, &a->entries[i].value, other, out));
    }
    return SBP_OK;
}

static sbp_status equal_parts(tpl_eval *e, const tpl_value *a, const tpl_value *b, bool *out) {
    switch (a->kind) {
    case TPL_NONE:
    case TPL_UNDEFINED:
    case TPL_MISSING:
        *out = true;
        return SBP_OK;
    case TPL_STRING:
        *out = sbp_tpl_same(a->string, b->string);
        return SBP_OK;
    case TPL_LIST:
    case TPL_TUPLE:
    case TPL_RANGE:
        return equal_sequences(e, a->sequence, b->sequence, out);
    case TPL_DICT:
        return equal_dicts(e, a->dict, b->dict, out);
    case TPL_VIEW:
        *out = a->sequence == b->sequence;
        return SBP_OK;
    default:
        *out = a->dict == b->dict; /* the same one; all are pointers */
        return SBP_OK;
    }
}

sbp_status sbp_tpl_equal(tpl_eval *e, const tpl_value *a, const tpl_value *b, bool *out) {
    *out = false;
    SBP_TRY(sbp_tpl_charge_text(e, a->kind == TPL_STRING ? a->string.length : 0));
    if (is_number(a) && is_number(b)) {
        *out = compare_numbers(a, b) == 0;
        return SBP_OK;
    }
    if (a->kind != b->kind)
        return SBP_OK;
    SBP_TRY(sbp_tpl_deeper(e));
    SBP_TRY(equal_parts(e, a, b, out));
    e->depth--;
    return SBP_OK;
}

static bool in_order(int op, int sign) {
    return op == '<'                ? sign < 0
           : op == '>'              ? sign == 1
           : op == TPL_OP('<', '=') ? sign <= 0
                                    : sign == 0 || sign == 1;
}

static int compare_texts(tpl_text a, tpl_text b) {
    size_t common = a.length < b.length ? a.length : b.length;
    int sign = common ? memcmp(a.data, b.data, common) : 0; /* the order of UTF-8 is that of code points */
    return sign ? (sign > 0) - (sign < 0) : (a.length > b.length) - (a.length < b.length);
}

static sbp_status less_sequences(tpl_eval *e, int op, const tpl_sequence *a, const tpl_sequence *b,
                                 bool *out) {
    for (int64_t i = 0; i < a->count && i < b->count; i++) {
        bool equal;
        SBP_TRY(sbp_tpl_equal(e, &a->items[i], &b->items[i], &equal));
        if (!equal)
            return sbp_tpl_less(e, op, &a->items[i], &b->items[i], out);
    }
    *out = in_order(op, (a->count > b->count) - (a->count < b->count));
    return SBP_OK;
}

sbp_status sbp_tpl_less(tpl_eval *e, int op, const tpl_value *a, const tpl_value *b, bool *out) {
    SBP_TRY(sbp_tpl_charge_text(e, a->kind == TPL_STRING ? a->string.length : 0));
    if (is_number(a) && is_number(b)) {
        *out = in_order(op, compare_numbers(a, b));
        if (compare_numbers(a, b) == 2)
            *out = false;
        return SBP_OK;
    }
    if (a->kind == TPL_STRING && b->kind == TPL_STRING) {
        *out = in_order(op, compare_texts(a->string, b->string));
        return SBP_OK;
    }
    if (a->kind == b->kind && (a->kind == TPL_LIST || a->kind == TPL_TUPLE)) {
        SBP_TRY(sbp_tpl_deeper(e));
        SBP_TRY(less_sequences(e, op, a->sequence, b->sequence, out));
        e->depth--;
        return SBP_OK;
    }
    if (a->kind == TPL_UNDEFINED || b->kind == TPL_UNDEFINED)
        return sbp_tpl_fail(e, "%s", a->kind == TPL_UNDEFINED ? a->undefined : b->undefined);
    return sbp_tpl_fail(e, "%s and %s have no order", sbp_tpl_type(a), sbp_tpl_type(b));
}

sbp_status sbp_tpl_contains(tpl_eval *e, const tpl_value *in, const tpl_value *value, bool *out) {
    *out = false;
    if (in->kind == TPL_STRING) {
        if (value->kind != TPL_STRING)
            return sbp_tpl_fail(e, "'in' a string: expected a string on the left, found %s",
                                sbp_tpl_type(value));
        *out = value->string.length == 0 ||
               memmem(in->string.data, in->string.length, value->string.data, value->string.length) != NULL;
        return sbp_tpl_charge_text(e, in->string.length);
    }
    if (in->kind == TPL_DICT) {
        const tpl_value *found;
        SBP_TRY(sbp_tpl_dict_get(e, in->dict, value, &found));
        *out = found != NULL;
        return SBP_OK;
    }
    tpl_value *items;
    int64_t count;
    SBP_TRY(sbp_tpl_iterate(e, in, &items, &count));
    for (int64_t i = 0; i < count && !*out; i++)
        SBP_TRY(sbp_tpl_equal(e, &items[i], value, out));
    return sbp_tpl_charge(e, count);
}

/* ---- items ----------------------------------------------------------------------------------------- */

static sbp_status iterate_text(tpl_eval *e, tpl_text text, tpl_value **items, int64_t *count) {
    *count = sbp_tpl_chars(text);
    SBP_TRY(sbp_tpl_charge(e, *count));
    *items = SBP_NEW_ARRAY(e->arena, tpl_value, *count);
    for (int64_t i = 0; i < *count; i++) {
        int bytes;
        (void)sbp_tpl_decode(text.data, &bytes);
        (*items)[i] = sbp_tpl_string(text.data, (size_t)bytes);
        text.data += bytes;
    }
    return SBP_OK;
}

sbp_status sbp_tpl_iterate(tpl_eval *e, const tpl_value *value, tpl_value **items, int64_t *count) {
    tpl_sequence *s = value->sequence;
    *items = NULL;
    *count = 0;
    switch (value->kind) {
    case TPL_UNDEFINED:
        return SBP_OK;
    case TPL_STRING:
        return iterate_text(e, value->string, items, count);
    case TPL_DICT:
        *count = value->dict->count;
        SBP_TRY(sbp_tpl_charge(e, *count));
        *items = SBP_NEW_ARRAY(e->arena, tpl_value, *count);
        for (int32_t i = 0; i < value->dict->count; i++)
            (*items)[i] = value->dict->entries[i].key;
        return SBP_OK;
    case TPL_LIST:
    case TPL_TUPLE:
    case TPL_RANGE:
    case TPL_VIEW:
        *items = s->items;
        *count = s->count;
        return SBP_OK;
    case TPL_GENERATOR:
        *items = s->items + s->next;
        *count = s->count - s->next;
        s->next = s->count;
        return SBP_OK;
    default:
        return sbp_tpl_fail(e, "%s has no items to go through", sbp_tpl_type(value));
    }
}

sbp_status sbp_tpl_copy_items(tpl_eval *e, const tpl_value *self, tpl_value *out) {
    tpl_value *items;
    int64_t count;
    SBP_TRY(sbp_tpl_iterate(e, self, &items, &count));
    SBP_TRY(sbp_tpl_charge(e, count));
    *out = sbp_tpl_sequence(e, TPL_LIST, count);
    if (count)
        memcpy(out->sequence->items, items, (size_t)count * sizeof *items);
    return SBP_OK;
}

bool sbp_tpl_is_iterable(const tpl_value *value) {
    return value->kind == TPL_UNDEFINED || (value->kind >= TPL_STRING && value->kind <= TPL_DICT) ||
           value->kind == TPL_LOOP;
}

sbp_status sbp_tpl_length(tpl_eval *e, const tpl_value *value, int64_t *out) {
    switch (value->kind) {
    case TPL_UNDEFINED:
        *out = 0;
        return SBP_OK;
    case TPL_STRING:
        *out = sbp_tpl_chars(value->string);
        return sbp_tpl_charge_text(e, value->string.length);
    case TPL_LIST:
    case TPL_TUPLE:
    case TPL_RANGE:
    case TPL_VIEW:
        *out = value->sequence->count;
        return SBP_OK;
    case TPL_DICT:
        *out = value->dict->count;
        return SBP_OK;
    case TPL_LOOP:
        *out = value->loop->count;
        return SBP_OK;
    default:
        return sbp_tpl_fail(e, "%s has no length", sbp_tpl_type(value));
    }
}

/* ---- dicts ----------------------------------------------------------------------------------------- */

tpl_value sbp_tpl_dict(tpl_eval *e) {
    return (tpl_value){.kind = TPL_DICT, .dict = SBP_NEW(e->arena, tpl_dict)};
}

bool sbp_tpl_hashable(const tpl_value *value) {
    return value->kind != TPL_LIST && value->kind != TPL_DICT && value->kind != TPL_VIEW;
}

/* Equal values have equal hashes: 1, 1.0 and true. */
static sbp_status hash_value(tpl_eval *e, const tpl_value *value, uint64_t *hash) {
    double number;
    if (!sbp_tpl_hashable(value))
        return sbp_tpl_fail(e, "a %s cannot be a key", sbp_tpl_type(value));
    *hash = (uint64_t)value->kind;
    if (value->kind == TPL_STRING)
        *hash = sbp_hash_bytes(value->string.data, value->string.length, 0);
    if (sbp_tpl_number(value, &number)) {
        number += 0.0; /* no -0 */
        *hash = sbp_hash_bytes(&number, sizeof number, 1);
    }
    if (value->kind != TPL_TUPLE)
        return sbp_tpl_charge_text(e, value->kind == TPL_STRING ? value->string.length : 0);
    SBP_TRY(sbp_tpl_deeper(e));
    for (int64_t i = 0; i < value->sequence->count; i++) {
        uint64_t part;
        SBP_TRY(hash_value(e, &value->sequence->items[i], &part));
        *hash = *hash * 31 + part;
    }
    e->depth--;
    return SBP_OK;
}

static sbp_status find(tpl_eval *e, const tpl_dict *dict, const tpl_value *key, uint64_t hash, int32_t *out) {
    *out = -1;
    bool equal = false;
    if (!dict->table) {
        for (int32_t i = 0; i < dict->count; i++) {
            if (dict->entries[i].hash == hash)
                SBP_TRY(sbp_tpl_equal(e, &dict->entries[i].key, key, &equal));
            if (equal) {
                *out = i;
                return SBP_OK;
            }
        }
        return SBP_OK;
    }
    for (uint64_t at = hash;; at++) {
        int32_t index = dict->table[at & (uint64_t)(dict->table_size - 1)] - 1;
        if (index < 0)
            return SBP_OK;
        SBP_TRY(sbp_tpl_charge(e, 1));
        if (dict->entries[index].hash == hash)
            SBP_TRY(sbp_tpl_equal(e, &dict->entries[index].key, key, &equal));
        if (equal) {
            *out = index;
            return SBP_OK;
        }
    }
}

static void put_in_table(tpl_dict *dict, int32_t index) {
    uint64_t at = dict->entries[index].hash;
    while (dict->table[at & (uint64_t)(dict->table_size - 1)])
        at++;
    dict->table[at & (uint64_t)(dict->table_size - 1)] = index + 1;
}

static void grow_table(tpl_eval *e, tpl_dict *dict) {
    dict->table_size = dict->table_size ? dict->table_size * 4 : TABLE_FROM * 4 - 16; /* 32 */
    dict->table = SBP_NEW_ARRAY(e->arena, int32_t, dict->table_size);
    for (int32_t i = 0; i < dict->count; i++)
        put_in_table(dict, i);
}

sbp_status sbp_tpl_dict_set(tpl_eval *e, tpl_dict *dict, tpl_value key, tpl_value value) {
    int32_t index;
    uint64_t hash;
    SBP_TRY(hash_value(e, &key, &hash));
    SBP_TRY(find(e, dict, &key, hash, &index));
    if (index >= 0) {
        dict->entries[index].value = value;
        return SBP_OK;
    }
    SBP_TRY(sbp_tpl_charge(e, 1));
    SBP_PUSH(e->arena, dict->entries, dict->count, dict->capacity, (tpl_entry){key, value, hash});
    if (dict->table && dict->count * 2 < dict->table_size)
        put_in_table(dict, dict->count - 1);
    else if (dict->count >= TABLE_FROM)
        grow_table(e, dict);
    return SBP_OK;
}

sbp_status sbp_tpl_dict_get(tpl_eval *e, const tpl_dict *dict, const tpl_value *key, const tpl_value **out) {
    int32_t index;
    uint64_t hash;
    *out = NULL;
    SBP_TRY(hash_value(e, key, &hash));
    SBP_TRY(find(e, dict, key, hash, &index));
    if (index >= 0)
        *out = &dict->entries[index].value;
    return SBP_OK;
}

/* ---- from JSON ------------------------------------------------------------------------------------- */

static sbp_status items_from_json(tpl_eval *e, const sbp_json *json, tpl_value *out) {
    *out = sbp_tpl_sequence(e, TPL_LIST, json->count);
    for (int64_t i = 0; i < json->count; i++)
        SBP_TRY(sbp_tpl_from_json(e, &json->items[i], &out->sequence->items[i]));
    return SBP_OK;
}

static sbp_status members_from_json(tpl_eval *e, const sbp_json *json, tpl_value *out) {
    *out = sbp_tpl_dict(e);
    out->dict->json = json;
    for (int64_t i = 0; i < json->count; i++) {
        tpl_value value;
        SBP_TRY(sbp_tpl_from_json(e, &json->items[i], &value));
        SBP_TRY(sbp_tpl_dict_set(e, out->dict, sbp_tpl_literal(json->items[i].key), value));
    }
    return SBP_OK;
}

sbp_status sbp_tpl_from_json(tpl_eval *e, const sbp_json *json, tpl_value *out) {
    sbp_status status = SBP_OK;
    SBP_TRY(sbp_tpl_charge(e, 1));
    SBP_TRY(sbp_tpl_deeper(e));
    switch (json->kind) {
    case SBP_JSON_NULL:
    case SBP_JSON_UNREAD: /* of no message */
        *out = sbp_tpl_none();
        break;
    case SBP_JSON_BOOL:
        *out = sbp_tpl_bool(json->boolean);
        break;
    case SBP_JSON_INT:
        *out = sbp_tpl_int(json->integer);
        break;
    case SBP_JSON_REAL:
        *out = sbp_tpl_float(json->real);
        break;
    case SBP_JSON_BYTES: /* of no row */
    case SBP_JSON_STRING:
        *out = sbp_tpl_string(json->string, (size_t)json->count);
        break;
    case SBP_JSON_ARRAY:
        status = items_from_json(e, json, out);
        break;
    case SBP_JSON_OBJECT:
        status = members_from_json(e, json, out);
        break;
    }
    e->depth--;
    return status;
}
