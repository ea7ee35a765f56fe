/* test_cli_ranks_scale.c: sbpc inspect --ranks: what it says of each count is what compile plans for it, of a
 * model as of a plan; and it knows where more ranks stop to pay. Nothing runs. */
#include <math.h>

#include "tests/cli/ranks_testing.h"

/* Layers wide enough for their bytes to count. */
#define MODEL                                                                                                \
    "$D/m --set num_hidden_layers=4 --set vocab_size=4096 --seq-len 256 --backend cpu --threads 1 --memory " \
    "16GiB"

static const sbp_json *get(const sbp_json *at, const char *key) {
    const sbp_json *found = sbp_json_member(at, key);
    if (!found)
        fail_msg("there is no '%s'", key);
    return found;
}

static double number(const sbp_json *at, const char *key) {
    double value = 0;
    assert_int_equal(sbp_json_as_double(NULL, get(at, key), &value), SBP_OK);
    return value;
}

static const sbp_json *scale(io_fixture *f, const char *arguments) {
    int count;
    cli_ok(f, sbp_arena_printf(f->arena, "$C inspect %s --json", arguments));
    return cli_lines(f, "out", &count)[0];
}

static void put_model(io_fixture *f) {
    cli_ok(f, "mkdir -p $D/m; cp tests/data/configs/SmolLM2-135M.json $D/m/config.json");
}

static void near(double got, double want, double tolerance) {
    if (!(fabs(got - want) <= tolerance * fabs(want)))
        fail_msg("%.10g, expected %.10g", got, want);
}

static void test_each_count_is_what_compile_plans(void **state) {
    io_fixture *f = *state;
    static const struct {
        const char *settings;
        int ranks, counts;
    } cases[] = {{"--zero 3 --link 1Gb/s --node 2", 8, 4},
                 {"--zero 2 --shard-group 3 --reduce-dtype bf16", 12, 5},
                 {"--offload states+checkpoints", 3, 3}};
    put_model(f);
    for (int i = 0; i < SBP_COUNT(cases); i++) {
        const sbp_json *all =
            scale(f, sbp_arena_printf(f->arena, MODEL " --ranks %d %s", cases[i].ranks, cases[i].settings));
        const sbp_json *counts = get(all, "counts");
        if (i != 1)
            assert_int_equal(counts->count, cases[i].counts);
        for (int64_t k = 0; k < counts->count; k++) {
            const sbp_json *c = &counts->items[k];
            int lines, ranks = (int)number(c, "ranks");
            const char *settings = cases[i].settings;
            if (ranks == 1)
                settings = i == 2 ? settings : "";
            else if (i == 1 && ranks < 3)
                settings = "--zero 2 --reduce-dtype bf16";
            cli_ok(f, sbp_arena_printf(f->arena, "$C compile " MODEL " --ranks %d %s --json -o $D/p", ranks,
                                       settings));
            const sbp_json *plan = cli_lines(f, "out", &lines)[0];
            assert_true(number(c, "device_bytes") == number(get(plan, "peak_bytes"), "device"));
            assert_true(number(c, "host_bytes") == number(get(plan, "peak_bytes"), "host"));
            assert_true(number(get(c, "interconnect"), "micro_batch_bytes") ==
                        number(get(plan, "interconnect"), "micro_batch_bytes"));
            assert_true(number(get(c, "interconnect"), "step_bytes") ==
                        number(get(plan, "interconnect"), "step_bytes"));
            near(number(c, "seconds"), number(plan, "seconds"), 0.01);
            near(number(c, "interconnect_seconds") + 1, number(get(plan, "busy"), "net") + 1, 0.001);
            near(number(c, "tokens_per_second") * number(c, "seconds"), 256.0 * ranks, 1e-5);
        }
    }
}

/* A plan knows the plan's model and options; what is said anew counts. */
static void test_of_a_plan(void **state) {
    io_fixture *f = *state;
    put_model(f);
    cli_ok(f, "$C compile " MODEL " --ranks 2 --zero 3 --chunk 64 -o $D/p");
    cli_ok(f, "$C inspect $D/p --ranks 4 --link 2Gb/s --node 2 >$D/a");
    cli_ok(f, "$C inspect " MODEL
              " --ranks 4 --link 2Gb/s --node 2 --zero 3 --chunk 64 >$D/b; sed -i 1d $D/a $D/b");
    cli_same(f, "a", "b");
    cli_ok(f, "rm -r $D/m");
    cli_fails(f, 1, "the plan's model ", "$C inspect $D/p --ranks 4");
}

static void expect_stop(const sbp_json *all, double ranks, const char *bound) {
    const sbp_json *stop = get(all, "stops_at");
    assert_int_equal(stop->kind, SBP_JSON_OBJECT);
    print_message("stops at %g: %s\n", number(stop, "ranks"), get(stop, "bound")->string);
    assert_true(number(stop, "ranks") == ranks);
    assert_non_null(strstr(get(stop, "bound")->string, bound));
}

static void test_where_it_stops(void **state) {
    io_fixture *f = *state;
    put_model(f);
    assert_int_equal(get(scale(f, MODEL " --ranks 64 --link 1Tb/s"), "stops_at")->kind, SBP_JSON_NULL);
    const sbp_json *slow = scale(f, MODEL " --ranks 64 --link 10Mb/s --zero 3");
    expect_stop(slow, 16, "the interconnect between hosts: ");
    double hiding = number(get(slow, "stops_at"), "hiding_rows");
    assert_true(hiding > 256);
    expect_stop(scale(f, MODEL " --ranks 32 --link 1Tb/s --batch-tokens 2048"), 16, "too few sequences");
    const sbp_json *tight = scale(f, "$D/m --set num_hidden_layers=4 --set vocab_size=4096 --seq-len 48 "
                                     "--threads 1 --backend cpu --node 1 --memory 170MiB --zero 3 --ranks 4");
    assert_int_equal(get(&get(tight, "counts")->items[0], "fits")->kind, SBP_JSON_BOOL);
    assert_false(get(&get(tight, "counts")->items[0], "fits")->boolean);
    assert_non_null(strstr(get(&get(tight, "counts")->items[0], "refused")->string, "too much"));
    assert_true(get(&get(tight, "counts")->items[2], "fits")->boolean);
}

static void test_refused(void **state) {
    io_fixture *f = *state;
    put_model(f);
    cli_ok(f, "$C compile " MODEL " -o $D/p");
    cli_fails(f, 2, "needs --ranks N", "$C inspect $D/p --link 1Gb/s");
    cli_fails(f, 2, "16 ranks cannot be divided into groups of 3",
              "$C inspect " MODEL " --ranks 16 --zero 1 --shard-group 3");
    cli_fails(f, 2, "which plan or model", "$C inspect --ranks 16");
    cli_fails(f, 4, "cannot read", "$C inspect $D/nothing --ranks 16");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_each_count_is_what_compile_plans, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_of_a_plan, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_where_it_stops, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_refused, cli_setup, io_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
