/* What of a chat is trained, as a run has it: weights of messages in the loss, however its rows are put
 * together, what cannot be combined. */
#include "tests/cli/cli_testing.h"

#define TEMPLATE "tests/golden/chat/chatml.jinja"

static void put_rows(io_fixture *f) {
    cli_put(f, "d.jsonl",
            "{\"messages\": [{\"role\": \"user\", \"content\": \"Who is Lily?\"}, {\"role\": \"assistant\", "
            "\"content\": \"A girl.\", \"weight\": 0.5}, {\"role\": \"user\", \"content\": \"Why?\"}, "
            "{\"role\": \"assistant\", \"content\": \"She likes to play.\", \"weight\": 2}]}\n"
            "{\"messages\": [{\"role\": \"user\", \"content\": \"Where is she?\"}, {\"role\": \"assistant\", "
            "\"content\": \"In the park.\"}, {\"role\": \"user\", \"content\": \"Why?\"}, {\"role\": "
            "\"assistant\", \"content\": \"To play.\", \"train\": false}]}\n");
}

/* The loss of the rows by the log-probabilities that --score has of them: the sum of what each token counts
 * times its own, over the number of tokens that count. */
static double weighed_loss(io_fixture *f) {
    int count, scored;
    const sbp_json **rows = cli_lines(f, "rows", &count), **scores = cli_lines(f, "scores", &scored);
    double sum = 0, tokens = 0;
    assert_int_equal(count, scored);
    for (int r = 0; r < count; r++) {
        const sbp_json *labels = sbp_json_member(rows[r], "labels"),
                       *weights = sbp_json_member(rows[r], "weight"),
                       *logps = sbp_json_member(scores[r], "logps");
        int64_t k = 0;
        for (int64_t i = 1; i < labels->count; i++)
            if (labels->items[i].integer >= 0) {
                sum -= (weights ? weights->items[i].real : 1) * logps->items[k++].real;
                tokens++;
            }
        assert_int_equal(k, logps->count);
    }
    return sum / tokens;
}

static void test_weights_in_the_loss(void **state) {
    io_fixture *f = *state;
    static const char *const losses[] = {"--loss-on assistant", "--loss-on all", ""};
    static const char *const ways[] = {"",
                                       "--chunk 7 --threads 1",
                                       "--packing bfd --seq-len 160",
                                       "--seq-len 80",
                                       "--data-cache $D/cache",
                                       "--data-cache $D/cache",
                                       "--ranks 2 --threads 1"};
    put_rows(f);
    for (int l = 0; l < SBP_COUNT(losses); l++) {
        const char *on = losses[l];
        cli_ok(f, sbp_arena_printf(f->arena,
                                   "$R tokenize $S %s --chat-template " TEMPLATE
                                   " <$D/d.jsonl >$D/rows && $R $S -q --data $D/d.jsonl %s --dtype fp64 "
                                   "--chat-template " TEMPLATE " --score $D/scores",
                                   on, on));
        double want = weighed_loss(f);
        for (int w = 0; w < (l == 0 ? SBP_COUNT(ways) : 1); w++) {
            int count;
            cli_ok(f,
                   sbp_arena_printf(f->arena,
                                    "$R $S -q --data $D/d.jsonl %s --dtype fp64 --chat-template " TEMPLATE
                                    " --steps 1 --batch-size 2 --out $D/o --overwrite --eval $D/d.jsonl %s",
                                    on, ways[w]));
            const sbp_json **lines = cli_lines(f, "o/metrics.jsonl", &count);
            assert_true(count >= 2);
            for (int i = 0; i < 2; i++) { /* the evaluation before it has the same rows */
                const sbp_json *loss = sbp_json_member(lines[i], "eval_loss");
                double got = loss ? loss->real : cli_number(f, lines[i], "loss");
                if (!(fabs(got - want) <= SBP_TOLERANCE_F64 * want))
                    fail_msg("%s %s: expected %.17g, found %.17g", on, ways[w], want, got);
            }
        }
    }
}

/* Half of everything is half of the loss and of the gradient. */
static void test_half_of_everything(void **state) {
    io_fixture *f = *state;
    int count;
    double found[2][2];
    put_rows(f);
    for (int half = 0; half < 2; half++) {
        cli_ok(f, sbp_arena_printf(
                      f->arena,
                      "sed 's/, \"weight\": [0-9.]*//g; s/\"role\": \"assistant\"/&%s/g' $D/d.jsonl "
                      ">$D/h.jsonl && $R $S -q --data $D/h.jsonl --loss-on assistant --dtype fp64 "
                      "--chat-template " TEMPLATE " --steps 1 --batch-size 2 --out $D/o --overwrite",
                      half ? ", \"weight\": 0.5" : ""));
        const sbp_json **lines = cli_lines(f, "o/metrics.jsonl", &count);
        found[half][0] = cli_number(f, lines[0], "loss");
        found[half][1] = cli_number(f, lines[0], "grad_norm");
    }
    for (int k = 0; k < 2; k++)
        assert_true(fabs(found[1][k] - found[0][k] / 2) <= SBP_TOLERANCE_F64 * found[0][k]);
}

/* A run that goes on has the same bits. */
static void test_resume(void **state) {
    io_fixture *f = *state;
#define RUN                                                                                                  \
    "$R $S -q --data $D/d.jsonl --loss-on assistant --batch-size 1 --save-every 2 --chat-template " TEMPLATE
    put_rows(f);
    cli_ok(f, RUN " --steps 4 --out $D/whole && " RUN " --steps 2 --schedule constant --out $D/x && " RUN
                  " --steps 4 --schedule constant --out $D/a && $R $S -q --out $D/x --resume --steps 4 && "
                  "cmp $D/a/model.safetensors $D/x/model.safetensors");
    assert_int_not_equal(0, cli(f, "cmp $D/a/model.safetensors $D/whole/model.safetensors"));
}

/* Objectives of answers as wholes read no part of a weight; 0 and 1 leave tokens out or in. */
static void test_other_objectives(void **state) {
    io_fixture *f = *state;
    cli_put(f, "k.jsonl",
            "{\"prompt\": [{\"role\": \"user\", \"content\": \"Who?\"}], \"completion\": [{\"role\": "
            "\"assistant\", \"content\": \"Lily.\", \"weight\": 0.5}], \"label\": true}\n"
            "{\"prompt\": [{\"role\": \"user\", \"content\": \"Who?\"}], \"completion\": [{\"role\": "
            "\"assistant\", \"content\": \"No.\"}], \"label\": false}\n");
    cli_put(f, "p.jsonl",
            "{\"prompt\": [{\"role\": \"user\", \"content\": \"Who?\"}], \"chosen\": [{\"role\": "
            "\"assistant\", \"content\": \"Lily.\", \"train\": false}], \"rejected\": [{\"role\": "
            "\"assistant\", \"content\": \"No.\"}]}\n");
    cli_fails(f, 1, "data row 1 (from 1): a message has a 'weight' other than 0 and 1",
              "$R $S --objective kto --data $D/k.jsonl --dry-run --chat-template " TEMPLATE);
    cli_ok(f, "sed -i s/0.5/1/ $D/k.jsonl && $R $S --objective kto --data $D/k.jsonl --dry-run "
              "--chat-template " TEMPLATE);
    cli_fails(f, 1, "p.jsonl:1: chosen: message 0 (from 0) has a 'train' or 'weight'",
              "$R $S --objective dpo --data $D/p.jsonl --dry-run --chat-template " TEMPLATE);
}

/* What --dry-run and report.html show of rows: what is trained, weights, special tokens, and nothing that a
 * terminal or a browser would do. */
static void test_shown_rows(void **state) {
    io_fixture *f = *state;
#define DRY "$R $S -q --data $D/d.jsonl --loss-on assistant --shuffle off --dry-run --chat-template " TEMPLATE
    /* standard output is a terminal there */
#define ON_A_TERMINAL                                                                                        \
    " python3 -c 'import pty, sys; sys.exit(pty.spawn([\"sh\", \"-c\", sys.argv[1]]) != 0)' "
    put_rows(f);
    cli_ok(f, "sed -i '2s/In the park/In <b>the<\\/b>\\\\u001b[7m park/' $D/d.jsonl && " DRY);
    const char *out = cli_text(f, "out");
    assert_non_null(
        strstr(out, "trained tokens in [[ ]]:\nrow 0: <|user|>\nWho is Lily?\n<|assistant|>\n[[0.5x A"));
    assert_non_null(strstr(out, "\n[[2x She likes to play.</s> ]]\n\nrow 1: "));
    assert_non_null(strstr(out, "[[In <b>the</b>\033[7m park.</s> ]]"));
    assert_null(strstr(out, "row 2"));
    cli_ok(f, DRY " --show 1");
    assert_non_null(strstr(cli_text(f, "out"), "row 0: "));
    assert_null(strstr(cli_text(f, "out"), "row 1: "));
    cli_ok(f, DRY " --show 0");
    assert_null(strstr(cli_text(f, "out"), "first rows"));
    cli_ok(f, "TERM=xterm" ON_A_TERMINAL "'" DRY "'");
    out = cli_text(f, "out");
    assert_non_null(strstr(out, "row 0: \033[2m<|user|>\r\nWho is Lily?"));
    assert_non_null(strstr(out, "\033[0m\033[33m0.5x A girl.\033[0m\033[33;4m</s>\033[0m\033[33m \033[0m"));
    assert_non_null(strstr(out, "\033[32mIn <b>the</b>?[7m park.\033[0m\033[32;4m</s>\033[0m"));
    static const char *const plain[] = {"TERM=xterm NO_COLOR=1", "TERM=dumb"};
    for (int i = 0; i < SBP_COUNT(plain); i++) {
        cli_ok(f, sbp_arena_printf(f->arena, "%s" ON_A_TERMINAL "'" DRY "'", plain[i]));
        assert_null(strchr(cli_text(f, "out"), '\033'));
        assert_non_null(strstr(cli_text(f, "out"), "[[In <b>the</b>?[7m park.</s> ]]"));
    }
    cli_ok(f, "$R $S -q --data $D/d.jsonl --loss-on assistant --shuffle off --steps 1 --out $D/o "
              "--chat-template " TEMPLATE
              " && $R $S -q --data $D/d.jsonl --steps 1 --out $D/none --show 0 --chat-template " TEMPLATE);
    out = cli_text(f, "o/report.html");
    assert_non_null(strstr(out, "<h2>Rows</h2>\n<p>The first rows of the first step: <span class=\"yes\">"));
    assert_non_null(strstr(out, "<pre>row 0: <span class=\"no\">&lt;|user|&gt;\nWho is Lily?"));
    assert_non_null(strstr(out, "<span class=\"part\" title=\"weight 0.5\"><sub>0.5</sub>A girl.</span>"
                                "<span class=\"part special\" title=\"weight 0.5\">&lt;/s&gt;</span>"));
    assert_non_null(strstr(out, "<span class=\"yes\">In &lt;b&gt;the&lt;/b&gt;?[7m park.</span>"));
    assert_null(strstr(cli_text(f, "none/report.html"), "<h2>Rows"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_weights_in_the_loss, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_half_of_everything, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_resume, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_other_objectives, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_shown_rows, cli_setup, io_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
