/* test_cli_vulkan.c: choosing a device and its memory, with lavapipe made to look like other drivers
 * (tests/common/vulkan_proxy.h). */
#include "tests/cli/cli_testing.h"

#include <string.h>

#define MODEL "tests/golden/llama_plain/model"
#define ROWS "tests/golden/llama_plain/train.jsonl"
#define COMPILE "$C compile " MODEL " -o $D/p --seq-len 94 "
#define TRAIN "--data " ROWS " --steps 1 --batch-size 3 --out none "

/* The command works, and its messages contain the text. */
static void says(io_fixture *f, const char *message, const char *command) {
    cli_ok(f, command);
    if (!strstr(cli_unfolded(f, "err"), message))
        fail_msg("%s: no '%s' in '%s'", command, message, cli_text(f, "err"));
}

static void test_auto(void **state) {
    io_fixture *f = *state;
    if (!cli_has_vulkan(f, "choosing a device"))
        skip();
    says(f, "no Vulkan GPU: only llvmpipe", COMPILE);
    says(f, "which is software), fp32", COMPILE);
    says(f, "no Vulkan GPU: ", "VK_ICD_FILENAMES=/nonexistent " COMPILE);
    says(f, "no usable Vulkan driver is installed", "VK_ICD_FILENAMES=/nonexistent " COMPILE);
    says(f, "backend vulkan (Pretended GPU), fp32", "SBP_PROXY=gpu " COMPILE);
    says(f, "backend vulkan (Pretended GPU), fp64", "SBP_PROXY=gpu " COMPILE "--dtype fp64");
    says(f, "no Vulkan GPU: only Pretended GPU, which does not compute in fp64), fp64",
         "SBP_PROXY=gpu,hide=shaderFloat64 " COMPILE "--dtype fp64");
    says(f, "no Vulkan GPU: only Pretended GPU, which lacks shaderInt64, which every plan needs)",
         "SBP_PROXY=gpu,hide=shaderInt64 " COMPILE);
    says(f, "no Vulkan GPU: devices cannot be listed: out of device memory",
         "SBP_PROXY=gpu,fail=1,call=EnumeratePhysicalDevices " COMPILE);
    says(f, "backend cpu (asked for)", "SBP_PROXY=gpu " COMPILE "--backend cpu");
#define CRASHES "SBP_PROXY=gpu,fail=1,call=EnumeratePhysicalDevices,error=crash "
    cli_fails(f, 3, "a driver ended the process that asked it for its devices (signal 6): --backend cpu does",
              CRASHES COMPILE);
    cli_ok(f, CRASHES COMPILE "--backend cpu");
}

/* Drivers that were asked and not taken leave nothing in the process that trains. */
static void test_what_is_asked_costs_nothing(void **state) {
    io_fixture *f = *state;
    if (!cli_has_vulkan(f, "choosing a device"))
        skip();
    cli_ok(f, "$R " MODEL " " TRAIN "--json");
    const sbp_json *summary = cli_json(f, "out");
    double planned = cli_number(f, summary, "peak_bytes_planned"),
           measured = cli_number(f, summary, "peak_bytes_measured");
    print_message("planned %.0f, measured %.0f bytes\n", planned, measured);
    assert_true(measured < planned + 4e6); /* the compiler in a software driver has 48 MiB */
}

/* sbprun MODEL: the same choice, and a plan for the memory that the device has. */
static void test_models(void **state) {
    io_fixture *f = *state;
    if (!cli_has_vulkan(f, "choosing a device"))
        skip();
    says(f, "no Vulkan GPU: only llvmpipe", "$R " MODEL " " TRAIN);
    says(f, "--backend=vulkan --memory=2717MiB",
         "SBP_PROXY=gpu,heap=3000000000 $R " MODEL " " TRAIN "--verbose --out $D/o");
    assert_non_null(strstr(cli_text(f, "err"), "note: backend vulkan: Pretended GPU"));
    cli_ok(f, "grep -q '\"backend\": \"vulkan\", \"name\": \"Pretended GPU' $D/o/run.json");
    /* 90 % of the heap, less what is used: what the driver's budget says */
    says(f, "--backend=vulkan --memory=2174MiB",
         "SBP_PROXY=gpu,heap=3000000000,budget,driver=300000000 $R " MODEL " " TRAIN "--verbose");
    says(f, "--arch=software --memory=", "$R " MODEL " --backend=vulkan " TRAIN "--verbose");
    cli_fails(f, 3, "--memory is 54.00 MiB: 10.", "SBP_PROXY=gpu,heap=60000000 $R " MODEL " " TRAIN);
}

/* What the driver says is used against what was planned. A driver without VK_EXT_memory_budget says nothing.
 */
static void test_used_memory(void **state) {
    io_fixture *f = *state;
    if (!cli_has_vulkan(f, "choosing a device"))
        skip();
    cli_ok(f, "$C compile $S -o $D/q --backend vulkan --backward standard --seq-len 40000");
    cli_ok(f, "SBP_PROXY=gpu,budget,driver=62000000 $R $D/q --data " ROWS
              " --steps 1 --batch-size 1 --json --out $D/o");
    const sbp_json *summary = cli_json(f, "out");
    double planned = cli_number(f, summary, "peak_bytes_planned"),
           measured = cli_number(f, summary, "peak_bytes_measured");
    print_message("planned %.0f, used %.0f bytes\n", planned, measured);
    assert_true(planned > 9e8);
    if (fabs(measured - planned) > SBP_TOLERANCE_USED_MEMORY * planned)
        fail_msg("planned %.0f, used %.0f bytes", planned, measured);
    cli_ok(f, "grep -q '\"memory_peak_bytes\": [1-9]' $D/o/metrics.jsonl");
    says(f, "more than was planned", "SBP_PROXY=gpu,budget,driver=200000000 $R $D/q " TRAIN);
    says(f, "planned, the driver reports none", "$R $D/q " TRAIN);
    cli_ok(f, "$R $D/q " TRAIN "--json --out $D/o2");
    assert_non_null(strstr(cli_text(f, "out"), "\"peak_bytes_measured\": null}"));
    cli_ok(f, "grep -q '\"memory_peak_bytes\": null' $D/o2/metrics.jsonl");
}

/* Without shaderFloat64 a plan in fp32 has modules that do without it; one in fp64 has not. */
static void test_no_float64(void **state) {
    io_fixture *f = *state;
#define DUMP " --data " ROWS " --batch-tokens 94 --dump-gradients $D/g.safetensors"
    if (!cli_has_vulkan(f, "choosing a device"))
        skip();
    cli_ok(f, COMPILE "--backend vulkan");
    bool validates = cli(f, "SBP_VULKAN_VALIDATION=on $R $D/p" DUMP) == 0;
    cli_ok(f, sbp_arena_printf(f->arena, "%s SBP_PROXY=hide=shaderFloat64 $R $D/p" DUMP,
                               validates ? "SBP_VULKAN_VALIDATION=on" : ""));
    cli_compare(f, "without shaderFloat64", sbp_arena_strdup(f->arena, io_path(f, "g.safetensors")),
                "tests/golden/llama_plain/grads.safetensors", SBP_TOLERANCE_F32);
    cli_ok(f, "$R $D/p " TRAIN "--json --out $D/a");
    double with = cli_number(f, cli_lines(f, "a/metrics.jsonl", &(int){0})[0], "grad_norm");
    cli_ok(f, "SBP_PROXY=hide=shaderFloat64 $R $D/p " TRAIN "--json --out $D/b");
    double without = cli_number(f, cli_lines(f, "b/metrics.jsonl", &(int){0})[0], "grad_norm");
    if (!(fabs(with - without) <= SBP_TOLERANCE_F32 * with) || with == without)
        fail_msg("the gradient's norm is %.17g in fp64, %.17g in fp32", with, without);
    cli_ok(f, COMPILE "--backend vulkan --dtype fp64");
    cli_fails(f, 3, "of the plan needs shaderFloat64, which llvmpipe",
              "SBP_PROXY=hide=shaderFloat64 $R $D/p" DUMP);
#undef DUMP
}

/* Three steps with weights and states in other forms than fp32: the losses of the CPU. */
static void test_formats(void **state) {
    io_fixture *f = *state;
    static const char *const formats[] = {
        "--param-dtype bf16 --state-dtype bf16",
        "--param-dtype bf16 --master none --optimizer lion --state-dtype int8"};
    for (int i = 0; i < SBP_COUNT(formats); i++) {
        double loss[2];
        for (int vulkan = 0; vulkan < 2; vulkan++) {
            cli_ok(f, sbp_arena_printf(f->arena,
                                       "$C compile $S -o $D/p --seq-len 300 --dtype fp32 --backend %s %s",
                                       vulkan ? "vulkan" : "cpu", formats[i]));
            cli_ok(
                f,
                "$R $D/p --data $G/stories260k_trl/train.jsonl --steps 3 --lr 1e-3 --schedule constant --out "
                "none --json");
            loss[vulkan] = cli_number(f, cli_json(f, "out"), "train_loss");
        }
        if (!(fabs(loss[1] - loss[0]) <= SBP_TOLERANCE_F32 * loss[0]))
            fail_msg("%s: %.9g, on the CPU %.9g", formats[i], loss[1], loss[0]);
    }
}

/* llvmpipe leaves an invocation's loops after 65535 iterations: a chunk that comes close to it trains as on
 * the CPU, and a longer one is refused when the plan is made. */
static void test_long_loops(void **state) {
    io_fixture *f = *state;
#define LONG                                                                                                 \
    "--set linear_key_head_dim=128 --set num_hidden_layers=1 --set 'layer_types=[\"linear_attention\"]' "
    static const char *const targets[] = {"cpu", "vulkan --arch software"};
    double loss[2];
    if (!cli_has_vulkan(f, "loops of a software driver"))
        skip();
    cli_ok(f, "cp $G/qwen3_5_trl/model/config.json $D"); /* no weights of other shapes beside it */
    sbp_text row;
    sbp_text_init(&row, f->arena);
    for (int i = 0; i < 100; i++)
        sbp_text_add(&row, "%s%d", i ? "," : "{\"input_ids\": [", (i * i + 7 * i) % 79);
    sbp_text_add(&row, "]}\n");
    io_put(io_path(f, "long.jsonl"), row.data, row.length);
    for (int k = 0; k < 2; k++) {
        cli_ok(f, sbp_arena_printf(f->arena,
                                   "$C compile $D/config.json -o $D/p --seq-len 100 --chunk 100 " LONG
                                   "--backend %s",
                                   targets[k]));
        cli_ok(f, "$R $D/p --data $D/long.jsonl --weights random:3 --steps 2 --batch-size 1 --lr 1e-2 "
                  "--schedule constant "
                  "--out none --json");
        loss[k] = cli_number(f, cli_json(f, "out"), "train_loss");
    }
    if (!(fabs(loss[1] - loss[0]) <= SBP_TOLERANCE_F32 * loss[0]))
        fail_msg("%.9g, on the CPU %.9g", loss[1], loss[0]);
    cli_fails(f, 1,
              "--arch software: delta_rule would run up to 66096 loop iterations in one invocation, and "
              "software drivers "
              "silently stop after 65535: set --chunk 100, or use --backend cpu",
              "$C compile $D/config.json -o $D/q --seq-len 101 --chunk 101 " LONG
              "--backend vulkan --arch software");
    assert_false(cli_exists(f, "q"));
    cli_ok(f, "$C compile $D/config.json -o $D/q --seq-len 101 --chunk 101 " LONG
              "--backend vulkan"); /* for a GPU */
    cli_fails(f, 2, "has no architectures but software",
              "$C compile $D/config.json -o $D/r --backend vulkan --arch sm_80");
#undef LONG
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_auto, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_what_is_asked_costs_nothing, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_models, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_used_memory, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_no_float64, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_formats, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_long_loops, cli_setup, io_teardown)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
