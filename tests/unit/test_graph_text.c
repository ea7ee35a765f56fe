/* test_graph_text.c: text form and verifier of the graph IR: odd names and numbers survive a round trip,
 * every constraint of the verifier (module_c1 ... func_c7) objects to what it is there for, and so does the
 * parser. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "ir/graph/op.h"

typedef struct job {
    sbp_arena *arena;
    sbp_diag *diag;
    sbp_module *module;
} job;

static job open_job(void) {
    job j = {sbp_arena_create(), sbp_diag_create(), NULL};
    assert_non_null(j.arena);
    assert_non_null(j.diag);
    return j;
}

static void close_job(job *j) {
    sbp_arena_destroy(j->arena);
    sbp_diag_destroy(j->diag);
}

static sbp_status parse(job *j, const char *text) {
    return sbp_module_parse(j->arena, j->diag, "test", text, strlen(text), &j->module);
}

static const char *print(job *j) {
    sbp_text out;
    sbp_text_init(&out, j->arena);
    sbp_module_print(&out, j->module);
    return out.data;
}

static void check(job *j, sbp_status status) {
    if (status != SBP_OK)
        fail_msg("%s", sbp_diag_text(j->diag, SBP_ERROR));
}

/* ---- round trips --------------------------------------------------------------------------------------- */

static void odd_names_and_numbers(void **state) {
    (void)state;
    static const char text[] =
        "module \"a \\\"b\\\"\\n\" {\n"
        "  row tok i32\n"
        "  row \"two words\" f32\n"
        "  scalar labels\n"
        "  scalar \"\"\n"
        "  const table f64[2,4] = 0 -0 1e-320 1.7976931348623157e+308 inf -inf nan 0.1\n"
        "  param layers.0.w bf16[4,4] storage f32 trainable decay init normal 0.02 pad -1\n"
        "  param trainable f32[2] storage f32 init ones 0 pad 1\n"
        "  param f32 f32[2] storage f32 trainable init zeros 0 pad -1\n"
        "  param \"h\xc3\xa9 %x\" f32[] storage f32 init zeros 0 pad -1\n"
        "  param number f32[1] storage f32 init zeros 0 pad -1 number 77\n"
        "  param a f32[2,4] storage f32 trainable init zeros 0 pad -1\n"
        "  param b f32[4,2] storage f32 trainable init zeros 0 pad -1\n"
        "  adapter layers.0.w a b out_in 0.5 dropout 0.05\n"
        "  func \"odd name\"(%tok: row tok i32[T],\n"
        "       %\"0\": row \"two words\" f32[T],\n"
        "       %t5: scalar \"\" f64[],\n"
        "       %c: const table f64[2,4],\n"
        "       %w: param layers.0.w trainable bf16[4,4],\n"
        "       %a: param \"trainable\" f32[2],\n"
        "       %b: param \"f32\" trainable f32[2],\n"
        "       %formal: param trainable f32[2],\n"
        "       %x: stream f32[T,2],\n"
        "       %K: carry f32[T,2],\n"
        "       %d_K: cotangent %K f32[T,2],\n"
        "       %d_y: cotangent %y.2 f32[T,2],\n"
        "       %alone: cotangent - f32[]) {\n"
        "    %t6: f32[T,2] = add %x, %a\n"
        "    %y.2: f32[T,2] = add %t6, %b @ \"node \\\"n\\\"\"\n"
        "    %t3: f64[] = constant {value -0, dtype f64}\n"
        "    %\"\": f32[T,1,2] = reshape %y.2 {dims [1,2]}\n"
        "    %flat: f32[T] = slice %\"0\" {start 0, length 0}\n"
        "    result %y.2 value \"y\\x01\"\n"
        "    result %K carry %K\n"
        "    result %y.2 gradient %x\n"
        "    result %t6 saved 3\n"
        "    result %a statistic \"s\"\n"
        "  }\n"
        "  func empty() {\n"
        "  }\n"
        "  values 3\n"
        "  call empty params streams outputs\n"
        "}\n";
    job j = open_job();
    check(&j, parse(&j, text));
    assert_string_equal(print(&j), text);
    assert_int_equal(j.module->funcs[0]->values[j.module->funcs[0]->args[11]].binding,
                     sbp_map_get(&j.module->funcs[0]->names, "y.2"));
    close_job(&j);
}

/* Every type can be written and read, with a comment in between. */
static void types(void **state) {
    (void)state;
    for (int d = 0; d < SBP_DTYPE_COUNT; d++) {
        job j = open_job();
        char text[200];
        const char *name = sbp_dtype_name((sbp_dtype)d);
        snprintf(
            text, sizeof text,
            "module m { # comment\n func f(%%a: stream %s[], %%b:stream %s[S , 1,2147483647,3,4,5]){}\n}",
            name, name);
        check(&j, parse(&j, text));
        snprintf(text, sizeof text,
                 "module \"m\" {\n  func f(%%a: stream %s[],\n       %%b: stream %s[S,1,2147483647,3,4,5]) "
                 "{\n  }\n}\n",
                 name, name);
        assert_string_equal(print(&j), text);
        close_job(&j);
    }
}

/* ---- the parser objects -------------------------------------------------------------------------------- */

static const struct {
    const char *body, *message;
} malformed[] = {
    {"", "expected 'module'"},
    {"module m {", "test:1"},
    {"module m { } x", "ends before the text does"},
    {"module m { nonsense }", "unexpected 'nonsense'"},
    {"module m { row a i32 row a f32 }", "two row inputs"},
    {"module m { scalar a scalar a }", "two scalars"},
    {"module m { const a f64[1] = 1 const a f64[1] = 2 }", "duplicate"},
    {"module m { const a f64[1] = 1 const b f64[1] = 1 }", "duplicate"},
    {"module m { const a f64[0] = }", "empty"},
    {"module m { const a f64[16777217] = 1 }", "16777217 elements"},
    {"module m { param p f32[2] storage f32 init ones 0 pad -1 param p f32[2] storage f32 init ones 0 pad -1 "
     "}",
     "two parameters"},
    {"module m { param p f32[2] storage f32 init ones 0 pad -2 }", "-2 is out of range"},
    {"module m { param p f32[2] storage f32 init ones 0 pad 4294967296 }", "4294967296 is out of range"},
    {"module m { func f(%a: stream f32[1,T]) {} }", "not axis 0"},
    {"module m { func f(%a: stream f32[-1]) {} }", "dimension -1"},
    {"module m { func f(%a: stream f32[2147483648]) {} }", "dimension 2147483648"},
    {"module m { func f(%a: stream f32[2147483647,2147483647,2147483647]) {} }", "too many elements"},
    {"module m { func f(%a: stream f32[1,1,1,1,1,1,1]) {} }", "more than 6 dimensions"},
    {"module m { func f(%a: op f32[]) {} }", "cannot be the result"},
    {"module m { func f(%a: row no i32[T]) {} }", "the module has no 'no'"},
    {"module m { func f(%a: param no f32[]) {} }", "the module has no 'no'"},
    {"module m { func f(%a: stream f32[], %a: stream f32[]) {} }", "two values"},
    {"module m { func f(%a: cotangent %b f32[]) {} }", "no value is called %b"},
    {"module m { func f(%a: stream f32[]) { %a: f32[] = neg %a } }", "two values"},
    {"module m { func f(%a: stream f32[]) { %b: f32[] = neg %c } }", "no value is called %c"},
    {"module m { func f(%a: stream f32[]) { %b: f32[] = no %a } }", "no op 'no'"},
    {"module m { func f(%a: stream f32[]) { %b: f32[], %c: f32[] = neg %a } }", "with 2 results"},
    {"module m { func f(%a: stream f32[]) { %b: f32[], %c: f32[], %d: f32[], %e: f32[], %g: f32[], %h: "
     "f32[], %i: f32[] = neg %a } }",
     "more than 6 results"},
    {"module m { func f(%a: stream f32[]) { %b: f32[] = row_sum %a } }", "expected '{'"},
    {"module m { func f(%a: stream f32[]) { %b: f32[] = row_sum %a {axes 1} } }", "expected 'axis'"},
    {"module m { func f(%a: stream f32[]) { %b: f32[] = row_sum %a {axis 1.5} } }", "expected an integer"},
    {"module m { func f(%a: stream f32[]) { result %a saved 2147483648 } }", "2147483648 is out of range"},
    {"module m { func f(%a: stream f32[]) { result %a thing } }", "unexpected 'thing'"},
    {"module m { call f params streams outputs }", "no function is called 'f'"},
    {"module m { func f() {} values 4294967297 }", "4294967297 is out of range"},
    {"module m { func f() {} call f params -1 streams outputs }", "-1 is out of range"},
    {"module m { func f() {} call f params 4294967296 streams outputs }", "4294967296 is out of range"},
};

static void the_parser_objects(void **state) {
    (void)state;
    for (int i = 0; i < SBP_COUNT(malformed); i++) {
        job j = open_job();
        sbp_status status = parse(&j, malformed[i].body);
        const char *text = sbp_diag_text(j.diag, SBP_ERROR);
        if (status != SBP_INPUT || !strstr(text, malformed[i].message))
            fail_msg("'%s': expected '%s', got status %d: %s", malformed[i].body, malformed[i].message,
                     (int)status, text);
        close_job(&j);
    }
    printf("  %d malformed texts\n", SBP_COUNT(malformed));
}

/* ---- the verifier objects ------------------------------------------------------------------------------ */

#define ADAPTED                                                                                              \
    "param w f32[3,4] storage f32 init ones 0 pad -1 param a f32[2,4] storage f32 init ones 0 pad -1 "       \
    "param b f32[3,2] storage f32 init ones 0 pad -1"

static const struct {
    const char *constraint, *body;
} invalid[] = {
    {"module_c1", "func f() {} func f() {}"},
    {"module_c2", "param p f32[T] storage f32 init ones 0 pad -1"},
    {"module_c6", "param p f32[2] storage f32 init zeros 0 pad -1 number 3"},
    {"module_c6", "param p f32[1] storage f32 trainable init zeros 0 pad -1 number 3"},
    {"module_c6", "param p f32[1] storage bf16 init zeros 0 pad -1 number 3"},
    {"module_c5", ADAPTED " adapter w a b in_out 2"},
    {"module_c5", ADAPTED " adapter w b a out_in 2"},
    {"module_c5", ADAPTED " adapter w a b out_in 2 dropout 1"},
    {"module_c5", ADAPTED " adapter w a b out_in 2 dropout -0.1"},
    {"module_c3", "func f(%p: param f32[2]) {} values 1 call f params streams outputs"},
    {"module_c3", "param p f32[3] storage f32 init ones 0 pad -1\n"
                  "func f(%p: param f32[2]) {} values 1 call f params 0 streams outputs"},
    {"module_c3", "func f(%p: param f32[2]) {} values 1 call f params 0 streams outputs"},
    {"module_c3", "func f(%x: stream f32[T]) {} values 1 call f params streams 1 outputs"},
    {"module_c3", "func f(%x: stream f32[T]) {} values 1 call f params streams 0 0 outputs"},
    {"module_c3", "func f(%x: stream f32[T]) { result %x value } values 1 call f params streams 0 outputs"},
    {"module_c3", "func f(%x: stream f32[T]) { result %x value } values 1 call f params streams 0 outputs 1"},
    {"func_c2", "func f() { %y: f32[] = neg - }"},
    {"func_c3", "func f(%x: stream f32[T]) { %y: f32[] = neg %x }"},
    {"func_c3", "func f(%x: stream f32[T]) { %y: f64[T] = neg %x }"},
    {"func_c3",
     "func f(%x: stream f32[]) { %y: f32[T,2] = broadcast %x {dims [2147483647,2147483647], rows T} }"},
    {"func_c4", "row tok i32\n func f(%t: row tok f32[T]) {}"},
    {"func_c4", "row tok i32\n func f(%t: row tok i32[3]) {}"},
    {"func_c4", "row tok i32\n func f(%t: row tok i32[T,1]) {}"},
    {"func_c4", "scalar n\n func f(%n: scalar n f32[]) {}"},
    {"func_c4", "const c f64[1] = 1\n func f(%c: const c f64[2]) {}"},
    {"func_c4", "param p f32[2] storage f32 init ones 0 pad -1\n func f(%p: param p f32[3]) {}"},
    {"func_c5", "func f(%x: stream f32[T]) { result - value }"},
    {"func_c5", "func f(%x: stream f32[T]) { result %x gradient - }"},
    {"func_c5", "func f(%x: stream f32[T]) { %y: f32[T] = neg %x result %x gradient %y }"},
    {"func_c5", "func f(%x: stream f32[T]) { result %x statistic \"s\" }"},
    {"func_c5", "func f(%x: stream f32[4]) { result %x statistic }"},
    {"func_c7", "func f(%K: stream f32[T,1], %x: stream f32[C,1]) { %L: f32[T,1] = append %K, %x }"},
    {"func_c7", "func f(%K: carry f32[T,1], %x: stream f32[C,1]) {\n"
                "%L: f32[T,1] = append %K, %x  %M: f32[T,1] = append %K, %x }"},
    {"func_c7", "func f(%K: carry f32[T,1], %x: stream f32[C,1]) {\n"
                "%L: f32[T,1] = append %K, %x  %M: f32[T,1] = neg %K }"},
    {"func_c7", "func f(%K: carry f32[T,1], %x: stream f32[C,1]) {\n"
                "%L: f32[T,1] = append %K, %x  result %K carry %K }"},
};

static void the_verifier_objects(void **state) {
    (void)state;
    for (int i = 0; i < SBP_COUNT(invalid); i++) {
        job j = open_job();
        check(&j, parse(&j, sbp_arena_printf(j.arena, "module m {\n%s\n}", invalid[i].body)));
        sbp_status status = sbp_module_verify(j.module, j.diag);
        const char *text = sbp_diag_text(j.diag, SBP_ERROR);
        if (status == SBP_OK || !strstr(text, invalid[i].constraint))
            fail_msg("'%s': expected %s, got status %d: %s", invalid[i].body, invalid[i].constraint,
                     (int)status, text);
        close_job(&j);
    }
    printf("  %d invalid modules\n", SBP_COUNT(invalid));
}

/* What no text can say, since the parser would not make it. */
static void invalid_structures(void **state) {
    (void)state;
    static const char text[] =
        "module m {\n  row a i32\n  row b i32\n  scalar s\n  scalar r\n"
        "  const c f64[1] = 1\n  const d f64[1] = 2\n"
        "  param p f32[2] storage f32 init ones 0 pad -1\n"
        "  param q f32[2] storage f32 init ones 0 pad -1\n"
        "  func f(%x: stream f32[T], %d: cotangent %y f32[T]) {\n"
        "    %y: f32[T] = neg %x\n    %z: f32[T] = add %y, %x\n    result %z value\n  }\n}\n";
    static const char *const constraints[] = {"module_c1", "module_c1", "module_c1", "module_c1", "func_c1",
                                              "func_c2",   "func_c4",   "func_c4",   "func_c4",   "func_c5",
                                              "func_c5",   "func_c6",   "func_c2"};
    for (int i = 0; i < SBP_COUNT(constraints); i++) {
        job j = open_job();
        check(&j, parse(&j, text));
        check(&j, sbp_module_verify(j.module, j.diag));
        sbp_func *f = j.module->funcs[0];
        sbp_op swap = f->ops[0];
        switch (i) {
        case 0:
            j.module->rows[1].name = "a";
            break;
        case 1:
            j.module->scalars[1] = "s";
            break;
        case 2:
            j.module->consts[1].name = "c";
            break;
        case 3:
            j.module->params[1].name = "p";
            break;
        case 4:
            f->ops[0] = f->ops[1];
            f->ops[1] = swap;
            break;
        case 5:
            f->ops[0].operand_count = 0;
            break;
        case 6:
            f->values[f->args[0]].type.dim[0] = (sbp_dim){.n = -1};
            break;
        case 7:
            f->values[f->args[0]].type.rank = SBP_MAX_RANK + 1;
            break;
        case 8:
            f->values[f->args[1]].binding = 99;
            break;
        case 9:
            f->results[0].value = 99;
            break;
        case 10:
            f->results[0].role = SBP_RESULT_GRADIENT;
            f->results[0].target = 99;
            break;
        case 11:
            f->values[f->args[1]].name = "x";
            break;
        default:
            f->ops[0].result_count = 2;
        }
        sbp_status status = sbp_module_verify(j.module, j.diag);
        const char *message = sbp_diag_text(j.diag, SBP_ERROR);
        if (status == SBP_OK || !strstr(message, constraints[i]))
            fail_msg("case %d: expected %s, got status %d: %s", i, constraints[i], (int)status, message);
        close_job(&j);
    }
}

/* ---- the builder objects ------------------------------------------------------------------------------- */

static void the_builder_objects(void **state) {
    (void)state;
    job j = open_job();
    j.module = sbp_module_create(j.arena, "m");
    sbp_func *f = sbp_module_add_func(j.module, "f");
    sbp_type type = {.dtype = SBP_F32, .rank = 2, .dim = {sbp_dim_symbol(SBP_T), sbp_dim_const(4)}};
    sbp_value x = sbp_func_add_arg(f, SBP_VALUE_STREAM, "x", &type, -1), many[13] = {0};
    static const int64_t huge[] = {INT32_MAX, INT32_MAX, INT32_MAX};
    const sbp_attr axis = sbp_attr_int("axis", -1), wrong = sbp_attr_double("axis", -1),
                   unknown = sbp_attr_int("axes", -1);
    static const char *const messages[] = {"'axis' has the wrong kind",
                                           "unknown or given twice",
                                           "unknown or given twice",
                                           "attribute 'dims' is missing",
                                           "operand 'b' is missing",
                                           "13 operands, at most 1",
                                           "too large",
                                           "too large"};
    for (int i = 0; i < SBP_COUNT(messages); i++) {
        sbp_builder b = sbp_builder_on(j.module, f, j.diag);
        b.node = i == 6 ? "layers.3" : NULL;
        switch (i) {
        case 0:
            sbp_build(&b, SBP_OP_row_sum, NULL, &x, 1, &wrong, 1, NULL);
            break;
        case 1:
            sbp_build(&b, SBP_OP_row_sum, NULL, &x, 1, &unknown, 1, NULL);
            break;
        case 2:
            sbp_build(&b, SBP_OP_row_sum, NULL, &x, 1, (sbp_attr[]){axis, axis}, 2, NULL);
            break;
        case 3:
            sbp_build1(&b, SBP_OP_reshape, x);
            break;
        case 4:
            sbp_build1(&b, SBP_OP_add, x);
            break;
        case 5:
            sbp_build(&b, SBP_OP_neg, NULL, many, 13, NULL, 0, NULL);
            break;
        case 6:
            sbp_build(&b, SBP_OP_pad, NULL, &x, 1,
                      (sbp_attr[]){sbp_attr_int("before", INT32_MAX), sbp_attr_int("after", 0)}, 2, NULL);
            break;
        default:
            sbp_build(&b, SBP_OP_broadcast, NULL, (sbp_value[]){sbp_build_const(&b, SBP_F32, 1)}, 1,
                      (sbp_attr[]){sbp_attr_list("dims", huge, 3), sbp_attr_symbol("rows", "T")}, 2, NULL);
        }
        const char *text = sbp_diag_text(j.diag, SBP_ERROR);
        if (b.status != SBP_INPUT || !strstr(text, messages[i]) ||
            (b.node && !strstr(text, "node 'layers.3'")))
            fail_msg("case %d: expected '%s', got status %d: %s", i, messages[i], (int)b.status, text);
        sbp_diag_clear(j.diag);
        assert_int_equal(sbp_build1(&b, SBP_OP_neg, x), SBP_NO_VALUE); /* the first error sticks */
        assert_int_equal(sbp_diag_count(j.diag, SBP_ERROR), 0);
    }
    close_job(&j);
}

/* Names are made unique, and arguments are shared. */
static void names(void **state) {
    (void)state;
    job j = open_job();
    j.module = sbp_module_create(j.arena, "m");
    sbp_func *f = sbp_module_add_func(j.module, "f");
    sbp_builder b = sbp_builder_on(j.module, f, j.diag);
    sbp_value tok = sbp_build_row(&b, "tok", SBP_I32, SBP_T), n = sbp_build_scalar(&b, "n");
    assert_int_equal(sbp_build_row(&b, "tok", SBP_I32, SBP_T), tok);
    assert_int_equal(sbp_build_scalar(&b, "n"), n);
    int32_t p = sbp_module_add_param(
        j.module, &(sbp_param){.name = "w", .type = {.dtype = SBP_F32}, .trainable = true, .pad_row = -1});
    sbp_value w = sbp_build_param(&b, p);
    assert_int_equal(sbp_build_param(&b, p), w);
    assert_true(f->values[w].trainable);
    assert_int_equal(sbp_module_find_param(j.module, "w"), p);
    assert_int_equal(sbp_module_find_param(j.module, "v"), -1);
    sbp_value a = sbp_build1(&b, SBP_OP_neg, w), c = sbp_build1(&b, SBP_OP_neg, a);
    sbp_build_name(&b, a, "tok");
    sbp_build_name(&b, c, "tok");
    assert_string_equal(f->values[a].name, "tok.2");
    assert_string_equal(f->values[c].name, "tok.3");
    sbp_build_name(&b, a, "t6");
    sbp_value d = sbp_build1(&b, SBP_OP_neg, c); /* its number may be taken by a name */
    sbp_value e = sbp_build1(&b, SBP_OP_neg, d), g = sbp_build1(&b, SBP_OP_neg, e);
    sbp_func_add_result(f, g, SBP_RESULT_VALUE, SBP_NO_VALUE, NULL);
    assert_int_equal(b.status, SBP_OK);
    check(&j, sbp_module_verify(j.module, j.diag));
    const char *text = print(&j);
    job again = open_job();
    check(&again, parse(&again, text));
    assert_string_equal(print(&again), text);
    close_job(&again);
    close_job(&j);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(odd_names_and_numbers),
                                       cmocka_unit_test(types),
                                       cmocka_unit_test(the_parser_objects),
                                       cmocka_unit_test(the_verifier_objects),
                                       cmocka_unit_test(invalid_structures),
                                       cmocka_unit_test(the_builder_objects),
                                       cmocka_unit_test(names)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
