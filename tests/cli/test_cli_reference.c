/* Log-probabilities of a reference that rows do not carry: those of the initial weights, which are then the
 * same as if the rows carried what --score writes of them; kept, taken up again, or of a file.
 *
 * Rows, schedules and rows per micro-batch are drawn; computations are in double precision, and the weights
 * after some steps are compared to the bit, since what is read of a file is what was computed. */
#include "tests/cli/drawing.h"

enum { ROWS = 7, VOCABULARY = 61, STEPS = 4 };

#define MODEL "$G/llama_mqa/model"
#define TRAIN " --batch-size 3 --lr 3e-3 --schedule constant "

/* Rows without a reference, one a line, each without its last bracket. */
static const char **draw_rows(io_fixture *f, sbp_rng *rng, bool pairs) {
    const char **rows = SBP_NEW_ARRAY(f->arena, const char *, ROWS);
    for (int r = 0; r < ROWS; r++) {
        sbp_text out;
        sbp_text_init(&out, f->arena);
        sbp_text_add(&out, "{");
        /* what follows no token has no log-probability, and lists count it */
        draw_ids(rng, &out, "prompt_ids", !pairs + sbp_rng_below(rng, 9), VOCABULARY);
        sbp_text_add(&out, ", ");
        draw_ids(rng, &out, pairs ? "chosen_ids" : "completion_ids", 1 + sbp_rng_below(rng, 12), VOCABULARY);
        if (pairs) {
            sbp_text_add(&out, ", ");
            draw_ids(rng, &out, "rejected_ids", 1 + sbp_rng_below(rng, 12), VOCABULARY);
        } else {
            sbp_text_add(&out, ", \"advantage\": %.3f", 0.001 * (double)sbp_rng_below(rng, 4000) - 2);
        }
        rows[r] = out.data;
    }
    return rows;
}

/* The line of a --score that is of a row and part. */
static const sbp_json *score_of(const sbp_json **lines, int count, int64_t row, const char *part) {
    for (int i = 0; i < count; i++)
        if (sbp_json_member(lines[i], "row")->integer == row &&
            strcmp(sbp_json_member(lines[i], "part")->string, part) == 0)
            return lines[i];
    fail_msg("no score of row %d, %s", (int)row, part);
    return NULL;
}

static void add_member(sbp_text *out, const char *key, const sbp_json *line, const char *member) {
    sbp_text_add(out, ", \"%s\": ", key);
    sbp_json_add_value(out, sbp_json_member(line, member));
}

/* $D/plain, and $D/rich with what $D/scores says of its rows. */
static void write_plain(io_fixture *f, const char **rows) {
    sbp_text out;
    sbp_text_init(&out, f->arena);
    for (int r = 0; r < ROWS; r++)
        sbp_text_add(&out, "%s}\n", rows[r]);
    cli_put(f, "plain", out.data);
}

static void write_rich(io_fixture *f, const char **rows, bool pairs) {
    sbp_text out;
    int count;
    const sbp_json **lines = cli_lines(f, "scores", &count);
    assert_int_equal(count, pairs ? 2 * ROWS : ROWS);
    sbp_text_init(&out, f->arena);
    for (int r = 0; r < ROWS; r++) {
        sbp_text_add(&out, "%s", rows[r]);
        if (pairs) {
            add_member(&out, "ref_chosen_logps", score_of(lines, count, r, "chosen"), "sum");
            add_member(&out, "ref_rejected_logps", score_of(lines, count, r, "rejected"), "sum");
        } else {
            add_member(&out, "ref_per_token_logps", score_of(lines, count, r, "completion"), "logps");
        }
        sbp_text_add(&out, "}\n");
    }
    cli_put(f, "rich", out.data);
}

static const struct {
    const char *objective;
    bool pairs;
} objectives[] = {
    {"--objective dpo", true},
    {"--objective dpo --loss-type ipo", true},
    {"--objective grpo --beta 0.2", false},
    {"--objective grpo --beta 0.2 --loss-type gspo", false},
};

static void compile(io_fixture *f, sbp_rng *rng, const char *model, const char *objective) {
    cli_ok(f, sbp_arena_printf(f->arena,
                               "$C compile %s -o $D/p --dtype fp64 %s --seq-len %d --chunk %d --head-chunk "
                               "%d --segment %d --checkpoint-every %d %s",
                               model, objective, 42 + (int)sbp_rng_below(rng, 90),
                               1 + (int)sbp_rng_below(rng, 20), 1 + (int)sbp_rng_below(rng, 20),
                               1 + (int)sbp_rng_below(rng, 2), 1 + (int)sbp_rng_below(rng, 2),
                               PICK(rng, "", "--save attn_out", "--backward checkpoint", "--offload host",
                                    "--offload states:disk+params:disk")));
}

/* Trains to `steps` in $D/out_dir. */
static void train(io_fixture *f, const char *data, const char *directory, int steps, const char *more) {
    cli_ok(f, sbp_arena_printf(f->arena, "$R $D/p --data $D/%s --steps %d" TRAIN "--out $D/%s %s", data,
                               steps, directory, more));
}

static void test_initial_weights_are_the_reference(void **state) {
    io_fixture *f = *state;
    for (int i = 0; i < SBP_COUNT(objectives); i++) {
        sbp_rng rng = {.state = 300 + (uint64_t)i};
        bool pairs = objectives[i].pairs;
        const char **rows = draw_rows(f, &rng, pairs);
        write_plain(f, rows);
        compile(f, &rng, MODEL, objectives[i].objective);
        cli_ok(f, "$R $D/p --data $D/plain --score $D/scores");
        write_rich(f, rows, pairs);
        train(f, "rich", "want", STEPS, "--overwrite");
        train(f, "plain", "got", STEPS, "--overwrite --eval $D/plain");
        cli_same(f, "want/model.safetensors", "got/model.safetensors");
        assert_false(cli_exists(f, "want/ref_logps.safetensors"));
        /* the reference is not what is trained: with the weights at the end, there would be another result */
        train(f, "plain", "other", STEPS, "--overwrite --weights $D/got");
        assert_int_not_equal(cli(f, "cmp $D/want/model.safetensors $D/other/model.safetensors"), 0);
        train(f, "plain", "file", STEPS, "--overwrite --ref $D/scores");
        cli_same(f, "want/model.safetensors", "file/model.safetensors");
        assert_false(cli_exists(f, "file/ref_logps.safetensors"));
        /* going on, with what was kept and without */
        for (int gone = 0; gone < 2; gone++) {
            train(f, "plain", "other", 2, "--overwrite --eval $D/plain");
            if (gone)
                cli_ok(f, "rm $D/other/ref_logps*");
            train(f, "plain", "other", STEPS, "--resume");
            assert_true(strstr(cli_text(f, "err"), gone ? "as reference, scored" : "are in") != NULL);
            cli_same(f, "want/model.safetensors", "other/model.safetensors");
            cli_same(f, "got/ref_logps.eval-0.safetensors", "other/ref_logps.eval-0.safetensors");
        }
    }
}

/* Rows that come as a stream are scored by a copy of the initial weights, which changes places with what is
 * trained, here in several pieces: the same bits as where rows carry what --score wrote before. */
static void test_of_a_stream(void **state) {
    enum { EACH = 3, BATCHES = 2 };
    io_fixture *f = *state;
    sbp_rng rng = {.state = 500};
    const char **rows = draw_rows(f, &rng, false);
    sbp_text stream;
    sbp_text_init(&stream, f->arena);
    for (int r = 0; r < EACH * BATCHES; r++)
        sbp_text_add(&stream, "%s}\n%s", rows[r], r % EACH == EACH - 1 ? "{\"end_of_step\": true}\n" : "");
    cli_put(f, "stream", stream.data);
    write_plain(f, rows);
    cli_ok(f, "mkdir $D/wide && cp " MODEL "/config.json $D/wide");
    compile(f, &rng, "$D/wide", "--objective grpo --beta 0.2 --set vocab_size=8192");
    cli_ok(f, "$R $D/p --data $D/plain --weights random:5 --score $D/scores");
    write_rich(f, rows, false);
    train(f, "rich", "want", BATCHES, "--weights random:5 --shuffle off");
    cli_ok(f, "$R $D/p --data - --lr 3e-3 --schedule constant --out $D/got --weights random:5 <$D/stream");
    assert_non_null(strstr(cli_text(f, "err"), "a copy of the initial weights, the reference"));
    cli_same(f, "want/model.safetensors", "got/model.safetensors");
}

/* Only rows that steps take are scored; more steps score theirs, to the same bits. */
static void test_what_steps_take(void **state) {
    io_fixture *f = *state;
    for (int i = 0; i < SBP_COUNT(objectives); i++) {
        sbp_rng rng = {.state = 500 + (uint64_t)i};
        bool pairs = objectives[i].pairs;
        const char **rows = draw_rows(f, &rng, pairs);
        const char *first = pairs ? "scored 6 of 14 documents" : "scored 3 of 7 documents",
                   *rest = pairs ? "scored 8 of 14 documents" : "scored 4 of 7 documents";
        write_plain(f, rows);
        compile(f, &rng, MODEL, objectives[i].objective);
        cli_ok(f, "$R $D/p --data $D/plain --score $D/scores");
        write_rich(f, rows, pairs);
        for (int steps = 1; steps <= STEPS; steps += STEPS - 1) {
            train(f, "rich", "want", steps, "--overwrite");
            train(f, "plain", "got", steps, steps == 1 ? "--overwrite" : "--resume");
            if (!strstr(cli_text(f, "err"), steps == 1 ? first : rest))
                fail_msg("%d steps: %s", steps, cli_text(f, "err"));
            cli_same(f, "want/model.safetensors", "got/model.safetensors");
        }
        train(f, "plain", "got", STEPS, "--overwrite"); /* all are kept */
        assert_non_null(strstr(cli_text(f, "err"), "are in"));
        cli_same(f, "want/model.safetensors", "got/model.safetensors");
        cli_ok(f, "$R $D/p --data $D/plain --batch-size 3 --out none --dump-gradients $D/some");
        assert_non_null(strstr(cli_text(f, "err"), first));
        cli_ok(f, "$R $D/p --data $D/rich --batch-size 3 --out none --dump-gradients $D/all");
        cli_same(f, "some", "all");
    }
}

/* What was kept is taken when it is of the same, and only then. */
static void test_what_is_kept(void **state) {
    io_fixture *f = *state;
    sbp_rng rng = {.state = 9};
    write_plain(f, draw_rows(f, &rng, true));
    compile(f, &rng, MODEL, "--objective dpo");
    static const struct {
        const char *options, *before;
        bool kept;
    } starts[] = {
        {"", "", false},
        {"", "", true},
        {"--weights random:3", "", false},
        {"--weights random:3", "", true},
        {"--weights random:4", "", false},
        {"--weights random:4", "printf x | dd of=$D/run/ref_logps.safetensors bs=1 seek=400 conv=notrunc",
         false},
        {"--weights random:4", "truncate -s 100 $D/run/ref_logps.safetensors", false},
        {"--weights random:4", "sed -i 7d $D/plain", false},
        {"--weights random:4", "", true},
    };
    for (int i = 0; i < SBP_COUNT(starts); i++) {
        if (*starts[i].before)
            cli_ok(f, starts[i].before);
        train(f, "plain", "run", 1, sbp_arena_printf(f->arena, "--overwrite %s", starts[i].options));
        bool scored = strstr(cli_text(f, "err"), "as reference, scored") != NULL;
        if (scored == starts[i].kept)
            fail_msg("start %d: %s", i, cli_text(f, "err"));
    }
    cli_ok(f, "$C compile " MODEL " -o $D/p --dtype fp64 --objective dpo --set rms_norm_eps=0.01");
    train(f, "plain", "run", 1, "--overwrite --weights random:4");
    assert_non_null(strstr(cli_text(f, "err"), "as reference, scored"));
    cli_ok(f, "rm $D/run/ref_logps.safetensors");
    cli_fails(f, 1, "the initial weights are not those that the run began with",
              "sed -i s/random:4/random:5/ $D/run/run.json; $R $D/p --data $D/plain --steps 2 --resume --out "
              "$D/run");
}

static void test_refusals(void **state) {
    io_fixture *f = *state;
    sbp_rng rng = {.state = 10};
    const char **rows = draw_rows(f, &rng, true);
    write_plain(f, rows);
    compile(f, &rng, MODEL, "--objective dpo");
    cli_ok(f, "$R $D/p --data $D/plain --score $D/scores");
    write_rich(f, rows, true);
    cli_ok(f, "sed 5d $D/scores > $D/bad");
    cli_fails(f, 1,
              "bad:5: expected the log-probabilities of row 2, 'chosen' (rows count from 0), found row 2, "
              "'rejected'",
              "$R $D/p --data $D/plain --out none --ref $D/bad");
    cli_ok(f, "head -3 $D/scores > $D/bad");
    cli_fails(f, 1, "row 1, 'rejected' (rows count from 0), found the end of the file",
              "$R $D/p --data $D/plain --out none --ref $D/bad");
    cli_ok(f, "sed '3s/\\[/[0, /' $D/scores > $D/bad");
    cli_fails(f, 1, "bad:3: row 1, 'chosen', has", "$R $D/p --data $D/plain --out none --ref $D/bad");
    cli_ok(f, "sed '3s/\\[[^,]*/[null/' $D/scores > $D/bad");
    cli_fails(f, 1, "bad:3", "$R $D/p --data $D/plain --out none --ref $D/bad");
    cli_ok(f, "sed 's/, \"ref_rejected_logps.*/}/' $D/rich > $D/half");
    cli_fails(f, 1, "row 1 (from 1): 'ref_rejected_logps' is missing", "$R $D/p --data $D/half --out none");
    cli_fails(f, 2, "the rows carry", "$R $D/p --data $D/rich --out none --ref $D/scores");
    cli_fails(f, 2, "--ref applies to --data",
              "$R $D/p --data $D/plain --eval $D/plain --out none --ref $D/scores");
    cli_ok(f, "$C compile " MODEL " -o $D/p");
    cli_fails(f, 2, "reads no reference",
              "echo '{\"input_ids\": [1, 2]}' > $D/t; $R $D/p --data $D/t --out none --ref $D/scores");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_initial_weights_are_the_reference, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_of_a_stream, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_what_steps_take, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_what_is_kept, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_refusals, cli_setup, io_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
