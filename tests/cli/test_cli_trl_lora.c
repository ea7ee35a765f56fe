/* Twenty steps of adapters as TRL's trainers took them over peft (tests/golden/make_trl_lora.py): SFT; DPO of
 * a new adapter, whose reference is the model without it; DPO of an adapter that goes on, whose reference is
 * that adapter as it was. */
#include "tests/cli/cli_testing.h"

#define GOLDEN "tests/golden/stories260k_trl_lora"
#define STEPS " --steps 20 --batch-size 4 --lr 1e-3 --schedule constant --shuffle off --save-every never "
#define TEXT(...) sbp_arena_printf(f->arena, __VA_ARGS__)

/* Each value that TRL logged, relative to 1 where it is larger. */
static void compare_steps(io_fixture *f, const char *run, const char *which, double tolerance) {
    const sbp_json *root, *want;
    int count, compared = 0;
    double worst = 0;
    assert_ok(f, sbp_json_read(f->arena, f->diag, GOLDEN "/trl.json", 0, &root));
    assert_ok(f, sbp_json_get_array(f->diag, root, which, SBP_JSON_REQUIRED, &want));
    const sbp_json **got = cli_lines(f, TEXT("%s/metrics.jsonl", run), &count);
    assert_int_equal(count, want->count);
    for (int i = 0; i < count; i++) {
        const sbp_json *step = &want->items[i];
        for (int64_t k = 0; k < step->count; k++) {
            const char *key = step->items[k].key;
            double b = cli_number(f, step, key), a = cli_number(f, got[i], key), size = fmax(1, fabs(b));
            /* where all margins are 0 but for rounding, it decides which are above */
            if (strcmp(key, "rewards/accuracies") == 0 &&
                fabs(cli_number(f, step, "rewards/margins")) < SBP_TOLERANCE_CURVE)
                continue;
            if (!(fabs(a - b) <= tolerance * size))
                fail_msg("%s: %s at step %d: %.9g, TRL has %.9g", which, key, i + 1, a, b);
            worst = fmax(worst, fabs(a - b) / size);
            compared++;
        }
    }
    assert_true(compared >= 40);
    print_message("%s: %d values within %.1e of TRL's\n", which, compared, worst);
}

static void train(io_fixture *f, const char *plan, const char *out, const char *more) {
    cli_ok(f, TEXT("$R $D/%s --data " GOLDEN "/pairs.jsonl" STEPS "--out $D/%s %s", plan, out, more));
}

static void test_sft(void **state) {
    io_fixture *f = *state;
    cli_ok(f, "$C compile " GOLDEN "/begun -o $D/p --seq-len 933");
    cli_ok(f, "$R $D/p --data $G/stories260k_trl/train.jsonl" STEPS "--out $D/o");
    compare_steps(f, "o", "sft", SBP_TOLERANCE_F32);
}

static void test_dpo(void **state) {
    static const struct { const char *adapter, *which; } cases[] = {{"zero", "new"}, {"begun", "more"}};
    io_fixture *f = *state;
    for (int i = 0; i < SBP_COUNT(cases); i++) {
        cli_ok(f, TEXT("$C compile " GOLDEN "/%s -o $D/p --seq-len 512 --objective dpo", cases[i].adapter));
        train(f, "p", "o", "--overwrite");
        compare_steps(f, "o", cases[i].which, SBP_TOLERANCE_CURVE);
        /* chunks and micro-batches are settings */
        cli_ok(f, TEXT("$C compile " GOLDEN
                       "/%s -o $D/p --seq-len 180 --objective dpo --chunk 19 --head-chunk 30 "
                       "--segment 2",
                       cases[i].adapter));
        train(f, "p", "o", "--overwrite");
        compare_steps(f, "o", cases[i].which, SBP_TOLERANCE_CURVE);
    }
}

/* The reference counts: with the model without adapter in its place, which --ref gives, rewards are others.
 */
static void test_another_reference(void **state) {
    io_fixture *f = *state;
    int count, count_other;
    cli_ok(f, "$C compile " GOLDEN "/begun -o $D/p --seq-len 512 --objective dpo");
    cli_ok(f, "$R $D/p --data " GOLDEN "/pairs.jsonl --adapter 0 --score $D/base");
    cli_ok(f, "$R $D/p --data " GOLDEN "/pairs.jsonl --score $D/begun");
    train(f, "p", "base-run", "--ref $D/base");
    train(f, "p", "begun-run", "--ref $D/begun");
    compare_steps(f, "begun-run", "more", SBP_TOLERANCE_CURVE);
    const sbp_json **a = cli_lines(f, "base-run/metrics.jsonl", &count),
                   **b = cli_lines(f, "begun-run/metrics.jsonl", &count_other);
    assert_true(count == 20 && count_other == 20);
    assert_true(fabs(cli_number(f, a[0], "rewards/chosen") - cli_number(f, b[0], "rewards/chosen")) > 0.1);
}

/* --lora: what its reference says is what the model without adapter says. */
static void test_a_new_adapter(void **state) {
    io_fixture *f = *state;
    cli_ok(f, "$C compile $S -o $D/p --seq-len 512 --objective dpo "
              "--lora r=2,alpha=4,targets=q_proj,modules_to_save=gate_proj");
    cli_ok(f, "$C compile $S -o $D/q --seq-len 512 --objective dpo");
    cli_ok(f, "$R $D/q --data " GOLDEN "/pairs.jsonl --score $D/base");
    train(f, "p", "own", "");
    train(f, "p", "given", "--ref $D/base");
    int count, count_other;
    const sbp_json **a = cli_lines(f, "own/metrics.jsonl", &count),
                   **b = cli_lines(f, "given/metrics.jsonl", &count_other);
    assert_true(count == 20 && count_other == 20);
    for (int i = 0; i < count; i++)
        assert_true(fabs(cli_number(f, a[i], "loss") - cli_number(f, b[i], "loss")) < SBP_TOLERANCE_CURVE);
    assert_true(cli_number(f, a[19], "loss") != cli_number(f, a[0], "loss"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_sft, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_dpo, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_another_reference, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_a_new_adapter, cli_setup, io_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
