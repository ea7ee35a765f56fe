/* Files and JSON: positions and paths in messages, atomic writing, failing allocations. */
#include "tests/unit/io_testing.h"

#include "ir/base/json_write.h"

#include <math.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

static const sbp_json *parse(io_fixture *f, const char *text, unsigned flags) {
    const sbp_json *root = NULL;
    assert_ok(f, sbp_json_parse(f->arena, f->diag, "a.json", text, strlen(text), flags, &root));
    return root;
}

static void reads_values(void **state) {
    io_fixture *f = *state;
    const sbp_json *root =
        parse(f,
              "{\"s\": \"é\\u0000x\", \"i\": -9007199254740993, \"d\": 1e-5, \"b\": true, \"n\": null,"
              " \"a\": [1, [2.5]], \"o\": {\"k\": \"v\"}}",
              0);
    int64_t i = 0;
    double d = 0;
    bool b = false;
    const sbp_json *a, *o, *s = sbp_json_member(root, "s");
    const char *v;
    assert_int_equal(s->count, 4);
    assert_memory_equal(s->string, "é\0x", 5);
    assert_ok(f, sbp_json_get_i64(f->diag, root, "i", SBP_JSON_REQUIRED, &i));
    assert_true(i == -9007199254740993);
    assert_ok(f, sbp_json_get_double(f->diag, root, "d", SBP_JSON_REQUIRED, &d));
    assert_true(d == 1e-5);
    assert_ok(f, sbp_json_get_double(f->diag, root, "i", SBP_JSON_REQUIRED, &d));
    assert_ok(f, sbp_json_get_bool(f->diag, root, "b", SBP_JSON_REQUIRED, &b));
    assert_true(b);
    assert_ok(f, sbp_json_get_array(f->diag, root, "a", SBP_JSON_REQUIRED, &a));
    assert_ok(f, sbp_json_get_object(f->diag, root, "o", SBP_JSON_REQUIRED, &o));
    assert_ok(f, sbp_json_get_string(f->diag, o, "k", SBP_JSON_REQUIRED, &v));
    assert_string_equal(v, "v");
    assert_fails(f, SBP_INPUT, "a.json: s: the string contains a NUL", sbp_json_as_string(f->diag, s, &v));
    assert_fails(f, SBP_INPUT, "a.json: d: expected an integer, found 1e-05",
                 sbp_json_get_i64(f->diag, root, "d", SBP_JSON_REQUIRED, &i));
    assert_fails(f, SBP_INPUT, "a.json: a[1][0]: expected a string, found 2.5",
                 sbp_json_as_string(f->diag, &a->items[1].items[0], &v));
    assert_fails(f, SBP_INPUT, "a.json: o.k: expected a number, found the string 'v'",
                 sbp_json_get_double(f->diag, o, "k", SBP_JSON_OPTIONAL, &d));
    assert_fails(f, SBP_INPUT, "a.json: o: the field 'x' is missing",
                 sbp_json_get_bool(f->diag, o, "x", SBP_JSON_REQUIRED, &b));
    assert_fails(f, SBP_INPUT, "a.json: n: expected true or false, found null",
                 sbp_json_get_bool(f->diag, root, "n", SBP_JSON_OPTIONAL, &b));
    assert_fails(f, SBP_INPUT, "a.json: expected an array, found an object",
                 sbp_json_as_array(f->diag, root, &a));
    b = true;
    assert_ok(f, sbp_json_get_bool(f->diag, root, "n", SBP_JSON_NULLABLE, &b));
    assert_ok(f, sbp_json_get_bool(f->diag, root, "none", SBP_JSON_OPTIONAL, &b));
    assert_true(b); /* the default stays */
}

/* As transformers writes in tokenizer_config.json: "model_max_length": int(1e30). */
static void integers_beyond_64_bits_are_real_numbers(void **state) {
    io_fixture *f = *state;
    static const char text[] = "{\"a\": 1000000000000000019884624838656, \"b\": [9223372036854775807, "
                               "9223372036854775808, -18446744073709551615, 0.12345678901234567890123], "
                               "\"\\\"1000000000000000019884624838656\": \"99999999999999999999\"}";
    const sbp_json *root = parse(f, text, 0), *list = sbp_json_member(root, "b");
    double d;
    int64_t i;
    assert_ok(f, sbp_json_get_double(f->diag, root, "a", SBP_JSON_REQUIRED, &d));
    assert_true(d == 1e30);
    assert_ok(f, sbp_json_as_i64(f->diag, &list->items[0], &i));
    assert_true(i == INT64_MAX);
    static const double want[] = {9223372036854775807.0, 9223372036854775808.0, -18446744073709551615.0,
                                  0.12345678901234567};
    for (int k = 0; k < SBP_COUNT(want); k++) {
        assert_ok(f, sbp_json_as_double(f->diag, &list->items[k], &d));
        assert_true(fabs(d - want[k]) <= fabs(want[k]) * 1e-14);
    }
    assert_string_equal(root->items[2].key, "\"1000000000000000019884624838656");
    assert_string_equal(root->items[2].string, "99999999999999999999");
    assert_fails(f, SBP_INPUT, "a.json: a: expected an integer, found 1e+30",
                 sbp_json_get_i64(f->diag, root, "a", SBP_JSON_REQUIRED, &i));
    const sbp_json *none;
    static const char wrong[] = "[123456789012345678901234567890,\n 1 2]";
    assert_fails(f, SBP_INPUT,
                 "a.json:2:", sbp_json_parse(f->arena, f->diag, "a.json", wrong, sizeof wrong - 1, 0, &none));
}

static void finds_members_of_large_objects(void **state) {
    io_fixture *f = *state;
    char text[20000] = "{", key[16];
    for (int i = 0; i < 1000; i++)
        sprintf(text + strlen(text), "%s\"k%d\":%d", i ? "," : "", i, i);
    strcat(text, "}");
    const sbp_json *root = parse(f, text, 0);
    for (int i = 0; i < 1000; i++) {
        sprintf(key, "k%d", i);
        assert_int_equal(sbp_json_member(root, key)->integer, i);
    }
    assert_null(sbp_json_member(root, "k1000"));
}

static void says_where_it_is_wrong(void **state) {
    io_fixture *f = *state;
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"{\"a\": 1,\n \"b\": }", "a.json:2:"},
        {"", "a.json:1:"},
        {"{\"a\":1,\"a\":2}", "duplicate"},
        {"[1e400]", "a.json:1:"},
        {"[NaN]", "a.json:1:"},
        {"[\"\xff\"]", "a.json:1:"},
        {"[\"\\ud800\"]", "a.json:1:"},
        {"[1] x", "a.json:1:"},
        {"// no\n[1]", "a.json:1:"}, /* without the flag */
    };
    const sbp_json *root;
    for (int i = 0; i < SBP_COUNT(cases); i++)
        assert_fails(
            f, SBP_INPUT, cases[i].message,
            sbp_json_parse(f->arena, f->diag, "a.json", cases[i].text, strlen(cases[i].text), 0, &root));
    char deep[6000];
    memset(deep, '[', sizeof deep);
    assert_fails(f, SBP_INPUT, "maximum parsing depth",
                 sbp_json_parse(f->arena, f->diag, "a.json", deep, sizeof deep, 0, &root));
    static const char commented[] = "// first\n{\"url\": \"http://x\",\n  // more \"text\n\"a\": 1 }\n//";
    root = parse(f, commented, SBP_JSON_COMMENTS);
    assert_string_equal(sbp_json_member(root, "url")->string, "http://x");
    assert_fails(f, SBP_INPUT, "a.json:3:1",
                 sbp_json_parse(f->arena, f->diag, "a.json", "// x\n{\n1}", 9, SBP_JSON_COMMENTS, &root));
}

typedef struct printing {
    sbp_arena *arena;
    const sbp_json *root;
    sbp_text text;
} printing;

static sbp_status print(void *user) {
    printing *p = user;
    sbp_text_init(&p->text, p->arena);
    sbp_json_add_value(&p->text, p->root);
    return SBP_OK;
}

static void writes_what_it_reads(void **state) {
    io_fixture *f = *state;
    static const char text[] =
        "{\"a\\\"\\\\\":[1,-2.5,1.0,1e+30,true,false,null,\"\\u0001\\n\xc3\xa9\\u0000\"],\"b\":{}}";
    printing p = {.arena = f->arena, .root = parse(f, text, 0)};
    assert_ok(f, sbp_guard(f->arena, f->diag, print, &p));
    assert_string_equal(p.text.data, text);
}

static void files_come_back(void **state) {
    io_fixture *f = *state;
    const char *data;
    size_t length;
    const char *path = io_path(f, "x");
    char *large = malloc(300000);
    memset(large, 'x', 300000);
    assert_ok(f, sbp_file_write(f->diag, path, large, 300000));
    assert_ok(f, sbp_file_read(f->arena, f->diag, path, &data, &length));
    assert_int_equal(length, 300000);
    assert_memory_equal(data, large, 300000);
    free(large);
    assert_ok(f, sbp_file_write(f->diag, path, "new", 3)); /* replaces */
    assert_ok(f, sbp_file_read(f->arena, f->diag, path, &data, &length));
    assert_string_equal(data, "new");
    assert_ok(f, sbp_file_write(f->diag, path, "", 0));
    assert_ok(f, sbp_file_read(f->arena, f->diag, path, &data, &length));
    assert_int_equal(length, 0);
    assert_ok(f, sbp_file_read(f->arena, f->diag, "/proc/self/status", &data, &length)); /* no size */
    assert_true(length > 100);
    assert_int_equal(io_count_files(f), 1);
}

static void missing_files_are_io_errors(void **state) {
    io_fixture *f = *state;
    const char *data;
    size_t length;
    const sbp_json *root;
    assert_fails(f, SBP_IO, "cannot open '/nowhere/x': No such file",
                 sbp_file_read(f->arena, f->diag, "/nowhere/x", &data, &length));
    assert_fails(f, SBP_IO, "is a directory", sbp_file_read(f->arena, f->diag, f->directory, &data, &length));
    assert_fails(f, SBP_IO, "cannot write '/nowhere/x': No such file",
                 sbp_file_write(f->diag, "/nowhere/x", "a", 1));
    assert_fails(f, SBP_IO, "No such file", sbp_json_read(f->arena, f->diag, "/nowhere/x", 0, &root));
    assert_fails(f, SBP_IO, "No space left", sbp_file_write(f->diag, "/dev/full", "a", 1));
    assert_ok(f, sbp_file_write(f->diag, "/dev/null", "a", 1)); /* written, not replaced */
    struct stat info;
    assert_int_equal(stat("/dev/null", &info), 0);
    assert_true(S_ISCHR(info.st_mode));
}

static void a_failed_write_leaves_the_old_file(void **state) {
    io_fixture *f = *state;
    const char *data, *path = io_path(f, "x");
    size_t length;
    assert_ok(f, sbp_file_write(f->diag, path, "old", 3));
    struct rlimit old, small = {1000, RLIM_INFINITY};
    getrlimit(RLIMIT_FSIZE, &old);
    small.rlim_max = old.rlim_max;
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &small);
    static const char zeros[5000];
    assert_fails(f, SBP_IO, "File too large", sbp_file_write(f->diag, path, zeros, sizeof zeros));
    setrlimit(RLIMIT_FSIZE, &old);
    assert_ok(f, sbp_file_read(f->arena, f->diag, path, &data, &length));
    assert_string_equal(data, "old");
    assert_int_equal(io_count_files(f), 1);
    sbp_file_out *out;
    assert_ok(f, sbp_file_out_open(f->diag, path, &out));
    assert_ok(f, sbp_file_out_write(out, f->diag, "half", 4));
    assert_int_equal(io_count_files(f), 2);
    sbp_file_out_abort(out);
    assert_int_equal(io_count_files(f), 1);
}

static sbp_status read_json(io_fixture *f, void *user) {
    const sbp_json *root;
    return sbp_json_read(f->arena, f->diag, user, SBP_JSON_COMMENTS, &root);
}

static sbp_status write_file(io_fixture *f, void *user) {
    return sbp_file_write(f->diag, user, "x", 1);
}

static void survives_failing_allocations(void **state) {
    io_fixture *f = *state;
    char path[200];
    snprintf(path, sizeof path, "%s", io_path(f, "j"));
    char *text = malloc(400000);
    strcpy(text, "[");
    size_t at = 1;
    for (int i = 0; i < 3000; i++)
        at += (size_t)sprintf(text + at, "%s{\"key\": [%d, \"some text of some length\"]}", i ? "," : "", i);
    sprintf(text + at, "]");
    io_put(path, text, at + 1);
    free(text);
    assert_true(io_fail_allocations(f, read_json, path) > 5);
    assert_true(io_fail_allocations(f, write_file, path) >= 2);
    assert_int_equal(io_count_files(f), 1);
}

/* ---- the quick way and jansson ------------------------------------------------------------------------ */

static sbp_status show(io_fixture *f, const char *text, size_t length, unsigned flags, const char **out) {
    const sbp_json *root;
    sbp_text shown;
    sbp_diag_clear(f->diag);
    sbp_status status = sbp_json_parse(f->arena, f->diag, "a", text, length, flags, &root);
    sbp_text_init(&shown, f->arena);
    if (status == SBP_OK)
        sbp_json_add_value(&shown, root);
    *out = status == SBP_OK ? shown.data : sbp_arena_strdup(f->arena, sbp_diag_text(f->diag, SBP_ERROR));
    return status;
}

static void compare(io_fixture *f, const char *text, size_t length) {
    const char *quick, *slow;
    sbp_status status = show(f, text, length, SBP_JSON_ROW, &quick);
    if (status != show(f, text, length, SBP_JSON_ROW | SBP_JSON_JANSSON, &slow) || strcmp(quick, slow) != 0)
        fail_msg("'%.*s' is '%s', and '%s' by jansson", (int)length, text, quick, slow);
}

/* Odd texts, each also cut short and with a byte changed. */
static void test_both_ways(void **state) {
    io_fixture *f = *state;
    static const char *const texts[] = {
        "[0, -0, 1, -1, 0.5, -0.0, 1e3, 1E+3, 1e-3, 2.5e-400, 123456789012345678, 1234567890123456789]",
        "[01]",
        "[1.]",
        "[.5]",
        "[+1]",
        "[-]",
        "[1e]",
        "[1e+]",
        "[0x1]",
        "[1e999]",
        "[NaN]",
        "[Infinity]",
        "[1 2]",
        "[0.1000000000000000055511151231257827021181583404541015625000000000000000000000000000000000001]",
        "{\"a\": 1, \"b\": {\"c\": [], \"d\": {}}, \"e\": [[], [[]], {\"f\": null}]}",
        "{\"a\": 1, \"a\": 2}",
        "{\"a\"}",
        "{\"a\":}",
        "{\"a\": 1,}",
        "{,}",
        "[,]",
        "[1,]",
        "[1,,2]",
        "{1: 2}",
        "[}",
        "{]",
        "[[]",
        "]",
        "",
        " ",
        "null",
        " true ",
        "fals",
        "truex",
        "\"x\"",
        "1",
        "\"",
        "\"\\\"",
        "[\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u0041\\u00e9\\u65E5\\ud83d\\ude00\\u0000\"]",
        "[\"\\x\"]",
        "[\"\\u12\"]",
        "[\"\\ud83d\"]",
        "[\"\\ud83d\\u0041\"]",
        "[\"\\ude00\"]",
        "[\"a\tb\"]",
        "{\"\\u0000\": 1}",
        "[\"\xc3\xa9\xe6\x97\xa5\xf0\x9f\x98\x80\x7f\"]",
        "[\"\xc3\"]",
        "[\"\xed\xa0\x80\"]",
        "[\"\xc0\x80\"]",
        "[\"\xf4\x90\x80\x80\"]",
        "[1] x",
        "[1]\r\n\t ",
        "\xef\xbb\xbf[1]",
        "{\"a\":0,\"b\":1,\"c\":2,\"d\":3,\"e\":4,\"f\":5,\"g\":6,\"h\":7,\"i\":8,\"j\":9,\"k\":10,\"l\":11,"
        "\"m\":12,"
        "\"n\":13,\"o\":14,\"p\":15,\"q\":16,\"a\":17}"};
    uint64_t random = 3;
    for (int i = 0; i < SBP_COUNT(texts); i++) {
        char copy[400];
        size_t length = strlen(texts[i]);
        io_renew(f);
        memcpy(copy, texts[i], length + 1);
        for (size_t cut = 0; cut <= length; cut++)
            compare(f, copy, cut);
        for (int round = 0; round < 20 && length > 0; round++) {
            char *byte = &copy[io_random(&random) % length], was = *byte;
            *byte = round % 2 ? "\"[]{}:,\\e.-0 "[io_random(&random) % 13] : (char)io_random(&random);
            compare(f, copy, length);
            *byte = was;
        }
    }
    char *deep = sbp_arena_alloc(f->arena, 5000);
    for (size_t depth = 2040; depth < 2060; depth++) {
        memset(deep, '[', depth);
        memset(deep + depth, ']', depth);
        compare(f, deep, 2 * depth);
    }
}

/* Allocations of all kinds, for a row of a megabyte: a string takes what it has, a number a node. */
static void test_memory_of_a_row(void **state) {
    io_fixture *f = *state;
    enum { BYTES = 1 << 20 };
    char *text = malloc(2 * BYTES);
    static const struct {
        const char *begin, *item, *end;
        double most; /* bytes a byte */
    } cases[] = {{"{\"text\": \"", "once upon a time ", "\"}", 1.2},
                 {"{\"text\": \"", "\\n\xe6\x97\xa5", "\"}", 1.2},
                 {"[0", ", 1234", "]", 8.3},
                 {"[{}", ", {\"role\": \"user\", \"content\": \"hello\"}", "]", 6.2}};
    for (int i = 0; i < SBP_COUNT(cases); i++) {
        char *at = stpcpy(text, cases[i].begin);
        while (at - text < BYTES)
            at = stpcpy(at, cases[i].item);
        at = stpcpy(at, cases[i].end);
        const sbp_json *root;
        io_renew(f);
        int64_t before = sbp_test_allocated_bytes();
        assert_ok(f,
                  sbp_json_parse(f->arena, f->diag, "a:1", text, (size_t)(at - text), SBP_JSON_ROW, &root));
        double taken = (double)(sbp_test_allocated_bytes() - before) / (double)(at - text);
        if (taken > cases[i].most)
            fail_msg("case %d takes %.1f bytes a byte", i, taken);
    }
    free(text);
}

/* Numbers that are none, where Python writes a file; else they are no JSON, and no setting takes one. */
static void test_numbers_of_python(void **state) {
    io_fixture *f = *state;
    static const char text[] = "{\"a\": [0.0, Infinity], \"b\": -Infinity, \"c\": NaN, \"d\": -1}";
    const sbp_json *root, *list;
    double number = 5;
    assert_ok(f, sbp_json_parse(f->arena, f->diag, "config", text, strlen(text), SBP_JSON_PYTHON, &root));
    list = sbp_json_member(root, "a");
    assert_true(list->count == 2 && isinf(list->items[1].real) && list->items[1].real > 0);
    assert_true(isinf(sbp_json_member(root, "b")->real) && sbp_json_member(root, "b")->real < 0);
    assert_true(isnan(sbp_json_member(root, "c")->real));
    assert_int_equal(sbp_json_as_double(f->diag, sbp_json_member(root, "b"), &number), SBP_INPUT);
    assert_non_null(strstr(sbp_diag_text(f->diag, SBP_ERROR), "a finite number"));
    assert_true(number == 5);
    assert_ok(f, sbp_json_as_double(f->diag, sbp_json_member(root, "d"), &number));
    assert_true(number == -1);
    assert_int_equal(sbp_json_parse(f->arena, f->diag, "config", text, strlen(text), 0, &root), SBP_INPUT);
}

/* ---- writing ---------------------------------------------------------------------------------------- */

static uint64_t drawn = 1;

static uint32_t draw(uint32_t below) {
    drawn = drawn * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (uint32_t)(drawn >> 33) % below;
}

/* A random tree by the writer, and as it must look (compact, as sbp_json_add_value writes it). */
static void write_drawn(io_fixture *f, sbp_json_writer *w, sbp_text *expected, const char *key, int depth) {
    static const char *const names[] = {"a", "", "with \"quotes\"", "\xc3\xa9\n", "loss"};
    if (key) {
        sbp_json_add_string(expected, key, strlen(key));
        sbp_text_add(expected, ":");
    }
    uint32_t kind = draw(depth < 6 ? 8 : 6);
    if (kind == 0) {
        int64_t value = (int64_t)draw(1000) - 500;
        value = draw(5) == 0 ? INT64_MIN : value;
        sbp_json_write_int(w, key, value);
        sbp_text_add(expected, "%lld", (long long)value);
    } else if (kind == 1) {
        sbp_json_write_double(w, key, (double)NAN);
        sbp_text_add(expected, "null");
    } else if (kind == 2) {
        const char *value = draw(4) ? names[draw(SBP_COUNT(names))] : NULL;
        sbp_json_write_string(w, key, value);
        if (value)
            sbp_json_add_string(expected, value, strlen(value));
        else
            sbp_text_add(expected, "null");
    } else if (kind == 3) {
        bool value = draw(2);
        sbp_json_write_bool(w, key, value);
        sbp_text_add(expected, value ? "true" : "false");
    } else if (kind == 4) {
        sbp_json_write_null(w, key);
        sbp_text_add(expected, "null");
    } else if (kind == 5) {
        sbp_json_write_hash(w, key, 0x1234abcdull);
        sbp_text_add(expected, "\"000000001234abcd\"");
    } else {
        uint32_t count = draw(4);
        bool array = kind == 6;
        if (array)
            sbp_json_write_array(w, key);
        else
            sbp_json_write_object(w, key);
        sbp_text_add(expected, array ? "[" : "{");
        for (uint32_t i = 0; i < count; i++) {
            sbp_text_add(expected, i ? "," : "");
            write_drawn(f, w, expected, array ? NULL : sbp_arena_printf(f->arena, "%u%s", i, names[draw(5)]),
                        depth + 1);
        }
        sbp_json_write_end(w);
        sbp_text_add(expected, array ? "]" : "}");
    }
}

static void what_is_written_is_read(void **state) {
    io_fixture *f = *state;
    for (int round = 0; round < 400; round++) {
        sbp_text text, expected, again;
        sbp_text_init(&text, f->arena);
        sbp_text_init(&expected, f->arena);
        sbp_text_init(&again, f->arena);
        sbp_json_writer w = sbp_json_writer_on(&text);
        w.compact = round % 3 == 1;
        w.lines = round % 3 == 2 ? (int)draw(4) : 0;
        write_drawn(f, &w, &expected, NULL, 0);
        const sbp_json *root = NULL;
        assert_ok(f, sbp_json_parse(f->arena, f->diag, "w", text.data, text.length, 0, &root));
        sbp_json_add_value(&again, root);
        assert_string_equal(again.data, expected.data);
        if (w.compact)
            assert_string_equal(text.data, expected.data);
    }
}

static void numbers_are_exact(void **state) {
    io_fixture *f = *state;
    sbp_text text;
    sbp_text_init(&text, f->arena);
    sbp_json_writer w = sbp_json_writer_on(&text);
    w.lines = 1;
    sbp_json_write_object(&w, NULL);
    sbp_json_write_double(&w, "third", 1.0 / 3);
    sbp_json_write_fixed(&w, "fixed", 2.0 / 3, 2);
    sbp_json_write_double(&w, "infinite", (double)INFINITY);
    sbp_json_write_fixed(&w, "none", (double)NAN, 2);
    sbp_json_write_array(&w, "empty");
    sbp_json_write_end(&w);
    sbp_json_write_end(&w);
    assert_string_equal(text.data, "{\n  \"third\": 0.3333333333333333,\n  \"fixed\": 0.67,\n"
                                   "  \"infinite\": null,\n  \"none\": null,\n  \"empty\": []\n}");
}

/* As json.dumps(.., indent=2) has two levels; and lines where they are asked for. */
static void lines_are_where_they_belong(void **state) {
    io_fixture *f = *state;
    sbp_text text;
    sbp_text_init(&text, f->arena);
    sbp_json_writer w = sbp_json_writer_on(&text);
    w.lines = 2;
    sbp_json_write_object(&w, NULL);
    sbp_json_write_object(&w, "metadata");
    sbp_json_write_int(&w, "total_size", 7);
    sbp_json_write_end(&w);
    sbp_json_write_array(&w, "list");
    sbp_json_write_object(&w, NULL);
    sbp_json_write_int(&w, "a", 1);
    sbp_json_write_int(&w, "b", 2);
    sbp_json_write_end(&w);
    sbp_json_write_null(&w, NULL);
    sbp_json_write_end(&w);
    w.lines = 1;
    sbp_json_write_array(&w, "flat");
    sbp_json_write_int(&w, NULL, 1);
    sbp_json_write_line(&w);
    sbp_json_write_int(&w, NULL, 2);
    sbp_json_write_line(&w);
    sbp_json_write_end(&w);
    sbp_json_write_end(&w);
    assert_string_equal(text.data, "{\n  \"metadata\": {\n    \"total_size\": 7\n  },\n  \"list\": [\n"
                                   "    {\"a\": 1, \"b\": 2},\n    null\n  ],\n  \"flat\": [1,\n2\n]\n}");
}

/* Whatever bytes a string has, what is written is JSON, and what was UTF-8 comes back. */
static void any_string_is_json(void **state) {
    io_fixture *f = *state;
    static const struct {
        const char *bytes, *read;
    } cases[] = {
        {"\"quotes\" \\ / \t\n\r\x01\x1f\x7f", "\"quotes\" \\ / \t\n\r\x01\x1f\x7f"},
        {"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80"},
        {"a\xff"
         "b",
         "a\xef\xbf\xbd"
         "b"},                                                                    /* no byte of UTF-8 */
        {"\xc3", "\xef\xbf\xbd"},                                                 /* cut */
        {"\xe2\x82", "\xef\xbf\xbd\xef\xbf\xbd"},                                 /* cut */
        {"\xc0\xaf", "\xef\xbf\xbd\xef\xbf\xbd"},                                 /* longer than needed */
        {"\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},                 /* a surrogate */
        {"\xf4\x90\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"}, /* above U+10FFFF */
        {"\xe2\x82\"", "\xef\xbf\xbd\xef\xbf\xbd\""}, /* cut by what needs an escape */
    };
    for (size_t i = 0; i < SBP_COUNT(cases); i++) {
        sbp_text text;
        const sbp_json *root = NULL;
        sbp_text_init(&text, f->arena);
        sbp_json_writer w = sbp_json_writer_on(&text);
        sbp_json_write_object(&w, NULL);
        sbp_json_write_string(&w, cases[i].bytes, cases[i].bytes);
        sbp_json_write_end(&w);
        assert_ok(f, sbp_json_parse(f->arena, f->diag, "w", text.data, text.length, 0, &root));
        assert_string_equal(root->items->key, cases[i].read);
        assert_string_equal(root->items->string, cases[i].read);
    }
    for (int round = 0; round < 3000; round++) {
        char bytes[9];
        sbp_text text;
        const sbp_json *root = NULL;
        size_t length = draw(sizeof bytes);
        for (size_t i = 0; i < length; i++)
            bytes[i] = (char)(unsigned char)(draw(3) ? 0x70 + draw(0x90) : draw(0x100));
        sbp_text_init(&text, f->arena);
        sbp_json_writer w = sbp_json_writer_on(&text);
        sbp_json_write_array(&w, NULL);
        sbp_json_write_bytes(&w, NULL, bytes, length);
        sbp_json_write_end(&w);
        assert_ok(f, sbp_json_parse(f->arena, f->diag, "w", text.data, text.length, SBP_JSON_JANSSON, &root));
        if (sbp_is_utf8(bytes, (int64_t)length)) {
            assert_int_equal(root->items->count, length);
            assert_memory_equal(root->items->string, bytes, length);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(lines_are_where_they_belong, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(any_string_is_json, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(reads_values, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(integers_beyond_64_bits_are_real_numbers, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(finds_members_of_large_objects, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(says_where_it_is_wrong, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(writes_what_it_reads, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(what_is_written_is_read, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(numbers_are_exact, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(files_come_back, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(missing_files_are_io_errors, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(a_failed_write_leaves_the_old_file, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_both_ways, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_memory_of_a_row, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_numbers_of_python, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(survives_failing_allocations, io_setup, io_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
