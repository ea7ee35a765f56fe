/* test_masters.c: what lasts of training besides weights in one buffer: fp32 numbers in two halves through
 * files, random initialisation and results; states of every kind through checkpoints, bit for bit; and the
 * random numbers of a step. */
#include "runtime/run/weights_internal.h"
#include "runtime/train/checkpoint.h"
#include "runtime/train/trainer.h"
#include "tests/common/expect.h"
#include "tests/unit/place.h"
#include "tests/unit/recorder.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* W: two parts of `fused`, kept transposed; gamma: the file has w, the model 1 + w; plain: as it is. $ is the
 * type of the parameters, ? what else there is. */
static const char program_text[] =
    "program p\ntarget cpu\nsizes t_max 8, s_max 1, chunk 4, head_chunk 4\narena device 0, host 0\n"
    "scalars T, S, random_param, random_exp_avg\n"
    "buffer upper param device $[4, 60]\nbuffer lower param device $[4, 40]\n"
    "buffer gamma param device $[1, 8]\nbuffer plain param device $[100, 67]\n?"
    "entry update {\n}\n";

static const char masters[] = "buffer upper.master_lo master device i16[4, 60]\n"
                              "buffer lower.master_lo master host i16[4, 40]\n"
                              "buffer gamma.master_lo master device i16[1, 8]\n"
                              "buffer plain.master_lo master device i16[100, 67]\n";

static const char states[] = "buffer upper.exp_avg state device bf16[4, 60]\n"
                             "buffer lower.exp_avg state device bf16[4, 40]\n"
                             "buffer upper.exp_avg_sq state device f32[4, 60]\n"
                             "buffer lower.exp_avg_sq state device bf16[4, 40]\n" /* not of one type */
                             "buffer gamma.exp_avg state host f32[1, 8]\n"
                             "buffer plain.exp_avg state device d8[100, 67]\n"
                             "buffer plain.exp_avg_sq state host ud8[100, 67]\n"
                             "buffer plain.exp_avg_scale state device f32[27, 1]\n"
                             "buffer plain.sums state device f64[100, 67]\n";

static const char tensors_text[] =
    "{\"tensors\": ["
    "{\"buffer\": \"upper\", \"trainable\": true, \"decay\": true, \"init\": {\"normal\": 0.5}, \"recipes\": "
    "[{\"source\": \"fused\", \"dtype\": \"$\", \"shape\": [100, 4], \"steps\": [{\"slice\": [0, 0, 60]}, "
    "{\"transpose\": true}]}]},"
    "{\"buffer\": \"lower\", \"trainable\": true, \"decay\": true, \"init\": {\"normal\": 0.5}, \"recipes\": "
    "[{\"source\": \"fused\", \"dtype\": \"$\", \"shape\": [100, 4], \"steps\": [{\"slice\": [0, 60, 40]}, "
    "{\"transpose\": true}]}]},"
    "{\"buffer\": \"gamma\", \"trainable\": true, \"decay\": false, \"init\": {\"normal\": 2}, \"recipes\": "
    "[{\"source\": \"gamma\", \"dtype\": \"$\", \"shape\": [8], \"steps\": [{\"add\": 1}]}]},"
    "{\"buffer\": \"plain\", \"trainable\": true, \"decay\": true, \"init\": {\"normal\": 1}, \"recipes\": "
    "[{\"source\": \"plain\", \"dtype\": \"$\", \"shape\": [100, 67]}]}]}";

enum { FUSED = 400, GAMMA = 8, PLAIN = 6700 };

/* ---- a plan ----------------------------------------------------------------------------------------- */

typedef struct bench {
    sbp_arena *arena;
    sbp_diag *diag;
    char directory[64];
    const char *dtype, *source, *more; /* of parameters, of the source's tensors, other buffers */
    const sbp_plan *plan;
    sbp_executor *executor;
} bench;

static const char *filled_in(bench *b, const char *text, const char *dtype) {
    sbp_text out;
    sbp_text_init(&out, b->arena);
    for (; *text; text++)
        if (*text == '$' || *text == '?')
            sbp_text_add(&out, "%s", *text == '$' ? dtype : b->more);
        else
            sbp_text_add_n(&out, text, 1);
    return out.data;
}

static const char *path(bench *b, const char *name) {
    return sbp_file_join(b->arena, b->directory, name);
}

static sbp_status make_plan(void *user) {
    bench *b = user;
    const char *text = filled_in(b, program_text, b->dtype), *tensors = filled_in(b, tensors_text, b->source);
    sbp_program *program;
    SBP_TRY(sbp_program_parse(b->arena, b->diag, "test", text, strlen(text), &program));
    place(program);
    sbp_text out;
    sbp_text_init(&out, b->arena);
    sbp_program_print(&out, program);
    const sbp_plan_section sections[] = {{SBP_PLAN_PROGRAM, out.data, (int64_t)out.length},
                                         {SBP_PLAN_TENSORS, tensors, (int64_t)strlen(tensors)},
                                         {SBP_PLAN_META, "{\"dtype\": \"fp32\"}", 17}};
    SBP_TRY(sbp_plan_file_write(b->diag, path(b, "plan.bin"), sections, SBP_COUNT(sections)));
    return sbp_plan_open(b->arena, b->diag, path(b, "plan.bin"), &b->plan);
}

static sbp_status try_bench(bench *b, const char *dtype, const char *source, const char *more) {
    *b = (bench){.arena = sbp_arena_create(), .diag = sbp_diag_create(), .dtype = dtype, .source = source};
    b->more = more;
    strcpy(b->directory, "/tmp/sbp_masters_XXXXXX");
    assert_non_null(mkdtemp(b->directory));
    return sbp_guard(b->arena, b->diag, make_plan, b);
}

static bench open_bench(const char *dtype, const char *source, const char *more, bool map) {
    bench b;
    expect_ok(b.diag, try_bench(&b, dtype, source, more));
    sbp_device_options options = {0};
    expect_ok(b.diag,
              sbp_executor_create(b.diag, recorder_class(map), &options, b.plan->program, &b.executor));
    return b;
}

static void close_bench(bench *b) {
    sbp_rundir dir = {.fd = -1, .lock = -1};
    expect_ok(b->diag, sbp_rundir_open(&dir, b->diag, b->directory, SBP_RUNDIR_EXISTS));
    (void)sbp_rundir_remove(&dir, "checkpoint-3");
    for (int k = 0; k < 3; k++)
        (void)sbp_rundir_remove(&dir, ((const char *[]){"plan.bin", "w.safetensors", "out.safetensors"})[k]);
    sbp_rundir_close(&dir);
    (void)unlink(path(b, ".lock"));
    assert_int_equal(rmdir(b->directory), 0);
    sbp_executor_destroy(b->executor);
    sbp_arena_destroy(b->arena);
    sbp_diag_destroy(b->diag);
}

static uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}

static float float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

static uint64_t state = 1;

/* Bits of finite numbers whose nearest bf16 is finite, half-way cases and the least among them. */
static uint32_t draw_bits(void) {
    static const uint32_t special[] = {0,          0x80000000, 0x00000001, 0x80008000,
                                       0x3f808000, 0x3f818000, 0x3f807fff, 0xbf808001,
                                       0x7f7f7fff, 0xff7f7fff, 0x007fffff, 0x3f80ffff};
    for (;;) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        uint32_t bits = (uint32_t)(state >> 32);
        if (bits % 7 == 0)
            return special[bits / 7 % SBP_COUNT(special)];
        if ((bits & 0x7fffffff) < 0x7f7f8000)
            return bits;
    }
}

static void read_as(bench *b, const char *buffer, int64_t count, sbp_dtype dtype, void *out) {
    int32_t id = sbp_program_find_buffer(b->plan->program, buffer);
    assert_true(id >= 0 && sbp_executor_elems(b->executor, id) == count);
    expect_ok(b->diag, sbp_executor_read(b->executor, id, 0, 0, count, dtype, out, b->diag));
}

/* ---- files ------------------------------------------------------------------------------------------ */

typedef struct model {
    uint32_t fused[FUSED], gamma[GAMMA], plain[PLAIN]; /* bits */
} model;

typedef struct job {
    bench *b;
    const model *m;
    sbp_dtype dtype;
} job;

static sbp_status write_model(void *user) {
    const job *j = user;
    bench *b = j->b;
    const int64_t dims[][2] = {{100, 4}, {GAMMA}, {100, 67}};
    const sbp_tensor_spec specs[] = {
        {"fused", j->dtype, 2, dims[0]}, {"gamma", j->dtype, 1, dims[1]}, {"plain", j->dtype, 2, dims[2]}};
    const uint32_t *bits[] = {j->m->fused, j->m->gamma, j->m->plain};
    const int64_t counts[] = {FUSED, GAMMA, PLAIN};
    sbp_safetensors_writer *writer;
    SBP_TRY(sbp_safetensors_writer_create(b->arena, b->diag, path(b, "w.safetensors"), specs, 3, NULL, 0, 0,
                                          &writer));
    for (int k = 0; k < 3; k++)
        for (int64_t e = 0; e < counts[k]; e++) {
            uint16_t half = (uint16_t)(bits[k][e] >> 16);
            SBP_TRY(sbp_safetensors_writer_write(writer, b->diag,
                                                 j->dtype == SBP_F32 ? (const void *)&bits[k][e] : &half,
                                                 sbp_dtype_bytes(j->dtype)));
        }
    return sbp_safetensors_writer_commit(writer, b->diag);
}

static sbp_status load_model(bench *b, const model *m, sbp_dtype dtype) {
    job j = {b, m, dtype};
    sbp_weights *weights;
    expect_ok(b->diag, sbp_guard(b->arena, b->diag, write_model, &j));
    expect_ok(b->diag, sbp_weights_open(b->arena, b->diag, path(b, "w.safetensors"), &weights));
    sbp_status status = sbp_params_load(b->executor, b->plan, weights, 1, b->diag);
    sbp_weights_close(weights);
    return status;
}

static void draw_model(model *m) {
    for (int k = 0; k < FUSED; k++)
        m->fused[k] = draw_bits();
    for (int k = 0; k < GAMMA; k++)
        m->gamma[k] = bits_of((float)k / 64 - 0.5f) | 0x11;
    for (int k = 0; k < PLAIN; k++)
        m->plain[k] = draw_bits();
}

/* Element k of the parameter from element `source` of the file. */
static void expect_halves(bench *b, const char *name, int64_t count, const uint32_t *bits) {
    static uint16_t high[PLAIN];
    static int16_t low[PLAIN];
    char lows[40];
    snprintf(lows, sizeof lows, "%s.master_lo", name);
    read_as(b, name, count, SBP_BF16, high);
    read_as(b, lows, count, SBP_I16, low);
    for (int64_t k = 0; k < count; k++) {
        uint32_t want = (bits[k] + 0x8000) & 0xffff0000u;
        if (high[k] != want >> 16 || (int64_t)want + low[k] != (int64_t)bits[k])
            fail_msg("%s[%d]: %04x and %d, of %08x", name, (int)k, high[k], low[k], bits[k]);
    }
}

static void expect_file(bench *b, const char *name, sbp_dtype dtype, int64_t count, const uint32_t *bits) {
    static unsigned char data[PLAIN * 4];
    sbp_weights *weights;
    expect_ok(b->diag, sbp_weights_open(b->arena, b->diag, path(b, "out.safetensors"), &weights));
    const sbp_weight *w = sbp_weights_find(weights, name);
    assert_true(w && w->elems == count && w->dtype == dtype);
    expect_ok(b->diag, sbp_weights_read(weights, w, 0, count, dtype, data, b->diag));
    sbp_weights_close(weights);
    for (int64_t k = 0; k < count; k++) {
        uint32_t want = dtype == SBP_F32 ? bits[k] : (bits[k] + 0x8000) >> 16, got = 0;
        memcpy(&got, data + k * sbp_dtype_bytes(dtype), (size_t)sbp_dtype_bytes(dtype));
        if (got != want)
            fail_msg("%s[%d] is %x, not %x", name, (int)k, got, want);
    }
}

/* The model's gamma is 1 + that of the file, in fp32. */
static void gamma_of(const model *m, uint32_t *out) {
    for (int k = 0; k < GAMMA; k++)
        out[k] = bits_of((float)((double)float_of(m->gamma[k]) + 1));
}

static void files_fill_both_halves(void **unused) {
    (void)unused;
    static model m;
    for (int round = 0; round < 4; round++) {
        bench b = open_bench("bf16", round < 2 ? "f32" : "bf16", masters, round % 2);
        draw_model(&m);
        if (round >= 2) /* of a file in bf16 the low halves are 0 */
            for (int k = 0; k < PLAIN; k++)
                m.plain[k] &= 0xffff0000u, m.fused[k % FUSED] &= 0xffff0000u,
                    m.gamma[k % GAMMA] &= 0xffff0000u;
        expect_ok(b.diag, load_model(&b, &m, round < 2 ? SBP_F32 : SBP_BF16));
        uint32_t upper[240], lower[160], gamma[GAMMA];
        for (int r = 0; r < 100; r++)
            for (int c = 0; c < 4; c++)
                *(r < 60 ? &upper[c * 60 + r] : &lower[c * 40 + r - 60]) = m.fused[r * 4 + c];
        gamma_of(&m, gamma);
        expect_halves(&b, "upper", 240, upper);
        expect_halves(&b, "lower", 160, lower);
        expect_halves(&b, "gamma", GAMMA, gamma);
        expect_halves(&b, "plain", PLAIN, m.plain);
        sbp_save_options options = {.dtype = SBP_F32};
        expect_ok(b.diag, sbp_params_save(b.executor, b.plan, path(&b, "out.safetensors"), &options, b.diag));
        expect_file(&b, "fused", SBP_F32, FUSED, m.fused);
        expect_file(&b, "plain", SBP_F32, PLAIN, m.plain);
        options.dtype = SBP_BF16;
        expect_ok(b.diag, sbp_params_save(b.executor, b.plan, path(&b, "out.safetensors"), &options, b.diag));
        expect_file(&b, "fused", SBP_BF16, FUSED, m.fused);
        expect_file(&b, "plain", SBP_BF16, PLAIN, m.plain);
        m.plain[5] = 0x7f7f8000;
        if (round < 2) {
            assert_int_equal(load_model(&b, &m, SBP_F32), SBP_INPUT);
            expect_text(b.diag, "tensor 'plain': element 5 is inf as bf16, expected a finite number");
        }
        close_bench(&b);
    }
}

/* Halves have the numbers of a plan in fp32. */
static void random_numbers_fill_both_halves(void **unused) {
    (void)unused;
    static float numbers[PLAIN];
    static uint32_t bits[PLAIN];
    static const struct {
        const char *name;
        int64_t count;
    } params[] = {{"upper", 240}, {"lower", 160}, {"gamma", GAMMA}, {"plain", PLAIN}};
    bench wide = open_bench("f32", "f32", "", true), halves = open_bench("bf16", "f32", masters, false);
    expect_ok(wide.diag, sbp_params_randomize(wide.executor, wide.plan, 7, 2, wide.diag));
    expect_ok(halves.diag, sbp_params_randomize_pieces(halves.executor, halves.plan, 7, 3, 1000,
                                                       halves.diag)); /* of 6700 */
    for (int k = 0; k < SBP_COUNT(params); k++) {
        read_as(&wide, params[k].name, params[k].count, SBP_F32, numbers);
        memcpy(bits, numbers, sizeof numbers);
        expect_halves(&halves, params[k].name, params[k].count, bits);
    }
    close_bench(&wide);
    close_bench(&halves);
}

static void plans_of_bad_masters_are_refused(void **unused) {
    (void)unused;
    static const struct {
        const char *dtype, *more, *want;
    } cases[] = {
        {"f32", "buffer upper.master_lo master device i16[4, 60]\n", "'upper.master_lo' is not the i16 half"},
        {"bf16", "buffer upper.master_lo master device i8[4, 60]\n", "'upper.master_lo' is not the i16 half"},
        {"bf16", "buffer upper.master_lo master device i16[4, 61]\n",
         "'upper.master_lo' is not the i16 half"},
        {"bf16", "buffer upper.lo master device i16[4, 60]\n", "1 buffers of role master, of 0 parameters"},
    };
    for (int k = 0; k < SBP_COUNT(cases); k++) {
        bench b;
        assert_int_equal(try_bench(&b, cases[k].dtype, "f32", cases[k].more), SBP_INPUT);
        expect_text(b.diag, cases[k].want);
        close_bench(&b);
    }
}

/* ---- checkpoints ------------------------------------------------------------------------------------- */

static sbp_status move_checkpoint(bench *b, const char *directory, bool save) {
    sbp_run_state s = {.step = 3, .seed = 1, .evaluated = -1};
    if (!save)
        return sbp_checkpoint_load(b->diag, b->executor, b->plan,
                                   sbp_arena_printf(b->arena, "%s/checkpoint-3", directory), &s);
    sbp_plan_info info;
    sbp_rundir dir = {.fd = -1, .lock = -1};
    expect_ok(b->diag, sbp_plan_info_read(b->diag, b->plan, &info));
    expect_ok(b->diag, sbp_rundir_open(&dir, b->diag, directory, SBP_RUNDIR_EXISTS));
    sbp_status status =
        sbp_checkpoint_save(b->diag, b->executor, b->plan, &info, &dir, &s, (sbp_keep){0}, NULL);
    sbp_rundir_close(&dir);
    return status;
}

static bool lasts(const sbp_buffer *b) {
    return b->role == SBP_ROLE_PARAM || b->role == SBP_ROLE_STATE || b->role == SBP_ROLE_MASTER;
}

/* Any bits in all that lasts, but no NaN. */
static void fill_all(bench *b) {
    static uint32_t bits[PLAIN];
    static double numbers[PLAIN];
    for (int32_t k = 0; k < b->plan->program->buffer_count; k++) {
        const sbp_buffer *buffer = &b->plan->program->buffers[k];
        const bool squares = sbp_dtype_is_float(buffer->dtype) && strstr(buffer->name, "_sq") != NULL;
        for (int e = 0; e < PLAIN; e++) {
            bits[e] = draw_bits();
            if (buffer->dtype == SBP_BF16) /* two of them, finite and normal: so are they with any low half */
                bits[e] = (bits[e] & 0xbf7fbf7f) | 0x01000100;
            if (squares) /* none is negative: a checkpoint with such is refused */
                bits[e] &= 0x7fff7fff;
            numbers[e] = (double)float_of(draw_bits()) * 0x1.000001p0;
        }
        if (lasts(buffer))
            expect_ok(b->diag, sbp_executor_write(
                                   b->executor, k, 0, 0, sbp_executor_elems(b->executor, k), buffer->dtype,
                                   buffer->dtype == SBP_F64 ? (void *)numbers : (void *)bits, b->diag));
    }
}

static void expect_same_bits(bench *a, bench *b) {
    static unsigned char x[PLAIN * 8], y[PLAIN * 8];
    for (int32_t k = 0; k < a->plan->program->buffer_count; k++) {
        const sbp_buffer *buffer = &a->plan->program->buffers[k];
        int64_t elems = sbp_executor_elems(a->executor, k);
        if (!lasts(buffer))
            continue;
        expect_ok(a->diag, sbp_executor_read(a->executor, k, 0, 0, elems, buffer->dtype, x, a->diag));
        expect_ok(b->diag, sbp_executor_read(b->executor, k, 0, 0, elems, buffer->dtype, y, b->diag));
        if (memcmp(x, y, (size_t)(elems * sbp_dtype_bytes(buffer->dtype))) != 0)
            fail_msg("%s of a checkpoint has other bits", buffer->name);
    }
}

static const char *both(sbp_arena *arena, const char *a, const char *b) {
    return sbp_arena_printf(arena, "%s%s", a, b);
}

static void checkpoints_keep_all_bits(void **unused) {
    (void)unused;
    sbp_arena *arena = sbp_arena_create();
    for (int round = 0; round < 8; round++) {
        bool has_masters = round & 1, map = round & 2;
        const char *source = round & 4 ? "bf16" : "f32",
                   *more = both(arena, states, has_masters ? masters : "");
        bench a = open_bench(has_masters ? "bf16" : "f32", source, more, map);
        bench b = open_bench(has_masters ? "bf16" : "f32", source, more, !map);
        fill_all(&a);
        fill_all(&b);
        expect_ok(a.diag, move_checkpoint(&a, a.directory, true));
        expect_ok(b.diag, move_checkpoint(&b, a.directory, false));
        expect_same_bits(&a, &b);
        close_bench(&b);
        close_bench(&a);
    }
    sbp_arena_destroy(arena);
}

/* What a run kept and another plan does not keep so is refused, with both types. */
static void checkpoints_of_other_types_are_refused(void **unused) {
    (void)unused;
    static const struct {
        const char *dtype, *more, *other_dtype, *other, *want;
    } cases[] = {
        {"f32", "buffer plain.exp_avg state device f32[100, 67]\n", "f32",
         "buffer plain.exp_avg state device bf16[100, 67]\n",
         "has 'plain.exp_avg' as F32, 6700 elements; this plan keeps it as BF16, 6700 elements"},
        {"f32", "buffer plain.exp_avg state device d8[100, 67]\n", "f32",
         "buffer plain.exp_avg state device f32[100, 67]\n", "has 'plain.exp_avg' as U8"},
        {"f32", "buffer plain.scale state device f32[27, 1]\n", "f32",
         "buffer plain.scale state device f32[14, 1]\n",
         "has 'plain.scale' as F32, 27 elements; this plan keeps it as F32, 14 elements"},
        {"f32", "", "f32", "buffer plain.exp_avg state device f32[100, 67]\n",
         "has no 'plain.exp_avg', which this plan keeps as F32"},
        {"bf16", masters, "f32", "", "has 'gamma.exact' as BF16, 8 elements; this plan keeps it as F32"},
        {"f32", "buffer plain.exp_avg state device f32[100, 67]\n", "f32", "",
         "has 'plain.exp_avg' as F32, this plan keeps nothing of that name"},
        {"f32", "", "bf16", masters, "has no 'fused.master_lo', which this plan keeps as I16"},
    };
    for (int k = 0; k < SBP_COUNT(cases); k++) {
        bench a = open_bench(cases[k].dtype, "f32", cases[k].more, true);
        bench b = open_bench(cases[k].other_dtype, "f32", cases[k].other, true);
        fill_all(&a);
        expect_ok(a.diag, move_checkpoint(&a, a.directory, true));
        assert_int_equal(move_checkpoint(&b, a.directory, false), SBP_INPUT);
        expect_text(b.diag, cases[k].want);
        close_bench(&b);
        close_bench(&a);
    }
}

/* ---- in words ---------------------------------------------------------------------------------------- */

static void kept_types_are_described(void **unused) {
    (void)unused;
    static const char head[] = "program p\ntarget cpu\nsizes t_max 8, s_max 1, chunk 4, head_chunk 4\n"
                               "arena device 0, host 0\nscalars T, S\n"
                               "buffer n result device f64[1, 1]\nbuffer frozen param device f32[512, 512]\n";
    static const char update[] =
        "entry update {\n  reduce(dst += n, src = g) {op = sum, flushes = w, gradient = "
        "src}\n}\n";
    static const struct {
        const char *buffers, *want;
    } cases[] = {
        {"buffer w param device f32[256, 8]\nbuffer g grad device f32[256, 8]\n",
         "weights fp32 (4 bytes each), no states"},
        {"buffer w param device f32[256, 8]\nbuffer g grad device f32[256, 8]\n"
         "buffer w.exp_avg state device f32[256, 8]\nbuffer w.exp_avg_sq state host f32[256, 8]\n",
         "weights fp32 (4 bytes each), states fp32 (8 bytes)"},
        {"buffer w param device bf16[256, 8]\nbuffer g grad device f32[256, 8]\n"
         "buffer w.master_lo master device i16[256, 8]\nbuffer w.exp_avg state device d8[256, 8]\n"
         "buffer w.exp_avg_scale state device f32[8, 1]\nbuffer w.exp_avg_sq state host ud8[256, 8]\n"
         "buffer w.exp_avg_sq_scale state device f32[8, 1]\n",
         "weights bf16 + exact master (4 bytes each), states int8 (2.03 bytes)"},
        {"buffer w param device bf16[256, 8]\nbuffer g grad device f32[256, 8]\n"
         "buffer w.exp_avg state device bf16[256, 8]\nbuffer w.exp_avg_sq state host f32[256, 8]\n",
         "weights bf16 (2 bytes each), states fp32 and bf16 (6 bytes)"},
    };
    for (int k = 0; k < SBP_COUNT(cases); k++) {
        sbp_arena *arena = sbp_arena_create();
        sbp_diag *diag = sbp_diag_create();
        sbp_text out;
        sbp_program *program;
        sbp_text_init(&out, arena);
        sbp_text_add(&out, "%s%s%s", head, cases[k].buffers, update);
        if (sbp_program_parse(arena, diag, "test", out.data, out.length, &program) != SBP_OK ||
            sbp_program_verify(program, diag) != SBP_OK)
            fail_msg("%s", sbp_diag_text(diag, SBP_ERROR));
        sbp_text_init(&out, arena);
        assert_true(sbp_program_describe_kept(arena, program, &out));
        assert_string_equal(out.data, cases[k].want);
        program->entry_count = 0;
        assert_false(sbp_program_describe_kept(arena, program, &out));
        sbp_diag_destroy(diag);
        sbp_arena_destroy(arena);
    }
}

/* ---- random numbers of a step -------------------------------------------------------------------------- */

static void random_numbers_are_those_of_the_step(void **unused) {
    (void)unused;
    enum { STEPS = 200 };
    static const char *const names[] = {"random_param", "random_exp_avg", "random_exp_avg_sq"};
    static double seen[2 * STEPS * SBP_COUNT(names)];
    int count = 0;
    double sum = 0;
    for (uint64_t seed = 42; seed < 44; seed++)
        for (int64_t t = 1; t <= STEPS; t++)
            for (int n = 0; n < SBP_COUNT(names); n++) {
                double value = sbp_trainer_random(seed, t, names[n]);
                assert_true(value >= 0 && value < 0x1p53 && value == floor(value));
                assert_true(value == sbp_trainer_random(seed, t, names[n]));
                for (int k = 0; k < count; k++)
                    assert_true(seen[k] != value);
                seen[count++] = value;
                sum += value * 0x1p-53;
            }
    assert_true(fabs(sum / count - 0.5) < 0.05);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_fill_both_halves),
        cmocka_unit_test(random_numbers_fill_both_halves),
        cmocka_unit_test(plans_of_bad_masters_are_refused),
        cmocka_unit_test(checkpoints_keep_all_bits),
        cmocka_unit_test(checkpoints_of_other_types_are_refused),
        cmocka_unit_test(kept_types_are_described),
        cmocka_unit_test(random_numbers_are_those_of_the_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
