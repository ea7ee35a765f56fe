/* Numbers are those of one rank: losses, metrics and weights of every kind of objective after some steps,
 * evaluations, scores and gradients, in double precision, of 2 and 3 ranks. Rows are drawn, as uneven as can
 * be; the last step of an epoch has fewer of them than there are ranks. */
#include "tests/cli/drawing.h"
#include "tests/cli/ranks_testing.h"

enum { ROWS = 13, VOCABULARY = 31, RANKS = 3 };

typedef enum kind { TEXTS, PAIRS, REWARDED, JUDGED } kind;

/* $D/NAME: one row in five is long; groups of rollouts have one to four rows. */
static void write_rows(io_fixture *f, const char *name, kind of, int rows, uint64_t seed) {
    sbp_rng rng = {.state = seed};
    sbp_text out;
    sbp_text_init(&out, f->arena);
    for (int r = 0, group = 0, left = 0; r < rows; r++, left--) {
        int64_t prompt = 1 + sbp_rng_below(&rng, 6), most = r % 5 == 3 ? 40 : 7;
        sbp_text_add(&out, "{");
        if (left == 0) {
            left = 1 + (int)sbp_rng_below(&rng, 4);
            group++;
        }
        if (of == TEXTS) {
            draw_ids(&rng, &out, "input_ids", 1 + sbp_rng_below(&rng, most), VOCABULARY);
        } else {
            draw_ids(&rng, &out, "prompt_ids", prompt, VOCABULARY);
            sbp_text_add(&out, ", ");
            draw_ids(&rng, &out, of == PAIRS ? "chosen_ids" : "completion_ids", 1 + sbp_rng_below(&rng, most),
                     VOCABULARY);
            if (of == PAIRS) {
                sbp_text_add(&out, ", ");
                draw_ids(&rng, &out, "rejected_ids", 1 + sbp_rng_below(&rng, most), VOCABULARY);
            } else if (of == JUDGED) {
                sbp_text_add(&out, ", \"label\": %s", r % 3 ? "true" : "false");
            } else {
                sbp_text_add(&out, ", \"group\": %d, \"reward\": %.3f", group,
                             0.001 * (double)sbp_rng_below(&rng, 4000) - 2);
            }
        }
        sbp_text_add(&out, "}\n");
    }
    cli_put(f, name, out.data);
}

static const char *comparing; /* for messages */

/* ---- comparing -------------------------------------------------------------------------------------- */

static bool is_of_time(const char *key) {
    static const char *const keys[] = {"tokens_per_second", "step_seconds", "memory_peak_bytes"};
    for (int i = 0; i < SBP_COUNT(keys); i++)
        if (strcmp(keys[i], key) == 0)
            return true;
    return false;
}

static bool is_number(const sbp_json *j) {
    return j->kind == SBP_JSON_INT || j->kind == SBP_JSON_REAL;
}

/* Numbers of two JSON values, at any depth, all else of the same form; returns how many. */
static int compare_json(const char *what, const sbp_json *a, const sbp_json *b) {
    int count = 0;
    if (!a || !b || is_number(a) != is_number(b) || (!is_number(a) && a->kind != b->kind))
        fail_msg("%s: another form", what);
    if (is_number(a)) {
        double x = NAN, y = NAN;
        (void)!sbp_json_as_double(NULL, a, &x);
        (void)!sbp_json_as_double(NULL, b, &y);
        if (!(fabs(x - y) <= SBP_TOLERANCE_F64 * (1 + fabs(y))))
            fail_msg("%s: %s: %.17g, expected %.17g", comparing, what, x, y);
        return 1;
    }
    bool array = a->kind == SBP_JSON_ARRAY, object = a->kind == SBP_JSON_OBJECT;
    if ((array || object) && a->count != b->count)
        fail_msg("%s: %lld, expected %lld", what, (long long)a->count, (long long)b->count);
    for (int64_t i = 0; i < a->count && (array || object); i++) {
        const sbp_json *x = &a->items[i];
        if (array || !is_of_time(x->key))
            count +=
                compare_json(array ? what : x->key, x, array ? &b->items[i] : sbp_json_member(b, x->key));
    }
    return count;
}

static int compare_lines(io_fixture *f, const char *what, const char *got, const char *want) {
    int got_count, want_count, numbers = 0;
    comparing = what;
    const sbp_json **a = cli_lines(f, got, &got_count), **b = cli_lines(f, want, &want_count);
    if (got_count != want_count)
        fail_msg("%s: %d lines, expected %d", what, got_count, want_count);
    for (int i = 0; i < got_count; i++)
        numbers += compare_json(what, a[i], b[i]);
    return numbers;
}

/* ---- training --------------------------------------------------------------------------------------- */

static const struct {
    const char *compile;
    kind rows;
    const char *run;
} cases[] = {
    {"$G/llama_mqa/model --seq-len 40", TEXTS, "--batch-size 13 --eval $D/e --eval-every 2"},
    {"$G/mistral_window/model --seq-len 60 --optimizer sgd", TEXTS, "--batch-tokens 40 --eval $D/e"},
    {"$G/llama_mqa/model --seq-len 40 --lora-r 4 --lora-dropout 0.3", TEXTS, "--batch-size 12 --shuffle off"},
    {"$G/llama_mqa/model --seq-len 96 --objective dpo", PAIRS, "--batch-size 5 --eval $D/e"},
    {"$G/llama_mqa/model --seq-len 110 --objective orpo", PAIRS, "--batch-size 5"},
    {"$G/llama_mqa/model --seq-len 64 --objective grpo --beta 0.1", REWARDED,
     "--batch-size 5 --inner-epochs 2 --epochs 1"},
    {"$G/llama_mqa/model --seq-len 120 --objective grpo --importance sequence --accumulate 2", REWARDED,
     "--batch-size 6 --share-prompt on"},
    {"$G/llama_mqa/model --seq-len 64 --objective kto", JUDGED, "--batch-size 5 --eval $D/e"},
    {"$G/llama_mqa/model --seq-len 64 --objective ppo", REWARDED,
     "--eval $D/e --batch-size 5 --inner-epochs 2"},
};

/* Of so many ranks; some of them may have micro-batches together. */
static const char *draw_schedule(io_fixture *f, sbp_rng *rng, int ranks) {
    int together = getenv("XCP") ? ranks : 1 + (int)sbp_rng_below(rng, ranks);
    while (ranks % together != 0)
        together--;
    return sbp_arena_printf(f->arena,
                            "--context-parallel %d --chunk %d --head-chunk %d --segment %d "
                            "--checkpoint-every %d %s %s --zero %d",
                            together, 1 + (int)sbp_rng_below(rng, 30), 1 + (int)sbp_rng_below(rng, 30),
                            1 + (int)sbp_rng_below(rng, 2), 1 + (int)sbp_rng_below(rng, 2),
                            PICK(rng, "", "--save attn_out", "--backward checkpoint", draw_homes(f, rng)),
                            PICK(rng, "", "--head-rows counted"), (int)sbp_rng_below(rng, 4));
}

/* To $D/oN, of N ranks. */
static void train(io_fixture *f, const char *compile, const char *run, int ranks) {
    const char *start = ranks > 1 ? sbp_arena_printf(f->arena, "$M -n %d ", ranks) : "";
    cli_ok(f,
           sbp_arena_printf(f->arena,
                            "$C compile %s -o $D/p --dtype fp64 --threads 1 --ranks %d && rm -rf $D/o%d && "
                            "%s$R $D/p --data $D/t %s --lr 1e-3 --out $D/o%d",
                            compile, ranks, ranks, start, run, ranks));
}

typedef struct compared {
    int numbers;
    double worst;
} compared;

/* Metrics and weights of a run of so many ranks with those of one. */
static void compare_runs(io_fixture *f, const char *what, int ranks, compared *c) {
    const char *out = sbp_arena_printf(f->arena, "o%d", ranks);
    const char *file = cli_exists(f, "o1/model.safetensors") ? "model" : "adapter_model";
    const char *want =
        sbp_arena_strdup(f->arena, io_path(f, sbp_arena_printf(f->arena, "o1/%s.safetensors", file)));
    c->numbers +=
        compare_lines(f, what, sbp_arena_printf(f->arena, "%s/metrics.jsonl", out), "o1/metrics.jsonl");
    double off = cli_compare(f, what, io_path(f, sbp_arena_printf(f->arena, "%s/%s.safetensors", out, file)),
                             want, SBP_TOLERANCE_F64);
    c->worst = off > c->worst ? off : c->worst;
}

static void test_steps(void **state) {
    io_fixture *f = *state;
    static const int counts[] = {2, 3, 4, 8};
    int rounds = getenv("SBP_TEST_ALL") ? 8 : 1;
    compared c = {0};
    if (!cli_has_ranks(f, "steps of several ranks"))
        skip();
    for (int i = 0; i < SBP_COUNT(cases) * rounds; i++) {
        sbp_rng rng = {.state = 40 + (uint64_t)i};
        const char *compile = cases[i % SBP_COUNT(cases)].compile,
                   *run = sbp_arena_printf(f->arena, "%s --steps 4", cases[i % SBP_COUNT(cases)].run);
        write_rows(f, "t", cases[i % SBP_COUNT(cases)].rows, ROWS, 40 + (uint64_t)i);
        write_rows(f, "e", cases[i % SBP_COUNT(cases)].rows, 4, 600 + (uint64_t)i);
        train(f, compile, run, 1);
        for (int k = 0; k < (rounds > 1 ? SBP_COUNT(counts) : 2); k++) {
            const char *drawn =
                sbp_arena_printf(f->arena, "%s %s", compile, draw_schedule(f, &rng, counts[k]));
            train(f, drawn, run, counts[k]);
            compare_runs(f, drawn, counts[k], &c);
        }
    }
    assert_true(c.numbers > 400);
    print_message("%d numbers; worst tensor off by %.2g\n", c.numbers, c.worst);
}

/* Every model of the golden cases. */
static void test_models(void **state) {
    io_fixture *f = *state;
    compared c = {0};
    if (!getenv("SBP_TEST_ALL"))
        return;
    if (!cli_has_ranks(f, "models on several ranks"))
        skip();
    cli_ok(f, "ls -d $G/*/model | grep -v /gpt2/"); /* which comes as ONNX only */
    char *names = sbp_arena_strdup(f->arena, cli_text(f, "out")), *rest;
    int models = 0;
    write_rows(f, "t", TEXTS, ROWS, 30);
    for (char *name = strtok_r(names, "\n", &rest); name; name = strtok_r(NULL, "\n", &rest), models++) {
        const char *compile = sbp_arena_printf(f->arena, "%s --seq-len 60", name);
        for (int ranks = 1; ranks <= 8; ranks *= 2) {
            train(f, compile, "--batch-size 7 --steps 3", ranks);
            if (ranks > 1)
                compare_runs(f, name, ranks, &c);
        }
    }
    assert_true(models > 30);
    print_message("%d models; worst tensor off by %.2g\n", models, c.worst);
}

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
        "(sed -n 1,5p $D/s; sleep 2; sed -n 6,20p $D/s) | $R $D/p --ranks 2 --timeout 1 --data - --steps 3 "
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
        "for wait in $(seq 1200); do grep -q 'step 1' $D/said && break; sleep 0.05; done\n"
        "kill -INT $pid; wait $pid; test $? = 130 && grep -q 'interrupted after 1 steps; --resume' $D/said");
    cli_fails(f, 2, "--data -: with several ranks, standard input may only be all of --data",
              "$R $D/p --ranks 2 --data - --data $D/t --out none");
    cli_fails(f, 2, "--data -: rows that come are not measured before, with several ranks: give --seq-len N",
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
        cmocka_unit_test_setup_teardown(test_steps, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_models, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_scores, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_stream, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_kept_tokens, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_gradients, cli_setup, io_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
