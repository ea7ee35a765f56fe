/* test_weights.c: plan.bin as a whole, and parameters from files into arenas and back: every kind of recipe,
 * devices that map their memory and devices that do not, bad files, and gradients. */
#include "frontends/formats/weights/gguf_write.h"
#include "runtime/run/weights.h"
#include "runtime/run/weights_internal.h"
#include "tests/common/expect.h"
#include "tests/rowkernel_random.h"
#include "tests/tolerance.h"
#include "tests/unit/place.h"
#include "tests/unit/recorder.h"

#include <math.h>
#include <stdio.h>
#include <unistd.h>

/* fused: a source of two parameters; turned: kept transposed; rope: file keeps halves interleaved; tied:
 * found under its alias; gamma: the file has w, the model 1 + w; extra: fresh; frozen half of `fused`. */
static const char program_text[] =
    "program p\ntarget cpu\nsizes t_max 8, s_max 1, chunk 4, head_chunk 4\narena device 0, host 0\n"
    "scalars T, S\n"
    "buffer fused_a param device f32[6, 4]\n"
    "buffer fused_b param device bf16[2, 4]\n"
    "buffer turned param device f32[5, 3]\n"
    "buffer rope param device f64[8, 3]\n"
    "buffer tied param device f32[7, 2]\n"
    "buffer gamma param device f32[1, 4]\n"
    "buffer extra param device f32[3, 2]\n"
    "buffer columns_a param device f32[3, 2]\n"
    "buffer columns_b param device f32[3, 4]\n"
    "buffer g_fused_a grad device f32[6, 4]\n"
    "buffer g_turned grad device f32[5, 3]\n"
    "buffer g_rope grad device f32[8, 3]\n"
    "buffer g_tied grad device f64[7, 2]\n"
    "buffer g_gamma grad device f32[1, 4]\n"
    "buffer g_extra grad device f32[3, 2]\n"
    "buffer g_columns_a grad device f32[3, 2]\n"
    "buffer g_columns_b grad device f32[3, 4]\n"
    "entry update {\n"
    "  reduce(dst += norm, src = g_turned) {op = sumsq, flushes = turned, gradient = src}\n"
    "  reduce(dst += norm, src = g_fused_a) {op = sumsq, flushes = fused_a, gradient = src}\n"
    "  reduce(dst += norm, src = g_rope) {op = sumsq, flushes = rope, gradient = src}\n"
    "  reduce(dst += norm, src = g_tied) {op = sumsq, flushes = tied, gradient = src}\n"
    "  reduce(dst += norm, src = g_gamma) {op = sumsq, flushes = gamma, gradient = src}\n"
    "  reduce(dst += norm, src = g_columns_b) {op = sumsq, flushes = columns_b, gradient = src}\n"
    "  reduce(dst += norm, src = g_columns_a) {op = sumsq, flushes = columns_a, gradient = src}\n"
    "}\n"
    "entry more {\n"
    "  reduce(dst += norm, src = g_extra) {op = sumsq, flushes = extra, gradient = src}\n"
    "}\n";

static const char tensors_text[] =
    "{\"tensors\": ["
    "{\"buffer\": \"fused_a\", \"trainable\": true, \"decay\": true, \"init\": {\"normal\": 0.5}, "
    "\"recipes\": "
    "[{\"source\": \"fused\", \"dtype\": \"bf16\", \"shape\": [8, 4], \"steps\": [{\"slice\": [0, 0, 6]}]}]},"
    "{\"buffer\": \"fused_b\", \"trainable\": false, \"decay\": true, \"init\": {\"normal\": 0.5}, "
    "\"recipes\": "
    "[{\"source\": \"fused\", \"dtype\": \"bf16\", \"shape\": [8, 4], \"steps\": [{\"slice\": [0, 6, 2]}]}]},"
    "{\"buffer\": \"turned\", \"trainable\": true, \"decay\": true, \"init\": \"zeros\", \"recipes\": "
    "[{\"source\": \"turned\", \"shape\": [3, 5], \"steps\": [{\"transpose\": true}]}]},"
    "{\"buffer\": \"rope\", \"trainable\": true, \"decay\": true, \"init\": {\"normal\": 1}, \"pad_row\": 2, "
    "\"recipes\": [{\"source\": \"rope\", \"dtype\": \"f64\", \"shape\": [8, 3]}, {\"source\": \"blk.rope\", "
    "\"shape\": [8, 3], \"steps\": [{\"deinterleave\": 2}]}]},"
    "{\"buffer\": \"tied\", \"trainable\": true, \"decay\": true, \"recipes\": [{\"source\": \"embed\", "
    "\"shape\": "
    "[7, 2]}], \"aliases\": [\"nothing\", \"head\"]},"
    "{\"buffer\": \"gamma\", \"trainable\": true, \"decay\": false, \"init\": \"ones\", \"recipes\": "
    "[{\"source\": \"gamma\", \"shape\": [4], \"steps\": [{\"add\": 1}]}]},"
    "{\"buffer\": \"extra\", \"trainable\": true, \"decay\": false, \"fresh\": true, \"init\": \"ones\", "
    "\"recipes\": [{\"source\": \"extra\", \"shape\": [3, 2]}]},"
    "{\"buffer\": \"columns_a\", \"trainable\": true, \"decay\": false, \"recipes\": [{\"source\": "
    "\"columns\", "
    "\"shape\": [3, 6], \"steps\": [{\"slice\": [1, 0, 2]}]}]},"
    "{\"buffer\": \"columns_b\", \"trainable\": true, \"decay\": false, \"recipes\": [{\"source\": "
    "\"columns\", "
    "\"shape\": [3, 6], \"steps\": [{\"slice\": [1, 2, 4]}]}]}"
    "]}";

/* ---- helpers ---------------------------------------------------------------------------------------- */

typedef struct bench {
    sbp_arena *arena;
    sbp_diag *diag;
    char directory[64];
    const char *program, *tensors; /* texts */
    const sbp_plan *plan;
    sbp_executor *executor;
} bench;

static char path_text[128];

static const char *path(const bench *b, const char *name) {
    snprintf(path_text, sizeof path_text, "%s/%s", b->directory, name);
    return path_text;
}

/* The program with a result buffer and offsets, as text. */
static sbp_status lay_out(void *user) {
    bench *b = user;
    static char text[8192];
    const char *entry = strstr(b->program, "entry update");
    snprintf(text, sizeof text, "%.*sbuffer norm result device f64[1, 1]\n%s", (int)(entry - b->program),
             b->program, entry);
    sbp_program *program;
    SBP_TRY(sbp_program_parse(b->arena, b->diag, "test", text, strlen(text), &program));
    place(program);
    sbp_text out;
    sbp_text_init(&out, b->arena);
    sbp_program_print(&out, program);
    const sbp_plan_section sections[] = {
        {SBP_PLAN_PROGRAM, out.data, (int64_t)out.length},
        {SBP_PLAN_TENSORS, b->tensors, (int64_t)strlen(b->tensors)},
        {SBP_PLAN_META, "{\"model\": \"test\"}", 17},
        {SBP_PLAN_TEMPLATE, "{{ x }}", 7},
    };
    return sbp_plan_file_write(b->diag, path(b, "plan.bin"), sections, SBP_COUNT(sections));
}

static bench open_bench_of(const char *program, const char *tensors, bool map) {
    bench b = {
        .arena = sbp_arena_create(), .diag = sbp_diag_create(), .program = program, .tensors = tensors};
    strcpy(b.directory, "/tmp/sbp_weights_XXXXXX");
    assert_non_null(mkdtemp(b.directory));
    expect_ok(b.diag, sbp_guard(b.arena, b.diag, lay_out, &b));
    expect_ok(b.diag, sbp_plan_open(b.arena, b.diag, path(&b, "plan.bin"), &b.plan));
    unlink(path(&b, "plan.bin"));
    sbp_device_options options = {0};
    expect_ok(b.diag,
              sbp_executor_create(b.diag, recorder_class(map), &options, b.plan->program, &b.executor));
    return b;
}

static bench open_bench(bool map) {
    return open_bench_of(program_text, tensors_text, map);
}

static void close_bench(bench *b) {
    sbp_executor_destroy(b->executor);
    if (rmdir(b->directory) != 0)
        fail_msg("files are left in %s", b->directory);
    sbp_arena_destroy(b->arena);
    sbp_diag_destroy(b->diag);
}

typedef struct file_tensor {
    const char *name;
    int32_t rank;
    int64_t dim[2];
    double start; /* element k is start + k */
} file_tensor;

static const file_tensor good[] = {
    {"fused", 2, {8, 4}, 0},  {"turned", 2, {3, 5}, 100}, {"blk.rope", 2, {8, 3}, 200},
    {"head", 2, {7, 2}, 300}, {"gamma", 1, {4}, 400},     {"columns", 2, {3, 6}, 500},
    {"unused", 1, {1}, 600},
};

typedef struct writing {
    bench *b;
    const file_tensor *tensors;
    int32_t count;
    double poison; /* added to one element of `turned`; NaN or infinity make a bad file */
} writing;

static sbp_status write_file(void *user) {
    writing *w = user;
    bench *b = w->b;
    sbp_tensor_spec *specs = SBP_NEW_ARRAY(b->arena, sbp_tensor_spec, w->count);
    for (int32_t k = 0; k < w->count; k++)
        specs[k] = (sbp_tensor_spec){w->tensors[k].name, SBP_F32, w->tensors[k].rank, w->tensors[k].dim};
    sbp_safetensors_writer *writer;
    SBP_TRY(sbp_safetensors_writer_create(b->arena, b->diag, path(b, "w.safetensors"), specs, w->count, NULL,
                                          0, 0, &writer));
    for (int32_t k = 0; k < w->count; k++) {
        int64_t elems = w->tensors[k].dim[0] * (w->tensors[k].rank > 1 ? w->tensors[k].dim[1] : 1);
        for (int64_t e = 0; e < elems; e++) {
            float value = (float)(w->tensors[k].start + (double)e);
            if (strcmp(w->tensors[k].name, "turned") == 0 && e == 7)
                value += (float)w->poison;
            SBP_TRY(sbp_safetensors_writer_write(writer, b->diag, &value, 4));
        }
    }
    return sbp_safetensors_writer_commit(writer, b->diag);
}

static sbp_status load(bench *b, const file_tensor *tensors, int32_t count, double poison) {
    writing w = {b, tensors, count, poison};
    expect_ok(b->diag, sbp_guard(b->arena, b->diag, write_file, &w));
    sbp_weights *weights;
    expect_ok(b->diag, sbp_weights_open(b->arena, b->diag, path(b, "w.safetensors"), &weights));
    sbp_status status = sbp_params_load(b->executor, b->plan, weights, 1, b->diag);
    sbp_weights_close(weights);
    unlink(path(b, "w.safetensors"));
    return status;
}

static double at(bench *b, const char *buffer, int64_t element) {
    double value;
    expect_ok(b->diag, sbp_executor_read(b->executor, sbp_program_find_buffer(b->plan->program, buffer), 0,
                                         element, 1, SBP_F64, &value, b->diag));
    return value;
}

/* ---- tests ------------------------------------------------------------------------------------------ */

static void parameters_are_loaded_through_recipes(void **state) {
    (void)state;
    for (int map = 0; map < 2; map++) {
        bench b = open_bench(map);
        assert_string_equal(b.plan->chat_template, "{{ x }}");
        assert_string_equal(b.plan->tokenizer, "");
        assert_null(b.plan->kernels);
        expect_ok(b.diag, load(&b, good, SBP_COUNT(good), 0));
        for (int64_t k = 0; k < 24; k++)
            assert_true(at(&b, "fused_a", k) == (double)k);
        for (int64_t k = 0; k < 8; k++)
            assert_true(at(&b, "fused_b", k) == 24 + (double)k);
        for (int64_t r = 0; r < 5; r++)
            for (int64_t c = 0; c < 3; c++)
                assert_true(at(&b, "turned", r * 3 + c) == 100 + (double)(c * 5 + r));
        const int64_t rope_rows[8] = {0, 2, 1, 3, 4, 6, 5, 7};
        for (int64_t r = 0; r < 8; r++)
            for (int64_t c = 0; c < 3; c++)
                assert_true(at(&b, "rope", r * 3 + c) == 200 + (double)(rope_rows[r] * 3 + c));
        for (int64_t k = 0; k < 14; k++)
            assert_true(at(&b, "tied", k) == 300 + (double)k);
        for (int64_t k = 0; k < 4; k++)
            assert_true(at(&b, "gamma", k) == 401 + (double)k);
        for (int64_t k = 0; k < 6; k++)
            assert_true(at(&b, "extra", k) == 1);
        for (int64_t r = 0; r < 3; r++)
            for (int64_t c = 0; c < 6; c++)
                assert_true((c < 2 ? at(&b, "columns_a", r * 2 + c) : at(&b, "columns_b", r * 4 + c - 2)) ==
                            500 + (double)(r * 6 + c));
        close_bench(&b);
    }
}

/* Numbers of another type than the buffer's go by a mebibyte, from any element on. */
static void write_pieces(bench *b, int64_t count, double *values) {
    enum { FIRST = 1001 };
    int32_t plain = sbp_program_find_buffer(b->plan->program, "plain");
    for (int64_t k = 0; k < count; k++)
        values[k] = -3.0 * (double)k;
    expect_ok(b->diag,
              sbp_executor_write(b->executor, plain, 0, FIRST, count - FIRST, SBP_F64, values, b->diag));
    float *got = malloc((size_t)count * sizeof *got);
    expect_ok(b->diag, sbp_executor_read(b->executor, plain, 0, 0, count, SBP_F32, got, b->diag));
    for (int64_t k = 0; k < count; k++)
        if ((double)got[k] != (k < FIRST ? 9 + (double)k : -3.0 * (double)(k - FIRST)))
            fail_msg("element %lld is %g", (long long)k, (double)got[k]);
    free(got);
}

/* Tensors are read in pieces of 131,072 elements, and each goes to its place. */
static void parameters_are_loaded_in_pieces(void **state) {
    (void)state;
    enum { ROWS = 401, COLS = 1003 };
    static const char program[] =
        "program p\ntarget cpu\nsizes t_max 8, s_max 1, chunk 4, head_chunk 4\narena device 0, host 0\n"
        "scalars T, S\nbuffer large param device f32[1003, 401]\nbuffer halves param device f32[1003, 200]\n"
        "buffer rest param device f32[1003, 201]\n"
        "buffer plain param device f32[401, 1003]\n"
        "buffer g_large grad device f32[1003, 401]\n"
        "entry update {\n"
        "  reduce(dst += norm, src = g_large) {op = sumsq, flushes = large, gradient = src}\n}\n";
    static const char tensors[] =
        "{\"tensors\": [{\"buffer\": \"large\", \"trainable\": true, \"decay\": true, \"recipes\": "
        "[{\"source\": \"large\", \"shape\": [401, 1003], \"steps\": [{\"transpose\": true}]}]},"
        "{\"buffer\": \"halves\", \"trainable\": false, \"decay\": true, \"recipes\": "
        "[{\"source\": \"halves\", \"shape\": [1003, 401], \"steps\": [{\"slice\": [1, 201, 200]}]}]},"
        "{\"buffer\": \"rest\", \"trainable\": false, \"decay\": true, \"recipes\": "
        "[{\"source\": \"halves\", \"shape\": [1003, 401], \"steps\": [{\"slice\": [1, 0, 201]}]}]},"
        "{\"buffer\": \"plain\", \"trainable\": false, \"decay\": true, \"recipes\": "
        "[{\"source\": \"plain\", \"shape\": [401, 1003]}]}]}";
    static const file_tensor file[] = {
        {"large", 2, {ROWS, COLS}, 1}, {"halves", 2, {COLS, ROWS}, 5}, {"plain", 2, {ROWS, COLS}, 9}};
    static double values[ROWS * COLS];
    for (int map = 0; map < 2; map++) {
        bench b = open_bench_of(program, tensors, map);
        expect_ok(b.diag, load(&b, file, SBP_COUNT(file), 0));
        for (int64_t k = 0; k < (int64_t)ROWS * COLS; k += 97)
            assert_true(at(&b, "large", k) == 1 + (double)(k % ROWS * COLS + k / ROWS));
        for (int64_t k = 0; k < (int64_t)ROWS * COLS; k += 89)
            assert_true(at(&b, "plain", k) == 9 + (double)k);
        for (int64_t k = 0; k < (int64_t)COLS * 200; k += 61)
            assert_true(at(&b, "halves", k) == 5 + (double)(k / 200 * ROWS + 201 + k % 200));
        for (int64_t k = 0; k < (int64_t)COLS * 201; k += 59)
            assert_true(at(&b, "rest", k) == 5 + (double)(k / 201 * ROWS + k % 201));
        for (int wide = 0; wide < 2; wide++) { /* and back, by 65,536 */
            sbp_save_options options = {.dtype = wide ? SBP_F64 : SBP_F32};
            expect_ok(b.diag,
                      sbp_params_save(b.executor, b.plan, path(&b, "out.safetensors"), &options, b.diag));
            sbp_weights *weights;
            expect_ok(b.diag, sbp_weights_open(b.arena, b.diag, path(&b, "out.safetensors"), &weights));
            for (int t = 0; t < SBP_COUNT(file); t++) {
                const sbp_weight *w = sbp_weights_find(weights, file[t].name);
                assert_true(w && w->elems == (int64_t)ROWS * COLS && w->dtype == options.dtype);
                expect_ok(b.diag, sbp_weights_read(weights, w, 0, w->elems, SBP_F64, values, b.diag));
                for (int64_t k = 0; k < w->elems; k++)
                    assert_true(values[k] == file[t].start + (double)k);
            }
            sbp_weights_close(weights);
            unlink(path(&b, "out.safetensors"));
        }
        write_pieces(&b, ROWS * COLS, values);
        close_bench(&b);
    }
}

/* Block b of the file: its scale, a power of two, and numbers of which one is the largest, so that scale and
 * codes are what any rule of q8_0 gives. */
static double block_scale(int64_t block) {
    return ldexp(1, -(int)(block % 5));
}

static int8_t block_code(int64_t block, int64_t k) {
    return (int8_t)(k == block % 32 ? (block % 2 ? 127 : -127) : (block * 7 + k * 5) % 253 - 126);
}

enum { ALL_ROWS = 61, ALL_COLS = 320, ALL_BLOCKS = ALL_ROWS * ALL_COLS / 32 };

static sbp_status write_blocks(void *user) {
    bench *b = user;
    sbp_gguf_keys keys;
    sbp_gguf_writer *writer;
    static const sbp_gguf_tensor tensor[] = {{"all", SBP_GGUF_TENSOR_Q8_0, 2, {ALL_ROWS, ALL_COLS}}};
    sbp_gguf_keys_init(&keys, b->arena);
    sbp_gguf_put_string(&keys, "general.architecture", "none");
    SBP_TRY(sbp_gguf_writer_create(b->arena, b->diag, path(b, "w.gguf"), &keys, tensor, 1, NULL, &writer));
    for (int64_t block = 0; block < ALL_BLOCKS; block++) {
        uint16_t half = (uint16_t)((15 - block % 5) << 10); /* the exponent of 2^-(block % 5) */
        unsigned char bytes[34] = {(unsigned char)half, (unsigned char)(half >> 8)};
        for (int64_t k = 0; k < 32; k++)
            bytes[2 + k] = (unsigned char)block_code(block, k);
        SBP_TRY(sbp_gguf_writer_write(writer, b->diag, bytes, sizeof bytes));
    }
    return sbp_gguf_writer_commit(writer, b->diag);
}

static sbp_status write_numbers(void *user) {
    bench *b = user;
    sbp_safetensors_writer *writer;
    const sbp_tensor_spec spec = {"all", SBP_F32, 2, (const int64_t[]){ALL_ROWS, ALL_COLS}};
    SBP_TRY(sbp_safetensors_writer_create(b->arena, b->diag, path(b, "w.safetensors"), &spec, 1, NULL, 0, 0,
                                          &writer));
    for (int64_t k = 0; k < (int64_t)ALL_ROWS * ALL_COLS; k++) {
        float value = (float)(block_scale(k / 32) * block_code(k / 32, k % 32));
        SBP_TRY(sbp_safetensors_writer_write(writer, b->diag, &value, 4));
    }
    return sbp_safetensors_writer_commit(writer, b->diag);
}

/* Parameters kept in blocks come from blocks of a file, or numbers become blocks, by 8,192 elements. */
static void blocks_are_loaded_in_pieces(void **state) {
    (void)state;
    static const char program[] =
        "program p\ntarget cpu\nsizes t_max 8, s_max 1, chunk 4, head_chunk 4\narena device 0, host 0\n"
        "scalars T, S\nbuffer few.codes param device i8[80, 32]\nbuffer few.scales param device f16[80, 1]\n"
        "buffer many.codes param device i8[530, 32]\nbuffer many.scales param device f16[530, 1]\n"
        "entry update {\n  reduce(dst += norm, src = few.scales) {op = sumsq}\n}\n";
    static const char tensors[] =
        "{\"tensors\": [{\"buffer\": \"few\", \"format\": \"q8_0\", \"trainable\": false, \"decay\": false, "
        "\"recipes\": [{\"source\": \"all\", \"shape\": [61, 320], \"steps\": [{\"slice\": [0, 53, 8]}]}]},"
        "{\"buffer\": \"many\", \"format\": \"q8_0\", \"trainable\": false, \"decay\": false, \"recipes\": "
        "[{\"source\": \"all\", \"shape\": [61, 320], \"steps\": [{\"slice\": [0, 0, 53]}]}]}]}";
    for (int numbers = 0; numbers < 2; numbers++) {
        bench b = open_bench_of(program, tensors, false);
        const char *name = numbers ? "w.safetensors" : "w.gguf";
        sbp_weights *weights;
        expect_ok(b.diag, sbp_guard(b.arena, b.diag, numbers ? write_numbers : write_blocks, &b));
        expect_ok(b.diag, sbp_weights_open(b.arena, b.diag, path(&b, name), &weights));
        expect_ok(b.diag, sbp_params_load(b.executor, b.plan, weights, 1, b.diag));
        sbp_weights_close(weights);
        unlink(path(&b, name));
        for (int64_t block = 0; block < ALL_BLOCKS; block++) {
            bool few = block >= 530;
            int64_t at_block = few ? block - 530 : block;
            assert_true(at(&b, few ? "few.scales" : "many.scales", at_block) == block_scale(block));
            for (int64_t k = 0; k < 32; k++)
                assert_true(at(&b, few ? "few.codes" : "many.codes", at_block * 32 + k) ==
                            block_code(block, k));
        }
        close_bench(&b);
    }
}

static void bad_files_are_named(void **state) {
    (void)state;
    bench b = open_bench(true);
    assert_int_equal(load(&b, good, SBP_COUNT(good), (double)NAN), SBP_INPUT);
    expect_text(b.diag, "w.safetensors: tensor 'turned': element 7 is nan as f32, expected a finite number");
    assert_int_equal(load(&b, good, SBP_COUNT(good), (double)INFINITY), SBP_INPUT);
    expect_text(b.diag, "tensor 'turned': element 7 is inf");
    assert_int_equal(load(&b, good + 1, SBP_COUNT(good) - 1, 0), SBP_INPUT);
    expect_text(b.diag, "w.safetensors: no tensor 'fused'; the file has 6 tensors");
    file_tensor wrong[SBP_COUNT(good)];
    memcpy(wrong, good, sizeof good);
    wrong[3].name = "tail";
    assert_int_equal(load(&b, wrong, SBP_COUNT(good), 0), SBP_INPUT);
    expect_text(b.diag, "no tensor 'embed' (nor 'nothing')");
    memcpy(wrong, good, sizeof good);
    wrong[0].dim[1] = 5;
    assert_int_equal(load(&b, wrong, SBP_COUNT(good), 0), SBP_INPUT);
    expect_text(b.diag, "w.safetensors: tensor 'fused': shape [8, 5], expected [8, 4]");
    memcpy(wrong, good, sizeof good);
    wrong[4] = (file_tensor){"gamma", 2, {2, 2}, 0};
    assert_int_equal(load(&b, wrong, SBP_COUNT(good), 0), SBP_INPUT);
    expect_text(b.diag, "tensor 'gamma': shape [2, 2], expected [4]");
    memcpy(wrong, good, sizeof good);
    wrong[4].start = 1e39;
    assert_int_equal(load(&b, wrong, SBP_COUNT(good), 0), SBP_INPUT);
    expect_text(b.diag, "tensor 'gamma': element 0 is inf");
    close_bench(&b);
}

static void expect_file(bench *b, const char *name, sbp_dtype dtype, double start, int64_t count,
                        int64_t zeros_from) {
    sbp_weights *weights;
    expect_ok(b->diag, sbp_weights_open(b->arena, b->diag, path(b, "out.safetensors"), &weights));
    const sbp_weight *w = sbp_weights_find(weights, name);
    assert_non_null(w);
    assert_int_equal(w->elems, count);
    assert_int_equal(w->dtype, dtype);
    double values[64];
    expect_ok(b->diag, sbp_weights_read(weights, w, 0, count, SBP_F64, values, b->diag));
    for (int64_t k = 0; k < count; k++)
        if (values[k] != (k < zeros_from ? start + (double)k : 0))
            fail_msg("%s[%d] is %g", name, (int)k, values[k]);
    assert_string_equal(sbp_weights_metadata(weights, "format"), "pt");
    sbp_weights_close(weights);
}

static void saving_inverts_loading(void **state) {
    (void)state;
    for (int map = 0; map < 2; map++) {
        bench b = open_bench(map);
        expect_ok(b.diag, load(&b, good, SBP_COUNT(good), 0));
        sbp_save_options options = {.own_dtype = true};
        expect_ok(b.diag, sbp_params_save(b.executor, b.plan, path(&b, "out.safetensors"), &options, b.diag));
        expect_file(&b, "fused", SBP_BF16, 0, 32, 32);
        expect_file(&b, "turned", SBP_F32, 100, 15, 15);
        expect_file(&b, "embed", SBP_F32, 300, 14, 14);
        expect_file(&b, "gamma", SBP_F32, 400, 4, 4);
        expect_file(&b, "columns", SBP_F32, 500, 18, 18);
        options = (sbp_save_options){.dtype = SBP_F64, .trainable_only = true};
        expect_ok(b.diag, sbp_params_save(b.executor, b.plan, path(&b, "out.safetensors"), &options, b.diag));
        expect_file(&b, "fused", SBP_F64, 0, 32, 24);
        expect_file(&b, "turned", SBP_F64, 100, 15, 15);
        /* what was interleaved in the file is written under the canonical name, in its order */
        sbp_weights *weights;
        expect_ok(b.diag, sbp_weights_open(b.arena, b.diag, path(&b, "out.safetensors"), &weights));
        const sbp_weight *rope = sbp_weights_find(weights, "rope");
        assert_non_null(rope);
        assert_null(sbp_weights_find(weights, "blk.rope"));
        double values[24];
        expect_ok(b.diag, sbp_weights_read(weights, rope, 0, 24, SBP_F64, values, b.diag));
        for (int64_t k = 0; k < 24; k++)
            assert_true(values[k] == at(&b, "rope", k));
        sbp_weights_close(weights);
        unlink(path(&b, "out.safetensors"));
        close_bench(&b);
    }
}

static void fill_gradient(bench *b, const char *buffer, int64_t count, double start) {
    double values[64];
    for (int64_t k = 0; k < count; k++)
        values[k] = start + (double)k;
    expect_ok(b->diag, sbp_executor_write(b->executor, sbp_program_find_buffer(b->plan->program, buffer), 0,
                                          0, count, SBP_F64, values, b->diag));
}

static void gradients_are_dumped_under_source_names(void **state) {
    (void)state;
    for (int map = 0; map < 2; map++) {
        bench b = open_bench(map);
        sbp_gradient_dump *dump;
        expect_ok(b.diag, sbp_executor_bind(b.executor, 1, 0, NULL, 0, b.diag));
        fill_gradient(&b, "g_fused_a", 24, 0);
        fill_gradient(&b, "g_rope", 24, 700);
        fill_gradient(&b, "g_tied", 14, 300);
        fill_gradient(&b, "g_gamma", 4, 400);
        fill_gradient(&b, "g_extra", 6, 40);
        double turned[15], a[6], c[12];
        for (int64_t r = 0; r < 5; r++)
            for (int64_t k = 0; k < 3; k++)
                turned[r * 3 + k] = 100 + (double)(k * 5 + r);
        for (int64_t r = 0; r < 3; r++)
            for (int64_t k = 0; k < 6; k++)
                *(k < 2 ? &a[r * 2 + k] : &c[r * 4 + k - 2]) = 500 + (double)(r * 6 + k);
        int32_t g_turned = sbp_program_find_buffer(b.plan->program, "g_turned");
        int32_t g_a = sbp_program_find_buffer(b.plan->program, "g_columns_a");
        expect_ok(b.diag, sbp_executor_write(b.executor, g_turned, 0, 0, 15, SBP_F64, turned, b.diag));
        expect_ok(b.diag, sbp_executor_write(b.executor, g_a, 0, 0, 6, SBP_F64, a, b.diag));
        expect_ok(b.diag, sbp_executor_write(b.executor, g_a + 1, 0, 0, 12, SBP_F64, c, b.diag));
        for (int wide = 0; wide < 2; wide++) {
            sbp_dtype dtype = wide ? SBP_F64 : SBP_F32;
            expect_ok(b.diag, sbp_gradient_dump_begin(b.executor, b.plan, path(&b, "out.safetensors"), dtype,
                                                      b.diag, &dump));
            expect_ok(b.diag, sbp_executor_run(b.executor, "update", b.diag));
            if (wide)
                expect_ok(b.diag, sbp_gradient_dump_take(
                                      dump, sbp_program_find_buffer(b.plan->program, "extra"),
                                      sbp_program_find_buffer(b.plan->program, "g_extra"), b.diag));
            else
                expect_ok(b.diag, sbp_executor_run(b.executor, "more", b.diag));
            expect_ok(b.diag, sbp_gradient_dump_end(dump, b.diag));
            expect_file(&b, "fused", dtype, 0, 32, 24); /* the frozen part has none */
            expect_file(&b, "turned", dtype, 100, 15, 15);
            expect_file(&b, "rope", dtype, 700, 24, 24);
            expect_file(&b, "embed", dtype, 300, 14, 14);
            expect_file(&b, "gamma", dtype, 400, 4, 4); /* adding a constant does not change gradients */
            expect_file(&b, "extra", dtype, 40, 6, 6);
            expect_file(&b, "columns", dtype, 500, 18, 18);
        }
        unlink(path(&b, "out.safetensors"));
        expect_ok(b.diag, sbp_gradient_dump_begin(b.executor, b.plan, path(&b, "out.safetensors"), SBP_F32,
                                                  b.diag, &dump));
        expect_ok(b.diag, sbp_executor_run(b.executor, "update", b.diag));
        assert_int_equal(sbp_executor_run(b.executor, "update", b.diag), SBP_INPUT);
        expect_text(b.diag, "gradient of 'turned': not of a trainable parameter, or a second one");
        assert_int_equal(sbp_gradient_dump_end(dump, b.diag), SBP_INPUT);
        expect_text(b.diag, "the plan flushes no gradient of 'extra'");
        assert_int_equal(sbp_gradient_dump_begin(b.executor, b.plan, "/dev/null/x", SBP_F32, b.diag, &dump),
                         SBP_IO);
        sbp_diag_clear(b.diag);
        close_bench(&b);
    }
}

static void random_numbers_depend_on_nothing_but_the_seed(void **state) {
    (void)state;
    double once[24] = {0}, sum = 0, squares = 0;
    for (int round = 0; round < 6; round++) {
        bench b = open_bench(round % 2);
        expect_ok(b.diag,
                  sbp_params_randomize(b.executor, b.plan, round < 5 ? 42 : 43, 1 + round * 3, b.diag));
        for (int64_t k = 0; k < 24; k++) {
            double value = at(&b, "rope", k);
            if (round == 0)
                once[k] = value;
            if (k / 3 == 2)
                assert_true(value == 0); /* the padding row */
            else
                assert_true((value == once[k]) == (round < 5));
        }
        for (int64_t k = 0; k < 4; k++)
            assert_true(at(&b, "gamma", k) == 2); /* ones in the file, one more in the model */
        for (int64_t k = 0; k < 15; k++)
            assert_true(at(&b, "turned", k) == 0);
        for (int64_t k = 0; k < 24; k++) {
            sum += at(&b, "fused_a", k);
            squares += at(&b, "fused_a", k) * at(&b, "fused_a", k);
        }
        close_bench(&b);
    }
    assert_true(fabs(sum / 144) < 0.15 && fabs(squares / 144 - 0.25) < 0.12);

    /* the formula of the header, once by hand */
    bench b = open_bench(true);
    expect_ok(b.diag, sbp_params_randomize(b.executor, b.plan, 42, 1, b.diag));
    uint64_t hash = sbp_hash_bytes("rope", 4, 0);
    const uint32_t key[2] = {42, 0};
    double u[2];
    for (uint32_t k = 0; k < 2; k++) {
        const uint32_t counter[4] = {10 + k, 0, (uint32_t)hash, (uint32_t)(hash >> 32)};
        u[k] = ((double)sbp_philox(counter, key) + 0.5) / 4294967296.0;
    }
    double want = sqrt(-2 * log(u[0])) * sin(6.283185307179586 * u[1]);
    assert_true(fabs(at(&b, "rope", 11) - want) <= 4 * SBP_TOLERANCE_RELATIVE_F64);
    close_bench(&b);
}

/* What is drawn a hundred at a time rounds to what the formula says, of every type and deviation, from
 * wherever a run begins. */
static void numbers_drawn_together_are_those_of_the_formula(void **state) {
    (void)state;
    enum { COUNT = 60000 };
    static const sbp_dtype dtypes[] = {SBP_F32, SBP_BF16, SBP_F16, SBP_F64};
    static double values[COUNT]; /* of one type after the other */
    sbp_rng rng = {7};
    int64_t others = 0;
    for (int t = 0; t < SBP_COUNT(dtypes); t++) {
        const sbp_normal_source source = {.seed = 42 + (uint64_t)t,
                                          .name_hash = 0x0123456789abcdefu * (uint64_t)(t + 1),
                                          .deviation = t == 2 ? 1e-3 : 0.02};
        int64_t first = t == 1 ? (INT64_C(1) << 33) - 301 : t; /* both words of the counter */
        for (int64_t at = 0, count; at < COUNT; at += count) {
            count = 1 + sbp_rng_below(&rng, 2000);
            count = count < COUNT - at ? count : COUNT - at;
            sbp_normal_sample(&source, dtypes[t], first + at, count, values + at);
        }
        for (int64_t k = 0; k < COUNT; k++) {
            double got = 0, want = 0, formula = sbp_normal_at(&source, first + k);
            sbp_element_set(&got, dtypes[t], 0, values[k]);
            sbp_element_set(&want, dtypes[t], 0, formula);
            assert_memory_equal(&got, &want, sizeof got);
            others += values[k] != formula;
        }
    }
    assert_true(others > COUNT); /* else nothing was drawn together */
}

/* Plans whose sections do not fit together. */
typedef struct broken {
    bench *b;
    const char *from, *to;
    sbp_status status;
} broken;

static sbp_status open_broken(void *user) {
    broken *k = user;
    const sbp_plan_file *file;
    SBP_TRY(sbp_plan_file_read(k->b->arena, k->b->diag, path(k->b, "plan.bin"), &file));
    sbp_plan_section sections[8];
    memcpy(sections, file->sections, (size_t)file->count * sizeof *sections);
    for (int32_t s = 0; s < file->count; s++) {
        const char *found = strstr(sections[s].data, k->from);
        if (found) {
            char *text =
                sbp_arena_printf(k->b->arena, "%.*s%s%s", (int)(found - (const char *)sections[s].data),
                                 (const char *)sections[s].data, k->to, found + strlen(k->from));
            sections[s].data = text;
            sections[s].length = (int64_t)strlen(text);
            sbp_plan_file changed = {file->path, sections, file->count};
            const sbp_plan *plan;
            return sbp_plan_load(k->b->arena, k->b->diag, &changed, &plan);
        }
        if (strcmp(sections[s].name, k->from) == 0) { /* leave it out */
            memmove(&sections[s], &sections[s + 1], (size_t)(file->count - s - 1) * sizeof *sections);
            sbp_plan_file changed = {file->path, sections, file->count - 1};
            const sbp_plan *plan;
            return sbp_plan_load(k->b->arena, k->b->diag, &changed, &plan);
        }
    }
    fail_msg("'%s' does not occur", k->from);
    return SBP_OK;
}

static void plans_that_do_not_fit_together_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *from, *to, *want;
    } cases[] = {
        {"meta", "", "plan.bin: no section 'meta'"},
        {"{\"model\": \"test\"}", "[]", "plan.bin: section 'meta'"},
        {"buffer gamma param", "buffer gamma perem", "plan.bin: section 'program':11: expected a role"},
        {"device f32[1, 4] offset", "device f32[1, 4] offset 2 #",
         "plan.bin: section 'program' does not verify"},
        {"buffer fused_b param", "buffer fused_c param", "'fused_b' is not a parameter of the program"},
        {"buffer fused_b param device bf16[2, 4]", "buffer fused_b param device bf16[2, 3]",
         "'fused_b' has 8 elements, its buffer is bf16 of 2 x 3"},
        {"{\"buffer\": \"extra\"", "{\"buffer\": \"extro\"", "'extro' is not a parameter"},
        {"buffer norm result", "buffer lost param device f32[1, 1] offset 0\nbuffer norm result",
         "nothing for parameter 'lost'"},
        {"{{ x }}", "", ""},
    };
    bench b = open_bench(true);
    expect_ok(b.diag, sbp_guard(b.arena, b.diag, lay_out, &b));
    for (int k = 0; k < SBP_COUNT(cases); k++) {
        broken job = {&b, cases[k].from, cases[k].to, SBP_OK};
        assert_int_equal(sbp_guard(b.arena, b.diag, open_broken, &job),
                         cases[k].want[0] ? SBP_INPUT : SBP_OK);
        expect_text(b.diag, cases[k].want);
    }
    unlink(path(&b, "plan.bin"));
    const sbp_plan *plan;
    assert_int_equal(sbp_plan_open(b.arena, b.diag, path(&b, "plan.bin"), &plan), SBP_IO);
    sbp_diag_clear(b.diag);
    close_bench(&b);
}

static sbp_status write_good_file(bench *b) {
    writing w = {b, good, SBP_COUNT(good), 0};
    return sbp_guard(b->arena, b->diag, write_file, &w);
}

static void opening_and_loading_survive_lack_of_memory(void **state) {
    (void)state;
    bench b = open_bench(false);
    expect_ok(b.diag, sbp_guard(b.arena, b.diag, lay_out, &b));
    bool done = false;
    for (int64_t n = 1; !done && n < 1000; n++) {
        sbp_arena *arena = sbp_arena_create();
        const sbp_plan *plan;
        sbp_test_fail_allocation(n);
        sbp_status status = sbp_plan_open(arena, b.diag, path(&b, "plan.bin"), &plan);
        sbp_test_fail_allocation(0);
        assert_true(status == SBP_OK || status == SBP_MACHINE);
        done = status == SBP_OK;
        sbp_arena_destroy(arena);
    }
    assert_true(done);
    unlink(path(&b, "plan.bin"));
    expect_ok(b.diag, write_good_file(&b));
    sbp_weights *weights;
    expect_ok(b.diag, sbp_weights_open(b.arena, b.diag, path(&b, "w.safetensors"), &weights));
    done = false;
    for (int64_t n = 1; !done && n < 100; n++) {
        sbp_test_fail_allocation(n);
        sbp_status status = sbp_params_load(b.executor, b.plan, weights, 1, b.diag);
        sbp_test_fail_allocation(0);
        assert_true(status == SBP_OK || status == SBP_MACHINE);
        done = status == SBP_OK;
    }
    assert_true(done);
    sbp_weights_close(weights);
    unlink(path(&b, "w.safetensors"));
    close_bench(&b);
}

/* Every allocation in turn fails. */
static void running_out_of_memory_is_reported(void **state) {
    (void)state;
    bench b = open_bench(false);
    expect_ok(b.diag, load(&b, good, SBP_COUNT(good), 0));
    bool done = false;
    for (int64_t n = 1; !done && n < 200; n++) {
        sbp_save_options options = {.own_dtype = true};
        sbp_test_fail_allocation(n);
        sbp_status status =
            sbp_params_save(b.executor, b.plan, path(&b, "out.safetensors"), &options, b.diag);
        sbp_test_fail_allocation(0);
        assert_true(status == SBP_OK || status == SBP_MACHINE);
        done = status == SBP_OK;
    }
    assert_true(done);
    unlink(path(&b, "out.safetensors"));
    for (int64_t n = 1; n < 8; n++) {
        sbp_gradient_dump *dump = NULL;
        sbp_test_fail_allocation(n);
        sbp_status status =
            sbp_gradient_dump_begin(b.executor, b.plan, path(&b, "out.safetensors"), SBP_F32, b.diag, &dump);
        sbp_test_fail_allocation(0);
        assert_true(status == SBP_OK || status == SBP_MACHINE);
        if (status == SBP_OK)
            sbp_gradient_dump_abort(dump);
    }
    close_bench(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parameters_are_loaded_through_recipes),
        cmocka_unit_test(parameters_are_loaded_in_pieces),
        cmocka_unit_test(blocks_are_loaded_in_pieces),
        cmocka_unit_test(bad_files_are_named),
        cmocka_unit_test(saving_inverts_loading),
        cmocka_unit_test(gradients_are_dumped_under_source_names),
        cmocka_unit_test(random_numbers_depend_on_nothing_but_the_seed),
        cmocka_unit_test(numbers_drawn_together_are_those_of_the_formula),
        cmocka_unit_test(plans_that_do_not_fit_together_are_refused),
        cmocka_unit_test(opening_and_loading_survive_lack_of_memory),
        cmocka_unit_test(running_out_of_memory_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
