/* The directory of a run: who may write in it, what is never written over or deleted, and what is left. */
#include "tests/cli/cli_testing.h"

/* A run of steps of two rows; AT: with a signal before a chosen call (tests/common/signal_at.c). */
#define RUN "$R $D/p --data $D/t.jsonl --batch-size 2 --lr 0.001 "
#define RUN_JSON "printf '{\\n  \"sbprun\": \"0\"}' >$D/o/run.json; " /* a run's directory */
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

/* Until the process is stopped, or gone. */
#define STOPPED "while grep -q '^State:.[RSD]' /proc/$P/status 2>/dev/null; do sleep 0.01; done; "

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
              "ln -s $D/mine $D/o/checkpoint-1; ln -s $D/mine $D/o/checkpoint-2; " RUN_JSON
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

#define FOREIGN "is not empty, and was not written by sbprun "
#define PUBLISH RUN "--steps 2 --out none --publish $D/o"

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
        {"cp -r $S $D/o", "$C compile $D/o -o $D/o/config.json", "exists and is not a plan"},
        {"cp -r $S $D/o", "$C compile $D/o/config.json -o $D/o/config.json", "exists and is not a plan"},
        {"cp -r $S $D/o", "$C compile $D/o -o $D/o/model.safetensors", "exists and is not a plan"},
        {"mkdir $D/o; cp $D/p $D/o/p", "$C inspect $D/o/p --svg $D/o/p", "which is read"},
        /* what a run could have written, and none has */
        {"mkdir $D/o; cp $S/model.safetensors $D/o", RUN "--out $D/o --overwrite",
         FOREIGN "('model.safetensors' is"},
        {"mkdir -p $D/o/checkpoint-500; echo '{}' >$D/o/checkpoint-500/trainer_state.json",
         RUN "--out $D/o --overwrite", FOREIGN "('checkpoint-500' is"},
        {"mkdir $D/o; echo '{\"project\": \"not ours\"}' >$D/o/run.json", RUN "--out $D/o",
         FOREIGN "('run.json' is"},
        {"mkdir $D/o; ln -s $D/t.jsonl $D/o/run.json", RUN "--out $D/o", FOREIGN "('run.json' is"},
        {"mkdir $D/o; echo x >$D/o/metrics.jsonl", RUN "--out $D/o", FOREIGN "('metrics.jsonl' is"},
        {"mkdir $D/o; ln -s $D/t.jsonl $D/o/metrics.jsonl", RUN "--out $D/o", FOREIGN "('metrics.jsonl' is"},
        {"mkdir $D/o; echo x >$D/o/plan.bin", "$R $S --data $D/t.jsonl --out $D/o", FOREIGN "('plan.bin' is"},
        {"mkdir $D/o; echo x >$D/o/.checkpoint-notes", RUN "--out $D/o", FOREIGN "('.checkpoint-notes' is"},
        /* --publish */
        {"mkdir -p $D/o/step-1; echo x >$D/o/step-1/thesis", PUBLISH,
         "and 'step-1' there was not published by"},
        {"mkdir -p $D/o/step-1; echo x >$D/o/step-1/thesis; touch $D/o/.published", PUBLISH,
         "'step-1' there was"},
        {"mkdir $D/o; ln -s $S $D/o/step-2; touch $D/o/.published", PUBLISH,
         "'step-2' there was not published"},
        {"mkdir -p $D/o/latest; touch $D/o/.published", PUBLISH, "'latest' there was not published"},
        {"mkdir $D/o; ln -s $S $D/o/latest", PUBLISH, "'latest' there was not published"},
        {"mkdir $D/o; echo x >$D/o/a.1.0.tmp; echo x >$D/o/notes", PUBLISH,
         "'notes' there was not published"},
        {"cp -r $S $D/o; touch $D/o/.published",
         "$R $D/o --data $D/t.jsonl --steps 1 --out none --publish $D/o", "is where the model is read from"},
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

/* What --overwrite and --keep leave: names that a run does not write, checkpoints that are none. */
static void test_what_stays_in_a_run(void **state) {
    io_fixture *f = *state;
    cli_ok(f,
           RUN "--out $D/o --steps 3 --save-every 1 --keep all; cd $D/o; cp model.safetensors "
               "model-old.safetensors; "
               "cp model.safetensors model.safetensors.bak; mkdir checkpoint-7; echo x >checkpoint-7/mine; "
               "rm checkpoint-2/trainer_state.json");
    cli_ok(f, RUN "--out $D/o --steps 1 --overwrite --save-every never");
    assert_non_null(strstr(cli_text(f, "err"), "/o/checkpoint-7': it was not written by sbprun"));
    cli_ok(f, "cd $D/o; ls -Ad mo* c*-* | tr '\\n' ' '");
    assert_string_equal(
        cli_text(f, "out"),
        "checkpoint-2 checkpoint-7 model-old.safetensors model.safetensors model.safetensors.bak ");
    cli_fails(f, 4, "/o/checkpoint-2': it was not written by sbprun",
              RUN "--out $D/o --steps 2 --save-every 2 --overwrite");
    cli_ok(f, "test -f $D/o/checkpoint-7/mine; test -f $D/o/checkpoint-2/model.safetensors; "
              "test -z \"$(ls -A $D/o | grep '^\\.')\"");
}

/* ---- what is published ------------------------------------------------------------------------------ */

/* Models of another run go; what else is there stays; what fails leaves nothing half done. */
static void test_publishing(void **state) {
    io_fixture *f = *state;
    cli_ok(f, PUBLISH
           "; echo x >$D/o/sampler.log; mkdir $D/o/step-x; touch $D/o/.checkpoint-step-3-77; " PUBLISH);
    cli_ok(f, "cd $D/o; ls -A | tr '\\n' ' '; readlink latest");
    assert_string_equal(cli_text(f, "out"), ".published latest sampler.log step-1 step-2 step-x step-2\n");
    cli_fails(f, 2, "lies in --publish",
              RUN "--out $D/o/x --steps 1; " RUN "--out $D/o/x --overwrite --publish $D/o");
    /* something comes between */
    cli_fails(f, 4, "cannot replace",
              AT "SBP_AT=STOP@mkdir:1:.checkpoint-step-2 " PUBLISH " & P=$!; " STOPPED
                 "rm $D/o/latest; mkdir $D/o/latest; kill -CONT $P; wait $P");
    cli_ok(f, "rmdir $D/o/latest; test -z \"$(ls -A $D/o | grep '^\\.' | grep -vx .published)\"");
    cli_fails(f, 4, "/o/step-2': it was not written by sbprun",
              AT "SBP_AT=STOP@mkdir:1:.checkpoint-step-2 " PUBLISH " & P=$!; " STOPPED
                 "rm -r $D/o/step-2; mkdir $D/o/step-2; echo x >$D/o/step-2/x; kill -CONT $P; wait $P");
    cli_ok(
        f,
        "rm $D/o/step-2/x; rmdir $D/o/step-2; test -z \"$(ls -A $D/o | grep '^\\.' | grep -vx .published)\"");
    cli_fails(f, 4, "File too large", "trap '' XFSZ; ulimit -f 100; " PUBLISH);
    cli_ok(f, "test -z \"$(ls -A $D/o | grep '^\\.' | grep -vx .published)\"");
    cli_fails(f, 4, "(process ",
              AT "SBP_AT=STOP@mkdir:1:.checkpoint-step-2 " PUBLISH " & P=$!; " STOPPED PUBLISH
                 "; s=$?; kill -CONT $P; wait $P; exit $s");
    assert_non_null(strstr(cli_text(f, "err"), "choose another --publish"));
    /* moved away */
    cli_fails(f, 4, "/o' is no longer the directory that the run writes in, which is '",
              AT "SBP_AT=STOP@mkdir:1:.checkpoint-step-1 " PUBLISH " & P=$!; " STOPPED
                 "mv $D/o $D/away; mkdir $D/o; kill -CONT $P; wait $P");
}

/* ---- a directory that is moved ----------------------------------------------------------------------- */

/* --out is moved while a run goes on, and made anew, or not; as it is moved what is trained is saved there,
 * and from there the run can go on. */
static void test_a_directory_that_is_moved(void **state) {
    io_fixture *f = *state;
    static const struct {
        const char *at, *out, *act, *saved;
    } cases[] = {
        {"fflush:3:metrics", "$D/o", "mv $D/o $D/away; mkdir $D/o", "3"},             /* in a step */
        {"write:1:.checkpoint-4", "$D/o", "mv $D/o $D/away", "4"},                    /* in a checkpoint */
        {"rename:1:o/model.safetensors", "$D/o", "mv $D/o $D/away; mkdir $D/o", "6"}, /* in the model */
        {"fflush:2:metrics", "$D/link", "mv $D/o $D/away; mkdir $D/o", "2"},
    };
    cli_ok(f, RUN "--out $D/whole --steps 6");
    for (int i = 0; i < SBP_COUNT(cases); i++) {
        cli_ok(f, "rm -rf $D/o $D/away $D/link; mkdir $D/o; ln -s o $D/link");
        cli_fails(f, 4, "no longer the directory that the run writes in",
                  sbp_arena_printf(f->arena,
                                   AT "SBP_AT=STOP@%s " RUN
                                      "--out %s --steps 6 --save-every 2 & P=$!; " STOPPED
                                      "%s; kill -CONT $P; wait $P",
                                   cases[i].at, cases[i].out, cases[i].act));
        const char *last = sbp_arena_printf(f->arena, "/away/checkpoint-%s'", cases[i].saved);
        if (!strstr(cli_text(f, "err"), last))
            fail_msg("%s: no %s in: %s", cases[i].at, last, cli_text(f, "err"));
        cli_ok(f, "test ! -e $D/o || rmdir $D/o");
        cli_ok(f, RUN "--out $D/away --resume; test -z \"$(ls -A $D/away | grep -E '^\\.|tmp$')\"");
        cli_same(f, "whole/model.safetensors", "away/model.safetensors");
    }
    cli_fails(f, 4, "/o' was removed while the run wrote in it",
              "rm -rf $D/o; " AT "SBP_AT=STOP@fflush:3:metrics " RUN "--out $D/o --steps 6 & P=$!; " STOPPED
              "rm -r $D/o; mkdir $D/o; kill -CONT $P; wait $P");
    /* all that is in it, by somebody who found it not empty then: at the next checkpoint, and at the end */
    for (int i = 0; i < 2; i++)
        cli_fails(f, 4, "/o' were removed while the run wrote there (.lock is gone): the run ends",
                  sbp_arena_printf(f->arena,
                                   "rm -rf $D/o; " AT "SBP_AT=STOP@fflush:3:metrics " RUN
                                   "--out $D/o --steps 6 %s& P=$!; " STOPPED
                                   "rm -r $D/o/* $D/o/.lock; kill -CONT $P; wait $P",
                                   i ? "--save-every 4 " : ""));
}

/* What killed processes left of a file goes when that is written again, if it is old; not of one that lives,
 * nor what has another name. */
static void test_leftovers_of_files(void **state) {
    io_fixture *f = *state;
#define SCORE "$R $G/llama_plain/model --data $G/llama_plain/train.jsonl --score "
    assert_int_equal(cli(f, AT "SBP_AT=KILL@rename:1:s.jsonl " SCORE "$D/s.jsonl"), 137);
    cli_ok(f, "ls $D | grep -c '^s.jsonl.[0-9]*.0.tmp$'");
    assert_string_equal(cli_text(f, "out"), "1\n");
    cli_ok(f, SCORE "$D/s.jsonl; ls $D/s.jsonl.*.tmp"); /* it may be of a process of another machine */
    cli_ok(f, "touch -d '1 hour ago' $D/s.jsonl.*.tmp; for n in s.jsonl.$$.0.tmp s.jsonl.4000000.0.tmp.x "
              "s.jsonl.2.4000000.0.tmp t.s.jsonl.4000000.0.tmp s.jsonl.4000000.tmp; do echo x >$D/$n; touch "
              "-d '1 hour "
              "ago' $D/$n; done; " SCORE "$D/s.jsonl; test $(ls $D/*tmp* | wc -l) = 5 && test -e "
              "$D/s.jsonl.$$.0.tmp");
}

/* If a killed run published models, the newest stays until two newer ones are there. */
static void test_leftovers_of_publishers(void **state) {
    io_fixture *f = *state;
    (void)cli(f, AT "SBP_AT=KILL@mkdir:1:.checkpoint-step-5 " RUN "--steps 6 --out none --publish $D/q");
    cli_ok(f, "ls -A $D/q | tr '\\n' ' '; readlink $D/q/latest");
    assert_string_equal(cli_text(f, "out"), ".lock .published latest step-3 step-4 step-4\n");
    cli_ok(f, "mkdir $D/q/step-77; cp $D/q/.published $D/q/step-77; mkdir $D/q/notes");
    (void)cli(f, AT "SBP_AT=KILL@mkdir:1:.checkpoint-step-2 " RUN "--steps 6 --out none --publish $D/q");
    cli_ok(f, "ls -A $D/q | tr '\\n' ' '; readlink $D/q/latest");
    assert_string_equal(cli_text(f, "out"), ".lock .published latest notes step-1 step-4 step-1\n");
    cli_ok(f, RUN "--steps 3 --out none --publish $D/q; ls -A $D/q | tr '\\n' ' '; readlink $D/q/latest");
    assert_non_null(strstr(cli_text(f, "out"), ".published latest notes step-2 step-3 step-3\n"));
}

/* ---- what cannot be written ------------------------------------------------------------------------- */

/* A file, or what is never writable, in place of a directory; no room for the last that is written. */
static void test_directories_that_are_none(void **state) {
    io_fixture *f = *state;
    static const char *const options[] = {"--out", "--out none --publish"};
    for (int i = 0; i < SBP_COUNT(options); i++) {
        const char *run = sbp_arena_printf(f->arena, RUN "--steps 1 %s", options[i]);
        cli_fails(f, 4, "t.jsonl': it is not a directory", sbp_arena_printf(f->arena, "%s $D/t.jsonl", run));
        cli_fails(f, 4, "Not a directory", sbp_arena_printf(f->arena, "%s $D/t.jsonl/x", run));
        cli_fails(f, 4, "cannot create the directory '/proc/x'",
                  sbp_arena_printf(f->arena, "%s /proc/x", run));
        cli_fails(f, 4, "cannot write to '/proc'", sbp_arena_printf(f->arena, "%s /proc", run));
        cli_fails(f, 4, "/l': No such file or directory",
                  sbp_arena_printf(f->arena, "ln -sf none $D/l; %s $D/l", run));
    }
    cli_fails(f, 4, "File too large",
              "trap '' XFSZ; ulimit -f 200; " RUN "--out $D/o --steps 2 --save-every never");
    cli_ok(f, "cd $D/o; ls -A | tr '\\n' ' '; wc -l <metrics.jsonl");
    assert_string_equal(cli_text(f, "out"), "config.json metrics.jsonl run.json tokenizer.json 2\n");
    cli_ok(f, RUN "--out $D/o --steps 2; mkdir $D/q; touch $D/q/.published; ln -s none $D/q/latest; " RUN
                  "--out none --steps 1 --publish $D/q; test -f $D/q/latest/model.safetensors");
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
        cmocka_unit_test_setup_teardown(test_what_stays_in_a_run, setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_publishing, setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_a_directory_that_is_moved, setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_leftovers_of_files, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_leftovers_of_publishers, setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_directories_that_are_none, setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_the_usual_directory, setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_a_refused_run_leaves_no_directory, setup, io_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
