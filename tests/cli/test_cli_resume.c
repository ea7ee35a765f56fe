/* Stopping a run and going on with it: the same bits as in one go, and the same run or a refusal. */
#include "tests/cli/cli_testing.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>

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

/* Whatever weights and states are kept in, and however they are rounded: killed after two of five steps. */
static void test_resumed_in_every_format(void **state) {
    io_fixture *f = *state;
    static const char *const formats[] = {"--dtype bf16",
                                          "--dtype bf16 --master none",
                                          "--dtype bf16 --master none --rounding nearest --state-dtype int8",
                                          "--param-dtype bf16 --state-dtype bf16",
                                          "--state-dtype int8 --clip none --accumulate 1",
                                          "--dtype bf16 --optimizer lion --state-dtype int8",
                                          "--optimizer sgd-momentum --state-dtype bf16"};
    cli_ok(f, "head -6 $G/stories260k_trl/train.jsonl >$D/t.jsonl");
    for (int i = 0; i < SBP_COUNT(formats); i++) {
        static const char run[] =
            "$R $D/p --data $D/t.jsonl --lr 0.001 --batch-size 2 --steps 5 --save-every 2 ";
        cli_ok(f, sbp_arena_printf(f->arena, COMPILE " %s; rm -rf $D/whole $D/o; %s --out $D/whole",
                                   formats[i], run));
        assert_int_equal(
            cli(f, sbp_arena_printf(f->arena, AT "SBP_AT=KILL@fflush:4:metrics.jsonl %s --out $D/o", run)),
            137);
        cli_ok(f, sbp_arena_printf(f->arena, "%s --out $D/o --resume", run));
        cli_same(f, "whole/model.safetensors", "o/model.safetensors");
        cli_same(f, "whole/checkpoint-4/optimizer.safetensors", "o/checkpoint-4/optimizer.safetensors");
    }
}

/* Element by element: what AdamW keeps after one step, of the gradient of that step. */
static void check_first_states(io_fixture *f, const char *name, int64_t elems) {
    sbp_weights *gradients, *states;
    double *g = malloc((size_t)elems * sizeof *g), *m = malloc((size_t)elems * sizeof *m),
           *v = malloc((size_t)elems * sizeof *v);
    assert_ok(f, sbp_weights_open(f->arena, f->diag, io_path(f, "g.safetensors"), &gradients));
    assert_ok(f, sbp_weights_open(f->arena, f->diag, io_path(f, "whole/checkpoint-1/optimizer.safetensors"),
                                  &states));
    const sbp_weight *of[] = {sbp_weights_find(gradients, name),
                              sbp_weights_find(states, sbp_arena_printf(f->arena, "%s.exp_avg", name)),
                              sbp_weights_find(states, sbp_arena_printf(f->arena, "%s.exp_avg_sq", name))};
    for (int k = 0; k < 3; k++) {
        assert_true(of[k] && of[k]->elems == elems);
        assert_ok(f, sbp_weights_read(k ? states : gradients, of[k], 0, elems, SBP_F64,
                                      k == 0   ? g
                                      : k == 1 ? m
                                               : v,
                                      f->diag));
    }
    for (int64_t i = 0; i < elems; i++)
        if (!(fabs(m[i] - 0.1 * g[i]) <= SBP_TOLERANCE_F32 * fabs(g[i]) &&
              fabs(v[i] - 0.001 * g[i] * g[i]) <= SBP_TOLERANCE_F32 * v[i] + (double)FLT_MIN))
            fail_msg("%s, element %lld: gradient %g, states %g and %g", name, (long long)i, g[i], m[i], v[i]);
    free(g);
    free(m);
    free(v);
    sbp_weights_close(gradients);
    sbp_weights_close(states);
}

/* Tensors of more than 131,072 elements, which are saved and read in pieces, in whichever form: a run that
 * goes on from the first of two checkpoints has the bits of the second. */
static void test_resumed_in_pieces(void **state) {
    io_fixture *f = *state;
    static const char *const formats[] = {"", "--state-dtype int8", "--dtype bf16"};
    static const char run[] = "$R $D/p --data $D/t.jsonl --weights random:5 --lr 0.001 --batch-size 2 ";
    enum { ROWS = 2200, COLS = 64 };
    cli_ok(f, "head -4 $G/stories260k_trl/train.jsonl >$D/t.jsonl; mkdir $D/m; cp $S/*.json $D/m; rm -f "
              "$D/m/*.index.json");
    for (int i = 0; i < SBP_COUNT(formats); i++) {
        cli_ok(f, sbp_arena_printf(f->arena,
                                   "rm -rf $D/whole $D/o; $C compile $D/m -o $D/p --seq-len 933 --clip none "
                                   "--set vocab_size=%d %s; %s "
                                   "--steps 2 --save-every 1 --out $D/whole",
                                   ROWS, formats[i], run));
        if (i == 0) {
            cli_ok(f, sbp_arena_printf(f->arena, "%s --dump-gradients $D/g.safetensors", run));
            check_first_states(f, "model.embed_tokens.weight", (int64_t)ROWS * COLS);
        }
        cli_ok(f, sbp_arena_printf(f->arena,
                                   "cp -r $D/whole $D/o; rm -r $D/o/checkpoint-2; %s --steps 2 --save-every "
                                   "1 --out $D/o --resume",
                                   run));
        cli_same(f, "whole/checkpoint-2/optimizer.safetensors", "o/checkpoint-2/optimizer.safetensors");
        cli_same(f, "whole/checkpoint-2/model.safetensors", "o/checkpoint-2/model.safetensors");
    }
}

/* ---- the same run ----------------------------------------------------------------------------------- */

/* What is not given is as it was when the run began, the data and the plan too. */
static void test_resume_takes_the_options_of_the_run(void **state) {
    io_fixture *f = *state;
    static const char begin[] =
        " --data $D/t.jsonl --lr 0.003 --schedule cosine --warmup 2 --batch-size 3 "
        "--weight-decay 0.1 --betas 0.8,0.99 --seed 7 --steps 9 --columns text=story ";
    cli_ok(f,
           COMPILE "; head -24 $G/stories260k_trl/train.jsonl | sed 's/\"text\":/\"story\":/' >$D/t.jsonl");
    static const char *const sources[] = {"$D/p", "$S --chunk 40"}, *const again[] = {"$D/p", "$S"};
    for (int i = 0; i < 2; i++) {
        cli_ok(f,
               sbp_arena_printf(f->arena, "rm -rf $D/whole $D/o; $R %s%s--out $D/whole", sources[i], begin));
        assert_int_equal(
            cli(f, sbp_arena_printf(f->arena, AT "SBP_AT=TERM@fflush:4:metrics $R %s%s--out $D/o", sources[i],
                                    begin)),
            143);
        cli_fails(
            f, 2, "cannot change --batch-size (it was 3), --lr (it was 0.003), --betas (it was [0.8,0.99]);",
            sbp_arena_printf(f->arena, "$R %s --resume --out $D/o --lr 1e-4 --betas 0.9,0.999 --batch-size 8",
                             again[i]));
        cli_fails(f, 2, "cannot change --columns (it was text=story);",
                  sbp_arena_printf(f->arena, "$R %s --resume --out $D/o --columns text=other", again[i]));
        if (i == 1) { /* the plan that is there, were there memory for another or not; or made again */
            cli_ok(f, "cp -r $D/o $D/o2; rm $D/o2/plan.bin; $R $S --resume --out $D/o2 --memory 1GiB --lr "
                      "3e-3 --verbose");
            assert_non_null(strstr(cli_text(f, "err"), "compile tests/data/stories260K -o "));
            cli_same(f, "whole/model.safetensors", "o2/model.safetensors");
        }
        cli_ok(f, sbp_arena_printf(f->arena, "$R %s --resume --out $D/o --save-every 2 --keep 1 --verbose",
                                   again[i]));
        assert_null(strstr(cli_text(f, "err"), "compile"));
        assert_non_null(strstr(cli_text(f, "err"), "note: 5 of 9 steps in "));
        cli_same(f, "whole/model.safetensors", "o/model.safetensors");
        cli_ok(f, "test \"$(ls -d $D/o/checkpoint-*)\" = $D/o/checkpoint-9");
    }
    cli_fails(f, 2, "--resume cannot change the model (it was 'stories260K');",
              "$R $G/llama_plain/model --resume --out $D/o");
    cli_fails(f, 2, "--resume cannot change --dtype (it was fp32);",
              "$R $S --resume --out $D/o --dtype bf16");
    cli_fails(f, 2, "--resume cannot change --dtype (it was fp32);",
              "$C compile $S -o $D/q --dtype bf16; $R $D/q --resume --out $D/o");
    cli_fails(f, 2, "--resume cannot change --freeze (it was []);",
              "$R $S --resume --out $D/o --freeze '*embed*'");
    cli_ok(f, "$R $S --resume --out $D/o --dtype fp32 --steps 10 --chunk 20"); /* as it was; may change */
    assert_non_null(strstr(cli_text(f, "err"), "that had --chunk 40"));
}

/* More steps than the run was to have: on from where it ended. */
static void test_a_run_goes_on_beyond_its_end(void **state) {
    io_fixture *f = *state;
    int count;
    cli_ok(f, COMPILE);
    cli_ok(f, TRAIN " --eval $G/stories260k_trl/train.jsonl --eval-every 4 --steps 6 --out $D/o");
    cli_ok(f, "$R $D/p --out $D/o --resume --steps 8 --json");
    assert_int_equal(cli_number(f, cli_json(f, "out"), "steps"), 8);
    assert_int_equal(cli_number(f, cli_json(f, "out"), "resumed_after"), 6);
    assert_non_null(strstr(cli_text(f, "err"), "the run had 6 steps, now 8"));
    cli_ok(f, "$R $D/p --out $D/o --resume"); /* nothing is left to do: the same again */
    static const int steps[] = {0, 1, 2, 3, 4, 4, 5, 6, 6, 7, 8, 8};
    const sbp_json **lines = cli_lines(f, "o/metrics.jsonl", &count);
    assert_int_equal(count, SBP_COUNT(steps));
    for (int i = 0; i < count; i++)
        assert_int_equal(cli_number(f, lines[i], "step"), steps[i]);
    cli_ok(f,
           "for F in o o/checkpoint-8; do F=$D/$F/model.safetensors; tail -c +$((9 + $(od -An -tu8 -N8 $F))) "
           "$F >$D/$(basename $(dirname $F)).bytes; done; cmp $D/o.bytes $D/checkpoint-8.bytes");
}

/* A signal in an evaluation: it is made again, and metrics.jsonl has it once. */
static void test_stopped_in_an_evaluation(void **state) {
    io_fixture *f = *state;
    int count;
    static const int flushes[] = {2, 6, 7,
                                  9}; /* in the 2nd before the run, both after step 3, and at the end */
    static const int steps[] = {0, 0, 1, 2, 3, 3, 3, 4, 4, 4};
    cli_ok(f, COMPILE "; head -24 $G/stories260k_trl/train.jsonl >$D/t.jsonl");
    for (int i = 0; i < SBP_COUNT(flushes); i++) {
        const char *run =
            "$R $D/p --data $D/t.jsonl --eval $D/t.jsonl --eval $D/t.jsonl --eval-every 3 --steps 4 "
            "--out $D/o --resume";
        cli_ok(f, "rm -rf $D/o");
        assert_int_equal(
            cli(f, sbp_arena_printf(f->arena, AT "SBP_AT=TERM@fflush:%d:metrics %s", flushes[i], run)), 143);
        cli_ok(f, run);
        const sbp_json **lines = cli_lines(f, "o/metrics.jsonl", &count);
        assert_int_equal(count, SBP_COUNT(steps));
        for (int k = 0; k < count; k++)
            assert_int_equal(cli_number(f, lines[k], "step"), steps[k]);
    }
}

/* ---- damaged checkpoints ---------------------------------------------------------------------------- */

/* One bit of one file: which is named. */
static void test_damage_is_named(void **state) {
    io_fixture *f = *state;
    int count = 0;
    cli_ok(f, COMPILE
           "; head -24 $G/stories260k_trl/train.jsonl >$D/t.jsonl; $R $D/p --data $D/t.jsonl --steps 4 "
           "--save-every 2 --out $D/o; ls $D/o/checkpoint-4");
    char *names = sbp_arena_strdup(f->arena, cli_text(f, "out"));
    for (char *name = strtok(names, "\n"); name; name = strtok(NULL, "\n")) {
        if (strcmp(name, "checksums.json") == 0)
            continue;
        count++;
        cli_fails(f, 1, sbp_arena_printf(f->arena, "checkpoint-4/%s' is damaged", name),
                  sbp_arena_printf(
                      f->arena,
                      "rm -rf $D/c; cp -r $D/o $D/c; F=$D/c/checkpoint-4/%s; S=$(stat -c %%s $F); "
                      "B=$(od -An -tu1 -j$((S / 2)) -N1 $F); printf \"\\\\$(printf %%o $((B ^ 4)))\" | dd "
                      "of=$F bs=1 seek=$((S / 2)) conv=notrunc status=none; cmp -l $F "
                      "$D/o/checkpoint-4/%s | wc -l >$D/changed; $R $D/p --resume --out $D/c",
                      name, name));
        assert_int_equal(atoi(cli_text(f, "changed")), 1);
        cli_ok(f, "cmp $D/o/model.safetensors $D/c/model.safetensors"); /* nothing was begun */
    }
    assert_true(count >= 5);
    cli_ok(f, "rm -r $D/c/checkpoint-4; $R $D/p --resume --out $D/c"); /* from the one before */
    assert_non_null(strstr(cli_text(f, "err"), "note: 2 of 4 steps"));
    cli_same(f, "o/model.safetensors", "c/model.safetensors");
    cli_fails(f, 4, "checkpoint-4/config.json",
              "rm $D/c/checkpoint-4/config.json; $R $D/p --resume --out $D/c");
}

/* A state that is not a number is found before it makes a loss that is none. */
static void test_states_that_are_no_numbers(void **state) {
    io_fixture *f = *state;
    cli_ok(f, COMPILE
           "; head -24 $G/stories260k_trl/train.jsonl >$D/t.jsonl; $R $D/p --data $D/t.jsonl --steps 4 "
           "--save-every 2 --out $D/o; rm -r $D/o/checkpoint-4; "
           "F=$D/o/checkpoint-2/optimizer.safetensors; printf '\\377\\377\\377\\377' | dd of=$F bs=1 "
           "seek=$(($(stat -c %s $F) - 4)) conv=notrunc status=none");
    cli_sum_again(f, "o/checkpoint-2");
    cli_fails(f, 1, "is not a number, with which no run goes on", "$R $D/p --resume --out $D/o");
    assert_null(strstr(cli_text(f, "err"), "row"));
}

/* The header of a file of tensors, from `{` on, and where its bytes begin. */
static char *open_tensors(const io_fixture *f, const char *name, size_t *length, int64_t *begin) {
    const char *text;
    assert_int_equal(sbp_file_read(f->arena, f->diag, io_path(f, name), &text, length), SBP_OK);
    memcpy(begin, text, sizeof *begin);
    *begin += 8;
    char *copy = sbp_arena_alloc(f->arena, *length + 1);
    memcpy(copy, text, *length);
    return copy;
}

/* The first tensor of a name that ends so: a value in its middle. */
static void put_value(const io_fixture *f, const char *name, const char *end, float value) {
    size_t length;
    int64_t begin, from, to;
    char *text = open_tensors(f, name, &length, &begin), *at = strstr(text + 8, end);
    assert_non_null(at);
    at = strstr(at, "data_offsets\":[");
    assert_non_null(at);
    assert_int_equal(sscanf(at, "data_offsets\":[%" SCNd64 ",%" SCNd64, &from, &to), 2);
    memcpy(text + begin + from + (to - from) / 8 * 4, &value, sizeof value);
    io_put(io_path(f, name), text, length);
}

/* [a,b] of the first matrix of a name that ends so becomes [b,a]. */
static void transpose(const io_fixture *f, const char *name, const char *end) {
    size_t length;
    int64_t begin;
    long a, b;
    char *text = open_tensors(f, name, &length, &begin);
    for (char *at = strstr(text + 8, end); at; at = strstr(at + 1, end)) {
        char *shape = strstr(at, "\"shape\":["), before[60], after[60];
        if (!shape || sscanf(shape, "\"shape\":[%ld,%ld]", &a, &b) != 2 || a == b)
            continue;
        int n = snprintf(before, sizeof before, "\"shape\":[%ld,%ld]", a, b);
        snprintf(after, sizeof after, "\"shape\":[%ld,%ld]", b, a);
        memcpy(shape, after, (size_t)n);
        io_put(io_path(f, name), text, length);
        return;
    }
    fail_msg("no matrix in %s", name);
}

/* Checkpoints that were put together of others, or whose numbers no run has, though checksums fit. */
static void test_mixed_checkpoints(void **state) {
    io_fixture *f = *state;
    static const struct {
        const char *change, *message;
        const char *end; /* of a state's name */
        float value;     /* 0: its shape is transposed */
    } cases[] = {
        {"sed -i 's/\"step\": 4/\"step\": 6/' $D/c/checkpoint-4/trainer_state.json",
         "checkpoint-4': its trainer_state.json is of step 6", NULL, 0},
        {"sed -i 's/\"at\": [0-9]*/\"at\": 0/' $D/c/checkpoint-4/trainer_state.json",
         "is of another checkpoint than trainer_state.json: its metadata name '4:", NULL, 0},
        {"cd $D/c; cp checkpoint-2/model.safetensors checkpoint-4",
         "checkpoint-4/model.safetensors' is of another checkpoint than trainer_state.json: its metadata "
         "name '2:",
         NULL, 0},
        {"cd $D/c; cp checkpoint-2/optimizer.safetensors checkpoint-4",
         "checkpoint-4/optimizer.safetensors' is of another checkpoint", NULL, 0},
        {"cd $D/c; cp checkpoint-2/*.safetensors checkpoint-4; sed 's/\"step\": 2/\"step\": 4/' "
         "checkpoint-2/trainer_state.json >checkpoint-4/trainer_state.json",
         "is of another checkpoint than trainer_state.json", NULL, 0},
        {"cd $D/c; cp model.safetensors checkpoint-4", "model.safetensors' is of no checkpoint", NULL, 0},
        {"sed -z -i 's/,[^,]*\"marked\": true//; s/\"at\": [0-9]*/\"at\": 25/' "
         "$D/c/checkpoint-4/trainer_state.json",
         "goes on at row 25 of epoch 1 after step 4", NULL, 0},
        {"sed -z -i 's/,[^,]*\"marked\": true//; s/\"epoch\": [0-9]*/\"epoch\": 5/' "
         "$D/c/checkpoint-4/trainer_state.json",
         "of epoch 5 after step 4", NULL, 0},
        {"true", "is infinite, with which no run goes on", ".exp_avg_sq\"", INFINITY},
        {"true", "is infinite, with which no run goes on", ".exp_avg\"", -INFINITY},
        {"true", "is negative, with which no run goes on", ".exp_avg_sq\"", -1e-6F},
        {"true", "has the elements of the parameter, but not its shape", ".exp_avg\"", 0},
    };
#define GO_ON "$R $D/p --resume --out $D/c"
    cli_ok(f, COMPILE
           "; head -24 $G/stories260k_trl/train.jsonl >$D/t.jsonl; $R $D/p --data $D/t.jsonl --steps 6 "
           "--save-every 2 --keep all --shuffle off --out $D/whole; cp -r $D/whole $D/o; rm -r "
           "$D/o/checkpoint-6");
    for (int i = 0; i < SBP_COUNT(cases); i++) {
        cli_ok(f, sbp_arena_printf(f->arena, "rm -rf $D/c; cp -r $D/o $D/c; %s", cases[i].change));
        const char *states = "c/checkpoint-4/optimizer.safetensors";
        if (cases[i].end && cases[i].value != 0)
            put_value(f, states, cases[i].end, cases[i].value);
        else if (cases[i].end)
            transpose(f, states, cases[i].end);
        cli_sum_again(f, "c/checkpoint-4");
        cli_fails(f, 1, cases[i].message, GO_ON);
        assert_null(strstr(cli_text(f, "err"), "--columns")); /* the data are not blamed */
    }
    /* of a version that had no marks: read, and the same bits */
    cli_ok(f, "rm -rf $D/c; cp -r $D/o $D/c; sed -z -i 's/,[^,]*\"marked\": true//' "
              "$D/c/checkpoint-4/trainer_state.json");
    cli_sum_again(f, "c/checkpoint-4");
    cli_ok(f, GO_ON);
    cli_same(f, "whole/model.safetensors", "c/model.safetensors");
}

static void test_resume_asks_for_the_same_run(void **state) {
    io_fixture *f = *state;
    cli_ok(f, COMPILE);
    cli_ok(f, TRAIN " --out $D/o --save-every 5 --keep all");
    cli_ok(f, "test $(ls -d $D/o/checkpoint-* | wc -l) = 4");
    cli_fails(f, 1, "had other data",
              "head -50 $G/stories260k_trl/train.jsonl >$D/d.jsonl; $R $D/p --data $D/d.jsonl "
              "--shuffle off --out $D/o --resume");
    cli_fails(f, 2, "cannot change --seed (it was 42);", TRAIN " --out $D/o --resume --seed 7");
    cli_ok(f, "mv $D/o/run.json $D/run.json; cd $D/o && mv model.safetensors config.json tokenizer* "
              "README.md report.html $D");
    cli_fails(f, 1, "had --seed 42, this one has 7", TRAIN " --out $D/o --resume --seed 7");
    cli_fails(f, 1, "had --batch-size 8, this one has 4", TRAIN " --out $D/o --resume --batch-size 4");
    cli_ok(f, "mv $D/run.json $D/o");
    cli_fails(f, 2, "--resume needs --out", TRAIN " --out none --resume");
    cli_fails(f, 1, "trainer_state.json",
              "rm -r $D/o/checkpoint-20; echo '{}' >$D/o/checkpoint-15/trainer_state.json; " TRAIN
              " --out $D/o --resume");
    cli_ok(f, "sed 's/\"num_tokens\": [0-9]*/\"num_tokens\": 9223372036854775807/' "
              "$D/o/checkpoint-10/trainer_state.json >$D/o/checkpoint-15/trainer_state.json");
    cli_sum_again(f, "o/checkpoint-15");
    cli_fails(f, 1, "num_tokens: 9223372036854775807 is not a count: 0 .. 2^53",
              TRAIN " --out $D/o --resume");
    cli_fails(f, 1, "checksums.json does not list trainer_state.json",
              "echo '{}' >$D/o/checkpoint-15/checksums.json; " TRAIN " --out $D/o --resume");
    cli_fails(f, 1, "/o/checkpoint-15' is damaged: it has no checksums.json",
              "rm $D/o/checkpoint-15/checksums.json; " TRAIN " --out $D/o --resume");
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
        cmocka_unit_test_setup_teardown(test_resumed_in_every_format, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_resumed_in_pieces, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_resume_takes_the_options_of_the_run, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_a_run_goes_on_beyond_its_end, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_stopped_in_an_evaluation, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_damage_is_named, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_states_that_are_no_numbers, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_mixed_checkpoints, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_resume_asks_for_the_same_run, cli_setup, io_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
