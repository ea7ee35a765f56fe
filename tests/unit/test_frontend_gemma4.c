/* test_frontend_gemma4.c: what config.json may say of Gemma 4: both ways to say which layers differ, which
 * layers read keys and values of others, what nobody trains, and what is refused. */
#include "config_testing.h"

static const char e2b[] = "tests/golden/gemma4_e2b_released_v/model",
                  dense[] = "tests/golden/gemma4_31b_v/model",
                  experts[] = "tests/golden/gemma4_26b_a4b_v/model";

/* The text of @model's module with these changes of config.json. */
static const char *text_of(fixture *f, const char *path, const char *const *set, int32_t count) {
    sbp_model model;
    sbp_text text;
    sbp_text_init(&text, f->arena);
    load(f, path, SBP_F32, set, count, &model);
    sbp_module_print(&text, model.module);
    return text.data;
}

static void test_layers(void **state) {
    (void)state;
    static const char
        *const by_layer[] = {"global_head_dim=null", "num_global_key_value_heads=null",
                             "per_layer_config={\"2\": {\"head_dim\": 16, \"num_key_value_heads\": 2}}"},
               *const sliding[] = {
                   "layer_types=[\"sliding_attention\",\"sliding_attention\",\"sliding_attention\"]"};
    fixture f = fixture_create();
    const char *plain = text_of(&f, dense, NULL, 0);
    assert_string_equal(plain, text_of(&f, dense, by_layer, SBP_COUNT(by_layer)));
    assert_string_equal(plain, text_of(&f, dense, sliding, 1)); /* the last one never slides */
    fixture_destroy(&f);
}

static void test_parameters(void **state) {
    (void)state;
    fixture f = fixture_create();
    sbp_model model;
    load(&f, e2b, SBP_BF16, NULL, 0, &model);
    const sbp_param *scalar = param(&model, "model.language_model.layers.1.layer_scalar");
    assert_false(scalar->trainable);
    assert_int_equal(scalar->type.dtype, SBP_F32);
    assert_int_equal(
        sbp_module_find_param(model.module, "model.language_model.layers.4.self_attn.k_proj.weight"), -1);
    assert_int_equal(
        sbp_module_find_param(model.module, "model.language_model.layers.3.self_attn.k_norm.weight"), -1);
    assert_int_equal(param(&model, "model.language_model.layers.2.mlp.up_proj.weight")->type.dim[0].n, 38);
    assert_int_equal(param(&model, "model.language_model.layers.3.mlp.up_proj.weight")->type.dim[0].n, 76);
    load(&f, dense, SBP_F32, NULL, 0, &model);
    assert_int_equal(sbp_module_find_param(model.module, "model.layers.2.self_attn.v_proj.weight"), -1);
    assert_int_equal(param(&model, "model.layers.2.self_attn.q_proj.weight")->type.dim[0].n, 64);
    fixture_destroy(&f);
}

static void test_errors(void **state) {
    (void)state;
    static const struct {
        const char *model, *set, *message;
    } wrong[] = {
        {e2b, "text_config.num_kv_shared_layers=4",
         "layer 2 reads keys and values of a layer of its type before"},
        {e2b, "text_config.num_kv_shared_layers=5",
         "layer 0 reads keys and values of a layer of its type before"},
        {dense, "use_bidirectional_attention=\"all\"", "'all' is not supported: attention is causal"},
        {dense, "num_global_key_value_heads=3", "layer 2 has 3 of them"},
        {dense, "per_layer_config={\"0\": {\"head_dim\": 10}}", "layers of sliding_attention have heads of"},
        {dense, "per_layer_config={\"0\": {\"window\": 10}}", "found 'window'"},
        {dense, "per_layer_config={\"0\": {\"head_dim\": 0}}", "head_dim is 0"},
        {dense, "rope_parameters={\"full_attention\": {\"rope_type\": \"default\"}}", "an object each"},
        {experts, "top_k_experts=6", "6 of 5 experts"},
        {experts, "num_experts=null", "num_experts"},
    };
    for (int i = 0; i < SBP_COUNT(wrong); i++)
        expect(wrong[i].model, wrong[i].set, SBP_INPUT, wrong[i].message);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_layers), cmocka_unit_test(test_parameters),
                                       cmocka_unit_test(test_errors)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
