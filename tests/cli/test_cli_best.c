/* --best: the best model of a run's evaluations, when to stop, and what is left of both by a kill. The rules
 * themselves: tests/unit/test_best.c. */
#include "tests/cli/ranks_testing.h"

#define DATA "tests/data/best/train.jsonl"
#define EVAL "tests/data/best/eval.jsonl"
#define COMPILE "$C compile $S -q -o $D/p --seq-len 512; "
#define RUN_OF(plan)                                                                                         \
    "$R " plan " -q --data " DATA " --eval " EVAL " --lr 0.003 --batch-size 4 --schedule constant "          \
    "--shuffle off --steps 30 "
#define RUN RUN_OF("$D/p")
#define BEST RUN "--eval-every 2 --save-every 5 --best patience=3 "
#define AT "env LD_PRELOAD=" SBP_SIGNAL_AT " "

static const char *checkpoints(io_fixture *f, const char *out) {
    cli_ok(f, sbp_arena_printf(f->arena, "cd $D/%s; echo $(ls -d checkpoint-* | sort -V)", out));
    return cli_unfolded(f, "out");
}

/* The best and the last evaluation as metrics.jsonl has them, and what a model of it gives. */
static void check_summary(io_fixture *f, const char *json, const char *metrics, double stop) {
    int count;
    double best = INFINITY, step = 0, last = NAN;
    const sbp_json *summary = cli_json(f, json), **lines = cli_lines(f, metrics, &count);
    for (int i = 0; i < count; i++)
        if (sbp_json_member(lines[i], "eval_file") && cli_number(f, lines[i], "step") > 0) {
            last = cli_number(f, lines[i], "eval_loss");
            step = last < best ? cli_number(f, lines[i], "step") : step;
            best = fmin(best, last);
        }
    assert_true(cli_number(f, summary, "best_metric") == best);
    assert_true(cli_number(f, summary, "best_step") == step);
    assert_true(cli_number(f, summary, "model_step") == step);
    assert_true(cli_number(f, summary, "eval_loss") == last);
    assert_true(cli_number(f, summary, "steps") == stop);
    assert_true(sbp_json_member(summary, "stopped_early")->boolean);
}

static void test_the_best_is_written(void **state) {
    io_fixture *f = *state;
    cli_ok(f, COMPILE BEST "--out $D/o --json; cp $D/out $D/whole.json");
    check_summary(f, "whole.json", "o/metrics.jsonl", 10);
    assert_string_equal(checkpoints(f, "o"), "checkpoint-4 checkpoint-10 ");
    cli_ok(f, RUN "--out $D/four --steps 4 --best off; $R $D/o --eval " EVAL " --json");
    cli_same(f, "o/model.safetensors", "four/model.safetensors");
    assert_true(cli_number(f, cli_json(f, "out"), "eval_loss") ==
                cli_number(f, cli_json(f, "whole.json"), "best_metric"));
    cli_ok(f, "grep -q '^| model of step | 4, the best: ' $D/o/README.md; grep -q 'overfitting from step 4 "
              "on' $D/o/report.html; grep -q ', the best</title>' $D/o/report.html");
    /* a run that is over stays as it is; with more patience it goes on */
    cli_ok(f, "cp -r $D/o $D/again; $R $D/p --out $D/again --resume");
    assert_non_null(strstr(cli_unfolded(f, "err"),
                           "stopped early after 10 of 30 steps: eval_loss has not got "
                           "better in 3 evaluations"));
    const sbp_json *whole = cli_json(f, "whole.json");
    assert_non_null(
        strstr(cli_unfolded(f, "err"),
               sbp_arena_printf(f->arena,
                                " before training, %.4f at best, after step 4, %.4f at the end: "
                                "overfitting from step 4 on, while the loss of training went on to "
                                "fall; the model is that of step 4",
                                cli_number(f, whole, "best_metric"), cli_number(f, whole, "eval_loss"))));
    cli_same(f, "o/model.safetensors", "again/model.safetensors");
    cli_same(f, "o/metrics.jsonl", "again/metrics.jsonl");
    cli_ok(f, "$R $D/p --out $D/again --resume --best patience=4 -q --json");
    check_summary(f, "out", "again/metrics.jsonl", 12);
    assert_string_equal(checkpoints(f, "again"), "checkpoint-4 checkpoint-12 ");
}

/* A run of transformers' Trainer (tests/data/best/trainer.py): the same evaluations, end, best and
 * checkpoints. Its norms and rotations round to fp32. */
static void test_as_the_trainer_of_transformers(void **state) {
    io_fixture *f = *state;
    const sbp_json *want = NULL, **lines, *left;
    int count, evals = 0;
    assert_ok(f, sbp_json_read(f->arena, f->diag, "tests/data/best/trainer.json", 0, &want));
    cli_ok(f, RUN_OF("$S") "--dtype fp64 --eval-every 2 --save-every 2 --out $D/o --json "
                           "--load_best_model_at_end true --early_stopping_patience 3");
    const sbp_json *summary = cli_json(f, "out"), *expected = sbp_json_member(want, "evaluations");
    assert_true(cli_number(f, summary, "steps") == cli_number(f, want, "steps"));
    assert_true(cli_number(f, summary, "best_step") == cli_number(f, want, "best_step"));
    lines = cli_lines(f, "o/metrics.jsonl", &count);
    for (int i = 0; i < count; i++)
        if (sbp_json_member(lines[i], "eval_file")) {
            const sbp_json *pair = expected->items[evals++].items;
            assert_true(cli_number(f, lines[i], "step") == (double)pair[0].integer);
            if (fabs(cli_number(f, lines[i], "eval_loss") / pair[1].real - 1) > SBP_TOLERANCE_F32)
                fail_msg("step %lld: %.9g, expected %.9g", (long long)pair[0].integer,
                         cli_number(f, lines[i], "eval_loss"), pair[1].real);
        }
    assert_int_equal(evals, expected->count);
    left = sbp_json_member(want, "checkpoints");
    assert_string_equal(checkpoints(f, "o"), sbp_arena_printf(f->arena, "checkpoint-%lld checkpoint-%lld ",
                                                              (long long)left->items[0].integer,
                                                              (long long)left->items[1].integer));
    cli_ok(f, "$R $D/o --eval " EVAL " --dtype fp64 --json -q");
    assert_true(
        fabs(cli_number(f, cli_json(f, "out"), "eval_loss") / cli_number(f, want, "loss_of_the_model") - 1) <
        SBP_TOLERANCE_F32);
}

/* Two ranks, each with a share of the weights, killed on the way. */
static void test_ranks(void **state) {
    io_fixture *f = *state;
    if (!cli_has_ranks(f, "--best of ranks"))
        return;
    cli_ok(f, "$C compile $S -q -o $D/p --seq-len 512 --threads 1 --ranks 2 --zero 3");
    assert_int_equal(cli(f, AT "SBP_AT=KILL@fflush:13:metrics.jsonl " BEST "--ranks 2 --out $D/o"),
                     3); /* one has died */
    cli_ok(f, BEST "--ranks 2 --out $D/o --resume --json");
    check_summary(f, "out", "o/metrics.jsonl", 10);
    assert_string_equal(checkpoints(f, "o"), "checkpoint-4 checkpoint-10 ");
    cli_ok(f, RUN "--ranks 2 --out $D/four --steps 4");
    cli_same(f, "o/model.safetensors", "four/model.safetensors");
}

/* Stopped when line `at` of metrics.jsonl was written, before what follows from it. */
static void test_killed_and_resumed(void **state) {
    io_fixture *f = *state;
    cli_ok(f, COMPILE BEST "--out $D/whole");
    for (int at = 7; at <= 16; at += 3) { /* lines of evaluations: 4, 6, 8 and 10 steps */
        const char *signal = at % 2 == 0 ? "TERM" : "KILL";
        cli_ok(f, "rm -rf $D/o");
        int status =
            cli(f, sbp_arena_printf(f->arena, AT "SBP_AT=%s@fflush:%d:metrics.jsonl " BEST "--out $D/o",
                                    signal, at));
        assert_int_equal(status, at % 2 == 0 ? 143 : 137);
        cli_ok(f, BEST "--out $D/o --resume --json");
        check_summary(f, "out", "o/metrics.jsonl", 10);
        cli_same(f, "whole/model.safetensors", "o/model.safetensors");
        cli_same(f, "whole/checkpoint-10/optimizer.safetensors", "o/checkpoint-10/optimizer.safetensors");
        cli_same(f, "whole/checkpoint-10/trainer_state.json", "o/checkpoint-10/trainer_state.json");
        assert_string_equal(checkpoints(f, "o"), "checkpoint-4 checkpoint-10 ");
    }
}

/* What keeps weights elsewhere: adapters, states on disk; one checkpoint; evaluations only at the end. */
static void test_ways_of_keeping(void **state) {
    io_fixture *f = *state;
    cli_ok(f,
           COMPILE RUN_OF("$S") "--eval-every 2 --best patience=3 --lora r=4 --lr 0.2 --offload states:disk "
                                "--keep 1 --out $D/l --json");
    double step = cli_number(f, cli_json(f, "out"), "best_step");
    assert_true(step > 0 && step < cli_number(f, cli_json(f, "out"), "steps"));
    assert_string_equal(checkpoints(f, "l"), sbp_arena_printf(f->arena, "checkpoint-%.0f ", step));
    cli_ok(f, sbp_arena_printf(f->arena, RUN_OF("$S") "--lora r=4 --lr 0.2 --out $D/m --steps %.0f", step));
    cli_same(f, "l/adapter_model.safetensors", "m/adapter_model.safetensors");
    cli_ok(f, RUN "--save-strategy best --eval-strategy epoch --best --steps 3 --out $D/last --json");
    assert_true(cli_number(f, cli_json(f, "out"), "best_step") == 3); /* in the middle of the second epoch */
    assert_string_equal(checkpoints(f, "last"), "checkpoint-2 checkpoint-3 ");
    cli_ok(f, RUN "--save-strategy best --eval-every 50 --best --steps 3 --out $D/once");
    assert_string_equal(checkpoints(f, "once"), "checkpoint-3 ");
    cli_same(f, "last/model.safetensors", "once/model.safetensors");
    cli_ok(f, RUN "--eval-every 2 --save-every never --best off,patience=3 --out $D/off --json");
    assert_true(cli_number(f, cli_json(f, "out"), "model_step") == 10); /* the last, and no checkpoint */
    cli_ok(f, "! ls -d $D/off/checkpoint-*");
}

/* The last sentence of runs that went otherwise, and kinds of weights that are loaded at the end. */
static void test_verdicts_and_formats(void **state) {
    io_fixture *f = *state;
    static const char *const verdicts[][2] = {
        {"--lr 0", "4.3353 at the end: never better than before training: these rows gained nothing"},
        {"--lr 1e-3", " at the end, the best: it went well, to the end"},
        {"--lr 0.05 --schedule cosine --warmup 10 --steps 12",
         ": worse from step 2 on, as is the loss of training: a smaller --lr may help"}};
    static const char *const formats[] = {
        "--dtype bf16 --master none --state-dtype int8 --offload params:disk",
        "--base-dtype nf4 --lora r=4 --lr 0.2 --merge"};
    cli_ok(f, COMPILE);
    for (int i = 0; i < SBP_COUNT(verdicts); i++) {
        cli_ok(f, sbp_arena_printf(f->arena,
                                   "$R $D/p --data " DATA " --eval " EVAL
                                   " --batch-size 4 --shuffle off --steps "
                                   "4 --eval-every 1 --out none %s",
                                   verdicts[i][0]));
        if (!strstr(cli_unfolded(f, "err"), verdicts[i][1]))
            fail_msg("%s: %s", verdicts[i][0], cli_text(f, "err"));
    }
    for (int i = 0; i < SBP_COUNT(formats); i++) {
        cli_ok(f, sbp_arena_printf(f->arena,
                                   RUN_OF("$S") "--eval-every 2 --best patience=2 %s --out $D/b%d --json",
                                   formats[i], i));
        double step = cli_number(f, cli_json(f, "out"), "best_step");
        assert_true(step < cli_number(f, cli_json(f, "out"), "steps"));
        cli_ok(f,
               sbp_arena_printf(f->arena, RUN_OF("$S") "%s --out $D/s%d --steps %.0f", formats[i], i, step));
        cli_same(f, sbp_arena_printf(f->arena, "b%d/model.safetensors", i),
                 sbp_arena_printf(f->arena, "s%d/model.safetensors", i));
    }
}

/* Metrics by their names: greater is better unless it is a loss; of several files. */
static void test_metrics(void **state) {
    io_fixture *f = *state;
    cli_ok(f, COMPILE "cp " DATA " $D/other.jsonl");
    cli_ok(f, RUN
           "--eval $D/other.jsonl --eval-every 2 --steps 8 --out $D/o --json --best metric=eval_other_loss");
    assert_true(cli_number(f, cli_json(f, "out"), "best_step") == 8); /* rows that it is trained on */
    cli_ok(
        f,
        "test $(grep -c '\"eval_loss\": \\([0-9.]*\\),.*\"eval_other_loss\": \\1,' $D/o/metrics.jsonl) = 5");
    cli_ok(f, RUN "--eval-every 2 --steps 8 --out $D/m --json --load_best_model_at_end true "
                  "--metric_for_best_model mean_token_accuracy");
    int count;
    const sbp_json *summary = cli_json(f, "out"), **lines = cli_lines(f, "m/metrics.jsonl", &count);
    double most = 0;
    for (int i = 1; i < count; i++)
        if (sbp_json_member(lines[i], "eval_file"))
            most = fmax(most, cli_number(f, lines[i], "eval_mean_token_accuracy"));
    assert_true(cli_number(f, summary, "best_metric") == most);
    cli_ok(f, RUN "--eval-every 2 --steps 8 --out $D/q --json --best metric=mean_token_accuracy "
                  "--greater_is_better false");
    assert_true(cli_number(f, cli_json(f, "out"), "best_metric") < most);
}

static void test_refusals(void **state) {
    io_fixture *f = *state;
    static const struct {
        const char *said, *args;
    } wrong[] = {
        {"there is nothing to evaluate: give --eval FILE", "--best --eval-every 2 --out $D/o"},
        {"give --eval-every N or --eval-strategy epoch", "--best --eval " EVAL " --out $D/o"},
        {"keeps the best checkpoint in --out, which is none",
         "--best --eval " EVAL " --eval-every 2 --out none"},
        {"there is no such number; evaluations have eval_loss, eval_entropy",
         "--best metric=accuracy --eval " EVAL " --eval-every 2 --out $D/o"},
        {"several files have this name",
         "--best metric=eval_eval_loss --eval " EVAL " --eval $D/x/eval.jsonl --eval-every 2 --out $D/o"},
        {"'tolerance' is unknown", "--best tolerance=1 --eval " EVAL " --eval-every 2 --out $D/o"},
    };
    cli_ok(f, COMPILE "mkdir $D/x; cp " EVAL " $D/x/");
    for (int i = 0; i < SBP_COUNT(wrong); i++) {
        assert_int_equal(
            cli(f, sbp_arena_printf(f->arena, "$R $D/p --data " DATA " --steps 4 %s", wrong[i].args)), 2);
        if (!strstr(cli_unfolded(f, "err"), wrong[i].said))
            fail_msg("%s: %s", wrong[i].args, cli_text(f, "err"));
        assert_false(cli_exists(f, "o/checkpoint-4"));
    }
}

/* The directory of the best is gone, or what is compared is another thing. */
static void test_the_best_is_forgotten(void **state) {
    io_fixture *f = *state;
    cli_ok(f, COMPILE BEST "--steps 8 --out $D/o; cp -r $D/o $D/p2; rm -r $D/o/checkpoint-4");
    cli_ok(f, "$R $D/p --out $D/o --resume --steps 10 --json");
    assert_non_null(strstr(cli_unfolded(f, "err"), "after step 4, has no checkpoint: the best is that "
                                                   "of the evaluations from here on"));
    assert_true(cli_number(f, cli_json(f, "out"), "best_step") == 10);
    cli_ok(f, "$R $D/p --out $D/p2 --resume --steps 10 --json --best metric=entropy");
    assert_non_null(strstr(cli_unfolded(f, "err"), "what is compared is not what it was before step 8"));
    assert_true(cli_number(f, cli_json(f, "out"), "best_step") == 10);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_the_best_is_written, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_as_the_trainer_of_transformers, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_ranks, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_killed_and_resumed, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_ways_of_keeping, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_verdicts_and_formats, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_metrics, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_refusals, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_the_best_is_forgotten, cli_setup, io_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
