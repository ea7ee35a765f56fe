/* The directory of a run: who may write in it, what is never written over or deleted, and what is left. */
#include "tests/cli/cli_testing.h"

/* A run of steps of two rows; AT: with a signal before a chosen call (tests/common/signal_at.c). */
#define RUN "$R $D/p --data $D/t.jsonl --batch-size 2 --lr 0.001 "
#define AT "env LD_PRELOAD=" SBP_SIGNAL_AT " "

static int setup(void **state) {
    if (cli_setup(state) != 0)
        return -1;
    io_fixture *f = *state;
    cli_ok(f, "$C compile $S -o $D/p --seq-len 300; head -24 $G/stories260k_trl/train.jsonl >$D/t.jsonl");
    cli_put(
        f, "picture",
        "cd $D/o && find . -printf '%p %y %s %T@ %l\\n' | sort && find . -type f | sort | xargs -r md5sum\n");
    return 0;
}

/* Everything below $D/o: contents, times, targets of links. */
#define PICTURE(file) "sh $D/picture >$D/" file "; "

/* ---- two runs --------------------------------------------------------------------------------------- */

/* A second start is refused, says by whom, touches nothing, and the first goes on as if nothing had been. */
static void test_a_second_start(void **state) {
    io_fixture *f = *state;
    static const char *const seconds[] = {RUN "--out $D/o --steps 6",
                                          RUN "--out $D/o --steps 6 --resume",
                                          RUN "--out $D/o --steps 6 --overwrite",
                                          RUN "--out $D/o --dry-run",
                                          "$R $D/p --eval $D/t.jsonl --out $D/o/",
                                          "$R $S --data $D/t.jsonl --steps 1 --out $D/o --overwrite"};
    cli_ok(f, RUN "--out $D/whole --steps 6");
    for (int i = 0; i < SBP_COUNT(seconds); i++) {
        /* stopped while it writes a checkpoint, so that there is a temporary directory */
        cli_ok(f,
               sbp_arena_printf(
                   f->arena,
                   "rm -rf $D/o; " AT "SBP_AT=STOP@write:9:.checkpoint-4 " RUN
                   "--out $D/o --steps 6 --save-every 2 & P=$!; "
                   "while ! grep -q '^State:.T' /proc/$P/status; do sleep 0.01; done; " PICTURE(
                       "before") "%s; echo \"$? $P\" >$D/status; " PICTURE("after") "kill -CONT $P; wait $P",
                   seconds[i]));
        int status = 0, pid = 0;
        assert_int_equal(sscanf(cli_text(f, "status"), "%d %d", &status, &pid), 2);
        const char *message = sbp_arena_printf(f->arena, "(process %d): choose another --out", pid);
        if (status != 4 || !strstr(cli_text(f, "err"), message))
            fail_msg("%s: status %d: %s", seconds[i], status, cli_text(f, "err"));
        assert_non_null(strstr(cli_text(f, "before"), "./.checkpoint-4-"));
        cli_same(f, "before", "after");
        cli_same(f, "whole/model.safetensors", "o/model.safetensors");
        cli_ok(f, "test -z \"$(ls -A $D/o | grep '^\\.')\"");
    }
}

/* The lock dies with its process, and what that left goes when the next one begins, not before. */
static void test_what_a_killed_run_leaves(void **state) {
    io_fixture *f = *state;
    cli_ok(f, RUN "--out $D/whole --steps 6");
    assert_int_equal(
        cli(f, AT "SBP_AT=KILL@rename:1:.checkpoint-4 " RUN "--out $D/o --steps 6 --save-every 2"), 137);
    cli_ok(f,
           "mkdir $D/o/.checkpoint-old-1; echo x >$D/o/.checkpoint-old-1/f; echo x >$D/o/run.json.77.0.tmp; "
           "echo x >$D/o/notes.tmp; ls -A $D/o");
    assert_non_null(strstr(cli_text(f, "out"), ".checkpoint-4-"));
    assert_non_null(strstr(cli_text(f, "out"), ".lock"));
    cli_fails(f, 2, "go on with --resume", PICTURE("before") RUN "--out $D/o --steps 6");
    cli_ok(f, "rm -f $D/o/.lock; " PICTURE("after") "sed -i '/[.]lock/d; /^[.] /d' $D/before $D/after");
    cli_same(f, "before", "after");
    cli_ok(f, RUN "--out $D/o --steps 6 --save-every 2 --resume");
    cli_same(f, "whole/model.safetensors", "o/model.safetensors");
    cli_ok(f, "test -z \"$(ls -A $D/o | grep -E '^\\.|tmp$' | grep -vx notes.tmp)\"; test -f $D/o/notes.tmp");
}

/* ---- links ------------------------------------------------------------------------------------------ */

/* A directory from somebody else: what its links point to stays as it is. */
static void test_links_are_not_followed(void **state) {
    io_fixture *f = *state;
    cli_ok(f, "mkdir $D/o $D/mine $D/mine/deep; for n in a deep/b; do echo precious >$D/mine/$n; done; "
              "ln -s $D/mine $D/o/.checkpoint-old-1; ln -s $D/mine $D/o/.checkpoint-3-9; "
              "mkdir $D/o/.checkpoint-old-2; ln -s $D/mine $D/o/.checkpoint-old-2/in; "
              "ln -s $D/mine/a $D/o/metrics.jsonl; ln -s $D/mine/a $D/o/plan.bin.1.0.tmp; "
              "ln -s $D/mine $D/o/checkpoint-1; ln -s $D/mine $D/o/checkpoint-2; echo '{}' >$D/o/run.json; "
              "ln -s $D/mine/a $D/o/model.safetensors; cp -r $D/mine $D/before");
    cli_ok(f, RUN "--out $D/o --steps 4 --save-every 1 --keep 1 --overwrite");
    cli_ok(f, "diff -r $D/mine $D/before; test -z \"$(find $D/o -type l)\"; "
              "test -z \"$(ls -A $D/o | grep '^\\.')\"; test ! -e $D/o/checkpoint-1");
    cli_ok(f, "rm -r $D/o; mkdir $D/o; ln -s $D/mine/lock $D/o/.lock");
    cli_fails(f, 4, "cannot write to", RUN "--out $D/o --steps 4");
    cli_ok(f, "diff -r $D/mine $D/before");
}

/* --keep: a checkpoint that cannot go is reported, and the others go all the same. */
static void test_a_checkpoint_that_stays(void **state) {
    io_fixture *f = *state;
    sbp_text deep; /* deeper than is descended: not even root can remove it that way */
    sbp_text_init(&deep, f->arena);
    for (int i = 0; i < 60; i++)
        sbp_text_add(&deep, "/d");
    cli_ok(f, sbp_arena_printf(f->arena,
                               RUN "--out $D/o --steps 4 --save-every 1 --keep all; mkdir -p "
                                   "$D/o/checkpoint-2%s; " RUN
                                   "--out $D/o --steps 6 --save-every 1 --keep 1 --resume",
                               deep.data));
    const char *err = cli_text(f, "err");
    assert_non_null(strstr(err, "cannot remove '"));
    assert_non_null(strstr(err, "/o/checkpoint-2'"));
    cli_ok(f, "cd $D/o; ls -d checkpoint-* | tr '\\n' ' '");
    assert_string_equal(cli_text(f, "out"), "checkpoint-6 ");
}

/* ---- what is never written over --------------------------------------------------------------------- */

static void test_nothing_is_written_over(void **state) {
    io_fixture *f = *state;
    static const struct {
        const char *prepare, *command, *message;
    } cases[] = {
        {"cp -r $S $D/o", "$R $D/o --data $D/t.jsonl --out $D/o", "is where the model is read from"},
        {"cp -r $S $D/o", "cd $D; $R o --data $D/t.jsonl --out ./o/", "is where the model is read from"},
        {"cp -r $S $D/o", "$R $D/p --data $D/t.jsonl --weights $D/o --out $D/o",
         "is where the model is read from"},
        {"cp -r $S $D/m; $C compile $D/m -o $D/q; mv $D/m $D/o; ln -s o $D/m",
         "$R $D/q --data $D/t.jsonl --out $D/o", "is where the model is read from"},
        {RUN "--out $D/o --steps 2", "$R $D/o --data $D/t.jsonl --out $D/o --overwrite",
         "is where the model is read from"},
        {RUN "--out $D/o --steps 2", RUN "--weights $D/o/model.safetensors --out $D/o --overwrite",
         "is where the model is read from"},
        {"mkdir $D/o; echo x >$D/o/thesis.tex", RUN "--out $D/o --steps 2", "('thesis.tex' is there)"},
        {"mkdir $D/o; echo x >$D/o/thesis.tex", RUN "--out $D/o --steps 2 --overwrite",
         "('thesis.tex' is there)"},
        {"mkdir $D/o; echo x >$D/o/thesis.tex", RUN "--out $D/o --dry-run", "('thesis.tex' is there)"},
        {RUN "--out $D/o --steps 2 --save-every 1", RUN "--out $D/o --steps 3",
         "holds checkpoints of another run"},
        {RUN "--out $D/o --steps 2 --save-every never", RUN "--out $D/o --steps 3",
         "holds the model of another run"},
        {RUN "--out $D/o --steps 2 --save-every never", RUN "--out $D/o --steps 3 --resume",
         "holds a model and no checkpoint to go on from"},
        {RUN "--out $D/o --steps 2", "$R $D/p --eval $D/t.jsonl --out $D/o", "whose metrics would be lost"},
        {RUN "--out $D/o --steps 2", RUN "--score $D/s.jsonl --out $D/o", "whose metrics would be lost"},
        {"$R $S --data $D/t.jsonl --steps 2 --out $D/o",
         "$R $S --data $D/t.jsonl --steps 2 --seq-len 999 --out $D/o", "of another run"},
        {"mkdir $D/o; cp $D/t.jsonl $D/o/t", "$R $D/p --data $D/o/t --score $D/o/t", "which is read"},
        {"mkdir $D/o; cp $D/t.jsonl $D/o/t; ln -s o $D/l",
         "$R $D/p --eval $D/t.jsonl --data $D/o/t --score $D/l/t", "which is read"},
        {"mkdir $D/o; cp $D/p $D/o/p", "$R $D/o/p --data $D/t.jsonl --score $D/o/p", "which is read"},
        {"cp -r $S $D/o", "$R $D/p --data $D/t.jsonl --weights $D/o --dump-gradients $D/o/model.safetensors",
         "which is read"},
        {"cp -r $S $D/o", "$C compile $D/o -o $D/o/config.json", "is there and no plan"},
        {"cp -r $S $D/o", "$C compile $D/o/config.json -o $D/o/config.json", "is there and no plan"},
        {"cp -r $S $D/o", "$C compile $D/o -o $D/o/model.safetensors", "is there and no plan"},
        {"mkdir $D/o; cp $D/p $D/o/p", "$C inspect $D/o/p --svg $D/o/p", "which is read"},
    };
    for (int i = 0; i < SBP_COUNT(cases); i++) {
        cli_ok(f,
               sbp_arena_printf(f->arena, "rm -rf $D/o $D/l $D/m $D/s.jsonl; %s; " PICTURE("before") "true",
                                cases[i].prepare));
        cli_fails(f, 2, cases[i].message, cases[i].command);
        cli_ok(f, PICTURE("after") "sed -i '/^[.] /d' $D/before $D/after");
        cli_same(f, "before", "after");
    }
}

/* ---- where the result goes -------------------------------------------------------------------------- */

/* Without --out a training says before its first step where it writes. */
static void test_the_usual_directory(void **state) {
    io_fixture *f = *state;
    static const char said[] = "the model, checkpoints and metrics go to 'stories260K-sft'";
    cli_ok(f, "cp -r $S $D/stories260K; cd $D; $R p --data t.jsonl --steps 2");
    const char *err = sbp_arena_strdup(f->arena, cli_text(f, "err")), *at = strstr(err, said);
    assert_true(at && strstr(at, "step 1/2"));
    assert_true(cli_exists(f, "stories260K-sft/model.safetensors"));
    cli_fails(f, 2, "'stories260K-sft' holds", "cd $D; $R stories260K --data t.jsonl --steps 2");
    cli_ok(f, "cd $D; $R stories260K/ --data t.jsonl --steps 3 --overwrite");
    at = strstr(sbp_arena_strdup(f->arena, cli_text(f, "err")), said);
    assert_true(at && strstr(at, "step 1/3"));
    assert_true(cli_exists(f, "stories260K-sft/plan.bin"));
    cli_ok(f, "cd $D; $R p --eval t.jsonl; $R p --data t.jsonl --score s; $R p --data t.jsonl --dry-run; "
              "$R p --data t.jsonl --steps 1 --out none; $R p --data t.jsonl --dump-gradients g --out x; ls");
    const char *text = sbp_arena_strdup(f->arena, cli_text(f, "out"));
    assert_string_equal(text + strlen(text) -
                            strlen("err\ng\nout\np\npicture\ns\nstories260K\nstories260K-sft\nt.jsonl\n"),
                        "err\ng\nout\np\npicture\ns\nstories260K\nstories260K-sft\nt.jsonl\n");
}

/* A run that is refused after its directory was made takes it away again. */
static void test_a_refused_run_leaves_no_directory(void **state) {
    io_fixture *f = *state;
    cli_fails(f, 3, "--memory is 5.00 MiB", "$R $S --data $D/t.jsonl --steps 1 --out $D/o --memory 5MiB");
    assert_false(sbp_directory_exists(io_path(f, "o")));
    cli_fails(f, 4, "none", RUN "--weights $D/none --out $D/o");
    assert_false(sbp_directory_exists(io_path(f, "o")));
    cli_ok(f, "mkdir $D/o"); /* not ours */
    cli_fails(f, 4, "none", RUN "--weights $D/none --out $D/o");
    cli_ok(f, "test -d $D/o; test -z \"$(ls -A $D/o)\"");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_second_start, setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_what_a_killed_run_leaves, setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_links_are_not_followed, setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_a_checkpoint_that_stays, setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_nothing_is_written_over, setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_the_usual_directory, setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_a_refused_run_leaves_no_directory, setup, io_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
