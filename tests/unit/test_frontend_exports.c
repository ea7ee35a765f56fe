/* test_frontend_exports.c: ONNX models that others wrote: golden models as torch exports them, and the
 * samples of
 * ../shared/onnx where they are present. */
#include "frontend_testing.h"

#include <stdlib.h>

#include "frontends/onnx/onnx.h"
#include "tests/rowkernel_random.h"

static int64_t skipped;

/* Golden models as torch's exporter writes them at opset 18, all in small ops (tests/golden/make_onnx.py): a
 * window; windows and full attention, scales of 1 + w, softcaps; learned positions, LayerNorm, GELU. */
static sbp_status run_exports(void *user) {
    fixture *f = user;
    static const struct {
        const char *name, *file;
    } exports[] = {{"mistral_window", "model/export18.json"},
                   {"gemma3_softcap", "model/export18.json"},
                   {"gemma3_softcap", "model/export23.json"},
                   {"gpt2", "model/export18.json"},
                   {"gpt2", "model/export18.onnx"}};
    for (int i = 0; i < SBP_COUNT(exports); i++) {
        sbp_model_options options = sbp_model_options_for(SBP_F64);
        sbp_model model;
        const char *golden = sbp_arena_printf(f->arena, "tests/golden/%s", exports[i].name);
        const char *path = sbp_file_join(f->arena, golden, exports[i].file);
        check(f, sbp_model_load(f->arena, f->diag, path, &options, &model));
        compare_model(f, golden, &model);
    }
    return SBP_OK;
}

static void test_exports(void **state) {
    (void)state;
    fixture f = fixture_create();
    assert_int_equal(sbp_guard(f.arena, f.diag, run_exports, &f), SBP_OK);
    fixture_destroy(&f);
}

/* Gemma's scales of 1 + w in bf16: w is the parameter, and what is rounded is the product, as transformers
 * has it, not 1 + w. */
static sbp_status run_offsets(void *user) {
    fixture *f = user;
    static const char *const exports[] = {"export18", "export23"};
    for (int i = 0; i < SBP_COUNT(exports); i++) {
        sbp_model_options options = sbp_model_options_for(SBP_BF16);
        sbp_model model;
        int32_t norms = 0;
        check(f, sbp_model_load(
                     f->arena, f->diag,
                     sbp_arena_printf(f->arena, "tests/golden/gemma3_softcap/model/%s.json", exports[i]),
                     &options, &model));
        const sbp_func *func = sbp_module_find_func(model.module, "model");
        for (int32_t k = 0; k < func->op_count; k++) {
            const sbp_op *op = &func->ops[k];
            if (op->code != SBP_OP_rms_norm)
                continue;
            assert_int_equal(func->values[op->operands[1]].role, SBP_VALUE_PARAM);
            assert_true(sbp_op_double(op, "offset") == 1 && sbp_op_symbol_is(op, "cast", "after"));
            norms++;
        }
        assert_int_equal(norms, 3 * 6 + 1);
    }
    return SBP_OK;
}

static void test_offsets(void **state) {
    (void)state;
    fixture f = fixture_create();
    assert_int_equal(sbp_guard(f.arena, f.diag, run_offsets, &f), SBP_OK);
    fixture_destroy(&f);
}

/* ---- samples of others
 * ------------------------------------------------------------------------------------- */

static void compare_sample(fixture *f, const char *path, const char *golden, const char *weights_path) {
    sbp_model_options options = sbp_model_options_for(SBP_F64);
    options.weights = weights_path;
    sbp_model model;
    check(f, sbp_model_load(f->arena, f->diag, path, &options, &model));
    const sbp_json *expect = read_json(f, sbp_file_join(f->arena, golden, "expect.json"));
    const sbp_func *plain = sbp_module_find_func(model.module, "model");
    batch *b = batch_read(f, sbp_file_join(f->arena, golden, "train.jsonl"));
    sbp_weights *weights;
    check(f, sbp_weights_open(f->arena, f->diag, model.weights, &weights));
    sbp_tensor **values = run(f, model.module, plain, b, weights, NULL);
    const sbp_json *documents = sbp_json_member(expect, "documents"),
                   *logits = sbp_json_member(expect, "first_document_last_row_logits");
    for (int64_t d = 0; d < documents->count; d++) {
        double nll = 0;
        for (int64_t r = b->begin[d]; r < b->begin[d + 1]; r++)
            nll -= b->weight[r] * result_of(plain, values, "logp")->data[r];
        assert_true(fabs(nll - sbp_json_member(&documents->items[d], "nll_sum")->real) <=
                    SBP_TOLERANCE_FROM_F32 * nll);
    }
    const sbp_tensor *z = values[sbp_map_get(&plain->names, "logits")];
    for (int64_t j = 0; j < logits->count; j++)
        assert_true(fabs(z->data[(b->begin[1] - 1) * z->dim[1] + j] - logits->items[j].real) <=
                    SBP_TOLERANCE_FROM_F32);
    sbp_weights_close(weights);
    test_free(b);
    compare_model(f, golden, &model);
}

static sbp_status run_samples(void *user) {
    fixture *f = user;
    static const char root[] = "../shared/onnx", golden[] = "../shared/onnx/llama_opset23_functions.expect";
    if (!sbp_directory_exists(golden)) {
        printf("  skipped: no %s\n", golden);
        skipped++;
        return SBP_OK;
    }
    compare_sample(f, sbp_file_join(f->arena, root, "llama_opset23_functions.json"), golden, NULL);
    compare_sample(f, sbp_file_join(f->arena, root, "llama_opset23_functions_noweights.json"), golden,
                   sbp_file_join(f->arena, root, "model.safetensors"));
    /* exports as they come: masks spelled out, and with opset 18 attention and norms too */
    static const char *const exports[] = {"llama_torch_export_opset23", "llama_torch_export_opset18"};
    for (int i = 0; i < SBP_COUNT(exports); i++)
        compare_sample(f, sbp_arena_printf(f->arena, "%s/%s.json", root, exports[i]),
                       sbp_arena_printf(f->arena, "%s/%s.expect", root, exports[i]), NULL);
    return SBP_OK;
}

static void test_samples(void **state) {
    (void)state;
    fixture f = fixture_create();
    assert_int_equal(sbp_guard(f.arena, f.diag, run_samples, &f), SBP_OK);
    fixture_destroy(&f);
}

static void expect_refusal(const char *path, const char *message) {
    fixture f = fixture_create();
    sbp_model_options options = sbp_model_options_for(SBP_F32);
    sbp_model model;
    check_fails(&f, sbp_model_load(f.arena, f.diag, path, &options, &model), SBP_INPUT, message);
    fixture_destroy(&f);
}

/* Exports as they come, and models that are none. */
static void test_refused_samples(void **state) {
    (void)state;
    static const struct {
        const char *path, *message;
    } cases[] = {
        {"../shared/onnx/dim_param.json", "no output 'logits'"},
        {"../shared/onnx/raw_data.json", "opset 16; 18 to 25 are supported"},
        {"../shared/onnx/test_range_float_type_positive_delta_expanded.json", "opset"},
    };
    for (int i = 0; i < SBP_COUNT(cases); i++) {
        if (access(cases[i].path, R_OK) == 0)
            expect_refusal(cases[i].path, cases[i].message);
        else
            skipped++;
    }
}

/* Every data type and storage: [1, 0, 1] in 12 types. */
static sbp_status run_data(void *user) {
    fixture *f = user;
    static const char *const names[] = {"raw_data", "nonraw_data", "external_data"};
    for (int i = 0; i < SBP_COUNT(names); i++) {
        const char *path = sbp_arena_printf(f->arena, "../shared/onnx/%s.json", names[i]);
        const sbp_json *root;
        sbp_onnx_model model;
        if (access(path, R_OK) != 0) {
            printf("  skipped: no %s\n", path);
            skipped++;
            continue;
        }
        check(f, sbp_json_read(f->arena, f->diag, path, SBP_JSON_COMMENTS, &root));
        check(f, sbp_onnx_parse(f->arena, f->diag, path, root, &model));
        assert_int_equal(model.node_count, 12);
        assert_int_equal(model.opset, 16);
        int64_t offset = 0;
        for (int32_t n = 0; n < model.node_count; n++) {
            const sbp_onnx_tensor *t = &model.nodes[n].attributes[0].t;
            assert_int_equal(t->elems, 3);
            if (!t->data) { /* the file itself is not there */
                assert_string_equal(t->location, "external_data.external");
                assert_int_equal(t->offset, offset);
                offset += t->bytes;
                continue;
            }
            for (int64_t k = 0; k < 3; k++)
                assert_true(sbp_onnx_tensor_at(t, k) == (k == 1 ? 0 : 1));
        }
    }
    return SBP_OK;
}

static void test_data(void **state) {
    (void)state;
    fixture f = fixture_create();
    assert_int_equal(sbp_guard(f.arena, f.diag, run_data, &f), SBP_OK);
    fixture_destroy(&f);
}

/* ---- a head that is the embedding, stored transposed ------------------------------------------------------
 */

/* Parameters of logits = E[input_ids] H, E being 1 .. 6 in rows of 2. */
static int32_t count_parameters(const char *head_dims, const char *head, const char *properties) {
    fixture f = fixture_create();
    sbp_model_options options = sbp_model_options_for(SBP_F64);
    sbp_model model;
    char path[64];
    snprintf(path, sizeof path, "/tmp/sbp_tied_%d.json", (int)getpid());
    const char *text = sbp_arena_printf(
        f.arena,
        "{\"opsetImport\":[{\"version\":18}],%s\"graph\":{\"node\":["
        "{\"opType\":\"Gather\",\"input\":[\"E\",\"input_ids\"],\"output\":[\"x\"]},"
        "{\"opType\":\"MatMul\",\"input\":[\"x\",\"H\"],\"output\":[\"logits\"]}],\"initializer\":["
        "{\"name\":\"H\",\"dims\":[%s],\"dataType\":1,\"floatData\":[%s]},"
        "{\"name\":\"E\",\"dims\":[3,2],\"dataType\":1,\"floatData\":[1,2,3,4,5,6]}],\"input\":["
        "{\"name\":\"input_ids\",\"type\":{\"tensorType\":{\"elemType\":7,\"shape\":{\"dim\":[{\"dimValue\":"
        "1},{"
        "\"dimParam\":\"T\"}]}}}}],\"output\":[{\"name\":\"logits\"}]}}",
        properties, head_dims, head);
    check(&f, sbp_file_write(f.diag, path, text, strlen(text)));
    check(&f, sbp_model_load(f.arena, f.diag, path, &options, &model));
    int32_t count = model.module->param_count;
    check_no_memory(path); /* no tie is missed for lack of it */
    unlink(path);
    fixture_destroy(&f);
    return count;
}

#define TIED(names) "\"metadataProps\":[{\"key\":\"streambp.tied\",\"value\":\"" names "\"}],"

static void test_tied_head(void **state) {
    (void)state;
    assert_int_equal(count_parameters("2,3", "1,3,5,2,4,6", ""), 1);
    assert_int_equal(count_parameters("2,3", "1,3,5,2,4,7", ""), 2); /* all but one number */
    assert_int_equal(count_parameters("2,3", "1,2,3,4,5,6", ""), 2); /* in another order */
    /* Where the export says what is tied, equal values alone say nothing. */
    assert_int_equal(count_parameters("2,3", "1,3,5,2,4,6", TIED("H E")), 1);
    assert_int_equal(count_parameters("2,3", "1,3,5,2,4,6", TIED("")), 2);
    assert_int_equal(count_parameters("2,3", "1,3,5,2,4,6", TIED("HE E1")), 2);
    assert_int_equal(count_parameters("2,3", "1,3,5,2,4,6", TIED("E F")), 2);
    assert_int_equal(count_parameters("2,3", "1,3,5,2,4,7", TIED("H E")), 2);
}

/* ---- binary files that are damaged ----------------------------------------------------------------------
 */

static char directory[] = "/tmp/sbp_exports_XXXXXX";

/* Loads, or is refused as input; nothing else. */
static bool load_bytes(const char *data, size_t length) {
    fixture f = fixture_create();
    sbp_model_options options = sbp_model_options_for(SBP_F32);
    sbp_model model;
    const char *path = sbp_file_join(f.arena, directory, "model.onnx");
    check(&f, sbp_file_write(f.diag, path, data, length));
    sbp_status status = sbp_model_load(f.arena, f.diag, path, &options, &model);
    assert_true(status == SBP_OK || status == SBP_INPUT || status == SBP_IO);
    unlink(path);
    fixture_destroy(&f);
    return status == SBP_OK;
}

static int try_damage(const char *data, size_t length) {
    int loaded = 0;
    char *bent = malloc(length);
    assert_non_null(bent);
    assert_true(load_bytes(data, length));
    for (size_t cut = 0; cut < length; cut += 41)
        loaded += load_bytes(data, cut);
    sbp_rng rng = {5};
    for (int i = 0; i < 400; i++) {
        memcpy(bent, data, length);
        for (int64_t edits = 1 + sbp_rng_below(&rng, 3); edits > 0; edits--)
            bent[sbp_rng_below(&rng, (int64_t)length)] = (char)sbp_rng_below(&rng, 256);
        loaded += load_bytes(bent, length);
    }
    free(bent);
    return loaded;
}

static void test_damaged(void **state) {
    (void)state;
    fixture f = fixture_create();
    const char *data, *weights;
    size_t length, weights_length;
    assert_non_null(mkdtemp(directory));
    const char *beside = sbp_file_join(f.arena, directory, "model.safetensors");
    check(&f, sbp_file_read(f.arena, f.diag, "tests/golden/gpt2/model/export18.onnx", &data, &length));
    check(&f, sbp_file_read(f.arena, f.diag, "tests/golden/gpt2/model/model.safetensors", &weights,
                            &weights_length));
    check(&f, sbp_file_write(f.diag, beside, weights, weights_length));
    printf("  %d damaged files loaded\n", try_damage(data, length));
    unlink(beside);
    rmdir(directory);
    fixture_destroy(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exports),  cmocka_unit_test(test_offsets),
        cmocka_unit_test(test_samples),  cmocka_unit_test(test_refused_samples),
        cmocka_unit_test(test_data),     cmocka_unit_test(test_damaged),
        cmocka_unit_test(test_tied_head)};
    int failures = cmocka_run_group_tests(tests, NULL, NULL);
    printf("%lld samples skipped\n", (long long)skipped);
    return failures;
}
