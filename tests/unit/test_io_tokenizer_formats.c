/* Tokenizers of other formats than tokenizer.json: ids as the library gives them that defines the format
 * (tests/data/tokenizers, made by make_formats.py there); damaged files. */
#include "tests/unit/tokenizer_testing.h"

#define DATA "tests/data/tokenizers/"

/* Ids without those around the text, as the library of the format gives them. */
static void other_formats_give_their_libraries_ids(void **state) {
    io_fixture *f = *state;
    const sbp_json *expected = read_data(f, DATA "formats.json"), *texts = read_data(f, DATA "texts.json");
    int compared = 0;
    assert_int_equal(expected->count, 6);
    for (int64_t i = 0; i < expected->count; i++) {
        const sbp_json *lists = &expected->items[i];
        const sbp_tokenizer *t = load(f, sbp_arena_printf(f->arena, DATA "%s", lists->key)), *again;
        const char *text;
        size_t length;
        assert_ok(f, sbp_tokenizer_to_json(t, f->arena, f->diag, &text, &length));
        assert_ok(f, sbp_tokenizer_from_json(f->arena, f->diag, lists->key, text, length, &again));
        for (int64_t k = 0; k < texts->count; k++) {
            sbp_encoding e;
            if (lists->items[k].kind == SBP_JSON_NULL)
                continue;
            for (int copy = 0; copy < 2; copy++) {
                assert_ok(f, sbp_tokenizer_encode(copy ? again : t, f->arena, f->diag, texts->items[k].string,
                                                  (size_t)texts->items[k].count, 0, &e));
                bool same = e.count == lists->items[k].count;
                for (int64_t n = 0; same && n < e.count; n++)
                    same = e.ids[n] == lists->items[k].items[n].integer;
                if (!same)
                    fail_msg("%s: '%s' gives %lld ids, expected %lld, or they differ", lists->key,
                             texts->items[k].string, (long long)e.count, (long long)lists->items[k].count);
            }
            compared++;
        }
    }
    assert_true(compared > 200);
}

static void what_goes_around_texts_of_other_formats(void **state) {
    io_fixture *f = *state;
    static const struct {
        const char *file, *bos, *eos;
    } cases[] = {
        {"llama.model", "<s>", "</s>"}, {"tekken.json", "<s>", "</s>"}, {"ranks.tiktoken", NULL, NULL}};
    for (int i = 0; i < SBP_COUNT(cases); i++) {
        const sbp_tokenizer *t = load(f, sbp_arena_printf(f->arena, DATA "%s", cases[i].file));
        sbp_encoding plain, whole;
        assert_ok(f, sbp_tokenizer_encode(t, f->arena, f->diag, "x", 1, 0, &plain));
        assert_ok(f, sbp_tokenizer_encode(t, f->arena, f->diag, "x", 1, SBP_ADD_SPECIAL_TOKENS, &whole));
        assert_int_equal(whole.count, plain.count + (cases[i].bos != NULL));
        int32_t bos = sbp_tokenizer_role(t, SBP_TOKEN_BOS), eos = sbp_tokenizer_role(t, SBP_TOKEN_EOS);
        assert_int_equal(bos, cases[i].bos ? sbp_tokenizer_id(t, cases[i].bos, strlen(cases[i].bos)) : -1);
        assert_int_equal(eos, cases[i].eos ? sbp_tokenizer_id(t, cases[i].eos, strlen(cases[i].eos)) : -1);
        assert_true(!cases[i].bos || whole.ids[0] == bos);
    }
}

/* A directory with the file alone, then with what tokenizer_config.json says. */
static void directories_without_tokenizer_json(void **state) {
    io_fixture *f = *state;
    const char *data;
    size_t length;
    assert_ok(f, sbp_file_read(f->arena, f->diag, DATA "llama.model", &data, &length));
    io_put(io_path(f, "tokenizer.model"), data, length);
    static const struct {
        const char *config;
        int32_t first, last; /* of "x"; -1: not a special token */
    } cases[] = {{"{}", 1, -1},
                 {"{\"add_bos_token\":false,\"add_eos_token\":true}", -1, 2},
                 {"{\"eos_token\":\"<unk>\"}", 1, -1}};
    for (int i = 0; i < SBP_COUNT(cases); i++) {
        sbp_encoding e;
        io_put(io_path(f, "tokenizer_config.json"), cases[i].config, strlen(cases[i].config));
        const sbp_tokenizer *t = load(f, f->directory);
        assert_ok(f, sbp_tokenizer_encode(t, f->arena, f->diag, "x", 1, SBP_ADD_SPECIAL_TOKENS, &e));
        assert_int_equal(e.ids[0] < 3 ? e.ids[0] : -1, cases[i].first);
        assert_int_equal(e.ids[e.count - 1] < 3 ? e.ids[e.count - 1] : -1, cases[i].last);
        assert_int_equal(sbp_tokenizer_role(t, SBP_TOKEN_BOS), 1);
        assert_int_equal(sbp_tokenizer_role(t, SBP_TOKEN_EOS), i == 2 ? 0 : 2);
    }
}

static void names_what_it_does_not_support(void **state) {
    io_fixture *f = *state;
    static const struct {
        const char *file, *text, *message;
        size_t length;
    } cases[] = {
        {"a.model",
         "\n\x03\n\x01"
         "a",
         "a piece is longer than what is left", 4},
        {"a.model",
         "\n\x05\n\x01"
         "a\x18\x05",
         "a piece that is not to be used", 7},
        {"a.model",
         "\n\x05\n\x01"
         "a\x18\x09",
         "the type 9 of a piece", 7},
        {"a.model",
         "\n\x03\n\x01"
         "a\x12\x02\x18\x03",
         "the model type 'word' is not supported", 9},
        {"a.model",
         "\n\x03\n\x01"
         "a\x12\x02\x18\x07",
         "the model type 7 is not known", 9},
        {"a.model",
         "\n\x03\n\x01"
         "a\x12\x03\xc0\x01\x01",
         "treat_whitespace_as_suffix is not supported", 10},
        {"a.model",
         "\n\x03\n\x01"
         "a\x1a\x02\x28\x00",
         "escape_whitespaces false is not supported", 9},
        {"a.tiktoken", "YQ== 1\n", "expected base64 and the rank 0", 7},
        {"a.tiktoken", "YQ== 0\nYQ== 1\n", "the ids 0 and 1 have the same token", 14},
        {"a.tiktoken", "?? 0\n", "is not a base64 digit", 5},
        {"tekken.json", "{\"config\":{\"pattern\":\"a\"},\"vocab\":[{\"token_bytes\":\"YQ==\",\"rank\":1}]}",
         "expected token_bytes and the rank 0", 0},
        {"tekken.json",
         "{\"config\":{\"pattern\":\"a\",\"default_vocab_size\":9,\"default_num_special_tokens\":20},"
         "\"vocab\":[{\"token_bytes\":\"YQ==\"}]}",
         "default_vocab_size is 9, of which 20 are special, but the file has 1", 0},
    };
    for (int i = 0; i < SBP_COUNT(cases); i++) {
        const sbp_tokenizer *t;
        size_t length = cases[i].length ? cases[i].length : strlen(cases[i].text);
        io_put(io_path(f, cases[i].file), cases[i].text, length);
        assert_fails(f, SBP_INPUT, cases[i].message,
                     sbp_tokenizer_load(f->arena, f->diag, io_path(f, cases[i].file), &t));
        remove(io_path(f, cases[i].file));
    }
}

static void survives_flipped_bytes(void **state) {
    io_fixture *f = *state;
    static const char *const files[] = {"plain.model", "unigram.model", "ranks.tiktoken"};
    uint64_t random = 1;
    int loaded = 0, refused = 0;
    for (int i = 0; i < SBP_COUNT(files); i++) {
        const char *data;
        size_t length;
        assert_ok(f, sbp_file_read(f->arena, f->diag, sbp_arena_printf(f->arena, DATA "%s", files[i]), &data,
                                   &length));
        char *copy = sbp_arena_alloc(f->arena, length);
        for (int k = 0; k < 150; k++) {
            sbp_arena *arena = sbp_arena_create();
            const sbp_tokenizer *t;
            sbp_encoding e;
            memcpy(copy, data, length);
            copy[io_random(&random) % length] ^= (char)(1 << io_random(&random) % 8);
            io_put(io_path(f, files[i]), copy, k % 3 ? length : io_random(&random) % length);
            sbp_status status = sbp_tokenizer_load(arena, f->diag, io_path(f, files[i]), &t);
            if (status == SBP_OK)
                status = sbp_tokenizer_encode(t, arena, f->diag, "one ABC\n 2", 10, 0, &e);
            assert_true(status == SBP_OK || status == SBP_INPUT);
            loaded += status == SBP_OK;
            refused += status != SBP_OK;
            sbp_arena_destroy(arena);
        }
        remove(io_path(f, files[i]));
    }
    assert_true(loaded > 20 && refused > 20);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(other_formats_give_their_libraries_ids, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(what_goes_around_texts_of_other_formats, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(directories_without_tokenizer_json, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(names_what_it_does_not_support, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(survives_flipped_bytes, io_setup, io_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
