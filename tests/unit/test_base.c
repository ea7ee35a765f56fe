/* test_base.c: ir/base.h: guards and arenas when memory runs out, diagnostics, text, numbers as text, the
 * name table, checked sizes. */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "ir/base.h"
#include "ir/machine.h"

static uint64_t seed = 1;

static uint64_t draw(void) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return seed ^ (seed >> 29);
}

/* ---- arenas and guards --------------------------------------------------------------------------------- */

typedef struct job {
    sbp_arena *arena;
    sbp_diag *diag;
    int reached;
    size_t count, size;
} job;

static job open_job(void) {
    return (job){.arena = sbp_arena_create(), .diag = sbp_diag_create()};
}

static void close_job(job *j) {
    sbp_arena_destroy(j->arena);
    sbp_diag_destroy(j->diag);
}

/* Blocks of all sizes: zeroed, aligned, apart from each other. */
static sbp_status fill_blocks(void *user) {
    job *j = user;
    enum { BLOCKS = 300 };
    unsigned char *blocks[BLOCKS];
    size_t sizes[BLOCKS];
    for (int i = 0; i < BLOCKS; i++) {
        sizes[i] = i % 50 == 49 ? 100000 : (size_t)(draw() % 3000);
        blocks[i] = sbp_arena_alloc(j->arena, sizes[i]);
        assert_non_null(blocks[i]);
        assert_int_equal((uintptr_t)blocks[i] % 16, 0);
        for (size_t k = 0; k < sizes[i]; k++)
            assert_int_equal(blocks[i][k], 0);
        memset(blocks[i], i, sizes[i]);
    }
    for (int i = 0; i < BLOCKS; i++)
        for (size_t k = 0; k < sizes[i]; k++)
            assert_int_equal(blocks[i][k], (unsigned char)i);
    assert_string_equal(sbp_arena_strndup(j->arena, "abcdef", 3), "abc");
    assert_string_equal(sbp_arena_printf(j->arena, "%s-%d", "x", 7), "x-7");
    assert_string_equal(sbp_arena_printf(j->arena, "%s", ""), "");
    j->reached++;
    return SBP_INPUT; /* what the body returns is what the guard returns */
}

static void arenas_give_zeroed_memory(void **state) {
    (void)state;
    job j = open_job();
    size_t before = sbp_arena_bytes(j.arena);
    assert_int_equal(sbp_guard(j.arena, j.diag, fill_blocks, &j), SBP_INPUT);
    assert_true(sbp_arena_bytes(j.arena) > before + 600000);
    assert_int_equal(sbp_diag_count(j.diag, SBP_ERROR), 0);
    close_job(&j);
}

/* Between begin and end: what was there stays as it is, what came in between is given back. */
static sbp_status nest_marks(void *user) {
    job *j = user;
    enum { DEPTH = 40 };
    sbp_arena_mark marks[DEPTH];
    unsigned char *kept[DEPTH];
    size_t sizes[DEPTH], bytes[DEPTH];
    for (int round = 0; round < 20; round++) {
        for (int i = 0; i < DEPTH; i++) {
            bytes[i] = sbp_arena_bytes(j->arena);
            marks[i] = sbp_arena_begin(j->arena);
            sizes[i] = draw() % 4 == 0 ? 50000 + draw() % 50000 : draw() % 3000;
            kept[i] = sbp_arena_alloc(j->arena, sizes[i]);
            for (size_t k = 0; k < sizes[i]; k++)
                assert_int_equal(kept[i][k], 0);
            memset(kept[i], i + 1, sizes[i]);
        }
        for (int i = DEPTH - 1; i >= 0; i--) {
            for (int below = 0; below <= i; below++)
                for (size_t k = 0; k < sizes[below]; k++)
                    assert_int_equal(kept[below][k], (unsigned char)(below + 1));
            sbp_arena_end(j->arena, marks[i]);
            assert_int_equal(sbp_arena_bytes(j->arena), bytes[i]);
        }
        if (round % 5 == 4)
            sbp_arena_alloc(j->arena, 1000); /* the marks do not always begin at nothing */
    }
    return SBP_OK;
}

static void marks_give_memory_back(void **state) {
    (void)state;
    job j = open_job();
    assert_int_equal(sbp_guard(j.arena, j.diag, nest_marks, &j), SBP_OK);
    assert_true(sbp_arena_bytes(j.arena) < 100000);
    close_job(&j);
}

/* The n-th allocation fails: SBP_MACHINE and a message; the arena can be used again afterwards. */
static void every_allocation_may_fail(void **state) {
    (void)state;
    job j = open_job();
    int failures = 0;
    for (;; failures++) {
        j.reached = 0;
        sbp_test_fail_allocation(failures + 1);
        sbp_status status = sbp_guard(j.arena, j.diag, fill_blocks, &j);
        sbp_test_fail_allocation(0);
        if (j.reached)
            break;
        assert_int_equal(status, SBP_MACHINE);
        assert_int_equal(sbp_diag_count(j.diag, SBP_ERROR), failures + 1);
        assert_non_null(strstr(sbp_diag_text(j.diag, SBP_ERROR), "out of memory"));
    }
    assert_true(failures > 5);
    close_job(&j);
    sbp_test_fail_allocation(1);
    assert_null(sbp_arena_create());
    sbp_test_fail_allocation(1);
    assert_null(sbp_diag_create());
    sbp_test_fail_allocation(0);
    sbp_arena_destroy(NULL);
    sbp_diag_destroy(NULL);
}

static sbp_status ask_too_much(void *user) {
    job *j = user;
    j->reached = 1;
    sbp_arena_array(j->arena, j->count, j->size);
    j->reached = 2;
    return SBP_OK;
}

static sbp_status nest(void *user) {
    job *j = user;
    assert_int_equal(sbp_guard(j->arena, j->diag, ask_too_much, j), SBP_MACHINE);
    assert_int_equal(j->reached, 1);
    j->reached = 3; /* the outer body goes on */
    sbp_arena_array(j->arena, j->count, j->size);
    return SBP_OK;
}

/* Sizes that overflow count as out of memory; an inner guard catches for itself, the outer for the rest. */
static void impossible_sizes_and_nested_guards(void **state) {
    (void)state;
    static const size_t sizes[][2] = {{SIZE_MAX, 1}, {SIZE_MAX / 2, 3}, {(size_t)1 << 40, (size_t)1 << 40}};
    for (int i = 0; i < SBP_COUNT(sizes); i++) {
        job j = open_job();
        j.count = sizes[i][0];
        j.size = sizes[i][1];
        assert_int_equal(sbp_guard(j.arena, j.diag, nest, &j), SBP_MACHINE);
        assert_int_equal(j.reached, 3);
        assert_int_equal(sbp_diag_count(j.diag, SBP_ERROR), 2);
        j.count = 0; /* nothing of a huge size is nothing */
        assert_int_equal(sbp_guard(j.arena, j.diag, ask_too_much, &j), SBP_OK);
        close_job(&j);
    }
}

static void arrays_grow(void **state) {
    (void)state;
    sbp_arena *arena = sbp_arena_create();
    int32_t *list = NULL, count = 0, capacity = 0;
    for (int32_t i = 0; i < 1000; i++)
        SBP_PUSH(arena, list, count, capacity, i * i);
    assert_int_equal(count, 1000);
    for (int32_t i = 0; i < 1000; i++)
        assert_int_equal(list[i], i * i);
    sbp_arena_destroy(arena);
}

/* ---- diagnostics --------------------------------------------------------------------------------------- */

static void collect(void *user, sbp_severity severity, const char *text) {
    char *out = user;
    sprintf(out + strlen(out), "%d%s;", (int)severity, text);
}

static void messages_are_kept_in_order(void **state) {
    (void)state;
    char heard[200] = "";
    sbp_diag *diag = sbp_diag_create();
    sbp_note(diag, "n%d", 1);
    sbp_diag_set_sink(diag, collect, heard);
    assert_int_equal(sbp_fail(diag, SBP_IO, "%s", "e1"), SBP_IO);
    sbp_warn(diag, "w1");
    sbp_note(diag, "n2");
    assert_string_equal(sbp_diag_text(diag, SBP_NOTE), "note: n1\nerror: e1\nwarning: w1\nnote: n2\n");
    assert_string_equal(sbp_diag_text(diag, SBP_WARNING), "error: e1\nwarning: w1\n");
    assert_string_equal(sbp_diag_text(diag, SBP_ERROR), "error: e1\n");
    assert_int_equal(sbp_diag_count(diag, SBP_NOTE), 2);
    assert_string_equal(heard, "2e1;1w1;0n2;");
    sbp_diag_clear(diag);
    assert_string_equal(sbp_diag_text(diag, SBP_NOTE), "");
    assert_int_equal(sbp_diag_count(diag, SBP_ERROR), 0);
    sbp_diag_destroy(diag);
    assert_int_equal(sbp_fail(NULL, SBP_INPUT, "nobody listens"), SBP_INPUT);
    sbp_warn(NULL, "nobody");
    sbp_note(NULL, "nobody");
}

/* A message that cannot be kept is counted, reaches the sink, and does not change the status. */
static void messages_without_memory(void **state) {
    (void)state;
    char heard[200] = "";
    sbp_diag *diag = sbp_diag_create();
    sbp_diag_set_sink(diag, collect, heard);
    sbp_test_fail_allocation(1);
    assert_int_equal(sbp_fail(diag, SBP_INPUT, "lost"), SBP_INPUT);
    sbp_test_fail_allocation(0);
    assert_int_equal(sbp_diag_count(diag, SBP_ERROR), 1);
    assert_string_equal(heard, "2lost;");
    assert_string_equal(sbp_diag_text(diag, SBP_NOTE), "");
    sbp_diag_destroy(diag);
}

/* ---- text ---------------------------------------------------------------------------------------------- */

static void text_grows(void **state) {
    (void)state;
    sbp_arena *arena = sbp_arena_create();
    sbp_text text;
    sbp_text_init(&text, arena);
    assert_string_equal(text.data, "");
    for (int i = 0; i < 500; i++)
        sbp_text_add(&text, "%d,", i);
    sbp_text_add_n(&text, "a\0b", 3);
    assert_int_equal(text.length, 10 * 2 + 90 * 3 + 400 * 4 + 3);
    assert_int_equal(strncmp(text.data, "0,1,2,", 6), 0);
    assert_int_equal(memcmp(text.data + text.length - 3, "a\0b", 4), 0);
    sbp_text_init(&text, arena);
    sbp_text_add_quoted(&text, "a\"b\\c\nd\te\x01\x7f\xc3\xa9");
    assert_string_equal(text.data, "\"a\\\"b\\\\c\\nd\\te\\x01\\x7f\xc3\xa9\"");
    sbp_arena_destroy(arena);
}

static double read_back(double value) {
    char text[40], *end;
    sbp_format_double(text, sizeof text, value);
    double back = strtod(text, &end);
    assert_int_equal(*end, 0);
    return back;
}

static void doubles_are_short_and_exact(void **state) {
    (void)state;
    static const struct {
        double value;
        const char *text;
    } cases[] = {{0, "0"},
                 {-0.0, "-0"},
                 {20, "20"},
                 {-3, "-3"},
                 {0.1, "0.1"},
                 {1e-5, "1e-05"},
                 {999999999999999, "999999999999999"},
                 {1e15, "1e+15"},
                 {1.0 / 3, "0.3333333333333333"},
                 {DBL_MAX, "1.7976931348623157e+308"},
                 {4.9406564584124654e-324, "5e-324"},
                 {(double)INFINITY, "inf"},
                 {-(double)INFINITY, "-inf"},
                 {(double)NAN, "nan"}};
    for (int i = 0; i < SBP_COUNT(cases); i++) {
        char text[40];
        sbp_format_double(text, sizeof text, cases[i].value);
        assert_string_equal(text, cases[i].text);
    }
    for (int i = 0; i < 20000; i++) {
        uint64_t bits = draw();
        double value;
        memcpy(&value, &bits, sizeof value);
        if (isnan(value))
            continue;
        double back = read_back(value);
        assert_int_equal(memcmp(&back, &value, sizeof value), 0);
        value = (double)(int64_t)(bits >> (bits & 63)) / 8;
        assert_true(read_back(value) == value);
    }
}

static void bytes_for_people(void **state) {
    (void)state;
    static const struct {
        double bytes;
        const char *text;
    } out[] = {{0, "0 B"},           {1023, "1023 B"}, {1024, "1.00 KiB"}, {1.5 * 1073741824, "1.50 GiB"},
               {-2048, "-2.00 KiB"}, {1e300, NULL}};
    for (int i = 0; i < SBP_COUNT(out) && out[i].text; i++) {
        char text[32];
        assert_string_equal(sbp_format_bytes(text, sizeof text, out[i].bytes), out[i].text);
    }
    static const struct {
        const char *text;
        int64_t bytes; /* -1: refused */
    } in[] = {{"0", 0},
              {"512", 512},
              {"1e9", 1000000000},
              {"80GiB", (int64_t)80 << 30},
              {"24 GB", 24000000000},
              {"512m", 512 << 20},
              {"1.5k", 1536},
              {"2TiB", (int64_t)2 << 40},
              {"3tb", 3000000000000},
              {"", -1},
              {"GiB", -1},
              {"-1", -1},
              {"1e30", -1},
              {"nan", -1},
              {"inf", -1},
              {"12 apples", -1},
              {"1GiBs", -1},
              {"0x", -1}};
    sbp_diag *diag = sbp_diag_create();
    for (int i = 0; i < SBP_COUNT(in); i++) {
        int64_t bytes = -1;
        sbp_status status = sbp_parse_bytes(diag, in[i].text, &bytes);
        if (status != (in[i].bytes < 0 ? SBP_USAGE : SBP_OK) || bytes != in[i].bytes)
            fail_msg("'%s': status %d, %lld bytes", in[i].text, (int)status, (long long)bytes);
    }
    sbp_diag_destroy(diag);
}

/* ---- names and sizes ----------------------------------------------------------------------------------- */

static void maps_keep_what_they_were_told(void **state) {
    (void)state;
    enum { KEYS = 2000 };
    sbp_arena *arena = sbp_arena_create();
    sbp_map map;
    sbp_map_init(&map, arena);
    assert_int_equal(sbp_map_get(&map, "nothing"), -1);
    for (int32_t i = 0; i < KEYS; i++)
        sbp_map_set(&map, sbp_arena_printf(arena, "key %d", i), i);
    sbp_map_set(&map, "", 7);
    sbp_map_set(&map, "key 5", 50);
    assert_int_equal(map.count, KEYS + 1);
    for (int32_t i = 0; i < KEYS; i++)
        assert_int_equal(sbp_map_get(&map, sbp_arena_printf(arena, "key %d", i)), i == 5 ? 50 : i);
    assert_int_equal(sbp_map_get(&map, ""), 7);
    assert_int_equal(sbp_map_get(&map, "key 2000"), -1);
    sbp_arena_destroy(arena);
}

static void sizes_do_not_overflow(void **state) {
    (void)state;
    int64_t out = 42;
    assert_false(sbp_add_i64(INT64_MAX, 1, &out));
    assert_false(sbp_add_i64(INT64_MIN, -1, &out));
    assert_false(sbp_mul_i64(INT64_MAX / 2 + 1, 2, &out));
    assert_false(sbp_mul_i64(INT64_MIN, -1, &out));
    assert_int_equal(out, 42); /* left alone */
    assert_true(sbp_add_i64(INT64_MAX, -1, &out));
    assert_int_equal(out, INT64_MAX - 1);
    assert_true(sbp_mul_i64(INT64_MIN / 2, 2, &out));
    assert_int_equal(out, INT64_MIN);
    assert_int_equal(sbp_ceil_div(0, 7), 0);
    assert_int_equal(sbp_ceil_div(14, 7), 2);
    assert_int_equal(sbp_ceil_div(15, 7), 3);
    assert_int_equal(sbp_ceil_div(INT64_MAX, 2), INT64_MAX / 2 + 1);
    assert_int_equal(sbp_round_up(0, 64), 0);
    assert_int_equal(sbp_round_up(1, 64), 64);
    assert_int_equal(sbp_round_up(64, 64), 64);
}

static void what_is_kept_has_a_place(void **unused) {
    (void)unused;
    char top[64], path[128], want[128], small[8];
    struct stat made;
    snprintf(top, sizeof top, "/tmp/sbp-test-base-%d", (int)getpid());
    snprintf(want, sizeof want, "%s/a/streambp/name", top);
    snprintf(path, sizeof path, "%s/a", top);
    setenv("XDG_CACHE_HOME", path, 1);
    assert_true(sbp_cache_path("name", path, sizeof path));
    assert_string_equal(path, want);
    assert_false(sbp_cache_path("name", small, sizeof small));
    for (int twice = 0; twice < 2; twice++)
        sbp_make_directories_above(path);
    assert_int_equal(stat(path, &made), -1);
    *strrchr(path, '/') = 0;
    assert_int_equal(stat(path, &made), 0);
    assert_true(S_ISDIR(made.st_mode) && (made.st_mode & 0777) == 0700);
    for (; strlen(path) >= strlen(top); *strrchr(path, '/') = 0)
        assert_int_equal(rmdir(path), 0);
    setenv("XDG_CACHE_HOME", "relative", 1);
    setenv("HOME", "/home/x", 1);
    assert_true(sbp_cache_path("name", path, sizeof path));
    assert_string_equal(path, "/home/x/.cache/streambp/name");
    unsetenv("XDG_CACHE_HOME");
    unsetenv("HOME");
    assert_false(sbp_cache_path("name", path, sizeof path));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(arenas_give_zeroed_memory),
        cmocka_unit_test(marks_give_memory_back),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(impossible_sizes_and_nested_guards),
        cmocka_unit_test(arrays_grow),
        cmocka_unit_test(messages_are_kept_in_order),
        cmocka_unit_test(messages_without_memory),
        cmocka_unit_test(text_grows),
        cmocka_unit_test(doubles_are_short_and_exact),
        cmocka_unit_test(bytes_for_people),
        cmocka_unit_test(maps_keep_what_they_were_told),
        cmocka_unit_test(what_is_kept_has_a_place),
        cmocka_unit_test(sizes_do_not_overflow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
