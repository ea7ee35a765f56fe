/* Memory that is gone for good, for libraries and for messages too: every allocation from the n-th on fails
 * (tests/common/fail_from.c). Whatever n, a command ends with status 3 and says what it had no memory for, or
 * works. SBP_TEST_ALL=1: every n. */
#include "tests/cli/cli_testing.h"

#define TEXT(...) sbp_arena_printf(f->arena, __VA_ARGS__)

typedef struct command {
    const char *name, *line;
    int step; /* of n, by default */
} command;

static const command commands[] = {
    {"score", "$R $D/p --data $D/rows.jsonl --score $D/s.jsonl", 9},
    {"train",
     "$R $D/p --data $D/rows.jsonl --eval $D/rows.jsonl --steps 2 --batch-size 1 --out $D/o --overwrite", 17},
    {"dry run", "$R $D/p --data $D/rows.jsonl --dry-run", 17},
    {"tokenize", "$R tokenize $S <$D/text", 17},
    {"compile", "$C compile $S -o $D/q --seq-len 64 --chunk 32 --backend cpu", 61},
};

/* "out of memory" alone says nothing. */
static bool names_it(const char *text) {
    for (const char *at = text; (at = strstr(at, "memory")); at++)
        if (at[6] && at[6] != '\n')
            return true;
    return false;
}

static void try_one(io_fixture *f, const command *c, int n) {
    int status =
        cli(f, TEXT("SBP_FAIL_FROM=%d; export SBP_FAIL_FROM; LD_PRELOAD=" SBP_FAIL_FROM_LIBRARY "; export "
                    "LD_PRELOAD; exec %s",
                    n, c->line));
    const char *text = cli_text(f, "err");
    if (status != 0 && (status != 3 || !names_it(text)))
        fail_msg("%s, allocation %d: status %d, '%s'", c->name, n, status, text);
}

static void test_all_from_the_nth_on(void **state) {
    io_fixture *f = *state;
#ifdef __SANITIZE_ADDRESS__
    print_message("skipped: allocations that fail for libraries: the sanitizer has its own\n");
    skip();
#endif
    cli_put(f, "rows.jsonl", "{\"text\": \"Once upon a time, there was\"}\n{\"text\": \"a dog\"}\n");
    cli_put(f, "text", "\"Once upon a time\"\n");
    cli_ok(f, "$C compile $S -o $D/p --seq-len 256 --chunk 64");
    for (int i = 0; i < SBP_COUNT(commands); i++) {
        cli_ok(f, TEXT("SBP_COUNT_TO=$D/count; export SBP_COUNT_TO; LD_PRELOAD=" SBP_FAIL_FROM_LIBRARY
                       "; export LD_PRELOAD; exec %s",
                       commands[i].line));
        int total = atoi(cli_text(f, "count")), tried = 0;
        assert_true(total > 10);
        for (int n = 1; n <= total;
             n += i == 0 && n >= 109 && n <= 121 ? 1 : testing_sweep(commands[i].step, 1)) {
            try_one(f, &commands[i], n);
            tried++;
        }
        printf("%s: %d allocations, %d tried\n", commands[i].name, total, tried);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_all_from_the_nth_on, cli_setup, io_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
