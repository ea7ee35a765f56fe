/* test_new_architecture.c: proves the walk-through of frontends/README.md. Everything between the two rulers
 * is what a new file of frontends/hf, hf_gpt2.c, would hold; it is registered for this test only, through
 * sbp_model_options.extra instead of a line in registry.def. GPT-2 has what the built-in families have not:
 * learned positions, layer norms with bias, a plain MLP, weights stored [in, out], q, k and v in one tensor.
 */
#include "frontend_testing.h"

#include "frontends/hf/hf.h"

/* ---- 8< ---- hf_gpt2.c ---- 8< ---------------------------------------------------------------------- */

typedef struct gpt2 {
    sbp_hf *hf;
    int64_t hidden, inner, heads;
    const char *activation;
    sbp_hf_norm norm;
} gpt2;

/* y = x W + bias, W [in, out]: what Hugging Face calls Conv1D. */
static sbp_value conv1d(const gpt2 *g, const char *name, sbp_value x, sbp_value w, sbp_value bias) {
    return sbp_build(&g->hf->builder, SBP_OP_linear, name, (sbp_value[]){sbp_hf_operand(g->hf, x), w, bias},
                     3, (sbp_attr[]){sbp_attr_symbol("layout", "in_out")}, 1, NULL);
}

static sbp_value conv1d_module(const gpt2 *g, const char *name, sbp_value x, const char *module, int64_t in,
                               int64_t out) {
    sbp_value w = sbp_hf_matrix(g->hf, sbp_hf_path(g->hf, "%s.weight", module), in, out);
    return conv1d(g, name, x, w,
                  sbp_hf_vector(g->hf, sbp_hf_path(g->hf, "%s.bias", module), SBP_INIT_ZEROS, out));
}

/* Part 0, 1 or 2 (q, k, v) of c_attn: columns of its weight [hidden, 3 hidden], elements of its bias. */
static sbp_value projection(const gpt2 *g, const char *name, sbp_value x, const char *module, int64_t part) {
    sbp_hf *hf = g->hf;
    int64_t n = g->hidden, weight_dims[] = {n, 3 * n}, bias_dims[] = {3 * n};
    sbp_value w = sbp_hf_part(hf, sbp_hf_path(hf, "%s.c_attn.%s.weight", module, name),
                              sbp_hf_path(hf, "%s.c_attn.weight", module), SBP_INIT_NORMAL, 2, weight_dims, 1,
                              part * n, n);
    sbp_value bias =
        sbp_hf_part(hf, sbp_hf_path(hf, "%s.c_attn.%s.bias", module, name),
                    sbp_hf_path(hf, "%s.c_attn.bias", module), SBP_INIT_ZEROS, 1, bias_dims, 0, part * n, n);
    sbp_value y = sbp_hf_split_heads(hf, conv1d(g, NULL, x, w, bias), g->heads, n / g->heads);
    sbp_build_name(&hf->builder, y, name);
    return y;
}

static sbp_value layer(const gpt2 *g, sbp_value x, int64_t number) {
    sbp_hf *hf = g->hf;
    sbp_builder *b = &hf->builder;
    const char *block = sbp_hf_path(hf, "transformer.h.%lld", (long long)number);
    const char *attn = b->node = sbp_hf_path(hf, "%s.attn", block);
    sbp_value y =
        sbp_hf_normalize(hf, &g->norm, "attn_norm", x, sbp_hf_path(hf, "%s.ln_1", block), g->hidden);
    sbp_value q = projection(g, "q", y, attn, 0), k = projection(g, "k", y, attn, 1),
              v = projection(g, "v", y, attn, 2);
    y = sbp_hf_join_heads(hf, sbp_hf_attention(hf, q, k, v, pow((double)(g->hidden / g->heads), -0.5), 0));
    y = conv1d_module(g, "attn_proj", y, sbp_hf_path(hf, "%s.c_proj", attn), g->hidden, g->hidden);
    x = sbp_hf_add(hf, "attn_residual", x, y);
    const char *mlp = b->node = sbp_hf_path(hf, "%s.mlp", block);
    y = sbp_hf_normalize(hf, &g->norm, "mlp_norm", x, sbp_hf_path(hf, "%s.ln_2", block), g->hidden);
    y = conv1d_module(g, "up", y, sbp_hf_path(hf, "%s.c_fc", mlp), g->hidden, g->inner);
    y = sbp_hf_activate(hf, g->activation, "act", y);
    y = conv1d_module(g, "mlp_proj", y, sbp_hf_path(hf, "%s.c_proj", mlp), g->inner, g->hidden);
    return sbp_hf_add(hf, "mlp_residual", x, y);
}

static void require(sbp_hf *hf, bool holds, const char *field, const char *expected) {
    if (!holds)
        sbp_hf_fail(hf, sbp_hf_field(hf, field), "only %s is supported", expected);
}

static void build_gpt2(sbp_hf *hf) {
    int64_t vocab = sbp_hf_size(hf, "vocab_size", 50257), positions = sbp_hf_size(hf, "n_positions", 1024);
    gpt2 g = {.hf = hf,
              .hidden = sbp_hf_size(hf, "n_embd", 768),
              .heads = sbp_hf_size(hf, "n_head", 12),
              .activation = sbp_hf_string(hf, "activation_function", "gelu_new"),
              .norm = {SBP_HF_LAYER_NORM, sbp_hf_double(hf, "layer_norm_epsilon", 1e-5)}};
    g.inner = sbp_hf_size(hf, "n_inner", 4 * g.hidden);
    bool tied = sbp_hf_bool(hf, "tie_word_embeddings", true);
    require(hf, sbp_hf_bool(hf, "scale_attn_weights", true), "scale_attn_weights", "true");
    require(hf, g.hidden % g.heads == 0, "n_head", "a divisor of n_embd");
    hf->base_prefix = "transformer.";
    hf->model->vocab_size = vocab;
    hf->model->max_positions = positions;
    hf->model->learned_positions = true; /* there is no row for a position beyond */

    sbp_builder *b = &hf->builder;
    b->node = "transformer.wte";
    sbp_value wte = sbp_hf_table(hf, "transformer.wte.weight", vocab, g.hidden);
    sbp_value wpe = sbp_hf_matrix(hf, "transformer.wpe.weight", positions, g.hidden);
    sbp_value token = sbp_hf_embed(hf, NULL, wte, SBP_DATA_TOK);
    sbp_value position = sbp_hf_embed(hf, NULL, wpe, SBP_DATA_POS);
    sbp_value x = sbp_hf_add(hf, "embed", token, position);
    int64_t layers = sbp_hf_size(hf, "n_layer", 12);
    for (int64_t i = 0; i < layers && b->status == SBP_OK; i++)
        x = layer(&g, x, i);
    b->node = "lm_head";
    x = sbp_hf_normalize(hf, &g.norm, "final_norm", x, "transformer.ln_f", g.hidden);
    sbp_value head = sbp_hf_head_matrix(hf, "lm_head.weight", wte, tied);
    sbp_hf_finish(hf, sbp_hf_logits(hf, x, head));
}

/* ---- 8< ---- and this line in registry.def: ARCHITECTURE("gpt2", build_gpt2) ---- 8< ---------------- */

static const sbp_architecture gpt2_architecture = {.model_type = "gpt2", .build = build_gpt2};

static sbp_model_options options_with_gpt2(void) {
    sbp_model_options options = sbp_model_options_for(SBP_F64);
    options.extra = &gpt2_architecture;
    options.extra_count = 1;
    return options;
}

static sbp_status run_golden(void *user) {
    fixture *f = user;
    sbp_model_options options = options_with_gpt2();
    sbp_model model;
    check(f, sbp_model_load(f->arena, f->diag, "tests/golden/gpt2/model", &options, &model));
    assert_int_equal(model.vocab_size, 89);
    assert_int_equal(model.max_positions, 48);
    assert_true(model.learned_positions);
    assert_int_equal(model.eos_ids[0], 88);
    compare_case(f, "tests/golden/gpt2", &model);
    return SBP_OK;
}

static void test_golden(void **state) {
    (void)state;
    fixture f = fixture_create();
    assert_int_equal(sbp_guard(f.arena, f.diag, run_golden, &f), SBP_OK);
    fixture_destroy(&f);
}

/* Globs speak of the tensors of the file, not of the parts that they are cut into. */
static void test_freezing_a_fused_tensor(void **state) {
    (void)state;
    fixture f = fixture_create();
    sbp_model_options options = options_with_gpt2();
    options.freeze = (const char *const[]){"*.c_attn.weight"};
    options.freeze_count = 1;
    sbp_model model;
    check(&f, sbp_model_load(f.arena, f.diag, "tests/golden/gpt2/model", &options, &model));
    int32_t frozen = 0;
    for (int32_t p = 0; p < model.module->param_count; p++)
        frozen += !model.module->params[p].trainable;
    assert_int_equal(frozen, 2 * 3);
    options.freeze = (const char *const[]){"*.c_attn.q.weight"};
    check_fails(&f, sbp_model_load(f.arena, f.diag, "tests/golden/gpt2/model", &options, &model), SBP_USAGE,
                "--freeze '*.c_attn.q.weight' matches none");
    fixture_destroy(&f);
}

static void test_errors(void **state) {
    (void)state;
    fixture f = fixture_create();
    sbp_model_options options = options_with_gpt2();
    sbp_model model;
    options.set = (const char *const[]){"activation_function=\"relu\""};
    options.set_count = 1;
    check_fails(&f, sbp_model_load(f.arena, f.diag, "tests/golden/gpt2/model", &options, &model), SBP_INPUT,
                "the activation 'relu' is not supported; supported: silu, gelu");
    options.set = (const char *const[]){"scale_attn_by_inverse_layer_idx=true"};
    check_fails(&f, sbp_model_load(f.arena, f.diag, "tests/golden/gpt2/model", &options, &model), SBP_INPUT,
                "scale_attn_by_inverse_layer_idx: true: model_type gpt2 is built without this field");
    fixture_destroy(&f);
}

/* A newcomer's first mistake has a message of its own. */
static void build_unfinished(sbp_hf *hf) {
    sbp_hf_table(hf, "embed.weight", sbp_hf_size(hf, "vocab_size", 7), 4);
}

static void test_unfinished(void **state) {
    (void)state;
    fixture f = fixture_create();
    static const sbp_architecture unfinished = {.model_type = "gpt2", .build = build_unfinished};
    sbp_model_options options = sbp_model_options_for(SBP_F64);
    options.extra = &unfinished;
    options.extra_count = 1;
    sbp_model model;
    check_fails(&f, sbp_model_load(f.arena, f.diag, "tests/golden/gpt2/model", &options, &model),
                SBP_INTERNAL, "the function that builds model_type gpt2 does not end in sbp_hf_finish");
    fixture_destroy(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),
        cmocka_unit_test(test_freezing_a_fused_tensor),
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_unfinished),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
