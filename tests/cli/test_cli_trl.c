/* TRL's commands and its documentation's configurations (tests/data/trl/yaml), with a small model and rows of
 * the objective in place of theirs. */
#include "tests/cli/cli_testing.h"

/* Of a configuration: another model, and other rows, of which a mixture has two. */
#define SMALL                                                                                                \
    "sed 's#Qwen/Qwen2.5-0.5B#'%s'#; s#\\(dataset_name\\|- path\\): .*#\\1: '%s'#' "                         \
    "tests/data/trl/yaml/%s.yaml "                                                                           \
    ">$D/c.yaml"

static const struct {
    const char *command, *name, *model, *rows, *options;
} cases[] = {
    {"sft", "sft", "$G/llama_plain/model", "$G/llama_plain/train.jsonl", ""},
    {"dpo", "dpo", "tests/data/ppo/model", "tests/data/pairs/rows.jsonl", ""},
    {"kto", "kto", "$S", "tests/data/kto/curve.jsonl", ""},
    {"grpo", "grpo", "tests/data/ppo/model", "tests/data/ppo/rows.jsonl", ""},
    {"rloo", "rloo", "tests/data/ppo/model", "tests/data/ppo/rows.jsonl", ""},
    {"sft", "sft.processes", "$G/llama_plain/model", "$G/llama_plain/train.jsonl", "--ranks 1"}, /* it wins */
    {"sft", "sft.accelerate", "$G/llama_plain/model", "$G/llama_plain/train.jsonl", ""},
    {"sft", "sft.mixture", "$G/llama_plain/model", "$G/llama_plain/train.jsonl", ""},
    {"dpo", "dpo.mixture", "tests/data/ppo/model", "tests/data/pairs/rows.jsonl", ""},
    {"grpo", "grpo.mixture", "tests/data/ppo/model", "tests/data/ppo/rows.jsonl", ""},
    {"rloo", "rloo.processes", "tests/data/ppo/model", "tests/data/ppo/rows.jsonl", "--nproc_per_node 1"},
};

static void test_configurations_of_the_documentation(void **state) {
    io_fixture *f = *state;
    for (int i = 0; i < SBP_COUNT(cases); i++) {
        cli_ok(f, sbp_arena_printf(f->arena, SMALL, cases[i].model, cases[i].rows, cases[i].name));
        cli_ok(f, sbp_arena_printf(f->arena, "$R %s --config $D/c.yaml --max_steps 1 --output_dir none %s",
                                   cases[i].command, cases[i].options));
        bool samples = strstr(cases[i].name, "loo") || strstr(cases[i].name, "grpo");
        if (!samples != !!strstr(cli_unfolded(f, "err"), "max_length 1024, as TRL has it"))
            fail_msg("%s: %s", cases[i].name, cli_text(f, "err"));
        if (samples != !!strstr(cli_unfolded(f, "err"), "no effect here: reward_funcs"))
            fail_msg("%s: %s", cases[i].name, cli_text(f, "err"));
    }
}

static void test_what_is_refused(void **state) {
    io_fixture *f = *state;
    cli_fails(f, 2, "'reward' of TRL: models of rewards are not trained here",
              "$R reward --config tests/data/trl/yaml/reward.yaml");
    cli_fails(f, 2, "'distillation' of TRL", "$R distillation");
    cli_fails(f, 2, "deepspeed: use --ranks N with --zero 1, 2 or 3",
              "$R sft --config tests/data/trl/yaml/sft.deepspeed.yaml");
    cli_fails(f, 2, "unknown key 'learning_rat'",
              "printf 'learning_rat: 1\\n' >$D/c.yaml; $R sft --config $D/c.yaml");
}

/* On TRL's command line, and the values of a file that it wins over. */
static void test_command_line(void **state) {
    io_fixture *f = *state;
    cli_ok(f, "printf 'learning_rate: 1e-5\\nmax_steps: 3\\n' >$D/c.yaml; $R sft --config $D/c.yaml "
              "--model_name_or_path "
              "$G/llama_plain/model --dataset_name $G/llama_plain/train.jsonl --max_steps 1 --bf16 false "
              "--gradient_checkpointing --report_to none --output_dir $D/o");
    const sbp_json *run = cli_json(f, "o/run.json");
    assert_non_null(run);
    assert_non_null(strstr(cli_unfolded(f, "err"), "lr 1e-05"));
    assert_non_null(strstr(cli_unfolded(f, "err"), "step 1/1"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_configurations_of_the_documentation, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_what_is_refused, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_command_line, cli_setup, io_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
