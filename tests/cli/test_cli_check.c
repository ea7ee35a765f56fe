/* test_cli_check.c: `sbprun check`: plans that are right pass; what it cannot check it says, by its exit status.
 * That it sees what is wrong show the mutants of tests/mutation: kernels, schedules and executors with faults,
 * of which this test is. */
#include "tests/cli/cli_testing.h"

/* Rows longer than pieces of the CPU's row kernels (ROW_WHOLE), two heads to each of keys and values; chunks and
 * documents that begin anywhere. */
static const char wide[] =
    "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"hidden_size\": 96, "
    "\"intermediate_size\": 1160, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, "
    "\"num_key_value_heads\": 2, \"head_dim\": 16, \"vocab_size\": 300, "
    "\"max_position_embeddings\": 512, \"rms_norm_eps\": 1e-6, \"hidden_act\": \"silu\", "
    "\"tie_word_embeddings\": false}";

/* The findings of a check, with this status; of a part, and with this verdict: how many. */
static const sbp_json *check(io_fixture *f, int expected, const char *arguments) {
    int status = cli(f, sbp_arena_printf(f->arena, "$R check %s --json", arguments));
    if (status != expected)
        fail_msg("check %s: exit status %d, expected %d: %s%s", arguments, status, expected,
                 cli_text(f, "out"), cli_text(f, "err"));
    return sbp_json_member(cli_json(f, "out"), "findings");
}

static int count(const sbp_json *findings, const char *part, const char *verdict) {
    int found = 0;
    for (int64_t i = 0; findings && i < findings->count; i++)
        found += (!part || strcmp(sbp_json_member(&findings->items[i], "part")->string, part) == 0) &&
                 (!verdict || strcmp(sbp_json_member(&findings->items[i], "verdict")->string, verdict) == 0);
    return found;
}

static void test_right(void **state) {
    static const char *const plans[] = {"--chunk 32 --seq-len 96",
                                        "--chunk 24 --seq-len 96 --dtype fp64 --segment 2"};
    io_fixture *f = *state;
    cli_ok(f, "mkdir $D/wide");
    cli_put(f, "wide/config.json", wide);
    for (int i = 0; i < SBP_COUNT(plans); i++) {
        const sbp_json *findings =
            check(f, 0, sbp_arena_printf(f->arena, "$D/wide --weights random:3 %s", plans[i]));
        assert_int_equal(count(findings, "loss along gradient", "right"), 12); /* kinds of parameters */
        assert_int_equal(count(findings, "schedule", "right"), 1);
        assert_int_equal(count(findings, "twice", "right"), 1);
        assert_int_equal(count(findings, NULL, "right"), (int)findings->count);
    }
}

static void test_plan_and_data(void **state) {
    io_fixture *f = *state;
    cli_ok(f, "$C compile $S -o $D/p --seq-len 200 --chunk 64 --lora r=4 --optimizer none");
    cli_put(f, "rows.jsonl",
            "{\"text\": \"Once upon a time there was a bird.\"}\n{\"text\": \"It could not fly.\"}\n");
    const sbp_json *findings = check(f, 0, "$D/p --data $D/rows.jsonl");
    assert_int_equal(count(findings, "loss along gradient", "right"), 4); /* A and B of two modules */
    cli_ok(f, "$R check $D/p --data $D/rows.jsonl");
    if (!strstr(cli_text(f, "out"), "\nright: "))
        fail_msg("no verdict: %s", cli_text(f, "out"));
}

static void test_cannot(void **state) {
    io_fixture *f = *state;
    cli_ok(f, "$C compile $S -o $D/p --seq-len 64 && cp -r $S $D/moved && "
              "$C compile $D/moved -o $D/q --seq-len 64 && rm -r $D/moved");
    cli_fails(f, 3, "what several ranks do together is not checked", "$R check $S --ranks 2");
    cli_fails(f, 2, "--resume", "$R check $D/p --resume");
    cli_fails(f, 2, "from files", "$R check $D/p --data -");
    const sbp_json *findings = check(f, 3, "$D/q --weights $S/model.safetensors");
    assert_int_equal(count(findings, "schedule", "not checked"), 1);
    cli_put(f, "rows.jsonl", "{\"input_ids\": [5, 6, 7], \"labels\": [-100, -100, -100]}\n");
    cli_fails(f, 3, "no gradient to check", "$R check $D/p --data $D/rows.jsonl");
    cli_ok(f, "$R check --help | grep -q '^usage: sbprun check'");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_right, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_plan_and_data, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_cannot, cli_setup, io_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
