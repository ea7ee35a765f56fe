/* Rows that say which experts their tokens go to (--routed-experts, "routed_experts"): gradients against
 * transformers in float64 whose routers choose what the rows say (tests/golden/make_routed.py), however a
 * step is cut; the router's own choice where rows say nothing; what is refused. */
#include "tests/cli/cli_testing.h"

#define TEXT(...) sbp_arena_printf(f->arena, __VA_ARGS__)
#define MODEL "$G/qwen3_moe_balanced/model"
#define COMPILE "$C compile " MODEL " --router-aux-loss-coef 0 --dtype fp64 --seq-len 94 "
#define IDS "{\"input_ids\":[3,4,5],\"routed_experts\":"

/* A softmax over all experts, one over the chosen, sigmoids with a correction and groups, a softmax that is
 * normalized behind the choice. */
static const struct {
    const char *name, *model, *compile;
    int rows;
} cases[] = {{"qwen3_moe", "qwen3_moe_balanced", "--router-aux-loss-coef 0", 94},
             {"gpt_oss", "gpt_oss_balanced", "--router-aux-loss-coef 0", 55},
             {"deepseek_v3", "deepseek_v3_groups", "", 55},
             {"mixtral", "mixtral_v", "", 78}};

static const cli_cut cuts[] = {
    {"--dtype fp64 --chunk 7 --segment 2 --checkpoint-every 2", SBP_TOLERANCE_F64},
    {"--dtype fp32 --backward standard", SBP_TOLERANCE_F32},
};

static void test_gradients(void **state) {
    io_fixture *f = *state;
    for (int i = 0; i < SBP_COUNT(cases); i++)
        for (int c = 0; c < SBP_COUNT(cuts); c++)
            cli_check_cut(
                f, TEXT("%s, %s", cases[i].name, cuts[c].compile), &cuts[c],
                TEXT("$C compile $G/%s/model --routed-experts on --seq-len %d %s", cases[i].model,
                     cases[i].rows, cases[i].compile),
                TEXT("--data tests/data/routed/%s.jsonl --batch-tokens %d", cases[i].name, cases[i].rows),
                TEXT("tests/data/routed/%s.safetensors", cases[i].name));
}

/* From a cache of the data, twice, and in several micro-batches. */
static void test_kept(void **state) {
    io_fixture *f = *state;
    cli_ok(f, COMPILE "--routed-experts on -o $D/p");
    for (int i = 0; i < 2; i++) {
        cli_ok(f, "$R $D/p --data tests/data/routed/qwen3_moe.jsonl --batch-tokens 94 --data-cache $D/kept "
                  "--dump-gradients $D/got --out none");
        cli_compare(f, "kept", io_path(f, "got"), "tests/data/routed/qwen3_moe.safetensors",
                    SBP_TOLERANCE_F64);
    }
}

/* Bits are those of a plan that does not ask, which says that it leaves out what rows have. */
static void test_chosen(void **state) {
    io_fixture *f = *state;
    cli_ok(f, COMPILE "--routed-experts on -o $D/p && $R $D/p --data $G/qwen3_moe_balanced/train.jsonl "
                      "--batch-tokens 94 --dump-gradients $D/a --out none");
    cli_ok(f, COMPILE "-o $D/p && $R $D/p --data tests/data/routed/qwen3_moe.jsonl --batch-tokens 94 "
                      "--dump-gradients $D/b --out none 2>$D/said && grep -q 'is not read' $D/said");
    cli_same(f, "a", "b");
}

static void test_refused(void **state) {
    static const struct {
        const char *ids, *message;
    } wrong[] = {
        {"[[[0,1],[1,5]]]", "expected as many items as the row has tokens (3, or one less), found 1"},
        {"[[[0,1],[1,2]],[[0,1],[1,5]]]",
         "data row 1 (from 1): 'routed_experts': token 1 goes to expert 5 in layer 1"},
        {"[[[0,1],[1,2]],[[3,3],[1,2]]]",
         "token 1 goes to expert 3 in layer 0 of experts (both from 0), twice"},
        {"[[[0,1]],[[0,1]]]", "has 1 layers of 2 experts; the model has 2 with experts"},
        {"[[[0],[1]],[[0],[1]]]", "has 2 layers of 1 experts; the model has 2 with experts"},
        {"[[[0,1],[1]],[[0,1],[1,2]]]", "expected 2 items, as the first list there has, found 1"},
        {"[[[0,1],[1,-1]],[[0,1],[1,2]]]", "expected the id of an expert, found -1"},
        {"[]", "expected at least one item, found none"}};
    io_fixture *f = *state;
    cli_ok(f, COMPILE "--routed-experts on -o $D/p");
    for (int i = 0; i < SBP_COUNT(wrong); i++)
        cli_fails(
            f, SBP_INPUT, wrong[i].message,
            TEXT("echo '" IDS "%s}' >$D/rows.jsonl; $R $D/p --data $D/rows.jsonl --out none", wrong[i].ids));
    cli_fails(f, SBP_USAGE, "have no experts that rows could name",
              "$C compile $G/llama_bias/model --routed-experts on -o $D/p");
    cli_fails(f, SBP_USAGE, "each row of data says which experts its prompt goes to",
              "$R $D/p --data tests/data/routed/qwen3_moe.jsonl --share-prompt on --out none");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_gradients, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_kept, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_chosen, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_refused, cli_setup, io_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
