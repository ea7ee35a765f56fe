/* The cache of the Hub: names, revisions, snapshots, links and hashes, over a made layout. No network. */
#include "tests/unit/io_testing.h"

#include <sys/stat.h>

#include "frontends/formats/files/hub_fetch.h"
#include "frontends/formats/files/named_path.h"
#include "frontends/formats/files/sha256.h"
#include "ir/base/machine.h"

#define COMMIT "0123456789abcdef0123456789abcdef01234567"
#define FOLDER "hub/models--org--name"
#define SNAPSHOT FOLDER "/snapshots/" COMMIT
/* of "{}\n" */
#define BLOB "ca3d163bab055381827226140568f3bef7eaac187cebd76878e0b63e9e442356"

static void put(const io_fixture *f, const char *name, const char *text) {
    const char *path = io_path(f, name);
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        (void)mkdir(path, 0700);
        *slash = '/';
    }
    io_put(path, text, strlen(text));
}

static int hub_setup(void **state) {
    if (io_setup(state) != 0)
        return -1;
    io_fixture *f = *state;
    setenv("HF_HUB_CACHE", io_path(f, "hub"), 1);
    setenv("XDG_CACHE_HOME", io_path(f, "cache"), 1);
    setenv("HF_HUB_OFFLINE", "1", 1);
    put(f, FOLDER "/refs/main", COMMIT);
    put(f, FOLDER "/refs/refs/pr/1", COMMIT "\n");
    put(f, SNAPSHOT "/config.json", "{}\n");
    return 0;
}

static void test_names(void **state) {
    io_fixture *f = *state;
    static const struct {
        const char *text;
        bool is;
    } cases[] = {
        {"org/name", true},           {"Qwen/Qwen3-0.6B", true}, {"org/name@v1.0", true},
        {"org/name@refs/pr/1", true}, {"name", false},           {"/org/name", false},
        {"org/name/x", false},        {"org/na me", false},      {"org/name@", false},
        {"org/name@../main", false},  {"org/..", false},         {"../name", false},
        {"-org/name", false},         {"org/--include", false},  {"org/a--b", false},
        {"org/name@-x", false},       {"org/name@a;b", false},   {"org/name@/etc", false},
        {"org/.name", false},         {"org/name.", false},      {"org/$(x)", false},
        {"org/name@a//b", false},     {"org/name@a/.b", false},  {"./name", false},
    };
    for (int i = 0; i < SBP_COUNT(cases); i++) {
        sbp_hub_name name;
        if (sbp_hub_parse(f->arena, cases[i].text, &name) != cases[i].is)
            fail_msg("%s", cases[i].text);
    }
    char longest[120] = "o/";
    memset(longest + 2, 'a', 94);
    assert_true(sbp_hub_is_id(longest));
    longest[96] = 'a';
    assert_false(sbp_hub_is_id(longest));
}

static void test_where_the_cache_is(void **state) {
    io_fixture *f = *state;
    assert_string_equal(sbp_hub_cache(f->arena), io_path(f, "hub"));
    unsetenv("HF_HUB_CACHE");
    setenv("HF_HOME", "/somewhere", 1);
    assert_string_equal(sbp_hub_cache(f->arena), "/somewhere/hub");
    unsetenv("HF_HOME");
    assert_string_equal(sbp_hub_cache(f->arena), io_path(f, "cache/huggingface/hub"));
    unsetenv("XDG_CACHE_HOME");
    setenv("HOME", "/home/somebody", 1);
    assert_string_equal(sbp_hub_cache(f->arena), "/home/somebody/.cache/huggingface/hub");
    setenv("HF_HUB_CACHE", "~/hub", 1);
    assert_string_equal(sbp_hub_cache(f->arena), "/home/somebody/hub");
}

static void test_snapshots(void **state) {
    io_fixture *f = *state;
    static const char *const there[] = {"org/name", "org/name@main", "org/name@refs/pr/1",
                                        "org/name@" COMMIT},
                             *const gone[] = {"org/name@v1", "org/other", "Org/name"};
    for (int i = 0; i < SBP_COUNT(there); i++)
        assert_string_equal(sbp_hub_find(f->arena, there[i]), io_path(f, SNAPSHOT));
    for (int i = 0; i < SBP_COUNT(gone); i++)
        assert_null(sbp_hub_find(f->arena, gone[i]));
    put(f, FOLDER "/refs/evil", "../../..");
    assert_null(sbp_hub_find(f->arena, "org/name@evil"));
    sbp_hub_name name;
    assert_true(sbp_hub_parse(f->arena, "org/name", &name));
    name.dataset = true;
    assert_null(sbp_hub_snapshot(f->arena, &name));
}

/* As long as a shard of the index is missing, and with weights in pickle only. */
static void test_complete_snapshots(void **state) {
    io_fixture *f = *state;
    const char *snapshot = sbp_arena_strdup(f->arena, io_path(f, SNAPSHOT));
    assert_true(sbp_hub_is_complete(f->arena, snapshot, false));
    put(f, SNAPSHOT "/pytorch_model.bin", "x");
    assert_false(sbp_hub_is_complete(f->arena, snapshot, true));
    put(f, SNAPSHOT "/model.safetensors.index.json",
        "{\"weight_map\": {\"a\": \"model-1-of-2.safetensors\", \"b\": \"model-1-of-2.safetensors\", \"c\": "
        "\"model-2-of-2.safetensors\"}}");
    assert_false(sbp_hub_is_complete(f->arena, snapshot, true));
    put(f, SNAPSHOT "/model-1-of-2.safetensors", "x");
    assert_false(sbp_hub_is_complete(f->arena, snapshot, true));
    const char *out;
    assert_fails(f, SBP_IO, "HF_HUB_OFFLINE is set",
                 sbp_hub_model(f->arena, f->diag, "org/name", true, &out));
    put(f, SNAPSHOT "/model-2-of-2.safetensors", "x");
    assert_true(sbp_hub_is_complete(f->arena, snapshot, true));
    assert_ok(f, sbp_hub_model(f->arena, f->diag, "org/name", true, &out));
    assert_string_equal(out, snapshot);
    put(f, "hub/models--org--lora/refs/main", COMMIT);
    put(f, "hub/models--org--lora/snapshots/" COMMIT "/adapter_config.json", "{}");
    snapshot = sbp_arena_strdup(f->arena, io_path(f, "hub/models--org--lora/snapshots/" COMMIT));
    assert_false(sbp_hub_is_complete(f->arena, snapshot, true));
    put(f, "hub/models--org--lora/snapshots/" COMMIT "/adapter_model.safetensors", "x");
    assert_true(sbp_hub_is_complete(f->arena, snapshot, true));
}

static void test_paths_come_first(void **state) {
    io_fixture *f = *state;
    const char *out;
    put(f, "org/name/config.json", "{}");
    assert_int_equal(chdir(f->directory), 0);
    assert_ok(f, sbp_hub_model(f->arena, f->diag, "org/name", true, &out));
    assert_string_equal(out, "org/name");
    assert_int_equal(chdir("/"), 0);
    assert_fails(f, SBP_IO, "No such file", sbp_hub_model(f->arena, f->diag, "no/such/path", true, &out));
}

#define SHARED                                                                                               \
    "hub/blobs/ab/abababababababababababababababababababababababababababababababab" /* another hash */

/* Links lead to blobs, of this repository or those that a cache shares; not elsewhere. Blobs named by their
 * hash have it. */
static void test_links_and_hashes(void **state) {
    io_fixture *f = *state;
    const char *out, *link = sbp_arena_strdup(f->arena, io_path(f, SNAPSHOT "/model.safetensors"));
    char stamp[300];
    snprintf(stamp, sizeof stamp, "%s/cache/streambp/hub/" BLOB, f->directory);
    put(f, FOLDER "/blobs/" BLOB, "{}\n");
    assert_int_equal(symlink("../../blobs/" BLOB, link), 0);
    assert_ok(f, sbp_hub_model(f->arena, f->diag, "org/name", true, &out));
    assert_true(sbp_file_exists(stamp)); /* compared, and not again */
    unlink(io_path(f, FOLDER "/blobs/" BLOB));
    put(f, SHARED, "{}\n");
    assert_int_equal(symlink("../../blobs/ab/"
                             "abababababababababababababababababababababababababababababababab",
                             io_path(f, FOLDER "/blobs/" BLOB)),
                     0);
    assert_ok(f, sbp_hub_model(f->arena, f->diag, "org/name", true, &out));
    assert_int_equal(usleep(20000), 0);
    put(f, SHARED, "{}!"); /* later than the stamp: compared again */
    assert_fails(f, SBP_INPUT, "is damaged", sbp_hub_model(f->arena, f->diag, "org/name", true, &out));
    unlink(link);
    put(f, "elsewhere/" BLOB, "{}\n");
    assert_int_equal(symlink(io_path(f, "elsewhere/" BLOB), link), 0);
    assert_fails(f, SBP_INPUT, "leads out of its repository",
                 sbp_hub_model(f->arena, f->diag, "org/name", true, &out));
    unlink(link);
    put(f, "hub/models--me--private/blobs/x", "{}\n"); /* another repository of the same cache */
    assert_int_equal(symlink("../../../models--me--private/blobs/x", link), 0);
    assert_fails(f, SBP_INPUT, "leads out of its repository",
                 sbp_hub_model(f->arena, f->diag, "org/name", true, &out));
    assert_null(sbp_hub_find(f->arena, "org/name"));
}

/* Files in additional_chat_templates/ are read and copied into results, as those beside config.json. */
static void test_links_of_templates(void **state) {
    io_fixture *f = *state;
    const char *out,
        *link = sbp_arena_strdup(f->arena, io_path(f, SNAPSHOT "/additional_chat_templates/tool_use.jinja"));
    put(f, SNAPSHOT "/model.safetensors", "x");
    put(f, SNAPSHOT "/additional_chat_templates/plain.jinja", "x");
    assert_ok(f, sbp_hub_model(f->arena, f->diag, "org/name", true, &out));
    put(f, "secret", "x");
    assert_int_equal(symlink(io_path(f, "secret"), link), 0);
    assert_fails(f, SBP_INPUT, "tool_use.jinja' leads out of its repository",
                 sbp_hub_model(f->arena, f->diag, "org/name", true, &out));
    assert_fails(f, SBP_INPUT, "leads out of its repository",
                 sbp_hub_model(f->arena, f->diag, "org/name", false, &out));
}

/* What files name lies in their own folder, and in the cache in their own repository. */
static void test_named_paths(void **state) {
    io_fixture *f = *state;
    static const char *const stay[] = {"a", "a/b", "./a", "a/./b", "a..b", "..a/b", "a/*", "*", "[.]x/y"},
                             *const leave[] = {"",     "/a",   "..", "../a",     "a/../b", "a/..",
                                               ".*/a", ".?/a", "./", "a/.[.]/b", "././..", ".{.,x}/a"};
    const char *path, *snapshot = sbp_arena_strdup(f->arena, io_path(f, SNAPSHOT)),
                      *folder = sbp_arena_strdup(f->arena, io_path(f, "own"));
    for (int i = 0; i < SBP_COUNT(stay); i++)
        assert_ok(f, sbp_named_path(f->arena, f->diag, "x.json", folder, stay[i], &path));
    for (int i = 0; i < SBP_COUNT(leave); i++)
        assert_fails(f, SBP_INPUT, "x.json names '",
                     sbp_named_path(f->arena, f->diag, "x.json", folder, leave[i], &path));
    put(f, "own/a", "x");
    put(f, "secret", "x");
    assert_int_equal(symlink(io_path(f, "secret"), io_path(f, "own/link")), 0);
    assert_ok(f, sbp_named_path(f->arena, f->diag, "x.json", folder, "link", &path)); /* the user's own */
    assert_string_equal(path, io_path(f, "own/link"));
    assert_int_equal(symlink(io_path(f, "secret"), io_path(f, SNAPSHOT "/link")), 0);
    assert_fails(f, SBP_INPUT, "leads out of its repository",
                 sbp_named_path(f->arena, f->diag, "x.json", snapshot, "link", &path));
    assert_ok(f, sbp_named_path(f->arena, f->diag, "x.json", snapshot, "config.json", &path));
}

/* An adapter of the Hub names models of the Hub and its own folders; one of the user's any path. */
static void test_bases(void **state) {
    io_fixture *f = *state;
    const char *theirs = sbp_arena_strdup(f->arena, io_path(f, "hub/models--org--lora/snapshots/" COMMIT)),
               *own = sbp_arena_strdup(f->arena, io_path(f, "lora")),
               *private = sbp_arena_strdup(f->arena, io_path(f, "private"));
    put(f, "hub/models--org--lora/refs/main", COMMIT);
    put(f, "hub/models--org--lora/snapshots/" COMMIT "/base/config.json", "{}");
    put(f, "lora/adapter_config.json", "{}");
    put(f, "private/config.json", "{}");
    assert_int_equal(chdir(f->directory), 0);
    assert_non_null(sbp_hub_base(f->arena, theirs, "base"));
    assert_string_equal(sbp_hub_base(f->arena, theirs, "org/name"), io_path(f, SNAPSHOT));
    assert_null(sbp_hub_base(f->arena, theirs, private));
    assert_null(sbp_hub_base(f->arena, theirs, "private"));
    assert_null(sbp_hub_base(f->arena, theirs, "../../../../private"));
    assert_string_equal(sbp_hub_base(f->arena, own, private), private);
    assert_string_equal(sbp_hub_base(f->arena, own, "org/name"), io_path(f, SNAPSHOT));
    assert_non_null(sbp_hub_base(f->arena, own, "../private"));
    assert_int_equal(chdir("/"), 0);
}

/* Words of others in the argument lists of programs. */
static void test_arguments(void **state) {
    io_fixture *f = *state;
    sbp_args args = sbp_args_on(f->arena);
    sbp_args_add(&args, "download");
    assert_ok(f, sbp_args_operand(&args, f->diag, "the name", "org/name"));
    sbp_args_option(&args, "--include", "--local-dir=/elsewhere");
    assert_fails(f, SBP_INPUT, "the name is '-x', which a program",
                 sbp_args_operand(&args, f->diag, "the name", "-x"));
    assert_fails(f, SBP_INPUT, "the name is ''", sbp_args_operand(&args, f->diag, "the name", ""));
    const char **words = sbp_args_end(&args);
    assert_int_equal(args.count, 3);
    assert_string_equal(words[2], "--include=--local-dir=/elsewhere");
    assert_null(words[3]);
}

/* What is kept for the next time: in a home that is there, which is not made. */
static void test_where_the_own_cache_is(void **state) {
    io_fixture *f = *state;
    char path[4096];
    assert_true(sbp_cache_path("x", path, sizeof path));
    assert_string_equal(path, io_path(f, "cache/streambp/x"));
    unsetenv("XDG_CACHE_HOME");
    setenv("HOME", io_path(f, "home"), 1);
    assert_false(sbp_cache_path("x", path, sizeof path));
    put(f, "home/file", "x");
    assert_true(sbp_cache_path("x", path, sizeof path));
    assert_string_equal(path, io_path(f, "home/.cache/streambp/x"));
    setenv("HOME", io_path(f, "home/file"), 1);
    assert_false(sbp_cache_path("x", path, sizeof path));
}

/* FIPS 180-4's examples, and lengths about the ends of blocks, as Python's hashlib has them. */
static void test_sha256(void **state) {
    io_fixture *f = *state;
    static const struct {
        size_t count;
        const char *text, *hash;
    } cases[] = {
        {1, "", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
        {1, "abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
        {1, "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
         "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
        {1000000, "a", "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"},
        {55, "a", "9f4390f8d30c2dd92ec9f095b65e2b9ae9b0a925a5258e241c9f1e910f734318"},
        {56, "a", "b35439a4ac6f0948b6d6f9e3c6af0f5f590ce20f1bde7090ef7970686ec6738a"},
        {64, "a", "ffe054fe7ae0cb6dc65c3af9b61d5209f439851db43d0ba5997337df154668eb"},
    };
    char hash[65];
    for (int i = 0; i < SBP_COUNT(cases); i++) {
        sbp_sha256 sum = sbp_sha256_begin();
        for (size_t k = 0; k < cases[i].count; k++)
            sbp_sha256_add(&sum, cases[i].text, strlen(cases[i].text));
        sbp_sha256_end(&sum, hash);
        assert_string_equal(hash, cases[i].hash);
    }
    char *text = calloc(200001, 1);
    memset(text, 'a', 200000);
    put(f, "as", text);
    free(text);
    assert_ok(f, sbp_sha256_file(f->diag, io_path(f, "as"), hash));
    assert_string_equal(hash, "2287d207f24a941ff3b56c04c8a25ad56b63e3023207b3bb5b4ac0c9869d74be");
    assert_fails(f, SBP_IO, "No such file", sbp_sha256_file(f->diag, io_path(f, "gone"), hash));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_names, hub_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_where_the_cache_is, hub_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_snapshots, hub_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_complete_snapshots, hub_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_paths_come_first, hub_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_links_and_hashes, hub_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_links_of_templates, hub_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_named_paths, hub_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_bases, hub_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_arguments, hub_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_where_the_own_cache_is, hub_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_sha256, hub_setup, io_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
