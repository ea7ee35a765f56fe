/* json_mutate.h: prints a JSON document with something in it changed: what still parses, and is then looked
 * at.
 *
 * A place is found by walking down from the root, so that a field of its own is hit as often as all the
 * entries of a vocabulary together. */
#ifndef SBP_TESTS_FAULT_JSON_MUTATE_H
#define SBP_TESTS_FAULT_JSON_MUTATE_H

#include <stdint.h>
#include <stdlib.h>

#include "ir/base/json.h"
#include "tests/unit/mutate.h"

typedef enum json_edit {
    EDIT_OTHER,  /* a value of another kind, or of the same out of range */
    EDIT_NUMBER, /* near the number that was there */
    EDIT_OMIT,
    EDIT_TWICE,
    EDIT_SIBLING, /* what stands beside it */
    EDIT_RENAME,
    EDIT_STRING, /* a byte of the string, or its end */
    EDIT_COUNT
} json_edit;

typedef struct json_mutation {
    sbp_text *out;
    const sbp_json *place;
    json_edit edit;
    const char *other; /* of EDIT_OTHER; NULL: any */
} json_mutation;

static inline void json_mutate_value(json_mutation *m, const sbp_json *node);

static inline void json_mutate_other(sbp_text *out) {
    static const char *const values[] = {"null",
                                         "true",
                                         "false",
                                         "0",
                                         "-1",
                                         "1",
                                         "2",
                                         "3",
                                         "7",
                                         "0.5",
                                         "-0.0",
                                         "1e308",
                                         "1e-320",
                                         "2147483647",
                                         "2147483648",
                                         "-2147483649",
                                         "4294967296",
                                         "9223372036854775807",
                                         "-9223372036854775808",
                                         "\"\"",
                                         "\"x\"",
                                         "\"\\u0000\"",
                                         "\"default\"",
                                         "\"F32\"",
                                         "\"..\\/..\"",
                                         "[]",
                                         "[[]]",
                                         "[0]",
                                         "[null]",
                                         "{}",
                                         "{\"\": {}}",
                                         "[1, 2, 3, 4, 5, 6, 7, 8, 9]"};
    sbp_text_add(out, "%s", values[mutate_pick(SBP_COUNT(values))]);
}

static inline void json_mutate_number(sbp_text *out, const sbp_json *node) {
    double value = node->kind == SBP_JSON_REAL ? node->real : (double)node->integer;
    static const double factor[] = {1, 1, 2, 0.5, -1, 3, 30}, term[] = {1, -1, 0, 0, 0, 1, 0};
    uint32_t k = mutate_pick(SBP_COUNT(factor));
    value = value * factor[k] + term[k];
    if (node->kind == SBP_JSON_INT && value > -9e15 && value < 9e15)
        sbp_text_add(out, "%lld", (long long)value);
    else
        sbp_text_add(out, "%.17g", value);
}

static inline void json_mutate_string(sbp_text *out, const sbp_json *node) {
    char text[300];
    size_t length = (size_t)node->count < sizeof text - 40 ? (size_t)node->count : sizeof text - 40;
    memcpy(text, node->string, length);
    for (size_t i = 0; i < length; i++) /* a cut may have gone through a character */
        text[i] = (unsigned char)text[i] < 128 ? text[i] : '?';
    length = length ? mutate(text, length, sizeof text - 1) : 0;
    for (size_t i = 0; i < length; i++)
        text[i] = (char)(text[i] & 127);
    sbp_json_add_string(out, text, length);
}

/* The children of a container; the edit happens where it says. */
static inline void json_mutate_children(json_mutation *m, const sbp_json *node) {
    bool object = node->kind == SBP_JSON_OBJECT, any = false;
    sbp_text_add(m->out, object ? "{" : "[");
    for (int64_t i = 0; i < node->count; i++) {
        const sbp_json *child = &node->items[i];
        bool here = child == m->place;
        if (here && m->edit == EDIT_OMIT)
            continue;
        for (int copy = 0; copy < (here && m->edit == EDIT_TWICE ? 2 : 1); copy++) {
            sbp_text_add(m->out, any ? "," : "");
            any = true;
            const char *key = child->key;
            if (object && here && (m->edit == EDIT_RENAME || copy == 1))
                key = mutate_pick(2) ? "weight" : node->items[mutate_pick((uint32_t)node->count)].key;
            if (object) {
                sbp_json_add_string(m->out, key, strlen(key));
                sbp_text_add(m->out, ":");
            }
            json_mutate_value(m, child);
        }
    }
    sbp_text_add(m->out, object ? "}" : "]");
}

static inline void json_mutate_value(json_mutation *m, const sbp_json *node) {
    bool here = node == m->place, number = node->kind == SBP_JSON_INT || node->kind == SBP_JSON_REAL;
    if (here && m->edit == EDIT_OTHER && m->other)
        sbp_text_add(m->out, "%s", m->other);
    else if (here && m->edit == EDIT_NUMBER && number)
        json_mutate_number(m->out, node);
    else if (here && m->edit == EDIT_STRING && node->kind == SBP_JSON_STRING)
        json_mutate_string(m->out, node);
    else if (here && m->edit == EDIT_SIBLING && node->parent)
        sbp_json_add_value(m->out, &node->parent->items[mutate_pick((uint32_t)node->parent->count)]);
    else if (here && (m->edit == EDIT_OTHER || m->edit == EDIT_NUMBER || m->edit == EDIT_STRING))
        json_mutate_other(m->out);
    else if (node->kind == SBP_JSON_ARRAY || node->kind == SBP_JSON_OBJECT)
        json_mutate_children(m, node);
    else
        sbp_json_add_value(m->out, node);
}

static inline void json_mutate(sbp_text *out, const sbp_json *root) {
    const sbp_json *place = root;
    while ((place->kind == SBP_JSON_ARRAY || place->kind == SBP_JSON_OBJECT) && place->count > 0 &&
           (place == root || mutate_pick(5) > 0))
        place = &place->items[mutate_pick((uint32_t)place->count)];
    json_mutation m = {out, place, (json_edit)mutate_pick(EDIT_COUNT), NULL};
    json_mutate_value(&m, root);
}

/* The document with `value` at the place, or without the place. */
static inline void json_replace(sbp_text *out, const sbp_json *root, const sbp_json *place,
                                const char *value) {
    json_mutation m = {out, place, value ? EDIT_OTHER : EDIT_OMIT, value};
    json_mutate_value(&m, root);
}

#endif
