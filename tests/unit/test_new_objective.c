/* test_new_objective.c: proves the walk-through of frontends/README.md: a loss in at most 15 lines.
 * Everything between the two rulers is what the README shows, to the letter; it is handed over as a builder
 * instead of a line in objectives.def. Its value and its derivative are compared with the formula. */
#include "frontend_testing.h"

#include "frontends/objectives/objective.h"

/* ---- 8< ---- objective_focal.c ---- 8< -------------------------------------------------------------- */

static void objective_focal(sbp_objective *o) {
    sbp_builder *b = o->builder;
    sbp_value weight = sbp_objective_row(o, SBP_DATA_WEIGHT); /* [T] 1 where the label counts */
    sbp_value labels = sbp_objective_total(o, SBP_TOTAL_LABELS);
    sbp_value share = sbp_build2(b, SBP_OP_div, weight, labels);
    sbp_value p = sbp_build1(b, SBP_OP_exp, o->logp);
    sbp_value rest = sbp_build2(b, SBP_OP_sub, sbp_objective_number(o, 1, p), p);
    sbp_value term = sbp_build2(b, SBP_OP_mul, sbp_build2(b, SBP_OP_mul, rest, rest), o->logp);
    term = sbp_build2(b, SBP_OP_mul, share, term);
    sbp_objective_result(o, "loss", sbp_build1(b, SBP_OP_neg, term));
    sbp_objective_result(o, "entropy", sbp_build2(b, SBP_OP_mul, share, o->entropy));
}

/* ---- 8< --------------------------------------------------------------------------------------------- */

static char *read_all(const char *path) {
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    static char text[1 << 16];
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    return text;
}

/* The lines between the rulers stand in the README, indented, and are few. */
static void test_it_is_what_the_readme_shows(void **state) {
    (void)state;
    char line[200], indented[220];
    const char *readme = read_all("frontends/README.md"), *at = readme;
    FILE *source = fopen("tests/unit/test_new_objective.c", "r");
    assert_non_null(source);
    int lines = 0, rulers = 0;
    while (rulers < 2 && fgets(line, sizeof line, source)) {
        bool ruler = strstr(line, "/* ---- 8< ---") != NULL;
        rulers += ruler;
        if (rulers != 1 || ruler || line[0] == '\n')
            continue;
        const char *text = strncmp(line, "static void", 11) == 0 ? line + strlen("static ") : line;
        snprintf(indented, sizeof indented, "    %s", text);
        at = strstr(at, indented);
        if (!at)
            fail_msg("not in frontends/README.md, or in another order: %s", indented);
        lines++;
    }
    fclose(source);
    assert_true(lines > 5 && lines <= 15);
}

enum { ROWS = 6, LABELS = 4 };
static const double logp[ROWS] = {-0.1, -2, -0.7, -5, -1e-3, -1.3}, weight[ROWS] = {1, 0, 1, 1, 1, 0},
                    entropy[ROWS] = {0.3, 1, 2, 0.5, 0.1, 3};

static sbp_status run_focal(void *user) {
    fixture *f = user;
    sbp_model model;
    sbp_model_options options = sbp_model_options_for(SBP_F64);
    check(f, sbp_model_load(f->arena, f->diag, "tests/golden/llama_plain/model", &options, &model));
    check(f,
          sbp_objective_add(model.module, f->diag, &(sbp_objective_choice){.build = objective_focal}, NULL));
    check(f, sbp_module_verify(model.module, f->diag));
    sbp_func *func;
    check(f, sbp_autodiff_func(model.module, sbp_module_find_func(model.module, "objective"), true, f->diag,
                               &func));
    sbp_eval_env env = {.arena = f->arena, .diag = f->diag};
    env.sizes.v[SBP_ONE] = 1;
    env.sizes.v[SBP_T] = ROWS;
    const struct {
        const char *name;
        const double *data;
        int64_t n;
    } inputs[] = {{"logp", logp, ROWS},
                  {"entropy", entropy, ROWS},
                  {"weight", weight, ROWS},
                  {"labels", (double[]){LABELS}, 1},
                  {"d_loss", (double[]){1}, 1}};
    sbp_tensor **values = SBP_NEW_ARRAY(f->arena, sbp_tensor *, func->value_count);
    for (int32_t i = 0; i < func->arg_count; i++) {
        const sbp_value_info *info = &func->values[func->args[i]];
        sbp_tensor *t = values[func->args[i]] = sbp_tensor_create(f->arena, &info->type, &env.sizes);
        for (int k = 0; k < SBP_COUNT(inputs); k++)
            if (strcmp(info->name, inputs[k].name) == 0)
                memcpy(t->data, inputs[k].data, (size_t)inputs[k].n * sizeof(double));
    }
    check(f, sbp_evaluate(model.module, func, &env, values));
    double loss = 0;
    const sbp_tensor *slope = NULL;
    for (int32_t r = 0; r < func->result_count; r++)
        if (func->results[r].role == SBP_RESULT_GRADIENT &&
            strcmp(func->values[func->results[r].target].name, "logp") == 0)
            slope = values[func->results[r].value];
    assert_non_null(slope);
    for (int t = 0; t < ROWS; t++) {
        double p = exp(logp[t]), want = weight[t] / LABELS * (2 * (1 - p) * p * logp[t] - (1 - p) * (1 - p));
        loss -= weight[t] / LABELS * (1 - p) * (1 - p) * logp[t];
        assert_true(fabs(slope->data[t] - want) <= SBP_TOLERANCE_F64);
    }
    assert_true(fabs(result_of(func, values, "loss")->data[0] - loss) <= SBP_TOLERANCE_F64);
    return SBP_OK;
}

static void test_loss_and_derivative(void **state) {
    (void)state;
    fixture f = fixture_create();
    assert_int_equal(sbp_guard(f.arena, f.diag, run_focal, &f), SBP_OK);
    fixture_destroy(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_it_is_what_the_readme_shows),
                                       cmocka_unit_test(test_loss_and_derivative)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
