/* test_op_text.c: the text form of every op: print, parse and print again gives the same; malformed text
 * never crashes, and what parses and verifies survives the passes. The text is untrusted. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/common/graphs.h"

static const char *module_text(testing *t, const sbp_module *m) {
    sbp_text out;
    sbp_text_init(&out, t->arena);
    sbp_module_print(&out, m);
    return out.data;
}

static const char *canonical_text(testing *t, const sbp_module *m, const sbp_func *f) {
    sbp_text out;
    sbp_text_init(&out, t->arena);
    sbp_func_print(&out, m, f, true);
    return out.data;
}

/* Prints, parses, verifies, prints: equal texts, named and canonical. Returns the text. */
static const char *round_trip(testing *t, const sbp_module *m, const char *what) {
    const char *text = module_text(t, m);
    sbp_module *again;
    sbp_status status = sbp_module_parse(t->arena, t->diag, "text", text, strlen(text), &again);
    if (status != SBP_OK)
        fail_msg("%s: %s\n%s", what, sbp_diag_text(t->diag, SBP_ERROR), text);
    testing_check(t, sbp_module_verify(again, t->diag));
    testing_same_text(module_text(t, again), text, what);
    assert_int_equal(again->func_count, m->func_count);
    for (int32_t f = 0; f < m->func_count; f++)
        testing_same_text(canonical_text(t, again, again->funcs[f]), canonical_text(t, m, m->funcs[f]), what);
    return text;
}

/* The op itself, its expansion, its derivative, and its form for chunks, where there is one. */
static int add_variants(testing *t, example_graph *g) {
    sbp_module *m = g->module;
    sbp_func *expanded, *split = NULL, *derivative;
    testing_check(t, sbp_expand_func(m, g->func, true, t->diag, &expanded));
    expanded->name = "expanded";
    SBP_PUSH(t->arena, m->funcs, m->func_count, m->func_capacity, expanded);
    if (sbp_opcode_class(g->code) != SBP_CLASS_BACKWARD) {
        derivative = graph_differentiate(t, m, g->func);
        derivative->name = "derivative";
        SBP_PUSH(t->arena, m->funcs, m->func_count, m->func_capacity, derivative);
        if (sbp_split_func(m, g->func, t->diag, &split) == SBP_OK) {
            testing_check(t, sbp_func_verify(m, split, t->diag));
            split->name = "split";
            SBP_PUSH(t->arena, m->funcs, m->func_count, m->func_capacity, split);
        }
    }
    sbp_diag_clear(t->diag);
    return m->func_count;
}

static void every_op_round_trips(void **state) {
    (void)state;
    static const sbp_dtype dtypes[] = {SBP_F64, SBP_F32, SBP_BF16, SBP_F16};
    int ops = 0, modules = 0, functions = 0;
    for (int code = 0; code < SBP_OP_COUNT; code++, ops++)
        for (int d = 0; d < SBP_COUNT(dtypes); d++) {
            testing t = testing_open(1);
            example_graph g;
            int32_t i = 0;
            for (; example_graph_build(&t, (sbp_opcode)code, i, dtypes[d], &g); i++, modules++) {
                functions += add_variants(&t, &g);
                round_trip(&t, g.module, sbp_opcode_name((sbp_opcode)code));
            }
            assert_true(i > 0);
            testing_close(&t);
        }
    printf("  %d ops, %d modules, %d functions\n", ops, modules, functions);
    assert_int_equal(ops, SBP_OP_COUNT);
    assert_true(modules > 4 * SBP_OP_COUNT && functions > 2 * modules);
}

/* ---- malformed text ------------------------------------------------------------------------------------ */

static const char *const words[] = {"-1",
                                    "0",
                                    "2147483647",
                                    "2147483648",
                                    "9223372036854775807",
                                    "-9223372036854775808",
                                    "1e308",
                                    "nan",
                                    "inf",
                                    "T",
                                    "S",
                                    "C",
                                    "H",
                                    "f64",
                                    "bf16",
                                    "bool",
                                    "i32",
                                    "%",
                                    "-",
                                    ",",
                                    "[",
                                    "]",
                                    "{",
                                    "}",
                                    "result",
                                    "carry",
                                    "cotangent",
                                    "param",
                                    "stream",
                                    "row",
                                    "const",
                                    "scalar",
                                    "trainable",
                                    "\"",
                                    "@",
                                    "#",
                                    "func",
                                    "call",
                                    "values",
                                    "params"};

static bool is_word(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.';
}

/* One edit: a byte, a word replaced by another word or by one of the text, or a stretch left out or doubled.
 */
static size_t mutate(testing *t, char *text, size_t length, size_t room) {
    size_t at = (size_t)sbp_rng_below(&t->rng, (int64_t)length), n;
    switch (sbp_rng_below(&t->rng, 5)) {
    case 0:
        text[at] = (char)sbp_rng_below(&t->rng, 256);
        return length;
    case 1:
        n = 1 + (size_t)sbp_rng_below(&t->rng, 12);
        n = n < length - at ? n : length - at;
        memmove(text + at, text + at + n, length - at - n);
        return length - n;
    case 2:
        n = 1 + (size_t)sbp_rng_below(&t->rng, 24);
        n = n < length - at ? n : length - at;
        if (length + n > room)
            return length;
        memmove(text + at + n, text + at, length - at);
        return length + n;
    default: {
        size_t begin = at, end = at;
        while (begin > 0 && is_word(text[begin - 1]))
            begin--;
        while (end < length && is_word(text[end]))
            end++;
        const char *word = words[sbp_rng_below(&t->rng, SBP_COUNT(words))];
        n = strlen(word);
        if (sbp_rng_below(&t->rng, 2)) { /* a word from elsewhere in the text */
            size_t from = (size_t)sbp_rng_below(&t->rng, (int64_t)length), to = from;
            while (from > 0 && is_word(text[from - 1]))
                from--;
            while (to < length && is_word(text[to]) && to - from < 60)
                to++;
            n = to - from;
            word = sbp_arena_strndup(t->arena, text + from, n);
        }
        if (length + n > room)
            return length;
        memmove(text + begin + n, text + end, length - end);
        memcpy(text + begin, word, n);
        return length - (end - begin) + n;
    }
    }
}

typedef struct attempt {
    testing *t;
    const char *text;
    size_t length;
    int parsed, verified, survived;
} attempt;

/* Whatever verifies goes through the passes that take functions: they may refuse it, not crash. */
static sbp_status try_text(void *user) {
    attempt *a = user;
    testing *t = a->t;
    sbp_module *m, *again;
    SBP_TRY(sbp_module_parse(t->arena, t->diag, "mutant", a->text, a->length, &m));
    a->parsed++;
    const char *once = module_text(t, m);
    sbp_status status = sbp_module_verify(m, t->diag);
    if (status != SBP_OK)
        return status;
    a->verified++;
    testing_check(t, sbp_module_parse(t->arena, t->diag, "printed", once, strlen(once), &again));
    testing_same_text(module_text(t, again), once, "a mutant");
    for (int32_t f = 0; f < m->func_count; f++) {
        sbp_func *expanded, *clean, *split, *derived;
        canonical_text(t, m, m->funcs[f]);
        if (sbp_expand_func(m, m->funcs[f], false, t->diag, &expanded) != SBP_OK)
            continue;
        testing_check(t, sbp_func_verify(m, expanded, t->diag));
        if (sbp_canonicalize_func(m, expanded, t->diag, &clean) == SBP_OK)
            testing_check(t, sbp_func_verify(m, clean, t->diag));
        if (sbp_autodiff_func(m, expanded, true, t->diag, &derived) == SBP_OK) {
            testing_check(t, sbp_func_verify(m, derived, t->diag));
            a->survived++;
        }
        if (sbp_split_func(m, expanded, t->diag, &split) == SBP_OK)
            testing_check(t, sbp_func_verify(m, split, t->diag));
    }
    return SBP_OK;
}

static void mutants(void **state) {
    (void)state;
    int tried = 0, parsed = 0, verified = 0, survived = 0, rounds = testing_sweep(60, 3000);
    for (int code = 0; code < SBP_OP_COUNT; code++) {
        testing t = testing_open((uint64_t)code);
        example_graph g;
        assert_true(example_graph_build(&t, (sbp_opcode)code, 0, SBP_F64, &g));
        add_variants(&t, &g);
        const char *text = module_text(&t, g.module);
        size_t length = strlen(text), room = 2 * length;
        char *mutant = malloc(room); /* not terminated, so that reading beyond the end is noticed */
        for (int k = 0; k < rounds; k++, tried++) {
            testing inner = testing_open((uint64_t)(code * 10000 + k));
            memcpy(mutant, text, length);
            size_t n = length;
            for (int64_t edits = 1 + sbp_rng_below(&inner.rng, 2); edits > 0 && n > 0; edits--)
                n = mutate(&inner, mutant, n, room);
            char *exact = malloc(n ? n : 1);
            memcpy(exact, mutant, n);
            attempt a = {.t = &inner, .text = exact, .length = n};
            sbp_status status = sbp_guard(inner.arena, inner.diag, try_text, &a);
            if (status != SBP_OK && sbp_diag_count(inner.diag, SBP_ERROR) == 0)
                fail_msg("status %d without a message for\n%.*s", (int)status, (int)n, exact);
            parsed += a.parsed;
            verified += a.verified;
            survived += a.survived;
            free(exact);
            testing_close(&inner);
        }
        free(mutant);
        testing_close(&t);
    }
    printf("  %d mutants: %d parse, %d verify, %d functions have a derivative\n", tried, parsed, verified,
           survived);
    assert_true(parsed > tried / 50 && parsed < tried && verified > tried / 100 && survived > 0);
}

/* Every beginning of a text is refused, with a message that names the place. */
static void every_truncation(void **state) {
    (void)state;
    static const sbp_opcode codes[] = {SBP_OP_attention, SBP_OP_reshape, SBP_OP_linear};
    for (int c = 0; c < SBP_COUNT(codes); c++) {
        testing t = testing_open(3);
        example_graph g;
        assert_true(example_graph_build(&t, codes[c], 0, SBP_F64, &g));
        const char *text = module_text(&t, g.module);
        for (size_t n = 0; n + 2 < strlen(text); n++) {
            testing inner = testing_open(4);
            char *exact = malloc(n ? n : 1);
            memcpy(exact, text, n);
            sbp_module *m;
            testing_check_fails(&inner, sbp_module_parse(inner.arena, inner.diag, "cut", exact, n, &m),
                                SBP_INPUT, "cut:");
            free(exact);
            testing_close(&inner);
        }
        testing_close(&t);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_op_round_trips), cmocka_unit_test(mutants),
                                       cmocka_unit_test(every_truncation)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
