/* test_ppo.c: advantages, returns, loss and its derivatives by log-probabilities and values against the lines
 * of TRL's PPOTrainer in float64, from tests/data/ppo.json (tests/golden/make_ppo.py). What @prepare makes of
 * the data is what the loss then reads. */
#include "json_cases.h"

#include "frontends/objectives/objective.h"
#include "ir/graph/prepare.h"

typedef struct ppo_case {
    fixture *f;
    const sbp_json *docs, *given;
    sbp_objective_settings settings;
    const sbp_prepare *prepare;
    int64_t rows, labels;
    double *inputs[16], *columns[8], numbers[8], scalars[16];
} ppo_case;

static int64_t rows_of(const ppo_case *c, int64_t d) {
    const sbp_json *doc = &c->docs->items[d];
    return (int64_t)number(c->f, member(doc, "prompt")) + member(doc, "old_logps")->count;
}

/* What the list says of a row: lists begin with the row before the answer. */
static double of_list(const ppo_case *c, const sbp_json *list, int64_t d, int64_t row) {
    int64_t at = row - (int64_t)number(c->f, member(&c->docs->items[d], "prompt")) + 1;
    return at >= 0 && at < list->count ? number(c->f, &list->items[at]) : 0;
}

static double cell(const ppo_case *c, const char *name, int64_t d, int64_t row) {
    const sbp_json *doc = &c->docs->items[d], *old = member(doc, "old_logps");
    if (strcmp(name, "doc") == 0)
        return (double)d;
    if (strcmp(name, "predicted") == 0)
        return row + 1 < rows_of(c, d);
    if (strcmp(name, "doc.labels") == 0)
        return (double)old->count;
    if (strcmp(name, "weight") == 0)
        return row + 1 >= (int64_t)number(c->f, member(doc, "prompt")) && row + 1 < rows_of(c, d);
    if (strncmp(name, "has.", 4) == 0)
        return 1;
    if (strcmp(name, "logp") == 0 ||
        strcmp(name, "value") == 0) { /* prompts have some too, which nothing reads */
        const sbp_json *list = member(doc, *name == 'l' ? "logps" : "values");
        return row + 1 < (int64_t)number(c->f, member(doc, "prompt")) ? -0.7 : of_list(c, list, d, row);
    }
    const sbp_json *value = member(doc, name);
    return value->kind == SBP_JSON_ARRAY ? of_list(c, value, d, row) : number(c->f, value);
}

static double *fill(const ppo_case *c, const char *name) {
    double *out = SBP_NEW_ARRAY(c->f->arena, double, c->rows);
    int64_t at = 0;
    for (int64_t d = 0; d < c->docs->count; d++)
        for (int64_t row = 0; row < rows_of(c, d); row++)
            out[at++] = cell(c, name, d, row);
    return out;
}

static double scalar(const ppo_case *c, const char *name) {
    const sbp_json *chosen = sbp_json_member(member(c->given, "settings"), name);
    if (strcmp(name, "labels") == 0)
        return (double)c->labels;
    if (strcmp(name, "docs") == 0)
        return (double)c->docs->count;
    if (chosen)
        return chosen->kind == SBP_JSON_STRING ? strcmp(chosen->string, "k3") == 0 : number(c->f, chosen);
    for (int32_t i = 0; i < c->settings.count; i++)
        if (strcmp(c->settings.items[i].name, name) == 0)
            return c->settings.items[i].value;
    for (int32_t i = 0; i < c->prepare->number_count; i++)
        if (strcmp(c->prepare->numbers[i], name) == 0)
            return c->numbers[i];
    fail_msg("no value for scalar '%s'", name);
    return 0;
}

static void near_to(double got, double want, const char *what) {
    if (!(fabs(got - want) <= SBP_TOLERANCE_F64 * fmax(1, fabs(want))))
        fail_msg("%s is %.17g, expected %.17g", what, got, want);
}

static void compare_rows(const ppo_case *c, const double *got, const sbp_json *lists, const char *what) {
    double largest = 0;
    for (int64_t d = 0, at = 0; d < c->docs->count; d++)
        for (int64_t row = 0; row < rows_of(c, d); row++, at++) {
            near_to(got[at], of_list(c, &lists->items[d], d, row), what);
            largest = fmax(largest, fabs(got[at]));
        }
    assert_true(largest * 1000 > 1);
}

static void prepare(ppo_case *c) {
    sbp_text text;
    sbp_text_init(&text, c->f->arena);
    sbp_module_print(&text, c->settings.prepare);
    check(c->f, sbp_prepare_parse(c->f->arena, c->f->diag, "prepare", text.data, text.length, &c->prepare));
    const sbp_prepare *p = c->prepare;
    assert_true(p->row_count <= SBP_COUNT(c->inputs) && p->column_count <= SBP_COUNT(c->columns));
    for (int32_t i = 0; i < p->row_count; i++)
        c->inputs[i] = fill(c, p->rows[i]);
    for (int32_t i = 0; i < p->column_count; i++)
        c->columns[i] = SBP_NEW_ARRAY(c->f->arena, double, c->rows);
    for (int32_t i = 0; i < p->scalar_count; i++)
        c->scalars[i] = scalar(c, p->scalars[i]);
    check(c->f, sbp_prepare_run(p, c->f->diag, c->rows, c->docs->count, c->inputs, c->scalars, c->columns,
                                c->numbers));
    const sbp_json *columns = member(c->given, "columns"), *numbers = member(c->given, "numbers");
    int found = 0;
    for (int32_t i = 0; i < p->column_count; i++) {
        compare_rows(c, c->columns[i], member(columns, p->columns[i]), p->columns[i]);
        found++;
    }
    assert_int_equal(found, columns->count);
    for (int64_t k = 0; k < numbers->count; k++)
        near_to(scalar(c, numbers->items[k].key), number(c->f, &numbers->items[k]), numbers->items[k].key);
}

static void bind(const ppo_case *c, const sbp_func *func, const sbp_value_info *info, sbp_tensor *t) {
    if (info->role == SBP_VALUE_SCALAR) {
        t->data[0] = scalar(c, info->name);
        return;
    }
    if (info->role == SBP_VALUE_COTANGENT) {
        for (int32_t r = 0; r < func->result_count; r++)
            if (func->results[r].role == SBP_RESULT_VALUE && func->results[r].value == info->binding)
                t->data[0] = strcmp(func->results[r].name, "loss") == 0;
        return;
    }
    if (strcmp(info->name, "entropy") == 0 || strcmp(info->name, "hit") == 0)
        return;
    t->data = NULL;
    for (int32_t i = 0; i < c->prepare->column_count; i++)
        if (strcmp(c->prepare->columns[i], info->name) == 0)
            t->data = c->columns[i];
    if (!t->data)
        t->data = fill(c, info->name);
}

static void run_case(fixture *f, const sbp_json *root, const sbp_json *given) {
    const sbp_json *docs = member(root, "docs");
    static const char *const tiny[] = {"num_hidden_layers=1"};
    ppo_case c = {.f = f, .given = given, .docs = docs};
    sbp_model model;
    sbp_model_options options = sbp_model_options_for(SBP_F64);
    options.set = tiny;
    options.set_count = 1;
    options.head = sbp_objective_head("ppo");
    check(f, sbp_model_load(f->arena, f->diag, "tests/golden/llama_plain/model", &options, &model));
    const sbp_objective_choice choice = {.name = "ppo"};
    check(f, sbp_objective_add(model.module, f->diag, &choice, &c.settings));
    check(f, sbp_module_verify(model.module, f->diag));
    for (int64_t d = 0; d < docs->count; d++) {
        c.rows += rows_of(&c, d);
        c.labels += member(&docs->items[d], "old_logps")->count;
    }
    prepare(&c);
    sbp_func *func;
    check(f, sbp_autodiff_func(model.module, sbp_module_find_func(model.module, "objective"), true, f->diag,
                               &func));
    sbp_eval_env env = {.arena = f->arena, .diag = f->diag};
    env.sizes.v[SBP_ONE] = 1;
    env.sizes.v[SBP_T] = c.rows;
    sbp_tensor **values = SBP_NEW_ARRAY(f->arena, sbp_tensor *, func->value_count);
    for (int32_t i = 0; i < func->arg_count; i++) {
        const sbp_value_info *info = &func->values[func->args[i]];
        values[func->args[i]] = sbp_tensor_create(f->arena, &info->type, &env.sizes);
        bind(&c, func, info, values[func->args[i]]);
    }
    check(f, sbp_evaluate(model.module, func, &env, values));
    near_to(result_of(func, values, "loss")->data[0], number(c.f, member(given, "loss")), "loss");
    int slopes = 0;
    for (int32_t r = 0; r < func->result_count; r++) {
        const sbp_result *result = &func->results[r];
        const char *of = result->role == SBP_RESULT_GRADIENT ? func->values[result->target].name : "";
        if (strcmp(of, "logp") != 0 && strcmp(of, "value") != 0)
            continue;
        compare_rows(&c, values[result->value]->data, member(given, *of == 'l' ? "dlogp" : "dvalue"), of);
        slopes++;
    }
    assert_int_equal(slopes, 2);
    const sbp_json *metrics = member(given, "metrics");
    for (int64_t i = 0; i < metrics->count; i++)
        near_to(result_of(func, values, metrics->items[i].key)->data[0], number(c.f, &metrics->items[i]),
                metrics->items[i].key);
}

static void test_trl(void **state) {
    (void)state;
    run_json_cases("tests/data/ppo.json", 3, run_case);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_trl)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
