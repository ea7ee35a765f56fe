/* Rows that come step by step, batches that are used several times, and models that are published: the same
 * bits as from files, and as from rows that carry what was computed.
 *
 * Rows, schedules, placement and rows per micro-batch are drawn; computations are in double precision. */
#include "tests/cli/drawing.h"

enum { STEPS = 3, ROWS_OF_STEP = 4, VOCABULARY = 61 };

#define MODEL "$G/llama_mqa/model"
#define END "{\"end_of_step\": true}\n"
#define TRAIN " --lr 3e-3 --schedule constant --shuffle off --overwrite "

/* $D/rows, and $D/stream with a line behind each ROWS_OF_STEP of them; each row without its last bracket. */
static const char **write_rows(io_fixture *f, sbp_rng *rng) {
    const char **rows = SBP_NEW_ARRAY(f->arena, const char *, STEPS *ROWS_OF_STEP);
    sbp_text file, stream;
    sbp_text_init(&file, f->arena);
    sbp_text_init(&stream, f->arena);
    for (int r = 0; r < STEPS * ROWS_OF_STEP; r++) {
        sbp_text row;
        sbp_text_init(&row, f->arena);
        sbp_text_add(&row, "{");
        draw_ids(rng, &row, "prompt_ids", 1 + sbp_rng_below(rng, 8), VOCABULARY);
        sbp_text_add(&row, ", ");
        draw_ids(rng, &row, "completion_ids", 1 + sbp_rng_below(rng, 12), VOCABULARY);
        sbp_text_add(&row, ", \"advantage\": %.3f", 0.001 * (double)sbp_rng_below(rng, 4000) - 2);
        rows[r] = row.data;
        sbp_text_add(&file, "%s}\n", row.data);
        sbp_text_add(&stream, "%s}\n%s", row.data, (r + 1) % ROWS_OF_STEP == 0 ? END : "");
    }
    cli_put(f, "rows", file.data);
    cli_put(f, "stream", stream.data);
    return rows;
}

static void compile(io_fixture *f, sbp_rng *rng, const char *objective) {
    cli_ok(f, sbp_arena_printf(f->arena,
                               "$C compile " MODEL
                               " -o $D/p --dtype fp64 %s --seq-len %d --chunk %d --head-chunk "
                               "%d --segment %d --checkpoint-every %d %s",
                               objective, 21 + (int)sbp_rng_below(rng, 60), 1 + (int)sbp_rng_below(rng, 20),
                               1 + (int)sbp_rng_below(rng, 20), 1 + (int)sbp_rng_below(rng, 2),
                               1 + (int)sbp_rng_below(rng, 2),
                               PICK(rng, "", "--save attn_out", "--backward checkpoint", "--offload host",
                                    "--offload states:disk+params:disk")));
}

static const char *const objectives[] = {
    "--objective grpo",
    "--objective grpo --beta 0.2",
    "--objective grpo --beta 0.2 --loss-type gspo",
    "--objective grpo --loss-type dr_grpo",
};

/* A stream is its file; weights are published; a run that was interrupted goes on with the rows that are
 * left. */
static void test_streams(void **state) {
    io_fixture *f = *state;
    for (int i = 0; i < SBP_COUNT(objectives); i++) {
        sbp_rng rng = {.state = 40 + (uint64_t)i};
        int inner = 1 + i % 2;
        write_rows(f, &rng);
        compile(f, &rng, objectives[i]);
        const char *common = sbp_arena_printf(f->arena, TRAIN "--inner-epochs %d", inner);
        cli_ok(f, sbp_arena_printf(f->arena,
                                   "$R $D/p --data $D/rows --batch-size %d --epochs 1 --out $D/want %s",
                                   ROWS_OF_STEP, common));
        cli_ok(f, sbp_arena_printf(f->arena,
                                   "$R $D/p --data - --out $D/got --publish $D/published %s <$D/stream",
                                   common));
        cli_same(f, "want/model.safetensors", "got/model.safetensors");
        cli_same(f, "want/model.safetensors", "published/latest/model.safetensors");
        int count;
        const sbp_json **lines = cli_lines(f, "out", &count);
        assert_int_equal(count, STEPS);
        for (int k = 0; k < count; k++) {
            int step = (k + 1) * inner;
            assert_int_equal(sbp_json_member(lines[k], "published")->integer, step);
            assert_string_equal(sbp_json_member(lines[k], "path")->string,
                                sbp_arena_printf(f->arena, "%s/published/step-%d", f->directory, step));
        }
        cli_ok(f, sbp_arena_printf(f->arena,
                                   "ls $D/published >$D/list; printf '%%s\\n' latest step-%d step-%d | "
                                   "sort | cmp - $D/list; rm -r $D/published",
                                   2 * inner, 3 * inner));
        cli_ok(f, sbp_arena_printf(f->arena,
                                   "head -%d $D/stream | $R $D/p --data - --out $D/got %s; "
                                   "tail -n +%d $D/stream | $R $D/p --resume --out $D/got",
                                   2 * (ROWS_OF_STEP + 1), common, 2 * (ROWS_OF_STEP + 1) + 1));
        cli_same(f, "want/model.safetensors", "got/model.safetensors");
    }
}

/* A step is trained on when its end has come, whatever comes later. */
static void test_steps_do_not_wait(void **state) {
    io_fixture *f = *state;
    sbp_rng rng = {.state = 7};
    write_rows(f, &rng);
    compile(f, &rng, "--objective grpo --beta 0.2");
    cli_ok(f, "$R $D/p --data - --steps 3 --out $D/want" TRAIN "<$D/stream");
    cli_ok(
        f,
        "mkfifo $D/in; $R $D/p --data - --steps 3 --out $D/got --publish $D/published" TRAIN
        "<$D/in >$D/said & exec 3>$D/in\n"
        "for step in 1 2 3; do\n"
        "  sed -n $((5 * step - 4)),$((5 * step))p $D/stream >&3\n"
        "  for wait in $(seq 12000); do grep -q '\"published\": '$step $D/said && break; sleep 0.05; done\n"
        "done\n"
        "grep -q '\"published\": 3' $D/said && wait");
    cli_same(f, "want/model.safetensors", "got/model.safetensors");
    /* a signal while nothing comes */
    cli_ok(
        f,
        "$R $D/p --data - --out $D/got" TRAIN "<$D/in 2>$D/said & pid=$!; exec 3>$D/in\n"
        "sed -n 1,5p $D/stream >&3\n"
        "for wait in $(seq 12000); do grep -q 'step 1' $D/said && break; sleep 0.05; done\n"
        "kill -INT $pid; wait $pid; test $? = 130 && grep -q 'interrupted after 1 steps; --resume' $D/said");
}

/* The second of two steps with a batch has ratios to the weights before the first: as if the rows said what
 * these give. */
static void test_inner_epochs(void **state) {
    io_fixture *f = *state;
    for (int i = 0; i < SBP_COUNT(objectives); i++) {
        sbp_rng rng = {.state = 60 + (uint64_t)i};
        const char **rows = write_rows(f, &rng);
        int all = STEPS * ROWS_OF_STEP, count;
        compile(f, &rng, objectives[i]);
        cli_ok(f, "$R $D/p --data $D/rows --score $D/scores");
        const sbp_json **lines = cli_lines(f, "scores", &count);
        assert_int_equal(count, all);
        sbp_text rich;
        sbp_text_init(&rich, f->arena);
        for (int r = 0; r < all; r++) {
            sbp_text_add(&rich, "%s, \"old_per_token_logps\": ", rows[r]);
            sbp_json_add_value(&rich, sbp_json_member(lines[r], "logps"));
            sbp_text_add(&rich, "}\n");
        }
        cli_put(f, "rich", rich.data);
        cli_ok(f, "$R $D/p --data $D/rich --batch-size 12 --epochs 3 --out $D/want" TRAIN);
        cli_ok(f, "$R $D/p --data $D/rows --batch-size 12 --epochs 1 --num_iterations 3 --out $D/got" TRAIN);
        cli_same(f, "want/model.safetensors", "got/model.safetensors");
        cli_ok(f, "$R $D/p --data $D/rows --batch-size 12 --epochs 3 --out $D/other" TRAIN);
        assert_int_not_equal(cli(f, "cmp $D/want/model.safetensors $D/other/model.safetensors"), 0);
        /* ended in the middle of a batch */
        cli_ok(f, "$R $D/p --data $D/rows --batch-size 5 --epochs 2 --inner-epochs 3 --out $D/want" TRAIN);
        int steps = 1 + (int)sbp_rng_below(&rng, 16);
        cli_ok(f, sbp_arena_printf(
                      f->arena,
                      "$R $D/p --data $D/rows --batch-size 5 --steps %d --inner-epochs 3 --out $D/got" TRAIN
                      "&& $R $D/p --resume --out $D/got --epochs 2",
                      steps));
        cli_same(f, "want/model.safetensors", "got/model.safetensors");
    }
}

/* Steps that have no rows, or none that are not left out, wherever they stand, are answered with the weights
 * that are there and change nothing; those with rows have the bits of a file. */
static void test_steps_without_rows(void **state) {
    io_fixture *f = *state;
    sbp_rng rng = {.state = 9};
    static const char bad[] = "{\"prompt_ids\": [4], \"completion_ids\": 5, \"advantage\": 1}\n" END;
    static const int answers[] = {0, 0, 1, 1, 1, 2, 3, 3};
    int count;
    write_rows(f, &rng);
    cli_put(f, "bad", bad);
    cli_put(f, "end", END);
    compile(f, &rng, "--objective grpo --beta 0.2");
    cli_ok(f, "$R $D/p --data - --out $D/want" TRAIN "<$D/stream");
    cli_ok(f, "(cat $D/end $D/bad; head -5 $D/stream; cat $D/end $D/bad; tail -n +6 $D/stream; cat $D/bad) | "
              "$R $D/p --data - --on-bad-row skip --out $D/got --publish $D/published" TRAIN);
    cli_same(f, "want/model.safetensors", "got/model.safetensors");
    cli_same(f, "want/model.safetensors", "published/latest/model.safetensors");
    const char *said = sbp_arena_strdup(f->arena, cli_text(f, "err"));
    assert_non_null(
        strstr(said, "standard input:1: the end of a step that has no rows: nothing is trained on"));
    assert_non_null(strstr(said, "standard input:3: the end of a step whose rows are all left out"));
    const sbp_json **lines = cli_lines(f, "out", &count);
    assert_int_equal(count, SBP_COUNT(answers));
    for (int i = 0; i < count; i++)
        assert_int_equal(sbp_json_member(lines[i], "published")->integer, answers[i]);
    cli_ok(f, "ls $D/published >$D/list; printf '%s\n' latest step-2 step-3 | cmp - $D/list");
    /* too long: the rows of a step that is all of them, and some of others */
    cli_ok(f, "$C compile " MODEL " -o $D/p --dtype fp64 --objective grpo --seq-len 30");
    cli_ok(
        f,
        "(sed 's/\"completion_ids\": \\[/&5,5,5,5,5,5,5,5,5,5,5,5,5,5,5,5,5,5,5,5,5,5,5,5,5,5,5,5,5,5,/;5q' "
        "$D/stream; cat $D/stream) | $R $D/p --data - --overlong drop --out $D/got" TRAIN
        "&& $R $D/p --data - --out $D/want" TRAIN "<$D/stream");
    cli_same(f, "want/model.safetensors", "got/model.safetensors");
    cli_fails(f, 1, "standard input: no step has rows that can be trained on",
              "cat $D/end $D/end | $R $D/p --data - --out none" TRAIN);
    cli_fails(f, 1, "standard input: no step has rows that can be trained on",
              "cat $D/bad | $R $D/p --data - --out none --on-bad-row skip --dump-gradients $D/g" TRAIN);
}

static void test_refusals(void **state) {
    io_fixture *f = *state;
    sbp_rng rng = {.state = 8};
    write_rows(f, &rng);
    compile(f, &rng, "--objective grpo");
    cli_fails(f, 1, "standard input:7: completion_ids: expected an array, found 5",
              "(head -6 $D/stream; echo '{\"prompt_ids\": [4], \"completion_ids\": 5, \"advantage\": 1}'; "
              "echo '" END "') | $R $D/p --data - --out none" TRAIN);
    cli_ok(f, "(cat $D/stream; head -1 $D/rows) | $R $D/p --data - --out none" TRAIN);
    assert_non_null(strstr(cli_text(f, "err"), "1 rows behind standard input:15, the end of the last step"));
    cli_fails(f, 2, "has no schedule 'linear'", "$R $D/p --data - --out none <$D/stream");
    cli_fails(f, 2, "with warmup for a share",
              "$R $D/p --data - --out none --schedule constant_with_warmup --warmup 0.1 <$D/stream");
    cli_ok(f, "$R $D/p --data - --out none --steps 2 <$D/stream");
    cli_ok(f, "$R $D/p --data - --out none --steps 4 <$D/stream");
    assert_non_null(strstr(cli_text(f, "err"), "the stream has ended after 3 of 4 steps"));
    cli_fails(f, 2, "--batch-size has no effect",
              "$R $D/p --data - --out none --batch-size 3" TRAIN "<$D/stream");
    cli_fails(f, 2, "--dry-run needs rows from files", "$R $D/p --data - --dry-run" TRAIN "<$D/stream");
    cli_fails(f, 2, "give --seq-len N",
              "$R " MODEL " --objective grpo --data - --out none" TRAIN "<$D/stream");
    cli_fails(f, 2, "standard input cannot be read twice",
              "$R " MODEL " --objective grpo --data - --out none" TRAIN "<$D/rows");
    cli_fails(f, 2, "are for --data -", "$R $D/p --data $D/stream --out none" TRAIN);
    cli_fails(f, 2, "is --out: choose another", "$R $D/p --data $D/rows --out $D/o --publish $D/o" TRAIN);
    cli_ok(f, "$C compile " MODEL " -o $D/p --objective dpo");
    cli_fails(f, 2, "does not compare with older weights",
              "echo '{\"prompt_ids\": [4], \"chosen_ids\": [5], \"rejected_ids\": [6]}' >$D/pair; $R $D/p "
              "--data $D/pair "
              "--out none --inner-epochs 2");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_streams, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_steps_do_not_wait, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_inner_epochs, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_steps_without_rows, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_refusals, cli_setup, io_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
