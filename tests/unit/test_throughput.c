/* Throughput as text, and what follows where a type has none of its own. */
#include "ir/target/throughput.h"
#include "tests/unit/io_testing.h"

static const char text[] =
    "fp32_flops 4e11 bf16_flops 8e11 # products\nfp32_attention 3e11 bf16_attention 5e11\n"
    "half_rows 20 memory_bytes 5e10 row_ops 4e10 link_bytes 2e10 host_bytes 1e10\n"
    "host_ops 3e10 disk_bytes 1e9 disk_write_bytes 5e8 command_seconds 1e-6";

static void test_text(void **state) {
    io_fixture *f = *state;
    sbp_throughput a, b;
    assert_ok(f, sbp_throughput_parse(f->arena, f->diag, "throughput", text, &a));
    assert_true(a.matmul[SBP_BF16] == 8e11 && a.in == 2e10 && a.out == 2e10);
    assert_true(a.disk_read == 1e9 && a.disk_write == 5e8); /* what comes later counts */
    assert_true(sbp_throughput_matmul(&a, SBP_F64) == 2e11 &&
                sbp_throughput_attention(&a, SBP_F64) == 1.5e11);
    assert_true(sbp_throughput_matmul(&a, SBP_F16) == 4e11);
    sbp_text printed;
    sbp_text_init(&printed, f->arena);
    a.matmul[SBP_F64] = 1.0 / 3;
    sbp_throughput_print(&printed, &a);
    assert_ok(f, sbp_throughput_parse(f->arena, f->diag, "printed", printed.data, &b));
    assert_memory_equal(&a, &b, sizeof a);
}

static void test_what_is_wrong(void **state) {
    io_fixture *f = *state;
    static const struct {
        const char *text, *message;
    } wrong[] = {{"speed 3", "'speed' is not a rate"},
                 {"fp32_flops fast", "'fast' is not a positive number"},
                 {"fp32_flops -1", "not a positive number"},
                 {"fp32_flops", "fp32_flops: '' is not a positive"},
                 {"fp32_flops inf", "not a positive"},
                 {"fp32_flops nan", "not a positive"},
                 {"fp32_flops 1", "throughput needs 'bf16_flops'"}};
    for (int i = 0; i < SBP_COUNT(wrong); i++) {
        sbp_throughput throughput;
        sbp_diag_clear(f->diag);
        assert_int_equal(sbp_throughput_parse(f->arena, f->diag, "throughput", wrong[i].text, &throughput),
                         SBP_INPUT);
        if (!strstr(sbp_diag_text(f->diag, SBP_ERROR), wrong[i].message))
            fail_msg("'%s': '%s'", wrong[i].text, sbp_diag_text(f->diag, SBP_ERROR));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_text, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_what_is_wrong, io_setup, io_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
