/* test_frontend_experts.c: what config.json may say of experts, how files hold them, and the messages for what
 * is not built. */
#include "config_testing.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>

static const char qwen3_moe[] = "tests/golden/qwen3_moe_norm_v/model";

/* Both names of the number of experts; which layers have them; what adapters are for; what is refused. */
static void test_experts(void **state) {
    (void)state;
    static const char *const released[] = {"num_local_experts=null", "num_experts=6", "mlp_only_layers=[]",
                                           "decoder_sparse_step=2"};
    fixture f = fixture_create();
    sbp_model model;
    load(&f, qwen3_moe, SBP_F32, NULL, 0, &model);
    const sbp_param *down = param(&model, "model.layers.2.mlp.experts.down_proj.weight");
    assert_int_equal(down->type.dim[0].n, 6);
    assert_int_equal(down->type.dim[2].n, 10);
    assert_string_equal(down->recipe->source, "model.layers.2.mlp.experts.*.down_proj.weight");
    assert_int_equal(count_ops(model.module, SBP_OP_route), 2);
    sbp_model_options options = sbp_model_options_for(SBP_F32);
    options.lora = &(sbp_lora_options){.rank = 2, .alpha = 2, .all_linear = true};
    check(&f, sbp_model_load(f.arena, f.diag, qwen3_moe, &options, &model));
    int routers = 0, projections = 0;
    for (int32_t i = 0; i < model.module->adapter_count; i++) {
        const char *weight = model.module->params[model.module->adapters[i].weight].name;
        routers += strstr(weight, "mlp.gate.weight") != NULL;
        projections += strstr(weight, "_proj.weight") != NULL;
    }
    assert_int_equal(routers, 0);
    assert_int_equal(projections, 3 * 4 + 3); /* attention, and the layer that has an MLP */
    fixture_destroy(&f);
    f = fixture_create();
    load(&f, "tests/golden/olmoe_v/model", SBP_F32, NULL, 0, &model);
    assert_int_equal(count_ops(model.module, SBP_OP_route), 2);
    fixture_destroy(&f);
    static const struct {
        const char *model, *set, *message;
    } wrong[] = {
        {qwen3_moe, "num_experts_per_tok=7", "7 of 6 experts"},
        {qwen3_moe, "mlp_only_layers=2", "expected an array of layer numbers"},
        {qwen3_moe, "router_aux_loss_coef=0.5", "--set router_aux_loss_coef=0 trains without it"},
        {qwen3_moe, "router_aux_loss_coef=null", "0.001 is the router_aux_loss_coef of this model_type"},
        {qwen3_moe, "use_sliding_window=true", "use_sliding_window"},
        {"tests/golden/mixtral_v/model", "router_jitter_noise=0.1", "router_jitter_noise"},
        {"tests/golden/olmoe_v/model", "clip_qkv=8", "q, k and v that are clipped"},
    };
    for (int i = 0; i < SBP_COUNT(wrong); i++)
        expect(wrong[i].model, wrong[i].set, SBP_INPUT, wrong[i].message);
    f = fixture_create();
    load(&f, qwen3_moe, SBP_F32, released, SBP_COUNT(released), &model); /* layer 1 alone has experts now */
    assert_int_equal(count_ops(model.module, SBP_OP_route), 1);
    fixture_destroy(&f);
}

/* Which layers of Qwen3-Next have experts, the shared one's gate, and how files hold those of Qwen3.5. */
static void test_shared_experts(void **state) {
    (void)state;
    static const char next[] = "tests/golden/qwen3_next_moe_v/model",
                      released[] = "tests/golden/qwen3_5_moe_released_v/model";
    static const struct {
        const char *set;
        int sparse;
    } layers[] = {{"mlp_only_layers=[0, 2]", 2},
                  {"mlp_only_layers=[0, 1, 2, 3]", 0},
                  {"decoder_sparse_step=2", 2},
                  {"num_experts=0", 0}};
    sbp_model model;
    for (int i = 0; i < SBP_COUNT(layers); i++) {
        fixture f = fixture_create();
        load(&f, next, SBP_F32, &layers[i].set, 1, &model);
        assert_int_equal(count_ops(model.module, SBP_OP_route), layers[i].sparse);
        fixture_destroy(&f);
    }
    expect(next, "router_aux_loss_coef=0.5", SBP_INPUT, "the loss that balances experts");
    static const char *const silent = "norm_topk_prob=null"; /* the weights of the chosen sum to 1 */
    fixture f = fixture_create();
    sbp_text text[2];
    for (int i = 0; i < 2; i++) {
        load(&f, next, SBP_F32, &silent, i, &model);
        sbp_text_init(&text[i], f.arena);
        sbp_module_print(&text[i], model.module);
    }
    assert_string_equal(text[0].data, text[1].data);
    assert_int_equal(param(&model, "model.layers.1.mlp.shared_expert.down_proj.weight")->type.dim[1].n, 14);
    load(&f, released, SBP_F32, NULL, 0, &model);
    const sbp_param *up = param(&model, "model.language_model.layers.1.mlp.experts.gate_up_proj.up_proj");
    assert_string_equal(up->recipe->source, "model.language_model.layers.1.mlp.experts.gate_up_proj");
    assert_int_equal(up->recipe->steps[0].start, 8);
    fixture_destroy(&f);
}

/* The text model alone, which is written expert by expert, with files of the whole one, which are not. */
static sbp_status run_fused_files(void *user) {
    fixture *f = user;
    static const char directory[] = "/tmp/sbp_frontend_fused_files",
                      json[] = "/tmp/sbp_frontend_fused_files/config.json",
                      weights[] = "/tmp/sbp_frontend_fused_files/model.safetensors",
                      released[] = "tests/golden/qwen3_5_moe_released_v/model";
    sbp_model model;
    sbp_text config;
    char path[4096];
    assert_true(mkdir(directory, 0700) == 0 || errno == EEXIST);
    sbp_text_init(&config, f->arena);
    sbp_json_add_value(
        &config,
        sbp_json_member(read_json(f, sbp_file_join(f->arena, released, "config.json")), "text_config"));
    check(f, sbp_file_write(f->diag, json, config.data, config.length));
    unlink(weights); /* of a run that was stopped */
    load(f, directory, SBP_F32, NULL, 0, &model);
    assert_string_equal(param(&model, "model.layers.1.mlp.experts.up_proj.weight")->recipe->source,
                        "model.layers.1.mlp.experts.*.up_proj.weight");
    assert_non_null(realpath(sbp_file_join(f->arena, released, "model.safetensors"), path));
    assert_int_equal(symlink(path, weights), 0);
    load(f, directory, SBP_F32, NULL, 0, &model);
    assert_string_equal(param(&model, "model.layers.1.mlp.experts.gate_up_proj.up_proj")->recipe->source,
                        "model.layers.1.mlp.experts.gate_up_proj");
    unlink(json);
    unlink(weights);
    rmdir(directory);
    return SBP_OK;
}

static void test_fused_files(void **state) {
    (void)state;
    fixture f = fixture_create();
    assert_int_equal(sbp_guard(f.arena, f.diag, run_fused_files, &f), SBP_OK);
    fixture_destroy(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_experts), cmocka_unit_test(test_shared_experts),
                                       cmocka_unit_test(test_fused_files)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
