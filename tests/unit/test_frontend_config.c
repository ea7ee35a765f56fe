/* test_frontend_config.c: what config.json may say: published models, spellings, overrides, which parameters
 * are trained and how they are kept, and the messages for what is not built. SBP_UPDATE_GOLDENS=1 rewrites
 * the golden texts. */
#include "config_testing.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "frontends/formats/weights/safetensors.h"

static const char plain[] = "tests/golden/llama_plain/model";

/* ---- published models -------------------------------------------------------------------------------- */

static int64_t elements(const sbp_module *m) {
    int64_t n = 0;
    for (int32_t p = 0; p < m->param_count; p++)
        n += sbp_type_row_elems(&m->params[p].type);
    return n;
}

/* Numbers of parameters as published on the model cards, tied matrices counted once. */
static const struct {
    const char *name;
    int64_t elements, vocab, positions;
    int32_t layers, eos;
} published[] = {
    {"Llama-3-8B", 8030261248, 128256, 8192, 32, 128001},
    {"Llama-3.1-8B", 8030261248, 128256, 131072, 32, 128001},
    {"Llama-3.2-1B", 1235814400, 128256, 131072, 16, 128001},
    {"Llama-3.2-3B", 3212749824, 128256, 131072, 28, 128001},
    {"Mistral-7B-v0.1", 7241732096, 32000, 32768, 32, 2},
    {"Qwen2.5-0.5B-Instruct", 494032768, 151936, 32768, 24, 151645},
    {"Qwen2.5-7B-Instruct", 7615616512, 152064, 32768, 28, 151645},
    {"Qwen2.5-7B", 7615616512, 152064, 131072, 28, 151643},
    {"Qwen3-0.6B", 596049920, 151936, 40960, 28, 151645},
    {"Qwen3-1.7B", 1720574976, 151936, 40960, 28, 151645},
    {"Qwen3-4B", 4022468096, 151936, 40960, 36, 151645},
    {"Qwen3-8B", 8190735360, 151936, 40960, 36, 151645},
    {"Qwen3-14B", 14768307200, 151936, 40960, 40, 151645},
    {"Qwen3-32B", 32762123264, 151936, 40960, 64, 151645},
    {"SmolLM2-135M", 134515008, 49152, 8192, 30, 0},
    {"gemma-3-1b-it", 999885952, 262144, 32768, 26, 1},
    {"gemma-3-270m", 268098176, 262144, 32768, 18, 1},
};

static void test_published(void **state) {
    (void)state;
    int64_t ran = 0;
    for (int i = 0; i < SBP_COUNT(published); i++)
        for (int r = 0; r < 2; r++) {
            fixture f = fixture_create();
            const char *path = sbp_arena_printf(f.arena, "tests/data/configs/%s.json", published[i].name);
            sbp_model model;
            load(&f, path, r == 0 ? SBP_F32 : SBP_BF16, NULL, 0, &model);
            assert_string_equal(model.name, published[i].name);
            assert_int_equal(elements(model.module), published[i].elements);
            assert_int_equal(model.vocab_size, published[i].vocab);
            assert_int_equal(model.max_positions, published[i].positions);
            assert_int_equal(model.eos_ids[0], published[i].eos);
            assert_int_equal(count_ops(model.module, SBP_OP_attention), published[i].layers);
            assert_null(model.weights);
            assert_false(model.learned_positions);
            assert_true(model.initializer_range > 0.01 && model.initializer_range < 0.05);
            ran++;
            fixture_destroy(&f);
        }
    printf("  %lld configurations built\n", (long long)ran);
}

/* ---- golden texts ------------------------------------------------------------------------------------ */

static void compare_text(fixture *f, const char *path, const sbp_text *text) {
    if (getenv("SBP_UPDATE_GOLDENS")) {
        check(f, sbp_file_write(f->diag, path, text->data, text->length));
        return;
    }
    const char *expected;
    size_t length;
    check(f, sbp_file_read(f->arena, f->diag, path, &expected, &length));
    if (length != text->length || memcmp(expected, text->data, length) != 0)
        fail_msg("%s differs (SBP_UPDATE_GOLDENS=1 rewrites it); found:\n%s", path, text->data);
}

/* The parameters of a two-layer Gemma, a line each. */
static void test_parameter_list(void **state) {
    (void)state;
    fixture f = fixture_create();
    static const char *const set[] = {"num_hidden_layers=2",
                                      "layer_types=[\"sliding_attention\",\"full_attention\"]"};
    sbp_model model;
    load(&f, "tests/data/configs/gemma-3-270m.json", SBP_BF16, set, 2, &model);
    sbp_text all, lines;
    sbp_text_init(&all, f.arena);
    sbp_text_init(&lines, f.arena);
    sbp_module_print(&all, model.module);
    for (const char *line = all.data; *line; line += strcspn(line, "\n"), line += *line == '\n')
        if (strncmp(line, "  param ", 8) == 0)
            sbp_text_add_n(&lines, line + 2, strcspn(line, "\n") + 1 - 2);
    compare_text(&f, "tests/data/configs/gemma-3-270m-2-layers.params", &lines);
    fixture_destroy(&f);
}

/* A whole module: names that --save and messages use are part of what users see. */
static void test_module_text(void **state) {
    (void)state;
    fixture f = fixture_create();
    static const char *const set[] = {"num_hidden_layers=1"};
    sbp_model model;
    load(&f, plain, SBP_F32, set, 1, &model);
    check(&f, sbp_objective_add(model.module, f.diag, &(sbp_objective_choice){.name = "sft"}, NULL));
    sbp_text text, again;
    sbp_text_init(&text, f.arena);
    sbp_module_print(&text, model.module);
    compare_text(&f, "tests/ir/frontend_llama.sbp", &text);
    sbp_module *parsed;
    check(&f, sbp_module_parse(f.arena, f.diag, "frontend_llama.sbp", text.data, text.length, &parsed));
    sbp_text_init(&again, f.arena);
    sbp_module_print(&again, parsed);
    assert_string_equal(text.data, again.data);
    fixture_destroy(&f);
}

/* ---- overrides and facts ------------------------------------------------------------------------------ */

static void test_overrides(void **state) {
    (void)state;
    fixture f = fixture_create();
    static const char *const set[] = {"rope_parameters.rope_type=\"linear\"",
                                      "rope_parameters.factor=4",
                                      "eos_token_id=[7,5]",
                                      "pad_token_id=3",
                                      "num_hidden_layers=1",
                                      "new.nested.name=null",
                                      "new=null"};
    sbp_model model;
    load(&f, plain, SBP_F64, set, SBP_COUNT(set), &model);
    assert_int_equal(model.eos_count, 2);
    assert_int_equal(model.eos_ids[0], 7);
    assert_int_equal(model.eos_ids[1], 5);
    assert_int_equal(model.pad_id, 3);
    assert_int_equal(model.module->params[0].pad_row, 3);
    const double *inv_freq = model.module->consts[0].data;
    assert_true(fabs(inv_freq[0] - 0.25) <= SBP_TOLERANCE_RELATIVE_F64 * 0.25);
    /* the text of config.json says what was built */
    const sbp_json *config;
    check(&f, sbp_json_parse(f.arena, f.diag, "config", model.config, strlen(model.config), 0, &config));
    assert_int_equal(sbp_json_member(config, "num_hidden_layers")->integer, 1);
    assert_string_equal(sbp_json_member(sbp_json_member(config, "rope_parameters"), "rope_type")->string,
                        "linear");
    fixture_destroy(&f);
}

static void test_training_and_storage(void **state) {
    (void)state;
    fixture f = fixture_create();
    sbp_model_options options = sbp_model_options_for(SBP_BF16);
    static const char *const train[] = {"*_proj.weight", "model.norm.weight"}, *const freeze[] = {
                                                                                   "*.o_proj.*"};
    sbp_model model;
    check(&f, sbp_model_load(f.arena, f.diag, plain, &options, &model));
    assert_int_equal(param(&model, "lm_head.weight")->storage, SBP_F32);
    assert_int_equal(param(&model, "lm_head.weight")->type.dtype, SBP_BF16);
    assert_true(param(&model, "lm_head.weight")->trainable && param(&model, "lm_head.weight")->decay);
    assert_false(param(&model, "model.norm.weight")->decay);
    assert_int_equal(param(&model, "model.norm.weight")->init, SBP_INIT_ONES);
    assert_int_equal(sbp_diag_count(f.diag, SBP_NOTE), 0);
    options.train = train;
    options.train_count = 2;
    options.freeze = freeze;
    options.freeze_count = 1;
    options.trainable_storage = SBP_BF16;
    check(&f, sbp_model_load(f.arena, f.diag, plain, &options, &model));
    assert_true(param(&model, "model.layers.2.mlp.up_proj.weight")->trainable);
    assert_int_equal(param(&model, "model.layers.2.mlp.up_proj.weight")->storage, SBP_BF16);
    assert_false(param(&model, "model.layers.2.self_attn.o_proj.weight")->trainable);
    assert_false(param(&model, "model.embed_tokens.weight")->trainable);
    assert_int_equal(param(&model, "model.embed_tokens.weight")->storage, SBP_F32); /* as in the file */
    assert_non_null(
        strstr(sbp_diag_text(f.diag, SBP_NOTE), "11 of 30 parameters are frozen: model.embed_tokens.weight"));
    /* config.json alone: the type it names */
    options.train_count = 0;
    options.freeze = (const char *const[]){"lm_head*", "model.embed*"};
    static const char *const untied[] = {"tie_word_embeddings=false"};
    options.set = untied;
    options.set_count = 1;
    options.freeze_count = 2;
    check(&f, sbp_model_load(f.arena, f.diag, "tests/data/configs/SmolLM2-135M.json", &options, &model));
    assert_int_equal(param(&model, "lm_head.weight")->storage, SBP_BF16);
    options.compute = SBP_F64;
    check(&f, sbp_model_load(f.arena, f.diag, "tests/data/configs/SmolLM2-135M.json", &options, &model));
    assert_int_equal(param(&model, "lm_head.weight")->storage, SBP_F64);
    fixture_destroy(&f);
}

/* As transformers: equal values stay tied, different ones are not tied, one alone serves for both. */
static sbp_status run_ties(void *user) {
    fixture *f = user;
    static const char untied[] = "tests/golden/llama_bias/model", *const set[] = {"tie_word_embeddings=true"};
    sbp_model model;
    load(f, untied, SBP_F32, set, 1, &model);
    assert_non_null(param(&model, "lm_head.weight"));
    assert_non_null(
        strstr(sbp_diag_text(f->diag, SBP_WARNING), "the weights hold both with different values: not tied"));
    assert_non_null(strstr(model.config, "\"tie_word_embeddings\":false"));
    sbp_model_options options = sbp_model_options_for(SBP_F32);
    options.set = set;
    options.set_count = 1;
    for (int both = 0; both < 2; both++) {
        static const char path[] = "/tmp/sbp_frontend_config.safetensors";
        static const char *const names[] = {"lm_head.weight", "model.embed_tokens.weight"};
        static const int64_t dims[] = {61, 18};
        sbp_tensor_spec specs[2];
        float values[61 * 18];
        for (int i = 0; i < SBP_COUNT(values); i++)
            values[i] = (float)i;
        for (int i = 0; i <= both; i++)
            specs[i] = (sbp_tensor_spec){.name = names[i], .dtype = SBP_F32, .rank = 2, .dim = dims};
        sbp_safetensors_writer *writer;
        check(f,
              sbp_safetensors_writer_create(f->arena, f->diag, path, specs, both + 1, NULL, 0, 0, &writer));
        for (int i = 0; i <= both; i++)
            check(f, sbp_safetensors_writer_write(writer, f->diag, values, sizeof values));
        check(f, sbp_safetensors_writer_commit(writer, f->diag));
        options.weights = path;
        sbp_diag_clear(f->diag);
        check(f, sbp_model_load(f->arena, f->diag, untied, &options, &model));
        assert_int_equal(sbp_module_find_param(model.module, "lm_head.weight"), -1);
        assert_string_equal(param(&model, "model.embed_tokens.weight")->aliases[1], "lm_head.weight");
        assert_non_null(strstr(sbp_diag_text(f->diag, SBP_WARNING),
                               "lacks 33 of 34 parameters, the first is model.layers.0"));
        assert_null(strstr(sbp_diag_text(f->diag, SBP_WARNING), "not tied"));
        unlink(path);
    }
    return SBP_OK;
}

static void test_ties(void **state) {
    (void)state;
    fixture f = fixture_create();
    assert_int_equal(sbp_guard(f.arena, f.diag, run_ties, &f), SBP_OK);
    fixture_destroy(&f);
}

/* ---- files of weights ---------------------------------------------------------------------------------- */

/* A file with one tensor, or two of one shape. */
static const char *write_weights(fixture *f, const char *const *names, int32_t count, sbp_dtype dtype,
                                 int64_t rows, int64_t columns) {
    static const char path[] = "/tmp/sbp_frontend_config.safetensors";
    sbp_tensor_spec specs[2];
    int64_t dims[] = {rows, columns}, bytes = rows * columns * (int64_t)sbp_dtype_bytes(dtype);
    void *zeros = sbp_arena_alloc(f->arena, (size_t)bytes);
    memset(zeros, 0, (size_t)bytes);
    for (int i = 0; i < count; i++)
        specs[i] = (sbp_tensor_spec){.name = names[i], .dtype = dtype, .rank = 2, .dim = dims};
    sbp_safetensors_writer *writer;
    check(f, sbp_safetensors_writer_create(f->arena, f->diag, path, specs, count, NULL, 0, 0, &writer));
    for (int i = 0; i < count; i++)
        check(f, sbp_safetensors_writer_write(writer, f->diag, zeros, bytes));
    check(f, sbp_safetensors_writer_commit(writer, f->diag));
    return path;
}

/* Gemma 3 above 1B is published within a multimodal model: other names, and a text_config without defaults.
 */
static sbp_status run_multimodal(void *user) {
    fixture *f = user;
    static const char *const names[][2] = {
        {"language_model.model.embed_tokens.weight", "vision_tower.post_layernorm.weight"},
        {"model.language_model.embed_tokens.weight", "model.vision_tower.post_layernorm.weight"},
        {"language_model.lm_head.weight", "multi_modal_projector.mm_soft_emb_norm.weight"}};
    for (int i = 0; i < SBP_COUNT(names); i++) {
        sbp_model_options options = sbp_model_options_for(SBP_F32);
        sbp_model model;
        options.weights = write_weights(f, names[i], 2, SBP_F32, 31, 20);
        sbp_diag_clear(f->diag);
        check(f,
              sbp_model_load(f->arena, f->diag, "tests/golden/gemma3_rope_per_type/model", &options, &model));
        assert_non_null(strstr(sbp_diag_text(f->diag, SBP_WARNING),
                               "lacks 27 of 28 parameters, the first is model.layers.0"));
        assert_non_null(strstr(sbp_diag_text(f->diag, SBP_NOTE), "1 tensors are not part of the model"));
        unlink(options.weights);
    }
    static const char *const set[] = {"vocab_size=null", "num_attention_heads=null"};
    sbp_model model;
    load(f, "tests/data/configs/gemma-3-270m.json", SBP_F32, set, SBP_COUNT(set), &model);
    assert_int_equal(model.vocab_size, 262208);
    assert_int_equal(param(&model, "model.layers.0.self_attn.q_proj.weight")->type.dim[0].n, 8 * 256);
    return SBP_OK;
}

static void test_multimodal(void **state) {
    (void)state;
    fixture f = fixture_create();
    assert_int_equal(sbp_guard(f.arena, f.diag, run_multimodal, &f), SBP_OK);
    fixture_destroy(&f);
}

/* Files that hold something else than weights this program reads. */
static sbp_status run_other_weights(void *user) {
    fixture *f = user;
    static const char *const name = "model.embed_tokens.weight";
    static const char directory[] = "/tmp/sbp_frontend_config",
                      bin[] = "/tmp/sbp_frontend_config/pytorch_model.bin",
                      json[] = "/tmp/sbp_frontend_config/config.json",
                      weights[] = "/tmp/sbp_frontend_config/model.safetensors";
    sbp_model_options options = sbp_model_options_for(SBP_F32);
    sbp_model model;
    options.weights = write_weights(f, &name, 1, SBP_I8, 97, 24);
    check_fails(f, sbp_model_load(f->arena, f->diag, plain, &options, &model), SBP_INPUT,
                "tensor 'model.embed_tokens.weight' is stored as I8: integers are not weights");
    unlink(options.weights);
    options.weights = NULL;
    assert_true(mkdir(directory, 0700) == 0 || errno == EEXIST);
    const char *config;
    size_t length;
    check(f,
          sbp_file_read(f->arena, f->diag, "tests/golden/llama_plain/model/config.json", &config, &length));
    check(f, sbp_file_write(f->diag, json, config, length));
    check(f, sbp_file_write(f->diag, bin, "x", 1));
    sbp_diag_clear(f->diag);
    check(f, sbp_model_load(f->arena, f->diag, directory, &options, &model));
    assert_non_null(
        strstr(sbp_diag_text(f->diag, SBP_WARNING), "pytorch_model.bin: weights in pickle are not read"));
    static const char pointer[] = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n";
    check(f, sbp_file_write(f->diag, weights, pointer, sizeof pointer - 1));
    check_fails(f, sbp_model_load(f->arena, f->diag, directory, &options, &model), SBP_INPUT,
                "model.safetensors: a pointer of Git LFS stands here");
    unlink(weights);
    unlink(bin);
    unlink(json);
    rmdir(directory);
    return SBP_OK;
}

static void test_other_weights(void **state) {
    (void)state;
    fixture f = fixture_create();
    assert_int_equal(sbp_guard(f.arena, f.diag, run_other_weights, &f), SBP_OK);
    fixture_destroy(&f);
}

/* Rotary frequencies of fp32 plans are rounded where transformers rounds. */
static void test_rope_rounding(void **state) {
    (void)state;
    fixture f = fixture_create();
    sbp_model model;
    load(&f, "tests/golden/llama_rope_yarn/model", SBP_F32, NULL, 0, &model);
    const sbp_const *c = &model.module->consts[0];
    assert_string_equal(c->name, "inv_freq");
    assert_int_equal(c->type.dtype, SBP_F32);
    for (int64_t i = 0; i < c->type.dim[0].n; i++)
        assert_true((double)(float)c->data[i] == c->data[i]);
    fixture_destroy(&f);
}

/* ---- errors ------------------------------------------------------------------------------------------ */

static const char lfm2[] = "tests/golden/lfm2_v/model";

/* Old names of fields; the width of the MLP: 2/3 of what is given, times a factor, up to a multiple. */
static void test_lfm2(void **state) {
    (void)state;
    static const char *const old[] = {"layer_types=null",
                                      "full_attn_idxs=[1]",
                                      "block_auto_adjust_ff_dim=true",
                                      "block_ff_dim=44",
                                      "block_multiple_of=4",
                                      "block_ffn_dim_multiplier=1.5",
                                      "tie_embedding=true",
                                      "block_dim=32",
                                      "num_heads=4",
                                      "theta=7",
                                      "use_pos_enc=true"};
    fixture f = fixture_create();
    sbp_model model;
    load(&f, lfm2, SBP_F32, old, SBP_COUNT(old), &model); /* 1.5 * 29 is 43, up to 44 */
    assert_int_equal(param(&model, "model.layers.0.feed_forward.w1.weight")->type.dim[0].n, 44);
    assert_int_equal(param(&model, "model.layers.0.conv.conv.weight")->type.dim[2].n, 4);
    assert_int_equal(param(&model, "model.layers.1.self_attn.q_layernorm.weight")->type.dim[0].n, 8);
    assert_true(sbp_module_find_param(model.module, "lm_head.weight") < 0);
    assert_int_equal(count_ops(model.module, SBP_OP_conv_rows), 2);
    fixture_destroy(&f);
    static const struct {
        const char *set, *message;
    } wrong[] = {
        {"conv_L_cache=17", "model.layers.0.conv.conv is a convolution over 17 rows; 2 to 16 are supported"},
        {"conv_L_cache=1", "a convolution over 1 rows; 2 to 16 are supported"},
        {"layer_types=[\"conv\",\"mamba\",\"conv\"]", "layer type mamba is not supported"},
        {"layer_types=[\"conv\"]", "expected an array of 3 layer types"},
        {"num_key_value_heads=3", "not a multiple of num_key_value_heads 3"},
        {"block_dim=31", "block_dim is 31; it must be hidden_size, 32"},
        {"num_heads=2", "num_heads is 2; it must be num_attention_heads, 4"},
    };
    for (int i = 0; i < SBP_COUNT(wrong); i++)
        expect(lfm2, wrong[i].set, SBP_INPUT, wrong[i].message);
    static const char *const places[] = {"layer_types=null", "full_attn_idxs=[3]"};
    expect_with(lfm2, places, SBP_COUNT(places), SBP_INPUT, "there is no layer 3");
}

static const char qwen3_5[] = "tests/golden/qwen3_5_dense_v/model";

/* Old spelling of rotary fields; what the class does not read; the defaults of layer_types. */
static void test_qwen3_5(void **state) {
    (void)state;
    static const char *const old[] = {
        "rope_parameters=null",
        "rope_scaling={\"type\": \"default\", \"mrope_section\": [1, 1, 0], \"mrope_interleaved\": true}",
        "rope_theta=900",
        "partial_rotary_factor=0.5",
        "layer_types=null",
        "full_attention_interval=2",
        "attn_output_gate=true",
        "mamba_ssm_dtype=\"float32\"",
        "mtp_num_hidden_layers=1",
        "mlp_only_layers=[]"};
    fixture f = fixture_create();
    sbp_model model, same;
    load(&f, qwen3_5, SBP_F32, old, SBP_COUNT(old), &model);
    assert_int_equal(model.module->consts[0].type.dim[0].n, 4); /* half of 16, in pairs */
    assert_int_equal(count_ops(model.module, SBP_OP_delta_rule), 2);
    assert_int_equal(count_ops(model.module, SBP_OP_conv_rows), 2);
    assert_int_equal(count_ops(model.module, SBP_OP_attention), 2);
    assert_int_equal(param(&model, "model.layers.1.self_attn.q_proj.weight")->type.dim[0].n, 2 * 4 * 16);
    assert_true(param(&model, "model.layers.0.linear_attn.A_log")->decay);
    assert_false(param(&model, "model.layers.0.linear_attn.dt_bias")->decay);
    assert_false(param(&model, "model.layers.0.linear_attn.norm.weight")->decay);
    static const char *const spelled[] = {"rope_parameters=null", "rope_theta=900", "layer_types=null"};
    load(&f, qwen3_5, SBP_F32, NULL, 0, &model);
    load(&f, qwen3_5, SBP_F32, spelled, SBP_COUNT(spelled), &same); /* a quarter of a head, every fourth */
    sbp_text a, b;
    sbp_text_init(&a, f.arena);
    sbp_text_init(&b, f.arena);
    sbp_module_print(&a, model.module);
    sbp_module_print(&b, same.module);
    assert_string_equal(a.data, b.data);
    fixture_destroy(&f);
    static const struct {
        const char *set, *message;
    } wrong[] = {
        {"layer_types=[\"linear_attention\"]", "expected an array of 4 layer types"},
        {"layer_types=[\"conv\",\"conv\",\"conv\",\"conv\"]", "layer type conv is not supported"},
        {"linear_num_key_heads=3", "linear_num_value_heads 2 is not a multiple of linear_num_key_heads 3"},
        {"num_key_value_heads=3", "num_attention_heads 4 is not a multiple of num_key_value_heads 3"},
        {"attn_output_gate=false", "attention without a gate is not supported"},
        {"linear_conv_kernel_dim=17", "conv1d is a convolution over 17 rows"},
        {"rope_parameters.mrope_sections=[1]", "unknown field of the rotary embedding"},
    };
    for (int i = 0; i < SBP_COUNT(wrong); i++)
        expect(qwen3_5, wrong[i].set, SBP_INPUT, wrong[i].message);
}

/* Qwen3.5 as it is published: the fields of the text model in text_config, its names with
 * "language_model". */
static sbp_status run_text_config(void *user) {
    fixture *f = user;
    static const char directory[] = "/tmp/sbp_frontend_text_config",
                      json[] = "/tmp/sbp_frontend_text_config/config.json";
    const char *text, *config;
    size_t length;
    sbp_model model;
    assert_true(mkdir(directory, 0700) == 0 || errno == EEXIST);
    check(f,
          sbp_file_read(f->arena, f->diag, "tests/golden/qwen3_5_dense_v/model/config.json", &text, &length));
    config = sbp_arena_printf(f->arena,
                              "{\"model_type\": \"qwen3_5\", \"image_token_id\": 5, \"pad_token_id\": 7, "
                              "\"vision_config\": {\"depth\": 2}, \"text_config\": %.*s}",
                              (int)length, text);
    check(f, sbp_file_write(f->diag, json, config, strlen(config)));
    load(f, directory, SBP_F32, NULL, 0, &model);
    assert_true(model.carries);
    assert_int_equal(model.pad_id, 7);
    assert_int_equal(model.eos_ids[0], 2);
    assert_int_equal(param(&model, "model.language_model.layers.3.self_attn.k_norm.weight")->type.dim[0].n,
                     16);
    assert_int_equal(param(&model, "model.language_model.embed_tokens.weight")->pad_row, 7);
    static const char *const sets[] = {"tie_word_embeddings=true", "text_config.num_hidden_layers=3",
                                       "text_config.layer_types=null"};
    load(f, directory, SBP_F32, sets, SBP_COUNT(sets), &model);
    assert_true(sbp_module_find_param(model.module, "lm_head.weight") < 0);
    assert_int_equal(count_ops(model.module, SBP_OP_delta_rule), 3);
    expect(directory, "text_config=null", SBP_INPUT,
           "'qwen3_5' is a multimodal model: an object text_config of model_type qwen3_5_text is expected");
    expect(directory, "text_config.model_type=\"llama\"", SBP_INPUT,
           "'qwen3_5' has a text model of model_type qwen3_5_text");
    expect(directory, "hidden_size=4", SBP_INPUT, "hidden_size: 4: model_type qwen3_5 is built without");
    expect(directory, "text_config.clip_qkv=4", SBP_INPUT,
           "clip_qkv: 4: model_type qwen3_5 is built without");
    unlink(json);
    rmdir(directory);
    return SBP_OK;
}

static void test_text_config(void **state) {
    (void)state;
    fixture f = fixture_create();
    assert_int_equal(sbp_guard(f.arena, f.diag, run_text_config, &f), SBP_OK);
    fixture_destroy(&f);
}

static void test_errors(void **state) {
    (void)state;
    static const char qwen2[] = "tests/golden/qwen2_layer_types/model",
                      gemma[] = "tests/golden/gemma3_legacy/model",
                      mistral[] = "tests/golden/mistral_window/model";
    expect(
        plain, "model_type=\"mamba\"", SBP_INPUT,
        "config.json: model_type: model type 'mamba' is not supported (frontends/README.md says how one is "
        "added); 'llama' is nearest, which reads all fields: --set 'model_type=\"llama\"' takes it for that; "
        "supported: llama, mistral, ");
    expect(gemma, "model_type=\"gemma5\"", SBP_INPUT, "; 'gemma3_text' is nearest, which reads all fields: ");
    static const char *const other[] = {"model_type=\"qwen3b\"", "n_group=3", "tail=[1]"},
                             *const more[] = {"model_type=\"seed_oxx\"", "attention_out_bias=false"},
                             *const less[] = {"model_type=\"qwen3b\"", "attention_bias=true", "n_group=3"};
    expect_with("tests/golden/qwen3_plain/model", other, 3, SBP_INPUT,
                "; 'qwen3' is nearest, which does not know the fields n_group, tail; supported");
    expect_with("tests/golden/seed_oss_biases/model", more, 2, SBP_INPUT,
                "; 'seed_oss' is nearest, which reads all fields; it does not read the tensors "
                "model.layers.*.self_attn.o_proj.bias; supported: ");
    expect_with("tests/golden/qwen3_plain/model", less, 3, SBP_INPUT,
                "the fields n_group; it lacks the tensors model.layers.*.self_attn.q_proj.bias, ");
    expect(plain, "model_type=null", SBP_INPUT, "model_type: expected a string, found null");
    expect(gemma, "model_type=\"gemma3\"", SBP_INPUT,
           "'gemma3' is a multimodal model: an object text_config of model_type gemma3_text is expected");
    static const char *const known[] = {"model_type=\"gemma9\"",
                                        "text_config={\"model_type\": \"gemma3_text\"}"};
    static const char *const strange[] = {"model_type=\"qwen9_vl\"",
                                          "text_config={\"model_type\": \"qwen9_vl_text\"}"};
    expect_with(gemma, known, 2, SBP_INPUT, "use a directory whose config.json is its text_config");
    expect_with(plain, strange, 2, SBP_INPUT,
                "'qwen9_vl' is a multimodal model, whose text model 'qwen9_vl_text' is not supported; ");
    static const char *const near[] = {"model_type=\"qwen9_vl\"", "text_config.model_type=\"qwen9_vl_text\"",
                                       "text_config.n_group=3"};
    expect_with(
        "tests/golden/qwen3_vl_v/model", near, 3, SBP_INPUT,
        "'qwen9_vl_text' is not supported; 'qwen3_vl_text' is nearest, which does not know the fields "
        "n_group; it does not read the tensors model.visual.blocks.*.attn.proj.bias, ");
    expect(plain, "hidden_size=null", SBP_INPUT, "the field 'hidden_size' is missing");
    expect(plain, "hidden_size=\"24\"", SBP_INPUT, "hidden_size: expected an integer, found the string '24'");
    expect(plain, "vocab_size=0", SBP_INPUT, "vocab_size: 0 is out of range");
    expect(plain, "num_hidden_layers=4000000000", SBP_INPUT, "num_hidden_layers: 4000000000 is out of range");
    expect(plain, "num_attention_heads=5", SBP_INPUT,
           "num_attention_heads 5 is not a multiple of num_key_value_heads 2");
    expect(plain, "head_dim=7", SBP_INPUT, "7 of the 7 elements of a head turn, but rotary embedding");
    expect(plain, "head_dim=2147483646", SBP_INPUT, "1 to 65536 of 65536 are possible");
    expect(plain, "hidden_act=\"relu2\"", SBP_INPUT,
           "the activation 'relu2' is not supported between a gate and what it opens; supported: silu, gelu");
    expect(plain, "tie_word_embeddings=1", SBP_INPUT, "tie_word_embeddings: expected true or false");
    expect(plain, "attention_dropout=\"some\"", SBP_INPUT,
           "attention_dropout: \"some\": model_type llama is built without");
    expect(plain, "quantization_config={\"bits\":4}", SBP_INPUT,
           "quantization_config: {\"bits\":4}: model_type llama");
    expect(plain, "some_new_thing=7", SBP_INPUT, "--set some_new_thing=null builds it all the same");
    expect(plain, "layer_types=[\"full_attention\"]", SBP_INPUT, "expected an array of 3 layer types");
    expect(plain, "layer_types=[\"full_attention\",\"full_attention\",\"sliding_attention\"]", SBP_INPUT,
           "layer 2 is sliding_attention, but all layers of model_type llama are full_attention");
    expect(mistral, "layer_types=[\"full_attention\",\"full_attention\"]", SBP_INPUT,
           "layer 0 is full_attention, but all layers of model_type mistral are sliding_attention");
    expect(qwen2, "layer_types=[\"full_attention\",\"chunked_attention\",\"full_attention\"]", SBP_INPUT,
           "layer type chunked_attention is not supported");
    expect(qwen2, "use_sliding_window=false", SBP_INPUT,
           "layer 0 is sliding_attention, but there is no window");
    expect(gemma, "use_bidirectional_attention=true", SBP_INPUT, "use_bidirectional_attention: true");
    expect(gemma, "rope_parameters={\"full_attention\":[3],\"sliding_attention\":{}}", SBP_INPUT,
           "full_attention: expected an object, found an array");
    expect(gemma, "rope_parameters={\"rope_type\":\"default\"}", SBP_INPUT,
           "an object each for full_attention and sliding_attention");
    expect(plain, "rope_parameters.rope_type=\"axial\"", SBP_INPUT,
           "rope_parameters: rope_type 'axial' is not supported; supported: default, linear, llama3, yarn, "
           "longrope, su, dynamic, proportional");
    expect(plain, "rope_parameters.rope_type=\"linear\"", SBP_INPUT, "the field 'factor' is missing");
    expect(plain, "rope_parameters={\"rope_type\":\"linear\",\"factor\":-2}", SBP_INPUT,
           "rope_parameters.factor: -2 is out of range");
    expect(plain, "rope_parameters.mrope_section=[1,2]", SBP_INPUT,
           "rope_parameters.mrope_section: unknown field of the rotary embedding, which may change");
    expect(gemma, "rope_parameters={\"full_attention\":{},\"truncate\":false}", SBP_INPUT,
           "rope_parameters.truncate: not supported here");
    expect(gemma, "sliding_window=null", SBP_INPUT,
           "layer 0 is sliding_attention, but sliding_window is null");
    expect("tests/data/configs/SmolLM2-135M.json", "num_attention_heads=30", SBP_INPUT,
           "hidden_size 576 is not a multiple of num_attention_heads 30");
    expect(mistral, "num_attention_heads=400", SBP_INPUT,
           "hidden_size 24 is not a multiple of num_attention_heads 400");
    expect(plain, "rope_parameters={\"rope_type\":\"linear\",\"factor\":2,\"partial_rotary_factor\":0.5}",
           SBP_INPUT,
           "rope_parameters.partial_rotary_factor: 0.5 of the 6 elements of a head would turn, but "
           "model_type llama turns 6");
    expect(plain, "rope_scaling=3", SBP_INPUT, "rope_scaling: expected an object");
    expect(plain, "rope_scaling=[3]", SBP_INPUT, "rope_scaling: expected an object");
    expect(plain, "eos_token_id=\"</s>\"", SBP_INPUT,
           "eos_token_id: expected an integer, found the string '</s>'");
    expect(plain, "rms_norm_eps=-1", SBP_INPUT, "rms_norm_c3: eps is -1");
    expect(plain, "num_hidden_layers", SBP_USAGE, "--set num_hidden_layers: KEY=JSON expected");
    expect(plain, "a.b.c.d.e.f.g.h.i.j.k.l.m.n.o.p.q=1", SBP_USAGE,
           "--set a.b.c.d.e.f.g.h.i.j.k.l.m.n.o.p.q..: 17 names within each other, at most 16 are expected");
    expect(plain, "hidden_act=gelu", SBP_USAGE,
           "'gelu' is not JSON (a string needs quotes: --set 'hidden_act=\"gelu\"')");
    expect(plain, "vocab_size=98", SBP_INPUT,
           "tensor 'model.embed_tokens.weight' is [97,24], the model expects [98,24]");
    expect("tests/golden", NULL, SBP_INPUT, "has no config.json");
    expect("tests/golden/nothing", NULL, SBP_IO, "nothing");
    expect("tests/golden/llama_plain/args.json", NULL, SBP_INPUT,
           "neither an ONNX model (field 'graph') nor");
    expect("tests/golden/llama_plain/grads.safetensors", NULL, SBP_INPUT, "holds weights only");
    expect("model.onnx", NULL, SBP_IO, "model.onnx");
}

/* The part of a head that turns: what config.json says must be what the family turns, and pairs. */
static void test_partial_rotary_errors(void **state) {
    (void)state;
    static const char hybrid[] = "tests/golden/granite_hybrid_groups/model",
                      nemotron[] = "tests/golden/nemotron_h_latent/model";
    expect(hybrid, "layer_types=[\"mamba\",\"conv\",\"mamba\"]", SBP_INPUT,
           "layer type conv is not supported; attention or mamba expected");
    expect(hybrid, "mamba_n_groups=3", SBP_INPUT, "mamba_n_heads 4 is not a multiple of mamba_n_groups 3");
    expect(hybrid, "mamba_d_head=5", SBP_INPUT, "4 heads of 5 are not mamba_expand * hidden_size, 32");
    expect(hybrid, "time_step_limit=[1, 0.5]", SBP_INPUT, "the lower limit, 1, is above the upper one, 0.5");
    expect(nemotron, "layers_block_type=[\"moe\",\"conv\"]", SBP_INPUT,
           "layer type conv is not supported; mamba, attention, mlp or moe expected");
    expect(nemotron, "num_hidden_layers=7", SBP_INPUT, "there are 5 layer types; num_hidden_layers is 7");
    expect(nemotron, "attention_bias=true", SBP_INPUT, "the model class has no biases there");
    expect(nemotron, "mlp_bias=true", SBP_INPUT, "experts with biases are not supported");
    static const char falcon[] = "tests/golden/falcon_h1_plain/model";
    expect(falcon, "mamba_d_ssm=25", SBP_INPUT, "4 heads of 6 are not mamba_d_ssm, 25");
    expect(falcon, "mamba_d_ssm=null", SBP_INPUT, "4 heads of 6 are not mamba_expand * hidden_size, 40");
    expect(falcon, "mamba_n_groups=3", SBP_INPUT, "mamba_n_heads 4 is not a multiple of mamba_n_groups 3");
    expect(falcon, "ssm_multipliers=[1, 2]", SBP_INPUT, "ssm_multipliers: an array of 5 numbers is expected");
    expect(falcon, "mlp_multipliers=0.5", SBP_INPUT, "mlp_multipliers: an array of 2 numbers is expected");
    expect(falcon, "mamba_use_mlp=false", SBP_INPUT, "layers without an MLP are not supported");
    expect(falcon, "attn_layer_indices=[1]", SBP_INPUT, "attn_layer_indices");
    static const char neox[] = "tests/golden/gpt_neox_plain/model",
                      phi3[] = "tests/golden/phi3_su_long/model";
    expect(plain, "partial_rotary_factor=0.5", SBP_INPUT,
           "partial_rotary_factor: 0.5 of the 6 elements of a head would turn, but model_type llama turns 6; "
           "set to "
           "null");
    expect(plain, "partial_rotary_factor=2", SBP_INPUT, "2 is out of range; a number above 0 and at most 1");
    expect(neox, "partial_rotary_factor=0.5", SBP_INPUT, "would turn, but model_type gpt_neox turns 3");
    expect(neox, "rope_theta=300", SBP_INPUT,
           "rope_theta: 300: model_type gpt_neox is built without this field");
    expect(neox, "rotary_pct=0.05", SBP_INPUT, "rotary_pct: 0.05 of the 12 elements of a head are none");
    expect(neox, "rotary_pct=-1", SBP_INPUT, "rotary_pct: -1 is out of range");
    expect(neox, "rope_parameters={\"rope_type\":\"yarn\",\"factor\":2}", SBP_INPUT,
           "3 of the 12 elements of a head turn, but rotary embedding of type 'yarn' pairs them");
    expect(phi3, "partial_rotary_factor=0.5", SBP_INPUT,
           "rope_scaling.short_factor: an array of 2 numbers is expected, half of the 4 elements");
    expect(phi3, "rope_scaling.long_factor=[1,2,-3]", SBP_INPUT, "-3 is out of range; a positive number");
    expect(phi3, "rope_scaling.long_factor=null", SBP_INPUT,
           "long_factor: an array of 3 numbers is expected");
    expect(phi3, "rope_scaling.type=\"yarn\"", SBP_INPUT,
           "rope_scaling.type: transformers reads this as longrope");
    expect(phi3, "original_max_position_embeddings=1", SBP_INPUT,
           "these settings scale cos and sin by inf; a finite number is expected");
}

static void test_usage_errors(void **state) {
    (void)state;
    fixture f = fixture_create();
    sbp_model_options options = sbp_model_options_for(SBP_F16);
    sbp_model model;
    check_fails(&f, sbp_model_load(f.arena, f.diag, plain, &options, &model), SBP_USAGE,
                "models compute in f64, f32 or bf16, not in f16");
    options = sbp_model_options_for(SBP_F32);
    options.train = (const char *const[]){"encoder.*"};
    options.train_count = 1;
    check_fails(
        &f, sbp_model_load(f.arena, f.diag, plain, &options, &model), SBP_USAGE,
        "--train 'encoder.*' matches none of the 30 parameters (the first is model.embed_tokens.weight");
    options = sbp_model_options_for(SBP_F32);
    options.weights = "tests/golden/qwen3_plain/model";
    check_fails(&f, sbp_model_load(f.arena, f.diag, plain, &options, &model), SBP_INPUT,
                "tensor 'model.embed_tokens.weight' is [67,24], the model expects [97,24]");
    fixture_destroy(&f);
}

static void test_no_memory(void **state) {
    (void)state;
    check_no_memory(plain);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_published),     cmocka_unit_test(test_parameter_list),
        cmocka_unit_test(test_module_text),   cmocka_unit_test(test_overrides),
        cmocka_unit_test(test_rope_rounding), cmocka_unit_test(test_training_and_storage),
        cmocka_unit_test(test_lfm2),          cmocka_unit_test(test_errors),
        cmocka_unit_test(test_qwen3_5),       cmocka_unit_test(test_text_config),
        cmocka_unit_test(test_usage_errors),  cmocka_unit_test(test_partial_rotary_errors),
        cmocka_unit_test(test_no_memory),     cmocka_unit_test(test_ties),
        cmocka_unit_test(test_multimodal),    cmocka_unit_test(test_other_weights)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
