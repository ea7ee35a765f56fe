/* fuzz_tokenizer_parts.c: normalizers, pre-tokenizers, post-processors, decoders and added tokens in any
 * order and number: each byte of the input up to a 0xFF chooses one of a list, with what it takes; the rest
 * is a text to encode. What cannot be reached by changes of a text, since it must be JSON and say what the
 * format asks for. */
#include <string.h>

#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/tokenizer_case.h"

typedef struct part {
    const char *type, *members; /* %s: a text that is drawn */
} part;

static const part
    normalizers[] = {{"Replace", "\"pattern\": {\"String\": \"%s\"}, \"content\": \"%s\""},
                     {"Replace", "\"pattern\": {\"Regex\": \"(?:%s)*\"}, \"content\": \"%s\""},
                     {"Prepend", "\"prepend\": \"%s\""},
                     {"NFC", ""},
                     {"NFKD", ""},
                     {"Lowercase", ""},
                     {"Strip", "\"strip_left\": true, \"strip_right\": true"},
                     {"StripAccents", ""},
                     {"ByteLevel", ""},
                     {"Nmt", ""},
                     {"BertNormalizer", "\"clean_text\": true, \"handle_chinese_chars\": true, "
                                        "\"strip_accents\": null, \"lowercase\": true"}},
    splitters[] = {{"ByteLevel", "\"add_prefix_space\": true, \"trim_offsets\": true, \"use_regex\": false"},
                   {"ByteLevel", "\"add_prefix_space\": false, \"trim_offsets\": true, \"use_regex\": true"},
                   {"Metaspace", "\"replacement\": \"_\", \"prepend_scheme\": \"first\", \"split\": true"},
                   {"Metaspace", "\"replacement\": \"_\", \"prepend_scheme\": \"always\", \"split\": false"},
                   {"Whitespace", ""},
                   {"Digits", "\"individual_digits\": true"},
                   {"Split", "\"pattern\": {\"String\": \"%s\"}, \"behavior\": \"MergedWithNext\", "
                             "\"invert\": false"},
                   {"Split",
                    "\"pattern\": {\"Regex\": \"(?:%s)+\"}, \"behavior\": \"Contiguous\", \"invert\": "
                    "true"},
                   {"Split", "\"pattern\": {\"Regex\": \"%s\"}, \"behavior\": \"Removed\", \"invert\": "
                             "false"},
                   {"FixedLength", "\"length\": 3"}},
    processors[] = {{"ByteLevel", "\"add_prefix_space\": true, \"trim_offsets\": true"},
                    {"BertProcessing", "\"sep\": [\"a\", 1], \"cls\": [\"b\", 2]"},
                    {"RobertaProcessing", "\"sep\": [\"a\", 1], \"cls\": [\"b\", 2], \"trim_offsets\": true, "
                                          "\"add_prefix_space\": false"},
                    {"TemplateProcessing",
                     "\"single\": [{\"SpecialToken\": {\"id\": \"a\", \"type_id\": 0}}, {\"Sequence\": "
                     "{\"id\": \"A\", \"type_id\": 0}}], \"pair\": [], \"special_tokens\": {\"a\": {\"id\": "
                     "\"a\", \"ids\": [1, 2, 1], \"tokens\": [\"a\", \"b\", \"a\"]}}"}},
    decoders[] = {{"ByteLevel", ""},
                  {"ByteFallback", ""},
                  {"Fuse", ""},
                  {"Metaspace", "\"replacement\": \"_\", \"prepend_scheme\": \"always\", \"split\": true"},
                  {"Replace", "\"pattern\": {\"String\": \"%s\"}, \"content\": \"%s\""},
                  {"Strip", "\"content\": \"a\", \"start\": 1, \"stop\": 3"},
                  {"WordPiece", "\"prefix\": \"%s\", \"cleanup\": true"},
                  {"BPEDecoder", "\"suffix\": \"%s\""}};

static const char *const
    texts[] = {"", "a", "aa", " ", "\xc3\xa9", "_", "b c", "aaa", "[b]", "\\\\s"},
    *const added[] = {" ", "a", "<s>", "  ", "b c", "\xc3\x89"},
    *const models[] = {
        "\"type\": \"WordLevel\", \"unk_token\": \"u\", \"vocab\": {\"u\": 0, \"a\": 1, \"b\": 2, \"_a\": 3}",
        "\"type\": \"WordPiece\", \"unk_token\": \"u\", \"continuing_subword_prefix\": \"_\", "
        "\"max_input_chars_per_word\": 100, \"vocab\": {\"u\": 0, \"a\": 1, \"b\": 2, \"_a\": 3}",
        "\"type\": \"BPE\", \"unk_token\": \"u\", \"fuse_unk\": true, \"byte_fallback\": false, \"vocab\": "
        "{\"u\": 0, \"a\": 1, \"b\": 2, \"ab\": 3}, \"merges\": [\"a b\"]"};

typedef struct reader {
    const uint8_t *data;
    size_t at, size;
} reader;

/* Below `most`; 0 where the input has ended. */
static int draw(reader *r, int most) {
    return r->at < r->size && r->data[r->at] != 0xff ? r->data[r->at++] % most : 0;
}

static void add_part(sbp_text *out, reader *r, const part *p) {
    sbp_text_add(out, "{\"type\": \"%s\"%s", p->type, *p->members ? ", " : "");
    for (const char *at = p->members; *at; at++)
        if (at[0] == '%' && at[1] == 's') {
            sbp_text_add(out, "%s", texts[draw(r, SBP_COUNT(texts))]);
            at++;
        } else
            sbp_text_add_n(out, at, 1);
    sbp_text_add(out, "}");
}

/* later: of how many parts those behind the first are; of post-processors one may add tokens. */
static void add_list(sbp_text *out, reader *r, const char *member, const char *list, const part *parts,
                     int count, int later) {
    int most = draw(r, 8); /* of texts that grow without end: test_io_tokenizer_bounds */
    sbp_text_add(out, ", \"%s\": {\"type\": \"Sequence\", \"%s\": [", member, list);
    for (int i = 0; i < most; i++) {
        sbp_text_add(out, i ? ", " : "");
        add_part(out, r, &parts[draw(r, i ? later : count)]);
    }
    sbp_text_add(out, "]}");
}

static sbp_status run(void *user) {
    sbp_text out = *(const sbp_text *)user;
    reader r = {(const uint8_t *)out.data, 0, out.length};
    sbp_text_init(&out, out.arena);
    sbp_text_add(&out, "{\"version\": \"1.0\", \"model\": {%s}, \"added_tokens\": [",
                 models[draw(&r, SBP_COUNT(models))]);
    for (int i = 0, most = draw(&r, SBP_COUNT(added) + 1), from = draw(&r, SBP_COUNT(added)); i < most; i++) {
        const char *content = added[(from + i) % SBP_COUNT(added)];
        int how = draw(&r, 32);
        sbp_text_add(
            &out,
            "%s{\"id\": %d, \"content\": \"%s\", \"lstrip\": %s, \"rstrip\": %s, \"normalized\": %s, "
            "\"single_word\": %s, \"special\": %s}",
            i ? ", " : "", strcmp(content, "a") == 0 ? 1 : 4 + i, content, how & 1 ? "true" : "false",
            how & 2 ? "true" : "false", how & 4 ? "true" : "false", how & 8 ? "true" : "false",
            how & 16 ? "true" : "false");
    }
    sbp_text_add(&out, "]");
    add_list(&out, &r, "normalizer", "normalizers", normalizers, SBP_COUNT(normalizers),
             SBP_COUNT(normalizers));
    add_list(&out, &r, "pre_tokenizer", "pretokenizers", splitters, SBP_COUNT(splitters),
             SBP_COUNT(splitters));
    add_list(&out, &r, "post_processor", "processors", processors, SBP_COUNT(processors), 1);
    add_list(&out, &r, "decoder", "decoders", decoders, SBP_COUNT(decoders), SBP_COUNT(decoders));
    sbp_text_add(&out, "}");
    size_t from = r.at + (r.at < r.size);
    fuzz_tokenizer_case(out.arena, out.data, out.length, (const char *)r.data + from, r.size - from);
    return SBP_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    sbp_text input = {.arena = sbp_arena_create(), .data = (char *)(uintptr_t)data, .length = size};
    if (input.arena)
        (void)!sbp_guard(input.arena, NULL, run, &input);
    sbp_arena_destroy(input.arena);
    return 0;
}
