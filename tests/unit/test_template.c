/* Chat templates: what transformers' Jinja made of tests/golden/chat (vectors.jsonl, written by compare.py),
 * places in messages, limits, lack of memory, damaged templates. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "frontends/formats/template/template.h"
#include "io_testing.h"

static const char date[] = "2026-03-01";

typedef struct case_job {
    sbp_arena *arena;
    sbp_diag *diag;
    const char *text;
    size_t length;
    sbp_template_call call;
    sbp_rendering out;
} case_job;

static sbp_status run_case(case_job *job) {
    const sbp_template *template;
    SBP_TRY(sbp_template_parse(job->arena, job->diag, "t", job->text, job->length, &template));
    return sbp_template_render(template, job->arena, job->diag, &job->call, &job->out);
}

/* ---- against Jinja
 * ----------------------------------------------------------------------------------------- */

typedef struct vector_counts {
    int texts, errors, spans;
} vector_counts;

static void check_rendering(const sbp_json *vector, const sbp_rendering *out, vector_counts *counts) {
    const sbp_json *text = sbp_json_member(vector, "text"), *spans = sbp_json_member(vector, "spans");
    if ((size_t)text->count != out->length || memcmp(text->string, out->text, out->length) != 0)
        fail_msg("%s: expected\n%s\nfound\n%s", sbp_json_member(vector, "name")->string, text->string,
                 out->text);
    assert_int_equal(spans->count, out->span_count);
    for (int32_t i = 0; i < out->span_count; i++)
        for (int side = 0; side < 2; side++)
            assert_int_equal(spans->items[i].items[side].integer, out->spans[i][side]);
    counts->texts++;
    counts->spans += out->span_count;
}

typedef struct line_job {
    sbp_arena *arena;
    sbp_diag *diag;
    const char *line;
    vector_counts *counts;
} line_job;

static sbp_status check_line(void *user) {
    line_job *line = user;
    const sbp_json *root;
    SBP_TRY(sbp_json_parse(line->arena, line->diag, "vector", line->line, strlen(line->line), SBP_JSON_ROW,
                           &root));
    const sbp_json *variables = sbp_json_member(root, "variables"), *text = sbp_json_member(root, "template");
    sbp_template_variable *list = SBP_NEW_ARRAY(line->arena, sbp_template_variable, variables->count);
    for (int64_t i = 0; i < variables->count; i++)
        list[i] = (sbp_template_variable){.name = variables->items[i].key, .json = &variables->items[i]};
    case_job job = {
        .arena = line->arena, .diag = line->diag, .text = text->string, .length = (size_t)text->count};
    job.call =
        (sbp_template_call){.variables = list, .variable_count = (int32_t)variables->count, .date = date};
    sbp_status status = run_case(&job);
    if (sbp_json_member(root, "error")) {
        if (status != SBP_INPUT)
            fail_msg("%s: expected an error, found: %s", sbp_json_member(root, "name")->string, job.out.text);
        line->counts->errors++;
        return SBP_OK;
    }
    if (status == SBP_OK)
        check_rendering(root, &job.out, line->counts);
    else
        fail_msg("%s: %s", sbp_json_member(root, "name")->string, sbp_diag_text(line->diag, SBP_ERROR));
    return SBP_OK;
}

static void test_vectors(void **state) {
    (void)state;
    vector_counts counts = {0};
    char *text = NULL;
    size_t capacity = 0;
    FILE *file = fopen("tests/golden/chat/vectors.jsonl", "r");
    assert_non_null(file);
    while (getline(&text, &capacity, file) > 0) {
        line_job line = {sbp_arena_create(), sbp_diag_create(), text, &counts};
        assert_int_equal(SBP_OK, sbp_guard(line.arena, line.diag, check_line, &line));
        sbp_arena_destroy(line.arena);
        sbp_diag_destroy(line.diag);
    }
    free(text);
    fclose(file);
    assert_true(counts.texts > 100 && counts.errors > 40 && counts.spans >= 10);
}

/* ---- messages
 * ------------------------------------------------------------------------------------------------ */

static sbp_status render(const char *text, const sbp_template_limits *limits, char *message, size_t size) {
    case_job job = {
        .arena = sbp_arena_create(), .diag = sbp_diag_create(), .text = text, .length = strlen(text)};
    job.call = (sbp_template_call){.where = "d.jsonl:7", .date = date, .limits = limits};
    sbp_status status = run_case(&job);
    snprintf(message, size, "%s", status == SBP_OK ? job.out.text : sbp_diag_text(job.diag, SBP_ERROR));
    sbp_arena_destroy(job.arena);
    sbp_diag_destroy(job.diag);
    return status;
}

static void test_places(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"a\n  {{ x.y }}", "error: d.jsonl:7: t:2:7: 'x' is undefined"},
        {"é{{ 1 + }}", "error: t:1:9: expected an expression, found '}}'"},
        {"{% include 'x' %}", "error: t:1:4: 'include' is not supported: a template is one file"},
        {"\n{{ 1 | urlize }}", "error: t:2:8: the filter 'urlize' is not supported"},
        {"{{ 1 | sizeof }}", "error: t:1:8: there is no filter 'sizeof'"},
        {"{% for x in y recursive %}{% endfor %}", "error: t:1:15: recursive loops are not supported"},
        {"{% if x %}", "error: t:1:4: 'if' has no 'endif'"},
        {"{{ raise_exception('no system') }}",
         "error: d.jsonl:7: t:1:19: the template refuses the conversation: "
         "no system"},
        {"{{ 'x'.encode() }}", "error: d.jsonl:7: t:1:7: 'encode' of a str is not supported"},
        {"{{ 9223372036854775808 }}", "error: t:1:4: a whole number has more than 64 bits"},
        {"{{ 9223372036854775807 + 1 }}", "error: d.jsonl:7: t:1:24: a whole number has more than 64 bits"},
    };
    for (int i = 0; i < SBP_COUNT(cases); i++) {
        char message[500];
        assert_int_equal(SBP_INPUT, render(cases[i][0], NULL, message, sizeof message));
        if (strncmp(message, cases[i][1], strlen(cases[i][1])) != 0)
            fail_msg("expected\n%s\nfound\n%s", cases[i][1], message);
    }
}

/* ---- limits
 * ---------------------------------------------------------------------------------------------------- */

static void test_limits(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "takes more than"},
        {"{{ 'x' * 9000000000 }}", "bytes"},
        {"{{ [1] * 9000000000 }}", ""},
        {"{% set n = namespace(s='abcdefgh') %}{% for i in range(99) %}{% set n.s = n.s + n.s %}{% endfor %}",
         "bytes"},
        {"{% set n = namespace(s=[1]) %}{% for i in range(99) %}{% set n.s = n.s + n.s %}{% endfor %}", ""},
        {"{% set n = namespace(s=[1]) %}{% for i in range(9999) %}{% set n.s = [n.s] %}{% endfor %}{{ n.s }}",
         "deep"},
        {"{% set n = namespace(s=[1]) %}{% for i in range(9999) %}{% set n.s = [n.s] %}{% endfor %}{{ n.s == "
         "[n.s] }}",
         "deep"},
        {"{% set n = namespace(s=(1,)) %}{% for i in range(9999) %}{% set n.s = (n.s,) %}{% endfor %}{{ "
         "{n.s: 1} }}",
         "deep"},
        {"{% set n = namespace(s=(1,)) %}{% for i in range(300) %}{% set n.s = (n.s, n.s) %}{% endfor %}{{ "
         "{n.s: 1} }}",
         "steps"},
        {"{% set n = namespace(s=(1,)) %}{% for i in range(300) %}{% set n.s = (n.s, n.s) %}{% endfor %}"
         "{{ n.s | tojson }}",
         ""},
        {"{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "deep"},
        {"{% macro f(n) %}{{ f(n) }}{{ f(n) }}{% endmacro %}{% macro g(n) %}{% if n %}{{ g(n - 1) }}{{ g(n - "
         "1) }}"
         "{% endif %}{% endmacro %}{{ g(60) }}",
         ""},
        {"{{ range(99999) | list | tojson(indent=9999) }}", ""},
        {"{{ 'a' | indent(99999999999) }}", "bytes"},
        {"{{ '%999999d' % 1 }}", "width"},
        {"{{ 'x'.center(99999999999) }}", "bytes"},
        {"{{ range(99999) | batch(1) | list | sum(start=[]) | length }}", "takes more than"},
    };
    for (int i = 0; i < SBP_COUNT(cases); i++) {
        char message[500];
        if (render(cases[i][0], NULL, message, sizeof message) != SBP_INPUT || !strstr(message, cases[i][1]))
            fail_msg("%s\nexpected '%s', found\n%s", cases[i][0], cases[i][1], message);
    }
    char deep[5000] = "{{ ", message[500];
    memset(deep + 3, '(', 4000);
    assert_int_equal(SBP_INPUT, render(deep, NULL, message, sizeof message));
    memset(deep + 3, '-', 4000);
    assert_int_equal(SBP_INPUT, render(deep, NULL, message, sizeof message));
    for (int i = 0; i < 1000; i++)
        memcpy(deep + 3 + 4 * i, "not ", 4);
    assert_int_equal(SBP_INPUT, render(deep, NULL, message, sizeof message));
    const sbp_template_limits few = {.steps = 100, .memory_bytes = 1 << 20, .output_bytes = 100};
    assert_int_equal(SBP_INPUT,
                     render("{% for i in range(50) %}{{ i }}{% endfor %}", &few, message, sizeof message));
}

/* ---- faults
 * ------------------------------------------------------------------------------------------------------ */

static const char everything[] =
    "{%- macro m(a, b=1) %}{{ a ~ b }}{{ caller() }}{% endmacro %}{% set n = namespace(x=[1, 2.5, 'é\\n']) "
    "%}\n"
    "{% for k, v in {'a': (1, none), 'b': n.x[::-1]} | dictsort if k is string %}{{ loop.index }}{% "
    "generation %}"
    "{{ v | tojson(indent=2) }}{% endgeneration %}{% if loop.last %}{% break %}{% endif %}{% endfor %}"
    "{% call(x) m('x' | upper) %}{{ '%s' % 'y' }}{{ strftime_now('%d %b') }}{% endcall %}{# c #}"
    "{{ n.x | map('string') | join(',') | replace('1', '2') if n is defined else -3 ** 2 }}{% raw %}{{{% "
    "endraw %}"
    "{% with q = 'a b'.split() %}{{ q[-1] in q and not q }}{% endwith %}{% set z | trim %} {{ [1, [2]] }} {% "
    "endset %}";

static void test_lack_of_memory(void **state) {
    (void)state;
    char message[800];
    assert_int_equal(SBP_OK, render(everything, NULL, message, sizeof message));
    sbp_test_count_pieces(true);
    int64_t n = 1, failed = 0;
    for (;; n++) {
        case_job job = {.arena = sbp_arena_create(), .diag = sbp_diag_create()};
        job.text = everything;
        job.length = strlen(everything);
        job.call = (sbp_template_call){.date = date};
        sbp_test_fail_allocation(n);
        sbp_status status = run_case(&job);
        sbp_test_fail_allocation(0);
        sbp_arena_destroy(job.arena);
        sbp_diag_destroy(job.diag);
        assert_true(status == SBP_OK || status == SBP_MACHINE);
        failed += status != SBP_OK;
        if (status == SBP_OK)
            break;
    }
    sbp_test_count_pieces(false);
    assert_true(failed > 100);
}

/* Every beginning, and one byte changed or left out: an error, or a result; never more. */
static void test_damaged(void **state) {
    (void)state;
    static const char bytes[] = "{}%#-()[]|'\"\\ \n,:=.~*x1\xc3";
    size_t length = strlen(everything);
    char text[sizeof everything + 1], message[200];
    const sbp_template_limits limits = {.steps = 20000, .memory_bytes = 1 << 24, .output_bytes = 1 << 20};
    for (size_t i = 0; i < length; i++) {
        memcpy(text, everything, sizeof everything);
        text[i] = '\0';
        (void)!render(text, &limits, message, sizeof message);
        memcpy(text + i, everything + i + 1, length - i);
        (void)!render(text, &limits, message, sizeof message);
        memcpy(text, everything, sizeof everything);
        for (const char *b = bytes; *b; b++) {
            text[i] = *b;
            (void)!render(text, &limits, message, sizeof message);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_vectors), cmocka_unit_test(test_places),         cmocka_unit_test(test_limits),
        cmocka_unit_test(test_damaged), cmocka_unit_test(test_lack_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
