/* What a device has no kernel for is refused when the plan is made, by what config.json calls it, not
 * when it runs. */
#include "tests/cli/cli_testing.h"

#define TEXT(...) sbp_arena_printf(f->arena, __VA_ARGS__)

static void test_cpu(void **state) {
    static const struct {
        const char *model, *fits, *too_much, *message;
    } limits[] = {
        {"llama_mqa", "--set head_dim=512", "--set head_dim=514", "(head_dim): at most 512"},
        {"llama_mqa", "--set num_attention_heads=96", "--set num_attention_heads=97",
         "97 query heads for each head of keys and values (num_attention_heads, num_key_value_heads): at "
         "most 96"},
        {"qwen3_5_trl", "--set linear_key_head_dim=256", "--set linear_key_head_dim=257",
         "at most 256 x 256"},
        {"granite_hybrid_groups", "--set mamba_d_state=256", "--set mamba_d_state=260", "at most 256 x 256"},
        {"qwen3_moe_balanced", "--set num_experts=300 --set num_experts_per_tok=256",
         "--set num_experts=300 --set num_experts_per_tok=257",
         "257 experts for each row (num_experts_per_tok): at most 256"},
    };
    io_fixture *f = *state;
    for (int i = 0; i < SBP_COUNT(limits); i++) {
        const char *compile = "$C compile $D/config.json -o $D/p --backend cpu --seq-len 16";
        cli_ok(f, TEXT("cp $G/%s/model/config.json $D",
                       limits[i].model)); /* no weights of other shapes beside it */
        cli_ok(f, TEXT("rm -f $D/p; %s %s && test -f $D/p", compile, limits[i].fits));
        cli_fails(f, 1, limits[i].message, TEXT("rm -f $D/p; %s %s", compile, limits[i].too_much));
        assert_non_null(strstr(cli_unfolded(f, "err"), "use another --backend"));
        assert_false(cli_exists(f, "p"));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_cpu, cli_setup, io_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
