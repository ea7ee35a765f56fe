/* safetensors: reading with conversion, writing, shards, and every way in which a file can be wrong. */
#include "tests/tolerance.h"
#include "tests/unit/io_testing.h"

#include "frontends/formats/weights/safetensors.h"

#include <float.h>
#include <math.h>
#include <signal.h>
#include <sys/resource.h>

static sbp_weights *open_weights(io_fixture *f, const char *path) {
    sbp_weights *w = NULL;
    assert_ok(f, sbp_weights_open(f->arena, f->diag, path, &w));
    return w;
}

static const sbp_weight *find(const sbp_weights *w, const char *name) {
    const sbp_weight *t = sbp_weights_find(w, name);
    assert_non_null(t);
    return t;
}

/* tests/data/io/plain.safetensors was written by the safetensors library. */
static void reads_what_the_library_wrote(void **state) {
    io_fixture *f = *state;
    sbp_weights *w = open_weights(f, "tests/data/io/plain.safetensors");
    assert_int_equal(sbp_weights_count(w), 11);
    assert_string_equal(sbp_weights_metadata(w, "format"), "pt");
    assert_null(sbp_weights_metadata(w, "none"));
    const sbp_weight *t = find(w, "f32");
    assert_int_equal(t->rank, 2);
    assert_true(t->dim[0] == 3 && t->dim[1] == 5 && t->elems == 15 && t->dtype == SBP_F32);
    assert_string_equal(t->encoding, "F32");

    double d[15];
    float whole[15], part[4];
    int32_t i32[2];
    int64_t i64[3];
    int8_t i8[3];
    uint8_t flags[4];
    uint16_t bits[4];
    assert_ok(f, sbp_weights_read(w, t, 0, 15, SBP_F32, whole, f->diag));
    assert_ok(f, sbp_weights_read(w, t, 6, 4, SBP_F32, part, f->diag));
    assert_memory_equal(part, whole + 6, sizeof part);
    assert_ok(f, sbp_weights_read(w, t, 0, 15, SBP_F64, d, f->diag));
    for (int i = 0; i < 15; i++)
        assert_true(d[i] == (double)whole[i]);
    assert_ok(f, sbp_weights_read(w, t, 2, 3, SBP_BF16, bits, f->diag));
    for (int i = 0; i < 3; i++)
        assert_int_equal(bits[i], sbp_bf16_from_f32(whole[2 + i]));
    assert_ok(f, sbp_weights_read(w, find(w, "f16"), 0, 5, SBP_F32, whole, f->diag));
    assert_true(whole[1] == -2 && whole[2] == 65504 && isinf(whole[4]) &&
                fabsf(whole[0] - 0.1f) <= 0.1f * (float)SBP_TOLERANCE_F16);
    assert_ok(f, sbp_weights_read(w, find(w, "bf16"), 0, 4, SBP_F64, d, f->diag));
    assert_true(d[0] == 1 && d[1] == -2.5 && d[2] > 2.9e38 && d[3] > 0 && d[3] < (double)FLT_MIN);
    assert_ok(f, sbp_weights_read(w, find(w, "bf16"), 0, 2, SBP_F16, bits, f->diag));
    assert_true(sbp_f32_from_f16(bits[1]) == -2.5f);
    assert_ok(f, sbp_weights_read(w, find(w, "i32"), 0, 2, SBP_I64, i64, f->diag));
    assert_true(i64[0] == INT32_MIN && i64[1] == INT32_MAX);
    assert_ok(f, sbp_weights_read(w, find(w, "i64"), 1, 2, SBP_I32, i32, f->diag));
    assert_true(i32[0] == -1 && i32[1] == 7);
    assert_fails(f, SBP_INPUT, "tensor 'i64': element 0 is 1099511627776, which i32 cannot hold",
                 sbp_weights_read(w, find(w, "i64"), 0, 3, SBP_I32, i32, f->diag));
    assert_ok(f, sbp_weights_read(w, find(w, "i64"), 0, 3, SBP_F32, whole, f->diag));
    assert_true(whole[0] == 0x1p40f && whole[2] == 7);
    assert_ok(f, sbp_weights_read(w, find(w, "odd"), 0, 3, SBP_I8, i8, f->diag));
    assert_true(i8[0] == -128 && i8[1] == 127 && i8[2] == 3);
    assert_ok(f, sbp_weights_read(w, find(w, "flags"), 0, 4, SBP_BOOL, flags, f->diag));
    assert_memory_equal(flags, "\1\0\1\1", 4);
    assert_fails(f, SBP_INPUT, "element 0 is -128, which bool cannot hold",
                 sbp_weights_read(w, find(w, "odd"), 0, 3, SBP_BOOL, flags, f->diag));
    assert_fails(f, SBP_INPUT, "tensor 'f32' is F32, expected i32",
                 sbp_weights_read(w, t, 0, 1, SBP_I32, i32, f->diag));
    assert_ok(f, sbp_weights_read(w, find(w, "f64"), 0, 4, SBP_F32, whole, f->diag));
    assert_ok(f, sbp_weights_read(w, find(w, "f64"), 0, 4, SBP_F64, d, f->diag));
    assert_true(whole[3] == (float)d[3]);
    assert_int_equal(find(w, "scalar")->rank, 0);
    assert_ok(f, sbp_weights_read(w, find(w, "scalar"), 0, 1, SBP_F32, whole, f->diag));
    assert_true(whole[0] == 1.5f);
    assert_int_equal(find(w, "empty")->elems, 0);
    assert_ok(f, sbp_weights_read(w, find(w, "empty"), 0, 0, SBP_F32, NULL, f->diag));
    find(w, "long.name \"quoted\" \xc3\xa9");
    assert_null(sbp_weights_find(w, "f33"));
    sbp_weights_close(w);

    w = open_weights(f, "tests/data/io/foreign.safetensors");
    assert_ok(f, sbp_weights_read(w, find(w, "y"), 0, 1, SBP_F32, whole, f->diag));
    assert_fails(f, SBP_INPUT, "tensor 'x' is stored as F8_E4M3, which is not supported",
                 sbp_weights_read(w, find(w, "x"), 0, 1, SBP_F32, whole, f->diag));
    sbp_weights_close(w);
}

/* A file with this header and `data` bytes behind it. */
static void put_header(const char *path, const char *header, int64_t header_bytes, int64_t data) {
    size_t length = strlen(header);
    char *file = calloc(1, 8 + length + (size_t)data);
    for (int i = 0; i < 8; i++)
        file[i] = (char)(unsigned char)((uint64_t)header_bytes >> (8 * i));
    memcpy(file + 8, header, length);
    io_put(path, file, 8 + length + (size_t)data);
    free(file);
}

/* ---- writing ----------------------------------------------------------------------------------------- */

enum { MAX_TENSORS = 64 };

/* Everything that `from` has, in its order; shuffled when told to. */
static int32_t list_specs(const sbp_weights *from, sbp_tensor_spec *specs, bool reversed) {
    int32_t n = sbp_weights_count(from);
    for (int32_t i = 0; i < n; i++) {
        const sbp_weight *t = sbp_weights_at(from, reversed ? n - 1 - i : i);
        specs[i] = (sbp_tensor_spec){.name = t->name, .dtype = t->dtype, .rank = t->rank, .dim = t->dim};
    }
    return n;
}

static void copy_all(io_fixture *f, const sbp_weights *from, const sbp_tensor_spec *specs, int32_t n,
                     sbp_safetensors_writer *writer, int64_t piece) {
    char buffer[1000];
    for (int32_t i = 0; i < n; i++) {
        const sbp_weight *t = find(from, specs[i].name);
        int64_t bytes = t->elems * sbp_dtype_bytes(t->dtype);
        assert_true(bytes <= (int64_t)sizeof buffer);
        assert_ok(f, sbp_weights_read(from, t, 0, t->elems, t->dtype, buffer, f->diag));
        for (int64_t at = 0; at < bytes; at += piece)
            assert_ok(f, sbp_safetensors_writer_write(writer, f->diag, buffer + at,
                                                      bytes - at < piece ? bytes - at : piece));
    }
}

static const sbp_key_value format_pt[] = {{"format", "pt"}};

static void writes_what_the_library_writes(void **state) {
    io_fixture *f = *state;
    sbp_weights *from = open_weights(f, "tests/data/io/plain.safetensors");
    for (int reversed = 0; reversed < 2; reversed++) {
        sbp_tensor_spec specs[MAX_TENSORS];
        int32_t n = list_specs(from, specs, reversed);
        sbp_safetensors_writer *writer;
        const char *a, *b, *path = io_path(f, "out.safetensors");
        size_t a_length, b_length;
        assert_ok(f,
                  sbp_safetensors_writer_create(f->arena, f->diag, path, specs, n, format_pt, 1, 0, &writer));
        copy_all(f, from, specs, n, writer, reversed ? 3 : 1000);
        assert_false(sbp_file_exists(path)); /* until commit */
        assert_ok(f, sbp_safetensors_writer_commit(writer, f->diag));
        assert_ok(f, sbp_file_read(f->arena, f->diag, path, &a, &a_length));
        assert_ok(f, sbp_file_read(f->arena, f->diag, "tests/data/io/plain.safetensors", &b, &b_length));
        assert_int_equal(a_length, b_length);
        assert_memory_equal(a, b, a_length);
        assert_int_equal(io_count_files(f), 1);
        unlink(path);
    }
    sbp_weights_close(from);
}

/* Bytes of dynamic maps are U8 to others, and nothing is made of them but bytes of such a map. */
static void keeps_states(void **state) {
    io_fixture *f = *state;
    char path[200];
    snprintf(path, sizeof path, "%s", io_path(f, "states.safetensors"));
    int64_t dims[] = {3};
    sbp_tensor_spec specs[] = {{"low", SBP_I16, 1, dims}, {"m", SBP_D8, 1, dims}, {"v", SBP_UD8, 1, dims}};
    static const int16_t low[] = {-32768, 1, 32767};
    sbp_safetensors_writer *writer;
    assert_ok(f, sbp_safetensors_writer_create(f->arena, f->diag, path, specs, 3, format_pt, 1, 0, &writer));
    assert_ok(f, sbp_safetensors_writer_write(writer, f->diag, low, 6));
    assert_ok(f, sbp_safetensors_writer_write(writer, f->diag, "\0\200\377", 3));
    assert_ok(f, sbp_safetensors_writer_write(writer, f->diag, "\1\2\3", 3));
    assert_ok(f, sbp_safetensors_writer_commit(writer, f->diag));
    sbp_weights *w = open_weights(f, path);
    int16_t back[3];
    int32_t wide[3];
    uint8_t bytes[3];
    float floats[3];
    assert_string_equal(find(w, "m")->encoding, "U8");
    assert_ok(f, sbp_weights_read(w, find(w, "low"), 0, 3, SBP_I16, back, f->diag));
    assert_memory_equal(back, low, sizeof low);
    assert_ok(f, sbp_weights_read(w, find(w, "low"), 0, 3, SBP_I32, wide, f->diag));
    assert_true(wide[0] == -32768 && wide[2] == 32767);
    assert_ok(f, sbp_weights_read(w, find(w, "m"), 0, 3, SBP_D8, bytes, f->diag));
    assert_memory_equal(bytes, "\0\200\377", 3);
    assert_ok(f, sbp_weights_read(w, find(w, "v"), 1, 2, SBP_UD8, bytes, f->diag));
    assert_memory_equal(bytes, "\2\3", 2);
    assert_fails(f, SBP_INPUT, "tensor 'm' is U8, expected f32",
                 sbp_weights_read(w, find(w, "m"), 0, 3, SBP_F32, floats, f->diag));
    assert_fails(f, SBP_INPUT, "tensor 'low' is I16, expected ud8",
                 sbp_weights_read(w, find(w, "low"), 0, 3, SBP_UD8, bytes, f->diag));
    sbp_weights_close(w);
}

/* Tensors whose names differ in their last number are a stack: from 0 on, without a gap, all of one shape. */
static void stacks_tensors(void **state) {
    io_fixture *f = *state;
    int64_t dims[] = {2, 3}, other[] = {3, 2};
    sbp_tensor_spec specs[] = {{"l.0.e.1.w", SBP_F32, 2, dims},  {"l.0.e.0.w", SBP_F32, 2, dims},
                               {"l.0.e.2.w", SBP_F32, 2, dims},  {"l.1.e.0.w", SBP_F32, 2, dims},
                               {"l.1.e.2.w", SBP_F32, 2, dims},  {"l.2.e.0.w", SBP_F32, 2, dims},
                               {"l.2.e.1.w", SBP_F32, 2, other}, {"l.3.e.*.w", SBP_F32, 2, dims},
                               {"l.3.e.0.w", SBP_F32, 2, dims},  {"l.4.e.00.w", SBP_F32, 2, dims}};
    float values[6 * SBP_COUNT(specs)], back[10];
    for (int i = 0; i < SBP_COUNT(values); i++)
        values[i] = (float)i;
    const char *path = sbp_arena_strdup(f->arena, io_path(f, "model.safetensors"));
    sbp_safetensors_writer *writer;
    assert_ok(f, sbp_safetensors_writer_create(f->arena, f->diag, path, specs, SBP_COUNT(specs), format_pt, 1,
                                               0, &writer));
    assert_ok(f, sbp_safetensors_writer_write(writer, f->diag, values, sizeof values));
    assert_ok(f, sbp_safetensors_writer_commit(writer, f->diag));
    sbp_weights *w = open_weights(f, path);
    const sbp_weight *stack = find(w, "l.0.e.*.w");
    assert_int_equal(stack->rank, 3);
    assert_int_equal(stack->dim[0], 3);
    assert_int_equal(stack->dim[2], 3);
    assert_int_equal(stack->elems, 18);
    assert_string_equal(stack->parts[1]->name, "l.0.e.1.w");
    assert_ok(f, sbp_weights_read(w, stack, 5, 10, SBP_F32, back, f->diag)); /* of all three */
    assert_true(back[0] == 11 && back[1] == 0 && back[6] == 5 && back[7] == 12 && back[9] == 14);
    assert_int_equal(sbp_weights_count(w), SBP_COUNT(specs)); /* stacks are not among them */
    assert_null(sbp_weights_find(w, "l.1.e.*.w"));            /* a gap */
    assert_null(sbp_weights_find(w, "l.2.e.*.w"));            /* two shapes */
    assert_null(find(w, "l.3.e.*.w")->parts);                 /* called so */
    assert_null(sbp_weights_find(w, "l.4.e.*.w"));
    assert_null(sbp_weights_find(w, "l.*.e.0.w")); /* not the last number */
    sbp_weights_close(w);
}

/* A tensor has more blocks than are read at once: each value is what the description of the format says (OCP
 * MX 1.0, as GPT-OSS stores it: bytes of two values, the even one low, and a power of two for 32). */
static void reads_many_blocks(void **state) {
    enum { BLOCKS = 600, BYTES = 16, VALUES = 32 };
    static const char header[] =
        "{\"x_blocks\":{\"dtype\":\"U8\",\"shape\":[30,20,16],\"data_offsets\":[0,9600]},"
        "\"x_scales\":{\"dtype\":\"U8\",\"shape\":[30,20],\"data_offsets\":[9600,10200]}}";
    static const float e2m1[] = {0, 0.5F, 1, 1.5F, 2, 3, 4, 6};
    io_fixture *f = *state;
    uint64_t length = sizeof header - 1, seed = 11;
    unsigned char file[8 + sizeof header - 1 + BLOCKS * (BYTES + 1)], *codes = file + 8 + length,
                                                                      *scales = codes + BLOCKS * BYTES;
    memcpy(file, &length, 8);
    memcpy(file + 8, header, length);
    for (int i = 0; i < BLOCKS * BYTES; i++)
        codes[i] = (unsigned char)io_random(&seed);
    for (int b = 0; b < BLOCKS; b++)
        scales[b] = (unsigned char)(120 + io_random(&seed) % 15);
    const char *path = sbp_arena_strdup(f->arena, io_path(f, "model.safetensors"));
    io_put(path, file, sizeof file);
    sbp_weights *w = open_weights(f, path);
    const sbp_weight *t = find(w, "x_blocks+scales");
    static float all[BLOCKS * VALUES], few[100];
    static unsigned char parts[2][BLOCKS * BYTES];
    assert_ok(f, sbp_weights_read(w, t, 0, BLOCKS * VALUES, SBP_F32, all, f->diag));
    assert_ok(f, sbp_weights_read(w, t, 8200, 100, SBP_F32, few, f->diag));
    assert_ok(f, sbp_weights_read_blocks(w, t, 0, BLOCKS, (void *[]){parts[0], parts[1]}, f->diag));
    for (int i = 0; i < BLOCKS * VALUES; i++) {
        int b = i / VALUES, at = i % VALUES, code = codes[b * BYTES + at / 2] >> at % 2 * 4 & 15;
        float want = ldexpf(code & 8 ? -e2m1[code & 7] : e2m1[code & 7], scales[b] - 127);
        if (all[i] != want || (i >= 8200 && i < 8300 && few[i - 8200] != want))
            fail_msg("value %d: %g, it is %g", i, (double)all[i], (double)want);
        assert_int_equal(parts[0][b * BYTES + at % BYTES] >> at / BYTES * 4 & 15, code);
    }
    assert_memory_equal(parts[1], scales, BLOCKS);
    sbp_weights_close(w);
}

static void cuts_into_shards(void **state) {
    io_fixture *f = *state;
    char single[200], index[220];
    snprintf(single, sizeof single, "%s", io_path(f, "model.safetensors"));
    snprintf(index, sizeof index, "%s.index.json", single);
    int64_t dims[] = {10, 3};
    sbp_tensor_spec specs[] = {
        {"c", SBP_F32, 2, dims}, {"a", SBP_I8, 1, dims}, {"b", SBP_F32, 2, dims}, {"d", SBP_F16, 1, dims}};
    float values[30];
    for (int i = 0; i < 30; i++)
        values[i] = (float)i;
    for (int sharded = 1; sharded >= 0; sharded--) { /* the single file then replaces the shards */
        sbp_safetensors_writer *writer;
        assert_ok(f, sbp_safetensors_writer_create(f->arena, f->diag, single, specs, 4, format_pt, 1,
                                                   sharded ? 131 : 1000, &writer));
        assert_ok(f, sbp_safetensors_writer_write(writer, f->diag, values, 120));
        assert_ok(f, sbp_safetensors_writer_write(writer, f->diag, "0123456789", 10));
        assert_ok(f, sbp_safetensors_writer_write(writer, f->diag, values, 120));
        assert_ok(f, sbp_safetensors_writer_write(writer, f->diag, "01234567890123456789", 20));
        assert_ok(f, sbp_safetensors_writer_commit(writer, f->diag));
        assert_int_equal(sbp_file_exists(single), !sharded);
        assert_int_equal(sbp_file_exists(index), sharded);
        sbp_weights *w = open_weights(f, f->directory);
        assert_int_equal(sbp_weights_count(w), 4);
        float back[30];
        assert_ok(f, sbp_weights_read(w, find(w, "b"), 0, 30, SBP_F32, back, f->diag));
        assert_memory_equal(back, values, sizeof back);
        assert_non_null(
            strstr(find(w, "b")->path, sharded ? "model-00002-of-00003.safetensors" : "model.safetensors"));
        assert_non_null(
            strstr(find(w, "a")->path, sharded ? "model-00001-of-00003.safetensors" : "model.safetensors"));
        sbp_weights_close(w);
        if (sharded) {
            w = open_weights(f, index);
            sbp_weights_close(w);
            const sbp_json *root;
            assert_ok(f, sbp_json_read(f->arena, f->diag, index, 0, &root));
            assert_int_equal(sbp_json_member(sbp_json_member(root, "metadata"), "total_size")->integer, 270);
        }
    }
}

static void checks_the_index(void **state) {
    io_fixture *f = *state;
    sbp_weights *w;
    char index[200];
    snprintf(index, sizeof index, "%s", io_path(f, "model.safetensors.index.json"));
    assert_fails(f, SBP_IO, "neither model.safetensors nor",
                 sbp_weights_open(f->arena, f->diag, f->directory, &w));
    static const char one[] = "{\"x\":{\"dtype\":\"I8\",\"shape\":[1],\"data_offsets\":[0,1]}}";
    put_header(io_path(f, "a.safetensors"), one, sizeof one - 1, 1);
    static const struct {
        const char *text, *message;
        sbp_status status;
    } cases[] = {
        {"{\"weight_map\": {\"x\": \"a.safetensors\"}}", NULL, SBP_OK},
        {"{\"weight_map\": {\"y\": \"a.safetensors\"}}",
         "places tensor 'y' into a.safetensors, which does not have it", SBP_INPUT},
        {"{\"weight_map\": {\"x\": \"../a.safetensors\"}}", "weight_map.x: expected the name of a file",
         SBP_INPUT},
        {"{\"weight_map\": {\"x\": \"b.safetensors\"}}", "b.safetensors': No such file", SBP_IO},
        {"{\"weight_map\": [1]}", "weight_map: expected an object", SBP_INPUT},
        {"{}", "'weight_map' is missing", SBP_INPUT},
    };
    for (int i = 0; i < SBP_COUNT(cases); i++) {
        io_put(index, cases[i].text, strlen(cases[i].text));
        if (cases[i].status == SBP_OK)
            sbp_weights_close(open_weights(f, f->directory));
        else
            assert_fails(f, cases[i].status, cases[i].message,
                         sbp_weights_open(f->arena, f->diag, f->directory, &w));
    }
    put_header(io_path(f, "b.safetensors"), one, sizeof one - 1, 1);
    static const char twice[] = "{\"weight_map\": {\"x\": \"a.safetensors\", \"y\": \"b.safetensors\"}}";
    io_put(index, twice, sizeof twice - 1);
    assert_fails(f, SBP_INPUT, "tensor 'x' occurs twice",
                 sbp_weights_open(f->arena, f->diag, f->directory, &w));
}

static void an_aborted_write_leaves_nothing(void **state) {
    io_fixture *f = *state;
    char path[200];
    snprintf(path, sizeof path, "%s", io_path(f, "m.safetensors"));
    int64_t dims[] = {100};
    sbp_tensor_spec specs[] = {{"a", SBP_F32, 1, dims}, {"b", SBP_F32, 1, dims}, {"c", SBP_F32, 1, dims}};
    static const char zeros[2000];
    sbp_safetensors_writer *writer;
    assert_ok(f, sbp_safetensors_writer_create(f->arena, f->diag, path, specs, 3, NULL, 0, 500, &writer));
    assert_ok(f, sbp_safetensors_writer_write(writer, f->diag, zeros, 900));
    assert_int_equal(io_count_files(f), 3);
    sbp_safetensors_writer_abort(writer);
    assert_int_equal(io_count_files(f), 0);
    sbp_safetensors_writer_abort(writer); /* harmless */

    assert_ok(f, sbp_safetensors_writer_create(f->arena, f->diag, path, specs, 3, NULL, 0, 500, &writer));
    assert_ok(f, sbp_safetensors_writer_write(writer, f->diag, zeros, 900));
    assert_fails(f, SBP_INTERNAL, "tensor 'c' got 100 of 400 bytes",
                 sbp_safetensors_writer_commit(writer, f->diag));
    assert_int_equal(io_count_files(f), 0);

    assert_ok(f, sbp_safetensors_writer_create(f->arena, f->diag, path, specs, 3, NULL, 0, 0, &writer));
    assert_fails(f, SBP_INTERNAL, "800 bytes more",
                 sbp_safetensors_writer_write(writer, f->diag, zeros, 2000));
    sbp_safetensors_writer_abort(writer);
    /* a file that is no model leaves the index of a model beside it alone */
    char index[220];
    snprintf(index, sizeof index, "%s.index.json", path);
    io_put(index, "{}", 2);
    assert_ok(f, sbp_safetensors_writer_create(f->arena, f->diag, path, specs, 3, NULL, 0, 0, &writer));
    assert_ok(f, sbp_safetensors_writer_write(writer, f->diag, zeros, 1200));
    assert_ok(f, sbp_safetensors_writer_commit(writer, f->diag));
    assert_int_equal(io_count_files(f), 2);
    assert_true(unlink(index) == 0 && unlink(path) == 0);
    specs[1].name = "a";
    assert_fails(f, SBP_INTERNAL, "used twice",
                 sbp_safetensors_writer_create(f->arena, f->diag, path, specs, 3, NULL, 0, 0, &writer));

    assert_fails(f, SBP_IO, "/nowhere/m.safetensors",
                 sbp_safetensors_writer_create(f->arena, f->diag, "/nowhere/m.safetensors", specs, 1, NULL, 0,
                                               0, &writer));
    struct rlimit old, small;
    getrlimit(RLIMIT_FSIZE, &old);
    small = (struct rlimit){300, old.rlim_max};
    signal(SIGXFSZ, SIG_IGN);
    assert_ok(f, sbp_safetensors_writer_create(f->arena, f->diag, path, specs, 1, NULL, 0, 0, &writer));
    setrlimit(RLIMIT_FSIZE, &small);
    assert_fails(f, SBP_IO, "File too large", sbp_safetensors_writer_write(writer, f->diag, zeros, 400));
    setrlimit(RLIMIT_FSIZE, &old);
    sbp_safetensors_writer_abort(writer);
    assert_int_equal(io_count_files(f), 0);
}

/* ---- wrong files -------------------------------------------------------------------------------------- */

static void names_what_is_wrong(void **state) {
    io_fixture *f = *state;
    static const struct {
        const char *header, *message;
        int data;
        int64_t lie; /* added to the header size */
    } cases[] = {
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,23]}}",
         "x.data_offsets: 6 elements of F32 need 24 bytes, but the range 0 .. 23 has 23", 24, 0},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]}}",
         "is not within the 20 bytes of data", 20, 0},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", "the file has", 9, 0},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}}", "the range 8 .. 0", 8, 0},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[-8,0]}}", "the range -8 .. 0", 8, 0},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0]}}", "expected 2 numbers, found 1", 8,
         0},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,8]}}", "a dimension is -1", 8, 0},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,8]}}",
         "does not fit 64 bits", 8, 0},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904],\"data_offsets\":[0,0]}}",
         "does not fit 64 bits", 0, 0},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[2.5],\"data_offsets\":[0,8]}}",
         "x.shape[0]: expected an integer, found 2.5", 8, 0},
        {"{\"x\":{\"dtype\":\"F33\",\"shape\":[2],\"data_offsets\":[0,8]}}", "unknown dtype 'F33'", 8, 0},
        {"{\"x\":{\"dtype\":32,\"shape\":[2],\"data_offsets\":[0,8]}}",
         "x.dtype: expected a string, found 32", 8, 0},
        {"{\"x\":{\"shape\":[2],\"data_offsets\":[0,8]}}", "the field 'dtype' is missing", 8, 0},
        {"{\"x\":7}", "x: expected an object, found 7", 0, 0},
        {"[1]", "expected an object, found an array", 0, 0},
        {"{\"x\":", ":1:", 0, 0},
        {"{\"__metadata__\":7}", "__metadata__: expected an object", 0, 0},
        {"{\"a\":{\"dtype\":\"I8\",\"shape\":[4],\"data_offsets\":[0,4]},\"b\":{\"dtype\":\"I8\",\"shape\":["
         "4],\"data_offsets\":[2,6]}}",
         "tensor 'b' begins at byte", 6, 0},
        {"{\"a\":{\"dtype\":\"I8\",\"shape\":[4],\"data_offsets\":[0,4]},\"b\":{\"dtype\":\"I8\",\"shape\":["
         "2],\"data_offsets\":[6,8]}}",
         "expected", 8, 0},
        {"{\"a\":{\"dtype\":\"I8\",\"shape\":[4],\"data_offsets\":[0,4]},\"a\":{\"dtype\":\"I8\",\"shape\":["
         "2],\"data_offsets\":[4,6]}}",
         "duplicate", 6, 0},
        {"{}", "the file is cut off", 0, 1},
        {"{}", "at most 100000000 are allowed", 0, 100000000},
        {"{}", "at most 100000000 are allowed", 0, -3},
        {"{\"x\":{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,2]}}", "3 elements of F4 need 2 bytes",
         2, 0},
    };
    sbp_weights *w;
    for (int i = 0; i < SBP_COUNT(cases); i++) {
        const char *path = io_path(f, "bad.safetensors");
        put_header(path, cases[i].header, (int64_t)strlen(cases[i].header) + cases[i].lie, cases[i].data);
        assert_fails(f, SBP_INPUT, cases[i].message, sbp_weights_open(f->arena, f->diag, path, &w));
    }
    assert_fails(f, SBP_IO, "No such file",
                 sbp_weights_open(f->arena, f->diag, "/nowhere/x.safetensors", &w));
    assert_fails(f, SBP_IO, "not a regular file", sbp_weights_open(f->arena, f->diag, "/dev/null", &w));
}

/* Opens, and reads every tensor when that works. */
static void try_file(io_fixture *f, const char *path) {
    sbp_weights *w;
    double out[64];
    if (sbp_weights_open(f->arena, f->diag, path, &w) != SBP_OK)
        return;
    for (int32_t i = 0; i < sbp_weights_count(w); i++) {
        const sbp_weight *t = sbp_weights_at(w, i);
        int64_t n = t->elems < 64 ? t->elems : 64;
        sbp_status status = sbp_weights_read(w, t, t->elems - n, n, SBP_F64, out, f->diag);
        assert_true(status == SBP_OK || status == SBP_INPUT);
    }
    sbp_weights_close(w);
}

static void every_truncation_is_an_error(void **state) {
    io_fixture *f = *state;
    const char *data, *path = io_path(f, "cut.safetensors");
    size_t length;
    sbp_arena *keep = sbp_arena_create();
    assert_ok(f, sbp_file_read(keep, f->diag, "tests/data/io/plain.safetensors", &data, &length));
    for (size_t n = 0; n < length; n++) {
        sbp_weights *w;
        io_renew(f);
        io_put(path, data, n);
        sbp_status status = sbp_weights_open(f->arena, f->diag, path, &w);
        if (status != SBP_INPUT || !strstr(sbp_diag_text(f->diag, SBP_ERROR), "cut.safetensors"))
            fail_msg("%zu bytes: %d %s", n, status, sbp_diag_text(f->diag, SBP_ERROR));
    }
    sbp_arena_destroy(keep);
}

static void survives_flipped_bytes(void **state) {
    io_fixture *f = *state;
    const char *data, *path = io_path(f, "flip.safetensors");
    size_t length;
    sbp_arena *keep = sbp_arena_create();
    assert_ok(f, sbp_file_read(keep, f->diag, "tests/data/io/plain.safetensors", &data, &length));
    char *copy = sbp_malloc(length);
    uint64_t random = 1;
    for (int round = 0; round < 3000; round++) {
        io_renew(f);
        memcpy(copy, data, length);
        for (uint32_t k = 0, n = 1 + io_random(&random) % 3; k < n; k++)
            copy[io_random(&random) % length] = (char)(unsigned char)io_random(&random);
        io_put(path, copy, length);
        try_file(f, path);
    }
    free(copy);
    sbp_arena_destroy(keep);
}

static void a_file_that_shrinks_is_an_io_error(void **state) {
    io_fixture *f = *state;
    const char *path = io_path(f, "s.safetensors"), *data;
    size_t length;
    assert_ok(f, sbp_file_read(f->arena, f->diag, "tests/data/io/plain.safetensors", &data, &length));
    io_put(path, data, length);
    sbp_weights *w = open_weights(f, path);
    assert_int_equal(truncate(path, (off_t)length - 100), 0);
    float out[15];
    assert_fails(f, SBP_IO, "bytes before",
                 sbp_weights_read(w, find(w, "f32"), 0, 15, SBP_F32, out, f->diag));
    sbp_weights_close(w);
}

static sbp_status open_close(io_fixture *f, void *user) {
    sbp_weights *w;
    SBP_TRY(sbp_weights_open(f->arena, f->diag, user, &w));
    sbp_weights_close(w);
    return SBP_OK;
}

static sbp_status write_two(io_fixture *f, void *user) {
    int64_t dims[] = {10};
    sbp_tensor_spec specs[] = {{"a", SBP_F32, 1, dims}, {"b", SBP_F32, 1, dims}};
    sbp_safetensors_writer *writer;
    static const char zeros[80];
    SBP_TRY(sbp_safetensors_writer_create(f->arena, f->diag, user, specs, 2, format_pt, 1, 50, &writer));
    sbp_status status = sbp_safetensors_writer_write(writer, f->diag, zeros, 80);
    if (status == SBP_OK)
        return sbp_safetensors_writer_commit(writer, f->diag);
    sbp_safetensors_writer_abort(writer);
    return status;
}

static void survives_failing_allocations(void **state) {
    io_fixture *f = *state;
    char path[200];
    snprintf(path, sizeof path, "%s", io_path(f, "w.safetensors"));
    io_fail_allocations(f, open_close, (char[]){"tests/data/io/plain.safetensors"});
    io_fail_allocations(f, open_close, (char[]){"tests/data/io/quants.gguf"});
    assert_true(io_fail_allocations(f, write_two, path) > 3);
    assert_int_equal(io_count_files(f), 3);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(reads_what_the_library_wrote, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(writes_what_the_library_writes, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(keeps_states, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(reads_many_blocks, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(stacks_tensors, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(cuts_into_shards, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(checks_the_index, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(an_aborted_write_leaves_nothing, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(names_what_is_wrong, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(every_truncation_is_an_error, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(survives_flipped_bytes, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(a_file_that_shrinks_is_an_io_error, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(survives_failing_allocations, io_setup, io_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
