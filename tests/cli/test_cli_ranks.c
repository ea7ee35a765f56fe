/* Numbers of evaluations, scores and gradients of 2 and 3 ranks are those of one, in double precision; and of
 * steps over rows that come, and over tokens that are kept. Steps of every objective: test_cli_ranks_sweep.
 */
#include "tests/cli/ranks_numbers.h"

enum { RANKS = 3 };

/* ---- evaluations, scores, gradients ----------------------------------------------------------------- */

/* More rows than are scored at a time. */
static void test_scores(void **state) {
    io_fixture *f = *state;
    if (!cli_has_ranks(f, "scores of several ranks"))
        skip();
    for (int pairs = 0; pairs < 2; pairs++) {
        write_rows(f, "t", pairs ? PAIRS : TEXTS, pairs ? 12 : 600, 80);
        for (int ranks = 1; ranks <= RANKS; ranks++) {
            cli_ok(f, sbp_arena_printf(
                          f->arena,
                          "$C compile $G/llama_mqa/model -o $D/p --dtype fp64 --threads 1 %s "
                          "--seq-len 100 --ranks %d && %s$R $D/p --data $D/t --out none --score $D/s%d",
                          pairs ? "--objective dpo" : "", ranks,
                          ranks > 1 ? sbp_arena_printf(f->arena, "$M -n %d ", ranks) : "", ranks));
            if (ranks > 1)
                assert_true(compare_lines(f, "scores", sbp_arena_printf(f->arena, "s%d", ranks), "s1") >
                            (pairs ? 100 : 3000));
        }
    }
}

/* Two rows, so that a rank has none. */
static void test_gradients(void **state) {
    io_fixture *f = *state;
    if (!cli_has_ranks(f, "gradients of several ranks"))
        skip();
    static const char *const optimizers[] = {"", "--optimizer none --clip none"};
    for (int i = 0; i < 2; i++) {
        write_rows(f, "t", i ? PAIRS : TEXTS, 9, 90);
        for (int ranks = 1; ranks <= RANKS; ranks++)
            cli_ok(f, sbp_arena_printf(
                          f->arena,
                          "$C compile $G/llama_mqa/model -o $D/p --dtype fp64 --threads 1 %s %s "
                          "--seq-len 100 --ranks %d && %s$R $D/p --data $D/t --batch-size %d --out "
                          "none --dump-gradients $D/g%d",
                          i ? "--objective orpo" : "", optimizers[i], ranks,
                          ranks > 1 ? sbp_arena_printf(f->arena, "$M -n %d ", ranks) : "", i ? 2 : 9, ranks));
        const char *want = sbp_arena_strdup(f->arena, io_path(f, "g1"));
        cli_compare(f, "2 ranks", io_path(f, "g2"), want, SBP_TOLERANCE_F64);
        cli_compare(f, "3 ranks", io_path(f, "g3"), want, SBP_TOLERANCE_F64);
    }
}

/* ---- rows that come --------------------------------------------------------------------------------- */

/* Standard input is rank 0's, and all have its rows; it may take longer than --timeout until some come. A
 * signal ends the waiting of all. */
static void test_stream(void **state) {
    io_fixture *f = *state;
    if (!cli_has_ranks(f, "rows that come to several ranks"))
        skip();
    write_rows(f, "t", REWARDED, 11, 70);
    cli_ok(f, "awk '{print} NR % 4 == 0 {print \"{\\\"end_of_step\\\": true}\"} ' $D/t >$D/s; "
              "echo '{\"end_of_step\": true}' >>$D/s; "
              "$C compile $G/llama_mqa/model -o $D/p1 --dtype fp64 --threads 1 --objective grpo --beta 0.1 "
              "--seq-len 60 && $R $D/p1 --data - --steps 3 --out $D/want --lr 1e-3 <$D/s");
    cli_ok(f, "$C compile $G/llama_mqa/model -o $D/p --dtype fp64 --threads 1 --objective grpo --beta 0.1 "
              "--seq-len 60 --ranks 2");
    cli_ok(
        f,
        "(sed -n 1,5p $D/s; sleep 9; sed -n 6,20p $D/s) | $R $D/p --ranks 2 --timeout 6 --data - --steps 3 "
        "--out $D/got --lr 1e-3 --publish $D/published");
    int count;
    cli_lines(f, "out", &count);
    assert_int_equal(count, 3);
    assert_true(compare_lines(f, "a stream", "got/metrics.jsonl", "want/metrics.jsonl") > 20);
    const char *want = sbp_arena_strdup(f->arena, io_path(f, "want/model.safetensors"));
    cli_compare(f, "a stream", io_path(f, "got/model.safetensors"), want, SBP_TOLERANCE_F64);
    cli_same(f, "got/model.safetensors", "published/latest/model.safetensors");
    cli_ok(
        f,
        "mkfifo $D/in; $R $D/p --ranks 2 --data - --out $D/cut --schedule constant <$D/in 2>$D/said & "
        "pid=$!\n"
        "exec 3>$D/in; sed -n 1,5p $D/s >&3\n"
        "for wait in $(seq 12000); do grep -q 'step 1' $D/said && break; sleep 0.05; done\n"
        "kill -INT $pid; wait $pid; test $? = 130 && grep -q 'interrupted after 1 steps; --resume' $D/said");
    cli_fails(f, 2, "--data -: with several ranks, standard input must be the only --data",
              "$R $D/p --ranks 2 --data - --data $D/t --out none");
    cli_fails(f, 2, "--data - with several ranks needs --seq-len N",
              "$R $G/llama_mqa/model --ranks 2 --objective grpo --data - --out none");
}

/* ---- tokens that are kept --------------------------------------------------------------------------- */

/* One rank makes them, the others find them there; of a model too, whose data are read before there is a
 * plan.
 */
static void test_kept_tokens(void **state) {
    io_fixture *f = *state;
    if (!cli_has_ranks(f, "tokens kept for several ranks"))
        skip();
    cli_ok(f, "cp $G/stories260k_trl/train.jsonl $D/t; head -9 $D/t >$D/e");
    static const struct {
        const char *model;
        int made; /* of the data by their lengths, then as the plan has them, and of --eval */
    } starts[] = {{"$S", 3}, {"$S --seq-len 300", 2}, {"$D/o1/plan.bin", 0}};
    for (int i = 0; i < SBP_COUNT(starts); i++) {
        cli_ok(f, sbp_arena_printf(f->arena,
                                   "%s$R %s --ranks 3 --data $D/t --eval $D/e --batch-size 5 --steps 1 "
                                   "--data-cache $D/c --out $D/o%d 2>$D/said; "
                                   "test $(grep -c 'tokens are kept in' $D/said) = %d",
                                   i < 2 ? "rm -rf $D/c; " : "", starts[i].model, i, starts[i].made));
        int count;
        cli_lines(f, sbp_arena_printf(f->arena, "o%d/metrics.jsonl", i), &count);
        assert_int_equal(count, 3);
    }
    compare_lines(f, "kept tokens", "o2/metrics.jsonl", "o1/metrics.jsonl");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_scores, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_stream, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_kept_tokens, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_gradients, cli_setup, io_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
