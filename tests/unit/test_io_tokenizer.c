/* Tokenizers against Hugging Face: ids, byte offsets and decoded text for tiny tokenizers with the pipelines
 * of real models (tests/data/tokenizers, made by make.py there), the same from GGUF files, and real ones. */
#include "tests/unit/tokenizer_testing.h"

#include <pthread.h>
#include <sys/wait.h>

#define DATA "tests/data/tokenizers/"
#define SHARED "../shared/"

/* Fails naming what differs. expected: an array of ids, with `more` ids behind them. */
static void check_ids(const char *name, const sbp_json *text, const sbp_json *expected,
                      const sbp_encoding *got, int64_t more) {
    bool same = got->count == expected->count + more;
    for (int64_t i = 0; same && i < expected->count; i++)
        same = got->ids[i] == expected->items[i].integer;
    if (!same)
        fail_msg("%s: '%s' gives %lld ids, expected %lld, or they differ", name, text->string,
                 (long long)got->count, (long long)expected->count);
}

enum { OFFSETS = 1, DECODED = 2 };

/* One entry of expect.json: [ids, offsets, decoded]. */
static void check(io_fixture *f, const char *name, const sbp_tokenizer *t, const sbp_json *text,
                  const sbp_json *expected, unsigned what, int64_t more) {
    sbp_encoding e = {0};
    sbp_arena *arena = sbp_arena_create();
    assert_ok(f, sbp_tokenizer_encode(t, arena, f->diag, text->string, (size_t)text->count,
                                      SBP_ADD_SPECIAL_TOKENS | SBP_WITH_OFFSETS, &e));
    check_ids(name, text, &expected->items[0], &e, more);
    const sbp_json *offsets = &expected->items[1], *decoded = &expected->items[2];
    for (int64_t i = 0; (what & OFFSETS) && i < e.count; i++)
        if (e.offsets[i][0] != offsets->items[2 * i].integer ||
            e.offsets[i][1] != offsets->items[2 * i + 1].integer)
            fail_msg("%s: '%s': token %lld has offsets %lld, %lld; expected %lld, %lld", name, text->string,
                     (long long)i, (long long)e.offsets[i][0], (long long)e.offsets[i][1],
                     (long long)offsets->items[2 * i].integer, (long long)offsets->items[2 * i + 1].integer);
    sbp_encoding plain = {0};
    assert_ok(f, sbp_tokenizer_encode(t, arena, f->diag, text->string, (size_t)text->count,
                                      SBP_ADD_SPECIAL_TOKENS, &plain));
    assert_true(plain.count == e.count && !plain.offsets);
    if (e.count > 0)
        assert_memory_equal(plain.ids, e.ids, (size_t)e.count * sizeof *e.ids);
    if (what & DECODED) {
        const char *back;
        size_t length;
        assert_ok(f, sbp_tokenizer_decode(t, arena, f->diag, e.ids, e.count, true, &back, &length));
        if (length != (size_t)decoded->count || memcmp(back, decoded->string, length) != 0)
            fail_msg("%s: '%s' is decoded as '%s', expected '%s'", name, text->string, back, decoded->string);
    }
    sbp_arena_destroy(arena);
}

static void check_all(io_fixture *f, const char *name, const sbp_tokenizer *t, const sbp_json *expected,
                      unsigned what, int64_t more) {
    const sbp_json *texts = read_data(f, DATA "texts.json");
    assert_int_equal(expected->count, texts->count);
    for (int64_t i = 0; i < texts->count; i++)
        if (expected->items[i].kind != SBP_JSON_NULL)
            check(f, name, t, &texts->items[i], &expected->items[i], what, more);
}

static void pipelines_of_real_models(void **state) {
    io_fixture *f = *state;
    const sbp_json *expected = read_data(f, DATA "expect.json");
    assert_true(expected->count >= 6);
    for (int64_t i = 0; i < expected->count; i++) {
        char path[100];
        snprintf(path, sizeof path, DATA "%s.json", expected->items[i].key);
        check_all(f, expected->items[i].key, load(f, path), &expected->items[i], OFFSETS | DECODED, 0);
    }
}

/* ---- variants: a base with other components -------------------------------------------------------------
 */

typedef struct variation {
    sbp_arena *arena;
    const sbp_json *base, *row;
    sbp_text text;
} variation;

static void print_object(sbp_text *out, const sbp_json *base, const sbp_json *changes, bool model) {
    sbp_text_add(out, "{");
    for (int64_t i = 0; i < base->count; i++) {
        const sbp_json *item = &base->items[i], *changed = sbp_json_member(changes, item->key);
        sbp_text_add(out, "%s\"%s\":", i ? "," : "", item->key);
        if (!model && strcmp(item->key, "model") == 0)
            print_object(out, item, changed, true);
        else
            sbp_json_add_value(out, changed ? changed : item);
    }
    sbp_text_add(out, "}");
}

static sbp_status vary(void *user) {
    variation *v = user;
    sbp_text_init(&v->text, v->arena);
    print_object(&v->text, v->base, sbp_json_member(v->row, "changes"), false);
    return SBP_OK;
}

static void every_component(void **state) {
    io_fixture *f = *state;
    const sbp_json *rows = read_data(f, DATA "variants.json");
    assert_true(rows->count >= 40);
    for (int64_t i = 0; i < rows->count; i++) {
        const sbp_json *row = &rows->items[i];
        const char *name = sbp_json_member(row, "name")->string;
        char path[100];
        snprintf(path, sizeof path, DATA "%s.json", sbp_json_member(row, "base")->string);
        variation v = {.arena = f->arena, .base = read_data(f, path), .row = row};
        assert_ok(f, sbp_guard(f->arena, f->diag, vary, &v));
        const sbp_tokenizer *t;
        assert_ok(f, sbp_tokenizer_from_json(f->arena, f->diag, name, v.text.data, v.text.length, &t));
        check_all(f, name, t, sbp_json_member(row, "expect"), OFFSETS | DECODED, 0);
    }
}

/* ---- other sources --------------------------------------------------------------------------------------
 */

static void gguf_files_give_the_same(void **state) {
    io_fixture *f = *state;
    const sbp_json *expected = read_data(f, DATA "expect.json");
    static const char *const names[] = {"qwen2", "llama3", "smollm2", "gpt2"};
    for (int i = 0; i < SBP_COUNT(names); i++) {
        char path[100];
        snprintf(path, sizeof path, "tests/data/io/%s.gguf", names[i]);
        const sbp_tokenizer *t = load(f, path);
        /* gpt2.gguf asks for an end-of-sequence token; offsets are not trimmed as in the original. */
        check_all(f, path, t, sbp_json_member(expected, names[i]), DECODED, strcmp(names[i], "gpt2") == 0);
        assert_int_equal(sbp_tokenizer_role(t, SBP_TOKEN_BOS), 0);
        assert_int_equal(sbp_tokenizer_role(t, SBP_TOKEN_EOS), 1);
        assert_true(sbp_tokenizer_is_special(t, 1) && !sbp_tokenizer_is_special(t, 100));
    }
    check_all(f, "spm.gguf", load(f, "tests/data/io/spm.gguf"), read_data(f, "tests/data/io/spm.json"),
              OFFSETS | DECODED, 0);
    check_all(f, "gemma.gguf", load(f, "tests/data/io/gemma.gguf"), read_data(f, "tests/data/io/gemma.json"),
              OFFSETS | DECODED, 0);
    check_all(f, "gemma4.gguf", load(f, "tests/data/io/gemma4.gguf"),
              read_data(f, "tests/data/io/gemma.json"), OFFSETS | DECODED, 0);
    check_all(f, "deepseek.gguf", load(f, "tests/data/io/deepseek.gguf"),
              read_data(f, "tests/data/io/deepseek.json"), DECODED, 0);
}

static void self_contained_text_is_the_same_tokenizer(void **state) {
    io_fixture *f = *state;
    static const char *const paths[] = {DATA "qwen2.json", DATA "llama2.json", DATA "llama3.json",
                                        "tests/data/io/spm.gguf"};
    const sbp_json *expected = read_data(f, DATA "expect.json");
    const sbp_json *entries[] = {sbp_json_member(expected, "qwen2"), sbp_json_member(expected, "llama2"),
                                 sbp_json_member(expected, "llama3"), read_data(f, "tests/data/io/spm.json")};
    for (int i = 0; i < SBP_COUNT(paths); i++) {
        const sbp_tokenizer *first = load(f, paths[i]), *second;
        const char *text, *again;
        size_t length, again_length;
        assert_ok(f, sbp_tokenizer_to_json(first, f->arena, f->diag, &text, &length));
        assert_ok(f, sbp_tokenizer_from_json(f->arena, f->diag, "self", text, length, &second));
        assert_ok(f, sbp_tokenizer_to_json(second, f->arena, f->diag, &again, &again_length));
        assert_int_equal(length, again_length);
        assert_memory_equal(text, again, length);
        check_all(f, paths[i], second, entries[i], OFFSETS | DECODED, 0);
        for (int role = 0; role < 4; role++)
            assert_int_equal(sbp_tokenizer_role(first, (sbp_token_role)role),
                             sbp_tokenizer_role(second, (sbp_token_role)role));
    }
}

/* ---- a directory ----------------------------------------------------------------------------------------
 */

#define ADDED(id, text)                                                                                      \
    "{\"id\":" #id ",\"content\":\"" text                                                                    \
    "\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,\"special\":true}"
#define SMALL(added, parts)                                                                                  \
    "{\"version\":\"1.0\",\"added_tokens\":[" added "]," parts                                               \
    "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,\"<s>\":3,\"</"                         \
    "s>\":4,\"<pad>\":5},\"merges\":[\"a b\"]}}"

static void put_text(io_fixture *f, const char *name, const char *text) {
    if (text)
        io_put(io_path(f, name), text, strlen(text));
    else
        unlink(io_path(f, name));
}

static void special_tokens_come_from_the_files_in_order(void **state) {
    io_fixture *f = *state;
    put_text(f, "tokenizer.json", SMALL(ADDED(3, "<s>"), ""));
    static const struct {
        const char *tokenizer_config, *special_tokens_map, *config;
        int bos, eos, pad;
    } cases[] = {
        {NULL, NULL, NULL, -1, -1, -1},
        {NULL, NULL, "{\"eos_token_id\": 4, \"bos_token_id\": 3, \"pad_token_id\": null}", 3, 4, -1},
        {NULL, NULL, "{\"eos_token_id\": [5, 4], \"pad_token_id\": -1}", -1, 5, -1},
        {"{\"bos_token\": null, \"pad_token\": \"<pad>\"}", NULL,
         "{\"eos_token_id\": 4, \"bos_token_id\": 3}", -1, 4, 5},
        {"{\"eos_token\": {\"content\": \"</s>\", \"lstrip\": false}}",
         "{\"eos_token\": \"<pad>\", \"bos_token\": \"<s>\"}", "{\"eos_token_id\": 3}", 3, 4, -1},
        {"{\"add_bos_token\": true, \"eos_token\": null}", "{\"eos_token\": \"<pad>\"}", NULL, -1, 5, -1},
        {NULL, NULL, "{\"text_config\": {\"eos_token_id\": 4}}", -1, 4, -1},
    };
    for (int i = 0; i < SBP_COUNT(cases); i++) {
        put_text(f, "tokenizer_config.json", cases[i].tokenizer_config);
        put_text(f, "special_tokens_map.json", cases[i].special_tokens_map);
        put_text(f, "config.json", cases[i].config);
        const sbp_tokenizer *t = load(f, f->directory), *again;
        const char *text;
        size_t length;
        assert_ok(f, sbp_tokenizer_to_json(t, f->arena, f->diag, &text, &length));
        assert_ok(f, sbp_tokenizer_from_json(f->arena, f->diag, "self", text, length, &again));
        for (int k = 0; k < 2; k++, t = again) {
            assert_int_equal(sbp_tokenizer_role(t, SBP_TOKEN_BOS), cases[i].bos);
            assert_int_equal(sbp_tokenizer_role(t, SBP_TOKEN_EOS), cases[i].eos);
            assert_int_equal(sbp_tokenizer_role(t, SBP_TOKEN_PAD), cases[i].pad);
        }
    }
    put_text(f, "special_tokens_map.json", NULL);
    put_text(
        f, "tokenizer_config.json",
        "{\"eos_token\": \"</s>\", \"image_token\": \"<pad>\", \"extra_special_tokens\": {\"x_token\": "
        "\"ab\"},"
        " \"added_tokens_decoder\": {\"6\": {\"content\": \"<new>\", \"special\": true, \"rstrip\": true}}}");
    const sbp_tokenizer *t = load(f, f->directory);
    const char *name, *value;
    assert_int_equal(sbp_tokenizer_named_count(t), 3);
    sbp_tokenizer_named_at(t, 2, &name, &value);
    assert_string_equal(name, "x_token");
    assert_string_equal(value, "ab");
    /* Named tokens are matched whole, and new ones follow the vocabulary. */
    sbp_encoding e;
    assert_ok(f, sbp_tokenizer_encode(t, f->arena, f->diag, "ab</s><new>  b", 14, 0, &e));
    static const int32_t ids[] = {2, 4, 6, 1};
    assert_int_equal(e.count, 4);
    assert_memory_equal(e.ids, ids, sizeof ids);
    assert_int_equal(sbp_tokenizer_id(t, "<new>", 5), 6);

    const sbp_tokenizer *none;
    put_text(f, "tokenizer_config.json", "{\"eos_token\": \"<end>\"}");
    assert_fails(f, SBP_INPUT, "the eos_token '<end>' is not in the vocabulary",
                 sbp_tokenizer_load(f->arena, f->diag, f->directory, &none));
    put_text(f, "tokenizer_config.json", "{\"eos_token\":");
    assert_fails(f, SBP_INPUT,
                 "tokenizer_config.json:1:", sbp_tokenizer_load(f->arena, f->diag, f->directory, &none));
    put_text(f, "tokenizer_config.json", NULL);
    put_text(f, "config.json", "{\"eos_token_id\": 77}");
    assert_fails(f, SBP_INPUT, "the id 77 is to be the eos_token",
                 sbp_tokenizer_load(f->arena, f->diag, f->directory, &none));
    put_text(f, "tokenizer.json", NULL);
    assert_fails(f, SBP_IO, "has no tokenizer.json",
                 sbp_tokenizer_load(f->arena, f->diag, f->directory, &none));
}

/* Tokens of a text, with | between them. */
static const char *tokens_of(io_fixture *f, const sbp_tokenizer *t, const char *text) {
    sbp_encoding e;
    sbp_text out;
    assert_ok(f, sbp_tokenizer_encode(t, f->arena, f->diag, text, strlen(text), SBP_ADD_SPECIAL_TOKENS, &e));
    sbp_text_init(&out, f->arena);
    for (int64_t i = 0; i < e.count; i++)
        sbp_text_add(&out, "%s%s", i ? "|" : "", sbp_tokenizer_token(t, e.ids[i], NULL));
    return out.data;
}

/* What AutoTokenizer of transformers 5.23 gives for the same files. */
static void the_class_llama_brings_its_own_pipeline(void **state) {
    io_fixture *f = *state;
    static const struct {
        const char *settings, *config, *space, *end, *decoded;
    } cases[] = {
        {"\"tokenizer_class\": \"LlamaTokenizer\"", "llama", "<s>|▁|a▁|b", "<s>|▁|a|</s>|b", "a</s>b"},
        {"\"tokenizer_class\": \"LlamaTokenizerFast\", \"legacy\": null", "llama", "<s>|▁|a▁|b",
         "<s>|▁|a|</s>|b", "a</s>b"},
        {"\"tokenizer_class\": \"LlamaTokenizer\", \"legacy\": true", "llama", "<s>|▁|a▁|b",
         "<s>|▁|a|</s>|▁|b", "a</s> b"},
        {"\"tokenizer_class\": \"LlamaTokenizer\", \"add_prefix_space\": false", "llama", "<s>|▁|a▁|b",
         "<s>|a|</s>|b", "a</s>b"},
        {"\"tokenizer_class\": \"LlamaTokenizer\", \"added_tokens_decoder\": {\"1\": {\"content\": \"<s>\", "
         "\"special\": true}}",
         "llama", "<s>|▁|a▁|b", "<s>|▁|a|</s>|b", "a</s>b"},
        {"\"tokenizer_class\": \"LlamaTokenizer\"", "mistral", "<s>|▁▁|a▁|b", "<s>|▁|a|</s>|▁|b", "a</s> b"},
        {"\"tokenizer_class\": \"PreTrainedTokenizerFast\"", "llama", "<s>|▁▁|a▁|b", "<s>|▁|a|</s>|▁|b",
         "a</s> b"},
    };
    const char *file;
    size_t length;
    assert_ok(f, sbp_file_read(f->arena, f->diag, DATA "llama2.json", &file, &length));
    put_text(f, "tokenizer.json", file);
    for (int i = 0; i < SBP_COUNT(cases); i++) {
        put_text(f, "tokenizer_config.json",
                 sbp_arena_printf(f->arena, "{\"bos_token\": \"<s>\", \"eos_token\": \"</s>\", %s}",
                                  cases[i].settings));
        put_text(f, "config.json", sbp_arena_printf(f->arena, "{\"model_type\": \"%s\"}", cases[i].config));
        const sbp_tokenizer *t = load(f, f->directory), *again;
        const char *text, *back;
        assert_ok(f, sbp_tokenizer_to_json(t, f->arena, f->diag, &text, &length));
        assert_ok(f, sbp_tokenizer_from_json(f->arena, f->diag, "self", text, length, &again));
        for (int k = 0; k < 2; k++, t = again) {
            sbp_encoding e;
            assert_string_equal(tokens_of(f, t, " a b"), cases[i].space);
            assert_string_equal(tokens_of(f, t, "a</s>b"), cases[i].end);
            assert_ok(f, sbp_tokenizer_encode(t, f->arena, f->diag, "a</s>b", 6, 0, &e));
            assert_ok(f, sbp_tokenizer_decode(t, f->arena, f->diag, e.ids, e.count, false, &back, &length));
            assert_string_equal(back, cases[i].decoded);
        }
    }
    /* A byte-level file stays what it is. */
    assert_ok(f, sbp_file_read(f->arena, f->diag, DATA "llama3.json", &file, &length));
    put_text(f, "tokenizer.json", file);
    put_text(f, "tokenizer_config.json", "{\"tokenizer_class\": \"LlamaTokenizer\"}");
    put_text(f, "config.json", NULL);
    assert_string_equal(tokens_of(f, load(f, f->directory), " a b"),
                        tokens_of(f, load(f, DATA "llama3.json"), " a b"));
}

/* ---- errors -----------------------------------------------------------------------------------------------
 */

static void names_what_it_does_not_support(void **state) {
    io_fixture *f = *state;
    static const struct {
        const char *text, *message;
    } cases[] = {
        {SMALL("", "\"normalizer\":{\"type\":\"Cursive\"},"),
         "test: normalizer: the normalizer 'Cursive' is not supported"},
        {SMALL("", "\"normalizer\":{\"type\":\"Precompiled\"},"), "expected a string 'precompiled_charsmap'"},
        {SMALL("", "\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"AAAA\"},"),
         "the charsmap has 3 bytes"},
        {SMALL("",
               "\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"BAAAAAAAAAD//w==\"},"),
         "byte 0 of the charsmap's strings is not UTF-8"},
        {SMALL("", "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{\"type\":"
                   "\"NFX\"}]},"),
         "normalizer.normalizers[1]: the normalizer 'NFX'"},
        {SMALL("", "\"pre_tokenizer\":{\"type\":\"UnicodeScripts\"},"), "the pre_tokenizer 'UnicodeScripts'"},
        {SMALL("", "\"pre_tokenizer\":{\"type\":\"FixedLength\",\"length\":0},"),
         "length 0 is not in 1 .. 65535"},
        {SMALL("", "\"post_processor\":{\"type\":\"RobertaProcessing\"},"), "the field 'cls' is missing"},
        {SMALL("", "\"decoder\":{\"type\":\"CTC\"},"), "the decoder 'CTC'"},
        {SMALL("", "\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[a&&b]\"},\"behavior\":"
                   "\"Isolated\",\"invert\":false},"),
         "pre_tokenizer.pattern: the regular expression '[a&&b]' uses an intersection of classes"},
        {SMALL("", "\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[a[b]]\"},\"behavior\":"
                   "\"Isolated\",\"invert\":false},"),
         "a class inside a class"},
        {SMALL("", "\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(?<n>a)\"},\"behavior\":"
                   "\"Isolated\",\"invert\":false},"),
         "a group of that kind"},
        {SMALL("", "\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a{2}+\"},\"behavior\":"
                   "\"Isolated\",\"invert\":false},"),
         "an interval followed by +"},
        {SMALL("", "\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\\\\p{Klingon}\"},"
                   "\"behavior\":\"Isolated\",\"invert\":false},"),
         "is not supported: unknown property"},
        {SMALL("", "\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(\"},\"behavior\":"
                   "\"Isolated\",\"invert\":false},"),
         "is not supported: missing closing parenthesis"},
        {SMALL("", "\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"String\":\"\"},\"behavior\":"
                   "\"Isolated\",\"invert\":false},"),
         "an empty pattern"},
        {SMALL("", "\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"String\":\"a\"},\"behavior\":"
                   "\"Sideways\",\"invert\":false},"),
         "the behavior 'Sideways'"},
        {SMALL("", "\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"ab\"},"),
         "'replacement' to be one character, found 'ab'"},
        {SMALL("", "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{"
                   "\"id\":\"x\"}}],\"special_tokens\":{}},"),
         "the field 'x' is missing"},
        {SMALL("",
               "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[],\"special_tokens\":{}},"),
         "the sequence A once"},
        {SMALL("", "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{"
                   "\"id\":\"x\"}},{\"Sequence\":{\"id\":\"A\"}}],"
                   "\"special_tokens\":{\"x\":{\"ids\":[99]}}},"),
         "the post_processor adds the id 99, which has no token"},
        {SMALL(ADDED(9, "<new>"), ""), "added token '<new>' has id 9, expected 6"},
        {"{\"model\":{\"type\":\"Markov\",\"vocab\":[]}}", "the model type 'Markov'"},
        {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[]}}", "0 tokens; 1 to"},
        {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\"]]}}", "expected a token and its score"},
        {"{\"model\":{\"type\":\"Unigram\",\"unk_id\":1,\"vocab\":[[\"a\",0]]}}",
         "the id 1 is not in 0 .. 0"},
        {"{\"model\":{\"type\":\"WordPiece\",\"vocab\":{\"a\":0}}}", "the field 'unk_token' is missing"},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[],\"dropout\":0.1}}", "dropout 0.1 is not supported"},
        {"{\"model\":{\"vocab\":{\"a\":0,\"b\":1},\"merges\":[\"a "
         "b\"],\"continuing_subword_prefix\":\"##\"}}",
         "the token 'b' does not begin with the prefix '##'"},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a b\"]}}",
         "model.merges[0]: the token 'b' is not in the vocabulary"},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[[\"a\",\"a\"]]}}",
         "model.merges[0]: the token 'aa' is not in the vocabulary"},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a  a\"]}}", "two tokens with a space between"},
        {"{\"model\":{\"vocab\":{\"a\":0,\"b\":0},\"merges\":[]}}",
         "model.vocab.b: the id 0 belongs to 'a' already"},
        {"{\"model\":{\"vocab\":{\"a\":-1},\"merges\":[]}}", "the id -1 is not in 0 .."},
        {"{\"model\":{\"vocab\":{\"a\":1000000000},\"merges\":[]}}", "the id 1000000000 is not in 0 .."},
        {"{\"version\":\"2.0\",\"model\":{}}", "tokenizer version '2.0'"},
        {"{}", "the field 'model' is missing"},
        {"{\"model\":", "test:1:"},
    };
    for (int i = 0; i < SBP_COUNT(cases); i++) {
        const sbp_tokenizer *t;
        assert_fails(
            f, SBP_INPUT, cases[i].message,
            sbp_tokenizer_from_json(f->arena, f->diag, "test", cases[i].text, strlen(cases[i].text), &t));
    }
}

static void invalid_text_is_replaced(void **state) {
    io_fixture *f = *state;
    const sbp_tokenizer *t = load(f, DATA "qwen2.json");
    static const char text[] = "a\xff\xf0\x9f\x98 \xc3\xa9\xed\xa0\x80z\xe2\x82";
    static const char replaced[] =
        "a\xef\xbf\xbd\xef\xbf\xbd \xc3\xa9\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbdz\xef\xbf\xbd";
    sbp_encoding a, b;
    assert_ok(f, sbp_tokenizer_encode(t, f->arena, f->diag, text, sizeof text - 1, SBP_WITH_OFFSETS, &a));
    assert_ok(f, sbp_tokenizer_encode(t, f->arena, f->diag, replaced, sizeof replaced - 1, 0, &b));
    assert_int_equal(a.count, b.count);
    assert_memory_equal(a.ids, b.ids, (size_t)a.count * sizeof *a.ids);
    assert_int_equal(a.offsets[a.count - 1][1], sizeof text - 1); /* in the text as given */
    assert_int_equal(a.offsets[a.count - 1][0], sizeof text - 3);
    for (int64_t i = 0; i < a.count; i++)
        assert_true(a.offsets[i][0] < a.offsets[i][1] && a.offsets[i][1] < (int64_t)sizeof text);
    const char *back;
    size_t length;
    assert_ok(f, sbp_tokenizer_decode(t, f->arena, f->diag, a.ids, a.count, false, &back, &length));
    assert_string_equal(back, replaced);
    static const int32_t odd[] = {5, 100000, 2147483647}, negative[] = {5, -1};
    assert_ok(f, sbp_tokenizer_decode(t, f->arena, f->diag, odd, 3, false, &back, &length));
    assert_int_equal(length, 1);
    assert_fails(f, SBP_INPUT, "cannot decode the id -1 at position 1",
                 sbp_tokenizer_decode(t, f->arena, f->diag, negative, 2, false, &back, &length));
    assert_null(sbp_tokenizer_token(t, -1, NULL));
    assert_null(sbp_tokenizer_token(t, 100000, NULL));
    assert_int_equal(sbp_tokenizer_id(t, "no such token", 13), -1);
}

/* How many pieces a pre-tokenizer makes of a text without a token: one unk each. */
static int64_t pieces_of(io_fixture *f, const char *pre_tokenizer, const char *text) {
    const sbp_tokenizer *t;
    sbp_encoding e;
    const char *json = sbp_arena_printf(f->arena,
                                        "{\"pre_tokenizer\":%s,\"model\":{\"vocab\":{\"u\":0},\"merges\":[],"
                                        "\"unk_token\":\"u\",\"fuse_unk\":true}}",
                                        pre_tokenizer);
    assert_ok(f, sbp_tokenizer_from_json(f->arena, f->diag, "test", json, strlen(json), &t));
    assert_ok(f, sbp_tokenizer_encode(t, f->arena, f->diag, text, strlen(text), 0, &e));
    return e.count;
}

/* Hugging Face's components were built from tables of different years. */
static void every_component_has_its_own_unicode(void **state) {
    io_fixture *f = *state;
    static const char digits[] = "{\"type\":\"Digits\",\"individual_digits\":true}";
    static const char punctuation[] = "{\"type\":\"Punctuation\",\"behavior\":\"Isolated\"}";
    assert_int_equal(pieces_of(f, digits, "A\u0669B"), 3);
    assert_int_equal(pieces_of(f, digits, "A\U00011de5B"), 3); /* of Unicode 17 */
    assert_int_equal(pieces_of(f, digits, "A\u2e43B"), 1);
    assert_int_equal(pieces_of(f, punctuation, "A\u2e42B"), 3);
    assert_int_equal(pieces_of(f, punctuation, "A\u2e43B"), 1); /* punctuation since Unicode 9 */
    assert_int_equal(pieces_of(f, punctuation, "A\u166dB"), 3); /* no longer since Unicode 12 */
    /* A pair that composes since Unicode 13 stays a pair in NFC. */
    static const char pair[] = "\U00011935\U00011930";
    const sbp_tokenizer *t = load(f, DATA "qwen2.json");
    sbp_encoding e;
    const char *back;
    size_t length;
    assert_ok(f, sbp_tokenizer_encode(t, f->arena, f->diag, pair, sizeof pair - 1, 0, &e));
    assert_ok(f, sbp_tokenizer_decode(t, f->arena, f->diag, e.ids, e.count, false, &back, &length));
    assert_string_equal(back, pair);
}

/* In PCRE2 + behind an interval is possessive, in Oniguruma it repeats. */
static void intervals_can_be_repeated(void **state) {
    io_fixture *f = *state;
#define SPLIT(regex)                                                                                         \
    "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" regex "\"},\"behavior\":\"Isolated\",\"invert\":false}"
    assert_int_equal(pieces_of(f, SPLIT("\\\\d{1,3}"), "A1234567B"), 5);
    assert_int_equal(pieces_of(f, SPLIT("\\\\d{1,3}+"), "A1234567B"), 3);
    assert_int_equal(pieces_of(f, SPLIT("A{,2}+B"), "AAAAAB1"), 2);
    assert_int_equal(pieces_of(f, SPLIT("A{2,}+"), "BAAAAAB"), 3);
}

/* Byte-level tokenizers name one that they never need. */
static void unk_may_be_missing_until_it_is_needed(void **state) {
    io_fixture *f = *state;
    static const char json[] = "{\"model\":{\"vocab\":{\"a\":0},\"merges\":[],\"unk_token\":\"x\"}}";
    const sbp_tokenizer *t;
    sbp_encoding e;
    assert_ok(f, sbp_tokenizer_from_json(f->arena, f->diag, "test", json, sizeof json - 1, &t));
    assert_ok(f, sbp_tokenizer_encode(t, f->arena, f->diag, "aa", 2, 0, &e));
    assert_int_equal(e.count, 2);
    assert_fails(f, SBP_INPUT, "test: 'b' needs the unk_token 'x', which is not in the vocabulary",
                 sbp_tokenizer_encode(t, f->arena, f->diag, "ab", 2, 0, &e));
}

/* Quadratic time would keep these for minutes. */
static void long_words_take_no_quadratic_time(void **state) {
    io_fixture *f = *state;
    enum { N = 300000 };
    char *text = malloc(N);
    static const char *const names[] = {DATA "qwen2.json", DATA "llama2.json"};
    for (int i = 0; i < SBP_COUNT(names); i++) {
        const sbp_tokenizer *t = load(f, names[i]);
        for (int kind = 0; kind < 4; kind++) {
            uint64_t random = 5;
            for (int k = 0; k < N; k++)
                text[k] = kind == 0   ? 'x'
                          : kind == 1 ? (char)('a' + io_random(&random) % 26)
                          : kind == 2 ? ' '
                                      : "\xcc\x81\xcc\xa3"[k % 4];
            sbp_encoding e;
            sbp_arena *arena = sbp_arena_create();
            assert_ok(f, sbp_tokenizer_encode(t, arena, f->diag, text, N, SBP_WITH_OFFSETS, &e));
            assert_true(e.count > 0 && e.offsets[e.count - 1][1] == N);
            sbp_arena_destroy(arena);
        }
    }
    free(text);
}

static sbp_status load_and_encode(io_fixture *f, void *user) {
    const sbp_tokenizer *t;
    sbp_encoding e;
    const char *text;
    size_t length;
    SBP_TRY(sbp_tokenizer_load(f->arena, f->diag, user, &t));
    static const char sample[] = "<s>One day, e\xcc\x81l\xc3\xa9 didn't 123   \n";
    SBP_TRY(sbp_tokenizer_encode(t, f->arena, f->diag, sample, sizeof sample - 1, 3, &e));
    SBP_TRY(sbp_tokenizer_decode(t, f->arena, f->diag, e.ids, e.count, true, &text, &length));
    return sbp_tokenizer_to_json(t, f->arena, f->diag, &text, &length);
}

static void survives_failing_allocations(void **state) {
    io_fixture *f = *state;
    assert_true(io_fail_allocations(f, load_and_encode, (char[]){DATA "qwen2.json"}) > 3);
    assert_true(io_fail_allocations(f, load_and_encode, (char[]){DATA "gemma3.json"}) > 3);
    assert_true(io_fail_allocations(f, load_and_encode, (char[]){"tests/data/io/spm.gguf"}) > 3);
}

static void survives_flipped_bytes(void **state) {
    io_fixture *f = *state;
    static const char *const paths[] = {DATA "llama3.json", DATA "gemma3.json", "tests/data/io/spm.gguf",
                                        "tests/data/io/smollm2.gguf"};
    uint64_t random = 11;
    for (int p = 0; p < SBP_COUNT(paths); p++) {
        const char *data;
        size_t length;
        sbp_arena *keep = sbp_arena_create();
        assert_ok(f, sbp_file_read(keep, f->diag, paths[p], &data, &length));
        char *copy = malloc(length);
        const char *path = io_path(f, p < 2 ? "t.json" : "t.gguf");
        for (int round = 0; round < 150; round++) {
            io_renew(f);
            memcpy(copy, data, length);
            for (uint32_t k = 0, n = 1 + io_random(&random) % 3; k < n; k++)
                copy[io_random(&random) % (round % 2 ? length : 2000)] =
                    (char)(unsigned char)io_random(&random);
            io_put(path, copy, length);
            sbp_status status = load_and_encode(f, (void *)(uintptr_t)path);
            if (status != SBP_OK && status != SBP_INPUT)
                fail_msg("%s: %d %s", paths[p], status, sbp_diag_text(f->diag, SBP_ERROR));
        }
        free(copy);
        sbp_arena_destroy(keep);
    }
}

typedef struct job {
    const sbp_tokenizer *t;
    const sbp_json *texts, *expected;
    int wrong;
} job;

static void *encode_in_a_thread(void *user) {
    job *j = user;
    for (int round = 0; round < 3; round++)
        for (int64_t i = 0; i < j->texts->count; i++) {
            sbp_arena *arena = sbp_arena_create();
            sbp_encoding e = {0};
            const sbp_json *text = &j->texts->items[i], *ids = &j->expected->items[i].items[0];
            j->wrong +=
                sbp_tokenizer_encode(j->t, arena, NULL, text->string, (size_t)text->count, 3, &e) != SBP_OK;
            j->wrong += e.count != ids->count;
            for (int64_t k = 0; k < e.count && e.count == ids->count; k++)
                j->wrong += e.ids[k] != ids->items[k].integer;
            sbp_arena_destroy(arena);
        }
    return NULL;
}

static void threads_share_a_tokenizer(void **state) {
    io_fixture *f = *state;
    job jobs[4];
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) {
        jobs[i] = (job){load(f, DATA "qwen2.json"), read_data(f, DATA "texts.json"),
                        sbp_json_member(read_data(f, DATA "expect.json"), "qwen2"), 0};
        jobs[i].t = jobs[0].t;
        assert_int_equal(pthread_create(&threads[i], NULL, encode_in_a_thread, &jobs[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(jobs[i].wrong, 0);
    }
}

/* ---- real tokenizers
 * ---------------------------------------------------------------------------------------- */

static void skip_without(const char *path) {
    if (sbp_file_exists(path))
        return;
    print_message("skipped: %s is not there\n", path);
    skip();
}

/* Unpacks SHARED tokenizers/NAME into the test's directory. */
static void unpack(io_fixture *f, const char *name) {
    static const char *const files[] = {"tokenizer.json", "tokenizer_config.json"};
    for (int i = 0; i < SBP_COUNT(files); i++) {
        char command[300];
        snprintf(command, sizeof command, "xz -dc " SHARED "tokenizers/%s/%s.xz > %s/%s", name, files[i],
                 f->directory, files[i]);
        int rc = system(command);
        if (WIFEXITED(rc) && WEXITSTATUS(rc) == 127) {
            print_message("skipped: xz is not installed\n");
            skip();
        }
        assert_int_equal(rc, 0);
    }
}

static void check_real(io_fixture *f, const char *name, const sbp_tokenizer *t) {
    const sbp_json *real = read_data(f, DATA "real.json"), *texts = sbp_json_member(real, "texts");
    const sbp_json *expected = sbp_json_member(real, name);
    for (int64_t i = 0; i < texts->count; i++) {
        sbp_encoding e;
        assert_ok(f, sbp_tokenizer_encode(t, f->arena, f->diag, texts->items[i].string,
                                          (size_t)texts->items[i].count, SBP_ADD_SPECIAL_TOKENS, &e));
        check_ids(name, &texts->items[i], &expected->items[i], &e, 0);
    }
}

static void real_gemma3(void **state) {
    io_fixture *f = *state;
    skip_without(SHARED "tokenizers/gemma3/tokenizer.json.xz");
    unpack(f, "gemma3");
    const sbp_tokenizer *t = load(f, f->directory);
    assert_int_equal(sbp_tokenizer_role(t, SBP_TOKEN_BOS), 2);
    assert_int_equal(sbp_tokenizer_role(t, SBP_TOKEN_EOS), 106);
    check_real(f, "gemma3", t);
}

/* llama.cpp's vectors: texts with a separator line, ids a line. */
static void real_qwen3(void **state) {
    io_fixture *f = *state;
    skip_without(SHARED "tokenizers/qwen3/tokenizer.json.xz");
    unpack(f, "qwen3");
    const sbp_tokenizer *t = load(f, f->directory);
    assert_int_equal(sbp_tokenizer_role(t, SBP_TOKEN_BOS), -1);
    assert_int_equal(sbp_tokenizer_role(t, SBP_TOKEN_EOS), 151645);
    check_real(f, "qwen3", t);
    const char *texts, *ids;
    size_t texts_length, ids_length;
    assert_ok(f, sbp_file_read(f->arena, f->diag, SHARED "tokenizers/vectors/ggml-vocab-qwen2.gguf.inp",
                               &texts, &texts_length));
    assert_ok(f, sbp_file_read(f->arena, f->diag, SHARED "tokenizers/vectors/ggml-vocab-qwen2.gguf.out", &ids,
                               &ids_length));
    static const char separator[] = "\n__ggml_vocab_test__\n";
    int count = 0;
    for (const char *at = texts; at; count++) {
        const char *end = strstr(at, separator), *line_end = strchr(ids, '\n');
        size_t length = end ? (size_t)(end - at) : strlen(at);
        sbp_encoding e;
        assert_ok(f, sbp_tokenizer_encode(t, f->arena, f->diag, at, length, 0, &e));
        for (int64_t i = 0; i < e.count; i++) {
            char *next;
            long id = strtol(ids, &next, 10);
            if (next > (line_end ? line_end : ids + strlen(ids)) || id != e.ids[i])
                fail_msg("text %d, token %lld: %d, expected %ld", count, (long long)i, e.ids[i], id);
            ids = next;
        }
        assert_int_equal(strspn(ids, " "),
                         line_end ? (size_t)(line_end - ids) : strlen(ids)); /* all were compared */
        ids = line_end ? line_end + 1 : ids;
        at = end ? end + strlen(separator) : NULL;
    }
    assert_true(count > 40);
}

static void real_stories260k(void **state) {
    io_fixture *f = *state;
    skip_without(SHARED "models/stories260K/tokenizer.json");
    const sbp_tokenizer *sources[] = {load(f, SHARED "models/stories260K"),
                                      load(f, SHARED "models/stories260K/stories260Ktok512.gguf")};
    for (int s = 0; s < 2; s++) {
        check_real(f, "stories260K", sources[s]);
        assert_int_equal(sbp_tokenizer_role(sources[s], SBP_TOKEN_EOS), 2);
        for (int k = 1; k <= 2; k++) {
            char path[100];
            const char *text;
            size_t length;
            snprintf(path, sizeof path, SHARED "models/stories260K/text%d.txt", k);
            assert_ok(f, sbp_file_read(f->arena, f->diag, path, &text, &length));
            snprintf(path, sizeof path, SHARED "models/stories260K/oracle%d.json", k);
            const sbp_json *tokens = sbp_json_member(read_data(f, path), "tokens");
            sbp_encoding e;
            assert_ok(f, sbp_tokenizer_encode(sources[s], f->arena, f->diag, text, length,
                                              SBP_ADD_SPECIAL_TOKENS, &e));
            check_ids(path, &(sbp_json){.string = text}, tokens, &e, 0);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(pipelines_of_real_models, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(every_component, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(gguf_files_give_the_same, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(self_contained_text_is_the_same_tokenizer, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(special_tokens_come_from_the_files_in_order, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(the_class_llama_brings_its_own_pipeline, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(names_what_it_does_not_support, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(invalid_text_is_replaced, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(every_component_has_its_own_unicode, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(intervals_can_be_repeated, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(unk_may_be_missing_until_it_is_needed, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(long_words_take_no_quadratic_time, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(survives_failing_allocations, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(survives_flipped_bytes, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(threads_share_a_tokenizer, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(real_gemma3, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(real_qwen3, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(real_stories260k, io_setup, io_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
