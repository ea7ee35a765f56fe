/* test_run_cpu.c: a hand-written program end to end on the CPU device: the executor's spans, tables, orders
 * and scalars against the same mathematics in plain double loops, at many T; the same bits from the shuffle
 * device, which runs commands in any order that the fences allow. */
#include "backends/cpu/cpu_device.h"
#include "runtime/run/executor.h"
#include "tests/common/expect.h"
#include "tests/tolerance.h"
#include "tests/unit/mutate.h"
#include "tests/unit/place.h"

#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { T_MAX = 50, D = 4, V = 10, WINDOW = 5, MOST_ELEMS = 576 };

/* x = E[tok]; q = x Wq, k = x[:, 0:2], v = x[:, 2:4]; o = attention (2 heads of 2, one kv head, window 5);
 * y = o W^T + x; p = sum of y; loss += sum p; dE += y by tok; dW += y^T x; db += column sums of y.
 * update: W -= lr dW. */
static const char program_text[] =
    "program toy\ntarget cpu\nsizes t_max 50, s_max 1, chunk 8, head_chunk 3\narena device 0, host 0\n"
    "scalars T, S, lr\n"
    "table chunk step C windows 5\n"
    "table piece step H\n"
    "buffer X[2] stream device f32[T, 4]\n"
    "buffer E param device f32[10, 4]\n"
    "buffer Wq param device f32[4, 4]\n"
    "buffer W param device f32[4, 4]\n"
    "buffer dE accum device f32[10, 4]\n"
    "buffer dW accum device f32[4, 4]\n"
    "buffer db accum device f32[1, 4]\n"
    "buffer K carry device f32[T, 2]\n"
    "buffer V carry device f32[T, 2]\n"
    "buffer away saved host f32[T, 4]\n"
    "buffer tok rows device i32[T, 1]\n"
    "buffer order rows device i32[T, 1]\n"
    "buffer segment rows device i32[T, 1]\n"
    "buffer first rows device i32[T, 1]\n"
    "buffer p vector device f32[T, 1]\n"
    "buffer result result device f64[1, 1]\n"
    "buffer q scratch device f32[C, 4] of @layer\n"
    "buffer o scratch device f32[C, 4] of @layer\n"
    "buffer lse scratch device f32[C, 2] of @layer\n"
    "buffer part scratch device f32[4, 4] of @layer\n"
    "input tok column tok\ninput order order tok chunk T\ninput segment segment tok chunk T\n"
    "input first column first\n"
    "output loss result 0\n"
    "kernel @total f32 heads 1 n 4 {\n"
    "  in x : f32 [row elem] length 4\n  out p : f32 [row]\n  partial db : f32 [elem] length 4\n"
    "  %0 = load x\n  %1 = sum[elem] %0\n  store p, %1\n  accumulate db, %0\n}\n"
    "kernel @sgd f32 heads 1 n 4 {\n"
    "  in w : f32 [row elem] length 4\n  in g : f32 [row elem] length 4\n"
    "  out v : f32 [row elem] length 4\n  scalar lr\n"
    "  %0 = load w\n  %1 = load g\n  %2 = scalar lr\n  %3 = mul %1, %2\n  %4 = sub %0, %3\n  store v, %4\n}\n"
    "function @layer(in x f32[T, 4], out y f32[T, 4], in wq f32[4, 4], in w f32[4, 4], inout dw f32[4, 4]) "
    "{\n"
    "  loop i in chunk {\n"
    "    copy(dst := K[i*C for C], src = %x[i*C for C, 0 for 2])\n"
    "    copy(dst := V[i*C for C], src = %x[i*C for C, 2 for 2])\n"
    "    gemm(d := q, a = %x[i*C for C], b = %wq)\n"
    "    fence {from = compute, to = compute}\n"
    "    attn_fwd(o := o, lse := lse, q = q, k = K[lo0 until hi], v = V[lo0 until hi], "
    "first = first[i*C for C], shared_end = first[i*C for C], own = first[i*C for C]) {heads = 2, kv_heads = "
    "1, "
    "d_qk = 2, d_v = 2, scale = 0.7, window = 5}\n"
    "    fence {from = compute, to = compute}\n"
    "    gemm(d := %y[i*C for C], a = o, b = %w, c = %x[i*C for C]) {tb, beta = 1}\n"
    "    fence {from = compute, to = compute}\n"
    "    row @total(x = %y[row0 for rows], p := p[i*C for C], db := part[0 for blocks])\n"
    "    gemm(d := %dw, a = %y[i*C for C], b = %x[i*C for C], c = %dw) {ta, beta = 1}\n"
    "    fence {from = compute, to = compute}\n"
    "    colsum(dst += db, src = part[0 for blocks]) {beta = 1}\n"
    "    fence {from = compute, to = compute}\n"
    "  }\n"
    "}\n"
    "entry accumulate {\n"
    "  fill(dst := dW) {value = 0}\n  fill(dst := dE) {value = 0}\n  fill(dst := db) {value = 0}\n"
    "  gather(dst := X@0, table = E, index = tok)\n"
    "  fence {from = compute, to = compute}\n"
    "  fence {from = compute, to = out}\n"
    "  copy(dst := away, src = X@0) {queue = out}\n"
    "  call @layer(x = X@0, y := X@1, wq = Wq, w = W, dw += dW)\n"
    "  scatter_add(dst += dE, src = X@1, index = tok, perm = order, segment = segment)\n"
    "  reduce(dst += result, src = p) {op = sum, beta = 1}\n"
    "  fence {from = out, to = compute}\n"
    "  fence {from = compute, to = compute}\n"
    "}\n"
    "entry update {\n"
    "  row @sgd(w = W, g = dW, v := W) with lr = lr {flushes = W, gradient = g}\n"
    "}\n";

typedef struct bench {
    sbp_arena *arena;
    sbp_diag *diag;
    const char *text;
    sbp_program *program;
    sbp_executor *executor;
} bench;

static sbp_status parse(void *user) {
    bench *b = user;
    return sbp_program_parse(b->arena, b->diag, "toy", b->text, strlen(b->text), &b->program);
}

static bench open_bench(const sbp_device_class *class, int64_t chunk, int64_t head_chunk, int32_t threads,
                        uint64_t seed) {
    bench b = {.arena = sbp_arena_create(), .diag = sbp_diag_create(), .text = program_text};
    expect_ok(b.diag, sbp_guard(b.arena, b.diag, parse, &b));
    b.program->chunk = chunk;
    b.program->head_chunk = head_chunk;
    place(b.program);
    expect_ok(b.diag, sbp_program_verify(b.program, b.diag));
    sbp_device_options options = {.threads = threads, .shuffle_seed = seed};
    expect_ok(b.diag, sbp_executor_create(b.diag, class, &options, b.program, &b.executor));
    return b;
}

static void close_bench(bench *b) {
    sbp_executor_destroy(b->executor);
    sbp_diag_destroy(b->diag);
    sbp_arena_destroy(b->arena);
}

static uint64_t state = 3;

static double draw(void) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (double)(state >> 40) / (1 << 24) - 0.5;
}

/* Everything the program computes, in double; weights as they are in fp32. */
typedef struct numbers {
    double e[V][D], wq[D][D], w[D][D], x[T_MAX][D], y[T_MAX][D];
    double loss, de[V][D], dw[D][D], db[D];
    int32_t tok[T_MAX];
    int32_t first[T_MAX];
} numbers;

static void make_weights(numbers *n) {
    double *all[] = {&n->e[0][0], &n->wq[0][0], &n->w[0][0]};
    const int counts[] = {V * D, D * D, D * D};
    for (int k = 0; k < 3; k++)
        for (int j = 0; j < counts[k]; j++)
            all[k][j] = (double)(float)draw();
    n->loss = 0;
}

static void make_batch(numbers *n, int64_t t) {
    for (int64_t r = 0, first = 0; r < t; r++) {
        if (draw() > 0.4)
            first = r;
        n->first[r] = (int32_t)first;
        n->tok[r] = (int32_t)((draw() + 0.5) * V);
    }
}

/* Row r of attention: 2 heads share one kv head. */
static void attend(const numbers *n, int64_t r, double o[D]) {
    for (int h = 0; h < 2; h++) {
        double weights = 0, sum[2] = {0}, q[2] = {0};
        for (int j = 0; j < 2; j++)
            for (int c = 0; c < D; c++)
                q[j] += n->x[r][c] * n->wq[c][2 * h + j];
        for (int64_t c = n->first[r]; c <= r; c++) {
            if (r - c >= WINDOW)
                continue;
            double score = exp(0.7 * (q[0] * n->x[c][0] + q[1] * n->x[c][1]));
            weights += score;
            sum[0] += score * n->x[c][2];
            sum[1] += score * n->x[c][3];
        }
        o[2 * h] = sum[0] / weights;
        o[2 * h + 1] = sum[1] / weights;
    }
}

static void compute(numbers *n, int64_t t) {
    memset(n->de, 0, sizeof n->de);
    memset(n->dw, 0, sizeof n->dw);
    memset(n->db, 0, sizeof n->db);
    for (int64_t r = 0; r < t; r++)
        memcpy(n->x[r], n->e[n->tok[r]], sizeof n->x[r]);
    for (int64_t r = 0; r < t; r++) {
        double o[D];
        attend(n, r, o);
        for (int j = 0; j < D; j++) {
            n->y[r][j] = n->x[r][j];
            for (int c = 0; c < D; c++)
                n->y[r][j] += o[c] * n->w[j][c];
            n->loss += n->y[r][j];
            n->db[j] += n->y[r][j];
            n->de[n->tok[r]][j] += n->y[r][j];
        }
        for (int j = 0; j < D; j++)
            for (int c = 0; c < D; c++)
                n->dw[j][c] += n->y[r][j] * n->x[r][c];
    }
}

static int32_t buffer(const bench *b, const char *name) {
    return sbp_program_find_buffer(b->program, name);
}

static void write_weights(bench *b, const numbers *n) {
    expect_ok(b->diag, sbp_executor_write(b->executor, buffer(b, "E"), 0, 0, V * D, SBP_F64, n->e, b->diag));
    expect_ok(b->diag,
              sbp_executor_write(b->executor, buffer(b, "Wq"), 0, 0, D * D, SBP_F64, n->wq, b->diag));
    expect_ok(b->diag, sbp_executor_write(b->executor, buffer(b, "W"), 0, 0, D * D, SBP_F64, n->w, b->diag));
    expect_ok(b->diag, sbp_executor_fill_role(b->executor, SBP_ROLE_RESULT, 0, b->diag));
}

static void run_batch(bench *b, const numbers *n, int64_t t) {
    const sbp_column columns[] = {{"tok", SBP_I32, n->tok, t}, {"first", SBP_I32, n->first, t}};
    expect_ok(b->diag, sbp_executor_bind(b->executor, t, 0, columns, 2, b->diag));
    expect_ok(b->diag, sbp_executor_run(b->executor, "accumulate", b->diag));
}

static void expect_close(bench *b, const char *name, int32_t slot, const double *want, int64_t count,
                         double scale) {
    double got[MOST_ELEMS];
    assert_true(count <= MOST_ELEMS);
    expect_ok(b->diag,
              sbp_executor_read(b->executor, buffer(b, name), slot, 0, count, SBP_F64, got, b->diag));
    for (int64_t k = 0; k < count; k++)
        if (!(fabs(got[k] - want[k]) <= SBP_TOLERANCE_ELEMENT_F32 * scale))
            fail_msg("%s[%d] is %.9g, expected %.9g (chunk %lld)", name, (int)k, got[k], want[k],
                     (long long)b->program->chunk);
}

static void results_are_those_of_plain_loops(void **unused) {
    (void)unused;
    const int64_t chunks[][2] = {{8, 3}, {1, 1}, {50, 50}, {7, 64}};
    for (int c = 0; c < SBP_COUNT(chunks); c++) {
        bench b = open_bench(&sbp_cpu_device, chunks[c][0], chunks[c][1], 2, 0);
        static numbers n;
        make_weights(&n);
        write_weights(&b, &n);
        for (int64_t t = 1; t <= T_MAX; t += c == 0 ? 1 : 7) {
            make_batch(&n, t);
            compute(&n, t);
            run_batch(&b, &n, t);
            expect_close(&b, "X", 0, &n.x[0][0], t * D, 1);
            expect_close(&b, "away", 0, &n.x[0][0], t * D, 1);
            expect_close(&b, "X", 1, &n.y[0][0], t * D, 1);
            expect_close(&b, "dE", 0, &n.de[0][0], V * D, 30);
            expect_close(&b, "dW", 0, &n.dw[0][0], D * D, 30);
            expect_close(&b, "db", 0, n.db, D, 30);
        }
        double loss;
        expect_ok(b.diag, sbp_executor_output(b.executor, "loss", &loss, b.diag));
        assert_true(fabs(loss - n.loss) <= SBP_TOLERANCE_F32 * fabs(n.loss));
        sbp_executor_set_scalar(b.executor, "lr", 0.5);
        expect_ok(b.diag, sbp_executor_run(b.executor, "update", b.diag));
        for (int k = 0; k < D * D; k++)
            (&n.w[0][0])[k] -= 0.5 * (&n.dw[0][0])[k];
        expect_close(&b, "W", 0, &n.w[0][0], D * D, 30);
        close_bench(&b);
    }
}

/* Any order that the fences allow, and any number of threads, give the same bits. */
static void order_and_threads_do_not_matter(void **unused) {
    (void)unused;
    static const char *const names[] = {"X", "dE", "dW", "db", "result", "away", "p"};
    static numbers n;
    make_weights(&n);
    for (int64_t t = 1; t <= T_MAX; t += 12) {
        make_batch(&n, t);
        bench plain = open_bench(&sbp_cpu_device, 8, 3, 1, 0);
        write_weights(&plain, &n);
        run_batch(&plain, &n, t);
        for (uint64_t seed = 1; seed <= 6; seed++) {
            bench other =
                open_bench(seed < 5 ? &sbp_cpu_shuffle_device : &sbp_cpu_device, 8, 3, (int32_t)seed, seed);
            write_weights(&other, &n);
            run_batch(&other, &n, t);
            for (int k = 0; k < SBP_COUNT(names); k++) {
                int32_t id = buffer(&plain, names[k]);
                int64_t rows = plain.program->buffers[id].rows.c[SBP_T] ? t : 1;
                int64_t count = plain.program->buffers[id].rows.c[SBP_T]
                                    ? rows * plain.program->buffers[id].cols
                                    : sbp_executor_elems(plain.executor, id);
                double a[T_MAX * D], c[T_MAX * D];
                expect_ok(plain.diag,
                          sbp_executor_read(plain.executor, id, 0, 0, count, SBP_F64, a, plain.diag));
                expect_ok(other.diag,
                          sbp_executor_read(other.executor, id, 0, 0, count, SBP_F64, c, other.diag));
                assert_memory_equal(a, c, (size_t)count * sizeof *a);
            }
            close_bench(&other);
        }
        close_bench(&plain);
    }
}

/* Programs that verify may compute nonsense, but neither crash nor leave their buffers. */
static void mutants_do_not_crash_the_device(void **unused) {
    (void)unused;
    size_t length = strlen(program_text);
    char *text = malloc(length + 1);
    int verified = 0, rounds = mutate_rounds(400);
    static numbers n;
    for (int k = 0; k < rounds; k++) {
        memcpy(text, program_text, length + 1);
        for (uint32_t edits = 1 + mutate_pick(2); edits > 0; edits--)
            mutate_meaning(text, length);
        bench b = {.arena = sbp_arena_create(), .diag = sbp_diag_create(), .text = text};
        sbp_device_options options = {.threads = 1};
        bool good = sbp_guard(b.arena, b.diag, parse, &b) == SBP_OK &&
                    sbp_program_verify(b.program, b.diag) == SBP_OK;
        if (good) {
            place(b.program);
            good = sbp_program_verify(b.program, b.diag) == SBP_OK &&
                   sbp_executor_create(b.diag, &sbp_cpu_device, &options, b.program, &b.executor) == SBP_OK;
        }
        for (int64_t t = 1; good && t <= b.program->t_max && t <= T_MAX; t += 6) {
            make_batch(&n, t);
            const sbp_column columns[] = {{"tok", SBP_I32, n.tok, t}, {"first", SBP_I32, n.first, t}};
            if (sbp_executor_bind(b.executor, t, 0, columns, 2, b.diag) == SBP_OK) {
                sbp_status status = sbp_executor_run(b.executor, "accumulate", b.diag);
                if (status != SBP_OK && status != SBP_INPUT)
                    fail_msg("status %d: %s\n%s", (int)status, sbp_diag_text(b.diag, SBP_ERROR), text);
            }
        }
        verified += good;
        sbp_executor_destroy(b.executor);
        sbp_diag_destroy(b.diag);
        sbp_arena_destroy(b.arena);
    }
    free(text);
    print_message("%d mutants: %d verified\n", rounds, verified);
    assert_true(verified > rounds / 20);
}

/* Every command that has types to agree on, without kernels, which have their own. */
static const char typed_text[] =
    "program typed\ntarget cpu\nsizes t_max 50, s_max 1, chunk 8, head_chunk 3\narena device 0, host 0\n"
    "scalars T, S\ntable chunk step C windows 0\n"
    "buffer E param device ?[10, 4]\nbuffer W param device ?[4, 4]\nbuffer dE accum device ?[10, 4]\n"
    "buffer b accum device ?[1, 4]\nbuffer x stream device ?[T, 4]\nbuffer q stream device ?[T, 4]\n"
    "buffer K carry device ?[T, 2]\nbuffer V carry device ?[T, 2]\nbuffer dK carry device ?[T, 2]\n"
    "buffer dV carry device ?[T, 2]\nbuffer o stream device ?[T, 4]\nbuffer lse stream device ?[T, 2]\n"
    "buffer do stream device ?[T, 4]\nbuffer dq stream device ?[T, 4]\nbuffer work workspace device ?[T, 8]\n"
    "buffer tok rows device i32[T, 1]\nbuffer order rows device i32[T, 1]\n"
    "buffer segment rows device i32[T, 1]\nbuffer first rows device i32[T, 1]\n"
    "buffer result result device f64[1, 1]\n"
    "input tok column tok\ninput order order tok chunk T\ninput segment segment tok chunk T\n"
    "input first column first\n"
    "entry accumulate {\n"
    "  gather(dst := x, table = E, index = tok)\n  fence {from = compute, to = compute}\n"
    "  gemm(d := q, a = x, b = W, bias = b)\n  copy(dst := K, src = x[*, 0 for 2])\n"
    "  copy(dst := V, src = x[*, 2 for 2])\n  fill(dst := dK) {value = 0}\n  fill(dst := dV) {value = 0}\n"
    "  fence {from = compute, to = compute}\n"
    "  attn_fwd(o := o, lse := lse, q = q, k = K, v = V, first = first, shared_end = first, own = first) "
    "{heads = 2, kv_heads = 1, d_qk = 2, d_v = 2, scale = 0.7}\n  fence {from = compute, to = compute}\n"
    "  gemm(d := do, a = o, b = W, c = x) {tb, beta = 1}\n  fence {from = compute, to = compute}\n"
    "  attn_bwd(dq := dq, dk += dK, dv += dV, q = q, k = K, v = V, o = o, lse = lse, do = do, first = first, "
    "shared_end = first, own = first, work := work) {heads = 2, kv_heads = 1, d_qk = 2, d_v = 2, scale = "
    "0.7}\n"
    "  fence {from = compute, to = compute}\n  colsum(dst += b, src = dq) {beta = 1}\n"
    "  scatter_add(dst += dE, src = dq, index = tok, perm = order, segment = segment)\n"
    "  reduce(dst += result, src = dK) {op = sum, beta = 1}\n}\n";

/* Whatever types its buffers have, a program that verifies runs: the device refuses none that the verifier
 * lets through. */
static void types_that_verify_run(void **unused) {
    (void)unused;
    enum { ROUNDS = 4000, ROWS = 21 };
    static const char *const types[] = {"f32", "f64", "bf16", "f16", "i32", "i64", "i8", "bool"};
    static numbers n;
    int ran = 0;
    make_batch(&n, ROWS);
    for (int k = 0; k < ROUNDS; k++) {
        bench b = {.arena = sbp_arena_create(), .diag = sbp_diag_create()};
        sbp_device_options options = {.threads = 1};
        sbp_text text;
        sbp_text_init(&text, b.arena);
        bool wide = mutate_pick(2);
        for (const char *c = typed_text; *c; c++) {
            uint32_t odd = mutate_pick(12); /* few: most of such programs do not verify */
            const char *usual = wide ? "f64" : odd == 9 ? "bf16" : "f32";
            if (*c == '?')
                sbp_text_add(&text, "%s", odd > 1 ? usual : types[mutate_pick(SBP_COUNT(types))]);
            else
                sbp_text_add(&text, "%c", *c);
        }
        b.text = text.data;
        expect_ok(b.diag, sbp_guard(b.arena, b.diag, parse, &b));
        place(b.program);
        if (sbp_program_verify(b.program, b.diag) == SBP_OK) {
            const sbp_column columns[] = {{"tok", SBP_I32, n.tok, ROWS}, {"first", SBP_I32, n.first, ROWS}};
            expect_ok(b.diag, sbp_executor_create(b.diag, &sbp_cpu_device, &options, b.program, &b.executor));
            expect_ok(b.diag, sbp_executor_bind(b.executor, ROWS, 0, columns, 2, b.diag));
            sbp_status status = sbp_executor_run(b.executor, "accumulate", b.diag);
            if (status != SBP_OK)
                fail_msg("status %d: %s\n%s", (int)status, sbp_diag_text(b.diag, SBP_ERROR), b.text);
            ran++;
        }
        close_bench(&b);
    }
    print_message("%d draws of types: %d verified\n", (int)ROUNDS, ran);
    assert_true(ran > ROUNDS / 20);
}

/* ---- views with a width ------------------------------------------------------------------------------ */

enum { WIDE_ROWS = 6, WIDE_COLS = 96, BLOCK = 64, BLOCKS = WIDE_ROWS * WIDE_COLS / BLOCK };

/* y = x + sum of the block that x is in, by a command of an entry and by one of a function, whose formals are
 * seen with the width and get what is seen with others. */
static const char wide_text[] =
    "program wide\ntarget cpu\nsizes t_max 1, s_max 1, chunk 1, head_chunk 1\narena device 0, host 0\n"
    "scalars T, S\nbuffer W param device f32[6, 96]\nbuffer other[2] accum device f32[6, 96]\n"
    "buffer flat accum device f32[1, 576]\nbuffer sums accum device f32[3, 6]\n"
    "kernel @block f32 heads 1 n 64 {\n"
    "  in x : f32 [row elem] length 64\n  out y : f32 [row elem] length 64\n  out s : f32 [row]\n"
    "  %0 = load x\n  %1 = sum[elem] %0\n  %2 = add %0, %1\n  store y, %2\n  store s, %1\n}\n"
    "function @blocks(in x f32[6, 96], out y f32[6, 96], out s f32[3, 3]) {\n"
    "  row @block(x = %x/64, y := %y/64, s := %s/1)\n}\n"
    "entry direct {\n  row @block(x = W/64, y := other@1/64, s := sums/1[0 for 9])\n}\n"
    "entry called {\n  call @blocks(x = W, y := flat/96, s := sums/3[3 for 3])\n}\n";

static void blocks_are_seen_across_rows(void **unused) {
    (void)unused;
    enum { ELEMS = WIDE_ROWS * WIDE_COLS };
    bench b = {.arena = sbp_arena_create(), .diag = sbp_diag_create(), .text = wide_text};
    expect_ok(b.diag, sbp_guard(b.arena, b.diag, parse, &b));
    place(b.program);
    expect_ok(b.diag, sbp_program_verify(b.program, b.diag));
    sbp_device_options options = {.threads = 2};
    expect_ok(b.diag, sbp_executor_create(b.diag, &sbp_cpu_device, &options, b.program, &b.executor));
    double x[ELEMS], y[ELEMS], sums[2 * BLOCKS] = {0};
    for (int k = 0; k < ELEMS; k++)
        x[k] = (float)draw();
    for (int k = 0; k < ELEMS; k++)
        sums[k / BLOCK] += x[k];
    for (int k = 0; k < ELEMS; k++)
        y[k] = x[k] + sums[k / BLOCK];
    memcpy(sums + BLOCKS, sums, BLOCKS * sizeof *sums);
    expect_ok(b.diag, sbp_executor_write(b.executor, buffer(&b, "W"), 0, 0, ELEMS, SBP_F64, x, b.diag));
    expect_ok(b.diag, sbp_executor_bind(b.executor, 1, 0, NULL, 0, b.diag));
    expect_ok(b.diag, sbp_executor_run(b.executor, "direct", b.diag));
    expect_ok(b.diag, sbp_executor_run(b.executor, "called", b.diag));
    expect_close(&b, "other", 1, y, ELEMS, 64);
    expect_close(&b, "flat", 0, y, ELEMS, 64);
    expect_close(&b, "sums", 0, sums, 2 * BLOCKS, 64);
    close_bench(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_are_seen_across_rows),     cmocka_unit_test(results_are_those_of_plain_loops),
        cmocka_unit_test(order_and_threads_do_not_matter), cmocka_unit_test(mutants_do_not_crash_the_device),
        cmocka_unit_test(types_that_verify_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
