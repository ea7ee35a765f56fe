/* test_context.c: which rows and heads each rank of a context has, and what the verifier lets pass of it. */
#include <stdlib.h>
#include <string.h>

#include "ir/base/context.h"
#include "ir/graph/graph.h"
#include "ir/program/program.h"
#include "passes/lower/passes.h"
#include "tests/unit/io_testing.h"

/* Every head of queries is in one slot, beside the key head that it reads; every key head in as many units as
 * there are copies; no rank has more slots than another, and none is wasted where heads go into the ranks. */
static void test_heads(void **state) {
    (void)state;
    int wasted = 0, exact = 0;
    for (int64_t kv = 1; kv <= 9; kv++)
        for (int64_t group = 1; group <= 7; group++)
            for (int64_t ranks = 1; ranks <= 12; ranks++) {
                sbp_context_heads q = {kv * group, kv, 1, false}, k = {kv * group, kv, 1, true};
                int64_t per = sbp_context_slots(&q, ranks), units = sbp_context_slots(&k, ranks);
                int64_t queries = sbp_context_queries(&q, ranks);
                int32_t seen[64] = {0}, copies[16] = {0};
                assert_int_equal(per, units * queries);
                for (int64_t slot = 0; slot < ranks * per; slot++) {
                    int64_t head = sbp_context_head(&q, ranks, slot);
                    if (head < 0)
                        continue;
                    assert_true(head < q.heads);
                    seen[head]++;
                    assert_int_equal(sbp_context_head(&k, ranks, slot / queries), head / group);
                }
                for (int64_t slot = 0; slot < ranks * units; slot++) {
                    int64_t head = sbp_context_head(&k, ranks, slot);
                    assert_true(head < kv);
                    if (head >= 0)
                        copies[head]++;
                    assert_true(slot == 0 || head < 0 || head >= sbp_context_head(&k, ranks, slot - 1));
                }
                for (int64_t h = 0; h < q.heads; h++)
                    assert_int_equal(seen[h], 1);
                for (int64_t h = 0; h < kv; h++)
                    assert_int_equal(copies[h], sbp_context_copies(&k, ranks));
                bool divides = kv % ranks == 0 || (ranks % kv == 0 && group % (ranks / kv) == 0);
                if (divides)
                    assert_int_equal(per * ranks, q.heads);
                wasted += !divides;
                exact += divides;
            }
    assert_true(wasted > 100 && exact > 100);
}

/* Heads where ranks have them alike, or nearly; keys where a rank would have half as many again. */
static void test_ways(void **state) {
    static const struct {
        int64_t heads, kv_heads, ranks;
        sbp_context_exchange way;
    } cases[] = {{32, 8, 8, SBP_CONTEXT_ALL_TO_ALL},  {32, 8, 32, SBP_CONTEXT_ALL_TO_ALL},
                 {32, 8, 64, SBP_CONTEXT_ALL_GATHER}, {9, 3, 2, SBP_CONTEXT_ALL_TO_ALL},
                 {9, 3, 4, SBP_CONTEXT_ALL_GATHER},   {4, 1, 4, SBP_CONTEXT_ALL_TO_ALL},
                 {4, 1, 8, SBP_CONTEXT_ALL_GATHER},   {14, 2, 4, SBP_CONTEXT_ALL_TO_ALL},
                 {1, 1, 2, SBP_CONTEXT_ALL_GATHER},   {64, 8, 16, SBP_CONTEXT_ALL_TO_ALL},
                 {6, 3, 4, SBP_CONTEXT_ALL_TO_ALL}};
    (void)state;
    for (int i = 0; i < SBP_COUNT(cases); i++) {
        const sbp_context_heads heads = {cases[i].heads, cases[i].kv_heads, 1, false};
        assert_int_equal(sbp_context_exchange_of(&heads, cases[i].ranks), cases[i].way);
    }
}

/* Ranks have different rows, equally many of every chunk, chunks in the order of the sequence. */
static void test_rows(void **state) {
    (void)state;
    for (int64_t ranks = 1; ranks <= 5; ranks++)
        for (int64_t chunk = 1; chunk <= 9; chunk++)
            for (int64_t t = 1; t <= 40; t++) {
                bool seen[200] = {false};
                for (int64_t rank = 0; rank < ranks; rank++)
                    for (int64_t row = 0; row < t; row++) {
                        int64_t at = sbp_context_row(row, t, chunk, rank, ranks);
                        assert_true(at >= 0 && at < t * ranks && !seen[at]);
                        seen[at] = true;
                        assert_int_equal(at / (chunk * ranks), row / chunk);
                        if (row > 0 && row % chunk != 0)
                            assert_int_equal(at, sbp_context_row(row - 1, t, chunk, rank, ranks) + 1);
                    }
            }
}

/* ---- programs --------------------------------------------------------------------------------------- */

static const char text[] =
    "program p\n"
    "target cpu\n"
    "sizes t_max 30, s_max 0, chunk 4, head_chunk 4, ranks 4, context 2\n"
    "arena device 0, host 0\n"
    "scalars T, S\n"
    "table chunk step C windows 0\n"
    "buffer first rows device i32[W, 1]\n"
    "buffer x stream device f32[T, 12]\n"
    "buffer K carry device f32[W, 4]\n"
    "buffer q scratch device f32[D, 8]\n"
    "buffer o scratch device f32[D, 8]\n"
    "buffer lse scratch device f32[D, 2]\n"
    "buffer own_first rows device i32[T, 1]\n"
    "buffer own_q scratch device f32[C, 8]\n"
    "buffer own_o scratch device f32[C, 8]\n"
    "buffer own_lse scratch device f32[C, 2]\n"
    "buffer v vector device f32[T, 1]\n"
    "buffer all vector device f32[W, 1]\n"
    "input first column first\n"
    "input own_first column first\n"
    "entry e {\n"
    "  loop i in chunk {\n"
    "    collective(dst += q, src = x[i*C for C]) {op = to_heads, heads = 3, kv_heads = 1, dim = 4}\n"
    "    collective(dst += K[i*D for D], src = x[i*C for C, 0 for 4]) {op = to_heads, heads = 3, kv_heads = "
    "1, "
    "dim = 4, keys}\n"
    "    attn_fwd(o := o, lse := lse, q = q, k = K[lo0 until all], v = K[lo0 until all], first = first[i*D "
    "for "
    "D], shared_end = first[i*D for D], own = first[i*D for D]) {heads = 2, kv_heads = 1, d_qk = 4, d_v = 4, "
    "scale = 0.5}\n"
    "    collective(dst += x[i*C for C], src = o) {op = to_rows, heads = 3, kv_heads = 1, dim = 4}\n"
    "    collective(dst += K[i*D for D], src = x[i*C for C, 0 for 4]) {op = context_gather}\n"
    "    attn_fwd(o := own_o, lse := own_lse, q = own_q, k = K[lo0 until all], v = K[lo0 until all], first = "
    "own_first[i*C for C], shared_end = own_first[i*C for C], own = own_first[i*C for C]) {heads = 2, "
    "kv_heads "
    "= 1, d_qk = 4, d_v = 4, scale = 0.5, by_rank}\n"
    "    collective(dst += x[i*C for C, 0 for 4], src = K[i*D for D]) {op = context_reduce}\n"
    "  }\n"
    "  collective(dst += all, src = v) {op = context_gather}\n"
    "  collective(dst += v, src = all) {op = context_share}\n"
    "}\n";

static char *replaced(const char *from, const char *what, const char *with) {
    const char *at = strstr(from, what);
    assert_non_null(at);
    size_t size = strlen(from) + strlen(with) + 1;
    char *out = malloc(size);
    assert_non_null(out);
    snprintf(out, size, "%.*s%s%s", (int)(at - from), from, with, at + strlen(what));
    return out;
}

static void test_programs(void **state) {
    io_fixture *f = *state;
    static const struct {
        const char *what, *with, *want; /* NULL: it is good */
    } cases[] = {
        {"program p", "program p", NULL},
        {"context 2", "context 3", "program_c1"},
        {"ranks 4, context 2", "ranks 4", "program_c26"},
        {"heads = 3, kv_heads = 1, dim = 4}\n    collective(dst += K",
         "heads = 3, kv_heads = 0, dim = 4}\n    collective(dst += K", "program_c26"},
        {"heads = 3, kv_heads = 1, dim = 4}\n    collective(dst += K",
         "heads = 3, kv_heads = 2, dim = 4}\n    collective(dst += K", "program_c26"},
        {"heads = 3, kv_heads = 1, dim = 4}\n    collective(dst += K",
         "heads = 6, kv_heads = 1, dim = 2}\n    collective(dst += K", "program_c19"},
        {"dst += q, src = x[i*C for C]", "dst += q, src = x[0 for C]",
         NULL}, /* rows of elsewhere: its affair */
        {"dst += K[i*D for D]", "dst += K[i*D for C]", "program_c18"},
        {"first[i*D for D], shared", "first[i*C for D], shared", "program_c18"},
        {"k = K[lo0 until all]", "k = K[lo0 until hi]", "program_c18"},
        {"{op = context_gather}", "{op = context_gather, queue = net}", "program_c26"},
        {"input first column first", "input first column by_rank first", "program_c27"},
        {"q = own_q, k = K[lo0 until all], v = K[lo0 until all]",
         "q = own_q, k = K[lo0 until hi], v = K[lo0 until hi]", "program_c18"},
        {"k = K[lo0 until all], v = K[lo0 until all], first = own",
         "k = K[0 until all], v = K[0 until all], first = own", NULL},
        {"first = own_first[i*C for C]", "first = own_first[0 for C]", "program_c18"},
        {"src = K[i*D for D]) {op = context_reduce}", "src = K[i*D for C]) {op = context_reduce}",
         "program_c18"},
        {"{op = context_reduce}", "{op = context_reduce, queue = net}", "program_c26"},
        {"buffer v vector device f32[T, 1]", "buffer v vector device f32[T, 2]", "program_c19"},
    };
    for (int i = 0; i < SBP_COUNT(cases); i++) {
        char *with = replaced(text, cases[i].what, cases[i].with);
        sbp_program *program;
        sbp_text out;
        sbp_text_init(&out, f->arena);
        sbp_diag_clear(f->diag);
        if (sbp_program_parse(f->arena, f->diag, "p", with, strlen(with), &program) != SBP_OK)
            fail_msg("%s: %s", cases[i].with, sbp_diag_text(f->diag, SBP_ERROR));
        sbp_program_print(&out, program);
        assert_string_equal(strstr(out.data, "entry e"), strstr(with, "entry e"));
        sbp_status status = sbp_program_verify(program, f->diag);
        const char *said = sbp_diag_text(f->diag, SBP_ERROR);
        if (cases[i].want ? status != SBP_INPUT || !strstr(said, cases[i].want) : status != SBP_OK)
            fail_msg("%s: status %d, %s", cases[i].with, (int)status, said ? said : "");
        free(with);
    }
}

/* ---- the pass --------------------------------------------------------------------------------------- */

static const char graph[] =
    "module \"m\" {\n"
    "  row first i32\n"
    "  row own i32\n"
    "  func f(%x: stream f32[T,2,4],\n"
    "       %first: row first i32[T],\n"
    "       %own: row own i32[T]) {\n"
    "    %seen: i32[T] = cast %own {to i32}\n"
    "    %o: f32[T,2,4], %lse: f32[T,2] = attention %x, %x, %x, %first, %own, %own {scale 0.5, window 0, "
    "softcap 0}\n"
    "    result %o value\n"
    "  }\n"
    "}\n";

/* Attention's rows, and its documents', from the data; those that are computed would be of one rank's rows.
 */
static void test_pass(void **state) {
    io_fixture *f = *state;
    static const struct {
        sbp_context_exchange way;
        const char *what, *with, *rows, *want; /* rows of attention's output; what is refused */
    } cases[] = {
        {SBP_CONTEXT_ALL_TO_ALL, "%first, %own, %own", "%first, %own, %own", "f32[W,1,4]", NULL},
        {SBP_CONTEXT_ALL_GATHER, "%first, %own, %own", "%first, %own, %own", "f32[T,2,4]", NULL},
        {SBP_CONTEXT_AUTO, "%first, %own, %own", "%first, %own, %own", "f32[W,1,4]", NULL},
        {SBP_CONTEXT_ALL_TO_ALL, "%first, %own, %own", "%first, %own, %seen", NULL,
         "attention reads %seen, which is"},
        {SBP_CONTEXT_ALL_GATHER, "%first, %own, %own", "%first, %own, %seen", NULL,
         "attention reads %seen, which is"},
        {SBP_CONTEXT_ALL_GATHER, "%first, %own, %own", "%first, %seen, %own", NULL,
         "attention reads %seen, which is"},
    };
    for (int i = 0; i < SBP_COUNT(cases); i++) {
        char *with = replaced(graph, cases[i].what, cases[i].with);
        sbp_pass_input in = {.arena = f->arena, .diag = f->diag};
        sbp_module *module;
        sbp_text out;
        sbp_text_init(&out, f->arena);
        sbp_diag_clear(f->diag);
        if (sbp_module_parse(f->arena, f->diag, "m", with, strlen(with), &module) != SBP_OK)
            fail_msg("%s", sbp_diag_text(f->diag, SBP_ERROR));
        in.options.context = 2;
        in.options.context_exchange = cases[i].way;
        sbp_status status = sbp_pass_context(&in, module);
        const char *said = sbp_diag_text(f->diag, SBP_ERROR);
        if (cases[i].want ? status != SBP_INPUT || !strstr(said, cases[i].want) : status != SBP_OK)
            fail_msg("case %d: status %d, %s", i, (int)status, said ? said : "");
        if (!cases[i].want) {
            sbp_module_print(&out, module);
            const char *attention = strstr(out.data, " = attention");
            assert_non_null(attention);
            while (*attention != '\n')
                attention--;
            if (!strstr(attention, cases[i].rows) ||
                strstr(attention, cases[i].rows) > strstr(attention, " = "))
                fail_msg("case %d: %s", i, out.data);
        }
        free(with);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_heads), cmocka_unit_test(test_ways),
                                       cmocka_unit_test(test_rows),
                                       cmocka_unit_test_setup_teardown(test_programs, io_setup, io_teardown),
                                       cmocka_unit_test_setup_teardown(test_pass, io_setup, io_teardown)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
