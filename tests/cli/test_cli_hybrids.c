/* Gradients of models that carry states, of objectives over pairs, rollouts and values, against transformers
 * and the losses of TRL's trainers in float64 (tests/data/hybrids, tests/golden/make_hybrids.py), however the
 * step is cut, and the losses. */
#include "tests/cli/cli_testing.h"

#define HYBRIDS "tests/data/hybrids"

static const struct {
    const char *name, *numbers, *run; /* run: what only sbprun knows */
} objectives[] = {
    {"dpo", "--beta 0.3", ""},
    {"grpo", "--beta 0.05 --epsilon 0.2 --epsilon-high 0.28", ""},
    {"ppo", "", "--batch-size 4"},
};

static const char *const families[] = {"qwen3_5", "lfm2"};

/* The longest pair has 160 tokens, or nearly. */
static const cli_cut cuts[] = {
    {"--dtype fp64 --seq-len 300", SBP_TOLERANCE_F64},
    {"--dtype fp64 --seq-len 160 --chunk 2 --head-chunk 3 --segment 2 --head-rows counted",
     SBP_TOLERANCE_F64},
    {"--dtype fp64 --seq-len 160 --chunk 67 --checkpoint-every 2 --save none", SBP_TOLERANCE_F64},
    {"--dtype fp64 --seq-len 200 --chunk 64 --save attn_out+gate+recurrent_states --offload host",
     SBP_TOLERANCE_F64},
    {"--dtype fp64 --seq-len 160 --backward standard", SBP_TOLERANCE_F64},
    {"--dtype fp32 --seq-len 160 --chunk 7", SBP_TOLERANCE_F32},
};

static void test_gradients(void **state) {
    io_fixture *f = *state;
    for (int m = 0; m < SBP_COUNT(families); m++)
        for (int o = 0; o < SBP_COUNT(objectives); o++) {
            const char *name = objectives[o].name, *numbers = objectives[o].numbers;
            const char *compile = sbp_arena_printf(
                f->arena, "$C compile " HYBRIDS "/%s/model --objective %s %s", families[m], name, numbers);
            const char *run = sbp_arena_printf(f->arena, "--data " HYBRIDS "/%s/%s.jsonl %s %s", families[m],
                                               name, numbers, objectives[o].run);
            const char *want = sbp_arena_printf(f->arena, HYBRIDS "/%s/%s.safetensors", families[m], name);
            for (int i = 0; i < SBP_COUNT(cuts); i++)
                cli_check_cut(f, sbp_arena_printf(f->arena, "%s %s %s", families[m], name, cuts[i].compile),
                              &cuts[i], compile, run, want);
        }
}

static void test_losses(void **state) {
    io_fixture *f = *state;
    for (int m = 0; m < SBP_COUNT(families); m++) {
        const sbp_json *losses;
        assert_ok(f, sbp_json_read(f->arena, f->diag,
                                   sbp_arena_printf(f->arena, HYBRIDS "/%s/loss.json", families[m]), 0,
                                   &losses));
        for (int o = 0; o < SBP_COUNT(objectives); o++) {
            int count;
            cli_ok(f, sbp_arena_printf(f->arena,
                                       "$C compile " HYBRIDS "/%s/model -o $D/p --dtype fp64 --seq-len 160 "
                                       "--chunk 9 --objective %s %s && $R $D/p --data " HYBRIDS
                                       "/%s/%s.jsonl %s --batch-size 4 --steps 1 --out $D/run --overwrite",
                                       families[m], objectives[o].name, objectives[o].numbers, families[m],
                                       objectives[o].name, objectives[o].numbers));
            const sbp_json **lines = cli_lines(f, "run/metrics.jsonl", &count);
            double got = cli_number(f, lines[0], "loss"), want = cli_number(f, losses, objectives[o].name);
            if (!(fabs(got - want) <= SBP_TOLERANCE_F64 * fmax(1, fabs(want))))
                fail_msg("%s %s: loss %.17g, expected %.17g", families[m], objectives[o].name, got, want);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_gradients, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_losses, cli_setup, io_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
