/* test_frontend_hf.c: every golden case that Hugging Face transformers computed: per-token log-probabilities,
 * loss, metrics, and the gradient of every parameter, with the graph as the frontend built it. */
#include "frontend_testing.h"
#include "tests/common/links.h"

#include <dirent.h>
#include <stdlib.h>

static int64_t ran, skipped;

/* A case of an architecture that nobody registered (an example of how one is added) must be refused. */
static bool is_architecture(const char *model_type) {
    for (int32_t i = 0; sbp_architecture_at(i); i++)
        if (strcmp(sbp_architecture_at(i)->model_type, model_type) == 0)
            return true;
    return false;
}

static bool is_registered(const sbp_json *config, const char *model_type) {
    const sbp_json *text = sbp_json_member(config, "text_config");
    for (int32_t i = 0; sbp_wrapper_at(i); i++)
        if (strcmp(sbp_wrapper_at(i)->model_type, model_type) == 0)
            return !text || is_architecture(sbp_json_member(text, "model_type")->string);
    return is_architecture(model_type);
}

typedef struct golden_case {
    fixture *f;
    const char *directory, *name;
} golden_case;

static sbp_status run_case(void *user) {
    const golden_case *c = user;
    fixture *f = c->f;
    const char *path = sbp_file_join(f->arena, c->directory, "model");
    sbp_model_options options = sbp_model_options_for(SBP_F64);
    sbp_model model;
    sbp_status status = sbp_model_load(f->arena, f->diag, path, &options, &model);
    const sbp_json *config = read_json(f, sbp_file_join(f->arena, path, "config.json"));
    const char *type = sbp_json_member(config, "model_type")->string;
    if (!is_registered(config, type)) {
        /* weights of others may be elsewhere, and are opened first */
        const char *text = sbp_diag_text(f->diag, SBP_ERROR);
        bool elsewhere = strstr(text, "not a safetensors file") != NULL;
        check_fails(f, status, SBP_INPUT, elsewhere ? "" : sbp_arena_printf(f->arena, "'%s'", type));
        printf("  %-34s refused: model type '%s'\n", c->name, type);
        return SBP_OK;
    }
    if (status == SBP_INPUT && strstr(sbp_diag_text(f->diag, SBP_ERROR), "are not read yet")) {
        printf("  %-34s refused: %s", c->name, sbp_diag_text(f->diag, SBP_ERROR));
        return SBP_OK;
    }
    check(f, status);
    assert_string_equal(model.weights, path);
    compare_case(f, c->directory, &model);
    return SBP_OK;
}

static bool is_sft_case(fixture *f, const char *directory) {
    const char *gradients = sbp_file_join(f->arena, directory, "grads.safetensors");
    if (!sbp_file_exists(gradients))
        return false;
    if (testing_is_path_of_another(gradients)) {
        printf("  skipped: %s: a link is a file there\n", directory);
        return false;
    }
    const sbp_json *expect = read_json(f, sbp_file_join(f->arena, directory, "expect.json"));
    const sbp_json *objective = sbp_json_member(sbp_json_member(expect, "objective"), "objective");
    return objective && strcmp(objective->string, "sft") == 0;
}

static int by_name(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void run_all(const char *root) {
    DIR *d = opendir(root);
    if (!d) {
        printf("  skipped: no %s\n", root);
        skipped++;
        return;
    }
    char *names[200];
    int count = 0;
    for (struct dirent *e = readdir(d); e && count < SBP_COUNT(names); e = readdir(d))
        if (e->d_name[0] != '.')
            names[count++] = strdup(e->d_name);
    closedir(d);
    qsort(names, (size_t)count, sizeof names[0], by_name);
    const char *only = getenv("SBP_CASE");
    for (int i = 0; i < count; i++) {
        fixture f = fixture_create();
        golden_case c = {.f = &f, .name = names[i], .directory = sbp_file_join(f.arena, root, names[i])};
        if (is_sft_case(&f, c.directory) && (!only || strcmp(only, names[i]) == 0)) {
            if (sbp_guard(f.arena, f.diag, run_case, &c) != SBP_OK)
                fail_msg("%s: %s", names[i], sbp_diag_text(f.diag, SBP_NOTE));
            ran++;
        }
        fixture_destroy(&f);
        free(names[i]);
    }
}

static void test_own_goldens(void **state) {
    (void)state;
    run_all("tests/golden");
    assert_true(ran > 0);
}

static void test_shared_goldens(void **state) {
    (void)state;
    run_all("../shared/golden");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_own_goldens),
        cmocka_unit_test(test_shared_goldens),
    };
    int failures = cmocka_run_group_tests(tests, NULL, NULL);
    printf("%lld cases run, %lld sets skipped\n", (long long)ran, (long long)skipped);
    return failures;
}
