/* --throughput: measured once and kept, in the plan as well; planned time follows them. */
#include "tests/cli/cli_testing.h"
#include "tests/common/sweep.h"

#define MODEL "tests/data/configs/SmolLM2-135M.json"

static double planned_seconds(io_fixture *f, const char *throughput) {
    cli_ok(f, sbp_arena_printf(f->arena, "$C compile $S -o $D/p --seq-len 512 --json --throughput %s",
                               throughput));
    return cli_number(f, cli_json(f, "out"), "seconds");
}

/* The first time they are measured, then read, until they are wanted anew or the file is damaged. */
static void test_they_are_measured_once(void **state) {
    io_fixture *f = *state;
    double table = planned_seconds(f, "table"), first = planned_seconds(f, "measured");
    assert_null(strstr(cli_text(f, "err"), "measured before"));
    assert_non_null(strstr(cli_text(f, "err"), "throughput measured now: matmuls "));
    assert_true(first != table);
    double second = planned_seconds(f, "measured");
    assert_non_null(strstr(cli_text(f, "err"), "throughput measured before ("));
    assert_true(first == second);
    cli_ok(f, "ls $D/cache/streambp && truncate -s 100 $D/cache/streambp/throughput-*");
    (void)planned_seconds(f, "measured");
    assert_non_null(strstr(cli_text(f, "err"), "measured now"));
    (void)planned_seconds(f, "measured --threads 1"); /* another machine, as it were */
    assert_non_null(strstr(cli_text(f, "err"), "measured now"));
    cli_ok(f,
           "XDG_CACHE_HOME=/dev/null $C compile $S -o $D/p --throughput again"); /* no place to keep them */
    assert_non_null(strstr(cli_text(f, "err"), "measured now"));
    assert_non_null(strstr(cli_text(f, "err"), "cannot be written"));
}

/* inspect and a dry run say what the plan was made with, whatever the machine is now. */
static void test_plans_keep_them(void **state) {
    io_fixture *f = *state;
    cli_put(
        f, "slow",
        "fp32_flops 1e9 bf16_flops 1e9 fp32_attention 1e9 bf16_attention 1e9 half_rows 1 memory_bytes 1e9\n"
        "row_ops 1e9 link_bytes 1e9 host_bytes 1e9 host_ops 1e9 disk_bytes 1e9 command_seconds 1e-6\n");
    cli_put(
        f, "slower",
        "fp32_flops 1e8 bf16_flops 1e8 fp32_attention 1e8 bf16_attention 1e8 half_rows 1 memory_bytes 1e8\n"
        "row_ops 1e8 link_bytes 1e8 host_bytes 1e8 host_ops 1e8 disk_bytes 1e8 command_seconds 1e-5\n");
    double slow = planned_seconds(f, "$D/slow"), slower = planned_seconds(f, "$D/slower");
    assert_true(fabs(slower / slow - 10) < SBP_TOLERANCE_F32);
    cli_ok(f, "$C inspect $D/p");
    assert_non_null(strstr(cli_text(f, "out"), "/slower: matmuls 0.1 GFLOP/s in fp32"));
    cli_ok(f, "$C inspect $D/p --json");
    double inspected = cli_number(f, cli_json(f, "out"), "seconds");
    assert_true(fabs(inspected / slower - 1) < SBP_TOLERANCE_F32);
    cli_put(f, "rows", "{\"input_ids\": [1, 2, 3]}\n");
    cli_ok(f, "$R $D/p --data $D/rows --dry-run --json");
    assert_true(fabs(cli_number(f, cli_json(f, "out"), "micro_batch_seconds") / slower - 1) <
                SBP_TOLERANCE_F32);
    cli_fails(f, 2, "or a file", "$C compile $S -o $D/p --throughput nothing");
    cli_fails(f, 1, "'memory' is not a rate",
              "echo memory 3 > $D/bad; $C compile $S -o $D/p --throughput $D/bad");
    cli_fails(f, 2, "cannot be measured here", "$C compile $S --device-profile h200 --throughput measured");
}

/* Planned by measured throughput against a step that is run: on a busy machine both are off, not by this
 * much. A clock decides, so only with --all. */
static void test_they_foretell_a_step(void **state) {
    enum { ROWS = 512 };
    io_fixture *f = *state;
    if (!testing_all())
        skip();
    sbp_text row;
    sbp_text_init(&row, f->arena);
    for (int i = 0; i < ROWS; i++)
        sbp_text_add(&row, "%s%d", i ? ", " : "{\"input_ids\": [", i * 37 % 4000);
    sbp_text_add(&row, "]}\n");
    cli_put(f, "rows", row.data);
    cli_ok(f, "mkdir $D/m && cp " MODEL " $D/m/config.json");
    cli_ok(f, "$C compile $D/m -o $D/p --seq-len 512 --set num_hidden_layers=4 --set vocab_size=4096 --json "
              "--throughput measured");
    double planned = cli_number(f, cli_json(f, "out"), "seconds"), least = INFINITY;
    cli_ok(f, "$R $D/p --data $D/rows --weights random:1 --batch-size 1 --steps 4 --out $D/run");
    cli_ok(f, "cat $D/run/metrics.jsonl");
    int count;
    const sbp_json **lines = cli_lines(f, "out", &count);
    for (int i = 0; i < count; i++)
        if (sbp_json_member(lines[i], "step_seconds"))
            least = fmin(least, cli_number(f, lines[i], "step_seconds"));
    print_message("planned %.3f s, measured %.3f s\n", planned, least);
    assert_true(planned < 8 * least && least < 8 * planned);
}

static int setup(void **state) {
    if (cli_setup(state) != 0)
        return -1;
    setenv("XDG_CACHE_HOME", io_path(*state, "cache"), 1);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_they_are_measured_once, setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_plans_keep_them, setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_they_foretell_a_step, setup, io_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
