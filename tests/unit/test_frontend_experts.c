/* test_frontend_experts.c: what config.json may say of experts, how files hold them, and the messages for
 * what is not built. */
#include "config_testing.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>

static const char qwen3_moe[] = "tests/golden/qwen3_moe_norm_v/model";

/* What all-linear adapts: weights whose name has `router` in it, and others. */
static void count_adapters(fixture *f, const char *path, const char *router, int *routers, int *others) {
    sbp_model_options options = sbp_model_options_for(SBP_F32);
    sbp_model model;
    options.lora = &(sbp_lora_options){.rank = 2, .alpha = 2, .all_linear = true};
    check(f, sbp_model_load(f->arena, f->diag, path, &options, &model));
    *routers = *others = 0;
    for (int32_t i = 0; i < model.module->adapter_count; i++) {
        const char *weight = model.module->params[model.module->adapters[i].weight].name;
        ++*(strstr(weight, router) ? routers : others);
    }
}

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
    int routers, others;
    count_adapters(&f, qwen3_moe, "mlp.gate.weight", &routers, &others);
    assert_int_equal(routers, 0);
    assert_int_equal(others, 3 * 4 + 3); /* attention, and the layer that has an MLP */
    /* Routers that are linear layers in their class, as peft finds them: of each layer with experts. */
    count_adapters(&f, "tests/golden/gemma4_26b_a4b_v/model", "router.proj.weight", &routers, &others);
    assert_int_equal(routers, 2);
    count_adapters(&f, "tests/golden/llama4_v/model", "feed_forward.router.weight", &routers, &others);
    assert_int_equal(routers, 3);
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

/* DeepSeek's router and latent attention: what nobody trains, which layers, and what is refused. */
static void test_deepseek(void **state) {
    (void)state;
    static const char groups[] = "tests/golden/deepseek_v3_groups/model",
                      yarn[] = "tests/golden/deepseek_v3_yarn/model",
                      glm[] = "tests/golden/glm4_moe_norms/model";
    static const struct {
        const char *model, *set, *message;
    } wrong[] = {{groups, "n_group=4", "2 of 6 experts in 1 of 4 groups"},
                 {groups, "topk_group=3", "2 of 6 experts in 3 of 2 groups"},
                 {groups, "num_experts_per_tok=4", "4 of 6 experts in 1 of 2 groups"},
                 {groups, "n_group=6", "which must be of equal size, at least 2"},
                 {groups, "num_key_value_heads=1", "1; latent attention has as many keys as heads, 3"},
                 {groups, "qk_head_dim=11", "10 expected, the sum of qk_nope_head_dim and qk_rope_head_dim"},
                 {glm, "n_group=2", "2 of 5 experts in 1 of 2 groups"}};
    for (int i = 0; i < SBP_COUNT(wrong); i++)
        expect(wrong[i].model, wrong[i].set, SBP_INPUT, wrong[i].message);
    static const struct {
        const char *model, *set;
        int sparse;
    } layers[] = {{groups, "first_k_dense_replace=0", 2},
                  {groups, "first_k_dense_replace=2", 0},
                  {glm, "first_k_dense_replace=null", 1},
                  {glm, "n_shared_experts=0", 1}};
    sbp_model model;
    for (int i = 0; i < SBP_COUNT(layers); i++) {
        fixture f = fixture_create();
        load(&f, layers[i].model, SBP_F32, &layers[i].set, 1, &model);
        assert_int_equal(count_ops(model.module, SBP_OP_route), layers[i].sparse);
        fixture_destroy(&f);
    }
    fixture f = fixture_create();
    load(&f, groups, SBP_BF16, NULL, 0, &model);
    const sbp_param *bias = param(&model, "model.layers.1.mlp.gate.e_score_correction_bias");
    assert_false(bias->trainable);
    assert_int_equal(bias->type.dtype, SBP_F32);
    assert_true(param(&model, "model.layers.1.mlp.gate.weight")->trainable);
    assert_int_equal(param(&model, "model.layers.1.mlp.shared_experts.up_proj.weight")->type.dim[0].n, 18);
    assert_int_equal(param(&model, "model.layers.0.self_attn.q_a_proj.weight")->type.dim[0].n, 11);
    load(&f, yarn, SBP_F32, NULL, 0, &model);
    assert_int_equal(param(&model, "model.layers.0.self_attn.q_proj.weight")->type.dim[0].n, 30);
    assert_int_equal(param(&model, "model.layers.0.self_attn.kv_a_proj_with_mqa.bias")->type.dim[0].n, 14);
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

static const char gpt_oss[] = "tests/golden/gpt_oss_v/model";

static const char *module_text(fixture *f, const char *path, const char *const *sets, int32_t count) {
    sbp_model model;
    sbp_text text;
    load(f, path, SBP_F32, sets, count, &model);
    sbp_text_init(&text, f->arena);
    sbp_module_print(&text, model.module);
    return text.data;
}

/* GPT-OSS as it was published first, and what counts where config.json says nothing. */
static void test_gpt_oss(void **state) {
    (void)state;
    static const char *const old[] = {
        "rope_parameters=null",
        "rope_scaling={\"beta_fast\": 8.0, \"beta_slow\": 1.0, \"factor\": 4.0, "
        "\"original_max_position_embeddings\": 32, \"rope_type\": \"yarn\", \"truncate\": false}",
        "rope_theta=150.0",
        "experts_per_token=3",
        "initial_context_length=32",
        "swiglu_alpha=null",
        "layer_types=null",
        "attention_bias=null"};
    static const char *const rope[][2] = {
        {"rope_parameters=null", "rope_theta=150000.0"},
        {"rope_parameters={\"beta_fast\": 32.0, \"beta_slow\": 1.0, \"factor\": 32.0, "
         "\"original_max_position_embeddings\": 4096, \"rope_type\": \"yarn\", \"truncate\": false}",
         "rope_theta=null"}};
    fixture f = fixture_create();
    const char *text = module_text(&f, gpt_oss, NULL, 0);
    assert_string_equal(text, module_text(&f, gpt_oss, old, SBP_COUNT(old)));
    assert_string_equal(module_text(&f, gpt_oss, rope[0], 2), module_text(&f, gpt_oss, rope[1], 2));
    assert_string_not_equal(text, module_text(&f, gpt_oss, rope[0], 2));
    sbp_model model;
    static const char *const wide =
        "layer_types=[\"full_attention\", \"full_attention\", \"full_attention\"]";
    load(&f, gpt_oss, SBP_F32, &wide, 1, &model);
    const sbp_func *func = sbp_module_find_func(model.module, "model");
    for (int32_t i = 0; i < func->op_count; i++)
        if (func->ops[i].code == SBP_OP_attention_sink)
            assert_int_equal(sbp_op_int(&func->ops[i], "window"), 0);
    assert_int_equal(count_ops(model.module, SBP_OP_attention_sink), 3);
    fixture_destroy(&f);
    expect(gpt_oss, "sliding_window=null", SBP_INPUT,
           "layer 0 is sliding_attention, but sliding_window is null");
    expect("tests/golden/gpt_oss_mxfp4_v/model", "intermediate_size=33", SBP_INPUT,
           "intermediate_size: 33; where experts are in mxfp4, whose blocks are of 32 numbers");
    expect("tests/golden/gpt_oss_mxfp4_v/model", "hidden_size=48", SBP_INPUT,
           "hidden_size: 48; where experts");
    expect(gpt_oss, "experts_per_token=2", SBP_INPUT, "2, but num_experts_per_tok is 3");
    expect(gpt_oss, "quantization_config={\"quant_method\": \"mxfp4\"}", SBP_INPUT,
           "the weights have no model.layers.0.mlp.experts.gate_up_proj_blocks");
    expect(gpt_oss, "quantization_config={\"quant_method\": \"awq\"}", SBP_INPUT,
           "of this model mxfp4 is read");
    expect(gpt_oss, "layer_types=[\"full_attention\"]", SBP_INPUT, "expected an array of 3 layer types");
}

/* The gradient of the biases of the first layer's gates and ups when they are clamped at `limit`, and what
 * they are before. */
static const double *gate_gradient(fixture *f, double limit, const sbp_tensor **before) {
    const char *set = sbp_arena_printf(f->arena, "swiglu_limit=%.17g", limit);
    sbp_model_options options = sbp_model_options_for(SBP_F64);
    sbp_model model;
    sbp_weights *weights;
    options.set = &set;
    options.set_count = 1;
    check(f, sbp_model_load(f->arena, f->diag, gpt_oss, &options, &model));
    append_objective(f, &model, sbp_objective_find("sft"), NULL);
    sbp_func *func = differentiate(f, model.module, sbp_module_find_func(model.module, "model"));
    batch *b = batch_read(f, "tests/golden/gpt_oss_v/train.jsonl");
    check(f, sbp_weights_open(f->arena, f->diag, model.weights, &weights));
    sbp_tensor **values = run(f, model.module, func, b, weights, "d_loss");
    int32_t bias = sbp_module_find_param(model.module, "model.layers.0.mlp.experts.gate_up_proj_bias");
    double *gradient = SBP_NEW_ARRAY(f->arena, double, 5 * 24);
    assert_true(add_gradient(f, model.module, func, values, bias, gradient, 5 * 24));
    *before = values[sbp_map_get(&func->names, "expert_gate_up")];
    sbp_weights_close(weights);
    test_free(b);
    return gradient;
}

static double largest_difference(const double *x, const double *y, int64_t n) {
    double most = 0;
    for (int64_t i = 0; i < n; i++)
        most = fmax(most, fabs(x[i] - y[i]));
    return most;
}

/* What is exactly the limit has the gradient of what is a little below it, not of what is clamped. */
static void test_clamped_at_the_limit(void **state) {
    (void)state;
    static const struct {
        int column; /* 0: a gate, 1: an up */
        double sign;
    } ends[] = {{0, 1}, {1, 1}, {1, -1}};
    for (int i = 0; i < SBP_COUNT(ends); i++) {
        fixture f = fixture_create();
        const sbp_tensor *before;
        double limit = 0;
        (void)gate_gradient(&f, 1.5, &before);
        for (int64_t k = ends[i].column; k < before->elems && !(limit > 0.25 && limit < 1.5); k += 2)
            limit = ends[i].sign * before->data[k];
        assert_true(limit > 0.25 && limit < 1.5);
        const double *at = gate_gradient(&f, limit, &before),
                     *inside = gate_gradient(&f, limit * (1 + SBP_TOLERANCE_F64), &before),
                     *outside = gate_gradient(&f, limit * (1 - SBP_TOLERANCE_F64), &before);
        double same = largest_difference(at, inside, 5 * 24), other = largest_difference(at, outside, 5 * 24);
        if (!(same < other * SBP_TOLERANCE_DIFFERENCES))
            fail_msg("end %d: at the limit %g from inside, %g from outside", i, same, other);
        fixture_destroy(&f);
    }
}

/* The weight of the loss that balances experts: what config.json says, what the model's type has, what was
 * asked for; and the statistics for it, one of choices alone where it is 0 or there is none. */
static void test_balance(void **state) {
    (void)state;
    static const double asked = 0.25, none = 0;
    static const struct {
        const char *model, *set;
        const double *balance;
        double coefficient;
        int statistics;
    } cases[] = {
        {qwen3_moe, "router_aux_loss_coef=0.5", NULL, 0.5, 4},
        {qwen3_moe, "router_aux_loss_coef=null", NULL, 0.001, 4},
        {qwen3_moe, "router_aux_loss_coef=0", NULL, 0, 2},
        {qwen3_moe, "router_aux_loss_coef=0", &asked, 0.25, 4},
        {qwen3_moe, "router_aux_loss_coef=0.5", &none, 0, 2},
        {"tests/golden/olmoe_v/model", "router_aux_loss_coef=null", NULL, 0.01, 4},
        {"tests/golden/mixtral_v/model", "router_aux_loss_coef=null", NULL, 0.001, 6},
        {"tests/golden/qwen3_next_moe_v/model", "router_aux_loss_coef=null", NULL, 0.001, 8},
        {"tests/golden/qwen3_5_moe_released_v/model", "text_config.router_aux_loss_coef=null", NULL, 0.001,
         6},
        {gpt_oss, "router_aux_loss_coef=0.9", NULL, 0.9, 6},
        {"tests/golden/deepseek_v3_groups/model", "n_group=2", &asked, 0, 1},
        {"tests/golden/gemma4_26b_a4b_v/model", "enable_moe_block=true", &asked, 0, 2},
    };
    for (int i = 0; i < SBP_COUNT(cases); i++) {
        fixture f = fixture_create();
        sbp_model_options options = sbp_model_options_for(SBP_F32);
        sbp_model model;
        int statistics = 0;
        options.set = &cases[i].set;
        options.set_count = 1;
        options.balance = cases[i].balance;
        check(&f, sbp_model_load(f.arena, f.diag, cases[i].model, &options, &model));
        const sbp_func *func = sbp_module_find_func(model.module, "model");
        for (int32_t r = 0; r < func->result_count; r++)
            statistics += func->results[r].role == SBP_RESULT_STATISTIC;
        if (model.balance.coefficient != cases[i].coefficient || statistics != cases[i].statistics)
            fail_msg("%s, %s: %g, %d statistics", cases[i].model, cases[i].set, model.balance.coefficient,
                     statistics);
        fixture_destroy(&f);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_experts),  cmocka_unit_test(test_shared_experts),
        cmocka_unit_test(test_deepseek), cmocka_unit_test(test_fused_files),
        cmocka_unit_test(test_gpt_oss),  cmocka_unit_test(test_clamped_at_the_limit),
        cmocka_unit_test(test_balance)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
