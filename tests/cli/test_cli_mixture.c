/* Mixtures by their weights, and rows that are held out: what is trained on and evaluated is what a file of
 * the rows that `datasets` takes would be, for all kinds of rows, ranks and starts; and what is refused. The
 * rows in question are open-r1's of two data sets of 6 rows with weights 0.7 and 0.5, seed 3 and
 * test_split_size 0.2 (tests/data/mixture/make.py, `random`): 4, 5, 8, 10, 11, and 1, 2 held out. */
#include "tests/cli/ranks_testing.h"

#define TAKEN "(sed -n '5p;6p' $D/six.jsonl; sed -n '3p;5p;6p' $D/six.jsonl) >$D/taken.jsonl; "
#define HELD_OUT "sed -n '2p;3p' $D/six.jsonl >$D/held.jsonl; "
#define MIXTURE                                                                                              \
    "--data $D/six.jsonl --data $D/six.jsonl --mixture-weights 0.7,0.5 --mixture-seed 3 --test-split-size "  \
    "0.2 "
#define LLAMA "$R $G/llama_plain/model "

/* Six rows of what lies there, which may have five. */
static void put_six(io_fixture *f, const char *rows) {
    cli_ok(f, sbp_arena_printf(f->arena, "(cat %s; cat %s) | head -n 6 >$D/six.jsonl; " TAKEN HELD_OUT, rows,
                               rows));
}

static const char *hash_of(const sbp_json *data) {
    return sbp_json_member(data, "hash")->string;
}

/* Both runs of $D have the same data, and evaluate the same. */
static void assert_same_data(io_fixture *f, const char *a, const char *b, const char *what) {
    const sbp_json *x = cli_json(f, sbp_arena_printf(f->arena, "%s/run.json", a)),
                   *y = cli_json(f, sbp_arena_printf(f->arena, "%s/run.json", b)),
                   *evals = sbp_json_member(x, "eval"), *others = sbp_json_member(y, "eval");
    assert_int_equal(evals->count, 1);
    assert_int_equal(others->count, 1);
    if (strcmp(hash_of(sbp_json_member(x, "data")), hash_of(sbp_json_member(y, "data"))) != 0)
        fail_msg("%s: other rows are trained on", what);
    if (strcmp(hash_of(&evals->items[0]), hash_of(&others->items[0])) != 0)
        fail_msg("%s: other rows are evaluated", what);
}

#define ROLLOUT(group, prompt, completion, reward)                                                           \
    "{\"group\": " group ", \"prompt_ids\": [" prompt "], \"completion_ids\": [" completion                  \
    "], \"advantage\": " reward "}\n"

static void test_same_as_a_file(void **state) {
    io_fixture *f = *state;
    static const struct {
        const char *rows, *options;
    } cases[] = {{"$G/llama_plain/train.jsonl", "$G/llama_plain/model"},
                 {"$G/llama_plain/train.jsonl", "$G/llama_plain/model --packing bfd --seq-len 96"},
                 {"tests/data/pairs/rows.jsonl", "tests/data/ppo/model --objective dpo"},
                 {"tests/data/kto/rows.jsonl", "$S --objective kto"},
                 {"$D/rollouts.jsonl", "tests/data/ppo/model --objective grpo --share-prompt on"}};
    const char *ranks = cli_has_ranks(f, "mixtures of two ranks") ? "--ranks 2 " : "";
    cli_put(f, "rollouts.jsonl",
            ROLLOUT("1", "5, 6", "7, 8", "1") ROLLOUT("1", "5, 6", "9", "-1")
                ROLLOUT("2", "3", "4, 4, 5", "1") ROLLOUT("2", "3", "4, 5", "0.5")
                    ROLLOUT("3", "8, 8", "3", "1") ROLLOUT("3", "8, 8", "2, 3", "-1"));
    for (int i = 0; i < SBP_COUNT(cases); i++) {
        put_six(f, cases[i].rows);
        cli_ok(f,
               sbp_arena_printf(f->arena, "$R %s %s" MIXTURE "--steps 2 --out $D/mixed --overwrite --verbose",
                                cases[i].options, i > 0 ? ranks : ""));
        if (!strstr(cli_unfolded(f, "err"), "rows of the mixture: 4 of 6 ("))
            fail_msg("%s", cli_text(f, "err"));
        cli_ok(f, sbp_arena_printf(
                      f->arena,
                      "$R %s --data $D/taken.jsonl --eval $D/held.jsonl --steps 2 --out $D/file --overwrite",
                      cases[i].options));
        assert_same_data(f, "mixed", "file", cases[i].options);
        cli_ok(f, "rm -rf $D/mixed $D/file");
    }
}

/* As configurations of others say it. */
static void test_configurations(void **state) {
    io_fixture *f = *state;
    put_six(f, "$G/llama_plain/train.jsonl");
    cli_ok(f,
           "printf 'dataset_mixture:\\n  datasets:\\n  - id: %s\\n    weight: 0.7\\n  - id: %s\\n    weight: "
           "0.5\\n  seed: 3\\n  test_split_size: 0.2\\neval_strategy: epoch\\nmax_steps: 2\\n' $D/six.jsonl "
           "$D/six.jsonl >$D/c.yaml; " LLAMA "--config $D/c.yaml --out $D/mixed; " LLAMA
           "--data $D/taken.jsonl --eval $D/held.jsonl --steps 2 --out $D/file");
    assert_same_data(f, "mixed", "file", "dataset_mixture");
    /* weights of its older form take the first rows, and TRL's are shares: 3 of 6, or as many of each */
    cli_ok(f, "printf 'dataset_mixer:\\n  %s: 0.5\\n' $D/six.jsonl >$D/c.yaml; " LLAMA
              "--config $D/c.yaml --score $D/s --out none; cut -d, -f1 $D/s | tr '\\n' ' '");
    assert_string_equal(cli_text(f, "out"), "{\"row\": 0 {\"row\": 1 {\"row\": 2 ");
    cli_ok(f, "printf 'datasets:\\n- path: %s\\n  fraction: 1\\n- path: %s\\n  fraction: 2\\n' $D/six.jsonl "
              "$D/held.jsonl >$D/c.yaml; " LLAMA
              "--config $D/c.yaml --score $D/s --out none; cut -d, -f1 $D/s | tr "
              "'\\n' ' '");
    assert_string_equal(cli_text(f, "out"), "{\"row\": 0 {\"row\": 6 {\"row\": 7 ");
    /* a data set of the command line is not mixed */
    cli_ok(f, LLAMA "--config $D/c.yaml --data $D/six.jsonl --score $D/s --out none; wc -l <$D/s");
    assert_int_equal(atoi(cli_text(f, "out")), 6);
}

/* Columns that only a joined column names are read of files that have columns, as of lines. */
static void test_joined_columns(void **state) {
    io_fixture *f = *state;
    static const char *const files[] = {"rows.jsonl", "plain.parquet", "file.arrow"};
    for (int i = 0; i < SBP_COUNT(files); i++)
        cli_ok(f, sbp_arena_printf(
                      f->arena,
                      "$R $S --data tests/data/rows/%s --columns "
                      "prompt=color+optional,completion=color,messages=text --score $D/%s --out none",
                      files[i], files[i]));
    cli_ok(
        f,
        "grep -c logps $D/rows.jsonl; cmp $D/rows.jsonl $D/plain.parquet && cmp $D/rows.jsonl $D/file.arrow");
    assert_string_equal(cli_text(f, "out"), "12\n");
}

/* What is evaluated, and when nothing is, also of a run that goes on. */
static void test_what_is_evaluated(void **state) {
    io_fixture *f = *state;
    put_six(f, "$G/llama_plain/train.jsonl");
    cli_ok(f, LLAMA "--data $D/six.jsonl --test-split-size 2 --steps 2 --save-every 1 --out $D/o");
    assert_non_null(strstr(cli_text(f, "o/metrics.jsonl"), "\"eval_file\": \"rows that are held out\""));
    cli_ok(f, LLAMA "--resume --steps 3 --out $D/o");
    assert_non_null(strstr(cli_unfolded(f, "err"), "step 3 eval_loss"));
    cli_ok(f, LLAMA
           "--data $D/six.jsonl --test-split-size 2 --steps 2 --save-every 1 --eval-strategy no --out $D/p");
    assert_null(strstr(cli_text(f, "p/metrics.jsonl"), "eval_file"));
    cli_ok(f, LLAMA "--resume --steps 3 --out $D/p");
    assert_null(strstr(cli_text(f, "p/metrics.jsonl"), "eval_file"));
    cli_ok(f, LLAMA "--data $D/six.jsonl --test-split-size 2 --steps 1 --eval $D/taken.jsonl --out $D/q");
    assert_non_null(strstr(cli_unfolded(f, "err"), "held out, and not evaluated: those of --eval are"));
    assert_null(strstr(cli_text(f, "q/metrics.jsonl"), "held out"));
    /* the longest row is one of the two that are held out (2 and 3 by datasets); the plan has room for it */
    cli_ok(f, "awk 'NR == 3 {printf \"{\\\"input_ids\\\": [1\"; for (i = 0; i < 900; i++) printf \", 2\"; "
              "print \"]}\"; next} "
              "{print \"{\\\"input_ids\\\": [1, 2, 3]}\"}' $D/six.jsonl >$D/long.jsonl; " LLAMA
              "--data $D/long.jsonl --test-split-size 2 --steps 1 --batch-size 1 --out none");
    cli_ok(f, "$R check $G/llama_plain/model --data $D/six.jsonl --test-split-size 2 --mixture-weights 0.9");
}

/* A run goes on with the rows that it had, from the cache or not; its settings are its own. */
static void test_runs_that_go_on(void **state) {
    io_fixture *f = *state;
    put_six(f, "$G/llama_plain/train.jsonl");
    cli_ok(f, LLAMA MIXTURE
           "--schedule constant --steps 2 --save-every 1 --data-cache $D/cache --out $D/o; " LLAMA
           "--resume --steps 3 --out $D/o; " LLAMA MIXTURE
           "--schedule constant --steps 3 --data-cache none --out $D/p");
    cli_same(f, "o/model.safetensors", "p/model.safetensors");
    static const char *const others[] = {"--mixture-weights 0.7,0.6", "--mixture-rows first",
                                         "--mixture-seed 4", "--test-split-size 1"};
    for (int i = 0; i < SBP_COUNT(others); i++)
        cli_fails(f, 2,
                  sbp_arena_printf(f->arena, "--resume cannot change %.*s", (int)strcspn(others[i], " "),
                                   others[i]),
                  sbp_arena_printf(f->arena, LLAMA "--resume --steps 4 --out $D/o %s", others[i]));
    cli_ok(f, LLAMA "--data $D/six.jsonl --data $D/six.jsonl --mixture-weights 0.7,0.5 --mixture-seed 5 "
                    "--test-split-size 0.2 --steps 2 --data-cache $D/cache --out $D/q");
    assert_string_not_equal(hash_of(sbp_json_member(cli_json(f, "o/run.json"), "data")),
                            hash_of(sbp_json_member(cli_json(f, "q/run.json"), "data")));
}

/* Scores of all rows are a reference for those that are trained on, and for those that are held out. */
static void test_references(void **state) {
    io_fixture *f = *state;
    put_six(f, "tests/data/pairs/rows.jsonl");
    cli_ok(f,
           "sed -i 's/\"ref[a-z_]*\": *[^],}]*[],]*//g' $D/six.jsonl; $R tests/data/ppo/model --objective "
           "dpo --data "
           "$D/six.jsonl --score $D/ref.jsonl --out none; $R tests/data/ppo/model --objective dpo --data "
           "$D/six.jsonl --ref $D/ref.jsonl --mixture-weights 0.9 --test-split-size 2 --steps 2 --out $D/o");
    assert_non_null(strstr(cli_text(f, "o/metrics.jsonl"), "held out"));
}

static void test_what_is_refused(void **state) {
    io_fixture *f = *state;
    static const struct {
        const char *message, *options;
    } cases[] = {{"has 2 weights, --data is given 1 time", "--mixture-weights 1,0.5"},
                 {"has 1 weight, --data is given 2 times", "--data $D/six.jsonl --mixture-weights 1"},
                 {"1.5 is above 1, and no row is taken twice", "--mixture-weights 1.5"},
                 {"found 'nan', expected a number of 0 to 1", "--mixture-weights nan"},
                 {"found 'inf', expected a number of 0 to 1", "--mixture-weights inf"},
                 {"found '-1', expected a number of 0 to 1", "--mixture-weights=-1"},
                 {"found '0.5x', expected a number of 0 to 1", "--mixture-weights 0.5x"},
                 {"found '-1', expected 0 or a number above", "--mixture-weights=-1 --mixture-rows shares"},
                 {"some have a share (fraction) and others none",
                  "--data $D/six.jsonl --mixture-weights 1,none --mixture-rows shares"},
                 {"all shares are 0", "--mixture-weights 0 --mixture-rows shares"},
                 {"the shares are too large to add",
                  "--data $D/six.jsonl --mixture-weights 1e308,1e308 --mixture-rows shares"},
                 {"--mixture-seed has no effect without", "--mixture-seed 3"},
                 {"--mixture-rows has no effect without", "--mixture-rows first"},
                 {"expected a share of the rows, below 1, or a whole number", "--test-split-size 1.0"},
                 {"expected a share of the rows, below 1, or a whole number", "--test-split-size 2.5"},
                 {"0 is not above 0", "--test-split-size 0"},
                 {"--test-split-size 6 of 6 rows leaves none to train on", "--test-split-size 6"},
                 {"--test-split-size 0.999 of 6 rows leaves none", "--test-split-size 0.999"},
                 {"--test-split-size 2 of 1 row leaves none", "--test-split-size 2 --mixture-weights 0.2"}};
    put_six(f, "$G/llama_plain/train.jsonl");
    for (int i = 0; i < SBP_COUNT(cases); i++) {
        int status =
            cli(f, sbp_arena_printf(f->arena, LLAMA "--data $D/six.jsonl --out none %s", cases[i].options));
        if (status != 2 || !strstr(cli_unfolded(f, "err"), cases[i].message))
            fail_msg("%s: exit status %d, %s", cases[i].options, status, cli_text(f, "err"));
    }
    cli_fails(f, 1, "take none of 6 rows", LLAMA "--data $D/six.jsonl --mixture-weights 0.1 --out none");
    cli_fails(f, 2, "--mixture-weights needs --data", LLAMA "--eval $D/six.jsonl --mixture-weights 1");
    cli_fails(f, 2, "--test-split-size needs --data", LLAMA "--eval $D/six.jsonl --test-split-size 1");
    cli_fails(f, 2, "rows of standard input cannot be counted",
              LLAMA "--data - --mixture-weights 0.5 --seq-len 64 --out none <$D/six.jsonl");
    cli_ok(f, LLAMA "--data - --mixture-weights 1 --seq-len 64 --steps 1 --out none <$D/six.jsonl");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_same_as_a_file, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_configurations, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_joined_columns, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_what_is_evaluated, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_runs_that_go_on, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_references, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_what_is_refused, cli_setup, io_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
