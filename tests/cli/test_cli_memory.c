/* test_cli_memory.c: a process takes (VmHWM) what its plan says and no byte more, whatever lives on the host
 * or on disk, in every type, with steps, evaluations and checkpoints; and limits are kept. */
#include "tests/cli/drawing.h"
#include "tests/common/sweep.h"

#define DATA "tests/golden/stories260k_trl/train.jsonl"

static bool has_huge_pages(const char *what) {
    if (system("grep -qF '[never]' /sys/kernel/mm/transparent_hugepage/enabled") != 0)
        return true;
    printf("skipped: %s: this system has no huge pages\n", what);
    return false;
}

static double larger(double a, double b) {
    return a > b ? a : b;
}

/* Other instructions than the best: what depends on them, a part of the cases. */
static bool is_narrower(void) {
    return getenv("SBP_CPU_ISA") && !testing_all();
}

typedef struct peaks {
    double planned, measured;
} peaks;

static peaks peaks_of(io_fixture *f) {
    const sbp_json *summary = cli_json(f, "out");
    return (peaks){cli_number(f, summary, "peak_bytes_planned"),
                   cli_number(f, summary, "peak_bytes_measured")};
}

static peaks run_plan(io_fixture *f, const char *options) {
    cli_ok(f, sbp_arena_printf(f->arena, "rm -rf $D/o; $R $D/p --steps 2 --json --out $D/o %s", options));
    peaks p = peaks_of(f);
    printf("    %.2f MiB planned, %+.2f measured\n", p.planned / (1 << 20),
           (p.measured - p.planned) / (1 << 20));
    return p;
}

/* Runs two steps of the plan in $D/p; returns its planned peak. */
static double run_near_planned_peak(io_fixture *f, const char *options) {
    peaks p = run_plan(f, options);
    if (p.measured > p.planned ||
        p.measured < p.planned - larger(SBP_TOLERANCE_PROCESS * p.planned, SBP_TOLERANCE_PROCESS_BYTES))
        fail_msg("the process holds %.0f bytes, %.0f were planned", p.measured, p.planned);
    return p.planned;
}

/* Threads need memory of their own: a plan counts them, a run with others counts those. */
static void test_memory_is_planned_for_the_threads(void **state) {
    static const int threads[] = {1, 2, 8};
    static const char *const types[] = {"--dtype fp32", "--dtype bf16", "--dtype bf16 --param-dtype bf16"};
    io_fixture *f = *state;
    double planned[SBP_COUNT(threads)];
    if (!has_huge_pages("planned against measured memory"))
        return;
    for (int t = 0; t < SBP_COUNT(types); t += is_narrower() ? 2 : 1)
        for (int i = 0; i < SBP_COUNT(threads); i += is_narrower() ? 2 : 1) {
            cli_ok(f, sbp_arena_printf(f->arena, "$C compile $S -o $D/p --seq-len 933 --threads %d %s",
                                       threads[i], types[t]));
            planned[i] = run_near_planned_peak(
                f, sbp_arena_printf(f->arena, "--data " DATA " --threads %d", threads[i]));
        }
    cli_ok(f, "$C compile $S -o $D/p --seq-len 3356 --dtype bf16 --memory 55MiB");
    assert_true(run_near_planned_peak(f, "--data " DATA " --threads 2") < 55 << 20);
    assert_true(planned[2] - planned[0] > 7.0 * SBP_TOLERANCE_PROCESS_BYTES); /* or nothing was seen */
    cli_ok(f, "$C compile $S -o $D/p --seq-len 933 --memory 60MiB");
    cli_ok(f, "$R $D/p --data " DATA " --steps 1 --threads 2 --out none");
    assert_null(strstr(cli_text(f, "err"), "threads"));
    cli_ok(f, "$R $D/p --data " DATA " --steps 1 --threads 64 --out none");
    assert_non_null(strstr(cli_text(f, "err"), "made for --memory 60.00 MiB and 2 threads"));
}

/* A model without weights; deep ones have long programs, wide ones large tensors. */
static void put_model(io_fixture *f, const char *name, int width, int layers, int vocabulary) {
    cli_ok(f, sbp_arena_printf(f->arena, "mkdir -p $D/%s", name));
    cli_put(f, sbp_arena_printf(f->arena, "%s/config.json", name),
            sbp_arena_printf(f->arena,
                             "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", "
                             "\"hidden_size\": %d, \"intermediate_size\": %d, \"num_hidden_layers\": %d, "
                             "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"vocab_size\": %d, "
                             "\"rms_norm_eps\": 1e-5, \"rope_theta\": 1e4, \"max_position_embeddings\": "
                             "2048, \"tie_word_embeddings\": false, \"hidden_act\": \"silu\"}",
                             width, 3 * width, layers, vocabulary));
}

/* Rows of token ids below 500. */
static void put_rows(io_fixture *f) {
    sbp_text rows;
    sbp_text_init(&rows, f->arena);
    for (int r = 0; r < 8; r++) {
        sbp_text_add(&rows, "{\"input_ids\": [1");
        for (int i = 1; i < 90; i++)
            sbp_text_add(&rows, ", %d", 3 + (i * 31 + r * 17) % 490);
        sbp_text_add(&rows, "]}\n");
    }
    cli_put(f, "rows.jsonl", rows.data);
}

static void test_memory_with_placement_elsewhere(void **state) {
    io_fixture *f = *state;
    sbp_rng rng = {5};
    int draws = testing_all() ? 150 : 9, large = 0, disk = 0;
    if (!has_huge_pages("planned against measured memory of placement"))
        return;
    put_rows(f);
    put_model(f, "deep", 64, 40, 500);
    put_model(f, "wide", 256, 4, 12000);
    for (int i = 0; i < draws; i++) {
        const char *model = PICK(&rng, "$S", "$D/deep --weights", "$D/wide --weights", "$D/wide --weights");
        bool random = strstr(model, " --weights") != NULL;
        const char *path = sbp_arena_strndup(f->arena, model, strcspn(model, " "));
        const char *placement = draw_placement(f, &rng);
        const char *settings = sbp_arena_printf(
            f->arena, "--chunk %s --segment %s --save %s %s %s %s %s", PICK(&rng, "16", "96"),
            PICK(&rng, "1", "2"), PICK(&rng, "none", "gate+up"),
            PICK(&rng, "", "", "--base-dtype nf4 --freeze '*proj.weight'"),
            PICK(&rng, "", "--dtype bf16", "--dtype bf16 --param-dtype bf16", "--grad-dtype bf16"),
            PICK(&rng, "", "--clip none --accumulate 1"), PICK(&rng, "", "", "--optimizer sgd"));
        const char *run = sbp_arena_printf(
            f->arena, "--data $D/rows.jsonl --batch-size %s %s %s %s",
            strstr(settings, "--accumulate") ? "1" : "3", PICK(&rng, "", "--save-every 1"),
            PICK(&rng, "", "--eval $D/rows.jsonl --eval-every 1"), random ? "--weights random:3" : "");
        if (is_narrower() && i % 2)
            continue;
        printf("  %s %s %s; %s\n", path, settings, placement, run); /* ctest shows it when the test fails */
        cli_ok(f, sbp_arena_printf(f->arena, "$C compile %s -o $D/p --seq-len 96 %s %s", path, settings,
                                   placement));
        double planned = run_near_planned_peak(f, run);
        large += planned > 100 << 20;
        disk += strstr(placement, ":disk") != NULL;
    }
    assert_true(large > 0 && disk > 0);
}

/* States of the delta rule, kept or made again, and its workspace are counted at every size. */
static void test_memory_of_states(void **state) {
    static const struct {
        int rows;
        const char *options;
    } sizes[] = {{96, "--chunk 16"},
                 {270, "--chunk 64 --save none"},
                 {540, "--dtype bf16 --checkpoint-every 2"},
                 {720, "--backward standard"}};
    io_fixture *f = *state;
    double least = HUGE_VAL, most = 0;
    if (is_narrower() || !has_huge_pages("planned against measured memory of states"))
        return;
    put_rows(f);
    cli_ok(f, "mkdir $D/hybrid && cp $G/qwen3_5_trl/model/config.json $D/hybrid");
    for (int i = 0; i < SBP_COUNT(sizes); i++) {
        cli_ok(f, sbp_arena_printf(f->arena,
                                   "$C compile $D/hybrid -o $D/p --seq-len %d --set hidden_size=256 --set "
                                   "intermediate_size=768 --set head_dim=64 --set linear_num_value_heads=8 "
                                   "--set linear_key_head_dim=64 --set linear_value_head_dim=64 %s",
                                   sizes[i].rows, sizes[i].options));
        double planned = run_near_planned_peak(f, "--data $D/rows.jsonl --batch-size 8 --weights random:3");
        least = planned < least ? planned : least;
        most = larger(most, planned);
    }
    /* or nothing of what grows was seen */
    assert_true(most - least > 20.0 * SBP_TOLERANCE_PROCESS_BYTES);
}

/* The plan says no byte more than it was given; the machine has what the checks above allow. */
static void test_limits_are_kept_with_placement_elsewhere(void **state) {
    io_fixture *f = *state;
    sbp_rng rng = {11};
    int draws = testing_all() ? 40 : 4, refused = 0, fitting = 0;
    if (is_narrower()) /* plans keep limits, whatever runs them */
        return;
    put_rows(f);
    put_model(f, "wide", 256, 4, 12000);
    for (int i = 0; i < draws; i++) {
        const char *placement = draw_placement(f, &rng);
        int memory = 80 + 20 * (int)sbp_rng_below(&rng, 12), host = 20 * (int)sbp_rng_below(&rng, 10) + 10;
        const char *compile = sbp_arena_printf(
            f->arena,
            "$C compile $D/wide -o $D/p --seq-len 96 --json --memory %dMiB --host-memory %dMiB %s %s", memory,
            host, PICK(&rng, "", "--dtype bf16"), placement);
        printf("  %s\n", compile);
        int status = cli(f, compile);
        if (status == 3) {
            const char *text = cli_text(f, "err");
            assert_true(strstr(text, "--memory") || strstr(text, "--host-memory"));
            refused++;
            continue;
        }
        assert_int_equal(status, 0);
        const sbp_json *bytes = sbp_json_member(cli_json(f, "out"), "peak_bytes");
        double here = cli_number(f, bytes, "device"), there = cli_number(f, bytes, "host");
        assert_true(there <= (double)host * (1 << 20) && here + there <= (double)memory * (1 << 20));
        if (has_huge_pages("measured memory of a limit")) {
            double planned =
                run_near_planned_peak(f, "--data $D/rows.jsonl --batch-size 1 --weights random:3");
            assert_true(planned <= (double)memory * (1 << 20));
        }
        fitting++;
    }
    assert_true(refused > 0 && fitting > 0);
}

/* Objectives read numbers beside tokens and make some vectors: nothing beside what layers take, whatever is
 * trained and however the base is kept. The same rows, as single texts, pairs and rollouts; and the process
 * takes what was planned. */
static void test_objectives_cost_no_memory(void **state) {
    static const struct {
        const char *objective, *row; /* %s: ids of 500 tokens */
    } cases[] = {
        {"sft", "{\"input_ids\": [%s, %s]}\n"},
        {"dpo",
         "{\"prompt_ids\": [5], \"chosen_ids\": [%s], \"rejected_ids\": [%s], \"ref_chosen_logps\": -9, "
         "\"ref_rejected_logps\": -9}\n"},
        {"grpo --beta 0.1", "{\"prompt_ids\": [5, %s], \"completion_ids\": [%s], \"reward\": 1}\n"},
    };
    static const char *const trained[] = {"", "--lora r=8,targets=all-linear",
                                          "--lora r=8,targets=all-linear --base-dtype nf4",
                                          "--lora r=8,targets=all-linear --base-dtype q8_0"};
    io_fixture *f = *state;
    sbp_text ids;
    bool huge = has_huge_pages("planned against measured memory of objectives");
    sbp_text_init(&ids, f->arena);
    for (int i = 0; i < 500; i++)
        sbp_text_add(&ids, "%s%d", i ? ", " : "", 3 + i * 7 % 50);
    cli_ok(f, "mkdir -p $D/m && cp $G/llama_plain/model/config.json $D/m");
    /* other instructions: of objectives one, of bases what is widened and what is not */
    const bool few = is_narrower();
    for (int t = 0; t < SBP_COUNT(trained); t += few ? 2 : 1) {
        double planned[SBP_COUNT(cases)], measured[SBP_COUNT(cases)];
        for (int c = 0; c < (few ? 1 : SBP_COUNT(cases)); c++) {
            sbp_text row;
            sbp_text_init(&row, f->arena);
            for (int i = 0; i < 2; i++)
                sbp_text_add(&row, cases[c].row, ids.data, ids.data);
            cli_put(f, "data", row.data);
            cli_ok(f, sbp_arena_printf(
                          f->arena,
                          "$C compile $D/m -o $D/p --seq-len 2010 --objective %s --set "
                          "hidden_size=512 --set intermediate_size=1024 --set num_hidden_layers=3 "
                          "--set num_attention_heads=4 --set num_key_value_heads=2 --set head_dim=128 "
                          "--chunk 256 --head-chunk 256 --segment 1 --checkpoint-every 1 --threads 2 %s",
                          cases[c].objective, trained[t]));
            cli_ok(f, "rm -rf $D/o; $R $D/p --data $D/data --weights random:1 --steps 1 --batch-size 4 "
                      "--json --out $D/o");
            peaks p = peaks_of(f);
            planned[c] = p.planned;
            measured[c] = p.measured;
            print_message("%s %s: %.2f MiB planned, %.2f measured (%+.2f %%)\n", cases[c].objective,
                          trained[t], planned[c] / (1 << 20), measured[c] / (1 << 20),
                          100 * (measured[c] / planned[c] - 1));
            assert_true(fabs(planned[c] - planned[0]) <= 0.05 * planned[0]);
            assert_true(fabs(measured[c] - measured[0]) <= 0.05 * measured[0]);
            assert_true(!huge || measured[c] <= planned[c]);
            assert_true(!huge || measured[c] >= (1 - SBP_TOLERANCE_PLANNED) * planned[c]);
        }
    }
}

/* A set that this CPU lacks would be measured as another one. */
static bool lacks_isa(void) {
    void *state;
    assert_int_equal(cli_setup(&state), 0);
    bool lacks = !cli_has_isa(state, "planned against measured memory");
    io_teardown(&state);
    return lacks;
}

int main(void) {
    if (lacks_isa())
        return 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_objectives_cost_no_memory, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_memory_is_planned_for_the_threads, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_memory_with_placement_elsewhere, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_memory_of_states, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_limits_are_kept_with_placement_elsewhere, cli_setup,
                                        io_teardown)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
