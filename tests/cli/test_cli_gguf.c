/* GGUF files of llama.cpp's converter, through plan and device: gradients are the golden's, however the
 * numbers came there; frozen blocks stay; what is written is a Hugging Face directory. */
#include "tests/cli/cli_testing.h"

#define TEXT(...) sbp_arena_printf(f->arena, __VA_ARGS__)
#define FILES "tests/golden/gguf"

static void dump(io_fixture *f, const char *model, const char *golden, const char *options, const char *to) {
    cli_ok(f, TEXT("$C compile %s -o $D/p --seq-len 200 --dtype fp64 --backend cpu %s", model, options));
    cli_ok(f,
           TEXT("$R $D/p --data tests/golden/%s/train.jsonl --dump-gradients $D/%s --out none", golden, to));
}

/* Files that say all that the golden's config.json does, but for what their class pads with. */
static void test_gradients(void **state) {
    static const char *const cases[][3] = {{"llama", "llama_plain", ""},
                                           {"llama3", "llama_rope_llama3", ""},
                                           {"glm4", "glm4_defaults", ""},
                                           {"gemma4_experts", "gemma4_26b_a4b_v", ""},
                                           {"olmo3", "olmo3_released", ""},
                                           {"phi3_longrope", "phi3_longrope_short", ""},
                                           {"granite", "granite_plain", ""},
                                           {"exaone4", "exaone4_windows", ""},
                                           {"mistral3", "ministral3_plain", "--set pad_token_id=11"},

                                           {"qwen2vl", "qwen2_5_vl_v", ""},
                                           {"cohere2", "cohere2_released", "--set pad_token_id=0"},

                                           {"gemma3n", "gemma3n_outside", ""},
                                           {"apertus", "apertus_plain", "--set pad_token_id=3"}};
    io_fixture *f = *state;
    for (int i = 0; i < SBP_COUNT(cases); i++) {
        dump(f, TEXT(FILES "/%s.gguf", cases[i][0]), cases[i][1], TEXT("--chunk 13 %s", cases[i][2]),
             "g.safetensors");
        cli_compare(f, cases[i][0], sbp_arena_strdup(f->arena, io_path(f, "g.safetensors")),
                    TEXT("tests/golden/%s/grads.safetensors", cases[i][1]), sbp_tolerance(SBP_F64));
    }
}

/* Adapters over experts in MXFP4, whose gates and ups the file has in two tensors. */
static void test_blocks(void **state) {
    static const char both[] = "--lora r=2,alpha=4 --set router_aux_loss_coef=0",
                      golden[] = "gpt_oss_mxfp4_v";
    io_fixture *f = *state;
    dump(f, FILES "/gpt-oss_mxfp4.gguf", golden, TEXT("%s --base-name a/b", both), "file.safetensors");
    cli_ok(f, "grep -ac '\"format\": \"mxfp4\"' $D/p");
    assert_int_equal(atoi(cli_text(f, "out")), 4); /* gates with ups, and what leads back, of two layers */
    dump(f, "tests/golden/gpt_oss_mxfp4_v/model", golden, TEXT("%s --set swiglu_limit=7.0", both),
         "directory.safetensors");
    cli_same(f, "file.safetensors", "directory.safetensors");
}

/* A step over, the directory is one that is read again; and a part that is no first one is refused. */
static void test_written(void **state) {
    io_fixture *f = *state;
    cli_ok(f, "$R " FILES
              "/qwen3moe.gguf --data tests/golden/qwen3_moe_balanced/train.jsonl --seq-len 200 --steps 1 "
              "--lr 0 --out $D/new");
    const sbp_json *config = cli_json(f, "new/config.json");
    assert_string_equal(sbp_json_member(config, "model_type")->string, "qwen3_moe");
    sbp_weights *w;
    assert_ok(f, sbp_weights_open(f->arena, f->diag, io_path(f, "new"), &w));
    assert_non_null(sbp_weights_find(w, "model.layers.0.mlp.experts.3.up_proj.weight"));
    sbp_weights_close(w);
    dump(f, "$D/new", "qwen3_moe_balanced", "", "new.safetensors");
    dump(f, FILES "/qwen3moe.gguf", "qwen3_moe_balanced", "", "file.safetensors");
    cli_same(f, "new.safetensors", "file.safetensors");
    cli_ok(f, "$R " FILES
              "/gemma3n.gguf --data tests/golden/gemma3n_outside/train.jsonl --seq-len 200 --steps 1 "
              "--lr 0 --out $D/n && grep '0[.]8,0[.]0,0[.]6' $D/n/config.json"); /* no integer among shares */
    cli_fails(f, 1, "are not supported; supported: llama, llama4, qwen2,",
              "$R tests/data/io/grids.gguf --data tests/golden/llama_plain/train.jsonl --steps 1 --out none");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_gradients, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_blocks, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_written, cli_setup, io_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
