/* Gradients over pairs without a reference against transformers and TRL's ORPO and CPO trainers in float64
 * (tests/data/pairs, tests/golden/make_pairs.py), however the step is cut, and what TRL reports of it. */
#include "tests/cli/cli_testing.h"

#define PAIRS "tests/data/pairs"

static const struct {
    const char *name, *numbers;
} objectives[] = {
    {"orpo", "--beta 0.3"},
    {"simpo", "--beta 1.5 --simpo-gamma 0.8 --cpo-alpha 0.4 --label-smoothing 0.1"},
};

static void test_gradients(void **state) {
    io_fixture *f = *state;
    static const cli_cut cuts[] = {
        {"--dtype fp64 --seq-len 200", SBP_TOLERANCE_F64},
        {"--dtype fp64 --seq-len 32 --chunk 3 --head-chunk 2 --segment 2 --save attn_out", SBP_TOLERANCE_F64},
        {"--dtype fp64 --seq-len 40 --chunk 7 --checkpoint-every 2 --head-rows counted", SBP_TOLERANCE_F64},
        {"--dtype fp32 --seq-len 36 --chunk 5", SBP_TOLERANCE_F32},
    };
    for (int o = 0; o < SBP_COUNT(objectives); o++)
        for (int i = 0; i < SBP_COUNT(cuts); i++)
            cli_check_cut(f, sbp_arena_printf(f->arena, "%s %s", objectives[o].name, cuts[i].compile),
                          &cuts[i],
                          sbp_arena_printf(f->arena, "$C compile $G/llama_mqa/model --objective %s %s",
                                           objectives[o].name, objectives[o].numbers),
                          sbp_arena_printf(f->arena, "--data " PAIRS "/rows.jsonl %s", objectives[o].numbers),
                          sbp_arena_printf(f->arena, PAIRS "/%s.safetensors", objectives[o].name));
}

static void test_metrics(void **state) {
    io_fixture *f = *state;
    for (int o = 0; o < SBP_COUNT(objectives); o++) {
        const sbp_json *want;
        int count;
        assert_ok(f,
                  sbp_json_read(f->arena, f->diag,
                                sbp_arena_printf(f->arena, PAIRS "/%s.json", objectives[o].name), 0, &want));
        cli_ok(f,
               sbp_arena_printf(f->arena,
                                "$C compile $G/llama_mqa/model -o $D/p --dtype fp64 --seq-len 40 --objective "
                                "%s %s && $R $D/p --data " PAIRS "/rows.jsonl --out $D/run "
                                "--steps 1 --overwrite",
                                objectives[o].name, objectives[o].numbers));
        const sbp_json **lines = cli_lines(f, "run/metrics.jsonl", &count);
        for (int64_t i = 0; i < want->count; i++) {
            double got = cli_number(f, lines[0], want->items[i].key),
                   expected = cli_number(f, want, want->items[i].key);
            if (!(fabs(got - expected) <= SBP_TOLERANCE_F64 * fmax(1, fabs(expected))))
                fail_msg("%s: %s is %.17g, expected %.17g", objectives[o].name, want->items[i].key, got,
                         expected);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_gradients, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_metrics, cli_setup, io_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
