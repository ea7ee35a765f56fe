/* test_frontend_gguf_files.c: GGUF files that llama.cpp's own converter made of goldens (tests/golden/make_gguf.py):
 * each builds the graph that the golden's directory does, to the letter, with the same numbers. */
#include "frontend_testing.h"
#include "mutate.h"

#include <stdlib.h>

#include "frontends/weights/gguf.h"

#define FILES "tests/golden/gguf"

static sbp_model load(fixture *f, const char *path, const sbp_json *set) {
    sbp_model_options options = sbp_model_options_for(SBP_F64);
    sbp_model model;
    const char **fields = SBP_NEW_ARRAY(f->arena, const char *, set ? set->count + 1 : 1);
    for (int64_t i = 0; set && i < set->count; i++)
        fields[i] = set->items[i].string;
    options.set = fields;
    options.set_count = set ? (int32_t)set->count : 0;
    check(f, sbp_model_load(f->arena, f->diag, path, &options, &model));
    return model;
}

/* As part of a multimodal model all names have this in them. */
static char *without_part(fixture *f, const char *text) {
    static const char part[] = ".language_model";
    char *out = SBP_NEW_ARRAY(f->arena, char, strlen(text) + 1), *to = out;
    while (*text)
        if (strncmp(text, part, sizeof part - 1) == 0)
            text += sizeof part - 1;
        else
            *to++ = *text++;
    *to = 0;
    return out;
}

static char *print(fixture *f, const sbp_model *model) {
    sbp_text text;
    sbp_text_init(&text, f->arena);
    sbp_module_print(&text, model->module);
    return without_part(f, strchr(text.data, '\n')); /* after its name, that of the file */
}

static void expect_same_text(const char *name, const char *got, const char *want) {
    size_t at = 0, line = 0;
    while (got[at] && got[at] == want[at])
        if (got[at++] == '\n')
            line = at;
    if (got[at] != want[at])
        fail_msg("%s: the graphs differ\n  %.*s\n  %.*s", name, (int)strcspn(got + line, "\n"), got + line,
                 (int)strcspn(want + line, "\n"), want + line);
}

/* Numbers that the file has otherwise (1 + w, -exp(A_log)) are rounded once more. */
static double compare_params(fixture *f, const char *name, const sbp_model *got, const sbp_model *want) {
    sbp_weights *file, *directory;
    double worst = 0;
    check(f, sbp_weights_open(f->arena, f->diag, got->weights, &file));
    check(f, sbp_weights_open(f->arena, f->diag, want->weights, &directory));
    assert_int_equal(got->module->param_count, want->module->param_count);
    for (int32_t p = 0; p < got->module->param_count; p++) {
        const sbp_param *a = &got->module->params[p], *b = &want->module->params[p];
        int64_t n = sbp_type_row_elems(&a->type);
        double *x = SBP_NEW_ARRAY(f->arena, double, n), *y = SBP_NEW_ARRAY(f->arena, double, n);
        const sbp_param *in_directory = b;
        sbp_param other = *b;
        if (!sbp_weights_find(directory, b->recipe ? b->recipe->source : b->name))
            for (int32_t k = 0; k < b->alias_count; k++)
                if (sbp_weights_find(directory, b->aliases[k])) {
                    other.name = b->aliases[k];
                    in_directory = &other;
                }
        read_param(f, file, a, x, n);
        read_param(f, directory, in_directory, y, n);
        for (int64_t i = 0; i < n; i++) {
            double distance = fabs(x[i] - y[i]);
            worst = distance > worst ? distance : worst;
            if (!(distance <= SBP_TOLERANCE_GGUF_RULE * fmax(1, fabs(y[i]))))
                fail_msg("%s: %s: element %lld is %.17g, expected %.17g", name, a->name, (long long)i, x[i],
                         y[i]);
        }
    }
    sbp_weights_close(file);
    sbp_weights_close(directory);
    return worst;
}

static bool is_exact(const char *name) {
    static const char *const rounded[] = {"qwen3next", "qwen35", "gemma3", "granitehybrid", "nemotron_h"};
    for (int i = 0; i < SBP_COUNT(rounded); i++)
        if (strncmp(name, rounded[i], strlen(rounded[i])) == 0)
            return false;
    return true;
}

static void test_files(void **state) {
    (void)state;
    fixture f = fixture_create();
    const sbp_json *cases = read_json(&f, FILES "/cases.json");
    int found = 0;
    for (int64_t i = 0; i < cases->count; i++) {
        const char *name = cases->items[i].key;
        fixture g = fixture_create();
        const char *path = sbp_arena_printf(g.arena, FILES "/%s.gguf", name);
        const sbp_json *set = sbp_json_member(&cases->items[i], "set"),
                       *golden = sbp_json_member(&cases->items[i], "golden"),
                       *both = sbp_json_member(&cases->items[i], "file_set");
        sbp_model want = load(&g, sbp_arena_printf(g.arena, "tests/golden/%s/model", golden->string), set);
        sbp_model got = load(&g, path, both);
        expect_same_text(name, print(&g, &got), print(&g, &want));
        double worst = compare_params(&g, name, &got, &want);
        printf("  %-24s %4d parameters, largest difference %.1e\n", name, (int)got.module->param_count,
               worst);
        assert_true(worst == 0 || !is_exact(name));
        found++;
        fixture_destroy(&g);
    }
    assert_true(found >= 20);
    fixture_destroy(&f);
}

/* Bytes of the header changed, 1 to 3 at a time, of files of all kinds: never a crash, a message with every failure. */
static void test_mutations(void **state) {
    static const char *const names[] = {"deepseek2",     "qwen35",         "qwen3next",
                                        "gpt-oss_mxfp4", "gemma4_experts", "gptneox",
                                        "granitehybrid", "lfm2",           "nemotron_h_moe"};
    char directory[] = "/tmp/sbp_gguf_files_XXXXXX";
    int loaded = 0, refused = 0;
    (void)state;
    assert_non_null(mkdtemp(directory));
    for (int k = 0; k < SBP_COUNT(names); k++) {
        fixture f = fixture_create();
        const char *path = sbp_file_join(f.arena, directory, "model.gguf"), *whole;
        size_t length;
        check(&f, sbp_file_read(f.arena, f.diag, sbp_arena_printf(f.arena, FILES "/%s.gguf", names[k]),
                                &whole, &length));
        char *copy = SBP_NEW_ARRAY(f.arena, char, length);
        const sbp_gguf *gguf;
        check(&f,
              sbp_gguf_open(f.arena, f.diag, sbp_arena_printf(f.arena, FILES "/%s.gguf", names[k]), &gguf));
        for (int round = mutate_rounds(30); round > 0; round--) {
            memcpy(copy, whole, length);
            for (uint32_t n = 1 + mutate_pick(3); n > 0; n--)
                copy[mutate_pick(length < 9000 ? (uint32_t)length : 9000)] =
                    mutate_pick(2) ? (char)(unsigned char)mutate_pick(256) : (char)mutate_pick(4);
            fixture g = fixture_create();
            check(&g, sbp_file_write(g.diag, path, copy, length));
            sbp_model_options options = sbp_model_options_for(SBP_F64);
            sbp_model model;
            sbp_status status = sbp_model_load(g.arena, g.diag, path, &options, &model);
            if (status != SBP_OK && status != SBP_INPUT && status != SBP_USAGE)
                fail_msg("%s, round %d: status %d: %s", names[k], round, (int)status,
                         sbp_diag_text(g.diag, SBP_NOTE));
            assert_true(status == SBP_OK || sbp_diag_count(g.diag, SBP_ERROR) > 0);
            loaded += status == SBP_OK;
            refused += status != SBP_OK;
            fixture_destroy(&g);
        }
        unlink(path);
        fixture_destroy(&f);
    }
    printf("  %d changed files refused, %d loaded\n", refused, loaded);
    assert_true(refused > 0 && loaded > 0);
    assert_int_equal(rmdir(directory), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_files), cmocka_unit_test(test_mutations)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
