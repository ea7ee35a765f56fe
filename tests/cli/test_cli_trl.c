/* TRL's commands and its documentation's configurations (tests/data/trl/yaml), with a small model and rows of
 * the objective in place of theirs. */
#include "tests/cli/cli_testing.h"

/* A configuration with another model, and other rows, of which a mixture has two. */
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
    cli_fails(f, 2, "'reward' of TRL: reward models are not trained here yet",
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

/* When evaluations are; and data sets of the Hub, of which its cache has what is needed here. */
static void test_evaluations_and_splits(void **state) {
    io_fixture *f = *state;
#define RUN "$R sft --model_name_or_path $G/llama_plain/model --output_dir $D/o --overwrite "
#define COUNT "; grep -c eval_loss $D/o/metrics.jsonl"
    cli_ok(f, "head -3 $G/llama_plain/train.jsonl >$D/a.jsonl");
    cli_ok(f, RUN "--dataset_name $D/a.jsonl --eval $D/a.jsonl --per_device_train_batch_size 2 "
                  "--num_train_epochs 3 --eval_strategy epoch" COUNT);
    assert_string_equal(cli_text(f, "out"), "4\n");
    cli_ok(f, RUN "--dataset_name $D/a.jsonl --eval $D/a.jsonl --per_device_train_batch_size 2 "
                  "--num_train_epochs 3 --eval_strategy no" COUNT);
    assert_string_equal(cli_text(f, "out"), "2\n");
    cli_ok(f, "S=$D/hub/datasets--org--rows; mkdir -p $S/refs $S/snapshots/1; printf 1 >$S/refs/main; cd "
              "$S/snapshots/1; for i in 1 2 3; do head -$i $D/a.jsonl >$i.jsonl; done; printf -- "
              "'---\\nconfigs:\\n- config_name: default\\n  data_files:\\n  - split: train\\n    path: "
              "1.jsonl\\n  - split: test\\n    path: 2.jsonl\\n- config_name: other\\n  data_files: "
              "3.jsonl\\n---\\n' >README.md");
    static const struct {
        const char *data, *rows;
    } sets[] = {{"org/rows", "data 1 rows"},
                {"org/rows:other", "data 3 rows"},
                {"org/rows::test", "data 2 rows"},
                {"org/rows:default:test", "data 2 rows"},
                {"org/rows:other:train", "data 3 rows"}};
    for (int i = 0; i < SBP_COUNT(sets); i++) {
        cli_ok(f, sbp_arena_printf(f->arena, "HF_HUB_CACHE=$D/hub " RUN "--dry-run --dataset_name %s",
                                   sets[i].data));
        if (!strstr(cli_unfolded(f, "out"), sets[i].rows))
            fail_msg("%s: %s", sets[i].data, cli_text(f, "out"));
    }
    cli_ok(f, "HF_HUB_CACHE=$D/hub " RUN "--dataset_name org/rows --eval_strategy steps --max_steps 1" COUNT);
    assert_string_equal(cli_text(f, "out"), "2\n");
    cli_fails(f, 2, "has no split 'test', but: train", /* of that config */
              "HF_HUB_CACHE=$D/hub " RUN "--dataset_name org/rows:other:train --eval_strategy steps");
    cli_ok(
        f,
        "printf 'datasets:\\n- path: org/rows\\n  split: test\\n- path: org/rows\\n  name: other\\n- path: "
        "%s/a.jsonl\\n' $D >$D/c.yaml; HF_HUB_CACHE=$D/hub " RUN "--config $D/c.yaml --dry-run");
    assert_non_null(strstr(cli_unfolded(f, "out"), "data 8 rows"));
    cli_ok(f, "echo '{\"input_ids\": [1, 2], \"labels\": [-100, -100]}' >$D/b.jsonl; $R $G/llama_plain/model "
              "--data $D/b.jsonl --steps 1 --out none");
    assert_non_null(strstr(cli_unfolded(f, "err"), "no token of the data is trained: all labels are -100"));
    cli_ok(f, RUN "--dataset_name $D/a.jsonl --max_steps 1 --eval_strategy epoch; ! grep eval_loss "
                  "$D/o/metrics.jsonl");
    assert_non_null(strstr(cli_unfolded(f, "err"), "has no split 'test', being no data set of the Hub"));
}

/* save_steps, eval_steps and logging_steps below 1 are parts of all steps, rounded up; save_strategy. */
static void test_intervals(void **state) {
    io_fixture *f = *state;
    static const struct {
        const char *options, *checkpoints, *evaluations;
    } runs[] = {
        {"--max_steps 10 --save_steps 0.25 --eval_steps 0.3", "10 3 6 9", "5\n"},
        {"--max_steps 10 --save_steps 4 --eval_steps 0.3 --eval_strategy no", "10 4 8", "2\n"},
        {"--num_train_epochs 2 --save_strategy epoch --save_steps 1", "3 6", "2\n"},
        {"--max_steps 10 --save_steps 10 --eval_steps 2 --eval_delay 6", "10", "4\n"}, /* 0 6 8 10 */
        {"--num_train_epochs 4 --save_steps 20 --eval_strategy epoch --eval_delay 1.5", "12",
         "4\n"}, /* 6, 9 */
        {"--num_train_epochs 2 --save_strategy no --save_steps 1", "", "2\n"},
    };
    for (int i = 0; i < SBP_COUNT(runs); i++) {
        cli_ok(f,
               sbp_arena_printf(f->arena,
                                "$R $G/llama_plain/model --data $G/llama_plain/train.jsonl --eval "
                                "$G/llama_plain/train.jsonl --batch-size 2 --keep all --out $D/o --overwrite "
                                "--quiet %s; (cd $D/o && ls -d checkpoint-* | sed s/checkpoint-// | tr '\\n' "
                                "' ') >$D/list; grep -c eval_loss $D/o/metrics.jsonl",
                                runs[i].options));
        if (strncmp(cli_text(f, "list"), runs[i].checkpoints, strlen(runs[i].checkpoints)) != 0 ||
            strlen(cli_text(f, "list")) > strlen(runs[i].checkpoints) + 1)
            fail_msg("%s: checkpoints %s", runs[i].options, cli_text(f, "list"));
        assert_string_equal(cli_text(f, "out"), runs[i].evaluations);
    }
    cli_fails(f, 2, "--save-every 2.5: give a whole number of steps",
              "$R $G/llama_plain/model --data $G/llama_plain/train.jsonl --out none --save_steps 2.5");
    cli_fails(
        f, 2, "whose number a stream does not tell",
        "printf '{\"input_ids\": [1, 2, 3]}\\n{\"end_of_step\": true}\\n' | $R $G/llama_plain/model --data - "
        "--seq-len 64 --schedule constant --out none --save_steps 0.5");
}

/* What is wrong with the data is said before a plan is made for them, with --dry-run too. */
static void test_data_are_looked_at_first(void **state) {
    io_fixture *f = *state;
    static const struct {
        int status;
        const char *command, *message;
    } wrong[] = {
        {1,
         "$R grpo --model_name_or_path $S --dataset_name $D/prompts --reward_funcs accuracy_reward --out "
         "$D/o",
         "prompts:1: a prompt without an answer: with --reward FILE.py:NAME"},
        {1, "$R grpo --model_name_or_path $S --dataset_name $D/prompts --seq-len 64 --dry-run",
         "a prompt without an answer"},
        {1, "$R dpo --model_name_or_path $S --dataset_name $D/texts --out $D/o",
         "texts:1: dpo needs 'chosen' and 'rejected'"},
        {4, "$R sft --model_name_or_path $S --dataset_name $D/texts --eval $D/nowhere --out $D/o",
         "nowhere': No such file"},
        {2, "$R talk lora1", "'talk' is neither a command of sbprun nor a model that is here"},
        {2, "$R --help nonsense", "--help nonsense: there is no such topic"},
    };
    cli_put(f, "prompts", "{\"prompt\": \"Say 0\"}\n");
    cli_put(f, "texts", "{\"text\": \"Once\"}\n");
    cli_put(f, "answers",
            "{\"prompt\": \"O\", \"completion\": \" b\", \"label\": true}\n"
            "{\"prompt\": \"One day, there was\", \"completion\": \" b\", \"label\": false}\n");
    for (int i = 0; i < SBP_COUNT(wrong); i++) {
        cli_fails(f, wrong[i].status, wrong[i].message, wrong[i].command);
        assert_null(strstr(cli_text(f, "err"), "\nfits ")); /* nothing was compiled */
    }
    cli_fails(f, 1, "answers:2: the prompt has ",
              "$R sft --model_name_or_path $S --dataset_name $D/answers --max_prompt_length 2 --out none");
    cli_ok(f, "$R $S --data $D/answers --max_prompt_length 20 --steps 1 --out none");
    assert_non_null(strstr(cli_unfolded(f, "err"), "rows have a 'label', which sft does not read"));
    assert_non_null(strstr(cli_unfolded(f, "err"), "max_prompt_length 20: no prompt is longer"));
    cli_ok(f, "$R $S --data $D/answers --max_prompt_length 2 --on-bad-row skip --steps 1 --out none");
}

/* Commands that TRL has as scripts, and files of theirs. */
static void test_scripts_of_trl(void **state) {
    io_fixture *f = *state;
    cli_put(f, "pairs", "{\"prompt\": \"Once\", \"chosen\": \" upon\", \"rejected\": \" b\"}\n");
    cli_put(f, "talks", "{\"messages\": [{\"role\": \"user\", \"content\": \"Once\"}]}\n");
#define PAIRS "--model_name_or_path $S --dataset_name $D/pairs --max_steps 1 --output_dir none"
    cli_ok(f, "$R orpo " PAIRS " --beta 0.2 --max_prompt_length 128");
    cli_ok(f, "$R cpo --loss_type simpo " PAIRS " --cpo_alpha 0 && $R simpo " PAIRS);
    cli_ok(f, "HF_HUB_OFFLINE=1 $R dpo " PAIRS "out --push_to_hub --dry-run"); /* nothing is sent */
    assert_non_null(strstr(cli_text(f, "err"), "--push_to_hub: the training would stop here"));
    cli_fails(f, 2, "HF_HUB_OFFLINE is set", "HF_HUB_OFFLINE=1 $R dpo " PAIRS "out --push_to_hub");
    cli_fails(f, 2, "cpo with --loss_type sigmoid, which TRL takes without it, is not built",
              "$R cpo " PAIRS);
    cli_fails(f, 2, "cpo with --loss_type hinge is not built", "$R cpo --loss_type hinge " PAIRS);
    cli_fails(f, 2, "reward models are not trained here yet", "$R reward " PAIRS);
    cli_ok(f, "printf 'chat_template: \"{%% for m in messages %%}<{{ m.content }}>{%% endfor "
              "%%}\"\\ntorch_dtype: float16\\nbf16: true\\npacking: true\\npacking_strategy: "
              "ffd\\nsystem_prompt: x\\n' >$D/c.yaml; $R sft --config $D/c.yaml --model_name_or_path $S "
              "--dataset_name $D/talks --max_steps 1 --output_dir $D/o");
    const char *said = cli_unfolded(f, "err");
    assert_non_null(strstr(said, "packing_strategy ffd: taken as bfd"));
    assert_non_null(strstr(said, "torch_dtype float16: weights are read as their file has them"));
    assert_non_null(strstr(said, "nobody here reads these keys: system_prompt"));
    cli_ok(f, "grep -q '<{{ m.content }}>' $D/o/chat_template.jinja");
    cli_fails(f, 2, "c.yaml:2: torch_dtype float16: fp16 is not built: use bf16",
              "sed -i /bf16/d $D/c.yaml; $R sft --config $D/c.yaml --model_name_or_path $S --dataset_name "
              "$D/talks");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_configurations_of_the_documentation, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_what_is_refused, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_command_line, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_evaluations_and_splits, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_intervals, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_data_are_looked_at_first, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_scripts_of_trl, cli_setup, io_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
