/* test_cli_null.c: the backend that authors of others copy (backends/null): who names it is told what it is
 * and gets plans, and no run; nobody else meets it. */
#include "tests/cli/cli_testing.h"

/* Plans are made, looked at and tried without a device; a run ends at the first command. */
static void test_plans_and_no_run(void **state) {
    io_fixture *f = *state;
    cli_put(f, "data.jsonl", "{\"text\": \"Once upon a time\"}\n");
    cli_ok(f, "$C compile $S --backend null --seq-len 64 -o $D/plan.bin");
    assert_non_null(strstr(cli_unfolded(f, "err"), "warning: backend null runs no command yet"));
    cli_ok(f, "$C inspect $D/plan.bin && grep -q 'on null in fp32' $D/out");
    cli_ok(f, "$R $D/plan.bin --data $D/data.jsonl --dry-run");
    cli_fails(f, 2, "backend null has no kernel for command 'gather'",
              "$R $D/plan.bin --data $D/data.jsonl --steps 1 --out $D/out1");
    cli_fails(f, 2, "backend null has no kernel for command 'gather'",
              "$R $S --backend null --data $D/data.jsonl --steps 1 --out $D/out2");
    assert_false(cli_exists(f, "out1/model.safetensors") || cli_exists(f, "out2/model.safetensors"));
}

/* No help, list or message has the name; auto and the list of what was expected do not know it. */
static void test_nobody_is_offered_it(void **state) {
    static const char *const commands[] = {"$C --help all", "$C --help-markdown",
                                           "$R --help all", "$R --devices",
                                           "$R doctor",     "$C compile $S --backend nul -o $D/x"};
    io_fixture *f = *state;
    for (int i = 0; i < SBP_COUNT(commands); i++) {
        cli(f, commands[i]);
        assert_true(strlen(cli_text(f, "out")) + strlen(cli_text(f, "err")) > 0);
        cli_ok(f, sbp_arena_printf(f->arena, "! (%s) 2>&1 | grep -w null", commands[i]));
    }
    cli_ok(f, "$C compile $S -o $D/auto.bin && ! grep -w null $D/err && grep -q 'backend  *cpu' $D/err");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_plans_and_no_run, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_nobody_is_offered_it, cli_setup, io_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
