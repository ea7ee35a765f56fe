#include "tests/common/wide.h"

#include <math.h>

#include "frontends/formats/weights/safetensors.h"
#include "tests/rowkernel_random.h"

enum { PIECE = 1 << 16 };

static uint64_t hash_name(const char *prefix, const char *name) {
    uint64_t h = 0xcbf29ce484222325u;
    for (const char *c = prefix; *c; c++)
        h = (h ^ (uint8_t)*c) * 0x100000001b3u;
    for (const char *c = name; *c; c++)
        h = (h ^ (uint8_t)*c) * 0x100000001b3u;
    return h;
}

static uint64_t mixed(uint64_t x) {
    sbp_rng rng = {x};
    return sbp_rng_next(&rng);
}

static double value_at(uint64_t x, double mean, double scale) {
    sbp_rng rng = {x};
    return mean + scale * sbp_rng_unit(&rng);
}

double wide_value(const char *name, int64_t i, double mean, double scale) {
    return value_at(hash_name("", name) + (uint64_t)i, mean, scale);
}

static const sbp_json *read_json(io_fixture *f, const char *folder, const char *name) {
    const sbp_json *root;
    assert_ok(f, sbp_json_read(f->arena, f->diag, sbp_arena_printf(f->arena, "%s/%s", folder, name),
                               SBP_JSON_PYTHON, &root));
    return root;
}

static double number(io_fixture *f, const sbp_json *object, const char *key) {
    double value = NAN;
    assert_ok(f, sbp_json_get_double(f->diag, object, key, SBP_JSON_REQUIRED, &value));
    return value;
}

static sbp_tensor_spec spec_of(io_fixture *f, const sbp_json *tensor) {
    const sbp_json *shape;
    assert_ok(f, sbp_json_get_array(f->diag, tensor, "shape", SBP_JSON_REQUIRED, &shape));
    int64_t *dim = SBP_NEW_ARRAY(f->arena, int64_t, shape->count + 1);
    for (int64_t i = 0; i < shape->count; i++)
        assert_ok(f, sbp_json_as_i64(f->diag, &shape->items[i], &dim[i]));
    return (sbp_tensor_spec){
        .name = tensor->key, .dtype = SBP_F32, .rank = (int32_t)shape->count, .dim = dim};
}

static void write_tensor(io_fixture *f, sbp_safetensors_writer *w, const sbp_tensor_spec *spec, double mean,
                         double scale) {
    static float piece[PIECE];
    uint64_t hash = hash_name("", spec->name);
    int64_t n = 1;
    for (int32_t i = 0; i < spec->rank; i++)
        n *= spec->dim[i];
    for (int64_t at = 0; at < n; at += PIECE) {
        int64_t count = n - at < PIECE ? n - at : PIECE;
        for (int64_t i = 0; i < count; i++)
            piece[i] = (float)value_at(hash + (uint64_t)(at + i), mean, scale);
        assert_ok(f, sbp_safetensors_writer_write(w, f->diag, piece, count * (int64_t)sizeof *piece));
    }
}

void wide_write_model(io_fixture *f, const char *from, const char *to) {
    char command[400];
    snprintf(command, sizeof command, "mkdir -p %s && cp %s/config.json %s", to, from, to);
    assert_int_equal(system(command), 0);
    const sbp_json *tensors = read_json(f, from, "tensors.json");
    sbp_tensor_spec *specs = SBP_NEW_ARRAY(f->arena, sbp_tensor_spec, tensors->count);
    for (int64_t i = 0; i < tensors->count; i++)
        specs[i] = spec_of(f, &tensors->items[i]);
    sbp_safetensors_writer *w;
    assert_ok(f, sbp_safetensors_writer_create(f->arena, f->diag,
                                               sbp_arena_printf(f->arena, "%s/model.safetensors", to), specs,
                                               (int32_t)tensors->count, NULL, 0, 0, &w));
    for (int64_t i = 0; i < tensors->count; i++)
        write_tensor(f, w, &specs[i], number(f, &tensors->items[i], "mean"),
                     number(f, &tensors->items[i], "scale"));
    assert_ok(f, sbp_safetensors_writer_commit(w, f->diag));
}

wide_summary wide_summary_of(const char *name, const double *gradient, int64_t n) {
    wide_summary s = {.n = n};
    uint64_t signs = hash_name("sign ", name), places = hash_name("place ", name);
    for (int64_t i = 0; i < n; i++) {
        uint64_t bits = mixed(signs + (uint64_t)i);
        for (int b = 0; b < WIDE_PROJECTIONS; b++)
            s.projections[b] += bits >> b & 1 ? gradient[i] : -gradient[i];
        s.norm += gradient[i] * gradient[i];
    }
    s.norm = sqrt(s.norm);
    for (int j = 0; j < WIDE_ELEMENTS; j++)
        s.elements[j] = gradient[mixed(places + (uint64_t)j) % (uint64_t)n];
    return s;
}

double wide_error(const wide_summary *truth, const wide_summary *got) {
    double norm = truth->norm > 0 ? truth->norm : 1, root = sqrt((double)truth->n), error = 0;
    double differences[1 + WIDE_PROJECTIONS + WIDE_ELEMENTS] = {fabs(got->norm - truth->norm)};
    for (int b = 0; b < WIDE_PROJECTIONS; b++)
        differences[1 + b] = fabs(got->projections[b] - truth->projections[b]);
    for (int j = 0; j < WIDE_ELEMENTS; j++)
        differences[1 + WIDE_PROJECTIONS + j] = fabs(got->elements[j] - truth->elements[j]) * root;
    for (int i = 0; i < SBP_COUNT(differences); i++)
        if (!(differences[i] / norm <= error))
            error = isfinite(differences[i]) ? differences[i] / norm : INFINITY;
    return error;
}

static void read_numbers(io_fixture *f, const sbp_json *object, const char *key, int64_t count, double *out) {
    const sbp_json *list;
    assert_ok(f, sbp_json_get_array(f->diag, object, key, SBP_JSON_REQUIRED, &list));
    assert_int_equal(list->count, count);
    for (int64_t i = 0; i < count; i++)
        assert_ok(f, sbp_json_as_double(f->diag, &list->items[i], &out[i]));
}

static wide_summary truth_of(io_fixture *f, const sbp_json *tensor) {
    wide_summary s = {.norm = number(f, tensor, "norm"), .n = (int64_t)number(f, tensor, "n")};
    read_numbers(f, tensor, "projections", WIDE_PROJECTIONS, s.projections);
    read_numbers(f, tensor, "elements", WIDE_ELEMENTS, s.elements);
    return s;
}

double wide_compare(io_fixture *f, const char *from, const char *gradients, const char **tensor) {
    const sbp_json *truths;
    sbp_weights *w;
    double worst = 0;
    *tensor = "none";
    assert_ok(f, sbp_json_get_object(f->diag, read_json(f, from, "expect.json"), "gradients",
                                     SBP_JSON_REQUIRED, &truths));
    assert_ok(f, sbp_weights_open(f->arena, f->diag, gradients, &w));
    if (sbp_weights_count(w) != truths->count)
        fail_msg("%s: %d gradients, %d expected", from, sbp_weights_count(w), (int)truths->count);
    for (int64_t i = 0; i < truths->count; i++) {
        const sbp_json *item = &truths->items[i];
        const sbp_weight *t = sbp_weights_find(w, item->key);
        wide_summary truth = truth_of(f, item);
        if (!t || t->elems != truth.n)
            fail_msg("%s: no gradient '%s' of %lld elements", from, item->key, (long long)truth.n);
        double *g = malloc((size_t)truth.n * sizeof *g);
        assert_non_null(g);
        assert_ok(f, sbp_weights_read(w, t, 0, truth.n, SBP_F64, g, f->diag));
        wide_summary got = wide_summary_of(item->key, g, truth.n);
        free(g);
        double error = wide_error(&truth, &got);
        if (!(error <= worst)) {
            worst = error;
            *tensor = item->key;
        }
    }
    sbp_weights_close(w);
    return worst;
}
