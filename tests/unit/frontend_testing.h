/* frontend_testing.h: loads a model in double precision, runs @model and an objective through the evaluator
 * on the rows of a golden case, and compares log-probabilities and gradients. No pass but expand and
 * autodiff, no chunks, no schedule: what fails here is wrong in an op, in autodiff or in a frontend. */
#ifndef SBP_TESTS_UNIT_FRONTEND_TESTING_H
#define SBP_TESTS_UNIT_FRONTEND_TESTING_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "frontends/formats/weights/recipe.h"
#include "frontends/formats/weights/weights.h"
#include "frontends/objectives/objective.h"
#include "frontends/source/frontend.h"
#include "ir/graph/evaluate.h"
#include "passes/lower/passes.h"
#include "tests/tolerance.h"

typedef struct fixture {
    sbp_arena *arena;
    sbp_diag *diag;
    bool round;         /* values are rounded to their types, parameters first to the type they are kept in */
    bool round_factors; /* ir/graph/op.h */
    /* For a model with adapters: their file, and the key of what drops. */
    const struct sbp_weights *adapter;
    double random_dropout;
    double balance; /* router_aux_loss_coef */
} fixture;

static inline fixture fixture_create(void) {
    fixture f = {.arena = sbp_arena_create(), .diag = sbp_diag_create()};
    assert_non_null(f.arena);
    assert_non_null(f.diag);
    return f;
}

static inline void fixture_destroy(fixture *f) {
    sbp_arena_destroy(f->arena);
    sbp_diag_destroy(f->diag);
}

/* Fails the test with the messages of diag. */
static inline void check(fixture *f, sbp_status status) {
    if (status != SBP_OK)
        fail_msg("status %d\n%s", (int)status, sbp_diag_text(f->diag, SBP_NOTE));
}

/* The call must have failed, and said this. */
static inline void check_fails(fixture *f, sbp_status status, sbp_status expected, const char *message) {
    const char *text = sbp_diag_text(f->diag, SBP_ERROR);
    if (status != expected || !strstr(text, message))
        fail_msg("expected status %d with '%s', found %d with: %s", (int)expected, message, (int)status,
                 text);
    sbp_diag_clear(f->diag);
}

/* Every allocation of loading a model may fail: a status and no crash. */
static inline void check_no_memory(const char *path) {
    for (int64_t n = 1;; n++) {
        fixture f = fixture_create();
        sbp_model_options options = sbp_model_options_for(SBP_F32);
        sbp_model model;
        sbp_test_fail_allocation(n);
        sbp_status status = sbp_model_load(f.arena, f.diag, path, &options, &model);
        sbp_test_fail_allocation(0);
        fixture_destroy(&f);
        if (status == SBP_OK)
            return;
        assert_int_equal(status, SBP_MACHINE);
        assert_true(n < 10000);
    }
}

/* ---- rows of a batch -------------------------------------------------------------------------------- */

enum { MAX_DOCUMENTS = 64, MAX_ROWS = 1024 };

typedef struct batch {
    int64_t rows, documents, begin[MAX_DOCUMENTS + 1];
    double tok[MAX_ROWS], pos[MAX_ROWS], first[MAX_ROWS], label[MAX_ROWS], weight[MAX_ROWS], doc[MAX_ROWS];
    double labels;  /* counted ones, at least 1 */
    double longest; /* tokens of the longest document */
} batch;

/* One document: ids, and which of them count as labels (NULL: all). */
static inline void batch_add(batch *b, const int64_t *ids, const bool *counted, int64_t n) {
    assert_true(b->documents < MAX_DOCUMENTS && b->rows + n <= MAX_ROWS);
    int64_t first = b->rows;
    for (int64_t i = 0; i < n; i++, b->rows++) {
        bool last = i == n - 1, counts = !last && (!counted || counted[i + 1]);
        b->tok[b->rows] = (double)ids[i];
        b->pos[b->rows] = (double)i;
        b->first[b->rows] = (double)first;
        b->label[b->rows] = last ? 0 : (double)ids[i + 1];
        b->weight[b->rows] = counts;
        b->doc[b->rows] = (double)b->documents;
        b->labels = (b->documents == 0 && i == 0 ? 0 : b->labels) + (counts ? 1 : 0);
    }
    b->begin[b->documents++] = first;
    b->longest = (double)n > b->longest ? (double)n : b->longest;
    b->begin[b->documents] = b->rows;
}

static inline const sbp_json *read_json(fixture *f, const char *path) {
    const sbp_json *root = NULL;
    check(f, sbp_json_read(f->arena, f->diag, path, SBP_JSON_PYTHON, &root));
    return root;
}

/* Puts tokens of one kind at `from` on: a document's, or those behind others. Returns the place
 * behind the last. */
static inline int64_t batch_ids(fixture *f, const sbp_json *row, const char *key, int64_t from,
                                int64_t *out) {
    const sbp_json *ids;
    check(f, sbp_json_get_array(f->diag, row, key, SBP_JSON_REQUIRED, &ids));
    for (int64_t i = 0; i < ids->count; i++)
        out[from + i] = ids->items[i].integer;
    return from + ids->count;
}

/* Lines of {"input_ids", "labels"}, -100 not counted, or of {"prompt_ids", "completion_ids"}, which count. */
static inline batch *batch_read(fixture *f, const char *path) {
    batch *b = test_calloc(1, sizeof *b);
    const char *text;
    size_t length;
    check(f, sbp_file_read(f->arena, f->diag, path, &text, &length));
    for (const char *line = text; *line; line += strcspn(line, "\n"), line += *line == '\n') {
        const sbp_json *row;
        check(f, sbp_json_parse(f->arena, f->diag, path, line, strcspn(line, "\n"), 0, &row));
        int64_t id[MAX_ROWS], label[MAX_ROWS], count;
        bool counted[MAX_ROWS], in_parts = sbp_json_member(row, "prompt_ids") != NULL;
        if (in_parts) {
            int64_t prompt = batch_ids(f, row, "prompt_ids", 0, id);
            count = batch_ids(f, row, "completion_ids", prompt, id);
            for (int64_t i = 0; i < count; i++)
                counted[i] = i >= prompt;
        } else {
            count = batch_ids(f, row, "input_ids", 0, id);
            (void)batch_ids(f, row, "labels", 0, label);
            for (int64_t i = 0; i < count; i++)
                counted[i] = label[i] != -100;
        }
        batch_add(b, id, counted, count);
    }
    if (b->labels < 1)
        b->labels = 1;
    return b;
}

/* ---- running ----------------------------------------------------------------------------------------- */

/* The recipe by which a parameter lies in these weights: its own, or the one of the file it came from. */
static inline const sbp_recipe *recipe_in(const sbp_param *param, const sbp_weights *weights) {
    const char *name = param->recipe ? param->recipe->source : param->name;
    return param->stored && !sbp_weights_find(weights, name) ? param->stored : param->recipe;
}

/* The values of a parameter, in double. */
static inline void read_param(fixture *f, const sbp_weights *weights, const sbp_param *param, double *out,
                              int64_t elems) {
    const sbp_recipe *recipe = recipe_in(param, weights);
    const sbp_weight *w = sbp_weights_find(weights, recipe ? recipe->source : param->name);
    if (!w)
        fail_msg("no tensor '%s'", recipe ? recipe->source : param->name);
    if (!recipe) {
        assert_int_equal(w->elems, elems);
        check(f, sbp_weights_read(weights, w, 0, elems, SBP_F64, out, f->diag));
        return;
    }
    sbp_recipe_map map;
    check(f, sbp_recipe_compile(f->diag, recipe, &map));
    assert_int_equal(map.elems, elems);
    assert_int_equal(map.source_elems, w->elems);
    double *source = SBP_NEW_ARRAY(f->arena, double, w->elems);
    check(f, sbp_weights_read(weights, w, 0, w->elems, SBP_F64, source, f->diag));
    for (int64_t i = 0; i < elems; i++)
        out[i] = sbp_recipe_load_value(recipe, source[sbp_recipe_source_index(&map, i)]);
}

static inline void round_param(fixture *f, const sbp_weights *weights, const sbp_param *param,
                               sbp_tensor *t) {
    if (param->number) {
        t->data[0] = *param->number;
        return;
    }
    read_param(f, param->owner == SBP_OF_ADAPTER ? f->adapter : weights, param, t->data, t->elems);
    for (int64_t i = 0; f->round && i < t->elems; i++)
        t->data[i] = sbp_round_to(param->type.dtype, sbp_round_to(param->storage, t->data[i]));
}

static inline void fill_row(sbp_tensor *t, const batch *b, const char *name) {
    const struct {
        const char *name;
        const double *data;
    } columns[] = {{"tok", b->tok},          {"pos", b->pos},   {"first", b->first},
                   {"shared_end", b->first}, {"own", b->first}, {"label", b->label},
                   {"weight", b->weight},    {"doc", b->doc},   {"sample", b->doc}};
    for (int i = 0; i < SBP_COUNT(columns); i++)
        if (strcmp(columns[i].name, name) == 0) {
            memcpy(t->data, columns[i].data, (size_t)b->rows * sizeof(double));
            return;
        }
    int64_t part = sbp_column_number(name, SBP_OWN_IN_PREFIX);
    for (int64_t i = 0; part > 0 && i < b->rows; i++)
        t->data[i] = b->first[i] + b->pos[i] - (double)((int64_t)b->pos[i] % part);
    if (part > 0)
        return;
    if (sbp_column_number(name, SBP_FIRST_IN_PREFIX) > 0) {
        memcpy(t->data, b->first, (size_t)b->rows * sizeof(double));
        return;
    }
    const int64_t below = sbp_column_number(name, SBP_TOK_BELOW_PREFIX);
    bool copies = strcmp(name, "copies") == 0;
    if (!copies && below == 0)
        fail_msg("no row input '%s'", name);
    for (int64_t i = 0; i < b->rows; i++)
        t->data[i] = copies ? 1 : b->tok[i] < (double)below ? b->tok[i] : 0;
}

static inline double scalar_of(const fixture *f, const batch *b, const char *name) {
    const struct {
        const char *name;
        double value;
    } scalars[] = {{"labels", b->labels},
                   {"longest", b->longest},
                   {"adapter", 1},
                   {"dropout", 1},
                   {"parts", 1},
                   {"router_aux_loss_coef", f->balance},
                   {"random_dropout", f->random_dropout}};
    for (int i = 0; i < SBP_COUNT(scalars); i++)
        if (strcmp(scalars[i].name, name) == 0)
            return scalars[i].value;
    fail_msg("no scalar '%s'", name);
    return 0;
}

/* Evaluates a function of the module: rows from the batch, parameters from the weights, cotangents 1 for the
 * argument called `wrt` ("d_loss"), 0 for others. */
static inline sbp_tensor **run(fixture *f, const sbp_module *m, const sbp_func *func, const batch *b,
                               const sbp_weights *weights, const char *wrt) {
    sbp_eval_env env = {
        .arena = f->arena, .diag = f->diag, .round = f->round, .round_factors = f->round_factors};
    env.sizes.v[SBP_ONE] = 1;
    env.sizes.v[SBP_T] = env.sizes.v[SBP_C] = env.sizes.v[SBP_H] = b->rows;
    env.sizes.v[SBP_S] = b->documents;
    sbp_tensor **values = SBP_NEW_ARRAY(f->arena, sbp_tensor *, func->value_count);
    for (int32_t i = 0; i < func->arg_count; i++) {
        sbp_value arg = func->args[i];
        const sbp_value_info *info = &func->values[arg];
        if (info->role == SBP_VALUE_CONST)
            continue;
        sbp_tensor *t = values[arg] = sbp_tensor_create(f->arena, &info->type, &env.sizes);
        if (info->role == SBP_VALUE_ROW)
            fill_row(t, b, m->rows[info->binding].name);
        else if (info->role == SBP_VALUE_PARAM)
            round_param(f, weights, &m->params[info->binding], t);
        else if (info->role == SBP_VALUE_SCALAR)
            t->data[0] = scalar_of(f, b, m->scalars[info->binding]);
        else if (wrt && info->role == SBP_VALUE_COTANGENT && strcmp(info->name, wrt) == 0)
            t->data[0] = 1;
    }
    check(f, sbp_evaluate(m, func, &env, values));
    return values;
}

static inline const sbp_tensor *result_of(const sbp_func *func, sbp_tensor **values, const char *name) {
    for (int32_t r = 0; r < func->result_count; r++)
        if (func->results[r].role == SBP_RESULT_VALUE && func->results[r].name &&
            strcmp(func->results[r].name, name) == 0)
            return values[func->results[r].value];
    fail_msg("no result '%s'", name);
    return NULL;
}

/* The sum is what is called so, which the name of its cotangent follows. */
static inline void add_to_loss(sbp_func *func, sbp_builder *b, sbp_result *loss, sbp_value number) {
    sbp_value sum = sbp_build2(b, SBP_OP_add, loss->value, number);
    func->values[loss->value].name = func->values[sum].name;
    func->values[sum].name = "loss";
    sbp_map_set(&func->names, func->values[loss->value].name, loss->value);
    sbp_map_set(&func->names, "loss", sum);
    loss->value = sum;
}

/* Appends @statistics to @model, of which the result is added to the loss. */
static inline void append_statistics(fixture *f, sbp_module *m, sbp_objective *o,
                                     const sbp_balance *balance) {
    sbp_func *func = sbp_module_find_func(m, "model"), *of;
    int32_t kept = 0;
    check(f, sbp_objective_add_statistics(o, func, balance));
    of = sbp_module_find_func(m, "statistics");
    if (!of)
        return;
    m->func_count--;
    sbp_value *map = SBP_NEW_ARRAY(f->arena, sbp_value, of->value_count + 1);
    for (int32_t v = 0; v < of->value_count; v++)
        map[v] = SBP_NO_VALUE;
    for (int32_t i = 0; i < of->arg_count; i++) {
        const sbp_value_info *info = &of->values[of->args[i]];
        if (info->role == SBP_VALUE_SCALAR)
            map[of->args[i]] = sbp_build_scalar(o->builder, m->scalars[info->binding]);
    }
    for (int32_t i = 0; i < func->result_count; i++) { /* those of all layers add up */
        const sbp_result *result = &func->results[i];
        sbp_value arg = result->role == SBP_RESULT_STATISTIC ? sbp_map_get(&of->names, result->name) : -1;
        if (result->role != SBP_RESULT_STATISTIC)
            func->results[kept++] = *result;
        else if (arg >= 0 && map[arg] == SBP_NO_VALUE)
            map[arg] = result->value;
        else if (arg >= 0)
            map[arg] = sbp_build2(o->builder, SBP_OP_add, map[arg], result->value);
    }
    func->result_count = kept;
    check(f, o->builder->status);
    sbp_func_copy_ops(of, func, map, NULL);
    for (int32_t i = 0; i < of->result_count; i++) {
        sbp_value number = sbp_build_reshape(o->builder, map[of->results[i].value], NULL, 0);
        for (int32_t r = 0; r < kept && strcmp(of->results[i].name, "loss") == 0; r++)
            if (strcmp(func->results[r].name, "loss") == 0)
                add_to_loss(func, o->builder, &func->results[r], number);
        if (strcmp(of->results[i].name, "loss") != 0)
            sbp_func_add_result(func, number, SBP_RESULT_VALUE, SBP_NO_VALUE, of->results[i].name);
    }
    f->balance = balance->coefficient;
}

/* @model's results behind its statistics, which stand before them. */
static inline const sbp_result *results_of_head(const sbp_func *func) {
    int32_t first = 0;
    while (first < func->result_count && func->results[first].role == SBP_RESULT_STATISTIC)
        first++;
    assert_int_equal(func->result_count - first, 3);
    return &func->results[first];
}

/* Appends the objective to @model, so that both are one function with the results of the objective. */
static inline void append_objective(fixture *f, const sbp_model *model, sbp_objective_builder build,
                                    const char *loss_type) {
    sbp_module *m = model->module;
    sbp_func *func = sbp_module_find_func(m, "model");
    sbp_builder builder = sbp_builder_on(m, func, f->diag);
    const sbp_result *head = results_of_head(func);
    sbp_objective o = {.builder = &builder,
                       .loss_type = loss_type,
                       .dtype = func->values[head[0].value].type.dtype,
                       .logp = head[0].value,
                       .entropy = head[1].value,
                       .hit = head[2].value};
    assert_string_equal(head[0].name, "logp");
    assert_string_equal(head[1].name, "entropy");
    assert_string_equal(head[2].name, "hit");
    func->result_count -= 3;
    build(&o);
    append_statistics(f, m, &o, &model->balance);
    check(f, builder.status);
}

/* @model with its reverse sweep, everything in primitives. */
static inline sbp_func *differentiate(fixture *f, sbp_module *m, const sbp_func *func) {
    sbp_func *expanded, *derived, *late;
    check(f, sbp_expand_func(m, func, false, f->diag, &expanded));
    check(f, sbp_autodiff_func(m, expanded, false, f->diag, &derived));
    check(f, sbp_expand_func(m, derived, true, f->diag, &late));
    check(f, sbp_func_verify(m, late, f->diag));
    return late;
}

/* ---- comparing --------------------------------------------------------------------------------------- */

/* ||x - y|| / ||y||; 0 when both are 0 */
static inline double relative_error(const double *x, const double *y, int64_t n) {
    double difference = 0, norm = 0;
    for (int64_t i = 0; i < n; i++) {
        difference += (x[i] - y[i]) * (x[i] - y[i]);
        norm += y[i] * y[i];
    }
    if (norm == 0)
        return difference == 0 ? 0 : (double)INFINITY;
    return sqrt(difference / norm);
}

/* Adds the gradient of parameter p, as its recipe places it, to got. Returns whether the function has one. */
static inline bool add_gradient(fixture *f, const sbp_module *m, const sbp_func *func, sbp_tensor **values,
                                int32_t p, double *got, int64_t elems) {
    const sbp_param *param = &m->params[p];
    bool any = false;
    for (int32_t r = 0; r < func->result_count; r++) {
        const sbp_result *result = &func->results[r];
        if (result->role != SBP_RESULT_GRADIENT || func->values[result->target].binding != p)
            continue;
        const sbp_tensor *g = values[result->value];
        sbp_recipe_map map = {.elems = elems, .source_elems = elems};
        if (param->recipe)
            check(f, sbp_recipe_compile(f->diag, param->recipe, &map));
        assert_int_equal(g->elems, map.elems);
        assert_int_equal(elems, map.source_elems);
        for (int64_t i = 0; i < g->elems; i++)
            got[param->recipe ? sbp_recipe_source_index(&map, i) : i] += g->data[i];
        any = true;
    }
    return any;
}

/* What a tensor of the file differs by from the gradient of the parameters that it is, added up. */
typedef struct gradient_errors {
    double worst, whole; /* relative: the largest of any tensor, and of all of them as one vector */
    const char *tensor;  /* the worst */
} gradient_errors;

/* Every tensor of the file is the gradient of trainable parameters, and nothing else is trainable. */
static inline gradient_errors measure_gradients(fixture *f, const sbp_module *m, const sbp_func *func,
                                                sbp_tensor **values, const sbp_weights *golden,
                                                double tolerance) {
    gradient_errors errors = {0};
    double difference = 0, norm = 0;
    int32_t compared = 0, trainable = 0;
    sbp_map stacked; /* tensors that are compared as a part of their stack */
    sbp_map_init(&stacked, f->arena);
    for (int32_t p = 0; p < m->param_count; p++)
        for (int64_t k = 0; m->params[p].recipe && k < sbp_recipe_tensors(m->params[p].recipe); k++)
            if (m->params[p].recipe->stacked)
                sbp_map_set(&stacked, sbp_recipe_tensor_name(f->arena, m->params[p].recipe, k), p);
    for (int32_t i = 0; i < sbp_weights_count(golden); i++) {
        const sbp_weight *w = sbp_weights_at(golden, i);
        int32_t stack = sbp_map_get(&stacked, w->name);
        if (stack >= 0) {
            w = sbp_weights_find(golden, m->params[stack].recipe->source);
            if (!w || strcmp(w->parts[0]->name, sbp_weights_at(golden, i)->name) != 0)
                continue; /* with the first one */
        }
        double *want = SBP_NEW_ARRAY(f->arena, double, w->elems),
               *got = SBP_NEW_ARRAY(f->arena, double, w->elems);
        check(f, sbp_weights_read(golden, w, 0, w->elems, SBP_F64, want, f->diag));
        for (int32_t p = 0; p < m->param_count; p++) {
            const sbp_param *param = &m->params[p];
            if (param->trainable && strcmp(param->recipe ? param->recipe->source : param->name, w->name) == 0)
                compared += add_gradient(f, m, func, values, p, got, w->elems);
        }
        double error = relative_error(got, want, w->elems);
        if (!(error <= tolerance))
            fail_msg("gradient of '%s': relative error %g", w->name, error);
        if (error >= errors.worst) {
            errors.worst = error;
            errors.tensor = w->name;
        }
        for (int64_t k = 0; k < w->elems; k++) {
            difference += (got[k] - want[k]) * (got[k] - want[k]);
            norm += want[k] * want[k];
        }
    }
    for (int32_t p = 0; p < m->param_count; p++)
        trainable += m->params[p].trainable;
    assert_int_equal(compared, trainable);
    errors.whole = norm > 0 ? sqrt(difference / norm) : 0;
    return errors;
}

/* logprobs of expect.json: per document, of every next token. Returns the largest difference. */
static inline double compare_logprobs(const sbp_tensor *logp, const batch *b, const sbp_json *expected,
                                      double tolerance) {
    double worst = 0;
    assert_int_equal(expected->count, b->documents);
    for (int64_t d = 0; d < b->documents; d++) {
        const sbp_json *list = &expected->items[d];
        assert_int_equal(list->count, b->begin[d + 1] - b->begin[d] - 1);
        for (int64_t i = 0; i < list->count; i++) {
            double difference = fabs(logp->data[b->begin[d] + i] - list->items[i].real);
            if (!(difference <= tolerance))
                fail_msg("document %lld, token %lld: log-probability %.15g, expected %.15g", (long long)d,
                         (long long)i, logp->data[b->begin[d] + i], list->items[i].real);
            worst = difference > worst ? difference : worst;
        }
    }
    return worst;
}

/* ---- golden cases ------------------------------------------------------------------------------------ */

static inline const char *loss_type_of(fixture *f, const char *directory) {
    const sbp_json *args = read_json(f, sbp_file_join(f->arena, directory, "args.json"));
    const sbp_json *compile = sbp_json_member(args, "compile");
    for (int64_t i = 0; i + 1 < compile->count; i++)
        if (strcmp(compile->items[i].string, "--loss-type") == 0)
            return compile->items[i + 1].string;
    return NULL;
}

static inline void check_metric(const sbp_func *func, sbp_tensor **values, const char *name,
                                const sbp_json *expected) {
    double got = result_of(func, values, name)->data[0];
    if (!(fabs(got - expected->real) <= SBP_TOLERANCE_F64 * fmax(1, fabs(expected->real))))
        fail_msg("%s is %.17g, expected %.17g", name, got, expected->real);
}

/* The step of a golden case (tests/golden/README.md): loss, metrics, log-probabilities, all gradients. */
static inline void compare_case(fixture *f, const char *directory, sbp_model *model) {
    append_objective(f, model, sbp_objective_find("sft"), loss_type_of(f, directory));
    check(f, sbp_module_verify(model->module, f->diag));
    sbp_func *func = differentiate(f, model->module, sbp_module_find_func(model->module, "model"));
    batch *b = batch_read(f, sbp_file_join(f->arena, directory, "train.jsonl"));
    sbp_weights *weights, *golden;
    check(f, sbp_weights_open(f->arena, f->diag, model->weights, &weights));
    check(f, sbp_weights_open(f->arena, f->diag, sbp_file_join(f->arena, directory, "grads.safetensors"),
                              &golden));
    sbp_tensor **values = run(f, model->module, func, b, weights, "d_loss");
    const sbp_json *expect = read_json(f, sbp_file_join(f->arena, directory, "expect.json"));
    check_metric(func, values, "loss", sbp_json_member(expect, "loss"));
    const sbp_json *metrics = sbp_json_member(expect, "metrics");
    check_metric(func, values, "entropy", sbp_json_member(metrics, "entropy"));
    check_metric(func, values, "mean_token_accuracy", sbp_json_member(metrics, "mean_token_accuracy"));
    if (sbp_json_member(metrics, "aux_loss"))
        check_metric(func, values, "aux_loss", sbp_json_member(metrics, "aux_loss"));
    const sbp_tensor *logp = values[sbp_map_get(&func->names, "logp")];
    double worst_logp =
        compare_logprobs(logp, b, sbp_json_member(expect, "logprobs"), SBP_TOLERANCE_LOGP_F64);
    double worst = measure_gradients(f, model->module, func, values, golden, SBP_TOLERANCE_F64).worst;
    printf("  %-46s logp %.1e, gradients %.1e of %d parameters\n", directory, worst_logp, worst,
           model->module->param_count);
    sbp_weights_close(weights);
    sbp_weights_close(golden);
    test_free(b);
}

/* The same loss, log-probabilities and gradients as the golden case, up to eps, which ONNX rounds to fp32. */
static inline void compare_model(fixture *f, const char *golden, sbp_model *model) {
    append_objective(f, model, sbp_objective_find("sft"), NULL);
    check(f, sbp_module_verify(model->module, f->diag));
    sbp_func *func = differentiate(f, model->module, sbp_module_find_func(model->module, "model"));
    batch *b = batch_read(f, sbp_file_join(f->arena, golden, "train.jsonl"));
    sbp_weights *weights, *grads;
    check(f, sbp_weights_open(f->arena, f->diag, model->weights, &weights));
    check(f,
          sbp_weights_open(f->arena, f->diag, sbp_file_join(f->arena, golden, "grads.safetensors"), &grads));
    sbp_tensor **values = run(f, model->module, func, b, weights, "d_loss");
    const sbp_json *expect = read_json(f, sbp_file_join(f->arena, golden, "expect.json"));
    double loss = result_of(func, values, "loss")->data[0], expected = sbp_json_member(expect, "loss")->real;
    assert_true(fabs(loss - expected) <= SBP_TOLERANCE_FROM_F32 * expected);
    double worst = measure_gradients(f, model->module, func, values, grads, SBP_TOLERANCE_FROM_F32).worst;
    printf("  %-46s loss %.1e, gradients %.1e of %d parameters\n", golden, fabs(loss - expected), worst,
           model->module->param_count);
    sbp_weights_close(weights);
    sbp_weights_close(grads);
    test_free(b);
}

#endif
