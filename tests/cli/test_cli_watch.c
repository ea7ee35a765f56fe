/* What a run says while it goes on: utilisation of the device, --quiet and --verbose; and what nobody is to
 * find in what it leaves: tokens, and where somebody's home is. */
#include "tests/cli/cli_testing.h"

#include "runtime/train/utilisation.h"

#define DATA "tests/golden/stories260k_trl/train.jsonl"

/* ---- utilisation ------------------------------------------------------------------------------------ */

enum { LAYERS = 5, D = 64, KV = 32, F = 172, V = 512 }; /* of stories260K */

/* The operations of a token are those of the formula: 6 for each weight of a layer; with adapters of q and v
 * 4, none of what lies before the first of them, and theirs. */
static void test_useful_operations(void **state) {
    io_fixture *f = *state;
    const double weights = 2 * D * D + 2 * D * KV + 3 * D * F, rank = 4;
    double adapters = 0;
    for (int layer = 0; layer < LAYERS; layer++)
        for (int to = 0; to < 2; to++)
            adapters += 2 * rank * D * (2 + (layer > 0)) + 2 * rank * (to == 0 ? D : KV) * 3;
    const struct {
        const char *options;
        double per_token, per_label, per_pair;
    } cases[] = {{"", 6 * weights * LAYERS, 6.0 * D * V, 3.0 * LAYERS * 2 * (D + D)},
                 {"--lora r=4,targets=q_proj+v_proj",
                  4 * weights * LAYERS - 2 * (D * D + 2 * D * KV) + adapters, 4.0 * D * V,
                  3.0 * LAYERS * 2 * (D + D)},
                 {"--freeze '*'", 2 * weights * LAYERS, 2.0 * D * V, LAYERS * 2 * (D + D)}};
    for (int i = 0; i < SBP_COUNT(cases); i++) {
        cli_ok(f, sbp_arena_printf(f->arena,
                                   "$R $S --data " DATA " --steps 1 --eval " DATA
                                   " --save-every never --overwrite --out $D/o %s || "
                                   "$C compile $S -o $D/p --backend cpu %s",
                                   cases[i].options, cases[i].options));
        if (strstr(cases[i].options, "--freeze")) /* nothing trains: there is no such run */
            continue;
        const sbp_json *useful = sbp_json_member(
            sbp_json_member(sbp_json_member(cli_json(f, "o/run.json"), "compiled"), "estimate"),
            "useful_flops");
        assert_true(cli_number(f, useful, "per_token") == cases[i].per_token);
        assert_true(cli_number(f, useful, "per_label") == cases[i].per_label);
        const sbp_json *attention = sbp_json_member(useful, "attention");
        assert_int_equal(attention->count, 1);
        assert_true(cli_number(f, &attention->items[0], "per_pair") == cases[i].per_pair);
    }
}

/* The formula, by the numbers of metrics.jsonl, where the rate of products is known; nothing where it
 * is a table's. */
static void test_utilisation(void **state) {
    io_fixture *f = *state;
    const double weights = 2 * D * D + 2 * D * KV + 3 * D * F;
    cli_put(f, "rates",
            "fp32_flops 2e9 bf16_flops 3e9 fp32_attention 1e9 bf16_attention 1e9 half_rows 20 memory_bytes "
            "2e10 row_ops 1e10 "
            "link_bytes 2e10 host_bytes 2e10 host_ops 1e10 disk_bytes 1e9 command_seconds 2e-6\n");
    cli_put(f, "rows.jsonl",
            "{\"input_ids\": [1, 5, 6, 7, 8, 9, 10], \"labels\": [1, 5, 6, 7, 8, 9, 10]}\n"
            "{\"input_ids\": [1, 7, 9], \"labels\": [1, 7, 9]}\n"
            "{\"input_ids\": [1, 5, 6, 7, 8], \"labels\": [-100, -100, -100, 7, 8]}\n");
    cli_ok(
        f,
        "$C compile $S -o $D/p --backend cpu --throughput $D/rates --seq-len 64 -q && "
        "$R $D/p --data $D/rows.jsonl --batch-size 3 --steps 2 --log-every 1 --report-to tensorboard --json "
        "--save-every never --out $D/o && mv $D/out $D/summary");
    int count;
    const sbp_json **lines = cli_lines(f, "o/metrics.jsonl", &count);
    assert_int_equal(count, 2);
    /* 15 tokens, 6 + 2 + 2 labels, pairs of 7, 3 and 5 */
    const double work = 6 * weights * LAYERS * 15 + 6.0 * D * V * 10 +
                        3.0 * LAYERS * 2 * (D + D) * (7 * 8 / 2 + 3 * 4 / 2 + 5 * 6 / 2);
    for (int i = 0; i < count; i++) {
        double mfu = cli_number(f, lines[i], "mfu");
        assert_true(fabs(mfu * cli_number(f, lines[i], "step_seconds") * 2e9 - work) <=
                    SBP_TOLERANCE_F64 * work);
    }
    assert_non_null(strstr(cli_text(f, "err"), " tokens/s  MFU "));
    assert_true(cli_number(f, cli_json(f, "summary"), "mfu") > 0);
    assert_non_null(strstr(cli_text(f, "o/report.html"), "<th>model FLOP utilisation</th><td>"));
    assert_non_null(strstr(cli_text(f, "o/report.html"), " % of 2 GFLOP a second, measured here</td>"));
    assert_non_null(
        strstr(cli_text(f, "o/report.html"), "<figcaption>Model FLOP utilisation, %</figcaption>"));
    cli_ok(f, "grep -qa train/mfu $D/o/runs/*");
    cli_ok(f, "$R $S --data $D/rows.jsonl --batch-size 3 --steps 1 --json --save-every never --out $D/table");
    assert_null(strstr(cli_text(f, "table/metrics.jsonl"), "mfu"));
    assert_null(strstr(cli_text(f, "table/report.html"), "utilisation"));
    assert_null(strstr(cli_text(f, "out"), "mfu"));
    assert_null(strstr(cli_text(f, "err"), "MFU"));
}

static void test_peaks(void **state) {
    (void)state;
    assert_true(sbp_peak_of("NVIDIA H200", "bf16") == 989e12);
    assert_true(sbp_peak_of("NVIDIA H100 80GB HBM3", "fp32") == 67e12);
    assert_true(sbp_peak_of("NVIDIA GeForce RTX 4090", "bf16") == 165.2e12);
    assert_true(sbp_peak_of("NVIDIA A100-SXM4-80GB", "bf16") == 312e12);
    assert_true(sbp_peak_of("NVIDIA GeForce RTX 4090 Laptop GPU", "bf16") == 0);
    assert_true(sbp_peak_of("NVIDIA GeForce RTX 3090 Ti", "bf16") == 0);
    assert_true(sbp_peak_of("NVIDIA GH200", "bf16") == 0); /* ends like an H200 */
    assert_true(sbp_peak_of("NVIDIA H200", "fp64") == 0);
    assert_true(sbp_peak_of("", "bf16") == 0);
}

/* ---- how much is said ------------------------------------------------------------------------------- */

static void test_quiet_and_verbose(void **state) {
    io_fixture *f = *state;
    const char *run = "$R $S --data " DATA " --save-every never --overwrite --out $D/o --steps 7";
    cli_ok(f, sbp_arena_printf(f->arena, "%s --quiet", run));
    assert_string_equal(cli_text(f, "err"), "");
    cli_ok(f, sbp_arena_printf(f->arena, "%s --verbose", run));
    int lines = 0;
    for (const char *at = cli_text(f, "err"); (at = strstr(at, "step ")); at += 5)
        if (at[5] >= '1' && at[5] <= '7' && at[6] == '/') {
            const char *end = strchr(at, '\n'), *norm = strstr(at, "  grad_norm ");
            assert_true(norm && norm < end && strstr(at, "  entropy ") < end);
            lines++;
        }
    assert_int_equal(lines, 7);
    cli_ok(f, run);
    assert_null(strstr(cli_text(f, "err"), "grad_norm"));
    cli_fails(f, 2, "--quiet and --verbose", sbp_arena_printf(f->arena, "%s --verbose -q", run));
}

/* ---- what is nobody's business ---------------------------------------------------------------------- */

#define TOKEN "hf_QzXw7LkPqRsTuVwXyZaBcDeFgHiJkLmNoP"
#define OTHER "0123456789abcdefSECRET"
#define THIRD "nobody-knows-this" /* not in the environment */

/* In no file of a run, nor in what it says: tokens from the environment, the command line, a config file; and
 * in what is meant for others, which home it was made in. */
static void test_secrets(void **state) {
    io_fixture *f = *state;
    static const char *const ways[] = {"",
                                       "--hub_token " TOKEN,
                                       "--hub-token=" THIRD,
                                       "--hub_token=" TOKEN,
                                       "--config secret.yaml",
                                       "--lora r=2 --hub-token " THIRD,
                                       "--verbose"};
    cli_put(f, "secret.yaml", "hub_token: " OTHER "\n");
    cli_ok(f,
           "mkdir -p $D/home/anna/m && cp -r $S/. $D/home/anna/m/ && cp " DATA " $D/home/anna/rows.jsonl && "
           "mv $D/secret.yaml $D/home/anna/ && mkdir $D/all");
    for (int i = 0; i < SBP_COUNT(ways); i++) {
        cli_ok(f, sbp_arena_printf(f->arena,
                                   "export HOME=$D/home/anna HF_TOKEN=" TOKEN " HUGGING_FACE_HUB_TOKEN=" TOKEN
                                   " WANDB_API_KEY=" OTHER
                                   " && cd $HOME && $R m --data rows.jsonl --eval rows.jsonl --steps 2 "
                                   "--report-to tensorboard --report-to "
                                   "jsonl --base-name org/m --out o%d %s",
                                   i, ways[i]));
        cli_ok(f, sbp_arena_printf(
                      f->arena,
                      "mv $D/err $D/all/err%d && mv $D/out $D/all/out%d && mv $D/home/anna/o%d $D/all/o%d", i,
                      i, i, i));
    }
    cli_ok(f, "! grep -rla -e " TOKEN " -e " OTHER " -e " THIRD " $D/all");
    cli_ok(f, "! grep -la anna $D/all/err* $D/all/out* $D/all/o*/README.md $D/all/o*/report.html "
              "$D/all/o*/metrics.jsonl "
              "$D/all/o*/runs/*");
    /* what a name of an option says is none, and what looks like a token is one wherever it stands */
    cli_ok(f, "$R $S --data " DATA " --steps 1 --eos-token '</s>' --save-every never --out $D/eos");
    assert_non_null(strstr(cli_text(f, "eos/run.json"), "\"--eos-token\", \"</s>\""));
    assert_non_null(strstr(cli_text(f, "all/o1/run.json"), "\"--hub_token\", \"***\""));
    assert_non_null(strstr(cli_text(f, "all/o2/run.json"), "\"--hub-token=***\""));
}

/* What compile, inspect, report.html and the card say of a plan's memory, compared by their words. */
static void test_one_account_of_memory(void **state) {
    static const char *const spaces[] = {"device", "host", "disk"}, *const titles[] = {"Device", "Host",
                                                                                       "Disk"};
    io_fixture *f = *state;
    char size[32];
    cli_put(f, "held.jsonl", "{\"text\": \"Once upon a time.\"}\n");
    cli_put(f, "told.jsonl", "{\"text\": \"Once upon a time there was a cat.\"}\n");
    cli_ok(f, "$C compile $S -o $D/p --seq-len 300 --threads 2 --offload states+saved:disk --save gate");
    const char *compiled = sbp_arena_strdup(f->arena, cli_text(f, "err"));
    cli_ok(f, "$C inspect $D/p");
    const char *inspected = sbp_arena_strdup(f->arena, cli_text(f, "out"));
    cli_ok(f, "$R $D/p --data $D/told.jsonl --eval $D/held.jsonl --steps 1 --threads 2 --json --out $D/o");
    double planned = cli_number(f, cli_json(f, "out"), "peak_bytes_planned"), sum = 0;
    const char *page = sbp_arena_strdup(f->arena, cli_text(f, "o/report.html")),
               *card = sbp_arena_strdup(f->arena, cli_text(f, "o/README.md"));
    cli_ok(f, "$C inspect $D/p --json");
    const sbp_json *memory = sbp_json_member(cli_json(f, "out"), "memory");
    int shown = 0;
    for (int s = 0; s < 3; s++) {
        const sbp_json *parts = sbp_json_member(memory, spaces[s]);
        double all = 0;
        assert_non_null(parts);
        for (int64_t i = 0; i < parts->count; i++) {
            const char *name = parts->items[i].key;
            double bytes = (double)parts->items[i].integer;
            all += bytes;
            if (bytes <= 0)
                continue;
            sbp_format_bytes(size, sizeof size, bytes);
            if (!strstr(page, sbp_arena_printf(f->arena, "<th>%s</th><td>%s</td>", name, size)) ||
                !strstr(inspected, sbp_arena_printf(f->arena, "           %-28s %12s  ", name, size)))
                fail_msg("%s of %s: %s is not in:\n%s\n%s", name, spaces[s], size, page, inspected);
            shown++;
        }
        if (s < 2) /* here the host is the device */
            sum += all;
        if (all > 0)
            assert_non_null(strstr(page, sbp_arena_printf(f->arena, "<h3>%s: %s</h3>", titles[s],
                                                          sbp_format_bytes(size, sizeof size, all))));
        for (int64_t i = 0; s == 0 && i < parts->count; i++)
            if (100 * (double)parts->items[i].integer >= all) {
                sbp_format_bytes(size, sizeof size, (double)parts->items[i].integer);
                assert_non_null(strstr(
                    card, sbp_arena_printf(f->arena, "| of it `%s` | %s |", parts->items[i].key, size)));
                assert_non_null(strstr(compiled, size)); /* lines are cut anywhere */
            }
    }
    assert_true(shown > 10 && sum == planned);
    sbp_format_bytes(size, sizeof size, planned);
    assert_non_null(strstr(page, sbp_arena_printf(f->arena, "<th>memory planned</th><td>%s</td>", size)));
    assert_non_null(strstr(card, sbp_arena_printf(f->arena, "| memory planned | %s |", size)));
    assert_non_null(strstr(page, "<tr><th>data</th><td>told.jsonl</td></tr>"));
    /* another number of threads than the plan's: pages have that of the run */
    cli_ok(f, "$R $D/p --data $D/told.jsonl --steps 1 --threads 3 --json --out $D/t");
    double more = cli_number(f, cli_json(f, "out"), "peak_bytes_planned");
    assert_true(more > planned);
    double host = 0;
    for (int64_t i = 0; i < sbp_json_member(memory, "host")->count; i++)
        host += (double)sbp_json_member(memory, "host")->items[i].integer;
    assert_non_null(strstr(
        cli_text(f, "t/report.html"),
        sbp_arena_printf(f->arena, "<h3>Device: %s</h3>", sbp_format_bytes(size, sizeof size, more - host))));
    assert_non_null(strstr(page, "<tr><th>evaluation</th><td>held.jsonl</td></tr>"));
}

/* Settings are what was given, once. */
static void test_settings_are_what_was_given(void **state) {
    io_fixture *f = *state;
    cli_put(f, "told.jsonl", "{\"text\": \"Once upon a time there was a cat.\"}\n");
    cli_ok(f, "$R $S --data $D/told.jsonl --steps 1 --objective sft --chunk 16 --out $D/o");
    const char *text = sbp_arena_strdup(f->arena, cli_text(f, "o/report.html"));
    const char *page = strstr(text, "<h2>Settings</h2>");
    assert_non_null(page);
    assert_non_null(strstr(page, "<th>--chunk</th><td>16</td>"));
    assert_non_null(strstr(page, "<th>objective</th><td>sft</td>"));
    assert_null(strstr(page, "<th>--objective</th>"));
    assert_null(strstr(page, "<th>--memory</th>"));
    cli_ok(f, "$R $S --data $D/told.jsonl --steps 1 --memory 100MiB --out $D/m");
    assert_non_null(strstr(cli_text(f, "m/report.html"), "<th>--memory</th><td>"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_useful_operations, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_utilisation, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_peaks, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_quiet_and_verbose, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_secrets, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_one_account_of_memory, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_settings_are_what_was_given, cli_setup, io_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
