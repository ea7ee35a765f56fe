/* A multimodal model, of which the text model is trained: its config.json has that of the text model as
 * text_config, and its files the tensors of other parts, which go unchanged into what is written. The text
 * model alone, with the same numbers, has the same gradients. */
#include "frontends/formats/weights/safetensors.h"
#include "tests/cli/cli_testing.h"
#include "tests/cli/golden_lists.h"

/* "%s" of names: "model", or "model.language_model". */
static const struct {
    const char *name;
    int64_t rows, columns; /* columns 0: a vector */
} text_tensors[] = {{"%s.embed_tokens.weight", 11, 6},
                    {"%s.norm.weight", 6, 0},
                    {"%s.layers.0.input_layernorm.weight", 6, 0},
                    {"%s.layers.0.post_attention_layernorm.weight", 6, 0},
                    {"%s.layers.0.self_attn.q_proj.weight", 16, 6},
                    {"%s.layers.0.self_attn.k_proj.weight", 4, 6},
                    {"%s.layers.0.self_attn.v_proj.weight", 4, 6},
                    {"%s.layers.0.self_attn.o_proj.weight", 6, 8},
                    {"%s.layers.0.self_attn.q_norm.weight", 4, 0},
                    {"%s.layers.0.self_attn.k_norm.weight", 4, 0},
                    {"%s.layers.0.mlp.gate_proj.weight", 5, 6},
                    {"%s.layers.0.mlp.up_proj.weight", 5, 6},
                    {"%s.layers.0.mlp.down_proj.weight", 6, 5},
                    {"lm_head.weight", 11, 6}};
static const sbp_tensor_spec others[] = {
    {"model.visual.patch_embed.proj.weight", SBP_BF16, 3, (const int64_t[]){3, 2, 2}},
    {"model.visual.pos_index", SBP_I64, 1, (const int64_t[]){5}},
    {"mtp.fc.weight", SBP_F16, 2, (const int64_t[]){2, 3}}};
enum { TEXT = SBP_COUNT(text_tensors), OTHERS = SBP_COUNT(others) };

static const char text_config[] =
    "{\"model_type\": \"qwen3_5_text\", \"vocab_size\": 11, \"hidden_size\": 6, \"intermediate_size\": 5, "
    "\"num_hidden_layers\": 1, \"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"head_dim\": 4, "
    "\"layer_types\": [\"full_attention\"], \"rope_parameters\": {\"rope_type\": \"default\", "
    "\"rope_theta\": "
    "100, \"partial_rotary_factor\": 0.5, \"mrope_section\": [1, 0, 0], \"mrope_interleaved\": true}, "
    "\"eos_token_id\": 2, \"dtype\": \"bfloat16\"}";

static void write_weights(io_fixture *f, const char *folder, const char *root, int32_t more) {
    sbp_tensor_spec specs[TEXT + OTHERS];
    sbp_safetensors_writer *writer;
    for (int i = 0; i < TEXT; i++) {
        int64_t *dim = SBP_NEW_ARRAY(f->arena, int64_t, 2);
        dim[0] = text_tensors[i].rows;
        dim[1] = text_tensors[i].columns;
        specs[i] = (sbp_tensor_spec){.name = sbp_arena_printf(f->arena, text_tensors[i].name, root),
                                     .dtype = SBP_F32,
                                     .rank = dim[1] > 0 ? 2 : 1,
                                     .dim = dim};
    }
    memcpy(specs + TEXT, others, sizeof others);
    assert_ok(f,
              sbp_safetensors_writer_create(
                  f->arena, f->diag, io_path(f, sbp_arena_printf(f->arena, "%s/model.safetensors", folder)),
                  specs, TEXT + more, NULL, 0, 0, &writer));
    for (int i = 0; i < TEXT + more; i++) {
        int64_t elems = 1;
        for (int32_t d = 0; d < specs[i].rank; d++)
            elems *= specs[i].dim[d];
        for (int64_t k = 0; k < elems; k++) {
            unsigned char bytes[8] = {0};
            double number = (double)((i * 37 + k * 59) % 97 - 48); /* in turn, alike for both */
            sbp_element_set(bytes, specs[i].dtype, 0, specs[i].dtype == SBP_I64 ? number : number / 64);
            assert_ok(f,
                      sbp_safetensors_writer_write(writer, f->diag, bytes, sbp_dtype_bytes(specs[i].dtype)));
        }
    }
    assert_ok(f, sbp_safetensors_writer_commit(writer, f->diag));
}

/* $D/text and $D/whole, and rows in $D/data. */
static void write_models(io_fixture *f) {
    cli_ok(f, "mkdir -p $D/text $D/whole");
    cli_put(f, "text/config.json", text_config);
    cli_put(f, "whole/config.json",
            sbp_arena_printf(f->arena,
                             "{\"architectures\": [\"Qwen3_5ForConditionalGeneration\"], \"model_type\": "
                             "\"" GOLDEN_MULTIMODAL
                             "\", \"image_token_id\": 9, \"vision_config\": {\"depth\": 1}, "
                             "\"text_config\": %s, \"dtype\": \"bfloat16\"}",
                             text_config));
    write_weights(f, "text", "model", 0);
    write_weights(f, "whole", "model.language_model", OTHERS);
    cli_put(f, "data",
            "{\"input_ids\": [4, 5, 1, 7, 0], \"labels\": [4, 5, 1, 7, 0]}\n"
            "{\"input_ids\": [3, 8], \"labels\": [3, 8]}\n");
}

/* Bytes of a tensor's file form are those of the model, number by number. */
static void check_carried(io_fixture *f, const char *got_path) {
    sbp_weights *got, *want;
    assert_ok(f, sbp_weights_open(f->arena, f->diag, io_path(f, got_path), &got));
    assert_ok(f, sbp_weights_open(f->arena, f->diag, io_path(f, "whole"), &want));
    assert_int_equal(sbp_weights_count(got), TEXT + OTHERS);
    for (int32_t i = 0; i < sbp_weights_count(want); i++) {
        const sbp_weight *w = sbp_weights_at(want, i), *g = sbp_weights_find(got, w->name);
        if (!g)
            fail_msg("%s has no %s", got_path, w->name);
        double *x = cli_read_tensor(f, got, g), *y = cli_read_tensor(f, want, w);
        bool other = strstr(w->name, "visual") || strstr(w->name, "mtp");
        assert_int_equal(g->rank, w->rank);
        assert_int_equal(g->elems, w->elems);
        assert_true(!other || g->dtype == w->dtype);
        assert_true((memcmp(x, y, (size_t)w->elems * sizeof *x) == 0) == other);
        free(x);
        free(y);
    }
    sbp_weights_close(got);
    sbp_weights_close(want);
}

static void test_gradients_of_the_text_model(void **state) {
    io_fixture *f = *state;
    write_models(f);
    static const char *const folders[] = {"text", "whole"};
    for (int i = 0; i < 2; i++)
        cli_ok(f,
               sbp_arena_printf(f->arena,
                                "$C compile $D/%s -o $D/p --dtype fp64 --seq-len 7 && $R $D/p --data $D/data "
                                "--batch-tokens 7 --out none --dump-gradients $D/%s.gradients",
                                folders[i], folders[i]));
    assert_non_null(
        strstr(cli_unfolded(f, "err"), "3 tensors are not part of the text model, and go unchanged"));
    sbp_weights *text, *whole;
    assert_ok(f, sbp_weights_open(f->arena, f->diag, io_path(f, "text.gradients"), &text));
    assert_ok(f, sbp_weights_open(f->arena, f->diag, io_path(f, "whole.gradients"), &whole));
    assert_int_equal(sbp_weights_count(text), TEXT);
    assert_int_equal(sbp_weights_count(whole), TEXT);
    for (int i = 0; i < TEXT; i++) {
        const sbp_weight *a =
            sbp_weights_find(text, sbp_arena_printf(f->arena, text_tensors[i].name, "model"));
        const sbp_weight *b =
            sbp_weights_find(whole, sbp_arena_printf(f->arena, text_tensors[i].name, "model.language_model"));
        assert_true(a && b && a->elems == b->elems);
        double *x = cli_read_tensor(f, text, a), *y = cli_read_tensor(f, whole, b);
        assert_memory_equal(x, y, (size_t)a->elems * sizeof *x);
        double largest = 0;
        for (int64_t k = 0; k < a->elems; k++)
            largest = fmax(largest, fabs(x[k]));
        assert_true(largest > 0);
        free(x);
        free(y);
    }
    sbp_weights_close(text);
    sbp_weights_close(whole);
}

/* The result, checkpoints, a merged adapter, what several ranks write; an adapter alone has none of it. */
static void test_carried(void **state) {
    io_fixture *f = *state;
    static const char *const ways[][2] = {
        {"", ""}, {"--lora r=2,targets=all-linear", "--merge"}, {"--ranks 2", "--ranks 2"}};
    write_models(f);
    for (int i = 0; i < SBP_COUNT(ways); i++) {
        cli_ok(f, sbp_arena_printf(f->arena, "$C compile $D/whole -o $D/p --seq-len 7 %s", ways[i][0]));
        cli_ok(f, sbp_arena_printf(f->arena,
                                   "rm -rf $D/o; $R $D/p --data $D/data --batch-tokens 7 --steps 2 --lr 0.1 "
                                   "--save-every 1 --out $D/o %s",
                                   ways[i][1]));
        const sbp_json *config = cli_json(f, "o/config.json"),
                       *inner = sbp_json_member(config, "text_config");
        assert_string_equal(sbp_json_member(config, "model_type")->string, GOLDEN_MULTIMODAL);
        assert_string_equal(sbp_json_member(config, "dtype")->string, "float32");
        assert_string_equal(sbp_json_member(inner, "dtype")->string, "float32");
        assert_non_null(sbp_json_member(config, "vision_config"));
        if (i != 1) {
            check_carried(f, "o");
            check_carried(f, "o/checkpoint-1");
        } else { /* all-linear: neither norms, nor embedding and head */
            assert_int_equal(cli_count_tensors(f, io_path(f, "o")), TEXT + OTHERS);
            assert_int_equal(cli_count_tensors(f, io_path(f, "o/checkpoint-1/adapter_model.safetensors")),
                             2 * 7);
        }
        cli_ok(f, "$C compile $D/o -o $D/again --seq-len 7");
    }
    cli_ok(f, "$R $D/p --ranks 2 --data $D/data --batch-tokens 7 --steps 3 --lr 0.1 --out $D/o --resume");
    check_carried(f, "o");
}

static sbp_weights *open_weights(io_fixture *f, const char *path) {
    sbp_weights *w;
    assert_ok(f, sbp_weights_open(f->arena, f->diag, path, &w));
    return w;
}

/* What a run writes of a case is the same model again: each tensor has its name, type and shape; those with a
 * gradient, of which a step has moved all, others than they were, the rest, bytes. */
static void compare_written(io_fixture *f, const char *folder) {
    sbp_weights *got = open_weights(f, io_path(f, "o")),
                *want = open_weights(f, sbp_arena_printf(f->arena, "%s/model", folder)),
                *gradients = open_weights(f, sbp_arena_printf(f->arena, "%s/grads.safetensors", folder));
    int carried = 0;
    assert_int_equal(sbp_weights_count(got), sbp_weights_count(want));
    for (int32_t i = 0; i < sbp_weights_count(want); i++) {
        const sbp_weight *w = sbp_weights_at(want, i), *g = sbp_weights_find(got, w->name);
        if (!g || g->dtype != w->dtype || g->rank != w->rank ||
            memcmp(g->dim, w->dim, (size_t)w->rank * sizeof *w->dim) != 0)
            fail_msg("%s: %s is not there as it was", folder, w->name);
        double *x = cli_read_tensor(f, got, g), *y = cli_read_tensor(f, want, w);
        bool same = memcmp(x, y, (size_t)w->elems * sizeof *x) == 0,
             other = !sbp_weights_find(gradients, w->name);
        if (same != other)
            fail_msg("%s: %s %s", folder, w->name, same ? "has not moved" : "is not what it was");
        carried += other;
        free(x);
        free(y);
    }
    assert_true(carried > 10);
    sbp_weights_close(got);
    sbp_weights_close(want);
    sbp_weights_close(gradients);
}

/* A case each of the spellings of names, of a flat config.json and of experts that are stored [in, out]. */
static void test_wrappers(void **state) {
    io_fixture *f = *state;
    static const char *const cases[] = {"gemma3_wrapper_v", "mistral3_v", "qwen3_vl_moe_v", "qwen2_5_vl_v",
                                        "kimi_k25_v"};
    for (int i = 0; i < SBP_COUNT(cases); i++) {
        const char *folder = sbp_arena_printf(f->arena, "tests/golden/%s", cases[i]);
        cli_ok(f,
               sbp_arena_printf(f->arena,
                                "cp -r %s/model $D/m && echo '{\"a\": 1}' >$D/m/preprocessor_config.json && "
                                "$C compile $D/m -o $D/p --seq-len 55 && $R $D/p --data %s/train.jsonl "
                                "--batch-tokens 55 --steps 1 --lr 0.01 --out $D/o",
                                folder, folder));
        compare_written(f, folder);
        assert_int_equal(cli_json(f, "o/preprocessor_config.json")->items[0].integer, 1);
        const sbp_json *was = cli_json(f, "m/config.json"), *is = cli_json(f, "o/config.json");
        for (int64_t k = 0; k < was->count; k++)
            if (strcmp(was->items[k].key, "torch_dtype") != 0) /* spelled dtype now */
                assert_non_null(sbp_json_member(is, was->items[k].key));
        cli_ok(f, "$C compile $D/o -o $D/again --seq-len 55 && rm -r $D/m $D/o");
    }
}

/* Adapters go by the modules of the class, and leave other parts out, whose modules may have the same names:
 * Pixtral's tower has a q_proj, too. */
static void test_adapters(void **state) {
    io_fixture *f = *state;
    static const char *const ways[] = {"targets=all-linear", "targets=q_proj",
                                       "targets=q_proj,exclude=layers.0.self_attn.q_proj",
                                       "targets=o_proj,modules_to_save=lm_head"};
    static const int tensors[] = {2 * 2 * 7, 2 * 2, 2, 2 * 2 + 1};
    static const char outside[] = "(?!model\\.language_model\\.).*",
                      inside[] = "base_model.model.model.language_model.";
    for (int i = 0; i < SBP_COUNT(ways); i++) {
        cli_ok(f, sbp_arena_printf(
                      f->arena,
                      "$C compile tests/golden/mistral3_v/model -o $D/p --seq-len 55 --lora r=2,%s && "
                      "$R $D/p --data tests/golden/mistral3_v/train.jsonl --batch-tokens 55 --steps 1 "
                      "--lr 0.1 --out $D/o",
                      ways[i]));
        assert_true((strstr(cli_unfolded(f, "err"), "those of other parts, which PEFT would adapt as well") !=
                     NULL) == (i == 0));
        sbp_weights *w = open_weights(f, io_path(f, "o/adapter_model.safetensors"));
        assert_int_equal(sbp_weights_count(w), tensors[i]);
        for (int32_t k = 0; k < sbp_weights_count(w); k++) {
            const char *name = sbp_weights_at(w, k)->name;
            if (strncmp(name, inside, strlen(inside)) != 0 &&
                strcmp(name, "base_model.model.lm_head.weight") != 0)
                fail_msg("%s is no name of PEFT's", name);
        }
        sbp_weights_close(w);
        const char *excluded =
            sbp_json_member(cli_json(f, "o/adapter_config.json"), "exclude_modules")->string;
        assert_string_equal(
            excluded, i == 2
                          ? sbp_arena_printf(f->arena, "%s|(.*\\.)?layers\\.0\\.self_attn\\.q_proj", outside)
                          : outside);
        /* and it is read again */
        cli_ok(f, "$C compile $D/o -o $D/again --seq-len 55 && rm -r $D/o");
    }
}

static void test_refused(void **state) {
    io_fixture *f = *state;
    write_models(f);
    cli_ok(f, "$C compile $D/whole -o $D/p --seq-len 7");
    cli_put(f, "images", "{\"input_ids\": [4, 5], \"images\": [\"a.png\"]}\n");
    cli_fails(f, 1, "images:1: the row has 'images': models are trained on text",
              "$R $D/p --data $D/images --batch-tokens 7 --out none");
    cli_ok(f, "mv $D/whole $D/moved");
    cli_fails(f, 4, "cannot open", "$R $D/p --data $D/data --batch-tokens 7 --out $D/o2");
    assert_false(cli_exists(f, "o2/model.safetensors"));
    cli_ok(f, "$R $D/p --data $D/data --batch-tokens 7 --lr 0.1 --out $D/o2 --weights $D/moved && mv "
              "$D/moved $D/whole");
    check_carried(f, "o2");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_gradients_of_the_text_model, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_carried, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_wrappers, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_adapters, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_refused, cli_setup, io_teardown)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
