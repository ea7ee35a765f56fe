/* test_frontend_objective.c: values and derivatives of the objectives against formulas written out here, and
 * how their derivatives depend on rows. */
#include "frontend_testing.h"

#include "objective_test_group.h"

static const char *const tiny[] = {"num_hidden_layers=1"};

static void load_tiny(fixture *f, sbp_dtype compute, sbp_model *model) {
    sbp_model_options options = sbp_model_options_for(compute);
    options.set = tiny;
    options.set_count = 1;
    check(f, sbp_model_load(f->arena, f->diag, "tests/golden/llama_plain/model", &options, model));
}

static sbp_status add(fixture *f, sbp_model *model, const sbp_objective_choice *choice) {
    return sbp_objective_add(model->module, f->diag, choice, NULL);
}

/* The objective's function alone, differentiated with respect to its streams. */
static sbp_func *derive(fixture *f, sbp_module *m) {
    sbp_func *out;
    check(f, sbp_autodiff_func(m, sbp_module_find_func(m, "objective"), true, f->diag, &out));
    check(f, sbp_func_verify(m, out, f->diag));
    return out;
}

enum { ROWS = 7 };
static const double logp[ROWS] = {-1.5, -0.25, -3, -0.5, -2, -1, -0.75},
                    entropy[ROWS] = {1, 2, 0.5, 1.5, 3, 0.25, 2}, hit[ROWS] = {0, 1, 0, 1, 1, 0, 1},
                    weight[ROWS] = {1, 1, 0, 1, 0, 1, 0}, doc[ROWS] = {0, 0, 0, 1, 1, 1, 2};
enum { LABELS = 5 }; /* of the step; four are in this micro-batch */

static sbp_tensor **evaluate(fixture *f, const sbp_module *m, const sbp_func *func) {
    sbp_eval_env env = {.arena = f->arena, .diag = f->diag};
    env.sizes.v[SBP_ONE] = 1;
    env.sizes.v[SBP_T] = ROWS;
    env.sizes.v[SBP_S] = 3;
    sbp_tensor **values = SBP_NEW_ARRAY(f->arena, sbp_tensor *, func->value_count);
    const struct {
        const char *name;
        const double *data;
        int64_t n;
    } inputs[] = {{"logp", logp, ROWS},        {"entropy", entropy, ROWS}, {"hit", hit, ROWS},
                  {"weight", weight, ROWS},    {"doc", doc, ROWS},         {"labels", (double[]){LABELS}, 1},
                  {"d_loss", (double[]){1}, 1}};
    for (int32_t i = 0; i < func->arg_count; i++) {
        const sbp_value_info *info = &func->values[func->args[i]];
        sbp_tensor *t = values[func->args[i]] = sbp_tensor_create(f->arena, &info->type, &env.sizes);
        for (int k = 0; k < SBP_COUNT(inputs); k++)
            if (strcmp(info->name, inputs[k].name) == 0) {
                assert_int_equal(t->elems, inputs[k].n);
                memcpy(t->data, inputs[k].data, (size_t)t->elems * sizeof(double));
            }
    }
    check(f, sbp_evaluate(m, func, &env, values));
    return values;
}

static const sbp_tensor *gradient_of(const sbp_func *func, sbp_tensor **values, const char *argument) {
    for (int32_t r = 0; r < func->result_count; r++)
        if (func->results[r].role == SBP_RESULT_GRADIENT &&
            strcmp(func->values[func->results[r].target].name, argument) == 0)
            return values[func->results[r].value];
    return NULL;
}

static void near(double got, double want) {
    if (!(fabs(got - want) <= SBP_TOLERANCE_F64))
        fail_msg("%.17g, expected %.17g", got, want);
}

static sbp_status run_sft(void *user) {
    fixture *f = user;
    for (int dft = 0; dft < 2; dft++) {
        sbp_model model;
        load_tiny(f, SBP_F64, &model);
        check(f, add(f, &model, &(sbp_objective_choice){.name = "sft", .loss_type = dft ? "dft" : NULL}));
        check(f, sbp_module_verify(model.module, f->diag));
        sbp_func *func = derive(f, model.module);
        sbp_tensor **values = evaluate(f, model.module, func);
        const sbp_tensor *dlogp = gradient_of(func, values, "logp");
        double loss = 0, mean_entropy = 0, accuracy = 0;
        for (int t = 0; t < ROWS; t++) {
            double factor = weight[t] / LABELS * (dft ? exp(logp[t]) : 1);
            loss -= factor * logp[t];
            mean_entropy += weight[t] / LABELS * entropy[t];
            accuracy += weight[t] / LABELS * hit[t];
            near(dlogp->data[t], -factor);
        }
        near(result_of(func, values, "loss")->data[0], loss);
        near(result_of(func, values, "entropy")->data[0], mean_entropy);
        near(result_of(func, values, "mean_token_accuracy")->data[0], accuracy);
        assert_string_equal(func->results[0].name, "loss");
    }
    return SBP_OK;
}

static void test_sft(void **state) {
    (void)state;
    fixture f = fixture_create();
    assert_int_equal(sbp_guard(f.arena, f.diag, run_sft, &f), SBP_OK);
    fixture_destroy(&f);
}

static sbp_status run_group(void *user) {
    fixture *f = user;
    sbp_model model;
    load_tiny(f, SBP_F64, &model);
    check(f, add(f, &model, &(sbp_objective_choice){.build = objective_test_group}));
    sbp_func *func = derive(f, model.module);
    sbp_tensor **values = evaluate(f, model.module, func);
    double s[3] = {0}, loss = 0;
    for (int t = 0; t < ROWS; t++)
        s[(int)doc[t]] += weight[t] * logp[t] / LABELS;
    for (int d = 0; d < 3; d++)
        loss += s[d] * s[d];
    near(result_of(func, values, "loss")->data[0], loss);
    for (int t = 0; t < ROWS; t++)
        near(gradient_of(func, values, "logp")->data[t], 2 * weight[t] / LABELS * s[(int)doc[t]]);
    return SBP_OK;
}

static void test_group(void **state) {
    (void)state;
    fixture f = fixture_create();
    assert_int_equal(sbp_guard(f.arena, f.diag, run_group, &f), SBP_OK);
    fixture_destroy(&f);
}

/* How a value depends on rows of the stream logp. */
static sbp_seq dependence(const sbp_func *func, sbp_value value) {
    const sbp_value_info *info = &func->values[value];
    if (info->op < 0)
        return sbp_seq_of(strcmp(info->name, "logp") == 0 ? SBP_SEQ_ROW : SBP_SEQ_NONE);
    const sbp_op *op = &func->ops[info->op];
    int32_t result = 0;
    while (op->results[result] != value)
        result++;
    sbp_seq all = sbp_seq_of(SBP_SEQ_NONE);
    for (int32_t k = 0; k < op->operand_count; k++) {
        if (op->operands[k] == SBP_NO_VALUE)
            continue;
        sbp_seq inner = dependence(func, op->operands[k]);
        if (inner.kind != SBP_SEQ_NONE)
            all = sbp_seq_join(all, sbp_seq_compose(sbp_op_seq(func, op, k, result), inner,
                                                    sbp_type_rows(&info->type) != SBP_ONE));
    }
    return all;
}

static sbp_status run_dependence(void *user) {
    fixture *f = user;
    static const struct {
        const char *loss_type;
        sbp_objective_builder build;
        sbp_seq_kind expected;
    } cases[] = {{NULL, sbp_objective_sft, SBP_SEQ_NONE},
                 {"dft", sbp_objective_sft, SBP_SEQ_ROW},
                 {NULL, objective_test_group, SBP_SEQ_GROUP}};
    for (int i = 0; i < SBP_COUNT(cases); i++) {
        sbp_model model;
        load_tiny(f, SBP_F32, &model);
        check(f, add(f, &model,
                     &(sbp_objective_choice){.build = cases[i].build, .loss_type = cases[i].loss_type}));
        sbp_func *func = derive(f, model.module);
        for (int32_t r = 0; r < func->result_count; r++)
            if (func->results[r].role == SBP_RESULT_GRADIENT &&
                strcmp(func->values[func->results[r].target].name, "logp") == 0)
                assert_int_equal(dependence(func, func->results[r].value).kind, cases[i].expected);
    }
    return SBP_OK;
}

static void test_dependence(void **state) {
    (void)state;
    fixture f = fixture_create();
    assert_int_equal(sbp_guard(f.arena, f.diag, run_dependence, &f), SBP_OK);
    fixture_destroy(&f);
}

static void test_errors(void **state) {
    (void)state;
    fixture f = fixture_create();
    sbp_model model;
    load_tiny(&f, SBP_F32, &model);
    check_fails(&f, add(&f, &model, &(sbp_objective_choice){.name = "xpo"}), SBP_USAGE,
                "unknown objective 'xpo'; there are: sft");
    check_fails(&f, add(&f, &model, &(sbp_objective_choice){.name = "sft", .loss_type = "focal"}), SBP_USAGE,
                "objective sft has no loss type 'focal'; there are: nll (or chunked_nll), dft");
    assert_string_equal(sbp_objective_name(0), "sft");
    assert_null(sbp_objective_name(SBP_OBJECTIVE_COUNT));
    fixture_destroy(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sft),
        cmocka_unit_test(test_group),
        cmocka_unit_test(test_dependence),
        cmocka_unit_test(test_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
