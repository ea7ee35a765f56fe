/* GGUF files as they are written: numbers against the gguf package, keys and tensors against our reader,
 * exports that are stopped. */
#include "tests/unit/io_testing.h"

#include <dirent.h>
#include <math.h>

#include "frontends/formats/export/export.h"
#include "frontends/formats/weights/gguf_write.h"
#include "frontends/formats/weights/weights.h"

static void encodes_like_the_gguf_package(void **state) {
    io_fixture *f = *state;
    static const struct {
        const char *name;
        sbp_gguf_tensor_type type;
    } types[] = {
        {"F16", SBP_GGUF_TENSOR_F16}, {"BF16", SBP_GGUF_TENSOR_BF16}, {"Q8_0", SBP_GGUF_TENSOR_Q8_0}};
    sbp_weights *w;
    assert_ok(f, sbp_weights_open(f->arena, f->diag, "tests/data/io/gguf_numbers.safetensors", &w));
    const sbp_weight *numbers = sbp_weights_find(w, "numbers");
    float *x = SBP_NEW_ARRAY(f->arena, float, numbers->elems);
    assert_ok(f, sbp_weights_read(w, numbers, 0, numbers->elems, SBP_F32, x, f->diag));
    for (int k = 0; k < SBP_COUNT(types); k++) {
        const sbp_weight *e = sbp_weights_find(w, types[k].name);
        int64_t blocks = numbers->elems / sbp_gguf_block_elems(types[k].type);
        assert_true(e->elems == blocks * sbp_gguf_block_bytes(types[k].type));
        uint8_t *got = SBP_NEW_ARRAY(f->arena, uint8_t, e->elems);
        double *want = SBP_NEW_ARRAY(f->arena, double, e->elems);
        assert_ok(f, sbp_weights_read(w, e, 0, e->elems, SBP_F64, want, f->diag));
        sbp_gguf_encode(types[k].type, x, numbers->elems, got);
        for (int64_t i = 0; i < e->elems; i++)
            if (got[i] != (uint8_t)(int)want[i])
                fail_msg("%s: byte %lld is %d, expected %g", types[k].name, (long long)i, got[i], want[i]);
    }
    sbp_weights_close(w);
}

/* All that is put is read again; a key that is put twice has its last value, one that is removed none. */
static void keys_and_tensors_come_back(void **state) {
    io_fixture *f = *state;
    sbp_gguf_keys keys;
    sbp_gguf_keys_init(&keys, f->arena);
    sbp_gguf_put_string(&keys, "general.architecture", "none");
    sbp_gguf_put_u32(&keys, "u", 7);
    sbp_gguf_put_u32(&keys, "gone", 7);
    sbp_gguf_put_i32(&keys, "i", -7);
    sbp_gguf_put_f32(&keys, "f", 0.1F);
    sbp_gguf_put_bool(&keys, "b", true);
    sbp_gguf_put_f32(&keys, "u", 2.5F);
    sbp_gguf_keys_remove(&keys, "gone");
    sbp_text *list = sbp_gguf_put_array(&keys, "list", SBP_GGUF_STRING, 2);
    sbp_gguf_add_string(list, "", 0);
    sbp_gguf_add_string(list, "a\0b", 3);
    list = sbp_gguf_put_array(&keys, "flags", SBP_GGUF_BOOL, 3);
    for (int i = 0; i < 3; i++)
        sbp_gguf_add_bool(list, i == 1);
    static const sbp_gguf_tensor tensors[] = {{"a", SBP_GGUF_TENSOR_F32, 1, {3}},
                                              {"b", SBP_GGUF_TENSOR_Q8_0, 2, {2, 64}},
                                              {"c", SBP_GGUF_TENSOR_F16, 3, {2, 1, 5}}};
    static const float a[] = {1, -0.0F, 3e-40F};
    float x[128];
    for (int i = 0; i < 128; i++)
        x[i] = sinf((float)i);
    uint8_t coded[200];
    const char *path = io_path(f, "x.gguf");
    sbp_gguf_writer *writer;
    int64_t bytes;
    assert_ok(f, sbp_gguf_writer_create(f->arena, f->diag, path, &keys, tensors, 3, &bytes, &writer));
    assert_ok(f, sbp_gguf_writer_write(writer, f->diag, a, sizeof a));
    sbp_gguf_encode(SBP_GGUF_TENSOR_Q8_0, x, 128, coded);
    for (int at = 0; at < 136; at += 17) /* pieces of any size */
        assert_ok(f, sbp_gguf_writer_write(writer, f->diag, coded + at, 17));
    sbp_gguf_encode(SBP_GGUF_TENSOR_F16, x, 10, coded);
    assert_ok(f, sbp_gguf_writer_write(writer, f->diag, coded, 20));
    assert_fails(f, SBP_INTERNAL, "1 bytes more than its tensors have",
                 sbp_gguf_writer_write(writer, f->diag, coded, 1));
    assert_false(sbp_file_exists(path));
    assert_ok(f, sbp_gguf_writer_commit(writer, f->diag));

    sbp_weights *w;
    assert_ok(f, sbp_weights_open(f->arena, f->diag, path, &w));
    const sbp_gguf *g = sbp_weights_gguf(w);
    double number = 0;
    const sbp_gguf_value *v;
    assert_int_equal(sbp_gguf_count(g), 7);
    assert_string_equal(sbp_gguf_at(g, 1)->key, "u");
    assert_ok(f, sbp_gguf_get_double(f->diag, g, "u", SBP_JSON_REQUIRED, &number));
    assert_true(number == 2.5);
    assert_null(sbp_gguf_find(g, "gone"));
    assert_ok(f, sbp_gguf_get_array(f->diag, g, "list", SBP_GGUF_STRING, SBP_JSON_REQUIRED, &v));
    assert_true(v->count == 2 && v->strings[1].length == 3);
    assert_true(sbp_gguf_i64_at(sbp_gguf_find(g, "flags"), 1) == 1);
    assert_true(sbp_gguf_i64_at(sbp_gguf_find(g, "i"), 0) == -7);
    float got[128];
    assert_ok(f, sbp_weights_read(w, sbp_weights_find(w, "a"), 0, 3, SBP_F32, got, f->diag));
    assert_memory_equal(got, a, sizeof a);
    const sbp_weight *c = sbp_weights_find(w, "c");
    assert_true(c->rank == 3 && c->dim[0] == 2 && c->dim[2] == 5);
    assert_ok(f, sbp_weights_read(w, c, 0, 10, SBP_F32, got, f->diag));
    for (int i = 0; i < 10; i++)
        assert_true(got[i] == sbp_f32_from_f16(sbp_f16_from_f32(x[i])));
    assert_ok(f, sbp_weights_read(w, sbp_weights_find(w, "b"), 0, 128, SBP_F32, got, f->diag));
    for (int i = 0; i < 128; i++)
        assert_true(fabsf(got[i] - x[i]) < 0.005F);
    sbp_weights_close(w);
}

static void a_file_that_is_not_whole_is_none(void **state) {
    io_fixture *f = *state;
    sbp_gguf_keys keys;
    sbp_gguf_keys_init(&keys, f->arena);
    static const sbp_gguf_tensor tensor = {"a", SBP_GGUF_TENSOR_F32, 1, {3}};
    const char *path = io_path(f, "x.gguf");
    sbp_gguf_writer *writer;
    assert_ok(f, sbp_gguf_writer_create(f->arena, f->diag, path, &keys, &tensor, 1, NULL, &writer));
    assert_ok(f, sbp_gguf_writer_write(writer, f->diag, "12345678", 8));
    assert_fails(f, SBP_INTERNAL, "tensor 'a' lacks 4 bytes", sbp_gguf_writer_commit(writer, f->diag));
    assert_false(sbp_file_exists(path));
}

static int stops;

static bool stop_at_third(void) {
    return ++stops == 3;
}

static void a_stopped_export_leaves_nothing(void **state) {
    io_fixture *f = *state;
    sbp_export_request r = {.source = "tests/data/stories260K",
                            .output = io_path(f, "x.gguf"),
                            .type = "f32",
                            .stop = stop_at_third};
    sbp_export_report report;
    assert_int_equal(sbp_export_gguf(f->arena, f->diag, &r, &report), SBP_INTERRUPTED);
    DIR *folder = opendir(f->directory);
    assert_non_null(folder);
    for (struct dirent *entry; (entry = readdir(folder));)
        if (entry->d_name[0] != '.' || strlen(entry->d_name) > 2)
            fail_msg("'%s' is left", entry->d_name);
    closedir(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(encodes_like_the_gguf_package, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(keys_and_tensors_come_back, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(a_file_that_is_not_whole_is_none, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(a_stopped_export_leaves_nothing, io_setup, io_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
