/* Device memory of the PTX machine: addresses, bounds to the byte, which bytes were written. */
#include "tests/ptx/memory.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static void bounds_are_exact(void **state) {
    (void)state;
    sbp_ptx_memory *memory = sbp_ptx_memory_create(1000);
    const uint64_t a = sbp_ptx_memory_alloc(memory, 301), b = sbp_ptx_memory_alloc(memory, 300);
    assert_true(a && b && a % 256 == 0 && b % 256 == 0);
    assert_int_equal(sbp_ptx_memory_alloc(memory, 400), 0); // beyond the limit
    assert_int_equal(sbp_ptx_memory_alloc(memory, 0), 0);
    assert_int_equal(sbp_ptx_memory_used_bytes(memory), 601);
    uint64_t base, bytes;
    assert_true(sbp_ptx_memory_find(memory, a + 300, &base, &bytes));
    assert_true(base == a && bytes == 301);
    assert_false(sbp_ptx_memory_find(memory, a + 301, &base, &bytes));
    assert_false(sbp_ptx_memory_find(memory, a - 1, &base, &bytes));
    assert_non_null(sbp_ptx_memory_host(memory, a + 1, 300));
    assert_null(sbp_ptx_memory_host(memory, a + 1, 301));
    assert_null(sbp_ptx_memory_host(memory, a, UINT64_MAX));
    assert_false(sbp_ptx_memory_free(memory, a + 1));
    assert_true(sbp_ptx_memory_free(memory, a));
    assert_false(sbp_ptx_memory_free(memory, a));
    assert_false(sbp_ptx_memory_find(memory, a, &base, &bytes));
    assert_true(sbp_ptx_memory_find(memory, b, &base, &bytes));
    sbp_ptx_memory_destroy(memory);
}

static void bytes_know_whether_they_were_written(void **state) {
    (void)state;
    sbp_ptx_memory *memory = sbp_ptx_memory_create(0);
    const uint64_t a = sbp_ptx_memory_alloc(memory, 100), b = sbp_ptx_memory_alloc(memory, 100);
    const ptx_allocation *at = ptx_memory_at(memory, a);
    for (uint64_t from = 0; from < 40; from++) {
        for (uint64_t bytes = 1; bytes <= 40; bytes++) {
            assert_true(sbp_ptx_memory_mark(memory, a, 100, false));
            assert_true(sbp_ptx_memory_mark(memory, a + from, bytes, true));
            for (uint64_t i = 0; i < 100; i++) {
                assert_int_equal(ptx_written(at, i, 1), i >= from && i < from + bytes);
            }
            assert_true(ptx_written(at, from, bytes));
            assert_false(ptx_written(at, from, bytes + 1));
            assert_false(from && ptx_written(at, from - 1, bytes + 1));
        }
    }
    const char text[] = "abc";
    char back[4];
    assert_true(sbp_ptx_memory_mark(memory, a, 100, false));
    assert_true(sbp_ptx_memory_write(memory, a + 7, text, 4));
    assert_true(sbp_ptx_memory_copy(memory, b, a + 6, 6));
    assert_true(sbp_ptx_memory_read(memory, b + 1, back, 4));
    assert_string_equal(back, text);
    at = ptx_memory_at(memory, b);
    assert_true(!ptx_written(at, 0, 1) && ptx_written(at, 1, 4) && !ptx_written(at, 5, 1));
    assert_true(sbp_ptx_memory_fill(memory, b, 0x01020304, 2, 3));
    assert_true(sbp_ptx_memory_read(memory, b + 2, back, 4));
    assert_true(back[0] == 4 && back[1] == 3 && back[2] == 4 && back[3] == 3);
    assert_false(sbp_ptx_memory_fill(memory, b, 0, 4, 26));
    sbp_ptx_memory_destroy(memory);
}

static void traces_split(void **state) {
    (void)state;
    sbp_ptx_memory *memory = sbp_ptx_memory_create(0);
    ptx_allocation *a = ptx_memory_at(memory, sbp_ptx_memory_alloc(memory, 10000));
    uint32_t at, count;
    const ptx_page *page = ptx_page_of(a, 4104, 8, &at, &count);
    assert_int_equal(count, 2);
    page->writer[at + 1] = 7;
    page->reader[at] = 9;
    page = ptx_page_of(a, 4106, 4, &at, &count); // half a word
    assert_int_equal(count, 2);
    assert_true(page->writer[at] == 0 && page->writer[at + 1] == 7);
    page = ptx_page_of(a, 4107, 1, &at, &count);
    assert_int_equal(count, 1);
    page = ptx_page_of(a, 4104, 8, &at, &count);
    assert_int_equal(count, 8);
    for (uint32_t i = 0; i < 8; i++) {
        assert_int_equal(page->writer[at + i], i < 4 ? 0 : 7);
        assert_int_equal(page->reader[at + i], i < 4 ? 9 : 0);
    }
    sbp_ptx_memory_destroy(memory);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bounds_are_exact),
        cmocka_unit_test(bytes_know_whether_they_were_written),
        cmocka_unit_test(traces_split),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
