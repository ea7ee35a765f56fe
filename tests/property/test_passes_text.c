/* test_passes_text.c: a model of one layer after each pass, as text: tests/ir/<number>_<pass>.sbp is what
 * `sbpc compile --stop-after PASS` prints. For reviewing what a change does to the code, and for reading in
 * order. SBP_UPDATE_GOLDENS=1 writes the files anew. Graphs and programs among them read back as themselves.
 */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "frontends/objectives/objective.h"
#include "frontends/source/frontend.h"
#include "ir/base/file.h"
#include "passes/lower/passes.h"
#include "tests/common/testing.h"

#define FOLDER "tests/ir"

/* What is printed after a pass; the target is fixed, so that no machine matters. */
static const char *text_after(testing *t, const sbp_module *module, const char *pass) {
    sbp_text out;
    sbp_text_init(&out, t->arena);
    sbp_pipeline p = {
        .arena = t->arena,
        .diag = t->diag,
        .module = sbp_module_copy(t->arena, module),
        .target = {.name = "cpu", .alignment_bytes = 64, .attention_partials = 4},
        .options = {.t_max = 64,
                    .schedule = {.chunk = 7, .head_chunk = 5, .segment = 1, .checkpoint_every = 1},
                    .grad_dtype = SBP_F32,
                    .state_dtype = SBP_F32,
                    .optimizer = SBP_OPTIMIZER_SGD},
        .stop_after = pass,
        .printed = &out};
    testing_check(t, sbp_pipeline_run(&p));
    assert_true(p.stopped);
    return out.data;
}

/* Reads a text back when it is a graph or a program, and prints it again; stages have no parser. */
static void reads_back(testing *t, const char *pass, const char *text) {
    sbp_text again;
    sbp_text_init(&again, t->arena);
    if (strncmp(text, "module ", 7) == 0) {
        sbp_module *m;
        testing_check(t, sbp_module_parse(t->arena, t->diag, pass, text, strlen(text), &m));
        sbp_module_print(&again, m);
    } else if (strncmp(text, "program ", 8) == 0) {
        sbp_program *p;
        testing_check(t, sbp_program_parse(t->arena, t->diag, pass, text, strlen(text), &p));
        sbp_program_print(&again, p);
    } else {
        assert_int_equal(strncmp(text, "stage ", 6), 0);
        return;
    }
    testing_same_text(again.data, text, pass);
}

static void texts_are_those_of_the_files(void **state) {
    (void)state;
    testing t = testing_open(1);
    static const char *const one_layer = "num_hidden_layers=1";
    sbp_model_options options = sbp_model_options_for(SBP_F32);
    options.set = &one_layer;
    options.set_count = 1;
    sbp_model model;
    testing_check(&t, sbp_model_load(t.arena, t.diag, "tests/golden/llama_plain/model", &options, &model));
    testing_check(&t, sbp_objective_add(model.module, t.diag, &(sbp_objective_choice){.name = "sft"}, NULL));
    int passes = 0, files = 0;
    for (; sbp_pass_name(passes); passes++) {
        const char *name = sbp_pass_name(passes), *golden;
        const char *path = sbp_arena_printf(t.arena, FOLDER "/%02d_%s.sbp", passes + 1, name);
        size_t length;
        const char *text = text_after(&t, model.module, name);
        reads_back(&t, name, text);
        if (getenv("SBP_UPDATE_GOLDENS"))
            testing_check(&t, sbp_file_write(t.diag, path, text, strlen(text)));
        testing_check(&t, sbp_file_read(t.arena, t.diag, path, &golden, &length));
        testing_same_text(text, golden,
                          sbp_arena_printf(t.arena,
                                           "%s differs; look at the change (git diff) after refreshing with "
                                           "SBP_UPDATE_GOLDENS=1",
                                           path));
    }
    DIR *dir = opendir(FOLDER);
    assert_non_null(dir);
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;)
        files += entry->d_name[0] >= '0' && entry->d_name[0] <= '9';
    closedir(dir);
    assert_int_equal(files, passes); /* none is left over */
    testing_close(&t);
}

/* Calls with several values in and out, and sums of cotangents as arguments, read back too. */
static void side_values_read_back(void **state) {
    (void)state;
    testing t = testing_open(1);
    sbp_model_options options = sbp_model_options_for(SBP_BF16);
    sbp_model model;
    testing_check(&t, sbp_model_load(t.arena, t.diag, "tests/data/onnx/side_values.json", &options, &model));
    testing_check(&t, sbp_objective_add(model.module, t.diag, &(sbp_objective_choice){.name = "sft"}, NULL));
    for (int pass = 0; sbp_pass_name(pass); pass++)
        reads_back(&t, sbp_pass_name(pass), text_after(&t, model.module, sbp_pass_name(pass)));
    testing_close(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(texts_are_those_of_the_files),
                                       cmocka_unit_test(side_values_read_back)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
