/* test_attention_place.c: on the CPU, o and lse of a row have the bits that they have when its document is
 * alone in a batch: whichever documents stand before it, wherever chunks begin, however many rows are run at
 * once, whether its prompt is shared. In every instruction set that the machine has.
 *
 * Texts are prompts with answers; their keys, values and queries are chosen at random by text and position.
 * Packed, a prompt stands once and its answers follow (own, shared_end, first: ir/program/commands/
 * attn_fwd.c), between texts whose keys and values are NaN; alone, each answer stands behind its prompt. */
#include "backends/cpu/cpu_device.h"
#include "tests/common/testing.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_TEXTS = 6, MOST_ROWS = 6000, ARENA_BYTES = 64 << 20 };

/* A prompt and the rows of one answer; texts with the number of another have its prompt. */
typedef enum { ALONE, SHARES, NAN_KEYS } kind; /* SHARES: the prompt of the text before */
typedef struct document {
    int64_t prompt, answer;
    kind is;
} document;

/* A row of a batch. */
typedef struct row {
    int32_t text, position; /* a row of a shared prompt is of the first text that has it */
    int32_t first, shared_end, own;
} row;

typedef struct batch {
    row rows[MOST_ROWS];
    int64_t count, chunk, pad; /* pad: columns between rows of k and v */
    char *o, *lse;             /* [count, heads d_v], [count, heads] */
} batch;

typedef struct setting {
    sbp_attention_attrs attrs;
    sbp_dtype dtype;
} setting;

typedef struct place {
    testing t;
    sbp_device *device;
    const setting *s;
    const document *texts;
    int text_count;
    uint64_t seed;
} place;

static place open_place(void) {
    place p = {.t = testing_open(1)};
    sbp_program *program = sbp_program_create(p.t.arena, "place");
    program->arena_bytes[SBP_DEVICE] = ARENA_BYTES;
    sbp_device_options options = {.threads = 2, .offload_dir = "."};
    testing_check(&p.t, sbp_cpu_device.create(&options, p.t.diag, &p.device));
    testing_check(&p.t, sbp_cpu_device.load(p.device, program, p.t.diag));
    return p;
}

static void close_place(place *p) {
    sbp_cpu_device.destroy(p->device);
    testing_close(&p->t);
}

/* ---- batches ----------------------------------------------------------------------------------------- */

static void add_rows(batch *b, int32_t text, int64_t from, int64_t to, row like) {
    for (int64_t i = from; i < to; i++) {
        assert_true(b->count < MOST_ROWS);
        like.text = text;
        like.position = (int32_t)i;
        b->rows[b->count++] = like;
    }
}

static void add_alone(batch *b, const document *texts, int32_t i) {
    int32_t at = (int32_t)b->count;
    add_rows(b, i, 0, texts[i].prompt + texts[i].answer, (row){.first = at, .shared_end = at, .own = at});
}

static void add_packed(batch *b, const document *texts, int count) {
    for (int32_t i = 0, at = 0; i < count; i++) {
        bool shared = texts[i].is == SHARES || (i + 1 < count && texts[i + 1].is == SHARES);
        if (!shared) {
            add_alone(b, texts, i);
            continue;
        }
        if (texts[i].is != SHARES) {
            at = (int32_t)b->count;
            add_rows(b, i, 0, texts[i].prompt, (row){.first = at, .shared_end = at, .own = at});
        }
        int32_t end = at + (int32_t)texts[i].prompt;
        add_rows(b, i, texts[i].prompt, texts[i].prompt + texts[i].answer,
                 (row){.first = at, .shared_end = end, .own = (int32_t)b->count});
    }
}

/* The text whose numbers a row has: those of a shared prompt are of the first text that has it. */
static int32_t source_of(const document *texts, const row *r) {
    int32_t i = r->text;
    while (texts[i].is == SHARES && r->position < texts[i].prompt)
        i--;
    return i;
}

/* [rows, cols], the next row `stride` elements further. */
static void fill(const place *p, const batch *b, char *to, uint64_t what, int64_t cols, int64_t stride) {
    for (int64_t i = 0; i < b->count; i++) {
        int32_t text = source_of(p->texts, &b->rows[i]);
        sbp_rng rng = {.state =
                           p->seed + 4 * what + 64 * (uint64_t)text + 4096 * (uint64_t)b->rows[i].position};
        for (int64_t c = 0; c < cols; c++) {
            double x =
                (what == 0 ? 6 : 2) * (double)sbp_rng_below(&rng, 1 << 20) * 0x1p-20 - (what == 0 ? 3 : 1);
            sbp_element_set(to, p->s->dtype, i * stride + c,
                            what && p->texts[text].is == NAN_KEYS ? (double)NAN : x);
        }
    }
}

static sbp_span span_at(int64_t *used, sbp_dtype dtype, int64_t rows, int64_t cols, int64_t stride) {
    sbp_span span = {.space = SBP_DEVICE, .dtype = dtype, .offset = *used, .rows = rows, .cols = cols};
    span.stride = stride;
    *used += sbp_round_up(rows * stride * sbp_dtype_bytes(dtype), 64);
    assert_true(*used <= ARENA_BYTES);
    return span;
}

static void write_span(place *p, const sbp_span *span, const void *data) {
    testing_check(&p->t,
                  sbp_cpu_device.write(p->device, SBP_DEVICE, span->offset, data,
                                       span->rows * span->stride * sbp_dtype_bytes(span->dtype), p->t.diag));
}

static char *read_span(place *p, const sbp_span *span) {
    int64_t bytes = span->rows * span->stride * sbp_dtype_bytes(span->dtype);
    char *data = malloc((size_t)bytes + 1);
    assert_non_null(data);
    testing_check(&p->t, sbp_cpu_device.read(p->device, SBP_DEVICE, span->offset, data, bytes, p->t.diag));
    return data;
}

static sbp_span cut(sbp_span span, int64_t from, int64_t to) {
    span.first_row = from;
    span.offset += from * span.stride * sbp_dtype_bytes(span.dtype);
    span.rows = to - from;
    return span;
}

/* The first row that these rows see: as the executor cuts keys. */
static int64_t first_seen(const batch *b, int64_t from, int64_t to, int64_t window) {
    int64_t least = to;
    for (int64_t r = from; r < to; r++) {
        const row *x = &b->rows[r];
        int64_t own = x->own, shared = x->first;
        if (window > 0) {
            own = sbp_max_i64(own, r - window + 1);
            shared = sbp_max_i64(shared, x->shared_end + r - x->own - window + 1);
        }
        least = sbp_min_i64(least, shared < x->shared_end ? shared : own);
    }
    return least;
}

/* Attention of rows from .. of the batch on, chunk after chunk. */
static void run_batch(place *p, batch *b, int64_t from) {
    const sbp_attention_attrs *a = &p->s->attrs;
    sbp_dtype dtype = p->s->dtype, real = dtype == SBP_F64 ? SBP_F64 : SBP_F32;
    int64_t used = 0, n = b->count, queries = a->heads * a->d_qk;
    sbp_span q = span_at(&used, dtype, n, queries, queries);
    sbp_span k = span_at(&used, dtype, n, a->kv_heads * a->d_qk, a->kv_heads * a->d_qk + b->pad);
    sbp_span v = span_at(&used, dtype, n, a->kv_heads * a->d_v, a->kv_heads * a->d_v + b->pad);
    sbp_span o = span_at(&used, real, n, a->heads * a->d_v, a->heads * a->d_v);
    sbp_span lse = span_at(&used, real, n, a->heads, a->heads), columns[3];
    char *data = calloc((size_t)used + 1, 1);
    assert_non_null(data);
    const sbp_span *inputs[] = {&q, &k, &v};
    for (uint64_t what = 0; what < 3; what++) {
        fill(p, b, data, what, inputs[what]->cols, inputs[what]->stride);
        write_span(p, inputs[what], data);
    }
    for (int c = 0; c < 3; c++) {
        int32_t *to = (int32_t *)(void *)data;
        columns[c] = span_at(&used, SBP_I32, n, 1, 1);
        for (int64_t i = 0; i < n; i++)
            to[i] = c == 0 ? b->rows[i].first : c == 1 ? b->rows[i].shared_end : b->rows[i].own;
        write_span(p, &columns[c], to);
    }
    free(data);
    sbp_command command = {.kind = SBP_CMD_ATTN_FWD, .flushes = -1};
    command.u.attention = *a;
    for (int64_t at = from, to; at < n; at = to) {
        to = sbp_min_i64(at + b->chunk, n);
        int64_t lo = first_seen(b, at, to, a->window);
        sbp_span spans[] = {cut(o, at, to),          cut(lse, at, to),        cut(q, at, to),
                            cut(k, lo, to),          cut(v, lo, to),          cut(columns[0], at, to),
                            cut(columns[1], at, to), cut(columns[2], at, to), {.space = SBP_SPACE_COUNT}};
        sbp_dispatch dispatch = {.command = &command, .spans = spans, .span_count = SBP_COUNT(spans)};
        testing_check(&p->t, sbp_cpu_device.submit(p->device, &dispatch, p->t.diag));
    }
    testing_check(&p->t, sbp_cpu_device.wait(p->device, p->t.diag));
    b->o = read_span(p, &o);
    b->lse = read_span(p, &lse);
}

static void free_batch(batch *b) {
    free(b->o);
    free(b->lse);
    *b = (batch){0};
}

/* Rows from .. of x, text by text and position by position, against those of `alone`, of one text. */
static int64_t compare(const place *p, const char *how, const batch *x, int64_t from, const batch *alone,
                       int32_t text) {
    const sbp_attention_attrs *a = &p->s->attrs;
    int64_t unit = p->s->dtype == SBP_F64 ? 8 : 4, compared = 0;
    int64_t o_bytes = a->heads * a->d_v * unit, lse_bytes = a->heads * unit;
    for (int64_t i = from; i < x->count; i++) {
        const row *r = &x->rows[i];
        if (r->text != text)
            continue;
        compared++;
        bool same =
            memcmp(x->o + i * o_bytes, alone->o + r->position * o_bytes, (size_t)o_bytes) == 0 &&
            memcmp(x->lse + i * lse_bytes, alone->lse + r->position * lse_bytes, (size_t)lse_bytes) == 0;
        if (!same)
            fail_msg("%s, heads %lld of %lld, d %lld and %lld, window %lld, softcap %g, %s: row %lld of text "
                     "%d (%lld + %lld) has other bits, in row %lld of the batch, by chunks of %lld",
                     how, (long long)a->heads, (long long)a->kv_heads, (long long)a->d_qk, (long long)a->d_v,
                     (long long)a->window, a->softcap, sbp_dtype_name(p->s->dtype), (long long)r->position,
                     text, (long long)p->texts[text].prompt, (long long)p->texts[text].answer, (long long)i,
                     (long long)x->chunk);
    }
    return compared;
}

/* Texts packed and in chunks, and the last rows one by one, against each alone in one chunk. */
static void check_texts(place *p, const char *isa) {
    static batch packed, rows, alone;
    sbp_rng rng = {.state = p->seed};
    packed = (batch){.chunk = 1 + sbp_rng_below(&rng, 1500), .pad = sbp_rng_below(&rng, 4)};
    add_packed(&packed, p->texts, p->text_count);
    run_batch(p, &packed, 0);
    for (int32_t i = 0; i < p->text_count; i++) {
        if (p->texts[i].is == NAN_KEYS)
            continue;
        alone = (batch){.chunk = MOST_ROWS};
        add_alone(&alone, p->texts, i);
        run_batch(p, &alone, 0);
        for (int64_t c = 0; c < alone.count * p->s->attrs.heads * p->s->attrs.d_v; c++)
            assert_true(isfinite(sbp_element_get(alone.o, p->s->dtype == SBP_F64 ? SBP_F64 : SBP_F32, c)));
        assert_true(compare(p, isa, &packed, 0, &alone, i) >= p->texts[i].answer);
        rows = (batch){.chunk = 1, .pad = 2};
        add_alone(&rows, p->texts, i);
        int64_t from = sbp_max_i64(0, rows.count - 40);
        run_batch(p, &rows, from);
        assert_true(compare(p, isa, &rows, from, &alone, i) > 0);
        free_batch(&alone);
        free_batch(&rows);
    }
    free_batch(&packed);
}

/* ---- cases ------------------------------------------------------------------------------------------- */

/* Short and long texts, prompts that end within and at tiles of 512 keys, with one answer, several, none. */
static const document texts[][MOST_TEXTS] = {
    {{0, 37, NAN_KEYS},
     {0, 700, ALONE},
     {0, 1, ALONE},
     {0, 11, NAN_KEYS},
     {600, 80, ALONE},
     {600, 130, SHARES}},
    {{0, 13, NAN_KEYS},
     {33, 540, ALONE},
     {33, 7, SHARES},
     {33, 1, SHARES},
     {0, 9, NAN_KEYS},
     {0, 1300, ALONE}},
    {{0, 1, NAN_KEYS},
     {511, 30, ALONE},
     {511, 3, SHARES},
     {512, 20, ALONE},
     {512, 521, SHARES},
     {0, 5, ALONE}},
    {{0, 601, NAN_KEYS},
     {0, 200, ALONE},
     {1037, 20, ALONE},
     {1037, 33, SHARES},
     {1, 2, ALONE},
     {1, 3, SHARES}},
};

static const setting settings[] = {
    {{.heads = 2, .kv_heads = 1, .d_qk = 8, .d_v = 8, .scale = 0.4}, SBP_F32},
    {{.heads = 2, .kv_heads = 2, .d_qk = 9, .d_v = 5, .scale = 0.4, .window = 100}, SBP_F32},
    {{.heads = 4, .kv_heads = 1, .d_qk = 8, .d_v = 16, .scale = 0.3, .window = 650, .softcap = 3}, SBP_F32},
    {{.heads = 1, .kv_heads = 1, .d_qk = 192, .d_v = 256, .scale = 0.07}, SBP_F32}, /* tiles of 256 keys */
    {{.heads = 2, .kv_heads = 1, .d_qk = 8, .d_v = 7, .scale = 0.4}, SBP_F64},
    {{.heads = 3, .kv_heads = 1, .d_qk = 6, .d_v = 8, .scale = 0.4, .window = 37, .softcap = 4}, SBP_F64},
    {{.heads = 49, .kv_heads = 1, .d_qk = 2, .d_v = 2, .scale = 0.7, .window = 520},
     SBP_F64}, /* a row a block */
    {{.heads = 2, .kv_heads = 1, .d_qk = 8, .d_v = 8, .scale = 0.4}, SBP_BF16},
    {{.heads = 2, .kv_heads = 2, .d_qk = 7, .d_v = 9, .scale = -0.4, .window = 101}, SBP_BF16},
    {{.heads = 3, .kv_heads = 1, .d_qk = 8, .d_v = 8, .scale = 0.3, .window = 650, .softcap = 3}, SBP_BF16},
    {{.heads = 1, .kv_heads = 1, .d_qk = 320, .d_v = 40, .scale = 0.05, .window = 230},
     SBP_BF16}, /* of 192 */
    {{.heads = 2, .kv_heads = 1, .d_qk = 8, .d_v = 8, .scale = 0.4}, SBP_F16},
};

static void test_bits_do_not_depend_on_the_place(void **state) {
    static const char *const sets[] = {"base", "v3", "v4", "v4_bf16"};
    const char *isa = getenv("SBP_CPU_ISA");
    char *kept = isa ? strdup(isa) : NULL;
    (void)state;
    for (int i = 0; i < SBP_COUNT(sets); i++) {
        setenv("SBP_CPU_ISA", sets[i], 1);
        place p = open_place();
        for (int s = 0; s < SBP_COUNT(settings); s++)
            for (int t = 0; t < SBP_COUNT(texts); t++) {
                if (!testing_sweep((i + s + t) % 2 == 0, 1)) /* half of them on a short run */
                    continue;
                p.s = &settings[s];
                p.texts = texts[t];
                p.text_count = MOST_TEXTS;
                p.seed = (uint64_t)(1000 * i + 10 * s + t + 1) << 20;
                check_texts(&p, sets[i]);
            }
        close_place(&p);
    }
    unsetenv("SBP_CPU_ISA");
    if (kept)
        setenv("SBP_CPU_ISA", kept, 1);
    free(kept);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_bits_do_not_depend_on_the_place)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
