/* Numbers of training and scoring that no other run shows: other hyper-parameters than the defaults against
 * torch's optimizers in float64, steps without a label, more rows than are scored at a time, several files.
 */
#include "tests/cli/cli_testing.h"

#define ROWS "$G/stories260k_trl/train.jsonl"

static void expect_near(const char *what, int step, double got, double want, double tolerance) {
    if (!(fabs(got - want) <= tolerance))
        fail_msg("%s at %d: %.12g, expected %.12g within %g", what, step, got, want, tolerance);
}

/* ---- optimizers ------------------------------------------------------------------------------------- */

/* How far a tensor went, and how far along what it was at first. */
static void expect_way(io_fixture *f, const sbp_weights *from, const sbp_weights *to, const sbp_json *want) {
    const sbp_weight *a = sbp_weights_find(from, want->key), *b = sbp_weights_find(to, want->key);
    assert_true(a && b && a->elems == b->elems);
    double *x = cli_read_tensor(f, from, a), *y = cli_read_tensor(f, to, b), way = 0, length = 0, along = 0;
    for (int64_t k = 0; k < a->elems; k++) {
        way += (y[k] - x[k]) * (y[k] - x[k]);
        length += x[k] * x[k];
        along += (y[k] - x[k]) * x[k];
    }
    free(x);
    free(y);
    double norm = cli_number(f, want, "norm");
    expect_near(want->key, 0, sqrt(way), norm, SBP_TOLERANCE_F64 * norm);
    expect_near(want->key, 1, along / sqrt(length), cli_number(f, want, "along"), SBP_TOLERANCE_F64 * norm);
}

/* Betas, eps and decay, which norms and biases do not have, of AdamW, SGD, its momentum and Lion with
 * clipping; each way to consume gradients. */
static void test_the_optimizers_of_torch(void **state) {
    io_fixture *f = *state;
    const sbp_json *root = NULL, *runs, *moved;
    sbp_weights *from, *to;
    const char *model = "tests/golden/llama_bias/model";
    assert_ok(f, sbp_json_read(f->arena, f->diag, "tests/golden/llama_bias/optimizers.json", 0, &root));
    assert_ok(f, sbp_json_get_array(f->diag, root, "runs", SBP_JSON_REQUIRED, &runs));
    assert_ok(f, sbp_weights_open(f->arena, f->diag, model, &from));
    assert_true(runs->count >= 6);
    for (int64_t r = 0; r < runs->count; r++) {
        const sbp_json *run = &runs->items[r], *steps = sbp_json_member(run, "float64");
        int count;
        cli_ok(f,
               sbp_arena_printf(f->arena,
                                "$C compile $G/llama_bias/model -o $D/p --dtype fp64 --seq-len 83 --clip %g "
                                "--optimizer %s",
                                cli_number(f, root, "clip"), sbp_json_member(run, "optimizer")->string));
        cli_ok(f, sbp_arena_printf(f->arena,
                                   "$R $D/p --data $G/llama_bias/train.jsonl --batch-size 6 --steps %lld "
                                   "--schedule constant --warmup 0 --shuffle off --out $D/o%lld %s",
                                   (long long)steps->count, (long long)r,
                                   sbp_json_member(run, "options")->string));
        const sbp_json **got =
            cli_lines(f, sbp_arena_printf(f->arena, "o%lld/metrics.jsonl", (long long)r), &count);
        assert_int_equal(count, steps->count);
        for (int i = 0; i < count; i++)
            for (int k = 0; k < 2; k++) {
                const char *key = k ? "grad_norm" : "loss";
                double want = cli_number(f, &steps->items[i], key);
                expect_near(key, i + 1, cli_number(f, got[i], key), want, SBP_TOLERANCE_F64 * want);
            }
        assert_ok(f, sbp_weights_open(f->arena, f->diag,
                                      io_path(f, sbp_arena_printf(f->arena, "o%lld", (long long)r)), &to));
        assert_ok(f, sbp_json_get_object(f->diag, run, "moved", SBP_JSON_REQUIRED, &moved));
        assert_int_equal(moved->count, sbp_weights_count(to));
        for (int64_t i = 0; i < moved->count; i++)
            expect_way(f, from, to, &moved->items[i]);
        sbp_weights_close(to);
    }
    sbp_weights_close(from);
}

/* ---- masters ------------------------------------------------------------------------------------------ */

/* Weights in two halves are the weights in fp32: the same steps, but for a half bit of bf16 that is rounded
 * away from zero and not to even; what is written in the end is all of them. Without the low halves updates
 * are lost, unless they are rounded at random. */
static void test_masters(void **state) {
    io_fixture *f = *state;
    static const char *const formats[] = {"--param-dtype fp32", "", "--master none",
                                          "--master none --rounding nearest"};
    enum { FORMATS = SBP_COUNT(formats), STEPS = 12 };
    double losses[FORMATS], moved[FORMATS] = {0}, apart[FORMATS] = {0};
    sbp_weights *from, *to[FORMATS];
    for (int i = 0; i < FORMATS; i++) {
        int count;
        cli_ok(f, sbp_arena_printf(f->arena,
                                   "$C compile $S -o $D/p --seq-len 933 --dtype bf16 %s; $R $D/p --data " ROWS
                                   " --steps %d --lr 2e-4 --schedule constant --out $D/m%d",
                                   formats[i], STEPS, i));
        const sbp_json **lines = cli_lines(f, sbp_arena_printf(f->arena, "m%d/metrics.jsonl", i), &count);
        losses[i] = cli_number(f, lines[STEPS - 1], "loss");
        assert_ok(
            f, sbp_weights_open(f->arena, f->diag, io_path(f, sbp_arena_printf(f->arena, "m%d", i)), &to[i]));
    }
    assert_ok(f, sbp_weights_open(f->arena, f->diag, "tests/data/stories260K", &from));
    for (int32_t w = 0; w < sbp_weights_count(from); w++) {
        const sbp_weight *first = sbp_weights_at(from, w);
        double *x = cli_read_tensor(f, from, first), *all = NULL;
        for (int i = 0; i < FORMATS; i++) {
            double *y = cli_read_tensor(f, to[i], sbp_weights_find(to[i], first->name));
            for (int64_t k = 0; k < first->elems; k++) {
                moved[i] += (y[k] - x[k]) * (y[k] - x[k]);
                apart[i] += i > 0 ? (y[k] - all[k]) * (y[k] - all[k]) : 0;
            }
            if (i > 0)
                free(y);
            else
                all = y;
        }
        free(x);
        free(all);
    }
    for (int i = 0; i < FORMATS; i++) {
        printf("  %-32s loss %.6f, moved %.4f, apart %.2e\n", formats[i], losses[i], sqrt(moved[i]),
               sqrt(apart[i] / moved[0]));
        sbp_weights_close(to[i]);
    }
    sbp_weights_close(from);
    assert_true(sqrt(apart[1] / moved[0]) < SBP_TOLERANCE_BF16_MASTER);
    assert_true(apart[2] < apart[3] || losses[2] < losses[3]);
}

/* ---- steps without a label ---------------------------------------------------------------------------- */

static void test_steps_without_a_label(void **state) {
    io_fixture *f = *state;
    static const char *const options[] = {"", " --clip none --accumulate 1"};
    cli_put(f, "masked.jsonl",
            "{\"input_ids\": [1, 5, 9, 12], \"labels\": [-100, -100, -100, -100]}\n"
            "{\"input_ids\": [1, 7, 9], \"labels\": [-100, -100, 9]}\n"
            "{\"input_ids\": [3, 7, 9], \"labels\": [3, -100, -100]}\n");
    for (int i = 0; i < SBP_COUNT(options); i++) {
        int count;
        cli_ok(f, sbp_arena_printf(f->arena, "$C compile $S -o $D/p --seq-len 64%s", options[i]));
        cli_ok(f, sbp_arena_printf(f->arena,
                                   "$R $D/p --data $D/masked.jsonl --batch-size 1 --steps 3 --shuffle off "
                                   "--out $D/m%d",
                                   i));
        const sbp_json **lines = cli_lines(f, sbp_arena_printf(f->arena, "m%d/metrics.jsonl", i), &count);
        assert_int_equal(count, 3);
        for (int k = 0; k < 3; k++) { /* the first label of a document names nothing */
            assert_true((cli_number(f, lines[k], "loss") == 0) == (k != 1));
            assert_true((cli_number(f, lines[k], "grad_norm") == 0) == (k != 1));
        }
        cli_ok(f, "head -1 $D/masked.jsonl >$D/one.jsonl; $R $D/p --eval $D/one.jsonl --json");
        assert_true(cli_number(f, cli_json(f, "out"), "eval_loss") == 0);
    }
}

/* ---- scores and evaluations --------------------------------------------------------------------------- */

/* Rows are scored 256 at a time: 200 rows, then the same again. */
static void test_scores_of_many_rows(void **state) {
    io_fixture *f = *state;
    int count;
    cli_ok(f, "$C compile $S -o $D/p --seq-len 933");
    cli_ok(f, "cat " ROWS " " ROWS " >$D/d.jsonl; $R $D/p --data $D/d.jsonl --score $D/s.jsonl");
    const sbp_json **lines = cli_lines(f, "s.jsonl", &count);
    double sum = 0, tokens = 0;
    assert_int_equal(count, 400);
    for (int i = 0; i < count; i++) {
        assert_int_equal(cli_number(f, lines[i], "row"), i);
        assert_int_equal(cli_number(f, lines[i], "tokens"), cli_number(f, lines[i % 200], "tokens"));
        double want = cli_number(f, lines[i % 200], "sum");
        expect_near("sum", i, cli_number(f, lines[i], "sum"), want, SBP_TOLERANCE_F32 * fabs(want));
        sum -= cli_number(f, lines[i], "sum");
        tokens += cli_number(f, lines[i], "tokens");
    }
    cli_ok(f, "$R $D/p --eval $D/d.jsonl --json");
    expect_near("eval_loss", 400, cli_number(f, cli_json(f, "out"), "eval_loss"), sum / tokens,
                SBP_TOLERANCE_F32 * sum / tokens);
    assert_true(cli_number(f, lines[150], "sum") != cli_number(f, lines[151], "sum"));
}

/* The summary has the loss of the first file. */
static void test_several_files_to_evaluate(void **state) {
    io_fixture *f = *state;
    double alone[3];
    int count;
    cli_ok(f, "$C compile $S -o $D/p --seq-len 933");
    for (int i = 0; i < 3; i++) {
        cli_ok(f, sbp_arena_printf(f->arena, "head -%d " ROWS " | tail -20 >$D/e%d.jsonl", 40 + 40 * i, i));
        cli_ok(f, sbp_arena_printf(f->arena, "$R $D/p --eval $D/e%d.jsonl --json", i));
        alone[i] = cli_number(f, cli_json(f, "out"), "eval_loss");
    }
    assert_true(alone[0] != alone[1] && alone[1] != alone[2] && alone[0] != alone[2]);
    cli_ok(f, "$R $D/p --eval $D/e0.jsonl --eval $D/e1.jsonl --eval $D/e2.jsonl --out $D/o --json");
    expect_near("eval_loss", 0, cli_number(f, cli_json(f, "out"), "eval_loss"), alone[0], 0);
    const sbp_json **lines = cli_lines(f, "o/metrics.jsonl", &count);
    assert_int_equal(count, 3);
    for (int i = 0; i < 3; i++) {
        expect_near("eval_loss", i, cli_number(f, lines[i], "eval_loss"), alone[i], 0);
        assert_non_null(strstr(sbp_json_member(lines[i], "eval_file")->string,
                               sbp_arena_printf(f->arena, "e%d.jsonl", i)));
    }
}

/* A file may have any name: what is written of it is JSON. */
static void test_any_name_of_a_file(void **state) {
    io_fixture *f = *state;
    const char *name;
    int count;
    cli_ok(f, "$C compile $S -o $D/p --seq-len 933");
    cli_ok(f, "n=\"$D/$(printf 'q\"\\001\\377').jsonl\"; head -20 " ROWS
              " > \"$n\"; $R $D/p --eval \"$n\" --out $D/o");
    const sbp_json **lines = cli_lines(f, "o/metrics.jsonl", &count), *command;
    assert_int_equal(count, 1);
    assert_ok(f, sbp_json_get_string(f->diag, lines[0], "eval_file", SBP_JSON_REQUIRED, &name));
    assert_non_null(strstr(name, "/q\"\x01\xef\xbf\xbd.jsonl"));
    assert_ok(f,
              sbp_json_get_array(f->diag, cli_json(f, "o/run.json"), "command", SBP_JSON_REQUIRED, &command));
    assert_string_equal(command->items[3].string, name);
}

/* ---- data ------------------------------------------------------------------------------------------- */

static void test_other_labels_are_other_data(void **state) {
    io_fixture *f = *state;
#define IDS "{\"input_ids\": [1, 5, 9, 12], \"labels\": [1, 5, 9, "
    cli_put(f, "a.jsonl", IDS "12]}\n" IDS "-100]}\n");
    cli_put(f, "b.jsonl", IDS "-100]}\n" IDS "12]}\n");
    cli_ok(f, "$C compile $S -o $D/p --seq-len 64");
    cli_ok(f, "$R $D/p --data $D/a.jsonl --batch-size 1 --steps 4 --save-every 2 --out $D/o");
    cli_fails(f, 1, "had other data",
              "$R $D/p --data $D/b.jsonl --batch-size 1 --steps 6 --save-every 2 --out $D/o --resume");
    cli_ok(f, "$R $D/p --data $D/a.jsonl --batch-size 1 --steps 6 --save-every 2 --out $D/o --resume");
}

/* As transformers' Trainer: ceil(epochs * steps of an epoch). */
static void test_steps_of_fractional_epochs(void **state) {
    io_fixture *f = *state;
    static const struct {
        const char *epochs;
        int batch, steps; /* math.ceil(epochs * math.ceil(200 / batch)) in Python */
    } cases[] = {{"1.5", 8, 38}, {"0.1", 8, 3},  {"2.04", 8, 51},   {"0.01", 8, 1},  {"2.5", 7, 73},
                 {"3", 7, 87},   {"1.1", 64, 5}, {"0.3333", 64, 2}, {"1.01", 1, 202}};
    cli_ok(f, "$C compile $S -o $D/p --seq-len 933");
    for (int i = 0; i < SBP_COUNT(cases); i++) {
        cli_ok(f, sbp_arena_printf(f->arena,
                                   "$R $D/p --data " ROWS
                                   " --overlong truncate --epochs %s --batch-size %d --dry-run --json",
                                   cases[i].epochs, cases[i].batch));
        assert_int_equal(cli_number(f, cli_json(f, "out"), "steps"), cases[i].steps);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_the_optimizers_of_torch, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_masters, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_steps_without_a_label, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_scores_of_many_rows, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_several_files_to_evaluate, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_any_name_of_a_file, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_other_labels_are_other_data, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_steps_of_fractional_epochs, cli_setup, io_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
