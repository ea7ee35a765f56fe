#include "tests/common/whole_step.h"

#include "backends/cpu/cpu_device.h"
#include "frontends/formats/weights/weights.h"
#include "frontends/source/frontend.h"
#include "runtime/run/executor.h"
#include "tests/common/compile_model.h"
#include "tests/common/documents.h"
#include "tests/common/graphs.h"
#include "tests/tolerance.h"
#include "tests/unit/objective_test_group.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { T_MAX = WHOLE_STEP_ROWS, MAX_PARAMS = 64 };

/* Micro-batches of the step: documents of 2, 1, 8 and 6 rows; of 2, 1 and 2; a row alone; none that counts.
 */
static const int64_t batch_rows[] = {T_MAX, 5, 1, 4};
enum { PARTS = 2 }; /* what sums over micro-batches are divided by, where they are */
enum { BATCHES = 4, MASKED = 3, DOCUMENTS = T_MAX + 5 + 1 + 4 };

typedef struct batch {
    int64_t rows, documents;
    int32_t tok[T_MAX], pos[T_MAX], first[T_MAX], label[T_MAX], doc[T_MAX];
    double weight[T_MAX];
} batch;

/* borders: where they begin is drawn; NULL: as said above. */
static void make_batches(batch *batches, double *labels, sbp_rng *borders) {
    sbp_rng rng = {5};
    int64_t mean = borders ? 2 + sbp_rng_below(borders, 7) : 0;
    *labels = 0;
    for (int n = 0; n < BATCHES; n++) {
        batch *b = &batches[n];
        *b = (batch){.rows = batch_rows[n]};
        for (int32_t r = 0; r < b->rows; r++) {
            bool begins =
                r == 0 || (borders ? sbp_rng_below(borders, mean) == 0 : r == 2 || r == 3 || r == 11);
            b->documents += begins;
            b->doc[r] = (int32_t)b->documents - 1;
            b->first[r] = begins ? r : b->first[r - 1];
            b->pos[r] = r - b->first[r];
            b->tok[r] = (int32_t)sbp_rng_below(&rng, WHOLE_STEP_VOCABULARY);
            b->label[r] = (int32_t)sbp_rng_below(&rng, WHOLE_STEP_VOCABULARY);
            b->weight[r] = n != MASKED && sbp_rng_below(&rng, 5) > 0;
            *labels += b->weight[r];
        }
    }
    assert_true(*labels > 10);
}

/* The documents of a micro-batch, each alone. */
static int take_apart(const batch *b, batch *out) {
    int count = 0;
    for (int64_t r = 0; r < b->rows; r++) {
        if (b->first[r] == r)
            out[count++] = (batch){.documents = 1};
        batch *alone = &out[count - 1];
        int64_t at = alone->rows++;
        alone->tok[at] = b->tok[r];
        alone->pos[at] = b->pos[r];
        alone->label[at] = b->label[r];
        alone->weight[at] = b->weight[r];
    }
    return count;
}

static double *drawn_values(testing *t, int64_t elems) {
    double *out = SBP_NEW_ARRAY(t->arena, double, elems);
    for (int64_t i = 0; i < elems; i++)
        out[i] = testing_uniform(t, -0.6, 0.9);
    return out;
}

/* As the model has them. */
static double *param_values(testing *t, const sbp_weights *weights, const sbp_param *param, int64_t elems) {
    const sbp_weight *w = sbp_weights_find(weights, param->name);
    double *out = SBP_NEW_ARRAY(t->arena, double, elems);
    assert_true(w && w->elems == elems && !param->recipe);
    testing_check(t, sbp_weights_read(weights, w, 0, elems, SBP_F64, out, t->diag));
    return out;
}

/* ---- the reference ------------------------------------------------------------------------------------ */

typedef struct reference {
    testing *t;
    const sbp_module *module;
    const sbp_func *value, *derivative; /* of @model */
    double *params[MAX_PARAMS], *gradients[MAX_PARAMS];
    int64_t elems[MAX_PARAMS];
    double loss, entropy, accuracy;
    batch batches[BATCHES]; /* as the program has them */
    batch parts[DOCUMENTS]; /* as the reference has them: the same, or documents alone */
    int part_count;
    double labels;
    int batch_of[DOCUMENTS];         /* per part */
    sbp_balance balance;             /* of experts */
    double *choices, *probabilities; /* of each batch: [experts] */
    int64_t experts;                 /* 0: none */
} reference;

static bool is_statistic(const sbp_func *f, sbp_value v) {
    for (int32_t r = 0; r < f->result_count; r++)
        if (f->results[r].role == SBP_RESULT_STATISTIC && f->results[r].value == v)
            return true;
    return false;
}

/* dlogp: cotangent of logp, for the derivative; dp: of the sums of probabilities in each layer. */
static sbp_tensor **evaluate(const reference *ref, sbp_arena *arena, const sbp_func *f, const batch *b,
                             const double *dlogp, const double *dp) {
    const document_rows columns = {b->tok, b->pos, b->first, b->label};
    sbp_eval_env env = {.arena = arena, .diag = ref->t->diag};
    for (int s = 0; s < SBP_SYMBOL_COUNT; s++)
        env.sizes.v[s] = s == SBP_ONE ? 1 : s == SBP_S ? b->documents : b->rows;
    sbp_tensor **inputs = SBP_NEW_ARRAY(arena, sbp_tensor *, f->arg_count + 1);
    for (int32_t i = 0; i < f->arg_count; i++) {
        const sbp_value_info *info = &f->values[f->args[i]];
        if (info->role == SBP_VALUE_CONST)
            continue;
        sbp_tensor *x = inputs[i] = sbp_tensor_create(arena, &info->type, &env.sizes);
        if (info->role == SBP_VALUE_PARAM) {
            assert_int_equal(x->elems, ref->elems[info->binding]);
            memcpy(x->data, ref->params[info->binding], (size_t)x->elems * sizeof(double));
        } else if (info->role == SBP_VALUE_COTANGENT && strcmp(info->name, "d_logp") == 0) {
            memcpy(x->data, dlogp, (size_t)x->elems * sizeof(double));
        } else if (info->role == SBP_VALUE_COTANGENT && is_statistic(f, info->binding)) {
            memcpy(x->data, dp, (size_t)x->elems * sizeof(double));
        } else if (info->role == SBP_VALUE_ROW) {
            for (int64_t r = 0; r < b->rows; r++)
                x->data[r] = document_rows_value(&columns, ref->module->rows[info->binding].name, r);
        }
    }
    return graph_evaluate(ref->t, arena, ref->module, f, &env, inputs);
}

static const double *result_named(const sbp_func *f, sbp_tensor *const *values, const char *name) {
    for (int32_t r = 0; r < f->result_count; r++)
        if (f->results[r].role == SBP_RESULT_VALUE && strcmp(f->results[r].name, name) == 0)
            return values[f->results[r].value]->data;
    fail_msg("no result '%s'", name);
    return NULL;
}

/* s_d = sum of m_t logp_t / N over the rows of document d; the loss of the micro-batch is the sum of s_d^2.
 */
static double objective(const reference *ref, const batch *b, const double *logp, double *dlogp) {
    double s[T_MAX] = {0}, loss = 0;
    for (int64_t r = 0; r < b->rows; r++)
        s[b->doc[r]] += b->weight[r] * logp[r] / ref->labels;
    for (int64_t d = 0; d < b->documents; d++)
        loss += s[d] * s[d];
    for (int64_t r = 0; dlogp && r < b->rows; r++)
        dlogp[r] = 2 * b->weight[r] / ref->labels * s[b->doc[r]];
    return loss;
}

/* Clears the statistics of all layers and documents of a batch. */
static void clear_statistics(const reference *ref) {
    for (int64_t i = 0; i < BATCHES * ref->experts; i++)
        ref->choices[i] = ref->probabilities[i] = 0;
}

static void add_statistics(const reference *ref, int part, sbp_tensor *const *values) {
    const sbp_func *f = ref->value;
    for (int32_t r = 0; r < f->result_count; r++) {
        bool counts = f->results[r].name && strcmp(f->results[r].name, SBP_STATISTIC_CHOICES) == 0;
        double *to = (counts ? ref->choices : ref->probabilities) + ref->batch_of[part] * ref->experts;
        for (int64_t e = 0; f->results[r].role == SBP_RESULT_STATISTIC && e < ref->experts; e++)
            to[e] += values[f->results[r].value]->data[e];
    }
}

/* Weight E sum_e (c_e / R) (p_e / R), and what that is differentiated by p_e. R = sum_e c_e / k. */
static double balance(const reference *ref, int n, double *slope) {
    const double *c = ref->choices + n * ref->experts, *p = ref->probabilities + n * ref->experts;
    double rows = 0, loss = 0, weight = ref->balance.coefficient / PARTS * (double)ref->experts;
    for (int64_t e = 0; e < ref->experts; e++)
        rows += c[e] / (double)ref->balance.chosen;
    for (int64_t e = 0; e < ref->experts; e++) {
        loss += weight * c[e] / rows * p[e] / rows;
        if (slope)
            slope[e] = weight * c[e] / rows / rows;
    }
    return loss;
}

static double loss_of_step(const reference *ref) {
    double loss = 0;
    clear_statistics(ref);
    for (int n = 0; n < ref->part_count; n++) {
        sbp_arena *arena = sbp_arena_create();
        sbp_tensor **values = evaluate(ref, arena, ref->value, &ref->parts[n], NULL, NULL);
        add_statistics(ref, n, values);
        loss += objective(ref, &ref->parts[n], result_named(ref->value, values, "logp"), NULL);
        sbp_arena_destroy(arena);
    }
    for (int n = 0; n < BATCHES; n++)
        loss += balance(ref, n, NULL);
    return loss;
}

static void make_statistics(const sbp_model *model, reference *ref) {
    const sbp_func *f = ref->value;
    for (int32_t r = 0; r < f->result_count; r++)
        if (f->results[r].role == SBP_RESULT_STATISTIC)
            ref->experts = f->values[f->results[r].value].type.dim[0].n;
    ref->balance = model->balance;
    ref->choices = SBP_NEW_ARRAY(ref->t->arena, double, BATCHES * ref->experts + 1);
    ref->probabilities = SBP_NEW_ARRAY(ref->t->arena, double, BATCHES * ref->experts + 1);
}

/* borders: NULL, or what draws where they begin; then each stands alone here. */
static void make_reference(testing *t, const char *path, sbp_rng *borders, reference *ref) {
    sbp_model model;
    sbp_model_options options = sbp_model_options_for(SBP_F64);
    *ref = (reference){.t = t};
    testing_check(t, sbp_model_load(t->arena, t->diag, path, &options, &model));
    ref->module = model.module;
    ref->value = sbp_module_find_func(model.module, "model");
    sbp_func *expanded, *derived, *late;
    testing_check(t, sbp_expand_func(model.module, ref->value, false, t->diag, &expanded));
    for (int32_t r = 0; r < expanded->result_count; r++) /* the loss reads logp alone */
        if (expanded->results[r].role == SBP_RESULT_VALUE && strcmp(expanded->results[r].name, "logp") != 0)
            expanded->results[r].role = SBP_RESULT_SAVED;
    testing_check(t, sbp_autodiff_func(model.module, expanded, false, t->diag, &derived));
    testing_check(t, sbp_expand_func(model.module, derived, true, t->diag, &late));
    ref->derivative = late;
    make_batches(ref->batches, &ref->labels, borders);
    make_statistics(&model, ref);
    for (int n = 0; n < BATCHES; n++) {
        int first = ref->part_count;
        if (borders)
            ref->part_count += take_apart(&ref->batches[n], &ref->parts[ref->part_count]);
        else
            ref->parts[ref->part_count++] = ref->batches[n];
        for (int k = first; k < ref->part_count; k++)
            ref->batch_of[k] = n;
    }
    assert_true(model.module->param_count <= MAX_PARAMS);
    sbp_weights *weights = NULL;
    if (model.weights)
        testing_check(t, sbp_weights_open(t->arena, t->diag, model.weights, &weights));
    assert_true(weights || borders);
    const sbp_sizes none = {{1}};
    for (int32_t p = 0; p < model.module->param_count; p++) {
        const sbp_param *param = &model.module->params[p];
        assert_true(param->trainable);
        ref->elems[p] = sbp_tensor_create(t->arena, &param->type, &none)->elems;
        ref->params[p] =
            weights ? param_values(t, weights, param, ref->elems[p]) : drawn_values(t, ref->elems[p]);
        ref->gradients[p] = SBP_NEW_ARRAY(t->arena, double, ref->elems[p]);
    }
    if (weights)
        sbp_weights_close(weights);
    sbp_tensor **forwards[DOCUMENTS];
    for (int n = 0; n < ref->part_count; n++) {
        forwards[n] = evaluate(ref, t->arena, ref->value, &ref->parts[n], NULL, NULL);
        add_statistics(ref, n, forwards[n]);
    }
    for (int n = 0; n < BATCHES; n++)
        ref->loss += balance(ref, n, NULL);
    for (int n = 0; n < ref->part_count; n++) {
        const batch *b = &ref->parts[n];
        double dlogp[T_MAX], *dp = SBP_NEW_ARRAY(t->arena, double, ref->experts + 1);
        sbp_tensor **forward = forwards[n];
        (void)balance(ref, ref->batch_of[n], dp);
        ref->loss += objective(ref, b, result_named(ref->value, forward, "logp"), dlogp);
        for (int64_t r = 0; r < b->rows; r++) {
            ref->entropy += b->weight[r] / ref->labels * result_named(ref->value, forward, "entropy")[r];
            ref->accuracy += b->weight[r] / ref->labels * result_named(ref->value, forward, "hit")[r];
        }
        sbp_tensor **values = evaluate(ref, t->arena, late, b, dlogp, dp);
        for (int32_t r = 0; r < late->result_count; r++) {
            const sbp_result *result = &late->results[r];
            if (result->role != SBP_RESULT_GRADIENT)
                continue;
            int32_t p = late->values[result->target].binding;
            for (int64_t i = 0; i < ref->elems[p]; i++)
                ref->gradients[p][i] += values[result->value]->data[i];
        }
    }
}

/* Slope of the loss at parameter p = at along a direction, from five points: truncation is of
 * fourth order. */
static double slope_along(reference *ref, int32_t p, const double *at, const double *direction, double step) {
    static const double factors[] = {-2, -1, 1, 2}, weights[] = {1. / 12, -8. / 12, 8. / 12, -1. / 12};
    double *x = ref->params[p], slope = 0;
    for (int k = 0; k < SBP_COUNT(factors); k++) {
        for (int64_t i = 0; i < ref->elems[p]; i++)
            x[i] = at[i] + factors[k] * step * direction[i];
        slope += weights[k] * loss_of_step(ref) / step;
    }
    memcpy(x, at, (size_t)ref->elems[p] * sizeof *x);
    return slope;
}

/* Slope of the loss of the whole step along a direction of one parameter: its gradient (of length 1) plus as
 * much of something random, so that too long, too short and wrongly directed gradients all show. Of several
 * lengths of the step the one that comes nearest counts: what the loss rounds hides small gradients (1e-6, of
 * the first of nine layers) at short steps, truncation large ones (10^2, of heads of nearly no length that
 * are made as long as 1) at long steps, and a wrong gradient fits none. */
static double check_slope(reference *ref, int32_t p) {
    static const double steps[] = {1e-4, 1e-3, 1e-2, 1e-5, 1e-6};
    int64_t n = ref->elems[p];
    double *at = SBP_NEW_ARRAY(ref->t->arena, double, n),
           *direction = SBP_NEW_ARRAY(ref->t->arena, double, n);
    double norm = testing_norm(ref->gradients[p], n), slope = 0, want = 0, error = INFINITY;
    if (!(norm * 1e7 > 1)) /* then the slope would be noise */
        fail_msg("%s: a gradient of %g is too small for slopes", ref->module->params[p].name, norm);
    for (int64_t i = 0; i < n; i++)
        direction[i] = testing_uniform(ref->t, -1, 1);
    double random = testing_norm(direction, n);
    memcpy(at, ref->params[p], (size_t)n * sizeof *at);
    for (int64_t i = 0; i < n; i++) {
        direction[i] = ref->gradients[p][i] / norm + direction[i] / random;
        want += direction[i] * ref->gradients[p][i];
    }
    for (int s = 0; s < SBP_COUNT(steps) && !(error <= SBP_TOLERANCE_DIFFERENCES); s++) {
        slope = slope_along(ref, p, at, direction, steps[s]);
        error = fabs(slope - want) / norm;
    }
    if (!(error <= SBP_TOLERANCE_DIFFERENCES))
        fail_msg("%s: slope %.12g, gradient %.12g (relative %g)", ref->module->params[p].name, slope, want,
                 error);
    return error;
}

/* ---- the program --------------------------------------------------------------------------------------- */

typedef struct setting {
    const char *name;
    int64_t segment, every;
    bool save_all, drop_states, offload;
    const char *saved;          /* a value that is kept, or NULL */
    const sbp_space *placement; /* per class, in place of `offload`; NULL */
    int32_t first;              /* how many of each class live there, from the first; 0: all */
} setting;

static const setting settings[] = {
    {"recompute", .segment = 1, .every = 1},                  /* stream; checkpoint when C is T */
    {"save all", .segment = 1, .every = 1, .save_all = true}, /* standard when C is T */
    {"g 2, k 2, offload", .segment = 2, .every = 2, .offload = true},
};

int32_t whole_step_calls(const sbp_program *p, const char *entry, const char *function) {
    const sbp_body *body = &sbp_program_find_entry(p, entry)->body;
    int32_t count = 0;
    for (int32_t i = 0; i < body->count; i++)
        count += body->nodes[i].kind == SBP_NODE_CALL &&
                 strcmp(p->functions[body->nodes[i].u.call->function].name, function) == 0;
    return count;
}

static void bind(testing *t, sbp_executor *e, const batch *b) {
    double copies[T_MAX];
    for (int r = 0; r < T_MAX; r++)
        copies[r] = 1;
    const sbp_column columns[] = {
        {"tok", SBP_I32, b->tok, b->rows},       {"pos", SBP_I32, b->pos, b->rows},
        {"first", SBP_I32, b->first, b->rows},   {"shared_end", SBP_I32, b->first, b->rows},
        {"own", SBP_I32, b->first, b->rows},     {"label", SBP_I32, b->label, b->rows},
        {"weight", SBP_F64, b->weight, b->rows}, {"doc", SBP_I32, b->doc, b->rows},
        {"copies", SBP_F64, copies, b->rows},
    };
    testing_check(t, sbp_executor_bind(e, b->rows, b->documents, columns, SBP_COUNT(columns), t->diag));
}

static void expect_output(testing *t, sbp_executor *e, const char *name, double want, double tolerance) {
    double got;
    testing_check(t, sbp_executor_output(e, name, &got, t->diag));
    if (!(fabs(got - want) <= tolerance * fmax(1, fabs(want))))
        fail_msg("%s is %.17g, expected %.17g", name, got, want);
}

/* All micro-batches; every gradient against the reference. Returns the largest relative error. */
static double run_program(const reference *ref, const char *path, sbp_dtype compute, int64_t chunk,
                          int64_t head_chunk, const setting *s) {
    testing t = testing_open(1);
    compile_request request = compile_request_for(path, T_MAX, chunk, head_chunk);
    request.compute = request.options.grad_dtype = request.options.state_dtype = compute;
    request.options.schedule.segment = s->segment;
    request.options.schedule.checkpoint_every = s->every;
    request.options.schedule.save_all = s->save_all;
    request.options.schedule.drop_states = s->drop_states;
    request.options.schedule.saved = &s->saved;
    request.options.schedule.saved_count = s->saved != NULL;
    compile_offload(&request, s->offload);
    for (int class = 0; class < SBP_TENSOR_CLASS_COUNT && s->placement; class ++) {
        request.options.schedule.placement[class] = s->placement[class];
        request.options.schedule.first[class] = s->first;
    }
    request.objective = objective_test_group;
    sbp_program *p;
    testing_check(&t, compile_model(t.arena, t.diag, &request, &p));
    testing_check(&t, sbp_program_verify(p, t.diag));
    assert_int_equal(whole_step_calls(p, "accumulate", "head.score"), 1); /* first pass */
    assert_int_equal(whole_step_calls(p, "accumulate", "objective.gradient"), 1);
    assert_int_equal(whole_step_calls(p, "accumulate", "head.backward"), 1); /* second pass */
    sbp_executor *e;
    sbp_device_options options = {.threads = 1};
    testing_check(&t, sbp_executor_create(t.diag, &sbp_cpu_device, &options, p, &e));
    sbp_executor_set_scalar(e, "labels", ref->labels);
    sbp_executor_set_scalar(e, "parts", PARTS);
    sbp_executor_set_scalar(e, "router_aux_loss_coef", ref->balance.coefficient);
    testing_check(&t, sbp_executor_fill_role(e, SBP_ROLE_GRAD, 0, t.diag));
    testing_check(&t, sbp_executor_fill_role(e, SBP_ROLE_RESULT, 0, t.diag));
    for (int32_t i = 0; i < ref->module->param_count; i++)
        testing_check(&t, sbp_executor_write(e, sbp_program_find_buffer(p, ref->module->params[i].name), 0, 0,
                                             ref->elems[i], SBP_F64, ref->params[i], t.diag));
    for (int n = 0; n < BATCHES; n++) {
        bind(&t, e, &ref->batches[n]);
        testing_check(&t, sbp_executor_run(e, "accumulate", t.diag));
    }
    double worst = 0, tolerance = sbp_tolerance(compute);
    for (int32_t i = 0; i < ref->module->param_count; i++) {
        const char *name = ref->module->params[i].name;
        int64_t n = ref->elems[i];
        double *got = SBP_NEW_ARRAY(t.arena, double, n);
        int32_t buffer = sbp_program_find_buffer(p, sbp_arena_printf(t.arena, "%s.grad", name));
        assert_true(buffer >= 0);
        testing_check(&t, sbp_executor_read(e, buffer, 0, 0, n, SBP_F64, got, t.diag));
        double error = testing_relative_error(got, ref->gradients[i], n);
        if (!(error <= tolerance))
            fail_msg("%s, C %lld, C_head %lld, %s: gradient of %s: relative error %g", path, (long long)chunk,
                     (long long)head_chunk, s->name, name, error);
        worst = fmax(worst, error);
    }
    expect_output(&t, e, "loss", ref->loss, tolerance);
    expect_output(&t, e, "entropy", ref->entropy, tolerance);
    expect_output(&t, e, "mean_token_accuracy", ref->accuracy, tolerance);
    sbp_executor_destroy(e);
    testing_close(&t);
    return worst;
}

static const int64_t chunks[] = {1, 7, T_MAX}, head_chunks[] = {1, 5, T_MAX};

void whole_step_check(const char *path, bool few) {
    testing t = testing_open(1);
    reference ref;
    make_reference(&t, path, NULL, &ref);
    double slope = 0, f64 = 0, f32 = 0;
    int programs = 0;
    for (int32_t p = 0; p < ref.module->param_count; p++)
        slope = fmax(slope, check_slope(&ref, p));
    for (int s = 0; s < SBP_COUNT(settings); s++)
        for (int c = 0; c < SBP_COUNT(chunks); c++) {
            if (few && c != s) /* every chunk size and every setting once */
                continue;
            for (int h = 0; h < SBP_COUNT(head_chunks); h++) {
                if (few && h != c)
                    continue;
                f64 = fmax(f64, run_program(&ref, path, SBP_F64, chunks[c], head_chunks[h], &settings[s]));
                programs++;
            }
            f32 = fmax(f32, run_program(&ref, path, SBP_F32, chunks[c], head_chunks[c], &settings[s]));
            programs++;
        }
    printf("  %s: %d programs, %d gradients each: fp64 within %.1e, fp32 %.1e; reference %.1e of difference "
           "quotients\n",
           path, programs, ref.module->param_count, f64, f32, slope);
    testing_close(&t);
}

/* Settings of everything that a schedule has, drawn. */
static double run_draw(const reference *ref, const char *path, bool states, sbp_rng *rng) {
    static const char *const saved[] = {NULL, SBP_SAVE_ATTENTION, "attn_out", "t20", "x5", "v3"};
    static const char *const beside_states[] = {NULL, "conv", "conv_in", "conv_norm"};
    static const sbp_space spaces[] = {SBP_DEVICE, SBP_HOST}; /* disk: test_shuffle */
    sbp_space placement[SBP_TENSOR_CLASS_COUNT];
    setting s = {.name = "drawn",
                 .segment = 1 + sbp_rng_below(rng, 3),
                 .every = 1 + sbp_rng_below(rng, 5),
                 .save_all = sbp_rng_below(rng, 4) == 0,
                 .saved = saved[sbp_rng_below(rng, SBP_COUNT(saved))],
                 .placement = placement,
                 .first = (int32_t)sbp_rng_below(rng, 4)};
    if (states) {
        s.saved = beside_states[sbp_rng_below(rng, SBP_COUNT(beside_states))];
        s.drop_states = sbp_rng_below(rng, 2);
    }
    for (int class = 0; class < SBP_TENSOR_CLASS_COUNT; class ++)
        placement[class] = spaces[sbp_rng_below(rng, SBP_COUNT(spaces))];
    s.name = sbp_arena_printf(ref->t->arena, "g %d, k %d, save %s%s, homes %d%d%d%d%d of the first %d",
                              (int)s.segment, (int)s.every,
                              s.save_all ? "all"
                              : s.saved  ? s.saved
                                         : "none",
                              s.drop_states ? ", no states" : "", placement[0], placement[1], placement[2],
                              placement[3], placement[4], s.first);
    return run_program(ref, path, SBP_F64, 1 + sbp_rng_below(rng, T_MAX), 1 + sbp_rng_below(rng, T_MAX), &s);
}

static void draw(const char *path, uint64_t seed, int count, bool alone) {
    testing t = testing_open(alone ? seed : 1);
    reference ref;
    sbp_rng rng = {seed};
    make_reference(&t, path, alone ? &rng : NULL, &ref);
    double slope = 0, f64 = 0;
    for (int32_t p = 0; p < ref.module->param_count; p++)
        slope = fmax(slope, check_slope(&ref, p));
    for (int i = 0; i < count; i++)
        f64 = fmax(f64, run_draw(&ref, path, alone, &rng));
    printf("  %s: %d drawn programs, %d gradients each: fp64 within %.1e; reference %.1e of difference "
           "quotients\n",
           path, count, ref.module->param_count, f64, slope);
    testing_close(&t);
}

void whole_step_draw(const char *path, uint64_t seed, int count) {
    draw(path, seed, count, false);
}

void whole_step_draw_alone(const char *path, uint64_t seed, int count) {
    draw(path, seed, count, true);
}
