/* test_row_plans.c: the steps that the CPU makes of row kernels, on paper (backends/cpu/rows_check.c): none
 * reads what another has written over, in the kernels of every golden model, of real ones at their sizes, and
 * of random ones; and the check sees steps that do. */
#include "backends/cpu/rows.h"
#include "ir/base/lex.h"
#include "tests/common/compile_model.h"
#include "tests/common/testing.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>

#define GOLDEN "tests/golden"
#define CONFIGS "tests/data/configs"

typedef struct census {
    int64_t kernels, pieces, heads, in_place, in_memory;
} census;

static void count_list(const row_list *list, census *c) {
    for (int32_t i = 0; i < list->count; i++) {
        c->in_place += list->steps[i].target != NULL;
        c->in_memory += list->steps[i].in_memory;
    }
}

static void count_plan(const cpu_row_plan *plan, census *c) {
    c->kernels++;
    c->pieces += plan->pieces;
    c->heads += plan->kernel->heads > 1;
    count_list(&plan->per_rows, c);
    count_list(&plan->per_heads, c);
    for (int32_t p = 0; p < plan->pass_count; p++)
        for (int32_t l = 0; l < plan->passes[p].list_count; l++)
            count_list(&plan->passes[p].lists[l], c);
}

/* Over two rows, and where `blocks` over two blocks and a row. */
static void check_kernel(testing *t, const char *of, const sbp_rowkernel *kernel, bool blocks, census *c) {
    cpu_row_plan *plan;
    testing_check(t, cpu_row_plan_create(kernel, t->diag, &plan));
    sbp_status status = cpu_row_plan_check(plan, 2, t->diag);
    if (status == SBP_OK && blocks)
        status = cpu_row_plan_check(plan, 2 * plan->block_rows + 1, t->diag);
    if (status == SBP_OK && blocks && plan->item_rows < 70)
        status = cpu_row_plan_check(plan, plan->item_rows + 1, t->diag);
    if (status != SBP_OK) {
        sbp_text text;
        sbp_text_init(&text, t->arena);
        sbp_rowkernel_print(&text, kernel);
        fail_msg("%s: %s\n%s", of, sbp_diag_text(t->diag, SBP_NOTE), text.data);
    }
    count_plan(plan, c);
    cpu_row_plan_destroy(plan);
}

static void report(const census *c) {
    printf("  %lld kernels, %lld in pieces, %lld with heads; %lld results computed in operands, %lld loads "
           "left there\n",
           (long long)c->kernels, (long long)c->pieces, (long long)c->heads, (long long)c->in_place,
           (long long)c->in_memory);
}

/* ---- models ------------------------------------------------------------------------------------------- */

typedef struct mode {
    const char *name;
    sbp_dtype compute;
    bool save_all, step;
} mode;

static const mode modes[] = {{"fp32", SBP_F32, false, false},
                             {"fp64, all saved", SBP_F64, true, false},
                             {"bf16, step", SBP_BF16, false, true}};

static void check_model(const char *path, int64_t t_max, const mode *m, census *c) {
    char name[340];
    testing t = testing_open(1);
    compile_request request = compile_request_for(path, t_max, t_max / 4, t_max / 8);
    request.compute = m->compute;
    if (m->compute == SBP_F64)
        request.options.grad_dtype = request.options.state_dtype = SBP_F64;
    request.options.schedule.save_all = m->save_all;
    request.options.step = m->step;
    sbp_program *program;
    testing_check(&t, compile_model(t.arena, t.diag, &request, &program));
    snprintf(name, sizeof name, "%s, %s", path, m->name);
    for (int32_t i = 0; i < program->kernel_count; i++)
        check_kernel(&t, name, program->kernels[i], false, c);
    testing_close(&t);
}

/* Each model in one of the modes; in all with SBP_TEST_ALL. */
static int check_models(const char *folder, const char *pattern, int64_t t_max, census *c) {
    DIR *dir = opendir(folder);
    int models = 0;
    assert_non_null(dir);
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        char path[300], file[320];
        snprintf(path, sizeof path, pattern, entry->d_name);
        snprintf(file, sizeof file, strstr(path, ".json") ? "%s" : "%s/config.json", path);
        FILE *found = entry->d_name[0] == '.' ? NULL : fopen(file, "r");
        if (!found)
            continue; /* made of another's, or no model */
        fclose(found);
        if (strcmp(entry->d_name, "gpt2") == 0) /* read as ONNX */
            continue;
        for (int m = 0; m < SBP_COUNT(modes); m++)
            if (testing_all() || m == models % SBP_COUNT(modes))
                check_model(path, t_max, &modes[m], c);
        models++;
    }
    closedir(dir);
    return models;
}

static void golden_models(void **state) {
    (void)state;
    census c = {0};
    int models = check_models(GOLDEN, GOLDEN "/%s/model", 64, &c);
    report(&c);
    assert_true(models >= 80 && c.kernels > 1000 && c.in_place > 100);
}

/* Their rows are as long as they are: whole, and in pieces. */
static void real_models(void **state) {
    (void)state;
    census c = {0};
    int models = check_models(CONFIGS, CONFIGS "/%s", 4096, &c);
    report(&c);
    assert_true(models >= 17 && c.pieces > 100 && c.kernels > c.pieces);
}

/* ---- random kernels ----------------------------------------------------------------------------------- */

static sbp_rowkernel *draw_kernel(testing *t) {
    static const int64_t lengths[] = {1, 2, 6, 64, 256, 258, 512, 514, 1024, 1026, 1026, 1026, 2050, 2100};
    sbp_random_kernel_options options = {.compute = sbp_rng_below(&t->rng, 2) ? SBP_F32 : SBP_F64,
                                         .heads = (int64_t[]){1, 1, 2, 3, 9}[sbp_rng_below(&t->rng, 5)],
                                         .n = lengths[sbp_rng_below(&t->rng, SBP_COUNT(lengths))],
                                         .only_compute = sbp_rng_below(&t->rng, 3) > 0};
    return sbp_random_kernel(&t->rng, t->arena, &options);
}

static void random_kernels(void **state) {
    (void)state;
    census c = {0};
    for (int i = 0; i < testing_draws(2000, 30000); i++) {
        char name[32];
        testing t = testing_open((uint64_t)i);
        snprintf(name, sizeof name, "random kernel %d", i);
        check_kernel(&t, name, draw_kernel(&t), i % 4 == 0, &c);
        testing_close(&t);
    }
    report(&c);
    assert_true(c.in_place > c.kernels / 20);
}

/* ---- the check can fail ------------------------------------------------------------------------------- */

static const char gated[] =
    "kernel @gated f32 heads 1 n %d { in g : f32 [row elem] length %d in u : f32 [row elem] "
    "length %d out dg : f32 [row elem] length %d out du : f32 [row elem] length %d "
    "%%0 = load g %%1 = load u %%2 = exp %%1 %%3 = mul %%2, %%0 store dg, %%2 store du, %%3 }";

/* The first result is computed in its operand, of which the second is still to be made. */
static void a_result_written_too_early(void **state) {
    (void)state;
    static const int lengths[] = {40, 1024, 1025};
    for (int l = 0; l < SBP_COUNT(lengths); l++) {
        char text[600];
        testing t = testing_open(1);
        sbp_lexer lexer;
        sbp_rowkernel *kernel;
        cpu_row_plan *plan;
        int n = lengths[l];
        snprintf(text, sizeof text, gated, n, n, n, n, n);
        testing_check(&t, sbp_lexer_init(&lexer, t.arena, t.diag, "", text, strlen(text)));
        testing_check(&t, sbp_rowkernel_parse(&lexer, t.arena, &kernel));
        testing_check(&t, sbp_rowkernel_verify(kernel, t.diag));
        testing_check(&t, cpu_row_plan_create(kernel, t.diag, &plan));
        row_list *list = plan->pieces ? &plan->passes[0].lists[0] : &plan->per_rows;
        row_list *stores = plan->pieces ? list : &plan->row_stores;
        row_step *first = NULL, *store = NULL;
        for (int32_t i = 0; i < list->count; i++)
            if (list->steps[i].kind == ROW_MAP && !first)
                first = &list->steps[i];
        for (int32_t i = 0; i < stores->count; i++)
            if (stores->steps[i].kind == ROW_STORE && !store)
                store = &stores->steps[i];
        assert_true(first && store && !first->target);
        first->target = store;
        testing_check_fails(
            &t, cpu_row_plan_check(plan, 2, t.diag), SBP_INTERNAL,
            plan->pieces ? "kernel 'gated', step 3 of the pieces of pass 0 (map): reads operand 'g' at "
                           "row 0, column 0, where 'dg' was written before"
                         : "kernel 'gated', step 3 of a block of rows (map): reads operand 'g' at row "
                           "0, column 0, where 'dg' was written before");
        cpu_row_plan_destroy(plan);
        testing_close(&t);
    }
}

/* Random plans, of which one step is changed: a load left in memory, a result computed in an operand, the
 * places that a step reads exchanged, or a step left out. How many of each kind are seen. */
typedef enum change { LEAVE, PLACE, EXCHANGE, OMIT, CHANGES } change;

static bool change_step(row_list *list, row_list *stores, int32_t i, change what) {
    row_step *step = &list->steps[i];
    switch (what) {
    case LEAVE:
        if (step->kind != ROW_LOAD || step->in_memory)
            return false;
        step->in_memory = true;
        return true;
    case PLACE:
        for (int32_t s = 0; s < stores->count; s++)
            if (step->kind == ROW_MAP && !step->target && stores->steps[s].kind == ROW_STORE &&
                stores->steps[s].a == step->dst && stores->steps[s].shape == step->shape) {
                step->target = &stores->steps[s];
                return true;
            }
        return false;
    case EXCHANGE:
        if (step->kind != ROW_MAP || step->b < 0 || step->a == step->b || step->instr->a == step->instr->b)
            return false;
        int32_t a = step->a;
        step->a = step->b;
        step->b = a;
        return true;
    default:
        for (int32_t k = 0; k < list->count; k++)
            if (list->steps[k].target) /* it points at a step */
                return false;
        memmove(step, step + 1, (size_t)(list->count - i - 1) * sizeof *step);
        list->count--;
        return true;
    }
}

static void changed_plans_are_seen(void **state) {
    (void)state;
    int changed[CHANGES] = {0}, seen[CHANGES] = {0};
    const int draws = testing_draws(3000, 30000);
    for (int i = 0; i < draws; i++) {
        testing t = testing_open((uint64_t)i);
        const sbp_rowkernel *kernel = draw_kernel(&t);
        cpu_row_plan *plan;
        testing_check(&t, cpu_row_plan_create(kernel, t.diag, &plan));
        row_list *list = plan->pieces ? NULL : plan->per_heads.count > 0 ? &plan->per_heads : &plan->per_rows;
        for (int32_t p = 0; plan->pieces && p < plan->pass_count; p++)
            if (plan->passes[p].list_count > 0)
                list = &plan->passes[p].lists[0];
        row_list *stores = plan->pieces                ? list
                           : plan->per_heads.count > 0 ? &plan->head_stores
                                                       : &plan->row_stores;
        change what = (change)(i % CHANGES);
        if (list && list->count > 0 &&
            change_step(list, stores, (int32_t)sbp_rng_below(&t.rng, list->count), what)) {
            changed[what]++;
            seen[what] += cpu_row_plan_check(plan, 2, t.diag) == SBP_INTERNAL;
        }
        cpu_row_plan_destroy(plan);
        testing_close(&t);
    }
    printf("  seen: loads left in memory %d of %d, results in operands %d of %d, places exchanged %d of %d, "
           "steps left "
           "out %d of %d\n",
           seen[LEAVE], changed[LEAVE], seen[PLACE], changed[PLACE], seen[EXCHANGE], changed[EXCHANGE],
           seen[OMIT], changed[OMIT]);
    /* a load that nothing overwrites may be left, a value that nobody needs may be left out */
    assert_int_equal(seen[EXCHANGE], changed[EXCHANGE]);
    assert_true(changed[LEAVE] > draws / 40 && seen[LEAVE] > changed[LEAVE] / 3);
    assert_true(seen[PLACE] > 0 && seen[PLACE] >= changed[PLACE] / 2 && seen[OMIT] > changed[OMIT] / 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_models), cmocka_unit_test(real_models), cmocka_unit_test(random_kernels),
        cmocka_unit_test(a_result_written_too_early), cmocka_unit_test(changed_plans_are_seen)};
    return cmocka_run_group_tests_name("row plans", tests, NULL, NULL);
}
