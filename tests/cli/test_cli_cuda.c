/* test_cli_cuda.c: sbpc and sbprun on CUDA without a GPU (tests/cuda/fake): choosing a device, and that
 * neither the order in which streams run nor what the host's memory is like changes a bit. */
#include "tests/cli/cli_testing.h"

#include <string.h>

#define MODEL "tests/golden/llama_plain/model"
#define ROWS "tests/golden/llama_plain/train.jsonl"
#define COMPILE "$C compile " MODEL " -o $D/p --seq-len 94 "

/* The command works, and its messages contain the text. */
static void says(io_fixture *f, const char *message, const char *command) {
    cli_ok(f, command);
    if (!strstr(cli_text(f, "err"), message) && !strstr(cli_text(f, "out"), message))
        fail_msg("%s: no '%s' in '%s'", command, message, cli_text(f, "err"));
}

static void test_auto(void **state) {
    io_fixture *f = *state;
    says(f, "cuda 1: Fake GPU (sm_80, CUDA 13.0), 1.86 GiB of memory, 953.67 MiB free\n",
         "SBP_FAKE_CUDA=devices=2,capability=80,memory=2000000000,taken=1000000000 $R --devices");
    if (!cli_has_device(f, "cuda", "choosing a device"))
        skip();
    says(f, "backend    cuda (Fake GPU), ", COMPILE);
    says(f, "no CUDA GPU: only Fake GPU, which is of compute capability 7.0; 8.0 is the least",
         "SBP_FAKE_CUDA=capability=70 " COMPILE);
    says(f, "backend    cpu (no CUDA GPU: the driver does not start: the driver sees no device",
         "SBP_FAKE_CUDA=devices=0 " COMPILE);
    says(f, "backend    cpu (asked for)", COMPILE "--backend cpu");
    cli_ok(f, COMPILE "--backend cuda --arch sm_90a");
    cli_fails(f, 3, "there is no device 1: this machine has 1",
              "$R $D/p --data " ROWS " --score $D/s --device 1");
    cli_ok(f, "SBP_FAKE_CUDA=devices=2 $R $D/p --data " ROWS " --score $D/s --device 1");
}

/* Queues in, out, host and compute beside each other, in orders that a seed chooses. */
static void test_same_bits_in_any_order(void **state) {
    io_fixture *f = *state;
    static const char *const ways[] = {"seed=2", "seed=3", "late", "pinned=0"};
    if (!cli_has_device(f, "cuda", "the order of streams"))
        skip();
    cli_ok(f, COMPILE "--backend cuda --arch sm_90a --dtype fp32 --chunk 7 --head-chunk 16 --offload host "
                      "--save q+attn_out+lse");
#define RUN "$R $D/p --data " ROWS " --batch-tokens 94 --dump-gradients $D/g.safetensors"
    cli_ok(f, RUN " && mv $D/g.safetensors $D/first.safetensors");
    for (int i = 0; i < SBP_COUNT(ways); i++) {
        cli_ok(f, sbp_arena_printf(f->arena, "SBP_FAKE_CUDA=%s %s", ways[i], RUN));
        cli_same(f, "first.safetensors", "g.safetensors");
    }
    cli_ok(f, "SBP_CUDA_VARIANT=plain " RUN);
#undef RUN
}

/* A few steps of training: the loss of the CPU. */
static void test_training(void **state) {
    io_fixture *f = *state;
    int count, count_cpu;
    if (!cli_has_device(f, "cuda", "a training run"))
        skip();
#define RUN "$R $D/p --data " ROWS " --steps 3 --batch-size 2 --lr 1e-2 --out $D/"
    cli_ok(f, COMPILE "--dtype fp32 --backend cpu && " RUN "cpu");
    cli_ok(f, COMPILE "--dtype fp32 --backend cuda --arch sm_90a && " RUN "o");
    const sbp_json **want = cli_lines(f, "cpu/metrics.jsonl", &count_cpu),
                   **got = cli_lines(f, "o/metrics.jsonl", &count);
    assert_int_equal(count_cpu, count);
    assert_true(count == 3);
    for (int i = 0; i < count; i++)
        if (fabs(cli_number(f, got[i], "loss") - cli_number(f, want[i], "loss")) > SBP_TOLERANCE_CURVE)
            fail_msg("loss %d is %.9g, on the cpu %.9g", i + 1, cli_number(f, got[i], "loss"),
                     cli_number(f, want[i], "loss"));
    cli_ok(f, "grep -q '\"backend\": \"cuda\", \"name\": \"Fake GPU' $D/o/run.json");
}

/* What is allocated on the device is what the plan says, less the context, which the driver has: all of it
 * when the plan is loaded, the workspaces of attention's backward among it. */
static void test_memory_is_planned(void **state) {
    io_fixture *f = *state;
    static const char *const ways[] = {
        "--backward standard --dtype bf16 --arch sm_90a",
        "--backward stream --chunk 7 --dtype bf16 --arch sm_90a",
        "--backward checkpoint --dtype fp32 --arch sm_90a --offload host",
        "--backward stream --chunk 33 --segment 2 --save q+attn_out+lse --dtype fp64 --arch sm_80",
        "--backward standard --dtype bf16 --arch sm_80 --optimizer sgd"};
    if (!cli_has_device(f, "cuda", "memory in use"))
        skip();
    for (int i = 0; i < SBP_COUNT(ways); i++) {
        const char *capability = strstr(ways[i], "sm_80") ? "capability=80" : "capability=90";
        cli_ok(f, sbp_arena_printf(f->arena,
                                   COMPILE "--backend cuda %s && $C inspect $D/p --json > $D/plan.json",
                                   ways[i]));
        cli_ok(f, sbp_arena_printf(
                      f->arena,
                      "rm -f $D/log && SBP_FAKE_CUDA=%s SBP_FAKE_CUDA_LOG=$D/log $R $D/p --data " ROWS
                      " --batch-tokens 94 --dump-gradients $D/g.safetensors && "
                      "awk '/^cuMemAlloc/ {n += $2} END {printf \"{\\\"bytes\\\": %%d}\\n\", n}' "
                      "$D/log > $D/used.json",
                      capability));
        const sbp_json *peak;
        assert_ok(f, sbp_json_get_object(f->diag, cli_json(f, "plan.json"), "peak_bytes", SBP_JSON_REQUIRED,
                                         &peak));
        double planned = cli_number(f, peak, "device") - (500 << 20),
               used = cli_number(f, cli_json(f, "used.json"), "bytes");
        if (used != planned)
            fail_msg("%s: %.0f bytes were allocated, planned are %.0f", ways[i], used, planned);
        print_message("%s: %.0f bytes, as planned\n", ways[i], planned);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_auto, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_same_bits_in_any_order, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_training, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_memory_is_planned, cli_setup, io_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
