/* --share-prompt: gradients are those of rows that share nothing, for every objective whose rows have prompts
 * in common; and most of a long prompt's work is gone. Groups: gradients do not depend on where their rows
 * stand.
 *
 * The rows are drawn: groups of rollouts and pairs, with prompts of no, one and many tokens, empty
 * completions, completions that begin alike. Plans differ in rows per micro-batch, chunks, groups of layers,
 * checkpoints and offload. Alone in double precision; with an argument, on that backend, in single. */
#include "tests/cli/drawing.h"
#include "tests/cli/ranks_testing.h"
#include "tests/common/sweep.h"

enum { GROUPS = 5, VOCABULARY = 41 };

static const char *backend; /* NULL: the CPU */

typedef enum kind { ROLLOUTS, PAIRS, REWARDED, SAMPLED, JUDGED } kind; /* SAMPLED: rollouts with rewards */

static void add_logps(sbp_rng *rng, sbp_text *out, const char *key, int64_t count) {
    sbp_text_add(out, ", \"%s\": [", key);
    for (int64_t i = 0; i < count; i++)
        sbp_text_add(out, "%s%.4f", i ? ", " : "", -1 - 0.001 * (double)sbp_rng_below(rng, 4000));
    sbp_text_add(out, "]");
}

static void add_ids(sbp_text *out, const char *key, const int *ids, int64_t count) {
    sbp_text_add(out, "\"%s\": [", key);
    for (int64_t i = 0; i < count; i++)
        sbp_text_add(out, "%s%d", i ? ", " : "", ids[i]);
    sbp_text_add(out, "]");
}

static void draw(sbp_rng *rng, int *ids, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        ids[i] = 3 + (int)sbp_rng_below(rng, VOCABULARY - 3);
}

typedef struct drawn {
    int64_t rows, tokens, longest; /* longest: of what stays together */
} drawn;

/* Writes $D/data. */
static drawn write_rows(io_fixture *f, sbp_rng *rng, kind of) {
    static const int64_t prompts[] = {1, 2, 23, 0, 11};
    int prompt[32], first[16], second[16];
    drawn d = {0};
    sbp_text out;
    sbp_text_init(&out, f->arena);
    for (int g = 0; g < GROUPS; g++) {
        int64_t p = prompts[g], rows = of == PAIRS ? 1 : 1 + sbp_rng_below(rng, 5);
        rows = of != PAIRS && p == 23 ? 4 : rows;
        draw(rng, prompt, p);
        draw(rng, first, 16);
        for (int64_t r = 0; r < rows; r++) {
            int64_t a = sbp_rng_below(rng, 9), b = 1 + sbp_rng_below(rng, 9);
            a = a == 0 && (p == 0 || of != ROLLOUTS) ? 1 : a; /* some token, for PPO of the answer */
            memcpy(second, first, sizeof first);
            draw(rng, second + 1, 15); /* the first token is the same in all */
            sbp_text_add(&out, "{");
            add_ids(&out, "prompt_ids", prompt, p);
            sbp_text_add(&out, ", ");
            add_ids(&out, of == PAIRS ? "chosen_ids" : "completion_ids", of == PAIRS ? first : second, a);
            int64_t unit = p + a;
            if (of == PAIRS) {
                sbp_text_add(&out, ", ");
                add_ids(&out, "rejected_ids", second, b);
                sbp_text_add(&out, ", \"ref_chosen_logps\": %.3f, \"ref_rejected_logps\": %.3f",
                             -4.0 * (double)a, -4.0 * (double)b);
                unit += p + b;
            } else if (of == JUDGED) {
                sbp_text_add(&out, ", \"group\": %d, \"label\": %s", g, r % 2 ? "true" : "false");
            } else {
                sbp_text_add(&out, ", \"group\": %d, \"%s\": %.3f", g,
                             of == REWARDED || of == SAMPLED ? "reward" : "advantage",
                             0.001 * (double)sbp_rng_below(rng, 4000) - 2);
                add_logps(rng, &out, "old_per_token_logps", a);
                add_logps(rng, &out, "ref_per_token_logps", a);
                if (of == ROLLOUTS || of == SAMPLED)
                    add_logps(rng, &out, "sampling_per_token_logps", a);
            }
            sbp_text_add(&out, "}\n");
            d.rows++;
            d.tokens += unit;
            d.longest = unit > d.longest ? unit : d.longest;
        }
    }
    cli_put(f, "data", out.data);
    return d;
}

static const struct {
    const char *objective, *model;
    kind of;
} objectives[] = {
    {"--objective grpo --beta 0.1", "llama_mqa", ROLLOUTS},
    {"--objective grpo --loss-type grpo --importance token", "gemma3_layer_types", ROLLOUTS}, /* windows */
    {"--objective grpo --loss-type dr_grpo", "mistral_window", ROLLOUTS},
    {"--objective grpo --loss-type gspo", "llama_mqa", ROLLOUTS},
    {"--objective grpo --loss-type luspo", "gpt_neox_plain", ROLLOUTS},
    {"--objective grpo --loss-type cispo --entropy-coef 0.1 --vllm-importance-sampling-mode token_truncate",
     "llama_rope_dynamic", ROLLOUTS},
    {"--objective grpo --loss-type sapo --vllm-importance-sampling-mode sequence_truncate", "llama_mqa",
     ROLLOUTS},
    {"--objective grpo --loss-type vespo --vespo-k-pos 0.5 --vespo-lambda-pos 0.3 --vespo-k-neg 0.4 "
     "--vespo-lambda-neg 0.2",
     "gemma3_softcap", ROLLOUTS},
    {"--objective grpo --loss-type reinforce", "llama_mqa", ROLLOUTS},
    {"--objective grpo --loss-type rloo --epsilon 0.5", "llama_mqa", ROLLOUTS},
    {"--objective grpo --loss-type dapo --scale-rewards batch", "llama_mqa", REWARDED},
    {"--objective ppo", "llama_mqa", REWARDED},
    {"--objective kto", "mistral_window", JUDGED},
    {"--objective dpo", "llama_mqa", PAIRS},
    {"--objective dpo --loss-type ipo+sft:0.5", "mistral_window", PAIRS},
    {"--objective orpo --beta 0.3", "gemma3_layer_types", PAIRS},
    {"--objective simpo --cpo-alpha 0.5 --beta 2", "llama_mqa", PAIRS},
};

static const char *draw_schedule(io_fixture *f, sbp_rng *rng) {
    return sbp_arena_printf(
        f->arena, "--chunk %d --head-chunk %d --segment %d --checkpoint-every %d %s %s %s",
        1 + (int)sbp_rng_below(rng, 20), 1 + (int)sbp_rng_below(rng, 20), 1 + (int)sbp_rng_below(rng, 2),
        1 + (int)sbp_rng_below(rng, 2), PICK(rng, "", "--save attn_out", "--backward checkpoint"),
        PICK(rng, "", "--offload host", "--clip none --accumulate any"), PICK(rng, "", "--head-rows all"));
}

static void dump(io_fixture *f, int i, const char *compile, int64_t seq_len, const char *run,
                 const char *file) {
    cli_ok(f, sbp_arena_printf(
                  f->arena,
                  "$C compile $G/%s/model -o $D/p %s %s --seq-len %lld && $R $D/p --data $D/data "
                  "--batch-size 100 --out none %s --dump-gradients $D/%s",
                  objectives[i].model, objectives[i].objective, compile, (long long)seq_len, run, file));
}

/* Rows that an epoch runs. */
static double rows_run(io_fixture *f, const char *option) {
    cli_ok(f, sbp_arena_printf(f->arena,
                               "$R $D/p --data $D/data --batch-size 100 --out none --dry-run --json %s",
                               option));
    return cli_number(f, cli_json(f, "out"), "rows_per_epoch");
}

static void test_gradients(void **state) {
    io_fixture *f = *state;
    double worst = 0;
    if (backend && !cli_has_device(f, backend, "shared prompts"))
        skip();
    const char *want = sbp_arena_strdup(f->arena, io_path(f, "want.safetensors"));
    for (int i = backend ? 1 : 0; i < SBP_COUNT(objectives); i += backend ? 12 : 1) {
        sbp_rng rng = {.state = 500 + (uint64_t)i};
        drawn d = write_rows(f, &rng, objectives[i].of);
        dump(f, i, "--dtype fp64 --backend cpu", d.tokens, "--shuffle off", "want.safetensors");
        double plain = rows_run(f, "");
        assert_true(plain == (double)d.tokens);
        for (int n = 0; n < (backend ? 1 : 3); n++) {
            int64_t room = n == 0   ? d.tokens
                           : n == 1 ? d.longest
                                    : d.longest + sbp_rng_below(&rng, d.tokens - d.longest);
            const char *schedule =
                backend ? sbp_arena_printf(f->arena, "--chunk 7 --head-chunk 16 --dtype fp32 --backend %s",
                                           backend)
                        : sbp_arena_printf(f->arena, "--dtype fp64 %s", draw_schedule(f, &rng));
            dump(f, i, schedule, room,
                 n == 2 ? "--share-prompt on --shuffle on" : "--share-prompt on --shuffle off",
                 "got.safetensors");
            worst = fmax(worst, cli_compare(f, objectives[i].objective, io_path(f, "got.safetensors"), want,
                                            backend ? SBP_TOLERANCE_F32 : SBP_TOLERANCE_F64));
            double shared = rows_run(f, "--share-prompt on");
            if (n == 0)
                print_message("%s, %s: %g of %g rows\n", objectives[i].objective, objectives[i].model, shared,
                              plain);
            assert_true(n == 0 ? shared < 0.8 * plain : shared <= plain);
        }
    }
    print_message("worst tensor off by %.2g\n", worst);
}

/* Log-probabilities, losses and metrics, with those of a reference that is scored first. */
static void test_scores(void **state) {
    io_fixture *f = *state;
    sbp_rng rng = {.state = 77};
    drawn d = write_rows(f, &rng, REWARDED);
    static const char run[] =
        "$R $D/p --data $D/data --batch-size 100 --shuffle off --steps 2 --lr 1e-3 --eval "
        "$D/data --inner-epochs 2 --beta 0.2 --share-prompt %s --out $D/%s --score $D/%s.scores";
    cli_ok(f, "sed -i 's/\"\\(old\\|ref\\)_per_token_logps/\"x\\1/' $D/data");
    cli_ok(f, sbp_arena_printf(
                  f->arena,
                  "$C compile $G/gemma3_layer_types/model -o $D/p --dtype fp64 --objective grpo --chunk "
                  "5 --seq-len %lld",
                  (long long)d.tokens / 2));
    for (int on = 0; on < 2; on++)
        cli_ok(f, sbp_arena_printf(f->arena, run, on ? "on" : "off", on ? "on" : "off", on ? "on" : "off"));
    static const char *const files[][2] = {{"off.scores", "on.scores"},
                                           {"off/metrics.jsonl", "on/metrics.jsonl"}};
    static const char *const keys[] = {"sum", "loss",      "grad_norm", "entropy",
                                       "kl",  "eval_loss", "num_tokens"};
    int compared = 0;
    for (int k = 0; k < 2; k++) {
        int want_count, got_count;
        const sbp_json **want = cli_lines(f, files[k][0], &want_count),
                       **got = cli_lines(f, files[k][1], &got_count);
        assert_int_equal(want_count, got_count);
        for (int n = 0; n < want_count; n++)
            for (int i = 0; i < SBP_COUNT(keys); i++) {
                if (!sbp_json_member(want[n], keys[i]))
                    continue;
                double x = cli_number(f, want[n], keys[i]), y = cli_number(f, got[n], keys[i]);
                if (!(fabs(x - y) <= SBP_TOLERANCE_F64 * fmax(1, fabs(x))))
                    fail_msg("%s, line %d: %s is %.17g, expected %.17g", files[k][1], n, keys[i], y, x);
                compared++;
            }
    }
    assert_true(compared > 15);
}

/* Eight answers to one prompt of 300 tokens: its rows but the last once. */
static void test_work(void **state) {
    io_fixture *f = *state;
    sbp_text out;
    sbp_rng rng = {.state = 5};
    int prompt[300], answer[20];
    sbp_text_init(&out, f->arena);
    draw(&rng, prompt, 300);
    for (int r = 0; r < 8; r++) {
        draw(&rng, answer, 20);
        sbp_text_add(&out, "{");
        add_ids(&out, "prompt_ids", prompt, 300);
        sbp_text_add(&out, ", ");
        add_ids(&out, "completion_ids", answer, 20);
        sbp_text_add(&out, ", \"reward\": %d}\n", r);
    }
    cli_put(f, "data", out.data);
    cli_ok(f, "$C compile $G/llama_mqa/model -o $D/p --objective grpo --seq-len 2560");
    assert_true(rows_run(f, "") == 8 * 320);
    assert_true(rows_run(f, "--share-prompt on") == 299 + 8 * 21);
    cli_ok(f, "$R $D/p --data $D/data --out none --dry-run --share-prompt on");
    assert_non_null(strstr(cli_text(f, "out"), "shared     467 tokens are run in place of 2560"));
    /* where three fit together, three times */
    cli_ok(f, "$C compile $G/llama_mqa/model -o $D/p --objective grpo --seq-len 362");
    assert_true(rows_run(f, "--share-prompt on") == 2 * (299 + 3 * 21) + 299 + 2 * 21);
    cli_ok(f, "$C compile $G/llama_mqa/model -o $D/p --objective grpo --seq-len 340");
    assert_true(rows_run(f, "--share-prompt on") == 8 * 320); /* none */
}

/* What drops is of the document, not of the prompt; a state goes on with one completion. */
static void test_refused(void **state) {
    io_fixture *f = *state;
    cli_put(f, "data", "{\"prompt_ids\": [5], \"completion_ids\": [9], \"advantage\": 1}\n");
    cli_ok(
        f,
        "$C compile $G/llama_mqa/model -o $D/p --objective grpo --lora r=2 --lora-dropout 0.1 --seq-len 64");
    cli_fails(f, 2, "random numbers of a row belong to its document",
              "$R $D/p --data $D/data --out none --share-prompt on --dry-run");
    cli_ok(f, "$C compile $G/lfm2_v/model -o $D/p --objective grpo --seq-len 64");
    cli_fails(f, 2, "the model carries states from row to row",
              "$R $D/p --data $D/data --out none --share-prompt on --dry-run");
}

/* Where there is nothing to share, the bits are the same. */
static void test_nothing_to_share(void **state) {
    io_fixture *f = *state;
    cli_ok(f, "$C compile $G/llama_mqa/model -o $D/p --seq-len 94");
    for (int on = 0; on < 2; on++)
        cli_ok(f, sbp_arena_printf(f->arena,
                                   "$R $D/p --data $G/llama_mqa/train.jsonl --out none --share-prompt %s "
                                   "--dump-gradients $D/%s",
                                   on ? "on" : "off", on ? "on" : "off"));
    cli_same(f, "on", "off");
}

/* ---- rows of groups, wherever they stand --------------------------------------------------------------- */

static const char **split_lines(io_fixture *f, const char *name, int *count) {
    char *text = sbp_arena_strdup(f->arena, cli_text(f, name));
    const char **lines = NULL;
    int32_t n = 0, capacity = 0;
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"))
        SBP_PUSH(f->arena, lines, n, capacity, line);
    *count = n;
    return lines;
}

static void write_lines(io_fixture *f, const char *name, const char **lines, int count) {
    sbp_text out;
    sbp_text_init(&out, f->arena);
    for (int i = 0; i < count; i++)
        sbp_text_add(&out, "%s\n", lines[i]);
    cli_put(f, name, out.data);
}

/* Where the group of a row is named. */
static const char *group_of(const char *line) {
    return strstr(line, "\"group\": ");
}

/* $D/data in drawn order; $D/together: the same, each group where its first row stands. */
static void shuffle_lines(io_fixture *f, sbp_rng *rng) {
    int count, at = 0;
    const char **lines = split_lines(f, "data", &count),
               **together = SBP_NEW_ARRAY(f->arena, const char *, count);
    for (int i = count - 1; i > 0; i--) {
        int other = (int)sbp_rng_below(rng, i + 1);
        const char *swap = lines[i];
        lines[i] = lines[other];
        lines[other] = swap;
    }
    for (int i = 0; i < count; i++) {
        bool first = true;
        for (int k = 0; k < i; k++)
            first &= strncmp(group_of(lines[k]), group_of(lines[i]), 10) != 0;
        for (int k = i; first && k < count; k++)
            if (strncmp(group_of(lines[k]), group_of(lines[i]), 10) == 0)
                together[at++] = lines[k];
    }
    write_lines(f, "data", lines, count);
    write_lines(f, "together", together, count);
}

/* Root of the sum of squares of all tensors. */
static double norm_of(io_fixture *f, const char *path) {
    sbp_weights *w;
    double sum = 0;
    assert_ok(f, sbp_weights_open(f->arena, f->diag, path, &w));
    for (int32_t i = 0; i < sbp_weights_count(w); i++) {
        double *x = cli_read_tensor(f, w, sbp_weights_at(w, i));
        for (int64_t k = 0; k < sbp_weights_at(w, i)->elems; k++)
            sum += x[k] * x[k];
        free(x);
    }
    sbp_weights_close(w);
    return sqrt(sum);
}

/* Gradients of rows in drawn order, with prompts run once or not, in one or several micro-batches, of one
 * rank or of two, with names of groups or by their prompts: those of the sorted rows. (KTO compares with the
 * row before: there the order counts.) */
static void test_groups_wherever_rows_stand(void **state) {
    io_fixture *f = *state;
    double worst = 0;
    int compared = 0;
    bool all = testing_all(), ranks = cli_has_ranks(f, NULL);
    const char *want = sbp_arena_strdup(f->arena, io_path(f, "want.safetensors"));
    for (int i = 0; i < SBP_COUNT(objectives); i++) {
        if (objectives[i].of == PAIRS || objectives[i].of == JUDGED)
            continue;
        sbp_rng rng = {.state = 900 + (uint64_t)i};
        drawn d = write_rows(f, &rng, objectives[i].of == ROLLOUTS ? SAMPLED : objectives[i].of);
        dump(f, i, "--dtype fp64 --backend cpu", d.tokens, "--shuffle off", "want.safetensors");
        assert_true(norm_of(f, want) * 1000 > 1);
        for (int n = 0; n < (all ? 8 : 1); n++) {
            int64_t room = n % 2 ? d.tokens : d.longest + sbp_rng_below(&rng, d.tokens - d.longest);
            cli_ok(f, n == 0 ? "cp $D/data $D/sorted" : "cp $D/sorted $D/data");
            shuffle_lines(f, &rng);
            if (sbp_rng_below(&rng, 3) == 0)
                cli_ok(f, "sed -i 's/\"group\": [0-9]*, //' $D/data");
            const char *run = PICK(&rng, "--share-prompt on --shuffle off", "--share-prompt off --shuffle on",
                                   "--share-prompt on --shuffle on");
            bool several = ranks && (all ? n % 4 == 3 : i % 6 == 4);
            const char *compile = sbp_arena_printf(
                f->arena, "$C compile $G/%s/model -o $D/p --dtype fp64 %s %s --seq-len %lld %s",
                objectives[i].model, objectives[i].objective, draw_schedule(f, &rng), (long long)room,
                several ? PICK(&rng, "--ranks 2", "--ranks 2 --zero 2", "--ranks 2 --zero 3") : "");
            cli_ok(f, sbp_arena_printf(f->arena,
                                       "%s && %s $R $D/p --data $D/data --batch-size 100 --out none %s "
                                       "--dump-gradients $D/got.safetensors",
                                       compile, several ? "$M -n 2" : "", run));
            worst = fmax(worst, cli_compare(f, objectives[i].objective, io_path(f, "got.safetensors"), want,
                                            SBP_TOLERANCE_F64));
            compared++;
        }
    }
    print_message("%d orders of rows, worst tensor off by %.2g\n", compared, worst);
    assert_true(compared >= 12);
}

/* Steps: the same bits as of rows that stand together, with any number of rows to a step, shuffled or not,
 * going on, from a stream; scores stand in the order of the file, and serve as a reference. */
static void test_steps_of_groups(void **state) {
    io_fixture *f = *state;
    sbp_rng rng = {.state = 31};
    int count;
    drawn d = write_rows(f, &rng, REWARDED);
    cli_ok(f, "sed -i 's/\"\\(old\\|ref\\)_per_token_logps/\"x\\1/g' $D/data");
    shuffle_lines(f, &rng);
    cli_ok(f,
           sbp_arena_printf(f->arena,
                            "$C compile $G/llama_mqa/model -o $D/p --dtype fp64 --objective grpo --chunk 5 "
                            "--seq-len %lld && $R $D/p --data $D/data --score $D/scores",
                            (long long)d.longest));
    const sbp_json **scores = cli_lines(f, "scores", &count);
    assert_int_equal(count, d.rows);
    for (int k = 0; k < count; k++)
        assert_int_equal(sbp_json_member(scores[k], "row")->integer, k);
    static const char *const batches[] = {"--batch-size 4 --shuffle off", "--batch-size 3 --shuffle on",
                                          "--batch-tokens 60 --shuffle on", "--batch-size 100"};
    for (int i = 0; i < SBP_COUNT(batches); i++) {
        const char *train = sbp_arena_printf(
            f->arena, "--beta 0.2 --lr 1e-3 --schedule constant --inner-epochs 2 --overwrite %s", batches[i]);
        cli_ok(f, sbp_arena_printf(f->arena, "$R $D/p --data $D/together --steps 7 --out $D/want %s", train));
        cli_ok(f, sbp_arena_printf(f->arena,
                                   "$R $D/p --data $D/data --ref $D/scores --steps 3 --out $D/got %s && "
                                   "$R $D/p --resume --out $D/got --steps 7",
                                   train));
        cli_same(f, "want/model.safetensors", "got/model.safetensors");
    }
    cli_ok(
        f,
        "(cat $D/data; echo '{\"end_of_step\": true}') >$D/stream; cat $D/stream $D/stream $D/stream | "
        "$R $D/p --data - --beta 0.2 --lr 1e-3 --schedule constant --inner-epochs 2 --steps 7 --overwrite "
        "--out $D/got || true; "
        "$R $D/p --data $D/together --batch-size 100 --shuffle off --beta 0.2 --lr 1e-3 --schedule constant "
        "--inner-epochs 2 --steps 6 --overwrite --out $D/want");
    cli_same(f, "want/model.safetensors", "got/model.safetensors");
}

/* ---- answers that nobody scored, or none of whose tokens counts -----------------------------------------
 */

enum { SCORED_ROWS = 12, SCORED_GROUPS = 3 };

/* Rewards of groups of four; NAN: null. In the last group nobody scored an answer. */
static const double scored[SCORED_ROWS] = {NAN, 0.5, -1, 2, 0.25, NAN, NAN, 1.5, NAN, NAN, NAN, NAN};

/* Advantages of GRPO among those that are there: TRL's nanmean and nanstd. */
static void by_hand(double *out) {
    for (int g = 0; g < SCORED_GROUPS; g++) {
        const double *r = scored + 4 * g;
        double sum = 0, squares = 0, count = 0;
        for (int i = 0; i < 4; i++)
            if (!isnan(r[i])) {
                sum += r[i];
                count++;
            }
        for (int i = 0; i < 4; i++)
            if (!isnan(r[i]))
                squares += (r[i] - sum / count) * (r[i] - sum / count);
        for (int i = 0; i < 4; i++)
            out[4 * g + i] = isnan(r[i]) ? 0 : (r[i] - sum / count) / (sqrt(squares / (count - 1)) + 1e-4);
    }
}

/* A line for each row, its value under this key; more: NULL, or of the row's group. */
static void write_scored(io_fixture *f, const char *name, const char *key, const double *values,
                         const char *more) {
    sbp_rng rng = {.state = 3};
    sbp_text out;
    int prompt[5], answer[6];
    sbp_text_init(&out, f->arena);
    for (int r = 0; r < SCORED_ROWS; r++) {
        if (r % 4 == 0)
            draw(&rng, prompt, 5);
        draw(&rng, answer, 6);
        sbp_text_add(&out, "{");
        add_ids(&out, "prompt_ids", prompt, 5);
        sbp_text_add(&out, ", ");
        add_ids(&out, "completion_ids", answer, r == 2 ? 0 : 1 + r % 6);
        if (isnan(values[r]))
            sbp_text_add(&out, ", \"%s\": null%s}\n", key, more);
        else
            sbp_text_add(&out, ", \"%s\": %.17g%s}\n", key, values[r], more);
    }
    cli_put(f, name, out.data);
}

static void test_null_rewards(void **state) {
    io_fixture *f = *state;
    double advantages[SCORED_ROWS];
    int count;
    static const char dump_of[] = "$R $D/p --data $D/%s --batch-size 12 --out none --dump-gradients $D/%s";
    by_hand(advantages);
    write_scored(f, "rewards", "reward", scored, "");
    write_scored(f, "beside", "reward", scored, ", \"advantage\": null");
    write_scored(f, "advantages", "advantage", advantages, "");
    cli_ok(f, "$C compile $G/llama_mqa/model -o $D/p --dtype fp64 --objective grpo --seq-len 64");
    cli_ok(f, sbp_arena_printf(f->arena, dump_of, "advantages", "want"));
    assert_true(norm_of(f, io_path(f, "want")) * 1000 > 1);
    for (int i = 0; i < 2; i++) {
        cli_ok(f, sbp_arena_printf(f->arena, dump_of, i ? "beside" : "rewards", "got"));
        cli_compare(f, "rewards that are null", io_path(f, "got"), io_path(f, "want"), SBP_TOLERANCE_F64);
    }
    cli_ok(f, "$R $D/p --data $D/rewards --batch-size 12 --steps 1 --out $D/o");
    const sbp_json *line = cli_lines(f, "o/metrics.jsonl", &count)[0];
    assert_true(fabs(cli_number(f, line, "reward") - 3.25 / 5) <= SBP_TOLERANCE_F64);
    assert_true(cli_number(f, line, "frac_reward_zero_std") == 0);
    /* nobody has scored anything: nothing is learned, and it is said */
    cli_ok(f, "tail -4 $D/rewards >$D/none; $R $D/p --data $D/none --out none --dump-gradients $D/got");
    assert_non_null(strstr(cli_text(f, "err"), "'reward' is null in all rows: their advantages are 0"));
    assert_true(norm_of(f, io_path(f, "got")) == 0);
    cli_ok(f, "$R $D/p --data $D/none --out none --scale-rewards batch --dump-gradients $D/got");
    assert_true(norm_of(f, io_path(f, "got")) == 0);
    cli_fails(f, 1, "'reward' is missing", /* of PPO it is all there is */
              "$C compile $G/llama_mqa/model -o $D/ppo --objective ppo --seq-len 64 && "
              "$R $D/ppo --data $D/rewards --out none --dry-run");
}

/* With ratios of 1 the loss of RLOO is minus the mean of the advantages, of the answer without a token too.
 */
static void test_loss_of_empty_answers(void **state) {
    io_fixture *f = *state;
    double values[SCORED_ROWS], sum = 0;
    int count;
    for (int r = 0; r < SCORED_ROWS; r++)
        sum += values[r] = 0.3 * r - 1 - (r == 2 ? 5 : 0);
    write_scored(f, "rows", "advantage", values, "");
    cli_ok(
        f,
        "$C compile $G/llama_mqa/model -o $D/p --dtype fp64 --objective grpo --loss-type rloo --seq-len 24");
    cli_ok(f, "$R $D/p --data $D/rows --batch-size 12 --steps 1 --out $D/o --share-prompt on --eval $D/rows");
    const sbp_json **lines = cli_lines(f, "o/metrics.jsonl", &count);
    for (int i = 0; i < 2; i++) {
        double loss = cli_number(f, lines[i], i ? "loss" : "eval_loss");
        double ratio = cli_number(f, lines[i], i ? "ratio_mean" : "eval_ratio_mean");
        if (!(fabs(loss + sum / SCORED_ROWS) <= SBP_TOLERANCE_F64) || !(fabs(ratio - 1) <= SBP_TOLERANCE_F64))
            fail_msg("loss %.17g, ratio %.17g, expected %.17g and 1", loss, ratio, -sum / SCORED_ROWS);
    }
}

int main(int argc, char **argv) {
    backend = argc > 1 ? argv[1] : NULL;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_gradients, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_scores, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_work, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_refused, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_nothing_to_share, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_groups_wherever_rows_stand, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_steps_of_groups, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_null_rewards, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_loss_of_empty_answers, cli_setup, io_teardown),
    };
    const struct CMUnitTest on_device[] = {
        cmocka_unit_test_setup_teardown(test_gradients, cli_setup, io_teardown)};
    return backend ? cmocka_run_group_tests(on_device, NULL, NULL)
                   : cmocka_run_group_tests(tests, NULL, NULL);
}
