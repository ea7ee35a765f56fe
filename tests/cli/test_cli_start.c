/* What comes before the first step: the dry run, which says what the run does, and sbpc as a child. */
#include "tests/cli/cli_testing.h"

#define DATA "$G/stories260k_trl/train.jsonl"
#define AT "env LD_PRELOAD=" SBP_SIGNAL_AT " "

/* ---- the dry run ------------------------------------------------------------------------------------ */

static void test_a_dry_run(void **state) {
    io_fixture *f = *state;
    cli_put(f, "pc.jsonl", "{\"prompt\": \"Once upon a time,\", \"completion\": \" a cat sat.\"}\n");
    cli_ok(f, "$C compile $S -o $D/p --seq-len 933");
    cli_ok(f, "$R $D/p --data $D/pc.jsonl --dry-run");
    assert_non_null(strstr(cli_text(f, "out"), "row 0: <s> Once upon a time,[[ a cat sat.</s>]]"));
    cli_ok(f, "$R $D/p --data " DATA " --dry-run --json --epochs 2.5");
    const sbp_json *dry = cli_json(f, "out");
    assert_int_equal(cli_number(f, dry, "rows"), 200);
    assert_int_equal(cli_number(f, dry, "tokens"), 12996);
    assert_int_equal(cli_number(f, dry, "trained_tokens"), 12796);
    assert_int_equal(cli_number(f, dry, "steps"), 63); /* ceil(2.5 * 25) */
    cli_ok(f, "$R $S --data " DATA " --dry-run");
    assert_non_null(strstr(cli_text(f, "out"), "steps      75 in all"));
    assert_non_null(strstr(cli_text(f, "out"), "MiB planned, cpu backend\ntime       about "));
}

/* The same options with and without --dry-run: the same data, steps and memory, or the same refusal; and the
 * dry run leaves nothing. */
static void test_a_dry_run_says_what_the_run_does(void **state) {
    io_fixture *f = *state;
    static const char *const commands[] = {
        "$R $S --data " DATA " --steps 2",
        "$R $S --data " DATA " --steps 2 --seq-len 300 --batch-size 3",
        "$R $S --data " DATA " --steps 2 --max_length 100",
        "$R $S --data " DATA " --steps 2 --seq-len 100 --overlong split",
        "$R $S --data " DATA " --steps 2 --seq-len 100 --overlong drop --threads 1",
        "$R $D/p --data " DATA " --epochs 0.1 --overlong truncate",
        "$R $D/p --data " DATA " --epochs 0.1",                         /* too long */
        "$R $S --data " DATA " --steps 2 --seq-len 100",                /* likewise */
        "$R $S --data " DATA " --steps 2 --overlong drop",              /* needs --seq-len */
        "$R $S --data " DATA " --steps 2 --memory 5MiB",                /* too little */
        "$R $S --data " DATA " --steps 2 --seq-len 300 --accumulate 1", /* too few */
        "$R $S --data " DATA " --steps 2 --optimizer none",             /* cannot train */
        "$R $D/c --data " DATA " --steps 2",                            /* no weights */
        "$R $D/p --data " DATA " --steps 2 --overlong drop --weights $D/none",
        "$R $D/p --data " DATA " --steps 2 --overlong drop --weights random:x",
        "$R $D/huge --data " DATA " --steps 2",
        "$R $S --data $D/none --steps 2",
        "$R $S --data " DATA " --steps 2 --chunck 7",
    };
    static const char *const keys[] = {"rows", "documents", "tokens", "trained_tokens"};
    int refused = 0;
    cli_ok(
        f,
        "$C compile $S -o $D/p --seq-len 200; mkdir $D/c $D/tmp; cp $S/config.json $S/tokenizer.json $D/c; "
        "$C compile $S -o $D/huge --seq-len 1000000000");
    for (int i = 0; i < SBP_COUNT(commands); i++) {
        cli_ok(f, "rm -rf $D/o");
        int dry =
            cli(f, sbp_arena_printf(f->arena, "TMPDIR=$D/tmp %s --out $D/o --json --dry-run", commands[i]));
        const char *said = sbp_arena_strdup(f->arena, cli_text(f, "err"));
        const sbp_json *plan = dry == 0 ? cli_json(f, "out") : NULL;
        cli_ok(f, "test ! -e $D/o; test -z \"$(ls -A $D/tmp)\"");
        int real = cli(f, sbp_arena_printf(f->arena, "%s --out $D/o --json", commands[i]));
        const char *err = sbp_arena_strdup(f->arena, cli_text(f, "err"));
        if (dry != real)
            fail_msg("%s: exits %d, with --dry-run %d: %s", commands[i], real, dry, said);
        if (real != 0) {
            refused++;
            char *message = strstr(sbp_arena_strdup(f->arena, err), "error: ");
            if (!message)
                fail_msg("%s: %s", commands[i], err);
            message[strcspn(message, "0123456789\n")] = 0; /* names of temporary files, free memory */
            if (!strstr(said, message))
                fail_msg("%s: '%s', with --dry-run '%s'", commands[i], err, said);
            continue;
        }
        const sbp_json *summary = cli_json(f, "out"), *run = cli_json(f, "o/run.json");
        for (int k = 0; k < SBP_COUNT(keys); k++)
            assert_int_equal(cli_number(f, plan, keys[k]),
                             cli_number(f, sbp_json_member(run, "data"), keys[k]));
        assert_int_equal(cli_number(f, plan, "steps"), cli_number(f, run, "steps"));
        assert_int_equal(cli_number(f, plan, "peak_bytes_planned"),
                         cli_number(f, summary, "peak_bytes_planned"));
        assert_true(cli_number(f, plan, "micro_batch_seconds") > 0);
    }
    assert_int_equal(refused, SBP_COUNT(commands) - 6);
}

/* Medians and 95 % of lengths, of short lists, too. */
static void test_percentiles(void **state) {
    io_fixture *f = *state;
    static const struct {
        int count;
        double median, most;
    } cases[] = {{1, 2, 2},    {2, 2.5, 3},    {3, 3, 4},    {4, 3.5, 5},
                 {19, 11, 20}, {20, 11.5, 20}, {21, 12, 21}, {40, 21.5, 39}};
    cli_ok(f, "$C compile $S -o $D/p --seq-len 100");
    for (int i = 0; i < SBP_COUNT(cases); i++) { /* documents of 2, 3, 4 ... tokens, longest first */
        sbp_text rows;
        sbp_text_init(&rows, f->arena);
        for (int n = cases[i].count; n > 0; n--) {
            sbp_text_add(&rows, "{\"input_ids\": [1");
            for (int k = 0; k < n; k++)
                sbp_text_add(&rows, ", 5");
            sbp_text_add(&rows, "]}\n");
        }
        cli_put(f, "d", rows.data);
        cli_ok(f, "$R $D/p --data $D/d --dry-run --json");
        assert_true(cli_number(f, cli_json(f, "out"), "median") == cases[i].median);
        assert_int_equal(cli_number(f, cli_json(f, "out"), "at_most_95_percent"), cases[i].most);
    }
    cli_ok(f, "$R $D/p --data $D/d --dry-run");
    assert_non_null(
        strstr(cli_text(f, "out"), "shortest 2, median 21.5, mean 21.5, 95 % at most 39, longest 41"));
}

/* ---- sbpc as a child -------------------------------------------------------------------------------- */

/* A signal to sbprun ends sbpc, however sbprun ends, and no plan comes afterwards. */
static void test_signals_end_the_child(void **state) {
    io_fixture *f = *state;
    static const struct {
        const char *signal;
        int status;
    } signals[] = {{"TERM", 143}, {"INT", 130}, {"KILL", 137}};
    for (int i = 0; i < SBP_COUNT(signals); i++)
        for (int existed = 0; existed < 2; existed++) {
            const char *run = sbp_arena_printf(
                f->arena,
                "rm -rf $D/o $D/calls; %s " AT
                "SBP_CALLS=$D/calls SBP_AT_IN=sbpc SBP_AT=PARENT-%s@fsync:1:plan.bin $R $S --data " DATA
                " --out $D/o & wait $!; s=$?; sleep 1.5; exit $s",
                existed ? "mkdir $D/o;" : "", signals[i].signal);
            int status = cli(f, run);
            if (status != signals[i].status)
                fail_msg("%s: status %d: %s", run, status, cli_text(f, "err"));
            cli_ok(f, "grep -q ' write .*/o/plan.bin' $D/calls; ls -A $D/o || true"); /* sbpc was that far */
            if (strcmp(signals[i].signal, "KILL") != 0 && *cli_text(f, "out"))
                fail_msg("%s left '%s'", signals[i].signal, cli_text(f, "out"));
            cli_ok(f, "test ! -e $D/o/plan.bin; ! grep rename $D/calls");
        }
    cli_ok(f, "$R $S --data " DATA " --out $D/o --steps 1; test -z \"$(ls -A $D/o | grep -E '^\\.|tmp$')\"");
}

/* ---- files that may not grow ------------------------------------------------------------------------ */

/* `ulimit -f`: a message and status 4, and what was there is whole. */
static void test_files_that_are_too_large(void **state) {
    io_fixture *f = *state;
    cli_ok(f, "$C compile $S -o $D/p --seq-len 300");
    cli_fails(f, 4, "File too large", "ulimit -f 40; $C compile $S -o $D/q --seq-len 300");
    cli_fails(f, 4, "model.safetensors': File too large",
              "ulimit -f 200; $R $D/p --data " DATA " --steps 2 --out $D/o");
    cli_fails(f, 4, "metrics.jsonl': File too large",
              "ulimit -f 18; $R $D/p --data " DATA " --steps 100 --save-every never --out $D/m");
    cli_ok(f, "test ! -e $D/q; test ! -e $D/o/model.safetensors; "
              "test -z \"$(ls -A $D $D/o $D/m | grep -E '^\\.|tmp$|check')\"");
}

/* config.json as transformers writes it: fields that begin with an underscore are read over and not
 * written. */
static void test_metadata_of_a_config(void **state) {
    io_fixture *f = *state;
    cli_ok(f, "cp -r $S $D/m; sed -i '1s/{/{\"_model_name_or_path\": \"a\\/b\", \"_experts_implementation\": "
              "\"eager\",/' $D/m/config.json; grep -q a/b $D/m/config.json; "
              "$R $D/m --data " DATA
              " --steps 1 --out $D/o && ! grep -q -e _model_name_or_path -e _experts $D/o/config.json");
    cli_fails(f, 1, "unheard_of",
              "sed -i 's/_model_name_or_path/unheard_of/' $D/m/config.json; $C compile $D/m -o $D/q");
}

/* --seq-len max is no longer than a step of the data has tokens, and than --memory allows. */
static void test_the_longest_that_is_of_use(void **state) {
    io_fixture *f = *state;
    static const struct {
        const char *memory;
        double least, most;             /* rows */
    } limits[] = {{"1GiB", 1300, 2600}, /* 20 of 200 documents, which have 12,996 tokens */
                  {"24MiB", 100, 1300}};
    for (int i = 0; i < SBP_COUNT(limits); i++) {
        cli_ok(f,
               sbp_arena_printf(f->arena,
                                "$R $S --data " DATA " --seq-len max --batch-size 20 --steps 1 --memory %s "
                                "--out $D/o%d --quiet && $C inspect $D/o%d/plan.bin --json",
                                limits[i].memory, i, i));
        double rows = cli_number(f, cli_json(f, "out"), "seq_len");
        assert_true(rows > limits[i].least && rows < limits[i].most);
    }
    cli_ok(f, "{ cat " DATA "; printf '{\"text\": \"'; yes ' once upon a time' | head -n 700 | tr -d '\\n'; "
              "printf '\"}\\n'; } >$D/long.jsonl");
    cli_fails(f, 1, "the plan has room for",
              "$R $S --data $D/long.jsonl --seq-len max --steps 1 --memory 24MiB --out none");
    cli_ok(f, "$R $D/o0/plan.bin --data " DATA " --batch-size 20 --dry-run --json"); /* no step has more */
    const sbp_json *dry = cli_json(f, "out");
    assert_true(cli_number(f, dry, "micro_batches_per_epoch") == cli_number(f, dry, "steps_per_epoch"));
}

/* --quiet: nothing but warnings and errors, of both programs. */
static void test_quiet(void **state) {
    io_fixture *f = *state;
    cli_ok(f, "$C compile $S -o $D/p --seq-len 600 --freeze '*mlp*' --quiet");
    assert_string_equal(cli_text(f, "err"), "");
    cli_ok(f, "$R $S --data " DATA " --lora --steps 2 --out $D/o -q");
    assert_string_equal(cli_text(f, "err"), "");
    assert_string_equal(cli_text(f, "out"), "");
    cli_fails(f, 2, "--chunk was decided", "$R $D/p --data " DATA " --steps 2 -q --chunk 3");
    cli_ok(f, "$R --resume --out $D/o $S --steps 3"); /* quiet is about one start */
    assert_non_null(strstr(cli_text(f, "err"), "step 3/3"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_dry_run, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_a_dry_run_says_what_the_run_does, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_percentiles, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_signals_end_the_child, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_files_that_are_too_large, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_metadata_of_a_config, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_the_longest_that_is_of_use, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_quiet, cli_setup, io_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
