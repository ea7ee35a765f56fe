/* Unpaired preferences against TRL's KTOTrainer in float64 (tests/data/kto, tests/golden/make_kto.py):
 * gradients however the step is cut; steps whose statistic is of weights that have moved, and of those that
 * they began with; runs that are interrupted, streams, adapters. */
#include "tests/cli/cli_testing.h"

#define KTO "tests/data/kto"
#define NUMBERS " --beta 0.7 --desirable-weight 1.25 --undesirable-weight 0.75 "
#define COMPILE "$C compile $G/llama_mqa/model -o $D/p --objective kto --clip none" NUMBERS

/* What our line says under the names of TRL's; what TRL leaves out, means over no rows, is null. */
static void compare_metrics(io_fixture *f, const sbp_json *got, const char *prefix, const sbp_json *want) {
    static const char *const names[] = {"loss",           "kl",
                                        "entropy",        "rewards/chosen",
                                        "logps/chosen",   "rewards/margins",
                                        "logps/rejected", "rewards/rejected"};
    for (int i = 0; i < SBP_COUNT(names); i++) {
        const sbp_json *there = sbp_json_member(want, names[i]);
        const char *name = sbp_arena_printf(f->arena, "%s%s", prefix, names[i]);
        const sbp_json *said = sbp_json_member(got, name);
        assert_non_null(said);
        if (!there) {
            assert_int_equal(said->kind, SBP_JSON_NULL);
            continue;
        }
        double x = cli_number(f, got, name), y = cli_number(f, want, names[i]);
        if (!(fabs(x - y) <= SBP_TOLERANCE_F64 * fmax(1, fabs(y))))
            fail_msg("%s is %.17g, expected %.17g", name, x, y);
    }
}

static void test_gradients(void **state) {
    io_fixture *f = *state;
    static const cli_cut cuts[] = {
        {"--dtype fp64 --seq-len 64", SBP_TOLERANCE_F64},
        {"--dtype fp64 --seq-len 16 --chunk 2 --head-chunk 3 --segment 2", SBP_TOLERANCE_F64},
        {"--dtype fp64 --seq-len 20 --chunk 5 --head-chunk 1 --checkpoint-every 2 --backward checkpoint",
         SBP_TOLERANCE_F64},
        {"--dtype fp64 --seq-len 20 --chunk 3 --save attn_out --head-rows counted --offload host",
         SBP_TOLERANCE_F64},
        {"--dtype fp32 --seq-len 18 --chunk 3", SBP_TOLERANCE_F32},
    };
    for (int i = 0; i < SBP_COUNT(cuts); i++)
        cli_check_cut(f, cuts[i].compile, &cuts[i], COMPILE,
                      sbp_arena_printf(f->arena, "--data " KTO "/rows.jsonl --batch-size 6 --shuffle %s",
                                       i % 2 ? "on" : "off"),
                      KTO "/gradients.safetensors");
}

#define STEPS                                                                                                \
    "$R $D/p --data " KTO                                                                                    \
    "/steps.jsonl --batch-size 4 --shuffle off --lr 2 --schedule constant --save-every 2 "

static void test_steps(void **state) {
    io_fixture *f = *state;
    static const char *const cuts[] = {"--seq-len 64", "--seq-len 16 --chunk 4 --offload host",
                                       "--seq-len 17 --offload states:disk+params:disk"};
    const sbp_json *steps, *whole;
    assert_ok(f, sbp_json_read(f->arena, f->diag, KTO "/steps.json", 0, &steps));
    assert_ok(f, sbp_json_read(f->arena, f->diag, KTO "/eval.json", 0, &whole));
    for (int i = 0; i < SBP_COUNT(cuts); i++) {
        cli_ok(f, sbp_arena_printf(f->arena,
                                   COMPILE "--dtype fp64 --optimizer sgd %s && " STEPS
                                           "--epochs 2 --out $D/run --overwrite --eval " KTO "/steps.jsonl",
                                   cuts[i]));
        cli_compare(f, cuts[i], io_path(f, "run/model.safetensors"), KTO "/weights.safetensors",
                    SBP_TOLERANCE_F64);
        int count;
        const sbp_json **lines = cli_lines(f, "run/metrics.jsonl", &count);
        assert_int_equal(count, steps->count + 2);
        for (int64_t s = 0; s < steps->count; s++)
            compare_metrics(f, lines[s + 1], "", &steps->items[s]);
        compare_metrics(f, lines[count - 1], "eval_", whole);
    }
    /* where rows say what the initial weights do, only what they do not say is computed */
    cli_ok(f, "$R $D/p --data " KTO "/steps.jsonl --score $D/scores && " STEPS
              "--epochs 2 --out $D/given --ref $D/scores");
    assert_non_null(strstr(cli_text(f, "err"), "these are of the initial weights"));
    cli_same(f, "run/model.safetensors", "given/model.safetensors");
    /* from a checkpoint, with what was kept of the reference and without: the same bits */
    for (int gone = 0; gone < 2; gone++) {
        cli_ok(f, STEPS "--steps 3 --out $D/parts --overwrite");
        if (gone)
            cli_ok(f, "rm $D/parts/ref_logps.safetensors");
        cli_ok(f, "$R $D/p --resume --out $D/parts --steps 6");
        cli_same(f, "run/model.safetensors", "parts/model.safetensors");
    }
    /* step by step from a stream */
    cli_ok(f, "end='{\"end_of_step\": true}'; d=" KTO "/steps.jsonl; once() { head -4 $d; echo $end; "
              "sed -n 5,8p $d; echo $end; tail -2 $d; echo $end; }; (once; once) | $R $D/p --data - --lr 2 "
              "--schedule constant --out $D/stream");
    cli_same(f, "run/model.safetensors", "stream/model.safetensors");
}

/* Twenty steps of the whole trainer on text, in fp32 (make_kto_curve.py). */
static void test_curve(void **state) {
    io_fixture *f = *state;
    const sbp_json *steps;
    int count;
    double worst = 0;
    assert_ok(f, sbp_json_read(f->arena, f->diag, KTO "/curve.json", 0, &steps));
    cli_ok(f, "$R $S --objective kto --seq-len 800 --data " KTO "/curve.jsonl --batch-size 4 --shuffle off "
              "--steps 20 --lr 2e-4 --schedule constant --eos-token '</s>' --out $D/run");
    const sbp_json **lines = cli_lines(f, "run/metrics.jsonl", &count);
    assert_int_equal(count, steps->count);
    for (int s = 0; s < count; s++)
        for (int64_t i = 0; i < steps->items[s].count; i++) {
            const char *name = steps->items[s].items[i].key;
            double want = cli_number(f, &steps->items[s], name), got = cli_number(f, lines[s], name);
            double off = fabs(got - want) / fmax(1, fabs(want));
            if (!(off <= SBP_TOLERANCE_CURVE))
                fail_msg("step %d: %s is %.9g, TRL's %.9g", s + 1, name, got, want);
            worst = fmax(worst, off);
        }
    print_message("off by %.2g\n", worst);
}

/* The reference is the base below a new adapter, and the adapter as it came where a run goes on with one. */
static void test_adapter(void **state) {
    io_fixture *f = *state;
    int count;
    cli_ok(f, COMPILE "--dtype fp64 --seq-len 64 --lora r=4,targets=all-linear && " STEPS
                      "--steps 4 --lr 0.05 --out $D/run");
    cli_ok(f, STEPS "--steps 2 --lr 0.05 --out $D/parts && $R $D/p --resume --out $D/parts --steps 4");
    cli_same(f, "run/adapter_model.safetensors", "parts/adapter_model.safetensors");
    const sbp_json **lines = cli_lines(f, "run/metrics.jsonl", &count);
    assert_true(cli_number(f, lines[0], "kl") == 0 && cli_number(f, lines[0], "rewards/chosen") == 0);
    assert_true(fabs(cli_number(f, lines[3], "rewards/chosen")) > 0.01);
    cli_ok(f, "$C compile $D/run -o $D/p --objective kto --dtype fp64 --seq-len 64 && " STEPS
              "--steps 1 --out $D/more");
    lines = cli_lines(f, "more/metrics.jsonl", &count);
    assert_true(cli_number(f, lines[0], "kl") == 0 && cli_number(f, lines[0], "rewards/chosen") == 0);
}

static void test_refusals(void **state) {
    io_fixture *f = *state;
    static const struct {
        int status;
        const char *message, *row, *options;
    } cases[] = {
        {1, "'label' is missing", "", ""},
        {1, "'label' is missing", ", \"label\": 0.5", ""},
        {2, "--batch-size 1: the plan's objective compares with the answer of another row",
         ", \"label\": true", "--batch-size 1"},
        {2, "give --shuffle off", ", \"label\": true, \"ref_logps\": -1, \"ref_KL_logps\": -1",
         "--batch-size 2"},
    };
    cli_ok(f, COMPILE "--seq-len 20");
    for (int i = 0; i < SBP_COUNT(cases); i++)
        cli_fails(f, cases[i].status, cases[i].message,
                  sbp_arena_printf(f->arena,
                                   "for i in 5 6 7; do echo '{\"prompt_ids\": ['$i'], \"completion_ids\": "
                                   "[9]%s}'; done >$D/data && $R $D/p --data $D/data --out none --steps 1 %s",
                                   cases[i].row, cases[i].options));
    cli_ok(f, "sed -i 's/, ..ref_KL_logps.*/}/' $D/data");
    cli_ok(f, "$C compile $G/llama_mqa/model -o $D/p --objective kto --loss-type apo_zero_unpaired --seq-len "
              "20 && $R $D/p --data $D/data --out none --steps 1 --batch-size 1");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_gradients, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_steps, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_curve, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_adapter, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_refusals, cli_setup, io_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
