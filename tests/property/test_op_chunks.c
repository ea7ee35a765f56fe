/* test_op_chunks.c: the one idea, on random layers: split, then differentiate, then run chunk by chunk, is
 * the derivative of the whole.
 *
 * Forward: chunks ascending; rows of carries that no chunk has appended yet are NaN. Backward, once carries
 * are filled: chunks descending; before chunk i its own rows of the carries and all later ones are NaN again
 * (they are appended anew, or dead), dK and dV run from chunk to chunk and their rows are NaN as soon as they
 * were taken, dx_i overwrites dy_i in place, weight gradients add up. A state is what the forward left before
 * the chunk, its cotangent goes from chunk to chunk. Chunks of 1, of 3 and 5 (uneven tails),
 * and one of all rows. Documents of uneven length share prompts.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/common/layers.h"
#include "tests/tolerance.h"

enum { ROWS = 13 };

typedef struct whole {
    const sbp_func *func, *derivative;
    sbp_tensor **inputs; /* per argument of the derivative */
    sbp_tensor **values;
} whole;

static bool has_rows(const sbp_type *type) {
    return sbp_type_rows(type) != SBP_ONE;
}

/* Sum of all gradients of argument `arg` (by position), NULL when there are none. */
static double *gradient_of(testing *t, const sbp_func *d, sbp_tensor *const *values, int32_t arg) {
    double *sum = NULL;
    for (int32_t r = 0; r < d->result_count; r++) {
        if (d->results[r].role != SBP_RESULT_GRADIENT || d->results[r].target != d->args[arg])
            continue;
        const sbp_tensor *g = values[d->results[r].value];
        if (!sum)
            sum = SBP_NEW_ARRAY(t->arena, double, g->elems);
        for (int64_t j = 0; j < g->elems; j++)
            sum[j] += g->data[j];
    }
    return sum;
}

/* Value of the r-th plain result. */
static sbp_value plain_result(const sbp_func *f, int32_t r) {
    for (int32_t i = 0; i < f->result_count; i++)
        if (f->results[i].role == SBP_RESULT_VALUE && r-- == 0)
            return f->results[i].value;
    fail_msg("no such result");
    return SBP_NO_VALUE;
}

static whole evaluate_whole(testing *t, sbp_module *m, const documents *rows, const sbp_eval_env *env) {
    whole w = {.func = m->funcs[0], .derivative = graph_differentiate(t, m, m->funcs[0])};
    w.inputs = SBP_NEW_ARRAY(t->arena, sbp_tensor *, w.derivative->arg_count + 1);
    memcpy(w.inputs, layers_inputs(t, m, w.func, rows, env), (size_t)w.func->arg_count * sizeof *w.inputs);
    for (int32_t i = w.func->arg_count; i < w.derivative->arg_count; i++)
        w.inputs[i] = graph_tensor(t, &w.derivative->values[w.derivative->args[i]].type, env, -1, 1);
    w.values = graph_evaluate(t, t->arena, m, w.derivative, env, w.inputs);
    return w;
}

/* ---- chunk by chunk --------------------------------------------------------------------------------------
 */

typedef struct chunked {
    testing *t;
    const sbp_module *m;
    const sbp_func *forward, *backward;
    int32_t shared;       /* arguments that the whole function has too */
    sbp_tensor **given;   /* per argument of backward: for all rows */
    sbp_tensor **carries; /* per argument of backward: carries and their cotangents; their state */
    sbp_tensor **before;  /* per argument and chunk: of a state, what it is before the chunk */
    sbp_eval_env env;
    double worst;  /* relative error so far */
    bool may_fail; /* errors are expected */
} chunked;

static sbp_tensor *rows_of(const chunked *c, sbp_arena *arena, const sbp_tensor *all, const sbp_type *type) {
    sbp_tensor *part = sbp_tensor_create(arena, type, &c->env.sizes);
    int64_t d = all->dim[0] > 0 ? all->elems / all->dim[0] : 0;
    memcpy(part->data, all->data + c->env.row0 * d, (size_t)part->elems * sizeof(double));
    return part;
}

/* Rows from `row` on; a state has none. */
static void poison(sbp_tensor *state, int64_t row) {
    if (!has_rows(&state->type))
        return;
    int64_t d = state->elems / state->dim[0];
    for (int64_t j = row * d; j < state->elems; j++)
        state->data[j] = (double)NAN;
}

/* Evaluates f on the current chunk and keeps what it left in the carries. */
static sbp_tensor **run_chunk(chunked *c, sbp_arena *arena, const sbp_func *f) {
    sbp_tensor **inputs = SBP_NEW_ARRAY(arena, sbp_tensor *, f->arg_count + 1);
    for (int32_t i = 0; i < f->arg_count; i++) {
        const sbp_type *type = &f->values[f->args[i]].type;
        if (c->carries[i])
            inputs[i] = c->carries[i];
        else if (has_rows(type))
            inputs[i] = rows_of(c, arena, c->given[i], type);
        else
            inputs[i] = c->given[i];
    }
    sbp_tensor **values = graph_evaluate(c->t, arena, c->m, f, &c->env, inputs);
    for (int32_t r = 0; r < f->result_count; r++) {
        if (f->results[r].role != SBP_RESULT_CARRY)
            continue;
        int32_t i = 0;
        while (f->args[i] != f->results[r].target)
            i++;
        memcpy(c->carries[i]->data, values[f->results[r].value]->data,
               (size_t)c->carries[i]->elems * sizeof(double));
    }
    return values;
}

static void copy_tensor(sbp_tensor *to, const sbp_tensor *from) {
    memcpy(to->data, from->data, (size_t)from->elems * sizeof(double));
}

/* States before chunk number `chunk`: kept, or given back. */
static void pass_states(chunked *c, int64_t chunk, bool keep) {
    for (int32_t i = 0; i < c->forward->arg_count; i++) {
        if (!c->carries[i] || has_rows(&c->carries[i]->type))
            continue;
        sbp_tensor *kept = c->before[i * ROWS + chunk];
        copy_tensor(keep ? kept : c->carries[i], keep ? c->carries[i] : kept);
    }
}

static void set_chunk(chunked *c, int64_t row0, int64_t step) {
    c->env.row0 = row0;
    c->env.sizes.v[SBP_C] = ROWS - row0 < step ? ROWS - row0 : step;
}

static void expect_close(chunked *c, const char *what, const char *name, int64_t step, const double *got,
                         const double *want, int64_t n) {
    double error = testing_relative_error(got, want, n);
    c->worst = fmax(c->worst, error);
    if (!(error <= SBP_TOLERANCE_F64) && !c->may_fail) {
        sbp_text text;
        sbp_text_init(&text, c->t->arena);
        sbp_func_print(&text, c->m, c->backward, false);
        fail_msg("chunks of %lld: %s of %s differs by %g\n%s", (long long)step, what, name, error, text.data);
    }
}

static void forward_pass(chunked *c, const whole *w, int64_t step) {
    double *results[8] = {0};
    for (int32_t i = 0; i < c->forward->arg_count; i++)
        if (c->carries[i]) {
            memset(c->carries[i]->data, 0, (size_t)c->carries[i]->elems * sizeof(double));
            poison(c->carries[i], 0);
        }
    for (int64_t row0 = 0; row0 < ROWS; row0 += step) {
        sbp_arena *arena = sbp_arena_create();
        set_chunk(c, row0, step);
        pass_states(c, row0 / step, true);
        sbp_tensor **values = run_chunk(c, arena, c->forward);
        for (int32_t r = 0; r < w->func->result_count; r++) {
            const sbp_tensor *part = values[plain_result(c->forward, r)];
            int64_t d = part->elems / part->dim[0];
            if (!results[r])
                results[r] = SBP_NEW_ARRAY(c->t->arena, double, ROWS *d);
            memcpy(results[r] + row0 * d, part->data, (size_t)part->elems * sizeof(double));
        }
        sbp_arena_destroy(arena);
    }
    for (int32_t r = 0; r < w->func->result_count; r++) {
        const sbp_tensor *want = w->values[plain_result(w->derivative, r)];
        expect_close(c, "value", w->func->results[r].name, step, results[r], want->data, want->elems);
    }
}

/* The argument of f that is the cotangent of its plain result r; -1 when there is none. */
static int32_t cotangent_of(const sbp_func *f, int32_t r) {
    for (int32_t i = 0; i < f->arg_count; i++) {
        const sbp_value_info *info = &f->values[f->args[i]];
        if (info->role == SBP_VALUE_COTANGENT && info->binding == plain_result(f, r))
            return i;
    }
    return -1;
}

/* descending: the right order. */
static int backward_pass(chunked *c, const whole *w, int64_t step, bool descending) {
    const sbp_func *f = c->backward;
    double **sums = SBP_NEW_ARRAY(c->t->arena, double *, w->func->arg_count + 1);
    int32_t in_place = cotangent_of(f, 0); /* dy, to be overwritten by dx: argument 0 */
    for (int32_t i = 0; i < f->arg_count; i++)
        if (c->carries[i] && f->values[f->args[i]].role == SBP_VALUE_COTANGENT)
            memset(c->carries[i]->data, 0, (size_t)c->carries[i]->elems * sizeof(double));
    int64_t chunks = sbp_ceil_div(ROWS, step);
    for (int64_t k = 0; k < chunks; k++) {
        int64_t row0 = (descending ? chunks - 1 - k : k) * step;
        sbp_arena *arena = sbp_arena_create();
        set_chunk(c, row0, step);
        for (int32_t i = 0; i < f->arg_count; i++)
            if (c->carries[i] && f->values[f->args[i]].role == SBP_VALUE_CARRY)
                poison(c->carries[i], row0);
        pass_states(c, row0 / step, false);
        sbp_tensor **values = run_chunk(c, arena, f);
        for (int32_t i = 0; i < f->arg_count; i++)
            if (c->carries[i] && f->values[f->args[i]].role == SBP_VALUE_COTANGENT)
                poison(c->carries[i], row0);
        for (int32_t i = 0; i < w->func->arg_count; i++) {
            double *part = gradient_of(c->t, f, values, i);
            if (!part)
                continue;
            const sbp_type *type = &f->values[f->args[i]].type;
            sbp_tensor *like = sbp_tensor_create(arena, type, &c->env.sizes);
            int64_t d = has_rows(type) ? like->elems / like->dim[0] : 0, at = row0 * d;
            double *to = i == 0 && in_place >= 0 ? c->given[in_place]->data : sums[i];
            if (!to)
                to = sums[i] = SBP_NEW_ARRAY(c->t->arena, double, has_rows(type) ? ROWS *d : like->elems);
            for (int64_t j = 0; j < like->elems; j++)
                if (has_rows(type))
                    to[at + j] = part[j];
                else
                    to[j] += part[j];
        }
        sbp_arena_destroy(arena);
    }
    int compared = 0;
    for (int32_t i = 0; i < w->func->arg_count; i++) {
        double *want = gradient_of(c->t, w->derivative, w->values, i);
        const double *got = i == 0 && in_place >= 0 && want ? c->given[in_place]->data : sums[i];
        if (!want != !got)
            fail_msg("gradient of %s: only one of both", w->func->values[w->func->args[i]].name);
        if (!want)
            continue;
        expect_close(c, "gradient", w->func->values[w->func->args[i]].name, step, got, want,
                     w->inputs[i]->elems);
        compared++;
    }
    return compared;
}

/* Chunk functions and the state they run on. */
static chunked make_chunked(testing *t, sbp_module *m, const whole *w, const sbp_eval_env *env) {
    sbp_func *expanded, *split, *late;
    testing_check(t, sbp_expand_func(m, w->func, false, t->diag, &expanded));
    testing_check(t, sbp_split_func(m, expanded, t->diag, &split));
    testing_check(t, sbp_func_verify(m, split, t->diag));
    testing_check(t, sbp_expand_func(m, split, true, t->diag, &late));
    chunked c = {.t = t, .m = m, .forward = late, .backward = graph_differentiate(t, m, split), .env = *env};
    int32_t count = c.backward->arg_count;
    c.shared = w->func->arg_count;
    c.given = SBP_NEW_ARRAY(t->arena, sbp_tensor *, count);
    c.carries = SBP_NEW_ARRAY(t->arena, sbp_tensor *, count);
    c.before = SBP_NEW_ARRAY(t->arena, sbp_tensor *, count * ROWS);
    for (int32_t i = 0; i < c.shared; i++)
        c.given[i] = w->inputs[i];
    for (int32_t i = c.shared; i < count; i++) {
        const sbp_value_info *info = &c.backward->values[c.backward->args[i]];
        bool of_carry =
            info->role == SBP_VALUE_COTANGENT && c.backward->values[info->binding].role == SBP_VALUE_CARRY;
        if (info->role == SBP_VALUE_CARRY || of_carry)
            c.carries[i] = sbp_tensor_create(t->arena, &info->type, &env->sizes);
        for (int32_t n = 0; c.carries[i] && n < ROWS; n++)
            c.before[i * ROWS + n] = sbp_tensor_create(t->arena, &info->type, &env->sizes);
    }
    return c;
}

/* The cotangents of results, fresh for every chunk size: the backward overwrites one. */
static void give_cotangents(chunked *c, const whole *w) {
    for (int32_t r = 0; r < w->func->result_count; r++) {
        int32_t from = cotangent_of(w->derivative, r), to = cotangent_of(c->backward, r);
        assert_true((from < 0) == (to < 0));
        if (from < 0)
            continue;
        const sbp_tensor *all = w->inputs[from];
        sbp_tensor *copy = SBP_NEW(c->t->arena, sbp_tensor);
        *copy = *all;
        copy->data = SBP_NEW_ARRAY(c->t->arena, double, all->elems);
        memcpy(copy->data, all->data, (size_t)all->elems * sizeof(double));
        c->given[to] = copy;
    }
}

static void chunks_equal_the_whole(void **state) {
    (void)state;
    static const int64_t steps[] = {1, 3, 5, ROWS};
    int functions = testing_sweep(60, 1500), compared = 0, carries = 0;
    int features[13] = {0};
    for (int n = 0; n < functions; n++) {
        testing t = testing_open((uint64_t)n);
        layers_features has = {0};
        sbp_module *m = layers_random(&t, &has);
        documents rows = n % 3 == 0 ? documents_layout(ROWS) : documents_random(ROWS, &t.rng);
        sbp_eval_env env = example_env(&t, ROWS);
        whole w = evaluate_whole(&t, m, &rows, &env);
        chunked c = make_chunked(&t, m, &w, &env);
        for (int s = 0; s < SBP_COUNT(steps); s++) {
            give_cotangents(&c, &w);
            forward_pass(&c, &w, steps[s]);
            compared += backward_pass(&c, &w, steps[s], true);
        }
        for (int32_t i = c.shared; i < c.backward->arg_count; i++)
            carries += c.carries[i] != NULL;
        bool list[] = {has.window, has.softcap,     has.grouped, has.shared_keys, has.key_argument,
                       has.tied,   has.frozen,      has.stopped, has.head,        has.convolution,
                       has.delta,  has.uncorrected, has.experts};
        for (int i = 0; i < SBP_COUNT(list); i++)
            features[i] += list[i];
        testing_close(&t);
    }
    printf("  %d functions, %d gradients compared, %d carries and running sums; with window %d, softcap %d, "
           "grouped heads %d, shared keys %d, keys as argument %d, tied %d, frozen %d, stop_gradient %d, "
           "head %d, convolution %d, delta rule %d, without corrections %d, experts %d\n",
           functions, compared, carries, features[0], features[1], features[2], features[3], features[4],
           features[5], features[6], features[7], features[8], features[9], features[10], features[11],
           features[12]);
    assert_true(compared > 20 * functions && carries > 2 * functions);
    for (int i = 0; i < SBP_COUNT(features); i++)
        assert_true(features[i] >= 5);
}

/* The comparison notices chunks in the wrong order, and a forward that left out its last chunk. */
static void the_checks_can_fail(void **state) {
    (void)state;
    testing t = testing_open(2); /* layers with keys, of which more than the last rows are read */
    layers_features has = {0};
    sbp_module *m = layers_random(&t, &has);
    documents rows = documents_layout(ROWS);
    sbp_eval_env env = example_env(&t, ROWS);
    whole w = evaluate_whole(&t, m, &rows, &env);
    chunked c = make_chunked(&t, m, &w, &env);
    c.may_fail = true;
    for (int wrong = 0; wrong < 3; wrong++) {
        c.worst = 0;
        give_cotangents(&c, &w);
        forward_pass(&c, &w, 3);
        for (int32_t i = 0; wrong == 1 && i < c.forward->arg_count; i++)
            if (c.carries[i])
                poison(c.carries[i], 3);
        backward_pass(&c, &w, 3, wrong != 2);
        assert_true((c.worst <= SBP_TOLERANCE_F64) == (wrong == 0));
    }
    testing_close(&t);
}

/* What rows of a chunk cannot know is refused, naming node, operand and how it is read. */
static void others_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *ops, *message; /* NULL: accepted */
    } cases[] = {
        {"%s: f64[] = sum_rows %x {rank 0}\n %y: f64[T] = add %x, %s @ \"center\"\n result %y value",
         "node 'center' reads operand 'b' of add as ALL"},
        {"%s: f64[] = sum_rows %x {rank 0}\n %y: f64[] = mul %s, %s @ \"square\"\n result %y value",
         "node 'square' reads operand 'a' of mul as ALL"},
        {"%s: f64[S] = group_sum %x, %d @ \"per document\"\n result %s value",
         "node 'per document' reads operand 'x' of group_sum as GROUP"},
        {"%s: f64[] = sum_rows %x {rank 0}\n %y: f64[T] = mul %x, %x\n result %y value result %s value",
         NULL},
    };
    for (int i = 0; i < SBP_COUNT(cases); i++) {
        testing t = testing_open(0);
        sbp_module *m;
        sbp_func *split;
        const char *text = sbp_arena_printf(
            t.arena,
            "module m {\n row doc i32\n func f(%%x: stream f64[T], %%d: row doc i32[T]) {\n %s\n }\n}",
            cases[i].ops);
        testing_check(&t, sbp_module_parse(t.arena, t.diag, "case", text, strlen(text), &m));
        testing_check(&t, sbp_module_verify(m, t.diag));
        sbp_status status = sbp_split_func(m, m->funcs[0], t.diag, &split);
        if (cases[i].message)
            testing_check_fails(&t, status, SBP_INPUT, cases[i].message);
        else
            testing_check(&t, status);
        testing_close(&t);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(chunks_equal_the_whole),
                                       cmocka_unit_test(the_checks_can_fail),
                                       cmocka_unit_test(others_are_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
