/* Gradients of a policy with a value head against transformers and the lines of TRL's trainer
 * (tests/data/ppo, tests/golden/make_ppo.py): whole runs, however the step is cut; what a scoring says of
 * values comes first. */
#include "tests/cli/cli_testing.h"

#define PPO "tests/data/ppo"

static void test_gradients(void **state) {
    io_fixture *f = *state;
    static const cli_cut cuts[] = {
        {"--dtype fp64 --seq-len 64", SBP_TOLERANCE_F64},
        {"--dtype fp64 --seq-len 9 --chunk 2 --head-chunk 3 --segment 2 --head-rows counted",
         SBP_TOLERANCE_F64},
        {"--dtype fp64 --seq-len 12 --chunk 5 --head-chunk 1 --checkpoint-every 2 --backward checkpoint",
         SBP_TOLERANCE_F64},
        {"--dtype fp64 --seq-len 17 --chunk 4 --save attn_out+lse+gate --checkpoint-every 2",
         SBP_TOLERANCE_F64},
        {"--dtype fp64 --seq-len 30 --chunk 7 --segment 2 --save k+v+attn_residual --offload host",
         SBP_TOLERANCE_F64},
        {"--dtype fp32 --seq-len 10 --chunk 3", SBP_TOLERANCE_F32},
    };
    for (int i = 0; i < SBP_COUNT(cuts); i++)
        cli_check_cut(f, cuts[i].compile, &cuts[i], "$C compile " PPO "/model --objective ppo",
                      sbp_arena_printf(f->arena, "--data " PPO "/rows.jsonl --batch-size 5 --shuffle %s",
                                       i % 2 ? "on" : "off"),
                      PPO "/gradients.safetensors");
}

/* A model without a value head gets one, which the result has. */
static void test_run(void **state) {
    io_fixture *f = *state;
    cli_ok(f, "$C compile $G/llama_mqa/model -o $D/p --objective ppo --seq-len 64");
    cli_ok(f, "$R $D/p --data " PPO
              "/rows.jsonl --batch-size 5 --steps 4 --lr 1e-3 --schedule constant --out $D/run "
              "--inner-epochs 2");
    const char *metrics = cli_text(f, "run/metrics.jsonl");
    static const char *const names[] = {"objective/kl",   "objective/scores",    "loss/policy_avg",
                                        "loss/value_avg", "policy/clipfrac_avg", "val/ratio"};
    for (int i = 0; i < SBP_COUNT(names); i++)
        assert_non_null(strstr(metrics, names[i]));
    cli_ok(f, "$C compile $D/run -o $D/q --objective ppo --seq-len 64 && $R $D/q --data " PPO
              "/rows.jsonl --steps 1 --out none");
    assert_null(strstr(cli_text(f, "err"), "v_head"));
    cli_ok(f,
           "$C compile $D/run -o $D/q --seq-len 64"); /* and without: a tensor that is no part of the model */
    cli_fails(
        f, 1, "'reward' is missing",
        "echo '{\"prompt_ids\": [5], \"completion_ids\": [9]}' >$D/data && $R $D/p --data $D/data --out "
        "none --steps 1");
}

/* An evaluation compares with the weights at hand, as a first step does. */
static void test_evaluation(void **state) {
    io_fixture *f = *state;
    static const char *const names[] = {
        "loss", "loss/value_avg", "objective/kl", "objective/rlhf_reward", "policy/entropy_avg", "val/ratio"};
    int count;
    cli_ok(f,
           "$C compile " PPO "/model -o $D/p --dtype fp64 --objective ppo --seq-len 12 && $R $D/p --data " PPO
           "/rows.jsonl --batch-size 5 --shuffle off --steps 4 --lr 1e-2 --eval-every 1 --eval " PPO
           "/rows.jsonl --out $D/run");
    const sbp_json **lines = cli_lines(f, "run/metrics.jsonl", &count);
    assert_int_equal(count, 9);
    for (int i = 0; i < SBP_COUNT(names); i++) {
        double got = cli_number(f, lines[0], sbp_arena_printf(f->arena, "eval_%s", names[i]));
        double want = cli_number(f, lines[1], names[i]);
        assert_true(fabs(got - want) <= SBP_TOLERANCE_F64 * fmax(1, fabs(want)));
    }
    for (int i = 2; i < count; i += 2) { /* after each step with the weights that it has left */
        assert_true(cli_number(f, lines[i], "eval_val/ratio") == 1);
        assert_true(cli_number(f, lines[i], "eval_loss/value_avg") <
                    cli_number(f, lines[i - 2], "eval_loss/value_avg"));
    }
    /* what is scored may be more than a step of the plan has */
    cli_ok(f, "$C compile " PPO
              "/model -o $D/p --objective ppo --seq-len 12 --accumulate 1 && $R $D/p --data " PPO
              "/rows.jsonl --batch-size 1 --steps 1 --eval " PPO "/rows.jsonl --out none");
}

/* The reward of an answer that has no end is lower. */
static void test_missing_end(void **state) {
    io_fixture *f = *state;
    static const char rows[] = "{\"prompt_ids\": [1, 40], \"completion_ids\": [50, 60, 2], \"reward\": 1}\n"
                               "{\"prompt_ids\": [1, 41], \"completion_ids\": [50, 60], \"reward\": %s}\n"
                               "{\"prompt_ids\": [1, 2], \"completion_ids\": [51, 61], \"reward\": %s}\n";
    cli_put(f, "given", sbp_arena_printf(f->arena, rows, "1", "-2"));
    cli_put(f, "lower", sbp_arena_printf(f->arena, rows, "0.25", "-2.75"));
    cli_ok(f, "$C compile $S -o $D/p --objective ppo --seq-len 32 && $R $D/p --data $D/lower --out none "
              "--dump-gradients $D/want && $R $D/p --data $D/given --out none --missing-eos-penalty 0.75 "
              "--dump-gradients $D/got && $R $D/p --data $D/given --out none --dump-gradients $D/other");
    cli_same(f, "got", "want");
    assert_int_not_equal(cli(f, "cmp $D/want $D/other"), 0);
    /* without a tokenizer config.json says what ends texts, else generation_config.json */
    cli_ok(f,
           "mkdir $D/m && cp $S/config.json $S/model.safetensors $D/m && $C compile $D/m -o $D/p --objective "
           "ppo "
           "--seq-len 32 && $R $D/p --data $D/given --out none --missing-eos-penalty 0.75 --dump-gradients "
           "$D/got");
    cli_same(f, "got", "want");
    cli_ok(f, "sed -i '/eos_token_id/d' $D/m/config.json && echo '{\"eos_token_id\": [7, 2]}' "
              ">$D/m/generation_config.json && $C compile $D/m -o $D/p --objective ppo --seq-len 32 && "
              "$R $D/p --data $D/given --out none --missing-eos-penalty 0.75 --dump-gradients $D/got");
    cli_same(f, "got", "want");
    cli_fails(f, 2, "--missing-eos-penalty: the model has no end-of-sequence token: its config.json has no",
              "rm $D/m/generation_config.json && $R $D/p --data $D/given --out none --missing-eos-penalty 1");
    cli_fails(f, 2, "--mask-truncated-completions: the model has no end-of-sequence token: its config.json",
              "$R $D/p --data $D/given --out none --mask-truncated-completions on");
}

/* A run that is stopped between two passes over its rollouts goes on with what was said of them. */
static void test_resume(void **state) {
    io_fixture *f = *state;
    static const char run[] =
        "$R $D/p --data " PPO "/rows.jsonl --batch-size 3 --lr 1e-3 --schedule constant";
    cli_ok(f, "$C compile " PPO "/model -o $D/p --objective ppo --seq-len 12 --chunk 5");
    cli_ok(f, sbp_arena_printf(f->arena, "%s --steps 7 --out $D/whole", run));
    cli_ok(f, sbp_arena_printf(f->arena, "%s --steps 3 --out $D/parts", run));
    cli_ok(f, "$R $D/p --resume --out $D/parts --steps 7");
    cli_ok(f, "cmp $D/whole/model.safetensors $D/parts/model.safetensors");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_gradients, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_run, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_evaluation, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_missing_end, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_resume, cli_setup, io_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
