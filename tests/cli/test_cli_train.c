/* Training by the real programs: the recorded run of TRL, scores, evaluations, results, checkpoints. The
 * model is stories260K. */
#include "tests/cli/cli_testing.h"
#include "tests/common/sweep.h"

#define TRL "tests/golden/stories260k_trl"
#define COMPILE "$C compile $S -o $D/p --seq-len 933"
/* As in TRL/args.json. */
#define TRAIN_SETTINGS                                                                                       \
    "$R $D/p --data $G/stories260k_trl/train.jsonl --batch-size 8 --lr 0.001 --schedule linear --warmup 0 "  \
    "--weight-decay 0 --shuffle off"
#define TRAIN TRAIN_SETTINGS " --steps 20"

static const sbp_json *trl_of(io_fixture *f, const char *folder) {
    const sbp_json *root = NULL;
    assert_ok(f,
              sbp_json_read(f->arena, f->diag, sbp_arena_printf(f->arena, "%s/trl.json", folder), 0, &root));
    return root;
}

static const sbp_json *trl(io_fixture *f) {
    return trl_of(f, TRL);
}

static void expect_near(const char *what, int step, double got, double want, double tolerance) {
    if (!(fabs(got - want) <= tolerance))
        fail_msg("%s at %d: %.9g, expected %.9g within %g", what, step, got, want, tolerance);
}

/* Every step of TRL's SFTTrainer, and the metrics it logs. */
static void test_the_curve_of_trl(void **state) {
    io_fixture *f = *state;
    int count;
    cli_ok(f, COMPILE);
    cli_ok(f, TRAIN " --out $D/o");
    assert_non_null(strstr(cli_text(f, "err"), "step 1/20  loss 5.5423  lr 0.001  "));
    assert_non_null(strstr(cli_text(f, "err"), "  0:00 left\n")); /* after the last step */
    const sbp_json **got = cli_lines(f, "o/metrics.jsonl", &count), *want;
    assert_ok(f, sbp_json_get_array(f->diag, trl(f), "trl", SBP_JSON_REQUIRED, &want));
    assert_int_equal(count, want->count);
    static const char *const exact[] = {"step", "epoch", "learning_rate", "num_tokens"};
    static const char *const close[] = {"loss", "entropy", "mean_token_accuracy"};
    for (int i = 0; i < count; i++) {
        for (int k = 0; k < SBP_COUNT(exact); k++)
            expect_near(exact[k], i + 1, cli_number(f, got[i], exact[k]),
                        cli_number(f, &want->items[i], exact[k]), SBP_TOLERANCE_F64);
        for (int k = 0; k < SBP_COUNT(close); k++)
            expect_near(close[k], i + 1, cli_number(f, got[i], close[k]),
                        cli_number(f, &want->items[i], close[k]), SBP_TOLERANCE_F32);
        double norm = cli_number(f, &want->items[i], "grad_norm");
        expect_near("grad_norm", i + 1, cli_number(f, got[i], "grad_norm"), norm, SBP_TOLERANCE_F32 * norm);
        assert_true(cli_number(f, got[i], "memory_peak_bytes") > 0);
        assert_true(cli_number(f, got[i], "tokens_per_second") > 0);
        assert_true(cli_number(f, got[i], "step_seconds") > 0);
    }
}

/* The run in $D/o in double precision: losses, norms and how far every parameter went, by torch's AdamW in
 * float64. root: of trl.json; model: where the run began; way: how exactly parameters went. */
static void check_double_curve(io_fixture *f, const sbp_json *root, const char *model, double way) {
    sbp_weights *from, *to;
    int count;
    const sbp_json **got = cli_lines(f, "o/metrics.jsonl", &count), *want, *moved;
    assert_ok(f, sbp_json_get_array(f->diag, root, "float64", SBP_JSON_REQUIRED, &want));
    assert_int_equal(count, want->count);
    static const char *const keys[] = {"loss", "entropy", "grad_norm", "learning_rate"};
    for (int i = 0; i < count; i++)
        for (int k = 0; k < SBP_COUNT(keys); k++) {
            double value = cli_number(f, &want->items[i], keys[k]);
            expect_near(keys[k], i + 1, cli_number(f, got[i], keys[k]), value, SBP_TOLERANCE_F64 * value);
        }
    assert_ok(f, sbp_json_get_object(f->diag, root, "float64_weights_moved", SBP_JSON_REQUIRED, &moved));
    assert_ok(f, sbp_weights_open(f->arena, f->diag, model, &from));
    assert_ok(f, sbp_weights_open(f->arena, f->diag, io_path(f, "o"), &to));
    assert_int_equal(sbp_weights_count(to), moved->count);
    for (int64_t i = 0; i < moved->count; i++) {
        const sbp_weight *a = sbp_weights_find(from, moved->items[i].key),
                         *b = sbp_weights_find(to, moved->items[i].key);
        assert_true(a && b && a->elems == b->elems);
        double *x = cli_read_tensor(f, from, a), *y = cli_read_tensor(f, to, b), sum = 0;
        for (int64_t k = 0; k < a->elems; k++)
            sum += (y[k] - x[k]) * (y[k] - x[k]);
        free(x);
        free(y);
        expect_near(moved->items[i].key, 20, sqrt(sum), moved->items[i].real, way * moved->items[i].real);
    }
    sbp_weights_close(from);
    sbp_weights_close(to);
}

static void test_the_curve_in_double(void **state) {
    io_fixture *f = *state;
    cli_ok(f, COMPILE " --dtype fp64");
    cli_ok(f, TRAIN " --out $D/o");
    check_double_curve(f, trl(f), "tests/data/stories260K", SBP_TOLERANCE_F64);
}

/* A new model of the delta rule and attention learns as by TRL, whatever the chunks. */
static void test_the_curve_of_a_hybrid(void **state) {
    static const char folder[] = "tests/golden/qwen3_5_trl";
    static const char run[] =
        "$R $D/p --data $G/stories260k_trl/train.jsonl --batch-size 8 --lr 0.01 --schedule linear --warmup 0 "
        "--weight-decay 0 --shuffle off --steps 20 --out $D/o --overwrite";
    io_fixture *f = *state;
    const sbp_json *root = trl_of(f, folder), *want;
    int count;
    cli_ok(f, "cp -r $G/qwen3_5_trl/model $D/m && cp $S/tokenizer.json $D/m");
    cli_ok(f, sbp_arena_printf(f->arena, "$C compile $D/m -o $D/p --seq-len 933 --chunk 100 && %s", run));
    const sbp_json **got = cli_lines(f, "o/metrics.jsonl", &count);
    assert_ok(f, sbp_json_get_array(f->diag, root, "trl", SBP_JSON_REQUIRED, &want));
    assert_int_equal(count, want->count);
    for (int i = 0; i < count; i++) {
        double loss = cli_number(f, &want->items[i], "loss");
        expect_near("loss", i + 1, cli_number(f, got[i], "loss"), loss, SBP_TOLERANCE_CURVE * loss);
    }
    assert_true(cli_number(f, got[0], "loss") - cli_number(f, got[count - 1], "loss") >= 1);
    cli_ok(f, sbp_arena_printf(f->arena, "$C compile $D/m -o $D/p --seq-len 300 --dtype fp64 && %s", run));
    check_double_curve(f, root, "tests/golden/qwen3_5_trl/model", SBP_TOLERANCE_WAY_F64);
}

/* Micro-batches, chunks and threads do not change the run. */
static void test_the_curve_in_pieces(void **state) {
    io_fixture *f = *state;
    int count, count_small;
    cli_ok(f, COMPILE);
    cli_ok(f, TRAIN " --out $D/o --threads 1");
    cli_ok(f, TRAIN " --out $D/again --threads 2");
    cli_same(f, "o/model.safetensors", "again/model.safetensors"); /* bit for bit */
    cli_ok(f,
           "$C compile $S -o $D/p --seq-len 256 --chunk 19 --head-chunk 30 --segment 2 --checkpoint-every 2");
    cli_ok(f, TRAIN " --out $D/small");
    const sbp_json **a = cli_lines(f, "o/metrics.jsonl", &count),
                   **b = cli_lines(f, "small/metrics.jsonl", &count_small);
    assert_int_equal(count, count_small);
    for (int i = 0; i < count; i++)
        expect_near("loss", i + 1, cli_number(f, b[i], "loss"), cli_number(f, a[i], "loss"),
                    SBP_TOLERANCE_F32);
}

/* Twenty steps, or fifty: what the first device rounds differently does not grow. */
static void test_the_curve_on_vulkan(void **state) {
    io_fixture *f = *state;
    static const char *const keys[] = {"loss", "entropy"};
    int count, count_cpu;
    const int steps = testing_all() ? 50 : 20;
    if (!cli_has_vulkan(f, "a training run"))
        skip();
    cli_ok(f, COMPILE);
    cli_ok(f, sbp_arena_printf(f->arena, TRAIN_SETTINGS " --steps %d --out $D/cpu", steps));
    cli_ok(f, COMPILE " --backend vulkan");
    cli_ok(f, sbp_arena_printf(f->arena, TRAIN_SETTINGS " --steps %d --out $D/o", steps));
    const sbp_json **want = cli_lines(f, "cpu/metrics.jsonl", &count_cpu),
                   **got = cli_lines(f, "o/metrics.jsonl", &count);
    assert_int_equal(count_cpu, steps);
    assert_int_equal(count, steps);
    double worst = 0;
    for (int i = 0; i < count; i++)
        for (int k = 0; k < SBP_COUNT(keys); k++) {
            double a = cli_number(f, got[i], keys[k]), b = cli_number(f, want[i], keys[k]);
            expect_near(keys[k], i + 1, a, b, SBP_TOLERANCE_CURVE);
            worst = fabs(a - b) > worst ? fabs(a - b) : worst;
        }
    print_message("largest difference in %d steps: %.2g\n", steps, worst);
    assert_true(cli_number(f, got[steps - 1], "loss") < cli_number(f, got[0], "loss") - 1);
}

/* A step of SmolLM2-135M over 512 tokens. The plan consumes each gradient at once, because software drivers
 * of 2 GiB have no room for all of them. */
static void test_a_real_model_on_vulkan(void **state) {
    io_fixture *f = *state;
    const char *model = cli_real_model("a real model on vulkan");
    sbp_text row;
    if (!model || !cli_has_vulkan(f, "a real model"))
        skip();
    sbp_text_init(&row, f->arena);
    sbp_text_add(&row, "{\"input_ids\": [1");
    for (int i = 1; i < 512; i++)
        sbp_text_add(&row, ", %d", i * 30011 % 49152);
    sbp_text_add(&row, "]}\n");
    cli_put(f, "row.jsonl", row.data);
    for (int vulkan = 0; vulkan < 2; vulkan++) {
        cli_ok(f, sbp_arena_printf(f->arena,
                                   "$C compile '%s' -o $D/p --seq-len 512 --clip none --accumulate 1 %s",
                                   model, vulkan ? "--backend vulkan" : ""));
        cli_ok(f, sbp_arena_printf(f->arena,
                                   "$R $D/p --data $D/row.jsonl --batch-size 1 --steps 1 --dump-gradients "
                                   "$D/%s.safetensors",
                                   vulkan ? "vulkan" : "cpu"));
    }
    double worst =
        cli_compare(f, model, sbp_arena_strdup(f->arena, io_path(f, "vulkan.safetensors")),
                    sbp_arena_strdup(f->arena, io_path(f, "cpu.safetensors")), SBP_TOLERANCE_DEEP_F32);
    print_message("%s, 512 tokens: gradients of vulkan within %.2g of the cpu's\n", model, worst);
}

/* ---- scores and evaluations ------------------------------------------------------------------------- */

static void test_scores(void **state) {
    io_fixture *f = *state;
    const sbp_json *want;
    int count;
    cli_ok(f, COMPILE);
    cli_ok(f, "head -8 $G/stories260k_trl/train.jsonl >$D/first.jsonl");
    cli_ok(f, "$R $D/p --data $D/first.jsonl --score $D/s.jsonl --shuffle on");
    const sbp_json **got = cli_lines(f, "s.jsonl", &count);
    assert_ok(f,
              sbp_json_get_array(f->diag, trl(f), "float64_first_step_logprobs", SBP_JSON_REQUIRED, &want));
    assert_int_equal(count, 8);
    for (int i = 0; i < count; i++) {
        const sbp_json *logps = sbp_json_member(got[i], "logps");
        double sum = 0;
        assert_int_equal(cli_number(f, got[i], "row"), i); /* in file order */
        assert_string_equal(sbp_json_member(got[i], "part")->string, "text");
        assert_int_equal(logps->count, want->items[i].count);
        assert_int_equal(cli_number(f, got[i], "tokens"), logps->count);
        for (int64_t k = 0; k < logps->count; k++) {
            expect_near("logp", i, logps->items[k].real, want->items[i].items[k].real, SBP_TOLERANCE_STORIES);
            sum += logps->items[k].real;
        }
        expect_near("sum", i, cli_number(f, got[i], "sum"), sum, SBP_TOLERANCE_F64);
    }
    /* only the completion of a prompt */
    cli_put(f, "pc.jsonl", "{\"prompt\": \"Once upon a time,\", \"completion\": \" a cat sat.\"}\n");
    cli_ok(f, "$R $D/p --data $D/pc.jsonl --score $D/s.jsonl");
    got = cli_lines(f, "s.jsonl", &count);
    assert_string_equal(sbp_json_member(got[0], "part")->string, "completion");
    cli_ok(f, "echo '\" a cat sat.</s>\"' | $R tokenize $S >$D/ids; cat $D/ids");
    assert_true(cli_number(f, got[0], "tokens") < 10 && cli_number(f, got[0], "tokens") > 3);
}

/* --score of a text against a list of negative log-likelihoods; `more` labels may follow (the end of the
 * sequence). */
static void expect_scores(io_fixture *f, const char *what, const sbp_json *line, const sbp_json *nll,
                          int64_t more) {
    const sbp_json *logps = sbp_json_member(line, "logps");
    assert_int_equal(logps->count, nll->count + more);
    for (int64_t i = 0; i < nll->count; i++)
        expect_near(what, (int)i, -logps->items[i].real, nll->items[i].real, SBP_TOLERANCE_STORIES);
    (void)f;
}

/* Two texts that llama2.c, the program the model was made for, scored: as ids and as text, from the model
 * directory, and from its GGUF file where there is one. */
static void test_scores_of_llama2c(void **state) {
    io_fixture *f = *state;
    static const char gguf[] = "../shared/models/stories260K/stories260Ktok512.gguf";
    const char *sources[] = {"$S", gguf};
    for (int m = 0; m < SBP_COUNT(sources); m++) {
        if (m == 1 && !sbp_file_exists(gguf)) {
            print_message("skipped: %s is missing\n", gguf);
            continue;
        }
        cli_ok(f, sbp_arena_printf(f->arena, "$C compile %s -o $D/p --seq-len 128 --chunk 19", sources[m]));
        for (int k = 1; k <= 2; k++) {
            const char *path = sbp_arena_printf(f->arena, "tests/golden/stories260k_llama2c/%d.json", k);
            const sbp_json *want = NULL, *tokens, *nll;
            int count;
            assert_ok(f, sbp_json_read(f->arena, f->diag, path, 0, &want));
            assert_ok(f, sbp_json_get_array(f->diag, want, "tokens", SBP_JSON_REQUIRED, &tokens));
            assert_ok(f, sbp_json_get_array(f->diag, want, "nll", SBP_JSON_REQUIRED, &nll));
            sbp_text rows;
            sbp_text_init(&rows, f->arena);
            sbp_text_add(&rows, "{\"input_ids\": ");
            sbp_json_add_value(&rows, tokens);
            sbp_text_add(&rows, "}\n");
            cli_put(f, "ids.jsonl", rows.data);
            cli_ok(f, "$R $D/p --data $D/ids.jsonl --score $D/s.jsonl");
            expect_scores(f, path, cli_lines(f, "s.jsonl", &count)[0], nll, 0);
            sbp_text_init(&rows, f->arena);
            sbp_text_add(&rows, "{\"text\": ");
            sbp_json_add_value(&rows, sbp_json_member(want, "text"));
            sbp_text_add(&rows, "}\n");
            cli_put(f, "text.jsonl", rows.data);
            cli_ok(f, "$R $D/p --data $D/text.jsonl --score $D/s.jsonl");
            expect_scores(f, path, cli_lines(f, "s.jsonl", &count)[0], nll, 1);
        }
    }
}

/* Mean of the counted log-probabilities of a score file, negated. */
static double mean_loss(io_fixture *f, const char *name) {
    int count;
    const sbp_json **lines = cli_lines(f, name, &count);
    double sum = 0, tokens = 0;
    for (int i = 0; i < count; i++) {
        sum -= cli_number(f, lines[i], "sum");
        tokens += cli_number(f, lines[i], "tokens");
    }
    return sum / tokens;
}

/* eval_loss before and after is what scoring the initial and the final weights gives; so the written model
 * holds what was trained, and loads again. */
static void test_evaluations_and_the_written_model(void **state) {
    io_fixture *f = *state;
    int count;
    cli_ok(f, COMPILE " --chunk 64");
    cli_ok(f, "head -100 $G/stories260k_trl/train.jsonl | tail -40 >$D/held.jsonl");
    cli_ok(f, TRAIN " --out $D/o --eval $D/held.jsonl --eval-every 8 --json");
    const sbp_json *summary = cli_json(f, "out");
    const sbp_json **lines = cli_lines(f, "o/metrics.jsonl", &count);
    assert_int_equal(count, 20 + 4); /* before, after 8 and 16, at the end */
    for (int i = 0; i < count; i++)
        assert_string_equal(sbp_json_member(lines[i], "kind")->string,
                            sbp_json_member(lines[i], "eval_loss") ? "eval" : "train");
    assert_int_equal(cli_number(f, lines[0], "step"), 0);
    assert_int_equal(cli_number(f, lines[9], "step"), 8);
    assert_int_equal(cli_number(f, lines[count - 1], "step"), 20);
    double before = cli_number(f, lines[0], "eval_loss"),
           after = cli_number(f, lines[count - 1], "eval_loss");
    assert_true(isfinite(cli_number(f, lines[0], "eval_entropy")));
    assert_null(sbp_json_member(lines[0], "eval_grad_norm"));
    expect_near("eval_loss of the summary", 20, cli_number(f, summary, "eval_loss"), after, 0);
    cli_ok(f, "$R $D/p --data $D/held.jsonl --score $D/s.jsonl");
    expect_near("eval_loss", 0, mean_loss(f, "s.jsonl"), before, SBP_TOLERANCE_F32);
    cli_ok(f, "$R $D/p --data $D/held.jsonl --score $D/s.jsonl --weights $D/o");
    expect_near("eval_loss", 20, mean_loss(f, "s.jsonl"), after, SBP_TOLERANCE_F32);
    cli_ok(f, "$C compile $D/o -o $D/p2 --seq-len 300"); /* as a model of its own, tokenizer and all */
    cli_ok(f, "$R $D/p2 --data $D/held.jsonl --score $D/s.jsonl");
    expect_near("eval_loss", 20, mean_loss(f, "s.jsonl"), after, SBP_TOLERANCE_F32);
    assert_true(after < before);
    /* only an evaluation */
    cli_ok(f, "$R $D/p --eval $D/held.jsonl --json");
    expect_near("eval_loss", 0, cli_number(f, cli_json(f, "out"), "eval_loss"), before, 0);
    const sbp_json *config = cli_json(f, "o/config.json");
    assert_string_equal(sbp_json_member(config, "dtype")->string, "float32");
    assert_null(sbp_json_member(config, "torch_dtype"));
}

/* What a plan carries of a model's tokenizer and chat template, where the model is no longer there: they are
 * written as Hugging Face has them, and are the same tokenizer. */
static void test_the_tokenizer_of_the_plan(void **state) {
    io_fixture *f = *state;
    static const char *const templates[] = {"echo -n '{{ bos_token }}{% for m in messages %}{{ m.content "
                                            "}}{% endfor %}' >$D/m/chat_template.jinja",
                                            "echo '{\"bos_token\": \"<s>\", \"chat_template\": \"{{ "
                                            "bos_token }}{% for m in messages %}{{ m.content }}"
                                            "{% endfor %}\"}' >$D/m/tokenizer_config.json"};
    for (int i = 0; i < SBP_COUNT(templates); i++) {
        cli_ok(f, "rm -rf $D/m $D/o $D/t; cp -rL $S $D/m");
        cli_ok(f, templates[i]);
        cli_ok(f, "$C compile $D/m -o $D/p --seq-len 933");
        cli_ok(f, "mkdir $D/t; mv $D/m/tokenizer* $D/t; rm -f $D/m/chat_template.jinja");
        cli_ok(f, TRAIN " --steps 1 --out $D/o");
        assert_string_equal(cli_text(f, "o/chat_template.jinja"),
                            "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}");
        assert_null(strstr(cli_text(f, "o/tokenizer.json"), "sbp_"));
        assert_string_equal(sbp_json_member(cli_json(f, "o/tokenizer_config.json"), "bos_token")->string,
                            "<s>");
        cli_ok(f, "$C compile $D/o -o $D/p2 --seq-len 300");
        cli_ok(
            f,
            "echo '\"Once upon a time\"' >$D/x; $R tokenize $D/p <$D/x >$D/a; $R tokenize $D/p2 <$D/x >$D/b");
        cli_same(f, "a", "b");
    }
}

static void test_the_summary_and_run_json(void **state) {
    io_fixture *f = *state;
    int count;
    cli_ok(f, COMPILE);
    cli_put(f, "c.yaml",
            "learning_rate: 5e-4\nlr_scheduler_type: cosine\nmax_steps: 3\nwarmup_steps: 0.5\nadam_beta2: "
            "0.95\nseq_len: 933 # as the plan\nchunk: auto\n");
    cli_ok(f,
           "$R $D/p --config $D/c.yaml --data $G/stories260k_trl/train.jsonl --output_dir $D/new/o --json");
    const sbp_json *summary = cli_json(f, "out"), *run = cli_json(f, "new/o/run.json");
    const sbp_json **lines = cli_lines(f, "new/o/metrics.jsonl", &count);
    assert_int_equal(count, 3);
    assert_int_equal(cli_number(f, summary, "steps"), 3);
    double mean = 0;
    for (int i = 0; i < 3; i++)
        mean += cli_number(f, lines[i], "loss") / 3;
    expect_near("train_loss", 3, cli_number(f, summary, "train_loss"), mean, SBP_TOLERANCE_F64);
    assert_true(cli_number(f, summary, "fastest_step_seconds") > 0);
    assert_true(3 * cli_number(f, summary, "fastest_step_seconds") <=
                cli_number(f, summary, "train_seconds") * 1.001);
    assert_true(cli_number(f, summary, "peak_bytes_planned") > 0);
    assert_true(cli_number(f, summary, "peak_bytes_measured") > 0);
    assert_true(cli_number(f, lines[0], "learning_rate") == 0); /* two steps of warmup */
    assert_true(cli_number(f, lines[1], "learning_rate") == 2.5e-4);
    const sbp_json *options = sbp_json_member(run, "options");
    assert_true(cli_number(f, options, "lr") == 5e-4);
    assert_string_equal(sbp_json_member(sbp_json_member(options, "schedule"), "type")->string, "cosine");
    assert_true(sbp_json_member(options, "betas")->items[1].real == 0.95);
    assert_int_equal(cli_number(f, run, "warmup_steps"), 2);
    assert_int_equal(cli_number(f, sbp_json_member(run, "data"), "rows"), 200);
    assert_non_null(sbp_json_member(sbp_json_member(run, "compiled"), "options"));
    cli_ok(
        f,
        "$R $D/p --config $D/c.yaml --data $G/stories260k_trl/train.jsonl --max_steps 1 --out none --json");
    assert_int_equal(cli_number(f, cli_json(f, "out"), "steps"), 1); /* the command line wins */
}

/* The options that run.json records, given back as a config file, make the same run. */
static void test_run_json_reproduces_the_run(void **state) {
    io_fixture *f = *state;
    cli_ok(f, COMPILE);
    cli_ok(
        f,
        "$R $D/p --data $G/stories260k_trl/train.jsonl --batch-tokens 700 --steps 3 --lr 1e-3 --warmup 0.5 "
        "--schedule cosine,num_cycles=0.6 --betas 0.8,0.99 --weight-decay 0.1 --seed 7 --out $D/a");
    sbp_text options;
    sbp_text_init(&options, f->arena);
    sbp_json_add_value(&options, sbp_json_member(cli_json(f, "a/run.json"), "options"));
    cli_put(f, "again.json", options.data);
    cli_ok(f, "$R $D/p --config $D/again.json --out $D/b");
    assert_null(strstr(cli_text(f, "err"), ": write ")); /* keys are where they belong */
    cli_same(f, "a/model.safetensors", "b/model.safetensors");
    cli_ok(f, "$R $D/p --config $D/again.json --out $D/c --seed 8");
    assert_int_not_equal(cli(f, "cmp $D/a/model.safetensors $D/c/model.safetensors"), 0);
}

/* ---- other ways to train ---------------------------------------------------------------------------- */

/* Gradients consumed at once: the same numbers as without, where nothing is clipped. */
static void test_one_entry_for_all(void **state) {
    io_fixture *f = *state;
    cli_ok(f, COMPILE " --clip none");
    cli_ok(f, TRAIN " --out $D/two");
    cli_ok(f, COMPILE " --clip none --accumulate 1");
    cli_ok(f, TRAIN " --out $D/one --save-every 15");
    int n, m;
    const sbp_json **a = cli_lines(f, "two/metrics.jsonl", &n), **b = cli_lines(f, "one/metrics.jsonl", &m);
    assert_int_equal(n, m);
    for (int i = 0; i < n; i++) {
        expect_near("loss", i + 1, cli_number(f, b[i], "loss"), cli_number(f, a[i], "loss"),
                    SBP_TOLERANCE_F32);
        double norm = cli_number(f, a[i], "grad_norm");
        expect_near("grad_norm", i + 1, cli_number(f, b[i], "grad_norm"), norm, SBP_TOLERANCE_F32 * norm);
    }
    cli_ok(f, "cp -r $D/one $D/again; rm $D/again/model.safetensors");
    cli_ok(f, TRAIN " --out $D/again --resume");
    cli_same(f, "one/model.safetensors", "again/model.safetensors");
}

static void test_sgd_and_random_weights(void **state) {
    io_fixture *f = *state;
    cli_ok(f, COMPILE " --optimizer sgd");
    cli_ok(f, TRAIN " --weights random:3 --out $D/a --save-every 11");
    cli_ok(f, TRAIN " --weights random:3 --out $D/b");
    cli_same(f, "a/model.safetensors", "b/model.safetensors");
    cli_ok(f, "rm $D/a/model.safetensors; " TRAIN " --weights random:3 --out $D/a --resume");
    cli_same(f, "a/model.safetensors", "b/model.safetensors");
    int count;
    const sbp_json **lines = cli_lines(f, "b/metrics.jsonl", &count);
    assert_true(fabs(cli_number(f, lines[0], "loss") - log(512)) < 0.5); /* knows nothing yet */
}

/* --log-every N (logging_steps): each N-th step and the last, also where the output is a pipe. */
static void test_lines_of_progress(void **state) {
    io_fixture *f = *state;
    static const struct {
        const char *option, *steps;
    } cases[] = {
        {"--log-every 1", "1 2 3 4 5 6 7 "}, {"--logging_steps 3", "3 6 7 "}, {"--log-every 50", "7 "}};
    cli_ok(f, "$C compile $S -o $D/p --seq-len 300");
    for (int i = 0; i < SBP_COUNT(cases); i++) {
        cli_ok(f,
               sbp_arena_printf(
                   f->arena,
                   "$R $D/p --data $G/stories260k_trl/train.jsonl --steps 7 --batch-size 1 --out $D/o "
                   "--overwrite %s && sed -n 's|^step \\([0-9]*\\)/7  loss .*|\\1|p' $D/err | tr '\\n' ' '",
                   cases[i].option));
        assert_string_equal(cli_text(f, "out"), cases[i].steps);
    }
    cli_ok(f, "wc -l <$D/o/metrics.jsonl");
    assert_int_equal(atoi(cli_text(f, "out")), 7);
}

/* Steps that cannot teach anything are reported, and only they: at lr 1e6 the second step finds weights whose
 * gradients are 0; advantages of 0 and clipped ratios have gradients of 0 as they should. */
static void test_gradients_of_zero(void **state) {
    io_fixture *f = *state;
    static const char said[] = "all gradients are exactly 0",
                      end[] = "in 3 of these steps all gradients were exactly 0";
    cli_ok(f, "$C compile $S -o $D/p --seq-len 300");
    cli_ok(f, "$R $D/p --data $G/stories260k_trl/train.jsonl --steps 4 --batch-size 2 --lr 1e6 --out none");
    const char *err = sbp_arena_strdup(f->arena, cli_text(f, "err")), *first = strstr(err, said);
    if (!strstr(err, "step 2: all gradients are exactly 0 though the loss is 6.2383") ||
        strstr(first + 1, said) || !strstr(err, end))
        fail_msg("%s", err);
    cli_ok(
        f,
        "$R $D/p --data $G/stories260k_trl/train.jsonl --steps 4 --batch-size 2 --lr 1e6 --out none --json");
    assert_int_equal(cli_number(f, cli_json(f, "out"), "zero_gradient_steps"), 3);
    cli_put(f, "rows",
            "{\"prompt_ids\": [1, 2], \"completion_ids\": [3, 4], \"advantage\": 0, "
            "\"old_per_token_logps\": [-4, -4]}\n"
            "{\"prompt_ids\": [1, 5], \"completion_ids\": [6, 7], \"advantage\": 2, "
            "\"old_per_token_logps\": [-50, -60]}\n");
    cli_ok(f, "$C compile $G/llama_mqa/model -o $D/q --objective grpo --seq-len 64; "
              "$R $D/q --data $D/rows --steps 2 --batch-size 1 --shuffle off --out $D/o");
    int count;
    const sbp_json **lines = cli_lines(f, "o/metrics.jsonl", &count);
    assert_int_equal(count, 2);
    for (int i = 0; i < count; i++)
        assert_true(cli_number(f, lines[i], "grad_norm") == 0);
    assert_true(fabs(cli_number(f, lines[1], "loss")) > 1);
    assert_null(strstr(cli_text(f, "err"), said));
}

/* --dump-gradients says what the step was. */
static void test_the_loss_of_dumped_gradients(void **state) {
    io_fixture *f = *state;
    static const char run[] = "--data $G/stories260k_trl/train.jsonl --batch-size 2 --shuffle off";
    cli_ok(f, sbp_arena_printf(f->arena,
                               "$C compile $S -o $D/p --seq-len 300; $R $D/p %s --steps 1 --out $D/o", run));
    int count;
    const sbp_json *step = cli_lines(f, "o/metrics.jsonl", &count)[0];
    cli_ok(f, sbp_arena_printf(f->arena, "$R $D/p %s --dump-gradients $D/g --json", run));
    const sbp_json *said = cli_json(f, "out");
    assert_true(cli_number(f, said, "loss") == cli_number(f, step, "loss"));
    assert_true(cli_number(f, said, "grad_norm") == cli_number(f, step, "grad_norm"));
    assert_true(cli_number(f, said, "num_tokens") == cli_number(f, step, "num_tokens"));
    cli_ok(f, sbp_arena_printf(f->arena, "$R $D/p %s --dump-gradients $D/g", run));
    assert_non_null(
        strstr(cli_text(f, "err"),
               sbp_arena_printf(f->arena, "note: loss %.6g, norm of the gradients %.6g, of 2 rows",
                                cli_number(f, step, "loss"), cli_number(f, step, "grad_norm"))));
}

/* Every command of five steps is counted once, and the bits are those of a run that is not timed. */
static void test_a_profile(void **state) {
    io_fixture *f = *state;
    cli_ok(f, COMPILE);
    cli_ok(f, TRAIN " --steps 5 --out $D/a");
    assert_null(strstr(cli_text(f, "err"), "in all commands"));
    cli_ok(f, "SBP_PROFILE=1 " TRAIN " --steps 5 --out $D/b 2>$D/table");
    cli_same(f, "a/model.safetensors", "b/model.safetensors");
    cli_ok(f, "grep -q '100.0% in all commands' $D/table; grep -q 'GFLOP/s.*command' $D/table");
    cli_ok(f, "grep -qE '%  +5  .*  row norm.grad_norm$' $D/table"); /* of the gradients: once a step */
}

/* sbprun MODEL: sbpc as a child. */
static void test_a_model_in_one_command(void **state) {
    io_fixture *f = *state;
    int count;
    cli_ok(f, "$R $S --data $G/stories260k_trl/train.jsonl --lr 0.001 --shuffle off --steps 20 --out $D/o "
              "--chunk 100 "
              "--max_grad_norm 1.0 --json --verbose");
    assert_int_equal(cli_number(f, cli_json(f, "out"), "steps"), 20);
    const char *err = cli_text(f, "err");
    assert_non_null(strstr(err, "compile tests/data/stories260K -o "));
    assert_non_null(
        strstr(err, sbp_arena_printf(f->arena, " -o %s/o/plan.bin ", f->directory))); /* in the end */
    assert_null(strstr(err, ".tmp"));
    assert_non_null(strstr(err, "--chunk=100"));
    assert_non_null(strstr(err, "--memory="));
    assert_non_null(strstr(err, "/sbprun "));
    assert_true(cli_exists(f, "o/plan.bin"));
    const sbp_json **got = cli_lines(f, "o/metrics.jsonl", &count), *want;
    assert_ok(f, sbp_json_get_array(f->diag, trl(f), "trl", SBP_JSON_REQUIRED, &want));
    for (int i = 0; i < count; i++)
        expect_near("loss", i + 1, cli_number(f, got[i], "loss"), cli_number(f, &want->items[i], "loss"),
                    SBP_TOLERANCE_F32);
    cli_ok(
        f,
        "TMPDIR=$D $R $S --data - --steps 1 --seq-len 300 --out none <$G/stories260k_trl/train.jsonl; ls $D");
    assert_null(strstr(cli_text(f, "out"), "sbprun-")); /* the temporary plan is gone */
    cli_ok(f, "TMPDIR=$D $R $S --data - --steps 1 --out none <$G/stories260k_trl/train.jsonl");
    cli_fails(f, 2, "--overlong truncate needs --seq-len", "$R $S --data x --overlong truncate");
    cli_fails(f, 1, "",
              "$R $G/README.md --data $G/stories260k_trl/train.jsonl --seq-len 100"); /* sbpc's own message */
}

/* test_cli_train [vulkan [TEST]] */
int main(int argc, char **argv) {
    const struct CMUnitTest vulkan[] = {
        cmocka_unit_test_setup_teardown(test_the_curve_on_vulkan, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_a_real_model_on_vulkan, cli_setup, io_teardown),
    };
    if (argc > 2)
        cmocka_set_test_filter(argv[2]);
    if (argc > 1 && strcmp(argv[1], "vulkan") == 0)
        return cmocka_run_group_tests(vulkan, NULL, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_the_curve_of_trl, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_the_curve_in_double, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_the_curve_of_a_hybrid, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_the_curve_in_pieces, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_scores, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_scores_of_llama2c, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_evaluations_and_the_written_model, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_the_tokenizer_of_the_plan, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_the_summary_and_run_json, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_run_json_reproduces_the_run, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_one_entry_for_all, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_sgd_and_random_weights, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_lines_of_progress, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_gradients_of_zero, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_the_loss_of_dumped_gradients, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_a_profile, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_a_model_in_one_command, cli_setup, io_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
