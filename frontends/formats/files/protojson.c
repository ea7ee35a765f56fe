/* protojson.c: protobuf's JSON mapping. */
#include "frontends/formats/files/protojson.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Whether `key`, in either spelling, is the camelCase `field`. */
static bool names_field(const char *key, const char *field) {
    if (strcmp(key, field) == 0)
        return true;
    for (; *key && *field; key++, field++) {
        if (*key == '_' && isupper((unsigned char)*field))
            key++;
        else if (isupper((unsigned char)*field))
            return false;
        if (tolower((unsigned char)*field) != *key)
            return false;
    }
    return *key == 0 && *field == 0;
}

sbp_status sbp_proto_check(sbp_diag *diag, const sbp_json *message, const char *const *fields) {
    const sbp_json *object;
    SBP_TRY(sbp_json_as_object(diag, message, &object));
    for (int64_t i = 0; i < object->count; i++) {
        const sbp_json *item = &object->items[i];
        int known = 0;
        while (fields[known] && !names_field(item->key, fields[known]))
            known++;
        if (!fields[known])
            return sbp_json_fail(diag, item, "unknown field");
        for (int64_t j = 0; j < i; j++)
            if (names_field(object->items[j].key, fields[known]))
                return sbp_json_fail(diag, item, "the field is given in both spellings");
    }
    return SBP_OK;
}

const sbp_json *sbp_proto_field(const sbp_json *message, const char *field) {
    if (!message || message->kind != SBP_JSON_OBJECT)
        return NULL;
    for (int64_t i = 0; i < message->count; i++)
        if (names_field(message->items[i].key, field))
            return message->items[i].kind == SBP_JSON_NULL ? NULL : &message->items[i];
    return NULL;
}

static sbp_status wrong(sbp_diag *diag, const sbp_json *node, const char *expected) {
    if (node->kind == SBP_JSON_STRING)
        return sbp_json_fail(diag, node, "expected %s, found the string '%.60s'", expected, node->string);
    return sbp_json_fail(diag, node, "expected %s, found %s", expected, sbp_json_kind_name(node->kind));
}

/* An integer in one of the forms that the mapping allows: 5, "5", 5.0, 5e0. */
static bool integer_of(const sbp_json *node, bool is_unsigned, int64_t *out) {
    if (node->kind == SBP_JSON_INT) {
        *out = node->integer;
        return !is_unsigned || *out >= 0;
    }
    if (node->kind == SBP_JSON_REAL && fabs(node->real) < 0x1p53 && node->real == floor(node->real)) {
        *out = (int64_t)node->real;
        return !is_unsigned || *out >= 0;
    }
    if (node->kind != SBP_JSON_STRING || node->count == 0 || strlen(node->string) != (size_t)node->count ||
        isspace((unsigned char)node->string[0]))
        return false;
    char *end;
    errno = 0;
    if (is_unsigned && node->string[0] != '-')
        *out = (int64_t)strtoull(node->string, &end, 10);
    else
        *out = strtoll(node->string, &end, 10);
    return *end == 0 && errno == 0 && (!is_unsigned || node->string[0] != '-');
}

sbp_status sbp_proto_i64(sbp_diag *diag, const sbp_json *node, int64_t *out) {
    return integer_of(node, false, out) ? SBP_OK : wrong(diag, node, "an integer");
}

sbp_status sbp_proto_u64(sbp_diag *diag, const sbp_json *node, int64_t *out) {
    return integer_of(node, true, out) ? SBP_OK : wrong(diag, node, "an integer of at least 0");
}

sbp_status sbp_proto_double(sbp_diag *diag, const sbp_json *node, double *out) {
    static const struct {
        const char *name;
        double value;
    } words[] = {{"NaN", (double)NAN}, {"Infinity", (double)INFINITY}, {"-Infinity", -(double)INFINITY}};
    if (node->kind == SBP_JSON_REAL) { /* in protobuf's own form it may be infinite */
        *out = node->real;
        return SBP_OK;
    }
    if (node->kind == SBP_JSON_INT)
        return sbp_json_as_double(diag, node, out);
    if (node->kind != SBP_JSON_STRING)
        return wrong(diag, node, "a number");
    for (int32_t i = 0; i < SBP_COUNT(words); i++)
        if (strcmp(node->string, words[i].name) == 0) {
            *out = words[i].value;
            return SBP_OK;
        }
    char *end;
    *out = strtod(node->string, &end);
    bool plain = node->count > 0 && strspn(node->string, "+-.0123456789eE") == (size_t)node->count;
    return plain && *end == 0 ? SBP_OK : wrong(diag, node, "a number");
}

sbp_status sbp_proto_enum(sbp_diag *diag, const sbp_json *node, const char *const *names, int32_t count,
                          int32_t *out) {
    int64_t number = -1;
    if (node->kind == SBP_JSON_STRING) {
        for (int32_t i = 0; i < count; i++)
            if (names[i] && strcmp(names[i], node->string) == 0) {
                *out = i;
                return SBP_OK;
            }
    } else if (integer_of(node, true, &number) && number < count && names[number]) {
        *out = (int32_t)number;
        return SBP_OK;
    }
    if (node->kind == SBP_JSON_INT)
        return sbp_json_fail(diag, node, "%lld is not a value of this enum", (long long)node->integer);
    return wrong(diag, node, "the name or number of an enum value");
}

/* The six bits of a base64 digit, -1 for other characters. */
static int digit(char c) {
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26;
    if (c >= '0' && c <= '9')
        return c - '0' + 52;
    if (c == '+' || c == '-')
        return 62;
    return c == '/' || c == '_' ? 63 : -1;
}

sbp_status sbp_proto_bytes(sbp_arena *arena, sbp_diag *diag, const sbp_json *node, const uint8_t **out,
                           int64_t *length) {
    if (node->kind == SBP_JSON_BYTES) {
        *out = (const uint8_t *)node->string;
        *length = node->count;
        return SBP_OK;
    }
    if (node->kind != SBP_JSON_STRING)
        return wrong(diag, node, "base64");
    int64_t n = node->count;
    while (n > 0 && node->count - n < 2 && node->string[n - 1] == '=')
        n--;
    if (n % 4 == 1)
        return sbp_json_fail(diag, node, "base64 of %lld digits", (long long)n);
    uint8_t *bytes = sbp_arena_alloc(arena, (size_t)(n / 4 * 3 + 3));
    uint32_t bits = 0;
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++) {
        int d = digit(node->string[i]);
        if (d < 0)
            return sbp_json_fail(diag, node, "character %lld is not a base64 digit", (long long)i);
        bits = bits << 6 | (uint32_t)d;
        if (i % 4 != 0)
            bytes[count++] = (uint8_t)(bits >> (6 - 2 * (i % 4)));
    }
    *out = bytes;
    *length = count;
    return SBP_OK;
}

sbp_status sbp_proto_get_i64(sbp_diag *diag, const sbp_json *message, const char *field, int64_t *out) {
    const sbp_json *node = sbp_proto_field(message, field);
    return node ? sbp_proto_i64(diag, node, out) : SBP_OK;
}

sbp_status sbp_proto_get_string(sbp_diag *diag, const sbp_json *message, const char *field,
                                const char **out) {
    const sbp_json *node = sbp_proto_field(message, field);
    return node ? sbp_json_as_string(diag, node, out) : SBP_OK;
}

sbp_status sbp_proto_get_repeated(sbp_diag *diag, const sbp_json *message, const char *field,
                                  const sbp_json **items, int64_t *count) {
    const sbp_json *node = sbp_proto_field(message, field);
    *items = NULL;
    *count = 0;
    if (!node)
        return SBP_OK;
    SBP_TRY(sbp_json_as_array(diag, node, &node));
    *items = node->items;
    *count = node->count;
    return SBP_OK;
}
