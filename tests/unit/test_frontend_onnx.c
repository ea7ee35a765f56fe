/* test_frontend_onnx.c: ONNX models as JSON. Golden models of Hugging Face, written as ONNX in several ways,
 * must give the golden gradients; and every message for what is wrong or not built. */
#include "onnx_testing.h"

#include <stdlib.h>

#include "frontends/onnx/onnx.h"

static char directory[] = "/tmp/sbp_onnx_XXXXXX", file[sizeof directory + 20],
            weights_file[sizeof directory + 20];

static int make_directory(void **state) {
    (void)state;
    if (!mkdtemp(directory))
        return -1;
    snprintf(file, sizeof file, "%s/model.json", directory);
    snprintf(weights_file, sizeof weights_file, "%s/model.safetensors", directory);
    return 0;
}

static int remove_directory(void **state) {
    (void)state;
    unlink(file);
    unlink(weights_file);
    return rmdir(directory);
}

/* ---- decoders by hand ---------------------------------------------------------------------------------- */

typedef struct decoder {
    onnx_writer *w;
    int64_t layers, heads, kv_heads, head_dim;
    double eps, theta;
    bool qk_norm, tied, gelu;
    const char *cos, *sin;
} decoder;

static const char *name(const decoder *d, int64_t layer, const char *rest) {
    return sbp_arena_printf(d->w->f->arena, "model.layers.%lld.%s", (long long)layer, rest);
}

static const char *rms_norm(const decoder *d, const char *x, const char *weight) {
    onnx_writer *w = d->w;
    const char *attributes = join(w, int_attribute(w, "axis", -1), float_attribute(w, "epsilon", d->eps));
    return node(w, "RMSNormalization", attributes, x, param(w, weight), NULL);
}

/* x W^T (+ bias when the weights have one) */
static const char *linear(const decoder *d, const char *x, const char *module) {
    onnx_writer *w = d->w;
    const char *weight = param(w, sbp_arena_printf(w->f->arena, "%s.weight", module));
    const char *bias = sbp_arena_printf(w->f->arena, "%s.bias", module);
    const char *turned =
        node(w, "Transpose", ints_attribute(w, "perm", w->snake ? "1,0" : "\"1\",\"0\""), weight, NULL, NULL);
    const char *y = node(w, "MatMul", NULL, x, turned, NULL);
    return sbp_weights_find(w->weights, bias) ? node(w, "Add", NULL, y, param(w, bias), NULL) : y;
}

/* [1, T, heads d] -> [1, heads, T, d] */
static const char *split_heads(const decoder *d, const char *x, int64_t heads) {
    onnx_writer *w = d->w;
    const char *shape = add_ints(w, (int64_t[]){0, 0, heads, d->head_dim}, 4);
    return node(w, "Transpose", ints_attribute(w, "perm", "0,2,1,3"),
                node(w, "Reshape", NULL, x, shape, NULL), NULL, NULL);
}

static const char *join_heads(const decoder *d, const char *x) {
    onnx_writer *w = d->w;
    const char *turned = node(w, "Transpose", ints_attribute(w, "perm", "0,2,1,3"), x, NULL, NULL);
    return node(w, "Reshape", NULL, turned, add_ints(w, (int64_t[]){0, -1, d->heads * d->head_dim}, 3), NULL);
}

static const char *turn(const decoder *d, const char *x, int64_t heads) {
    onnx_writer *w = d->w;
    const char *attributes = w->four_d ? "" : int_attribute(w, "num_heads", heads);
    return node_as(w, sbp_arena_printf(w->f->arena, "v%d", w->count++), "RotaryEmbedding", attributes, x,
                   d->cos, d->sin, NULL);
}

static const char *attention(const decoder *d, const char *x, int64_t layer) {
    onnx_writer *w = d->w;
    const char *q = linear(d, x, name(d, layer, "self_attn.q_proj")),
               *k = linear(d, x, name(d, layer, "self_attn.k_proj"));
    const char *v = linear(d, x, name(d, layer, "self_attn.v_proj"));
    const char *attributes = int_attribute(w, "is_causal", 1);
    if (w->four_d) {
        q = split_heads(d, q, d->heads);
        k = split_heads(d, k, d->kv_heads);
        v = split_heads(d, v, d->kv_heads);
    } else {
        attributes = join(w, attributes,
                          join(w, int_attribute(w, "q_num_heads", d->heads),
                               int_attribute(w, "kv_num_heads", d->kv_heads)));
    }
    if (d->qk_norm) {
        q = rms_norm(d, q, name(d, layer, "self_attn.q_norm.weight"));
        k = rms_norm(d, k, name(d, layer, "self_attn.k_norm.weight"));
    }
    q = turn(d, q, d->heads);
    k = turn(d, k, d->kv_heads);
    const char *o = node(w, "Attention", attributes, q, k, v);
    return linear(d, w->four_d ? join_heads(d, o) : o, name(d, layer, "self_attn.o_proj"));
}

static const char *mlp(const decoder *d, const char *x, int64_t layer) {
    onnx_writer *w = d->w;
    const char *gate = linear(d, x, name(d, layer, "mlp.gate_proj")),
               *up = linear(d, x, name(d, layer, "mlp.up_proj"));
    const char *act = d->gelu ? node(w, "Gelu", NULL, gate, NULL, NULL)
                      : w->swish
                          ? node(w, "Swish", NULL, gate, NULL, NULL)
                          : node(w, "Mul", NULL, gate, node(w, "Sigmoid", NULL, gate, NULL, NULL), NULL);
    return linear(d, node(w, "Mul", NULL, act, up, NULL), name(d, layer, "mlp.down_proj"));
}

static void rotary_tables(decoder *d) {
    onnx_writer *w = d->w;
    int64_t n = d->head_dim / 2;
    double inv_freq[32];
    for (int64_t i = 0; i < n; i++)
        inv_freq[i] = pow(d->theta, -2.0 * (double)i / (double)d->head_dim);
    const char *column = node(w, "Unsqueeze", NULL, "position_ids", add_ints(w, (int64_t[]){-1}, 1), NULL);
    const char *position = node(w, "Cast", int_attribute(w, "to", 1), column, NULL, NULL);
    const char *table = add_raw(w, "inv_freq", 11, 1, &n, inv_freq, (size_t)n * sizeof *inv_freq);
    const char *angle = node(w, "Mul", NULL, position, table, NULL);
    d->cos = node(w, "Cos", NULL, angle, NULL, NULL);
    d->sin = node(w, "Sin", NULL, angle, NULL, NULL);
}

static void write_decoder(decoder *d, int64_t vocab) {
    onnx_writer *w = d->w;
    rotary_tables(d);
    const char *x = node(w, "Gather", NULL, param(w, "model.embed_tokens.weight"), "input_ids", NULL);
    for (int64_t i = 0; i < d->layers; i++) {
        x = node(w, "Add", NULL, x, attention(d, rms_norm(d, x, name(d, i, "input_layernorm.weight")), i),
                 NULL);
        x = node(w, "Add", NULL, x, mlp(d, rms_norm(d, x, name(d, i, "post_attention_layernorm.weight")), i),
                 NULL);
    }
    x = rms_norm(d, x, "model.norm.weight");
    const char *head = param(w, d->tied ? "model.embed_tokens.weight" : "lm_head.weight");
    const char *turned = node(w, "Transpose", NULL, head, NULL, NULL);
    node_as(w, "logits", "MatMul", NULL, x, turned, NULL, NULL);
    onnx_write(w, file, vocab);
}

/* The model in bf16 is a module that verifies, with both types of the residual stream. */
static void load_in_bf16(fixture *f, const char *path, const char *weights) {
    static const sbp_dtype residual[] = {SBP_BF16, SBP_F32};
    for (int i = 0; i < 2; i++) {
        sbp_model_options options = sbp_model_options_for(SBP_BF16);
        sbp_model model;
        options.residual = residual[i];
        options.weights = weights;
        check(f, sbp_model_load(f->arena, f->diag, path, &options, &model));
        append_objective(f, &model, sbp_objective_find("sft"), NULL);
        check(f, sbp_module_verify(model.module, f->diag));
        differentiate(f, model.module, sbp_module_find_func(model.module, "model"));
    }
}

static double number(const sbp_json *config, const char *key, double fallback) {
    const sbp_json *node_ = sbp_json_member(config, key);
    double value = fallback;
    if (node_ && node_->kind != SBP_JSON_NULL)
        assert_int_equal(sbp_json_as_double(NULL, node_, &value), SBP_OK);
    return value;
}

static void copy_file(fixture *f, const char *from, const char *to) {
    const char *data;
    size_t length;
    check(f, sbp_file_read(f->arena, f->diag, from, &data, &length));
    check(f, sbp_file_write(f->diag, to, data, length));
}

typedef struct variant {
    const char *golden;
    onnx_storage storage;
    bool snake, four_d;
} variant;

static sbp_status run_decoders(void *user) {
    fixture *f = user;
    static const variant variants[] = {
        {"llama_plain", STORE_RAW, false, false},         {"llama_bias", STORE_TYPED, true, true},
        {"llama_tied_pad", STORE_EXTERNAL, false, false}, {"llama_gelu", STORE_RAW, true, false},
        {"llama_mqa", STORE_EXTERNAL, true, true},        {"qwen2_plain", STORE_TYPED, false, true},
        {"qwen3_plain", STORE_INPUT, false, true}};
    for (int i = 0; i < SBP_COUNT(variants); i++) {
        const variant *v = &variants[i];
        const char *golden = sbp_file_join(f->arena, "tests/golden", v->golden);
        const char *source = sbp_file_join(f->arena, golden, "model");
        const sbp_json *config = read_json(f, sbp_file_join(f->arena, source, "config.json"));
        const sbp_json *rope = sbp_json_member(config, "rope_parameters");
        sbp_weights *weights;
        check(f, sbp_weights_open(f->arena, f->diag, source, &weights));
        onnx_writer w = onnx_begin(f, weights, v->storage);
        w.snake = v->snake;
        w.four_d = v->four_d;
        w.swish = strcmp(v->golden, "llama_bias") == 0;
        decoder d = {.w = &w,
                     .layers = (int64_t)number(config, "num_hidden_layers", 0),
                     .heads = (int64_t)number(config, "num_attention_heads", 0),
                     .kv_heads = (int64_t)number(config, "num_key_value_heads", 0),
                     .eps = number(config, "rms_norm_eps", 0),
                     .theta = number(rope ? rope : config, "rope_theta", 10000),
                     .tied = !sbp_weights_find(weights, "lm_head.weight"),
                     .gelu = strcmp(v->golden, "llama_gelu") == 0,
                     .qk_norm = sbp_weights_find(weights, "model.layers.0.self_attn.q_norm.weight") != NULL};
        d.head_dim = (int64_t)number(config, "head_dim", number(config, "hidden_size", 0) / (double)d.heads);
        write_decoder(&d, (int64_t)number(config, "vocab_size", 0));
        copy_file(f, sbp_file_join(f->arena, source, "model.safetensors"), weights_file);
        sbp_model_options options = sbp_model_options_for(SBP_F64);
        options.weights = v->storage == STORE_INPUT ? weights_file : NULL;
        sbp_model model;
        sbp_diag_clear(f->diag);
        check(f, sbp_model_load(f->arena, f->diag, file, &options, &model));
        assert_null(strstr(sbp_diag_text(f->diag, SBP_NOTE), "not part of the model"));
        assert_string_equal(model.model_type, "onnx");
        assert_string_equal(model.weights, v->storage == STORE_INPUT ? weights_file : file);
        assert_null(model.config);
        assert_int_equal(model.vocab_size, (int64_t)number(config, "vocab_size", 0));
        compare_model(f, golden, &model);
        load_in_bf16(f, file, options.weights);
        sbp_weights_close(weights);
    }
    return SBP_OK;
}

static void test_decoders(void **state) {
    (void)state;
    fixture f = fixture_create();
    assert_int_equal(sbp_guard(f.arena, f.diag, run_decoders, &f), SBP_OK);
    fixture_destroy(&f);
}

/* GPT-2: learned positions, LayerNormalization, weights [in, out], q, k, v split from one product, Gemm
 * without a batch axis, tanh GELU spelled out. */
static const char *gpt2_linear(onnx_writer *w, const char *x, const char *module) {
    const char *y =
        node(w, "MatMul", NULL, x, param(w, sbp_arena_printf(w->f->arena, "%s.weight", module)), NULL);
    return node(w, "Add", NULL, param(w, sbp_arena_printf(w->f->arena, "%s.bias", module)), y, NULL);
}

static const char *gpt2_gemm(onnx_writer *w, const char *x, const char *module) {
    const char *flat = node(w, "Squeeze", NULL, x, add_ints(w, (int64_t[]){0}, 1), NULL);
    const char *y = node(w, "Gemm", NULL, flat, param(w, sbp_arena_printf(w->f->arena, "%s.weight", module)),
                         param(w, sbp_arena_printf(w->f->arena, "%s.bias", module)));
    return node(w, "Unsqueeze", NULL, y, add_ints(w, (int64_t[]){0}, 1), NULL);
}

static const char *gpt2_norm(onnx_writer *w, const char *x, const char *module) {
    return node(w, "LayerNormalization", float_attribute(w, "epsilon", 1e-5), x,
                param(w, sbp_arena_printf(w->f->arena, "%s.weight", module)),
                param(w, sbp_arena_printf(w->f->arena, "%s.bias", module)));
}

static const char *gpt2_gelu(onnx_writer *w, const char *x) {
    const char *cube = node(w, "Pow", NULL, x, add_number(w, 3), NULL);
    const char *sum =
        node(w, "Add", NULL, x, node(w, "Mul", NULL, cube, add_number(w, 0.044715), NULL), NULL);
    const char *inner =
        node(w, "Tanh", NULL, node(w, "Mul", NULL, sum, add_number(w, 0.7978845608028654), NULL), NULL, NULL);
    const char *half = node(w, "Div", NULL, x, add_number(w, 2), NULL);
    return node(w, "Mul", NULL, half, node(w, "Sub", NULL, inner, add_number(w, -1), NULL), NULL);
}

static const char *gpt2_split(onnx_writer *w, const char *x, int part) {
    return node_as(w, sbp_arena_printf(w->f->arena, "v%d", w->count++), "Slice", NULL, x,
                   add_ints(w, (int64_t[]){18 * part}, 1), add_ints(w, (int64_t[]){18 * (part + 1)}, 1),
                   add_ints(w, (int64_t[]){-1}, 1));
}

static void write_gpt2(onnx_writer *w) {
    const char *token =
        node(w, "Gather", int_attribute(w, "axis", 0), param(w, "transformer.wte.weight"), "input_ids", NULL);
    const char *x =
        node(w, "Add", NULL, token,
             node(w, "Gather", NULL, param(w, "transformer.wpe.weight"), "position_ids", NULL), NULL);
    for (int64_t i = 0; i < 2; i++) {
        const char *block = sbp_arena_printf(w->f->arena, "transformer.h.%lld", (long long)i);
        const char *y = gpt2_norm(w, x, sbp_arena_printf(w->f->arena, "%s.ln_1", block));
        y = gpt2_linear(w, y, sbp_arena_printf(w->f->arena, "%s.attn.c_attn", block));
        const char *attributes =
            join(w, int_attribute(w, "is_causal", 1),
                 join(w, int_attribute(w, "q_num_heads", 3), int_attribute(w, "kv_num_heads", 3)));
        y = node(w, "Attention", attributes, gpt2_split(w, y, 0), gpt2_split(w, y, 1), gpt2_split(w, y, 2));
        y = gpt2_linear(w, y, sbp_arena_printf(w->f->arena, "%s.attn.c_proj", block));
        x = node(w, "Add", NULL, x, y, NULL);
        y = gpt2_norm(w, x, sbp_arena_printf(w->f->arena, "%s.ln_2", block));
        y = gpt2_gelu(w, gpt2_gemm(w, y, sbp_arena_printf(w->f->arena, "%s.mlp.c_fc", block)));
        x = node(w, "Add", NULL, x, gpt2_linear(w, y, sbp_arena_printf(w->f->arena, "%s.mlp.c_proj", block)),
                 NULL);
    }
    x = gpt2_norm(w, x, "transformer.ln_f");
    const char *head = node(w, "Transpose", NULL, "transformer.wte.weight", NULL, NULL);
    node_as(w, "logits", "MatMul", NULL, x, head, NULL, NULL);
    onnx_write(w, file, 89);
}

static sbp_status run_gpt2(void *user) {
    fixture *f = user;
    sbp_weights *weights;
    check(f, sbp_weights_open(f->arena, f->diag, "tests/golden/gpt2/model", &weights));
    onnx_writer w = onnx_begin(f, weights, STORE_RAW);
    write_gpt2(&w);
    sbp_weights_close(weights);
    sbp_model_options options = sbp_model_options_for(SBP_F64);
    sbp_model model;
    check(f, sbp_model_load(f->arena, f->diag, file, &options, &model));
    assert_true(model.learned_positions);
    assert_int_equal(model.max_positions, 48);
    const sbp_param *norm =
        &model.module->params[sbp_module_find_param(model.module, "transformer.ln_f.weight")];
    assert_int_equal(norm->init, SBP_INIT_ONES);
    assert_false(norm->decay);
    compare_model(f, "tests/golden/gpt2", &model);
    return SBP_OK;
}

static void test_gpt2(void **state) {
    (void)state;
    fixture f = fixture_create();
    assert_int_equal(sbp_guard(f.arena, f.diag, run_gpt2, &f), SBP_OK);
    fixture_destroy(&f);
}

/* ---- a small model by hand, and what can be wrong with it
 * ---------------------------------------------------- */

static const char small[] =
    "{\"irVersion\":\"10\",\"opsetImport\":[{\"version\":\"23\"}],\"graph\":{\n"
    "\"node\":[{\"opType\":\"Gather\",\"input\":[\"E\",\"input_ids\"],\"output\":[\"x\"]},\n"
    "{\"opType\":\"RMSNormalization\",\"name\":\"norm\",\"input\":[\"x\",\"w\"],\"output\":[\"y\"]},\n"
    "{\"opType\":\"Mul\",\"input\":[\"y\",\"s\"],\"output\":[\"z\"]},\n"
    "{\"opType\":\"MatMul\",\"name\":\"head\",\"input\":[\"z\",\"H\"],\"output\":[\"logits\"]}],\n"
    "\"initializer\":[{\"name\":\"E\",\"dims\":[3,2],\"dataType\":\"FLOAT\",\"floatData\":[1,2,3,4,5,6]},\n"
    "{\"name\":\"w\",\"dims\":[2],\"dataType\":1,\"floatData\":[1,\"0.5\"]},\n"
    "{\"name\":\"s\",\"dims\":[],\"dataType\":1,\"floatData\":[3]},\n"
    "{\"name\":\"H\",\"dims\":[2,3],\"dataType\":\"DOUBLE\",\"doubleData\":[1,0,1,0,1,0]}],\n"
    "\"input\":[{\"name\":\"input_ids\",\"type\":{\"tensorType\":{\"elemType\":7,\"shape\":{\"dim\":[{"
    "\"dimValue\":\"1\"},"
    "{\"dimParam\":\"N\"}]}}}}],\n"
    "\"output\":[{\"name\":\"logits\"},{\"name\":\"y\"}]}}";

/* `small` with the first occurrence of a text replaced. */
static void write_changed(fixture *f, const char *from, const char *to) {
    const char *at = strstr(small, from);
    if (!at)
        fail_msg("no '%s'", from);
    const char *text =
        sbp_arena_printf(f->arena, "%.*s%s%s", (int)(at - small), small, to, at + strlen(from));
    check(f, sbp_file_write(f->diag, file, text, strlen(text)));
}

static void test_small(void **state) {
    (void)state;
    fixture f = fixture_create();
    write_changed(&f, "{", "{");
    sbp_model_options options = sbp_model_options_for(SBP_BF16);
    sbp_model model;
    check(&f, sbp_model_load(f.arena, f.diag, file, &options, &model));
    const sbp_module *m = model.module;
    assert_int_equal(m->param_count, 3); /* s has one element: a constant */
    assert_string_equal(m->params[0].name, "E");
    assert_true(m->params[0].decay && m->params[0].trainable);
    assert_int_equal(m->params[1].init, SBP_INIT_ONES);
    assert_false(m->params[1].decay);
    assert_int_equal(m->params[2].storage, SBP_F32);
    assert_non_null(strstr(sbp_diag_text(f.diag, SBP_NOTE), "output 'y' is ignored"));
    const sbp_func *func = sbp_module_find_func(m, "model");
    assert_int_equal(func->values[sbp_map_get(&func->names, "logits")].type.dtype, SBP_F32); /* wide */
    assert_int_equal(func->values[sbp_map_get(&func->names, "x")].type.dtype, SBP_BF16);
    assert_int_equal(func->values[sbp_map_get(&func->names, "z")].type.dtype, SBP_F32); /* row by row */
    options.freeze = (const char *const[]){"H"};
    options.freeze_count = 1;
    check(&f, sbp_model_load(f.arena, f.diag, file, &options, &model));
    assert_int_equal(model.module->params[2].storage, SBP_F64); /* as in the file */
    fixture_destroy(&f);
}

static void expect_error(const char *from, const char *to, const char *message) {
    fixture f = fixture_create();
    write_changed(&f, from, to);
    sbp_model_options options = sbp_model_options_for(SBP_F32);
    sbp_model model;
    check_fails(&f, sbp_model_load(f.arena, f.diag, file, &options, &model), SBP_INPUT, message);
    fixture_destroy(&f);
}

/* The values of E in a file, with an offset or a length. */
static void expect_extent_error(const char *key, const char *value, const char *message) {
    char to[300];
    snprintf(to, sizeof to,
             "\"dataLocation\":\"EXTERNAL\",\"externalData\":[{\"key\":\"location\",\"value\":"
             "\"model.json\"},{\"key\":\"%s\",\"value\":\"%s\"}]",
             key, value);
    expect_error("\"floatData\":[1,2,3,4,5,6]", to, message);
}

static void test_form_errors(void **state) {
    (void)state;
    expect_error("\"irVersion\"", "\"irVersions\"", "irVersions: unknown field");
    expect_error("\"irVersion\"", "\"ir_version\":1,\"irVersion\"", "the field is given in both spellings");
    expect_error("\"graph\":{", "\"functions\":[{}],\"graph\":{",
                 "models with 'functions' are not supported");
    expect_error("\"23\"", "\"17\"", "opset 17; 18 to 25 are supported");
    expect_error("\"23\"", "\"26\"", "opset 26; 18 to 25 are supported");
    expect_error("\"23\"", "\"22\"",
                 "node 'norm' (RMSNormalization): the operator came with opset 23, the model declares");
    expect_error("\"23\"", "\"x\"", "expected an integer, found the string 'x'");
    expect_error("\"dataType\":\"FLOAT\"", "\"dataType\":\"FLOAT8\"",
                 "expected the name or number of an enum value");
    expect_error("\"dataType\":1", "\"dataType\":14", "tensors of type COMPLEX64 are not supported");
    expect_error("\"dims\":[3,2]", "\"dims\":[3,3]", "6 values, the dimensions make 9");
    expect_error("\"dims\":[3,2]", "\"dims\":[-3,-2]", "dimension -3");
    expect_error("\"dims\":[3,2]", "\"dims\":[4611686018427387904,4611686018427387904]", "dimension");
    expect_error("\"floatData\":[1,2,3", "\"doubleData\":[1,2,3",
                 "not the place for values of this FLOAT tensor");
    expect_error(",\"floatData\":[3]", "", "tensor 's' has no values");
    expect_error("\"floatData\":[3]", "\"rawData\":\"AAA=\"",
                 "tensor 's': 2 bytes of raw data, dimensions and type make 4");
    expect_error("\"floatData\":[3]", "\"rawData\":\"AA*A\"", "character 2 is not a base64 digit");
    expect_error("\"floatData\":[3]", "\"dataLocation\":1", "tensor 's' is external, but has no location");
    expect_error("\"floatData\":[3]",
                 "\"dataLocation\":\"EXTERNAL\",\"externalData\":[{\"key\":\"location\",\"value\":\"../x\"}]",
                 "location '../x' is not a file below the model's directory");
    expect_extent_error("offset", "100000", "tensor 'E' has 24 bytes from byte 100000 of");
    expect_extent_error("offset", "9223372036854775807", "24 bytes from byte 9223372036854775807 of");
    expect_extent_error("offset", "9223372036854775808", "external data with an offset of 2^63 or more");
    expect_extent_error("offset", "18446744073709551615", "external data with an offset of 2^63 or more");
    expect_extent_error("length", "18446744073709551615", "external data with a length of 2^63 or more");
    expect_extent_error("length", "18446744073709551616", "expected an integer of at least 0");
    expect_extent_error("length", "23", "tensor 'E' has 23 bytes, its dimensions and type make 24");
    expect_error("\"opType\":\"Gather\"", "\"opType\":\"Gather\",\"attribute\":[{\"name\":\"axis\"}]",
                 "attribute 'axis' has no value");
    expect_error("\"opType\":\"Gather\"",
                 "\"opType\":\"Gather\",\"attribute\":[{\"name\":\"axis\",\"i\":0,\"f\":1}]",
                 "attribute 'axis' of type FLOAT has a value here");
}

static void test_meaning_errors(void **state) {
    (void)state;
    expect_error("\"name\":\"logits\"}", "\"name\":\"result\"}",
                 "the graph has no output 'logits'; the first is result");
    expect_error("\"name\":\"input_ids\"", "\"name\":\"ids\"", "input 'ids' is INT64");
    expect_error("{\"dimParam\":\"N\"}", "{\"dimValue\":\"128\"}",
                 "input 'input_ids' has the fixed length 128");
    expect_error("{\"dimValue\":\"1\"}", "{\"dimValue\":\"2\"}", "input 'input_ids' has a batch of 2");
    expect_error("\"elemType\":7", "\"elemType\":1", "input 'input_ids' is FLOAT, INT64 expected");
    expect_error("[\"x\",\"w\"]", "[\"u\",\"w\"]",
                 "node 'norm' (RMSNormalization): input 'u' is not defined before this node");
    expect_error("[\"x\",\"w\"]", "[\"x\"]", "node 'norm' (RMSNormalization): input 1 is missing");
    expect_error("[\"x\",\"w\"]", "[\"x\",\"H\"]", "'H' is [2,3]; [2] is expected");
    expect_error("[\"z\",\"H\"]", "[\"z\",\"E\"]",
                 "node 'head' (MatMul): inner size differs: 'z' is [1,T,2], 'E' is [3,2]");
    expect_error("[\"z\",\"H\"]", "[\"z\",\"y\"]",
                 "node 'head' (MatMul): 'y' is [1,T,2]; [1,heads,d,T] is expected");
    expect_error("[\"y\",\"s\"]", "[\"y\",\"H\"]", "shapes [1,T,2] and [2,3] do not broadcast");
    expect_error("\"opType\":\"Mul\"", "\"opType\":\"Softmax\"",
                 "node 'z' (Softmax): the node has 2 inputs; at most 1 are expected");
    expect_error("\"opType\":\"Mul\"", "\"opType\":\"Det\"",
                 "node 'z' (Det): this operator is not supported");
    expect_error("\"opType\":\"Mul\"", "\"opType\":\"Conv\"",
                 "node 'z' (Conv): 1 groups of 'y' [1,T,2] by 's' []");
    expect_error("\"opType\":\"Mul\"", "\"opType\":\"Mul\",\"domain\":\"com.microsoft\"",
                 "operators of domain 'com.microsoft' are not supported");
    expect_error("\"opType\":\"Mul\"", "\"opType\":\"Mul\",\"attribute\":[{\"name\":\"axis\",\"i\":0}]",
                 "unknown attribute 'axis'");
    expect_error("\"name\":\"norm\"", "\"name\":\"norm\",\"attribute\":[{\"name\":\"axis\",\"i\":1}]",
                 "axis 1 of [1,T,2]; only the last axis is supported");
    expect_error("\"output\":[\"y\"]", "\"output\":[\"y\",\"y\"]", "output 'y' is defined twice");
    expect_error("\"output\":[\"y\"]", "\"output\":[\"w\"]", "output 'w' is defined twice");
    expect_error("\"output\":[\"logits\"]", "\"output\":[\"end\"]", "no node computes 'logits'");
    expect_error("[\"E\",\"input_ids\"]", "[\"E\",\"s\"]", "the index 's' is not input_ids or positions");
    expect_error("\"input\":[{",
                 "\"input\":[{\"name\":\"num_logits_to_keep\",\"type\":{\"tensorType\":{\"elemType\":7,"
                 "\"shape\":{}}}},{",
                 "input 'num_logits_to_keep' chooses the tokens whose logits are returned; export a model");
    expect_error("{\"opType\":\"MatMul\"", "{\"opType\":\"Attention\"",
                 "is_causal is 0: without a mask every token sees");
}

/* ---- operators that only rearrange, on one activation [1, T, 4]
 * ------------------------------------------------ */

/* A model with these nodes between the embedding x [1,T,4] and y [1,T,4], which the head reads. */
static void write_between(fixture *f, const char *nodes, const char *initializers) {
    const char *text = sbp_arena_printf(
        f->arena,
        "{\"opsetImport\":[{\"version\":23}],\"graph\":{\"node\":["
        "{\"opType\":\"Gather\",\"input\":[\"E\",\"input_ids\"],\"output\":[\"x\"]},%s,"
        "{\"opType\":\"MatMul\",\"name\":\"head\",\"input\":[\"y\",\"H\"],\"output\":[\"logits\"]}],"
        "\"initializer\":[%s],\"input\":["
        "{\"name\":\"E\",\"type\":{\"tensorType\":{\"elemType\":1,\"shape\":{\"dim\":[{\"dimValue\":3},{"
        "\"dimValue\":4}]}}}},"
        "{\"name\":\"H\",\"type\":{\"tensorType\":{\"elemType\":1,\"shape\":{\"dim\":[{\"dimValue\":4},{"
        "\"dimValue\":3}]}}}},"
        "{\"name\":\"input_ids\",\"type\":{\"tensorType\":{\"elemType\":7,\"shape\":{\"dim\":[{\"dimValue\":"
        "1},{\"dimParam\":\"T\"}]}}}},"
        "{\"name\":\"position_ids\",\"type\":{\"tensorType\":{\"elemType\":7,\"shape\":{\"dim\":[{"
        "\"dimValue\":1},{\"dimParam\":\"T\"}]}}}}],"
        "\"output\":[{\"name\":\"logits\"}]}}",
        nodes, initializers);
    check(f, sbp_file_write(f->diag, file, text, strlen(text)));
}

#define NODE(op, inputs, outputs, attributes)                                                                \
    "{\"opType\":\"" op "\",\"input\":[" inputs "],\"output\":[" outputs "],\"attribute\":[" attributes "]}"
#define INTS(name, dims, values)                                                                             \
    "{\"name\":\"" name "\",\"dims\":[" dims "],\"dataType\":7,\"int64Data\":[" values "]}"

/* One of the channels of x, tokens last; their taps. */
#define TURNED(op, inputs, outputs, attributes)                                                              \
    NODE("Transpose", "\"x\"", "\"a\"", "{\"name\":\"perm\",\"ints\":[0,2,1]}")                              \
    "," NODE(op, inputs, outputs, attributes)
#define TAPS "{\"name\":\"w\",\"dims\":[4,1,2],\"dataType\":1,\"floatData\":[1,2,3,4,5,6,7,8]}"

static const struct {
    const char *nodes, *initializers;
    const char *message; /* NULL: it loads */
    int32_t reshapes, slices, concats;
} rearrangements[] = {
    {NODE("Split", "\"x\"", "\"a\",\"b\"",
          "{\"name\":\"axis\",\"i\":-1},{\"name\":\"num_outputs\",\"i\":2}") "," NODE("Concat", "\"b\",\"a\"",
                                                                                      "\"y\"",
                                                                                      "{\"name\":\"axis\","
                                                                                      "\"i\":2}"),
     "", NULL, 0, 2, 1},
    {NODE("Split", "\"x\",\"s\"", "\"a\",\"b\"", "{\"name\":\"axis\",\"i\":2}") "," NODE(
         "Concat", "\"b\",\"a\"", "\"y\"", "{\"name\":\"axis\",\"i\":-1}"),
     INTS("s", "2", "1,3"), NULL, 0, 2, 1},
    {NODE("Split", "\"x\",\"s\"", "\"a\",\"y\"", "{\"name\":\"axis\",\"i\":2}"), INTS("s", "2", "1,4"),
     "part 1 has 4 of 4 elements", 0, 0, 0},
    {NODE("Split", "\"x\"", "\"a\",\"y\"", "{\"name\":\"axis\",\"i\":1}"), "",
     "the tokens' axis 1 of 'x' [1,T,4] is split", 0, 0, 0},
    {NODE("Reshape", "\"x\",\"s\"", "\"a\"", "") "," NODE("Reshape", "\"a\",\"t\"", "\"y\"", ""),
     INTS("s", "4", "1,-1,2,2") "," INTS("t", "3", "0,0,-1"), NULL, 0, 0, 0},
    {NODE("Reshape", "\"x\",\"s\"", "\"y\"", ""), INTS("s", "2", "-1,4"),
     "logits is [T,3]; [1,T,V] is expected", 0, 0, 0},
    {NODE("Reshape", "\"x\",\"s\"", "\"y\"", ""), INTS("s", "3", "1,-1,2"),
     "[1,T,4] to [1,T,2] does not keep one row per token", 0, 0, 0},
    {NODE("Reshape", "\"x\",\"s\"", "\"y\"", ""), INTS("s", "3", "1,4,-1"), "does not keep one row per token",
     0, 0, 0},
    {NODE("Reshape", "\"x\",\"x\"", "\"y\"", ""), "", "the shape 'x' is FLOAT, INT64 expected", 0, 0, 0},
    {NODE("Reshape", "\"x\",\"input_ids\"", "\"y\"", ""), "",
     "the shape 'input_ids' is computed from activations", 0, 0, 0},
    {NODE("Reshape", "\"x\",\"s\"", "\"a\"", "") "," NODE("Transpose", "\"a\"", "\"y\"",
                                                          "{\"name\":\"perm\",\"ints\":[0,1,3,2]}"),
     INTS("s", "4", "0,0,2,2"), "axes of [1,T,2,2] other than the tokens' are exchanged", 0, 0, 0},
    {NODE("Transpose", "\"x\"", "\"a\"", "{\"name\":\"perm\",\"ints\":[0,2,1]}") "," NODE(
         "Transpose", "\"a\"", "\"y\"", "{\"name\":\"perm\",\"ints\":[0,2,1]}"),
     "", NULL, 0, 0, 0},
    {NODE("Transpose", "\"x\"", "\"y\"", "{\"name\":\"perm\",\"ints\":[0,0,1]}"), "",
     "perm is not a permutation", 0, 0, 0},
    {NODE("Unsqueeze", "\"x\",\"s\"", "\"a\"", "") "," NODE("Squeeze", "\"a\",\"s\"", "\"y\"", ""),
     INTS("s", "1", "1"), NULL, 0, 0, 0},
    {NODE("Squeeze", "\"x\",\"s\"", "\"y\"", ""), INTS("s", "1", "2"), "axis 2 of [1,T,4] is not 1", 0, 0, 0},
    {NODE("Unsqueeze", "\"x\",\"s\"", "\"y\"", ""), INTS("s", "1", "7"),
     "axis 7 does not exist in a tensor of rank 4", 0, 0, 0},
    {NODE("Slice", "\"x\",\"s\",\"t\",\"t\"", "\"y\"", ""), INTS("s", "1", "0") "," INTS("t", "1", "1"),
     "tokens 0 to 1 by steps of 1 of 'x' [1,T,4] are taken; all are needed", 0, 0, 0},
    {NODE("Pow", "\"x\",\"s\"", "\"y\"", ""), "{\"name\":\"s\",\"dims\":[],\"dataType\":1,\"floatData\":[7]}",
     "the exponent is 7; 2, 3, 0.5 and -0.5 are supported", 0, 0, 0},
    {NODE("Cast", "\"x\"", "\"y\"", "{\"name\":\"to\",\"i\":7}"), "",
     "a cast of FLOAT to INT64 is not supported", 0, 0, 0},
    {NODE("Add", "\"x\",\"input_ids\"", "\"y\"", ""), "", "do not broadcast", 0, 0, 0},
    {NODE("Unsqueeze", "\"position_ids\",\"s\"", "\"a\"", "") "," NODE("Add", "\"x\",\"a\"", "\"y\"", ""),
     INTS("s", "1", "2"), "'a' is INT64; arithmetic on integers is not supported", 0, 0, 0},
    {NODE("RotaryEmbedding", "\"x\",\"c\",\"c\",\"position_ids\"", "\"y\"",
          "{\"name\":\"num_heads\",\"i\":2}"),
     "{\"name\":\"c\",\"dims\":[5,1],\"dataType\":1,\"floatData\":[1,2,3,4,5]}", NULL, 2, 0, 0},
    {NODE("RotaryEmbedding", "\"x\",\"c\",\"c\",\"position_ids\"", "\"y\"",
          "{\"name\":\"num_heads\",\"i\":1}"),
     "{\"name\":\"c\",\"dims\":[5,1],\"dataType\":1,\"floatData\":[1,2,3,4,5]}",
     "tables of 1 and 1 numbers for heads of 4", 0, 0, 0},
    {NODE("RotaryEmbedding", "\"x\",\"x\",\"x\"", "\"y\"", "{\"name\":\"interleaved\",\"i\":1}"), "",
     "interleaved 1 is not supported", 0, 0, 0},
    {NODE("Attention", "\"x\",\"x\",\"x\",\"x\"", "\"y\"", "{\"name\":\"is_causal\",\"i\":1}"), "",
     "the mask 'x' is computed from activations or parameters", 0, 0, 0},
    {NODE("Attention", "\"x\",\"x\",\"x\"", "\"y\"",
          "{\"name\":\"is_causal\",\"i\":1},{\"name\":\"q_num_heads\",\"i\":3}"),
     "", "cannot be split into 3 heads", 0, 0, 0},
    {NODE("Dropout", "\"x\"", "\"y\"", ""), "", NULL, 0, 0, 0},
    /* numbers without the inputs that a rule reads */
    {NODE("Gather", "\"s\"", "\"a\"", "") "," NODE("Reshape", "\"x\",\"a\"", "\"y\"", ""),
     INTS("s", "1", "2"), "node 'a' (Gather): input 1 is missing", 0, 0, 0},
    {NODE("Add", "\"s\",\"\",\"s\"", "\"a\"", "") "," NODE("Reshape", "\"x\",\"a\"", "\"y\"", ""),
     INTS("s", "1", "2"), "node 'a' (Add): input 1 is missing", 0, 0, 0},
    /* choices, and what tokens have chosen */
    {NODE("TopK", "\"x\",\"s\"", "\"y\",\"i\"", "{\"name\":\"largest\",\"i\":0}"), INTS("s", "1", "2"),
     "node 'y' (TopK), which seems to be part of a mixture of experts: 2 of axis -1 of 'x' [1,T,4], the "
     "smallest",
     0, 0, 0},
    {NODE("TopK", "\"x\",\"s\"", "\"a\",\"i\"", "") "," NODE("GatherElements", "\"x\",\"i\"", "\"y\"", ""),
     INTS("s", "1", "2"), "axis 0 of 'x' [1,T,4] at 'i' [1,T,2]: elements of rows are supported", 0, 0, 0},
    {NODE("TopK", "\"x\",\"s\"", "\"a\",\"i\"", "") "," NODE("Add", "\"x\",\"i\"", "\"y\"", ""),
     INTS("s", "1", "4"), "'i' is INT64; arithmetic on integers is not supported", 0, 0, 0},
    {NODE("Reshape", "\"x\",\"s\"", "\"a\"", "") "," NODE("Softmax", "\"a\"", "\"y\"", ""),
     INTS("s", "1", "-1"), "axis -1 of 'a' [4*T]; the last axis of an activation is supported", 0, 0, 0},
    {NODE("Reshape", "\"x\",\"s\"", "\"a\"", "") "," NODE("Slice", "\"a\",\"t\",\"u\",\"t\"", "\"y\"", ""),
     INTS("s", "2", "-1,2") "," INTS("t", "1", "0") "," INTS("u", "1", "2"),
     "elements of axis 0 of 'a' [2*T,2] are taken; those of all tokens are needed", 0, 0, 0},
    {NODE("Reshape", "\"x\",\"s\"", "\"a\"", "") "," NODE("Reshape", "\"a\",\"t\"", "\"y\"", ""),
     INTS("s", "2", "-1,2") "," INTS("t", "3", "1,-1,4"), NULL, 0, 0, 0},
    /* convolutions over tokens */
    {TURNED("Conv", "\"a\",\"w\"", "\"y\"", "{\"name\":\"group\",\"i\":4}"), TAPS,
     "0 rows before the first for 2 taps (2 to ", 0, 0, 0},
    {TURNED("Conv", "\"a\",\"w\"", "\"y\"",
            "{\"name\":\"group\",\"i\":4},{\"name\":\"pads\",\"ints\":[1,1]}"),
     TAPS, "'y' is [1,4,T]; [1,T,n] is expected", 0, 0, 0},
    {TURNED("Conv", "\"a\",\"w\"", "\"c\"",
            "{\"name\":\"group\",\"i\":4},{\"name\":\"pads\",\"ints\":[1,1]}") "," NODE("Neg", "\"c\"",
                                                                                        "\"y\"", ""),
     TAPS, "'c', a convolution that is padded on both sides, is used before its last rows are cut off", 0, 0,
     0},
    {TURNED("Conv", "\"a\",\"w\"", "\"c\"",
            "{\"name\":\"group\",\"i\":4},{\"name\":\"pads\",\"ints\":[1,1]}") "," NODE("Slice",
                                                                                        "\"c\",\"s\",\"t\","
                                                                                        "\"u\"",
                                                                                        "\"y\"", ""),
     TAPS "," INTS("s", "1", "0") "," INTS("t", "1", "9223372036854775807") "," INTS("u", "1", "2"),
     "other rows are taken than those of the tokens", 0, 0, 0},
    {TURNED("Conv", "\"a\",\"w\"", "\"c\"",
            "{\"name\":\"group\",\"i\":4},{\"name\":\"pads\",\"ints\":[1,0]}") "," NODE("Transpose", "\"c\"",
                                                                                        "\"y\"",
                                                                                        "{\"name\":\"perm\","
                                                                                        "\"ints\":[0,2,1]}"),
     TAPS, NULL, 0, 0, 0},
    /* operators of our own, and numbers that are written into others */
    {NODE("DeltaRule", "\"x\",\"x\",\"x\",\"x\",\"x\"", "\"y\"", ""), "",
     "node 'y' (DeltaRule): this operator is not supported", 0, 0, 0},
    {NODE("Add", "\"x\",\"x\"", "\"y\"", "],\"domain\":\"streambp\",\"metadataProps\":["), "",
     "node 'y' (Add): this operator is not supported", 0, 0, 0},
    {NODE("Ssd", "\"x\",\"x\",\"x\",\"x\",\"x\"", "\"y\"", "],\"domain\":\"streambp\",\"metadataProps\":["),
     "", "'x' is [1,T,4]; [1,T,heads,n] is expected", 0, 0, 0},
    {NODE("ScatterND", "\"s\",\"t\",\"u\"", "\"a\"", "") "," NODE("Reshape", "\"x\",\"a\"", "\"y\"", ""),
     INTS("s", "3",
          "1,-1,4") ",{\"name\":\"t\",\"dims\":[1,1],\"dataType\":7,\"int64Data\":[2]}," INTS("u", "1", "4"),
     NULL, 0, 0, 0},
    {NODE("ScatterND", "\"s\",\"t\",\"u\"", "\"a\"", "") "," NODE("Reshape", "\"x\",\"a\"", "\"y\"", ""),
     INTS("s", "3",
          "1,-1,2") ",{\"name\":\"t\",\"dims\":[1,1],\"dataType\":7,\"int64Data\":[2]}," INTS("u", "1", "4"),
     "numbers are written into 's' that are not those which stand there", 0, 0, 0},
    {NODE("Mul", "\"position_ids\",\"s\"", "\"a\"", "") "," NODE("Add", "\"a\",\"t\"", "\"b\"", "") "," NODE(
         "Unsqueeze", "\"b\",\"t\"", "\"c\"",
         "") "," NODE("Cast", "\"c\"", "\"d\"", "{\"name\":\"to\",\"i\":1}") "," NODE("Mul", "\"x\",\"d\"",
                                                                                      "\"y\"", ""),
     INTS("s", "1", "0") "," INTS("t", "1", "2"), "repeats numbers in a way that is not supported", 0, 0, 0},
};

static void test_rearrangements(void **state) {
    (void)state;
    for (int i = 0; i < SBP_COUNT(rearrangements); i++) {
        fixture f = fixture_create();
        sbp_model_options options = sbp_model_options_for(SBP_F32);
        sbp_model model;
        write_between(&f, rearrangements[i].nodes, rearrangements[i].initializers);
        sbp_status status = sbp_model_load(f.arena, f.diag, file, &options, &model);
        if (rearrangements[i].message) {
            check_fails(&f, status, SBP_INPUT, rearrangements[i].message);
        } else {
            check(&f, status);
            const sbp_func *func = sbp_module_find_func(model.module, "model");
            int32_t counts[3] = {0};
            for (int32_t k = 0; k < func->op_count; k++) {
                counts[0] += func->ops[k].code == SBP_OP_reshape;
                counts[1] += func->ops[k].code == SBP_OP_slice;
                counts[2] += func->ops[k].code == SBP_OP_concat;
            }
            assert_int_equal(counts[0], rearrangements[i].reshapes);
            assert_int_equal(counts[1], rearrangements[i].slices);
            assert_int_equal(counts[2], rearrangements[i].concats);
        }
        fixture_destroy(&f);
    }
}

/* One token of the text left out, doubled, or replaced by another: never a crash, always a status. */
static void test_mutations(void **state) {
    (void)state;
    static const char *const others[] = {
        "", "0", "-1", "\"x\"", "[]", "{}", "null", "1e300", "99999999999999999999"};
    char text[sizeof small + 64];
    int64_t loaded = 0, refused = 0;
    for (size_t at = 0; at < sizeof small - 1;) {
        size_t length = strcspn(small + at, "{}[]:,\n");
        length = length > 0 ? length : 1;
        for (int i = 0; i < SBP_COUNT(others); i++) {
            fixture f = fixture_create();
            int n = snprintf(text, sizeof text, "%.*s%s%s", (int)at, small, others[i], small + at + length);
            check(&f, sbp_file_write(f.diag, file, text, (size_t)n));
            sbp_model_options options = sbp_model_options_for(SBP_F32);
            sbp_model model;
            sbp_status status = sbp_model_load(f.arena, f.diag, file, &options, &model);
            if (status != SBP_OK && status != SBP_INPUT)
                fail_msg("status %d: %s\n%s", (int)status, sbp_diag_text(f.diag, SBP_NOTE), text);
            assert_true(status == SBP_OK || sbp_diag_count(f.diag, SBP_ERROR) > 0);
            loaded += status == SBP_OK;
            refused += status != SBP_OK;
            fixture_destroy(&f);
        }
        at += length;
    }
    printf("  %lld changed models refused, %lld loaded\n", (long long)refused, (long long)loaded);
}

/* By hand; and as torch exports Gemma, where most of what an import does is in raising. */
static void test_no_memory(void **state) {
    (void)state;
    fixture g = fixture_create();
    write_changed(&g, "{", "{");
    check_no_memory(file);
    copy_file(&g, "tests/fuzz/corpus/onnx_json/71db7583", file);
    check_no_memory(file);
    fixture_destroy(&g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_decoders),       cmocka_unit_test(test_gpt2),
        cmocka_unit_test(test_small),          cmocka_unit_test(test_form_errors),
        cmocka_unit_test(test_meaning_errors), cmocka_unit_test(test_mutations),
        cmocka_unit_test(test_rearrangements), cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
