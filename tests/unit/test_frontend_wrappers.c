/* test_frontend_wrappers.c: multimodal models of which the text model is built: what its tensors are called
 * in files and in the class, a config.json without text_config, experts that are stored the other way round;
 * and fields that say nothing. */
#include "config_testing.h"

#include <errno.h>
#include <sys/stat.h>

#include "frontends/formats/weights/safetensors.h"

static const char directory[] = "/tmp/sbp_frontend_wrappers",
                  json[] = "/tmp/sbp_frontend_wrappers/config.json",
                  weights[] = "/tmp/sbp_frontend_wrappers/model.safetensors";

/* Zeros of these shapes; a dimension 0 ends a shape. */
typedef struct tensor {
    const char *name;
    int64_t dim[3];
} tensor;

static void write_weights(fixture *f, const tensor *tensors, int count) {
    sbp_tensor_spec specs[4];
    sbp_safetensors_writer *writer;
    assert_true(mkdir(directory, 0700) == 0 || errno == EEXIST);
    for (int i = 0; i < count; i++)
        specs[i] = (sbp_tensor_spec){.name = tensors[i].name,
                                     .dtype = SBP_F32,
                                     .rank = tensors[i].dim[2] > 0   ? 3
                                             : tensors[i].dim[1] > 0 ? 2
                                                                     : 1,
                                     .dim = tensors[i].dim};
    check(f, sbp_safetensors_writer_create(f->arena, f->diag, weights, specs, count, NULL, 0, 0, &writer));
    for (int i = 0; i < count; i++) {
        const int64_t *d = tensors[i].dim;
        size_t bytes = (size_t)(d[0] * (d[1] > 0 ? d[1] : 1) * (d[2] > 0 ? d[2] : 1)) * sizeof(float);
        void *zeros = sbp_arena_alloc(f->arena, bytes);
        memset(zeros, 0, bytes);
        check(f, sbp_safetensors_writer_write(writer, f->diag, zeros, (int64_t)bytes));
    }
    check(f, sbp_safetensors_writer_commit(writer, f->diag));
}

/* ---- names ------------------------------------------------------------------------------------------- */

static void load_with(fixture *f, const char *model_path, sbp_model *model) {
    sbp_model_options options = sbp_model_options_for(SBP_F32);
    options.weights = weights;
    sbp_diag_clear(f->diag);
    check(f, sbp_model_load(f->arena, f->diag, model_path, &options, model));
}

/* Names are those of the files where these are there, else those that such models are published with; modules
 * of the class are called alike. */
static sbp_status run_names(void *user) {
    fixture *f = user;
    static const char *const inside[] = {"model.language_model", "lm_head"},
                             *const around[] = {"language_model.model", "language_model.lm_head"},
                             *const beside[] = {"model", "lm_head"},
                             *const *const spelled[] = {inside, around, beside};
    static const struct {
        const char *model;
        const char *const *published;
    } models[] = {{"tests/golden/mistral3_v/model", around},
                  {"tests/golden/qwen3_vl_moe_v/model", inside},
                  {"tests/golden/qwen2_5_vl_v/model", beside}};
    for (int m = 0; m < SBP_COUNT(models); m++)
        for (int s = -1; s < SBP_COUNT(spelled); s++) {
            const char *const *begins = s < 0 ? models[m].published : spelled[s];
            const tensor only[] = {
                {"another", {2, 3}},
                {sbp_arena_printf(f->arena, "%s.embed_tokens.weight", begins[0]), {47, m == 2 ? 24 : 20}}};
            sbp_model model;
            write_weights(f, only, s < 0 ? 1 : 2);
            load_with(f, models[m].model, &model);
            (void)param(&model, sbp_arena_printf(f->arena, "%s.layers.1.self_attn.q_proj.weight", begins[0]));
            const sbp_param *table =
                param(&model, sbp_arena_printf(f->arena, "%s.embed_tokens.weight", begins[0]));
            bool head = false; /* tied in the last of them */
            for (int32_t k = 0; k < table->alias_count; k++)
                head |= strcmp(table->aliases[k], sbp_arena_printf(f->arena, "%s.weight", begins[1])) == 0;
            if (m < 2)
                (void)param(&model, sbp_arena_printf(f->arena, "%s.weight", begins[1]));
            assert_int_equal(head, m == 2);
            assert_string_equal(model.text_part, "model.language_model.");
            assert_true(model.carries);
            assert_non_null(strstr(sbp_diag_text(f->diag, SBP_NOTE), "1 tensors are not part of the text"));
        }
    return SBP_OK;
}

/* Kimi-K2.5 as transformers 5.24 writes it: blocks for layers, and another name for the type. */
static sbp_status run_blocks(void *user) {
    fixture *f = user;
    const tensor only[] = {{"language_model.model.blocks.0.input_layernorm.weight", {20, 0, 0}},
                           {"language_model.model.embed_tokens.weight", {47, 20, 0}}};
    static const char *const sets[] = {"text_config.model_type=\"deepseek_v3\""};
    sbp_model_options options = sbp_model_options_for(SBP_F32);
    sbp_model model;
    options.weights = weights;
    options.set = sets;
    options.set_count = 1;
    options.lora = &(sbp_lora_options){.rank = 2, .alpha = 2, .all_linear = true};
    write_weights(f, only, 2);
    sbp_diag_clear(f->diag);
    check(f, sbp_model_load(f->arena, f->diag, "tests/golden/kimi_k25_v/model", &options, &model));
    (void)param(&model, "language_model.model.blocks.1.mlp.experts.down_proj.weight");
    (void)param(&model, "base_model.model.model.language_model.layers.1.self_attn.q_b_proj.lora_A.weight");
    return SBP_OK;
}

/* ---- a flat config.json ------------------------------------------------------------------------------ */

static sbp_status run_flat(void *user) {
    fixture *f = user;
    const sbp_json *flat = read_json(f, "tests/golden/qwen2_5_vl_v/model/config.json");
    sbp_model model, nested;
    sbp_text text, a, b;
    load(f, "tests/golden/qwen2_5_vl_v/model/config.json", SBP_F32, NULL, 0, &model);
    sbp_text_init(&text, f->arena);
    sbp_text_add(&text,
                 "{\"model_type\": \"qwen2_5_vl\", \"vision_config\": {}, \"tie_word_embeddings\": true, "
                 "\"text_config\": {\"model_type\": \"qwen2_5_vl_text\"");
    for (int64_t i = 0; i < flat->count; i++) {
        const char *key = flat->items[i].key;
        if (strstr(key, "token") || strstr(key, "vision") || strcmp(key, "model_type") == 0 ||
            strcmp(key, "tie_word_embeddings") == 0)
            continue;
        sbp_text_add(&text, ", \"%s\": ", key);
        sbp_json_add_value(&text, &flat->items[i]);
    }
    sbp_text_add(&text, "}}");
    assert_true(mkdir(directory, 0700) == 0 || errno == EEXIST);
    check(f, sbp_file_write(f->diag, json, text.data, text.length));
    load(f, json, SBP_F32, NULL, 0, &nested);
    sbp_text_init(&a, f->arena);
    sbp_text_init(&b, f->arena);
    sbp_module_print(&a, model.module);
    sbp_module_print(&b, nested.module);
    assert_string_equal(strchr(a.data, '{'), strchr(b.data, '{')); /* behind their names */
    expect("tests/golden/qwen2_5_vl_v/model", "clip_qkv=4", SBP_INPUT, "clip_qkv: 4: model_type qwen2_5_vl");
    expect("tests/golden/qwen2_5_vl_v/model", "rope_scaling.type=\"yarn\"", SBP_INPUT, "'factor' is missing");
    unlink(json);
    return SBP_OK;
}

/* ---- experts ----------------------------------------------------------------------------------------- */

#define EXPERTS "model.language_model.layers.0.mlp.experts."

/* Qwen3-VL's are published [in, out], and transformers 5.24 writes them [out, in]: 5 experts, 20 wide, 6
 * inside. */
static sbp_status run_turned(void *user) {
    fixture *f = user;
    static const tensor files[][2] = {
        {{EXPERTS "gate_up_proj", {5, 20, 12}}, {EXPERTS "down_proj", {5, 6, 20}}},
        {{EXPERTS "gate_up_proj", {5, 12, 20}}, {EXPERTS "down_proj", {5, 20, 6}}}};
    static const char path[] = "tests/golden/qwen3_vl_moe_v/model";
    for (int straight = 0; straight < 2; straight++) {
        sbp_model model;
        write_weights(f, files[straight], 2);
        load_with(f, path, &model);
        const sbp_param *up = param(&model, EXPERTS "gate_up_proj.up_proj"),
                        *down = param(&model, EXPERTS "down_proj");
        assert_int_equal(up->recipe->step_count, straight ? 1 : 2);
        assert_int_equal(up->recipe->steps[0].start, 6);
        assert_true(straight ? !down->recipe : down->recipe->dim[1] == 6);
        assert_int_equal(up->type.dim[1].n, 6);
        assert_int_equal(down->type.dim[1].n, 20);
    }
    const tensor wrong[] = {files[0][0], files[1][1]}; /* one of each */
    sbp_model_options options = sbp_model_options_for(SBP_F32);
    sbp_model model;
    options.weights = weights;
    write_weights(f, wrong, 2);
    check_fails(f, sbp_model_load(f->arena, f->diag, path, &options, &model), SBP_INPUT,
                "down_proj' is [5,20,6], the model expects [5,6,20]");
    return SBP_OK;
}

static void run_guarded(sbp_status (*body)(void *user)) {
    fixture f = fixture_create();
    check(&f, sbp_guard(f.arena, f.diag, body, &f));
    fixture_destroy(&f);
    unlink(weights);
    rmdir(directory);
}

static void test_names(void **state) {
    (void)state;
    run_guarded(run_names);
}

static void test_blocks(void **state) {
    (void)state;
    run_guarded(run_blocks);
}

/* The class of the whole does not cap logits, though that of the text model does. */
static void test_no_cap(void **state) {
    (void)state;
    static const char *const cap[] = {"text_config.final_logit_softcapping=5"},
                             *const text[] = {"final_logit_softcapping=5"};
    fixture f = fixture_create();
    sbp_model model;
    load(&f, "tests/golden/gemma3_wrapper_v/model", SBP_F32, cap, 1, &model);
    assert_int_equal(count_ops(model.module, SBP_OP_softcap), 0);
    assert_non_null(strstr(sbp_diag_text(f.diag, SBP_NOTE), "final_logit_softcapping 5 is not applied"));
    load(&f, "tests/golden/gemma3_legacy/model", SBP_F32, text, 1, &model);
    assert_int_equal(count_ops(model.module, SBP_OP_softcap), 1);
    fixture_destroy(&f);
}

static void test_flat(void **state) {
    (void)state;
    run_guarded(run_flat);
}

static void test_turned(void **state) {
    (void)state;
    run_guarded(run_turned);
}

/* A and B of a map are called alike, by the class's module, where files call it otherwise: the shared expert
 * is mlp.shared_experts there. */
static void test_class_names(void **state) {
    (void)state;
    static const char path[] = "tests/golden/step3p5_released/model";
    fixture f = fixture_create();
    sbp_model_options options = sbp_model_options_for(SBP_F32);
    sbp_model model;
    int shared = 0;
    options.lora = &(sbp_lora_options){.rank = 2, .alpha = 2, .all_linear = true};
    check(&f, sbp_model_load(f.arena, f.diag, path, &options, &model));
    for (int32_t p = 0; p < model.module->param_count; p++) {
        const char *name = model.module->params[p].name, *end = strstr(name, ".lora_A.weight");
        if (!end)
            continue;
        (void)param(&model, sbp_arena_printf(f.arena, "%.*s.lora_B.weight", (int)(end - name), name));
        assert_null(strstr(name, "share_expert"));
        shared += strstr(name, "mlp.shared_experts.") != NULL;
    }
    assert_true(shared >= 3);
    fixture_destroy(&f);
}

/* ---- fields ------------------------------------------------------------------------------------------ */

static const char deepseek[] = "tests/golden/deepseek_v3_groups/model",
                  kimi[] = "tests/golden/kimi_k25_v/model", seed[] = "tests/golden/seed_oss_v/model",
                  plain[] = "tests/golden/llama_plain/model";

/* As DeepSeek-V3, R1 and Kimi-K2 were released. */
static void test_released_fields(void **state) {
    (void)state;
    static const char *const released[] = {"ep_size=8",
                                           "moe_layer_freq=1",
                                           "seq_aux=true",
                                           "scoring_func=\"sigmoid\"",
                                           "topk_method=\"noaux_tc\"",
                                           "aux_loss_alpha=0.001"};
    static const char *const *const none = NULL;
    fixture f = fixture_create();
    sbp_model model, same;
    sbp_text a, b;
    sbp_text_init(&a, f.arena);
    sbp_text_init(&b, f.arena);
    load(&f, deepseek, SBP_F32, none, 0, &model);
    load(&f, deepseek, SBP_F32, released, SBP_COUNT(released), &same);
    sbp_module_print(&a, model.module);
    sbp_module_print(&b, same.module);
    assert_string_equal(a.data, b.data);
    fixture_destroy(&f);
    expect(deepseek, "moe_layer_freq=2", SBP_INPUT,
           "moe_layer_freq: 2: model_type deepseek_v3 is built with 1 alone");
    expect(deepseek, "scoring_func=\"softmax\"", SBP_INPUT,
           "\"softmax\": model_type deepseek_v3 is built with \"sigmoid\" alone");
    expect(deepseek, "topk_method=\"greedy\"", SBP_INPUT, "is built with \"noaux_tc\" alone");
    expect(kimi, "text_config.topk_method=\"greedy\"", SBP_INPUT, "model_type kimi_k2 is built with");
    expect(plain, "ep_size=1", SBP_INPUT, "ep_size: 1: model_type llama is built without this field");
}

/* What is not read of compressed-tensors: in a wrapper and without. */
static void test_packed(void **state) {
    (void)state;
#define QUANTIZATION "quantization_config={\"quant_method\": \"compressed-tensors\", \"format\": "
#define GROUP(fields)                                                                                        \
    QUANTIZATION "\"pack-quantized\", \"config_groups\": {\"a\": {\"targets\": [\"Linear\"], " fields "}}}"
    static const struct {
        const char *set, *message;
    } refused[] = {
        {QUANTIZATION "\"nvfp4-pack-quantized\"}", "quantization_config.format: \"nvfp4-pack-quantized\": of "
                                                   "weights in codes of compressed-tensors those of "
                                                   "the format \"pack-quantized\" are read"},
        {QUANTIZATION "\"pack-quantized\", \"config_groups\": {}}",
         "config_groups: {}: of weights in codes of compressed-tensors \"config_groups\" are expected"},
        {QUANTIZATION "\"pack-quantized\", \"kv_cache_scheme\": {\"num_bits\": 8}}",
         "kv_cache_scheme: {\"num_bits\":8}: of weights in codes of compressed-tensors this field is not "
         "read"},
        {GROUP("\"weights\": null"), "a group is expected to say what its \"weights\" are"},
        {GROUP(
             "\"weights\": {\"num_bits\": 4, \"group_size\": 32}, \"input_activations\": {\"num_bits\": 8}"),
         "a.input_activations: {\"num_bits\":8}: of"},
        {GROUP("\"weights\": {\"num_bits\": 3, \"group_size\": 32}"),
         "weights.num_bits: 3: of weights in codes of compressed-tensors 4 and 8 are read"},
        {GROUP("\"weights\": {\"num_bits\": 4, \"type\": \"float\"}"), "weights.type: \"float\": of"},
        {GROUP("\"weights\": {\"num_bits\": 4, \"strategy\": \"tensor\"}"),
         "weights.strategy: \"tensor\": of"},
        {GROUP("\"weights\": {\"num_bits\": 4}"), "a strategy of \"group\" or \"channel\" is read"},
        {GROUP("\"weights\": {\"num_bits\": 4, \"group_size\": 96}"),
         "weights.group_size: 96: of weights in codes of compressed-tensors a group_size of 32, 64, 128"},
        {GROUP("\"weights\": {\"num_bits\": 4, \"strategy\": \"group\"}"), "a group_size of 32"},
        {GROUP("\"weights\": {\"num_bits\": 4, \"group_size\": 32, \"actorder\": \"group\"}"),
         "weights.actorder: \"group\": of weights in codes of compressed-tensors null, \"weight\" and"},
        {GROUP("\"weights\": {\"num_bits\": 4, \"group_size\": 32, \"dynamic\": true}"),
         "weights.dynamic: true: of"},
        {GROUP("\"weights\": {\"num_bits\": \"4\", \"group_size\": 32}"), "num_bits"},
    };
    for (int i = 0; i < SBP_COUNT(refused); i++) {
        fixture f = fixture_create();
        expect(kimi, sbp_arena_printf(f.arena, "text_config.%s", refused[i].set), SBP_INPUT,
               refused[i].message);
        fixture_destroy(&f);
        expect(seed, refused[i].set, SBP_INPUT, refused[i].message);
    }
#undef GROUP
#undef QUANTIZATION
}

static void test_dropout(void **state) {
    (void)state;
    fixture f = fixture_create();
    sbp_model model;
    load(&f, seed, SBP_F32, NULL, 0, &model);
    assert_non_null(strstr(sbp_diag_text(f.diag, SBP_NOTE),
                           "attention_dropout 0.1, residual_dropout 0.1: nothing is dropped"));
    static const char *const none[] = {"attention_dropout=0", "residual_dropout=0.0",
                                       "attention_out_bias=true", "mlp_bias=true"};
    sbp_diag_clear(f.diag);
    load(&f, seed, SBP_F32, none, SBP_COUNT(none), &model);
    assert_null(strstr(sbp_diag_text(f.diag, SBP_NOTE), "dropped"));
    (void)param(&model, "model.layers.1.self_attn.o_proj.bias");
    (void)param(&model, "model.layers.1.mlp.down_proj.bias");
    fixture_destroy(&f);
}

/* Fields of towers are none of a text model's. */
static void test_fields_of_wrappers(void **state) {
    (void)state;
    expect(plain, "image_token_id=4", SBP_INPUT, "image_token_id: 4: model_type llama");
    expect(kimi, "text_config.vision_config={\"depth\": 1}", SBP_INPUT, "vision_config");
    expect(kimi, "text_config.model_type=\"llama\"", SBP_INPUT,
           "'kimi_k25' has a text model of model_type kimi_k2");
    expect("tests/golden/mistral3_v/model", "text_config.model_type=\"mistral9\"", SBP_INPUT,
           "'mistral3' has a text model of model_type mistral ministral3 mistral4");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),       cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_no_cap),      cmocka_unit_test(test_flat),
        cmocka_unit_test(test_turned),      cmocka_unit_test(test_released_fields),
        cmocka_unit_test(test_packed),      cmocka_unit_test(test_dropout),
        cmocka_unit_test(test_class_names), cmocka_unit_test(test_fields_of_wrappers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
