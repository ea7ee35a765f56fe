/* test_cli_ranks_shares.c: what ranks have shares of changes no number. Settings are drawn: how much is in
 * shares
 * (--zero), of how many ranks, where it lives, in which types it is kept, what is trained and how; gradients
 * of the first step and weights after three are those of one rank with the same settings. A run goes on from
 * the checkpoint of one with other ranks and shares. With an argument, on that backend: what ranks send each
 * other passes through the host. */
#include "tests/cli/drawing.h"
#include "tests/cli/ranks_testing.h"
#include "tests/common/sweep.h"

enum { VOCABULARY = 51, ROWS = 7 };

static const char *backend; /* NULL: the CPU */

static void write_rows(io_fixture *f) {
    sbp_rng rng = {.state = 5};
    sbp_text out;
    sbp_text_init(&out, f->arena);
    for (int r = 0; r < ROWS; r++) {
        sbp_text_add(&out, "{");
        draw_ids(&rng, &out, "input_ids", 2 + sbp_rng_below(&rng, r == 2 ? 40 : 12), VOCABULARY);
        sbp_text_add(&out, "}\n");
    }
    cli_put(f, "t", out.data);
}

/* Its gradients in $D/NAME.g, the model in $D/NAME. */
static void train(io_fixture *f, const char *name, const char *settings, int ranks, int zero,
                  const char *placement) {
    const char *start = ranks > 1 ? sbp_arena_printf(f->arena, "$M -n %d ", ranks) : "";
    cli_ok(f,
           sbp_arena_printf(
               f->arena,
               "rm -rf $D/%s; $C compile %s %s --seq-len 64 --threads 1 --ranks %d --zero %d -o $D/p && "
               "%s$R $D/p --data $D/t --batch-size 4 --steps 3 --lr 1e-3 --weight-decay 0.1 --out $D/%s && "
               "%s$R $D/p --data $D/t --batch-size 4 --out none --dump-gradients $D/%s.g",
               name, settings, placement, ranks, zero, start, name, start, name));
}

static const char *result(io_fixture *f, const char *name) {
    const char *file = sbp_arena_printf(f->arena, "%s/model.safetensors", name);
    if (!cli_exists(f, file))
        file = sbp_arena_printf(f->arena, "%s/adapter_model.safetensors", name);
    return sbp_arena_strdup(f->arena, io_path(f, file));
}

/* How ranks have shares. */
static const char *draw_shares(sbp_rng *rng, int ranks, int zero) {
    if (zero > 0 && ranks % 2 == 0 && sbp_rng_below(rng, 2))
        return PICK(rng, "--shard-group 2", "--shard-group 1", "--shard-group node --node 2");
    return zero == 3 ? PICK(rng, "", "--keep-gathered all") : "";
}

static void test_shares_change_nothing(void **state) {
    io_fixture *f = *state;
    sbp_rng rng = {.state = 77};
    int draws = testing_all() ? 150 : 9, levels[4] = {0};
    double worst = 0;
    if (!cli_has_ranks(f, "shares of parameters, gradients and states"))
        skip();
    write_rows(f);
    for (int i = 0; i < draws; i++) {
        const char *model =
            PICK(&rng, "llama_mqa", "granite_bias_tied", "gemma3_softcap", "gpt_neox_plain", "qwen2_tied");
        bool exact = sbp_rng_below(&rng, 3) > 0;
        const char *types =
            exact ? "--dtype fp64"
                  : PICK(&rng, "--state-dtype int8", "--dtype fp32 --grad-dtype bf16", "--param-dtype bf16");
        const char *settings =
            sbp_arena_printf(f->arena, "$G/%s/model %s --chunk %s --segment %s --checkpoint-every %s %s",
                             model, types, PICK(&rng, "5", "64"), PICK(&rng, "1", "2"), PICK(&rng, "1", "2"),
                             PICK(&rng, "", "", "--optimizer sgd", "--optimizer lion", "--clip none",
                                  "--freeze '*1*'", "--lora-r 3"));
        const char *placement = sbp_rng_below(&rng, 2) ? draw_placement(f, &rng) : "";
        int zero = 1 + i % 3, ranks = 2 + (int)sbp_rng_below(&rng, 3);
        placement = sbp_arena_printf(f->arena, "%s %s", placement, draw_shares(&rng, ranks, zero));
        printf("  %d ranks, zero %d: %s %s\n", ranks, zero, settings,
               placement); /* ctest shows it on failure */
        train(f, "one", settings, 1, 0, "");
        train(f, "all", settings, ranks, zero, placement);
        levels[zero]++;
        double off = cli_compare(f, "gradients", sbp_arena_strdup(f->arena, io_path(f, "all.g")),
                                 sbp_arena_strdup(f->arena, io_path(f, "one.g")),
                                 exact ? SBP_TOLERANCE_F64 : SBP_TOLERANCE_F32);
        worst = exact && off > worst ? off : worst;
        if (exact)
            cli_compare(f, "weights", result(f, "all"), result(f, "one"), SBP_TOLERANCE_F64);
    }
    assert_true(levels[1] > 0 && levels[2] > 0 && levels[3] > 0);
    print_message("worst gradient in fp64 off by %.2g\n", worst);
}

/* A tensor of which the shares of others are read in several pieces. */
static void test_large_shares(void **state) {
    io_fixture *f = *state;
    if (!cli_has_ranks(f, "shares that are read in pieces"))
        skip();
    write_rows(f);
    cli_ok(f, "cp $G/llama_mqa/model/config.json $D"); /* no weights of other shapes beside it */
    for (int many = 0; many < 2; many++)
        cli_ok(f,
               sbp_arena_printf(
                   f->arena,
                   "$C compile $D/config.json --set vocab_size=3001 --dtype fp64 --seq-len 64 --threads 1 %s "
                   "-o $D/p && "
                   "%s$R $D/p --weights random:5 --data $D/t --batch-size 4 --steps 2 --lr 1e-3 --out $D/%s",
                   many ? "--ranks 4 --zero 3" : "", many ? "$M -n 4 " : "", many ? "all" : "one"));
    cli_compare(f, "weights", result(f, "all"), result(f, "one"), SBP_TOLERANCE_F64);
}

/* Expects the same norms of gradients in all steps of $D/all and $D/one. */
static void expect_same_norms(io_fixture *f) {
    double norms[2][3];
    for (int k = 0; k < 2; k++) {
        int count;
        const sbp_json **lines = cli_lines(f, k ? "all/metrics.jsonl" : "one/metrics.jsonl", &count);
        assert_int_equal(count, 3);
        for (int i = 0; i < 3; i++)
            assert_int_equal(sbp_json_as_double(NULL, sbp_json_member(lines[i], "grad_norm"), &norms[k][i]),
                             SBP_OK);
    }
    for (int i = 0; i < 3; i++)
        assert_true(fabs(norms[0][i] - norms[1][i]) <= SBP_TOLERANCE_F64 * norms[0][i]);
}

/* Gradients that are consumed as they come, with the others' and in shares: of a step that is one micro-batch
 * on each rank. */
static void test_steps_without_gradients(void **state) {
    io_fixture *f = *state;
    static const struct {
        const char *model, *settings;
    } cases[] = {{"qwen2_tied", "--dtype fp64"},
                 {"gemma3_softcap", "--dtype fp64 --segment 2 --checkpoint-every 2 --offload states+params"},
                 {"granite_bias_tied",
                  "--dtype fp64 --optimizer sgd --freeze '*1*' --offload checkpoints+states:disk"},
                 {"gpt_neox_plain", "--dtype fp64 --optimizer lion --lora-r 3"},
                 {"lfm2_v", "--dtype fp64 --chunk 3 --save none --checkpoint-every 2"}};
    if (!cli_has_ranks(f, "steps without gradients"))
        skip();
    write_rows(f);
    for (int i = 0; i < SBP_COUNT(cases); i++) {
        const char *settings =
            sbp_arena_printf(f->arena, "$G/%s/model %s --clip none --accumulate 1 --seq-len 96",
                             cases[i].model, cases[i].settings);
        const char *run = "--data $D/t --batch-size 4 --lr 1e-3 --weight-decay 0.1";
        cli_ok(f, sbp_arena_printf(f->arena,
                                   "rm -rf $D/one; $C compile %s -o $D/p && $R $D/p %s --steps 3 --out "
                                   "$D/one && $R $D/p %s --out none --dump-gradients $D/one.g",
                                   settings, run, run));
        for (int zero = 0; zero <= 3; zero++) {
            if (!testing_all() && (zero + i) % 2 == 0 && zero < 3) /* the last plan is used below */
                continue;
            cli_ok(
                f,
                sbp_arena_printf(
                    f->arena,
                    "rm -rf $D/all; $C compile %s --threads 1 --ranks %d --zero %d %s -o $D/p --print-after "
                    "offload >$D/text && grep -q '^entry step ' $D/text && "
                    "$M -n %d $R $D/p %s --steps 3 --out $D/all",
                    settings, 2 + (zero + i) % 3, zero,
                    (zero + i) % 3 == 2 && zero > 0 ? "--shard-group 2" : "", 2 + (zero + i) % 3, run));
            cli_compare(f, "weights", result(f, "all"), result(f, "one"), SBP_TOLERANCE_F64);
            expect_same_norms(f);
        }
        cli_fails(f, 2, "no rank has all of one",
                  sbp_arena_printf(f->arena, "$M -n %d $R $D/p %s --out none --dump-gradients $D/all.g",
                                   2 + (3 + i) % 3, run));
        cli_ok(f, sbp_arena_printf(f->arena,
                                   "$C compile %s --threads 1 --ranks 3 -o $D/p && $M -n 3 $R $D/p %s "
                                   "--out none --dump-gradients $D/all.g",
                                   settings, run));
        cli_compare(f, "gradients", sbp_arena_strdup(f->arena, io_path(f, "all.g")),
                    sbp_arena_strdup(f->arena, io_path(f, "one.g")), SBP_TOLERANCE_F64);
    }
}

/* One document a step: the others add nothing, so that gradients are those of one rank to the bit. */
static void train_alike(io_fixture *f, const char *name, const char *settings, int ranks, int zero,
                        const char *start) {
    cli_ok(f, sbp_arena_printf(f->arena,
                               "rm -rf $D/%s; $C compile $D/m --set hidden_size=64 --set "
                               "intermediate_size=96 --set num_attention_heads=4 --set num_key_value_heads=2 "
                               "--set num_hidden_layers=2 --set vocab_size=64 --seq-len 64 --threads 1 "
                               "--clip none %s --ranks %d --zero %d -o $D/p && %s$R $D/p --data $D/t "
                               "--weights random:1 --batch-size 1 --steps 3 --lr 1e-2 --out $D/%s",
                               name, settings, ranks, zero, start, name));
}

/* What is rounded at random is rounded by an element's place in its parameter, wherever its share begins. */
static void test_places_of_shares(void **state) {
    io_fixture *f = *state;
    sbp_rng rng = {.state = 12};
    int draws = testing_all() ? 40 : 4;
    if (!cli_has_ranks(f, "rounding of shares at random"))
        skip();
    write_rows(f);
    cli_ok(f, "mkdir $D/m; cp tests/data/configs/SmolLM2-135M.json $D/m/config.json");
    for (int i = 0; i < draws; i++) {
        int zero = i % 4, ranks = 2 + (int)sbp_rng_below(&rng, 3);
        const char *settings = sbp_arena_printf(
            f->arena, "%s %s %s",
            PICK(&rng, "--state-dtype bf16", "--param-dtype bf16 --master none --optimizer sgd",
                 "--param-dtype bf16 --master none --state-dtype bf16 --optimizer lion",
                 "--param-dtype bf16 --master none --state-dtype int8"),
            PICK(&rng, "", "--accumulate 1", "--accumulate 1 --freeze '*1*'", "--lora-r 4",
                 "--grad-dtype bf16"),
            sbp_rng_below(&rng, 2) ? draw_placement(f, &rng) : "");
        const char *shares = draw_shares(&rng, ranks, zero);
        printf("  %d ranks, zero %d: %s %s\n", ranks, zero, settings, shares);
        train_alike(f, "one", settings, 1, 0, "");
        settings = sbp_arena_printf(f->arena, "%s %s", settings, shares);
        train_alike(f, "all", settings, ranks, zero, sbp_arena_printf(f->arena, "$M -n %d ", ranks));
        cli_ok(f, "cmp $D/one/*model.safetensors $D/all/*model.safetensors");
        expect_same_norms(f);
    }
}

/* Two runs of the same plan have the same bits. */
static void test_same_bits(void **state) {
    io_fixture *f = *state;
    if (!cli_has_ranks(f, "bits of several ranks"))
        skip();
    write_rows(f);
    train(f, "first", "$G/gemma3_softcap/model --state-dtype int8", 3, 3, "");
    train(f, "again", "$G/gemma3_softcap/model --state-dtype int8", 3, 3, "");
    cli_same(f, "first/model.safetensors", "again/model.safetensors");
    cli_same(f, "first.g", "again.g");
}

/* As on hosts of two ranks, which add up among themselves first. */
static void test_hosts_change_no_bit(void **state) {
    io_fixture *f = *state;
    if (!cli_has_ranks(f, "bits of several hosts"))
        skip();
    write_rows(f);
    train(f, "one", "$G/gemma3_softcap/model --reduce-dtype bf16", 4, 2, "");
    setenv("SBP_TEST_NODE", "2", 1);
    train(f, "two", "$G/gemma3_softcap/model --reduce-dtype bf16", 4, 2, "");
    unsetenv("SBP_TEST_NODE");
    cli_same(f, "one/model.safetensors", "two/model.safetensors");
    cli_same(f, "one.g", "two.g");
}

static int64_t member(const sbp_json *root, const char *object, const char *key) {
    const sbp_json *at = object ? sbp_json_member(root, object) : root;
    at = sbp_json_member(at, key);
    assert_non_null(at);
    return at->integer;
}

/* Five layers: more than are gathered at once. */
#define LAYERS "$G/llama_mqa/model --set num_hidden_layers=5 --seq-len 48 --threads 1"

/* Bytes that a run of two steps has sent are a multiple of `part` for its micro-batches, and twice `step`. */
static void check_sent(int64_t sent, int64_t part, int64_t step) {
    if (part > 0) {
        assert_int_equal((sent - 2 * step) % part, 0);
        assert_true((sent - 2 * step) / part >= 2); /* micro-batches of both steps */
    } else {
        assert_int_equal(sent, 2 * step);
    }
}

/* What a run of two steps sends of what a plan says, to other hosts as well where there are some. */
static int64_t check_bytes(io_fixture *f, const char *settings, int ranks) {
    int count;
    cli_ok(f,
           sbp_arena_printf(f->arena, "$C compile " LAYERS " --json --ranks %d %s -o $D/p", ranks, settings));
    const sbp_json *plan = cli_lines(f, "out", &count)[0];
    int64_t part = member(plan, "interconnect", "micro_batch_bytes"),
            step = member(plan, "interconnect", "step_bytes");
    cli_ok(f, sbp_arena_printf(f->arena,
                               "$R $D/p --ranks %d --data $D/t --batch-size 7 --steps 2 --weights random:1 "
                               "--out none --json",
                               ranks));
    int64_t sent = member(cli_lines(f, "out", &count)[0], NULL, "interconnect_bytes_sent");
    print_message("%d ranks %s: %lld a micro-batch, %lld a step, %lld sent\n", ranks, settings,
                  (long long)part, (long long)step, (long long)sent);
    assert_true(part + step > 0);
    check_sent(sent, part, step);
    const sbp_json *run = cli_lines(f, "out", &count)[0];
    int64_t away = member(run, NULL, "interconnect_bytes_between_hosts");
    assert_true((away > 0) == (getenv("SBP_TEST_NODE") != NULL));
    check_sent(away, member(plan, "interconnect", "micro_batch_bytes_between_hosts"),
               member(plan, "interconnect", "step_bytes_between_hosts"));
    return part;
}

/* Bytes that rank 0 sends in a step of some micro-batches are those of the formula, with every setting. */
static void test_bytes_are_those_planned(void **state) {
    io_fixture *f = *state;
    if (!cli_has_ranks(f, "bytes between ranks"))
        skip();
    write_rows(f);
    for (int zero = 0; zero <= 2; zero++)
        assert_true((check_bytes(f, sbp_arena_printf(f->arena, "--zero %d --checkpoint-every 2", zero), 3) >
                     0) == (zero == 2));
    int64_t again = check_bytes(f, "--zero 3", 3), some = check_bytes(f, "--zero 3 --keep-gathered 4", 3),
            none = check_bytes(f, "--zero 3 --keep-gathered all", 3);
    assert_true(none < some && some < again);
    const int least = testing_all() ? 1 : 2;
    for (int zero = least; zero <= 3; zero++)
        (void)check_bytes(f, sbp_arena_printf(f->arena, "--zero %d --shard-group 2", zero), 4);
    assert_true(check_bytes(f, "--reduce-dtype bf16", 3) == 0);
    for (int zero = least; zero <= 3; zero++)
        (void)check_bytes(f,
                          sbp_arena_printf(f->arena, "--zero %d --shard-group %d --reduce-dtype bf16", zero,
                                           zero == 3 ? 1 : 2),
                          4);
    setenv("SBP_TEST_NODE", "2", 1);
    (void)check_bytes(f, "--node 2 --zero 2 --reduce-dtype bf16", 4);
    (void)check_bytes(f, "--node 2 --zero 3", 4);
    setenv("SBP_TEST_NODE", "4", 1); /* groups of a host, with others there and elsewhere */
    (void)check_bytes(f, "--node 4 --zero 2 --shard-group 2", 8);
    unsetenv("SBP_TEST_NODE");
    assert_true(check_bytes(f, "--zero 2 --reduce-dtype bf16", 3) * 2 == check_bytes(f, "--zero 2", 3));
    assert_true(check_bytes(f, "--zero 3 --shard-group 1", 2) < check_bytes(f, "--zero 3", 2));
}

static int count_lines(io_fixture *f, const char *command) {
    int count;
    cli_ok(f, sbp_arena_printf(f->arena, "%s | wc -l >$D/count", command));
    const sbp_json *lines = cli_lines(f, "count", &count)[0];
    return (int)lines->integer;
}

/* The parameters of a layer are gathered while the one before it runs, forward and backward: into the staging
 * buffer that was read first, and never with all that come later. */
static void test_gathers_run_beside_calls(void **state) {
    io_fixture *f = *state;
    static const char *const kept[] = {"none", "all"};
    for (int i = 0; i < SBP_COUNT(kept); i++) {
        cli_ok(f, sbp_arena_printf(f->arena,
                                   "$C compile " LAYERS
                                   " --ranks 2 --zero 3 --keep-gathered %s --print-after offload "
                                   "-o $D/p | sed -n '/^entry accumulate/,/^}/p' >$D/text",
                                   kept[i]));
        /* commands of the layers' staging buffers on the interconnect, each with the call behind it */
        const char *gathers = "grep -E '^ *(call @layer|collective.*14x256.whole@.*all_gather)' $D/text";
        assert_true(count_lines(f, sbp_arena_printf(f->arena, "%s | grep gather", gathers)) == (i ? 5 : 8));
        /* no three of them follow each other, and in the backward they take turns */
        assert_int_equal(
            count_lines(f, sbp_arena_printf(f->arena,
                                            "%s | sed 's/.*all_gather.*/g/; s/.*call.*/c/' | tr -d '\\n' "
                                            "| grep -o ggg",
                                            gathers)),
            0);
        if (i == 0)
            assert_int_equal(
                count_lines(f, sbp_arena_printf(f->arena,
                                                "%s | grep gather | sed 's/.*whole@\\([01]\\).*/\\1/' | "
                                                "tail -3 | uniq",
                                                gathers)),
                3);
    }
}

/* How ranks have shares changes no number: layers that stay gathered, groups of ranks. */
static void test_settings_change_nothing(void **state) {
    io_fixture *f = *state;
    static const struct {
        int ranks;
        const char *settings;
    } runs[] = {{3, "--zero 3 --keep-gathered all --checkpoint-every 2"},
                {2, "--zero 3 --keep-gathered 3 --offload states+params"},
                {4, "--zero 1 --node 2 --shard-group node"},
                {4, "--zero 2 --shard-group 1"},
                {6, "--zero 3 --shard-group 3 --keep-gathered all"},
                {4, "--zero 3 --shard-group 2 --offload states:disk+gradients+params"}};
    if (!cli_has_ranks(f, "settings of shares"))
        skip();
    write_rows(f);
    for (int i = -1; i < SBP_COUNT(runs); i++) {
        int ranks = i < 0 ? 1 : runs[i].ranks;
        const char *name = i < 0 ? "one" : "all";
        cli_ok(f, sbp_arena_printf(f->arena,
                                   "$C compile " LAYERS " --dtype fp64 --ranks %d %s -o $D/p && $R $D/p %s "
                                   "--data $D/t --batch-size 4 --steps 3 --lr 1e-3 --weights random:1 "
                                   "--overwrite --out $D/%s",
                                   ranks, i < 0 ? "" : runs[i].settings,
                                   ranks > 1 ? sbp_arena_printf(f->arena, "--ranks %d", ranks) : "", name));
        if (i >= 0)
            cli_compare(f, "weights", result(f, "all"), result(f, "one"), SBP_TOLERANCE_F64);
    }
}

/* Gradients that are rounded before they cross are off by that rounding, no more and no less. */
static void test_rounded_on_the_interconnect(void **state) {
    io_fixture *f = *state;
    static const struct {
        int ranks;
        const char *settings;
        bool step; /* gradients are gone: weights are compared */
    } runs[] = {{2, "--zero 0", false},
                {3, "--zero 0 --offload gradients:disk", false},
                {2, "--zero 1 --segment 2", false},
                {3, "--zero 2 --checkpoint-every 2", false},
                {4, "--zero 3 --shard-group 2", false},
                {2, "--zero 3 --shard-group 1 --offload gradients", false},
                {2, "--clip none --accumulate 1", true},
                {3, "--clip none --accumulate 1 --zero 3", true}};
    if (!cli_has_ranks(f, "gradients in bf16 on the interconnect"))
        skip();
    write_rows(f);
    for (int i = -1; i < SBP_COUNT(runs); i++) {
        int ranks = i < 0 ? 1 : runs[i].ranks;
        const char *name = i < 0 ? "one" : "all";
        cli_ok(f, sbp_arena_printf(
                      f->arena,
                      "$C compile " LAYERS " --optimizer sgd --ranks %d %s -o $D/p && rm -rf $D/%s "
                      "&& $R $D/p %s --data $D/t --batch-size 4 --weights random:1 --lr 0.1 "
                      "--steps 3 %s $D/%s",
                      ranks,
                      i < 0 ? "--clip none"
                            : sbp_arena_printf(f->arena, "%s --reduce-dtype bf16", runs[i].settings),
                      name, ranks > 1 ? sbp_arena_printf(f->arena, "--ranks %d", ranks) : "",
                      i < 0 || runs[i].step ? "--out" : "--out none --dump-gradients", name));
        if (i < 0)
            cli_ok(
                f,
                "$R $D/p --data $D/t --batch-size 4 --weights random:1 --out none --dump-gradients $D/one.g");
        if (i < 0)
            continue;
        double off = runs[i].step
                         ? cli_compare(f, "weights", result(f, "all"), result(f, "one"), SBP_TOLERANCE_BF16)
                         : cli_compare(f, "gradients", sbp_arena_strdup(f->arena, io_path(f, "all")),
                                       sbp_arena_strdup(f->arena, io_path(f, "one.g")), SBP_TOLERANCE_BF16);
        print_message("%d ranks %s: off by %.2g\n", ranks, runs[i].settings, off);
        assert_true(off > (runs[i].step ? 1e-6 : 5e-4));
    }
}

/* Four ranks train what is refused to each alone, and keep to the limit. */
static void test_a_model_too_large_for_one(void **state) {
    io_fixture *f = *state;
    const char *compile =
        "mkdir -p $D/m; cp tests/data/configs/SmolLM2-135M.json $D/m/config.json; "
        "$C compile $D/m --set num_hidden_layers=4 --set vocab_size=4096 --seq-len 48 --threads 1 "
        "--ranks 4 --memory 680MiB -o $D/p";
    int count;
    cli_fails(f, 3, "too much", sbp_arena_printf(f->arena, "%s --zero 0", compile));
    if (!cli_has_ranks(f, "a model that needs all ranks"))
        skip();
    write_rows(f);
    cli_ok(f, sbp_arena_printf(f->arena, "%s --zero 3", compile));
    cli_ok(f, "$R $D/p --ranks 4 --weights random:1 --data $D/t --steps 2 --out none --json");
    const sbp_json *summary = cli_lines(f, "out", &count)[0];
    assert_true(member(summary, NULL, "peak_bytes_measured") <= INT64_C(170) << 20);
    print_message("planned %lld, measured %lld bytes\n",
                  (long long)member(summary, NULL, "peak_bytes_planned"),
                  (long long)member(summary, NULL, "peak_bytes_measured"));
}

static void test_device(void **state) {
    io_fixture *f = *state;
    const char *settings =
        sbp_arena_printf(f->arena, "$G/gemma3_softcap/model --chunk 9 --dtype fp32 --backend %s", backend);
    if (!cli_has_ranks(f, "several ranks on a device") || !cli_has_device(f, backend, "several ranks"))
        skip();
    write_rows(f);
    train(f, "one", "$G/gemma3_softcap/model --dtype fp64 --backend cpu", 1, 0, "");
    for (int zero = 0; zero <= 3; zero++) {
        static const char *const others[] = {"", "--context-parallel 2 --save attn_out",
                                             "--offload states+params",
                                             "--context-parallel 2 --context-exchange all-gather"};
        train(f, "all", settings, 2, zero, others[zero]);
        cli_compare(f, "gradients", sbp_arena_strdup(f->arena, io_path(f, "all.g")),
                    sbp_arena_strdup(f->arena, io_path(f, "one.g")), SBP_TOLERANCE_F32);
        cli_compare(f, "weights", result(f, "all"), result(f, "one"), SBP_TOLERANCE_F32);
    }
}

static double interconnect_seconds(io_fixture *f, const char *options) {
    int count;
    double seconds = 0;
    cli_ok(f,
           sbp_arena_printf(f->arena, "$C compile $G/llama_mqa/model --zero 3 --json -o $D/p %s", options));
    const sbp_json *net = sbp_json_member(sbp_json_member(cli_lines(f, "out", &count)[0], "busy"), "net");
    assert_true(net && sbp_json_as_double(NULL, net, &seconds) == SBP_OK && seconds > 0);
    return seconds;
}

/* Budgets are those of a host, which its ranks share; the memory of a device is each one's own. */
static void test_budgets_of_a_host(void **state) {
    io_fixture *f = *state;
    cli_ok(f, "mkdir -p $D/m; cp tests/data/configs/SmolLM2-135M.json $D/m/config.json");
    cli_fails(f, 3, "--host-memory is 256.00 MiB for each of the 8 ranks of a host",
              "$C compile $D/m --device-profile h100-80gb --ranks 16 --offload states --host-memory 2GiB");
    cli_ok(f, "$C compile $D/m --device-profile h100-80gb --ranks 16 --offload states --host-memory 2GiB "
              "--node 1");
    cli_fails(
        f, 3, "--memory is 25.00 MiB for each of the 2 ranks of a host",
        "$C compile $G/llama_mqa/model --ranks 2 --memory 50MiB --seq-len 64 --threads 8 --chunk 64 -o $D/p");
}

/* A link between hosts counts where there are more ranks than on one of them. */
static void test_link(void **state) {
    io_fixture *f = *state;
    double host = interconnect_seconds(f, "--ranks 16 --node 16 --link 800Mb/s"),
           hosts = interconnect_seconds(f, "--ranks 16 --node 8 --link 800Mb/s"),
           slower = interconnect_seconds(f, "--ranks 16 --link 10MB/s");
    assert_true(hosts > 2 * host && slower > 5 * hosts);
    cli_ok(f, "$C compile $G/llama_mqa/model --zero 3 --ranks 16 --link 0.1MB/s -o $D/p 2>&1 | "
              "tr -s ' \\n' ' ' | grep -q 'bounds the step'");
}

static void test_refused(void **state) {
    io_fixture *f = *state;
    cli_fails(f, 2, "--zero 2 needs several ranks", "$C compile $G/gpt_neox_plain/model --zero 2 -o $D/p");
    cli_fails(f, 2, "--keep-gathered needs --zero 3",
              "$C compile $G/gpt_neox_plain/model --zero 2 --ranks 2 --keep-gathered all -o $D/p");
    cli_fails(f, 2, "4 ranks cannot be divided into groups of 3",
              "$C compile $G/gpt_neox_plain/model --zero 2 --ranks 4 --shard-group 3 -o $D/p");
    cli_fails(f, 2, "--shard-group needs --zero",
              "$C compile $G/gpt_neox_plain/model --ranks 4 --shard-group 2 -o $D/p");
    cli_fails(f, 2, "gradients are fp64, and are sent in that type; leave it out",
              "$C compile $G/gpt_neox_plain/model --ranks 4 --dtype fp64 --reduce-dtype bf16 -o $D/p");
    cli_fails(f, 2, "needs several ranks", "$C compile $G/gpt_neox_plain/model --reduce-dtype bf16 -o $D/p");
    cli_fails(f, 2, "--link: found '400', expected a rate",
              "$C compile $G/gpt_neox_plain/model --ranks 9 --link 400 -o $D/p");
}

int main(int argc, char **argv) {
    const struct CMUnitTest on_device[] = {
        cmocka_unit_test_setup_teardown(test_device, cli_setup, io_teardown)};
    backend = argc > 1 ? argv[1] : NULL;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_shares_change_nothing, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_large_shares, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_steps_without_gradients, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_places_of_shares, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_hosts_change_no_bit, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_same_bits, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_bytes_are_those_planned, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_gathers_run_beside_calls, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_settings_change_nothing, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_rounded_on_the_interconnect, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_a_model_too_large_for_one, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_budgets_of_a_host, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_link, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_refused, cli_setup, io_teardown),
    };
    return backend ? cmocka_run_group_tests(on_device, NULL, NULL)
                   : cmocka_run_group_tests(tests, NULL, NULL);
}
