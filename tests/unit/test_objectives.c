/* test_objectives.c: every loss type against TRL's own code in float64, from tests/data/objectives.json
 * (tests/golden/make_objectives.py): loss, its derivative with respect to every log-probability, metrics. */
#include "json_cases.h"

#include "frontends/objectives/objective.h"

typedef struct objective_case {
    fixture *f;
    const sbp_json *inputs, *given; /* of the objective, and the case */
    sbp_objective_settings settings;
    const sbp_module *module;
} objective_case;

static void fill(fixture *f, sbp_tensor *t, const sbp_json *list) {
    assert_int_equal(t->elems, list->count);
    for (int64_t i = 0; i < list->count; i++)
        t->data[i] = number(f, &list->items[i]);
}

/* A scalar of the step: a count of the inputs, a setting of the case, or its default. */
static double scalar(const objective_case *c, const char *name) {
    const sbp_json *found = sbp_json_member(member(c->inputs, "scalars"), name);
    if (!found)
        found = sbp_json_member(member(c->given, "settings"), name);
    if (found)
        return number(c->f, found);
    for (int32_t i = 0; i < c->settings.count; i++)
        if (strcmp(c->settings.items[i].name, name) == 0)
            return c->settings.items[i].value;
    fail_msg("no value for scalar '%s'", name);
    return 0;
}

static void bind(const objective_case *c, const sbp_func *func, const sbp_value_info *info, sbp_tensor *t) {
    const sbp_json *rows = member(c->inputs, "rows"), *groups = member(c->inputs, "groups"), *has_old;
    if (info->role == SBP_VALUE_SCALAR) {
        t->data[0] = scalar(c, info->name);
    } else if (info->role == SBP_VALUE_COTANGENT) {
        for (int32_t r = 0; r < func->result_count; r++)
            if (func->results[r].role == SBP_RESULT_VALUE && func->results[r].value == info->binding)
                t->data[0] = strcmp(func->results[r].name, "loss") == 0;
    } else if (strncmp(info->name, "has.", 4) == 0) {
        const sbp_json *list = sbp_json_member(rows, info->name);
        has_old = sbp_json_member(c->given, "has_old");
        bool has = strcmp(info->name, "has.old_logps") != 0 || (has_old && has_old->boolean);
        has = has && (!list || sbp_json_member(c->given, "sampling"));
        for (int64_t i = 0; i < t->elems; i++)
            t->data[i] = has && list ? number(c->f, &list->items[i]) : has;
    } else {
        const sbp_json *list = sbp_json_member(rows, info->name);
        if (!list && c->settings.counted && strcmp(info->name, c->settings.counted) == 0)
            for (int64_t i = 0; i < t->elems; i++)
                t->data[i] = NAN; /* it says which rows are read, and is not read itself */
        else
            fill(c->f, t, list ? list : member(groups, info->name));
    }
}

static void near_to(double got, double want, const char *what, const char *type) {
    if (!(fabs(got - want) <= SBP_TOLERANCE_F64 * fmax(1, fabs(want))))
        fail_msg("%s: %s is %.17g, expected %.17g", type, what, got, want);
}

/* The derivative of the loss with respect to a stream, where the case has one; returns the largest. */
static double compare_slope(const objective_case *c, const sbp_func *func, sbp_tensor **values,
                            const char *stream) {
    const sbp_json *list = sbp_json_member(c->given, sbp_arena_printf(c->f->arena, "d%s", stream));
    const sbp_tensor *slope = NULL;
    double largest = 0;
    for (int32_t r = 0; r < func->result_count; r++)
        if (func->results[r].role == SBP_RESULT_GRADIENT &&
            strcmp(func->values[func->results[r].target].name, stream) == 0)
            slope = values[func->results[r].value];
    for (int64_t i = 0; slope && i < slope->elems; i++) {
        double want = list ? number(c->f, &list->items[i]) : 0;
        largest = fmax(largest, fabs(want));
        near_to(slope->data[i], want, stream, member(c->given, "loss_type")->string);
    }
    assert_true(slope || !list);
    return largest;
}

static void compare(const objective_case *c, const sbp_func *func, sbp_tensor **values) {
    const char *type = member(c->given, "loss_type")->string;
    const sbp_json *metrics = member(c->given, "metrics");
    near_to(result_of(func, values, "loss")->data[0], number(c->f, member(c->given, "loss")), "loss", type);
    assert_true(compare_slope(c, func, values, "logp") * 1000 > 1); /* the case says something */
    compare_slope(c, func, values, "entropy");
    for (int64_t i = 0; i < metrics->count; i++)
        near_to(result_of(func, values, metrics->items[i].key)->data[0], number(c->f, &metrics->items[i]),
                metrics->items[i].key, type);
}

static void run_case(fixture *f, const sbp_json *root, const sbp_json *given) {
    static const char *const tiny[] = {"num_hidden_layers=1"};
    const char *name = member(given, "objective")->string;
    const sbp_json *importance = sbp_json_member(given, "importance");
    const sbp_json *sampling = sbp_json_member(given, "sampling"), *inputs = sbp_json_member(given, "inputs");
    const sbp_objective_request request = {
        .by_sequence = importance && strcmp(importance->string, "sequence") == 0,
        .sampling_mode = sampling ? sampling->string : NULL,
        .entropy_bonus = sbp_json_member(member(given, "settings"), "entropy_coef") != NULL};
    objective_case c = {.f = f, .given = given, .inputs = member(root, inputs ? inputs->string : name)};
    sbp_model model;
    sbp_model_options options = sbp_model_options_for(SBP_F64);
    options.set = tiny;
    options.set_count = 1;
    options.head = sbp_objective_head(name);
    check(f, sbp_model_load(f->arena, f->diag, "tests/golden/llama_plain/model", &options, &model));
    const sbp_objective_choice choice = {
        .name = name, .loss_type = member(given, "loss_type")->string, .request = request};
    check(f, sbp_objective_add(model.module, f->diag, &choice, &c.settings));
    check(f, sbp_module_verify(model.module, f->diag));
    c.module = model.module;
    sbp_func *func;
    check(f, sbp_autodiff_func(model.module, sbp_module_find_func(model.module, "objective"), true, f->diag,
                               &func));
    sbp_eval_env env = {.arena = f->arena, .diag = f->diag};
    env.sizes.v[SBP_ONE] = 1;
    env.sizes.v[SBP_T] = member(member(c.inputs, "rows"), "logp")->count;
    env.sizes.v[SBP_S] = (int64_t)number(f, member(c.inputs, "group_count"));
    sbp_tensor **values = SBP_NEW_ARRAY(f->arena, sbp_tensor *, func->value_count);
    for (int32_t i = 0; i < func->arg_count; i++) {
        const sbp_value_info *info = &func->values[func->args[i]];
        values[func->args[i]] = sbp_tensor_create(f->arena, &info->type, &env.sizes);
        bind(&c, func, info, values[func->args[i]]);
    }
    check(f, sbp_evaluate(model.module, func, &env, values));
    compare(&c, func, values);
}

static void test_trl(void **state) {
    (void)state;
    run_json_cases("tests/data/objectives.json", 66, run_case);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_trl)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
