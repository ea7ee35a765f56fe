/* Tokenizers that would make more of a text than any of people's does: refused with a reason, in little time
 * and memory. And what tokens swallow of blanks between them, in time that is linear in the text. */
#include "tests/unit/io_testing.h"

#include "frontends/formats/tokenizer/tokenizer.h"

static const char vocabulary[] =
    "\"model\": {\"type\": \"WordLevel\", \"unk_token\": \"u\", \"vocab\": {\"u\": 0, \"a\": 1}}";

/* COUNT times a part, and what stands around them. */
static const char *repeated(io_fixture *f, const char *before, const char *part, int count,
                            const char *after) {
    sbp_text text;
    sbp_text_init(&text, f->arena);
    sbp_text_add(&text, "%s", before);
    for (int i = 0; i < count; i++)
        sbp_text_add(&text, "%s%s", i ? ", " : "", part);
    sbp_text_add(&text, "%s", after);
    return text.data;
}

static sbp_status try_load(io_fixture *f, const char *members, const sbp_tokenizer **out) {
    const char *text = sbp_arena_printf(f->arena, "{%s, %s}", members, vocabulary);
    return sbp_tokenizer_from_json(f->arena, f->diag, "t.json", text, strlen(text), out);
}

static const char *filled(io_fixture *f, int length) {
    char *text = sbp_arena_alloc(f->arena, (size_t)length + 1);
    memset(text, 'a', (size_t)length);
    return text;
}

/* What grows a text, and how often it stands in a row. */
static void test_texts_that_grow(void **state) {
    io_fixture *f = *state;
    const char *long_prepend =
        sbp_arena_printf(f->arena, "{\"type\": \"Prepend\", \"prepend\": \"%s\"}", filled(f, 100000));
    const struct {
        const char *before, *part, *after;
        int count;
        unsigned flags;
    } cases[] = {
        {"\"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [",
         "{\"type\": \"Replace\", \"pattern\": {\"String\": \"a\"}, \"content\": \"aa\"}", "]}", 40, 0},
        {"\"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [",
         "{\"type\": \"Replace\", \"pattern\": {\"String\": \"a\"}, \"content\": \"aa\"}", "]}", 40,
         SBP_WITH_OFFSETS},
        {"\"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [",
         "{\"type\": \"Replace\", \"pattern\": {\"Regex\": \"\"}, \"content\": \"aa\"}", "]}", 40, 0},
        {"\"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [", long_prepend, "]}", 100, 0},
        {"\"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [", "{\"type\": \"ByteLevel\"}", "]}", 40,
         0},
        {"\"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [",
         "{\"type\": \"ByteLevel\", "
         "\"add_prefix_space\": true, \"trim_offsets\": true, \"use_regex\": false}",
         "]}", 40, 0},
    };
    for (int i = 0; i < SBP_COUNT(cases); i++) {
        const sbp_tokenizer *t;
        sbp_encoding e;
        assert_ok(
            f, try_load(f, repeated(f, cases[i].before, cases[i].part, cases[i].count, cases[i].after), &t));
        int64_t before = sbp_test_allocated_bytes();
        const char *line =
            sbp_arena_printf(f->arena, "%s\xc3\xa9", filled(f, 51)); /* of letters, and of two bytes */
        assert_fails(f, SBP_INPUT, "t.json: it makes more of a text than 64 MiB",
                     sbp_tokenizer_encode(t, f->arena, f->diag, line, 53, cases[i].flags, &e));
        int64_t taken = sbp_test_allocated_bytes() - before;
        if (taken > (int64_t)512 << 20)
            fail_msg("case %d takes %lld bytes", i, (long long)taken);
    }
}

static void test_decoders_that_grow(void **state) {
    io_fixture *f = *state;
    static const char *const parts[] = {
        "{\"type\": \"Replace\", \"pattern\": {\"String\": \"a\"}, \"content\": \"aa\"}",
        "{\"type\": \"BPEDecoder\", \"suffix\": \"\"}"};
    for (int i = 0; i < SBP_COUNT(parts); i++) {
        const sbp_tokenizer *t;
        const char *text;
        size_t length;
        int32_t ids[60];
        for (int k = 0; k < SBP_COUNT(ids); k++)
            ids[k] = 1;
        assert_ok(f, try_load(f,
                              repeated(f, "\"decoder\": {\"type\": \"Sequence\", \"decoders\": [", parts[i],
                                       40, "]}"),
                              &t));
        assert_fails(f, SBP_INPUT, "t.json: it makes more of a text than 64 MiB",
                     sbp_tokenizer_decode(t, f->arena, f->diag, ids, SBP_COUNT(ids), false, &text, &length));
    }
}

static void test_counts(void **state) {
    io_fixture *f = *state;
    const char *long_token = sbp_arena_printf(f->arena,
                                              "\"added_tokens\": [{\"id\": 2, \"content\": \"%s\", "
                                              "\"single_word\": false, \"lstrip\": false, \"rstrip\": "
                                              "false, \"normalized\": false, \"special\": false}]",
                                              filled(f, 1025));
    const char *grown = sbp_arena_printf(
        f->arena,
        "\"normalizer\": {\"type\": \"Replace\", \"pattern\": {\"String\": \"a\"}, \"content\": \"%s\"}, "
        "\"added_tokens\": [{\"id\": 2, \"content\": \"aaa\", \"single_word\": false, \"lstrip\": false, "
        "\"rstrip\": "
        "false, \"normalized\": true, \"special\": false}]",
        filled(f, 400));
    const struct {
        const char *before, *part, *after, *message;
        int count;
    } cases[] = {
        {"\"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [", "{\"type\": \"Lowercase\"}", "]}",
         "at most 128 normalizers in a row", 129},
        {"\"decoder\": {\"type\": \"Sequence\", \"decoders\": [", "{\"type\": \"Fuse\"}", "]}",
         "at most 128 decoders in a row", 129},
        {"\"post_processor\": {\"type\": \"Sequence\", \"processors\": [",
         "{\"type\": \"ByteLevel\", \"add_prefix_space\": true, \"trim_offsets\": true}", "]}",
         "at most 128 post-processors in a row", 129},
        {"\"post_processor\": {\"type\": \"TemplateProcessing\", \"pair\": [], \"special_tokens\": {\"a\": "
         "{\"id\": "
         "\"a\", \"ids\": [1], \"tokens\": [\"a\"]}}, \"single\": [{\"Sequence\": {\"id\": \"A\", "
         "\"type_id\": 0}}, ",
         "{\"SpecialToken\": {\"id\": \"a\", \"type_id\": 0}}", "]}",
         "at most 1024 tokens that are added to each text", 1025},
        {long_token, "", "", "has 1025 bytes; at most 1024 are supported", 1},
        {grown, "", "", "has 1200 bytes; at most 1024 are supported", 1},
    };
    const sbp_tokenizer *t;
    for (int i = 0; i < SBP_COUNT(cases); i++) {
        assert_fails(
            f, SBP_INPUT, cases[i].message,
            try_load(f, repeated(f, cases[i].before, cases[i].part, cases[i].count, cases[i].after), &t));
        if (cases[i].count > 1) /* one less is no more than enough */
            assert_ok(
                f,
                try_load(f, repeated(f, cases[i].before, cases[i].part, cases[i].count - 1, cases[i].after),
                         &t));
    }
}

/* Blanks that are tokens and swallow blanks: each of them once, where the token before has taken what
 * it is, too (as the `tokenizers` of Hugging Face have it), in time that does not grow with the
 * square of the text. */
static void test_tokens_of_blanks(void **state) {
    io_fixture *f = *state;
    static const char *const strips[] = {"\"lstrip\": true, \"rstrip\": false",
                                         "\"lstrip\": false, \"rstrip\": true",
                                         "\"lstrip\": true, \"rstrip\": true"};
    enum { COUNT = 1000000 };
    char *blanks = sbp_arena_alloc(f->arena, COUNT + 1);
    memset(blanks, ' ', COUNT);
    for (int i = 0; i < SBP_COUNT(strips); i++) {
        const sbp_tokenizer *t;
        sbp_encoding e;
        assert_ok(f, try_load(f,
                              sbp_arena_printf(
                                  f->arena,
                                  "\"added_tokens\": [{\"id\": 2, \"content\": \" \", \"single_word\": "
                                  "false, %s, \"normalized\": false, \"special\": false}]",
                                  strips[i]),
                              &t));
        assert_ok(f, sbp_tokenizer_encode(t, f->arena, f->diag, " a  a", 5, SBP_WITH_OFFSETS, &e));
        static const int32_t ids[][5] = {{2, 1, 2, 2, 1}, {2, 1, 2, 2, 1}, {2, 1, 2, 1}};
        static const int64_t ends[][5] = {{1, 2, 3, 4, 5}, {1, 2, 4, 4, 5}, {1, 2, 4, 5}};
        assert_int_equal(e.count, i < 2 ? 5 : 4); /* one that was swallowed from both sides is gone */
        assert_memory_equal(e.ids, ids[i], (size_t)e.count * sizeof *e.ids);
        for (int64_t k = 0; k < e.count; k++)
            assert_int_equal(e.offsets[k][1], ends[i][k]);
        assert_ok(f, sbp_tokenizer_encode(t, f->arena, f->diag, blanks, COUNT, 0, &e));
        assert_int_equal(e.count, i < 2 ? COUNT : 1);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_texts_that_grow, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_decoders_that_grow, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_counts, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_tokens_of_blanks, io_setup, io_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
