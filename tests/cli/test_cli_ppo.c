/* Gradients of a policy with a value head against transformers and the lines of TRL's trainer
 * (tests/data/ppo, tests/golden/make_ppo.py): whole runs, however the step is cut; what a scoring says of
 * values comes first. */
#include "tests/cli/cli_testing.h"

#define PPO "tests/data/ppo"

static void test_gradients(void **state) {
    io_fixture *f = *state;
    static const struct {
        const char *compile;
        double tolerance;
    } cuts[] = {
        {"--dtype fp64 --seq-len 64", SBP_TOLERANCE_F64},
        {"--dtype fp64 --seq-len 9 --chunk 2 --head-chunk 3 --segment 2", SBP_TOLERANCE_F64},
        {"--dtype fp64 --seq-len 12 --chunk 5 --head-chunk 1 --checkpoint-every 2 --backward checkpoint",
         SBP_TOLERANCE_F64},
        {"--dtype fp32 --seq-len 10 --chunk 3", SBP_TOLERANCE_F32},
    };
    for (int i = 0; i < SBP_COUNT(cuts); i++) {
        cli_ok(f,
               sbp_arena_printf(f->arena,
                                "$C compile " PPO "/model -o $D/p --objective ppo %s && $R $D/p --data " PPO
                                "/rows.jsonl --batch-size 5 --shuffle %s --out none --dump-gradients $D/got",
                                cuts[i].compile, i % 2 ? "on" : "off"));
        double off = cli_compare(f, cuts[i].compile, io_path(f, "got"), PPO "/gradients.safetensors",
                                 cuts[i].tolerance);
        print_message("%s: off by %.2g\n", cuts[i].compile, off);
    }
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
    cli_fails(f, 2, "--eval: the plan's objective compares with older weights ('old_logps')",
              "$R $D/p --data " PPO "/rows.jsonl --eval " PPO "/rows.jsonl --steps 1 --out none");
    cli_fails(
        f, 1, "'reward' is missing",
        "echo '{\"prompt_ids\": [5], \"completion_ids\": [9]}' >$D/data && $R $D/p --data $D/data --out "
        "none --steps 1");
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
        cmocka_unit_test_setup_teardown(test_resume, cli_setup, io_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
