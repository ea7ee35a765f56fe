/* template_marks.c: marked copies of templates of models, made from their text by replacing a few places. A
 * text is known by its hash, blanks at its end aside. */
#include <string.h>

#include "frontends/formats/template/template_source.h"

typedef struct edit {
    const char *from, *to; /* from: stands in the text once */
} edit;

enum { MOST_EDITS = 6 };

typedef struct known_template {
    const char *what;
    uint64_t hash;
    edit edits[MOST_EDITS];
} known_template;

/* Qwen2.5: all of an answer behind its role, which the original writes in two branches. Qwen3: the thoughts
 * are always written, not only behind the last question. Phi-3: what ends the whole belongs to a last answer.
 */
static const known_template known[] = {
#include "frontends/formats/template/template_marks.def"
};

static size_t length_without_end(const char *text, size_t length) {
    while (length > 0 && strchr(" \t\r\n", text[length - 1]))
        length--;
    return length;
}

/* The text with one place replaced; NULL when that is not there exactly once. */
static const char *replace(sbp_arena *arena, const char *text, const edit *e) {
    const char *at = strstr(text, e->from);
    if (!at || strstr(at + 1, e->from))
        return NULL;
    return sbp_arena_printf(arena, "%.*s%s%s", (int)(at - text), text, e->to, at + strlen(e->from));
}

const char *sbp_template_marked_copy(sbp_arena *arena, const char *text, size_t length, size_t *out_length) {
    uint64_t hash = sbp_hash_bytes(text, length_without_end(text, length), 0);
    for (int k = 0; k < SBP_COUNT(known); k++) {
        if (known[k].hash != hash)
            continue;
        const char *copy = sbp_arena_strndup(arena, text, length);
        for (int i = 0; copy && i < MOST_EDITS && known[k].edits[i].from; i++)
            copy = replace(arena, copy, &known[k].edits[i]);
        *out_length = copy ? strlen(copy) : 0;
        return copy;
    }
    return NULL;
}
