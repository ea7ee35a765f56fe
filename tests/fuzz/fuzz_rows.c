/* fuzz_rows.c: JSON lines: each line a row, the first of which decides what all are; rows to documents by a
 * small tokenizer and a chat template. The first byte chooses which tokens count. Each line is read by
 * jansson as well, which must make the same of it. */
#include <stdlib.h>
#include <string.h>

#include "runtime/data/tokenize.h"
#include "tests/common/row_line.h"
#include "tests/fuzz/fuzz.h"

static const char template[] =
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}{% if m.role == 'assistant' %}{% generation "
    "%}"
    "{{ m.content }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}{{ '<|im_end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

typedef struct lines {
    sbp_arena *arena;
    sbp_document_maker maker;
    sbp_row_form form;
    const char *line;
    size_t length;
} lines;

static void check(const sbp_documents *made) {
    if (made->count < 1)
        abort();
    for (int32_t i = 0; i < made->count; i++) {
        const sbp_document *d = &made->documents[i];
        if (d->count < 0 || d->prompt < 0 || d->prompt > d->count)
            abort();
        for (int64_t k = 0; k < d->count; k++)
            if (d->ids[k] < 0 || (d->labels[k] != -100 && d->labels[k] != d->ids[k] && d->labels[k] < 0))
                abort();
    }
}

/* The tree of a line, as text; NULL: it is none. */
static const char *parse(const lines *l, unsigned flags) {
    const sbp_json *root;
    sbp_text text;
    if (sbp_json_parse(l->arena, NULL, "rows:1", l->line, l->length, flags, &root) != SBP_OK)
        return NULL;
    sbp_text_init(&text, l->arena);
    sbp_json_add_value(&text, root);
    return text.data;
}

/* Both ways to read JSON make the same of it. */
static sbp_status compare(void *user) {
    const lines *l = user;
    const char *quick = parse(l, SBP_JSON_ROW), *slow = parse(l, SBP_JSON_ROW | SBP_JSON_JANSSON);
    if (!quick != !slow || (quick && strcmp(quick, slow) != 0))
        abort();
    return SBP_OK;
}

static sbp_status one_line(void *user) {
    lines *l = user;
    static const sbp_row_options options = {.vocab_size = 400, .fields = true};
    sbp_row row;
    sbp_documents made;
    SBP_TRY(row_of_line(l->arena, NULL, "rows:1", l->line, l->length, &options, &l->form, &row));
    SBP_TRY(sbp_documents_make(&l->maker, l->arena, &row, &made));
    check(&made);
    return SBP_OK;
}

static const sbp_tokenizer *tokenizer(void) {
    static sbp_arena *arena;
    static const sbp_tokenizer *t;
    if (!arena) {
        arena = sbp_arena_create();
        if (!arena || sbp_tokenizer_load(arena, NULL, "tests/data/tokenizers/gpt2.json", &t) != SBP_OK)
            abort(); /* run from the root of the sources */
    }
    return t;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const sbp_chat_options chat = {.source = {.text = template, .length = sizeof template - 1, .name = "t"},
                                   .date = "2026-03-01",
                                   .tokenizer = tokenizer(),
                                   .eos = "</s>",
                                   .assistant = true,
                                   .quiet = true};
    lines l = {
        .arena = sbp_arena_create(),
        .maker = {.tokenizer = chat.tokenizer,
                  .loss_on = size ? (sbp_loss_on)(data[0] % SBP_LOSS_ON_COUNT) : SBP_LOSS_AUTO,
                  .reasoning = size ? (sbp_reasoning)(data[0] / 8 % SBP_REASONING_COUNT) : SBP_REASONING_ALL,
                  .eos = "</s>",
                  .chat_options = &chat,
                  .chat_arena = sbp_arena_create()}};
    for (size_t at = 1, end; at < size; at = end + 1) {
        const uint8_t *stop = memchr(data + at, '\n', size - at);
        end = stop ? (size_t)(stop - data) : size;
        l.line = (const char *)data + at;
        l.length = end - at;
        if (!l.arena || !l.maker.chat_arena || l.length == 0)
            continue;
        (void)!sbp_guard(l.arena, NULL, compare, &l);
        (void)!sbp_guard(l.arena, NULL, one_line, &l);
    }
    sbp_arena_destroy(l.arena);
    sbp_arena_destroy(l.maker.chat_arena);
    return 0;
}
