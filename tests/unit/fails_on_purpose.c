/* fails_on_purpose.c: one failing check, by which ./run-tests proves that failures are seen. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void test_fails(void **state) {
    (void)state;
    assert_int_equal(1 + 1, 3);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_fails)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
