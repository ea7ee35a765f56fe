/* test_prepare.c: what objectives compute from data alone, against TRL's own lines in float64 from
 * tests/data/prepared.json (tests/golden/make_prepared.py): the graph that the builder makes, printed, parsed
 * as a plan would be, and run; and texts that no plan may have. */
#include "json_cases.h"

#include "frontends/objectives/objective.h"
#include "ir/graph/prepare.h"

enum { MOST_ROWS = 400, MOST_DOCS = 40 };

typedef struct prepare_case {
    fixture *f;
    const sbp_json *given, *docs;
    sbp_objective_settings settings;
    const sbp_prepare *prepare;
    int64_t rows;
    double *inputs[32], *columns[8], numbers[16], scalars[16];
} prepare_case;

static bool is_null(const sbp_json *node) {
    return !node || node->kind == SBP_JSON_NULL;
}

/* What the packer would make of a row of a document: rows of its prompt, those whose labels are its tokens,
 * its last. */
static double cell(const prepare_case *c, const char *name, int64_t d, int64_t row) {
    const sbp_json *doc = &c->docs->items[d], *of = member(doc, "old_logps");
    int64_t first = (int64_t)number(c->f, member(doc, "prompt")) - 1, at = row - first;
    bool counts = at >= 0 && at < of->count, has = strncmp(name, "has.", 4) == 0;
    const sbp_json *value = sbp_json_member(doc, has ? name + 4 : name);
    if (strcmp(name, "pos") == 0)
        return (double)row;
    if (strcmp(name, "doc") == 0)
        return (double)d;
    if (strcmp(name, "weight") == 0)
        return counts;
    if (strcmp(name, "one.of.reward.advantage") == 0)
        return !is_null(sbp_json_member(doc, "reward"));
    if (strcmp(name, "doc.labels") == 0)
        return (double)of->count;
    if (has && !is_null(value) && value->kind == SBP_JSON_ARRAY && counts)
        return !is_null(&value->items[at]);
    if (has || is_null(value))
        return has && !is_null(value);
    if (value->kind != SBP_JSON_ARRAY)
        return number(c->f, value);
    return counts && !is_null(&value->items[at]) ? number(c->f, &value->items[at]) : 0;
}

static int64_t rows_of(const prepare_case *c, int64_t d) {
    const sbp_json *doc = &c->docs->items[d];
    return (int64_t)number(c->f, member(doc, "prompt")) + member(doc, "old_logps")->count;
}

static void bind(prepare_case *c) {
    const sbp_prepare *p = c->prepare;
    double labels = 0;
    for (int64_t d = 0; d < c->docs->count; d++) {
        c->rows += rows_of(c, d);
        labels += (double)member(&c->docs->items[d], "old_logps")->count;
    }
    assert_true(c->rows <= MOST_ROWS && p->row_count <= SBP_COUNT(c->inputs));
    for (int32_t i = 0; i < p->row_count; i++) {
        int64_t at = 0;
        c->inputs[i] = SBP_NEW_ARRAY(c->f->arena, double, c->rows);
        for (int64_t d = 0; d < c->docs->count; d++)
            for (int64_t row = 0; row < rows_of(c, d); row++)
                c->inputs[i][at++] = cell(c, p->rows[i], d, row);
    }
    for (int32_t i = 0; i < p->column_count; i++)
        c->columns[i] = SBP_NEW_ARRAY(c->f->arena, double, c->rows);
    for (int32_t i = 0; i < p->scalar_count; i++) {
        const char *name = p->scalars[i];
        const sbp_json *chosen = sbp_json_member(member(c->given, "settings"), name);
        c->scalars[i] = strcmp(name, "labels") == 0 ? labels : (double)c->docs->count;
        for (int32_t k = 0; k < c->settings.count; k++)
            if (strcmp(c->settings.items[k].name, name) == 0)
                c->scalars[i] = c->settings.items[k].value;
        if (chosen && strcmp(name, "scale_rewards") == 0)
            c->scalars[i] = *chosen->string == 'g' ? 0 : *chosen->string == 'b' ? 1 : 2;
        else if (chosen)
            c->scalars[i] = number(c->f, chosen);
    }
}

static void near_to(const prepare_case *c, double got, double want, const char *what) {
    if (!(fabs(got - want) <= SBP_TOLERANCE_F64 * fmax(1, fabs(want))))
        fail_msg("%s: %s is %.17g, expected %.17g", member(c->given, "loss_type")->string, what, got, want);
}

static void compare(const prepare_case *c) {
    const sbp_json *advantage = member(c->given, "advantage"), *numbers = member(c->given, "numbers");
    const sbp_prepare *p = c->prepare;
    int found = 0;
    for (int32_t i = 0; i < p->column_count; i++) {
        int64_t at = 0;
        if (strcmp(p->columns[i], "advantage") != 0)
            continue;
        found++;
        for (int64_t d = 0; d < c->docs->count; d++)
            for (int64_t row = 0; row < rows_of(c, d); row++)
                near_to(c, c->columns[i][at++], number(c->f, &advantage->items[d]), "advantage");
    }
    for (int64_t k = 0; k < numbers->count; k++)
        for (int32_t i = 0; i < p->number_count; i++)
            if (strcmp(p->numbers[i], numbers->items[k].key) == 0) {
                near_to(c, c->numbers[i], number(c->f, &numbers->items[k]), p->numbers[i]);
                found++;
            }
    assert_int_equal(found, numbers->count + 1);
}

static void run_case(fixture *f, const sbp_json *root, const sbp_json *given) {
    (void)root;
    static const char *const tiny[] = {"num_hidden_layers=1"};
    prepare_case c = {.f = f, .given = given, .docs = member(given, "docs")};
    const char *name = member(given, "objective")->string;
    sbp_model model;
    sbp_model_options options = sbp_model_options_for(SBP_F64);
    options.set = tiny;
    options.set_count = 1;
    options.head = sbp_objective_head(name);
    check(f, sbp_model_load(f->arena, f->diag, "tests/golden/llama_plain/model", &options, &model));
    const sbp_json *sampling = sbp_json_member(given, "sampling");
    const sbp_objective_choice choice = {.name = name,
                                         .loss_type = member(given, "loss_type")->string,
                                         .request = {.sampling_mode = sampling ? sampling->string : NULL}};
    check(f, sbp_objective_add(model.module, f->diag, &choice, &c.settings));
    assert_non_null(c.settings.prepare);
    sbp_text text;
    sbp_text_init(&text, f->arena);
    sbp_module_print(&text, c.settings.prepare);
    check(f, sbp_prepare_parse(f->arena, f->diag, "prepare", text.data, text.length, &c.prepare));
    bind(&c);
    check(f, sbp_prepare_run(c.prepare, f->diag, c.rows, c.docs->count, c.inputs, c.scalars, c.columns,
                             c.numbers));
    compare(&c);
}

static void test_trl(void **state) {
    (void)state;
    run_json_cases("tests/data/prepared.json", 42, run_case);
}

/* ---- scans, slots, and texts of strangers
 * ------------------------------------------------------------------ */

#define FUNC(args, body)                                                                                     \
    "module \"prepare\" {\n row a f64\n row g i32\n scalar s\n func prepare(" args ") {\n" body " }\n}\n"

static sbp_status strange(void *user) {
    fixture *f = user;
    static const struct {
        const char *text, *says;
    } texts[] = {
        {FUNC("%a: row a f64[T]", " result %a value \"x\"\n"), NULL},
        {FUNC("%a: row a f64[T]", " %y: f64[T,1] = reshape %a {dims [1]}\n result %a value \"x\"\n"),
         "neither a vector over rows nor a number"},
        {FUNC("%a: row a f64[T]", " %y: f32[3] = iota {n 3, dtype f32}\n result %a value \"x\"\n"),
         "neither a vector over rows nor a number"},
        {FUNC("%a: stream f64[T]", " result %a value \"x\"\n"), "neither a column nor a scalar"},
        {FUNC("%a: row a f64[S]", " result %a value \"x\"\n"), "neither a column nor a scalar"},
        {FUNC("%a: row a f64[T]", " result %a value\n"), "neither a named column"},
        {"module \"prepare\" {\n}\n", "expected one function"},
    };
    for (int i = 0; i < SBP_COUNT(texts); i++) {
        const sbp_prepare *p;
        sbp_status status =
            sbp_prepare_parse(f->arena, f->diag, "prepare", texts[i].text, strlen(texts[i].text), &p);
        assert_int_equal(status, texts[i].says ? SBP_INPUT : SBP_OK);
        if (texts[i].says && !strstr(sbp_diag_text(f->diag, SBP_NOTE), texts[i].says))
            fail_msg("text %d: %s", i, sbp_diag_text(f->diag, SBP_NOTE));
    }
    return SBP_OK;
}

static void test_strange_texts(void **state) {
    (void)state;
    fixture f = fixture_create();
    assert_int_equal(sbp_guard(f.arena, f.diag, strange, &f), SBP_OK);
    fixture_destroy(&f);
}

/* Two groups in turns, and one result that is an input. */
static sbp_status scan_both(void *user) {
    fixture *f = user;
    static const char text[] = FUNC(
        "%a: row a f64[T], %g: row g i32[T], %s: scalar s f64[]",
        " %d: f64[T] = broadcast %s {dims [], rows T}\n %y: f64[T], %c: f64[T] = scan %a, %d, %g {reverse "
        "0}\n"
        " %z: f64[T], %n: f64[T] = scan %a, %d, %g {reverse 1}\n %t: f64[] = sum_rows %a {rank 0}\n"
        " result %y value \"y\"\n result %n value \"n\"\n result %a value \"a\"\n result %t value \"t\"\n");
    const sbp_prepare *p;
    check(f, sbp_prepare_parse(f->arena, f->diag, "prepare", text, sizeof text - 1, &p));
    double a[] = {1, 10, 2, 20, 3}, g[] = {0, 1, 0, 1, 0}, y[5], n[5], same[5], scalar = 0.5, total;
    double *const inputs[] = {a, g}, *const columns[] = {y, n, same};
    check(f, sbp_prepare_run(p, f->diag, 5, 2, inputs, &scalar, columns, &total));
    static const double want_y[] = {1, 10, 2.5, 25, 4.25}, want_n[] = {3.5, 20, 3, 0, 0};
    for (int i = 0; i < 5; i++)
        assert_true(y[i] == want_y[i] && n[i] == want_n[i] && same[i] == a[i]);
    assert_true(total == 36);
    static const double none[] = {2, -1, 1e300, NAN, -INFINITY}; /* no such group */
    for (int i = 0; i < SBP_COUNT(none); i++) {
        g[4] = none[i];
        assert_int_equal(sbp_prepare_run(p, f->diag, 5, 2, inputs, &scalar, columns, &total), SBP_INPUT);
    }
    return SBP_OK;
}

static void test_scan(void **state) {
    (void)state;
    fixture f = fixture_create();
    assert_int_equal(sbp_guard(f.arena, f.diag, scan_both, &f), SBP_OK);
    fixture_destroy(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_trl), cmocka_unit_test(test_scan),
                                       cmocka_unit_test(test_strange_texts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
