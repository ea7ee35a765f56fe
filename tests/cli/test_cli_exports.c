/* Models that torch has exported (tests/golden/make_onnx.py) through the real programs: experts, sinks, side
 * values and states, which ONNX spells out, have the gradients of their goldens; constants of an export are
 * float32. However a step is cut, they are the same. */
#include "tests/cli/cli_testing.h"

static void test_exports(void **state) {
    io_fixture *f = *state;
    static const char *const names[] = {"gpt_oss_v", "gemma4_26b_a4b_v", "gemma4_e2b_released_v",
                                        "granite_hybrid_groups", "qwen3_5_dense_v"};
    static const cli_cut whole = {"", SBP_TOLERANCE_FROM_F32},
                         cuts = {"--chunk 7 --head-chunk 5 --segment 2 --checkpoint-every 2",
                                 SBP_TOLERANCE_F64};
    for (int i = 0; i < SBP_COUNT(names); i++) {
        const char *golden = sbp_arena_printf(f->arena, "tests/golden/%s", names[i]);
        const sbp_json *expect;
        assert_ok(
            f, sbp_json_read(f->arena, f->diag, sbp_file_join(f->arena, golden, "expect.json"), 0, &expect));
        int64_t rows = (int64_t)cli_number(f, expect, "rows");
        const char *compile =
            sbp_arena_printf(f->arena, "$C compile %s/model/export23.json --dtype fp64 --seq-len %lld",
                             golden, (long long)rows);
        const char *run =
            sbp_arena_printf(f->arena, "--data %s/train.jsonl --batch-tokens %lld", golden, (long long)rows);
        cli_check_cut(f, names[i], &whole, compile, run,
                      sbp_file_join(f->arena, golden, "grads.safetensors"));
        cli_ok(f, "mv $D/got $D/whole");
        cli_check_cut(f, names[i], &cuts, compile, run, io_path(f, "whole"));
    }
}

/* Experts that files keep one by one are one tensor in torch; cut or not, their gradients are the same. */
static void test_fused(void **state) {
    io_fixture *f = *state;
    static const cli_cut cuts = {"--chunk 7 --head-chunk 5", SBP_TOLERANCE_F64};
    static const char compile[] =
        "$C compile tests/golden/deepseek_v3_groups/model/export23.json --dtype fp64 --seq-len 55",
                      run[] = "--data tests/golden/deepseek_v3_groups/train.jsonl --batch-tokens 55";
    cli_ok(f, sbp_arena_printf(f->arena, "%s -o $D/p && $R $D/p %s --out none --dump-gradients $D/whole",
                               compile, run));
    cli_check_cut(f, "deepseek_v3_groups", &cuts, compile, run, io_path(f, "whole"));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test_setup_teardown(test_exports, cli_setup, io_teardown),
                                       cmocka_unit_test_setup_teardown(test_fused, cli_setup, io_teardown)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
