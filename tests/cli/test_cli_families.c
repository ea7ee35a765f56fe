/* The table of families, frontends/hf/families.md: what is tested of each model_type that config.json may
 * have, made of the lists that the tests run (golden_lists.h) and of the golden cases. SBP_UPDATE_GOLDENS=1
 * writes it. */
#include "tests/cli/cli_testing.h"
#include "tests/cli/golden_lists.h"

#include <dirent.h>

#define TEXT(...) sbp_arena_printf(f->arena, __VA_ARGS__)

enum { GOLDEN, VULKAN, CUDA, LORA, MXFP4, FP8, PACKED, RANKS, DRAWN_RANKS, LISTS };

static const struct {
    const char *name, *function; /* of the text model, and what builds it */
} types[] = {
#define ARCHITECTURE(model_type, function) {model_type, #function},
#include "frontends/hf/registry.def"
};

static const struct {
    const char *name, *texts; /* the latter with blanks between them */
} wrappers[] = {
#define WRAPPER(model_type, text_types, files) {model_type, text_types},
#include "frontends/hf/registry.def"
};

typedef struct family {
    bool inside[SBP_COUNT(wrappers)], tested[SBP_COUNT(wrappers)];
    int tests[LISTS];
} family;

static const char *const context_cases[] = {
#define ROW(model, settings, ranks, tokens) model,
    GOLDEN_RANKS(ROW)
#undef ROW
};

static const char *const cuda_cases[] = {
#define ROW(model, setting, options, dtype) model,
    GOLDEN_CUDA(ROW)
#undef ROW
};

static const char *type_of(const sbp_json *config) {
    const sbp_json *type = sbp_json_member(config, "model_type");
    return type && type->kind == SBP_JSON_STRING ? type->string : "";
}

static family *find_type(family *families, const char *type) {
    for (int i = 0; i < SBP_COUNT(types); i++)
        if (strcmp(types[i].name, type) == 0)
            return &families[i];
    return NULL;
}

static int find_wrapper(const char *type) {
    for (int i = 0; i < SBP_COUNT(wrappers); i++)
        if (strcmp(wrappers[i].name, type) == 0)
            return i;
    return -1;
}

/* A case of a list is one of its family, of its text model where it is multimodal; false: of none that is
 * built in. */
static bool count(io_fixture *f, family *families, const char *name, int list) {
    const sbp_json *config;
    assert_ok(f, sbp_json_read(f->arena, f->diag, TEXT("tests/golden/%s/model/config.json", name),
                               SBP_JSON_PYTHON, &config));
    const sbp_json *text = sbp_json_member(config, "text_config");
    int wrapper = find_wrapper(type_of(config));
    const char *type = wrapper >= 0 && !text ? wrappers[wrapper].texts : type_of(text ? text : config);
    family *is = find_type(families, type);
    if (!is)
        return false;
    is->tests[list]++;
    if (wrapper >= 0)
        is->tested[wrapper] = true;
    return true;
}

static void count_list(io_fixture *f, family *families, const char *const *names, int many, int list) {
    for (int i = 0; i < many; i++)
        if (!count(f, families, names[i], list))
            fail_msg("%s is a case of no family", names[i]);
}

static void count_goldens(io_fixture *f, family *families) {
    DIR *dir = opendir("tests/golden");
    assert_non_null(dir);
    for (struct dirent *entry; (entry = readdir(dir));)
        if (entry->d_name[0] != '.' &&
            sbp_file_exists(TEXT("tests/golden/%s/grads.safetensors", entry->d_name)))
            (void)count(f, families, entry->d_name, GOLDEN);
    closedir(dir);
}

static void count_lora(io_fixture *f, family *families) {
    for (int i = 0; i < SBP_COUNT(golden_lora); i++) {
        const sbp_json *expect;
        const char *base;
        assert_ok(f, sbp_json_read(f->arena, f->diag,
                                   TEXT("tests/golden/lora/%s/expect.json", golden_lora[i]), 0, &expect));
        assert_ok(f, sbp_json_get_string(f->diag, expect, "base", SBP_JSON_REQUIRED, &base));
        assert_true(count(f, families, base, LORA));
    }
}

static family *make_families(io_fixture *f) {
    family *families = SBP_NEW_ARRAY(f->arena, family, SBP_COUNT(types));
    for (int i = 0; i < SBP_COUNT(wrappers); i++)
        for (const char *at = wrappers[i].texts; *at; at += strcspn(at, " "), at += *at == ' ') {
            family *text = find_type(families, sbp_arena_strndup(f->arena, at, strcspn(at, " ")));
            if (text) { /* else it is not built */
                text->inside[i] = true;
                text->tested[i] = strcmp(wrappers[i].name, GOLDEN_MULTIMODAL) == 0;
            }
        }
    count_goldens(f, families);
    count_list(f, families, golden_structures, SBP_COUNT(golden_structures), VULKAN);
    count_list(f, families, golden_thorough, SBP_COUNT(golden_thorough), VULKAN);
    count_list(f, families, golden_others, SBP_COUNT(golden_others), VULKAN);
    count_list(f, families, cuda_cases, SBP_COUNT(cuda_cases), CUDA);
    count_list(f, families, (const char *const[]){GOLDEN_MXFP4}, 1, MXFP4);
    count_list(f, families, (const char *const[]){GOLDEN_FP8}, 1, FP8);
    for (int i = 0; i < SBP_COUNT(golden_packed); i++)
        assert_true(count(f, families, TEXT("packed/%s", golden_packed[i]), PACKED));
    count_list(f, families, context_cases, SBP_COUNT(context_cases), RANKS);
    count_list(f, families, golden_drawn_ranks, SBP_COUNT(golden_drawn_ranks), DRAWN_RANKS);
    count_lora(f, families);
    return families;
}

/* Where a list has none of it, SBP_TEST_ALL=1 runs all golden cases there. */
static const char *by_default(const family *is, int tests) {
    return tests > 0 ? "yes" : is->tests[GOLDEN] > 0 ? "all" : "-";
}

static const char *blocks_of(io_fixture *f, const family *is, const char *type) {
    sbp_text text;
    sbp_text_init(&text, f->arena);
    if (is->tests[MXFP4] > 0)
        sbp_text_add(&text, "MXFP4");
    if (is->tests[FP8] > 0)
        sbp_text_add(&text, "%sFP8", text.length > 0 ? ", " : "");
    if (is->tests[PACKED] > 0)
        sbp_text_add(&text, "%sINT4", text.length > 0 ? ", " : "");
    static const char *const bases[] = {GOLDEN_BASES};
    for (int i = 0; i < SBP_COUNT(bases) && strcmp(type, GOLDEN_BASE_TYPE) == 0; i++)
        sbp_text_add(&text, "%s%s", text.length > 0 ? ", " : "", bases[i]);
    return text.length > 0 ? text.data : "-";
}

static const char *wrappers_of(io_fixture *f, const family *is) {
    sbp_text text;
    sbp_text_init(&text, f->arena);
    for (int i = 0; i < SBP_COUNT(wrappers); i++)
        if (is->inside[i])
            sbp_text_add(&text, "%s%s%s", text.length > 0 ? ", " : "", wrappers[i].name,
                         is->tested[i] ? "" : " (untested)");
    return text.length > 0 ? text.data : "-";
}

static void print_table(io_fixture *f, const family *families, sbp_text *out) {
    sbp_text_add(out,
                 "| model_type | released inside | CPU | Vulkan | CUDA | LoRA | kept in blocks | ranks |\n"
                 "|---|---|---|---|---|---|---|---|\n");
    for (int i = 0; i < SBP_COUNT(types); i++) {
        const family *is = &families[i];
        sbp_text_add(out, "| %s | %s | %d | %s | %s | %s | %s | %s |\n", types[i].name, wrappers_of(f, is),
                     is->tests[GOLDEN], by_default(is, is->tests[VULKAN]), by_default(is, is->tests[CUDA]),
                     is->tests[LORA] > 0 ? TEXT("%d", is->tests[LORA]) : "-", blocks_of(f, is, types[i].name),
                     by_default(is, is->tests[RANKS] + is->tests[DRAWN_RANKS]));
    }
}

static void test_the_table_of_families(void **state) {
    static const char path[] = "frontends/hf/families.md",
                      begin[] = "<!-- families: written by test_cli_families, do not edit -->\n",
                      end[] = "<!-- end of families -->\n";
    io_fixture *f = *state;
    const char *file;
    size_t length;
    sbp_text text, all;
    sbp_text_init(&text, f->arena);
    print_table(f, make_families(f), &text);
    assert_ok(f, sbp_file_read(f->arena, f->diag, path, &file, &length));
    const char *from = strstr(file, begin), *to = from ? strstr(from, end) : NULL;
    if (!to)
        fail_msg("%s has no marks for the table", path);
    from += strlen(begin);
    if ((size_t)(to - from) == text.length && memcmp(from, text.data, text.length) == 0)
        return;
    const char *refresh = getenv("SBP_UPDATE_GOLDENS");
    if (!refresh || strcmp(refresh, "1") != 0)
        fail_msg("the table in %s is out of date: run with SBP_UPDATE_GOLDENS=1", path);
    sbp_text_init(&all, f->arena);
    sbp_text_add_n(&all, file, (size_t)(from - file));
    sbp_text_add_n(&all, text.data, text.length);
    sbp_text_add_n(&all, to, length - (size_t)(to - file));
    assert_ok(f, sbp_file_write(f->diag, path, all.data, all.length));
}

/* Every family has a case, and one by default on Vulkan and among ranks, it or another that is built by the
 * same function. */
static void test_no_family_is_left_out(void **state) {
    const family *families = make_families(*state);
    for (int i = 0; i < SBP_COUNT(types); i++) {
        int vulkan = 0, ranks = 0;
        for (int k = 0; k < SBP_COUNT(types); k++)
            if (strcmp(types[i].function, types[k].function) == 0) {
                vulkan += families[k].tests[VULKAN];
                ranks += families[k].tests[RANKS] + families[k].tests[DRAWN_RANKS];
            }
        if (families[i].tests[GOLDEN] == 0 || vulkan == 0 || ranks == 0)
            fail_msg("%s: %d golden cases, %d on Vulkan, %d among ranks", types[i].name,
                     families[i].tests[GOLDEN], vulkan, ranks);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_the_table_of_families, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_no_family_is_left_out, cli_setup, io_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
