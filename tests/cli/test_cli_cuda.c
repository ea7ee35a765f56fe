/* test_cli_cuda.c: sbpc and sbprun on CUDA without a GPU (tests/cuda/fake): choosing a device, and that
 * neither the order in which streams run nor what the host's memory is like changes a bit.
 *
 *     test_cli_cuda [TEST] */
#include "tests/cli/cli_testing.h"
#include "tests/common/sweep.h"

#include <string.h>

#define MODEL "tests/golden/llama_plain/model"
#define ROWS "tests/golden/llama_plain/train.jsonl"
#define COMPILE "$C compile " MODEL " -o $D/p --seq-len 94 "

/* The command works, and its messages contain the text. */
static void says(io_fixture *f, const char *message, const char *command) {
    cli_ok(f, command);
    if (!strstr(cli_unfolded(f, "err"), message) && !strstr(cli_unfolded(f, "out"), message))
        fail_msg("%s: no '%s' in '%s'", command, message, cli_text(f, "err"));
}

static void test_auto(void **state) {
    io_fixture *f = *state;
    says(f, "cuda 1: Fake GPU (sm_80, CUDA 13.0), 1.86 GiB of memory, 953.67 MiB free ",
         "SBP_FAKE_CUDA=devices=2,capability=80,memory=2000000000,taken=1000000000 $R --devices");
    if (!cli_has_device(f, "cuda", "choosing a device"))
        skip();
    says(f, "backend cuda (Fake GPU), ", COMPILE);
    says(f, "no CUDA GPU: only Fake GPU, whose compute capability is 7.0; 8.0 or higher is needed",
         "SBP_FAKE_CUDA=capability=70 " COMPILE);
    says(f, "backend cpu (no CUDA GPU: the driver does not start: the driver sees no device",
         "SBP_FAKE_CUDA=devices=0 " COMPILE);
    says(f, "backend cpu (asked for)", COMPILE "--backend cpu");
    cli_ok(f, COMPILE "--backend cuda --arch sm_90a");
    cli_fails(f, 3, "there is no device 1: this machine has 1",
              "$R $D/p --data " ROWS " --score $D/s --device 1");
    cli_ok(f, "SBP_FAKE_CUDA=devices=2 $R $D/p --data " ROWS " --score $D/s --device 1");
}

/* Queues in, out, host and compute beside each other, in orders that a seed chooses. */
static void test_same_bits_in_any_order(void **state) {
    io_fixture *f = *state;
    static const char *const ways[] = {"seed=2", "late", "pinned=0", "seed=3 SBP_CUDA_PIN=4096"};
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
    /* looking for a kernel that hangs or traps */
    cli_ok(f, "SBP_CUDA_DEBUG=waits SBP_FAKE_CUDA_LOG=$D/calls " RUN "waits");
    cli_fails(f, 3, "(214, in gather.f32.f32.i32)",
              "n=$(awk '/^cuLaunch/ {exit} /^cuStreamSynchronize/ {n++} END {print n + 1}' $D/calls); rm -r "
              "$D/waits; "
              "SBP_CUDA_DEBUG=waits SBP_FAKE_CUDA=from=$n,call=cuStreamSynchronize,error=lost " RUN "waits");
    /* without an algorithm for any product: said once, and right */
    cli_ok(f, "SBP_FAKE_CUDA=no-algorithm " RUN "slow 2>$D/said && "
              "test $(grep -c 'cuBLASLt has no algorithm for a matmul of \\[' $D/said) = 1");
    got = cli_lines(f, "slow/metrics.jsonl", &count);
    assert_true(count == 3);
    assert_true(fabs(cli_number(f, got[2], "loss") - cli_number(f, want[2], "loss")) <= SBP_TOLERANCE_CURVE);
    /* without the library: not unless it is asked for, and right */
    cli_ok(
        f,
        "mkdir $D/lib; for folder in $(echo $LD_LIBRARY_PATH | tr : ' '); do test -e $folder/libcuda.so.1 && "
        "cp -s $folder/libcuda.so.1 $D/lib; done; test -e $D/lib/libcuda.so.1");
    cli_fails(f, 3, "matmuls need cuBLASLt; SBP_CUDA_BLAS=off", "SBP_CUDA_LIBRARIES=$D/lib " RUN "none");
    cli_ok(f, "SBP_CUDA_BLAS=off SBP_CUDA_LIBRARIES=$D/lib " RUN
              "own 2>$D/said && grep -q 'many times slower' $D/said");
    got = cli_lines(f, "own/metrics.jsonl", &count);
    assert_true(count == 3);
    assert_true(fabs(cli_number(f, got[2], "loss") - cli_number(f, want[2], "loss")) <= SBP_TOLERANCE_CURVE);
#undef RUN
}

/* ---- training a real model -------------------------------------------------------------------------- */

#define TRL_ROWS "--data $G/stories260k_trl/train.jsonl --lr 0.001 --shuffle off "
#define STORIES TRL_ROWS "--batch-size 8 "
#define LINEAR STORIES "--schedule linear --warmup 0 --weight-decay 0 --steps 20 "

/* What the driver says at the end of a run: everything was given back and nothing was wrong. */
static void nothing_is_left(io_fixture *f) {
    const char *clean = "at the end 0 objects, 0 contexts, 0 bytes of device memory, 0 misuses";
    if (!strstr(cli_text(f, "err"), clean))
        fail_msg("%s", cli_text(f, "err"));
}

static void same_curve(io_fixture *f, const char *a, const char *b, int steps) {
    int n, m;
    const sbp_json **x = cli_lines(f, a, &n), **y = cli_lines(f, b, &m);
    double worst = 0;
    assert_true(n == steps && m == steps);
    for (int i = 0; i < n; i++)
        worst = fmax(worst, fabs(cli_number(f, x[i], "loss") - cli_number(f, y[i], "loss")));
    print_message("%d steps in fp32: losses at most %.2g from the cpu's\n", n, worst);
    assert_true(worst <= SBP_TOLERANCE_CURVE);
}

/* stories260K in fp32: the curve of the CPU; 20 steps with SBP_TEST_ALL=1. */
static void test_stories(void **state) {
    io_fixture *f = *state;
    int steps = testing_all() ? 20 : 2, batch = testing_all() ? 8 : 2;
    if (!cli_has_device(f, "cuda", "training stories260K"))
        skip();
#define RUN "$R $D/p " STORIES "--schedule constant "
#define SHORT "$R $D/p " TRL_ROWS "--batch-size %d --schedule constant --steps %d "
    cli_ok(f, sbp_arena_printf(f->arena,
                               "$C compile $S -o $D/p --dtype fp32 --seq-len 933 --backend cpu && " SHORT
                               "--out $D/cpu",
                               batch, steps));
    cli_ok(f, "$C compile $S -o $D/p --dtype fp32 --seq-len 933 --backend cuda --arch sm_80,sm_90a");
    cli_ok(f, sbp_arena_printf(f->arena, "SBP_FAKE_CUDA=report " SHORT "--out $D/cuda", batch, steps));
    nothing_is_left(f);
    same_curve(f, "cpu/metrics.jsonl", "cuda/metrics.jsonl", steps);
    if (!testing_all())
        return;
    /* stopped and resumed, and by other kernels (mma.sync): the same bits; the same curve */
    cli_ok(f, RUN "--steps 3 --out $D/o && " RUN "--steps 5 --out $D/o --resume && " RUN
                  "--steps 5 --out $D/again");
    cli_same(f, "again/model.safetensors", "o/model.safetensors");
    cli_ok(f, "SBP_FAKE_CUDA=capability=80 " RUN "--steps 20 --out $D/early");
    same_curve(f, "cpu/metrics.jsonl", "early/metrics.jsonl", 20);
#undef SHORT
#undef RUN
}

/* The loss of each step relative to that in float64; the farthest. */
static double farthest(io_fixture *f, const sbp_json *const *got, int count) {
    const sbp_json *root, *want;
    double worst = 0;
    assert_ok(f, sbp_json_read(f->arena, f->diag, "tests/golden/stories260k_trl/trl.json", 0, &root));
    assert_ok(f, sbp_json_get_array(f->diag, root, "float64", SBP_JSON_REQUIRED, &want));
    for (int i = 0; i < count; i++) {
        double exact = cli_number(f, &want->items[i], "loss");
        worst = fmax(worst, fabs(cli_number(f, got[i], "loss") - exact) / exact);
    }
    return worst;
}

/* In bf16, with weights in fp32 and with weights in bf16 and exact masters, beside what transformers does
 * under autocast and with a model in bfloat16: as far from float64 as that. */
static void test_stories_in_bf16(void **state) {
    io_fixture *f = *state;
    static const struct {
        const char *theirs, *compile;
    } ways[] = {{"autocast", "--dtype bf16 --param-dtype fp32 --residual-dtype fp32"},
                {"bf16", "--dtype bf16 --param-dtype bf16 --master fp32"}};
    const sbp_json *root, *curve;
    int steps = testing_all() ? 20 : 1, count;
    if (!cli_has_device(f, "cuda", "training stories260K in bf16"))
        skip();
    assert_ok(f, sbp_json_read(f->arena, f->diag, "tests/golden/stories260k_trl/bf16.json", 0, &root));
    for (int w = 0; w < (testing_all() ? SBP_COUNT(ways) : 1); w++) {
        const sbp_json *items[20];
        assert_ok(f, sbp_json_get_array(f->diag, root, ways[w].theirs, SBP_JSON_REQUIRED, &curve));
        for (int i = 0; i < 20; i++)
            items[i] = &curve->items[i];
        cli_ok(f,
               sbp_arena_printf(
                   f->arena, "$C compile $S -o $D/p --seq-len 933 --clip 1 --backend cuda --arch sm_90a %s",
                   ways[w].compile));
        cli_ok(f, sbp_arena_printf(f->arena, "rm -rf $D/o; SBP_FAKE_CUDA=report $R $D/p %s --out $D/o",
                                   testing_all() ? LINEAR : STORIES "--steps 1 "));
        nothing_is_left(f);
        const sbp_json **got = cli_lines(f, "o/metrics.jsonl", &count);
        assert_int_equal(count, steps);
        double ours = farthest(f, got, count), theirs = farthest(f, items, 20);
        print_message(
            "%d steps in bf16 (%s): losses at most %.2g from float64's, relative; transformers' %.2g\n",
            steps, ways[w].theirs, ours, theirs);
        assert_true(ours <= SBP_TIMES_TRANSFORMERS_BF16 * theirs);
    }
}

/* ---- where things live, and how the backward runs -------------------------------------------------- */

#define EVERYTHING(where)                                                                                    \
    "checkpoints:" where "+saved:" where "+states:" where "+gradients:" where "+params:" where

/* Two steps each: what lives elsewhere changes no bit, nor does running again; every way has the CPU's
 * losses. */
static void test_placements_and_modes(void **state) {
    io_fixture *f = *state;
    static const char *const modes[] = {"stream", "checkpoint", "standard"};
    static const char *const placement[] = {"--offload " EVERYTHING("host"), "--offload none",
                                            "--offload " EVERYTHING("disk"),
                                            "--offload states+gradients --clip none --accumulate 1"};
    static const char *const types[] = {"fp32", "bf16"};
    int runs = 0;
    if (!cli_has_device(f, "cuda", "placement and modes"))
        skip();
    for (int t = 0; t < (testing_all() ? 2 : 1); t++)
        for (int m = 0; m < (testing_all() ? 3 : 1); m++) {
            for (int h = 0; h < (testing_all() ? SBP_COUNT(placement) : 2); h++) {
                cli_ok(f, sbp_arena_printf(
                              f->arena, COMPILE "--dtype %s --backend cuda --arch sm_90a --backward %s %s%s",
                              types[t], modes[m], placement[h],
                              strcmp(modes[m], "stream") == 0 ? " --chunk 16 --head-chunk 32" : ""));
                cli_ok(f,
                       sbp_arena_printf(f->arena,
                                        "SBP_FAKE_CUDA=report,seed=%d $R $D/p --data " ROWS
                                        " --steps 2 --batch-tokens 94 --lr 1e-3 --offload-dir $D --out $D/%s",
                                        h + 1, h == 0 ? "first" : "other"));
                nothing_is_left(f);
                runs++;
                if (h > 0 && h < 3)
                    cli_same(f, "first/model.safetensors", "other/model.safetensors");
                if (h > 0)
                    cli_ok(f, "rm -r $D/other");
            }
            cli_ok(f, "rm -r $D/first");
        }
    print_message("%d runs\n", runs);
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

/* SBP_CUDA_TIMELINE: a line for each command, more than are kept at a time; no bit changes. */
static void test_timeline(void **state) {
    io_fixture *f = *state;
    int count, products = 0;
    if (!cli_has_device(f, "cuda", "a timeline"))
        skip();
    cli_ok(f, COMPILE "--backend cuda --arch sm_90a --dtype fp32 --chunk 7 --head-chunk 5 --offload host");
#define RUN "$R $D/p --data " ROWS " --batch-tokens 94 --dump-gradients $D/"
    cli_ok(f, RUN "first.safetensors");
    cli_ok(f,
           "SBP_FAKE_CUDA=report SBP_FAKE_CUDA_LOG=$D/log SBP_CUDA_TIMELINE=$D/t.jsonl " RUN "g.safetensors");
    nothing_is_left(f);
    cli_same(f, "first.safetensors", "g.safetensors");
    const sbp_json **lines = cli_lines(f, "t.jsonl", &count);
    assert_true(count > 1024);
    for (int i = 0; i < count; i++) {
        const char *name;
        assert_ok(f, sbp_json_get_string(f->diag, lines[i], "command", SBP_JSON_REQUIRED, &name));
        products += strcmp(name, "gemm") == 0;
        assert_true(cli_number(f, lines[i], "begin_ms") >= 0 && cli_number(f, lines[i], "ms") >= 0);
    }
    cli_ok(f, "printf '{\"products\": %d}\n' $(grep -c ^cublasLtMatmul $D/log) > $D/count.json");
    assert_true(products > 0 && products == (int)cli_number(f, cli_json(f, "count.json"), "products"));
    cli_fails(f, 4, "SBP_CUDA_TIMELINE: cannot write", "SBP_CUDA_TIMELINE=$D/none/t " RUN "g.safetensors");
    cli_fails(f, 4, "SBP_CUDA_TIMELINE: cannot be written",
              "SBP_CUDA_TIMELINE=/dev/full " RUN "g.safetensors");
#undef RUN
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_auto, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_same_bits_in_any_order, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_training, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_memory_is_planned, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_stories, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_stories_in_bf16, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_placements_and_modes, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_timeline, cli_setup, io_teardown),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
