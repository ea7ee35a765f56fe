/* Stopping a run and going on with it: the same bits as in one go, and the same run or a refusal. */
#include "tests/cli/cli_testing.h"

#define COMPILE "$C compile $S -o $D/p --seq-len 933"
#define TRAIN                                                                                                \
    "$R $D/p --data $G/stories260k_trl/train.jsonl --batch-size 8 --lr 0.001 --shuffle off --steps 20"
#define LONG "$R $D/p --data $G/stories260k_trl/train.jsonl --lr 0.001 --epochs 2.4 --batch-tokens 700"
#define AT "env LD_PRELOAD=" SBP_SIGNAL_AT " "

/* ---- stopped at a chosen step ----------------------------------------------------------------------- */

/* Losses and learning rates of two runs are equal, bit for bit. */
static void expect_same_metrics(io_fixture *f, const char *a, const char *b) {
    int n, m;
    const sbp_json **x = cli_lines(f, a, &n), **y = cli_lines(f, b, &m);
    assert_int_equal(n, m);
    static const char *const keys[] = {"step", "epoch", "loss", "grad_norm", "learning_rate", "num_tokens"};
    for (int i = 0; i < n; i++)
        for (int k = 0; k < SBP_COUNT(keys); k++)
            assert_true(cli_number(f, x[i], keys[k]) == cli_number(f, y[i], keys[k]));
}

/* Stopped in step 1, before, at and behind the ends of epochs, and in the last step but one, each time
 * exactly there, and resumed: the same model and metrics as in one go. */
static void stop_and_resume(io_fixture *f, const char *signal, int status, int64_t epoch, int64_t total) {
    const int64_t stops[] = {1, epoch - 1, epoch, epoch + 1, 2 * epoch, 2 * epoch + 1, total - 1};
    bool kill = strcmp(signal, "KILL") == 0; /* then the checkpoint is made before, in the step itself */
    int64_t done = 0;
    cli_ok(f, "rm -rf $D/o");
    for (int i = 0; i < SBP_COUNT(stops); i++) {
        int got = cli(f, sbp_arena_printf(f->arena,
                                          AT "SBP_AT=%s@fflush:%lld:metrics.jsonl " LONG
                                             " --out $D/o --save-every %lld --resume",
                                          signal, (long long)(stops[i] + kill - done),
                                          kill ? (long long)stops[i] : 1000LL));
        if (got != status)
            fail_msg("%s in step %lld: status %d: %s", signal, (long long)stops[i], got, cli_text(f, "err"));
        if (!kill &&
            !strstr(cli_text(f, "err"), sbp_arena_printf(f->arena, "interrupted after %lld of %lld steps",
                                                         (long long)stops[i], (long long)total)))
            fail_msg("%s", cli_text(f, "err"));
        done = stops[i];
        cli_ok(f, "ls -d $D/o/checkpoint-* | sed 's/.*-//' | sort -n | tail -1");
        assert_int_equal(atoi(cli_text(f, "out")), done);
    }
    cli_fails(f, 2, "holds checkpoints of another run", LONG " --out $D/o");
    cli_ok(f, LONG " --out $D/o --resume --json");
    assert_true(cli_number(f, cli_json(f, "out"), "train_loss") ==
                cli_number(f, cli_json(f, "whole.json"), "train_loss"));
    assert_int_equal(cli_number(f, cli_json(f, "out"), "resumed_after"), total - 1);
    cli_same(f, "whole/model.safetensors", "o/model.safetensors");
    expect_same_metrics(f, "whole/metrics.jsonl", "o/metrics.jsonl");
    cli_ok(f, "test $(ls -d $D/o/checkpoint-* | wc -l) = 2"); /* --keep */
    cli_ok(f, "test -z \"$(ls -A $D/o | grep '^\\.')\"");     /* nothing half-written is left */
}

static void test_stopped_and_resumed(void **state) {
    io_fixture *f = *state;
    static const struct {
        const char *name;
        int status;
    } signals[] = {{"TERM", 143}, {"INT", 130}, {"KILL", 137}};
    cli_ok(f, COMPILE);
    cli_ok(f, LONG " --out $D/whole --save-every never --json; cp $D/out $D/whole.json");
    const sbp_json *run = cli_json(f, "whole/run.json");
    int64_t epoch = (int64_t)cli_number(f, run, "steps_per_epoch"),
            total = (int64_t)cli_number(f, run, "steps");
    assert_true(epoch > 4 && total > 2 * epoch + 3);
    for (int i = 0; i < SBP_COUNT(signals); i++)
        stop_and_resume(f, signals[i].name, signals[i].status, epoch, total);
}

static void test_resume_asks_for_the_same_run(void **state) {
    io_fixture *f = *state;
    cli_ok(f, COMPILE);
    cli_ok(f, TRAIN " --out $D/o --save-every 5 --keep all");
    cli_ok(f, "test $(ls -d $D/o/checkpoint-* | wc -l) = 4");
    cli_fails(f, 1, "had other data",
              "head -50 $G/stories260k_trl/train.jsonl >$D/d.jsonl; $R $D/p --data $D/d.jsonl "
              "--shuffle off --out $D/o --resume");
    cli_fails(f, 1, "had --seed 42, this one has 7", TRAIN " --out $D/o --resume --seed 7");
    cli_fails(f, 1, "had --batch-size 8, this one has 4", TRAIN " --out $D/o --resume --batch-size 4");
    cli_fails(f, 2, "--resume needs --out", TRAIN " --out none --resume");
    cli_fails(f, 1, "trainer_state.json",
              "rm -r $D/o/checkpoint-20; echo '{}' >$D/o/checkpoint-15/trainer_state.json; " TRAIN
              " --out $D/o --resume");
    cli_fails(f, 1, "num_tokens: 9223372036854775807 is not a count: 0 .. 2^53",
              "sed 's/\"num_tokens\": [0-9]*/\"num_tokens\": 9223372036854775807/' "
              "$D/o/checkpoint-10/trainer_state.json >$D/o/checkpoint-15/trainer_state.json; " TRAIN
              " --out $D/o --resume");
    cli_fails(f, 1, "optimizer.safetensors",
              "rm -r $D/o/checkpoint-15; truncate -s 1000 $D/o/checkpoint-10/optimizer.safetensors; " TRAIN
              " --out $D/o --resume");
    cli_ok(f,
           "$R $D/p --data $G/stories260k_trl/train.jsonl --steps 2 --out $D/fresh --resume"); /* nothing to
                                                                                                  resume */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_stopped_and_resumed, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_resume_asks_for_the_same_run, cli_setup, io_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
