/* test_frontend_exports.c: ONNX models that others wrote: golden models as torch exports them, and the
 * samples of
 * ../shared/onnx where they are present. */
#include "frontend_testing.h"

#include <stdlib.h>

#include "frontends/onnx/onnx.h"
#include "tests/rowkernel_random.h"

static int64_t skipped;

/* Golden models as torch's exporter writes them (tests/golden/make_onnx.py). At opset 18, all in small ops: a
 * window; windows and full attention, scales of 1 + w, softcaps; learned positions, LayerNorm, GELU. At opset
 * 23: sinks, experts with biases and clamps; experts beside an MLP, with a scale of each, values that are
 * keys; values that cross segments, norms without weights; Mamba-2 of two groups; the delta rule, a
 * convolution, angles that are written into tables. */
static sbp_status run_exports(void *user) {
    fixture *f = user;
    static const struct {
        const char *name, *file;
    } exports[] = {{"mistral_window", "model/export18.json"},
                   {"gemma3_softcap", "model/export18.json"},
                   {"gemma3_softcap", "model/export23.json"},
                   {"gpt2", "model/export18.json"},
                   {"gpt2", "model/export18.onnx"},
                   {"gpt_oss_v", "model/export23.json"},
                   {"gemma4_26b_a4b_v", "model/export23.json"},
                   {"gemma4_e2b_released_v", "model/export23.json"},
                   {"granite_hybrid_groups", "model/export23.json"},
                   {"qwen3_5_dense_v", "model/export23.json"}};
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

/* The gradient of a parameter of this name; NULL: there is none. */
static const sbp_tensor *gradient_of(const sbp_module *m, const sbp_func *func, sbp_tensor **values,
                                     const char *name) {
    for (int32_t r = 0; r < func->result_count; r++) {
        const sbp_result *result = &func->results[r];
        if (result->role == SBP_RESULT_GRADIENT &&
            strcmp(m->params[func->values[result->target].binding].name, name) == 0)
            return values[result->value];
    }
    return NULL;
}

/* What the golden's tensor of an expert, "X.experts.3.up_proj.weight", is in an export, where gates and ups
 * of all experts are one tensor [E, 2 n, in]. */
static const double *expert_gradient(fixture *f, const sbp_module *m, const sbp_func *func,
                                     sbp_tensor **values, const sbp_weight *w) {
    const char *at = strstr(w->name, ".experts."), *part;
    if (!at)
        return NULL;
    char *end;
    int64_t expert = strtoll(at + 9, &end, 10);
    part = end + 1;
    bool down = strncmp(part, "down", 4) == 0, up = strncmp(part, "up", 2) == 0;
    const sbp_tensor *all = gradient_of(m, func, values,
                                        sbp_arena_printf(f->arena, "%.*s.experts.%s", (int)(at - w->name),
                                                         w->name, down ? "down_proj" : "gate_up_proj"));
    assert_non_null(all);
    return all->data + (down ? expert : 2 * expert + up) * w->elems;
}

/* Latent attention that is put together in place; two of six experts, in one of two groups; a shared one. */
static sbp_status run_fused_experts(void *user) {
    fixture *f = user;
    static const char golden[] = "tests/golden/deepseek_v3_groups";
    sbp_model_options options = sbp_model_options_for(SBP_F64);
    sbp_model model;
    sbp_weights *weights, *grads;
    int32_t experts = 0;
    double worst = 0;
    check(f, sbp_model_load(f->arena, f->diag, sbp_arena_printf(f->arena, "%s/model/export23.json", golden),
                            &options, &model));
    append_objective(f, &model, sbp_objective_find("sft"), NULL);
    check(f, sbp_module_verify(model.module, f->diag));
    sbp_func *func = differentiate(f, model.module, sbp_module_find_func(model.module, "model"));
    batch *b = batch_read(f, sbp_file_join(f->arena, golden, "train.jsonl"));
    check(f, sbp_weights_open(f->arena, f->diag, model.weights, &weights));
    check(f,
          sbp_weights_open(f->arena, f->diag, sbp_file_join(f->arena, golden, "grads.safetensors"), &grads));
    sbp_tensor **values = run(f, model.module, func, b, weights, "d_loss");
    for (int32_t i = 0; i < sbp_weights_count(grads); i++) {
        const sbp_weight *w = sbp_weights_at(grads, i);
        double *want = SBP_NEW_ARRAY(f->arena, double, w->elems);
        const sbp_tensor *own = gradient_of(model.module, func, values, w->name);
        check(f, sbp_weights_read(grads, w, 0, w->elems, SBP_F64, want, f->diag));
        const double *got = own ? own->data : expert_gradient(f, model.module, func, values, w);
        assert_non_null(got);
        experts += !own;
        double error = relative_error(got, want, w->elems);
        if (!(error <= SBP_TOLERANCE_FROM_F32))
            fail_msg("gradient of '%s': relative error %g", w->name, error);
        worst = error > worst ? error : worst;
    }
    assert_int_equal(experts, 3 * 6);
    for (int32_t p = 0; p < model.module->param_count; p++) /* what only chooses has no gradient */
        assert_false(model.module->params[p].trainable &&
                     strstr(model.module->params[p].name, "correction_bias"));
    printf("  %-46s gradients %.1e\n", golden, worst);
    sbp_weights_close(weights);
    sbp_weights_close(grads);
    test_free(b);
    return SBP_OK;
}

static void test_fused_experts(void **state) {
    (void)state;
    fixture f = fixture_create();
    assert_int_equal(sbp_guard(f.arena, f.diag, run_fused_experts, &f), SBP_OK);
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

/* ---- samples of others -------------------------------------------------------------------------------- */

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
        cmocka_unit_test(test_exports),   cmocka_unit_test(test_offsets),
        cmocka_unit_test(test_samples),   cmocka_unit_test(test_refused_samples),
        cmocka_unit_test(test_data),      cmocka_unit_test(test_damaged),
        cmocka_unit_test(test_tied_head), cmocka_unit_test(test_fused_experts)};
    int failures = cmocka_run_group_tests(tests, NULL, NULL);
    printf("%lld samples skipped\n", (long long)skipped);
    return failures;
}
