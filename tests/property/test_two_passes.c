/* test_two_passes.c: the head in two passes, in numbers: small models with an objective that reads whole
 * documents, in many settings of the schedule (whole_step.h). */
#include "tests/common/compile_model.h"
#include "tests/common/whole_step.h"

#define GOLDEN "tests/golden/"

static void untied_head(void **state) {
    (void)state;
    whole_step_check(GOLDEN "llama_bias/model", false);
}

static void tied_head(void **state) {
    (void)state;
    whole_step_check(GOLDEN "qwen3_tied/model", false);
}

static void capped_logits_and_windows(void **state) {
    (void)state;
    whole_step_check(GOLDEN "gemma3_softcap/model", false);
}

/* Parameters whose gradients are one value, parameters used twice, keys that are values. */
static void odd_layers(void **state) {
    (void)state;
    whole_step_check("tests/data/onnx/odd_layers.json", false);
}

/* The head reads another width than the layers pass on: it takes in the projection between them, and there
 * are as many segments as layers. */
static void odd_head(void **state) {
    (void)state;
    testing t = testing_open(1);
    compile_request request = compile_request_for("tests/data/onnx/odd_head.json", WHOLE_STEP_ROWS, 7, 5);
    sbp_program *p;
    testing_check(&t, compile_model(t.arena, t.diag, &request, &p));
    assert_int_equal(whole_step_calls(p, "accumulate", "layer0.backward"), 3);
    testing_close(&t);
    whole_step_check("tests/data/onnx/odd_head.json", false);
    whole_step_check("tests/data/onnx/two_widths.json", false);
}

/* The same models need one pass when the loss is a sum over tokens. */
static void sums_over_tokens_need_one_pass(void **state) {
    (void)state;
    testing t = testing_open(1);
    compile_request request = compile_request_for(GOLDEN "qwen3_tied/model", WHOLE_STEP_ROWS, 7, 5);
    sbp_program *p;
    testing_check(&t, compile_model(t.arena, t.diag, &request, &p));
    assert_int_equal(whole_step_calls(p, "accumulate", "head.score"), 0);
    assert_int_equal(whole_step_calls(p, "accumulate", "objective.gradient"), 0);
    assert_int_equal(whole_step_calls(p, "accumulate", "head.backward"), 1);
    testing_close(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(untied_head),
                                       cmocka_unit_test(tied_head),
                                       cmocka_unit_test(capped_logits_and_windows),
                                       cmocka_unit_test(odd_layers),
                                       cmocka_unit_test(odd_head),
                                       cmocka_unit_test(sums_over_tokens_need_one_pass)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
