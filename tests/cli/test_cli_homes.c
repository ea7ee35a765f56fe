/* test_cli_homes.c: where things live changes no bit. Settings are drawn, with a home for every class
 * (device, host, disk); weights after two steps, and optimizer states, are those of the same settings with
 * everything on the device. */
#include "tests/cli/drawing.h"

static void train(io_fixture *f, const char *settings, const char *homes, const char *out) {
    cli_ok(f, sbp_arena_printf(
                  f->arena,
                  "rm -rf $D/%s; $C compile $S -o $D/p --seq-len 96 %s %s && $R $D/p --data $D/d.jsonl "
                  "--out $D/%s --steps 2 --batch-size 2 --lr 1e-3 --save-every 2",
                  out, settings, homes, out));
}

static void test_homes_change_no_bit(void **state) {
    io_fixture *f = *state;
    sbp_rng rng = {19};
    int draws = getenv("SBP_TEST_ALL") ? 200 : 12, disk = 0, host = 0, states = 0;
    cli_put(f, "d.jsonl",
            "{\"text\":\"Once upon a time there was a little dog who liked to run.\"}\n"
            "{\"text\":\"Lily and Tom saw a big red ball.\"}\n"
            "{\"text\":\"The sun was hot. Sam drank water.\"}\n"
            "{\"text\":\"One day a bird sang in the tree.\"}\n");
    for (int i = 0; i < draws; i++) {
        const char *types = sbp_arena_printf(f->arena, "%s %s",
                                             PICK(&rng, "", "--grad-dtype bf16", "--dtype bf16",
                                                  "--dtype bf16 --param-dtype fp32", "--param-dtype bf16",
                                                  "--dtype bf16 --master none",
                                                  "--dtype bf16 --master none --rounding nearest"),
                                             PICK(&rng, "", "--state-dtype bf16", "--state-dtype int8"));
        const char *settings =
            sbp_arena_printf(f->arena, "--chunk %s --segment %s --checkpoint-every %s --save %s %s %s %s",
                             PICK(&rng, "16", "96", "7"), PICK(&rng, "1", "2", "3"),
                             PICK(&rng, "1", "2", "3"), PICK(&rng, "none", "gate+up", "attn_out+lse"), types,
                             PICK(&rng, "", "--clip none --accumulate 1"),
                             PICK(&rng, "", "--optimizer sgd", "--optimizer sgd-momentum", "--optimizer lion",
                                  "--freeze '*mlp*'"));
        const char *homes = draw_homes(f, &rng);
        printf("  %s %s\n", settings, homes); /* ctest shows it when the test fails */
        train(f, settings, "--offload none", "here");
        train(f, settings, homes, "away");
        cli_same(f, "here/model.safetensors", "away/model.safetensors");
        if (cli_exists(f, "here/checkpoint-2/optimizer.safetensors")) { /* SGD has none */
            cli_same(f, "here/checkpoint-2/optimizer.safetensors", "away/checkpoint-2/optimizer.safetensors");
            states++;
        }
        disk += strstr(homes, ":disk") != NULL;
        host += strstr(homes, ":disk") == NULL || strstr(homes, "+") != NULL;
    }
    assert_true(disk > 0 && host > 0 && states > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_homes_change_no_bit, cli_setup, io_teardown)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
