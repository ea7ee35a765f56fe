/* test_cli_tune.c: matmuls by algorithms that were measured (--tune), on the fakes of tests/cuda/fake: what
 * is chosen is the run's, whatever happens to it; and matmuls in TF32 (--tf32). */
#include "tests/cli/cli_testing.h"
#include "tests/common/sweep.h"

#include <string.h>

#define MODEL "tests/golden/llama_plain/model"
#define ROWS "tests/golden/llama_plain/train.jsonl"
#define COMPILE "$C compile " MODEL " -o $D/p --seq-len 94 --chunk 40 --head-chunk 40 --dtype fp32 "
#define CUDA "--backend cuda --arch sm_90a "
#define RUN "$R $D/p --data " ROWS " --batch-size 2 --lr 1e-2 --schedule constant --save-every 2 "
#define FIRST "--steps 4 --tune $D/t --out $D/a "

static bool says(io_fixture *f, const char *message) {
    return strstr(cli_text(f, "err"), message) != NULL;
}

static void expect(io_fixture *f, const char *message) {
    if (!says(f, message))
        fail_msg("no '%s' in '%s'", message, cli_text(f, "err"));
}

static void expect_not(io_fixture *f, const char *message) {
    if (says(f, message))
        fail_msg("'%s' in '%s'", message, cli_text(f, "err"));
}

/* The choices that a run makes are kept, taken again, and give the same bits; without them there are others.
 */
static void test_kept(io_fixture *f) {
    cli_ok(f, RUN FIRST);
    expect(f, " matmuls were measured in ");
    cli_same(f, "t", "a/matmuls.txt");
    cli_ok(f, "grep -q 'device sm_90 Fake GPU' $D/t && grep -q 'cublasLt 13.1.0' $D/t");
    cli_ok(f, "test $(grep -c '^matmul ' $D/t) -gt 8 && ! grep -qv "
              "'^matmul.* 3 [0-9a-f]*$\\|^matmuls\\|^device\\|^cublas\\|^checksum' $D/t");
    cli_ok(f, "grep -q '^matmul 40 ' $D/t && ! grep -q '^matmul 14 ' $D/t"); /* 94 rows: a last chunk of 14 */
    cli_ok(f, "grep -q '\"matmuls\": {\"file\": \"matmuls.txt\", \"hash\"' $D/a/run.json");
    cli_ok(f, "grep -q '\"matmuls\": \"[0-9a-f]*\"' $D/a/checkpoint-2/trainer_state.json");
    cli_ok(f, "SBP_FAKE_CUDA=seed=5 " RUN "--steps 4 --tune $D/t --out $D/b");
    expect_not(f, "were measured");
    cli_same(f, "a/model.safetensors", "b/model.safetensors");
    cli_ok(f, RUN "--steps 4 --tune none/of/it --out $D/none; test $? = 4"); /* no such folder */
    cli_ok(f, RUN "--steps 4 --out $D/c && ! cmp -s $D/a/model.safetensors $D/c/model.safetensors");
    cli_ok(f, "! test -e $D/c/matmuls.txt && ! grep -q matmuls $D/c/checkpoint-2/trainer_state.json");
    cli_ok(f, "cp $D/t $D/kept");
}

/* A run that goes on takes what it took, though its file is gone. */
static void test_resumed(io_fixture *f) {
    cli_ok(f, "rm -rf $D/b $D/t; cp $D/kept $D/t; " RUN "--steps 2 --tune $D/t --out $D/b; rm $D/t");
    cli_ok(f, RUN "--out $D/b --resume --steps 4");
    expect_not(f, "were measured");
    expect_not(f, "round differently");
    cli_same(f, "a/model.safetensors", "b/model.safetensors");
    cli_fails(f, 2, "--resume cannot change --tune (it was ",
              RUN "--out $D/b --resume --steps 6 --tune $D/other");
    cli_ok(f, "SBP_FAKE_CUDA=library=7 " RUN "--out $D/b --resume --steps 5");
    expect(f, "was tuned for device sm_90 Fake GPU, cublasLt 13.1.0; this machine has device sm_90 Fake GPU, "
              "cublasLt 13.1.7");
    expect(f, "was computed with other algorithms of matmuls");
    cli_ok(f, "rm $D/b/matmuls.txt; " RUN "--out $D/b --resume --steps 6");
    expect(f, "matmuls.txt', the algorithms of the run's matmuls, is missing");
    cli_ok(f, RUN "--steps 1 --out $D/a --overwrite && ! test -e $D/a/matmuls.txt");
}

/* A file of another machine, a damaged one, one that is none. */
static void test_refused(io_fixture *f) {
    cli_fails(f, 2, "name another file, or remove this one",
              "cp $D/kept $D/t; SBP_FAKE_CUDA=library=7 " RUN "--steps 1 --tune $D/t --out $D/d");
    for (int i = 0; i < 4; i++) {
        static const char *const damage[] = {"sed s/bf16/f32/\\;s/f32/f16/ $D/kept >$D/t",
                                             "sed 4d $D/kept >$D/t", "head -c 300 $D/kept >$D/t", ": >$D/t"};
        cli_ok(f, damage[i]);
        cli_fails(f, 2, "is not a file of chosen algorithms (--tune), or damaged",
                  RUN "--steps 1 --tune $D/t --out $D/d");
    }
    cli_fails(f, 2, "is not a file of chosen algorithms",
              RUN "--steps 1 --tune " ROWS " --out $D/d && git diff --quiet " ROWS);
    cli_ok(f, "! test -e $D/d"); /* a start that is refused has changed nothing */
}

/* A plan may name the file. */
static void test_named_by_plan(io_fixture *f) {
    cli_ok(f, "cp $D/kept $D/t; P=$PWD; cd $D; $C compile $P/" MODEL " -o p --seq-len 94 --chunk 40 "
              "--head-chunk 40 --dtype fp32 " CUDA "--tune t");
    cli_ok(f, RUN "--steps 4 --out $D/e");
    expect_not(f, "were measured");
    cli_ok(f, "cmp $D/e/matmuls.txt $D/kept && grep -q '\"tune\": \"/' $D/e/run.json");
    cli_fails(f, 2, "backend cpu has one way to compute each matmul", COMPILE "--backend cpu --tune $D/t");
    cli_fails(f, 2, "backend cpu has one way to compute each matmul",
              COMPILE "--backend cpu && " RUN "--steps 1 --tune $D/t --out $D/d");
}

/* Wherever things live, whatever they are kept in: a run that was interrupted has the bits of one that was
 * not, from a file that another plan has filled before. */
static void test_settings(void **state) {
    io_fixture *f = *state;
    static const char *const settings[] = {
        "--dtype bf16 --offload host --save q+attn_out+lse --chunk 7 --head-chunk 16",
        "--dtype fp32 --backward standard --accumulate 1 --clip none --optimizer sgd",
        "--dtype bf16 --state-dtype int8 --param-dtype bf16 --master none --chunk 33 --checkpoint-every 2",
        "--dtype fp32 --offload params+states --segment 2 --chunk 94 --freeze '*.mlp.*'",
        "--dtype fp32 --tf32 on --backward checkpoint --head-chunk 5"};
    int count = testing_all() ? SBP_COUNT(settings) : 2;
    if (!cli_has_device(f, "cuda", "measured matmuls"))
        skip();
    for (int i = 0; i < count; i++) {
        cli_ok(f, sbp_arena_printf(f->arena, "$C compile " MODEL " -o $D/p --seq-len 94 " CUDA "%s",
                                   settings[i]));
        cli_ok(f, "rm -rf $D/a $D/b; " RUN "--steps 3 --tune $D/t --out $D/a");
        expect(f, " matmuls were measured in ");
        cli_ok(f, RUN "--steps 2 --tune $D/t --out $D/b");
        expect_not(f, "were measured");
        cli_ok(f, RUN "--resume --steps 3 --out $D/b");
        expect_not(f, "round differently");
        cli_same(f, "a/model.safetensors", "b/model.safetensors");
    }
}

static void test_tune(void **state) {
    io_fixture *f = *state;
    if (!cli_has_device(f, "cuda", "measured matmuls"))
        skip();
    cli_ok(f, COMPILE CUDA);
    test_kept(f);
    test_resumed(f);
    test_refused(f);
    test_named_by_plan(f);
}

/* Factors of fp32 rounded to 10 bits: another plan, whose gradients are near those without. */
static void test_tf32(void **state) {
    io_fixture *f = *state;
    if (!cli_has_device(f, "cuda", "matmuls in TF32"))
        skip();
#define DUMP "$R $D/p --data " ROWS " --dump-gradients $D/"
    cli_ok(f, COMPILE CUDA " && " DUMP "fp32.safetensors");
    cli_ok(f, COMPILE CUDA "--tf32 on && " DUMP "tf32.safetensors");
    const char *got = sbp_arena_strdup(f->arena, io_path(f, "tf32.safetensors"));
    double off = cli_compare_some(f, "TF32", got, io_path(f, "fp32.safetensors"), SBP_TOLERANCE_TF32);
    print_message("gradients in TF32 are off by %.2g\n", off);
    assert_true(off > SBP_TOLERANCE_F32);
    cli_fails(f, 2, "--precision tf32=on needs --backend cuda", COMPILE "--backend cpu --tf32 on");
    cli_fails(f, 2, "--precision tf32=on needs --backend cuda",
              "$C compile " MODEL " -o $D/p " CUDA "--dtype bf16 --tf32 true");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_tune, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_settings, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_tf32, cli_setup, io_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
