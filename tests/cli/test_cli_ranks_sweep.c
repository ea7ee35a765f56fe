/* test_cli_ranks_sweep.c: ranks compute what one does, at every level of shares: metrics and weights after
 * three steps of every objective and loss type, and of every golden model, in double precision; in single,
 * gradients; some twice, for the bits. Rows are drawn as uneven as can be, and the last step of an epoch has
 * fewer than there are ranks. Schedules, placement and shares are drawn. By default one number of ranks and
 * level for each objective, and some models; with SBP_TEST_ALL=1 all of them.
 *
 *     test_cli_ranks_sweep [TEST]
 *
 * Most of a run's time MPI begins and ends, so some run beside each other. */
#include "tests/cli/ranks_numbers.h"
#include "tests/common/sweep.h"

enum { ROWS = 13, BESIDE = 3 };

/* ---- what is swept ---------------------------------------------------------------------------------- */

/* In each, $X is the case's directory: t, e are its rows. grpo's bnpo is not here: it depends on how a step
 * is cut. */
static const struct {
    const char *compile;
    kind rows;
    const char *run;
} objectives[] = {
    {"$G/llama_mqa/model --seq-len 40", TEXTS, "--batch-size 13 --eval $X/e --eval-every 2"},
    {"$G/mistral_window/model --seq-len 60 --optimizer sgd", TEXTS, "--batch-tokens 40 --eval $X/e"},
    {"$G/llama_mqa/model --seq-len 40 --lora-r 4 --lora-dropout 0.3", TEXTS, "--batch-size 12 --shuffle off"},
    {"$G/gemma3_softcap/model --seq-len 50 --objective sft --loss-type dft", TEXTS, "--batch-size 5"},
    {"$G/llama_mqa/model --seq-len 96 --objective dpo", PAIRS, "--batch-size 5 --eval $X/e"},
    {"$G/qwen2_tied/model --seq-len 96 --objective dpo --loss-type hinge", PAIRS, "--batch-size 5"},
    {"$G/llama_mqa/model --seq-len 96 --objective dpo --loss-type ipo", PAIRS, "--batch-size 5"},
    {"$G/llama_mqa/model --seq-len 96 --objective dpo --loss-type sigmoid_norm", PAIRS, "--batch-size 5"},
    {"$G/llama_mqa/model --seq-len 96 --objective dpo --loss-type robust --label-smoothing 0.1", PAIRS,
     "--batch-size 5"},
    {"$G/llama_mqa/model --seq-len 96 --objective dpo --loss-type cdpo --label-smoothing 0.2", PAIRS,
     "--batch-size 5"},
    {"$G/gemma3_layer_types/model --seq-len 96 --objective dpo --loss-type apo_zero", PAIRS,
     "--batch-size 5"},
    {"$G/llama_mqa/model --seq-len 96 --objective dpo --loss-type apo_down+sft:0.5", PAIRS, "--batch-size 5"},
    {"$G/llama_mqa/model --seq-len 96 --objective dpo --loss-type sppo_hard", PAIRS, "--batch-size 5"},
    {"$G/llama_mqa/model --seq-len 110 --objective orpo", PAIRS, "--batch-size 5"},
    {"$G/llama_mqa/model --seq-len 96 --objective simpo --cpo-alpha 0.5 --beta 2", PAIRS, "--batch-size 5"},
    {"$G/llama_mqa/model --seq-len 64 --objective kto", JUDGED, "--batch-size 5 --eval $X/e"},
    {"$G/llama_mqa/model --seq-len 64 --objective kto --loss-type apo_zero_unpaired", JUDGED,
     "--batch-size 5"},
    {"$G/llama_mqa/model --seq-len 64 --objective grpo --beta 0.1", REWARDED,
     "--batch-size 5 --inner-epochs 2 --epochs 1"},
    {"$G/llama_mqa/model --seq-len 120 --objective grpo --importance sequence --accumulate 2", REWARDED,
     "--batch-size 6 --share-prompt on"},
    {"$G/gpt_neox_plain/model --seq-len 64 --objective grpo --loss-type grpo", SAMPLED, "--batch-size 5"},
    {"$G/llama_mqa/model --seq-len 64 --objective grpo --loss-type dr_grpo --max-completion-length 40",
     SAMPLED, "--batch-size 5"},
    {"$G/llama_mqa/model --seq-len 64 --objective grpo --loss-type gspo --beta 0.2", REWARDED,
     "--batch-size 5"},
    {"$G/llama_mqa/model --seq-len 64 --objective grpo --loss-type luspo", SAMPLED, "--batch-size 5"},
    {"$G/llama_mqa/model --seq-len 64 --objective grpo --loss-type cispo --entropy-coef 0.1 "
     "--vllm-importance-sampling-mode token_truncate",
     SAMPLED, "--batch-size 5"},
    {"$G/llama_mqa/model --seq-len 64 --objective grpo --loss-type sapo --vllm-importance-sampling-mode "
     "sequence_truncate",
     SAMPLED, "--batch-size 5"},
    {"$G/llama_mqa/model --seq-len 64 --objective grpo --loss-type vespo --vespo-k-pos 0.5 "
     "--vespo-lambda-pos "
     "0.3 --vespo-k-neg 0.4 --vespo-lambda-neg 0.2",
     SAMPLED, "--batch-size 5"},
    {"$G/llama_mqa/model --seq-len 64 --objective grpo --loss-type reinforce --vllm-importance-sampling-mode "
     "token_mask",
     SAMPLED, "--batch-size 5"},
    {"$G/llama_mqa/model --seq-len 64 --objective grpo --loss-type rloo --epsilon 0.5", SAMPLED,
     "--batch-size 5"},
    {"$G/llama_mqa/model --seq-len 64 --objective ppo", REWARDED,
     "--eval $X/e --batch-size 5 --inner-epochs 2"},
};

static const int all_counts[] = {2, 3, 4, 8};

static bool all(void) {
    return testing_all();
}

/* Some ranks may have micro-batches together, either way; where the model has sinks, which belong to
 * heads, in one. */
static const char *draw_schedule(io_fixture *f, sbp_rng *rng, const char *compile, int ranks, int zero) {
    int together = 1 + (int)sbp_rng_below(rng, ranks);
    while (ranks % together != 0)
        together--;
    const char *shares = zero == 0                                      ? ""
                         : ranks % 2 == 0 && sbp_rng_below(rng, 3) == 0 ? "--shard-group 2"
                         : zero == 3 && sbp_rng_below(rng, 3) == 0      ? "--keep-gathered all"
                                                                        : "";
    return sbp_arena_printf(f->arena,
                            "--chunk %d --head-chunk %d --segment %d --checkpoint-every %d %s %s --ranks %d "
                            "--zero %d --context-parallel %d %s %s",
                            1 + (int)sbp_rng_below(rng, 30), 1 + (int)sbp_rng_below(rng, 30),
                            1 + (int)sbp_rng_below(rng, 2), 1 + (int)sbp_rng_below(rng, 2),
                            PICK(rng, "", "--save attn_out", "--backward checkpoint", draw_placement(f, rng)),
                            PICK(rng, "", "--head-rows counted"), ranks, zero, together,
                            together == 1 ? ""
                            : strstr(compile, "/gpt_oss_")
                                ? "--context-exchange all-gather"
                                : PICK(rng, "--context-exchange all-to-all", "--context-exchange all-gather"),
                            shares);
}

/* ---- runs ------------------------------------------------------------------------------------------- */

/* One run: weights and metrics in DIR/o; in single precision its gradients in DIR/g. */
typedef struct one_run {
    const char *directory; /* in $D */
    const char *settings;
    const char *twin; /* of which it must have the bits; NULL: none */
    const char *reference;
    bool exact; /* in double precision */
} one_run;

typedef struct sweep {
    io_fixture *f;
    sbp_text jobs; /* lines for the shell */
    one_run runs[1000];
    int count;
    double worst[2];
    int numbers, compared[2], twins;
} sweep;

static void begin(sweep *s, io_fixture *f) {
    *s = (sweep){.f = f};
    sbp_text_init(&s->jobs, f->arena);
}

/* What is said lies in DIR.said, and DIR.ok is there when it went well. */
static void add_job(sweep *s, const char *folder, const char *directory, const char *compile, const char *run,
                    int ranks, bool exact) {
    const char *start = ranks > 1 ? sbp_arena_printf(s->f->arena, "$M -n %d ", ranks) : "";
    sbp_text_add(
        &s->jobs,
        "X=$D/%s; Y=$D/%s; { mkdir -p $Y && $C compile %s -o $Y/p --dtype %s --threads 1 && %s$R $Y/p "
        "--data $X/t %s --lr 1e-3 --steps 3 %s && touch $Y.ok; } >$Y.said 2>&1\n",
        folder, directory, compile, exact ? "fp64" : "fp32", start, run,
        exact ? "--out $Y/o" : "--out none --dump-gradients $Y/g");
}

/* One rank with `compile`, to compare with, in double and single precision: $D/HOME/one, half. */
static void add_references(sweep *s, const char *folder, const char *compile, const char *run) {
    add_job(s, folder, sbp_arena_printf(s->f->arena, "%s/one", folder), compile, run, 1, true);
    add_job(s, folder, sbp_arena_printf(s->f->arena, "%s/half", folder), compile, run, 1, false);
}

/* And several; now and then in single precision, or twice. */
static void add_ranks(sweep *s, const char *folder, const char *compile, const char *run, sbp_rng *rng,
                      int ranks, int zero) {
    const char *drawn = draw_schedule(s->f, rng, compile, ranks, zero), *twin = NULL;
    bool exact = sbp_rng_below(rng, 4) > 0, twice = sbp_rng_below(rng, 8) == 0;
    compile = sbp_arena_printf(s->f->arena, "%s %s", compile, drawn);
    for (int i = 0; i <= twice; i++) {
        one_run *r = &s->runs[s->count];
        assert_true(s->count < SBP_COUNT(s->runs));
        *r = (one_run){sbp_arena_printf(s->f->arena, "%s/r%d", folder, s->count++), compile, twin,
                       sbp_arena_printf(s->f->arena, "%s/%s", folder, exact ? "one" : "half"), exact};
        twin = r->directory;
        add_job(s, folder, r->directory, compile, run, ranks, exact);
    }
}

static const char *path_of(sweep *s, const char *directory, const char *file) {
    return sbp_arena_printf(s->f->arena, "%s/%s", directory, file);
}

static const char *model_of(sweep *s, const char *directory) {
    const char *file = path_of(s, directory, "o/model.safetensors");
    return cli_exists(s->f, file) ? file : path_of(s, directory, "o/adapter_model.safetensors");
}

static const char *full(sweep *s, const char *name) {
    return sbp_arena_strdup(s->f->arena, io_path(s->f, name));
}

static void compare(sweep *s, const one_run *r) {
    io_fixture *f = s->f;
    bool exact = r->exact;
    const char *what = r->settings;
    const char *got = exact ? model_of(s, r->directory) : path_of(s, r->directory, "g");
    const char *want = exact ? model_of(s, r->reference) : path_of(s, r->reference, "g");
    if (exact)
        s->numbers += compare_lines(f, what, path_of(s, r->directory, "o/metrics.jsonl"),
                                    path_of(s, r->reference, "o/metrics.jsonl"));
    double off =
        cli_compare(f, what, full(s, got), full(s, want), exact ? SBP_TOLERANCE_F64 : SBP_TOLERANCE_F32);
    s->worst[!exact] = off > s->worst[!exact] ? off : s->worst[!exact];
    s->compared[!exact]++;
    if (r->twin)
        cli_same(f, got, exact ? model_of(s, r->twin) : path_of(s, r->twin, "g"));
    s->twins += r->twin != NULL;
}

/* All jobs, some beside each other; what failed has left no DIR.ok. */
static void finish(sweep *s) {
    cli_put(s->f, "jobs", s->jobs.data);
    cli_ok(s->f, sbp_arena_printf(s->f->arena, "tr '\\n' '\\0' <$D/jobs | xargs -0 -n 1 -P %d sh -c || true",
                                  BESIDE));
}

static void check_said(sweep *s, const char *directory, const char *what) {
    if (!cli_exists(s->f, sbp_arena_printf(s->f->arena, "%s.ok", directory)))
        fail_msg("%s: %s: %s", directory, what,
                 cli_text(s->f, sbp_arena_printf(s->f->arena, "%s.said", directory)));
}

static void run_and_compare(sweep *s) {
    finish(s);
    for (int i = 0; i < s->count; i++) {
        check_said(s, s->runs[i].reference, "one rank");
        check_said(s, s->runs[i].directory, s->runs[i].settings);
        compare(s, &s->runs[i]);
    }
}

static void report(const sweep *s) {
    print_message(
        "  %d runs in double precision, weights off by %.2g, %d numbers; %d in single, gradients off by "
        "%.2g; %d twice, with the same bits\n",
        s->compared[0], s->worst[0], s->numbers, s->compared[1], s->worst[1], s->twins);
}

static sweep swept;

/* ---- tests ------------------------------------------------------------------------------------------ */

static void test_objectives(void **state) {
    io_fixture *f = *state;
    sweep *s = &swept;
    if (!cli_has_ranks(f, "objectives on several ranks"))
        skip();
    begin(s, f);
    for (int i = 0; i < SBP_COUNT(objectives); i++) {
        sbp_rng rng = {.state = 40 + (uint64_t)i};
        const char *folder = sbp_arena_printf(f->arena, "c%d", i), *compile = objectives[i].compile,
                   *run = objectives[i].run;
        cli_ok(f, sbp_arena_printf(f->arena, "mkdir $D/%s", folder));
        write_rows(f, path_of(s, folder, "t"), objectives[i].rows, ROWS, 40 + (uint64_t)i);
        write_rows(f, path_of(s, folder, "e"), objectives[i].rows, 4, 600 + (uint64_t)i);
        add_references(s, folder, compile, run);
        for (int k = 0; k < 16 && all(); k++)
            add_ranks(s, folder, compile, run, &rng, all_counts[k / 4], k % 4);
        if (!all())
            add_ranks(s, folder, compile, run, &rng, 2 + i % 3, (i / 3) % 4);
    }
    run_and_compare(s);
    assert_true(s->numbers > 400 && s->compared[1] > 3 && s->twins > 0);
    report(s);
}

static void test_models(void **state) {
    io_fixture *f = *state;
    sweep *s = &swept;
    sbp_rng rng = {.state = 7};
    int models = 0, runs = 0;
    double worst[2] = {0};
    if (!cli_has_ranks(f, "models on several ranks"))
        skip();
    /* gpt2 comes as ONNX only; balanced experts depend on which documents ranks have together */
    cli_ok(f, "ls -d $G/*/model | sed 's:/model$::; s:.*/::' | grep -v -e '^gpt2$' -e '_balanced$'");
    char *names = sbp_arena_strdup(f->arena, cli_text(f, "out")), *rest;
    for (char *name = strtok_r(names, "\n", &rest); name; name = strtok_r(NULL, "\n", &rest), models++) {
        const char *folder = sbp_arena_printf(f->arena, "m%d", models),
                   *compile = sbp_arena_printf(f->arena, "$G/%s/model --seq-len 60 %s", name,
                                               models % 2 ? "--optimizer sgd --clip none" : "");
        if (!testing_wants(name) || (!all() && sbp_rng_below(&rng, 12) > 0))
            continue;
        begin(s, f);
        cli_ok(f, sbp_arena_printf(f->arena, "rm -rf $D/m*; mkdir $D/%s", folder));
        write_rows(f, path_of(s, folder, "t"), TEXTS, ROWS, 30 + (uint64_t)models);
        add_references(s, folder, compile, "--batch-size 7");
        for (int k = 0; k < (all() ? 16 : 2); k++)
            add_ranks(s, folder, compile, "--batch-size 7", &rng,
                      all() ? all_counts[k / 4] : 2 + (int)sbp_rng_below(&rng, 3),
                      all() ? k % 4 : (int)sbp_rng_below(&rng, 4));
        run_and_compare(s);
        runs += s->count;
        for (int k = 0; k < 2; k++)
            worst[k] = s->worst[k] > worst[k] ? s->worst[k] : worst[k];
    }
    assert_true(models > 30 && (runs > 3 || getenv("SBP_TEST_ONLY")));
    print_message("  %d runs of models; weights off by %.2g, gradients in single precision by %.2g\n", runs,
                  worst[0], worst[1]);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_objectives, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_models, cli_setup, io_teardown),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
