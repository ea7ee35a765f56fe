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
        cmocka_unit_test_setup_teardown(test_refused, cli_setup, io_teardown)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
