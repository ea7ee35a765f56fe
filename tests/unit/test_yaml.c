/* YAML from anywhere: what nests, repeats itself or names much is read or refused in time that is linear in
 * the text. */
#include "tests/unit/io_testing.h"

#include "ir/base/yaml.h"

static const char *repeated(io_fixture *f, const char *before, const char *part, int count) {
    sbp_text text;
    sbp_text_init(&text, f->arena);
    sbp_text_add(&text, "%s", before);
    for (int i = 0; i < count; i++)
        sbp_text_add_n(&text, part, strlen(part));
    return text.data;
}

static sbp_status parse(io_fixture *f, const char *text, const sbp_yaml **out) {
    return sbp_yaml_parse(f->arena, f->diag, SBP_INPUT, "c.yaml", text, strlen(text), out);
}

/* A million of each: with the square of that, no test would end. */
static void test_much_of_one(void **state) {
    io_fixture *f = *state;
    enum { MANY = 1000000 };
    static const struct {
        const char *before, *part, *message;
    } cases[] = {
        {"a: ", "[", "c.yaml:1: too many values, or one within another too often"},
        {"a: ", "{b: ", "c.yaml:1: too many values, or one within another too often"},
        {"a: ", "[\n", "too many values, or one within another too often"},
        {"", "- ", "c.yaml:1: too many values, or one within another too often"},
        {"", "? ", "c.yaml:1: expected 'key: value'"},
        {"", "- x\n", "too many values"},
        {"", "- &a x\n", "c.yaml:2: not valid YAML: found duplicate anchor"},
        {"", "%TAG !e! x\n", "c.yaml:101: too many directives"},
        {"a: &a [x]\nb: [", "*a, ", "too many values"},
    };
    const sbp_yaml *root;
    for (int i = 0; i < SBP_COUNT(cases); i++)
        assert_fails(f, SBP_INPUT, cases[i].message,
                     parse(f, repeated(f, cases[i].before, cases[i].part, MANY), &root));
    sbp_text text; /* anchors are many, and each is looked for */
    sbp_text_init(&text, f->arena);
    for (int i = 0; i < 50000; i++)
        sbp_text_add(&text, "- &a%d x\n- *a%d\n", i, i);
    assert_ok(f, parse(f, text.data, &root));
    assert_int_equal(root->count, 100000);
}

static void test_depth(void **state) {
    io_fixture *f = *state;
    const sbp_yaml *root;
    static const char ends[] = "]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]";
    assert_ok(f, parse(f, sbp_arena_printf(f->arena, "%s%.40s", repeated(f, "", "[", 40), ends), &root));
    assert_fails(f, SBP_INPUT, "one within another too often",
                 parse(f, sbp_arena_printf(f->arena, "%sx%.41s", repeated(f, "", "[", 41), ends), &root));
    /* by an alias: 30 below 15 */
    const char *deep = sbp_arena_printf(f->arena, "a: &a %s%.30s\nb: ", repeated(f, "", "[", 30), ends);
    assert_ok(f, parse(f, sbp_arena_printf(f->arena, "%s[[[*a]]]\n", deep), &root));
    assert_fails(
        f, SBP_INPUT, "one within another too often",
        parse(f, sbp_arena_printf(f->arena, "%s*a%.15s\n", repeated(f, deep, "[", 15), ends), &root));
}

static void test_aliases(void **state) {
    io_fixture *f = *state;
    const sbp_yaml *root;
    assert_ok(f, parse(f, "a: &x {b: [1, 'two']}\n&k c: *x\n*k : &n\n", &root));
    assert_int_equal(root->count, 3);
    const sbp_yaml *c = sbp_yaml_member(root, "c");
    assert_int_equal(c->line, 2);
    assert_int_equal(c->items[0].count, 2);
    assert_string_equal(c->items[0].items[1].text, "two");
    assert_false(c->items[0].items[1].plain);
    assert_true(c->items[0].items[0].plain);
    assert_int_equal(root->items[2].line, 2); /* of the key that it names */
    assert_string_equal(root->items[2].text, "");
    assert_fails(f, SBP_INPUT, "c.yaml:1: too many values, or one", parse(f, "a: &x [*x]\n", &root));
    assert_fails(f, SBP_INPUT, "c.yaml:2: not valid YAML: found undefined alias",
                 parse(f, "a: 1\nb: *x\n", &root));
    assert_fails(f, SBP_INPUT, "c.yaml:1: expected 'key: value'", parse(f, "[a]: 1\n", &root));
    assert_fails(f, SBP_INPUT, "c.yaml:2: a NUL in a text", parse(f, "a: 1\nb: \"\\0\"\n", &root));
    assert_fails(f, SBP_INPUT, "c.yaml:3: not valid YAML", parse(f, "a: 1\nb: [1\nc: 2\n", &root));
    assert_ok(f, parse(f, "", &root));
    assert_null(root);
    assert_ok(f, parse(f, "# nothing\n---\n", &root));
    assert_int_equal(root->kind, SBP_YAML_SCALAR);
    const char *bomb = "a: &a [x, x, x, x, x, x, x, x, x, x]\n";
    for (char name = 'b'; name < 'i'; name++)
        bomb = sbp_arena_printf(f->arena, "%s%c: &%c [*%c, *%c, *%c, *%c, *%c, *%c, *%c, *%c, *%c, *%c]\n",
                                bomb, name, name, name - 1, name - 1, name - 1, name - 1, name - 1, name - 1,
                                name - 1, name - 1, name - 1, name - 1);
    assert_fails(f, SBP_INPUT, "too many values", parse(f, bomb, &root));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_much_of_one, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_depth, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_aliases, io_setup, io_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
