/* test_program.c: text form, verifier and view arithmetic of the program IR. */
#include "ir/program/program.h"
#include "tests/common/expect.h"
#include "tests/unit/mutate.h"
#include "tests/unit/place.h"
#include "tests/unit/program_texts.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- helpers ------------------------------------------------------------------------------------- */

typedef struct job {
    sbp_arena *arena;
    sbp_diag *diag;
    const char *text;
    size_t length;
    sbp_program *program;
    const char *printed;
} job;

static sbp_status parse_and_print(void *user) {
    job *j = user;
    SBP_TRY(sbp_program_parse(j->arena, j->diag, "test", j->text, j->length, &j->program));
    sbp_text out;
    sbp_text_init(&out, j->arena);
    sbp_program_print(&out, j->program);
    j->printed = out.data;
    return SBP_OK;
}

static job open_job(const char *text, size_t length) {
    return (job){sbp_arena_create(), sbp_diag_create(), text, length, NULL, NULL};
}

static void close_job(job *j) {
    sbp_arena_destroy(j->arena);
    sbp_diag_destroy(j->diag);
}

static sbp_status run(job *j) {
    return sbp_guard(j->arena, j->diag, parse_and_print, j);
}

static job parsed(const char *text) {
    job j = open_job(text, strlen(text));
    if (run(&j) != SBP_OK)
        fail_msg("%s", sbp_diag_text(j.diag, SBP_ERROR));
    return j;
}

/* text with the first `from` replaced; to be freed. */
static char *replaced(const char *text, const char *from, const char *to) {
    const char *at = strstr(text, from);
    if (!at)
        fail_msg("'%s' does not occur", from);
    char *out = malloc(strlen(text) + strlen(to) + 1);
    sprintf(out, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    return out;
}

/* Equal, or fails with the first line that differs. */
static void expect_same(const char *got, const char *want) {
    size_t line = 0, k = 0;
    for (; got[k] && got[k] == want[k]; k++)
        if (got[k] == '\n')
            line = k + 1;
    if (got[k] != want[k])
        fail_msg("got  '%.200s'\nwant '%.200s'", got + line, want + line);
}

/* ---- text ----------------------------------------------------------------------------------------- */

static void round_trip(void **state) {
    (void)state;
    job j = parsed(small_program);
    expect_same(j.printed, small_program);
    assert_int_equal(sbp_program_verify(j.program, j.diag), SBP_OK);
    close_job(&j);
}

static void round_trip_of_odd_forms(void **state) {
    (void)state;
    static const char text[] = "program \"a b\"\n"
                               "target \"\"\n"
                               "sizes t_max 9, s_max 2, chunk 3, head_chunk 2\n"
                               "arena device 4096, host 64\n"
                               "scalars T, S, \"x y\"\n"
                               "table t step C windows 4, 0\n"
                               "buffer X stream device bf16[2*T+S+3, 4] offset 0 stride 512\n"
                               "buffer Y[2] stream host f64[T, 4] offset 0 stride 8\n"
                               "entry \"e\\n\" {\n"
                               "  loop i in t descending {\n"
                               "    copy(dst := X[5+i*(2*C+1)+row0 for T-1, 1 for 2], src = Y@1[0 until T])\n"
                               "    copy(dst := X[i*3 for i*C+lo1], src = Y@0[2*T-4+lo0 until 3])\n"
                               "    copy(dst := X[i*(-1*C) for 0], src = Y@0[i*(2*C) for blocks])\n"
                               "  }\n"
                               "  loop below \"x y\" {\n"
                               "    reduce(dst += X, src = X) {op = max, beta = 1e-05, queue = host}\n"
                               "  }\n"
                               "}\n";
    job j = parsed(text);
    expect_same(j.printed, text);
    close_job(&j);
}

/* A program made by calls prints, parses and prints the same; kernels are shared and renamed. */
static sbp_status build(void *user) {
    job *j = user;
    sbp_arena *arena = j->arena;
    sbp_program *p = sbp_program_create(arena, "built");
    p->target = "cpu";
    p->t_max = 16;
    p->chunk = 4;
    for (int k = 0; k < 4; k++) { /* two different kernels of one name, each twice */
        sbp_rowkernel *kernel = sbp_rowkernel_create(arena, "k", SBP_F32);
        sbp_rk_operand x = {"x", SBP_RK_IN, SBP_F32, SBP_VARY_ROW | SBP_VARY_ELEM, 4 + k % 2, 0};
        sbp_rk_operand y = {"y", SBP_RK_OUT, SBP_F32, SBP_VARY_ROW | SBP_VARY_ELEM, 4 + k % 2, 0};
        sbp_rowkernel_add_operand(arena, kernel, &x);
        sbp_rowkernel_add_operand(arena, kernel, &y);
        sbp_rk_instr load = {.op = SBP_RK_LOAD, .a = -1, .b = -1, .c = -1, .index = 0};
        sbp_rk_instr store = {.op = SBP_RK_STORE, .a = 0, .b = -1, .c = -1, .index = 1};
        sbp_rowkernel_add(arena, kernel, &load);
        sbp_rowkernel_add(arena, kernel, &store);
        assert_int_equal(sbp_program_add_kernel(arena, p, kernel), k % 2);
    }
    assert_string_equal(p->kernels[0]->name, "k");
    assert_string_equal(p->kernels[1]->name, "k.2");
    assert_int_equal(sbp_program_add_scalar(arena, p, "lr"), 2);
    assert_int_equal(sbp_program_add_scalar(arena, p, "S"), 1);
    sbp_chunk_table table = {.name = "chunk", .step = SBP_C};
    SBP_PUSH(arena, p->tables, p->table_count, p->table_capacity, table);
    sbp_buffer x = {.name = "x",
                    .role = SBP_ROLE_STREAM,
                    .dtype = SBP_F32,
                    .count = 1,
                    .rows = sbp_extent_symbol(SBP_T, 1),
                    .cols = 4,
                    .function = -1,
                    .offset = -1};
    SBP_PUSH(arena, p->buffers, p->buffer_count, p->buffer_capacity, x);
    sbp_command *row = sbp_command_create(arena, SBP_CMD_ROW, 2);
    row->kernel = 0;
    row->view_count = 2;
    row->views[0] = row->views[1] = sbp_view_chunk(sbp_view_buffer(p, 0, 0), SBP_C);
    sbp_loop *loop = SBP_NEW(arena, sbp_loop);
    loop->scalar = -1;
    SBP_PUSH(arena, loop->body.nodes, loop->body.count, loop->body.capacity,
             (sbp_node){.kind = SBP_NODE_COMMAND, .u.command = row});
    sbp_entry entry = {.name = "go"};
    SBP_PUSH(arena, entry.body.nodes, entry.body.count, entry.body.capacity,
             (sbp_node){.kind = SBP_NODE_LOOP, .u.loop = loop});
    SBP_PUSH(arena, p->entries, p->entry_count, p->entry_capacity, entry);
    j->program = p;
    sbp_text out;
    sbp_text_init(&out, arena);
    sbp_program_print(&out, p);
    j->printed = out.data;
    return SBP_OK;
}

static void built_programs_round_trip(void **state) {
    (void)state;
    job j = open_job("", 0);
    assert_int_equal(sbp_guard(j.arena, j.diag, build, &j), SBP_OK);
    assert_non_null(strstr(j.printed, "row @k(x = x[i*C for C], y := x[i*C for C])\n"));
    if (sbp_program_verify(j.program, j.diag) != SBP_OK)
        fail_msg("%s", sbp_diag_text(j.diag, SBP_ERROR));
    job again = parsed(j.printed);
    expect_same(again.printed, j.printed);
    close_job(&again);
    close_job(&j);
}

static void parse_errors_name_the_line(void **state) {
    (void)state;
    static const struct {
        const char *from, *to, *want;
    } cases[] = {
        {"buffer E param", "buffer E mystery", "test:9: expected a role, found 'mystery'"},
        {"buffer E param", "buffer X param", "test:9: a second buffer 'X'"},
        {"f32[T, 4]\n", "f33[T, 4]\n", "test:8: expected an element type, found 'f33'"},
        {"row @scale(x = q", "row @scole(x = q", "no kernel 'scole'"},
        {"row @scale(x = q", "row @scale(x := q", "expected '=', found ':'"},
        {"row @scale(x = q", "row @scale(z = q", "unknown, repeated or misplaced operand 'z'"},
        {"row @scale(x = q, y := q)", "row @scale(x = q)", "no operand 'y'"},
        {"with s = lr", "with t = lr", "expected scalar 's', found 't'"},
        {"with s = lr", "with s = rl", "no scalar 'rl'"},
        {"{tb}", "{tb, tb}", "unknown or repeated attribute 'tb'"},
        {"{tb}", "{tb, queue = 1}", "expected a queue"},
        {"call @nothing", "call @something", "no function before this line 'something'"},
        {"(x = X@0, y := X@1, w = W)", "(x = X@0, w = W)", "expected formal 'y', found 'w'"},
        {"loop below last {",
         "loop below last { loop below last { loop below last { loop below last { loop "
         "below last { loop below last { loop below last { loop below last { loop below "
         "last {",
         "loops nest more than"},
        {"K[row0 for rows]", "K[row0+row0 for rows]", "two table columns"},
        {"K[row0 for rows]", "K[i*C+i*C for rows]", "i occurs twice"},
        {"K[row0 for rows]", "K[lo16 for rows]", "found 'lo16'"},
        {"K[row0 for rows]", "K[9223372036854775807+1 for rows]", "extent out of range"},
        {"buffer X[3]", "buffer z scratch device f32[C, 4] of @layer.bw\nbuffer X[3]",
         "of unknown function 'layer.bw'"},
        {"gather(dst := X@0", "gather(dst := %x", "a formal outside functions"},
        {"entry update", "entri update", "expected a declaration, found 'entri'"},
        {"E/8[3 for 2]", "E/7[3 for 2]", "no width of 7 here"},
        {"E/8[3 for 2]", "E/0[3 for 2]", "no width of 0 here"},
        {"E/8[3 for 2]", "X/8[3 for 2]", "no width of 8 here"},
    };
    for (int k = 0; k < SBP_COUNT(cases); k++) {
        char *text = replaced(small_program, cases[k].from, cases[k].to);
        job j = open_job(text, strlen(text));
        assert_int_equal(run(&j), SBP_INPUT);
        expect_text(j.diag, cases[k].want);
        close_job(&j);
        free(text);
    }
}

/* ---- verifier --------------------------------------------------------------------------------------- */

/* Each line breaks one thing; the message must carry the constraint and name the culprit. */
static void constraints_that_text_can_break(void **state) {
    (void)state;
    static const struct {
        const char *from, *to, *want;
    } cases[] = {
        {"t_max 40", "t_max 0", "program_c1: t_max 0"},
        {"chunk 8", "chunk 99999999999999", "program_c1"},
        {"device 0, host 0", "device -1, host 0", "program_c1: an arena"},
        {"entry update", "entry accumulate", "program_c2: two entrys named 'accumulate'"},
        {"buffer X[3] stream", "buffer W scratch device f32[C, 4] of @nothing\nbuffer X[3] stream",
         "program_c2: two buffers named 'W'"},
        {"scalars T, S", "scalars S, T", "program_c3"},
        {"table piece step H", "table piece step T", "program_c4: table 'piece'"},
        {"windows 0, 3", "windows 0, 0", "program_c4: table 'chunk': window 0"},
        {"buffer X[3] stream device f32[T, 4]", "buffer X[3] stream device f32[T-50, 4]",
         "program_c5: buffer 'X'"},
        {"buffer X[3] stream device f32[T, 4]", "buffer X[3] stream device f32[0-1*T+99, 4]",
         "program_c5: buffer 'X'"},
        {"buffer X[3] stream device f32[T, 4]", "buffer X[3] stream device f32[T, 0]",
         "program_c5: buffer 'X'"},
        {"buffer table const", "buffer table param", "buffer 'table' cannot carry data"},
        {"data 1 -0.5", "data -0.5", "expected a number"},
        {"f32[2, 2] data", "f32[T, 2] data", "cannot carry data"},
        {"f32[2, 2] data", "f32[2, 200000] data", "cannot carry data"},
        {"buffer X[3] stream", "buffer tmp scratch device f32[2*T+1, 9]\nbuffer X[3] stream",
         "program_c6: scratch buffer 'tmp' has 9 columns"},
        {"buffer X[3] stream", "buffer tmp workspace device f32[T, 9]\nbuffer X[3] stream",
         "program_c6: workspace buffer 'tmp'"},
        {"f32[10, 4]\n", "f32[10, 4] offset 0\n", "program_c7: buffer 'X' has no offset"},
        {"result device f64", "result device f32", "program_c8: result buffer 'result' is f32"},
        {"output loss result 0", "output loss result 2", "program_c8: output 'loss'"},
        {"output loss result 0", "output loss W 0", "program_c8: output 'loss'"},
        {"tok rows device i32[T, 1]", "tok stream device i32[T, 1]", "program_c9: row input 'tok'"},
        {"tok rows device i32[T, 1]", "tok rows device i32[C, 1]", "program_c9: row input 'tok'"},
        {"tok rows device i32[T, 1]", "tok rows device f32[T, 1]", "program_c9: scatter order 'order'"},
        {"order rows device i32", "order rows device i64", "program_c9: scatter order 'order' is not i32"},
        {"input order order tok", "input order order tik", "program_c9: scatter order 'order' is of 'tik'"},
        {"input gain column gain", "input tok column gain", "program_c9: buffer 'tok' is two"},
        {"chunk T\n", "chunk S\n", "program_c9: scatter order 'order' is sorted"},
        {"f32 heads 2 n 2", "bf16 heads 2 n 2", "rowkernel_c1: kernel 'scale'"},
        {"in x f32[T, 4], out y", "in x f32[T, 0], out y", "program_c11: formal 'x'"},
        {"  loop below last {\n", "  loop below last {\n loop below last { loop below last { } }\n",
         "program_c12: entry 'accumulate'"},
        {"    row @total", "    loop i in piece { }\n    row @total", "program_c12: entry 'accumulate'"},
        {"function @nothing {\n", "function @nothing {\n  call @layer.fwd(x = X@0, y := X@1, w = W)\n",
         "program_c13: function 'nothing', command 0 (call): a call inside a function"},
        {"y := X@1, w = W)", "y := X@1, w = E[0 for 3])",
         "program_c13: entry 'accumulate', command 3 "
         "(layer.fwd): formal 'w' has 4 rows, got 3"},
        {"y := X@1, w = W)", "y := X@1[*, 0 for 2], w = W)", "program_c13"},
        {"x = X@0, y := X@1", "x = away, y := X@1",
         "program_c13: entry 'accumulate', command 3 "
         "(layer.fwd): 'away' is on the host"},
        {"x = X@0, y := X@1", "x = X@1, y := X@1",
         "program_c14: entry 'accumulate', command 3 "
         "(layer.fwd): formals 'y' and 'x' share memory"},
        {"gemm(d := q[0 for rows], a = %x[i*C for C]", "gemm(d := q[0 for rows], a = X@1[i*C for C]",
         "program_c14: entry 'accumulate', command 3 (layer.fwd): 'X' goes to formal 'y'"},
        {"c = %x[i*C for C], bias = \"b/0\") {tb, beta = 1}",
         "c = %x[i*C for C], bias = \"b/0\") {tb, beta = inf}", "program_c26"},
        {"X@1[i*H for H], p", "X@3[i*H for H], p",
         "program_c16: entry 'accumulate', command 9 (total): x: "
         "element 3 of 3"},
        {"[*, 2 for 2]", "[*, 3 for 2]", "program_c16"},
        {"src = p)", "src = p[0 for lo0])",
         "program_c16: entry 'accumulate', command 10 (reduce): src: no "
         "table column"},
        {"src = p)", "src = p[i*C for 1])", "uses i outside"},
        {"x = X@1[i*H for H]", "x = X@1[i*H for lo0]", "program_c16"},
        {"p := p[i*H for H]", "p := p[1+i*H for H]", "program_c18"},
        {"p := p[i*H for H]", "p := p[-1+i*H for H]",
         "program_c17: entry 'accumulate', command 9 (total): p "
         "leaves its buffer for T 40"},
        {"src = p)", "src = p[T+1 for 1])", "program_c17"},
        {"src = p)", "src = p[3 until 2])", "program_c17"},
        {"E/10[3 for 1", "E/10[5 for 1", "program_c17: entry 'update', command 2 (copy): src"},
        {"E/10[3 for 1, 6 for 4]", "E/10[3 for 1, 7 for 4]",
         "program_c16: entry 'update', command 2 (copy): src: 4 columns from 7 on, of 10"},
        {"r = E/2[0 for 3]", "r = E/2[11 for 3]",
         "program_c14: entry 'update', command 1 (fold): formals 'e' and 'r' share memory"},
        {"e += E/8[3 for 2]", "e += E[6 for 4]", "program_c13: entry 'update', command 1 (fold): formal 'e'"},
        {"r = E/2[0 for 3]", "r = E[0 for 3, 1 for 2]",
         "program_c28: entry 'update', command 1 (fold): formal 'r' is seen with a width"},
        {"dst := %e[0 for 1, 4 for 4]", "dst := %e[1 for 1, 4 for 4]",
         "program_c22: function 'fold', command 1 (copy): dst overlaps src"},
        /* rows that an index places may stand where it places them */
        {"fence {from = out, to = compute}\n  call",
         "fence {from = out, to = compute}\n  scatter(dst += X@0, src = X@0[0 for 1], index = tok[0 for 1])\n"
         "  call",
         ""},
        {"fence {from = out, to = compute}\n  call",
         "fence {from = out, to = compute}\n  scatter(dst += X@0, src = X@0[0 for 1], index = tok)\n  call",
         "program_c18"},
        {"w = W, g = dW, v := W", "w = W/8, g = dW/8, v := W/8", ""},
        {"w = W, g = dW, v := W", "w = W/4, g = dW, v := W", ""},
        {"w = W, g = dW, v := W", "w = W/8[0 for 1], g = dW/8[0 for 1], v := W/8[0 for 1]", "program_c25"},
        {"gemm(d := q[0 for rows]", "gemm(d := q[0 for 8]",
         "program_c18: function 'layer.fwd', command 0 "
         "(gemm): d (8 rows from"},
        {"x = X@1[i*H for H], p := p[i*H for H]", "x = X@1[i*H for H], p := p[i*C for C]", "program_c18"},
        {"k = K[lo0 until hi], v = V[lo0 until hi], first", "k = K[lo1 until hi], v = V[lo1 until hi], first",
         "program_c18: function 'layer.fwd', command 5 (attn_fwd): k"},
        {"k = K[lo0 until hi], v = V[lo0 until hi], first", "k = K[lo0 until hi], v = V[lo1 until hi], first",
         "program_c18: function 'layer.fwd', command 5 (attn_fwd): v"},
        {"k = K[lo0 until hi], v = V[lo0 until hi], first",
         "k = K[lo0 until row0], v = V[lo0 until row0], first",
         "program_c18: function 'layer.fwd', command 5 (attn_fwd): k"},
        {"own = first[i*C for C]", "own = first[0 for rows]",
         "program_c18: function 'layer.fwd', command 5 "
         "(attn_fwd): own"},
        {"db := part[0 for blocks]", "db := part", ""}, /* one block of at most 8 rows: exact */
        {"dst += result[*, 0 for 1]", "dst += result", "program_c19"},
        {"a = %x[i*C for C], b = %w) {tb}", "a = %x[i*C for C, 0 for 2], b = %w) {tb}",
         "program_c19: function 'layer.fwd', command 0 (gemm): a has 2 columns, b has 4"},
        {"x = X@1[i*H for H]", "x = X@1[i*H for H, 0 for 3]", "program_c19: entry 'accumulate', command 9"},
        {"kv_heads = 1, d_qk = 2, d_v = 2, scale = 0.5}", "kv_heads = 2, d_qk = 2, d_v = 2, scale = 0.5}",
         "program_c19"},
        {"dst += result[*, 0 for 1], src = p", "dst += p[0 for 1], src = p",
         "program_c20: entry 'accumulate', "
         "command 10 (reduce): dst is f32"},
        {"copy(dst := away, src = X@0)", "copy(dst := away, src = tok)", "program_c20"},
        {"table = E, index = tok", "table = E, index = p", "program_c20"},
        {"out y f32[T, 4], in w f32[4, 4]", "out y f32[T, 4], in w bf16[4, 4]",
         "program_c20: function 'layer.fwd', command 0 (gemm): a is f32, b is bf16"},
        {"buffer o scratch device f32[C, 4] of @layer.fwd",
         "buffer o scratch device bf16[C, 4] of @layer.fwd",
         "program_c20: function 'layer.fwd', command 5 (attn_fwd): o is bf16, q is f32"},
        {"buffer dK carry device f32", "buffer dK carry device bf16",
         "program_c20: function 'layer.bwd', command 3 (attn_bwd): dk is bf16"},
        {"buffer dK carry device f32", "buffer dK carry device f64", "(attn_bwd): dk is f64 beside q of f32"},
        {"buffer V carry device f32", "buffer V carry device f64", "v is f64, q is f32"},
        {"lse scratch device f32", "lse scratch device f64", "(attn_fwd): lse is f64 beside q of f32"},
        {"buffer E param device f32[10, 4]", "buffer E param device i32[10, 4]", "program_c20"},
        {"own = first[i*C for C]) {heads = 2, kv_heads = 1, d_qk = 2, d_v = 2, scale = 0.5}\n    row @bias",
         "own = first[i*C for C], work := part) {heads = 2, kv_heads = 1, d_qk = 2, d_v = 2, scale = 0.5}\n"
         "    row @bias",
         "program_c18: function 'layer.bwd', command 3 (attn_bwd): work"},
        {"y := q) with", "y := %x[i*C for C]) with",
         "program_c21: function 'layer.fwd', command 4 (scale): y "
         "writes formal 'x'"},
        {"fill(dst := dW)", "fill(dst := tok)", "program_c21: entry 'accumulate', command 0 (fill)"},
        {"fill(dst := dW)", "fill(dst := away)", "program_c23"},
        {"a = %x[i*C for C], b = %w) {tb}", "a = q[0 for rows], b = %w) {tb}",
         "program_c22: function 'layer.fwd', command 0 (gemm): d overlaps a"},
        {"w = W, g = dW, v := W", "w = dW, g = W, v := W", ""}, /* elementwise: either may be the result */
        {"copy(dst := away, src = X@0) {queue = out}", "copy(dst := X@0, src = X@0)", "program_c22"},
        {"copy(dst := away, src = X@0) {queue = out}", "copy(dst := X@0[0 until T-1], src = X@0[1 until T])",
         "program_c22"},
        {"src = X@0) {queue = out}", "src = X@0)", "program_c23"},
        {"src = X@0) {queue = out}", "src = X@0) {queue = in}", "program_c23"},
        {"src = X@0) {queue = out}", "src = X@0) {queue = disk}", "program_c23"},
        {"call @layer.fwd(x = X@0", "call @layer.fwd(x = away", "program_c13"},
        {"scale = 0.5}\n    row @bias", "scale = 0.5, queue = host}\n    row @bias", "program_c24"},
        {"{from = out, to = compute}", "{from = out, to = network}", "expected a queue"},
        {"flushes = W", "flushes = dW", "program_c25: entry 'update', command 0 (sgd): flushes buffer"},
        {"gradient = g", "gradient = v", "program_c25"},
        {"flushes = W", "flushes = E", "program_c25: entry 'update', command 0 (sgd): gradient g is not"},
        {"with s = lr", "with s = lr {flushes = W, gradient = x}", "program_c25: function 'layer.fwd'"},
        {"with s = lr", "with s = 0.25", ""},
        {"with s = lr", "with s = -0.25", "program_c15"},
        {"with s = lr", "with s = inf", "scalar"},
        {"d_v = 2, scale = 0.5, window = 3", "d_v = 2, scale = 0.5, window = -3", "program_c26"},
        {"scale = 0.5, window = 3", "scale = nan, window = 3", "program_c26"},
        {"heads = 2, kv_heads", "heads = 3, kv_heads = 2 , kv_heads", "unknown or repeated attribute"},
        {"d_qk = 2", "d_qk = 0", "program_c26"},
        {"index = tok, perm = order", "index = first, perm = order", "program_c27"},
        {"perm = order", "perm = segment", "program_c27"},
        {"own = first", "own = tok", "program_c27: function 'layer.fwd', command 5 (attn_fwd): own"},
        {"input first column first", "input first column first.in.4",
         "program_c27: function 'layer.fwd', command 5 (attn_fwd): shared_end"},
        {"input gain column gain", "input gain column gain\ninput own column own", "no buffer 'own'"},
        {"input segment segment tok chunk T", "input segment segment tok chunk C", "program_c27"},
    };
    for (int k = 0; k < SBP_COUNT(cases); k++) {
        char *text = replaced(small_program, cases[k].from, cases[k].to);
        job j = open_job(text, strlen(text));
        sbp_status status = run(&j);
        if (status == SBP_OK)
            status = sbp_program_verify(j.program, j.diag);
        if (status != (cases[k].want[0] ? SBP_INPUT : SBP_OK))
            fail_msg("'%s' -> '%s': status %d, wanted '%s', got '%s'", cases[k].from, cases[k].to,
                     (int)status, cases[k].want, sbp_diag_text(j.diag, SBP_ERROR));
        if (cases[k].want[0])
            expect_text(j.diag, cases[k].want);
        close_job(&j);
        free(text);
    }
}

/* Each queue runs some commands on operands of some spaces, see program.h. */
static void spaces_and_queues(void **state) {
    (void)state;
    static const char text[] = "program p\ntarget t\nsizes t_max 4, s_max 0, chunk 4, head_chunk 4\n"
                               "arena device 0, host 0, disk 1\nscalars T, S\n"
                               "buffer d[2] state device f32[4, 4]\n"
                               "buffer h[2] state host f32[4, 4]\n"
                               "buffer k[2] state disk f32[4, 4]\n"
                               "buffer s result host f64[1, 1]\n"
                               "kernel @twice f32 heads 1 n 4 { in x : f32 [row elem] length 4\n"
                               "out y : f32 [row elem] length 4 %0 = load x %1 = add %0, %0 store y, %1 }\n"
                               "function @keep(in x f32[4, 4], out y f32[4, 4]) {\n"
                               "  copy(dst := %y, src = %x) {queue = out}\n}\n"
                               "entry e {\n  COMMAND\n}\n";
    static const struct {
        const char *command, *want;
    } cases[] = {
        {"copy(dst := d@0, src = d@1)", NULL},
        {"copy(dst := d@0, src = h@1) {queue = in}", NULL},
        {"copy(dst := h@0, src = d@1) {queue = out}", NULL},
        {"copy(dst := h@0, src = h@1) {queue = host}", NULL},
        {"copy(dst := h@0, src = k@1) {queue = disk}", NULL},
        {"copy(dst := k@0, src = h@1) {queue = disk}", NULL},
        {"fill(dst := h@0) {value = 1, queue = host}", NULL},
        {"row @twice(x = h@0, y := h@1) {queue = host}", NULL},
        {"colsum(dst += h@0[0 for 1], src = h@1) {queue = host}", NULL},
        {"reduce(dst += s, src = h@1) {op = sum, queue = host}", NULL},
        {"fence {from = disk, to = host}", NULL},
        {"call @keep(x = d@0, y := h@0)", NULL},
        {"copy(dst := d@0, src = k@1) {queue = in}",
         "program_c23: entry 'e', command 0 (copy): src: buffer 'k'"},
        {"copy(dst := k@0, src = d@1) {queue = out}", "program_c23"},
        {"copy(dst := k@0, src = k@1) {queue = disk}",
         "program_c23: entry 'e', command 0 (copy): a copy within"},
        {"copy(dst := h@0, src = h@1) {queue = disk}", "program_c23"},
        {"copy(dst := d@0, src = h@1) {queue = host}", "program_c23"},
        {"copy(dst := d@0, src = h@1) {queue = out}", "program_c23"},
        {"row @twice(x = d@0, y := h@1) {queue = host}", "program_c23"},
        {"row @twice(x = h@0, y := h@1)", "program_c23"},
        {"fill(dst := k@0) {value = 1, queue = disk}", "program_c24"},
        {"fill(dst := d@0) {value = 1, queue = in}", "program_c24"},
        {"gemm(d := h@0, a = h@1, b = h@1) {queue = host}", "program_c24"},
        {"collective(dst += h@0, src = h@0) {op = all_reduce, queue = host}", "program_c24"},
        {"fence {from = disk, to = host, queue = host}", "program_c24"},
        {"call @keep(x = h@0, y := h@1)", "program_c13"},
        {"call @keep(x = d@0, y := k@1)", "program_c13"},
    };
    for (int k = 0; k < SBP_COUNT(cases); k++) {
        char *with = replaced(text, "COMMAND", cases[k].command);
        job j = parsed(with);
        sbp_text out;
        sbp_text_init(&out, j.arena);
        sbp_program_print(&out, j.program);
        assert_string_equal(strstr(out.data, "entry e"), strstr(with, "entry e"));
        assert_non_null(strstr(out.data, "arena device 0, host 0, disk 1\n"));
        sbp_status status = sbp_program_verify(j.program, j.diag);
        if (status != (cases[k].want ? SBP_INPUT : SBP_OK))
            fail_msg("%s: status %d, %s", cases[k].command, (int)status, sbp_diag_text(j.diag, SBP_ERROR));
        if (cases[k].want)
            expect_text(j.diag, cases[k].want);
        close_job(&j);
        free(with);
    }
}

static void expect_verify(job *j, const char *want) {
    sbp_diag_clear(j->diag);
    sbp_status status = sbp_program_verify(j->program, j->diag);
    if (status != (want ? SBP_INPUT : SBP_OK))
        fail_msg("status %d, wanted '%s', got '%s'", (int)status, want ? want : "none",
                 sbp_diag_text(j->diag, SBP_ERROR));
    if (want)
        expect_text(j->diag, want);
}

/* Parts come before or behind their bucket in the text; of an array of staging buffers each has all parts. */
static void parts_lie_in_their_buckets(void **state) {
    (void)state;
    static const char with[] = "buffer P1 grad host bf16[3, 1000] in B at 4096\n"
                               "buffer B bucket host bf16[2, 4096]\n"
                               "buffer P0 grad host bf16[8, 512] in B at 0\n"
                               "buffer S[2] staging device f32[2, 4096]\n"
                               "buffer S0[2] staging device f32[1, 6] in S at 0\n"
                               "buffer S1[2] staging device f32[2, 6] in S at 0\n"
                               "buffer E param";
    static const struct {
        const char *from, *to, *want;
    } cases[] = {
        {"in B at 4096", "in nothing at 4096", "test:9: buffer 'P1' in unknown buffer 'nothing'"},
        {"in B at 4096", "in P0 at 0", "program_c29: buffer 'P1' cannot be a part of 'P0'"},
        {"in B at 4096", "in B at 4095",
         "program_c29: buffer 'P1': 3000 elements at 4095 of 'B', which has 8192"},
        {"in B at 4096", "in B at 8192", "program_c29: buffer 'P1': 3000 elements at 8192"},
        {"in B at 4096", "in B at -4096", "program_c29"},
        {"host bf16[3, 1000]", "device bf16[3, 1000]", "program_c29: buffer 'P1' cannot be a part of 'B'"},
        {"host bf16[3, 1000]", "host f32[3, 1000]", "program_c29"},
        {"host bf16[3, 1000]", "host bf16[T, 1]", "program_c29"},
        {"bucket host bf16[2, 4096]", "stream host bf16[T, 4096]", "program_c29"},
        {"buffer S0[2]", "buffer S0", "program_c29: buffer 'S0' cannot be a part of 'S'"},
    };
    char *text = replaced(small_program, "buffer E param", with);
    job j = parsed(text);
    expect_verify(&j, NULL);
    job again = parsed(j.printed);
    expect_same(again.printed, j.printed);
    sbp_program *p = j.program;
    int32_t s0 = sbp_program_find_buffer(p, "S0"), b = sbp_program_find_buffer(p, "B");
    assert_int_equal(sbp_buffer_memory(p, sbp_program_find_buffer(p, "P1")), b);
    assert_int_equal(sbp_buffer_memory(p, b), b);
    place(p);
    expect_verify(&j, NULL);
    p->buffers[s0].stride += 64;
    expect_verify(&j, "program_c29: buffer 'S0' at offset");
    p->buffers[s0].stride -= 64;
    p->buffers[s0].offset += 64;
    expect_verify(&j, "program_c29: buffer 'S0' at offset");
    close_job(&again);
    close_job(&j);
    for (int i = 0; i < SBP_COUNT(cases); i++) {
        char *broken = replaced(text, cases[i].from, cases[i].to);
        job k = open_job(broken, strlen(broken));
        sbp_status status = run(&k);
        if (status == SBP_OK)
            status = sbp_program_verify(k.program, k.diag);
        const char *got = sbp_diag_text(k.diag, SBP_ERROR);
        if (status == SBP_OK || !strstr(got, cases[i].want))
            fail_msg("'%s' gives '%s', not '%s'", cases[i].to, got, cases[i].want);
        close_job(&k);
        free(broken);
    }
    free(text);
}

static void placement_and_other_memory_forms(void **state) {
    (void)state;
    job j = parsed(small_program);
    sbp_program *p = j.program;
    place(p);
    expect_verify(&j, NULL);
    int32_t x = sbp_program_find_buffer(p, "X"), w = sbp_program_find_buffer(p, "W");
    int32_t dw = sbp_program_find_buffer(p, "dW");

    p->arena_bytes[SBP_DEVICE]--; /* the last buffer has no slack to speak of: take its whole slot */
    p->arena_bytes[SBP_DEVICE] -= 63;
    expect_verify(&j, "program_c7");
    p->arena_bytes[SBP_DEVICE] += 64;
    int64_t stride = p->buffers[x].stride;
    p->buffers[x].stride = 4 * 40 * 4 - 4;
    expect_verify(&j, "program_c7: buffer 'X': stride");
    p->buffers[x].stride = INT64_C(1) << 62;
    expect_verify(&j, "program_c7: buffer 'X' does not end within the arena");
    p->buffers[x].stride = stride;
    p->buffers[x].offset += 2;
    expect_verify(&j, "program_c7: buffer 'X': offset");
    p->buffers[x].offset -= 2;
    int64_t offset = p->buffers[w].offset;
    p->buffers[w].offset = -1;
    expect_verify(&j, "program_c7: buffer 'W'");
    p->buffers[w].offset = p->buffers[dw].offset + 4; /* sgd: w and g, W written */
    expect_verify(&j, "program_c14");
    p->buffers[w].offset = offset;
    int32_t dk = sbp_program_find_buffer(p, "dK"), k = sbp_program_find_buffer(p, "K");
    offset = p->buffers[dk].offset;
    p->buffers[dk].offset = p->buffers[k].offset + 64; /* attn_bwd writes one and reads the other */
    expect_verify(&j, "program_c22: function 'layer.bwd', command 3 (attn_bwd): dk and k are different");
    p->buffers[dk].offset = offset;
    expect_verify(&j, NULL);

    /* what the text cannot say */
    p->buffers[w].role = SBP_ROLE_COUNT;
    expect_verify(&j, "program_c5: buffer 'W'");
    p->buffers[w].role = SBP_ROLE_PARAM;
    static const double numbers[16];
    p->buffers[w].data = numbers;
    expect_verify(&j, "program_c5: buffer 'W' has data");
    p->buffers[w].data = NULL;
    p->buffers[w].function = 99;
    expect_verify(&j, "program_c5");
    p->buffers[w].function = -1;
    p->buffers[w].name = NULL;
    expect_verify(&j, "program_c2");
    p->buffers[w].name = "W";
    sbp_command *first = p->entries[0].body.nodes[0].u.command;
    first->kind = SBP_CMD_COUNT;
    expect_verify(&j, "program_c15: entry 'accumulate', command 0");
    first->kind = SBP_CMD_FILL;
    first->view_count = 0;
    expect_verify(&j, "program_c15");
    first->view_count = 1;
    first->views[0] = sbp_view_none();
    expect_verify(&j, "program_c15: entry 'accumulate', command 0 (fill): no operand dst");
    first->views[0] = sbp_view_buffer(p, dw, 0);
    first->views[0].ref = 1000;
    expect_verify(&j, "program_c16");
    first->views[0].ref = ~0;
    expect_verify(&j, "program_c16");
    first->views[0].ref = sbp_program_find_buffer(p, "q"); /* of a function */
    expect_verify(&j, "program_c16");
    first->views[0].ref = dw;
    first->views[0].width = 3;
    expect_verify(&j, "program_c28: entry 'accumulate', command 0 (fill): dst: no width of 3");
    first->views[0].width = -4;
    expect_verify(&j, "program_c28");
    first->views[0] = sbp_view_wide(p, NULL, &first->views[0], 8);
    expect_verify(&j, NULL);
    first->views[0] = sbp_view_wide(p, NULL, &first->views[0], 4);
    assert_int_equal(first->views[0].width, 0); /* its own */
    sbp_command *sgd = p->entries[1].body.nodes[0].u.command;
    sgd->scalars[0] = 77;
    expect_verify(&j, "program_c15");
    sgd->scalars[0] = 2;
    sgd->kernel = -1;
    expect_verify(&j, "program_c15");
    sgd->kernel = p->kernel_count - 1;
    expect_verify(&j, NULL);
    close_job(&j);
}

/* ---- views ------------------------------------------------------------------------------------------ */

static void views_resolve(void **state) {
    (void)state;
    job j = parsed(small_program);
    sbp_program *p = j.program;
    int32_t x = sbp_program_find_buffer(p, "X");
    int32_t q = -1; /* chunk scratch */
    for (int32_t b = 0; b < p->buffer_count; b++)
        if (strcmp(p->buffers[b].name, "q") == 0)
            q = b;
    sbp_position at = {.sizes = sbp_program_sizes(p, 21, 2)};
    sbp_range r;
    assert_int_equal(sbp_table_rows(p, 0, &at.sizes), 3);
    sbp_position_set(&at, p, 0, 2); /* rows 16 .. 21 */
    assert_int_equal(at.columns[SBP_COLUMN_ROWS], 5);
    assert_int_equal(at.columns[SBP_COLUMN_BLOCKS], 1);
    sbp_view whole = sbp_view_buffer(p, x, 1);
    sbp_view chunk = sbp_view_chunk(whole, SBP_C);
    assert_true(sbp_view_resolve(p, NULL, &chunk, &at, &r));
    assert_true(r.start == 16 && r.rows == 5 && r.first_row == 16);
    assert_true(sbp_view_resolve(p, NULL, &whole, &at, &r));
    assert_true(r.start == 0 && r.rows == 21 && r.first_row == 0);
    sbp_view scratch = sbp_view_buffer(p, q, 0);
    assert_true(sbp_view_resolve(p, NULL, &scratch, &at, &r));
    assert_true(r.start == 0 && r.rows == 5 && r.first_row == 16);
    sbp_position_set(&at, p, 1, 5); /* a head chunk: C is nominal there */
    assert_true(sbp_view_resolve(p, NULL, &scratch, &at, &r));
    assert_true(r.start == 0 && r.rows == 8 && r.first_row == 0);
    sbp_view keys = whole;
    keys.start.column = SBP_COLUMN_LO;
    keys.length = (sbp_index){.column = SBP_COLUMN_HI};
    keys.until = true;
    sbp_position_set(&at, p, 0, 1);
    at.columns[SBP_COLUMN_LO] = 3;
    assert_true(sbp_view_resolve(p, NULL, &keys, &at, &r));
    assert_true(r.start == 3 && r.rows == 13 && r.first_row == 3);
    sbp_view wide = sbp_view_buffer(p, sbp_program_find_buffer(p, "E"), 0); /* [10, 4] */
    assert_true(sbp_view_is_whole(p, NULL, &wide));
    wide = sbp_view_wide(p, NULL, &wide, 8);
    assert_true(sbp_view_is_whole(p, NULL, &wide));
    assert_true(sbp_view_resolve(p, NULL, &wide, &at, &r));
    assert_true(wide.cols == 8 && r.start == 0 && r.rows == 5 && r.first_row == 0);
    wide.start.base = sbp_extent_const(3);
    assert_true(sbp_view_resolve(p, NULL, &wide, &at, &r) && r.rows == 2);
    assert_false(sbp_view_is_whole(p, NULL, &wide));
    wide.width = 7;
    assert_false(sbp_view_resolve(p, NULL, &wide, &at, &r));
    keys.length.base = sbp_extent_const(INT64_MAX);
    assert_false(sbp_view_resolve(p, NULL, &keys, &at, &r));
    close_job(&j);
}

/* ---- fuzzing ---------------------------------------------------------------------------------------- */

static void mutated_texts_are_safe(void **state) {
    (void)state;
    size_t length = strlen(small_program), capacity = length + 256;
    char *text = malloc(capacity + 1);
    int parsed_count = 0, verified = 0;
    int rounds = mutate_rounds(3000);
    for (int k = 0; k < rounds; k++) {
        memcpy(text, small_program, length);
        size_t n = length;
        for (uint32_t edits = 1 + mutate_pick(3); edits > 0 && n > 0; edits--)
            n = mutate(text, n, capacity);
        char *exact = malloc(n ? n : 1); /* so that a sanitizer sees reads beyond the end */
        memcpy(exact, text, n);
        job j = open_job(exact, n);
        sbp_status status = run(&j);
        if (status == SBP_OK) {
            parsed_count++;
            if (sbp_program_verify(j.program, j.diag) == SBP_OK) {
                verified++;
                job again = open_job(j.printed, strlen(j.printed));
                assert_int_equal(run(&again), SBP_OK);
                expect_same(again.printed, j.printed);
                close_job(&again);
            }
        } else {
            assert_int_equal(status, SBP_INPUT);
            assert_true(sbp_diag_count(j.diag, SBP_ERROR) > 0);
        }
        close_job(&j);
        free(exact);
    }
    free(text);
    print_message("%d mutants: %d parsed, %d verified\n", rounds, parsed_count, verified);
    assert_true(parsed_count > 0 && parsed_count < rounds);
}

static void truncated_texts_are_refused(void **state) {
    (void)state;
    size_t length = strlen(small_program);
    for (size_t n = 0; n < length; n += 7) {
        char *exact = malloc(n ? n : 1);
        memcpy(exact, small_program, n);
        job j = open_job(exact, n);
        sbp_status status = run(&j);
        assert_true(status == SBP_INPUT || status == SBP_OK);
        if (status == SBP_OK)
            (void)!sbp_program_verify(j.program, j.diag);
        close_job(&j);
        free(exact);
    }
}

static sbp_status verify_it(void *user) {
    job *j = user;
    SBP_TRY(parse_and_print(j));
    return sbp_program_verify(j->program, j->diag);
}

static void running_out_of_memory_is_reported(void **state) {
    (void)state;
    bool done = false;
    for (int64_t n = 1; !done && n < 1000; n++) {
        job j = open_job(small_program, strlen(small_program));
        sbp_test_fail_allocation(n);
        sbp_status status = sbp_guard(j.arena, j.diag, verify_it, &j);
        sbp_test_fail_allocation(0);
        assert_true(status == SBP_OK || status == SBP_MACHINE);
        done = status == SBP_OK;
        close_job(&j);
    }
    assert_true(done);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_trip),
        cmocka_unit_test(round_trip_of_odd_forms),
        cmocka_unit_test(built_programs_round_trip),
        cmocka_unit_test(parse_errors_name_the_line),
        cmocka_unit_test(constraints_that_text_can_break),
        cmocka_unit_test(spaces_and_queues),
        cmocka_unit_test(parts_lie_in_their_buckets),
        cmocka_unit_test(placement_and_other_memory_forms),
        cmocka_unit_test(views_resolve),
        cmocka_unit_test(mutated_texts_are_safe),
        cmocka_unit_test(truncated_texts_are_refused),
        cmocka_unit_test(running_out_of_memory_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
