/* GGUF: metadata of every type, block types against the gguf package, and wrong files. */
#include "tests/unit/io_testing.h"

#include <math.h>

#include "frontends/formats/weights/gguf.h"
#include "frontends/formats/weights/weights.h"

static void reads_metadata(void **state) {
    io_fixture *f = *state;
    const sbp_gguf *g;
    int64_t i = 0;
    double d = 0;
    bool b = false;
    const char *s;
    const sbp_gguf_value *a;
    assert_ok(f, sbp_gguf_open(f->arena, f->diag, "tests/data/io/quants.gguf", &g));
    assert_ok(f, sbp_gguf_get_string(f->diag, g, "general.architecture", SBP_JSON_REQUIRED, &s));
    assert_string_equal(s, "llama");
    static const struct {
        const char *key;
        int64_t value;
    } integers[] = {{"llama.block_count", 2}, {"t.i8", -3},     {"t.u8", 200},
                    {"t.i16", -300},          {"t.u16", 60000}, {"t.i64", -(1LL << 40)}};
    for (int k = 0; k < SBP_COUNT(integers); k++) {
        assert_ok(f, sbp_gguf_get_i64(f->diag, g, integers[k].key, SBP_JSON_REQUIRED, &i));
        assert_true(i == integers[k].value);
    }
    assert_fails(f, SBP_INPUT, "t.u64' is 9223372036854775809, which is out of range",
                 sbp_gguf_get_i64(f->diag, g, "t.u64", SBP_JSON_REQUIRED, &i));
    assert_ok(f, sbp_gguf_get_double(f->diag, g, "llama.eps", SBP_JSON_REQUIRED, &d));
    assert_true(d == (double)1e-5f);
    assert_ok(f, sbp_gguf_get_double(f->diag, g, "t.f64", SBP_JSON_REQUIRED, &d));
    assert_true(d == 0.1);
    assert_ok(f, sbp_gguf_get_bool(f->diag, g, "t.bool", SBP_JSON_REQUIRED, &b));
    assert_true(b);
    assert_ok(f, sbp_gguf_get_string(f->diag, g, "t.text", SBP_JSON_REQUIRED, &s));
    assert_string_equal(s, "\xc3\xa9\n");
    assert_ok(f, sbp_gguf_get_array(f->diag, g, "t.numbers", SBP_GGUF_F64, SBP_JSON_REQUIRED, &a));
    assert_true(a->count == 2 && sbp_gguf_double_at(a, 1) == 2.5);
    assert_ok(f, sbp_gguf_get_array(f->diag, g, "t.ints", SBP_GGUF_I64, SBP_JSON_REQUIRED, &a));
    assert_true(a->count == 3 && sbp_gguf_i64_at(a, 1) == -2);
    assert_ok(f, sbp_gguf_get_array(f->diag, g, "t.strings", SBP_GGUF_STRING, SBP_JSON_REQUIRED, &a));
    assert_true(a->count == 3 && a->strings[1].length == 0);
    assert_string_equal(a->strings[2].data, "ccc");
    assert_fails(f, SBP_INPUT, "quants.gguf: key 't.text': expected an array of integers, found string",
                 sbp_gguf_get_array(f->diag, g, "t.text", SBP_GGUF_I64, SBP_JSON_REQUIRED, &a));
    assert_fails(f, SBP_INPUT, "key 't.strings': expected a string, found an array of string",
                 sbp_gguf_get_string(f->diag, g, "t.strings", SBP_JSON_REQUIRED, &s));
    assert_fails(f, SBP_INPUT, "the key 'x' is missing",
                 sbp_gguf_get_i64(f->diag, g, "x", SBP_JSON_REQUIRED, &i));
    i = 5;
    assert_ok(f, sbp_gguf_get_i64(f->diag, g, "x", SBP_JSON_OPTIONAL, &i));
    assert_int_equal(i, 5);
    assert_string_equal(sbp_gguf_at(g, 0)->key, "general.architecture");
}

static void compare_with_package(io_fixture *f, const char *file, const char *numbers) {
    sbp_weights *w, *expected;
    assert_ok(f, sbp_weights_open(f->arena, f->diag, file, &w));
    assert_ok(f, sbp_weights_open(f->arena, f->diag, numbers, &expected));
    assert_non_null(sbp_weights_gguf(w));
    assert_int_equal(sbp_weights_count(w) >= sbp_weights_count(expected), true);
    for (int32_t i = 0; i < sbp_weights_count(expected); i++) {
        const sbp_weight *e = sbp_weights_at(expected, i), *t = sbp_weights_find(w, e->name);
        assert_non_null(t);
        assert_true(t->rank == 2 && t->dim[0] == e->dim[0] && t->dim[1] == e->dim[1]);
        float want[1600], got[1600];
        double wide[1600];
        assert_true(e->elems <= 1600);
        assert_ok(f, sbp_weights_read(expected, e, 0, e->elems, SBP_F32, want, f->diag));
        assert_ok(f, sbp_weights_read(w, t, 0, t->elems, SBP_F32, got, f->diag));
        for (int64_t k = 0; strcmp(e->name, "mxfp4") == 0 && k < e->elems; k++)
            want[k] =
                want[k] == 0 ? copysignf(0, got[k]) : want[k]; /* ggml has no code for -0, OCP has one */
        if (memcmp(want, got, (size_t)e->elems * 4) != 0)
            fail_msg("%s differs", e->name);
        assert_ok(f, sbp_weights_read(w, t, 0, t->elems, SBP_F64, wide, f->diag));
        for (int64_t k = 0; k < e->elems; k++)
            assert_true(strcmp(e->name, "f64") == 0 || wide[k] == (double)want[k]);
        /* Parts that begin and end anywhere. */
        uint64_t random = (uint64_t)i;
        for (int round = 0; round < 50; round++) {
            int64_t from = (int64_t)io_random(&random) % e->elems,
                    n = (int64_t)io_random(&random) % (e->elems - from) + 1;
            memset(got, 0, sizeof got);
            assert_ok(f, sbp_weights_read(w, t, from, n, SBP_F32, got, f->diag));
            assert_memory_equal(got, want + from, (size_t)n * 4);
        }
    }
    sbp_weights_close(w);
    sbp_weights_close(expected);
}

static void decodes_like_the_gguf_package(void **state) {
    io_fixture *f = *state;
    sbp_weights *w;
    compare_with_package(f, "tests/data/io/quants.gguf", "tests/data/io/quants.safetensors");
    compare_with_package(f, "tests/data/io/grids.gguf", "tests/data/io/grids.safetensors");
    assert_ok(f, sbp_weights_open(f->arena, f->diag, "tests/data/io/quants.gguf", &w));
    const sbp_weight *t = sbp_weights_find(w, "i32");
    int64_t values[2];
    assert_ok(f, sbp_weights_read(w, t, 0, 2, SBP_I64, values, f->diag));
    assert_true(values[0] == 5 && values[1] == -6);
    assert_true(sbp_weights_find(w, "q4_k")->quantized && !sbp_weights_find(w, "f16")->quantized);
    sbp_weights_close(w);
}

/* ---- wrong files --------------------------------------------------------------------------------------- */

typedef struct image {
    unsigned char data[4000];
    size_t length;
} image;

static void put(image *m, uint64_t value, int bytes) {
    for (int i = 0; i < bytes; i++)
        m->data[m->length++] = (unsigned char)(value >> (8 * i));
}

static void put_text(image *m, const char *text) {
    put(m, strlen(text), 8);
    memcpy(m->data + m->length, text, strlen(text));
    m->length += strlen(text);
}

typedef struct spec {
    uint32_t version, rank, type;
    uint64_t dim0, dim1, offset, key_count, tensor_count, array_count;
    uint32_t array_type, value_type;
    uint64_t alignment;
    const char *second; /* name of the second key */
    int data;
} spec;

static const spec good = {.version = 3,
                          .rank = 2,
                          .type = 2,
                          .dim0 = 32,
                          .dim1 = 2,
                          .key_count = 2,
                          .tensor_count = 1,
                          .array_count = 2,
                          .array_type = 5,
                          .value_type = 9,
                          .alignment = 32,
                          .second = "array",
                          .data = 36};

static void build(image *m, const spec *s) {
    m->length = 0;
    put(m, 0x46554747, 4);
    put(m, s->version, 4);
    put(m, s->tensor_count, 8);
    put(m, s->key_count, 8);
    put_text(m, "general.alignment");
    put(m, 10, 4);
    put(m, s->alignment, 8);
    put_text(m, s->second);
    put(m, s->value_type, 4);
    put(m, s->array_type, 4);
    put(m, s->array_count, 8);
    put(m, 1, 4);
    put(m, 2, 4);
    put_text(m, "t");
    put(m, s->rank, 4);
    put(m, s->dim0, 8);
    put(m, s->dim1, 8);
    put(m, s->type, 4);
    put(m, s->offset, 8);
    while (m->length % 32 != 0)
        put(m, 0, 1);
    for (int i = 0; i < s->data; i++)
        put(m, (uint64_t)i, 1);
}

static sbp_status open_image(io_fixture *f, const image *m) {
    const char *path = io_path(f, "x.gguf");
    sbp_weights *w;
    io_put(path, m->data, m->length);
    SBP_TRY(sbp_weights_open(f->arena, f->diag, path, &w));
    float out[64];
    sbp_status status = SBP_OK;
    for (int32_t i = 0; i < sbp_weights_count(w); i++) {
        const sbp_weight *t = sbp_weights_at(w, i);
        int64_t n = t->elems < 64 ? t->elems : 64;
        if (t->readable && sbp_dtype_is_float(t->dtype))
            status = sbp_weights_read(w, t, t->elems - n, n, SBP_F32, out, f->diag);
    }
    sbp_weights_close(w);
    return status;
}

static void names_what_is_wrong(void **state) {
    io_fixture *f = *state;
    image m;
#define WRONG(message, ...)                                                                                  \
    do {                                                                                                     \
        spec s = good;                                                                                       \
        __VA_ARGS__;                                                                                         \
        build(&m, &s);                                                                                       \
        assert_fails(f, SBP_INPUT, message, open_image(f, &m));                                              \
    } while (0)
    build(&m, &good);
    assert_ok(f, open_image(f, &m));
    m.data[4] = 2; /* the version before has the same layout */
    assert_ok(f, open_image(f, &m));
    m.data[0] = 'X';
    assert_fails(f, SBP_INPUT, "not a GGUF file: it begins with 58 47 55 46", open_image(f, &m));
    WRONG("GGUF version 1 is not supported", s.version = 1);
    WRONG("(big-endian)", s.version = 0x03000000);
    WRONG("unknown ggml type 99", s.type = 99);
    WRONG("rows of 31 elements, which is not a multiple of the 32 of Q4_0", s.dim0 = 31);
    WRONG("does not fit 64 bits", s.dim0 = 1ULL << 40, s.dim1 = 1ULL << 40);
    WRONG("does not fit 64 bits", s.dim0 = ~0ULL);
    WRONG("is larger than the file", s.dim1 = 1ULL << 50);
    WRONG("ends at byte", s.dim1 = 3);
    WRONG("9 dimensions", s.rank = 9);
    WRONG("not a multiple of the alignment 32", s.offset = 8);
    WRONG("is larger than the file", s.offset = 1ULL << 62);
    WRONG("ends at byte", s.offset = 32);
    WRONG("general.alignment is 48", s.alignment = 48);
    WRONG("general.alignment is 0", s.alignment = 0);
    WRONG("more than the", s.array_count = 1ULL << 60);
    WRONG("more than the", s.array_count = 1ULL << 60, s.array_type = 8);
    WRONG("an array of arrays", s.array_type = 9);
    WRONG("type 13, which is unknown", s.array_type = 13);
    WRONG("'general.alignment' occurs twice", s.second = "general.alignment");
    WRONG("keys are more than", s.key_count = 1ULL << 60);
    WRONG("1152921504606846976 tensors", s.tensor_count = 1ULL << 60);
    WRONG("needs", s.key_count = 3);
    WRONG("expected an integer, found an array of i32", s.second = "split.count");
#undef WRONG
    const sbp_gguf *g;
    assert_fails(f, SBP_IO, "No such file", sbp_gguf_open(f->arena, f->diag, "/nowhere/x.gguf", &g));
    assert_fails(f, SBP_INPUT, "not a GGUF file",
                 sbp_gguf_open(f->arena, f->diag, "tests/data/io/plain.safetensors", &g));
}

/* A part of a model: one tensor of four numbers, and which part it says it is. */
static void put_part(const io_fixture *f, const char *file, int number, int count, int tensors,
                     const char *name) {
    image m = {.length = 0};
    put(&m, 0x46554747, 4);
    put(&m, 3, 4);
    put(&m, 1, 8);
    put(&m, 3, 8);
    const struct {
        const char *key;
        int value;
    } keys[] = {{"split.no", number}, {"split.count", count}, {"split.tensors.count", tensors}};
    for (int i = 0; i < SBP_COUNT(keys); i++) {
        put_text(&m, keys[i].key);
        put(&m, 5, 4);
        put(&m, (uint64_t)keys[i].value, 4);
    }
    put_text(&m, name);
    put(&m, 1, 4);
    put(&m, 4, 8);
    put(&m, 0, 4);
    put(&m, 0, 8);
    while (m.length % 32 != 0)
        put(&m, 0, 1);
    float values[4] = {(float)number, 1, 2, 3};
    memcpy(m.data + m.length, values, sizeof values);
    io_put(io_path(f, file), m.data, m.length + sizeof values);
}

static void parts_of_a_model(void **state) {
    io_fixture *f = *state;
    sbp_weights *w;
    float value;
    static const char first[] = "m-00001-of-00003.gguf", second[] = "m-00002-of-00003.gguf",
                      third[] = "m-00003-of-00003.gguf";
    put_part(f, first, 0, 3, 3, "a");
    put_part(f, second, 1, 3, 3, "b");
    put_part(f, third, 2, 3, 3, "c");
    assert_ok(f, sbp_weights_open(f->arena, f->diag, io_path(f, first), &w));
    assert_int_equal(sbp_weights_count(w), 3);
    assert_ok(f, sbp_weights_read(w, sbp_weights_find(w, "c"), 0, 1, SBP_F32, &value, f->diag));
    assert_true(value == 2);
    sbp_weights_close(w);
    assert_fails(f, SBP_INPUT, "part 2 of 3 of a model",
                 sbp_weights_open(f->arena, f->diag, io_path(f, second), &w));
    put_part(f, "m.gguf", 0, 3, 3, "a");
    assert_fails(f, SBP_INPUT, "whose name must end in '-00001-of-00003.gguf'",
                 sbp_weights_open(f->arena, f->diag, io_path(f, "m.gguf"), &w));
    put_part(f, third, 1, 3, 3, "c");
    assert_fails(f, SBP_INPUT, "part 1 of 3 (split.no, from 0, split.count), expected 2 of 3",
                 sbp_weights_open(f->arena, f->diag, io_path(f, first), &w));
    put_part(f, third, 2, 3, 3, "b");
    assert_fails(f, SBP_INPUT, "tensor 'b' occurs twice",
                 sbp_weights_open(f->arena, f->diag, io_path(f, first), &w));
    put_part(f, third, 2, 3, 3, "c");
    put_part(f, first, 0, 3, 4, "a");
    assert_fails(f, SBP_INPUT, "have 3 tensors together, split.tensors.count is 4",
                 sbp_weights_open(f->arena, f->diag, io_path(f, first), &w));
    put_part(f, first, 3, 3, 4, "a");
    assert_fails(f, SBP_INPUT, "part 3 (split.no, from 0) of 3",
                 sbp_weights_open(f->arena, f->diag, io_path(f, first), &w));
    assert_int_equal(unlink(io_path(f, third)), 0);
    put_part(f, first, 0, 3, 3, "a");
    assert_fails(f, SBP_IO, "m-00003-of-00003.gguf",
                 sbp_weights_open(f->arena, f->diag, io_path(f, first), &w));
    unlink(io_path(f, first));
    unlink(io_path(f, second));
    unlink(io_path(f, "m.gguf"));
}

static void every_truncation_is_an_error(void **state) {
    io_fixture *f = *state;
    image m;
    build(&m, &good);
    size_t whole = m.length;
    for (size_t n = 0; n < whole; n++) {
        io_renew(f);
        m.length = n;
        sbp_status status = open_image(f, &m);
        if (status != SBP_INPUT || !strstr(sbp_diag_text(f->diag, SBP_ERROR), "x.gguf"))
            fail_msg("%zu bytes: %d %s", n, status, sbp_diag_text(f->diag, SBP_ERROR));
    }
}

static void survives_flipped_bytes(void **state) {
    io_fixture *f = *state;
    uint64_t random = 3;
    for (int round = 0; round < 4000; round++) {
        image m;
        io_renew(f);
        build(&m, &good);
        for (uint32_t k = 0, n = 1 + io_random(&random) % 3; k < n; k++)
            m.data[io_random(&random) % m.length] = (unsigned char)io_random(&random);
        sbp_status status = open_image(f, &m);
        assert_true(status == SBP_OK || status == SBP_INPUT);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(reads_metadata, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(decodes_like_the_gguf_package, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(names_what_is_wrong, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(parts_of_a_model, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(every_truncation_is_an_error, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(survives_flipped_bytes, io_setup, io_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
