/* Formats in which frozen parameters are kept: what their parts stand for, bit by bit, against the gguf
 * package (tests/data/io/quants.safetensors), bitsandbytes (tests/data/formats.json), transformers
 * (tests/data/io/blocks.safetensors) and compressed-tensors (packed.safetensors there), on the host and by
 * the kernels of the table; weights that are brought into a format get the codes that these give. */
#include "tests/unit/io_testing.h"

#include "frontends/formats/weights/weights.h"
#include "ir/base/json.h"

enum { MOST = 2048 };

/* Parts of at most MOST elements. */
typedef struct parts {
    _Alignas(8) unsigned char bytes[SBP_MAX_FORMAT_PARTS][4 * MOST];
    void *at[SBP_MAX_FORMAT_PARTS];
} parts;

static void begin(parts *p) {
    memset(p->bytes, 0xee, sizeof p->bytes);
    for (int k = 0; k < SBP_MAX_FORMAT_PARTS; k++)
        p->at[k] = p->bytes[k];
}

static const void *const *as_read(const parts *p) {
    return (const void *const *)p->at;
}

/* What the kernel of the table makes of the parts. */
static void run_kernel(io_fixture *f, sbp_format format, const parts *p, int64_t blocks, sbp_dtype dtype,
                       void *out) {
    const sbp_format_info *info = sbp_format_of(format);
    sbp_rowkernel *kernel = sbp_format_kernel(f->arena, f->diag, format, dtype);
    sbp_rk_view views[SBP_MAX_FORMAT_PARTS + 1];
    assert_non_null(kernel);
    assert_int_equal(kernel->operand_count, info->part_count + 1);
    for (int32_t k = 0; k < info->part_count; k++) {
        assert_int_equal(kernel->operands[k].dtype, info->parts[k].dtype);
        assert_string_equal(kernel->operands[k].name, info->parts[k].name);
        views[k] = (sbp_rk_view){.data = p->at[k], .stride = info->parts[k].count};
    }
    views[info->part_count] = (sbp_rk_view){.data = out, .stride = info->block};
    assert_int_equal(sbp_rowkernel_run_reference(kernel, blocks, 0, views, NULL), SBP_OK);
}

/* Decoded, and by the kernel in fp32, fp64 and bf16: the same numbers. */
static void check_numbers(io_fixture *f, sbp_format format, const parts *p, int64_t elems,
                          const float *want) {
    float got[MOST];
    double wide[MOST];
    uint16_t narrow[MOST];
    int64_t blocks = elems / sbp_format_of(format)->block;
    assert_true(elems <= MOST && elems % sbp_format_of(format)->block == 0);
    sbp_format_decoder *decoder = sbp_format_decoder_create(f->arena, f->diag, format);
    assert_non_null(decoder);
    sbp_format_decode(decoder, as_read(p), blocks, got);
    assert_memory_equal(got, want, (size_t)elems * sizeof *got);
    run_kernel(f, format, p, blocks, SBP_F32, got);
    run_kernel(f, format, p, blocks, SBP_F64, wide);
    run_kernel(f, format, p, blocks, SBP_BF16, narrow);
    for (int64_t i = 0; i < elems; i++)
        if (!(got[i] == want[i] && wide[i] == (double)want[i] && narrow[i] == sbp_bf16_from_f32(want[i])))
            fail_msg("%s, element %lld: %.9g, %.17g, %g, expected %.9g", sbp_format_of(format)->name,
                     (long long)i, (double)got[i], wide[i], (double)sbp_f32_from_bf16(narrow[i]),
                     (double)want[i]);
}

static void files_have_what_gguf_reads(void **state) {
    io_fixture *f = *state;
    sbp_weights *w, *expected;
    int found = 0;
    assert_ok(f, sbp_weights_open(f->arena, f->diag, "tests/data/io/quants.gguf", &w));
    assert_ok(f, sbp_weights_open(f->arena, f->diag, "tests/data/io/quants.safetensors", &expected));
    for (int32_t i = 0; i < sbp_weights_count(w); i++) {
        const sbp_weight *t = sbp_weights_at(w, i);
        static parts p, tail;
        float want[MOST];
        if (!t->format)
            continue;
        const sbp_format_info *info = sbp_format_of(t->format);
        int64_t blocks = t->elems / info->block;
        begin(&p);
        begin(&tail);
        assert_ok(f, sbp_weights_read(expected, sbp_weights_find(expected, t->name), 0, t->elems, SBP_F32,
                                      want, f->diag));
        assert_ok(f, sbp_weights_read_blocks(w, t, 0, blocks, p.at, f->diag));
        check_numbers(f, t->format, &p, t->elems, want);
        int64_t bytes = 0;
        for (int32_t k = 0; k < info->part_count; k++)
            bytes += info->parts[k].count * blocks * sbp_dtype_bytes(info->parts[k].dtype);
        assert_true(bytes == t->bytes && bytes == sbp_format_size(t->format, t->elems));
        /* from any block on; not beyond the last */
        assert_true(blocks > 1);
        assert_ok(f, sbp_weights_read_blocks(w, t, 1, blocks - 1, tail.at, f->diag));
        check_numbers(f, t->format, &tail, t->elems - info->block, want + info->block);
        assert_fails(f, SBP_INTERNAL, "has no", sbp_weights_read_blocks(w, t, 1, blocks, tail.at, f->diag));
        found++;
    }
    assert_int_equal(found, 5); /* nf4 is in no file, fp8 in others; mxfp4 below */
    sbp_weights_close(w);
    sbp_weights_close(expected);
}

/* A tensor of the file, and what transformers makes of it in bf16: numbers from `first` on, of which the last
 * two axes may be the other way round. */
static void check_released(io_fixture *f, const sbp_weights *w, const char *name, const char *as, bool turned,
                           int64_t first) {
    enum { MOST_RELEASED = 8192 };
    static uint16_t got[MOST_RELEASED], want[MOST_RELEASED];
    const sbp_weight *t = sbp_weights_find(w, name), *e = sbp_weights_find(w, as);
    assert_non_null(t);
    assert_non_null(e);
    assert_true(t->readable && t->quantized && e->elems <= MOST_RELEASED);
    assert_ok(f, sbp_weights_read(w, e, 0, e->elems, SBP_BF16, want, f->diag));
    assert_ok(f, sbp_weights_read(w, t, first, e->elems, SBP_BF16, got, f->diag));
    int64_t in = t->dim[t->rank - 1], out = t->dim[t->rank - 2];
    for (int64_t i = 0; i < e->elems; i++) {
        int64_t at = turned ? (i / (in * out) * in + i % in) * out + i / in % out : i;
        if (got[i] != want[at])
            fail_msg("%s, element %lld: %04x, expected %04x", name, (long long)i, got[i], want[at]);
    }
    for (int64_t at = first; t->format && at < first + e->elems;) {
        static parts p;
        const sbp_format_info *info = sbp_format_of(t->format);
        float wide[MOST];
        int64_t n = first + e->elems - at < MOST / 2 ? first + e->elems - at : MOST / 2;
        assert_true(n % info->block == 0);
        begin(&p);
        assert_ok(f, sbp_weights_read_blocks(w, t, at / info->block, n / info->block, p.at, f->diag));
        assert_int_equal(sbp_format_find_bad(t->format, as_read(&p), n / info->block), -1);
        assert_ok(f, sbp_weights_read(w, t, at, n, SBP_F32, wide, f->diag));
        check_numbers(f, t->format, &p, n, wide);
        at += n;
    }
}

/* For FP8 config.json says which rows and columns share a scale; those of the file are of all kinds. */
static void check_stated(io_fixture *f, const char *name, const char *as, int64_t first, const char *size,
                         sbp_format format) {
    const char *data,
        *config = sbp_arena_printf(f->arena, "{\"quantization_config\": {\"weight_block_size\": %s}}", size);
    size_t length;
    sbp_weights *w;
    assert_ok(f, sbp_file_read(f->arena, f->diag, "tests/data/io/blocks.safetensors", &data, &length));
    io_put(io_path(f, "model.safetensors"), data, length);
    io_put(io_path(f, "config.json"), config, strlen(config));
    assert_ok(f, sbp_weights_open(f->arena, f->diag, f->directory, &w));
    check_released(f, w, name, as, false, first);
    assert_int_equal(sbp_weights_find(w, name)->format, format);
    sbp_weights_close(w);
}

static void released_weights_are_what_transformers_reads(void **state) {
    io_fixture *f = *state;
    sbp_weights *w;
    assert_ok(f, sbp_weights_open(f->arena, f->diag, "tests/data/io/blocks.safetensors", &w));
    check_released(f, w, "every_blocks+scales", "every", true, 0);
    check_released(f, w, "experts.gate_up_proj_blocks+scales", "experts.gate_up_proj", true, 0);
    check_released(f, w, "one.weight", "one.bf16", false, 0);
    sbp_weights_close(w);
    check_stated(f, "blocks.weight", "blocks.bf16", INT64_C(120) * 128, "[128, 128]", SBP_FORMAT_FP8);
    check_stated(f, "wide.weight", "wide.bf16", 0, "[128, 128]", SBP_FORMAT_FP8);
    check_stated(f, "small.weight", "small.bf16", 0, "[2, 9]", SBP_FORMAT_NONE);
    check_stated(f, "narrow.weight", "narrow.bf16", 0, "[3, 64]", SBP_FORMAT_NONE);
    check_stated(f, "fused", "fused.bf16", 0, "[2, 128]", SBP_FORMAT_FP8);
    check_stated(f, "fused_small", "fused_small.bf16", 0, "[2, 2]", SBP_FORMAT_NONE);
    check_stated(f, "powers.weight", "powers.bf16", 0, "[2, 128]", SBP_FORMAT_FP8);
}

/* Layers in INT4 and INT8 of all kinds, beside each what compressed-tensors makes of it; those of whole
 * groups of 32 are in blocks. Read from anywhere, too: within a byte, a group, a row. */
static void packed_weights_are_what_compressed_tensors_reads(void **state) {
    enum { ROWS = 9 };
    static const struct {
        const char *name;
        sbp_format format[2][2]; /* of 4 and 8 bits; without zeros and with */
    } kinds[] = {
        {"32.96", {{SBP_FORMAT_INT4, SBP_FORMAT_INT4_ZERO}, {SBP_FORMAT_INT8, SBP_FORMAT_INT8_ZERO}}},
        {"64.128",
         {{SBP_FORMAT_INT4_F32, SBP_FORMAT_INT4_ZERO_F32}, {SBP_FORMAT_INT8_F32, SBP_FORMAT_INT8_ZERO_F32}}},
        {"128.256",
         {{SBP_FORMAT_INT4_F16, SBP_FORMAT_INT4_ZERO_F16}, {SBP_FORMAT_INT8_F16, SBP_FORMAT_INT8_ZERO_F16}}},
        {"row.160", {{SBP_FORMAT_INT4, SBP_FORMAT_INT4_ZERO}, {SBP_FORMAT_INT8, SBP_FORMAT_INT8_ZERO}}},
        {"16.48", {{SBP_FORMAT_NONE}}},
        {"row.45", {{SBP_FORMAT_NONE}}}};
    io_fixture *f = *state;
    sbp_weights *w;
    assert_ok(f, sbp_weights_open(f->arena, f->diag, "tests/data/io/packed.safetensors", &w));
    for (int i = 0; i < 4 * SBP_COUNT(kinds); i++) {
        int wide = i / 2 % 2, zero = i % 2;
        static float want[ROWS * 256], got[ROWS * 256];
        const char *name = sbp_arena_printf(f->arena, "int%d.%s.%s", wide ? 8 : 4, zero ? "zero" : "plain",
                                            kinds[i / 4].name);
        const sbp_weight *t = sbp_weights_find(w, sbp_arena_printf(f->arena, "%s.weight", name)),
                         *e = sbp_weights_find(w, sbp_arena_printf(f->arena, "%s.f32", name));
        assert_true(t && e && t->readable && t->quantized && t->rank == 2 && t->dim[0] == ROWS);
        assert_true(t->elems == e->elems && t->elems <= SBP_COUNT(want));
        assert_int_equal(t->format, kinds[i / 4].format[wide][zero]);
        assert_ok(f, sbp_weights_read(w, e, 0, e->elems, SBP_F32, want, f->diag));
        for (int64_t first = 0; first < t->elems; first = 2 * first + 1) {
            assert_ok(f, sbp_weights_read(w, t, first, t->elems - first, SBP_F32, got, f->diag));
            assert_memory_equal(got, want + first, (size_t)(t->elems - first) * sizeof *got);
        }
        int64_t per_row = t->dim[1] / 32;
        for (int64_t row = 0; t->format && row + 5 <= ROWS; row++) {
            static parts p;
            begin(&p);
            assert_ok(f, sbp_weights_read_blocks(w, t, row * per_row, 5 * per_row, p.at, f->diag));
            check_numbers(f, t->format, &p, 5 * t->dim[1], want + row * t->dim[1]);
        }
    }
    sbp_weights_close(w);
}

/* Blocks of which a number is none, or none that is finite. */
static void bad_blocks_are_found(void **state) {
    (void)state;
    uint8_t codes[2 * 128] = {0}, scales[3] = {252, 127, 252};
    const void *mxfp4[] = {codes, scales}, *fp8[] = {codes, codes};
    assert_int_equal(sbp_format_find_bad(SBP_FORMAT_MXFP4, mxfp4, 3), -1);
    scales[1] = 253;
    assert_int_equal(sbp_format_find_bad(SBP_FORMAT_MXFP4, mxfp4, 3), 1);
    codes[255] = 0x7e;
    assert_int_equal(sbp_format_find_bad(SBP_FORMAT_FP8, fp8, 2), -1);
    codes[255] = 0xff;
    assert_int_equal(sbp_format_find_bad(SBP_FORMAT_FP8, fp8, 2), 1);
    assert_int_equal(sbp_format_find_bad(SBP_FORMAT_Q8_0, mxfp4, 1), -1);
}

static int64_t read_numbers(io_fixture *f, const sbp_json *object, const char *key, int64_t *out) {
    const sbp_json *array = NULL;
    assert_ok(f, sbp_json_get_array(f->diag, object, key, SBP_JSON_REQUIRED, &array));
    assert_true(array->count <= MOST);
    for (int64_t i = 0; i < array->count; i++)
        assert_ok(f, sbp_json_as_i64(f->diag, &array->items[i], &out[i]));
    return array->count;
}

static int64_t read_floats(io_fixture *f, const sbp_json *object, const char *key, float *out) {
    static int64_t numbers[MOST];
    int64_t count = read_numbers(f, object, key, numbers);
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits = (uint32_t)numbers[i];
        memcpy(&out[i], &bits, 4);
    }
    return count;
}

static void weights_become_the_same_codes(void **state) {
    io_fixture *f = *state;
    static const sbp_format formats[] = {SBP_FORMAT_NF4, SBP_FORMAT_Q8_0};
    const sbp_json *root, *vectors = NULL;
    assert_ok(f, sbp_json_read(f->arena, f->diag, "tests/data/formats.json", 0, &root));
    for (int n = 0; n < SBP_COUNT(formats); n++) {
        const sbp_format_info *info = sbp_format_of(formats[n]);
        static parts p;
        static int64_t codes[MOST];
        float values[MOST], scales[MOST], want[MOST];
        assert_ok(f, sbp_json_get_object(f->diag, root, info->name, SBP_JSON_REQUIRED, &vectors));
        int64_t elems = read_floats(f, vectors, "values", values), blocks = elems / info->block;
        assert_true(elems >= 640);
        assert_true(read_numbers(f, vectors, "codes", codes) == elems);
        assert_true(read_floats(f, vectors, "scales", scales) == blocks);
        assert_true(read_floats(f, vectors, "f32", want) == elems);
        begin(&p);
        assert_true(sbp_format_can_encode(formats[n]));
        sbp_format_encode(formats[n], values, blocks, p.at);
        for (int64_t i = 0; i < elems; i++) {
            int64_t b = i / info->block, k = i % info->block, code;
            if (formats[n] == SBP_FORMAT_Q8_0)
                code = ((const int8_t *)p.at[0])[i];
            else
                code = p.bytes[0][b * 32 + k % 32] >> (k / 32 * 4) & 15;
            if (code != codes[i] || sbp_element_get(p.at[1], info->parts[1].dtype, b) != (double)scales[b])
                fail_msg("%s, element %lld: code %lld, scale %g, expected %lld, %g", info->name, (long long)i,
                         (long long)code, sbp_element_get(p.at[1], info->parts[1].dtype, b),
                         (long long)codes[i], (double)scales[b]);
        }
        check_numbers(f, formats[n], &p, elems, want);
        if (formats[n] == SBP_FORMAT_NF4) { /* rounded once more, as bitsandbytes does */
            float narrow[MOST];
            assert_true(read_floats(f, vectors, "bf16", narrow) == elems);
            for (int64_t i = 0; i < elems; i++)
                assert_true(narrow[i] == sbp_f32_from_bf16(sbp_bf16_from_f32(want[i])));
        }
    }
}

static void shapes_must_hold_blocks(void **state) {
    (void)state;
    sbp_format found;
    assert_true(sbp_format_from_name("q4_k", &found) && found == SBP_FORMAT_Q4_K);
    assert_false(sbp_format_from_name("none", &found));
    assert_false(sbp_format_from_name("q5_k", &found));
    assert_true(sbp_format_fits(SBP_FORMAT_Q8_0, 3, 64) && !sbp_format_fits(SBP_FORMAT_Q8_0, 32, 48));
    assert_true(sbp_format_fits(SBP_FORMAT_NF4, 4, 48) && !sbp_format_fits(SBP_FORMAT_NF4, 3, 48));
    assert_true(!sbp_format_fits(SBP_FORMAT_Q6_K, 256, 128) && !sbp_format_fits(SBP_FORMAT_NF4, 0, 64));
    assert_true(sbp_format_size(SBP_FORMAT_NF4, 128) == 2 * 36 &&
                sbp_format_size(SBP_FORMAT_Q4_K, 512) == 2 * 144);
    for (int i = SBP_FORMAT_NONE + 1; i < SBP_FORMAT_COUNT; i++)
        assert_true(sbp_format_of((sbp_format)i)->block <= SBP_FORMAT_LARGEST_BLOCK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(files_have_what_gguf_reads, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(weights_become_the_same_codes, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(packed_weights_are_what_compressed_tensors_reads, io_setup,
                                        io_teardown),
        cmocka_unit_test_setup_teardown(released_weights_are_what_transformers_reads, io_setup, io_teardown),
        cmocka_unit_test(bad_blocks_are_found),
        cmocka_unit_test(shapes_must_hold_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
