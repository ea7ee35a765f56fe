/* What a process says of the ways that it went: a line for each that ends well, names in it that
 * were crossed. */
#include "ir/base/census.h"
#include "tests/unit/io_testing.h"

#include <sys/wait.h>
#include <unistd.h>

static const char *lines(io_fixture *f) {
    const char *text = "";
    size_t length;
    if (sbp_file_exists(io_path(f, "lines")))
        assert_ok(f, sbp_file_read(f->arena, f->diag, io_path(f, "lines"), &text, &length));
    return text;
}

static void expect_line(io_fixture *f, const char *expected) {
    assert_string_equal(lines(f), expected);
    (void)unlink(io_path(f, "lines"));
}

static void test_names_are_written_and_forgotten(void **state) {
    io_fixture *f = *state;
    sbp_census_forget();
    setenv("SBP_TEST_PATHS", io_path(f, "lines"), 1);
    setenv("SBP_TEST_NAME", "a_test", 1);
    sbp_census_write();
    expect_line(f, "");
    SBP_CROSS(cpu_rows_pieces);
    SBP_CROSS(cpu_rows_pieces);
    SBP_CROSS_IF(1 > 2, cpu_rows_many);
    SBP_CROSS_EITHER(1 < 2, cpu_rows_f32, cpu_rows_f64);
    sbp_census_write();
    expect_line(f, "a_test cpu_rows_pieces cpu_rows_f32\n");
    sbp_census_write();
    expect_line(f, "");
    SBP_CROSS(cpu_rows_one);
    sbp_census_forget();
    sbp_census_write();
    expect_line(f, "");
}

static void test_all_names_fit_a_line(void **state) {
    io_fixture *f = *state;
    setenv("SBP_TEST_PATHS", io_path(f, "lines"), 1);
    setenv("SBP_TEST_NAME", "a_test", 1);
    for (int i = 0; i < SBP_PATH_COUNT; i++)
        sbp_census_cross((sbp_path)i);
    sbp_census_write();
    const char *text = lines(f);
    int names = 0;
    for (const char *at = text; *at; at++)
        names += *at == ' ';
    assert_int_equal(names, SBP_PATH_COUNT);
    assert_int_equal(text[strlen(text) - 1], '\n');
    (void)unlink(io_path(f, "lines"));
}

/* A process that ends by itself leaves its line; one that is killed, or that has failed, none. */
static void test_a_process_writes_when_it_ends(void **state) {
    io_fixture *f = *state;
    setenv("SBP_TEST_PATHS", io_path(f, "lines"), 1);
    setenv("SBP_TEST_NAME", "a_test", 1);
    for (int way = 0; way < 3; way++) {
        pid_t pid = fork();
        if (pid == 0) {
            SBP_CROSS(cpu_rows_one);
            if (way == 1)
                sbp_census_forget();
            if (way == 2)
                _exit(0);
            exit(0);
        }
        int status = 0;
        assert_int_equal(waitpid(pid, &status, 0), pid);
        expect_line(f, way == 0 ? "a_test cpu_rows_one\n" : "");
    }
    unsetenv("SBP_TEST_PATHS");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_names_are_written_and_forgotten, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_all_names_fit_a_line, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_a_process_writes_when_it_ends, io_setup, io_teardown)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
