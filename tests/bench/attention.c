/* attention.c: whether a device's attention is right at lengths that no test can afford elsewhere. A program,
 * not a test:
 *
 *     bench_attention [cpu|vulkan|cuda] [--index N] [--head-dim D] [--rows N] [--cases N] [--threads N]
 *                     [--save DIR] [--against DIR] [--spoil yes] [--compile only]
 *
 * Each case is bf16 attention of --rows rows in one layout (heads, documents, chunks that begin anywhere),
 * forward and backward, twice: outputs are poisoned before, and both runs must have the same bits. Rows of o,
 * lse and dq, and rows of dk and dv, are compared with loops in double precision, drawn rows and those around
 * each chunk's ends. A JSON line for each case; exit status 1 when one is wrong.
 *
 * --save writes operands and results of each case to DIR/HEAD-CASE.bin (the order of `held`, no header) for
 * other programs to look at; --against compares all results with such a file, that another variant of the
 * kernels wrote (SBP_CUDA_VARIANT): variants round in other places, and are as near to each other as each is
 * to the reference. --spoil: 64 keys on the device are others, so that every case is wrong, and must be found
 * so. --compile only: no device is opened, but all kernels are kept for the next time. */
#include "backends/devices.h"
#include "backends/target.h"
#include "ir/base/machine.h"
#include "tests/bench/bench.h"
#include "tests/tolerance.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_SAMPLES = 32, MOST_THREADS = 64 };

/* How rows are laid out: documents of uneven lengths, of some a third is a prompt that two completions share;
 * chunks of a share of the rows, off by `odd`. */
typedef struct layout {
    const char *name;
    int64_t heads, kv_heads, documents;
    bool prompts;
    int64_t share, odd;
} layout;

static const layout layouts[] = {{"one document, one chunk", 8, 2, 1, false, 1, 0},
                                 {"one document, chunks", 8, 2, 1, false, 3, 5},
                                 {"documents, chunks", 8, 2, 6, false, 3, -1},
                                 {"shared prompts, a group of 7", 7, 1, 5, true, 2, 3},
                                 {"documents, no groups", 3, 3, 3, false, 7, 1}};

/* The operands of a case in the device's arena, and their copies here. */
typedef enum { Q, K, V, DO, O, LSE, DQ, DK, DV, FIRST, SHARED_END, OWN, WORK, HELD } held;
static const char *const held_names[] = {"q", "k", "v", "do", "o", "lse", "dq", "dk", "dv"};

typedef struct sample { /* a row of a head */
    int64_t row, head;
} sample;

typedef struct attention_case {
    const layout *layout;
    int64_t d, rows, chunk;
    double scale;
    sbp_span spans[HELD];
    void *data[HELD];
    uint64_t hash[2];
    sample queries[MOST_SAMPLES], keys[MOST_SAMPLES];
    int32_t query_count, key_count;
} attention_case;

typedef struct checker {
    bench b;
    int64_t d, rows;
    int32_t cases, threads;
    const char *save, *against;
    bool spoil; /* the device gets other keys than the reference: it must show */
    bool failed;
} checker;

/* ---- operands ---------------------------------------------------------------------------------------- */

static uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* A number drawn by its place, with mean 0 and deviation 1. */
static double number(held what, int64_t index) {
    return 3.4641 * ((double)(mix((uint64_t)index * HELD + (uint64_t)what) >> 40) * 0x1p-24 - 0.5);
}

static int64_t elems_of(const sbp_span *s) {
    return s->rows * s->cols;
}

static int64_t bytes_of(const sbp_span *s) {
    return elems_of(s) * sbp_dtype_bytes(s->dtype);
}

static double at(const attention_case *c, held what, int64_t row, int64_t column) {
    return sbp_element_get(c->data[what], c->spans[what].dtype, row * c->spans[what].cols + column);
}

static void place(checker *k, attention_case *c, held what, sbp_dtype dtype, int64_t rows, int64_t cols) {
    c->spans[what] = bench_matrix(&k->b, dtype, rows, cols);
    c->data[what] = calloc((size_t)(rows * cols + 1), (size_t)sbp_dtype_bytes(dtype));
    if (!c->data[what])
        exit(SBP_MACHINE);
}

static void fill_columns(attention_case *c) {
    int32_t *first = c->data[FIRST], *shared_end = c->data[SHARED_END], *own = c->data[OWN];
    int64_t n = c->layout->documents;
    for (int64_t i = 0, begin = 0, end; i < n; i++, begin = end) {
        end = i + 1 == n ? c->rows : c->rows * (i + 1) * (i + 2) / (n * (n + 1)) + i % 3;
        int64_t prompt = c->layout->prompts ? (end - begin) / 3 : 0, half = (begin + prompt + end) / 2;
        for (int64_t r = begin; r < end; r++) {
            bool answers = prompt > 0 && r >= begin + prompt;
            first[r] = (int32_t)begin;
            shared_end[r] = (int32_t)(answers ? begin + prompt : begin);
            own[r] = (int32_t)(!answers ? begin : r < half ? begin + prompt : half);
        }
    }
}

static void make_case(checker *k, const layout *l, attention_case *c) {
    const sbp_target *target = sbp_target_find(k->b.class->name);
    sbp_target_info info = {0};
    int64_t chunk = k->rows / l->share + l->odd;
    *c = (attention_case){.layout = l, .d = k->d, .rows = k->rows, .chunk = chunk < 1 ? 1 : chunk};
    c->scale = 1 / sqrt((double)k->d);
    if (target)
        bench_check(&k->b, target->describe(NULL, k->b.diag, &info));
    int64_t queries = l->heads * k->d, keys = l->kv_heads * k->d;
    int64_t work_cols = sbp_target_work_columns(&info, l->heads, k->d);
    bench_begin(&k->b);
    for (held w = Q; w <= DQ; w++)
        place(k, c, w, w == LSE ? SBP_F32 : SBP_BF16, k->rows,
              w == LSE           ? l->heads
              : w == K || w == V ? keys
                                 : queries);
    place(k, c, DK, SBP_F32, k->rows, keys);
    place(k, c, DV, SBP_F32, k->rows, keys);
    for (held w = FIRST; w <= OWN; w++)
        place(k, c, w, SBP_I32, k->rows, 1);
    c->spans[WORK] = work_cols > 0
                         ? bench_matrix(&k->b, SBP_F32, c->chunk + info.attention_more_rows, work_cols)
                         : bench_absent();
    if (!k->b.device)
        return;
    for (held w = Q; w <= DO; w++)
        for (int64_t i = 0; i < elems_of(&c->spans[w]); i++) /* peaked distributions */
            sbp_element_set(c->data[w], SBP_BF16, i, (w == Q ? 3 : 1) * number(w, i));
    fill_columns(c);
}

static void free_case(attention_case *c) {
    for (held w = Q; w < WORK; w++)
        free(c->data[w]);
}

/* ---- running ------------------------------------------------------------------------------------------ */

static sbp_span part(const attention_case *c, held what, int64_t from, int64_t end) {
    sbp_span span = c->spans[what];
    span.first_row = from;
    span.rows = end - from;
    span.offset += from * span.stride * sbp_dtype_bytes(span.dtype);
    return span;
}

static void submit_chunk(checker *k, const attention_case *c, bool backward, int64_t row, int64_t end) {
    const int32_t *first = c->data[FIRST];
    int64_t lo = first[row];
    for (int64_t r = row; r < end; r++)
        lo = first[r] < lo ? first[r] : lo;
    sbp_command command = {.kind = backward ? SBP_CMD_ATTN_BWD : SBP_CMD_ATTN_FWD, .flushes = -1};
    command.u.attention = (sbp_attention_attrs){.heads = c->layout->heads,
                                                .kv_heads = c->layout->kv_heads,
                                                .d_qk = c->d,
                                                .d_v = c->d,
                                                .scale = c->scale};
    static const held of_queries[] = {Q, O, LSE, DO, DQ, FIRST, SHARED_END, OWN};
    sbp_span s[HELD];
    for (int i = 0; i < SBP_COUNT(of_queries); i++)
        s[of_queries[i]] = part(c, of_queries[i], row, end);
    s[K] = part(c, K, lo, end);
    s[V] = part(c, V, lo, end);
    s[DK] = part(c, DK, lo, end);
    s[DV] = part(c, DV, lo, end);
    if (!backward) {
        sbp_span all[] = {s[O], s[LSE], s[Q], s[K], s[V], s[FIRST], s[SHARED_END], s[OWN], bench_absent()};
        bench_submit(&k->b, &(sbp_dispatch){.command = &command, .spans = all, .span_count = SBP_COUNT(all)});
    } else {
        sbp_span all[] = {s[DQ],  s[DK], s[DV],    s[Q],          s[K],   s[V],          s[O],
                          s[LSE], s[DO], s[FIRST], s[SHARED_END], s[OWN], c->spans[WORK]};
        bench_submit(&k->b, &(sbp_dispatch){.command = &command, .spans = all, .span_count = SBP_COUNT(all)});
    }
    bench_fence(&k->b);
}

/* Forward and backward of all chunks, the last first as a backward pass does; what they write held NaN, sums
 * held 0. Seconds of both. */
static void run_case(checker *k, attention_case *c, double seconds[2]) {
    bench *b = &k->b;
    for (held w = Q; w < WORK && b->device; w++) {
        if (w >= O && w <= DV)
            memset(c->data[w], w >= DK ? 0 : 0xff, (size_t)bytes_of(&c->spans[w]));
        bench_check(b, b->class->write(b->device, SBP_DEVICE, c->spans[w].offset, c->data[w],
                                       bytes_of(&c->spans[w]), b->diag));
    }
    if (k->spoil && b->device)
        bench_check(b, b->class->write(b->device, SBP_DEVICE, c->spans[K].offset, c->data[V],
                                       bytes_of(&c->spans[V]) * (c->rows < 64 ? c->rows : 64) / c->rows,
                                       b->diag));
    double begun = bench_now(b);
    for (int64_t row = 0; row < c->rows; row += c->chunk)
        submit_chunk(k, c, false, row, row + c->chunk < c->rows ? row + c->chunk : c->rows);
    bench_wait(b);
    seconds[0] = bench_now(b) - begun;
    for (int64_t row = (c->rows - 1) / c->chunk * c->chunk; row >= 0; row -= c->chunk)
        submit_chunk(k, c, true, row, row + c->chunk < c->rows ? row + c->chunk : c->rows);
    bench_wait(b);
    seconds[1] = bench_now(b) - begun - seconds[0];
    for (held w = O; w <= DV && b->device; w++)
        bench_check(b, b->class->read(b->device, SBP_DEVICE, c->spans[w].offset, c->data[w],
                                      bytes_of(&c->spans[w]), b->diag));
}

static uint64_t hash_of(const attention_case *c) {
    uint64_t hash = 0;
    for (held w = O; w <= DV; w++)
        hash = sbp_hash_bytes(c->data[w], (size_t)bytes_of(&c->spans[w]), hash);
    return hash;
}

/* ---- the reference ------------------------------------------------------------------------------------ */

static bool sees(const attention_case *c, int64_t row, int64_t key) {
    const int32_t *first = c->data[FIRST], *shared_end = c->data[SHARED_END], *own = c->data[OWN];
    return (key >= own[row] && key <= row) || (key >= first[row] && key < shared_end[row]);
}

/* Sums of squares of what was compared, by operand; errors are of rows. */
typedef struct errors {
    double error[HELD], norm[HELD], worst[HELD];
    int64_t rows[HELD];
} errors;

static void compare_row(const attention_case *c, errors *e, held what, int64_t row, int64_t column,
                        int64_t count, const double *expected) {
    double error = 0, norm = 0;
    for (int64_t i = 0; i < count; i++) {
        double found = at(c, what, row, column + i), off = found - expected[i];
        error += isfinite(found) ? off * off : INFINITY;
        norm += expected[i] * expected[i];
    }
    e->error[what] += error;
    e->norm[what] += norm;
    e->worst[what] = fmax(e->worst[what], error);
    e->rows[what]++;
}

static double dot(const attention_case *c, held a, int64_t row_a, int64_t head_a, held b, int64_t row_b,
                  int64_t head_b) {
    const uint16_t *x = (const uint16_t *)c->data[a] + row_a * c->spans[a].cols + head_a * c->d;
    const uint16_t *y = (const uint16_t *)c->data[b] + row_b * c->spans[b].cols + head_b * c->d;
    double sum = 0;
    for (int64_t i = 0; i < c->d; i++)
        sum += (double)sbp_f32_from_bf16(x[i]) * (double)sbp_f32_from_bf16(y[i]);
    return sum;
}

static void add_row(const attention_case *c, double *sum, double factor, held what, int64_t row,
                    int64_t head) {
    const uint16_t *x = (const uint16_t *)c->data[what] + row * c->spans[what].cols + head * c->d;
    for (int64_t i = 0; i < c->d; i++)
        sum[i] += factor * (double)sbp_f32_from_bf16(x[i]);
}

/* o, lse and dq of a query, from q, k, v and do alone but for delta, which is of the o that is there. */
static void check_query(const attention_case *c, sample s, double *scratch, errors *e) {
    double *p = scratch, *o = p + c->rows, *dq = o + c->d, largest = -INFINITY, sum = 0;
    int64_t kv = s.head / (c->layout->heads / c->layout->kv_heads);
    memset(o, 0, (size_t)(2 * c->d) * sizeof *o);
    for (int64_t j = 0; j <= s.row; j++)
        if (sees(c, s.row, j))
            largest = fmax(largest, p[j] = c->scale * dot(c, Q, s.row, s.head, K, j, kv));
    for (int64_t j = 0; j <= s.row; j++)
        sum += p[j] = sees(c, s.row, j) ? exp(p[j] - largest) : 0;
    double lse = largest + log(sum), delta = dot(c, DO, s.row, s.head, O, s.row, s.head);
    for (int64_t j = 0; j <= s.row; j++)
        if ((p[j] /= sum) > 0) {
            add_row(c, o, p[j], V, j, kv);
            add_row(c, dq, c->scale * p[j] * (dot(c, DO, s.row, s.head, V, j, kv) - delta), K, j, kv);
        }
    compare_row(c, e, O, s.row, s.head * c->d, c->d, o);
    compare_row(c, e, LSE, s.row, s.head, 1, &lse);
    compare_row(c, e, DQ, s.row, s.head * c->d, c->d, dq);
}

/* dk and dv of a key, over all queries of its group, whose lse and o are taken as they are there. */
static void check_key(const attention_case *c, sample s, double *scratch, errors *e) {
    double *dk = scratch, *dv = dk + c->d;
    int64_t group = c->layout->heads / c->layout->kv_heads;
    memset(dk, 0, (size_t)(2 * c->d) * sizeof *dk);
    for (int64_t r = s.row; r < c->rows; r++)
        for (int64_t h = s.head * group; h < (s.head + 1) * group && sees(c, r, s.row); h++) {
            double p = exp(c->scale * dot(c, Q, r, h, K, s.row, s.head) - at(c, LSE, r, h));
            double ds = p * (dot(c, DO, r, h, V, s.row, s.head) - dot(c, DO, r, h, O, r, h));
            add_row(c, dv, p, DO, r, h);
            add_row(c, dk, c->scale * ds, Q, r, h);
        }
    compare_row(c, e, DK, s.row, s.head * c->d, c->d, dk);
    compare_row(c, e, DV, s.row, s.head * c->d, c->d, dv);
}

/* Rows around the ends of chunks and tiles, then drawn ones, each of another head. */
static int32_t choose(const attention_case *c, int32_t count, int64_t heads, uint64_t seed, sample *out) {
    const int64_t edges[] = {0, c->chunk - 1, c->chunk, c->rows - 1, c->rows / 128 * 128 - 1, c->rows / 2};
    for (int32_t i = 0; i < count; i++) {
        int64_t row = i < SBP_COUNT(edges) ? edges[i] : (int64_t)(mix(seed + (uint64_t)i) >> 1) % c->rows;
        out[i] = (sample){row < 0 ? 0 : row < c->rows ? row : c->rows - 1, i % heads};
    }
    return count;
}

typedef struct worker {
    const attention_case *c;
    int32_t first, step;
    errors e;
    bool failed;
} worker;

static void *work_on(void *user) {
    worker *w = user;
    const attention_case *c = w->c;
    double *scratch = malloc((size_t)(c->rows + 2 * c->d) * sizeof *scratch);
    w->failed = !scratch;
    for (int32_t i = w->first; scratch && i < c->query_count + c->key_count; i += w->step)
        if (i < c->query_count)
            check_query(c, c->queries[i], scratch, &w->e);
        else
            check_key(c, c->keys[i - c->query_count], scratch, &w->e);
    free(scratch);
    return NULL;
}

static errors check_samples(const checker *k, attention_case *c) {
    worker workers[MOST_THREADS] = {0};
    pthread_t threads[MOST_THREADS];
    bool running[MOST_THREADS] = {false};
    errors e = {0};
    c->query_count = choose(c, MOST_SAMPLES, c->layout->heads, 1, c->queries);
    c->key_count = choose(c, MOST_SAMPLES / 2, c->layout->kv_heads, 2, c->keys);
    for (int32_t i = k->threads - 1; i >= 0; i--) {
        workers[i] = (worker){.c = c, .first = i, .step = k->threads};
        running[i] = i > 0 && pthread_create(&threads[i], NULL, work_on, &workers[i]) == 0;
        if (!running[i])
            work_on(&workers[i]);
    }
    for (int32_t i = 0; i < k->threads; i++) {
        if (running[i])
            pthread_join(threads[i], NULL);
        if (workers[i].failed)
            exit(SBP_MACHINE);
        for (held w = O; w <= DV; w++) {
            e.error[w] += workers[i].e.error[w];
            e.norm[w] += workers[i].e.norm[w];
            e.rows[w] += workers[i].e.rows[w];
            e.worst[w] = fmax(e.worst[w], workers[i].e.worst[w]);
        }
    }
    return e;
}

/* ---- figures ------------------------------------------------------------------------------------------ */

/* Prints errors of all that was compared, and of the worst row, relative to a row of middling size. */
static bool print_errors(const errors *e) {
    bool right = true;
    printf(", \"errors\": {");
    for (held w = O; w <= DV; w++) {
        double all = sqrt(e->error[w] / fmax(e->norm[w], 1e-30));
        double row = sqrt(e->worst[w] / fmax(e->norm[w] / (double)e->rows[w], 1e-30));
        bool good = w == LSE ? row <= SBP_TOLERANCE_F32
                             : all <= SBP_TOLERANCE_BF16_LONG && row <= SBP_TOLERANCE_BF16_LONG_ROW;
        right = right && good;
        /* no JSON has a number for what is not finite */
        printf("%s\"%s\": %.3g, \"%s_worst\": %.3g", w > O ? ", " : "", held_names[w],
               isfinite(all) ? all : 1e30, held_names[w], isfinite(row) ? row : 1e30);
    }
    printf("}");
    return right;
}

static FILE *open_file(const checker *k, const attention_case *c, const char *folder, const char *mode) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%lld-%d.bin", folder, (long long)k->d, (int)(c->layout - layouts));
    FILE *file = fopen(path, mode);
    if (!file) {
        fprintf(stderr, "bench_attention: %s cannot be opened\n", path);
        exit(SBP_IO);
    }
    return file;
}

static void save_case(const checker *k, const attention_case *c) {
    FILE *file = open_file(k, c, k->save, "wb");
    for (held w = Q; w <= OWN; w++)
        if (fwrite(c->data[w], 1, (size_t)bytes_of(&c->spans[w]), file) != (size_t)bytes_of(&c->spans[w])) {
            fprintf(stderr, "bench_attention: %s cannot be written\n", k->save);
            exit(SBP_IO);
        }
    if (fclose(file) != 0)
        exit(SBP_IO);
}

/* The largest difference of any result from that of another variant, relative. */
static bool compare_saved(const checker *k, const attention_case *c) {
    FILE *file = open_file(k, c, k->against, "rb");
    double largest = 0;
    for (held w = Q; w <= DV; w++) {
        int64_t bytes = bytes_of(&c->spans[w]);
        void *other = malloc((size_t)bytes);
        double error = 0, norm = 0;
        if (!other || fread(other, 1, (size_t)bytes, file) != (size_t)bytes) {
            fprintf(stderr, "bench_attention: %s is of other sizes\n", k->against);
            exit(SBP_INPUT);
        }
        for (int64_t i = 0; w >= O && i < elems_of(&c->spans[w]); i++) {
            double x = sbp_element_get(c->data[w], c->spans[w].dtype, i);
            double y = sbp_element_get(other, c->spans[w].dtype, i);
            error += isfinite(x) && isfinite(y) ? (x - y) * (x - y) : INFINITY;
            norm += y * y;
        }
        largest = fmax(largest, sqrt(error / fmax(norm, 1e-30)));
        free(other);
    }
    (void)fclose(file);
    printf(", \"from_other_variant\": %.3g", isfinite(largest) ? largest : 1e30);
    return largest <= SBP_TOLERANCE_BF16_LONG;
}

static void check_case(checker *k, const layout *l) {
    static attention_case c;
    double seconds[2];
    make_case(k, l, &c);
    for (int run = 0; run < 2; run++) {
        run_case(k, &c, seconds);
        c.hash[run] = k->b.device ? hash_of(&c) : 0;
    }
    if (k->b.device) {
        const char *variant = getenv("SBP_CUDA_VARIANT");
        errors e = check_samples(k, &c);
        bool same = c.hash[0] == c.hash[1];
        printf("{\"attention\": \"%s\", \"variant\": \"%s\", \"head_dim\": %lld, \"rows\": %lld, \"chunk\": "
               "%lld, "
               "\"heads\": %lld, \"kv_heads\": %lld, \"forward_ms\": %.2f, \"backward_ms\": %.2f, "
               "\"same_bits\": %s",
               l->name, variant ? variant : "", (long long)c.d, (long long)c.rows, (long long)c.chunk,
               (long long)l->heads, (long long)l->kv_heads, seconds[0] * 1e3, seconds[1] * 1e3,
               same ? "true" : "false");
        bool right = print_errors(&e) && same;
        if (k->against)
            right = compare_saved(k, &c) && right;
        printf(", \"right\": %s}\n", right ? "true" : "false");
        fflush(stdout);
        k->failed = k->failed || !right;
        if (k->save)
            save_case(k, &c);
    }
    free_case(&c);
}

static void check_cases(checker *k) {
    for (int32_t i = 0; i < k->cases; i++)
        check_case(k, &layouts[i]);
}

static int usage(void) {
    fputs(
        "usage: bench_attention [cpu|vulkan|cuda] [--index N] [--head-dim D] [--rows N] [--cases N]\n"
        "                       [--threads N] [--save DIR] [--against DIR] [--spoil yes] [--compile only]\n",
        stderr);
    return SBP_USAGE;
}

static int64_t whole(const char *text, int64_t least, int64_t most) {
    long long value = strtoll(text, NULL, 10);
    return value < least ? least : value > most ? most : value;
}

int main(int argc, char **argv) {
    static checker k = {.d = 128, .rows = 8192, .cases = SBP_COUNT(layouts)};
    sbp_device_options options = {.threads = 2};
    const char *device = "cpu";
    int i = 1;
    bool compile_only = false;
    k.threads = sbp_machine_cores() < MOST_THREADS ? sbp_machine_cores() : MOST_THREADS;
    if (argc > 1 && argv[1][0] != '-')
        device = argv[i++];
    for (; i < argc; i += 2) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (!value)
            return usage();
        if (strcmp(argv[i], "--index") == 0)
            options.index = (int32_t)whole(value, 0, 1024);
        else if (strcmp(argv[i], "--head-dim") == 0)
            k.d = whole(value, 1, 1024);
        else if (strcmp(argv[i], "--rows") == 0)
            k.rows = whole(value, 16, 1 << 24);
        else if (strcmp(argv[i], "--cases") == 0)
            k.cases = (int32_t)whole(value, 1, SBP_COUNT(layouts));
        else if (strcmp(argv[i], "--threads") == 0)
            k.threads = (int32_t)whole(value, 1, MOST_THREADS);
        else if (strcmp(argv[i], "--save") == 0)
            k.save = value;
        else if (strcmp(argv[i], "--against") == 0)
            k.against = value;
        else if (strcmp(argv[i], "--compile") == 0)
            compile_only = strcmp(value, "only") == 0;
        else if (strcmp(argv[i], "--spoil") == 0)
            k.spoil = true;
        else
            return usage();
    }
    const sbp_device_class *class = sbp_device_find(device);
    if (!class)
        return usage();
    bench_init(&k.b, class);
    k.b.compile_only = compile_only;
    check_cases(&k); /* takes note of memory */
    bench_open(&k.b, &options);
    check_cases(&k);
    bench_close(&k.b);
    return k.failed ? SBP_INPUT : SBP_OK;
}
